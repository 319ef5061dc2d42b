// SPDX-License-Identifier: Apache-2.0
// Building a kernel from PTX.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "sim/machine/kernel.h"
#include "sim/ptx/ast.h"

namespace sim {

// Builds the kernel `entry` of a parsed module. `symbols` gives the device addresses of module-scope variables. Throws
// ptx::ParseError for what is not understood, naming the instruction and line.
std::shared_ptr<Kernel> build_kernel(std::shared_ptr<const ptx::Module> module, const std::string& entry,
                                     const std::unordered_map<std::string, uint64_t>& symbols, int arch);

}  // namespace sim
