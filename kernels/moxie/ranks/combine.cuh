// SPDX-License-Identifier: Apache-2.0
// Sums the rows of each token, which their experts' ranks have written into our window.
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

template <DataType kOut>
MOXIE_DEVICE void combine_over_ranks(const CombineRanksParams& params) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (header_of(params.ranks, params.ranks.rank).outcome == Outcome::Fine)
    return sum_rows<DataType::Bf16, kOut>(params.sum, RowsOfRanks{params});
  const int32_t token = blockIdx.x, column = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
  if (token < real_tokens(params.sum.token_count, params.sum.tokens)) store_nan<kOut>(params.sum, token, column);
}

}  // namespace moxie::kernel
