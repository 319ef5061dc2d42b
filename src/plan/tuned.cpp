// Measured winners: the table that is built in, and in front of it the one that MOXIE_TUNED names.
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "moxie/error.h"
#include "plan/plan.h"

namespace moxie::plan {

namespace {

template <class T>
using Words = std::vector<std::pair<const char*, T>>;
const Words<Grouping> kGroupings = {{"dense", Grouping::Dense},     {"batched", Grouping::Batched},
                                    {"offsets", Grouping::Offsets}, {"row-groups", Grouping::RowGroups},
                                    {"masked", Grouping::Masked},   {"pointers", Grouping::Pointers}};
const Words<bool> kGates = {{"plain", false}, {"gated", true}};
const Words<WarpSchedule> kSchedules = {{"cooperative", WarpSchedule::Cooperative}, {"pingpong", WarpSchedule::PingPong}};
const Words<Multicast> kMulticasts = {
    {"none", Multicast::None}, {"a", Multicast::A}, {"b", Multicast::B}, {"either", Multicast::Either}};

template <class T>
bool find(const Words<T>& words, const std::string& word, T& value) {
  for (const auto& [name, named] : words) {
    if (word == name) return value = named, true;
  }
  return false;
}

template <class T>
const char* name_of(const Words<T>& words, T value) {
  for (const auto& [name, named] : words) {
    if (named == value) return name;
  }
  return "?";
}

bool parse(const std::string& line, TunedHopper& row) {
  std::istringstream in(line);
  std::string grouping, gate, schedule, tile, multicast, more;
  if (!(in >> grouping >> row.n >> row.k >> row.rows_from >> row.rows_to >> gate >> schedule >> tile >> multicast))
    return false;
  char times = 0, rest = 0;
  std::istringstream extents(tile);
  return !(in >> more) && extents >> row.tile_m >> times >> row.tile_n && times == 'x' && !(extents >> rest) &&
         find(kGroupings, grouping, row.grouping) && find(kGates, gate, row.gated) &&
         find(kSchedules, schedule, row.schedule) && find(kMulticasts, multicast, row.multicast);
}

}  // namespace

std::string tuned_line(const TunedHopper& row) {
  return fmt::format("{} {} {} {} {} {} {} {}x{} {}", name_of(kGroupings, row.grouping), row.n, row.k, row.rows_from,
                     row.rows_to, name_of(kGates, row.gated), name_of(kSchedules, row.schedule), row.tile_m, row.tile_n,
                     name_of(kMulticasts, row.multicast));
}

std::vector<TunedHopper> read_tuned(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Error(ErrorCode::InvalidArgument, fmt::format("MOXIE_TUNED names {}, which cannot be opened", path));
  std::vector<TunedHopper> rows;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    line.resize(std::min(line.find('#'), line.size()));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (TunedHopper row{}; parse(line, row)) {
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

std::span<const TunedHopper> tuned_hopper() {
  static const std::vector<TunedHopper> table = [] {
    std::vector<TunedHopper> rows;
    if (const char* path = std::getenv("MOXIE_TUNED"); path != nullptr && *path != '\0') rows = read_tuned(path);
    const std::vector<TunedHopper> built_in = {
#include "plan/tuned_hopper.inc"
    };
    rows.insert(rows.end(), built_in.begin(), built_in.end());
    return rows;
  }();
  return table;
}

}  // namespace moxie::plan
