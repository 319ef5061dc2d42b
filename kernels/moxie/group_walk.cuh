// SPDX-License-Identifier: Apache-2.0
// Finds the group of a cluster tile where sizes are known on the device only (Offsets, Masked, Pointers, KGroups). The
// warp holds a window of groups, a few in each lane. A prefix sum over the lanes numbers the cluster tiles of the
// window's groups, and a ballot finds the lane that has the wanted one.
//
// Sizes are clamped to the extents the host gave: no array, whatever it says, makes a kernel leave its memory.
#pragma once
#include "moxie/raster.cuh"
#include "moxie/tensor_map.cuh"

namespace moxie::kernel {

constexpr bool walks_groups(Grouping g) {
  return g == Grouping::Offsets || g == Grouping::KGroups || g == Grouping::Masked || g == Grouping::Pointers;
}

template <auto C>
class GroupWalk {
  static constexpr bool kHasEnds = C.grouping == Grouping::Offsets || C.grouping == Grouping::KGroups;
  static constexpr bool kCountsScales =
      C.grouping == Grouping::Offsets ? has_scales(C) || C.quantized : has_scales(C) && kHasEnds;
  static constexpr bool kDecodeTile = has_decode_tile(C);
  // With four groups a lane, 128 groups cost one round trip to memory and one sum over the warp.
  static constexpr int kGroupsPerLane = kDecodeTile && C.grouping != Grouping::Pointers ? 4 : 1;
  static constexpr int kWindow = 32 * kGroupsPerLane;
  // What N of every group must be a multiple of.
  static constexpr int kColumnUnit = gate_halves(C) == 2 ? 64 : is_gated(C.activation) ? 16 : 8;

 public:
  MOXIE_DEVICE explicit GroupWalk(const GemmParams& gemm) : gemm_(gemm), lane_(threadIdx.x % 32) {}

  // Begins to read the sizes of the first window.
  MOXIE_DEVICE void fetch() { fetch_window(0); }

  // `index` is a cluster tile, counted from the first of the window. Moves the window on until it holds the tile and
  // counts `index` from its first; false where no group has the tile. With kCountsBack, rewind() may follow.
  template <bool kCountsBack>
  MOXIE_DEVICE bool seek(uint32_t& index) {
    for (;;) {
      const uint32_t count = __shfl_sync(~0u, ends_, 31);
      if (index < count) return true;
      index -= count;
      if constexpr (kCountsBack) before_ += count;
      window_ += kWindow;
      if (window_ >= gemm_.groups) {
        ends_ = 0;
        return false;
      }
      load_window();
    }
  }

  // `index` is a cluster tile, counted from the first of the whole problem. Counts it from the window's first, after
  // going back to the first window where the tile lies before this one.
  MOXIE_DEVICE void rewind(uint32_t& index) {
    if (index < before_) {
      before_ = ends_ = 0;
      last_end_ = last_scales_ = 0;
      window_ = -kWindow;
    }
    index -= before_;
  }

  // The lane that has the window's cluster tile `index`. Counts `index` from the first of the lane's groups.
  MOXIE_DEVICE int find_lane(uint32_t& index) const {
    const int lane = __ffs(__ballot_sync(~0u, index < ends_)) - 1;
    const uint32_t before = __shfl_sync(~0u, ends_, lane > 0 ? lane - 1 : 0);
    index -= lane > 0 ? before : 0;
    return lane;
  }

  // Describes this block's tile in the cluster tile `index` of a lane's groups.
  MOXIE_DEVICE void describe(Tile& tile, int lane, uint32_t index, const Raster<C>& raster) const {
    tile.group = window_ + lane * kGroupsPerLane;
    tile.row_begin = 0;
    tile.k_begin = 0;
    tile.scale_tiles = 0;
    tile.n = gemm_.n;
    tile.k = gemm_.k;
    if constexpr (C.grouping == Grouping::Pointers) {
      tile.n = __shfl_sync(~0u, n_, lane);
      tile.k = __shfl_sync(~0u, k_, lane);
    }
    int32_t begin = 0;
    if constexpr (kHasEnds) begin = __shfl_sync(~0u, begin_, lane);
    if constexpr (kCountsScales) tile.scale_tiles = __shfl_sync(~0u, scales_, lane);
    int32_t size = __shfl_sync(~0u, sizes_[0], lane);
#pragma unroll
    for (int i = 1; i < kGroupsPerLane; ++i) {
      const int32_t next = __shfl_sync(~0u, sizes_[i], lane);
      const uint32_t count = count_tiles(tile.group, size, tile.n);
      const bool later = index >= count;
      if (later) index -= count, ++tile.group;
      if constexpr (kHasEnds) begin += later ? size : 0;
      if constexpr (kCountsScales) tile.scale_tiles += later ? scale_tiles(size) : 0;
      if (later) size = next;
    }
    int32_t m = size;
    if constexpr (C.grouping == Grouping::Offsets) tile.row_begin = begin;
    if constexpr (C.grouping == Grouping::KGroups) {
      tile.k_begin = begin;
      tile.k = size;
      m = gemm_.m;
    }
    raster.place(tile, index, Raster<C>::rows(m), Raster<C>::columns(tile.n), m);
  }

 private:
  MOXIE_DEVICE void fetch_window(int32_t window) {
    fetched_ = window;
#pragma unroll
    for (int i = 0; i < kGroupsPerLane; ++i) {
      const int group = window + lane_ * kGroupsPerLane + i;
      sizes_[i] = 0;
      if (group >= gemm_.groups) continue;
      if constexpr (C.grouping == Grouping::Pointers) {
        const int32_t* sizes = gemm_.arrays.sizes + int64_t{group} * 3;
        sizes_[i] = sizes[0], n_ = sizes[1], k_ = sizes[2];
      } else {
        sizes_[i] = gemm_.sizes[group];
      }
    }
  }

  // Reads the window where fetch() has not, turns what was read into sizes, and sums up cluster tiles and scales.
  MOXIE_DEVICE void load_window() {
    const int group = window_ + lane_ * kGroupsPerLane;
    if (!kDecodeTile || fetched_ != window_) fetch_window(window_);
    fetched_ = -1;
    if constexpr (kHasEnds) {
      ends_to_sizes();
    } else if constexpr (C.grouping == Grouping::Masked) {
#pragma unroll
      for (int i = 0; i < kGroupsPerLane; ++i) sizes_[i] = clamp(sizes_[i], 0, gemm_.m);
    } else {
      n_ = clamp(n_, 0, gemm_.n);
      k_ = clamp(k_, 0, gemm_.k);
      const bool good = group < gemm_.groups && n_ % kColumnUnit == 0 &&
                        (!(has_scales(C) || has_packed_b(C)) || k_ % kScaledUnit == 0) && usable(group);
      sizes_[0] = good ? clamp(sizes_[0], 0, gemm_.m) : 0;
    }
    uint32_t count = 0;
    int32_t scales = 0;
#pragma unroll
    for (int i = 0; i < kGroupsPerLane; ++i) {
      count += count_tiles(group + i, sizes_[i], C.grouping == Grouping::Pointers ? n_ : gemm_.n);
      if constexpr (kCountsScales) scales += scale_tiles(sizes_[i]);
    }
    ends_ = prefix_sum(count);
    if constexpr (kCountsScales) {
      const int32_t end = prefix_sum(scales);
      scales_ = last_scales_ + end - scales;
      last_scales_ += __shfl_sync(~0u, end, 31);
    }
  }

  // sizes_ holds the ends of this lane's groups, and afterwards their sizes. Ends that decrease, or that pass m (along
  // K: k, in whole units), are pulled into order first.
  MOXIE_DEVICE void ends_to_sizes() {
    int32_t end = 0;
#pragma unroll
    for (int i = 0; i < kGroupsPerLane; ++i) {
      int32_t clamped = clamp(sizes_[i], 0, C.grouping == Grouping::Offsets ? gemm_.m : gemm_.k);
      if constexpr (C.grouping == Grouping::KGroups) clamped = clamped / k_unit(C) * k_unit(C);
      sizes_[i] = end = max(clamped, end);
    }
    end = max(end, last_end_);
    bool ordered = false;
    if constexpr (kDecodeTile) ordered = __all_sync(~0u, __shfl_up_sync(~0u, end, 1) <= end);
    if (!ordered) {
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int32_t other = __shfl_up_sync(~0u, end, step);
        if (lane_ >= step) end = max(end, other);
      }
    }
    begin_ = __shfl_up_sync(~0u, end, 1);
    if (lane_ == 0) begin_ = last_end_;
    last_end_ = __shfl_sync(~0u, end, 31);
    int32_t before = begin_;
#pragma unroll
    for (int i = 0; i < kGroupsPerLane; ++i) {
      const int32_t group_end = i == kGroupsPerLane - 1 ? end : max(sizes_[i], before);
      sizes_[i] = group_end - before;
      before = group_end;
    }
  }

  // The sum of the values of this lane and of all lanes before it.
  template <class Int>
  MOXIE_DEVICE Int prefix_sum(Int value) const {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const Int other = __shfl_up_sync(~0u, value, step);
      if (lane_ >= step) value += other;
    }
    return value;
  }

  // Cluster tiles of a group. size: the group's rows; KGroups: its extent along K.
  MOXIE_DEVICE uint32_t count_tiles(int32_t group, int32_t size, int32_t n) const {
    if constexpr (C.grouping == Grouping::KGroups) {
      return group < gemm_.groups ? Raster<C>::count(gemm_.m, n) : 0;
    } else {
      return Raster<C>::count(size, n);
    }
  }
  // Tiles of a group's scales, along the dimension that the groups divide. Every group's scales begin with a new tile.
  static MOXIE_DEVICE int32_t scale_tiles(int32_t size) {
    if constexpr (C.grouping == Grouping::Offsets) {
      return (size + kScaleTileRows - 1) / kScaleTileRows;
    } else {
      return (size + scale_tile_k(C) - 1) / scale_tile_k(C);
    }
  }

  // Whether tensor maps can describe the group's operands.
  MOXIE_DEVICE bool usable(int group) const {
    bool good = true;
    if constexpr (C.bias) good = reinterpret_cast<uint64_t>(gemm_.arrays.bias[group]) % 16 == 0;
    if (k_ > 0) {
      const GroupArrays& arrays = gemm_.arrays;
      good = good && valid_map_address(arrays.a[group]) && valid_map_address(arrays.b[group]) &&
             valid_leading_dimension(arrays.lda[group]);
      if constexpr (!has_packed_b(C)) good = good && valid_leading_dimension(arrays.ldb[group]);
      if constexpr (has_scales(C)) {
        good = good && valid_map_address(gemm_.a_scale_pointers[group]) &&
               valid_map_address(gemm_.b_scale_pointers[group]);
      }
    }
    return good;
  }

  // The largest stride that is made of a leading dimension is 32 ldb bytes. Below 2^34 elements it stays below 2^40.
  static MOXIE_DEVICE bool valid_leading_dimension(int64_t elements) {
    return elements > 0 && elements % k_unit(C) == 0 && elements < (int64_t{1} << 34);
  }

  const GemmParams& gemm_;
  int32_t lane_;
  uint32_t before_ = 0;            // cluster tiles of all groups before the window; counted with kCountsBack only
  int32_t window_ = -kWindow;      // the window's first group
  int32_t fetched_ = -1;           // the first group of a window that was read but not loaded, or -1
  uint32_t ends_ = 0;              // cluster tiles of the window up to and including this lane's last group
  int32_t sizes_[kGroupsPerLane];  // rows of this lane's groups, with KGroups their extents along K; until the window
                                   // is loaded what the array says
  int32_t begin_ = 0;              // where this lane's first group begins
  int32_t last_end_ = 0;           // where the window's last group ends
  int32_t scales_ = 0;             // tiles of scales before this lane's first group
  int32_t last_scales_ = 0;        // tiles of scales before the next window
  int32_t n_ = 0, k_ = 0;          // Pointers: sizes of this lane's group
};

}  // namespace moxie::kernel
