// SPDX-License-Identifier: Apache-2.0
// The tensor maps of operands that change from group to group (Pointers, KGroups): rewritten in shared memory,
// published to a slot in global memory. Two slots of each alternate, so that copies through the maps of the last group
// may still be under way.
#pragma once
#include "moxie/arguments.h"
#include "moxie/blackwell/stages.cuh"
#include "moxie/tensor_map.cuh"

namespace moxie::kernel {

template <BlackwellConfig C>
class OperandMaps {
  using Stage = Stages<C>;
  using Ring = typename Stage::Ring;
  static constexpr int kMaps = operand_maps(C);
  static constexpr bool kHalf = has_half_group(C), kPointers = C.grouping == Grouping::Pointers;
  static constexpr bool kInterleaves = is_gated(C.activation) && gate_halves(C) == 1;

 public:
  // Places of the maps. Those from kMaps on do not change from group to group.
  static constexpr int kA = 0, kB = 1, kHalfGroup = 2;
  static constexpr int kScalesA = kMaps > 0 && kPointers ? 2 + kHalf : kMaps;
  static constexpr int kScalesB = kScalesA + 1;

  // Whole warp. `maps` is shared memory for kMaps maps under construction, `slots` this block's maps in the workspace.
  MOXIE_DEVICE OperandMaps(const GemmParams& gemm, const ScaleParams* scales, uint8_t* maps, uint8_t* slots)
      : gemm_(gemm), maps_(maps), slots_(slots) {
    if constexpr (kMaps > 0) {
      copy_template(kA, gemm.a);
      copy_template(kB, gemm.b);
      if constexpr (kHalf) copy_template(kHalfGroup, scales->half_group_values);
      if constexpr (kScalesA < kMaps) {
        copy_template(kScalesA, scales->a);
        copy_template(kScalesB, scales->b);
      }
      __syncwarp();
    }
  }

  // Whole warp, before a tile of `count` stages is loaded.
  MOXIE_DEVICE void prepare(const Tile& tile, uint32_t count, const Ring& ring) {
    if (tile.group != mapped_group_) move_to_group(tile, ring);
    issued_ += count;
  }

  // The map at a place that changes from group to group, or else `fixed`.
  MOXIE_DEVICE const void* find(int place, const TensorMap& fixed) const {
    if (place >= kMaps) return &fixed;
    return slots_ + (place * kMapSlots + slot_) * kMapBytes;
  }

 private:
  static constexpr int64_t kBits = bits_of(C.format);
  // Elements of K in an element of the map.
  static constexpr int32_t kMapElement = Stage::kElements / Stage::Format::kRowUnits;

  MOXIE_DEVICE void copy_template(int place, const TensorMap& from) const {
    copy_map_template(maps_ + place * kMapBytes, from, threadIdx.x % 32);
  }
  MOXIE_DEVICE MapEditor edit(int place) const { return {maps_ + place * kMapBytes}; }

  // Rewrites the maps in the slots that were not used last. A copy has finished with its map when the stage that it
  // filled is released. Only the last `stages` stages need a wait: older ones were released before they were refilled.
  MOXIE_DEVICE void move_to_group(const Tile& tile, const Ring& ring) {
    mapped_group_ = tile.group;
    slot_ ^= 1;
    for (uint32_t j = issued_ > C.stages ? issued_ - C.stages : 0; j < group_begin_; ++j) {
      typename Ring::Position used;
      used.stage = j % C.stages;
      used.phase = (j / C.stages & 1) ^ 1;
      ring.wait_empty(used);
    }
    group_begin_ = issued_;
    if (elect()) {
      if constexpr (kPointers) {
        describe_pointers(tile);
      } else {
        describe_k(tile);
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kMaps; ++i) publish_map(slots_ + (i * kMapSlots + slot_) * kMapBytes, maps_ + i * kMapBytes);
#pragma unroll
    for (int i = 0; i < kMaps; ++i) acquire_map(slots_ + (i * kMapSlots + slot_) * kMapBytes);
  }

  // Called by one thread. KGroups: A and B begin at the group's part of K.
  MOXIE_DEVICE void describe_k(const Tile& tile) const {
    const int64_t first = tile.k_begin * kBits / 8;
    edit(kA).address(static_cast<const uint8_t*>(gemm_.a_base) + first);
    edit(kA).template size<0>(tile.k / kMapElement);
#pragma unroll
    for (int i = kB; i <= (kHalf ? kHalfGroup : kB); ++i) {
      edit(i).address(static_cast<const uint8_t*>(gemm_.b_base) + first);
      edit(i).template size<0>(tile.k / kMapElement);
    }
  }

  // Called by one thread. Pointers: the group has matrices, sizes and strides of its own.
  MOXIE_DEVICE void describe_pointers(const Tile& tile) const {
    const GroupArrays& arrays = gemm_.arrays;
    const int32_t m = tile.row + tile.rows;
    const MapEditor a = edit(kA), b = edit(kB);
    a.address(arrays.a[tile.group]);
    a.template size<0>(tile.k / kMapElement);
    a.template size<1>(m);
    a.template stride<1>(arrays.lda[tile.group] * kBits / 8);
    const int64_t ldb = arrays.ldb[tile.group] * kBits / 8;
    b.address(arrays.b[tile.group]);
    b.template size<0>(tile.k / kMapElement);
    if constexpr (!kInterleaves) {
      b.template size<1>(tile.n);
      b.template stride<1>(ldb);
    } else {
      constexpr bool kPairs = C.gate == GateLayout::Interleaved;
      b.template size<3>(tile.n / 16);
      b.template stride<1>(kPairs ? 2 * ldb : ldb);
      b.template stride<2>(kPairs ? ldb : ldb * (tile.n / 2));
      b.template stride<3>(kPairs ? 16 * ldb : 8 * ldb);
    }
    if constexpr (kHalf) {
      const MapEditor half = edit(kHalfGroup);
      half.address(arrays.b[tile.group]);
      half.template size<0>(tile.k / kMapElement);
      half.template size<1>(tile.n);
      half.template stride<1>(ldb);
    }
    if constexpr (has_scales(C)) {
      const int32_t k_tiles = (tile.k + Stage::kTileK - 1) / Stage::kTileK;
      edit(kScalesA).address(gemm_.a_scale_pointers[tile.group]);
      edit(kScalesA).template size<2>((m + kScaleTileRows - 1) / kScaleTileRows * k_tiles);
      edit(kScalesB).address(gemm_.b_scale_pointers[tile.group]);
      edit(kScalesB).template size<(kInterleaves ? 4 : 2)>((tile.n + kScaleTileRows - 1) / kScaleTileRows * k_tiles);
    }
  }

  const GemmParams& gemm_;
  uint8_t* maps_;
  uint8_t* slots_;
  int32_t mapped_group_ = -1;
  uint32_t slot_ = 1;
  uint32_t issued_ = 0;  // stages of all tiles
  // Stages before this one were loaded through the other slots, or through these for an earlier group.
  uint32_t group_begin_ = 0;
};

}  // namespace moxie::kernel
