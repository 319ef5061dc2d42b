// SPDX-License-Identifier: Apache-2.0
// MXFP4 products over all that a caller may vary, each point in every order of the simulator, with other data each run:
//   A  each grouping x one block and a pair x operands swapped and not x static and launch control
//   B  each width of a tile and, swapped, each number of its rows; n is a multiple of none
//   C  sums over 0 to 2,880 elements, each grouping
//   D  uneven groups with padding rows between them, empty ones, single rows, whole tiles; masks from 0 to 100%
//   E  scales over the whole range of E8M0, NaN among them
//   G  published products (reference_shapes.h) scaled down, by the kernel that the full size gets on a B200
// Half of the points get routing data that only mean the same (tests/support/routing.h), and half special values among
// the operands, drawn anew with each run.
// The sums are exact in float32, so results are equal to the reference; in E_Wide and E_Tiny, where they cannot be,
// within what float32's additions may lose. `--gtest_filter=*/Matrix.*/D_*` runs a part; MOXIE_TEST_ALL=1 adds B for
// every grouping.
#include <fmt/format.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <bit>
#include <set>

#include "plan/plan.h"
#include "tests/blackwell/reference_shapes.h"
#include "tests/support/grouped_product.h"
#include "tests/support/planned.h"

namespace moxie::test {
namespace {

constexpr Grouping kGroupings[] = {Grouping::Dense,  Grouping::Batched,  Grouping::Offsets, Grouping::RowGroups,
                                   Grouping::Masked, Grouping::Pointers, Grouping::KGroups};
constexpr const char* kGroupingNames[] = {"Dense", "Batched", "Offsets", "RowGroups", "Masked", "Pointers", "KGroups"};

enum class Rows { Uneven, MostEmpty, One, Tiles, Share };
constexpr const char* kRowsNames[] = {"Uneven", "MostEmpty", "One", "Tiles", "Share"};
enum class Scales { Narrow, LargeA, LargeB, Middle, WideA, WideB, Tiny, Nan };
constexpr const char* kScalesNames[] = {"Narrow", "LargeA", "LargeB", "Middle", "WideA", "WideB", "Tiny", "Nan"};

struct Point {
  std::string name;
  Grouping grouping = Grouping::Dense;
  int cluster = 1;
  bool swap = false;
  TileSource scheduling = TileSource::Static;
  int tile = 64;  // columns of a tile; swapped: rows
  int64_t n = 136, k = 96;
  Rows rows = Rows::Uneven;
  int64_t share = 0;  // Rows::Share: percent of max_m
  Scales scales = Scales::Narrow;
  std::vector<int64_t> group_rows;  // given: these instead
};
void PrintTo(const Point& p, std::ostream* stream) { *stream << p.name; }

// ---- The points ----------------------------------------------------------------------------------------------------

// combination: the i-th of one block and a pair x operands swapped and not x static and launch control.
Point point(const char* part, int grouping, int combination) {
  Point p;
  p.grouping = kGroupings[grouping];
  p.cluster = 1 + (combination & 1);
  p.swap = combination & 2;
  p.scheduling = combination & 4 ? TileSource::LaunchControl : TileSource::Static;
  p.tile = p.swap ? 32 : 64;
  p.name = fmt::format("{}_{}{}{}{}", part, kGroupingNames[grouping], p.cluster == 2 ? "Pair" : "",
                       p.swap ? "Swapped" : "", combination & 4 ? "LaunchControl" : "");
  return p;
}

void add_combinations(std::vector<Point>& all) {
  for (int grouping = 0; grouping < 7; ++grouping) {
    for (int combination = 0; combination < 8; ++combination) all.push_back(point("A", grouping, combination));
  }
}

void add_tiles(std::vector<Point>& all) {
  const bool every = std::getenv("MOXIE_TEST_ALL") != nullptr;
  int turn = 0;
  const auto add = [&](int cluster, bool swap, int tile) {
    ++turn;
    for (int grouping = 0; grouping < 7; ++grouping) {
      if (!every && grouping != turn % 7) continue;
      if (swap && tile == 256 && kGroupings[grouping] == Grouping::RowGroups) {
        if (every) continue;
        grouping = 2;  // offsets
      }
      Point p = point("B", grouping, cluster - 1 + 2 * swap + 4 * (turn / 7 % 2));
      p.tile = tile;
      p.name += fmt::format("_{}", tile);
      p.n = swap ? 128 * cluster + 8 * (1 + turn % 15) : 2 * tile + 8;
      all.push_back(p);
    }
  };
  for (int width = 16; width <= 256; width += 16) add(1, false, width);
  for (int width = 32; width <= 256; width += 32) add(2, false, width);
  for (int cluster : {1, 2}) {
    for (int rows : {16, 32, 64, 128, 256}) add(cluster, true, rows);
  }
}

constexpr int64_t kDepths[] = {0, 32, 64, 96, 128, 160, 736, 2880};

void add_depths(std::vector<Point>& all) {
  for (int depth = 0; depth < int(std::size(kDepths)); ++depth) {
    for (int grouping = 0; grouping < 7; ++grouping) {
      // Each grouping has all eight combinations, each depth seven.
      Point p = point("C", grouping, (3 * depth + grouping) % 8);
      p.name += fmt::format("_K{}", kDepths[depth]);
      p.k = kDepths[depth];
      all.push_back(p);
    }
  }
}

void add_rows(std::vector<Point>& all) {
  int turn = 0;
  for (int grouping = 2; grouping < 7; ++grouping) {
    for (Rows rows : {Rows::Uneven, Rows::MostEmpty, Rows::One, Rows::Tiles}) {
      for (int form = 0; form < 4; ++form, ++turn) {
        Point p = point("D", grouping, form + 4 * (turn % 3 == 0));
        p.name += fmt::format("_{}", kRowsNames[int(rows)]);
        p.rows = rows;
        if (rows == Rows::One) p.n = 8;
        all.push_back(p);
      }
    }
  }
  for (int64_t share : {0, 5, 25, 50, 75, 95, 100}) {
    for (int form = 0; form < 4; ++form, ++turn) {
      Point p = point("D", 4, form + 4 * (turn % 3 == 0));
      p.name += fmt::format("_{}Percent", share);
      p.rows = Rows::Share, p.share = share;
      all.push_back(p);
    }
  }
}

void add_scales(std::vector<Point>& all) {
  for (int scales = 1; scales < int(std::size(kScalesNames)); ++scales) {
    for (int grouping = 0; grouping < 7; ++grouping) {
      Point p = point("E", grouping, (scales + grouping * 3) % 8);
      p.name += fmt::format("_{}", kScalesNames[scales]);
      p.scales = Scales(scales);
      // One scale a row: the sum is exact however large or small it is.
      const bool one_each = p.scales <= Scales::Middle;
      p.k = one_each ? 32 : p.scales == Scales::Nan ? 160 : 192;
      all.push_back(p);
    }
  }
}

// The kernel of the full size, and a small part of its extents that still has tails: some tiles and a bit.
void add_reference_shapes(std::vector<Point>& all) {
  for (const ReferenceShape& s : reference_shapes()) {
    const kernel::BlackwellConfig c =
        plan::make_blackwell_plan(test::shape_of(problem_of(s)), {100, 148, 232448}).config;
    Point p;
    p.name = "G_" + s.name;
    p.grouping = s.grouping;
    p.cluster = c.cluster, p.swap = c.swap_ab, p.scheduling = c.scheduling, p.tile = c.block_n;
    p.n = std::max<int64_t>(s.n / 32 / 8 * 8 + 8, kernel::cluster_tile_columns(c) + 40);
    p.k = std::max<int64_t>(s.k / 16 / 32 * 32, 96);
    const int64_t groups = std::min<int64_t>(s.groups, 8);
    const int64_t rows = s.rows <= 128 ? s.rows : std::max<int64_t>(s.rows / 32, 100);
    for (int64_t g = 0; g < groups; ++g) {
      // Around the mean, as the routing of tokens gives them.
      const int64_t own =
          s.grouping == Grouping::Dense ? rows : std::max<int64_t>(0, rows * (4 * g + 3) / (2 * groups));
      p.group_rows.push_back(s.grouping == Grouping::Masked ? own * s.percent / 100 : own);
    }
    all.push_back(p);
  }
}

std::vector<Point> points() {
  std::vector<Point> all;
  add_combinations(all);
  add_tiles(all);
  add_depths(all);
  add_rows(all);
  add_scales(all);
  add_reference_shapes(all);
  return all;
}

// ---- A point's data ------------------------------------------------------------------------------------------------

void shuffle(std::vector<int64_t>& values, Random& random) {
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random.next() % i]);
}

// Of each group, for tiles of `tile` rows (KGroups: of stages of as many elements).
std::vector<int64_t> draw_rows(const Point& p, int64_t tile, Random& random) {
  if (!p.group_rows.empty()) return p.group_rows;
  if (p.grouping == Grouping::Dense) return {random.between(tile + 1, 2 * tile + 40)};
  if (p.grouping == Grouping::Batched) return std::vector<int64_t>(2, random.between(tile + 1, 2 * tile + 40));
  std::vector<int64_t> rows;
  switch (p.rows) {
    case Rows::Uneven:
      rows = {0,
              1,
              random.between(2, tile - 1),
              tile,
              random.between(tile + 1, tile + 9),
              0,
              random.between(tile + 1, 2 * tile + 40)};
      break;
    case Rows::MostEmpty:
      rows.assign(40, 0);  // more than a warp looks at together
      rows[0] = random.between(1, 2 * tile), rows[1] = random.between(1, tile);
      break;
    case Rows::One:
      rows.assign(5, 1);
      rows[0] = 0;
      break;
    case Rows::Tiles:
      rows = {tile, 2 * tile, tile, 0, tile};
      break;
    case Rows::Share: {
      const int64_t most = 3 * tile / 2;
      for (int g = 0; g < 5; ++g)
        rows.push_back(p.share % 100 == 0
                           ? most * p.share / 100
                           : std::clamp(most * (p.share + random.between(-20, 20)) / 100, int64_t{0}, most));
      break;
    }
  }
  shuffle(rows, random);
  return rows;
}

void choose(ProductSpec& problem, const Point& p) {
  problem.format = OperandFormat::Mxfp4;
  problem.grouping = p.grouping;
  problem.cluster = p.cluster;
  problem.swap_ab = p.swap;
  problem.scheduling = p.scheduling;
  (p.swap ? problem.tile_m : problem.tile_n) = p.tile;
  problem.out = DataType::F32;
}

struct DrawnScales {
  ScaleCodes a, b;
  int nan_each = 0;
  bool exact = true;
};
// The codes of A and of B add up to 130 to 371: then each multiple of a quarter that a sum of 32 products can be is a
// normal float32. Wide: at most to 364, for sums of many scales; every sixteenth code, so that some are equal.
DrawnScales draw_scales(Scales scales, Random& random) {
  const int turn = int(random.between(0, 14));
  switch (scales) {
    case Scales::LargeA:
      return {{130, 254, 1}, {0, 117, 1}};
    case Scales::LargeB:
      return {{0, 117, 1}, {130, 254, 1}};
    case Scales::Middle:
      return {{65, 185, 1}, {65, 185, 1}};
    case Scales::WideA:
      return {{turn, 254, 16}, {turn, 110, 16}, 0, false};
    case Scales::WideB:
      return {{turn, 110, 16}, {turn, 254, 16}, 0, false};
    case Scales::Tiny:  // sums from where float32 is normal down to below its smallest number
      return {{0, 60, 1}, {0, 90, 1}, 0, false};
    case Scales::Nan:
      return {{}, {}, 150};
    case Scales::Narrow:
      break;
  }
  return {};
}

Job job_of(const Point& p, Random& random) {
  Job job;
  choose(job.problem, p);
  job.seed = random.next();
  const DrawnScales scales = draw_scales(p.scales, random);
  job.a_scales = scales.a, job.b_scales = scales.b;
  job.nan_scale_each = scales.nan_each, job.exact = scales.exact;
  job.n = p.n, job.k = p.k;
  const int64_t tile = p.swap ? p.tile : 128 * p.cluster;
  if (p.grouping == Grouping::KGroups) {
    job.group_k = p.scales == Scales::Narrow || p.scales == Scales::Nan
                      ? std::vector<int64_t>{p.k, 0, 32 * random.between(0, p.k / 32), 32, p.k}
                      : std::vector<int64_t>{p.k, 0, p.k};
    if (p.rows == Rows::MostEmpty) job.group_k.resize(40, 0);
    if (p.rows == Rows::One) job.group_k = {32, 32, 0, 32};
    if (p.rows == Rows::Tiles) job.group_k = {256, 512, 0, 256};
    shuffle(job.group_k, random);
    job.rows.assign(job.group_k.size(), p.rows == Rows::One ? 1 : p.rows == Rows::MostEmpty ? 40 : tile + 9);
    return job;
  }
  job.rows = draw_rows(p, tile, random);
  for (size_t g = 0; p.grouping == Grouping::Pointers && g < job.rows.size(); ++g) {
    const bool first = g == 0;
    job.group_n.push_back(first || !job.exact ? p.n : 8 * random.between(0, p.n / 8));
    job.group_k.push_back(first || p.scales != Scales::Narrow ? p.k : 32 * random.between(0, p.k / 32));
  }
  // A mask's share is one of max_m.
  if (p.rows == Rows::Share) job.spare_rows = 3 * tile / 2 - *std::max_element(job.rows.begin(), job.rows.end());
  return job;
}

class Matrix : public testing::TestWithParam<Point> {};

TEST_P(Matrix, IsRight) {
  SCOPED_TRACE(fmt::format("MOXIE_TEST_SEED={} repeats these data", run_seed()));
  Random random(run_seed());
  Job job = job_of(GetParam(), random);
  Random dimensions(run_seed() ^ std::hash<std::string>()(GetParam().name));
  if (dimensions.one_in(2)) job.wild_sizes = dimensions.next() | 1;
  if (dimensions.one_in(2)) job.specials = dimensions.next() | 1;
  run_in_all_orders(job);
}

INSTANTIATE_TEST_SUITE_P(Mxfp4, Matrix, testing::ValuesIn(points()), [](const auto& info) { return info.param.name; });

// ---- The comparison itself -----------------------------------------------------------------------------------------

void expect_notices_any_byte(const Job& job) {
  const GroupedProduct product(job);
  const Results good = product.run();
  product.check(good);
  Random random(run_seed());
  for (int i = 0; i < 100; ++i) {
    Results bad = good;
    std::vector<uint8_t>& bytes = i % 2 && !bad.out_scales.empty() ? bad.out_scales[0] : bad.out;
    bytes[random.next() % bytes.size()] ^= 0x41;
    testing::TestPartResultArray failures;
    {
      testing::ScopedFakeTestPartResultReporter reporter(
          testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
      product.check(bad);
    }
    ASSERT_GT(failures.size(), 0);
  }
}
TEST(MatrixTable, ChecksNoticeAnyWrongByte) {
  Random random(run_seed());
  set_order("eager");
  expect_notices_any_byte(job_of(point("", 2, 0), random));
  expect_notices_any_byte(job_of(point("", 6, 0), random));
  Job quantized = job_of(point("", 2, 0), random);
  quantized.problem.out = DataType::Mxfp8, quantized.n = 128;
  expect_notices_any_byte(quantized);
}

// ---- What the table claims -----------------------------------------------------------------------------------------

TEST(MatrixTable, HoldsWhatItClaims) {
  const std::vector<Point> all = points();
  EXPECT_GE(all.size(), 300u);
  std::set<std::tuple<Grouping, int, bool, TileSource>> combinations, depth_combinations;
  std::set<std::tuple<int, bool, int>> tiles;
  std::set<int64_t> depths, shares;
  std::set<std::tuple<Grouping, Rows>> rows;
  std::set<std::tuple<Grouping, Scales>> scales;
  size_t published = 0;
  for (const Point& p : all) {
    combinations.insert({p.grouping, p.cluster, p.swap, p.scheduling});
    depths.insert(p.k);
    if (p.name[0] == 'C') depth_combinations.insert({p.grouping, p.cluster, p.swap, p.scheduling});
    rows.insert({p.grouping, p.rows});
    if (p.rows == Rows::Share) shares.insert(p.share);
    scales.insert({p.grouping, p.scales});
    published += p.name[0] == 'G';
    if (p.name[0] != 'B') continue;
    tiles.insert({p.cluster, p.swap, p.tile});
    EXPECT_NE(p.n % (p.swap ? 128 * p.cluster : p.tile), 0) << p.name;
  }
  EXPECT_EQ(combinations.size(), 7u * 2 * 2 * 2);
  EXPECT_EQ(depth_combinations.size(), 7u * 2 * 2 * 2);
  EXPECT_EQ(tiles.size(), 16u + 8 + 2 * 5);
  for (int64_t k : kDepths) EXPECT_TRUE(depths.count(k)) << k;
  EXPECT_GE(rows.size(), 5u * 4);
  EXPECT_EQ(shares.size(), 7u);
  EXPECT_EQ(scales.size(), 7u * std::size(kScalesNames));
  EXPECT_EQ(published, reference_shapes().size());
}

// The combinations that are not in the table have no kernel, and are refused by name.
TEST(MatrixTable, WhatIsMissingIsRefused) {
  const auto is_refused = [](ProductSpec p, std::optional<int> ProductSpec::*size, int value) {
    p.*size = value;
    try {
      test::plan_of({100, 148, 232448}, p);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
      const std::string name = size == &ProductSpec::tile_m ? "tile_m" : "tile_n";
      EXPECT_EQ(std::string(error.what()).find(fmt::format("{} is {}, but ", name, value)), 0u) << error.what();
      return true;
    }
    return false;
  };
  for (Grouping grouping : kGroupings) {
    for (int cluster : {1, 2}) {
      ProductSpec p;
      p.format = OperandFormat::Mxfp4;
      p.grouping = grouping;
      p.m = 1000, p.n = 1024, p.k = 256;
      p.out = DataType::F32;
      p.cluster = cluster;
      p.swap_ab = false;
      for (int width = 8; width <= 320; width += 8) {
        const bool legal = width % (cluster == 2 ? 32 : 16) == 0 && width <= 256;
        EXPECT_EQ(is_refused(p, &ProductSpec::tile_n, width), !legal) << int(grouping) << cluster << width;
      }
      p.swap_ab = true;
      for (int rows = 8; rows <= 320; rows += 8) {
        const bool legal =
            std::has_single_bit(unsigned(rows)) && rows >= 16 && rows <= (grouping == Grouping::RowGroups ? 128 : 256);
        EXPECT_EQ(is_refused(p, &ProductSpec::tile_m, rows), !legal) << int(grouping) << cluster << rows;
      }
    }
  }
}

}  // namespace
}  // namespace moxie::test
