// SPDX-License-Identifier: Apache-2.0
// Eight neighboring columns of a token, as they travel from its rank to those of its experts.
#pragma once
#include "moxie/isa.cuh"
#include "moxie/scaling/microscaling.cuh"
#include "moxie/window.h"

namespace moxie::kernel {

template <RowFormat kFormat>
class TravelingColumns;

template <>
class TravelingColumns<RowFormat::Bf16> {
 public:
  // From eight columns in bf16. Lanes have neighboring columns, from a multiple of 128 in every 16th.
  explicit MOXIE_DEVICE TravelingColumns(const uint4& bf16) : words_(bf16) {}

  // Into the window of `rank`, to the columns of the token at `place` from `column` on.
  MOXIE_DEVICE void store(const RankParams& ranks, int rank, int64_t place, int32_t column, int32_t columns) const {
    auto* const tokens = reinterpret_cast<uint16_t*>(ranks.windows[rank] + ranks.at.tokens);
    *reinterpret_cast<uint4*>(tokens + place * columns + column) = words_;
  }

  // What lies there in our own window, in bf16.
  static MOXIE_DEVICE uint4 load(const RankParams& ranks, int64_t place, int32_t column, int32_t columns) {
    const auto* const tokens = reinterpret_cast<const uint16_t*>(ranks.windows[ranks.rank] + ranks.at.tokens);
    return *reinterpret_cast<const uint4*>(tokens + place * columns + column);
  }

 private:
  uint4 words_;
};

// E4M3 with scales. Of Fp8 a scale is the greatest magnitude of 128 columns over that of E4M3; an infinity or a NaN
// makes it one, so that all 128 become NaN. Those of Mxfp8 are what quantize() makes of 32 columns (moxie/quantize.h).
template <RowFormat kFormat>
class TravelingColumns {
 public:
  explicit MOXIE_DEVICE TravelingColumns(const uint4& bf16) {
    const uint32_t pairs[4] = {bf16.x, bf16.y, bf16.z, bf16.w};
    float values[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = i % 2 == 0 ? bf16_low(pairs[i / 2]) : bf16_high(pairs[i / 2]);
    if constexpr (kFormat == RowFormat::Fp8) {
      float most = 0;
#pragma unroll
      for (const float value : values) most = max_nan(most, fabsf(value));
#pragma unroll
      for (int step = 1; step < kRowScaleColumns / 8; step *= 2) most = max_nan(most, __shfl_xor_sync(~0u, most, step));
      // Below it the quotients would be infinite.
      constexpr float kLeast = 0x1p-126f;
      const float scale = max_nan(__fdiv_rn(most, 448.0f), kLeast);
#pragma unroll
      for (float& value : values) value = __fdiv_rn(value, scale);
      scales_ = __float_as_uint(scale);
    } else {
      uint32_t most = 0;
#pragma unroll
      for (const float value : values) most = max(most, magnitude_bits(value));
#pragma unroll
      for (int step = 1; step < kScaleBlock / 8; step *= 2) most = max(most, __shfl_xor_sync(~0u, most, step));
      const BlockScale scale = scale_of<DataType::Mxfp8>(most, 1);
#pragma unroll
      for (float& value : values) value = scaled<DataType::Mxfp8>(value, scale);
      // The lane of the first of 128 columns comes to have the codes of all.
      scales_ = scale.code | __shfl_down_sync(~0u, scale.code, 4) << 8;
      scales_ |= __shfl_down_sync(~0u, scales_, 8) << 16;
    }
    words_ = {e4m3x4(values[0], values[1], values[2], values[3]), e4m3x4(values[4], values[5], values[6], values[7])};
  }

  MOXIE_DEVICE void store(const RankParams& ranks, int rank, int64_t place, int32_t column, int32_t columns) const {
    *reinterpret_cast<uint2*>(ranks.windows[rank] + ranks.at.tokens + place * columns + column) = words_;
    if (column % kRowScaleColumns != 0) return;
    auto* const scales = reinterpret_cast<uint32_t*>(ranks.windows[rank] + ranks.at.scales);
    scales[place * row_scales(columns) + column / kRowScaleColumns] = scales_;
  }

  static MOXIE_DEVICE uint4 load(const RankParams& ranks, int64_t place, int32_t column, int32_t columns) {
    const uint8_t* const own = ranks.windows[ranks.rank];
    const uint2 words = *reinterpret_cast<const uint2*>(own + ranks.at.tokens + place * columns + column);
    const uint32_t scales = reinterpret_cast<const uint32_t*>(
        own + ranks.at.scales)[place * row_scales(columns) + column / kRowScaleColumns];
    const float scale = kFormat == RowFormat::Fp8
                            ? __uint_as_float(scales)
                            : e8m0_value(scales >> column % kRowScaleColumns / kScaleBlock * 8 & 255);
    float values[8];
#pragma unroll
    for (int i = 0; i < 8; ++i)
      values[i] = __fmul_rn(e4m3_value((i < 4 ? words.x : words.y) >> 8 * (i % 4) & 255), scale);
    return {cvt_bf16x2(values[0], values[1]), cvt_bf16x2(values[2], values[3]), cvt_bf16x2(values[4], values[5]),
            cvt_bf16x2(values[6], values[7])};
  }

 private:
  uint2 words_;
  uint32_t scales_;  // where the first of 128 columns is ours
};

}  // namespace moxie::kernel
