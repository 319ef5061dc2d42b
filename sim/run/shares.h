// SPDX-License-Identifier: Apache-2.0
// What a launch must keep to, which of its clusters run one behind the other, and what each of them is given; private
// to sim/run.
#pragma once
#include <cstdint>
#include <deque>

#include "sim/machine/launch.h"

namespace sim {

// Throws Fault when the launch is not allowed.
void check_launch(const Launch& launch);
uint64_t running_clusters(const Launch& launch, uint64_t clusters);
std::deque<uint64_t> share_of(const Order& order, uint64_t i, uint64_t n, uint64_t clusters);

// Begins the launch's grid_history where clusters may race for global memory. Those of an `interleaved` grid may also
// hand on what others of another grid have handed over.
void begin_history(Launch& launch, bool interleaved);
// What a cluster has for all of the launch: where it counts, logs its writes and remembers its accesses.
void equip_cluster(Cluster& cluster, const Launch& launch, Statistics* statistics);

}  // namespace sim
