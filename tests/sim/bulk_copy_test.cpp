// SPDX-License-Identifier: Apache-2.0
// Bulk copies and cp.async against direct computation: reductions, multicast, zero fill.
#include <numeric>

#include "tests/sim/async.h"

namespace {

using namespace sim_test;

// The tests of this fixture in other files run in these orders too.
INSTANTIATE_TEST_SUITE_P(All, Orders, testing::ValuesIn(sim_test::all_orders()), testing::PrintToStringParamName());

// Each lane stores its word of the buffer at offset `at` to out[rank * 32 + lane].
std::string store_words(int at) {
  return "  shl.b32 %r10, %r3, 2;\n  add.u32 %r11, %r1, %r10;\n  ld.shared.u32 %r12, [%r11+" + std::to_string(at) +
         "];\n  shl.b32 %r13, %r4, 7;\n  add.u32 %r13, %r13, %r10;\n  cvt.u64.u32 %rd10, %r13;\n"
         "  add.s64 %rd11, %rd3, %rd10;\n  st.global.u32 [%rd11], %r12;\n";
}

std::vector<uint32_t> iota(size_t n, uint32_t first) {
  std::vector<uint32_t> v(n);
  std::iota(v.begin(), v.end(), first);
  return v;
}

TEST_P(Orders, BulkCopyInAndOut) {
  Buffer<uint32_t> in(memory_, iota(32, 100)), out(memory_, 32, 0u);
  sim::Statistics statistics;
  Shape with_statistics = shape(32);
  with_statistics.statistics = &statistics;
  sim_test::run_ptx(bulk_kernel(R"(
  @!%p1 bra E;
  mbarrier.arrive.expect_tx.shared::cta.b64 %rd5, [%r2], 128;
  cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd2], 128, [%r2];
W: mbarrier.try_wait.shared::cta.b64 %p3, [%r2], %rd5;
  @!%p3 bra W;
  cp.async.bulk.global.shared::cta.bulk_group [%rd3], [%r1], 64;
  cp.async.bulk.commit_group;
  cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd3+64], [%r1], 64;
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group.read 1;
  cp.async.bulk.wait_group 0;
E:
)"),
                    "k", Params().add(in.address()).add(out.address()), memory_, with_statistics);
  EXPECT_EQ(statistics.bytes_read, 128u);
  EXPECT_EQ(statistics.bytes_written, 128u);
  std::vector<uint32_t> expected = iota(16, 100);
  for (uint32_t i = 0; i < 16; ++i) expected.push_back(100 + i);
  EXPECT_EQ(out.values(), expected);
}

TEST_P(Orders, MulticastReachesEveryBlockOfTheMask) {
  Buffer<uint32_t> in(memory_, iota(64, 500)), out(memory_, 64, 0u);
  Shape s = shape(32);
  s.grid = s.cluster = {2, 1, 1};
  // Block r multicasts half r to both; each waits for both halves and stores words 16..47.
  sim_test::run_ptx(bulk_kernel(R"(
  @!%p1 bra W;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
  shl.b32 %r5, %r4, 7;
  cvt.u64.u32 %rd5, %r5;
  add.s64 %rd5, %rd2, %rd5;
  add.u32 %r6, %r1, %r5;
  mov.u16 %h1, 3;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r6], [%rd5], 128, [%r2], %h1;
)" + wait("%r2", "0", "W") + store_words(64) +
                                R"(
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
)"),
                    "k", Params().add(in.address()).add(out.address()), memory_, s);
  std::vector<uint32_t> expected = iota(32, 516);
  const std::vector<uint32_t> again = expected;
  expected.insert(expected.end(), again.begin(), again.end());
  EXPECT_EQ(out.values(), expected);
}

TEST_P(Orders, CopyAndReduceIntoAnotherBlock) {
  Buffer<uint32_t> in(memory_, iota(32, 7)), out(memory_, 64, 0u);
  Shape s = shape(32);
  s.grid = s.cluster = {2, 1, 1};
  // Block 0 sends its words to block 1 and adds them once more.
  sim_test::run_ptx(bulk_kernel(R"(
  shl.b32 %r10, %r3, 2;
  cvt.u64.u32 %rd10, %r10;
  add.s64 %rd10, %rd2, %rd10;
  add.u32 %r11, %r1, %r10;
  ld.global.u32 %r12, [%rd10];
  st.shared.u32 [%r11], %r12;
  mov.u32 %r13, 0;
  st.shared.u32 [%r11+1024], %r13;
  fence.proxy.async;
  setp.eq.u32 %p4, %r4, 1;
  and.pred %p5, %p4, %p1;
  @%p5 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  @%p4 bra W;
  @!%p1 bra E;
  mapa.shared::cluster.u32 %r20, %r1, 1;
  mapa.shared::cluster.u32 %r21, %r2, 1;
  cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r20+512], [%r1], 128, [%r21];
  cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%r20+1024], [%r1], 128, [%r21];
  bra E;
)" + wait("%r2", "0", "W") + R"(
  ld.shared.u32 %r14, [%r11+512];
  ld.shared.u32 %r15, [%r11+1024];
  add.u32 %r14, %r14, %r15;
  cvt.u64.u32 %rd11, %r10;
  add.s64 %rd11, %rd3, %rd11;
  st.global.u32 [%rd11], %r14;
E:
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
)"),
                    "k", Params().add(in.address()).add(out.address()), memory_, s);
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], 2 * (7 + i));
}

TEST_P(Orders, CpAsyncGroupsAndZeroFill) {
  Buffer<uint32_t> in(memory_, iota(128, 1)), out(memory_, 32, 0u);
  sim_test::run_ptx(bulk_kernel(R"(
  shl.b32 %r10, %r3, 4;
  cvt.u64.u32 %rd10, %r10;
  add.s64 %rd10, %rd2, %rd10;
  add.u32 %r11, %r1, %r10;
  cp.async.cg.shared.global [%r11], [%rd10], 16;
  cp.async.commit_group;
  cp.async.ca.shared.global [%r11+1024], [%rd10], 8, 4;
  cp.async.commit_group;
  cp.async.wait_group 1;
  ld.shared.u32 %r12, [%r11+12];
  cp.async.wait_all;
  ld.shared.v2.u32 {%r13, %r14}, [%r11+1024];
  mad.lo.u32 %r12, %r13, 1000, %r12;
  mad.lo.u32 %r12, %r14, 100000, %r12;
  shl.b32 %r15, %r3, 2;
  cvt.u64.u32 %rd11, %r15;
  add.s64 %rd11, %rd3, %rd11;
  st.global.u32 [%rd11], %r12;
)"),
                    "k", Params().add(in.address()).add(out.address()), memory_, shape(32));
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], 4 * i + 4 + 1000 * (4 * i + 1));
}

// Lanes 0, 3, 6 ... have zeros instead of their words.
TEST_P(Orders, CpAsyncIgnoresTheSourceOfTheLanesThatItsPredicateNames) {
  Buffer<uint32_t> in(memory_, iota(32, 1)), out(memory_, 32, 7u);
  sim_test::run_ptx(bulk_kernel(R"(
  mul.wide.u32 %rd10, %r3, 4;
  add.s64 %rd11, %rd2, %rd10;
  add.s64 %rd12, %rd3, %rd10;
  mad.lo.u32 %r11, %r3, 4, %r1;
  rem.u32 %r12, %r3, 3;
  setp.eq.u32 %p2, %r12, 0;
  cp.async.ca.shared.global [%r11], [%rd11], 4, %p2;
  cp.async.wait_all;
  ld.shared.u32 %r13, [%r11];
  st.global.u32 [%rd12], %r13;
)"),
                    "k", Params().add(in.address()).add(out.address()), memory_, shape(32));
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], i % 3 == 0 ? 0 : i + 1) << i;
}

TEST_P(Orders, CpAsyncArrivesAtAnMbarrier) {
  Buffer<uint32_t> in(memory_, iota(32, 40)), out(memory_, 32, 0u);
  sim_test::run_ptx(bulk_kernel(R"(
  shl.b32 %r10, %r3, 2;
  cvt.u64.u32 %rd10, %r10;
  add.s64 %rd12, %rd2, %rd10;
  add.u32 %r11, %r1, %r10;
  cp.async.ca.shared.global [%r11], [%rd12], 4;
  cp.async.mbarrier.arrive.shared::cta.b64 [%r2];
  bar.warp.sync 0xffffffff;
  @%p1 mbarrier.arrive.shared::cta.b64 _, [%r2];
)" + wait("%r2", "0", "W") + R"(
  xor.b32 %r12, %r10, 4;
  add.u32 %r12, %r1, %r12;
  ld.shared.u32 %r13, [%r12];
  add.s64 %rd11, %rd3, %rd10;
  st.global.u32 [%rd11], %r13;
)"),
                    "k", Params().add(in.address()).add(out.address()), memory_, shape(32));
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], 40 + (i ^ 1));
}

}  // namespace
