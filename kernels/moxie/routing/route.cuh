// SPDX-License-Identifier: Apache-2.0
// Chooses the experts of each token. A warp has a token, and a lane every 32nd of its experts. What a choice goes by is
// an ordinal: an unsigned number in the order of the scores, so that one redux finds the best of a warp, with NaN above
// all and zeros equal. An ordinal of 0 is below that of any score: no expert, or one that is chosen already.
#pragma once
#include "moxie/arguments.h"
#include "moxie/isa.cuh"
#include "moxie/routing/tokens.cuh"

namespace moxie::kernel {

constexpr uint32_t kNanOrdinal = 0xffffffffu;

MOXIE_DEVICE uint32_t ordinal_of(float x) {
  if (x != x) return kNanOrdinal;
  const uint32_t bits = __float_as_uint(x + 0.0f);  // -0 becomes 0
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
// The way back, where the ordinal is not 0.
MOXIE_DEVICE float score_of(uint32_t ordinal) {
  return __uint_as_float(ordinal >> 31 ? ordinal & 0x7fffffffu : ~ordinal);
}

MOXIE_DEVICE float sum_of_warp(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

MOXIE_DEVICE float sigmoid(float x) { return __fdiv_rn(1.0f, 1.0f + expf(-x)); }

template <DataType kType>
MOXIE_DEVICE float load_logit(const void* logits, int64_t element) {
  if constexpr (kType == DataType::F32) return static_cast<const float*>(logits)[element];
  return __uint_as_float(uint32_t{static_cast<const unsigned short*>(logits)[element]} << 16);
}

// Takes the ordinals away from all groups of neighboring experts but the best. A group is as good as the sum of its two
// best scores; of equal ones the first is taken.
template <int kValues>
MOXIE_DEVICE void keep_best_groups(uint32_t (&ordinal)[kValues], int32_t experts, int32_t groups, int32_t chosen) {
  const int lane = threadIdx.x % 32;
  const int32_t size = experts / groups;
  uint32_t ordinal_of_group = 0;  // of group `lane`
  for (int32_t group = 0; group < groups; ++group) {
    uint32_t best = 0, second = 0;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const int32_t place = 32 * i + lane - group * size;
      const uint32_t x = place >= 0 && place < size ? ordinal[i] : 0;
      second = max(second, min(best, x)), best = max(best, x);
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_xor_sync(~0u, best, step), next = __shfl_xor_sync(~0u, second, step);
      second = max(min(best, other), max(second, next)), best = max(best, other);
    }
    if (lane == group) ordinal_of_group = ordinal_of(score_of(best) + score_of(second));
  }
  uint32_t kept = 0;
  for (int32_t i = 0; i < chosen; ++i) {
    const uint32_t best = __reduce_max_sync(~0u, ordinal_of_group);
    const int winner = __ffs(__ballot_sync(~0u, ordinal_of_group == best)) - 1;
    kept |= 1u << winner;
    if (lane == winner) ordinal_of_group = 0;
  }
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int32_t expert = 32 * i + lane;
    if (expert < experts && (kept >> expert / size & 1) == 0) ordinal[i] = 0;
  }
}

// kValues: experts of a lane.
template <DataType kType, RouterScore kScore, int kValues>
MOXIE_DEVICE void route(const RouteParams& params) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int lane = threadIdx.x % 32;
  const int32_t token = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (token >= real_tokens(params.token_count, params.tokens)) return;
  const int64_t first = token * params.ld;

  uint32_t ordinal[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int32_t expert = 32 * i + lane;
    ordinal[i] = 0;
    if (expert >= params.experts) continue;
    float score = load_logit<kType>(params.logits, first + expert);
    if constexpr (kScore == RouterScore::Sigmoid) {
      score = sigmoid(score);
      if (params.bias != nullptr) score += params.bias[expert];
    }
    ordinal[i] = ordinal_of(score);
  }
  if constexpr (kScore == RouterScore::Sigmoid) {
    if (params.chosen_groups < params.expert_groups)
      keep_best_groups(ordinal, params.experts, params.expert_groups, params.chosen_groups);
  }

  // Softmax over all: their sum, beside the best.
  float highest = 0, sum_of_all = 0;
  if constexpr (kScore == RouterScore::Softmax) {
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < kValues; ++i) best = max(best, ordinal[i]);
    highest = score_of(__reduce_max_sync(~0u, best));
    if (params.renormalize == 0) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        if (ordinal[i] != 0) sum_of_all += expf(score_of(ordinal[i]) - highest);
      }
      sum_of_all = sum_of_warp(sum_of_all);
    }
  }

  int32_t choice = 0;  // of lane j choice j
  for (int32_t j = 0; j < params.top_k; ++j) {
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < kValues; ++i) best = max(best, ordinal[i]);
    best = __reduce_max_sync(~0u, best);
    uint32_t expert = ~0u;
#pragma unroll
    for (int i = kValues - 1; i >= 0; --i) {
      if (ordinal[i] == best) expert = 32 * i + lane;
    }
    expert = __reduce_min_sync(~0u, expert);
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      if (expert == static_cast<uint32_t>(32 * i + lane)) ordinal[i] = 0;
    }
    if (lane == j) choice = static_cast<int32_t>(expert);
  }

  const bool chooses = lane < params.top_k;
  float weight = 0;
  if (chooses) {
    const float logit = load_logit<kType>(params.logits, first + choice);
    weight = kScore == RouterScore::Sigmoid ? sigmoid(logit) : expf(logit - highest);
  }
  if (params.renormalize != 0) {
    // A sigmoid may be 0; of softmax the best is 1.
    const float sum = sum_of_warp(weight);
    weight = __fdiv_rn(weight, kScore == RouterScore::Sigmoid ? sum + 1e-20f : sum);
  } else if constexpr (kScore == RouterScore::Softmax) {
    weight = __fdiv_rn(weight, sum_of_all);
  }
  if (!chooses) return;
  const int64_t pair = int64_t{token} * params.top_k + lane;
  params.ids[pair] = choice;
  params.weights[pair] = weight * params.scaling_factor;
}

}  // namespace moxie::kernel
