// SPDX-License-Identifier: Apache-2.0
// Instructions that all 32 threads of a warp execute together: matrix products and moves.
#pragma once
#include "sim/machine/hierarchy.h"

namespace sim {

// False: answer Step::Wait. A fault when some threads have exited.
bool require_all_lanes(Warp& warp, uint32_t mask);

}  // namespace sim
