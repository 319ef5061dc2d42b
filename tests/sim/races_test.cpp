// SPDX-License-Identifier: Apache-2.0
// Races between ordinary accesses to shared memory: what is ordered in less usual ways, or needs no order, is not
// reported. The races themselves are kernels of tests/sim/hazards, each with its mended twin.
#include <gmock/gmock.h>
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
  st.shared.u32 [%r4+512], 0;
  bar.sync 0;
)" + body +
         "  ret;\n}\n";
}

std::string fault_of(const std::string& body, sim::Order order, uint32_t threads = 64) {
  sim::GlobalMemory memory;
  Shape shape;
  shape.arch = 100;
  shape.block = {threads, 1, 1};
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

// A fence is asked for only where a relaxed read has met what came behind the other access.
TEST(Races, TheMissingOperationIsNamed) {
  const std::string fence = "a fence is missing after the relaxed read that followed it",
                    all = "a barrier, or a release and an acquire, is missing between them",
                    poll = "P:\n  ld.relaxed.cta.shared.u32 %r7, [%r2];\n  setp.eq.u32 %p4, %r7, 0;\n  @%p4 bra P;\n";
  const auto expect = [](const std::string& body, const std::string& said) {
    for (const sim::Order& order : sim_test::all_orders())
      EXPECT_THAT(fault_of(body, order), testing::AllOf(testing::StartsWith("race: "), testing::HasSubstr(said)));
  };
  const std::string store = "  st.shared.u32 [%r4], 1;\n", load = "  ld.shared.u32 %r8, [%r5];\n";
  const auto polled = [&](const std::string& by_the_other) {
    return "  @%p1 bra P;\n" + by_the_other + "  bra E;\n" + poll + load + "E:\n";
  };
  const std::string together = "  bar.warp.sync -1;\n", release = "  @%p3 st.release.cta.shared.u32 [%r2], 1;\n",
                    relaxed = "  @%p3 st.relaxed.cta.shared.u32 [%r2], 1;\n";
  expect(polled(store + together + release), fence);
  expect(polled(store + together + relaxed), all);
  expect(polled(release + together + store), all);
}

// What one lane releases counts as the release of what other lanes of its warp have read.
TEST(Races, ALaneReleasesWhatItsWarpHasRead) {
  const auto text = [](const std::string& order) {
    return "  @%p1 bra P;\n  @!%p3 ld.shared.u32 %r7, [%r4];\n  @%p3 st." + order + R"(.cta.shared.u32 [%r2], 1;
  bra E;
P:
  ld.acquire.cta.shared.u32 %r7, [%r2];
  setp.eq.u32 %p4, %r7, 0;
  @%p4 bra P;
  st.shared.u32 [%r5], 1;
E:
)";
  };
  expect_order(text("release"));
  expect_race(text("relaxed"));
}

// Warp 0 reads three pieces of 16 bytes, and warp 1 after it; only then does warp 1 learn of what warp 0 has done. A
// store by warp 2 races with both readers of the piece that it meets.
TEST(Races, TheFirstOfSeveralReadersIsNamed) {
  for (const char* stored : {"512", "528", "544"}) {
    const std::string body = std::string(R"(
  setp.ge.u32 %p4, %r3, 64;
  @%p4 bra THIRD;
  @%p1 bra SECOND;
  ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r1+512];
  ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r1+528];
  ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r1+544];
  bar.warp.sync -1;
  st.release.cta.shared.u32 [%r2], 1;
  bra END;
SECOND:
  ld.relaxed.cta.shared.u32 %r7, [%r2];
  setp.eq.u32 %p5, %r7, 0;
  @%p5 bra SECOND;
  ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r1+512];
  ld.shared.u32 %r10, [%r1+528];
  ld.acquire.cta.shared.u32 %r7, [%r2];
  ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r1+544];
  st.relaxed.cta.shared.u32 [%r2], 2;
  bra END;
THIRD:
  ld.relaxed.cta.shared.u32 %r7, [%r2];
  setp.ne.u32 %p5, %r7, 2;
  @%p5 bra THIRD;
  st.shared.u32 [%r1+)") + stored +
                             "], 1;\nEND:\n";
    for (const sim::Order& order : sim_test::all_orders())
      EXPECT_THAT(fault_of(body, order, 96), testing::AllOf(testing::StartsWith("race: writes to "),
                                                            testing::HasSubstr(", which warp 0 read at ")));
  }
}

// Warp 1 reads what warp 0 has stored, in order. Warp 2 reads it after warp 1, but nothing orders it after the store.
TEST(Races, AStoreIsStillKnownWhenAnotherHasReadIt) {
  const std::string body = R"(
  setp.ge.u32 %p4, %r3, 64;
  @%p4 bra THIRD;
  @%p1 bra SECOND;
  @%p3 st.shared.u32 [%r1+512], 7;
  @%p3 st.release.cta.shared.u32 [%r2], 1;
  bra END;
SECOND:
  ld.acquire.cta.shared.u32 %r7, [%r2];
  setp.eq.u32 %p5, %r7, 0;
  @%p5 bra SECOND;
  ld.shared.u32 %r8, [%r1+512];
  st.relaxed.cta.shared.u32 [%r2], 2;
  bra END;
THIRD:
  ld.relaxed.cta.shared.u32 %r7, [%r2];
  setp.ne.u32 %p5, %r7, 2;
  @%p5 bra THIRD;
  ld.shared.u32 %r8, [%r1+512];
END:
)";
  for (const sim::Order& order : sim_test::all_orders())
    EXPECT_THAT(fault_of(body, order, 96),
                testing::AllOf(testing::StartsWith("race: reads "), testing::HasSubstr(", which warp 0 wrote at ")));
}

// What a read has told is not lost behind later reads by others of the same bytes.
TEST(Races, EveryReaderCounts) {
  const std::string both_read = "  ld.shared.u32 %r7, [%r2];\n", store = "  @%p3 st.shared.u32 [%r2], 1;\n";
  expect_race(both_read + store);
  expect_order(both_read + "  bar.sync 0;\n" + store);
  expect_race(both_read + "  bar.sync 0;\n  @%p1 ld.shared.u32 %r7, [%r2];\n" + store);
}

}  // namespace
