// SPDX-License-Identifier: Apache-2.0
// Bulk copies and cp.async against direct computation: reductions, multicast, zero fill.
#include <gmock/gmock.h>

#include <bit>
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

// A kernel that stores bytes 3, 10, 17, ... of shared memory to p_out through `copy`, whose mask is the parameter.
std::string masked_kernel(const std::string& copy) {
  return R"(
.visible .entry k(.param .u64 p_out, .param .u16 p_mask)
{
  .shared .align 128 .b8 buffer[512];)" +
         std::string(sim_test::kRegisters) + R"(
  ld.param.u64 %rd3, [p_out];
  ld.param.u16 %h1, [p_mask];
  mov.u32 %r1, buffer;
  mov.u32 %r3, %tid.x;
  setp.eq.u32 %p1, %r3, 0;
  add.u32 %r4, %r1, %r3;
  mad.lo.u32 %r5, %r3, 7, 3;
  st.shared.u8 [%r4], %r5;
  createpolicy.fractional.L2::evict_first.b64 %rd5, 1.0;
  mov.u32 %r6, 96;
  fence.proxy.async.shared::cta;
  bar.sync 0;
  @!%p1 bra E;
)" + copy +
         R"(
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
E:
  ret;
}
)";
}

TEST_P(Orders, BulkStoreOfMaskedBytes) {
  const struct {
    const char* copy;
    uint32_t first, bytes;  // in shared memory
  } copies[] = {
      {"cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd3], [%r1], 512, %h1;", 0, 512},
      {"cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd3+16], [%r1+32], %r6, %h1;", 32, 96},
      {"cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.cp_mask [%rd3], [%r1], 16, %rd5, %h1;", 0, 16},
      {"cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd3], [%r1], 0, %h1;", 0, 0}};
  for (const auto& copy : copies) {
    const uint32_t to = copy.first / 2;
    for (const uint16_t mask : {0x0000, 0xffff, 0x8001, 0x0ff0, 0x5a3c, 0x00ff, 0x0001}) {
      Buffer<uint8_t> out(memory_, 544, uint8_t{0xee});
      sim::Statistics statistics;
      Shape with_statistics = shape(512);
      with_statistics.arch = 100;
      with_statistics.statistics = &statistics;
      sim_test::run_ptx(masked_kernel(copy.copy), "k", Params().add(out.address()).add(mask), memory_, with_statistics);
      for (uint32_t i = 0; i < 544; ++i) {
        const bool written = i >= to && i < to + copy.bytes && (mask >> i % 16 & 1) != 0;
        ASSERT_EQ(out[i], written ? uint8_t((copy.first + i - to) * 7 + 3) : 0xee) << copy.copy << mask << " " << i;
      }
      EXPECT_EQ(statistics.bytes_written, copy.bytes / 16 * std::popcount(mask));
    }
  }
}

TEST_P(Orders, MaskedBytesMayLieOutsideAnAllocation) {
  const std::string text =
      masked_kernel("cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd3], [%r1+496], 32, %h1;");
  Shape s = shape(512);
  s.arch = 100;
  const auto fault = [&](uint64_t address, uint16_t mask) {
    return sim_test::fault_of(text, "k", Params().add(address).add(mask), memory_, s);
  };
  Buffer<uint8_t> out(memory_, 24, uint8_t{1});
  EXPECT_THAT(fault(out.address(), 0x00ff), testing::HasSubstr("shared")) << "the source ends behind 16 bytes";
  const std::string inside =
      masked_kernel("cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd3], [%r1], 32, %h1;");
  sim_test::run_ptx(inside, "k", Params().add(out.address()).add(uint16_t{0x00ff}), memory_, s);
  EXPECT_EQ(out[23], uint8_t(23 * 7 + 3));
  EXPECT_EQ(out[8], 1);
  EXPECT_THAT(sim_test::fault_of(inside, "k", Params().add(out.address()).add(uint16_t{0x0100}), memory_, s),
              testing::HasSubstr("access of 1 byte"));
}

TEST(BulkCopy, MasksAreOfStoresAlone) {
  const auto decoded = [](const std::string& instruction, int arch) -> std::string {
    try {
      sim_test::prepare_ptx(
          ".visible .entry k() { .reg .b16 %h; .reg .b32 %r<4>; .reg .b64 %d;\n" + instruction + ";\nret; }", "k",
          arch);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  };
  const std::string store = "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%d], [%r1], 16";
  EXPECT_EQ(decoded(store + ", %h", 100), "");
  EXPECT_EQ(decoded(store + ", 255", 100), "");
  EXPECT_THAT(decoded(store + ", %h", 90), testing::HasSubstr(".cp_mask needs sm_100 or later"));
  EXPECT_THAT(decoded(store, 100), testing::HasSubstr("has 3 operands where 4 are expected"));
  for (const char* other :
       {"cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.cp_mask [%r1], [%d], 16, [%r2], %h",
        "cp.async.bulk.prefetch.L2.global.cp_mask [%d], 16",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.cp_mask.add.u32 [%d], [%r1], 16, %h"})
    EXPECT_THAT(decoded(other, 100), testing::HasSubstr("only a copy from .shared::cta to .global takes .cp_mask"));
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
