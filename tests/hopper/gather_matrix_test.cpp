// SPDX-License-Identifier: Apache-2.0
// Products whose rows of A are gathered, on sm_90a: every kind of tile with and without a shared B, bf16 and packed
// weights, few rows and many, each for sizes that are drawn anew in every run, in every order of the simulator.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/gathered_product.h"

namespace moxie::test {
namespace {

constexpr auto kBf16 = DataType::Bf16, kF32 = DataType::F32;

std::vector<GatheredProduct> entries() {
  constexpr auto kAlone = Multicast::None, kShareB = Multicast::B, kEither = Multicast::Either;
  constexpr auto kCooperative = WarpSchedule::Cooperative, kPingPong = WarpSchedule::PingPong;
  const struct {
    bool packed;
    WarpSchedule schedule;
    int m, n;
    Multicast multicast;
  } tiles[] = {{false, kCooperative, 128, 128, kAlone}, {false, kCooperative, 256, 128, kShareB},
               {false, kCooperative, 128, 256, kAlone}, {false, kCooperative, 256, 96, kAlone},
               {false, kPingPong, 128, 128, kShareB},   {false, kPingPong, 128, 160, kAlone},
               {false, kPingPong, 64, 256, kAlone},     {false, kPingPong, 64, 64, kShareB},
               {false, kPingPong, 64, 64, kAlone},      {false, kPingPong, 8, 64, kAlone},
               {false, kCooperative, 128, 96, kEither}, {false, kPingPong, 64, 128, kEither},
               {true, kCooperative, 256, 128, kAlone},  {true, kCooperative, 128, 256, kAlone},
               {true, kCooperative, 128, 128, kAlone},  {true, kCooperative, 64, 256, kAlone},
               {true, kCooperative, 64, 128, kAlone},   {true, kCooperative, 32, 256, kAlone},
               {true, kCooperative, 16, 128, kAlone},   {true, kCooperative, 8, 256, kAlone}};
  std::vector<GatheredProduct> all;
  for (const auto& tile : tiles) {
    for (int turn = 0; turn < 2; ++turn) {
      GatheredProduct e;
      ProductSpec& p = e.problem;
      const size_t i = all.size();
      p.grouping = Grouping::Offsets;
      p.gather = true;
      if (tile.packed) p.b_format = OperandFormat::Mxfp4;
      p.schedule = tile.schedule, p.tile_m = tile.m, p.tile_n = tile.n, p.multicast = tile.multicast;
      p.activation = turn == 0 ? Activation::SwigluOai : Activation(i % 6);
      p.gate = GateLayout(i / 2 % 3);
      p.bias = i / 3 % 2 == 0;
      p.out = i % 4 == 3 ? kF32 : kBf16;
      if (i % 4 == 1) p.pre = kBf16;
      if (tile.m < 64) p.expected_rows = 1;
      e.name = fmt::format("{}{}x{}{}{}Activation{}", tile.packed ? "Packed" : "", tile.m, tile.n,
                           tile.schedule == kPingPong ? "PingPong" : "",
                           tile.multicast == kShareB   ? "ShareB"
                           : tile.multicast == kEither ? "Either"
                                                       : "",
                           int(p.activation));
      all.push_back(e);
    }
  }
  return all;
}

class GatherMatrix : public ::testing::TestWithParam<GatheredProduct> {};

TEST_P(GatherMatrix, IsRight) { run_gathered(GetParam(), *GetParam().problem.tile_m, 4); }

INSTANTIATE_TEST_SUITE_P(Kernels, GatherMatrix, ::testing::ValuesIn(entries()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace moxie::test
