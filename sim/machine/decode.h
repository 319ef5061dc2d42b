// SPDX-License-Identifier: Apache-2.0
// What a family of opcodes needs to decode its instructions: operands to places in the register file, and the table in
// which the families stand.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/machine/instruction.h"
#include "sim/ptx/ast.h"

namespace sim {

// A decoder of one opcode family looks at source.parts and fills `out`: the handler and its form. It uses the context
// to turn operands into register offsets. It returns false, or throws Unsupported with a sentence, when the form is not
// known.
struct DecodeContext {
  virtual ~DecodeContext() = default;
  // Appends the operand's offsets to out's operand list: one for Register, Special, Immediate, Symbol; one for
  // each element of a Vector (kNoReg for `_`); the base of an Address (its addend goes to *addend when given, what
  // follows the first comma inside the brackets is pushed by the handler: operand.elements[1...]).
  // `as` gives width and meaning of immediates and specials. The base of an Address is a row of its register's width,
  // or a 64-bit row when it is a symbol or a number: register_type(address) says which.
  virtual void push(const ptx::Operand& operand, ptx::Type as, int64_t* addend = nullptr) = 0;
  virtual uint32_t offset_of(const ptx::Operand& operand, ptx::Type as) = 0;
  // How many offsets have been pushed, which is the place that the next one gets in Instr::reg.
  virtual uint8_t pushed() const = 0;
  // Declared type of a Register, of the first element of a Vector, of the base of an Address (U64 when that is no
  // register); None for anything else.
  virtual ptx::Type register_type(const ptx::Operand& operand) const = 0;
  virtual const ptx::Function& function() const = 0;
  virtual const ptx::Module& module() const = 0;
  virtual int arch() const = 0;
  // Where a variable lives. A kernel parameter is Param; a parameter of a .func, or a .param variable of a body, is
  // Local.
  struct Place {
    bool found = false;
    ptx::Space space = ptx::Space::None;
    uint64_t address = 0;
  };
  virtual Place place(const std::string& symbol) const = 0;
  // For brx.idx: index into Kernel::branch_tables, -1 when there is no such table. For a direct call: index into
  // Kernel::calls; for an indirect one: into Kernel::call_sites.
  virtual int branch_table(const std::string& name) = 0;
  virtual int call(const ptx::Instruction& source) = 0;
  // The row that holds the return pc of each lane in the function being decoded, and its frame on the stack or -1.
  virtual uint32_t return_row() const = 0;
  virtual int stack_frame() const = 0;
  // The row of the stack pointer, for alloca and its like.
  virtual uint32_t stack_row() const = 0;
};
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// A decoder that returns false must leave `out` and the context as they were. Label operands need no push: `target` is
// set by the caller, and so is the guard. A negated source predicate (`!%p`) is the handler's to apply.
using Decode = bool (*)(const ptx::Instruction& source, DecodeContext& context, Instr& out);

// The decoders by the first part of the opcode. Several families may share one, such as `barrier`, `fence` or `st`:
// they are asked in the order of their registration until one returns true.
using OpcodeTable = std::unordered_map<std::string, std::vector<Decode>>;
OpcodeTable& opcode_table();
void register_opcode(const char* first_part, Decode decode);

// ---- for decoders ----

// True when `parts` has `part`.
bool has_part(const ptx::Instruction& source, const char* part);
// Throws Unsupported: "OPCODE: WHY".
[[noreturn]] void unsupported(const ptx::Instruction& source, const std::string& why);
// The value of an immediate operand. Throws Unsupported when the operand is not one.
int64_t immediate_of(const ptx::Instruction& source, const ptx::Operand& operand);
ptx::Operand immediate_operand(int64_t value);
// Whether a register of one type may hold an operand of another. Those of one row size may stand for each other, as b32
// for u32 or f32 and b16 for f16 (PTX ISA 9.4).
bool fits(ptx::Type have, ptx::Type type);
// Push an operand and say where it stands. Throws Unsupported when it is a register of another size.
ValueOperand push_value(DecodeContext& context, const ptx::Operand& operand, ptx::Type type);
AddressOperand push_address(DecodeContext& context, const ptx::Operand& operand);

}  // namespace sim
