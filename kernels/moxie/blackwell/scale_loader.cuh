// SPDX-License-Identifier: Apache-2.0
// The loader's part for scales: which tiles of scales belong to a stage, and the copies that bring them.
#pragma once
#include "moxie/blackwell/operand_maps.cuh"

namespace moxie::kernel {

// One tensor copy of the loader into this block's shared memory. In a pair `full` lies in the first block.
template <BlackwellConfig C, int kRank>
MOXIE_DEVICE void copy_to_stage(uint8_t* to, const void* map, const int32_t (&coordinates)[kRank], uint64_t* full) {
  if constexpr (C.cluster > 1) {
    cuda::ptx::cp_async_bulk_tensor(cuda::ptx::space_shared, cuda::ptx::space_global, CtaGroup<C.cluster>{}, to, map,
                                    coordinates, full);
  } else {
    cuda::ptx::cp_async_bulk_tensor(cuda::ptx::space_cluster, cuda::ptx::space_global, to, map, coordinates, full);
  }
}

// `k` counts tiles of scales along K. Those past the end of K are read as zero and used by no instruction.
template <BlackwellConfig C>
class ScaleLoader {
  using Stage = Stages<C>;
  using Maps = OperandMaps<C>;
  static constexpr bool kFlat = has_flat_scales(C.grouping);
  static constexpr bool kStacked = C.grouping == Grouping::Batched || C.grouping == Grouping::Masked;

 public:
  MOXIE_DEVICE ScaleLoader(const GemmParams& gemm, const ScaleParams* scales) : gemm_(gemm), scales_(scales) {}

  // Called by one thread: the scales of A's rows in the stage at `to`.
  MOXIE_DEVICE void load_a(uint8_t* to, const Tile& tile, int32_t k, const Maps& maps, uint64_t* full) const {
    const int32_t row_tile = (C.grouping == Grouping::Offsets ? tile.scale_tiles : 0) + tile.row / kScaleTileRows;
    if constexpr (kFlat) {
#pragma unroll
      for (int t = 0; t < a_scale_tiles(C); ++t) {
        copy_to_stage<C>(to + t * Stage::kRowTilesBytes, maps.find(Maps::kScalesA, scales_->a),
                         {0, tile.row % 32, flat_tile(tile, gemm_.m, row_tile + t, k)}, full);
      }
    } else if constexpr (C.swap_ab) {
      // The scale of the tile's first row must come to lane 0, so the box begins in the middle of a tile of scales. It
      // keeps its word of four scales, since boxes begin at multiples of 16 bytes (5.5.3.1); the issuer skips words.
      if constexpr (kStacked) {
        copy_to_stage<C>(to, &scales_->a, {0, tile.row % 32, k, row_tile, tile.group}, full);
      } else {
        copy_to_stage<C>(to, &scales_->a, {0, tile.row % 32, k, row_tile}, full);
      }
    } else if constexpr (kStacked) {
      copy_to_stage<C>(to, &scales_->a, {0, k, row_tile, tile.group}, full);
    } else {
      copy_to_stage<C>(to, &scales_->a, {0, k, row_tile}, full);
    }
  }

  // Called by one thread: the scales of B's rows in the stage at `to`. Every block of a pair needs those of all columns
  // of the accumulator.
  MOXIE_DEVICE void load_b(uint8_t* to, const Tile& tile, int32_t k, const Maps& maps, uint64_t* full) const {
    constexpr int kTiles = b_scale_tiles(C);
    const int32_t row_tile = Stage::first_column(tile) / kScaleTileRows;
    if constexpr (Stage::kHalves == 2) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint8_t* const to_half = to + half * kTiles * Stage::kRowTilesBytes;
        const int32_t first = Stage::gate_half_row(tile, half) / kScaleTileRows;
        if constexpr (kFlat) {
#pragma unroll
          for (int t = 0; t < kTiles; ++t) {
            copy_to_stage<C>(to_half + t * Stage::kRowTilesBytes, maps.find(Maps::kScalesB, scales_->b),
                             {0, 0, flat_tile(tile, tile.n, first + t, k)}, full);
          }
        } else {
          copy_to_stage<C>(to_half, &scales_->b, {0, k, first, tile.group}, full);
        }
      }
    } else if constexpr (is_gated(C.activation)) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        copy_to_stage<C>(to + t * Stage::kRowTilesBytes, maps.find(Maps::kScalesB, scales_->b),
                         {0, 0, 0, 0, flat_tile(tile, tile.n, row_tile + t, k)}, full);
      }
    } else if constexpr (kFlat) {
      const void* const flat = maps.find(Maps::kScalesB, scales_->b);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        copy_to_stage<C>(to + t * Stage::kRowTilesBytes, flat, {0, 0, flat_tile(tile, tile.n, row_tile + t, k)}, full);
      }
      if constexpr (has_half_group(C)) {
        const int32_t row = half_group_column(C.block_n, tile.column);
        copy_to_stage<C>(to + kTiles * Stage::kRowTilesBytes, flat,
                         {0, row % 32, flat_tile(tile, tile.n, row / kScaleTileRows, k)}, full);
      }
    } else {
      if constexpr (kTiles > 0) copy_to_stage<C>(to, &scales_->b, {0, k, row_tile, tile.group}, full);
      if constexpr (has_half_group(C)) {
        const int32_t row = half_group_column(C.block_n, tile.column);
        copy_to_stage<C>(to + kTiles * Stage::kRowTilesBytes, &scales_->half_group,
                         {0, row % 32, k, row / kScaleTileRows, tile.group}, full);
      }
    }
  }

 private:
  // The number of a tile of scales in a row of all tiles: that in row `row_tile` of tiles, `k` along it, of the tile's
  // group, whose matrix has `rows` rows. The matrices of earlier groups lie before it, except with Pointers.
  static MOXIE_DEVICE int32_t flat_tile(const Tile& tile, int32_t rows, int32_t row_tile, int32_t k) {
    const int32_t k_tiles = (tile.k + Stage::kTileK - 1) / Stage::kTileK;
    const int32_t row_tiles = (rows + kScaleTileRows - 1) / kScaleTileRows;
    const int32_t within = row_tile * k_tiles + k;
    if constexpr (C.grouping == Grouping::Pointers) return within;
    if constexpr (C.grouping == Grouping::KGroups) return tile.scale_tiles * row_tiles + within;
    return tile.group * row_tiles * k_tiles + within;
  }

  const GemmParams& gemm_;
  const ScaleParams* scales_;
};

}  // namespace moxie::kernel
