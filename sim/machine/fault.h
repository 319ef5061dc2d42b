// SPDX-License-Identifier: Apache-2.0
// What ends a launch: a hazard, or a program that asks for what is not allowed.
#pragma once
#include <stdexcept>
#include <string>

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

// An Origin says who issued an operation that is performed later. Faults of the operation name it.
struct Origin {
  Warp* warp = nullptr;
  const ptx::Instruction* source = nullptr;
  int lane = -1;
  std::string text() const;
  [[noreturn]] void fail(Hazard hazard, const std::string& what) const;
};
// The origin of what the warp is executing now.
Origin current_origin(Warp& warp, int lane);

std::string describe_block(const Cta& cta);  // "block (0,0,0)"
// "ptx line 12 (kernel.cu:34)"
std::string describe_instruction(const Kernel& kernel, const ptx::Instruction* source);

}  // namespace sim
