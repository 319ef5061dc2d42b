// SPDX-License-Identifier: Apache-2.0
// How a warp's turn is taken; private to sim/run.
#pragma once
#include <cstdint>
#include <string>

#include "sim/machine/hierarchy.h"

namespace sim {

// How a warp's turn ended.
enum class Turn { Quantum, Yielded, Blocked, Finished };
Turn run_warp(Warp& warp, uint32_t quantum, uint32_t* executed);

// Runs a cluster to completion, or throws Fault. False when it waits for other clusters: it goes on when it is called
// again.
bool run_cluster(Cluster& cluster);

// Makes `cluster` the launch's cluster number `number`. One object serves many clusters of a launch in turn.
void begin_cluster(Cluster& cluster, Launch& launch, uint64_t number);
// After the last warp has left.
void finish_cluster(Cluster& cluster);

uint64_t splitmix64(uint64_t x);

[[noreturn]] void report_deadlock(Cluster& cluster, const std::string& why);

}  // namespace sim
