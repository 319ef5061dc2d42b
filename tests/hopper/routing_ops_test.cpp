// SPDX-License-Identifier: Apache-2.0
// The operations of moxie/routing.h against the host's answers: every place that they write, and those beside. The same
// tests for every architecture: the programs of both compile this file.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>

#include "moxie/arguments.h"
#include "moxie/names.h"
#include "tests/support/expert_routing.h"
#include "tests/support/random.h"
#include "tests/support/recorder.h"

namespace moxie::test {
namespace {

template <class Body>
void in_every_order(Body&& body) {
  for (const char* order : orders()) {
    SCOPED_TRACE(order);
    set_order(order);
    body();
    if (::testing::Test::HasFailure()) break;
  }
  set_order("eager");
}

// ---- Sort ----------------------------------------------------------------------------------------------------------

void check_sort(const SortJob& job, const std::string& what) {
  SCOPED_TRACE(fmt::format("{}: {} tokens, top {}, experts {} to {}, {}, MOXIE_TEST_SEED={}", what, job.tokens,
                           job.top_k, job.first_expert, job.first_expert + job.experts - 1,
                           job.id_type == IdType::Int32 ? "int32" : "int64", run_seed()));
  const Sorted wanted = reference_sort(job);
  const SortCall call(job);
  in_every_order([&] {
    call.poison();
    call.run();
    device().synchronize();
    const Sorted got = call.results();
    EXPECT_TRUE(got.ends == wanted.ends) << "ends differ";
    EXPECT_TRUE(got.order == wanted.order) << "order differs";
    EXPECT_TRUE(got.inverse == wanted.inverse) << "inverse differs";
  });
}

SortJob sort_job(int64_t tokens, int top_k, int64_t experts, IdType type = IdType::Int32, int64_t first = 0) {
  SortJob job;
  job.tokens = tokens, job.top_k = top_k, job.experts = experts;
  job.id_type = type, job.first_expert = first;
  job.ids.resize(size_t(tokens * top_k));
  return job;
}

// Ids of which some name no expert of ours: the neighbors of the range, negative ones, the ends of the type.
void draw_ids(SortJob& job, Random& random, uint64_t foreign_one_in) {
  const bool wide = job.id_type == IdType::Int64;
  const int64_t foreign[] = {-1,
                             job.first_expert - 1,
                             job.first_expert + job.experts,
                             std::numeric_limits<int32_t>::min(),
                             std::numeric_limits<int32_t>::max(),
                             wide ? std::numeric_limits<int64_t>::min() : -2,
                             wide ? std::numeric_limits<int64_t>::max() : -3,
                             wide ? (int64_t{1} << 32) + job.first_expert : -4,
                             wide ? -(int64_t{1} << 32) : -5};
  for (int64_t& id : job.ids) {
    id = job.first_expert + random.between(0, job.experts - 1);
    if (foreign_one_in > 0 && random.one_in(foreign_one_in)) id = random.of(foreign);
  }
}

class SortByExpert : public testing::TestWithParam<int> {};  // experts

TEST_P(SortByExpert, IsStable) {
  Random random(run_seed());
  const int64_t experts = GetParam();
  for (const int64_t tokens : {0, 1, 2, 3, 127, 1009}) {
    for (const int top_k : {1, 2, 4, 8, 16}) {
      const IdType type = random.one_in(2) ? IdType::Int32 : IdType::Int64;
      SortJob job = sort_job(tokens, top_k, experts, type, random.one_in(2) ? 0 : random.between(1, 5000));
      draw_ids(job, random, random.one_in(2) ? 0 : 5);
      check_sort(job, "drawn");
      if (HasFailure()) return;
    }
  }
}
TEST_P(SortByExpert, AllToOne) {
  const int64_t experts = GetParam();
  for (const int64_t expert : {int64_t{0}, experts / 2, experts - 1}) {
    SortJob job = sort_job(701, 13, experts);
    for (int64_t& id : job.ids) id = expert;
    check_sort(job, "all to one");
  }
}
TEST_P(SortByExpert, AllForeign) {
  for (const IdType type : {IdType::Int32, IdType::Int64}) {
    SortJob job = sort_job(1031, 9, GetParam(), type, 77);
    Random random(run_seed());
    draw_ids(job, random, 1);
    check_sort(job, "all foreign");
  }
}
INSTANTIATE_TEST_SUITE_P(Experts, SortByExpert, testing::Values(1, 2, 3, 8, 32, 60, 128, 256, 384, 1024));

TEST(SortByExpertOf, EveryTopK) {
  Random random(run_seed());
  for (int top_k = 1; top_k <= kMaxTopK; ++top_k) {
    SortJob job = sort_job(67, top_k, 40);
    draw_ids(job, random, 9);
    check_sort(job, "drawn");
  }
}

// At the boundaries of rows, warps and slices, and so many slices that a warp scans several of them.
TEST(SortByExpertOf, EveryTail) {
  Random random(run_seed());
  for (const int64_t tokens : {31, 32, 33, 255, 256, 257, 8191, 8192, 8193, 16384, 24577}) {
    SortJob job = sort_job(tokens, 1, 33);
    draw_ids(job, random, 7);
    check_sort(job, "drawn");
    if (HasFailure()) return;
  }
  for (const int64_t experts : {7, 100}) {
    SortJob job = sort_job(67001, 4, experts);
    draw_ids(job, random, 7);
    check_sort(job, "many slices");
  }
  if (!std::getenv("MOXIE_TEST_ALL")) return;
  SortJob job = sort_job(265001, 4, 100);
  draw_ids(job, random, 7);
  check_sort(job, "two rounds of many rows");
}

// Padded batches: the device says how many tokens there are.
TEST(SortByExpertOf, TokensOnTheDevice) {
  Random random(run_seed());
  for (const int64_t tokens : {5, 3001}) {
    for (const int64_t count :
         {int64_t{0}, int64_t{1}, tokens - 2, tokens, tokens + 1, int64_t{-1},
          int64_t{std::numeric_limits<int32_t>::min()}, int64_t{std::numeric_limits<int32_t>::max()}}) {
      SortJob job = sort_job(tokens, 6, 20);
      draw_ids(job, random, 10);
      job.token_count = int32_t(count);
      check_sort(job, fmt::format("{} are there", count));
    }
  }
}

TEST(SortByExpertOf, IsTheSameForAnyNumberOfThreads) {
  if (!device().info().simulated) GTEST_SKIP() << "a GPU has no host threads";
  Random random(run_seed());
  SortJob job = sort_job(9001, 5, 50);
  draw_ids(job, random, 10);
  const Sorted wanted = reference_sort(job);
  const SortCall call(job);
  in_every_order([&] {
    for (const char* threads : {"1", "2", "8"}) {
      setenv("MOXIE_SIM_THREADS", threads, 1);
      call.poison();
      call.run({.programmatic = false});
      device().synchronize();
      EXPECT_TRUE(call.results() == wanted) << threads << " threads";
    }
  });
  unsetenv("MOXIE_SIM_THREADS");
}

// One launch where a block has all pairs; what is captured stays right when it is replayed, which the other tests show
// of what is launched.
TEST(SortByExpertOf, LaunchesOneKernelOrTwo) {
  Recorder recorder;
  for (const auto& [tokens, launches] : {std::pair{0, 1}, {1, 1}, {512, 1}, {513, 2}, {70000, 2}}) {
    SortJob job = sort_job(tokens, 4, 8);
    const SortCall call(job);
    EXPECT_EQ(recorder.launches([&](Stream stream) { call.run({.stream = stream}); }), size_t(launches)) << tokens;
  }
  EXPECT_EQ(sort_workspace_bytes(512, 4, 8), 0u);
  EXPECT_EQ(sort_workspace_bytes(513, 4, 8), 4u * 8 * (3 + 1));
  EXPECT_EQ(sort_workspace_bytes(8193, 1, 8), 4u * 8 * (9 + 2));
  EXPECT_EQ(sort_workspace_bytes(kMaxRoutedTokens, 16, 1024), 4u * 1024 * (128 + 16));
}

// ---- Permute -------------------------------------------------------------------------------------------------------

constexpr auto kBf16 = DataType::Bf16, kF32 = DataType::F32;

float rounded(float x, DataType type) {
  return type == kBf16 ? reference::bf16_to_float(reference::float_to_bf16(x)) : x;
}

// From -2 to 2.
float drawn(Random& random, DataType type) { return rounded(float(random.between(-8192, 8192)) / 4096, type); }

// Places that name no row of `rows`.
std::vector<int32_t> no_rows(int64_t rows) {
  return {-1,
          -2,
          int32_t(rows),
          int32_t(rows + 1),
          std::numeric_limits<int32_t>::min(),
          std::numeric_limits<int32_t>::max()};
}

// Pairs go to rows of their own, in any order, but for those that are skipped. Some rows are nobody's.
PermuteJob permute_job(Random& random, int64_t tokens, int top_k, int64_t width) {
  PermuteJob job;
  job.tokens = tokens, job.top_k = top_k, job.width = width;
  job.type = random.one_in(2) ? kBf16 : kF32;
  job.padding = 8 * random.between(0, 2);
  std::vector<int32_t> rows(size_t(tokens * top_k + random.between(0, 5)));
  std::iota(rows.begin(), rows.end(), 0);
  for (size_t i = rows.size(); i > 1; --i) std::swap(rows[i - 1], rows[size_t(random.between(0, int64_t(i) - 1))]);
  // Now and then fewer rows than pairs, so that some of these lie behind the last row.
  job.row_count = int64_t(rows.size()) - (random.one_in(3) ? random.between(0, int64_t(rows.size())) : 0);
  for (int64_t i = 0; i < tokens * width; ++i) job.x.push_back(drawn(random, job.type));
  const std::vector<int32_t> skipped = no_rows(job.row_count);
  for (int64_t i = 0; i < tokens * top_k; ++i)
    job.inverse.push_back(random.one_in(6) ? skipped[size_t(random.between(0, 5))] : rows[size_t(i)]);
  return job;
}

void check_permute(const PermuteJob& job) {
  SCOPED_TRACE(fmt::format("{} tokens, top {}, {} rows of {}, {}, padding {}, MOXIE_TEST_SEED={}", job.tokens,
                           job.top_k, job.row_count, job.width, to_string(job.type), job.padding, run_seed()));
  const std::vector<uint8_t> wanted = reference_permute(job);
  const PermuteCall call(job);
  in_every_order([&] {
    call.poison();
    call.run();
    device().synchronize();
    EXPECT_EQ(first_difference(call.results(), wanted, job.type), "");
  });
}

TEST(Permute, CopiesEveryBit) {
  Random random(run_seed());
  const int64_t widths[] = {0, 8, 16, 264, 1016, 1024, 1032, 2880};
  for (int top_k = 1; top_k <= kMaxTopK; ++top_k) {
    for (const int64_t tokens : {0, 1, 2, 13, 61}) {
      check_permute(permute_job(random, tokens, top_k, random.of(widths)));
      if (HasFailure()) return;
    }
  }
}

TEST(Permute, TokensOnTheDevice) {
  Random random(run_seed());
  for (const int64_t count :
       {int64_t{0}, int64_t{1}, int64_t{9}, int64_t{10}, int64_t{11}, int64_t{-1},
        int64_t{std::numeric_limits<int32_t>::min()}, int64_t{std::numeric_limits<int32_t>::max()}}) {
    PermuteJob job = permute_job(random, 10, 3, 136);
    job.token_count = int32_t(count);
    check_permute(job);
  }
}

// ---- Combine -------------------------------------------------------------------------------------------------------

CombineJob combine_job(Random& random, int64_t tokens, int top_k, int64_t width, int64_t rows) {
  CombineJob job;
  job.tokens = tokens, job.top_k = top_k, job.width = width, job.row_count = rows;
  job.rows_type = random.one_in(2) ? kBf16 : kF32, job.out_type = random.one_in(2) ? kBf16 : kF32;
  job.padding = 8 * random.between(0, 2);
  job.residual = random.one_in(2), job.in_place = job.residual && random.one_in(2);
  for (int64_t i = 0; i < rows * width; ++i) job.rows.push_back(drawn(random, job.rows_type));
  for (int64_t i = 0; i < tokens * width; ++i) job.residuals.push_back(drawn(random, job.out_type));
  const std::vector<int32_t> skipped = no_rows(rows);
  const bool weighted = !random.one_in(3);
  for (int64_t i = 0; i < tokens * top_k; ++i) {
    const bool skip = rows == 0 || random.one_in(6);
    job.inverse.push_back(skip ? skipped[size_t(random.between(0, 5))] : int32_t(random.between(0, rows - 1)));
    // A weight that counts for nothing, since its pair is skipped, must not count.
    if (weighted) job.weights.push_back(skip ? std::numeric_limits<float>::quiet_NaN() : drawn(random, kF32));
  }
  return job;
}

void check_combine(const CombineJob& job) {
  SCOPED_TRACE(fmt::format("{} tokens, top {}, {} rows of {}, {} to {}, {}{}, padding {}, MOXIE_TEST_SEED={}",
                           job.tokens, job.top_k, job.row_count, job.width, to_string(job.rows_type),
                           to_string(job.out_type), job.weights.empty() ? "" : "weighted, ",
                           job.in_place   ? "in place"
                           : job.residual ? "residual"
                                          : "no residual",
                           job.padding, run_seed()));
  const std::vector<uint8_t> wanted = reference_combine(job);
  const CombineCall call(job);
  in_every_order([&] {
    call.poison();
    call.run();
    device().synchronize();
    EXPECT_EQ(first_difference(call.results(), wanted, job.out_type), "");
  });
}

TEST(Combine, AgreesToTheLastBit) {
  Random random(run_seed());
  const int64_t widths[] = {0, 8, 16, 264, 1016, 1024, 1032, 2880};
  for (int top_k = 1; top_k <= kMaxTopK; ++top_k) {
    for (const int64_t tokens : {0, 1, 2, 13, 61}) {
      check_combine(combine_job(random, tokens, top_k, random.of(widths), random.between(0, 40)));
      if (HasFailure()) return;
    }
  }
  for (const DataType rows : {kBf16, kF32}) {
    for (const DataType out : {kBf16, kF32}) {
      for (const bool residual : {false, true}) {
        for (const bool weighted : {false, true}) {
          CombineJob job = combine_job(random, 7, 5, 72, 20);
          job.rows_type = rows, job.out_type = out, job.residual = residual;
          job.in_place = job.in_place && residual;
          for (float& x : job.rows) x = rounded(x, rows);
          for (float& x : job.residuals) x = rounded(x, out);
          job.weights.assign(weighted ? job.inverse.size() : 0, 0.75f);
          check_combine(job);
        }
      }
    }
  }
}

// With this many tokens a block has several, the last one often fewer.
TEST(Combine, SeveralTokensInABlock) {
  Random random(run_seed());
  const int64_t fill = device().info().sm_count * kernel::kCombineBlocks;
  for (const int top_k : {1, 2, 8, 9, 11, kMaxTopK}) {
    const int64_t tokens = fill * random.between(2, 4) + random.between(1, 3);
    CombineJob job = combine_job(random, tokens, top_k, 8 * random.between(1, 3), random.between(0, 40));
    // Of some tokens all pairs are skipped.
    for (size_t pair = 0; pair < job.inverse.size(); ++pair)
      if (pair / size_t(top_k) % 5 < 2) job.inverse[pair] = -1;
    if (random.one_in(2)) job.token_count = int32_t(tokens - random.between(1, 9));
    check_combine(job);
    if (HasFailure()) return;
  }
}

// A row or a weight that is not a number, or infinite, reaches the tokens that have it and no other.
TEST(Combine, NanReachesItsTokenAlone) {
  Random random(run_seed());
  CombineJob job = combine_job(random, 40, 4, 80, 60);
  job.weights.assign(job.inverse.size(), 0.5f);
  for (size_t pair = 0; pair < job.inverse.size(); ++pair) job.inverse[pair] = int32_t(pair % 59);
  job.weights[13] = std::numeric_limits<float>::quiet_NaN();
  job.weights[66] = -std::numeric_limits<float>::infinity();
  job.rows[30 * 80 + 7] = std::numeric_limits<float>::quiet_NaN();
  job.rows[45 * 80 + 70] = std::numeric_limits<float>::infinity();
  for (int64_t h = 0; h < 80; ++h) job.rows[size_t(59 * 80 + h)] = std::numeric_limits<float>::quiet_NaN();  // of none
  check_combine(job);
}

TEST(Combine, TokensOnTheDevice) {
  Random random(run_seed());
  for (const int64_t count :
       {int64_t{0}, int64_t{1}, int64_t{9}, int64_t{10}, int64_t{11}, int64_t{-1},
        int64_t{std::numeric_limits<int32_t>::min()}, int64_t{std::numeric_limits<int32_t>::max()}}) {
    CombineJob job = combine_job(random, 10, 3, 136, 20);
    job.token_count = int32_t(count);
    check_combine(job);
  }
}

// ---- Route ---------------------------------------------------------------------------------------------------------

// Eighths, so that equal logits are frequent and scores of unequal ones far apart.
float drawn_logit(Random& random) { return float(random.between(-32, 32)) / 8; }

RouteJob route_job(Random& random, int64_t tokens, int64_t experts, int top_k) {
  RouteJob job;
  job.tokens = tokens, job.experts = experts, job.top_k = int(std::min<int64_t>(top_k, experts));
  job.logits_type = random.one_in(2) ? kF32 : kBf16;
  job.padding = random.between(0, 3);
  job.renormalize = random.one_in(2);
  if (random.one_in(2)) job.scaling_factor = 2.5f;
  return job;
}

// Draws each token's logits until float32 cannot decide otherwise than double.
void draw_logits(RouteJob& job, Random& random) {
  std::vector<float> logits(static_cast<size_t>(job.experts));
  for (int64_t t = 0; t < job.tokens; ++t) {
    do {
      for (float& x : logits) x = drawn_logit(random);
    } while (!reference_route(job, logits.data()).clear);
    job.logits.insert(job.logits.end(), logits.begin(), logits.end());
  }
}

bool alike(float got, double wanted) {
  if (std::isnan(wanted) || std::isnan(got)) return std::isnan(wanted) && std::isnan(got);
  return std::fabs(double(got) - wanted) <= 1e-5 * std::fabs(wanted) + 1e-12;
}

void check_route(const RouteJob& job) {
  SCOPED_TRACE(fmt::format("{} tokens, {} experts, top {}, {}, {}{}{}{} of {} groups, padding {}, MOXIE_TEST_SEED={}",
                           job.tokens, job.experts, job.top_k, to_string(job.logits_type), to_string(job.score),
                           job.renormalize ? ", renormalized, " : ", ", job.correction_bias.empty() ? "" : "bias, ",
                           job.chosen_groups, job.groups, job.padding, run_seed()));
  const RouteCall call(job);
  const int64_t real = job.token_count ? std::clamp<int64_t>(*job.token_count, 0, job.tokens) : job.tokens;
  std::vector<RoutedToken> wanted;
  for (int64_t t = 0; t < real; ++t) wanted.push_back(reference_route(job, job.logits.data() + t * job.experts));
  std::vector<uint32_t> bits_before;
  in_every_order([&] {
    call.poison();
    call.run();
    device().synchronize();
    const Routed got = call.results();
    const size_t pairs = size_t(job.tokens * job.top_k);
    ASSERT_EQ(got.ids.size(), pairs + 2 * kGuard);
    std::vector<uint32_t> bits;
    for (size_t i = 0; i < got.ids.size(); ++i) {
      bits.push_back(std::bit_cast<uint32_t>(got.weights[i]));
      const size_t pair = i - kGuard, token = pair / size_t(job.top_k), j = pair % size_t(job.top_k);
      if (i < kGuard || token >= size_t(real)) {
        ASSERT_EQ(got.ids[i], kUntouchedInt) << "place " << i;
        ASSERT_EQ(bits.back(), uint32_t(kUntouchedInt)) << "place " << i;
        continue;
      }
      ASSERT_EQ(got.ids[i], wanted[token].ids[j]) << "token " << token << ", choice " << j;
      ASSERT_TRUE(alike(got.weights[i], wanted[token].weights[j]))
          << "token " << token << ", choice " << j << ": " << got.weights[i] << " instead of "
          << wanted[token].weights[j];
    }
    EXPECT_TRUE(bits_before.empty() || bits == bits_before) << "other bits than in another order";
    bits_before = bits;
  });
}

class Route : public testing::TestWithParam<int> {};  // experts

TEST_P(Route, SoftmaxOfTheChosenAndOfAll) {
  Random random(run_seed());
  for (const int64_t tokens : {0, 1, 2, 5, 131}) {
    for (const int top_k : {1, 2, 4, 8, 16}) {
      RouteJob job = route_job(random, tokens, GetParam(), top_k);
      draw_logits(job, random);
      check_route(job);
      if (HasFailure()) return;
    }
  }
}
TEST_P(Route, Sigmoid) {
  Random random(run_seed());
  for (const int64_t tokens : {1, 2, 101}) {
    for (const int top_k : {1, 3, 8, 16}) {
      RouteJob job = route_job(random, tokens, GetParam(), top_k);
      job.score = RouterScore::Sigmoid;
      if (random.one_in(2)) {
        for (int64_t e = 0; e < job.experts; ++e) job.correction_bias.push_back(float(random.between(-64, 64)) / 64);
      }
      draw_logits(job, random);
      check_route(job);
      if (HasFailure()) return;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Experts, Route, testing::Values(1, 2, 3, 8, 31, 32, 33, 60, 128, 256, 384, 512, 1024));

TEST(RouteOf, LimitedGroups) {
  Random random(run_seed());
  const struct {
    int experts, groups, chosen, top_k;
  } kCases[] = {{256, 8, 4, 8}, {16, 8, 4, 8}, {16, 8, 8, 4},     {60, 5, 1, 12}, {160, 10, 3, 6}, {64, 32, 31, 16},
                {64, 32, 1, 2}, {2, 1, 1, 1},  {1024, 32, 8, 16}, {384, 2, 1, 8}, {1000, 4, 3, 16}};
  for (const auto& [experts, groups, chosen, top_k] : kCases) {
    for (const bool bias : {false, true}) {
      RouteJob job = route_job(random, 37, experts, top_k);
      job.score = RouterScore::Sigmoid;
      job.groups = groups, job.chosen_groups = chosen;
      for (int e = 0; bias && e < experts; ++e) job.correction_bias.push_back(float(random.between(-64, 64)) / 64);
      draw_logits(job, random);
      check_route(job);
      if (HasFailure()) return;
    }
  }
}

// Of equal logits the lower ids come first, those of both zeros are equal, and the ends of float32 are in order.
TEST(RouteOf, TiesAndEnds) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const RouterScore score : {RouterScore::Softmax, RouterScore::Sigmoid}) {
    RouteJob job;
    job.tokens = 3, job.experts = 70, job.top_k = 12;
    job.score = score;
    job.logits.assign(210, 1.5f);
    for (size_t e = 0; e < 70; ++e) job.logits[70 + e] = e % 2 ? 0.0f : -0.0f;
    job.logits[140 + 3] = -1e30f, job.logits[140 + 69] = 8, job.logits[140 + 68] = 8, job.logits[140 + 1] = -kInfinity;
    check_route(job);
  }
  RouteJob job;
  job.tokens = 2, job.experts = 6, job.top_k = 6;
  job.logits = {-kInfinity, -3e38f, -1e-40f, 0, 1e-40f, 3e38f, kInfinity, 1, -kInfinity, 2, kInfinity, 3};
  check_route(job);
  job.renormalize = false;
  check_route(job);
  job.score = RouterScore::Sigmoid;
  job.logits = {-kInfinity, -80, -4, 0, 4, kInfinity, -kInfinity, -kInfinity, -kInfinity, -1, 0, 1};
  check_route(job);
  job.renormalize = true;
  job.logits.assign(12, -kInfinity);  // a sum of nothing
  check_route(job);
}

// A NaN is chosen first, whatever its sign; ids stay distinct and within range however many there are.
TEST(RouteOf, NanCountsAsTheHighest) {
  Random random(run_seed());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const RouterScore score : {RouterScore::Softmax, RouterScore::Sigmoid}) {
    for (const bool renormalize : {false, true}) {
      for (const int64_t each : {1, 2, 9, 100}) {
        RouteJob job = route_job(random, 20, 96, 8);
        job.score = score, job.renormalize = renormalize;
        draw_logits(job, random);
        for (float& x : job.logits) {
          if (random.one_in(uint64_t(each))) x = random.one_in(2) ? nan : -nan;
        }
        check_route(job);
        if (HasFailure()) return;
      }
    }
  }
  // Of groups the one that has it.
  RouteJob job = route_job(random, 20, 96, 8);
  job.score = RouterScore::Sigmoid, job.groups = 8, job.chosen_groups = 2;
  draw_logits(job, random);
  for (size_t t = 0; t < 20; ++t) job.logits[t * 96 + t * 4] = nan;
  check_route(job);
}

TEST(RouteOf, TokensOnTheDevice) {
  Random random(run_seed());
  for (const int64_t count :
       {int64_t{0}, int64_t{1}, int64_t{9}, int64_t{10}, int64_t{11}, int64_t{-1},
        int64_t{std::numeric_limits<int32_t>::min()}, int64_t{std::numeric_limits<int32_t>::max()}}) {
    RouteJob job = route_job(random, 10, 40, 4);
    draw_logits(job, random);
    job.token_count = int32_t(count);
    check_route(job);
  }
}

// What one writes the next reads, launched programmatically: the router, the sort, and the sum of rows that say where
// they come from.
TEST(RoutingOps, AChainOverlapsAndIsRight) {
  constexpr int64_t kTokens = 3001, kWidth = 16;
  constexpr int kTopK = 6;
  Random random(run_seed());
  RouteJob routing = route_job(random, kTokens, 60, kTopK);
  routing.padding = 0;
  draw_logits(routing, random);
  const Buffer logits(routing.logits), ids(kTokens * kTopK * 4), weights(kTokens * kTopK * 4), ends(60 * 4);
  const Buffer order(kTokens * kTopK * 4), inverse(kTokens * kTopK * 4), out(kTokens * kWidth * 4);
  const Buffer workspace(sort_workspace_bytes(kTokens, kTopK, 60));
  const std::vector<float> ones(kTokens * kTopK * kWidth, 1.0f);
  const Buffer rows(ones);
  in_every_order([&] {
    for (const Buffer* buffer : {&ids, &weights, &ends, &order, &inverse, &out, &workspace})
      buffer->fill(kUntouchedByte);
    route(device(), {.tokens = kTokens,
                     .experts = 60,
                     .top_k = kTopK,
                     .logits = logits.get(),
                     .ids = ids.get<int32_t>(),
                     .weights = weights.get<float>()});
    sort_by_expert(device(),
                   {.tokens = kTokens,
                    .top_k = kTopK,
                    .experts = 60,
                    .ids = ids.get(),
                    .ends = ends.get<int32_t>(),
                    .order = order.get<int32_t>(),
                    .inverse = inverse.get<int32_t>()},
                   {workspace.get(), workspace.size()});
    combine(device(), {.tokens = kTokens,
                       .top_k = kTopK,
                       .width = kWidth,
                       .row_count = kTokens * kTopK,
                       .rows_type = kF32,
                       .rows = rows.get(),
                       .inverse = inverse.get<int32_t>(),
                       .weights = weights.get<float>(),
                       .out_type = kF32,
                       .out = out.get()});
    device().synchronize();
    const std::vector<uint8_t> bytes = out.download();
    for (size_t i = 0; i < bytes.size() / 4; ++i) {  // weights of a token sum up to 1
      float x;
      std::memcpy(&x, &bytes[4 * i], 4);
      ASSERT_NEAR(x, 1, 1e-5) << "element " << i;
    }
  });
}

// ---- Wrong calls ---------------------------------------------------------------------------------------------------

// The sentence of what `function` throws. Nothing is launched then, and no byte changes.
template <class Function>
std::string refusal(Function&& function) {
  const auto before = all_bytes();
  std::string sentence = "nothing";
  try {
    function();
  } catch (const Error& error) {
    sentence = error.what();
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
  }
  EXPECT_TRUE(all_bytes() == before) << sentence;
  return sentence;
}

TEST(RoutingOps, WrongSortsAreNamed) {
  const Buffer ids(std::vector<int32_t>(4 * 3000)), count(8), ends(4 * 8), inverse(4 * 12000);
  const Buffer order(4 * 2 * 12000);  // with room behind it, so that what overlaps it overlaps nothing else
  const Buffer memory(sort_workspace_bytes(3000, 4, 8) + 128);
  const auto sorted = [&](auto change) {
    ExpertSort x;
    x.tokens = 3000, x.top_k = 4, x.experts = 8;
    x.ids = ids.get(), x.ends = ends.get<int32_t>(), x.order = order.get<int32_t>();
    x.inverse = inverse.get<int32_t>();
    WorkspaceView workspace{memory.get(), memory.size()};
    change(x, workspace);
    return refusal([&] { sort_by_expert(device(), x, workspace); });
  };
  const auto plus = [](auto* pointer, size_t bytes) {
    return reinterpret_cast<decltype(pointer)>(reinterpret_cast<uintptr_t>(pointer) + bytes);
  };
  EXPECT_EQ(sorted([](auto& x, auto&) { x.tokens = -1; }), "tokens is -1, but must be 0 to 1048576");
  EXPECT_EQ(sorted([](auto& x, auto&) { x.tokens = 1048577; }), "tokens is 1048577, but must be 0 to 1048576");
  EXPECT_EQ(sorted([](auto& x, auto&) { x.top_k = 0; }), "top_k is 0, but must be 1 to 16");
  EXPECT_EQ(sorted([](auto& x, auto&) { x.top_k = 17; }), "top_k is 17, but must be 1 to 16");
  EXPECT_EQ(sorted([](auto& x, auto&) { x.experts = 0; }), "experts is 0, but must be 1 to 1024");
  EXPECT_EQ(sorted([](auto& x, auto&) { x.experts = 1025; }), "experts is 1025, but must be 1 to 1024");
  EXPECT_EQ(sorted([](auto& x, auto&) { x.first_expert = -1; }), "first_expert is -1, but must be 0 to 2147483639");
  EXPECT_EQ(sorted([](auto& x, auto&) { x.first_expert = 2147483640; }),
            "first_expert is 2147483640, but must be 0 to 2147483639");
  EXPECT_EQ(sorted([](auto& x, auto&) { x.id_type = IdType(2); }), "id_type is 2, but only 0 to 1 have a meaning");
  EXPECT_EQ(sorted([](auto& x, auto&) { x.ids = nullptr; }), "ids is null, but must point to device memory");
  EXPECT_EQ(sorted([](auto& x, auto&) { x.ends = nullptr; }), "ends is null, but must point to device memory");
  EXPECT_EQ(sorted([](auto& x, auto&) { x.order = nullptr; }), "order is null, but must point to device memory");
  EXPECT_EQ(sorted([](auto& x, auto&) { x.inverse = nullptr; }), "inverse is null, but must point to device memory");
  EXPECT_EQ(sorted([&](auto& x, auto&) { x.ids = plus(x.ids, 2); }),
            fmt::format("ids is {}, but must be aligned to 4 bytes", fmt::ptr(plus(ids.get<char>(), 2))));
  EXPECT_EQ(sorted([&](auto& x, auto&) { x.ids = plus(x.ids, 4), x.id_type = IdType::Int64; }),
            fmt::format("ids is {}, but must be aligned to 8 bytes", fmt::ptr(plus(ids.get<char>(), 4))));
  EXPECT_EQ(sorted([&](auto& x, auto&) { x.token_count = plus(count.get<int32_t>(), 1); }),
            fmt::format("token_count is {}, but must be aligned to 4 bytes", fmt::ptr(plus(count.get<char>(), 1))));
  EXPECT_EQ(sorted([](auto& x, auto&) { x.inverse = x.order + 11999; }), "order overlaps inverse in memory");
  EXPECT_EQ(sorted([&](auto& x, auto&) { x.order = ids.get<int32_t>(); }), "order overlaps ids in memory");
  EXPECT_EQ(sorted([](auto& x, auto&) { x.token_count = x.ends + 7; }), "ends overlaps token_count in memory");
  EXPECT_EQ(sorted([](auto&, auto& workspace) { workspace.bytes = 447; }),
            "workspace has 447 bytes, but must have at least 448");
  EXPECT_EQ(sorted([](auto&, auto& workspace) { workspace.data = nullptr; }),
            "workspace is null, but must point to device memory");
  EXPECT_EQ(sorted([&](auto&, auto& workspace) { workspace.data = plus(workspace.data, 64); }),
            fmt::format("workspace is {}, but must be aligned to 128 bytes", fmt::ptr(plus(memory.get<char>(), 64))));
  EXPECT_EQ(sorted([](auto& x, auto& workspace) { workspace.data = x.inverse; }),
            "inverse overlaps workspace in memory");
  // Without a token there is nothing but ends.
  EXPECT_EQ(sorted([](auto& x, auto& workspace) {
              x.tokens = 0, x.ids = nullptr, x.order = x.inverse = nullptr, workspace = {};
              x.ends = nullptr;
            }),
            "ends is null, but must point to device memory");
}

TEST(RoutingOps, WrongPermutationsAreNamed) {
  const Buffer from(10 * 64 * 2), inverse(10 * 4 * 4), out(40 * 64 * 2);
  const auto permuted = [&](auto change) {
    ExpertPermutation x;
    x.tokens = 10, x.top_k = 4, x.width = 64, x.row_count = 40;
    x.x = from.get(), x.inverse = inverse.get<int32_t>(), x.out = out.get();
    change(x);
    return refusal([&] { permute(device(), x); });
  };
  EXPECT_EQ(permuted([](auto& x) { x.tokens = -5; }), "tokens is -5, but must be 0 to 1048576");
  EXPECT_EQ(permuted([](auto& x) { x.top_k = 0; }), "top_k is 0, but must be 1 to 16");
  EXPECT_EQ(permuted([](auto& x) { x.width = 60; }), "width is 60, but must be a multiple of 8 from 0 to 1048576");
  EXPECT_EQ(permuted([](auto& x) { x.row_count = int64_t{1} << 31; }),
            "row_count is 2147483648, but must be 0 to 2147483647");
  EXPECT_EQ(permuted([](auto& x) { x.type = DataType::Mxfp8; }), "type is mxfp8, but must be bf16 or f32");
  EXPECT_EQ(permuted([](auto& x) { x.ld_x = 56; }), "ld_x is 56, but must be at least width, 64");
  EXPECT_EQ(permuted([](auto& x) { x.ld_out = 68; }),
            "ld_out is 68, but must be a multiple of 8 elements (16 bytes) up to 2147483648");
  EXPECT_EQ(permuted([](auto& x) { x.x = nullptr; }), "x is null, but must point to device memory");
  EXPECT_EQ(permuted([](auto& x) { x.inverse = nullptr; }), "inverse is null, but must point to device memory");
  EXPECT_EQ(permuted([](auto& x) { x.out = nullptr; }), "out is null, but must point to device memory");
  EXPECT_EQ(permuted([](auto& x) { x.out = const_cast<void*>(x.x); }), "out overlaps x in memory");
  EXPECT_EQ(permuted([](auto& x) { x.token_count = static_cast<const int32_t*>(x.out) + 3; }),
            "out overlaps token_count in memory");
  EXPECT_EQ(permuted([](auto& x) { x.tokens = 0, x.x = x.out = nullptr, x.inverse = nullptr; }), "nothing");
  EXPECT_EQ(permuted([](auto& x) { x.width = 0, x.inverse = nullptr; }), "nothing");
  EXPECT_EQ(permuted([](auto& x) { x.width = 0, x.ld_x = x.ld_out = 64, x.x = x.out = nullptr; }), "nothing");
}

TEST(RoutingOps, WrongCombinationsAreNamed) {
  const Buffer rows(40 * 64 * 2), inverse(10 * 4 * 4), weights(10 * 4 * 4), out(10 * 64 * 2), residual(10 * 64 * 2);
  const auto combined = [&](auto change) {
    ExpertCombination x;
    x.tokens = 10, x.top_k = 4, x.width = 64, x.row_count = 40;
    x.rows = rows.get(), x.inverse = inverse.get<int32_t>(), x.weights = weights.get<float>();
    x.residual = residual.get(), x.out = out.get();
    change(x);
    return refusal([&] { combine(device(), x); });
  };
  EXPECT_EQ(combined([](auto& x) { x.tokens = -5; }), "tokens is -5, but must be 0 to 1048576");
  EXPECT_EQ(combined([](auto& x) { x.top_k = 20; }), "top_k is 20, but must be 1 to 16");
  EXPECT_EQ(combined([](auto& x) { x.width = 60; }), "width is 60, but must be a multiple of 8 from 0 to 1048576");
  EXPECT_EQ(combined([](auto& x) { x.width = -8; }), "width is -8, but must be a multiple of 8 from 0 to 1048576");
  EXPECT_EQ(combined([](auto& x) { x.row_count = -1; }), "row_count is -1, but must be 0 to 2147483647");
  EXPECT_EQ(combined([](auto& x) { x.rows_type = DataType::Mxfp4; }), "rows_type is mxfp4, but must be bf16 or f32");
  EXPECT_EQ(combined([](auto& x) { x.out_type = DataType(9); }), "out_type is ?, but must be bf16 or f32");
  EXPECT_EQ(combined([](auto& x) { x.ld_rows = 56; }), "ld_rows is 56, but must be at least width, 64");
  EXPECT_EQ(combined([](auto& x) { x.ld_out = 68; }),
            "ld_out is 68, but must be a multiple of 8 elements (16 bytes) up to 2147483648");
  EXPECT_EQ(combined([](auto& x) { x.ld_residual = int64_t{1} << 32; }),
            "ld_residual is 4294967296, but must be a multiple of 8 elements (16 bytes) up to 2147483648");
  EXPECT_EQ(combined([](auto& x) { x.rows = nullptr; }), "rows is null, but must point to device memory");
  EXPECT_EQ(combined([](auto& x) { x.inverse = nullptr; }), "inverse is null, but must point to device memory");
  EXPECT_EQ(combined([](auto& x) { x.out = nullptr; }), "out is null, but must point to device memory");
  EXPECT_EQ(combined([](auto& x) { x.out = const_cast<void*>(x.rows); }), "out overlaps rows in memory");
  EXPECT_EQ(combined([](auto& x) { x.weights = static_cast<const float*>(x.out); }), "out overlaps weights in memory");
  // The residual may be out itself, but not lie across it.
  EXPECT_EQ(combined([](auto& x) { x.residual = x.out, x.ld_residual = 72; }), "out overlaps residual in memory");
  EXPECT_EQ(combined([](auto& x) { x.residual = static_cast<char*>(x.out) + 16; }), "out overlaps residual in memory");
  EXPECT_EQ(
      combined([](auto& x) { x.tokens = 0, x.rows = x.out = nullptr, x.inverse = nullptr, x.residual = nullptr; }),
      "nothing");
  EXPECT_EQ(combined([](auto& x) { x.width = 0, x.inverse = nullptr; }), "nothing");
  EXPECT_EQ(combined([](auto& x) { x.width = 0, x.ld_rows = x.ld_out = 64, x.rows = x.out = nullptr; }), "nothing");
}

TEST(RoutingOps, WrongRoutingsAreNamed) {
  const Buffer logits(10 * 64 * 4), bias(64 * 4), ids(10 * 4 * 4), weights(10 * 4 * 4);
  const auto routed = [&](auto change) {
    ExpertRouting x;
    x.tokens = 10, x.experts = 64, x.top_k = 4;
    x.logits = logits.get();
    x.ids = ids.get<int32_t>(), x.weights = weights.get<float>();
    change(x);
    return refusal([&] { route(device(), x); });
  };
  constexpr auto kSigmoid = RouterScore::Sigmoid;
  EXPECT_EQ(routed([](auto& x) { x.tokens = 1 << 21; }), "tokens is 2097152, but must be 0 to 1048576");
  EXPECT_EQ(routed([](auto& x) { x.experts = 2000; }), "experts is 2000, but must be 1 to 1024");
  EXPECT_EQ(routed([](auto& x) { x.top_k = -1; }), "top_k is -1, but must be 1 to 16");
  EXPECT_EQ(routed([](auto& x) { x.experts = 3; }), "top_k is 4, but there are 3 experts");
  EXPECT_EQ(routed([](auto& x) { x.logits_type = DataType::Mxfp8; }), "logits_type is mxfp8, but must be bf16 or f32");
  EXPECT_EQ(routed([](auto& x) { x.score = RouterScore(2); }), "score is 2, but only 0 to 1 have a meaning");
  EXPECT_EQ(routed([](auto& x) { x.scaling_factor = std::numeric_limits<float>::infinity(); }),
            "scaling_factor is inf, but must be finite");
  EXPECT_EQ(routed([&](auto& x) { x.correction_bias = bias.get<float>(); }),
            "correction_bias is given, but only sigmoid scores have one");
  EXPECT_EQ(routed([](auto& x) { x.expert_groups = 0; }), "expert_groups is 0, but must be 1 to 32");
  EXPECT_EQ(routed([](auto& x) { x.expert_groups = 33; }), "expert_groups is 33, but must be 1 to 32");
  EXPECT_EQ(routed([](auto& x) { x.chosen_groups = 0; }), "chosen_groups is 0, but must be 1 to expert_groups, 1");
  EXPECT_EQ(routed([](auto& x) { x.chosen_groups = 2; }), "chosen_groups is 2, but must be 1 to expert_groups, 1");
  EXPECT_EQ(routed([](auto& x) { x.expert_groups = 8, x.chosen_groups = 4; }),
            "expert_groups is 8, but only sigmoid scores are chosen by groups");
  EXPECT_EQ(routed([](auto& x) { x.score = kSigmoid, x.expert_groups = 5; }),
            "expert_groups is 5, but must divide the 64 experts into two or more each");
  EXPECT_EQ(routed([](auto& x) { x.score = kSigmoid, x.experts = 30, x.expert_groups = 30; }),
            "expert_groups is 30, but must divide the 30 experts into two or more each");
  EXPECT_EQ(routed([](auto& x) { x.score = kSigmoid, x.expert_groups = 32; }),
            "top_k is 4, but the chosen groups have 2 experts");
  EXPECT_EQ(routed([](auto& x) { x.ld_logits = 63; }), "ld_logits is 63, but must be experts, 64, to 2147483648");
  EXPECT_EQ(routed([](auto& x) { x.logits = nullptr; }), "logits is null, but must point to device memory");
  EXPECT_EQ(routed([](auto& x) { x.ids = nullptr; }), "ids is null, but must point to device memory");
  EXPECT_EQ(routed([](auto& x) { x.weights = nullptr; }), "weights is null, but must point to device memory");
  EXPECT_EQ(routed([&](auto& x) { x.weights = ids.get<float>() + 39; }), "ids overlaps weights in memory");
  EXPECT_EQ(routed([&](auto& x) { x.ids = logits.get<int32_t>() + 600; }), "ids overlaps logits in memory");
  EXPECT_EQ(routed([](auto& x) { x.tokens = 0, x.logits = nullptr, x.ids = nullptr, x.weights = nullptr; }), "nothing");
}

}  // namespace
}  // namespace moxie::test
