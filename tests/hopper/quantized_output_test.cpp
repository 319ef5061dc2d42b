// SPDX-License-Identifier: Apache-2.0
// bf16 products on sm_90a whose outputs leave as MXFP4 or MXFP8.
#include "tests/hopper/quantized_output.h"

namespace moxie::test {
namespace {

OutputJob bf16(Grouping grouping, std::vector<int64_t> rows) {
  OutputJob job;
  job.grouping = grouping;
  job.rows = std::move(rows);
  job.problem.bias = true;
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
constexpr const char* kGroupings[] = {"Dense", "Batched", "Offsets", "RowGroups", "Masked"};

class QuantizedOutput : public testing::TestWithParam<std::tuple<GroupedRows, Choice>> {};
TEST_P(QuantizedOutput, IsTheQuantizedFloat32) {
  const auto& [rows, choice] = GetParam();
  OutputJob job = bf16(rows.grouping, rows.rows);
  ProductSpec& p = job.problem;
  p.schedule = choice.schedule, p.tile_m = choice.tile_m, p.tile_n = choice.tile_n;
  p.activation = choice.activation, p.gate = choice.gate;
  job.type = choice.type;
  job.n = 320, job.k = 72;
  check_quantized_output(job);
}
INSTANTIATE_TEST_SUITE_P(
    Hopper, QuantizedOutput,
    testing::Combine(testing::Values(GroupedRows(Grouping::Dense, {200}), GroupedRows(Grouping::Batched, {70, 70, 70}),
                                     GroupedRows(Grouping::Offsets, {5, 0, 150, 64, 1, 129}),
                                     GroupedRows(Grouping::RowGroups, {5, 0, 300, 1}),
                                     GroupedRows(Grouping::Masked, {5, 0, 150, 64, 129})),
                     testing::Values(Choice{"PingPong64", WarpSchedule::PingPong, 64, 96, Activation::None,
                                            GateLayout::Interleaved, DataType::Mxfp4},
                                     Choice{"Cooperative128", WarpSchedule::Cooperative, 128, 128,
                                            Activation::SwigluOai, GateLayout::Interleaved, DataType::Mxfp4},
                                     Choice{"Cooperative256", WarpSchedule::Cooperative, 256, 64, Activation::Swiglu,
                                            GateLayout::Split, DataType::Mxfp8})),
    [](const auto& info) {
      return fmt::format("{}{}", kGroupings[int(std::get<0>(info.param).grouping)], std::get<1>(info.param).name);
    });

TEST(QuantizedOut, BesidePre) {
  for (const WarpSchedule schedule : {WarpSchedule::Cooperative, WarpSchedule::PingPong}) {
    OutputJob job = bf16(Grouping::Offsets, {40, 0, 131});
    job.problem.schedule = schedule;
    job.problem.activation = Activation::SwigluOai;
    job.stores_pre = true;
    job.n = 320;
    check_quantized_output(job);
  }
}
TEST(QuantizedOut, Nvfp4) {
  OutputJob job = bf16(Grouping::Masked, {40, 0, 131});
  job.type = DataType::Nvfp4;
  job.tensor_scale = 0.25f;
  job.n = 352;
  check_quantized_output(job);
}

TEST(QuantizedPre, InEveryOrder) {
  OutputJob job = bf16(Grouping::Offsets, {40, 90});
  job.pre = true;
  job.problem.activation = Activation::GeluTanh;
  job.type = DataType::Mxfp8;
  check_quantized_output(job);
}

}  // namespace
}  // namespace moxie::test
