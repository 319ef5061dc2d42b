// SPDX-License-Identifier: Apache-2.0
// cvt and cvt.pack (PTX ISA 9.7.9.21, .22). The conversions that kernels live on are loops of their own; every other
// form goes by way of 64 bits: the source becomes an integer or a double, which is then rounded once.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "sim/arithmetic/small_float.h"
#include "sim/isa/lanes.h"

namespace sim {
namespace isa {
namespace {

// ---- scalar types, any to any --------------------------------------------------------------------

// A source value, which one of the two types holds exactly.
struct Value {
  bool is_integer;
  __int128 integer;
  double real;
};

enum class IntegerRound : uint8_t { None, Nearest, Zero, Down, Up };

// The form of a conversion between scalar types.
struct Conversion {
  Type to = Type::None, from = Type::None;
  Round round = Round::Nearest;
  IntegerRound integer_round = IntegerRound::None;
  bool flush = false, saturate = false, satfinite = false, relu = false;
  // Registers may be wider than the types, if these are integers (9.4.1).
  bool wide_source = false, wide_result = false;
};

Value load(uint64_t bits, const Conversion& c) {
  const auto integer = [](auto v) { return Value{true, v, 0}; };
  const auto real = [](double v) { return Value{false, 0, v}; };
  switch (c.from) {
    case Type::U8:
      return integer(static_cast<uint8_t>(bits));
    case Type::U16:
      return integer(static_cast<uint16_t>(bits));
    case Type::U32:
      return integer(static_cast<uint32_t>(bits));
    case Type::U64:
      return integer(bits);
    case Type::S8:
      return integer(static_cast<int8_t>(bits));
    case Type::S16:
      return integer(static_cast<int16_t>(bits));
    case Type::S32:
      return integer(static_cast<int32_t>(bits));
    case Type::S64:
      return integer(static_cast<int64_t>(bits));
    case Type::F16:
      return real(widen(Half{static_cast<uint16_t>(bits)}));
    case Type::BF16:
      return real(widen(Bfloat{static_cast<uint16_t>(bits)}));
    case Type::F64:
      return real(std::bit_cast<double>(bits));
    default:
      break;
  }
  uint32_t word = static_cast<uint32_t>(bits);
  // On an H200 .ftz does not reach the operand of a conversion to f16, which .rp and .rm show.
  if (c.flush && c.to != Type::F16 && (word & 0x7f800000u) == 0) word &= 0x80000000u;
  return real(std::bit_cast<float>(word));
}

__int128 smallest_of(Type t) {
  switch (t) {
    case Type::S8:
      return std::numeric_limits<int8_t>::min();
    case Type::S16:
      return std::numeric_limits<int16_t>::min();
    case Type::S32:
      return std::numeric_limits<int32_t>::min();
    case Type::S64:
      return std::numeric_limits<int64_t>::min();
    default:
      return 0;
  }
}
__int128 largest_of(Type t) {
  const int bits = ptx::bytes_of(t) * 8 - (is_signed(t) ? 1 : 0);
  return (static_cast<__int128>(1) << bits) - 1;
}

double to_integral(double v, IntegerRound round) {
  switch (round) {
    case IntegerRound::Nearest:
      return std::nearbyint(v);
    case IntegerRound::Zero:
      return std::trunc(v);
    case IntegerRound::Down:
      return std::floor(v);
    case IntegerRound::Up:
      return std::ceil(v);
    case IntegerRound::None:
      break;
  }
  return v;
}

// Integers wrap unless .sat is given. Floats always clamp.
__int128 to_integer(const Value& v, const Conversion& c) {
  const __int128 low = smallest_of(c.to), high = largest_of(c.to);
  if (v.is_integer) return c.saturate ? std::clamp(v.integer, low, high) : v.integer;
  if (v.real != v.real) {  // 9.7.9.21, integer notes
    const bool zero = c.from != Type::F64 && ptx::bytes_of(c.to) != 8;
    return zero ? 0 : static_cast<__int128>(1) << (ptx::bytes_of(c.to) * 8 - 1);
  }
  const double whole = to_integral(v.real, c.integer_round);
  if (whole <= static_cast<double>(low)) return low;
  if (whole >= static_cast<double>(high)) return high;
  return static_cast<__int128>(whole);
}

// An integer beyond 53 bits keeps a sticky last bit, so that rounding the double once more is right.
double sticky_double(__int128 v) {
  const bool negative = v < 0;
  const auto m = static_cast<unsigned __int128>(negative ? -v : v);
  const double d = m >> 53 == 0 ? static_cast<double>(static_cast<uint64_t>(m))
                                : static_cast<double>(static_cast<uint64_t>(m >> 12) | ((m & 0xfff) != 0)) * 4096.0;
  return negative ? -d : d;
}

// The nearest F to v is moved to the neighbour the mode asks for. `exact` orders F against the true value.
template <class F, class Exact>
F adjusted(F nearest, Round round, Exact exact_difference) {
  const int sign = exact_difference(nearest);  // This is the sign of nearest - v.
  if (sign == 0) return nearest;
  constexpr F kInfinity = std::numeric_limits<F>::infinity();
  const bool above = sign > 0;
  switch (round) {
    case Round::Zero: {
      const bool negative = std::signbit(nearest);
      return above != negative ? std::nextafter(nearest, F{0}) : nearest;
    }
    case Round::Down:
      return above ? std::nextafter(nearest, -kInfinity) : nearest;
    case Round::Up:
      return above ? nearest : std::nextafter(nearest, kInfinity);
    default:
      return nearest;
  }
}

template <class F>
F round_real(double v, Round round) {
  const F nearest = static_cast<F>(v);
  if (v != v) return nearest;
  return adjusted(nearest, round, [&](F n) {
    return static_cast<double>(n) > v ? 1 : static_cast<double>(n) < v ? -1 : 0;
  });
}
template <class F>
F round_integer(__int128 v, Round round) {
  const F nearest = static_cast<F>(v);
  // Every integer of 64 bits and its neighbours in F are integers well inside 128 bits.
  return adjusted(nearest, round, [&](F n) {
    const auto i = static_cast<__int128>(n);
    return i > v ? 1 : i < v ? -1 : 0;
  });
}

double saturated(double v) { return v > 0 ? std::min(v, 1.0) : 0.0; }  // A NaN gives +0.

uint64_t to_float(const Value& v, const Conversion& c) {
  const bool f16 = c.to == Type::F16, bf16 = c.to == Type::BF16;
  double real = v.is_integer ? 0 : to_integral(v.real, c.integer_round);
  if (f16 || bf16) {
    if (v.is_integer) real = sticky_double(v.integer);
    if (c.saturate) real = saturated(real);
    const Encoding how{c.round, c.satfinite, c.relu};
    return encode(real, f16 ? kF16 : kBF16, how);
  }
  if (c.to == Type::F64) {
    double d = v.is_integer ? round_integer<double>(v.integer, c.round) : real;
    if (c.saturate) d = saturated(d);
    return std::bit_cast<uint64_t>(d);
  }
  float f = v.is_integer ? round_integer<float>(v.integer, c.round) : round_real<float>(real, c.round);
  if (c.saturate) f = static_cast<float>(saturated(f));
  uint32_t bits = std::bit_cast<uint32_t>(f);
  if (f != f) bits = kCanonicalNan32;
  if (c.flush && (bits & 0x7f800000u) == 0) bits &= 0x80000000u;
  return bits;
}

uint64_t result_bits(const Value& v, const Conversion& c) {
  if (is_float(c.to)) return to_float(v, c);
  const auto wrapped = static_cast<uint64_t>(to_integer(v, c));
  // Narrow results are extended to the whole register by their own sign (9.4.1).
  const int spare = 64 - ptx::bytes_of(c.to) * 8;
  return is_signed(c.to) ? static_cast<uint64_t>(static_cast<int64_t>(wrapped << spare) >> spare)
                         : wrapped << spare >> spare;
}

Step convert_any(Warp& warp, const Instr& in, uint32_t mask) {
  const auto c = in.form<Conversion>();
  const uint64_t* wide_source = warp.row<uint64_t>(in.reg[kA]);
  const uint32_t* source = warp.row<uint32_t>(in.reg[kA]);
  alignas(64) uint64_t wide[kLanes];
  for (int lane = 0; lane < kLanes; ++lane)
    wide[lane] = result_bits(load(c.wide_source ? wide_source[lane] : source[lane], c), c);
  if (c.wide_result) {
    store_row(warp, in.reg[kD], wide, mask);
    return Step::Next;
  }
  alignas(64) uint32_t narrow_row[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) narrow_row[lane] = static_cast<uint32_t>(wide[lane]);
  store_row(warp, in.reg[kD], narrow_row, mask);
  return Step::Next;
}

// ---- the common ones -----------------------------------------------------------------------------

template <class D, class S>
struct Cast {
  static D apply(S a) { return static_cast<D>(a); }
};
// Narrows to an 8- or 16-bit type and extends that to the row.
template <class N>
struct Truncate {
  static N apply(uint32_t a) { return static_cast<N>(a); }
};
template <class E>
struct Widen {
  static float apply(E a) { return narrow<float>(widen(a)); }
};
template <class E>
struct Narrow {
  static E apply(float a) { return narrow<E>(a); }
};
// 9.7.9.21: the first operand is the upper half.
template <class E>
struct NarrowPair {
  static Pair<E> apply(float a, float b) { return {narrow<E>(b), narrow<E>(a)}; }
};
template <class D>
struct Truncated {
  static D apply(float a) {
    if constexpr (std::is_signed_v<D>) {
      // Doubles hold every int32 and keep the order beyond it. A NaN gives 0.
      const double d = a;
      return a != a               ? 0
             : d >= 2147483647.0  ? 2147483647
             : d <= -2147483648.0 ? std::numeric_limits<int32_t>::min()
                                  : static_cast<int32_t>(d);
    } else {
      const double d = a;
      return !(d > 0) ? 0 : d >= 4294967295.0 ? 4294967295u : static_cast<uint32_t>(d);
    }
  }
};

// To a 32-bit integer by another rounding: a double's last bit is 1 where its exponent is 52.
template <class D, IntegerRound kRound>
struct RoundedTo {
  static D apply(float a) {
    const double d = a, nearest = (d + 0x1.8p52) - 0x1.8p52;
    const double whole = kRound == IntegerRound::Down ? nearest - (nearest > d ? 1 : 0)
                         : kRound == IntegerRound::Up ? nearest + (nearest < d ? 1 : 0)
                                                      : nearest;
    if constexpr (std::is_signed_v<D>) {
      return a != a                   ? 0
             : whole >= 2147483647.0  ? 2147483647
             : whole <= -2147483648.0 ? std::numeric_limits<int32_t>::min()
                                      : static_cast<int32_t>(whole);
    } else {
      return !(whole > 0) ? 0 : whole >= 4294967295.0 ? 4294967295u : static_cast<uint32_t>(whole);
    }
  }
};
template <class D>
Execute rounded_to(IntegerRound round) {
  switch (round) {
    case IntegerRound::Nearest:
      return &lanes<RoundedTo<D, IntegerRound::Nearest>>;
    case IntegerRound::Zero:
      return &lanes<Truncated<D>>;
    case IntegerRound::Down:
      return &lanes<RoundedTo<D, IntegerRound::Down>>;
    case IntegerRound::Up:
      return &lanes<RoundedTo<D, IntegerRound::Up>>;
    case IntegerRound::None:
      break;
  }
  return nullptr;
}

// A loop for the form, or null. The registers have the sizes of the types.
Execute common_conversion(const Conversion& c) {
  const bool unmodified = !c.flush && !c.saturate && !c.satfinite && !c.relu;
  const bool plain = unmodified && c.integer_round == IntegerRound::None && c.round == Round::Nearest;
  if (unmodified && c.from == Type::F32) {
    if (c.to == Type::S32) return rounded_to<int32_t>(c.integer_round);
    if (c.to == Type::U32) return rounded_to<uint32_t>(c.integer_round);
  }
  if (!plain) return nullptr;
  const auto pair = [](Type to, Type from) { return static_cast<int>(to) * 64 + static_cast<int>(from); };
  const int key = pair(c.to, c.from);
  if (key == pair(Type::U64, Type::U32) || key == pair(Type::S64, Type::U32)) return &lanes<Cast<uint64_t, uint32_t>>;
  if (key == pair(Type::S64, Type::S32) || key == pair(Type::U64, Type::S32)) return &lanes<Cast<int64_t, int32_t>>;
  if (c.from == Type::U64 || c.from == Type::S64)
    if (c.to == Type::U32 || c.to == Type::S32) return &lanes<Cast<uint32_t, uint64_t>>;
  if (ptx::bytes_of(c.to) <= 4 && ptx::bytes_of(c.from) <= 4 && !is_float(c.to) && !is_float(c.from)) {
    // Between words and narrower integers the narrower type decides, and the row holds its value extended.
    const Type narrower = ptx::bytes_of(c.from) <= ptx::bytes_of(c.to) ? c.from : c.to;
    const Type inner = ptx::bytes_of(c.to) == 4 || narrower == c.to ? narrower : Type::None;
    if (inner == Type::U16) return &lanes<Truncate<uint16_t>>;
    if (inner == Type::S16) return &lanes<Truncate<int16_t>>;
    if (inner == Type::U8) return &lanes<Truncate<uint8_t>>;
    if (inner == Type::S8) return &lanes<Truncate<int8_t>>;
  }
  if (key == pair(Type::F32, Type::S32)) return &lanes<Cast<float, int32_t>>;
  if (key == pair(Type::F32, Type::U32)) return &lanes<Cast<float, uint32_t>>;
  if (key == pair(Type::F32, Type::S16)) return &lanes<Cast<float, int16_t>>;
  if (key == pair(Type::F32, Type::U16)) return &lanes<Cast<float, uint16_t>>;
  if (key == pair(Type::F32, Type::S8)) return &lanes<Cast<float, int8_t>>;
  if (key == pair(Type::F32, Type::U8)) return &lanes<Cast<float, uint8_t>>;
  if (key == pair(Type::F32, Type::F16)) return &lanes<Widen<Half>>;
  if (key == pair(Type::F32, Type::BF16)) return &lanes<Widen<Bfloat>>;
  if (key == pair(Type::F16, Type::F32)) return &lanes<Narrow<Half>>;
  if (key == pair(Type::BF16, Type::F32)) return &lanes<Narrow<Bfloat>>;
  if (key == pair(Type::F64, Type::F32)) return &lanes<Cast<double, float>>;
  if (key == pair(Type::F64, Type::S32)) return &lanes<Cast<double, int32_t>>;
  if (key == pair(Type::F64, Type::U32)) return &lanes<Cast<double, uint32_t>>;
  return nullptr;
}

// ---- packed and small formats --------------------------------------------------------------------

struct NamedFormat {
  std::string_view name;
  // Null stands for ue8m0.
  const SmallFormat* format;
};
constexpr NamedFormat kPackedFormats[] = {
    {"e4m3x2", &kE4M3}, {"e5m2x2", &kE5M2}, {"e2m1x2", &kE2M1},
    {"e2m3x2", &kE2M3}, {"e3m2x2", &kE3M2}, {"ue8m0x2", nullptr},
};
// Sources and results that are none of kPackedFormats have indices of their own.
constexpr int kHalfPair = 16, kBfloatPair = 17, kFloats = 18;

// The form of a conversion between packed or small formats, which are named by the indices above.
struct PackedConversion {
  // The results for all codes of the source, for the loops that look them up.
  const uint16_t* table = nullptr;
  uint8_t to = 0, from = 0;
  Round round = Round::Nearest;
  bool satfinite = false, relu = false;
};

// To a pair of f16, bf16 or ue8m0 from two f32, and to one of ue8m0 from a pair of bf16. Of two f32 sources the first
// becomes the upper element. A random operand follows them for .rs.
Step convert_packed(Warp& warp, const Instr& in, uint32_t mask) {
  const auto how = in.form<PackedConversion>();
  const SmallFormat* to = how.to == kHalfPair ? &kF16 : how.to == kBfloatPair ? &kBF16 : nullptr;
  const bool from_floats = how.from == kFloats;
  const uint32_t* a = warp.row<uint32_t>(in.reg[kA]);
  const uint32_t* b = from_floats ? warp.row<uint32_t>(in.reg[kB]) : nullptr;
  const auto round = how.round;
  const uint32_t* random = round == Round::Stochastic ? warp.row<uint32_t>(in.reg[kC]) : nullptr;
  const auto element = [&](uint32_t row, int index) {
    if (from_floats) return static_cast<double>(std::bit_cast<float>(row));
    return decode(row >> (index * 16) & 0xffff, kBF16);
  };
  const auto encoded = [&](double v, int lane, int index) {
    if (to == nullptr) return encode_scale(v, round, how.satfinite);
    Encoding encoding{round, how.satfinite, how.relu};
    if (random != nullptr) {
      encoding.random_bits = to == &kF16 ? 13 : 16;
      encoding.random = random[lane] >> (16 * index) & ((1u << encoding.random_bits) - 1);
    }
    return encode(v, *to, encoding);
  };
  alignas(64) uint32_t result[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const double upper = element(a[lane], 1), lower = element(from_floats ? b[lane] : a[lane], 0);
    result[lane] = encoded(upper, lane, 1) << (to == nullptr ? 8 : 16) | encoded(lower, lane, 0);
  }
  store_row(warp, in.reg[kD], result, mask);
  return Step::Next;
}

// Four f32 to a small format by .rs.
struct StochasticFour {
  const SmallFormat* format = nullptr;
  bool relu = false;
  ValueOperand source, random;  // the first of the four
};

uint32_t reversed_half(uint32_t bits) {
  uint32_t reversed = 0;
  for (int i = 0; i < 16; ++i) reversed |= (bits >> i & 1) << (15 - i);
  return reversed;
}

// A pair of operands has 16 random bits (9.7.9.21). Those of a and b are the upper half of rbits, for e2m1 the upper
// bytes of both halves; e and f have the other ones.
// The second operand of a pair takes them as they are, the first in reverse. They are added to the highest of the
// discarded bits.
// The ISA shows the order of the bits in figures alone: it is what vkuzo/quant_cast_bench (e4m3, e5m2, e2m1) and
// FlashInfer (e4m3) have measured on B200s. The figure for e4m3 and e5m2 is that of e2m3 and e3m2, too.
Step convert_stochastic_four(Warp& warp, const Instr& in, uint32_t mask) {
  const auto& how = in.form<StochasticFour>();
  const bool nibbles = how.format == &kE2M1;
  const uint32_t* const random = warp.row<uint32_t>(in.reg[how.random.place]);
  alignas(64) uint32_t result[kLanes] = {};
  for (uint32_t i = 0; i < 4; ++i) {
    const float* const source = warp.row<float>(in.reg[how.source.place + i]);
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint32_t rbits = random[lane];
      uint32_t bits = i < 2 ? rbits >> 16 : rbits & 0xffff;
      if (nibbles) bits = i < 2 ? (rbits >> 16 & 0xff00) | (rbits >> 8 & 0xff) : (rbits >> 8 & 0xff00) | (rbits & 0xff);
      Encoding encoding{Round::Stochastic, true, how.relu};
      encoding.random_bits = 16;
      encoding.random = i % 2 == 0 ? reversed_half(bits) : bits;
      result[lane] = result[lane] << (nibbles ? 4 : 8) | encode(double{source[lane]}, *how.format, encoding);
    }
  }
  store_row(warp, in.reg[kD], result, mask);
  return Step::Next;
}

// Gives what encode() gives for the nearest value with .satfinite, without branches.
template <const SmallFormat& kFormat>
uint32_t encode_nearest(float f, bool relu) {
  constexpr int kShift = 23 - kFormat.mantissa_bits;
  // The smallest normal value.
  constexpr uint32_t kSmallest = static_cast<uint32_t>(128 - kFormat.bias()) << 23;
  // Adding kMagic puts the last bit of a subnormal value where float rounds.
  constexpr uint32_t kMagic = static_cast<uint32_t>(151 - kFormat.bias() - kFormat.mantissa_bits) << 23;
  constexpr uint32_t kSign = 1u << (kFormat.bits() - 1), kNan = kSign - 1;
  constexpr uint32_t kLargest = kFormat.has_infinity ? kNan - (1u << kFormat.mantissa_bits)
                                : kFormat.has_nan    ? kNan - 1
                                                     : kNan;
  const uint32_t bits = std::bit_cast<uint32_t>(f), magnitude = bits & 0x7fffffffu;
  const uint32_t normal =
      (magnitude - kSmallest + (1u << 23) + ((1u << (kShift - 1)) - 1) + (magnitude >> kShift & 1)) >> kShift;
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(kMagic)) - kMagic;
  uint32_t code = magnitude < kSmallest ? subnormal : normal;
  code = code > kLargest ? kLargest : code;
  const bool negative = bits >> 31 != 0;
  code = negative ? (relu ? 0 : code | kSign) : code;
  return magnitude > 0x7f800000u ? kNan : code;
}
// The bits of an element in its container.
constexpr int element_bits(const SmallFormat* format) { return format == &kE2M1 ? 4 : 8; }

template <const SmallFormat& kFormat>
struct FloatsToSmall {
  static uint32_t apply(const PackedConversion& how, float a, float b) {
    return encode_nearest<kFormat>(a, how.relu) << element_bits(&kFormat) | encode_nearest<kFormat>(b, how.relu);
  }
};
template <const SmallFormat& kFormat, class E>
struct PairToSmall {
  static uint32_t apply(const PackedConversion& how, Pair<E> a) {
    return FloatsToSmall<kFormat>::apply(how, widen(a.hi), widen(a.lo));
  }
};
template <const SmallFormat& kFormat>
Execute to_small(int from) {
  return from == kFloats     ? &lanes<FloatsToSmall<kFormat>>
         : from == kHalfPair ? &lanes<PairToSmall<kFormat, Half>>
                             : &lanes<PairToSmall<kFormat, Bfloat>>;
}

// Gives what encode_scale() gives.
struct FloatsToScales {
  static uint32_t one(float f, bool up, bool finite) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(f) & 0x7fffffffu, fraction = magnitude & 0x7fffffu;
    const bool subnormal = magnitude < 0x800000u;
    const uint32_t code = (magnitude >> 23) + (up && fraction > (subnormal ? 0x400000u : 0u) ? 1 : 0);
    if (magnitude > 0x7f800000u) return 255;
    return code == 255 ? (finite ? 254 : 255) : code;
  }
  static uint32_t apply(const PackedConversion& how, float a, float b) {
    const bool up = how.round == Round::Up;
    return one(a, up, how.satfinite) << 8 | one(b, up, how.satfinite);
  }
};

// Converts codes of 4 or 8 bits to f16 or bf16 by the table of all codes.
template <int kBits>
struct SmallToPair {
  static uint32_t apply(const PackedConversion& how, uint32_t a) {
    constexpr uint32_t kMask = (1u << kBits) - 1;
    return how.table[a & kMask] | static_cast<uint32_t>(how.table[a >> kBits & kMask]) << 16;
  }
};
const uint16_t* table_of(const PackedConversion& how) {
  static const auto tables = [] {
    auto all = std::make_unique<std::array<uint16_t, 256>[]>(std::size(kPackedFormats) * 8);
    for (size_t i = 0; i < std::size(kPackedFormats) * 8; ++i) {
      const NamedFormat& format = kPackedFormats[i / 8];
      const Encoding encoding{Round::Nearest, (i & 2) != 0, (i & 4) != 0};
      for (uint32_t code = 0; code < 1u << element_bits(format.format); ++code) {
        const double value = format.format ? decode(code, *format.format)
                             : code == 255 ? std::nan("")
                                           : std::ldexp(1.0, static_cast<int>(code) - 127);
        all[i][code] = static_cast<uint16_t>(encode(value, i & 1 ? kBF16 : kF16, encoding));
      }
    }
    return all;
  }();
  const size_t variant = (how.to == kBfloatPair ? 1u : 0u) + (how.satfinite ? 2u : 0u) + (how.relu ? 4u : 0u);
  return tables[size_t{how.from} * 8 + variant].data();
}

// A loop for the form, or null. It may need the form's table.
Execute packed_loop(PackedConversion& how) {
  const bool small_to = how.to < kHalfPair;
  if (small_to && kPackedFormats[how.to].format == nullptr)
    return how.from == kFloats ? &lanes<FloatsToScales> : nullptr;
  if (small_to && how.round == Round::Nearest && how.satfinite) {
    static constexpr Execute (*kTo[])(int) = {to_small<kE4M3>, to_small<kE5M2>, to_small<kE2M1>, to_small<kE2M3>,
                                              to_small<kE3M2>};
    return kTo[how.to](how.from);
  }
  if (!small_to && how.from < kHalfPair && how.round == Round::Nearest) {
    how.table = table_of(how);
    return element_bits(kPackedFormats[how.from].format) == 4 ? &lanes<SmallToPair<4>> : &lanes<SmallToPair<8>>;
  }
  return nullptr;
}

Step convert_tf32(Warp& warp, const Instr& in, uint32_t mask) {
  const uint32_t* a = warp.row<uint32_t>(in.reg[kA]);
  const auto how = in.form<Encoding>();
  alignas(64) uint32_t result[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint32_t code = encode(std::bit_cast<float>(a[lane]), kTF32, how);
    result[lane] = code == kTF32.nan() ? kCanonicalNan32 : code << 13;  // The 19 bits stand where f32 has them.
    // An H200 cuts a NaN off like any number under .rna, and .satfinite then takes the next smaller code: a NaN with
    // none but low bits set becomes an infinity or the largest number.
    if (how.round == Round::NearestAway && (a[lane] & 0x7fffffffu) > 0x7f800000u)
      result[lane] = (a[lane] & 0xffffe000u) - (how.saturate_finite ? 0x2000u : 0);
  }
  store_row(warp, in.reg[kD], result, mask);
  return Step::Next;
}

// cvt.pack (9.7.9.22).
struct PackForm {
  // The bits of a converted element.
  uint8_t bits = 0;
  bool is_signed = false;
  bool has_c = false;
};
Step convert_pack(Warp& warp, const Instr& in, uint32_t mask) {
  const int32_t *a = warp.row<int32_t>(in.reg[kA]), *b = warp.row<int32_t>(in.reg[kB]);
  const auto form = in.form<PackForm>();
  const uint32_t* c = form.has_c ? warp.row<uint32_t>(in.reg[kC]) : nullptr;
  const int bits = form.bits;
  const int64_t low = form.is_signed ? -(int64_t{1} << (bits - 1)) : 0,
                high = (int64_t{1} << (bits - (form.is_signed ? 1 : 0))) - 1;
  const uint32_t element = static_cast<uint32_t>((uint64_t{1} << bits) - 1);
  alignas(64) uint32_t result[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto part = [&](int32_t v) { return static_cast<uint32_t>(std::clamp<int64_t>(v, low, high)) & element; };
    result[lane] = part(a[lane]) << bits | part(b[lane]);
    if (c != nullptr) result[lane] |= c[lane] << 2 * bits;
  }
  store_row(warp, in.reg[kD], result, mask);
  return Step::Next;
}

// ---- decoding ------------------------------------------------------------------------------------

bool decode_pack(Form& f) {
  if (!f.take("sat")) f.unsupported("it needs .sat");
  const int small = f.take_one({"u2", "s2", "u4", "s4"});
  static constexpr uint8_t kSmallBits[] = {2, 2, 4, 4};
  Type t = Type::None;
  if (small < 0) {
    t = f.type();
    if (t != Type::U16 && t != Type::S16 && t != Type::U8 && t != Type::S8) return f.choose(nullptr);
  }
  if (f.type() != Type::S32) return f.choose(nullptr);
  PackForm form;
  form.bits = small >= 0 ? kSmallBits[small] : static_cast<uint8_t>(ptx::bytes_of(t) * 8);
  form.is_signed = small >= 0 ? small % 2 == 1 : is_signed(t);
  form.has_c = f.type() == Type::B32;
  f.out.set(form);
  if (form.has_c == (form.bits == 16)) return f.choose(nullptr);
  if (form.has_c) {
    f.operands({Type::U32, Type::S32, Type::S32, Type::B32});
  } else {
    f.operands({Type::U32, Type::S32, Type::S32});
  }
  return f.choose(&convert_pack);
}

int take_packed_format(Form& f) {
  for (int i = 0; i < static_cast<int>(std::size(kPackedFormats)); ++i)
    if (f.take(kPackedFormats[i].name)) return i;
  return -1;
}

// Whether the mode is one of those the destination has (9.7.9.21, syntax).
bool packed_form_exists(const PackedConversion& how) {
  const int to = how.to, from = how.from;
  const Round round = how.round;
  const bool small_to = to < kHalfPair, scale_to = small_to && kPackedFormats[to].format == nullptr;
  const bool small_from = from < kHalfPair, scale_from = small_from && kPackedFormats[from].format == nullptr;
  if (!small_to) {
    if (from == kFloats) return round == Round::Nearest || round == Round::Zero || round == Round::Stochastic;
    if (!small_from || round != Round::Nearest || how.satfinite) return false;
    return scale_from ? to == kBfloatPair && !how.relu : to == kHalfPair;
  }
  if (scale_to)
    return (from == kFloats || from == kBfloatPair) && (round == Round::Zero || round == Round::Up) && !how.relu;
  return !small_from && round == Round::Nearest && how.satfinite;
}

bool decode_packed(Form& f, const ptx::Instruction& source, const Encoding& encoding, int small_first) {
  const Round round = encoding.round;
  int to, from;
  const bool halves = f.take("f16x2"), bfloats = f.take("bf16x2");
  const bool floats = f.take("f32");
  if (small_first >= 0 && (halves || bfloats) && !floats) {
    const int half = halves ? kHalfPair : kBfloatPair;
    const bool narrowing = source.parts[source.parts.size() - 1] != kPackedFormats[small_first].name;
    to = narrowing ? small_first : half;
    from = narrowing ? half : small_first;
  } else if (floats && (small_first >= 0) != (halves || bfloats)) {
    to = small_first >= 0 ? small_first : halves ? kHalfPair : kBfloatPair;
    from = kFloats;
  } else {
    f.unsupported("these types cannot be converted into each other");
  }
  // The formats before this index are Hopper's too, from f32 and f16x2.
  constexpr int kFirstBlackwellFormat = 2;
  if (small_first >= kFirstBlackwellFormat || round == Round::Stochastic || (to < kHalfPair && from == kBfloatPair))
    f.needs(100);
  PackedConversion how;
  how.to = static_cast<uint8_t>(to);
  how.from = static_cast<uint8_t>(from);
  how.round = round;
  how.satfinite = encoding.saturate_finite;
  how.relu = encoding.relu;
  if (!packed_form_exists(how)) return f.choose(nullptr);
  const auto container = [](int index) {
    return index == kFloats ? Type::F32 : index >= kHalfPair ? Type::B32 : Type::B16;
  };
  if (from != kFloats) {
    f.operands({container(to), container(from)});
    const Execute loop = packed_loop(how);
    f.out.set(how);
    return f.choose(loop ? loop : &convert_packed);
  }
  if (round == Round::Stochastic)
    f.operands({container(to), Type::F32, Type::F32, Type::B32});
  else
    f.operands({container(to), Type::F32, Type::F32});
  const bool plain = !how.satfinite && !how.relu && round == Round::Nearest;
  if (plain && to == kHalfPair) return f.choose(&lanes<NarrowPair<Half>>);
  if (plain && to == kBfloatPair) return f.choose(&lanes<NarrowPair<Bfloat>>);
  const Execute loop = round == Round::Stochastic ? nullptr : packed_loop(how);
  f.out.set(how);
  return f.choose(loop ? loop : &convert_packed);
}

// cvt.rs of four f32, whose type is that of kPackedFormats with 4 for 2.
const SmallFormat* take_format_of_four(Form& f) {
  for (const NamedFormat& named : kPackedFormats) {
    const std::string name = std::string(named.name.substr(0, named.name.size() - 1)) + "4";
    if (named.format != nullptr && f.take(name)) return named.format;
  }
  return nullptr;
}

bool decode_stochastic_four(Form& f, const Encoding& encoding, const SmallFormat* format) {
  f.needs(100);
  if (!f.take("f32") || encoding.round != Round::Stochastic || !encoding.saturate_finite) return f.choose(nullptr);
  if (f.count() != 3) f.unsupported("it takes 3 operands, not " + std::to_string(f.count()));
  const ptx::Operand& source = f.at(1);
  if (source.kind != ptx::Operand::Kind::Vector || source.elements.size() != 4)
    f.unsupported("operand 2 must be a vector of 4 registers");
  for (const ptx::Operand& element : source.elements)
    if (element.kind != ptx::Operand::Kind::Register || !fits(f.context.register_type(element), Type::F32))
      f.unsupported("operand 2 must be a vector of registers of 32 bits");
  StochasticFour how;
  how.format = format;
  how.relu = encoding.relu;
  const Type container = format == &kE2M1 ? Type::B16 : Type::B32;
  if (f.at(0).kind == ptx::Operand::Kind::Register &&
      ptx::bytes_of(f.context.register_type(f.at(0))) != ptx::bytes_of(container))
    f.unsupported(container == Type::B16 ? "its result has 16 bits" : "its result has 32 bits");
  f.operand(0, container);
  how.source = push_value(f.context, source, Type::F32);
  how.random = f.operand(2, Type::B32);
  f.out.set(how);
  return f.choose(&convert_stochastic_four);
}

bool is_wide_register(Form& f, size_t index, Type type) {
  const ptx::Operand& o = f.at(index);
  if (o.kind != ptx::Operand::Kind::Register) return ptx::bytes_of(type) == 8;
  return ptx::bytes_of(f.context.register_type(o)) == 8;
}

bool decode_cvt(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  if (f.take("pack")) return decode_pack(f);
  const int integer_round = f.take_one({"rni", "rzi", "rmi", "rpi"});
  const int named = f.take_one({"rn", "rz", "rm", "rp", "rna", "rs"});
  const Round round = named < 0 ? Round::Nearest : static_cast<Round>(named);
  const bool flush = f.take("ftz"), saturate = f.take("sat"), satfinite = f.take("satfinite"), relu = f.take("relu");
  const Encoding encoding{round, satfinite, relu};

  if (f.take("tf32")) {
    if (f.type() != Type::F32 || integer_round >= 0 || flush || saturate || named < 0) return f.choose(nullptr);
    const bool away = round == Round::NearestAway;
    if ((round != Round::Nearest && round != Round::Zero && !away) || (away && relu)) return f.choose(nullptr);
    if (satfinite && !away) f.needs(100);
    f.operands({Type::B32, Type::F32});
    out.set(encoding);
    return f.choose(&convert_tf32);
  }
  if (const SmallFormat* const format = take_format_of_four(f)) {
    if (integer_round >= 0 || flush || saturate) return f.choose(nullptr);
    return decode_stochastic_four(f, encoding, format);
  }
  const int small = take_packed_format(f);
  if (small >= 0 || f.peek_type() == Type::F16x2 || f.peek_type() == Type::BF16x2) {
    if (integer_round >= 0 || named < 0 || flush || saturate) return f.choose(nullptr);
    return decode_packed(f, source, encoding, small);
  }

  const Type to = f.type(), from = f.type();
  const auto scalar = [](Type t) {
    return is_integer(t) || t == Type::F16 || t == Type::BF16 || t == Type::F32 || t == Type::F64;
  };
  if (!scalar(to) || !scalar(from)) f.unsupported("it needs two scalar types");
  if (round == Round::NearestAway || round == Round::Stochastic) return f.choose(nullptr);
  const bool to_float = is_float(to), from_float = is_float(from);
  if (saturate && (to == Type::BF16 || from == Type::BF16)) f.unsupported("bf16 has no .sat");
  if (flush && to != Type::F32 && from != Type::F32) f.unsupported(".ftz needs an f32 operand");
  const bool half_from_float = (to == Type::F16 || to == Type::BF16) && from == Type::F32;
  if ((satfinite || relu) && (!half_from_float || (round != Round::Nearest && round != Round::Zero)))
    return f.choose(nullptr);
  if (from_float && !to_float && integer_round < 0)
    f.unsupported("a conversion to an integer needs a rounding modifier");
  if (!from_float && to_float && named < 0) f.unsupported("a conversion from an integer needs a rounding modifier");
  if (from_float && to_float && ptx::bytes_of(to) < ptx::bytes_of(from) && named < 0)
    f.unsupported("a conversion to a smaller type needs a rounding modifier");
  if (integer_round >= 0 && (!from_float || named >= 0 || (to_float && to != from))) return f.choose(nullptr);
  // A conversion that is exact takes no rounding, but those of bf16 may name one.
  const bool exact = from_float && (to == from || (from != Type::BF16 && ptx::bytes_of(to) > ptx::bytes_of(from)));
  if (named >= 0 && (!to_float || exact)) return f.choose(nullptr);
  if (saturate && !from_float && !to_float && smallest_of(from) >= smallest_of(to) &&
      largest_of(from) <= largest_of(to))
    f.unsupported(".sat needs a result that can be out of range");

  if (f.count() != 2) f.unsupported("it takes 2 operands");
  // 9.4.1: registers may be wider than the types, if these are integers.
  const bool wide_result = is_wide_register(f, 0, to), wide_source = is_wide_register(f, 1, from);
  const auto register_type = [&](Type t, bool wide) {
    if (wide && ptx::bytes_of(t) < 8 && is_float(t))
      f.unsupported("a floating-point type needs a register of its own size");
    return wide ? Type::B64 : ptx::bytes_of(t) == 8 ? t : Type::B32;
  };
  const bool exact_source = f.at(1).kind != ptx::Operand::Kind::Register;
  f.operand(0, register_type(to, wide_result));
  f.operand(1, exact_source ? from : register_type(from, wide_source));
  Conversion c;
  c.to = to;
  c.from = from;
  c.round = round;
  c.integer_round = static_cast<IntegerRound>(integer_round + 1);
  c.flush = flush;
  c.saturate = saturate;
  c.satfinite = satfinite;
  c.relu = relu;
  const bool same_sizes = wide_result == (ptx::bytes_of(to) == 8) && wide_source == (ptx::bytes_of(from) == 8);
  if (same_sizes)
    if (const Execute common = common_conversion(c)) return f.choose(common);
  c.wide_result = wide_result;
  c.wide_source = wide_source;
  out.set(c);
  return f.choose(&convert_any);
}

}  // namespace
}  // namespace isa

void register_convert() { register_opcode("cvt", isa::decode_cvt); }

}  // namespace sim
