// SPDX-License-Identifier: Apache-2.0
// Activations with their parameters, as a caller gives them.
#pragma once
#include "moxie/types.h"

namespace moxie {

// alpha is finite, limit is positive and may be infinite.
struct SwigluOaiParameters {
  float alpha = 1.702f;  // slope of the sigmoid
  float limit = 7.0f;    // bound of gate and up
};

// An activation and what it is parameterized with. An enumerator converts to it: .activation = Activation::Silu.
struct ActivationSpec {
  Activation function = Activation::None;  // which one
  SwigluOaiParameters swiglu_oai;          // read for SwigluOai alone

  constexpr ActivationSpec() = default;
  // With the parameters of GPT-OSS where it has any.
  constexpr ActivationSpec(Activation f) : function(f) {}
  // With parameters of the caller.
  constexpr ActivationSpec(Activation f, SwigluOaiParameters p) : function(f), swiglu_oai(p) {}
};

// GPT-OSS: min(g, limit) * sigmoid(alpha * min(g, limit)) * (clamp(u, -limit, limit) + 1).
// Source: openai/gpt-oss, gpt_oss/torch/model.py, swiglu().
constexpr ActivationSpec swiglu_oai(SwigluOaiParameters parameters = {}) { return {Activation::SwigluOai, parameters}; }

}  // namespace moxie
