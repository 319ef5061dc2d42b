// SPDX-License-Identifier: Apache-2.0
// The issuer: multiplies the stages of a tile into an accumulator in tensor memory.
//
// The contract. One warp has an issuer, of a pair one warp of the first block, and calls it with the tiles that its
// scheduler gives. One thread of the warp issues for both blocks.
//
//   Issuer(ring, accumulators, stages, tensor)
//     Whole warp. `tensor` is the address of the allocation in tensor memory.
//   void multiply(const Tile& tile)
//     Whole warp. Issues the products of the tile's Stages::count(tile.k) stages into the next accumulator. Products
//     are still under way when it returns. A tile without any K takes no stage and no accumulator.
//
// It waits for `stored` of the accumulator, which the epilogue completes, and for `full` of each stage. When the tensor
// cores have read a stage, tcgen05.commit completes the stage's `empty`, and when the last product is there the
// accumulator's `computed`, both in every block. It uses no named barrier.
//
// The tensor cores execute copies and products in the order of issue. That is why the scales of a stage may replace
// those of the stage before in tensor memory without a wait.
#pragma once
#include "moxie/blackwell/stages.cuh"

namespace moxie::kernel {

template <BlackwellConfig C>
class BlackwellIssuer {
  using Stage = Stages<C>;
  using Ring = typename Stage::Ring;
  using Accumulators = typename Stage::Accumulators;
  using Group = typename Stage::Group;
  using Format = typename Stage::Format;
  static constexpr int kHalves = Stage::kHalves;
  static constexpr TensorLayout kTensor = tensor_layout(C);
  // The operand whose rows are the accumulator's rows, and the one whose rows are its columns: bytes of a stage, and
  // tiles of scales for each of Stage::kScaleTiles.
  static constexpr int kRowBytes = C.swap_ab ? Stage::kBytesB : Stage::kBytesA;
  static constexpr int kColumnBytes = C.swap_ab ? Stage::kBytesA : Stage::kBytesB;
  static constexpr int kRowScaleBytes = C.swap_ab ? Stage::kScaleBytesB : Stage::kScaleBytesA;
  static constexpr int kColumnScaleBytes = C.swap_ab ? Stage::kScaleBytesA : Stage::kScaleBytesB;
  static constexpr int kRowScaleTiles = C.swap_ab ? b_scale_tiles(C) * kHalves : a_scale_tiles(C);
  static constexpr int kColumnScaleTiles = C.swap_ab ? a_scale_tiles(C) : b_scale_tiles(C) * kHalves;

 public:
  MOXIE_DEVICE BlackwellIssuer(const Ring& ring, const Accumulators& accumulators, const Stage& stages, uint32_t tensor)
      : ring_(ring),
        accumulators_(accumulators),
        rows_(operand_descriptor(C.swap_ab ? stages.b : stages.a)),
        columns_(operand_descriptor(C.swap_ab ? stages.a : stages.b)),
        row_scales_(scale_descriptor(C.swap_ab ? stages.b_scales : stages.a_scales)),
        column_scales_(scale_descriptor(C.swap_ab ? stages.a_scales : stages.b_scales)),
        tensor_(tensor) {}

  MOXIE_DEVICE void multiply(const Tile& tile) {
    const uint32_t count = Stage::count(tile.k);
    if (count == 0) return;
    if (elect()) {
      const uint32_t d = tensor_ + accumulator_.stage * accumulator_columns(C);
      const FirstScales first(tile);
      const uint32_t instruction = Format::instruction(128 * C.cluster, has_half_group(C) && Stage::kWholeColumns > 0
                                                                            ? Stage::kWholeColumns
                                                                            : Stage::product_columns(tile));
      accumulators_.wait_stored(accumulator_);
      for (uint32_t i = 0; i < count; ++i) {
        ring_.wait_full(at_);
        multiply_stage(instruction, d, tile.k - static_cast<int32_t>(i) * Stage::kElements, i > 0, first);
        commit(ring_.empty + at_.stage);
        at_.advance();
      }
      commit(accumulators_.computed + accumulator_.stage);
    } else {
      at_.advance(count);
    }
    accumulator_.advance();
  }

 private:
  // Which word of four scales belongs to the tile's first 32 rows, within the first tile of scales: of A with swap_ab,
  // of B for each product, and of the half group.
  struct FirstScales {
    MOXIE_DEVICE explicit FirstScales(const Tile& tile) {
      if constexpr (C.swap_ab) a = tile.row % kScaleTileRows / 32;
      if constexpr (has_half_group(C)) half_group = half_group_column(C.block_n, tile.column) % kScaleTileRows / 32;
      if constexpr (kHalves == 2) {
        for (int half = 0; half < 2; ++half) b[half] = Stage::gate_half_row(tile, half) % kScaleTileRows / 32;
      } else if constexpr (Stage::kWholeColumns > 0 && !C.swap_ab) {
        b[0] = Stage::first_column(tile) % kScaleTileRows / 32;
      }
    }
    uint32_t a = 0, b[kHalves] = {}, half_group = 0;
  };

  // Completes the barrier in every block when all that was issued before is done.
  static MOXIE_DEVICE void commit(uint64_t* barrier) {
    if constexpr (C.cluster > 1) {
      constexpr uint16_t kBothBlocks = 3;
      cuda::ptx::tcgen05_commit_multicast(Group{}, barrier, kBothBlocks);
    } else {
      cuda::ptx::tcgen05_commit(Group{}, barrier);
    }
  }

  // Multiplies a stage; `left` is what is left of K from its first element on. Instructions that lie wholly past the
  // end of K are left out.
  MOXIE_DEVICE void multiply_stage(uint32_t instruction, uint32_t d, int32_t left, bool accumulate,
                                   const FirstScales& first) const {
    const uint64_t rows = rows_ + at_.stage * (kRowBytes / 16), columns = columns_ + at_.stage * (kColumnBytes / 16);
    if constexpr (has_scales(C)) {
      const uint64_t row_scales = row_scales_ + at_.stage * (kRowScaleBytes / 16);
      const uint64_t column_scales = column_scales_ + at_.stage * (kColumnScaleBytes / 16);
#pragma unroll
      for (int t = 0; t < Stage::kScaleTiles; ++t) {
        if (t * Stage::kTileK >= left) break;
        const uint32_t to_a = tensor_ + kTensor.a_scales + t * a_scale_columns(C);
        const uint32_t to_b = tensor_ + kTensor.b_scales + t * b_scale_columns(C);
        const uint32_t to_rows = C.swap_ab ? to_b : to_a, to_columns = C.swap_ab ? to_a : to_b;
#pragma unroll
        for (int n = 0; n < kRowScaleTiles; ++n)
          copy_scales(to_rows + 4 * n, row_scales + (n * Stage::kScaleTiles + t) * (kScaleTileBytes / 16));
#pragma unroll
        for (int n = 0; n < kColumnScaleTiles; ++n)
          copy_scales(to_columns + 4 * n, column_scales + (n * Stage::kScaleTiles + t) * (kScaleTileBytes / 16));
        const uint32_t to_half_group = to_columns + 4 * kColumnScaleTiles;
        if constexpr (has_half_group(C)) {
          copy_scales(to_half_group,
                      column_scales + (kColumnScaleTiles * Stage::kScaleTiles + t) * (kScaleTileBytes / 16));
        }
#pragma unroll
        for (int s = 0; s < Format::kScaleSteps; ++s) {
          const int step = t * Format::kScaleSteps + s;
          if (step * Format::kStepElements >= left) break;
#pragma unroll
          for (int half = 0; half < kHalves; ++half) {
            // Where the half of B begins: its rows in the stage, and its scales in tensor memory.
            const uint64_t half_rows = half * (b_box_rows(C) * kStageRowBytes / 16);
            const uint32_t half_scales = half * 4 * b_scale_tiles(C) + first.b[half];
            if constexpr (!has_half_group(C) || Stage::kWholeColumns > 0) {
              Format::multiply(Group{}, d + half * (accumulator_columns(C) / 2),
                               rows + step * 2 + (C.swap_ab ? half_rows : 0),
                               columns + step * 2 + (C.swap_ab ? 0 : half_rows), instruction, step,
                               to_rows + (C.swap_ab ? half_scales : 0),
                               to_columns + (C.swap_ab ? first.a : half_scales), accumulate || step > 0);
            }
          }
          if constexpr (has_half_group(C)) {
            // An instruction wants the scales of neighboring columns side by side in tensor memory. Those of the half
            // group are not beside the others, so it takes an instruction of its own.
            Format::multiply(Group{}, d + Stage::kWholeColumns, rows + step * 2,
                             columns + step * 2 + Stage::kWholeColumns * (kStageRowBytes / 16),
                             Format::instruction(128, 16), step, to_rows, to_half_group + first.half_group,
                             accumulate || step > 0);
          }
        }
      }
    } else {
#pragma unroll
      for (int step = 0; step < Stage::kElements / Format::kStepElements; ++step) {
        if (step * Format::kStepElements >= left) break;
        Format::multiply(Group{}, d, rows + step * 2, columns + step * 2, instruction, accumulate || step > 0);
      }
    }
  }
  static MOXIE_DEVICE void copy_scales(uint32_t to, uint64_t tile) {
    cuda::ptx::tcgen05_cp_32x128b_warpx4(Group{}, to, tile);
  }

  const Ring& ring_;
  const Accumulators& accumulators_;
  // Descriptors of the first stage: of the operand that gives the accumulator's rows, and of the one of its columns.
  uint64_t rows_, columns_, row_scales_, column_scales_;
  uint32_t tensor_;
  typename Ring::Position at_;
  typename Accumulators::Position accumulator_;
};

}  // namespace moxie::kernel
