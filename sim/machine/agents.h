// SPDX-License-Identifier: Apache-2.0
// A name for each Agent (sim/history/clock.h), for the text of a fault.
#pragma once
#include <cstdint>
#include <string>

#include "sim/history/clock.h"

namespace sim {

struct Cta;
struct Cluster;

struct AgentInfo {
  enum class Kind { Warp, Mbarrier, BulkRead, BulkWrite, Wgmma, CpAsync, Init, TensorPipe, PredecessorGrids, Reads };
  Kind kind = Kind::Warp;
  const Cta* cta = nullptr;
  uint32_t index = 0;  // warp, warpgroup or shared offset
};

Agent new_agent(Cluster& cluster, AgentInfo info);
std::string describe_agent(const Cluster& cluster, Agent agent);

}  // namespace sim
