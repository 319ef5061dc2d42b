// SPDX-License-Identifier: Apache-2.0
// NVFP4 products: E4M3 scales of 16 elements, and a float for each matrix, over grouping x width of a tile x extents.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/support/grouped_product.h"

namespace moxie::test {
namespace {

constexpr auto kBf16 = DataType::Bf16, kF32 = DataType::F32;

// Scales of 0.5, 0.75, 1 and 1.5: sums are exact.
Job dense(int64_t m, int64_t n, int64_t k) {
  Job job = job_of(OperandFormat::Nvfp4);
  job.problem.out = kF32;
  job.problem.swap_ab = false;  // swap_test.cpp has the others
  job.rows = {m};
  job.n = n, job.k = k;
  job.seed = uint64_t(m * 7 + n * 3 + k);
  return job;
}

TEST(Nvfp4, ManyTiles) { run_in_all_orders(dense(300, 520, 512)); }

class Nvfp4Depth : public testing::TestWithParam<int> {};
TEST_P(Nvfp4Depth, IsRight) { run_in_all_orders(dense(70, 72, GetParam())); }
INSTANTIATE_TEST_SUITE_P(Blackwell, Nvfp4Depth, testing::Values(0, 32, 64, 96, 128, 160, 288, 736));

// Blocks of a cluster and columns of a tile; half groups on one block.
class Nvfp4Tile : public testing::TestWithParam<std::tuple<int, int>> {};
TEST_P(Nvfp4Tile, IsRight) {
  const auto [cluster, tile_n] = GetParam();
  if (cluster == 2 && tile_n % 32 != 0) return;
  Job job = dense(140 * cluster, 2 * tile_n + 40, 352);
  job.problem.cluster = cluster, job.problem.tile_n = tile_n;
  run_in_all_orders(job);
}
INSTANTIATE_TEST_SUITE_P(Blackwell, Nvfp4Tile,
                         testing::Combine(testing::Values(1, 2),
                                          testing::Values(16, 32, 80, 96, 128, 208, 224, 240, 256)));

class Nvfp4Groups : public testing::TestWithParam<std::tuple<int, int>> {};
TEST_P(Nvfp4Groups, TensorScalesBiasAndActivation) {
  constexpr Grouping kGroupings[] = {Grouping::Dense, Grouping::Batched, Grouping::Offsets, Grouping::RowGroups,
                                     Grouping::Masked};
  const auto [grouping, cluster] = GetParam();
  Job job = dense(0, 336, 160);
  ProductSpec& p = job.problem;
  p.grouping = kGroupings[grouping];
  p.cluster = cluster;
  p.tile_n = 96;
  p.bias = true;
  p.scheduling = grouping % 2 ? TileSource::LaunchControl : TileSource::Static;
  job.rows = grouping == 0   ? std::vector<int64_t>{200}
             : grouping == 1 ? std::vector<int64_t>{150, 150, 150}
                             : std::vector<int64_t>{5, 0, 140, 1, 128, 0, 270};
  job.a_tensor_scale = {0.25f};
  for (size_t g = 0; g < job.rows.size(); ++g) job.b_tensor_scale.push_back(std::ldexp(1.0f, int(g % 4) - 3));
  Random random(run_seed() + uint64_t(2 * grouping + cluster));
  job.specials = random.next() | 1, job.wild_sizes = random.next() | 1;
  run_in_all_orders(job);
  if (HasFailure()) return;
  p.activation = Activation::SwigluOai;
  p.out = kBf16;
  job.a_tensor_scale = {0.0123f};
  job.b_tensor_scale.clear();
  run_in_all_orders(job);
}
INSTANTIATE_TEST_SUITE_P(Blackwell, Nvfp4Groups, testing::Combine(testing::Range(0, 5), testing::Values(1, 2)));

// Every scale there is but NaN, and a float that rounds.
TEST(Nvfp4, AllScales) {
  Job job = dense(130, 136, 320);
  job.a_scales = job.b_scales = {0, 0x7e};
  job.b_tensor_scale = {0.3f};
  job.exact = false;
  run_in_all_orders(job);
}

// A NaN scale spoils its row, and nothing else.
TEST(Nvfp4, NanScale) {
  GroupedProduct product(dense(130, 72, 96));
  const ProductSpec& p = product.problem();
  std::vector<uint8_t> sfa(a_scale_bytes(p));
  device().download(sfa.data(), product.arguments().sfa, sfa.size());
  sfa[size_t(blocked_scale_index(129, 5, p.k, 16))] = 0x7f;
  const Buffer a(sfa);
  const std::vector<uint8_t> clean = product.run().out;
  product.arguments().sfa = a.get();
  const std::vector<uint8_t> spoiled = product.run().out;
  const int64_t ld = product.out().ld[0], first = product.out().first[0];
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      float before, after;
      std::memcpy(&before, clean.data() + (first + i * ld + j) * 4, 4);
      std::memcpy(&after, spoiled.data() + (first + i * ld + j) * 4, 4);
      if (i == 129) {
        ASSERT_TRUE(std::isnan(after)) << j;
      } else {
        ASSERT_EQ(before, after) << i << " " << j;
      }
    }
  }
}

}  // namespace
}  // namespace moxie::test
