// Order inside a warp: which lane wrote a word of shared memory by a plain store and has told nobody since. Views
// (sim/memory/clock.h) know warps only; this finds the bar.warp.sync that is missing between two lanes of one warp.
// What it reports is unordered for certain: a release by the writing lane and after it any acquire by the warp count as
// order.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

namespace sim {

class LaneOrder {
 public:
  void create(uint32_t shared_bytes) { words_.assign((shared_bytes + 3) / 4, 0); }

  // A plain store of `size` bytes by a lane. Parts of words are not followed.
  void write(uint32_t warp, int lane, uint32_t offset, uint32_t size);
  // Stores that need no order (atomics, volatile, other blocks', asynchronous ones).
  void forget(uint32_t offset, uint32_t size);
  // What the lanes of `mask` wrote so far may now be known to others.
  void release(uint32_t warp, uint32_t mask) {
    if (warp >= warps_.size()) return;  // has written nothing
    for (; mask != 0; mask &= mask - 1) ++warps_[warp].released[__builtin_ctz(mask)];
  }
  // A lane of the warp has observed others: what its lanes released until now may have come back to it.
  void acquire(uint32_t warp) {
    if (warp < warps_.size()) warps_[warp].visible = warps_[warp].released;
  }
  // A lane of the same warp whose store to these bytes is not ordered before a read by `reader`; -1: there is none.
  int unordered_writer(uint32_t warp, int reader, uint32_t offset, uint32_t size) const;

 private:
  static constexpr uint32_t kEpochs = 1u << 21;
  // 0: nothing known; else epoch << 11 | lane << 6 | warp + 1.
  std::vector<uint32_t> words_;
  // By lane: how often it has released, and how many of those times may be known to the other lanes.
  struct WarpOrder {
    std::array<uint32_t, 32> released{}, visible{};
  };
  std::vector<WarpOrder> warps_;

  // The lane of `warp` whose unordered write the word holds, or -1.
  int unordered(uint32_t warp, uint32_t word) const {
    if (word == 0 || (word & 63) != warp + 1) return -1;
    const uint32_t lane = word >> 6 & 31;
    return ((word >> 11) - warps_[warp].visible[lane]) % kEpochs < kEpochs / 2 ? static_cast<int>(lane) : -1;
  }
};

}  // namespace sim
