// SPDX-License-Identifier: Apache-2.0
// The product and its activations in double precision on the CPU. The program and the tests check results with them.
#pragma once
#include <cstdint>
#include <vector>

#include "moxie/activation.h"

namespace moxie::reference {

// The operands of pre = a [m, k] * b [n, k]^T + bias [n]. Leading dimensions count elements. bias may be null.
struct Group {
  const uint16_t* a = nullptr;
  int64_t lda = 0;
  const uint16_t* b = nullptr;
  int64_t ldb = 0;
  const uint16_t* bias = nullptr;
  int64_t m = 0, n = 0, k = 0;
};

// Returns pre [m, n], dense. `threads` is at least 1.
std::vector<double> product(const Group& group, int threads = 1);
// Returns a [m, k] * b [n, k]^T of operands in any format, all dense.
std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b, int64_t m, int64_t n,
                            int64_t k);

// Returns activation(x), at an infinity its limit. Gated ones take the gate as x and `up` besides (see Activation in
// moxie/types.h).
double activate(const ActivationSpec& activation, double x, double up);

// Returns out [m, n], or with a gate [m, n / 2], from pre [m, n].
std::vector<double> activate_all(const ActivationSpec& activation, GateLayout gate, const std::vector<double>& pre,
                                 int64_t m, int64_t n);

}  // namespace moxie::reference
