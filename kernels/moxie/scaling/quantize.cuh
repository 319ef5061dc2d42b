// SPDX-License-Identifier: Apache-2.0
// The kernels that turn rows of bf16 or float32 into quantized elements with their scales, and back (moxie/quantize.h).
// A block of threads has tiles of 128 rows by 4 scales, a thread eight neighboring elements of a row at a time.
#pragma once
#include "moxie/scaling/microscaling.cuh"
#include "moxie/scaling/scale_tiles.cuh"

namespace moxie::kernel {

constexpr int kElementsOfAThread = 8;

template <DataType kType>
MOXIE_DEVICE void load_values(float (&x)[kElementsOfAThread], const void* from, int64_t index) {
  if constexpr (kType == DataType::Bf16) {
    const uint4 words = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(from) + index);
    const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) x[2 * i] = bf16_low(pairs[i]), x[2 * i + 1] = bf16_high(pairs[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 four = reinterpret_cast<const float4*>(static_cast<const float*>(from) + index)[i];
      x[4 * i] = four.x, x[4 * i + 1] = four.y, x[4 * i + 2] = four.z, x[4 * i + 3] = four.w;
    }
  }
}

template <DataType kType>
MOXIE_DEVICE void store_values(void* to, int64_t index, const float (&x)[kElementsOfAThread]) {
  if constexpr (kType == DataType::Bf16) {
    *reinterpret_cast<uint4*>(static_cast<uint16_t*>(to) + index) = {cvt_bf16x2(x[0], x[1]), cvt_bf16x2(x[2], x[3]),
                                                                     cvt_bf16x2(x[4], x[5]), cvt_bf16x2(x[6], x[7])};
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      reinterpret_cast<float4*>(static_cast<float*>(to) + index)[i] = {x[4 * i], x[4 * i + 1], x[4 * i + 2],
                                                                       x[4 * i + 3]};
  }
}

// kGathers: a row is read where params.gather says. That kernel may be launched programmatically.
template <DataType kFormat, DataType kType, bool kGathers>
MOXIE_DEVICE void quantize(const QuantizeParams& params) {
  constexpr int kBlock = scale_block(kFormat);
  constexpr int kRowThreads = kScaleTileColumns * kBlock / kElementsOfAThread;  // threads for a row of a tile
  __shared__ uint8_t tile_scales[kScaleTileRows][kScaleTileColumns];
  if constexpr (kGathers) {
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
  }
  const RowTile tile = find_row_tile(params.rows, blockIdx.x);
  if (tile.rows <= 0) return;
  const int32_t thread = threadIdx.x, within = thread % kRowThreads * kElementsOfAThread;
  const int32_t scale_columns = params.columns / kBlock;
  const int32_t k_tiles = (scale_columns + kScaleTileColumns - 1) / kScaleTileColumns;
  float tensor_scale = 1;
  if constexpr (kFormat == DataType::Nvfp4) {
    if (params.tensor_scale != nullptr) tensor_scale = *params.tensor_scale;
  }

  for (int32_t k_tile = blockIdx.y; k_tile < k_tiles; k_tile += gridDim.y) {
    const int32_t column = k_tile * (kScaleTileColumns * kBlock) + within;
#pragma unroll 1
    for (int32_t row = thread / kRowThreads; row < kScaleTileRows; row += kQuantizeThreads / kRowThreads) {
      const bool exists = row < tile.rows && column < params.columns;
      float x[kElementsOfAThread] = {};
      int64_t from = tile.first + row;
      bool has_values = exists;
      if constexpr (kGathers) {
        if (exists) from = static_cast<uint32_t>(params.gather.rows[from]) / params.gather.divisor;
        has_values = exists && from < params.gather.count;
      }
      if (has_values) load_values<kType>(x, params.from, from * params.ld_from + column);
      uint32_t amax = 0;
#pragma unroll
      for (float value : x) amax = max(amax, magnitude_bits(value));
#pragma unroll
      for (int other = 1; other < kBlock / kElementsOfAThread; other *= 2)
        amax = max(amax, __shfl_xor_sync(~0u, amax, other));
      const BlockScale scale = scale_of<kFormat>(amax, tensor_scale);
      if (within % kBlock == 0) tile_scales[row][within / kBlock] = exists ? scale.code : 0;
      if (!exists) continue;
#pragma unroll
      for (float& value : x) value = scaled<kFormat>(value, scale);
      const int64_t to = (tile.first + row) * params.ld_to + column;
      if constexpr (kFormat == DataType::Mxfp8) {
        *reinterpret_cast<uint2*>(static_cast<uint8_t*>(params.to) + to) = {e4m3x4(x[0], x[1], x[2], x[3]),
                                                                            e4m3x4(x[4], x[5], x[6], x[7])};
      } else {
        *reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(params.to) + to / 2) = e2m1x8(x);
      }
    }
    __syncthreads();
    if (thread < kScaleTileRows && params.blocked) {
      uint8_t* const to = params.scales + (int64_t{blockIdx.x} * k_tiles + k_tile) * kScaleTileBytes;
      *reinterpret_cast<uint32_t*>(to + scale_word(thread)) =
          tile_scales[thread][0] | static_cast<uint32_t>(tile_scales[thread][1]) << 8 |
          static_cast<uint32_t>(tile_scales[thread][2]) << 16 | static_cast<uint32_t>(tile_scales[thread][3]) << 24;
    } else if (thread < tile.rows) {
      uint8_t* const to = params.scales + (tile.first + thread) * scale_columns;
      for (int32_t i = 0; i < kScaleTileColumns && k_tile * kScaleTileColumns + i < scale_columns; ++i)
        to[k_tile * kScaleTileColumns + i] = tile_scales[thread][i];
    }
    // A layer's rows, at most 2^20 elements, have fewer tiles along K than a grid may have blocks.
    if constexpr (kGathers) break;
    __syncthreads();
  }
}

template <DataType kFormat, DataType kType>
MOXIE_DEVICE void dequantize(const QuantizeParams& params) {
  constexpr int kBlock = scale_block(kFormat);
  constexpr int kRowThreads = kScaleTileColumns * kBlock / kElementsOfAThread;
  const RowTile tile = find_row_tile(params.rows, blockIdx.x);
  const int32_t thread = threadIdx.x, within = thread % kRowThreads * kElementsOfAThread;
  const int32_t scale_columns = params.columns / kBlock;
  const int32_t k_tiles = (scale_columns + kScaleTileColumns - 1) / kScaleTileColumns;
  for (int32_t k_tile = blockIdx.y; k_tile < k_tiles; k_tile += gridDim.y) {
    const int32_t column = k_tile * (kScaleTileColumns * kBlock) + within;
    if (column >= params.columns) continue;
#pragma unroll 1
    for (int32_t row = thread / kRowThreads; row < tile.rows; row += kQuantizeThreads / kRowThreads) {
      const uint8_t code = params.blocked ? params.scales[(int64_t{blockIdx.x} * k_tiles + k_tile) * kScaleTileBytes +
                                                          scale_word(row) + within / kBlock]
                                          : params.scales[(tile.first + row) * scale_columns + column / kBlock];
      const int64_t from = (tile.first + row) * params.ld_from + column;
      float x[kElementsOfAThread];
      float scale;
      if constexpr (kFormat == DataType::Nvfp4) {
        scale = __fmul_rn(e4m3_value(code), *params.tensor_scale);
      } else {
        scale = e8m0_value(code);
      }
      if constexpr (kFormat == DataType::Mxfp8) {
        const uint2 words = *reinterpret_cast<const uint2*>(static_cast<const uint8_t*>(params.from) + from);
#pragma unroll
        for (int i = 0; i < kElementsOfAThread; ++i)
          x[i] = __fmul_rn(e4m3_value((i < 4 ? words.x : words.y) >> 8 * (i % 4) & 255), scale);
      } else {
        const uint32_t word = *reinterpret_cast<const uint32_t*>(static_cast<const uint8_t*>(params.from) + from / 2);
#pragma unroll
        for (int i = 0; i < kElementsOfAThread; ++i) x[i] = __fmul_rn(e2m1_value(word >> 4 * i), scale);
      }
      store_values<kType>(params.to, (tile.first + row) * params.ld_to + column, x);
    }
  }
}

// Finds the float of an NVFP4 tensor in three launches: it is set to 0, then all blocks make it the largest finite
// magnitude, then it is divided by the largest value that elements and scales can represent.
enum class TensorScaleStep : int { Clear, Search, Finish };

template <DataType kType>
MOXIE_DEVICE void find_tensor_scale(const QuantizeParams& params, TensorScaleStep step) {
  uint32_t* const bits = reinterpret_cast<uint32_t*>(params.tensor_scale);
  if (step == TensorScaleStep::Clear) {
    if (threadIdx.x == 0) *bits = 0;
    return;
  }
  if (step == TensorScaleStep::Finish) {
    // 6 and 448 are the largest element and scale. A tensor of zeros has no scale of its own.
    if (threadIdx.x != 0) return;
    const float amax = *params.tensor_scale;
    *params.tensor_scale = amax > 0 ? fmaxf(__fdiv_rn(amax, 6.0f * 448.0f), 0x1p-126f) : 1.0f;
    return;
  }
  const RowTile tile = find_row_tile(params.rows, blockIdx.x);
  uint32_t amax = 0;
  for (int32_t row = 0; row < tile.rows; ++row) {
    const int64_t first = (tile.first + row) * params.ld_from;
    for (int32_t column = (blockIdx.y * kQuantizeThreads + threadIdx.x) * kElementsOfAThread; column < params.columns;
         column += gridDim.y * kQuantizeThreads * kElementsOfAThread) {
      float x[kElementsOfAThread];
      load_values<kType>(x, params.from, first + column);
#pragma unroll
      for (float value : x) {
        const uint32_t magnitude = magnitude_bits(value);
        if (is_finite_magnitude(magnitude)) amax = max(amax, magnitude);
      }
    }
  }
  amax = __reduce_max_sync(~0u, amax);
  if (threadIdx.x % 32 == 0) atomicMax(bits, amax);
}

}  // namespace moxie::kernel
