// SPDX-License-Identifier: Apache-2.0
// The elements of matrix products by the names of their types: random values, and codes from values and back.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>

namespace sim_test {

inline int bits_of(const std::string& type) {
  if (type == "f64") return 64;
  if (type == "tf32" || type == "f32" || type == "s32") return 32;
  if (type == "f16" || type == "bf16") return 16;
  if (type == "s4" || type == "u4") return 4;
  return type == "b1" ? 1 : 8;
}

// Values that every type holds exactly and whose sums are exact; f64 gets ones whose sums must be rounded.
inline double random_value(const std::string& type, std::mt19937& rng) {
  const auto whole = [&](int low, int high) {
    return static_cast<double>(low + static_cast<int>(rng() % static_cast<unsigned>(high - low + 1)));
  };
  if (type == "f64") return std::ldexp(whole(-1000000, 1000000), static_cast<int>(rng() % 40) - 20) / 3;
  if (type == "s8") return whole(-128, 127);
  if (type == "u8") return whole(0, 255);
  if (type == "s4") return whole(-8, 7);
  if (type == "u4") return whole(0, 15);
  if (type == "b1") return whole(0, 1);
  if (type == "s32")
    return rng() % 4 == 0 ? whole(2147483000, 2147483647) * (rng() % 2 ? 1 : -1) : whole(-100000, 100000);
  return whole(-8, 8) / 4;
}

inline uint64_t code_of(const std::string& type, double v) {
  if (type == "f64") return std::bit_cast<uint64_t>(v);
  if (type == "f32") return std::bit_cast<uint32_t>(static_cast<float>(v));
  // The low bits of a tf32 register do not count.
  if (type == "tf32") return std::bit_cast<uint32_t>(static_cast<float>(v)) | 0x1abc;
  if (type == "bf16") return std::bit_cast<uint32_t>(static_cast<float>(v)) >> 16;
  if (type[0] == 's' || type[0] == 'u' || type == "b1")
    return static_cast<uint64_t>(static_cast<int64_t>(v)) & ((1ull << bits_of(type)) - 1);
  const int mantissa = type == "f16" ? 10 : type == "e5m2" ? 2 : 3, bias = type == "e4m3" ? 7 : 15;
  if (v == 0) return 0;
  int exponent;
  const double fraction = std::frexp(std::fabs(v), &exponent);  // [0.5, 1)
  const auto code = static_cast<uint64_t>((exponent - 1 + bias) << mantissa) +
                    static_cast<uint64_t>((fraction * 2 - 1) * (1 << mantissa));
  return code | (v < 0 ? 1ull << (bits_of(type) - 1) : 0);
}

inline double value_of(const std::string& type, uint64_t code) {
  if (type == "f64") return std::bit_cast<double>(code);
  if (type == "f32") return std::bit_cast<float>(static_cast<uint32_t>(code));
  if (type == "s32") return static_cast<int32_t>(code);
  const int exponent = static_cast<int>(code >> 10 & 31);
  const double magnitude =
      std::ldexp(static_cast<double>((code & 1023) + (exponent ? 1024 : 0)), std::max(exponent, 1) - 25);
  return code & 0x8000 ? -magnitude : magnitude;
}

}  // namespace sim_test
