// SPDX-License-Identifier: Apache-2.0
// All families of opcodes.
#pragma once
#include <string>
#include <vector>

namespace sim {

void register_opcodes();                        // once; further calls do nothing
std::vector<std::string> registered_opcodes();  // the first parts, in alphabetical order

}  // namespace sim
