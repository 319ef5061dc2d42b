// SPDX-License-Identifier: Apache-2.0
// Form: reading an instruction's modifiers and operands.
#include "sim/isa/lanes.h"

namespace sim::isa {
namespace {

bool is_type_name(const std::string& part) { return ptx::type_from_name(part) != Type::Other; }

}  // namespace

Form::Form(const ptx::Instruction& source, DecodeContext& decoding, Instr& into)
    : out(into), context(decoding), source_(source) {
  if (source.parts.size() > taken_.size()) unsupported("it has too many modifiers");
  taken_[0] = true;
}

bool Form::take(std::string_view modifier) {
  for (size_t i = 1; i < source_.parts.size(); ++i) {
    if (taken_[i] || source_.parts[i] != modifier) continue;
    return taken_[i] = true;
  }
  return false;
}

int Form::take_one(std::initializer_list<std::string_view> modifiers) {
  int index = 0;
  for (std::string_view m : modifiers) {
    if (take(m)) return index;
    ++index;
  }
  return -1;
}

Type Form::type() {
  for (size_t i = 1; i < source_.parts.size(); ++i) {
    if (taken_[i] || !is_type_name(source_.parts[i])) continue;
    taken_[i] = true;
    return ptx::type_from_name(source_.parts[i]);
  }
  return Type::None;
}

Type Form::peek_type() const {
  for (size_t i = 1; i < source_.parts.size(); ++i)
    if (!taken_[i] && is_type_name(source_.parts[i])) return ptx::type_from_name(source_.parts[i]);
  return Type::None;
}

ValueOperand Form::operand(size_t index, Type type) {
  using Kind = ptx::Operand::Kind;
  const ptx::Operand& o = source_.operands.at(index);
  const std::string name = "operand " + std::to_string(index + 1);
  if (o.negated && !(negation_ && type == Type::Pred)) unsupported(name + " cannot be negated");
  const bool destination = index < (source_.dual_destination ? 2u : 1u);
  if (destination && o.kind != Kind::Register && o.kind != Kind::Sink)
    unsupported(name + " is a destination and must be a register");
  if (!destination && o.kind == Kind::Sink) unsupported(name + " is a source and cannot be '_'");
  if (o.kind == Kind::Vector || o.kind == Kind::Address || o.kind == Kind::Label)
    unsupported(name + " must be a register or a constant");
  if (o.kind == Kind::Register) {
    const Type have = context.register_type(o);
    if (!fits(have, type)) unsupported("the register of " + name + " does not have the size of the instruction's type");
  }
  const ValueOperand place{context.pushed()};
  context.push(o, type);
  return place;
}

void Form::operands(std::initializer_list<Type> types) {
  if (source_.operands.size() != types.size())
    unsupported("it takes " + std::to_string(types.size()) + " operands, not " +
                std::to_string(source_.operands.size()));
  size_t index = 0;
  for (Type t : types) operand(index++, t);
}

void Form::needs(int arch) const {
  if (context.arch() < arch) unsupported("it needs sm_" + std::to_string(arch) + " or later");
}

bool Form::choose(Execute execute) {
  for (size_t i = 0; i < source_.parts.size(); ++i)
    if (!taken_[i]) unsupported("the modifier '." + source_.parts[i] + "' is not supported here");
  if (execute == nullptr) unsupported("it does not exist in this form");
  out.execute = execute;
  return true;
}

void Form::unsupported(const std::string& why) const {
  throw Unsupported("instruction '" + source_.opcode + "' cannot be simulated: " + why);
}

}  // namespace sim::isa
