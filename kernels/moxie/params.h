// The contract between host and device: the compile-time configuration of a kernel, its budget of shared and tensor
// memory, and the structures passed as kernel arguments. Compiled by the host compiler and by NVRTC.
#pragma once
#include "moxie/types.h"

namespace moxie {
namespace kernel {

// A 128-byte tensor map (CUtensorMap).
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

// Everything a Hopper kernel fixes at compile time except its sinks.
struct HopperConfig {
  WarpSchedule schedule = WarpSchedule::Cooperative;
  Grouping grouping = Grouping::Dense;
  int block_m = 128;  // rows of a block's tile: cooperative 128 or 256, ping-pong 64 or 128 (per warp group), with
                      // few_rows also 8
  int block_n = 128;  // columns of a tile: 64 to 256 in steps of 32
  int block_k = 64;   // one 128-byte swizzle row of bf16
  int stages = 4;     // depth of the operand ring
  int cluster = 1;    // 1 or 2 blocks
  Multicast multicast =
      Multicast::None;  // A: the cluster spans two tile columns; B: two tile rows; Either: one or the other
  Activation activation = Activation::None;
  GateLayout gate = GateLayout::Interleaved;
  bool bias = false;
  bool quantized = false;  // an output leaves with scales (epilogue/quantize.cuh)
  int store_buffers = 1;   // staging buffers of each sink and warp group: 1 or 2
  int epilogue_n =
      64;  // columns of the accumulator that the epilogue handles at once: 32, or 64 if they divide block_n
  bool few_rows = false;  // groups have about a tile of rows: those that are not there are not loaded, and B, read
                          // once, leaves L2 first
};

// Everything a Blackwell kernel fixes at compile time except its sinks.
struct BlackwellConfig {
  OperandFormat format = OperandFormat::Mxfp4;
  Grouping grouping = Grouping::Dense;
  bool swap_ab = false;  // B takes the side of the tensor cores that has 128 rows: for groups of few rows
  // Columns of the accumulator. Those of a tile: 32 to 256 in steps of 32; with scales on one block without a gate also
  // 16, 48, ... With swap_ab its rows: 16, 32, 64, 128 or 256.
  int block_n = 128;
  int stages = 4;        // depth of the operand ring
  int cluster = 1;       // 1: a block computes 128 rows; 2: a pair of blocks 256, each loading half of B's tile. With
                         // swap_ab: 128 or 256 columns, half of A's tile
  int accumulators = 2;  // tiles in tensor memory: with 2, one is stored while the next is computed
  TileSource scheduling = TileSource::Static;
  Activation activation = Activation::None;
  GateLayout gate = GateLayout::Interleaved;
  bool bias = false;
  bool quantized = false;  // an output leaves with scales (epilogue/quantize.cuh)
  int store_buffers = 1;   // staging buffers of each sink: 1 or 2
};

constexpr int kConsumerWarpGroups = 2;
constexpr int kThreads = (kConsumerWarpGroups + 1) * 128;  // warp group 0 is the producer
constexpr int kPartRows = 16;
constexpr int kMapSlots = 2;  // alternating copies of every per-group tensor map

// A and B change their tensor map from group to group only when each group has pointers of its own,
// or K is divided among the groups.
constexpr bool operands_need_group_maps(Grouping g) { return g == Grouping::Pointers || g == Grouping::KGroups; }
// A's rows that are not there are left out in parts of kPartRows; a tile of 8 rows has no parts.
constexpr bool loads_in_parts(const HopperConfig& c) {
  return c.few_rows && !operands_need_group_maps(c.grouping) && c.block_m > kPartRows;
}
// Outputs are clipped at the end of each group where groups are not aligned to tiles.
constexpr bool outputs_need_group_maps(Grouping g) {
  return g == Grouping::Pointers || g == Grouping::Offsets || g == Grouping::Masked;
}

template <class Config>
constexpr bool gate_is_split(const Config& c) {
  return is_gated(c.activation) && c.gate != GateLayout::Interleaved;
}
// Scales cannot be gathered from both halves of N, so a split gate takes two products there, with rows of B's first
// half and with those of the second; they stand side by side in the accumulator.
constexpr int products(const HopperConfig&) { return 1; }
constexpr int products(const BlackwellConfig& c) { return has_scales(c.format) && gate_is_split(c) ? 2 : 1; }

// Units of work are two rows of tiles high, but for a group's last.
constexpr bool pairs_rows(const HopperConfig& c) { return c.multicast == Multicast::Either; }
constexpr bool pairs_rows(const BlackwellConfig&) { return false; }

// Kernels for groups of a tile of rows or little more, whose blocks have few tiles each.
constexpr bool expects_few_rows(const HopperConfig& c) { return c.few_rows; }
constexpr bool expects_few_rows(const BlackwellConfig& c) { return c.swap_ab; }

// Outputs have a dimension of groups.
constexpr bool outputs_are_stacked(Grouping g) { return g == Grouping::Batched || g == Grouping::KGroups; }
// B has none: there is one, or every group's map points to its own.
constexpr bool has_one_b(Grouping g) {
  return g == Grouping::Dense || g == Grouping::Pointers || g == Grouping::KGroups;
}
// Every group has as many tiles of scales as its own K needs.
constexpr bool has_flat_scales(Grouping g) { return g == Grouping::Pointers || g == Grouping::KGroups; }

// Whether the accumulator's rows are the product's columns.
constexpr bool is_transposed(const HopperConfig&) { return false; }
constexpr bool is_transposed(const BlackwellConfig& c) { return c.swap_ab; }

// Columns of the product that the epilogue handles at once; those that each of its warps has a fragment of.
constexpr int epilogue_columns(int block_n) { return block_n % 64 == 0 ? 64 : 32; }
constexpr int epilogue_columns(const HopperConfig& c) { return c.block_n % c.epilogue_n == 0 ? c.epilogue_n : 32; }
constexpr int epilogue_columns(const BlackwellConfig& c) {
  if (c.swap_ab) return 128 * products(c);
  return c.block_n % 32 != 0 ? 16 : epilogue_columns(c.block_n);
}
template <class Config>
constexpr int fragment_columns(const Config& c) {
  return is_transposed(c) ? 32 * products(c) : epilogue_columns(c);  // a warp reaches 32 rows of the accumulator
}

// A tile of Blackwell whose width is no multiple of 32 begins at one only every other time, but the scales of its
// columns must stand at lane (column % 32) of tensor memory. So the accumulator holds the whole groups of 32 first, and
// then the 16 columns that are left: those before the groups where the tile does not begin at a multiple of 32, else
// those after.
constexpr bool has_half_group(const HopperConfig&) { return false; }
constexpr bool has_half_group(const BlackwellConfig& c) {
  return has_scales(c.format) && c.block_n % 32 != 0 && !c.swap_ab;
}
constexpr int whole_groups(int block_n) { return block_n / 32 * 32; }  // columns
constexpr int whole_groups_column(int column) { return (column + 31) / 32 * 32; }
constexpr int half_group_column(int block_n, int column) {
  return column % 32 != 0 ? column : column + whole_groups(block_n);
}

// With swapped operands a warp has 16 columns of a gated product. Where a sink wants 32, neighbours exchange halves.
constexpr bool exchanges_fragments(const HopperConfig&, const SinkNeeds*, int) { return false; }
constexpr bool exchanges_fragments(const BlackwellConfig& c, const SinkNeeds* needs, int count) {
  bool narrow = true;
  for (int i = 0; i < count; ++i) narrow = narrow && needs[i].narrow;
  return c.swap_ab && is_gated(c.activation) && products(c) == 1 && !narrow;
}
constexpr int kExchangeBytes = 128 * 8 * 4;  // a fragment of 16 columns a thread

// Group g of Grouping::Pointers, all arrays in device memory, one entry a group.
struct GroupArrays {
  const void* const* a = nullptr;
  const void* const* b = nullptr;
  const void* const* bias = nullptr;
  const int64_t* lda = nullptr;    // elements
  const int64_t* ldb = nullptr;    // elements
  const int32_t* sizes = nullptr;  // [groups][3]: M_g, N_g, K_g
};

// First argument of every kernel.
struct GemmParams {
  TensorMap a;  // the map itself, or the template that is rewritten per group
  TensorMap b;
  TensorMap a_part;  // loads_in_parts: A again, in boxes of kPartRows rows
  int32_t groups = 1;
  int32_t m = 0;  // rows: all of A (Dense, Offsets, RowGroups, KGroups), of one group (Batched), the most of any group
                  // (Masked, Pointers)
  int32_t n = 0;  // columns of the product, before a gate halves them (Pointers: the most of any group)
  int32_t k = 0;  // (Pointers: the most of any group; KGroups: of all groups together)
  int32_t weights_ready = 0;  // Hopper, 1: B and sizes may be read before griddepcontrol.wait
  int32_t raster_panel = 8;   // columns of units (cluster_columns) walked together so that B stays in L2
  float alpha = 1.702f;
  float limit = 7.0f;
  const int32_t* sizes =
      nullptr;  // Offsets, KGroups: ends [groups]; RowGroups: group of each row [m]; Masked: rows [groups]
  const void* bias = nullptr;    // bf16 [groups][n], 16-byte aligned, or null
  int64_t bias_stride = 0;       // elements between groups, a multiple of 8
  GroupArrays arrays;            // Pointers only
  uint8_t* workspace = nullptr;  // per-group maps: see workspace_maps
  const void* a_base = nullptr;  // KGroups: A and B themselves
  const void* b_base = nullptr;
  const void* const* a_scale_pointers = nullptr;  // Pointers with scales: of each group
  const void* const* b_scale_pointers = nullptr;
};

// Second argument of a Blackwell kernel whose operands have scales.
struct ScaleParams {
  TensorMap a;
  TensorMap b;
  TensorMap half_group;         // has_half_group: b's scales again
  TensorMap half_group_values;  // has_half_group: B itself
  // Nvfp4: factors of the product, in device memory, or null for 1.
  const float* a_tensor_scale = nullptr;
  const float* b_tensor_scale = nullptr;  // [groups]
};

// Rows whose scales lie in tiles: every group's begin with a tile of their own.
struct ScaleRows {
  const int32_t* offsets = nullptr;  // ends of the groups, or null
  int32_t groups = 1;
  int32_t rows = 0;  // of each group; with offsets of all together
};

// Argument of the kernel that blocks scales (kernels/moxie/block_scales.cuh); see moxie/scales.h.
enum class ScaleConversion : int { Block, Unblock, BlockFloats };
struct BlockScalesParams {
  ScaleConversion conversion = ScaleConversion::Block;
  const void* from = nullptr;
  uint8_t* to = nullptr;
  ScaleRows rows;
  int32_t columns = 0;  // scales of a row
  int32_t along_k = 0;  // rows.offsets are ends along K, in elements
  int32_t k = 0, block = kScaleBlock;
};
constexpr int kBlockScalesThreads = kScaleTileRows;  // a block has the tiles of 128 rows, a thread those of one

// Argument of the kernels of kernels/moxie/quantize.cuh; see moxie/quantize.h. `from` are the values to be quantised,
// or the elements to be dequantised.
struct QuantizeParams {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t ld_from = 0, ld_to = 0;  // elements
  uint8_t* scales = nullptr;
  float* tensor_scale = nullptr;  // Nvfp4
  ScaleRows rows;
  int32_t columns = 0;  // elements of a row
  int32_t blocked = 1;  // how the scales lie
};
constexpr int kQuantizeThreads = 256;

// Argument of a standard output sink.
struct StoreParams {
  TensorMap map;                    // the map itself, or the template; not used with stores_directly
  void* base = nullptr;             // first element
  int64_t ld = 0;                   // elements between rows
  int64_t group_stride = 0;         // Batched, Masked: elements between groups
  void* const* pointers = nullptr;  // Pointers: first element of each group
  const int64_t* lds = nullptr;     // Pointers: elements between rows of each group
};

// Argument of a quantised output sink, which stores without a tensor map.
struct QuantizedStoreParams {
  uint8_t* base = nullptr;
  int64_t ld = 0;            // elements between rows
  int64_t group_stride = 0;  // Batched, Masked, KGroups: elements between groups
  uint8_t* scales = nullptr;
  int64_t group_scales = 0;  // Batched, Masked, KGroups: bytes between groups
  // Pointers: of each group.
  void* const* pointers = nullptr;
  const int64_t* lds = nullptr;
  void* const* scale_pointers = nullptr;
  const float* tensor_scale = nullptr;  // Nvfp4: one float, or null for 1
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
// GemmParams::a_part  with loads_in_parts: as a, box (64, kPartRows); else not used
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

// Blackwell. A and B as above with a_box_rows and b_box_rows of a BlackwellConfig; those of four bits are maps of bytes
// (uint8), each of two elements: K / 2 of them in place of K, 128 in a box row; strides are half as many bytes as
// elements.
// ScaleParams: 32-bit words of four scales, no swizzle; KT = ceil(K / scale_tile_k), T = stage_scale_tiles, MT and NT =
// ceil(rows of a group / 128)
//   a  Dense, RowGroups  rank 3  dims (128, KT, MT)     strides (512, 512 KT)           box (128, T, 1)
//      Offsets           rank 3  the same with MT = the most tiles that all groups can have: M / 128 + groups
//      Batched, Masked   rank 4  dims (128, KT, MT, G)  strides (512, 512 KT, 512 KT MT) box (128, T, 1, 1)
//      swap_ab           rank 4  dims (4, 32, KT, MT)   strides (16, 512, 512 KT)       box (4, 32, T, a_scale_tiles)
//        Batched, Masked rank 5  one dimension G more, stride 512 KT MT, box 1
//      (a tile begins at any row: the box starts at any lane and any word of it)
//   b  not gated, split  rank 4  dims (128, KT, NT, G)  strides (512, 512 KT, 512 KT NT) box (128, T, b_scale_tiles, 1)
//      gated, interleaved
//                        rank 5  dims (4, 8, 2, 2, KT NT G) strides (32, 16, 256, 512)  box (4, 8, 2, 2, T)
//   half_group           rank 5  dims (4, 32, KT, NT, G) strides (16, 512, 512 KT, 512 KT NT) box (4, 32, T, 1, 1)
//   half_group_values    as GemmParams::b with a box of 16 rows
//   KGroups, Pointers: all of a group's tiles in a row (KGroups: of all groups)
//   a, b not gated, half_group
//                        rank 3  dims (4, 32, tiles)    strides (16, 512)               box (4, 32, T)
//   b gated              as above with that many tiles
//   The maps of A and B (KGroups: their address and K; Pointers: all) and, for Pointers, of the scales (address and
//   tiles) are rewritten per group.
//   (the gated map puts the scales of rows 0, 2, 4, ... of 16 before those of 1, 3, 5, ..., as b does with the rows)
// Where there are two products the map of B is the one without a gate.

// Rows of the A and B boxes: each block of a cluster loads half of the operand that both use.
constexpr bool may_share_a(const HopperConfig& c) {
  return c.multicast == Multicast::A || c.multicast == Multicast::Either;
}
constexpr bool may_share_b(const HopperConfig& c) {
  return c.multicast == Multicast::B || c.multicast == Multicast::Either;
}
constexpr int a_box_rows(const HopperConfig& c) { return may_share_a(c) ? c.block_m / 2 : c.block_m; }
constexpr int b_box_rows(const HopperConfig& c) { return may_share_b(c) ? c.block_n / 2 : c.block_n; }
// Rows and columns that the blocks of a cluster cover together; with Either, where they share A. RowGroups: every group
// starts at a multiple of cluster_rows.
constexpr int cluster_rows(const HopperConfig& c) { return c.multicast == Multicast::B ? 2 * c.block_m : c.block_m; }
constexpr int cluster_columns(const HopperConfig& c) { return may_share_a(c) ? 2 * c.block_n : c.block_n; }
constexpr int a_box_rows(const BlackwellConfig& c) { return c.swap_ab ? c.block_n / c.cluster : 128; }
constexpr int b_stage_rows(const BlackwellConfig& c) { return c.swap_ab ? 128 * products(c) : c.block_n / c.cluster; }
// 16 stands for none.
constexpr int b_box_rows(const BlackwellConfig& c) {
  if (!has_half_group(c)) return b_stage_rows(c) / products(c);
  return c.block_n > 16 ? whole_groups(c.block_n) : 16;
}
constexpr int cluster_rows(const BlackwellConfig& c) { return c.swap_ab ? c.block_n : 128 * c.cluster; }
constexpr int cluster_columns(const BlackwellConfig& c) {
  return c.swap_ab ? 128 * products(c) * c.cluster : c.block_n;
}
// From one block of a cluster to the next.
constexpr int rank_rows(const HopperConfig& c) { return c.multicast == Multicast::B ? c.block_m : 0; }
constexpr int rank_columns(const HopperConfig& c) { return c.multicast == Multicast::A ? c.block_n : 0; }
constexpr int rank_rows(const BlackwellConfig& c) { return c.cluster == 2 && !c.swap_ab ? 128 : 0; }
constexpr int rank_columns(const BlackwellConfig& c) { return c.cluster == 2 && c.swap_ab ? 128 * products(c) : 0; }
// Columns of the product in a block's tile.
constexpr int block_columns(const HopperConfig& c) { return c.block_n; }
constexpr int block_columns(const BlackwellConfig& c) { return c.swap_ab ? 128 * products(c) : c.block_n; }
// Warp groups that run the epilogue.
constexpr int epilogue_warp_groups(const HopperConfig&) { return kConsumerWarpGroups; }
constexpr int epilogue_warp_groups(const BlackwellConfig&) { return 1; }
// Whether the warps of an epilogue's warp group meet between two tiles: where they wait for their turn.
constexpr bool meets_between_tiles(const HopperConfig& c) { return c.schedule == WarpSchedule::PingPong; }
constexpr bool meets_between_tiles(const BlackwellConfig&) { return false; }
constexpr bool has_scales(const HopperConfig&) { return false; }
constexpr bool has_scales(const BlackwellConfig& c) { return has_scales(c.format); }
constexpr int k_unit(const HopperConfig&) { return 8; }
constexpr int k_unit(const BlackwellConfig& c) { return k_unit(c.format); }
constexpr int scale_tile_k(const BlackwellConfig& c) { return scale_tile_k(c.format); }
constexpr bool has_tensor_scales(const BlackwellConfig& c) { return c.format == OperandFormat::Nvfp4; }

// Rows of one consumer warp group's accumulators: wgmma has no fewer than 64, of which a tile of 8 uses 8.
constexpr int warp_group_rows(const HopperConfig& c) {
  if (c.block_m < 64) return 64;
  return c.schedule == WarpSchedule::Cooperative ? c.block_m / kConsumerWarpGroups : c.block_m;
}
constexpr int warp_group_rows(const BlackwellConfig& c) { return c.swap_ab ? c.block_n : 128; }
// Those that the epilogue handles at once.
template <class Config>
constexpr int epilogue_rows(const Config& c) {
  return is_transposed(c) && warp_group_rows(c) > 32 ? 32 : warp_group_rows(c);
}

// What one tensor copy of a standard sink moves, and how many it takes for epilogue_rows x epilogue_columns.
struct StoreBox {
  int columns;  // elements of a box row
  int rows;
  int halves;         // 2 for `pre` of a split gate, else 1
  int swizzle;        // bytes: 32, 64 or 128, also the bytes of a box row
  int copies;         // boxes side by side
  int staging_bytes;  // shared memory of all of them
};
template <class Config>
constexpr StoreBox store_box(const Config& c, bool pre, DataType type) {
  const int halves = pre && gate_is_split(c) ? 2 : 1;
  const int total = !pre && is_gated(c.activation) ? epilogue_columns(c) / 2 : epilogue_columns(c);
  const int width = total / halves;
  const int columns = width * size_of(type) > 128 ? 128 / size_of(type) : width;
  return {columns,         epilogue_rows(c),
          halves,          columns * size_of(type),
          width / columns, total * size_of(type) * epilogue_rows(c)};
}
// Whether standard sinks store from registers. Where few rows exist this is shorter than the way through shared memory
// and, with groups by offsets or masked, a rewritten tensor map: it decides when a kernel of one tile a block ends.
constexpr bool stores_directly(const HopperConfig& c) { return c.few_rows && c.block_m <= 64; }
constexpr bool stores_directly(const BlackwellConfig&) { return false; }
template <class Config>
constexpr SinkNeeds store_needs(const Config& c, bool pre, DataType type) {
  if (is_quantized(type)) return {};
  if (stores_directly(c)) return {0, false, true};
  return {store_box(c, pre, type).staging_bytes, true, true};
}

// Maps of operands that change from group to group: A, B, B's half group; Pointers: the scales of A and of B.
constexpr int operand_maps(const HopperConfig& c) { return operands_need_group_maps(c.grouping) ? 2 : 0; }
constexpr int operand_maps(const BlackwellConfig& c) {
  if (!operands_need_group_maps(c.grouping)) return 0;
  return 2 + (has_half_group(c) ? 1 : 0) + (has_scales(c) && c.grouping == Grouping::Pointers ? 2 : 0);
}

// 128-byte maps in global memory per block (block i's begin at workspace + i * 128 * workspace_maps, workspace 128-byte
// aligned): kMapSlots for each of operand_maps, and for each mapped sink and warp group.
template <class Config>
constexpr int workspace_maps(const Config& c, int mapped_sinks) {
  return kMapSlots *
         (operand_maps(c) + (outputs_need_group_maps(c.grouping) ? epilogue_warp_groups(c) * mapped_sinks : 0));
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

// Blackwell: a stage holds 128 bytes of every row, and the tiles of scales along them.
constexpr int stage_elements(const BlackwellConfig& c) { return 128 * 8 / bits_of(c.format); }
constexpr int stage_scale_tiles(const BlackwellConfig& c) {
  return has_scales(c) ? stage_elements(c) / scale_tile_k(c.format) : 0;
}
constexpr int kBlackwellThreads = 256;  // warps 0 to 3: load, multiply, tensor memory, schedule; warps 4 to 7: epilogue

// TileSource::LaunchControl: answers in shared memory. One for the tile that is loaded while another is multiplied and
// a third stored.
constexpr int launch_answers(const BlackwellConfig& c) { return c.scheduling == TileSource::LaunchControl ? 3 : 0; }
constexpr int kLaunchAnswerBytes = 16;

constexpr int greatest_divisor(int a, int b) { return b == 0 ? a : greatest_divisor(b, a % b); }
// Tiles of 128 rows that a tile's whole groups can touch, for each product: they begin at any multiple of block_n, or
// of 32.
constexpr int b_scale_tiles(const BlackwellConfig& c) {
  if (!has_scales(c)) return 0;
  if (products(c) == 2)
    return (kScaleTileRows - 32 + (c.swap_ab ? 128 : c.block_n / 2) + kScaleTileRows - 1) / kScaleTileRows;
  if (c.swap_ab) return 1;
  const int step = greatest_divisor(has_half_group(c) ? 32 : c.block_n, kScaleTileRows);
  const int columns = whole_groups(c.block_n);
  return columns == 0 ? 0 : (kScaleTileRows - step + columns + kScaleTileRows - 1) / kScaleTileRows;
}
// In a stage, for each of its tiles along K.
constexpr int b_stage_scale_tiles(const BlackwellConfig& c) {
  return b_scale_tiles(c) * products(c) + (has_half_group(c) ? 1 : 0);
}
constexpr int a_scale_tiles(const BlackwellConfig& c) {
  if (!has_scales(c)) return 0;
  return c.swap_ab && c.block_n > kScaleTileRows ? c.block_n / kScaleTileRows : 1;
}

// Tensor memory: columns from its first, in the order they lie. A tile of scales takes 4. That of a half group stands
// behind B's others.
struct TensorLayout {
  int b_scales;  // after the accumulators, which begin at 0
  int a_scales;
  int columns;  // of everything
};
constexpr int kTensorColumns = 512;
constexpr int a_scale_columns(const BlackwellConfig& c) { return 4 * a_scale_tiles(c); }
constexpr int b_scale_columns(const BlackwellConfig& c) {
  return 4 * (b_scale_tiles(c) * products(c) + (has_half_group(c) ? 1 : 0));
}
constexpr int accumulator_columns(const BlackwellConfig& c) { return c.swap_ab ? products(c) * c.block_n : c.block_n; }
constexpr TensorLayout tensor_layout(const BlackwellConfig& c) {
  TensorLayout at{};
  at.b_scales = c.accumulators * accumulator_columns(c);
  at.a_scales = at.b_scales + stage_scale_tiles(c) * b_scale_columns(c);
  at.columns = at.a_scales + stage_scale_tiles(c) * a_scale_columns(c);
  return at;
}
// What is allocated: a power of two, 32 at least.
constexpr int tensor_columns(const BlackwellConfig& c) {
  int columns = 32;
  while (columns < tensor_layout(c).columns) columns *= 2;
  return columns;
}

struct BlackwellLayout {
  int a;               // ring of A tiles: stages x a_box_rows x 128 bytes
  int b;               // ring of B tiles: stages x b_stage_rows x 128 bytes
  int a_scales;        // stages x a_scale_tiles x stage_scale_tiles x 512 bytes
  int b_scales;        // stages x b_stage_scale_tiles x stage_scale_tiles x 512 bytes
  int staging;         // sink after sink, each store_buffers x staging_bytes
  int sink_maps;       // mapped sink after mapped sink, 128 bytes each
  int exchange;        // exchanges_fragments: kExchangeBytes
  int operand_maps;    // per-group maps of the operands under construction, 128 bytes each
  int bias;            // block_columns bf16
  int launch_answers;  // launch_answers x 16 bytes
  int full;            // stages mbarriers
  int empty;           // stages mbarriers
  int computed;        // accumulators mbarriers: the product is there
  int stored;          // accumulators mbarriers: it has been read
  int answered;        // launch_answers mbarriers: the answer is there
  int taken;           // launch_answers mbarriers: every warp has read it
  int tensor_address;  // where the allocation's address is written
  int bytes;           // of everything
};
constexpr BlackwellLayout shared_layout(const BlackwellConfig& c, const SinkNeeds* needs, int count) {
  BlackwellLayout at{};
  at.b = at.a + c.stages * a_box_rows(c) * 128;
  at.a_scales = at.b + c.stages * b_stage_rows(c) * 128;
  at.b_scales = at.a_scales + c.stages * a_scale_tiles(c) * stage_scale_tiles(c) * kScaleTileBytes;
  at.staging = at.b_scales + c.stages * b_stage_scale_tiles(c) * stage_scale_tiles(c) * kScaleTileBytes;
  at.sink_maps = at.staging;
  int mapped = 0;
  for (int i = 0; i < count; ++i) {
    at.sink_maps += c.store_buffers * needs[i].staging_bytes;
    mapped += needs[i].tensor_map && outputs_need_group_maps(c.grouping) ? 1 : 0;
  }
  at.exchange = at.sink_maps + mapped * 128;
  at.operand_maps = at.exchange + (exchanges_fragments(c, needs, count) ? kExchangeBytes : 0);
  at.bias = at.operand_maps + operand_maps(c) * 128;
  at.launch_answers = at.bias + (c.bias ? block_columns(c) * 2 : 0);
  at.full = at.launch_answers + launch_answers(c) * kLaunchAnswerBytes;
  at.empty = at.full + c.stages * 8;
  at.computed = at.empty + c.stages * 8;
  at.stored = at.computed + c.accumulators * 8;
  at.answered = at.stored + c.accumulators * 8;
  at.taken = at.answered + launch_answers(c) * 8;
  at.tensor_address = at.taken + launch_answers(c) * 8;
  at.bytes = at.tensor_address + 16;
  return at;
}
constexpr int shared_bytes(const BlackwellConfig& c, const SinkNeeds* needs, int count) {
  return shared_layout(c, needs, count).bytes;
}

}  // namespace kernel
}  // namespace moxie
