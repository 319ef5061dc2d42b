// SPDX-License-Identifier: Apache-2.0
// Sums the rows that our experts made of each token that has come, in float32, in the order of its choices, and writes
// the sum into the window of the token's rank. A thread has eight columns of a token.
#pragma once
#include "moxie/ranks/meet.cuh"
#include "moxie/routing/combine.cuh"
#include "moxie/window.h"

namespace moxie::kernel {

// Rows of one matrix, as RowsOfMatrix.
struct RowsOfExperts {
  const SumTokensParams& params;
  MOXIE_DEVICE const void* first_byte(int32_t row) const {
    return static_cast<const uint8_t*>(params.rows) + int64_t{row} * params.columns * 2;
  }
};

template <ResultFormat kResults>
MOXIE_DEVICE void sum_tokens(const SumTokensParams& params) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const RankParams& ranks = params.ranks;
  const WindowHeader& header = header_of(ranks, ranks.rank);
  if (header.outcome != Outcome::Fine) return;
  const auto* const records = reinterpret_cast<const int32_t*>(ranks.windows[ranks.rank] + ranks.at.records);
  const int64_t words = record_words(params.top_k);
  const int lane = threadIdx.x % 32;
  const int32_t column = (blockIdx.y * blockDim.x + threadIdx.x) * 8, tokens = ranks.ranks * ranks.tokens;
  // Number n is token n / ranks of rank n % ranks, so that at every time sums are on their way to all ranks. Each lane
  // looks whether a token has come, one of those whose numbers are gridDim.x apart, so that the neighboring tokens of a
  // small call are those of different blocks.
  for (int32_t first = blockIdx.x; first < tokens; first += 32 * gridDim.x) {
    const int64_t number_of_lane = first + int64_t{lane} * gridDim.x;
    const int64_t place_of_lane = number_of_lane % ranks.ranks * ranks.tokens + number_of_lane / ranks.ranks;
    const int32_t* const looked_at = records + place_of_lane * words;
    const bool has_come = number_of_lane < tokens && looked_at[0] == static_cast<int32_t>(header.call) &&
                          looked_at[1] == static_cast<int32_t>(ranks.signature);
    for (unsigned there = __ballot_sync(~0u, has_come); there != 0; there &= there - 1) {
      const int32_t number = first + (__ffs(there) - 1) * gridDim.x;
      const int32_t from = number % ranks.ranks, token = number / ranks.ranks;
      const int32_t* const record = records + (from * ranks.tokens + token) * words;
      int32_t row = -1;
      float weight = 0;
      if (lane < params.top_k) {
        row = record[2 + lane];
        if (row >= ranks.max_rows) row = -1;
        weight = __int_as_float(record[2 + params.top_k + lane]);
      }
      const bool exists = column < params.columns;
      float sum[8] = {};
      add_rows<DataType::Bf16>(sum, RowsOfExperts{params}, row, weight, params.top_k, exists, column);
      constexpr DataType kType = kResults == ResultFormat::Sums ? DataType::F32 : DataType::Bf16;
      const int64_t place = ranks.rank * ranks.tokens + token;
      if (exists) store_eight(ranks.windows[from] + ranks.at.sums, place * params.columns + column, sum, kType);
    }
  }
}

}  // namespace moxie::kernel
