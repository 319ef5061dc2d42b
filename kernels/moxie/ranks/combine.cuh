// SPDX-License-Identifier: Apache-2.0
// Sums the rows of each token where they lie: in the windows of the ranks whose experts made them.
#pragma once
#include "moxie/ranks/meet.cuh"
#include "moxie/routing/combine.cuh"
#include "moxie/window.h"

namespace moxie::kernel {

// As RowsOfMatrix.
struct RowsOfRanks {
  const CombineRanksParams& params;

  MOXIE_DEVICE RowPlace row_of(int64_t pair) const { return params.rows[pair]; }
  MOXIE_DEVICE const void* first_byte(RowPlace at) const {
    const auto row = static_cast<uint32_t>(at);
    return params.ranks.windows[at >> 32] + params.ranks.at.rows + int64_t{row} * params.sum.columns * 2;
  }
};

// A call that has failed leaves NaN, which nobody takes for a result.
template <DataType kOut>
MOXIE_DEVICE void combine_over_ranks(const CombineRanksParams& params) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (header_of(params.ranks, params.ranks.rank).outcome == Outcome::Fine) {
    sum_rows<DataType::Bf16, kOut>(params.sum, RowsOfRanks{params});
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
