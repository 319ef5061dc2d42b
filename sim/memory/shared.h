// SPDX-License-Identifier: Apache-2.0
// The bytes of a block's shared memory.
#pragma once
#include <cstdint>
#include <memory>

namespace sim {

struct SharedMemory {
  uint32_t size = 0;
  uint8_t* bytes = nullptr;  // 1024-byte aligned
  void create(uint32_t size);

 private:
  std::unique_ptr<uint8_t[]> data_;
};

}  // namespace sim
