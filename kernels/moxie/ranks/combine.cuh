// SPDX-License-Identifier: Apache-2.0
// Sums the rows of each token, which their experts' ranks have written into our window. kMeets, for few tokens: the
// first block tells the other ranks that their rows are there, and all wait for those of ours. All blocks run at once,
// so the first runs, whoever waits.
#pragma once
#include "moxie/ranks/meet.cuh"
#include "moxie/routing/combine.cuh"
#include "moxie/window.h"

namespace moxie::kernel {

// As RowsOfMatrix: the row of a pair has the pair's number.
struct RowsOfRanks {
  const CombineRanksParams& params;

  MOXIE_DEVICE int32_t row_of_lane(int64_t pair, bool exists) const {
    return exists && params.rows[pair] >= 0 ? static_cast<int32_t>(pair) : -1;
  }
  MOXIE_DEVICE const void* first_byte(int32_t row) const {
    return params.ranks.windows[params.ranks.rank] + params.ranks.at.rows + int64_t{row} * params.sum.columns * 2;
  }
};

// A call that has failed leaves NaN, which nobody takes for a result.
template <DataType kOut>
MOXIE_DEVICE void store_nan(const CombineParams& params, int32_t token, int32_t column) {
  if (column >= params.columns) return;
  float nans[8];
#pragma unroll
  for (float& each : nans) each = __uint_as_float(0x7fffffff);
  store_eight(params.out, token * params.ld_out + column, nans, kOut);
}

template <DataType kOut, bool kMeets>
MOXIE_DEVICE void combine_over_ranks(const CombineRanksParams& params) {
  griddepcontrol_wait();
  // Every block of ours runs by when the grid behind begins, so it takes nobody's place.
  griddepcontrol_launch_dependents();
  const RankParams& ranks = params.ranks;
  WindowHeader& own = header_of(ranks, ranks.rank);
  const Outcome outcome = own.outcome;
  const bool is_first = blockIdx.x + blockIdx.y == 0;
  bool all_come = outcome == Outcome::Fine;
  const auto come = [&] {
    if constexpr (kMeets) {
      if (outcome != Outcome::Failed && (params.halves & kWait) && threadIdx.x < 32) {
        const auto flag_of = [&](int rank) { return &own.met[static_cast<int>(Meeting::Results)][rank]; };
        all_come = wait_for_results(ranks, own, flag_of) && all_come;
      }
      // Behind the barrier all threads have what the first warp has acquired.
      all_come = __syncthreads_and(all_come);
    }
    return all_come;
  };
  if constexpr (kMeets) {
    if (outcome != Outcome::Failed && (params.halves & kTell) && is_first && threadIdx.x < 32)
      tell(ranks, Meeting::Results, own.call);
  }
  const int32_t token = blockIdx.x;
  if (token >= real_tokens(params.sum.token_count, params.sum.tokens)) {
    if (is_first) come();
    return;
  }
  sum_rows<DataType::Bf16, kOut>(params.sum, RowsOfRanks{params}, token, come);
  if (!all_come) store_nan<kOut>(params.sum, token, (blockIdx.y * blockDim.x + threadIdx.x) * 8);
}

}  // namespace moxie::kernel
