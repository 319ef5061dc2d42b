// SPDX-License-Identifier: Apache-2.0
// What a product's element may be where an operand holds NaN, an infinity, the largest number, a subnormal or a zero.
// It may be anything where the sum can pass float32's range on the way. All others are NaN exactly where they must be,
// have an infinity's sign, or lie between bounds.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/product_spec.h"

namespace moxie::test {

struct PossibleValues {
  double low = 0, high = 0;
  bool nan = false;  // it is NaN, and nothing else
  bool any = false;  // nothing is asked of it

  // Whether the stored element, bf16 or float32, is one of them.
  bool has(DataType type, const uint8_t* element) const;
  std::string text(DataType type, const uint8_t* element) const;
};

// Of factor * (sum of a[i] b[i]) + bias.
PossibleValues possible_sums(const double* a, const double* b, int64_t k, double factor, double bias);
// Of the problem's activation: of one value, with a gate of gate and up.
PossibleValues possible_activations(const ProductSpec& problem, const std::vector<PossibleValues>& pre);

}  // namespace moxie::test
