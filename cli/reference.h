// The operation in double precision on the CPU, and the bounds that a kernel's results are held to.
// Serves the program's own checks and the tests.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "moxie/types.h"

namespace moxie::reference {

float bf16_to_float(uint16_t bits);
uint16_t float_to_bf16(float value);  // to nearest, ties to even; NaN stays NaN

// One group: pre = a [m, k] * b [n, k]^T + bias [n]. Leading dimensions in elements; bias may be null.
struct Group {
  const uint16_t* a = nullptr;
  int64_t lda = 0;
  const uint16_t* b = nullptr;
  int64_t ldb = 0;
  const uint16_t* bias = nullptr;
  int64_t m = 0, n = 0, k = 0;
};

// pre [m, n], dense. threads: at least 1.
std::vector<double> product(const Group& group, int threads = 1);

// activation(x), or activation(gate) * up and the like for the gated ones (see Activation in moxie/types.h).
double activate(Activation activation, double x, double up, double alpha = 1.702, double limit = 7.0);

// out [m, n] or, with a gate, [m, n / 2] from pre [m, n].
std::vector<double> activate_all(Activation activation, GateLayout gate, const std::vector<double>& pre, int64_t m,
                                 int64_t n, double alpha = 1.702, double limit = 7.0);

// What a result may be off by. An element: `ulps` units in the last place of bf16 plus `row` times the norm of its row.
struct Bound {
  double frobenius = 4e-3;  // of the whole result, relative
  double ulps = 2;
  double row = 1e-4;
};
constexpr Bound kBf16Bound{};
// For float32 results that no approximate activation has touched.
constexpr Bound kF32Bound{1e-4, 0.0625, 1e-5};

// Gathers the comparison of a result with its reference row by row.
class Comparison {
 public:
  explicit Comparison(const Bound& bound = kBf16Bound) : bound_(bound) {}
  // `got`: `columns` elements of `type`; `row` names the row in failure().
  void add_row(int64_t row, const double* expected, const void* got, DataType type, int64_t columns);
  void add(const std::vector<double>& expected, const void* got, DataType type, int64_t rows, int64_t columns,
           int64_t leading_dimension, int64_t first_row = 0);
  void merge(const Comparison& other);

  double relative_error() const;           // Frobenius
  double worst() const { return worst_; }  // the worst element's error as a fraction of what it may be
  bool pass() const;
  std::string failure() const;  // empty when it passes; else one sentence

 private:
  Bound bound_;
  double error_squared_ = 0, norm_squared_ = 0, worst_ = 0;
  int64_t elements_ = 0, worst_row_ = -1, worst_column_ = -1;
  double worst_expected_ = 0, worst_got_ = 0;
};

}  // namespace moxie::reference
