// SPDX-License-Identifier: Apache-2.0
// An activation that the library does not have, and the sink that applies it and stores bf16. Compiled at run time
// with the kernel; see kernels/moxie/epilogue/sink.cuh for the contract.
#pragma once
#include "moxie/epilogue/sink.cuh"

namespace example {

// The new activation. Everything below serves any such struct.
struct Softplus {
  MOXIE_DEVICE float operator()(float x) const { return x > 20.0f ? x : log1pf(expf(x)); }
};

template <class Activation>
class Apply {
 public:
  struct Params {
    uint16_t* out;  // bf16 [rows, ld]
    int64_t ld;
  };
  static constexpr moxie::kernel::Value kValue = moxie::kernel::Value::Pre;
  static constexpr moxie::SinkNeeds kNeeds = {};

  MOXIE_DEVICE explicit Apply(const Params& params) : params_(params) {}

  template <int kColumns>
  MOXIE_DEVICE void store(const moxie::kernel::Fragment<kColumns>& pre, const moxie::kernel::Chunk& chunk, int block,
                          uint8_t*) const {
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = chunk.fragment_row(block, h), column = chunk.column + chunk.fragment_column(j, 0);
        if (row >= chunk.rows || column >= chunk.n) continue;
        const Activation activation;
        uint16_t* to = params_.out + (chunk.row_begin + chunk.row + row) * params_.ld + column;
        *reinterpret_cast<uint32_t*>(to) =
            moxie::kernel::cvt_bf16x2(activation(pre.v[j][2 * h]), activation(pre.v[j][2 * h + 1]));
      }
    }
  }

 private:
  const Params& params_;
};

}  // namespace example
