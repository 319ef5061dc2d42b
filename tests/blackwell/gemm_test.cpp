// SPDX-License-Identifier: Apache-2.0
// MXFP4 products with bias, activations and bf16 outputs, NaN scales, and the blocking of scales. matrix_test.cpp has
// the plain ones.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/support/grouped_product.h"

namespace moxie::test {
namespace {

constexpr auto kBf16 = DataType::Bf16, kF32 = DataType::F32;

Job dense(int64_t m, int64_t n, int64_t k) {
  Job job = job_of(OperandFormat::Mxfp4);
  job.problem.out = kF32;
  job.problem.swap_ab = false;  // swap_test.cpp has the others
  job.rows = {m};
  job.n = n, job.k = k;
  job.seed = uint64_t(m * 7 + n * 3 + k);
  return job;
}

// Tiles that begin in the middle of a group of 32 columns, with every kind of remainder.
class HalfGroup : public testing::TestWithParam<int> {};
TEST_P(HalfGroup, GroupsWithBiasAndBf16) {
  Job job = dense(0, 3 * GetParam() + 8, 96);
  job.problem.grouping = Grouping::Offsets;
  job.rows = {5, 0, 140, 1};
  job.problem.tile_n = GetParam();
  job.problem.bias = true;
  job.problem.activation = Activation::Relu;
  job.problem.out = kBf16;
  run_in_all_orders(job);
}
INSTANTIATE_TEST_SUITE_P(Mxfp4, HalfGroup, testing::Values(16, 48, 80, 112, 144, 176, 208, 240));

struct GroupedCase {
  Grouping grouping;
  std::vector<int64_t> rows;
  const char* name;
};
void PrintTo(const GroupedCase& c, std::ostream* out) { *out << c.name; }
class Groups : public testing::TestWithParam<std::tuple<GroupedCase, int>> {
 protected:
  Job job(int64_t n, int64_t k) const {
    Job j = dense(0, n, k);
    j.problem.grouping = std::get<0>(GetParam()).grouping;
    j.problem.cluster = std::get<1>(GetParam());
    j.rows = std::get<0>(GetParam()).rows;
    return j;
  }
};
TEST_P(Groups, BiasAndBf16) {
  Job job = this->job(328, 96);
  job.problem.bias = true;
  job.problem.out = kBf16;
  run_in_all_orders(job);
}
TEST_P(Groups, GatedActivation) {
  Job job = this->job(336, 160);
  job.problem.bias = true;
  job.problem.activation = Activation::SwigluOai;
  job.problem.out = kBf16;
  job.problem.tile_n = 96;
  job.a_scales = job.b_scales = {122, 126};
  run_in_all_orders(job);
}
// Halves of N that begin at any 32 of 128.
TEST_P(Groups, SplitGate) {
  const int cluster = std::get<1>(GetParam());
  for (int64_t n : {192, 448}) {
    Job job = this->job(n, 160);
    job.problem.bias = true;
    job.problem.activation = Activation::SwigluOai;
    job.problem.gate = n == 192 ? GateLayout::Split : GateLayout::SplitUpFirst;
    job.problem.out = n == 192 ? kBf16 : kF32;
    job.problem.tile_n = n == 192 ? 64 : 128 + 64 * cluster;
    job.a_scales = job.b_scales = {122, 126};
    run_in_all_orders(job);
    if (HasFailure()) return;
  }
}
TEST_P(Groups, GatedPre) {
  Job job = this->job(272, 96);
  job.problem.activation = Activation::Swiglu;
  job.problem.pre = kF32;
  job.problem.out.reset();
  run_in_all_orders(job);
}
INSTANTIATE_TEST_SUITE_P(
    Mxfp4, Groups,
    testing::Combine(testing::Values(GroupedCase{Grouping::Dense, {200}, "Dense"},
                                     GroupedCase{Grouping::Batched, {150, 150, 150}, "Batched"},
                                     GroupedCase{Grouping::Offsets, {5, 0, 140, 1, 128, 0, 270}, "Offsets"},
                                     GroupedCase{Grouping::RowGroups, {5, 0, 140, 1, 128, 0, 270}, "RowGroups"},
                                     GroupedCase{Grouping::Masked, {5, 0, 140, 1, 128, 0, 270}, "Masked"}),
                     testing::Values(1, 2)),
    [](const auto& info) {
      return fmt::format("{}{}", std::get<0>(info.param).name, std::get<1>(info.param) == 2 ? "Pair" : "");
    });

// A NaN scale spoils its row (of A) and its column (of B), and nothing else.
TEST(Mxfp4, NanScale) {
  GroupedProduct product(dense(130, 136, 320));
  const ProductSpec& p = product.problem();
  std::vector<uint8_t> sfa(a_scale_bytes(p)), sfb(b_scale_bytes(p));
  device().download(sfa.data(), product.arguments().sfa, sfa.size());
  device().download(sfb.data(), product.arguments().sfb, sfb.size());
  sfa[size_t(blocked_scale_index(129, 7, p.k))] = 255;
  sfb[size_t(blocked_scale_index(70, 9, p.k))] = 255;
  const Buffer a(sfa), b(sfb);
  const std::vector<uint8_t> clean = product.run().out;
  product.arguments().sfa = a.get(), product.arguments().sfb = b.get();
  const std::vector<uint8_t> spoiled = product.run().out;
  const int64_t ld = product.out().ld[0], first = product.out().first[0];
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      float before, after;
      std::memcpy(&before, clean.data() + (first + i * ld + j) * 4, 4);
      std::memcpy(&after, spoiled.data() + (first + i * ld + j) * 4, 4);
      if (i == 129 || j == 70) {
        ASSERT_TRUE(std::isnan(after)) << i << " " << j;
      } else {
        ASSERT_EQ(before, after) << i << " " << j;
      }
    }
  }
}

// The conversion agrees with the formula, group by group, and writes nothing where no scale is.
TEST(BlockScales, AgreesWithTheFormula) {
  const std::vector<int32_t> ends = {5, 5, 133, 400, 401};
  for (bool offsets : {false, true}) {
    for (int64_t k : {32, 160, 288}) {
      const int64_t groups = 5, rows = offsets ? 410 : 130, columns = k / kScaleBlock;
      std::vector<uint8_t> from(size_t((offsets ? 1 : groups) * rows * columns));
      for (size_t i = 0; i < from.size(); ++i) from[i] = uint8_t(1 + mix(i) % 255);
      const int64_t tile_k = scale_tile_k(OperandFormat::Mxfp4), k_tiles = (k + tile_k - 1) / tile_k;
      const int64_t tiles = offsets ? rows / kScaleTileRows + groups : groups * ((rows + 127) / 128);
      std::vector<uint8_t> wanted(size_t(tiles * k_tiles * kScaleTileBytes), 0xee);
      int64_t first_tile = 0;
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t begin = offsets ? (g ? ends[size_t(g - 1)] : 0) : g * rows;
        const int64_t count = offsets ? ends[size_t(g)] - begin : rows;
        uint8_t* const group = wanted.data() + first_tile * k_tiles * kScaleTileBytes;
        std::fill_n(group, blocked_scale_bytes(count, k), 0);
        for (int64_t r = 0; r < count; ++r) {
          for (int64_t c = 0; c < columns; ++c)
            group[blocked_scale_index(r, c, k)] = from[size_t((begin + r) * columns + c)];
        }
        first_tile += (count + 127) / 128;
      }
      const Buffer source(from), to(std::vector<uint8_t>(wanted.size(), 0xee)), sizes(ends);
      ScaleBlocking x;
      x.from = source.get(), x.to = to.get();
      x.groups = groups, x.rows = rows, x.k = k;
      if (offsets) x.offsets = sizes.get<int32_t>();
      block_scales(device(), x);
      EXPECT_TRUE(to.download() == wanted) << offsets << " " << k;
    }
  }
}

}  // namespace
}  // namespace moxie::test
