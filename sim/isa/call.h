// SPDX-License-Identifier: Apache-2.0
// The instructions that build_kernel() puts around a call beside the call itself.
#pragma once
#include "sim/machine/instruction.h"

namespace sim {

// The bytes of one lane in a row. A predicate's row is a mask, and its one bit takes a byte.
constexpr uint32_t kPredicateRow = 64;
constexpr uint32_t lane_bytes(uint32_t row_bytes) { return row_bytes == kPredicateRow ? 1 : row_bytes / kLanes; }

// Addresses of a frame's variables are computed on the way into its function.
struct EntryForm {
  // An index into Kernel::frames.
  int32_t frame;
};
Step enter_function(Warp& warp, const Instr& in, uint32_t mask);

// Lanes that come back from a call take its results, and those that did not call pass them by.
struct ResultForm {
  // An index into Kernel::calls.
  int32_t call;
};
Step pass_results(Warp& warp, const Instr& in, uint32_t mask);
Step take_results(Warp& warp, const Instr& in, uint32_t mask);

}  // namespace sim
