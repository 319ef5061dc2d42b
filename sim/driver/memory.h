// SPDX-License-Identifier: Apache-2.0
// Copies and fills as work, for whoever submits them later.
#pragma once
#include "sim/driver/work.h"

namespace sim::driver {

CopyWork copy_of(const CUDA_MEMCPY3D& description);
SetWork set_of(uint64_t destination, uint64_t pitch, uint32_t value, uint32_t element_bytes, uint64_t width,
               uint64_t height);

}  // namespace sim::driver
