// The kernels that are mutated, each with a problem that makes every role loop at least three times and wraps the ring
// of stages at least twice.
#pragma once
#include <string>
#include <vector>

#include "tests/kernels/layer.h"

namespace moxie::mutants {

struct Case {
  std::string name;
  test::Job job;
};

std::vector<Case> cases();

}  // namespace moxie::mutants
