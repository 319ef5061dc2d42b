// SPDX-License-Identifier: Apache-2.0
// Results files, and what two machines' results have in common.
#pragma once
#include "tests/bits/machine.h"

namespace bits {

struct Results {
  std::string machine;
  std::vector<Result> forms;
};
void write(const Results& results, const std::string& path);  // both throw std::runtime_error
Results read(const std::string& path);

// Prints the table, forms outside of their bounds, and with `all` every form; returns how many are outside.
int compare(const Forms& forms, const Results& first, const Results& second, bool all);

// A line for each form whose bits are defined: a hash of its name, one of its result with all NaNs made one.
void write_digest(const Forms& forms, const Results& results, const std::string& path);
// Prints the forms whose result differs from the digest's and those that have defined bits and no line there; returns
// how many.
int check_digest(const Forms& forms, const Results& results, const std::string& path);

}  // namespace bits
