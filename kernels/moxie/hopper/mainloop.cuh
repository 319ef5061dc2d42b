// SPDX-License-Identifier: Apache-2.0
// The k loop of a Hopper kernel: what a stage holds, and the consumers' half, which feeds wgmma from the stages. The
// producer's half is loader.cuh.
#pragma once
#include "moxie/config.h"
#include "moxie/hopper/ring.cuh"
#include "moxie/layout.h"

namespace moxie::kernel {

template <HopperConfig C>
struct HopperMainloop {
  static_assert(C.block_k == 64, "a stage is one 128-byte swizzle row of bf16 deep");
  static_assert(C.block_n >= 64 && C.block_n <= 256 && C.block_n % 32 == 0);
  static_assert(C.schedule == WarpSchedule::Cooperative
                    ? C.block_m == 128 || C.block_m == 256
                    : C.block_m == 64 || C.block_m == 128 || (C.block_m == 8 && C.decode_tile && !may_share_a(C)));
  static_assert((C.cluster == 1 && C.multicast == Multicast::None) ||
                (C.cluster == 2 && C.multicast != Multicast::None));

  static constexpr int kStageA = C.block_m * kStageRowBytes;
  static constexpr int kStageB = C.block_n * kStageRowBytes;
  // Accumulators of a consumer warp group, of 64 rows each (the m64 of wgmma).
  static constexpr int kBlocks = warp_group_rows(C) / 64;
  // Consumer warp groups that read the same stage.
  static constexpr int kReaders = C.schedule == WarpSchedule::Cooperative ? consumer_warp_groups(C) : 1;
  // Each consumer warp releases a stage at every block of the cluster, since both blocks load into it.
  using Ring = HopperRing<C.stages, C.cluster, 4 * kReaders * C.cluster, gather_threads(C)>;
  using Position = RingPosition<C.stages>;
  using Accumulator = float[kBlocks][C.block_n / 2];
  static_assert(kBlocks * C.block_n / 2 <= 160, "more accumulators than leave room for the epilogue");

  // Whole consumer warp group: acc = the product of the next k_tiles stages, of which `a` and `b` are the first stage's
  // tiles; with a cooperative schedule `a` is this warp group's half.
  //
  // It waits for `full` of each stage and releases the stage when wgmma has read it. One group of wgmma stays in flight
  // while the next one is issued, so that a stage is released one step after its last use was issued. all_issued() is
  // called while the last group is in flight.
  template <class Function>
  static MOXIE_DEVICE void multiply(Accumulator& acc, const Ring& ring, Position& at, uint32_t k_tiles,
                                    const uint8_t* a, const uint8_t* b, int lane, Function&& all_issued) {
    if (k_tiles == 0) {
      clear(acc);
      all_issued();
      return;
    }
    // The first wgmma overwrites the accumulators. Declaring them undefined here lets the compiler free their registers
    // during the epilogue of the previous tile.
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < C.block_n / 2; ++i) asm volatile("" : "=f"(acc[block][i]));
    }
    // wgmma reads eight groups of 8 rows. A tile of 8 rows stands for all of them.
    const uint64_t first_a = wgmma_descriptor(a, C.block_m == 8 ? 0 : kSwizzleBytes), first_b = wgmma_descriptor(b);
    uint32_t previous = 0;
    uint32_t tile_k = 0;
    do {
      ring.wait_full(at.stage, at.phase);
      // Threads have written A, as ordinary accesses.
      if constexpr (C.gather) cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
      const uint64_t stage_a = first_a + at.stage * (kStageA / 16), stage_b = first_b + at.stage * (kStageB / 16);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < C.block_k / 16; ++k) {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          Wgmma<C.block_n>::multiply(acc[block], stage_a + (block * 64 * kStageRowBytes + k * 32) / 16,
                                     stage_b + k * 32 / 16, tile_k > 0 || k > 0);
        }
      }
      wgmma_commit_group();
      wgmma_wait_group<1>();
      if (tile_k > 0) ring.release(previous, lane);
      previous = at.stage;
      at.advance();
    } while (++tile_k < k_tiles);
    all_issued();
    wgmma_wait_group<0>();
    // The wait does not name the accumulators, so without this their readers could be moved above it.
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < C.block_n / 2; ++i) asm volatile("" : "+f"(acc[block][i]));
    }
    ring.release(previous, lane);
  }

 private:
  // The sums of a tile without any K. As volatile instructions the zeros are not moved out of the branch.
  static MOXIE_DEVICE void clear(Accumulator& acc) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < C.block_n / 2; ++i) asm volatile("mov.f32 %0, 0f00000000;" : "=f"(acc[block][i]));
    }
  }
};

}  // namespace moxie::kernel
