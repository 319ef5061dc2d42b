// See reference.h.
#include "cli/reference.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include <fmt/format.h>

namespace moxie::reference {

float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

namespace {

constexpr int kPanel = 8;  // columns of the product computed together
constexpr int kRows = 4;   // rows computed together
// Doubles for eight columns of B, k-major, so that a step of k is one short vector.
void pack_panel(const Group& group, int64_t first_column, double* panel) {
  for (int column = 0; column < kPanel; ++column) {
    const int64_t n = std::min<int64_t>(first_column + column, group.n - 1);
    const uint16_t* from = group.b + n * group.ldb;
    for (int64_t k = 0; k < group.k; ++k) panel[k * kPanel + column] = bf16_to_float(from[k]);
  }
}

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("arch=x86-64-v3", "default")))
#endif
void multiply(const double* a, int64_t k_total, const double* panel, double (*result)[kPanel]) {
  double sum[kRows][kPanel] = {};
  for (int64_t k = 0; k < k_total; ++k) {
    for (int row = 0; row < kRows; ++row) {
      const double x = a[row * k_total + k];
      for (int column = 0; column < kPanel; ++column) sum[row][column] += x * panel[k * kPanel + column];
    }
  }
  std::memcpy(result, sum, sizeof(sum));
}

double ulp_of_bf16(double value) {
  const double magnitude = std::max(std::fabs(value), 0x1p-126);
  return std::ldexp(1.0, std::ilogb(magnitude) - 7);
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double gelu_tanh(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

}  // namespace

std::vector<double> product(const Group& group, int threads) {
  std::vector<double> pre(static_cast<size_t>(group.m * group.n));
  if (pre.empty()) return pre;
  const int64_t row_blocks = (group.m + kRows - 1) / kRows;
  std::vector<double> a(static_cast<size_t>(row_blocks * kRows * group.k));
  for (int64_t row = 0; row < group.m; ++row) {
    for (int64_t k = 0; k < group.k; ++k) a[row * group.k + k] = bf16_to_float(group.a[row * group.lda + k]);
  }
  std::atomic<int64_t> next{0};
  auto work = [&] {
    std::vector<double> panel(static_cast<size_t>(group.k * kPanel));
    for (int64_t first = next.fetch_add(kPanel); first < group.n; first = next.fetch_add(kPanel)) {
      pack_panel(group, first, panel.data());
      const int64_t columns = std::min<int64_t>(kPanel, group.n - first);
      for (int64_t block = 0; block < row_blocks; ++block) {
        double result[kRows][kPanel];
        multiply(a.data() + block * kRows * group.k, group.k, panel.data(), result);
        const int64_t rows = std::min<int64_t>(kRows, group.m - block * kRows);
        for (int64_t row = 0; row < rows; ++row) {
          const double* values = result[row];
          double* to = pre.data() + (block * kRows + row) * group.n + first;
          for (int64_t column = 0; column < columns; ++column) {
            to[column] = values[column] + (group.bias ? bf16_to_float(group.bias[first + column]) : 0.0);
          }
        }
      }
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (auto& thread : others) thread.join();
  return pre;
}

double activate(Activation activation, double x, double up, double alpha, double limit) {
  switch (activation) {
    case Activation::None:
      return x;
    case Activation::Relu:
      return std::max(x, 0.0);
    case Activation::Relu2:
      return x > 0 ? x * x : 0.0;
    case Activation::GeluTanh:
      return gelu_tanh(x);
    case Activation::GeluErf:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::Silu:
      return x * sigmoid(x);
    case Activation::Swiglu:
      return x * sigmoid(x) * up;
    case Activation::SwigluOai: {
      const double gate = std::min(x, limit);
      return gate * sigmoid(alpha * gate) * (std::clamp(up, -limit, limit) + 1);
    }
    case Activation::Geglu:
      return gelu_tanh(x) * up;
    case Activation::Reglu:
      return std::max(x, 0.0) * up;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

std::vector<double> activate_all(Activation activation, GateLayout gate, const std::vector<double>& pre, int64_t m,
                                 int64_t n, double alpha, double limit) {
  const bool gated = is_gated(activation);
  const int64_t width = gated ? n / 2 : n;
  std::vector<double> out(static_cast<size_t>(m * width));
  for (int64_t row = 0; row < m; ++row) {
    const double* from = pre.data() + row * n;
    double* to = out.data() + row * width;
    for (int64_t column = 0; column < width; ++column) {
      double x = from[column], up = 0;
      if (gated) {
        const bool interleaved = gate == GateLayout::Interleaved;
        x = interleaved ? from[2 * column] : from[column + (gate == GateLayout::SplitUpFirst ? width : 0)];
        up = interleaved ? from[2 * column + 1] : from[column + (gate == GateLayout::Split ? width : 0)];
      }
      to[column] = activate(activation, x, up, alpha, limit);
    }
  }
  return out;
}

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
    // A tiny allowance of its own lets an exact zero be compared without dividing by zero.
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
