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

// Makes `cluster` the launch's cluster number `number`. One object serves many clusters of a launch in turn.
void begin_cluster(Cluster& cluster, Launch& launch, uint64_t number);
// After the last warp has left.
void finish_cluster(Cluster& cluster);

// To be called when nothing is pending.
[[noreturn]] void report_deadlock(Cluster& cluster, const std::string& why);
// A line for each warp of the cluster that has not left, with what it waits for.
struct Waiting {
  std::string lines;
  int warps = 0;
  std::string first;  // where the first of them stands
  std::string lost;   // where one stands that waits for none but its own lanes
};
Waiting describe_waiting(Cluster& cluster);

}  // namespace sim
