// SPDX-License-Identifier: Apache-2.0
// Products with swapped operands: grouping x rows of a tile x extents x outputs, MXFP4 and bf16, in every order of the
// simulator. Rows that do not exist have NaN scales, and outputs are poisoned.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "plan/plan.h"
#include "tests/support/planned.h"
#include "tests/support/row_max.h"

namespace moxie::test {
namespace {

constexpr auto kBf16 = DataType::Bf16, kF32 = DataType::F32;
constexpr Grouping kGroupings[] = {Grouping::Dense, Grouping::Batched, Grouping::Offsets, Grouping::RowGroups,
                                   Grouping::Masked};
constexpr const char* kNames[] = {"Dense", "Batched", "Offsets", "RowGroups", "Masked"};
constexpr const char* kGates[] = {"Plain", "Interleaved", "Split", "SplitUpFirst"};

// Groups of every raggedness, for each grouping.
std::vector<int64_t> ragged_rows(int grouping, int tile) {
  if (grouping == 0) return {3 * tile + 17};
  if (grouping == 1) return {tile + 9, tile + 9, tile + 9};
  return {0, 1, 7, 8, 9, 17, 0, 2 * tile + 1, 40};
}

Job swapped(int grouping, int tile_m, int cluster, int64_t n, int64_t k) {
  Job job = job_of(OperandFormat::Mxfp4);
  job.problem.grouping = kGroupings[grouping];
  job.problem.out = kF32;
  job.problem.swap_ab = true;
  job.problem.tile_m = tile_m;
  job.problem.cluster = cluster;
  job.rows = ragged_rows(grouping, std::min(tile_m, 64));
  job.n = n, job.k = k;
  job.seed = uint64_t(grouping * 7 + tile_m * 3 + cluster + n + k);
  return job;
}

// Grouping, rows of a tile, blocks of a cluster. All of them with MOXIE_TEST_ALL=1, otherwise a third.
class Swapped : public testing::TestWithParam<std::tuple<int, int, int>> {
 protected:
  int grouping() const { return std::get<0>(GetParam()); }
  int tile_m() const { return std::get<1>(GetParam()); }
  int cluster() const { return std::get<2>(GetParam()); }
};
std::vector<std::tuple<int, int, int>> tiles() {
  std::vector<std::tuple<int, int, int>> all;
  for (int grouping = 0; grouping < 5; ++grouping) {
    for (int size = 0; size < 5; ++size) {
      for (int cluster = 1; cluster <= 2; ++cluster) {
        if (size == 4 && kGroupings[grouping] == Grouping::RowGroups) continue;
        if (std::getenv("MOXIE_TEST_ALL") || (grouping + size + cluster) % 3 == 0)
          all.emplace_back(grouping, 16 << size, cluster);
      }
    }
  }
  return all;
}

TEST_P(Swapped, GatedWithBias) {
  Job job = swapped(grouping(), tile_m(), cluster(), 304, 160);
  job.problem.bias = true;
  job.problem.activation = Activation(int(Activation::Swiglu) + (grouping() + tile_m() / 16) % 6);
  job.problem.out = tile_m() % 64 ? kBf16 : kF32;
  job.a_scales = job.b_scales = {122, 126};
  run_in_all_orders(job);
}
INSTANTIATE_TEST_SUITE_P(Mxfp4, Swapped, testing::ValuesIn(tiles()), [](const auto& info) {
  return fmt::format("{}{}{}", kNames[std::get<0>(info.param)], std::get<1>(info.param),
                     std::get<2>(info.param) == 2 ? "Pair" : "");
});

// The rest of what there is to store and to sum, one after the other.
TEST(Swapped, EveryPlainActivation) {
  for (int activation = 0; activation <= int(Activation::Silu); ++activation) {
    SCOPED_TRACE(activation);
    Job job = swapped(2, 32, 1, 136, 96);
    job.problem.activation = Activation(activation);
    job.problem.bias = activation % 2 != 0;
    job.problem.out = activation % 3 ? kBf16 : kF32;
    job.a_scales = job.b_scales = {122, 126};
    run_in_all_orders(job);
    if (HasFailure()) return;
  }
}
TEST(Swapped, GatedPre) {
  for (const DataType type : {kF32, kBf16}) {
    Job job = swapped(4, 32, 1, 272, 96);
    job.problem.activation = Activation::Swiglu;
    job.problem.pre = type;
    job.problem.out.reset();
    run_in_all_orders(job);
  }
}

// Grouping, blocks of a cluster.
class SwappedSplit : public testing::TestWithParam<std::tuple<int, int>> {};
TEST_P(SwappedSplit, IsRight) {
  const auto [grouping, cluster] = GetParam();
  Job job = swapped(grouping, 16 << (grouping + cluster) % 4, cluster, 64 * (3 + 2 * grouping), 160);
  job.problem.bias = true;
  job.problem.activation = Activation::Geglu;
  job.problem.gate = grouping % 2 ? GateLayout::Split : GateLayout::SplitUpFirst;
  if ((grouping + cluster) % 3 == 0) {
    job.problem.pre = kF32;
    job.problem.out.reset();
  } else {
    job.problem.out = cluster == 1 ? kBf16 : kF32;
  }
  job.a_scales = job.b_scales = {122, 126};
  run_in_all_orders(job);
}
INSTANTIATE_TEST_SUITE_P(Mxfp4, SwappedSplit, testing::Combine(testing::Range(0, 5), testing::Values(1, 2)),
                         [](const auto& info) {
                           return fmt::format("{}{}", kNames[std::get<0>(info.param)],
                                              std::get<1>(info.param) == 2 ? "Pair" : "");
                         });

// Masked groups of every size below a tile, in a buffer that ends before the tile does: right, no NaN anywhere, and
// whatever the output held before stands wherever no row exists. Rows that do not exist have NaN scales.
class MaskedSwapped : public testing::TestWithParam<std::tuple<int, int, int>> {};  // tile_m, cluster, scheduling
TEST_P(MaskedSwapped, PartialTilesTouchNothingElse) {
  const auto [tile_m, cluster, scheduling] = GetParam();
  for (int64_t most : {int64_t(tile_m) - 3, int64_t(tile_m) + 5}) {
    Job job = swapped(4, tile_m, cluster, 136, 96);
    job.problem.scheduling = TileSource(scheduling);
    job.rows.clear();
    for (int64_t rows = 0; rows <= most; rows += 1 + tile_m / 40) job.rows.push_back(rows);
    job.spare_rows = most - job.rows.back();
    job.seed = run_seed();
    SCOPED_TRACE(fmt::format("max_m {}, MOXIE_TEST_SEED={}", most, run_seed()));
    const GroupedProduct product(job);
    constexpr uint8_t kFinite = 0x5a;  // as a float32 no NaN, so that one in the output is the kernel's
    for (const char* order : orders()) {
      SCOPED_TRACE(order);
      set_order(order);
      const Results results = product.run();
      const std::vector<uint8_t>& got = results.out;
      const std::vector<uint8_t> other = product.run(kFinite).out;
      product.check(results);
      int64_t nans = 0, different = 0;
      for (size_t i = 0; i < other.size(); i += 4) {
        float value;
        std::memcpy(&value, other.data() + i, 4);
        nans += std::isnan(value);
      }
      for (size_t i = 0; i < got.size(); ++i)
        different += got[i] != other[i] && !(got[i] == GroupedProduct::kPoison && other[i] == kFinite);
      EXPECT_EQ(nans, 0);
      EXPECT_EQ(different, 0) << "bytes that are neither a result nor what was there before";
      if (HasFailure()) return;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Mxfp4, MaskedSwapped,
                         testing::Values(std::tuple(16, 1, 0), std::tuple(32, 1, 0), std::tuple(32, 1, 1),
                                         std::tuple(32, 2, 0), std::tuple(32, 2, 1), std::tuple(128, 2, 0)),
                         [](const auto& info) {
                           return fmt::format("{}{}{}", std::get<0>(info.param),
                                              std::get<1>(info.param) == 2 ? "Pair" : "",
                                              std::get<2>(info.param) == 1 ? "LaunchControl" : "");
                         });

// NVFP4 with its floats for each matrix, and tiles that the device gives out: grouping, blocks of a cluster.
class SwappedNvfp4 : public testing::TestWithParam<std::tuple<int, int>> {};
TEST_P(SwappedNvfp4, IsRight) {
  const auto [grouping, cluster] = GetParam();
  Job job = swapped(grouping, 16 << (2 * grouping + cluster) % 4, cluster, 208, 224);
  job.problem.format = OperandFormat::Nvfp4;
  job.problem.scheduling = TileSource::LaunchControl;
  job.a_tensor_scale = {0.25f};
  for (size_t g = 0; g < job.rows.size(); ++g) job.b_tensor_scale.push_back(std::ldexp(1.0f, int(g % 4) - 3));
  run_in_all_orders(job);
}
INSTANTIATE_TEST_SUITE_P(Blackwell, SwappedNvfp4, testing::Combine(testing::Range(0, 5), testing::Values(1, 2)),
                         [](const auto& info) {
                           return fmt::format("{}{}", kNames[std::get<0>(info.param)],
                                              std::get<1>(info.param) == 2 ? "Pair" : "");
                         });

// bf16, pre and out, gates interleaved and split: grouping, gate layout (0: none), blocks of a cluster.
class SwappedBf16 : public testing::TestWithParam<std::tuple<int, int, int>> {};
TEST_P(SwappedBf16, IsRight) {
  const auto [grouping, gate, cluster] = GetParam();
  Job job;
  ProductSpec& p = job.problem;
  p.grouping = kGroupings[grouping];
  p.swap_ab = true;
  p.cluster = cluster;
  p.tile_m = 16 << (3 * grouping + 2 * gate + cluster) % 4;
  p.bias = (grouping + gate) % 2 == 0;
  p.activation = gate == 0 ? Activation::GeluTanh : Activation::SwigluOai;
  if (gate > 0) p.gate = GateLayout(gate - 1);
  p.pre = (grouping + cluster) % 2 ? kF32 : kBf16;
  p.out = (gate + cluster) % 2 ? kF32 : kBf16;
  job.n = 336, job.k = 136;
  job.rows = ragged_rows(grouping, *p.tile_m);
  job.seed = uint64_t(grouping * 100 + gate * 10 + cluster);
  run_in_all_orders(job);
}
INSTANTIATE_TEST_SUITE_P(Blackwell, SwappedBf16,
                         testing::Combine(testing::Range(0, 5), testing::Range(0, 4), testing::Values(1, 2)),
                         [](const auto& info) {
                           return fmt::format("{}{}{}", kNames[std::get<0>(info.param)],
                                              kGates[std::get<1>(info.param)],
                                              std::get<2>(info.param) == 2 ? "Pair" : "");
                         });

TEST(Swapped, ASinkOfTheCallersOwn) {
  for (const bool gated : {false, true}) {
    for (const int tile_m : {16, 64}) {
      Job job;
      job.problem.grouping = Grouping::Offsets;
      job.problem.swap_ab = true, job.problem.tile_m = tile_m;
      job.problem.activation = gated ? Activation::Swiglu : Activation::Relu;
      job.rows = {7, 0, 70, 17};
      job.n = 336, job.k = 72;
      check_row_max(job);
    }
  }
}

// What the plan makes of it: rows that the host knows, never an extent that may be padding.
plan::BlackwellPlan plan_of(const ProductSpec& p) {
  return plan::make_blackwell_plan(test::shape_of(p), {100, 148, 232448});
}
ProductSpec layer(Grouping grouping, int64_t m) {
  ProductSpec p;
  p.format = OperandFormat::Mxfp4;
  p.grouping = grouping;
  p.groups = grouping == Grouping::Dense ? 1 : 256;
  p.m = m, p.n = 4096, p.k = 7168;
  return p;
}

TEST(SwapPlan, FewRowsAreSwapped) {
  for (int64_t rows : {1, 8, 16, 32}) {
    ProductSpec p = layer(Grouping::Masked, 4096);
    p.expected_rows = rows;
    EXPECT_TRUE(plan_of(p).config.swap_ab) << rows;
    EXPECT_TRUE(plan_of(layer(Grouping::Offsets, 256 * rows)).config.swap_ab) << rows;
    EXPECT_TRUE(plan_of(layer(Grouping::Batched, rows)).config.swap_ab) << rows;
  }
  ProductSpec p = layer(Grouping::Masked, 4096);
  p.expected_rows = 2048;
  EXPECT_FALSE(plan_of(p).config.swap_ab);
  EXPECT_FALSE(plan_of(layer(Grouping::Dense, 8192)).config.swap_ab);
}

TEST(SwapPlan, PaddingDecidesNothing) {
  ProductSpec small = layer(Grouping::Masked, 64), large = layer(Grouping::Masked, 8192);
  small.expected_rows = large.expected_rows = 8;
  EXPECT_EQ(plan_of(small).config.swap_ab, plan_of(large).config.swap_ab);
  EXPECT_EQ(plan_of(small).config.block_n, plan_of(large).config.block_n);
  ProductSpec rows = layer(Grouping::RowGroups, 256 * 128);  // one row each, aligned to 128
  rows.expected_rows = 1;
  EXPECT_TRUE(plan_of(rows).config.swap_ab);
  rows.host_rows.assign(256, 1);
  EXPECT_TRUE(plan_of(rows).config.swap_ab);
}

TEST(SwapPlan, TheCallerDecides) {
  for (const Grouping grouping : kGroupings) {
    for (int64_t m : {8, 4096}) {
      ProductSpec p = layer(grouping, m);
      for (const bool swap : {false, true}) {
        p.swap_ab = swap;
        EXPECT_EQ(plan_of(p).config.swap_ab, swap);
      }
    }
  }
}

}  // namespace
}  // namespace moxie::test
