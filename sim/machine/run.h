// What the parts of sim/machine share and nobody else uses.
#pragma once
#include "sim/machine/machine.h"

namespace sim {

// How a warp's turn ended.
enum class Turn { Quantum, Yielded, Blocked, Finished };
Turn run_warp(Warp& warp, uint32_t quantum, uint32_t* executed);

// Moves values between rows and local memory of each lane of the mask.
void copy_call_values(Warp& warp, const std::vector<Kernel::CallCopy>& copies, uint32_t mask);

[[noreturn]] void report_deadlock(Cluster& cluster, const std::string& why);

// "ptx line 12 (kernel.cu:34)"
std::string describe_instruction(const Kernel& kernel, const ptx::Instruction* source);

}  // namespace sim
