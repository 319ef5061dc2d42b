// SPDX-License-Identifier: Apache-2.0
// Products whose rows of A are gathered, on sm_100a: one block and pairs, operands swapped and not, narrow and wide,
// both schedulings, each for sizes that are drawn anew in every run, in every order of the simulator.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/gathered_product.h"

namespace moxie::test {
namespace {

constexpr auto kBf16 = DataType::Bf16, kF32 = DataType::F32;

std::vector<GatheredProduct> entries() {
  const struct {
    bool swap;
    int cluster, size;  // rows of the tile with swapped operands, else its columns
  } tiles[] = {{false, 1, 32}, {false, 1, 128}, {false, 1, 256}, {false, 2, 64}, {false, 2, 256},
               {true, 1, 16},  {true, 1, 64},   {true, 1, 256},  {true, 2, 16},  {true, 2, 128}};
  std::vector<GatheredProduct> all;
  for (const auto& tile : tiles) {
    for (const TileSource scheduling : {TileSource::Static, TileSource::LaunchControl}) {
      GatheredProduct e;
      ProductSpec& p = e.problem;
      const size_t i = all.size();
      p.grouping = Grouping::Offsets;
      p.gather = true;
      p.swap_ab = tile.swap, p.cluster = tile.cluster, p.scheduling = scheduling;
      (tile.swap ? p.tile_m : p.tile_n) = tile.size;
      p.activation = i % 2 == 0 ? Activation::SwigluOai : Activation(i / 2 % 6);
      p.gate = GateLayout(i / 2 % 3);
      p.bias = i / 3 % 2 == 0;
      p.out = i % 4 == 3 ? kF32 : kBf16;
      if (i % 4 == 1) p.pre = kBf16;
      e.name = fmt::format("{}{}{}{}Activation{}", tile.swap ? "Swapped" : "Wide", tile.size,
                           tile.cluster == 2 ? "Pair" : "", scheduling == TileSource::Static ? "" : "Controlled",
                           int(p.activation));
      all.push_back(e);
    }
  }
  return all;
}

class GatherMatrix : public ::testing::TestWithParam<GatheredProduct> {};

TEST_P(GatherMatrix, IsRight) {
  run_gathered(GetParam(), GetParam().problem.tile_m.value_or(128 * *GetParam().problem.cluster), 3);
}

INSTANTIATE_TEST_SUITE_P(Blackwell, GatherMatrix, ::testing::ValuesIn(entries()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace moxie::test
