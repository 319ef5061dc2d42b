// SPDX-License-Identifier: Apache-2.0
#include "sim/memory/shared.h"

#include <cstring>

namespace sim {

void SharedMemory::create(uint32_t bytes_wanted) {
  if (data_ == nullptr || size != bytes_wanted) data_ = std::make_unique_for_overwrite<uint8_t[]>(bytes_wanted + 1024);
  size = bytes_wanted;
  bytes = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(data_.get()) + 1023) & ~uintptr_t{1023});
  // What a program has not written is not zero on a GPU either: all ones is a NaN in every float format.
  std::memset(bytes, 0xff, size);
}

}  // namespace sim
