// The k loop: the producer, which fills the ring with tiles and their scales by TMA, and the issuer, one thread that
// brings the scales to tensor memory and multiplies there.
#pragma once
#include "moxie/blackwell/operand.cuh"
#include "moxie/layout.h"
#include "moxie/pipeline.cuh"
#include "moxie/scheduler.cuh"

namespace moxie::kernel {

// The ring of operand stages. In a pair the first block's `full` stands for both blocks' tiles; each block has an
// `empty` of its own, which the issuer completes in both.
template <int kStages, int kCluster>
struct TensorRing {
  using Position = RingPosition<kStages>;
  uint64_t* full;
  uint64_t* empty;

  // One thread of the block.
  MOXIE_DEVICE void init() const {
    for (int stage = 0; stage < kStages; ++stage) {
      cuda::ptx::mbarrier_init(full + stage, kCluster);
      cuda::ptx::mbarrier_init(empty + stage, 1);
    }
  }
  MOXIE_DEVICE void wait_empty(const Position& at) const { wait_parity<kCluster>(empty + at.stage, at.phase ^ 1); }
  MOXIE_DEVICE void wait_full(const Position& at) const { wait_parity<kCluster>(full + at.stage, at.phase); }
  // The producer's: announces its copies and gives the barrier that they are to complete.
  MOXIE_DEVICE uint64_t* expect(const Position& at, uint32_t bytes) const {
    if constexpr (kCluster > 1) {
      uint64_t* const barrier = in_block(full + at.stage, 0);
      cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cluster, cuda::ptx::space_cluster,
                                           barrier, bytes);
      return barrier;
    } else {
      cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cta, cuda::ptx::space_shared,
                                           full + at.stage, bytes);
      return full + at.stage;
    }
  }
};

// Turns of a tile's accumulator: the issuer completes `computed` in every block when the product is there, the warps of
// all epilogues complete the first block's `stored` when they have read it.
template <int kAccumulators, int kCluster>
struct AccumulatorRing {
  using Position = RingPosition<kAccumulators>;
  uint64_t* computed;
  uint64_t* stored;

  // One thread of the block. readers: epilogue warps of a block.
  MOXIE_DEVICE void init(uint32_t readers) const {
    for (int i = 0; i < kAccumulators; ++i) {
      cuda::ptx::mbarrier_init(computed + i, 1);
      cuda::ptx::mbarrier_init(stored + i, readers * kCluster);
    }
  }
  MOXIE_DEVICE void wait_computed(const Position& at) const {
    wait_parity<kCluster>(computed + at.stage, at.phase);
    cuda::ptx::tcgen05_fence_after_thread_sync();
  }
  // `stored` hands over tensor memory alone, which the fences order beside relaxed operations (9.7.16.6.4.4).
  MOXIE_DEVICE void wait_stored(const Position& at) const {
    while (!cuda::ptx::mbarrier_try_wait_parity(cuda::ptx::sem_relaxed, scope(), stored + at.stage, at.phase ^ 1)) {
    }
    cuda::ptx::tcgen05_fence_after_thread_sync();
  }
  // One epilogue warp, after its loads, which are the whole warp's, have been waited for.
  MOXIE_DEVICE void release(const Position& at, int lane) const {
    cuda::ptx::tcgen05_fence_before_thread_sync();
    if (lane != 0) return;
    if constexpr (kCluster > 1) {
      cuda::ptx::mbarrier_arrive(cuda::ptx::sem_relaxed, scope(), cuda::ptx::space_cluster,
                                 in_block(stored + at.stage, 0));
    } else {
      cuda::ptx::mbarrier_arrive(cuda::ptx::sem_relaxed, scope(), cuda::ptx::space_shared, stored + at.stage);
    }
  }

 private:
  static MOXIE_DEVICE constexpr auto scope() {
    if constexpr (kCluster > 1) {
      return cuda::ptx::scope_cluster;
    } else {
      return cuda::ptx::scope_cta;
    }
  }
};

template <BlackwellConfig C>
struct BlackwellMainloop {
  static_assert(C.block_n >= 16 && C.block_n <= 256 && C.block_n % 16 == 0);
  // A tile's scales must lie in whole tiles of them, or all in 32 lanes.
  static_assert(!C.swap_ab || (C.block_n & (C.block_n - 1)) == 0);
  static_assert(C.cluster == 1 || C.cluster == 2);
  static constexpr int kProducts = gate_halves(C);
  static_assert(kProducts == 1 || C.swap_ab || C.block_n % 64 == 0);
  static_assert(!has_half_group(C) || (C.cluster == 1 && !is_gated(C.activation)));
  static_assert(C.accumulators == 1 || C.accumulators == 2);
  static_assert(tensor_layout(C).columns <= kTensorColumns, "one accumulator, or a narrower tile");
  using Format = Operand<C.format>;
  static constexpr int kStageA = a_box_rows(C) * 128;
  static constexpr int kStageB = b_stage_rows(C) * 128;
  // Tiles of scales of the accumulator's rows and of its columns.
  static constexpr int kRowScaleTiles = C.swap_ab ? b_scale_tiles(C) * kProducts : a_scale_tiles(C);
  static constexpr int kColumnScaleTiles = C.swap_ab ? a_scale_tiles(C) : b_scale_tiles(C) * kProducts;
  static constexpr int kStageScaleTiles = stage_scale_tiles(C);
  static constexpr int kElements = stage_elements(C);    // of a row of a stage
  static constexpr int kTileK = scale_tile_k(C.format);  // of a row that share a tile of scales
  static constexpr int kStageScalesA = a_scale_tiles(C) * kStageScaleTiles * kScaleTileBytes;
  static constexpr int kStageScalesB = b_stage_scale_tiles(C) * kStageScaleTiles * kScaleTileBytes;
  static constexpr int kWhole = whole_groups(C.block_n);
  static constexpr TensorLayout kTensor = tensor_layout(C);
  using Ring = TensorRing<C.stages, C.cluster>;
  using Position = typename Ring::Position;
  using Accumulators = AccumulatorRing<C.accumulators, C.cluster>;
  using Group = TensorGroup<C.cluster>;

  static MOXIE_DEVICE uint32_t stages_of(int32_t k) { return (static_cast<uint32_t>(k) + kElements - 1) / kElements; }

  static constexpr int32_t kSwappedStep = Format::kColumnStep * C.cluster > 16 ? 16 : Format::kColumnStep* C.cluster;
  // Of the accumulator.
  static MOXIE_DEVICE int32_t first_column(const Tile& tile) {
    return has_half_group(C) ? whole_groups_column(tile.column) : tile.column;
  }
  // Those that a product computes: with swap_ab no more than rows exist, rounded up to what the instruction takes.
  static MOXIE_DEVICE int32_t columns_of(const Tile& tile) {
    if constexpr (C.swap_ab) {
      return min(C.block_n, (tile.rows + kSwappedStep - 1) / kSwappedStep * kSwappedStep);
    } else {
      return C.block_n / kProducts;
    }
  }
  // Row of B where a product's tile begins.
  static MOXIE_DEVICE int32_t product_row(const Tile& tile, int product) {
    return product * (tile.n / 2) + tile.column / 2;
  }

  // The ring's memory.
  struct Stages {
    uint8_t* a;
    uint8_t* b;
    uint8_t* a_scales;
    uint8_t* b_scales;
  };

  // Producer: one warp.
  class Loader {
    static constexpr int kMaps = operand_maps(C);
    static constexpr bool kHalf = has_half_group(C), kOwn = C.grouping == Grouping::Pointers;
    static constexpr bool kGathers =
        is_gated(C.activation) && kProducts == 1;  // gate and up rows of B, and their scales
    // Places among the maps that change from group to group; those from kMaps on do not.
    static constexpr int kMapA = 0, kMapB = 1, kMapHalf = 2, kMapScalesA = kMaps > 0 && kOwn ? 2 + kHalf : kMaps,
                         kMapScalesB = kMapScalesA + 1;

   public:
    // scales: null where the operands have none. maps: shared memory for the group's maps under construction; slots:
    // this block's in the workspace. Used with group maps only.
    MOXIE_DEVICE Loader(const GemmParams& gemm, const ScaleParams* scales, const Ring& ring, const Stages& stages,
                        uint8_t* maps, uint8_t* slots)
        : gemm_(gemm),
          scales_(scales),
          ring_(ring),
          stages_(stages),
          maps_(maps),
          slots_(slots),
          rank_(blockIdx.x % C.cluster) {
      if constexpr (kMaps > 0) {
        copy_template(kMapA, gemm.a);
        copy_template(kMapB, gemm.b);
        if constexpr (kHalf) copy_template(kMapHalf, scales->half_group_values);
        if constexpr (kMapScalesA < kMaps) {
          copy_template(kMapScalesA, scales->a);
          copy_template(kMapScalesB, scales->b);
        }
        __syncwarp();
      }
    }

    MOXIE_DEVICE void load(const Tile& tile) {
      const uint32_t count = stages_of(tile.k);
      if constexpr (kMaps > 0) {
        if (count == 0) return;
        if (tile.group != mapped_group_) move_to_group(tile);
        issued_ += count;
      }
      if (elect()) {
        for (uint32_t i = 0; i < count; ++i) {
          ring_.wait_empty(at_);
          landed_ = ring_.expect(at_, kStageA + kStageB + kStageScalesA + kStageScalesB);
          load_a(tile, i);
          load_b(tile, i);
          if constexpr (has_scales(C)) {
            load_a_scales(tile, i * kStageScaleTiles);
            load_b_scales(tile, i * kStageScaleTiles);
          }
          at_.advance();
        }
      } else {
        at_.advance(count);
      }
    }

   private:
    static constexpr bool kFlatScales = has_flat_scales(C.grouping);
    static constexpr bool kStacked = C.grouping == Grouping::Batched || C.grouping == Grouping::Masked;

    MOXIE_DEVICE void load_a(const Tile& tile, int32_t i) const {
      uint8_t* to = stages_.a + at_.stage * kStageA;
      const int32_t k = i * Format::kRowUnits;
      int32_t row = tile.row_begin + tile.row;
      if constexpr (C.swap_ab) row += rank_ * columns_of(tile) / C.cluster;  // a pair's blocks load one half each
      if constexpr (kStacked) {
        copy_in(to, &gemm_.a, {k, row, tile.group});
      } else {
        copy_in(to, map(kMapA, gemm_.a), {k, row});
      }
    }

    MOXIE_DEVICE void load_b(const Tile& tile, int32_t i) const {
      uint8_t* to = stages_.b + at_.stage * kStageB;
      const int32_t k = i * Format::kRowUnits;
      if constexpr (has_half_group(C)) {
        if constexpr (kWhole > 0) load_b_rows(to, map(kMapB, gemm_.b), tile, k, whole_groups_column(tile.column));
        load_b_rows(to + kWhole * 128, map(kMapHalf, scales_->half_group_values), tile, k,
                    half_group_column(C.block_n, tile.column));
      } else {
        // A pair's blocks load one half each; with swap_ab they have tiles of their own.
        const int32_t own = C.swap_ab ? 0 : rank_ * b_box_rows(C);
#pragma unroll
        for (int p = 0; p < kProducts; ++p) {
          load_b_rows(to + p * b_box_rows(C) * 128, map(kMapB, gemm_.b), tile, k,
                      own + (kProducts == 2 ? product_row(tile, p) : tile.column));
        }
      }
    }

    MOXIE_DEVICE void load_b_rows(uint8_t* to, const void* map, const Tile& tile, int32_t k, int32_t column) const {
      if constexpr (kGathers) {
        if constexpr (has_one_b(C.grouping)) {
          copy_in(to, map, {k, 0, 0, column / 16});
        } else {
          copy_in(to, map, {k, 0, 0, column / 16, tile.group});
        }
      } else if constexpr (has_one_b(C.grouping)) {
        copy_in(to, map, {k, column});
      } else {
        copy_in(to, map, {k, column, tile.group});
      }
    }

    // `k`: tiles of scales along K. Those past the end are read as zero and used by no instruction.
    MOXIE_DEVICE void load_a_scales(const Tile& tile, int32_t k) const {
      uint8_t* to = stages_.a_scales + at_.stage * kStageScalesA;
      const int32_t row_tile = (C.grouping == Grouping::Offsets ? tile.scale_tiles : 0) + tile.row / kScaleTileRows;
      if constexpr (kFlatScales) {
#pragma unroll
        for (int t = 0; t < a_scale_tiles(C); ++t) {
          copy_in(to + t * (kStageScaleTiles * kScaleTileBytes), map(kMapScalesA, scales_->a),
                  {0, tile.row % 32, flat_tile(tile, gemm_.m, row_tile + t, k)});
        }
      } else if constexpr (C.swap_ab) {
        // The scale of the tile's first row must come to lane 0. Its word stays, since boxes begin at multiples of 16
        // bytes (5.5.3.1): the issuer counts on.
        if constexpr (kStacked) {
          copy_in(to, &scales_->a, {0, tile.row % 32, k, row_tile, tile.group});
        } else {
          copy_in(to, &scales_->a, {0, tile.row % 32, k, row_tile});
        }
      } else if constexpr (kStacked) {
        copy_in(to, &scales_->a, {0, k, row_tile, tile.group});
      } else {
        copy_in(to, &scales_->a, {0, k, row_tile});
      }
    }

    // Every block of a pair needs those of all columns of the accumulator.
    MOXIE_DEVICE void load_b_scales(const Tile& tile, int32_t k) const {
      constexpr int kTiles = b_scale_tiles(C);
      uint8_t* to = stages_.b_scales + at_.stage * kStageScalesB;
      const int32_t row_tile = first_column(tile) / kScaleTileRows;
      if constexpr (kProducts == 2) {
#pragma unroll
        for (int p = 0; p < 2; ++p) {
          uint8_t* const of_product = to + p * kTiles * (kStageScaleTiles * kScaleTileBytes);
          const int32_t first = product_row(tile, p) / kScaleTileRows;
          if constexpr (kFlatScales) {
#pragma unroll
            for (int t = 0; t < kTiles; ++t) {
              copy_in(of_product + t * (kStageScaleTiles * kScaleTileBytes), map(kMapScalesB, scales_->b),
                      {0, 0, flat_tile(tile, tile.n, first + t, k)});
            }
          } else {
            copy_in(of_product, &scales_->b, {0, k, first, tile.group});
          }
        }
      } else if constexpr (is_gated(C.activation)) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          copy_in(to + t * (kStageScaleTiles * kScaleTileBytes), map(kMapScalesB, scales_->b),
                  {0, 0, 0, 0, flat_tile(tile, tile.n, row_tile + t, k)});
        }
      } else if constexpr (kFlatScales) {
        const void* const flat = map(kMapScalesB, scales_->b);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          copy_in(to + t * (kStageScaleTiles * kScaleTileBytes), flat,
                  {0, 0, flat_tile(tile, tile.n, row_tile + t, k)});
        }
        if constexpr (has_half_group(C)) {
          const int32_t row = half_group_column(C.block_n, tile.column);
          copy_in(to + kTiles * (kStageScaleTiles * kScaleTileBytes), flat,
                  {0, row % 32, flat_tile(tile, tile.n, row / kScaleTileRows, k)});
        }
      } else {
        if constexpr (kTiles > 0) copy_in(to, &scales_->b, {0, k, row_tile, tile.group});
        if constexpr (has_half_group(C)) {
          const int32_t row = half_group_column(C.block_n, tile.column);
          copy_in(to + kTiles * (kStageScaleTiles * kScaleTileBytes), &scales_->half_group,
                  {0, row % 32, k, row / kScaleTileRows, tile.group});
        }
      }
    }

    // Place of a tile of scales among all of a matrix of `rows` rows: in row `row_tile` of tiles, `k` along it. The
    // matrices of the groups before lie in front of it, but for Pointers.
    static MOXIE_DEVICE int32_t flat_tile(const Tile& tile, int32_t rows, int32_t row_tile, int32_t k) {
      const int32_t k_tiles = (tile.k + kTileK - 1) / kTileK, row_tiles = (rows + kScaleTileRows - 1) / kScaleTileRows;
      const int32_t within = row_tile * k_tiles + k;
      if constexpr (C.grouping == Grouping::Pointers) return within;
      if constexpr (C.grouping == Grouping::KGroups) return tile.scale_tiles * row_tiles + within;
      return tile.group * row_tiles * k_tiles + within;
    }

    template <int kRank>
    MOXIE_DEVICE void copy_in(uint8_t* to, const void* map, const int32_t (&coordinates)[kRank]) const {
      if constexpr (C.cluster > 1) {
        cuda::ptx::cp_async_bulk_tensor(cuda::ptx::space_shared, cuda::ptx::space_global, Group{}, to, map, coordinates,
                                        landed_);
      } else {
        cuda::ptx::cp_async_bulk_tensor(cuda::ptx::space_cluster, cuda::ptx::space_global, to, map, coordinates,
                                        landed_);
      }
    }

    // A map that changes from group to group, or else `own`.
    MOXIE_DEVICE const void* map(int index, const TensorMap& own) const {
      if (index >= kMaps) return &own;
      return slots_ + (index * kMapSlots + slot_) * kMapBytes;
    }
    MOXIE_DEVICE void copy_template(int index, const TensorMap& from) const {
      copy_map_template(maps_ + index * kMapBytes, from, threadIdx.x % 32);
    }
    MOXIE_DEVICE MapEditor edit(int index) const { return {maps_ + index * kMapBytes}; }

    // Rewrites the group's maps in the slots that were not used last. A copy that uses a slot is over when the stage it
    // filled has been released; the stages before the last `stages` ones are known to be since their places were filled
    // again.
    MOXIE_DEVICE void move_to_group(const Tile& tile) {
      mapped_group_ = tile.group;
      slot_ ^= 1;
      for (uint32_t j = issued_ > C.stages ? issued_ - C.stages : 0; j < group_begin_; ++j) {
        Position used;
        used.stage = j % C.stages;
        used.phase = (j / C.stages & 1) ^ 1;
        ring_.wait_empty(used);
      }
      group_begin_ = issued_;
      if (elect()) {
        if constexpr (kOwn) {
          describe_own(tile);
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

    static constexpr int64_t kBits = bits_of(C.format);
    static constexpr int32_t kMapElement = kElements / Format::kRowUnits;  // elements of one of the map's

    // One thread: KGroups, the group's part of K.
    MOXIE_DEVICE void describe_k(const Tile& tile) const {
      const int64_t first = tile.k_begin * kBits / 8;
      edit(kMapA).address(static_cast<const uint8_t*>(gemm_.a_base) + first);
      edit(kMapA).template size<0>(tile.k / kMapElement);
#pragma unroll
      for (int i = kMapB; i <= (kHalf ? kMapHalf : kMapB); ++i) {
        edit(i).address(static_cast<const uint8_t*>(gemm_.b_base) + first);
        edit(i).template size<0>(tile.k / kMapElement);
      }
    }

    // One thread: Pointers, everything.
    MOXIE_DEVICE void describe_own(const Tile& tile) const {
      const GroupArrays& arrays = gemm_.arrays;
      const int32_t m = tile.row + tile.rows;
      const MapEditor a = edit(kMapA), b = edit(kMapB);
      a.address(arrays.a[tile.group]);
      a.template size<0>(tile.k / kMapElement);
      a.template size<1>(m);
      a.template stride<1>(arrays.lda[tile.group] * kBits / 8);
      const int64_t ldb = arrays.ldb[tile.group] * kBits / 8;
      b.address(arrays.b[tile.group]);
      b.template size<0>(tile.k / kMapElement);
      if constexpr (!kGathers) {
        b.template size<1>(tile.n);
        b.template stride<1>(ldb);
      } else {
        constexpr bool kInterleaved = C.gate == GateLayout::Interleaved;
        b.template size<3>(tile.n / 16);
        b.template stride<1>(kInterleaved ? 2 * ldb : ldb);
        b.template stride<2>(kInterleaved ? ldb : ldb * (tile.n / 2));
        b.template stride<3>(kInterleaved ? 16 * ldb : 8 * ldb);
      }
      if constexpr (kHalf) {
        const MapEditor half = edit(kMapHalf);
        half.address(arrays.b[tile.group]);
        half.template size<0>(tile.k / kMapElement);
        half.template size<1>(tile.n);
        half.template stride<1>(ldb);
      }
      if constexpr (has_scales(C)) {
        const int32_t k_tiles = (tile.k + kTileK - 1) / kTileK;
        edit(kMapScalesA).address(gemm_.a_scale_pointers[tile.group]);
        edit(kMapScalesA).template size<2>((m + kScaleTileRows - 1) / kScaleTileRows * k_tiles);
        edit(kMapScalesB).address(gemm_.b_scale_pointers[tile.group]);
        edit(kMapScalesB).template size<(kGathers ? 4 : 2)>((tile.n + kScaleTileRows - 1) / kScaleTileRows * k_tiles);
      }
    }

    const GemmParams& gemm_;
    const ScaleParams* scales_;
    const Ring& ring_;
    const Stages& stages_;
    uint8_t* maps_;
    uint8_t* slots_;
    int32_t rank_;
    int32_t mapped_group_ = -1;
    uint32_t slot_ = 1;
    uint32_t issued_ = 0;         // stages
    uint32_t group_begin_ = 0;    // those before it were loaded through the other slots, or through these still earlier
    uint64_t* landed_ = nullptr;  // barrier of the stage being filled
    Position at_;
  };

  // Issuer: one warp, of which one thread works, and of a pair only the first block's. The tensor cores take its copies
  // and products in the order of issue, so the scales of a stage may replace those of the stage before at once.
  class Issuer {
   public:
    // tensor: address of the allocation in tensor memory.
    MOXIE_DEVICE Issuer(const Ring& ring, const Accumulators& accumulators, const Stages& stages, uint32_t tensor)
        : ring_(ring),
          accumulators_(accumulators),
          rows_(operand_descriptor(C.swap_ab ? stages.b : stages.a)),
          columns_(operand_descriptor(C.swap_ab ? stages.a : stages.b)),
          row_scales_(scale_descriptor(C.swap_ab ? stages.b_scales : stages.a_scales)),
          column_scales_(scale_descriptor(C.swap_ab ? stages.a_scales : stages.b_scales)),
          tensor_(tensor) {}

    MOXIE_DEVICE void multiply(const Tile& tile) {
      const uint32_t count = stages_of(tile.k);
      if (count == 0) return;  // the epilogue takes zeros for it
      if (elect()) {
        const uint32_t d = tensor_ + accumulator_.stage * accumulator_columns(C);
        FirstScales first;
        if constexpr (C.swap_ab) first.a = tile.row % kScaleTileRows / 32;
        if constexpr (has_half_group(C)) {
          first.half = half_group_column(C.block_n, tile.column) % kScaleTileRows / 32;
        }
        if constexpr (kProducts == 2) {
          for (int p = 0; p < 2; ++p) first.b[p] = product_row(tile, p) % kScaleTileRows / 32;
        } else if constexpr (kWhole > 0 && !C.swap_ab) {
          first.b[0] = first_column(tile) % kScaleTileRows / 32;
        }
        const uint32_t instruction =
            Format::instruction(128 * C.cluster, has_half_group(C) && kWhole > 0 ? kWhole : columns_of(tile));
        accumulators_.wait_stored(accumulator_);
        for (uint32_t i = 0; i < count; ++i) {
          ring_.wait_full(at_);
          multiply_stage(instruction, d, tile.k - static_cast<int32_t>(i) * kElements, i > 0, first);
          commit(ring_.empty + at_.stage);
          at_.advance();
        }
        commit(accumulators_.computed + accumulator_.stage);
      } else {
        at_.advance(count);
      }
      accumulator_.advance();
    }

   private:
    // Completes the barrier in every block when all that was issued is done.
    static MOXIE_DEVICE void commit(uint64_t* barrier) {
      if constexpr (C.cluster > 1) {
        constexpr uint16_t kBothBlocks = 3;
        cuda::ptx::tcgen05_commit_multicast(Group{}, barrier, kBothBlocks);
      } else {
        cuda::ptx::tcgen05_commit(Group{}, barrier);
      }
    }

    // Of the first 32 rows, within their tile of scales: A's with swap_ab, each product's of B, the half group's.
    struct FirstScales {
      uint32_t a = 0, b[kProducts] = {}, half = 0;
    };

    // left: elements of K from the stage's first on. Instructions wholly past the end are left out.
    MOXIE_DEVICE void multiply_stage(uint32_t instruction, uint32_t d, int32_t left, bool accumulate,
                                     const FirstScales& first) const {
      constexpr int kStageRows = C.swap_ab ? kStageB : kStageA, kStageColumns = C.swap_ab ? kStageA : kStageB;
      const uint64_t rows = rows_ + at_.stage * (kStageRows / 16),
                     columns = columns_ + at_.stage * (kStageColumns / 16);
      if constexpr (has_scales(C)) {
        constexpr int kStageRowScales = C.swap_ab ? kStageScalesB : kStageScalesA;
        constexpr int kStageColumnScales = C.swap_ab ? kStageScalesA : kStageScalesB;
        const uint64_t row_scales = row_scales_ + at_.stage * (kStageRowScales / 16);
        const uint64_t column_scales = column_scales_ + at_.stage * (kStageColumnScales / 16);
#pragma unroll
        for (int t = 0; t < kStageScaleTiles; ++t) {
          if (t * kTileK >= left) break;
          const uint32_t to_a = tensor_ + kTensor.a_scales + t * a_scale_columns(C);
          const uint32_t to_b = tensor_ + kTensor.b_scales + t * b_scale_columns(C);
          const uint32_t to_rows = C.swap_ab ? to_b : to_a, to_columns = C.swap_ab ? to_a : to_b;
#pragma unroll
          for (int n = 0; n < kRowScaleTiles; ++n)
            copy_scales(to_rows + 4 * n, row_scales + (n * kStageScaleTiles + t) * (kScaleTileBytes / 16));
#pragma unroll
          for (int n = 0; n < kColumnScaleTiles; ++n)
            copy_scales(to_columns + 4 * n, column_scales + (n * kStageScaleTiles + t) * (kScaleTileBytes / 16));
          const uint32_t to_half = to_columns + 4 * kColumnScaleTiles;
          if constexpr (has_half_group(C)) {
            copy_scales(to_half, column_scales + (kColumnScaleTiles * kStageScaleTiles + t) * (kScaleTileBytes / 16));
          }
#pragma unroll
          for (int s = 0; s < Format::kScaleSteps; ++s) {
            const int step = t * Format::kScaleSteps + s;
            if (step * Format::kStepElements >= left) break;
#pragma unroll
            for (int p = 0; p < kProducts; ++p) {
              // Of B: its rows in the stage, its scales in tensor memory.
              const uint64_t own_rows = p * (b_box_rows(C) * 128 / 16);
              const uint32_t own_scales = p * 4 * b_scale_tiles(C) + first.b[p];
              if constexpr (!has_half_group(C) || kWhole > 0) {
                Format::multiply(Group{}, d + p * (accumulator_columns(C) / 2),
                                 rows + step * 2 + (C.swap_ab ? own_rows : 0),
                                 columns + step * 2 + (C.swap_ab ? 0 : own_rows), instruction, step,
                                 to_rows + (C.swap_ab ? own_scales : 0),
                                 to_columns + (C.swap_ab ? first.a : own_scales), accumulate || step > 0);
              }
            }
            if constexpr (has_half_group(C)) {
              // The scales of neighbouring columns must neighbour in tensor memory: these do not, so they are
              // multiplied apart.
              Format::multiply(Group{}, d + kWhole, rows + step * 2, columns + step * 2 + kWhole * (128 / 16),
                               Format::instruction(128, 16), step, to_rows, to_half + first.half,
                               accumulate || step > 0);
            }
          }
        }
      } else {
#pragma unroll
        for (int step = 0; step < kElements / Format::kStepElements; ++step) {
          if (step * Format::kStepElements >= left) break;
          Format::multiply(Group{}, d, rows + step * 2, columns + step * 2, instruction, accumulate || step > 0);
        }
      }
    }
    static MOXIE_DEVICE void copy_scales(uint32_t to, uint64_t tile) {
      cuda::ptx::tcgen05_cp_32x128b_warpx4(Group{}, to, tile);
    }

    const Ring& ring_;
    const Accumulators& accumulators_;
    // Descriptors of the first stage: the operand that gives the accumulator's rows, and the one of its columns.
    uint64_t rows_, columns_, row_scales_, column_scales_;
    uint32_t tensor_;
    Position at_;
    typename Accumulators::Position accumulator_;
  };
};

}  // namespace moxie::kernel
