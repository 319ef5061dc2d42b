// SPDX-License-Identifier: Apache-2.0
#include "sim/machine/decode.h"

namespace sim {

OpcodeTable& opcode_table() {
  static OpcodeTable table;
  return table;
}

void register_opcode(const char* first_part, Decode decode) { opcode_table()[first_part].push_back(decode); }

bool has_part(const ptx::Instruction& source, const char* part) {
  for (const std::string& p : source.parts) {
    if (p == part) return true;
  }
  return false;
}

void unsupported(const ptx::Instruction& source, const std::string& why) {
  throw Unsupported(source.opcode + ": " + why);
}

int64_t immediate_of(const ptx::Instruction& source, const ptx::Operand& operand) {
  if (operand.kind != ptx::Operand::Kind::Immediate || operand.is_float)
    unsupported(source, "an operand must be an integer constant and is not");
  return static_cast<int64_t>(operand.bits);
}

ptx::Operand immediate_operand(int64_t value) {
  ptx::Operand operand;
  operand.kind = ptx::Operand::Kind::Immediate;
  operand.bits = static_cast<uint64_t>(value);
  return operand;
}

bool fits(ptx::Type have, ptx::Type type) {
  const auto row_size = [](ptx::Type t) {
    const int bytes = ptx::bytes_of(t);
    return t == ptx::Type::Pred ? 0 : bytes == 16 ? 16 : bytes == 8 ? 8 : 4;
  };
  return row_size(have) == row_size(type);
}

ValueOperand push_value(DecodeContext& context, const ptx::Operand& operand, ptx::Type type) {
  const ptx::Type have = context.register_type(operand);
  if (have != ptx::Type::None && !fits(have, type))
    throw Unsupported("a register does not have the size of its operand");
  const ValueOperand value{context.pushed()};
  context.push(operand, type);
  return value;
}

AddressOperand push_address(DecodeContext& context, const ptx::Operand& operand) {
  const bool wide = ptx::bytes_of(context.register_type(operand)) == 8;
  const AddressOperand address{context.pushed(), wide};
  int64_t addend = 0;
  context.push(operand, wide ? ptx::Type::U64 : ptx::Type::U32, &addend);
  context.push(immediate_operand(addend), ptx::Type::U64);
  return address;
}

}  // namespace sim
