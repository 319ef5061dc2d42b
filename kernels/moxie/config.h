// SPDX-License-Identifier: Apache-2.0
// The compile-time configuration of a kernel, and what follows from it. Compiled by the host compiler and by NVRTC: the
// planner chooses a configuration, the generated source spells it, and the kernel takes it as its template argument.
#pragma once
#include "moxie/types.h"

namespace moxie {
namespace kernel {

// Everything a Hopper kernel fixes at compile time except its sinks.
struct HopperConfig {
  WarpSchedule schedule = WarpSchedule::Cooperative;
  Grouping grouping = Grouping::Dense;
  // Rows of a tile. Cooperative: 128 or 256. Ping-pong, where each consumer warp group has a tile of its own: 64 or
  // 128, with decode_tile also 8.
  int block_m = 128;
  int block_n = 128;  // columns of a tile: 64 to 256 in steps of 32
  // Elements of K in a stage: 64, one 128-byte swizzle row of bf16. With packed weights also 128 or 256: a stage then
  // has a slab of A and blocks of weights for every 64, and is waited for and handed back once for all of them.
  int block_k = 64;
  int stages = 4;   // depth of the operand ring
  int cluster = 1;  // 1 or 2 blocks
  // With A the cluster spans two tiles side by side, with B two tiles above each other, with Either one or the other.
  Multicast multicast = Multicast::None;
  Activation activation = Activation::None;
  GateLayout gate = GateLayout::Interleaved;
  bool bias = false;
  bool quantized = false;  // an output leaves with scales (epilogue/quantized_store.cuh)
  int store_buffers = 1;   // staging buffers of each sink and consumer warp group: 1 or 2
  int epilogue_n = 64;     // accumulator columns of one epilogue step: 32, or 64 where that divides block_n
  // For groups of about one tile of rows, as in decoding: rows of A that do not exist are not loaded, and B is loaded
  // evict_first where it is read once.
  bool decode_tile = false;
  // Of B. With Mxfp4 the warps multiply packed weights (moxie/weights.h) from their registers, on the side of wgmma
  // that has 64 rows. Then the schedule is Cooperative, block_m, on the other side, 8, 16, 32, 64, 128 or 256, and
  // block_n 128 or 256.
  OperandFormat b_format = OperandFormat::Bf16;
  // Offsets: a row of the product is computed from the row of A that a list names, not from its own
  // (hopper/gathered_rows.cuh). The blocks of a cluster then do not share A.
  bool gather = false;

  bool operator==(const HopperConfig&) const = default;
};

// Everything a Blackwell kernel fixes at compile time except its sinks.
struct BlackwellConfig {
  OperandFormat format = OperandFormat::Mxfp4;
  Grouping grouping = Grouping::Dense;
  // B takes the side of the tensor cores that has 128 rows, and A the other: for groups of few rows.
  bool swap_ab = false;
  // Columns of the accumulator. Without swap_ab these are columns of the tile: 32 to 256 in steps of 32, and where a
  // single block multiplies operands with scales without a gate also 16, 48, ... With swap_ab they are rows of the
  // tile: 16, 32, 64, 128 or 256.
  int block_n = 128;
  int stages = 4;  // depth of the operand ring
  // With 1 a block computes 128 rows. With 2 a pair of blocks computes 256, and each loads half of B's tile. With
  // swap_ab these are 128 and 256 columns, and each block loads half of A's tile.
  int cluster = 1;
  int accumulators = 2;  // tiles in tensor memory: with 2, one is stored while the next is computed
  TileSource scheduling = TileSource::Static;
  Activation activation = Activation::None;
  GateLayout gate = GateLayout::Interleaved;
  bool bias = false;
  bool quantized = false;  // an output leaves with scales (epilogue/quantized_store.cuh)
  int store_buffers = 1;   // staging buffers of each sink: 1 or 2
  // Offsets, bf16: a row of the product is computed from the row of A that a list names, not from its own
  // (blackwell/gathered_rows.cuh).
  bool gather = false;

  bool operator==(const BlackwellConfig&) const = default;
};

#ifndef __CUDACC_RTC__
// Calls f(name, value) for every field in the order of declaration. The generated source, which is also the kernel's
// key, and the tests learn the fields from here.
template <class F>
constexpr void visit_fields(const HopperConfig& c, F&& f) {
  f("schedule", c.schedule);
  f("grouping", c.grouping);
  f("block_m", c.block_m);
  f("block_n", c.block_n);
  f("block_k", c.block_k);
  f("stages", c.stages);
  f("cluster", c.cluster);
  f("multicast", c.multicast);
  f("activation", c.activation);
  f("gate", c.gate);
  f("bias", c.bias);
  f("quantized", c.quantized);
  f("store_buffers", c.store_buffers);
  f("epilogue_n", c.epilogue_n);
  f("decode_tile", c.decode_tile);
  f("b_format", c.b_format);
  f("gather", c.gather);
}
template <class F>
constexpr void visit_fields(const BlackwellConfig& c, F&& f) {
  f("format", c.format);
  f("grouping", c.grouping);
  f("swap_ab", c.swap_ab);
  f("block_n", c.block_n);
  f("stages", c.stages);
  f("cluster", c.cluster);
  f("accumulators", c.accumulators);
  f("scheduling", c.scheduling);
  f("activation", c.activation);
  f("gate", c.gate);
  f("bias", c.bias);
  f("quantized", c.quantized);
  f("store_buffers", c.store_buffers);
  f("gather", c.gather);
}

namespace detail {
struct AnyField {
  template <class Field>
  constexpr operator Field() const;
};
// Fields of an aggregate: the most initializers that it takes.
template <class Config, class... Fields>
constexpr int count_fields() {
  if constexpr (requires { Config{Fields{}..., AnyField{}}; }) {
    return count_fields<Config, Fields..., AnyField>();
  } else {
    return sizeof...(Fields);
  }
}
template <class Config>
constexpr int count_visited_fields() {
  int count = 0;
  visit_fields(Config{}, [&](const char*, auto) { ++count; });
  return count;
}
}  // namespace detail
static_assert(detail::count_visited_fields<HopperConfig>() == detail::count_fields<HopperConfig>(),
              "visit_fields() leaves out a field of HopperConfig");
static_assert(detail::count_visited_fields<BlackwellConfig>() == detail::count_fields<BlackwellConfig>(),
              "visit_fields() leaves out a field of BlackwellConfig");
#endif

// ---- Threads ----

// Warp groups of a Hopper block that multiply. With few rows of A a block spends its time on unpacking weights, so
// twice as many warp groups share that work.
constexpr int consumer_warp_groups(const HopperConfig& c) { return has_scales(c.b_format) && c.block_m < 64 ? 4 : 2; }
constexpr int hopper_threads(const HopperConfig& c) { return (consumer_warp_groups(c) + 1) * 128; }  // 0: the producer
// How many of them have the same columns of the product, 1 or 2. Two divide K: each takes every other slab of 64
// columns of it, and the first adds the other's sums to its own.
constexpr int k_parts(const HopperConfig& c) { return has_scales(c.b_format) && c.block_m < 64 ? 256 / c.block_n : 1; }

// Whether a tile of packed weights that has no more than half of its rows is multiplied as one of half the rows: a
// group's last tile is seldom full, and the tensor cores' time follows the rows. Larger tiles and those of fewer than
// 64 rows have no registers left for a second loop: the compiler then spills or puts a wait behind every wgmma.
constexpr bool halves_rows(const HopperConfig& c) {
  return has_scales(c.b_format) && (c.block_m == 64 || (c.block_m == 128 && c.block_n == 128));
}

// Threads of the producer's warp group that copy gathered rows of A, a chunk of 16 bytes each; 0 without a gather.
constexpr int gather_threads(const HopperConfig& c) { return !c.gather ? 0 : c.block_m < 16 ? 64 : 128; }
constexpr int producer_warps(const HopperConfig& c) { return c.gather ? gather_threads(c) / 32 : 1; }

// Warp groups that run the epilogue.
constexpr int epilogue_warp_groups(const HopperConfig& c) { return consumer_warp_groups(c); }
constexpr int epilogue_warp_groups(const BlackwellConfig&) { return 1; }

constexpr int kBlackwellThreads = 256;  // warps 0 to 3: load, multiply, tensor memory, schedule; warps 4 to 7: epilogue

// Whether the warps of an epilogue's warp group meet at a barrier between two tiles: ping-pong warp groups do, where
// they wait for their turn, and those that wait for another's part of K.
constexpr bool meets_between_tiles(const HopperConfig& c) {
  return c.schedule == WarpSchedule::PingPong || k_parts(c) > 1;
}
constexpr bool meets_between_tiles(const BlackwellConfig&) { return false; }

// ---- Operand formats ----

// Whether B is in a format of its own, packed weights, beside an A of bf16.
constexpr bool has_packed_b(const HopperConfig& c) { return has_scales(c.b_format); }
constexpr bool has_packed_b(const BlackwellConfig&) { return false; }
constexpr bool has_scales(const HopperConfig&) { return false; }
constexpr bool has_scales(const BlackwellConfig& c) { return has_scales(c.format); }
constexpr bool has_tensor_scales(const BlackwellConfig& c) { return c.format == OperandFormat::Nvfp4; }
constexpr int k_unit(const HopperConfig&) { return k_unit(OperandFormat::Bf16); }
constexpr int k_unit(const BlackwellConfig& c) { return k_unit(c.format); }
constexpr int scale_tile_k(const BlackwellConfig& c) { return scale_tile_k(c.format); }

// ---- Groupings ----

// A and B change their tensor map from group to group only when each group has pointers of its own, or K is divided
// among the groups.
constexpr bool operands_need_group_maps(Grouping g) { return g == Grouping::Pointers || g == Grouping::KGroups; }
// Outputs are clipped at the end of each group where groups are not aligned to tiles.
constexpr bool outputs_need_group_maps(Grouping g) {
  return g == Grouping::Pointers || g == Grouping::Offsets || g == Grouping::Masked;
}
// Outputs have a dimension of groups.
constexpr bool outputs_are_stacked(Grouping g) { return g == Grouping::Batched || g == Grouping::KGroups; }
// B has no dimension of groups: there is one B, or every group's map points to its own.
constexpr bool has_one_b(Grouping g) {
  return g == Grouping::Dense || g == Grouping::Pointers || g == Grouping::KGroups;
}
// Every group has as many tiles of scales as its own K needs.
constexpr bool has_flat_scales(Grouping g) { return g == Grouping::Pointers || g == Grouping::KGroups; }

// ---- Decode tiles ----

// Kernels for groups of about one tile of rows, whose blocks compute few tiles each.
constexpr bool has_decode_tile(const HopperConfig& c) { return c.decode_tile; }
constexpr bool has_decode_tile(const BlackwellConfig& c) { return c.swap_ab; }
// Decode kernels load A in parts of so many rows and leave out the parts that have no row of the group. A tile of 8
// rows has no parts.
constexpr int kPartRows = 16;
constexpr bool loads_in_parts(const HopperConfig& c) {
  return c.decode_tile && !c.gather && !operands_need_group_maps(c.grouping) && c.block_m > kPartRows;
}
// Whether standard sinks store from registers. Where few rows exist this is shorter than the way through shared memory
// and, with groups by offsets or masked, a rewritten tensor map: it decides when a kernel of one tile a block ends.
constexpr bool stores_directly(const HopperConfig& c) { return c.decode_tile && c.block_m <= 64; }
constexpr bool stores_directly(const BlackwellConfig&) { return false; }

// ---- Gates ----

template <class Config>
constexpr bool gate_is_split(const Config& c) {
  return is_gated(c.activation) && c.gate != GateLayout::Interleaved;
}
// Products that make up a tile. Scales cannot be gathered from both halves of N. So a split gate of operands with
// scales takes two products, one with rows of each half of B. They stand side by side in the accumulator.
constexpr int gate_halves(const HopperConfig&) { return 1; }
constexpr int gate_halves(const BlackwellConfig& c) { return has_scales(c.format) && gate_is_split(c) ? 2 : 1; }

// ---- Tiles ----

// Whether the accumulator's rows are the product's columns.
constexpr bool is_transposed(const HopperConfig&) { return false; }
constexpr bool is_transposed(const BlackwellConfig& c) { return c.swap_ab; }

// Columns of the product in the part of a tile that one epilogue has: cooperative warp groups divide the rows of a tile
// among them, but where B is packed its columns.
constexpr int block_columns(const HopperConfig& c) {
  return has_packed_b(c) ? c.block_n * k_parts(c) / consumer_warp_groups(c) : c.block_n;
}
constexpr int block_columns(const BlackwellConfig& c) { return c.swap_ab ? 128 * gate_halves(c) : c.block_n; }

// Which operands the two blocks of a cluster may share. Each block then loads half of the shared one. Gathered rows are
// not shared: cp.async reaches the shared memory of its own block alone.
constexpr bool may_share_a(const HopperConfig& c) {
  return (c.multicast == Multicast::A || c.multicast == Multicast::Either) && !c.gather;
}
constexpr bool may_share_b(const HopperConfig& c) {
  return c.multicast == Multicast::B || c.multicast == Multicast::Either;
}

// A cluster tile is what the blocks of a cluster cover together; with Multicast::Either, where they lie side by side.
// With Grouping::RowGroups every group starts at a multiple of cluster_tile_rows.
constexpr int cluster_tile_rows(const HopperConfig& c) {
  return c.multicast == Multicast::B ? 2 * c.block_m : c.block_m;
}
constexpr int cluster_tile_columns(const HopperConfig& c) {
  return c.multicast == Multicast::A || c.multicast == Multicast::Either ? 2 * c.block_n : c.block_n;
}
constexpr int cluster_tile_rows(const BlackwellConfig& c) { return c.swap_ab ? c.block_n : 128 * c.cluster; }
constexpr int cluster_tile_columns(const BlackwellConfig& c) {
  return c.swap_ab ? 128 * gate_halves(c) * c.cluster : c.block_n;
}
// Rows and columns from the tile of a cluster's first block to that of its second.
constexpr int rank_rows(const HopperConfig& c) { return c.multicast == Multicast::B ? c.block_m : 0; }
constexpr int rank_columns(const HopperConfig& c) { return c.multicast == Multicast::A ? c.block_n : 0; }
constexpr int rank_rows(const BlackwellConfig& c) { return c.cluster == 2 && !c.swap_ab ? 128 : 0; }
constexpr int rank_columns(const BlackwellConfig& c) { return c.cluster == 2 && c.swap_ab ? 128 * gate_halves(c) : 0; }
// With Multicast::Either rows of tiles are taken in pairs, but for the odd last one of a group.
constexpr bool pairs_rows(const HopperConfig& c) { return c.multicast == Multicast::Either; }
constexpr bool pairs_rows(const BlackwellConfig&) { return false; }

// Rows of one consumer warp group's accumulators. wgmma has no fewer than 64, of which a tile of 8 rows uses 8. Where
// the accumulators hold columns of the product in their rows, the epilogue is handed 64 rows of it at a time.
constexpr int warp_group_rows(const HopperConfig& c) {
  if (c.block_m < 64 || has_packed_b(c)) return 64;
  return c.schedule == WarpSchedule::Cooperative ? c.block_m / consumer_warp_groups(c) : c.block_m;
}
constexpr int warp_group_rows(const BlackwellConfig& c) { return c.swap_ab ? c.block_n : 128; }

// Rows and columns of the product in one step of the epilogue, which is called a chunk.
template <class Config>
constexpr int epilogue_rows(const Config& c) {
  return is_transposed(c) && warp_group_rows(c) > 32 ? 32 : warp_group_rows(c);
}
constexpr int epilogue_columns(int block_n) { return block_n % 64 == 0 ? 64 : 32; }
constexpr int epilogue_columns(const HopperConfig& c) { return c.block_n % c.epilogue_n == 0 ? c.epilogue_n : 32; }
constexpr int epilogue_columns(const BlackwellConfig& c) {
  if (c.swap_ab) return 128 * gate_halves(c);
  return c.block_n % 32 != 0 ? 16 : epilogue_columns(c.block_n);
}
// Columns of a chunk that one warp of the epilogue has a fragment of. With swapped operands a warp reaches 32 rows of
// the accumulator, which are columns of the product.
template <class Config>
constexpr int fragment_columns(const Config& c) {
  return is_transposed(c) ? 32 * gate_halves(c) : epilogue_columns(c);
}

// The scales of a tile's columns must stand at lane (column % 32) of tensor memory, but a Blackwell tile whose width is
// no multiple of 32 begins at one only every other time. So the accumulator holds the whole groups of 32 columns first
// and then the half group, the 16 columns that are left: those before the whole groups where the tile does not begin at
// a multiple of 32, else those after.
constexpr bool has_half_group(const HopperConfig&) { return false; }
constexpr bool has_half_group(const BlackwellConfig& c) {
  return has_scales(c.format) && c.block_n % 32 != 0 && !c.swap_ab;
}
// Columns of all whole groups of a tile.
constexpr int whole_groups(int block_n) { return block_n / 32 * 32; }
// Where the whole groups and the half group begin in a tile that begins at `column`.
constexpr int whole_groups_column(int column) { return (column + 31) / 32 * 32; }
constexpr int half_group_column(int block_n, int column) {
  return column % 32 != 0 ? column : column + whole_groups(block_n);
}

}  // namespace kernel
}  // namespace moxie
