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
