// SPDX-License-Identifier: Apache-2.0
// Which tile a block computes next. A problem consists of cluster tiles, numbered group by group and in each group in
// the order of raster.cuh; the blocks of a cluster compute one together.
//
// The contract. Every role of a kernel that works tile by tile has a Scheduler of its own, and all of them, in all
// warps and in all blocks of a cluster, give the same sequence of tiles without talking to each other.
//
//   Scheduler<C, Queue>(gemm, queue)
//     Reads nothing but the kernel's parameters.
//   void fetch()
//     Whole warp, at most once, before the first next(): begins to read the sizes that next() needs, so that the round
//     trip overlaps with what stands between the two calls.
//   bool next(Tile& tile)
//     Whole warp. Gives this block's next tile, or false, and then always false, when there is none. A tile has rows of
//     its group, except for the second block of a cluster, whose tile may lie past the group's last row or column: its
//     copies and arrivals are still due. It reads sizes, and so stands behind griddepcontrol.wait, or sizes are ready
//     before (gemm.weights_ready). It passes no barrier of the block, and with a LaunchQueue only those of the queue.
//
// Without a queue the grid is persistent: cluster c computes the cluster tiles c, c + clusters, c + 2 clusters, ...
#pragma once
#include "moxie/group_walk.cuh"

namespace moxie::kernel {

// Says that the cluster tiles are dealt out to the clusters in turn.
struct NoQueue {};

// Queue: NoQueue, or what names the cluster tiles that a block computes after its first (blackwell/launch_queue.cuh).
template <auto C, class Queue = NoQueue>
class Scheduler {
  static constexpr bool kQueued = !cuda::std::is_same_v<Queue, NoQueue>;
  static constexpr bool kWalksGroups = walks_groups(C.grouping);
  static_assert(!pairs_rows(C) || C.grouping == Grouping::Offsets || C.grouping == Grouping::Masked);

 public:
  MOXIE_DEVICE explicit Scheduler(const GemmParams& gemm, const Queue& queue = {})
      : gemm_(gemm), queue_(queue), raster_(gemm), next_(blockIdx.x / C.cluster), walk_(gemm) {}

  MOXIE_DEVICE void fetch() {
    if constexpr (kWalksGroups) walk_.fetch();
  }

  MOXIE_DEVICE bool next(Tile& tile) {
    if constexpr (kWalksGroups) {
      return next_of_walk(tile);
    } else {
      return next_of_grid(tile);
    }
  }

 private:
  // Dense, Batched, RowGroups: all groups have the same number of cluster tiles.
  MOXIE_DEVICE bool next_of_grid(Tile& tile) {
    const uint32_t columns = Raster<C>::columns(gemm_.n);
    const uint32_t rows = Raster<C>::rows(gemm_.m);
    const uint32_t count = columns * rows * (C.grouping == Grouping::Batched ? gemm_.groups : 1);
    while (kQueued || next_ < count) {
      if constexpr (kQueued) {
        if (!ask_queue() || next_ >= count) break;
      }
      uint32_t index = next_;
      take();
      tile.group = 0;
      if constexpr (C.grouping == Grouping::Batched) {
        tile.group = index / (columns * rows);
        index %= columns * rows;
      }
      tile.row_begin = 0;
      tile.k_begin = 0;
      tile.scale_tiles = 0;
      tile.n = gemm_.n;
      tile.k = gemm_.k;
      raster_.place(tile, index, rows, columns, gemm_.m);
      if constexpr (C.grouping == Grouping::RowGroups) {
        // The blocks of a cluster share B, so the first row of the cluster tile names the group of both.
        tile.group = gemm_.sizes[tile.row / cluster_tile_rows(C) * cluster_tile_rows(C)];
        if (tile.group < 0 || tile.group >= gemm_.groups) continue;
      }
      return true;
    }
    return false;
  }

  MOXIE_DEVICE bool next_of_walk(Tile& tile) {
    if constexpr (kQueued) {
      if (!ask_queue()) return false;
      walk_.rewind(next_);  // nothing says that a queue's numbers only grow
    }
    if (!walk_.template seek<kQueued>(next_)) return false;
    uint32_t index = next_;
    const int lane = walk_.find_lane(index);
    take();
    walk_.describe(tile, lane, index, raster_);
    return true;
  }

  // Makes next_ the cluster tile that the queue names; the first one is the cluster's own. False when there is none.
  MOXIE_DEVICE bool ask_queue() {
    if constexpr (kQueued) {
      if (!first_) return queue_.next(next_);
      first_ = false;
    }
    return true;
  }
  MOXIE_DEVICE void take() {
    if constexpr (!kQueued) next_ += gridDim.x / C.cluster;
  }

  const GemmParams& gemm_;
  [[no_unique_address]] Queue queue_;
  Raster<C> raster_;
  uint32_t next_;  // the next cluster tile of this block; with a walk counted from the first of the walk's window
  bool first_ = true;
  GroupWalk<C> walk_;
};

}  // namespace moxie::kernel
