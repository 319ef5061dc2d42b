// SPDX-License-Identifier: Apache-2.0
// Order inside a warp: which lane wrote a word of shared memory by a plain store and has told nobody since. Views
// (sim/history/clock.h) know warps only; this finds the bar.warp.sync that is missing between two lanes of one warp.
// What it reports is unordered for certain: a release by the writing lane and after it any acquire by the warp count as
// order. And LaneReads, which lanes' reads a warp's release stands for.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "sim/history/clock.h"

namespace sim {

// Calls visit(lane) for each lane of the mask, the lowest first.
template <class Visit>
inline void each_lane(uint32_t mask, Visit visit) {
  if (mask == ~0u) {
    for (int lane = 0; lane < 32; ++lane) visit(lane);
  } else {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) visit(std::countr_zero(rest));
  }
}

// A release by some lanes of a warp stands for the reads of other lanes only where something has brought them together
// since: a barrier, or any instruction that waits for all of them (shfl.sync, an .aligned one, ...). Therefore plain
// reads of shared memory have agents of their own, one for each set of lanes that read together, and a warp's view is
// told of their reads when the last of the lanes has come to such a place, or has released or issued something itself.
// A fence by one lane counts for all.
class LaneReads {
 public:
  void reset() { *this = LaneReads{}; }
  // For a read by the lanes of the mask, of a warp whose own stamp is `of_warp`. A set of lanes that is new asks
  // new_agent() for its agent. Of sets beyond the first few nothing is known: their reads are the warp's.
  template <class NewAgent>
  Stamp stamp(Stamp of_warp, uint32_t mask, NewAgent new_agent) {
    if (together_) return of_warp;
    Group* const group = groups_[0].mask == mask ? groups_.data() : group_of(mask, new_agent);
    if (group == nullptr) return of_warp;
    group->epoch = of_warp.at;
    unordered_ |= mask;
    return {group->agent, time_};
  }
  // The lanes of the mask have come together, or each publishes only what it did itself: their warp's view is told.
  void order(View& view, uint32_t mask) {
    if (unordered_ & mask) raise(view, mask);
  }
  // One instruction of the whole warp reads (ldmatrix): its lanes are together.
  void read_together(bool together) { together_ = together; }
  void fence() {
    if (unordered_ != 0) fenced_ = time_++;
  }
  // True when whoever has seen this epoch of the warp has also seen a release that came after the agent's last read.
  bool came_before(uint32_t agent, uint32_t epoch) const {
    return std::any_of(groups_.begin(), groups_.end(),
                       [&](const Group& group) { return group.agent == agent && epoch >= group.epoch; });
  }
  void forget(Clock& clock) const {
    for (const Group& group : groups_) {
      if (group.agent != 0) clock.forget(group.agent);
    }
  }

 private:
  struct Group {
    uint32_t mask = 0;
    uint32_t agent = 0;
    uint32_t epoch = 0;  // of the warp at its last read
  };
  template <class NewAgent>
  Group* group_of(uint32_t mask, NewAgent new_agent) {
    for (Group& group : groups_) {
      if (group.agent == 0) group = {mask, new_agent(), 0};
      if (group.mask == mask) return &group;
    }
    return nullptr;
  }
  void raise(View& view, uint32_t mask);

  std::array<Group, 4> groups_{};
  bool together_ = false;
  uint32_t time_ = 1;
  uint32_t fenced_ = 0;                 // reads until then are ordered before accesses through the async proxy
  uint32_t unordered_ = 0;              // lanes that have read since they were last ordered
  std::array<uint32_t, 32> ordered_{};  // the time up to which a lane's reads are
};

class LaneOrder {
 public:
  void create(uint32_t shared_bytes) {
    words_.assign((shared_bytes + 3) / 4, 0);
    warps_.clear();
  }

  // A plain store of `size` bytes by a lane. Parts of words are not followed.
  void write(uint32_t warp, int lane, uint32_t offset, uint32_t size);
  // A plain store by the lanes of the mask, each at its offset. With `row` all 32 lanes store, one after the other in
  // memory.
  void write(uint32_t warp, const uint64_t* offset, uint32_t mask, uint32_t size, bool row);
  // Stores that need no order (atomics, volatile, other blocks', asynchronous ones).
  void forget(uint32_t offset, uint32_t size) {
    if (size <= 4) {
      words_[offset / 4] = 0;
      return;
    }
    std::fill(words_.begin() + offset / 4, words_.begin() + (offset + size + 3) / 4, 0u);
  }
  // What the lanes of `mask` wrote so far may now be known to others.
  void release(uint32_t warp, uint32_t mask) {
    if (warp >= warps_.size()) return;  // has written nothing
    WarpOrder& order = warps_[warp];
    if (++order.time == kTimes) return forget_warp(warp);
    if (mask == ~0u) {
      order.released.fill(order.time);
      return;
    }
    for (; mask != 0; mask &= mask - 1) order.released[__builtin_ctz(mask)] = order.time;
  }
  // A lane of the warp has observed others: what its lanes released until now may have come back to it.
  void acquire(uint32_t warp) {
    if (warp >= warps_.size()) return;
    WarpOrder& order = warps_[warp];
    order.visible = order.released;
    uint32_t floor = ~0u;
    for (size_t lane = 0; lane < 32; ++lane) floor = std::min(floor, order.visible[lane] | ~order.writes[lane]);
    order.floor = floor;
  }
  // All live lanes of the warp have come together at an instruction that orders no memory (shfl.sync, ldmatrix, ...).
  void meet(uint32_t warp) {
    if (warp >= warps_.size()) return;
    WarpOrder& order = warps_[warp];
    if (++order.time == kTimes) return forget_warp(warp);
    order.met = order.time;
  }
  // A lane of the same warp whose store to these bytes is not ordered before a read by `reader`; -1: there is none.
  int unordered_writer(uint32_t warp, int reader, uint32_t offset, uint32_t size) const {
    if (warp >= warps_.size()) return -1;
    const WarpOrder& order = warps_[warp];
    for (uint32_t word = offset / 4; word < (offset + size + 3) / 4; ++word) {
      const uint32_t now = words_[word];
      const int lane = unordered(order, warp, now);
      if (lane >= 0 && lane != reader) return lane;
    }
    return -1;
  }
  // Whether the lanes have come together since each store that unordered_writer() finds.
  bool met_since(uint32_t warp, int reader, uint32_t offset, uint32_t size) const {
    const WarpOrder& order = warps_[warp];
    for (uint32_t word = offset / 4; word < (offset + size + 3) / 4; ++word) {
      const int lane = unordered(order, warp, words_[word]);
      if (lane >= 0 && lane != reader && (words_[word] >> 5) % kTimes >= order.met) return false;
    }
    return true;
  }
  // Whether unordered_writer() finds nobody for reads by the lanes of the mask, each at its offset.
  bool ordered(uint32_t warp, const uint64_t* offset, uint32_t mask, uint32_t size, bool row) const;

 private:
  static constexpr uint32_t kTimes = 1u << 21;
  // 0: nothing known; else (warp + 1) << 26 | time << 5 | lane.
  std::vector<uint32_t> words_;
  static uint32_t mark_of(uint32_t warp, uint32_t time) { return (warp + 1) << 26 | time << 5; }
  // The marks that a warp has made since a time are `first` and the `count` - 1 that follow it.
  struct Marks {
    uint32_t first, count;
    Marks(uint32_t warp, uint32_t since)
        : first(mark_of(warp, 0) + std::min(since, kTimes) * 32), count(mark_of(warp + 1, 0) - first) {}
  };
  // Time is counted in releases and meetings of the warp. A store at time t is ordered once t < visible of its lane.
  struct WarpOrder {
    uint32_t time = 1;
    uint32_t floor = 0;  // a store before it is ordered whichever lane made it
    uint32_t met = 0;    // when the lanes last came together
    alignas(64) std::array<uint32_t, 32> released{}, visible{};
    std::array<uint32_t, 32> writes{};  // all ones for lanes that ever stored
    uint32_t writers = 0;               // those lanes
  };
  std::vector<WarpOrder> warps_;

  WarpOrder& writer(uint32_t warp, uint32_t lanes);
  void forget_warp(uint32_t warp);
  // The lane of `warp` whose unordered write the word is, or -1.
  static int unordered(const WarpOrder& order, uint32_t warp, uint32_t word) {
    if (word >> 26 != warp + 1) return -1;
    const uint32_t lane = word & 31;
    return (word >> 5) % kTimes < order.visible[lane] ? -1 : static_cast<int>(lane);
  }
  static uint32_t doubtful_row(const uint32_t* words, uint32_t size, Marks since);
  template <int kWords>
  static bool doubtful(const uint32_t* words, const uint64_t* offset, uint32_t mask, Marks since);
};

}  // namespace sim
