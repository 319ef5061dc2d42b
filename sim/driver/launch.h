// SPDX-License-Identifier: Apache-2.0
// Kernel launches: from a launch configuration to work.
#pragma once
#include "sim/driver/function.h"
#include "sim/driver/work.h"

namespace sim::driver {

struct LaunchRequest {
  Dim3 grid, block, cluster{0, 0, 0};
  unsigned dynamic_shared = 0;
  bool cooperative = false;
  bool programmatic = false;
};
KernelWork make_launch(CUfunc_st& function, const LaunchRequest& request, void** params, void** extra);

}  // namespace sim::driver
