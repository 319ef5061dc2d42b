// Comparison and selection (PTX ISA 9.7.6, 9.7.7), logic and shifts (9.7.8).
#include <algorithm>
#include <array>

#include "sim/isa/lanes.h"

namespace sim {
namespace isa {
namespace {

template <template <class> class Op>
Execute bits_op(Type t) {
  switch (t) {
    case Type::B16:
      return &lanes<Op<uint16_t>>;
    case Type::B32:
      return &lanes<Op<uint32_t>>;
    case Type::B64:
      return &lanes<Op<uint64_t>>;
    default:
      return nullptr;
  }
}

// ---- and, or, xor, not, cnot (9.7.8.1 to .5) -----------------------------------------------------

template <class T>
struct And {
  static T apply(T a, T b) { return a & b; }
};
template <class T>
struct Or {
  static T apply(T a, T b) { return a | b; }
};
template <class T>
struct Xor {
  static T apply(T a, T b) { return a ^ b; }
};
template <class T>
struct Not {
  static T apply(T a) { return static_cast<T>(~a); }
};
template <class T>
struct Cnot {
  static T apply(T a) { return a == 0; }
};

// Predicates are lane masks already.
template <class Op>
Step predicate_binary(Warp& warp, const Instr& in, uint32_t mask) {
  store_predicate(warp, in.reg[0], Op::apply(warp.predicate(in.reg[1]), warp.predicate(in.reg[2])), mask);
  return Step::Next;
}
Step predicate_not(Warp& warp, const Instr& in, uint32_t mask) {
  store_predicate(warp, in.reg[0], ~warp.predicate(in.reg[1]), mask);
  return Step::Next;
}

template <template <class> class Op>
bool decode_binary(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  f.operands({t, t, t});
  return f.choose(t == Type::Pred ? &predicate_binary<Op<uint32_t>> : bits_op<Op>(t));
}
bool decode_not(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  f.operands({t, t});
  return f.choose(t == Type::Pred ? &predicate_not : bits_op<Not>(t));
}
bool decode_cnot(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  f.operands({t, t});
  return f.choose(bits_op<Cnot>(t));
}

// ---- lop3 (9.7.8.6) ------------------------------------------------------------------------------

constexpr uint8_t kNoBool = 0, kBoolAnd = 1, kBoolOr = 2, kBoolXor = 3;

uint32_t combine(uint8_t op, uint32_t a, uint32_t b) {
  return op == kBoolAnd ? a & b : op == kBoolOr ? a | b : op == kBoolXor ? a ^ b : a;
}

// A sum of the table's minterms, the same for all lanes.
Step lop3(Warp& warp, const Instr& in, uint32_t mask) {
  const bool with_predicate = in.kind != kNoBool;
  const uint32_t* operands = in.reg + (with_predicate ? 2 : 1);
  const uint32_t *a = warp.row<uint32_t>(operands[0]), *b = warp.row<uint32_t>(operands[1]),
                 *c = warp.row<uint32_t>(operands[2]);
  alignas(64) uint32_t result[kLanes] = {};
  for (int term = 0; term < 8; ++term) {
    if (!(in.imm >> term & 1)) continue;
    const uint32_t flip_a = term & 4 ? 0 : ~0u, flip_b = term & 2 ? 0 : ~0u, flip_c = term & 1 ? 0 : ~0u;
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane)
      result[lane] |= (a[lane] ^ flip_a) & (b[lane] ^ flip_b) & (c[lane] ^ flip_c);
  }
  if (with_predicate) {
    uint32_t nonzero = 0;
    for (int lane = 0; lane < kLanes; ++lane) nonzero |= static_cast<uint32_t>(result[lane] != 0) << lane;
    const uint32_t q = warp.predicate(in.reg[5]) ^ (in.flags ? ~0u : 0u);
    store_predicate(warp, in.reg[1], combine(in.kind, nonzero, q), mask);
  }
  store_row(warp, in.reg[0], result, mask);
  return Step::Next;
}

bool decode_lop3(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const int op = f.take_one({"and", "or"});
  const Type t = f.type();
  if (t != Type::B32) return f.choose(nullptr);
  const size_t table = op < 0 ? 4 : 5;
  if (f.count() != (op < 0 ? 5u : 7u) || source.dual_destination != (op >= 0))
    f.unsupported("it has the wrong number of operands");
  const ptx::Operand& lut = f.at(table);
  if (lut.kind != ptx::Operand::Kind::Immediate || lut.is_float || lut.bits > 255)
    f.unsupported("its table must be a constant from 0 to 255");
  out.imm = static_cast<int64_t>(lut.bits);
  out.kind = op < 0 ? kNoBool : op == 0 ? kBoolAnd : kBoolOr;
  f.operand(0, Type::B32);
  if (op >= 0) f.operand(1, Type::Pred);
  for (size_t i = table - 3; i < table; ++i) f.operand(i, Type::B32);
  if (op >= 0) {
    f.allow_negation();
    f.operand(6, Type::Pred);
    out.flags = f.at(6).negated;
  }
  return f.choose(&lop3);
}

// ---- shifts (9.7.8.7 to .9) ----------------------------------------------------------------------

template <class T>
struct Shl {
  static T apply(T a, uint32_t b) { return b >= sizeof(T) * 8 ? T{0} : static_cast<T>(a << b); }
};
template <class T>
struct Shr {
  static T apply(T a, uint32_t b) {
    constexpr uint32_t kLast = sizeof(T) * 8 - 1;
    return b > kLast ? static_cast<T>(std::is_signed_v<T> ? a >> kLast : T{0}) : static_cast<T>(a >> b);
  }
};
template <bool kLeft, bool kClamp>
struct Shf {
  static uint32_t apply(uint32_t a, uint32_t b, uint32_t c) {
    const uint32_t n = kClamp ? std::min(c, 32u) : c & 31;
    const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
    return static_cast<uint32_t>(kLeft ? both >> (32 - n) : both >> n);
  }
};

bool decode_shl(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  f.operands({t, t, Type::U32});
  return f.choose(bits_op<Shl>(t));
}
bool decode_shr(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  f.operands({t, t, Type::U32});
  return f.choose(is_integer(t) ? integer_op<Shr>(t) : bits_op<Shr>(t));
}
bool decode_shf(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const int direction = f.take_one({"l", "r"}), mode = f.take_one({"clamp", "wrap"});
  const Type t = f.type();
  f.operands({Type::B32, Type::B32, Type::B32, Type::U32});
  if (direction < 0 || mode < 0 || t != Type::B32) return f.choose(nullptr);
  if (direction == 0) return f.choose(mode == 0 ? &lanes<Shf<true, true>> : &lanes<Shf<true, false>>);
  return f.choose(mode == 0 ? &lanes<Shf<false, true>> : &lanes<Shf<false, false>>);
}

// ---- comparisons (9.3.1) -------------------------------------------------------------------------

// Every comparison is one of five, perhaps with the operands exchanged or the result inverted.
enum class Relation { Equal, Less, LessEqual, LessGreater, Ordered };

inline float comparable(Half v) { return widen(v); }
inline float comparable(Bfloat v) { return widen(v); }
template <class T>
requires std::is_arithmetic_v<T>
inline T comparable(T v) { return v; }
// .ftz on f32: subnormals compare as zero.
struct Flushed {
  float value;
};
inline float comparable(Flushed v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v.value);
  return std::bit_cast<float>((bits & 0x7f800000u) == 0 ? bits & 0x80000000u : bits);
}
struct FlushedHalf {
  Half value;
};
inline float flushed(Half v) { return (v.bits & 0x7c00u) == 0 ? 0.0f : widen(v); }  // zeros of both signs are equal
inline float comparable(FlushedHalf v) { return flushed(v.value); }
// Packed halves: Pair compares its low half, High its high one.
template <class E>
struct High {
  E lo, hi;
};
template <class E>
inline float comparable(High<E> v) {
  return widen(v.hi);
}
template <class E>
inline float comparable(Pair<E> v) {
  return widen(v.lo);
}

// The same with .ftz.
struct LowFlushed {
  Half lo, hi;
};
struct HighFlushed {
  Half lo, hi;
};
inline float comparable(LowFlushed v) { return flushed(v.lo); }
inline float comparable(HighFlushed v) { return flushed(v.hi); }

template <Relation kRelation, class V>
bool holds(V a, V b) {
  switch (kRelation) {
    case Relation::Equal:
      return a == b;
    case Relation::Less:
      return a < b;
    case Relation::LessEqual:
      return a <= b;
    case Relation::LessGreater:
      return a < b || a > b;
    case Relation::Ordered:
      return a == a && b == b;
  }
  return false;
}

using CompareRows = uint32_t (*)(const Warp&, uint32_t, uint32_t);

template <class T, Relation kRelation>
uint32_t compare_rows(const Warp& warp, uint32_t left, uint32_t right) {
  const Source<T> a(warp, left), b(warp, right);
  uint32_t result = 0;
  for (int lane = 0; lane < kLanes; ++lane)
    result |= static_cast<uint32_t>(holds<kRelation>(comparable(a[lane]), comparable(b[lane]))) << lane;
  return result;
}

template <class T>
constexpr std::array<CompareRows, 5> kComparisons = {
    &compare_rows<T, Relation::Equal>, &compare_rows<T, Relation::Less>, &compare_rows<T, Relation::LessEqual>,
    &compare_rows<T, Relation::LessGreater>, &compare_rows<T, Relation::Ordered>};

// Rows of the table Instr::width points into.
enum Compared : uint8_t {
  kU16,
  kU32,
  kU64,
  kS16,
  kS32,
  kS64,
  kF32,
  kF32Flushed,
  kF64,
  kF16,
  kBF16,
  kLowF16,
  kHighF16,
  kLowBF16,
  kHighBF16,
  kF16Flushed,
  kLowF16Flushed,
  kHighF16Flushed,
};
constexpr std::array<std::array<CompareRows, 5>, 18> kTable = {
    kComparisons<uint16_t>,   kComparisons<uint32_t>,     kComparisons<uint64_t>,     kComparisons<int16_t>,
    kComparisons<int32_t>,    kComparisons<int64_t>,      kComparisons<float>,        kComparisons<Flushed>,
    kComparisons<double>,     kComparisons<Half>,         kComparisons<Bfloat>,       kComparisons<Pair<Half>>,
    kComparisons<High<Half>>, kComparisons<Pair<Bfloat>>, kComparisons<High<Bfloat>>, kComparisons<FlushedHalf>,
    kComparisons<LowFlushed>, kComparisons<HighFlushed>};

struct Comparison {
  Type type = Type::None;
  uint8_t row = 0;
  Relation relation = Relation::Equal;
  bool exchanged = false, inverted = false;
  uint8_t boolean = kNoBool;
  bool packed = false;
};

// Takes .CmpOp{.BoolOp}{.ftz}.type. set has its destination's type before.
Comparison take_comparison(Form& f) {
  Comparison c;
  const int name = f.take_one({"eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num",
                               "nan", "lo", "ls", "hi", "hs"});
  struct Meaning {
    Relation relation;
    bool exchanged, inverted;
  };
  static constexpr Meaning kOrdered[] = {
      {Relation::Equal, false, false},      {Relation::LessGreater, false, false}, {Relation::Less, false, false},
      {Relation::LessEqual, false, false},  {Relation::Less, true, false},         {Relation::LessEqual, true, false},
      {Relation::LessGreater, false, true}, {Relation::Equal, false, true},        {Relation::LessEqual, true, true},
      {Relation::Less, true, true},         {Relation::LessEqual, false, true},    {Relation::Less, false, true},
      {Relation::Ordered, false, false},    {Relation::Ordered, false, true},      {Relation::Less, false, false},
      {Relation::LessEqual, false, false},  {Relation::Less, true, false},         {Relation::LessEqual, true, false}};
  if (name < 0) f.unsupported("it names no comparison");
  c.relation = kOrdered[name].relation;
  c.exchanged = kOrdered[name].exchanged;
  c.inverted = kOrdered[name].inverted;
  c.boolean = static_cast<uint8_t>(f.take_one({"and", "or", "xor"}) + 1);
  const bool ftz = f.take("ftz");
  c.type = f.type();
  const bool unsigned_name = name >= 14;
  const bool equality = name < 2;
  switch (c.type) {
    case Type::B16:
    case Type::U16:
      c.row = kU16;
      break;
    case Type::B32:
    case Type::U32:
      c.row = kU32;
      break;
    case Type::B64:
    case Type::U64:
      c.row = kU64;
      break;
    case Type::S16:
      c.row = kS16;
      break;
    case Type::S32:
      c.row = kS32;
      break;
    case Type::S64:
      c.row = kS64;
      break;
    case Type::F32:
      c.row = ftz ? kF32Flushed : kF32;
      break;
    case Type::F64:
      c.row = kF64;
      break;
    case Type::F16:
      c.row = ftz ? kF16Flushed : kF16;
      break;
    case Type::BF16:
      c.row = kBF16;
      break;
    case Type::F16x2:
      c.row = ftz ? kLowF16Flushed : kLowF16, c.packed = true;
      break;
    case Type::BF16x2:
      c.row = kLowBF16, c.packed = true;
      break;
    default:
      f.unsupported("this type cannot be compared");
  }
  if (is_float(c.type)) {
    if (unsigned_name) f.unsupported("lo, ls, hi and hs compare unsigned integers");
    if (ftz && c.type != Type::F32 && c.type != Type::F16 && c.type != Type::F16x2)
      f.unsupported(".ftz is for f32, f16 and f16x2");
  } else {
    if (ftz || (name >= 6 && name < 14)) f.unsupported("this comparison needs a floating-point type");
    if (is_bits(c.type) && !equality) f.unsupported("bit-size types compare by eq and ne only");
    if (unsigned_name && is_signed(c.type)) f.unsupported("lo, ls, hi and hs compare unsigned integers");
  }
  return c;
}

// Instr: width = row of the table, type = relation, kind = boolean, flags as here, reg = destinations, a, b{, c}.
enum ComparisonFlags : uint8_t { kInvert = 1, kDual = 2, kHasC = 4, kNegateC = 8, kPacked = 16 };

void place_comparison(const Comparison& c, Instr& out) {
  out.width = c.row;
  out.type = static_cast<uint8_t>(c.relation);
  out.kind = c.boolean;
  if (c.inverted) out.flags |= kInvert;
  if (c.packed) out.flags |= kPacked;
}

// The operands a, b and c; a > b is b < a.
void push_compared(Form& f, const Comparison& c, size_t first) {
  const bool has_c = c.boolean != kNoBool;
  if (f.count() != first + 2 + has_c) f.unsupported("it takes " + std::to_string(first + 2 + has_c) + " operands");
  f.operand(first + (c.exchanged ? 1 : 0), c.type);
  f.operand(first + (c.exchanged ? 0 : 1), c.type);
  if (!has_c) return;
  f.allow_negation();
  f.operand(first + 2, Type::Pred);
  f.out.flags |= kHasC;
  if (f.at(first + 2).negated) f.out.flags |= kNegateC;
}

uint32_t compared(const Warp& warp, const Instr& in, const uint32_t* sources, int table_offset = 0) {
  const uint32_t result = kTable[in.width + table_offset][in.type](warp, sources[0], sources[1]);
  return in.flags & kInvert ? ~result : result;
}
uint32_t predicate_c(const Warp& warp, const Instr& in, const uint32_t* sources) {
  if (!(in.flags & kHasC)) return 0;
  const uint32_t c = warp.predicate(sources[2]);
  return in.flags & kNegateC ? ~c : c;
}

// 9.7.6.2, 9.7.7.2
Step setp(Warp& warp, const Instr& in, uint32_t mask) {
  const uint32_t* sources = in.reg + (in.flags & kDual ? 2 : 1);
  const uint32_t t = compared(warp, in, sources), c = predicate_c(warp, in, sources);
  const uint32_t second = !(in.flags & kDual) ? 0 : in.flags & kPacked ? compared(warp, in, sources, 1) : ~t;
  store_predicate(warp, in.reg[0], combine(in.kind, t, c), mask);
  if (in.flags & kDual) store_predicate(warp, in.reg[1], combine(in.kind, second, c), mask);
  return Step::Next;
}

bool decode_setp(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Comparison c = take_comparison(f);
  place_comparison(c, out);
  if (c.packed && !source.dual_destination) f.unsupported("a packed comparison has two destinations");
  f.operand(0, Type::Pred);
  if (source.dual_destination) {
    out.flags |= kDual;
    f.operand(1, Type::Pred);
  }
  push_compared(f, c, source.dual_destination ? 2 : 1);
  return f.choose(&setp);
}

// 9.7.6.1, 9.7.7.1: in.imm is the value for true.
Step set(Warp& warp, const Instr& in, uint32_t mask) {
  const uint32_t* sources = in.reg + 1;
  const uint32_t c = predicate_c(warp, in, sources);
  const uint32_t low = combine(in.kind, compared(warp, in, sources), c);
  const uint32_t high = in.flags & kPacked ? combine(in.kind, compared(warp, in, sources, 1), c) : 0;
  const uint32_t value = static_cast<uint32_t>(in.imm);
  alignas(64) uint32_t result[kLanes];
  for (int lane = 0; lane < kLanes; ++lane)
    result[lane] = (low >> lane & 1 ? value : 0) | (high >> lane & 1 ? value << 16 : 0);
  store_row(warp, in.reg[0], result, mask);
  return Step::Next;
}

bool decode_set(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type d = f.type();
  const Comparison c = take_comparison(f);
  place_comparison(c, out);
  const bool one_half = d == Type::F16 || d == Type::F16x2, one_bfloat = d == Type::BF16 || d == Type::BF16x2;
  if (d != Type::F32 && d != Type::U32 && d != Type::S32 && d != Type::U16 && d != Type::S16 && !one_half &&
      !one_bfloat)
    return f.choose(nullptr);
  const bool packed_result = d == Type::F16x2 || d == Type::BF16x2;
  if (packed_result && !c.packed) return f.choose(nullptr);
  if (c.packed && !packed_result && d != Type::U32 && d != Type::S32) return f.choose(nullptr);
  const bool short_integer = d == Type::U16 || d == Type::S16 || c.packed;
  out.imm = one_half ? 0x3c00 : one_bfloat ? 0x3f80 : d == Type::F32 ? 0x3f800000 : short_integer ? 0xffff : 0xffffffff;
  f.operand(0, d);
  push_compared(f, c, 1);
  return f.choose(&set);
}

// ---- selp, slct (9.7.6.3, .4) --------------------------------------------------------------------

template <class T>
struct Selp {
  static T apply(T a, T b, bool c) { return c ? a : b; }
};
template <class T>
struct SlctInteger {
  static T apply(T a, T b, int32_t c) { return c >= 0 ? a : b; }
};
template <class T>
struct SlctFloat {
  static T apply(T a, T b, float c) { return c >= 0 ? a : b; }
};
template <class T>
struct SlctFlushed {
  static T apply(T a, T b, Flushed c) { return comparable(c) >= 0 ? a : b; }
};

template <template <class> class Op>
Execute sized_op(Type t) {
  return ptx::bytes_of(t) == 8 ? &lanes<Op<uint64_t>> : ptx::bytes_of(t) >= 2 ? &lanes<Op<uint32_t>> : nullptr;
}

bool decode_selp(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  f.operands({t, t, t, Type::Pred});
  return f.choose(t == Type::Pred || t == Type::B128 ? nullptr : sized_op<Selp>(t));
}
bool decode_slct(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const bool ftz = f.take("ftz");
  const Type t = f.type(), c = f.type();
  f.operands({t, t, t, c});
  if (t == Type::Pred || t == Type::B128) return f.choose(nullptr);
  if (c == Type::S32) return f.choose(ftz ? nullptr : sized_op<SlctInteger>(t));
  return f.choose(c != Type::F32 ? nullptr : ftz ? sized_op<SlctFlushed>(t) : sized_op<SlctFloat>(t));
}

}  // namespace
}  // namespace isa

void register_logic() {
  using namespace isa;
  register_opcode("and", decode_binary<And>);
  register_opcode("or", decode_binary<Or>);
  register_opcode("xor", decode_binary<Xor>);
  register_opcode("not", decode_not);
  register_opcode("cnot", decode_cnot);
  register_opcode("lop3", decode_lop3);
  register_opcode("shl", decode_shl);
  register_opcode("shr", decode_shr);
  register_opcode("shf", decode_shf);
  register_opcode("setp", decode_setp);
  register_opcode("set", decode_set);
  register_opcode("selp", decode_selp);
  register_opcode("slct", decode_slct);
}

}  // namespace sim
