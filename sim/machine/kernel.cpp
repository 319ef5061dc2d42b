// SPDX-License-Identifier: Apache-2.0
#include "sim/machine/kernel.h"

#include <algorithm>
#include <initializer_list>

#include "sim/machine/launch.h"

namespace sim {
namespace {

constexpr uint32_t kRegisterFile = 65536;  // of a multiprocessor
constexpr uint32_t kMaxRegisters = 256;    // of a thread

constexpr uint64_t kFunctionWindow = 4ull << 56;  // beside those of sim/memory/address_space.h

// Clusters that run side by side make the outcome depend on who comes first by what an atomic operation on global
// memory returns, and by sums of floats, which are rounded in the order they are made.
bool depends_on_order(const std::vector<std::string>& parts) {
  const auto has = [&](auto found) { return std::any_of(parts.begin(), parts.end(), found); };
  const bool floats = has(
      [](const std::string& p) { return p.starts_with("f16") || p.starts_with("bf16") || p == "f32" || p == "f64"; });
  if (parts[0] == "cp") return floats && has([](const std::string& p) { return p == "reduce"; });
  if (parts[0] != "atom" && parts[0] != "red") return false;
  if (has([](const std::string& p) { return p.starts_with("shared"); })) return false;
  return parts[0] == "atom" || floats || has([](const std::string& p) { return p == "async"; });
}

bool has_one_of(const std::vector<std::string>& parts, std::initializer_list<const char*> names) {
  return std::find_first_of(parts.begin(), parts.end(), names.begin(), names.end()) != parts.end();
}

}  // namespace

uint32_t Launch::own_shared() const {
  return std::max(kernel->static_shared, dynamic_shared == 0 ? 0 : kernel->dynamic_shared + dynamic_shared);
}

Kernel::Uses find_uses(const std::vector<Instr>& code) {
  Kernel::Uses uses;
  for (const Instr& in : code) {
    if (in.source == nullptr) continue;
    for (const ptx::Operand& operand : in.source->operands) {
      if (operand.kind == ptx::Operand::Kind::Special && operand.name.starts_with("%reserved_smem_offset"))
        uses.reserved_shared = true;
    }
    const std::vector<std::string>& parts = in.source->parts;
    const std::string& name = parts[0];
    const bool atomic = name == "atom" || name == "red", moves = name == "ld" || name == "st";
    if (name == "clusterlaunchcontrol") uses.launch_control = true;
    if (name == "cp" && in.source->opcode.starts_with("cp.async.bulk.tensor")) uses.tensor_copies = true;
    if ((atomic || name == "cp") && depends_on_order(parts)) uses.order_between_clusters = true;
    if (!atomic && !moves) continue;
    if (has_one_of(parts, {"shared", "shared::cta", "shared::cluster", "local", "param"})) continue;
    const bool strong = has_one_of(parts, {"relaxed", "volatile", "mmio"});
    if (name == "atom" || (name == "ld" && (strong || has_one_of(parts, {"acquire"})))) uses.strong_reads = true;
    if (atomic || (name == "st" && (strong || has_one_of(parts, {"release"})))) uses.strong_writes = true;
  }
  return uses;
}

uint64_t function_address(const ptx::Module& module, const std::string& written) {
  const auto alias = module.aliases.find(written);
  const std::string& name = alias == module.aliases.end() ? written : alias->second;
  for (size_t i = 0; i < module.functions.size(); ++i) {
    if (module.functions[i].name == name && !module.functions[i].is_entry) return kFunctionWindow | 16 * i;
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
