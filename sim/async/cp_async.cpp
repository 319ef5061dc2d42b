// SPDX-License-Identifier: Apache-2.0
// cp.async of 4 to 16 bytes a thread, its groups (PTX ISA 9.7.9.25.3), cp.async.mbarrier.arrive (9.7.13.15.15).
#include <algorithm>
#include <cstring>
#include <memory>

#include "sim/async/copy_target.h"
#include "sim/async/families.h"
#include "sim/hazards/global_access.h"
#include "sim/hazards/system_access.h"

namespace sim {
namespace {

Agent copy_agent(Warp& warp) {
  if (warp.async->copy == 0)
    warp.async->copy =
        new_agent(*warp.cta->cluster, {AgentInfo::Kind::CpAsync, warp.cta, static_cast<uint32_t>(warp.index)});
  return warp.async->copy;
}

class CpAsync : public AsyncOp {
 public:
  struct Piece {
    int lane;
    uint32_t group;
    const uint8_t* source;
    Cta* cta;
    uint32_t offset, bytes;
  };
  CpAsync(Origin origin, uint32_t size) : origin_(origin), size_(size) { queue = copy_agent(*origin.warp); }
  std::vector<Piece> pieces;
  void perform(Cluster& cluster) override {
    for (const Piece& p : pieces) {
      uint8_t* const to = shared_bytes(*p.cta, p.offset);
      if (may_copy_undefined(cluster) && p.bytes > 0) [[unlikely]]
        copy_undefined(origin_, to, p.source, p.bytes);
      if (p.bytes > 0) std::memcpy(to, p.source, p.bytes);
      std::memset(to + p.bytes, 0, size_ - p.bytes);
      --origin_.warp->async->copy_lanes[p.lane].groups[p.group].pending;
    }
  }

 private:
  Origin origin_;
  uint32_t size_;
};

// cp.async.ca, cp.async.cg (9.7.9.25.3.1).
struct CpAsyncForm {
  enum class Source : uint8_t { Whole, Size, Ignored };
  Source read = Source::Whole;  // what of the source is read; zeros take the place of the rest
  uint8_t bytes = 0;
  AddressOperand destination, source;
  ValueOperand limit;  // the source's size, or the predicate that says to ignore the source
};

Step execute_cp_async(Warp& warp, const Instr& instr, uint32_t mask) {
  if (mask == 0) return Step::Next;
  Cluster& cluster = *warp.cta->cluster;
  const auto& form = instr.form<CpAsyncForm>();
  const Origin origin{&warp, instr.source, -1};
  auto op = std::make_unique<CpAsync>(origin, form.bytes);
  const uint32_t number = ++warp.async->copy_count;
  const Stamp stamp{copy_agent(warp), number};
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const SharedPlace to = shared_place(warp, read_address(warp, instr, form.destination, lane), false, lane);
    const uint64_t source = read_address(warp, instr, form.source, lane);
    check_alignment(warp, lane, "destination address", to.offset, form.bytes);
    check_alignment(warp, lane, "source address", source, form.bytes);
    if (to.cta != warp.cta) fault(Hazard::IllegalUse, warp, lane, "cp.async into the shared memory of another block");
    uint32_t bytes = form.bytes;
    if (form.read == CpAsyncForm::Source::Size) bytes = read32(warp, instr, form.limit, lane);
    if (form.read == CpAsyncForm::Source::Ignored && warp.predicate(instr.reg[form.limit.place]) >> lane & 1) bytes = 0;
    if (bytes > form.bytes)
      fault(Hazard::IllegalUse, warp, lane, "cp.async with a source size of " + std::to_string(bytes));
    const uint8_t* from = bytes > 0 ? global_pointer(warp, source, bytes, lane) : nullptr;
    note_global(warp, source, bytes, false, lane);
    count_global(*warp.cta->cluster, bytes, true, false);
    judge_global_copy(warp, source, bytes, false, Reach::Weak, stamp);
    if (cluster.system != nullptr) system_copy_access(warp, source, bytes, false, stamp, false, Reach::Weak, lane);
    SharedAccess(warp, *to.cta, SharedAccess::Kind::CpAsyncWrite, stamp, lane).touch(to.offset, form.bytes);
    CopyLane& copies = warp.async->copy_lanes[lane];
    ++copies.groups.back().pending;
    copies.groups.back().last = number;
    op->pieces.push_back({lane, copies.committed(), from, to.cta, to.offset, bytes});
  }
  cluster.engine.submit(cluster, std::move(op));
  return Step::Next;
}

Step execute_cp_commit(Warp& warp, const Instr&, uint32_t mask) {
  for (; mask != 0; mask &= mask - 1) warp.async->copy_lanes[first_lane(mask)].groups.emplace_back();
  return Step::Next;
}

// cp.async.wait_group, cp.async.wait_all (9.7.9.25.3.3).
struct CpAsyncWait {
  bool all = false;    // wait_all, which commits first
  int64_t newest = 0;  // so many groups may still be pending
};

Step execute_cp_wait(Warp& warp, const Instr& instr, uint32_t mask) {
  const auto& form = instr.form<CpAsyncWait>();
  uint32_t seen = 0;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const auto found = warp.async->copy_lanes.find(first_lane(rest));
    if (found == warp.async->copy_lanes.end()) continue;
    CopyLane& copies = found->second;
    const int64_t until = form.all ? static_cast<int64_t>(copies.groups.size()) : copies.committed() - form.newest;
    for (int64_t i = 0; i < until; ++i) {
      const CopyLane::Group& group = copies.groups[static_cast<size_t>(i)];
      if (group.pending > 0) {
        return wait_for(
            warp, [&] { return "cp.async group " + std::to_string(i) + " of lane " + std::to_string(found->first); });
      }
      seen = std::max(seen, group.last);
    }
  }
  if (seen > 0) warp.view.seen.raise(warp.async->copy, seen);
  if (form.all) return execute_cp_commit(warp, instr, mask);
  return Step::Next;
}

// cp.async.mbarrier.arrive (9.7.13.15.15): an arrival behind the thread's copies.
class CpAsyncArrive : public AsyncOp {
 public:
  CpAsyncArrive(Origin origin, uint32_t offset, Stamp copies) : origin_(origin), offset_(offset), copies_(copies) {
    queue = copy_agent(*origin.warp);
  }
  void perform(Cluster&) override {
    auto& live = origin_.warp->cta->async->mbarriers;
    const auto found = live.find(offset_);
    if (found == live.end())
      origin_.fail(Hazard::MbarrierMisuse,
                   "cp.async arrives at the mbarrier at shared offset " + hex(offset_) + ", which was invalidated");
    if (copies_.at > 0) found->second.arriving.seen.raise(copies_.by, copies_.at);
    mbarrier_arrive(origin_, found->second, 1);
  }

 private:
  Origin origin_;
  uint32_t offset_;
  Stamp copies_;
};

struct CpAsyncArriveForm {
  AddressOperand mbarrier;
  bool generic = false;  // the address of the mbarrier
  bool counted = false;  // .noinc: the object's expected count has this arrival
};

Step execute_cp_arrive(Warp& warp, const Instr& instr, uint32_t mask) {
  const auto& form = instr.form<CpAsyncArriveForm>();
  Cluster& cluster = *warp.cta->cluster;
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const SharedPlace at = shared_place(warp, read_address(warp, instr, form.mbarrier, lane), form.generic, lane);
    if (at.cta != warp.cta)
      fault(Hazard::MbarrierMisuse, warp, lane, "cp.async.mbarrier.arrive at an object of another block");
    Mbarrier& barrier = find_mbarrier(warp, *at.cta, at.offset, lane);
    if (!form.counted) {
      if (++barrier.pending > kMbarrierLimit)
        fault(Hazard::MbarrierMisuse, warp, lane, "cp.async.mbarrier.arrive raises the pending count over 1048575");
    }
    warp.publish_weakly(barrier.arriving);
    const Origin origin{&warp, instr.source, lane};
    cluster.engine.submit(
        cluster, std::make_unique<CpAsyncArrive>(origin, at.offset, Stamp{copy_agent(warp), warp.async->copy_count}));
  }
  return Step::Next;
}

bool decode_cp_async(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  const auto& parts = source.parts;
  const auto& operands = source.operands;
  if (parts.size() < 3 || parts[1] != "async" || has_part(source, "bulk")) return false;
  if (parts[2] == "commit_group") {
    out.execute = execute_cp_commit;
    return true;
  }
  if (parts[2] == "wait_group" || parts[2] == "wait_all") {
    CpAsyncWait wait;
    wait.all = parts[2] == "wait_all";
    if (!wait.all) {
      need_operands(source, 1);
      wait.newest = immediate_of(source, operands[0]);
    }
    out.set(wait);
    out.execute = execute_cp_wait;
    return true;
  }
  if (parts[2] == "mbarrier") {
    need_operands(source, 1);
    CpAsyncArriveForm arrive;
    arrive.mbarrier = push_address(context, operands[0]);
    arrive.counted = has_part(source, "noinc");
    arrive.generic = !has_part(source, "shared") && !has_part(source, "shared::cta");
    out.set(arrive);
    out.execute = execute_cp_arrive;
    return true;
  }
  if (parts[2] != "ca" && parts[2] != "cg") unsupported(source, "the form is not known");
  const size_t policy = has_part(source, "L2::cache_hint") ? 1 : 0;
  if (operands.size() < 3 + policy || operands.size() > 4 + policy) unsupported(source, "wrong number of operands");
  const int64_t size = immediate_of(source, operands[2]);
  if (!(size == 16 || (parts[2] == "ca" && (size == 4 || size == 8))))
    unsupported(source, "a size of " + std::to_string(size) + " is not allowed");
  CpAsyncForm copy;
  copy.bytes = static_cast<uint8_t>(size);
  copy.destination = push_address(context, operands[0]);
  copy.source = push_address(context, operands[1]);
  if (operands.size() == 4 + policy) {
    const bool predicate = context.register_type(operands[3]) == ptx::Type::Pred;
    copy.read = predicate ? CpAsyncForm::Source::Ignored : CpAsyncForm::Source::Size;
    copy.limit = push_value(context, operands[3], predicate ? ptx::Type::Pred : ptx::Type::U32);
  }
  out.set(copy);
  out.execute = execute_cp_async;
  return true;
}

}  // namespace

void register_cp_async() { register_opcode("cp", decode_cp_async); }

}  // namespace sim
