// SPDX-License-Identifier: Apache-2.0
// The cost model of layers over ranks: each term from figures that keep them apart. The program's output of it is in
// tests/cli, what C makes of it in tests/c.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <tuple>

#include "moxie/error.h"
#include "moxie/ranks.h"

namespace moxie::test {
namespace {

constexpr RankLinks kLinks{.token_rate = 1e11,
                           .row_rate = 8e10,
                           .sum_rate = 9e10,
                           .window_latency = 5e-6,
                           .combine_latency = 3e-6,
                           .all_to_all_rate = 2e11,
                           .all_to_all_latency = 20e-6,
                           .peer_latency = 1e-6,
                           .network_rate = 4e10,
                           .network_latency = 40e-6};

// 16 experts on 4 ranks, of which a token misses 12 11 / (16 15) of the time those of a given one.
RankedLayer small_layer() {
  RankedLayer layer;
  layer.up.n = 512, layer.up.k = 384;
  layer.up.activation = Activation::Swiglu, layer.up.gate = GateLayout::Split;
  layer.tokens = 3000, layer.experts = 16, layer.ranks = 4, layer.top_k = 2;
  return layer;
}
constexpr double kOthers = 3 * (1 - 12.0 * 11 / (16 * 15));

double product(GemmDescription d, int64_t groups, int64_t rows, const DeviceFigures& device) {
  d.groups = Offsets{groups, rows}, d.expected_rows = std::max<int64_t>(1, rows / groups);
  return plan_gemm(d, device).predicted_seconds;
}

// Pairs of the busiest of some ranks: 0.8 (ln ranks)^0.75 deviations above the mean.
double most_of(double mean, int ranks) {
  return mean + 0.8 * std::pow(std::log(ranks), 0.75) * std::sqrt(mean * (ranks - 1) / ranks);
}

TEST(RankCosts, OfAllToAllInADomain) {
  const RankedLayer layer = small_layer();
  const DeviceFigures device;
  const RankCosts costs = rank_costs(layer, device, kLinks);
  EXPECT_NEAR(costs.dispatch_bytes, 3000 * kOthers * (2 * 384 + 8), 1);
  EXPECT_NEAR(costs.combine_bytes, 3000 * 2 * 0.75 * 2 * 384, 1);
  EXPECT_NEAR(costs.dispatch, 22e-6 + costs.dispatch_bytes / 2e11, 1e-12);
  EXPECT_NEAR(costs.combine, 22e-6 + costs.combine_bytes / 2e11, 1e-12);
  const auto rows = std::llround(most_of(6000, 4));
  EXPECT_GT(rows, 6060);
  EXPECT_EQ(costs.up, product(layer.up, 4, rows, device));
  GemmDescription down;
  down.n = 384, down.k = 256;
  EXPECT_EQ(costs.down, product(down, 4, rows, device));
  EXPECT_NEAR(costs.around, 6e-6 + (3 * 6000 + 3000) * 2 * 384 / (0.9 * device.memory_rate), 1e-12);
  EXPECT_DOUBLE_EQ(costs.products(), costs.up + costs.down + costs.around);
  EXPECT_DOUBLE_EQ(costs.sum(), costs.dispatch + costs.products() + costs.combine);
}

TEST(RankCosts, OfWindows) {
  RankedLayer layer = small_layer();
  layer.windows = true;
  const RankCosts rows = rank_costs(layer, {}, kLinks);
  EXPECT_NEAR(rows.dispatch_bytes, 3000 * kOthers * 2 * 384, 1);
  EXPECT_NEAR(rows.combine_bytes, 3000 * 2 * 0.75 * 2 * 384, 1);
  EXPECT_NEAR(rows.dispatch, 5e-6 + rows.dispatch_bytes / 1e11, 1e-12);
  EXPECT_GT(rows.combine_bytes / 8e10, rows.down);
  EXPECT_NEAR(rows.combine, 3e-6 + rows.combine_bytes / 8e10 - rows.down, 1e-12);
  RankLinks fast = kLinks;  // the second product hides all of it
  fast.row_rate = 1e14;
  EXPECT_EQ(rank_costs(layer, {}, fast).combine, 3e-6);
  for (const RowFormat format : {RowFormat::Fp8, RowFormat::Mxfp8}) {
    layer.format = format;
    EXPECT_NEAR(rank_costs(layer, {}, kLinks).dispatch_bytes, 3000 * kOthers * (384 + 12), 1);
  }
  // Between two ranks a token of eight choices sends two bytes of sums for each byte that it sent, not four of rows.
  layer.ranks = 2, layer.top_k = 8, layer.format = RowFormat::Bf16;
  const RankCosts sums = rank_costs(layer, {}, kLinks);
  EXPECT_NEAR(sums.combine_bytes, 2 * sums.dispatch_bytes, 1);
  EXPECT_NEAR(sums.combine, 3e-6 + sums.combine_bytes / 9e10, 1e-12);
  layer.windows = false;
  EXPECT_NEAR(rank_costs(layer, {}, kLinks).combine_bytes, 3000 * 4 * 2 * 384, 1);
  // 1.25 times the sums are more than the rows.
  layer.windows = true, layer.top_k = 4;
  EXPECT_NEAR(rank_costs(layer, {}, kLinks).combine_bytes, 3000 * 2 * 2 * 384, 1);
  // A wide second product hides rows.
  layer.top_k = 8, layer.up.n = 4096;
  EXPECT_NEAR(rank_costs(layer, {}, kLinks).combine_bytes, 3000 * 4 * 2 * 384, 1);
}

// A domain has two ranks, so that one of the three others is near. NVLink and network work at the same time.
TEST(RankCosts, AcrossDomains) {
  RankedLayer layer = small_layer();
  layer.domain = 2;
  const RankCosts costs = rank_costs(layer, {}, kLinks);
  EXPECT_NEAR(costs.dispatch, 62e-6 + costs.dispatch_bytes * 2 / 3 / 4e10, 1e-12);
  EXPECT_NEAR(costs.combine, 62e-6 + costs.combine_bytes * 2 / 3 / 4e10, 1e-12);
  RankLinks fast = kLinks;
  fast.network_rate = 1e13;
  EXPECT_NEAR(rank_costs(layer, {}, fast).dispatch, 62e-6 + costs.dispatch_bytes / 3 / 2e11, 1e-12);
}

TEST(RankCosts, OneRankSendsNothing) {
  RankedLayer layer = small_layer();
  layer.ranks = 1;
  for (const bool windows : {false, true}) {
    layer.windows = windows;
    const RankCosts costs = rank_costs(layer, {}, kLinks);
    EXPECT_EQ(costs.dispatch + costs.combine + costs.dispatch_bytes + costs.combine_bytes, 0);
    EXPECT_FALSE(costs.halves_pay());
  }
}

// Experts that nobody chooses are not read: three rows, of the busiest rank, among four experts meet
// 4 (1 - (3 / 4)^3.3) = 2.4 of them, each of which has a row.
TEST(RankCosts, FewRowsMeetFewExperts) {
  RankedLayer layer = small_layer();
  layer.tokens = 1;
  const RankCosts costs = rank_costs(layer, {}, kLinks);
  EXPECT_NEAR(most_of(2, 4), 3.3, 0.05);
  layer.up.groups = Offsets{2, 3}, layer.up.expected_rows = 1, layer.up.known_rows = {1, 2};
  EXPECT_EQ(costs.up, plan_gemm(layer.up, {}).predicted_seconds);
  EXPECT_FALSE(costs.in_halves.has_value());
  EXPECT_FALSE(costs.halves_pay());
}

TEST(RankCosts, InHalvesThePartsOverlap) {
  RankedLayer layer = small_layer();
  // A device that is no larger than the copies has one multiprocessor left beside them.
  for (const auto& [rate, sm_count, left] :
       {std::tuple{1e9, 132, 116}, {1e11, 132, 116}, {1e14, 132, 116}, {1e11, 18, 2}, {1e11, 17, 1}, {1e11, 16, 1}}) {
    const DeviceFigures device{.sm_count = sm_count};
    RankLinks links = kLinks;
    links.all_to_all_rate = rate;
    RankedLayer half = layer;
    half.tokens = 1500, layer.tokens = 2999;
    const RankCosts each = rank_costs(half, device, links), whole = rank_costs(layer, device, links);
    const double products = each.products() * sm_count / left;
    ASSERT_TRUE(whole.in_halves.has_value());
    EXPECT_NEAR(*whole.in_halves,
                each.dispatch + std::max(each.dispatch, products) + std::max(products, each.combine) + each.combine,
                1e-12);
    EXPECT_EQ(whole.halves_pay(), *whole.in_halves < whole.sum());
  }
}

TEST(RankCosts, LinksOfArchitectures) {
  const RankLinks hopper = rank_links(90), blackwell = rank_links(100, 25e9);
  EXPECT_EQ(hopper.token_rate, 350e9);
  EXPECT_EQ(hopper.row_rate, 295e9);
  EXPECT_EQ(hopper.sum_rate, 310e9);
  EXPECT_EQ(hopper.all_to_all_rate, 278e9);
  EXPECT_EQ(hopper.network_rate, 45e9);
  EXPECT_EQ(blackwell.token_rate, 2 * hopper.token_rate);
  EXPECT_EQ(blackwell.row_rate, 2 * hopper.row_rate);
  EXPECT_EQ(blackwell.sum_rate, 2 * hopper.sum_rate);
  EXPECT_EQ(blackwell.all_to_all_rate, 2 * hopper.all_to_all_rate);
  EXPECT_EQ(blackwell.network_rate, 22.5e9);
  for (const RankLinks& links : {hopper, blackwell}) {
    EXPECT_EQ(links.window_latency, 11e-6);
    EXPECT_EQ(links.combine_latency, 6e-6);
    EXPECT_EQ(links.all_to_all_latency, 26e-6);
    EXPECT_EQ(links.peer_latency, 0.5e-6);
    EXPECT_EQ(links.network_latency, 10e-6);
  }
  // Without a domain of its own a layer has that of the architecture.
  EXPECT_EQ(nvlink_domain(90), 8);
  EXPECT_EQ(nvlink_domain(100), 72);
  RankedLayer layer = small_layer();
  layer.experts = layer.ranks = 16, layer.up.gate = GateLayout::Interleaved;
  EXPECT_GT(rank_costs(layer, {.arch = 90}, kLinks).dispatch, 60e-6);
  layer.domain = 16;
  const double near = rank_costs(layer, {.arch = 90}, kLinks).dispatch;
  layer.domain.reset();
  EXPECT_EQ(rank_costs(layer, {.arch = 100}, kLinks).dispatch, near);
}

TEST(RankCosts, WhatIsOutOfRangeIsRefused) {
  const auto says = [](const std::function<void(RankedLayer&, RankLinks&)>& change) -> std::string {
    RankedLayer layer = small_layer();
    RankLinks links = kLinks;
    change(layer, links);
    try {
      rank_costs(layer, {}, links);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  };
  EXPECT_EQ(says([](auto& l, auto&) { l.ranks = 1025, l.experts = 2000; }), "ranks is 1025, but must be 1 to 1024");
  EXPECT_EQ(says([](auto& l, auto&) { l.experts = 3; }), "experts is 3, but must be 4 to 4096");
  EXPECT_EQ(says([](auto& l, auto&) { l.experts = 4097; }), "experts is 4097, but must be 4 to 4096");
  EXPECT_EQ(says([](auto& l, auto&) { l.top_k = 0; }), "top_k is 0, but must be 1 to 16");
  EXPECT_EQ(says([](auto& l, auto&) { l.experts = 8, l.top_k = 9; }), "top_k is 9, but must be 1 to 8");
  EXPECT_EQ(says([](auto& l, auto&) { l.tokens = 1048577; }), "tokens is 1048577, but must be 1 to 1048576");
  EXPECT_EQ(says([](auto& l, auto&) { l.domain = 0; }), "domain is 0, but must be 1 to 4");
  EXPECT_EQ(says([](auto& l, auto&) { l.format = RowFormat(3); }), "format is 3, but only 0 to 2 have a meaning");
  EXPECT_EQ(says([](auto& l, auto&) { l.windows = true, l.domain = 2; }),
            "windows is true, but 4 ranks are more than the 2 of an NVLink domain");
  for (double RankLinks::*const rate : {&RankLinks::token_rate, &RankLinks::row_rate, &RankLinks::sum_rate,
                                        &RankLinks::all_to_all_rate, &RankLinks::network_rate})
    EXPECT_EQ(says([=](auto&, auto& links) { links.*rate = 0; }), "a rate of links is 0, but must be more than 0");
  EXPECT_EQ(says([](auto& l, auto&) { l.up.k = 12; }).find("nothing"), std::string::npos);
}

}  // namespace
}  // namespace moxie::test
