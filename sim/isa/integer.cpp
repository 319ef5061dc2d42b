// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic: PTX ISA 9.7.1 and, with the carry flag, 9.7.2. One struct an instruction, named after it.
#include <algorithm>
#include <limits>

#include "sim/isa/lanes.h"

namespace sim {
namespace isa {
namespace {

template <class T>
using Unsigned = std::make_unsigned_t<T>;
template <class T>
struct WideType;
template <>
struct WideType<uint16_t> {
  using type = uint32_t;
};
template <>
struct WideType<int16_t> {
  using type = int32_t;
};
template <>
struct WideType<uint32_t> {
  using type = uint64_t;
};
template <>
struct WideType<int32_t> {
  using type = int64_t;
};
template <>
struct WideType<uint64_t> {
  using type = unsigned __int128;
};
template <>
struct WideType<int64_t> {
  using type = __int128;
};
template <class T>
using Wide = typename WideType<T>::type;
template <class T>
constexpr int kBits = static_cast<int>(sizeof(T)) * 8;

int32_t saturate(int64_t v) {
  return static_cast<int32_t>(
      std::clamp<int64_t>(v, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()));
}
// Wrapping arithmetic without signed overflow.
template <class T>
T plus(T a, T b) {
  return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
template <class T>
T minus(T a, T b) {
  return static_cast<T>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}
template <class T>
T low_product(T a, T b) {
  return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}
template <class T>
T high_product(T a, T b) {
  return static_cast<T>((static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b)) >> kBits<T>);
}

// 9.7.1.1, 9.7.1.2
template <class T>
struct Add {
  static T apply(T a, T b) { return plus(a, b); }
};
template <class T>
struct Sub {
  static T apply(T a, T b) { return minus(a, b); }
};
struct AddSat {
  static int32_t apply(int32_t a, int32_t b) { return saturate(int64_t{a} + b); }
};
struct SubSat {
  static int32_t apply(int32_t a, int32_t b) { return saturate(int64_t{a} - b); }
};

// 9.7.1.3, 9.7.1.4
template <class T>
struct MulLo {
  static T apply(T a, T b) { return low_product(a, b); }
};
template <class T>
struct MulHi {
  static T apply(T a, T b) { return high_product(a, b); }
};
template <class T>
struct MulWide {
  static Wide<T> apply(T a, T b) { return static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b); }
};
template <class T>
struct MadLo {
  static T apply(T a, T b, T c) { return plus(low_product(a, b), c); }
};
template <class T>
struct MadHi {
  static T apply(T a, T b, T c) { return plus(high_product(a, b), c); }
};
template <class T>
struct MadWide {
  static Wide<T> apply(T a, T b, Wide<T> c) {
    return plus(static_cast<Wide<T>>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b)), c);
  }
};
struct MadHiSat {
  static int32_t apply(int32_t a, int32_t b, int32_t c) { return saturate(int64_t{high_product(a, b)} + c); }
};

// 9.7.1.5, 9.7.1.6: the operands are the low 24 bits.
template <class T>
struct Mul24 {
  static int64_t product(T a, T b) {
    const auto low = [](T v) { return static_cast<int64_t>(static_cast<T>(static_cast<uint32_t>(v) << 8) >> 8); };
    return low(a) * low(b);
  }
};
template <class T>
struct Mul24Lo {
  static T apply(T a, T b) { return static_cast<T>(Mul24<T>::product(a, b)); }
};
template <class T>
struct Mul24Hi {
  static T apply(T a, T b) { return static_cast<T>(Mul24<T>::product(a, b) >> 16); }
};
template <class T>
struct Mad24Lo {
  static T apply(T a, T b, T c) { return plus(Mul24Lo<T>::apply(a, b), c); }
};
template <class T>
struct Mad24Hi {
  static T apply(T a, T b, T c) { return plus(Mul24Hi<T>::apply(a, b), c); }
};
struct Mad24HiSat {
  static int32_t apply(int32_t a, int32_t b, int32_t c) { return saturate(int64_t{Mul24Hi<int32_t>::apply(a, b)} + c); }
};

// 9.7.1.7
template <class T>
struct Sad {
  static T apply(T a, T b, T c) { return plus(c, a < b ? minus(b, a) : minus(a, b)); }
};

// 9.7.1.8, 9.7.1.9. Division by zero gives all ones and the dividend, as the hardware's sequence does.
template <class T>
struct Div {
  static T apply(T a, T b) {
    if (b == 0) return static_cast<T>(~T{0});
    if constexpr (std::is_signed_v<T>)
      if (b == -1) return minus(T{0}, a);
    return static_cast<T>(a / b);
  }
};
template <class T>
struct Rem {
  static T apply(T a, T b) {
    if (b == 0) return a;
    if constexpr (std::is_signed_v<T>)
      if (b == -1) return 0;
    return static_cast<T>(a % b);
  }
};

// 9.7.1.10 to 9.7.1.13
template <class T>
struct Abs {
  static T apply(T a) { return a < 0 ? minus(T{0}, a) : a; }
};
template <class T>
struct Neg {
  static T apply(T a) { return minus(T{0}, a); }
};
template <class T>
struct Min {
  static T apply(T a, T b) { return a < b ? a : b; }
};
template <class T>
struct Max {
  static T apply(T a, T b) { return a > b ? a : b; }
};
template <class T>
struct MinRelu {
  static T apply(T a, T b) { return std::max<T>(std::min(a, b), 0); }
};
template <class T>
struct MaxRelu {
  static T apply(T a, T b) { return std::max<T>(std::max(a, b), 0); }
};

// 9.7.1.14 to 9.7.1.18
template <class T>
struct Popc {
  static uint32_t apply(T a) { return static_cast<uint32_t>(std::popcount(a)); }
};
template <class T>
struct Clz {
  static uint32_t apply(T a) { return static_cast<uint32_t>(std::countl_zero(a)); }
};
template <class T, bool kShiftAmount>
struct BfindForm {
  static uint32_t apply(T a) {
    auto bits = static_cast<Unsigned<T>>(a);
    if constexpr (std::is_signed_v<T>)
      if (a < 0) bits = ~bits;
    if (bits == 0) return 0xffffffffu;
    const uint32_t leading = static_cast<uint32_t>(std::countl_zero(bits));
    return kShiftAmount ? leading : kBits<T> - 1 - leading;
  }
};
template <class T>
using Bfind = BfindForm<T, false>;
template <class T>
using BfindShift = BfindForm<T, true>;
struct Fns {
  static uint32_t apply(uint32_t mask, uint32_t base, int32_t offset) {
    const uint32_t start = base & 31;
    if (offset == 0) return mask >> start & 1 ? start : 0xffffffffu;
    int64_t count = (offset > 0 ? int64_t{offset} : -int64_t{offset}) - 1;
    for (int position = static_cast<int>(start); (position >= 0) && (position < 32); position += (offset > 0 ? 1 : -1))
      if (mask >> position & 1 && count-- == 0) return static_cast<uint32_t>(position);
    return 0xffffffffu;
  }
};
template <class T>
struct Brev {
  static T apply(T a) {
    a = (a >> 1 & static_cast<T>(0x5555555555555555ull)) | (a & static_cast<T>(0x5555555555555555ull)) << 1;
    a = (a >> 2 & static_cast<T>(0x3333333333333333ull)) | (a & static_cast<T>(0x3333333333333333ull)) << 2;
    a = (a >> 4 & static_cast<T>(0x0f0f0f0f0f0f0f0full)) | (a & static_cast<T>(0x0f0f0f0f0f0f0f0full)) << 4;
    if constexpr (sizeof(T) == 8)
      return __builtin_bswap64(a);
    else
      return __builtin_bswap32(a);
  }
};

// 9.7.1.19, 9.7.1.20: positions and lengths have 8 bits. On an H200 only the 32-bit forms cut longer ones off.
template <class T>
uint32_t field_operand(uint32_t operand) {
  return kBits<T> == 32 ? operand & 0xff : operand;
}
template <class T>
struct Bfe {
  static T apply(T a, uint32_t b, uint32_t c) {
    const uint32_t position = field_operand<T>(b), length = field_operand<T>(c);
    if (length == 0) return 0;
    // Beyond the top lies the sign or zero. Shifting in two steps keeps shifts below the width.
    const T shifted = position >= kBits<T> ? static_cast<T>(a >> (kBits<T> - 1) >> 1) : static_cast<T>(a >> position);
    const uint32_t spare = kBits<T> - std::min<uint32_t>(length, kBits<T>);
    return static_cast<T>(static_cast<T>(static_cast<Unsigned<T>>(shifted) << spare) >> spare);
  }
};
template <>
uint32_t Bfe<uint32_t>::apply(uint32_t a, uint32_t b, uint32_t c) {
  const uint32_t position = b & 0xff, length = c & 0xff;
  const uint64_t shifted = position > 31 ? 0 : a >> position;
  return static_cast<uint32_t>(length > 31 ? shifted : shifted & ((1ull << length) - 1));
}
template <class T>
struct Bfi {
  static T apply(T a, T b, uint32_t c, uint32_t d) {
    const uint32_t position = field_operand<T>(c), length = field_operand<T>(d);
    if (position >= kBits<T> || length == 0) return b;
    const T field = length >= kBits<T> ? ~T{0} : static_cast<T>((T{1} << length) - 1);
    const T mask = static_cast<T>(field << position);
    return static_cast<T>((b & ~mask) | (a << position & mask));
  }
};

// 9.7.1.21, 9.7.1.22
template <class T, bool kClamp>
struct SzextForm {
  static T apply(T a, uint32_t b) {
    const uint32_t bits = static_cast<uint32_t>(a), n = b & 31;
    if (kClamp && b >= 32) return a;
    if (n == 0) return 0;
    const int spare = static_cast<int>(32 - n);
    return static_cast<T>(static_cast<T>(bits << spare) >> spare);
  }
};
template <bool kClamp>
struct Bmsk {
  static uint32_t apply(uint32_t a, uint32_t b) {
    if (kClamp && a >= 32) return 0;
    const uint32_t position = a & 31, width = kClamp && b >= 32 ? 32 : b & 31;
    const uint64_t ones = (1ull << width) - 1;
    return static_cast<uint32_t>(ones << position);
  }
};

// 9.7.1.23, 9.7.1.24
template <class A, class B>
struct Dp4a {
  static uint32_t apply(uint32_t a, uint32_t b, uint32_t c) {
    for (int i = 0; i < 32; i += 8)
      c += static_cast<uint32_t>(static_cast<A>(a >> i)) * static_cast<uint32_t>(static_cast<B>(b >> i));
    return c;
  }
};
// What becomes of the differences of a SIMD video instruction: they replace the parts of d, saturated or not, or are
// added to c (9.7.18.2).
enum class Differences { Plain, SaturatedUnsigned, SaturatedSigned, Added };
template <class A, class B, Differences kUse>
struct Vabsdiff {
  static uint32_t apply(uint32_t a, uint32_t b, uint32_t c) {
    constexpr int kBits = 8 * sizeof(A);
    uint32_t d = kUse == Differences::Added ? c : 0;
    for (int i = 0; i < 32; i += kBits) {
      int32_t t = std::abs(int32_t{static_cast<A>(a >> i)} - int32_t{static_cast<B>(b >> i)});
      if (kUse == Differences::SaturatedUnsigned) t = std::min(t, (1 << kBits) - 1);
      if (kUse == Differences::SaturatedSigned) t = std::min(t, (1 << (kBits - 1)) - 1);
      d +=
          kUse == Differences::Added ? static_cast<uint32_t>(t) : (static_cast<uint32_t>(t) & ((1u << kBits) - 1)) << i;
    }
    return d;
  }
};
template <class A, class B, int kSelect>
struct Dp2a {
  static uint32_t apply(uint32_t a, uint32_t b, uint32_t c) {
    for (int i = 0; i < 2; ++i)
      c += static_cast<uint32_t>(static_cast<A>(a >> 16 * i)) *
           static_cast<uint32_t>(static_cast<B>(b >> (8 * (kSelect + i))));
    return c;
  }
};

// 9.7.2: the carry flag is a lane mask in the warp. A subtraction adds the complement, so that the flag says that
// nothing was borrowed. The ISA speaks of the borrow alone, but chains that go from sub.cc to addc, as the compiler's
// division of 128 bits does, show it on an H200.
template <class T, bool kIn, bool kOut>
struct Carry {
  static Step store(Warp& warp, const Instr& in, uint32_t mask, const T (&result)[kLanes], uint32_t out) {
    store_row(warp, in.reg[kD], result, mask);
    if (kOut) warp.carry = (warp.carry & ~mask) | (out & mask);
    return Step::Next;
  }
  static T carried(const Warp& warp, int lane) { return kIn ? warp.carry >> lane & 1 : 0; }

  // d = a + b + carry
  static Step add(Warp& warp, const Instr& in, uint32_t mask) {
    const T *a = warp.row<T>(in.reg[kA]), *b = warp.row<T>(in.reg[kB]);
    T result[kLanes];
    uint32_t out = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      const T sum = a[lane] + b[lane];
      result[lane] = sum + carried(warp, lane);
      out |= static_cast<uint32_t>(sum < a[lane] || result[lane] < sum) << lane;
    }
    return store(warp, in, mask, result, out);
  }
  // d = a - (b + borrow), borrow = not carry
  static Step sub(Warp& warp, const Instr& in, uint32_t mask) {
    const T *a = warp.row<T>(in.reg[kA]), *b = warp.row<T>(in.reg[kB]);
    T result[kLanes];
    uint32_t out = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      const T difference = a[lane] - b[lane], borrow = kIn ? 1 - carried(warp, lane) : 0;
      result[lane] = difference - borrow;
      out |= static_cast<uint32_t>(a[lane] >= b[lane] && difference >= borrow) << lane;
    }
    return store(warp, in, mask, result, out);
  }
  // d = half of a * b, + c + carry
  template <class Operand, bool kHigh>
  static Step mad(Warp& warp, const Instr& in, uint32_t mask) {
    const T *a = warp.row<T>(in.reg[kA]), *b = warp.row<T>(in.reg[kB]), *c = warp.row<T>(in.reg[kC]);
    T result[kLanes];
    uint32_t out = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto x = static_cast<Operand>(a[lane]), y = static_cast<Operand>(b[lane]);
      const T product = static_cast<T>(kHigh ? high_product(x, y) : low_product(x, y));
      const T sum = product + c[lane];
      result[lane] = sum + carried(warp, lane);
      out |= static_cast<uint32_t>(sum < product || result[lane] < sum) << lane;
    }
    return store(warp, in, mask, result, out);
  }
};

template <bool kIn, bool kOut>
Execute add_carry(bool wide) {
  return wide ? &Carry<uint64_t, kIn, kOut>::add : &Carry<uint32_t, kIn, kOut>::add;
}
template <bool kIn, bool kOut>
Execute sub_carry(bool wide) {
  return wide ? &Carry<uint64_t, kIn, kOut>::sub : &Carry<uint32_t, kIn, kOut>::sub;
}
template <bool kIn, bool kOut>
Execute mad_carry(Type t, bool high) {
  using C32 = Carry<uint32_t, kIn, kOut>;
  using C64 = Carry<uint64_t, kIn, kOut>;
  switch (t) {
    case Type::U32:
      return high ? &C32::template mad<uint32_t, true> : &C32::template mad<uint32_t, false>;
    case Type::S32:
      return high ? &C32::template mad<int32_t, true> : &C32::template mad<uint32_t, false>;
    case Type::U64:
      return high ? &C64::template mad<uint64_t, true> : &C64::template mad<uint64_t, false>;
    default:
      return high ? &C64::template mad<int64_t, true> : &C64::template mad<uint64_t, false>;
  }
}

bool is_carry_type(Type t) { return t == Type::U32 || t == Type::S32 || t == Type::U64 || t == Type::S64; }
Type wide_type(Type t) {
  switch (t) {
    case Type::U16:
      return Type::U32;
    case Type::S16:
      return Type::S32;
    case Type::U32:
      return Type::U64;
    default:
      return Type::S64;
  }
}

bool decode_add(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  if (f.take_one({"u16x2", "s16x2"}) >= 0) {
    f.operands({Type::B32, Type::B32, Type::B32});
    return f.choose(&lanes<Both<Add<uint16_t>>>);
  }
  if (!is_integer(f.peek_type())) return false;
  const Type t = f.type();
  f.operands({t, t, t});
  if (f.take("cc")) return f.choose(is_carry_type(t) ? add_carry<false, true>(ptx::bytes_of(t) == 8) : nullptr);
  if (f.take("sat")) return f.choose(t == Type::S32 ? &lanes<AddSat> : nullptr);
  return f.choose(integer_op<Add>(t));
}

bool decode_sub(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  if (!is_integer(f.peek_type())) return false;
  const Type t = f.type();
  f.operands({t, t, t});
  if (f.take("cc")) return f.choose(is_carry_type(t) ? sub_carry<false, true>(ptx::bytes_of(t) == 8) : nullptr);
  if (f.take("sat")) return f.choose(t == Type::S32 ? &lanes<SubSat> : nullptr);
  return f.choose(integer_op<Sub>(t));
}

bool decode_addc(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  f.operands({t, t, t});
  const bool wide = ptx::bytes_of(t) == 8, writes = f.take("cc");
  return f.choose(!is_carry_type(t) ? nullptr : writes ? add_carry<true, true>(wide) : add_carry<true, false>(wide));
}

bool decode_subc(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  f.operands({t, t, t});
  const bool wide = ptx::bytes_of(t) == 8, writes = f.take("cc");
  return f.choose(!is_carry_type(t) ? nullptr : writes ? sub_carry<true, true>(wide) : sub_carry<true, false>(wide));
}

bool decode_madc(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  const int half = f.take_one({"lo", "hi"});
  f.operands({t, t, t, t});
  const bool writes = f.take("cc");
  if (half < 0 || !is_carry_type(t)) return f.choose(nullptr);
  return f.choose(writes ? mad_carry<true, true>(t, half == 1) : mad_carry<true, false>(t, half == 1));
}

bool decode_mul(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  if (!is_integer(f.peek_type())) return false;
  const Type t = f.type();
  const int mode = f.take_one({"lo", "hi", "wide"});
  if (mode == 2) {
    f.operands({wide_type(t), t, t});
    switch (t) {
      case Type::U16:
        return f.choose(&lanes<MulWide<uint16_t>>);
      case Type::S16:
        return f.choose(&lanes<MulWide<int16_t>>);
      case Type::U32:
        return f.choose(&lanes<MulWide<uint32_t>>);
      case Type::S32:
        return f.choose(&lanes<MulWide<int32_t>>);
      default:
        return f.choose(nullptr);
    }
  }
  f.operands({t, t, t});
  return f.choose(mode == 0 ? integer_op<MulLo>(t) : mode == 1 ? integer_op<MulHi>(t) : nullptr);
}

bool decode_mad(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  if (!is_integer(f.peek_type())) return false;
  const Type t = f.type();
  const int mode = f.take_one({"lo", "hi", "wide"});
  if (mode == 2) {
    f.operands({wide_type(t), t, t, wide_type(t)});
    switch (t) {
      case Type::U16:
        return f.choose(&lanes<MadWide<uint16_t>>);
      case Type::S16:
        return f.choose(&lanes<MadWide<int16_t>>);
      case Type::U32:
        return f.choose(&lanes<MadWide<uint32_t>>);
      case Type::S32:
        return f.choose(&lanes<MadWide<int32_t>>);
      default:
        return f.choose(nullptr);
    }
  }
  f.operands({t, t, t, t});
  if (mode < 0) return f.choose(nullptr);
  if (f.take("cc")) return f.choose(is_carry_type(t) ? mad_carry<false, true>(t, mode == 1) : nullptr);
  if (f.take("sat")) return f.choose(mode == 1 && t == Type::S32 ? &lanes<MadHiSat> : nullptr);
  return f.choose(mode == 0 ? integer_op<MadLo>(t) : integer_op<MadHi>(t));
}

template <template <class> class Op>
Execute word_op(Type t) {
  return t == Type::U32 ? &lanes<Op<uint32_t>> : t == Type::S32 ? &lanes<Op<int32_t>> : nullptr;
}

bool decode_mul24(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  const int mode = f.take_one({"lo", "hi"});
  f.operands({t, t, t});
  return f.choose(mode == 0 ? word_op<Mul24Lo>(t) : mode == 1 ? word_op<Mul24Hi>(t) : nullptr);
}

bool decode_mad24(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  const int mode = f.take_one({"lo", "hi"});
  f.operands({t, t, t, t});
  if (f.take("sat")) return f.choose(mode == 1 && t == Type::S32 ? &lanes<Mad24HiSat> : nullptr);
  return f.choose(mode == 0 ? word_op<Mad24Lo>(t) : mode == 1 ? word_op<Mad24Hi>(t) : nullptr);
}

bool decode_sad(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  f.operands({t, t, t, t});
  return f.choose(integer_op<Sad>(t));
}

template <template <class> class Op>
bool decode_division(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  if (!is_integer(f.peek_type())) return false;
  const Type t = f.type();
  f.operands({t, t, t});
  return f.choose(integer_op<Op>(t));
}

template <template <class> class Op>
bool decode_sign(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  if (!is_integer(f.peek_type())) return false;
  const Type t = f.type();
  f.operands({t, t});
  return f.choose(is_signed(t) ? integer_op<Op>(t) : nullptr);
}

template <template <class> class Op, template <class> class Relu>
bool decode_min_max(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const bool relu = f.take("relu");
  const bool packed_signed = f.take("s16x2"), packed_unsigned = f.take("u16x2");
  if (packed_signed || packed_unsigned) {
    f.operands({Type::B32, Type::B32, Type::B32});
    if (packed_unsigned) return f.choose(relu ? nullptr : &lanes<Both<Op<uint16_t>>>);
    return f.choose(relu ? &lanes<Both<Relu<int16_t>>> : &lanes<Both<Op<int16_t>>>);
  }
  if (!is_integer(f.peek_type())) return false;
  const Type t = f.type();
  f.operands({t, t, t});
  if (relu) return f.choose(t == Type::S32 ? &lanes<Relu<int32_t>> : nullptr);
  return f.choose(integer_op<Op>(t));
}

template <template <class> class Op>
bool decode_count(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  f.operands({Type::U32, t});
  return f.choose(t == Type::B32 ? &lanes<Op<uint32_t>> : t == Type::B64 ? &lanes<Op<uint64_t>> : nullptr);
}

bool decode_brev(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  f.operands({t, t});
  return f.choose(t == Type::B32 ? &lanes<Brev<uint32_t>> : t == Type::B64 ? &lanes<Brev<uint64_t>> : nullptr);
}

template <template <class> class Op>
Execute long_op(Type t) {
  return ptx::bytes_of(t) < 4 ? nullptr : integer_op<Op>(t);
}

bool decode_bfind(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  f.operands({Type::U32, t});
  return f.choose(f.take("shiftamt") ? long_op<BfindShift>(t) : long_op<Bfind>(t));
}

bool decode_fns(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  f.operands({Type::B32, Type::B32, Type::U32, Type::S32});
  return f.choose(t == Type::B32 ? &lanes<Fns> : nullptr);
}

bool decode_bfe(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  f.operands({t, t, Type::U32, Type::U32});
  return f.choose(long_op<Bfe>(t));
}

bool decode_bfi(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  f.operands({t, t, t, Type::U32, Type::U32});
  return f.choose(t == Type::B32 ? &lanes<Bfi<uint32_t>> : t == Type::B64 ? &lanes<Bfi<uint64_t>> : nullptr);
}

bool decode_szext(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  const int mode = f.take_one({"clamp", "wrap"});
  f.operands({t, t, Type::U32});
  if (mode < 0) return f.choose(nullptr);
  if (t == Type::S32) return f.choose(mode == 0 ? &lanes<SzextForm<int32_t, true>> : &lanes<SzextForm<int32_t, false>>);
  if (t == Type::U32)
    return f.choose(mode == 0 ? &lanes<SzextForm<uint32_t, true>> : &lanes<SzextForm<uint32_t, false>>);
  return f.choose(nullptr);
}

bool decode_bmsk(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  const int mode = f.take_one({"clamp", "wrap"});
  f.operands({Type::B32, Type::U32, Type::U32});
  if (mode < 0 || t != Type::B32) return f.choose(nullptr);
  return f.choose(mode == 0 ? &lanes<Bmsk<true>> : &lanes<Bmsk<false>>);
}

bool decode_dp4a(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type a = f.type(), b = f.type();
  f.operands({Type::B32, Type::B32, Type::B32, Type::B32});
  if ((a != Type::U32 && a != Type::S32) || (b != Type::U32 && b != Type::S32)) return f.choose(nullptr);
  if (a == Type::U32) return f.choose(b == Type::U32 ? &lanes<Dp4a<uint8_t, uint8_t>> : &lanes<Dp4a<uint8_t, int8_t>>);
  return f.choose(b == Type::U32 ? &lanes<Dp4a<int8_t, uint8_t>> : &lanes<Dp4a<int8_t, int8_t>>);
}

template <class A, class B>
Execute vabsdiff_op(Type d, bool saturated, bool added) {
  if (added) return &lanes<Vabsdiff<A, B, Differences::Added>>;
  if (!saturated) return &lanes<Vabsdiff<A, B, Differences::Plain>>;
  return d == Type::U32 ? &lanes<Vabsdiff<A, B, Differences::SaturatedUnsigned>>
                        : &lanes<Vabsdiff<A, B, Differences::SaturatedSigned>>;
}

// The form that compilers emit, of all parts in their order: the ISA also has selectors and masks of parts.
template <class Unsigned, class Signed>
bool decode_vabsdiff(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type d = f.type(), a = f.type(), b = f.type();
  const bool saturated = f.take("sat"), added = f.take("add");
  f.operands({Type::B32, Type::B32, Type::B32, Type::B32});
  const auto is_word = [](Type t) { return t == Type::U32 || t == Type::S32; };
  if (!is_word(d) || !is_word(a) || !is_word(b) || (saturated && added)) return f.choose(nullptr);
  if (a == Type::U32)
    return f.choose(b == Type::U32 ? vabsdiff_op<Unsigned, Unsigned>(d, saturated, added)
                                   : vabsdiff_op<Unsigned, Signed>(d, saturated, added));
  return f.choose(b == Type::U32 ? vabsdiff_op<Signed, Unsigned>(d, saturated, added)
                                 : vabsdiff_op<Signed, Signed>(d, saturated, added));
}

template <int kSelect>
Execute dp2a_op(Type a, Type b) {
  if (a == Type::U32)
    return b == Type::U32 ? &lanes<Dp2a<uint16_t, uint8_t, kSelect>> : &lanes<Dp2a<uint16_t, int8_t, kSelect>>;
  return b == Type::U32 ? &lanes<Dp2a<int16_t, uint8_t, kSelect>> : &lanes<Dp2a<int16_t, int8_t, kSelect>>;
}

bool decode_dp2a(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const int mode = f.take_one({"lo", "hi"});
  const Type a = f.type(), b = f.type();
  f.operands({Type::B32, Type::B32, Type::B32, Type::B32});
  if (mode < 0 || (a != Type::U32 && a != Type::S32) || (b != Type::U32 && b != Type::S32)) return f.choose(nullptr);
  return f.choose(mode == 0 ? dp2a_op<0>(a, b) : dp2a_op<2>(a, b));
}

}  // namespace
}  // namespace isa

void register_integer() {
  using namespace isa;
  register_opcode("add", decode_add);
  register_opcode("sub", decode_sub);
  register_opcode("addc", decode_addc);
  register_opcode("subc", decode_subc);
  register_opcode("madc", decode_madc);
  register_opcode("mul", decode_mul);
  register_opcode("mad", decode_mad);
  register_opcode("mul24", decode_mul24);
  register_opcode("mad24", decode_mad24);
  register_opcode("sad", decode_sad);
  register_opcode("div", decode_division<Div>);
  register_opcode("rem", decode_division<Rem>);
  register_opcode("abs", decode_sign<Abs>);
  register_opcode("neg", decode_sign<Neg>);
  register_opcode("min", decode_min_max<Min, MinRelu>);
  register_opcode("max", decode_min_max<Max, MaxRelu>);
  register_opcode("popc", decode_count<Popc>);
  register_opcode("clz", decode_count<Clz>);
  register_opcode("bfind", decode_bfind);
  register_opcode("fns", decode_fns);
  register_opcode("brev", decode_brev);
  register_opcode("bfe", decode_bfe);
  register_opcode("bfi", decode_bfi);
  register_opcode("szext", decode_szext);
  register_opcode("bmsk", decode_bmsk);
  register_opcode("dp4a", decode_dp4a);
  register_opcode("dp2a", decode_dp2a);
  register_opcode("vabsdiff2", decode_vabsdiff<uint16_t, int16_t>);
  register_opcode("vabsdiff4", decode_vabsdiff<uint8_t, int8_t>);
}

}  // namespace sim
