// What a command throws for a wrong command line, a wrong file, or a file that cannot be written.
#pragma once
#include <stdexcept>

namespace moxie::cli {

// Input that breaks a rule. what() is one sentence that names the option, file or tensor and the rule.
struct InputError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A write that failed half-way, for instance on a full disk. what() names the file and says why.
struct OutputError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace moxie::cli
