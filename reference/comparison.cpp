// SPDX-License-Identifier: Apache-2.0
// See comparison.h.
#include "reference/comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "reference/formats.h"

namespace moxie::reference {
namespace {

double ulp_of_bf16(double value) {
  const double magnitude = std::max(std::fabs(value), 0x1p-126);
  return std::ldexp(1.0, std::ilogb(magnitude) - 7);
}

}  // namespace

void Comparison::add_row(int64_t row, const double* expected, const void* got, DataType type, int64_t columns) {
  double row_squared = 0;
  for (int64_t i = 0; i < columns; ++i) row_squared += expected[i] * expected[i];
  const double row_allowance = bound_.row * std::sqrt(row_squared);
  norm_squared_ += row_squared;
  elements_ += columns;
  for (int64_t i = 0; i < columns; ++i) {
    const double value = type == DataType::Bf16 ? bf16_to_float(static_cast<const uint16_t*>(got)[i])
                                                : static_cast<const float*>(got)[i];
    const double error = std::fabs(value - expected[i]);
    // The allowance is never zero, since the smallest ulp is counted, so that a zero can be compared.
    const double allowed = bound_.ulps * ulp_of_bf16(expected[i]) + row_allowance;
    double fraction = error / allowed;
    if (!(fraction <= std::numeric_limits<double>::max())) fraction = std::numeric_limits<double>::infinity();
    error_squared_ += std::isfinite(error) ? error * error : std::numeric_limits<double>::infinity();
    if (fraction > worst_ || worst_row_ < 0) {
      worst_ = fraction;
      worst_row_ = row;
      worst_column_ = i;
      worst_expected_ = expected[i];
      worst_got_ = value;
    }
  }
}

void Comparison::add(const std::vector<double>& expected, const void* got, DataType type, int64_t rows, int64_t columns,
                     int64_t leading_dimension, int64_t first_row) {
  for (int64_t row = 0; row < rows; ++row) {
    add_row(first_row + row, expected.data() + row * columns,
            static_cast<const char*>(got) + row * leading_dimension * size_of(type), type, columns);
  }
}

void Comparison::merge(const Comparison& other) {
  error_squared_ += other.error_squared_;
  norm_squared_ += other.norm_squared_;
  elements_ += other.elements_;
  if (other.worst_row_ >= 0 && (worst_row_ < 0 || other.worst_ > worst_)) {
    worst_ = other.worst_;
    worst_row_ = other.worst_row_;
    worst_column_ = other.worst_column_;
    worst_expected_ = other.worst_expected_;
    worst_got_ = other.worst_got_;
  }
}

double Comparison::relative_error() const {
  if (error_squared_ == 0) return 0;
  return norm_squared_ == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(error_squared_ / norm_squared_);
}

bool Comparison::pass() const { return relative_error() <= bound_.frobenius && worst_ <= 1; }

std::string Comparison::failure() const {
  if (pass()) return "";
  if (worst_ > 1) {
    return fmt::format("row {}, column {}: {:g} where {:g} was expected, {:.3g} times what it may be off by",
                       worst_row_, worst_column_, worst_got_, worst_expected_, worst_);
  }
  return fmt::format("relative error {:.3g} of the whole, at most {:g} is allowed", relative_error(), bound_.frobenius);
}

}  // namespace moxie::reference
