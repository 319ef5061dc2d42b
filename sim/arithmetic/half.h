// SPDX-License-Identifier: Apache-2.0
// The 16-bit floating-point formats as values: f16 (IEEE binary16) and bf16, and their exact or rounded conversions
// from and to float. Branch-free, so that loops over lanes vectorise. Other small formats are in small_float.h.
#pragma once
#include <bit>
#include <cstdint>

namespace sim::isa {

struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

constexpr uint16_t kCanonicalNan16 = 0x7fff;  // f16 and bf16 (PTX ISA 9.7.4)
// OOB NaN (5.5.3.3): what tensor copies fill in and fma.oob looks for, here as on an H200, for the ISA gives no bits.
constexpr uint16_t kOutsideNan16 = 0x7ff7;
constexpr uint32_t kCanonicalNan32 = 0x7fffffff;

inline float widen(float f) { return f; }
inline double widen(double d) { return d; }

inline float widen(Bfloat b) { return std::bit_cast<float>(static_cast<uint32_t>(b.bits) << 16); }

inline float widen(Half h) {
  const uint32_t magnitude = (h.bits & 0x7fffu) << 13;
  // Scaling by 2^112 moves the exponent bias from 15 to 127 and normalises subnormals.
  const uint32_t scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
  return std::bit_cast<float>(scaled | special | (h.bits & 0x8000u) << 16);
}

// Round to nearest even; NaN becomes the canonical one.
template <class E>
E narrow(float f);

template <>
inline Bfloat narrow<Bfloat>(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? kCanonicalNan16 : rounded)};
}

template <>
inline Half narrow<Half>(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1)) >> 13;
  // Adding 0.5 puts a subnormal's last bit where float rounds.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x47800000u ? 0x7c00u : result;
  result |= bits >> 16 & 0x8000u;
  return {static_cast<uint16_t>(magnitude > 0x7f800000u ? kCanonicalNan16 : result)};
}

template <>
inline float narrow<float>(float f) {
  return f != f ? std::bit_cast<float>(kCanonicalNan32) : f;
}

// A float whose rounding to any format of at most 22 bits gives what rounding d would: the inexact result is made odd.
inline float round_to_odd(double d) {
  const float f = static_cast<float>(d);
  const double back = f;
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const bool inexact = back != d && d == d && (bits & 1) == 0;
  const bool too_large = (back < 0 ? -back : back) > (d < 0 ? -d : d);
  const uint32_t step = inexact ? (too_large ? 0xffffffffu : 1u) : 0u;
  return std::bit_cast<float>(bits + step);
}

}  // namespace sim::isa
