// SPDX-License-Identifier: Apache-2.0
// The order in which the cluster tiles of one group are computed: along the columns of a panel, then down its rows,
// then panel after panel. A panel is gemm.panel_columns cluster tiles wide, so that its part of B stays in L2 while A
// passes by.
#pragma once
#include "moxie/arguments.h"
#include "moxie/tile.cuh"

namespace moxie::kernel {

template <auto C>
class Raster {
  static constexpr int kTileRows = cluster_tile_rows(C);
  static constexpr int kTileColumns = cluster_tile_columns(C);
  static constexpr bool kDecodeTile = has_decode_tile(C);

 public:
  MOXIE_DEVICE explicit Raster(const GemmParams& gemm) : gemm_(gemm), rank_(blockIdx.x % C.cluster) {}

  // Rows and columns of cluster tiles that a group of m rows and n columns has.
  static MOXIE_DEVICE uint32_t rows(int32_t m) { return (static_cast<uint32_t>(m) + kTileRows - 1) / kTileRows; }
  static MOXIE_DEVICE uint32_t columns(int32_t n) {
    return (static_cast<uint32_t>(n) + kTileColumns - 1) / kTileColumns;
  }

  // Cluster tiles that a group of m rows and n columns has.
  static MOXIE_DEVICE uint32_t count(int32_t m, int32_t n) {
    if constexpr (pairs_rows(C)) {
      const uint32_t block_columns = columns_of_blocks(n), block_rows = rows(m);
      return block_rows / 2 * block_columns + block_rows % 2 * ((block_columns + 1) / 2);
    } else {
      return rows(m) * columns(n);
    }
  }

  // Sets the place of this block's tile in the group's cluster tile `index`. rows and columns are those of the group,
  // m its rows; tile.n is known.
  MOXIE_DEVICE void place(Tile& tile, uint32_t index, uint32_t rows, uint32_t columns, int32_t m) const {
    if constexpr (pairs_rows(C)) {
      place_in_pairs(tile, index, rows, columns_of_blocks(tile.n), m);
      return;
    }
    uint32_t row = 0, column = index;
    if (!kDecodeTile || rows > 1) {  // decode kernels mostly have one row of tiles, and divisions take 300 cycles
      const uint32_t panel_columns = gemm_.panel_columns;
      const uint32_t panel = index / (panel_columns * rows);
      const uint32_t first = panel * panel_columns;
      const uint32_t width = min(panel_columns, columns - first);
      const uint32_t within = index - first * rows;
      row = within / width;
      column = first + within % width;
    }
    tile.row = static_cast<int32_t>(row * kTileRows);
    tile.column = static_cast<int32_t>(column * kTileColumns);
    if constexpr (rank_rows(C) > 0) tile.row += rank_ * rank_rows(C);
    if constexpr (rank_columns(C) > 0) tile.column += rank_ * rank_columns(C);
    tile.rows = m - tile.row;
  }

 private:
  static MOXIE_DEVICE uint32_t columns_of_blocks(int32_t n) {
    return (static_cast<uint32_t>(n) + C.block_n - 1) / C.block_n;
  }

  // place() with Multicast::Either. In each panel the pairs of rows of tiles come first, with cluster tiles of two rows
  // by one column. Then comes the odd row, with cluster tiles of one row by two columns. rows and columns count the
  // blocks' tiles.
  MOXIE_DEVICE void place_in_pairs(Tile& tile, uint32_t index, uint32_t rows, uint32_t columns, int32_t m) const {
    uint32_t row = 0, column = 2 * index + rank_;
    tile.pair = false;
    if (!kDecodeTile || rows > 1) {
      const uint32_t panel_columns = 2 * gemm_.panel_columns;
      const uint32_t panel = index / (panel_columns * rows / 2);
      const uint32_t first = panel * panel_columns;
      const uint32_t width = min(panel_columns, columns - first);
      const uint32_t within = index - first * rows / 2;
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

  const GemmParams& gemm_;
  int32_t rank_;  // of this block in its cluster
};

}  // namespace moxie::kernel
