// Which tile a block works on next. The grid is persistent: cluster c takes the units c, c + clusters, ... of the whole
// problem, a unit being the tiles that the blocks of a cluster compute together. Sizes come from device memory only and
// are clamped to the extents the host gave. Every warp that asks gets the same sequence; all 32 lanes ask together.
//
// Within a group, units run along the columns of a panel of raster_panel unit columns, then down the rows, so that the
// panel of B stays in L2 while A passes by.
#pragma once
#include "moxie/config.h"
#include "moxie/tensor_map.cuh"

namespace moxie::kernel {

// One block's tile.
struct Tile {
  int32_t group;
  int32_t row;        // first row, within the group (RowGroups: within A)
  int32_t rows;       // of the group from `row` on: may exceed the tile, or be <= 0 for the second block of a cluster
  int32_t row_begin;  // Offsets: row of A where the group begins, else 0
  int32_t column;     // first column; may lie past n for the second block of a cluster
  int32_t n;          // columns of the product
  int32_t k;
  int32_t k_begin;      // KGroups: where the group begins along K, else 0
  int32_t scale_tiles;  // of the groups before. Offsets, where A or an output has scales: tiles of rows; KGroups, where
                        // the operands have: tiles along K; else 0
  bool pair;            // Multicast::Either: the cluster's other tile is above or below this one, and B is shared
  MOXIE_DEVICE uint32_t k_tiles() const { return (static_cast<uint32_t>(k) + 63) / 64; }
};

MOXIE_DEVICE int32_t clamp(int32_t value, int32_t low, int32_t high) { return min(max(value, low), high); }

// Units are dealt out to the blocks in turn.
struct NoQueue {};

// Queue: NoQueue, or where the units of a block come from after its first (LaunchQueue in blackwell/launch_queue.cuh).
template <auto C, class Queue = NoQueue>
class Scheduler {
  static constexpr bool kHasEnds = C.grouping == Grouping::Offsets || C.grouping == Grouping::KGroups;
  static constexpr bool kWalksGroups = kHasEnds || C.grouping == Grouping::Masked || C.grouping == Grouping::Pointers;
  static constexpr bool kCountsScales =
      C.grouping == Grouping::Offsets ? has_scales(C) || C.quantized : has_scales(C) && kHasEnds;
  static constexpr int kNUnit = gate_halves(C) == 2 ? 64 : is_gated(C.activation) ? 16 : 8;
  static constexpr int kUnitRows = cluster_tile_rows(C);
  static constexpr int kUnitColumns = cluster_tile_columns(C);
  static constexpr bool kPairs = pairs_rows(C);
  static_assert(!kPairs || C.grouping == Grouping::Offsets || C.grouping == Grouping::Masked);
  // Groups that a lane holds: with four, 128 groups cost one round trip to memory and one sum over the warp.
  static constexpr bool kDecodeTile = has_decode_tile(C);
  static constexpr int kOwn = kDecodeTile && C.grouping != Grouping::Pointers ? 4 : 1;
  static constexpr int kWindow = 32 * kOwn;

 public:
  MOXIE_DEVICE explicit Scheduler(const GemmParams& gemm, const Queue& queue = {})
      : gemm_(gemm),
        queue_(queue),
        lane_(threadIdx.x % 32),
        rank_(blockIdx.x % C.cluster),
        unit_(blockIdx.x / C.cluster) {}

  // Begins to read what the first next() needs.
  MOXIE_DEVICE void fetch() {
    if constexpr (kWalksGroups) fetch_window(0);
  }

  // The next tile of this block; false, and never again true, when there is none.
  MOXIE_DEVICE bool next(Tile& tile) {
    if constexpr (kWalksGroups) {
      return next_of_walk(tile);
    } else {
      const uint32_t columns = unit_columns(gemm_.n);
      const uint32_t rows = unit_rows(gemm_.m);
      const uint32_t units = columns * rows * (C.grouping == Grouping::Batched ? gemm_.groups : 1);
      while (kQueued || unit_ < units) {
        if constexpr (kQueued) {
          if (!find_unit() || unit_ >= units) break;
        }
        uint32_t unit = unit_;
        leave_unit();
        tile.group = 0;
        if constexpr (C.grouping == Grouping::Batched) {
          tile.group = unit / (columns * rows);
          unit %= columns * rows;
        }
        tile.row_begin = 0;
        tile.k_begin = 0;
        tile.scale_tiles = 0;
        tile.n = gemm_.n;
        tile.k = gemm_.k;
        place(tile, unit, rows, columns, gemm_.m);
        if constexpr (C.grouping == Grouping::RowGroups) {
          // The blocks of a cluster share B, so the unit's first row names the group of all.
          tile.group = gemm_.sizes[tile.row / kUnitRows * kUnitRows];
          if (tile.group < 0 || tile.group >= gemm_.groups) continue;
        }
        return true;
      }
      return false;
    }
  }

 private:
  static constexpr bool kQueued = !cuda::std::is_same_v<Queue, NoQueue>;

  // unit_ is the next one to compute; false when the queue has none.
  MOXIE_DEVICE bool find_unit() {
    if constexpr (kQueued) {
      if (!first_) return queue_.next(unit_);
      first_ = false;
    }
    return true;
  }
  MOXIE_DEVICE void leave_unit() {
    if constexpr (!kQueued) unit_ += gridDim.x / C.cluster;
  }

  static MOXIE_DEVICE uint32_t unit_rows(int32_t m) { return (static_cast<uint32_t>(m) + kUnitRows - 1) / kUnitRows; }
  static MOXIE_DEVICE uint32_t unit_columns(int32_t n) {
    return (static_cast<uint32_t>(n) + kUnitColumns - 1) / kUnitColumns;
  }

  // Coordinates of a group's unit.
  MOXIE_DEVICE void place(Tile& tile, uint32_t unit, uint32_t rows, uint32_t columns, int32_t m) const {
    if constexpr (kPairs) {
      place_in_pairs(tile, unit, rows, (static_cast<uint32_t>(tile.n) + C.block_n - 1) / C.block_n, m);
      return;
    }
    uint32_t row = 0, column = unit;
    if (!kDecodeTile || rows > 1) {  // divisions take 300 cycles
      const uint32_t panel_columns = gemm_.panel_columns;
      const uint32_t panel = unit / (panel_columns * rows);
      const uint32_t first = panel * panel_columns;
      const uint32_t width = min(panel_columns, columns - first);
      const uint32_t within = unit - first * rows;
      row = within / width;
      column = first + within % width;
    }
    tile.row = static_cast<int32_t>(row * kUnitRows);
    tile.column = static_cast<int32_t>(column * kUnitColumns);
    if constexpr (rank_rows(C) > 0) tile.row += rank_ * rank_rows(C);
    if constexpr (rank_columns(C) > 0) tile.column += rank_ * rank_columns(C);
    tile.rows = m - tile.row;
  }

  // The same with Multicast::Either: in each panel the pairs of rows of tiles come first, unit by unit one column wide,
  // then the odd row, two columns at a time. rows and columns count tiles.
  MOXIE_DEVICE void place_in_pairs(Tile& tile, uint32_t unit, uint32_t rows, uint32_t columns, int32_t m) const {
    uint32_t row = 0, column = 2 * unit + rank_;
    tile.pair = false;
    if (!kDecodeTile || rows > 1) {
      const uint32_t panel_columns = 2 * gemm_.panel_columns;
      const uint32_t panel = unit / (panel_columns * rows / 2);
      const uint32_t first = panel * panel_columns;
      const uint32_t width = min(panel_columns, columns - first);
      const uint32_t within = unit - first * rows / 2;
      const uint32_t paired = rows / 2 * width;
      tile.pair = within < paired;
      if (tile.pair) {
        row = within / width * 2 + rank_;
        column = first + within % width;
      } else {
        row = rows - 1;
        column = first + (within - paired) * 2 + rank_;
      }
    }
    tile.row = static_cast<int32_t>(row * C.block_m);
    tile.column = static_cast<int32_t>(column * C.block_n);
    tile.rows = m - tile.row;
  }

  // Lane l holds the groups window_ + l kOwn and on. The units of the window are numbered by their inclusive prefix
  // sum.
  MOXIE_DEVICE bool next_of_walk(Tile& tile) {
    if constexpr (kQueued) {
      if (!find_unit()) return false;
      // Nothing says that a queue's units only grow.
      if (unit_ < before_) {
        before_ = ends_ = 0;
        last_end_ = last_scales_ = 0;
        window_ = -kWindow;
      }
      unit_ -= before_;
    }
    for (;;) {
      const uint32_t units = __shfl_sync(~0u, ends_, 31);
      if (unit_ < units) break;
      unit_ -= units;
      if constexpr (kQueued) before_ += units;
      window_ += kWindow;
      if (window_ >= gemm_.groups) {
        ends_ = 0;
        return false;
      }
      load_window();
    }
    const int lane = __ffs(__ballot_sync(~0u, unit_ < ends_)) - 1;
    const uint32_t before = __shfl_sync(~0u, ends_, lane > 0 ? lane - 1 : 0);
    uint32_t unit = unit_ - (lane > 0 ? before : 0);
    leave_unit();
    tile.group = window_ + lane * kOwn;
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
    for (int i = 1; i < kOwn; ++i) {
      const int32_t next = __shfl_sync(~0u, sizes_[i], lane);
      const uint32_t units = units_of(tile.group, size, tile.n);
      const bool later = unit >= units;
      if (later) unit -= units, ++tile.group;
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
    place(tile, unit, unit_rows(m), unit_columns(tile.n), m);
    return true;
  }

  MOXIE_DEVICE void fetch_window(int32_t window) {
    fetched_ = window;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int group = window + lane_ * kOwn + i;
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

  // Extents of this lane's groups, clamped, and the units and tiles of scales up to them.
  MOXIE_DEVICE void load_window() {
    const int group = window_ + lane_ * kOwn;
    if (!kDecodeTile || fetched_ != window_) fetch_window(window_);
    fetched_ = -1;  // what was read becomes extents here
    if constexpr (kHasEnds) {
      // Ends never decrease and never pass m (along K: k, in whole units), whatever the array says.
      int32_t end = 0;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        int32_t own = clamp(sizes_[i], 0, C.grouping == Grouping::Offsets ? gemm_.m : gemm_.k);
        if constexpr (C.grouping == Grouping::KGroups) own = own / k_unit(C) * k_unit(C);
        sizes_[i] = end = max(own, end);
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
      for (int i = 0; i < kOwn; ++i) {
        const int32_t own = i == kOwn - 1 ? end : max(sizes_[i], before);
        sizes_[i] = own - before;
        before = own;
      }
    } else if constexpr (C.grouping == Grouping::Masked) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) sizes_[i] = clamp(sizes_[i], 0, gemm_.m);
    } else {
      n_ = clamp(n_, 0, gemm_.n);
      k_ = clamp(k_, 0, gemm_.k);
      const bool good =
          group < gemm_.groups && n_ % kNUnit == 0 && (!has_scales(C) || k_ % k_unit(C) == 0) && usable(group);
      sizes_[0] = good ? clamp(sizes_[0], 0, gemm_.m) : 0;
    }
    uint32_t units = 0;
    int32_t scales = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      units += units_of(group + i, sizes_[i], C.grouping == Grouping::Pointers ? n_ : gemm_.n);
      if constexpr (kCountsScales) scales += scale_tiles(sizes_[i]);
    }
    ends_ = sum_of_lanes(units);
    if constexpr (kCountsScales) {
      const int32_t end = sum_of_lanes(scales);
      scales_ = last_scales_ + end - scales;
      last_scales_ += __shfl_sync(~0u, end, 31);
    }
  }

  // Of this lane and those before.
  template <class Int>
  MOXIE_DEVICE Int sum_of_lanes(Int value) const {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const Int other = __shfl_up_sync(~0u, value, step);
      if (lane_ >= step) value += other;
    }
    return value;
  }

  // size: the group's rows; KGroups: its extent along K.
  MOXIE_DEVICE uint32_t units_of(int32_t group, int32_t size, int32_t n) const {
    if constexpr (C.grouping == Grouping::KGroups) {
      return group < gemm_.groups ? unit_rows(gemm_.m) * unit_columns(n) : 0;
    } else if constexpr (kPairs) {
      const uint32_t columns = (static_cast<uint32_t>(n) + C.block_n - 1) / C.block_n, rows = unit_rows(size);
      return rows / 2 * columns + rows % 2 * ((columns + 1) / 2);
    } else {
      return unit_rows(size) * unit_columns(n);
    }
  }
  // Every group's scales begin with a tile of their own.
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
             valid_leading_dimension(arrays.lda[group]) && valid_leading_dimension(arrays.ldb[group]);
      if constexpr (has_scales(C)) {
        good = good && valid_map_address(gemm_.a_scale_pointers[group]) &&
               valid_map_address(gemm_.b_scale_pointers[group]);
      }
    }
    return good;
  }

  // Below 2^34 elements the largest stride made of it, 32 ldb bytes, stays below 2^40.
  static MOXIE_DEVICE bool valid_leading_dimension(int64_t elements) {
    return elements > 0 && elements % k_unit(C) == 0 && elements < (int64_t{1} << 34);
  }

  const GemmParams& gemm_;
  [[no_unique_address]] Queue queue_;
  int32_t lane_;
  int32_t rank_;         // of this block in its cluster
  uint32_t unit_;        // the next one, counted from the window's first
  bool first_ = true;    // queued: the block's own unit
  uint32_t before_ = 0;  // queued: units before the window's first
  int32_t window_ = -kWindow;
  int32_t fetched_ = -1;  // window whose sizes were read
  uint32_t ends_ = 0;     // one past the last unit of this lane's groups
  int32_t sizes_[kOwn];   // rows of this lane's groups; KGroups: their extents along K
  int32_t begin_ = 0;     // where this lane's first group begins
  int32_t last_end_ = 0;
  int32_t scales_ = 0;       // tiles before this lane's first group
  int32_t last_scales_ = 0;  // and before the next window
  int32_t n_ = 0;            // Pointers
  int32_t k_ = 0;
};

}  // namespace moxie::kernel
