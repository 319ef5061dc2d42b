// bra, brx.idx, exit, trap, brkpt, nanosleep (PTX ISA 9.7.12, 9.7.19), bar and barrier (9.7.13.1),
// membar and plain fences (9.7.13.4).
#include <algorithm>
#include <bit>

#include "sim/isa/address.h"
#include "sim/isa/scatter.h"

namespace sim {
namespace {

using ptx::Operand;
using ptx::Type;

bool has_part(const ptx::Instruction& source, const char* part) {
  return std::find(source.parts.begin(), source.parts.end(), part) != source.parts.end();
}

// ---- branches ----------------------------------------------------------------------------------

constexpr uint8_t kUniform = 1;

Step bra(Warp& warp, const Instr& in, uint32_t mask) {
  Warp::Split& split = warp.splits[warp.current];
  if (split.mask == mask) {
    split.pc = in.target;
    return Step::Jump;
  }
  if (in.flags & kUniform) fault(Hazard::IllegalUse, warp, -1, "bra.uni is taken by a part of the lanes");
  split.mask &= ~mask;
  ++split.pc;
  warp.splits.push_back({in.target, mask, 0, false});
  return Step::Jump;
}

bool decode_bra(const ptx::Instruction& source, DecodeContext&, Instr& out) {
  if (source.operands.at(0).kind != Operand::Kind::Label) throw Unsupported("the target must be a label");
  out.flags = has_part(source, "uni") ? kUniform : 0;
  out.execute = bra;
  return true;
}

Step brx(Warp& warp, const Instr& in, uint32_t mask) {
  const std::vector<int>& table = warp.cta->cluster->launch->kernel->branch_tables[static_cast<size_t>(in.imm)];
  const uint32_t* const index = warp.row<uint32_t>(in.reg[0]);
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
  context.push(source.operands.at(0), Type::U32);
  out.imm = context.branch_table(source.operands.at(1).name);
  if (out.imm < 0) throw Unsupported("'" + source.operands[1].name + "' is no list of branch targets");
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

// Any time up to twice the argument: the others run meanwhile.
Step sleep(Warp&, const Instr&, uint32_t) { return Step::Yield; }
bool decode_nanosleep(const ptx::Instruction&, DecodeContext&, Instr& out) {
  out.execute = sleep;
  return true;
}

// ---- bar, barrier ------------------------------------------------------------------------------

constexpr uint8_t kAligned = 1, kCount = 2, kReduce = 4, kNegated = 8, kArrive = 16;
enum Reduction : uint8_t { kPopc, kAnd, kOr };

std::string barrier_name(uint32_t id) { return "named barrier " + std::to_string(id); }

// Warps of the block that still run; the barrier of all threads does not wait for those that left.
uint32_t live_warps(const Cta& cta) {
  return static_cast<uint32_t>(
      std::count_if(cta.warps.begin(), cta.warps.end(), [](const auto& w) { return w->live != 0; }));
}

bool complete_if_full(Cta& cta, uint32_t id) {
  Cta::NamedBarrier& b = cta.barriers[id];
  if (b.arrived == 0) return false;
  if (b.expected != 0 ? b.arrived < b.expected : b.arrived < live_warps(cta) * kLanes) return false;
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

void count_arrival(Warp& warp, const Instr& in, uint32_t id, uint32_t lanes) {
  Cta& cta = *warp.cta;
  Cta::NamedBarrier& b = cta.barriers[id];
  const int lane = std::countr_zero(lanes);
  const auto threads = static_cast<uint32_t>(cta.warps.size()) * kLanes;
  const int count_index = (in.flags & kReduce) ? 2 : 1;
  const uint32_t expected = (in.flags & kCount) ? warp.row<uint32_t>(in.reg[count_index])[lane] : 0;
  if (in.flags & kCount) {
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
  const bool reduces = (in.flags & kReduce) != 0;
  if (b.arrived != 0) {
    if (b.expected != expected) {
      const auto text = [](uint32_t n) { return n == 0 ? std::string("all threads") : std::to_string(n) + " threads"; };
      fault(Hazard::IllegalUse, warp, lane,
            barrier_name(id) + " is used for " + text(expected) + " while others use it for " + text(b.expected));
    }
    if (b.reduces != reduces)
      fault(Hazard::IllegalUse, warp, lane, barrier_name(id) + " mixes a reduction with other arrivals");
    if (b.arrived_warps >> warp.index & 1) {
      fault(Hazard::IllegalUse, warp, lane, "the warp arrives twice at " + barrier_name(id) + " before it completes");
    }
  }
  b.expected = expected;
  b.reduces = reduces;
  b.arrived_warps |= 1u << warp.index;
  b.arrived += kLanes;
  warp.reads.order(warp, kFullMask);
  warp.publish(b.arriving, Scope::Cta);
  warp.new_epoch();
  release_lanes(warp, kFullMask);  // all lanes of the warp have come
  if (reduces) {
    uint32_t values = warp.predicate(in.reg[in.reg_count - 1]);
    if (in.flags & kNegated) values = ~values;
    b.reduction_popc += static_cast<uint32_t>(std::popcount(values & lanes));
    b.reduction_and &= (values & lanes) == lanes ? kFullMask : 0;
    b.reduction_or |= values & lanes;
  }
  complete_if_full(cta, id);
}

Step barrier(Warp& warp, const Instr& in, uint32_t mask) {
  Cta& cta = *warp.cta;
  const uint32_t* const ids = warp.row<uint32_t>(in.reg[(in.flags & kReduce) ? 1 : 0]);
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
    // The warp arrives once all its live lanes have: the same instruction for .aligned, any for the others.
    if ((in.flags & kAligned) && !converged(warp, mask)) return Step::Wait;
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
    count_arrival(warp, in, id, lanes);
    if (lanes != mask) cta.cluster->event();  // the warp's other lanes wait at another instruction
    own = find(true);
  }
  if (!(in.flags & kArrive) && !own->released) {
    complete_if_full(cta, id);  // a warp may have left since
    if (!own->released) {
      return wait_for(warp, [&] {
        const Cta::NamedBarrier& b = cta.barriers[id];
        const uint32_t expected = b.expected != 0 ? b.expected : live_warps(cta) * kLanes;
        return barrier_name(id) + ": " + std::to_string(b.arrived) + " of " + std::to_string(expected) +
               " threads have arrived";
      });
    }
  }
  if (in.flags & kReduce) {
    if (in.kind == kPopc) {
      for (uint32_t rest = mask; rest != 0; rest &= rest - 1)
        warp.row<uint32_t>(in.reg[0])[std::countr_zero(rest)] = own->popc;
    } else {
      uint32_t& p = *warp.row<uint32_t>(in.reg[0]);
      p = (in.kind == kAnd ? own->all : own->any) ? p | mask : p & ~mask;
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
  const bool aligned = parts[0] == "bar" || has_part(source, "aligned");
  out.flags = aligned ? kAligned : 0;
  out.execute = barrier;
  const size_t n = source.operands.size();
  if (parts[op] == "red") {
    out.flags |= kReduce;
    if (n == 4)
      out.flags |= kCount;
    else if (n != 3)
      throw Unsupported("three or four operands are needed");
    if (has_part(source, "popc"))
      out.kind = kPopc;
    else if (has_part(source, "and"))
      out.kind = kAnd;
    else if (has_part(source, "or"))
      out.kind = kOr;
    else
      return false;
    context.push(source.operands[0], out.kind == kPopc ? Type::U32 : Type::Pred);
    for (size_t i = 1; i + 1 < n; ++i) context.push(source.operands[i], Type::U32);
    context.push(source.operands[n - 1], Type::Pred);
    if (source.operands[n - 1].negated) out.flags |= kNegated;
    return true;
  }
  if (parts[op] != "sync" && parts[op] != "arrive") return false;
  if (parts[op] == "arrive") {
    out.flags |= kArrive;
    if (n != 2) throw Unsupported("a thread count is needed");
  }
  if (n != 1 && n != 2) throw Unsupported("one or two operands are needed");
  if (n == 2) out.flags |= kCount;
  for (const Operand& operand : source.operands) context.push(operand, Type::U32);
  return true;
}

// ---- fences ------------------------------------------------------------------------------------

// kind 1: of .cta scope.
Step thread_fence(Warp& warp, const Instr& in, uint32_t mask) {
  warp.reads.order(warp, mask);
  warp.fence(in.kind ? Scope::Cta : Scope::Wide);
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
  out.kind = has_part(source, "cta");
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
