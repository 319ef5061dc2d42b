// SPDX-License-Identifier: Apache-2.0
// bf16 products on sm_100a: grouping x gate layout x cluster, in every order of the simulator.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/grouped_product.h"

namespace moxie::test {
namespace {

constexpr Grouping kGroupings[] = {Grouping::Dense, Grouping::Batched, Grouping::Offsets, Grouping::RowGroups,
                                   Grouping::Masked};
constexpr const char* kNames[] = {"Dense", "Batched", "Offsets", "RowGroups", "Masked"};
constexpr const char* kGates[] = {"Plain", "Interleaved", "Split", "SplitUpFirst"};

class Bf16 : public testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(Bf16, IsRight) {
  const auto [grouping, gate, cluster] = GetParam();
  Job job;
  ProductSpec& p = job.problem;
  p.grouping = kGroupings[grouping];
  p.cluster = cluster;
  p.tile_n = 32 * (1 + (3 * grouping + 2 * gate + cluster) % 8);
  p.bias = (grouping + gate) % 2 == 0;
  p.activation = gate == 0 ? Activation::GeluTanh : Activation::SwigluOai;
  if (gate > 0) p.gate = GateLayout(gate - 1);
  p.pre = (grouping + cluster) % 2 ? DataType::F32 : DataType::Bf16;
  p.out = DataType::Bf16;
  job.n = 336, job.k = 136;
  job.rows = grouping == 0   ? std::vector<int64_t>{300}
             : grouping == 1 ? std::vector<int64_t>{130, 130}
                             : std::vector<int64_t>{5, 0, 140, 1, 0, 70};
  job.seed = uint64_t(grouping * 100 + gate * 10 + cluster);
  run_in_all_orders(job);
}

INSTANTIATE_TEST_SUITE_P(Blackwell, Bf16,
                         testing::Combine(testing::Range(0, 5), testing::Range(0, 4), testing::Values(1, 2)),
                         [](const auto& info) {
                           return fmt::format("{}{}{}", kNames[std::get<0>(info.param)],
                                              kGates[std::get<1>(info.param)],
                                              std::get<2>(info.param) == 2 ? "Pair" : "");
                         });

TEST(Bf16, DepthsAndEmptyDepth) {
  for (int64_t k : {0, 8, 64, 72, 520}) {
    SCOPED_TRACE(k);
    Job job;
    job.problem.out = DataType::F32;
    job.rows = {33}, job.n = 72, job.k = k;
    run_in_all_orders(job);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace moxie::test
