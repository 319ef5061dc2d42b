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
// A copy reads its address some time after it has been issued, and what writes the same register next waits for that.
// So all addresses of a stage are computed before its copies, each in registers of its own.
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
  static_assert(kRows < 8 || kRows % 8 == 0);

 public:
  MOXIE_DEVICE explicit GatheredRows(const GemmParams& gemm)
      : gemm_(gemm), row_(threadIdx.x / 8), column_(threadIdx.x % 8 * 8), to_(row_ * kStageRowBytes) {
    to_ += (threadIdx.x % 8 ^ row_ % 8) * 16;
  }

  // Whole warp: looks up the tile's rows. One past the group's last, or whose source does not exist, becomes zeros.
  MOXIE_DEVICE void begin(const Tile& tile) {
    const int32_t* list = gemm_.gather.rows + (tile.row_begin + tile.row + row_);
    next_ = __cvta_generic_to_global(gemm_.a_base) + 2 * column_;
    existing_ = 0;
#pragma unroll
    for (int j = 0; j < kLookUps; ++j) {
      const int i = j * 8 + threadIdx.x % 8;
      uint32_t source = ~0u;
      if (i < kRows && row_ + i * kStep < tile.rows)
        source = static_cast<uint32_t>(list[i * kStep]) / gemm_.gather.divisor;
      const bool exists = source < gemm_.gather.count;
      sources_[j] = exists ? source : 0;
      // Of the eight lanes that copy the same rows.
      const uint32_t found = __ballot_sync(~0u, exists) >> (threadIdx.x % 32 / 8 * 8);
      existing_ |= (found & 0xff) << (j * 8);
    }
  }

  // Whole warp: computes the addresses of the copies of the tile's next stage. Between this and copy() stands a loop or
  // a branch, or else ptxas computes each address where it is read, in few registers.
  MOXIE_DEVICE void prepare() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const uint32_t source = __shfl_sync(~0u, sources_[i / 8], i % 8, 8);
      from_[i] = multiply_add_wide(source, gemm_.gather.lda_bytes, next_);
    }
    next_ += C.block_k * 2;
  }

  // Whole warp: begins to copy the columns of K from `k` on, for which it was prepared, into the stage whose tile of A
  // is `stage`. Those behind `k_end` become zeros.
  MOXIE_DEVICE void copy(uint8_t* stage, int32_t k, int32_t k_end) const {
    const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(stage)) + to_;
#pragma unroll
    for (int slab = 0; slab < C.block_k / 64; ++slab) {
      const uint32_t existing = k + slab * 64 + column_ < k_end ? existing_ : 0;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        cp_async_16_or_zeros(to + slab * kSlabBytes + i * (kStep * kStageRowBytes), from_[i] + slab * kStageRowBytes,
                             (existing >> i & 1) != 0);
      }
    }
  }

 private:
  const GemmParams& gemm_;
  int32_t row_, column_;        // this thread's first row in the tile, and its column within a slab
  uint32_t to_;                 // of its first chunk in a slab
  uint32_t sources_[kLookUps];  // of every eighth of the rows that it copies, in the order of the eight lanes; 0: none
  uint32_t existing_;           // bit i: row i has a source
  uint64_t next_;               // in global memory, its chunk of row 0 of A for the stage to prepare next
  uint64_t from_[kRows];        // in global memory, its chunks of the stage that is prepared
};

}  // namespace moxie::kernel
