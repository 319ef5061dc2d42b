// SPDX-License-Identifier: Apache-2.0
// Which bits of a warp's registers and local memory are undefined: they depend on memory that nobody has written. A bit
// is set here where that of the register, or of the memory, is undefined.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

namespace sim {

struct UndefinedValues {
  explicit UndefinedValues(uint32_t register_bytes)
      : registers(static_cast<uint8_t*>(std::aligned_alloc(64, register_bytes)), std::free), rows(register_bytes / 64) {
    if (registers == nullptr) throw std::bad_alloc();
    std::memset(registers.get(), 0, register_bytes);
  }
  std::unique_ptr<uint8_t[], void (*)(void*)> registers;  // as the warp's register file
  std::vector<uint8_t> rows;                              // by 64 bytes of it: a row with undefined bits begins here
  uint32_t row_count = 0;                                 // of those
  uint32_t carry = 0;                                     // lanes whose CC.CF is undefined
  std::vector<uint8_t> local;                             // as the warp's local memory; empty where all is defined
  // Bytes of shared memory that the instruction being executed has read and nobody has written, 16 at most each.
  struct Unwritten {
    uint8_t* bytes;
    uint32_t mask;
  };
  std::vector<Unwritten> met;

  bool has(uint32_t row) const { return rows[row / 64] != 0; }
  bool none() const { return row_count == 0 && carry == 0 && local.empty(); }
  // Looks at a row again whose bits were changed.
  void note(uint32_t row, size_t bytes) {
    bool any = false;
    for (size_t i = 0; i < bytes; i += 64) {
      uint64_t eight[8];
      std::memcpy(eight, registers.get() + row + i, sizeof eight);
      any = any || (eight[0] | eight[1] | eight[2] | eight[3] | eight[4] | eight[5] | eight[6] | eight[7]) != 0;
    }
    row_count += static_cast<uint32_t>(any) - rows[row / 64];
    rows[row / 64] = any;
  }
};

}  // namespace sim
