// One small kernel for each kind of mistake that the simulator reports, and its mended twin, which must pass in every
// order. In the texts a line that begins with `?` is only in the mended kernel, one with `!` only in the broken one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <optional>
#include <sstream>

#include "sim/async/tensor_map.h"
#include "tests/sim/run_ptx.h"

namespace {

using sim::Hazard;
using sim_test::Buffer;
using sim_test::Params;
using sim_test::Shape;

struct Case {
  const char* name;
  Hazard hazard;
  const char* says;  // part of the fault's text
  std::string body;
  uint32_t threads = 32;
  uint32_t blocks = 1;                 // one cluster
  std::optional<Hazard> or_else = {};  // what it may also be, depending on the order
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::string choose(const std::string& body, bool mended) {
  std::istringstream in(body);
  std::string line, text;
  while (std::getline(in, line)) {
    if (!line.empty() && line[0] == (mended ? '!' : '?')) continue;
    if (!line.empty() && (line[0] == '!' || line[0] == '?')) line[0] = ' ';
    text += line + "\n";
  }
  return text;
}

// %rd1 in, %rd2 out, %rd3 two tensor maps in global memory (of 16 rows of 32 words each; the box has 8 rows), %rd4 the
// second of them; %r1 a buffer, %r2 four mbarriers of which the first is initialised for one arrival, %r3 the
// thread, %r4 the block's rank, %r5 128 bytes for a tensor map, %r6 the thread's word of the buffer, %r7 = 0; %p1
// thread 0.
std::string kernel(const Case& c, bool mended) {
  return R"(
.visible .entry k(.param .u64 p_in, .param .u64 p_out, .param .u64 p_maps)
{
  .shared .align 1024 .b8 buffer[16384];
  .shared .align 128 .b8 map[128];
  .shared .align 8 .b64 bars[4];
  .reg .pred %p<12>; .reg .b16 %h<8>; .reg .b32 %r<60>; .reg .b64 %rd<40>; .reg .b32 %d<16>; .reg .b32 %a<8>;
  ld.param.u64 %rd1, [p_in];
  ld.param.u64 %rd2, [p_out];
  ld.param.u64 %rd3, [p_maps];
  add.s64 %rd4, %rd3, 128;
  mov.u32 %r1, buffer;
  mov.u32 %r2, bars;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %cluster_ctarank;
  mov.u32 %r5, map;
  shl.b32 %r6, %r3, 2;
  add.u32 %r6, %r1, %r6;
  mov.u32 %r7, 0;
  setp.eq.u32 %p1, %r3, 0;
  @%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
  bar.sync 0;
)" + choose(c.body, mended) +
         "  ret;\n}\n";
}

std::string wait(const char* label, const char* parity = "0", const char* barrier = "%r2") {
  const std::string l = label;
  return l + ": mbarrier.try_wait.parity.shared::cta.b64 %p9, [" + barrier + "], " + parity + ";\n  @!%p9 bra " + l +
         ";\n";
}

const char* const kLoad = R"(
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;
  @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 128, [%r2];
)";
const char* const kStore = R"(
  @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r1], 128;
  @%p1 cp.async.bulk.commit_group;
)";
const char* const kStored = "  @%p1 cp.async.bulk.wait_group 0;\n";
const char* const kTensorLoad = R"(
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 1024;
  @%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd4, {%r7, %r7}], [%r2];
)";
// The host's map to shared memory, by 32 lanes.
const char* const kMapToShared = R"(
  shl.b32 %r20, %r3, 2;
  cvt.u64.u32 %rd20, %r20;
  add.s64 %rd21, %rd3, %rd20;
  ld.global.u32 %r21, [%rd21];
  add.u32 %r22, %r5, %r20;
  st.shared.u32 [%r22], %r21;
  bar.warp.sync 0xffffffff;
)";
const char* const kPublish =
    "  tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd4], [%r5], 128;\n";
const char* const kAcquire = "  fence.proxy.tensormap::generic.acquire.gpu [%rd4], 128;\n";
// 128 threads: all operands are written; %rd10 and %rd11 are descriptors of A and B.
const std::string kOperands = R"(
  mov.u32 %r20, 0;
FILL:
  shl.b32 %r21, %r20, 9;
  add.u32 %r21, %r6, %r21;
  st.shared.u32 [%r21], %r7;
  add.u32 %r20, %r20, 1;
  setp.lt.u32 %p2, %r20, 32;
  @%p2 bra FILL;
)";
const std::string kDescriptors = R"(
  cvt.u64.u32 %rd10, %r1;
  shr.u64 %rd10, %rd10, 4;
  add.s64 %rd10, %rd10, 0x4000004000010000;
  add.s64 %rd11, %rd10, 512;
)";
const std::string kReady = kOperands + "  fence.proxy.async;\n  bar.sync 0;\n" + kDescriptors;
const char* const kMma =
    "  wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%d0, %d1, %d2, %d3}, %rd10, %rd11, 0, 1, 1, 0, 0;\n";
const char* const kMmaRegisters =
    "  wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%d0, %d1, %d2, %d3}, {%a0, %a1, %a2, %a3}, %rd11, 0, 1, 1, "
    "0;\n";
const char* const kFenceMma = "  wgmma.fence.sync.aligned;\n";
const char* const kCommitMma = "  wgmma.commit_group.sync.aligned;\n";
const char* const kWaitMma = "  wgmma.wait_group.sync.aligned 0;\n";

std::string both(const char* a, const char* b) { return std::string(a) + b; }

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const char* name, Hazard hazard, const char* says, const std::string& body,
                       uint32_t threads = 32, uint32_t blocks = 1) {
    all.push_back({name, hazard, says, body, threads, blocks, {}});
  };

  // ---- missing proxy fence ----
  add("bulk_store_of_stored_words", Hazard::MissingProxyFence, "no fence.proxy.async",
      "  st.shared.u32 [%r6], %r3;\n"
      "? fence.proxy.async.shared::cta;\n"
      "  bar.sync 0;\n" +
          both(kStore, kStored));
  add("fence_of_the_wrong_space", Hazard::MissingProxyFence, "no fence.proxy.async",
      "  st.shared.u32 [%r6], %r3;\n"
      "? fence.proxy.async;\n"
      "! fence.proxy.async.global;\n"
      "  bar.sync 0;\n" +
          both(kStore, kStored));
  add("fence_before_the_store", Hazard::MissingProxyFence, "no fence.proxy.async",
      "! fence.proxy.async;\n"
      "  st.shared.u32 [%r6], %r3;\n"
      "? fence.proxy.async;\n"
      "  bar.sync 0;\n" +
          both(kStore, kStored));
  add("load_over_stored_words", Hazard::MissingProxyFence, "an asynchronous copy writes",
      "  st.shared.u32 [%r6], %r3;\n"
      "? fence.proxy.async;\n"
      "  bar.sync 0;\n" +
          std::string(kLoad) + wait("W"));
  add("wgmma_of_stored_operands", Hazard::MissingProxyFence, "an asynchronous operation reads",
      kOperands + "? fence.proxy.async;\n  bar.sync 0;\n" + kDescriptors + kFenceMma + kMma + kCommitMma + kWaitMma,
      128);
  add("wgmma_of_cp_async", Hazard::MissingProxyFence, "a cp.async of warp",
      kReady +
          "  mov.u64 %rd12, %rd1;\n  cp.async.cg.shared.global [%r1], [%rd12], 16;\n  cp.async.wait_all;\n"
          "? fence.proxy.async;\n  bar.sync 0;\n" +
          kFenceMma + kMma + kCommitMma + kWaitMma,
      128);

  // ---- data in flight ----
  add("read_before_the_wait", Hazard::DataInFlight, "while a copy is writing it",
      std::string(kLoad) + "!" + "  bra R;\n" + wait("W") + "R: ld.shared.u32 %r8, [%r6];\n" + wait("X"));
  add("wait_on_the_wrong_phase", Hazard::DataInFlight, "",
      std::string(kLoad) + "? mov.u32 %r9, 0;\n! mov.u32 %r9, 1;\n" + wait("W", "%r9") +
          "  ld.shared.u32 %r8, [%r6];\n" + wait("X"));
  all.back().or_else = Hazard::Deadlock;  // when the copy was faster than the wait
  add("only_one_warp_waits", Hazard::DataInFlight, "",
      std::string("  st.shared.u32 [%r6], %r3;\n  fence.proxy.async;\n  bar.sync 0;\n") + kLoad +
          "! setp.ge.u32 %p3, %r3, 32;\n! @%p3 bra R;\n" + wait("W") +
          "R: and.b32 %r10, %r6, 127;\n  add.u32 %r10, %r10, %r1;\n  ld.shared.u32 %r8, [%r10];\n" + wait("X"),
      64);
  add("bytes_not_expected", Hazard::MbarrierMisuse, "bytes",
      std::string("? @%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 128;\n") +
          "  @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 128, [%r2];\n"
          "  @%p1 mbarrier.arrive.shared::cta.b64 _, [%r2];\n" +
          wait("W") + "  ld.shared.u32 %r8, [%r6];\n");
  add("store_to_the_source_of_a_bulk_store", Hazard::DataInFlight, "still being read",
      std::string("  st.shared.u32 [%r6], %r3;\n  fence.proxy.async;\n  bar.sync 0;\n") + kStore +
          "? @%p1 cp.async.bulk.wait_group.read 0;\n  @%p1 st.shared.u32 [%r1], %r7;\n" + kStored);
  add("wait_group_that_leaves_the_last", Hazard::DataInFlight, "still being read",
      std::string("  st.shared.u32 [%r6], %r3;\n  fence.proxy.async;\n  bar.sync 0;\n") + kStore +
          "? @%p1 cp.async.bulk.wait_group.read 0;\n! @%p1 cp.async.bulk.wait_group.read 1;\n"
          "  @%p1 st.shared.u32 [%r1], %r7;\n" +
          kStored);
  add("others_store_to_the_source", Hazard::DataInFlight, "",
      std::string("  st.shared.u32 [%r6], %r3;\n  fence.proxy.async;\n  bar.sync 0;\n") + kStore +
          "? @%p1 cp.async.bulk.wait_group.read 0;\n? bar.sync 0;\n  setp.eq.u32 %p3, %r3, 32;\n"
          "  @%p3 st.shared.u32 [%r1], %r7;\n" +
          kStored,
      64);
  add("load_into_the_source_of_a_store", Hazard::DataInFlight, "still being read",
      std::string("  st.shared.u32 [%r6], %r3;\n  fence.proxy.async;\n  bar.sync 0;\n") + kStore +
          "? @%p1 cp.async.bulk.wait_group.read 0;\n" + kLoad + wait("W") + kStored);
  add("store_of_words_not_ordered", Hazard::DataInFlight, "",
      std::string(
          "  st.shared.u32 [%r6], %r3;\n  fence.proxy.async;\n  bar.sync 0;\n  setp.ge.u32 %p3, %r3, 32;\n"
          "  add.u32 %r10, %r6, -128;\n  @%p3 st.shared.u32 [%r10], %r7;\n  fence.proxy.async;\n? bar.sync 0;\n") +
          kStore + kStored,
      64);
  add("load_over_words_being_read", Hazard::DataInFlight, "",
      std::string("  st.shared.u32 [%r6], %r3;\n  fence.proxy.async;\n  bar.sync 0;\n  setp.ge.u32 %p3, %r3, 32;\n"
                  "  add.u32 %r10, %r6, -128;\n  @%p3 ld.shared.u32 %r8, [%r10];\n? bar.sync 0;\n") +
          kLoad + wait("W"),
      64);
  add("load_over_wgmma_operands", Hazard::DataInFlight, "a wgmma group of warpgroup 0",
      kReady + kFenceMma + kMma + kCommitMma + "?" + kWaitMma + "  bar.sync 0;\n" + kLoad + wait("W") + kWaitMma, 128);
  add("wgmma_of_a_copy_in_flight", Hazard::DataInFlight, "",
      kReady + kLoad + "! bra G;\n" + wait("W") + "G:\n" + kFenceMma + kMma + kCommitMma + kWaitMma + wait("X"), 128);
  add("cp_async_read_before_the_wait", Hazard::DataInFlight, "a cp.async of warp",
      "  cp.async.ca.shared.global [%r6], [%rd1], 4;\n  cp.async.commit_group;\n"
      "? cp.async.wait_group 0;\n! cp.async.wait_group 1;\n  ld.shared.u32 %r8, [%r6];\n  cp.async.wait_all;\n");
  add("multicast_over_what_the_other_block_reads", Hazard::DataInFlight, "",
      std::string(
          "  fence.mbarrier_init.release.cluster;\n  barrier.cluster.arrive.aligned;\n  barrier.cluster.wait.aligned;\n"
          "  mov.u16 %h1, 3;\n  setp.eq.u32 %p4, %r4, 0;\n  and.pred %p5, %p4, %p1;\n"
          "  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;\n"
          "  @%p5 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r1], [%rd1], "
          "128, [%r2], %h1;\n") +
          wait("W") +
          "  ld.shared.u32 %r8, [%r6];\n? barrier.cluster.arrive.aligned;\n? barrier.cluster.wait.aligned;\n"
          "  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;\n"
          "  @%p5 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r1], [%rd1], "
          "128, [%r2], %h1;\n" +
          wait("X", "1") + "  barrier.cluster.arrive.aligned;\n  barrier.cluster.wait.aligned;\n",
      32, 2);
  add("exit_before_the_store_has_read", Hazard::DataInFlight, "exits while a bulk copy may still read",
      std::string("  st.shared.u32 [%r6], %r3;\n  fence.proxy.async;\n  bar.sync 0;\n") + kStore +
          "? @%p1 cp.async.bulk.wait_group.read 0;\n");
  add("exit_before_the_load_has_landed", Hazard::DataInFlight, "exits while a copy may still write",
      std::string(kLoad) + "! bra E;\n" + wait("W") + "E:\n");

  // The copy of the next word is still in flight: it is of no concern to who reads this one.
  add("narrow_copy_read_before_the_wait", Hazard::DataInFlight, "while a copy is writing it",
      std::string("  shl.b32 %r20, %r3, 4;\n  add.u32 %r20, %r1, %r20;\n") +
          "  cp.async.ca.shared.global [%r20], [%rd1], 4;\n  cp.async.commit_group;\n"
          "  cp.async.ca.shared.global [%r20+4], [%rd1], 4;\n  cp.async.commit_group;\n"
          "  cp.async.wait_group 1;\n? ld.shared.u32 %r8, [%r20];\n! ld.shared.u32 %r8, [%r20+4];\n"
          "  cp.async.wait_all;\n");

  // ---- registers in flight ----
  add("accumulator_read_before_the_wait", Hazard::RegistersInFlight, "accesses an accumulator",
      kReady + kFenceMma + kMma + kCommitMma + "?" + kWaitMma + "  mov.b32 %r8, %d3;\n" + kWaitMma, 128);
  add("wait_group_one_too_many_left", Hazard::RegistersInFlight, "accesses an accumulator",
      kReady + kFenceMma + kMma + kCommitMma +
          "? wgmma.wait_group.sync.aligned 0;\n! wgmma.wait_group.sync.aligned 1;\n"
          "  mov.b32 %r8, %d0;\n" +
          kWaitMma,
      128);
  add("not_committed", Hazard::RegistersInFlight, "accesses an accumulator",
      kReady + kFenceMma + kMma + "?" + kCommitMma + kWaitMma + "  mov.b32 %r8, %d0;\n" + "!" + kCommitMma + kWaitMma,
      128);
  add("fragment_written_before_the_wait", Hazard::RegistersInFlight, "a register of matrix A",
      kReady + "  mov.b32 %a0, 0;\n  mov.b32 %a1, 0;\n  mov.b32 %a2, 0;\n  mov.b32 %a3, 0;\n" + kFenceMma +
          kMmaRegisters + kCommitMma + "?" + kWaitMma + "  mov.b32 %a2, 1;\n" + kWaitMma,
      128);
  add("no_fence_at_all", Hazard::RegistersInFlight, "no wgmma.fence",
      kReady + "?" + kFenceMma + kMma + kCommitMma + kWaitMma, 128);
  add("accumulator_written_after_the_fence", Hazard::RegistersInFlight, "after the last wgmma.fence",
      kReady + "!" + kFenceMma + "  mov.b32 %d1, 0;\n" + "?" + kFenceMma + kMma + kCommitMma + kWaitMma, 128);
  add("no_fence_after_the_accumulator_was_read", Hazard::RegistersInFlight, "after the last wgmma.fence",
      kReady + kFenceMma + kMma + kCommitMma + kWaitMma + "  mov.b32 %r8, %d0;\n" + "?" + kFenceMma + kMma +
          kCommitMma + kWaitMma,
      128);

  // ---- stale tensor map ----
  add("map_not_acquired", Hazard::StaleTensorMap, "without fence.proxy.tensormap::generic.acquire",
      std::string(kMapToShared) + kPublish + "?" + kAcquire + kTensorLoad + wait("W"));
  add("map_acquired_before_it_was_published", Hazard::StaleTensorMap, "without fence.proxy.tensormap::generic.acquire",
      std::string(kMapToShared) + "!" + kAcquire + kPublish + "?" + kAcquire + kTensorLoad + wait("W"));
  add("map_not_released", Hazard::StaleTensorMap, "did not publish",
      std::string("  @%p1 tensormap.replace.tile.global_address.global.b1024.b64 [%rd4], %rd1;\n"
                  "? fence.proxy.tensormap::generic.release.gpu;\n") +
          kAcquire + kTensorLoad + wait("W"));
  add("map_published_by_another_warp", Hazard::StaleTensorMap, "",
      std::string("  setp.ge.u32 %p3, %r3, 32;\n  @!%p3 bra USE;\n"
                  "  setp.eq.u32 %p4, %r3, 32;\n"
                  "  @%p4 tensormap.replace.tile.global_address.global.b1024.b64 [%rd4], %rd1;\n"
                  "  fence.proxy.tensormap::generic.release.gpu;\n? bar.sync 1, 64;\n! bar.arrive 1, 64;\n  bra E;\n"
                  "USE:\n! bar.sync 1, 64;\n! bra WRONG;\n? bar.sync 1, 64;\n") +
          kAcquire + "WRONG:\n" + kTensorLoad + wait("W") + "E:\n",
      64);
  add("map_rewritten_by_a_store", Hazard::StaleTensorMap, "did not publish",
      std::string(kMapToShared) + kPublish + kAcquire + kTensorLoad + wait("W") +
          "  ld.global.u32 %r8, [%rd4+8];\n  @%p1 st.global.u32 [%rd4+8], %r8;\n? "
          "fence.proxy.tensormap::generic.release.gpu;\n?" +
          kAcquire + kTensorLoad + wait("X", "1"));

  add("map_published_by_ordinary_stores", Hazard::StaleTensorMap, "which ordinary stores wrote",
      std::string(kMapToShared) +
          "  @%p1 tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r5], %rd1;\n"
          "  bar.warp.sync 0xffffffff;\n  ld.shared.u32 %r21, [%r22];\n  add.s64 %rd21, %rd4, %rd20;\n  st.global.u32 "
          "[%rd21], %r21;\n"
          "  bar.warp.sync 0xffffffff;\n? fence.proxy.tensormap::generic.release.gpu;\n" +
          kAcquire + kTensorLoad + wait("W"));

  // ---- tensor map in flight ----
  add("map_published_over_a_load", Hazard::TensorMapInFlight, "while a copy may still read it",
      std::string(kMapToShared) + kPublish + kAcquire + kTensorLoad + "! bra P;\n" + wait("W") +
          "P:\n  bar.warp.sync 0xffffffff;\n" + kPublish + wait("X"));
  add("map_replaced_under_a_store", Hazard::TensorMapInFlight, "a bulk group of warp 0",
      std::string(kMapToShared) +
          "  mov.u32 %r20, %r6;\n  add.u32 %r21, %r1, 1024;\nFILL: st.shared.u32 [%r20], %r7;\n  add.u32 %r20, %r20, "
          "128;\n"
          "  setp.lt.u32 %p2, %r20, %r21;\n  @%p2 bra FILL;\n  fence.proxy.async;\n  bar.sync 0;\n" +
          kPublish + kAcquire +
          "  @%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd4, {%r7, %r7}], [%r1];\n"
          "  @%p1 cp.async.bulk.commit_group;\n? @%p1 cp.async.bulk.wait_group.read 0;\n"
          "  @%p1 tensormap.replace.tile.global_address.global.b1024.b64 [%rd4], %rd1;\n" +
          kStored);
  // The bulk group of a load completes when the map has been read (9.7.9.27.1.2).
  add("map_published_over_a_load_of_no_group", Hazard::TensorMapInFlight, "while a copy may still read it",
      std::string(kMapToShared) + kPublish + kAcquire + kTensorLoad +
          "? @%p1 cp.async.bulk.commit_group;\n  @%p1 cp.async.bulk.wait_group.read 0;\n"
          "  bar.warp.sync 0xffffffff;\n" +
          kPublish + wait("X"));
  add("map_stored_over_a_load", Hazard::TensorMapInFlight, "while a copy may still read it",
      std::string(kTensorLoad) + "! bra P;\n" + wait("W") + "P: @%p1 st.global.u32 [%rd4+8], %r7;\n" + wait("X"));

  // ---- mbarrier misuse ----
  add("more_arrivals_than_expected", Hazard::MbarrierMisuse, "3 arrivals",
      "  @%p1 mbarrier.init.shared::cta.b64 [%r2+8], 2;\n? @%p1 mbarrier.arrive.shared::cta.b64 _, [%r2+8], 2;\n"
      "! @%p1 mbarrier.arrive.shared::cta.b64 _, [%r2+8], 3;\n");
  add("more_bytes_than_expected", Hazard::MbarrierMisuse, "bytes more than it expects",
      std::string(
          "? @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;\n! @%p1 "
          "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 64;\n"
          "  @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 128, [%r2];\n") +
          wait("W"));
  add("second_copy_not_expected", Hazard::MbarrierMisuse, "bytes",
      std::string(
          "? @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;\n"
          "! @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;\n"
          "! @%p1 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2], 0;\n"
          "  @!%p1 bra W;\n"
          "  mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 128;\n"
          "  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 128, [%r2];\n"
          "  mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2], 128;\n"
          "! mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2], 128;\n"
          "? cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+128], [%rd1], 128, [%r2];\n") +
          wait("W"));
  add("not_initialised", Hazard::MbarrierMisuse, "is not initialised",
      "? @%p1 mbarrier.init.shared::cta.b64 [%r2+8], 1;\n  @%p1 mbarrier.arrive.shared::cta.b64 _, [%r2+8];\n");
  add("used_after_inval", Hazard::MbarrierMisuse, "is not initialised",
      "! @%p1 mbarrier.inval.shared::cta.b64 [%r2];\n  @%p1 mbarrier.arrive.shared::cta.b64 _, [%r2];\n");
  add("initialised_twice", Hazard::MbarrierMisuse, "without mbarrier.inval",
      "? @%p1 mbarrier.inval.shared::cta.b64 [%r2];\n  @%p1 mbarrier.init.shared::cta.b64 [%r2], 4;\n");
  add("misaligned", Hazard::MbarrierMisuse, "not aligned to 8 bytes",
      "? @%p1 mbarrier.init.shared::cta.b64 [%r2+16], 4;\n! @%p1 mbarrier.init.shared::cta.b64 [%r2+12], 4;\n");
  add("stored_over", Hazard::MbarrierMisuse, "holds an mbarrier object",
      "? @%p1 mbarrier.inval.shared::cta.b64 [%r2];\n  @%p1 st.shared.u32 [%r2+4], %r7;\n");
  add("count_of_zero", Hazard::MbarrierMisuse, "a count of 0",
      "  mov.u32 %r8, 1;\n! mov.u32 %r8, 0;\n  @%p1 mbarrier.init.shared::cta.b64 [%r2+8], %r8;\n");
  add("transaction_count_overflow", Hazard::MbarrierMisuse, "leaves its range",
      "  @%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 1048575;\n"
      "! @%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 1;\n"
      "  @%p1 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2], 1048575;\n");
  add("bytes_left_at_exit", Hazard::MbarrierMisuse, "still expects 64 bytes",
      "  @%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 64;\n"
      "? @%p1 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2], 64;\n");
  add("remote_arrival_before_the_initialisation_is_visible", Hazard::MbarrierMisuse, "without being ordered after",
      "? fence.mbarrier_init.release.cluster;\n  barrier.cluster.arrive.relaxed.aligned;\n  "
      "barrier.cluster.wait.aligned;\n"
      "  xor.b32 %r8, %r4, 1;\n  mapa.shared::cluster.u32 %r9, %r2, %r8;\n"
      "  @%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r9];\n" +
          wait("W") + "  barrier.cluster.arrive.aligned;\n  barrier.cluster.wait.aligned;\n",
      32, 2);

  // ---- deadlock ----
  add("bytes_that_never_come", Hazard::Deadlock, "(phase 0), 0 of 1 arrivals and 128 bytes missing",
      std::string(
          "? @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;\n"
          "! @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;\n"
          "  @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 128, [%r2];\n") +
          wait("W"));
  add("an_arrival_that_never_comes", Hazard::Deadlock, "1 of 1 arrivals missing",
      "? @%p1 mbarrier.arrive.shared::cta.b64 _, [%r2];\n" + wait("W"));
  add("a_block_that_does_not_arrive", Hazard::Deadlock, "barrier.cluster, for warp 0 of block rank 1",
      "! setp.eq.u32 %p3, %r4, 1;\n! @%p3 bra STUCK;\n  barrier.cluster.arrive.aligned;\n  "
      "barrier.cluster.wait.aligned;\n"
      "! bra E;\n!STUCK: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r2], 0;\n! @!%p9 bra STUCK;\nE:\n",
      32, 2);
  add("registers_that_are_not_there", Hazard::Deadlock, "setmaxnreg.inc to 240",
      "  setp.ge.u32 %p3, %r3, 128;\n  @%p3 bra UP;\n? setmaxnreg.dec.sync.aligned.u32 24;\n! "
      "setmaxnreg.dec.sync.aligned.u32 104;\n"
      "  bra E;\nUP: setmaxnreg.inc.sync.aligned.u32 240;\nE:\n",
      384);

  // ---- memory ----
  add("bulk_load_past_the_allocation", Hazard::Memory, "",
      std::string("! add.s64 %rd1, %rd1, 16320;\n") + kLoad + wait("W"));
  add("bulk_load_past_shared_memory", Hazard::Memory, "", std::string("! mov.u32 %r1, 232400;\n") + kLoad + wait("W"));
  add("bulk_load_misaligned", Hazard::Memory, "not a multiple of 16",
      std::string("! add.s64 %rd1, %rd1, 8;\n") + kLoad + wait("W"));
  add("tensor_past_the_allocation", Hazard::Memory, "a tensor copy touches",
      std::string(kMapToShared) +
          "! add.s64 %rd1, %rd1, 15872;\n"
          "  @%p1 tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r5], %rd1;\n  bar.warp.sync "
          "0xffffffff;\n" +
          kPublish + kAcquire + kTensorLoad + wait("W"));
  add("store_of_uninitialised_memory", Hazard::Memory, "uninitialised",
      std::string("? st.shared.u32 [%r6], %r3;\n  fence.proxy.async;\n  bar.sync 0;\n") + kStore + kStored);
  add("arrival_at_a_finished_block", Hazard::Memory, "has finished",
      "  barrier.cluster.arrive.aligned;\n  barrier.cluster.wait.aligned;\n  setp.eq.u32 %p3, %r4, 1;\n  @%p3 bra E;\n"
      "  mov.u32 %r8, 0;\nSPIN: add.u32 %r8, %r8, 1;\n  setp.lt.u32 %p4, %r8, 20000;\n  @%p4 bra SPIN;\n"
      "  mapa.shared::cluster.u32 %r9, %r2, 1;\n  @%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r9];\n"
      "E:\n? barrier.cluster.arrive.aligned;\n? barrier.cluster.wait.aligned;\n",
      32, 2);

  add("exit_that_does_not_wait_for_remote_arrivals", Hazard::Memory, "finished",
      "  fence.mbarrier_init.release.cluster;\n  barrier.cluster.arrive.aligned;\n  barrier.cluster.wait.aligned;\n"
      "  xor.b32 %r8, %r4, 1;\n  mapa.shared::cluster.u32 %r9, %r2, %r8;\n"
      "  @%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r9];\n"
      "  barrier.cluster.arrive.aligned;\n? barrier.cluster.wait.aligned;\n",
      32, 2);

  // ---- illegal use ----
  add("cluster_arrival_twice", Hazard::IllegalUse, "twice",
      "  barrier.cluster.arrive.aligned;\n! barrier.cluster.arrive.aligned;\n  barrier.cluster.wait.aligned;\n", 32, 2);
  add("cluster_wait_without_arrival", Hazard::IllegalUse, "without a barrier.cluster.arrive",
      "? barrier.cluster.arrive.aligned;\n  barrier.cluster.wait.aligned;\n", 32, 2);
  add("setmaxnreg_dec_that_raises", Hazard::IllegalUse, "must not raise",
      "? setmaxnreg.dec.sync.aligned.u32 56;\n! setmaxnreg.dec.sync.aligned.u32 240;\n", 512);
  add("descriptors_that_differ", Hazard::IllegalUse, "different descriptors",
      kReady +
          "! shr.u32 %r8, %r3, 5;\n! cvt.u64.u32 %rd12, %r8;\n! shl.b64 %rd12, %rd12, 6;\n! add.s64 %rd10, %rd10, "
          "%rd12;\n" +
          kFenceMma + kMma + kCommitMma + kWaitMma,
      128);
  add("divergent_wgmma", Hazard::IllegalUse, "",
      kReady + "! setp.ge.u32 %p3, %r3, 16;\n! @%p3 bra E;\n" + kFenceMma + kMma + kCommitMma + kWaitMma +
          "E:\n! bar.warp.sync 0xffffffff;\n",
      128);
  add("multicast_to_no_block", Hazard::IllegalUse, "multicast mask",
      std::string(
          "  mov.u16 %h1, 1;\n! mov.u16 %h1, 4;\n  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;\n"
          "  @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r1], [%rd1], "
          "128, [%r2], %h1;\n") +
          wait("W"));
  add("tensor_of_another_rank", Hazard::IllegalUse, "of rank 2",
      "  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 1024;\n"
      "? @%p1 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd4, {%r7, %r7}], "
      "[%r2];\n"
      "! @%p1 cp.async.bulk.tensor.1d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd4, {%r7}], "
      "[%r2];\n" +
          wait("W"));
  return all;
}

class Hazards : public testing::TestWithParam<Case> {
 protected:
  std::string run(bool mended, const sim::Order& order, Hazard* hazard) {
    sim::GlobalMemory memory;
    std::vector<uint32_t> words(4096);
    std::iota(words.begin(), words.end(), 1u);
    Buffer<uint32_t> in(memory, words), out(memory, 4096, 0u);
    sim::TensorMapFields map;
    map.address = in.address();
    map.element = sim::TensorElement::U32;
    map.rank = 2;
    map.dims = {32, 16, 1, 1, 1};
    map.strides[0] = 128;
    map.box = {32, 8, 1, 1, 1};
    std::vector<uint8_t> maps(256);
    sim::encode(map, maps.data());
    sim::encode(map, maps.data() + 128);
    Buffer<uint8_t> map_buffer(memory, maps);
    Shape shape;
    shape.block = {GetParam().threads, 1, 1};
    shape.grid = shape.cluster = {GetParam().blocks, 1, 1};
    shape.order = order;
    return sim_test::fault_of(kernel(GetParam(), mended), "k",
                              Params().add(in.address()).add(out.address()).add(map_buffer.address()), memory, shape,
                              hazard);
  }
};
INSTANTIATE_TEST_SUITE_P(All, Hazards, testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

std::vector<sim::Order> orders() {
  return {{sim::Mode::Eager, 0},
          {sim::Mode::Lazy, 0},
          {sim::Mode::Random, 1},
          {sim::Mode::Random, 2},
          {sim::Mode::Random, 3}};
}

TEST_P(Hazards, IsReportedInEveryOrder) {
  for (const sim::Order& order : orders()) {
    Hazard hazard{};
    const std::string text = run(false, order, &hazard);
    ASSERT_NE(text, "") << "nothing reported, mode " << static_cast<int>(order.mode) << " seed " << order.seed;
    if (hazard != GetParam().or_else) {
      EXPECT_EQ(sim::hazard_name(hazard), std::string(sim::hazard_name(GetParam().hazard))) << text;
    }
    EXPECT_THAT(text, testing::HasSubstr(GetParam().says)) << "mode " << static_cast<int>(order.mode);
  }
}

TEST_P(Hazards, MendedPassesInEveryOrder) {
  for (const sim::Order& order : orders())
    EXPECT_EQ(run(true, order, nullptr), "") << "mode " << static_cast<int>(order.mode);
}

// try_wait may come back before the phase is complete; a program that does not ask again reads too early.
TEST(TryWait, ComesBackTooEarlyInSomeOrder) {
  Case c{"", Hazard::DataInFlight, "", "", 32, 1, {}};
  c.body = std::string(kLoad) +
           "W: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r2], 0;\n? @!%p9 bra W;\n  ld.shared.u32 %r8, [%r6];\n" +
           wait("X");
  const std::string broken = kernel(c, false), mended = kernel(c, true);
  int reported = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    sim::GlobalMemory memory;
    Buffer<uint32_t> in(memory, 4096, 1u), out(memory, 4096, 0u), maps(memory, 64, 0u);
    Shape shape;
    shape.order = {sim::Mode::Random, seed};
    const Params params = Params().add(in.address()).add(out.address()).add(maps.address());
    EXPECT_EQ(sim_test::fault_of(mended, "k", params, memory, shape), "");
    const std::string text = sim_test::fault_of(broken, "k", params, memory, shape);
    if (text.empty()) continue;
    ++reported;
    EXPECT_THAT(text, testing::HasSubstr("while a copy is writing it"));
  }
  EXPECT_GT(reported, 0);
  EXPECT_LT(reported, 40);
}

}  // namespace
