// SPDX-License-Identifier: Apache-2.0
// What a stage of a Blackwell kernel's operand ring holds, and which rows and columns of the operands a tile takes.
// Loader and issuer compute addresses from these numbers.
#pragma once
#include "moxie/blackwell/operand.cuh"
#include "moxie/blackwell/rings.cuh"
#include "moxie/layout.h"
#include "moxie/tile.cuh"

namespace moxie::kernel {

template <BlackwellConfig C>
struct Stages {
  static_assert(C.block_n >= 16 && C.block_n <= 256 && C.block_n % 16 == 0);
  static_assert(!C.swap_ab || (C.block_n & (C.block_n - 1)) == 0,
                "the scales of A's tile lie in whole tiles of scales, or all in the same 32 lanes");
  static_assert(C.cluster == 1 || C.cluster == 2);
  static_assert(gate_halves(C) == 1 || C.swap_ab || C.block_n % 64 == 0);
  static_assert(!has_half_group(C) || (C.cluster == 1 && !is_gated(C.activation)));
  static_assert(C.accumulators == 1 || C.accumulators == 2);
  static_assert(tensor_layout(C).columns <= kTensorColumns, "one accumulator, or a narrower tile");

  using Ring = BlackwellRing<C.stages, C.cluster>;
  using Accumulators = AccumulatorRing<C.accumulators, C.cluster>;
  using Group = CtaGroup<C.cluster>;
  using Format = Operand<C.format>;

  static constexpr int kHalves = gate_halves(C);                        // products of a tile
  static constexpr int kWholeColumns = whole_groups(C.block_n);         // before the half group
  static constexpr int kElements = stage_elements(C);                   // of a row
  static constexpr int kScaleTiles = stage_scale_tiles(C);              // tiles of scales along a row
  static constexpr int kTileK = scale_tile_k(C.format);                 // elements of a row that share a tile of scales
  static constexpr int kRowTilesBytes = kScaleTiles * kScaleTileBytes;  // tiles of scales of the same 128 rows
  static constexpr int kBytesA = a_box_rows(C) * kStageRowBytes;
  static constexpr int kBytesB = b_stage_rows(C) * kStageRowBytes;
  static constexpr int kScaleBytesA = a_scale_tiles(C) * kRowTilesBytes;
  static constexpr int kScaleBytesB = b_stage_scale_tiles(C) * kRowTilesBytes;

  // Stages that a sum of length k takes.
  static MOXIE_DEVICE uint32_t count(int32_t k) { return (static_cast<uint32_t>(k) + kElements - 1) / kElements; }

  // The column of the product where the accumulator begins.
  static MOXIE_DEVICE int32_t first_column(const Tile& tile) {
    return has_half_group(C) ? whole_groups_column(tile.column) : tile.column;
  }
  // Columns of the accumulator that one product computes. With swap_ab these are no more than rows of the tile exist,
  // rounded up to what the instruction takes.
  static constexpr int32_t kSwappedStep = Format::kColumnStep * C.cluster > 16 ? 16 : Format::kColumnStep* C.cluster;
  static MOXIE_DEVICE int32_t product_columns(const Tile& tile) {
    if constexpr (C.swap_ab) {
      return min(C.block_n, (tile.rows + kSwappedStep - 1) / kSwappedStep * kSwappedStep);
    } else {
      return C.block_n / kHalves;
    }
  }
  // Row of B where the tile's part of a half begins. For a tile that takes two products.
  static MOXIE_DEVICE int32_t gate_half_row(const Tile& tile, int half) {
    return half * (tile.n / 2) + tile.column / 2;
  }

  // The memory of the first stage. Stages of each kind lie one behind the other.
  uint8_t* a;
  uint8_t* b;
  uint8_t* a_scales;
  uint8_t* b_scales;
};

}  // namespace moxie::kernel
