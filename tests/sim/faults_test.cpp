// SPDX-License-Identifier: Apache-2.0
// What a kernel must not do with addresses, objects and counts, each beside the nearest that it may: a row without a
// report runs to its end. Hazards of order have tests of their own (hazards_test.cpp).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "async.h"

namespace {

using namespace sim_test;

struct Row {
  // Of bulk_kernel: %r1 is a buffer of 8192 bytes, %r2 an mbarrier behind it, %rd2 and %rd3 have 4096 bytes each.
  std::string body;
  // What is reported, up to the place; * stands for anything, {in} for the address of the input.
  std::string report;
  uint32_t blocks = 1, threads = 32;
  int arch = 90;
};

// The first block has the addresses of the other's buffer and mbarrier.
const std::string
    kOther =
        "mapa.shared::cluster.u32 %r5, %r1, 1;\nmapa.shared::cluster.u32 %r6, %r2, 1;\nsetp.eq.u32 %p2, %r4, 0;\n"
        "and.pred %p1, %p1, %p2;\n",
    kMeet = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n",
    kPhase = "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r2];\n";

// True when the text begins with the pattern.
bool begins(const std::string& text, const std::string& pattern) {
  size_t at = 0;
  for (size_t from = 0; from <= pattern.size();) {
    const size_t star = std::min(pattern.find('*', from), pattern.size());
    const std::string piece = pattern.substr(from, star - from);
    const size_t found = text.find(piece, at);
    if (found == std::string::npos || (from == 0 && found != 0)) return false;
    at = found + piece.size();
    from = star + 1;
  }
  return true;
}

void check(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    SCOPED_TRACE(row.body);
    sim::GlobalMemory memory;
    Buffer<uint32_t> in(memory, size_t{1024}, 7u), out(memory, size_t{1024}, 0u);
    Shape shape;
    shape.arch = row.arch;
    shape.grid = shape.cluster = {row.blocks, 1, 1};
    shape.block = {row.threads, 1, 1};
    const std::string said = fault_of(bulk_kernel(row.body + (row.blocks > 1 ? kMeet : "")), "k",
                                      Params().add(in.address()).add(out.address()), memory, shape);
    if (row.report.empty()) {
      EXPECT_EQ(said, "");
      continue;
    }
    std::string report = row.report;
    if (const size_t at = report.find("{in}"); at != std::string::npos) {
      char text[24];
      std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(in.address()));
      report.replace(at, 4, text);
    }
    EXPECT_TRUE(begins(said, report + "* at ptx line")) << said << "\n  expected: " << report;
  }
}

TEST(Faults, OfAddresses) {
  check({
      {"mov.u64 %rd5, p_in;\nld.param.u64 %rd6, [%rd5+8];\n", ""},
      {"mov.u64 %rd5, p_in;\nld.param.u64 %rd6, [%rd5+16];\n",
       "memory: access of 8 bytes at parameter offset 0x10 passes the kernel's 16 bytes of parameters"},
      {"mov.u64 %rd5, p_in;\nld.param.u8 %r6, [%rd5+15];\n", ""},
      {"mov.u64 %rd5, p_in;\nld.param.u8 %r6, [%rd5+16];\n",
       "memory: access of 1 bytes at parameter offset 0x10 passes the kernel's 16 bytes of parameters"},
      {"mov.u64 %rd5, p_in;\nld.param.u64 %rd6, [%rd5+-8];\n", "memory: access of 8 bytes at parameter offset 0x"},
      {"mov.u64 %rd5, p_in;\ncvta.param.u64 %rd5, %rd5;\nld.u64 %rd6, [%rd5+8];\n", ""},
      {"mov.u64 %rd5, p_in;\ncvta.param.u64 %rd5, %rd5;\nld.u64 %rd6, [%rd5+16];\n",
       "memory: access of 8 bytes at parameter offset 0x10 passes"},
      {"mov.u64 %rd5, p_in;\ncvta.param.u64 %rd5, %rd5;\nst.u64 [%rd5], %rd5;\n",
       "memory: write to a kernel parameter"},
      {"mov.u64 %rd5, 0x7000000000000000;\nld.u32 %r6, [%rd5];\n",
       "memory: address 0x7000000000000000 is in no memory"},
      {"mov.u32 %r5, 0x3000000;\nst.shared::cluster.u32 [%r5], %r5;\n",
       "memory: shared address 0x3000000 names a block outside the cluster", 2},
      {"mov.u32 %r5, 0x2000000;\n@%p1 st.shared::cluster.u32 [%r5], %r5;\n", "", 2},
      {"mov.u32 %r5, 0x2000000;\nst.shared::cta.u32 [%r5], %r5;\n",
       "memory: shared address 0x2000000 of block rank 1 is used by an instruction for the block's own shared memory",
       2},
      {"setp.eq.u32 %p2, %r4, 1;\n@%p2 exit;\nmov.u32 %r7, 0;\nL: add.u32 %r7, %r7, 1;\nsetp.lt.u32 %p3, %r7, "
       "20000;\n@%p3 bra L;\n" +
           kOther + "st.shared::cluster.u32 [%r5], %r7;\n",
       "memory: accesses the shared memory of block rank 1, which has finished", 2},
      {"st.global.u32 [%rd2+4092], %r3;\n", ""},
      {"st.global.u32 [%rd2+4096], %r3;\n",
       "memory: access of 4 bytes at global address * which is just past the end of the allocation of 4096 bytes"},
      {"st.global.u8 [%rd2+4095], %r3;\n", ""},
      {"@%p1 st.global.u8 [%rd2+4096], %r3;\n", "memory: access of 1 byte at global address"},
      {"@%p1 ld.global.u8 %r6, [%rd2+-1];\n", "memory: access of 1 byte at global address"},
      // A word of the mbarrier's granule that is not the mbarrier itself may be used; the buffer ends before it.
      {"@%p1 st.shared.v4.u32 [%r1+8176], {%r3, %r3, %r3, %r3};\n", ""},
      {"@%p1 st.shared.u32 [%r2], %r3;\n", "mbarrier misuse: *"},
      {"@%p1 st.shared.u32 [%r2+4], %r3;\n", "mbarrier misuse: *"},
      {"@%p1 st.shared.u32 [%r2+8], %r3;\n", "memory: *"},
      {"@%p1 st.shared.v2.u32 [%r1+4], {%r3, %r3};\n", "memory: misaligned address 0x4, which is not a multiple of 8"},
      {"@%p1 ld.shared.u8 %r6, [%r1+100];\n", "*uninitialised*"},
      {"@%p1 st.shared.u8 [%r1+100], %r3;\n@%p1 ld.shared.u8 %r6, [%r1+100];\n", ""},
      {"@%p1 st.shared.u8 [%r1+100], %r3;\n@%p1 ld.shared.u8 %r6, [%r1+101];\n", "*uninitialised*"},
      {"@%p1 st.shared.u8 [%r1+100], %r3;\n@%p1 ld.shared.u8 %r6, [%r1+99];\n", "*uninitialised*"},
      {"@%p1 st.shared.u32 [%r1+100], %r3;\n@%p1 ld.shared.u64 %rd6, [%r1+96];\n", "*uninitialised*"},
      {"mapa.shared::cluster.u32 %r5, %r1, 2;\n", "illegal use: mapa to block rank 2 of a cluster of 2", 2},
      {"mapa.shared::cluster.u32 %r5, %r1, 1;\n", "", 2},
      {"mapa.u64 %rd5, %rd2, 0;\n", "memory: mapa of generic address {in}, which is not in shared memory", 2},
      {"discard.global.L2 [%rd2+3968], 128;\n", ""},
      {"discard.global.L2 [%rd2+64], 128;\n", "memory: misaligned address *, which is not a multiple of 128"},
      {"mbarrier.test_wait.parity.b64 %p2, [%rd2], 0;\n", "memory: generic address {in} is not in shared memory"},
      {"mov.u32 %r5, 0x3000000;\n@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd3], [%r5], 16;\n",
       "memory: shared address 0x3000000 names a block outside the cluster", 2},
  });
}

TEST(Faults, OfCopies) {
  const std::string load =
      "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 32;\n@%p1 "
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes ";
  check({
      {kOther + "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd3], [%r5], 16;\n",
       "illegal use: the source in .shared::cta lies in another block", 2},
      {kOther +
           "@%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r5], [%r5], 16, [%r6];\n",
       "illegal use: the source in .shared::cta lies in another block", 2},
      {kOther + "@%p1 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r5], [%rd2], 16, [%r6];\n",
       "illegal use: the destination in .shared::cta lies in another block", 2},
      {kOther + "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%rd2], 16, [%r2];\n",
       "illegal use: the destination and the mbarrier lie in different blocks", 2},
      {load + "[%r1+8160], [%rd2+4064], 32, [%r2];\n" + wait("%r2", "0", "W"), ""},
      {load + "[%r1+8176], [%rd2], 32, [%r2];\n" + wait("%r2", "0", "W"), "m*"},
      {load + "[%r1], [%rd2+4080], 32, [%r2];\n" + wait("%r2", "0", "W"),
       "memory: access of 32 bytes at global address"},
      {load + "[%r1+8], [%rd2], 32, [%r2];\n", "*destination address*16*"},
      {load + "[%r1], [%rd2+8], 32, [%r2];\n", "*source address*16*"},
      {load + "[%r1], [%rd2], 24, [%r2];\n", "*size*16*"},
      {"cp.async.bulk.prefetch.L2.global [%rd2+4064], 32;\n", ""},
      {"cp.async.bulk.prefetch.L2.global [%rd2+4080], 32;\n", "memory: access of 32 bytes at global address"},
      {"cp.async.bulk.prefetch.L2.global [%rd2+8], 32;\n", "*source address*16*"},
      {"cp.async.bulk.prefetch.L2.global [%rd2], 24;\n", "*size*16*"},
      {"mad.lo.u32 %r5, %r3, 16, %r1;\ncp.async.cg.shared.global [%r5], [%rd2], 16, 16;\ncp.async.wait_all;\n", ""},
      {"mad.lo.u32 %r5, %r3, 16, %r1;\ncp.async.cg.shared.global [%r5], [%rd2], 16, 17;\n",
       "illegal use: cp.async with a source size of 17"},
      {"@%p1 cp.async.ca.shared.global [%r1+4], [%rd2], 8;\n", "*destination address*8*"},
      {"@%p1 cp.async.ca.shared.global [%r1], [%rd2+4], 8;\n", "*source address*8*"},
      {"@%p1 cp.async.ca.shared.global [%r1], [%rd2+4092], 4;\n@%p1 cp.async.wait_all;\n", ""},
      {"@%p1 cp.async.ca.shared.global [%r1], [%rd2+4096], 4;\n", "memory: access of 4 bytes at global address"},
      {"@%p1 cp.async.ca.shared.global [%r1], [%rd2+4088], 16, 8;\n", "*source address*16*"},
      {"@%p1 cp.async.ca.shared.global [%r1], [%rd2+4096], 16, 0;\n@%p1 cp.async.wait_all;\n", ""},
      {kOther + "@%p1 cp.async.ca.shared.global [%r5], [%rd2], 4;\n",
       "illegal use: cp.async into the shared memory of another block", 2},
      {kOther + "@%p1 cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r6];\n",
       "mbarrier misuse: cp.async.mbarrier.arrive at an object of another block", 2},
      {"cvta.shared.u64 %rd5, %rd4;\nfence.proxy.tensormap::generic.acquire.gpu [%rd5], 128;\n",
       "illegal use: fence.proxy.tensormap::generic.acquire.gpu at *, which is not in global memory"},
      {"prefetch.tensormap [%rd2];\n", ""},
      {"prefetch.tensormap [%rd2+32];\n", "memory: the tensor map at * is not aligned to 64 bytes"},
      {"prefetch.tensormap [%rd2+3968];\n", ""},
      {"prefetch.tensormap [%rd2+4032];\n", "memory: access of 128 bytes at global address"},
      {"mov.u64 %rd5, p_in;\ncvta.param.u64 %rd5, %rd5;\nprefetch.tensormap [%rd5];\n",
       "memory: the tensor map at * passes the end of the parameters"},
      {"mov.u64 %rd5, 0;\ncvta.shared.u64 %rd5, %rd5;\nprefetch.tensormap [%rd5];\n",
       "illegal use: the tensor map at * is in neither parameter, constant nor global memory"},
      {"@%p1 tensormap.replace.tile.rank.global.b1024.b32 [%rd2+32], 1;\n",
       "memory: tensormap.replace at *, which is not aligned to 64 bytes"},
      {"cvt.u64.u32 %rd5, %r1;\n@%p1 tensormap.replace.tile.rank.shared::cta.b1024.b32 [%rd5+32], 1;\n",
       "memory: tensormap.replace at 0x20, which is not aligned to 64 bytes"},
      {kOther + "cvt.u64.u32 %rd5, %r5;\n@%p1 tensormap.replace.tile.rank.shared::cta.b1024.b32 [%rd5], 1;\n",
       "illegal use: tensormap.replace in the shared memory of another block", 2},
      {"@%p1 tensormap.replace.tile.rank.global.b1024.b32 [%rd2], 1;\n",
       "illegal use: the 128 bytes at {in} are no tensor map"},
      {"mul.wide.u32 %rd5, %r3, 128;\nadd.u64 %rd5, %rd5, %rd2;\ncvt.u64.u32 %rd6, %r1;\n"
       "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd5], [%rd6], 128;\n",
       "illegal use: tensormap.cp_fenceproxy with addresses that differ between lanes"},
      {"mul.wide.u32 %rd6, %r3, 128;\n"
       "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd2], [%rd6], 128;\n",
       "illegal use: tensormap.cp_fenceproxy with addresses that differ between lanes"},
      {"mov.u64 %rd6, 64;\ntensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
       "[%rd2], [%rd6], 128;\n",
       "memory: tensormap.cp_fenceproxy with addresses that are not aligned to 128 bytes"},
      {"mov.u64 %rd6, 0;\ntensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
       "[%rd2+64], [%rd6], 128;\n",
       "memory: tensormap.cp_fenceproxy with addresses that are not aligned to 128 bytes"},
      {"wgmma.commit_group.sync.aligned;\n", "illegal use: wgmma needs a warpgroup: four warps of 32 threads", 1, 96},
      {"wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n", "", 1, 128},
  });
}

TEST(Faults, OfMbarriers) {
  check({
      {"@%p1 mbarrier.init.shared::cta.b64 [%r1+4], 1;\n", "mbarrier misuse: * is not aligned to 8 bytes"},
      {"@%p1 mbarrier.arrive.shared::cta.b64 _, [%r2+4];\n", "mbarrier misuse: * is not aligned to 8 bytes"},
      {"@%p1 mbarrier.arrive.shared::cta.b64 _, [%r1];\n", "mbarrier misuse: * is not initialised"},
      {"@%p1 mbarrier.init.shared::cta.b64 [%r1], 0;\n",
       "mbarrier misuse: mbarrier.init with a count of 0, allowed are 1 to 1048575"},
      {"@%p1 mbarrier.init.shared::cta.b64 [%r1], 1048575;\n", ""},
      {"@%p1 mbarrier.init.shared::cta.b64 [%r1], 1048576;\n",
       "mbarrier misuse: mbarrier.init with a count of 1048576, allowed are 1 to 1048575"},
      {"@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\n",
       "mbarrier misuse: * is initialised again without mbarrier.inval"},
      {"@%p1 mbarrier.inval.shared::cta.b64 [%r2];\n@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\n", ""},
      {"@%p1 mbarrier.inval.shared::cta.b64 [%r2];\n@%p1 mbarrier.arrive.shared::cta.b64 _, [%r2];\n",
       "mbarrier misuse: * is not initialised"},
      {"@%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 16;\n@%p1 mbarrier.inval.shared::cta.b64 [%r2];\n",
       "mbarrier misuse: mbarrier.inval of the mbarrier at shared offset 0x2000 while 16 bytes are pending"},
      {"@%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 16;\n@%p1 "
       "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2], 16;\n"
       "@%p1 mbarrier.inval.shared::cta.b64 [%r2];\n",
       ""},
      {kOther + "@%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 %rd5, [%r6];\n",
       "mbarrier misuse: an arrival at an mbarrier of another block returns no state", 2},
      {kOther + "setp.eq.u32 %p2, %r4, 0;\nand.pred %p2, %p2, %p1;\n@%p2 "
                "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];\n",
       "", 2},
      {kOther + "@%p1 mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r6], 0;\n",
       "mbarrier misuse: mbarrier.test_wait.parity.shared::cta.b64 supports no mbarrier of another block (9.7.13.15.8)",
       2},
      {"@%p1 mbarrier.arrive.shared::cta.b64 _, [%r2], 0;\n", "mbarrier misuse: an arrival with a count of 0"},
      {"@%p1 mbarrier.arrive.shared::cta.b64 _, [%r2], 1048576;\n",
       "mbarrier misuse: an arrival with a count of 1048576"},
      {"@%p1 mbarrier.arrive_drop.shared::cta.b64 _, [%r2], 1;\n", ""},
      {"@%p1 mbarrier.arrive_drop.shared::cta.b64 _, [%r2], 2;\n",
       "mbarrier misuse: mbarrier.arrive_drop of 2 from an expected count of 1"},
      {"@%p1 mbarrier.arrive.noComplete.shared::cta.b64 %rd5, [%r2], 1;\n",
       "mbarrier misuse: an arrival with .noComplete completes the phase"},
      {"@%p1 mbarrier.init.shared::cta.b64 [%r1], 2;\n@%p1 mbarrier.arrive.noComplete.shared::cta.b64 %rd5, [%r1], "
       "1;\n",
       ""},
      {"@%p1 mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r2], 1;\n", ""},
      {"@%p1 mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r2], 2;\n",
       "mbarrier misuse: a phase parity of 2, allowed are 0 and 1"},
      // States of this phase and the one before may be waited for.
      {kPhase + "mov.u64 %rd5, 0;\n@%p1 mbarrier.test_wait.shared::cta.b64 %p2, [%r2], %rd5;\n", ""},
      {kPhase + "mov.u64 %rd5, 1;\n@%p1 mbarrier.test_wait.shared::cta.b64 %p2, [%r2], %rd5;\n", ""},
      {kPhase + "mov.u64 %rd5, 2;\n@%p1 mbarrier.test_wait.shared::cta.b64 %p2, [%r2], %rd5;\n",
       "mbarrier misuse: waits for phase 2 of the mbarrier at shared offset 0x2000, which is in phase 1"},
      {kPhase + kPhase + "mov.u64 %rd5, 0;\n@%p1 mbarrier.test_wait.shared::cta.b64 %p2, [%r2], %rd5;\n",
       "mbarrier misuse: waits for phase 0 of the mbarrier at shared offset 0x2000, which is in phase 2"},
  });
}

TEST(Faults, OfBarriersAndBranches) {
  const std::string second = "setp.ge.u32 %p2, %r3, 32;\n@%p2 bra B;\n";
  const std::string table = "T: .branchtargets B, E;\nbrx.idx %r5, T;\nB: mov.u32 %r6, 0;\nE:\n";
  check({
      {"mov.u32 %r5, 1;\n" + table, ""},
      {"mov.u32 %r5, 2;\n" + table, "illegal use: brx.idx with index 2 into 2 targets"},
      {second + "bar.sync 1, 96;\nbra E;\nB: bar.sync 1, 64;\nE:\n",
       "illegal use: named barrier 1 is used for 96 threads while others use it for 64 threads", 1, 96},
      {second + "bar.sync 1;\nbra E;\nB: bar.sync 1, 64;\nE:\n",
       "illegal use: named barrier 1 is used for all threads while others use it for 64 threads", 1, 96},
      {second + "bar.sync 1, 64;\nbra E;\nB: bar.red.popc.u32 %r5, 1, 64, %p1;\nE:\n",
       "illegal use: named barrier 1 mixes a reduction with other arrivals", 1, 64},
      {second + "bar.sync 1, 64;\nbra E;\nB: bar.sync 1, 64;\nE:\n", "", 1, 64},
      {"bar.sync %r3;\n", "illegal use: lanes of a warp name different barriers"},
      {"bar.sync 15;\n", ""},
      {"bar.sync 16;\n", "illegal use: named barrier 16 does not exist: there are 16"},
      {"bar.sync 1, 0;\n", "illegal use: named barrier 1 with a count of 0, which is not a multiple of 32"},
      {"bar.sync 1, 33;\n", "illegal use: named barrier 1 with a count of 33, which is not a multiple of 32"},
      {"bar.sync 1, 64;\n", "illegal use: named barrier 1 waits for 64 threads, but the block has 32"},
      {"@%p1 bar.warp.sync 2;\n", "illegal use: the lane is not in its own membermask"},
      {"@%p1 bar.warp.sync 1;\n", ""},
      {"@%p1 bra.uni E;\nE:\n", "illegal use: bra.uni is taken by a part of the lanes"},
      {"@%p1 trap;\n", "illegal use: trap"},
      {"@%p1 exit;\nldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r1];\n",
       "illegal use: some threads of the warp have exited"},
      // Two groups of one instruction with masks of their own, of which one has a lane that does not belong to it.
      {"setp.lt.u32 %p2, %r3, 16;\nselp.b32 %r5, 0xffff, 0xffff0000, %p2;\nshfl.sync.idx.b32 %r6, %r3, 0, 31, %r5;\n",
       ""},
      {"setp.lt.u32 %p2, %r3, 16;\nselp.b32 %r5, 0xffff, 0xfffe0000, %p2;\nshfl.sync.idx.b32 %r6, %r3, 0, 31, %r5;\n",
       "illegal use: the lane is not in its own membermask"},
  });
}

}  // namespace
