// SPDX-License-Identifier: Apache-2.0
// How fast the simulator is: lane-instructions a second by kind of instruction, multiply-adds a second by kind of tile
// product. Figures per second of processor time of one host thread, and per second by the clock over all of them.
//   bench_simulator [--threads N] [--seconds S] [NAME...]   runs the cases whose name contains one of the words
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "sim/machine/environment.h"
#include "sim/ptx/ast.h"
#include "sim/run/run.h"
#include "sim/translate/build_kernel.h"

namespace {

struct Case {
  std::string name;
  int arch = 90;
  std::string text;          // .entry k(.param .u64 buffer, .param .u32 count)
  double products = 0;       // multiply-adds that one turn of the loop does in each block; 0: lane-instructions count
  double active_lanes = 32;  // of a warp instruction, on average
  uint32_t shared = 0;       // dynamic, bytes
  uint32_t turns = 256;
};

// ---- scalar code -------------------------------------------------------------------------------

constexpr const char* kScalarRegisters = R"(
  .reg .b32 %r<64>;
  .reg .f32 %f<64>;
  .reg .b64 %d<16>;
  .reg .b16 %h<32>;
  .reg .pred %p<16>;
  .reg .u32 %n, %me, %s;
  .reg .u64 %buffer, %own;
)";

// 128 threads each run `setup`, then `body` 16 times in a loop of `count` turns.
Case scalar(const std::string& name, const std::string& body, const std::string& setup = "") {
  Case c;
  c.name = name;
  c.shared = 32768;
  std::string repeated;
  for (int i = 0; i < 16; ++i) repeated += "  {\n" + body + "  }\n";
  c.text = std::string(
               ".extern .shared .align 1024 .b8 smem[];\n"
               ".visible .entry k(.param .u64 p_buffer, .param .u32 p_count) {") +
           kScalarRegisters + R"(
  ld.param.u64 %buffer, [p_buffer];
  ld.param.u32 %n, [p_count];
  mov.u32 %me, %tid.x;
  mov.u32 %s, smem;
  mad.lo.u32 %s, %me, 16, %s;
  mov.u32 %r63, %ctaid.x;
  shl.b32 %r63, %r63, 14;
  mad.lo.u32 %r63, %me, 16, %r63;
  cvt.u64.u32 %own, %r63;
  add.u64 %own, %own, %buffer;
  mad.lo.u32 %r0, %me, 0x9e3779b1, 12345;
  xor.b32 %r1, %r0, 0x5bd1e995;
  mul.lo.u32 %r2, %r0, %r1;
  add.u32 %r3, %r2, 77;
  and.b32 %r4, %r0, 31;
  cvt.u64.u32 %d0, %r0;
  cvt.u64.u32 %d1, %r1;
  cvt.rn.f32.u32 %f0, %r4;
  mul.f32 %f0, %f0, 0f3D000000;
  add.f32 %f1, %f0, 0f3F000000;
  mov.f32 %f2, 0f3F7FFF00;
  mov.f32 %f3, 0f3E000000;
  st.shared.v4.b32 [%s], {%r0, %r1, %r2, %r3};
)" + setup +
           "LOOP:\n" + repeated +
           "  sub.u32 %n, %n, 1;\n  setp.ne.u32 %p15, %n, 0;\n  @%p15 bra LOOP;\n"
           "  bar.sync 0;\n  st.global.v4.b32 [%own], {%r0, %r1, %r2, %r3};\n  ret;\n}\n";
  return c;
}

std::vector<Case> scalar_cases() {
  std::vector<Case> list;
  list.push_back(scalar("integer add, xor, shift", R"(
    add.u32 %r2, %r2, %r0;
    xor.b32 %r3, %r3, %r2;
    shl.b32 %r5, %r3, 3;
    shr.u32 %r6, %r2, 5;
    sub.s32 %r2, %r5, %r6;
    and.b32 %r7, %r2, %r1;
    or.b32 %r3, %r7, %r6;
    lop3.b32 %r2, %r2, %r3, %r5, 0x96;
)"));
  list.push_back(scalar("integer mad, min, bfe, shf", R"(
    mad.lo.u32 %r2, %r2, %r0, %r1;
    mul.hi.u32 %r3, %r2, %r1;
    min.s32 %r5, %r2, %r3;
    bfe.u32 %r6, %r2, 4, 9;
    shf.l.wrap.b32 %r2, %r5, %r6, 7;
    mul.lo.u32 %r3, %r3, %r2;
    max.u32 %r7, %r3, %r6;
    selp.b32 %r2, %r7, %r2, %p0;
)",
                        "  setp.lt.u32 %p0, %r0, %r1;\n"));
  list.push_back(scalar("integer 64-bit", R"(
    add.u64 %d2, %d0, %d1;
    mul.wide.u32 %d3, %r0, %r1;
    mad.lo.u64 %d4, %d2, %d3, %d1;
    shl.b64 %d5, %d4, 3;
    cvt.u64.u32 %d6, %r2;
    add.s64 %d0, %d5, %d6;
    cvt.u32.u64 %r2, %d0;
    shr.u64 %d1, %d0, 7;
)"));
  list.push_back(scalar("integer division", R"(
    or.b32 %r5, %r4, 1;
    div.u32 %r6, %r2, %r5;
    rem.u32 %r7, %r2, %r5;
    add.u32 %r2, %r6, %r0;
)"));
  list.push_back(scalar("f32 add, mul, fma, max", R"(
    fma.rn.f32 %f4, %f0, %f2, %f3;
    add.f32 %f5, %f4, %f1;
    mul.f32 %f6, %f5, %f2;
    max.f32 %f7, %f6, %f0;
    fma.rn.f32 %f8, %f7, %f2, %f4;
    min.f32 %f0, %f8, %f1;
    sub.f32 %f9, %f0, %f3;
    mul.ftz.f32 %f1, %f9, %f2;
)"));
  list.push_back(scalar("f32 ex2, rcp, tanh approx", R"(
    ex2.approx.ftz.f32 %f4, %f0;
    add.f32 %f5, %f4, 0f3F800000;
    rcp.approx.ftz.f32 %f6, %f5;
    tanh.approx.f32 %f0, %f6;
)"));
  list.push_back(scalar("ex2.approx alone", "    ex2.approx.ftz.f32 %f4, %f0;\n    ex2.approx.ftz.f32 %f0, %f4;\n"));
  list.push_back(scalar("tanh.approx alone", "    tanh.approx.f32 %f4, %f0;\n    tanh.approx.f32 %f0, %f4;\n"));
  list.push_back(scalar("lg2, sin, cos approx",
                        "    lg2.approx.f32 %f4, %f2;\n    sin.approx.f32 %f5, %f0;\n"
                        "    cos.approx.f32 %f6, %f0;\n"));
  list.push_back(scalar("rcp, sqrt, rsqrt, div", R"(
    rcp.rn.f32 %f4, %f2;
    sqrt.rn.f32 %f5, %f1;
    rsqrt.approx.f32 %f6, %f2;
    div.rn.f32 %f7, %f1, %f2;
    div.approx.f32 %f8, %f1, %f2;
    div.full.f32 %f9, %f1, %f2;
)"));
  list.push_back(scalar("setp, selp, guards", R"(
    setp.lt.u32 %p1, %r2, %r0;
    @%p1 add.u32 %r2, %r2, %r1;
    setp.gt.f32 %p2, %f0, %f3;
    and.pred %p3, %p1, %p2;
    selp.b32 %r3, %r2, %r0, %p3;
    setp.ne.and.b32 %p4, %r3, 0, %p2;
    @!%p4 xor.b32 %r2, %r2, %r3;
    selp.f32 %f4, %f0, %f1, %p4;
)"));
  list.push_back(scalar("branches, uniform", R"(
    add.u32 %r5, %r5, 1;
    bra.uni L1;
L1: setp.eq.u32 %p1, %r5, 0;
    @%p1 bra L2;
    add.u32 %r2, %r2, %r5;
L2: add.u32 %r3, %r3, %r2;
)",
                        "  mov.u32 %r5, 0;\n"));
  list.push_back(scalar("branches, half of the lanes", R"(
    add.u32 %r5, %r5, 1;
    @%p1 bra L1;
    add.u32 %r2, %r2, %r5;
    xor.b32 %r3, %r3, %r2;
    add.u32 %r6, %r6, %r2;
    shl.b32 %r7, %r2, 1;
L1: add.u32 %r3, %r3, %r2;
    xor.b32 %r6, %r3, %r5;
)",
                        "  mov.u32 %r5, 0;\n  and.b32 %r6, %me, 1;\n  setp.ne.u32 %p1, %r6, 0;\n"));
  list.back().active_lanes = 24;
  list.push_back(scalar("ld, st .shared.b32, a row of lanes", R"(
    ld.shared.u32 %r5, [%r10];
    add.u32 %r5, %r5, 1;
    st.shared.u32 [%r10+2048], %r5;
    ld.shared.u32 %r6, [%r10+2048];
)",
                        "  mov.u32 %r10, smem;\n  mad.lo.u32 %r10, %me, 4, %r10;\n  bar.sync 0;\n"));
  list.push_back(scalar("ld, st .shared.v4, swizzled", R"(
    st.shared.v4.b32 [%r10], {%r0, %r1, %r2, %r3};
    ld.shared.v4.b32 {%r5, %r6, %r7, %r8}, [%r10];
    st.shared.v2.b32 [%r10+8], {%r5, %r6};
    ld.shared.v2.b32 {%r5, %r6}, [%r10+8];
)",
                        "  shl.b32 %r10, %me, 7;\n  and.b32 %r11, %me, 7;\n  shl.b32 %r11, %r11, 4;\n"
                        "  xor.b32 %r10, %r10, %r11;\n  mov.u32 %r11, smem;\n  add.u32 %r10, %r10, %r11;\n"
                        "  bar.sync 0;\n"));
  list.push_back(scalar("ld, st .shared.b16, columns", R"(
    ld.shared.u16 %h0, [%r10];
    add.u16 %h0, %h0, 1;
    st.shared.u16 [%r10+2], %h0;
    ld.shared.u16 %h1, [%r10+2];
)",
                        "  mov.u32 %r10, smem;\n  mad.lo.u32 %r10, %me, 132, %r10;\n  bar.sync 0;\n"
                        "  st.shared.u32 [%r10], %r0;\n  bar.warp.sync -1;\n"));
  list.push_back(scalar("ldmatrix, stmatrix", R"(
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r5, %r6, %r7, %r8}, [%s];
    stmatrix.sync.aligned.m8n8.x4.shared.b16 [%s+2048], {%r5, %r6, %r7, %r8};
    ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r5, %r6, %r7, %r8}, [%s+2048];
    stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%s+2048], {%r5, %r6, %r7, %r8};
)",
                        "  bar.warp.sync -1;\n"));
  list.push_back(scalar("ld, st .global.b32, a row of lanes", R"(
    ld.global.u32 %r5, [%d8];
    add.u32 %r5, %r5, 1;
    st.global.u32 [%d8+2048], %r5;
    ld.global.nc.u32 %r6, [%d8];
)",
                        "  mul.wide.u32 %d8, %me, 12;\n  sub.u64 %d8, %own, %d8;\n"));
  list.push_back(scalar("ld, st .global.v4", R"(
    ld.global.v4.b32 {%r5, %r6, %r7, %r8}, [%own];
    st.global.v4.b32 [%own+2048], {%r5, %r6, %r7, %r8};
    ld.global.nc.L1::no_allocate.v4.b32 {%r5, %r6, %r7, %r8}, [%own];
    st.global.v2.b32 [%own+2048], {%r5, %r6};
)"));
  list.push_back(scalar("ld, st .global.b16, 128 bytes apart", R"(
    ld.global.u16 %h0, [%d8];
    st.global.u16 [%d8+2], %h0;
    ld.global.u8 %h1, [%d8+5];
    st.global.u8 [%d8+6], %h1;
)",
                        "  mul.wide.u32 %d8, %me, 112;\n  add.u64 %d8, %own, %d8;\n"));
  list.push_back(scalar("generic ld, st", R"(
    ld.b32 %r5, [%d8];
    st.b32 [%d8+4], %r5;
    ld.b32 %r6, [%d9];
    st.b32 [%d9+4], %r6;
)",
                        "  mov.b64 %d8, %own;\n  cvt.u64.u32 %d9, %s;\n  cvta.shared.u64 %d9, %d9;\n"));
  list.push_back(scalar("shfl", R"(
    shfl.sync.bfly.b32 %r5, %r2, 16, 31, -1;
    add.u32 %r2, %r2, %r5;
    shfl.sync.idx.b32 %r6, %r2, %r4, 31, -1;
    shfl.sync.up.b32 %r7|%p1, %r6, 1, 0, -1;
    shfl.sync.down.b32 %r8, %r7, 4, 31, -1;
)"));
  list.push_back(scalar("vote, ballot, elect, redux, match", R"(
    vote.sync.ballot.b32 %r5, %p1, -1;
    vote.sync.any.pred %p2, %p1, -1;
    elect.sync %r6|%p3, -1;
    redux.sync.add.u32 %r7, %r0, -1;
    activemask.b32 %r8;
)",
                        "  setp.lt.u32 %p1, %r0, %r1;\n"));
  list.push_back(scalar("prmt, selector in a register",
                        "    prmt.b32 %r2, %r0, %r1, %r4;\n"
                        "    prmt.b32 %r3, %r2, %r1, %r5;\n",
                        "  xor.b32 %r5, %r0, 0x3715;\n"));
  list.push_back(scalar("prmt, constant selector",
                        "    prmt.b32 %r2, %r0, %r1, 0x5410;\n"
                        "    prmt.b32 %r3, %r2, %r1, 0x7632;\n"));
  list.push_back(scalar("cvt f32 to and from bf16x2, f16x2", R"(
    cvt.rn.bf16x2.f32 %r5, %f0, %f1;
    mov.b32 {%h0, %h1}, %r5;
    cvt.f32.bf16 %f4, %h0;
    cvt.rn.f16x2.f32 %r6, %f0, %f1;
    mov.b32 {%h2, %h3}, %r6;
    cvt.f32.f16 %f5, %h3;
    cvt.rn.bf16.f32 %h4, %f4;
    cvt.rn.f16.f32 %h5, %f5;
)"));
  list.push_back(scalar("bf16x2 fma, mul, max", R"(
    fma.rn.bf16x2 %r5, %r10, %r11, %r10;
    mul.rn.bf16x2 %r6, %r5, %r10;
    add.rn.bf16x2 %r7, %r6, %r11;
    max.bf16x2 %r8, %r7, %r5;
)",
                        "  mov.b32 %r10, 0x3f803e80;\n  mov.b32 %r11, 0x3f003f20;\n"));
  list.push_back(scalar("f16x2 fma, mul, max", R"(
    fma.rn.f16x2 %r5, %r10, %r11, %r10;
    mul.rn.f16x2 %r6, %r5, %r10;
    add.rn.f16x2 %r7, %r6, %r11;
    max.f16x2 %r8, %r7, %r5;
)",
                        "  mov.b32 %r10, 0x3c003e80;\n  mov.b32 %r11, 0x3b003c20;\n"));
  list.push_back(scalar("cvt f32 to e4m3x2, integers", R"(
    cvt.rn.satfinite.e4m3x2.f32 %h0, %f0, %f1;
    cvt.rn.f16x2.e4m3x2 %r5, %h0;
    cvt.rni.s32.f32 %r6, %f0;
    cvt.rn.f32.s32 %f4, %r6;
    cvt.rzi.u32.f32 %r7, %f0;
    cvt.u16.u32 %h1, %r7;
)"));
  list.push_back(scalar("cvt f32 to e2m1x2, ue8m0x2", R"({
    .reg .b8 %b;
    cvt.rn.satfinite.e2m1x2.f32 %b, %f0, %f1;
    cvt.rn.f16x2.e2m1x2 %r5, %b;
    cvt.rp.satfinite.ue8m0x2.f32 %h0, %f0, %f1;
    cvt.rn.bf16x2.ue8m0x2 %r6, %h0;
}
)"));
  list.back().arch = 100;
  list.push_back(scalar("mov of vectors", R"(
    mov.b64 %d2, {%r0, %r1};
    mov.b64 {%r5, %r6}, %d2;
    mov.b32 {%h0, %h1}, %r5;
    mov.b32 %r7, {%h1, %h0};
)"));
  list.push_back(scalar("mbarrier arrive, try_wait", R"(
    mbarrier.arrive.shared::cta.b64 _, [%r10];
W:  mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r10], %r11;
    @!%p1 bra W;
    xor.b32 %r11, %r11, 1;
)",
                        "  mov.u32 %r10, smem;\n  add.u32 %r10, %r10, 16384;\n  mov.u32 %r11, 0;\n"
                        "  setp.ne.u32 %p2, %me, 0;\n  @!%p2 mbarrier.init.shared::cta.b64 [%r10], 128;\n"
                        "  bar.sync 0;\n"));
  list.back().turns = 64;
  list.push_back(scalar("bar.sync, fences", R"(
    st.shared.b32 [%s], %r0;
    fence.proxy.async.shared::cta;
    bar.sync 1, 128;
    bar.warp.sync -1;
)"));
  list.back().turns = 64;
  list.push_back(scalar("atom, red", R"(
    atom.shared.add.u32 %r5, [%s+4096], 1;
    red.global.add.u32 [%own], 1;
    atom.global.add.u32 %r6, [%own+4], 1;
)",
                        "  st.shared.u32 [%s+4096], 0;\n  bar.warp.sync -1;\n"));
  return list;
}

// A kernel as nvcc emits it: bias, SwiGLU, a scale for each 32 columns, E4M3.
Case compiled_kernel() {
  std::ifstream file(MOXIE_SOURCE_DIR "/bench/swiglu_quantise.ptx");
  if (!file) throw std::runtime_error("cannot read bench/swiglu_quantise.ptx");
  std::ostringstream text;
  text << file.rdbuf();
  Case c;
  c.name = "a compiled kernel: bias, SwiGLU, E4M3";
  c.text = text.str();
  c.turns = 64;
  return c;
}

// ---- tile products -----------------------------------------------------------------------------

std::string fill_shared(uint32_t bytes, const char* mask) {
  return R"(
  mov.u32 %s, smem;
  mad.lo.u32 %s, %me, 4, %s;
  mad.lo.u32 %r0, %me, 0x9e3779b1, 12345;
  mov.u32 %i, )" +
         std::to_string(bytes / 512) + R"(;
FILL:
  mad.lo.u32 %r0, %r0, 1664525, 1013904223;
  shr.u32 %r1, %r0, 3;
  and.b32 %r1, %r1, )" +
         mask + R"(;
  st.shared.u32 [%s], %r1;
  add.u32 %s, %s, 512;
  sub.u32 %i, %i, 1;
  setp.ne.u32 %p0, %i, 0;
  @%p0 bra FILL;
  fence.proxy.async.shared::cta;
  bar.sync 0;
)";
}

constexpr const char* kProductHead = R"(.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .u64 p_buffer, .param .u32 p_count) {
  .reg .b32 %r<16>;
  .reg .u32 %n, %i, %me, %s, %t, %parity, %mbar;
  .reg .b64 %a<4>, %b<4>;
  .reg .f32 %f<256>;
  .reg .pred %p<4>;
  .reg .u64 %x;
  ld.param.u32 %n, [p_count];
  mov.u32 %me, %tid.x;
)";

constexpr const char* kLoopEnd = "  sub.u32 %n, %n, 1;\n  setp.ne.u32 %p1, %n, 0;\n  @%p1 bra LOOP;\n";

Case wgmma(const std::string& types, int n, int k, const char* mask) {
  Case c;
  c.name = "wgmma m64n" + std::to_string(n) + "k" + std::to_string(k) + "." + types;
  const uint32_t a = 8192, b = static_cast<uint32_t>(n) * 128;
  c.shared = a + b;
  c.turns = 32;
  c.products = 64.0 * n * k * 4;
  const bool integers = types.starts_with("s32");
  const bool halves = types.ends_with("16");
  std::string d = "{", zero;
  for (int i = 0; i < n / 2; ++i) {
    const std::string r = "%f" + std::to_string(i);
    d += (i ? ", " : "") + r;
    zero += integers ? "  mov.b32 " + r + ", 0;\n" : "  mov.f32 " + r + ", 0f00000000;\n";
  }
  d += "}";
  std::string head = kProductHead;
  if (integers) head.replace(head.find(".reg .f32 %f"), 12, ".reg .b32 %f");
  c.text = head + fill_shared(c.shared, mask) + zero + R"(
  mov.u32 %s, smem;
  shr.u32 %r2, %s, 4;
  cvt.u64.u32 %x, %r2;
  or.b64 %a0, %x, 0x4000004000010000;
  add.u64 %b0, %a0, )" +
           std::to_string(a / 16) + ";\n";
  for (int i = 1; i < 4; ++i) {
    const std::string now = std::to_string(i), step = std::to_string(2 * i);
    c.text += "  add.u64 %a" + now + ", %a0, " + step + ";\n  add.u64 %b" + now + ", %b0, " + step + ";\n";
  }
  c.text += "LOOP:\n  wgmma.fence.sync.aligned;\n";
  for (int i = 0; i < 4; ++i) {
    const std::string now = std::to_string(i);
    c.text += "  wgmma.mma_async.sync.aligned.m64n" + std::to_string(n) + "k" + std::to_string(k) + "." + types + " " +
              d + ", %a" + now + ", %b" + now + ", 1" + (integers ? "" : ", 1, 1") + (halves ? ", 0, 0" : "") + ";\n";
  }
  c.text += "  wgmma.commit_group.sync.aligned;\n  wgmma.wait_group.sync.aligned 0;\n";
  c.text += kLoopEnd;
  c.text += "  ret;\n}\n";
  return c;
}

// kind::KIND with tiles of 128 x 256, A and B in shared memory as rows of 128 bytes.
Case tcgen05(const std::string& kind, const std::string& name, uint32_t descriptor, int k, bool scaled,
             const char* mask) {
  Case c;
  c.name = "tcgen05 " + name + " m128n256k" + std::to_string(k);
  c.arch = 100;
  c.shared = 2048 + (128 + 256) * 128;
  c.turns = 32;
  c.products = 128.0 * 256 * k * 4;
  c.text = std::string(kProductHead) + fill_shared(c.shared, mask) + R"(
  mov.u32 %s, smem;
  add.u32 %mbar, %s, 8;
  setp.ne.u32 %p2, %me, 0;
  @!%p2 mbarrier.init.shared::cta.b64 [%mbar], 1;
  setp.ge.u32 %p0, %me, 32;
  @%p0 bra ALLOCATED;
  bar.warp.sync -1;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s], 512;
  tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
ALLOCATED:
  bar.sync 0;
  ld.shared.u32 %t, [%s];
  shr.u32 %r4, %me, 5;
  shl.b32 %r4, %r4, 21;
  add.u32 %r4, %r4, %t;
  add.u32 %r4, %r4, 256;
  mov.b32 %r5, 0x7f7f7f7f;
  mov.u32 %i, 32;
SCALES:
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%r4], {%r5};
  add.u32 %r4, %r4, 1;
  sub.u32 %i, %i, 1;
  setp.ne.u32 %p3, %i, 0;
  @%p3 bra SCALES;
  tcgen05.wait::st.sync.aligned;
  tcgen05.fence::before_thread_sync;
  bar.sync 0;
  tcgen05.fence::after_thread_sync;
  @%p2 bra DONE;
  add.u32 %s, %s, 2048;
  shr.u32 %r2, %s, 4;
  cvt.u64.u32 %x, %r2;
  or.b64 %a0, %x, 0x4000404000010000;
  add.u64 %b0, %a0, 1024;
  mov.u32 %parity, 0;
  mov.u32 %r6, )" +
           std::to_string(descriptor) + R"(;
  add.u32 %r7, %t, 256;
  add.u32 %r8, %t, 272;
  setp.ne.u32 %p3, %me, 0;
)";
  for (int i = 1; i < 4; ++i) {
    const std::string now = std::to_string(i), step = std::to_string(2 * i);
    c.text += "  add.u64 %a" + now + ", %a0, " + step + ";\n  add.u64 %b" + now + ", %b0, " + step + ";\n";
  }
  c.text += "LOOP:\n";
  for (int i = 0; i < 4; ++i) {
    const std::string now = std::to_string(i);
    c.text += "  tcgen05.mma.cta_group::1.kind::" + kind + " [%t], %a" + now + ", %b" + now + ", %r6, " +
              (scaled ? "[%r7], [%r8], " : "") + "%p3;\n  setp.eq.u32 %p3, %me, %me;\n";
  }
  c.text += R"(  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%mbar];
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p0, [%mbar], %parity;
  @!%p0 bra WAIT;
  xor.b32 %parity, %parity, 1;
)";
  c.text += kLoopEnd;
  c.text += R"(DONE:
  bar.warp.sync -1;
  bar.sync 0;
  setp.ge.u32 %p0, %me, 32;
  @%p0 bra END;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t, 512;
END:
  ret;
}
)";
  return c;
}

std::vector<Case> product_cases() {
  constexpr uint32_t kN = 256 / 8 << 17, kM = 128 / 16 << 24, kMScaled = 128 / 128 << 27, kE8m0 = 1 << 23;
  return {
      wgmma("f32.bf16.bf16", 256, 16, "0x3fff3fff"),
      wgmma("f32.bf16.bf16", 64, 16, "0x3fff3fff"),
      wgmma("f32.f16.f16", 256, 16, "0x3fff3fff"),
      wgmma("f32.e4m3.e4m3", 256, 32, "0x3f3f3f3f"),
      wgmma("s32.s8.s8", 256, 32, "0xffffffff"),
      tcgen05("f16", "bf16", 1u << 4 | 1u << 7 | 1u << 10 | kN | kM, 16, false, "0x3fff3fff"),
      tcgen05("f16", "f16", 1u << 4 | kN | kM, 16, false, "0x3fff3fff"),
      tcgen05("tf32", "tf32", 1u << 4 | 2u << 7 | 2u << 10 | kN | kM, 8, false, "0x3fffffff"),
      tcgen05("f8f6f4", "f8f6f4 (e4m3)", 1u << 4 | kN | kM, 32, false, "0x3f3f3f3f"),
      tcgen05("i8", "i8", 2u << 4 | 1u << 7 | 1u << 10 | kN | kM, 32, false, "0xffffffff"),
      tcgen05("mxf8f6f4.block_scale", "mxf8f6f4 (e4m3)", kN | kMScaled | kE8m0, 32, true, "0x3f3f3f3f"),
      tcgen05("mxf4.block_scale", "mxf4", 1u << 7 | 1u << 10 | kN | kMScaled | kE8m0, 64, true, "0xffffffff"),
      tcgen05("mxf4nvf4.block_scale.block16", "mxf4nvf4", 1u << 7 | 1u << 10 | kN | kMScaled, 64, true, "0xffffffff"),
  };
}

// ---- measurement -------------------------------------------------------------------------------

double processor_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Rate {
  double of_thread = 0, of_machine = 0;  // a second
};

// The best of several launches: others may use the machine.
Rate measure(const Case& c, int threads, double seconds) {
  const std::string header = c.text.find(".version") != std::string::npos
                                 ? ""
                                 : ".version 8.7\n.target sm_" + std::to_string(c.arch) + "a\n.address_size 64\n";
  const auto module = std::make_shared<const sim::ptx::Module>(sim::ptx::parse(header + c.text));
  const auto kernel = sim::build_kernel(module, "k", {}, c.arch);
  sim::GlobalMemory memory;
  const uint32_t blocks = static_cast<uint32_t>(threads) * 2;
  const uint64_t buffer = memory.allocate(blocks * 16384 + 16384);
  std::memset(reinterpret_cast<void*>(buffer), 0x3c, blocks * 16384 + 16384);
  Rate best;
  uint32_t turns = c.turns;
  double spent = 0;
  for (int round = 0; spent < seconds || round < 3; ++round) {
    sim::Launch launch;
    launch.kernel = kernel.get();
    launch.grid = {blocks, 1, 1};
    launch.block = {128, 1, 1};
    launch.dynamic_shared = c.shared;
    launch.params.resize(kernel->param_bytes);
    std::memcpy(launch.params.data(), &buffer, 8);
    std::memcpy(launch.params.data() + 8, &turns, 4);
    launch.global = &memory;
    launch.arch = c.arch;
    launch.threads = threads;
    const double processor = processor_seconds(), clock = clock_seconds();
    sim::run(launch);
    const double used = processor_seconds() - processor, passed = clock_seconds() - clock;
    spent += passed;
    const double work =
        c.products > 0 ? c.products * turns * blocks : static_cast<double>(launch.instructions.load()) * c.active_lanes;
    if (passed < seconds / 8 && turns < 1u << 20) {  // too short to be told from its start
      turns *= 2;
      continue;
    }
    best.of_thread = std::max(best.of_thread, work / used);
    best.of_machine = std::max(best.of_machine, work / passed);
  }
  return best;
}

void print(const std::vector<Case>& cases, const std::vector<std::string>& words, const char* unit, double scale,
           int threads, double seconds) {
  const auto wanted = [&](const Case& c) {
    return words.empty() || std::any_of(words.begin(), words.end(),
                                        [&](const std::string& w) { return c.name.find(w) != std::string::npos; });
  };
  if (std::none_of(cases.begin(), cases.end(), wanted)) return;
  std::printf("%-44s %14s %14s\n", unit, "one thread", (std::to_string(threads) + " threads").c_str());
  for (const Case& c : cases) {
    if (!wanted(c)) continue;
    const Rate rate = measure(c, threads, seconds);
    std::printf("%-44s %14.1f %14.1f\n", c.name.c_str(), rate.of_thread / scale, rate.of_machine / scale);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int count, char** arguments) try {
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  double seconds = 0.5;
  std::vector<std::string> words;
  for (int i = 1; i < count; ++i) {
    const std::string word = arguments[i];
    if (word == "--threads" && i + 1 < count)
      threads = std::max(1, std::atoi(arguments[++i]));
    else if (word == "--seconds" && i + 1 < count)
      seconds = std::atof(arguments[++i]);
    else
      words.push_back(word);
  }
  std::vector<Case> scalar = scalar_cases();
  scalar.push_back(compiled_kernel());
  print(scalar, words, "million lane-instructions a second", 1e6, threads, seconds);
  print(product_cases(), words, "billion multiply-adds a second", 1e9, threads, seconds);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "bench_simulator: %s\n", e.what());
  return 1;
}
