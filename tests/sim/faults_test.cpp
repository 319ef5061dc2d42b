// SPDX-License-Identifier: Apache-2.0
// What a kernel must not do with addresses, objects and counts, each beside the nearest that it may: a row without a
// report runs to its end. Hazards of order have tests of their own (hazards_test.cpp).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "async.h"
#include "sim/memory/tensor_map.h"

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
      {"mov.u32 %r5, 0x2000000;\nst.shared::cluster.u32 [%r5], %r5;\n",
       "memory: shared address 0x2000000 names a block outside the cluster", 2},
      {"mov.u32 %r5, 0x1000000;\n@%p1 st.shared::cluster.u32 [%r5], %r5;\n", "", 2},
      {"mov.u32 %r5, 0x1000000;\nst.shared::cta.u32 [%r5], %r5;\n",
       "memory: shared address 0x1000000 of block rank 1 is used by an instruction for the block's own shared memory",
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
      // A row of the warp that ends with the buffer, and one that passes the end of shared memory.
      {"mad.lo.u32 %r5, %r3, 4, %r1;\nst.shared.u32 [%r5+8064], %r3;\n", ""},
      {"@%p1 mbarrier.inval.shared::cta.b64 [%r2];\nbar.sync 0;\nmad.lo.u32 %r5, %r3, 4, %r1;\n"
       "st.shared.u32 [%r5+8160], %r3;\n",
       "memory: 4 bytes at shared memory at offset 0x2008 pass the end of the block's 8200 bytes"},
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
      // The mbarrier has half of a granule, and the other half may be written.
      {"@%p1 cp.async.ca.shared.global [%r2], [%rd2], 8;\n",
       "mbarrier misuse: writes to shared memory at offset 0x2000, which holds an mbarrier object that was not "
       "invalidated"},
      {"@%p1 mbarrier.init.shared::cta.b64 [%r1+16], 1;\n@%p1 cp.async.ca.shared.global [%r1+16], [%rd2], 8;\n",
       "mbarrier misuse: writes to shared memory at offset 0x10, "},
      {"@%p1 mbarrier.init.shared::cta.b64 [%r1+16], 1;\n@%p1 cp.async.ca.shared.global [%r1+24], [%rd2], 8;\n"
       "@%p1 cp.async.wait_all;\n",
       ""},
      {"@%p1 mbarrier.init.shared::cta.b64 [%r1+24], 1;\n@%p1 cp.async.ca.shared.global [%r1+16], [%rd2], 8;\n"
       "@%p1 cp.async.wait_all;\n",
       ""},
      {"@%p1 mbarrier.init.shared::cta.b64 [%r1+24], 1;\n@%p1 cp.async.ca.shared.global [%r1+28], [%rd2], 4;\n",
       "mbarrier misuse: writes to shared memory at offset 0x1c, "},
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

// ---- tensor maps --------------------------------------------------------------------------------

// The map stands at the start of the input, the tensor 1024 bytes behind it.
std::string fault_with_map(sim::TensorMapFields map, const std::string& body) {
  sim::GlobalMemory memory;
  Buffer<uint32_t> in(memory, size_t{1024}, 7u), out(memory, size_t{1024}, 0u);
  map.address += in.address() + 1024;
  sim::encode(map, reinterpret_cast<uint8_t*>(in.data()));
  Shape shape;
  shape.arch = 100;
  const std::string said =
      fault_of(bulk_kernel(body), "k", Params().add(in.address()).add(out.address()), memory, shape);
  return said.substr(0, said.find(" at ptx line"));
}

TEST(Faults, OfTensorMaps) {
  using Fields = sim::TensorMapFields;
  using Element = sim::TensorElement;
  struct MapRow {
    std::function<void(Fields&)> change;
    std::string said;
    std::string coordinates = "0, 0";
    std::string form = "2d", mode = "tile";
  };
  const std::string illegal = "illegal use: ";
  const auto packed = [](Fields& m) {
    m.element = Element::B4x16;
    m.dims = {64, 8, 1, 1, 1};
    m.strides[0] = 32;
    m.box = {32, 2, 1, 1, 1};
  };
  const auto padded = [](Fields& m) {
    m.element = Element::B4x16Padded;
    m.dims = {128, 8, 1, 1, 1};
    m.strides[0] = 64;
    m.box = {128, 1, 1, 1, 1};
  };
  const std::vector<MapRow> rows = {
      {[](Fields&) {}, ""},
      {[](Fields&) {}, illegal + "a 1-dimensional copy with a tensor map of rank 2", "0", "1d"},
      {[](Fields& m) { m.interleave = sim::TensorInterleave::Bytes16; },
       illegal + "tensor maps with an interleaved layout are not simulated"},
      {[](Fields& m) { m.box[1] = 0; },
       illegal + "the tensor map has a box or element stride out of range in dimension 1"},
      {[](Fields& m) { m.box[0] = 257; },
       illegal + "the tensor map has a box or element stride out of range in dimension 0"},
      {[](Fields& m) { m.box[1] = 256, m.element_strides[1] = 8; }, ""},
      {[](Fields& m) { m.element_strides[1] = 9; },
       illegal + "the tensor map has a box or element stride out of range in dimension 1"},
      {[](Fields& m) { m.element_strides[1] = 0; },
       illegal + "the tensor map has a box or element stride out of range in dimension 1"},
      {[](Fields& m) { m.element_strides[0] = 0; }, ""},
      {[](Fields& m) { m.strides[0] = 40; },
       illegal + "the tensor map's stride of dimension 1 is not a multiple of 16"},
      {[](Fields& m) { m.box[0] = 9; }, illegal + "the inner dimension of the box is not a multiple of 16 bytes"},
      {[](Fields& m) { m.address = 8; }, illegal + "the tensor's address is not a multiple of 16"},
      {[](Fields&) {}, illegal + "the box begins 4 bytes into a row; it must be a multiple of 16", "2, 0"},
      {[](Fields&) {}, illegal + "the box begins -2 bytes into a row; it must be a multiple of 16", "-1, 0"},
      {[](Fields&) {}, "", "-8, -1"},
      {[](Fields& m) { m.fill = sim::TensorFill::Nan; }, illegal + "NaN fill with an integer type"},
      {[](Fields& m) { m.fill = sim::TensorFill::Nan, m.element = Element::F16; }, ""},
      {[](Fields& m) { m.box[0] = 24, m.swizzle = sim::TensorSwizzle::Bytes32; },
       illegal + "the inner dimension of the box, 48 bytes, is wider than the swizzle of 32"},
      {[](Fields& m) { m.box[0] = 40, m.dims[0] = 40, m.strides[0] = 80, m.swizzle = sim::TensorSwizzle::Bytes64; },
       illegal + "the inner dimension of the box, 80 bytes, is wider than the swizzle of 64"},
      {[](Fields& m) { m.atom = sim::TensorAtom::Bytes32, m.swizzle = sim::TensorSwizzle::Bytes64; },
       illegal + "swizzle atoms of 32 and 64 bytes need the 128-byte swizzle"},
      {[](Fields& m) { m.atom = sim::TensorAtom::Bytes64, m.swizzle = sim::TensorSwizzle::Bytes128; }, ""},
      {packed, ""},
      {packed, illegal + "the first coordinate, 1, must be a multiple of 2 for a type of 4 or 6 bits", "1, 0"},
      {padded, ""},
      {padded, illegal + "the first coordinate, 64, must be a multiple of 128 for a type of 4 or 6 bits", "64, 0"},
      {[&](Fields& m) {
         padded(m);
         m.box[0] = 64;
       },
       illegal + "the tensor map is not valid: the inner dimension of the box of a padded type must be 128 elements"},
      {[&](Fields& m) {
         packed(m);
         m.fill = sim::TensorFill::Nan;
       },
       illegal + "the tensor map is not valid: types of 4 and 6 bits have no NaN fill"},
      {[](Fields& m) { m.box[1] = 1; }, "", "0, 0, 1, 2, 3", "2d", "tile::gather4"},
      {[](Fields&) {}, illegal + "a tensor map for four rows must have a box of one row", "0, 0, 1, 2, 3", "2d",
       "tile::gather4"},
  };
  for (const MapRow& row : rows) {
    Fields map;
    map.element = Element::U16;
    map.rank = 2;
    map.dims = {16, 8, 1, 1, 1};
    map.strides[0] = 32;
    map.box = {16, 2, 1, 1, 1};
    row.change(map);
    // The bytes of the copy do not matter to what is refused; the barrier is not waited for then.
    const uint32_t rows_copied =
        row.mode == "tile" ? (map.box[1] + map.element_strides[1] - 1) / std::max(1u, map.element_strides[1]) : 4;
    const uint32_t unit = sim::unit_of(map.element).global_bytes, elements = sim::unit_of(map.element).elements;
    const uint32_t bytes = map.box[0] / elements * unit * rows_copied;
    const std::string said =
        fault_with_map(map, "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], " + std::to_string(bytes) +
                                ";\n@%p1 cp.async.bulk.tensor." + row.form + ".shared::cta.global." + row.mode +
                                ".mbarrier::complete_tx::bytes [%r1], [%rd2, {" + row.coordinates + "}], [%r2];\n" +
                                wait("%r2", "0", "W"));
    EXPECT_EQ(said, row.said) << row.coordinates << " of " << bytes;
  }
}

TEST(Faults, OfTensorStores) {
  sim::TensorMapFields map;
  map.element = sim::TensorElement::U16;
  map.rank = 2;
  map.dims = {16, 8, 1, 1, 1};
  map.strides[0] = 32;
  map.box = {16, 2, 1, 1, 1};
  const auto store = [](const std::string& opcode, const std::string& at) {
    return "mad.lo.u32 %r5, %r3, 16, %r1;\nst.shared.v4.b32 [%r5], {0, 0, 0, 0};\nfence.proxy.async.shared::cta;\n"
           "bar.warp.sync -1;\n@%p1 " +
           opcode + ".bulk_group [%rd2, {" + at +
           "}], [%r1];\n@%p1 cp.async.bulk.commit_group;\n"
           "@%p1 cp.async.bulk.wait_group 0;\n";
  };
  const std::string plain = "cp.async.bulk.tensor.2d.global.shared::cta.tile",
                    sum = "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile";
  EXPECT_EQ(fault_with_map(map, store(plain, "0, 0")), "");
  EXPECT_EQ(fault_with_map(map, store(plain, "-8, 0")), "illegal use: a tensor store at the negative coordinate -8");
  EXPECT_EQ(fault_with_map(map, store(plain, "0, -1")), "illegal use: a tensor store at the negative coordinate -1");
  EXPECT_EQ(fault_with_map(map, store(sum, "0, 0")),
            "illegal use: " + sum + ".bulk_group has no such operation on the tensor map's type");
  map.element = sim::TensorElement::F16;
  EXPECT_EQ(fault_with_map(map, store(sum, "0, 0")), "");
  map.element = sim::TensorElement::B4x16Padded;
  map.dims[0] = map.box[0] = 128;
  map.box[1] = 1;
  map.strides[0] = 64;
  EXPECT_EQ(fault_with_map(map, store(plain, "0, 0")),
            "illegal use: a tensor store with a tensor map of type b4x16_p64, which only loads have");
}

TEST(Faults, OfReplacedFields) {
  sim::TensorMapFields map;
  map.rank = 2;
  const std::string place = "illegal use: tensormap.replace.tile.";
  struct FieldRow {
    std::string field, value, said;
    bool wide = false;
  };
  for (const FieldRow& row : {
           FieldRow{"global_address", "0x120", "", true},
           FieldRow{"global_address", "0x128", "0x128: a tensor's address is a multiple of 16", true},
           FieldRow{"rank", "4", ""},
           FieldRow{"rank", "5", "0x5: the rank less one is 0 to 4"},
           FieldRow{"box_dim", "1", ""},
           FieldRow{"box_dim", "256", ""},
           FieldRow{"box_dim", "0", "0x0: a box dimension is 1 to 256"},
           FieldRow{"box_dim", "257", "0x101: a box dimension is 1 to 256"},
           FieldRow{"global_dim", "0", ""},
           FieldRow{"global_stride", "0xfffffffff0", "", true},
           FieldRow{"global_stride", "24", "0x18: a stride is a multiple of 16 below 2^40", true},
           FieldRow{"global_stride", "0x10000000000", "0x10000000000: a stride is a multiple of 16 below 2^40", true},
           FieldRow{"element_stride", "1", ""},
           FieldRow{"element_stride", "8", ""},
           FieldRow{"element_stride", "0", "0x0: an element stride is 1 to 8"},
           FieldRow{"element_stride", "9", "0x9: an element stride is 1 to 8"},
       }) {
    const std::string opcode = "tensormap.replace.tile." + row.field + ".global.b1024." + (row.wide ? "b64" : "b32");
    const bool ordinal = row.field != "global_address" && row.field != "rank";
    EXPECT_EQ(fault_with_map(map, "mov.u64 %rd5, " + row.value + ";\ncvt.u32.u64 %r5, %rd5;\n@%p1 " + opcode +
                                      " [%rd2], " + (ordinal ? "1, " : "") + (row.wide ? "%rd5" : "%r5") + ";\n"),
              row.said.empty() ? "" : "illegal use: " + opcode + " with " + row.said);
  }
}

// ---- warps and warpgroups -----------------------------------------------------------------------

TEST(Faults, OfWarpgroups) {
  const std::string begin = R"(
  mov.u32 %r5, %tid.x;
  shr.u32 %r6, %r5, 5;
  mad.lo.u32 %r7, %r5, 64, %r1;
  st.shared.v4.b32 [%r7], {0, 0, 0, 0};
  st.shared.v4.b32 [%r7+16], {0, 0, 0, 0};
  st.shared.v4.b32 [%r7+32], {0, 0, 0, 0};
  st.shared.v4.b32 [%r7+48], {0, 0, 0, 0};
  fence.proxy.async.shared::cta;
  bar.sync 0;
  shr.u32 %r7, %r1, 4;
  cvt.u64.u32 %rd20, %r7;
  or.b64 %rd20, %rd20, 0x1000080000;
  mov.u64 %rd21, %rd20;
  mov.b32 %r40, 0; mov.b32 %r41, 0; mov.b32 %r42, 0; mov.b32 %r43, 0; mov.b32 %r44, 0; mov.b32 %r45, 0;
  mov.b32 %r46, 0; mov.b32 %r47, 0;
  setp.eq.u32 %p3, %r5, %r5;
  setp.eq.u32 %p4, %r6, 0;
  wgmma.fence.sync.aligned;
)";
  const auto mma = [](const std::string& type, const std::string& d, const std::string& a,
                      const std::string& enable = "%p3") {
    return "wgmma.mma_async.sync.aligned.m64n8k16.f32." + type + "." + type + " {" + d + "}, " +
           (a.empty() ? "%rd20" : "{" + a + "}") + ", %rd21, " + enable +
           (a.empty() ? ", 1, 1, 0, 0;\n" : ", 1, 1, 0;\n");
  };
  const auto sparse = [](const std::string& metadata) {
    return "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.bf16.bf16 {%r40, %r41, %r42, %r43}, %rd20, %rd21, " +
           metadata + ", 0, %p3, 1, 1, 0, 0;\n";
  };
  const std::string first = "%r40, %r41, %r42, %r43", second = "%r44, %r45, %r46, %r47",
                    end = "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n";
  // The lanes of each half of a warp come one after the other to each of these instructions.
  const auto in_halves = [](const std::vector<std::string>& instructions) {
    std::string text = "and.b32 %r8, %r5, 16;\nsetp.eq.u32 %p5, %r8, 0;\n", late = "bra OVER;\n";
    for (size_t i = 0; i < instructions.size(); ++i) {
      const std::string n = std::to_string(i);
      text += "@%p5 bra LATE" + n + ";\nBACK" + n + ": " + instructions[i];
      late += "LATE" + n + ": add.u32 %r9, %r8, 1;\nbra BACK" + n + ";\n";
    }
    return text + late + "OVER:\n";
  };
  const auto rows = std::vector<Row>{
      {begin + mma("bf16", first, "") + mma("bf16", first, "") + end, "", 1, 128},
      {begin + mma("bf16", first, second) + mma("bf16", first, second) + end, "", 1, 128},
      {begin + "setp.ne.u32 %p3, %r5, 69;\n" + mma("bf16", first, "") + end,
       "illegal use: the scale-d predicate of a wgmma differs between lanes", 1, 128},
      {begin + "@%p4 bra OTHER;\n" + mma("bf16", first, "") + "bra END;\nOTHER:\n" + mma("f16", first, "") + "END:\n" +
           end,
       "illegal use: the warps of a warpgroup execute different wgmma.mma_async", 1, 128},
      {begin + "@%p4 bra END;\n" + mma("bf16", first, "") + "END:\n" + end,
       "illegal use: the warps of a warpgroup commit different numbers of wgmma.mma_async", 1, 128},
      {begin + "@%p4 add.u64 %rd21, %rd21, 8;\n" + mma("bf16", first, "") + end,
       "illegal use: the warps of a warpgroup give a wgmma different descriptors or scale-d", 1, 128},
      {begin + "@%p4 setp.ne.u32 %p3, %r5, %r5;\n" + mma("bf16", first, "") + end,
       "illegal use: the warps of a warpgroup give a wgmma different descriptors or scale-d", 1, 128},
      {begin + mma("bf16", first, "") + mma("bf16", second, first) + end,
       "registers in flight: registers of a wgmma in flight are used by one of another shape without wgmma.wait_group",
       1, 128},
      {begin + mma("bf16", first, "") + mma("bf16", "%r41, %r42, %r43, %r44", "") + end,
       "registers in flight: registers of a wgmma in flight are used by another one as a different operand without "
       "wgmma.wait_group",
       1, 128},
      {begin + mma("bf16", first, "") + "mov.b32 %r5, %r42;\n" + end,
       "registers in flight: accesses an accumulator of a wgmma that no wgmma.wait_group has waited for", 1, 128},
      {begin + mma("bf16", first, second) + "mov.b32 %r46, 1;\n" + end,
       "registers in flight: accesses a register of matrix A of a wgmma that no wgmma.wait_group has waited for", 1,
       128},
      {begin + "mov.b32 %r42, 1;\n" + mma("bf16", first, "") + end,
       "registers in flight: the accumulator registers were accessed after the last wgmma.fence", 1, 128},
      {begin + "mov.b32 %r46, 1;\n" + mma("bf16", first, second) + end,
       "registers in flight: the registers of matrix A were accessed after the last wgmma.fence", 1, 128},
      // The fence counts for registers that were operands in another grouping, too.
      {begin + mma("bf16", first, "") + end + "wgmma.fence.sync.aligned;\nmov.b32 %r43, 1;\n" +
           mma("bf16", "%r41, %r42, %r43, %r44", "") + end,
       "registers in flight: the accumulator registers were accessed after the last wgmma.fence", 1, 128},
      {begin + mma("bf16", first, "") + end + "wgmma.fence.sync.aligned;\n" +
           mma("bf16", "%r41, %r42, %r43, %r44", "") + end,
       "", 1, 128},
      {begin + "mov.b32 %r44, 0x4e96d8c4;\n" + sparse("%r44") + end, "", 1, 128},
      {begin + "mov.b32 %r44, 0x4e96d5c4;\n" + sparse("%r44") + end,
       "illegal use: the metadata 0x4e96d5c4 of a sparse wgmma has 0x5 at bit 8, which names one column twice", 1, 128},
      {begin + "@%p4 add.u64 %rd21, %rd21, 8;\nmov.b32 %r44, 0x4e96d8c4;\nor.b64 %rd21, %rd21, 0xc000000000000000;\n" +
           sparse("%r44") + end,
       "illegal use: a sparse wgmma takes 64 bytes of each column of B, of which a swizzle of 32 bytes holds half; the "
       "ISA does not say where the others are",
       1, 128},
      {begin + "add.u64 %rd21, %rd21, 512;\n" + mma("bf16", first, "") + end,
       "memory: a matrix descriptor leads to shared offset 0x2000, past the end of the block's 8200 bytes", 1, 128},
      // The second line of the 128-byte swizzle, which exchanges the two pieces of a row.
      {begin + "add.u64 %rd21, %rd21, 0x4000000000000208;\n" + mma("bf16", first, "") + end,
       "memory: a matrix descriptor leads to shared offset 0x2080, past the end of the block's 8200 bytes", 1, 128},
      // After a wait each register that is accessed calls for a fence of its own, not only the first.
      {begin + mma("bf16", first, "") + mma("bf16", second, "") + end + "mov.b32 %r40, 1;\n" + mma("bf16", second, "") +
           end,
       "", 1, 128},
      {begin + mma("bf16", first, "") + mma("bf16", second, "") + end + "mov.b32 %r40, 1;\nmov.b32 %r44, 1;\n" +
           mma("bf16", second, "") + end,
       "registers in flight: the accumulator registers were accessed after the last wgmma.fence", 1, 128},
      {begin + mma("bf16", first, "") + end + "mov.b32 %r40, 1;\nmov.b32 %r44, 1;\n" + mma("bf16", second, "") + end,
       "registers in flight: the accumulator registers were accessed after the last wgmma.fence", 1, 128},
      {begin + in_halves({"wgmma.fence.sync.aligned;\n", mma("bf16", first, ""), "wgmma.commit_group.sync.aligned;\n",
                          "wgmma.wait_group.sync.aligned 0;\n"}),
       "", 1, 128},
  };
  for (Row row : rows) {
    row.body = ".reg .b32 %unused;\n" + row.body;
    check({row});
  }
}

TEST(Faults, OfLaunchControl) {
  const std::string cancel = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 ",
                    expect = "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 16;\n";
  const std::string seen = wait("%r2", "0", "W") + "fence.proxy.async.shared::cta;\n";
  check({
      {expect + "@%p1 " + cancel + "[%r1], [%r2];\n" + seen, "", 1, 32, 100},
      {expect + "@%p1 " + cancel + "[%r1+8], [%r2];\n",
       "memory: clusterlaunchcontrol.try_cancel writes to a misaligned address: 0x8", 1, 32, 100},
      {kOther + "@%p1 " + cancel + "[%r5], [%r2];\n",
       "memory: clusterlaunchcontrol.try_cancel names the shared memory of another block", 2, 32, 100},
      {kOther + "@%p1 " + cancel + "[%r1], [%r6];\n",
       "memory: clusterlaunchcontrol.try_cancel names the shared memory of another block", 2, 32, 100},
      {expect + "@%p1 " + cancel + "[%r1], [%r2];\n" + seen + expect + "@%p1 " + cancel + "[%r1], [%r2];\n",
       "illegal use: clusterlaunchcontrol.try_cancel after one that was seen to fail", 1, 32, 100},
      {expect + "@%p1 " + cancel + "[%r1], [%r2];\n" + seen +
           ".reg .b128 %q;\nld.shared.b128 %q, [%r1];\n"
           "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r5, %q;\n",
       "illegal use: clusterlaunchcontrol.query_cancel.get_first_ctaid of a response that says no cluster was "
       "cancelled",
       1, 32, 100},
  });
}

TEST(Faults, OfLocalMemoryAndStacks) {
  const std::string own = ".local .align 8 .b8 own[24];\n";
  check({
      {own + "st.local.u32 [own+28], 1;\n", ""},
      {own + "mov.u64 %rd5, 4096;\nst.local.u32 [%rd5], 1;\n",
       "memory: access of 4 bytes at local address 0x1000 passes the thread's 32 bytes of local memory"},
      {own + "mov.u64 %rd5, 0xfffffffffffffffc;\nst.local.u32 [%rd5], 1;\n",
       "memory: access of 4 bytes at local address 0xfffffffffffffffc passes the thread's 32 bytes of local memory"},
      {own + "mov.u64 %rd5, 28;\nld.local.u64 %rd6, [%rd5+4];\n",
       "memory: access of 8 bytes at local address 0x20 passes the thread's 32 bytes of local memory"},
  });
}

}  // namespace
