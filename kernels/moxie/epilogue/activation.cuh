// SPDX-License-Identifier: Apache-2.0
// Activations, each a small struct with one operator(): float -> float, or (gate, up) -> float when gated. It is built
// once a thread from the kernel's parameters (alpha, limit...).
//
// To add one, give it a place in enum Activation (moxie/types.h; gated ones after Silu) and specialize ActivationOf for
// it here. Nothing else in the kernels changes. Outside of them the library must know its name (moxie/names.h), what
// its epilogue costs (src/plan/hopper_cost.cpp, src/plan/blackwell.cpp), and its formula in double precision, by which
// tests judge it (reference/product.cpp). An activation that only one program needs can be a sink instead
// (examples/new_activation.cuh).
//
// Errors are against exact arithmetic on the float32 argument x. They follow from the documented bounds of the
// instructions: 2 ulp of ex2.approx.ftz, 1 ulp of rcp.approx.ftz, and one rounding of x * log2(e).
//   sigmoid(x)          at most (4 + |x|) * 2^-23 relative while sigmoid(x) > 2^-126; below it is 0
//   Silu, Swiglu, SwigluOai, SwigluClamped, GeluTanh, Geglu
//                       are x * sigmoid and inherit that
//   soft_cap(x)         at most 12 * 2^-23 relative
//   Situ                is soft_cap * sigmoid * soft_cap
//   GeluErf             |x| * 2^-23 absolute: erff's 2 ulp in the sum 1 + erf
// tanh.approx is not used, for its 2^-11 would show in bf16. Infinities give the limit of the function, NaN gives NaN.
#pragma once
#include "moxie/arguments.h"
#include "moxie/isa.cuh"

namespace moxie::kernel {

constexpr float kLowest = -3.402823466e+38f;

MOXIE_DEVICE float sigmoid(float x) { return rcp_approx(1.0f + ex2_approx(-1.4426950408889634f * x)); }
// x * s, and 0 where x is -infinity and s is 0.
MOXIE_DEVICE float times_gate(float x, float s) { return max_nan(x, kLowest) * s; }

// cap * tanh(x / cap) for a positive finite cap, with inverse = 1 / cap. A small t = x / cap, for which
// 1 - 2 / (1 + e^2t) would cancel, takes x times a polynomial in t^2: the minimax one for |t| < 0.4, 2^-23 off. A cap
// far beyond x gives x.
MOXIE_DEVICE float soft_cap(float x, float cap, float inverse) {
  const float t = x * inverse, square = t * t;
  const float series = fmaf(fmaf(-0.0477942215f, square, 0.1327762905f), square, -0.3333188226f);
  const float small = x * fmaf(series, square, 1.0f);
  const float large = cap * fmaf(-2.0f, rcp_approx(1.0f + ex2_approx(2.8853900817779268f * t)), 1.0f);
  return fabsf(t) < 0.4f ? small : large;
}

// The struct of each activation.
template <Activation A>
struct ActivationOf;

template <>
struct ActivationOf<Activation::None> {
  MOXIE_DEVICE explicit ActivationOf(const GemmParams&) {}
  MOXIE_DEVICE float operator()(float x) const { return x; }
};

template <>
struct ActivationOf<Activation::Relu> {
  MOXIE_DEVICE explicit ActivationOf(const GemmParams&) {}
  MOXIE_DEVICE float operator()(float x) const { return max_nan(x, 0.0f); }
};

template <>
struct ActivationOf<Activation::Relu2> {
  MOXIE_DEVICE explicit ActivationOf(const GemmParams&) {}
  MOXIE_DEVICE float operator()(float x) const {
    const float positive = max_nan(x, 0.0f);
    return positive * positive;
  }
};

// 0.5 x (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3): no cancellation for x < 0.
template <>
struct ActivationOf<Activation::GeluTanh> {
  MOXIE_DEVICE explicit ActivationOf(const GemmParams&) {}
  MOXIE_DEVICE float operator()(float x) const {
    const float u2 = 1.5957691216057308f * x * fmaf(0.044715f * x, x, 1.0f);
    return times_gate(x, sigmoid(u2));
  }
};

template <>
struct ActivationOf<Activation::GeluErf> {
  MOXIE_DEVICE explicit ActivationOf(const GemmParams&) {}
  MOXIE_DEVICE float operator()(float x) const {
    return times_gate(x, fmaf(0.5f, erff(0.7071067811865476f * x), 0.5f));
  }
};

template <>
struct ActivationOf<Activation::Silu> {
  MOXIE_DEVICE explicit ActivationOf(const GemmParams&) {}
  MOXIE_DEVICE float operator()(float x) const { return times_gate(x, sigmoid(x)); }
};

template <>
struct ActivationOf<Activation::Swiglu> {
  MOXIE_DEVICE explicit ActivationOf(const GemmParams&) {}
  MOXIE_DEVICE float operator()(float gate, float up) const { return times_gate(gate, sigmoid(gate)) * up; }
};

template <>
struct ActivationOf<Activation::SwigluOai> {
  MOXIE_DEVICE explicit ActivationOf(const GemmParams& gemm) : alpha(gemm.alpha), limit(gemm.limit) {}
  MOXIE_DEVICE float operator()(float gate, float up) const {
    gate = min_nan(gate, limit);
    up = max_nan(min_nan(up, limit), -limit);
    return times_gate(gate, sigmoid(alpha * gate)) * (up + 1.0f);
  }
  float alpha, limit;
};

template <>
struct ActivationOf<Activation::Geglu> {
  MOXIE_DEVICE explicit ActivationOf(const GemmParams& gemm) : gelu(gemm) {}
  MOXIE_DEVICE float operator()(float gate, float up) const { return gelu(gate) * up; }
  ActivationOf<Activation::GeluTanh> gelu;
};

template <>
struct ActivationOf<Activation::Reglu> {
  MOXIE_DEVICE explicit ActivationOf(const GemmParams&) {}
  MOXIE_DEVICE float operator()(float gate, float up) const { return max_nan(gate, 0.0f) * up; }
};

template <>
struct ActivationOf<Activation::SwigluClamped> {
  MOXIE_DEVICE explicit ActivationOf(const GemmParams& gemm) : gate_limit(gemm.gate_limit), up_limit(gemm.up_limit) {}
  MOXIE_DEVICE float operator()(float gate, float up) const {
    gate = min_nan(gate, gate_limit);
    up = max_nan(min_nan(up, up_limit), -up_limit);
    return times_gate(gate, sigmoid(gate)) * up;
  }
  float gate_limit, up_limit;
};

template <>
struct ActivationOf<Activation::Situ> {
  MOXIE_DEVICE explicit ActivationOf(const GemmParams& gemm)
      : beta(gemm.beta),
        inverse_beta(gemm.inverse_beta),
        linear_beta(gemm.linear_beta),
        inverse_linear_beta(gemm.inverse_linear_beta) {}
  MOXIE_DEVICE float operator()(float gate, float up) const {
    return soft_cap(gate, beta, inverse_beta) * sigmoid(gate) * soft_cap(up, linear_beta, inverse_linear_beta);
  }
  float beta, inverse_beta, linear_beta, inverse_linear_beta;
};

}  // namespace moxie::kernel
