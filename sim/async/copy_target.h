// SPDX-License-Identifier: Apache-2.0
// What the families of asynchronous copies share: where a copy lands and which mbarrier it signals, the bulk groups of
// a thread, the second half of a copy to global memory.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/async/reduce.h"
#include "sim/async/state.h"
#include "sim/hazards/global_races.h"
#include "sim/hazards/undefined.h"

namespace sim {

inline uint8_t* shared_bytes(Cta& cta, uint32_t offset) { return cta.shared.bytes + offset; }

// Where a copy lands: a block, an offset, and the mbarrier there that counts it.
struct Target {
  Cta* cta;
  uint32_t offset;
  uint32_t barrier;
  Stamp stamp;
  Cta* barrier_cta;
};

// How an instruction names the blocks that its copy reaches.
struct TargetForm {
  bool own_only = false;   // the destination is in .shared::cta
  bool multicast = false;  // to the blocks of a mask
  bool pair = false;       // .cta_group::2
  bool generic = false;    // the addresses are generic
};
// The blocks that a copy into shared memory reaches. The barrier of a copy without multicast may be in another
// block only together with the destination. With .cta_group::2 it may also be in its peer, and each destination of a
// multicast signals the block of its pair that has the parity of the barrier's (9.7.9.27.1.2).
std::vector<Target> targets_of(Warp& warp, uint64_t destination, uint64_t barrier, const TargetForm& form,
                               uint32_t cta_mask, int lane);

// What tells that the source of such a copy has been read. Several blocks have no one sign of it: a stamp of 0.
inline Stamp completion_of(const std::vector<Target>& targets) {
  return targets.size() == 1 ? targets[0].stamp : Stamp{};
}

// Faults when `value`, which the text calls `what`, is not a multiple of `align`.
void check_alignment(Warp& warp, int lane, const char* what, uint64_t value, uint32_t align);

// The bulk groups of a lane, with their agent.
BulkLane& bulk_lane(Warp& warp, int lane);
// A copy joins the group that is open. Its source is free once that group's clock has passed the stamp.
Stamp join_bulk_group(BulkLane& bulk, const Origin& origin);
// When the copies of the open group have written.
inline Stamp written_by(const BulkLane& bulk) { return {bulk.written, bulk.committed() + 1}; }
// How a copy to global memory compares with other accesses: its reductions are relaxed, of .gpu scope (9.7.9.25.4.2).
inline Reach reach_of(Reduction op) { return op == Reduction::None ? Reach::Weak : Reach::Device; }

// The second half of a copy to global memory. It writes what the first half has read from shared memory.
class GlobalWrite : public AsyncOp {
 public:
  struct Row {
    uint8_t* destination;
    uint32_t bytes;
  };
  GlobalWrite(Origin origin, uint32_t group, Reduction op, TensorElement element)
      : origin_(origin), group_(group), op_(op), element_(element) {}
  void add(uint8_t* destination, const uint8_t* source, uint32_t bytes) {
    if (bytes == 0) return;
    rows_.push_back({destination, bytes});
    data_.insert(data_.end(), source, source + bytes);
  }
  // Which bits of what was added are undefined, row by row.
  void add_undefined(const uint8_t* bits, uint32_t bytes) { undefined_.insert(undefined_.end(), bits, bits + bytes); }
  void perform(Cluster& cluster) override {
    const uint8_t* source = data_.data();
    for (const Row& row : rows_) {
      if (op_ == Reduction::None) note_stored(cluster, reinterpret_cast<uint64_t>(row.destination), source, row.bytes);
      reduce_elements(op_, element_, row.destination, source, row.bytes);
      source += row.bytes;
    }
    if (!undefined_.empty()) {
      const uint8_t* bits = undefined_.data();
      for (const Row& row : rows_) {
        write_undefined(origin_, row.destination, bits, row.bytes, op_ != Reduction::None);
        bits += row.bytes;
      }
    }
    --bulk_lane(*origin_.warp, origin_.lane).groups[group_].writing;
  }

 private:
  Origin origin_;
  uint32_t group_;
  Reduction op_;
  TensorElement element_;
  std::vector<Row> rows_;
  std::vector<uint8_t> data_, undefined_;
};

// The element type that a modifier of an opcode names.
std::optional<TensorElement> element_from_name(const std::string& name);

// Throws Unsupported when the instruction has another number of operands.
void need_operands(const ptx::Instruction& source, size_t count);

}  // namespace sim
