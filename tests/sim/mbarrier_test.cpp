// SPDX-License-Identifier: Apache-2.0
// The phases and counts of mbarriers.
#include <gmock/gmock.h>

#include "tests/sim/async.h"

namespace {

using namespace sim_test;

TEST_P(Orders, MbarrierPhasesTurnARing) {
  // Warp 0 produces 20 values into two slots, warp 1 adds them up: full and empty barriers, parity waits.
  Buffer<uint32_t> in(memory_, 1, 0u), out(memory_, 1, 0u);
  sim_test::run_ptx(R"(
.visible .entry k(.param .u64 p_in, .param .u64 p_out)
{
  .shared .align 8 .b64 full[2];
  .shared .align 8 .b64 empty[2];
  .shared .align 16 .b32 slot[8];)" +
                        std::string(kRegisters) + R"(
  ld.param.u64 %rd3, [p_out];
  mov.u32 %r1, full;
  mov.u32 %r2, empty;
  mov.u32 %r5, slot;
  mov.u32 %r3, %tid.x;
  setp.eq.u32 %p1, %r3, 0;
  @!%p1 bra I;
  mbarrier.init.shared::cta.b64 [%r1], 32;
  mbarrier.init.shared::cta.b64 [%r1+8], 32;
  mbarrier.init.shared::cta.b64 [%r2], 1;
  mbarrier.init.shared::cta.b64 [%r2+8], 1;
I: bar.sync 0;
  mov.u32 %r6, 0;
  mov.u32 %r7, 0;
  setp.ge.u32 %p2, %r3, 32;
  @%p2 bra CONSUME;
PRODUCE:
  and.b32 %r8, %r6, 1;
  shr.u32 %r9, %r6, 1;
  and.b32 %r9, %r9, 1;
  xor.b32 %r10, %r9, 1;
  shl.b32 %r11, %r8, 3;
  add.u32 %r12, %r2, %r11;
)" + wait("%r12", "%r10", "W1") +
                        R"(
  shl.b32 %r13, %r8, 4;
  add.u32 %r13, %r5, %r13;
  @%p1 st.shared.u32 [%r13], %r6;
  add.u32 %r12, %r1, %r11;
  bar.warp.sync 0xffffffff;
  mbarrier.arrive.shared::cta.b64 _, [%r12];
  add.u32 %r6, %r6, 1;
  setp.lt.u32 %p3, %r6, 20;
  @%p3 bra PRODUCE;
  ret;
CONSUME:
  and.b32 %r8, %r6, 1;
  shr.u32 %r9, %r6, 1;
  and.b32 %r9, %r9, 1;
  shl.b32 %r11, %r8, 3;
  add.u32 %r12, %r1, %r11;
)" + wait("%r12", "%r9", "W2") +
                        R"(
  shl.b32 %r13, %r8, 4;
  add.u32 %r13, %r5, %r13;
  ld.shared.u32 %r14, [%r13];
  mad.lo.u32 %r7, %r7, 3, %r14;
  add.u32 %r12, %r2, %r11;
  bar.warp.sync 0xffffffff;
  setp.eq.u32 %p4, %r3, 32;
  @%p4 mbarrier.arrive.shared::cta.b64 _, [%r12];
  add.u32 %r6, %r6, 1;
  setp.lt.u32 %p3, %r6, 20;
  @%p3 bra CONSUME;
  @%p4 st.global.u32 [%rd3], %r7;
  ret;
}
)",
                    "k", Params().add(in.address()).add(out.address()), memory_, shape(64));
  uint32_t expected = 0;
  for (uint32_t i = 0; i < 20; ++i) expected = expected * 3 + i;
  EXPECT_EQ(out[0], expected);
}

// A producer looks ahead before it does what it looks for, as a pipeline of one stage has it: the answer is no, when
// the time limit of try_wait has passed. Beside it other warps wait, poll another mbarrier, or global memory.
TEST_P(Orders, MbarrierTryWaitComesToItsTimeLimit) {
  const auto body = [](const std::string& others) {
    return R"(
.visible .entry k(.param .u64 p_in, .param .u64 p_out)
{
  .shared .align 8 .b64 bar[2];)" +
           std::string(kRegisters) + R"(
  ld.param.u64 %rd2, [p_in];
  ld.param.u64 %rd3, [p_out];
  mov.u32 %r2, bar;
  mov.u32 %r3, %tid.x;
  mov.u32 %r7, 0;
  setp.eq.u32 %p1, %r3, 0;
  setp.ge.u32 %p2, %r3, 32;
  @%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
  @%p1 mbarrier.init.shared::cta.b64 [%r2+8], 1;
  bar.sync 0;
  @%p2 bra OTHERS;
AHEAD:
  mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2], 0;
  @%p3 bra END;
  mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2+8], 0;
  @%p3 bra END;
  add.u32 %r7, %r7, 1;
  setp.lt.u32 %p4, %r7, 500;
  @%p4 bra AHEAD;
  @%p1 st.global.u32 [%rd3], %r7;
  @%p1 st.release.gpu.global.u32 [%rd2], 1;
  @%p1 mbarrier.arrive.shared::cta.b64 _, [%r2+8];
  @%p1 mbarrier.arrive.shared::cta.b64 _, [%r2];
OTHERS:
)" + others +
           wait("%r2", "0", "W") +
           R"(
END:
  ret;
}
)";
  };
  const auto run = [&](const std::string& others) {
    Buffer<uint32_t> in(memory_, 1, 0u), out(memory_, 1, 0u);
    sim_test::run_ptx(body(others), "k", Params().add(in.address()).add(out.address()), memory_, shape(96));
    return out[0];
  };
  EXPECT_EQ(run(""), 500u);
  EXPECT_EQ(run("P: mbarrier.test_wait.parity.shared::cta.b64 %p5, [%r2+8], 0;\n  @!%p5 bra P;\n"), 500u);
  EXPECT_EQ(run("P: ld.acquire.gpu.global.u32 %r8, [%rd2];\n  setp.eq.u32 %p5, %r8, 0;\n  @%p5 bra P;\n"), 500u);
}

// Where some warp always rests in random order.
TEST_P(Orders, MbarrierThatManyWarpsWaitForInVain) {
  Buffer<uint32_t> in(memory_, 1, 0u), out(memory_, 1, 0u);
  Shape many = shape(1024);
  many.grid = many.cluster = {4, 1, 1};
  sim::Hazard kind{};
  const std::string said = fault_of(bulk_kernel(wait("%r2", "0", "W")), "k",
                                    Params().add(in.address()).add(out.address()), memory_, many, &kind);
  EXPECT_EQ(kind, sim::Hazard::Deadlock) << said;
  EXPECT_THAT(said, testing::HasSubstr("deadlock: no warp can run, 128 warps wait"));
}

TEST_P(Orders, MbarrierDropPendingCountAndTransactions) {
  Buffer<uint32_t> in(memory_, 1, 0u), out(memory_, 8, 0u);
  sim_test::run_ptx(bulk_kernel(R"(
  @!%p1 bra E;
  mbarrier.inval.shared::cta.b64 [%r2];
  mbarrier.init.shared::cta.b64 [%r2], 3;
  mbarrier.arrive.noComplete.shared::cta.b64 %rd5, [%r2], 2;
  mbarrier.pending_count.b64 %r10, %rd5;
  st.global.u32 [%rd3], %r10;
  mbarrier.arrive_drop.shared::cta.b64 %rd6, [%r2];
  mbarrier.pending_count.b64 %r10, %rd6;
  st.global.u32 [%rd3+4], %r10;
  mbarrier.test_wait.shared::cta.b64 %p3, [%r2], %rd6;
  selp.u32 %r10, 1, 0, %p3;
  st.global.u32 [%rd3+8], %r10;
  mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 48;
  mbarrier.arrive.shared::cta.b64 %rd5, [%r2], 2;
  mbarrier.test_wait.shared::cta.b64 %p3, [%r2], %rd5;
  selp.u32 %r10, 1, 0, %p3;
  st.global.u32 [%rd3+12], %r10;
  mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2], 48;
  mbarrier.test_wait.shared::cta.b64 %p3, [%r2], %rd5;
  selp.u32 %r10, 1, 0, %p3;
  st.global.u32 [%rd3+16], %r10;
  mbarrier.test_wait.parity.shared::cta.b64 %p3, [%r2], 0;
  selp.u32 %r10, 1, 0, %p3;
  st.global.u32 [%rd3+20], %r10;
E:
)"),
                    "k", Params().add(in.address()).add(out.address()), memory_, shape(32));
  EXPECT_THAT(out.values(), testing::ElementsAre(3, 1, 1, 0, 1, 0, 0, 0));
}

}  // namespace
