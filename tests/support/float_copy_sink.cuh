// SPDX-License-Identifier: Apache-2.0
// A sink that takes fragments of every kind: out as float32, stored with plain instructions.
#pragma once
#include "moxie/epilogue/sink.cuh"

namespace float_copy {

using namespace moxie::kernel;

class FloatCopy {
 public:
  struct Params {
    float* base;  // [rows][ld]
    int64_t ld;   // elements between rows
    int32_t gated;
  };
  static constexpr Value kValue = Value::Out;
  static constexpr moxie::SinkNeeds kNeeds = {.narrow = true, .transposed = true};

  MOXIE_DEVICE explicit FloatCopy(const Params& params) : params_(params) {}

  template <int kColumns>
  MOXIE_DEVICE void store(const Fragment<kColumns>& values, const Chunk& chunk, int block, uint8_t*) const {
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        write(chunk, chunk.fragment_row(block, i / 2), chunk.fragment_column(j, i % 2), values.v[j][i]);
    }
  }

  template <int kColumns>
  MOXIE_DEVICE void store_transposed(const TransposedFragment<kColumns>& values, const Chunk& chunk, int row,
                                     uint8_t*) const {
    const int lane = chunk.thread % 32;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < kColumns / 4; ++i)
        write(chunk, row + 8 * j + 2 * (lane % 4) + i % 2, chunk.warp() * kColumns + lane / 4 + i / 2 * 8,
              values.v[j][i]);
    }
  }

 private:
  MOXIE_DEVICE void write(const Chunk& chunk, int row, int column, float value) const {
    const int first = params_.gated ? chunk.column / 2 : chunk.column, width = params_.gated ? chunk.n / 2 : chunk.n;
    if (row < chunk.rows && first + column < width)
      params_.base[(chunk.row_begin + chunk.row + row) * params_.ld + first + column] = value;
  }

  const Params& params_;
};

}  // namespace float_copy
