// SPDX-License-Identifier: Apache-2.0
// Where variables, parameters, constants and registers live.
#include <algorithm>
#include <cstring>
#include <functional>
#include <unordered_set>

#include "sim/translate/kernel_builder.h"

namespace sim {

using ptx::Operand;
using ptx::ParseError;
using ptx::Space;
using ptx::Type;

// Only the shared variables that the kernel names count, as in a linked program.
void KernelBuilder::collect_shared(const std::vector<const ptx::Function*>& order) {
  std::unordered_set<std::string> used;
  const std::function<void(const Operand&)> visit = [&](const Operand& operand) {
    if (!operand.name.empty()) used.insert(operand.name);
    for (const Operand& element : operand.elements) visit(element);
  };
  for (const ptx::Function* f : order) {
    for (const ptx::Instruction& in : f->body) {
      for (const Operand& operand : in.operands) visit(operand);
    }
  }
  uint64_t end = 0;
  int dynamic_align = 1024;
  for (const ptx::Variable& v : module_->variables) {
    if (v.space != Space::Shared || used.count(v.name) == 0) continue;
    if (v.is_extern && v.bytes == 0) {
      dynamic_align = std::max(dynamic_align, v.align);
      continue;
    }
    end = align_up(end, static_cast<uint64_t>(v.align));
    shared_[v.name] = {true, Space::Shared, end};
    end += v.bytes;
  }
  for (const ptx::Function* f : order) {
    for (const ptx::Variable& v : f->locals) {
      if (v.space != Space::Shared) continue;
      end = align_up(end, static_cast<uint64_t>(v.align));
      shared_[f->name + '\n' + v.name] = {true, Space::Shared, end};
      end += v.bytes;
    }
  }
  if (end > (1u << 24))
    throw ParseError({1, 1}, "static shared memory of " + std::to_string(end) + " bytes is over the limit");
  kernel_->static_shared = static_cast<uint32_t>(end);
  kernel_->dynamic_shared = align_up(end, static_cast<uint64_t>(dynamic_align));
  for (const ptx::Variable& v : module_->variables) {
    if (v.space == Space::Shared && v.is_extern && v.bytes == 0)
      shared_[v.name] = {true, Space::Shared, kernel_->dynamic_shared};
  }
}

void KernelBuilder::lay_out(Frame& frame) {
  const ptx::Function& f = *frame.function;
  const auto local = [&](const ptx::Variable& v) {
    uint32_t& end = frame.stack_frame >= 0 ? frame.local_bytes : local_bytes_;
    const uint64_t at = align_up(end, static_cast<uint64_t>(v.align));
    if (at + v.bytes > (1u << 24)) throw ParseError({1, 1}, "local memory of '" + f.name + "' is over the limit");
    frame.places[v.name] = {true, Space::Local, at};
    end = static_cast<uint32_t>(at + v.bytes);
  };
  if (f.is_entry) {
    uint64_t end = 0;
    for (const ptx::Variable& v : f.params) {
      end = align_up(end, static_cast<uint64_t>(v.align));
      frame.places[v.name] = {true, Space::Param, end};
      kernel_->param_offsets.push_back(static_cast<uint32_t>(end));
      kernel_->param_sizes.push_back(static_cast<uint32_t>(v.bytes));
      end += v.bytes;
    }
    kernel_->param_bytes = static_cast<uint32_t>(end);
  } else {
    for (const std::vector<ptx::Variable>* list : {&f.params, &f.results}) {
      for (const ptx::Variable& v : *list) {
        if (v.space != Space::Reg) local(v);
      }
    }
  }
  for (const ptx::Variable& v : f.locals) {
    if (v.space == Space::Shared)
      frame.places[v.name] = shared_.at(f.name + '\n' + v.name);
    else
      local(v);
  }
  frame.return_row = next_row_;
  if (!f.is_entry) next_row_ += 4 * kLanes;
  frame.base_row = next_row_;
  if (frame.stack_frame >= 0) next_row_ += 8 * kLanes;
  frame.rows = plan_rows(f, next_row_);
  next_row_ = frame.rows.end;
}

uint32_t KernelBuilder::constant(uint8_t bytes, uint64_t bits, Special special) {
  const auto key = std::make_tuple(bytes, bits, static_cast<int>(special));
  const auto found = constant_rows_.find(key);
  if (found != constant_rows_.end()) return found->second;
  const uint32_t offset = next_row_;
  next_row_ += bytes == 0 ? 64 : static_cast<uint32_t>(bytes) * kLanes;
  constant_rows_[key] = offset;
  kernel_->constants.push_back({offset, bytes, bits, static_cast<int>(special)});
  return offset;
}

uint32_t KernelBuilder::immediate(const Operand& operand, Type as) {
  uint64_t bits = operand.bits;
  const auto from_bits = [](uint64_t b) {
    double d;
    std::memcpy(&d, &b, 8);
    return d;
  };
  if (operand.is_float) {
    // Decimal literals are doubles; 0f ones are floats whatever they are used for.
    if (as == Type::F64 && !operand.is_double) {
      float f;
      const uint32_t low = static_cast<uint32_t>(bits);
      std::memcpy(&f, &low, 4);
      const double d = f;
      std::memcpy(&bits, &d, 8);
    } else if (as != Type::F64 && as != Type::B64 && as != Type::U64 && as != Type::S64 && operand.is_double) {
      const float f = static_cast<float>(from_bits(bits));
      uint32_t low;
      std::memcpy(&low, &f, 4);
      bits = low;
    }
  }
  if (as == Type::Pred) return constant(0, bits != 0, Special::None);
  const int bytes = ptx::bytes_of(as);
  return constant(bytes == 16 ? 16 : bytes == 8 ? 8 : 4, bytes >= 8 ? bits : bits & 0xffffffffu, Special::None);
}

DecodeContext::Place KernelBuilder::place(const std::string& symbol) const {
  if (frame_ != nullptr) {
    const auto own = frame_->places.find(symbol);
    if (own != frame_->places.end()) return own->second;
  }
  const auto shared = shared_.find(symbol);
  if (shared != shared_.end()) return shared->second;
  const auto global = symbols_.find(symbol);
  if (global == symbols_.end()) return {};
  for (const ptx::Variable& v : module_->variables) {
    if (v.name == symbol) return {true, v.space, global->second};
  }
  return {true, Space::Global, global->second};
}

uint32_t KernelBuilder::offset_of(const Operand& operand, Type as) {
  switch (operand.kind) {
    case Operand::Kind::Sink:
      return kNoReg;
    case Operand::Kind::Register:
      return frame_->rows.offset[static_cast<size_t>(operand.reg)];
    case Operand::Kind::Immediate:
      return immediate(operand, as);
    case Operand::Kind::Special: {
      const Special special = special_from_name(operand.name);
      if (special == Special::None) throw Unsupported("special register '" + operand.name + "' is not supported");
      const bool wide = is_wide(special) || ptx::bytes_of(as) == 8;
      const uint8_t bytes = as == Type::Pred ? 0 : wide ? 8 : 4;
      const uint32_t offset = constant(bytes, 0, special);
      if (is_volatile(special)) {
        for (size_t i = 0; i < kernel_->constants.size(); ++i) {
          if (kernel_->constants[i].offset == offset) volatile_rows_.push_back(static_cast<int>(i));
        }
      }
      return offset;
    }
    case Operand::Kind::Symbol: {
      const Place at = place(operand.name);
      const uint64_t function = at.found ? 0 : function_address(*module_, operand.name);
      if (!at.found && function == 0) throw Unsupported("'" + operand.name + "' has no address");
      const uint64_t address = (at.found ? at.address : function) + static_cast<uint64_t>(operand.addend);
      const uint8_t bytes = ptx::bytes_of(as) == 4 ? 4 : 8;
      if (!on_stack(at)) {
        const bool shared = at.found && at.space == Space::Shared;
        return constant(bytes, address, shared ? Special::SharedAddress : Special::None);
      }
      const auto [row, is_new] = frame_->symbol_rows.try_emplace({bytes, address}, next_row_);
      if (is_new) next_row_ += bytes * kLanes;
      return row->second;
    }
    default:
      throw Unsupported("an operand of this kind is not allowed here");
  }
}

void KernelBuilder::push(const Operand& operand, Type as, int64_t* addend) {
  if (operand.kind == Operand::Kind::Vector) {
    for (const Operand& element : operand.elements) pushed_.push_back(offset_of(element, as));
    return;
  }
  if (operand.kind == Operand::Kind::Address) {
    if (operand.elements.empty()) throw Unsupported("an address is empty");
    Operand base = operand.elements[0];
    if (addend != nullptr)
      *addend = operand.addend;
    else if (base.kind == Operand::Kind::Register && operand.addend != 0)
      throw Unsupported("an offset is not allowed in this address");
    else if (base.kind == Operand::Kind::Immediate)
      base.bits += static_cast<uint64_t>(operand.addend);
    else
      base.addend += operand.addend;
    pushed_.push_back(offset_of(base, Type::U64));
    return;
  }
  pushed_.push_back(offset_of(operand, as));
}

Type KernelBuilder::register_type(const Operand& operand) const {
  switch (operand.kind) {
    case Operand::Kind::Register:
      return frame_->function->registers[static_cast<size_t>(operand.reg)].type;
    case Operand::Kind::Vector:
      for (const Operand& element : operand.elements) {
        if (element.kind == Operand::Kind::Register) return register_type(element);
      }
      return Type::None;
    case Operand::Kind::Address:
      return operand.elements[0].kind == Operand::Kind::Register ? register_type(operand.elements[0]) : Type::U64;
    default:
      return Type::None;
  }
}

}  // namespace sim
