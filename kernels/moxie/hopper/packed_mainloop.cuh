// SPDX-License-Identifier: Apache-2.0
// The k loop where B is packed MXFP4 weights (layout.h) and A is bf16. The product is computed transposed: weights are
// wgmma's operand A, from registers, and rows of A its operand B, from shared memory. So a tile may have as few as
// eight rows, and every weight is brought from shared memory to registers once.
//
//   one set of fragments    [ unpack block 0 ]                   [ unpack block 2 ]
//   the other                                 [ unpack block 1 ]                   [ unpack block 3 ]
//   tensor cores                              [ multiply block 0 ][ multiply block 1 ][ multiply block 2 ...
//
// A warp group unpacks a block of 64 rows by 64 columns of K while the tensor cores multiply the block before. So it
// has two sets of fragments. A stage holds a block for it for every strip of 64 rows that it has, one or two, and every
// slab of 64 columns, one, two or four.
#pragma once
#include "moxie/arguments.h"
#include "moxie/hopper/mainloop.cuh"
#include "moxie/tile.cuh"

namespace moxie::kernel {

// The packed weights of a block's tile in global memory: strips of 64 rows, in which blocks of 64 columns of K follow
// each other.
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

  // Bytes of the stage whose columns begin at `k`: of all rows, and of one strip of 64.
  MOXIE_DEVICE uint32_t bytes(const Tile& tile, int32_t k) const { return rows * row_bytes(tile, k); }
  MOXIE_DEVICE uint32_t strip_bytes(const Tile& tile, int strip, int32_t k) const {
    return strip_rows(strip) * row_bytes(tile, k);
  }
  MOXIE_DEVICE const uint8_t* strip(const Tile& tile, int strip, int32_t k) const {
    return first + strip * kPackRows * packed_row_bytes(tile.k) + strip_rows(strip) * packed_row_bytes(k);
  }

 private:
  MOXIE_DEVICE int32_t strip_rows(int strip) const { return clamp(rows - strip * kPackRows, 0, kPackRows); }
  static MOXIE_DEVICE int32_t row_bytes(const Tile& tile, int32_t k) {
    return static_cast<int32_t>(packed_row_bytes(min(tile.k - k, C.block_k)));
  }

  const uint8_t* first = nullptr;  // the block of the tile's first row and K's first columns
  int32_t rows = 0;                // padded rows of the tile that exist
};

template <HopperConfig C>
struct PackedMainloop {
  // Accumulators of a consumer warp group, of 64 columns of the product each (the m64 of wgmma).
  static constexpr int kBlocks = block_columns(C) / kPackRows;
  static_assert(C.b_format == OperandFormat::Mxfp4 && C.schedule == WarpSchedule::Cooperative);
  static_assert(C.block_k == 64 || C.block_k == 128 || C.block_k == 256);
  static_assert(C.block_m == 8 || C.block_m == 16 || C.block_m == 32 || C.block_m == 64 || C.block_m == 128 ||
                C.block_m == 256);
  static_assert(C.block_n == 128 || C.block_n == 256);
  static_assert(k_parts(C) <= 2 && C.block_k / 64 % k_parts(C) == 0);
  static_assert((kBlocks == 1 || kBlocks == 2) && kBlocks * C.block_m / 2 <= 128,
                "more accumulators than leave room for two sets of fragments");
  static_assert(C.block_m >= 64 || C.decode_tile, "fewer than 64 rows are stored from registers");
  static_assert((C.cluster == 1 && C.multicast == Multicast::None) || (C.cluster == 2 && C.multicast == Multicast::A));

  static constexpr int kStageA = a_stage_bytes(C);
  static constexpr int kStageB = b_stage_bytes(C);
  static constexpr int kSlabs = C.block_k / kPackColumns;       // of a stage
  static constexpr int kStripBytes = kSlabs * kPackBlockBytes;  // of a stage: of 64 rows
  static constexpr int kUnits = kPackRows / kPackUnit;          // of a strip
  // Strips of 64 rows of a tile that warp groups divide among them, and how many of them share one.
  static constexpr int kParts = k_parts(C), kStrips = consumer_warp_groups(C) / kParts;
  static constexpr int kReaders = consumer_warp_groups(C);
  // Whether a warp group whose strip does not exist skips the unpacking of it. With 32 rows of A the compiler finds
  // registers for wgmma to run behind only where unpacking is divided by such a branch, which takes moves.
  static constexpr bool kSkips = C.block_m == 32 && kParts == 1;
  using Ring = HopperRing<C.stages, C.cluster, 4 * kReaders * C.cluster, gather_threads(C)>;
  using Position = RingPosition<C.stages>;
  using Accumulator = float[kBlocks][C.block_m / 2];

  // What a warp group knows of its part of a tile.
  struct Part {
    int32_t column;         // of the product, where the part begins
    int32_t first_slab;     // of K; kParts on there is the next
    int32_t units;          // of packed rows from there on
    int32_t units_of_tile;  // from the tile's first column on
    int32_t first_strip;    // of the tile, from which `column` comes
    bool half;              // the last block holds 32 columns of K, not 64
    const uint8_t* shifts;  // bytes of the packed rows from `column` on
  };
  static MOXIE_DEVICE Part part_of(const GemmParams& gemm, const Tile& tile, int warp_group) {
    Part part;
    part.column = tile.column + (kParts == 1 ? warp_group : warp_group % kStrips) * block_columns(C);
    part.first_slab = kParts == 1 ? 0 : warp_group / kStrips;
    const int32_t rows = static_cast<int32_t>(packed_rows(tile.n));
    part.units = tile.k == 0 ? 0 : (rows - part.column) / kPackUnit;  // without any K there may be no weights
    part.units_of_tile = (rows - tile.column) / kPackUnit;
    part.first_strip = (part.column - tile.column) / kPackRows;
    part.half = tile.k % kPackColumns != 0;
    part.shifts = PackedTile<C>::group_of(gemm, tile) + packed_block_bytes(tile.n, tile.k) + part.column;
    return part;
  }

  // Factors of this thread's rows of each accumulator: what the packed weights leave out, NaN for a row that has a
  // scale of NaN. Through the main loop they are one byte each.
  using Factors = float[kBlocks][2];
  struct Shifts {
    Shifts() = default;
    MOXIE_DEVICE Shifts(const Part& part, int thread) {
#pragma unroll
      for (int i = 0; i < 2 * kBlocks; ++i) {
        const int unit = i / 2 * kUnits + thread / 32;
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

  // Whole consumer warp group: acc = the product over its part of `k` columns of K, which lie in the next stages. `a`
  // is the first stage's tile and `b` this warp group's first strip of packed rows there. `thread` is that of the warp
  // group. Rows of the tile behind the first `rows` may be left out, their sums are 0 then.
  static MOXIE_DEVICE void multiply(Accumulator& acc, const Ring& ring, Position& at, int32_t rows, int32_t k,
                                    const Part& part, const uint8_t* a, const uint8_t* b, int thread) {
#pragma unroll
    for (int strip = 0; strip < kBlocks; ++strip) {
#pragma unroll
      for (int i = 0; i < C.block_m / 2; ++i) asm volatile("mov.f32 %0, 0f00000000;" : "=f"(acc[strip][i]));
    }
    const uint32_t slabs = (static_cast<uint32_t>(k) + kPackColumns - 1) / kPackColumns;
    uint32_t slab = part.first_slab;
    if (slab >= slabs) {
      if (kParts > 1 && k > 0) skip(ring, at, thread);
      return;
    }
    // A tile beside the peer's may lie behind the last column.
    if (C.cluster > 1 && part.units_of_tile <= 0) {
      for (uint32_t first = 0; first < slabs; first += kSlabs) skip(ring, at, thread);
      return;
    }
    const uint64_t first_a = wgmma_descriptor(a);
    const auto descriptor_of = [&](uint32_t stage) {
      return first_a + (stage * (kStageA / 16) + part.first_slab * kSlabA);
    };
    uint64_t stage_a = descriptor_of(at.stage);
    const uint32_t half_slab = part.half ? slabs - 1 : ~0u;
    const Weights weights(part, b, thread);
    // Without wgmma nothing is read behind its instruction, so one set of fragments is enough.
    constexpr int kSets = kWgmma ? 2 : 1;
    Fragments fragments[kSets];
    if constexpr (kSkips) {
#pragma unroll
      for (Fragments& set : fragments) {
#pragma unroll
        for (auto& fragment : set.v) clear(fragment);
      }
    }
    uint32_t previous = 0;
    with_rows(rows, [&](auto number_of_rows) {
      constexpr int kRows = decltype(number_of_rows)::value;
      // Multiplies one block of the stage, and meanwhile unpacks the block that follows. False where none does.
      const auto step = [&](auto number) {
        constexpr int kStep = decltype(number)::value % kSteps, kStrip = kStep % kBlocks;
        const Fragments& now = fragments[decltype(number)::value % kSets];
        Fragments& next = fragments[(decltype(number)::value + 1) % kSets];
        auto& sums = reinterpret_cast<float(&)[kRows / 2]>(acc[kStrip]);
        if constexpr (kWgmma) wgmma_fence();
#pragma unroll
        for (int i = 0; i < kPackColumns / 16; ++i) {
          const uint64_t columns_a = stage_a + (kStep / kBlocks * kParts * kSlabA + i * 32 / 16);
          if constexpr (kWgmma) {
            WgmmaFromRegisters<kRows>::multiply(sums, now.v[i], columns_a, true);
          } else {
            multiply_in_warp<kRows>(sums, now.v[i], columns_a, static_cast<uint32_t>(__cvta_generic_to_shared(a)));
          }
        }
        if constexpr (kWgmma) {
          wgmma_commit_group();
          wgmma_wait_group<1>();  // `next` is free, and behind a stage's first block so is the stage before
        }
        // This stage's first block has been read by now. Where a stage has no other, one fence stands for the reads of
        // two stages, and every other step leaves it out. With gathered rows wait_full() has had one since.
        constexpr bool kFence = !kFencedWait && (kSteps > 1 || decltype(number)::value == 1);
        if (kStep == 0 && slab >= kSlabs) release<kFence>(ring, previous, thread);
        if constexpr (kStrip == kBlocks - 1) {
          slab += kParts;
          if (slab >= slabs) return false;
          if constexpr (kStep == kSteps - 1) {
            previous = at.stage;
            at.advance();
            wait_full(ring, at);
            stage_a = descriptor_of(at.stage);
          }
        }
        constexpr int kNext = (kStep + 1) % kSteps;
        weights.unpack(next, at.stage, kNext % kBlocks, kNext / kBlocks * kParts, slab == half_slab);
        return true;
      };
      wait_full(ring, at);
      weights.unpack(fragments[0], at.stage, 0, 0, half_slab == slab);
      while (all_steps<0>(step)) {
      }
    });
    if constexpr (kWgmma) {
      wgmma_wait_group<0>();
#pragma unroll
      for (int strip = 0; strip < kBlocks; ++strip) {
#pragma unroll
        for (int i = 0; i < C.block_m / 2; ++i) asm volatile("" : "+f"(acc[strip][i]));
      }
    }
    release<true>(ring, at.stage, thread);
    at.advance();
    // The last stage may end before this warp group's slab.
    if (kParts > 1 && (slab - kParts) / kSlabs != (slabs - 1) / kSlabs) skip(ring, at, thread);
  }

  // Partial sums go from the second warp group of a strip to the first through shared memory. `partials` is this
  // thread's first place there.
  static MOXIE_DEVICE void hand_over(const Accumulator& acc, float* partials) {
#pragma unroll
    for (const float sum : acc[0]) *partials = sum, partials += 128;
  }
  static MOXIE_DEVICE void add(Accumulator& acc, const float* partials) {
#pragma unroll
    for (float& sum : acc[0]) sum += *partials, partials += 128;
  }

 private:
  static constexpr int kSteps = kBlocks * kSlabs / kParts;             // blocks of a stage
  static constexpr uint32_t kSlabA = C.block_m * kStageRowBytes / 16;  // a slab of A, as descriptors count

  // The same number, which the compiler then knows to be the same for all lanes. Behind a branch that it held for one
  // that depends on the thread it would bring each descriptor to uniform registers anew.
  static MOXIE_DEVICE int32_t uniform(int32_t number) { return __reduce_max_sync(~0u, number); }

  // Calls `function` with the rows to multiply as a constant: all of a tile, or half where there are no more.
  template <class Function>
  static MOXIE_DEVICE void with_rows(int32_t rows, const Function& function) {
    if constexpr (halves_rows(C)) {
      if (uniform(rows) <= C.block_m / 2) {
        function(cuda::std::integral_constant<int, C.block_m / 2>{});
        return;
      }
    }
    function(cuda::std::integral_constant<int, C.block_m>{});
  }

  static constexpr bool kFencedWait = C.gather && kWgmma;
  static MOXIE_DEVICE void wait_full(const Ring& ring, const Position& at) {
    ring.wait_full(at.stage, at.phase);
    // Threads have written A, as ordinary accesses, and wgmma is to read it.
    if constexpr (kFencedWait) cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
  }

  // Lets a stage go that holds nothing for this warp group.
  static MOXIE_DEVICE void skip(const Ring& ring, Position& at, int thread) {
    ring.wait_full(at.stage, at.phase);
    ring.release(at.stage, thread % 32);
    at.advance();
  }

  // The steps of one stage, or of two where their number is odd. False once no block follows.
  template <int kNumber, class Step>
  static MOXIE_DEVICE bool all_steps(const Step& step) {
    if (!step(cuda::std::integral_constant<int, kNumber>{})) return false;
    if constexpr (kNumber + 1 < (kSteps % 2 == 0 ? kSteps : 2 * kSteps)) return all_steps<kNumber + 1>(step);
    return true;
  }

  // Lets a stage go. All lanes have read weights from it, as ordinary accesses, and the copy engine is to write there:
  // since the reads there must have been a fence, this one or an earlier one.
  template <bool kFence>
  static MOXIE_DEVICE void release(const Ring& ring, uint32_t stage, int thread) {
    if constexpr (kFence) cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    __syncwarp();
    ring.release(stage, thread % 32);
  }

  // wgmma's operand A for the four steps of a block.
  struct Fragments {
    uint32_t v[kPackColumns / 16][4];
  };

  // Where this lane's weights lie in a stage. A warp whose unit does not exist takes its strip's first one, or that of
  // the tile, and nobody stores what comes of it: behind a branch that depends on the thread the compiler would bring
  // each descriptor to uniform registers anew, a fifth of the instructions.
  class Weights {
   public:
    MOXIE_DEVICE Weights(const Part& part, const uint8_t* first, int thread) {
#pragma unroll
      for (int strip = 0; strip < kBlocks; ++strip) {
        const int32_t here = part.units - strip * kUnits;
        const bool exists = thread / 32 < here;
        const int32_t units = clamp(here > 0 ? here : part.units_of_tile, 1, kUnits);
        const int lane = exists ? thread : thread % 32;
        strips_[strip].first = first + (here > 0 ? strip * kStripBytes : -part.first_strip * kStripBytes);
        strips_[strip].first += part.first_slab * units * kPackUnitBytes;
        strips_[strip].units = units;
        strips_[strip].exists = here > 0;
        strips_[strip].codes = lane * kPackLaneBytes;
        strips_[strip].scales = units * (32 * kPackLaneBytes) + lane / 4 * 4;
        // Otherwise the compiler computes them anew for every block. Two strips leave no registers to keep them in.
        if constexpr (kBlocks == 1 && C.block_m < 32)
          asm volatile("" : "+r"(strips_[strip].codes), "+r"(strips_[strip].scales));
      }
    }

    // Makes bf16 fragments of this lane's codes in a block. Where the block holds only 32 columns the others become
    // zeros.
    MOXIE_DEVICE void unpack(Fragments& to, uint32_t stage, int strip, int slab, bool half) const {
      const Strip& of = strips_[strip];
      if (kSkips && !of.exists) return;
      const uint8_t* block = of.first + (stage * kStageB + slab * of.units * kPackUnitBytes);
      if (half) {
        const auto words = *reinterpret_cast<const uint2*>(block + of.codes / 2);
        const auto pair = *reinterpret_cast<const uint16_t*>(block + of.scales / 2);
        const uint32_t low = factor(pair, 0), high = factor(pair, 1);
        unpack_word(to.v[0], words.x, low, high);
        unpack_word(to.v[1], words.y, low, high);
        clear(to.v[2]);
        clear(to.v[3]);
      } else {
        const auto words = *reinterpret_cast<const uint4*>(block + of.codes);
        const auto four = *reinterpret_cast<const uint32_t*>(block + of.scales);
        const uint32_t low = factor(four, 0), high = factor(four, 2);
        unpack_word(to.v[0], words.x, low, high);
        unpack_word(to.v[1], words.y, low, high);
        const uint32_t second_low = factor(four, 1), second_high = factor(four, 3);
        unpack_word(to.v[2], words.z, second_low, second_high);
        unpack_word(to.v[3], words.w, second_low, second_high);
      }
    }

   private:
    struct Strip {
      const uint8_t* first;  // in the ring's first stage
      int32_t units;
      int32_t codes, scales;  // of this lane, in a whole block; half of it in one of 32 columns
      bool exists;            // the strip has a row in the product
    };
    Strip strips_[kBlocks];
  };

  static MOXIE_DEVICE void clear(uint32_t (&fragment)[4]) {
#pragma unroll
    for (uint32_t& pair : fragment) pair = 0;
  }

  // A pair of the bf16 whose exponent field is byte `byte` of stored scales.
  static MOXIE_DEVICE uint32_t factor(uint32_t scales, int byte) {
    return __byte_perm(scales, 0, 0x4040 | byte << 8 | byte) << 7;
  }

  // Eight codes to the fragment of one step. A pair of them has its signs at bits 31 and 15 and its magnitudes at bits
  // 24 to 22 and 8 to 6, once the word is shifted to the left by 0 or 6 or rotated to the right by 4. Of the fourth
  // register's, bit 8 of either half comes from bit 14 and the others from two bits below. `low` and `high` are the
  // factors of rows r and r + 8.
  static MOXIE_DEVICE void unpack_word(uint32_t (&fragment)[4], uint32_t word, uint32_t low, uint32_t high) {
    constexpr uint32_t kPair = 0x81c081c0, kTop = 0x01000100;
    fragment[0] = mul_bf16x2(word & kPair, low);
    fragment[1] = mul_bf16x2(word << 6 & kPair, high);
    fragment[2] = mul_bf16x2(__funnelshift_r(word, word, 4) & kPair, low);
    fragment[3] = mul_bf16x2((word << 2 & (kPair ^ kTop)) | (word >> 6 & kTop), high);
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
