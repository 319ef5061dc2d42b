// A machine that runs forms: whatever libcuda.so.1 the dynamic loader finds, the system's or the simulator's.
#pragma once
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
  std::vector<Result> run(const Forms& forms, size_t forms_a_module);

 private:
  struct Driver;
  std::unique_ptr<Driver> driver_;
};

}  // namespace bits
