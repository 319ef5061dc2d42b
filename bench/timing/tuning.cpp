// SPDX-License-Identifier: Apache-2.0
// See tuning.h.
#include "bench/timing/tuning.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "moxie/names.h"

namespace moxie::timing {

namespace {

auto choice_of(const TunedHopper& t) { return std::tuple(t.schedule, t.tile_m, t.tile_n, t.multicast); }
auto shape_of(const TunedHopper& t) { return std::tuple(t.grouping, t.n, t.k, t.gated); }

template <class Enum>
std::string_view identifier(Enum value) {
  return names<Enum>()[static_cast<size_t>(value)].identifier;
}

double fastest(const Measured& m) {
  double least = std::numeric_limits<double>::infinity();
  for (const auto& candidate : m.candidates) least = std::min(least, candidate.seconds);
  return least;
}

}  // namespace

std::vector<size_t> choose_candidates(const std::vector<Measured>& measured, double slack) {
  std::vector<size_t> chosen(measured.size());
  std::set<size_t> open;
  for (size_t i = 0; i < measured.size(); ++i) open.insert(i);
  while (!open.empty()) {
    // Choose the kernel that is good enough for most of the open products, among equals the one that loses least.
    struct Merit {
      int problems = 0;
      double loss = 0;
    };
    std::map<std::tuple<std::string, decltype(choice_of({}))>, Merit> kernels;
    for (size_t i : open) {
      const double least = fastest(measured[i]);
      for (const auto& candidate : measured[i].candidates) {
        if (candidate.seconds > least * (1 + slack)) continue;
        Merit& merit = kernels[{measured[i].kernel_class, choice_of(candidate.choice)}];
        ++merit.problems;
        merit.loss += candidate.seconds / least - 1;
      }
    }
    const auto best = std::max_element(kernels.begin(), kernels.end(), [](const auto& a, const auto& b) {
      return std::pair(a.second.problems, -a.second.loss) < std::pair(b.second.problems, -b.second.loss);
    });
    const auto& kernel_class = std::get<0>(best->first);
    const auto& choice = std::get<1>(best->first);
    for (auto i = open.begin(); i != open.end();) {
      const Measured& m = measured[*i];
      const double least = fastest(m);
      const auto served = std::find_if(m.candidates.begin(), m.candidates.end(), [&](const auto& candidate) {
        return choice_of(candidate.choice) == choice && candidate.seconds <= least * (1 + slack);
      });
      if (m.kernel_class == kernel_class && served != m.candidates.end()) {
        chosen[*i] = static_cast<size_t>(served - m.candidates.begin());
        i = open.erase(i);
      } else {
        ++i;
      }
    }
  }
  return chosen;
}

std::vector<TunedHopper> make_table(const std::vector<Measured>& measured, const std::vector<size_t>& chosen) {
  std::vector<size_t> order(measured.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::tuple(shape_of(measured[a].shape), measured[a].rows) <
           std::tuple(shape_of(measured[b].shape), measured[b].rows);
  });
  std::vector<TunedHopper> table;
  for (size_t place = 0; place < order.size(); ++place) {
    const Measured& m = measured[order[place]];
    const TunedHopper& choice = m.candidates[chosen[order[place]]].choice;
    const Measured* before = place > 0 ? &measured[order[place - 1]] : nullptr;
    const bool first = before == nullptr || shape_of(before->shape) != shape_of(m.shape);
    if (!first && before->rows == m.rows) continue;  // measured twice
    TunedHopper row = m.shape;
    row.schedule = choice.schedule;
    row.tile_m = choice.tile_m;
    row.tile_n = choice.tile_n;
    row.multicast = choice.multicast;
    row.rows_from = 0;
    row.rows_to = row.tile_m == 8 ? kMostMeanRowsOf8 : std::numeric_limits<int32_t>::max();
    if (!first) {
      TunedHopper& last = table.back();
      if (choice_of(last) == choice_of(row)) continue;
      const auto boundary = static_cast<int64_t>(
          std::sqrt(static_cast<double>(std::max<int64_t>(before->rows, 1)) * static_cast<double>(m.rows)));
      last.rows_to = std::max(boundary, before->rows);
      if (last.tile_m == 8) last.rows_to = std::min<int64_t>(last.rows_to, kMostMeanRowsOf8);
      row.rows_from = last.rows_to + 1;
    }
    table.push_back(row);
  }
  return table;
}

std::string include_line(const TunedHopper& row) {
  return fmt::format("{{Grouping::{}, {}, {}, {}, {}, {}, WarpSchedule::{}, {}, {}, Multicast::{}}},",
                     identifier(row.grouping), row.n, row.k, row.rows_from, row.rows_to, row.gated,
                     identifier(row.schedule), row.tile_m, row.tile_n, identifier(row.multicast));
}

}  // namespace moxie::timing
