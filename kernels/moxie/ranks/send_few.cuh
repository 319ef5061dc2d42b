// SPDX-License-Identifier: Apache-2.0
// Dispatch and the meeting behind it in one block, for few tokens: a launch less, and no end of a grid that waits until
// its stores have come to the other ranks before the flags are stored.
#pragma once
#include "moxie/ranks/dispatch.cuh"
#include "moxie/ranks/meet.cuh"

namespace moxie::kernel {

template <typename Id, RowFormat kFormat>
MOXIE_DEVICE void send_few(const DispatchParams& params) {
  griddepcontrol_wait();
  const WindowHeader& own = header_of(params.ranks, params.ranks.rank);
  if (own.outcome == Outcome::Failed) return;
  if (own.outcome == Outcome::Fine) {
    const int32_t warps_of_token = (params.columns + 255) / 256;
    const int32_t warps = real_tokens(params.token_count, params.tokens) * warps_of_token;
    for (int32_t i = threadIdx.x / 32; i < warps; i += blockDim.x / 32)
      send_columns<Id, kFormat>(params, i / warps_of_token, i % warps_of_token * 32 + threadIdx.x % 32);
  }
  // All tokens come before the flags, and all threads have looked at the outcome before it may become another.
  __syncthreads();
  if (threadIdx.x >= 32) return;
  tell(params.ranks, Meeting::Tokens, own.call);
  // As in meet().
  griddepcontrol_launch_dependents();
  wait(params.ranks, Meeting::Tokens, own.call);
}

}  // namespace moxie::kernel
