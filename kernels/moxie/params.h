// The contract between host and device: names of the variants, the compile-time configuration of a
// Hopper kernel, its shared-memory budget, and the structures passed as kernel arguments.
// Compiled by the host compiler and by NVRTC; includes nothing but fixed-width integers.
#pragma once
#ifdef __CUDACC_RTC__
#include <cuda/std/cstdint>
using cuda::std::int32_t;
using cuda::std::int64_t;
using cuda::std::uint32_t;
using cuda::std::uint64_t;
using cuda::std::uint8_t;
#else
#include <cstdint>
#endif

namespace moxie {

// How rows are divided into groups. What each one needs from the caller stands in moxie/gemm.h.
enum class Grouping : int { Dense, Batched, Offsets, RowGroups, Masked, Pointers };

// Applied to pre = A B^T + bias. The ones after Silu are gated: they halve the width.
enum class Activation : int {
  None,
  Relu,
  Relu2,
  GeluTanh,
  GeluErf,
  Silu,
  Swiglu,     // silu(gate) * up
  SwigluOai,  // min(gate, limit) * sigmoid(alpha * min(gate, limit)) * (clamp(up, -limit, limit) + 1)
  Geglu,      // gelu_tanh(gate) * up
  Reglu,      // relu(gate) * up
};
constexpr bool is_gated(Activation a) { return static_cast<int>(a) > static_cast<int>(Activation::Silu); }

// Where the gate and up columns of a gated product lie along N.
enum class GateLayout : int {
  Interleaved,   // columns 2i, 2i + 1 are gate, up
  Split,         // gate in the first N / 2 columns, up in the second
  SplitUpFirst,  // up in the first N / 2 columns, gate in the second
};

enum class DataType : int { Bf16, F32 };
constexpr int size_of(DataType t) { return t == DataType::Bf16 ? 2 : 4; }

enum class Schedule : int {
  Cooperative,  // two consumer warp groups share one tile
  PingPong,     // each consumer warp group has a tile of its own
};

// Which operand the two blocks of a cluster load together.
enum class Multicast : int { None, A, B };

namespace kernel {

// A 128-byte tensor map (CUtensorMap).
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

// Everything a Hopper kernel fixes at compile time except its sinks.
struct HopperConfig {
  Schedule schedule = Schedule::Cooperative;
  Grouping grouping = Grouping::Dense;
  int block_m = 128;  // rows of a block's tile: cooperative 128 or 256, ping-pong 64 or 128 (per warp group)
  int block_n = 128;  // columns of a tile: 64 to 256 in steps of 32
  int block_k = 64;   // one 128-byte swizzle row of bf16
  int stages = 4;     // depth of the operand ring
  int cluster = 1;    // 1 or 2 blocks
  Multicast multicast = Multicast::None;  // A: the cluster spans two tile columns; B: two tile rows
  Activation activation = Activation::None;
  GateLayout gate = GateLayout::Interleaved;
  bool bias = false;
  int store_buffers = 1;  // staging buffers of each sink and warp group: 1 or 2
};

constexpr int kConsumerWarpGroups = 2;
constexpr int kThreads = (kConsumerWarpGroups + 1) * 128;  // warp group 0 is the producer
constexpr int kMapSlots = 2;                               // alternating copies of every per-group tensor map

// A and B change their tensor map from group to group only when each group has pointers of its own.
constexpr bool operands_need_group_maps(Grouping g) { return g == Grouping::Pointers; }
// Outputs are clipped at the end of each group where groups are not aligned to tiles.
constexpr bool outputs_need_group_maps(Grouping g) {
  return g == Grouping::Pointers || g == Grouping::Offsets || g == Grouping::Masked;
}

// Columns of the accumulator that the epilogue handles at once.
constexpr int epilogue_columns(const HopperConfig& c) { return c.block_n % 64 == 0 ? 64 : 32; }

// What a sink asks of the kernel; each sink states it, the host repeats it in a SinkSpec (src/plan/plan.h).
struct SinkNeeds {
  int staging_bytes = 0;    // per warp group and buffer, a multiple of 1024; 0 when it stores directly
  bool tensor_map = false;  // stores through a tensor map (rewritten per group where outputs_need_group_maps)
};

// Group g of Grouping::Pointers, all arrays in device memory, one entry a group.
struct GroupArrays {
  const void* const* a = nullptr;
  const void* const* b = nullptr;
  const void* const* bias = nullptr;
  const int64_t* lda = nullptr;    // elements
  const int64_t* ldb = nullptr;    // elements
  const int32_t* sizes = nullptr;  // [groups][3]: M_g, N_g, K_g
};

// First argument of every Hopper kernel.
struct GemmParams {
  TensorMap a;  // the map itself, or the template that is rewritten per group
  TensorMap b;
  int32_t groups = 1;
  int32_t m = 0;  // rows: all of A (Dense, Offsets, RowGroups), of one group (Batched), the most of any group (Masked,
                  // Pointers)
  int32_t n = 0;  // columns of the product, before a gate halves them (Pointers: the most of any group)
  int32_t k = 0;  // (Pointers: the most of any group)
  int32_t raster_panel = 8;  // tile columns walked together so that B stays in L2
  float alpha = 1.702f;
  float limit = 7.0f;
  const int32_t* sizes = nullptr;  // Offsets: ends [groups]; RowGroups: group of each row [m]; Masked: rows [groups]
  const void* bias = nullptr;      // bf16 [groups][n], 16-byte aligned, or null
  int64_t bias_stride = 0;         // elements between groups, a multiple of 8
  GroupArrays arrays;              // Pointers only
  uint8_t* workspace = nullptr;    // per-group maps: see workspace_maps
};

// Argument of a standard output sink.
struct StoreParams {
  TensorMap map;                    // the map itself, or the template
  void* base = nullptr;             // Offsets, Masked: first element
  int64_t ld = 0;                   // elements between rows
  int64_t group_stride = 0;         // Masked: elements between groups
  void* const* pointers = nullptr;  // Pointers: first element of each group
  const int64_t* lds = nullptr;     // Pointers: elements between rows of each group
};

// Tensor maps.
//
// All are CU_TENSOR_MAP_INTERLEAVE_NONE, zero fill (OOB_FILL_NONE), element strides 1; dimensions innermost first,
// strides in bytes of dimensions 1, 2, ... A dimension that would be 0 is encoded as 1 (the kernel then copies
// nothing). lda, ldb, ld count elements and are multiples of 16 bytes; so are group strides. s = element size (bf16 2,
// f32 4).
//
// GemmParams::a   bf16, 128-byte swizzle
//   Dense, Offsets, RowGroups  rank 2  dims (K, M)     strides (2 lda)                box (64, a_box_rows)
//   Pointers                   rank 2  the same, as a template: address, dims and stride are rewritten per group;
//                                      encode any 16-byte aligned non-null address (workspace), dims and stride >= 1
//   Batched, Masked            rank 3  dims (K, M, G)  strides (2 lda, 2 group_stride) box (64, a_box_rows, 1)
// GemmParams::b   bf16, 128-byte swizzle; H = N / 2
//   not gated: Dense, Pointers rank 2  dims (K, N)     strides (2 ldb)                box (64, b_box_rows)
//              all others      rank 3  dims (K, N, G)  strides (2 ldb, 2 group_stride) box (64, b_box_rows, 1)
//   gated:     Dense, Pointers rank 4  dims (K, 8, 2, N / 16)                         box (64, 8, 2, b_box_rows / 16)
//                 Interleaved          strides (4 ldb, 2 ldb, 32 ldb)
//                 Split, SplitUpFirst  strides (2 ldb, 2 ldb H, 16 ldb)
//              all others      rank 5  one dimension G more, stride 2 group_stride, box 1
//   (shared memory then holds 8 rows of the first half, the 8 matching ones of the second, and so on; first = gate,
//   for SplitUpFirst first = up.) Pointers: a template as for a (with N_g, K_g and ldb of each group).
// StoreParams::map of a standard sink: store_box(config, pre, type) gives the box, swizzle its swizzle field
//   (32, 64 or 128 bytes); W = columns of the whole value: N, or N / 2 of a gated `out`
//   Dense, RowGroups           rank 2  dims (W, M)     strides (s ld)                 box (columns, rows)
//   Offsets, Masked, Pointers  rank 2  the same as a template: the address and M are rewritten, for Pointers also W
//                                      and ld. M any value >= 1; Pointers: as for a
//   Batched                    rank 3  dims (W, M, G)  strides (s ld, s group_stride)  box (columns, rows, 1)
//   box.halves == 2 (`pre` of a split gate): a dimension of the two halves follows the rows:
//                              rank 3  dims (H, M, 2)  strides (s ld, s H)            box (columns, rows, 2)
//   Batched                    rank 4  dims (H, M, 2, G) strides (s ld, s H, s group_stride) box (columns, rows, 2, 1)

constexpr bool gate_is_split(const HopperConfig& c) {
  return is_gated(c.activation) && c.gate != GateLayout::Interleaved;
}
// Rows of the A and B boxes: each block of a cluster loads half of the operand that both use.
constexpr int a_box_rows(const HopperConfig& c) { return c.multicast == Multicast::A ? c.block_m / 2 : c.block_m; }
constexpr int b_box_rows(const HopperConfig& c) { return c.multicast == Multicast::B ? c.block_n / 2 : c.block_n; }
// Rows and columns that the blocks of a cluster cover together. RowGroups: every group starts at a multiple of
// cluster_rows.
constexpr int cluster_rows(const HopperConfig& c) { return c.multicast == Multicast::B ? 2 * c.block_m : c.block_m; }
constexpr int cluster_columns(const HopperConfig& c) { return c.multicast == Multicast::A ? 2 * c.block_n : c.block_n; }
// Rows of one consumer warp group.
constexpr int warp_group_rows(const HopperConfig& c) {
  return c.schedule == Schedule::Cooperative ? c.block_m / kConsumerWarpGroups : c.block_m;
}

// What one tensor copy of a standard sink moves, and how many it takes for epilogue_columns of the accumulator.
struct StoreBox {
  int columns;  // elements of a box row
  int rows;
  int halves;         // 2 for `pre` of a split gate, else 1
  int swizzle;        // bytes: 32, 64 or 128, also the bytes of a box row
  int copies;         // boxes side by side
  int staging_bytes;  // shared memory of all of them
};
constexpr StoreBox store_box(const HopperConfig& c, bool pre, DataType type) {
  const int halves = pre && gate_is_split(c) ? 2 : 1;
  const int total = !pre && is_gated(c.activation) ? epilogue_columns(c) / 2 : epilogue_columns(c);
  const int width = total / halves;
  const int columns = width * size_of(type) > 128 ? 128 / size_of(type) : width;
  return {columns,         warp_group_rows(c),
          halves,          columns * size_of(type),
          width / columns, total * size_of(type) * warp_group_rows(c)};
}
constexpr SinkNeeds store_needs(const HopperConfig& c, bool pre, DataType type) {
  return {store_box(c, pre, type).staging_bytes, true};
}

// 128-byte maps in global memory per block (block i's begin at workspace + i * 128 * workspace_maps, workspace 128-byte
// aligned): kMapSlots for A and B each, and for each mapped sink and warp group.
constexpr int workspace_maps(const HopperConfig& c, int mapped_sinks) {
  return kMapSlots * ((operands_need_group_maps(c.grouping) ? 2 : 0) +
                      (outputs_need_group_maps(c.grouping) ? kConsumerWarpGroups * mapped_sinks : 0));
}

// Shared memory.
//
// Byte offsets from a base aligned to 1024, in the order they lie. The same function lays out the kernel.
struct SharedLayout {
  int a;             // ring of A tiles: stages x block_m x 128 bytes
  int b;             // ring of B tiles: stages x block_n x 128 bytes
  int staging;       // sink after sink, each kConsumerWarpGroups x store_buffers x staging_bytes
  int operand_maps;  // per-group maps of A and B under construction, 128 bytes each
  int sink_maps;     // mapped sink after mapped sink, each kConsumerWarpGroups x 128 bytes
  int bias;          // kConsumerWarpGroups x block_n bf16
  int full;          // stages mbarriers
  int empty;         // stages mbarriers
  int bytes;         // of everything
};
constexpr SharedLayout shared_layout(const HopperConfig& c, const SinkNeeds* needs, int count) {
  SharedLayout at{};
  at.b = at.a + c.stages * c.block_m * c.block_k * 2;
  at.staging = at.b + c.stages * c.block_n * c.block_k * 2;
  at.operand_maps = at.staging;
  int mapped = 0;
  for (int i = 0; i < count; ++i) {
    at.operand_maps += kConsumerWarpGroups * c.store_buffers * needs[i].staging_bytes;
    mapped += needs[i].tensor_map && outputs_need_group_maps(c.grouping) ? 1 : 0;
  }
  at.sink_maps = at.operand_maps + (operands_need_group_maps(c.grouping) ? 2 * 128 : 0);
  at.bias = at.sink_maps + mapped * kConsumerWarpGroups * 128;
  at.full = at.bias + (c.bias ? kConsumerWarpGroups * c.block_n * 2 : 0);
  at.empty = at.full + c.stages * 8;
  at.bytes = at.empty + c.stages * 8;
  return at;
}
constexpr int kMaxSharedBytes = 232448;
constexpr int shared_bytes(const HopperConfig& c, const SinkNeeds* needs, int count) {
  return shared_layout(c, needs, count).bytes;
}

}  // namespace kernel
}  // namespace moxie
