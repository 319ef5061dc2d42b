// SPDX-License-Identifier: Apache-2.0
// Sums the rows of each token where they lie, in the windows of their experts' ranks, or the sums that these ranks have
// written into our window.
#pragma once
#include "moxie/ranks/meet.cuh"
#include "moxie/routing/combine.cuh"
#include "moxie/window.h"

namespace moxie::kernel {

// As RowsOfMatrix: rows in the windows of all ranks.
struct RowsOfRanks {
  const CombineRanksParams& params;

  MOXIE_DEVICE RowPlace row_of_lane(int64_t pair, bool exists) const { return exists ? params.rows[pair] : -1; }
  MOXIE_DEVICE const void* first_byte(RowPlace at) const {
    const auto row = static_cast<uint32_t>(at);
    return params.ranks.windows[at >> 32] + params.ranks.at.rows + int64_t{row} * params.sum.columns * 2;
  }
};

// Adds a token's sums, one of each rank that has any of its experts, in the order of its first pair there. Few of a
// token's choices bring one, so a thread has fewer on their way than rows, and a multiprocessor holds more threads.
template <DataType kSums, DataType kOut>
MOXIE_DEVICE void add_sums_of_ranks(const CombineRanksParams& params) {
  constexpr int kAtOnce = 4;
  const RankParams& ranks = params.ranks;
  const int32_t token = blockIdx.x;
  if (token >= real_tokens(params.sum.token_count, params.sum.tokens)) return;
  const int lane = threadIdx.x % 32, top_k = params.sum.top_k;
  const RowPlace at = lane < top_k ? params.rows[int64_t{token} * top_k + lane] : -1;
  const auto rank_of_lane = static_cast<int32_t>(at >> 32);
  const unsigned same = __match_any_sync(~0u, rank_of_lane);
  unsigned senders = __ballot_sync(~0u, rank_of_lane >= 0 && lane == __ffs(same) - 1);

  const int32_t column = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
  const bool exists = column < params.sum.columns;
  float sum[8] = {};
  if (exists && params.sum.residual != nullptr) {
    Eight<kOut> residual;
    residual.load(params.sum.residual, token * params.sum.ld_residual + column);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = residual[i];
  }
  const uint8_t* const sums = ranks.windows[ranks.rank] + ranks.at.sums;
  while (senders != 0) {
    Eight<kSums> part[kAtOnce];
    bool there[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int32_t rank = __shfl_sync(~0u, rank_of_lane, __ffs(senders) - 1);
      there[j] = exists && senders != 0;
      senders &= senders - 1;
      if (there[j]) part[j].load(sums, (int64_t{rank} * ranks.tokens + token) * params.sum.columns + column);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (!there[j]) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] += part[j][i];
    }
  }
  if (exists) store_eight(params.sum.out, token * params.sum.ld_out + column, sum, kOut);
}

// A call that has failed leaves NaN, which nobody takes for a result.
template <DataType kOut, ResultFormat kResults>
MOXIE_DEVICE void combine_over_ranks(const CombineRanksParams& params) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (header_of(params.ranks, params.ranks.rank).outcome == Outcome::Fine) {
    if constexpr (kResults == ResultFormat::Rows)
      sum_rows<DataType::Bf16, kOut>(params.sum, RowsOfRanks{params});
    else
      add_sums_of_ranks<kResults == ResultFormat::Sums ? DataType::F32 : DataType::Bf16, kOut>(params);
    return;
  }
  const int32_t token = blockIdx.x, column = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
  if (token >= real_tokens(params.sum.token_count, params.sum.tokens) || column >= params.sum.columns) return;
  float nans[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) nans[i] = __uint_as_float(0x7fffffff);
  store_eight(params.sum.out, token * params.sum.ld_out + column, nans, kOut);
}

}  // namespace moxie::kernel
