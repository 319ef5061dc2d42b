// SPDX-License-Identifier: Apache-2.0
// What `moxie tune` and `moxie bench` are made of: the choice among measured kernels, the table as text, and graphs of
// launches timed by events (on the simulator, whose times mean nothing).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/timing/benchmark_case.h"
#include "bench/timing/gpu_clock.h"
#include "bench/timing/tuning.h"
#include "moxie/moxie.h"
#include "tests/unit/scratch.h"

namespace moxie::test {
namespace {

using timing::Measured;

TunedHopper choice(WarpSchedule schedule, int tile_m, int tile_n, Multicast multicast = Multicast::None) {
  TunedHopper t{};
  t.schedule = schedule;
  t.tile_m = tile_m;
  t.tile_n = tile_n;
  t.multicast = multicast;
  return t;
}
const TunedHopper kWide = choice(WarpSchedule::Cooperative, 128, 256),
                  kTall = choice(WarpSchedule::Cooperative, 256, 128),
                  kSmall = choice(WarpSchedule::PingPong, 64, 128, Multicast::A);

Measured measured(int64_t n, int64_t rows, std::vector<Measured::Candidate> candidates,
                  const std::string& kernel_class = "x") {
  Measured m;
  m.kernel_class = kernel_class;
  m.shape.grouping = Grouping::Offsets;
  m.shape.n = n;
  m.shape.k = 64;
  m.rows = rows;
  m.candidates = std::move(candidates);
  return m;
}

TEST(Tuning, TakesTheFastestWithoutSlackAndFewKernelsWithIt) {
  const std::vector<Measured> all = {
      measured(64, 10, {{kSmall, 1.0}, {kWide, 1.5}}),
      measured(64, 100, {{kWide, 1.0}, {kTall, 1.005}}),
      measured(128, 100, {{kTall, 1.0}, {kWide, 1.1}}),
  };
  EXPECT_THAT(timing::choose_candidates(all, 0), testing::ElementsAre(0, 0, 0));
  EXPECT_THAT(timing::choose_candidates(all, 0.01), testing::ElementsAre(0, 1, 0));
}

TEST(Tuning, ProblemsOfDifferentClassesDoNotShareKernels) {
  const std::vector<Measured> all = {
      measured(64, 10, {{kWide, 1.0}, {kTall, 1.001}}, "x"),
      measured(128, 10, {{kTall, 1.0}}, "y"),
  };
  EXPECT_THAT(timing::choose_candidates(all, 0.01), testing::ElementsAre(0, 0));
}

TEST(Tuning, RowsOfTheTableMeetBetweenWhatWasMeasured) {
  const std::vector<Measured> all = {
      measured(64, 400, {{kWide, 1.0}}), measured(64, 4, {{kSmall, 1.0}}),  measured(64, 1, {{kSmall, 1.0}}),
      measured(64, 900, {{kTall, 1.0}}), measured(128, 30, {{kTall, 1.0}}),
  };
  const std::vector<TunedHopper> table = timing::make_table(all, {0, 0, 0, 0, 0});
  ASSERT_EQ(table.size(), 4u);
  EXPECT_EQ(table[0].rows_from, 0);
  EXPECT_EQ(table[0].rows_to, 40);  // sqrt(4 * 400)
  EXPECT_EQ(table[0].tile_m, 64);
  EXPECT_EQ(table[1].rows_from, 41);
  EXPECT_EQ(table[1].rows_to, 600);
  EXPECT_EQ(table[2].rows_from, 601);
  EXPECT_GT(table[2].rows_to, 1 << 20);
  EXPECT_EQ(table[3].n, 128);
  EXPECT_EQ(table[3].rows_from, 0);
}

TEST(Tuning, TilesOfEightRowsEndWherePlansTakeNone) {
  const std::vector<Measured> all = {
      measured(64, 1, {{choice(WarpSchedule::PingPong, 8, 64), 1.0}}),
      measured(64, 16, {{kSmall, 1.0}}),
      measured(128, 1, {{choice(WarpSchedule::PingPong, 8, 64), 1.0}}),
  };
  const std::vector<TunedHopper> table = timing::make_table(all, {0, 0, 0});
  ASSERT_EQ(table.size(), 3u);
  EXPECT_EQ(table[0].rows_to, kMostMeanRowsOf8);
  EXPECT_EQ(table[1].rows_from, kMostMeanRowsOf8 + 1);
  EXPECT_EQ(table[2].rows_to, kMostMeanRowsOf8);
}

TEST(Tuning, TheTableIsReadAsItWasWritten) {
  const ScratchFolder folder;
  TunedHopper row = kSmall;
  row.grouping = Grouping::Offsets;
  row.n = 5760, row.k = 2880, row.rows_from = 7, row.rows_to = 90, row.gated = true;
  std::ofstream(folder.path() / "table") << "# comment\n\n \t\r\n" << tuned_line(row) << "  # comment\n";
  const std::vector<TunedHopper> read = read_tuned((folder.path() / "table").string());
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(tuned_line(read[0]), tuned_line(row));
  EXPECT_EQ(tuned_line(row), "offsets 5760 2880 7 90 gated pingpong 64x128 a");
  EXPECT_EQ(timing::include_line(row),
            "{Grouping::Offsets, 5760, 2880, 7, 90, true, WarpSchedule::PingPong, 64, 128, Multicast::A},");
  row.multicast = Multicast::Either;
  std::ofstream(folder.path() / "either") << tuned_line(row);
  EXPECT_EQ(read_tuned((folder.path() / "either").string()).at(0).multicast, Multicast::Either);
}

TEST(Tuning, WrongTablesAreRefusedWithTheLine) {
  const ScratchFolder folder;
  const std::string path = (folder.path() / "table").string();
  for (const char* line : {"offsets 1 2 3 4 gated pingpong 64x128", "offsets 1 2 3 4 gated pingpong 64x128 a b",
                           "offsets 1 2 3 4 gated pingpong 64x128z a", "nothing 1 2 3 4 gated pingpong 64x128 a",
                           "offsets one 2 3 4 gated pingpong 64x128 a"}) {
    std::ofstream(path) << "# first\n" << line << "\n";
    try {
      read_tuned(path);
      ADD_FAILURE() << line;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
      EXPECT_THAT(error.what(), testing::EndsWith("line 2 is not 'GROUPING N K ROWS_FROM ROWS_TO plain|gated SCHEDULE "
                                                  "ROWSxCOLUMNS none|a|b'"));
    }
  }
  EXPECT_THROW(read_tuned("/nonexistent"), Error);
}

TEST(GpuClock, EveryTurnOfEveryContenderIsLaunched) {
  const Device device = Device::open(DeviceKind::Sim);
  GemmDescription description;
  description.groups = Offsets{3, 20};
  description.n = description.k = 64;
  description.bias = true;
  description.activation = Activation::Swiglu;
  description.pre = DataType::F32;
  const timing::BenchmarkCase work(GroupedGemm(device, description));
  const timing::GpuClock clock(device);
  const auto fetch = [&] {
    std::vector<float> pre(20 * 64);
    device.download(pre.data(), work.pre[0].as(), pre.size() * 4);
    return pre;
  };
  work.launch(0, nullptr);
  device.synchronize();
  const std::vector<float> expected = fetch();
  work.pre[0].clear(device);
  int turns = 0;
  const timing::Launch product = [&](int turn, Stream stream) { work.launch(turn, stream); };
  const timing::Launch copy = [&](int turn, Stream stream) {
    turns |= 1 << turn;
    clock.copy(work.out[0].as(), work.pre[0].as(), 64, stream);
  };
  const std::vector<double> seconds = clock.seconds({{product}, {copy, false}}, 2, 1, 0);
  EXPECT_EQ(fetch(), expected);
  EXPECT_EQ(turns & 3, 3);
  EXPECT_THAT(seconds, testing::Each(testing::Ge(0)));
  EXPECT_EQ(seconds.size(), 2u);
}

TEST(BenchmarkCase, ScatteredRowsAreDrawnAnewEachTurn) {
  const auto rows = [](int turn) { return timing::rows_of_groups(timing::Popularity::Scattered, 64, 64 * 64, turn); };
  EXPECT_EQ(rows(1), rows(1));
  EXPECT_NE(rows(1), rows(2));
  for (const int turn : {0, 1, 2}) {
    double squares = 0;
    int64_t total = 0;
    for (const int64_t r : rows(turn)) total += r, squares += double((r - 64) * (r - 64));
    EXPECT_EQ(total, 64 * 64);
    EXPECT_NEAR(squares / 64, 64, 40) << "the variance of a group's rows is their mean";
  }
}

TEST(BenchmarkCase, CountsCompulsoryTrafficOfGroupsThatHaveRows) {
  GemmDescription description;
  description.groups = Offsets{8, 3};
  description.n = 32;
  description.k = 16;
  description.activation = Activation::Swiglu;
  description.bias = true;
  EXPECT_EQ(timing::compulsory_bytes(description), 3 * (32 * 16 * 2 + 32 * 2) + 3 * (16 * 2 + 16 * 2));
}

}  // namespace
}  // namespace moxie::test
