// SPDX-License-Identifier: Apache-2.0
// The operations of moxie/routing.h against the host's answers: every place that they write, and those beside. The same
// tests for every architecture: the programs of both compile this file.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

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

// At the boundaries of rows, warps and chunks, and so many chunks that a warp scans several of them.
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
    check_sort(job, "many chunks");
  }
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
TEST(SortByExpertOf, LaunchesOneKernelOrThree) {
  Recorder recorder;
  for (const auto& [tokens, launches] : {std::pair{0, 1}, {1, 1}, {2048, 1}, {2049, 3}}) {
    SortJob job = sort_job(tokens, 4, 8);
    const SortCall call(job);
    EXPECT_EQ(recorder.launches([&](Stream stream) { call.run({.stream = stream}); }), size_t(launches)) << tokens;
  }
  EXPECT_EQ(sort_workspace_bytes(2048, 4, 8), 0u);
  EXPECT_EQ(sort_workspace_bytes(2049, 4, 8), 4u * 8 * 3);
  EXPECT_EQ(sort_workspace_bytes(kMaxRoutedTokens, 16, 1024), 4u * 1024 * 2049);
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
  const Buffer ids(std::vector<int32_t>(4 * 3000)), count(8), ends(4 * 8), order(4 * 12000), inverse(4 * 12000);
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
  EXPECT_EQ(sorted([](auto&, auto& workspace) { workspace.bytes = 95; }),
            "workspace has 95 bytes, but must have at least 96");
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

}  // namespace
}  // namespace moxie::test
