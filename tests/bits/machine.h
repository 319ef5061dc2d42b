// SPDX-License-Identifier: Apache-2.0
// A machine that runs forms: whatever libcuda.so.1 the dynamic loader finds, the system's or the simulator's.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/bits/form.h"

namespace bits {

struct Result {
  std::string name, error;  // error: empty when it ran
  std::vector<uint8_t> bytes;
};

// PTX of a module that holds the forms [first, last), each as the entry k<index>.
std::string module_of(const Forms& forms, size_t first, size_t last);
std::vector<uint8_t> input_of(const Form& form);

class Machine {
 public:
  Machine();  // throws std::runtime_error
  ~Machine();
  std::string describe() const;
  // Runs the forms [first, end), `forms_a_module` of them compiled together, and gives each result to `done`. Ends
  // early after a launch that failed: a GPU takes no more work from the process then.
  void run(const Forms& forms, size_t first, size_t end, size_t forms_a_module,
           const std::function<void(const Result&)>& done);

 private:
  struct Driver;
  std::unique_ptr<Driver> driver_;
};

struct Isolation {
  size_t forms_a_module = 64;
  size_t processes = 1;
  unsigned seconds = 0;  // for all; 0: as long as it takes
};
// All forms, in child processes, so that one that fails or hangs takes no other with it. Returns the machine's
// description.
std::string run_isolated(const Forms& forms, const Isolation& how, std::vector<Result>& results);

}  // namespace bits
