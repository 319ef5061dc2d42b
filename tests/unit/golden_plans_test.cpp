// SPDX-License-Identifier: Apache-2.0
// Plans as they are, for a grid of problems and devices: which kernel each gets, what the cost models make of it, and
// the estimates of rows below. tests/golden/plans.txt holds them as text, so that no change of a constant or of a
// comparison in src/plan goes unnoticed. A change that is meant writes the file anew, and the difference is read:
//   MOXIE_WRITE_PLANS=1 build/bin/test_unit --gtest_filter='GoldenPlans.*'
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "moxie/device.h"
#include "moxie/error.h"
#include "moxie/names.h"
#include "plan/hopper_cost.h"
#include "plan/packed.h"
#include "plan/plan.h"
#include "plan/row_estimate.h"

namespace moxie::plan {
namespace {

using Lines = std::vector<std::string>;

// The same numbers on every machine.
class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}
  int64_t of(std::initializer_list<int64_t> values) { return values.begin()[random_() % values.size()]; }
  template <class T>
  const T& one_of(const std::vector<T>& values) {
    return values[random_() % values.size()];
  }
  bool once_in(uint32_t n) { return random_() % n == 0; }

 private:
  std::mt19937 random_;
};

struct NamedFigures {
  std::string name;
  DeviceFigures figures;
};

std::vector<NamedFigures> hopper_devices() {
  std::vector<NamedFigures> all;
  for (std::string_view name : device_names()) {
    if (named_device(name)->arch == 90) all.push_back({std::string(name), *named_device(name)});
  }
  const std::vector<NamedFigures> real = all;
  all.insert(all.end(), real.begin(), real.end());  // drawn more often than what follows
  DeviceFigures one, two, small;
  one.sm_count = 1;
  two.sm_count = 2;
  small.shared_bytes = 101376;
  all.push_back({"one-sm", one});
  all.push_back({"two-sms", two});
  all.push_back({"little-shared", small});
  return all;
}

std::vector<NamedFigures> blackwell_devices() {
  DeviceFigures one = *named_device("b200"), two = one, small = one;
  one.sm_count = 1;
  two.sm_count = 3;
  small.shared_bytes = 101376;
  const NamedFigures b200{"b200", *named_device("b200")};
  return {b200, b200, b200, b200, b200, {"one-sm", one}, {"three-sms", two}, {"little-shared", small}};
}

// Rows of the groups as the host may know them: equal, one that has most, or none at all.
std::vector<int64_t> known_rows(const Shape& s, Draw& draw) {
  std::vector<int64_t> rows(size_t(s.groups), s.grouping == Grouping::Offsets ? s.m / s.groups : s.m);
  const int64_t way = draw.of({0, 1, 2, 3});
  for (size_t g = 0; g < rows.size(); ++g) {
    if (way == 1) rows[g] /= int64_t(g + 1);
    if (way == 2 && g % 3 != 0) rows[g] = 0;
    if (way == 3) rows[g] = std::min<int64_t>(rows[g], int64_t(g % 11));
  }
  return rows;
}

// Draws everything that enters a plan. By `i` the grouping goes through all its values, and the activation through
// those up to Reglu.
Shape draw_shape(Draw& draw, int i, bool blackwell) {
  Shape s;
  s.grouping = Grouping(i % (blackwell ? 7 : 6));
  s.activation = Activation(i / 3 % 10);
  s.gate = GateLayout(draw.of({0, 1, 2}));
  s.groups = s.grouping == Grouping::Dense ? 1 : draw.of({1, 2, 3, 8, 32, 60, 128, 256, 5000});
  s.m = draw.of({0, 1, 5, 17, 64, 200, 300, 1024, 2048, 4096, 16384, 100000});
  s.n = draw.of({16, 64, 320, 1024, 1536, 2048, 2880, 4096, 5760, 7168, 28672});
  s.k = draw.of({0, 8, 200, 768, 2048, 2880, 4096, 7168});
  s.bias = draw.once_in(2);
  const auto type = [&] { return DataType(draw.of({0, 0, 1, 0, 1, 2, 3, 4})); };
  if (draw.once_in(3)) s.pre = type();
  if (!s.pre || draw.once_in(2)) s.out = type();
  if (blackwell) s.format = OperandFormat(draw.of({0, 1, 2}));
  if (draw.once_in(4)) s.expected_rows = draw.of({1, 2, 6, 16, 90, 300, 5000});
  if (draw.once_in(4) && (s.grouping == Grouping::Offsets || s.grouping == Grouping::Masked ||
                          s.grouping == Grouping::Pointers || s.grouping == Grouping::RowGroups))
    s.known_rows = known_rows(s, draw);
  if (draw.once_in(5)) s.custom_sinks.push_back({int(draw.of({0, 1024, 8192, 32768})), false, draw.once_in(2)});
  if (draw.once_in(12)) s.custom_sinks.push_back({1024, false, true, true});
  return s;
}

std::string words_of(const Shape& s) {
  std::string text = fmt::format("{} {}x{}x{}x{} {}{}", to_string(s.grouping), s.groups, s.m, s.n, s.k,
                                 to_string(s.activation), s.bias ? " bias" : "");
  if (is_gated(s.activation)) text += fmt::format(" {}", to_string(s.gate));
  if (s.format != OperandFormat::Bf16) text += fmt::format(" {}", to_string(s.format));
  if (s.pre) text += fmt::format(" pre:{}", to_string(*s.pre));
  if (s.out) text += fmt::format(" out:{}", to_string(*s.out));
  if (s.expected_rows) text += fmt::format(" expected:{}", *s.expected_rows);
  if (!s.known_rows.empty()) text += fmt::format(" rows:{},{}..", s.known_rows.front(), s.known_rows.back());
  for (const SinkNeeds& sink : s.custom_sinks)
    text += fmt::format(" sink:{}{}{}", sink.staging_bytes, sink.narrow ? "n" : "", sink.transposed ? "t" : "");
  return text;
}

std::string staging_of(const kernel::HopperConfig& c) {
  return fmt::format("buffers {}x{}{}", c.store_buffers, c.epilogue_n, c.decode_tile ? " decode" : "");
}
std::string staging_of(const kernel::BlackwellConfig& c) {
  return fmt::format("buffers {}, {} columns", c.store_buffers, kernel::tensor_layout(c).columns);
}

// The chosen kernel with its reason, and the sum of the logarithms of all candidates' times, which no change of one
// estimate leaves as it was.
template <class MakePlan>
std::string line_of(const MakePlan& make_plan) {
  try {
    const auto plan = make_plan();
    double logarithms = 0;
    int possible = 0;
    for (const auto& x : plan.candidates) {
      if (x.possible) logarithms += std::log(x.cycles), ++possible;
    }
    return fmt::format("{}, {}, panel {}, {} tiles, {}, {:.6g}; {}/{} {:.8g}; {}", describe(plan.config),
                       staging_of(plan.config), plan.panel_columns, plan.tiles, to_string(plan.source),
                       plan.candidates.front().cycles, possible, plan.candidates.size(), logarithms,
                       plan.candidates.front().reason);
  } catch (const Error& error) {
    return error.what();
  }
}

void add_plans(Lines& lines) {
  Draw draw(11);
  const auto hopper = hopper_devices(), blackwell = blackwell_devices();
  for (int i = 0; i < 230; ++i) {
    const Shape s = draw_shape(draw, i, false);
    const NamedFigures& d = draw.one_of(hopper);
    lines.push_back(
        fmt::format("{} {} = {}", d.name, words_of(s), line_of([&] { return make_hopper_plan(s, d.figures); })));
  }
  for (int i = 0; i < 160; ++i) {
    const Shape s = draw_shape(draw, i, true);
    const NamedFigures& d = draw.one_of(blackwell);
    lines.push_back(
        fmt::format("{} {} = {}", d.name, words_of(s), line_of([&] { return make_blackwell_plan(s, d.figures); })));
  }
  // Static scheduling has no grid of as many blocks as there are tiles.
  Shape large;
  large.grouping = Grouping::Masked, large.groups = 5000, large.m = 1000000, large.n = 28672, large.k = 256;
  large.out = DataType::Bf16;
  for (const TileSource source : {TileSource::Static, TileSource::LaunchControl}) {
    large.blackwell.tile_source = source;
    lines.push_back(fmt::format("{} {} = {}", to_string(source), words_of(large),
                                line_of([&] { return make_blackwell_plan(large, *named_device("b200")); })));
  }
}

std::string parts_of(const HopperTime& t) {
  return fmt::format("{:.6g}: {:.5g} {:.5g} {:.5g}, {:.5g} tiles {:.4g}, {:.5g} {:.5g}, {}", t.total * 1e6,
                     t.compute * 1e6, t.l2 * 1e6, t.memory * 1e6, t.tiles, t.waves, t.mainloop, t.epilogue, t.limit);
}

// Single candidates of Hopper, each with the parts of its time.
void add_candidates(Lines& lines) {
  Draw draw(23);
  const auto devices = hopper_devices();
  for (int i = 0; i < 90; ++i) {
    Shape s = draw_shape(draw, i, false);
    s.custom_sinks.clear();
    const NamedFigures& d = devices[size_t(i) % devices.size()];
    const auto routings = estimate_routings(s);
    const RowEstimate& rows = routings[size_t(i) % routings.size()];
    const auto candidates = hopper_candidates(s, d.figures);
    for (size_t c = size_t(i) % 19; c < candidates.size(); c += 19) {
      if (!candidates[c].possible) continue;
      const int panel = hopper_panel(s, d.figures, candidates[c].config);
      const HopperTime t = time_of(s, d.figures, rows, candidates[c].config, panel);
      lines.push_back(
          fmt::format("time {} {} {} panel {} = {}", i, d.name, describe(candidates[c].config), panel, parts_of(t)));
    }
  }
}

// Every combination of choices that a caller may make, with what becomes of it: plans that are taken, and a number that
// stands for all kernels and sentences.
struct Outcomes {
  int taken = 0, refused = 0;
  uint64_t hash = 14695981039346656037u;  // FNV-1a

  template <class MakePlan>
  void add(const MakePlan& make_plan) {
    std::string text;
    try {
      const auto plan = make_plan();
      text = fmt::format("{} {} {}", describe(plan.config), staging_of(plan.config), plan.candidates.size());
      ++taken;
    } catch (const Error& error) {
      text = error.what();
      ++refused;
    }
    for (const char c : text) hash = (hash ^ uint8_t(c)) * 1099511628211u;
  }
  std::string text() const { return fmt::format("{} taken, {} refused, {:016x}", taken, refused, hash); }
};

template <class T>
std::string choice_name(const char* name, const std::optional<T>& choice) {
  if (!choice) return fmt::format("{} -", name);
  if constexpr (std::is_enum_v<T>) {
    return fmt::format("{} {}", name, to_string(*choice));
  } else {
    return fmt::format("{} {}", name, *choice);
  }
}

using Choices = std::vector<std::optional<int>>;

// All choices of a caller for sm_90a beside tile_m, which gives each line its name.
void add_hopper_choices(Lines& lines, const char* name, Shape s, const DeviceFigures& device, const Choices& tiles_m,
                        const Choices& tiles_n) {
  for (const std::optional<int>& tile_m : tiles_m) {
    Outcomes outcomes;
    for (const std::optional<int>& tile_n : tiles_n) {
      for (const std::optional<int>& cluster : Choices{{}, 1, 2, 3}) {
        for (int multicast = -1; multicast < 4; ++multicast) {
          for (int schedule = -1; schedule < 2; ++schedule) {
            s.hopper = {};
            s.hopper.tile_m = tile_m, s.hopper.tile_n = tile_n, s.hopper.cluster = cluster;
            if (multicast >= 0) s.hopper.multicast = Multicast(multicast);
            if (schedule >= 0) s.hopper.schedule = WarpSchedule(schedule);
            outcomes.add([&] { return make_hopper_plan(s, device, {}); });
          }
        }
      }
    }
    s.hopper = {};
    lines.push_back(fmt::format("{} {} {} = {}", name, words_of(s), choice_name("tile_m", tile_m), outcomes.text()));
  }
}

// What is drawn, within bounds at which a plan may know few rows.
Shape with_few_rows(Shape s, int i) {
  s.groups = std::min<int64_t>(s.groups, 32), s.m = std::min<int64_t>(s.m, 2048);
  s.known_rows.clear();
  if (i % 3 != 0) s.custom_sinks.clear();
  if (i % 2 == 0) s.expected_rows = 200 + i * 8;
  if (i % 4 == 2) s.out = DataType::Bf16, s.pre.reset(), s.custom_sinks.clear(), s.expected_rows = 255 + i / 4 % 2;
  return s;
}

void add_choices(Lines& lines) {
  Draw draw(5);
  const std::optional<int> none;
  DeviceFigures one;
  one.sm_count = 1;
  for (int i = 0; i < 14; ++i) {
    const Shape s = with_few_rows(draw_shape(draw, i, false), i);
    add_hopper_choices(lines, "choices", s, i == 5 ? one : DeviceFigures{}, {{}, 8, 64, 128, 256, 96},
                       {{}, 32, 64, 96, 128, 160, 192, 256, 288, 100});
  }
  for (int i = 0; i < 28; ++i) {
    Shape s = draw_shape(draw, i, true);
    s.groups = std::min<int64_t>(s.groups, 32), s.m = std::min<int64_t>(s.m, 2048);
    if (i % 4 != 0) s.known_rows.clear();
    if (!s.known_rows.empty()) s.known_rows.resize(size_t(s.groups), 3);
    if (i % 3 != 0) s.custom_sinks.clear();
    DeviceFigures device = *named_device("b200");
    if (i % 7 == 2) device.sm_count = i < 10 ? 1 : 2;
    for (const std::optional<int> tile_m : {none, {16}, {64}, {128}, {256}, {512}}) {
      Outcomes outcomes;
      for (const std::optional<int> tile_n : {none, {8}, {16}, {48}, {64}, {96}, {128}, {160}, {256}, {272}, {512}}) {
        for (const std::optional<int> cluster : {none, {1}, {2}, {3}}) {
          for (int source = -1; source < 2; ++source) {
            for (int swap = -1; swap < 2; ++swap) {
              s.blackwell = {};
              s.blackwell.tile_m = tile_m, s.blackwell.tile_n = tile_n, s.blackwell.cluster = cluster;
              if (source >= 0) s.blackwell.tile_source = TileSource(source);
              if (swap >= 0) s.blackwell.swap_ab = swap == 1;
              outcomes.add([&] { return make_blackwell_plan(s, device); });
            }
          }
        }
      }
      s.blackwell = {};
      lines.push_back(fmt::format("choices {} {} = {}", words_of(s), choice_name("tile_m", tile_m), outcomes.text()));
    }
  }
}

// The same three for packed weights.
void add_packed(Lines& lines) {
  Draw draw(41);
  const auto devices = hopper_devices();
  const auto draw_packed = [&](int i) {
    Shape s = draw_shape(draw, i, false);
    s.b_format = OperandFormat::Mxfp4;
    s.k = s.k / 32 * 32 + draw.of({0, 32, 64});
    return s;
  };
  for (int i = 0; i < 120; ++i) {
    const Shape s = draw_packed(i);
    const NamedFigures& d = draw.one_of(devices);
    lines.push_back(
        fmt::format("packed {} {} = {}", d.name, words_of(s), line_of([&] { return make_hopper_plan(s, d.figures); })));
  }
  for (int i = 0; i < 60; ++i) {
    Shape s = draw_packed(i);
    s.custom_sinks.clear();
    const NamedFigures& d = devices[size_t(i) % devices.size()];
    const auto routings = estimate_routings(s);
    const RowEstimate& rows = routings[size_t(i) % routings.size()];
    const auto candidates = hopper_candidates(s, d.figures);
    for (size_t c = size_t(i) % 5; c < candidates.size(); c += 5) {
      if (!candidates[c].possible) continue;
      const HopperTime t = packed_time_of(s, d.figures, rows, candidates[c].config);
      lines.push_back(fmt::format("time packed {} {} {} = {}", i, d.name, describe(candidates[c].config), parts_of(t)));
    }
  }
  DeviceFigures one;
  one.sm_count = 1;
  for (int i = 0; i < 14; ++i) {
    const Shape s = with_few_rows(draw_packed(i), i);
    add_hopper_choices(lines, "choices packed", s, i == 5 ? one : DeviceFigures{}, {{}, 8, 16, 32, 64, 128, 256, 96},
                       {{}, 32, 64, 96, 128, 256});
  }
}

std::string text_of(const RowEstimate& w) {
  std::string text = w.exact ? "exact" : "estimated";
  for (const EqualGroups& r : w.rows) text += fmt::format(" {}x{}", r.groups, r.rows);
  return text;
}

void add_rows(Lines& lines) {
  for (const int64_t groups : {1, 2, 3, 16, 17, 40, 256, 4096, 4097}) {
    std::vector<int> ranges;
    for (const int64_t total : {0, 1, 31, 32, 33, 127, 128, 511, 512, 2047, 2048, 8191, 8192, 1 << 20})
      ranges.push_back(planned_range(total * groups, groups)), ranges.push_back(planned_range(total, groups));
    lines.push_back(fmt::format("ranges {} = {}", groups, fmt::join(ranges, " ")));
    for (const int64_t total : {1, 7, 1000, 65536}) {
      if (groups <= 40)
        lines.push_back(fmt::format("balanced {} {} = {}", groups, total, text_of(balanced_rows(total, groups))));
      lines.push_back(fmt::format("scattered {} {} = {}", groups, total, text_of(scattered_rows(total, groups))));
      lines.push_back(fmt::format("skewed {} {} = {}", groups, total, text_of(skewed_rows(total, groups))));
    }
  }
  Draw draw(3);
  for (int i = 0; i < 80; ++i) {
    const Shape s = draw_shape(draw, i, true);
    const RowEstimate w = estimate_rows(s);
    const auto routings = estimate_routings(s);
    std::string text = fmt::format("mean {:.6g} routings {}", mean_rows(w), routings.size());
    for (const RowEstimate& routing : routings)
      text += fmt::format(" {} {:.6g}", routing.exact ? "exact" : "estimated", mean_rows(routing));
    for (const int rows : {8, 64, 128, 256}) {
      for (const int columns : {96, 256})
        text +=
            fmt::format(" {}/{:.6g}", most_cluster_tiles(s, rows, columns), count_cluster_tiles(s, w, rows, columns));
    }
    const DeviceFigures d = hopper_devices()[size_t(i) % 13].figures;
    text += " panels";
    for (const int columns : {16, 64, 128, 320, 512})
      text += fmt::format(" {}", choose_panel(s, d, 128, 64 + i, columns));
    // The widths beside a multiple of a tile's, which drawn ones are not.
    Shape wider = s;
    for (const int64_t n : {511, 512, 513}) {
      wider.n = n;
      text += fmt::format(" {}/{:.6g}/{}", most_cluster_tiles(wider, 64, 128), count_cluster_tiles(wider, w, 64, 128),
                          choose_panel(wider, d, 64, 32, 32));
    }
    lines.push_back(fmt::format("estimate {} = {}, {} scaled{}", words_of(s), text, scaled_columns(s),
                                has_wide_sinks(s) ? ", wide" : ""));
  }
}

std::string text_of(const DeviceFigures& d) {
  return fmt::format("sm_{}a {} SMs {} shared {} L2 {:.7g} memory {:.7g} clock", d.arch, d.sm_count, d.shared_bytes,
                     d.l2_bytes, d.memory_rate, d.clock);
}

void add_devices(Lines& lines) {
  for (const std::string_view name : device_names()) {
    const DeviceFigures d = *named_device(name);
    lines.push_back(fmt::format("device {} = {}", name, text_of(d)));
    for (const TunedHopper& row : tuned_hopper(d)) lines.push_back(fmt::format("tuned {} = {}", name, tuned_line(row)));
    // The table serves devices that are nearly the same.
    std::vector<size_t> rows;
    for (const double rate : {0.94, 0.96, 1.04, 1.06}) {
      DeviceFigures near = d;
      near.memory_rate *= rate;
      rows.push_back(tuned_hopper(near).size());
    }
    DeviceFigures other = d;
    ++other.sm_count;
    rows.push_back(tuned_hopper(other).size());
    other = d;
    ++other.l2_bytes;
    rows.push_back(tuned_hopper(other).size());
    lines.push_back(fmt::format("nearly {} = {}", name, fmt::join(rows, " ")));
  }
  DeviceInfo info;
  info.arch = 90, info.sm_count = 7, info.shared_bytes = 1000;
  lines.push_back(fmt::format("figures of no driver = {}", text_of(figures_of(info))));
  info.l2_bytes = 1, info.memory_rate = 0.75, info.clock = 0.5;
  lines.push_back(fmt::format("figures of a driver = {}", text_of(figures_of(info))));
  // The rows at the ends of each row of the table, and those beside them.
  for (const char* name : {"h100-sxm", "h200"}) {
    const DeviceFigures d = *named_device(name);
    for (const TunedHopper& t : tuned_hopper(d)) {
      std::string text;
      for (const int64_t rows : {t.rows_from - 1, t.rows_from, std::min<int64_t>(t.rows_to, 5000), t.rows_to + 1}) {
        Shape s;
        s.grouping = t.grouping, s.groups = 8, s.m = 8 * 512, s.n = t.n, s.k = t.k, s.out = DataType::Bf16;
        s.activation = t.gated ? Activation::Swiglu : Activation::None;
        if (rows < 0 || rows > 6000) continue;
        s.expected_rows = rows;
        const HopperPlan plan = make_hopper_plan(s, d);
        text += fmt::format("; {}: {} {}", rows, to_string(plan.source), describe(plan.config));
      }
      lines.push_back(fmt::format("table {} {} {} = {}", name, t.n, t.k, text.substr(2)));
    }
  }
}

// The activations behind Reglu, beside one that they differ from in the time of their epilogue alone.
void add_later_activations(Lines& lines) {
  Shape s;
  s.groups = 32, s.n = 4096, s.k = 1024;
  s.out = DataType::Bf16;
  const DeviceFigures h200 = *named_device("h200"), b200 = *named_device("b200");
  for (const Activation activation : {Activation::Swiglu, Activation::SwigluClamped, Activation::Situ}) {
    s.activation = activation;
    for (const Grouping grouping : {Grouping::Offsets, Grouping::Masked}) {
      s.grouping = grouping;
      s.m = grouping == Grouping::Masked ? 512 : 32 * 512;
      lines.push_back(fmt::format("h200 {} = {}", words_of(s), line_of([&] { return make_hopper_plan(s, h200, {}); })));
      lines.push_back(fmt::format("b200 {} = {}", words_of(s), line_of([&] { return make_blackwell_plan(s, b200); })));
    }
  }
}

Lines all_lines() {
  Lines lines;
  add_devices(lines);
  add_rows(lines);
  add_plans(lines);
  add_candidates(lines);
  add_choices(lines);
  add_packed(lines);
  add_later_activations(lines);
  return lines;
}

TEST(GoldenPlans, AreAsTheyWere) {
  const std::string path = MOXIE_SOURCE_DIR "/tests/golden/plans.txt";
  const Lines now = all_lines();
  if (std::getenv("MOXIE_WRITE_PLANS") != nullptr) {
    std::ofstream file(path);
    for (const std::string& line : now) file << line << '\n';
    file.close();
    ASSERT_TRUE(file) << path << " cannot be written";
    GTEST_SKIP() << path << " was written";
  }
  std::ifstream file(path);
  ASSERT_TRUE(file) << path << " is missing";
  Lines before;
  for (std::string line; std::getline(file, line);) before.push_back(line);
  std::string report;
  int different = 0;
  for (size_t i = 0; i < std::max(now.size(), before.size()); ++i) {
    const std::string was = i < before.size() ? before[i] : "(no line)", is = i < now.size() ? now[i] : "(no line)";
    if (was == is) continue;
    if (++different <= 5) report += fmt::format("line {}\n  was {}\n  is  {}\n", i + 1, was, is);
  }
  EXPECT_EQ(different, 0) << report << "If plans were to change, write the file anew and read what differs:\n"
                          << "  MOXIE_WRITE_PLANS=1 build/bin/test_unit --gtest_filter='GoldenPlans.*'\n"
                          << "  git diff --stat tests/golden/plans.txt";
}

}  // namespace
}  // namespace moxie::plan
