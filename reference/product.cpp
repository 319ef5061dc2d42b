// SPDX-License-Identifier: Apache-2.0
// See product.h.
#include "reference/product.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "reference/formats.h"

namespace moxie::reference {

namespace {

constexpr int kPanel = 8;  // columns of the product computed together
constexpr int kRows = 4;   // rows computed together

double value_of(uint16_t bf16) { return bf16_to_float(bf16); }
double value_of(double value) { return value; }

// Brings eight columns of B to doubles, k-major, so that a step of k is one short vector.
template <class Element>
void pack_panel(const Element* b, int64_t ldb, int64_t first_column, int64_t columns, int64_t k_total, double* panel) {
  for (int column = 0; column < kPanel; ++column) {
    const Element* from = b + std::min<int64_t>(first_column + column, columns - 1) * ldb;
    for (int64_t k = 0; k < k_total; ++k) panel[k * kPanel + column] = value_of(from[k]);
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

template <class Element>
std::vector<double> multiply_all(const Element* a, int64_t lda, const Element* b, int64_t ldb, const uint16_t* bias,
                                 int64_t m, int64_t n, int64_t k_total, int threads) {
  std::vector<double> pre(static_cast<size_t>(m * n));
  if (pre.empty()) return pre;
  const int64_t row_blocks = (m + kRows - 1) / kRows;
  std::vector<double> rows_of_a(static_cast<size_t>(row_blocks * kRows * k_total));
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t k = 0; k < k_total; ++k) rows_of_a[row * k_total + k] = value_of(a[row * lda + k]);
  }
  std::atomic<int64_t> next{0};
  auto work = [&] {
    std::vector<double> panel(static_cast<size_t>(k_total * kPanel));
    for (int64_t first = next.fetch_add(kPanel); first < n; first = next.fetch_add(kPanel)) {
      pack_panel(b, ldb, first, n, k_total, panel.data());
      const int64_t columns = std::min<int64_t>(kPanel, n - first);
      for (int64_t block = 0; block < row_blocks; ++block) {
        double result[kRows][kPanel];
        multiply(rows_of_a.data() + block * kRows * k_total, k_total, panel.data(), result);
        const int64_t rows = std::min<int64_t>(kRows, m - block * kRows);
        for (int64_t row = 0; row < rows; ++row) {
          const double* values = result[row];
          double* to = pre.data() + (block * kRows + row) * n + first;
          for (int64_t column = 0; column < columns; ++column) {
            to[column] = values[column] + (bias ? bf16_to_float(bias[first + column]) : 0.0);
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

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
// x * s, and its limit 0 where x is -infinity and s is 0.
double times_gate(double x, double s) { return s == 0 ? 0 : x * s; }
double soft_cap(double x, double cap) { return cap * std::tanh(x / cap); }
double gelu_tanh(double x) {
  return times_gate(x, 0.5 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))));
}

}  // namespace

std::vector<double> product(const Group& group, int threads) {
  return multiply_all(group.a, group.lda, group.b, group.ldb, group.bias, group.m, group.n, group.k, threads);
}

std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b, int64_t m, int64_t n,
                            int64_t k) {
  return multiply_all(a.data(), k, b.data(), k, nullptr, m, n, k, 1);
}

double activate(const ActivationSpec& activation, double x, double up) {
  switch (activation.function) {
    case Activation::None:
      return x;
    case Activation::Relu:
      return std::max(x, 0.0);
    case Activation::Relu2:
      return std::max(x, 0.0) * std::max(x, 0.0);
    case Activation::GeluTanh:
      return gelu_tanh(x);
    case Activation::GeluErf:
      return times_gate(x, 0.5 * (1 + std::erf(x / std::sqrt(2.0))));
    case Activation::Silu:
      return times_gate(x, sigmoid(x));
    case Activation::Swiglu:
      return times_gate(x, sigmoid(x)) * up;
    case Activation::SwigluOai: {
      const double alpha = activation.swiglu_oai.alpha, limit = activation.swiglu_oai.limit;
      const double gate = std::min(x, limit);
      return times_gate(gate, sigmoid(alpha * gate)) * (std::clamp(up, -limit, limit) + 1);
    }
    case Activation::Geglu:
      return gelu_tanh(x) * up;
    case Activation::Reglu:
      return std::max(x, 0.0) * up;
    case Activation::SwigluClamped: {
      const double gate_limit = activation.swiglu_clamped.gate_limit, up_limit = activation.swiglu_clamped.up_limit;
      const double gate = std::min(x, gate_limit);
      return times_gate(gate, sigmoid(gate)) * std::clamp(up, -up_limit, up_limit);
    }
    case Activation::Situ:
      return soft_cap(x, activation.situ.beta) * sigmoid(x) * soft_cap(up, activation.situ.linear_beta);
  }
  return std::numeric_limits<double>::quiet_NaN();
}

std::vector<double> activate_all(const ActivationSpec& activation, GateLayout gate, const std::vector<double>& pre,
                                 int64_t m, int64_t n) {
  const bool gated = is_gated(activation.function);
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
      to[column] = activate(activation, x, up);
    }
  }
  return out;
}

}  // namespace moxie::reference
