// SPDX-License-Identifier: Apache-2.0
// Sums the rows of each token: out[t] = residual[t] + sum over j of weights[t, j] * rows[inverse[t, j]], in float32, in
// the order of j. A thread has eight columns of a token, and the rows of eight choices on their way at once.
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

// Adds the weighted rows of a token to eight columns of a sum, in the order of j. Lane j has pair j's row and weight; a
// row below 0 is skipped. All lanes of a warp take part, those whose columns do not exist as well.
template <DataType kRows, class Rows, typename Row>
MOXIE_DEVICE void add_rows(float (&sum)[8], const Rows& rows, Row row_of_lane, float weight_of_lane, int32_t top_k,
                           bool exists, int32_t column) {
  constexpr int kAtOnce = 8;  // rows on their way
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
  const float weight_of_lane = row_of_lane >= 0 && params.weights != nullptr ? params.weights[pair] : 1;

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

template <DataType kRows, DataType kOut>
MOXIE_DEVICE void combine(const CombineParams& params) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int32_t token = blockIdx.x;
  if (token < real_tokens(params.token_count, params.tokens))
    sum_rows<kRows, kOut>(params, RowsOfMatrix<kRows>{params}, token, [] { return true; });
}

}  // namespace moxie::kernel
