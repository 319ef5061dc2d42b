// SPDX-License-Identifier: Apache-2.0
// Order between the lanes of one warp: what needs a bar.warp.sync is reported without it, and what is ordered in
// another way, or needs no order, is not.
#include <gtest/gtest.h>

#include "tests/sim/run_ptx.h"

namespace {

using sim::Hazard;
using sim_test::Buffer;
using sim_test::Params;
using sim_test::Shape;

// %r1 a buffer, %r2 an mbarrier for 32 arrivals, %r3 the lane, %r4 the lane's word, %r5 the word of the lane before it;
// %rd1 out; %p1 lane 0, %p2 lane 5.
std::string kernel(const std::string& body) {
  return R"(
.visible .entry k(.param .u64 p_out)
{
  .shared .align 1024 .b8 buffer[1024];
  .shared .align 8 .b64 bar;
  .reg .pred %p<8>; .reg .b16 %h<4>; .reg .b32 %r<30>; .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [p_out];
  mov.u32 %r1, buffer;
  mov.u32 %r2, bar;
  mov.u32 %r3, %tid.x;
  shl.b32 %r4, %r3, 2;
  add.u32 %r4, %r1, %r4;
  add.u32 %r5, %r3, 31;
  and.b32 %r5, %r5, 31;
  shl.b32 %r5, %r5, 2;
  add.u32 %r5, %r1, %r5;
  setp.eq.u32 %p1, %r3, 0;
  setp.eq.u32 %p2, %r3, 5;
  @%p1 mbarrier.init.shared::cta.b64 [%r2], 32;
  bar.sync 0;
)" + body +
         "  ret;\n}\n";
}

std::string fault_of(const std::string& body, sim::Order order, Hazard* kind = nullptr, uint32_t blocks = 1) {
  sim::GlobalMemory memory;
  Buffer<uint32_t> out(memory, 256);
  Shape shape;
  shape.grid = {blocks, 1, 1};
  shape.order = order;
  return sim_test::fault_of(kernel(body), "k", Params().add(out.address()), memory, shape, kind);
}

void expect_race(const std::string& body) {
  for (const sim::Order& order : sim_test::all_orders()) {
    Hazard kind = Hazard::Memory;
    const std::string text = fault_of(body, order, &kind);
    EXPECT_NE(text.find("of the same warp wrote"), std::string::npos) << text << body;
    EXPECT_EQ(kind, Hazard::DataInFlight);
  }
}

void expect_order(const std::string& body) {
  for (const sim::Order& order : sim_test::all_orders()) EXPECT_EQ(fault_of(body, order), "") << body;
}

const std::string kWrite = "  st.shared.u32 [%r4], %r3;\n", kRead = "  ld.shared.u32 %r6, [%r5];\n";
const std::string kWait = R"(
L: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2], 0;
  @!%p3 bra L;
)";

TEST(LaneOrder, AReadOfAnotherLanesStoreNeedsABarrier) {
  expect_race(kWrite + kRead);
  expect_race(kWrite + "  shfl.sync.idx.b32 %r7, %r3, 0, 31, -1;\n" + kRead);
  expect_order(kWrite + "  bar.warp.sync -1;\n" + kRead);
  expect_order(kWrite + "  bar.sync 0;\n" + kRead);
  expect_order(kWrite + "  membar.cta;\n  bar.warp.sync -1;\n" + kRead);
}

TEST(LaneOrder, ABarrierBeforeTheStoreDoesNotHelp) { expect_race("  bar.warp.sync -1;\n" + kWrite + kRead); }

TEST(LaneOrder, AnMbarrierOrdersLanes) {
  expect_order(kWrite + "  mbarrier.arrive.shared::cta.b64 _, [%r2];\n" + kWait + kRead);
  // Arrivals alone bring nothing back.
  expect_race(kWrite + "  mbarrier.arrive.shared::cta.b64 _, [%r2];\n" + kRead + kWait);
}

// Block 0 has read by a relaxed operation what was released, and left before a fence. Block 1, which runs where block 0
// has run, has read nothing that its fence could bring.
TEST(LaneOrder, AFenceBringsNothingOfTheBlockBefore) {
  const std::string body = R"(
  mov.u32 %r7, %ctaid.x;
  setp.ne.u32 %p4, %r7, 0;
  @%p4 bra SECOND;
  st.release.cta.shared.u32 [%r1+512], 1;
  ld.relaxed.cta.shared.u32 %r6, [%r1+512];
  bra END;
SECOND:
)" + kWrite + "  st.release.cta.shared.u32 [%r1+512], 1;\n  fence.acq_rel.cta;\n" +
                           kRead + "END:\n";
  for (const sim::Order& order : sim_test::all_orders()) {
    const std::string text = fault_of(body, order, nullptr, 2);
    EXPECT_NE(text.find("of the same warp wrote"), std::string::npos) << text;
    EXPECT_NE(text.find("block (1,0,0)"), std::string::npos) << text;
  }
}

// Every lane reads its own word, vector or half of a word, and another lane has stored one of them.
TEST(LaneOrder, EveryWordOfARowIsLookedAt) {
  struct Width {
    const char* load;
    uint32_t bytes;
  };
  for (const Width& width :
       {Width{"u32 %r6", 4}, Width{"v2.u32 {%r6, %r7}", 8}, Width{"v4.u32 {%r6, %r7, %r8, %r9}", 16}}) {
    for (const uint32_t lane : {0u, 1u, 16u, 27u, 28u, 31u}) {
      for (uint32_t word = 0; word < width.bytes; word += 4) {
        SCOPED_TRACE(std::string(width.load) + ", word " + std::to_string(word) + " of lane " + std::to_string(lane));
        const auto text = [&](uint32_t writer) {
          return "  mad.lo.u32 %r10, %r3, 16, %r1;\n  st.shared.v4.u32 [%r10], {%r3, %r3, %r3, %r3};\n  bar.sync 0;\n"
                 "  setp.eq.u32 %p4, %r3, " +
                 std::to_string(writer) + ";\n  @%p4 st.shared.u32 [%r1+" + std::to_string(lane * width.bytes + word) +
                 "], 7;\n  mad.lo.u32 %r10, %r3, " + std::to_string(width.bytes) + ", %r1;\n  ld.shared." + width.load +
                 ", [%r10];\n";
        };
        expect_race(text(lane == 5 ? 6 : 5));
        expect_order(text(lane));
      }
    }
  }
}

// What one lane releases is what that lane has stored: lane 5 releases, lane 6 has the word of lane 5 and lane 5 that
// of lane 4 to read.
TEST(LaneOrder, AReleaseByOneLaneStandsForItsOwnStores) {
  const std::string declared =
      "  .reg .pred %q<3>;\n  setp.eq.u32 %q1, %r3, 6;\n  or.pred %q2, %p2, %q1;\n"
      "  add.u32 %r10, %r1, 512;\n  @%p1 mbarrier.init.shared::cta.b64 [%r10], 1;\n"
      "  @%p1 st.shared.u32 [%r1+528], 0;\n  bar.sync 0;\n";
  const std::string read_own = "  @%q1 ld.shared.u32 %r6, [%r5];\n", read_other = "  @%p2 ld.shared.u32 %r6, [%r5];\n";
  struct Way {
    const char* release;
    const char* acquire;
  };
  const Way ways[] = {
      {"  @%p2 mbarrier.arrive.shared::cta.b64 _, [%r10];\n",
       "L: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r10], 0;\n  @!%p3 bra L;\n"},
      {"", "  @%q2 bar.warp.sync 0x60;\n"},
      {"  @%p2 st.release.cta.shared.u32 [%r1+528], 1;\n", "  ld.acquire.cta.shared.u32 %r7, [%r1+528];\n"},
      {"  mov.u32 %r8, 1;\n  @%p2 atom.release.cta.shared.exch.b32 %r9, [%r1+528], %r8;\n",
       "  ld.acquire.cta.shared.u32 %r7, [%r1+528];\n"},
      {"  @%p2 fence.acq_rel.cta;\n  @%p2 st.relaxed.cta.shared.u32 [%r1+528], 1;\n",
       "  ld.relaxed.cta.shared.u32 %r7, [%r1+528];\n  fence.acq_rel.cta;\n"},
  };
  for (const Way& way : ways) {
    SCOPED_TRACE(std::string(way.release) + way.acquire);
    expect_order(declared + kWrite + way.release + way.acquire + read_own);
    expect_race(declared + kWrite + way.release + way.acquire + read_other);
  }
}

TEST(LaneOrder, OwnStoresAndEqualOnesNeedNone) {
  expect_order(kWrite + "  ld.shared.u32 %r6, [%r4];\n");
  expect_order("  st.shared.u32 [%r1], 7;\n  ld.shared.u32 %r6, [%r1];\n");
  expect_order("  st.volatile.shared.u32 [%r4], %r3;\n  ld.volatile.shared.u32 %r6, [%r5];\n");
  expect_order(
      "  mov.u32 %r8, 1;\n  st.shared.u32 [%r4], 0;\n  bar.warp.sync -1;\n"
      "  atom.shared.add.u32 %r6, [%r5], %r8;\n  ld.shared.u32 %r6, [%r4];\n");
}

TEST(LaneOrder, TheThreadThatIssuesABulkCopyMustHaveSeenTheStores) {
  const std::string store = R"(
  fence.proxy.async.shared::cta;
SYNC
  @%p2 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 128;
  @%p2 cp.async.bulk.commit_group;
  @%p2 cp.async.bulk.wait_group 0;
)";
  std::string with = store, without = store;
  with.replace(with.find("SYNC"), 4, "  bar.warp.sync -1;");
  without.replace(without.find("SYNC"), 4, "");
  expect_order(kWrite + with);
  expect_race(kWrite + without);
}

// Work of the grid before, which may still be under way until griddepcontrol.wait.
TEST(Prerequisites, AreMetByTheWaitOrAtTheEnd) {
  for (const bool waits : {true, false}) {
    sim::GlobalMemory memory;
    Buffer<uint32_t> out(memory, 256, 1);
    const auto kernel_ptx =
        sim_test::prepare_ptx(kernel(std::string(waits ? "  griddepcontrol.wait;\n" : "") +
                                     "  ld.global.u32 %r6, [%rd1];\n  @%p1 st.global.u32 [%rd1+4], %r6;\n"),
                              "k");
    const Params params = Params().add(out.address());
    sim::Launch launch;
    launch.kernel = kernel_ptx.get();
    launch.block = {32, 1, 1};
    launch.params = params.bytes();
    launch.global = &memory;
    launch.predecessors.remaining_work = [&] { out[0] = 5; };
    sim::run(launch);
    EXPECT_EQ(out[0], 5u);
    EXPECT_EQ(out[1], waits ? 5u : 1u);
  }
}

}  // namespace
