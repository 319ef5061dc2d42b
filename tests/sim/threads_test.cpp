// SPDX-License-Identifier: Apache-2.0
// The same bits and the same reports for any number of host threads, and for equal seeds; what a seed may draw.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "run_ptx.h"

namespace {

using namespace sim_test;

constexpr int kThreads[] = {1, 2, 3, 8};
constexpr uint32_t kBlocks = 24;

// Each block mixes its threads' numbers through shared memory, with an mbarrier between two warps.
constexpr const char* kExchange = R"(
.visible .entry k(.param .u64 p_out) {
  .reg .u32 %me, %block, %a, %v, %w, %i, %bar, %parity;
  .reg .u64 %out, %x;
  .reg .f32 %f, %g;
  .reg .pred %p, %q;
  .shared .align 16 .b8 smem[1024];
  ld.param.u64 %out, [p_out];
  mov.u32 %me, %tid.x;
  mov.u32 %block, %ctaid.x;
  mov.u32 %bar, smem;
  mad.lo.u32 %a, %me, 4, %bar;
  add.u32 %a, %a, 64;
  setp.eq.u32 %p, %me, 0;
  @%p mbarrier.init.shared::cta.b64 [%bar], 64;
  bar.sync 0;
  mad.lo.u32 %v, %block, 7919, %me;
  cvt.rn.f32.u32 %f, %v;
  mov.u32 %parity, 0;
  mov.u32 %i, 9;
LOOP:
  st.shared.f32 [%a], %f;
  mbarrier.arrive.shared::cta.b64 _, [%bar];
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %q, [%bar], %parity;
  @!%q bra WAIT;
  xor.b32 %parity, %parity, 1;
  xor.b32 %w, %me, 33;
  mad.lo.u32 %w, %w, 4, %bar;
  add.u32 %w, %w, 64;
  ld.shared.f32 %g, [%w];
  fma.rn.f32 %f, %g, 0f3F7C0000, %f;
  bar.sync 0;
  sub.u32 %i, %i, 1;
  setp.ne.u32 %q, %i, 0;
  @%q bra LOOP;
  mad.lo.u32 %v, %block, 64, %me;
  mul.wide.u32 %x, %v, 4;
  add.u64 %out, %out, %x;
  st.global.f32 [%out], %f;
  ret;
})";

// Sums whose rounding depends on their order, and tickets that are numbered by it.
constexpr const char* kAtomics = R"(
.visible .entry k(.param .u64 p_out) {
  .reg .u32 %me, %block, %v, %ticket;
  .reg .u64 %out, %x;
  .reg .f32 %f;
  ld.param.u64 %out, [p_out];
  mov.u32 %me, %tid.x;
  mov.u32 %block, %ctaid.x;
  mad.lo.u32 %v, %block, 7919, %me;
  cvt.rn.f32.u32 %f, %v;
  mul.f32 %f, %f, 0f3DCCCCCD;
  red.global.add.f32 [%out], %f;
  atom.global.add.u32 %ticket, [%out+4], 1;
  mul.wide.u32 %x, %ticket, 4;
  add.u64 %x, %x, %out;
  st.global.u32 [%x+8], %v;
  ret;
})";

std::vector<uint32_t> words_of(const sim::Kernel& kernel, sim::Order order, int threads) {
  sim::GlobalMemory memory;
  Buffer<uint32_t> out(memory, 2 + kBlocks * 64, 0u);
  Shape shape;
  shape.grid = {kBlocks, 1, 1};
  shape.block = {64, 1, 1};
  shape.order = order;
  shape.threads = threads;
  run_kernel(kernel, Params().add(out.address()), memory, shape);
  return out.values();
}

TEST(HostThreads, OutputsAreTheSame) {
  for (const char* text : {kExchange, kAtomics}) {
    const auto kernel = prepare_ptx(text, "k");
    for (const sim::Order order : all_orders()) {
      const std::vector<uint32_t> once = words_of(*kernel, order, 1);
      EXPECT_GT(std::set<uint32_t>(once.begin(), once.end()).size(), kBlocks);
      for (const int threads : kThreads) {
        for (int again = 0; again < 3; ++again) EXPECT_EQ(words_of(*kernel, order, threads), once) << threads;
      }
    }
  }
}

// From block 5 on, each warp reads shared memory that nobody wrote: the order decides which of them comes first.
constexpr const char* kHazard = R"(
.visible .entry k(.param .u64 p_out) {
  .reg .u32 %block, %warp, %v, %i;
  .reg .pred %p, %q;
  .shared .align 16 .b8 smem[256];
  mov.u32 %block, %ctaid.x;
  mov.u32 %warp, %tid.x;
  shr.u32 %warp, %warp, 5;
  setp.lt.u32 %p, %block, 5;
  @%p bra DONE;
  mov.u32 %i, 300;
LOOP:
  sub.u32 %i, %i, 1;
  setp.ne.u32 %q, %i, 0;
  @%q bra LOOP;
  shl.b32 %v, %warp, 6;
  mov.u32 %i, smem;
  add.u32 %v, %v, %i;
  ld.shared.u32 %i, [%v];
DONE:
  ret;
})";

TEST(HostThreads, ReportsAreTheSame) {
  const auto kernel = prepare_ptx(kHazard, "k");
  const auto report = [&](sim::Order order, int threads) -> std::string {
    try {
      words_of(*kernel, order, threads);
    } catch (const sim::Fault& fault) {
      return fault.what();
    }
    return "";
  };
  std::set<std::string> different;
  std::vector<sim::Order> orders = {{sim::Mode::Eager, 0}, {sim::Mode::Lazy, 0}};
  for (uint64_t seed = 1; seed <= 12; ++seed) orders.push_back({sim::Mode::Random, seed});
  for (const sim::Order order : orders) {
    const std::string once = report(order, 1);
    EXPECT_THAT(once, testing::HasSubstr("uninitialised shared memory"));
    EXPECT_THAT(once, testing::HasSubstr("block (5,0,0)"));
    different.insert(once);
    for (const int threads : kThreads) {
      for (int again = 0; again < 3; ++again) EXPECT_EQ(report(order, threads), once) << threads;
    }
  }
  EXPECT_EQ(different.size(), 2u) << "the seeds do not tell the warps apart";
}

// The host adds to the word again and again while the kernel does. It sleeps in between, since a thread that wakes up
// interrupts the other one anywhere, even where both share a core.
TEST(SystemScope, SumsOfTheHostAndOfAKernelLoseNothing) {
  constexpr uint32_t kRounds = 100000;
  const std::string text = R"(
.visible .entry k(.param .u64 p_word) {
  .reg .u32 %i;
  .reg .u64 %word;
  .reg .pred %p;
  ld.param.u64 %word, [p_word];
  mov.u32 %i, )" + std::to_string(kRounds) +
                           R"(;
LOOP:
  red.relaxed.sys.global.add.u32 [%word], 1;
  sub.u32 %i, %i, 1;
  setp.ne.u32 %p, %i, 0;
  @%p bra LOOP;
  ret;
})";
  sim::GlobalMemory memory;
  Buffer<uint32_t> word(memory, 1, 0u);
  std::atomic<bool> done = false;
  uint32_t added = 0;
  std::thread host([&] {
    while (!done) {
      std::atomic_ref<uint32_t>(word[0]).fetch_add(1);
      ++added;
      std::this_thread::sleep_for(std::chrono::microseconds(1));
    }
  });
  run_ptx(text, "k", Params().add(word.address()), memory, {});
  done = true;
  host.join();
  EXPECT_EQ(word[0], kRounds * 32 + added);
}

// Warp 0 stores 1 after a long loop, warp 1 copies what it finds there at its first turn.
constexpr const char* kOvertaken = R"(
.visible .entry k(.param .u64 p_out) {
  .reg .u32 %me, %i;
  .reg .u64 %out;
  .reg .pred %p, %q;
  ld.param.u64 %out, [p_out];
  mov.u32 %me, %tid.x;
  setp.ge.u32 %p, %me, 32;
  @%p bra READ;
  mov.u32 %i, 500;
LOOP:
  sub.u32 %i, %i, 1;
  setp.ne.u32 %q, %i, 0;
  @%q bra LOOP;
  st.volatile.global.u32 [%out], 1;
  ret;
READ:
  ld.volatile.global.u32 %i, [%out];
  st.global.u32 [%out+4], %i;
  ret;
})";

TEST(RandomOrder, AWarpMayFallFarBehind) {
  const auto kernel = prepare_ptx(kOvertaken, "k");
  int overtaken = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    sim::GlobalMemory memory;
    Buffer<uint32_t> out(memory, 2, 0u);
    Params params;
    params.add(out.address());
    Shape shape;
    shape.block = {64, 1, 1};
    shape.order = {sim::Mode::Random, seed};
    run_kernel(*kernel, params, memory, shape);
    overtaken += out[1] == 1;
  }
  EXPECT_GT(overtaken, 0);
  EXPECT_LT(overtaken, 40);
}

}  // namespace
