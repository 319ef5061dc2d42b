// SPDX-License-Identifier: Apache-2.0
// bf16 products on sm_90a whose outputs leave as MXFP4 or MXFP8.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/grouped_product.h"

namespace moxie::test {
namespace {

Job bf16(Grouping grouping, std::vector<int64_t> rows, DataType out = DataType::Mxfp4) {
  Job job;
  job.problem.grouping = grouping;
  job.problem.bias = true;
  job.problem.out = out;
  job.rows = std::move(rows);
  job.n = 128;
  job.seed = uint64_t(grouping) + job.rows.size();
  return job;
}

struct Choice {
  const char* name;
  WarpSchedule schedule;
  int tile_m, tile_n;
  Activation activation;
  GateLayout gate;
  DataType type;
};
void PrintTo(const Choice& choice, std::ostream* out) { *out << choice.name; }
constexpr const char* kGroupings[] = {"Dense", "Batched", "Offsets", "RowGroups", "Masked"};

class QuantizedOutput : public testing::TestWithParam<std::tuple<GroupRows, Choice>> {};
TEST_P(QuantizedOutput, IsTheQuantizedFloat32) {
  const auto& [rows, choice] = GetParam();
  Job job = bf16(rows.grouping, rows.rows, choice.type);
  ProductSpec& p = job.problem;
  p.schedule = choice.schedule, p.tile_m = choice.tile_m, p.tile_n = choice.tile_n;
  p.activation = choice.activation, p.gate = choice.gate;
  job.n = 320, job.k = 72;
  run_in_all_orders(job);
}
INSTANTIATE_TEST_SUITE_P(
    Hopper, QuantizedOutput,
    testing::Combine(testing::Values(GroupRows(Grouping::Dense, {200}), GroupRows(Grouping::Batched, {70, 70, 70}),
                                     GroupRows(Grouping::Offsets, {5, 0, 150, 64, 1, 129}),
                                     GroupRows(Grouping::RowGroups, {5, 0, 300, 1}),
                                     GroupRows(Grouping::Masked, {5, 0, 150, 64, 129})),
                     testing::Values(Choice{"PingPong64", WarpSchedule::PingPong, 64, 96, Activation::None,
                                            GateLayout::Interleaved, DataType::Mxfp4},
                                     Choice{"Cooperative128", WarpSchedule::Cooperative, 128, 128,
                                            Activation::SwigluOai, GateLayout::Interleaved, DataType::Mxfp4},
                                     Choice{"PingPong128", WarpSchedule::PingPong, 128, 128, Activation::Situ,
                                            GateLayout::Interleaved, DataType::Mxfp8},
                                     Choice{"Cooperative256", WarpSchedule::Cooperative, 256, 64, Activation::Swiglu,
                                            GateLayout::Split, DataType::Mxfp8})),
    [](const auto& info) {
      return fmt::format("{}{}", kGroupings[int(std::get<0>(info.param).grouping)], std::get<1>(info.param).name);
    });

TEST(QuantizedOut, BesidePre) {
  for (const WarpSchedule schedule : {WarpSchedule::Cooperative, WarpSchedule::PingPong}) {
    Job job = bf16(Grouping::Offsets, {40, 0, 131});
    job.problem.schedule = schedule;
    job.problem.activation = Activation::SwigluOai;
    job.problem.pre = DataType::F32;
    job.n = 320;
    run_in_all_orders(job);
  }
}
TEST(QuantizedOut, Nvfp4) {
  Job job = bf16(Grouping::Masked, {40, 0, 131}, DataType::Nvfp4);
  job.output_tensor_scale = 0.25f;
  job.n = 352;
  run_in_all_orders(job);
}

TEST(QuantizedPre, InEveryOrder) {
  Job job = bf16(Grouping::Offsets, {40, 90});
  job.problem.pre = DataType::Mxfp8, job.problem.out.reset();
  job.problem.activation = Activation::GeluTanh;
  run_in_all_orders(job);
}

}  // namespace
}  // namespace moxie::test
