// SPDX-License-Identifier: Apache-2.0
// A block's tile: which part of the product it is, and what the roles of a kernel must know of its group.
#pragma once
#include "moxie/config.h"
#include "moxie/isa.cuh"

namespace moxie::kernel {

struct Tile {
  int32_t group;
  int32_t row;        // first row, counted from the group's first (RowGroups: from A's first)
  int32_t rows;       // of the group from `row` on: may exceed the tile, or be <= 0 for the second block of a cluster
  int32_t row_begin;  // Offsets: row of A where the group begins, else 0
  int32_t column;     // first column; may lie past n for the second block of a cluster
  int32_t n;          // columns of the group's product
  int32_t k;          // length of the group's sums
  int32_t k_begin;    // KGroups: where the group begins along K, else 0
  // Tiles of scales of all groups before this one. Offsets, where A or an output has scales: tiles of rows. KGroups,
  // where the operands have scales: tiles along K. Else 0.
  int32_t scale_tiles;
  // Multicast::Either: the cluster's other tile is above or below this one, and both read the same tile of B.
  bool pair;

  // Hopper's stages along K, of block_k elements each.
  MOXIE_DEVICE uint32_t k_tiles(uint32_t block_k) const { return (static_cast<uint32_t>(k) + block_k - 1) / block_k; }
};

MOXIE_DEVICE int32_t clamp(int32_t value, int32_t low, int32_t high) { return min(max(value, low), high); }

}  // namespace moxie::kernel
