// SPDX-License-Identifier: Apache-2.0
// The epilogue: what happens to a tile's accumulators after the k loop. It goes over the tile chunk by chunk, adds the
// bias, applies the activation, and hands fragments to a list of sinks (sink.cuh) without knowing any of them by name.
// It knows neither wgmma nor tensor memory: the kernel passes what loads a fragment.
//
// One chunk, with staging:
//
//   issuing thread   wait for the copies that read this buffer before
//   all warps        bar.sync
//   all warps        load fragment, add bias, store(pre); activate, store(out)
//   all warps        fence.proxy.async, bar.sync
//   issuing thread   sinks' issue(), commit
#pragma once
#include "moxie/epilogue/activation.cuh"
#include "moxie/epilogue/sink.cuh"
#include "moxie/layout.h"
#include "moxie/tensor_map.cuh"
#include "moxie/tile.cuh"

namespace moxie::kernel {

// One object of every sink.
template <class... Sinks>
struct SinkList;
template <>
struct SinkList<> {
  template <class Function>
  MOXIE_DEVICE void for_each(Function&&) {}
};
template <class First, class... Rest>
struct SinkList<First, Rest...> {
  MOXIE_DEVICE explicit SinkList(const typename First::Params& first_params,
                                 const typename Rest::Params&... rest_params)
      : first(first_params), rest(rest_params...) {}
  template <class Function>
  MOXIE_DEVICE void for_each(Function&& function) {
    function(first);
    rest.for_each(function);
  }
  First first;
  SinkList<Rest...> rest;
};

// What a list of sinks needs, and the shared memory of a kernel with them.
template <auto C, class... Sinks>
struct SinkTraits {
  static_assert(sizeof...(Sinks) > 0);
  static_assert(((Sinks::kNeeds.staging_bytes > 0 || !Sinks::kNeeds.tensor_map) && ...),
                "a tensor map copies from staging");
  static_assert(((Sinks::kNeeds.staging_bytes % 1024 == 0) && ...));
  static constexpr int kCount = sizeof...(Sinks);
  static constexpr SinkNeeds kNeeds[kCount] = {Sinks::kNeeds...};
  static constexpr bool kStaged = ((Sinks::kNeeds.staging_bytes > 0) || ...);
  static constexpr bool kTakesOut = ((Sinks::kValue == Value::Out) || ...);
  template <class Sink>
  static constexpr bool kGroupMap = outputs_need_group_maps(C.grouping) && Sink::kNeeds.tensor_map;
  static constexpr int kGroupMaps = (int{kGroupMap<Sinks>} + ...);
  static constexpr auto kShared = shared_layout(C, kNeeds, kCount);
  static constexpr bool kExchanges = exchanges_fragments(C, kNeeds, kCount);
  static constexpr bool kByWarps = stores_by_warps(C, kNeeds, kCount);
  static constexpr bool kStoresTransposed = stores_transposed(C, kNeeds, kCount);
  static constexpr bool kBiasOfRows = kByWarps || kStoresTransposed;  // see load_bias_of_rows()
};

// The first of two named barriers, one for each pair of warps that exchange fragments. Kernels that do have one
// epilogue.
constexpr int kExchangeBarrier = 2;

// The epilogue of one warp group. Every method is called by all of its 128 threads.
template <auto C, class... Sinks>
class Epilogue {
  using Traits = SinkTraits<C, Sinks...>;
  static constexpr bool kTransposed = is_transposed(C);
  static constexpr int kRows = warp_group_rows(C);
  static constexpr int kWarpGroups = epilogue_warp_groups(C);
  static constexpr int kColumns = fragment_columns(C);
  static constexpr int kBlocks = epilogue_rows(C) / (kTransposed ? 16 : 64);  // accumulator blocks of a chunk
  static constexpr int kTileColumns = block_columns(C);
  static constexpr bool kGated = is_gated(C.activation);
  static constexpr int kMapSetBytes = kMapSlots * kMapBytes;  // the slots of one sink and warp group

 public:
  // `slots` are this block's maps in the workspace, `barrier` a named barrier for this warp group alone.
  MOXIE_DEVICE Epilogue(const GemmParams& gemm, SinkList<Sinks...>& sinks, uint8_t* shared, uint8_t* slots,
                        int warp_group, int barrier)
      : gemm_(gemm),
        sinks_(sinks),
        shared_(shared),
        slots_(slots),
        warp_group_(warp_group),
        barrier_(barrier),
        thread_(threadIdx.x % 128),
        issuing_warp_(__shfl_sync(~0u, threadIdx.x / 32, 0) % 4 == 0) {
    if constexpr (Traits::kGroupMaps > 0) {
      if (issuing_warp_) {
        for_each_group_map(
            [&](auto& sink, uint8_t* map, uint8_t*) { copy_map_template(map, sink.map(), thread_ % 32); });
        __syncwarp();
      }
    }
  }

  // Called before the k loop: starts to fetch what the epilogue of this tile reads, so that it has come when the loop
  // ends.
  MOXIE_DEVICE void prefetch(const Tile& tile) {
    if constexpr (C.bias) {
#pragma unroll
      for (int i = 0; i < kBiasPairs; ++i) {
        if constexpr (Traits::kBiasOfRows) {
          bias_[i] = load_bias_of_rows(tile, i);
        } else {
          bias_[i] = load_bias(tile);
        }
      }
    }
  }

  // Called after the k loop with wgmma's accumulators: acc[block] has 64 rows, as N / 8 groups of the 4 values of a
  // Fragment.
  template <int kValues>
  MOXIE_DEVICE void run(float (&acc)[kBlocks][kValues], const Tile& tile) {
    static_assert(kBlocks * 64 == kRows && kValues * 2 == C.block_n);
    Chunk chunk = chunk_of(tile, 16, 64);
    if constexpr (C.block_m < 64) chunk.rows = min(chunk.rows, C.block_m);
    if constexpr (C.schedule == WarpSchedule::Cooperative) {
      chunk.row += warp_group_ * kRows;
      chunk.rows -= warp_group_ * kRows;
    }
    run(chunk, tile, [&](Fragment<kColumns>& values, int first, int block) {
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) values.v[j][i] = acc[block][(first / 8 + j) * 4 + i];
      }
    });
  }

  // The same for the accumulators of packed weights where warps store by themselves: every warp has 16 columns of the
  // product in an accumulator's rows, which it brings into the order of a Fragment without the others. `factors` are
  // those of run_transposed().
  template <int kAccumulators, int kValues>
  MOXIE_DEVICE void run_by_warps(const float (&acc)[kAccumulators][kValues], const float (&factors)[kAccumulators][2],
                                 const Tile& tile) {
    static_assert(kAccumulators * 64 == kTileColumns && kValues * 2 == C.block_m);
#pragma unroll
    for (int strip = 0; strip < kAccumulators; ++strip) {
      Chunk chunk = chunk_of(tile, 0, 16);
      chunk.row_warps = 1;
      chunk.column += strip * 64 + chunk.warp() * 16;
      if constexpr (C.block_m < 64) chunk.rows = min(chunk.rows, C.block_m);
      if (chunk.column >= chunk.n) break;
#pragma unroll
      for (int row = 0; row < C.block_m; row += 16) {
        if (chunk.rows <= 0) break;
        Fragment<16> pre = {};
#pragma unroll
        for (int i = 0; i < (C.block_m < 16 ? 2 : 4); ++i) {
          const int j = i % 2, h = i / 2;  // of the columns, and of the rows
          const float* const own = acc[strip] + (row / 8 + h) * 4 + j * 2;
          const float factor = factors[strip][j];
          float bias = 0.0f;
          if constexpr (C.bias) bias = j == 0 ? bf16_low(bias_[strip]) : bf16_high(bias_[strip]);
          const float2 values = transpose(own[0] * factor + bias, own[1] * factor + bias);
          pre.v[j][2 * h] = values.x, pre.v[j][2 * h + 1] = values.y;
        }
        store<Value::Pre>(pre, chunk, 0);
        if constexpr (Traits::kTakesOut) store<Value::Out>(activate(pre), chunk, 0);
        chunk.row += 16, chunk.rows -= 16;
      }
    }
    // Without it the compiler holds it possible that the next tile's k loop is entered by some lanes of a warp, and
    // keeps wgmma's descriptors out of uniform registers.
    __syncwarp();
  }

  // The same for the accumulators of packed weights, which hold the product transposed: acc[block] has 64 columns of
  // the product in its rows, and block_m rows of it in its columns. The values are multiplied by `factors`, one for
  // either row of a fragment. They go through shared memory into the order of a Fragment, 64 rows by epilogue_columns
  // at a time.
  template <int kAccumulators, int kValues>
  MOXIE_DEVICE void run_transposed(const float (&acc)[kAccumulators][kValues], const float (&factors)[kAccumulators][2],
                                   const Tile& tile) {
    static_assert(kAccumulators * 64 == kTileColumns && kValues * 2 == C.block_m);
    constexpr int kStride = exchange_stride(C);
    Chunk chunk = chunk_of(tile, 16, 64);
    if constexpr (C.block_m < 64) chunk.rows = min(chunk.rows, C.block_m);
    if (!begin(chunk, tile)) return;
    const int warp = chunk.warp(), lane = chunk.thread % 32;
    float* const buffer =
        reinterpret_cast<float*>(shared_ + Traits::kShared.exchange + warp_group_ * exchange_bytes(C));
    // A thread's first place where it fills the buffer, [row][column], and where it reads it.
    float* const own = buffer + lane % 4 * 2 * kStride + lane / 4;
    const float* const wanted = buffer + (warp * 16 + lane / 4) * kStride + lane % 4 * 2;
#pragma unroll
    for (int row = 0; row < C.block_m; row += 64) {
      if (row > 0) chunk.row += 64, chunk.rows -= 64;
      if (chunk.rows <= 0) break;
      run_chunks(chunk, tile, [&](Fragment<kColumns>& values, int first, int) {
        // The warp that has columns 16 warp .. 16 warp + 15 of an accumulator.
        const int column = warp * 16 - first % 64;
        // The buffer has been read. With staging the warps have met since, and so they have behind a tile's last chunk.
        if (!Traits::kStaged && (row > 0 || first > 0)) bar_sync(barrier_, 128);
        if (column >= 0 && column < kColumns) {
#pragma unroll
          for (int j = 0; j < min(C.block_m, 64) / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
              own[(8 * j + i % 2) * kStride + column + i / 2 * 8] =
                  acc[first / 64][(row / 8 + j) * 4 + i] * factors[first / 64][i / 2];
          }
        }
        bar_sync(barrier_, 128);
#pragma unroll
        for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            float2 pair = {0.0f, 0.0f};
            if (warp * 16 + h * 8 < C.block_m)
              pair = *reinterpret_cast<const float2*>(wanted + h * 8 * kStride + 8 * j);
            values.v[j][2 * h] = pair.x, values.v[j][2 * h + 1] = pair.y;
          }
        }
      });
    }
    end();
  }

  // The same where all sinks take transposed fragments, so that nothing is exchanged: a thread has a gate beside its up
  // in any case.
  template <int kAccumulators, int kValues>
  MOXIE_DEVICE void run_to_transposed_sinks(const float (&acc)[kAccumulators][kValues],
                                            const float (&factors)[kAccumulators][2], const Tile& tile) {
    static_assert(kAccumulators * 64 == kTileColumns && kValues * 2 == C.block_m);
    Chunk chunk = chunk_of(tile, 16, 64);
    if (!begin(chunk, tile)) return;
#pragma unroll
    for (int row = 0; row < C.block_m; row += 64) {
      if (row > 0) chunk.row += 64, chunk.rows -= 64;
      if (chunk.rows <= 0) break;
#pragma unroll
      for (int strip = 0; strip < kAccumulators; ++strip) {
        chunk.column = tile.column + strip * 64;
        if (chunk.column >= chunk.n) break;
        if constexpr (Traits::kStaged) {
          // The copies that were issued from this buffer have read it.
          if (issuing_warp_ && elect()) wait_for_staging();
          bar_sync(barrier_, 128);
        }
#pragma unroll
        for (int first = 0; first < 64; first += 32) {
          if (first >= chunk.rows) break;
          TransposedFragment<16> pre;
#pragma unroll
          for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              pre.v[j][i] = acc[strip][((row + first) / 8 + j) * 4 + i] * factors[strip][i / 2];
              if constexpr (C.bias) pre.v[j][i] += i < 2 ? bf16_low(bias_[strip]) : bf16_high(bias_[strip]);
            }
          }
          store_transposed<Value::Pre>(pre, chunk, first);
          if constexpr (Traits::kTakesOut) store_transposed<Value::Out>(activate(pre), chunk, first);
        }
        if constexpr (Traits::kStaged) publish_and_issue(chunk);
      }
    }
  }

  // The tile's first chunk. For warp_rows and block_rows see Chunk.
  MOXIE_DEVICE Chunk chunk_of(const Tile& tile, int32_t warp_rows, int32_t block_rows) const {
    // The compiler must not know the thread's number: addresses that depend on it would be computed before the k loop
    // and occupy registers through it.
    int32_t thread = thread_;
    asm volatile("" : "+r"(thread));
    Chunk chunk;
    chunk.group = tile.group, chunk.row = tile.row, chunk.rows = tile.rows, chunk.row_begin = tile.row_begin;
    chunk.column = tile.column, chunk.n = tile.n;
    chunk.thread = thread;
    chunk.warp_rows = warp_rows, chunk.block_rows = block_rows;
    chunk.scale_tiles = C.grouping == Grouping::Offsets ? tile.scale_tiles : 0;
    chunk.blocks = kBlocks;
    chunk.row_warps = kTransposed ? 1 : 4;
    chunk.warp_columns = kTransposed ? kColumns : 0;
    return chunk;
  }

  // Called after the k loop. load(values, first, block) fills in this warp's fragment of an accumulator block; `first`
  // is where the chunk begins in the tile, its column or, where the accumulator is transposed, its row.
  template <class Load>
  MOXIE_DEVICE void run(Chunk chunk, const Tile& tile, Load&& load) {
    if (!begin(chunk, tile)) return;
    run_chunks(chunk, tile, load);
    end();
  }

  // Called before the block may end: waits until all copies have read its shared memory.
  MOXIE_DEVICE void finish() {
    if constexpr (Traits::kStaged) {
      if (issuing_warp_ && elect()) cuda::ptx::cp_async_bulk_wait_group_read(cuda::ptx::n32_t<0>{});
    }
  }

 private:
  // What comes before the first chunk of a tile. False where the tile has nothing to store.
  MOXIE_DEVICE bool begin(const Chunk& chunk, const Tile& tile) {
    if (chunk.rows <= 0 || chunk.column >= chunk.n) return false;
    if constexpr (Traits::kGroupMaps > 0) {
      if (chunk.group != mapped_group_) move_to_group(chunk, tile);
    }
    if constexpr (C.bias) {
      if (!Traits::kBiasOfRows && 2 * chunk.thread < kTileColumns) bias_words()[chunk.thread] = bias_[0];
      if constexpr (!Traits::kStaged && !has_packed_b(C)) bar_sync(barrier_, 128);
    }
    return true;
  }

  // What comes behind the last chunk: all warps have read the bias, and transposed accumulators, before those of the
  // next tile take their place.
  MOXIE_DEVICE void end() const {
    if constexpr ((C.bias || has_packed_b(C)) && !Traits::kStaged && !meets_between_tiles(C)) bar_sync(barrier_, 128);
  }

  // All chunks of `chunk`'s rows, or with a transposed accumulator of its columns.
  template <class Load>
  MOXIE_DEVICE void run_chunks(Chunk chunk, const Tile& tile, Load&& load) {
    constexpr int kEnd = kTransposed ? kRows : kTileColumns;
    constexpr int kStep = kTransposed ? epilogue_rows(C) : kColumns;
#pragma unroll
    for (int first = 0; first < kEnd; first += kStep) {
      if constexpr (kTransposed) {
        if (first > 0) chunk.row += kStep, chunk.rows -= kStep;
        if (chunk.rows <= 0) break;
      } else {
        chunk.column = column_of(tile, first);
        if (chunk.column >= chunk.n) {
          if constexpr (has_half_group(C)) continue;
          break;
        }
      }
      if constexpr (Traits::kStaged) {
        // The copies that were issued from this buffer have read it. The barrier tells all warps, and makes the bias
        // visible to them; with transposed accumulators the one of their exchange does.
        if (issuing_warp_ && elect()) wait_for_staging();
        if constexpr (!has_packed_b(C)) bar_sync(barrier_, 128);
      }
      Fragment<kColumns / 2> narrow[Traits::kExchanges ? kBlocks : 1];
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        Fragment<kColumns> pre;
        load(pre, first, block);
        add_bias(pre, chunk, kTransposed ? 0 : first);
        store<Value::Pre>(pre, chunk, block);
        if constexpr (Traits::kTakesOut && Traits::kExchanges) {
          narrow[block] = activate(pre);
        } else if constexpr (Traits::kTakesOut) {
          Chunk of_out = chunk;
          if constexpr (kGated) of_out.warp_columns /= 2;
          store<Value::Out>(activate(pre), of_out, block);
        }
      }
      if constexpr (Traits::kTakesOut && Traits::kExchanges) {
        // The buffer of the last exchange has been read when all warps have met since: at the barriers of staging or,
        // before a tile's first chunk, at that of the bias. Without these the pairs of warps must meet first.
        store_exchanged(narrow, chunk, !Traits::kStaged && (first > 0 || !C.bias));
      }
      if constexpr (Traits::kStaged) publish_and_issue(chunk);
    }
  }

  static MOXIE_DEVICE void wait_for_staging() {
    cuda::ptx::cp_async_bulk_wait_group_read(cuda::ptx::n32_t<C.store_buffers - 1>{});
  }

  MOXIE_DEVICE uint32_t* bias_words() const {
    return reinterpret_cast<uint32_t*>(shared_ + Traits::kShared.bias + warp_group_ * kTileColumns * 2);
  }

  // The column of the product that column `first` of the accumulator belongs to.
  static MOXIE_DEVICE int32_t column_of(const Tile& tile, int32_t first) {
    if constexpr (has_half_group(C)) {
      return first < whole_groups(C.block_n)
                 ? whole_groups_column(tile.column) + first
                 : half_group_column(C.block_n, tile.column) + first - whole_groups(C.block_n);
    } else {
      return tile.column + first;
    }
  }

  // The bias of the tile's group; null where it has none.
  MOXIE_DEVICE const uint16_t* bias_of(const Tile& tile) const {
    if constexpr (C.grouping == Grouping::Pointers) {
      return static_cast<const uint16_t*>(gemm_.arrays.bias[tile.group]);
    } else {
      return static_cast<const uint16_t*>(gemm_.bias) + tile.group * gemm_.bias_stride;
    }
  }

  // The bias of this thread's rows of an accumulator of packed weights, which are columns of the product, as a pair of
  // bf16: those of column l / 4 of its warp's 16, and of the eighth on, where l is the lane. 0 past the last column.
  MOXIE_DEVICE uint32_t load_bias_of_rows(const Tile& tile, int strip) const {
    const uint16_t* const bias = bias_of(tile);
    if (C.grouping == Grouping::Pointers && bias == nullptr) return 0;
    const int32_t first = tile.column + strip * 64 + thread_ / 32 * 16, of_warp = thread_ % 32 / 4;
    if constexpr (!kGated) {
      const int32_t column = first + of_warp;
      return (column < tile.n ? bias[column] : 0) | (column + 8 < tile.n ? bias[column + 8] << 16 : 0);
    } else {
      const int32_t pair = first / 2 + of_warp;  // in the order of the gated output
      if (pair >= tile.n / 2) return 0;
      if constexpr (C.gate == GateLayout::Interleaved) return *reinterpret_cast<const uint32_t*>(bias + 2 * pair);
      return bias[pair] | static_cast<uint32_t>(bias[tile.n / 2 + pair]) << 16;
    }
  }

  // The bias of columns 2 thread and 2 thread + 1 of the tile as a pair of bf16; 0 past the last column.
  MOXIE_DEVICE uint32_t load_bias(const Tile& tile) const {
    const uint16_t* const bias = bias_of(tile);
    if (C.grouping == Grouping::Pointers && bias == nullptr) return 0;
    const int column = 2 * thread_;
    if (column >= kTileColumns) return 0;
    if constexpr (!kGated) {
      const int of_product = column_of(tile, column);
      return of_product < tile.n ? *reinterpret_cast<const uint32_t*>(bias + of_product) : 0;
    } else {
      const int half = column / 8 % 2;
      const int pair = tile.column / 2 + column / 16 * 8 + column % 8;  // in the order of the gated output
      if (pair >= tile.n / 2) return 0;
      if constexpr (C.gate == GateLayout::Interleaved) {
        return bias[2 * pair + half] | static_cast<uint32_t>(bias[2 * pair + 2 + half]) << 16;
      } else {
        return *reinterpret_cast<const uint32_t*>(bias + half * (tile.n / 2) + pair);
      }
    }
  }

  // `first` is the chunk's first column within the tile's bias.
  MOXIE_DEVICE void add_bias(Fragment<kColumns>& pre, const Chunk& chunk, int first) const {
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      float2 bias = {0.0f, 0.0f};
      if constexpr (C.bias) {
        const uint32_t pair = bias_words()[(first + chunk.fragment_column(j, 0)) / 2];
        bias = {bf16_low(pair), bf16_high(pair)};
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) pre.v[j][i] += i % 2 == 0 ? bias.x : bias.y;
    }
  }

  template <int kWidth>
  MOXIE_DEVICE Fragment<kGated ? kWidth / 2 : kWidth> activate(const Fragment<kWidth>& pre) const {
    const ActivationOf<C.activation> activation(gemm_);
    Fragment<kGated ? kWidth / 2 : kWidth> out;
    if constexpr (kGated) {
      constexpr int kGate = C.gate == GateLayout::SplitUpFirst ? 1 : 0;
#pragma unroll
      for (int q = 0; q < kWidth / 16; ++q) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out.v[q][i] = activation(pre.v[2 * q + kGate][i], pre.v[2 * q + 1 - kGate][i]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out.v[j][i] = activation(pre.v[j][i]);
      }
    }
    return out;
  }

  MOXIE_DEVICE TransposedFragment<kGated ? 8 : 16> activate(const TransposedFragment<16>& pre) const {
    const ActivationOf<C.activation> activation(gemm_);
    TransposedFragment<kGated ? 8 : 16> out;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (kGated) {
        constexpr int kGate = C.gate == GateLayout::SplitUpFirst ? 1 : 0;
#pragma unroll
        for (int i = 0; i < 2; ++i) out.v[j][i] = activation(pre.v[j][2 * kGate + i], pre.v[j][2 - 2 * kGate + i]);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) out.v[j][i] = activation(pre.v[j][i]);
      }
    }
    return out;
  }

  // Warps 2 i and 2 i + 1 swap: each keeps half of the rows and receives the other warp's 16 columns for them. With 16
  // rows in all the left warp keeps everything. `meet` says that the pair must meet before it fills the buffer, since
  // no other barrier shows that the last exchange is over.
  template <int kWidth>
  MOXIE_DEVICE void store_exchanged(const Fragment<kWidth> (&own)[kBlocks], const Chunk& chunk, bool meet) {
    static_assert(kWidth == 16 && kBlocks <= 2);
    const int warp = chunk.warp(), lane = chunk.thread % 32;
    const bool right = warp % 2 != 0;
    const int barrier = kExchangeBarrier + warp / 2;
    float* const buffer = reinterpret_cast<float*>(shared_ + Traits::kShared.exchange);
    if (meet) bar_sync(barrier, 64);  // the other warp has read what lay in the buffer before
#pragma unroll
    for (int i = 0; i < 8; ++i)
      buffer[(warp * 8 + i) * 32 + lane] = right ? own[0].v[i / 4][i % 4] : own[kBlocks - 1].v[i / 4][i % 4];
    bar_sync(barrier, 64);
    if (kBlocks == 1 && right) return;
    Fragment<32> wide;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float kept = right ? own[kBlocks - 1].v[i / 4][i % 4] : own[0].v[i / 4][i % 4];
      const float got = buffer[((warp ^ 1) * 8 + i) * 32 + lane];
      wide.v[i / 4][i % 4] = right ? got : kept;
      wide.v[2 + i / 4][i % 4] = right ? kept : got;
    }
    Chunk of_out = chunk;
    of_out.blocks = 1;
    of_out.row_warps = kBlocks;
    of_out.warp_rows = 16;
    of_out.warp_columns = 16 * kBlocks;
    store<Value::Out>(wide, of_out, 0);
  }

  template <Value kValue, int kWidth>
  MOXIE_DEVICE void store(const Fragment<kWidth>& values, const Chunk& chunk, int block) {
    uint8_t* staging = shared_ + Traits::kShared.staging;
    sinks_.for_each([&](auto& sink) {
      using Sink = cuda::std::remove_reference_t<decltype(sink)>;
      if constexpr (Sink::kValue == kValue) sink.store(values, chunk, block, staging + staging_offset<Sink>());
      staging += kWarpGroups * C.store_buffers * Sink::kNeeds.staging_bytes;
    });
  }

  template <Value kValue, int kWidth>
  MOXIE_DEVICE void store_transposed(const TransposedFragment<kWidth>& values, const Chunk& chunk, int row) {
    uint8_t* staging = shared_ + Traits::kShared.staging;
    sinks_.for_each([&](auto& sink) {
      using Sink = cuda::std::remove_reference_t<decltype(sink)>;
      if constexpr (Sink::kValue == kValue) sink.store_transposed(values, chunk, row, staging + staging_offset<Sink>());
      staging += kWarpGroups * C.store_buffers * Sink::kNeeds.staging_bytes;
    });
  }

  // All warps have filled the staging buffer, and one thread issues the copies from it.
  MOXIE_DEVICE void publish_and_issue(const Chunk& chunk) {
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    bar_sync(barrier_, 128);
    if (issuing_warp_ && elect()) issue(chunk);
    if constexpr (C.store_buffers == 2) buffer_ ^= 1;
  }

  // Called by one thread: issues the copies of all sinks for the chunk as one bulk group.
  MOXIE_DEVICE void issue(const Chunk& chunk) {
    uint8_t* staging = shared_ + Traits::kShared.staging;
    int mapped = 0;
    sinks_.for_each([&](auto& sink) {
      using Sink = cuda::std::remove_reference_t<decltype(sink)>;
      if constexpr (Traits::template kGroupMap<Sink>) {
        if (described_ >> mapped & 1) sink.issue(slot(mapped), chunk, staging + staging_offset<Sink>());
        ++mapped;
      } else if constexpr (Sink::kNeeds.tensor_map) {
        sink.issue(&sink.map(), chunk, staging + staging_offset<Sink>());
      } else if constexpr (Sink::kNeeds.staging_bytes > 0) {
        sink.issue(nullptr, chunk, staging + staging_offset<Sink>());
      }
      staging += kWarpGroups * C.store_buffers * Sink::kNeeds.staging_bytes;
    });
    cuda::ptx::cp_async_bulk_commit_group();
  }

  template <class Sink>
  MOXIE_DEVICE int staging_offset() const {
    return (warp_group_ * C.store_buffers + buffer_) * Sink::kNeeds.staging_bytes;
  }

  MOXIE_DEVICE uint8_t* slot(int mapped) const {
    return slots_ + (mapped * kWarpGroups + warp_group_) * kMapSetBytes + slot_ * kMapBytes;
  }

  // Calls function(sink, map in shared memory, slot in use) for every sink whose map changes from group to group.
  template <class Function>
  MOXIE_DEVICE void for_each_group_map(Function&& function) {
    int mapped = 0;
    sinks_.for_each([&](auto& sink) {
      if constexpr (Traits::template kGroupMap<cuda::std::remove_reference_t<decltype(sink)>>) {
        function(sink, shared_ + Traits::kShared.sink_maps + (mapped * kWarpGroups + warp_group_) * kMapBytes,
                 slot(mapped));
        ++mapped;
      }
    });
  }

  // Rewrites the sinks' maps for a new group, in the slots that the group before does not use. No copy uses them any
  // more: every group issues at least one chunk, and only one chunk is in flight here. With two staging buffers that
  // takes a wait.
  MOXIE_DEVICE void move_to_group(const Chunk& chunk, const Tile& tile) {
    mapped_group_ = chunk.group;
    slot_ ^= 1;
    if (!issuing_warp_) return;
    const bool leader = elect();
    if (leader) {
      if constexpr (C.store_buffers > 1) wait_for_staging();
      Chunk whole = chunk;
      whole.row = 0;
      whole.rows = tile.row + tile.rows;
      described_ = 0;
      uint32_t bit = 1;
      for_each_group_map([&](auto& sink, uint8_t* map, uint8_t*) {
        if (sink.rewrite(MapEditor{map}, whole)) described_ |= bit;
        bit <<= 1;
      });
    }
    __syncwarp();
    for_each_group_map([&](auto&, uint8_t* map, uint8_t* published) { publish_map(published, map); });
    if (leader) {
      for_each_group_map([&](auto&, uint8_t*, uint8_t* published) { acquire_map(published); });
    }
  }

  const GemmParams& gemm_;
  SinkList<Sinks...>& sinks_;
  uint8_t* shared_;
  uint8_t* slots_;
  int warp_group_;
  int barrier_;
  int thread_;
  bool issuing_warp_;
  static constexpr int kBiasPairs = Traits::kBiasOfRows ? kTileColumns / 64 : 1;
  uint32_t bias_[kBiasPairs] = {};  // pairs of columns of the bias that this thread has
  int buffer_ = 0;
  int slot_ = 1;
  int32_t mapped_group_ = -1;
  uint32_t described_ = 0;  // bit i, in the issuing thread: the i-th of the mapped sinks can describe the group
};

}  // namespace moxie::kernel
