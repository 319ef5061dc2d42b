// SPDX-License-Identifier: Apache-2.0
// Forms that published kernels contain and no other test executes: tensor copies with cache hints and for CTA groups,
// four rows at a time, matrix moves and plain loads as compilers spell them, and what must have no effect. Random data
// against a direct computation.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>

#include "run_ptx.h"
#include "sim/memory/tensor_map.h"

namespace {

using namespace sim_test;

std::mt19937& rng() {
  static std::mt19937 generator(11);
  return generator;
}
std::vector<uint32_t> random_words(size_t n) {
  std::vector<uint32_t> v(n);
  for (uint32_t& x : v) x = static_cast<uint32_t>(rng()());
  return v;
}

struct alignas(64) Map {
  uint8_t bytes[128];
};

// ---- tensor copies of block pairs ----------------------------------------------------------------------------------

constexpr uint32_t kWidth = 32, kHeight = 24, kRows = 4;  // of 32-bit elements
constexpr uint32_t kBoxWords = kWidth * kRows;

// Dimensions beyond the second have two elements each, and the copies take the second.
Map map_of(uint64_t address, uint32_t rank, uint32_t rows) {
  sim::TensorMapFields f;
  f.element = sim::TensorElement::U32;
  f.rank = rank;
  f.address = address;
  f.dims = {kWidth, kHeight, 2, 2, 2};
  f.box = {kWidth, rows, 1, 1, 1};
  uint64_t stride = kWidth * 4;
  for (size_t d = 0; d < 4; ++d) {
    f.strides[d] = stride;
    stride *= f.dims[d + 1];
  }
  Map map;
  sim::encode(f, map.bytes);
  return map;
}
size_t first_word(uint32_t rank) {  // of the part that the copies take
  size_t words = 0, stride = kWidth * kHeight;
  for (uint32_t d = 2; d < rank; ++d, stride *= 2) words += stride;
  return words;
}

struct PairCopy {
  uint32_t rank = 2;
  int group = 0;  // 0: no .cta_group
  bool multicast = false, hint = false, gather = false;
};

void check_pair(const PairCopy& c, const sim::Order& order) {
  const bool shared_barrier = c.group == 2;
  const std::string mnemonic = "cp.async.bulk.tensor." + std::to_string(c.rank) + "d" +
                               (c.group ? ".cta_group::" + std::to_string(c.group) : "") + ".shared::cluster.global" +
                               (c.gather ? ".tile::gather4" : "") + ".mbarrier::complete_tx::bytes" +
                               (c.multicast ? ".multicast::cluster" : "") + (c.hint ? ".L2::cache_hint" : "");
  std::string at = c.gather ? "{0, %r2, %r3, %r4, %r5" : "{0, %r2";
  for (uint32_t d = 2; d < c.rank; ++d) at += ", 1";
  at += "}";
  const uint32_t own = 4 * kBoxWords;
  const std::string text = R"(
.extern .shared .align 128 .b8 smem[];
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 p_out) {
  .reg .u32 %rank, %bar, %at, %data, %r<16>, %me;
  .reg .u64 %out, %map, %wide, %policy, %state;
  .reg .b16 %h;
  .reg .pred %p<6>;
  ld.param.u64 %out, [p_out];
  mov.u64 %map, map;
  cvta.param.u64 %map, %map;
  createpolicy.fractional.L2::evict_last.b64 %policy, 1.0;
  mov.u32 %rank, %cluster_ctarank;
  mov.u32 %me, %tid.x;
  mov.u32 %bar, smem;
  add.u32 %data, %bar, 128;
  mov.u16 %h, 3;
  setp.eq.u32 %p0, %me, 0;
  @%p0 mbarrier.init.shared::cta.b64 [%bar], 1;
  fence.mbarrier_init.release.cluster;
  setp.ne.u32 %p1, %rank, 0;
)" + std::string(shared_barrier ? "  @%p1 bra READY;\n" : "") +
                           "  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 %state, [%bar], " +
                           std::to_string(shared_barrier ? 2 * own : own) + R"(;
READY:
  barrier.cluster.arrive.relaxed.aligned;
  barrier.cluster.wait.aligned;
  shl.b32 %r2, %rank, 2;
  add.u32 %r3, %r2, 9;
  add.u32 %r4, %r2, 1;
  add.u32 %r5, %r2, 13;
)" + (shared_barrier ? "  mapa.shared::cluster.u32 %at, %bar, 0;\n" : "  mov.u32 %at, %bar;\n") +
                           (c.multicast ? "  @%p1 bra ISSUED;\n" : "") + "  @%p0 cp.async.bulk.prefetch.tensor." +
                           std::to_string(c.rank) + "d.L2.global" + (c.gather ? ".tile::gather4" : "") + " [%map, " +
                           at + "];\n  @%p0 " + mnemonic + " [%data], [%map, " + at + "], [%at]" +
                           (c.multicast ? ", %h" : "") + (c.hint ? ", %policy" : "") + R"(;
ISSUED:
)" + (shared_barrier ? "  @%p1 bra WAITED;\n" : "") +
                           R"(
WAIT:
  mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%bar], 0;
  @!%p3 bra WAIT;
WAITED:
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  shl.b32 %r6, %me, 2;
  add.u32 %r7, %data, %r6;
  mad.lo.u32 %r8, %rank, 512, %r6;
  cvt.u64.u32 %wide, %r8;
  add.u64 %out, %out, %wide;
  mov.u32 %r9, 0;
SHOW:
  ld.shared.u32 %r10, [%r7];
  st.global.u32 [%out], %r10;
  add.u32 %r7, %r7, 128;
  add.u64 %out, %out, 128;
  add.u32 %r9, %r9, 1;
  setp.lt.u32 %p3, %r9, 4;
  @%p3 bra SHOW;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  ret;
})";
  sim::GlobalMemory memory;
  const auto tensor = random_words(size_t{kWidth} * kHeight << (c.rank - 2));
  Buffer<uint32_t> in(memory, tensor), out(memory, size_t{2 * kBoxWords}, 0u);
  Shape shape;
  shape.arch = c.group != 0 || c.gather ? 100 : 90;
  shape.grid = shape.cluster = {2, 1, 1};
  shape.dynamic_shared = 128 + own;
  shape.order = order;
  run_ptx(text, "k", Params().add(map_of(in.address(), c.rank, c.gather ? 1 : kRows)).add(out.address()), memory,
          shape);
  for (uint32_t block = 0; block < 2; ++block) {
    const uint32_t base = c.multicast ? 0 : 4 * block;
    for (uint32_t row = 0; row < kRows; ++row) {
      const uint32_t from = !c.gather  ? base + row
                            : row == 0 ? base
                            : row == 1 ? base + 9
                            : row == 2 ? base + 1
                                       : base + 13;
      for (uint32_t i = 0; i < kWidth; ++i)
        ASSERT_EQ(out[block * kBoxWords + row * kWidth + i], tensor[first_word(c.rank) + from * kWidth + i])
            << mnemonic << " block " << block << " row " << row;
    }
  }
}

TEST(TensorCopyForms, CacheHintsGroupsAndFourRows) {
  for (const sim::Order& order : all_orders()) {
    for (uint32_t rank = 2; rank <= 5; ++rank) {
      for (const int group : {0, 1, 2}) {
        for (const bool multicast : {false, true}) {
          for (const bool hint : {false, true}) check_pair({rank, group, multicast, hint}, order);
        }
      }
    }
    for (const int group : {0, 1, 2}) {
      for (const bool multicast : {false, true}) check_pair({2, group, multicast, true, true}, order);
    }
  }
}

TEST(TensorCopyForms, ScatterOfFourRows) {
  const std::string text = R"(
.extern .shared .align 128 .b8 smem[];
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 p_in) {
  .reg .u32 %s, %r<8>, %me;
  .reg .u64 %in, %map, %policy;
  .reg .pred %p;
  ld.param.u64 %in, [p_in];
  mov.u64 %map, map;
  cvta.param.u64 %map, %map;
  prefetch.param.tensormap [map];
  prefetch.tensormap [%map];
  mov.u32 %me, %tid.x;
  mov.u32 %s, smem;
  mad.lo.u32 %r0, %me, 16, %s;
  mad.wide.u32 %in, %me, 16, %in;
  ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%in];
  st.shared.v4.u32 [%r0], {%r1, %r2, %r3, %r4};
  fence.proxy.async.shared::cta;
  bar.sync 0;
  setp.ne.u32 %p, %me, 0;
  @%p bra DONE;
  createpolicy.fractional.L2::evict_first.b64 %policy, 0.5;
  cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group.L2::cache_hint
    [%map, {0, 20, 3, 24, 11}], [%s], %policy;
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group.read 0;
  cp.async.bulk.wait_group 0;
DONE:
  ret;
})";
  for (const sim::Order& order : all_orders()) {
    sim::GlobalMemory memory;
    const auto box = random_words(kBoxWords);
    auto want = random_words(kWidth * kHeight);
    Buffer<uint32_t> in(memory, box), tensor(memory, want);
    Shape shape;
    shape.arch = 100;
    shape.dynamic_shared = 4 * kBoxWords;
    shape.order = order;
    run_ptx(text, "k", Params().add(map_of(tensor.address(), 2, 1)).add(in.address()), memory, shape);
    const uint32_t rows[] = {20, 3, 24, 11};  // 24 is outside
    for (size_t r = 0; r < 4; ++r)
      for (size_t i = 0; i < kWidth && rows[r] < kHeight; ++i) want[rows[r] * kWidth + i] = box[r * kWidth + i];
    EXPECT_EQ(tensor.values(), want);
  }
}

// ---- plain kernels: 128 threads, %me, words of %in and %out ---------------------------------------------------------

std::string plain(const std::string& body) {
  return R"(
.extern .shared .align 128 .b8 smem[];
.visible .entry k(.param .u64 p_in, .param .u64 p_out) {
  .reg .u32 %me, %s, %x, %r<16>;
  .reg .u64 %in, %out, %d<8>, %from, %to;
  .reg .f32 %f<8>;
  .reg .pred %p<4>;
  ld.param.u64 %in, [p_in];
  ld.param.u64 %out, [p_out];
  mov.u32 %me, %tid.x;
  mov.u32 %s, smem;
  mad.wide.u32 %from, %me, 16, %in;
  mad.wide.u32 %to, %me, 16, %out;
)" + body +
         "  ret;\n}\n";
}
// Four words of each of 128 threads, in and out.
std::vector<uint32_t> run_plain(const std::string& body, const std::vector<uint32_t>& in,
                                const sim::Order& order = {}) {
  sim::GlobalMemory memory;
  Buffer<uint32_t> input(memory, in), output(memory, size_t{512}, 0u);
  Shape shape;
  shape.block = {128, 1, 1};
  shape.dynamic_shared = 8192;
  shape.order = order;
  run_ptx(plain(body), "k", Params().add(input.address()).add(output.address()), memory, shape);
  return output.values();
}

TEST(Forms, LoadsAndStoresAsCompilersSpellThem) {
  const auto in = random_words(512);
  const auto got = run_plain(R"(
  .local .align 16 .b8 own[32];
  .reg .u64 %own;
  ld.global.f32 %f0, [%from];
  ld.global.f32 %f1, [%from+4];
  mov.u64 %own, own;
  cvta.local.u64 %own, %own;
  cvta.to.local.u64 %own, %own;
  st.local.v2.f32 [%own+8], {%f1, %f0};
  ld.local.v2.f32 {%f2, %f3}, [%own+8];
  st.global.v2.f32 [%to], {%f2, %f3};
  ld.global.u8 %r0, [%from+9];
  st.global.u8 [%to+8], %r0;
  st.global.u8 [%to+11], %r0;
  ldu.global.u32 %r1, [%from+12];
  st.global.u32 [%to+12], %r1;
)",
                             in);
  for (size_t t = 0; t < 128; ++t) {
    const uint32_t byte = in[4 * t + 2] >> 8 & 0xff;
    EXPECT_EQ(got[4 * t], in[4 * t + 1]);
    EXPECT_EQ(got[4 * t + 1], in[4 * t]);
    EXPECT_EQ(got[4 * t + 2], byte | byte << 24);
    EXPECT_EQ(got[4 * t + 3], in[4 * t + 3]);
  }
}

TEST(Forms, BfindOfEveryType) {
  const auto in = [] {
    auto v = random_words(512);
    for (size_t i = 0; i < v.size(); ++i) v[i] >>= rng()() % 32;
    v[0] = 0, v[4] = ~0u, v[8] = v[9] = 0, v[12] = v[13] = ~0u;
    return v;
  }();
  const auto got = run_plain(R"(
  ld.global.v2.u32 {%r0, %r1}, [%from];
  mov.b64 %d0, {%r0, %r1};
  bfind.shiftamt.u32 %r2, %r0;
  bfind.shiftamt.s32 %r3, %r0;
  bfind.shiftamt.u64 %r4, %d0;
  bfind.shiftamt.s64 %r5, %d0;
  st.global.v4.u32 [%to], {%r2, %r3, %r4, %r5};
)",
                             in);
  const auto shift = [](uint64_t bits, int width) {
    const uint64_t top = bits << (64 - width);
    return top == 0 ? ~0u : static_cast<uint32_t>(std::countl_zero(top));
  };
  for (size_t t = 0; t < 128; ++t) {
    const uint32_t a = in[4 * t];
    const uint64_t b = uint64_t{in[4 * t + 1]} << 32 | a;
    EXPECT_EQ(got[4 * t], shift(a, 32));
    EXPECT_EQ(got[4 * t + 1], shift(a >> 31 ? ~a : a, 32));
    EXPECT_EQ(got[4 * t + 2], shift(b, 64));
    EXPECT_EQ(got[4 * t + 3], shift(b >> 63 ? ~b : b, 64));
  }
}

// The halfword (row, column) of the matrix whose rows' addresses lanes 8 m to 8 m + 7 give (9.7.14.5.15).
TEST(Forms, TransposedMatrixLoadsAndStores) {
  for (const sim::Order& order : all_orders()) {
    const auto in = random_words(512);
    const auto got = run_plain(R"(
  ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%from];
  mad.lo.u32 %x, %me, 16, %s;
  st.shared.v4.u32 [%x], {%r0, %r1, %r2, %r3};
  bar.warp.sync -1;
  ldmatrix.sync.aligned.x4.trans.m8n8.shared.b16 {%r4, %r5, %r6, %r7}, [%x];
  st.global.v4.u32 [%to], {%r4, %r5, %r6, %r7};
)",
                               in, order);
    const auto half = [](const std::vector<uint32_t>& words, size_t row, size_t column) {
      return words[row * 4 + column / 2] >> column % 2 * 16 & 0xffff;
    };
    for (size_t t = 0; t < 128; ++t) {
      for (size_t m = 0; m < 4; ++m) {
        const size_t first = t / 32 * 32 + 8 * m, lane = t % 32, row = lane % 4 * 2, column = lane / 4;
        EXPECT_EQ(got[4 * t + m], half(in, first + row, column) | half(in, first + row + 1, column) << 16);
      }
    }
    // The store is the inverse of the load.
    const auto back = run_plain(R"(
  ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%from];
  mad.lo.u32 %x, %me, 16, %s;
  stmatrix.sync.aligned.x4.trans.m8n8.shared.b16 [%x], {%r0, %r1, %r2, %r3};
  bar.warp.sync -1;
  ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%x];
  st.global.v4.u32 [%to], {%r4, %r5, %r6, %r7};
)",
                                got, order);
    EXPECT_EQ(back, in);
  }
}

// Hints, pauses and markers change nothing; discard leaves its bytes as if they had never been written, all ones, and
// those beside them alone.
TEST(Forms, WhatHasNoEffect) {
  const auto in = random_words(512);
  for (const sim::Order& order : all_orders()) {
    EXPECT_EQ(run_plain(R"(
  prefetch.global.L2 [%from];
  prefetch.global.L1 [%from];
  prefetch.global.L2::evict_last [%from];
  prefetchu.L1 [%from];
  applypriority.global.L2::evict_normal [%in], 128;
  createpolicy.fractional.L2::evict_unchanged.b64 %d0, 0.25;
  griddepcontrol.launch_dependents;
  nanosleep.u32 20;
  pmevent 3;
  brkpt;
  ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%from];
  griddepcontrol.wait;
  st.global.v4.u32 [%to], {%r0, %r1, %r2, %r3};
)",
                        in, order),
              in);
    const auto got = run_plain(R"(
  ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%from];
  st.global.v4.u32 [%to], {%r0, %r1, %r2, %r3};
  bar.sync 0;
  setp.eq.u32 %p0, %me, 5;
  add.u64 %d0, %out, 512;
  @%p0 discard.global.L2 [%d0], 128;
)",
                               in, order);
    for (size_t i = 0; i < in.size(); ++i) EXPECT_EQ(got[i], i < 128 || i >= 160 ? in[i] : ~0u);
  }
}

TEST(Forms, TrapExitAndActiveLanes) {
  const auto in = random_words(512);
  const auto got = run_plain(R"(
  activemask.b32 %r0;
  and.b32 %r1, %me, 1;
  setp.eq.u32 %p0, %r1, 1;
  mapa.shared::cluster.u32 %r3, %s, 0;
  getctarank.shared::cluster.u32 %r2, %r3;
  st.global.v2.u32 [%to], {%r0, %r2};
  @%p0 exit;
  st.global.u32 [%to+8], %me;
)",
                             in);
  for (uint32_t t = 0; t < 128; ++t) {
    EXPECT_EQ(got[4 * t], ~0u);
    EXPECT_EQ(got[4 * t + 1], 0u);
    EXPECT_EQ(got[4 * t + 2], t % 2 ? 0 : t);
  }
  sim::GlobalMemory memory;
  Buffer<uint32_t> out(memory, size_t{512}, 0u);
  Shape shape;
  shape.block = {128, 1, 1};
  EXPECT_NE(fault_of(plain("  setp.eq.u32 %p0, %me, 77;\n  @%p0 trap;\n"), "k",
                     Params().add(out.address()).add(out.address()), memory, shape)
                .find("trap"),
            std::string::npos);
}

// ---- addresses of shared memory in a cluster ---------------------------------------------------

// Each lane gets the address of a variable that stands in an instruction by its name.
TEST(Forms, ASharedVariableIsMappedByItsName) {
  const auto in = random_words(512);
  const auto got = run_plain(R"(
  .shared .align 16 .b8 before[16];
  .shared .align 16 .b8 named[128];
  mov.u32 %r0, before;
  mov.u32 %r1, named;
  mapa.shared::cluster.u32 %r2, named, 0;
  mapa.shared::cluster.u32 %r3, named+12, 0;
  getctarank.shared::cluster.u32 %r4, named;
  sub.u32 %r2, %r2, %r1;
  sub.u32 %r3, %r3, %r1;
  min.u32 %r1, %r1, 1;
  st.global.v4.u32 [%to], {%r1, %r2, %r3, %r4};
)",
                             in);
  for (uint32_t t = 0; t < 128; ++t) {
    EXPECT_EQ((std::vector<uint32_t>(got.begin() + 4 * t, got.begin() + 4 * t + 4)),
              (std::vector<uint32_t>{1, 0, 12, 0}))
        << t;
  }
}

// They carry the rank of their block from bit 24 on, whoever asks for them.
TEST(Forms, SharedAddressesCarryTheRankOfTheirBlock) {
  const std::string text = R"(
.visible .entry k(.param .u64 p_out)
{
  .shared .align 16 .b8 buffer[128];
  .reg .pred %p<4>;
  .reg .b32 %rank, %own, %other, %r<8>;
  .reg .b64 %out, %at, %generic, %rd<4>;
  ld.param.u64 %out, [p_out];
  mov.u32 %rank, %cluster_ctarank;
  mad.wide.u32 %out, %rank, 32, %out;
  mov.u32 %own, buffer;
  st.shared.u32 [%own+4], %rank;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  mapa.shared::cluster.u32 %r0, %own, %rank;
  xor.b32 %r0, %r0, %own;
  getctarank.shared::cluster.u32 %r1, %own;
  mov.u64 %at, buffer;
  cvta.shared.u64 %generic, %at;
  xor.b32 %r7, %rank, 3;
  mapa.u64 %rd0, %generic, %r7;
  cvta.to.shared.u64 %rd1, %rd0;
  cvt.u32.u64 %r2, %rd1;
  isspacep.shared::cta %p0, %rd0;
  isspacep.shared::cluster %p1, %rd0;
  isspacep.shared::cta %p2, %generic;
  selp.u32 %r3, 1, 0, %p0;
  selp.u32 %r4, 2, %r3, %p1;
  selp.u32 %r5, %r4, 9, %p2;
  ld.shared::cluster.u32 %r3, [%r2+4];
  and.b32 %other, %own, 0xfefffff0;
  ld.shared::cluster.u32 %r4, [%other+4];
  ld.u32 %r6, [%generic+4];
  st.global.v4.u32 [%out], {%own, %r0, %r1, %r2};
  st.global.v4.u32 [%out+16], {%r3, %r4, %r5, %r6};
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  ret;
})";
  for (const sim::Order& order : sim_test::all_orders()) {
    sim::GlobalMemory memory;
    Buffer<uint32_t> out(memory, size_t{32}, 0u);
    Shape shape;
    shape.block = {1, 1, 1};
    shape.grid = shape.cluster = {4, 1, 1};
    shape.order = order;
    run_ptx(text, "k", Params().add(out.address()), memory, shape);
    for (uint32_t rank = 0; rank < 4; ++rank) {
      const std::vector<uint32_t> want = {rank << 24, 0, rank, (rank ^ 3) << 24, rank ^ 3, rank & ~1u, 2, rank};
      EXPECT_EQ(std::vector<uint32_t>(out.data() + 8 * rank, out.data() + 8 * rank + 8), want) << rank;
    }
  }
}

// ---- st.async and red.async into the other block (9.7.9.12, 9.7.13.7)
// ------------------------------------------------

struct AsyncStoreCase {
  const char *instruction, *value;
  size_t words;
  uint32_t (*f)(uint32_t, uint32_t);  // null: the value replaces what was there
};

TEST(Forms, AsynchronousStoresAndReductions) {
  const std::string to = ".shared::cluster.mbarrier::complete_tx::bytes.";
  const AsyncStoreCase cases[] = {
      {"st.async", "b32 [%r4], %r0", 1, nullptr},
      {"st.async", "f32 [%r4], %f0", 1, nullptr},
      {"st.async", "b64 [%r4], %d0", 2, nullptr},
      {"st.async", "v2.b32 [%r4], {%r0, %r1}", 2, nullptr},
      {"st.async", "v2.u64 [%r4], {%d0, %d1}", 4, nullptr},
      {"st.async", "v4.b32 [%r4], {%r0, %r1, %r2, %r3}", 4, nullptr},
      {"red.async.relaxed.cluster", "add.u32 [%r4], %r0", 1, [](uint32_t a, uint32_t b) { return a + b; }},
      {"red.async.relaxed.cluster", "inc.u32 [%r4], %r0", 1, [](uint32_t a, uint32_t b) { return a >= b ? 0 : a + 1; }},
      {"red.async.relaxed.cluster", "dec.u32 [%r4], %r0", 1,
       [](uint32_t a, uint32_t b) { return a == 0 || a > b ? b : a - 1; }},
      {"red.async.relaxed.cluster", "min.s32 [%r4], %r0", 1,
       [](uint32_t a, uint32_t b) {
         return static_cast<uint32_t>(std::min(static_cast<int32_t>(a), static_cast<int32_t>(b)));
       }},
      {"red.async.relaxed.cluster", "max.u32 [%r4], %r0", 1, [](uint32_t a, uint32_t b) { return std::max(a, b); }},
      {"red.async.relaxed.cluster", "and.b32 [%r4], %r0", 1, [](uint32_t a, uint32_t b) { return a & b; }},
      {"red.async.relaxed.cluster", "or.b32 [%r4], %r0", 1, [](uint32_t a, uint32_t b) { return a | b; }},
      {"red.async.relaxed.cluster", "xor.b32 [%r4], %r0", 1, [](uint32_t a, uint32_t b) { return a ^ b; }}};
  for (const AsyncStoreCase& c : cases) {
    for (const sim::Order& order : all_orders()) {
      const bool generic = order.seed != 0;  // the addresses
      std::string value = c.value;
      if (generic) value.replace(value.find("%r4"), 3, "%d4");
      sim::GlobalMemory memory;
      const auto before = random_words(512), values = random_words(512);
      auto both = before;
      both.insert(both.end(), values.begin(), values.end());
      Buffer<uint32_t> in(memory, both), out(memory, size_t{512}, 0u);
      Shape shape;
      shape.grid = shape.cluster = {2, 1, 1};
      shape.block = {128, 1, 1};
      shape.dynamic_shared = 2048 + 16;
      shape.order = order;
      const std::string text = plain(R"(
  ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%from];
  mad.lo.u32 %x, %me, 16, %s;
  st.shared.v4.u32 [%x], {%r0, %r1, %r2, %r3};
  ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%from+2048];
  mov.b64 %d0, {%r0, %r1};
  mov.b64 %d1, {%r2, %r3};
  mov.b32 %f0, %r0;
  add.u32 %r5, %s, 2048;
  mov.u32 %r6, %cluster_ctarank;
  setp.eq.u32 %p0, %me, 0;
  @%p0 mbarrier.init.shared::cta.b64 [%r5], 1;
  setp.eq.u32 %p1, %r6, 1;
  and.pred %p2, %p0, %p1;
  @%p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], )" +
                                     std::to_string(c.words * 4 * 128) + R"(;
  fence.mbarrier_init.release.cluster;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  mapa.shared::cluster.u32 %r4, %x, 1;
  mapa.shared::cluster.u32 %r7, %r5, 1;
  cvt.u64.u32 %d4, %r4;
  cvt.u64.u32 %d7, %r7;
  cvta.shared::cluster.u64 %d4, %d4;
  cvta.shared::cluster.u64 %d7, %d7;
  @%p1 bra WAIT;
  )" + c.instruction + (generic ? to.substr(std::string(".shared::cluster").size()) : to) +
                                     value + (generic ? ", [%d7]" : ", [%r7]") + R"(;
  bra DONE;
WAIT:
  mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r5], 0;
  @!%p3 bra WAIT;
  ld.shared.v4.u32 {%r0, %r1, %r2, %r3}, [%x];
  st.global.v4.u32 [%to], {%r0, %r1, %r2, %r3};
DONE:
  barrier.cluster.arrive;
  barrier.cluster.wait;
)");
      run_ptx(text, "k", Params().add(in.address()).add(out.address()), memory, shape);
      for (size_t t = 0; t < 128; ++t) {
        for (size_t i = 0; i < 4; ++i) {
          const uint32_t old = before[4 * t + i], value = values[4 * t + i];
          const uint32_t want = i >= c.words ? old : c.f != nullptr ? c.f(old, value) : value;
          ASSERT_EQ(out[4 * t + i], want) << c.instruction << " " << c.value;
        }
      }
    }
  }
}

}  // namespace
