// SPDX-License-Identifier: Apache-2.0
// The parameters of kernel nodes, for whoever changes an executable graph.
#pragma once
#include "sim/driver/call.h"
#include "sim/driver/work.h"

namespace sim::driver {

// The first form of the structure ends before `kern`.
CUDA_KERNEL_NODE_PARAMS widened(const CUDA_KERNEL_NODE_PARAMS_v1* params);
// The kernel of a node with other parameters. It keeps what the parameters do not name.
Work changed_kernel(Call& c, const Work& old, const CUDA_KERNEL_NODE_PARAMS* params);

}  // namespace sim::driver
