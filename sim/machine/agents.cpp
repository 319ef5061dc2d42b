// SPDX-License-Identifier: Apache-2.0
#include "sim/machine/agents.h"

#include "sim/machine/hierarchy.h"
#include "sim/memory/address_space.h"

namespace sim {

Agent new_agent(Cluster& cluster, AgentInfo info) {
  const auto agent = static_cast<Agent>(cluster.agents.size());
  cluster.agents.push_back(info);
  return agent;
}

std::string describe_agent(const Cluster& cluster, Agent agent) {
  const AgentInfo& info = cluster.agents[agent];
  const std::string block =
      cluster.ctas.size() > 1 && info.cta ? " of block rank " + std::to_string(info.cta->rank) : "";
  const std::string number = std::to_string(info.index);
  switch (info.kind) {
    case AgentInfo::Kind::Warp:
    case AgentInfo::Kind::Reads:
      return "warp " + number + block;
    case AgentInfo::Kind::Mbarrier:
      return "the phase of the mbarrier at shared offset " + hex(info.index) + block;
    case AgentInfo::Kind::BulkRead:
    case AgentInfo::Kind::BulkWrite:
      return "a bulk group of warp " + number + block;
    case AgentInfo::Kind::Wgmma:
      return "a wgmma group of warpgroup " + number + block;
    case AgentInfo::Kind::CpAsync:
      return "a cp.async of warp " + number + block;
    case AgentInfo::Kind::TensorPipe:
      return "a tcgen05 operation of warp " + number + block;
    case AgentInfo::Kind::PredecessorGrids:
      return "the grids before";
    case AgentInfo::Kind::Init:
      return "an mbarrier.init of warp " + number + block;
  }
  return "";
}

}  // namespace sim
