// SPDX-License-Identifier: Apache-2.0
// The sink of quantized outputs: pre or out as MXFP4, MXFP8 or NVFP4, straight from float32. Scales leave in tiles
// (moxie/scales.h), so that the next product reads them as they are.
//
// 32 columns of a row share one scale, with NVFP4 two. They lie in the four threads of a quad, which exchange
// magnitudes and then elements by shuffles, so that every thread stores eight neighboring columns with one plain
// instruction.
//
// A tile of scales that has a row is written whole, with 0 where there is no row or no column.
#pragma once
#include "moxie/config.h"
#include "moxie/epilogue/sink.cuh"
#include "moxie/scaling/microscaling.cuh"
#include "moxie/scaling/scale_tiles.cuh"
#include "moxie/tensor_map.cuh"

namespace moxie::kernel {

template <auto C, Value kTakes, DataType kType>
class QuantizedStore {
  static_assert(C.quantized, "the scheduler counts tiles of scales only where it is told to");
  static_assert(kTakes == Value::Out || !is_gated(C.activation), "columns of a gated pre are not in their order");
  static constexpr bool kHalved = is_gated(C.activation);
  static constexpr int kRows = epilogue_rows(C);  // of a chunk
  static constexpr int kBits = bits_of(kType);
  static constexpr int kScales = kScaleBlock / scale_block(kType);  // scales of 32 columns
  static constexpr int kTileK = kScaleTileColumns * scale_block(kType);

 public:
  using Params = QuantizedStoreParams;
  static constexpr Value kValue = kTakes;
  static constexpr SinkNeeds kNeeds = {};

  MOXIE_DEVICE explicit QuantizedStore(const Params& params) : params_(params) {}

  template <int kColumns>
  MOXIE_DEVICE void store(const Fragment<kColumns>& values, const Chunk& chunk, int block, uint8_t*) const {
    static_assert(kColumns % kScaleBlock == 0, "32 columns share a scale: a gated tile is a multiple of 64 wide");
    const int32_t width = kHalved ? chunk.n / 2 : chunk.n;
    const Output output(params_, chunk);
    if constexpr (C.grouping == Grouping::Pointers) {
      if (!output.is_valid(width)) return;
    }
    const int32_t column = (kHalved ? chunk.column / 2 : chunk.column) + chunk.warp_column();
    const int32_t quad_lane = chunk.thread % 4;
    float tensor_scale = 1;
    if constexpr (kType == DataType::Nvfp4) {
      if (params_.tensor_scale != nullptr) tensor_scale = *params_.tensor_scale;
    }
#pragma unroll
    for (int first = 0; first < kColumns; first += kScaleBlock) {
      const ScalePlace place(output.scales, chunk, column + first, width);
      if (column + first >= width) break;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float x[8];
        uint32_t code = 0;  // the scale that this thread writes
#pragma unroll
        for (int s = 0; s < kScales; ++s) {
          constexpr int kSharing = 8 / kScales;  // values of a thread that share a scale
          uint32_t amax = 0;
#pragma unroll
          for (int i = s * kSharing; i < (s + 1) * kSharing; ++i) {
            x[i] = values.v[first / 8 + i / 2][2 * h + i % 2];
            amax = max(amax, magnitude_bits(x[i]));
          }
          amax = max(amax, __shfl_xor_sync(~0u, amax, 1));
          amax = max(amax, __shfl_xor_sync(~0u, amax, 2));
          const BlockScale scale = scale_of<kType>(amax, tensor_scale);
#pragma unroll
          for (int i = s * kSharing; i < (s + 1) * kSharing; ++i) x[i] = scaled<kType>(x[i], scale);
          if (quad_lane == s) code = scale.code;
        }
        const int32_t row = chunk.fragment_row(block, h);
        const bool exists = row < chunk.rows;
        const int64_t at = (chunk.row_begin + chunk.row + row) * output.ld + column + first + 8 * quad_lane;
        if constexpr (kType != DataType::Mxfp8) {
          const uint32_t word = gather_quad(e2m1x8(x), quad_lane);
          if (exists) *reinterpret_cast<uint32_t*>(output.base + at / 2) = word;
        } else {
          const uint2 words = gather_quad({e4m3x4(x[0], x[1], x[2], x[3]), e4m3x4(x[4], x[5], x[6], x[7])}, quad_lane);
          if (exists) *reinterpret_cast<uint2*>(output.base + at) = words;
        }
        place.write(chunk.row + row, quad_lane, exists ? code : 0);
      }
      // The last tile of scales may have rows that belong to no chunk. The warps that have these columns share them
      // out.
      if (kRows % kScaleTileRows != 0 && block == chunk.blocks - 1 && chunk.rows <= kRows) {
        const int32_t start = chunk.warp() % chunk.row_warps * 8 + chunk.thread % 32 / 4;
        for (int32_t row = chunk.row + kRows + start; row < place.end_row; row += 8 * chunk.row_warps)
          place.write(row, quad_lane, 0);
      }
    }
  }

 private:
  // The output of a group.
  struct Output {
    MOXIE_DEVICE Output(const Params& params, const Chunk& chunk) {
      if constexpr (C.grouping == Grouping::Pointers) {
        base = static_cast<uint8_t*>(params.pointers[chunk.group]);
        ld = params.lds[chunk.group];
        scales = static_cast<uint8_t*>(params.scale_pointers[chunk.group]);
      } else {
        base = params.base + chunk.group * params.group_stride * kBits / 8;
        ld = params.ld;
        scales = params.scales + chunk.group * params.group_scales;
      }
    }
    // Whether the group keeps the rules of moxie/gemm.h. The host cannot check them where addresses lie on the device.
    MOXIE_DEVICE bool is_valid(int32_t width) const {
      return valid_map_address(base) && valid_map_address(scales) && ld * kBits % 128 == 0 && ld >= width &&
             width % kScaleBlock == 0;
    }
    uint8_t* base;
    int64_t ld;
    uint8_t* scales;
  };

  // Where the scales of 32 columns stand in their tile.
  struct ScalePlace {
    MOXIE_DEVICE ScalePlace(uint8_t* scales, const Chunk& chunk, int32_t column, int32_t width)
        : k_tiles((width + kTileK - 1) / kTileK),
          end_row((chunk.row + chunk.rows + kScaleTileRows - 1) / kScaleTileRows * kScaleTileRows),
          within(column % kTileK / scale_block(kType)),
          is_last(column + kScaleBlock >= width),
          to(scales + (int64_t{chunk.scale_tiles} * k_tiles + column / kTileK) * kScaleTileBytes + within) {}

    // The first threads of a quad write the scales. The others write the places behind those of the last column.
    MOXIE_DEVICE void write(int32_t row, int32_t quad_lane, uint32_t scale) const {
      if (row >= end_row || (quad_lane >= kScales && !(is_last && within + quad_lane < kScaleTileColumns))) return;
      to[int64_t{row / kScaleTileRows} * k_tiles * kScaleTileBytes + scale_word(row % kScaleTileRows) + quad_lane] =
          static_cast<uint8_t>(scale);
    }
    int32_t k_tiles;
    int32_t end_row;  // one past the last row of the tiles that have a row
    int32_t within;   // which of the tile's four columns
    bool is_last;
    uint8_t* to;
  };

  // A thread comes with two columns of each of four groups of eight. It leaves with all eight columns of one group, the
  // one that has the number of the thread in its quad.
  static MOXIE_DEVICE uint32_t gather_quad(uint32_t word, int32_t quad_lane) {
    uint32_t other = __shfl_xor_sync(~0u, word, 2);
    word = quad_lane & 2 ? __byte_perm(word, other, 0x3276) : __byte_perm(word, other, 0x5410);
    other = __shfl_xor_sync(~0u, word, 1);
    return quad_lane & 1 ? __byte_perm(word, other, 0x3715) : __byte_perm(word, other, 0x6240);
  }
  static MOXIE_DEVICE uint2 gather_quad(uint2 words, int32_t quad_lane) {
    const bool upper = (quad_lane & 2) != 0, odd = (quad_lane & 1) != 0;
    const uint32_t from_other = __shfl_xor_sync(~0u, upper ? words.x : words.y, 2);
    // After the first exchange threads 0 and 1 have half of the columns of groups 0 and 1, threads 2 and 3 of the
    // others.
    const uint32_t low = upper ? from_other : words.x, high = upper ? words.y : from_other;
    const uint32_t even_group = __byte_perm(low, high, 0x5410), odd_group = __byte_perm(low, high, 0x7632);
    const uint32_t got = __shfl_xor_sync(~0u, odd ? even_group : odd_group, 1);
    const uint32_t left = odd ? got : even_group, right = odd ? odd_group : got;
    return {__byte_perm(left, right, 0x5410), __byte_perm(left, right, 0x7632)};
  }

  const Params& params_;
};

}  // namespace moxie::kernel
