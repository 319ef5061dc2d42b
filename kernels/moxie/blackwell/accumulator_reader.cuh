// SPDX-License-Identifier: Apache-2.0
// Reads the accumulator of a tile from tensor memory, in the fragments of the epilogue.
#pragma once
#include "moxie/arguments.h"
#include "moxie/blackwell/stages.cuh"
#include "moxie/epilogue/sink.cuh"

namespace moxie::kernel {

// What the sums of products of a group are to be multiplied by.
MOXIE_DEVICE float tensor_scale(const ScaleParams& scales, int32_t group) {
  float factor = scales.a_tensor_scale != nullptr ? *scales.a_tensor_scale : 1.0f;
  if (scales.b_tensor_scale != nullptr) factor *= scales.b_tensor_scale[group];
  return factor;
}

// Loads the fragments of a tile. A warp reaches the 32 lanes of its own quarter of tensor memory: 16 rows
// of each of the epilogue's blocks, or with swap_ab 32 columns of the product of all blocks.
template <BlackwellConfig C>
class AccumulatorReader {
  using Stage = Stages<C>;
  static constexpr int kHalves = Stage::kHalves;
  static constexpr int kHalfColumns = accumulator_columns(C) / kHalves;

 public:
  // Rows between the warps' parts of a block, and between the blocks (Chunk).
  static constexpr int kWarpRows = C.swap_ab ? 0 : 32, kBlockRows = 16;

  // `lanes` is the address of the accumulator in the warp's own quarter of tensor memory. `computed` says whether the
  // tile has a product, which one without any K has not. `factor` is used for operands with tensor scales only.
  MOXIE_DEVICE AccumulatorReader(const Tile& tile, uint32_t lanes, bool computed, float factor)
      : lanes_(lanes), factor_(factor), computed_(computed) {
    if constexpr (C.swap_ab) columns_ = tile.k > 0 ? Stage::product_columns(tile) : 0;
  }

  // Whole warp. `first` is where the chunk begins in the tile: its column, with swap_ab its row.
  template <int kColumns>
  MOXIE_DEVICE void load(Fragment<kColumns>& values, int first, int block) const {
    if constexpr (C.swap_ab) {
      load_transposed(values, first + block * kBlockRows);
    } else {
      load_rows(values, first, block);
    }
  }

 private:
  template <int kColumns>
  MOXIE_DEVICE void load_rows(Fragment<kColumns>& values, int first, int block) const {
    if (computed_) {
      load_gate_halves(values, [&](auto& part, int half) {
        tensor_load(part.v, lanes_ + half * kHalfColumns + first / kHalves + tensor_lane(block * kBlockRows));
      });
      scale(values);
    } else {
      values = {};
    }
  }

  // Rows of the product are columns of the accumulator. Those that no product computed are not read.
  template <int kColumns>
  MOXIE_DEVICE void load_transposed(Fragment<kColumns>& values, int column) const {
    if (columns_ - column <= 0) {
      values = {};
      return;
    }
    load_gate_halves(values, [&](auto& part, int half) {
      if (Stage::kSwappedStep == 16 || columns_ - column > 8) {
        tensor_load_transposed<2>(part.v, lanes_ + half * kHalfColumns + column);
      } else {
        tensor_load_transposed<1>(part.v, lanes_ + half * kHalfColumns + column);
      }
    });
    scale(values);
  }

  // Calls load(fragment, half) for each product of the tile. The halves' groups of eight columns alternate then, as the
  // rows do that are gathered from both halves of B.
  template <int kColumns, class Load>
  static MOXIE_DEVICE void load_gate_halves(Fragment<kColumns>& values, Load&& load) {
    if constexpr (kHalves == 1) {
      load(values, 0);
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Fragment<kColumns / 2> part;
        load(part, half);
#pragma unroll
        for (int j = 0; j < kColumns / 16; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) values.v[2 * j + half][i] = part.v[j][i];
        }
      }
    }
  }

  template <int kColumns>
  MOXIE_DEVICE void scale(Fragment<kColumns>& values) const {
    if constexpr (has_tensor_scales(C)) {
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) values.v[j][i] *= factor_;
      }
    }
  }

  uint32_t lanes_;
  float factor_;
  bool computed_;
  int columns_ = 0;  // swap_ab: columns of the accumulator that were computed
};

}  // namespace moxie::kernel
