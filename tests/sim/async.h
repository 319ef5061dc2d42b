// SPDX-License-Identifier: Apache-2.0
// What the tests of asynchronous instructions share: a fixture that runs in every order, registers, a wait for an
// mbarrier, and a kernel of one warp around a body.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "tests/sim/run_ptx.h"

namespace sim_test {

// Waits for phase parity %2 of the mbarrier at %1; `label` must be new.
inline std::string wait(const std::string& barrier, const std::string& parity, const std::string& label) {
  return label + ": mbarrier.try_wait.parity.shared::cta.b64 %p9, [" + barrier + "], " + parity + ";\n @!%p9 bra " +
         label + ";\n";
}

inline const char* const kRegisters = R"(
  .reg .pred %p<12>; .reg .b16 %h<8>; .reg .b32 %r<80>; .reg .b64 %rd<40>; .reg .f32 %f<300>;
)";

class Orders : public testing::TestWithParam<sim::Order> {
 protected:
  Shape shape(uint32_t threads) const {
    Shape s;
    s.block = {threads, 1, 1};
    s.order = GetParam();
    return s;
  }
  sim::GlobalMemory memory_;
};

// A block of one warp in a cluster of `blocks`; %rd2 `p_in`, %rd3 `p_out`, %r1 a buffer, %r2 an mbarrier, %r3 the
// lane, %r4 the block's rank, %p1 lane 0.
inline std::string bulk_kernel(const std::string& body) {
  return R"(
.visible .entry k(.param .u64 p_in, .param .u64 p_out)
{
  .shared .align 128 .b8 buffer[8192];
  .shared .align 8 .b64 bar;)" +
         std::string(kRegisters) + R"(
  ld.param.u64 %rd2, [p_in];
  ld.param.u64 %rd3, [p_out];
  mov.u32 %r1, buffer;
  mov.u32 %r2, bar;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %cluster_ctarank;
  setp.eq.u32 %p1, %r3, 0;
  @%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
  @%p1 fence.mbarrier_init.release.cluster;
  barrier.cluster.arrive.relaxed.aligned;
  barrier.cluster.wait.aligned;
)" + body +
         "  ret;\n}\n";
}

}  // namespace sim_test
