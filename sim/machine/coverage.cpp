// SPDX-License-Identifier: Apache-2.0
// Executed forms, appended to the file that MOXIE_SIM_COVERAGE names.
#include "sim/machine/coverage.h"

#include <cstdlib>
#include <fstream>
#include <mutex>
#include <set>

namespace sim {
namespace {

const char* coverage_file() {
  static const char* const file = std::getenv("MOXIE_SIM_COVERAGE");
  return file;
}

std::mutex& coverage_mutex() {
  static std::mutex mutex;
  return mutex;
}
std::set<std::string>& details() {
  static std::set<std::string> forms;
  return forms;
}

}  // namespace

bool coverage_wanted() { return coverage_file() != nullptr; }

void cover(const Instr& instr, const std::string& detail) {
  if (!coverage_wanted()) return;
  const std::lock_guard<std::mutex> lock(coverage_mutex());
  details().insert(instr.source->opcode + " " + detail);
}

void record_coverage(const Kernel& kernel) {
  if (kernel.covered.empty()) return;
  const char* const named = std::getenv("MOXIE_SIM_COVERAGE_TEST");
  const std::string test = named != nullptr ? named : kernel.name;
  const std::lock_guard<std::mutex> lock(coverage_mutex());
  static std::set<std::string> written;
  std::string lines;
  const auto add = [&](const std::string& form) {
    std::string line = form + "\t" + test + "\n";
    if (written.insert(line).second) lines += line;
  };
  for (size_t i = 0; i < kernel.code.size(); ++i) {
    const ptx::Instruction* const source = kernel.code[i].source;
    if (!kernel.covered[i] || source == nullptr) continue;
    add(source->opcode);
    const auto file = kernel.module->files.find(source->file);
    if (file != kernel.module->files.end()) add("@" + file->second + ":" + std::to_string(source->source_line));
  }
  for (const std::string& form : details()) add(form);
  details().clear();
  if (lines.empty()) return;
  std::ofstream out(coverage_file(), std::ios::app);
  out.write(lines.data(), static_cast<std::streamsize>(lines.size()));
}

}  // namespace sim
