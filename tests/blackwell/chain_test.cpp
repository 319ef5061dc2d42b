// SPDX-License-Identifier: Apache-2.0
// Quantised outputs on sm_100a, and the chain they are for: the first product of an expert layer (bias, activation,
// MXFP4 out) and the second, which reads the first one's elements and scales as they are.
#include "tests/blackwell/mxfp4.h"
#include "tests/hopper/quantized_output.h"

namespace moxie::test {
namespace {

OutputJob first_product(Grouping grouping, std::vector<int64_t> rows) {
  OutputJob job;
  job.grouping = grouping;
  job.rows = std::move(rows);
  job.problem.format = OperandFormat::Mxfp4;
  job.problem.bias = true;
  job.problem.activation = Activation::SwigluOai;
  job.n = 320, job.k = 96;
  job.seed = uint64_t(grouping) + job.rows.size();
  return job;
}

std::vector<GroupedRows> groupings() {
  return {GroupedRows(Grouping::Dense, {200}), GroupedRows(Grouping::Batched, {150, 150, 150}),
          GroupedRows(Grouping::Offsets, {5, 0, 140, 1, 128, 0, 150}), GroupedRows(Grouping::RowGroups, {5, 0, 300, 1}),
          GroupedRows(Grouping::Masked, {5, 0, 140, 1, 128, 150})};
}
std::string grouping_name(const GroupedRows& rows) {
  static constexpr const char* kNames[] = {"Dense", "Batched", "Offsets", "RowGroups", "Masked"};
  return kNames[int(rows.grouping)];
}

class QuantizedOutput : public testing::TestWithParam<std::tuple<GroupedRows, int>> {};
TEST_P(QuantizedOutput, GatedMxfp4) {
  OutputJob job = first_product(std::get<0>(GetParam()).grouping, std::get<0>(GetParam()).rows);
  job.problem.cluster = std::get<1>(GetParam());
  check_quantized_output(job);
}
TEST_P(QuantizedOutput, Mxfp8WithoutAGate) {
  OutputJob job = first_product(std::get<0>(GetParam()).grouping, std::get<0>(GetParam()).rows);
  job.problem.cluster = std::get<1>(GetParam());
  job.problem.activation = Activation::Silu;
  job.type = DataType::Mxfp8;
  job.problem.tile_n = 96;
  job.n = 352, job.padding = 48;
  check_quantized_output(job);
}
TEST_P(QuantizedOutput, Swapped) {
  OutputJob job = first_product(std::get<0>(GetParam()).grouping, std::get<0>(GetParam()).rows);
  job.problem.cluster = std::get<1>(GetParam());
  job.problem.swap_ab = true;
  const bool row_groups = job.grouping == Grouping::RowGroups;
  job.problem.tile_m = row_groups ? 128 : 16;
  check_quantized_output(job);
  if (HasFailure()) return;
  job.problem.activation = Activation::Silu;
  job.type = DataType::Mxfp8;
  if (!row_groups) job.problem.tile_m = 64;
  job.n = 352, job.padding = 48;
  check_quantized_output(job);
}
TEST_P(QuantizedOutput, Nvfp4) {
  OutputJob job = first_product(std::get<0>(GetParam()).grouping, std::get<0>(GetParam()).rows);
  const bool pair = std::get<1>(GetParam()) == 2;
  job.problem.cluster = std::get<1>(GetParam());
  job.type = DataType::Nvfp4;
  if (pair) {
    job.problem.activation = Activation::None;
    job.n = 352;
  } else {
    job.tensor_scale = 0.037f;
    job.problem.swap_ab = job.grouping != Grouping::RowGroups && job.rows.size() % 2 == 0;
  }
  check_quantized_output(job);
}
TEST_P(QuantizedOutput, BesidePre) {
  OutputJob job = first_product(std::get<0>(GetParam()).grouping, std::get<0>(GetParam()).rows);
  job.problem.cluster = std::get<1>(GetParam());
  job.problem.gate = job.grouping == Grouping::Masked ? GateLayout::Split : GateLayout::Interleaved;
  job.problem.swap_ab = job.grouping == Grouping::Offsets;
  job.stores_pre = true;
  check_quantized_output(job);
}
INSTANTIATE_TEST_SUITE_P(Blackwell, QuantizedOutput,
                         testing::Combine(testing::ValuesIn(groupings()), testing::Values(1, 2)), [](const auto& info) {
                           return grouping_name(std::get<0>(info.param)) + (std::get<1>(info.param) == 2 ? "Pair" : "");
                         });

// Widths of a tile: 64, the widest (one accumulator), and one that the columns do not fill.
class QuantizedWidth : public testing::TestWithParam<int> {};
TEST_P(QuantizedWidth, IsRight) {
  OutputJob job = first_product(Grouping::Offsets, {140, 20});
  job.problem.tile_n = GetParam();
  job.n = GetParam() + 64;
  check_quantized_output(job);
  job.problem.activation = Activation::Relu2;
  job.n = 2 * GetParam() + 32;
  check_quantized_output(job);
}
INSTANTIATE_TEST_SUITE_P(Blackwell, QuantizedWidth, testing::Values(64, 128, 192, 256));

TEST(QuantizedPre, OfMxfp4) {
  OutputJob job = first_product(Grouping::Masked, {40, 90});
  job.pre = true;
  job.problem.activation = Activation::None;
  check_quantized_output(job);
}
TEST(QuantizedOut, OfBf16Operands) {
  OutputJob job = first_product(Grouping::Offsets, {40, 0, 131});
  job.problem.format = OperandFormat::Bf16;
  check_quantized_output(job);
}

class Chain : public testing::TestWithParam<GroupedRows> {};
TEST_P(Chain, SecondProductReadsTheFirstOnesOutput) {
  for (const int64_t n : {320, 1216}) {  // the second product's K: 160 (a tail of one scale of four) and 608
    SCOPED_TRACE(n);
    OutputJob job = first_product(GetParam().grouping, GetParam().rows);
    job.n = n;
    job.padding = n == 320 ? 0 : 64;
    QuantizedProduct first(job);
    first.check_plain();
    const GroupedRows& rows = first.rows();
    const int64_t groups = int64_t(rows.rows.size()), columns = 136, ld = columns + 8, k = first.width();
    const Operand weights(OperandFormat::Mxfp4, groups, columns, k, nullptr, 9, 2, 1);
    ProductSpec p;
    p.format = OperandFormat::Mxfp4;
    p.grouping = rows.grouping;
    p.groups = groups, p.m = rows.m, p.n = columns, p.k = k;
    p.out = DataType::F32;
    const Buffer out(size_t(rows.total * ld * 4)), workspace(workspace_bytes(device(), p));
    for (const char* order : orders()) {
      SCOPED_TRACE(order);
      set_order(order);
      ASSERT_NO_THROW(first.check());
      ProductTensors x;
      x.a = first.elements().get(), x.lda = first.ld();
      x.sfa = first.scales().get();
      ASSERT_EQ(a_scale_bytes(p), first.scales().size());
      x.b = weights.elements.get(), x.sfb = weights.scales.get();
      if (!rows.sizes.empty()) x.sizes = first.sizes();
      out.fill(kOutputPoison);
      x.out = out.get(), x.ld_out = ld;
      x.workspace = workspace.get(), x.workspace_bytes = workspace.size();
      ASSERT_NO_THROW(gemm(device(), p, x));
      device().synchronize();
      const std::vector<uint8_t> got = out.download();
      int64_t wrong = 0, spoiled = 0, exact = 0, all = 0;
      for (size_t g = 0; g < rows.rows.size(); ++g) {
        for (int64_t r = rows.first[g]; r < rows.first[g] + rows.rows[g]; ++r) {
          const float* const a = first.values().data() + r * k;
          std::vector<double> row(static_cast<size_t>(columns));
          std::vector<bool> is_exact(static_cast<size_t>(columns));
          double norm = 0;
          for (int64_t j = 0; j < columns; ++j) {
            const float* const b = weights.values.data() + (int64_t(g) * columns + j) * k;
            // A product of two elements has four bits: where all are multiples of `unit` and less than 2^24 of it
            // together, float32 holds every partial sum, whatever their order.
            double unit = HUGE_VAL, most = 0;
            for (int64_t i = 0; i < k; ++i) {
              const double product = double(a[i]) * b[i];
              row[size_t(j)] += product;
              most += std::fabs(product);
              if (product != 0) unit = std::min(unit, std::ldexp(1.0, std::ilogb(product) - 3));
            }
            is_exact[size_t(j)] = most == 0 || most / unit < 0x1p24;
            norm += row[size_t(j)] * row[size_t(j)];
          }
          for (int64_t j = 0; j < columns; ++j) {
            float value;
            std::memcpy(&value, got.data() + (r * ld + j) * 4, 4);
            wrong += is_exact[size_t(j)] ? value != row[size_t(j)]
                                         : !(std::fabs(value - row[size_t(j)]) <= 1e-6 * std::sqrt(norm));
            exact += is_exact[size_t(j)];
            ++all;
          }
        }
      }
      for (int64_t r = 0; r < rows.total; ++r) {
        const bool may = rows.exists[size_t(r)] || rows.grouping == Grouping::RowGroups;
        for (int64_t i = may ? columns * 4 : 0; i < ld * 4; ++i)
          spoiled += got[size_t(r * ld * 4 + i)] != kOutputPoison;
      }
      EXPECT_EQ(wrong, 0) << "elements of the second product";
      EXPECT_GE(exact * 10, all * 9) << "most sums should be exact";
      EXPECT_EQ(spoiled, 0) << "bytes that are not the second product's";
      if (HasFailure()) return;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Blackwell, Chain, testing::ValuesIn(groupings()),
                         [](const auto& info) { return grouping_name(info.param); });

}  // namespace
}  // namespace moxie::test
