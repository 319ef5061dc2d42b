// SPDX-License-Identifier: Apache-2.0
// Products whose tiles come by cluster launch control: every grouping, one block and pairs, MXFP4 and bf16, in every
// order of the simulator, each of which starts another number of blocks at once.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/grouped_product.h"
#include "tests/support/planned.h"

namespace moxie::test {
namespace {

constexpr auto kBf16 = DataType::Bf16, kF32 = DataType::F32;

struct GroupedCase {
  Grouping grouping;
  std::vector<int64_t> rows;
  const char* name;
};
const GroupedCase kCases[] = {{Grouping::Dense, {900}, "Dense"},
                              {Grouping::Batched, {150, 150, 150}, "Batched"},
                              {Grouping::Offsets, {5, 0, 140, 1, 128, 0, 270}, "Offsets"},
                              {Grouping::RowGroups, {5, 0, 140, 1, 128, 0, 270}, "RowGroups"},
                              {Grouping::Masked, {5, 0, 140, 1, 128, 0, 270}, "Masked"}};

class LaunchControlled : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  const GroupedCase& grouped() const { return kCases[std::get<0>(GetParam())]; }
  void choose(ProductSpec& p) const {
    p.grouping = grouped().grouping;
    p.cluster = std::get<1>(GetParam());
    p.scheduling = TileSource::LaunchControl;
  }
};
// One stage a tile: the loader is ahead of the epilogue by as many tiles as there are answers.
TEST_P(LaunchControlled, ShortSums) {
  Job job = job_of(OperandFormat::Mxfp4);
  choose(job.problem);
  job.problem.out = kBf16;
  job.problem.tile_n = 32;
  job.problem.bias = true;
  job.rows = grouped().rows;
  job.n = 200, job.k = 32;
  run_in_all_orders(job);
}
TEST_P(LaunchControlled, Bf16Gated) {
  Job job;
  choose(job.problem);
  job.problem.tile_n = 64;
  job.problem.bias = true;
  job.problem.activation = Activation::SwigluOai;
  job.problem.gate = GateLayout::Split;
  job.problem.pre = kF32, job.problem.out = kBf16;
  job.rows = grouped().rows;
  job.n = 144, job.k = 136;
  run_in_all_orders(job);
}
INSTANTIATE_TEST_SUITE_P(Blackwell, LaunchControlled, testing::Combine(testing::Range(0, 5), testing::Values(1, 2)),
                         [](const auto& info) {
                           return fmt::format("{}{}", kCases[std::get<0>(info.param)].name,
                                              std::get<1>(info.param) == 2 ? "Pair" : "");
                         });

// More groups than a warp looks at together, most of them empty, so that the grid has many blocks without a tile.
TEST(LaunchControl, ManyGroups) {
  for (Grouping grouping : {Grouping::Offsets, Grouping::Masked}) {
    for (int cluster : {1, 2}) {
      SCOPED_TRACE(fmt::format("{} {}", int(grouping), cluster));
      Job job = job_of(OperandFormat::Mxfp4);
      job.problem.grouping = grouping;
      job.problem.cluster = cluster;
      job.problem.scheduling = TileSource::LaunchControl;
      job.problem.tile_n = 64;
      job.problem.out = kF32;
      job.rows.assign(300, 0);
      for (size_t g : {0, 1, 3, 4, 127, 128, 255, 256, 299}) job.rows[g] = 1 + int64_t(g) % 3 * 70;
      job.n = 96, job.k = 64;
      run_in_all_orders(job);
      if (HasFailure()) return;
    }
  }
}

// Every group empty: each block leaves at once.
TEST(LaunchControl, NoTileAtAll) {
  Job job = job_of(OperandFormat::Mxfp4);
  job.problem.grouping = Grouping::Offsets;
  job.problem.scheduling = TileSource::LaunchControl;
  job.problem.out = kF32;
  job.rows = {0, 0, 0};
  job.spare_rows = 300;
  run_in_all_orders(job);
}

// The host's idea of the rows may be wrong: the grid has room for what the device says.
TEST(LaunchControl, RowsThatTheHostGotWrong) {
  Job job = job_of(OperandFormat::Mxfp4);
  job.problem.grouping = Grouping::Masked;
  job.problem.scheduling = TileSource::LaunchControl;
  job.problem.out = kF32;
  job.problem.host_rows = {1, 1, 0};
  job.rows = {200, 140, 3};
  run_in_all_orders(job);
}

ProductSpec offsets_problem() {
  ProductSpec p;
  p.format = OperandFormat::Mxfp4;
  p.grouping = Grouping::Offsets;
  p.groups = 8, p.m = 1000, p.n = 512, p.k = 512;
  return p;
}
constexpr DeviceFigures kB200{100, 148, 232448};

TEST(LaunchControl, TheGridHasRoomForTheMostTiles) {
  ProductSpec p = offsets_problem();
  p.scheduling = TileSource::LaunchControl;
  p.cluster = 1, p.tile_n = 128;
  const auto prepared = test::plan_of(kB200, p);
  EXPECT_EQ(prepared.blackwell().config.scheduling, TileSource::LaunchControl);
  EXPECT_EQ(prepared.blocks, (8 + 7) * 4);  // 1000 rows, and 7 groups that end with a started tile
  p.scheduling = TileSource::Static;
  EXPECT_EQ(test::plan_of(kB200, p).blocks, 60);  // no block too many
  p.m = 100000;
  EXPECT_EQ(test::plan_of(kB200, p).blocks, 148);  // no more than the device holds
}

TEST(LaunchControl, NothingOfItInAStaticKernel) {
  for (TileSource scheduling : {TileSource::Static, TileSource::LaunchControl}) {
    ProductSpec p = offsets_problem();
    p.scheduling = scheduling;
    const auto prepared = test::plan_of(kB200, p);
    jit::Request request = ops::kernel_request(prepared, describe(p));
    request.kind = jit::ImageKind::Ptx;
    const std::string ptx = jit::Compiler::get().compile(request);
    EXPECT_EQ(ptx.find("clusterlaunchcontrol") != std::string::npos, scheduling == TileSource::LaunchControl);
  }
}

}  // namespace
}  // namespace moxie::test
