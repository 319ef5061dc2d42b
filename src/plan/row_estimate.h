// SPDX-License-Identifier: Apache-2.0
// How many rows the groups have, known or estimated, and the tiles that they make. Shared by both planners.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "moxie/error.h"
#include "plan/plan.h"

namespace moxie::plan {

// The rows of a group that neither the host nor m tells: 4,096 tokens x 4 experts over 32.
constexpr double kTypicalRows = 512;

// Groups that have the same number of rows.
struct EqualGroups {
  double rows;
  double groups;
};

struct RowEstimate {
  std::vector<EqualGroups> rows;
  bool exact = false;  // the rows are known, not estimated
  double weight = 1;   // beside other routings that a product may meet
};

RowEstimate estimate_rows(const Shape& shape);
double mean_rows(const RowEstimate& work);

// The rows of groups that share `total` rows evenly, those where each row is of any group with the same chance, and
// those where the group of popularity r has rows in proportion to 1 / sqrt(r), as the experts of real routers show. Of
// many different groups, some stand for the others.
RowEstimate balanced_rows(int64_t total, int64_t groups);
RowEstimate scattered_rows(int64_t total, int64_t groups);
RowEstimate skewed_rows(int64_t total, int64_t groups);

// What a product may meet: its rows where the host knows them, else groups that are equally popular, of equal rows and
// of scattered ones, and skewed groups, which count as much as these two.
std::vector<RowEstimate> estimate_routings(const Shape& shape);

// The geometric mean of times over routings, so that each counts by how much slower a choice makes it.
template <class SecondsOf>
double mean_seconds(const std::vector<RowEstimate>& routings, const SecondsOf& seconds_of) {
  double logarithms = 0, weights = 0;
  for (const RowEstimate& w : routings) logarithms += w.weight * std::log(seconds_of(w)), weights += w.weight;
  return std::exp(logarithms / weights);
}

// The rows a group for which Offsets are planned when a call has `total` rows of `groups` groups: 16, 64, 256, 1024 or
// 4096. planned_range() numbers them.
constexpr int kPlannedRanges = 5;
constexpr int64_t planned_rows(int range) { return int64_t{16} << (2 * range); }
int planned_range(int64_t total, int64_t groups);

// The most cluster tiles that there can be, whatever the groups' rows are.
int64_t most_cluster_tiles(const ProblemShape& shape, int cluster_rows, int cluster_columns);

// Tiles of cluster_rows x cluster_columns elements. An estimated group ends anywhere in its last tile, so half a tile
// is added on average.
double count_cluster_tiles(const Shape& shape, const RowEstimate& work, int cluster_rows, int cluster_columns);

// What the width of a tile must be a multiple of. A scale of a quantized output stands for 32 of its columns, which no
// two tiles may share. 1 where no output is quantized.
int scaled_columns(const Shape& shape);

// A custom sink wants 32 columns of its value at once (kernels/moxie/epilogue/sink.cuh): 64 of a gated product.
bool has_wide_sinks(const Shape& shape);

// The staging of every sink.
template <class Config>
std::vector<SinkNeeds> sink_needs(const Shape& s, const Config& c) {
  std::vector<SinkNeeds> needs;
  needs.reserve(2 + s.custom_sinks.size());
  if (s.pre) needs.push_back(kernel::store_needs(c, true, *s.pre));
  if (s.out) needs.push_back(kernel::store_needs(c, false, *s.out));
  needs.insert(needs.end(), s.custom_sinks.begin(), s.custom_sinks.end());
  return needs;
}

// Sets stages to the deepest ring of up to `most` that fits beside the sinks' staging; 0 when not even two stages do.
template <class Config>
int deepest_ring(const Shape& s, const DeviceFigures& d, Config& c, int most = 8) {
  const auto needs = sink_needs(s, c);
  for (c.stages = most; c.stages >= 2; --c.stages) {
    if (kernel::shared_bytes(c, needs.data(), int(needs.size())) <= d.shared_bytes) return c.stages;
  }
  return c.stages = 0;
}

// Chooses stages and store buffers: the deepest ring, two store buffers when four stages remain. False when not even
// two stages fit.
template <class Config>
bool fit(const Shape& s, const DeviceFigures& d, Config& c) {
  c.store_buffers = 2;
  if (deepest_ring(s, d, c) >= 4) return true;
  c.store_buffers = 1;
  return deepest_ring(s, d, c) >= 2;
}

// Cluster columns walked together: the part of the product in flight on the device at once is then about square, and
// reads the least of A and B. All panels are about as wide: one of a single column would read A for nothing.
int choose_panel(const Shape& shape, const DeviceFigures& device, int block_m, int block_n, int cluster_columns);

// What both planners tell a caller of a plan. `clock`: cycles a second of the candidates' times.
template <class Config>
PlanInfo make_info(const Shape& s, const Plan<Config>& plan, double clock) {
  const Config& c = plan.config;
  const auto needs = sink_needs(s, c);
  const RowEstimate work = estimate_rows(s);
  PlanInfo info;
  info.kernel = describe(c);
  info.source = plan.source;
  info.tuning = tuning_of(c);
  info.stages = c.stages;
  info.store_buffers = c.store_buffers;
  info.shared_bytes = kernel::shared_bytes(c, needs.data(), int(needs.size()));
  info.panel_columns = plan.panel_columns;
  info.tiles = plan.tiles;
  info.mean_rows = mean_rows(work);
  info.rows_source = work.exact ? RowsSource::Given : s.expected_rows ? RowsSource::Expected : RowsSource::Assumed;
  const double k = s.grouping == Grouping::KGroups ? double(s.k) / double(s.groups) : double(s.k);
  for (const EqualGroups& r : work.rows) info.flops += 2 * r.groups * r.rows * double(s.n) * k;
  info.clock = clock;
  for (const Candidate<Config>& x : plan.candidates)
    info.candidates.push_back({describe(x.config), tuning_of(x.config), x.possible, x.cycles, x.reason});
  info.predicted_seconds = plan.candidates.front().cycles / clock;
  return info;
}

// Puts the candidates that are possible first, the fastest of them at the front. Stable: among equals the one that was
// enumerated first. Throws Error(InvalidArgument) when none is possible.
template <class Config>
void sort_candidates(std::vector<Candidate<Config>>& candidates, const DeviceFigures& device) {
  std::stable_sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
    if (a.possible != b.possible) return a.possible;
    return a.possible && a.cycles < b.cycles;
  });
  if (candidates.empty() || !candidates.front().possible)
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("no configuration is possible: the sinks' staging and two stages of operands exceed the {} "
                            "bytes of shared memory of a block",
                            device.shared_bytes));
}

}  // namespace moxie::plan
