// SPDX-License-Identifier: Apache-2.0
// Elements of 4 and 6 bits in shared memory, which ldmatrix and tcgen05.cp widen to bytes.
#pragma once
#include <cstdint>
#include <cstring>

namespace sim {

// What 16 bytes of shared memory hold: 16 bytes, or 16 packed elements of 6 or 4 bits with padding behind them (PTX ISA
// 5.5.1.1). The value is the number of bits of an element.
enum class Packing : uint8_t { Bytes = 8, Six = 6, Four = 4 };
inline uint32_t packed_bytes(Packing packing) { return 2 * static_cast<uint32_t>(packing); }

// Widens the 16 elements at `from` to 16 bytes, whose low bits they become.
inline void widen(Packing packing, const uint8_t* from, uint8_t* to) {
  if (packing == Packing::Bytes) {
    std::memcpy(to, from, 16);
    return;
  }
  const int bits = static_cast<int>(packing);
  for (int i = 0; i < 16; ++i) {
    const int at = i * bits;
    uint32_t two = from[at / 8];
    if (at % 8 + bits > 8) two |= uint32_t{from[at / 8 + 1]} << 8;
    to[i] = static_cast<uint8_t>(two >> at % 8 & ((1u << bits) - 1));
  }
}

}  // namespace sim
