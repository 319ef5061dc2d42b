// SPDX-License-Identifier: Apache-2.0
// The values of an instruction's operands in one lane, and the places in shared memory that they name.
#pragma once
#include <cstdint>

#include "sim/machine/hierarchy.h"
#include "sim/machine/instruction.h"

namespace sim {

inline uint64_t read_address(const Warp& warp, const Instr& instr, AddressOperand operand, int lane) {
  const uint32_t row = instr.reg[operand.place];
  const uint64_t base = operand.wide ? warp.row<uint64_t>(row)[lane] : warp.row<uint32_t>(row)[lane];
  return base + warp.row<uint64_t>(instr.reg[operand.place + 1])[lane];
}
inline uint32_t read32(const Warp& warp, const Instr& instr, ValueOperand operand, int lane) {
  return warp.row<uint32_t>(instr.reg[operand.place])[lane];
}
inline uint64_t read64(const Warp& warp, const Instr& instr, ValueOperand operand, int lane) {
  return warp.row<uint64_t>(instr.reg[operand.place])[lane];
}

struct SharedPlace {
  Cta* cta;
  uint32_t offset;
};
// A shared address of a lane, .shared::cta/.shared::cluster or generic; faults when it is not one or the block is
// finished.
SharedPlace shared_place(Warp& warp, uint64_t address, bool generic, int lane);

// A generic address of shared memory where an instruction takes a shared one. GPUs take its low 32 bits, which are the
// shared address.
void generic_as_shared(const Warp& warp, uint64_t address, int lane);

inline int first_lane(uint32_t mask) { return __builtin_ctz(mask); }

}  // namespace sim
