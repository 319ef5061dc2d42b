// SPDX-License-Identifier: Apache-2.0
// Rounding to the elements and scales of MXFP4, MXFP8 and NVFP4 (see moxie/quantize.h for the rules). Elements round to
// nearest even and saturate.
#pragma once
#include "moxie/isa.cuh"

namespace moxie::kernel {

constexpr uint32_t kNanE8m0 = 255, kNanE4m3 = 127;

// The bits of |x|. They order as the magnitudes do, with infinity and NaN above all others.
MOXIE_DEVICE uint32_t magnitude_bits(float x) { return __float_as_uint(x) & 0x7fffffff; }
MOXIE_DEVICE bool is_finite_magnitude(uint32_t bits) { return bits < 0x7f800000; }

// The exponent of the largest element: 6 = 1.5 * 2^2, 448 = 1.75 * 2^8.
constexpr int largest_exponent(DataType format) { return format == DataType::Mxfp8 ? 8 : 2; }

// The E8M0 code of 2^(floor(log2(amax)) - largest exponent), from the bits of amax. It is no less than that of 2^-127,
// which an amax of 0 gets as well.
template <DataType kFormat>
MOXIE_DEVICE uint32_t e8m0_scale(uint32_t amax) {
  const uint32_t field = amax >> 23;
  if (field == 255) return kNanE8m0;
  return field > largest_exponent(kFormat) ? field - largest_exponent(kFormat) : 0;
}
// 1 / 2^(scale - 127). A scale of e8m0_scale() is at most 255 - 1 - 2, so the result is no subnormal.
MOXIE_DEVICE float e8m0_reciprocal(uint32_t scale) { return __uint_as_float((254 - scale) << 23); }
MOXIE_DEVICE float e8m0_value(uint32_t scale) {
  return __uint_as_float(scale == 0 ? 0x00400000 : scale == kNanE8m0 ? 0x7fffffff : scale << 23);
}

// 9.7.9.22: cvt of two float32 to E4M3, with `low` in the low byte.
MOXIE_DEVICE uint32_t cvt_e4m3x2(float low, float high) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}
MOXIE_DEVICE uint32_t e4m3x4(float a, float b, float c, float d) { return cvt_e4m3x2(a, b) | cvt_e4m3x2(c, d) << 16; }
MOXIE_DEVICE float e4m3_value(uint32_t code) {
  const uint32_t exponent = code >> 3 & 15, fraction = code & 7;
  float magnitude =
      exponent != 0 ? __uint_as_float((exponent + 120) << 23 | fraction << 20) : static_cast<float>(fraction) * 0x1p-9f;
  if ((code & 127) == kNanE4m3) magnitude = __uint_as_float(0x7fffffff);
  return code & 128 ? -magnitude : magnitude;
}

// The scale of a block of values, and the factor that its values are multiplied by, with NVFP4 divided by. With a
// factor of 0 all elements become 0.
struct BlockScale {
  uint32_t code;
  float factor;
};
// The scale of a block whose largest magnitude has the bits `amax`.
template <DataType kFormat>
MOXIE_DEVICE BlockScale scale_of(uint32_t amax, float tensor_scale) {
  if constexpr (kFormat == DataType::Nvfp4) {
    if (!is_finite_magnitude(amax)) return {kNanE4m3, 0};
    const uint32_t code = cvt_e4m3x2(__fdiv_rn(__uint_as_float(amax), __fmul_rn(6.0f, tensor_scale)), 0) & 255;
    return {code, __fmul_rn(e4m3_value(code), tensor_scale)};
  } else {
    const uint32_t code = e8m0_scale<kFormat>(amax);
    return {code, code == kNanE8m0 ? 0 : e8m0_reciprocal(code)};
  }
}
template <DataType kFormat>
MOXIE_DEVICE float scaled(float value, const BlockScale& scale) {
  if (!(scale.factor > 0)) return 0.0f;
  return kFormat == DataType::Nvfp4 ? __fdiv_rn(value, scale.factor) : __fmul_rn(value, scale.factor);
}

// Rounds eight float32 to E2M1, the first in the lowest nibble.
MOXIE_DEVICE uint32_t e2m1x8(const float (&x)[8]) {
  uint32_t word;
#if __CUDA_ARCH__ >= 1000
  // 9.7.9.22 cvt.
  asm("{.reg .b8 b0, b1, b2, b3;"
      " cvt.rn.satfinite.e2m1x2.f32 b0, %2, %1;"
      " cvt.rn.satfinite.e2m1x2.f32 b1, %4, %3;"
      " cvt.rn.satfinite.e2m1x2.f32 b2, %6, %5;"
      " cvt.rn.satfinite.e2m1x2.f32 b3, %8, %7;"
      " mov.b32 %0, {b0, b1, b2, b3};}"
      : "=r"(word)
      : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "f"(x[4]), "f"(x[5]), "f"(x[6]), "f"(x[7]));
#else
  word = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t bits = __float_as_uint(x[i]);
    const float magnitude = fabsf(x[i]);
    // Below 1 the codes count halves, which is what the last place of 2^22 is worth. From 1 on they are the exponent
    // and the first bit of the fraction.
    const uint32_t halves = __float_as_uint(__fadd_rn(magnitude, 0x1p22f)) - __float_as_uint(0x1p22f);
    const uint32_t upper = (((bits & 0x7fffffff) + 0x1fffff + (bits >> 22 & 1)) >> 22) - (2 * 127 - 2);
    word |= (min(magnitude < 1.0f ? halves : upper, 7u) | (bits >> 28 & 8)) << 4 * i;
  }
#endif
  return word;
}
MOXIE_DEVICE float e2m1_value(uint32_t code) {
  // 0, 0.5, 1, 1.5, 2, 3, 4, 6 are half of 0, 1, 2, 3, 4, 6, 8, 12.
  const uint32_t halves = 0xc8643210u >> 4 * (code & 7) & 15;
  return (code & 8 ? -0.5f : 0.5f) * static_cast<float>(halves);
}

}  // namespace moxie::kernel
