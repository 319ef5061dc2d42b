// Row-major scales to the blocked layout that the tensor cores' copies read (moxie/scales.h).
#pragma once
#include "moxie/isa.cuh"

namespace moxie::kernel {

// One block for each row of tiles, one thread for each row of scales.
MOXIE_DEVICE void block_scales(const BlockScalesParams& params) {
  const int32_t thread = threadIdx.x;
  const int32_t k_tiles = (params.columns + 3) / 4;
  int64_t first = 0;           // the group's first row
  int32_t rows = params.rows;  // of the group
  int32_t tile = blockIdx.x;   // within the group
  if (params.offsets != nullptr) {
    int32_t begin = 0, end = 0, group = 0;
    for (;; ++group) {
      if (group == params.groups) return;
      begin = end;
      end = max(begin, min(params.offsets[group], params.rows));
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
  const int32_t row = tile * kScaleTileRows + thread;
  const uint8_t* const from = params.from + (first + row) * params.columns;
  uint8_t* const to = params.to + int64_t{blockIdx.x} * k_tiles * kScaleTileBytes + thread % 32 * 16 + thread / 32 * 4;
  for (int32_t k = 0; k < k_tiles; ++k) {
    uint32_t word = 0;
    for (int32_t i = 0; i < 4; ++i) {
      if (row < rows && 4 * k + i < params.columns) word |= static_cast<uint32_t>(from[4 * k + i]) << 8 * i;
    }
    *reinterpret_cast<uint32_t*>(to + k * kScaleTileBytes) = word;
  }
}

}  // namespace moxie::kernel
