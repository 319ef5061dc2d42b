// SPDX-License-Identifier: Apache-2.0
// The planner: every configuration it calls possible fits, choices are kept or refused with a reason, rows that only
// the device knows need few kernels, and the same problem always gives the same plan.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <vector>

#include "moxie/error.h"
#include "moxie/pack.h"
#include "ops/gemm.h"
#include "plan/plan.h"
#include "plan/row_estimate.h"
#include "tests/unit/scratch.h"

namespace moxie::plan {
namespace {

using kernel::HopperConfig;

Shape dense(int64_t m, int64_t n, int64_t k) {
  Shape s;
  s.m = m, s.n = n, s.k = k;
  s.out = DataType::Bf16;
  return s;
}

// 300 shapes over everything that enters a plan, always the same ones.
std::vector<Shape> grid() {
  std::mt19937 random(7);
  const auto pick = [&](std::initializer_list<int64_t> values) { return values.begin()[random() % values.size()]; };
  std::vector<Shape> shapes;
  for (int i = 0; i < 300; ++i) {
    Shape s;
    s.grouping = Grouping(i % 6);
    s.groups = s.grouping == Grouping::Dense ? 1 : pick({1, 2, 8, 32, 128, 256});
    s.m = pick({0, 1, 17, 64, 200, 1024, 4096, 16384});
    s.n = pick({16, 64, 320, 1024, 2880, 5760, 7168});
    s.k = pick({0, 8, 200, 2048, 2880, 7168});
    s.activation = Activation(i / 6 % 12);
    s.gate = GateLayout(pick({0, 1, 2}));
    s.bias = random() % 2;
    if (random() % 2) s.pre = DataType(random() % 2);
    if (!s.pre || random() % 2) s.out = DataType(random() % 2);
    if (i % 7 == 0) s.expected_rows = pick({1, 16, 300, 5000});
    if (i % 11 == 0 && s.grouping != Grouping::Dense && s.grouping != Grouping::Batched)
      s.known_rows.assign(s.groups, s.m / s.groups);
    if (i % 5 == 0) s.custom_sinks.push_back({int(pick({0, 1024, 8192})), random() % 2 == 0});
    shapes.push_back(s);
  }
  return shapes;
}

std::vector<SinkNeeds> needs(const Shape& s, const HopperConfig& c) {
  std::vector<SinkNeeds> all;
  all.reserve(2 + s.custom_sinks.size());
  if (s.pre) all.push_back(kernel::store_needs(c, true, *s.pre));
  if (s.out) all.push_back(kernel::store_needs(c, false, *s.out));
  all.insert(all.end(), s.custom_sinks.begin(), s.custom_sinks.end());
  return all;
}

// Only sinks of the caller's own can need so much shared memory that a candidate is not possible. `moxie tune` relies
// on it.
TEST(Plan, WithoutCustomSinksEveryCandidateIsPossible) {
  size_t candidates = 0;
  for (Shape s : grid()) {
    s.custom_sinks.clear();
    for (const bool packed : {false, true}) {
      if (packed) s.b_format = OperandFormat::Mxfp4, s.k = s.k / 32 * 32;
      for (size_t type = 0; type < names<DataType>().size(); ++type) {
        if (s.out) s.out = DataType(type);
        if (s.pre && !is_gated(s.activation)) s.pre = DataType(type);
        try {
          for (const auto& candidate : make_hopper_plan(s, DeviceFigures()).candidates) {
            EXPECT_TRUE(candidate.possible) << describe(candidate.config);
            ++candidates;
          }
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::InvalidArgument) << error.what();
        }
      }
    }
  }
  EXPECT_GT(candidates, 50000u);
}

TEST(Plan, EveryPossibleConfigurationFits) {
  const DeviceFigures device;
  int checked = 0, impossible = 0;
  for (const Shape& s : grid()) {
    const HopperPlan plan = make_hopper_plan(s, device);
    ASSERT_GT(plan.candidates.size(), 30u);
    EXPECT_TRUE(plan.config == plan.candidates.front().config);
    for (const auto& candidate : plan.candidates) {
      EXPECT_FALSE(candidate.reason.empty());
      if (!candidate.possible) {
        EXPECT_EQ(candidate.reason, "two stages and the sinks' staging do not fit the shared memory");
        EXPECT_EQ(candidate.cycles, 0) << "what is not possible takes no time";
        ++impossible;
        continue;
      }
      const HopperConfig& c = candidate.config;
      const auto sinks = needs(s, c);
      EXPECT_LE(kernel::shared_bytes(c, sinks.data(), int(sinks.size())), device.shared_bytes) << describe(c);
      EXPECT_GE(c.stages, 2);
      const int most = c.block_m == 8 ? 24 : 14;
      EXPECT_LE(c.stages, most);
      EXPECT_TRUE(c.epilogue_n == 32 || c.block_n % 64 == 0) << describe(c);
      // Staging takes no stage that the schedule needs: any of ping-pong, the first four of cooperative.
      HopperConfig least = c;
      least.store_buffers = 1, least.epilogue_n = s.custom_sinks.empty() || !is_gated(c.activation) ? 32 : c.epilogue_n;
      least.stages = c.schedule == WarpSchedule::PingPong ? c.stages + 1 : std::min(c.stages + 1, 4);
      const auto small = needs(s, least);
      EXPECT_TRUE(c.stages >= (c.schedule == WarpSchedule::PingPong ? 8 : 4) ||
                  kernel::shared_bytes(least, small.data(), int(small.size())) > device.shared_bytes)
          << "staging takes a stage: " << describe(c);
      HopperConfig deeper = c;
      ++deeper.stages;
      EXPECT_TRUE(c.stages == most ||
                  kernel::shared_bytes(deeper, sinks.data(), int(sinks.size())) > device.shared_bytes)
          << "room is left for a stage: " << describe(c);
      // A consumer warp group holds at most 128 accumulator registers a thread, with the ping-pong schedule 160.
      EXPECT_LE(kernel::warp_group_rows(c) * c.block_n, 128 * (c.schedule == WarpSchedule::PingPong ? 160 : 128))
          << describe(c);
      EXPECT_EQ(c.cluster == 2, c.multicast != Multicast::None);
      EXPECT_EQ(c.grouping, s.grouping);
      EXPECT_TRUE(std::isfinite(candidate.cycles) && candidate.cycles > 0) << candidate.cycles;
      ++checked;
    }
  }
  EXPECT_GT(checked, 10000);
  EXPECT_GT(impossible, 0);
}

// Of every candidate, on both architectures. Where nothing is gated, the layout of the gate makes no kernel of its own.
template <class MakePlan>
void expect_kernels_of_the_problem(const MakePlan& make_plan) {
  for (const DataType out : {DataType::Bf16, DataType::Mxfp8}) {
    for (const Activation activation : {Activation::None, Activation::GeluErf, Activation::Swiglu}) {
      for (const GateLayout gate : {GateLayout::Interleaved, GateLayout::Split, GateLayout::SplitUpFirst}) {
        for (const bool gather : {false, true}) {
          Shape s = dense(1000, 256, 256);
          s.grouping = Grouping::Offsets, s.groups = 4;
          s.out = out, s.activation = activation, s.gate = gate, s.gather = gather, s.bias = gather;
          for (const auto& candidate : make_plan(s).candidates) {
            const auto& c = candidate.config;
            EXPECT_EQ(c.quantized, out == DataType::Mxfp8) << describe(c);
            EXPECT_EQ(c.gate, activation == Activation::Swiglu ? gate : GateLayout::Interleaved) << describe(c);
            EXPECT_EQ(c.activation, activation);
            EXPECT_EQ(c.gather, gather);
            EXPECT_EQ(c.bias, gather);
            EXPECT_EQ(describe(c).find(", gathered rows") != std::string::npos, gather) << describe(c);
          }
        }
      }
    }
  }
}
TEST(Plan, KernelsAreThoseOfTheProblem) {
  expect_kernels_of_the_problem([](const Shape& s) { return make_hopper_plan(s, {}); });
  expect_kernels_of_the_problem([](const Shape& s) { return make_blackwell_plan(s, *named_device("b200")); });
}

// Kernels of packed weights are the same on both.
TEST(Plan, KernelsAreCompiledForTheDevice) {
  GemmDescription d{.n = 256, .k = 256};
  d.groups = Dense{64};
  for (const std::optional<OperandFormat> b_format : {std::optional<OperandFormat>(), {OperandFormat::Mxfp4}}) {
    d.b_format = b_format;
    for (const std::string_view name : {"h200", "b200"}) {
      const DeviceFigures device = *named_device(name);
      EXPECT_EQ(ops::kernel_request(ops::plan_kernel(device, d, 64), d).arch, device.arch);
    }
  }
}

// Warps that copy gathered rows keep registers which erff would need in a tile of 256 rows and 128 columns.
TEST(Plan, ErfOfGatheredRowsHasNarrowTilesOf256Rows) {
  Shape s = dense(16384, 5760, 2880);
  s.grouping = Grouping::Offsets, s.groups = 4;
  for (const Activation activation : {Activation::GeluTanh, Activation::GeluErf}) {
    for (const bool gather : {false, true}) {
      s.activation = activation, s.gather = gather;
      int widest = 0;
      for (const auto& c : make_hopper_plan(s, {}).candidates) {
        if (c.config.block_m == 256) widest = std::max(widest, c.config.block_n);
      }
      EXPECT_EQ(widest, gather && activation == Activation::GeluErf ? 96 : 128);
    }
  }
}

TEST(Plan, IsDeterministicAndSorted) {
  for (const Shape& s : grid()) {
    const HopperPlan a = make_hopper_plan(s, {}, {}), b = make_hopper_plan(s, {}, {});  // without the tuned table
    ASSERT_EQ(a.candidates.size(), b.candidates.size());
    EXPECT_TRUE(a.config == b.config);
    for (size_t i = 0; i < a.candidates.size(); ++i) {
      EXPECT_TRUE(a.candidates[i].config == b.candidates[i].config);
      if (i == 0) continue;
      EXPECT_GE(a.candidates[i - 1].possible, a.candidates[i].possible);
      if (a.candidates[i].possible) {
        EXPECT_LE(a.candidates[i - 1].cycles, a.candidates[i].cycles);
      }
    }
  }
}

// No rows: every candidate of a schedule costs the same, so the first of the enumeration must win.
TEST(Plan, TiesGoToTheSimplest) {
  Shape s = dense(0, 64, 64);
  s.hopper.schedule = WarpSchedule::Cooperative;
  const HopperPlan plan = make_hopper_plan(s, {});
  EXPECT_EQ(plan.candidates[0].cycles, plan.candidates[1].cycles);
  EXPECT_EQ(plan.config.block_m, 128);
  EXPECT_EQ(plan.config.block_n, 64);
  EXPECT_EQ(plan.config.cluster, 1);
  EXPECT_EQ(plan.tiles, 0);
}

TEST(Plan, RowsOnlyTheDeviceKnowsNeedFewKernels) {
  for (Grouping grouping : {Grouping::Offsets, Grouping::RowGroups, Grouping::Masked, Grouping::Pointers}) {
    for (int64_t n : {64, 2880, 5760}) {
      Shape s = dense(0, n, 2880);
      s.grouping = grouping;
      s.groups = 32;
      std::vector<HopperConfig> distinct;
      for (int64_t m = 0; m < 1000000; m = m * 5 / 4 + 1) {
        s.m = m;
        const HopperConfig config = make_hopper_plan(s, {}).config;
        if (std::find(distinct.begin(), distinct.end(), config) == distinct.end()) distinct.push_back(config);
      }
      EXPECT_LE(distinct.size(), grouping == Grouping::RowGroups ? 1u : 5u);
    }
  }
}

TEST(Plan, ShortGroupsGetLowTiles) {
  Shape s = dense(128, 5760, 2880);
  s.grouping = Grouping::Offsets;
  s.groups = 32;
  EXPECT_EQ(make_hopper_plan(s, {}).config.block_m, 64);
  s.m = 16384;
  EXPECT_GE(make_hopper_plan(s, {}).config.block_m, 128);
}

TEST(Plan, RowsTheHostKnowsDo) {
  Shape few = dense(16, 5760, 2880), many = dense(16384, 5760, 2880);
  EXPECT_LT(make_hopper_plan(few, {}).config.block_m * make_hopper_plan(few, {}).config.block_n,
            make_hopper_plan(many, {}).config.block_m * make_hopper_plan(many, {}).config.block_n);
}

TEST(Plan, TheChoiceFollowsTheCaller) {
  int plans = 0;
  for (WarpSchedule schedule : {WarpSchedule::Cooperative, WarpSchedule::PingPong}) {
    for (int m : {64, 128, 256}) {
      for (int n = 64; n <= 256; n += 32) {
        for (Multicast multicast : {Multicast::None, Multicast::A, Multicast::B, Multicast::Either}) {
          Shape s = dense(4096, 4096, 4096);
          s.grouping = Grouping::Offsets;
          s.hopper.schedule = schedule, s.hopper.tile_m = m, s.hopper.tile_n = n, s.hopper.multicast = multicast;
          const bool exists = schedule == WarpSchedule::Cooperative ? (m == 128 || (m == 256 && n <= 128))
                                                                    : (m == 64 || (m == 128 && n <= 160));
          if (!exists) {
            EXPECT_THROW(make_hopper_plan(s, {}), Error) << m << "x" << n;
            continue;
          }
          const HopperPlan plan = make_hopper_plan(s, {});
          EXPECT_EQ(plan.candidates.size(), 1u);
          EXPECT_EQ(plan.source, PlanSource::Caller);
          EXPECT_EQ(plan.config.schedule, schedule);
          EXPECT_EQ(plan.config.block_m, m);
          EXPECT_EQ(plan.config.block_n, n);
          EXPECT_EQ(plan.config.multicast, multicast);
          EXPECT_EQ(plan.config.cluster, multicast == Multicast::None ? 1 : 2);
          ++plans;
        }
      }
    }
  }
  EXPECT_EQ(plans, 84);
}

TEST(Plan, TinyTilesAreForARowOrTwo) {
  Shape s = dense(8, 2048, 768);
  s.grouping = Grouping::Offsets;
  s.groups = 128;
  const auto tiny = [&] {
    const auto plan = make_hopper_plan(s, {}, {});
    return std::count_if(plan.candidates.begin(), plan.candidates.end(),
                         [](const auto& c) { return c.config.block_m == 8; });
  };
  s.expected_rows = 2;
  EXPECT_EQ(tiny(), 7);
  s.expected_rows = 3;
  EXPECT_EQ(tiny(), 0);
  s.hopper.tile_m = 8;
  EXPECT_EQ(tiny(), 7);
  EXPECT_TRUE(make_hopper_plan(s, {}, {}).config.decode_tile);
  s.hopper.tile_m.reset();
  s.expected_rows.reset();
  s.known_rows.assign(128, 0);  // a mean below 1, but one group would read its weights twice
  s.known_rows[7] = 9;
  EXPECT_EQ(tiny(), 0);
  s.known_rows[7] = 8;
  EXPECT_EQ(tiny(), 7);
}

TEST(Plan, ClustersThatShareAWalkPanelsOfEight) {
  Shape s = dense(4096, 4096, 7168);
  s.hopper.tile_m = s.hopper.tile_n = 128;
  s.hopper.schedule = WarpSchedule::PingPong;
  const auto panel = [&](Multicast multicast, int64_t n) {
    s.hopper.multicast = multicast, s.n = n;
    return make_hopper_plan(s, {}, {}).panel_columns;
  };
  EXPECT_EQ(panel(Multicast::A, 4096), 8);
  EXPECT_EQ(panel(Multicast::A, 28672), 8);
  EXPECT_EQ(panel(Multicast::A, 4096 + 256), 6);  // 17 clusters wide: about square
  EXPECT_EQ(panel(Multicast::B, 4096), 11);
  s.hopper.tile_m = 64;
  EXPECT_EQ(panel(Multicast::A, 4096), 4);
}

TEST(Plan, WhatTheTableNamesAndIsNotPossibleIsPassedOver) {
  Shape s = dense(8, 2048, 768);
  s.grouping = Grouping::Offsets;
  s.groups = 128;
  s.expected_rows = 1;
  const TunedHopper table[] = {
      {Grouping::Offsets, 2048, 768, 0, 2, false, WarpSchedule::PingPong, 8, 96, Multicast::None},
      {Grouping::Offsets, 2048, 768, 0, 2, false, WarpSchedule::PingPong, 64, 224, Multicast::None},
  };
  EXPECT_EQ(make_hopper_plan(s, {}, table).config.block_m, 8);
  s.out = DataType::Mxfp8;
  EXPECT_EQ(make_hopper_plan(s, {}, table).config.block_n, 224);
}

TEST(Plan, ContradictionsAreNamed) {
  struct Case {
    const char* words;
    void (*change)(Shape&);
  };
  const Case cases[] = {
      {"tile_m is 96", [](Shape& s) { s.hopper.tile_m = 96; }},
      {"tile_m is 8, which", [](Shape& s) { s.hopper.tile_m = 8, s.m = 4096; }},
      {"tile_m is 8, which", [](Shape& s) { s.hopper.tile_m = 8, s.hopper.schedule = WarpSchedule::Cooperative; }},
      {"tile_m is 8, which", [](Shape& s) { s.hopper.tile_m = 8, s.hopper.multicast = Multicast::B; }},
      {"tile_m is 8, which", [](Shape& s) { s.hopper.tile_m = 8, s.out = DataType::Mxfp8, s.n = 128; }},
      {"tile_m is 8, which", [](Shape& s) { s.hopper.tile_m = 8, s.grouping = Grouping::Pointers; }},
      {"tile_n is 100", [](Shape& s) { s.hopper.tile_n = 100; }},
      {"tile_n is 288", [](Shape& s) { s.hopper.tile_n = 288; }},
      {"cluster is 4", [](Shape& s) { s.hopper.cluster = 4; }},
      {"needs cluster 2", [](Shape& s) { s.hopper.cluster = 1, s.hopper.multicast = Multicast::A; }},
      {"multicast is Either", [](Shape& s) { s.hopper.multicast = Multicast::Either; }},
      {"multicast is None", [](Shape& s) { s.hopper.cluster = 2, s.hopper.multicast = Multicast::None; }},
      {"gathered rows are not shared", [](Shape& s) { s.gather = true, s.hopper.multicast = Multicast::A; }},
      {"tile_m 64 is not possible",
       [](Shape& s) { s.hopper.schedule = WarpSchedule::Cooperative, s.hopper.tile_m = 64; }},
      {"tile_m 256 is not possible",
       [](Shape& s) { s.hopper.schedule = WarpSchedule::PingPong, s.hopper.tile_m = 256; }},
      {"256x160 tile", [](Shape& s) { s.hopper.tile_m = 256, s.hopper.tile_n = 160; }},
      {"128x160 tile is not possible with the ping-pong",
       [](Shape& s) {
         s.hopper.schedule = WarpSchedule::PingPong, s.hopper.tile_m = 128, s.hopper.tile_n = 160,
         s.activation = Activation::GeluErf;
       }},
      {"128x256 tile is not possible with the ping-pong",
       [](Shape& s) { s.hopper.schedule = WarpSchedule::PingPong, s.hopper.tile_m = 128, s.hopper.tile_n = 256; }},
      {"shared memory",
       [](Shape& s) {
         s.custom_sinks = {{100 * 1024, false}};
       }},
  };
  for (const Case& c : cases) {
    Shape s = dense(100, 100, 100);
    c.change(s);
    try {
      make_hopper_plan(s, {});
      ADD_FAILURE() << "accepted: " << c.words;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument) << c.words;
      EXPECT_NE(std::string(error.what()).find(c.words), std::string::npos) << error.what();
    }
  }
  Shape s = dense(100, 100, 100);
  s.hopper.cluster = 2;
  DeviceFigures one;
  one.sm_count = 1;
  EXPECT_THROW(make_hopper_plan(s, one), Error);
  EXPECT_EQ(make_hopper_plan(dense(100, 100, 100), one).config.cluster, 1);
  DeviceFigures two;
  two.sm_count = 2;
  for (const OperandFormat b_format : {OperandFormat::Bf16, OperandFormat::Mxfp4}) {
    s.k = 96, s.b_format = b_format;
    EXPECT_THROW(make_hopper_plan(s, one), Error);
    EXPECT_EQ(make_hopper_plan(s, two).config.cluster, 2);
  }
}

TEST(Plan, TilesCountEveryGroupsStartedTile) {
  Shape s = dense(1000, 256, 64);
  s.grouping = Grouping::Offsets;
  s.groups = 4;
  s.hopper.schedule = WarpSchedule::Cooperative, s.hopper.tile_m = 128, s.hopper.tile_n = 128, s.hopper.cluster = 1;
  EXPECT_EQ(make_hopper_plan(s, {}).tiles, (8 + 3) * 2);  // device sizes: at most
  s.known_rows = {0, 1, 129, 512};
  EXPECT_EQ(make_hopper_plan(s, {}).tiles, (0 + 1 + 2 + 4) * 2);
  s.hopper.cluster = 2, s.hopper.multicast = Multicast::B;  // clusters cover two tile rows
  EXPECT_EQ(make_hopper_plan(s, {}).tiles, (0 + 2 + 2 + 4) * 2);
  s.hopper.multicast = Multicast::A, s.n = 264;  // ... or two tile columns
  EXPECT_EQ(make_hopper_plan(s, {}).tiles, (0 + 1 + 2 + 4) * 4);
  s.hopper.multicast = Multicast::Either;  // the most it can be: 1 x 4 + 1 x 2 x 3 + 2 x 2 x 3 are computed
  EXPECT_EQ(make_hopper_plan(s, {}).tiles, (0 + 1 + 2 + 4) * 4);
}

// Device sizes: the bound must hold for every way to divide the rows.
TEST(Plan, TilesAreAnUpperBound) {
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    Shape s = dense(random() % 3000, 8 * (1 + random() % 100), 64);
    s.grouping = i % 2 ? Grouping::Offsets : Grouping::Masked;
    s.groups = 1 + random() % 40;
    if (i % 3 == 0) s.hopper.cluster = 2, s.hopper.multicast = Multicast(1 + i / 3 % 3);
    s.hopper.tile_n = 64 + 32 * (random() % 7);
    const int64_t bound = make_hopper_plan(s, {}).tiles;
    Shape known = s;
    const kernel::HopperConfig config = make_hopper_plan(s, {}).config;
    known.hopper.schedule = config.schedule, known.hopper.tile_m = config.block_m,
    known.hopper.multicast = config.multicast;
    int64_t left = s.m;
    for (int64_t g = 0; g < s.groups; ++g) {
      const int64_t rows = left == 0 ? 0 : random() % (left + 1);
      known.known_rows.push_back(rows);
      if (s.grouping == Grouping::Offsets) left -= rows;
    }
    EXPECT_LE(make_hopper_plan(known, {}).tiles, bound);
  }
}

TEST(Plan, TheTunedTableOverridesTheModel) {
  Shape s = dense(4096, 5760, 2880);
  const TunedHopper table[] = {
      {Grouping::Dense, 5760, 2880, 0, 1000, false, WarpSchedule::PingPong, 64, 96, Multicast::None},
      {Grouping::Dense, 5760, 2880, 1001, 9000, false, WarpSchedule::PingPong, 64, 224, Multicast::A},
  };
  const HopperPlan plan = make_hopper_plan(s, {}, table);
  EXPECT_EQ(plan.source, PlanSource::TunedTable);
  EXPECT_EQ(describe(plan.config).substr(0, 16), "ping-pong 64x224");
  EXPECT_EQ(plan.config.multicast, Multicast::A);
  EXPECT_NE(make_hopper_plan(s, {}, {}).candidates.front().config.block_n, 224);
  // Behind it the model's order stays as it is.
  std::vector<std::string> others, ranked;
  for (const auto& c : make_hopper_plan(s, {}, {}).candidates) ranked.push_back(describe(c.config));
  for (size_t i = 1; i < plan.candidates.size(); ++i) others.push_back(describe(plan.candidates[i].config));
  std::erase(ranked, describe(plan.config));
  EXPECT_EQ(others, ranked);

  s.m = 1000;
  EXPECT_EQ(make_hopper_plan(s, {}, table).config.block_n, 96);
  s.m = 10000;
  EXPECT_EQ(make_hopper_plan(s, {}, table).source, PlanSource::Model);
  s.m = 4096, s.activation = Activation::Swiglu;
  EXPECT_EQ(make_hopper_plan(s, {}, table).source, PlanSource::Model);
  // Rows name no format and are of bf16: one whose tile packed weights have as well is not theirs.
  s.activation = Activation::None, s.b_format = OperandFormat::Mxfp4;
  const HopperPlan packed = make_hopper_plan(s, {}, {});
  for (const auto& c : packed.candidates) {
    const TunedHopper row{
        Grouping::Dense,   5760, 2880, 0, 9000, false, c.config.schedule, c.config.block_m, c.config.block_n,
        c.config.multicast};
    const HopperPlan again = make_hopper_plan(s, {}, std::span(&row, 1));
    EXPECT_EQ(again.source, PlanSource::Model);
    EXPECT_EQ(describe(again.config), describe(packed.config));
  }
  s.b_format = OperandFormat::Bf16, s.hopper.tile_n = 128;  // the caller goes before the table
  EXPECT_EQ(make_hopper_plan(s, {}, table).config.block_n, 128);
  EXPECT_EQ(make_hopper_plan(s, {}, table).source, PlanSource::Caller);
}

TEST(Plan, ShippedTableNamesPossibleConfigurations) {
  std::vector<TunedHopper> rows;
  for (std::string_view name : device_names()) {
    const auto of_device = tuned_hopper(*named_device(name));
    rows.insert(rows.end(), of_device.begin(), of_device.end());
  }
  EXPECT_GT(rows.size(), 10u);
  for (const TunedHopper& t : rows) {
    Shape s = dense(t.rows_from, t.n, t.k);
    s.grouping = t.grouping;
    s.groups = t.grouping == Grouping::Dense ? 1 : 8;
    s.activation = t.gated ? Activation::Swiglu : Activation::None;
    s.hopper.schedule = t.schedule, s.hopper.tile_m = t.tile_m, s.hopper.tile_n = t.tile_n,
    s.hopper.multicast = t.multicast;
    EXPECT_NO_THROW(make_hopper_plan(s, {}));
  }
}

// Groups of 64 rows are of one tile of 64 rows when they are equal, but half of them have two where they are not.
TEST(Plan, ExpectedRowsAreAMean) {
  Shape s = dense(128 * 64, 4096, 4096);
  s.grouping = Grouping::Offsets;
  s.groups = 128;
  const auto routings = [&] { return estimate_routings(s); };
  EXPECT_EQ(routings().size(), 3u);
  s.expected_rows = 64;
  ASSERT_EQ(routings().size(), 3u);
  for (const RowEstimate& w : routings()) EXPECT_NEAR(mean_rows(w), 64, 4);
  EXPECT_EQ(routings()[0].rows.back().rows, 64);
  EXPECT_EQ(count_cluster_tiles(s, routings()[1], 64, 4096), 128 + 64);
  EXPECT_LE(routings()[1].rows.size(), 8u);
  EXPECT_GT(routings()[2].rows.back().rows, 128);
  EXPECT_LE(routings()[2].rows.size(), 16u);
  s.expected_rows.reset();
  s.known_rows.assign(128, 64);
  ASSERT_EQ(routings().size(), 1u);
  EXPECT_TRUE(routings()[0].exact);
}

TEST(Plan, AMeanOfATilesHeightIsNoReasonForThatTile) {
  Shape s = dense(32 * 64, 3072, 4096);
  s.grouping = Grouping::Offsets;
  s.groups = 32;
  s.activation = Activation::Swiglu;
  const auto chosen = [&] { return make_hopper_plan(s, *named_device("h200"), {}).config; };
  s.known_rows.assign(32, 64);
  const HopperConfig equal = chosen();
  EXPECT_EQ(equal.block_m, 64);
  s.known_rows.clear(), s.expected_rows = 64;
  EXPECT_NE(describe(chosen()), describe(equal));
}

// Where memory is scarce, ping-pong kernels of many rows take longer in products of milliseconds.
TEST(Plan, BlocksThatDriftApartCostTimeOnAnH100) {
  Shape s = dense(444352, 2624, 2688);
  s.grouping = Grouping::Offsets;
  s.groups = 101, s.expected_rows = 4400;
  s.activation = Activation::Swiglu;
  const auto schedule = [&](const char* device) {
    return make_hopper_plan(s, *named_device(device), {}).config.schedule;
  };
  EXPECT_EQ(schedule("h100-sxm"), WarpSchedule::Cooperative);
  EXPECT_EQ(schedule("h200"), WarpSchedule::PingPong);
  s.groups = 5, s.m = 22000;
  EXPECT_EQ(schedule("h100-sxm"), WarpSchedule::PingPong) << "of less than a millisecond";
}

// Rows of groups that are drawn one by one: the rows below which there are so many groups.
TEST(Plan, ScatteredRowsAreQuantilesOfDrawnOnes) {
  std::mt19937 random(3);
  for (const int groups : {2, 3, 8, 128}) {
    for (const double mean : {0.5, 3.0, 64.0, 1000.0}) {
      const auto total = int64_t(mean * groups);
      const RowEstimate w = scattered_rows(total, groups);
      double listed = 0, rows = 0;
      for (const EqualGroups& r : w.rows) listed += r.groups, rows += r.groups * r.rows;
      EXPECT_EQ(listed, groups);
      EXPECT_NEAR(rows, double(total), 0.02 * double(total) + 0.5 * groups * (mean < 1 ? 0.5 : 0.25));
      std::vector<int64_t> drawn;
      std::binomial_distribution<int64_t> of_a_group(total, 1.0 / groups);
      for (int i = 0; i < 20000; ++i) drawn.push_back(of_a_group(random));
      double below = 0;
      for (const EqualGroups& r : w.rows) {
        const double middle = (below + r.groups / 2) / groups;
        below += r.groups;
        const auto up_to = [&](double x) {
          return double(std::count_if(drawn.begin(), drawn.end(), [&](int64_t d) { return double(d) <= x; })) / 20000;
        };
        // A class of equal rows may hold the quantiles beside its middle.
        EXPECT_LE(up_to(r.rows - 1), middle + 0.04) << mean << " rows of " << groups << " groups, " << r.rows;
        EXPECT_GE(up_to(r.rows), middle - 0.04) << mean << " rows of " << groups << " groups, " << r.rows;
      }
    }
  }
}

TEST(Plan, RowsOfARoutingAddUp) {
  for (int64_t groups : {1, 3, 16, 100}) {
    for (int64_t total : {1, 5, 100, 100000}) {
      const auto sum = [](const RowEstimate& w) {
        double rows = 0;
        for (const EqualGroups& r : w.rows) rows += r.rows * r.groups;
        return rows;
      };
      EXPECT_EQ(sum(balanced_rows(total, groups)), double(total));
      if (groups <= 16) {
        EXPECT_EQ(sum(skewed_rows(total, groups)), double(total));
      }
      if (total > 1000) {
        EXPECT_NEAR(sum(skewed_rows(total, groups)), double(total), 0.05 * double(total));
      }
    }
  }
}

// What was measured on an H100: there 128x160 tiles that share nothing read their operands from memory again and again,
// and take twice the time of 256x128 (bench/results/drawn-h100.json).
TEST(Plan, LargeProductsOnAnH100TakeTilesThatReadLess) {
  Shape s = dense(32 * 1682, 8448, 4800);
  s.grouping = Grouping::Offsets;
  s.groups = 32;
  s.expected_rows = 1682;
  const HopperConfig c = make_hopper_plan(s, *named_device("h100-sxm"), {}).config;
  EXPECT_TRUE(c.multicast != Multicast::None || c.block_m * c.block_n == 32768) << describe(c);
}

TEST(Plan, ADevicesFiguresEnterTheTime) {
  Shape s = dense(64, 8192, 8192);
  s.grouping = Grouping::Offsets;
  s.groups = 32;
  s.expected_rows = 2;
  const auto seconds = [&](std::string_view name) {
    const HopperPlan plan = make_hopper_plan(s, *named_device(name), {});
    return plan.candidates.front().cycles / plan.clock;
  };
  EXPECT_GT(seconds("h100-pcie"), 1.4 * seconds("h100-sxm"));  // memory decides
  EXPECT_GT(seconds("h100-sxm"), 1.3 * seconds("h200"));
  s.m = 32 * 4096, s.expected_rows = 4096;
  EXPECT_GT(seconds("h20"), 1.4 * seconds("h200"));  // multiprocessors decide
  EXPECT_FALSE(named_device("a100"));
  for (std::string_view name : device_names()) EXPECT_TRUE(named_device(name)) << name;
}

TEST(Plan, ExplainsItself) {
  Shape s = dense(16384, 5760, 2880);
  s.grouping = Grouping::Offsets;
  s.groups = 32;
  const HopperPlan plan = make_hopper_plan(s, {});
  const PlanInfo info = info_of(s, plan);
  EXPECT_EQ(info.source, PlanSource::Model);
  EXPECT_EQ(info.kernel, describe(plan.config));
  EXPECT_EQ(info.rows_source, RowsSource::Assumed);
  EXPECT_EQ(info.mean_rows, 1024);  // of 512: the power of four that is nearest, upwards
  EXPECT_EQ(info.flops, 2.0 * 32 * 1024 * 5760 * 2880);
  EXPECT_EQ(info.tiles, plan.tiles);
  EXPECT_EQ(info.stages, plan.config.stages);
  EXPECT_EQ(info.store_buffers, plan.config.store_buffers);
  const auto needs = sink_needs(s, plan.config);
  EXPECT_EQ(info.shared_bytes, kernel::shared_bytes(plan.config, needs.data(), int(needs.size())));
  EXPECT_TRUE(info.tuning == Tuning(tuning_of(plan.config)));
  EXPECT_NEAR(info.predicted_seconds, plan.candidates.front().cycles / info.clock, 1e-12);
  ASSERT_EQ(info.candidates.size(), plan.candidates.size());
  for (size_t i = 0; i < plan.candidates.size(); ++i) {
    EXPECT_EQ(info.candidates[i].kernel, describe(plan.candidates[i].config));
    EXPECT_EQ(info.candidates[i].reason, plan.candidates[i].reason);
  }
}

// A candidate's tuning, given as the caller's choice, leads to that candidate.
TEST(Plan, ACandidatesTuningNamesIt) {
  int checked = 0;
  for (const Shape& shape : grid()) {
    const HopperPlan plan = make_hopper_plan(shape, {}, {});
    for (size_t i = 0; i < plan.candidates.size(); i += 7) {
      if (!plan.candidates[i].possible) continue;
      Shape s = shape;
      s.hopper = tuning_of(plan.candidates[i].config);
      const HopperPlan chosen = make_hopper_plan(s, {}, {});
      EXPECT_TRUE(chosen.config == plan.candidates[i].config) << describe(plan.candidates[i].config);
      EXPECT_EQ(chosen.candidates.size(), 1u);
      ++checked;
    }
  }
  EXPECT_GT(checked, 1000);
}

// The rows that Offsets are planned for follow the mean by powers of four, as they did when m was planned for.
TEST(Plan, RangesAreThePowersOfFourNearestToTheMean) {
  for (int64_t groups : {1, 3, 32}) {
    for (int64_t total = 0; total < 6000 * groups; total += 1 + total / 7) {
      const double mean = std::clamp(double(total) / double(groups), 16.0, 4096.0);
      EXPECT_EQ(double(planned_rows(planned_range(total, groups))), std::exp2(2 * std::round(std::log2(mean) / 2)))
          << total << " over " << groups;
    }
  }
}

// Offsets alone are planned for several ranges of rows, and they only where nothing says how many rows there will be.
TEST(Plan, TotalsThatKernelsAreCompiledFor) {
  const int64_t typical = 8 * int64_t(kTypicalRows);
  GemmDescription d{.n = 256, .k = 64};
  const auto totals_of = [&](const Groups& groups) {
    d.groups = groups;
    return ops::planned_totals(d);
  };
  for (const Groups& groups :
       {Groups(RowGroups{8}), Groups(Masked{8, 64}), Groups(Pointers{8, 64}), Groups(KGroups{8, 64})})
    EXPECT_EQ(totals_of(groups), std::vector<int64_t>{typical}) << groups.index();
  EXPECT_EQ(totals_of(Offsets{8}), (std::vector<int64_t>{8 * 16, 8 * 64, 8 * 256, 8 * 1024, 8 * 4096}));
  EXPECT_EQ(totals_of(Offsets{8, 100}), std::vector<int64_t>{100});
  d.expected_rows = 7;
  EXPECT_EQ(totals_of(Offsets{8}), std::vector<int64_t>{56});
  EXPECT_EQ(totals_of(RowGroups{8}), std::vector<int64_t>{56});
  d.known_rows = {1, 2, 3, 0, 0, 0, 0, 5};
  EXPECT_EQ(totals_of(Offsets{8}), std::vector<int64_t>{11});
  EXPECT_EQ(totals_of(Offsets{8, 100}), std::vector<int64_t>{100});
}

TEST(Plan, APackHasEveryKernelOnce) {
  const test::ScratchFolder folder;
  GemmDescription d{.n = 64, .k = 64};
  d.groups = Dense{64};
  GemmDescription other = d;
  other.activation = Activation::Relu;
  EXPECT_EQ(pack({d, other, d}, folder.path().string(), {}, PackImage::Ptx).kernels, 2);
}

TEST(Plan, APackHasTheImagesThatWereAskedFor) {
  GemmDescription d{.n = 64, .k = 64};
  d.groups = Dense{64};
  for (const auto& [image, extension] :
       {std::pair(PackImage::Ptx, ".ptx"), std::pair(PackImage::MachineCode, ".cubin")}) {
    const test::ScratchFolder folder;
    ASSERT_EQ(pack({d}, folder.path().string(), {}, image).kernels, 1);
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      if (entry.path().filename() != "VERSION") found.push_back(entry.path().extension());
    }
    EXPECT_EQ(found, std::vector<std::string>{extension});
  }
}

}  // namespace
}  // namespace moxie::plan
