// SPDX-License-Identifier: Apache-2.0
// Clusters and the register pool: barrier.cluster (PTX ISA 9.7.13.3), mapa (9.7.9.23), getctarank (9.7.9.24),
// setmaxnreg (9.7.19.5), griddepcontrol (9.7.13.13).
#include <algorithm>

#include "sim/async/state.h"

namespace sim {

namespace {

// ---- barrier.cluster ----------------------------------------------------------------------------

bool has_arrived(const Warp& warp) { return (warp.live & ~warp.cluster_arrived) == 0; }

// Completes the barrier when all threads that have not exited have arrived.
void complete_if_done(Cluster& cluster) {
  AsyncClusterState& s = *cluster.async;
  for (const auto& cta : cluster.ctas) {
    for (const auto& warp : cta->warps) {
      if (!has_arrived(*warp)) return;
    }
  }
  for (const auto& cta : cluster.ctas) {
    for (const auto& warp : cta->warps) {
      warp->cluster_arrived = 0;
      ++warp->cluster_barriers;
      if (warp->live == 0) warp->publish(s.cluster_arriving, Scope::Wide);  // a thread that left has been waited for
    }
  }
  s.cluster_released.join(s.cluster_arriving);
  cluster.event();
}

struct ClusterBarrier {
  bool aligned = false, relaxed = false;
};

Step execute_barrier_arrive(Warp& warp, const Instr& instr, uint32_t mask) {
  const auto& form = instr.form<ClusterBarrier>();
  if (form.aligned && !converged(warp, mask)) return Step::Wait;
  Cluster& cluster = *warp.cta->cluster;
  AsyncWarpState& s = *warp.async;
  if (warp.cluster_arrived & mask)
    fault(Hazard::IllegalUse, warp, first_lane(warp.cluster_arrived & mask),
          "barrier.cluster.arrive twice before the barrier completes");
  warp.order_reads(mask);
  warp.publish(cluster.async->cluster_arriving, Scope::Wide, form.relaxed);
  if (form.relaxed) {
    warp.publish_weakly(cluster.async->cluster_arriving);
  } else {
    warp.new_epoch();
    release_lanes(warp, mask);
  }
  warp.cluster_arrived |= mask;
  s.cluster_waiting |= mask;
  complete_if_done(cluster);
  return Step::Next;
}

Step execute_barrier_wait(Warp& warp, const Instr& instr, uint32_t mask) {
  if (instr.form<ClusterBarrier>().aligned && !converged(warp, mask)) return Step::Wait;
  Cluster& cluster = *warp.cta->cluster;
  AsyncWarpState& s = *warp.async;
  if ((s.cluster_waiting & mask) != mask)
    fault(Hazard::IllegalUse, warp, first_lane(mask & ~s.cluster_waiting),
          "barrier.cluster.wait without a barrier.cluster.arrive before");
  complete_if_done(cluster);  // threads may have exited
  if (warp.cluster_arrived & mask) {
    return wait_for(warp, [&] {
      std::string text = "barrier.cluster, for";
      int missing = 0;
      for (const auto& cta : cluster.ctas) {
        for (const auto& other : cta->warps) {
          if (other->live == 0 || has_arrived(*other)) continue;
          if (++missing <= 8)
            text += " warp " + std::to_string(other->index) + " of block rank " + std::to_string(cta->rank) + ",";
        }
      }
      if (missing > 8) text += " and " + std::to_string(missing - 8) + " more";
      if (text.back() == ',') text.pop_back();
      return text;
    });
  }
  s.cluster_waiting &= ~mask;
  s.cluster_waited = warp.cluster_barriers;
  warp.observe(cluster.async->cluster_released, Scope::Wide);
  return Step::Next;
}

bool decode_barrier(const ptx::Instruction& source, DecodeContext&, Instr& out) {
  if (source.parts.size() < 3 || source.parts[1] != "cluster") return false;
  for (size_t i = 3; i < source.parts.size(); ++i) {
    const std::string& part = source.parts[i];
    if (part != "release" && part != "relaxed" && part != "acquire" && part != "aligned")
      unsupported(source, "the form is not known");
  }
  out.set(ClusterBarrier{has_part(source, "aligned"), has_part(source, "relaxed")});
  if (source.parts[2] == "arrive") {
    out.execute = execute_barrier_arrive;
  } else if (source.parts[2] == "wait") {
    out.execute = execute_barrier_wait;
  } else {
    unsupported(source, "the form is not known");
  }
  return true;
}

// ---- mapa, getctarank ---------------------------------------------------------------------------

// mapa d, a, b and getctarank d, a.
struct MapForm {
  bool generic = false;  // a, and for mapa also d
  bool wide = false;     // d has 64 bits
  ValueOperand d;
  AddressOperand a;
  ValueOperand b;
};

Step execute_mapa(Warp& warp, const Instr& instr, uint32_t mask) {
  const auto& form = instr.form<MapForm>();
  Cluster& cluster = *warp.cta->cluster;
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const uint64_t address = read_address(warp, instr, form.a, lane);
    const uint32_t rank = read32(warp, instr, form.b, lane);
    if (rank >= cluster.ctas.size())
      fault(Hazard::IllegalUse, warp, lane,
            "mapa to block rank " + std::to_string(rank) + " of a cluster of " + std::to_string(cluster.ctas.size()));
    if (form.generic && (address & kWindowMask) != kSharedWindow)
      fault(Hazard::Memory, warp, lane, "mapa of generic address " + hex(address) + ", which is not in shared memory");
    const uint64_t mapped =
        (form.generic ? kSharedWindow : 0) | uint64_t{rank} << kRankShift | (address & kSharedOffset);
    if (form.wide) {
      warp.row<uint64_t>(instr.reg[form.d.place])[lane] = mapped;
    } else {
      warp.row<uint32_t>(instr.reg[form.d.place])[lane] = static_cast<uint32_t>(mapped);
    }
  }
  return Step::Next;
}

Step execute_getctarank(Warp& warp, const Instr& instr, uint32_t mask) {
  const auto& form = instr.form<MapForm>();
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const SharedPlace place = shared_place(warp, read_address(warp, instr, form.a, lane), form.generic, lane);
    warp.row<uint32_t>(instr.reg[form.d.place])[lane] = place.cta->rank;
  }
  return Step::Next;
}

// A source that is an address without brackets: a register, or a shared variable with an addend.
AddressOperand push_plain_address(const ptx::Instruction& source, DecodeContext& context, const ptx::Operand& operand) {
  const bool is_register = operand.kind == ptx::Operand::Kind::Register;
  const int bytes = is_register ? ptx::bytes_of(context.register_type(operand)) : has_part(source, "u64") ? 8 : 4;
  const AddressOperand address{context.pushed(), bytes == 8};
  context.push(operand, bytes == 8 ? ptx::Type::U64 : ptx::Type::U32);
  context.push(immediate_operand(0), ptx::Type::U64);
  return address;
}

bool decode_mapa(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (source.operands.size() != 3) unsupported(source, "wrong number of operands");
  MapForm form;
  form.generic = !has_part(source, "shared::cluster");
  form.wide = has_part(source, "u64");
  form.d = push_value(context, source.operands[0], form.wide ? ptx::Type::U64 : ptx::Type::U32);
  form.a = push_plain_address(source, context, source.operands[1]);
  form.b = push_value(context, source.operands[2], ptx::Type::U32);
  out.set(form);
  out.execute = execute_mapa;
  return true;
}

bool decode_getctarank(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (source.operands.size() != 2) unsupported(source, "wrong number of operands");
  MapForm form;
  form.generic = !has_part(source, "shared::cluster");
  form.d = push_value(context, source.operands[0], ptx::Type::U32);
  form.a = push_plain_address(source, context, source.operands[1]);
  out.set(form);
  out.execute = execute_getctarank;
  return true;
}

// ---- setmaxnreg ---------------------------------------------------------------------------------

struct RegisterCount {
  bool increases = false;
  uint16_t count = 0;
  uint16_t registers = 0;  // of a thread at the launch; 0: unknown, and the instruction has no effect
};

Step execute_setmaxnreg(Warp& warp, const Instr& instr, uint32_t mask) {
  if (!complete(warp, instr, mask)) return Step::Wait;
  const auto& form = instr.form<RegisterCount>();
  if (form.registers == 0) return Step::Next;
  const int count = form.count;
  AsyncCtaState& s = *warp.cta->async;
  if (warp.max_registers == 0) warp.max_registers = form.registers;
  const auto illegal = [&](const char* rule) {
    fault(Hazard::IllegalUse, warp, -1,
          instr.source->opcode + " to " + std::to_string(count) + " where the warp has " +
              std::to_string(warp.max_registers) + ": " + rule);
  };
  if (!form.increases) {
    if (count > warp.max_registers) illegal("a decrease must not raise the count");
    s.registers_free += static_cast<uint32_t>(warp.max_registers - count);
    warp.cta->cluster->event();
  } else {
    if (count < warp.max_registers) illegal("an increase must not lower the count");
    const uint32_t wanted = static_cast<uint32_t>(count - warp.max_registers);
    if (wanted > s.registers_free) {
      return wait_for(warp, [&] {
        return "setmaxnreg.inc to " + std::to_string(count) + ": the block's pool has " +
               std::to_string(s.registers_free) + " registers a lane free, " + std::to_string(wanted) + " are needed";
      });
    }
    s.registers_free -= wanted;
  }
  warp.max_registers = count;
  ++warp.async->register_changes;
  warp.async->register_change = current_origin(warp, -1);
  return Step::Next;
}

bool decode_setmaxnreg(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (source.operands.size() != 1 || !has_part(source, "sync") || !has_part(source, "aligned") ||
      has_part(source, "inc") == has_part(source, "dec"))
    unsupported(source, "the form is not known");
  const int64_t count = immediate_of(source, source.operands[0]);
  if (count < 24 || count > 256 || count % 8 != 0)
    unsupported(source, "the register count must be a multiple of 8 from 24 to 256");
  out.set(RegisterCount{has_part(source, "inc"), static_cast<uint16_t>(count),
                        static_cast<uint16_t>(launch_registers(context.function()))});
  out.execute = execute_setmaxnreg;
  return true;
}

// ---- griddepcontrol, clusterlaunchcontrol --------------------------------------------------------

struct DependentGrids {
  bool wait = false;  // else launch_dependents
};

// Grids run one after the other here. What the predecessors still have to do is done at the first wait.
Step execute_griddepcontrol(Warp& warp, const Instr& instr, uint32_t) {
  Cluster& cluster = *warp.cta->cluster;
  if (instr.form<DependentGrids>().wait) {
    cluster.launch->predecessors.complete();
    warp.cta->has_waited = true;
    warp.view.seen.raise(cluster.predecessor_grids, 1);
  } else if (warp.view.seen[cluster.predecessor_grids] == 0) {
    warp.cta->released_dependents_early = true;
  }
  return Step::Next;
}

bool decode_griddepcontrol(const ptx::Instruction& source, DecodeContext&, Instr& out) {
  if (source.parts.size() != 2 || (source.parts[1] != "wait" && source.parts[1] != "launch_dependents"))
    unsupported(source, "the form is not known");
  out.set(DependentGrids{source.parts[1] == "wait"});
  out.execute = execute_griddepcontrol;
  return true;
}

}  // namespace

void register_cluster() {
  register_opcode("barrier", decode_barrier);
  register_opcode("mapa", decode_mapa);
  register_opcode("getctarank", decode_getctarank);
  register_opcode("setmaxnreg", decode_setmaxnreg);
  register_opcode("griddepcontrol", decode_griddepcontrol);
}

}  // namespace sim
