// SPDX-License-Identifier: Apache-2.0
// Rows of A that a list names (BlackwellConfig::gather). The copy engine brings four of them with each copy (5.5.3.4,
// tiled::gather4), into the same swizzled tile that a box of consecutive rows would fill. Every lane of the loader has
// four or eight rows of the tile, looks them up once and issues their copies for each stage.
#pragma once
#include "moxie/blackwell/stages.cuh"

namespace moxie::kernel {

template <BlackwellConfig C>
class BlackwellGatheredRows {
  static_assert(!C.gather || (C.grouping == Grouping::Offsets && !has_scales(C)));
  static constexpr int kQuads = a_box_rows(C) / 4;       // of a block's tile
  static constexpr int kLaneQuads = (kQuads + 31) / 32;  // of a lane
  static constexpr int kQuadBytes = 4 * kStageRowBytes;
  static constexpr int32_t kNone = -1;  // lies outside the tensor, so that zeros arrive

 public:
  // Whole warp: looks up the rows from the tile's row `first` on. One past the group's last, or whose source does not
  // exist, becomes zeros.
  MOXIE_DEVICE void begin(const GatherParams& gather, const Tile& tile, int32_t first) {
    const int32_t* list = gather.rows + (tile.row_begin + tile.row);
#pragma unroll
    for (int j = 0; j < kLaneQuads; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t row = first + quad(j) * 4 + i;
        sources_[j][i] = kNone;
        if (quad(j) >= kQuads || row >= tile.rows) continue;
        const uint32_t source = static_cast<uint32_t>(list[row]) / gather.divisor;
        if (source < gather.count) sources_[j][i] = static_cast<int32_t>(source);
      }
    }
  }

  // Whole warp: begins to copy the rows from unit `k` of K on into the stage whose tile of A is `stage`. `map` has
  // boxes of one row. The copies complete `full`, which in a pair lies in the first block.
  MOXIE_DEVICE void copy(uint8_t* stage, const TensorMap& map, int32_t k, uint64_t* full) const {
#pragma unroll
    for (int j = 0; j < kLaneQuads; ++j) {
      if (quad(j) >= kQuads) continue;
      uint8_t* to = stage + quad(j) * kQuadBytes;
      const int32_t coordinates[5] = {k, sources_[j][0], sources_[j][1], sources_[j][2], sources_[j][3]};
      if constexpr (C.cluster > 1) {
        cuda::ptx::cp_async_bulk_tensor_tile_gather4(cuda::ptx::space_shared, cuda::ptx::space_global,
                                                     CtaGroup<C.cluster>{}, to, &map, coordinates, full);
      } else {
        cuda::ptx::cp_async_bulk_tensor_tile_gather4(cuda::ptx::space_shared, cuda::ptx::space_global, to, &map,
                                                     coordinates, full);
      }
    }
  }

 private:
  static MOXIE_DEVICE int32_t quad(int j) { return static_cast<int32_t>(threadIdx.x % 32) + 32 * j; }

  int32_t sources_[kLaneQuads][4];
};

}  // namespace moxie::kernel
