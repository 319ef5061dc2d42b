// SPDX-License-Identifier: Apache-2.0
// Occupancy: how many blocks of a function a multiprocessor holds at once.
#pragma once
#include <cstdint>

#include "sim/driver/function.h"

namespace sim::driver {

int blocks_per_sm(const CUfunc_st& function, unsigned threads, uint64_t dynamic_shared);

}  // namespace sim::driver
