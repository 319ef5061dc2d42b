// SPDX-License-Identifier: Apache-2.0
// The list of executed forms of instructions. With MOXIE_SIM_COVERAGE=FILE in the environment every launch appends
// lines of "form TAB test" to the file, each pair once a process, and "@source:line TAB test" for the lines of a
// kernel's source that .loc tells. The test is named by MOXIE_SIM_COVERAGE_TEST, else by the kernel. `sim_coverage`
// lists the forms (tests/coverage); scripts/semantic-mutants reads the lines.
#pragma once
#include <string>

#include "sim/machine/instruction.h"
#include "sim/machine/kernel.h"

namespace sim {

bool coverage_wanted();
// Notes a form that its mnemonic does not tell: the descriptor of a product, the tensor map of a copy.
void cover(const Instr& instr, const std::string& detail);
// Writes what was noted. A launch calls it at its end, and also when it has failed.
void record_coverage(const Kernel& kernel);

}  // namespace sim
