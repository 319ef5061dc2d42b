// SPDX-License-Identifier: Apache-2.0
// How a plain instruction is written and read. It is a struct whose static `apply` says what one lane does, and
// lanes<Op> runs it over the 32 lanes of a warp. Form takes its modifiers and operands and refuses what is left over.
#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "sim/arithmetic/half.h"
#include "sim/machine/decode.h"
#include "sim/machine/hierarchy.h"
#include "sim/machine/launch.h"

namespace sim::isa {

using uint128 = unsigned __int128;

// The places in Instr::reg of an instruction with one destination, as the manual names its operands: d, a, b, c.
enum Place : uint8_t { kD, kA, kB, kC };

// ---- rows --------------------------------------------------------------------------------------

template <class T>
using RowOf = std::conditional_t<sizeof(T) == 16, uint128, std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>>;

template <class T>
inline T unpack(RowOf<T> row) {
  if constexpr (std::is_integral_v<T> || sizeof(T) == 16)
    return static_cast<T>(row);
  else if constexpr (sizeof(T) == 2)
    return std::bit_cast<T>(static_cast<uint16_t>(row));
  else
    return std::bit_cast<T>(row);
}

// Narrow integers are extended to the row by their sign, and other narrow values by zeros (PTX ISA 9.4.1).
template <class T>
inline RowOf<T> pack(T value) {
  if constexpr (sizeof(T) == 16)
    return value;
  else if constexpr (std::is_integral_v<T> && std::is_signed_v<T>)
    return static_cast<RowOf<T>>(static_cast<std::make_signed_t<RowOf<T>>>(value));
  else if constexpr (std::is_integral_v<T>)
    return static_cast<RowOf<T>>(value);
  else if constexpr (sizeof(T) == 2)
    return std::bit_cast<uint16_t>(value);
  else
    return std::bit_cast<RowOf<T>>(value);
}

// Writes the lanes of the mask, and nothing when the row is the sink.
template <class Row>
inline void store_row(Warp& warp, uint32_t offset, const Row (&values)[kLanes], uint32_t mask) {
  if (offset == kNoReg) return;
  Row* row = warp.row<Row>(offset);
  if (mask == kFullMask) {
    std::memcpy(row, values, sizeof values);
    return;
  }
  for (int lane = 0; lane < kLanes; ++lane)
    if (mask >> lane & 1) row[lane] = values[lane];
}

inline void store_predicate(Warp& warp, uint32_t offset, uint32_t value, uint32_t mask) {
  if (offset == kNoReg) return;
  uint32_t& row = *warp.row<uint32_t>(offset);
  row = (row & ~mask) | (value & mask);
}

// A source operand: a row, or the lane mask of a predicate.
template <class T>
struct Source {
  Source(const Warp& warp, uint32_t offset) : row(warp.row<RowOf<T>>(offset)) {}
  T operator[](int lane) const { return unpack<T>(row[lane]); }
  const RowOf<T>* row;
};
template <>
struct Source<bool> {
  Source(const Warp& warp, uint32_t offset) : mask(warp.predicate(offset)) {}
  bool operator[](int lane) const { return mask >> lane & 1; }
  uint32_t mask;
};

// Does to both halves of a packed pair what Op does.
template <class E>
struct Pair {
  E lo, hi;
};
template <class Op, class Signature = decltype(&Op::apply)>
struct Both;
template <class Op, class R, class... A>
struct Both<Op, R (*)(A...)> {
  using Half = Op;
  static Pair<R> apply(Pair<A>... operands) { return {Op::apply(operands.lo...), Op::apply(operands.hi...)}; }
};
template <class Op, class R, class How, class... A>
struct Both<Op, R (*)(const How&, A...)> {
  using Half = Op;
  static Pair<R> apply(const How& how, Pair<A>... operands) {
    return {Op::apply(how, operands.lo...), Op::apply(how, operands.hi...)};
  }
};

// ---- execution ---------------------------------------------------------------------------------

template <class Op, class R, class... A, size_t... I>
[[gnu::always_inline]] inline void run_lanes(Warp& warp, const Instr& in, uint32_t mask, R (*)(A...),
                                             std::index_sequence<I...>) {
  const std::tuple<Source<A>...> sources{Source<A>(warp, in.reg[kA + I])...};
  if constexpr (std::is_same_v<R, bool>) {
    uint32_t result = 0;
    for (int lane = 0; lane < kLanes; ++lane)
      result |= static_cast<uint32_t>(Op::apply(std::get<I>(sources)[lane]...)) << lane;
    store_predicate(warp, in.reg[kD], result, mask);
  } else {
    alignas(64) RowOf<R> result[kLanes];
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane) result[lane] = pack<R>(Op::apply(std::get<I>(sources)[lane]...));
    store_row(warp, in.reg[kD], result, mask);
  }
}
// Operations with a form of their own get it as their first argument. A copy of it cannot alias a row, so what the loop
// reads of it stays in registers.
template <class Op, class R, class How, class... A, size_t... I>
[[gnu::always_inline]] inline void run_lanes(Warp& warp, const Instr& in, uint32_t mask, R (*)(const How&, A...),
                                             std::index_sequence<I...>) {
  const How how = in.form<How>();
  const std::tuple<Source<A>...> sources{Source<A>(warp, in.reg[kA + I])...};
  alignas(64) RowOf<R> result[kLanes];
#pragma GCC ivdep
  for (int lane = 0; lane < kLanes; ++lane) result[lane] = pack<R>(Op::apply(how, std::get<I>(sources)[lane]...));
  store_row(warp, in.reg[kD], result, mask);
}

// A row of pairs is computed as all low halves and then all high ones, which makes loops that vectorize.
template <class R, class... A, size_t... I, class Apply>
[[gnu::always_inline]] inline void run_halves(Warp& warp, const Instr& in, uint32_t mask, std::index_sequence<I...>,
                                              const Apply& apply) {
  using Row = RowOf<Pair<R>>;
  constexpr int kBits = sizeof(R) * 8;
  constexpr auto kLow = static_cast<Row>((uint64_t{1} << kBits) - 1);
  const Row* const rows[] = {warp.row<Row>(in.reg[kA + I])...};
  alignas(64) RowOf<R> low[kLanes], high[kLanes];
#pragma GCC ivdep
  for (int lane = 0; lane < kLanes; ++lane)
    low[lane] = pack<R>(apply(unpack<A>(static_cast<RowOf<A>>(rows[I][lane] & kLow))...));
#pragma GCC ivdep
  for (int lane = 0; lane < kLanes; ++lane)
    high[lane] = pack<R>(apply(unpack<A>(static_cast<RowOf<A>>(rows[I][lane] >> kBits))...));
  alignas(64) Row result[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) result[lane] = (low[lane] & kLow) | static_cast<Row>(high[lane]) << kBits;
  store_row(warp, in.reg[kD], result, mask);
}
template <class Op, class R, class... A, size_t... I>
[[gnu::always_inline]] inline void run_lanes(Warp& warp, const Instr& in, uint32_t mask, Pair<R> (*)(Pair<A>...),
                                             std::index_sequence<I...> indices) {
  run_halves<R, A...>(warp, in, mask, indices, [](A... operands) { return Op::Half::apply(operands...); });
}
template <class Op, class R, class How, class... A, size_t... I>
[[gnu::always_inline]] inline void run_lanes(Warp& warp, const Instr& in, uint32_t mask,
                                             Pair<R> (*)(const How&, Pair<A>...), std::index_sequence<I...> indices) {
  const How how = in.form<How>();
  run_halves<R, A...>(warp, in, mask, indices, [&how](A... operands) { return Op::Half::apply(how, operands...); });
}

template <class T>
struct Arity;
template <class R, class... A>
struct Arity<R (*)(A...)> {
  static constexpr size_t value = sizeof...(A);
};
template <class R, class How, class... A>
struct Arity<R (*)(const How&, A...)> {
  static constexpr size_t value = sizeof...(A);
};

template <class Op>
[[gnu::noinline]] Step lanes(Warp& warp, const Instr& in, uint32_t mask) {
  run_lanes<Op>(warp, in, mask, &Op::apply, std::make_index_sequence<Arity<decltype(&Op::apply)>::value>());
  return Step::Next;
}

// Fused multiply-add is one instruction where the processor has it and slow library code elsewhere.
inline bool has_avx2_and_fma() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has;
}
template <class Op>
[[gnu::noinline, gnu::target("avx2,fma")]] Step lanes_with_fma(Warp& warp, const Instr& in, uint32_t mask) {
  run_lanes<Op>(warp, in, mask, &Op::apply, std::make_index_sequence<Arity<decltype(&Op::apply)>::value>());
  return Step::Next;
}
template <class Op>
Execute fused_lanes() {
  return has_avx2_and_fma() ? &lanes_with_fma<Op> : &lanes<Op>;
}

// ---- decoding ----------------------------------------------------------------------------------

using ptx::Type;

inline bool is_integer(Type t) { return t >= Type::U8 && t <= Type::S64; }
inline bool is_signed(Type t) { return t >= Type::S8 && t <= Type::S64; }
inline bool is_bits(Type t) { return t >= Type::B8 && t <= Type::B128; }
inline bool is_float(Type t) { return t >= Type::F16 && t <= Type::F64; }
// The types of mov, selp and slct: those of 16 to 64 bits without the small floats.
inline bool is_moved(Type t) {
  return t == Type::F32 || t == Type::F64 || (!is_float(t) && ptx::bytes_of(t) >= 2 && ptx::bytes_of(t) <= 8);
}

class Form {
 public:
  Form(const ptx::Instruction& source, DecodeContext& context, Instr& out);

  // Takes a modifier that may be there, wherever it stands.
  bool take(std::string_view modifier);
  // Takes the one of the list that is there, and gives its index, or -1.
  int take_one(std::initializer_list<std::string_view> modifiers);
  // Takes the next part that names a fundamental type. None when there is none.
  Type type();
  // The type that type() would take. Families that share an opcode tell each other apart by it.
  Type peek_type() const;
  // Appends the operands, destinations first, after checking their number, kinds and sizes.
  void operands(std::initializer_list<Type> types);
  // Appends one operand, for forms with vectors or optional operands, and says where it stands.
  ValueOperand operand(size_t index, Type type);
  size_t count() const { return source_.operands.size(); }
  const ptx::Operand& at(size_t index) const { return source_.operands.at(index); }
  // Lets predicate operands be written with '!', which operand() refuses otherwise.
  void allow_negation() { negation_ = true; }
  // Refuses targets before sm_`arch`.
  void needs(int arch) const;
  // Ends a decoder and returns true. Every modifier must have been taken. Null means that the form does not exist.
  bool choose(Execute execute);
  [[noreturn]] void unsupported(const std::string& why) const;

  Instr& out;
  DecodeContext& context;

 private:
  const ptx::Instruction& source_;
  std::array<bool, 32> taken_{};
  bool negation_ = false;
};

// Picks Op<T> for an integer type, and null for others.
template <template <class> class Op>
Execute integer_op(Type t) {
  switch (t) {
    case Type::U16:
      return &lanes<Op<uint16_t>>;
    case Type::U32:
      return &lanes<Op<uint32_t>>;
    case Type::U64:
      return &lanes<Op<uint64_t>>;
    case Type::S16:
      return &lanes<Op<int16_t>>;
    case Type::S32:
      return &lanes<Op<int32_t>>;
    case Type::S64:
      return &lanes<Op<int64_t>>;
    default:
      return nullptr;
  }
}

}  // namespace sim::isa
