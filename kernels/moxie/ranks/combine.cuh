// SPDX-License-Identifier: Apache-2.0
// Sums the rows of each token, or the sums that ranks made of them, where they lie: in the windows of these ranks.
#pragma once
#include "moxie/ranks/meet.cuh"
#include "moxie/routing/combine.cuh"
#include "moxie/window.h"

namespace moxie::kernel {

// As RowsOfMatrix: the rows of pairs, or of sums one for each rank, where the first of its pairs stands.
template <ResultFormat kResults>
struct RowsOfRanks {
  const CombineRanksParams& params;

  MOXIE_DEVICE RowPlace row_of_lane(int64_t pair, bool exists) const {
    const RowPlace at = exists ? params.rows[pair] : -1;
    if constexpr (kResults == ResultFormat::Rows) {
      return at;
    } else {
      const auto rank = static_cast<int32_t>(at >> 32);
      const unsigned same = __match_any_sync(~0u, rank);
      if (rank < 0 || static_cast<int>(threadIdx.x % 32) != __ffs(same) - 1) return -1;
      return RowPlace{rank} << 32 | (params.ranks.rank * params.ranks.tokens + static_cast<int32_t>(blockIdx.x));
    }
  }
  MOXIE_DEVICE const void* first_byte(RowPlace at) const {
    constexpr int kBytes = kResults == ResultFormat::Sums ? 4 : 2;
    const int64_t part = kResults == ResultFormat::Rows ? params.ranks.at.rows : params.ranks.at.sums;
    const auto row = static_cast<uint32_t>(at);
    return params.ranks.windows[at >> 32] + part + int64_t{row} * params.sum.columns * kBytes;
  }
};

// A call that has failed leaves NaN, which nobody takes for a result.
template <DataType kOut, ResultFormat kResults>
MOXIE_DEVICE void combine_over_ranks(const CombineRanksParams& params) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (header_of(params.ranks, params.ranks.rank).outcome == Outcome::Fine) {
    constexpr DataType kRows = kResults == ResultFormat::Sums ? DataType::F32 : DataType::Bf16;
    sum_rows<kRows, kOut>(params.sum, RowsOfRanks<kResults>{params});
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
