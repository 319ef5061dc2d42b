// SPDX-License-Identifier: Apache-2.0
// Fuzzing of the PTX front end (libFuzzer): any text is parsed, and what parses is decoded for every kernel in it, for
// both architectures. Bad text is a ParseError with a place in the text; anything else that leaves is a finding.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "sim/machine/environment.h"
#include "sim/run/run.h"
#include "sim/translate/build_kernel.h"

namespace {

void prepare_all(const std::shared_ptr<const sim::ptx::Module>& module, int arch) {
  std::unordered_map<std::string, uint64_t> symbols;
  uint64_t address = 1 << 20;
  for (const sim::ptx::Variable& v : module->variables) {
    if (v.space == sim::ptx::Space::Global || v.space == sim::ptx::Space::Const) symbols[v.name] = address += 256;
  }
  for (const sim::ptx::Function& f : module->functions) {
    if (!f.is_entry || f.is_declaration) continue;
    try {
      sim::build_kernel(module, f.name, symbols, arch);
    } catch (const sim::ptx::ParseError& e) {
      if (e.where.line < 1 || e.where.column < 1) std::abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto module = std::make_shared<const sim::ptx::Module>(
        sim::ptx::parse(std::string_view(reinterpret_cast<const char*>(data), size)));
    prepare_all(module, 90);
    prepare_all(module, 100);
  } catch (const sim::ptx::ParseError& e) {
    if (e.where.line < 1 || e.where.column < 1) std::abort();
  }
  return 0;
}
