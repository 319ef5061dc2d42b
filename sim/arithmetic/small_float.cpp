// SPDX-License-Identifier: Apache-2.0
// Codes of the small floating-point formats.
#include "sim/arithmetic/small_float.h"

#include <algorithm>
#include <cmath>

namespace sim::isa {

uint32_t SmallFormat::largest() const {
  if (has_infinity) return (((1u << exponent_bits) - 1) << mantissa_bits) - 1;
  return has_nan ? nan() - 1 : nan();
}

namespace {

// q >= 0 to an integer; `up` is the direction away from zero.
double round_quanta(double q, bool negative, const Encoding& how) {
  const double whole = std::floor(q), rest = q - whole;
  bool up = false;
  switch (how.round) {
    case Round::Nearest:
      up = rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2) != 0);
      break;
    case Round::NearestAway:
      up = rest >= 0.5;
      break;
    case Round::Zero:
      break;
    case Round::Down:
      up = negative && rest > 0;
      break;
    case Round::Up:
      up = !negative && rest > 0;
      break;
    case Round::Stochastic: {
      const double scale = std::ldexp(1.0, how.random_bits);
      up = std::floor(rest * scale) + how.random >= scale;
      break;
    }
  }
  return whole + (up ? 1 : 0);
}

}  // namespace

uint32_t encode(double value, const SmallFormat& format, const Encoding& how) {
  // .satfinite turns NaN into the largest value where the format has none; so does nan().
  if (value != value) return format.nan();
  bool negative = std::signbit(value);
  if (how.relu && negative) return 0;
  const uint32_t sign = negative ? format.sign() : 0;
  const double m = std::fabs(value);
  const uint32_t largest = format.largest();
  if (std::isinf(m)) return sign | (how.saturate_finite || !format.has_infinity ? largest : largest + 1);
  if (m == 0) return sign;
  const int smallest = 1 - format.bias();
  const int exponent = std::max(std::ilogb(m), smallest);
  const double quanta = round_quanta(std::ldexp(m, format.mantissa_bits - exponent), negative, how);
  // The hidden bit counts as one exponent step, so a carry out of the mantissa raises the exponent by itself.
  const double code = quanta + std::ldexp(static_cast<double>(exponent - smallest), format.mantissa_bits);
  if (code <= largest) return sign | static_cast<uint32_t>(code);
  const bool toward_zero =
      how.round == Round::Zero || (how.round == Round::Down && !negative) || (how.round == Round::Up && negative);
  return sign | (how.saturate_finite || toward_zero || !format.has_infinity ? largest : largest + 1);
}

double decode(uint32_t code, const SmallFormat& format) {
  const double sign = code & format.sign() ? -1.0 : 1.0;
  const uint32_t m = code & (format.sign() - 1);
  if (m > format.largest()) return format.has_infinity && m == format.largest() + 1 ? sign * INFINITY : std::nan("");
  const int field = static_cast<int>(m >> format.mantissa_bits);
  const uint32_t fraction = m & ((1u << format.mantissa_bits) - 1);
  const double mantissa = field == 0 ? fraction : fraction + std::ldexp(1.0, format.mantissa_bits);
  return sign * std::ldexp(mantissa, std::max(field, 1) - format.bias() - format.mantissa_bits);
}

uint32_t encode_scale(double value, Round round, bool saturate_finite) {
  constexpr uint32_t kNan = 255, kLargest = 254;
  if (value != value) return kNan;
  const double m = std::fabs(value);
  if (m == 0) return 0;
  if (std::isinf(m)) return saturate_finite ? kLargest : kNan;
  int exponent = std::ilogb(m);
  if (round == Round::Up && m > std::ldexp(1.0, exponent)) ++exponent;
  if (exponent > 127) return saturate_finite || round == Round::Zero ? kLargest : kNan;
  return static_cast<uint32_t>(std::max(exponent + 127, 0));
}

}  // namespace sim::isa
