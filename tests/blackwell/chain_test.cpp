// SPDX-License-Identifier: Apache-2.0
// Quantised outputs on sm_100a, and the chain they are for: the first product of an expert layer (bias, activation,
// MXFP4 out) and the second, which reads the first one's elements and scales as they are.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/grouped_product.h"

namespace moxie::test {
namespace {

Job first_product(const GroupRows& rows, int cluster = 0) {
  Job job = job_of(OperandFormat::Mxfp4);
  job.problem.grouping = rows.grouping;
  if (cluster > 0) job.problem.cluster = cluster;
  job.problem.bias = true;
  job.problem.activation = Activation::SwigluOai;
  job.problem.out = DataType::Mxfp4;
  job.rows = rows.rows;
  job.n = 320, job.k = 96;
  job.a_scales = {123, 126}, job.b_scales = {121, 123};
  job.seed = uint64_t(rows.grouping) + job.rows.size();
  return job;
}

std::vector<GroupRows> groupings() {
  return {GroupRows(Grouping::Dense, {200}), GroupRows(Grouping::Batched, {150, 150, 150}),
          GroupRows(Grouping::Offsets, {5, 0, 140, 1, 128, 0, 150}), GroupRows(Grouping::RowGroups, {5, 0, 300, 1}),
          GroupRows(Grouping::Masked, {5, 0, 140, 1, 128, 150})};
}
std::string grouping_name(const GroupRows& rows) {
  static constexpr const char* kNames[] = {"Dense", "Batched", "Offsets", "RowGroups", "Masked"};
  return kNames[int(rows.grouping)];
}

// Each grouping with one block or with a pair of them, in turn; MOXIE_TEST_ALL=1: with both. `first` blocks come first.
std::vector<std::tuple<GroupRows, int>> in_turn(int first) {
  std::vector<std::tuple<GroupRows, int>> some;
  int cluster = first;
  for (const GroupRows& rows : groupings()) {
    some.emplace_back(rows, cluster);
    cluster = 3 - cluster;
    if (std::getenv("MOXIE_TEST_ALL")) some.emplace_back(rows, cluster);
  }
  return some;
}
std::string name_of(const testing::TestParamInfo<std::tuple<GroupRows, int>>& info) {
  return grouping_name(std::get<0>(info.param)) + (std::get<1>(info.param) == 2 ? "Pair" : "");
}

class QuantizedOutput : public testing::TestWithParam<std::tuple<GroupRows, int>> {};
class QuantizedMxfp8 : public QuantizedOutput {};
class QuantizedSwapped : public QuantizedOutput {};
class QuantizedBesidePre : public QuantizedOutput {};
TEST_P(QuantizedOutput, GatedMxfp4) {
  Job job = first_product(std::get<0>(GetParam()), std::get<1>(GetParam()));
  run_in_all_orders(job);
}
TEST_P(QuantizedMxfp8, WithoutAGate) {
  Job job = first_product(std::get<0>(GetParam()), std::get<1>(GetParam()));
  job.problem.activation = Activation::Silu;
  job.problem.out = DataType::Mxfp8;
  job.problem.tile_n = 96;
  job.n = 352, job.pad_out = 48;
  run_in_all_orders(job);
}
TEST_P(QuantizedOutput, Swapped) {
  Job job = first_product(std::get<0>(GetParam()), std::get<1>(GetParam()));
  job.problem.swap_ab = true;
  job.problem.tile_m = job.problem.grouping == Grouping::RowGroups ? 128 : 16;
  run_in_all_orders(job);
}
TEST_P(QuantizedSwapped, Mxfp8WithoutAGate) {
  Job job = first_product(std::get<0>(GetParam()), std::get<1>(GetParam()));
  job.problem.swap_ab = true;
  job.problem.tile_m = job.problem.grouping == Grouping::RowGroups ? 128 : 64;
  job.problem.activation = Activation::Silu;
  job.problem.out = DataType::Mxfp8;
  job.n = 352, job.pad_out = 48;
  run_in_all_orders(job);
}
TEST_P(QuantizedOutput, Nvfp4) {
  Job job = first_product(std::get<0>(GetParam()), std::get<1>(GetParam()));
  const bool pair = std::get<1>(GetParam()) == 2;
  job.problem.out = DataType::Nvfp4;
  if (pair) {
    job.problem.activation = Activation::None;
    job.n = 352;
  } else {
    job.output_tensor_scale = 0.037f;
    job.problem.swap_ab = job.problem.grouping != Grouping::RowGroups && job.rows.size() % 2 == 0;
  }
  run_in_all_orders(job);
}
TEST_P(QuantizedBesidePre, IsRight) {
  Job job = first_product(std::get<0>(GetParam()), std::get<1>(GetParam()));
  job.problem.gate = job.problem.grouping == Grouping::Masked ? GateLayout::Split : GateLayout::Interleaved;
  job.problem.swap_ab = job.problem.grouping == Grouping::Offsets;
  job.problem.pre = DataType::F32;
  run_in_all_orders(job);
}
INSTANTIATE_TEST_SUITE_P(Blackwell, QuantizedOutput,
                         testing::Combine(testing::ValuesIn(groupings()), testing::Values(1, 2)), name_of);
INSTANTIATE_TEST_SUITE_P(Blackwell, QuantizedMxfp8, testing::ValuesIn(in_turn(1)), name_of);
INSTANTIATE_TEST_SUITE_P(Blackwell, QuantizedSwapped, testing::ValuesIn(in_turn(2)), name_of);
INSTANTIATE_TEST_SUITE_P(Blackwell, QuantizedBesidePre, testing::ValuesIn(in_turn(2)), name_of);

// Widths of a tile: 64, the widest (one accumulator), and one that the columns do not fill.
class QuantizedWidth : public testing::TestWithParam<int> {};
TEST_P(QuantizedWidth, IsRight) {
  Job job = first_product(GroupRows(Grouping::Offsets, {140, 20}));
  job.problem.tile_n = GetParam();
  job.n = GetParam() + 64;
  run_in_all_orders(job);
  job.problem.activation = Activation::Relu2;
  job.n = 2 * GetParam() + 32;
  run_in_all_orders(job);
}
INSTANTIATE_TEST_SUITE_P(Blackwell, QuantizedWidth, testing::Values(64, 128, 192, 256));

TEST(QuantizedPre, OfMxfp4) {
  Job job = first_product(GroupRows(Grouping::Masked, {40, 90}));
  job.problem.pre = DataType::Mxfp4, job.problem.out.reset();
  job.problem.activation = Activation::None;
  run_in_all_orders(job);
}
TEST(QuantizedOut, OfBf16Operands) {
  Job job = first_product(GroupRows(Grouping::Offsets, {40, 0, 131}));
  job.problem.format = OperandFormat::Bf16;
  run_in_all_orders(job);
}

class Chain : public testing::TestWithParam<GroupRows> {};
TEST_P(Chain, SecondProductReadsTheFirstOnesOutput) {
  for (const int64_t n : {320, 1216}) {  // the second product's K: 160 (a tail of one scale of four) and 608
    SCOPED_TRACE(n);
    Job job = first_product(GetParam());
    job.n = n;
    job.pad_out = n == 320 ? 0 : 64;
    const GroupedProduct first(job);
    Job next = job_of(OperandFormat::Mxfp4);
    next.problem.grouping = job.problem.grouping;
    next.problem.out = DataType::F32;
    next.rows = job.rows;
    next.row_alignment = 512;  // the first product's, which is a multiple of every plan's
    next.n = 136, next.k = n / 2;
    next.b_scales = {122, 124};
    next.seed = 9;
    next.exact = false;  // most are, see below
    GroupedProduct second(next);
    ASSERT_EQ(a_scale_bytes(second.problem()) + 16, first.out().scales[0].size());
    ProductTensors& x = second.arguments();
    x.a = first.arguments().out, x.lda = first.arguments().ld_out;
    x.sfa = first.arguments().out_scales;
    for (const char* order : orders()) {
      SCOPED_TRACE(order);
      set_order(order);
      const Results stored = first.run();
      first.check(stored);
      const std::vector<std::vector<double>> a = first.out_values(stored);
      second.expect_a(a);
      Results results;
      ASSERT_NO_THROW(results = second.run());
      second.check(results);
      int64_t wrong = 0, exact = 0, all = 0;
      const GroupedProduct::Output& out = second.out();
      for (size_t g = 0; g < job.rows.size(); ++g) {
        const std::vector<double> b = second.b().values(g), expected = second.expected_out(g);
        const int64_t k = next.k;
        for (int64_t i = 0; i < job.rows[g] * next.n; ++i) {
          const int64_t row = i / next.n, column = i % next.n;
          // A product of two elements has four bits: where all are multiples of `unit` and less than 2^24 of it
          // together, float32 holds every partial sum, whatever their order.
          double unit = HUGE_VAL, most = 0;
          for (int64_t l = 0; l < k; ++l) {
            const double product = a[g][size_t(row * k + l)] * b[size_t(column * k + l)];
            most += std::fabs(product);
            if (product != 0) unit = std::min(unit, std::ldexp(1.0, std::ilogb(product) - 3));
          }
          ++all;
          if (most > 0 && most / unit >= 0x1p24) continue;
          ++exact;
          float value;
          std::memcpy(&value, results.out.data() + (out.first[g] + row * out.ld[g] + column) * 4, 4);
          wrong += value != expected[size_t(i)];
        }
      }
      EXPECT_EQ(wrong, 0) << "elements of the second product";
      EXPECT_GE(exact * 10, all * 9) << "most sums should be exact";
      if (HasFailure()) return;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Blackwell, Chain, testing::ValuesIn(groupings()),
                         [](const auto& info) { return grouping_name(info.param); });

}  // namespace
}  // namespace moxie::test
