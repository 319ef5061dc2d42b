// SPDX-License-Identifier: Apache-2.0
// Races between ordinary accesses to shared memory: what is ordered in less usual ways, or needs no order, is not
// reported. The races themselves are kernels of tests/sim/hazards, each with its mended twin.
#include <gtest/gtest.h>

#include "tests/sim/run_ptx.h"

namespace {

using sim_test::Params;
using sim_test::Shape;

// %r1 a buffer, %r2 a word that is 0, %r3 the thread, %r4 its word, %r5 that of the thread 32 away; %p1: warp 1, %p2:
// lane 0 of a warp.
std::string kernel(const std::string& body) {
  return R"(
.visible .entry k()
{
  .shared .align 1024 .b8 buffer[1024];
  .shared .align 16 .b32 word;
  .reg .pred %p<8>; .reg .b32 %r<30>;
  mov.u32 %r1, buffer;
  mov.u32 %r2, word;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r3, 4, %r1;
  xor.b32 %r5, %r3, 32;
  mad.lo.u32 %r5, %r5, 4, %r1;
  setp.ge.u32 %p1, %r3, 32;
  and.b32 %r6, %r3, 31;
  setp.eq.u32 %p2, %r6, 0;
  setp.eq.u32 %p3, %r3, 0;
  @%p3 st.shared.u32 [%r2], 0;
  st.shared.u32 [%r4], 0;
  bar.sync 0;
)" + body +
         "  ret;\n}\n";
}

std::string fault_of(const std::string& body, sim::Order order) {
  sim::GlobalMemory memory;
  Shape shape;
  shape.arch = 100;
  shape.block = {64, 1, 1};
  shape.order = order;
  return sim_test::fault_of(kernel(body), "k", Params(), memory, shape);
}

void expect_race(const std::string& body) {
  for (const sim::Order& order : sim_test::all_orders())
    EXPECT_EQ(fault_of(body, order).substr(0, 6), "race: ") << fault_of(body, order) << body;
}
void expect_order(const std::string& body) {
  for (const sim::Order& order : sim_test::all_orders()) EXPECT_EQ(fault_of(body, order), "") << body;
}

TEST(Races, ABarrierHasWaitedForThreadsThatLeft) {
  const std::string leave = "  st.shared.u32 [%r4], %r3;\n  @%p1 exit;\n", read = "  ld.shared.u32 %r7, [%r5];\n";
  expect_order(leave + "  bar.sync 0;\n" + read);
  expect_order(leave + "  barrier.cluster.arrive;\n  barrier.cluster.wait;\n" + read);
  expect_race("  @%p1 bra W;\n  bar.warp.sync -1;\n" + read + "  bra E;\nW:\n  st.shared.u32 [%r4], %r3;\nE:\n");
}

// One lane of each warp adds to a word that a lock guards.
std::string locked(const std::string& taken, const std::string& given_back) {
  return R"(
  @!%p2 bra E;
L:
  atom.relaxed.cta.shared.cas.b32 %r7, [%r2], 0, 1;
  setp.ne.u32 %p4, %r7, 0;
  @%p4 bra L;
)" + taken +
         "  ld.shared.u32 %r8, [%r1];\n  add.u32 %r8, %r8, 1;\n  st.shared.u32 [%r1], %r8;\n" + given_back +
         "  atom.relaxed.cta.shared.exch.b32 %r7, [%r2], 0;\nE:\n";
}
TEST(Races, ALockNeedsBothFences) {
  const std::string fence = "  fence.acq_rel.cta;\n";
  expect_order(locked(fence, fence));
  expect_race(locked("", fence));
  expect_race(locked(fence, ""));
}

TEST(Races, StrongAccessesNeedNoOrder) {
  expect_order("  @!%p1 st.volatile.shared.u32 [%r2], 1;\n  @%p1 ld.volatile.shared.u32 %r7, [%r2];\n");
  expect_order("  red.shared.add.u32 [%r2], 1;\n  @%p1 ld.relaxed.cta.shared.u32 %r7, [%r2];\n");
  expect_race("  @!%p1 st.volatile.shared.u32 [%r2], 1;\n  @%p1 ld.shared.u32 %r7, [%r2];\n");
}

TEST(Races, StoresOfOneValueNeedNoOrder) {
  expect_order("  st.shared.u32 [%r2], 7;\n  bar.sync 0;\n  ld.shared.u32 %r7, [%r2];\n");
  expect_race("  @%p2 st.shared.u32 [%r2], %r3;\n");
  expect_race("  st.shared.u32 [%r2], 7;\n  ld.shared.u32 %r7, [%r2];\n");
}

TEST(Races, BulkStoresAreStoresOfZeros) {
  expect_order("  @%p2 st.bulk.weak.shared::cta [%r1], 256, 0;\n");
  expect_order("  st.shared.u32 [%r4], 7;\n  bar.sync 0;\n  @%p2 st.bulk.weak.shared::cta [%r1], 256, 0;\n");
  expect_race("  @%p3 st.bulk.weak.shared::cta [%r1], 256, 0;\n  @%p1 st.shared.u32 [%r4], 7;\n");
}

TEST(Races, BytesThatDifferNeedNoOrder) {
  expect_order("  @%p1 st.shared.u8 [%r2], 1;\n  @!%p1 ld.shared.u8 %r7, [%r2+1];\n");
  expect_race("  @%p1 st.shared.u8 [%r2], 1;\n  @!%p1 ld.shared.u16 %r7, [%r2];\n");
  expect_order("  @%p2 st.shared.v2.u32 [%r4], {%r3, %r3};\n  @%p2 ld.shared.u32 %r7, [%r5+8];\n");
}

// What a read has told is not lost behind later reads by others of the same bytes.
TEST(Races, EveryReaderCounts) {
  const std::string both_read = "  ld.shared.u32 %r7, [%r2];\n", store = "  @%p3 st.shared.u32 [%r2], 1;\n";
  expect_race(both_read + store);
  expect_order(both_read + "  bar.sync 0;\n" + store);
  expect_race(both_read + "  bar.sync 0;\n  @%p1 ld.shared.u32 %r7, [%r2];\n" + store);
}

}  // namespace
