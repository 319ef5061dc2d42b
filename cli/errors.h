// SPDX-License-Identifier: Apache-2.0
// The exceptions of commands, for a wrong command line, a wrong file, or a file that cannot be written.
#pragma once
#include <stdexcept>

namespace moxie::cli {

// Thrown for input that breaks a rule. what() is one sentence that names the option, file or tensor and the rule.
struct InputError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Thrown for a write that failed half-way, for instance on a full disk. what() names the file and says why.
struct OutputError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace moxie::cli
