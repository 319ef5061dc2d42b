// SPDX-License-Identifier: Apache-2.0
// Floating-point arithmetic: PTX ISA 9.7.3 (f32, f64), 9.7.4 (f16, bf16 and their pairs), 9.7.5 (mixed precision).
// The .approx instructions are computed in double (by the C library) and rounded to the result: at least as exact as
// the bounds the ISA gives, not the hardware's bits.
#include <cfenv>
#include <cmath>
#include <limits>

#include "sim/isa/elementary.h"
#include "sim/isa/lanes.h"

namespace sim {
namespace isa {
namespace {

// ---- values ------------------------------------------------------------------------------------

template <class E>
constexpr bool kSmall = std::is_same_v<E, Half> || std::is_same_v<E, Bfloat>;

inline bool is_nan(Half h) { return (h.bits & 0x7fff) > 0x7c00; }
inline bool is_nan(Bfloat b) { return (b.bits & 0x7fff) > 0x7f80; }
inline bool is_nan(float f) { return f != f; }
inline bool is_nan(double d) { return d != d; }

template <class E>
E canonical_nan() {
  if constexpr (kSmall<E>)
    return {kCanonicalNan16};
  else if constexpr (std::is_same_v<E, float>)
    return std::bit_cast<float>(kCanonicalNan32);
  else
    return std::numeric_limits<double>::quiet_NaN();
}

template <class E>
using BitsOf = std::conditional_t<kSmall<E>, uint16_t, std::conditional_t<sizeof(E) == 4, uint32_t, uint64_t>>;
template <class E>
constexpr BitsOf<E> kSign = static_cast<BitsOf<E>>(BitsOf<E>{1} << (sizeof(E) * 8 - 1));
template <class E>
BitsOf<E> bits_of(E e) {
  return std::bit_cast<BitsOf<E>>(e);
}
template <class E>
E magnitude(E e) {
  return std::bit_cast<E>(static_cast<BitsOf<E>>(bits_of(e) & static_cast<BitsOf<E>>(~kSign<E>)));
}

// With .ftz a subnormal becomes a zero of its sign. An H200 decides that of a result before it rounds, so that a value
// which only rounding would make normal is flushed too (docs/instruction_bits.md).
template <bool kFlush, class E>
E flush(E e) {
  if constexpr (!kFlush) return e;
  const BitsOf<E> bits = bits_of(e);
  constexpr BitsOf<E> exponent = std::is_same_v<E, Half>     ? 0x7c00
                                 : std::is_same_v<E, Bfloat> ? 0x7f80
                                 : sizeof(E) == 4            ? static_cast<BitsOf<E>>(0x7f800000u)
                                                             : static_cast<BitsOf<E>>(0x7ff0000000000000ull);
  return std::bit_cast<E>((bits & exponent) == 0 ? static_cast<BitsOf<E>>(bits & kSign<E>) : bits);
}

// The value a computation in float (double for f64) ends as: .sat, rounded to E, .ftz.
template <class E, bool kFlush, bool kSaturate, class F>
E finish(F value) {
  if constexpr (kSaturate) value = value > 0 ? (value < 1 ? value : F{1}) : F{0};  // A NaN gives +0.
  if constexpr (kFlush && std::is_same_v<E, Half>) {
    if (std::fabs(value) < F{0x1p-14}) value = std::copysign(F{0}, value);
  }
  if constexpr (std::is_same_v<E, double>)
    return value;
  else
    return flush<kFlush>(narrow<E>(value));
}

// ---- add, sub, mul, fma ------------------------------------------------------------------------

template <class E, bool kFlush, bool kSaturate>
struct Add {
  static E apply(E a, E b) { return finish<E, kFlush, kSaturate>(widen(flush<kFlush>(a)) + widen(flush<kFlush>(b))); }
};
template <class E, bool kFlush, bool kSaturate>
struct Sub {
  static E apply(E a, E b) { return finish<E, kFlush, kSaturate>(widen(flush<kFlush>(a)) - widen(flush<kFlush>(b))); }
};
template <class E, bool kFlush, bool kSaturate>
struct Mul {
  static E apply(E a, E b) {
    const auto x = widen(flush<kFlush>(a)), y = widen(flush<kFlush>(b));
    // A float product of bf16 values can be subnormal and round twice.
    if constexpr (std::is_same_v<E, Bfloat>)
      return finish<E, kFlush, kSaturate>(round_to_odd(static_cast<double>(x) * y));
    if constexpr (std::is_same_v<E, float> && kFlush) {
      const double exact = static_cast<double>(x) * y;
      if (std::fabs(exact) < 0x1p-126)
        return finish<E, kFlush, kSaturate>(static_cast<float>(std::copysign(0.0, exact)));
    }
    return finish<E, kFlush, kSaturate>(x * y);
  }
};

// Gives a + b rounded to odd. Rounding that once more to a short format gives what one rounding of the sum would.
template <class F>
F sum_to_odd(F a, F b) {
  using Bits = std::conditional_t<sizeof(F) == 8, int64_t, int32_t>;
  const F sum = a + b;
  const F from_b = sum - a;
  const F error = (a - (sum - from_b)) + (b - from_b);
  const Bits bits = std::bit_cast<Bits>(sum);
  const bool adjust = (error < 0 || error > 0) && (bits & 1) == 0;
  const Bits step = (error > 0) == (sum > 0) ? 1 : -1;
  return std::bit_cast<F>(bits + (adjust ? step : 0));
}

template <class E, bool kFlush, bool kSaturate>
struct Fma {
  static E apply(E a, E b, E c) {
    const auto x = widen(flush<kFlush>(a)), y = widen(flush<kFlush>(b)), z = widen(flush<kFlush>(c));
    if constexpr (std::is_same_v<E, double>)
      return __builtin_fma(x, y, z);
    else if constexpr (std::is_same_v<E, float>) {
      if constexpr (kFlush) {
        // No rounding of the sum of doubles takes it over 2^-126.
        const double about = static_cast<double>(x) * y + static_cast<double>(z);
        if (std::fabs(about) < 0x1p-126 && about != 0)
          return finish<E, kFlush, kSaturate>(static_cast<float>(std::copysign(0.0, about)));
      }
      return finish<E, kFlush, kSaturate>(__builtin_fmaf(x, y, z));
    } else if constexpr (std::is_same_v<E, Half>)
      return finish<E, kFlush, kSaturate>(sum_to_odd(x * y, z));  // The product is exact, also in float.
    else
      return finish<E, kFlush, kSaturate>(round_to_odd(sum_to_odd(static_cast<double>(x) * y, static_cast<double>(z))));
  }
};
// With .relu a negative result becomes +0.
template <class E, bool kFlush>
struct FmaRelu {
  static E apply(E a, E b, E c) {
    const E result = Fma<E, kFlush, false>::apply(a, b, c);
    return !is_nan(result) && (bits_of(result) & kSign<E>) ? E{} : result;
  }
};

// With .oob the result is +0 where a factor is the NaN, of any sign, that tensor copies fill in outside of a tensor
// (5.5.3.3).
inline bool is_outside(uint16_t bits) { return (bits & 0x7fff) == kOutsideNan16; }
template <class E, bool kRelu>
struct FmaOob {
  static E apply(E a, E b, E c) {
    const bool outside = is_outside(a.bits) || is_outside(b.bits);
    if constexpr (kRelu)
      return outside ? E{} : FmaRelu<E, false>::apply(a, b, c);
    else
      return outside ? E{} : Fma<E, false, false>::apply(a, b, c);
  }
};

// 9.7.5: operands of a small type are computed and kept in f32.
template <class E, bool kSaturate>
struct AddMixed {
  static float apply(E a, float c) { return finish<float, false, kSaturate>(widen(a) + c); }
};
template <class E, bool kSaturate>
struct SubMixed {
  static float apply(E a, float c) { return finish<float, false, kSaturate>(widen(a) - c); }
};
template <class E, bool kSaturate>
struct FmaMixed {
  static float apply(E a, E b, float c) {
    return finish<float, false, kSaturate>(__builtin_fmaf(widen(a), widen(b), c));
  }
};

// ---- rounding modes ----------------------------------------------------------------------------

enum Rounding : uint8_t { kRn, kRz, kRm, kRp };
struct RoundedForm {
  Rounding rounding;
};

class RoundingScope {
 public:
  explicit RoundingScope(Rounding mode) : before_(std::fegetround()) {
    static constexpr int kModes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
    std::fesetround(kModes[mode]);
  }
  ~RoundingScope() { std::fesetround(before_); }

 private:
  int before_;
};

// Executes kInner, which is not inlined here, under the rounding mode of the form.
template <Execute kInner>
Step rounded(Warp& warp, const Instr& in, uint32_t mask) {
  const RoundingScope scope(in.form<RoundedForm>().rounding);
  return kInner(warp, in, mask);
}

int take_rounding(Form& f) { return f.take_one({"rn", "rz", "rm", "rp"}); }

template <class Op>
Execute with_rounding(Form& f, int rounding) {
  if (rounding <= kRn) return &lanes<Op>;
  f.out.set(RoundedForm{static_cast<Rounding>(rounding)});
  return &rounded<&lanes<Op>>;
}

// ---- choosing among the forms ------------------------------------------------------------------

// Conversions of 16-bit floats are long without wide vectors.
template <class Op, bool kFused>
Execute execute_of() {
  if constexpr (kFused)
    return fused_lanes<Op>();
  else
    return &lanes<Op>;
}

template <template <class, bool, bool> class Op, class E, bool kPacked, bool kFused>
Execute variant(bool ftz, bool sat) {
  const auto wrap = []<bool kFlush, bool kSaturate>() {
    using Plain = Op<E, kFlush, kSaturate>;
    if constexpr (kPacked)
      return execute_of<Both<Plain>, kFused>();
    else
      return execute_of<Plain, kFused>();
  };
  if (ftz) return sat ? wrap.template operator()<true, true>() : wrap.template operator()<true, false>();
  return sat ? wrap.template operator()<false, true>() : wrap.template operator()<false, false>();
}

template <template <class, bool, bool> class Op, class E>
Execute rounded_variant(Form& f, bool ftz, bool sat, int rounding) {
  if (ftz) return sat ? with_rounding<Op<E, true, true>>(f, rounding) : with_rounding<Op<E, true, false>>(f, rounding);
  return sat ? with_rounding<Op<E, false, true>>(f, rounding) : with_rounding<Op<E, false, false>>(f, rounding);
}

// Decodes add, sub, mul and fma of every type. kSources counts the sources.
template <template <class, bool, bool> class Op, template <class, bool> class Mixed, int kSources>
bool decode_arithmetic(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  constexpr bool kFused = kSources == 3;
  Form f(source, context, out);
  const bool pair32 = f.take("f32x2");
  if (pair32) f.needs(100);
  if (!pair32 && !is_float(f.peek_type())) return false;
  const int rounding = take_rounding(f);
  const bool ftz = f.take("ftz"), sat = f.take("sat"), relu = f.take("relu");
  const bool oob = source.parts[0] == "fma" && f.take("oob");
  if (kFused && rounding < 0) f.unsupported("it needs a rounding modifier");
  const Type t = pair32 ? Type::B64 : f.type();
  const Type from = f.type();  // 9.7.5: add.f32.f16
  const auto operands = [&](Type result, Type ab, Type c) {
    if (kSources == 3)
      f.operands({result, ab, ab, c});
    else
      f.operands({result, ab, c});
  };
  if (from != Type::None) {
    f.needs(100);
    if (source.parts[0] == "mul" || source.parts[0] == "mad" || t != Type::F32 || ftz || relu ||
        (from != Type::F16 && from != Type::BF16))
      return f.choose(nullptr);
    operands(Type::F32, from, Type::F32);
    if (from == Type::F16)
      return f.choose(sat ? with_rounding<Mixed<Half, true>>(f, rounding)
                          : with_rounding<Mixed<Half, false>>(f, rounding));
    return f.choose(sat ? with_rounding<Mixed<Bfloat, true>>(f, rounding)
                        : with_rounding<Mixed<Bfloat, false>>(f, rounding));
  }
  operands(t, t, t);
  if (source.parts[0] == "mad" && t != Type::F32 && t != Type::F64) return f.choose(nullptr);
  const bool nearest = rounding <= kRn;
  if constexpr (kFused) {
    if (oob) {
      if (ftz || sat || !nearest) return f.choose(nullptr);
      switch (t) {
        case Type::F16:
          return f.choose(relu ? &lanes<FmaOob<Half, true>> : &lanes<FmaOob<Half, false>>);
        case Type::F16x2:
          return f.choose(relu ? &lanes<Both<FmaOob<Half, true>>> : &lanes<Both<FmaOob<Half, false>>>);
        case Type::BF16:
          return f.choose(relu ? &lanes<FmaOob<Bfloat, true>> : &lanes<FmaOob<Bfloat, false>>);
        case Type::BF16x2:
          return f.choose(relu ? &lanes<Both<FmaOob<Bfloat, true>>> : &lanes<Both<FmaOob<Bfloat, false>>>);
        default:
          return f.choose(nullptr);
      }
    }
  }
  if (relu) {
    if constexpr (kFused) {
      if (sat || !nearest) return f.choose(nullptr);
      switch (t) {
        case Type::F16:
          return f.choose(ftz ? &lanes<FmaRelu<Half, true>> : &lanes<FmaRelu<Half, false>>);
        case Type::F16x2:
          return f.choose(ftz ? &lanes<Both<FmaRelu<Half, true>>> : &lanes<Both<FmaRelu<Half, false>>>);
        case Type::BF16:
          return f.choose(ftz ? nullptr : &lanes<FmaRelu<Bfloat, false>>);
        case Type::BF16x2:
          return f.choose(ftz ? nullptr : &lanes<Both<FmaRelu<Bfloat, false>>>);
        default:
          break;
      }
    }
    return f.choose(nullptr);
  }
  switch (t) {
    case Type::F32:
      return f.choose(nearest ? variant<Op, float, false, kFused>(ftz, sat)
                              : rounded_variant<Op, float>(f, ftz, sat, rounding));
    case Type::B64:
      if (sat) return f.choose(nullptr);
      if (nearest) return f.choose(variant<Op, float, true, kFused>(ftz, false));
      return f.choose(ftz ? with_rounding<Both<Op<float, true, false>>>(f, rounding)
                          : with_rounding<Both<Op<float, false, false>>>(f, rounding));
    case Type::F64:
      if (ftz || sat) return f.choose(nullptr);
      if (nearest) return f.choose(execute_of<Op<double, false, false>, kFused>());
      return f.choose(with_rounding<Op<double, false, false>>(f, rounding));
    case Type::F16:
      return f.choose(nearest ? variant<Op, Half, false, true>(ftz, sat) : nullptr);
    case Type::F16x2:
      return f.choose(nearest ? variant<Op, Half, true, true>(ftz, sat) : nullptr);
    case Type::BF16:
      return f.choose(nearest && !ftz && !sat ? fused_lanes<Op<Bfloat, false, false>>() : nullptr);
    case Type::BF16x2:
      return f.choose(nearest && !ftz && !sat ? fused_lanes<Both<Op<Bfloat, false, false>>>() : nullptr);
    default:
      return f.choose(nullptr);
  }
}

// mul and mad have no mixed form: decode_arithmetic refuses it.
template <class E, bool kSaturate>
struct NoMixed {
  static float apply(E, float) { return 0; }
};

// ---- abs, neg, copysign, testp (9.7.3.1, .2, .9, .10; 9.7.4.5, .6) -------------------------------

template <class E, bool kFlush>
struct Abs {
  static E apply(E a) { return magnitude(flush<kFlush>(a)); }
};
template <class E, bool kFlush>
struct Neg {
  static E apply(E a) { return std::bit_cast<E>(static_cast<BitsOf<E>>(bits_of(flush<kFlush>(a)) ^ kSign<E>)); }
};
template <class E>
struct Copysign {
  static E apply(E a, E b) {
    return std::bit_cast<E>(static_cast<BitsOf<E>>((bits_of(a) & kSign<E>) | bits_of(magnitude(b))));
  }
};

template <template <class, bool> class Op>
bool decode_sign(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  if (!is_float(f.peek_type())) return false;
  const bool ftz = f.take("ftz");
  const Type t = f.type();
  f.operands({t, t});
  switch (t) {
    case Type::F32:
      return f.choose(ftz ? &lanes<Op<float, true>> : &lanes<Op<float, false>>);
    case Type::F64:
      return f.choose(ftz ? nullptr : &lanes<Op<double, false>>);
    case Type::F16:
      return f.choose(ftz ? &lanes<Op<Half, true>> : &lanes<Op<Half, false>>);
    case Type::F16x2:
      return f.choose(ftz ? &lanes<Both<Op<Half, true>>> : &lanes<Both<Op<Half, false>>>);
    case Type::BF16:
      return f.choose(ftz ? nullptr : &lanes<Op<Bfloat, false>>);
    default:
      return f.choose(ftz ? nullptr : &lanes<Both<Op<Bfloat, false>>>);
  }
}

bool decode_copysign(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  f.operands({t, t, t});
  return f.choose(t == Type::F32 ? &lanes<Copysign<float>> : t == Type::F64 ? &lanes<Copysign<double>> : nullptr);
}

enum class Property { Finite, Infinite, Number, NotANumber, Normal, Subnormal };
template <class E, Property kProperty>
struct Testp {
  static bool apply(E a) {
    const E m = magnitude(a), smallest = std::numeric_limits<E>::min(), infinity = std::numeric_limits<E>::infinity();
    switch (kProperty) {
      case Property::Finite:
        return m < infinity;
      case Property::Infinite:
        return m == infinity;
      case Property::Number:
        return m == m;
      case Property::NotANumber:
        return m != m;
      case Property::Normal:
        return m == 0 || (m >= smallest && m < infinity);
      case Property::Subnormal:
        return m > 0 && m < smallest;
    }
    return false;
  }
};
template <class E>
Execute testp_op(int property) {
  switch (property) {
    case 0:
      return &lanes<Testp<E, Property::Finite>>;
    case 1:
      return &lanes<Testp<E, Property::Infinite>>;
    case 2:
      return &lanes<Testp<E, Property::Number>>;
    case 3:
      return &lanes<Testp<E, Property::NotANumber>>;
    case 4:
      return &lanes<Testp<E, Property::Normal>>;
    case 5:
      return &lanes<Testp<E, Property::Subnormal>>;
    default:
      return nullptr;
  }
}
bool decode_testp(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const int property = f.take_one({"finite", "infinite", "number", "notanumber", "normal", "subnormal"});
  const Type t = f.type();
  f.operands({Type::Pred, t});
  return f.choose(t == Type::F32 ? testp_op<float>(property) : t == Type::F64 ? testp_op<double>(property) : nullptr);
}

// ---- min, max (9.7.3.11, .12; 9.7.4.7, .8) -------------------------------------------------------

// -0 is less than +0, and a NaN loses.
template <class E, bool kMax>
struct MinMax {
  static E apply(E a, E b) {
    const auto x = widen(a), y = widen(b);
    const bool a_first =
        kMax ? x > y || (x == y && !(bits_of(a) & kSign<E>)) : x < y || (x == y && (bits_of(a) & kSign<E>));
    E result = a_first ? a : b;
    result = is_nan(b) ? a : result;
    result = is_nan(a) ? b : result;
    return is_nan(result) ? canonical_nan<E>() : result;
  }
};
struct MinMaxForm {
  bool flush = false, nan = false, xor_sign = false, abs = false;
  bool plain() const { return !flush && !nan && !xor_sign && !abs; }
};
template <class E, bool kMax>
struct MinMaxModified {
  static E two(const MinMaxForm& how, E a, E b) {
    if (how.nan && (is_nan(a) || is_nan(b))) return canonical_nan<E>();
    return MinMax<E, kMax>::apply(a, b);
  }
  static E apply(const MinMaxForm& how, E a, E b) {
    if (how.flush) a = flush<true>(a), b = flush<true>(b);
    const auto sign = static_cast<BitsOf<E>>((bits_of(a) ^ bits_of(b)) & kSign<E>);
    if (how.abs) a = magnitude(a), b = magnitude(b);
    const E result = two(how, a, b);
    if (!how.xor_sign || is_nan(result)) return result;
    return std::bit_cast<E>(static_cast<BitsOf<E>>(bits_of(magnitude(result)) | sign));
  }
};
template <bool kMax>
struct MinMaxOfThree {
  static float apply(const MinMaxForm& how, float a, float b, float c) {
    using Two = MinMaxModified<float, kMax>;
    if (how.flush) c = flush<true>(c);
    if (how.abs) c = magnitude(c);
    return Two::two(how, Two::apply(how, a, b), c);
  }
};

template <bool kMax>
bool decode_min_max(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  if (!is_float(f.peek_type())) return false;
  MinMaxForm how;
  how.flush = f.take("ftz");
  how.nan = f.take("NaN");
  how.xor_sign = f.take("xorsign");
  how.abs = f.take("abs");
  const bool modified = !how.plain();
  const Type t = f.type();
  out.set(how);
  if (f.count() == 4) {
    f.needs(100);
    f.operands({t, t, t, t});
    return f.choose(t == Type::F32 && !how.xor_sign ? &lanes<MinMaxOfThree<kMax>> : nullptr);
  }
  if (how.xor_sign != how.abs) f.unsupported(".xorsign and .abs go together");
  f.operands({t, t, t});
  switch (t) {
    case Type::F32:
      return f.choose(modified ? &lanes<MinMaxModified<float, kMax>> : &lanes<MinMax<float, kMax>>);
    case Type::F64:
      return f.choose(modified ? nullptr : &lanes<MinMax<double, kMax>>);
    case Type::F16:
      return f.choose(modified ? &lanes<MinMaxModified<Half, kMax>> : &lanes<MinMax<Half, kMax>>);
    case Type::F16x2:
      return f.choose(modified ? &lanes<Both<MinMaxModified<Half, kMax>>> : &lanes<Both<MinMax<Half, kMax>>>);
    case Type::BF16:
      return f.choose(how.flush  ? nullptr
                      : modified ? &lanes<MinMaxModified<Bfloat, kMax>>
                                 : &lanes<MinMax<Bfloat, kMax>>);
    default:
      return f.choose(how.flush  ? nullptr
                      : modified ? &lanes<Both<MinMaxModified<Bfloat, kMax>>>
                                 : &lanes<Both<MinMax<Bfloat, kMax>>>);
  }
}

// ---- div, rcp, sqrt, rsqrt (9.7.3.8, .13 to .17) -------------------------------------------------

template <class E, bool kFlush>
struct Div {
  static E apply(E a, E b) { return finish<E, kFlush, false>(flush<kFlush>(a) / flush<kFlush>(b)); }
};
// div.full is the exact quotient rounded once. In div.approx the reciprocal of a divisor above 2^126 would be subnormal
// and counts as zero.
template <bool kFlush>
struct DivApprox {
  static float apply(float a, float b) {
    a = flush<kFlush>(a), b = flush<kFlush>(b);
    const float m = magnitude(b);
    if (m > 0x1p126f && m <= std::numeric_limits<float>::max())
      b = std::copysign(std::numeric_limits<float>::infinity(), b);
    return finish<float, kFlush, false>(a / b);
  }
};
template <class E, bool kFlush>
struct Rcp {
  static E apply(E a) { return finish<E, kFlush, false>(E{1} / flush<kFlush>(a)); }
};
template <class E, bool kFlush>
struct Sqrt {
  static E apply(E a) { return finish<E, kFlush, false>(std::sqrt(flush<kFlush>(a))); }
};
template <bool kFlush>
struct Rsqrt {
  static float apply(float a) {
    return finish<float, kFlush, false>(static_cast<float>(1.0 / std::sqrt(static_cast<double>(flush<kFlush>(a)))));
  }
};
struct RsqrtDouble {
  static double apply(double a) { return 1.0 / std::sqrt(a); }
};
// 9.7.3.14, 9.7.3.17: only the upper words take part, and subnormals are zeros.
template <bool kRoot>
struct GrossDouble {
  static double apply(double a) {
    const double upper = flush<true>(std::bit_cast<double>(std::bit_cast<uint64_t>(a) & 0xffffffff00000000ull));
    const double result = flush<true>(1.0 / (kRoot ? std::sqrt(upper) : upper));
    const uint64_t bits = is_nan(result) ? 0x7fffffff00000000ull : std::bit_cast<uint64_t>(result);
    return std::bit_cast<double>(bits & 0xffffffff00000000ull);
  }
};

bool decode_div(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  if (!is_float(f.peek_type())) return false;
  const Type t = f.type();
  f.operands({t, t, t});
  const bool ftz = f.take("ftz"), approx = f.take("approx"), full = f.take("full");
  const int rounding = take_rounding(f);
  if (approx + full + (rounding >= 0) != 1) f.unsupported("it needs one of .approx, .full and a rounding modifier");
  if (t == Type::F64) return f.choose(ftz || rounding < 0 ? nullptr : with_rounding<Div<double, false>>(f, rounding));
  if (t != Type::F32) return f.choose(nullptr);
  if (approx) return f.choose(ftz ? &lanes<DivApprox<true>> : &lanes<DivApprox<false>>);
  return f.choose(ftz ? with_rounding<Div<float, true>>(f, rounding) : with_rounding<Div<float, false>>(f, rounding));
}

template <template <class, bool> class Op, bool kRoot>
bool decode_rcp_sqrt(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  f.operands({t, t});
  const bool ftz = f.take("ftz"), approx = f.take("approx");
  const int rounding = take_rounding(f);
  if (approx == (rounding >= 0)) f.unsupported("it needs .approx or a rounding modifier");
  if (t == Type::F64) {
    if (approx) return f.choose(ftz && !kRoot ? &lanes<GrossDouble<false>> : nullptr);
    return f.choose(ftz ? nullptr : with_rounding<Op<double, false>>(f, rounding));
  }
  if (t != Type::F32) return f.choose(nullptr);
  return f.choose(ftz ? with_rounding<Op<float, true>>(f, rounding) : with_rounding<Op<float, false>>(f, rounding));
}

bool decode_rsqrt(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  f.operands({t, t});
  const bool ftz = f.take("ftz");
  if (!f.take("approx")) f.unsupported("it needs .approx");
  if (t == Type::F64) return f.choose(ftz ? &lanes<GrossDouble<true>> : &lanes<RsqrtDouble>);
  return f.choose(t != Type::F32 ? nullptr : ftz ? &lanes<Rsqrt<true>> : &lanes<Rsqrt<false>>);
}

// ---- sin, cos, lg2, ex2, tanh (9.7.3.18 to .22; 9.7.4.9, .10) -------------------------------------

struct SinOf {
  static double of(double x) { return std::sin(x); }
  static double quick(float x) { return quick_sin(x); }
};
struct CosOf {
  static double of(double x) { return std::cos(x); }
  static double quick(float x) { return quick_cos(x); }
};
struct Lg2Of {
  static double of(double x) { return std::log2(x); }
  static double quick(float x) { return quick_log2(x); }
};
struct Ex2Of {
  static double of(double x) { return std::exp2(x); }
  static double quick(float x) { return quick_exp2(x); }
};
struct TanhOf {
  static double of(double x) { return std::tanh(x); }
  static double quick(float x) { return quick_tanh(x); }
};

template <class Function, class E, bool kFlush>
struct Approx {
  static E apply(E a) {
    const double result = Function::of(static_cast<double>(widen(flush<kFlush>(a))));
    if constexpr (std::is_same_v<E, float>)
      return finish<E, kFlush, false>(static_cast<float>(result));
    else
      return finish<E, kFlush, false>(round_to_odd(result));
  }
};

// Floats that the quick function leaves in doubt are computed once more.
template <class Function, bool kFlush>
[[gnu::always_inline]] inline Step approx_lanes(Warp& warp, const Instr& in, uint32_t mask) {
  const Source<float> source(warp, in.reg[kA]);
  alignas(64) uint32_t result[kLanes], doubt[kLanes];
#pragma GCC ivdep
  for (int lane = 0; lane < kLanes; ++lane) {
    const double d = Function::quick(flush<kFlush>(source[lane]));
    doubt[lane] = in_doubt(d);
    result[lane] = pack<float>(finish<float, kFlush, false>(static_cast<float>(d)));
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    if (doubt[lane]) result[lane] = pack<float>(Approx<Function, float, kFlush>::apply(source[lane]));
  }
  store_row(warp, in.reg[kD], result, mask);
  return Step::Next;
}
template <class Function, bool kFlush>
[[gnu::noinline]] Step approx_portable(Warp& warp, const Instr& in, uint32_t mask) {
  return approx_lanes<Function, kFlush>(warp, in, mask);
}
template <class Function, bool kFlush>
[[gnu::noinline, gnu::target("avx2,fma")]] Step approx_avx2(Warp& warp, const Instr& in, uint32_t mask) {
  return approx_lanes<Function, kFlush>(warp, in, mask);
}
template <class Function, bool kFlush>
Execute approx_floats() {
  return has_avx2_and_fma() ? &approx_avx2<Function, kFlush> : &approx_portable<Function, kFlush>;
}

template <class Function>
bool decode_approx(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  f.operands({t, t});
  if (!f.take("approx")) f.unsupported("it needs .approx");
  const bool ftz = f.take("ftz");
  constexpr bool kHasHalves = std::is_same_v<Function, Ex2Of> || std::is_same_v<Function, TanhOf>;
  constexpr bool kTanh = std::is_same_v<Function, TanhOf>;
  if (t == Type::F32)
    return f.choose(!ftz ? approx_floats<Function, false>() : kTanh ? nullptr : approx_floats<Function, true>());
  if constexpr (kHasHalves) {
    switch (t) {
      case Type::F16:
        return f.choose(ftz ? nullptr : &lanes<Approx<Function, Half, false>>);
      case Type::F16x2:
        return f.choose(ftz ? nullptr : &lanes<Both<Approx<Function, Half, false>>>);
      case Type::BF16:
        return f.choose(ftz == kTanh ? nullptr : &lanes<Approx<Function, Bfloat, !kTanh>>);
      case Type::BF16x2:
        return f.choose(ftz == kTanh ? nullptr : &lanes<Both<Approx<Function, Bfloat, !kTanh>>>);
      default:
        break;
    }
  }
  return f.choose(nullptr);
}

}  // namespace
}  // namespace isa

void register_float() {
  using namespace isa;
  register_opcode("add", decode_arithmetic<Add, AddMixed, 2>);
  register_opcode("sub", decode_arithmetic<Sub, SubMixed, 2>);
  register_opcode("mul", decode_arithmetic<Mul, NoMixed, 2>);
  register_opcode("fma", decode_arithmetic<Fma, FmaMixed, 3>);
  register_opcode("mad", decode_arithmetic<Fma, FmaMixed, 3>);  // 9.7.3.7: the same as fma
  register_opcode("abs", decode_sign<Abs>);
  register_opcode("neg", decode_sign<Neg>);
  register_opcode("copysign", decode_copysign);
  register_opcode("testp", decode_testp);
  register_opcode("min", decode_min_max<false>);
  register_opcode("max", decode_min_max<true>);
  register_opcode("div", decode_div);
  register_opcode("rcp", decode_rcp_sqrt<Rcp, false>);
  register_opcode("sqrt", decode_rcp_sqrt<Sqrt, true>);
  register_opcode("rsqrt", decode_rsqrt);
  register_opcode("sin", decode_approx<SinOf>);
  register_opcode("cos", decode_approx<CosOf>);
  register_opcode("lg2", decode_approx<Lg2Of>);
  register_opcode("ex2", decode_approx<Ex2Of>);
  register_opcode("tanh", decode_approx<TanhOf>);
}

}  // namespace sim
