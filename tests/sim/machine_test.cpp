// SPDX-License-Identifier: Apache-2.0
// The machine itself: lanes that part and meet, calls, barriers, exchanges between lanes, memories, atomics, and the
// reports of deadlocks and wrong addresses. Every kernel here is PTX text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/sim/run_ptx.h"

namespace {

using sim::Hazard;
using sim_test::Buffer;
using sim_test::Params;
using sim_test::Shape;
using testing::AllOf;
using testing::HasSubstr;

// A kernel with one pointer to results and one integer; `%rd1` is the pointer, `%r1` the integer, `%r2` the thread's
// index in the block, `%rd2` the address of its own 32-bit result (index over the grid).
std::string kernel(const std::string& body, const std::string& before = "") {
  return before + R"(
.visible .entry k(.param .u64 p_out, .param .u32 p_n)
{
  .reg .pred %p<20>; .reg .b16 %rs<20>; .reg .b32 %r<60>; .reg .f32 %f<20>; .reg .b64 %rd<40>; .reg .f64 %fd<8>;
  ld.param.u64 %rd1, [p_out];
  ld.param.u32 %r1, [p_n];
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mad.lo.s32 %r5, %r3, %r4, %r2;
  mul.wide.u32 %rd3, %r5, 4;
  add.s64 %rd2, %rd1, %rd3;
)" + body +
         "\n}\n";
}

class MachineOrders : public testing::TestWithParam<sim::Order> {
 protected:
  std::vector<uint32_t> run(const std::string& text, uint32_t n, Shape shape = {}, size_t results = 0) {
    shape.order = GetParam();
    const size_t size = results != 0 ? results : shape.grid.count() * shape.block.count();
    Buffer<uint32_t> out(memory_, size, 0xeeeeeeeeu);
    sim_test::run_ptx(text, "k", Params().add(out.address()).add(n), memory_, shape);
    return out.values();
  }
  sim::GlobalMemory memory_;
};
INSTANTIATE_TEST_SUITE_P(All, MachineOrders, testing::ValuesIn(sim_test::all_orders()),
                         testing::PrintToStringParamName());

std::vector<uint32_t> iota(size_t n, uint32_t scale = 1, uint32_t first = 0) {
  std::vector<uint32_t> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = first + scale * static_cast<uint32_t>(i);
  return v;
}

TEST_P(MachineOrders, WritesEveryThreadsIndex) {
  EXPECT_EQ(run(kernel("st.global.u32 [%rd2], %r5; ret;"), 0, {{5}, {70, 1, 1}}), iota(350));
}

TEST_P(MachineOrders, LanesPartAndMeet) {
  // Odd lanes take one arm, even lanes the other; after the meeting a full-mask ballot sees all.
  const auto out = run(kernel(R"(
  and.b32 %r6, %r2, 1;
  setp.eq.u32 %p1, %r6, 1;
  @%p1 bra ODD;
  add.u32 %r7, %r2, 100;
  bra MEET;
ODD:
  add.u32 %r7, %r2, 1000;
MEET:
  vote.sync.ballot.b32 %r8, %p1, 0xffffffff;
  setp.ne.u32 %p2, %r8, 0xaaaaaaaa;
  @%p2 mov.u32 %r7, 7;
  st.global.u32 [%rd2], %r7;
  ret;)"),
                       0);
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], i + (i % 2 == 1 ? 1000 : 100));
}

TEST_P(MachineOrders, LoopsWithADifferentTripCountPerLane) {
  const auto out = run(kernel(R"(
  mov.u32 %r6, 0;
  mov.u32 %r7, 0;
LOOP:
  setp.ge.u32 %p1, %r6, %r2;
  @%p1 bra DONE;
  add.u32 %r6, %r6, 1;
  add.u32 %r7, %r7, %r6;
  bra.uni LOOP;
DONE:
  st.global.u32 [%rd2], %r7;
  ret;)"),
                       0, {{1}, {64, 1, 1}});
  for (uint32_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], i * (i + 1) / 2);
}

TEST_P(MachineOrders, LanesThatExitDoNotHoldTheOthers) {
  const auto out = run(kernel(R"(
  setp.lt.u32 %p1, %r2, 40;
  @%p1 exit;
  bar.sync 0;
  st.global.u32 [%rd2], %r2;
  ret;)"),
                       0, {{1}, {96, 1, 1}});
  for (uint32_t i = 0; i < 96; ++i) EXPECT_EQ(out[i], i < 40 ? 0xeeeeeeeeu : i);
}

TEST_P(MachineOrders, BranchesThroughATable) {
  const auto out = run(kernel(R"(
  and.b32 %r6, %r2, 3;
targets: .branchtargets A, B, C, B;
  brx.idx %r6, targets;
A: mov.u32 %r7, 10; bra END;
B: mov.u32 %r7, 20; bra END;
C: mov.u32 %r7, 30;
END:
  st.global.u32 [%rd2], %r7;
  ret;)"),
                       0);
  const uint32_t expected[] = {10, 20, 30, 20};
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], expected[i % 4]);
}

// Three parts of a warp run into each other, and each goes on with those it meets: no instruction is executed twice.
TEST(Machine, LanesMeetWhereTheyFirstCan) {
  const std::string arms = R"(
  and.b32 %r6, %r2, 3;
  mov.u32 %r7, 0;
targets: .branchtargets A, B, C, B;
  brx.idx %r6, targets;
A: add.u32 %r7, %r7, 1;
  add.u32 %r7, %r7, 1;
B: add.u32 %r7, %r7, 10;
  add.u32 %r7, %r7, 10;
C: add.u32 %r7, %r7, 100;
  st.global.u32 [%rd2], %r7;
  ret;)";
  const auto count = [](const std::string& body) {
    sim::GlobalMemory memory;
    Buffer<uint32_t> out(memory, 32);
    const uint64_t instructions = sim_test::run_ptx(kernel(body), "k", Params().add(out.address()).add(0u), memory, {});
    if (body.find("brx") != std::string::npos) {
      const uint32_t expected[] = {122, 120, 100, 120};
      for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], expected[i % 4]);
    }
    return instructions;
  };
  std::string straight = arms;
  straight.replace(straight.find("brx.idx %r6, targets"), 20, "mov.u32 %r8, 0");
  EXPECT_EQ(count(arms), count(straight));
}

TEST_P(MachineOrders, CallsFunctionsWithParameters) {
  // Only some lanes call; the callee branches and calls another one.
  const auto out = run(kernel(R"(
  mov.u32 %r7, 5;
  setp.lt.u32 %p1, %r2, 20;
  @!%p1 bra SKIP;
  {
    .param .b32 a; .param .b64 b; .param .b32 r;
    cvt.u64.u32 %rd5, %r2;
    st.param.b32 [a], %r2;
    st.param.b64 [b], %rd5;
    call.uni (r), outer, (a, b);
    ld.param.b32 %r7, [r];
  }
SKIP:
  st.global.u32 [%rd2], %r7;
  ret;)",
                              R"(
.func (.param .b32 r) twice(.param .b32 x)
{
  .reg .b32 %r<4>;
  ld.param.b32 %r1, [x];
  add.u32 %r2, %r1, %r1;
  st.param.b32 [r], %r2;
  ret;
}
.func (.param .b32 r) outer(.param .b32 x, .param .b64 y)
{
  .reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .pred %p<2>;
  ld.param.b32 %r1, [x];
  ld.param.b64 %rd1, [y];
  cvt.u32.u64 %r2, %rd1;
  setp.lt.u32 %p1, %r1, 10;
  @%p1 bra SMALL;
  {
    .param .b32 a; .param .b32 b;
    st.param.b32 [a], %r1;
    call (b), twice, (a);
    ld.param.b32 %r2, [b];
  }
SMALL:
  add.u32 %r3, %r2, 1;
  st.param.b32 [r], %r3;
  ret;
}
)"),
                       0);
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], i < 10 ? i + 1 : i < 20 ? 2 * i + 1 : 5);
}

TEST_P(MachineOrders, BarriersOrderSharedMemory) {
  // Each thread reads what the thread opposite wrote, round after round.
  const auto out = run(kernel(R"(
  .shared .align 4 .b8 tile[1024];
  mov.u32 %r6, tile;
  shl.b32 %r7, %r2, 2;
  add.u32 %r8, %r6, %r7;
  sub.u32 %r9, %r4, %r2;
  sub.u32 %r9, %r9, 1;
  shl.b32 %r10, %r9, 2;
  add.u32 %r11, %r6, %r10;
  mov.u32 %r12, %r2;
  mov.u32 %r13, 0;
LOOP:
  st.shared.u32 [%r8], %r12;
  bar.sync 0;
  ld.shared.u32 %r12, [%r11];
  barrier.cta.sync.aligned 1;
  add.u32 %r12, %r12, 1;
  add.u32 %r13, %r13, 1;
  setp.lt.u32 %p1, %r13, %r1;
  @%p1 bra LOOP;
  st.global.u32 [%rd2], %r12;
  ret;)"),
                       7, {{2}, {256, 1, 1}});
  for (uint32_t b = 0; b < 2; ++b)
    for (uint32_t i = 0; i < 256; ++i) EXPECT_EQ(out[b * 256 + i], 255 - i + 7);
}

TEST_P(MachineOrders, NamedBarriersBetweenProducerAndConsumer) {
  const auto out = run(kernel(R"(
  .shared .align 4 .b8 tile[128];
  and.b32 %r6, %r2, 31;
  shl.b32 %r6, %r6, 2;
  mov.u32 %r7, tile;
  add.u32 %r7, %r7, %r6;
  mov.u32 %r8, 0;
  mov.u32 %r9, 0;
  setp.ge.u32 %p1, %r2, 32;
  @%p1 bra CONSUMER;
PRODUCER:
  bar.sync 2, 64;
  st.shared.u32 [%r7], %r8;
  bar.arrive 1, 64;
  add.u32 %r8, %r8, 1;
  setp.lt.u32 %p2, %r8, %r1;
  @%p2 bra PRODUCER;
  ret;
CONSUMER:
  bar.arrive 2, 64;
AGAIN:
  bar.sync 1, 64;
  ld.shared.u32 %r10, [%r7];
  add.u32 %r9, %r9, %r10;
  add.u32 %r8, %r8, 1;
  setp.lt.u32 %p2, %r8, %r1;
  @%p2 bar.arrive 2, 64;
  @%p2 bra AGAIN;
  st.global.u32 [%rd2], %r9;
  ret;)"),
                       10, {{1}, {64, 1, 1}});
  for (uint32_t i = 32; i < 64; ++i) EXPECT_EQ(out[i], 45u);
}

TEST_P(MachineOrders, BarrierReductions) {
  const auto out = run(kernel(R"(
  setp.lt.u32 %p1, %r2, 50;
  setp.eq.u32 %p2, %r2, %r2;
  bar.red.popc.u32 %r6, 3, %p1;
  bar.red.and.pred %p2, 4, %r4, %p1;
  bar.red.or.pred %p3, 5, !%p1;
  selp.u32 %r7, 1000, 0, %p2;
  selp.u32 %r8, 100, 0, %p3;
  add.u32 %r6, %r6, %r7;
  add.u32 %r6, %r6, %r8;
  st.global.u32 [%rd2], %r6;
  ret;)"),
                       0, {{1}, {128, 1, 1}});
  EXPECT_EQ(out, std::vector<uint32_t>(128, 150));
}

// The lanes of each warp meet at two places and have the result in predicates of their own, which they had set to the
// opposite before. Those of the other lanes stay as they are.
TEST_P(MachineOrders, BarrierReductionsWriteTheLanesThatAreThere) {
  for (const bool result : {false, true}) {
    const std::string opposite = result ? "ne" : "eq", source = result ? "eq" : "ne", op = result ? "and" : "or";
    const auto out = run(kernel("  setp." + source + ".u32 %p1, %r2, %r2;\n  setp." + opposite +
                                ".u32 %p2, %r2, %r2;\n  setp." + opposite + ".u32 %p3, %r2, %r2;\n" + R"(
  and.b32 %r8, %r2, 1;
  setp.eq.u32 %p4, %r8, 0;
  @%p4 bra EVEN;
  barrier.cta.red.)" + op + R"(.pred %p2, 1, %p1;
  bra BOTH;
EVEN:
  barrier.cta.red.)" + op + R"(.pred %p3, 1, %p1;
BOTH:
  selp.u32 %r6, 1, 0, %p2;
  selp.u32 %r7, 2, 0, %p3;
  add.u32 %r6, %r6, %r7;
  st.global.u32 [%rd2], %r6;
  ret;)"),
                         0, {{1}, {64, 1, 1}});
    for (uint32_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], (i % 2 != 0) == result ? 1u : 2u) << i;
  }
}

TEST_P(MachineOrders, BarrierWithoutAlignedMeetsAtTwoPlaces) {
  // The lanes of each warp arrive from the two arms of a branch.
  const auto out = run(kernel(R"(
  .shared .align 4 .b8 tile[256];
  mov.u32 %r6, tile;
  shl.b32 %r7, %r2, 2;
  add.u32 %r7, %r6, %r7;
  st.shared.u32 [%r7], %r2;
  and.b32 %r8, %r2, 1;
  setp.eq.u32 %p1, %r8, 0;
  @%p1 bra EVEN;
  barrier.sync 0;
  bra READ;
EVEN:
  barrier.sync 0;
READ:
  xor.b32 %r9, %r2, 33;
  shl.b32 %r9, %r9, 2;
  add.u32 %r9, %r6, %r9;
  ld.shared.u32 %r10, [%r9];
  st.global.u32 [%rd2], %r10;
  ret;)"),
                       0, {{1}, {64, 1, 1}});
  for (uint32_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], i ^ 33);
}

TEST_P(MachineOrders, ShufflesInEveryMode) {
  const auto out = run(kernel(R"(
  add.u32 %r6, %r2, 100;
  shfl.sync.up.b32 %r7|%p1, %r6, 3, 0, 0xffffffff;
  shfl.sync.down.b32 %r8|%p2, %r6, 3, 31, 0xffffffff;
  shfl.sync.bfly.b32 %r9, %r6, 5, 31, 0xffffffff;
  shfl.sync.idx.b32 %r10, %r6, 2, 0x181f, 0xffffffff;
  selp.u32 %r11, 1, 0, %p1;
  selp.u32 %r12, 2, 0, %p2;
  add.u32 %r11, %r11, %r12;
  mul.wide.u32 %rd5, %r2, 20;
  add.s64 %rd6, %rd1, %rd5;
  st.global.u32 [%rd6], %r7;
  st.global.u32 [%rd6+4], %r8;
  st.global.u32 [%rd6+8], %r9;
  st.global.u32 [%rd6+12], %r10;
  st.global.u32 [%rd6+16], %r11;
  ret;)"),
                       0, {}, 160);
  for (uint32_t i = 0; i < 32; ++i) {
    EXPECT_EQ(out[i * 5 + 0], 100 + (i >= 3 ? i - 3 : i));
    EXPECT_EQ(out[i * 5 + 1], 100 + (i + 3 <= 31 ? i + 3 : i));
    EXPECT_EQ(out[i * 5 + 2], 100 + (i ^ 5));
    EXPECT_EQ(out[i * 5 + 3], 100 + ((i & 0x18) | 2));
    EXPECT_EQ(out[i * 5 + 4], (i >= 3 ? 1u : 0u) + (i + 3 <= 31 ? 2u : 0u));
  }
}

TEST_P(MachineOrders, ShufflesWithinHalvesOfADivergedWarp) {
  const auto out = run(kernel(R"(
  setp.lt.u32 %p1, %r2, 12;
  @%p1 bra LOW;
  shfl.sync.idx.b32 %r6, %r2, 31, 31, 0xfffff000;
  bra END;
LOW:
  shfl.sync.idx.b32 %r6, %r2, 7, 31, 0x00000fff;
END:
  bar.warp.sync 0xffffffff;
  st.global.u32 [%rd2], %r6;
  ret;)"),
                       0);
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], i < 12 ? 7u : 31u);
}

TEST_P(MachineOrders, OneShuffleWithADifferentMaskForEachHalf) {
  const auto out = run(kernel(R"(
  setp.lt.u32 %p1, %r2, 16;
  selp.u32 %r6, 0x0000ffff, 0xffff0000, %p1;
  shfl.sync.bfly.b32 %r7, %r2, 15, 31, %r6;
  st.global.u32 [%rd2], %r7;
  ret;)"),
                       0);
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], i ^ 15);
}

// Lanes whose members are all there go on; the others wait for theirs, and all execute what follows.
TEST_P(MachineOrders, APartOfAShuffleGoesAhead) {
  const auto out = run(kernel(R"(
  setp.lt.u32 %p1, %r2, 16;
  selp.b32 %r6, 0x0000ffff, 0xffff0000, %p1;
  mov.u32 %r8, 0;
  setp.lt.u32 %p2, %r2, 24;
  @!%p2 bra LATE;
HERE:
  shfl.sync.bfly.b32 %r7, %r2, 1, 31, %r6;
  add.u32 %r8, %r8, 1000;
  add.u32 %r8, %r8, %r7;
  st.global.u32 [%rd2], %r8;
  ret;
LATE:
  add.u32 %r8, %r8, 500;
  bra HERE;)"),
                       0);
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], (i ^ 1) + (i < 24 ? 1000 : 1500)) << i;
}

TEST_P(MachineOrders, WarpBarrierInBothArms) {
  const auto out = run(kernel(R"(
  .shared .align 4 .b8 tile[128];
  mov.u32 %r6, tile;
  shl.b32 %r7, %r2, 2;
  add.u32 %r7, %r6, %r7;
  xor.b32 %r8, %r7, 64;
  setp.lt.u32 %p1, %r2, 16;
  @%p1 bra LOW;
  st.shared.u32 [%r7], 5;
  bar.warp.sync 0xffffffff;
  ld.shared.u32 %r9, [%r8];
  bra END;
LOW:
  st.shared.u32 [%r7], 6;
  bar.warp.sync 0xffffffff;
  ld.shared.u32 %r9, [%r8];
END:
  st.global.u32 [%rd2], %r9;
  ret;)"),
                       0);
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], i < 16 ? 5u : 6u);
}

TEST_P(MachineOrders, VotesMatchesReductionsAndElection) {
  const auto out = run(kernel(R"(
  setp.gt.u32 %p1, %r2, 28;
  vote.sync.any.pred %p2, %p1, 0xffffffff;
  vote.sync.all.pred %p3, %p1, 0xffffffff;
  vote.sync.uni.pred %p4, !%p1, 0xffffffff;
  selp.u32 %r6, 1, 0, %p2;
  selp.u32 %r7, 2, 0, %p3;
  selp.u32 %r8, 4, 0, %p4;
  or.b32 %r6, %r6, %r7;
  or.b32 %r6, %r6, %r8;
  shr.u32 %r9, %r2, 3;
  match.any.sync.b32 %r10, %r9, 0xffffffff;
  match.all.sync.b32 %r11|%p5, %r9, 0xffffffff;
  redux.sync.add.u32 %r12, %r2, 0xffffffff;
  sub.s32 %r13, 3, %r2;
  redux.sync.min.s32 %r14, %r13, 0xffffffff;
  redux.sync.xor.b32 %r15, %r2, 0xffffffff;
  elect.sync %r16|%p6, 0xffffffff;
  selp.u32 %r17, 1, 0, %p6;
  selp.u32 %r18, 1, 0, %p5;
  mul.wide.u32 %rd5, %r2, 36;
  add.s64 %rd6, %rd1, %rd5;
  st.global.u32 [%rd6], %r6;
  st.global.u32 [%rd6+4], %r10;
  st.global.u32 [%rd6+8], %r11;
  st.global.u32 [%rd6+12], %r12;
  st.global.u32 [%rd6+16], %r14;
  st.global.u32 [%rd6+20], %r15;
  st.global.u32 [%rd6+24], %r16;
  st.global.u32 [%rd6+28], %r17;
  st.global.u32 [%rd6+32], %r18;
  ret;)"),
                       0, {}, 288);
  for (uint32_t i = 0; i < 32; ++i) {
    const uint32_t* v = &out[i * 9];
    EXPECT_EQ(v[0], 1u);
    EXPECT_EQ(v[1], 0xffu << (i / 8 * 8));
    EXPECT_EQ(v[2], 0u);
    EXPECT_EQ(v[3], 496u);
    EXPECT_EQ(v[4], static_cast<uint32_t>(-28));
    EXPECT_EQ(v[5], 0u);
    EXPECT_EQ(v[6], 0u);
    EXPECT_EQ(v[7], i == 0 ? 1u : 0u);
    EXPECT_EQ(v[8], 0u);
  }
}

TEST_P(MachineOrders, LocalArraysBelongToTheirLane) {
  const auto out = run(kernel(R"(
  .local .align 16 .b8 depot[64];
  mov.u64 %rd5, depot;
  cvta.local.u64 %rd6, %rd5;
  mov.u32 %r6, 0;
FILL:
  mul.wide.u32 %rd7, %r6, 4;
  add.s64 %rd8, %rd6, %rd7;
  mad.lo.u32 %r7, %r6, 100, %r2;
  st.u32 [%rd8], %r7;
  add.u32 %r6, %r6, 1;
  setp.lt.u32 %p1, %r6, 16;
  @%p1 bra FILL;
  and.b32 %r8, %r2, 15;
  mul.wide.u32 %rd9, %r8, 4;
  add.s64 %rd10, %rd5, %rd9;
  ld.local.u32 %r9, [%rd10];
  st.global.u32 [%rd2], %r9;
  ret;)"),
                       0);
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], (i % 16) * 100 + i);
}

TEST_P(MachineOrders, NarrowTypesAndVectors) {
  sim::GlobalMemory& memory = memory_;
  Buffer<uint8_t> in(memory, std::vector<uint8_t>{0xff, 0x80, 0x7f, 1, 2, 3, 4, 5, 0xfe, 0xff, 0xff, 0xff, 9, 9, 9, 9});
  Buffer<uint64_t> out(memory, 8, 0);
  Shape shape;
  shape.order = GetParam();
  shape.block = {1, 1, 1};
  sim_test::run_ptx(R"(
.visible .entry k(.param .u64 a, .param .u64 b)
{
  .reg .b64 %rd<20>; .reg .b32 %r<20>; .reg .b16 %rs<8>;
  ld.param.u64 %rd1, [a];
  ld.param.u64 %rd2, [b];
  ld.global.s8 %rs1, [%rd1];
  cvt.s64.s16 %rd3, %rs1;
  st.global.u64 [%rd2], %rd3;
  ld.global.nc.L1::no_allocate.u8 %r1, [%rd1+1];
  cvt.u64.u32 %rd4, %r1;
  st.global.u64 [%rd2+8], %rd4;
  ld.global.s32 %rd5, [%rd1+8];
  st.global.u64 [%rd2+16], %rd5;
  ld.volatile.global.v4.u8 {%r2, %r3, %r4, %r5}, [%rd1+4];
  mad.lo.u32 %r6, %r5, 1000, %r2;
  cvt.u64.u32 %rd6, %r6;
  st.relaxed.gpu.global.u64 [%rd2+24], %rd6;
  ld.global.v2.u64 {%rd7, %rd8}, [%rd1];
  st.global.v2.b64 [%rd2+32], {%rd8, %rd7};
  st.global.v4.b16 [%rd2+48], {%rs1, 1, 2, 3};
  ret;
})",
                    "k", Params().add(in.address()).add(out.address()), memory, shape);
  EXPECT_EQ(out[0], ~0ull);
  EXPECT_EQ(out[1], 0x80u);
  EXPECT_EQ(out[2], static_cast<uint64_t>(-2));
  EXPECT_EQ(out[3], 5002u);
  EXPECT_EQ(out[4], 0x09090909fffffffeull);
  EXPECT_EQ(out[5], 0x05040302017f80ffull);
  EXPECT_EQ(out[6], 0x000300020001ffffull);
  EXPECT_EQ(out[7], 0u);
}

TEST_P(MachineOrders, AtomicsOnSharedMemory) {
  const auto out = run(kernel(R"(
  .shared .align 8 .b8 cell[16];
  mov.u32 %r6, cell;
  setp.eq.u32 %p1, %r2, 0;
  @%p1 st.shared.v2.u64 [%r6], {0, 0};
  bar.sync 0;
  atom.shared.add.u32 %r7, [%r6], %r2;
  cvt.u64.u32 %rd5, %r6;
  cvta.shared.u64 %rd6, %rd5;
  atom.add.u64 %rd7, [%rd6+8], 5;
  bar.sync 0;
  ld.shared.u32 %r8, [%r6];
  ld.u64 %rd8, [%rd6+8];
  cvt.u32.u64 %r9, %rd8;
  add.u32 %r8, %r8, %r9;
  st.global.u32 [%rd2], %r8;
  ret;)"),
                       0, {{1}, {128, 1, 1}});
  EXPECT_EQ(out, std::vector<uint32_t>(128, 127 * 64 + 640));
}

TEST_P(MachineOrders, MatricesGoToSharedMemoryAndBack) {
  const auto out = run(kernel(R"(
  .shared .align 16 .b8 tile[512];
  mov.u32 %r6, tile;
  shl.b32 %r7, %r2, 4;
  add.u32 %r7, %r6, %r7;
  mul.lo.u32 %r8, %r2, 0x10001;
  add.u32 %r9, %r8, 0x00200020;
  add.u32 %r10, %r8, 0x00400040;
  add.u32 %r11, %r8, 0x00600060;
  stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r7], {%r8, %r9, %r10, %r11};
  bar.warp.sync 0xffffffff;
  ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r12, %r13, %r14, %r15}, [%r7];
  movmatrix.sync.aligned.m8n8.trans.b16 %r16, %r14;
  ld.shared.u16 %r17, [%r7];
  shl.b32 %r17, %r17, 16;
  or.b32 %r16, %r16, 0;
  mul.wide.u32 %rd5, %r2, 12;
  add.s64 %rd6, %rd1, %rd5;
  st.global.u32 [%rd6], %r12;
  st.global.u32 [%rd6+4], %r16;
  st.global.u32 [%rd6+8], %r17;
  ret;)"),
                       0, {}, 96);
  // Thread t held value t (plus 32 m) twice in matrix m: element (i, j) of matrix m is 4 i + j / 2 + 32 m.
  for (uint32_t t = 0; t < 32; ++t) {
    const uint32_t i = 2 * (t % 4), j = t / 4;
    EXPECT_EQ(out[t * 3], (4 * i + j / 2) | (4 * (i + 1) + j / 2) << 16);
    EXPECT_EQ(out[t * 3 + 1], (t + 64) * 0x10001);
    EXPECT_EQ(out[t * 3 + 2], (4 * (t % 8) + 32 * (t / 8)) << 16);
  }
}

TEST_P(MachineOrders, DynamicSharedMemoryFollowsTheStaticPart) {
  Shape shape;
  shape.dynamic_shared = 256;
  const auto out = run(kernel(R"(
  .shared .align 4 .b8 fixed[40];
  mov.u32 %r6, dynamic;
  mov.u32 %r7, fixed;
  and.b32 %r8, %r6, 1023;
  shl.b32 %r9, %r2, 2;
  add.u32 %r10, %r6, %r9;
  st.shared.u32 [%r10+128], %r2;
  ld.shared.u32 %r11, [%r10+128];
  setp.ge.u32 %p1, %r6, 40;
  selp.u32 %r12, 100, 0, %p1;
  add.u32 %r11, %r11, %r12;
  add.u32 %r11, %r11, %r8;
  add.u32 %r11, %r11, %r7;
  st.global.u32 [%rd2], %r11;
  ret;)",
                              ".extern .shared .align 128 .b8 dynamic[];"),
                       0, shape);
  EXPECT_EQ(out, iota(32, 1, 100));
}

// ptxas takes a variable's name as an element of a vector.
TEST_P(MachineOrders, AVectorMayNameASharedVariable) {
  const auto out = run(kernel(R"(
  st.global.v2.u32 [%rd1], {word, 7};
  ld.global.u32 %r6, [%rd1];
  st.shared.u32 [%r6], %r2;
  ld.shared.u32 %r7, [%r6];
  st.global.u32 [%rd1+4], %r7;
  ret;)",
                              ".shared .align 16 .b32 word;"),
                       0, {{1}, {1, 1, 1}}, 2);
  EXPECT_EQ(out[0] % 16, 0u);
  EXPECT_EQ(out[1], 0u);
}

TEST_P(MachineOrders, BlocksOfAClusterReadEachOther) {
  Shape shape;
  shape.grid = {4, 1, 1};
  shape.cluster = {2, 1, 1};
  const auto out = run(kernel(R"(
  .shared .align 4 .b8 cell[128];
  mov.u32 %r6, cell;
  shl.b32 %r7, %r2, 2;
  add.u32 %r7, %r6, %r7;
  mad.lo.u32 %r8, %r3, 100, %r2;
  st.shared.u32 [%r7], %r8;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  mov.u32 %r9, %cluster_ctarank;
  xor.b32 %r9, %r9, 1;
  mapa.shared::cluster.u32 %r10, %r7, %r9;
  ld.shared::cluster.u32 %r11, [%r10];
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  st.global.u32 [%rd2], %r11;
  ret;)"),
                       0, shape);
  for (uint32_t b = 0; b < 4; ++b)
    for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[b * 32 + i], (b ^ 1) * 100 + i);
}

TEST_P(MachineOrders, ALaneMayWaitForAnotherOfItsWarp) {
  // Lane 0 spins on a flag that lane 5 sets after the branch: independent progress within a warp.
  const auto out = run(kernel(R"(
  .shared .align 4 .b8 flag[4];
  mov.u32 %r6, flag;
  st.shared.u32 [%r6], 0;
  bar.warp.sync 0xffffffff;
  setp.ne.u32 %p1, %r2, 0;
  @%p1 bra OTHERS;
SPIN:
  ld.volatile.shared.u32 %r7, [%r6];
  setp.eq.u32 %p2, %r7, 0;
  @%p2 bra SPIN;
  bra END;
OTHERS:
  setp.eq.u32 %p3, %r2, 5;
  @%p3 st.volatile.shared.u32 [%r6], 9;
  mov.u32 %r7, 1;
END:
  st.global.u32 [%rd2], %r7;
  ret;)"),
                       0);
  EXPECT_EQ(out[0], 9u);
  EXPECT_EQ(out[31], 1u);
}

TEST(Machine, ResultsDoNotDependOnHostThreads) {
  sim::GlobalMemory memory;
  const std::string text = kernel(R"(
  mov.u32 %r6, %r5;
  mov.u32 %r7, 0;
LOOP:
  mul.lo.u32 %r6, %r6, 1664525;
  add.u32 %r6, %r6, 1013904223;
  add.u32 %r7, %r7, 1;
  setp.lt.u32 %p1, %r7, %r1;
  @%p1 bra LOOP;
  st.global.u32 [%rd2], %r6;
  ret;)");
  std::vector<std::vector<uint32_t>> results;
  for (int threads : {1, 2, 5}) {
    Buffer<uint32_t> out(memory, 37 * 64);
    Shape shape;
    shape.grid = {37, 1, 1};
    shape.block = {64, 1, 1};
    shape.threads = threads;
    sim_test::run_ptx(text, "k", Params().add(out.address()).add(50u), memory, shape);
    results.push_back(out.values());
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(Machine, AtomicSumsAndLocks) {
  for (const sim::Order& order : sim_test::all_orders()) {
    sim::GlobalMemory memory;
    Buffer<uint32_t> out(memory, 8, 0u);
    Shape shape;
    shape.grid = {4, 1, 1};
    shape.block = {96, 1, 1};
    shape.threads = 2;
    shape.order = order;
    sim_test::run_ptx(kernel(R"(
  atom.global.add.u32 %r6, [%rd1], 3;
  red.global.max.u32 [%rd1+4], %r5;
  atom.global.inc.u32 %r7, [%rd1+8], 9;
  mov.f32 %f1, 0f3F000000;
  red.global.add.f32 [%rd1+12], %f1;
SPIN:
  atom.acquire.gpu.global.cas.b32 %r8, [%rd1+16], 0, 1;
  setp.eq.u32 %p1, %r8, 0;
  @%p1 ld.volatile.global.u32 %r9, [%rd1+20];
  @%p1 add.u32 %r9, %r9, %r5;
  @%p1 st.volatile.global.u32 [%rd1+20], %r9;
  @%p1 fence.acq_rel.gpu;
  @%p1 atom.release.gpu.global.exch.b32 %r8, [%rd1+16], 0;
  @!%p1 bra SPIN;
  setp.lt.u32 %p2, %r5, 8;
  mov.b32 %r10, 0x40003f80;
  @%p2 red.global.add.noftz.bf16x2 [%rd1+24], %r10;
  mov.u64 %rd5, 7;
  ret;)"),
                      "k", Params().add(out.address()).add(0u), memory, shape);
    EXPECT_EQ(out[0], 3u * 384);
    EXPECT_EQ(out[1], 383u);
    EXPECT_EQ(out[2], 384u % 10);
    EXPECT_EQ(out[3], 0x43400000u);  // 192
    EXPECT_EQ(out[4], 0u);
    EXPECT_EQ(out[5], 383u * 192);
    EXPECT_EQ(out[6], 0x41804100u);  // 16 and 8
  }
}

// Warp 0 copies 128 bytes into shared memory and waits for them; warp 1 learns of it by a flag only. Whether it may
// read them depends on how the flag is written and read.
std::string flag_kernel(const std::string& write, const std::string& read) {
  return kernel(R"(
  .shared .align 128 .b8 tile[128];
  .shared .align 8 .b8 barrier[8];
  .shared .align 4 .b8 flag[4];
  mov.u32 %r10, tile;
  mov.u32 %r11, barrier;
  mov.u32 %r12, flag;
  setp.ne.u32 %p1, %r2, 0;
  @%p1 bra READY;
  mbarrier.init.shared::cta.b64 [%r11], 1;
  fence.mbarrier_init.release.cluster;
  st.shared.u32 [%r12], 0;
READY:
  bar.sync 0;
  setp.ge.u32 %p2, %r2, 32;
  @%p2 bra READER;
  setp.ne.u32 %p3, %r2, 0;
  @%p3 exit;
  mbarrier.arrive.expect_tx.shared::cta.b64 %rd5, [%r11], 128;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10], [%rd1], 128, [%r11];
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r11], 0;
  @!%p4 bra WAIT;
)" + write + R"(
  exit;
READER:
)" + read + R"(
  setp.eq.u32 %p5, %r13, 0;
  @%p5 bra READER;
)" + (read.find("relaxed") != std::string::npos ? "  fence.acq_rel.cta;\n" : "") +
                R"(
  and.b32 %r14, %r2, 31;
  shl.b32 %r14, %r14, 2;
  add.u32 %r14, %r10, %r14;
  ld.shared.u32 %r15, [%r14];
  st.global.u32 [%rd2], %r15;
  ret;)");
}

TEST_P(MachineOrders, WhatAFlagReleasesMayBeRead) {
  Shape shape;
  shape.block = {64, 1, 1};
  shape.order = GetParam();
  const auto text_of = [&](const char* write, const char* read) {
    Buffer<uint32_t> out(memory_, iota(64, 3, 1));
    const std::string text =
        sim_test::fault_of(flag_kernel(write, read), "k", Params().add(out.address()).add(0u), memory_, shape);
    if (text.empty()) {
      EXPECT_EQ(std::vector<uint32_t>(out.data() + 32, out.data() + 64), iota(32, 3, 1));
    }
    return text;
  };
  EXPECT_EQ(text_of("st.release.cta.shared.u32 [%r12], 1;", "ld.acquire.cta.shared.u32 %r13, [%r12];"), "");
  EXPECT_EQ(
      text_of("fence.acq_rel.cta; st.relaxed.cta.shared.u32 [%r12], 1;", "ld.relaxed.cta.shared.u32 %r13, [%r12];"),
      "");
  EXPECT_EQ(
      text_of("atom.release.cta.shared.exch.b32 %r13, [%r12], 1;", "atom.acquire.cta.shared.or.b32 %r13, [%r12], 0;"),
      "");
  EXPECT_THAT(text_of("st.relaxed.cta.shared.u32 [%r12], 1;", "ld.acquire.cta.shared.u32 %r13, [%r12];"),
              HasSubstr("data in flight"));
  EXPECT_THAT(text_of("st.release.cta.shared.u32 [%r12], 1;", "ld.volatile.shared.u32 %r13, [%r12];"),
              HasSubstr("data in flight"));
}

TEST(Machine, PrintsForTheKernel) {
  sim::GlobalMemory memory;
  Buffer<char> format(memory,
                      std::vector<char>{'%', '0', '4', 'd', ' ', '%', 'l', 'l', 'x', ' ', '%', '.', '1', 'f', '\n', 0});
  const std::string text = R"(
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.visible .entry k(.param .u64 p)
{
  .local .align 8 .b8 arguments[24];
  .reg .b64 %rd<8>; .reg .b32 %r<4>;
  ld.param.u64 %rd1, [p];
  mov.u64 %rd2, arguments;
  cvta.local.u64 %rd3, %rd2;
  st.local.u32 [%rd2], 42;
  st.local.u64 [%rd2+8], 0x123456789ab;
  st.local.f64 [%rd2+16], 0d3FF8000000000000;
  {
    .param .b64 f; .param .b64 a; .param .b32 r;
    st.param.b64 [f], %rd1;
    st.param.b64 [a], %rd3;
    call.uni (r), vprintf, (f, a);
    ld.param.b32 %r1, [r];
  }
  ret;
})";
  Shape shape;
  shape.block = {2, 1, 1};
  testing::internal::CaptureStdout();
  sim_test::run_ptx(text, "k", Params().add(format.address()), memory, shape);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "0042 123456789ab 1.5\n0042 123456789ab 1.5\n");
}

// Each conversion prints as the C library prints the same value, and the result is the number of arguments.
TEST(Machine, PrintsEveryConversion) {
  sim::GlobalMemory memory;
  Buffer<char> word(memory, std::vector<char>{'w', 'o', 'r', 'd', 0});
  struct Row {
    std::string format;
    std::vector<uint64_t> arguments;
    uint32_t taken;
    std::string printed;
  };
  const uint64_t minus = static_cast<uint32_t>(-7);
  const std::vector<Row> rows = {
      {"%d|%i", {minus | minus << 32}, 2, "-7|-7"},
      {"%u|%x", {minus | minus << 32}, 2, "4294967289|fffffff9"},
      {"%o|%X", {8 | 0xabull << 32}, 2, "10|AB"},
      {"%ld %lld", {~uint64_t{0}, uint64_t{1} << 40}, 2, "-1 1099511627776"},
      {"%zu", {~uint64_t{0}}, 1, "18446744073709551615"},
      {"%c%c", {'a' | uint64_t{'b'} << 32}, 2, "ab"},
      {"%s!", {word.address()}, 1, "word!"},
      {"%p", {0x1234}, 1, "0x1234"},
      {"100%% %5d", {42}, 1, "100%    42"},
      {"%-5d|%+d", {42 | uint64_t{42} << 32}, 2, "42   |+42"},
      {"%*d", {6 | uint64_t{42} << 32}, 2, "    42"},
      {"%8.3f|%e", {std::bit_cast<uint64_t>(-2.5), std::bit_cast<uint64_t>(1e10)}, 2, "  -2.500|1.000000e+10"},
      {"%d %g", {5, std::bit_cast<uint64_t>(0.5)}, 2, "5 0.5"},  // the double is aligned
      {"none", {0}, 0, "none"},
      {"half %", {0}, 0, "half "},
  };
  for (const Row& row : rows) {
    std::vector<char> text(row.format.begin(), row.format.end());
    text.push_back(0);
    Buffer<char> format(memory, text);
    Buffer<uint64_t> arguments(memory, row.arguments);
    Buffer<uint32_t> out(memory, 1, 77u);
    Shape shape;
    shape.block = {1, 1, 1};
    testing::internal::CaptureStdout();
    sim_test::run_ptx(R"(
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.visible .entry k(.param .u64 p_format, .param .u64 p_arguments, .param .u64 p_out)
{
  .reg .b64 %rd<4>; .reg .b32 %r;
  ld.param.u64 %rd1, [p_format];
  ld.param.u64 %rd2, [p_arguments];
  ld.param.u64 %rd3, [p_out];
  {
    .param .b64 f; .param .b64 a; .param .b32 r;
    st.param.b64 [f], %rd1;
    st.param.b64 [a], %rd2;
    call.uni (r), vprintf, (f, a);
    ld.param.b32 %r, [r];
  }
  st.global.u32 [%rd3], %r;
  ret;
})",
                      "k", Params().add(format.address()).add(arguments.address()).add(out.address()), memory, shape);
    EXPECT_EQ(testing::internal::GetCapturedStdout(), row.printed) << row.format;
    EXPECT_EQ(out[0], row.taken) << row.format;
  }
}

// Warp 1 leaves long after warp 0 has come to the barrier. Warp 0 can go on then, and so the copy that it has issued is
// not performed yet in lazy order.
TEST_P(MachineOrders, ABarrierEndsWhenTheLastWarpLeaves) {
  Shape shape;
  shape.block = {64, 1, 1};
  const std::vector<uint32_t> landed = run(kernel(R"(
  .shared .align 16 .b8 buffer[16];
  .shared .align 8 .b64 bar;
  mov.u32 %r10, buffer;
  mov.u32 %r11, bar;
  setp.ge.u32 %p1, %r2, 32;
  @%p1 bra LEAVE;
  setp.eq.u32 %p2, %r2, 0;
  @!%p2 bra READY;
  mbarrier.init.shared::cta.b64 [%r11], 1;
  fence.mbarrier_init.release.cluster;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 16;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10], [%rd1], 16, [%r11];
READY:
  bar.sync 0;
  @!%p2 ret;
  mbarrier.test_wait.parity.shared::cta.b64 %p3, [%r11], 0;
  selp.u32 %r12, 1, 0, %p3;
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r11], 0;
  @!%p3 bra WAIT;
  st.global.u32 [%rd1+64], %r12;
  ret;
LEAVE:
  mov.u32 %r12, 5000;
COUNT:
  sub.u32 %r12, %r12, 1;
  setp.ne.u32 %p3, %r12, 0;
  @%p3 bra COUNT;
  ret;
)"),
                                           0, shape);
  if (GetParam().mode == sim::Mode::Random) return;
  EXPECT_EQ(landed[16], GetParam().mode == sim::Mode::Eager ? 1u : 0u);
}

TEST(Machine, NamesTheAllocationThatAnAddressMisses) {
  sim::GlobalMemory memory;
  Buffer<uint32_t> out(memory, 40);
  Shape shape;
  shape.block = {64, 1, 1};
  Hazard kind{};
  const std::string text = sim_test::fault_of(kernel("st.global.u32 [%rd2], %r2; ret;"), "k",
                                              Params().add(out.address()).add(0u), memory, shape, &kind);
  EXPECT_EQ(kind, Hazard::Memory);
  EXPECT_THAT(text, AllOf(HasSubstr("just past the end of the allocation of 160 bytes"), HasSubstr("warp 1, lane 8"),
                          HasSubstr("block (0,0,0)"), HasSubstr("ptx line")));
}

TEST(Machine, NamesMemoryThatWasFreed) {
  sim::GlobalMemory memory;
  uint64_t address = 0;
  { address = Buffer<uint32_t>(memory, 64).address(); }
  const std::string text =
      sim_test::fault_of(kernel("ld.global.u32 %r6, [%rd2]; ret;"), "k", Params().add(address).add(0u), memory, {});
  EXPECT_THAT(text, HasSubstr("was freed: it belonged to the allocation of 256 bytes"));
}

TEST(Machine, MisalignedAddress) {
  sim::GlobalMemory memory;
  Buffer<uint32_t> out(memory, 64);
  const std::string text = sim_test::fault_of(kernel("st.global.v2.u32 [%rd2], {%r2, %r2}; ret;"), "k",
                                              Params().add(out.address()).add(0u), memory, {});
  EXPECT_THAT(text, AllOf(HasSubstr("misaligned address"), HasSubstr("multiple of 8"), HasSubstr("lane 1")));
}

TEST(Machine, LocalAndSharedBounds) {
  sim::GlobalMemory memory;
  Buffer<uint32_t> out(memory, 64);
  const Params params = Params().add(out.address()).add(0u);
  EXPECT_THAT(
      sim_test::fault_of(kernel(".local .align 4 .b8 a[16]; mov.u64 %rd5, a; st.local.u32 [%rd5+16], %r2; ret;"), "k",
                         params, memory, {}),
      HasSubstr("local memory"));
  EXPECT_THAT(sim_test::fault_of(kernel(".shared .align 4 .b8 a[64]; mov.u32 %r6, a; shl.b32 %r7, %r2, 2; add.u32 %r6, "
                                        "%r6, %r7; st.shared.u32 [%r6], %r2; ret;"),
                                 "k", params, memory, {}),
              AllOf(HasSubstr("shared memory"), HasSubstr("lane 16")));
  EXPECT_THAT(
      sim_test::fault_of(kernel(".shared .align 4 .b8 a[64]; ld.shared.u32 %r6, [a+4]; ret;"), "k", params, memory, {}),
      HasSubstr("uninitialised"));
}

TEST(Machine, DeadlockSaysWhoWaitsWhere) {
  for (const sim::Order& order : sim_test::all_orders()) {
    sim::GlobalMemory memory;
    Buffer<uint32_t> out(memory, 96);
    Shape shape;
    shape.block = {96, 1, 1};
    shape.order = order;
    Hazard kind{};
    const std::string text = sim_test::fault_of(kernel(R"(
  setp.lt.u32 %p1, %r2, 64;
  @%p1 bra WAIT;
  bar.sync 2, 64;
  ret;
WAIT:
  bar.sync 1, 96;
  ret;)"),
                                                "k", Params().add(out.address()).add(0u), memory, shape, &kind);
    EXPECT_EQ(kind, Hazard::Deadlock) << text;
    EXPECT_THAT(text, AllOf(HasSubstr("3 warps wait"), HasSubstr("warp 0: ptx line"),
                            HasSubstr("named barrier 1: 64 of 96 threads"), HasSubstr("warp 2: ptx line"),
                            HasSubstr("named barrier 2: 32 of 64 threads"), HasSubstr("nothing is pending")));
  }
}

TEST(Machine, DivergentAlignedInstruction) {
  for (const sim::Order& order : sim_test::all_orders()) {
    sim::GlobalMemory memory;
    Buffer<uint32_t> out(memory, 32);
    Shape shape;
    shape.order = order;
    Hazard kind{};
    const std::string text = sim_test::fault_of(kernel(R"(
  setp.lt.u32 %p1, %r2, 16;
  @%p1 bra OTHER;
  bar.sync 0;
  ret;
OTHER:
  bar.sync 1;
  ret;)"),
                                                "k", Params().add(out.address()).add(0u), memory, shape, &kind);
    EXPECT_EQ(kind, Hazard::IllegalUse) << text;
    EXPECT_THAT(text,
                AllOf(HasSubstr("divergent .aligned instruction"), HasSubstr("0x0000ffff"), HasSubstr("0xffff0000")));
  }
}

TEST(Machine, BarrierCountsAreChecked) {
  sim::GlobalMemory memory;
  Buffer<uint32_t> out(memory, 64);
  const Params params = Params().add(out.address()).add(0u);
  Shape shape;
  shape.block = {64, 1, 1};
  EXPECT_THAT(sim_test::fault_of(kernel("bar.sync 1, 33; ret;"), "k", params, memory, shape),
              HasSubstr("multiple of 32"));
  EXPECT_THAT(sim_test::fault_of(kernel("bar.sync 16; ret;"), "k", params, memory, shape),
              HasSubstr("named barrier 16"));
  EXPECT_THAT(sim_test::fault_of(kernel("bar.sync 1, 96; ret;"), "k", params, memory, shape),
              HasSubstr("waits for 96 threads"));
  EXPECT_THAT(sim_test::fault_of(kernel("bar.arrive 1, 64; bar.arrive 1, 64; ret;"), "k", params, memory, shape),
              HasSubstr("arrives twice"));
}

TEST(Machine, TrapAndUnknownInstructionsNameTheirLine) {
  sim::GlobalMemory memory;
  Buffer<uint32_t> out(memory, 64);
  EXPECT_THAT(sim_test::fault_of(kernel("trap;"), "k", Params().add(out.address()).add(0u), memory, {}),
              HasSubstr("trap at ptx line"));
  try {
    sim_test::prepare_ptx(kernel("\nfrobnicate.u32 %r1, %r2;\nret;"), "k");
    FAIL() << "an unknown instruction was accepted";
  } catch (const sim::ptx::ParseError& e) {
    EXPECT_THAT(e.what(), HasSubstr("frobnicate.u32"));
    EXPECT_GT(e.where.line, 10);
  }
}

TEST(Machine, TargetsMustFit) {
  const std::string body = "\n.address_size 64\n.visible .entry k() { ret; }\n";
  const auto accepts = [&](const std::string& target, int arch) {
    try {
      sim_test::prepare_ptx(".version 8.7\n.target " + target + body, "k", arch);
      return true;
    } catch (const sim::ptx::ParseError&) {
      return false;
    }
  };
  EXPECT_TRUE(accepts("sm_90a", 90));
  EXPECT_TRUE(accepts("sm_80", 90));
  EXPECT_TRUE(accepts("sm_80", 100));
  EXPECT_TRUE(accepts("sm_100a", 100));
  EXPECT_FALSE(accepts("sm_90a", 100));
  EXPECT_FALSE(accepts("sm_100a", 90));
  EXPECT_FALSE(accepts("sm_100", 90));
}

TEST(Machine, TooMuchSharedMemoryIsRefused) {
  sim::GlobalMemory memory;
  Buffer<uint32_t> out(memory, 64);
  Shape shape;
  shape.dynamic_shared = 232449;
  EXPECT_THAT(sim_test::fault_of(kernel("ret;"), "k", Params().add(out.address()).add(0u), memory, shape),
              HasSubstr("over the limit"));
}

TEST(Machine, RegistersThatAreNeverLiveTogetherShareARow) {
  // A chain of 400 registers, each used once, and one that lives across all of them.
  std::string body = "mov.u32 %q0, %r2;\n";
  for (int i = 1; i < 400; ++i) body += "add.u32 %q" + std::to_string(i) + ", %q" + std::to_string(i - 1) + ", 1;\n";
  body += "add.u32 %q399, %q399, %r2;\nst.global.u32 [%rd2], %q399;\nret;";
  const auto prepared = sim_test::prepare_ptx(kernel(".reg .b32 %q<400>;\n" + body), "k");
  EXPECT_LT(prepared->variable_bytes, 30u * 256);
  sim::GlobalMemory memory;
  Buffer<uint32_t> out(memory, 32);
  sim_test::run_kernel(*prepared, Params().add(out.address()).add(0u), memory, {});
  EXPECT_EQ(out.values(), iota(32, 2, 399));
}

TEST(Memory, ExplainsAddresses) {
  sim::GlobalMemory memory;
  const uint64_t a = memory.allocate(1000);
  EXPECT_EQ(a % 256, 0u);
  EXPECT_TRUE(memory.contains(a + 999, 1));
  EXPECT_FALSE(memory.contains(a + 999, 2));
  EXPECT_EQ(memory.find(a + 5).begin, a);
  EXPECT_EQ(memory.find(a + 1000).end, 0u);
  char at[24];
  std::snprintf(at, sizeof at, "0x%llx", static_cast<unsigned long long>(a));
  const std::string name = std::string("the allocation of 1000 bytes at ") + at;
  constexpr uint64_t kNear = 16u << 20;
  EXPECT_EQ(memory.explain(a + 1000, 4), "is just past the end of " + name);
  EXPECT_EQ(memory.explain(a + 1001, 4), "is 1 byte past the end of " + name);
  EXPECT_EQ(memory.explain(a + 1016, 4), "is 16 bytes past the end of " + name);
  EXPECT_EQ(memory.explain(a + 1000 + kNear - 1, 4), "is 16777215 bytes past the end of " + name);
  EXPECT_EQ(memory.explain(a + 1000 + kNear, 4), "belongs to no allocation");
  EXPECT_EQ(memory.explain(a - 4, 4), "is 4 bytes before " + name);
  EXPECT_EQ(memory.explain(a - kNear + 1, 4), "is 16777215 bytes before " + name);
  EXPECT_EQ(memory.explain(a - kNear, 4), "belongs to no allocation");
  EXPECT_EQ(memory.explain(a + 996, 4), "is inside " + name);
  EXPECT_EQ(memory.explain(a + 996, 8), "begins 4 bytes before the end of " + name + " and passes it");
  EXPECT_EQ(memory.explain(16, 8), "belongs to no allocation");
  EXPECT_EQ(memory.used(), 1000u);
  EXPECT_FALSE(memory.free(a + 256));
  const uint64_t before = memory.version();
  EXPECT_TRUE(memory.free(a));
  EXPECT_NE(memory.version(), before);
  EXPECT_FALSE(memory.free(a));
  EXPECT_EQ(memory.explain(a, 4), "was freed: it belonged to " + name);
  EXPECT_EQ(memory.explain(a + 999, 4), "was freed: it belonged to " + name);
  EXPECT_EQ(memory.explain(a + 1000, 4), "belongs to no allocation");
}

TEST(Memory, AnAllocationHasBytesAndNoMoreThanAreLeft) {
  sim::GlobalMemory memory;
  EXPECT_EQ(memory.allocate(0), 0u);
  EXPECT_EQ(memory.allocate(memory.limit() + 1), 0u);
  EXPECT_NE(memory.allocate(1000), 0u);
  EXPECT_EQ(memory.allocate(memory.limit() - 999), 0u);
  EXPECT_EQ(memory.used(), 1000u);
}

}  // namespace
