// SPDX-License-Identifier: Apache-2.0
// Branches and ends of threads: bra, brx.idx, exit, trap, brkpt, nanosleep (PTX ISA 9.7.12, 9.7.19). Synchronization of
// a block: bar, barrier (9.7.13.1), membar and plain fences (9.7.13.4).
#include <algorithm>
#include <bit>

#include "sim/hazards/global_races.h"
#include "sim/hazards/system_access.h"
#include "sim/isa/address.h"
#include "sim/isa/scatter.h"

namespace sim {
namespace {

using ptx::Operand;
using ptx::Type;

// ---- branches ----------------------------------------------------------------------------------

struct BranchForm {
  bool uniform;
};

Step bra(Warp& warp, const Instr& in, uint32_t mask) {
  Warp::Split& split = warp.splits[warp.current];
  if (split.mask == mask) {
    split.pc = in.target;
    return Step::Jump;
  }
  if (in.form<BranchForm>().uniform) fault(Hazard::IllegalUse, warp, -1, "bra.uni is taken by a part of the lanes");
  split.mask &= ~mask;
  ++split.pc;
  warp.splits.push_back({in.target, mask, 0, false});
  return Step::Jump;
}

bool decode_bra(const ptx::Instruction& source, DecodeContext&, Instr& out) {
  if (source.operands.at(0).kind != Operand::Kind::Label) throw Unsupported("the target must be a label");
  out.set(BranchForm{has_part(source, "uni")});
  out.execute = bra;
  return true;
}

struct IndexedBranchForm {
  // An index into Kernel::branch_tables.
  int32_t table;
  ValueOperand index;
};

Step brx(Warp& warp, const Instr& in, uint32_t mask) {
  const auto& form = in.form<IndexedBranchForm>();
  const std::vector<int>& table = warp.cta->cluster->launch->kernel->branch_tables[static_cast<size_t>(form.table)];
  const uint32_t* const index = warp.row<uint32_t>(in.reg[form.index.place]);
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if (index[lane] >= table.size()) {
      fault(Hazard::IllegalUse, warp, lane,
            "brx.idx with index " + std::to_string(index[lane]) + " into " + std::to_string(table.size()) + " targets");
    }
  }
  return scatter(warp, mask, [&](int lane) { return table[index[lane]]; });
}

bool decode_brx(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  IndexedBranchForm form;
  form.index.place = context.pushed();
  context.push(source.operands.at(0), Type::U32);
  form.table = context.branch_table(source.operands.at(1).name);
  if (form.table < 0) throw Unsupported("'" + source.operands[1].name + "' is no list of branch targets");
  out.set(form);
  out.execute = brx;
  return true;
}

// ---- ends ---------------------------------------------------------------------------------------

Step exit_lanes(Warp&, const Instr&, uint32_t) { return Step::Exit; }

bool decode_exit(const ptx::Instruction&, DecodeContext&, Instr& out) {
  out.execute = exit_lanes;
  return true;
}

Step trap(Warp& warp, const Instr&, uint32_t mask) { fault(Hazard::IllegalUse, warp, std::countr_zero(mask), "trap"); }
bool decode_trap(const ptx::Instruction&, DecodeContext&, Instr& out) {
  out.execute = trap;
  return true;
}

Step pause(Warp&, const Instr&, uint32_t) { return Step::Next; }
bool decode_pause(const ptx::Instruction&, DecodeContext&, Instr& out) {
  out.execute = pause;
  return true;
}

// A warp may sleep for any time up to twice the argument. The others run meanwhile.
Step sleep(Warp&, const Instr&, uint32_t) { return Step::Yield; }
bool decode_nanosleep(const ptx::Instruction&, DecodeContext&, Instr& out) {
  out.execute = sleep;
  return true;
}

// ---- bar, barrier ------------------------------------------------------------------------------

enum class BarrierReduction : uint8_t { None, Popc, And, Or };
struct BarrierForm {
  BarrierReduction reduction = BarrierReduction::None;
  bool aligned = false;
  // The warp only arrives.
  bool arrives = false;
  bool has_count = false;
  bool negated = false;
  // The result and the predicate, which only a reduction has.
  ValueOperand d, predicate;
  ValueOperand barrier, count;
};

std::string barrier_name(uint32_t id) { return "named barrier " + std::to_string(id); }

// The number of warps of the block that still run. The barrier of all threads does not wait for those that left.
uint32_t live_warps(const Cta& cta) {
  return static_cast<uint32_t>(
      std::count_if(cta.warps.begin(), cta.warps.end(), [](const auto& w) { return w->live != 0; }));
}

bool complete_if_full(Cta& cta, uint32_t id) {
  Cta::NamedBarrier& b = cta.barriers[id];
  if (b.arrived == 0) return false;
  if (b.expected != 0 ? b.arrived < b.expected : b.arrived < live_warps(cta) * kLanes) return false;
  // The barrier of all threads has waited for those that left, too.
  for (const auto& warp : cta.warps) {
    if (b.expected == 0 && warp->live == 0) warp->publish(b.arriving, Scope::Cta);
  }
  for (const auto& warp : cta.warps) {
    for (Warp::BarrierWait& wait : warp->barrier_waits) {
      if (wait.barrier != static_cast<int>(id) || !wait.counted || wait.released) continue;
      wait.released = true;
      wait.popc = b.reduction_popc;
      wait.all = b.reduction_and != 0;
      wait.any = b.reduction_or != 0;
      warp->observe(b.arriving, Scope::Cta);
    }
  }
  const uint64_t generation = b.generation + 1;
  b = Cta::NamedBarrier{};
  b.generation = generation;
  cta.cluster->event();
  return true;
}

void count_arrival(Warp& warp, const Instr& in, const BarrierForm& form, uint32_t id, uint32_t lanes) {
  Cta& cta = *warp.cta;
  Cta::NamedBarrier& b = cta.barriers[id];
  const int lane = std::countr_zero(lanes);
  const auto threads = static_cast<uint32_t>(cta.warps.size()) * kLanes;
  const uint32_t expected = form.has_count ? warp.row<uint32_t>(in.reg[form.count.place])[lane] : 0;
  if (form.has_count) {
    if (expected == 0 || expected % kLanes != 0) {
      fault(Hazard::IllegalUse, warp, lane,
            barrier_name(id) + " with a count of " + std::to_string(expected) + ", which is not a multiple of 32");
    }
    if (expected > threads) {
      fault(Hazard::IllegalUse, warp, lane,
            barrier_name(id) + " waits for " + std::to_string(expected) + " threads, but the block has " +
                std::to_string(threads));
    }
  }
  const bool reduces = form.reduction != BarrierReduction::None;
  if (b.arrived != 0) {
    if (b.expected != expected) {
      const auto text = [](uint32_t n) { return n == 0 ? std::string("all threads") : std::to_string(n) + " threads"; };
      fault(Hazard::IllegalUse, warp, lane,
            barrier_name(id) + " is used for " + text(expected) + " while others use it for " + text(b.expected));
    }
    if (b.reduces != reduces)
      fault(Hazard::IllegalUse, warp, lane, barrier_name(id) + " mixes a reduction with other arrivals");
    if (b.arrived_warps >> warp.index & 1) {
      deviation(Hazard::IllegalUse, warp, lane,
                [&] { return "the warp arrives twice at " + barrier_name(id) + " before it completes"; });
    }
  }
  b.expected = expected;
  b.reduces = reduces;
  b.arrived_warps |= 1u << warp.index;
  b.arrived += kLanes;
  warp.order_reads(kFullMask);
  warp.publish(b.arriving, Scope::Cta);
  warp.new_epoch();
  release_lanes(warp, kFullMask);  // All lanes of the warp have come.
  if (reduces) {
    uint32_t values = warp.predicate(in.reg[form.predicate.place]);
    if (form.negated) values = ~values;
    b.reduction_popc += static_cast<uint32_t>(std::popcount(values & lanes));
    b.reduction_and &= (values & lanes) == lanes ? kFullMask : 0;
    b.reduction_or |= values & lanes;
  }
  complete_if_full(cta, id);
}

Step barrier(Warp& warp, const Instr& in, uint32_t mask) {
  Cta& cta = *warp.cta;
  const auto& form = in.form<BarrierForm>();
  const uint32_t* const ids = warp.row<uint32_t>(in.reg[form.barrier.place]);
  const int leader = std::countr_zero(mask);
  const uint32_t id = ids[leader];
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    if (ids[std::countr_zero(rest)] != id)
      fault(Hazard::IllegalUse, warp, leader, "lanes of a warp name different barriers");
  }
  if (id >= cta.barriers.size())
    fault(Hazard::IllegalUse, warp, leader, barrier_name(id) + " does not exist: there are 16");

  const auto find = [&](bool counted) {
    return std::find_if(warp.barrier_waits.begin(), warp.barrier_waits.end(), [&](const Warp::BarrierWait& w) {
      return w.barrier == static_cast<int>(id) && w.counted == counted && (!counted || (w.lanes & mask) == mask);
    });
  };
  auto own = find(true);
  if (own == warp.barrier_waits.end()) {
    // The warp arrives once all its live lanes have. With .aligned all of them must be at the same instruction.
    if (form.aligned && !converged(warp, mask)) return Step::Wait;
    own = find(false);
    if (own == warp.barrier_waits.end()) {
      warp.barrier_waits.push_back({});
      own = warp.barrier_waits.end() - 1;
      own->barrier = static_cast<int>(id);
    }
    own->lanes |= mask;
    if ((warp.live & ~own->lanes) != 0) {
      warp.splits[warp.current].apart = true;
      return Step::Wait;
    }
    own->counted = true;
    const uint32_t lanes = own->lanes;
    count_arrival(warp, in, form, id, lanes);
    if (lanes != mask) cta.cluster->event();  // The warp's other lanes wait at another instruction.
    own = find(true);
  }
  if (!form.arrives && !own->released) {
    complete_if_full(cta, id);  // A warp may have left since.
    if (!own->released) {
      return wait_for(warp, [&] {
        const Cta::NamedBarrier& b = cta.barriers[id];
        const uint32_t expected = b.expected != 0 ? b.expected : live_warps(cta) * kLanes;
        return barrier_name(id) + ": " + std::to_string(b.arrived) + " of " + std::to_string(expected) +
               " threads have arrived";
      });
    }
  }
  if (form.reduction != BarrierReduction::None) {
    if (form.reduction == BarrierReduction::Popc) {
      for (uint32_t rest = mask; rest != 0; rest &= rest - 1)
        warp.row<uint32_t>(in.reg[form.d.place])[std::countr_zero(rest)] = own->popc;
    } else {
      uint32_t& p = *warp.row<uint32_t>(in.reg[form.d.place]);
      p = (form.reduction == BarrierReduction::And ? own->all : own->any) ? p | mask : p & ~mask;
    }
  }
  own->lanes &= ~mask;
  if (own->lanes == 0) warp.barrier_waits.erase(own);
  return Step::Next;
}

bool decode_barrier(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  const auto& parts = source.parts;
  const size_t op = parts.size() > 1 && parts[1] == "cta" ? 2 : 1;
  if (op >= parts.size() || parts[op] == "cluster" || parts[op] == "warp") return false;
  BarrierForm form;
  form.aligned = parts[0] == "bar" || has_part(source, "aligned");
  const size_t n = source.operands.size();
  // Behind the operation stand, in any order, .aligned and what a reduction does with which type.
  size_t known = op + 1 + has_part(source, "aligned");
  if (parts[op] == "red") {
    if (n != 3 && n != 4) throw Unsupported("three or four operands are needed");
    form.has_count = n == 4;
    if (has_part(source, "popc"))
      form.reduction = BarrierReduction::Popc;
    else if (has_part(source, "and"))
      form.reduction = BarrierReduction::And;
    else if (has_part(source, "or"))
      form.reduction = BarrierReduction::Or;
    else
      return false;
    known += 2;
    if (!has_part(source, form.reduction == BarrierReduction::Popc ? "u32" : "pred")) return false;
    if (parts.size() != known) return false;
    form.d = push_value(context, source.operands[0], form.reduction == BarrierReduction::Popc ? Type::U32 : Type::Pred);
    form.barrier = push_value(context, source.operands[1], Type::U32);
    if (form.has_count) form.count = push_value(context, source.operands[2], Type::U32);
    form.predicate = push_value(context, source.operands[n - 1], Type::Pred);
    form.negated = source.operands[n - 1].negated;
  } else {
    if ((parts[op] != "sync" && parts[op] != "arrive") || parts.size() != known) return false;
    form.arrives = parts[op] == "arrive";
    if (form.arrives && n != 2) throw Unsupported("a thread count is needed");
    if (n != 1 && n != 2) throw Unsupported("one or two operands are needed");
    form.has_count = n == 2;
    form.barrier = push_value(context, source.operands[0], Type::U32);
    if (form.has_count) form.count = push_value(context, source.operands[1], Type::U32);
  }
  out.set(form);
  out.execute = barrier;
  return true;
}

// ---- fences ------------------------------------------------------------------------------------

struct FenceForm {
  Reach reach;
  bool sequential;
};
Step thread_fence(Warp& warp, const Instr& in, uint32_t mask) {
  const auto& form = in.form<FenceForm>();
  warp.order_reads(mask);
  if (warp.cta->cluster->system != nullptr) system_fence(warp, form.reach);
  if (form.reach >= Reach::Device && warp.cta->cluster->grid_can_synchronize)
    fence_grid(warp, form.reach, form.sequential);
  else
    warp.fence(form.reach == Reach::Cta ? Scope::Cta : form.reach == Reach::Cluster ? Scope::Wide : Scope::Grid);
  release_lanes(warp, mask);
  return Step::Next;
}

bool decode_fence(const ptx::Instruction& source, DecodeContext&, Instr& out) {
  static const char* const kParts[] = {"fence",
                                       "membar",
                                       "sc",
                                       "acq_rel",
                                       "acquire",
                                       "release",
                                       "cta",
                                       "cluster",
                                       "gpu",
                                       "gl",
                                       "sys",
                                       "sync_restrict::shared::cta",
                                       "sync_restrict::shared::cluster"};
  for (const std::string& part : source.parts) {
    if (std::none_of(std::begin(kParts), std::end(kParts), [&](const char* known) { return part == known; }))
      return false;
  }
  Reach reach = Reach::Device;
  if (has_part(source, "cta")) reach = Reach::Cta;
  if (has_part(source, "cluster")) reach = Reach::Cluster;
  if (has_part(source, "sys")) reach = Reach::System;
  out.set(FenceForm{reach, source.parts[0] == "membar" || has_part(source, "sc")});
  out.execute = thread_fence;
  return true;
}

}  // namespace

void register_control() {
  register_opcode("bra", decode_bra);
  register_opcode("brx", decode_brx);
  register_opcode("exit", decode_exit);
  register_opcode("trap", decode_trap);
  register_opcode("brkpt", decode_pause);
  register_opcode("pmevent", decode_pause);
  register_opcode("nanosleep", decode_nanosleep);
  register_opcode("bar", decode_barrier);
  register_opcode("barrier", decode_barrier);
  register_opcode("membar", decode_fence);
  register_opcode("fence", decode_fence);
}

}  // namespace sim
