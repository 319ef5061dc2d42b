// SPDX-License-Identifier: Apache-2.0
// Plans for Blackwell: the candidates, what each would cost, and the choice among them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "moxie/error.h"
#include "plan/row_estimate.h"

namespace moxie::plan {
namespace {

using kernel::BlackwellConfig;

constexpr double kClock = 1.85e9;  // of a B200's SMs

// The figures of the cost model, in cycles of the SM clock and bytes. B200: 148 SMs. No GPU has measured these kernels;
// "published" are DeepGEMM's times of MXFP4 products (pull request 348), and each of the three figures taken from them
// says which. docs/blackwell.md has all of them beside the predictions, those that nothing was fitted to included.
struct Costs {
  // Datasheet: dense FP4 at about 9 PFLOP/s, so 9e15 / 2 / 148 / 1.85e9 = 16,400 multiply-adds a clock and SM; bf16 a
  // quarter.
  double multiply_adds_fp4 = 16384, multiply_adds_bf16 = 4096;
  // L2 to an SM: 64 bytes a clock, the width of its port.
  double l2_bytes = 64;
  // Reads from HBM. Datasheet: about 8 TB/s, of which a copy reaches nine tenths.
  double hbm_bytes = 7.2e12 / kClock;
  // Stores to HBM. Published: 5,057 GB/s by 4 groups of 8192 x 32768 x 512, almost all of them stores.
  double stored_bytes = 5.06e12 / kClock;
  // From issuing a tensor copy to its mbarrier's completion, an L2 hit: a guess.
  double load_latency = 1000;
  // What a launch takes besides its tiles: its start with cold caches, barriers, tensor memory, maps, the first
  // operands, the end. Published: the least squares of the relative errors of the five products of up to 1,024 rows. It
  // is the same for every candidate.
  double launch = 11000;
  // Two blocks that feed each other wait for the slower one: a guess.
  double pair_slack = 1.03;
  // No GPU has measured swapped operands yet: they must be clearly better.
  double swap_slack = 1.02;
  // One epilogue warp group issues to 128 lanes, but waits for its loads and barriers most of the time. Published: a
  // sweep of widths on 4096 x 4096 x 7168, where 256 columns, their epilogue exposed, rank behind two accumulators;
  // with a quarter of the lanes they do so here.
  double lanes = 32;
  // A tile's answer from the launch queue, of which every role reads it before it goes on: a guess.
  double launch_answer = 150;
  // A block that starts, finds no tile and leaves: a guess.
  double empty_block = 2000;
  // How many tiles more than its share a block may have where tiles differ in length: a guess.
  double uneven_waves = 1;
  // Fixed part of an epilogue: draining the tensor cores, staging barriers, the store's hand-over: a guess.
  double epilogue_fixed = 600;
  // The part of the shorter one of computing and moving bytes that does not hide behind the longer one: a guess.
  double exposed = 0.1;
};
constexpr Costs kCosts;

// Instructions per accumulator element, the load from tensor memory, with swap its transposition, and the store
// included.
double instructions(const Shape& s, bool swap) {
  double per = 2 + (swap ? 3 : 0) + (s.bias ? 1 : 0) + (s.pre && s.out ? 1.5 : 0) + (scaled_columns(s) > 1 ? 3 : 0) +
               2.0 * double(s.custom_sinks.size());
  if (s.activation == Activation::GeluErf) return per + 25;
  if (s.activation == Activation::Situ) return per + 16;
  if (s.activation == Activation::GeluTanh) return per + 10;
  return s.activation == Activation::None ? per : per + 5;
}

// Groups differ in the length of their sums, so tiles take unequal time.
bool has_uneven_tiles(const Shape& s) { return s.grouping == Grouping::Pointers || s.grouping == Grouping::KGroups; }

// Length of a tile's sums.
double mean_k(const Shape& s) { return s.grouping == Grouping::KGroups ? double(s.k) / double(s.groups) : double(s.k); }

// Blocks of a controlled launch that find no tile: the grid has room for the most tiles there can be. Where the rows
// are estimated every group may end with half a tile more, whatever m is, so that the choice does not depend on m.
double empty_blocks(const Shape& s, const RowEstimate& w, const BlackwellConfig& c) {
  const int rows = kernel::cluster_tile_rows(c), columns = kernel::cluster_tile_columns(c);
  if (!w.exact) return 0.5 * double(s.groups) * double((s.n + columns - 1) / columns) * c.cluster;
  return c.cluster * (double(most_cluster_tiles(s, rows, columns)) - count_cluster_tiles(s, w, rows, columns));
}

// Columns of the accumulator that a tile uses on average: with swapped operands only those of rows that exist.
double used_columns(const RowEstimate& w, const BlackwellConfig& c) {
  if (!c.swap_ab) return c.block_n;
  double rows = 0, tiles = 0;
  for (const EqualGroups& r : w.rows) {
    rows += r.groups * std::ceil(r.rows / 8) * 8;
    tiles += r.groups * std::ceil(r.rows / c.block_n);
  }
  return kernel::gate_halves(c) * (tiles == 0 ? 8 : std::clamp(rows / tiles, 8.0, double(c.block_n)));
}

struct Bound {
  double cycles;
  const char* name;
};

void score(const Shape& s, const DeviceFigures& d, const RowEstimate& w, Candidate<BlackwellConfig>& candidate) {
  const BlackwellConfig& c = candidate.config;
  const double tiles = count_cluster_tiles(s, w, kernel::cluster_tile_rows(c), kernel::cluster_tile_columns(c));
  const bool fp4 = kernel::has_scales(c);
  const double stages = std::max(1.0, std::ceil(mean_k(s) / kernel::stage_elements(c)));
  const double stage_bytes =
      128.0 * (kernel::a_box_rows(c) + kernel::b_stage_rows(c)) +
      512.0 * kernel::stage_scale_tiles(c) * (kernel::a_scale_tiles(c) + kernel::b_stage_scale_tiles(c));
  const double columns = used_columns(w, c);
  const std::array<Bound, 3> bounds = {{
      {128.0 * columns * kernel::stage_elements(c) / (fp4 ? kCosts.multiply_adds_fp4 : kCosts.multiply_adds_bf16),
       "tensor cores"},
      {stage_bytes / kCosts.l2_bytes, "L2"},
      {kCosts.load_latency / (c.stages - 1), "load latency"},
  }};
  const Bound slowest = *std::max_element(bounds.begin(), bounds.end(),
                                          [](const Bound& a, const Bound& b) { return a.cycles < b.cycles; });
  const double mainloop =
      stages * slowest.cycles * (c.cluster == 2 ? kCosts.pair_slack : 1) * (c.swap_ab ? kCosts.swap_slack : 1);
  const double epilogue = 128.0 * columns * instructions(s, c.swap_ab) / kCosts.lanes + kCosts.epilogue_fixed;

  const double slots = std::max(1, d.sm_count / c.cluster);
  const bool controlled = c.scheduling == TileSource::LaunchControl, uneven = has_uneven_tiles(s);
  double waves = tiles == 0 ? 0 : w.exact && !uneven ? std::ceil(tiles / slots) : std::max(1.0, tiles / slots + 0.5);
  // Dealt out beforehand, the longest tiles may all be one block's.
  if (uneven && !controlled) waves += std::min(waves, kCosts.uneven_waves);
  const double scheduling =
      controlled ? waves * kCosts.launch_answer + empty_blocks(s, w, c) / slots * kCosts.empty_block : 0;
  // With two accumulators one tile is stored while the next is computed; the last one's store shows.
  const double compute =
      scheduling + (c.accumulators == 2 ? waves * std::max(mainloop, epilogue) + std::min(mainloop, epilogue)
                                        : waves * (mainloop + epilogue));

  const double element_bytes = fp4 ? 0.5 + 1.0 / scale_block(c.format) : 2;
  double loaded = 0, stored = 0;
  const double columns_out = (s.pre ? double(s.n) * bits_of(*s.pre) / 8 : 0) +
                             (s.out ? double(s.n) * bits_of(*s.out) / 8 / (is_gated(s.activation) ? 2 : 1) : 0);
  for (const EqualGroups& r : w.rows) {
    if (r.rows == 0) continue;
    loaded += r.groups * (double(s.n) + r.rows) * mean_k(s) * element_bytes;
    stored += r.groups * r.rows * columns_out;
  }
  const double memory = loaded / kCosts.hbm_bytes + stored / kCosts.stored_bytes;

  candidate.cycles = kCosts.launch + std::max(compute, memory) + kCosts.exposed * std::min(compute, memory);
  const char* why = memory > compute ? "HBM" : epilogue > mainloop ? "epilogue" : slowest.name;
  candidate.reason = fmt::format("{}; {:.4g} tiles, {:.3g} a SM, mainloop {:.0f}, epilogue {:.0f}{}", why, tiles, waves,
                                 mainloop, epilogue, c.accumulators == 2 ? " (hidden)" : "");
}

[[noreturn]] void reject(const std::string& sentence) { throw Error(ErrorCode::InvalidArgument, sentence); }

constexpr std::array<int, 5> kSwappedRows = {256, 128, 64, 32, 16};

// A split gate of operands with scales: see kernel::gate_halves.
bool has_two_products(const Shape& s) {
  return has_scales(s.format) && is_gated(s.activation) && s.gate != GateLayout::Interleaved;
}
// Of a block's tile.
int swapped_columns(const Shape& s) { return has_two_products(s) ? 256 : 128; }

void check_swapped_choices(const Shape& s, const DeviceFigures& d) {
  if (s.blackwell.tile_m &&
      std::find(kSwappedRows.begin(), kSwappedRows.end(), *s.blackwell.tile_m) == kSwappedRows.end())
    reject(
        fmt::format("tile_m is {}, but with swap_ab only 16, 32, 64, 128 and 256 are possible", *s.blackwell.tile_m));
  if (s.blackwell.tile_m && *s.blackwell.tile_m != 128 && s.grouping == Grouping::RowGroups && scaled_columns(s) > 1)
    reject(
        fmt::format("tile_m is {}, but with swap_ab row groups with a quantized output have 128", *s.blackwell.tile_m));
  if (s.blackwell.tile_m == 256 && s.grouping == Grouping::RowGroups)
    reject("tile_m is 256, but with swap_ab row groups have at most 128, to which they are aligned");
  const int columns = swapped_columns(s);
  if (s.blackwell.tile_n && *s.blackwell.tile_n != columns && *s.blackwell.tile_n != 2 * columns)
    reject(fmt::format("tile_n is {}, but with swap_ab only {} and, on a pair of blocks, {} are possible",
                       *s.blackwell.tile_n, columns, 2 * columns));
  if (s.blackwell.tile_n && s.blackwell.cluster && *s.blackwell.tile_n != columns * *s.blackwell.cluster)
    reject(fmt::format("tile_n is {}, but with swap_ab and cluster {} it is {}", *s.blackwell.tile_n,
                       *s.blackwell.cluster, columns * *s.blackwell.cluster));
  if (s.blackwell.tile_m == 256 && has_two_products(s))
    reject("tile_m is 256, but with swap_ab and a split gate at most 128 rows fit the tensor memory");
  if ((s.blackwell.cluster == 2 || s.blackwell.tile_n == 2 * columns) && d.sm_count < 2)
    reject(fmt::format("cluster 2 needs two SMs, but the device has {}", d.sm_count));
}

void check_choices(const Shape& s, const DeviceFigures& d) {
  if (s.blackwell.cluster && *s.blackwell.cluster != 1 && *s.blackwell.cluster != 2)
    reject(fmt::format("cluster is {}, but only 1 and 2 are possible", *s.blackwell.cluster));
  if (s.blackwell.swap_ab == true) return check_swapped_choices(s, d);
  if (s.blackwell.tile_m && *s.blackwell.tile_m != 128 && *s.blackwell.tile_m != 256)
    reject(fmt::format("tile_m is {}, but only 128 and, on a pair of blocks, 256 are possible", *s.blackwell.tile_m));
  if (s.blackwell.tile_m && s.blackwell.cluster && *s.blackwell.tile_m != 128 * *s.blackwell.cluster)
    reject(fmt::format("tile_m is {}, but with cluster {} it is {}", *s.blackwell.tile_m, *s.blackwell.cluster,
                       128 * *s.blackwell.cluster));
  if ((s.blackwell.cluster == 2 || s.blackwell.tile_m == 256) && d.sm_count < 2)
    reject(fmt::format("cluster 2 needs two SMs, but the device has {}", d.sm_count));
  if (s.blackwell.tile_n && (*s.blackwell.tile_n < 16 || *s.blackwell.tile_n > 256 || *s.blackwell.tile_n % 16 != 0))
    reject(fmt::format("tile_n is {}, but only 16 to 256 in steps of 16 are possible", *s.blackwell.tile_n));
  if (s.blackwell.tile_n && *s.blackwell.tile_n % scaled_columns(s) != 0)
    reject(fmt::format("tile_n is {}, but with a quantized output only multiples of {} are possible",
                       *s.blackwell.tile_n, scaled_columns(s)));
  if (s.blackwell.tile_n && *s.blackwell.tile_n % 64 != 0 && is_gated(s.activation) && has_wide_sinks(s))
    reject(fmt::format("tile_n is {}, but with a gated activation and custom sinks only multiples of 64 are possible",
                       *s.blackwell.tile_n));
  if (s.blackwell.tile_n && *s.blackwell.tile_n % 64 != 0 && has_two_products(s))
    reject(fmt::format("tile_n is {}, but with a split gate only multiples of 64 are possible", *s.blackwell.tile_n));
  if (s.blackwell.tile_n && *s.blackwell.tile_n % 32 != 0) {
    const char* why = !has_scales(s.format)                                   ? "with bf16 operands"
                      : s.blackwell.cluster == 2 || s.blackwell.tile_m == 256 ? "on a pair of blocks"
                      : is_gated(s.activation)                                ? "with a gated activation"
                      : !s.custom_sinks.empty()                               ? "with custom sinks"
                                                                              : nullptr;
    if (why) reject(fmt::format("tile_n is {}, but {} only multiples of 32 are possible", *s.blackwell.tile_n, why));
  }
}

std::vector<Candidate<BlackwellConfig>> enumerate(const Shape& s, const DeviceFigures& d) {
  std::vector<Candidate<BlackwellConfig>> all;
  const auto add = [&](int cluster, int block_n, bool swap_ab, TileSource scheduling) {
    Candidate<BlackwellConfig> candidate;
    BlackwellConfig& c = candidate.config;
    c.swap_ab = swap_ab;
    c.scheduling = scheduling;
    c.format = s.format;
    c.grouping = s.grouping;
    c.cluster = cluster;
    c.block_n = block_n;
    c.activation = s.activation;
    c.gate = is_gated(s.activation) ? s.gate : GateLayout::Interleaved;
    c.accumulators = 2;
    if (kernel::tensor_layout(c).columns > kernel::kTensorColumns) c.accumulators = 1;
    c.bias = s.bias;
    c.quantized = scaled_columns(s) > 1;
    c.gather = s.gather;
    if (!fit(s, d, c)) {
      candidate.possible = false;
      candidate.reason = "two stages and the sinks' staging do not fit the shared memory";
    }
    all.push_back(candidate);
  };
  // A grid of the most tiles there can be is mostly empty where every group may be as large as the largest.
  const bool bounded = s.grouping != Grouping::Masked && s.grouping != Grouping::Pointers;
  std::vector<TileSource> schedulings = {TileSource::Static};
  if (s.blackwell.tile_source) {
    schedulings = {*s.blackwell.tile_source};
  } else if (bounded || !s.known_rows.empty()) {
    schedulings.push_back(TileSource::LaunchControl);
  }
  // A given tile is one of operands that are not swapped, unless the caller says otherwise.
  const bool swap = s.blackwell.swap_ab.value_or(!s.blackwell.tile_m && !s.blackwell.tile_n);
  for (int cluster : {1, 2}) {
    if (!swap || (s.blackwell.cluster && *s.blackwell.cluster != cluster) ||
        (s.blackwell.tile_n && *s.blackwell.tile_n != swapped_columns(s) * cluster))
      continue;
    if (cluster == 2 && d.sm_count < 2) continue;
    for (int rows : kSwappedRows) {
      if (s.blackwell.tile_m && *s.blackwell.tile_m != rows) continue;
      // Callers mostly align groups of rows to 128, and a quantized output's scales lie in tiles of as many.
      if (rows != 128 && s.grouping == Grouping::RowGroups && scaled_columns(s) > 1) continue;
      if (rows > 128 && (s.grouping == Grouping::RowGroups || has_two_products(s))) continue;
      for (TileSource scheduling : schedulings) add(cluster, rows, true, scheduling);
    }
  }
  for (int cluster : {1, 2}) {
    if (s.blackwell.swap_ab == true || (s.blackwell.cluster && *s.blackwell.cluster != cluster)) continue;
    if (s.blackwell.tile_m && *s.blackwell.tile_m != 128 * cluster) continue;
    // Groups of rows are aligned to the plan's tiles, and callers mostly align them to 128.
    if (cluster == 2 &&
        (d.sm_count < 2 || (s.grouping == Grouping::RowGroups && !s.blackwell.cluster && !s.blackwell.tile_m)))
      continue;
    for (int block_n = 256; block_n >= 16; block_n -= 16) {
      if ((s.blackwell.tile_n && *s.blackwell.tile_n != block_n) || block_n % scaled_columns(s) != 0) continue;
      if (block_n % 64 != 0 && (has_two_products(s) || (is_gated(s.activation) && has_wide_sinks(s)))) continue;
      // A half group (has_half_group in moxie/config.h) is handled 16 columns at a time: too few for a gate and for
      // custom sinks.
      if (block_n % 32 == 0 ||
          (has_scales(s.format) && cluster == 1 && !is_gated(s.activation) && s.custom_sinks.empty()))
        for (TileSource scheduling : schedulings) add(cluster, block_n, false, scheduling);
    }
  }
  return all;
}

}  // namespace

constexpr int64_t kMaxGrid = std::numeric_limits<int32_t>::max();

BlackwellPlan make_blackwell_plan(const Shape& s, const DeviceFigures& d) {
  check_choices(s, d);
  const RowEstimate work = estimate_rows(s);
  BlackwellPlan plan;
  plan.candidates = enumerate(s, d);
  for (Candidate<BlackwellConfig>& c : plan.candidates) {
    if (c.possible) score(s, d, work, c);
  }
  // Wide tiles are enumerated first: among equals the wider one, which reads A less often.
  sort_candidates(plan.candidates, d);
  if (s.blackwell != BlackwellTuning{}) plan.source = PlanSource::Caller;
  plan.config = plan.candidates.front().config;
  const BlackwellConfig& c = plan.config;
  plan.panel_columns = choose_panel(s, d, kernel::cluster_tile_rows(c) / (c.swap_ab ? 1 : c.cluster),
                                    kernel::block_columns(c), kernel::cluster_tile_columns(c));
  plan.tiles = c.scheduling == TileSource::LaunchControl || s.known_rows.empty()
                   ? c.cluster * most_cluster_tiles(s, kernel::cluster_tile_rows(c), kernel::cluster_tile_columns(c))
                   : int64_t(c.cluster * count_cluster_tiles(s, work, kernel::cluster_tile_rows(c),
                                                             kernel::cluster_tile_columns(c)));
  if (c.scheduling == TileSource::LaunchControl && plan.tiles > kMaxGrid)
    reject(
        fmt::format("tile_source is launch-control, but a grid of {} blocks, the most tiles there can be, is too large",
                    plan.tiles));
  return plan;
}

std::string describe(const BlackwellConfig& c) {
  return fmt::format(
      "{} {}x{}x{}, {} stages, {} accumulator{}{}{}{}{}", to_string(c.format), kernel::cluster_tile_rows(c),
      kernel::cluster_tile_columns(c), kernel::stage_elements(c), c.stages, c.accumulators,
      c.accumulators == 1 ? "" : "s", c.cluster == 2 ? ", a pair of blocks" : "", c.swap_ab ? ", operands swapped" : "",
      c.scheduling == TileSource::LaunchControl ? ", launch control" : "", c.gather ? ", gathered rows" : "");
}

BlackwellTuning tuning_of(const BlackwellConfig& c) {
  return {kernel::cluster_tile_rows(c), kernel::cluster_tile_columns(c), c.cluster, c.scheduling, c.swap_ab};
}

PlanInfo info_of(const Shape& shape, const BlackwellPlan& plan) {
  PlanInfo info = make_info(shape, plan, kClock);
  info.tensor_columns = kernel::tensor_layout(plan.config).columns;
  return info;
}

}  // namespace moxie::plan
