// SPDX-License-Identifier: Apache-2.0
// mbarrier.* (PTX ISA 9.7.13.15): the objects, their phases, and the instructions on them.
#include <algorithm>

#include "sim/async/state.h"

namespace sim {

namespace {

std::string object_text(const Warp& warp, const Cta& owner, uint32_t offset) {
  std::string text = "the mbarrier at shared offset " + hex(offset);
  if (&owner != warp.cta) text += " of block rank " + std::to_string(owner.rank);
  return text;
}

// 9.7.13.15.6
void complete_phase_if_done(const Origin& origin, Mbarrier& barrier) {
  if (barrier.pending != 0) return;
  if (barrier.tx < 0) {
    origin.fail(Hazard::MbarrierMisuse,
                "phase " + std::to_string(barrier.phase) + " of the mbarrier at shared offset " + hex(barrier.offset) +
                    " has received " + std::to_string(-barrier.tx) + " bytes more than it expects");
  }
  if (barrier.tx != 0) return;
  barrier.released.join(barrier.arriving);
  ++barrier.phase;
  barrier.pending = barrier.expected;
  origin.warp->cta->cluster->event();
}

// The initialisation does not happen before what the warp does. A barrier.cluster that stands between has come without
// a fence.mbarrier_init, or with a relaxed arrival: GPUs have initialised the object by then.
void judge_unordered_init(const Warp& warp, const Cta& owner, const Mbarrier& barrier, int lane) {
  const auto text = [&] {
    return object_text(warp, owner, barrier.offset) + " is used without being ordered after " +
           describe_agent(*warp.cta->cluster, barrier.init.by);
  };
  if (!is_behind_cluster_barrier(warp, barrier.init_before)) fault(Hazard::MbarrierMisuse, warp, lane, text());
  deviation(Hazard::MbarrierMisuse, warp, lane, text);
}

}  // namespace

Mbarrier& find_mbarrier(Warp& warp, Cta& owner, uint32_t offset, int lane, bool for_copy) {
  if (offset % 8 != 0)
    fault(Hazard::MbarrierMisuse, warp, lane, object_text(warp, owner, offset) + " is not aligned to 8 bytes");
  const auto found = owner.async->mbarriers.find(offset);
  if (found == owner.async->mbarriers.end())
    fault(Hazard::MbarrierMisuse, warp, lane, object_text(warp, owner, offset) + " is not initialised");
  // That a copy has reached its object is known to who waits for its bytes (Mbarrier::last_copy), not by its issue.
  if (!for_copy) note_remote(warp, owner, 1u << lane);
  Mbarrier& barrier = found->second;
  if (warp.view.seen[barrier.init.by] < barrier.init.at) judge_unordered_init(warp, owner, barrier, lane);
  return barrier;
}

void mbarrier_expect(const Origin& origin, Mbarrier& barrier, int64_t bytes) {
  barrier.tx += bytes;
  barrier.expect = origin;
  if (barrier.tx > int64_t{kMbarrierLimit} || barrier.tx < -int64_t{kMbarrierLimit})
    origin.fail(Hazard::MbarrierMisuse, "the transaction count of the mbarrier at shared offset " +
                                            hex(barrier.offset) + " leaves its range: " + std::to_string(barrier.tx));
  if (bytes < 0) complete_phase_if_done(origin, barrier);
}

void mbarrier_arrive(const Origin& origin, Mbarrier& barrier, uint32_t count) {
  release_lanes(*origin.warp, origin.lane < 0 ? kFullMask : 1u << origin.lane);
  if (count > barrier.pending)
    origin.fail(Hazard::MbarrierMisuse, std::to_string(count) + " arrivals at the mbarrier at shared offset " +
                                            hex(barrier.offset) + ", whose phase " + std::to_string(barrier.phase) +
                                            " expects " + std::to_string(barrier.pending) + " more");
  barrier.pending -= count;
  complete_phase_if_done(origin, barrier);
}

Stamp mbarrier_stamp(Mbarrier& barrier, const Origin& copy) {
  barrier.copy = copy;
  barrier.last_copy = barrier.phase + 1;
  copy.warp->publish_weakly(barrier.arriving);
  return {barrier.agent, barrier.phase + 1};
}

void mbarrier_copy_done(Cluster& cluster, Cta& owner, uint32_t offset, Stamp issued, uint32_t bytes,
                        const Origin& origin) {
  const auto found = owner.async->mbarriers.find(offset);
  if (found == owner.async->mbarriers.end() || found->second.agent != issued.by)
    origin.fail(Hazard::MbarrierMisuse,
                "a copy completes on the mbarrier at shared offset " + hex(offset) + ", which was invalidated");
  if (!cluster.async->finishing && owner.finished())
    origin.fail(Hazard::DataInFlight,
                "block rank " + std::to_string(owner.rank) + " exits while a copy may still write its shared memory");
  Mbarrier& barrier = found->second;
  if (barrier.phase + 1 != issued.at)
    origin.fail(Hazard::MbarrierMisuse, "a copy of " + std::to_string(bytes) + " bytes issued in phase " +
                                            std::to_string(issued.at - 1) + " of the mbarrier at shared offset " +
                                            hex(offset) + " completes in phase " + std::to_string(barrier.phase) +
                                            ": the phase did not expect all of its bytes");
  mbarrier_expect(origin, barrier, -int64_t{bytes});
}

namespace {

// What the instructions on an object have in common.
struct ObjectForm {
  AddressOperand address;
  bool generic = false;  // the address is a generic one
  bool relaxed = false;
  Scope scope = Scope::Cta;  // .cta unless the instruction names one (9.7.13.15.13, 9.7.13.15.16)
};
// mbarrier.init, .inval, .expect_tx, .complete_tx (9.7.13.15.9 to 9.7.13.15.12).
struct CountForm {
  ObjectForm object;
  bool negative = false;  // complete_tx takes bytes away, and expect_tx adds them
  ValueOperand count;     // init counts arrivals, the others bytes
};
// mbarrier.arrive, mbarrier.arrive_drop (9.7.13.15.13, 9.7.13.15.14).
struct ArriveForm {
  ObjectForm object;
  bool drop = false, expect_tx = false, no_complete = false;
  bool has_state = false, has_count = false;
  ValueOperand state, count;  // .expect_tx counts bytes, the others arrivals
};
// mbarrier.test_wait, mbarrier.try_wait (9.7.13.15.16).
struct TryWaitForm {
  ObjectForm object;
  bool may_block = false;  // true for try_wait
  bool parity = false;     // the phase is named by its parity, not by a state
  ValueOperand complete, phase;
};
// mbarrier.pending_count (9.7.13.15.17).
struct PendingCountForm {
  ValueOperand count, state;
};

SharedPlace place_of(Warp& warp, const Instr& instr, const ObjectForm& form, int lane) {
  return shared_place(warp, read_address(warp, instr, form.address, lane), form.generic, lane);
}

Mbarrier& object_of(Warp& warp, const Instr& instr, const ObjectForm& form, int lane, bool own = true) {
  const SharedPlace at = place_of(warp, instr, form, lane);
  if (own && at.cta != warp.cta)
    fault(Hazard::MbarrierMisuse, warp, lane,
          instr.source->opcode + " supports no mbarrier of another block (9.7.13.15.8)");
  return find_mbarrier(warp, *at.cta, at.offset, lane);
}

template <class F>
void each_lane(uint32_t mask, F f) {
  for (; mask != 0; mask &= mask - 1) f(__builtin_ctz(mask));
}

Step execute_init(Warp& warp, const Instr& instr, uint32_t mask) {
  const auto& form = instr.form<CountForm>();
  const Agent before = static_cast<Agent>(warp.cta->cluster->agents.size());
  each_lane(mask, [&](int lane) {
    const SharedPlace at = place_of(warp, instr, form.object, lane);
    const uint32_t count = read32(warp, instr, form.count, lane);
    if (at.cta != warp.cta) fault(Hazard::MbarrierMisuse, warp, lane, "mbarrier.init of an object in another block");
    if (at.offset % 8 != 0)
      fault(Hazard::MbarrierMisuse, warp, lane, object_text(warp, *at.cta, at.offset) + " is not aligned to 8 bytes");
    if (count < 1 || count > kMbarrierLimit)
      fault(Hazard::MbarrierMisuse, warp, lane,
            "mbarrier.init with a count of " + std::to_string(count) + ", allowed are 1 to 1048575");
    auto& live = warp.cta->async->mbarriers;
    if (const auto old = live.find(at.offset); old != live.end()) {
      const std::string text = object_text(warp, *at.cta, at.offset) + " is initialised again without mbarrier.inval";
      // By another lane at the same time, to the same count.
      if (old->second.agent < before || old->second.expected != count) fault(Hazard::MbarrierMisuse, warp, lane, text);
      deviation(Hazard::MbarrierMisuse, warp, lane, [&] { return text; });
      return;
    }
    shared_generic_write(warp, *warp.cta, at.offset, 8, lane);
    SharedHistory& history = warp.cta->history;
    history.granules[at.offset >> 4].mbarrier |= at.offset & 8 ? 2 : 1;
    Cluster& cluster = *warp.cta->cluster;
    Mbarrier barrier;
    barrier.agent = new_agent(cluster, {AgentInfo::Kind::Mbarrier, warp.cta, at.offset});
    barrier.offset = at.offset;
    barrier.expected = barrier.pending = count;
    Clock& seen = warp.view.seen;
    const Agent init = warp.async->init;
    seen.raise(init, seen[init] + 1);
    barrier.init = {init, seen[init]};
    barrier.init_before = warp.next_cluster_barrier(1u << lane);
    live.emplace(at.offset, std::move(barrier));
  });
  return Step::Next;
}

Step execute_inval(Warp& warp, const Instr& instr, uint32_t mask) {
  const auto& form = instr.form<CountForm>();
  each_lane(mask, [&](int lane) {
    Mbarrier& barrier = object_of(warp, instr, form.object, lane);
    if (barrier.tx != 0)
      fault(Hazard::MbarrierMisuse, warp, lane,
            "mbarrier.inval of the mbarrier at shared offset " + hex(barrier.offset) + " while " +
                std::to_string(barrier.tx) + " bytes are pending");
    const uint32_t offset = barrier.offset;
    SharedHistory::Granule& granule = warp.cta->history.granules[offset >> 4];
    granule.mbarrier &= static_cast<uint16_t>(offset & 8 ? ~2 : ~1);
    granule.written &= offset & 8 ? 0x00ff : 0xff00;
    warp.cta->async->mbarriers.erase(offset);
  });
  return Step::Next;
}

Step execute_tx(Warp& warp, const Instr& instr, uint32_t mask) {
  const auto& form = instr.form<CountForm>();
  each_lane(mask, [&](int lane) {
    Mbarrier& barrier = object_of(warp, instr, form.object, lane, false);
    const int64_t bytes = read32(warp, instr, form.count, lane);
    mbarrier_expect({&warp, instr.source, lane}, barrier, form.negative ? -bytes : bytes);
  });
  return Step::Next;
}

Step execute_mbarrier_arrive(Warp& warp, const Instr& instr, uint32_t mask) {
  const auto& form = instr.form<ArriveForm>();
  warp.order_reads(mask);
  Mbarrier* published[kLanes];
  int count_published = 0;
  each_lane(mask, [&](int lane) {
    const SharedPlace place = place_of(warp, instr, form.object, lane);
    Mbarrier& barrier = find_mbarrier(warp, *place.cta, place.offset, lane);
    if (std::find(published, published + count_published, &barrier) == published + count_published) {
      warp.publish(barrier.arriving, form.object.scope, form.object.relaxed);
      published[count_published++] = &barrier;
    }
    if (form.has_state) {
      if (place.cta != warp.cta)
        fault(Hazard::MbarrierMisuse, warp, lane, "an arrival at an mbarrier of another block returns no state");
      warp.row<uint64_t>(instr.reg[form.state.place])[lane] = uint64_t{barrier.pending} << 32 | barrier.phase;
    }
    const Origin origin{&warp, instr.source, lane};
    uint32_t count = 1;
    if (form.expect_tx) {
      mbarrier_expect(origin, barrier, read32(warp, instr, form.count, lane));
    } else if (form.has_count) {
      count = read32(warp, instr, form.count, lane);
      if (count < 1 || count > kMbarrierLimit)
        fault(Hazard::MbarrierMisuse, warp, lane, "an arrival with a count of " + std::to_string(count));
    }
    if (form.drop) {
      if (count > barrier.expected)
        fault(Hazard::MbarrierMisuse, warp, lane,
              "mbarrier.arrive_drop of " + std::to_string(count) + " from an expected count of " +
                  std::to_string(barrier.expected));
      barrier.expected -= count;
    }
    if (form.no_complete && count == barrier.pending && barrier.tx == 0)
      fault(Hazard::MbarrierMisuse, warp, lane, "an arrival with .noComplete completes the phase");
    mbarrier_arrive(origin, barrier, count);
  });
  if (!form.object.relaxed) warp.new_epoch();
  return Step::Next;
}

std::string wait_text(const Mbarrier& barrier, uint32_t phase) {
  std::string text = "mbarrier at shared offset " + hex(barrier.offset) + ", phase parity " +
                     std::to_string(phase & 1) + " (phase " + std::to_string(barrier.phase) + "), " +
                     std::to_string(barrier.pending) + " of " + std::to_string(barrier.expected) + " arrivals";
  if (barrier.tx != 0) text += " and " + std::to_string(barrier.tx) + " bytes";
  return text + " missing";
}

Step execute_try_wait(Warp& warp, const Instr& instr, uint32_t mask) {
  const auto& form = instr.form<TryWaitForm>();
  uint32_t complete = 0;
  const Mbarrier* missing = nullptr;
  uint32_t missing_phase = 0;
  const Mbarrier* acquired = nullptr;
  Mbarrier* last = nullptr;
  uint64_t last_address = 0;
  each_lane(mask, [&](int lane) {
    // The lanes of a warp mostly wait for one object.
    const uint64_t address = read_address(warp, instr, form.object.address, lane);
    if (last == nullptr || address != last_address) last = &object_of(warp, instr, form.object, lane);
    last_address = address;
    Mbarrier& barrier = *last;
    bool done;
    uint32_t phase;
    if (form.parity) {
      phase = read32(warp, instr, form.phase, lane);
      if (phase > 1) {
        deviation(Hazard::MbarrierMisuse, warp, lane,
                  [&] { return "a phase parity of " + std::to_string(phase) + ", allowed are 0 and 1"; });
        phase &= 1;
      }
      done = (barrier.phase & 1) != phase;
    } else {
      phase = static_cast<uint32_t>(read64(warp, instr, form.phase, lane));
      if (phase > barrier.phase || phase + 1 < barrier.phase)
        fault(Hazard::MbarrierMisuse, warp, lane,
              "waits for phase " + std::to_string(phase) + " of the mbarrier at shared offset " + hex(barrier.offset) +
                  ", which is in phase " + std::to_string(barrier.phase));
      done = phase < barrier.phase;
    }
    if (!done) {
      missing = &barrier;
      missing_phase = phase;
      return;
    }
    complete |= 1u << lane;
    if (&barrier == acquired) return;
    acquired = &barrier;
    warp.observe(barrier.released, form.object.scope, form.object.relaxed);
    (form.object.relaxed ? warp.read_view : warp.view).seen.raise(barrier.agent, barrier.phase);
  });
  Step step = Step::Next;
  if (form.may_block && complete == 0 && missing != nullptr) {
    // try_wait may return before the phase is complete (9.7.13.15.16), so here it sometimes does.
    Cluster& cluster = *warp.cta->cluster;
    const uint64_t attempt = (uint64_t{missing->agent} << 32 | missing->phase) + 1;
    uint64_t& blocked_at = warp.splits[warp.current].blocked_at;
    const bool expired = blocked_at == Warp::Split::kExpired && !cluster.explaining;
    if (expired) blocked_at = 0;
    const bool give_up =
        expired || (cluster.order.mode != Mode::Eager && warp.async->tried != attempt && cluster.rng() % 4 == 0);
    warp.async->tried = attempt;
    if (!give_up) return wait_for(warp, [&] { return wait_text(*missing, missing_phase); });
    step = Step::Yield;
  } else if (missing != nullptr) {
    step = Step::Yield;
  }
  uint32_t& predicate = *warp.row<uint32_t>(instr.reg[form.complete.place]);
  predicate = (predicate & ~mask) | complete;
  return step;
}

Step execute_pending_count(Warp& warp, const Instr& instr, uint32_t mask) {
  const auto& form = instr.form<PendingCountForm>();
  each_lane(mask, [&](int lane) {
    warp.row<uint32_t>(instr.reg[form.count.place])[lane] =
        static_cast<uint32_t>(read64(warp, instr, form.state, lane) >> 32);
  });
  return Step::Next;
}

bool decode_mbarrier(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (source.parts.size() < 2) return false;
  const std::string& op = source.parts[1];
  const auto& operands = source.operands;
  const auto expect_operands = [&](size_t low, size_t high) {
    if (operands.size() < low || operands.size() > high) unsupported(source, "wrong number of operands");
  };
  for (size_t i = 2; i < source.parts.size(); ++i) {
    const std::string& part = source.parts[i];
    static const char* const kKnown[] = {"shared",  "shared::cta", "shared::cluster", "b64",
                                         "release", "acquire",     "relaxed",         "cta",
                                         "cluster", "expect_tx",   "noComplete",      "parity"};
    if (std::find(std::begin(kKnown), std::end(kKnown), part) == std::end(kKnown))
      unsupported(source, "qualifier ." + part + " is not known");
  }
  if (op == "pending_count") {
    expect_operands(2, 2);
    PendingCountForm form;
    form.count = push_value(context, operands[0], ptx::Type::U32);
    form.state = push_value(context, operands[1], ptx::Type::U64);
    out.set(form);
    out.execute = execute_pending_count;
    return true;
  }
  ObjectForm object;
  object.generic =
      !has_part(source, "shared") && !has_part(source, "shared::cta") && !has_part(source, "shared::cluster");
  object.relaxed = has_part(source, "relaxed");
  object.scope = has_part(source, "cluster") ? Scope::Wide : Scope::Cta;
  if (op == "init" || op == "expect_tx" || op == "complete_tx" || op == "inval") {
    const size_t count = op == "inval" ? 1 : 2;
    expect_operands(count, count);
    CountForm form;
    object.address = push_address(context, operands[0]);
    form.object = object;
    form.negative = op == "complete_tx";
    if (count == 2) form.count = push_value(context, operands[1], ptx::Type::U32);
    out.set(form);
    out.execute = op == "init" ? execute_init : op == "inval" ? execute_inval : execute_tx;
  } else if (op == "arrive" || op == "arrive_drop") {
    expect_operands(2, 3);
    ArriveForm form;
    form.drop = op == "arrive_drop";
    form.expect_tx = has_part(source, "expect_tx");
    form.no_complete = has_part(source, "noComplete");
    form.has_state = operands[0].kind != ptx::Operand::Kind::Sink;
    if (form.has_state) form.state = push_value(context, operands[0], ptx::Type::U64);
    object.address = push_address(context, operands[1]);
    form.object = object;
    form.has_count = operands.size() == 3;
    if (form.has_count)
      form.count = push_value(context, operands[2], ptx::Type::U32);
    else if (form.expect_tx || form.no_complete)
      unsupported(source, "the count operand is missing");
    out.set(form);
    out.execute = execute_mbarrier_arrive;
  } else if (op == "test_wait" || op == "try_wait") {
    expect_operands(3, 4);
    TryWaitForm form;
    form.may_block = op == "try_wait";
    form.parity = has_part(source, "parity");
    form.complete = push_value(context, operands[0], ptx::Type::Pred);
    object.address = push_address(context, operands[1]);
    form.object = object;
    form.phase = push_value(context, operands[2], form.parity ? ptx::Type::U32 : ptx::Type::U64);
    out.set(form);
    out.execute = execute_try_wait;
  } else {
    unsupported(source, "is not known");
  }
  return true;
}

}  // namespace

void register_mbarrier() { register_opcode("mbarrier", decode_mbarrier); }

}  // namespace sim
