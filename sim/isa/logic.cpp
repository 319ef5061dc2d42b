// SPDX-License-Identifier: Apache-2.0
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
  store_predicate(warp, in.reg[kD], Op::apply(warp.predicate(in.reg[kA]), warp.predicate(in.reg[kB])), mask);
  return Step::Next;
}
Step predicate_not(Warp& warp, const Instr& in, uint32_t mask) {
  store_predicate(warp, in.reg[kD], ~warp.predicate(in.reg[kA]), mask);
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

enum class BoolOp : uint8_t { None, And, Or, Xor };

uint32_t combine(BoolOp op, uint32_t a, uint32_t b) {
  return op == BoolOp::And ? a & b : op == BoolOp::Or ? a | b : op == BoolOp::Xor ? a ^ b : a;
}

struct Lop3Form {
  // Bit 4 a + 2 b + c is the result for bits a, b and c.
  uint8_t table;
  // Without a boolean operation there is neither p nor q.
  BoolOp boolean;
  bool negated_q;
  ValueOperand d, p, a, b, c, q;
};

// A sum of the table's minterms, the same for all lanes.
Step lop3(Warp& warp, const Instr& in, uint32_t mask) {
  const auto form = in.form<Lop3Form>();
  const uint32_t *a = warp.row<uint32_t>(in.reg[form.a.place]), *b = warp.row<uint32_t>(in.reg[form.b.place]),
                 *c = warp.row<uint32_t>(in.reg[form.c.place]);
  alignas(64) uint32_t result[kLanes] = {};
  for (int term = 0; term < 8; ++term) {
    if (!(form.table >> term & 1)) continue;
    const uint32_t flip_a = term & 4 ? 0 : ~0u, flip_b = term & 2 ? 0 : ~0u, flip_c = term & 1 ? 0 : ~0u;
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane)
      result[lane] |= (a[lane] ^ flip_a) & (b[lane] ^ flip_b) & (c[lane] ^ flip_c);
  }
  if (form.boolean != BoolOp::None) {
    uint32_t nonzero = 0;
    for (int lane = 0; lane < kLanes; ++lane) nonzero |= static_cast<uint32_t>(result[lane] != 0) << lane;
    const uint32_t q = warp.predicate(in.reg[form.q.place]) ^ (form.negated_q ? ~0u : 0u);
    store_predicate(warp, in.reg[form.p.place], combine(form.boolean, nonzero, q), mask);
  }
  store_row(warp, in.reg[form.d.place], result, mask);
  return Step::Next;
}

bool decode_lop3(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const int op = f.take_one({"and", "or"});
  const Type t = f.type();
  if (t != Type::B32) return f.choose(nullptr);
  const bool with_predicates = op >= 0;
  // d{|p}, a, b, c, table{, q}
  size_t next = with_predicates ? 2 : 1;
  const size_t table = next + 3;
  if (f.count() != (with_predicates ? 7u : 5u) || source.dual_destination != with_predicates)
    f.unsupported("it has the wrong number of operands");
  const ptx::Operand& lut = f.at(table);
  if (lut.kind != ptx::Operand::Kind::Immediate || lut.is_float || lut.bits > 255)
    f.unsupported("its table must be a constant from 0 to 255");
  Lop3Form form{};
  form.table = static_cast<uint8_t>(lut.bits);
  form.boolean = op < 0 ? BoolOp::None : op == 0 ? BoolOp::And : BoolOp::Or;
  form.d = f.operand(0, Type::B32);
  if (with_predicates) form.p = f.operand(1, Type::Pred);
  for (ValueOperand* operand : {&form.a, &form.b, &form.c}) *operand = f.operand(next++, Type::B32);
  if (with_predicates) {
    f.allow_negation();
    form.q = f.operand(table + 1, Type::Pred);
    form.negated_q = f.at(table + 1).negated;
  }
  out.set(form);
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
enum class Relation : uint8_t { Equal, Less, LessEqual, LessGreater, Ordered };

inline float comparable(Half v) { return widen(v); }
inline float comparable(Bfloat v) { return widen(v); }
template <class T>
requires std::is_arithmetic_v<T>
inline T comparable(T v) { return v; }
// With .ftz subnormals of f32 compare as zero.
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
// Zeros of both signs are equal.
inline float flushed(Half v) { return (v.bits & 0x7c00u) == 0 ? 0.0f : widen(v); }
inline float comparable(FlushedHalf v) { return flushed(v.value); }
// Of packed halves Pair compares the low ones and High the high ones.
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

// The same halves, compared with .ftz.
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

// The rows of the table of comparisons.
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

// The form of setp and set.
struct Comparison {
  // The row of the table, and its column.
  Compared row = kU32;
  Relation relation = Relation::Equal;
  bool inverted = false;
  // Two halves are compared. The next row of the table compares the high ones.
  bool packed = false;
  BoolOp boolean = BoolOp::None;
  bool negated_c = false;
  // What set gives for true.
  uint32_t value = 0;
  bool has_q = false;
  // setp has p and perhaps q, set has d.
  ValueOperand p, q, d;
  // c is there when a boolean operation is.
  ValueOperand a, b, c;
};
static_assert(sizeof(Relation) == 1 && sizeof(Compared) == 1);

// What the modifiers of a comparison say, before its operands are pushed.
struct ComparisonModifiers {
  Type type = Type::None;
  Comparison form;
  // a > b is b < a.
  bool exchanged = false;
  bool flushed = false;
};

// Takes .CmpOp{.BoolOp}{.ftz}.type, before which set has the type of its destination.
ComparisonModifiers take_comparison(Form& f) {
  ComparisonModifiers c;
  Comparison& form = c.form;
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
  form.relation = kOrdered[name].relation;
  c.exchanged = kOrdered[name].exchanged;
  form.inverted = kOrdered[name].inverted;
  form.boolean = static_cast<BoolOp>(f.take_one({"and", "or", "xor"}) + 1);
  const bool ftz = c.flushed = f.take("ftz");
  c.type = f.type();
  const bool unsigned_name = name >= 14;
  const bool equality = name < 2;
  switch (c.type) {
    case Type::B16:
    case Type::U16:
      form.row = kU16;
      break;
    case Type::B32:
    case Type::U32:
      form.row = kU32;
      break;
    case Type::B64:
    case Type::U64:
      form.row = kU64;
      break;
    case Type::S16:
      form.row = kS16;
      break;
    case Type::S32:
      form.row = kS32;
      break;
    case Type::S64:
      form.row = kS64;
      break;
    case Type::F32:
      form.row = ftz ? kF32Flushed : kF32;
      break;
    case Type::F64:
      form.row = kF64;
      break;
    case Type::F16:
      form.row = ftz ? kF16Flushed : kF16;
      break;
    case Type::BF16:
      form.row = kBF16;
      break;
    case Type::F16x2:
      form.row = ftz ? kLowF16Flushed : kLowF16, form.packed = true;
      break;
    case Type::BF16x2:
      form.row = kLowBF16, form.packed = true;
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

// Pushes the operands a, b and c.
void push_compared(Form& f, ComparisonModifiers& c, size_t first) {
  Comparison& form = c.form;
  const bool has_c = form.boolean != BoolOp::None;
  if (f.count() != first + 2 + has_c) f.unsupported("it takes " + std::to_string(first + 2 + has_c) + " operands");
  form.a = f.operand(first + (c.exchanged ? 1 : 0), c.type);
  form.b = f.operand(first + (c.exchanged ? 0 : 1), c.type);
  if (!has_c) return;
  f.allow_negation();
  form.c = f.operand(first + 2, Type::Pred);
  form.negated_c = f.at(first + 2).negated;
}

uint32_t compared(const Warp& warp, const Instr& in, const Comparison& form, int table_offset = 0) {
  const CompareRows compare = kTable[form.row + table_offset][static_cast<size_t>(form.relation)];
  const uint32_t result = compare(warp, in.reg[form.a.place], in.reg[form.b.place]);
  return form.inverted ? ~result : result;
}
uint32_t predicate_c(const Warp& warp, const Instr& in, const Comparison& form) {
  if (form.boolean == BoolOp::None) return 0;
  const uint32_t c = warp.predicate(in.reg[form.c.place]);
  return form.negated_c ? ~c : c;
}

// 9.7.6.2, 9.7.7.2
Step setp(Warp& warp, const Instr& in, uint32_t mask) {
  const auto form = in.form<Comparison>();
  const uint32_t t = compared(warp, in, form), c = predicate_c(warp, in, form);
  const uint32_t second = !form.has_q ? 0 : form.packed ? compared(warp, in, form, 1) : ~t;
  store_predicate(warp, in.reg[form.p.place], combine(form.boolean, t, c), mask);
  if (form.has_q) store_predicate(warp, in.reg[form.q.place], combine(form.boolean, second, c), mask);
  return Step::Next;
}

bool decode_setp(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  ComparisonModifiers c = take_comparison(f);
  if (c.form.packed && !source.dual_destination) f.unsupported("a packed comparison has two destinations");
  if ((c.type == Type::F16 || c.type == Type::BF16) && source.dual_destination)
    f.unsupported("a comparison of halves has one destination");
  c.form.p = f.operand(0, Type::Pred);
  c.form.has_q = source.dual_destination;
  if (c.form.has_q) c.form.q = f.operand(1, Type::Pred);
  push_compared(f, c, c.form.has_q ? 2 : 1);
  out.set(c.form);
  return f.choose(&setp);
}

// 9.7.6.1, 9.7.7.1
Step set(Warp& warp, const Instr& in, uint32_t mask) {
  const auto form = in.form<Comparison>();
  const uint32_t c = predicate_c(warp, in, form);
  const uint32_t low = combine(form.boolean, compared(warp, in, form), c);
  const uint32_t high = form.packed ? combine(form.boolean, compared(warp, in, form, 1), c) : 0;
  const uint32_t value = form.value;
  alignas(64) uint32_t result[kLanes];
  for (int lane = 0; lane < kLanes; ++lane)
    result[lane] = (low >> lane & 1 ? value : 0) | (high >> lane & 1 ? value << 16 : 0);
  store_row(warp, in.reg[form.d.place], result, mask);
  return Step::Next;
}

bool decode_set(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type d = f.type();
  ComparisonModifiers c = take_comparison(f);
  const bool packed = c.form.packed, halves = c.type == Type::F16 || c.type == Type::BF16;
  // 9.7.7.1: the small floats go by themselves, and halves besides to integers of 16 bits.
  bool exists = false;
  switch (d) {
    case Type::U16:
    case Type::S16:
      exists = halves;
      break;
    case Type::U32:
    case Type::S32:
      exists = true;
      break;
    case Type::F32:
      exists = !halves && !packed;
      break;
    case Type::F16:
      exists = !packed && c.type != Type::BF16;
      break;
    case Type::BF16:
      exists = !packed && !c.flushed;
      break;
    default:
      exists = packed && d == c.type;
      break;
  }
  if (!exists) return f.choose(nullptr);
  const bool one_half = d == Type::F16 || d == Type::F16x2, one_bfloat = d == Type::BF16 || d == Type::BF16x2;
  const bool short_integer = d == Type::U16 || d == Type::S16 || packed;
  c.form.value = one_half         ? 0x3c00
                 : one_bfloat     ? 0x3f80
                 : d == Type::F32 ? 0x3f800000
                 : short_integer  ? 0xffff
                                  : 0xffffffff;
  c.form.d = f.operand(0, d);
  push_compared(f, c, 1);
  out.set(c.form);
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
  if (!is_moved(t)) return nullptr;
  return ptx::bytes_of(t) == 8 ? &lanes<Op<uint64_t>> : &lanes<Op<uint32_t>>;
}

bool decode_selp(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const Type t = f.type();
  f.operands({t, t, t, Type::Pred});
  return f.choose(sized_op<Selp>(t));
}
bool decode_slct(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const bool ftz = f.take("ftz");
  const Type t = f.type(), c = f.type();
  f.operands({t, t, t, c});
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
