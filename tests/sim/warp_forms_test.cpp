// SPDX-License-Identifier: Apache-2.0
// Instructions of a whole warp, and atomics, in every form on random data, some lanes absent: votes, matches,
// reductions, shuffles, matrix moves, register budgets. Against a direct computation from the ISA's definitions.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <random>

#include "tests/sim/run_ptx.h"

namespace {

using namespace sim_test;

constexpr uint32_t kThreads = 128, kWords = 8;  // words a thread, in and out

std::mt19937& rng() {
  static std::mt19937 generator(31);
  return generator;
}

// Each thread has %r0 to %r7 from its input words, %me, %in and %out (its own), %s (its 16 bytes of shared memory).
std::vector<uint32_t> run_threads(const std::string& body, const std::vector<uint32_t>& in, const sim::Order& order) {
  std::string text = R"(
.extern .shared .align 128 .b8 smem[];
.visible .entry k(.param .u64 p_in, .param .u64 p_out) .maxnreg 128 {
  .reg .b32 %me, %s, %r<8>, %x<32>;
  .reg .b64 %in, %out, %all, %d<8>;
  .reg .f32 %f<8>;
  .reg .f64 %g<8>;
  .reg .b16 %h<8>;
  .reg .pred %p<8>;
  ld.param.u64 %in, [p_in];
  ld.param.u64 %all, [p_out];
  mov.u32 %me, %tid.x;
  mov.u32 %s, smem;
  mad.lo.u32 %s, %me, 16, %s;
  mad.wide.u32 %in, %me, 32, %in;
  mad.wide.u32 %out, %me, 32, %all;
  ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%in];
  ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%in+16];
)" + body + "  ret;\n}\n";
  sim::GlobalMemory memory;
  Buffer<uint32_t> input(memory, in), output(memory, in.size(), 0u);
  Shape shape;
  shape.block = {kThreads, 1, 1};
  shape.dynamic_shared = 16 * kThreads;
  shape.order = order;
  run_ptx(text, "k", Params().add(input.address()).add(output.address()), memory, shape);
  return output.values();
}
std::vector<uint32_t> random_input() {
  std::vector<uint32_t> in(kThreads * kWords);
  for (uint32_t& x : in) x = static_cast<uint32_t>(rng()());
  return in;
}
// Runs `body` for the lanes of `mask`, which is written %mask in it; the others store nothing.
std::string for_lanes(uint32_t mask, std::string body) {
  for (size_t at; (at = body.find("%mask")) != std::string::npos;) body.replace(at, 5, std::to_string(mask));
  return "  mov.u32 %x30, %laneid;\n  shr.u32 %x31, " + std::to_string(mask) +
         ", %x30;\n  and.b32 %x31, %x31, 1;\n  setp.eq.u32 %p7, %x31, 0;\n  @%p7 bra END;\n" + body + "END:\n";
}
const std::vector<uint32_t>& masks() {
  static const std::vector<uint32_t> all = {~0u, 0x0000ffff, 0x80000001, 0x5a5af00f, 0x00010000};
  return all;
}
template <class Check>
void each_present(uint32_t mask, Check check) {
  for (uint32_t warp = 0; warp < kThreads / 32; ++warp)
    for (uint32_t lane = 0; lane < 32; ++lane)
      if (mask >> lane & 1) check(warp * 32, lane);
}

TEST(WarpForms, VotesMatchesAndReductions) {
  for (const sim::Order& order : all_orders()) {
    for (const uint32_t mask : masks()) {
      auto in = random_input();
      for (uint32_t t = 0; t < kThreads; ++t) {
        in[t * kWords] = t < 32 ? in[t * kWords] & 1 : t < 64 ? 1 : t < 96 ? 0 : in[t * kWords] & 1;
        in[t * kWords + 1] = t < 32 ? 7 : in[t * kWords + 1] % 3;
      }
      const auto of = [&](uint32_t thread, uint32_t word) { return in[thread * kWords + word]; };
      const auto votes = run_threads(for_lanes(mask, R"(
  setp.ne.u32 %p0, %r0, 0;
  vote.sync.any.pred %p1, %p0, %mask;
  vote.sync.all.pred %p2, %p0, %mask;
  vote.sync.uni.pred %p3, %p0, %mask;
  vote.sync.ballot.b32 %x0, %p0, %mask;
  match.any.sync.b32 %x1, %r1, %mask;
  match.all.sync.b32 %x2|%p4, %r1, %mask;
  elect.sync %x3|%p5, %mask;
  activemask.b32 %x4;
  selp.u32 %x5, 1, 0, %p1;
  selp.u32 %x6, 2, 0, %p2;
  selp.u32 %x7, 4, 0, %p3;
  selp.u32 %x8, 8, 0, %p4;
  selp.u32 %x9, 16, 0, %p5;
  or.b32 %x5, %x5, %x6;
  or.b32 %x5, %x5, %x7;
  or.b32 %x5, %x5, %x8;
  or.b32 %x5, %x5, %x9;
  st.global.v4.u32 [%out], {%x0, %x1, %x2, %x3};
  st.global.v2.u32 [%out+16], {%x4, %x5};
)"),
                                     in, order);
      each_present(mask, [&](uint32_t base, uint32_t lane) {
        uint32_t ballot = 0, equal = 0;
        for (uint32_t other = 0; other < 32; ++other) {
          if (!(mask >> other & 1)) continue;
          ballot |= of(base + other, 0) << other;
          equal |= uint32_t{of(base + other, 1) == of(base + lane, 1)} << other;
        }
        const auto leader = static_cast<uint32_t>(std::countr_zero(mask));
        const uint32_t* const got = &votes[(base + lane) * kWords];
        EXPECT_EQ(got[0], ballot);
        EXPECT_EQ(got[1], equal);
        EXPECT_EQ(got[2], equal == mask ? mask : 0);
        EXPECT_EQ(got[3], leader);
        EXPECT_EQ(got[4], mask);
        EXPECT_EQ(got[5], (ballot != 0) | (ballot == mask) << 1 | (ballot == mask || ballot == 0) << 2 |
                              (equal == mask) << 3 | (lane == leader) << 4);
      });

      const struct {
        const char* name;
        std::function<uint32_t(uint32_t, uint32_t)> apply;
      } reductions[] = {
          {"add.u32", [](uint32_t a, uint32_t b) { return a + b; }},
          {"add.s32", [](uint32_t a, uint32_t b) { return a + b; }},
          {"min.u32", [](uint32_t a, uint32_t b) { return std::min(a, b); }},
          {"max.u32", [](uint32_t a, uint32_t b) { return std::max(a, b); }},
          {"min.s32",
           [](uint32_t a, uint32_t b) { return static_cast<uint32_t>(std::min<int32_t>(int32_t(a), int32_t(b))); }},
          {"max.s32",
           [](uint32_t a, uint32_t b) { return static_cast<uint32_t>(std::max<int32_t>(int32_t(a), int32_t(b))); }},
          {"and.b32", [](uint32_t a, uint32_t b) { return a & b; }},
          {"or.b32", [](uint32_t a, uint32_t b) { return a | b; }},
          {"xor.b32", [](uint32_t a, uint32_t b) { return a ^ b; }},
      };
      for (const auto& reduction : reductions) {
        const auto sums = run_threads(for_lanes(mask, std::string("  redux.sync.") + reduction.name +
                                                          " %x0, %r2, %mask;\n  st.global.u32 [%out], %x0;\n"),
                                      in, order);
        each_present(mask, [&](uint32_t base, uint32_t lane) {
          bool first = true;
          uint32_t want = 0;
          for (uint32_t other = 0; other < 32; ++other) {
            if (!(mask >> other & 1)) continue;
            want = first ? of(base + other, 2) : reduction.apply(want, of(base + other, 2));
            first = false;
          }
          EXPECT_EQ(sums[(base + lane) * kWords], want) << reduction.name;
        });
      }
    }
  }
}

// 9.7.9.6: the source lane and whether it is in range, from b and c; out of range a lane reads itself.
TEST(WarpForms, Shuffles) {
  for (const sim::Order& order : all_orders()) {
    const auto in = random_input();
    for (const char* mode : {"up", "down", "bfly", "idx"}) {
      for (const uint32_t width : {32u, 16u, 8u, 2u}) {
        const uint32_t segment = 32 - width, clamp = std::string(mode) == "up" ? 0 : 31, c = segment << 8 | clamp;
        const auto got = run_threads(std::string("  and.b32 %x1, %r1, 31;\n  shfl.sync.") + mode +
                                         ".b32 %x0|%p0, %r0, %x1, " + std::to_string(c) +
                                         ", -1;\n  selp.u32 %x2, 1, 0, %p0;\n  st.global.v2.u32 [%out], {%x0, %x2};\n",
                                     in, order);
        for (uint32_t t = 0; t < kThreads; ++t) {
          const auto lane = static_cast<int>(t % 32);
          const auto b = static_cast<int>(in[t * kWords + 1] % 32);
          const auto seg = static_cast<int>(segment);
          const int max_lane = (lane & seg) | (static_cast<int>(clamp) & ~seg), min_lane = lane & seg;
          const int from = mode[0] == 'u'   ? lane - b
                           : mode[0] == 'd' ? lane + b
                           : mode[0] == 'b' ? lane ^ b
                                            : min_lane | (b & ~seg);
          const bool inside = mode[0] == 'u' ? from >= max_lane : from <= max_lane;
          const uint32_t source = t / 32 * 32 + static_cast<uint32_t>(inside ? from : lane);
          EXPECT_EQ(got[t * kWords], in[source * kWords]) << mode << " " << width << " lane " << lane << " b " << b;
          EXPECT_EQ(got[t * kWords + 1], uint32_t{inside}) << mode << " " << width << " lane " << lane << " b " << b;
        }
      }
    }
  }
}

// Lanes 0 to 15 are a group, and the others are one of which the last come when the first group has gone on. Each
// instruction is executed once.
TEST(WarpForms, AGroupGoesOnWithoutTheLanesOfAnother) {
  for (const sim::Order& order : all_orders()) {
    const auto in = random_input();
    const auto got = run_threads(R"(
  .shared .align 4 .b32 gone[4];
  mov.u32 %x2, %laneid;
  shr.u32 %x3, %me, 5;
  mov.u32 %x4, gone;
  mad.lo.u32 %x4, %x3, 4, %x4;
  st.volatile.shared.u32 [%x4], 0;
  bar.warp.sync -1;
  setp.lt.u32 %p0, %x2, 16;
  selp.b32 %x5, 0xffff, 0xffff0000, %p0;
  mov.u32 %x0, 0;
  setp.ge.u32 %p1, %x2, 24;
  @%p1 bra LATE;
MEET:
  add.u32 %x0, %x0, 1;
  shfl.sync.bfly.b32 %x1, %r0, 15, 31, %x5;
  setp.eq.u32 %p2, %x2, 0;
  @%p2 st.volatile.shared.u32 [%x4], 1;
  st.global.v2.u32 [%out], {%x0, %x1};
  bra END;
LATE:
  ld.volatile.shared.u32 %x6, [%x4];
  setp.eq.u32 %p3, %x6, 0;
  @%p3 bra LATE;
  bra MEET;
END:
)",
                                 in, order);
    for (uint32_t t = 0; t < kThreads; ++t) {
      EXPECT_EQ(got[t * kWords], 1u);
      EXPECT_EQ(got[t * kWords + 1], in[(t ^ 15) * kWords]);
    }
  }
}

// Element (row, column) of an 8 x 8 matrix of halfwords is half column % 2 of lane 4 * row + column / 2 (9.7.14.5.17).
TEST(WarpForms, MatricesTranspose) {
  for (const sim::Order& order : all_orders()) {
    const auto in = random_input();
    const auto got = run_threads(
        "  movmatrix.sync.aligned.m8n8.trans.b16 %x0, %r0;\n"
        "  stmatrix.sync.aligned.m8n8.x4.shared.b16 [%s], {%r1, %r2, %r3, %r4};\n"
        "  bar.warp.sync -1;\n"
        "  ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%x1, %x2, %x3, %x4}, [%s];\n"
        "  st.global.v4.u32 [%out], {%x0, %x1, %x2, %x3};\n  st.global.u32 [%out+16], %x4;\n",
        in, order);
    for (uint32_t t = 0; t < kThreads; ++t) {
      for (uint32_t word = 0; word < 5; ++word) {
        for (uint32_t half = 0; half < 2; ++half) {
          const uint32_t row = t % 32 / 4, column = t % 4 * 2 + half;
          const uint32_t from = t / 32 * 32 + column * 4 + row / 2;
          EXPECT_EQ(got[t * kWords + word] >> 16 * half & 0xffff, in[from * kWords + word] >> row % 2 * 16 & 0xffff);
        }
      }
    }
  }
}

// Each thread has a place of its own, which starts with its words 0 and 1; b is its words 2 and 3, c words 4 and 5.
TEST(WarpForms, AtomicsOfEveryTypeAndOperation) {
  const auto i32 = [](uint64_t v) { return static_cast<int32_t>(v); };
  const auto i64 = [](uint64_t v) { return static_cast<int64_t>(v); };
  using Apply = std::function<uint64_t(uint64_t, uint64_t, uint64_t)>;
  const struct {
    const char* name;
    int bits;
    Apply apply;
  } operations[] = {
      {"and.b32", 32, [](uint64_t a, uint64_t b, uint64_t) { return a & b; }},
      {"or.b32", 32, [](uint64_t a, uint64_t b, uint64_t) { return a | b; }},
      {"xor.b32", 32, [](uint64_t a, uint64_t b, uint64_t) { return a ^ b; }},
      {"and.b64", 64, [](uint64_t a, uint64_t b, uint64_t) { return a & b; }},
      {"or.b64", 64, [](uint64_t a, uint64_t b, uint64_t) { return a | b; }},
      {"xor.b64", 64, [](uint64_t a, uint64_t b, uint64_t) { return a ^ b; }},
      {"exch.b32", 32, [](uint64_t, uint64_t b, uint64_t) { return b; }},
      {"exch.b64", 64, [](uint64_t, uint64_t b, uint64_t) { return b; }},
      {"cas.b32", 32, [](uint64_t a, uint64_t b, uint64_t c) { return a == b ? c : a; }},
      {"cas.b64", 64, [](uint64_t a, uint64_t b, uint64_t c) { return a == b ? c : a; }},
      {"add.u32", 32, [](uint64_t a, uint64_t b, uint64_t) { return a + b; }},
      {"add.s32", 32, [](uint64_t a, uint64_t b, uint64_t) { return a + b; }},
      {"add.u64", 64, [](uint64_t a, uint64_t b, uint64_t) { return a + b; }},
      {"inc.u32", 32, [](uint64_t a, uint64_t b, uint64_t) { return a >= b ? 0 : a + 1; }},
      {"dec.u32", 32, [](uint64_t a, uint64_t b, uint64_t) { return a == 0 || a > b ? b : a - 1; }},
      {"min.u32", 32, [](uint64_t a, uint64_t b, uint64_t) { return std::min(a, b); }},
      {"max.u32", 32, [](uint64_t a, uint64_t b, uint64_t) { return std::max(a, b); }},
      {"min.s32", 32, [=](uint64_t a, uint64_t b, uint64_t) { return i32(a) < i32(b) ? a : b; }},
      {"max.s32", 32, [=](uint64_t a, uint64_t b, uint64_t) { return i32(a) > i32(b) ? a : b; }},
      {"min.u64", 64, [](uint64_t a, uint64_t b, uint64_t) { return std::min(a, b); }},
      {"max.u64", 64, [](uint64_t a, uint64_t b, uint64_t) { return std::max(a, b); }},
      {"min.s64", 64, [=](uint64_t a, uint64_t b, uint64_t) { return i64(a) < i64(b) ? a : b; }},
      {"max.s64", 64, [=](uint64_t a, uint64_t b, uint64_t) { return i64(a) > i64(b) ? a : b; }},
  };
  for (const auto& op : operations) {
    for (const std::string space : {"shared", "global", "sys.global"}) {
      for (const bool result : {true, false}) {
        const std::string name = op.name;
        const bool cas = name.starts_with("cas"), wide = op.bits == 64;
        if (!result && (cas || name.starts_with("exch"))) continue;  // red has neither
        auto in = random_input();
        for (uint32_t t = 0; t < kThreads; t += 3) {  // equal operands, and zero
          in[t * kWords + 2] = in[t * kWords], in[t * kWords + 3] = in[t * kWords + 1];
          if (t % 2) in[t * kWords] = 0;
        }
        const std::string place = space == "shared" ? "[%s]" : "[%out+16]", type = wide ? "64" : "32";
        const auto operand = [&](int word) {
          return wide ? "%d" + std::to_string(word / 2) : "%r" + std::to_string(word);
        };
        const std::string plain = space == "shared" ? "shared" : "global";
        const std::string body =
            "  mov.b64 %d0, {%r0, %r1};\n  mov.b64 %d1, {%r2, %r3};\n  mov.b64 %d2, {%r4, %r5};\n  st." + plain +
            ".b64 " + place + ", %d0;\n  mov.b64 %d4, 0;\n  " + (result ? "atom." : "red.") +
            (plain == space ? "" : "relaxed.") + space + "." + name + " " +
            (result ? (wide ? "%d4, " : "%x0, ") : std::string()) + place + ", " + operand(2) +
            (cas ? ", " + operand(4) : "") + ";\n" + (result && !wide ? "  cvt.u64.u32 %d4, %x0;\n" : "") + "  ld." +
            plain + ".b64 %d5, " + place + ";\n  st.global.b64 [%out], %d4;\n  st.global.b64 [%out+8], %d5;\n";
        const auto got = run_threads(body, in, all_orders()[rng()() % all_orders().size()]);
        for (uint32_t t = 0; t < kThreads; ++t) {
          const uint32_t* const words = &in[t * kWords];
          const auto value = [&](int word) { return words[word] | (wide ? uint64_t{words[word + 1]} << 32 : 0); };
          const uint64_t before = value(0);
          uint64_t after = op.apply(before, value(2), value(4));
          if (!wide) after = (after & 0xffffffff) | uint64_t{words[1]} << 32;
          const uint32_t* const out = &got[t * kWords];
          EXPECT_EQ(out[0] | uint64_t{out[1]} << 32, result ? before : 0) << name << " " << space;
          EXPECT_EQ(out[2] | uint64_t{out[3]} << 32, after) << name << " " << space;
        }
      }
    }
  }
}

// 9.4.1: what is loaded is extended to the register by its sign or zeros, what is stored is cut off. This is every type
// and vector, into and out of registers of every width, by all lanes and by some, for lanes whose bytes follow
// each other and for lanes in the other direction, in every space by its name and by generic addresses. Elements may be
// left out.
TEST(WarpForms, LoadsAndStoresOfEveryWidth) {
  constexpr size_t kRows = 64, kBytes = 4096;  // threads, and bytes of the memory that they read and write
  std::vector<uint8_t> in(3 * kBytes);
  for (uint8_t& byte : in) byte = static_cast<uint8_t>(rng()());
  const std::string copy =
      "  mov.b32 %n, 0;\nL:\n  add.u32 %x0, %n, %row;\n  cvt.u64.u32 %d0, %x0;\n"
      "  add.u64 %d1, %from, %d0;\n  add.u64 %d2, %to, %d0;\n  ld.v4.b32 {%x1, %x2, %x3, %x4}, [%d1];\n"
      "  st.v4.b32 [%d2], {%x1, %x2, %x3, %x4};\n  add.u32 %n, %n, 16;\n  setp.lt.u32 %q, %n, 64;\n"
      "  @%q bra L;\n";
  const auto copied = [&](std::string label, const std::string& from, const std::string& to) {
    std::string text = "  mov.b64 %from, " + from + ";\n  mov.b64 %to, " + to + ";\n" + copy;
    for (size_t at; (at = text.find("L:")) != std::string::npos;) text.replace(at, 2, label + ":");
    for (size_t at; (at = text.find("bra L;")) != std::string::npos;) text.replace(at, 6, "bra " + label + ";");
    return text + "  bar.sync 0;\n";
  };
  size_t number = 0;
  for (const std::string type :
       {"b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64", "b128"}) {
    const auto bytes = static_cast<size_t>(std::stoi(type.substr(1))) / 8;
    for (const size_t count : {size_t{1}, size_t{2}, size_t{4}}) {
      if (bytes * count > 16) continue;
      for (const size_t width : {size_t{4}, size_t{8}, size_t{16}}) {
        if (width < bytes || (width == 16) != (bytes == 16)) continue;
        for (const std::string space : {"global", "shared", "shared::cluster", "local", "", " of shared"}) {
          for (const bool backwards : {false, true}) {
            for (const bool guarded : {false, true}) {
              const size_t left_out = count > 1 && ++number % 3 == 0 ? number / 3 % count : count;
              const size_t size = bytes * count;
              const std::string w = std::to_string(8 * width),
                                spelled = space.empty() || space[0] == ' ' ? "" : "." + space,
                                form = spelled + (count > 1 ? ".v" + std::to_string(count) : "") + "." + type,
                                guard = guarded ? "@%p " : "";
              const bool local = space == "local", shared = space.find("shared") != std::string::npos;
              const auto list = [&](const char* name, bool sink) {
                std::string text;
                for (size_t e = 0; e < count; ++e)
                  text += (e ? ", " : "") + (sink && e == left_out ? "_" : name + std::to_string(e));
                return count > 1 ? "{" + text + "}" : text;
              };
              std::string text =
                  ".extern .shared .align 128 .b8 smem[];\n.visible .entry k(.param .u64 p_in, .param .u64 "
                  "p_out) {\n.local .align 16 .b8 own[4096];\n.reg .b32 %n, %me, %row, %lane, %x<5>; .reg "
                  ".b64 %in, %out, %from, %to, %own, %s, %at, %d<4>; .reg .pred %p, %q; .reg .b" +
                  w +
                  " %a<4>, %b<4>;\n  ld.param.u64 %in, [p_in];\n  ld.param.u64 %out, [p_out];\n"
                  "  mov.u32 %me, %tid.x;\n  mul.lo.u32 %row, %me, 64;\n  mov.u32 %lane, %laneid;\n"
                  "  and.b32 %x0, %lane, 5;\n  setp.eq.u32 %p, %x0, 4;\n  mov.u64 %s, smem;\n"
                  "  cvta.shared.u64 %s, %s;\n  mov.u64 %own, own;\n  cvta.local.u64 %own, %own;\n";
              // The registers hold what stands behind the first 4096 bytes.
              text += "  cvt.u64.u32 %d0, %row;\n  add.u64 %d0, %in, %d0;\n";
              for (size_t e = 0; e < count; ++e) {
                const std::string at = "[%d0+" + std::to_string(16 * e + kBytes);
                text += "  ld.b" + w + " %a" + std::to_string(e) + ", " + at + "];\n  ld.b" + w + " %b" +
                        std::to_string(e) + ", [%d0+" + std::to_string(16 * e + 2 * kBytes) + "];\n";
              }
              // A thread's local memory is its own: each copies the 64 bytes of its row, and reads them as one row.
              const std::string begin = shared ? "%s" : local ? "%own" : "%in";
              if (shared || local) text += copied("FIRST", "%in", begin);
              text += backwards ? "  sub.u32 %x0, 63, %me;\n" : "  mov.u32 %x0, %me;\n";
              if (local) text += "  mul.lo.u32 %x0, %me, 64;\n";
              text += "  mul.wide.u32 %d0, %x0, " + std::to_string(local ? 1 : size) + ";\n";
              if (spelled.empty() || space == "global")
                text += "  add.u64 %at, " + begin + ", %d0;\n";
              else if (local)
                text += "  mov.u64 %at, own;\n  add.u64 %at, %at, %d0;\n";
              else
                text += "  mov.u64 %at, smem;\n  add.u64 %at, %at, %d0;\n";
              text += "  " + guard + "ld" + form + " " + list("%a", true) + ", [%at];\n  bar.sync 0;\n";
              text += "  " + guard + "st" + form + " [%at], " + list("%b", false) + ";\n  bar.sync 0;\n";
              text += "  cvt.u64.u32 %d0, %row;\n  add.u64 %d0, %out, %d0;\n";
              for (size_t e = 0; e < count; ++e)
                text += "  st.b" + w + " [%d0+" + std::to_string(16 * e + kBytes) + "], %a" + std::to_string(e) + ";\n";
              text += copied("LAST", begin, "%out") + "  ret;\n}\n";

              sim::GlobalMemory memory;
              Buffer<uint8_t> input(memory, in), output(memory, size_t{2} * kBytes, uint8_t{0});
              Shape shape;
              shape.block = {kRows, 1, 1};
              shape.dynamic_shared = kBytes;
              run_ptx(text, "k", Params().add(input.address()).add(output.address()), memory, shape);

              std::vector<uint8_t> moved(in.begin(), in.begin() + kBytes), registers(kBytes);
              for (size_t t = 0; t < kRows; ++t) {
                const bool runs = !guarded || (t & 5) == 4;
                const size_t at = local ? 64 * t : (backwards ? kRows - 1 - t : t) * size;
                for (size_t e = 0; e < count; ++e) {
                  uint8_t* const to = &registers[64 * t + 16 * e];
                  std::copy_n(&in[kBytes + 64 * t + 16 * e], width, to);
                  if (!runs) continue;
                  if (e != left_out) {
                    const bool negative = type[0] == 's' && in[at + e * bytes + bytes - 1] >= 128;
                    std::fill_n(to, width, static_cast<uint8_t>(negative ? 255 : 0));
                    std::copy_n(&in[at + e * bytes], bytes, to);
                  }
                  std::copy_n(&in[2 * kBytes + 64 * t + 16 * e], bytes, &moved[at + e * bytes]);
                }
              }
              std::vector<uint8_t> got = output.values();
              ASSERT_TRUE(std::equal(moved.begin(), moved.end(), got.begin()))
                  << "st" << form << space << " of " << w << (backwards ? " backwards" : "") << guard;
              ASSERT_TRUE(std::equal(registers.begin(), registers.end(), got.begin() + kBytes))
                  << "ld" << form << space << " of " << w << (backwards ? " backwards" : "") << guard;
            }
          }
        }
      }
    }
  }
}

// The parameters of a kernel, whatever type they are read as, by some lanes and with an element left out.
TEST(WarpForms, KernelParametersOfEveryWidth) {
  std::vector<uint8_t> params(64);
  for (uint8_t& byte : params) byte = static_cast<uint8_t>(rng()());
  for (const std::string type : {"b8", "u8", "s8", "b16", "s16", "u32", "s32", "f32", "b64", "s64", "b128"}) {
    const auto bytes = static_cast<size_t>(std::stoi(type.substr(1))) / 8;
    for (const size_t count : {size_t{1}, size_t{2}, size_t{4}}) {
      for (const size_t width : {size_t{4}, size_t{8}, size_t{16}}) {
        if (bytes * count > 16 || width < bytes || (width == 16) != (bytes == 16)) continue;
        const std::string w = std::to_string(8 * width);
        for (size_t left_out = 0; left_out <= count; ++left_out) {
          if (count == 1 && left_out == 0) continue;
          std::string list, text =
                                ".entry k(.param .align 16 .b8 p[64], .param .u64 p_out) {\n.reg .b32 %x; .reg .b64 "
                                "%out, %d; .reg .pred %p; .reg .b" +
                                w +
                                " %a<4>;\n  ld.param.u64 %out, [p_out];\n"
                                "  mov.u32 %x, %tid.x;\n  mul.wide.u32 %d, %x, 64;\n  add.u64 %out, %out, %d;\n"
                                "  and.b32 %x, %x, 5;\n  setp.eq.u32 %p, %x, 4;\n";
          for (size_t e = 0; e < count; ++e) {
            const std::string name = "%a" + std::to_string(e);
            text += "  ld.global.b" + w + " " + name + ", [%out+" + std::to_string(16 * e) + "];\n";
            list += (e ? ", " : "") + (e == left_out ? "_" : name);
          }
          text +=
              "  @%p ld.param" +
              (count > 1 ? ".v" + std::to_string(count) + "." + type + " {" + list + "}" : "." + type + " " + list) +
              ", [p+32];\n";
          for (size_t e = 0; e < count; ++e)
            text += "  st.global.b" + w + " [%out+" + std::to_string(16 * e) + "], %a" + std::to_string(e) + ";\n";
          sim::GlobalMemory memory;
          Buffer<uint8_t> out(memory, size_t{2048}, uint8_t{0x5a});
          Params all;
          for (const uint8_t byte : params) all.add(byte);
          run_ptx(text + "  ret;\n}\n", "k", all.add(out.address()), memory, {});
          std::vector<uint8_t> expected(2048, 0x5a);
          for (size_t lane = 0; lane < 32; ++lane) {
            for (size_t e = 0; e < count; ++e) {
              if ((lane & 5) != 4 || e == left_out) continue;
              const uint8_t* const from = &params[32 + e * bytes];
              uint8_t* const to = &expected[64 * lane + 16 * e];
              std::fill_n(to, width, static_cast<uint8_t>(type[0] == 's' && from[bytes - 1] >= 128 ? 255 : 0));
              std::copy_n(from, bytes, to);
            }
          }
          ASSERT_EQ(out.values(), expected) << text;
        }
      }
    }
  }
}

TEST(WarpForms, RegistersKeepTheirValues) {
  for (const sim::Order& order : all_orders()) {
    const auto in = random_input();
    const auto got = run_threads(
        "  setmaxnreg.dec.sync.aligned.u32 64;\n  xor.b32 %x0, %r0, %r1;\n  setmaxnreg.inc.sync.aligned.u32 128;\n"
        "  st.global.v4.u32 [%out], {%r0, %r1, %r2, %r3};\n  st.global.v4.u32 [%out+16], {%r4, %r5, %r6, %x0};\n",
        in, order);
    for (uint32_t t = 0; t < kThreads; ++t) {
      for (uint32_t word = 0; word < 7; ++word) EXPECT_EQ(got[t * kWords + word], in[t * kWords + word]);
      EXPECT_EQ(got[t * kWords + 7], in[t * kWords] ^ in[t * kWords + 1]);
    }
  }
}

}  // namespace
