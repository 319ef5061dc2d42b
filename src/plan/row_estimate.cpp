// SPDX-License-Identifier: Apache-2.0
// The rows of groups and the tiles that they make.
#include "plan/row_estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace moxie::plan {
namespace {

// Classes of equal groups that stand for many different ones. Scattered groups differ less than skewed ones.
constexpr int64_t kScatteredClasses = 8, kSkewedClasses = 16;

// What the extents tell of a group whose rows only the device knows. Rounded to a power of four, so that the choices
// for all values of m are few: a model needs a handful of kernels, not one for every batch size. With row groups m
// follows from the alignment, which follows from the plan, so there m tells nothing.
double estimated_rows(const Shape& s) {
  if (s.grouping == Grouping::RowGroups) return kTypicalRows;
  if (s.grouping == Grouping::Offsets) return double(planned_rows(planned_range(s.m, s.groups)));
  return double(planned_rows(planned_range(std::min(s.m, int64_t(kTypicalRows)), 1)));
}

}  // namespace

int planned_range(int64_t total, int64_t groups) {
  // The power of four that is nearest to the mean, on a logarithmic scale: the bounds are its doubles.
  int range = 0;
  while (range + 1 < kPlannedRanges && total >= 2 * planned_rows(range) * groups) ++range;
  return range;
}

RowEstimate estimate_rows(const Shape& s) {
  RowEstimate w;
  if (!s.known_rows.empty()) {
    w.exact = true;
    for (int64_t r : s.known_rows) w.rows.push_back({double(r), 1});
  } else if (s.grouping == Grouping::Dense || s.grouping == Grouping::Batched || s.grouping == Grouping::KGroups) {
    w.exact = true;
    w.rows.push_back({double(s.m), double(s.groups)});
  } else {
    // With a hint, m may tell how many groups have rows at all: a token meets few of them.
    const bool shared = s.grouping == Grouping::Offsets && s.expected_rows;
    w.rows.push_back({s.expected_rows ? double(*s.expected_rows) : estimated_rows(s),
                      double(shared ? std::min(s.groups, s.m) : s.groups)});
  }
  return w;
}

RowEstimate balanced_rows(int64_t total, int64_t groups) {
  RowEstimate w;
  w.exact = true;
  const int64_t more = total % groups;
  if (more > 0) w.rows.push_back({double(total / groups + 1), double(more)});
  w.rows.push_back({double(total / groups), double(groups - more)});
  return w;
}

RowEstimate scattered_rows(int64_t total, int64_t groups) {
  const double mean = double(total) / double(groups), share = 1 / double(groups);
  RowEstimate w;
  w.exact = true;
  const int64_t classes = std::min(kScatteredClasses, groups);
  for (int64_t i = 0; i < classes; ++i) {
    const int64_t from = i * groups / classes, to = (i + 1) * groups / classes;
    // A quantile of the binomial distribution: that of the normal one, by Tukey's lambda, and the first term of what
    // skewness adds to it (Cornish and Fisher).
    const double below = double(from + to) / 2 / double(groups);
    const double z = 4.91 * (std::pow(below, 0.14) - std::pow(1 - below, 0.14));
    const double exact = mean + z * std::sqrt(mean * (1 - share)) + (1 - 2 * share) * (z * z - 1) / 6;
    const double rows = std::max(0.0, std::round(exact)), of_class = double(to - from);
    if (!w.rows.empty() && w.rows.back().rows == rows) {
      w.rows.back().groups += of_class;
    } else {
      w.rows.push_back({rows, of_class});
    }
  }
  return w;
}

RowEstimate skewed_rows(int64_t total, int64_t groups) {
  double sum = 0;
  for (int64_t r = 1; r <= groups; ++r) sum += 1 / std::sqrt(double(r));
  std::vector<int64_t> rows;
  double before = 0;
  int64_t given = 0;
  for (int64_t r = 1; r <= groups; ++r) {
    before += 1 / std::sqrt(double(r));
    const int64_t end = std::llround(before / sum * double(total));
    rows.push_back(end - given);
    given = end;
  }
  std::sort(rows.begin(), rows.end());
  RowEstimate w;
  w.exact = true;
  const int64_t classes = std::min(kSkewedClasses, groups);
  for (int64_t i = 0; i < classes; ++i) {
    const int64_t from = i * groups / classes, to = (i + 1) * groups / classes;
    w.rows.push_back({double(rows[size_t((from + to) / 2)]), double(to - from)});
  }
  return w;
}

std::vector<RowEstimate> estimate_routings(const Shape& s) {
  const RowEstimate w = estimate_rows(s);
  constexpr double kMostGroups = 4096;  // beyond, sorting them would take longer than the choice is worth
  if (w.exact || w.rows.front().groups > kMostGroups) return {w};
  const auto groups = int64_t(w.rows.front().groups);
  if (groups < 2) return {w};
  const auto total = int64_t(w.rows.front().rows * double(groups));
  // A mean that nobody has given is that of a range of totals.
  std::vector<RowEstimate> routings = {s.expected_rows ? balanced_rows(total, groups) : w,
                                       scattered_rows(total, groups), skewed_rows(total, groups)};
  routings[0].weight = routings[1].weight = 0.5;
  return routings;
}

int64_t most_cluster_tiles(const ProblemShape& s, int cluster_rows, int cluster_columns) {
  int64_t row_tiles = (s.m + cluster_rows - 1) / cluster_rows;
  // Offsets: every group may end with a started tile. Others: every group may be full.
  if (s.grouping == Grouping::Offsets) {
    row_tiles += std::max<int64_t>(std::min(s.groups, s.m) - 1, 0);
  } else if (s.grouping != Grouping::RowGroups) {
    row_tiles *= s.groups;
  }
  return row_tiles * ((s.n + cluster_columns - 1) / cluster_columns);
}

double mean_rows(const RowEstimate& w) {
  double rows = 0, groups = 0;
  for (const EqualGroups& r : w.rows) rows += r.rows * r.groups, groups += r.groups;
  return rows / std::max(groups, 1.0);
}

double count_cluster_tiles(const Shape& s, const RowEstimate& w, int cluster_rows, int cluster_columns) {
  const double step = cluster_rows;
  double row_steps = 0;
  for (const EqualGroups& r : w.rows) {
    double steps = std::ceil(r.rows / step);
    if (!w.exact && r.rows > step) steps = r.rows / step + 0.5;
    row_steps += steps * r.groups;
  }
  return row_steps * double((s.n + cluster_columns - 1) / cluster_columns);
}

int scaled_columns(const Shape& s) {
  if (s.out && is_quantized(*s.out)) return is_gated(s.activation) ? 2 * kScaleBlock : kScaleBlock;
  return s.pre && is_quantized(*s.pre) ? kScaleBlock : 1;
}

bool has_wide_sinks(const Shape& s) {
  return std::any_of(s.custom_sinks.begin(), s.custom_sinks.end(), [](const auto& needs) { return !needs.narrow; });
}

int choose_panel(const Shape& s, const DeviceFigures& d, int block_m, int block_n, int cluster_columns) {
  const double area = double(d.sm_count) * block_m * block_n;
  const double square = std::clamp(std::round(std::sqrt(area) / cluster_columns), 1.0, 32.0);
  const double columns = double((s.n + cluster_columns - 1) / cluster_columns);
  const double panels = std::max(1.0, std::ceil(columns / (1.1 * square)));
  return std::max(1, int(std::ceil(columns / panels)));
}

}  // namespace moxie::plan
