// SPDX-License-Identifier: Apache-2.0
// A third sink, unlike the standard two: the largest |out| of every 32 columns of a row, as float32, stored with plain
// instructions. It stands outside the kernel and is handed to it as a CustomSink.
#pragma once
#include "moxie/epilogue/sink.cuh"

namespace row_max {

using namespace moxie::kernel;

class RowMax {
 public:
  struct Params {
    float* base;         // [rows][ld]
    int64_t ld;          // elements between rows
    int64_t group_rows;  // rows between groups where each has its own matrix, else 0
    int32_t gated;
  };
  static constexpr Value kValue = Value::Out;
  static constexpr moxie::SinkNeeds kNeeds = {};

  MOXIE_DEVICE explicit RowMax(const Params& params) : params_(params) {}

  template <int kColumns>
  MOXIE_DEVICE void store(const Fragment<kColumns>& values, const Chunk& chunk, int block, uint8_t*) const {
    static_assert(kColumns % 32 == 0, "a span must not lie in two tiles: a gated tile has to be a multiple of 64 wide");
    const int column = (params_.gated ? chunk.column / 2 : chunk.column) + chunk.warp_column();
    const int width = params_.gated ? chunk.n / 2 : chunk.n;
#pragma unroll
    for (int first = 0; first < kColumns; first += 32) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float largest = 0.0f;
#pragma unroll
        for (int j = first / 8; j < (first + 32) / 8; ++j) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            if (column + 8 * j + chunk.thread % 4 * 2 + c < width)
              largest = fmaxf(largest, fabsf(values.v[j][2 * h + c]));
          }
        }
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
        const int row = chunk.fragment_row(block, h);
        if (chunk.thread % 4 == 0 && row < chunk.rows && column + first < width) {
          const int64_t at = chunk.group * params_.group_rows + chunk.row_begin + chunk.row + row;
          params_.base[at * params_.ld + (column + first) / 32] = largest;
        }
      }
    }
  }

 private:
  const Params& params_;
};

}  // namespace row_max
