// SPDX-License-Identifier: Apache-2.0
#include "sim/machine/kernel.h"

#include <algorithm>

namespace sim {
namespace {

constexpr uint32_t kRegisterFile = 65536;  // of a multiprocessor
constexpr uint32_t kMaxRegisters = 256;    // of a thread

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

uint32_t launch_registers(const ptx::Function& function) {
  uint32_t registers = kMaxRegisters;
  const int* const bound = function.reqntid[0] > 0 ? function.reqntid : function.maxntid;
  if (bound[0] > 0 && function.minnctapersm > 0) {
    uint64_t threads = 1;
    for (int d = 0; d < 3; ++d) threads *= static_cast<uint64_t>(std::max(1, bound[d]));
    const uint64_t groups = (threads + 127) / 128 * static_cast<uint64_t>(function.minnctapersm);
    registers = std::min(registers, static_cast<uint32_t>(kRegisterFile / (128 * groups) / 8 * 8));
  } else if (function.maxnreg <= 0) {
    return 0;
  }
  if (function.maxnreg > 0) registers = std::min(registers, static_cast<uint32_t>(function.maxnreg + 7) / 8 * 8);
  uint32_t largest = 0;
  for (const ptx::Instruction& in : function.body) {
    const auto& parts = in.parts;
    if (parts[0] == "setmaxnreg" && std::find(parts.begin(), parts.end(), "inc") != parts.end() &&
        in.operands.size() == 1)
      largest = std::max(largest, static_cast<uint32_t>(in.operands[0].bits));
  }
  return largest > 0 ? std::min(registers, largest) : registers;
}

}  // namespace sim
