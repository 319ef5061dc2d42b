// SPDX-License-Identifier: Apache-2.0
// clusterlaunchcontrol (PTX ISA 9.7.13.17, 9.7.13.18): every cluster of a grid is done exactly once, whoever does it.
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "run_ptx.h"

namespace {

using namespace sim_test;
using sim::Hazard;

// Each block works on its own index, then asks for another cluster until there is none; it adds 1 to the count of each
// linear block index. Of each index `trail` gets the first index that its block had, and `before` the one before.
std::string persistent(bool multicast, const std::string& query, const std::string& after_failure = "") {
  return R"(
.visible .entry k(.param .u64 p_count, .param .u64 p_trail, .param .u64 p_before) {
  .shared .align 16 .b8 response[16];
  .shared .align 8 .b64 bar;
  .reg .u64 %count, %trail, %before, %at, %lo, %hi;
  .reg .u32 %last, %x, %y, %z, %n, %old, %first, %phase, %rank, %cx, %a, %b, %c;
  .reg .b32 %r<4>;
  .reg .b128 %handle;
  .reg .pred %p<8>;
  ld.param.u64 %count, [p_count];
  ld.param.u64 %trail, [p_trail];
  ld.param.u64 %before, [p_before];
  mov.u32 %rank, %cluster_ctarank;
  mov.u32 %cx, %cluster_ctaid.x;
  mov.u32 %x, %ctaid.x;
  mov.u32 %y, %ctaid.y;
  mov.u32 %z, %ctaid.z;
  mov.u32 %phase, 0;
  mad.lo.u32 %first, %z, %nctaid.y, %y;
  mad.lo.u32 %first, %first, %nctaid.x, %x;
  mov.u32 %last, %first;
  mbarrier.init.shared::cta.b64 [bar], 1;
  fence.mbarrier_init.release.cluster;
  barrier.cluster.arrive;
  barrier.cluster.wait;
WORK:
  mbarrier.arrive.expect_tx.relaxed.cluster.shared::cta.b64 _, [bar], 16;
  setp.ne.u32 %p0, %rank, 0;
)" +
         std::string(
             multicast
                 ? "  @%p0 bra ASKED;\n  "
                   "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes."
                   "multicast::cluster::all.b128 [response], [bar];\n"
                 : "  clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [response], "
                   "[bar];\n") +
         R"(ASKED:
  mad.lo.u32 %n, %z, %nctaid.y, %y;
  mad.lo.u32 %n, %n, %nctaid.x, %x;
  mul.wide.u32 %at, %n, 4;
  add.u64 %lo, %count, %at;
  red.global.add.u32 [%lo], 1;
  add.u64 %lo, %trail, %at;
  st.global.u32 [%lo], %first;
  add.u64 %lo, %before, %at;
  st.global.u32 [%lo], %last;
  mov.u32 %last, %n;
WAIT:
  mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [bar], %phase;
  @!%p1 bra WAIT;
  xor.b32 %phase, %phase, 1;
  ld.shared.v2.b64 {%lo, %hi}, [response];
  mov.b128 %handle, {%lo, %hi};
  clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, %handle;
  @!%p2 bra FAILED;
)" + query +
         R"(
  add.u32 %x, %x, %cx;
  fence.proxy.async.shared::cta;
  barrier.cluster.arrive;
  barrier.cluster.wait;
  bra WORK;
FAILED:
)" + after_failure +
         R"(
  barrier.cluster.arrive;
  barrier.cluster.wait;
  ret;
})";
}

const char* const kVector =
    "  clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%x, %y, %z, _}, %handle;\n";
const char* const kSingles =
    "  clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %x, %handle;\n"
    "  clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %y, %handle;\n"
    "  clusterlaunchcontrol.query_cancel.get_first_ctaid::z.b32.b128 %z, %handle;\n";

struct Result {
  std::vector<uint32_t> count, trail, before;
  std::string fault;
};

Result run_grid(const std::string& text, sim::Dim3 grid, sim::Dim3 cluster, sim::Order order, int threads) {
  sim::GlobalMemory memory;
  Buffer<uint32_t> count(memory, grid.count(), 0u), trail(memory, grid.count(), ~0u), before(memory, grid.count(), ~0u);
  Params params;
  params.add(count.address()).add(trail.address()).add(before.address());
  Shape shape;
  shape.arch = 100;
  shape.grid = grid;
  shape.block = {1, 1, 1};
  shape.cluster = cluster;
  shape.order = order;
  shape.threads = threads;
  Result r;
  r.fault = fault_of(text, "k", params, memory, shape);
  r.count = count.values();
  r.trail = trail.values();
  r.before = before.values();
  return r;
}

TEST(LaunchControl, EveryClusterIsDoneOnce) {
  size_t cancelled = 0;
  for (const char* query : {kVector, kSingles}) {
    for (const sim::Order order : all_orders()) {
      const Result one = run_grid(persistent(false, query), {5, 3, 2}, {1, 1, 1}, order, 1);
      EXPECT_EQ(one.fault, "");
      EXPECT_EQ(one.count, std::vector<uint32_t>(30, 1));
      for (size_t i = 0; i < one.trail.size(); ++i) cancelled += one.trail[i] != i;
      // The same, whoever runs it.
      for (const int threads : {2, 5}) {
        const Result more = run_grid(persistent(false, query), {5, 3, 2}, {1, 1, 1}, order, threads);
        EXPECT_EQ(more.trail, one.trail);
        EXPECT_EQ(more.count, one.count);
      }
    }
  }
  EXPECT_GT(cancelled, 50u);
}

TEST(LaunchControl, MulticastToAllBlocksOfTheCluster) {
  for (const sim::Order order : all_orders()) {
    const Result r = run_grid(persistent(true, kVector), {8, 3, 1}, {2, 1, 1}, order, 2);
    EXPECT_EQ(r.fault, "");
    EXPECT_EQ(r.count, std::vector<uint32_t>(24, 1));
    for (size_t i = 0; i < r.trail.size(); ++i) EXPECT_EQ(r.trail[i] % 2, i % 2);
  }
}

// The ISA names no order in which clusters are taken, and a request may be refused while some have not started.
TEST(LaunchControl, ClustersAreTakenInAnyOrder) {
  size_t growing = 0, shrinking = 0, refused = 0;
  std::vector<sim::Order> orders = all_orders();
  for (uint64_t seed = 100; seed < 120; ++seed) orders.push_back({sim::Mode::Random, seed});
  for (const sim::Order& order : orders) {
    const Result r = run_grid(persistent(false, kVector), {60, 1, 1}, {1, 1, 1}, order, 1);
    EXPECT_EQ(r.fault, "");
    EXPECT_EQ(r.count, std::vector<uint32_t>(60, 1));
    std::vector<uint32_t> starts;
    for (uint32_t i = 0; i < 60; ++i) {
      growing += r.before[i]<i, shrinking += r.before[i]> i;
      if (r.trail[i] == i) starts.push_back(i);
    }
    // Of n clusters that run at once each has those of its number modulo n. Where one is refused more than n start.
    std::set<size_t> shares;
    for (const uint32_t i : starts) shares.insert(i % starts.size());
    refused += shares.size() < starts.size();
    if (order.mode == sim::Mode::Lazy) {
      for (uint32_t i = 0; i < 60; ++i) EXPECT_EQ(r.before[i], std::min(i + 2, 58 + i % 2));
    }
  }
  EXPECT_GT(growing, 200u);
  EXPECT_GT(shrinking, 200u);
  EXPECT_GT(refused, 3u);
}

// The report of a launch that fails does not depend on host threads either.
TEST(LaunchControl, ThreadsReportTheSameFailure) {
  for (const sim::Order order : all_orders()) {
    const std::string bad = "  setp.ge.u32 %p3, %n, 7;\n  @%p3 ld.global.u32 %old, [0];\n";
    const std::string text = persistent(false, std::string(kVector) + bad);
    const std::string one = run_grid(text, {40, 1, 1}, {1, 1, 1}, order, 1).fault;
    EXPECT_NE(one, "");
    for (const int threads : {2, 5}) EXPECT_EQ(run_grid(text, {40, 1, 1}, {1, 1, 1}, order, threads).fault, one);
  }
}

TEST(LaunchControl, NoneAfterAFailure) {
  const std::string again =
      "  fence.proxy.async.shared::cta;\n"
      "  mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 16;\n"
      "  clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [response], [bar];\n";
  for (const sim::Order order : all_orders()) {
    const Result r = run_grid(persistent(false, kVector, again), {4, 1, 1}, {1, 1, 1}, order, 1);
    EXPECT_NE(r.fault.find("after one that was seen to fail"), std::string::npos) << r.fault;
  }
}

TEST(LaunchControl, CoordinatesOfAFailure) {
  const std::string ask = "  clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %x, %handle;\n";
  for (const sim::Order order : all_orders()) {
    const Result r = run_grid(persistent(false, kVector, ask), {4, 1, 1}, {1, 1, 1}, order, 1);
    EXPECT_NE(r.fault.find("says no cluster was cancelled"), std::string::npos) << r.fault;
  }
}

// The response is written through the async proxy: what reads it must be fenced from the next request.
TEST(LaunchControl, ResponseReadBeforeTheNextRequest) {
  std::string bent = persistent(false, kVector);
  const std::string wait =
      "WAIT:\n  mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [bar], %phase;\n  @!%p1 bra WAIT;\n";
  bent.erase(bent.find(wait), wait.size());
  for (const sim::Order order : all_orders()) {
    const Result r = run_grid(bent, {4, 1, 1}, {1, 1, 1}, order, 1);
    EXPECT_NE(r.fault.find("while a copy is writing it"), std::string::npos) << r.fault;
  }
}

}  // namespace
