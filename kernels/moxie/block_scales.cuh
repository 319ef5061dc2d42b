// Row-major scales to the blocked layout that the tensor cores' copies read, and back (moxie/scales.h).
#pragma once
#include "moxie/scale_tiles.cuh"

namespace moxie::kernel {

// A power of two as E8M0; NaN for everything else.
MOXIE_DEVICE uint32_t e8m0_of_power(float value) {
  const uint32_t bits = __float_as_uint(value);
  if (bits == 0x00400000) return 0;  // 2^-127, a subnormal
  return bits != 0 && bits < 0x7f800000 && (bits & 0x7fffff) == 0 ? bits >> 23 : 255;
}

// One block for each row of tiles, one thread for each row of scales.
MOXIE_DEVICE void block_scales(const BlockScalesParams& params) {
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
