// SPDX-License-Identifier: Apache-2.0
// A kernel as it is executed: its instructions, the rows of a warp's register file, its calls and stack frames.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/machine/instruction.h"
#include "sim/ptx/ast.h"

namespace sim {

// The register file of a warp: registers at [0, variable_bytes), then the constant rows. Rows of registers that are
// never live together are shared; those of wgmma and tcgen05 operands have their row for themselves.
struct Kernel {
  std::string name;
  std::shared_ptr<const ptx::Module> module;
  const ptx::Function* function = nullptr;
  std::string refusal;  // why it cannot be launched, when build_kernel() did not like it
  std::vector<Instr> code;
  std::vector<uint32_t> operand_pool;
  uint32_t register_bytes;  // size of a warp's register file, constant rows included
  int entry_pc = 0;         // called functions stand before the entry in `code`
  uint32_t variable_bytes = 0;
  uint32_t static_shared = 0;   // bytes
  uint32_t dynamic_shared = 0;  // offset at which dynamic shared memory begins
  uint32_t local_bytes = 0;     // per thread, without the stack
  uint32_t param_bytes = 0;
  std::vector<uint32_t> param_offsets, param_sizes;
  int registers_per_thread = 0;  // estimate, for the register-budget checks
  // initial values of the constant rows: 32-bit, 64-bit immediates and special registers (opaque to handlers)
  struct ConstantRow {
    uint32_t offset;
    uint8_t bytes;
    uint64_t bits;
    int special;
  };
  std::vector<ConstantRow> constants;
  std::vector<uint8_t> row_lines;  // of the row that begins at each 64 bytes of the register file: its size in these
  // The tables of brx.idx hold code indices. The form of a brx has an index into this.
  std::vector<std::vector<int>> branch_tables;
  // Calls (sim/isa/call.cpp). Each function has one set of rows, and its .local and .param variables stand at fixed
  // places of the thread's local memory. Functions that may call themselves, at whatever remove, or that use alloca
  // have theirs on the thread's stack instead, which lies behind those places; a call that may come back to its caller
  // saves the caller's rows first.
  // A call copies arguments into the callee's parameters; the instruction it returns to copies the results back.
  struct CallCopy {
    bool from_row = false, to_row = false;  // a register row, else lane-private local memory
    uint32_t from = 0, to = 0, bytes = 0;
    uint32_t from_step = 0, to_step = 0;                    // bytes of a lane in the row; 0: a predicate
    uint32_t from_base = UINT32_MAX, to_base = UINT32_MAX;  // row of the stack frame that `from`, `to` are in
  };
  struct Call {
    std::vector<CallCopy> arguments, results;
    uint32_t return_row = 0;
    int target = -1, return_pc = -1, next_pc = -1;
    int frame = -1;        // of the callee when it has one on the stack
    int saved_frame = -1;  // of the caller when its rows must be saved
    std::string external;  // a function of the run-time system, without a body
  };
  std::vector<Call> calls;                                    // the form of a direct call has an index into this
  std::vector<std::unordered_map<uint64_t, int>> call_sites;  // that of an indirect one into this: address -> call
  struct StackFrame {
    std::string function;
    uint32_t base_row = 0;  // each lane's offset of the frame in the stack
    uint32_t bytes = 0;
    std::vector<std::pair<uint32_t, uint32_t>> rows;  // offset and bytes of each row of the function
    uint32_t saved_bytes = 0;                         // of a lane in all of them
    struct Symbol {
      uint32_t row, bytes;
      uint64_t offset;
    };
    std::vector<Symbol> symbols;  // rows that hold addresses in the frame
  };
  std::vector<StackFrame> frames;
  uint32_t stack_row = UINT32_MAX;  // each lane's stack pointer, from stack_base; UINT32_MAX: no function needs one
  uint32_t stack_base = 0;
  // What its instructions do that decides how a launch is run; found once, since they are many.
  struct Uses {
    bool launch_control = false;
    bool strong_reads = false, strong_writes = false;  // of global memory, by which clusters can hand something over
    bool order_between_clusters = false;               // the outcome could depend on which cluster comes first
    bool tensor_copies = false;
    bool reserved_shared = false;  // asks where the shared memory lies that is reserved for the system (10.29)
  };
  Uses uses;
  mutable std::vector<uint8_t> covered;  // by instruction: has been executed (sim/machine/coverage.h); else empty
};
// Bytes of a block's shared memory that are reserved for the system: what it takes of each block on a GPU.
constexpr uint32_t kReservedShared = 1024;
Kernel::Uses find_uses(const std::vector<Instr>& code);

// The registers, as they are allocated, that ptxas gives each thread of a kernel with setmaxnreg: of a register file
// that warp groups share, no more than the largest setmaxnreg.inc asks for. Without bounds on both threads and blocks
// it ignores setmaxnreg, and says so (C7508): 0.
uint32_t launch_registers(const ptx::Function& function);

constexpr uint32_t kStackBytes = 64 << 10;  // of a thread, unless the launch says otherwise

// What `mov` gives as the address of a function, and an indirect call takes; 0 when there is none of this name.
uint64_t function_address(const ptx::Module& module, const std::string& name);

}  // namespace sim
