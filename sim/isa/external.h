// SPDX-License-Identifier: Apache-2.0
// Functions of the run-time system that a kernel may call without bringing them: vprintf,
// __assertfail, malloc and free.
#pragma once
#include <string>

#include "sim/machine/hierarchy.h"
#include "sim/machine/kernel.h"

namespace sim {

bool is_external_function(const std::string& name);
// Executes the call for the lanes of the mask. Kernel::Call says where its arguments stand.
void call_external(Warp& warp, const Kernel::Call& call, uint32_t mask);

}  // namespace sim
