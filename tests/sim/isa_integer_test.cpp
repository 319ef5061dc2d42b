// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic of the simulator, instruction by instruction.
#include "tests/sim/arithmetic.h"

namespace {

using namespace sim_test;

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

}  // namespace
