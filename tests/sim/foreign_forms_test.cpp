// SPDX-License-Identifier: Apache-2.0
// Forms that compilers emit for other people's kernels: parameters of calls that are structs, arrays in local memory,
// scopes inside functions, vectors of kernel parameters, division in 64 bits, matrices with transposition, and what
// published kernels do at the edges of the rules (they end while a store still reads, fence a map that is not there).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "sim/memory/tensor_map.h"
#include "tests/sim/run_ptx.h"

namespace {

using sim::Hazard;
using sim_test::Buffer;
using sim_test::Params;
using sim_test::Shape;

class ForeignForms : public testing::TestWithParam<sim::Order> {
 protected:
  void run(const std::string& text, const Params& params, Shape shape = {}) {
    shape.order = GetParam();
    sim_test::run_ptx(text, "k", params, memory_, shape);
  }
  sim::GlobalMemory memory_;
};
INSTANTIATE_TEST_SUITE_P(All, ForeignForms, testing::ValuesIn(sim_test::all_orders()),
                         testing::PrintToStringParamName());

// A struct goes to a function and comes back as bytes, through an array in local memory that is indexed at run time.
TEST_P(ForeignForms, StructsGoThroughCallsAndLocalMemory) {
  Buffer<uint64_t> out(memory_, 32 * 2);
  run(R"(
.func (.param .align 8 .b8 r[24]) turn(.param .align 8 .b8 s[24], .param .b32 n)
{
  .local .align 8 .b8 depot[64];
  .reg .b64 %SP; .reg .b64 %SPL;
  .reg .b32 %r<12>; .reg .b64 %rd<12>; .reg .f64 %fd<4>; .reg .b16 %rs<10>;
  mov.u64 %SPL, depot;
  cvta.local.u64 %SP, %SPL;
  ld.param.f64 %fd1, [s];
  ld.param.v2.b32 {%r1, %r2}, [s+8];
  ld.param.v4.u8 {%rs1, %rs2, %rs3, %rs4}, [s+16];
  ld.param.u32 %r3, [n];
  st.local.f64 [%SPL], %fd1;
  st.local.v2.u32 [%SPL+8], {%r1, %r2};
  st.local.v4.u8 [%SPL+16], {%rs4, %rs3, %rs2, %rs1};
  st.local.u64 [%SPL+24], 0x0123456789abcdef;
  and.b32 %r4, %r3, 7;
  cvt.u64.u32 %rd1, %r4;
  add.s64 %rd2, %SPL, %rd1;
  ld.local.u8 %rs5, [%rd2+24];
  add.s64 %rd3, %SP, %rd1;
  ld.u8 %rs6, [%rd3+24];
  xor.b16 %rs7, %rs5, %rs6;
  cvt.u32.u16 %r5, %rs5;
  cvt.u32.u16 %r9, %rs7;
  add.u32 %r5, %r5, %r9;
  ld.local.v2.f32 {%r6, %r7}, [%SPL+8];
  ld.local.u32 %r8, [%SPL+16];
  ld.local.f64 %fd2, [%SPL];
  add.f64 %fd2, %fd2, 0d3FF0000000000000;
  st.param.f64 [r], %fd2;
  st.param.v2.b32 [r+8], {%r7, %r6};
  st.param.b32 [r+16], %r8;
  st.param.b32 [r+20], %r5;
  ret;
}
.visible .entry k(.param .u64 p_out)
{
  .reg .b32 %r<12>; .reg .b64 %rd<12>; .reg .f64 %fd<4>; .reg .b16 %rs<8>;
  ld.param.u64 %rd1, [p_out];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u32 %r1, %tid.x;
  cvt.rn.f64.u32 %fd1, %r1;
  cvt.u16.u32 %rs1, %r1;
  mul.lo.s32 %r2, %r1, 3;
  { // callseq 0, 0
    .reg .b32 temp_param_reg;
    .param .align 8 .b8 param0[24];
    st.param.f64 [param0], %fd1;
    st.param.v2.b32 [param0+8], {%r1, %r2};
    st.param.v4.b8 [param0+16], {%rs1, 7, 8, 9};
    st.param.b32 [param0+20], 0;
    .param .b32 param1;
    st.param.b32 [param1], %r1;
    .param .align 8 .b8 retval0[24];
    call.uni (retval0), turn, (param0, param1);
    ld.param.f64 %fd2, [retval0];
    ld.param.v2.b32 {%r3, %r4}, [retval0+8];
    ld.param.v2.b32 {%r5, %r6}, [retval0+16];
  } // callseq 0
  cvt.rzi.u32.f64 %r7, %fd2;
  shl.b32 %r8, %r3, 8;
  add.u32 %r7, %r7, %r8;
  shl.b32 %r8, %r4, 20;
  add.u32 %r7, %r7, %r8;
  mov.b64 %rd2, {%r5, %r6};
  cvt.u64.u32 %rd3, %r7;
  mul.wide.u32 %rd4, %r1, 16;
  add.s64 %rd5, %rd1, %rd4;
  st.global.v2.u64 [%rd5], {%rd3, %rd2};
  ret;
})",
      Params().add(out.address()));
  const uint8_t bytes[8] = {0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01};
  for (uint64_t t = 0; t < 32; ++t) {
    EXPECT_EQ(out[2 * t], (t + 1) + (3 * t << 8) + (t << 20)) << t;
    EXPECT_EQ(out[2 * t + 1], 0x00070809u | t << 24 | uint64_t{bytes[t % 8]} << 32) << t;
  }
}

// The same name in an inner scope, and in two that follow one another, is another register.
TEST_P(ForeignForms, ScopesHideOuterRegistersAndLabels) {
  Buffer<uint32_t> out(memory_, 32);
  run(R"(
.visible .entry k(.param .u64 p_out)
{
  .reg .b32 x, y; .reg .b64 %rd<4>; .reg .pred P1;
  ld.param.u64 %rd1, [p_out];
  mov.u32 x, %tid.x;
  mov.u32 y, 0;
  {
    .reg .b32 x; .reg .pred P1;
    mov.u32 x, 5;
    LAB_WAIT:
    add.u32 y, y, x;
    setp.lt.u32 P1, y, 20;
    @P1 bra LAB_WAIT;
    { .reg .b16 x; mov.u16 x, 3; cvt.u32.u16 y, x; }
    add.u32 y, y, x;
  }
  {
    .reg .b32 x; .reg .pred P1;
    mov.u32 x, 100;
    LAB_WAIT:
    add.u32 y, y, x;
    setp.lt.u32 P1, y, 300;
    @P1 bra LAB_WAIT;
  }
  mad.lo.u32 y, x, 1000, y;
  mul.wide.u32 %rd2, x, 4;
  add.s64 %rd1, %rd1, %rd2;
  st.global.u32 [%rd1], y;
  ret;
})",
      Params().add(out.address()));
  for (uint32_t t = 0; t < 32; ++t) EXPECT_EQ(out[t], 1000 * t + 308);
}

TEST_P(ForeignForms, KernelParametersAreReadAsVectorsAndByAddress) {
  struct Arguments {
    alignas(16) uint32_t words[4];
    float pair[2];
    uint64_t longs[2];
    double number;
    uint8_t bytes[8];
  };
  const Arguments given{{1, 20, 300, 4000}, {0.5f, 2.25f}, {1ull << 40, 77}, 3.5, {9, 8, 7, 6, 5, 4, 3, 2}};
  Buffer<uint64_t> out(memory_, 8);
  run(R"(
.visible .entry k(.param .align 16 .b8 p[64], .param .u64 p_out)
{
  .reg .b32 %r<12>; .reg .b64 %rd<12>; .reg .f32 %f<6>; .reg .f64 %fd<4>; .reg .b16 %rs<8>;
  ld.param.u64 %rd1, [p_out];
  ld.param.v4.u32 {%r1, %r2, %r3, %r4}, [p];
  add.u32 %r1, %r1, %r2;
  add.u32 %r1, %r1, %r3;
  add.u32 %r1, %r1, %r4;
  cvt.u64.u32 %rd2, %r1;
  ld.param.v2.f32 {%f1, %f2}, [p+16];
  add.f32 %f3, %f1, %f2;
  mov.b32 %r5, %f3;
  cvt.u64.u32 %rd3, %r5;
  ld.param.v2.u64 {%rd4, %rd5}, [p+24];
  add.s64 %rd4, %rd4, %rd5;
  ld.param.f64 %fd1, [p+40];
  mov.b64 %rd5, %fd1;
  ld.param.v4.u8 {%rs1, %rs2, %rs3, %rs4}, [p+48];
  mul.lo.u16 %rs1, %rs1, %rs4;
  cvt.u64.u16 %rd6, %rs1;
  ld.param.v2.u32 {%r6, %r7}, [p+8];
  ld.param.u8 %rs5, [p+55];
  mov.u64 %rd7, p;
  cvta.param.u64 %rd8, %rd7;
  ld.u32 %r8, [%rd8+12];
  add.u32 %r8, %r8, %r6;
  cvt.u64.u32 %rd7, %r8;
  cvt.u64.u16 %rd8, %rs5;
  st.global.u64 [%rd1], %rd2;
  st.global.u64 [%rd1+8], %rd3;
  st.global.u64 [%rd1+16], %rd4;
  st.global.u64 [%rd1+24], %rd5;
  st.global.u64 [%rd1+32], %rd6;
  st.global.u64 [%rd1+40], %rd7;
  st.global.u64 [%rd1+48], %rd8;
  ret;
})",
      Params().add(given).add(out.address()));
  EXPECT_THAT(out.values(),
              testing::ElementsAre(4321u, 0x40300000u, (1ull << 40) + 77, 0x400c000000000000ull, 54u, 4300u, 2u, 0u));
}

TEST_P(ForeignForms, DivisionIn64Bits) {
  const std::vector<int64_t> numbers = {0,
                                        1,
                                        -1,
                                        7,
                                        -7,
                                        INT64_MAX,
                                        INT64_MIN,
                                        1ll << 32,
                                        -(1ll << 33),
                                        123456789012345,
                                        -987654321098765,
                                        0x7fffffff,
                                        -0x80000000ll,
                                        3,
                                        -3,
                                        1000000007};
  Buffer<int64_t> in(memory_, numbers), out(memory_, numbers.size() * 32 * 4);
  Shape shape;
  shape.grid = {static_cast<uint32_t>(numbers.size()), 1, 1};
  shape.block = {static_cast<uint32_t>(numbers.size()), 1, 1};
  run(R"(
.visible .entry k(.param .u64 p_in, .param .u64 p_out)
{
  .reg .b32 %r<8>; .reg .b64 %rd<20>;
  ld.param.u64 %rd1, [p_in];
  ld.param.u64 %rd2, [p_out];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %tid.x;
  mul.wide.u32 %rd3, %r1, 8;
  add.s64 %rd3, %rd1, %rd3;
  ld.global.s64 %rd4, [%rd3];
  mul.wide.u32 %rd3, %r2, 8;
  add.s64 %rd3, %rd1, %rd3;
  ld.global.s64 %rd5, [%rd3];
  mov.u32 %r3, %ntid.x;
  mad.lo.u32 %r4, %r1, %r3, %r2;
  mul.wide.u32 %rd3, %r4, 32;
  add.s64 %rd3, %rd2, %rd3;
  div.s64 %rd6, %rd4, %rd5;
  rem.s64 %rd7, %rd4, %rd5;
  div.u64 %rd8, %rd4, %rd5;
  rem.u64 %rd9, %rd4, %rd5;
  st.global.v2.u64 [%rd3], {%rd6, %rd7};
  st.global.v2.u64 [%rd3+16], {%rd8, %rd9};
  ret;
})",
      Params().add(in.address()).add(out.address()), shape);
  for (size_t i = 0; i < numbers.size(); ++i) {
    for (size_t j = 0; j < numbers.size(); ++j) {
      const int64_t a = numbers[i], b = numbers[j];
      if (b == 0 || (a == INT64_MIN && b == -1)) continue;  // not defined
      const auto ua = static_cast<uint64_t>(a), ub = static_cast<uint64_t>(b);
      const int64_t* got = out.data() + (i * numbers.size() + j) * 4;
      EXPECT_EQ(got[0], a / b) << a << " / " << b;
      EXPECT_EQ(got[1], a % b) << a << " % " << b;
      EXPECT_EQ(static_cast<uint64_t>(got[2]), ua / ub) << ua << " / " << ub;
      EXPECT_EQ(static_cast<uint64_t>(got[3]), ua % ub) << ua << " % " << ub;
    }
  }
}

// 9.7.14.5.15 and .16: lane t holds of matrix m the elements (t / 4, 2 (t % 4) + {0, 1}), transposed those of the other
// corner; row r of matrix m lies at the address of lane 8 m + r.
TEST_P(ForeignForms, MatricesMoveInEveryNumberAndTransposed) {
  for (const uint32_t count : {1u, 2u, 4u}) {
    for (const bool transposed : {false, true}) {
      const std::string many = "x" + std::to_string(count), trans = transposed ? ".trans" : "";
      std::string list, loads;
      for (uint32_t m = 0; m < count; ++m) list += (m ? ", %r" : "%r") + std::to_string(20 + m);
      Buffer<uint16_t> in(memory_, 32 * 8), out(memory_, 32 * 8, uint16_t{0});
      std::iota(in.data(), in.data() + in.size(), uint16_t{1});
      Buffer<uint32_t> fragments(memory_, 32 * 4, 0u);
      for (uint32_t m = 0; m < count; ++m)
        loads += "st.global.u32 [%rd5+" + std::to_string(4 * m) + "], %r" + std::to_string(20 + m) + ";\n";
      // The rows come in, go through the fragments in registers, and come out in their places.
      run(R"(
.visible .entry k(.param .u64 p_in, .param .u64 p_out, .param .u64 p_fragments)
{
  .shared .align 16 .b8 tile[1024];
  .reg .b32 %r<30>; .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [p_in];
  ld.param.u64 %rd2, [p_out];
  ld.param.u64 %rd3, [p_fragments];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, tile;
  mad.lo.u32 %r3, %r1, 16, %r2;
  mul.wide.u32 %rd4, %r1, 16;
  add.s64 %rd1, %rd1, %rd4;
  add.s64 %rd2, %rd2, %rd4;
  add.s64 %rd5, %rd3, %rd4;
  ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd1];
  st.shared.v4.u32 [%r3], {%r4, %r5, %r6, %r7};
  st.shared.v4.u32 [%r3+512], {0, 0, 0, 0};
  bar.warp.sync 0xffffffff;
  ldmatrix.sync.aligned.m8n8.)" +
              many + trans + ".shared.b16 {" + list + "}, [%r3];\n" + loads + "  stmatrix.sync.aligned.m8n8." + many +
              trans + ".shared.b16 [%r3+512], {" + list + R"(};
  bar.warp.sync 0xffffffff;
  ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r3+512];
  st.global.v4.u32 [%rd2], {%r4, %r5, %r6, %r7};
  ret;
})",
          Params().add(in.address()).add(out.address()).add(fragments.address()));
      for (uint32_t t = 0; t < 32; ++t) {
        for (uint32_t m = 0; m < count; ++m) {
          uint32_t want = 0;
          for (uint32_t half = 0; half < 2; ++half) {
            const uint32_t row = t / 4, column = 2 * (t % 4) + half;
            const uint32_t at = transposed ? column * 8 + row : row * 8 + column;
            want |= uint32_t{in[m * 64 + at]} << (16 * half);
          }
          EXPECT_EQ(fragments[4 * t + m], want) << many << trans << " lane " << t << " matrix " << m;
        }
      }
      for (uint32_t i = 0; i < 256; ++i) EXPECT_EQ(out[i], i < 64 * count ? in[i] : 0) << many << trans << " " << i;
    }
  }
}

TEST(ForeignAssert, SaysWhatFailedAndWhere) {
  sim::GlobalMemory memory;
  const std::string strings = std::string("i < n") + '\0' + "kernel.cu" + '\0' + "void k(int)" + '\0';
  Buffer<char> text(memory, std::vector<char>(strings.begin(), strings.end()));
  const std::string fault = sim_test::fault_of(R"(
.extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.visible .entry k(.param .u64 p)
{
  .reg .b64 %rd<8>; .reg .b32 %r<4>; .reg .pred %p<2>;
  ld.param.u64 %rd1, [p];
  add.s64 %rd2, %rd1, 6;
  add.s64 %rd3, %rd1, 16;
  mov.u32 %r1, %tid.x;
  setp.ne.u32 %p1, %r1, 5;
  @%p1 bra DONE;
  {
    .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
    st.param.b64 [a], %rd1;
    st.param.b64 [b], %rd2;
    st.param.b32 [c], 42;
    st.param.b64 [d], %rd3;
    st.param.b64 [e], 1;
    call.uni __assertfail, (a, b, c, d, e);
  }
DONE:
  ret;
})",
                                               "k", Params().add(text.address()), memory, {});
  EXPECT_THAT(fault, testing::HasSubstr("assertion: 'i < n' of kernel.cu:42 does not hold, in void k(int)"));
  EXPECT_THAT(fault, testing::HasSubstr("lane 5"));
}

// ---- what published kernels do --------------------------------------------------------------------

const char* const kStoreAndExit = R"(
.visible .entry k(.param .u64 p_out)
{
  .shared .align 128 .b8 buffer[128];
  .reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .pred %p<2>;
  ld.param.u64 %rd1, [p_out];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, buffer;
  mad.lo.u32 %r3, %r1, 4, %r2;
  st.shared.u32 [%r3], %r1;
  fence.proxy.async.shared::cta;
  bar.sync 0;
  setp.eq.u32 %p1, %r1, 0;
  @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 128;
  @%p1 cp.async.bulk.commit_group;
  ret;
})";

TEST_P(ForeignForms, ABlockMayEndWhileAStoreReadsWhenThatIsAllowed) {
  Buffer<uint32_t> out(memory_, 32, 7u);
  const auto kernel = sim_test::prepare_ptx(kStoreAndExit, "k");
  for (const bool allowed : {false, true}) {
    sim::Launch launch;
    launch.kernel = kernel.get();
    launch.grid = {1, 1, 1};
    launch.block = {32, 1, 1};
    launch.params = Params().add(out.address()).bytes();
    launch.global = &memory_;
    launch.order = GetParam();
    launch.rules.drained_exit = !allowed;
    if (!allowed) {
      EXPECT_THROW(sim::run(launch), sim::Fault);
      continue;
    }
    sim::run(launch);
    for (uint32_t t = 0; t < 32; ++t) EXPECT_EQ(out[t], t);
  }
}

// Only one warp knows the map's address; the others fence at address 0, which orders nothing and touches nothing.
TEST_P(ForeignForms, AFenceOfNoMapOrdersNothing) {
  run(R"(
.visible .entry k()
{
  .reg .b64 %rd<2>;
  mov.u64 %rd1, 0;
  fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;
  ret;
})",
      Params());
}

// The peer's expectation comes before its copy, so that nothing but the bytes tells this block that the copy was made.
TEST_P(ForeignForms, TheBytesOfAMulticastLetTheBlockEnd) {
  Buffer<uint32_t> in(memory_, 64), out(memory_, 64, 0u);
  std::iota(in.data(), in.data() + in.size(), 1u);
  Shape shape;
  shape.grid = shape.cluster = {2, 1, 1};
  run(R"(
.visible .entry k(.param .u64 p_in, .param .u64 p_out)
{
  .shared .align 128 .b8 buffer[256];
  .shared .align 8 .b64 full;
  .reg .b32 %r<12>; .reg .b64 %rd<8>; .reg .pred %p<4>; .reg .b16 %h<4>;
  ld.param.u64 %rd1, [p_in];
  ld.param.u64 %rd2, [p_out];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %cluster_ctarank;
  mov.u32 %r3, buffer;
  mov.u32 %r4, full;
  setp.eq.u32 %p1, %r1, 0;
  @%p1 mbarrier.init.shared::cta.b64 [%r4], 1;
  fence.mbarrier_init.release.cluster;
  barrier.cluster.arrive.relaxed.aligned;
  barrier.cluster.wait.aligned;
  mov.u16 %h1, 3;
  mad.lo.u32 %r5, %r2, 128, %r3;
  mul.wide.u32 %rd3, %r2, 128;
  add.s64 %rd3, %rd1, %rd3;
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 256;
  @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
    [%r5], [%rd3], 128, [%r4], %h1;
W:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r4], 0;
  @!%p2 bra W;
  mad.lo.u32 %r6, %r1, 8, %r3;
  ld.shared.v2.u32 {%r7, %r8}, [%r6];
  setp.ne.u32 %p3, %r2, 0;
  @%p3 bra E;
  mul.wide.u32 %rd4, %r1, 8;
  add.s64 %rd4, %rd2, %rd4;
  st.global.v2.u32 [%rd4], {%r7, %r8};
E:
  ret;
})",
      Params().add(in.address()).add(out.address()), shape);
  EXPECT_EQ(out.values(), in.values());
}

// Some programs clear this bit of an encoded map, around a mistake of a driver.
TEST(ForeignTensorMap, Bit21OfTheSecondWordMeansNothing) {
  sim::TensorMapFields map;
  map.address = 0x7f00ffffff00;
  map.element = sim::TensorElement::BF16;
  map.rank = 3;
  map.dims = {0xffffffff, 0xffffff, 0xffff, 1, 1};
  map.strides = {0xfffffff0, 0xfffffffff0, 0, 0};
  map.box = {64, 128, 2, 1, 1};
  uint64_t words[16];
  sim::encode(map, reinterpret_cast<uint8_t*>(words));
  words[1] &= ~(uint64_t{1} << 21);
  const auto back = sim::decode(reinterpret_cast<const uint8_t*>(words));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->address, map.address);
  EXPECT_EQ(back->dims, map.dims);
  EXPECT_EQ(back->strides, map.strides);
  EXPECT_EQ(back->box, map.box);
}

}  // namespace
