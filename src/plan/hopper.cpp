// SPDX-License-Identifier: Apache-2.0
// Plans for Hopper: the candidates, what each would cost, and the choice among them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "moxie/error.h"
#include "plan/hopper_cost.h"
#include "plan/packed.h"
#include "plan/plan.h"
#include "plan/row_estimate.h"

namespace moxie::plan {
namespace {

using kernel::HopperConfig;

double count_tiles(const Shape& s, const RowEstimate& w, const HopperConfig& c) {
  return c.cluster * count_cluster_tiles(s, w, kernel::cluster_tile_rows(c), kernel::cluster_tile_columns(c));
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void score(const Shape& s, const DeviceFigures& d, const std::vector<RowEstimate>& routings,
           Candidate<HopperConfig>& candidate) {
  const int panel = hopper_panel(s, d, candidate.config);
  HopperTime first;
  const auto seconds_of = [&](const RowEstimate& w) {
    const HopperTime time =
        has_packed_b(s) ? packed_time_of(s, d, w, candidate.config) : time_of(s, d, w, candidate.config, panel);
    if (&w == &routings.front()) first = time;
    return time.total;
  };
  candidate.cycles = mean_seconds(routings, seconds_of) * d.clock;
  candidate.reason = fmt::format("{}; {:.4g} tiles, {:.3g} a SM; compute {:.1f} us, L2 {:.1f}, HBM {:.1f}", first.limit,
                                 first.tiles, first.waves, first.compute * 1e6, first.l2 * 1e6, first.memory * 1e6);
}

[[noreturn]] void reject(const std::string& sentence) { throw Error(ErrorCode::InvalidArgument, sentence); }

// Groupings whose clusters may share one operand or the other.
bool has_pairs(Grouping g) { return g == Grouping::Offsets || g == Grouping::Masked; }

// Rows of a group below which HopperConfig::decode_tile pays: a tile in two or more is the last of its group. Where all
// tiles are full, it costs 1 to 5% (bench/notes/hopper.md).
constexpr int kDecodeRows = 256;
bool has_decode_rows(const Shape& s, const RowEstimate& work) {
  return mean_rows(work) < kDecodeRows && !kernel::operands_need_group_maps(s.grouping);
}

// Tiles of 8 rows: B's stages then take nearly all shared memory, and more of it is on its way. A group with more rows
// would read its weights again.
bool may_take_8_rows(const Shape& s, const RowEstimate& work) {
  return has_decode_rows(s, work) && scaled_columns(s) == 1 && !has_wide_sinks(s);
}
bool tile_of_8_pays(const RowEstimate& work) {
  return mean_rows(work) <= kMostMeanRowsOf8 &&
         std::all_of(work.rows.begin(), work.rows.end(), [](const EqualGroups& r) { return r.rows <= 8; });
}

// Columns of a ping-pong tile of 128 rows. Beside 160 accumulators erff's polynomial and quantization would spill.
int widest_pingpong(const Shape& s) { return s.activation == Activation::GeluErf || scaled_columns(s) > 1 ? 128 : 160; }

// Columns of a tile of 256 rows. Who copies gathered rows leaves too few registers for erff beside 128 accumulators.
int widest_of_256(const Shape& s) { return s.activation == Activation::GeluErf && s.gather ? 96 : 128; }

// Every pair of choices that no configuration can satisfy, named.
void check_choices(const Shape& s, const DeviceFigures& d) {
  if (s.gather && s.hopper.multicast == Multicast::A) reject("multicast shares a, but gathered rows are not shared");
  if (has_packed_b(s)) {
    check_packed_choices(s, d);
    return;
  }
  if (s.hopper.tile_m && *s.hopper.tile_m != 8 && *s.hopper.tile_m != 64 && *s.hopper.tile_m != 128 &&
      *s.hopper.tile_m != 256)
    reject(fmt::format("tile_m is {}, but only 8, 64, 128 and 256 are possible", *s.hopper.tile_m));
  if (s.hopper.tile_m == 8 &&
      (s.hopper.schedule == WarpSchedule::Cooperative || s.hopper.cluster == 2 ||
       s.hopper.multicast.value_or(Multicast::None) != Multicast::None || !may_take_8_rows(s, estimate_rows(s))))
    reject(
        fmt::format("tile_m is 8, which is possible only with the ping-pong schedule on one block, groups of fewer "
                    "than {} rows that are not given by pointers, and plain outputs",
                    kDecodeRows));
  if (s.hopper.tile_n && (*s.hopper.tile_n < 64 || *s.hopper.tile_n > 256 || *s.hopper.tile_n % 32 != 0))
    reject(fmt::format("tile_n is {}, but only 64 to 256 in steps of 32 are possible", *s.hopper.tile_n));
  if (s.hopper.tile_n && *s.hopper.tile_n % scaled_columns(s) != 0)
    reject(fmt::format("tile_n is {}, but with a quantized output only multiples of {} are possible", *s.hopper.tile_n,
                       scaled_columns(s)));
  if (s.hopper.cluster && *s.hopper.cluster != 1 && *s.hopper.cluster != 2)
    reject(fmt::format("cluster is {}, but only 1 and 2 are possible", *s.hopper.cluster));
  if (s.hopper.multicast && *s.hopper.multicast != Multicast::None && s.hopper.cluster && *s.hopper.cluster == 1)
    reject("multicast of an operand needs cluster 2, but cluster is 1");
  if (s.hopper.cluster && *s.hopper.cluster == 2 && s.hopper.multicast && *s.hopper.multicast == Multicast::None)
    reject("cluster 2 shares an operand by multicast, but multicast is None");
  if (s.hopper.multicast == Multicast::Either && !has_pairs(s.grouping))
    reject("multicast is Either, which is possible with groups by offsets and masked ones only");
  if (((s.hopper.cluster && *s.hopper.cluster == 2) ||
       (s.hopper.multicast && *s.hopper.multicast != Multicast::None)) &&
      d.sm_count < 2)
    reject(fmt::format("cluster 2 needs two SMs, but the device has {}", d.sm_count));
  if (s.hopper.schedule == WarpSchedule::Cooperative && s.hopper.tile_m == 64)
    reject("tile_m 64 is not possible with the cooperative schedule, whose two warp groups share 128 or 256 rows");
  if (s.hopper.schedule == WarpSchedule::PingPong && s.hopper.tile_m == 256)
    reject("tile_m 256 is not possible with the ping-pong schedule, whose tiles have 8, 64 or 128 rows");
  const auto beyond = [&](int m, int n) { return s.hopper.tile_m == m && s.hopper.tile_n && *s.hopper.tile_n > n; };
  if (beyond(256, widest_of_256(s)) || (s.hopper.schedule == WarpSchedule::PingPong && beyond(128, widest_pingpong(s))))
    reject(fmt::format("a {}x{} tile is not possible{}: its accumulators do not fit the registers", *s.hopper.tile_m,
                       *s.hopper.tile_n, *s.hopper.tile_m == 256 ? "" : " with the ping-pong schedule"));
}

bool allowed(const Shape& s, const HopperConfig& c) {
  return (!s.hopper.schedule || *s.hopper.schedule == c.schedule) &&
         (!s.hopper.tile_m || *s.hopper.tile_m == c.block_m) && (!s.hopper.tile_n || *s.hopper.tile_n == c.block_n) &&
         (!s.hopper.cluster || *s.hopper.cluster == c.cluster) &&
         (!s.hopper.multicast || *s.hopper.multicast == c.multicast) && c.block_n % scaled_columns(s) == 0;
}

// More than eight pay where a stage is small and weights stream from HBM.
constexpr int kMostStages = 14, kMostStagesOf8 = 24;

// Chooses stages, store buffers and the columns that the epilogue handles at once; false when not even two stages fit.
// Ping-pong hides its epilogue but takes 64 bytes of operands a clock at 128x128, which an SM can barely get: only a
// deep ring keeps the tensor cores fed, so up to eight stages staging gives way to them. A cooperative epilogue is not
// hidden: beyond four stages, larger and more staging gains more (bench/notes/hopper.md).
bool choose_staging(const Shape& s, const DeviceFigures& d, HopperConfig& c) {
  HopperConfig best;
  best.stages = 0;
  const auto rank = [](const HopperConfig& x) {
    const int last = x.schedule == WarpSchedule::PingPong ? -x.epilogue_n : x.epilogue_n;
    return std::array{std::min(x.stages, x.schedule == WarpSchedule::PingPong ? 8 : 4), last, x.store_buffers,
                      x.stages};
  };
  const int least = std::max(scaled_columns(s), has_wide_sinks(s) && is_gated(s.activation) ? 64 : 32);
  for (int epilogue_n : {64, 32}) {
    if (c.block_n % epilogue_n != 0 || epilogue_n < least) continue;
    for (int buffers : {1, 2}) {
      c.epilogue_n = epilogue_n;
      c.store_buffers = buffers;
      if (deepest_ring(s, d, c, c.block_m < 64 ? kMostStagesOf8 : kMostStages) > 0 &&
          (best.stages == 0 || rank(c) > rank(best)))
        best = c;
    }
  }
  if (best.stages == 0) return false;
  c = best;
  return true;
}

}  // namespace

std::vector<Candidate<HopperConfig>> hopper_candidates(const Shape& s, const DeviceFigures& d) {
  const RowEstimate work = estimate_rows(s);
  const bool decode_tile = has_decode_rows(s, work);
  std::vector<Candidate<HopperConfig>> all;
  const bool packed = has_packed_b(s);
  const bool takes_8_rows = may_take_8_rows(s, work) && (tile_of_8_pays(work) || s.hopper.tile_m == 8);
  const std::span<const HopperTile> tiles = packed ? std::span<const HopperTile>(kPackedTiles) : kHopperTiles;
  for (const HopperTile& tile : tiles) {
    if (!packed && tile.schedule == WarpSchedule::PingPong && tile.m == 128 && tile.n > widest_pingpong(s)) continue;
    if (!packed && tile.m == 256 && tile.n > widest_of_256(s)) continue;
    if (!packed && tile.m == 8 && !takes_8_rows) continue;
    if (packed && tile.m < 64 && !may_take_8_rows(s, work)) continue;
    // Two blocks of accumulators and what a group with pointers needs would spill.
    if (packed && tile.m == 128 && tile.n == 256 && s.grouping == Grouping::Pointers) continue;
    for (Multicast multicast : {Multicast::None, Multicast::A, Multicast::B, Multicast::Either}) {
      if (packed && multicast != Multicast::None && (multicast != Multicast::A || tile.m < 64)) continue;
      if (multicast == Multicast::Either && !has_pairs(s.grouping)) continue;
      if (s.gather && multicast == Multicast::A) continue;
      Candidate<HopperConfig> candidate;
      HopperConfig& c = candidate.config;
      c.schedule = tile.schedule;
      c.grouping = s.grouping;
      c.block_m = tile.m;
      c.block_n = tile.n;
      c.multicast = multicast;
      c.cluster = multicast == Multicast::None ? 1 : 2;
      c.activation = s.activation;
      c.gate = is_gated(s.activation) ? s.gate : GateLayout::Interleaved;  // one kernel, whatever an unused choice says
      c.bias = s.bias;
      c.quantized = scaled_columns(s) > 1;
      c.decode_tile = decode_tile;
      c.b_format = s.b_format;
      c.gather = s.gather;
      if (packed) c.block_k = packed_block_k(tile.m);
      if (!allowed(s, c) || c.cluster > d.sm_count || (c.block_m == 8 && c.cluster > 1)) continue;
      if (!choose_staging(s, d, c)) {
        candidate.possible = false;
        candidate.reason = "two stages and the sinks' staging do not fit the shared memory";
      }
      all.push_back(candidate);
    }
  }
  return all;
}

// Clusters of an idle GPU are dealt to its eight GPCs in turn, and a GPC asks L2 once for what its multiprocessors want
// at the same time. Panels of 8 put c and c + 8 above each other, where both read the same B (bench/notes/hopper.md).
int hopper_panel(const Shape& s, const DeviceFigures& d, const HopperConfig& c) {
  constexpr int kGpcs = 8;
  const int columns = kernel::cluster_tile_columns(c);
  if (c.multicast == Multicast::A && c.block_m > 64 && ceil_div(s.n, columns) % kGpcs == 0) return kGpcs;
  return choose_panel(s, d, c.block_m, c.block_n, columns);
}

namespace {

// The candidate that the table names first for such groups; the end when it names none of them.
std::vector<Candidate<HopperConfig>>::iterator find_tuned(const Shape& s, double rows,
                                                          std::span<const TunedHopper> table,
                                                          std::vector<Candidate<HopperConfig>>& candidates) {
  for (const TunedHopper& t : table) {
    if (t.grouping != s.grouping || t.n != s.n || t.k != s.k || t.gated != is_gated(s.activation) ||
        rows < double(t.rows_from) || rows > double(t.rows_to))
      continue;
    const auto match = std::find_if(candidates.begin(), candidates.end(), [&](const auto& c) {
      return c.possible && c.config.schedule == t.schedule && c.config.block_m == t.tile_m &&
             c.config.block_n == t.tile_n && c.config.multicast == t.multicast;
    });
    if (match != candidates.end()) return match;
  }
  return candidates.end();
}

}  // namespace

HopperPlan make_hopper_plan(const Shape& s, const DeviceFigures& d, std::span<const TunedHopper> tuned) {
  check_choices(s, d);
  const RowEstimate work = estimate_rows(s);
  HopperPlan plan;
  plan.clock = d.clock;
  plan.candidates = hopper_candidates(s, d);
  const std::vector<RowEstimate> routings = estimate_routings(s);
  if (has_packed_b(s) && plan.candidates.empty())
    reject("no kernel for packed weights has this schedule, tile and multicast for such rows and sinks");
  for (auto& c : plan.candidates) {
    if (c.possible) score(s, d, routings, c);
  }
  sort_candidates(plan.candidates, d);

  if (s.hopper != HopperTuning{}) plan.source = PlanSource::Caller;
  const auto match = has_packed_b(s) ? plan.candidates.end() : find_tuned(s, mean_rows(work), tuned, plan.candidates);
  if (match != plan.candidates.end()) {
    std::rotate(plan.candidates.begin(), match, match + 1);
    if (plan.source == PlanSource::Model) plan.source = PlanSource::TunedTable;
  }
  plan.config = plan.candidates.front().config;
  const HopperConfig& c = plan.config;
  plan.panel_columns = hopper_panel(s, d, c);
  plan.tiles = s.known_rows.empty()
                   ? c.cluster * most_cluster_tiles(s, kernel::cluster_tile_rows(c), kernel::cluster_tile_columns(c))
                   : int64_t(count_tiles(s, work, c));
  return plan;
}

std::string describe(const HopperConfig& c) {
  std::string text =
      fmt::format("{} {}x{}x{}, {} stages", c.schedule == WarpSchedule::Cooperative ? "cooperative" : "ping-pong",
                  c.block_m, c.block_n, c.block_k, c.stages);
  if (kernel::has_packed_b(c)) text = "mxfp4 weights " + text;
  if (c.gather) text += ", gathered rows";
  if (c.cluster > 1)
    text += fmt::format(", cluster {} ({} multicast)", c.cluster,
                        c.multicast == Multicast::A   ? "A"
                        : c.multicast == Multicast::B ? "B"
                        : c.gather                    ? "B or no"
                                                      : "A or B");
  return text;
}

HopperTuning tuning_of(const HopperConfig& c) { return {c.schedule, c.block_m, c.block_n, c.cluster, c.multicast}; }

PlanInfo info_of(const Shape& shape, const HopperPlan& plan) {
  PlanInfo info = make_info(shape, plan, plan.clock);
  info.decode_tile = plan.config.decode_tile;
  return info;
}

}  // namespace moxie::plan
