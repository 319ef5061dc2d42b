// SPDX-License-Identifier: Apache-2.0
// Measured winners: the tables that are built in, and in front of them the one that MOXIE_TUNED names.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "moxie/error.h"
#include "moxie/names.h"
#include "plan/plan.h"

namespace moxie {
namespace {

template <class Enum>
bool find(const std::string& word, Enum& value) {
  const std::optional<Enum> found = parse<Enum>(word);
  if (found) value = *found;
  return found.has_value();
}

bool parse_row(const std::string& line, TunedHopper& row) {
  std::istringstream in(line);
  std::string grouping, gate, schedule, tile, multicast, more;
  if (!(in >> grouping >> row.n >> row.k >> row.rows_from >> row.rows_to >> gate >> schedule >> tile >> multicast))
    return false;
  char times = 0, rest = 0;
  std::istringstream extents(tile);
  return !(in >> more) && extents >> row.tile_m >> times >> row.tile_n && times == 'x' && !(extents >> rest) &&
         find(grouping, row.grouping) && (gate == "plain" || gate == "gated") && (row.gated = gate == "gated", true) &&
         find(schedule, row.schedule) && find(multicast, row.multicast);
}

}  // namespace

std::string tuned_line(const TunedHopper& row) {
  return fmt::format("{} {} {} {} {} {} {} {}x{} {}", to_string(row.grouping), row.n, row.k, row.rows_from, row.rows_to,
                     row.gated ? "gated" : "plain", to_string(row.schedule), row.tile_m, row.tile_n,
                     to_string(row.multicast));
}

std::vector<TunedHopper> read_tuned(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Error(ErrorCode::InvalidArgument, fmt::format("MOXIE_TUNED names {}, which cannot be opened", path));
  std::vector<TunedHopper> rows;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    line.resize(std::min(line.find('#'), line.size()));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (TunedHopper row{}; parse_row(line, row)) {
      rows.push_back(row);
    } else {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("{}, which MOXIE_TUNED names: line {} is not 'GROUPING N K ROWS_FROM ROWS_TO plain|gated "
                              "SCHEDULE ROWSxCOLUMNS none|a|b'",
                              path, number));
    }
  }
  return rows;
}

namespace plan {

std::span<const TunedHopper> tuned_hopper(const DeviceFigures& device) {
  struct Table {
    std::string_view device;
    std::vector<TunedHopper> rows;
  };
  static const std::vector<Table> tables = [] {
    std::vector<Table> all = {
#include "plan/tuned_hopper.inc"
    };
    all.push_back({});  // of any other device
    std::vector<TunedHopper> first;
    if (const char* path = std::getenv("MOXIE_TUNED"); path != nullptr && *path != '\0') first = read_tuned(path);
    for (Table& table : all) table.rows.insert(table.rows.begin(), first.begin(), first.end());
    return all;
  }();
  // Clocks and memories of one product differ a little from batch to batch.
  const auto is_like = [&](const Table& table) {
    const std::optional<DeviceFigures> d = named_device(table.device);
    return d && device.sm_count == d->sm_count && device.l2_bytes == d->l2_bytes &&
           std::abs(device.memory_rate / d->memory_rate - 1) < 0.05;
  };
  return std::find_if(tables.begin(), tables.end() - 1, is_like)->rows;
}

}  // namespace plan
}  // namespace moxie
