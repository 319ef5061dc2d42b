// SPDX-License-Identifier: Apache-2.0
// How a kernel lays out its stages, shared memory, tensor memory and workspace. Compiled by the host compiler and by
// NVRTC: the host computes the bytes of a launch and the boxes of its tensor maps with the functions that the kernel
// computes addresses with.
#pragma once
#include "moxie/config.h"

namespace moxie {
namespace kernel {

// ---- Stages ----

// A row of a stage is 128 bytes of K, under the 128-byte swizzle, which repeats every eight rows.
constexpr int kStageRowBytes = 128;
constexpr int kSwizzleRows = 8;
constexpr int kSwizzleBytes = kSwizzleRows * kStageRowBytes;  // tiles in shared memory are aligned to this
constexpr int kBarrierBytes = 8;                              // an mbarrier

// Rows of the boxes by which A and B are copied. Each block of a cluster loads half of the operand that both use.
constexpr int a_box_rows(const HopperConfig& c) { return may_share_a(c) ? c.block_m / 2 : c.block_m; }
constexpr int b_box_rows(const HopperConfig& c) { return may_share_b(c) ? c.block_n / 2 : c.block_n; }
constexpr int a_box_rows(const BlackwellConfig& c) { return c.swap_ab ? c.block_n / c.cluster : 128; }
// Rows of B in a block's stage: those of both halves of a split gate, and those of the half group.
constexpr int b_stage_rows(const BlackwellConfig& c) {
  return c.swap_ab ? 128 * gate_halves(c) : c.block_n / c.cluster;
}
constexpr int b_box_rows(const BlackwellConfig& c) {
  if (!has_half_group(c)) return b_stage_rows(c) / gate_halves(c);
  // With no whole group (block_n 16) the map is unused; 16 rows keep it encodable.
  return c.block_n > 16 ? whole_groups(c.block_n) : 16;
}

// ---- Packed weights ----

// How a Hopper kernel wants MXFP4 weights (moxie/weights.h): in units of 16 rows, which one warp has as wgmma's operand
// A, in blocks of 64 rows and 64 columns of K. A block of `rows` rows is
//
//   codes    [unit][lane][16 bytes]     a lane's fragments of four steps of wgmma
//   scales   [unit][8][4 bytes]         of rows r and r + 8 of the unit, for either half of the block
//
// Blocks of the same rows follow each other along K. Where K is no multiple of 64 the last of them holds 32 columns, in
// half the bytes: [unit][lane][8 bytes] and [unit][8][2 bytes]. Where the padded rows are no multiple of 64 the last
// blocks have fewer units. Behind the blocks of a group stands a byte for each padded row: bits 0 to 6 are the row's
// shift, bit 7 says that a scale of the row is NaN, or that the row cannot be represented. Groups follow each other.
//
// The scales of a row are stored as the exponent field of the bf16 2^(e - 1 - shift), e the E8M0 code: the factor that
// makes of a code's bits, placed in a bf16, the weight times 2^-shift. A code is placed with its exponent in the lowest
// exponent bits, which makes it 2^-126 of its value. A scale of NaN is stored as 0.
constexpr int kPackUnit = 16;     // rows
constexpr int kPackRows = 64;     // of a block
constexpr int kPackColumns = 64;  // of K in a block
constexpr int kPackLaneBytes = 16;
constexpr int kPackUnitScales = 32;  // bytes of a unit's scales
// Bytes of a unit of a whole block, and of a whole block.
constexpr int kPackUnitBytes = 32 * kPackLaneBytes + kPackUnitScales;
constexpr int kPackBlockBytes = kPackRows / kPackUnit * kPackUnitBytes;
constexpr int kPackNan = 0x80;  // of a row's byte
constexpr int64_t packed_rows(int64_t n) { return (n + kPackUnit - 1) / kPackUnit * kPackUnit; }
// Bytes of k columns of a row with their scales, of a group's blocks, and of all of a group.
constexpr int64_t packed_row_bytes(int64_t k) { return k / 2 + k / kScaleBlock; }
constexpr int64_t packed_block_bytes(int64_t n, int64_t k) { return packed_rows(n) * packed_row_bytes(k); }
constexpr int64_t packed_group_bytes(int64_t n, int64_t k) { return packed_block_bytes(n, k) + packed_rows(n); }

// Where the block of a row lies in its group: `row` is the first of 64, `k` the first column of 64.
constexpr int64_t packed_block(int64_t n, int64_t k_of_group, int64_t row, int64_t k) {
  const int64_t left = packed_rows(n) - row;
  return row * packed_row_bytes(k_of_group) + (left < kPackRows ? left : kPackRows) * packed_row_bytes(k);
}

// Bytes of a stage of A: for every 64 columns of K a slab of all rows; and of B.
constexpr int a_stage_bytes(const HopperConfig& c) { return c.block_m * kStageRowBytes * (c.block_k / 64); }
constexpr int b_stage_bytes(const HopperConfig& c) {
  return has_packed_b(c) ? c.block_n / kPackRows * (c.block_k / kPackColumns) * kPackBlockBytes
                         : c.block_n * kStageRowBytes;
}
// Accumulators lie with the product's columns in their rows where B is packed. Where sinks do not take them so, each
// consumer warp group brings 64 rows of the product by epilogue_columns through this many bytes of shared memory into
// the order of a Fragment.
constexpr int kExchangePadding = 4;  // floats between rows: writes of a warp meet every bank once
constexpr int exchange_stride(const HopperConfig& c) { return epilogue_columns(c) + kExchangePadding; }
constexpr int exchange_bytes(const HopperConfig& c) {
  return has_packed_b(c) ? (c.block_m < 64 ? c.block_m : 64) * exchange_stride(c) * 4 : 0;
}

// What the second warp group of a strip hands to the first: its accumulators.
constexpr int partial_bytes(const HopperConfig& c) { return kPackRows * c.block_m * 4; }

// Elements of K in a stage of a Blackwell kernel, and how many tiles of scales lie along them.
constexpr int stage_elements(const BlackwellConfig& c) { return kStageRowBytes * 8 / bits_of(c.format); }
constexpr int stage_scale_tiles(const BlackwellConfig& c) {
  return has_scales(c) ? stage_elements(c) / scale_tile_k(c.format) : 0;
}

constexpr int greatest_divisor(int a, int b) { return b == 0 ? a : greatest_divisor(b, a % b); }
// Tiles of 128 rows of scales that B's whole groups in a block's tile can touch, for each product: the groups begin at
// any multiple of block_n, beside a half group at any multiple of 32.
constexpr int b_scale_tiles(const BlackwellConfig& c) {
  if (!has_scales(c)) return 0;
  if (gate_halves(c) == 2)
    return (kScaleTileRows - 32 + (c.swap_ab ? 128 : c.block_n / 2) + kScaleTileRows - 1) / kScaleTileRows;
  if (c.swap_ab) return 1;
  const int step = greatest_divisor(has_half_group(c) ? 32 : c.block_n, kScaleTileRows);
  const int columns = whole_groups(c.block_n);
  return columns == 0 ? 0 : (kScaleTileRows - step + columns + kScaleTileRows - 1) / kScaleTileRows;
}
// Tiles of B's scales in a stage, for each of stage_scale_tiles.
constexpr int b_stage_scale_tiles(const BlackwellConfig& c) {
  return b_scale_tiles(c) * gate_halves(c) + (has_half_group(c) ? 1 : 0);
}
// Tiles of A's scales in a stage, for each of stage_scale_tiles.
constexpr int a_scale_tiles(const BlackwellConfig& c) {
  if (!has_scales(c)) return 0;
  return c.swap_ab && c.block_n > kScaleTileRows ? c.block_n / kScaleTileRows : 1;
}

// ---- What standard sinks copy ----

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
template <class Config>
constexpr SinkNeeds store_needs(const Config& c, bool pre, DataType type) {
  if (is_quantized(type)) return {};
  if (stores_directly(c)) return {0, false, true};
  // Neighboring columns of an interleaved `pre` lie eight columns apart in the accumulator, and stmatrix stores eight
  // neighboring ones.
  const bool interleaves = pre && is_gated(c.activation) && !gate_is_split(c);
  return {store_box(c, pre, type).staging_bytes, true, true, type == DataType::Bf16 && !interleaves};
}

// Whether the warps of packed weights' epilogue bring their accumulators to sinks by themselves, 16 columns of the
// product each: where all sinks take so few, and store directly.
constexpr bool stores_by_warps(const HopperConfig& c, const SinkNeeds* needs, int count) {
  bool all = has_packed_b(c) && stores_directly(c);
  for (int i = 0; i < count; ++i) all = all && needs[i].narrow && needs[i].staging_bytes == 0;
  return all;
}
constexpr bool stores_by_warps(const BlackwellConfig&, const SinkNeeds*, int) { return false; }

// Whether packed weights' accumulators go to sinks transposed, as they lie: where all sinks take them so.
constexpr bool stores_transposed(const HopperConfig& c, const SinkNeeds* needs, int count) {
  bool all =
      has_packed_b(c) && epilogue_columns(c) == kPackRows && c.block_m >= 64 && !stores_by_warps(c, needs, count);
  for (int i = 0; i < count; ++i) all = all && needs[i].transposed;
  return all;
}
constexpr bool stores_transposed(const BlackwellConfig&, const SinkNeeds*, int) { return false; }

// With swapped operands a warp has 16 columns of a gated product. Where a sink takes no fewer than 32, neighboring
// warps exchange halves of their rows through shared memory.
constexpr bool exchanges_fragments(const HopperConfig&, const SinkNeeds*, int) { return false; }
constexpr bool exchanges_fragments(const BlackwellConfig& c, const SinkNeeds* needs, int count) {
  bool narrow = true;
  for (int i = 0; i < count; ++i) narrow = narrow && needs[i].narrow;
  return c.swap_ab && is_gated(c.activation) && gate_halves(c) == 1 && !narrow;
}
constexpr int kExchangeBytes = 128 * 8 * 4;  // of each of 128 threads half of a fragment of 16 columns: 8 floats

// ---- Tensor maps that change from group to group ----

constexpr int kMapBytes = 128;
constexpr int kMapSlots = 2;  // alternating copies of every per-group tensor map

// How many maps of operands change from group to group: those of A and B (packed weights have none), of B's half group,
// and with Grouping::Pointers those of the scales of A and of B.
constexpr int operand_maps(const HopperConfig& c) {
  return !operands_need_group_maps(c.grouping) ? 0 : has_packed_b(c) ? 1 : 2;
}
constexpr int operand_maps(const BlackwellConfig& c) {
  if (!operands_need_group_maps(c.grouping)) return 0;
  return 2 + (has_half_group(c) ? 1 : 0) + (has_scales(c) && c.grouping == Grouping::Pointers ? 2 : 0);
}

// Maps of each block in global memory: kMapSlots for each of operand_maps, and for each mapped sink and warp group. The
// workspace is aligned to 128 bytes, and the maps of block i begin at workspace + i * kMapBytes * workspace_maps.
template <class Config>
constexpr int workspace_maps(const Config& c, int mapped_sinks) {
  return kMapSlots *
         (operand_maps(c) + (outputs_need_group_maps(c.grouping) ? epilogue_warp_groups(c) * mapped_sinks : 0));
}

// ---- Shared memory ----

constexpr int kMaxSharedBytes = 232448;  // of a block

// Where everything lies in a Hopper block's shared memory: byte offsets from a base aligned to 1024, in the order they
// lie. The host and the kernel both ask shared_layout().
struct HopperSharedLayout {
  int a;             // ring of A tiles: stages x a_stage_bytes
  int b;             // ring of B tiles: stages x b_stage_bytes
  int staging;       // sink after sink, each consumer_warp_groups x store_buffers x staging_bytes
  int exchange;      // consumer_warp_groups x exchange_bytes, nothing where sinks take what warps have
  int partials;      // (k_parts - 1) x block_n / 64 x partial_bytes
  int operand_maps;  // per-group maps of A and B under construction, 128 bytes each
  int sink_maps;     // mapped sink after mapped sink, each consumer_warp_groups x 128 bytes
  int bias;          // consumer_warp_groups x block_n bf16, nothing where sinks take what warps have
  int full;          // stages mbarriers
  int empty;         // stages mbarriers
  int bytes;         // of everything
};
constexpr HopperSharedLayout shared_layout(const HopperConfig& c, const SinkNeeds* needs, int count) {
  HopperSharedLayout at{};
  at.b = at.a + c.stages * a_stage_bytes(c);
  at.staging = (at.b + c.stages * b_stage_bytes(c) + kSwizzleBytes - 1) / kSwizzleBytes * kSwizzleBytes;
  at.exchange = at.staging;
  int mapped = 0;
  for (int i = 0; i < count; ++i) {
    at.exchange += consumer_warp_groups(c) * c.store_buffers * needs[i].staging_bytes;
    mapped += needs[i].tensor_map && outputs_need_group_maps(c.grouping) ? 1 : 0;
  }
  const bool by_warps = stores_by_warps(c, needs, count), exchanges = !by_warps && !stores_transposed(c, needs, count);
  at.partials = at.exchange + (exchanges ? consumer_warp_groups(c) * exchange_bytes(c) : 0);
  at.operand_maps = at.partials + (k_parts(c) - 1) * (c.block_n / kPackRows) * partial_bytes(c);
  at.sink_maps = at.operand_maps + operand_maps(c) * kMapBytes;
  at.bias = at.sink_maps + mapped * consumer_warp_groups(c) * kMapBytes;
  at.full = at.bias + (c.bias && exchanges ? consumer_warp_groups(c) * c.block_n * 2 : 0);
  at.empty = at.full + c.stages * kBarrierBytes;
  at.bytes = at.empty + c.stages * kBarrierBytes;
  return at;
}
constexpr int shared_bytes(const HopperConfig& c, const SinkNeeds* needs, int count) {
  return shared_layout(c, needs, count).bytes;
}

// Cluster launch control (TileSource::LaunchControl) keeps its answers in shared memory: one for the tile that is
// loaded while another is multiplied and a third stored.
constexpr int launch_answers(const BlackwellConfig& c) { return c.scheduling == TileSource::LaunchControl ? 3 : 0; }
constexpr int kLaunchAnswerBytes = 16;

// The same for a Blackwell block.
struct BlackwellSharedLayout {
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
constexpr BlackwellSharedLayout shared_layout(const BlackwellConfig& c, const SinkNeeds* needs, int count) {
  BlackwellSharedLayout at{};
  at.b = at.a + c.stages * a_box_rows(c) * kStageRowBytes;
  at.a_scales = at.b + c.stages * b_stage_rows(c) * kStageRowBytes;
  at.b_scales = at.a_scales + c.stages * a_scale_tiles(c) * stage_scale_tiles(c) * kScaleTileBytes;
  at.staging = at.b_scales + c.stages * b_stage_scale_tiles(c) * stage_scale_tiles(c) * kScaleTileBytes;
  at.sink_maps = at.staging;
  int mapped = 0;
  for (int i = 0; i < count; ++i) {
    at.sink_maps += c.store_buffers * needs[i].staging_bytes;
    mapped += needs[i].tensor_map && outputs_need_group_maps(c.grouping) ? 1 : 0;
  }
  at.exchange = at.sink_maps + mapped * kMapBytes;
  at.operand_maps = at.exchange + (exchanges_fragments(c, needs, count) ? kExchangeBytes : 0);
  at.bias = at.operand_maps + operand_maps(c) * kMapBytes;
  at.launch_answers = at.bias + (c.bias ? block_columns(c) * 2 : 0);
  at.full = at.launch_answers + launch_answers(c) * kLaunchAnswerBytes;
  at.empty = at.full + c.stages * kBarrierBytes;
  at.computed = at.empty + c.stages * kBarrierBytes;
  at.stored = at.computed + c.accumulators * kBarrierBytes;
  at.answered = at.stored + c.accumulators * kBarrierBytes;
  at.taken = at.answered + launch_answers(c) * kBarrierBytes;
  at.tensor_address = at.taken + launch_answers(c) * kBarrierBytes;
  at.bytes = at.tensor_address + 16;
  return at;
}
constexpr int shared_bytes(const BlackwellConfig& c, const SinkNeeds* needs, int count) {
  return shared_layout(c, needs, count).bytes;
}

// ---- Tensor memory ----

constexpr int kTensorColumns = 512;

// Columns that a stage's tiles of scales take: four for a tile. The tile of the half group stands behind B's others.
constexpr int a_scale_columns(const BlackwellConfig& c) { return 4 * a_scale_tiles(c); }
constexpr int b_scale_columns(const BlackwellConfig& c) { return 4 * b_stage_scale_tiles(c); }
constexpr int accumulator_columns(const BlackwellConfig& c) {
  return c.swap_ab ? gate_halves(c) * c.block_n : c.block_n;
}

// Where everything lies in tensor memory, in columns from the first. The accumulators begin at 0.
struct TensorLayout {
  int b_scales;
  int a_scales;
  int columns;  // of everything
};
constexpr TensorLayout tensor_layout(const BlackwellConfig& c) {
  TensorLayout at{};
  at.b_scales = c.accumulators * accumulator_columns(c);
  at.a_scales = at.b_scales + stage_scale_tiles(c) * b_scale_columns(c);
  at.columns = at.a_scales + stage_scale_tiles(c) * a_scale_columns(c);
  return at;
}
// Columns that are allocated: a power of two, 32 at least.
constexpr int tensor_columns(const BlackwellConfig& c) {
  int columns = 32;
  while (columns < tensor_layout(c).columns) columns *= 2;
  return columns;
}

}  // namespace kernel
}  // namespace moxie
