// SPDX-License-Identifier: Apache-2.0
// Arithmetic of float32 and float64 in the simulator, instruction by instruction.
#include <bit>
#include <cstdlib>
#include <limits>

#include "sim/isa/elementary.h"
#include "tests/sim/arithmetic.h"

namespace {

using namespace sim_test;

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

// 0.75 times 1365 / 1024 of the least normal number is less than that number until rounding lifts it there. 0.75 times
// 1366 / 1024 of it is not.
TEST(Float, HalvesAreFlushedBeforeTheyAreRounded) {
  const std::vector<In> inputs = {{0x3a00, 0x0555}, {0xba00, 0x0555}, {0x3a00, 0x0556}, {0x3c00, 0x0400}};
  const auto product = [](bool flush) {
    return [flush](uint64_t a, uint64_t b, uint64_t) -> uint64_t {
      const double exact = value_of(a, kF16) * value_of(b, kF16);
      if (flush && std::fabs(exact) < 0x1p-14) return std::signbit(exact) ? 0x8000 : 0;
      return code_of(static_cast<float>(exact), kF16);
    };
  };
  EXPECT_EQ(product(false)(0x3a00, 0x0555, 0), 0x0400u);
  check("mul.f16 %d, %a, %b;", "hhh", product(false), inputs);
  check("mul.ftz.f16 %d, %a, %b;", "hhh", product(true), inputs);
  check("fma.rn.ftz.f16 %d, %a, %b, 0x0000;", "hhh", product(true), inputs);
}

// The NaN 0x7ff7 stands for an element outside of a tensor.
TEST(Float, OobIsZeroWhereAFactorIsOutside) {
  for (const auto& [name, format] : {std::pair(".f16", kF16), std::pair(".bf16", kBF16)}) {
    const auto code = [&](float value) { return static_cast<uint64_t>(code_of(value, format)); };
    const std::vector<In> inputs = {{code(1), code(-1), code(0)},  {code(2), code(3), code(0.5f)},
                                    {0x7ff7, code(2), code(4)},    {code(2), 0xfff7, code(4)},
                                    {code(-2), code(3), code(-1)}, {code(2), code(3), code(-6)}};
    for (const bool relu : {false, true}) {
      for (const bool two : {false, true}) {
        const auto element = [&](uint64_t a, uint64_t b, uint64_t c) -> uint64_t {
          if ((a & 0x7fff) == 0x7ff7 || (b & 0x7fff) == 0x7ff7) return 0;
          const double sum = value_of(a, format) * value_of(b, format) + value_of(c, format);
          return code(relu && sum < 0 ? 0 : static_cast<float>(sum));
        };
        std::vector<In> given = inputs;
        for (size_t i = 0; two && i < inputs.size(); ++i) {
          const In& above = inputs[(i + 1) % inputs.size()];
          given[i] = {inputs[i].a | above.a << 16, inputs[i].b | above.b << 16, inputs[i].c | above.c << 16};
        }
        check(
            std::string("fma.rn.oob") + (relu ? ".relu" : "") + name + (two ? "x2" : "") + " %d, %a, %b, %c;",
            two ? "wwww" : "hhhh",
            [&](uint64_t a, uint64_t b, uint64_t c) {
              return element(a & 0xffff, b & 0xffff, c & 0xffff) | (two ? element(a >> 16, b >> 16, c >> 16) << 16 : 0);
            },
            given);
      }
    }
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
// 1 + 2^-24 lies in the middle of two floats.
TEST(Float, InDoubtIsWhatLiesNearTheMiddleOfTwoFloats) {
  const uint64_t middle = std::bit_cast<uint64_t>(1 + 0x1p-24), kDoubt = sim::isa::kDoubt;
  for (uint64_t off = 0; off < kDoubt; ++off) {
    EXPECT_TRUE(sim::isa::in_doubt(std::bit_cast<double>(middle + off))) << off;
    EXPECT_TRUE(sim::isa::in_doubt(std::bit_cast<double>(middle - off))) << off;
  }
  for (const uint64_t off : {kDoubt + 1, uint64_t{1} << 10, uint64_t{1} << 28}) {
    EXPECT_FALSE(sim::isa::in_doubt(std::bit_cast<double>(middle + off))) << off;
    EXPECT_FALSE(sim::isa::in_doubt(std::bit_cast<double>(middle - off))) << off;
  }
  EXPECT_TRUE(sim::isa::in_doubt(std::numeric_limits<double>::quiet_NaN()));
  EXPECT_TRUE(sim::isa::in_doubt(0x1p-127));
  EXPECT_FALSE(sim::isa::in_doubt(0));
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

// What is not in doubt lies within kDoubt units in the last place of the function, computed in long double.
TEST(Float, QuickFunctionsKeepTheirBounds) {
  struct {
    double (*quick)(float);
    long double (*exact)(long double);
  } const functions[] = {
      {sim::isa::quick_sin, std::sin},   {sim::isa::quick_cos, std::cos},   {sim::isa::quick_log2, std::log2},
      {sim::isa::quick_exp2, std::exp2}, {sim::isa::quick_tanh, std::tanh},
  };
  for (const auto& f : functions) {
    for (uint32_t code = 0x30000000; code < 0x49800000; code += 16001) {  // from 2^-31 to 2^20
      for (const float x : {std::bit_cast<float>(code), -std::bit_cast<float>(code)}) {
        const double quick = f.quick(x);
        if (sim::isa::in_doubt(quick)) continue;
        const long double exact = f.exact(x);
        if (std::fabs(exact) > 0x1p128L) continue;
        int exponent = 0;
        std::frexp(quick, &exponent);
        ASSERT_LE(std::fabs(quick - exact), std::ldexp(static_cast<long double>(sim::isa::kDoubt), exponent - 53)) << x;
      }
    }
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

}  // namespace
