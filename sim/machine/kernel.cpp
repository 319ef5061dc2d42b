// SPDX-License-Identifier: Apache-2.0
#include "sim/machine/kernel.h"

namespace sim {
namespace {

constexpr uint64_t kFunctionWindow = 4ull << 56;  // beside those of sim/memory/address_space.h

}  // namespace

uint64_t function_address(const ptx::Module& module, const std::string& written) {
  const auto alias = module.aliases.find(written);
  const std::string& name = alias == module.aliases.end() ? written : alias->second;
  for (size_t i = 0; i < module.functions.size(); ++i) {
    if (module.functions[i].name == name && !module.functions[i].is_entry) return kFunctionWindow | 16 * (i + 1);
  }
  return 0;
}

}  // namespace sim
