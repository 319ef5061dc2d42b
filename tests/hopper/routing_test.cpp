// SPDX-License-Identifier: Apache-2.0
// Routing data at their worst, for every grouping that has some: groups without rows at either end and between, one
// group with all rows, none with any; each said by numbers that are negative, descend, lie within a unit or pass the
// end. What the contract says of them is computed, and no byte beside it is written. The programs of both architectures
// have these tests.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "tests/support/grouped_product.h"
#include "tests/support/print.h"

namespace moxie::test {
namespace {

bool has_k_groups() { return device().info().arch == 100; }

constexpr Grouping kRouted[] = {Grouping::Offsets, Grouping::RowGroups, Grouping::Masked, Grouping::Pointers,
                                Grouping::KGroups};

// Kernels that read routing data in different ways.
std::vector<ProductSpec> kernels_of(Grouping grouping) {
  ProductSpec p;
  p.grouping = grouping;
  p.out = DataType::F32;
  p.bias = true;
  std::vector<ProductSpec> all;
  if (grouping != Grouping::KGroups) {
    ProductSpec packed = p;
    packed.b_format = OperandFormat::Mxfp4;
    packed.tile_m = 64, packed.tile_n = 128;
    all.push_back(packed);
    if (grouping != Grouping::Pointers) {
      packed.tile_m = 8, packed.expected_rows = 1;
      all.push_back(packed);
    }
  }
  if (has_k_groups()) {
    for (const bool swap : {false, true}) {
      for (const TileSource source : {TileSource::Static, TileSource::LaunchControl}) {
        p.swap_ab = swap, p.scheduling = source;
        p.tile_m = swap ? std::optional<int>(64) : std::nullopt;
        p.tile_n = swap ? 128 : 64;
        p.format = swap == (source == TileSource::Static) ? OperandFormat::Mxfp4 : OperandFormat::Bf16;
        p.cluster = 1;
        all.push_back(p);
      }
    }
    return all;
  }
  p.activation = Activation::SwigluOai;
  p.pre = DataType::Bf16;
  p.tile_n = 64;
  p.multicast = Multicast::None;
  p.schedule = WarpSchedule::Cooperative, p.tile_m = 128;
  all.push_back(p);
  p.schedule = WarpSchedule::PingPong, p.tile_m = 64;
  p.multicast = grouping == Grouping::Masked ? Multicast::Either : Multicast::A;
  all.push_back(p);
  if (grouping == Grouping::Offsets || grouping == Grouping::Masked) {
    p.tile_m = 8, p.multicast = Multicast::None, p.expected_rows = 1;
    all.push_back(p);
  }
  return all;
}

// Rows of each group; along K units of 32.
std::vector<std::vector<int64_t>> shapes() {
  std::vector<int64_t> many(40, 0);  // more than a warp looks at together
  many[3] = 2, many[33] = 3, many[38] = 1;
  return {{0, 0, 5, 2, 0, 3, 0}, {0, 0, 6, 0, 0}, {7, 0, 0}, {0, 0, 0, 4}, {0, 0, 0}, {1}, {2, 2, 2, 2}, many};
}

Job routed_job(const ProductSpec& p, const std::vector<int64_t>& shape, uint64_t seed) {
  Random random(seed);
  Job job;
  job.problem = p;
  job.n = 64, job.k = 64;
  job.e2m1 = has_k_groups();
  job.seed = random.next() % 100000;
  const bool spare = random.one_in(2);
  if (p.grouping == Grouping::KGroups) {
    for (const int64_t size : shape) job.group_k.push_back(32 * size);
    job.rows.assign(shape.size(), 40);
    job.problem.bias = false;
    job.spare_k = spare ? 64 : 0;
    if (job.spare_k + std::accumulate(shape.begin(), shape.end(), int64_t{0}) == 0) job.spare_k = 32;
    return job;
  }
  for (const int64_t size : shape) job.rows.push_back(size * 13);
  job.spare_rows = spare ? 3 : 0;
  if (std::accumulate(job.rows.begin(), job.rows.end(), job.spare_rows) == 0) job.spare_rows = 3;
  if (p.grouping == Grouping::Pointers) {
    for (size_t g = 0; g < shape.size(); ++g) {
      job.group_n.push_back(random.one_in(3) ? 32 * random.between(0, 1) : 64);
      job.group_k.push_back(random.one_in(3) ? 32 * random.between(0, 1) : 64);
    }
  }
  return job;
}

class Routing : public ::testing::TestWithParam<Grouping> {
 protected:
  void SetUp() override {
    if (GetParam() == Grouping::KGroups && !has_k_groups()) GTEST_SKIP() << "sm_90a has no k groups";
  }
};

TEST_P(Routing, WhatTheNumbersMeanIsComputed) {
  SCOPED_TRACE(fmt::format("MOXIE_TEST_SEED={} repeats these data", run_seed()));
  Random random(run_seed() + uint64_t(GetParam()));
  for (const ProductSpec& p : kernels_of(GetParam())) {
    for (const std::vector<int64_t>& shape : shapes()) {
      SCOPED_TRACE(
          fmt::format("tile {}x{}, {}", p.tile_m.value_or(0), p.tile_n.value_or(0), ::testing::PrintToString(shape)));
      Job job = routed_job(p, shape, random.next());
      job.wild_sizes = random.next() | 1;
      run_in_all_orders(job);
      if (HasFailure()) return;
    }
  }
}

// Numbers that mean nothing: rows of one tile that name several groups, sizes of groups by pointers in any order.
void check_numbers_without_meaning(Grouping grouping) {
  SCOPED_TRACE(fmt::format("MOXIE_TEST_SEED={} repeats these data", run_seed()));
  Random random(run_seed() + 1);
  constexpr int32_t kLow = std::numeric_limits<int32_t>::min(), kHigh = std::numeric_limits<int32_t>::max();
  for (const ProductSpec& p : kernels_of(grouping)) {
    for (int turn = 0; turn < 4; ++turn) {
      Job job = routed_job(p, {2, 2, 2, 2}, random.next());
      job.group_n.clear(), job.group_k.clear();
      std::vector<int32_t> sizes(grouping == Grouping::Pointers ? 12 : size_t(GroupedProduct(job).rows().total));
      const std::vector<int32_t> numbers = {kLow, -7, -1, 0, 1, 2, 3, 4, 16, 20, 26, 32, 36, 44, 48, 64, 1000, kHigh};
      const int32_t wrong = random.of(numbers);
      for (int32_t& size : sizes)
        size = random.one_in(3)                 ? wrong
               : grouping == Grouping::Pointers ? random.of(numbers)
                                                : int32_t(random.next() % 4);
      if (grouping == Grouping::RowGroups && turn == 0) sizes[0] = -1;
      SCOPED_TRACE(::testing::PrintToString(sizes));
      job.corrupt_sizes = sizes;
      run_in_all_orders(job);
      if (::testing::Test::HasFailure()) return;
    }
  }
}
TEST(RoutingWithoutMeaning, OfRowsStaysInside) { check_numbers_without_meaning(Grouping::RowGroups); }
TEST(RoutingWithoutMeaning, OfPointersStaysInside) { check_numbers_without_meaning(Grouping::Pointers); }

INSTANTIATE_TEST_SUITE_P(Groups, Routing, ::testing::ValuesIn(kRouted), [](const auto& info) {
  return std::string(names<Grouping>()[size_t(info.param)].identifier);
});

}  // namespace
}  // namespace moxie::test
