// SPDX-License-Identifier: Apache-2.0
// Rows of A that a list names (HopperConfig::gather), brought to shared memory by cp.async. The copy engine cannot
// gather rows on Hopper, so threads of the producer's warp group copy a chunk of 16 bytes each, into the same swizzled
// tile that the copy engine would write. No permuted copy of A is made in global memory.
//
//   thread t    chunk t % 8 of the 128 bytes of a stage's row, of the rows t / 8, t / 8 + threads / 8, ...
//   chunk c of row r lies at chunk c ^ (r % 8)
//
// Eight lanes copy the same rows, so each looks up every eighth of them and has it shuffled to the others.
#pragma once
#include "moxie/arguments.h"
#include "moxie/layout.h"
#include "moxie/tile.cuh"

namespace moxie::kernel {

template <HopperConfig C>
class GatheredRows {
  static_assert(C.grouping == Grouping::Offsets && !may_share_a(C));
  static constexpr int kStep = gather_threads(C) / 8;  // rows between two of a thread
  static constexpr int kRows = C.block_m / kStep;      // of a thread
  static constexpr int kLookUps = (kRows + 7) / 8;
  static constexpr int kSlabBytes = C.block_m * kStageRowBytes;
  static_assert(kStep % 8 == 0, "all rows of a thread have their chunk at the same place");

 public:
  MOXIE_DEVICE explicit GatheredRows(const GemmParams& gemm)
      : gemm_(gemm), row_(threadIdx.x / 8), column_(threadIdx.x % 8 * 8), to_(row_ * kStageRowBytes) {
    to_ += (threadIdx.x % 8 ^ row_ % 8) * 16;
  }

  // Whole warp: looks up the tile's rows. One past the group's last, or whose source does not exist, becomes zeros.
  MOXIE_DEVICE void begin(const Tile& tile) {
    const int32_t* list = gemm_.gather.rows + (tile.row_begin + tile.row + row_);
#pragma unroll
    for (int j = 0; j < kLookUps; ++j) {
      const int i = j * 8 + threadIdx.x % 8;
      sources_[j] = kNone;
      if (i >= kRows || row_ + i * kStep >= tile.rows) continue;
      const uint32_t source = static_cast<uint32_t>(list[i * kStep]) / gemm_.gather.divisor;
      if (source < gemm_.gather.count) sources_[j] = source;
    }
  }

  // Whole warp: begins to copy the columns of K from `k` on into the stage whose tile of A is `stage`. Those behind
  // `k_end` become zeros.
  MOXIE_DEVICE void copy(uint8_t* stage, int32_t k, int32_t k_end) const {
    const auto* a = static_cast<const uint8_t*>(gemm_.a_base);
    // All shuffles of a look-up come before its copies: the compiler leaves both in this order, and a copy that waited
    // for its own shuffle would cost the latency of one.
#pragma unroll
    for (int j = 0; j < kLookUps; ++j) {
      constexpr int kCount = kRows < 8 ? kRows : 8;
      uint32_t sources[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) sources[i] = __shfl_sync(~0u, sources_[j], i, 8);
#pragma unroll
      for (int slab = 0; slab < C.block_k / 64; ++slab) {
        const int32_t column = k + slab * 64 + column_;
        const uint8_t* from = a + int64_t{column} * 2;
        uint8_t* to = stage + slab * kSlabBytes + to_ + j * (8 * kStep * kStageRowBytes);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          const bool exists = column < k_end && sources[i] != kNone;
          const uint64_t row = static_cast<uint64_t>(sources[i]) * gemm_.gather.lda_bytes;
          cp_async_16(to + i * (kStep * kStageRowBytes), exists ? from + row : a, exists ? 16 : 0);
        }
      }
    }
  }

 private:
  static constexpr uint32_t kNone = ~0u;

  const GemmParams& gemm_;
  int32_t row_, column_;  // this thread's first row in the tile, and its column within a slab
  int32_t to_;            // of its first chunk in a slab
  uint32_t sources_[kLookUps];
};

}  // namespace moxie::kernel
