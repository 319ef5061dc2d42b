// SPDX-License-Identifier: Apache-2.0
// Moves: mov with its packing and unpacking (PTX ISA 9.7.9.3, .4), prmt (9.7.9.7), isspacep and cvta (9.7.9.19, .20).
#include "sim/isa/lanes.h"
#include "sim/memory/address_space.h"

namespace sim {
namespace isa {
namespace {

// ---- mov -----------------------------------------------------------------------------------------

template <class Row>
Step copy_row(Warp& warp, const Instr& in, uint32_t mask) {
  Row* to = warp.row<Row>(in.reg[kD]);
  const Row* from = warp.row<Row>(in.reg[kA]);
  if (mask == kFullMask) {
    std::memmove(to, from, sizeof(Row) * kLanes);
    return Step::Next;
  }
  for (int lane = 0; lane < kLanes; ++lane)
    if (mask >> lane & 1) to[lane] = from[lane];
  return Step::Next;
}

Step copy_predicate(Warp& warp, const Instr& in, uint32_t mask) {
  store_predicate(warp, in.reg[kD], warp.predicate(in.reg[kA]), mask);
  return Step::Next;
}

// The elements of the vector stand at places that follow each other: from kA when they are packed, from kD when they
// are unpacked, with the packed value behind them.
struct VectorForm {
  uint8_t count;
};

// Packs elements of kBits each, the first into the low bits.
template <class Row, class Element, int kBits>
Step pack_row(Warp& warp, const Instr& in, uint32_t mask) {
  alignas(64) Row result[kLanes] = {};
  const int count = in.form<VectorForm>().count;
  for (int e = 0; e < count; ++e) {
    const Element* from = warp.row<Element>(in.reg[kA + e]);
    constexpr Row kMask =
        kBits == 64 ? static_cast<Row>(~uint64_t{0}) : static_cast<Row>((uint64_t{1} << (kBits & 63)) - 1);
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane) result[lane] |= (static_cast<Row>(from[lane]) & kMask) << (e * kBits);
  }
  store_row(warp, in.reg[kD], result, mask);
  return Step::Next;
}

template <class Row, class Element, int kBits>
Step unpack_row(Warp& warp, const Instr& in, uint32_t mask) {
  const int count = in.form<VectorForm>().count;
  const Row* row = warp.row<Row>(in.reg[count]);
  // A destination may be the source.
  alignas(64) Row from[kLanes];
  std::memcpy(from, row, sizeof from);
  for (int e = 0; e < count; ++e) {
    if (in.reg[kD + e] == kNoReg) continue;
    constexpr Element kMask =
        kBits == sizeof(Element) * 8 ? ~Element{0} : static_cast<Element>((uint64_t{1} << (kBits & 63)) - 1);
    alignas(64) Element result[kLanes];
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane) result[lane] = static_cast<Element>(from[lane] >> (e * kBits)) & kMask;
    store_row(warp, in.reg[kD + e], result, mask);
  }
  return Step::Next;
}

struct Packing {
  Type type;
  size_t count;
  Type element;
  Execute pack, unpack;
};
constexpr Packing kPackings[] = {
    {Type::B16, 2, Type::B8, &pack_row<uint32_t, uint32_t, 8>, &unpack_row<uint32_t, uint32_t, 8>},
    {Type::B32, 4, Type::B8, &pack_row<uint32_t, uint32_t, 8>, &unpack_row<uint32_t, uint32_t, 8>},
    {Type::B32, 2, Type::B16, &pack_row<uint32_t, uint32_t, 16>, &unpack_row<uint32_t, uint32_t, 16>},
    {Type::B64, 4, Type::B16, &pack_row<uint64_t, uint32_t, 16>, &unpack_row<uint64_t, uint32_t, 16>},
    {Type::B64, 2, Type::B32, &pack_row<uint64_t, uint32_t, 32>, &unpack_row<uint64_t, uint32_t, 32>},
    {Type::B128, 4, Type::B32, &pack_row<uint128, uint32_t, 32>, &unpack_row<uint128, uint32_t, 32>},
    {Type::B128, 2, Type::B64, &pack_row<uint128, uint64_t, 64>, &unpack_row<uint128, uint64_t, 64>},
};

void push_elements(Form& f, const ptx::Operand& vector, Type element, bool destination) {
  using Kind = ptx::Operand::Kind;
  const bool wide = ptx::bytes_of(element) == 8;
  for (const ptx::Operand& e : vector.elements) {
    const bool sink = destination && e.kind == Kind::Sink;
    const bool value =
        e.kind == Kind::Register || (!destination && (e.kind == Kind::Immediate || e.kind == Kind::Special));
    if (!sink && !value) f.unsupported("an element of its vector is not a register");
    if (e.kind == Kind::Register) {
      const Type have = f.context.register_type(e);
      if (have == Type::Pred || have == Type::B128 || (ptx::bytes_of(have) == 8) != wide)
        f.unsupported("an element of its vector does not have the size of its part");
    }
    f.context.push(e, element);
  }
}

// All elements are read before one is written.
template <class Row>
Step copy_vector(Warp& warp, const Instr& in, uint32_t mask) {
  const int count = in.form<VectorForm>().count;
  alignas(64) Row values[4][kLanes];
  for (int e = 0; e < count; ++e)
    std::memcpy(values[e], warp.row<Row>(in.reg[static_cast<size_t>(count + e)]), sizeof values[e]);
  for (int e = 0; e < count; ++e) store_row(warp, in.reg[e], values[e], mask);
  return Step::Next;
}

// mov.v2, mov.v4 (6.4.3).
bool decode_mov_vector(Form& f, Instr& out, size_t count) {
  using Kind = ptx::Operand::Kind;
  const Type t = f.type();
  if (!is_moved(t) || ptx::bytes_of(t) * count > 16) return f.choose(nullptr);
  if (f.count() != 2) f.unsupported("it takes 2 operands");
  for (size_t i = 0; i < 2; ++i) {
    if (f.at(i).kind != Kind::Vector || f.at(i).elements.size() != count)
      f.unsupported("its operands must be vectors of " + std::to_string(count) + " elements");
    push_elements(f, f.at(i), t, i == 0);
  }
  out.set(VectorForm{static_cast<uint8_t>(count)});
  return f.choose(ptx::bytes_of(t) == 8 ? &copy_vector<uint64_t> : &copy_vector<uint32_t>);
}

bool decode_mov(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  using Kind = ptx::Operand::Kind;
  Form f(source, context, out);
  if (const int vector = f.take_one({"v2", "v4"}); vector >= 0) return decode_mov_vector(f, out, vector == 0 ? 2 : 4);
  const Type t = f.type();
  if (f.count() != 2) f.unsupported("it takes 2 operands");
  const bool unpacks = f.at(0).kind == Kind::Vector, packs = f.at(1).kind == Kind::Vector;
  if (unpacks || packs) {
    if (unpacks && packs) f.unsupported("only one operand may be a vector");
    const ptx::Operand& vector = f.at(unpacks ? 0 : 1);
    const Type same_size = ptx::bytes_of(t) == 8 ? Type::B64 : ptx::bytes_of(t) == 4 ? Type::B32 : t;
    for (const Packing& p : kPackings) {
      if (p.type != same_size || p.count != vector.elements.size()) continue;
      out.set(VectorForm{static_cast<uint8_t>(p.count)});
      if (unpacks) {
        push_elements(f, vector, p.element, true);
        f.operand(1, t);
        return f.choose(p.unpack);
      }
      if (f.at(0).kind != Kind::Register) f.unsupported("its destination must be a register");
      f.operand(0, t);
      push_elements(f, vector, p.element, false);
      return f.choose(p.pack);
    }
    f.unsupported("its vector does not have the size of the type");
  }
  if (t != Type::Pred && t != Type::B128 && !is_moved(t)) return f.choose(nullptr);
  f.operands({t, t});
  if (f.at(0).kind == Kind::Sink) f.unsupported("its destination must be a register");
  if (t == Type::Pred) return f.choose(&copy_predicate);
  switch (ptx::bytes_of(t)) {
    case 16:
      return f.choose(&copy_row<uint128>);
    case 8:
      return f.choose(&copy_row<uint64_t>);
    default:
      return f.choose(&copy_row<uint32_t>);
  }
}

// ---- prmt ----------------------------------------------------------------------------------------

uint32_t select_bytes(uint32_t a, uint32_t b, uint32_t control) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t selector = control >> 4 * i & 0xf;
    uint32_t byte = static_cast<uint32_t>(bytes >> 8 * (selector & 7)) & 0xff;
    if (selector & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << 8 * i;
  }
  return result;
}

struct Prmt {
  static uint32_t apply(uint32_t a, uint32_t b, uint32_t c) { return select_bytes(a, b, c); }
};
// The special modes pick one of four controls by the low two bits of c.
template <uint32_t k0, uint32_t k1, uint32_t k2, uint32_t k3>
struct PrmtMode {
  static uint32_t apply(uint32_t a, uint32_t b, uint32_t c) {
    constexpr uint32_t kControls[4] = {k0, k1, k2, k3};
    return select_bytes(a, b, kControls[c & 3]);
  }
};
using Forward4 = PrmtMode<0x3210, 0x4321, 0x5432, 0x6543>;
using Backward4 = PrmtMode<0x5670, 0x6701, 0x7012, 0x0123>;
using Replicate8 = PrmtMode<0x0000, 0x1111, 0x2222, 0x3333>;
using EdgeLeft = PrmtMode<0x3210, 0x3211, 0x3222, 0x3333>;
using EdgeRight = PrmtMode<0x0000, 0x1110, 0x2210, 0x3210>;
using Replicate16 = PrmtMode<0x1010, 0x3232, 0x1010, 0x3232>;

struct PrmtForm {
  uint16_t control;
};
// A constant control moves bytes by the same amount in every lane.
Step prmt_constant(Warp& warp, const Instr& in, uint32_t mask) {
  const uint32_t* sources[2] = {warp.row<uint32_t>(in.reg[kA]), warp.row<uint32_t>(in.reg[kB])};
  const uint32_t control = in.form<PrmtForm>().control;
  alignas(64) uint32_t result[kLanes] = {};
  for (int i = 0; i < 4; ++i) {
    const uint32_t selector = control >> 4 * i & 7;
    const uint32_t* from = sources[selector >> 2];
    const uint32_t down = 8 * (selector & 3), up = static_cast<uint32_t>(8 * i);
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane) result[lane] |= (from[lane] >> down & 0xff) << up;
  }
  store_row(warp, in.reg[kD], result, mask);
  return Step::Next;
}

bool decode_prmt(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  static constexpr Execute kModes[] = {&lanes<Forward4>, &lanes<Backward4>, &lanes<Replicate8>,
                                       &lanes<EdgeLeft>, &lanes<EdgeRight>, &lanes<Replicate16>};
  const int mode = f.take_one({"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"});
  const Type t = f.type();
  f.operands({Type::B32, Type::B32, Type::B32, Type::B32});
  if (t != Type::B32) return f.choose(nullptr);
  if (mode >= 0) return f.choose(kModes[mode]);
  const ptx::Operand& control = f.at(3);
  if (control.kind == ptx::Operand::Kind::Immediate && (control.bits & 0x8888) == 0) {
    out.set(PrmtForm{static_cast<uint16_t>(control.bits & 0xffff)});
    return f.choose(&prmt_constant);
  }
  return f.choose(&lanes<Prmt>);
}

// ---- address spaces ------------------------------------------------------------------------------

// sim/memory/address_space.h describes the windows and the block's rank in a shared address.
enum class Window : uint8_t { Global, Shared, SharedCluster, Local, Param };

Window take_window(Form& f) {
  switch (
      f.take_one({"global", "const", "shared", "shared::cta", "shared::cluster", "local", "param", "param::entry"})) {
    case 0:
    case 1:
      return Window::Global;
    case 2:
    case 3:
      return Window::Shared;
    case 4:
      return Window::SharedCluster;
    case 5:
      return Window::Local;
    case 6:
    case 7:
      return Window::Param;
    default:
      f.unsupported("it names no state space");
  }
}

template <class Convert>
Step convert_addresses(Warp& warp, const Instr& in, uint32_t mask, Convert convert) {
  const uint64_t* from = warp.row<uint64_t>(in.reg[kA]);
  alignas(64) uint64_t result[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) result[lane] = convert(from[lane]);
  store_row(warp, in.reg[kD], result, mask);
  return Step::Next;
}

template <Window kWindow>
Step to_generic(Warp& warp, const Instr& in, uint32_t mask) {
  return convert_addresses(warp, in, mask, [](uint64_t a) {
    switch (kWindow) {
      case Window::Shared:
      case Window::SharedCluster:
        return kSharedWindow | a;
      case Window::Local:
        return kLocalWindow | a;
      case Window::Param:
        return kParamWindow | a;
      case Window::Global:
        break;
    }
    return a;
  });
}
template <Window kWindow>
Step from_generic(Warp& warp, const Instr& in, uint32_t mask) {
  return convert_addresses(warp, in, mask, [](uint64_t a) { return kWindow == Window::Global ? a : a & ~kWindowMask; });
}

template <Window kWindow>
Step is_space(Warp& warp, const Instr& in, uint32_t mask) {
  const uint64_t* a = warp.row<uint64_t>(in.reg[kA]);
  uint32_t result = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint64_t window = a[lane] & kWindowMask;
    bool inside = false;
    switch (kWindow) {
      case Window::Global:
        inside = window == 0 || window == kParamWindow;  // The window of .param lies within that of .global.
        break;
      case Window::Shared:
        inside = window == kSharedWindow && (a[lane] & ~kWindowMask) >> kRankShift == warp.cta->rank;
        break;
      case Window::SharedCluster:
        inside = window == kSharedWindow;
        break;
      case Window::Local:
        inside = window == kLocalWindow;
        break;
      case Window::Param:
        inside = window == kParamWindow;
        break;
    }
    result |= static_cast<uint32_t>(inside) << lane;
  }
  store_predicate(warp, in.reg[kD], result, mask);
  return Step::Next;
}

bool decode_cvta(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  const bool to = f.take("to");
  const Window window = take_window(f);
  const Type t = f.type();
  if (t != Type::U64) f.unsupported("addresses have 64 bits");
  f.operands({t, t});
  static constexpr Execute kToGeneric[] = {&copy_row<uint64_t>, &to_generic<Window::Shared>,
                                           &to_generic<Window::SharedCluster>, &to_generic<Window::Local>,
                                           &to_generic<Window::Param>};
  static constexpr Execute kFromGeneric[] = {&copy_row<uint64_t>, &from_generic<Window::Shared>,
                                             &from_generic<Window::SharedCluster>, &from_generic<Window::Local>,
                                             &from_generic<Window::Param>};
  return f.choose((to ? kFromGeneric : kToGeneric)[static_cast<int>(window)]);
}

bool decode_isspacep(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  Form f(source, context, out);
  if (f.take("const")) f.unsupported("constant memory has no window of its own");
  const Window window = take_window(f);
  f.operands({Type::Pred, Type::U64});
  static constexpr Execute kSpaces[] = {&is_space<Window::Global>, &is_space<Window::Shared>,
                                        &is_space<Window::SharedCluster>, &is_space<Window::Local>,
                                        &is_space<Window::Param>};
  return f.choose(kSpaces[static_cast<int>(window)]);
}

}  // namespace
}  // namespace isa

void register_move() {
  using namespace isa;
  register_opcode("mov", decode_mov);
  register_opcode("prmt", decode_prmt);
  register_opcode("cvta", decode_cvta);
  register_opcode("isspacep", decode_isspacep);
}

}  // namespace sim
