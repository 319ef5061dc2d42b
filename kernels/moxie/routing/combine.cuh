// SPDX-License-Identifier: Apache-2.0
// Sums the rows of each token: out[t] = residual[t] + sum over j of weights[t, j] * rows[inverse[t, j]], in float32, in
// the order of j. A block has a token, or where tokens are many some neighboring ones, and a thread eight columns of
// them. A thread asks for eight rows at once, of float32 for four, and with several tokens for rows of any of them.
#pragma once
#include "moxie/arguments.h"
#include "moxie/isa.cuh"
#include "moxie/routing/tokens.cuh"

namespace moxie::kernel {

// Eight neighboring elements, as they lie in memory.
template <DataType kType>
struct Eight {
  static constexpr int kWords = size_of(kType) * 8 / 16;
  uint4 words[kWords];

  MOXIE_DEVICE void load(const void* from, int64_t element) {
    const auto* const at = reinterpret_cast<const uint4*>(static_cast<const uint8_t*>(from) + element * size_of(kType));
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = at[i];
  }
  MOXIE_DEVICE float operator[](int i) const {
    const uint4& w = words[i * size_of(kType) / 16];
    const int part = i * size_of(kType) % 16 / 4;
    const uint32_t word = part == 0 ? w.x : part == 1 ? w.y : part == 2 ? w.z : w.w;
    if constexpr (kType == DataType::F32) return __uint_as_float(word);
    return i % 2 == 0 ? bf16_low(word) : bf16_high(word);
  }
};

MOXIE_DEVICE void store_eight(void* to, int64_t element, const float (&x)[8], DataType type) {
  auto* const at = reinterpret_cast<uint4*>(static_cast<uint8_t*>(to) + element * size_of(type));
  if (type == DataType::Bf16) {
    at[0] = {cvt_bf16x2(x[0], x[1]), cvt_bf16x2(x[2], x[3]), cvt_bf16x2(x[4], x[5]), cvt_bf16x2(x[6], x[7])};
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      at[i] = {__float_as_uint(x[4 * i]), __float_as_uint(x[4 * i + 1]), __float_as_uint(x[4 * i + 2]),
               __float_as_uint(x[4 * i + 3])};
    }
  }
}

// Which row each pair has, and where rows lie: those of one matrix.
template <DataType kRows>
struct RowsOfMatrix {
  const CombineParams& params;

  // Of this lane's pair, which may not exist. Negative: it is skipped.
  MOXIE_DEVICE int32_t row_of_lane(int64_t pair, bool exists) const {
    const int32_t row = exists ? params.inverse[pair] : -1;
    return row < params.rows ? row : -1;
  }
  MOXIE_DEVICE const void* first_byte(int32_t row) const {
    return static_cast<const uint8_t*>(params.from) + row * params.ld_rows * size_of(kRows);
  }
};

// Rows that a thread has on their way at once.
template <DataType kRows>
constexpr int kRowsAtOnce = kRows == DataType::F32 ? 4 : 8;

// Calls add(row, lane) for each lane of `pairs`, from the lowest on. `row` has eight columns of the row that begins at
// first_byte(lane's row). kAtOnce rows are asked for at once. A row below 0 in `row_of_lane` is not read, nor one whose
// columns do not exist, and add() gets what happens to be there. All lanes of a warp take part with the same pairs.
template <int kAtOnce, DataType kRows, typename Row, class FirstByte, class Add>
MOXIE_DEVICE void for_rows(unsigned pairs, Row row_of_lane, bool exists, int32_t column, const FirstByte& first_byte,
                           const Add& add) {
#pragma unroll 1
  while (pairs != 0) {
    Eight<kRows> row[kAtOnce];
    unsigned left = pairs;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const Row from = __shfl_sync(~0u, row_of_lane, __ffs(left) - 1);
      if (exists && left != 0 && from >= 0) row[j].load(first_byte(from), column);
      left &= left - 1;
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (pairs != 0) add(row[j], __ffs(pairs) - 1);
      pairs &= pairs - 1;
    }
  }
}

// Adds the weighted rows of a token to eight columns of a sum, in the order of j. Lane j has pair j's row and weight; a
// row below 0 is skipped. All lanes of a warp take part, those whose columns do not exist as well.
template <DataType kRows, class Rows, typename Row>
MOXIE_DEVICE void add_rows(float (&sum)[8], const Rows& rows, Row row_of_lane, float weight_of_lane, int32_t top_k,
                           bool exists, int32_t column) {
  constexpr int kAtOnce = kRowsAtOnce<kRows>;
  for (int first = 0; first < top_k; first += kAtOnce) {
    Eight<kRows> row[kAtOnce];
    float weight[kAtOnce];
    bool there[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const Row from = __shfl_sync(~0u, row_of_lane, first + j);
      weight[j] = __shfl_sync(~0u, weight_of_lane, first + j);
      there[j] = exists && from >= 0;
      if (there[j]) row[j].load(rows.first_byte(from), column);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (!there[j]) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] = fmaf(weight[j], row[j][i], sum[i]);
    }
  }
}

// By a block: a token that exists. come() returns when its rows are there, or false when they will not be; the block
// then stores nothing.
template <DataType kRows, DataType kOut, class Rows, class Come>
MOXIE_DEVICE void sum_rows(const CombineParams& params, const Rows& rows, int32_t token, const Come& come) {
  // Lane j has what pair j says; below 0: it is skipped.
  const int lane = threadIdx.x % 32;
  const int64_t pair = int64_t{token} * params.top_k + lane;
  const auto row_of_lane = rows.row_of_lane(pair, lane < params.top_k);
  const float weight_of_lane = lane < params.top_k && params.weights != nullptr ? params.weights[pair] : 1;

  const int32_t column = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
  const bool exists = column < params.columns;
  float sum[8] = {};
  if (exists && params.residual != nullptr) {
    Eight<kOut> residual;
    residual.load(params.residual, token * params.ld_residual + column);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = residual[i];
  }
  if (!come()) return;
  add_rows<kRows>(sum, rows, row_of_lane, weight_of_lane, params.top_k, exists, column);
  if (!exists) return;
  store_eight(params.out, token * params.ld_out + column, sum, kOut);
}

// Sums the rows of some tokens that exist and have 32 pairs at most in all. Called by a whole block.
template <DataType kRows, DataType kOut>
MOXIE_DEVICE void sum_rows_of_tokens(const CombineParams& params, int32_t first_token, int32_t tokens) {
  const RowsOfMatrix<kRows> rows{params};
  const int lane = threadIdx.x % 32;
  // A lane has the row and the weight of a pair; a row below 0 is skipped.
  const int pairs = tokens * params.top_k;
  const int64_t pair = int64_t{first_token} * params.top_k + lane;
  const auto row_of_lane = rows.row_of_lane(pair, lane < pairs);
  const float weight_of_lane = lane < pairs && params.weights != nullptr ? params.weights[pair] : 1;

  const int32_t column = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
  const bool exists = column < params.columns;
  const bool has_residual = exists && params.residual != nullptr;
  // The residual of the next token is asked for while the one before it is summed.
  int32_t token = first_token;
  Eight<kOut> next;
  if (has_residual) next.load(params.residual, token * params.ld_residual + column);
  // The first pair of a token counts even where it is skipped, since the token has a sum in any case.
  const unsigned firsts = params.first_pairs & ~0u >> (32 - pairs);
  const unsigned added = __ballot_sync(~0u, row_of_lane >= 0);
  float sum[8] = {};
  for_rows<kRowsAtOnce<kRows>, kRows>(
      firsts | added, row_of_lane, exists, column, [&](auto row) { return rows.first_byte(row); },
      [&](const Eight<kRows>& row, int at) {
        const unsigned here = 1u << at, later = (firsts | added) & ~(here | (here - 1));
        if (firsts & here) {
#pragma unroll
          for (int i = 0; i < 8; ++i) sum[i] = has_residual ? next[i] : 0;
          if (has_residual && (firsts & later)) next.load(params.residual, (token + 1) * params.ld_residual + column);
        }
        const float weight = __shfl_sync(~0u, weight_of_lane, at);
        if (added & here) {
#pragma unroll
          for (int i = 0; i < 8; ++i) sum[i] = fmaf(weight, row[i], sum[i]);
        }
        if (later == 0 || (firsts & later & -later)) {
          if (exists) store_eight(params.out, token * params.ld_out + column, sum, kOut);
          ++token;
        }
      });
}

template <DataType kRows, DataType kOut>
MOXIE_DEVICE void combine(const CombineParams& params) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int32_t first = blockIdx.x * params.tokens_of_block;
  const int32_t tokens = min(params.tokens_of_block, real_tokens(params.token_count, params.tokens) - first);
  if (tokens <= 0) return;
  if (params.tokens_of_block > 1) {
    sum_rows_of_tokens<kRows, kOut>(params, first, tokens);
  } else {
    sum_rows<kRows, kOut>(params, RowsOfMatrix<kRows>{params}, first, [] { return true; });
  }
}

}  // namespace moxie::kernel
