// SPDX-License-Identifier: Apache-2.0
// Mutants of a kernel's PTX: each has one synchronisation removed or bent, everything else as it was.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "sim/ptx/ast.h"

namespace moxie::mutants {

struct Mutant {
  std::string instruction;  // the opcode as it stands in the text
  std::string change;       // "deleted", "parity flipped", ...
  int line = 0;             // of the PTX
  std::string statement;    // what stood there
  // The kernel's source lines that the statement came from, innermost first: "pipeline.cuh:52: while (...".
  std::vector<std::string> origin;
  size_t begin = 0, end = 0;  // of the statement in the text
  std::string replacement;

  std::string apply(const std::string& ptx) const { return ptx.substr(0, begin) + replacement + ptx.substr(end); }
};

// Every mutant of the entry function of `module`, which was parsed from `ptx`. headers: the kernel's sources by include
// name, for Mutant::origin.
std::vector<Mutant> mutants_of(const std::string& ptx, const sim::ptx::Module& module,
                               const std::map<std::string, std::string>& headers);

}  // namespace moxie::mutants
