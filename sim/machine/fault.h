// SPDX-License-Identifier: Apache-2.0
// What ends a launch: a hazard, or a program that asks for what is not allowed.
#pragma once
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sim/machine/kernel.h"
#include "sim/ptx/ast.h"

namespace sim {

struct Warp;
struct Cta;

enum class Hazard {
  MissingProxyFence,
  DataInFlight,
  RegistersInFlight,
  StaleTensorMap,
  TensorMapInFlight,
  MbarrierMisuse,
  Deadlock,
  Memory,
  TensorMemory,
  Race,
  Assertion,
  IllegalUse,
};
const char* hazard_name(Hazard h);  // "missing proxy fence", "data in flight", ...

// Ends the launch. what() is one line first ("missing proxy fence: ... at ptx line 123 (file.cuh:45), block
// (0,0,0), warp 5, lane 3"), details after.
class Fault : public std::runtime_error {
 public:
  Fault(Hazard hazard, const std::string& text) : std::runtime_error(text), kind(hazard) {}
  Hazard kind;
};
// Adds the location of the instruction that the warp is executing. lane -1: not one lane's doing.
[[noreturn]] void fault(Hazard kind, const Warp& warp, int lane, const std::string& text);
std::string describe_location(const Warp& warp, int lane);

// Deviations (Rules::strictness) that a cluster, or a launch, has made so far, one an instruction and hazard.
struct Deviations {
  struct Seen {
    uint64_t count = 0;
    uint64_t cluster = 0;  // that made it first
    std::string text;
  };
  std::map<std::pair<const ptx::Instruction*, Hazard>, Seen> seen;
  // Adds what a cluster has made. The outcome does not depend on the order in which clusters are added.
  void add(Deviations&& others, uint64_t cluster);
  // A line for each, in the order of the program: "warning: ... at ptx line 12, block (0,0,0), warp 0 (32 times)".
  std::vector<std::string> lines() const;
};
// Counts a deviation of what the warp executes, or of an instruction of its. Whether it has to be told.
bool is_told(Hazard kind, const Warp& warp);
bool is_told(Hazard kind, const Warp& warp, const ptx::Instruction* source);
void tell(Hazard kind, const Warp& warp, int lane, const std::string& text);
// Judges a deviation. `describe` gives its text, as fault() takes it, when that is needed.
template <class Describe>
void deviation(Hazard kind, const Warp& warp, int lane, Describe describe) {
  if (is_told(kind, warp)) tell(kind, warp, lane, describe());
}
// Judges a race. Published code relies on the outcome of some, which are deviations; others are faults at every level.
template <class Describe>
void judge_race(const Warp& warp, int lane, bool relied_on, Describe describe) {
  if (!relied_on) fault(Hazard::Race, warp, lane, describe());
  deviation(Hazard::Race, warp, lane, describe);
}

// An Origin says who issued an operation that is performed later. Faults of the operation name it.
struct Origin {
  Warp* warp = nullptr;
  const ptx::Instruction* source = nullptr;
  int lane = -1;
  std::string text() const;
  [[noreturn]] void fail(Hazard hazard, const std::string& what) const;
  // Judges a deviation of the operation.
  template <class Describe>
  void deviation(Hazard hazard, Describe describe) const {
    if (is_told(hazard, *warp, source)) tell(hazard, describe());
  }

 private:
  void tell(Hazard hazard, const std::string& what) const;
};
// The origin of what the warp is executing now.
Origin current_origin(Warp& warp, int lane);

std::string describe_block(const Cta& cta);  // "block (0,0,0)"
// "ptx line 12 (kernel.cu:34)"
std::string describe_instruction(const Kernel& kernel, const ptx::Instruction* source);

}  // namespace sim
