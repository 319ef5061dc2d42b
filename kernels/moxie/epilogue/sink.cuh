// What an output of the epilogue is, and the epilogue that drives a list of them without knowing any by name.
//
// A sink takes one of the two values of the product (pre, or out = activation(pre)) as float32 fragments and brings it
// to memory. To add one, write a struct in a header of your own and pass its type name with the header; no file of the
// kernel changes. It has:
//
//   struct Params { ... };
//     Its kernel argument, trivially copyable; the host fills in the bytes.
//   static constexpr Value kValue = Value::Out;
//     Which value it takes.
//   static constexpr SinkNeeds kNeeds = {};
//     See moxie/types.h; {} for a sink that stores with plain instructions.
//
//   explicit Sink(const Params&);
//     One object a thread for the whole kernel; it may keep state in registers. It touches no global memory: the
//     kernel has not yet waited for the one before it in the stream.
//
//   template <int kColumns>
//   void store(const Fragment<kColumns>& values, const Chunk& chunk, int block, uint8_t* staging);
//     Called by whole warps, chunk after chunk from left to right, and in each for block = 0 to chunk.blocks - 1: a
//     warp has 16 rows by kColumns columns of it, a multiple of 32 (with kNeeds.narrow 16, too). Which ones, Chunk
//     tells: mostly 16 rows of 64 and all columns, but where the operands are swapped warps lie side by side, some may
//     have none, and chunks come from top to bottom. It must write nothing past chunk.rows rows or past the value's
//     columns.
//
// With kNeeds.staging_bytes > 0, `staging` is that much shared memory, aligned to 1024, which store() fills. Then
//
//   void issue(const void* map, const Chunk& chunk, const uint8_t* staging);
//     One thread, the same for the whole kernel: starts bulk copies from it. The epilogue orders generic before
//     asynchronous accesses, commits the copies and waits for them before it hands out the same buffer again.
//
// With kNeeds.tensor_map it has besides
//
//   const TensorMap& map() const;
//     The map, or the template of the per-group maps.
//
//   bool rewrite(MapEditor map, const Chunk& group) const;
//     One thread: points the map at group.group, which has group.rows rows; false when its memory cannot be described:
//     nothing is issued for it then. Only called where outputs_need_group_maps(grouping).
//
// A sink that depends on the kernel's configuration is a template over it; its type name may use `kConfig`.
//
// A gated `pre` comes in the order of the accumulator: columns 16 q + 0..7 of a fragment are the first half (gate; up
// for SplitUpFirst), 16 q + 8..15 the matching ones of the second, of the columns 8 q + 0..7 of the chunk's half.
#pragma once
#include "moxie/epilogue/activation.cuh"
#include "moxie/layout.h"
#include "moxie/scheduler.cuh"

namespace moxie::kernel {

enum class Value { Pre, Out };

// What a warp has of a block: 16 rows by kColumns columns. v[j][2 h + c] is the element in row lane / 4 + 8 h, column
// 8 j + 2 (lane % 4) + c (PTX ISA 9.7.15.5.1.1, the accumulator of wgmma, and 9.7.16.2.3, a load of shape 16x256b from
// tensor memory).
template <int kColumns>
struct Fragment {
  float v[kColumns / 8][4];
};

// Where a chunk of epilogue_rows by epilogue_columns of the product lies.
struct Chunk {
  int32_t group;
  int32_t row;          // first row of the chunk, within the group (Dense, RowGroups: within the tensor)
  int32_t rows;         // rows that exist from `row` on; may exceed those of the chunk
  int32_t row_begin;    // Offsets: the tensor's row where the group begins, else 0
  int32_t column;       // first column of the product; a gated `out` begins at column / 2
  int32_t n;            // columns of the product
  int32_t thread;       // of the warp group, 0 to 127
  int32_t warp_rows;    // from one warp's rows to the next's: 16 on Hopper, 32 on Blackwell, 0 with swapped operands
  int32_t block_rows;   // from one block's rows to the next's: 64 on Hopper, 16 on Blackwell
  int32_t scale_tiles;  // Offsets: tiles of a quantised output's scales before the group's first, else 0
  int32_t blocks;
  int32_t row_warps;     // warps one below the other: 4, with swapped operands 1 or 2
  int32_t warp_columns;  // and from those to the ones beside them, columns of the value; else 0

  // First of the 16 rows that this warp has of a block, counted from `row`.
  MOXIE_DEVICE int warp_row(int block) const { return block * block_rows + warp() % row_warps * warp_rows; }
  // First of this warp's columns of the value, counted from the chunk's first.
  MOXIE_DEVICE int warp_column() const { return warp() / row_warps * warp_columns; }
  MOXIE_DEVICE int warp() const { return static_cast<int>(static_cast<uint32_t>(thread) / 32); }
  // Row of a fragment's v[..][2 h + ..] counted from `row`, and column of v[j][.. + c] counted from the chunk's first.
  MOXIE_DEVICE int fragment_row(int block, int h) const { return warp_row(block) + thread % 32 / 4 + h * 8; }
  MOXIE_DEVICE int fragment_column(int j, int c) const { return warp_column() + j * 8 + thread % 4 * 2 + c; }
};

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
};

constexpr int kExchangeBarrier = 2;  // and the one after it: named barriers for the pairs of warps of a single epilogue

// The epilogue of one consumer warp group.
template <auto C, class... Sinks>
class Epilogue {
  using Traits = SinkTraits<C, Sinks...>;
  static constexpr bool kTransposed = is_transposed(C);
  static constexpr int kRows = warp_group_rows(C);
  static constexpr int kWarpGroups = epilogue_warp_groups(C);
  static constexpr int kColumns = fragment_columns(C);
  static constexpr int kBlocks = epilogue_rows(C) / (kTransposed ? 16 : 64);
  static constexpr int kTileColumns = block_columns(C);
  static constexpr bool kGated = is_gated(C.activation);
  static constexpr int kMapSetBytes = kMapSlots * kMapBytes;  // the slots of one sink and warp group

 public:
  // slots: this block's maps in the workspace. barrier: a named barrier for this warp group alone.
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

  // Before the k loop: starts to fetch what the epilogue of this tile reads, so that it has come when the loop ends.
  MOXIE_DEVICE void prefetch(const Tile& tile) {
    if constexpr (C.bias) bias_ = load_bias(tile);
  }

  // After the k loop: acc[block] holds 64 rows, as N / 8 groups of 4 values of a Fragment.
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

  // The tile's first chunk. Rows and columns of the fragments: see Chunk.
  MOXIE_DEVICE Chunk chunk_of(const Tile& tile, int32_t warp_rows, int32_t block_rows) const {
    // Opaque, so that no address made of it is computed before the k loop and occupies a register through it.
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

  // load(values, first, block) fills in a fragment of the chunk that begins at column `first` of the tile, where the
  // accumulator is transposed at that row.
  template <class Load>
  MOXIE_DEVICE void run(Chunk chunk, const Tile& tile, Load&& load) {
    const int32_t thread = chunk.thread;
    if (chunk.rows <= 0 || chunk.column >= chunk.n) return;
    if constexpr (Traits::kGroupMaps > 0) {
      if (chunk.group != mapped_group_) move_to_group(chunk, tile);
    }
    if constexpr (C.bias) {
      if (2 * thread < kTileColumns) bias_words()[thread] = bias_;
      if constexpr (!Traits::kStaged) bar_sync(barrier_, 128);
    }
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
        // The buffer's copies of store_buffers chunks ago have been read; the bias is in shared memory.
        if (issuing_warp_ && elect()) wait_for_staging();
        bar_sync(barrier_, 128);
      }
      Fragment<kColumns / 2> narrow[Traits::kExchanges ? kBlocks : 1];
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        Fragment<kColumns> pre;
        load(pre, first, block);
#pragma unroll
        for (int j = 0; j < kColumns / 8; ++j) {
          float2 bias = {0.0f, 0.0f};
          if constexpr (C.bias) {
            const uint32_t pair = bias_words()[((kTransposed ? 0 : first) + chunk.fragment_column(j, 0)) / 2];
            bias = {bf16_low(pair), bf16_high(pair)};
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) pre.v[j][i] += i % 2 == 0 ? bias.x : bias.y;
        }
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
        // Staging and, before a tile's first chunk, the bias have brought all warps together since the last exchange.
        store_exchanged(narrow, chunk, !Traits::kStaged && (first > 0 || !C.bias));
      }
      if constexpr (Traits::kStaged) {
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
        bar_sync(barrier_, 128);
        if (issuing_warp_ && elect()) issue(chunk);
        if constexpr (C.store_buffers == 2) buffer_ ^= 1;
      }
    }
    // All have read the bias before the next tile's takes its place.
    if constexpr (C.bias && !Traits::kStaged && !meets_between_tiles(C)) bar_sync(barrier_, 128);
  }

  // Before the block may end: its shared memory has been read.
  MOXIE_DEVICE void finish() {
    if constexpr (Traits::kStaged) {
      if (issuing_warp_ && elect()) cuda::ptx::cp_async_bulk_wait_group_read(cuda::ptx::n32_t<0>{});
    }
  }

 private:
  static MOXIE_DEVICE void wait_for_staging() {
    cuda::ptx::cp_async_bulk_wait_group_read(cuda::ptx::n32_t<C.store_buffers - 1>{});
  }

  MOXIE_DEVICE uint32_t* bias_words() const {
    return reinterpret_cast<uint32_t*>(shared_ + Traits::kShared.bias + warp_group_ * kTileColumns * 2);
  }

  // Column of the product that the accumulator's column `first` is.
  static MOXIE_DEVICE int32_t column_of(const Tile& tile, int32_t first) {
    if constexpr (has_half_group(C)) {
      return first < whole_groups(C.block_n)
                 ? whole_groups_column(tile.column) + first
                 : half_group_column(C.block_n, tile.column) + first - whole_groups(C.block_n);
    } else {
      return tile.column + first;
    }
  }

  // The bias of columns 2 thread and 2 thread + 1 of the tile as a pair of bf16; 0 past the end.
  MOXIE_DEVICE uint32_t load_bias(const Tile& tile) const {
    const uint16_t* bias;
    if constexpr (C.grouping == Grouping::Pointers) {
      bias = static_cast<const uint16_t*>(gemm_.arrays.bias[tile.group]);
      if (bias == nullptr) return 0;
    } else {
      bias = static_cast<const uint16_t*>(gemm_.bias) + tile.group * gemm_.bias_stride;
    }
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

  MOXIE_DEVICE Fragment<kGated ? kColumns / 2 : kColumns> activate(const Fragment<kColumns>& pre) const {
    const ActivationOf<C.activation> activation(gemm_);
    Fragment<kGated ? kColumns / 2 : kColumns> out;
    if constexpr (kGated) {
      constexpr int kGate = C.gate == GateLayout::SplitUpFirst ? 1 : 0;
#pragma unroll
      for (int q = 0; q < kColumns / 16; ++q) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out.v[q][i] = activation(pre.v[2 * q + kGate][i], pre.v[2 * q + 1 - kGate][i]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out.v[j][i] = activation(pre.v[j][i]);
      }
    }
    return out;
  }

  // Each warp gives half of its 16 columns' rows to its neighbour, the only ones where there are 16 to the left one,
  // and gets the columns beside the rows that it keeps. meet: nothing else says that the last exchange is over.
  template <int kWidth>
  MOXIE_DEVICE void store_exchanged(const Fragment<kWidth> (&own)[kBlocks], const Chunk& chunk, bool meet) {
    static_assert(kWidth == 16 && kBlocks <= 2);
    const int warp = chunk.warp(), lane = chunk.thread % 32;
    const bool right = warp % 2 != 0;
    const int barrier = kExchangeBarrier + warp / 2;
    float* const buffer = reinterpret_cast<float*>(shared_ + Traits::kShared.exchange);
    if (meet) bar_sync(barrier, 64);  // the neighbour has read what lay there before
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

  // One thread: everything of the chunk in one bulk group.
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

  // function(sink, map in shared memory, slot in use) for every sink with per-group maps.
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

  // Rewrites the sinks' maps for a new group. Every group that came here issued at least one chunk, and at most the
  // last store_buffers chunks are in flight: with two, after a wait, at most one, which uses the other slot.
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
  uint32_t bias_ = 0;
  int buffer_ = 0;
  int slot_ = 1;
  int32_t mapped_group_ = -1;
  uint32_t described_ = 0;  // of the issuing thread: which sinks' maps are valid for the group
};

}  // namespace moxie::kernel
