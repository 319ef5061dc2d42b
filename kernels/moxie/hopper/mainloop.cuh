// The k loop: the producer's half, which fills the ring by TMA, and the consumers' half, which feeds wgmma from it.
#pragma once
#include "moxie/layout.h"
#include "moxie/pipeline.cuh"
#include "moxie/scheduler.cuh"
#include "moxie/tensor_map.cuh"

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

  static constexpr int kStageA = C.block_m * C.block_k * 2;
  static constexpr int kStageB = C.block_n * C.block_k * 2;
  static constexpr int kBlocks = warp_group_rows(C) / 64;  // m64 accumulators of a consumer warp group
  static constexpr int kReaders = C.schedule == WarpSchedule::Cooperative ? kConsumerWarpGroups : 1;
  // Each consumer warp releases a stage at every block of the cluster, since both load into it.
  using Ring = moxie::kernel::Ring<C.stages, C.cluster, 4 * kReaders * C.cluster>;
  using Position = RingPosition<C.stages>;
  using Accumulator = float[kBlocks][C.block_n / 2];
  static_assert(kBlocks * C.block_n / 2 <= 160, "more accumulators than leave room for the epilogue");

  // Producer: one warp.
  class Loader {
    static constexpr bool kGroupMaps = operands_need_group_maps(C.grouping);

   public:
    // maps: shared memory for two maps under construction; slots: this block's in the workspace. Used with group maps
    // only.
    MOXIE_DEVICE Loader(const GemmParams& gemm, const Ring& ring, uint8_t* a, uint8_t* b, uint8_t* maps, uint8_t* slots)
        : gemm_(gemm), ring_(ring), a_(a), b_(b), maps_(maps), slots_(slots), rank_(blockIdx.x % C.cluster) {
      if constexpr (kHints) evict_first_ = evict_first_policy(), evict_normal_ = evict_normal_policy();
      if constexpr (kGroupMaps) {
        copy_map_template(maps_, gemm.a, threadIdx.x % 32);
        copy_map_template(maps_ + kMapBytes, gemm.b, threadIdx.x % 32);
        __syncwarp();
      }
    }

    // Of the first tile: as much of B as the ring holds. load() adds A.
    MOXIE_DEVICE void load_b_ahead(const Tile& tile) {
      ahead_ = min(tile.k_tiles(), static_cast<uint32_t>(C.stages));
      if (elect()) {
        choose_policy(tile);
#pragma unroll 1
        for (uint32_t tile_k = 0; tile_k < ahead_; ++tile_k) {
          ring_.expect(at_.stage, kStageA + kStageB);
          load_b(reinterpret_cast<const uint8_t*>(&gemm_.b), tile, tile_k * C.block_k);
          at_.advance();
        }
        at_ = {};
      }
    }

    MOXIE_DEVICE void load(const Tile& tile) {
      const uint32_t k_tiles = tile.k_tiles();
      if (k_tiles == 0) return;
      const uint8_t* map_a = reinterpret_cast<const uint8_t*>(&gemm_.a);
      const uint8_t* map_b = reinterpret_cast<const uint8_t*>(&gemm_.b);
      if constexpr (kGroupMaps) {
        if (tile.group != mapped_group_) move_to_group(tile);
        map_a = slots_ + slot_ * kMapBytes;
        map_b = map_a + kMapSlots * kMapBytes;
        issued_ += k_tiles;
      }
      if (elect()) {
        const int parts = parts_of(tile);
        choose_policy(tile);
        const uint32_t whole = parts == kParts ? k_tiles : min(unfilled_, k_tiles);
        uint32_t tile_k = 0;
#pragma unroll 1
        for (; tile_k < ahead_; ++tile_k) {
          load_a(map_a, tile, tile_k * C.block_k);
          at_.advance();
        }
        ahead_ = 0;
        for (; tile_k < whole; ++tile_k) {
          ring_.wait_empty(at_.stage, at_.phase ^ 1);
          ring_.expect(at_.stage, kStageA + kStageB);
          load_a(map_a, tile, tile_k * C.block_k);
          load_b(map_b, tile, tile_k * C.block_k);
          at_.advance();
        }
        if constexpr (kInParts) {
          for (; tile_k < k_tiles; ++tile_k) {
            ring_.wait_empty(at_.stage, at_.phase ^ 1);
            ring_.expect(at_.stage, parts * kPartBytes + kStageB);
            load_a_parts(parts, tile, tile_k * C.block_k);
            load_b(map_b, tile, tile_k * C.block_k);
            at_.advance();
          }
        }
        unfilled_ -= min(unfilled_, k_tiles);
      } else {
        at_.advance(k_tiles);
      }
    }

   private:
    static constexpr bool kInParts = loads_in_parts(C);
    static constexpr int kPartBytes = kPartRows * C.block_k * 2, kParts = C.block_m / kPartRows;

    MOXIE_DEVICE void choose_policy(const Tile& tile) {
      if constexpr (kHints) policy_ = tile.row + tile.rows <= C.block_m ? evict_first_ : evict_normal_;
    }

    // Of A's tile, those that have rows of the group. What an earlier tile left in place of the others reaches only
    // rows of the product that are not stored.
    static MOXIE_DEVICE int parts_of(const Tile& tile) {
      return kInParts ? clamp((tile.rows + kPartRows - 1) / kPartRows, 0, kParts) : kParts;
    }

    // What the blocks of the cluster have in common, of which each loads half.
    static MOXIE_DEVICE bool shares_a(const Tile& tile) { return may_share_a(C) && !(pairs_rows(C) && tile.pair); }
    static MOXIE_DEVICE bool shares_b(const Tile& tile) { return may_share_b(C) && !(pairs_rows(C) && !tile.pair); }

    MOXIE_DEVICE void load_a_parts(int parts, const Tile& tile, int32_t k) const {
      const bool shared = shares_a(tile);
      const int own = shared ? kParts / 2 : kParts, first = shared ? rank_ * own : 0;
#pragma unroll 1
      for (int part = first; part < min(first + own, parts); ++part) {
        copy_rows(shared, a_ + at_.stage * kStageA + part * kPartBytes, reinterpret_cast<const uint8_t*>(&gemm_.a_part),
                  tile, tile.row_begin + tile.row + part * kPartRows, k);
      }
    }

    MOXIE_DEVICE void load_a(const uint8_t* map, const Tile& tile, int32_t k) const {
      constexpr int kBox = a_box_rows(C);
      const bool shared = shares_a(tile);
      const int from = shared ? rank_ * kBox : 0;
      uint8_t* to = a_ + at_.stage * kStageA + from * 128;
      const int32_t row = tile.row_begin + tile.row + from;
      copy_rows(shared, to, map, tile, row, k);
      if (may_share_a(C) && !shared) copy_rows(false, to + kBox * 128, map, tile, row + kBox, k);
    }

    MOXIE_DEVICE void copy_rows(bool shared, uint8_t* to, const uint8_t* map, const Tile& tile, int32_t row,
                                int32_t k) const {
      if constexpr (C.grouping == Grouping::Batched || C.grouping == Grouping::Masked) {
        copy_in(shared, to, map, {k, row, tile.group});
      } else {
        copy_in(shared, to, map, {k, row});
      }
    }

    MOXIE_DEVICE void load_b(const uint8_t* map, const Tile& tile, int32_t k) const {
      constexpr int kBox = b_box_rows(C);
      const bool shared = shares_b(tile);
      const int from = shared ? rank_ * kBox : 0;
      uint8_t* to = b_ + at_.stage * kStageB + from * 128;
      load_columns(shared, to, map, tile, tile.column + from, k);
      if (may_share_b(C) && !shared) load_columns(false, to + kBox * 128, map, tile, tile.column + kBox, k);
    }

    MOXIE_DEVICE void load_columns(bool shared, uint8_t* to, const uint8_t* map, const Tile& tile, int32_t column,
                                   int32_t k) const {
      constexpr bool kOneMatrix = C.grouping == Grouping::Dense || C.grouping == Grouping::Pointers;
      if constexpr (is_gated(C.activation)) {
        if constexpr (kOneMatrix) {
          copy_b(shared, to, map, {k, 0, 0, column / 16});
        } else {
          copy_b(shared, to, map, {k, 0, 0, column / 16, tile.group});
        }
      } else if constexpr (kOneMatrix) {
        copy_b(shared, to, map, {k, column});
      } else {
        copy_b(shared, to, map, {k, column, tile.group});
      }
    }

    // Weights of a group that has one tile of rows are read once: they need not push others out of L2.
    static constexpr bool kHints = C.decode_tile && C.multicast != Multicast::B;
    template <int kRank>
    MOXIE_DEVICE void copy_b(bool shared, uint8_t* to, const uint8_t* map, const int32_t (&coordinates)[kRank]) const {
      if (kHints && !shared) {
        copy_tensor_hinted(to, map, coordinates, ring_.full + at_.stage, policy_);
      } else {
        copy_in(shared, to, map, coordinates);
      }
    }

    template <int kRank>
    MOXIE_DEVICE void copy_in(bool shared, uint8_t* to, const uint8_t* map, const int32_t (&coordinates)[kRank]) const {
      if (shared) {
        const uint16_t every_block = 3;
        cuda::ptx::cp_async_bulk_tensor(cuda::ptx::space_cluster, cuda::ptx::space_global, to, map, coordinates,
                                        ring_.full + at_.stage, every_block);
      } else {
        cuda::ptx::cp_async_bulk_tensor(cuda::ptx::space_cluster, cuda::ptx::space_global, to, map, coordinates,
                                        ring_.full + at_.stage);
      }
    }

    // Rewrites the maps of A and B in the slot that was not used last. A copy that uses a slot is over when the stage
    // it filled has been released, by the consumers of both blocks where it went to both; the stages before the last
    // `stages` ones are known to be since their places were filled again.
    MOXIE_DEVICE void move_to_group(const Tile& tile) {
      mapped_group_ = tile.group;
      slot_ ^= 1;
      for (uint32_t j = issued_ > C.stages ? issued_ - C.stages : 0; j < group_begin_; ++j) {
        ring_.wait_empty(j % C.stages, j / C.stages & 1);
      }
      group_begin_ = issued_;
      if (elect()) {
        const int64_t lda = gemm_.arrays.lda[tile.group] * 2, ldb = gemm_.arrays.ldb[tile.group] * 2;
        const MapEditor a{maps_}, b{maps_ + kMapBytes};
        a.address(gemm_.arrays.a[tile.group]);
        a.template size<0>(tile.k);
        a.template size<1>(tile.row + tile.rows);
        a.template stride<1>(lda);
        b.address(gemm_.arrays.b[tile.group]);
        b.template size<0>(tile.k);
        if constexpr (!is_gated(C.activation)) {
          b.template size<1>(tile.n);
          b.template stride<1>(ldb);
        } else {
          b.template size<3>(tile.n / 16);
          b.template stride<1>(C.gate == GateLayout::Interleaved ? 2 * ldb : ldb);
          b.template stride<2>(C.gate == GateLayout::Interleaved ? ldb : ldb * (tile.n / 2));
          b.template stride<3>(C.gate == GateLayout::Interleaved ? 16 * ldb : 8 * ldb);
        }
      }
      __syncwarp();
      uint8_t* slot = slots_ + slot_ * kMapBytes;
      publish_map(slot, maps_);
      publish_map(slot + kMapSlots * kMapBytes, maps_ + kMapBytes);
      acquire_map(slot);
      acquire_map(slot + kMapSlots * kMapBytes);
    }

    const GemmParams& gemm_;
    const Ring& ring_;
    uint8_t* a_;
    uint8_t* b_;
    uint8_t* maps_;
    uint8_t* slots_;
    int32_t rank_;
    Position at_;
    uint32_t ahead_ = 0;            // k tiles of the next tile whose B is on its way
    uint32_t unfilled_ = C.stages;  // stages that hold nothing yet
    uint64_t evict_first_ = 0, evict_normal_ = 0, policy_ = 0;
    int32_t mapped_group_ = -1;
    uint32_t slot_ = 1;
    uint32_t issued_ = 0;       // k tiles
    uint32_t group_begin_ = 0;  // those before it were loaded through the other slot, or through this one still earlier
  };

  // Consumer: one warp group. acc = the tile's product. One group of wgmma stays in flight while the next is issued, so
  // a stage is released one step after its last use was issued. all_issued() is called while the last ones are in
  // flight.
  template <class Function>
  static MOXIE_DEVICE void multiply(Accumulator& acc, const Ring& ring, Position& at, uint32_t k_tiles,
                                    const uint8_t* a, const uint8_t* b, int lane, Function&& all_issued) {
    if (k_tiles == 0) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < C.block_n / 2; ++i)
          asm volatile("mov.f32 %0, 0f00000000;" : "=f"(acc[block][i]));  // stays here
      }
      all_issued();
      return;
    }
    // The first product ignores what is there. Said so, the last tile's values need no registers through its epilogue.
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < C.block_n / 2; ++i) asm volatile("" : "=f"(acc[block][i]));
    }
    // A tile of 8 rows is there once for all eight groups of 8 rows that wgmma reads.
    const uint64_t first_a = wgmma_descriptor(a, C.block_m == 8 ? 0 : 1024), first_b = wgmma_descriptor(b);
    uint32_t previous = 0;
    uint32_t tile_k = 0;
    do {
      ring.wait_full(at.stage, at.phase);
      const uint64_t stage_a = first_a + at.stage * (kStageA / 16), stage_b = first_b + at.stage * (kStageB / 16);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < C.block_k / 16; ++k) {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          Wgmma<C.block_n>::multiply(acc[block], stage_a + (block * 64 * 128 + k * 32) / 16, stage_b + k * 32 / 16,
                                     tile_k > 0 || k > 0);
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
    // Nothing that reads the accumulators may be moved above the wait, which does not name them.
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < C.block_n / 2; ++i) asm volatile("" : "+f"(acc[block][i]));
    }
    ring.release(previous, lane);
  }
};

}  // namespace moxie::kernel
