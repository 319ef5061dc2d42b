// SPDX-License-Identifier: Apache-2.0
// Copies each token that has come from any rank to the rows of our experts that it chose, for products that do not
// gather, and writes where rows travel back which pair each row belongs to. A thread has eight columns of a token,
// which it reads once, and a block goes on to another token when it has copied one: how many there are, the device
// alone knows.
#pragma once
#include "moxie/isa.cuh"
#include "moxie/ranks/record.cuh"
#include "moxie/ranks/row_format.cuh"
#include "moxie/window.h"

namespace moxie::kernel {

template <RowFormat kFormat>
MOXIE_DEVICE void gather_rows(const GatherRowsParams& params) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const RankParams& ranks = params.ranks;
  const WindowHeader& own = header_of(ranks, ranks.rank);
  if (own.outcome != Outcome::Fine) return;
  const int32_t thread = blockIdx.y * blockDim.x + threadIdx.x, column = thread * 8;
  const bool exists = column < params.columns;
  auto* const origins = reinterpret_cast<RowPlace*>(ranks.windows[ranks.rank] + ranks.at.origins);
  int32_t token = blockIdx.x;
#pragma unroll 1
  for (int rank = 0; rank < ranks.ranks; ++rank) {
    const int32_t tokens = own.tokens[rank];
#pragma unroll 1
    for (; token < tokens; token += gridDim.x) {
      const int64_t place = int64_t{rank} * ranks.tokens + token;
      RecordOfLanes record;
      record.load(records_of(ranks) + place * record_words(params.top_k), params.top_k);
      if (!record.has_come(ranks, own.call)) continue;
      const int32_t row_of_lane = record.row(ranks, params.top_k);
      unsigned left = __ballot_sync(~0u, row_of_lane >= 0);
      // Ranks with few tokens have a record of each on every rank.
      if (left == 0) continue;
      if (params.sums == 0 && row_of_lane >= 0 && thread < 32)
        origins[row_of_lane] = RowPlace{rank} << 32 | (token * params.top_k + thread);
      uint4 words = {};
      if (exists) words = TravelingColumns<kFormat>::load(ranks, place, column, params.columns);
      for (; left != 0; left &= left - 1) {
        const int64_t row = __shfl_sync(~0u, row_of_lane, __ffs(left) - 1);
        if (exists)
          *reinterpret_cast<uint4*>(static_cast<uint16_t*>(params.out) + row * params.columns + column) = words;
      }
    }
    token -= tokens;
  }
}

}  // namespace moxie::kernel
