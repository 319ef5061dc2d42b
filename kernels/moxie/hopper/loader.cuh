// SPDX-License-Identifier: Apache-2.0
// The producer's half of the k loop: fills the ring of stages with tiles of A and B by TMA.
//
// The contract. One warp of every block has a loader, and calls it with the tiles that its scheduler gives.
//
//   HopperLoader(gemm, ring, a, b, maps, slots)
//     Whole warp. `a` and `b` are the tiles of the first stage. With groups by pointers `maps` is shared memory for two
//     maps under construction, and `slots` this block's maps in the workspace.
//   void load_b_ahead(const Tile& tile)
//     Whole warp, at most once, before everything else: starts to load as much of the first tile's B as the ring holds.
//     Only where B may be read before griddepcontrol.wait. load() of the same tile then adds A.
//   void load(const Tile& tile)
//     Whole warp, behind griddepcontrol.wait. Issues the copies of the tile's stages, tile.k_tiles(C.block_k), in the
//     order in which the consumers take them. Copies are still under way when it returns.
//
// With gathered rows of A, all producer_warps of the block call these functions, each with a loader of its own. They
// take turns at loading a stage's B, and all of them copy a part of every stage's A.
//
// For each stage it waits for this block's `empty`, which the consumers of every block complete that the stage's copies
// reach, and announces at this block's `full` the bytes that will arrive there, those that the peer copies included. It
// uses no named barrier. Both blocks of a cluster load the same number of stages: what lies past the end of a tensor
// arrives as zeros.
#pragma once
#include "moxie/arguments.h"
#include "moxie/hopper/gathered_rows.cuh"
#include "moxie/hopper/mainloop.cuh"
#include "moxie/hopper/packed_mainloop.cuh"
#include "moxie/tensor_map.cuh"
#include "moxie/tile.cuh"

namespace moxie::kernel {

template <HopperConfig C>
class HopperLoader {
  using Loop = MainloopOf<C>;
  using Ring = typename Loop::Ring;
  static constexpr int kStageA = Loop::kStageA, kStageB = Loop::kStageB;
  static constexpr bool kGroupMaps = operands_need_group_maps(C.grouping), kPacked = has_packed_b(C);

 public:
  MOXIE_DEVICE HopperLoader(const GemmParams& gemm, const Ring& ring, uint8_t* a, uint8_t* b, uint8_t* maps,
                            uint8_t* slots)
      : gemm_(gemm),
        ring_(ring),
        a_(a),
        b_(b),
        maps_(maps),
        slots_(slots),
        rank_(blockIdx.x % C.cluster),
        warp_(C.gather ? threadIdx.x / 32 : 0) {
    if constexpr (kHints) evict_first_ = evict_first_policy(), evict_normal_ = evict_normal_policy();
    if constexpr (kGroupMaps) {
      copy_map_template(maps_, gemm.a, threadIdx.x % 32);
      if constexpr (!kPacked) copy_map_template(maps_ + kMapBytes, gemm.b, threadIdx.x % 32);
      __syncwarp();
    }
  }

  MOXIE_DEVICE void load_b_ahead(const Tile& tile) {
    ahead_ = min(tile.k_tiles(C.block_k), static_cast<uint32_t>(C.stages));
    if (elect()) {
      begin_b(tile);
#pragma unroll 1
      for (at_.stage = warp_; at_.stage < ahead_; at_.stage += producer_warps(C)) {
        const int32_t k = at_.stage * C.block_k;
        ring_.expect(at_.stage, (C.gather ? 0 : kStageA) + b_bytes(tile, k));
        load_b(reinterpret_cast<const uint8_t*>(&gemm_.b), tile, k);
      }
      at_ = {};
    }
  }

  MOXIE_DEVICE void load(const Tile& tile) {
    const uint32_t k_tiles = tile.k_tiles(C.block_k);
    if (k_tiles == 0) return;
    if constexpr (C.gather) {
      load_gathered(tile, k_tiles);
      return;
    }
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
      begin_b(tile);
      // The first use of a stage loads the whole tile, so that wgmma reads no shared memory that nothing has written.
      const uint32_t whole = parts == kParts ? k_tiles : min(unfilled_, k_tiles);
      uint32_t tile_k = 0;
      // Stages whose B is on its way.
#pragma unroll 1
      for (; tile_k < ahead_; ++tile_k) {
        load_a(map_a, tile, tile_k * C.block_k);
        at_.advance();
      }
      ahead_ = 0;
      // Whole tiles of A.
      for (; tile_k < whole; ++tile_k) {
        ring_.wait_empty(at_.stage, at_.phase ^ 1);
        ring_.expect(at_.stage, kStageA + b_bytes(tile, tile_k * C.block_k));
        load_a(map_a, tile, tile_k * C.block_k);
        load_b(map_b, tile, tile_k * C.block_k);
        at_.advance();
      }
      // Those parts of A that have rows of the group.
      if constexpr (kInParts) {
        for (; tile_k < k_tiles; ++tile_k) {
          ring_.wait_empty(at_.stage, at_.phase ^ 1);
          ring_.expect(at_.stage, parts * kPartBytes * (C.block_k / 64) + b_bytes(tile, tile_k * C.block_k));
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
  // Loads A and B stage by stage: a thread that ran ahead with B would wait for stages whose A it has not copied.
  MOXIE_DEVICE void load_gathered(const Tile& tile, uint32_t k_tiles) {
    GatheredRows<C> rows(gemm_);
    rows.begin(tile);
    const bool elected = elect();
    if (elected) begin_b(tile);
    const uint32_t first = static_cast<uint32_t>(__cvta_generic_to_shared(a_));
#pragma unroll 1
    for (uint32_t done = 0; done < k_tiles; done += rows.kStages) {
#pragma unroll
      for (int stage = 0; stage < rows.kStages; ++stage) {
        const uint32_t tile_k = done + stage;
        if (tile_k >= k_tiles) break;
        const int32_t k = tile_k * C.block_k;
        ring_.wait_empty(at_.stage, at_.phase ^ 1);
        if (elected && tile_k % producer_warps(C) == warp_ && tile_k >= ahead_) {
          ring_.expect(at_.stage, b_bytes(tile, k));
          load_b(reinterpret_cast<const uint8_t*>(&gemm_.b), tile, k);
        }
        rows.copy(first + at_.stage * kStageA, stage, k, tile.k);
        cp_async_arrive(ring_.full + at_.stage);
        at_.advance();
      }
      rows.advance();
    }
    ahead_ = 0;
  }

  static constexpr bool kInParts = loads_in_parts(C);
  static constexpr int kPartBytes = kPartRows * kStageRowBytes, kParts = C.block_m / kPartRows;
  static constexpr int kSlabBytes = C.block_m * kStageRowBytes;  // of A: 64 columns of a stage

  // The weights of a group that has one tile of rows are read once, and should not push others out of L2.
  static constexpr bool kHints = C.decode_tile && C.multicast != Multicast::B;
  // Called by the loading thread before the first load_b() of a tile.
  MOXIE_DEVICE void begin_b(const Tile& tile) {
    if constexpr (kHints) policy_ = tile.row + tile.rows <= C.block_m ? evict_first_ : evict_normal_;
    if constexpr (kPacked) packed_ = PackedTile<C>(gemm_, tile);
  }
  // Bytes of B that load_b() brings to this block's stage.
  MOXIE_DEVICE uint32_t b_bytes(const Tile& tile, int32_t k) const {
    if constexpr (kPacked) return packed_.bytes(tile, k);
    return kStageB;
  }

  // How many parts of A's tile have rows of the group. What an earlier tile left in place of the other parts reaches
  // only rows of the product that are not stored.
  static MOXIE_DEVICE int parts_of(const Tile& tile) {
    return kInParts ? clamp((tile.rows + kPartRows - 1) / kPartRows, 0, kParts) : kParts;
  }

  // Whether both blocks of the cluster need the same tile of A, or of B. Then each loads half of it for both.
  static MOXIE_DEVICE bool shares_a(const Tile& tile) { return may_share_a(C) && !(pairs_rows(C) && tile.pair); }
  static MOXIE_DEVICE bool shares_b(const Tile& tile) { return may_share_b(C) && !(pairs_rows(C) && !tile.pair); }

  MOXIE_DEVICE void load_a_parts(int parts, const Tile& tile, int32_t k) const {
    const bool shared = shares_a(tile);
    const int count = shared ? kParts / 2 : kParts, first = shared ? rank_ * count : 0;
#pragma unroll 1
    for (int part = first; part < min(first + count, parts); ++part) {
#pragma unroll
      for (int slab = 0; slab < C.block_k / 64; ++slab) {
        load_rows(shared, a_ + at_.stage * kStageA + slab * kSlabBytes + part * kPartBytes,
                  reinterpret_cast<const uint8_t*>(&gemm_.a_part), tile, tile.row_begin + tile.row + part * kPartRows,
                  k + slab * 64);
      }
    }
  }

  // The stage's tile of A: a slab of kStageRowBytes wide rows for every 64 columns of K.
  MOXIE_DEVICE void load_a(const uint8_t* map, const Tile& tile, int32_t k) const {
#pragma unroll
    for (int slab = 0; slab < C.block_k / 64; ++slab)
      load_slab(a_ + at_.stage * kStageA + slab * kSlabBytes, map, tile, k + slab * 64);
  }
  MOXIE_DEVICE void load_slab(uint8_t* to, const uint8_t* map, const Tile& tile, int32_t k) const {
    constexpr int kBox = a_box_rows(C);
    const bool shared = shares_a(tile);
    const int from = shared ? rank_ * kBox : 0;
    to += from * kStageRowBytes;
    const int32_t row = tile.row_begin + tile.row + from;
    load_rows(shared, to, map, tile, row, k);
    // A box is half a tile where A may be shared. A block that does not share it loads both halves itself.
    if (may_share_a(C) && !shared) load_rows(false, to + kBox * kStageRowBytes, map, tile, row + kBox, k);
  }

  // One box of A from row `row` on.
  MOXIE_DEVICE void load_rows(bool shared, uint8_t* to, const uint8_t* map, const Tile& tile, int32_t row,
                              int32_t k) const {
    if constexpr (C.grouping == Grouping::Batched || C.grouping == Grouping::Masked) {
      copy_in(shared, to, map, {k, row, tile.group});
    } else {
      copy_in(shared, to, map, {k, row});
    }
  }

  MOXIE_DEVICE void load_b(const uint8_t* map, const Tile& tile, int32_t k) const {
    if constexpr (kPacked) {
      load_packed(tile, k);
      return;
    }
    constexpr int kBox = b_box_rows(C);
    const bool shared = shares_b(tile);
    const int from = shared ? rank_ * kBox : 0;
    uint8_t* to = b_ + at_.stage * kStageB + from * kStageRowBytes;
    load_columns(shared, to, map, tile, tile.column + from, k);
    if (may_share_b(C) && !shared) load_columns(false, to + kBox * kStageRowBytes, map, tile, tile.column + kBox, k);
  }

  MOXIE_DEVICE void load_packed(const Tile& tile, int32_t k) const {
#pragma unroll
    for (int strip = 0; strip < C.block_n / kPackRows; ++strip) {
      const uint32_t bytes = packed_.strip_bytes(tile, strip, k);
      if (bytes == 0) break;
      uint8_t* to = b_ + at_.stage * kStageB + strip * Loop::kStripBytes;
      if constexpr (kHints) {
        copy_bulk_hinted(to, packed_.strip(tile, strip, k), bytes, ring_.full + at_.stage, policy_);
      } else {
        cuda::ptx::cp_async_bulk(cuda::ptx::space_cluster, cuda::ptx::space_global, to, packed_.strip(tile, strip, k),
                                 bytes, ring_.full + at_.stage);
      }
    }
  }

  // One box of B from the row of column `column` of the product on.
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

  template <int kRank>
  MOXIE_DEVICE void copy_b(bool shared, uint8_t* to, const uint8_t* map, const int32_t (&coordinates)[kRank]) const {
    if (kHints && !shared) {
      copy_tensor_hinted(to, map, coordinates, ring_.full + at_.stage, policy_);
    } else {
      copy_in(shared, to, map, coordinates);
    }
  }

  // One tensor copy into the stage that is being filled, with `shared` in both blocks.
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

  // Rewrites the maps of A and B in the slots that were not used last. A copy has finished with its map when the
  // consumers of every block that it went to release the stage. Only the last `stages` stages need a wait: older ones
  // were released before they were refilled.
  MOXIE_DEVICE void move_to_group(const Tile& tile) {
    mapped_group_ = tile.group;
    slot_ ^= 1;
    for (uint32_t j = issued_ > C.stages ? issued_ - C.stages : 0; j < group_begin_; ++j) {
      ring_.wait_empty(j % C.stages, j / C.stages & 1);
    }
    group_begin_ = issued_;
    if (elect()) {
      const MapEditor a{maps_};
      a.address(gemm_.arrays.a[tile.group]);
      a.template size<0>(tile.k);
      a.template size<1>(tile.row + tile.rows);
      a.template stride<1>(gemm_.arrays.lda[tile.group] * 2);
      if constexpr (!kPacked) describe_b(MapEditor{maps_ + kMapBytes}, tile);
    }
    __syncwarp();
    uint8_t* slot = slots_ + slot_ * kMapBytes;
    publish_map(slot, maps_);
    if constexpr (!kPacked) publish_map(slot + kMapSlots * kMapBytes, maps_ + kMapBytes);
    acquire_map(slot);
    if constexpr (!kPacked) acquire_map(slot + kMapSlots * kMapBytes);
  }
  MOXIE_DEVICE void describe_b(const MapEditor& b, const Tile& tile) const {
    const int64_t ldb = gemm_.arrays.ldb[tile.group] * 2;
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

  const GemmParams& gemm_;
  const Ring& ring_;
  uint8_t* a_;
  uint8_t* b_;
  uint8_t* maps_;
  uint8_t* slots_;
  int32_t rank_;   // of this block in its cluster
  uint32_t warp_;  // among the producer's; 0 where one warp loads
  typename Loop::Position at_;
  uint32_t ahead_ = 0;            // stages of the next tile whose B is on its way
  uint32_t unfilled_ = C.stages;  // stages that have held nothing yet
  uint64_t evict_first_ = 0, evict_normal_ = 0, policy_ = 0;
  PackedTile<C> packed_;  // the tile's weights, where B is packed
  int32_t mapped_group_ = -1;
  uint32_t slot_ = 1;
  uint32_t issued_ = 0;  // stages of all tiles
  // Stages before this one were loaded through the other slots, or through these for an earlier group.
  uint32_t group_begin_ = 0;
};

}  // namespace moxie::kernel
