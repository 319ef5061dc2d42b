// SPDX-License-Identifier: Apache-2.0
// call, ret (PTX ISA 9.7.12.5, 9.7.12.6), stacksave, stackrestore, alloca (9.7.17): how arguments and results travel,
// and what keeps a function's registers and variables apart from those of the same function further out.
#include "sim/isa/call.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "sim/hazards/undefined.h"
#include "sim/isa/external.h"
#include "sim/isa/lanes.h"
#include "sim/isa/scatter.h"

namespace sim {
namespace {

using ptx::Type;

const Kernel& kernel_of(const Warp& warp) { return *warp.cta->cluster->launch->kernel; }

void read_lane(const Warp& warp, uint32_t row, uint32_t row_bytes, uint32_t lane, uint8_t* to) {
  if (row_bytes == kPredicateRow)
    *to = warp.predicate(row) >> lane & 1;
  else
    std::memcpy(to, warp.registers.get() + row + lane * (row_bytes / kLanes), row_bytes / kLanes);
}
void write_lane(Warp& warp, uint32_t row, uint32_t row_bytes, uint32_t lane, const uint8_t* from) {
  if (row_bytes == kPredicateRow) {
    uint32_t& bits = *warp.row<uint32_t>(row);
    bits = (bits & ~(1u << lane)) | static_cast<uint32_t>(*from & 1) << lane;
  } else {
    std::memcpy(warp.registers.get() + row + lane * (row_bytes / kLanes), from, row_bytes / kLanes);
  }
}

// ---- arguments and results -----------------------------------------------------------------------

// A value on the stack stands at its offset in the frame. Other values stand at a fixed place in local memory.
uint8_t* local_at(Warp& warp, uint32_t lane, uint32_t base, uint32_t offset) {
  const Kernel& kernel = kernel_of(warp);
  uint8_t* const own = warp.local.get() + size_t{lane} * warp.cta->cluster->launch->local_bytes();
  return base == UINT32_MAX ? own + offset : own + kernel.stack_base + warp.row<uint64_t>(base)[lane] + offset;
}

uint32_t bytes_of(const Kernel::CallCopy& copy) {
  uint32_t bytes = copy.bytes;
  if (copy.from_row) bytes = std::min(bytes, std::max(1u, copy.from_step));
  if (copy.to_row) bytes = std::min(bytes, std::max(1u, copy.to_step));
  return bytes;
}

void fetch(Warp& warp, const Kernel::CallCopy& copy, uint32_t lane, uint8_t* to) {
  if (!copy.from_row)
    std::memcpy(to, local_at(warp, lane, copy.from_base, copy.from), bytes_of(copy));
  else if (copy.from_step == 0)
    read_lane(warp, copy.from, kPredicateRow, lane, to);
  else
    std::memcpy(to, warp.registers.get() + copy.from + lane * copy.from_step, bytes_of(copy));
}

void deliver(Warp& warp, const Kernel::CallCopy& copy, uint32_t lane, const uint8_t* from) {
  if (!copy.to_row)
    std::memcpy(local_at(warp, lane, copy.to_base, copy.to), from, bytes_of(copy));
  else if (copy.to_step == 0)
    write_lane(warp, copy.to, kPredicateRow, lane, from);
  else
    std::memcpy(warp.registers.get() + copy.to + lane * copy.to_step, from, bytes_of(copy));
}

// What the copies do to undefined bits. What a stack frame holds counts as defined.
[[gnu::noinline]] void transfer_undefined(Warp& warp, const std::vector<Kernel::CallCopy>& copies, uint32_t mask) {
  std::vector<uint8_t>& local = warp.undefined->local;
  const size_t local_bytes = warp.cta->cluster->launch->local_bytes();
  each_lane(mask, [&](uint32_t lane) {
    std::vector<std::vector<uint8_t>> values;
    {
      const UndefinedRegisters registers(warp);
      for (const Kernel::CallCopy& copy : copies) {
        values.emplace_back(bytes_of(copy));
        if (copy.from_row)
          fetch(warp, copy, lane, values.back().data());
        else if (copy.from_base == UINT32_MAX && !local.empty())
          std::memcpy(values.back().data(), local.data() + lane * local_bytes + copy.from, values.back().size());
      }
      for (size_t i = 0; i < copies.size(); ++i) {
        if (copies[i].to_row) deliver(warp, copies[i], lane, values[i].data());
      }
    }
    for (size_t i = 0; i < copies.size(); ++i) {
      if (!copies[i].to_row && copies[i].to_base == UINT32_MAX)
        store_undefined(warp, local_at(warp, lane, UINT32_MAX, copies[i].to), values[i].data(), values[i].size());
    }
  });
  for (const Kernel::CallCopy& copy : copies) {
    if (copy.to_row) note_undefined(warp, copy.to);
  }
}

// Fetches all values of a lane, does what must happen between, and delivers them.
template <class Between>
void transfer(Warp& warp, const std::vector<Kernel::CallCopy>& copies, uint32_t mask, Between between) {
  if (holds_undefined(warp)) [[unlikely]]
    transfer_undefined(warp, copies, mask);
  uint32_t total = 0;
  for (const Kernel::CallCopy& copy : copies) total += bytes_of(copy);
  uint8_t few[256];
  std::vector<uint8_t> many(total > sizeof few ? total : 0);
  uint8_t* const values = many.empty() ? few : many.data();
  each_lane(mask, [&](uint32_t lane) {
    uint8_t* at = values;
    for (const Kernel::CallCopy& copy : copies) {
      fetch(warp, copy, lane, at);
      at += bytes_of(copy);
    }
    between(lane);
    at = values;
    for (const Kernel::CallCopy& copy : copies) {
      deliver(warp, copy, lane, at);
      at += bytes_of(copy);
    }
  });
}

// ---- frames --------------------------------------------------------------------------------------

void save_rows(Warp& warp, const Kernel::StackFrame& frame, uint32_t lane) {
  if (!warp.saved_rows) warp.saved_rows = std::make_unique<std::array<std::vector<uint8_t>, kLanes>>();
  std::vector<uint8_t>& saved = (*warp.saved_rows)[lane];
  size_t at = saved.size();
  saved.resize(at + frame.saved_bytes);
  for (const auto& [row, bytes] : frame.rows) {
    read_lane(warp, row, bytes, lane, saved.data() + at);
    at += lane_bytes(bytes);
  }
}

void restore_rows(Warp& warp, const Kernel::StackFrame& frame, uint32_t lane) {
  std::vector<uint8_t>& saved = (*warp.saved_rows)[lane];
  const uint8_t* at = saved.data() + (saved.size() - frame.saved_bytes);
  for (const auto& [row, bytes] : frame.rows) {
    write_lane(warp, row, bytes, lane, at);
    at += lane_bytes(bytes);
    if (holds_undefined(warp)) [[unlikely]]
      define_row(warp, row, 1u << lane);
  }
  saved.erase(saved.end() - static_cast<std::ptrdiff_t>(frame.saved_bytes), saved.end());
}

// Takes `bytes` of the lane's stack and gives their offset.
uint64_t take_stack(Warp& warp, uint32_t lane, uint64_t bytes, uint64_t alignment, const std::string& what) {
  uint64_t& top = warp.row<uint64_t>(kernel_of(warp).stack_row)[lane];
  const uint64_t base = kernel_of(warp).stack_base;
  const uint64_t at = (base + top + alignment - 1) / alignment * alignment - base;
  const uint64_t room = warp.cta->cluster->launch->stack_bytes;
  if (at > room || bytes > room - at) {
    fault(Hazard::Memory, warp, static_cast<int>(lane),
          "stack overflow in " + what + ": " + std::to_string(bytes) + " bytes more than the " + std::to_string(top) +
              " in use pass the thread's " + std::to_string(room) + " bytes of stack");
  }
  top = at + bytes;
  return at;
}

// ---- call, ret -----------------------------------------------------------------------------------

// Even an empty frame takes this much, so that endless recursion ends.
constexpr uint32_t kReturnAddress = 16;

void enter(Warp& warp, const Kernel::Call& call, uint32_t mask) {
  const Kernel& kernel = kernel_of(warp);
  transfer(warp, call.arguments, mask, [&](uint32_t lane) {
    if (call.saved_frame >= 0) save_rows(warp, kernel.frames[static_cast<size_t>(call.saved_frame)], lane);
    if (call.frame < 0) return;
    const Kernel::StackFrame& frame = kernel.frames[static_cast<size_t>(call.frame)];
    const uint64_t at = take_stack(warp, lane, frame.bytes + kReturnAddress, 16, "a call of '" + frame.function + "'");
    warp.row<uint64_t>(frame.base_row)[lane] = at;
  });
  auto* const back = warp.row<int32_t>(call.return_row);
  each_lane(mask, [&](uint32_t lane) { back[lane] = call.return_pc; });
}

struct CallForm {
  // An index into Kernel::calls for a direct call, and into Kernel::call_sites for an indirect one.
  int32_t index;
  // The address that an indirect call takes.
  ValueOperand function;
};

Step call_direct(Warp& warp, const Instr& in, uint32_t mask) {
  const Kernel::Call& call = kernel_of(warp).calls[static_cast<size_t>(in.form<CallForm>().index)];
  if (!call.external.empty()) {
    call_external(warp, call, mask);
    return Step::Next;
  }
  enter(warp, call, mask);
  return scatter(warp, mask, [&](int) { return call.target; });
}

Step call_indirect(Warp& warp, const Instr& in, uint32_t mask) {
  const Kernel& kernel = kernel_of(warp);
  const auto& form = in.form<CallForm>();
  const auto& site = kernel.call_sites[static_cast<size_t>(form.index)];
  uint64_t address[kLanes];
  std::memcpy(address, warp.row<uint64_t>(in.reg[form.function.place]), sizeof address);
  int target[kLanes] = {};
  for (uint32_t rest = mask; rest != 0;) {
    const int leader = std::countr_zero(rest);
    uint32_t lanes = 0;
    each_lane(rest, [&](uint32_t lane) { lanes |= address[lane] == address[leader] ? 1u << lane : 0; });
    const auto found = site.find(address[leader]);
    if (found == site.end())
      fault(Hazard::IllegalUse, warp, leader, "an indirect call takes what is no function that it may call");
    const Kernel::Call& call = kernel.calls[static_cast<size_t>(found->second)];
    enter(warp, call, lanes);
    each_lane(lanes, [&](uint32_t lane) { target[lane] = call.target; });
    rest &= ~lanes;
  }
  return scatter(warp, mask, [&](int lane) { return target[lane]; });
}

bool decode_call(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  for (size_t i = 1; i < source.parts.size(); ++i) {
    if (source.parts[i] != "uni") return false;
  }
  const ptx::Operand& callee = source.operands.at(1);
  const bool direct = callee.kind == ptx::Operand::Kind::Symbol;
  CallForm form{};
  form.function.place = context.pushed();
  if (!direct) {
    if (callee.kind != ptx::Operand::Kind::Register || ptx::bytes_of(context.register_type(callee)) != 8)
      throw Unsupported("the function must be a symbol or a 64-bit register");
    context.push(callee, Type::U64);
  }
  form.index = context.call(source);
  out.set(form);
  out.execute = direct ? call_direct : call_indirect;
  return true;
}

struct ReturnForm {
  // The row that holds the return pc of each lane.
  uint32_t row;
  // An index into Kernel::frames, or -1 for a function without a frame.
  int32_t frame;
};

Step leave(Warp& warp, const Instr& in, uint32_t mask) {
  const Kernel& kernel = kernel_of(warp);
  const auto& form = in.form<ReturnForm>();
  if (form.frame >= 0) {
    const uint32_t base = kernel.frames[static_cast<size_t>(form.frame)].base_row;
    each_lane(mask,
              [&](uint32_t lane) { warp.row<uint64_t>(kernel.stack_row)[lane] = warp.row<uint64_t>(base)[lane]; });
  }
  const auto* const back = warp.row<int32_t>(form.row);
  return scatter(warp, mask, [&](int lane) { return back[lane]; });
}

Step end_thread(Warp&, const Instr&, uint32_t) { return Step::Exit; }

bool decode_ret(const ptx::Instruction&, DecodeContext& context, Instr& out) {
  out.execute = context.function().is_entry ? end_thread : leave;
  out.set(ReturnForm{context.return_row(), context.stack_frame()});
  return true;
}

// ---- the stack -----------------------------------------------------------------------------------

// Gives the top of the stack as a local address.
template <class Row>
Step stack_save(Warp& warp, const Instr& in, uint32_t mask) {
  const Kernel& kernel = kernel_of(warp);
  each_lane(mask, [&](uint32_t lane) {
    const uint64_t top = kernel.stack_base + warp.row<uint64_t>(kernel.stack_row)[lane];
    warp.row<Row>(in.reg[isa::kD])[lane] = static_cast<Row>(top);
  });
  return Step::Next;
}

// stackrestore has a source alone.
constexpr uint32_t kRestored = 0;
template <class Row>
Step stack_restore(Warp& warp, const Instr& in, uint32_t mask) {
  const Kernel& kernel = kernel_of(warp);
  each_lane(mask, [&](uint32_t lane) {
    uint64_t& top = warp.row<uint64_t>(kernel.stack_row)[lane];
    const uint64_t saved = warp.row<Row>(in.reg[kRestored])[lane];
    if (saved < kernel.stack_base || saved - kernel.stack_base > top) {
      fault(Hazard::IllegalUse, warp, static_cast<int>(lane),
            "stackrestore of a value that no stacksave gave, or of a frame that is gone");
    }
    top = saved - kernel.stack_base;
  });
  return Step::Next;
}

struct AllocaForm {
  // At least 8 is guaranteed.
  uint32_t alignment = 8;
};
template <class Row>
Step stack_allocate(Warp& warp, const Instr& in, uint32_t mask) {
  each_lane(mask, [&](uint32_t lane) {
    const uint64_t bytes = warp.row<Row>(in.reg[isa::kA])[lane];
    const uint64_t at = take_stack(warp, lane, bytes, in.form<AllocaForm>().alignment, "alloca");
    warp.row<Row>(in.reg[isa::kD])[lane] = static_cast<Row>(kernel_of(warp).stack_base + at);
  });
  return Step::Next;
}

bool decode_stack(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  isa::Form f(source, context, out);
  const Type t = f.type();
  if (t != Type::U32 && t != Type::U64) return f.choose(nullptr);
  const bool wide = t == Type::U64;
  context.stack_row();
  if (source.parts[0] == "stackrestore") {
    // A source where other instructions have their destination.
    if (f.count() != 1) f.unsupported("it takes 1 operand");
    if (f.at(0).kind != ptx::Operand::Kind::Register || ptx::bytes_of(context.register_type(f.at(0))) != bytes_of(t))
      f.unsupported("its operand must be a register of the instruction's type");
    context.push(f.at(0), t);
    return f.choose(wide ? &stack_restore<uint64_t> : &stack_restore<uint32_t>);
  }
  if (source.parts[0] == "stacksave") {
    f.operands({t});
    if (f.at(0).kind == ptx::Operand::Kind::Sink) f.unsupported("its destination must be a register");
    return f.choose(wide ? &stack_save<uint64_t> : &stack_save<uint32_t>);
  }
  if (f.count() != 2 && f.count() != 3) f.unsupported("it takes 2 or 3 operands");
  if (f.at(0).kind == ptx::Operand::Kind::Sink) f.unsupported("its destination must be a register");
  f.operand(0, t);
  f.operand(1, t);
  AllocaForm form;
  if (f.count() == 3) {
    const ptx::Operand& alignment = f.at(2);
    if (alignment.kind != ptx::Operand::Kind::Immediate || alignment.is_float || !std::has_single_bit(alignment.bits) ||
        alignment.bits > 1u << 23)
      f.unsupported("its alignment must be a power of two up to 2^23");
    form.alignment = std::max(form.alignment, static_cast<uint32_t>(alignment.bits));
  }
  out.set(form);
  return f.choose(wide ? &stack_allocate<uint64_t> : &stack_allocate<uint32_t>);
}

}  // namespace

Step enter_function(Warp& warp, const Instr& in, uint32_t mask) {
  const Kernel& kernel = kernel_of(warp);
  const Kernel::StackFrame& frame = kernel.frames[static_cast<size_t>(in.form<EntryForm>().frame)];
  const uint64_t* const base = warp.row<uint64_t>(frame.base_row);
  for (const Kernel::StackFrame::Symbol& symbol : frame.symbols) {
    each_lane(mask, [&](uint32_t lane) {
      const uint64_t address = kernel.stack_base + base[lane] + symbol.offset;
      std::memcpy(warp.registers.get() + symbol.row + lane * symbol.bytes, &address, symbol.bytes);
    });
  }
  return Step::Next;
}

Step pass_results(Warp& warp, const Instr& in, uint32_t) {
  warp.splits[warp.current].pc = kernel_of(warp).calls[static_cast<size_t>(in.form<ResultForm>().call)].next_pc;
  return Step::Jump;
}

Step take_results(Warp& warp, const Instr& in, uint32_t mask) {
  const Kernel& kernel = kernel_of(warp);
  const Kernel::Call& call = kernel.calls[static_cast<size_t>(in.form<ResultForm>().call)];
  transfer(warp, call.results, mask, [&](uint32_t lane) {
    if (call.saved_frame >= 0) restore_rows(warp, kernel.frames[static_cast<size_t>(call.saved_frame)], lane);
  });
  warp.splits[warp.current].pc = call.next_pc;
  return Step::Jump;
}

void register_call() {
  register_opcode("call", decode_call);
  register_opcode("ret", decode_ret);
  register_opcode("stacksave", decode_stack);
  register_opcode("stackrestore", decode_stack);
  register_opcode("alloca", decode_stack);
}

}  // namespace sim
