// SPDX-License-Identifier: Apache-2.0
// Deviations (docs/simulator.md, "Levels"): what the ISA calls undefined, GPUs let pass and published code relies on.
// They are faults at the level isa, warnings at portable, and nothing at field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "tests/sim/async.h"

namespace {

using namespace sim_test;
using sim::Strictness;

struct Row {
  std::string name, text;
  std::vector<std::string> warnings;  // each one's beginning
  uint32_t threads = 32;
  int arch = 90;
  std::vector<uint32_t> out{};  // what a GPU stores
  std::string fault{};          // the beginning of the report, or that of the first warning
  uint32_t cluster = 1;
};

std::string entry(const std::string& body, const std::string& bounds = "") {
  return ".visible .entry k(.param .u64 p_in, .param .u64 p_out) " + bounds + R"(
{
  .shared .align 128 .b8 buffer[8192];
  .shared .align 8 .b64 bars[8];
  .reg .b128 %q<2>;)" +
         std::string(kRegisters) + R"(
  ld.param.u64 %rd2, [p_in];
  ld.param.u64 %rd3, [p_out];
  mov.u32 %r1, %ctaid.x;
  mad.wide.u32 %rd3, %r1, 4096, %rd3;
  mov.u32 %r1, buffer;
  mov.u32 %r2, bars;
  mov.u32 %r3, %tid.x;
  mad.wide.u32 %rd4, %r3, 4, %rd3;
  setp.eq.u32 %p1, %r3, 0;
)" + body +
         "  ret;\n}\n";
}

// The first warp allocates 32 columns at column 0 and every warp stores its threads' numbers there.
std::string tensor(const std::string& body) {
  return entry(R"(
  shr.u32 %r4, %r3, 5;
  shl.b32 %r5, %r4, 21;
  setp.eq.u32 %p2, %r4, 0;
  @!%p2 bra ALLOCATED;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [buffer], 32;
ALLOCATED:
  bar.sync 0;
  tcgen05.fence::after_thread_sync;
)" + body + R"(
  st.global.u32 [%rd4], %r7;
  bar.sync 0;
  @!%p2 bra FREED;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 0, 32;
FREED:
)");
}

// Fills the buffer with ones in bf16, of which %rd20 describes a matrix without a swizzle, and %r8 with metadata.
const std::string kStoreOnes = R"(
  mad.lo.u32 %r9, %r3, 16, %r1;
  mov.b32 %r10, 0x3f803f80;
  st.shared.v4.b32 [%r9], {%r10, %r10, %r10, %r10};
  st.shared.v4.b32 [%r9+2048], {%r10, %r10, %r10, %r10};
  st.shared.v4.b32 [%r9+4096], {%r10, %r10, %r10, %r10};
  st.shared.v4.b32 [%r9+6144], {%r10, %r10, %r10, %r10};
)",
                  kDescribeOnes = R"(
  shr.u32 %r9, %r1, 4;
  cvt.u64.u32 %rd20, %r9;
  or.b64 %rd20, %rd20, 0x1000080000;
  mov.b32 %r8, 0x44444400;
)",
                  kFence = "fence.proxy.async.shared::cta;\n",
                  kOnes = kStoreOnes + kFence + "bar.sync 0;\n" + kDescribeOnes, kProduct = R"(
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r40, %r41, %r42, %r43}, %rd20, %rd20, 0, 1, 1, 0, 0;
)",
                  kProductDone = R"(
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
  st.global.u32 [%rd4], %r40;
)";
const std::string kWaited = "W: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r2], 0;\n @!%p9 bra W;\n";
const std::string kStore = "st.global.u32 [%rd4], %r3;\n";
const std::string kLoad32 = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r7}, [%r5];\n",
                  kStore32 = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r5], {%r3};\ntcgen05.wait::st.sync.aligned;\n",
                  kWaitLoad = "tcgen05.wait::ld.sync.aligned;\n";
const std::string kCopy =
    "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;\n@%p1 "
    "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd2], 128, [%r2];\n";
// Each block of a pair arrives at the other's mbarrier.
const std::string kPair = R"(
  @%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  mov.u32 %r5, %cluster_ctarank;
  xor.b32 %r5, %r5, 1;
  mapa.shared::cluster.u32 %r6, %r2, %r5;
)",
                  kArriveThere = "@%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];\n",
                  kRelaxed = "barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;\n";
const std::string kInit = "@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\nbar.warp.sync -1;\n";

// The first warp stores its threads' numbers, and the second reads them when it has waited for the mbarrier.
const std::string kTold = kInit + R"(
  mad.lo.u32 %r4, %r3, 4, %r1;
  bar.sync 0;
  setp.ge.u32 %p2, %r3, 32;
  @%p2 bra SECOND;
  st.shared.u32 [%r4], %r3;
  bar.warp.sync -1;
)",
                  kReadTold = kWaited + "ld.shared.u32 %r7, [%r4-128];\nst.global.u32 [%rd4], %r7;\nEND:\n",
                  kTellNext = "bra END;\nSECOND:\n" + kReadTold;

std::vector<uint32_t> threads(uint32_t count, uint32_t first = 0, uint32_t of = UINT32_MAX) {
  std::vector<uint32_t> numbers(count, 0);
  for (uint32_t i = first; i < std::min(count, of); ++i) numbers[i] = i;
  return numbers;
}

// What the second warp stores that the first has told it.
std::vector<uint32_t> told() {
  std::vector<uint32_t> numbers(64, 0);
  for (uint32_t i = 0; i < 32; ++i) numbers[32 + i] = i;
  return numbers;
}

// What each of 128 threads stores, 32 of them the same.
std::vector<uint32_t> parts_of_lanes(const std::array<uint32_t, 4>& values) {
  std::vector<uint32_t> words;
  for (const uint32_t value : values) words.insert(words.end(), 32, value);
  return words;
}

// Each lane stores its number, and loads that of the lane beside it.
const std::string kToNeighbour = "mad.lo.u32 %r4, %r3, 4, %r1;\nst.shared.u32 [%r4], %r3;\n",
                  kFromNeighbour =
                      "xor.b32 %r4, %r3, 1;\nmad.lo.u32 %r4, %r4, 4, %r1;\nld.shared.u32 %r7, [%r4];\n"
                      "st.global.u32 [%rd4], %r7;\n";

std::vector<Row> rows() {
  const std::string met = "data in flight: reads shared memory at offset 0x";
  std::vector<uint32_t> neighbours, rows_of_others;
  for (uint32_t i = 0; i < 32; ++i) {
    neighbours.push_back(i ^ 1);
    rows_of_others.push_back(i / 4 ^ 1);
  }
  const std::string again =
                        "mbarrier misuse: the mbarrier at shared offset 0x2000 is initialised again without "
                        "mbarrier.inval at ptx line ",
                    bounds = ".maxntid 128, 1, 1 .minnctapersm 1",
                    lanes = "tensor memory: tcgen05.ld.sync.aligned.32x32b.x1.b32 at lane 0: warp ",
                    early =
                        "registers in flight: accesses a destination register of a tcgen05.ld that no "
                        "tcgen05.wait::ld has waited for at ptx line ",
                    fence =
                        "missing proxy fence: an asynchronous copy writes shared memory at offset 0x0, which warp "
                        "0 has read through the generic proxy, and no fence.proxy.async stands between";
  return {
      // An object that several lanes initialise at once, to the same count.
      {"init by all lanes",
       entry("mbarrier.init.shared::cta.b64 [%r2], 32;\nbar.sync 0;\nmbarrier.arrive.shared::cta.b64 %rd5, [%r2];\n" +
             kWaited + kStore),
       {again},
       32,
       90,
       threads(32)},
      {"init by two lanes",
       entry("setp.lt.u32 %p2, %r3, 2;\n@%p2 mbarrier.init.shared::cta.b64 [%r2], 1;\nbar.sync 0;\n@%p1 "
             "mbarrier.arrive.shared::cta.b64 %rd5, [%r2];\n" +
             kWaited + kStore),
       {again},
       32,
       90,
       threads(32)},
      {"init of two objects by 16 lanes each",
       entry("and.b32 %r4, %r3, 1;\nmad.lo.u32 %r4, %r4, 8, %r2;\nmbarrier.init.shared::cta.b64 [%r4], 32;\nbar.sync "
             "0;\nmbarrier.arrive.shared::cta.b64 %rd5, [%r2];\n" +
             kWaited + kStore),
       {"mbarrier misuse: the mbarrier at shared offset 0x200"},
       32,
       90,
       threads(32)},
      // Lanes that read what others of their warp have stored, behind an instruction that orders no memory.
      {"a shuffle between a store and the load of another lane",
       entry(kToNeighbour + "shfl.sync.idx.b32 %r7, %r3, 0, 31, -1;\n" + kFromNeighbour),
       {met},
       32,
       90,
       neighbours},
      {"a vote between a store and the load of another lane",
       entry(kToNeighbour + "vote.sync.any.pred %p2, %p1, -1;\n" + kFromNeighbour),
       {met},
       32,
       90,
       neighbours},
      {"a matrix load of what other lanes have stored",
       entry("mad.lo.u32 %r4, %r3, 16, %r1;\nst.shared.v4.u32 [%r4], {%r3, %r3, %r3, %r3};\n"
             "xor.b32 %r4, %r4, 16;\n"
             "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r7}, [%r4];\nst.global.u32 [%rd4], %r7;\n"),
       {met},
       32,
       90,
       rows_of_others},
      // .aligned instructions of which a part of the lanes has left.
      {"setmaxnreg by one lane",
       entry("@!%p1 bra E;\nsetmaxnreg.dec.sync.aligned.u32 40;\n" + kStore + "E:\n", bounds),
       {"illegal use: setmaxnreg.dec.sync.aligned.u32 by 1 of the warp's 32 threads: the others have exited at ptx "
        "line "}},
      {"setmaxnreg by half of a warp",
       entry("setp.lt.u32 %p2, %r3, 16;\n@!%p2 exit;\nsetmaxnreg.dec.sync.aligned.u32 40;\n" + kStore, bounds),
       {"illegal use: setmaxnreg.dec.sync.aligned.u32 by 16 of the warp's 32 threads"},
       32,
       90,
       threads(32, 0, 16)},
      {"setmaxnreg by one warp of a group",
       entry("setp.lt.u32 %p2, %r3, 32;\n@!%p2 bra E;\nsetmaxnreg.dec.sync.aligned.u32 40;\nE:\n" + kStore, bounds),
       {"illegal use: setmaxnreg.dec.sync.aligned.u32 at ptx line "},
       128,
       90,
       threads(128)},
      {"setmaxnreg by three warps of a group",
       entry("setp.lt.u32 %p2, %r3, 32;\n@%p2 bra E;\nsetmaxnreg.dec.sync.aligned.u32 40;\nE:\n" + kStore, bounds),
       {"illegal use: setmaxnreg.dec.sync.aligned.u32 at ptx line "},
       128,
       90,
       threads(128)},
      {"a wait by one lane",
       tensor(kStore32 + kLoad32 + kWaitLoad +
              "mov.u32 %r6, %tid.x;\nsetp.eq.u32 %p3, %r6, 96;\nst.global.u32 [%rd4], %r7;\nsetp.lt.u32 %p4, %r6, "
              "97;\n@!%p4 exit;\ntcgen05.wait::st.sync.aligned;\n"),
       {"illegal use: tcgen05.wait::st.sync.aligned by 1 of the warp's 32 threads"},
       128,
       100,
       threads(128)},
      // tcgen05.ld without the lanes of its warp in the address.
      {"lane 0 by every warp",
       tensor(kStore32 + "mov.u32 %r5, 0;\n" + kLoad32 + kWaitLoad),
       {lanes},
       128,
       100,
       threads(128)},
      // Results of tcgen05.ld that only their registers order.
      {"a sum before the wait",
       tensor(kStore32 + kLoad32 + "add.u32 %r7, %r7, 1;\nsub.u32 %r7, %r7, 1;\n" + kWaitLoad),
       {early, early},
       128,
       100,
       threads(128)},
      {"a store before the wait",
       tensor(kStore32 + kLoad32 + "st.global.u32 [%rd4], %r7;\n" + kWaitLoad),
       {early},
       128,
       100,
       threads(128)},
      // Generic addresses of shared memory as shared ones.
      {"a generic address of an mbarrier",
       entry("cvta.shared.u64 %rd5, bars;\n@%p1 mbarrier.init.shared::cta.b64 [%rd5], 32;\nbar.warp.sync -1;\n"
             "mbarrier.arrive.shared::cta.b64 %rd6, [%r2];\n" +
             kWaited + kStore),
       {"memory: generic address 0x100000000002000 is used as a shared address"},
       32,
       90,
       threads(32)},
      {"a generic address of a store",
       entry("cvta.shared.u64 %rd5, buffer;\nmad.wide.u32 %rd5, %r3, 4, %rd5;\nst.shared.u32 [%rd5], %r3;\n"
             "mad.lo.u32 %r4, %r3, 4, %r1;\nld.shared.u32 %r3, [%r4];\n" +
             kStore),
       {"memory: generic address 0x100000000000000 is used as a shared address"},
       32,
       90,
       threads(32)},
      {"a generic address of what tcgen05.alloc writes",
       entry("shr.u32 %r4, %r3, 5;\nshl.b32 %r5, %r4, 21;\nsetp.eq.u32 %p2, %r4, 0;\n@!%p2 bra ALLOCATED;\n"
             "cvta.shared.u64 %rd5, buffer;\ntcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%rd5], 32;\n"
             "tcgen05.dealloc.cta_group::1.sync.aligned.b32 0, 32;\nALLOCATED:\n" +
             kStore),
       {"memory: generic address 0x100000000000000 is used as a shared address"},
       128,
       100,
       threads(128)},
      // Shared addresses as generic ones.
      {"a shared address of an mbarrier",
       entry(kInit + "bar.sync 0;\ncvt.u64.u32 %rd5, %r2;\n@%p1 mbarrier.arrive.b64 %rd6, [%rd5];\n" + kWaited +
             kStore),
       {"memory: generic address 0x2000 is not in shared memory"},
       32,
       90,
       threads(32)},
      // Shared memory that nobody wrote.
      {"a read of no value",
       entry("ld.shared.u32 %r6, [%r1+8];\nand.b32 %r6, %r6, 0;\nadd.u32 %r3, %r3, %r6;\n" + kStore),
       {"memory: reads uninitialised shared memory at offset 0x8 at ptx line "},
       32,
       90,
       threads(32)},
      {"a row that is half written",
       entry("setp.lt.u32 %p2, %r3, 16;\nmad.lo.u32 %r4, %r3, 4, %r1;\n@%p2 st.shared.u32 [%r4], %r3;\nld.shared.u32 "
             "%r5, [%r4];\nselp.u32 %r3, %r5, %r3, %p2;\n" +
             kStore),
       {"memory: reads uninitialised shared memory at offset 0x40 at ptx line "},
       32,
       90,
       threads(32)},
      {"a bulk store of no value",
       entry("@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd3], [%r1], 128;\ncp.async.bulk.commit_group;\n"
             "cp.async.bulk.wait_group 0;\n" +
             kStore),
       {"memory: reads uninitialised shared memory at offset 0x0 at ptx line "},
       32,
       90,
       threads(32)},
      // Races that published code relies on.
      {"words of another warp behind a relaxed barrier",
       entry("mad.lo.u32 %r4, %r3, 4, %r1;\nst.shared.u32 [%r4], %r3;\n" + kRelaxed +
             "xor.b32 %r4, %r4, 128;\nld.shared.u32 %r3, [%r4];\nxor.b32 %r3, %r3, 32;\n" + kStore),
       {"race: reads shared memory at offset 0x"},
       64,
       90,
       threads(64)},
      {"words that another warp has read before a relaxed barrier",
       entry("mad.lo.u32 %r4, %r3, 4, %r1;\nst.shared.u32 [%r4], %r3;\nbar.sync 0;\nxor.b32 %r4, %r4, 128;\n"
             "ld.shared.u32 %r3, [%r4];\nxor.b32 %r3, %r3, 32;\n" +
             kRelaxed + "xor.b32 %r4, %r4, 128;\nst.shared.u32 [%r4], 0;\n" + kStore),
       {"race: writes to shared memory at offset 0x"},
       64,
       90,
       threads(64)},
      {"global words of another warp behind a relaxed barrier",
       entry("st.global.u32 [%rd4], %r3;\n" + kRelaxed +
             "xor.b32 %r4, %r3, 32;\nmad.wide.u32 %rd5, %r4, 4, %rd3;\nld.global.u32 %r3, [%rd5];\n"
             "xor.b32 %r3, %r3, 32;\nst.global.u32 [%rd4+2048], %r3;\n"),
       {"race: reads global memory at 0x"},
       64,
       90,
       threads(64)},
      // The first warp stores words; what tells the second of it is a copy, an arrival behind a copy, or a commit.
      {"words stored before a copy whose bytes another warp waits for",
       entry(kTold +
             "@%p1 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1+1024], [%rd2], 128, "
             "[%r2];\nbra END;\nSECOND:\nsetp.eq.u32 %p3, %r3, 32;\n@%p3 "
             "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;\n" +
             kReadTold),
       {"race: reads shared memory at offset 0x"},
       64,
       90,
       told()},
      {"words stored before an arrival behind cp.async",
       entry(kTold +
             "cp.async.ca.shared.global [%r4+1024], [%rd2], 4;\n@%p1 cp.async.mbarrier.arrive.noinc.shared.b64 "
             "[%r2];\n" +
             kTellNext),
       {"race: reads shared memory at offset 0x"},
       64,
       90,
       told()},
      {"words stored before a commit",
       entry(kTold + "@%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r2];\n" + kTellNext),
       {"race: reads shared memory at offset 0x"},
       64,
       100,
       told()},
      // The first warp reads words, the second learns of it and loads, and the third stores over them.
      {
          "words read before a copy by who learned of it",
          entry(R"(
  mad.lo.u32 %r4, %r3, 4, %r1;
  st.shared.u32 [%r4], %r3;
  @%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
  @%p1 mbarrier.init.shared::cta.b64 [%r2+8], 1;
  bar.sync 0;
  and.b32 %r5, %r3, 31;
  setp.eq.u32 %p1, %r5, 0;
  shr.u32 %r6, %r3, 5;
  setp.eq.u32 %p3, %r6, 1;
  setp.eq.u32 %p4, %r6, 2;
  @%p3 bra SECOND;
  @%p4 bra THIRD;
  ld.shared.u32 %r7, [%r4];
  st.global.u32 [%rd4], %r7;
  bar.warp.sync -1;
  @%p1 mbarrier.arrive.shared::cta.b64 _, [%r2+8];
  bra END;
SECOND:
  mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r2+8], 0;
  @!%p9 bra SECOND;
  @%p1 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1+1024], [%rd2], 128, [%r2];
  bra END;
THIRD:
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;
)" + kWaited + "st.shared.u32 [%r4-256], 7;\nEND:\n"),
          {"race: writes to shared memory at offset 0x"},
          96,
          90,
          threads(96, 0, 32)},
      {"a bulk store that all lanes issue",
       entry("mad.lo.u32 %r4, %r3, 4, %r1;\nst.shared.u32 [%r4], %r3;\n" + kFence +
             "bar.warp.sync -1;\ncp.async.bulk.global.shared::cta.bulk_group [%rd3], [%r1], 128;\n"
             "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n"),
       {"race: writes to global memory at 0x"},
       32,
       90,
       threads(32)},
      {"a product of rows that four warps store",
       entry(kOnes + kStoreOnes + kFence + kProduct + kProductDone),
       {"data in flight: a wgmma reads shared memory at offset 0x"},
       128,
       90,
       std::vector<uint32_t>(128, 0x41800000),
       "data in flight: "},
      // What Triton's compiler emits.
      {"a load over a write that was read",
       entry(kInit +
             "mad.lo.u32 %r4, %r3, 4, %r1;\nst.shared.u32 [%r4], 9;\nld.shared.u32 %r5, [%r4];\n"
             "bar.warp.sync -1;\n" +
             kCopy + kWaited + "ld.shared.u32 %r3, [%r4];\n" + kStore),
       {"missing proxy fence: an asynchronous copy writes shared memory at offset 0x0, which warp 0 wrote through the "
        "generic proxy, and no fence.proxy.async stands between"},
       32,
       90,
       threads(32)},
      {"a tensor map made of zeros",
       entry(R"(
  mad.lo.u32 %r4, %r3, 4, %r1;
  st.shared.u32 [%r4], 0;
  bar.warp.sync -1;
  @!%p1 bra MADE;
  tensormap.replace.tile.global_address.shared::cta.b1024.b64 [buffer], %rd2;
  tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [buffer], 0, 32;
  tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [buffer], 0, 32;
  tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [buffer], 2;
MADE:
  bar.warp.sync -1;
  mov.u32 %r6, %ctaid.x;
  mad.wide.u32 %rd5, %r6, 128, %rd2;
  add.u64 %rd5, %rd5, 2048;
  tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd5], [buffer], 128;
  fence.proxy.tensormap::generic.acquire.gpu [%rd5], 128;
)" + kInit + R"(
  @%p1 fence.proxy.async.shared::cta;
  @!%p1 bra LOADED;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;
  add.u32 %r7, %r1, 1024;
  mov.b32 %r8, 0;
  cp.async.bulk.tensor.1d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r7], [%rd5, {%r8}], [%r2];
LOADED:
)" + kWaited +
             "ld.shared.u32 %r3, [%r4+1024];\n" + kStore),
       {"illegal use: the 128 bytes at 0x0 are no tensor map: all are zero"},
       32,
       90,
       threads(32)},
      {"two arrivals of a warp at a barrier",
       entry("setp.ge.u32 %p2, %r3, 64;\n@%p2 bra END;\nbar.arrive 1, 96;\nsetp.lt.u32 %p2, %r3, 32;\n@%p2 bra END;\n"
             "bar.sync 1, 96;\nEND:\n" +
             kStore),
       {"illegal use: the warp arrives twice at named barrier 1 before it completes"},
       128,
       90,
       threads(128)},
      {"wgmma on what cp.async wrote",
       entry(R"(
  setp.lt.u32 %p2, %r3, 64;
  mad.lo.u32 %r9, %r3, 64, %r1;
  mad.wide.u32 %rd5, %r3, 64, %rd2;
  @%p2 cp.async.cg.shared.global [%r9], [%rd5], 16;
  @%p2 cp.async.cg.shared.global [%r9+16], [%rd5+16], 16;
  @%p2 cp.async.cg.shared.global [%r9+32], [%rd5+32], 16;
  @%p2 cp.async.cg.shared.global [%r9+48], [%rd5+48], 16;
  cp.async.wait_all;
  bar.sync 0;
  shr.u32 %r9, %r1, 4;
  cvt.u64.u32 %rd20, %r9;
  or.b64 %rd20, %rd20, 0x800080000;
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r40, %r41, %r42, %r43}, %rd20, %rd20, 0, 1, 1, 0, 0;
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
)" + kStore),
       {"missing proxy fence: an asynchronous operation reads shared memory at offset 0x0, which a cp.async of warp 0 "
        "wrote through the generic proxy, and no fence.proxy.async stands between"},
       128,
       90,
       threads(128)},
      {"a store over tensor memory that was loaded and not waited for",
       tensor(kStore32 + kLoad32 + "add.u32 %r3, %r7, 1;\n" + kStore32 + kLoad32 + "add.u32 %r7, %r7, 0;\n"),
       {"registers in flight: accesses a destination register of a tcgen05.ld that no tcgen05.wait::ld has waited for",
        "registers in flight: accesses a destination register of a tcgen05.ld that no tcgen05.wait::ld has waited for",
        "registers in flight: accesses a destination register of a tcgen05.ld that no tcgen05.wait::ld has waited for",
        "registers in flight: accesses a destination register of a tcgen05.ld that no tcgen05.wait::ld has waited for"},
       128,
       100,
       [] {
         std::vector<uint32_t> next = threads(128);
         for (uint32_t& n : next) ++n;
         return next;
       }()},
      {"an allocation before a relaxed barrier",
       entry(R"(
  shr.u32 %r4, %r3, 5;
  shl.b32 %r5, %r4, 21;
  setp.eq.u32 %p2, %r4, 0;
  @!%p2 bra ALLOCATED;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [buffer], 32;
ALLOCATED:
  barrier.cluster.arrive.relaxed.aligned;
  barrier.cluster.wait.aligned;
  tcgen05.fence::after_thread_sync;
)" + kStore32 +
             "tcgen05.fence::before_thread_sync;\nbar.sync 0;\n@!%p2 bra FREED;\n"
             "tcgen05.dealloc.cta_group::1.sync.aligned.b32 0, 32;\nFREED:\n" +
             kStore),
       {"tensor memory: tcgen05.st.sync.aligned.32x32b.x1.b32 touches column 0 of tensor memory and is not ordered "
        "after its tcgen05.alloc"},
       128,
       100,
       threads(128)},
      {"a parity of minus one",
       entry(kInit + "V: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r2], 0xffffffff;\n @!%p9 bra V;\n" +
             "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r2];\n" + kWaited + kStore),
       {"mbarrier misuse: a phase parity of 4294967295, allowed are 0 and 1"},
       32,
       90,
       threads(32)},
      {"tensor memory that nobody wrote",
       tensor(kLoad32 + kWaitLoad),
       {"tensor memory: tcgen05.ld.sync.aligned.32x32b.x1.b32 reads columns 0 to 0 of tensor memory, in which nothing "
        "was written since their tcgen05.alloc"},
       128,
       100,
       std::vector<uint32_t>(128, ~0u)},
      {"the first block of a cluster that was not cancelled",
       entry(R"(
  mov.b64 %rd5, 0;
  mov.b128 %q1, {%rd5, %rd5};
  clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r4, %q1;
  add.u32 %r3, %r3, %r4;
)" + kStore),
       {"illegal use: clusterlaunchcontrol.query_cancel.get_first_ctaid of a response that says no cluster was"},
       32,
       100,
       threads(32)},
      // Block 0 initialises; the barrier tells nothing of it.
      {"an initialisation before a relaxed barrier",
       entry(R"(
  @%p1 mbarrier.init.shared::cta.b64 [%r2], 64;
  barrier.cluster.arrive.relaxed.aligned;
  barrier.cluster.wait.aligned;
  setp.lt.u32 %p2, %r3, 32;
  @%p2 bra WAIT;
  mbarrier.arrive.shared::cta.b64 _, [%r2];
  mbarrier.arrive.shared::cta.b64 _, [%r2];
WAIT:
)" + kWaited +
             kStore),
       {"mbarrier misuse: the mbarrier at shared offset 0x2000 is used without being ordered after an mbarrier.init of "
        "warp 0",
        "mbarrier misuse: the mbarrier at shared offset 0x2000 is used without being ordered after an mbarrier.init of "
        "warp 0",
        "mbarrier misuse: the mbarrier at shared offset 0x2000 is used without being ordered after an mbarrier.init of "
        "warp 0"},
       64,
       90,
       threads(64)},
      {"an arrival at a block that a relaxed barrier keeps from exiting",
       entry(kPair + kArriveThere + kRelaxed + kStore),
       {"memory: block ("},
       32,
       90,
       threads(32),
       "",
       2},
      // Lane 0 arrives at the mbarrier when the others have arrived at the barrier.
      {"the same by a lane that comes later",
       entry(kPair + "@%p1 bra LATER;\nbarrier.cluster.arrive.relaxed;\nbra WAIT;\nLATER:\n" + kArriveThere +
             "barrier.cluster.arrive.relaxed;\nWAIT:\nbarrier.cluster.wait;\n" + kStore),
       {"memory: block ("},
       32,
       90,
       threads(32),
       "",
       2},
      // Sparse products of ones. That of mma adds nothing: its matrices are 0.
      {"metadata of mma that names a column twice",
       entry("mov.b32 %r10, 0;\nmov.b32 %r11, 0x44404444;\nmma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r20, "
             "%r21, %r22, %r23}, {%r10, %r10}, {%r10, %r10}, {%r10, %r10, %r10, %r10}, %r11, 3;\nadd.u32 %r20, %r20, "
             "9;\nst.global.u32 [%rd4], %r20;\n"),
       {"illegal use: the metadata 0x44404444 of a sparse mma has 0x0 at bit 16, which names one column twice"},
       32,
       90,
       std::vector<uint32_t>(32, 9)},
      {"metadata of wgmma that names a column twice",
       entry(kOnes + R"(
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.bf16.bf16 {%r40, %r41, %r42, %r43}, %rd20, %rd20, %r8, 0, 0, 1, 1, 0, 0;
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
  st.global.u32 [%rd4], %r40;
)"),
       {"illegal use: the metadata 0x44444400 of a sparse wgmma has 0x0 at bit 0, which names one column twice"},
       128,
       90,
       std::vector<uint32_t>(128, 0x41800000)},
      {"metadata of tcgen05.mma that names a column twice",
       tensor(R"(
  add.u32 %r6, %r5, 16;
  mov.b32 %r8, 0x44444400;
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%r6], {%r8};
  tcgen05.wait::st.sync.aligned;
  @%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
  tcgen05.fence::before_thread_sync;
)" + kOnes + R"(
  tcgen05.fence::after_thread_sync;
  @!%p1 bra MULTIPLIED;
  or.b64 %rd20, %rd20, 0x400000000000;
  mov.b32 %r11, )" +
              std::to_string(4 | 1 << 4 | 1 << 7 | 1 << 10 | 1 << 17 | 8 << 24) +
              R"(;
  mov.b32 %r12, 16;
  mov.b32 %r13, 0;
  tcgen05.mma.sp.cta_group::1.kind::f16 [%r13], %rd20, %rd20, [%r12], %r11, 0;
  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r2];
MULTIPLIED:
)" + kWaited + "tcgen05.fence::after_thread_sync;\n" +
              kLoad32 + kWaitLoad),
       {"tensor memory: the sparsity metadata 0x0 of chunk 0 of row 0, at bit 0 of tensor memory at lane 0, column 16, "
        "has no meaning by the ISA, by tcgen05.mma.sp"},
       128,
       100,
       std::vector<uint32_t>(128, 0x41800000)},
      // The first part of the lanes has ones, the next twos, then fours and eights: one product with four matrices A.
      {"matrix A in tensor memory that differs between the parts of the columns",
       tensor(R"(
  add.u32 %r6, %r5, 16;
  mad.lo.u32 %r8, %r4, 0x800080, 0x3f803f80;
  tcgen05.st.sync.aligned.32x32b.x8.b32 [%r6], {%r8, %r8, %r8, %r8, %r8, %r8, %r8, %r8};
  tcgen05.wait::st.sync.aligned;
  @%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
  tcgen05.fence::before_thread_sync;
)" + kOnes + R"(
  tcgen05.fence::after_thread_sync;
  @!%p1 bra MULTIPLIED;
  or.b64 %rd20, %rd20, 0x400000000000;
  mov.b32 %r11, )" +
              std::to_string(1 << 4 | 1 << 7 | 1 << 10 | 8 << 17 | 2 << 24) +
              R"(;
  mov.b32 %r13, 0;
  mov.b32 %r14, 16;
  tcgen05.mma.ws.cta_group::1.kind::f16 [%r13], [%r14], %rd20, %r11, 0, 0;
  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r2];
MULTIPLIED:
)" + kWaited + "tcgen05.fence::after_thread_sync;\n" +
              kLoad32 + kWaitLoad),
       {"tensor memory: matrix A in tensor memory differs between lanes 0 and 32, which must hold the same row, by "
        "tcgen05.mma.ws"},
       128,
       100,
       parts_of_lanes({0x41800000, 0x42000000, 0x42800000, 0x43000000})},
      // All lanes store, and overwrite the sources when one has waited.
      {"bulk groups of other lanes",
       entry("mad.lo.u32 %r4, %r3, 16, %r1;\nmov.u32 %r7, 5;\nst.shared.v4.u32 [%r4], {%r3, %r3, %r3, %r7};\n"
             "fence.proxy.async.shared::cta;\nmad.wide.u32 %rd5, %r3, 16, %rd3;\n"
             "cp.async.bulk.global.shared::cta.bulk_group [%rd5], [%r4], 16;\ncp.async.bulk.commit_group;\n"
             "@%p1 cp.async.bulk.wait_group.read 0;\nbar.warp.sync -1;\nst.shared.u32 [%r4], %r1;\n"
             "cp.async.bulk.wait_group 0;\n"),
       {"data in flight: lane 0 waits for its bulk groups, and lane 1, which has issued the same copy, does not"},
       32,
       90,
       {0, 0, 0, 5, 1, 1, 1, 5, 2, 2, 2, 5},
       "data in flight: writes to shared memory at offset 0x10 while it is still being read: a bulk group of warp 0"},
      // Reads before a copy lands.
      {"a load over a read",
       entry(kInit +
             "mad.lo.u32 %r4, %r3, 4, %r1;\nst.shared.u32 [%r4], 9;\nfence.proxy.async.shared::cta;\n"
             "ld.shared.u32 %r5, [%r4];\nbar.warp.sync -1;\n" +
             kCopy + kWaited + "ld.shared.u32 %r3, [%r4];\n" + kStore),
       {fence},
       32,
       90,
       threads(32)},
  };
}

// The report, or nothing, and the warnings.
struct Outcome {
  std::string report;
  std::vector<std::string> warnings;
  std::vector<uint32_t> out;
};

Outcome run_at(const Row& row, Strictness level, const sim::Order& order, int threads_of_host = 2) {
  sim::GlobalMemory memory;
  Buffer<uint32_t> in(memory, threads(1024)), out(memory, size_t{row.cluster * 3 * 1024}, 0u);
  const auto kernel = prepare_ptx(row.text, "k", row.arch);
  sim::Launch launch;
  launch.kernel = kernel.get();
  launch.grid = {3 * row.cluster, 1, 1};
  launch.cluster = {row.cluster, 1, 1};
  launch.block = {row.threads, 1, 1};
  launch.params = Params().add(in.address()).add(out.address()).bytes();
  launch.global = &memory;
  launch.arch = row.arch;
  launch.order = order;
  launch.threads = threads_of_host;
  launch.rules.strictness = level;
  Outcome outcome;
  try {
    sim::run(launch);
  } catch (const sim::Fault& fault) {
    outcome.report = fault.what();
  }
  outcome.warnings = launch.deviations.lines();
  outcome.out.assign(out.data(), out.data() + row.out.size());
  return outcome;
}

TEST(Strictness, AFaultAWarningOrNothing) {
  for (const Row& row : rows()) {
    for (const sim::Order& order : all_orders()) {
      SCOPED_TRACE(row.name);
      const Outcome isa = run_at(row, Strictness::Isa, order), portable = run_at(row, Strictness::Portable, order),
                    field = run_at(row, Strictness::Field, order);
      EXPECT_THAT(isa.report, testing::StartsWith(row.fault.empty() ? row.warnings[0] : row.fault));
      EXPECT_TRUE(isa.warnings.empty());
      EXPECT_EQ(portable.report, "");
      ASSERT_EQ(portable.warnings.size(), row.warnings.size()) << testing::PrintToString(portable.warnings);
      for (size_t i = 0; i < row.warnings.size(); ++i) {
        // Three blocks do it.
        EXPECT_THAT(
            portable.warnings[i],
            testing::AllOf(testing::StartsWith("warning: " + row.warnings[i]), testing::HasSubstr(" at ptx line "),
                           testing::HasSubstr("block (0,0,0)"), testing::EndsWith(" times)")));
      }
      EXPECT_EQ(portable.out, row.out);
      EXPECT_EQ(field.report, "");
      EXPECT_TRUE(field.warnings.empty());
      EXPECT_EQ(field.out, row.out);
    }
  }
}

// What a GPU does not let pass stays a fault at every level.
TEST(Strictness, SomeNeighboursAreAlwaysFaults) {
  const Row always[] = {
      {"counts that differ",
       entry("add.u32 %r4, %r3, 1;\nmbarrier.init.shared::cta.b64 [%r2], %r4;\n"),
       {"mbarrier misuse: the mbarrier at shared offset 0x2000 is initialised again"}},
      {"twice, one after the other",
       entry("@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\n@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\n"),
       {"mbarrier misuse: the mbarrier at shared offset 0x2000 is initialised again"}},
      {"an initialisation that no barrier comes after",
       entry("@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\nsetp.lt.u32 %p2, %r3, 32;\n@%p2 bra END;\n" + kWaited +
             "END:\n"),
       {"mbarrier misuse: the mbarrier at shared offset 0x2000 is "},
       64},
      {"an initialisation that no barrier separates from the use",
       entry("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;\n@%p1 "
             "mbarrier.init.shared::cta.b64 [%r2], 1;\nsetp.lt.u32 %p2, %r3, 32;\n@%p2 bra END;\n" +
             kWaited + "END:\n"),
       {"mbarrier misuse: the mbarrier at shared offset 0x2000 is "},
       64},
      {"an arrival at another block behind the last barrier",
       entry(kPair + kRelaxed + kArriveThere),
       {"memory: "},
       32,
       90,
       {},
       "",
       2},
      {"an arrival at another block behind the arrival at the last barrier",
       entry(kPair + "barrier.cluster.arrive.relaxed.aligned;\n" + kArriveThere + "barrier.cluster.wait.aligned;\n"),
       {"memory: "},
       32,
       90,
       {},
       "",
       2},
      {"an initialisation behind the arrival",
       entry("barrier.cluster.arrive.relaxed.aligned;\n@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\n"
             "barrier.cluster.wait.aligned;\nsetp.lt.u32 %p2, %r3, 32;\n@%p2 bra END;\n" +
             kWaited + "END:\n"),
       {"mbarrier misuse: the mbarrier at shared offset 0x2000 is "},
       64},
      {"two warps that store to the same words",
       entry("and.b32 %r4, %r3, 31;\nmad.lo.u32 %r4, %r4, 4, %r1;\nst.shared.u32 [%r4], %r3;\n"),
       {"race: writes to shared memory at offset 0x0, which warp "},
       64},
      {"words of another warp behind the arrival at a relaxed barrier",
       entry("barrier.cluster.arrive.relaxed.aligned;\nmad.lo.u32 %r4, %r3, 4, %r1;\nst.shared.u32 [%r4], %r3;\n"
             "barrier.cluster.wait.aligned;\nxor.b32 %r4, %r4, 128;\nld.shared.u32 %r3, [%r4];\n" +
             kStore),
       {"race: reads shared memory at offset 0x"},
       64},
      {"words stored behind a copy whose bytes another warp waits for",
       entry(kInit + "bar.sync 0;\nsetp.ge.u32 %p2, %r3, 32;\nmad.lo.u32 %r4, %r3, 4, %r1;\n@%p2 bra SECOND;\n" +
             "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;\n@%p1 "
             "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1+1024], [%rd2], 128, [%r2];\n"
             "st.shared.u32 [%r4], %r3;\nbra END;\nSECOND:\n" +
             kWaited + "ld.shared.u32 %r7, [%r4-128];\nEND:\n"),
       {"race: "},
       64},
      {"words of another warp before a relaxed barrier, in the last block",
       entry("mad.lo.u32 %r4, %r3, 4, %r1;\nst.shared.u32 [%r4], 0;\nbar.sync 0;\nst.shared.u32 [%r4], %r3;\n"
             "mov.u32 %r5, %ctaid.x;\nsetp.ne.u32 %p2, %r5, 2;\n@%p2 bar.sync 0;\nxor.b32 %r4, %r4, "
             "128;\nld.shared.u32 %r3, [%r4];\n" +
             kRelaxed + kStore),
       {"race: "},
       64},
      {"a lane that no warp has",
       tensor(kStore32 + "add.u32 %r5, %r5, 0x80000;\n" + kLoad32 + kWaitLoad),
       {"tensor memory: tcgen05.ld.sync.aligned.32x32b.x1.b32 at lane "},
       128,
       100},
  };
  for (const Row& row : always) {
    for (const Strictness level : {Strictness::Isa, Strictness::Portable, Strictness::Field})
      EXPECT_THAT(run_at(row, level, {}).report, testing::StartsWith(row.warnings[0])) << row.name;
  }
}

// Races for global memory are looked for at isa and at portable. Blocks that race would do so on the host, too.
TEST(Strictness, PlainRacesForGlobalMemoryAreFaults) {
  const Row races[] = {
      {"two warps",
       entry("st.global.u32 [%rd4], %r3;\nxor.b32 %r4, %r3, 32;\nmad.wide.u32 %rd5, %r4, 4, %rd3;\n"
             "ld.global.u32 %r3, [%rd5];\n" +
             kStore),
       {"race: "},
       64},
      {"two blocks",
       entry("mov.u32 %r4, %ctaid.x;\nld.param.u64 %rd3, [p_out];\nst.global.u32 [%rd3], %r4;\n"),
       {"race: writes to global memory at 0x"}},
      {"two copies by a lane",
       entry("mad.lo.u32 %r4, %r3, 4, %r1;\nst.shared.u32 [%r4], %r3;\n" + kFence +
             "bar.warp.sync -1;\n@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd3], [%r1], 16;\n"
             "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd3], [%r1+16], 16;\n"
             "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n"),
       {"race: writes to global memory at 0x"}},
  };
  for (const Row& row : races) {
    for (const Strictness level : {Strictness::Isa, Strictness::Portable})
      EXPECT_THAT(run_at(row, level, {}, 1).report, testing::StartsWith(row.warnings[0])) << row.name;
    EXPECT_EQ(run_at(row, Strictness::Field, {}, 1).report, "") << row.name;
  }
}

// The CUDA C++ programming guide begins the loop of an atomic operation so.
TEST(Strictness, ACompareAndSwapMayBeginWithAPlainRead) {
  for (const char* const space : {"shared", "global"}) {
    const std::string place = std::string(space) == "shared" ? "[%r1]" : "[%rd3+2048]";
    const std::string of = std::string(".") + space;
    const Row row{"",
                  entry("@%p1 st" + of + ".u32 " + place + ", 0;\nbar.sync 0;\nld" + of + ".u32 %r5, " + place +
                        ";\nL:\nadd.u32 %r6, %r5, 1;\natom" + of + ".cas.b32 %r7, " + place +
                        ", %r5, %r6;\nsetp.ne.u32 %p2, %r7, %r5;\nmov.u32 %r5, %r7;\n@%p2 bra L;\nbar.sync 0;\n"
                        "ld" +
                        of + ".u32 %r3, " + place + ";\n" + kStore),
                  {},
                  64,
                  90,
                  std::vector<uint32_t>(64, 64)};
    for (const sim::Order& order : all_orders()) {
      SCOPED_TRACE(space);
      EXPECT_THAT(run_at(row, Strictness::Isa, order).report, testing::StartsWith("race: "));
      const Outcome portable = run_at(row, Strictness::Portable, order);
      EXPECT_EQ(portable.report, "");
      EXPECT_THAT(portable.warnings, testing::Not(testing::IsEmpty()));
      EXPECT_THAT(portable.warnings, testing::Each(testing::HasSubstr("only one of them is atomic or volatile")));
      EXPECT_EQ(portable.out, row.out);
      const Outcome field = run_at(row, Strictness::Field, order);
      EXPECT_EQ(field.report, "");
      EXPECT_EQ(field.out, row.out);
    }
  }
}

// What brought the lanes together must come between the two, and bring all of them.
TEST(Strictness, LanesOfAWarpAreNotInStep) {
  const std::string shuffle = "shfl.sync.idx.b32 %r7, %r3, 0, 31, -1;\n";
  const Row rows[] = {
      {"nothing", entry(kToNeighbour + kFromNeighbour), {}},
      {"a shuffle before the store", entry(shuffle + kToNeighbour + kFromNeighbour), {}},
      {"a shuffle behind the load", entry(kToNeighbour + kFromNeighbour + shuffle), {}},
      {"a shuffle among the even lanes",
       entry(kToNeighbour +
             "and.b32 %r5, %r3, 1;\nsetp.eq.u32 %p2, %r5, 0;\n"
             "@%p2 shfl.sync.idx.b32 %r7, %r3, 0, 31, 0x55555555;\n" +
             kFromNeighbour),
       {}},
  };
  for (const Row& row : rows) {
    for (const sim::Order& order : all_orders()) {
      for (const Strictness level : {Strictness::Isa, Strictness::Portable, Strictness::Field})
        EXPECT_THAT(run_at(row, level, order).report,
                    testing::HasSubstr("of the same warp wrote, and no bar.warp.sync or other barrier stands between"))
            << row.name;
    }
  }
}

// Below isa one warp of a warp group has to know what a wgmma reads, when it issues it.
TEST(Strictness, OneWarpKnowsWhatAWarpGroupReads) {
  const std::string of_last = "setp.lt.u32 %p2, %r3, 96;\n@%p2 bra ON;\n", on = "ON:\n";
  const Row rows[] = {
      {"the last warp does not fence",
       entry(kOnes + kStoreOnes + "setp.lt.u32 %p2, %r3, 96;\n@%p2 " + kFence + kProduct + kProductDone),
       {"missing proxy fence: an asynchronous operation reads shared memory at offset 0x"}},
      {"the last warp stores behind the product",
       entry(kOnes + kProduct + of_last + "st.shared.u32 [%r1], 1;\n" + kFence + on + kProductDone),
       {"data in flight: ", "missing proxy fence: an asynchronous operation reads"}},
      {"a load that no warp waits for",
       entry(kOnes + "@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\n" + kFence + "bar.sync 0;\n" + kCopy + kProduct +
             kProductDone + kWaited),
       {"data in flight: an asynchronous operation reads shared memory at offset 0x0 while a copy is writing it"}},
      {"a load that all warps wait for behind the product",
       entry(kOnes + "@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\n" + kFence + "bar.sync 0;\n" + kCopy + kProduct +
             kWaited + kProductDone),
       {"data in flight: an asynchronous operation reads shared memory at offset 0x0 while a copy is writing it"}},
  };
  for (Row row : rows) {
    row.threads = 128;
    for (const sim::Order& order : all_orders()) {
      for (const Strictness level : {Strictness::Portable, Strictness::Field})
        EXPECT_THAT(run_at(row, level, order).report,
                    testing::AnyOf(testing::StartsWith(row.warnings[0]), testing::StartsWith(row.warnings.back())))
            << row.name;
    }
  }
  // A load that one warp has waited for.
  const Row waited{"",
                   entry(kOnes + "@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\n" + kFence + "bar.sync 0;\n" +
                         "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;\n@%p1 "
                         "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd2+512], 128, "
                         "[%r2];\n" +
                         of_last + kWaited + on + kProduct + kProductDone),
                   {},
                   128};
  for (const sim::Order& order : all_orders()) {
    EXPECT_THAT(run_at(waited, Strictness::Isa, order).report, testing::StartsWith("data in flight: "));
    EXPECT_EQ(run_at(waited, Strictness::Field, order).report, "");
    EXPECT_EQ(run_at(waited, Strictness::Portable, order).warnings.size(), 1u);
  }
}

}  // namespace
