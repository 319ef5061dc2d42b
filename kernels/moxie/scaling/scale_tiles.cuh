// SPDX-License-Identifier: Apache-2.0
// Which 128 rows a tile of scales belongs to (moxie/scales.h), and where a scale stands in it.
#pragma once
#include "moxie/arguments.h"
#include "moxie/isa.cuh"

namespace moxie::kernel {

struct RowTile {
  int64_t first;  // its first row of the tensor
  int32_t rows;   // how many of its 128 rows exist; 0: no group has this tile
};

// Finds the rows of a tile. Tiles are numbered through all groups.
MOXIE_DEVICE RowTile find_row_tile(const ScaleRows& all, int32_t tile) {
  int64_t first = 0;        // first row of the group
  int32_t rows = all.rows;  // rows of the group
  if (all.offsets != nullptr) {
    int32_t begin = 0, end = 0;
    for (int32_t group = 0;; ++group) {
      if (group == all.groups) return {0, 0};
      begin = end;
      end = max(begin, min(all.offsets[group], all.rows));
      const int32_t tiles = (end - begin + kScaleTileRows - 1) / kScaleTileRows;
      if (tile < tiles) break;
      tile -= tiles;
    }
    first = begin;
    rows = end - begin;
  } else {
    const int32_t tiles = (rows + kScaleTileRows - 1) / kScaleTileRows;
    first = int64_t{tile / tiles} * rows;
    tile %= tiles;
  }
  return {first + tile * kScaleTileRows, min(rows - tile * kScaleTileRows, kScaleTileRows)};
}

// The byte of a tile where the four scales of a row stand.
MOXIE_DEVICE constexpr int32_t scale_word(int32_t row) { return row % 32 * 16 + row / 32 * 4; }

}  // namespace moxie::kernel
