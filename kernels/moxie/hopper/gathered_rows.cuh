// SPDX-License-Identifier: Apache-2.0
// Rows of A that a list names (HopperConfig::gather), brought to shared memory by cp.async. The copy engine cannot
// gather rows on Hopper, so threads of the producer's warp group copy a chunk of 16 bytes each, into the same swizzled
// tile that the copy engine would write. No permuted copy of A is made in global memory.
//
//   thread t    chunk t % 8 of the 128 bytes of a stage's row, of the rows t / 8, t / 8 + threads / 8, ...
//   chunk c of row r lies at chunk c ^ (r % 8)
//
// Eight lanes copy the same rows, so each looks up every eighth of them and shuffles it to the others.
//
// While the tensor cores are busy, each instruction of the producer takes some seven cycles. So the addresses of a
// tile's rows stay in registers, stages are told apart by constants, and where all rows exist a copy takes one
// instruction. Addresses move on once in kStages stages: a copy reads its address some time after it has been issued,
// and what writes the same register next waits for that.
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
  static constexpr int kSlabBytes = C.block_m * kStageRowBytes, kSlabs = C.block_k / 64;
  static_assert(kStep % 8 == 0, "all rows of a thread have their chunk at the same place");
  static_assert(kRows < 8 || kRows % 8 == 0);

 public:
  MOXIE_DEVICE explicit GatheredRows(const GemmParams& gemm)
      : gemm_(gemm), row_(threadIdx.x / 8), column_(threadIdx.x % 8 * 8), to_(row_ * kStageRowBytes) {
    to_ += (threadIdx.x % 8 ^ row_ % 8) * 16;
  }

  static constexpr int kStages = 4 / kSlabs;  // from one advance() to the next

  // Whole warp: looks up the tile's rows. One past the group's last, or whose source does not exist, becomes zeros.
  MOXIE_DEVICE void begin(const Tile& tile) {
    const int32_t* list = gemm_.gather.rows + (tile.row_begin + tile.row + row_);
    const uint64_t first = __cvta_generic_to_global(gemm_.a_base) + 2 * column_;
    uint32_t sources[kLookUps];  // every eighth of the rows, in the order of the eight lanes; 0: none
    existing_ = 0;
#pragma unroll
    for (int j = 0; j < kLookUps; ++j) {
      const int i = j * 8 + threadIdx.x % 8;
      uint32_t source = ~0u;
      if (i < kRows && row_ + i * kStep < tile.rows)
        source = static_cast<uint32_t>(list[i * kStep]) / gemm_.gather.divisor;
      const bool exists = source < gemm_.gather.count;
      sources[j] = exists ? source : 0;
      // Of the eight lanes that copy the same rows.
      const uint32_t found = __ballot_sync(~0u, exists) >> (threadIdx.x % 32 / 8 * 8);
      existing_ |= (found & 0xff) << (j * 8);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const uint32_t source = __shfl_sync(~0u, sources[i / 8], i % 8, 8);
      from_[i] = multiply_add_wide(source, gemm_.gather.lda_bytes, first);
    }
    all_exist_ = __all_sync(~0u, existing_ == (1u << kRows) - 1) != 0;
  }

  // Whole warp: begins to copy the columns of K from `k` on, those of stage `ahead` of kStages behind the last
  // advance(), to the tile of A at `stage` in shared memory. Those behind `k_end` become zeros.
  MOXIE_DEVICE void copy(uint32_t stage, int ahead, int32_t k, int32_t k_end) const {
    const uint32_t to = stage + to_;
    const bool whole = all_exist_ && k + C.block_k <= k_end;
    if (whole) {
#pragma unroll
      for (int slab = 0; slab < kSlabs; ++slab) {
#pragma unroll
        for (int i = 0; i < kRows; ++i)
          cp_async_16(to + slab * kSlabBytes + i * (kStep * kStageRowBytes), from(i, ahead, slab));
      }
    } else {
#pragma unroll
      for (int slab = 0; slab < kSlabs; ++slab) {
        const uint32_t existing = k + slab * 64 + column_ < k_end ? existing_ : 0;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          cp_async_16_or_zeros(to + slab * kSlabBytes + i * (kStep * kStageRowBytes), from(i, ahead, slab),
                               (existing >> i & 1) != 0);
        }
      }
    }
  }

  // Moves the addresses on. Called after every kStages stages.
  MOXIE_DEVICE void advance() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) from_[i] += kStages * C.block_k * 2;
  }

 private:
  MOXIE_DEVICE uint64_t from(int i, int ahead, int slab) const {
    return from_[i] + (ahead * kSlabs + slab) * kStageRowBytes;
  }

  const GemmParams& gemm_;
  int32_t row_, column_;  // this thread's first row in the tile, and its column within a slab
  uint32_t to_;           // of its first chunk in a slab
  uint32_t existing_;     // bit i: row i has a source
  bool all_exist_;        // all rows of the warp
  uint64_t from_[kRows];  // in global memory, its chunks of the next stage
};

}  // namespace moxie::kernel
