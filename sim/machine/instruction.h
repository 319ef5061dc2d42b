// SPDX-License-Identifier: Apache-2.0
// A decoded instruction: a record with the function that executes it for a mask of lanes. The functions live in sim/isa
// (synchronous instructions), sim/async (copies, barriers, wgmma) and sim/tcgen05.
#pragma once
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>

#include "sim/ptx/ast.h"

namespace sim {

constexpr int kLanes = 32;
constexpr uint32_t kFullMask = 0xffffffffu;

struct Warp;
struct Instr;

// What the executed instruction did to the warp's program counter.
enum class Step {
  Next,   // go on with the following instruction
  Jump,   // the handler set the program counters itself (branches)
  Wait,   // cannot proceed: execute the same instruction again once something in the cluster has changed
  Exit,   // the lanes of the mask are done
  Yield,  // as Next, but what was polled has not happened yet (mbarrier.test_wait that gave false): let others run
};

using Execute = Step (*)(Warp&, const Instr&, uint32_t mask);

// A decoded instruction. `reg` holds byte offsets into the warp's register file: destinations first, then
// sources, in PTX order with vectors flattened. Immediates, constant special registers (%tid.x, %laneid, ...)
// and symbol addresses are constant rows of the register file, so every source is an offset.
// A 32-bit (and narrower) register is 32 lanes of 4 bytes, a 64-bit one 32 lanes of 8 bytes, a 128-bit one 32
// lanes of 16 bytes, a predicate one 32-bit lane mask. The file is 64-byte aligned and so is each row.
struct Instr {
  Execute execute = nullptr;
  const uint32_t* reg = nullptr;  // into Kernel::operand_pool
  const ptx::Instruction* source = nullptr;
  uint32_t guard = UINT32_MAX;  // offset of the predicate row, or UINT32_MAX
  int32_t target = -1;          // branch target
  uint16_t reg_count = 0;
  bool guard_negated = false;

  // What the decoder of a family learned from the opcode's modifiers: a small struct of that family. The handler that
  // `execute` names reads it back as the same type.
  template <class Form>
  void set(const Form& form) {
    static_assert(std::is_trivially_copyable_v<Form>, "instructions are copied byte by byte");
    static_assert(sizeof(Form) <= kFormBytes && alignof(Form) <= 8, "the form does not fit into an instruction");
    ::new (static_cast<void*>(form_)) Form(form);
  }
  template <class Form>
  const Form& form() const {
    return *std::launder(reinterpret_cast<const Form*>(form_));
  }

 private:
  static constexpr size_t kFormBytes = 24;
  alignas(8) unsigned char form_[kFormBytes] = {};
};

// Where a form's operand stands in Instr::reg.
struct ValueOperand {
  uint8_t place = 0;
};
// An address operand takes two places: its base, and a constant row with its addend.
struct AddressOperand {
  uint8_t place = 0;
  bool wide = false;  // the base is 64 bits wide
};

constexpr uint32_t kNoReg = UINT32_MAX;  // the sink `_`

}  // namespace sim
