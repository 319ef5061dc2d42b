// SPDX-License-Identifier: Apache-2.0
// ld, ldu, st, prefetch, prefetchu, createpolicy, discard, applypriority (PTX ISA 9.7.9.8 to 9.7.9.18).
#include <bit>
#include <cstring>
#include <optional>

#include "sim/hazards/global_races.h"
#include "sim/hazards/shared_access.h"
#include "sim/hazards/undefined.h"
#include "sim/isa/address.h"

namespace sim {
namespace {

using ptx::Operand;
using ptx::Type;

// Converts between what stands in memory and what stands in a register, by extension or truncation (PTX ISA 9.4.1).
template <class To, class From>
To converted(From from) {
  if constexpr (std::is_same_v<To, From>)
    return from;
  else if constexpr (std::is_signed_v<From>)
    return static_cast<To>(static_cast<int64_t>(from));
  else
    return static_cast<To>(from);
}

// The vector of a load, and of a parameter's, stands before its address, that of a store behind its address.
constexpr uint32_t kLoaded = 0, kStored = 1;

// Moves vectors of kCount elements that lie one after the other, lane by lane.
template <class Memory, class Register, int kCount>
void load_row(Warp& warp, const Instr& in, const uint8_t* from) {
  for (int e = 0; e < kCount; ++e) {
    if (in.reg[kLoaded + static_cast<uint32_t>(e)] == kNoReg) continue;
    Register* const d = warp.row<Register>(in.reg[kLoaded + static_cast<uint32_t>(e)]);
    Memory values[kLanes];
    for (int lane = 0; lane < kLanes; ++lane)
      std::memcpy(&values[lane], from + sizeof(Memory) * static_cast<size_t>(lane * kCount + e), sizeof(Memory));
    for (int lane = 0; lane < kLanes; ++lane) d[lane] = converted<Register>(values[lane]);
  }
}
template <class Memory, class Register, int kCount>
void store_row(Warp& warp, const Instr& in, uint8_t* to) {
  for (int e = 0; e < kCount; ++e) {
    if (in.reg[kStored + static_cast<uint32_t>(e)] == kNoReg) continue;
    const Register* const s = warp.row<Register>(in.reg[kStored + static_cast<uint32_t>(e)]);
    Memory values[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) values[lane] = converted<Memory>(s[lane]);
    for (int lane = 0; lane < kLanes; ++lane)
      std::memcpy(to + sizeof(Memory) * static_cast<size_t>(lane * kCount + e), &values[lane], sizeof(Memory));
  }
}

// Strong accesses are those of the host as well: a thread of the program may speak to a kernel that runs.
template <bool kStrong, class Memory>
Memory read_memory(const uint8_t* from) {
  Memory value;
  if constexpr (kStrong && sizeof(Memory) <= 8)
    __atomic_load(reinterpret_cast<const Memory*>(from), &value, __ATOMIC_ACQUIRE);
  else
    std::memcpy(&value, from, sizeof value);
  return value;
}
template <bool kStrong, class Memory>
void write_memory(uint8_t* to, Memory value) {
  if constexpr (kStrong && sizeof(Memory) <= 8)
    __atomic_store(reinterpret_cast<Memory*>(to), &value, __ATOMIC_RELEASE);
  else
    std::memcpy(to, &value, sizeof value);
}

template <class Memory, class Register, bool kStrong = false>
[[gnu::always_inline]] inline void load_lanes(Warp& warp, const Instr& in, uint32_t mask, const Pointers& p,
                                              int count) {
  if (!kStrong && p.row != nullptr) {
    if (count == 1) return load_row<Memory, Register, 1>(warp, in, p.row);
    if (count == 2) return load_row<Memory, Register, 2>(warp, in, p.row);
    if (count == 4) return load_row<Memory, Register, 4>(warp, in, p.row);
  }
  for (int e = 0; e < count; ++e) {
    if (in.reg[kLoaded + static_cast<uint32_t>(e)] == kNoReg) continue;
    Register* const d = warp.row<Register>(in.reg[kLoaded + static_cast<uint32_t>(e)]);
    const size_t at = sizeof(Memory) * static_cast<size_t>(e);
    const auto one = [&](int lane) { d[lane] = converted<Register>(read_memory<kStrong, Memory>(p.at[lane] + at)); };
    if (mask == kFullMask) {
      for (int lane = 0; lane < kLanes; ++lane) one(lane);
    } else {
      for (uint32_t rest = mask; rest != 0; rest &= rest - 1) one(std::countr_zero(rest));
    }
  }
}

// The undefined bits of what lies at the lanes' addresses, or of what is going there.
struct UndefinedBits {
  uint8_t of[kLanes * 32];
  Pointers p;
  explicit UndefinedBits(uint32_t size) {
    for (uint32_t lane = 0; lane < kLanes; ++lane) p.at[lane] = of + lane * size;
  }
};
template <class Memory, class Register>
[[gnu::noinline]] void load_undefined_lanes(Warp& warp, const Instr& in, uint32_t mask, const Pointers& p, int count) {
  const size_t size = sizeof(Memory) * static_cast<size_t>(count);
  UndefinedBits bits(static_cast<uint32_t>(size));
  each_lane(mask, [&](int lane) { load_undefined(warp, p.at[lane], bits.p.at[lane], size); });
  {
    const UndefinedRegisters registers(warp);
    load_lanes<Memory, Register>(warp, in, mask, bits.p, count);
  }
  for (int e = 0; e < count; ++e) note_undefined(warp, in.reg[kLoaded + static_cast<uint32_t>(e)]);
}

template <class Memory, class Register>
Step load(Warp& warp, const Instr& in, uint32_t mask) {
  const auto& form = in.form<MemoryForm>();
  Pointers p;
  const auto size = static_cast<uint32_t>(sizeof(Memory)) * static_cast<uint32_t>(form.vector);
  resolve(warp, in, form, mask, size, size, Access::Read, &p);
  if (form.strong) synchronize(warp, in, form, mask, true, false);
  if (holds_undefined(warp)) [[unlikely]]
    load_undefined_lanes<Memory, Register>(warp, in, mask, p, form.vector);
  if (form.strong)
    load_lanes<Memory, Register, true>(warp, in, mask, p, form.vector);
  else
    load_lanes<Memory, Register>(warp, in, mask, p, form.vector);
  return Step::Next;
}

struct ParamForm {
  // The bytes before the parameter in the kernel's parameters.
  int64_t offset;
  uint8_t vector;
};
// A parameter of the kernel named by its symbol: the same bytes for every lane.
template <class Memory, class Register>
Step load_kernel_param(Warp& warp, const Instr& in, uint32_t mask) {
  const auto& form = in.form<ParamForm>();
  const uint8_t* const from = warp.cta->cluster->launch->params.data() + form.offset;
  for (int e = 0; e < form.vector; ++e) {
    if (in.reg[kLoaded + static_cast<uint32_t>(e)] == kNoReg) continue;
    Memory value;
    std::memcpy(&value, from + sizeof(Memory) * static_cast<size_t>(e), sizeof value);
    const auto extended = converted<Register>(value);
    Register* const d = warp.row<Register>(in.reg[kLoaded + static_cast<uint32_t>(e)]);
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) d[std::countr_zero(rest)] = extended;
    if (holds_undefined(warp)) [[unlikely]]
      define_row(warp, in.reg[kLoaded + static_cast<uint32_t>(e)], mask);
  }
  return Step::Next;
}

template <class Memory, class Register, bool kStrong = false>
void store_lanes(Warp& warp, const Instr& in, uint32_t mask, const Pointers& p, int count) {
  if (!kStrong && p.row != nullptr) {
    if (count == 1) return store_row<Memory, Register, 1>(warp, in, p.row);
    if (count == 2) return store_row<Memory, Register, 2>(warp, in, p.row);
    if (count == 4) return store_row<Memory, Register, 4>(warp, in, p.row);
  }
  for (int e = 0; e < count; ++e) {
    if (in.reg[kStored + static_cast<uint32_t>(e)] == kNoReg) continue;
    const Register* const s = warp.row<Register>(in.reg[kStored + static_cast<uint32_t>(e)]);
    const size_t at = sizeof(Memory) * static_cast<size_t>(e);
    const auto one = [&](int lane) { write_memory<kStrong>(p.at[lane] + at, converted<Memory>(s[lane])); };
    if (mask == kFullMask) {
      for (int lane = 0; lane < kLanes; ++lane) one(lane);
    } else {
      for (uint32_t rest = mask; rest != 0; rest &= rest - 1) one(std::countr_zero(rest));
    }
  }
}
template <class Memory, class Register>
[[gnu::noinline]] void store_undefined_lanes(Warp& warp, const Instr& in, uint32_t mask, const Pointers& p, int count) {
  const size_t size = sizeof(Memory) * static_cast<size_t>(count);
  UndefinedBits bits(static_cast<uint32_t>(size));
  std::memset(bits.of, 0, sizeof bits.of);
  {
    const UndefinedRegisters registers(warp);
    store_lanes<Memory, Register>(warp, in, mask, bits.p, count);
  }
  each_lane(mask, [&](int lane) { store_undefined(warp, p.at[lane], bits.p.at[lane], size); });
}

template <class Memory, class Register>
Step store(Warp& warp, const Instr& in, uint32_t mask) {
  const auto& form = in.form<MemoryForm>();
  Pointers p;
  const auto size = static_cast<uint32_t>(sizeof(Memory)) * static_cast<uint32_t>(form.vector);
  resolve(warp, in, form, mask, size, size, Access::Write, &p);
  if (form.strong) synchronize(warp, in, form, mask, false, true);
  if (form.strong)
    store_lanes<Memory, Register, true>(warp, in, mask, p, form.vector);
  else
    store_lanes<Memory, Register>(warp, in, mask, p, form.vector);
  if (holds_undefined(warp)) [[unlikely]]
    store_undefined_lanes<Memory, Register>(warp, in, mask, p, form.vector);
  shared_stores_done(warp);
  if (warp.cta->cluster->global_stores != 0) [[unlikely]] {
    uint8_t values[kLanes * 32];
    Pointers copy;
    if (p.row != nullptr) copy.row = values;
    for (uint32_t lane = 0; lane < kLanes; ++lane) copy.at[lane] = values + lane * size;
    store_lanes<Memory, Register>(warp, in, mask, copy, form.vector);
    finish_global_stores(warp, p.at, p.row, values, size);
  }
  return Step::Next;
}

// Calls visit with a value of the type that memory holds, of at most 64 bits.
template <class Visit>
bool for_type(Type type, bool is_signed, Visit visit) {
  switch (ptx::bytes_of(type)) {
    case 1:
      is_signed ? visit(int8_t{}) : visit(uint8_t{});
      return true;
    case 2:
      is_signed ? visit(int16_t{}) : visit(uint16_t{});
      return true;
    case 4:
      is_signed ? visit(int32_t{}) : visit(uint32_t{});
      return true;
    case 8:
      visit(uint64_t{});
      return true;
    default:
      return false;
  }
}

bool is_signed(Type t) { return t == Type::S8 || t == Type::S16 || t == Type::S32 || t == Type::S64; }

MemoryForm read_form(const ptx::Instruction& source, const DecodeContext& context) {
  MemoryForm form;
  for (size_t i = 1; i < source.parts.size(); ++i) {
    if (!read_modifier(source.parts[i], &form)) throw Unsupported("unknown modifier '." + source.parts[i] + "'");
  }
  const int bytes = ptx::bytes_of(form.type);
  if (bytes == 0) throw Unsupported("the type is missing");
  if (form.type >= Type::F16 && form.type <= Type::BF16x2) throw Unsupported("the type is not one of memory");
  // Vectors have up to 128 bits, and on Blackwell up to 256 in global memory.
  const bool global = form.space == AddressSpace::Global || form.space == AddressSpace::Generic;
  const int most = context.arch() >= 100 && global ? 32 : 16;
  if (form.vector > 1 && (bytes == 16 || bytes * form.vector > most)) throw Unsupported("the vector is too long");
  return form;
}

// Where an address of the .param space leads: to this byte of the kernel's parameters, or else into another space. All
// but kernel parameters lie in the thread's own memory.
struct ParamPlace {
  std::optional<uint64_t> kernel_parameter;
  AddressSpace space = AddressSpace::Local;
};
ParamPlace param_place(const Operand& address, const DecodeContext& context) {
  const Operand& base = address.elements.at(0);
  if (base.kind != Operand::Kind::Symbol)
    return {{}, context.function().is_entry ? AddressSpace::Param : AddressSpace::Local};
  const DecodeContext::Place place = context.place(base.name);
  if (!place.found) throw Unsupported("'" + base.name + "' has no address");
  if (place.space != ptx::Space::Param) return {};
  return {place.address + static_cast<uint64_t>(base.addend) + static_cast<uint64_t>(address.addend)};
}

size_t elements_of(const Operand& operand) {
  return operand.kind == Operand::Kind::Vector ? operand.elements.size() : 1;
}

bool decode_ld(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  MemoryForm form = read_form(source, context);
  const Operand& d = source.operands.at(0);
  const Operand& address = source.operands.at(1);
  if (elements_of(d) != static_cast<size_t>(form.vector))
    throw Unsupported("the vector has the wrong number of elements");
  std::optional<uint64_t> kernel_parameter;
  if (form.space == AddressSpace::Param) {
    const ParamPlace place = param_place(address, context);
    kernel_parameter = place.kernel_parameter;
    form.space = place.space;
  }
  context.push(d, form.type);
  push_base(address, context, &form);
  out.set(form);

  const int memory_bytes = ptx::bytes_of(form.type);
  const Type register_type = context.register_type(d);
  const int register_bytes = register_type == Type::None ? memory_bytes : ptx::bytes_of(register_type);
  if (register_bytes < memory_bytes) throw Unsupported("the destination register is narrower than the type");
  if (kernel_parameter) {
    uint64_t end = 0;
    for (const ptx::Variable& v : context.function().params) {
      const auto align = static_cast<uint64_t>(v.align);
      end = (end + align - 1) / align * align + v.bytes;
    }
    if (*kernel_parameter + static_cast<uint64_t>(memory_bytes * form.vector) > end)
      throw Unsupported("reads past the kernel's parameters");
    out.set(ParamForm{static_cast<int64_t>(*kernel_parameter), form.vector});
  }
  if (register_bytes == 16) {
    // PTX ISA 9.4.1 has no extension to 128 bits.
    if (memory_bytes != 16) throw Unsupported("the destination register is wider than the type");
    out.execute = kernel_parameter ? load_kernel_param<Quad, Quad> : load<Quad, Quad>;
    return true;
  }
  return for_type(form.type, is_signed(form.type), [&](auto memory) {
    using Memory = decltype(memory);
    const auto choose = [&](auto reg) {
      using Register = decltype(reg);
      out.execute = kernel_parameter ? load_kernel_param<Memory, Register> : load<Memory, Register>;
    };
    if (register_bytes == 8)
      choose(uint64_t{});
    else
      choose(uint32_t{});
  });
}

bool decode_st(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (source.parts.size() > 1 && (source.parts[1] == "async" || source.parts[1] == "bulk")) return false;
  MemoryForm form = read_form(source, context);
  const Operand& address = source.operands.at(0);
  const Operand& b = source.operands.at(1);
  if (elements_of(b) != static_cast<size_t>(form.vector))
    throw Unsupported("the vector has the wrong number of elements");
  if (form.space == AddressSpace::Param) {
    const ParamPlace place = param_place(address, context);
    if (place.kernel_parameter) throw Unsupported("a kernel parameter cannot be written");
    form.space = place.space;
  }
  push_base(address, context, &form);
  out.set(form);
  context.push(b, form.type);
  const int memory_bytes = ptx::bytes_of(form.type);
  const Type register_type = context.register_type(b);
  const int register_bytes = register_type == Type::None ? memory_bytes : ptx::bytes_of(register_type);
  if (register_bytes < memory_bytes) throw Unsupported("the source register is narrower than the type");
  // A vector may mix registers and numbers, and the rows of numbers have the width of the type.
  if (b.kind == Operand::Kind::Vector && (register_bytes == 8) != (memory_bytes == 8)) {
    for (const Operand& element : b.elements) {
      if (element.kind == Operand::Kind::Immediate) throw Unsupported("a number stands among wider registers");
    }
  }
  if (register_bytes == 16) {
    if (memory_bytes != 16) throw Unsupported("the source register is wider than the type");
    out.execute = store<Quad, Quad>;
    return true;
  }
  return for_type(form.type, false, [&](auto memory) {
    using Memory = decltype(memory);
    if (register_bytes == 8)
      out.execute = store<Memory, uint64_t>;
    else
      out.execute = store<Memory, uint32_t>;
  });
}

// Hints to the caches have no effect that a program could see.
Step hint(Warp&, const Instr&, uint32_t) { return Step::Next; }
bool decode_hint(const ptx::Instruction&, DecodeContext&, Instr& out) {
  out.execute = hint;
  return true;
}

// The policy's bits are opaque.
Step create_policy(Warp& warp, const Instr& in, uint32_t mask) {
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1)
    warp.row<uint64_t>(in.reg[kLoaded])[std::countr_zero(rest)] = 0;
  return Step::Next;
}
bool decode_createpolicy(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  context.push(source.operands.at(0), Type::B64);
  out.execute = create_policy;
  return true;
}

// The bytes are undefined afterwards. They become all ones, as bytes that were never written are.
Step discard(Warp& warp, const Instr& in, uint32_t mask) {
  Pointers p;
  resolve(warp, in, in.form<MemoryForm>(), mask, 128, 128, Access::Write, &p);
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) std::memset(p.at[std::countr_zero(rest)], 0xff, 128);
  shared_stores_done(warp);
  if (warp.cta->cluster->global_stores != 0) {
    const std::vector<uint8_t> values(size_t{kLanes} * 128, 0xff);
    finish_global_stores(warp, p.at, nullptr, values.data(), 128);
  }
  return Step::Next;
}
bool decode_discard(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  MemoryForm form;
  for (size_t i = 1; i < source.parts.size(); ++i) {
    if (source.parts[i] != "L2" && !read_modifier(source.parts[i], &form))
      throw Unsupported("unknown modifier '." + source.parts[i] + "'");
  }
  const Operand& size = source.operands.at(1);
  if (size.kind != Operand::Kind::Immediate || size.bits != 128) throw Unsupported("the size must be 128");
  push_base(source.operands[0], context, &form);
  out.set(form);
  out.execute = discard;
  return true;
}

}  // namespace

void register_memory() {
  register_opcode("ld", decode_ld);
  register_opcode("ldu", decode_ld);
  register_opcode("st", decode_st);
  register_opcode("prefetchu", decode_hint);
  register_opcode("applypriority", decode_hint);
  register_opcode("createpolicy", decode_createpolicy);
  register_opcode("discard", decode_discard);
}

}  // namespace sim
