// SPDX-License-Identifier: Apache-2.0
// Values that depend on shared or tensor memory that nobody has written (docs/simulator.md, "Undefined values"): each
// way to an address, a decision or the output, and beside it the same kernel with a value that reaches none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "sim/memory/tensor_map.h"
#include "tests/sim/async.h"
#include "tests/sim/driver.h"

namespace {

using namespace sim_test;
using sim::Strictness;

struct Case {
  std::string name;
  // Kernels whose undefined value arrives somewhere, and nowhere.
  std::string bad, good;
  std::string report{};  // what the first is reported as; empty: it is in the output
  uint32_t threads = 32;
  int arch = 90;
  std::string where{};  // the end of the report
};

// %r1 is a buffer, %r2 mbarriers, %r3 the thread, %p1 thread 0, %rd2 the input, %rd4 the thread's word of the output,
// %r5 its word of the buffer and %r6 what it has loaded from there.
std::string entry(const std::string& body, const std::string& before = "") {
  return before + R"(
.visible .entry k(.param .u64 p_in, .param .u64 p_out, .param .u64 p_map, .param .u64 p_six_bit_map)
{
  .shared .align 1024 .b8 buffer[16384];
  .shared .align 8 .b64 bars[8];
  .local .align 16 .b8 depot[16];)" +
         std::string(kRegisters) + R"(
  ld.param.u64 %rd2, [p_in];
  ld.param.u64 %rd3, [p_out];
  ld.param.u64 %rd6, [p_map];
  ld.param.u64 %rd7, [p_six_bit_map];
  mov.u32 %r1, buffer;
  mov.u32 %r2, bars;
  mov.u32 %r3, %tid.x;
  mad.wide.u32 %rd4, %r3, 4, %rd3;
  setp.eq.u32 %p1, %r3, 0;
  mad.lo.u32 %r5, %r3, 4, %r1;
)" + body +
         "  ret;\n}\n";
}

const std::string kLoad = "ld.shared.u32 %r6, [%r5];\n";
std::string loaded(const std::string& body) { return entry(kLoad + body); }
// Computes %r7 from the undefined %r6 and stores it.
Case computed(const std::string& name, const std::string& bad, const std::string& good) {
  const std::string store = "\nst.global.u32 [%rd4], %r7;\n";
  return {name, loaded(bad + store), loaded(good + store)};
}
// Decides by the predicate %p2, which an undefined value has set or not.
Case decided(const std::string& name, const std::string& bad, const std::string& good) {
  const std::string branch = "\n@%p2 bra OVER;\nst.global.u32 [%rd4], %r3;\nOVER:\n";
  return {name, loaded(bad + branch), loaded(good + branch), "whether bra is executed depends on "};
}

// Computes by a branch that an undefined value decides.
std::string skipped(const std::string& branch, const std::string& behind = "") {
  return "mov.u32 %r7, 1;\nmov.u32 %r10, 3;\nsetp.eq.u32 %p3, %r3, 99;\nsetp.eq.u32 %p2, %r6, 1;\n" + branch +
         "\nadd.u32 %r11, %r3, 1;\n" + (behind.empty() ? "mov.u32 %r7, %r11;" : "") + "\nOVER:\n" + behind + "\n";
}

// One of two sides, as nvcc writes it. It is undefined which, where the predicate is %p2.
std::string chosen(const std::string& predicate, const std::string& nearer, const std::string& farther) {
  return "mov.u32 %r7, 1;\nsetp.eq.u32 %p3, %r3, 99;\nsetp.eq.u32 %p2, %r6, 1;\n@" + predicate +
         " bra FARTHER;\nbra.uni NEARER;\nNEARER:\n" + nearer + "\nbra.uni OVER;\nFARTHER:\n" + farther + "\nOVER:\n";
}
// A side that chooses in its turn.
std::string within(const std::string& farther, const std::string& predicate = "%p3") {
  return "@" + predicate + " bra IN;\nmov.u32 %r8, 2;\nbra.uni OVER;\nIN:\n" + farther;
}

// Of the fragments of four matrices of 8 rows of 16 bytes, rows 0 to 7 are written and rows 8 to 15 are not.
const std::string kFragments = R"(
  mad.lo.u32 %r7, %r3, 16, %r1;
  mov.b32 %r8, 0x3f803f80;
  and.b32 %r9, %r3, 8;
  setp.eq.u32 %p2, %r9, 0;
  @%p2 st.shared.v4.b32 [%r7], {%r8, %r8, %r8, %r8};
  bar.warp.sync -1;
)";

// Of A of a wmma.mma rows 8 to 15 are not written. D has rows 0 to 7 in %f0, %f1, %f4 and %f5.
std::string tile_product(const std::string& last_rows) {
  return entry(R"(
  mad.lo.u32 %r7, %r3, 16, %r1;
  mov.b32 %r8, 0x3f803f80;
  setp.lt.u32 %p2, %r3, 16;
  @%p2 st.shared.v4.b32 [%r7], {%r8, %r8, %r8, %r8};
  bar.warp.sync -1;
  wmma.load.a.sync.aligned.row.m16n16k16.shared.bf16 {%r10, %r11, %r12, %r13}, [%r1];
  mov.f32 %f9, 1.0;
  wmma.mma.sync.aligned.row.col.m16n16k16.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7},
    {%r10, %r11, %r12, %r13}, {%r8, %r8, %r8, %r8}, {%f9, %f9, %f9, %f9, %f9, %f9, %f9, %f9};
  wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd3], {%f0, %f1, )" +
               last_rows + "};\n");
}

// A product of zeros whose metadata are in a register. All modifiers may stand anywhere.
std::string sparse_product(const std::string& opcode, const std::string& metadata) {
  return loaded("and.b32 %r7, %r6, 0;\nor.b32 %r8, %r7, 0x44444444;\n" + opcode +
                " {%f0, %f1, %f2, %f3}, {%r7, %r7}, {%r7, %r7}, {%r7, %r7, %r7, %r7}, " + metadata + ", 0;\n");
}

// A product of 64 rows of 16 elements, without a swizzle, of which the last 8 of each 16 rows are not written.
std::string wgmma(const std::string& store) {
  return entry(R"(
  mov.b32 %r10, 0x3f803f80;
  mad.lo.u32 %r9, %r3, 16, %r1;
  st.shared.v4.b32 [%r9+4096], {%r10, %r10, %r10, %r10};
  and.b32 %r11, %r3, 16;
  setp.eq.u32 %p2, %r11, 0;
  @%p2 st.shared.v4.b32 [%r9], {%r10, %r10, %r10, %r10};
  fence.proxy.async.shared::cta;
  bar.sync 0;
  shr.u32 %r9, %r1, 4;
  and.b32 %r9, %r9, 0x3fff;
  cvt.u64.u32 %rd20, %r9;
  or.b64 %rd20, %rd20, 0x1000080000;
  add.u64 %rd21, %rd20, 256;
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f40, %f41, %f42, %f43}, %rd20, %rd21, 0, 1, 1, 0, 0;
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
)" + store);
}

// Warps 0 to 3 with 64 columns of tensor memory at column 0, of which the warps' own lanes are at %r20.
std::string tensor(const std::string& body) {
  return entry(R"(
  shr.u32 %r19, %r3, 5;
  shl.b32 %r20, %r19, 21;
  setp.eq.u32 %p2, %r19, 0;
  @!%p2 bra ALLOCATED;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [bars+32], 64;
ALLOCATED:
  bar.sync 0;
  tcgen05.fence::after_thread_sync;
)" + body + R"(
  bar.sync 0;
  @!%p2 bra FREED;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 0, 64;
FREED:
)");
}

// A product of 128 rows of A, of which the first 64 are not written, and 64 columns.
std::string tensor_product(const std::string& store) {
  return tensor(R"(
  mov.u32 %r8, 0;
ONES:
  mad.lo.u32 %r9, %r8, 512, %r5;
  mov.u32 %r10, 0x3f803f80;
  st.shared.u32 [%r9+8192], %r10;
  add.u32 %r8, %r8, 1;
  setp.lt.u32 %p3, %r8, 16;
  @%p3 bra ONES;
  fence.proxy.async.shared::cta;
  @%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
  bar.sync 0;
  cvt.u64.u32 %rd20, %r1;
  shr.u64 %rd20, %rd20, 4;
  add.s64 %rd20, %rd20, 0x4000404000000000;
  add.s64 %rd21, %rd20, 512;
  @%p1 tcgen05.mma.cta_group::1.kind::f16 [0], %rd20, %rd21, 0x8100490, 0;
  @%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r2];
W:
  mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r2], 0;
  @!%p9 bra W;
  tcgen05.fence::after_thread_sync;
  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r7}, [%r20];
  tcgen05.wait::ld.sync.aligned;
  setp.ge.u32 %p4, %r3, 64;
)" + store);
}

// Copies global memory with an undefined word to shared memory in some way, and loads a word of that.
std::string copied(const std::string& copy, const std::string& load) {
  return loaded(
      "st.global.u32 [%rd4], %r3;\n@%p1 st.global.u32 [%rd4+16], %r6;\nbar.sync 0;\n@%p1 "
      "mbarrier.init.shared::cta.b64 [%r2], 1;\n@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], "
      "1024;\nbar.sync 0;\n" +
      copy + load +
      "setp.eq.u32 %p2, %r7, 99;\n@%p2 bra OVER;\nst.global.u32 [%rd4], 1;\nOVER:\nst.global.u32 [%rd3+16], "
      "1;\n");
}
const std::string kWaited = "W: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r2], 0;\n @!%p9 bra W;\n";

const std::string kFunction = R"(
.func (.param .b32 out) twice(.param .b32 in)
{
  .reg .b32 %a<3>;
  ld.param.u32 %a1, [in];
  add.u32 %a2, %a1, %a1;
  st.param.u32 [out], %a2;
  ret;
}
)";
std::string call(const std::string& argument) {
  return entry(kLoad + R"(
  { .param .b32 a; .param .b32 b;
  st.param.u32 [a], %r6;
  call.uni (b), twice, (a);
  ld.param.u32 %r7, [b]; }
  { .param .b32 c; .param .b32 d;
  st.param.u32 [c], )" +
                   argument +
                   R"(;
  call.uni (d), twice, (c);
  ld.param.u32 %r7, [d]; }
  st.global.u32 [%rd4], %r7;
)",
               kFunction);
}

// The output is a tensor of 16 rows of 32 words, of which %rd6 has the map.
const std::string
    kBulkLoad =
        "@%p1 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1+4096], [%rd3], 1024, "
        "[%r2];\n" +
        kWaited,
    kTensorLoad =
        "mov.u32 %r8, 0;\n@%p1 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
        "[%r1+4096], [%rd6, {%r8, %r8}], [%r2];\n" +
        kWaited,
    kCpAsync =
        "@%p1 cp.async.ca.shared.global [%r1+4112], [%rd3+16], 8;\ncp.async.wait_all;\n@%p1 "
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1+8192], [%rd2], 1024, "
        "[%r2];\n" +
        kWaited + "bar.sync 0;\n";
std::string tensor_store(const std::string& written) {
  return entry(written + R"(
  mad.lo.u32 %r7, %r3, 16, %r1;
  @%p2 st.shared.v4.u32 [%r7], {%r3, %r3, %r3, %r3};
  fence.proxy.async.shared::cta;
  bar.sync 0;
  mov.u32 %r8, 0;
  mov.u32 %r9, 12;
  @%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd6, {%r8, %r9}], [%r1];
  @%p1 cp.async.bulk.commit_group;
  @%p1 cp.async.bulk.wait_group 0;
  ld.shared.u32 %r6, [%r5+4096];
)");
}
// A row of 128 elements of 6 bits, each in a byte of its own, as words of which `kept` is undefined.
std::string six_bit_store(const std::string& kept) {
  return loaded("and.b32 %r7, %r6, " + kept + R"(;
  st.shared.u32 [%r5], %r7;
  fence.proxy.async.shared::cta;
  bar.sync 0;
  mov.u32 %r8, 0;
  @%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd7, {%r8, %r8}], [%r1];
  @%p1 cp.async.bulk.commit_group;
  @%p1 cp.async.bulk.wait_group 0;
)");
}
// Stores matrices of which the last one is `value`, and reads them all back.
std::string stored_matrix(int matrices, const std::string& value) {
  std::string fragments = "{";
  for (int i = 1; i < matrices; ++i) fragments += "%r3, ";
  std::string body = "mad.lo.u32 %r9, %r3, 16, %r1;\nstmatrix.sync.aligned.m8n8.x" + std::to_string(matrices) +
                     ".shared.b16 [%r9], " + fragments + value + "};\nbar.warp.sync -1;\n";
  for (int i = 0; i < matrices; ++i)
    body += "ld.shared.u32 %r7, [%r5+" + std::to_string(128 * i) + "];\nst.global.u32 [%rd4+" +
            std::to_string(128 * i) + "], %r7;\n";
  return loaded(body);
}
const std::string kStoreAsync = "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32",
                  kAddAsync = "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32",
                  kStoreSum = "st.shared.u32 [%r5+4096], %r3;\n";
std::string async_store(const std::string& opcode, const std::string& value, const std::string& before = "") {
  return loaded(before + R"(
  @%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;
  bar.sync 0;
  )" + opcode + " [%r5+4096], " +
                value + ", [%r2];\n" + kWaited + "ld.shared.u32 %r7, [%r5+4096];\nst.global.u32 [%rd4], %r7;\n");
}

// Adds words of shared memory that are written to others of the same block.
std::string bulk_reduction(const std::string& before) {
  return loaded("st.shared.u32 [%r5], %r3;\n" + before + R"(
  @%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;
  fence.proxy.async.shared::cta;
  bar.sync 0;
  add.u32 %r7, %r1, 4096;
  mapa.shared::cluster.u32 %r7, %r7, 0;
  mapa.shared::cluster.u32 %r8, %r2, 0;
  @%p1 cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%r7], [%r1], 128, [%r8];
)" + kWaited + "ld.shared.u32 %r7, [%r5+4096];\nst.global.u32 [%rd4], %r7;\n");
}

const std::string kAllButOne =
    "setp.ne.u32 %p2, %r3, 1;\n@%p2 st.shared.u32 [%r5], %r3;\nbar.warp.sync -1;\nld.shared.v2.u32 {%r9, %r10}, "
    "[%r1];\n";

// %r7 is an address that depends on uninitialised memory in lane 3, which %p2 excludes.
std::string in_one_lane(const std::string& body) {
  return entry("setp.ne.u32 %p2, %r3, 3;\n@%p2 st.shared.u32 [%r5], 0;\n" + kLoad +
               "and.b32 %r7, %r6, 4;\nadd.u32 %r7, %r5, %r7;\n" + body);
}
// Words of the output are undefined, and thread 0 does something to them with words of shared memory that are not.
std::string over_the_output(const std::string& copy) {
  return loaded("st.global.u32 [%rd4], %r6;\nst.shared.u32 [%r5+4096], %r3;\nfence.proxy.async;\nbar.sync 0;\n@%p1 " +
                copy +
                " [%rd3], [%r1+4096], 128;\n@%p1 cp.async.bulk.commit_group;\n@%p1 cp.async.bulk.wait_group 0;\n");
}

std::vector<Case> cases() {
  const std::string of_the_last_lanes = "and.b32 %r11, %r3, 31;\nsetp.ge.u32 %p2, %r11, 28;\n";
  std::vector<Case> all = {
      // ---- addresses and decisions ----
      {"an address in shared memory", loaded("and.b32 %r7, %r6, 4;\nadd.u32 %r7, %r5, %r7;\nst.shared.u32 [%r7], 1;\n"),
       loaded("and.b32 %r7, %r6, 0;\nadd.u32 %r7, %r5, %r7;\nst.shared.u32 [%r7], 1;\n"),
       "the address of st.shared.u32 depends on "},
      {"an address in global memory",
       loaded("and.b32 %r7, %r6, 7;\nmad.wide.u32 %rd5, %r7, 4, %rd2;\nld.global.u32 %r8, [%rd5];\n"),
       loaded("shr.u32 %r7, %r6, 31;\nshr.u32 %r7, %r7, 1;\nmad.wide.u32 %rd5, %r7, 4, %rd2;\nld.global.u32 %r8, "
              "[%rd5];\n"),
       "the address of ld.global.u32 depends on "},
      // Lane 3 alone loads what nobody has written.
      {"an address in one lane", in_one_lane("@!%p2 st.shared.u32 [%r7], 1;\n"),
       in_one_lane("@%p2 st.shared.u32 [%r7], 1;\n"), "the address of st.shared.u32 depends on ", 32, 90, ", lane 3"},
      decided("a comparison", "setp.eq.u32 %p2, %r6, 5;", "setp.ge.u32 %p2, %r6, 0;"),
      decided("a comparison with what is not a likely value", "setp.eq.u32 %p2, %r6, %r3;",
              "setp.eq.u32 %p2, %r6, %r6;"),
      decided("a condition that another may decide", "setp.lt.u32 %p3, %r6, 9;\nsetp.lt.and.u32 %p2, %r3, 8, %p3;",
              "setp.lt.u32 %p3, %r6, 9;\nsetp.lt.and.u32 %p2, %r3, 0, %p3;"),
      decided("a vote", "setp.lt.u32 %p3, %r6, 9;\nvote.sync.any.pred %p2, %p3, -1;",
              "setp.lt.u32 %p3, %r6, 9;\nor.pred %p3, %p3, %p1;\nvote.sync.any.pred %p2, %p3, -1;"),
      decided("a float", "mov.b32 %f1, %r6;\nsetp.gt.f32 %p2, %f1, 0f00000000;",
              "mov.b32 %f1, %r6;\nabs.f32 %f1, %f1;\nsetp.lt.f32 %p2, %f1, 0f00000000;"),
      {"a store that a predicate guards", loaded("setp.lt.u32 %p2, %r6, 9;\n@%p2 st.shared.u32 [%r5+1024], 1;\n"),
       loaded("setp.lt.u32 %p2, %r6, 9;\nselp.b32 %r7, 1, 1, %p2;\nst.global.u32 [%rd4], %r7;\n"),
       "whether st.shared.u32 is executed depends on "},
      {"an operand of an mbarrier",
       loaded("and.b32 %r7, %r6, 1;\nadd.u32 %r7, %r7, 1;\n@%p1 "
              "mbarrier.init.shared::cta.b64 [%r2], %r7;\n"),
       loaded("and.b32 %r7, %r6, 0;\nadd.u32 %r7, %r7, 1;\n@%p1 mbarrier.init.shared::cta.b64 [%r2], %r7;\n"),
       "an operand of mbarrier.init.shared::cta.b64 depends on "},
      {"the address of an mbarrier",
       loaded("and.b32 %r7, %r6, 8;\nadd.u32 %r7, %r2, %r7;\n@%p1 mbarrier.init.shared::cta.b64 [%r7], 1;\n"),
       loaded("and.b32 %r7, %r6, 0;\nadd.u32 %r7, %r2, %r7;\n@%p1 mbarrier.init.shared::cta.b64 [%r7], 1;\n"),
       "an operand of mbarrier.init.shared::cta.b64 depends on "},
      {"the destination of a copy",
       loaded("and.b32 %r7, %r6, 4;\nadd.u32 %r7, %r5, %r7;\ncp.async.ca.shared.global [%r7], [%rd2], 4;\n"
              "cp.async.wait_all;\n"),
       loaded("and.b32 %r7, %r6, 0;\nadd.u32 %r7, %r5, %r7;\ncp.async.ca.shared.global [%r7], [%rd2], 4;\n"
              "cp.async.wait_all;\n"),
       "an operand of cp.async.ca.shared.global depends on "},
      {"the number of a barrier", loaded("and.b32 %r7, %r6, 1;\nbar.sync %r7, 32;\n"),
       loaded("and.b32 %r7, %r6, 0;\nbar.sync %r7, 32;\n"), "an operand of bar.sync depends on "},
      // ---- the output, by way of arithmetic ----
      computed("a value", "mov.u32 %r7, %r6;", "mov.u32 %r7, %r6;\nmov.u32 %r7, %r3;"),
      computed("a sum", "add.u32 %r7, %r6, %r3;", "sub.u32 %r7, %r6, %r6;"),
      computed("a product", "mul.lo.u32 %r7, %r6, 2;", "mul.lo.u32 %r7, %r6, 0;"),
      computed("a float product", "mov.b32 %f1, %r6;\nmul.f32 %f2, %f1, 0f00000000;\nmov.b32 %r7, %f2;",
               "mov.b32 %f1, %r6;\nmul.f32 %f2, %f1, 0f00000000;\nmax.f32 %f2, %f2, 0f00000000;\nmin.f32 %f2, %f2, "
               "0f00000000;\nmov.b32 %r7, %f2;"),
      // Zero and the float of all ones, which is no number, give 0.
      computed("an integer of a float", "mov.b32 %f1, %r6;\ncvt.rzi.u32.f32 %r7, %f1;",
               "or.b32 %r7, %r6, 0x80000000;\nmov.b32 %f1, %r7;\ncvt.rzi.u32.f32 %r7, %f1;"),
      computed("a selection", "selp.u32 %r7, %r6, %r3, %p1;",
               "setp.gt.u32 %p2, %r3, 99;\nselp.u32 %r7, %r6, %r3, %p2;"),
      computed("a minimum", "min.u32 %r7, %r6, 7;", "min.u32 %r7, %r6, 0;"),
      computed("a carry", "add.cc.u32 %r8, %r6, %r6;\naddc.u32 %r7, %r3, 0;",
               "add.cc.u32 %r8, %r6, %r6;\nadd.cc.u32 %r8, %r3, 1;\naddc.u32 %r7, %r3, 0;"),
      computed("a guarded instruction", "setp.lt.u32 %p2, %r6, 9;\nmov.u32 %r7, 1;\n@%p2 mov.u32 %r7, 2;",
               "setp.lt.u32 %p2, %r6, 9;\nmov.u32 %r7, 2;\n@%p2 mov.u32 %r7, 2;"),
      computed("a parameter of the kernel", "mov.u32 %r7, %r6;\n@!%p1 ld.param.u32 %r7, [p_in];",
               "mov.u32 %r7, %r6;\nld.param.u32 %r7, [p_in];"),
      computed("what does not compute", "activemask.b32 %r7;\nmov.u32 %r7, %r6;",
               "mov.u32 %r7, %r6;\nactivemask.b32 %r7;"),
      // ---- parts of a register ----
      {"bytes",
       entry("st.shared.u8 [%r5], %r3;\n" + kLoad +
             "prmt.b32 %r7, %r6, 0, 0x4441;\nst.global.u32 [%rd4], "
             "%r7;\n"),
       entry("st.shared.u8 [%r5], %r3;\n" + kLoad + "prmt.b32 %r7, %r6, 0, 0x4440;\nst.global.u32 [%rd4], %r7;\n")},
      {"bits", entry("st.shared.u16 [%r5+2], 9;\n" + kLoad + "bfe.u32 %r7, %r6, 8, 9;\nst.global.u32 [%rd4], %r7;\n"),
       entry("st.shared.u16 [%r5+2], 9;\n" + kLoad + "bfe.u32 %r7, %r6, 16, 9;\nst.global.u32 [%rd4], %r7;\n")},
      {"the sign",
       entry("st.shared.u8 [%r5], 1;\nld.shared.s16 %r7, [%r5];\nshr.u32 %r7, %r7, 24;\nst.global.u32 "
             "[%rd4], %r7;\n"),
       entry("st.shared.u8 [%r5], 1;\nld.shared.u16 %r7, [%r5];\nshr.u32 %r7, %r7, 24;\nst.global.u32 [%rd4], "
             "%r7;\n")},
      {"elements of a vector", entry(kAllButOne + "st.global.u32 [%rd4], %r10;\n"),
       entry(kAllButOne + "st.global.u32 [%rd4], %r9;\n")},
      // ---- lanes ----
      {"a shuffle",
       entry("@%p1 st.shared.u32 [%r5], %r3;\n" + kLoad +
             "shfl.sync.idx.b32 %r7, %r6, 1, 31, "
             "-1;\nst.global.u32 [%rd4], %r7;\n"),
       entry("@%p1 st.shared.u32 [%r5], %r3;\n" + kLoad +
             "shfl.sync.idx.b32 %r7, %r6, 0, 31, -1;\nst.global.u32 "
             "[%rd4], %r7;\n")},
      {"a sum over a warp", loaded("redux.sync.add.u32 %r7, %r6, -1;\nst.global.u32 [%rd4], %r7;\n"),
       loaded("and.b32 %r6, %r6, 0;\nredux.sync.add.u32 %r7, %r6, -1;\nst.global.u32 [%rd4], %r7;\n")},
      {"fragments of mma", entry(kFragments + R"(
  ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r7];
  mov.b32 %f1, 0f00000000;
  mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
    {%f2, %f3, %f4, %f5}, {%r10, %r11, %r12, %r13}, {%r8, %r8}, {%f1, %f1, %f1, %f1};
  st.global.f32 [%rd4], %f4;
)"),
       ""},
      // ---- memory on the way ----
      {"shared memory",
       loaded("st.shared.u32 [%r5+4096], %r6;\nld.shared.u32 %r7, [%r5+4096];\nst.global.u32 [%rd4], "
              "%r7;\n"),
       loaded("st.shared.u32 [%r5+4096], %r6;\nst.shared.u32 [%r5+4096], %r3;\nld.shared.u32 %r7, "
              "[%r5+4096];\nst.global.u32 [%rd4], %r7;\n")},
      {"bits in shared memory",
       loaded("and.b32 %r7, %r6, 15;\nst.shared.u32 [%r5+4096], %r7;\nld.shared.u32 %r7, "
              "[%r5+4096];\nand.b32 %r7, %r7, 24;\nst.global.u32 [%rd4], %r7;\n"),
       loaded("and.b32 %r7, %r6, 15;\nst.shared.u32 [%r5+4096], %r7;\nld.shared.u32 %r7, [%r5+4096];\nand.b32 %r7, "
              "%r7, 16;\nst.global.u32 [%rd4], %r7;\n")},
      {"local memory",
       loaded("st.local.u32 [depot+4], %r6;\nld.local.u32 %r7, [depot+4];\nst.global.u32 [%rd4], %r7;\n"),
       loaded("st.local.u32 [depot+4], %r6;\nld.local.u32 %r7, [depot+8];\nst.global.u32 [%rd4], %r7;\n")},
      {"global memory",
       loaded("st.global.u32 [%rd4], %r6;\nld.global.u32 %r7, [%rd4];\nsetp.eq.u32 %p2, %r7, 1;\n@%p2 "
              "bra OVER;\nst.global.u32 [%rd4], %r3;\nOVER:\n"),
       loaded("st.global.u32 [%rd4], %r6;\nst.global.u32 [%rd4], %r3;\nld.global.u32 %r7, [%rd4];\nsetp.eq.u32 %p2, "
              "%r7, 1;\n@%p2 bra OVER;\nst.global.u32 [%rd4], %r3;\nOVER:\n"),
       "whether bra is executed depends on "},
      {"an argument", call("%r6"), call("%r3")},
      // ptxas makes a guard of a branch over what only computes.
      computed("a branch over computation", skipped("@%p2 bra OVER;"), skipped("@%p2 bra OVER;") + "mov.u32 %r7, 1;\n"),
      computed("a branch of one lane over computation", "selp.u32 %r6, %r6, 0, %p1;\n" + skipped("@%p2 bra OVER;"),
               "selp.u32 %r6, 0, %r6, %p1;\n" + skipped("@%p2 bra OVER;") + "selp.u32 %r7, %r7, 1, %p1;\n"),
      computed("a negated branch over computation", skipped("@!%p2 bra OVER;"),
               skipped("@!%p2 bra OVER;") + "mov.u32 %r7, 1;\n"),
      computed("a branch over a predicate", skipped("@%p2 bra OVER;\nsetp.eq.u32 %p3, %r3, 1;", "@%p3 mov.u32 %r7, 2;"),
               skipped("@%p2 bra OVER;\nsetp.eq.u32 %p3, %r3, 1;") + "mov.u32 %r7, 1;\n"),
      computed("a branch over both halves",
               skipped("@%p2 bra OVER;\nmov.b64 {%r8, %r7}, %rd3;", "add.u32 %r7, %r7, 1;"),
               skipped("@%p2 bra OVER;\nmov.b64 {%r8, %r9}, %rd3;", "mov.u32 %r7, %r10;")),
      computed("a branch over a parameter",
               skipped("@%p2 bra OVER;\nld.param.u32 %r7, [p_out];", "add.u32 %r7, %r7, 1;"),
               skipped("@%p2 bra OVER;\nld.param.u32 %r8, [p_out];") + "mov.u32 %r7, 1;\n"),
      // As nvcc writes the two sides of a condition.
      computed("the nearer side of a choice", chosen("%p2", "mov.u32 %r7, 2;", "mov.u32 %r8, 4;"),
               chosen("%p2", "mov.u32 %r9, 2;", "mov.u32 %r8, 4;")),
      computed("the farther side of a choice", chosen("%p2", "mov.u32 %r8, 2;", "mov.u32 %r7, 4;"),
               chosen("%p2", "mov.u32 %r8, 2;", "mov.u32 %r9, 4;")),
      computed("a choice within a choice", chosen("%p2", within("mov.u32 %r7, 2;"), "mov.u32 %r8, 4;"),
               chosen("%p2", within("mov.u32 %r9, 2;"), "mov.u32 %r8, 4;")),
      computed("a choice of one lane", "selp.u32 %r6, %r6, 0, %p1;\n" + chosen("%p2", "mov.u32 %r7, 2;", ""),
               "selp.u32 %r6, 0, %r6, %p1;\n" + chosen("%p2", "mov.u32 %r7, 2;", "") + "selp.u32 %r7, %r7, 1, %p1;\n"),
      computed("the side that is taken", chosen("%p1", "mov.u32 %r7, %r6;", "mov.u32 %r7, 4;"),
               chosen("%p1", "mov.u32 %r7, %r6;", "mov.u32 %r7, 4;") + "selp.u32 %r7, %r7, 1, %p1;\n"),
      computed("what the other side computes", chosen("%p1", within("mov.u32 %r7, 2;", "%p2"), "mov.u32 %r7, 4;"),
               chosen("%p1", within("mov.u32 %r8, 2;", "%p2"), "mov.u32 %r7, 4;")),
      {"a choice that stores", loaded(chosen("%p2", "mov.u32 %r7, 2;", "st.global.u32 [%rd4], %r3;")),
       loaded(chosen("%p1", "mov.u32 %r7, 2;", "st.global.u32 [%rd4], %r3;")), "whether bra is executed depends on "},
      {"a choice that goes back", loaded("AGAIN:\n" + chosen("%p2", "@%p3 bra AGAIN;", "")),
       loaded("AGAIN:\n" + chosen("%p1", "@%p3 bra AGAIN;", "")), "whether bra is executed depends on "},
      {"a choice that ends", loaded(chosen("%p2", "ret;", "")), loaded(chosen("%p1", "ret;", "")),
       "whether bra is executed depends on "},
      {"a branch that lanes have in common", loaded(skipped("@%p2 bra.uni OVER;")), loaded(skipped("bra.uni OVER;")),
       "whether bra.uni is executed depends on "},
      {"a branch back", loaded("AGAIN:\nadd.u32 %r6, %r6, 1;\nsetp.eq.u32 %p2, %r6, 1;\n@%p2 bra AGAIN;\n"),
       loaded("AGAIN:\nadd.u32 %r6, %r6, 1;\nsetp.eq.u32 %p2, %r3, 77;\n@%p2 bra AGAIN;\n"),
       "whether bra is executed depends on "},
      {"a branch over a carry", loaded("setp.eq.u32 %p2, %r6, 1;\n@%p2 bra OVER;\nadd.cc.u32 %r7, %r3, %r3;\nOVER:\n"),
       loaded("setp.eq.u32 %p2, %r6, 1;\n@%p2 bra OVER;\nadd.u32 %r7, %r3, %r3;\nOVER:\n"),
       "whether bra is executed depends on "},
      {"a counter", entry("atom.shared.add.u32 %r7, [%r1+64], 1;\nst.global.u32 [%rd4], %r7;\n"),
       entry("@%p1 atom.shared.exch.b32 %r7, [%r1+64], 1;\nbar.warp.sync -1;\natom.shared.add.u32 %r7, [%r1+64], "
             "1;\nst.global.u32 [%rd4], %r7;\n")},
      {"a bulk store",
       entry("setp.lt.u32 %p2, %r3, 31;\n@%p2 st.shared.u32 [%r5], %r3;\nfence.proxy.async;\nbar.sync "
             "0;\n@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd3], [%r1], 128;\n@%p1 "
             "cp.async.bulk.commit_group;\n@%p1 cp.async.bulk.wait_group 0;\n"),
       entry("setp.lt.u32 %p2, %r3, 28;\n@%p2 st.shared.u32 [%r5], %r3;\nld.shared.u32 %r7, "
             "[%r5];\nfence.proxy.async;\nbar.sync 0;\n@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd3], [%r1], "
             "112;\n@%p1 cp.async.bulk.commit_group;\n@%p1 cp.async.bulk.wait_group 0;\n")},
      {"a bulk reduction of undefined words",
       over_the_output("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32"),
       over_the_output("cp.async.bulk.global.shared::cta.bulk_group")},
      {"a bulk load", copied(kBulkLoad, "ld.shared.u32 %r7, [%r1+4112];\n"),
       copied(kBulkLoad, "ld.shared.u32 %r7, [%r1+4116];\n"), "whether bra is executed depends on "},
      {"a tensor load", copied(kTensorLoad, "ld.shared.u32 %r7, [%r1+4112];\n"),
       copied(kTensorLoad, "ld.shared.u32 %r7, [%r1+4116];\n"), "whether bra is executed depends on "},
      {"cp.async", copied(kCpAsync, "ld.shared.u32 %r7, [%r1+4112];\n"),
       copied(kCpAsync, "ld.shared.u32 %r7, [%r1+4116];\n"), "whether bra is executed depends on "},
      // Rows 12 to 19 of a tensor that has 16.
      {"a tensor store", tensor_store("setp.lt.u32 %p2, %r3, 24;\n"), tensor_store("setp.lt.u32 %p2, %r3, 32;\n")},
      {"a tensor store of 6 bits", six_bit_store("0x3f000000"), six_bit_store("0xc0c0c0c0"), "", 32, 100},
      {"a matrix that stmatrix stores", stored_matrix(1, "%r6"), stored_matrix(1, "%r3")},
      {"the last of two matrices that stmatrix stores", stored_matrix(2, "%r6"), stored_matrix(2, "%r3")},
      {"the last of four matrices that stmatrix stores", stored_matrix(4, "%r6"), stored_matrix(4, "%r3")},
      {"a value that st.async stores", async_store(kStoreAsync, "%r6"), async_store(kStoreAsync, "%r3")},
      {"a word that red.async adds to", async_store(kAddAsync, "%r3"), async_store(kAddAsync, "%r3", kStoreSum)},
      {"a value that red.async adds", async_store(kAddAsync, "%r6", kStoreSum),
       async_store(kAddAsync, "%r3", kStoreSum)},
      {"words that a bulk copy adds to", bulk_reduction(""), bulk_reduction(kStoreSum)},
      // ---- products ----
      {"fragments of wmma", tile_product("%f2, %f3, %f4, %f5, %f6, %f7"), tile_product("%f9, %f9, %f4, %f5, %f9, %f9")},
      {"metadata of a sparse product", sparse_product("mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "%r6"),
       sparse_product("mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "%r8"), "the metadata of mma.sp"},
      {"metadata of a product that is called sparse last",
       sparse_product("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32.sp::ordered_metadata", "%r6"),
       sparse_product("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32.sp::ordered_metadata", "%r8"),
       "the metadata of mma.sync"},
      {"rows of wgmma", wgmma("mad.wide.u32 %rd5, %r3, 4, %rd4;\nst.global.v2.f32 [%rd5], {%f42, %f43};\n"), "", "",
       128},
      {"the last lanes of wgmma", wgmma(of_the_last_lanes + "@%p2 st.global.f32 [%rd4], %f42;\n"),
       wgmma(of_the_last_lanes + "@%p2 st.global.f32 [%rd4], %f40;\n"), "", 128},
      {"tensor memory",
       tensor("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r7}, [%r20];\ntcgen05.wait::ld.sync.aligned;\n"
              "st.global.u32 [%rd4], %r7;\n"),
       tensor("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r7}, [%r20];\ntcgen05.wait::ld.sync.aligned;\nst.shared.u32 "
              "[%r5+4096], %r7;\n"),
       "", 128, 100},
      {"rows of tcgen05.mma", tensor_product("st.global.u32 [%rd4], %r7;\n"),
       tensor_product("@%p4 st.global.u32 [%rd4], %r7;\n"), "", 128, 100},
      {"stores to tensor memory",
       tensor("ld.shared.u32 %r6, [%r5+4096];\ntcgen05.st.sync.aligned.32x32b.x2.b32 [%r20], {%r6, %r3};\n"
              "tcgen05.wait::st.sync.aligned;\ntcgen05.ld.sync.aligned.32x32b.x1.b32 {%r7}, [%r20];\n"
              "tcgen05.wait::ld.sync.aligned;\nst.global.u32 [%rd4], %r7;\n"),
       tensor("ld.shared.u32 %r6, [%r5+4096];\ntcgen05.st.sync.aligned.32x32b.x2.b32 [%r20], {%r6, %r3};\n"
              "tcgen05.wait::st.sync.aligned;\nadd.u32 %r20, %r20, 1;\ntcgen05.ld.sync.aligned.32x32b.x1.b32 {%r7}, "
              "[%r20];\ntcgen05.wait::ld.sync.aligned;\nst.global.u32 [%rd4], %r7;\n"),
       "", 128, 100},
  };
  for (Case& one : all) {
    const auto mended = [&](const std::string& from, const std::string& to) {
      one.good = one.bad;
      one.good.replace(one.good.find(from), from.size(), to);
    };
    // Rows that are not written are computed and not stored.
    if (one.name == "fragments of mma") mended("st.global.f32 [%rd4], %f4", "st.global.f32 [%rd4], %f2");
    if (one.name == "rows of wgmma") mended("{%f42, %f43}", "{%f40, %f41}");
  }
  return all;
}

struct Outcome {
  std::string report;
  std::vector<std::string> warnings;
  bool undefined = false;  // some of the output
  uint64_t multiply_adds = 0;
};

Outcome run_at(const std::string& text, const Case& one, Strictness level, const sim::Order& order) {
  sim::GlobalMemory memory;
  Buffer<uint32_t> in(memory, std::vector<uint32_t>(1024, 1)), out(memory, size_t{1024}, 0u);
  sim::TensorMapFields fields;
  fields.address = out.address();
  fields.element = sim::TensorElement::U32;
  fields.rank = 2;
  fields.dims = {32, 16, 1, 1, 1};
  fields.strides[0] = 128;
  fields.box = {32, 8, 1, 1, 1};
  std::vector<uint8_t> bytes(128);
  sim::encode(fields, bytes.data());
  Buffer<uint8_t> map(memory, bytes);
  // 16 rows of 128 elements of 6 bits, one after the other.
  fields.element = sim::TensorElement::B6x16Padded;
  fields.dims[0] = 128;
  fields.strides[0] = 96;
  fields.box = {128, 1, 1, 1, 1};
  sim::encode(fields, bytes.data());
  Buffer<uint8_t> six_bit_map(memory, bytes);
  const auto kernel = prepare_ptx(text, "k", one.arch);
  sim::Launch launch;
  launch.kernel = kernel.get();
  launch.grid = {1, 1, 1};
  launch.block = {one.threads, 1, 1};
  launch.explicit_cluster = true;
  launch.params = Params().add(in.address()).add(out.address()).add(map.address()).add(six_bit_map.address()).bytes();
  launch.global = &memory;
  launch.arch = one.arch;
  launch.order = order;
  launch.threads = 1;
  launch.rules.strictness = level;
  launch.counts = true;
  Outcome outcome;
  try {
    sim::run(launch);
  } catch (const sim::Fault& fault) {
    outcome.report = fault.what();
  }
  outcome.warnings = launch.deviations.lines();
  outcome.multiply_adds = launch.statistics.multiply_adds;
  outcome.undefined = memory.undefined.find(out.address(), out.size() * 4).address != 0;
  return outcome;
}

TEST(Undefined, AValueIsReportedWhereItArrives) {
  for (const Case& one : cases()) {
    for (const sim::Order& order : all_orders()) {
      SCOPED_TRACE(one.name);
      const testing::Matcher<std::string> arrives =
          one.report.empty() ? testing::Matcher<std::string>("")
                             : testing::AllOf(testing::StartsWith("memory: " + one.report),
                                              testing::HasSubstr(" at ptx line "), testing::EndsWith(one.where));
      for (const std::string& text : {one.bad, one.good}) {
        const Outcome isa = run_at(text, one, Strictness::Isa, order);
        EXPECT_THAT(isa.report, testing::AnyOf(testing::StartsWith("memory: reads uninitialised shared memory at "),
                                               testing::HasSubstr("in which nothing was written since")));
        EXPECT_FALSE(isa.undefined);
      }
      for (const Strictness level : {Strictness::Portable, Strictness::Field}) {
        const Outcome bad = run_at(one.bad, one, level, order), good = run_at(one.good, one, level, order);
        EXPECT_THAT(bad.report, arrives);
        EXPECT_TRUE(bad.undefined || !one.report.empty());
        EXPECT_EQ(good.report, "");
        EXPECT_FALSE(good.undefined);
        EXPECT_EQ(good.warnings.empty(), level == Strictness::Field);
      }
    }
  }
}

// What depends on an undefined value is found by computing it with several. That is one product all the same.
TEST(Undefined, AProductIsCountedOnce) {
  const Case of_wgmma{"", "", "", "", 128}, of_tcgen05{"", "", "", "", 128, 100};
  for (const sim::Order& order : all_orders()) {
    EXPECT_EQ(run_at(wgmma(""), of_wgmma, Strictness::Field, order).multiply_adds, 64u * 8 * 16);
    EXPECT_EQ(run_at(tensor_product(""), of_tcgen05, Strictness::Field, order).multiply_adds, 128u * 64 * 16);
  }
}

// A warp that holds an undefined value for a while, when a product is in flight.
TEST(Undefined, RegistersInFlightStayGuarded) {
  const auto text = [](const std::string& before, const std::string& behind) {
    std::string kernel = wgmma(behind);
    const std::string some = "@%p2 st.shared", wait = "  wgmma.wait_group";
    kernel.replace(kernel.find(some), some.size(), "st.shared");
    return kernel.insert(kernel.find(wait), before);
  };
  const std::string held = "ld.shared.u32 %r6, [%r5+8192];\nmov.u32 %r6, 0;\n", store = "st.global.f32 [%rd4], %f40;\n";
  for (const sim::Order& order : all_orders()) {
    const Case one{"", "", "", "", 128};
    EXPECT_THAT(run_at(text(held + store, ""), one, Strictness::Field, order).report,
                testing::StartsWith("registers in flight: "));
    EXPECT_EQ(run_at(text(held, store), one, Strictness::Field, order).report, "");
  }
}

// A word of two that a kernel stores is undefined. It may be copied on the device and written over; the host may read
// the other one.
TEST_F(SimDriver, TheHostReadsAnUndefinedValue) {
  const char* const text = R"(
.version 8.0
.target sm_90a
.address_size 64
.visible .entry leak(.param .u64 p_out)
{
  .shared .align 4 .b32 word;
  .reg .b32 %r<2>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [p_out];
  ld.shared.u32 %r1, [word];
  st.global.u32 [%rd1], 7;
  st.global.u32 [%rd1+4], %r1;
  ret;
}
)";
  const auto leak = [&](CUdeviceptr to) {
    CUmodule module = nullptr;
    CUfunction kernel = nullptr;
    OK(CU(cuModuleLoadData)(&module, text));
    OK(CU(cuModuleGetFunction)(&kernel, module, "leak"));
    void* params[] = {&to};
    setenv("MOXIE_SIM_STRICT", "field", 1);
    const CUresult launched = CU(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr);
    unsetenv("MOXIE_SIM_STRICT");
    OK(launched);
  };
  CUdeviceptr from = allocate(8), to = allocate(8);
  leak(from);
  EXPECT_EQ(download(from, 1)[0], 7u);
  OK(CU(cuMemcpyDtoD)(to, from, 8));
  OK(CU(cuMemsetD32)(from + 4, 5, 1));
  EXPECT_EQ(download(from, 2)[1], 5u);
  const uint32_t other = 6;
  OK(CU(cuMemcpyHtoD)(to + 4, &other, 4));
  EXPECT_EQ(download(to, 2)[1], 6u);
  // Memory that was given back is forgotten.
  leak(from);
  OK(CU(cuMemFree)(from));
  EXPECT_EQ(download(allocate(8), 2).size(), 2u);

  leak(to);
  const CUdeviceptr last = allocate(8);
  OK(CU(cuMemcpyDtoD)(last, to, 8));
  std::vector<uint32_t> words(2);
  testing::internal::CaptureStderr();
  FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuMemcpyDtoH)(words.data(), last, 8));
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      testing::MatchesRegex("memory: the host reads global memory at 0x[0-9a-f]+, where kernel 'leak' at ptx line "
                            "13 has stored what depends on uninitialised memory\n"));
  OK(CU(cuDevicePrimaryCtxReset)(0));
}

}  // namespace
