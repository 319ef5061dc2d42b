// SPDX-License-Identifier: Apache-2.0
// Plain arithmetic of the simulator, instruction by instruction, against references computed another way: wide
// integers, 128-bit floats, or the bit loops of the PTX ISA. Every case runs as PTX, in whole and in partial warps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <random>

#include "sim/isa/elementary.h"
#include "tests/sim/formats.h"
#include "tests/sim/run_ptx.h"

namespace {

using namespace sim_test;
using testing::HasSubstr;

// One input: up to three operands, each in the low bits.
struct In {
  uint64_t a = 0, b = 0, c = 0;
};

// The register that holds an operand: 'h' 16 bits, 'w' 32, 'd' 64, 'p' predicate (low bit of the operand).
std::string load(char kind, const char* name, int offset) {
  const std::string at = "[%in+" + std::to_string(offset) + "];\n";
  const std::string n(name);
  switch (kind) {
    case 'h':
      return ".reg .b16 %" + n + "; ld.global.u16 %" + n + ", " + at;
    case 'w':
      return ".reg .b32 %" + n + "; ld.global.u32 %" + n + ", " + at;
    case 'd':
      return ".reg .b64 %" + n + "; ld.global.u64 %" + n + ", " + at;
    default:
      return ".reg .pred %" + n + "; .reg .b32 %w" + n + "; ld.global.u32 %w" + n + ", " + at + "setp.ne.u32 %" + n +
             ", %w" + n + ", 0;\n";
  }
}

// kinds: destination first, "ww" for a 32-bit result of one 32-bit operand. In the code the registers are %d, %a, %b,
// %c; the destination starts as all ones.
std::string program(const std::string& code, const std::string& kinds) {
  std::string text =
      ".visible .entry k(.param .u64 p_in, .param .u64 p_out, .param .u32 p_n) {\n"
      ".reg .b64 %in, %out, %t; .reg .b32 %i, %n, %x, %y; .reg .pred %stop;\n"
      "ld.param.u64 %in, [p_in]; ld.param.u64 %out, [p_out]; ld.param.u32 %n, [p_n];\n"
      "mov.u32 %x, %ctaid.x; mov.u32 %y, %ntid.x; mov.u32 %i, %tid.x; mad.lo.u32 %i, %x, %y, %i;\n"
      "setp.ge.u32 %stop, %i, %n; @%stop ret;\n"
      "mad.wide.u32 %in, %i, 24, %in; mad.wide.u32 %out, %i, 8, %out;\n";
  static const char* kNames[] = {"a", "b", "c"};
  for (size_t i = 1; i < kinds.size(); ++i) text += load(kinds[i], kNames[i - 1], static_cast<int>(i - 1) * 8);
  const char d = kinds[0];
  if (d == 'p')
    text += ".reg .pred %d; .reg .b32 %wd; mov.pred %d, 1;\n" + code +
            "\nselp.b32 %wd, 1, 0, %d; st.global.u32 [%out], %wd;";
  else if (d == 'h')
    text += ".reg .b16 %d; mov.b16 %d, -1;\n" + code + "\nst.global.u16 [%out], %d;";
  else if (d == 'w')
    text += ".reg .b32 %d; mov.b32 %d, -1;\n" + code + "\nst.global.u32 [%out], %d;";
  else
    text += ".reg .b64 %d; mov.b64 %d, -1;\n" + code + "\nst.global.u64 [%out], %d;";
  return text + "\nret; }\n";
}

// What Hopper lacks runs as sm_100a.
bool is_blackwell(const std::string& code) {
  for (const char* mark : {"f32x2", "e2m1", "e2m3", "e3m2", "ue8m0", ".f32.f16", ".f32.bf16 %d, %a, %b",
                           "min.f32 %d, %a, %b, %c", "max.f32 %d, %a, %b, %c", "cvt.rs"})
    if (code.find(mark) != std::string::npos) return true;
  return false;
}

std::vector<uint64_t> evaluate(const std::string& code, const std::string& kinds, const std::vector<In>& inputs) {
  sim::GlobalMemory memory;
  std::vector<uint64_t> flat;
  for (const In& in : inputs) flat.insert(flat.end(), {in.a, in.b, in.c});
  Buffer<uint64_t> in(memory, flat), out(memory, inputs.size(), uint64_t{0});
  sim_test::Shape shape;
  shape.arch = is_blackwell(code) ? 100 : 90;
  shape.block = {128, 1, 1};
  shape.grid = {static_cast<uint32_t>((inputs.size() + 127) / 128), 1, 1};
  sim_test::run_ptx(program(code, kinds), "k",
                    Params().add(in.address()).add(out.address()).add(static_cast<uint32_t>(inputs.size())), memory,
                    shape);
  return out.values();
}

const std::vector<uint64_t>& edges() {
  static const std::vector<uint64_t> values = {0,
                                               1,
                                               2,
                                               3,
                                               5,
                                               7,
                                               31,
                                               32,
                                               33,
                                               63,
                                               64,
                                               65,
                                               127,
                                               128,
                                               255,
                                               256,
                                               0x7fff,
                                               0x8000,
                                               0xffff,
                                               0x10000,
                                               0x7fffffff,
                                               0x80000000,
                                               0x80000001,
                                               0xffffffff,
                                               0x100000000,
                                               0x7fffffffffffffff,
                                               0x8000000000000000,
                                               0xffffffffffffffff,
                                               0xfffffffffffffffe,
                                               0xaaaaaaaaaaaaaaaa,
                                               0x123456789abcdef0};
  return values;
}

// Edges against edges, then random bits. Not a multiple of 32.
std::vector<In> integer_inputs(size_t random = 1500) {
  std::vector<In> inputs;
  std::mt19937_64 rng(11);
  for (uint64_t a : edges())
    for (uint64_t b : edges()) inputs.push_back({a, b, edges()[rng() % edges().size()]});
  for (size_t i = 0; i < random; ++i) {
    const int shift = static_cast<int>(rng() % 64);
    inputs.push_back({rng() >> shift, rng() >> (rng() % 64), rng() >> (rng() % 64)});
  }
  while (inputs.size() % 32 != 5) inputs.push_back({rng(), rng(), rng()});
  return inputs;
}

using Reference = std::function<uint64_t(uint64_t, uint64_t, uint64_t)>;

void check(const std::string& code, const std::string& kinds, const Reference& reference,
           const std::vector<In>& inputs = integer_inputs()) {
  SCOPED_TRACE(code);
  const auto narrow = [](char kind, uint64_t v) {
    return kind == 'h' ? v & 0xffff : kind == 'w' ? v & 0xffffffff : kind == 'p' ? v != 0 : v;
  };
  const std::vector<uint64_t> results = evaluate(code, kinds, inputs);
  int shown = 0;
  for (size_t i = 0; i < inputs.size() && shown < 3; ++i) {
    const auto operand = [&](size_t n, uint64_t v) {
      return n < kinds.size() ? narrow(kinds[n] == 'p' ? 'w' : kinds[n], v) : 0;
    };
    const uint64_t a = operand(1, inputs[i].a), b = operand(2, inputs[i].b), c = operand(3, inputs[i].c);
    const uint64_t expected = narrow(kinds[0], reference(a, b, c));
    if (results[i] == expected) continue;
    ++shown;
    ADD_FAILURE() << std::hex << "a=" << a << " b=" << b << " c=" << c << " gives " << results[i] << ", expected "
                  << expected;
  }
}

// The same instruction for u16 .. s64; {T} in the code is the type, {W} the one twice as wide.
template <class T>
void check_typed(std::string code, const std::string& type, const std::string& wide, std::string kinds,
                 const std::function<__int128(__int128, __int128, __int128)>& reference,
                 const std::vector<In>& inputs) {
  for (size_t at; (at = code.find("{T}")) != std::string::npos;) code.replace(at, 3, type);
  for (size_t at; (at = code.find("{W}")) != std::string::npos;) code.replace(at, 3, wide);
  const char own = sizeof(T) == 2 ? 'h' : sizeof(T) == 4 ? 'w' : 'd';
  for (char& k : kinds) k = k == 'T' ? own : k == 'W' ? (own == 'h' ? 'w' : 'd') : k;
  check(
      code, kinds,
      [&](uint64_t a, uint64_t b, uint64_t c) {
        return static_cast<uint64_t>(reference(static_cast<T>(a), static_cast<T>(b), static_cast<T>(c)));
      },
      inputs);
}
void check_integers(const std::string& code, const std::string& kinds,
                    const std::function<__int128(__int128, __int128, __int128)>& reference, bool narrow = true,
                    bool wide = true, bool unsigned_too = true) {
  const std::vector<In> inputs = integer_inputs(300);
  if (narrow) {
    if (unsigned_too) check_typed<uint16_t>(code, "u16", "u32", kinds, reference, inputs);
    check_typed<int16_t>(code, "s16", "s32", kinds, reference, inputs);
  }
  if (unsigned_too) check_typed<uint32_t>(code, "u32", "u64", kinds, reference, inputs);
  check_typed<int32_t>(code, "s32", "s64", kinds, reference, inputs);
  if (!wide) return;
  if (unsigned_too) check_typed<uint64_t>(code, "u64", "", kinds, reference, inputs);
  check_typed<int64_t>(code, "s64", "", kinds, reference, inputs);
}

// ---- integers ------------------------------------------------------------------------------------

TEST(Integer, AddSubMinMax) {
  check_integers("add.{T} %d, %a, %b;", "TTT", [](auto a, auto b, auto) { return a + b; });
  check_integers("sub.{T} %d, %a, %b;", "TTT", [](auto a, auto b, auto) { return a - b; });
  check_integers("min.{T} %d, %a, %b;", "TTT", [](auto a, auto b, auto) { return std::min(a, b); });
  check_integers("max.{T} %d, %a, %b;", "TTT", [](auto a, auto b, auto) { return std::max(a, b); });
  check_integers("sad.{T} %d, %a, %b, %c;", "TTTT", [](auto a, auto b, auto c) { return c + (a < b ? b - a : a - b); });
}

TEST(Integer, AbsNegOfSignedTypes) {
  check_integers(
      "abs.{T} %d, %a;", "TT", [](auto a, auto, auto) { return a < 0 ? -a : a; }, true, true, false);
  check_integers(
      "neg.{T} %d, %a;", "TT", [](auto a, auto, auto) { return -a; }, true, true, false);
}

TEST(Integer, Products) {
  check_integers("mul.lo.{T} %d, %a, %b;", "TTT", [](auto a, auto b, auto) {
    return static_cast<__int128>(static_cast<unsigned __int128>(a) * static_cast<unsigned __int128>(b));
  });
  check_integers("mad.lo.{T} %d, %a, %b, %c;", "TTTT", [](auto a, auto b, auto c) {
    return static_cast<__int128>(static_cast<unsigned __int128>(a) * static_cast<unsigned __int128>(b) +
                                 static_cast<unsigned __int128>(c));
  });
  check_integers(
      "mul.wide.{T} %d, %a, %b;", "WTT", [](auto a, auto b, auto) { return a * b; }, true, false);
  check("mad.wide.s32 %d, %a, %b, %c;", "dwwd", [](uint64_t a, uint64_t b, uint64_t c) {
    return static_cast<uint64_t>(int64_t{static_cast<int32_t>(a)} * static_cast<int32_t>(b)) + c;
  });
  const auto inputs = integer_inputs(300);
  check("mul.hi.u16 %d, %a, %b;", "hhh", [](uint64_t a, uint64_t b, uint64_t) { return a * b >> 16; });
  check("mul.hi.s16 %d, %a, %b;", "hhh", [](uint64_t a, uint64_t b, uint64_t) {
    return static_cast<uint64_t>(int32_t{static_cast<int16_t>(a)} * static_cast<int16_t>(b) >> 16);
  });
  check("mul.hi.u32 %d, %a, %b;", "www", [](uint64_t a, uint64_t b, uint64_t) { return a * b >> 32; });
  check("mul.hi.s32 %d, %a, %b;", "www", [](uint64_t a, uint64_t b, uint64_t) {
    return static_cast<uint64_t>(int64_t{static_cast<int32_t>(a)} * static_cast<int32_t>(b) >> 32);
  });
  check("mul.hi.u64 %d, %a, %b;", "ddd", [](uint64_t a, uint64_t b, uint64_t) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
  });
  check("mul.hi.s64 %d, %a, %b;", "ddd", [](uint64_t a, uint64_t b, uint64_t) {
    return static_cast<uint64_t>(static_cast<__int128>(static_cast<int64_t>(a)) * static_cast<int64_t>(b) >> 64);
  });
  check("mad.hi.u32 %d, %a, %b, %c;", "wwww", [](uint64_t a, uint64_t b, uint64_t c) { return (a * b >> 32) + c; });
  const auto low24 = [](uint64_t v) { return static_cast<int64_t>(v << 40) >> 40; };
  check("mul24.lo.s32 %d, %a, %b;", "www",
        [&](uint64_t a, uint64_t b, uint64_t) { return static_cast<uint64_t>(low24(a) * low24(b)); });
  check("mul24.hi.s32 %d, %a, %b;", "www",
        [&](uint64_t a, uint64_t b, uint64_t) { return static_cast<uint64_t>(low24(a) * low24(b) >> 16); });
  check("mul24.lo.u32 %d, %a, %b;", "www",
        [](uint64_t a, uint64_t b, uint64_t) { return (a & 0xffffff) * (b & 0xffffff); });
  check("mad24.hi.u32 %d, %a, %b, %c;", "wwww",
        [](uint64_t a, uint64_t b, uint64_t c) { return ((a & 0xffffff) * (b & 0xffffff) >> 16) + c; });
}

TEST(Integer, Saturation) {
  const auto clamp = [](int64_t v) { return static_cast<uint64_t>(std::clamp<int64_t>(v, INT32_MIN, INT32_MAX)); };
  check("add.sat.s32 %d, %a, %b;", "www", [&](uint64_t a, uint64_t b, uint64_t) {
    return clamp(int64_t{static_cast<int32_t>(a)} + static_cast<int32_t>(b));
  });
  check("sub.sat.s32 %d, %a, %b;", "www", [&](uint64_t a, uint64_t b, uint64_t) {
    return clamp(int64_t{static_cast<int32_t>(a)} - static_cast<int32_t>(b));
  });
  check("mad.hi.sat.s32 %d, %a, %b, %c;", "wwww", [&](uint64_t a, uint64_t b, uint64_t c) {
    return clamp((int64_t{static_cast<int32_t>(a)} * static_cast<int32_t>(b) >> 32) + static_cast<int32_t>(c));
  });
  check("max.relu.s32 %d, %a, %b;", "www", [](uint64_t a, uint64_t b, uint64_t) {
    return static_cast<uint64_t>(std::max({static_cast<int32_t>(a), static_cast<int32_t>(b), 0}));
  });
}

TEST(Integer, PackedHalves) {
  const auto each = [](uint64_t a, uint64_t b, auto op) {
    return (op(a, b) & 0xffff) | (op(a >> 16, b >> 16) & 0xffff) << 16;
  };
  check("add.u16x2 %d, %a, %b;", "www",
        [&](uint64_t a, uint64_t b, uint64_t) { return each(a, b, [](uint64_t x, uint64_t y) { return x + y; }); });
  check("min.s16x2 %d, %a, %b;", "www", [&](uint64_t a, uint64_t b, uint64_t) {
    return each(a, b, [](uint64_t x, uint64_t y) {
      return static_cast<uint64_t>(std::min(static_cast<int16_t>(x), static_cast<int16_t>(y)));
    });
  });
}

TEST(Integer, DivisionRoundsToZeroAndNeverTraps) {
  check_integers("div.{T} %d, %a, %b;", "TTT",
                 [](auto a, auto b, auto) { return b == 0 ? static_cast<__int128>(-1) : a / b; });
  check_integers("rem.{T} %d, %a, %b;", "TTT", [](auto a, auto b, auto) { return b == 0 ? a : a % b; });
}

TEST(Integer, CarryChains) {
  // {c, b} * 3 + a over three words, and a 128-bit difference, by the flag.
  check(
      ".reg .b32 %l, %h, %e; .reg .b32 %al, %ah, %bl, %bh; mov.b64 {%al, %ah}, %a; mov.b64 {%bl, %bh}, %b;"
      "add.cc.u32 %l, %al, %bl; addc.cc.u32 %h, %ah, %bh; addc.u32 %e, 0, 0; shl.b32 %e, %e, 4; xor.b32 %h, %h, %e; "
      "mov.b64 %d, {%l, %h};",
      "ddd", [](uint64_t a, uint64_t b, uint64_t) {
        const auto sum = static_cast<unsigned __int128>(a) + b;
        return static_cast<uint64_t>(sum) ^ static_cast<uint64_t>(sum >> 64) << 36;
      });
  check(
      ".reg .b32 %l, %h, %e; .reg .b32 %al, %ah, %bl, %bh; mov.b64 {%al, %ah}, %a; mov.b64 {%bl, %bh}, %b;"
      "sub.cc.u32 %l, %al, %bl; subc.cc.u32 %h, %ah, %bh; subc.u32 %e, 0, 0; xor.b32 %h, %h, %e; mov.b64 %d, {%l, %h};",
      "ddd", [](uint64_t a, uint64_t b, uint64_t) { return (a - b) ^ (a < b ? 0xffffffff00000000ull : 0); });
  // From one kind to the other the flag is the carry of the sum with the complement.
  check(".reg .b32 %q; sub.cc.u32 %q, %a, %b; addc.u32 %d, %c, 0;", "wwww",
        [](uint64_t a, uint64_t b, uint64_t c) { return static_cast<uint32_t>(c + (a >= b)); });
  check(".reg .b32 %q; add.cc.u32 %q, %a, %b; subc.u32 %d, %c, 0;", "wwww",
        [](uint64_t a, uint64_t b, uint64_t c) { return static_cast<uint32_t>(c - ((a + b) >> 32 == 0)); });
  // 64 x 64 -> 128 by 32-bit pieces: the high word.
  check(
      ".reg .b32 %al, %ah, %bl, %bh, %r0, %r1, %r2, %r3; mov.b64 {%al, %ah}, %a; mov.b64 {%bl, %bh}, %b;"
      "mul.lo.u32 %r0, %al, %bl; mul.hi.u32 %r1, %al, %bl; mad.lo.cc.u32 %r1, %al, %bh, %r1; madc.hi.u32 %r2, %al, "
      "%bh, 0;"
      "mad.lo.cc.u32 %r1, %ah, %bl, %r1; madc.hi.cc.u32 %r2, %ah, %bl, %r2; madc.hi.u32 %r3, %ah, %bh, 0;"
      "mad.lo.cc.u32 %r2, %ah, %bh, %r2; addc.u32 %r3, %r3, 0; mov.b64 %d, {%r2, %r3};",
      "ddd", [](uint64_t a, uint64_t b, uint64_t) {
        return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
      });
  check("add.cc.u64 %t, %a, %b; addc.u64 %d, %c, 0;", "dddd",
        [](uint64_t a, uint64_t b, uint64_t c) { return c + (a + b < a); });
}

TEST(Integer, BitCounting) {
  check("popc.b32 %d, %a;", "ww", [](uint64_t a, uint64_t, uint64_t) {
    uint64_t n = 0;
    for (; a; a >>= 1) n += a & 1;
    return n;
  });
  check("popc.b64 %d, %a;", "wd", [](uint64_t a, uint64_t, uint64_t) {
    uint64_t n = 0;
    for (; a; a >>= 1) n += a & 1;
    return n;
  });
  const auto clz = [](uint64_t a, int width) {
    uint64_t n = 0;
    while (n < static_cast<uint64_t>(width) && !(a >> (width - 1 - n) & 1)) ++n;
    return n;
  };
  check("clz.b32 %d, %a;", "ww", [&](uint64_t a, uint64_t, uint64_t) { return clz(a, 32); });
  check("clz.b64 %d, %a;", "wd", [&](uint64_t a, uint64_t, uint64_t) { return clz(a, 64); });
  const auto bfind = [](uint64_t a, int msb, bool is_signed, bool shift) -> uint64_t {
    if (is_signed && a >> msb & 1) a = ~a;
    for (int i = msb; i >= 0; --i)
      if (a >> i & 1) return static_cast<uint64_t>(shift ? msb - i : i);
    return 0xffffffff;
  };
  check("bfind.u32 %d, %a;", "ww", [&](uint64_t a, uint64_t, uint64_t) { return bfind(a, 31, false, false); });
  check("bfind.shiftamt.s32 %d, %a;", "ww", [&](uint64_t a, uint64_t, uint64_t) { return bfind(a, 31, true, true); });
  check("bfind.s64 %d, %a;", "wd", [&](uint64_t a, uint64_t, uint64_t) { return bfind(a, 63, true, false); });
  const auto reverse = [](uint64_t a, int n) {
    uint64_t r = 0;
    for (int i = 0; i < n; ++i) r |= (a >> i & 1) << (n - 1 - i);
    return r;
  };
  check("brev.b32 %d, %a;", "ww", [&](uint64_t a, uint64_t, uint64_t) { return reverse(a, 32); });
  check("brev.b64 %d, %a;", "dd", [&](uint64_t a, uint64_t, uint64_t) { return reverse(a, 64); });
  check("fns.b32 %d, %a, 5, -2;", "ww", [](uint64_t a, uint64_t, uint64_t) {
    int found = 0;
    for (int i = 5; i >= 0; --i)
      if (a >> i & 1 && ++found == 2) return static_cast<uint64_t>(i);
    return uint64_t{0xffffffff};
  });
}

TEST(Integer, BitFields) {  // the loops of 9.7.1.19 and 9.7.1.20; an H200 cuts no position or length of a 64-bit form
  const auto bfe = [](uint64_t a, uint64_t b, uint64_t c, int msb, bool is_signed) {
    const int64_t cut = msb == 31 ? 0xff : 0xffffffff;
    const int64_t pos = static_cast<int64_t>(b) & cut, len = static_cast<int64_t>(c) & cut;
    const uint64_t sbit = !is_signed || len == 0 ? 0 : a >> std::min<int64_t>(pos + len - 1, msb) & 1;
    uint64_t d = 0;
    for (int i = 0; i <= msb; ++i) d |= (i < len && pos + i <= msb ? a >> (pos + i) & 1 : sbit) << i;
    return d;
  };
  for (const bool is_signed : {false, true}) {
    check(is_signed ? "bfe.s32 %d, %a, %b, %c;" : "bfe.u32 %d, %a, %b, %c;", "wwww",
          [&](uint64_t a, uint64_t b, uint64_t c) { return bfe(a, b, c, 31, is_signed); });
    check(is_signed ? "bfe.s64 %d, %a, %b, %c;" : "bfe.u64 %d, %a, %b, %c;", "ddww",
          [&](uint64_t a, uint64_t b, uint64_t c) { return bfe(a, b, c, 63, is_signed); });
  }
  for (const auto& [pos, len] : std::vector<std::pair<int, int>>{
           {0, 0}, {3, 7}, {30, 9}, {0, 32}, {31, 1}, {32, 4}, {5, 64}, {70, 3}, {0, 255}}) {
    const auto bfi = [pos = pos, len = len](uint64_t a, uint64_t b, int msb) {
      for (int i = 0; i < len && pos + i <= msb; ++i) b = (b & ~(1ull << (pos + i))) | (a >> i & 1) << (pos + i);
      return b;
    };
    const std::string tail = std::to_string(pos) + ", " + std::to_string(len) + ";";
    check("bfi.b32 %d, %a, %b, " + tail, "www", [&](uint64_t a, uint64_t b, uint64_t) { return bfi(a, b, 31); });
    check("bfi.b64 %d, %a, %b, " + tail, "ddd", [&](uint64_t a, uint64_t b, uint64_t) { return bfi(a, b, 63); });
  }
}

TEST(Integer, MasksExtensionsAndDotProducts) {
  for (const bool clamp : {true, false}) {
    check(clamp ? "bmsk.clamp.b32 %d, %a, %b;" : "bmsk.wrap.b32 %d, %a, %b;", "www",
          [&](uint64_t a, uint64_t b, uint64_t) {
            if (clamp && a >= 32) return uint64_t{0};
            const uint64_t width = clamp ? std::min<uint64_t>(b, 32) : b & 31;
            uint64_t d = 0;
            for (uint64_t i = 0; i < width; ++i)
              if ((a & 31) + i < 32) d |= 1ull << ((a & 31) + i);
            return d;
          });
    check(clamp ? "szext.clamp.s32 %d, %a, %b;" : "szext.wrap.s32 %d, %a, %b;", "www",
          [&](uint64_t a, uint64_t b, uint64_t) {
            if (clamp && b >= 32) return a;
            const int n = static_cast<int>(b & 31);
            return n == 0 ? 0 : static_cast<uint64_t>(static_cast<int64_t>(a << (64 - n)) >> (64 - n));
          });
  }
  check("dp4a.s32.u32 %d, %a, %b, %c;", "wwww", [](uint64_t a, uint64_t b, uint64_t c) {
    for (int i = 0; i < 4; ++i)
      c += static_cast<uint64_t>(int64_t{static_cast<int8_t>(a >> 8 * i)} * static_cast<uint8_t>(b >> 8 * i));
    return c;
  });
  check("dp2a.hi.u32.s32 %d, %a, %b, %c;", "wwww", [](uint64_t a, uint64_t b, uint64_t c) {
    for (int i = 0; i < 2; ++i)
      c += static_cast<uint64_t>(int64_t{static_cast<uint16_t>(a >> 16 * i)} * static_cast<int8_t>(b >> (16 + 8 * i)));
    return c;
  });
}

// ---- logic, shifts, comparisons ------------------------------------------------------------------

TEST(Logic, BitwiseOnEveryWidthAndOnPredicates) {
  for (const auto& [width, kind] :
       std::vector<std::pair<std::string, char>>{{"b16", 'h'}, {"b32", 'w'}, {"b64", 'd'}}) {
    const std::string three(3, kind);
    check("and." + width + " %d, %a, %b;", three, [](uint64_t a, uint64_t b, uint64_t) { return a & b; });
    check("or." + width + " %d, %a, %b;", three, [](uint64_t a, uint64_t b, uint64_t) { return a | b; });
    check("xor." + width + " %d, %a, %b;", three, [](uint64_t a, uint64_t b, uint64_t) { return a ^ b; });
    check("not." + width + " %d, %a;", three.substr(1), [](uint64_t a, uint64_t, uint64_t) { return ~a; });
    check("cnot." + width + " %d, %a;", three.substr(1),
          [](uint64_t a, uint64_t, uint64_t) { return uint64_t{a == 0}; });
  }
  check("and.pred %d, %a, %b;", "ppp", [](uint64_t a, uint64_t b, uint64_t) { return uint64_t{a != 0 && b != 0}; });
  check("or.pred %d, %a, %b;", "ppp", [](uint64_t a, uint64_t b, uint64_t) { return uint64_t{a != 0 || b != 0}; });
  check("xor.pred %d, %a, %b;", "ppp", [](uint64_t a, uint64_t b, uint64_t) { return uint64_t{(a != 0) != (b != 0)}; });
  check("not.pred %d, %a;", "pp", [](uint64_t a, uint64_t, uint64_t) { return uint64_t{a == 0}; });
}

TEST(Logic, Lop3HasEveryTable) {
  const std::vector<In> inputs = integer_inputs(20);
  for (int lut = 0; lut < 256; ++lut) {
    check(
        "lop3.b32 %d, %a, %b, %c, " + std::to_string(lut) + ";", "wwww",
        [lut](uint64_t a, uint64_t b, uint64_t c) {
          uint64_t d = 0;
          for (int i = 0; i < 32; ++i)
            d |= static_cast<uint64_t>(lut >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i;
          return d;
        },
        inputs);
  }
  check(".reg .pred %q; setp.gt.u32 %q, %c, 5; lop3.and.b32 _|%d, %a, %b, 0, 0xc0, %q;", "pwww",
        [](uint64_t a, uint64_t b, uint64_t c) { return uint64_t{(a & b) != 0 && c > 5}; });
}

TEST(Logic, ShiftsClampAndWrap) {
  check("shl.b16 %d, %a, %b;", "hhw", [](uint64_t a, uint64_t b, uint64_t) { return b > 15 ? 0 : a << b; });
  check("shl.b32 %d, %a, %b;", "www", [](uint64_t a, uint64_t b, uint64_t) { return b > 31 ? 0 : a << b; });
  check("shl.b64 %d, %a, %b;", "ddw", [](uint64_t a, uint64_t b, uint64_t) { return b > 63 ? 0 : a << b; });
  check("shr.u32 %d, %a, %b;", "www", [](uint64_t a, uint64_t b, uint64_t) { return b > 31 ? 0 : a >> b; });
  check("shr.b64 %d, %a, %b;", "ddw", [](uint64_t a, uint64_t b, uint64_t) { return b > 63 ? 0 : a >> b; });
  check("shr.s16 %d, %a, %b;", "hhw", [](uint64_t a, uint64_t b, uint64_t) {
    return static_cast<uint64_t>(static_cast<int16_t>(a) >> std::min<uint64_t>(b, 15));
  });
  check("shr.s64 %d, %a, %b;", "ddw", [](uint64_t a, uint64_t b, uint64_t) {
    return static_cast<uint64_t>(static_cast<int64_t>(a) >> std::min<uint64_t>(b, 63));
  });
  const auto shf = [](uint64_t a, uint64_t b, uint64_t n, bool left) {
    const auto both = static_cast<unsigned __int128>(b << 32 | a);
    return left ? static_cast<uint64_t>((both << n) >> 32) : static_cast<uint64_t>(both >> n);
  };
  check("shf.l.wrap.b32 %d, %a, %b, %c;", "wwww",
        [&](uint64_t a, uint64_t b, uint64_t c) { return shf(a, b, c & 31, true); });
  check("shf.r.wrap.b32 %d, %a, %b, %c;", "wwww",
        [&](uint64_t a, uint64_t b, uint64_t c) { return shf(a, b, c & 31, false); });
  check("shf.l.clamp.b32 %d, %a, %b, %c;", "wwww",
        [&](uint64_t a, uint64_t b, uint64_t c) { return shf(a, b, std::min<uint64_t>(c, 32), true); });
  check("shf.r.clamp.b32 %d, %a, %b, %c;", "wwww",
        [&](uint64_t a, uint64_t b, uint64_t c) { return shf(a, b, std::min<uint64_t>(c, 32), false); });
}

TEST(Logic, IntegerComparisons) {
  const auto compare = [](const std::string& op, __int128 a, __int128 b) {
    if (op == "eq") return a == b;
    if (op == "ne") return a != b;
    if (op == "lt" || op == "lo") return a < b;
    if (op == "le" || op == "ls") return a <= b;
    if (op == "gt" || op == "hi") return a > b;
    return a >= b;
  };
  for (const std::string op : {"eq", "ne", "lt", "le", "gt", "ge"}) {
    const std::vector<In> inputs = integer_inputs(100);
    check(
        "setp." + op + ".s16 %d, %a, %b;", "phh",
        [&](uint64_t a, uint64_t b, uint64_t) {
          return uint64_t{compare(op, static_cast<int16_t>(a), static_cast<int16_t>(b))};
        },
        inputs);
    check(
        "setp." + op + ".u16 %d, %a, %b;", "phh",
        [&](uint64_t a, uint64_t b, uint64_t) { return uint64_t{compare(op, a, b)}; }, inputs);
    check(
        "setp." + op + ".s32 %d, %a, %b;", "pww",
        [&](uint64_t a, uint64_t b, uint64_t) {
          return uint64_t{compare(op, static_cast<int32_t>(a), static_cast<int32_t>(b))};
        },
        inputs);
    check(
        "setp." + op + ".u32 %d, %a, %b;", "pww",
        [&](uint64_t a, uint64_t b, uint64_t) { return uint64_t{compare(op, a, b)}; }, inputs);
    check(
        "setp." + op + ".s64 %d, %a, %b;", "pdd",
        [&](uint64_t a, uint64_t b, uint64_t) {
          return uint64_t{compare(op, static_cast<int64_t>(a), static_cast<int64_t>(b))};
        },
        inputs);
    check(
        "setp." + op + ".u64 %d, %a, %b;", "pdd",
        [&](uint64_t a, uint64_t b, uint64_t) { return uint64_t{compare(op, a, b)}; }, inputs);
  }
  for (const std::string op : {"lo", "ls", "hi", "hs"})
    check("setp." + op + ".u32 %d, %a, %b;", "pww",
          [&](uint64_t a, uint64_t b, uint64_t) { return uint64_t{compare(op, a, b)}; });
}

std::vector<uint32_t> float_edges() {
  return {0,          0x80000000, 1,          0x80000001, 0x007fffff, 0x00800000, 0x80800000, 0x3f800000, 0xbf800000,
          0x3f800001, 0x3f7fffff, 0x3f000000, 0x40000000, 0x3eaaaaab, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000,
          0x7fc00000, 0x7f800001, 0xffffffff, 0x33800000, 0x4b000000, 0x4b800001, 0x4f000000, 0x4f800000, 0x5f000000,
          0xcf000000, 0x42f7e666, 0xc2f7e666, 0x477fe000, 0x477ff000, 0x33000000};
}
std::vector<In> float_inputs(size_t random = 2000) {
  std::vector<In> inputs;
  std::mt19937_64 rng(3);
  const auto edge = float_edges();
  for (uint32_t a : edge)
    for (uint32_t b : edge) inputs.push_back({a, b, edge[rng() % edge.size()]});
  for (size_t i = 0; i < random; ++i) {
    // Half with exponents near one another, so that sums cancel and round.
    const auto near = [&] { return static_cast<uint32_t>((rng() & 0x807fffff) | (120 + rng() % 16) << 23); };
    if (i % 2)
      inputs.push_back({near(), near(), near()});
    else
      inputs.push_back({rng() & 0xffffffff, rng() & 0xffffffff, rng() & 0xffffffff});
  }
  return inputs;
}
float f32(uint64_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits)); }
double f64(uint64_t bits) { return std::bit_cast<double>(bits); }
uint64_t bits(float f) { return std::isnan(f) ? 0x7fffffff : std::bit_cast<uint32_t>(f); }

TEST(Logic, FloatComparisonsKnowNan) {
  const std::vector<std::pair<std::string, std::function<bool(float, float)>>> ordered = {
      {"eq", [](float a, float b) { return a == b; }}, {"ne", [](float a, float b) { return a < b || a > b; }},
      {"lt", [](float a, float b) { return a < b; }},  {"le", [](float a, float b) { return a <= b; }},
      {"gt", [](float a, float b) { return a > b; }},  {"ge", [](float a, float b) { return a >= b; }}};
  for (const auto& [name, holds] : ordered) {
    const auto op = holds;
    const auto nan = [](uint64_t a, uint64_t b) { return std::isnan(f32(a)) || std::isnan(f32(b)); };
    check(
        "setp." + name + ".f32 %d, %a, %b;", "pww",
        [&](uint64_t a, uint64_t b, uint64_t) { return uint64_t{op(f32(a), f32(b))}; }, float_inputs());
    check(
        "setp." + name + "u.f32 %d, %a, %b;", "pww",
        [&](uint64_t a, uint64_t b, uint64_t) { return uint64_t{nan(a, b) || op(f32(a), f32(b))}; }, float_inputs());
    check(
        "setp." + name + ".ftz.f32 %d, %a, %b;", "pww",
        [&](uint64_t a, uint64_t b, uint64_t) {
          const auto flushed = [](uint64_t v) {
            return std::fpclassify(f32(v)) == FP_SUBNORMAL ? std::copysign(0.0f, f32(v)) : f32(v);
          };
          return uint64_t{op(flushed(a), flushed(b))};
        },
        float_inputs());
  }
  check(
      "setp.num.f32 %d, %a, %b;", "pww",
      [](uint64_t a, uint64_t b, uint64_t) { return uint64_t{!std::isnan(f32(a)) && !std::isnan(f32(b))}; },
      float_inputs());
  check(
      "setp.nan.f32 %d, %a, %b;", "pww",
      [](uint64_t a, uint64_t b, uint64_t) { return uint64_t{std::isnan(f32(a)) || std::isnan(f32(b))}; },
      float_inputs());
}

TEST(Logic, ComparisonsCombineAndHaveTwoResults) {
  const auto lt = [](uint64_t a, uint64_t b) { return static_cast<int32_t>(a) < static_cast<int32_t>(b); };
  check("setp.lt.and.s32 %d, %a, %b, %c;", "pwwp",
        [&](uint64_t a, uint64_t b, uint64_t c) { return uint64_t{lt(a, b) && c}; });
  check("setp.lt.or.s32 %d, %a, %b, !%c;", "pwwp",
        [&](uint64_t a, uint64_t b, uint64_t c) { return uint64_t{lt(a, b) || !c}; });
  check("setp.gt.xor.s32 %d, %a, %b, %c;", "pwwp",
        [&](uint64_t a, uint64_t b, uint64_t c) { return uint64_t{lt(b, a) != (c != 0)}; });
  check(".reg .pred %q; setp.lt.and.s32 %q|%d, %a, %b, %c;", "pwwp",
        [&](uint64_t a, uint64_t b, uint64_t c) { return uint64_t{!lt(a, b) && c}; });
  check("setp.lt.s32 _|%d, %a, %b;", "pww", [&](uint64_t a, uint64_t b, uint64_t) { return uint64_t{!lt(a, b)}; });
  check("set.lt.u32.s32 %d, %a, %b;", "www",
        [&](uint64_t a, uint64_t b, uint64_t) { return lt(a, b) ? 0xffffffff : 0; });
  check("set.lt.f32.s32 %d, %a, %b;", "www",
        [&](uint64_t a, uint64_t b, uint64_t) { return lt(a, b) ? 0x3f800000 : 0; });
  check("selp.b64 %d, %a, %b, %c;", "dddp", [](uint64_t a, uint64_t b, uint64_t c) { return c ? a : b; });
  check("selp.b16 %d, %a, %b, %c;", "hhhp", [](uint64_t a, uint64_t b, uint64_t c) { return c ? a : b; });
  check("slct.u32.s32 %d, %a, %b, %c;", "wwww",
        [](uint64_t a, uint64_t b, uint64_t c) { return static_cast<int32_t>(c) >= 0 ? a : b; });
  check("slct.f64.f32 %d, %a, %b, %c;", "dddw", [](uint64_t a, uint64_t b, uint64_t c) { return f32(c) >= 0 ? a : b; });
  const auto low = [](uint64_t v) { return static_cast<float>(value_of(v, kF16)); };
  check(".reg .pred %q; setp.lt.f16x2 %d|%q, %a, %b;", "pww",
        [&](uint64_t a, uint64_t b, uint64_t) { return uint64_t{low(a) < low(b)}; });
  check(".reg .pred %q; setp.lt.f16x2 %q|%d, %a, %b;", "pww",
        [&](uint64_t a, uint64_t b, uint64_t) { return uint64_t{low(a >> 16) < low(b >> 16)}; });
}

// ---- moves ---------------------------------------------------------------------------------------

TEST(Move, PacksAndUnpacks) {
  check("mov.b64 %d, {%a, %b};", "dww", [](uint64_t a, uint64_t b, uint64_t) { return a | b << 32; });
  check("mov.b32 %d, {%a, %b};", "whh", [](uint64_t a, uint64_t b, uint64_t) { return a | b << 16; });
  check(".reg .b32 %l; mov.b64 {%l, %d}, %a;", "wd", [](uint64_t a, uint64_t, uint64_t) { return a >> 32; });
  check("mov.b64 {%d, _}, %a;", "wd", [](uint64_t a, uint64_t, uint64_t) { return a; });
  check(".reg .b16 %h<4>; mov.b64 {%h0, %h1, %h2, %h3}, %a; mov.b64 %d, {%h3, %h2, %h1, %h0};", "dd",
        [](uint64_t a, uint64_t, uint64_t) {
          return a >> 48 | (a >> 32 & 0xffff) << 16 | (a >> 16 & 0xffff) << 32 | a << 48;
        });
  check(
      ".reg .b128 %q; .reg .b32 %w<4>; mov.b128 %q, {%a, %b}; mov.b128 {%w0, %w1, %w2, %w3}, %q; mov.b64 %d, {%w1, "
      "%w2};",
      "ddd", [](uint64_t a, uint64_t b, uint64_t) { return a >> 32 | b << 32; });
  check(".reg .b8 %e<4>; mov.b32 {%e0, %e1, %e2, %e3}, %a; mov.b32 %d, {%e3, %e0, %e1, %e2};", "ww",
        [](uint64_t a, uint64_t, uint64_t) { return (a << 8 | a >> 24) & 0xffffffff; });
  check("{ .reg .b16 %x, %y; mov.b32 {%x, %y}, %a; mov.b32 %d, {%y, %x}; }", "ww",
        [](uint64_t a, uint64_t, uint64_t) { return a >> 16 | a << 16; });
}

TEST(Move, PermutesBytes) {
  const auto generic = [](uint64_t a, uint64_t b, uint64_t control) {
    const uint64_t source = b << 32 | a;
    uint64_t d = 0;
    for (int i = 0; i < 4; ++i) {
      const uint64_t s = control >> 4 * i & 15, byte = source >> 8 * (s & 7) & 0xff;
      d |= (s & 8 ? (byte & 0x80 ? 0xff : 0) : byte) << 8 * i;
    }
    return d;
  };
  check("prmt.b32 %d, %a, %b, %c;", "wwww", generic);
  for (const std::string control : {"0x5410", "0x7632", "0x0123", "0x3333", "0x9180"})
    check("prmt.b32 %d, %a, %b, " + control + ";", "www",
          [&](uint64_t a, uint64_t b, uint64_t) { return generic(a, b, std::stoul(control, nullptr, 16)); });
  // 9.7.9.7: sources of the four bytes, most significant first, for c = 0 .. 3
  const std::vector<std::pair<std::string, std::vector<uint64_t>>> modes = {
      {"f4e", {0x3210, 0x4321, 0x5432, 0x6543}}, {"b4e", {0x5670, 0x6701, 0x7012, 0x0123}},
      {"rc8", {0, 0x1111, 0x2222, 0x3333}},      {"ecl", {0x3210, 0x3211, 0x3222, 0x3333}},
      {"ecr", {0, 0x1110, 0x2210, 0x3210}},      {"rc16", {0x1010, 0x3232, 0x1010, 0x3232}}};
  for (const auto& [mode, controls] : modes) {
    const auto table = controls;
    check("prmt.b32." + mode + " %d, %a, %b, %c;", "wwww",
          [&](uint64_t a, uint64_t b, uint64_t c) { return generic(a, b, table[c & 3]); });
  }
}

TEST(Move, AddressesGoToGenericAndBack) {
  check(
      ".shared .align 8 .b8 s[64]; .reg .b64 %g, %o; mov.u64 %o, s; cvta.shared.u64 %g, %o; cvta.to.shared.u64 %d, %g; "
      "sub.u64 %d, %d, %o;",
      "dd", [](uint64_t, uint64_t, uint64_t) { return 0; }, {{}, {}, {}});
  check(
      ".shared .align 8 .b32 s; .reg .b64 %g; mov.u64 %g, s; cvta.shared.u64 %g, %g; st.u32 [%g], %a; ld.shared.u32 "
      "%d, [s];",
      "ww", [](uint64_t a, uint64_t, uint64_t) { return a; }, {{7}});
  check(
      ".local .align 8 .b32 l[2]; .reg .b64 %g; mov.u64 %g, l; cvta.local.u64 %g, %g; st.u32 [%g+4], %a; ld.local.u32 "
      "%d, [l+4];",
      "ww", [](uint64_t a, uint64_t, uint64_t) { return a; });
  check("cvta.to.global.u64 %d, %a;", "dd", [](uint64_t a, uint64_t, uint64_t) { return a; });
  check(".shared .b32 s; .reg .b64 %g; mov.u64 %g, s; cvta.shared.u64 %g, %g; isspacep.shared %d, %g;", "pw",
        [](uint64_t, uint64_t, uint64_t) { return 1; }, {{}, {}});
  check(".shared .b32 s; .reg .b64 %g; mov.u64 %g, s; cvta.shared.u64 %g, %g; isspacep.global %d, %g;", "pw",
        [](uint64_t, uint64_t, uint64_t) { return 0; }, {{}, {}});
  check("isspacep.global %d, %out;", "pw", [](uint64_t, uint64_t, uint64_t) { return 1; }, {{}, {}});
  check("isspacep.shared::cluster %d, %out;", "pw", [](uint64_t, uint64_t, uint64_t) { return 0; }, {{}, {}});
}

// ---- floats --------------------------------------------------------------------------------------

enum class Mode { Rn, Rz, Rm, Rp };
const std::vector<std::pair<std::string, Mode>> kModes = {
    {"rn", Mode::Rn}, {"rz", Mode::Rz}, {"rm", Mode::Rm}, {"rp", Mode::Rp}};

// Rounds a quad value that is exact, or has bits enough that its own rounding does not matter, to F.
template <class F>
F round_quad(__float128 q, Mode mode) {
  const F nearest = static_cast<F>(q);
  const F infinity = std::numeric_limits<F>::infinity();
  if (q != q || static_cast<__float128>(nearest) == q) return nearest;
  const bool above = static_cast<__float128>(nearest) > q, negative = q < 0;
  if (mode == Mode::Rm || (mode == Mode::Rz && !negative)) return above ? std::nextafter(nearest, -infinity) : nearest;
  if (mode == Mode::Rp || (mode == Mode::Rz && negative)) return above ? nearest : std::nextafter(nearest, infinity);
  return nearest;
}
__float128 quad(uint64_t a) { return f32(a); }
bool exact_in_quad(std::initializer_list<float> values) {  // sums of what lies within 113 bits
  float low = std::numeric_limits<float>::infinity(), high = 0;
  for (float v : values) {
    if (!std::isfinite(v) || v == 0) continue;
    low = std::min(low, std::fabs(v));
    high = std::max(high, std::fabs(v));
  }
  return high == 0 || std::ilogb(high) - std::ilogb(low) < 40;
}

TEST(Float, AddSubMulInEveryMode) {
  for (const auto& [name, m] : kModes) {
    const Mode mode = m;
    const bool down = mode == Mode::Rm;
    const auto sum = [&](uint64_t a, uint64_t b, int sign) -> uint64_t {
      const __float128 s = quad(a) + sign * quad(b);
      if (s == 0 && !(f32(a) == 0 && std::signbit(f32(a)) == std::signbit(sign * f32(b))))
        return down ? 0x80000000 : 0;  // x - x
      return bits(round_quad<float>(s, mode));
    };
    std::vector<In> inputs;
    for (const In& in : float_inputs())
      if (exact_in_quad({f32(in.a), f32(in.b)})) inputs.push_back(in);
    check(
        "add." + name + ".f32 %d, %a, %b;", "www", [&](uint64_t a, uint64_t b, uint64_t) { return sum(a, b, 1); },
        inputs);
    check(
        "sub." + name + ".f32 %d, %a, %b;", "www", [&](uint64_t a, uint64_t b, uint64_t) { return sum(a, b, -1); },
        inputs);
    check(
        "mul." + name + ".f32 %d, %a, %b;", "www",
        [&](uint64_t a, uint64_t b, uint64_t) { return bits(round_quad<float>(quad(a) * quad(b), mode)); },
        float_inputs());
    check(
        "div." + name + ".f32 %d, %a, %b;", "www",
        [&](uint64_t a, uint64_t b, uint64_t) { return bits(round_quad<float>(quad(a) / quad(b), mode)); },
        float_inputs());
    check(
        "rcp." + name + ".f32 %d, %a;", "ww",
        [&](uint64_t a, uint64_t, uint64_t) { return bits(round_quad<float>(1 / quad(a), mode)); }, float_inputs());
  }
}

TEST(Float, FmaRoundsOnceInEveryMode) {
  std::vector<In> inputs;
  for (const In& in : float_inputs()) {
    const float a = f32(in.a), b = f32(in.b), c = f32(in.c);
    if (!std::isfinite(a) || !std::isfinite(b) || !std::isfinite(c) || c == 0 || a == 0 || b == 0) continue;
    if (std::abs(std::ilogb(a) + std::ilogb(b) - std::ilogb(c)) < 40 && quad(in.a) * quad(in.b) + quad(in.c) != 0)
      inputs.push_back(in);
  }
  ASSERT_GT(inputs.size(), 500u);
  for (const auto& [name, m] : kModes) {
    const Mode mode = m;
    check(
        "fma." + name + ".f32 %d, %a, %b, %c;", "wwww",
        [&](uint64_t a, uint64_t b, uint64_t c) { return bits(round_quad<float>(quad(a) * quad(b) + quad(c), mode)); },
        inputs);
  }
}

TEST(Float, DoubleArithmetic) {
  std::mt19937_64 rng(5);
  std::vector<In> inputs;
  for (int i = 0; i < 1000; ++i) {
    const auto d = [&] { return (rng() & 0x800fffffffffffffull) | (1000 + rng() % 40) << 52; };
    inputs.push_back({d(), d(), d()});
  }
  const auto q = [](uint64_t v) { return static_cast<__float128>(f64(v)); };
  const auto out = [](double d) { return std::bit_cast<uint64_t>(d); };
  for (const auto& [name, m] : kModes) {
    const Mode mode = m;
    check(
        "add." + name + ".f64 %d, %a, %b;", "ddd",
        [&](uint64_t a, uint64_t b, uint64_t) { return out(round_quad<double>(q(a) + q(b), mode)); }, inputs);
    check(
        "mul." + name + ".f64 %d, %a, %b;", "ddd",
        [&](uint64_t a, uint64_t b, uint64_t) { return out(round_quad<double>(q(a) * q(b), mode)); }, inputs);
    check(
        "div." + name + ".f64 %d, %a, %b;", "ddd",
        [&](uint64_t a, uint64_t b, uint64_t) { return out(round_quad<double>(q(a) / q(b), mode)); }, inputs);
  }
  check(
      "fma.rn.f64 %d, %a, %b, %c;", "dddd",
      [&](uint64_t a, uint64_t b, uint64_t c) { return out(std::fma(f64(a), f64(b), f64(c))); }, inputs);
  check(
      "sqrt.rn.f64 %d, %a;", "dd",
      [&](uint64_t a, uint64_t, uint64_t) { return out(std::sqrt(f64(a & ~(1ull << 63)))); },
      [&] {
        auto v = inputs;
        for (In& in : v) in.a &= ~(1ull << 63);
        return v;
      }());
}

TEST(Float, FlushSaturateAndCanonicalNan) {
  const auto flushed = [](float v) { return std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(0.0f, v) : v; };
  check(
      "add.ftz.f32 %d, %a, %b;", "www",
      [&](uint64_t a, uint64_t b, uint64_t) { return bits(flushed(flushed(f32(a)) + flushed(f32(b)))); },
      float_inputs());
  check(
      "mul.ftz.f32 %d, %a, %b;", "www",
      [&](uint64_t a, uint64_t b, uint64_t) {  // before it is rounded, as on an H200
        const double exact = static_cast<double>(flushed(f32(a))) * flushed(f32(b));
        return bits(std::abs(exact) < 0x1p-126 ? static_cast<float>(std::copysign(0.0, exact))
                                               : static_cast<float>(exact));
      },
      float_inputs());
  check(
      "fma.rn.ftz.sat.f32 %d, %a, %b, %c;", "wwww",
      [&](uint64_t a, uint64_t b, uint64_t c) {
        const float x = flushed(f32(a)), y = flushed(f32(b)), z = flushed(f32(c));
        const double about = static_cast<double>(x) * y + z;  // flushed before it is rounded, as on an H200
        const float v = std::abs(about) < 0x1p-126 ? 0 : std::fma(x, y, z);
        return v > 0 ? bits(std::min(v, 1.0f)) : 0;
      },
      float_inputs());
  check(
      "add.sat.f32 %d, %a, %b;", "www",
      [](uint64_t a, uint64_t b, uint64_t) {
        const float v = f32(a) + f32(b);
        return v > 0 ? bits(std::min(v, 1.0f)) : 0;
      },
      float_inputs());
  check(
      "abs.ftz.f32 %d, %a;", "ww",
      [&](uint64_t a, uint64_t, uint64_t) {
        return std::isnan(f32(a)) ? a & 0x7fffffff : bits(std::fabs(flushed(f32(a))));
      },
      float_inputs());
  check(
      "neg.f32 %d, %a;", "ww", [](uint64_t a, uint64_t, uint64_t) { return a ^ 0x80000000; }, float_inputs());
  check(
      "copysign.f32 %d, %a, %b;", "www",
      [](uint64_t a, uint64_t b, uint64_t) { return (a & 0x80000000) | (b & 0x7fffffff); }, float_inputs());
}

TEST(Float, MinMaxRules) {
  const auto pick = [](float a, float b, bool max) {
    if (std::isnan(a)) return b;
    if (std::isnan(b)) return a;
    if (a == b) return std::signbit(a) == max ? b : a;
    return (a > b) == max ? a : b;
  };
  for (const bool max : {false, true}) {
    const std::string op = max ? "max" : "min";
    check(
        op + ".f32 %d, %a, %b;", "www",
        [&](uint64_t a, uint64_t b, uint64_t) { return bits(pick(f32(a), f32(b), max)); }, float_inputs());
    check(
        op + ".NaN.f32 %d, %a, %b;", "www",
        [&](uint64_t a, uint64_t b, uint64_t) {
          return std::isnan(f32(a)) || std::isnan(f32(b)) ? 0x7fffffff : bits(pick(f32(a), f32(b), max));
        },
        float_inputs());
    check(
        op + ".xorsign.abs.f32 %d, %a, %b;", "www",
        [&](uint64_t a, uint64_t b, uint64_t) {
          const float m = pick(std::fabs(f32(a)), std::fabs(f32(b)), max);
          return std::isnan(m) ? 0x7fffffff : bits(m) | ((a ^ b) & 0x80000000);
        },
        float_inputs());
    check(
        op + ".f32 %d, %a, %b, %c;", "wwww",
        [&](uint64_t a, uint64_t b, uint64_t c) { return bits(pick(pick(f32(a), f32(b), max), f32(c), max)); },
        float_inputs());
    const auto half = [](uint64_t v) { return static_cast<float>(value_of(v, kF16)); };
    check(op + ".f16 %d, %a, %b;", "hhh", [&](uint64_t a, uint64_t b, uint64_t) {
      const float m = pick(half(a), half(b), max);
      return uint64_t{code_of(m, kF16)};
    });
  }
}

TEST(Float, PairsAndMixedPrecision) {
  const auto pair = [](uint64_t a, uint64_t b, uint64_t c, auto op) {
    return op(a, b, c) | op(a >> 32, b >> 32, c >> 32) << 32;
  };
  check("fma.rn.f32x2 %d, %a, %b, %c;", "dddd", [&](uint64_t a, uint64_t b, uint64_t c) {
    return pair(a, b, c, [](uint64_t x, uint64_t y, uint64_t z) { return bits(std::fma(f32(x), f32(y), f32(z))); });
  });
  check("add.rz.f32x2 %d, %a, %b;", "ddd",
        [&](uint64_t a, uint64_t b, uint64_t c) {
          return pair(a, b, c, [](uint64_t x, uint64_t y, uint64_t) -> uint64_t {
            const __float128 s = quad(x) + quad(y);
            return s == 0 ? bits(f32(x) + f32(y)) : bits(round_quad<float>(s, Mode::Rz));
          });
        },
        {{0x3f80000133800001, 0x3f8000023f800000}, {0xbf80000133800001, 0x3f0000023f800000}});
  const auto bfloat = [](uint64_t v) { return f32((v & 0xffff) << 16); };
  check("fma.rn.f32.bf16 %d, %a, %b, %c;", "whhw",
        [&](uint64_t a, uint64_t b, uint64_t c) { return bits(std::fma(bfloat(a), bfloat(b), f32(c))); });
  check(
      "add.rn.f32.bf16 %d, %a, %b;", "whw", [&](uint64_t a, uint64_t b, uint64_t) { return bits(bfloat(a) + f32(b)); },
      float_inputs());
}

TEST(Float, Testp) {
  const std::vector<std::pair<std::string, std::function<bool(float)>>> properties = {
      {"finite", [](float v) { return std::isfinite(v); }},
      {"infinite", [](float v) { return std::isinf(v); }},
      {"number", [](float v) { return !std::isnan(v); }},
      {"notanumber", [](float v) { return std::isnan(v); }},
      {"normal", [](float v) { return std::isnormal(v) || v == 0; }},
      {"subnormal", [](float v) { return std::fpclassify(v) == FP_SUBNORMAL; }}};
  for (const auto& [name, holds] : properties) {
    const auto property = holds;
    check(
        "testp." + name + ".f32 %d, %a;", "pw",
        [&](uint64_t a, uint64_t, uint64_t) { return uint64_t{property(f32(a))}; }, float_inputs());
  }
}

// Approximations: within the bound of the ISA, and its table of special values.
void check_approx(const std::string& op, const std::function<double(double)>& exact, double relative, double absolute,
                  const std::vector<float>& values) {
  SCOPED_TRACE(op);
  std::vector<In> inputs;
  for (float v : values) inputs.push_back({std::bit_cast<uint32_t>(v)});
  const auto results = evaluate(op + " %d, %a;", "ww", inputs);
  for (size_t i = 0; i < values.size(); ++i) {
    const double want = exact(values[i]), got = f32(results[i]);
    if (std::isnan(want)) {
      EXPECT_EQ(results[i], 0x7fffffffu) << values[i];
    } else if (std::isinf(want) || want == 0) {
      EXPECT_EQ(results[i], bits(static_cast<float>(want))) << values[i];
    } else if (std::fabs(want) < std::numeric_limits<float>::max() &&
               std::fabs(want) >= std::numeric_limits<float>::min()) {
      EXPECT_LE(std::fabs(got - want), std::max(absolute, relative * std::fabs(want))) << values[i];
    }
  }
}
// The vectorised functions, rounded to float, are the C library's wherever they are not in doubt. MOXIE_TEST_ALL=1: of
// every float.
TEST(Float, QuickFunctionsRoundAsTheCLibrary) {
  struct {
    double (*quick)(float);
    double (*library)(double);
  } const functions[] = {
      {sim::isa::quick_sin, std::sin},   {sim::isa::quick_cos, std::cos},   {sim::isa::quick_log2, std::log2},
      {sim::isa::quick_exp2, std::exp2}, {sim::isa::quick_tanh, std::tanh},
  };
  const uint64_t step = std::getenv("MOXIE_TEST_ALL") ? 1 : 65521;
  for (const auto& f : functions) {
    uint64_t compared = 0;
    for (uint64_t code = 0; code <= UINT32_MAX; code += step) {
      const float x = std::bit_cast<float>(static_cast<uint32_t>(code));
      const double quick = f.quick(x);
      if (sim::isa::in_doubt(quick)) continue;
      const auto got = static_cast<float>(quick), expected = static_cast<float>(f.library(x));
      ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(expected)) << x;
      ++compared;
    }
    EXPECT_GT(compared, (uint64_t{1} << 30) / step);
  }
}

TEST(Float, ApproximationsKeepTheirBounds) {
  std::vector<float> values = {0.0f, -0.0f, INFINITY, -INFINITY, NAN};
  std::mt19937 rng(9);
  std::uniform_real_distribution<float> near(-6, 6), wide(-120, 120);
  for (int i = 0; i < 500; ++i) values.push_back(near(rng)), values.push_back(std::exp2(wide(rng)));
  check_approx(
      "rcp.approx.f32", [](double v) { return 1 / v; }, 0x1p-23, 0, values);
  check_approx(
      "sqrt.approx.f32", [](double v) { return std::sqrt(v); }, 0x1p-23, 0, values);
  check_approx(
      "rsqrt.approx.ftz.f32", [](double v) { return 1 / std::sqrt(v); }, 0x1p-22, 0, values);
  check_approx(
      "ex2.approx.ftz.f32", [](double v) { return std::exp2(v); }, 0x1p-22, 0, values);
  check_approx(
      "lg2.approx.f32", [](double v) { return std::log2(v); }, 0x1p-22, 0x1p-22, values);
  check_approx(
      "tanh.approx.f32", [](double v) { return std::tanh(v); }, 0x1p-11, 0, values);
  std::vector<float> angles = {0.0f, -0.0f, INFINITY, -INFINITY, NAN};
  for (int i = 0; i < 500; ++i) angles.push_back(near(rng));
  check_approx(
      "sin.approx.f32", [](double v) { return std::sin(v); }, 0, 0x1p-20, angles);
  check_approx(
      "cos.approx.f32", [](double v) { return std::cos(v); }, 0, 0x1p-20, angles);
  check("div.approx.f32 %d, %a, %b;", "www",
        [](uint64_t, uint64_t b, uint64_t) { return b == 0x7f000001 ? 0 : 0x40400000; },
        {{0x40c00000, 0x40000000}, {0x40c00000, 0x7f000001}});  // 9.7.3.8: |b| above 2^126 gives zero
}

// ---- halves --------------------------------------------------------------------------------------

TEST(Halves, WideningIsExactForEveryCode) {
  std::vector<In> codes;
  for (uint32_t code = 0; code < 65536; ++code) codes.push_back({code});
  const auto expected = [](uint64_t code, const FloatFormat& format) {
    return bits(static_cast<float>(value_of(code, format)));
  };
  check(
      "cvt.f32.f16 %d, %a;", "wh", [&](uint64_t a, uint64_t, uint64_t) { return expected(a, kF16); }, codes);
  check(
      "cvt.f32.bf16 %d, %a;", "wh", [&](uint64_t a, uint64_t, uint64_t) { return expected(a, kBF16); }, codes);
}

// Codes, the midpoints between them and their neighbours.
std::vector<In> narrowing_inputs(const FloatFormat& format) {
  std::vector<In> inputs = float_inputs(4000);
  for (uint32_t code = 0; code <= format.largest(); code += 1 + code % 7) {
    const double here = value_of(code, format),
                 next = code == format.largest() ? here * 1.01 : value_of(code + 1, format);
    const uint32_t middle = std::bit_cast<uint32_t>(static_cast<float>((here + next) / 2));
    for (uint32_t b : {std::bit_cast<uint32_t>(static_cast<float>(here)), middle - 1, middle, middle + 1}) {
      inputs.push_back({b, b ^ 0x80000000});
      inputs.push_back({b | 0x80000000, b});
    }
  }
  return inputs;
}

TEST(Halves, NarrowingRoundsInEveryMode) {
  for (const auto& [type, format] : {std::pair{"f16", kF16}, std::pair{"bf16", kBF16}}) {
    const auto inputs = narrowing_inputs(format);
    const auto& fmt = format;
    for (const auto& [name, round] : {std::pair{"rn", Rounding::Nearest}, std::pair{"rz", Rounding::Zero},
                                      std::pair{"rm", Rounding::Down}, std::pair{"rp", Rounding::Up}}) {
      const Rounding r = round;
      check(
          std::string("cvt.") + name + "." + type + ".f32 %d, %a;", "hw",
          [&](uint64_t a, uint64_t, uint64_t) { return uint64_t{code_of(f32(a), fmt, r)}; }, inputs);
    }
    check(
        std::string("cvt.rn.") + type + "x2.f32 %d, %a, %b;", "www",
        [&](uint64_t a, uint64_t b, uint64_t) {
          return static_cast<uint64_t>(code_of(f32(a), fmt)) << 16 | code_of(f32(b), fmt);
        },
        inputs);
    check(
        std::string("cvt.rn.relu.") + type + ".f32 %d, %a;", "hw",
        [&](uint64_t a, uint64_t, uint64_t) {
          return std::isnan(f32(a)) ? 0x7fff : std::signbit(f32(a)) ? 0 : code_of(f32(a), fmt);
        },
        inputs);
  }
}

TEST(Halves, ArithmeticRoundsOnce) {
  std::mt19937_64 rng(21);
  std::vector<In> inputs;
  for (int i = 0; i < 6000; ++i) {
    // Exponents in a window, so that ties with a far smaller addend occur; some arbitrary codes.
    const auto code = [&](uint32_t mantissa_bits) {
      return (rng() & (0x8000u | ((1u << mantissa_bits) - 1))) | (8 + rng() % 14) << mantissa_bits;
    };
    if (i % 3 == 0)
      inputs.push_back({rng() & 0xffff, rng() & 0xffff, rng() & 0xffff});
    else
      inputs.push_back({code(10), code(10), code(10)});
  }
  for (int i = 0; i < 3000; ++i) {  // bf16: a product at a midpoint plus a tiny third operand
    const uint64_t a = 0x3f80 + rng() % 128, b = 0x3f80 + rng() % 128;
    inputs.push_back({a, b, (rng() & 0x8000) | (rng() % 0x3000)});
  }
  const auto value = [](uint64_t code, bool half) { return static_cast<float>(value_of(code, half ? kF16 : kBF16)); };
  for (const bool half : {true, false}) {
    const std::string type = half ? "f16" : "bf16";
    const FloatFormat& format = half ? kF16 : kBF16;
    // x + y once rounded: what a quad sum leaves over (two-sum) makes the double odd, so that encode() sees it.
    const auto round = [&](__float128 x, __float128 y, bool zero_sign) -> uint64_t {
      const __float128 q = x + y, from_y = q - x, rest = (x - (q - from_y)) + (y - from_y);
      if (q == 0) return zero_sign ? 0x8000 : 0;
      double d = static_cast<double>(q);
      const __float128 lost = (q - d) + rest;
      if (std::isfinite(d) && lost != 0 && !(std::bit_cast<uint64_t>(d) & 1))
        d = std::nextafter(d, lost > 0 ? INFINITY : -INFINITY);
      return code_of(d, format);
    };
    const auto v = [&](uint64_t code) { return static_cast<__float128>(value(code, half)); };
    const auto negative = [](float f) { return std::signbit(f); };
    check(
        "add." + type + " %d, %a, %b;", "hhh",
        [&](uint64_t a, uint64_t b, uint64_t) { return round(v(a), v(b), negative(value(a, half) + value(b, half))); },
        inputs);
    check(
        "sub." + type + " %d, %a, %b;", "hhh",
        [&](uint64_t a, uint64_t b, uint64_t) { return round(v(a), -v(b), negative(value(a, half) - value(b, half))); },
        inputs);
    check(
        "mul." + type + " %d, %a, %b;", "hhh",
        [&](uint64_t a, uint64_t b, uint64_t) { return round(v(a) * v(b), 0, (a ^ b) & 0x8000); }, inputs);
    check(
        "fma.rn." + type + " %d, %a, %b, %c;", "hhhh",
        [&](uint64_t a, uint64_t b, uint64_t c) {
          const float x = value(a, half), y = value(b, half), z = value(c, half);
          return round(v(a) * v(b), v(c), std::signbit(static_cast<double>(x) * y + z));
        },
        inputs);
    check(
        "fma.rn.relu." + type + " %d, %a, %b, %c;", "hhhh",
        [&](uint64_t a, uint64_t b, uint64_t c) {
          const uint64_t r = round(v(a) * v(b), v(c), false);
          return (r & 0x7fff) > (half ? 0x7c00u : 0x7f80u) ? r : r & 0x8000 ? 0 : r;
        },
        inputs);
    check(
        "fma.rn." + type + "x2 %d, %a, %b, %c;", "wwww",
        [&](uint64_t a, uint64_t b, uint64_t c) {
          const auto one = [&](uint64_t x, uint64_t y, uint64_t z) {
            x &= 0xffff, y &= 0xffff, z &= 0xffff;
            return round(v(x) * v(y), v(z),
                         std::signbit(static_cast<double>(value(x, half)) * value(y, half) + value(z, half)));
          };
          return one(a, b, c) | one(a >> 16, b >> 16, c >> 16) << 16;
        },
        [&] {
          auto two = inputs;
          for (size_t i = 0; i < two.size(); ++i) {
            const In& o = inputs[(i * 7 + 1) % inputs.size()];
            two[i].a |= o.a << 16, two[i].b |= o.b << 16, two[i].c |= o.c << 16;
          }
          return two;
        }());
  }
  check("neg.f16x2 %d, %a;", "ww", [](uint64_t a, uint64_t, uint64_t) { return a ^ 0x80008000; });
  check("abs.bf16x2 %d, %a;", "ww", [](uint64_t a, uint64_t, uint64_t) { return a & 0x7fff7fff; });
}

TEST(Halves, Approximations) {
  const auto check_half = [](const std::string& op, const std::function<double(double)>& exact, double bound,
                             bool relative) {
    SCOPED_TRACE(op);
    std::vector<In> codes;
    for (uint32_t code = 0; code < 65536; code += 3) codes.push_back({code});
    const auto results = evaluate(op + " %d, %a;", "hh", codes);
    for (size_t i = 0; i < codes.size(); ++i) {
      const bool half = op.find("bf16") == std::string::npos;
      const auto value = [&](uint64_t c) { return value_of(c, half ? kF16 : kBF16); };
      const double x = value(codes[i].a), want = exact(x), got = value(results[i]);
      if (std::isnan(x)) {
        EXPECT_EQ(results[i], 0x7fffu);
        continue;
      }
      if (std::fabs(want) > (half ? 65504 : 3e38) || std::fabs(want) < (half ? 6.2e-5 : 1.2e-38)) continue;
      EXPECT_LE(std::fabs(got - want), bound * (relative ? std::fabs(want) : 1)) << x;
    }
  };
  check_half(
      "ex2.approx.f16", [](double v) { return std::exp2(v); }, std::exp2(-9.9), true);
  check_half(
      "ex2.approx.ftz.bf16", [](double v) { return std::exp2(v); }, 0x1p-7, true);
  check_half(
      "tanh.approx.f16", [](double v) { return std::tanh(v); }, std::exp2(-10.987), false);
  check_half(
      "tanh.approx.bf16", [](double v) { return std::tanh(v); }, 0x1p-8, false);
}

// ---- conversions ---------------------------------------------------------------------------------

TEST(Convert, IntegersExtendTruncateAndSaturate) {
  check("cvt.s64.s32 %d, %a;", "dw",
        [](uint64_t a, uint64_t, uint64_t) { return static_cast<uint64_t>(int64_t{static_cast<int32_t>(a)}); });
  check("cvt.u64.u32 %d, %a;", "dw", [](uint64_t a, uint64_t, uint64_t) { return a; });
  check("cvt.u32.u64 %d, %a;", "wd", [](uint64_t a, uint64_t, uint64_t) { return a; });
  check("cvt.s32.s8 %d, %a;", "ww",
        [](uint64_t a, uint64_t, uint64_t) { return static_cast<uint64_t>(static_cast<int8_t>(a)); });
  check("cvt.u32.u8 %d, %a;", "wh", [](uint64_t a, uint64_t, uint64_t) { return a & 0xff; });
  check("cvt.u16.u32 %d, %a;", "hw", [](uint64_t a, uint64_t, uint64_t) { return a; });
  check("cvt.s32.s16 %d, %a;", "wh",
        [](uint64_t a, uint64_t, uint64_t) { return static_cast<uint64_t>(static_cast<int16_t>(a)); });
  check("cvt.s8.s32 %d, %a;", "ww",
        [](uint64_t a, uint64_t, uint64_t) { return static_cast<uint64_t>(static_cast<int8_t>(a)); });  // 9.4.1
  check("cvt.u8.u32 %d, %a;", "dw", [](uint64_t a, uint64_t, uint64_t) { return a & 0xff; });
  check("cvt.s16.s64 %d, %a;", "dd",
        [](uint64_t a, uint64_t, uint64_t) { return static_cast<uint64_t>(int64_t{static_cast<int16_t>(a)}); });
  check("cvt.u64.u16 %d, %a;", "dd", [](uint64_t a, uint64_t, uint64_t) { return a & 0xffff; });
  check("cvt.sat.s8.s32 %d, %a;", "ww", [](uint64_t a, uint64_t, uint64_t) {
    return static_cast<uint64_t>(std::clamp(static_cast<int32_t>(a), -128, 127));
  });
  check("cvt.sat.u16.s64 %d, %a;", "hd", [](uint64_t a, uint64_t, uint64_t) {
    return static_cast<uint64_t>(std::clamp<int64_t>(static_cast<int64_t>(a), 0, 65535));
  });
  check("cvt.sat.s32.u32 %d, %a;", "ww",
        [](uint64_t a, uint64_t, uint64_t) { return std::min<uint64_t>(a, INT32_MAX); });
  check("cvt.pack.sat.s16.s32 %d, %a, %b;", "www", [](uint64_t a, uint64_t b, uint64_t) {
    const auto part = [](uint64_t v) {
      return static_cast<uint64_t>(std::clamp(static_cast<int32_t>(v), -32768, 32767)) & 0xffff;
    };
    return part(a) << 16 | part(b);
  });
  check("cvt.pack.sat.u8.s32.b32 %d, %a, %b, %c;", "wwww", [](uint64_t a, uint64_t b, uint64_t c) {
    const auto part = [](uint64_t v) { return static_cast<uint64_t>(std::clamp(static_cast<int32_t>(v), 0, 255)); };
    return part(a) << 8 | part(b) | c << 16;
  });
}

TEST(Convert, FloatsToIntegersClamp) {
  const std::vector<std::pair<std::string, std::function<double(double)>>> rounds = {
      {"rni", [](double v) { return std::nearbyint(v); }},
      {"rzi", [](double v) { return std::trunc(v); }},
      {"rmi", [](double v) { return std::floor(v); }},
      {"rpi", [](double v) { return std::ceil(v); }}};
  auto inputs = float_inputs();
  for (float v = -300; v < 300; v += 0.5f) inputs.push_back({std::bit_cast<uint32_t>(v)});
  for (const auto& [name, function] : rounds) {
    const auto round = function;
    const auto clamp = [&](uint64_t a, double low, double high, uint64_t nan, uint64_t top) -> uint64_t {
      const double v = f32(a);
      if (std::isnan(v)) return nan;
      const double r = round(v);
      return r <= low    ? static_cast<uint64_t>(static_cast<int64_t>(low))
             : r >= high ? top
                         : static_cast<uint64_t>(static_cast<__int128>(r));
    };
    check(
        "cvt." + name + ".s32.f32 %d, %a;", "ww",
        [&](uint64_t a, uint64_t, uint64_t) { return clamp(a, INT32_MIN, INT32_MAX, 0, INT32_MAX); }, inputs);
    check(
        "cvt." + name + ".u32.f32 %d, %a;", "ww",
        [&](uint64_t a, uint64_t, uint64_t) { return clamp(a, 0, UINT32_MAX, 0, UINT32_MAX); }, inputs);
    check(
        "cvt." + name + ".u8.f32 %d, %a;", "ww",
        [&](uint64_t a, uint64_t, uint64_t) { return clamp(a, 0, 255, 0, 255); }, inputs);
    check(
        "cvt." + name + ".s64.f32 %d, %a;", "dw",
        [&](uint64_t a, uint64_t, uint64_t) { return clamp(a, -0x1p63, 0x1p63, 1ull << 63, INT64_MAX); }, inputs);
    check(
        "cvt." + name + ".u64.f32 %d, %a;", "dw",
        [&](uint64_t a, uint64_t, uint64_t) { return clamp(a, 0, 0x1p64, 1ull << 63, UINT64_MAX); }, inputs);
    check(
        "cvt." + name + ".f32.f32 %d, %a;", "ww",
        [&](uint64_t a, uint64_t, uint64_t) { return bits(static_cast<float>(round(f32(a)))); }, inputs);
  }
  check("cvt.rzi.s32.f64 %d, %a;", "wd",
        [](uint64_t a, uint64_t, uint64_t) {
          const double v = f64(a);
          return std::isnan(v)    ? 0x80000000
                 : v <= INT32_MIN ? 0x80000000
                 : v >= INT32_MAX ? 0x7fffffff
                                  : static_cast<uint64_t>(static_cast<int64_t>(v));
        },
        {{std::bit_cast<uint64_t>(1e10)},
         {std::bit_cast<uint64_t>(-1e10)},
         {std::bit_cast<uint64_t>(NAN + 0.0)},
         {std::bit_cast<uint64_t>(-7.9)}});
}

TEST(Convert, IntegersToFloatsRoundOnce) {
  for (const auto& [name, m] : kModes) {
    const Mode mode = m;
    const auto q = [](__int128 v) { return static_cast<__float128>(v); };
    check("cvt." + name + ".f32.s32 %d, %a;", "ww",
          [&](uint64_t a, uint64_t, uint64_t) { return bits(round_quad<float>(q(static_cast<int32_t>(a)), mode)); });
    check("cvt." + name + ".f32.u32 %d, %a;", "ww",
          [&](uint64_t a, uint64_t, uint64_t) { return bits(round_quad<float>(q(a), mode)); });
    check("cvt." + name + ".f32.s64 %d, %a;", "wd",
          [&](uint64_t a, uint64_t, uint64_t) { return bits(round_quad<float>(q(static_cast<int64_t>(a)), mode)); });
    check("cvt." + name + ".f64.u64 %d, %a;", "dd",
          [&](uint64_t a, uint64_t, uint64_t) { return std::bit_cast<uint64_t>(round_quad<double>(q(a), mode)); });
    check("cvt." + name + ".f32.f64 %d, %a;", "wd",
          [&](uint64_t a, uint64_t, uint64_t) { return bits(round_quad<float>(f64(a), mode)); },
          {{std::bit_cast<uint64_t>(0.1)},
           {std::bit_cast<uint64_t>(-0.1)},
           {std::bit_cast<uint64_t>(1e300)},
           {std::bit_cast<uint64_t>(-1e300)},
           {std::bit_cast<uint64_t>(1e-300)},
           {std::bit_cast<uint64_t>(1e-42)},
           {std::bit_cast<uint64_t>(3.0)}});
  }
  check("cvt.rn.bf16.s64 %d, %a;", "hd",
        [](uint64_t a, uint64_t, uint64_t) {
          // 2^62 + 2^54 + 1 lies just above the midpoint of two bf16 values and just off a double.
          return a == 0x4040000000000001 ? 0x5e81 : 0x5e80;
        },
        {{0x4040000000000001}, {0x4040000000000000}});
  check("cvt.rn.f16.u16 %d, %a;", "hh",
        [](uint64_t a, uint64_t, uint64_t) { return uint64_t{code_of(static_cast<double>(a), kF16)}; });
  check(
      "cvt.sat.f32.f32 %d, %a;", "ww",
      [](uint64_t a, uint64_t, uint64_t) { return f32(a) > 0 ? bits(std::min(f32(a), 1.0f)) : 0; }, float_inputs());
  check("cvt.rn.f16.f64 %d, %a;", "hd", [](uint64_t a, uint64_t, uint64_t) { return uint64_t{code_of(f64(a), kF16)}; },
        {{std::bit_cast<uint64_t>(1.00048828125)},
         {std::bit_cast<uint64_t>(1.0004882812500002)},
         {std::bit_cast<uint64_t>(70000.0)}});
}

TEST(Convert, SmallFormats) {
  // Codes written out from OCP's tables rather than computed.
  const auto convert = [](const std::string& op, float upper, float lower) {
    return evaluate(op + " %d, %a, %b;", "hww", {{std::bit_cast<uint32_t>(upper), std::bit_cast<uint32_t>(lower)}})[0];
  };
  EXPECT_EQ(convert("cvt.rn.satfinite.e4m3x2.f32", 1.0f, -448.0f), 0x38feu);
  EXPECT_EQ(convert("cvt.rn.satfinite.e4m3x2.f32", 1000.0f, NAN), 0x7e7fu);
  EXPECT_EQ(convert("cvt.rn.satfinite.e4m3x2.f32", 0x1p-9f, 0x1p-10f),
            0x0100u);                                                        // smallest subnormal; half of it to even
  EXPECT_EQ(convert("cvt.rn.satfinite.e4m3x2.f32", 17.0f, 19.0f), 0x585au);  // ties to even: 16, 20
  EXPECT_EQ(convert("cvt.rn.satfinite.e5m2x2.f32", 57344.0f, -1e9f), 0x7bfbu);
  EXPECT_EQ(convert("cvt.rn.satfinite.relu.e5m2x2.f32", -3.0f, 3.0f), 0x0042u);
  EXPECT_EQ(convert("cvt.rn.satfinite.e2m1x2.f32", 6.0f, -0.5f), 0x79u);
  EXPECT_EQ(convert("cvt.rn.satfinite.e2m1x2.f32", 2.5f, 5.0f), 0x46u);  // ties to even: 2, 4
  EXPECT_EQ(convert("cvt.rn.satfinite.e2m1x2.f32", NAN, -100.0f), 0x7fu);
  EXPECT_EQ(convert("cvt.rz.satfinite.ue8m0x2.f32", 1.9f, 0x1p-127f), 0x7f00u);
  EXPECT_EQ(convert("cvt.rp.satfinite.ue8m0x2.f32", 1.9f, NAN), 0x80ffu);
  const auto widen = [](const std::string& op, uint64_t code) { return evaluate(op + " %d, %a;", "wh", {{code}})[0]; };
  EXPECT_EQ(widen("cvt.rn.f16x2.e4m3x2", 0x387eu), 0x3c005f00u);
  EXPECT_EQ(widen("cvt.rn.f16x2.e5m2x2", 0x7cfbu), 0x7c00fb00u);
  EXPECT_EQ(widen("cvt.rn.f16x2.e2m1x2", 0x7fu), 0x4600c600u);
  EXPECT_EQ(widen("cvt.rn.bf16x2.ue8m0x2", 0x7f00u), 0x3f800040u);
  check("cvt.rna.tf32.f32 %d, %a;", "ww", [](uint64_t a, uint64_t, uint64_t) { return (a + 0x1000) & 0xffffe000; },
        {{0x3f801000}, {0x3f800fff}, {0xbf801000}, {0x3f803000}, {0x40490fdb}});
  // As an H200 does it, a NaN is cut off and .satfinite takes the next smaller code.
  check("cvt.rna.tf32.f32 %d, %a;", "ww", [](uint64_t a, uint64_t, uint64_t) { return a & 0xffffe000; },
        {{0x7f800001}, {0x7fc00000}, {0x7fffffff}, {0xffca7018}, {0x7f800000}});
  check("cvt.rna.satfinite.tf32.f32 %d, %a;", "ww",
        [](uint64_t a, uint64_t, uint64_t) { return (a & 0xffffe000) - 0x2000; },
        {{0x7f800001}, {0x7fc00000}, {0x7fffffff}, {0xffc00000}, {0x7f800000}});
  check("cvt.rp.ftz.f16.f32 %d, %a;", "hw", [](uint64_t a, uint64_t, uint64_t) { return a >> 31 ? 0x8000 : 1; },
        {{0x00000001}, {0x007fffff}, {0x80000001}});
}

TEST(Convert, SmallFormatsByTheirDefinitions) {
  for (const auto& [name, format] : {std::pair{"e4m3", kE4M3}, std::pair{"e5m2", kE5M2}, std::pair{"e2m3", kE2M3},
                                     std::pair{"e3m2", kE3M2}, std::pair{"e2m1", kE2M1}}) {
    const FloatFormat& f = format;
    SCOPED_TRACE(name);
    const int width = f.bits() == 4 ? 4 : 8;  // of a code in the pair
    const std::string pair = std::string(name) + "x2";
    const auto inputs = narrowing_inputs(f);
    for (const bool relu : {false, true}) {
      const auto one = [&](double v) -> uint64_t {
        return relu && std::signbit(v) && !std::isnan(v) ? 0 : code_of(v, f, Rounding::Nearest, true);
      };
      check(
          "cvt.rn.satfinite." + std::string(relu ? "relu." : "") + pair + ".f32 %d, %a, %b;", "hww",
          [&](uint64_t a, uint64_t b, uint64_t) { return one(f32(a)) << width | one(f32(b)); }, inputs);
    }
    std::vector<In> codes;
    for (uint32_t code = 0; code < 65536; ++code) codes.push_back({code});
    check(
        "cvt.rn.f16x2." + pair + " %d, %a;", "wh",
        [&](uint64_t a, uint64_t, uint64_t) {
          const auto half = [&](uint64_t code) { return uint64_t{code_of(value_of(code, f), kF16)}; };
          return half(a >> width & ((1u << width) - 1)) << 16 | half(a & ((1u << width) - 1));
        },
        codes);
  }
}

// ---- masks and refusals --------------------------------------------------------------------------

TEST(Lanes, OnlyGuardedLanesAreWritten) {
  check(".reg .pred %q; setp.gt.u32 %q, %b, 100; @%q add.u32 %d, %a, 1;", "www",
        [](uint64_t a, uint64_t b, uint64_t) { return b > 100 ? a + 1 : 0xffffffff; });
  check(".reg .pred %q; setp.gt.u32 %q, %b, 100; @!%q fma.rn.f32 %d, %a, 0f3F800000, 0f00000000;", "www",
        [](uint64_t a, uint64_t b, uint64_t) { return b > 100 ? 0xffffffff : bits(std::fma(f32(a), 1.0f, 0.0f)); });
  check(".reg .pred %q, %e; setp.gt.u32 %q, %b, 100; setp.eq.u32 %d, 0, 1; @%q setp.eq.u32 %d, 0, 0;", "pww",
        [](uint64_t, uint64_t b, uint64_t) { return uint64_t{b > 100}; });
}

TEST(Refusals, NameTheInstructionAndTheLine) {
  const auto refusal = [](const std::string& code) -> std::string {
    try {
      sim_test::prepare_ptx(program(code, "www"), "k");
    } catch (const std::exception& e) {
      return e.what();
    }
    return "accepted";
  };
  for (const std::string code : {"add.banana.s32 %d, %a, %b;",
                                 "add.s32 %d, %a;",
                                 "add.s32 %d, %a, %b, %b;",
                                 "add.s32 %d, %a, %in;",
                                 "add.s64 %d, %a, %b;",
                                 "add.s32 5, %a, %b;",
                                 "add.s32 %d, _, %b;",
                                 "add.s32 %d, {%a, %b}, %b;",
                                 "add.s32 %d, [%in], %b;",
                                 "add.rn.s32 %d, %a, %b;",
                                 "fma.f32 %d, %a, %b, %b;",
                                 "mul.wide.s64 %in, %in, %in;",
                                 "mul.s32 %d, %a, %b;",
                                 "div.f32 %d, %a, %b;",
                                 "sqrt.f32 %d, %a;",
                                 "ex2.f32 %d, %a;",
                                 "setp.lt.b32 %stop, %a, %b;",
                                 "setp.foo.s32 %stop, %a, %b;",
                                 "setp.lt.s32 %d, %a, %b;",
                                 "selp.b32 %d, %a, %b, %a;",
                                 "cvt.s32.f32 %d, %a;",
                                 "cvt.f32.s32 %d, %a;",
                                 "cvt.rn.f16x2.f32 %d, %a;",
                                 "cvt.rn.e4m3x2.f32 %d, %a, %b;",
                                 "lop3.b32 %d, %a, %b, %a, 256;",
                                 "lop3.b32 %d, %a, %b, %a, %b;",
                                 "mov.b64 %in, {%a, %b, %a};",
                                 "mov.b32 %d, {%in, %a};",
                                 "prmt.b32.f5 %d, %a, %b, 0;",
                                 "shf.l.b32 %d, %a, %b, 3;",
                                 "max.f32 %d, %a, %b, %a;",
                                 "cvt.rn.satfinite.e2m1x2.f32 %d, %a, %b;",
                                 "fma.rn.f32x2 %in, %in, %in, %in;",
                                 "cvta.shared.u32 %d, %a;",
                                 "xorsign.f32 %d, %a, %b;",
                                 "max.xorsign.f32 %d, %a, %b;",
                                 "bfe.b32 %d, %a, 1, 2;",
                                 "and.u32 %d, %a, %b;"}) {
    const std::string what = refusal(code);
    EXPECT_THAT(what, HasSubstr("line ")) << code;
    EXPECT_THAT(what, HasSubstr(code.substr(0, code.find(' ')))) << code;
  }
}

}  // namespace
