// SPDX-License-Identifier: Apache-2.0
// The kernel that brings row-major scales into the tiles that the tensor cores' copies read, and back (moxie/scales.h).
#pragma once
#include "moxie/scaling/scale_tiles.cuh"

namespace moxie::kernel {

// The E8M0 code of a power of two, and that of NaN for every other value.
MOXIE_DEVICE uint32_t e8m0_of_power(float value) {
  const uint32_t bits = __float_as_uint(value);
  if (bits == 0x00400000) return 0;  // 2^-127, a subnormal
  return bits != 0 && bits < 0x7f800000 && (bits & 0x7fffff) == 0 ? bits >> 23 : 255;
}

// block_scales() where the groups divide the columns. Each group has rows of tiles of its own, which follow those of
// the group before.
MOXIE_DEVICE void block_scales_along_k(const BlockScalesParams& params) {
  const int32_t row = blockIdx.x * kScaleTileRows + threadIdx.x;
  const int64_t plain = int64_t{row} * params.columns;
  const uint8_t* const from = static_cast<const uint8_t*>(params.from);
  int64_t tile = 0;  // the group's first tile
  int32_t begin = 0;
  for (int32_t group = 0; group < params.rows.groups; ++group) {
    // Groups end at whole units of K, as the products take them (k_unit in moxie/types.h).
    const int32_t end =
        max(begin, min(params.rows.offsets[group], params.k) / kScaledUnit * kScaledUnit / params.block);
    const int32_t columns = end - begin, k_tiles = (columns + kScaleTileColumns - 1) / kScaleTileColumns;
    for (int32_t k = 0; k < k_tiles; ++k) {
      const int64_t at = (tile + int64_t{blockIdx.x} * k_tiles + k) * kScaleTileBytes + scale_word(threadIdx.x);
      uint32_t word = 0;
      for (int32_t i = 0; i < kScaleTileColumns; ++i) {
        const int32_t column = kScaleTileColumns * k + i;
        if (row >= params.rows.rows || column >= columns) continue;
        if (params.conversion == ScaleConversion::Unblock) {
          params.to[plain + begin + column] = from[at + i];
        } else if (params.conversion == ScaleConversion::Block) {
          word |= static_cast<uint32_t>(from[plain + begin + column]) << 8 * i;
        } else {
          word |= e8m0_of_power(static_cast<const float*>(params.from)[plain + begin + column]) << 8 * i;
        }
      }
      if (params.conversion != ScaleConversion::Unblock) *reinterpret_cast<uint32_t*>(params.to + at) = word;
    }
    tile += int64_t{gridDim.x} * k_tiles;
    begin = end;
  }
}

// A block has one row of tiles, a thread one row of scales.
MOXIE_DEVICE void block_scales(const BlockScalesParams& params) {
  if (params.along_k) return block_scales_along_k(params);
  const RowTile tile = find_row_tile(params.rows, blockIdx.x);
  if (tile.rows <= 0) return;
  const int32_t row = threadIdx.x, k_tiles = (params.columns + kScaleTileColumns - 1) / kScaleTileColumns;
  const int64_t plain = (tile.first + row) * params.columns;
  const int64_t blocked = int64_t{blockIdx.x} * k_tiles * kScaleTileBytes + scale_word(row);
  if (params.conversion == ScaleConversion::Unblock) {
    const uint8_t* const from = static_cast<const uint8_t*>(params.from) + blocked;
    for (int32_t k = 0; k < params.columns && row < tile.rows; ++k)
      params.to[plain + k] = from[int64_t{k / kScaleTileColumns} * kScaleTileBytes + k % kScaleTileColumns];
    return;
  }
  for (int32_t k = 0; k < k_tiles; ++k) {
    uint32_t word = 0;
    for (int32_t i = 0; i < kScaleTileColumns; ++i) {
      const int32_t column = kScaleTileColumns * k + i;
      if (row >= tile.rows || column >= params.columns) continue;
      const uint32_t scale = params.conversion == ScaleConversion::Block
                                 ? static_cast<const uint8_t*>(params.from)[plain + column]
                                 : e8m0_of_power(static_cast<const float*>(params.from)[plain + column]);
      word |= scale << 8 * i;
    }
    *reinterpret_cast<uint32_t*>(params.to + blocked + int64_t{k} * kScaleTileBytes) = word;
  }
}

}  // namespace moxie::kernel
