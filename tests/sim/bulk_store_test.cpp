// SPDX-License-Identifier: Apache-2.0
// st.bulk (PTX ISA 9.7.9.13) against what must be zero afterwards, and what it refuses.
#include <gmock/gmock.h>

#include "tests/sim/async.h"

namespace {

using namespace sim_test;

// Each word of shared memory is one, then `body` runs in lane 0 and all goes out.
std::string kernel(const std::string& body) {
  return R"(
.visible .entry k(.param .u64 p_out)
{
  .shared .align 128 .b8 s[4096];)" +
         std::string(kRegisters) + R"(
  ld.param.u64 %rd1, [p_out];
  mov.u32 %r1, s;
  mov.u32 %r2, %tid.x;
  setp.eq.u32 %p1, %r2, 0;
  mad.lo.u32 %r3, %r2, 4, %r1;
  mad.wide.u32 %rd2, %r2, 4, %rd1;
  st.shared.u32 [%r3], 1;
  cvt.u64.u32 %rd3, %r1;
  cvta.shared.u64 %rd3, %rd3;
  bar.sync 0;
  @!%p1 bra DONE;
)" + body +
         R"(
DONE:
  bar.sync 0;
  ld.shared.u32 %r4, [%r3];
  st.global.u32 [%rd2], %r4;
  ret;
})";
}

Shape blackwell() {
  Shape shape;
  shape.block = {1024, 1, 1};
  shape.arch = 100;
  return shape;
}

TEST(BulkStore, ClearsWhatItsSizeSays) {
  const struct {
    const char* body;
    size_t first, end;  // words
  } cases[] = {{"st.bulk.weak.shared::cta [%r1+512], 1024, 0;", 128, 384},
               {"st.bulk.shared::cta [%r1], 8, 0;", 0, 2},
               {"mov.u32 %r5, 4080; st.bulk.weak.shared::cta [%r1+16], %r5, 0;", 4, 1024},
               {"mov.u64 %rd5, 24; st.bulk [%rd3+40], %rd5, 0;", 10, 16},
               {"mov.u32 %r5, 48; st.bulk.weak [%rd3], %r5, 0;", 0, 12},
               {"mov.u32 %r5, 0; st.bulk.shared::cta [%r1], %r5, 0;", 0, 0}};
  for (const auto& c : cases) {
    for (const sim::Order& order : all_orders()) {
      sim::GlobalMemory memory;
      Buffer<uint32_t> out(memory, size_t{1024}, 7u);
      Shape shape = blackwell();
      shape.order = order;
      run_ptx(kernel(c.body), "k", Params().add(out.address()), memory, shape);
      for (size_t i = 0; i < 1024; ++i) ASSERT_EQ(out[i], i >= c.first && i < c.end ? 0 : 1) << c.body << " " << i;
    }
  }
}

TEST(BulkStore, IsRefusedInWords) {
  sim::GlobalMemory memory;
  Buffer<uint32_t> out(memory, size_t{1024}, 7u);
  const auto said = [&](const std::string& body) {
    return fault_of(kernel(body), "k", Params().add(out.address()), memory, blackwell());
  };
  EXPECT_THAT(said("st.bulk.shared::cta [%r1], 12, 0;"), testing::HasSubstr("st.bulk of 12 bytes"));
  EXPECT_THAT(said("st.bulk.shared::cta [%r1], 16777224, 0;"), testing::HasSubstr("st.bulk of 16777224 bytes"));
  EXPECT_THAT(said("st.bulk.shared::cta [%r1+4088], 16, 0;"), testing::HasSubstr("memory: "));
  EXPECT_NE(said("st.bulk [%rd1], 16, 0;"), "");
  // Another lane's read of what lane 0 has cleared needs an order.
  EXPECT_THAT(fault_of(R"(
.visible .entry k() {
  .shared .align 8 .b8 s[128];
  .reg .b32 %r<4>; .reg .pred %p;
  mov.u32 %r1, %laneid;
  setp.eq.u32 %p, %r1, 0;
  @%p st.bulk.shared::cta [s], 128, 0;
  ld.shared.u32 %r2, [s+64];
  ret;
})",
                       "k", Params(), memory, blackwell()),
              testing::HasSubstr("which lane 0 of the same warp wrote"));
  const auto decoded = [](const std::string& instruction, int arch) -> std::string {
    try {
      prepare_ptx(".visible .entry k() { .reg .b32 %r<4>; .reg .b64 %d<4>;\n" + instruction + ";\nret; }", "k", arch);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(decoded("st.bulk [%d1], %d2, 0", 100), "");
  EXPECT_THAT(decoded("st.bulk [%d1], %d2, 0", 90), testing::HasSubstr("it needs sm_100 or later"));
  EXPECT_THAT(decoded("st.bulk [%d1], %d2, 1", 100), testing::HasSubstr("the value that is stored must be 0"));
  EXPECT_THAT(decoded("st.bulk [%r1], %d2, 0", 100), testing::HasSubstr("a generic address has 64 bits"));
  EXPECT_THAT(decoded("st.bulk.global [%d1], %d2, 0", 100), testing::HasSubstr("the modifier .global is not known"));
}

}  // namespace
