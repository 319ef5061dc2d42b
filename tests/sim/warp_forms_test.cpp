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
.visible .entry k(.param .u64 p_in, .param .u64 p_out) {
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
    for (const std::string space : {"shared", "global"}) {
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
        const std::string body =
            "  mov.b64 %d0, {%r0, %r1};\n  mov.b64 %d1, {%r2, %r3};\n  mov.b64 %d2, {%r4, %r5};\n  st." + space +
            ".b64 " + place + ", %d0;\n  mov.b64 %d4, 0;\n  " + (result ? "atom." : "red.") + space + "." + name + " " +
            (result ? (wide ? "%d4, " : "%x0, ") : std::string()) + place + ", " + operand(2) +
            (cas ? ", " + operand(4) : "") + ";\n" + (result && !wide ? "  cvt.u64.u32 %d4, %x0;\n" : "") + "  ld." +
            space + ".b64 %d5, " + place + ";\n  st.global.b64 [%out], %d4;\n  st.global.b64 [%out+8], %d5;\n";
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

// 9.4.1: what is loaded is extended to the register by its sign or zeros, what is stored is cut off.
TEST(WarpForms, LoadsAndStoresOfEveryWidth) {
  for (const std::string space : {"shared", "global", "local"}) {
    const std::string place = space == "shared" ? "[%s]" : space == "global" ? "[%out+16]" : "[own]";
    const std::string head = std::string("  .local .align 16 .b8 own[16];\n  st.") + space + ".v4.u32 " + place +
                             ", {%r0, %r1, %r2, %r3};\n";
    for (const std::string type : {"u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"}) {
      for (const size_t count : {size_t{1}, size_t{2}, size_t{4}}) {
        const auto bits = static_cast<size_t>(std::stoi(type.substr(1)));
        if (bits * count > 128) continue;
        const std::string form = space + (count > 1 ? ".v" + std::to_string(count) : "") + "." + type;
        std::string vector;
        for (size_t e = 0; e < count; ++e) vector += (e ? ", %d" : "%d") + std::to_string(e);
        if (count > 1) vector = "{" + vector + "}";
        const auto in = random_input();
        // The bits of element e of the 16 bytes at `words`.
        const auto element = [&](const uint32_t* words, size_t e) {
          uint64_t value = 0;
          for (size_t bit = 0; bit < bits; ++bit)
            value |= uint64_t{words[(e * bits + bit) / 32] >> (e * bits + bit) % 32 & 1} << bit;
          return value;
        };
        const auto loaded = run_threads(head +
                                            "  mov.b64 %d0, 0;\n  mov.b64 %d1, 0;\n  mov.b64 %d2, 0;\n"
                                            "  mov.b64 %d3, 0;\n  ld." +
                                            form + " " + vector + ", " + place +
                                            ";\n  st.global.v2.u64 [%out], {%d0, %d1};\n"
                                            "  st.global.v2.u64 [%out+16], {%d2, %d3};\n",
                                        in, all_orders()[rng()() % all_orders().size()]);
        const auto stored =
            run_threads(head +
                            "  mov.b64 %d0, {%r4, %r5};\n  mov.b64 %d1, {%r6, %r7};\n"
                            "  mov.b64 %d2, {%r1, %r2};\n  mov.b64 %d3, {%r3, %r0};\n  st." +
                            form + " " + place + ", " + vector + ";\n  ld." + space + ".v4.u32 {%x0, %x1, %x2, %x3}, " +
                            place + ";\n  st.global.v4.u32 [%out], {%x0, %x1, %x2, %x3};\n",
                        in, all_orders()[rng()() % all_orders().size()]);
        for (uint32_t t = 0; t < kThreads; ++t) {
          const uint32_t* const words = &in[t * kWords];
          const uint32_t sources[] = {words[4], words[5], words[6], words[7], words[1], words[2], words[3], words[0]};
          std::vector<uint32_t> memory(words, words + 4);
          for (size_t e = 0; e < count; ++e) {
            uint64_t want = element(words, e);
            if (type[0] == 's' && bits < 64 && want >> (bits - 1) != 0) want |= ~uint64_t{0} << bits;
            const uint32_t* const got = &loaded[t * kWords + 2 * e];
            EXPECT_EQ(got[0] | uint64_t{got[1]} << 32, want) << "ld." << form;
            for (size_t bit = 0; bit < bits; ++bit) {
              const size_t to = e * bits + bit;
              const uint32_t one = sources[2 * e + bit / 32] >> bit % 32 & 1;
              memory[to / 32] = (memory[to / 32] & ~(1u << to % 32)) | one << to % 32;
            }
          }
          for (size_t word = 0; word < 4; ++word) EXPECT_EQ(stored[t * kWords + word], memory[word]) << "st." << form;
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
