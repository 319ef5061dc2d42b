// SPDX-License-Identifier: Apache-2.0
// What a launch must keep to, and which of its clusters run one behind the other; private to sim/run.
#pragma once
#include <cstdint>
#include <deque>

#include "sim/machine/launch.h"

namespace sim {

// Throws Fault when the launch is not allowed.
void check_launch(const Launch& launch);
uint64_t running_clusters(const Launch& launch, uint64_t clusters);
std::deque<uint64_t> share_of(const Order& order, uint64_t i, uint64_t n, uint64_t clusters);
bool order_between_clusters_matters(const Kernel& kernel);
// Whether a tensor map in global memory was stored over is asked when a copy uses it.
bool copies_tensors(const Kernel& kernel);

}  // namespace sim
