// SPDX-License-Identifier: Apache-2.0
// The extent of a grid, a cluster or a block, and an index in one.
#pragma once
#include <cstdint>

namespace sim {

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }
};

}  // namespace sim
