// SPDX-License-Identifier: Apache-2.0
// Races between ordinary accesses to global memory: what is ordered in less usual ways, or needs no order, is not
// reported. The races themselves are kernels of tests/sim/hazards, each with its mended twin.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "sim/history/grid_view.h"
#include "tests/sim/run_ptx.h"

namespace {

using sim_test::Params;
using sim_test::Shape;

// %rd1 a buffer of 16 KB, %rd2 the thread's word of the block's 256 bytes there, %rd3 that of the next block, %rd4 a
// word that is 0, as the next ones are; %r1 the thread, %r2 the block, %r3 how many there are; %p1: thread 0.
std::string kernel(const std::string& body) {
  return R"(
.visible .entry k(.param .u64 p)
{
  .reg .pred %p<8>; .reg .b32 %r<30>; .reg .b64 %rd<20>;
  ld.param.u64 %rd1, [p];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %nctaid.x;
  mad.lo.u32 %r4, %r2, 64, %r1;
  mad.wide.u32 %rd2, %r4, 4, %rd1;
  add.u32 %r5, %r2, 1;
  rem.u32 %r5, %r5, %r3;
  mad.lo.u32 %r5, %r5, 64, %r1;
  mad.wide.u32 %rd3, %r5, 4, %rd1;
  add.u64 %rd4, %rd1, 12288;
  setp.eq.u32 %p1, %r1, 0;
)" + body +
         "  ret;\n}\n";
}

std::string fault_of(const std::string& body, const Shape& shape) {
  sim::GlobalMemory memory;
  sim_test::Buffer<uint32_t> buffer(memory, 4096, 0u);
  const std::string text = sim_test::fault_of(kernel(body), "k", Params().add(buffer.address()), memory, shape);
  return std::regex_replace(text, std::regex("0x[0-9a-f]{9,}"), "0x...");
}

Shape shape_of(uint32_t blocks, const sim::Order& order, int threads = 1) {
  Shape shape;
  shape.grid = {blocks, 1, 1};
  shape.block = {64, 1, 1};
  shape.order = order;
  shape.threads = threads;
  return shape;
}

void expect_race(const std::string& body, uint32_t blocks = 3) {
  for (const sim::Order& order : sim_test::all_orders())
    EXPECT_THAT(fault_of(body, shape_of(blocks, order)), testing::StartsWith("race: ")) << body;
}
void expect_order(const std::string& body, uint32_t blocks = 3) {
  for (const sim::Order& order : sim_test::all_orders()) EXPECT_EQ(fault_of(body, shape_of(blocks, order)), "") << body;
}

const std::string kStoreOwn = "  st.global.u32 [%rd2], %r4;\n", kLoadNext = "  ld.global.u32 %r7, [%rd3];\n";

// All blocks have come before any goes on; one thread of each counts and polls.
std::string barrier(const std::string& before, const std::string& count, const std::string& poll,
                    const std::string& behind) {
  return before + "  @!%p1 bra B;\n" + count + "P:\n" + poll + "  setp.lt.u32 %p2, %r8, %r3;\n  @%p2 bra P;\nB:\n" +
         behind;
}

TEST(GlobalRaces, StoresOfOneValueNeedNoOrder) {
  expect_order("  st.global.u32 [%rd4], 7;\n");
  expect_race("  st.global.u32 [%rd4], %r2;\n");
  expect_race("  st.global.u32 [%rd4], 7;\n  @%p1 ld.global.u32 %r7, [%rd4];\n");
}

TEST(GlobalRaces, BytesThatDifferNeedNoOrder) {
  expect_order("  cvt.u64.u32 %rd5, %r2;\n  add.u64 %rd5, %rd5, %rd4;\n  st.global.u8 [%rd5], %r2;\n");
  expect_race(
      "  cvt.u64.u32 %rd5, %r2;\n  add.u64 %rd5, %rd5, %rd4;\n  st.global.u8 [%rd5], %r2;\n"
      "  @%p1 ld.global.u32 %r7, [%rd4];\n");
}

// A cp.async of 8 bytes reads those and no others.
TEST(GlobalRaces, ACopyReadsNoMoreThanItsBytes) {
  const auto text = [](const std::string& word) {
    return "  .shared .align 16 .b8 to[16];\n  mov.u32 %r9, to;\n"
           "  @%p1 cp.async.ca.shared.global [%r9], [%rd4], 8;\n"
           "  setp.eq.u32 %p2, %r1, 32;\n  @%p2 st.global.u32 [%rd4+" +
           word + "], 7;\n  cp.async.wait_all;\n";
  };
  for (const char* word : {"0", "4"}) expect_race(text(word), 1);
  for (const char* word : {"8", "12"}) expect_order(text(word), 1);
}

TEST(GlobalRaces, BulkStoresOfOneValueNeedNoOrder) {
  const auto text = [](const std::string& value) {
    return "  .shared .align 16 .b8 from[16];\n  @!%p1 bra END;\n"
           "  st.shared.v4.u32 [from], {" +
           value + ", 0, 0, 0};\n  fence.proxy.async.shared::cta;\n  mov.u32 %r9, from;\n" +
           "  cp.async.bulk.global.shared::cta.bulk_group [%rd4], [%r9], 16;\n  cp.async.bulk.commit_group;\n"
           "  cp.async.bulk.wait_group 0;\nEND:\n";
  };
  expect_order(text("7"));
  expect_race(text("%r2"));
}

// Warp 1 stores a word of the row that warp 0 loads or stores.
TEST(GlobalRaces, TheLaneOfARowIsNamed) {
  for (const char* access : {"st.global.u32 [%rd2], %r1;", "ld.global.u32 %r7, [%rd2];"}) {
    const std::string body = std::string(
                                 "  setp.ge.u32 %p2, %r1, 32;\n  @%p2 bra SECOND;\nWAIT:\n"
                                 "  ld.volatile.global.u32 %r8, [%rd4];\n  setp.eq.u32 %p3, %r8, 0;\n"
                                 "  @%p3 bra WAIT;\n  ") +
                             access +
                             "\n  bra END;\nSECOND:\n  setp.ne.u32 %p4, %r1, 32;\n  @%p4 bra END;\n"
                             "  st.global.u32 [%rd1+52], 100;\n  st.volatile.global.u32 [%rd4], 1;\nEND:\n";
    for (const sim::Order& order : sim_test::all_orders())
      EXPECT_THAT(fault_of(body, shape_of(1, order)), testing::EndsWith("block (0,0,0), warp 0, lane 13")) << access;
  }
}

// One instruction of warp 0 loads a row that nobody else uses and then another, which warp 1 stores.
TEST(GlobalRaces, EveryTurnOfALoopIsJudged) {
  const auto text = [](const std::string& stored) {
    return "  setp.ge.u32 %p2, %r1, 32;\n  @%p2 bra SECOND;\n  mov.u32 %r8, 0;\nL:\n"
           "  ld.global.u32 %r7, [%rd2];\n  add.u64 %rd2, %rd2, 512;\n  add.u32 %r8, %r8, 1;\n"
           "  setp.lt.u32 %p3, %r8, 2;\n  @%p3 bra L;\n  bra END;\nSECOND:\n  st.global.u32 [%rd2+" +
           stored + "], 7;\nEND:\n";
  };
  expect_race(text("384"), 1);
  expect_order(text("256"), 1);
}

TEST(GlobalRaces, VectorsOf32BytesReachTheirEnd) {
  const auto said = [](const char* offset, const sim::Order& order) {
    Shape shape = shape_of(1, order);
    shape.arch = 100;
    return fault_of(std::string("  @%p1 st.global.v8.b32 [%rd4], {%r1, %r2, %r3, %r1, %r2, %r3, %r1, %r2};\n"
                                "  setp.eq.u32 %p2, %r1, 32;\n  @%p2 ld.global.u32 %r7, [%rd4+") +
                        offset + "];\n",
                    shape);
  };
  for (const sim::Order& order : sim_test::all_orders()) {
    EXPECT_THAT(said("0", order), testing::StartsWith("race: "));
    EXPECT_THAT(said("28", order), testing::StartsWith("race: "));
    EXPECT_EQ(said("32", order), "");
  }
}

TEST(GlobalRaces, StrongAccessesNeedNoOrder) {
  expect_order(
      "  st.volatile.global.u32 [%rd4], %r2;\n  ld.relaxed.gpu.global.u32 %r7, [%rd4];\n"
      "  red.global.add.u32 [%rd4], 1;\n");
  expect_race("  st.volatile.global.u32 [%rd4], %r2;\n  ld.relaxed.cluster.global.u32 %r7, [%rd4];\n");
}

TEST(GlobalRaces, BarriersOverTheGrid) {
  const std::string arrive = "  bar.sync 0;\n", leave = "  bar.sync 0;\n";
  const std::string count = "  red.release.gpu.global.add.u32 [%rd4], 1;\n",
                    poll = "  ld.acquire.gpu.global.u32 %r8, [%rd4];\n";
  for (const uint32_t blocks : {2u, 40u}) {
    expect_order(kStoreOwn + barrier(arrive, count, poll, leave) + kLoadNext, blocks);
    expect_order(
        kStoreOwn + barrier(arrive, "  atom.acq_rel.gpu.global.add.u32 %r9, [%rd4], 1;\n", poll, leave) + kLoadNext,
        blocks);
    expect_race(kStoreOwn + barrier("", count, poll, leave) + kLoadNext, blocks);
    expect_race(kStoreOwn + barrier(arrive, count, poll, "") + kLoadNext, blocks);
  }
}

// A fence.sc of every thread, then a barrier, then a relaxed count by one thread; and the same the other way round.
TEST(GlobalRaces, FencesOfAllThreadsBeforeTheCountOfOne) {
  const std::string count = "  red.global.add.u32 [%rd4], 1;\n", poll = "  ld.volatile.global.u32 %r8, [%rd4];\n";
  const auto text = [&](const std::string& before, const std::string& behind) {
    return kStoreOwn + barrier(before, count, poll, behind) + kLoadNext;
  };
  const std::string sync = "  bar.sync 0;\n", sc = "  membar.gl;\n", weak = "  fence.acq_rel.gpu;\n";
  expect_order(text(sc + sync, sync + sc));
  expect_order(text(sync + weak, weak + sync));
  expect_race(text(weak + sync, sync + sc));
  expect_race(text(sc + sync, sync + weak));
  expect_race(text(sync, sync + sc));
  expect_race(text(sc + sync, sync));
  expect_race(text("  membar.cta;\n" + sync, sync + sc));
}

// What one warp released to another block comes back to the other warp.
TEST(GlobalRaces, OrderWithinABlockByWayOfAnother) {
  const auto text = [](const std::string& handed_on) {
    return R"(
  setp.eq.u32 %p3, %r2, 0;
  setp.lt.u32 %p4, %r1, 32;
  and.b32 %r10, %r1, 31;
  setp.ne.u32 %p5, %r10, 0;
  @%p5 bra END;
  @!%p3 bra OTHER;
  @!%p4 bra SECOND;
  st.global.u32 [%rd1+8192], 5;
  st.release.gpu.global.u32 [%rd4], 1;
  bra END;
SECOND:
  ld.acquire.gpu.global.u32 %r8, [%rd4+64];
  setp.eq.u32 %p2, %r8, 0;
  @%p2 bra SECOND;
  ld.global.u32 %r7, [%rd1+8192];
  bra END;
OTHER:
  @!%p4 bra END;
WAIT:
  ld.acquire.gpu.global.u32 %r8, [%rd4];
  setp.eq.u32 %p2, %r8, 0;
  @%p2 bra WAIT;
)" + handed_on +
           "END:\n";
  };
  expect_order(text("  st.release.gpu.global.u32 [%rd4+64], 1;\n"), 2);
  expect_race(text("  st.relaxed.gpu.global.u32 [%rd4+64], 1;\n"), 2);
}

// Past so many places that the simulator no longer keeps them all apart, order by an old place is order by that place
// alone, and a new one still orders.
TEST(GlobalRaces, ManyPlacesOfReleases) {
  const auto text = [](const std::string& released, const std::string& acquired) {
    return R"(
  setp.ne.u32 %p3, %r2, 0;
  @%p3 bra OTHER;
  mov.u32 %r8, 0;
  cvt.u64.u32 %rd5, %r1;
  add.u64 %rd5, %rd5, %rd1;
FILL:
  st.release.gpu.global.u8 [%rd5], 1;
  add.u64 %rd5, %rd5, 64;
  add.u32 %r8, %r8, 1;
  setp.lt.u32 %p2, %r8, 64;
  @%p2 bra FILL;
  bar.sync 0;
  @!%p1 bra END;
  st.global.u32 [%rd4], 5;
  st.release.gpu.global.u8 [%rd1+)" +
           released + R"(], 2;
  bra END;
OTHER:
  @!%p1 bra END;
WAIT:
  ld.relaxed.gpu.global.u8 %r8, [%rd1+)" +
           released + R"(];
  setp.ne.u32 %p2, %r8, 2;
  @%p2 bra WAIT;
  ld.acquire.gpu.global.u8 %r8, [%rd1+)" +
           acquired + R"(];
  ld.global.u32 %r7, [%rd4];
END:
)";
  };
  expect_order(text("5", "5"), 2);
  expect_race(text("5", "6"), 2);
  expect_order(text("5000", "5000"), 2);
}

TEST(GlobalRaces, BlocksThatWaitInVainAreADeadlock) {
  const std::string all = barrier("", "", "  ld.acquire.gpu.global.u32 %r8, [%rd4];\n", "");
  const std::string said = fault_of(all + "  @%p1 red.global.add.u32 [%rd4], 1;\n", shape_of(3, {}));
  EXPECT_THAT(said, testing::StartsWith("deadlock: ")) << said;
}

TEST(GlobalRaces, ReportsAreTheSameForAnyNumberOfThreads) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the blocks race on the host, too";
#endif
  for (const char* body :
       {"  st.global.u32 [%rd4], %r2;\n", "  ld.global.u32 %r7, [%rd3];\n  st.global.u32 [%rd2], %r1;\n"}) {
    const std::string once = fault_of(body, shape_of(40, {}));
    EXPECT_THAT(once, testing::StartsWith("race: "));
    for (const int threads : {2, 4, 7}) EXPECT_EQ(fault_of(body, shape_of(40, {}, threads)), once);
  }
}

// At the level portable.
std::vector<std::string> warnings_of(const std::string& body, uint32_t blocks) {
  sim::GlobalMemory memory;
  sim_test::Buffer<uint32_t> buffer(memory, 4096, 0u);
  const auto built = sim_test::prepare_ptx(kernel(body), "k");
  sim::Launch launch;
  launch.kernel = built.get();
  launch.grid = {blocks, 1, 1};
  launch.block = {64, 1, 1};
  launch.params = Params().add(buffer.address()).bytes();
  launch.global = &memory;
  launch.threads = 1;
  launch.rules.strictness = sim::Strictness::Portable;
  sim::run(launch);
  return launch.deviations.lines();
}

// The last block and one of another cluster store to one word.
TEST(GlobalRaces, BlocksOfClustersAreNamed) {
  for (const auto& [grid, cluster] : {std::pair<sim::Dim3, sim::Dim3>{{4, 8, 2}, {2, 4, 1}}, {{2, 4, 4}, {2, 2, 2}}}) {
    Shape shape;
    shape.grid = grid;
    shape.cluster = cluster;
    const auto last = static_cast<uint32_t>(grid.count() - 1);
    for (uint32_t block = 0; block < last; ++block) {
      const uint32_t x = block % grid.x, y = block / grid.x % grid.y, z = block / grid.x / grid.y;
      if (x + cluster.x >= grid.x && y + cluster.y >= grid.y && z + cluster.z >= grid.z) continue;
      const std::string said = fault_of(
          "  mov.u32 %r10, %ctaid.y;\n  mov.u32 %r11, %ctaid.z;\n  mov.u32 %r12, %nctaid.y;\n"
          "  mad.lo.u32 %r10, %r11, %r12, %r10;\n  mad.lo.u32 %r10, %r10, %r3, %r2;\n  setp.eq.u32 %p2, %r10, " +
              std::to_string(block) + ";\n  setp.eq.or.u32 %p2, %r10, " + std::to_string(last) +
              ", %p2;\n  @%p2 st.global.u32 [%rd4], %r10;\n",
          shape);
      const auto name = [](uint32_t i, uint32_t j, uint32_t k) {
        return "block (" + std::to_string(i) + "," + std::to_string(j) + "," + std::to_string(k) + ")";
      };
      EXPECT_THAT(said,
                  testing::AllOf(testing::HasSubstr("which " + name(x, y, z) + " wrote at "),
                                 testing::EndsWith(", " + name(grid.x - 1, grid.y - 1, grid.z - 1) + ", warp 0")));
    }
  }
}

// Rows of 128 bytes are judged by 16 bytes at a time.
TEST(GlobalRaces, ARowIsReportedOnceForEachSixteenBytes) {
  for (const char* access : {"st.global.u32 [%rd4], %r1;", "ld.global.u32 %r7, [%rd4];"}) {
    const std::vector<std::string> lines = warnings_of(
        std::string("  rem.u32 %r6, %r1, 32;\n  mul.wide.u32 %rd5, %r6, 4;\n  add.u64 %rd4, %rd4, %rd5;\n"
                    "  setp.ge.u32 %p2, %r1, 32;\n  @%p2 bra SECOND;\n  st.volatile.global.u32 [%rd4], 100;\n"
                    "  bra END;\nSECOND:\n  ") +
            access + "\nEND:\n",
        1);
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_THAT(lines[0], testing::EndsWith(", lane 0 (8 times)"));
  }
}

// All blocks read a word by one instruction, and the last one writes it.
TEST(GlobalRaces, AWriteOfWhatManyBlocksReadIsOneRace) {
  const std::vector<std::string> lines = warnings_of(
      "  ld.volatile.global.u32 %r7, [%rd4];\n  sub.u32 %r8, %r3, 1;\n  setp.eq.and.u32 %p2, %r2, %r8, %p1;\n"
      "  bar.sync 0;\n  @%p2 st.global.u32 [%rd4], 7;\n",
      9);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], testing::AllOf(testing::HasSubstr("which block (0,0,0) read at ptx line "),
                                       testing::Not(testing::HasSubstr(" times)"))));
}

TEST(GridView, IsAJoinOfClocks) {
  const auto clock = [](uint32_t agent, uint32_t at) {
    sim::Clock c;
    c.raise(agent, at);
    return c;
  };
  sim::GridView a, b;
  EXPECT_EQ(a.of(0), nullptr);
  for (const uint32_t cluster : {0u, 15u, 16u, 300u, 70000u}) a.add(cluster, clock(1, cluster + 1));
  b.add(16, clock(2, 5));
  b.add(5000000, clock(1, 3));
  const sim::GridView before = a;
  a.join(b);
  for (const uint32_t cluster : {0u, 15u, 16u, 300u, 70000u}) {
    ASSERT_NE(a.of(cluster), nullptr) << cluster;
    EXPECT_EQ((*a.of(cluster))[1], cluster + 1);
  }
  EXPECT_EQ((*a.of(16))[2], 5u);
  EXPECT_EQ((*a.of(5000000))[1], 3u);
  EXPECT_EQ(a.of(1), nullptr);
  EXPECT_EQ(a.of(4294967295u), nullptr);
  EXPECT_EQ((*before.of(16))[2], 0u);
  EXPECT_EQ(before.of(5000000), nullptr);
  const void* const same = a.identity();
  a.join(b);
  a.add(300, clock(1, 7));
  EXPECT_EQ(a.identity(), same) << "nothing new was added";
}

}  // namespace
