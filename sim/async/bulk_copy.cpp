// SPDX-License-Identifier: Apache-2.0
// cp.async.bulk, cp.reduce.async.bulk, cp.async.bulk.prefetch (PTX ISA 9.7.9.25.4), and the bulk groups of a thread
// (9.7.9.25.5), which tensor copies use, too.
#include <bit>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/async/copy_target.h"
#include "sim/async/families.h"
#include "sim/hazards/global_access.h"
#include "sim/hazards/system_access.h"
#include "sim/hazards/tensor_map_order.h"

namespace sim {
namespace {

constexpr uint32_t kBulkAlign = 16;
constexpr uint32_t kEveryByte = 0xffff;  // of 16 bytes

// ---- bulk groups --------------------------------------------------------------------------------

Step execute_bulk_commit(Warp& warp, const Instr&, uint32_t mask) {
  for (; mask != 0; mask &= mask - 1) bulk_lane(warp, first_lane(mask)).groups.emplace_back();
  return Step::Next;
}

// cp.async.bulk.wait_group (9.7.9.25.5.2).
struct BulkWait {
  bool read_only = false;  // .read: until the sources have been read
  int64_t newest = 0;      // so many groups may still be pending
};

// How many of a lane's groups the wait is for. Negative: of none.
int64_t groups_until(const BulkLane& bulk, const BulkWait& wait) { return int64_t{bulk.committed()} - wait.newest; }

bool are_pending(BulkLane& bulk, const BulkWait& wait) {
  const int64_t until = groups_until(bulk, wait);
  uint32_t& first = wait.read_only ? bulk.first_reading : bulk.first_writing;
  for (; first < until; ++first) {
    const BulkLane::Group& group = bulk.groups[first];
    if ((wait.read_only ? group.reading : group.writing) != 0) return true;
  }
  return false;
}

void observe_groups(Warp& warp, const BulkLane& bulk, const BulkWait& wait) {
  const int64_t until = groups_until(bulk, wait);
  if (until <= 0) return;
  warp.view.seen.raise(bulk.read, static_cast<uint32_t>(until));
  if (!wait.read_only) warp.view.seen.raise(bulk.written, static_cast<uint32_t>(until));
}

// A group is of one thread, but on GPUs the wait is for those of the warp: ptxas turns it into a wait for a scoreboard
// that the warp's lanes share.
// CUTLASS lets all lanes issue a store, and one lane wait for it before the tensor map is rewritten.
Step execute_bulk_wait(Warp& warp, const Instr& instr, uint32_t mask) {
  const auto& form = instr.form<BulkWait>();
  const bool of_warp = warp.cta->cluster->launch->rules.strictness != Strictness::Isa;
  const ptx::Instruction* copy = nullptr;  // the last one of a lane that waits
  for (auto& [lane, bulk] : warp.async->bulk) {
    const bool waits = (mask >> lane & 1) != 0;
    if (waits) copy = bulk.last.source;
    if ((waits || of_warp) && are_pending(bulk, form))
      return wait_for(warp, [&, at = lane, first = form.read_only ? bulk.first_reading : bulk.first_writing] {
        return "bulk group " + std::to_string(first) + " of lane " + std::to_string(at);
      });
  }
  for (const auto& [lane, bulk] : warp.async->bulk) {
    const bool waits = (mask >> lane & 1) != 0;
    if (!waits && of_warp && copy != nullptr && bulk.last.source == copy && warp.view.seen[bulk.read] < bulk.last_used)
      deviation(Hazard::DataInFlight, warp, lane, [&, at = lane] {
        return "lane " + std::to_string(std::countr_zero(mask)) + " waits for its bulk groups, and lane " +
               std::to_string(at) + ", which has issued the same copy, does not";
      });
    if (waits || of_warp) observe_groups(warp, bulk, form);
  }
  return Step::Next;
}

// ---- copies -------------------------------------------------------------------------------------

class BulkLoad : public AsyncOp {
 public:
  // The source is global memory, or shared memory of the issuing block.
  BulkLoad(Origin origin, const uint8_t* source, uint32_t bytes, Target target, Reduction op, TensorElement element)
      : origin_(origin), source_(source), bytes_(bytes), target_(target), op_(op), element_(element) {}
  void perform(Cluster& cluster) override {
    uint8_t* const to = shared_bytes(*target_.cta, target_.offset);
    if (may_copy_undefined(cluster)) [[unlikely]]
      copy_undefined(origin_, to, source_, bytes_, op_ != Reduction::None);
    reduce_elements(op_, element_, to, source_, bytes_);
    mbarrier_copy_done(cluster, *target_.barrier_cta, target_.barrier, target_.stamp, bytes_, origin_);
  }

 private:
  Origin origin_;
  const uint8_t* source_;
  uint32_t bytes_;
  Target target_;
  Reduction op_;
  TensorElement element_;
};

// Calls f(offset, bytes) for each run of bytes that a copy with .cp_mask copies: bit i of the mask is of byte i of each
// 16 (9.7.9.25.4.1).
template <class F>
void for_each_run(uint32_t bytes, uint32_t byte_mask, F f) {
  if (byte_mask == kEveryByte) return f(0, bytes);
  const auto is_copied = [byte_mask](uint32_t offset) { return (byte_mask >> offset % kBulkAlign & 1) != 0; };
  for (uint32_t offset = 0; offset < bytes;) {
    const uint32_t begin = offset;
    while (offset < bytes && is_copied(offset)) ++offset;
    if (offset != begin) f(begin, offset - begin);
    while (offset < bytes && !is_copied(offset)) ++offset;
  }
}

class BulkStore : public AsyncOp {
 public:
  BulkStore(Origin origin, uint32_t offset, uint32_t bytes, uint32_t byte_mask, uint64_t destination, uint32_t group,
            Reduction op, TensorElement element)
      : origin_(origin),
        offset_(offset),
        bytes_(bytes),
        byte_mask_(byte_mask),
        destination_(destination),
        group_(group),
        op_(op),
        element_(element) {}
  void perform(Cluster& cluster) override {
    auto write = std::make_unique<GlobalWrite>(origin_, group_, op_, element_);
    for_each_run(bytes_, byte_mask_, [&](uint32_t offset, uint32_t bytes) {
      const uint8_t* const source = shared_bytes(*origin_.warp->cta, offset_ + offset);
      write->add(reinterpret_cast<uint8_t*>(destination_ + offset), source, bytes);
      if (may_copy_undefined(cluster)) [[unlikely]] {
        std::vector<uint8_t> bits(bytes);
        load_undefined(*origin_.warp, source, bits.data(), bytes);
        write->add_undefined(bits.data(), bytes);
      }
    });
    --bulk_lane(*origin_.warp, origin_.lane).groups[group_].reading;
    cluster.engine.submit(cluster, std::move(write));
  }

 private:
  Origin origin_;
  uint32_t offset_, bytes_, byte_mask_;
  uint64_t destination_;
  uint32_t group_;
  Reduction op_;
  TensorElement element_;
};

// cp.async.bulk and cp.reduce.async.bulk (9.7.9.25.4.1, 9.7.9.25.4.2).
struct BulkCopy {
  enum class Route : uint8_t { GlobalToShared, SharedToShared, SharedToGlobal };
  Route route = Route::GlobalToShared;
  Reduction reduction = Reduction::None;
  TensorElement element = TensorElement::U8;
  TargetForm target;
  AddressOperand destination, source;
  ValueOperand size;
  AddressOperand mbarrier;  // when the destination is in shared memory
  ValueOperand cta_mask;    // with .multicast
  bool masked = false;      // .cp_mask
  ValueOperand byte_mask;
};
// cp.async.bulk.prefetch (9.7.9.25.4.3).
struct BulkPrefetch {
  AddressOperand source;
  ValueOperand size;
};

Step execute_bulk(Warp& warp, const Instr& instr, uint32_t mask) {
  Cluster& cluster = *warp.cta->cluster;
  const BulkCopy& copy = instr.form<BulkCopy>();
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const uint64_t destination = read_address(warp, instr, copy.destination, lane);
    const uint64_t source = read_address(warp, instr, copy.source, lane);
    const uint32_t bytes = read32(warp, instr, copy.size, lane);
    check_alignment(warp, lane, "destination address", destination, kBulkAlign);
    check_alignment(warp, lane, "source address", source, kBulkAlign);
    check_alignment(warp, lane, "size", bytes, kBulkAlign);
    const Origin origin{&warp, instr.source, lane};
    if (copy.route == BulkCopy::Route::SharedToGlobal) {
      BulkLane& bulk = bulk_lane(warp, lane);
      const SharedPlace from = shared_place(warp, source, false, lane);
      if (from.cta != warp.cta)
        fault(Hazard::IllegalUse, warp, lane, "the source in .shared::cta lies in another block");
      const uint32_t byte_mask = copy.masked ? read32(warp, instr, copy.byte_mask, lane) & kEveryByte : kEveryByte;
      const Stamp written = written_by(bulk);
      for_each_run(bytes, byte_mask, [&](uint32_t offset, uint32_t run) {
        const uint64_t to = destination + offset;
        global_pointer(warp, to, run, lane);
        note_global(warp, to, run, true, lane);
        count_global(cluster, run, false, true);
        judge_global_copy(warp, to, run, true, reach_of(copy.reduction), written);
        if (cluster.system != nullptr)
          system_copy_access(warp, to, run, true, written, true, reach_of(copy.reduction), lane);
      });
      const Stamp stamp = join_bulk_group(bulk, current_origin(warp, lane));
      SharedAccess read(warp, *warp.cta, SharedAccess::Kind::AsyncRead, stamp, lane);
      for_each_run(bytes, byte_mask, [&](uint32_t offset, uint32_t run) {
        read.touch(from.offset + offset, run);
        if (cluster.tensor_maps.may_hold(destination + offset, run))
          tensor_map_written(warp, destination + offset, run, lane);
      });
      cluster.engine.submit(cluster, std::make_unique<BulkStore>(origin, from.offset, bytes, byte_mask, destination,
                                                                 bulk.committed(), copy.reduction, copy.element));
      continue;
    }
    const uint64_t barrier = read_address(warp, instr, copy.mbarrier, lane);
    const uint32_t cta_mask = copy.target.multicast ? read32(warp, instr, copy.cta_mask, lane) & 0xffff : 0;
    const std::vector<Target> targets = targets_of(warp, destination, barrier, copy.target, cta_mask, lane);
    const uint8_t* from;
    if (copy.route == BulkCopy::Route::SharedToShared) {
      const SharedPlace place = shared_place(warp, source, false, lane);
      if (place.cta != warp.cta)
        fault(Hazard::IllegalUse, warp, lane, "the source in .shared::cta lies in another block");
      if (!warp.cta->cluster->launch->explicit_cluster)  // an illegal instruction on an H200
        fault(Hazard::IllegalUse, warp, lane,
              "a bulk copy between shared memories in a launch without a cluster dimension");
      SharedAccess(warp, *warp.cta, SharedAccess::Kind::AsyncRead, targets[0].stamp, lane).touch(place.offset, bytes);
      from = shared_bytes(*warp.cta, place.offset);
    } else {
      from = global_pointer(warp, source, bytes, lane);
      note_global(warp, source, bytes, false, lane);
      count_global(cluster, bytes, true, false);
      judge_global_copy(warp, source, bytes, false, Reach::Weak, completion_of(targets));
      if (cluster.system != nullptr)
        system_copy_access(warp, source, bytes, false, completion_of(targets), true, Reach::Weak, lane);
    }
    for (const Target& target : targets) {
      SharedAccess(warp, *target.cta, SharedAccess::Kind::AsyncWrite, target.stamp, lane)
          .touch_for_write(target.offset, bytes, copy.reduction != Reduction::None);
      cluster.engine.submit(cluster,
                            std::make_unique<BulkLoad>(origin, from, bytes, target, copy.reduction, copy.element));
    }
  }
  return Step::Next;
}

// A prefetch is a hint: only its addresses are checked.
Step execute_bulk_prefetch(Warp& warp, const Instr& instr, uint32_t mask) {
  const BulkPrefetch& prefetch = instr.form<BulkPrefetch>();
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const uint64_t source = read_address(warp, instr, prefetch.source, lane);
    const uint32_t bytes = read32(warp, instr, prefetch.size, lane);
    check_alignment(warp, lane, "source address", source, kBulkAlign);
    check_alignment(warp, lane, "size", bytes, kBulkAlign);
    global_pointer(warp, source, bytes, lane);
  }
  return Step::Next;
}

bool decode_bulk(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  const auto& operands = source.operands;
  if (source.parts.size() < 3 || !has_part(source, "async") || !has_part(source, "bulk") || has_part(source, "tensor"))
    return false;
  if (has_part(source, "commit_group")) {
    out.execute = execute_bulk_commit;
    return true;
  }
  if (has_part(source, "wait_group")) {
    need_operands(source, 1);
    BulkWait wait;
    wait.newest = immediate_of(source, operands[0]);
    wait.read_only = has_part(source, "read");
    out.set(wait);
    out.execute = execute_bulk_wait;
    return true;
  }
  const bool reduce = source.parts[1] == "reduce";
  const size_t policy = has_part(source, "L2::cache_hint") ? 1 : 0;
  const bool masked = has_part(source, "cp_mask");
  if (masked && context.arch() < 100) unsupported(source, ".cp_mask needs sm_100 or later");
  if (masked && (reduce || !has_part(source, "bulk_group") || has_part(source, "multicast::cluster")))
    unsupported(source, "only a copy from .shared::cta to .global takes .cp_mask");
  if (has_part(source, "prefetch")) {
    need_operands(source, 2 + policy);
    BulkPrefetch prefetch;
    prefetch.source = push_address(context, operands[0]);
    prefetch.size = push_value(context, operands[1], ptx::Type::U32);
    out.set(prefetch);
    out.execute = execute_bulk_prefetch;
    return true;
  }
  BulkCopy copy;
  std::vector<std::string> spaces;  // .dst, then .src
  std::optional<TensorElement> element;
  for (const std::string& part : source.parts) {
    if (part == "global" || part == "shared::cta" || part == "shared::cluster") spaces.push_back(part);
    if (reduce && copy.reduction == Reduction::None)
      copy.reduction = reduction_from_name(part).value_or(Reduction::None);
    if (reduce && !element) element = element_from_name(part);
  }
  if (spaces.size() != 2) unsupported(source, "the form is not known");
  using Route = BulkCopy::Route;
  if (spaces[0] == "global" && spaces[1] == "shared::cta") {
    copy.route = Route::SharedToGlobal;
  } else if (spaces[0] == "shared::cluster" && spaces[1] == "shared::cta") {
    copy.route = Route::SharedToShared;
  } else if (spaces[0] != "global" && spaces[1] == "global" && !reduce) {
    copy.route = Route::GlobalToShared;
  } else {
    unsupported(source, "the form is not known");
  }
  if (reduce) {
    if (copy.reduction == Reduction::None || !element ||
        !reduction_supports(copy.reduction, *element, copy.route == Route::SharedToShared))
      unsupported(source, "the operation on that type is not known");
    copy.element = *element;
  }
  copy.target.multicast = has_part(source, "multicast::cluster");
  copy.target.own_only = spaces[0] == "shared::cta";
  const bool barrier = copy.route != Route::SharedToGlobal;
  if (barrier != has_part(source, "mbarrier::complete_tx::bytes") || barrier == has_part(source, "bulk_group"))
    unsupported(source, "the completion mechanism does not fit the direction");
  copy.masked = masked;
  const size_t beside = (barrier ? 1 : 0) + (copy.target.multicast ? 1 : 0) + policy;
  need_operands(source, 3 + beside + (masked ? 1 : 0));
  copy.destination = push_address(context, operands[0]);
  copy.source = push_address(context, operands[1]);
  copy.size = push_value(context, operands[2], ptx::Type::U32);
  if (barrier) copy.mbarrier = push_address(context, operands[3]);
  if (copy.target.multicast) copy.cta_mask = push_value(context, operands[4], ptx::Type::U16);
  if (masked) copy.byte_mask = push_value(context, operands[3 + policy], ptx::Type::U16);
  out.set(copy);
  out.execute = execute_bulk;
  return true;
}

}  // namespace

void register_bulk_copy() { register_opcode("cp", decode_bulk); }

}  // namespace sim
