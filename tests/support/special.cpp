// SPDX-License-Identifier: Apache-2.0
// See special.h.
#include "tests/support/special.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "reference/formats.h"
#include "reference/product.h"

namespace moxie::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kOverflow = 0.99 * double(std::numeric_limits<float>::max());

PossibleValues anything() { return {0, 0, false, true}; }
PossibleValues not_a_number() { return {0, 0, true, false}; }

float element_at(DataType type, const uint8_t* element) {
  float value;
  uint16_t bits;
  if (type == DataType::F32) {
    std::memcpy(&value, element, 4);
  } else {
    std::memcpy(&bits, element, 2);
    value = reference::bf16_to_float(bits);
  }
  return value;
}

float rounded(DataType type, double value) {
  const auto single = float(value);
  return type == DataType::F32 ? single : reference::bf16_to_float(reference::float_to_bf16(single));
}

// Between the least and the largest of some values, `slack` wider. Values that are NaN must be so in all cases.
PossibleValues around(const std::vector<double>& values, double slack) {
  const auto nans = std::count_if(values.begin(), values.end(), [](double x) { return std::isnan(x); });
  if (nans == int64_t(values.size())) return not_a_number();
  if (nans > 0 || std::isnan(slack)) return anything();
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  if (*least == -kInfinity && *most == kInfinity) return anything();  // an infinity times what may be 0
  PossibleValues p{*least, *most, false, false};
  if (std::isfinite(p.low)) p.low -= slack + 2e-5 * std::fabs(p.low);
  if (std::isfinite(p.high)) p.high += slack + 2e-5 * std::fabs(p.high);
  return p;
}

// The sum as the tensor cores make it.
PossibleValues accumulated(const double* a, const double* b, int64_t k) {
  double sum = 0, positive = 0, negative = 0;
  bool plus = false, minus = false;
  for (int64_t i = 0; i < k; ++i) {
    const double term = a[i] * b[i];
    if (std::isnan(term)) return not_a_number();
    plus = plus || term == kInfinity, minus = minus || term == -kInfinity;
    if (!std::isfinite(term)) continue;
    sum += term;
    (term > 0 ? positive : negative) += std::fabs(term);
  }
  if (plus && minus) return not_a_number();
  // A sum of finite terms that passes float32's range meets the other infinity.
  if (plus) return negative > kOverflow ? anything() : PossibleValues{kInfinity, kInfinity, false, false};
  if (minus) return positive > kOverflow ? anything() : PossibleValues{-kInfinity, -kInfinity, false, false};
  const double all = positive + negative;
  if (all > kOverflow && std::min(positive, negative) > 1e-3 * all) return anything();
  const double off = 1e-5 * all + double(k) * 0x1p-148;
  return {sum - off, sum + off, false, false};
}

}  // namespace

bool PossibleValues::has(DataType type, const uint8_t* element) const {
  const float got = element_at(type, element);
  if (any) return true;
  if (nan || std::isnan(got)) return nan && std::isnan(got);
  return rounded(type, low) <= got && got <= rounded(type, high);
}

std::string PossibleValues::text(DataType type, const uint8_t* element) const {
  return fmt::format("{} instead of {}", element_at(type, element),
                     nan ? "nan" : fmt::format("{} to {}", rounded(type, low), rounded(type, high)));
}

PossibleValues possible_sums(const double* a, const double* b, int64_t k, double factor, double bias) {
  const PossibleValues sum = accumulated(a, b, k);
  if (sum.nan || std::isnan(factor) || std::isnan(bias)) return not_a_number();
  factor = double(float(factor));
  if (sum.any || (std::isinf(factor) && sum.low <= 0 && sum.high >= 0)) return anything();
  // Float32 holds no number beyond its range, also between the steps.
  const auto held = [](double x) { return std::fabs(x) > kOverflow ? double(float(x)) : x; };
  std::vector<double> ends;
  for (const double end : {sum.low, sum.high}) ends.push_back(held(held(end) * factor) + bias);
  return around(ends, factor == 1 && bias == 0 ? 0 : 1e-6 * std::fabs(bias) + 0x1p-148);
}

PossibleValues possible_activations(const ProductSpec& p, const std::vector<PossibleValues>& pre) {
  const bool gated = pre.size() > 1;
  const PossibleValues none, &x = pre[0], &up = gated ? pre[1] : none;
  // A clamp lets NaN through, and so does every activation.
  if (x.nan || up.nan) return not_a_number();
  if (x.any || up.any) return anything();
  if (p.activation == Activation::None) return x;
  // What a gate that is almost closed leaves of an infinity depends on when its sigmoid becomes 0. That of a GELU,
  // whose argument has a cube, does so earlier, and the reference's 1 + tanh earlier still.
  const double closed = p.activation == Activation::Geglu ? -5 : -30;
  const bool wide_up = !std::isfinite(float(up.low)) || !std::isfinite(float(up.high));
  if (wide_up && x.low < closed && x.high > -kInfinity) return anything();
  const auto held = [](double value) { return double(float(value)); };
  std::vector<double> values;
  for (const double gate : {x.low, (x.low + x.high) / 2, x.high}) {
    for (const double other : {up.low, (up.low + up.high) / 2, up.high})
      values.push_back(reference::activate(activation_of(p), held(gate), held(other)));
  }
  double largest_up = gated ? std::max(std::fabs(up.low), std::fabs(up.high)) : 1;
  if (p.activation == Activation::SwigluOai) largest_up = std::min(largest_up, double(p.limit));
  if (p.activation == Activation::SwigluClamped) largest_up = std::min(largest_up, double(p.swiglu_clamped.up_limit));
  if (p.activation == Activation::Situ) largest_up = std::min(largest_up, double(p.situ.linear_beta));
  if (std::isinf(largest_up)) largest_up = 1;
  const double width = std::isfinite(x.high - x.low) ? x.high - x.low : 0;
  return around(values, (1 + largest_up) * (1e-4 + width));
}

}  // namespace moxie::test
