// SPDX-License-Identifier: Apache-2.0
// The comparison of a result with its reference, and the bounds that it is held to.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "moxie/types.h"

namespace moxie::reference {

// How far off a result may be. An element may be off by `ulps` units in the last place of bf16 plus `row` times the
// norm of its row.
struct Bound {
  double frobenius = 4e-3;  // error of the whole result relative to its norm
  double ulps = 2;
  double row = 1e-4;
};
constexpr Bound kBf16Bound{};
// The bound of float32 results that no approximate activation has touched.
constexpr Bound kF32Bound{1e-4, 0.0625, 1e-5};

// Gathers the comparison of a result with its reference row by row.
class Comparison {
 public:
  explicit Comparison(const Bound& bound = kBf16Bound) : bound_(bound) {}
  // `got` has `columns` elements of `type`. `row` names the row in failure().
  void add_row(int64_t row, const double* expected, const void* got, DataType type, int64_t columns);
  void add(const std::vector<double>& expected, const void* got, DataType type, int64_t rows, int64_t columns,
           int64_t leading_dimension, int64_t first_row = 0);
  void merge(const Comparison& other);

  double relative_error() const;           // Frobenius
  double worst() const { return worst_; }  // the worst element's error as a fraction of what it may be
  bool pass() const;
  std::string failure() const;  // one sentence, empty when it passes

 private:
  Bound bound_;
  double error_squared_ = 0, norm_squared_ = 0, worst_ = 0;
  int64_t elements_ = 0, worst_row_ = -1, worst_column_ = -1;
  double worst_expected_ = 0, worst_got_ = 0;
};

}  // namespace moxie::reference
