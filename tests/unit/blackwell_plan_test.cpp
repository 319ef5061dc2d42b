// SPDX-License-Identifier: Apache-2.0
// The planner of sm_100a: how its candidates rank, what it refuses, and that callers' sinks get tiles they can take.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "moxie/error.h"
#include "plan/plan.h"

namespace moxie::plan {
namespace {

const DeviceFigures kB200{100, 148, 232448};

Shape dense(int64_t m, int64_t n, int64_t k) {
  Shape s;
  s.m = m, s.n = n, s.k = k;
  s.format = OperandFormat::Mxfp4;
  s.out = DataType::F32;
  return s;
}

// Of the best candidate with this many accumulators and, unless 0, this many columns of the accumulator.
double best_cycles(const BlackwellPlan& plan, int accumulators, int block_n) {
  for (const auto& c : plan.candidates) {
    if (c.possible && c.config.accumulators == accumulators && (block_n == 0 || c.config.block_n == block_n))
      return c.cycles;
  }
  return INFINITY;
}

// As DeepGEMM's sweep of widths found it.
TEST(BlackwellPlan, WithManyTilesTwoAccumulatorsGoBeforeTheWidestTile) {
  const BlackwellPlan plan = make_blackwell_plan(dense(4096, 4096, 7168), kB200);
  EXPECT_EQ(plan.config.accumulators, 2);
  EXPECT_LT(plan.config.block_n, 256);
  EXPECT_LT(best_cycles(plan, 2, 0), best_cycles(plan, 1, 256));
  EXPECT_TRUE(std::isfinite(best_cycles(plan, 1, 256)));
}

TEST(BlackwellPlan, WithOneWaveTheWidestTileIsKept) {
  const BlackwellPlan plan = make_blackwell_plan(dense(1024, 4096, 7168), kB200);
  EXPECT_EQ(plan.config.block_n, 256);
  EXPECT_EQ(plan.config.accumulators, 1);
  EXPECT_LE(plan.tiles, kB200.sm_count);
}

TEST(BlackwellPlan, PredictsTheFirstCandidateAtAClock) {
  const BlackwellPlan plan = make_blackwell_plan(dense(4096, 4096, 7168), kB200);
  const PlanInfo info = info_of(dense(4096, 4096, 7168), plan);
  EXPECT_GT(info.predicted_seconds, 0);
  EXPECT_NEAR(info.clock, 1.85e9, 1);
  EXPECT_NEAR(plan.candidates.front().cycles / info.predicted_seconds, info.clock, 1);
}

// A candidate's tuning, given as the caller's choice, leads to that candidate.
TEST(BlackwellPlan, ACandidatesTuningNamesIt) {
  for (const bool offsets : {false, true}) {
    Shape shape = dense(300, 2880, 736);
    shape.format = OperandFormat::Mxfp4;
    if (offsets) shape.grouping = Grouping::Offsets, shape.groups = 8;
    for (const auto& candidate : make_blackwell_plan(shape, kB200).candidates) {
      if (!candidate.possible) continue;
      Shape s = shape;
      s.blackwell = tuning_of(candidate.config);
      EXPECT_EQ(describe(make_blackwell_plan(s, kB200).config), describe(candidate.config));
    }
  }
}

// 32 columns of a value, which are 64 of a gated product.
TEST(BlackwellPlan, SinksOfCallersGetWholeSpans) {
  for (const OperandFormat format : {OperandFormat::Bf16, OperandFormat::Mxfp4, OperandFormat::Nvfp4}) {
    for (const bool gated : {false, true}) {
      Shape s = dense(4096, 2880, 736);
      s.format = format;
      s.activation = gated ? Activation::Swiglu : Activation::None;
      s.custom_sinks = {{}};
      for (const auto& c : make_blackwell_plan(s, kB200).candidates) {
        if (c.config.swap_ab) continue;
        EXPECT_EQ(c.config.block_n % (gated ? 64 : 32), 0) << describe(c.config);
      }
      s.blackwell.tile_n = 96;
      if (!gated) {
        EXPECT_EQ(make_blackwell_plan(s, kB200).config.block_n, 96);
        continue;
      }
      try {
        make_blackwell_plan(s, kB200);
        ADD_FAILURE() << "accepted";
      } catch (const Error& error) {
        EXPECT_STREQ(error.what(),
                     "tile_n is 96, but with a gated activation and custom sinks only multiples of 64 are possible");
      }
      s.blackwell.tile_n = 128;
      EXPECT_EQ(make_blackwell_plan(s, kB200).config.block_n, 128);
      s.blackwell.tile_n = 96;
      s.custom_sinks = {{.narrow = true}};
      EXPECT_EQ(make_blackwell_plan(s, kB200).config.block_n, 96);
    }
  }
}

}  // namespace
}  // namespace moxie::plan
