// SPDX-License-Identifier: Apache-2.0
// The decoded instructions of a kernel.
#include "sim/translate/kernel_builder.h"

#include <algorithm>
#include <set>

#include "sim/isa/call.h"
#include "sim/machine/coverage.h"
#include "sim/machine/launch.h"
#include "sim/translate/build_kernel.h"
#include "sim/translate/opcodes.h"

namespace sim {

using ptx::Operand;
using ptx::ParseError;

namespace {

struct SpecialRow {
  size_t constant = 0;  // index into Kernel::constants
};

// Writes the row of a changing special register (%clock and the like); stands before each instruction that reads one.
Step refresh_special(Warp& warp, const Instr& in, uint32_t) {
  fill_row(warp, warp.cta->cluster->launch->kernel->constants[in.form<SpecialRow>().constant]);
  return Step::Next;
}

}  // namespace

int KernelBuilder::branch_table(const std::string& name) {
  const auto found = frame_->function->branch_targets.find(name);
  if (found == frame_->function->branch_targets.end()) return -1;
  tables_.push_back({tables_.size(), frame_, found->second});
  return static_cast<int>(tables_.size()) - 1;
}

void KernelBuilder::decode(const ptx::Instruction& source, Instr& out) {
  const auto family = opcode_table().find(source.parts[0]);
  if (family == opcode_table().end())
    throw ParseError(source.where, "instruction '" + source.opcode + "' is not supported");
  for (Decode decoder : family->second) {
    bool known = false;
    try {
      known = decoder(source, *this, out);
    } catch (const Unsupported& e) {
      throw ParseError(source.where, "'" + source.opcode + "': " + e.what());
    } catch (const std::out_of_range&) {
      throw ParseError(source.where, "'" + source.opcode + "' has too few operands");
    }
    if (known) return;
    out = Instr{};
    pushed_.clear();
    volatile_rows_.clear();
  }
  throw ParseError(source.where, "instruction '" + source.opcode + "' is not supported in this form");
}

void KernelBuilder::generate(Frame& frame) {
  frame_ = &frame;
  std::vector<Instr>& code = kernel_->code;
  frame.begin = static_cast<int>(code.size());
  const auto append = [&](const Instr& in) {
    code.push_back(in);
    pool_index_.push_back(kernel_->operand_pool.size());
    kernel_->operand_pool.insert(kernel_->operand_pool.end(), pushed_.begin(), pushed_.end());
    code.back().reg_count = static_cast<uint16_t>(pushed_.size());
    pushed_.clear();
  };
  static const ptx::Instruction kReturn = [] {
    ptx::Instruction r;
    r.opcode = "ret";
    r.parts = {"ret"};
    return r;
  }();
  if (frame.stack_frame >= 0) {
    Instr entrance;
    entrance.execute = enter_function;
    entrance.set(EntryForm{frame.stack_frame});
    entrance.source = frame.function->body.empty() ? &kReturn : &frame.function->body.front();
    append(entrance);
  }
  for (const ptx::Instruction& source : frame.function->body) {
    frame.code_index.push_back(static_cast<int>(code.size()));
    Instr in;
    pushed_.clear();
    volatile_rows_.clear();
    decode(source, in);
    in.source = &source;
    if (source.guard >= 0) {
      in.guard = frame.rows.offset[static_cast<size_t>(source.guard)];
      in.guard_negated = source.guard_negated;
    }
    for (const Operand& operand : source.operands) {
      if (operand.kind == Operand::Kind::Label) in.target = operand.target;
    }
    const std::vector<uint32_t> operands = std::move(pushed_);
    pushed_.clear();
    for (int row : volatile_rows_) {
      Instr refresh;
      refresh.execute = refresh_special;
      refresh.set(SpecialRow{static_cast<size_t>(row)});
      refresh.source = &source;
      append(refresh);
    }
    pushed_ = operands;
    append(in);
    if (source.parts[0] == "call" && !site_calls_.empty()) {
      // Lanes that come back take the results of the function they were in; those that did not call pass them by.
      const auto append_step = [&](Execute execute, int call) {
        Instr step;
        step.execute = execute;
        step.set(ResultForm{call});
        step.source = &source;
        append(step);
      };
      append_step(pass_results, site_calls_.front());
      for (int call : site_calls_) {
        kernel_->calls[static_cast<size_t>(call)].return_pc = static_cast<int>(code.size());
        append_step(take_results, call);
      }
      for (int call : site_calls_) kernel_->calls[static_cast<size_t>(call)].next_pc = static_cast<int>(code.size());
    }
  }
  frame.code_index.push_back(static_cast<int>(code.size()));
  // A body that ends without ret or exit ends there all the same.
  Instr last;
  decode(kReturn, last);
  last.source = frame.function->body.empty() ? &kReturn : &frame.function->body.back();
  append(last);
  for (size_t i = static_cast<size_t>(frame.begin); i < code.size(); ++i) {
    if (code[i].target >= 0) code[i].target = frame.code_index[static_cast<size_t>(code[i].target)];
  }
}

void KernelBuilder::finish() {
  for (size_t i = 0; i < kernel_->code.size(); ++i)
    kernel_->code[i].reg = kernel_->operand_pool.data() + pool_index_[i];
  kernel_->branch_tables.resize(tables_.size());
  for (const PendingTable& pending : tables_) {
    for (int target : pending.targets) {
      kernel_->branch_tables[pending.table].push_back(pending.frame->code_index.at(static_cast<size_t>(target)));
    }
  }
  for (size_t i = 0; i < call_targets_.size(); ++i) {
    if (call_targets_[i] != nullptr) kernel_->calls[i].target = call_targets_[i]->begin;
  }
  describe_frames();
  kernel_->register_bytes = (next_row_ + 63) / 64 * 64;
  kernel_->row_lines.assign(kernel_->register_bytes / 64, 1);
  const auto row = [&](uint32_t offset, uint32_t bytes) {
    kernel_->row_lines[offset / 64] = static_cast<uint8_t>((bytes + 63) / 64);
  };
  for (const auto& frame : frames_) {
    for (size_t r = 0; r < frame->rows.offset.size(); ++r) {
      if (frame->rows.offset[r] != UINT32_MAX)
        row(frame->rows.offset[r], row_bytes(frame->function->registers[r].type));
    }
    for (const auto& [symbol, offset] : frame->symbol_rows) row(offset, symbol.first * kLanes);
  }
  for (const Kernel::ConstantRow& constant : kernel_->constants)
    row(constant.offset, std::max<uint32_t>(1, constant.bytes * kLanes));
  kernel_->stack_base = align_up(local_bytes_, 16);
  kernel_->local_bytes = kernel_->stack_base;
}

// Notes what of a function must outlive a call that may come back to it.
void KernelBuilder::describe_frames() {
  for (const auto& frame : frames_) {
    if (frame->stack_frame < 0) continue;
    Kernel::StackFrame& out = kernel_->frames[static_cast<size_t>(frame->stack_frame)];
    out.base_row = frame->base_row;
    out.bytes = frame->local_bytes;
    std::set<std::pair<uint32_t, uint32_t>> rows = {{frame->return_row, 4 * kLanes}, {frame->base_row, 8 * kLanes}};
    for (size_t r = 0; r < frame->rows.offset.size(); ++r) {
      if (frame->rows.offset[r] != UINT32_MAX)
        rows.insert({frame->rows.offset[r], row_bytes(frame->function->registers[r].type)});
    }
    for (const auto& [symbol, row] : frame->symbol_rows) {
      rows.insert({row, symbol.first * kLanes});
      out.symbols.push_back({row, symbol.first, symbol.second});
    }
    out.rows.assign(rows.begin(), rows.end());
    for (const auto& [row, bytes] : out.rows) out.saved_bytes += lane_bytes(bytes);
  }
}

std::shared_ptr<Kernel> KernelBuilder::build(const std::string& entry) {
  const ptx::Function* function = find(entry);
  if (function == nullptr || function->is_declaration || !function->is_entry) {
    throw ParseError({1, 1}, "the module has no kernel '" + entry + "'");
  }
  kernel_->name = entry;
  kernel_->module = module_;
  kernel_->function = function;

  collect(*function);
  std::vector<const ptx::Function*> order;
  for (const auto& frame : frames_) order.push_back(frame->function);
  collect_shared(order);
  int live = 0;
  for (const auto& frame : frames_) {
    frame_ = frame.get();
    lay_out(*frame_);
    live = std::max(live, frame_->rows.live_words);
  }
  kernel_->variable_bytes = next_row_;
  for (const auto& frame : frames_) generate(*frame);
  kernel_->entry_pc = frames_.back()->begin;
  finish();

  // A kernel gets what it was compiled for; else what it needs, at most what its block size leaves (a multiple of 8).
  const auto product = [](const int(&sizes)[3]) { return sizes[0] * sizes[1] * sizes[2]; };
  const int bound = product(function->reqntid[0] > 0 ? function->reqntid : function->maxntid);
  const int limit =
      bound == 0 ? 255
                 : std::min(255, 65536 / (((bound + 31) / 32 * 32) * std::max(1, function->minnctapersm)) / 8 * 8);
  const bool reconfigures = std::any_of(kernel_->code.begin(), kernel_->code.end(), [](const Instr& in) {
    return in.source != nullptr && in.source->parts[0] == "setmaxnreg";
  });
  const auto reconfigured = static_cast<int>(reconfigures ? launch_registers(*function) : 0);
  if (function->maxnreg > 0)
    kernel_->registers_per_thread = function->maxnreg;
  else if (reconfigured > 0)
    kernel_->registers_per_thread = std::min(255, reconfigured);
  else
    kernel_->registers_per_thread = std::min(limit, std::max(16, (live + 7) / 8 * 8));
  kernel_->uses = find_uses(kernel_->code);
  if (coverage_wanted()) kernel_->covered.resize(kernel_->code.size());
  return kernel_;
}

std::shared_ptr<Kernel> build_kernel(std::shared_ptr<const ptx::Module> module, const std::string& entry,
                                     const std::unordered_map<std::string, uint64_t>& symbols, int arch) {
  register_opcodes();
  return KernelBuilder(std::move(module), symbols, arch).build(entry);
}

}  // namespace sim
