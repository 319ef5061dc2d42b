// SPDX-License-Identifier: Apache-2.0
// Instructions that exist for several types, in every one of them: integers against 128-bit arithmetic, conversions
// against 128-bit floats, comparisons against doubles, reductions and atomic operations on small floats against
// doubles rounded once.
#include <gtest/gtest.h>

#include <algorithm>

#include "arithmetic.h"
#include "async.h"

namespace {

using namespace sim_test;
using Big = __int128;

struct Type {
  std::string name;
  int bits;
  bool is_signed;
  char kind() const { return bits == 64 ? 'd' : bits == 32 ? 'w' : 'h'; }
  Big value(uint64_t v) const {
    const uint64_t low = bits == 64 ? v : v & ((uint64_t{1} << bits) - 1);
    const bool negative = is_signed && (low >> (bits - 1) & 1) != 0;
    return static_cast<Big>(low) - (negative ? static_cast<Big>(1) << bits : 0);
  }
  Big low() const { return is_signed ? -(static_cast<Big>(1) << (bits - 1)) : 0; }
  Big high() const { return (static_cast<Big>(1) << (bits - is_signed)) - 1; }
  Big clamp(Big v) const { return std::clamp(v, low(), high()); }
};
const std::vector<Type> kIntegers = {{"u16", 16, false}, {"s16", 16, true},  {"u32", 32, false},
                                     {"s32", 32, true},  {"u64", 64, false}, {"s64", 64, true}};

using Exact = std::function<Big(Big, Big, Big)>;

// The instruction on values of the type, whose result is cut off.
void check_integer(const std::string& code, const Type& t, size_t sources, const Exact& exact) {
  check(code, std::string(sources + 1, t.kind()), [&](uint64_t a, uint64_t b, uint64_t c) {
    return static_cast<uint64_t>(exact(t.value(a), t.value(b), t.value(c)));
  });
}

TEST(EveryType, IntegerArithmetic) {
  for (const Type& t : kIntegers) {
    const std::string two = "." + t.name + " %d, %a, %b;", three = "." + t.name + " %d, %a, %b, %c;";
    // The product of 64-bit values has 128 bits, which a signed 128-bit number does not always hold.
    const auto product = [](Big a, Big b) {
      return static_cast<unsigned __int128>(a) * static_cast<unsigned __int128>(b);
    };
    const auto low = [&](Big a, Big b) { return static_cast<Big>(static_cast<uint64_t>(product(a, b))); };
    const auto high = [&](Big a, Big b) {
      return t.is_signed || t.bits < 64 ? (a * b) >> t.bits : static_cast<Big>(product(a, b) >> 64);
    };
    check_integer("add" + two, t, 2, [](Big a, Big b, Big) { return a + b; });
    check_integer("sub" + two, t, 2, [](Big a, Big b, Big) { return a - b; });
    check_integer("mul.lo" + two, t, 2, [&](Big a, Big b, Big) { return low(a, b); });
    check_integer("mul.hi" + two, t, 2, [&](Big a, Big b, Big) { return high(a, b); });
    check_integer("mad.lo" + three, t, 3, [&](Big a, Big b, Big c) { return low(a, b) + c; });
    check_integer("mad.hi" + three, t, 3, [&](Big a, Big b, Big c) { return high(a, b) + c; });
    check_integer("sad" + three, t, 3, [](Big a, Big b, Big c) { return c + (a < b ? b - a : a - b); });
    check_integer("min" + two, t, 2, [](Big a, Big b, Big) { return std::min(a, b); });
    check_integer("max" + two, t, 2, [](Big a, Big b, Big) { return std::max(a, b); });
    // By zero nothing is defined.
    check_integer(".reg .pred %z; setp.eq." + t.name + " %z, %b, 0; div" + two + " @%z mov.b" + std::to_string(t.bits) +
                      " %d, 0;",
                  t, 2, [](Big a, Big b, Big) { return b == 0 ? 0 : a / b; });
    check_integer(".reg .pred %z; setp.eq." + t.name + " %z, %b, 0; rem" + two + " @%z mov.b" + std::to_string(t.bits) +
                      " %d, 0;",
                  t, 2, [](Big a, Big b, Big) { return b == 0 ? 0 : a % b; });
    if (t.is_signed) {
      check_integer("abs." + t.name + " %d, %a;", t, 1, [](Big a, Big, Big) { return a < 0 ? -a : a; });
      check_integer("neg." + t.name + " %d, %a;", t, 1, [](Big a, Big, Big) { return -a; });
    }
    if (t.bits < 64) {
      const std::string kinds = t.bits == 16 ? "whh" : "dww";
      check("mul.wide" + two, kinds,
            [&](uint64_t a, uint64_t b, uint64_t) { return static_cast<uint64_t>(t.value(a) * t.value(b)); });
      check("mad.wide" + three, kinds + kinds[0], [&](uint64_t a, uint64_t b, uint64_t c) {
        return static_cast<uint64_t>(t.value(a) * t.value(b) + static_cast<Big>(c));
      });
    }
    for (const bool right : {false, true}) {
      const std::string type = right ? t.name : "b" + std::to_string(t.bits);
      check((right ? "shr." : "shl.") + type + " %d, %a, %b;", std::string(2, t.kind()) + "w",
            [&](uint64_t a, uint64_t b, uint64_t) {
              const Big v = t.value(a);
              const uint64_t n = std::min<uint64_t>(b, 64);
              return static_cast<uint64_t>(right    ? v >> n
                                           : n > 63 ? 0
                                                    : static_cast<Big>(static_cast<unsigned __int128>(v) << n));
            });
    }
  }
  const Type s32 = kIntegers[3], u32 = kIntegers[2];
  check_integer("mad.hi.sat.s32 %d, %a, %b, %c;", s32, 3,
                [&](Big a, Big b, Big c) { return s32.clamp(((a * b) >> 32) + c); });
  const auto low24 = [](Big v, bool is_signed) {
    const Big low = v & 0xffffff;
    return is_signed && (low >> 23) != 0 ? low - 0x1000000 : low;
  };
  for (const Type& t : {u32, s32}) {
    const auto product = [&](Big a, Big b) { return low24(a, t.is_signed) * low24(b, t.is_signed); };
    check_integer("mul24.lo." + t.name + " %d, %a, %b;", t, 2, [&](Big a, Big b, Big) { return product(a, b); });
    check_integer("mul24.hi." + t.name + " %d, %a, %b;", t, 2, [&](Big a, Big b, Big) { return product(a, b) >> 16; });
    check_integer("mad24.lo." + t.name + " %d, %a, %b, %c;", t, 3,
                  [&](Big a, Big b, Big c) { return product(a, b) + c; });
    check_integer("mad24.hi." + t.name + " %d, %a, %b, %c;", t, 3,
                  [&](Big a, Big b, Big c) { return (product(a, b) >> 16) + c; });
  }
  check_integer("mad24.hi.sat.s32 %d, %a, %b, %c;", s32, 3,
                [&](Big a, Big b, Big c) { return s32.clamp((low24(a, true) * low24(b, true) >> 16) + c); });
  for (const Type& a : {u32, s32}) {
    for (const Type& b : {u32, s32}) {
      const Type byte_a{"", 8, a.is_signed}, byte_b{"", 8, b.is_signed}, half{"", 16, a.is_signed};
      const std::string types = "." + a.name + "." + b.name + " %d, %a, %b, %c;";
      check("dp4a" + types, "wwww", [&](uint64_t x, uint64_t y, uint64_t c) {
        Big sum = static_cast<Big>(c);
        for (int i = 0; i < 4; ++i) sum += byte_a.value(x >> 8 * i) * byte_b.value(y >> 8 * i);
        return static_cast<uint64_t>(sum);
      });
      for (const Type& d : {u32, s32}) {
        for (const int bits : {8, 16}) {
          const auto differences = [&](uint64_t x, uint64_t y, auto use) {
            for (int i = 0; i < 32; i += bits) {
              const Big t = Type{"", bits, a.is_signed}.value(x >> i) - Type{"", bits, b.is_signed}.value(y >> i);
              use(t < 0 ? -t : t, i);
            }
          };
          const std::string name = "vabsdiff" + std::to_string(32 / bits) + "." + d.name + "." + a.name + "." + b.name;
          check(name + ".add %d, %a, %b, %c;", "wwww", [&](uint64_t x, uint64_t y, uint64_t c) {
            differences(x, y, [&](Big t, int) { c += static_cast<uint64_t>(t); });
            return c;
          });
          for (const bool saturated : {false, true}) {
            check(name + (saturated ? ".sat" : "") + " %d, %a, %b, %c;", "wwww", [&](uint64_t x, uint64_t y, uint64_t) {
              uint64_t packed = 0;
              differences(x, y, [&](Big t, int at) {
                if (saturated) t = Type{"", bits, d.is_signed}.clamp(t);
                packed |= (static_cast<uint64_t>(t) & ((1u << bits) - 1)) << at;
              });
              return packed;
            });
          }
        }
      }
      for (const int first : {0, 2}) {
        check((first == 0 ? "dp2a.lo" : "dp2a.hi") + types, "wwww", [&](uint64_t x, uint64_t y, uint64_t c) {
          Big sum = static_cast<Big>(c);
          for (int i = 0; i < 2; ++i) sum += half.value(x >> 16 * i) * byte_b.value(y >> 8 * (first + i));
          return static_cast<uint64_t>(sum);
        });
      }
    }
    for (const bool clamp : {false, true}) {
      check(std::string("szext.") + (clamp ? "clamp." : "wrap.") + a.name + " %d, %a, %b;", "www",
            [&](uint64_t v, uint64_t n, uint64_t) {
              if (clamp && n >= 32) return v;
              const int bits = static_cast<int>(n % 32);
              return bits == 0 ? uint64_t{0} : static_cast<uint64_t>(Type{"", bits, a.is_signed}.value(v));
            });
    }
  }
}

// 9.7.2: the carry of a sum is what does not fit the width; a difference keeps the complement of the borrow.
TEST(EveryType, ExtendedPrecision) {
  for (const Type& t : kIntegers) {
    if (t.bits == 16) continue;
    const std::string n = "." + t.name, w = std::to_string(t.bits);
    const Type u{"", t.bits, false};
    const Big one = static_cast<Big>(1) << t.bits;
    const auto sum = [&](uint64_t a, uint64_t b) { return u.value(a) + u.value(b) >= one; };
    const std::string q = ".reg .b" + w + " %q; ";
    const std::string four(4, t.kind());
    check(q + "add.cc" + n + " %q, %a, %b; addc" + n + " %d, %c, 5;", four,
          [&](uint64_t a, uint64_t b, uint64_t c) { return c + 5 + sum(a, b); });
    check(q + "add.cc" + n + " %q, %a, %b; addc.cc" + n + " %q, %c, %a; addc" + n + " %d, 0, 0;", four,
          [&](uint64_t a, uint64_t b, uint64_t c) {
            return static_cast<uint64_t>(u.value(c) + u.value(a) + sum(a, b) >= one);
          });
    check(q + "sub.cc" + n + " %q, %a, %b; subc.cc" + n + " %q, %c, %a; subc" + n + " %d, %b, 0;", four,
          [&](uint64_t a, uint64_t b, uint64_t c) {
            const bool borrow = u.value(c) - u.value(a) - (u.value(a) < u.value(b)) < 0;
            return b - borrow;
          });
    for (const std::string half : {"lo", "hi"}) {
      const auto product = [&](uint64_t a, uint64_t b) {
        if (half == "lo")
          return u.value(static_cast<uint64_t>(static_cast<unsigned __int128>(t.value(a)) *
                                               static_cast<unsigned __int128>(t.value(b))));
        const unsigned __int128 wide =
            static_cast<unsigned __int128>(t.value(a)) * static_cast<unsigned __int128>(t.value(b));
        return u.value(static_cast<uint64_t>(wide >> t.bits));
      };
      check(q + "mad." + half + ".cc" + n + " %q, %a, %b, %c; addc" + n + " %d, %q, 0;", four,
            [&](uint64_t a, uint64_t b, uint64_t c) {
              const Big total = product(a, b) + u.value(c);
              return static_cast<uint64_t>(total) + (total >= one);
            });
      check(q + "add.cc" + n + " %q, %a, %b; madc." + half + ".cc" + n + " %q, %a, %b, %c; addc" + n + " %d, %q, 0;",
            four, [&](uint64_t a, uint64_t b, uint64_t c) {
              const Big total = product(a, b) + u.value(c) + sum(a, b);
              return static_cast<uint64_t>(total) + (total >= one);
            });
      check(q + "add.cc" + n + " %q, %a, %b; madc." + half + n + " %d, %a, %b, %c;", four,
            [&](uint64_t a, uint64_t b, uint64_t c) { return static_cast<uint64_t>(product(a, b)) + c + sum(a, b); });
    }
  }
}

std::vector<In> half_pairs(const FloatFormat& f) {
  std::vector<uint64_t> codes = {0,
                                 f.magnitudes(),
                                 1,
                                 f.magnitudes() + 1,
                                 f.largest(),
                                 f.magnitudes() + f.largest(),
                                 f.largest() + 1,
                                 f.magnitudes() + f.largest() + 1,
                                 f.largest() + 2,
                                 f.magnitudes() - 1,
                                 1u << f.mantissa,
                                 (1u << f.mantissa) - 1,
                                 f.magnitudes() + (1u << f.mantissa) - 1};
  std::mt19937 rng(8);
  for (int i = 0; i < 30; ++i) codes.push_back(rng() & 0xffff);
  std::vector<In> all;
  for (const uint64_t a : codes)
    for (const uint64_t b : codes)
      all.push_back({a | (codes[rng() % codes.size()] << 16), b | (codes[rng() % codes.size()] << 16), rng()});
  return all;
}

struct Comparison {
  std::string name;
  bool (*holds)(double, double);
};
const std::vector<Comparison> kComparisons = {{"eq", [](double a, double b) { return a == b; }},
                                              {"ne", [](double a, double b) { return a < b || a > b; }},
                                              {"lt", [](double a, double b) { return a < b; }},
                                              {"le", [](double a, double b) { return a <= b; }},
                                              {"gt", [](double a, double b) { return a > b; }},
                                              {"ge", [](double a, double b) { return a >= b; }},
                                              {"num", [](double a, double b) { return a == a && b == b; }},
                                              {"nan", [](double a, double b) { return a != a || b != b; }}};

TEST(EveryType, FloatComparisons) {
  for (const Comparison& c : kComparisons) {
    for (const bool unordered : {false, true}) {
      if (unordered && c.name.size() == 3) continue;
      const auto holds = [&](double a, double b) {
        return uint64_t{c.holds(a, b) || (unordered && (a != a || b != b))};
      };
      const std::string name = c.name + (unordered ? "u." : ".");
      std::vector<In> doubles;
      for (const In& in : float_inputs(200))
        doubles.push_back({std::bit_cast<uint64_t>(static_cast<double>(f32(in.a))),
                           std::bit_cast<uint64_t>(static_cast<double>(f32(in.b))), 0});
      check(
          "setp." + name + "f64 %d, %a, %b;", "pdd",
          [&](uint64_t a, uint64_t b, uint64_t) { return holds(f64(a), f64(b)); }, doubles);
      for (const bool bfloat : {false, true}) {
        const FloatFormat& f = bfloat ? kBF16 : kF16;
        const std::string type = bfloat ? "bf16" : "f16";
        for (const bool ftz : {false, true}) {
          if (bfloat && ftz) continue;
          const auto value = [&](uint64_t code) {
            const double v = value_of(code, f);
            return ftz && std::fabs(v) < 0x1p-14 ? std::copysign(0.0, v) : v;
          };
          const std::string op = c.name + (unordered ? "u" : "") + (ftz ? ".ftz." : ".");
          const auto inputs = half_pairs(f);
          check(
              "setp." + op + type + " %d, %a, %b;", "phh",
              [&](uint64_t a, uint64_t b, uint64_t) { return holds(value(a), value(b)); }, inputs);
          check(
              ".reg .pred %q; setp." + op + type + "x2 %d|%q, %a, %b;", "pww",
              [&](uint64_t a, uint64_t b, uint64_t) { return holds(value(a), value(b)); }, inputs);
          check(
              ".reg .pred %q; setp." + op + type + "x2 %q|%d, %a, %b;", "pww",
              [&](uint64_t a, uint64_t b, uint64_t) { return holds(value(a >> 16), value(b >> 16)); }, inputs);
          check(
              "set." + op + "u32." + type + "x2 %d, %a, %b;", "www",
              [&](uint64_t a, uint64_t b, uint64_t) {
                return holds(value(a), value(b)) * 0xffff + holds(value(a >> 16), value(b >> 16)) * 0xffff0000;
              },
              inputs);
          const uint64_t one = code_of(1, f);
          check(
              "set." + op + type + "x2." + type + "x2 %d, %a, %b;", "www",
              [&](uint64_t a, uint64_t b, uint64_t) {
                return holds(value(a), value(b)) * one + holds(value(a >> 16), value(b >> 16)) * (one << 16);
              },
              inputs);
          check(
              "set." + op + "s16." + type + " %d, %a, %b;", "hhh",
              [&](uint64_t a, uint64_t b, uint64_t) { return holds(value(a), value(b)) * 0xffff; }, inputs);
          check(
              "set." + op + "u32." + type + " %d, %a, %b;", "whh",
              [&](uint64_t a, uint64_t b, uint64_t) { return holds(value(a), value(b)) * 0xffffffff; }, inputs);
        }
      }
    }
  }
  // 9.7.6.4: a NaN is not at least zero, and neither is a subnormal below it unless it is flushed.
  for (const bool ftz : {false, true}) {
    check(
        std::string("slct") + (ftz ? ".ftz" : "") + ".b32.f32 %d, %a, %b, %c;", "wwww",
        [&](uint64_t a, uint64_t b, uint64_t c) {
          const float v = f32(c);
          return v >= 0 || (ftz && std::fabs(v) < 0x1p-126f) ? a : b;
        },
        float_inputs(300));
  }
}

TEST(EveryType, ConversionsBetweenIntegersAndFloats) {
  const std::vector<Type> integers = {{"u8", 8, false},   {"s8", 8, true},   {"u16", 16, false}, {"s16", 16, true},
                                      {"u32", 32, false}, {"s32", 32, true}, {"u64", 64, false}, {"s64", 64, true}};
  const std::vector<std::pair<std::string, Rounding>> kSmall = {
      {"rn", Rounding::Nearest}, {"rz", Rounding::Zero}, {"rm", Rounding::Down}, {"rp", Rounding::Up}};
  for (const Type& t : integers) {
    const char kind = t.bits == 8 ? 'h' : t.kind();
    for (size_t r = 0; r < 4; ++r) {
      const auto& [name, mode] = kModes[r];
      const std::string from = "." + t.name + " %d, %a;";
      check("cvt." + name + ".f32" + from, std::string("w") + kind, [&](uint64_t a, uint64_t, uint64_t) {
        return bits(round_quad<float>(static_cast<__float128>(t.value(a)), mode));
      });
      check("cvt." + name + ".f64" + from, std::string("d") + kind, [&](uint64_t a, uint64_t, uint64_t) {
        return std::bit_cast<uint64_t>(round_quad<double>(static_cast<__float128>(t.value(a)), mode));
      });
      if (t.bits == 64) continue;
      for (const bool bfloat : {false, true}) {
        check("cvt." + name + (bfloat ? ".bf16" : ".f16") + from, std::string("h") + kind,
              [&](uint64_t a, uint64_t, uint64_t) {
                return code_of(static_cast<double>(t.value(a)), bfloat ? kBF16 : kF16, kSmall[r].second);
              });
      }
    }
    // To integers: what is out of range takes the nearest end (9.7.9.21), and a NaN 0 where 32 bits are enough.
    for (size_t r = 0; r < 4; ++r) {
      const std::string name = std::vector<std::string>{"rni", "rzi", "rmi", "rpi"}[r];
      const auto whole = [&](double v) -> uint64_t {
        if (v != v) return t.bits == 64 ? uint64_t{1} << 63 : 0;
        const double w = r == 0 ? std::nearbyint(v) : r == 1 ? std::trunc(v) : r == 2 ? std::floor(v) : std::ceil(v);
        if (w <= static_cast<double>(t.low())) return static_cast<uint64_t>(t.low());
        if (w >= static_cast<double>(t.high())) return static_cast<uint64_t>(t.high());
        return static_cast<uint64_t>(static_cast<Big>(w));
      };
      const std::string result(1, t.bits == 64 ? 'd' : 'w');
      const std::string suffix = " %d, %a;";
      check(
          "cvt." + name + "." + t.name + ".f32" + suffix, result + "w",
          [&](uint64_t a, uint64_t, uint64_t) { return whole(static_cast<double>(f32(a))); }, float_inputs(300));
      check(
          "cvt." + name + "." + t.name + ".f16" + suffix, result + "h",
          [&](uint64_t a, uint64_t, uint64_t) { return whole(value_of(a, kF16)); }, half_pairs(kF16));
      check(
          "cvt." + name + "." + t.name + ".bf16" + suffix, result + "h",
          [&](uint64_t a, uint64_t, uint64_t) { return whole(value_of(a, kBF16)); }, half_pairs(kBF16));
    }
    for (const Type& u : integers) {
      const std::string kinds = std::string(1, u.bits == 64 ? 'd' : 'w') + kind;
      check("cvt." + u.name + "." + t.name + " %d, %a;", kinds, [&](uint64_t a, uint64_t, uint64_t) {
        return static_cast<uint64_t>(u.value(static_cast<uint64_t>(t.value(a))));
      });
      if (t.low() >= u.low() && t.high() <= u.high()) continue;
      check("cvt.sat." + u.name + "." + t.name + " %d, %a;", kinds,
            [&](uint64_t a, uint64_t, uint64_t) { return static_cast<uint64_t>(u.clamp(t.value(a))); });
    }
  }
}

// ---- atomic operations and reductions -------------------------------------------------------------

// Codes of the format, and what min, max and add give: one operand that is no NaN wins, and -0 is less than +0.
uint32_t half_result(const std::string& op, uint32_t a, uint32_t b, const FloatFormat& f) {
  const double x = value_of(a, f), y = value_of(b, f);
  if (op == "add") return code_of(x + y, f);
  if (x != x && y != y) return f.magnitudes() - 1;
  if (x != x || y != y) return x != x ? b : a;
  const bool less = x < y || (x == y && std::signbit(x));
  return less == (op == "min") ? a : b;
}

TEST(EveryType, AtomicOperationsOnSmallFloats) {
  for (const bool bfloat : {false, true}) {
    const FloatFormat& f = bfloat ? kBF16 : kF16;
    for (const std::string op : {"add", "min", "max"}) {
      for (const int form : {0, 1, 2, 3}) {  // a half, a pair, vectors of two halves and of two pairs
        if (form < 2 && op != "add") continue;
        for (const std::string scope : {"gpu", "sys"}) {
          const auto inputs = half_pairs(f);
          const std::string type = std::string(bfloat ? ".bf16" : ".f16") + (form % 2 != 0 ? "x2" : "");
          const std::string name = "relaxed." + scope + ".global." + op + ".noftz" + (form >= 2 ? ".v2" : "") + type;
          const std::string h = ".reg .b16 %h<4>; .reg .b32 %q, %r; st.global.u64 [%out], %a; ";
          const std::string body =
              form == 0 ? "cvt.u16.u64 %h0, %b; atom." + name + " %h1, [%out], %h0; cvt.u32.u16 %q, %h1; mov.u32 %r, 0;"
              : form == 1 ? "cvt.u32.u64 %q, %b; atom." + name + " %q, [%out], %q; mov.u32 %r, 0;"
              : form == 2 ? "{ .reg .b32 %z; cvt.u32.u64 %z, %b; mov.b32 {%h0, %h1}, %z; } atom." + name +
                                " {%h2, %h3}, [%out], {%h0, %h1}; mov.b32 %q, {%h2, %h3}; mov.u32 %r, 0;"
                          : "mov.b64 {%q, %r}, %b; atom." + name + " {%q, %r}, [%out], {%q, %r};";
          // What was there, and what is there, are kept apart by a sum with a factor.
          const std::string end =
              " .reg .b64 %old, %new; mov.b64 %old, {%q, %r}; ld.global.u64 %new, [%out]; mad.lo.u64 %d, %old, 3, "
              "%new;";
          check(
              h + body + end, "ddd",
              [&](uint64_t a, uint64_t b, uint64_t) {
                const int halves = form == 0 ? 1 : form == 3 ? 4 : 2;
                uint64_t now = a;
                for (int i = 0; i < halves; ++i) {
                  const uint64_t mask = uint64_t{0xffff} << 16 * i;
                  const uint64_t result = half_result(op, a >> 16 * i & 0xffff, b >> 16 * i & 0xffff, f);
                  now = (now & ~mask) | (result & 0xffff) << 16 * i;
                }
                const uint64_t old = halves == 4 ? a : a & ((uint64_t{1} << 16 * halves) - 1);
                return 3 * old + now;
              },
              inputs);
        }
      }
    }
  }
}

TEST(EveryType, AtomicExchangesOfOddWidths) {
  for (const std::string scope : {"gpu", "sys"}) {
    for (const bool equal : {false, true}) {
      check(".reg .b16 %h<4>; st.global.u64 [%out], %a; cvt.u16.u64 %h0, " + std::string(equal ? "%a" : "%b") +
                "; cvt.u16.u64 %h1, %c; atom.relaxed." + scope +
                ".global.cas.b16 %h2, [%out], %h0, %h1; .reg .b64 %old, %new; cvt.u64.u16 %old, %h2;"
                " ld.global.u64 %new, [%out]; mad.lo.u64 %d, %old, 3, %new;",
            "dddd", [&](uint64_t a, uint64_t b, uint64_t c) {
              const bool same = equal || (a & 0xffff) == (b & 0xffff);
              return 3 * (a & 0xffff) + (same ? (a & ~uint64_t{0xffff}) | (c & 0xffff) : a);
            });
    }
    for (const bool generic : {false, true}) {
      const std::string space = generic ? "" : ".shared", at = generic ? "[%g]" : "[%at]";
      const std::string head =
          ".shared .align 16 .b8 s[2048]; .reg .b32 %at; .reg .b128 %q<4>; .reg .b64 %v<4>, %g; mov.u32 %at, %tid.x; "
          "mad.lo.u32 %at, %at, 16, s; cvt.u64.u32 %g, %at; cvta.shared.u64 %g, %g; st.shared.v2.u64 [%at], {%a, %b}; ";
      const std::string tail =
          "mov.b128 {%v0, %v1}, %q2; ld.shared.v2.u64 {%v2, %v3}, [%at]; mad.lo.u64 %v0, %v1, 3, %v0; mad.lo.u64 %v0, "
          "%v2, 5, %v0; mad.lo.u64 %d, %v3, 7, %v0;";
      // Only when both halves are equal.
      for (const int wrong : {0, 1, 2, 3}) {
        const std::string compare = std::string(wrong & 1 ? "%b" : "%a") + ", " + (wrong & 2 ? "%a" : "%b");
        check(head + "mov.b128 %q0, {" + compare + "}; mov.b128 %q1, {%c, %a}; atom.relaxed." + scope + space +
                  ".cas.b128 %q2, " + at + ", %q0, %q1; " + tail,
              "dddd", [&](uint64_t a, uint64_t b, uint64_t c) {
                const bool same = a == (wrong & 1 ? b : a) && b == (wrong & 2 ? a : b);
                return a + 3 * b + 5 * (same ? c : a) + 7 * (same ? a : b);
              });
      }
      check(head + "mov.b128 %q1, {%c, %a}; atom.relaxed." + scope + space + ".exch.b128 %q2, " + at + ", %q1; " + tail,
            "dddd", [](uint64_t a, uint64_t b, uint64_t c) { return a + 3 * b + 5 * c + 7 * a; });
    }
  }
  // Sums of floats flush subnormals in global memory, as an H200 does, and not in shared memory. Both kinds of address.
  for (const bool generic : {false, true}) {
    for (const bool shared : {false, true}) {
      const std::string space = generic ? "" : shared ? ".shared" : ".global";
      const std::string at =
          shared ? ".shared .align 16 .b8 s[512]; .reg .b64 %at; .reg .b32 %lane; mov.u32 %lane, %tid.x; "
                   "mul.wide.u32 %at, %lane, 4; mov.u64 %t, s; add.u64 %at, %at, %t; " +
                       std::string(generic ? "cvta.shared.u64 %at, %at; " : "")
                 : ".reg .b64 %at; mov.u64 %at, %out; ";
      check(
          at + "st" + space + ".u32 [%at], %a; .reg .b32 %old, %new; atom" + space + ".add.f32 %old, [%at], %b; ld" +
              space + ".u32 %new, [%at]; mad.lo.u32 %d, %old, 3, %new;",
          "www",
          [&](uint64_t a, uint64_t b, uint64_t) {
            const auto flush = [&](float v) {
              return !shared && std::fabs(v) < 0x1p-126f ? std::copysign(0.0f, v) : v;
            };
            return 3 * a + bits(flush(flush(f32(a)) + flush(f32(b))));
          },
          float_inputs(300));
    }
    const std::string space = generic ? "" : ".global";
    check(
        "st" + space + ".u32 [%out], %a; red" + space + ".add.f32 [%out], %b; ld" + space + ".u32 %d, [%out];", "www",
        [](uint64_t a, uint64_t b, uint64_t) {
          const auto flush = [](float v) { return std::fabs(v) < 0x1p-126f ? std::copysign(0.0f, v) : v; };
          return bits(flush(flush(f32(a)) + flush(f32(b))));
        },
        float_inputs(100));
  }
  check(
      "st.global.u64 [%out], %a; .reg .b64 %old; atom.global.add.f64 %old, [%out], %b; ld.global.u64 %d, [%out]; "
      "xor.b64 %old, %old, %a; add.u64 %d, %d, %old;",
      "ddd",
      [](uint64_t a, uint64_t b, uint64_t) {
        const double x = f64(a), y = f64(b);
        return std::bit_cast<uint64_t>(x + y);
      },
      [] {
        std::vector<In> all;
        for (const In& in : float_inputs(300)) {
          if (f32(in.a) != f32(in.a) || f32(in.b) != f32(in.b) || std::isinf(f32(in.a))) continue;
          all.push_back({std::bit_cast<uint64_t>(static_cast<double>(f32(in.a)) / 3),
                         std::bit_cast<uint64_t>(static_cast<double>(f32(in.b)) / 7), 0});
        }
        return all;
      }());
}

// redux.sync of floats (9.7.13.13): a NaN loses unless .NaN lets it win, and -0 is less than +0.
TEST(EveryType, ReductionsOfFloats) {
  std::mt19937 rng(4);
  const std::vector<uint32_t> edges = float_edges();
  for (const std::string op : {"min", "max"}) {
    for (const bool abs : {false, true}) {
      for (const bool nan : {false, true}) {
        for (int round = 0; round < 40; ++round) {
          sim::GlobalMemory memory;
          std::vector<uint32_t> values(32);
          // Few values, so that zeros of both signs meet, and sometimes nothing but NaN.
          for (uint32_t& v : values)
            v = round == 0  ? 0x7fc00001
                : round % 2 ? edges[rng() % edges.size()]
                : round % 3 ? (rng() % 2 << 31)
                            : static_cast<uint32_t>(rng());
          Buffer<uint32_t> in(memory, values), out(memory, 32, 77u);
          Shape shape;
          shape.arch = 100;
          const uint32_t members = round % 4 == 3 ? 0x80f0a001 : ~0u;
          run_ptx(R"(
.visible .entry k(.param .u64 p_in, .param .u64 p_out, .param .u32 p_members) {
  .reg .b32 %i, %m, %b; .reg .f32 %v, %r; .reg .b64 %in, %out; .reg .pred %p;
  ld.param.u64 %in, [p_in]; ld.param.u64 %out, [p_out]; ld.param.u32 %m, [p_members];
  mov.u32 %i, %tid.x;
  mad.wide.u32 %in, %i, 4, %in; mad.wide.u32 %out, %i, 4, %out;
  ld.global.f32 %v, [%in];
  shr.u32 %b, %m, %i; and.b32 %b, %b, 1; setp.eq.u32 %p, %b, 0; @%p exit;
  redux.sync.)" + op + (abs ? ".abs" : "") +
                      (nan ? ".NaN" : "") + R"(.f32 %r, %v, %m;
  st.global.f32 [%out], %r;
  ret;
})",
                  "k", Params().add(in.address()).add(out.address()).add(members), memory, shape);
          bool any = false, found = false;
          uint32_t best = 0;
          const auto key = [](uint32_t v) { return v >> 31 ? -static_cast<int64_t>(v & 0x7fffffff) - 1 : int64_t{v}; };
          for (int lane = 0; lane < 32; ++lane) {
            if (!(members >> lane & 1)) continue;
            const uint32_t v = abs ? values[static_cast<size_t>(lane)] & 0x7fffffff : values[static_cast<size_t>(lane)];
            if ((v & 0x7fffffff) > 0x7f800000) {
              any = true;
              continue;
            }
            if (!found || (op == "min" ? key(v) < key(best) : key(v) > key(best))) best = v;
            found = true;
          }
          const uint32_t want = !found || (any && nan) ? 0x7fffffff : best;
          for (size_t lane = 0; lane < 32; ++lane)
            EXPECT_EQ(out[lane], members >> lane & 1 ? want : 77u) << op << abs << nan << " " << round << " " << lane;
        }
      }
    }
  }
}

// cp.reduce.async.bulk (9.7.9.25.5.4) into global and into another block's shared memory, of every operation and type.
TEST(EveryType, BulkReductions) {
  const struct {
    std::string op, type;
    int bytes;
    std::function<uint64_t(uint64_t, uint64_t)> result;
    bool shared;
  } cases[] = {
      {"and", "b32", 4, [](uint64_t a, uint64_t b) { return a & b; }, true},
      {"or", "b32", 4, [](uint64_t a, uint64_t b) { return a | b; }, true},
      {"xor", "b32", 4, [](uint64_t a, uint64_t b) { return a ^ b; }, true},
      {"and", "b64", 8, [](uint64_t a, uint64_t b) { return a & b; }, false},
      {"or", "b64", 8, [](uint64_t a, uint64_t b) { return a | b; }, false},
      {"xor", "b64", 8, [](uint64_t a, uint64_t b) { return a ^ b; }, false},
      {"add", "u32", 4, [](uint64_t a, uint64_t b) { return a + b; }, true},
      {"add", "s32", 4, [](uint64_t a, uint64_t b) { return a + b; }, true},
      {"add", "u64", 8, [](uint64_t a, uint64_t b) { return a + b; }, true},
      {"inc", "u32", 4, [](uint64_t a, uint64_t b) { return a >= b ? 0 : a + 1; }, true},
      {"dec", "u32", 4, [](uint64_t a, uint64_t b) { return a == 0 || a > b ? b : a - 1; }, true},
      {"min", "u32", 4, [](uint64_t a, uint64_t b) { return std::min(a, b); }, true},
      {"max", "u32", 4, [](uint64_t a, uint64_t b) { return std::max(a, b); }, true},
      {"min", "s32", 4,
       [](uint64_t a, uint64_t b) { return static_cast<int32_t>(a) < static_cast<int32_t>(b) ? a : b; }, true},
      {"max", "s32", 4,
       [](uint64_t a, uint64_t b) { return static_cast<int32_t>(a) > static_cast<int32_t>(b) ? a : b; }, true},
      {"min", "u64", 8, [](uint64_t a, uint64_t b) { return std::min(a, b); }, false},
      {"max", "u64", 8, [](uint64_t a, uint64_t b) { return std::max(a, b); }, false},
      {"min", "s64", 8,
       [](uint64_t a, uint64_t b) { return static_cast<int64_t>(a) < static_cast<int64_t>(b) ? a : b; }, false},
      {"max", "s64", 8,
       [](uint64_t a, uint64_t b) { return static_cast<int64_t>(a) > static_cast<int64_t>(b) ? a : b; }, false},
      {"add.noftz", "f16", 2,
       [](uint64_t a, uint64_t b) {
         return half_result("add", static_cast<uint32_t>(a), static_cast<uint32_t>(b), kF16);
       },
       false},
      {"min", "f16", 2,
       [](uint64_t a, uint64_t b) {
         return half_result("min", static_cast<uint32_t>(a), static_cast<uint32_t>(b), kF16);
       },
       false},
      {"max", "f16", 2,
       [](uint64_t a, uint64_t b) {
         return half_result("max", static_cast<uint32_t>(a), static_cast<uint32_t>(b), kF16);
       },
       false},
      {"add.noftz", "bf16", 2,
       [](uint64_t a, uint64_t b) {
         return half_result("add", static_cast<uint32_t>(a), static_cast<uint32_t>(b), kBF16);
       },
       false},
      {"min", "bf16", 2,
       [](uint64_t a, uint64_t b) {
         return half_result("min", static_cast<uint32_t>(a), static_cast<uint32_t>(b), kBF16);
       },
       false},
      {"max", "bf16", 2,
       [](uint64_t a, uint64_t b) {
         return half_result("max", static_cast<uint32_t>(a), static_cast<uint32_t>(b), kBF16);
       },
       false},
  };
  std::mt19937_64 rng(6);
  for (const auto& c : cases) {
    sim::GlobalMemory memory;
    constexpr size_t kWords = 64;
    std::vector<uint64_t> given(kWords), before(kWords);
    const auto halves = half_pairs(c.type == "bf16" ? kBF16 : kF16);
    for (size_t i = 0; i < kWords; ++i) {
      given[i] = rng(), before[i] = i % 5 == 0 ? given[i] : i % 7 == 0 ? 0 : rng();
      if (c.bytes == 2)
        given[i] = halves[rng() % halves.size()].a | halves[rng() % halves.size()].a << 32,
        before[i] = halves[rng() % halves.size()].a | halves[rng() % halves.size()].b << 32;
    }
    Buffer<uint64_t> in(memory, given), out(memory, before);
    run_ptx(bulk_kernel(R"(
  mad.lo.u32 %r5, %r3, 16, %r1;
  mad.wide.u32 %rd5, %r3, 16, %rd2;
  ld.global.v2.u64 {%rd6, %rd7}, [%rd5];
  st.shared.v2.u64 [%r5], {%rd6, %rd7};
  fence.proxy.async.shared::cta;
  bar.sync 0;
  @%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.)" +
                        c.op + "." + c.type + R"( [%rd3], [%r1], 512;
  @%p1 cp.async.bulk.commit_group;
  @%p1 cp.async.bulk.wait_group 0;
)"),
            "k", Params().add(in.address()).add(out.address()), memory, {});
    for (size_t i = 0; i < kWords; ++i) {
      uint64_t want = 0;
      for (int at = 0; at < 64; at += 8 * c.bytes) {
        const uint64_t mask = c.bytes == 8 ? ~uint64_t{0} : (uint64_t{1} << 8 * c.bytes) - 1;
        want |= (c.result(before[i] >> at & mask, given[i] >> at & mask) & mask) << at;
      }
      ASSERT_EQ(out[i], want) << c.op << "." << c.type << " of " << before[i] << " and " << given[i];
    }
    if (!c.shared) continue;
    // Into the other block.
    Buffer<uint64_t> there(memory, kWords, uint64_t{0});
    Buffer<uint64_t> both(memory, [&] {
      std::vector<uint64_t> v = given;
      v.insert(v.end(), before.begin(), before.end());
      return v;
    }());
    Shape shape;
    shape.grid = shape.cluster = {2, 1, 1};
    run_ptx(bulk_kernel(R"(
  mad.lo.u32 %r5, %r3, 16, %r1;
  mad.wide.u32 %rd5, %r3, 16, %rd2;
  mad.wide.u32 %rd5, %r4, 512, %rd5;
  ld.global.v2.u64 {%rd6, %rd7}, [%rd5];
  st.shared.v2.u64 [%r5], {%rd6, %rd7};
  fence.proxy.async;
  setp.eq.u32 %p2, %r4, 1;
  and.pred %p3, %p2, %p1;
  @%p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 512;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  @%p2 bra W;
  mapa.shared::cluster.u32 %r6, %r1, 1;
  mapa.shared::cluster.u32 %r7, %r2, 1;
  @%p1 cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.)" +
                        c.op + "." + c.type + R"( [%r6], [%r1], 512, [%r7];
  bra E;
)" + wait("%r2", "0", "W") +
                        R"(
  ld.shared.v2.u64 {%rd6, %rd7}, [%r5];
  mad.wide.u32 %rd5, %r3, 16, %rd3;
  st.global.v2.u64 [%rd5], {%rd6, %rd7};
E:
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
)"),
            "k", Params().add(both.address()).add(there.address()), memory, shape);
    EXPECT_EQ(there.values(), out.values()) << c.op << "." << c.type;
  }
}

}  // namespace
