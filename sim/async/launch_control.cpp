// SPDX-License-Identifier: Apache-2.0
// clusterlaunchcontrol (PTX ISA 9.7.13.17, 9.7.13.18). Which clusters of a launch are pending is decided before it
// runs (sim/run/launch.cpp): each cluster that starts has a share of them to itself, so that the outcome is the
// same for any number of host threads. The response, opaque to programs, is {x, y, z, 1} or {0, 0, 0, 0}.
#include <cstring>

#include "sim/async/state.h"

namespace sim {

namespace {

constexpr uint32_t kResponseBytes = 16;

class Cancel : public AsyncOp {
 public:
  struct Target {
    Cta* cta;
    Stamp stamp;
  };
  Cancel(Origin origin, uint32_t address, uint32_t barrier, std::vector<Target> targets, const uint32_t response[4])
      : origin_(origin), address_(address), barrier_(barrier), targets_(std::move(targets)) {
    std::memcpy(response_, response, kResponseBytes);
  }
  void perform(Cluster& cluster) override {
    for (const Target& target : targets_) {
      std::memcpy(target.cta->shared.bytes + address_, response_, kResponseBytes);
      mbarrier_copy_done(cluster, *target.cta, barrier_, target.stamp, kResponseBytes, origin_);
    }
  }

 private:
  Origin origin_;
  uint32_t address_, barrier_;
  std::vector<Target> targets_;
  uint32_t response_[4];
};

struct TryCancel {
  bool multicast = false;
  bool generic = false;  // both addresses
  AddressOperand response, mbarrier;
};

Step execute_try_cancel(Warp& warp, const Instr& instr, uint32_t mask) {
  const auto& form = instr.form<TryCancel>();
  Cluster& cluster = *warp.cta->cluster;
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const SharedPlace to = shared_place(warp, read_address(warp, instr, form.response, lane), form.generic, lane);
    const SharedPlace at = shared_place(warp, read_address(warp, instr, form.mbarrier, lane), form.generic, lane);
    if (to.cta != warp.cta || at.cta != warp.cta)
      fault(Hazard::Memory, warp, lane, "clusterlaunchcontrol.try_cancel names the shared memory of another block");
    if (to.offset % kResponseBytes != 0)
      fault(Hazard::Memory, warp, lane,
            "clusterlaunchcontrol.try_cancel writes to a misaligned address: " + hex(to.offset));
    for (const Stamp& failure : cluster.cancel_failures) {
      if (warp.view.seen[failure.by] >= failure.at)
        fault(Hazard::IllegalUse, warp, lane, "clusterlaunchcontrol.try_cancel after one that was seen to fail");
    }
    uint32_t response[4] = {};
    // A GPU may also refuse while clusters are pending, as when it wants the room for another kernel.
    const bool refused = cluster.order.mode == Mode::Random && cluster.rng() % 16 == 0;
    const bool granted = !refused && !cluster.pending.empty();
    if (granted) {
      const Launch& launch = *cluster.launch;
      const uint64_t x = launch.grid.x / launch.cluster.x, y = launch.grid.y / launch.cluster.y;
      const uint64_t number = cluster.pending.front();
      cluster.pending.pop_front();
      response[0] = static_cast<uint32_t>(number % x) * launch.cluster.x;
      response[1] = static_cast<uint32_t>(number / x % y) * launch.cluster.y;
      response[2] = static_cast<uint32_t>(number / x / y) * launch.cluster.z;
      response[3] = 1;
    }
    std::vector<Cancel::Target> targets;
    const auto add = [&](Cta& cta) {
      const Stamp stamp = mbarrier_stamp(find_mbarrier(warp, cta, at.offset, lane, true), current_origin(warp, lane));
      warp.order_reads(1u << lane);
      shared_async_write(warp, cta, to.offset, kResponseBytes, stamp);
      targets.push_back({&cta, stamp});
      if (!granted) cluster.cancel_failures.push_back(stamp);
    };
    if (form.multicast) {
      for (auto& cta : cluster.ctas) {
        if (cta->finished())
          fault(Hazard::IllegalUse, warp, lane,
                "clusterlaunchcontrol.try_cancel with .multicast::cluster::all in a cluster of which block rank " +
                    std::to_string(cta->rank) + " has finished");
        add(*cta);
      }
    } else {
      add(*warp.cta);
    }
    cluster.engine.submit(cluster, std::make_unique<Cancel>(Origin{&warp, instr.source, lane}, to.offset, at.offset,
                                                            std::move(targets), response));
  }
  return Step::Next;
}

struct QueryCancel {
  enum class What : uint8_t { IsCanceled, FirstCta, Coordinate };
  What what = What::IsCanceled;
  uint8_t coordinate = 0;  // x, y or z
  ValueOperand d;          // of FirstCta the first of four
  ValueOperand response;
};

Step execute_query(Warp& warp, const Instr& instr, uint32_t mask) {
  using What = QueryCancel::What;
  const auto& form = instr.form<QueryCancel>();
  const uint32_t* const d = instr.reg + form.d.place;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = first_lane(rest);
    uint32_t response[4];
    std::memcpy(response, warp.row<uint8_t>(instr.reg[form.response.place]) + lane * kResponseBytes, kResponseBytes);
    if (form.what == What::IsCanceled) {
      uint32_t& predicate = *warp.row<uint32_t>(*d);
      predicate = (predicate & ~(1u << lane)) | response[3] << lane;
      continue;
    }
    if (response[3] != 1)
      deviation(Hazard::IllegalUse, warp, lane, [] {
        return "clusterlaunchcontrol.query_cancel.get_first_ctaid of a response that says no cluster was cancelled";
      });
    if (form.what == What::FirstCta) {
      for (int i = 0; i < 4; ++i) {
        if (d[i] != kNoReg) warp.row<uint32_t>(d[i])[lane] = i < 3 ? response[i] : 0;
      }
    } else {
      warp.row<uint32_t>(*d)[lane] = response[form.coordinate];
    }
  }
  return Step::Next;
}

bool decode_launch_control(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (context.arch() < 100) unsupported(source, "needs target sm_100");
  const auto& parts = source.parts;
  const auto& operands = source.operands;
  if (parts.size() > 1 && parts[1] == "try_cancel") {
    if (!has_part(source, "async") || !has_part(source, "mbarrier::complete_tx::bytes") || !has_part(source, "b128") ||
        operands.size() != 2)
      unsupported(source, "the form is not known");
    TryCancel form;
    form.multicast = has_part(source, "multicast::cluster::all");
    form.generic = !has_part(source, "shared::cta");
    form.response = push_address(context, operands[0]);
    form.mbarrier = push_address(context, operands[1]);
    out.set(form);
    out.execute = execute_try_cancel;
    return true;
  }
  if (parts.size() < 3 || parts[1] != "query_cancel" || operands.size() != 2)
    unsupported(source, "the form is not known");
  QueryCancel form;
  if (parts[2] == "is_canceled") {
    form.d = push_value(context, operands[0], ptx::Type::Pred);
  } else if (parts[2] == "get_first_ctaid") {
    if (operands[0].kind != ptx::Operand::Kind::Vector || operands[0].elements.size() != 4)
      unsupported(source, "needs a vector of 4 registers");
    form.what = QueryCancel::What::FirstCta;
    form.d = push_value(context, operands[0], ptx::Type::B32);
  } else if (parts[2].starts_with("get_first_ctaid::") && parts[2].size() == 18 && parts[2][17] >= 'x' &&
             parts[2][17] <= 'z') {
    form.what = QueryCancel::What::Coordinate;
    form.coordinate = static_cast<uint8_t>(parts[2][17] - 'x');
    form.d = push_value(context, operands[0], ptx::Type::B32);
  } else {
    unsupported(source, "the form is not known");
  }
  form.response = push_value(context, operands[1], ptx::Type::B128);
  out.set(form);
  out.execute = execute_query;
  return true;
}

}  // namespace

void register_launch_control() { register_opcode("clusterlaunchcontrol", decode_launch_control); }

}  // namespace sim
