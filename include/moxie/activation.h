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

// Both are positive and may be infinite.
struct SwigluClampedParameters {
  float gate_limit = 10.0f;  // bound of gate, from above alone
  float up_limit = 10.0f;    // bound of up, on both sides
};

// Both are positive and finite. One that is far beyond every value, such as 1e30, leaves its half as it is.
struct SituParameters {
  float beta = 4.0f;          // what gate's tanh approaches
  float linear_beta = 25.0f;  // what up's tanh approaches
};

// An activation and what it is parameterized with. An enumerator converts to it: .activation = Activation::Silu.
struct ActivationSpec {
  Activation function = Activation::None;  // which one
  SwigluOaiParameters swiglu_oai;          // read for SwigluOai alone
  SwigluClampedParameters swiglu_clamped;  // read for SwigluClamped alone
  SituParameters situ;                     // read for Situ alone

  constexpr ActivationSpec() = default;
  // With the defaults of its parameters where it has any.
  constexpr ActivationSpec(Activation f) : function(f) {}
  // With parameters of the caller.
  constexpr ActivationSpec(Activation f, SwigluOaiParameters p) : function(f), swiglu_oai(p) {}
};

// GPT-OSS: min(g, limit) * sigmoid(alpha * min(g, limit)) * (clamp(u, -limit, limit) + 1).
// Source: openai/gpt-oss, gpt_oss/torch/model.py, swiglu().
constexpr ActivationSpec swiglu_oai(SwigluOaiParameters parameters = {}) { return {Activation::SwigluOai, parameters}; }

// DeepSeek-V4: silu(min(g, gate_limit)) * clamp(u, -up_limit, up_limit). A checkpoint's `swiglu_limit` is both limits.
// Source: deepseek-ai/DeepSeek-V4-Flash, inference/model.py, Expert.forward().
constexpr ActivationSpec swiglu_clamped(SwigluClampedParameters parameters = {}) {
  ActivationSpec spec(Activation::SwigluClamped);
  spec.swiglu_clamped = parameters;
  return spec;
}

// Kimi-K3: beta * tanh(g / beta) * sigmoid(g) * linear_beta * tanh(u / linear_beta).
// Source: equation 12 of the Kimi-K3 technical report, as NVIDIA/cudnn-frontend#645 cites it. The parameters have the
// names of the model's SituAndMul (tenstorrent/tt-metal#51350).
constexpr ActivationSpec situ(SituParameters parameters = {}) {
  ActivationSpec spec(Activation::Situ);
  spec.situ = parameters;
  return spec;
}

}  // namespace moxie
