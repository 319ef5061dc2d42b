// SPDX-License-Identifier: Apache-2.0
// How the arguments and results of a call travel.
#include "sim/isa/external.h"
#include "sim/translate/kernel_builder.h"

namespace sim {

using ptx::Operand;
using ptx::Space;
using ptx::Type;

namespace {

// A type's place in a row that it does not fill is the low end; a predicate has no bytes of its own.
uint32_t step_of(Type type) { return type == Type::Pred ? 0 : row_bytes(type) / kLanes; }

}  // namespace

// Where the value of an argument or result stands: a register, a number, or a .param variable in local memory.
Kernel::CallCopy KernelBuilder::value_place(const Operand& operand, Type as) {
  Kernel::CallCopy copy;
  if (operand.kind == Operand::Kind::Register) {
    copy.from_row = true;
    copy.from = frame_->rows.offset[static_cast<size_t>(operand.reg)];
    copy.from_step = step_of(frame_->function->registers[static_cast<size_t>(operand.reg)].type);
  } else if (operand.kind == Operand::Kind::Symbol) {
    const Place at = place(operand.name);
    if (!at.found || at.space != Space::Local) throw Unsupported("'" + operand.name + "' is not a .param variable");
    copy.from = static_cast<uint32_t>(at.address);
    if (on_stack(at)) copy.from_base = frame_->base_row;
  } else if (operand.kind == Operand::Kind::Immediate) {
    copy.from_row = true;
    copy.from = immediate(operand, as);
    copy.from_step = as == Type::Pred ? 0 : ptx::bytes_of(as) == 8 ? 8 : 4;
  } else {
    throw Unsupported("an argument or result must be a register, a number or a .param variable");
  }
  return copy;
}

// Makes a Kernel::Call of the function by the instruction, and returns its index.
int KernelBuilder::call_of(const ptx::Instruction& source, const ptx::Function& callee) {
  const Operand& results = source.operands.at(0);
  const Operand& arguments = source.operands.at(2);
  if (arguments.elements.size() != callee.params.size() || results.elements.size() != callee.results.size()) {
    throw Unsupported("'" + callee.name + "' takes " + std::to_string(callee.params.size()) + " arguments and gives " +
                      std::to_string(callee.results.size()) + " results");
  }
  const auto known = frame_of_.find(&callee);
  Frame* const target = known == frame_of_.end() ? nullptr : known->second;
  if (target == nullptr && !is_external_function(callee.name))
    throw Unsupported("function '" + callee.name + "' has no body");
  // Where the callee has a parameter or result of its own, as the place that a copy comes from.
  const auto formal = [&](const ptx::Variable& v) {
    Kernel::CallCopy copy;
    copy.from_row = v.space == Space::Reg;
    if (!copy.from_row) {
      copy.from = static_cast<uint32_t>(target->places.at(v.name).address);
      if (target->stack_frame >= 0) copy.from_base = target->base_row;
      return copy;
    }
    for (size_t r = 0; r < callee.registers.size(); ++r) {
      if (callee.registers[r].name != v.name) continue;
      copy.from = target->rows.offset[r];
      copy.from_step = step_of(callee.registers[r].type);
      return copy;
    }
    throw Unsupported("parameter '" + v.name + "' of '" + callee.name + "' has no register");
  };
  const auto copied = [](Kernel::CallCopy from, const Kernel::CallCopy& to, const ptx::Variable& v) {
    from.to_row = to.from_row;
    from.to = to.from;
    from.to_step = to.from_step;
    from.to_base = to.from_base;
    from.bytes = static_cast<uint32_t>(v.type == Type::Pred ? 1 : v.bytes);
    if ((from.from_row && from.to_row) && (from.from_step == 0) != (from.to_step == 0))
      throw Unsupported("'" + v.name + "' is a predicate on one side of the call only");
    return from;
  };
  Kernel::Call call;
  if (target == nullptr) call.external = callee.name;
  for (size_t i = 0; i < callee.params.size(); ++i) {
    const ptx::Variable& v = callee.params[i];
    const Kernel::CallCopy mine = value_place(arguments.elements[i], v.type);
    call.arguments.push_back(copied(mine, target == nullptr ? mine : formal(v), v));
  }
  for (size_t i = 0; i < callee.results.size(); ++i) {
    const ptx::Variable& v = callee.results[i];
    if (results.elements[i].kind == Operand::Kind::Sink) continue;
    if (results.elements[i].kind == Operand::Kind::Immediate) throw Unsupported("a result cannot be a number");
    const Kernel::CallCopy mine = value_place(results.elements[i], v.type);
    call.results.push_back(copied(target == nullptr ? mine : formal(v), mine, v));
  }
  if (target != nullptr) {
    call.return_row = target->return_row;
    call.frame = target->stack_frame;
    if (target->component == frame_->component) call.saved_frame = frame_->stack_frame;
  }
  kernel_->calls.push_back(std::move(call));
  call_targets_.push_back(target);
  const int index = static_cast<int>(kernel_->calls.size()) - 1;
  site_calls_.push_back(index);
  return index;
}

int KernelBuilder::call(const ptx::Instruction& source) {
  site_calls_.clear();
  const Operand& callee = source.operands.at(1);
  if (callee.kind == Operand::Kind::Symbol) return call_of(source, *find(callee.name));
  std::unordered_map<uint64_t, int> site;
  for (const ptx::Function* target : callees(*frame_->function, source))
    site[function_address(*module_, target->name)] = call_of(source, *target);
  kernel_->call_sites.push_back(std::move(site));
  return static_cast<int>(kernel_->call_sites.size()) - 1;
}

}  // namespace sim
