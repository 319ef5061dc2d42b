// SPDX-License-Identifier: Apache-2.0
// The small floating-point formats from their definitions (IEEE 754, OCP MX and FP8), for what tests expect: values
// from the fields of a code, codes by looking for the value's neighbours. Shares nothing with the simulator.
#pragma once
#include <cmath>
#include <cstdint>

namespace sim_test {

struct FloatFormat {
  int exponent, mantissa;  // bits
  bool infinity, nan;      // infinity: the last exponent is for it and for NaN; NaN alone: the last code
  int bits() const { return 1 + exponent + mantissa; }
  uint32_t magnitudes() const { return 1u << (exponent + mantissa); }
  uint32_t largest() const {
    return infinity ? magnitudes() - (1u << mantissa) - 1 : nan ? magnitudes() - 2 : magnitudes() - 1;
  }
};
constexpr FloatFormat kF16{5, 10, true, true}, kBF16{8, 7, true, true}, kE4M3{4, 3, false, true},
    kE5M2{5, 2, true, true}, kE2M3{2, 3, false, false}, kE3M2{3, 2, false, false}, kE2M1{2, 1, false, false};

inline double value_of(uint64_t code, const FloatFormat& f) {
  const auto magnitude = static_cast<uint32_t>(code % f.magnitudes());
  const bool negative = (code / f.magnitudes()) % 2 != 0;
  const int field = static_cast<int>(magnitude >> f.mantissa), bias = (1 << (f.exponent - 1)) - 1;
  const double fraction = std::ldexp(magnitude % (1u << f.mantissa), -f.mantissa);
  double value = field == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, field - bias);
  if (magnitude > f.largest()) value = f.infinity && fraction == 0 ? INFINITY : NAN;
  return negative ? -value : value;
}

enum class Rounding { Nearest, Zero, Down, Up };

// NaN becomes the code of all ones but the sign (PTX ISA 9.7.9.21), which is the largest value where there is no NaN.
inline uint32_t code_of(double value, const FloatFormat& f, Rounding rounding = Rounding::Nearest,
                        bool satfinite = false) {
  if (std::isnan(value)) return f.magnitudes() - 1;
  const bool negative = std::signbit(value);
  const double m = std::fabs(value);
  uint32_t below = 0, above = f.largest() + 1;  // the value of `below` is at most m, that of `above` greater
  while (above - below > 1) {
    const uint32_t middle = below + (above - below) / 2;
    (value_of(middle, f) <= m ? below : above) = middle;
  }
  const double low = value_of(below, f);
  const double high = below < f.largest() ? value_of(above, f) : 2 * low - value_of(below - 1, f);
  bool up = rounding == Rounding::Nearest
                ? m - low > high - m || (m - low == high - m && below % 2 != 0)
                : (rounding == Rounding::Up && !negative) || (rounding == Rounding::Down && negative);
  if (m == low) up = false;
  if (std::isinf(m)) up = true;
  uint32_t code = below + up;
  if (code > f.largest() && (satfinite || !f.infinity)) code = f.largest();
  return code + (negative ? f.magnitudes() : 0);
}

}  // namespace sim_test
