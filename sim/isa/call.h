// The instructions that prepare() puts around a call beside the call itself.
#pragma once
#include "sim/machine/machine.h"

namespace sim {

// The bytes of one lane in a row. A predicate's row is a mask, and its one bit takes a byte.
constexpr uint32_t kPredicateRow = 64;
constexpr uint32_t lane_bytes(uint32_t row_bytes) { return row_bytes == kPredicateRow ? 1 : row_bytes / kLanes; }

Step enter_function(Warp& warp, const Instr& in, uint32_t mask);  // in.imm: index into Kernel::frames
Step pass_results(Warp& warp, const Instr& in, uint32_t mask);    // of lanes that did not call; in.imm: into calls
Step take_results(Warp& warp, const Instr& in, uint32_t mask);    // in.imm: into calls

}  // namespace sim
