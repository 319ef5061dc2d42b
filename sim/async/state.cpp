// SPDX-License-Identifier: Apache-2.0
// Birth and end of the asynchronous state of a cluster.
#include "sim/async/state.h"

namespace sim {

void create_async_state(Cluster& cluster) {
  cluster.tensor_maps = {};
  cluster.async = {new AsyncClusterState, [](AsyncClusterState* s) { delete s; }};
  cluster.predecessor_grids = new_agent(cluster, {AgentInfo::Kind::PredecessorGrids});
  for (auto& cta : cluster.ctas) {
    cta->async = {new AsyncCtaState, [](AsyncCtaState* s) { delete s; }};
    const uint32_t warps = static_cast<uint32_t>(cta->warps.size());
    for (uint32_t w = 0; w < warps; ++w) {
      Warp& warp = *cta->warps[w];
      warp.attention = 0;
      warp.async = {new AsyncWarpState, [](AsyncWarpState* s) { delete s; }};
      warp.self = new_agent(cluster, {AgentInfo::Kind::Warp, cta.get(), w});
      warp.view.seen.raise(warp.self, 1);  // a stamp of 0 means never
      if (cluster.ctas.size() > 1) warp.view.caused.raise(warp.self, 1);
      warp.async->init = new_agent(cluster, {AgentInfo::Kind::Init, cta.get(), w});
    }
    cta->async->warpgroups.resize((warps + 3) / 4);
    for (uint32_t g = 0; g < cta->async->warpgroups.size(); ++g) {
      WarpGroup& group = cta->async->warpgroups[g];
      group.agent = new_agent(cluster, {AgentInfo::Kind::Wgmma, cta.get(), g});
      group.queue = group.agent;
    }
  }
}

namespace {

// All warps of a warp group execute the same setmaxnreg (9.7.19.5).
void check_register_changes(Cta& cta) {
  for (size_t w = 0; w < cta.warps.size(); ++w) {
    Warp& warp = *cta.warps[w];
    const Warp& first = *cta.warps[w / 4 * 4];
    if (warp.async->register_changes == first.async->register_changes) continue;
    const bool more = warp.async->register_changes > first.async->register_changes;
    const Warp& changed = more ? warp : first;
    deviation(Hazard::IllegalUse, warp, -1, [&] {
      return changed.async->register_change.text() + " is executed less often by warp " +
             std::to_string((more ? first : warp).index) + " of its warp group,";
    });
    return;
  }
}

}  // namespace

void finish_async_state(Cluster& cluster) {
  for (auto& cta : cluster.ctas) check_register_changes(*cta);
  cluster.async->finishing = true;
  // What nobody waited for may still run when the block's shared memory is gone.
  for (auto& cta : cluster.ctas) {
    for (auto& warp : cta->warps) {
      for (auto& [lane, bulk] : warp->async->bulk) {
        if (cluster.launch->rules.drained_exit && bulk.last_used > 0 && warp->view.seen[bulk.read] < bulk.last_used)
          bulk.last.fail(Hazard::DataInFlight,
                         "a block exits while a bulk copy may still read its shared memory, and no "
                         "cp.async.bulk.wait_group covers its last group");
      }
    }
    for (auto& [offset, barrier] : cta->async->mbarriers) {
      if (barrier.last_copy == 0) continue;
      bool waited = false;
      for (auto& other : cluster.ctas) {
        for (auto& warp : other->warps) waited = waited || warp->view.seen[barrier.agent] >= barrier.last_copy;
      }
      if (!waited)
        barrier.copy.fail(Hazard::DataInFlight, describe_block(*cta) +
                                                    " exits while a copy may still write its shared memory, and no "
                                                    "thread waited for phase " +
                                                    std::to_string(barrier.last_copy - 1) +
                                                    " of the mbarrier at shared offset " + hex(offset));
    }
  }
  for (auto& cta : cluster.ctas) {
    for (const auto& [agent, remote] : cta->remote) {
      bool ordered = false;
      for (auto& warp : cta->warps) ordered = ordered || warp->view.seen[agent] >= remote.epoch;
      if (ordered) continue;
      const auto text = [&, by = agent] {
        return describe_block(*cta) + " may have finished when " + describe_agent(cluster, by) +
               " accesses its shared memory, and no barrier.cluster or the like is between";
      };
      // Below isa a relaxed barrier.cluster behind the access, for which the block has waited, is enough.
      const uint32_t before = remote.before;
      if (std::none_of(cta->warps.begin(), cta->warps.end(),
                       [&](const auto& warp) { return is_behind_cluster_barrier(*warp, before); }))
        remote.by.fail(Hazard::Memory, text());
      remote.by.deviation(Hazard::Memory, text);
    }
  }
  cluster.engine.perform_all(cluster);
  for (auto& cta : cluster.ctas) {
    for (auto& [offset, barrier] : cta->async->mbarriers) {
      if (barrier.tx == 0) continue;
      barrier.expect.fail(
          Hazard::MbarrierMisuse,
          describe_block(*cta) + " exits while phase " + std::to_string(barrier.phase) +
              " of the mbarrier at shared offset " + hex(offset) +
              (barrier.tx > 0 ? " still expects " + std::to_string(barrier.tx) + " bytes"
                              : " has received " + std::to_string(-barrier.tx) + " bytes that none expected"));
    }
  }
}

AddressOperand push_map_address(DecodeContext& context, const ptx::Operand& operand) {
  const ptx::Operand& base = operand.elements.at(0);
  if (base.kind == ptx::Operand::Kind::Symbol) {
    const DecodeContext::Place place = context.place(base.name);
    if (place.found && place.space == ptx::Space::Param) {
      const AddressOperand address{context.pushed(), true};
      context.push(immediate_operand(static_cast<int64_t>(kParamWindow | (place.address + base.addend))),
                   ptx::Type::U64);
      context.push(immediate_operand(operand.addend), ptx::Type::U64);
      return address;
    }
  }
  return push_address(context, operand);
}

}  // namespace sim
