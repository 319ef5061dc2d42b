// SPDX-License-Identifier: Apache-2.0
// Rows of the register file: which PTX registers may share one. Private to sim/translate.
#pragma once
#include <cstdint>
#include <vector>

#include "sim/ptx/ast.h"

namespace sim {

struct RowPlan {
  std::vector<uint32_t> offset;  // of each register of the function
  uint32_t end = 0;              // first free byte behind the rows, a multiple of 64
  int live_words = 0;            // most 32-bit registers live at one instruction
};

uint32_t row_bytes(ptx::Type type);

// Liveness over the control flow graph, then one interval of instructions per register, then a linear scan.
RowPlan plan_rows(const ptx::Function& function, uint32_t begin);

}  // namespace sim
