// SPDX-License-Identifier: Apache-2.0
// Halves, and conversions between all types, in the simulator, instruction by instruction.
#include <gmock/gmock.h>

#include <algorithm>
#include <initializer_list>

#include "tests/sim/arithmetic.h"

namespace {

using namespace sim_test;

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
    for (const auto& [name, round] : {std::pair{"rn", Rounding::Nearest}, std::pair{"rz", Rounding::Zero}}) {
      const Rounding r = round;
      for (const bool relu : {false, true}) {
        for (const bool finite : {false, true}) {
          const std::string modifiers =
              std::string("cvt.") + name + (relu ? ".relu" : "") + (finite ? ".satfinite." : ".") + type;
          const auto one = [&](uint64_t a) -> uint64_t {
            if (relu && std::signbit(f32(a)) && !std::isnan(f32(a))) return 0;
            return code_of(f32(a), fmt, r, finite);
          };
          check(
              modifiers + ".f32 %d, %a;", "hw", [&](uint64_t a, uint64_t, uint64_t) { return one(a); }, inputs);
          check(
              modifiers + "x2.f32 %d, %a, %b;", "www",
              [&](uint64_t a, uint64_t b, uint64_t) { return one(a) << 16 | one(b); }, inputs);
        }
      }
    }
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

// By .rs: away from zero where what is discarded, in units of 2^-bits of the distance between the codes beside the
// value, and the random bits come to 2^bits or more.
uint64_t stochastic_code(float value, const FloatFormat& f, uint32_t random, int bits, bool finite, bool relu) {
  if (std::isnan(value)) return f.magnitudes() - 1;
  if (std::signbit(value) && relu) return 0;
  const uint64_t sign = std::signbit(value) ? f.magnitudes() : 0, beyond = finite || !f.infinity ? 0 : 1;
  const double m = std::fabs(double{value});
  if (std::isinf(m)) return sign + f.largest() + beyond;
  const uint32_t below = code_of(m, f, Rounding::Zero, true);
  const double low = value_of(below, f);
  const double high = below < f.largest() ? value_of(below + 1, f) : 2 * low - value_of(below - 1, f);
  const double units = std::ldexp(1.0, bits);
  const bool up = m >= high || (m - low) * units >= (units - random) * (high - low);
  if (below < f.largest()) return sign + below + up;
  return sign + below + (up ? beyond : 0);
}

// Random bits that stand at these places of rbits, the highest first.
uint32_t random_bits(uint64_t rbits, std::initializer_list<std::pair<int, int>> runs) {
  uint32_t bits = 0;
  for (const auto& [first, last] : runs)
    for (int at = first;; at += first < last ? 1 : -1) {
      bits = bits << 1 | (rbits >> at & 1);
      if (at == last) break;
    }
  return bits;
}

// Words with all kinds of random bits, one bit among them.
uint64_t random_word(std::mt19937_64& rng, size_t i) { return i % 3 == 0 ? 1u << rng() % 32 : rng() & 0xffffffff; }

TEST(Convert, StochasticRoundingOfPairs) {
  std::mt19937_64 rng(31);
  for (const auto& [name, format] : {std::pair{"f16x2", kF16}, std::pair{"bf16x2", kBF16}}) {
    const FloatFormat& f = format;
    const bool half = f.mantissa == 10;
    std::vector<In> inputs = narrowing_inputs(f);
    for (size_t i = 0; i < inputs.size(); ++i) inputs[i].c = random_word(rng, i);
    for (const bool relu : {false, true}) {
      for (const bool finite : {false, true}) {
        check(
            std::string("cvt.rs") + (relu ? ".relu" : "") + (finite ? ".satfinite." : ".") + name +
                ".f32 %d, %a, %b, %c;",
            "wwww",
            [&](uint64_t a, uint64_t b, uint64_t c) {
              const uint32_t upper = half ? random_bits(c, {{28, 16}}) : random_bits(c, {{31, 16}});
              const uint32_t lower = half ? random_bits(c, {{12, 0}}) : random_bits(c, {{15, 0}});
              const int bits = half ? 13 : 16;
              return stochastic_code(f32(a), f, upper, bits, finite, relu) << 16 |
                     stochastic_code(f32(b), f, lower, bits, finite, relu);
            },
            inputs);
      }
    }
  }
}

TEST(Convert, StochasticRoundingOfFour) {
  std::mt19937_64 rng(37);
  for (const auto& [name, format] : {std::pair{"e4m3", kE4M3}, std::pair{"e5m2", kE5M2}, std::pair{"e2m3", kE2M3},
                                     std::pair{"e3m2", kE3M2}, std::pair{"e2m1", kE2M1}}) {
    const FloatFormat& f = format;
    const bool nibbles = f.bits() == 4;
    const int width = nibbles ? 4 : 8;
    std::vector<In> inputs;
    // Pairs of floats, half of them within the range of the format.
    const std::vector<In> values = narrowing_inputs(f);
    const auto any = [&]() -> uint64_t {
      if (rng() % 2 == 0) return values[rng() % values.size()].a & 0xffffffff;
      const double largest = value_of(f.largest(), f);
      const double value = std::ldexp(largest * double(rng() % 100000) / 90000, -int(rng() % 12));
      return std::bit_cast<uint32_t>(static_cast<float>(rng() % 2 ? value : -value));
    };
    for (size_t i = 0; i < 6000; ++i) inputs.push_back({any() | any() << 32, any() | any() << 32, random_word(rng, i)});
    for (const bool relu : {false, true}) {
      check(
          ".reg .f32 %v<4>; mov.b64 {%v0, %v1}, %a; mov.b64 {%v2, %v3}, %b;\ncvt.rs" +
              std::string(relu ? ".relu" : "") + ".satfinite." + name + "x4.f32 %d, {%v0, %v1, %v2, %v3}, %c;",
          nibbles ? "hddw" : "wddw",
          [&](uint64_t a, uint64_t b, uint64_t c) {
            const uint32_t random[] = {nibbles ? random_bits(c, {{8, 15}, {24, 31}}) : random_bits(c, {{16, 31}}),
                                       nibbles ? random_bits(c, {{31, 24}, {15, 8}}) : random_bits(c, {{31, 16}}),
                                       nibbles ? random_bits(c, {{0, 7}, {16, 23}}) : random_bits(c, {{0, 15}}),
                                       nibbles ? random_bits(c, {{23, 16}, {7, 0}}) : random_bits(c, {{15, 0}})};
            const float sources[] = {f32(a & 0xffffffff), f32(a >> 32), f32(b & 0xffffffff), f32(b >> 32)};
            uint64_t packed = 0;
            for (int i = 0; i < 4; ++i)
              packed = packed << width | stochastic_code(sources[i], f, random[i], 16, true, relu);
            return packed;
          },
          inputs);
    }
  }
}

TEST(Convert, StochasticRoundingOfFourIsRefusedInWords) {
  const auto decoded = [](const std::string& instruction, int arch = 100) -> std::string {
    try {
      prepare_ptx(
          ".visible .entry k() { .reg .b16 %h; .reg .b32 %d, %r<5>; .reg .b64 %l<4>;\n" + instruction + ";\nret; }",
          "k", arch);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(decoded("cvt.rs.satfinite.e4m3x4.f32 %d, {%r0, %r1, %r2, %r3}, %r4"), "");
  EXPECT_THAT(decoded("cvt.rs.satfinite.e4m3x4.f32 %d, {%r0, %r1, %r2, %r3}, %r4", 90),
              testing::HasSubstr("it needs sm_100 or later"));
  EXPECT_THAT(decoded("cvt.rn.satfinite.e4m3x4.f32 %d, {%r0, %r1, %r2, %r3}, %r4"),
              testing::HasSubstr("it does not exist in this form"));
  EXPECT_THAT(decoded("cvt.rs.e5m2x4.f32 %d, {%r0, %r1, %r2, %r3}, %r4"),
              testing::HasSubstr("it does not exist in this form"));
  EXPECT_THAT(decoded("cvt.rs.satfinite.e2m1x4.f32 %d, {%r0, %r1}, %r4"),
              testing::HasSubstr("operand 2 must be a vector of 4 registers"));
  EXPECT_THAT(decoded("cvt.rs.satfinite.e2m1x4.f32 %d, {%l0, %l1, %l2, %l3}, %r4"),
              testing::HasSubstr("operand 2 must be a vector of registers of 32 bits"));
  EXPECT_THAT(decoded("cvt.rs.satfinite.e2m1x4.f32 %d, {%r0, %r1, %r2, %r3}, %r4"),
              testing::HasSubstr("its result has 16 bits"));
  EXPECT_THAT(decoded("cvt.rs.satfinite.e4m3x4.f32 %h, {%r0, %r1, %r2, %r3}, %r4"),
              testing::HasSubstr("its result has 32 bits"));
  EXPECT_THAT(decoded("cvt.rs.satfinite.e2m1x4.f32 %d, {%r0, %r1, %r2, %r3}"),
              testing::HasSubstr("it takes 3 operands, not 2"));
}

// ue8m0: the power of two that is next to the magnitude, from 2^-127 to 2^127. Of bf16 every code.
TEST(Convert, ScalesByTheirDefinition) {
  std::vector<double> powers;
  for (int code = 0; code < 255; ++code) powers.push_back(std::ldexp(1.0, code - 127));
  const auto code = [&](float value, bool up, bool finite) -> uint64_t {
    if (std::isnan(value)) return 255;
    if (std::isinf(value)) return finite ? 254 : 255;
    const double magnitude = std::fabs(double(value));
    const auto above = std::lower_bound(powers.begin(), powers.end(), magnitude);
    if (up) return above != powers.end() ? uint64_t(above - powers.begin()) : finite ? 254 : 255;
    const auto beyond = std::upper_bound(powers.begin(), powers.end(), magnitude);
    return beyond == powers.begin() ? 0 : uint64_t(beyond - powers.begin()) - 1;
  };
  std::vector<In> bfloats, floats;
  std::mt19937_64 rng(5);
  for (uint64_t bits = 0; bits < 0x10000; ++bits) {
    bfloats.push_back({bits << 16 | (0xffff - bits)});
    floats.push_back({bits << 16, rng() & 0xffffffff});
    floats.push_back({(bits << 16) + 1, (bits << 16) - 1});
  }
  for (const bool up : {false, true}) {
    for (const bool finite : {false, true}) {
      const std::string name = std::string(up ? "cvt.rp" : "cvt.rz") + (finite ? ".satfinite" : "") + ".ue8m0x2.";
      const auto pair = [&](uint64_t high, uint64_t low) {
        return code(f32(high), up, finite) << 8 | code(f32(low), up, finite);
      };
      check(
          name + "bf16x2 %d, %a;", "hw",
          [&](uint64_t a, uint64_t, uint64_t) { return pair(a & 0xffff0000, a << 16 & 0xffff0000); }, bfloats);
      check(
          name + "f32 %d, %a, %b;", "hww",
          [&](uint64_t a, uint64_t b, uint64_t) { return pair(a & 0xffffffff, b & 0xffffffff); }, floats);
    }
  }
}

}  // namespace
