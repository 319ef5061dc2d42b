// SPDX-License-Identifier: Apache-2.0
// The k loop where B is packed MXFP4 weights (layout.h) and A is bf16. The product is computed transposed: weights are
// wgmma's operand A, from registers, and rows of A its operand B, from shared memory. So a tile may have as few as
// eight rows, and every weight is brought from shared memory to registers once.
//
//   even fragments   [ unpack block 0 ]                   [ unpack block 2 ]
//   odd fragments                      [ unpack block 1 ]                   [ unpack block 3 ]
//   tensor cores                       [ multiply block 0 ][ multiply block 1 ][ multiply block 2 ...
//
// A warp group unpacks a block of 64 rows by 64 columns of K while the tensor cores multiply the block before. So it
// has two sets of fragments. A stage holds one or two blocks for it.
#pragma once
#include "moxie/arguments.h"
#include "moxie/hopper/mainloop.cuh"
#include "moxie/tile.cuh"

namespace moxie::kernel {

// The packed weights of a block's tile in global memory: blocks of 64 rows by 64 columns of K.
template <HopperConfig C>
struct PackedTile {
  PackedTile() = default;
  MOXIE_DEVICE PackedTile(const GemmParams& gemm, const Tile& tile) {
    first = group_of(gemm, tile) + packed_block(tile.n, tile.k, tile.column, 0);
    rows = clamp(static_cast<int32_t>(packed_rows(tile.n)) - tile.column, 0, C.block_n);
  }

  // The packed weights of the tile's group.
  static MOXIE_DEVICE const uint8_t* group_of(const GemmParams& gemm, const Tile& tile) {
    if constexpr (C.grouping == Grouping::Pointers) return static_cast<const uint8_t*>(gemm.arrays.b[tile.group]);
    const int32_t number = has_one_b(C.grouping) ? 0 : tile.group;
    return static_cast<const uint8_t*>(gemm.b_base) + number * packed_group_bytes(gemm.n, gemm.k);
  }

  // Bytes of the blocks of all rows, and of one of them, whose columns begin at `k`.
  MOXIE_DEVICE uint32_t bytes(const Tile& tile, int32_t k) const { return rows * row_bytes(tile, k); }
  MOXIE_DEVICE uint32_t block_bytes(const Tile& tile, int block, int32_t k) const {
    return block_rows(block) * row_bytes(tile, k);
  }
  MOXIE_DEVICE const uint8_t* block(const Tile& tile, int block, int32_t k) const {
    return first + block * kPackRows * packed_row_bytes(tile.k) + block_rows(block) * packed_row_bytes(k);
  }

 private:
  MOXIE_DEVICE int32_t block_rows(int block) const { return clamp(rows - block * kPackRows, 0, kPackRows); }
  static MOXIE_DEVICE int32_t row_bytes(const Tile& tile, int32_t k) {
    return static_cast<int32_t>(packed_row_bytes(min(tile.k - k, kPackColumns)));
  }

  const uint8_t* first = nullptr;  // the block of the tile's first row and K's first columns
  int32_t rows = 0;                // padded rows of the tile that exist
};

template <HopperConfig C>
struct PackedMainloop {
  static constexpr bool kCooperative = C.schedule == WarpSchedule::Cooperative;
  // Accumulators of a consumer warp group, of 64 columns of the product each (the m64 of wgmma).
  static constexpr int kBlocks = block_columns(C) / kPackRows;
  static_assert(C.b_format == OperandFormat::Mxfp4);
  static_assert(C.block_k == kPackColumns);
  static_assert(C.block_m == 8 || C.block_m == 16 || C.block_m == 32 || C.block_m == 64 || C.block_m == 128 ||
                C.block_m == 256);
  static_assert(C.block_n == 64 || C.block_n == 128 || C.block_n == 256);
  static_assert((kBlocks == 1 || kBlocks == 2) && kBlocks * C.block_m / 2 <= 128,
                "more accumulators than leave room for two sets of fragments");
  static_assert(C.block_m >= 64 || C.decode_tile, "fewer than 64 rows are stored from registers");
  static_assert((C.cluster == 1 && C.multicast == Multicast::None) || (C.cluster == 2 && C.multicast == Multicast::A));

  static constexpr int kStageA = C.block_m * kStageRowBytes;
  static constexpr int kStageB = b_stage_bytes(C);
  static constexpr int kReaders = kCooperative ? kConsumerWarpGroups : 1;
  using Ring = HopperRing<C.stages, C.cluster, 4 * kReaders * C.cluster>;
  using Position = RingPosition<C.stages>;
  using Accumulator = float[kBlocks][C.block_m / 2];

  // What a warp group knows of its part of a tile.
  struct Part {
    int32_t column;         // of the product, where the part begins
    int32_t units;          // of packed rows from there on
    bool half;              // the last stage holds 32 columns of K, not 64
    const uint8_t* shifts;  // bytes of the packed rows from `column` on
  };
  static MOXIE_DEVICE Part part_of(const GemmParams& gemm, const Tile& tile, int warp_group) {
    Part part;
    part.column = tile.column + (kCooperative ? warp_group * block_columns(C) : 0);
    const int32_t rows = static_cast<int32_t>(packed_rows(tile.n));
    part.units = tile.k == 0 ? 0 : (rows - part.column) / kPackUnit;  // without any K there may be no weights
    part.half = tile.k % kPackColumns != 0;
    part.shifts = PackedTile<C>::group_of(gemm, tile) + packed_block_bytes(tile.n, tile.k) + part.column;
    return part;
  }

  // Factors of this thread's rows of each accumulator: what the packed weights leave out, NaN for a row that has a
  // scale of NaN. Through the main loop they are one byte each.
  using Factors = float[kBlocks][2];
  struct Shifts {
    MOXIE_DEVICE Shifts(const Part& part, int thread) {
#pragma unroll
      for (int i = 0; i < 2 * kBlocks; ++i) {
        const int unit = i / 2 * (kPackRows / kPackUnit) + thread / 32;
        const uint32_t shift = unit < part.units ? part.shifts[unit * kPackUnit + thread % 32 / 4 + i % 2 * 8] : 0;
        bytes |= shift << 8 * i;
      }
    }
    MOXIE_DEVICE void get(Factors& factors) const {
#pragma unroll
      for (int i = 0; i < 2 * kBlocks; ++i) {
        const uint32_t shift = bytes >> 8 * i & 0xff;
        factors[i / 2][i % 2] = __uint_as_float((shift & kPackNan) != 0 ? 0x7fffffff : (127 + shift) << 23);
      }
    }
    uint32_t bytes = 0;
  };

  // Whole consumer warp group: acc = the product of the next k_tiles stages, of which `a` is the first stage's tile and
  // `b` this warp group's first block of packed rows. all_issued() is called while the last stage is multiplied.
  // `thread` is that of the warp group.
  template <class Function>
  static MOXIE_DEVICE void multiply(Accumulator& acc, const Ring& ring, Position& at, uint32_t k_tiles,
                                    const Part& part, const uint8_t* a, const uint8_t* b, int thread,
                                    Function&& all_issued) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < C.block_m / 2; ++i) asm volatile("mov.f32 %0, 0f00000000;" : "=f"(acc[block][i]));
    }
    if (k_tiles == 0) {
      all_issued();
      return;
    }
    const uint64_t first_a = wgmma_descriptor(a);
    Fragments even, odd;
    uint32_t tile_k = 0, previous = 0;
    // Multiplies block `block` of the stage, whose weights `now` holds, and meanwhile unpacks the block that follows.
    // False where none does.
    const auto step = [&](const Fragments& now, int block, Fragments& next) {
      const bool last = block == kBlocks - 1;
      const uint64_t stage_a = first_a + at.stage * (kStageA / 16);
      // Packed weights were read as ordinary accesses, and the copy engine is to write there. All lanes execute wgmma
      // together before one of them releases the stage.
      if (last) cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < C.block_k / 16; ++k)
        WgmmaFromRegisters<C.block_m>::multiply(acc[block], now.v[k], stage_a + k * 32 / 16, true);
      wgmma_commit_group();
      wgmma_wait_group<1>();  // `next` is free, and behind the first block so is the stage before
      if (block == 0 && tile_k > 0) ring.release(previous, thread % 32);
      if (last) {
        previous = at.stage;
        at.advance();
        if (++tile_k == k_tiles) return false;
        ring.wait_full(at.stage, at.phase);
      }
      unpack(next, part, b + at.stage * kStageB, last ? 0 : block + 1, tile_k + 1 == k_tiles && part.half, thread);
      return true;
    };
    ring.wait_full(at.stage, at.phase);
    unpack(even, part, b + at.stage * kStageB, 0, k_tiles == 1 && part.half, thread);
    while (step(even, 0, odd) && step(odd, kBlocks - 1, even)) {
    }
    all_issued();
    wgmma_wait_group<0>();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < C.block_m / 2; ++i) asm volatile("" : "+f"(acc[block][i]));
    }
    ring.release(previous, thread % 32);
  }

 private:
  // wgmma's operand A for the four steps of a block.
  struct Fragments {
    uint32_t v[C.block_k / 16][4];
  };

  // Makes bf16 fragments of this lane's codes in a block. Units past the last become zeros, and where the block holds
  // only 32 columns so do the others.
  static MOXIE_DEVICE void unpack(Fragments& to, const Part& part, const uint8_t* stage, int block, bool half,
                                  int thread) {
    const int32_t units = min(part.units - block * (kPackRows / kPackUnit), kPackRows / kPackUnit);
    const uint8_t* codes = stage + block * kPackBlockBytes;
    if (thread / 32 >= units) {
#pragma unroll
      for (int k = 0; k < C.block_k / 16; ++k) clear(to.v[k]);
    } else if (half) {
      const uint8_t* scales = codes + units * (32 * kPackLaneBytes / 2);
      const auto words = reinterpret_cast<const uint2*>(codes)[thread];
      const uint32_t pair = reinterpret_cast<const uint16_t*>(scales)[thread / 4];
      const uint32_t low = factor(pair & 0xff), high = factor(pair >> 8);
      unpack_word(to.v[0], words.x, low, high);
      unpack_word(to.v[1], words.y, low, high);
      clear(to.v[2]);
      clear(to.v[3]);
    } else {
      const uint8_t* scales = codes + units * (32 * kPackLaneBytes);
      const auto words = reinterpret_cast<const uint4*>(codes)[thread];
      const uint32_t four = reinterpret_cast<const uint32_t*>(scales)[thread / 4];
      const uint32_t low = factor(four & 0xff), high = factor(four >> 16 & 0xff);
      unpack_word(to.v[0], words.x, low, high);
      unpack_word(to.v[1], words.y, low, high);
      const uint32_t second_low = factor(four >> 8 & 0xff), second_high = factor(four >> 24);
      unpack_word(to.v[2], words.z, second_low, second_high);
      unpack_word(to.v[3], words.w, second_low, second_high);
    }
  }

  static MOXIE_DEVICE void clear(uint32_t (&fragment)[4]) {
#pragma unroll
    for (uint32_t& pair : fragment) pair = 0;
  }

  // A pair of the bf16 whose exponent field a stored scale is.
  static MOXIE_DEVICE uint32_t factor(uint32_t scale) { return scale * 0x00800080; }

  // Eight codes to the fragment of one step. Of every half word, bits 15 and 8 to 6 are sign and magnitude of the first
  // register's code. Of the second's they are bits 12 and 5 to 3, of the third's 14 and 2 to 0, of the fourth's 13 and
  // 11 to 9. `low` and `high` are the factors of rows r and r + 8.
  static MOXIE_DEVICE void unpack_word(uint32_t (&fragment)[4], uint32_t word, uint32_t low, uint32_t high) {
    constexpr uint32_t kSign = 0x80008000, kMagnitude = 0x01c001c0;
    fragment[0] = mul_bf16x2(word & (kSign | kMagnitude), low);
    fragment[1] = mul_bf16x2(word << 3 & (kSign | kMagnitude), high);
    fragment[2] = mul_bf16x2((word << 6 & kMagnitude) | (word << 1 & kSign), low);
    fragment[3] = mul_bf16x2((word >> 3 & kMagnitude) | (word << 2 & kSign), high);
  }
};

// The k loop of a configuration.
template <HopperConfig C, bool kPacked>
struct MainloopFor {
  using Type = HopperMainloop<C>;
};
template <HopperConfig C>
struct MainloopFor<C, true> {
  using Type = PackedMainloop<C>;
};
template <HopperConfig C>
using MainloopOf = typename MainloopFor<C, has_packed_b(C)>::Type;

}  // namespace moxie::kernel
