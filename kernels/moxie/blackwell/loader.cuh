// SPDX-License-Identifier: Apache-2.0
// The loader: fills the ring of stages with A, B and their scales by TMA.
//
// The contract. One warp of every block has a loader, and calls it with the tiles that its scheduler gives.
//
//   Loader(gemm, scales, ring, stages, maps, slots)
//     Whole warp. `scales` is null where the operands have none. `maps` and `slots` are for OperandMaps.
//   void load(const Tile& tile)
//     Whole warp, behind griddepcontrol.wait. Issues the copies of the tile's Stages::count(tile.k) stages, in the
//     order in which the issuer takes them. Copies are still under way when it returns.
//
// For each stage it waits for `empty` of this block, which the issuer completes, and arrives once at `full`, of a pair
// at that of the first block, with the bytes that the copies of this block will bring. It uses no named barrier.
//
// Both blocks of a pair load the same number of stages and bytes, whatever part of their tile exists: what lies past
// the end of a tensor arrives as zeros. A tile without any K takes no stage.
#pragma once
#include "moxie/blackwell/gathered_rows.cuh"
#include "moxie/blackwell/scale_loader.cuh"

namespace moxie::kernel {

template <BlackwellConfig C>
class BlackwellLoader {
  using Stage = Stages<C>;
  using Ring = typename Stage::Ring;
  using Format = typename Stage::Format;
  using Maps = OperandMaps<C>;

 public:
  MOXIE_DEVICE BlackwellLoader(const GemmParams& gemm, const ScaleParams* scales, const Ring& ring, const Stage& stages,
                               uint8_t* maps, uint8_t* slots)
      : gemm_(gemm),
        scales_(scales),
        ring_(ring),
        stages_(stages),
        scale_loader_(gemm, scales),
        rank_(blockIdx.x % C.cluster),
        maps_(gemm, scales, maps, slots) {}

  MOXIE_DEVICE void load(const Tile& tile) {
    const uint32_t count = Stage::count(tile.k);
    if constexpr (operand_maps(C) > 0) {
      if (count == 0) return;
      maps_.prepare(tile, count, ring_);
    }
    if constexpr (C.gather) {
      load_gathered(tile, count);
    } else if (elect()) {
      for (uint32_t i = 0; i < count; ++i) {
        ring_.wait_empty(at_);
        full_ = ring_.expect(at_, Stage::kBytesA + Stage::kBytesB + Stage::kScaleBytesA + Stage::kScaleBytesB);
        load_a(tile, i);
        load_b(tile, i);
        if constexpr (has_scales(C)) {
          const int32_t k = i * Stage::kScaleTiles;
          scale_loader_.load_a(stages_.a_scales + at_.stage * Stage::kScaleBytesA, tile, k, maps_, full_);
          scale_loader_.load_b(stages_.b_scales + at_.stage * Stage::kScaleBytesB, tile, k, maps_, full_);
        }
        at_.advance();
      }
    } else {
      at_.advance(count);
    }
  }

 private:
  // Whole warp. Every lane waits for a stage and issues its part of A, and one issues B.
  MOXIE_DEVICE void load_gathered(const Tile& tile, uint32_t count) {
    gathered_.begin(gemm_.gather, tile, first_row(tile));
    for (uint32_t i = 0; i < count; ++i) {
      ring_.wait_empty(at_);
      if (elect()) {
        full_ = ring_.expect(at_, Stage::kBytesA + Stage::kBytesB);
        load_b(tile, i);
      }
      gathered_.copy(stages_.a + at_.stage * Stage::kBytesA, gemm_.a, i * Format::kRowUnits, ring_.filled(at_));
      at_.advance();
    }
  }

  // The row of the tile where this block's part of A begins. With swap_ab a pair's blocks load one half each.
  MOXIE_DEVICE int32_t first_row(const Tile& tile) const {
    return C.swap_ab ? rank_ * Stage::product_columns(tile) / C.cluster : 0;
  }

  // The tile's i-th stage of A.
  MOXIE_DEVICE void load_a(const Tile& tile, int32_t i) const {
    uint8_t* to = stages_.a + at_.stage * Stage::kBytesA;
    const int32_t k = i * Format::kRowUnits;
    const int32_t row = tile.row_begin + tile.row + first_row(tile);
    if constexpr (C.grouping == Grouping::Batched || C.grouping == Grouping::Masked) {
      copy_to_stage<C>(to, &gemm_.a, {k, row, tile.group}, full_);
    } else {
      copy_to_stage<C>(to, maps_.find(Maps::kA, gemm_.a), {k, row}, full_);
    }
  }

  // The tile's i-th stage of B. Without swap_ab a pair's blocks load one half of B's tile each; with it they have tiles
  // of their own.
  MOXIE_DEVICE void load_b(const Tile& tile, int32_t i) const {
    uint8_t* to = stages_.b + at_.stage * Stage::kBytesB;
    const int32_t k = i * Format::kRowUnits;
    if constexpr (has_half_group(C)) {
      if constexpr (Stage::kWholeColumns > 0)
        load_b_rows(to, maps_.find(Maps::kB, gemm_.b), tile, k, whole_groups_column(tile.column));
      load_b_rows(to + Stage::kWholeColumns * kStageRowBytes, maps_.find(Maps::kHalfGroup, scales_->half_group_values),
                  tile, k, half_group_column(C.block_n, tile.column));
    } else {
      const int32_t first = C.swap_ab ? 0 : rank_ * b_box_rows(C);
#pragma unroll
      for (int half = 0; half < Stage::kHalves; ++half) {
        load_b_rows(to + half * b_box_rows(C) * kStageRowBytes, maps_.find(Maps::kB, gemm_.b), tile, k,
                    first + (Stage::kHalves == 2 ? Stage::gate_half_row(tile, half) : tile.column));
      }
    }
  }

  // One box of B's rows from the one of column `column` of the product.
  MOXIE_DEVICE void load_b_rows(uint8_t* to, const void* map, const Tile& tile, int32_t k, int32_t column) const {
    if constexpr (is_gated(C.activation) && Stage::kHalves == 1) {
      if constexpr (has_one_b(C.grouping)) {
        copy_to_stage<C>(to, map, {k, 0, 0, column / 16}, full_);
      } else {
        copy_to_stage<C>(to, map, {k, 0, 0, column / 16, tile.group}, full_);
      }
    } else if constexpr (has_one_b(C.grouping)) {
      copy_to_stage<C>(to, map, {k, column}, full_);
    } else {
      copy_to_stage<C>(to, map, {k, column, tile.group}, full_);
    }
  }

  const GemmParams& gemm_;
  const ScaleParams* scales_;
  const Ring& ring_;
  const Stage& stages_;
  ScaleLoader<C> scale_loader_;
  int32_t rank_;  // of this block in its cluster
  Maps maps_;
  BlackwellGatheredRows<C> gathered_;
  uint64_t* full_ = nullptr;  // barrier of the stage that is being filled
  typename Ring::Position at_;
};

}  // namespace moxie::kernel
