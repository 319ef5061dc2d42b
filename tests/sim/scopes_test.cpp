// SPDX-License-Identifier: Apache-2.0
// Scopes (PTX ISA 8.5, 8.9.4): what one block of a cluster may read of another one's plain stores, by the scope of the
// operations between them. Each breach is reported in every order; its mended twin runs in all of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "run_ptx.h"

namespace {

using namespace sim_test;
using testing::HasSubstr;

// Two blocks of a cluster, 64 threads each. Thread 0 of block 1 runs `writer`, thread 0 of block 0 `reader`, and thread
// 32 of block 1 `helper`. %bar: an mbarrier of block 0 that expects one arrival, %rbar: its address for block 1;
// %data, %flag: two words of block 0's shared memory, %rdata, %rflag: for block 1; %own, %rown: a word of block 1's
// shared memory, for itself and for block 0; %g, %gflag: words of global memory.
std::string two_blocks(const std::string& writer, const std::string& reader, const std::string& helper = "") {
  return R"(
.visible .entry k(.param .u64 p_global) {
  .reg .u32 %bar, %rbar, %data, %rdata, %flag, %rflag, %own, %rown, %rank, %me, %v, %w, %parity;
  .reg .u64 %g, %gflag;
  .reg .pred %p, %q, %first, %second;
  .shared .align 128 .b8 smem[256];
  ld.param.u64 %g, [p_global];
  add.u64 %gflag, %g, 128;
  mov.u32 %rank, %cluster_ctarank;
  mov.u32 %me, %tid.x;
  mov.u32 %bar, smem;
  add.u32 %data, %bar, 64;
  add.u32 %flag, %bar, 128;
  add.u32 %own, %bar, 192;
  mapa.shared::cluster.u32 %rbar, %bar, 0;
  mapa.shared::cluster.u32 %rdata, %data, 0;
  mapa.shared::cluster.u32 %rflag, %flag, 0;
  mapa.shared::cluster.u32 %rown, %own, 1;
  mov.u32 %parity, 0;
  setp.eq.u32 %first, %me, 0;
  setp.eq.u32 %second, %me, 32;
  @!%first bra READY;
  mbarrier.init.shared::cta.b64 [%bar], 1;
  st.shared.u32 [%data], 0;
  st.shared.u32 [%data+4], 0;
  st.shared.u32 [%flag], 0;
  st.shared.u32 [%own], 0;
READY:
  barrier.cluster.arrive.release;
  barrier.cluster.wait.acquire;
  setp.eq.u32 %p, %rank, 0;
  @%p bra READER;
  @!%first bra HELPER;
)" + writer +
         R"(
HELPER:
  @!%second bra DONE;
)" + helper +
         R"(
  bra DONE;
READER:
  @!%first bra DONE;
)" + reader +
         R"(
DONE:
  barrier.cluster.arrive.release;
  barrier.cluster.wait.acquire;
  ret;
})";
}

std::string fault_in(const std::string& text, sim::Order order) {
  sim::GlobalMemory memory;
  Buffer<uint32_t> global(memory, 64, 0u);
  Shape shape;
  shape.grid = shape.cluster = {2, 1, 1};
  shape.block = {64, 1, 1};
  shape.order = order;
  return fault_of(text, "k", Params().add(global.address()), memory, shape);
}

void expect_breach(const std::string& text, const std::string& words = ".cta scope at one side at least") {
  for (const sim::Order order : all_orders()) {
    const std::string fault = fault_in(text, order);
    EXPECT_THAT(fault, HasSubstr(words)) << text;
    EXPECT_THAT(fault, testing::StartsWith("data in flight: reads ")) << text;
    EXPECT_THAT(fault, HasSubstr("wrote")) << text;
    EXPECT_THAT(fault, HasSubstr("block (0,0,0)")) << text;
  }
}
void expect_clean(const std::string& text) {
  for (const sim::Order order : all_orders()) EXPECT_EQ(fault_in(text, order), "") << text;
}

// Ways to hand over one word, and to read it.
struct Data {
  const char *write, *read;
};
constexpr Data kRemoteStore = {"  st.shared::cluster.u32 [%rdata], 7;\n", "  ld.shared.u32 %v, [%data];\n"};
constexpr Data kRemoteLoad = {"  st.shared.u32 [%own], 7;\n", "  ld.shared::cluster.u32 %v, [%rown];\n"};
constexpr Data kGlobal = {"  st.global.u32 [%g], 7;\n", "  ld.global.u32 %v, [%g];\n"};
constexpr Data kGeneric = {"  st.u32 [%g+4], 7;\n", "  ld.u32 %v, [%g+4];\n"};
constexpr Data kVector = {"  st.global.v4.u32 [%g+16], {%rank, %me, %me, %me};\n", "  ld.global.u32 %v, [%g+28];\n"};

std::string arrive(const std::string& qualifiers) {
  return "  mbarrier.arrive" + qualifiers + ".shared::cluster.b64 _, [%rbar];\n";
}
std::string wait(const std::string& qualifiers) {
  return "W: mbarrier.try_wait.parity" + qualifiers + ".shared::cta.b64 %q, [%bar], %parity;\n  @!%q bra W;\n";
}
std::string spin(const std::string& load) {
  return "W: " + load + " %w, [%flag];\n  setp.eq.u32 %q, %w, 0;\n  @%q bra W;\n";
}

TEST(Scopes, MbarrierArriveAndWait) {
  for (const Data& d : {kRemoteStore, kRemoteLoad, kGlobal, kGeneric, kVector}) {
    const auto kernel = [&](const char* release, const char* acquire) {
      return two_blocks(d.write + arrive(release), wait(acquire) + d.read);
    };
    expect_breach(kernel("", ""));  // .cta is the default, also for an object of another block
    expect_breach(kernel(".release.cta", ".acquire.cluster"));
    expect_breach(kernel(".release.cluster", ""));
    expect_breach(kernel(".release.cluster", ".acquire.cta"));
    expect_clean(kernel(".release.cluster", ".acquire.cluster"));
  }
}

TEST(Scopes, RelaxedMbarrierOperationsBetweenFences) {
  const auto kernel = [&](const std::string& release, const std::string& acquire, const char* scope = "cluster") {
    return two_blocks(kRemoteStore.write + release + arrive(std::string(".relaxed.") + scope),
                      wait(std::string(".relaxed.") + scope) + acquire + kRemoteStore.read);
  };
  const std::string narrow = "  fence.acq_rel.cta;\n", wide = "  fence.acq_rel.cluster;\n";
  expect_breach(kernel(narrow, wide));
  expect_breach(kernel(wide, narrow));
  expect_breach(kernel(wide, wide, "cta"));
  expect_breach(kernel("", wide), "nothing orders the read after that write");
  expect_breach(kernel(wide, ""), "nothing orders the read after that write");
  expect_clean(kernel(wide, wide));
  expect_clean(kernel("  fence.acq_rel.gpu;\n", "  fence.sc.sys;\n"));
  expect_clean(kernel(wide + narrow, narrow + wide));  // a narrower fence beside it takes nothing away
}

TEST(Scopes, FlagsInSharedAndGlobalMemory) {
  for (const Data& d : {kRemoteStore, kGlobal}) {
    const auto kernel = [&](const std::string& release, const std::string& acquire) {
      return two_blocks(d.write + release, acquire + d.read);
    };
    const auto store = [](const char* form) {
      return "  st." + std::string(form) + ".shared::cluster.u32 [%rflag], 1;\n";
    };
    const auto load = [](const char* form) { return spin("ld." + std::string(form) + ".shared::cta.u32"); };
    expect_breach(kernel(store("release.cta"), load("acquire.cluster")));
    expect_breach(kernel(store("release.cluster"), load("acquire.cta")));
    expect_clean(kernel(store("release.cluster"), load("acquire.cluster")));
    expect_clean(kernel(store("release.gpu"), load("acquire.sys")));
    const std::string narrow = "  fence.acq_rel.cta;\n", wide = "  fence.acq_rel.cluster;\n";
    expect_breach(kernel(narrow + store("relaxed.cluster"), load("relaxed.cluster") + wide));
    expect_breach(kernel(wide + store("relaxed.cluster"), load("relaxed.cluster") + narrow));
    expect_breach(kernel(wide + store("relaxed.cta"), load("relaxed.cluster") + wide));
    expect_clean(kernel(wide + store("relaxed.cluster"), load("relaxed.cluster") + wide));
    expect_clean(kernel("  membar.gl;\n" + store("volatile"), load("volatile") + "  membar.gl;\n"));
    const auto global_spin = [](const char* form) {
      return "W: " + std::string(form) + ";\n  setp.eq.u32 %q, %w, 0;\n  @%q bra W;\n";
    };
    const char* const add = "  red.release.gpu.global.add.u32 [%gflag], 1;\n";
    expect_clean(kernel(add, global_spin("atom.acquire.gpu.global.add.u32 %w, [%gflag], 0")));
    expect_clean(kernel(add, global_spin("ld.acquire.gpu.global.u32 %w, [%gflag]")));
    expect_breach(kernel("  red.release.cta.global.add.u32 [%gflag], 1;\n",
                         global_spin("ld.acquire.gpu.global.u32 %w, [%gflag]")));
    expect_breach(kernel(add, global_spin("atom.acquire.cta.global.add.u32 %w, [%gflag], 0")));
  }
}

TEST(Scopes, ClusterBarrier) {
  const auto kernel = [&](const std::string& before, const std::string& form) {
    std::string text = two_blocks(kRemoteStore.write + before, "");
    text.insert(text.find("DONE:\n") + 6, "  barrier.cluster.arrive" + form +
                                              ";\n  barrier.cluster.wait;\n  @!%p bra END;\n  @!%first bra END;\n" +
                                              kRemoteStore.read + "END:\n");
    return text;
  };
  expect_breach(kernel("", ".relaxed"), "nothing orders the read after that write");
  expect_breach(kernel("  fence.acq_rel.cta;\n", ".relaxed"));
  expect_clean(kernel("  fence.acq_rel.cluster;\n", ".relaxed"));
  expect_clean(kernel("", ""));
  expect_clean(kernel("", ".release"));
}

// Causality order is transitive (8.9.5): another warp of the block may publish what it was told.
TEST(Scopes, ReleaseCoversWhatTheBlockHandedOver) {
  const std::string meet = "  bar.sync 1, 64;\n";
  const auto kernel = [&](const char* release, const char* acquire) {
    std::string text = two_blocks("", wait(acquire) + kRemoteStore.read, arrive(release));
    const size_t at = text.find("  @!%first bra HELPER;\n");
    return text.substr(0, at) + "  @%first st.shared::cluster.u32 [%rdata], 7;\n" + meet + text.substr(at);
  };
  expect_breach(kernel("", ""));
  expect_clean(kernel(".release.cluster", ".acquire.cluster"));
}

// A stage is given back by an arrival without scope once its reads are done: nothing is handed over but the room.
TEST(Scopes, RoomGivenBackNeedsNoWideScope) {
  expect_clean(two_blocks("  ld.shared::cluster.u32 %v, [%rdata];\n" + arrive(""),
                          wait("") + "  st.shared.u32 [%data], 9;\n  ld.shared.u32 %v, [%data];\n"));
}

// Words are told apart: a neighbour that another block writes is none of the reader's business, nor is a word that the
// reader's block has written since.
TEST(Scopes, NeighboursAndOwnWords) {
  expect_clean(two_blocks("  st.shared::cluster.u32 [%rdata+4], 7;\n" + arrive(""),
                          wait("") + "  ld.shared.u32 %v, [%data];\n"));
  expect_breach(two_blocks("  st.shared::cluster.u32 [%rdata+4], 7;\n" + arrive(""),
                           wait("") + "  ld.shared.v2.u32 {%v, %w}, [%data];\n"));
  expect_clean(two_blocks(kRemoteStore.write + arrive(""),
                          wait(".acquire.cluster") + "  st.shared.u32 [%data], 3;\n" + kRemoteStore.read));
}

// Strong accesses race with nobody: polling is no breach.
TEST(Scopes, StrongAccessesAreFree) {
  expect_clean(two_blocks("  st.relaxed.cluster.shared::cluster.u32 [%rflag], 7;\n",
                          spin("ld.relaxed.cluster.shared::cta.u32")));
  expect_clean(two_blocks("  red.relaxed.gpu.global.add.u32 [%g], 7;\n" + arrive(""),
                          wait("") + "  ld.relaxed.gpu.global.u32 %v, [%g];\n"));
}

}  // namespace
