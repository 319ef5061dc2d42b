// SPDX-License-Identifier: Apache-2.0
// Copies the row of each token to the sorted rows of its pairs: out[inverse[t, j]] = x[t] for every j. A thread has 16
// bytes of a token, which it reads once.
#pragma once
#include "moxie/arguments.h"
#include "moxie/isa.cuh"
#include "moxie/routing/tokens.cuh"

namespace moxie::kernel {

MOXIE_DEVICE void permute(const PermuteParams& params) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int32_t token = blockIdx.x;
  if (token >= real_tokens(params.token_count, params.tokens)) return;
  // Lane j has the row of pair j; -1: it is skipped.
  const int lane = threadIdx.x % 32;
  int32_t row_of_lane = lane < params.top_k ? params.inverse[int64_t{token} * params.top_k + lane] : -1;
  if (row_of_lane >= params.rows) row_of_lane = -1;

  const int32_t word = blockIdx.y * blockDim.x + threadIdx.x;
  const bool exists = word < params.words;
  uint4 words = {};
  if (exists) words = static_cast<const uint4*>(params.from)[token * params.ld_from + word];
  for (int j = 0; j < params.top_k; ++j) {
    const int32_t row = __shfl_sync(~0u, row_of_lane, j);
    if (exists && row >= 0) static_cast<uint4*>(params.out)[row * params.ld_out + word] = words;
  }
}

}  // namespace moxie::kernel
