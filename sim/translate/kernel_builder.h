// SPDX-License-Identifier: Apache-2.0
// Builds a Kernel from a parsed function: which functions it calls (call_graph.cpp), where variables, parameters and
// registers live (placement.cpp), how calls pass values (calls.cpp), and the decoded instructions (kernel_builder.cpp).
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/machine/decode.h"
#include "sim/machine/kernel.h"
#include "sim/machine/special.h"
#include "sim/ptx/ast.h"
#include "sim/translate/rows.h"

namespace sim {

inline uint32_t align_up(uint64_t value, uint64_t alignment) {
  return static_cast<uint32_t>((value + alignment - 1) / alignment * alignment);
}

class KernelBuilder final : public DecodeContext {
 public:
  KernelBuilder(std::shared_ptr<const ptx::Module> module, const std::unordered_map<std::string, uint64_t>& symbols,
                int arch)
      : module_(std::move(module)), symbols_(symbols), arch_(arch), kernel_(std::make_shared<Kernel>()) {
    for (const ptx::Function& f : module_->functions) functions_[f.name] = &f;
  }

  std::shared_ptr<Kernel> build(const std::string& entry);

  void push(const ptx::Operand& operand, ptx::Type as, int64_t* addend) override;
  uint32_t offset_of(const ptx::Operand& operand, ptx::Type as) override;
  uint8_t pushed() const override { return static_cast<uint8_t>(pushed_.size()); }
  ptx::Type register_type(const ptx::Operand& operand) const override;
  const ptx::Function& function() const override { return *frame_->function; }
  const ptx::Module& module() const override { return *module_; }
  int arch() const override { return arch_; }
  Place place(const std::string& symbol) const override;
  int branch_table(const std::string& name) override;
  int call(const ptx::Instruction& source) override;
  uint32_t return_row() const override { return frame_->return_row; }
  int stack_frame() const override { return frame_->stack_frame; }
  uint32_t stack_row() const override { return kernel_->stack_row; }

 private:
  // A function and what it was given.
  struct Frame {
    const ptx::Function* function = nullptr;
    RowPlan rows;
    uint32_t return_row = 0;
    std::unordered_map<std::string, Place> places;  // its parameters and variables
    int component = 0;     // functions of one component may all call each other, at whatever remove
    int stack_frame = -1;  // index into Kernel::frames: its variables are on the stack
    uint32_t base_row = 0;
    uint32_t local_bytes = 0;
    std::map<std::pair<uint32_t, uint64_t>, uint32_t> symbol_rows;  // bytes of a lane, offset in the frame -> row
    int begin = 0;                                                  // in Kernel::code
    std::vector<int> code_index;                                    // of each instruction, and one past
  };

  void check_target(const ptx::Function& function) const;
  const ptx::Function* find(const std::string& name) const;
  std::vector<const ptx::Function*> callees(const ptx::Function& function, const ptx::Instruction& in);
  const std::vector<const ptx::Function*>& address_taken();
  void collect(const ptx::Function& entry);
  void collect_shared(const std::vector<const ptx::Function*>& order);
  void describe_frames();
  bool on_stack(const Place& place) const { return frame_->stack_frame >= 0 && place.space == ptx::Space::Local; }
  void lay_out(Frame& frame);
  void generate(Frame& frame);
  void decode(const ptx::Instruction& source, Instr& out);
  void finish();
  uint32_t constant(uint8_t bytes, uint64_t bits, Special special);
  uint32_t immediate(const ptx::Operand& operand, ptx::Type as);
  Kernel::CallCopy value_place(const ptx::Operand& operand, ptx::Type as);
  int call_of(const ptx::Instruction& source, const ptx::Function& callee);

  std::shared_ptr<const ptx::Module> module_;
  const std::unordered_map<std::string, uint64_t>& symbols_;
  int arch_;
  std::shared_ptr<Kernel> kernel_;
  std::unordered_map<std::string, const ptx::Function*> functions_;
  std::vector<const ptx::Function*> address_taken_;
  bool address_taken_known_ = false;
  std::vector<std::unique_ptr<Frame>> frames_;  // callees before their callers, where there is such an order
  std::unordered_map<const ptx::Function*, Frame*> frame_of_;
  std::vector<Frame*> call_targets_;  // of each of Kernel::calls; null for external functions
  std::vector<int> site_calls_;       // of the call being generated
  Frame* frame_ = nullptr;
  std::unordered_map<std::string, Place> shared_;  // module-scope .shared
  std::map<std::tuple<uint8_t, uint64_t, int>, uint32_t> constant_rows_;
  uint32_t next_row_ = 0;
  uint32_t local_bytes_ = 0;
  std::vector<uint32_t> pushed_;
  std::vector<size_t> pool_index_;
  std::vector<int> volatile_rows_;  // of the instruction being decoded
  struct PendingTable {
    size_t table;
    Frame* frame;
    std::vector<int> targets;
  };
  std::vector<PendingTable> tables_;
};

}  // namespace sim
