// SPDX-License-Identifier: Apache-2.0
// Floating-point formats of at most 19 bits: their codes, and rounding to them by any mode (PTX ISA 9.7.9.21).
// Exact for every double; the common f16 and bf16 cases have fast paths in half.h that must agree with it.
#pragma once
#include <cstdint>

namespace sim::isa {

struct SmallFormat {
  int exponent_bits, mantissa_bits;
  bool has_infinity;  // the top exponent is kept for infinity and NaN
  bool has_nan;       // without infinity: only the very last code (e4m3), or none
  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr int bits() const { return 1 + exponent_bits + mantissa_bits; }
  constexpr uint32_t sign() const { return 1u << (exponent_bits + mantissa_bits); }
  uint32_t largest() const;                              // code of the largest finite value
  constexpr uint32_t nan() const { return sign() - 1; }  // canonical; also the largest value where there is no NaN
};

constexpr SmallFormat kF16{5, 10, true, true}, kBF16{8, 7, true, true}, kTF32{8, 10, true, true},
    kE4M3{4, 3, false, true}, kE5M2{5, 2, true, true}, kE2M1{2, 1, false, false}, kE2M3{2, 3, false, false},
    kE3M2{3, 2, false, false};

enum class Round : uint8_t { Nearest, Zero, Down, Up, NearestAway, Stochastic };

struct Encoding {
  Round round = Round::Nearest;
  bool saturate_finite = false;  // .satfinite
  bool relu = false;
  uint32_t random = 0;  // Round::Stochastic: `random_bits` bits, added to the discarded ones
  int random_bits = 0;
};

uint32_t encode(double value, const SmallFormat& format, const Encoding& how);
double decode(uint32_t code, const SmallFormat& format);

// ue8m0: 2^(code - 127), 255 is NaN. The sign is dropped; rounds by Zero or Up.
uint32_t encode_scale(double value, Round round, bool saturate_finite);

}  // namespace sim::isa
