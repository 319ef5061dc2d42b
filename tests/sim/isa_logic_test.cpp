// SPDX-License-Identifier: Apache-2.0
// Logic, shifts, comparisons and moves of the simulator, instruction by instruction; which lanes write, and what is
// refused.
#include <gmock/gmock.h>

#include "tests/sim/arithmetic.h"

namespace {

using namespace sim_test;
using testing::HasSubstr;

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
