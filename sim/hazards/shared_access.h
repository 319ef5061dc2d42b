// SPDX-License-Identifier: Apache-2.0
// Judges accesses to shared memory: their bounds, bytes that nobody has written, data in flight, missing proxy fences.
// The order is happens-before as the warps' views record it, whatever the simulator ran first.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "sim/history/shared_history.h"
#include "sim/machine/hierarchy.h"
#include "sim/memory/address_space.h"

namespace sim {

// Remembers an access to another block's shared memory: the block must not exit before it.
inline void note_remote(Warp& warp, Cta& owner, uint32_t mask) {
  if (&owner == warp.cta) return;
  owner.remote[warp.self] = {warp.view.seen[warp.self], current_origin(warp, -1), warp.next_cluster_barrier(mask)};
}

// Accesses of the generic proxy (ld, st, atom, ldmatrix, stmatrix, ...): bounds, uninitialised reads, data in
// flight. They throw Fault. `owner` is the block whose memory it is (another one of the cluster for remote
// access); size is of one lane.
void shared_generic_read(Warp& warp, Cta& owner, uint32_t offset, uint32_t size, int lane);
// Behind a write that `is_store` shared_stores_done() is called once its bytes are there.
void shared_generic_write(Warp& warp, Cta& owner, uint32_t offset, uint32_t size, int lane, bool is_store = false);
// Accesses of the async proxy issued by `warp`: order against generic writes and against other async work.
// The stamp is what others must observe before the bytes may be touched again.
void shared_async_read(Warp& warp, Cta& owner, uint32_t offset, uint32_t size, Stamp completion);
void shared_async_write(Warp& warp, Cta& owner, uint32_t offset, uint32_t size, Stamp completion);
// A plain or `strong` access of the lanes of the mask at offset[lane], `size` bytes each (a power of two, aligned),
// with the order between the warp's lanes. `row`: all 32 lanes are there, one after the other.
void shared_warp_access(Warp& warp, Cta& owner, const uint64_t* offset, uint32_t mask, uint32_t size, Access access,
                        bool strong, bool row);
// Called after the bytes of a plain store have been written: races of stores are told by what they changed.
void judge_unordered_stores(Warp& warp);
inline void shared_stores_done(Warp& warp) {
  if (!warp.cta->cluster->unordered_stores.empty()) [[unlikely]]
    judge_unordered_stores(warp);
}
// Order between the lanes of one warp: a plain read or write by `lane`; a read by the whole warp has lane -1.
void shared_lane_read(Warp& warp, Cta& owner, uint32_t offset, uint32_t size, int lane);
void shared_lane_write(Warp& warp, Cta& owner, uint32_t offset, uint32_t size, int lane);
// An access of the async proxy that touches many pieces of one block's memory. Each history that it meets is checked
// once.
class SharedAccess {
 public:
  enum class Kind { AsyncRead, AsyncWrite, CpAsyncWrite };
  SharedAccess(Warp& warp, Cta& owner, Kind kind, Stamp completion, int lane = -1);
  void touch(uint32_t offset, uint32_t size);  // faults (memory) when it is not all inside the block's memory
  // A write that may be a reduction, which reads the bytes, too. Those that nobody has written stay undefined.
  void touch_for_write(uint32_t offset, uint32_t size, bool reduces);
  // 32 aligned bytes that are known to be inside, read.
  void touch_pair(uint32_t offset) {
    SharedHistory::Granule* const two = granules_ + (offset >> 4);
    uint64_t now[2];
    std::memcpy(now, two, sizeof now);
    if (now[0] != known_ || now[1] != known_) return touch(offset, 32);
    const uint64_t next[2] = {next_, next_};
    std::memcpy(two, next, sizeof next);
  }
  // The histories met so far with the place of each, for others whose view is to be held against the same bytes.
  struct Met {
    uint32_t index, offset;
    SharedHistory::History history;
  };
  std::vector<Met> take_met() { return std::move(met_); }
  // Whether the warp knows of what was written last.
  static bool is_ordered(const Warp& warp, const Met& met);
  static void check(Warp& other, Cta& owner, Kind kind, const std::vector<Met>& met);

 private:
  void step(SharedHistory::Granule& granule, uint32_t offset, uint32_t mask = 0xffff);
  Warp& warp_;
  Cta& owner_;
  Kind kind_;
  Stamp completion_;
  int lane_;
  SharedHistory::Granule* granules_;
  uint32_t old_ = UINT32_MAX, new_ = 0;
  // A granule with history old_ and no byte unwritten, and what a read makes of it, as they lie in memory.
  uint64_t known_ = UINT64_MAX, next_ = 0;
  std::vector<Met> met_;
};

}  // namespace sim
