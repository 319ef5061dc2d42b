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
  int block_m = 128;       // rows of a block's tile: cooperative 128 or 256, ping-pong 64 or 128 (per warp group)
  int block_n = 128;       // columns of a tile: 64 to 256 in steps of 32
  int block_k = 64;        // one 128-byte swizzle row of bf16
  int stages = 4;          // depth of the operand ring
  int cluster = 1;         // 1 or 2 blocks
  Multicast multicast = Multicast::None;  // A: the cluster spans two tile columns; B: two tile rows
  Activation activation = Activation::None;
  GateLayout gate = GateLayout::Interleaved;
  bool bias = false;
  int store_buffers = 1;   // staging buffers of each sink and warp group: 1 or 2
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
  int staging_bytes = 0;      // per warp group and buffer, a multiple of 1024; 0 when it stores directly
  bool tensor_map = false;    // stores through a tensor map (rewritten per group where outputs_need_group_maps)
};

// Group g of Grouping::Pointers, all arrays in device memory, one entry a group.
struct GroupArrays {
  const void* const* a = nullptr;
  const void* const* b = nullptr;
  const void* const* bias = nullptr;
  const int64_t* lda = nullptr;   // elements
  const int64_t* ldb = nullptr;   // elements
  const int32_t* sizes = nullptr; // [groups][3]: M_g, N_g, K_g
};

// First argument of every Hopper kernel.
struct GemmParams {
  TensorMap a;             // the map itself, or the template that is rewritten per group
  TensorMap b;
  int32_t groups = 1;
  int32_t m = 0;           // rows: all of A (Dense, Offsets, RowGroups), of one group (Batched), the most of any group (Masked, Pointers)
  int32_t n = 0;           // columns of the product, before a gate halves them (Pointers: the most of any group)
  int32_t k = 0;           // (Pointers: the most of any group)
  int32_t raster_panel = 8;  // tile columns walked together so that B stays in L2
  float alpha = 1.702f;
  float limit = 7.0f;
  const int32_t* sizes = nullptr;  // Offsets: ends [groups]; RowGroups: group of each row [m]; Masked: rows [groups]
  const void* bias = nullptr;      // bf16 [groups][n], or null
  int64_t bias_stride = 0;         // elements between groups
  GroupArrays arrays;              // Pointers only
  uint8_t* workspace = nullptr;    // per-group maps: see workspace_maps
};

// Argument of a standard output sink.
struct StoreParams {
  TensorMap map;                        // the map itself, or the template
  void* base = nullptr;                 // Offsets, Masked: first element
  int64_t ld = 0;                       // elements between rows
  int64_t group_stride = 0;             // Masked: elements between groups
  void* const* pointers = nullptr;      // Pointers: first element of each group
  const int64_t* lds = nullptr;         // Pointers: elements between rows of each group
};

// 128-byte maps in global memory per block: kMapSlots for A and B each, and for each mapped sink and warp group.
constexpr int workspace_maps(const HopperConfig& c, int mapped_sinks) {
  return kMapSlots * ((operands_need_group_maps(c.grouping) ? 2 : 0) +
                      (outputs_need_group_maps(c.grouping) ? kConsumerWarpGroups * mapped_sinks : 0));
}

}  // namespace kernel
}  // namespace moxie
