// SPDX-License-Identifier: Apache-2.0
// sin, cos, log2, exp2 and tanh of floats in double precision, without branches, so that loops over lanes vectorize.
// Each result is within kDoubt units in the last place of a double, or a NaN, for which the C library must be asked.
// Rounded to float the results are then those of the C library on every host.
#pragma once
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace sim::isa {

constexpr uint64_t kDoubt = 8;

// Whether an error of kDoubt could change the float that d is rounded to.
inline bool in_doubt(double d) {
  constexpr uint64_t kDropped = (uint64_t{1} << 29) - 1, kHalf = uint64_t{1} << 28;
  const uint64_t from_tie = (std::bit_cast<uint64_t>(d) - kHalf + kDoubt) & kDropped;
  const double m = std::fabs(d);
  const bool normal = m == 0 || m >= 0x1p-126;  // Subnormal floats drop more bits, and a NaN is in doubt too.
  return !normal | (from_tie < 2 * kDoubt);
}

// Adding this to a double of at most 2^51 leaves its integer in the last bits.
constexpr double kRound = 0x1.8p52;

inline double or_ask(bool known, double d) { return known ? d : std::numeric_limits<double>::quiet_NaN(); }

// Gives sin(x + quarters * pi / 2).
inline double quick_sine(float value, uint64_t quarters) {
  const double x = value;
  const double shifted = x * 0x1.45f306dc9c883p-1 + kRound;
  const double k = shifted - kRound;
  quarters += std::bit_cast<uint64_t>(shifted);
  // pi / 2 stands in pieces of 33, 33 and 53 bits. k has at most 20 bits, so the first two products are exact.
  const double r = ((x - k * 0x1.921fb544p+0) - k * 0x1.0b4611a6p-34) - k * 0x1.3198a2e037073p-69;
  const double z = r * r;
  double s = -1.0 / 1307674368000, c = 1.0 / 20922789888000;  // Taylor's series serves, since |r| is at most pi / 4.
  s = s * z + 1.0 / 6227020800;
  s = s * z - 1.0 / 39916800;
  s = s * z + 1.0 / 362880;
  s = s * z - 1.0 / 5040;
  s = s * z + 1.0 / 120;
  s = s * z - 1.0 / 6;
  c = c * z - 1.0 / 87178291200;
  c = c * z + 1.0 / 479001600;
  c = c * z - 1.0 / 3628800;
  c = c * z + 1.0 / 40320;
  c = c * z - 1.0 / 720;
  c = c * z + 1.0 / 24;
  c = c * z - 0.5;
  const double sine = s * (z * r) + r, cosine = c * z + 1.0;
  const double found = (quarters & 1) != 0 ? cosine : sine;
  const double turned = std::bit_cast<double>(std::bit_cast<uint64_t>(found) ^ (quarters & 2) << 62);
  return or_ask(std::fabs(x) < 0x1p20, turned);
}
inline double quick_sin(float x) { return x == 0 ? static_cast<double>(x) : quick_sine(x, 0); }
inline double quick_cos(float x) { return quick_sine(x, 1); }

// Holds for each 128th of an octave from 0.7 on a short number near the reciprocal of its middle, and -log2 of that.
struct Log2Table {
  std::array<double, 128> reciprocal, log;
  static constexpr uint32_t kFirst = 0x3f330000;
  Log2Table() {
    for (uint32_t i = 0; i < 128; ++i) {
      const double middle = std::bit_cast<float>(kFirst + (i << 16) + 0x8000u);
      const bool at_one = i == 76 || i == 77;  // The table is exact where the logarithm is small.
      reciprocal[i] = at_one ? 1.0 : std::round(1024 / middle) / 1024;
      log[i] = static_cast<double>(-std::log2(static_cast<long double>(reciprocal[i])));
    }
  }
};
inline const Log2Table kLog2Table;

inline double quick_log2(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), over = bits - Log2Table::kFirst;
  const uint32_t i = over >> 16 & 127;
  const double k = static_cast<int32_t>(over) >> 23;
  const double r =
      static_cast<double>(std::bit_cast<float>(bits - (over & 0xff800000u))) * kLog2Table.reciprocal[i] - 1;
  double p = 1.0 / 9;  // |r| is below 2^-7.
  p = p * r - 1.0 / 8;
  p = p * r + 1.0 / 7;
  p = p * r - 1.0 / 6;
  p = p * r + 1.0 / 5;
  p = p * r - 1.0 / 4;
  p = p * r + 1.0 / 3;
  p = p * r - 1.0 / 2;
  p = p * r + 1.0;
  const double result = (k + kLog2Table.log[i]) + p * r * 0x1.71547652b82fep+0;
  return or_ask(bits - 0x00800000u < 0x7f000000u, result);  // The number must be positive, normal and finite.
}

// Gives e^r - 1 for |r| up to ln(2) / 2.
inline double small_expm1(double r) {
  double p = 1.0 / 1307674368000;
  p = p * r + 1.0 / 87178291200;
  p = p * r + 1.0 / 6227020800;
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  return p * (r * r) + r;
}
// Gives 2 to the integer that a sum with kRound has in its last bits.
inline double power_of_two(double shifted) {
  return std::bit_cast<double>((std::bit_cast<uint64_t>(shifted) + 1023) << 52);
}

inline double quick_exp2(float value) {
  double x = value;
  x = x < 200 ? x : 200;  // The result is past the floats from here on.
  const double shifted = x + kRound;
  const double r = (x - (shifted - kRound)) * 0x1.62e42fefa39efp-1;
  return or_ask(value > -200, (small_expm1(r) + 1) * power_of_two(shifted));
}

inline double quick_tanh(float value) {
  double y = 2 * std::fabs(static_cast<double>(value));
  y = y < 44 ? y : 44;  // From here on a double has no room for the difference from 1.
  const double shifted = y * 0x1.71547652b82fep+0 + kRound;
  const double k = shifted - kRound;
  const double r = (y - k * 0x1.62e42fee00000p-1) - k * 0x1.a39ef35793c76p-33;
  const double power = power_of_two(shifted);
  const double e = small_expm1(r) * power + (power - 1);  // This is e^y - 1.
  return or_ask(value == value, std::copysign(e / (e + 2), static_cast<double>(value)));
}

}  // namespace sim::isa
