// SPDX-License-Identifier: Apache-2.0
// atom and red (PTX ISA 9.7.13.5, 9.7.13.6) on global and shared memory, scalar and vector.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "sim/arithmetic/half.h"
#include "sim/hazards/undefined.h"
#include "sim/isa/address.h"

namespace sim {
namespace {

using ptx::Operand;
using ptx::Type;

enum class Op : uint8_t { And, Or, Xor, Cas, Exch, Add, Inc, Dec, Min, Max };

// Values of 16-bit formats keep their bits. Arithmetic goes through float, whose 24 bits make the rounding exact.
using isa::Bfloat;
using isa::Half;
template <class E>
struct Packed {
  E low, high;
};

template <class T>
constexpr bool kIsHalf = std::is_same_v<T, Half> || std::is_same_v<T, Bfloat>;

template <class T>
T minimum(T a, T b) {
  if constexpr (kIsHalf<T>) {
    const float x = isa::widen(a), y = isa::widen(b);
    if (x != x) return y != y ? T{isa::kCanonicalNan16} : b;
    if (y != y) return a;
    return x < y || (x == y && std::signbit(x)) ? a : b;
  } else {
    return std::min(a, b);
  }
}
template <class T>
T maximum(T a, T b) {
  if constexpr (kIsHalf<T>) {
    const float x = isa::widen(a), y = isa::widen(b);
    if (x != x) return y != y ? T{isa::kCanonicalNan16} : b;
    if (y != y) return a;
    return x > y || (x == y && !std::signbit(x)) ? a : b;
  } else {
    return std::max(a, b);
  }
}

float flushed(float f) { return std::fpclassify(f) == FP_SUBNORMAL ? std::copysign(0.0f, f) : f; }

template <class T>
T sum(T a, T b, bool flush) {
  if constexpr (kIsHalf<T>) {
    return isa::narrow<T>(isa::widen(a) + isa::widen(b));
  } else if constexpr (std::is_same_v<T, float>) {
    const float s = flush ? flushed(flushed(a) + flushed(b)) : a + b;
    return s != s ? std::bit_cast<float>(isa::kCanonicalNan32) : s;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) + static_cast<std::make_unsigned_t<T>>(b));
  } else {
    return a != a ? a + a : a + b;  // Of two NaNs the one in memory stays.
  }
}

// The value that memory holds after the operation. `flush` is set for float sums in global memory, where an H200
// flushes subnormals.
template <class T>
[[gnu::always_inline]] inline T updated(Op op, T old, T b, T c, bool flush) {
  if constexpr (std::is_same_v<T, Packed<Half>> || std::is_same_v<T, Packed<Bfloat>>) {
    return {updated(op, old.low, b.low, c.low, flush), updated(op, old.high, b.high, c.high, flush)};
  } else if constexpr (std::is_same_v<T, Quad>) {
    if (op == Op::Exch) return b;
    return old.low == b.low && old.high == b.high ? c : old;
  } else {
    switch (op) {
      case Op::Exch:
        return b;
      case Op::Add:
        return sum(old, b, flush);
      case Op::Min:
        return minimum(old, b);
      case Op::Max:
        return maximum(old, b);
      default:
        break;
    }
    if constexpr (std::is_integral_v<T>) {
      switch (op) {
        case Op::And:
          return old & b;
        case Op::Or:
          return old | b;
        case Op::Xor:
          return old ^ b;
        case Op::Cas:
          return old == b ? c : old;
        case Op::Inc:
          return old >= b ? 0 : old + 1;
        case Op::Dec:
          return old == 0 || old > b ? b : old - 1;
        default:
          break;
      }
    }
    return old;
  }
}

template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;

// One atomic update, which gives the value before it. With `own` no other host thread can be at the word.
template <class T, class Updated>
[[gnu::always_inline]] inline T update(uint8_t* at, bool own, bool* changed, const Updated& now_of) {
  if (own) {
    T old;
    std::memcpy(&old, at, sizeof old);
    const T now = now_of(old);
    using Bytes = std::array<uint8_t, sizeof(T)>;
    *changed = std::bit_cast<Bytes>(old) != std::bit_cast<Bytes>(now);
    std::memcpy(at, &now, sizeof now);
    return old;
  }
  if constexpr (sizeof(T) == 16) {
    // There is no portable 16-byte exchange, and only these operations touch such words.
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    return update<T>(at, true, changed, now_of);
  } else {
    using Bits = BitsOf<T>;
    std::atomic_ref<Bits> word(*reinterpret_cast<Bits*>(at));
    Bits old = word.load(std::memory_order_relaxed);
    for (;;) {
      const Bits now = std::bit_cast<Bits>(now_of(std::bit_cast<T>(old)));
      *changed = now != old;
      if (word.compare_exchange_weak(old, now)) return std::bit_cast<T>(old);
    }
  }
}

template <class T>
using RowOf = std::conditional_t<sizeof(T) == 16, Quad, std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>>;
template <class T>
T from_row(RowOf<T> row) {
  if constexpr (sizeof(T) >= 4)
    return std::bit_cast<T>(row);
  else
    return std::bit_cast<T>(static_cast<uint16_t>(row));
}
template <class T>
RowOf<T> to_row(T value) {
  if constexpr (sizeof(T) >= 4)
    return std::bit_cast<RowOf<T>>(value);
  else
    return std::bit_cast<uint16_t>(value);
}

constexpr int kLongestVector = 8;

struct AtomicForm {
  MemoryForm memory;
  Op op;
  // The first element of the vector `d` (sinks for red) and of the vector `b`.
  ValueOperand d, b;
  // The new value of cas.
  ValueOperand c;
};

// What becomes of undefined bits: what is exchanged keeps its own, bits are combined one by one, and all of a result
// depends on all of the operands of other operations.
template <class T>
[[gnu::noinline]] void update_undefined(Warp& warp, const Instr& in, uint32_t mask, const Pointers& p) {
  const auto& form = in.form<AtomicForm>();
  UndefinedValues& undefined = *warp.undefined;
  // The access has marked as written what it has read before.
  for (const UndefinedValues::Unwritten& piece : undefined.met) {
    constexpr uint8_t kAll = 0xff;
    for (uint32_t rest = piece.mask; rest != 0; rest &= rest - 1)
      store_undefined(warp, piece.bytes + std::countr_zero(rest), &kAll, 1);
  }
  const auto bits_of = [&](uint32_t row, int lane) {
    std::array<uint8_t, sizeof(T)> bits;
    std::memcpy(bits.data(), undefined.registers.get() + row + sizeof(RowOf<T>) * static_cast<size_t>(lane), sizeof(T));
    return bits;
  };
  const bool swap = form.op == Op::Exch, bitwise = form.op == Op::And || form.op == Op::Or || form.op == Op::Xor;
  for (int e = 0; e < form.memory.vector; ++e) {
    const uint32_t to = in.reg[form.d.place + e];
    define_row(warp, to, mask);
    each_lane(mask, [&](int lane) {
      uint8_t* const at = p.at[lane] + sizeof(T) * static_cast<size_t>(e);
      std::array<uint8_t, sizeof(T)> old, now = bits_of(in.reg[form.b.place + e], lane);
      load_undefined(warp, at, old.data(), old.size());
      if (!swap) {
        for (size_t i = 0; i < old.size(); ++i) now[i] |= old[i];
      }
      if (form.op == Op::Cas) {
        const auto other = bits_of(in.reg[form.c.place], lane);
        for (size_t i = 0; i < old.size(); ++i) now[i] |= other[i];
      }
      const bool any = std::any_of(now.begin(), now.end(), [](uint8_t b) { return b != 0; });
      if (!swap && !bitwise && any) now.fill(0xff);
      store_undefined(warp, at, now.data(), now.size());
      if (to != kNoReg) {
        std::memcpy(undefined.registers.get() + to + sizeof(RowOf<T>) * static_cast<size_t>(lane), old.data(),
                    old.size());
      }
    });
    note_undefined(warp, to);
  }
}

template <class T>
Step atomic(Warp& warp, const Instr& in, uint32_t mask) {
  const auto& form = in.form<AtomicForm>();
  const int count = form.memory.vector;
  const AddressSpace space = form.memory.space;
  const Op op = form.op;
  const auto size = static_cast<uint32_t>(sizeof(T)) * static_cast<uint32_t>(count);
  Pointers p;
  resolve(warp, in, form.memory, mask, size, size, Access::ReadWrite, &p);
  synchronize(warp, in, form.memory, mask, true, true);
  if (holds_undefined(warp)) [[unlikely]]
    update_undefined<T>(warp, in, mask, p);
  Cluster& cluster = *warp.cta->cluster;
  const bool can_flush = std::is_same_v<T, float> && op == Op::Add;
  const auto is_shared = [&](const uint8_t* at) {
    return std::any_of(cluster.ctas.begin(), cluster.ctas.end(), [&](const auto& cta) {
      return at >= cta->shared.bytes && at < cta->shared.bytes + cta->shared.size;
    });
  };
  // A cluster has shared memory to itself, and all memory when clusters run one after the other. The host shares what
  // is at system scope.
  const bool own = space == AddressSpace::SharedCta || space == AddressSpace::SharedCluster ||
                   (cluster.alone && !form.memory.system_scope);
  // Lanes meet at a word in any order. The lazy machine takes them from the last to the first.
  const bool backwards = cluster.order.mode == Mode::Lazy;
  RowOf<T> results[kLongestVector][kLanes];  // A destination may be another element's source.
  const auto all = [&](auto chosen) {
    uint64_t stores = 0;
    for (int e = 0; e < count; ++e) {
      const RowOf<T>* const sources = warp.row<RowOf<T>>(in.reg[form.b.place + e]);
      const RowOf<T>* const others = op == Op::Cas ? warp.row<RowOf<T>>(in.reg[form.c.place]) : sources;
      for (uint32_t rest = mask; rest != 0;) {
        const int lane = backwards ? 31 - std::countl_zero(rest) : std::countr_zero(rest);
        rest &= ~(1u << lane);
        const bool flush =
            can_flush && (space == AddressSpace::Global || (space == AddressSpace::Generic && !is_shared(p.at[lane])));
        const T b = from_row<T>(sources[lane]), c = from_row<T>(others[lane]);
        bool changed = false;
        const T old = update<T>(p.at[lane] + sizeof(T) * static_cast<size_t>(e), own, &changed,
                                [&](T before) { return updated(chosen(), before, b, c, flush); });
        stores += changed;
        results[e][lane] = to_row(old);
      }
    }
    cluster.stores += stores;
  };
  if (op == Op::Add)
    all([] { return Op::Add; });
  else
    all([op] { return op; });
  for (int e = 0; e < count; ++e) {
    if (in.reg[form.d.place + e] == kNoReg) continue;
    RowOf<T>* const to = warp.row<RowOf<T>>(in.reg[form.d.place + e]);
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1)
      to[std::countr_zero(rest)] = results[e][std::countr_zero(rest)];
  }
  return Step::Next;
}

// Null for what 9.7.13.5 does not have. Sums of small floats say .noftz, and no other operation does.
Execute execute_for(Op op, Type type, int vector, bool noftz) {
  const bool small = type >= Type::F16 && type <= Type::BF16x2;
  if (noftz != small) return nullptr;
  const bool extreme = op == Op::Min || op == Op::Max;
  if (vector > 1) {
    const int most = type == Type::F16 || type == Type::BF16 ? 8 : type == Type::F32 || small ? 4 : 1;
    if (vector > most || !(op == Op::Add || (small && extreme))) return nullptr;
  } else if (small && op != Op::Add) {
    return nullptr;
  }
  const bool swap = op == Op::Cas || op == Op::Exch;
  const bool bitwise = op == Op::And || op == Op::Or || op == Op::Xor || swap;
  switch (type) {
    case Type::B16:
      return op == Op::Cas ? atomic<uint16_t> : nullptr;
    case Type::B32:
      return bitwise ? atomic<uint32_t> : nullptr;
    case Type::B64:
      return bitwise ? atomic<uint64_t> : nullptr;
    case Type::B128:
      return swap ? atomic<Quad> : nullptr;
    case Type::U32:
      return bitwise ? nullptr : atomic<uint32_t>;
    case Type::U64:
      return op == Op::Add || extreme ? atomic<uint64_t> : nullptr;
    case Type::S32:
      return op == Op::Add || extreme ? atomic<int32_t> : nullptr;
    case Type::S64:
      return extreme ? atomic<int64_t> : nullptr;
    case Type::F32:
      return op == Op::Add ? atomic<float> : nullptr;
    case Type::F64:
      return op == Op::Add ? atomic<double> : nullptr;
    case Type::F16:
      return atomic<Half>;
    case Type::BF16:
      return atomic<Bfloat>;
    case Type::F16x2:
      return atomic<Packed<Half>>;
    case Type::BF16x2:
      return atomic<Packed<Bfloat>>;
    default:
      return nullptr;
  }
}

bool decode_atomic(const ptx::Instruction& source, DecodeContext& context, Instr& out, bool has_result) {
  if (source.parts.size() > 1 && source.parts[1] == "async") return false;
  static const char* const kOps[] = {"and", "or", "xor", "cas", "exch", "add", "inc", "dec", "min", "max"};
  AtomicForm atomic_form{};
  MemoryForm& form = atomic_form.memory;
  int op = -1;
  bool noftz = false;
  for (size_t i = 1; i < source.parts.size(); ++i) {
    const auto named = std::find(std::begin(kOps), std::end(kOps), source.parts[i]);
    if (named != std::end(kOps) && op < 0)
      op = static_cast<int>(named - kOps);
    else if (source.parts[i] == "noftz")
      noftz = true;
    else if (!read_modifier(source.parts[i], &form))
      throw Unsupported("unknown modifier '." + source.parts[i] + "'");
  }
  if (op < 0) throw Unsupported("the operation is missing");
  atomic_form.op = static_cast<Op>(op);
  out.execute = execute_for(atomic_form.op, form.type, form.vector, noftz);
  if (out.execute == nullptr || (!has_result && (atomic_form.op == Op::Cas || atomic_form.op == Op::Exch)))
    throw Unsupported("the operation is not defined for this type");
  form.strong = true;  // An atomic operation is .relaxed unless it says otherwise.

  size_t next = 0;
  const auto vector_of = [&](const Operand& operand) {
    const size_t n = operand.kind == Operand::Kind::Vector ? operand.elements.size() : 1;
    if (operand.kind != Operand::Kind::Sink && n != static_cast<size_t>(form.vector))
      throw Unsupported("the vector has the wrong number of elements");
  };
  atomic_form.d.place = context.pushed();
  if (has_result) {
    const Operand& d = source.operands.at(next++);
    vector_of(d);
    if (d.kind == Operand::Kind::Sink) {
      for (int e = 0; e < form.vector; ++e) context.push(Operand{}, form.type);
    } else {
      context.push(d, form.type);
    }
  } else {
    for (int e = 0; e < form.vector; ++e) context.push(Operand{}, form.type);
  }
  push_base(source.operands.at(next++), context, &form);
  vector_of(source.operands.at(next));
  atomic_form.b.place = context.pushed();
  context.push(source.operands[next++], form.type);
  atomic_form.c.place = context.pushed();
  if (atomic_form.op == Op::Cas) context.push(source.operands.at(next), form.type);
  out.set(atomic_form);
  return true;
}

bool decode_atom(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  return decode_atomic(source, context, out, true);
}
bool decode_red(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  return decode_atomic(source, context, out, false);
}

}  // namespace

void register_atomics() {
  register_opcode("atom", decode_atom);
  register_opcode("red", decode_red);
}

}  // namespace sim
