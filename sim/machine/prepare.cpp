// From a parsed function to a Kernel: which functions it calls, where variables, parameters and registers live, and
// the decoded instructions.
#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <unordered_set>

#include "sim/isa/external.h"
#include "sim/machine/machine.h"
#include "sim/machine/rows.h"
#include "sim/machine/run.h"
#include "sim/machine/special.h"

namespace sim {
namespace {

using ptx::Operand;
using ptx::ParseError;
using ptx::Space;
using ptx::Type;

using Table = std::unordered_map<std::string, std::vector<Decode>>;
Table& opcodes() {
  static Table table;
  return table;
}

uint32_t align_up(uint64_t value, uint64_t alignment) {
  return static_cast<uint32_t>((value + alignment - 1) / alignment * alignment);
}

// Writes the row of a changing special register (%clock and the like); stands before each instruction that reads one.
Step refresh_special(Warp& warp, const Instr& in, uint32_t) {
  fill_row(warp, warp.cta->cluster->launch->kernel->constants[static_cast<size_t>(in.imm)]);
  return Step::Next;
}
Step take_results(Warp& warp, const Instr& in, uint32_t mask) {
  copy_call_values(warp, warp.cta->cluster->launch->kernel->calls[static_cast<size_t>(in.imm)].results, mask);
  return Step::Next;
}

// A type's place in a row that it does not fill is the low end.
uint32_t step_of(Type type) { return row_bytes(type) / kLanes; }

class Preparation final : public DecodeContext {
 public:
  Preparation(std::shared_ptr<const ptx::Module> module, const std::unordered_map<std::string, uint64_t>& symbols,
              int arch)
      : module_(std::move(module)), symbols_(symbols), arch_(arch), kernel_(std::make_shared<Kernel>()) {}

  std::shared_ptr<Kernel> build(const std::string& entry);

  void push(const Operand& operand, Type as, int64_t* addend) override;
  uint32_t offset_of(const Operand& operand, Type as) override;
  Type register_type(const Operand& operand) const override;
  const ptx::Function& function() const override { return *frame_->function; }
  const ptx::Module& module() const override { return *module_; }
  int arch() const override { return arch_; }
  Place place(const std::string& symbol) const override;
  int branch_table(const std::string& name) override;
  int call(const ptx::Instruction& source) override;
  uint32_t return_row() const override { return frame_->return_row; }

 private:
  // A function and what it was given.
  struct Frame {
    const ptx::Function* function = nullptr;
    RowPlan rows;
    uint32_t return_row = 0;
    std::unordered_map<std::string, Place> places;  // its parameters and variables
    int begin = 0;                                  // in Kernel::code
    std::vector<int> code_index;                    // of each instruction, and one past
  };

  void check_target(const ptx::Function& function) const;
  const ptx::Function* find(const std::string& name) const;
  void collect(const ptx::Function& function, std::vector<const ptx::Function*>& order, std::set<std::string>& open);
  void collect_shared(const std::vector<const ptx::Function*>& order);
  void lay_out(Frame& frame);
  void generate(Frame& frame);
  void decode(const ptx::Instruction& source, Instr& out);
  void finish();
  uint32_t constant(uint8_t bytes, uint64_t bits, Special special);
  uint32_t immediate(const Operand& operand, Type as);
  Kernel::CallCopy value_place(const Operand& operand, const Frame& frame, Type as) const;

  std::shared_ptr<const ptx::Module> module_;
  const std::unordered_map<std::string, uint64_t>& symbols_;
  int arch_;
  std::shared_ptr<Kernel> kernel_;
  std::vector<std::unique_ptr<Frame>> frames_;
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

const ptx::Function* Preparation::find(const std::string& written) const {
  const auto alias = module_->aliases.find(written);
  const std::string& name = alias == module_->aliases.end() ? written : alias->second;
  const ptx::Function* declaration = nullptr;
  for (const ptx::Function& f : module_->functions) {
    if (f.name != name) continue;
    if (!f.is_declaration) return &f;
    declaration = &f;
  }
  return declaration;
}

// Plain targets run on any later architecture, `a` ones on their own, `f` ones on their family (PTX ISA 11.1.2).
void Preparation::check_target(const ptx::Function& function) const {
  const std::string& target = module_->target;
  size_t digits = target.find('_');
  digits = digits == std::string::npos ? target.size() : digits + 1;
  size_t end = digits;
  int number = 0;
  while (end < target.size() && target[end] >= '0' && target[end] <= '9') number = number * 10 + (target[end++] - '0');
  const std::string suffix = target.substr(end);
  bool fits = end > digits;
  if (suffix.starts_with("a"))
    fits = fits && number == arch_;
  else if (suffix.starts_with("f"))
    fits = fits && number / 10 == arch_ / 10 && number <= arch_;
  else
    fits = fits && number <= arch_;
  if (!fits) {
    throw ParseError({1, 1}, "module target '" + target + "' does not run on sm_" + std::to_string(arch_) +
                                 " (kernel '" + function.name + "')");
  }
  static const std::unordered_set<std::string> kNeedSuffix = {"wgmma", "setmaxnreg", "tcgen05"};
  for (const ptx::Instruction& in : function.body) {
    if (suffix.empty() && kNeedSuffix.count(in.parts[0]) > 0) {
      throw ParseError(in.where, "'" + in.opcode + "' needs an architecture-specific target, not '" + target + "'");
    }
  }
}

// Callees first; a function that calls itself has no single frame.
void Preparation::collect(const ptx::Function& function, std::vector<const ptx::Function*>& order,
                          std::set<std::string>& open) {
  check_target(function);
  open.insert(function.name);
  for (const ptx::Instruction& in : function.body) {
    if (in.parts[0] != "call" || in.operands.size() < 2) continue;
    const Operand& callee = in.operands[1];
    if (callee.kind != Operand::Kind::Symbol)
      throw ParseError(in.where, "'" + in.opcode + "': indirect calls are not supported");
    const ptx::Function* target = find(callee.name);
    if (target == nullptr) throw ParseError(in.where, "call of '" + callee.name + "', which is not declared");
    if (target->is_declaration) continue;
    if (open.count(target->name) > 0)
      throw ParseError(in.where, "recursive call of '" + target->name + "' is not supported");
    if (std::find(order.begin(), order.end(), target) == order.end()) collect(*target, order, open);
  }
  open.erase(function.name);
  order.push_back(&function);
}

// Only the shared variables that the kernel names count, as in a linked program.
void Preparation::collect_shared(const std::vector<const ptx::Function*>& order) {
  std::unordered_set<std::string> used;
  const std::function<void(const Operand&)> visit = [&](const Operand& operand) {
    if (!operand.name.empty()) used.insert(operand.name);
    for (const Operand& element : operand.elements) visit(element);
  };
  for (const ptx::Function* f : order) {
    for (const ptx::Instruction& in : f->body) {
      for (const Operand& operand : in.operands) visit(operand);
    }
  }
  uint64_t end = 0;
  int dynamic_align = 1024;
  for (const ptx::Variable& v : module_->variables) {
    if (v.space != Space::Shared || used.count(v.name) == 0) continue;
    if (v.is_extern && v.bytes == 0) {
      dynamic_align = std::max(dynamic_align, v.align);
      continue;
    }
    end = align_up(end, static_cast<uint64_t>(v.align));
    shared_[v.name] = {true, Space::Shared, end};
    end += v.bytes;
  }
  for (const ptx::Function* f : order) {
    for (const ptx::Variable& v : f->locals) {
      if (v.space != Space::Shared) continue;
      end = align_up(end, static_cast<uint64_t>(v.align));
      shared_[f->name + '\n' + v.name] = {true, Space::Shared, end};
      end += v.bytes;
    }
  }
  if (end > (1u << 24))
    throw ParseError({1, 1}, "static shared memory of " + std::to_string(end) + " bytes is over the limit");
  kernel_->static_shared = static_cast<uint32_t>(end);
  kernel_->dynamic_shared = align_up(end, static_cast<uint64_t>(dynamic_align));
  for (const ptx::Variable& v : module_->variables) {
    if (v.space == Space::Shared && v.is_extern && v.bytes == 0)
      shared_[v.name] = {true, Space::Shared, kernel_->dynamic_shared};
  }
}

void Preparation::lay_out(Frame& frame) {
  const ptx::Function& f = *frame.function;
  const auto local = [&](const ptx::Variable& v) {
    const uint64_t at = align_up(local_bytes_, static_cast<uint64_t>(std::max(1, v.align)));
    if (at + v.bytes > (1u << 24)) throw ParseError({1, 1}, "local memory of '" + f.name + "' is over the limit");
    frame.places[v.name] = {true, Space::Local, at};
    local_bytes_ = static_cast<uint32_t>(at + v.bytes);
  };
  if (f.is_entry) {
    uint64_t end = 0;
    for (const ptx::Variable& v : f.params) {
      end = align_up(end, static_cast<uint64_t>(std::max(1, v.align)));
      frame.places[v.name] = {true, Space::Param, end};
      kernel_->param_offsets.push_back(static_cast<uint32_t>(end));
      kernel_->param_sizes.push_back(static_cast<uint32_t>(v.bytes));
      end += v.bytes;
    }
    kernel_->param_bytes = static_cast<uint32_t>(end);
  } else {
    for (const std::vector<ptx::Variable>* list : {&f.params, &f.results}) {
      for (const ptx::Variable& v : *list) {
        if (v.space != Space::Reg) local(v);
      }
    }
  }
  for (const ptx::Variable& v : f.locals) {
    if (v.space == Space::Shared)
      frame.places[v.name] = shared_.at(f.name + '\n' + v.name);
    else
      local(v);
  }
  frame.return_row = next_row_;
  frame.rows = plan_rows(f, next_row_ + (f.is_entry ? 0 : 128));
  next_row_ = frame.rows.end;
  // Registers that no instruction names still need a row when a parameter stands in one.
  for (size_t r = 0; r < f.registers.size(); ++r) {
    if (frame.rows.offset[r] != UINT32_MAX) continue;
    const bool parameter = std::any_of(f.params.begin(), f.params.end(), [&](const ptx::Variable& v) {
      return v.space == Space::Reg && v.name == f.registers[r].name;
    });
    if (!parameter) continue;
    frame.rows.offset[r] = next_row_;
    next_row_ += row_bytes(f.registers[r].type);
  }
}

uint32_t Preparation::constant(uint8_t bytes, uint64_t bits, Special special) {
  const auto key = std::make_tuple(bytes, bits, static_cast<int>(special));
  const auto found = constant_rows_.find(key);
  if (found != constant_rows_.end()) return found->second;
  const uint32_t offset = next_row_;
  next_row_ += bytes == 0 ? 64 : static_cast<uint32_t>(bytes) * kLanes;
  constant_rows_[key] = offset;
  kernel_->constants.push_back({offset, bytes, bits, static_cast<int>(special)});
  return offset;
}

uint32_t Preparation::immediate(const Operand& operand, Type as) {
  uint64_t bits = operand.bits;
  const auto from_bits = [](uint64_t b) {
    double d;
    std::memcpy(&d, &b, 8);
    return d;
  };
  if (operand.is_float) {
    // Decimal literals are doubles; 0f ones are floats whatever they are used for.
    if (as == Type::F64 && !operand.is_double) {
      float f;
      const uint32_t low = static_cast<uint32_t>(bits);
      std::memcpy(&f, &low, 4);
      const double d = f;
      std::memcpy(&bits, &d, 8);
    } else if (as != Type::F64 && as != Type::B64 && as != Type::U64 && as != Type::S64 && operand.is_double) {
      const float f = static_cast<float>(from_bits(bits));
      uint32_t low;
      std::memcpy(&low, &f, 4);
      bits = low;
    }
  }
  if (as == Type::Pred) return constant(0, bits != 0, Special::None);
  const int bytes = ptx::bytes_of(as);
  return constant(bytes == 16 ? 16 : bytes == 8 ? 8 : 4, bytes >= 8 ? bits : bits & 0xffffffffu, Special::None);
}

DecodeContext::Place Preparation::place(const std::string& symbol) const {
  if (frame_ != nullptr) {
    const auto own = frame_->places.find(symbol);
    if (own != frame_->places.end()) return own->second;
  }
  const auto shared = shared_.find(symbol);
  if (shared != shared_.end()) return shared->second;
  const auto global = symbols_.find(symbol);
  if (global == symbols_.end()) return {};
  for (const ptx::Variable& v : module_->variables) {
    if (v.name == symbol) return {true, v.space, global->second};
  }
  return {true, Space::Global, global->second};
}

uint32_t Preparation::offset_of(const Operand& operand, Type as) {
  switch (operand.kind) {
    case Operand::Kind::Sink:
      return kNoReg;
    case Operand::Kind::Register:
      return frame_->rows.offset[static_cast<size_t>(operand.reg)];
    case Operand::Kind::Immediate:
      return immediate(operand, as);
    case Operand::Kind::Special: {
      const Special special = special_from_name(operand.name);
      if (special == Special::None) throw Unsupported("special register '" + operand.name + "' is not supported");
      const bool wide = is_wide(special) || ptx::bytes_of(as) == 8;
      const uint8_t bytes = as == Type::Pred ? 0 : wide ? 8 : 4;
      const uint32_t offset = constant(bytes, 0, special);
      if (is_volatile(special)) {
        for (size_t i = 0; i < kernel_->constants.size(); ++i) {
          if (kernel_->constants[i].offset == offset) volatile_rows_.push_back(static_cast<int>(i));
        }
      }
      return offset;
    }
    case Operand::Kind::Symbol: {
      const Place at = place(operand.name);
      if (!at.found) throw Unsupported("'" + operand.name + "' has no address");
      const uint64_t address = at.address + static_cast<uint64_t>(operand.addend);
      return constant(ptx::bytes_of(as) == 4 ? 4 : 8, address, Special::None);
    }
    default:
      throw Unsupported("an operand of this kind is not allowed here");
  }
}

void Preparation::push(const Operand& operand, Type as, int64_t* addend) {
  if (operand.kind == Operand::Kind::Vector) {
    for (const Operand& element : operand.elements) pushed_.push_back(offset_of(element, as));
    return;
  }
  if (operand.kind == Operand::Kind::Address) {
    if (operand.elements.empty()) throw Unsupported("an address is empty");
    Operand base = operand.elements[0];
    if (addend != nullptr)
      *addend = operand.addend;
    else if (base.kind == Operand::Kind::Register && operand.addend != 0)
      throw Unsupported("an offset is not allowed in this address");
    else if (base.kind == Operand::Kind::Immediate)
      base.bits += static_cast<uint64_t>(operand.addend);
    else
      base.addend += operand.addend;
    pushed_.push_back(offset_of(base, Type::U64));
    return;
  }
  pushed_.push_back(offset_of(operand, as));
}

Type Preparation::register_type(const Operand& operand) const {
  switch (operand.kind) {
    case Operand::Kind::Register:
      return frame_->function->registers[static_cast<size_t>(operand.reg)].type;
    case Operand::Kind::Vector:
      for (const Operand& element : operand.elements) {
        if (element.kind == Operand::Kind::Register) return register_type(element);
      }
      return Type::None;
    case Operand::Kind::Address:
      return operand.elements[0].kind == Operand::Kind::Register ? register_type(operand.elements[0]) : Type::U64;
    default:
      return Type::None;
  }
}

int Preparation::branch_table(const std::string& name) {
  const auto found = frame_->function->branch_targets.find(name);
  if (found == frame_->function->branch_targets.end()) return -1;
  tables_.push_back({tables_.size(), frame_, found->second});
  return static_cast<int>(tables_.size()) - 1;
}

// Where the value of an argument or result stands: a register, a number, or a .param variable in local memory.
Kernel::CallCopy Preparation::value_place(const Operand& operand, const Frame& frame, Type as) const {
  Kernel::CallCopy copy;
  if (operand.kind == Operand::Kind::Register) {
    copy.from_row = true;
    copy.from = frame.rows.offset[static_cast<size_t>(operand.reg)];
    copy.from_step = step_of(frame.function->registers[static_cast<size_t>(operand.reg)].type);
  } else if (operand.kind == Operand::Kind::Symbol) {
    const Place at = place(operand.name);
    if (!at.found || at.space != Space::Local) throw Unsupported("'" + operand.name + "' is not a .param variable");
    copy.from = static_cast<uint32_t>(at.address);
  } else {
    copy.from_row = true;
    copy.from = const_cast<Preparation*>(this)->immediate(operand, as);
    copy.from_step = ptx::bytes_of(as) == 8 ? 8 : 4;
  }
  return copy;
}

int Preparation::call(const ptx::Instruction& source) {
  const Operand& results = source.operands[0];
  const Operand& arguments = source.operands.size() > 2 ? source.operands[2] : source.operands[0];
  const ptx::Function* callee = find(source.operands[1].name);
  Kernel::Call call;
  const size_t given = source.operands.size() > 2 ? arguments.elements.size() : 0;
  if (given != callee->params.size() || results.elements.size() != callee->results.size()) {
    throw Unsupported("'" + callee->name + "' takes " + std::to_string(callee->params.size()) +
                      " arguments and gives " + std::to_string(callee->results.size()) + " results");
  }
  const Frame* target = nullptr;
  for (const auto& frame : frames_) {
    if (frame->function == callee) target = frame.get();
  }
  if (target == nullptr) {
    if (!is_external_function(callee->name)) throw Unsupported("function '" + callee->name + "' has no body");
    call.external = callee->name;
    for (size_t i = 0; i < given; ++i) {
      Kernel::CallCopy copy = value_place(arguments.elements[i], *frame_, callee->params[i].type);
      copy.bytes = static_cast<uint32_t>(callee->params[i].bytes);
      call.arguments.push_back(copy);
    }
    for (const Operand& result : results.elements) {
      Kernel::CallCopy copy = value_place(result, *frame_, Type::U32);
      copy.bytes = 4;
      call.results.push_back(copy);
    }
  } else {
    const auto formal = [&](const ptx::Variable& v, uint32_t* at, uint32_t* step) {
      if (v.space != Space::Reg) {
        *at = static_cast<uint32_t>(target->places.at(v.name).address);
        return false;
      }
      for (size_t r = 0; r < callee->registers.size(); ++r) {
        if (callee->registers[r].name != v.name) continue;
        *at = target->rows.offset[r];
        *step = step_of(callee->registers[r].type);
        return true;
      }
      throw Unsupported("parameter '" + v.name + "' of '" + callee->name + "' has no register");
    };
    for (size_t i = 0; i < given; ++i) {
      Kernel::CallCopy copy = value_place(arguments.elements[i], *frame_, callee->params[i].type);
      copy.to_row = formal(callee->params[i], &copy.to, &copy.to_step);
      copy.bytes = static_cast<uint32_t>(callee->params[i].bytes);
      call.arguments.push_back(copy);
    }
    for (size_t i = 0; i < results.elements.size(); ++i) {
      if (results.elements[i].kind == Operand::Kind::Sink) continue;
      const Kernel::CallCopy mine = value_place(results.elements[i], *frame_, callee->results[i].type);
      Kernel::CallCopy copy;
      copy.from_row = formal(callee->results[i], &copy.from, &copy.from_step);
      copy.to_row = mine.from_row;
      copy.to = mine.from;
      copy.to_step = mine.from_step;
      copy.bytes = static_cast<uint32_t>(callee->results[i].bytes);
      call.results.push_back(copy);
    }
    call.return_row = target->return_row;
  }
  kernel_->calls.push_back(std::move(call));
  return static_cast<int>(kernel_->calls.size()) - 1;
}

void Preparation::decode(const ptx::Instruction& source, Instr& out) {
  const auto family = opcodes().find(source.parts[0]);
  if (family == opcodes().end()) throw ParseError(source.where, "instruction '" + source.opcode + "' is not supported");
  for (Decode decode : family->second) {
    bool known = false;
    try {
      known = decode(source, *this, out);
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

void Preparation::generate(Frame& frame) {
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
      refresh.imm = row;
      refresh.source = &source;
      append(refresh);
    }
    pushed_ = operands;
    append(in);
    if (source.parts[0] == "call") {
      Instr results = in;
      results.execute = take_results;
      results.target = -1;
      append(results);
    }
  }
  frame.code_index.push_back(static_cast<int>(code.size()));
  // A body that ends without ret or exit ends there all the same.
  static const ptx::Instruction kReturn = [] {
    ptx::Instruction r;
    r.opcode = "ret";
    r.parts = {"ret"};
    return r;
  }();
  Instr last;
  decode(kReturn, last);
  last.source = frame.function->body.empty() ? &kReturn : &frame.function->body.back();
  append(last);
  for (size_t i = static_cast<size_t>(frame.begin); i < code.size(); ++i) {
    if (code[i].target >= 0) code[i].target = frame.code_index[static_cast<size_t>(code[i].target)];
  }
}

void Preparation::finish() {
  for (size_t i = 0; i < kernel_->code.size(); ++i)
    kernel_->code[i].reg = kernel_->operand_pool.data() + pool_index_[i];
  kernel_->branch_tables.resize(tables_.size());
  for (const PendingTable& pending : tables_) {
    for (int target : pending.targets) {
      kernel_->branch_tables[pending.table].push_back(pending.frame->code_index.at(static_cast<size_t>(target)));
    }
  }
  for (Instr& in : kernel_->code) {
    if (in.source == nullptr || in.source->parts[0] != "call" || in.execute == take_results) continue;
    const ptx::Function* callee = find(in.source->operands[1].name);
    for (const auto& frame : frames_) {
      if (frame->function == callee) in.target = frame->begin;
    }
  }
  kernel_->register_bytes = (next_row_ + 63) / 64 * 64;
  kernel_->local_bytes = align_up(local_bytes_, 16);
}

std::shared_ptr<Kernel> Preparation::build(const std::string& entry) {
  const ptx::Function* function = find(entry);
  if (function == nullptr || function->is_declaration || !function->is_entry) {
    throw ParseError({1, 1}, "the module has no kernel '" + entry + "'");
  }
  kernel_->name = entry;
  kernel_->module = module_;
  kernel_->function = function;

  std::vector<const ptx::Function*> order;
  std::set<std::string> open;
  collect(*function, order, open);
  collect_shared(order);
  int live = 0;
  for (const ptx::Function* f : order) {
    frames_.push_back(std::make_unique<Frame>());
    frames_.back()->function = f;
    frame_ = frames_.back().get();
    lay_out(*frame_);
    live = std::max(live, frame_->rows.live_words);
  }
  kernel_->variable_bytes = next_row_;
  for (const auto& frame : frames_) generate(*frame);
  kernel_->entry_pc = frames_.back()->begin;
  finish();

  // A kernel gets what it was compiled for; else what it needs, at most what its block size leaves (a multiple of 8).
  const int threads =
      std::max(1, function->reqntid[0]) * std::max(1, function->reqntid[1]) * std::max(1, function->reqntid[2]);
  const int most =
      std::max(1, function->maxntid[0]) * std::max(1, function->maxntid[1]) * std::max(1, function->maxntid[2]);
  const int bound = function->reqntid[0] > 0 ? threads : function->maxntid[0] > 0 ? most : 0;
  const int limit =
      bound == 0 ? 255
                 : std::min(255, 65536 / (((bound + 31) / 32 * 32) * std::max(1, function->minnctapersm)) / 8 * 8);
  const bool reconfigures = std::any_of(kernel_->code.begin(), kernel_->code.end(), [](const Instr& in) {
    return in.source != nullptr && in.source->parts[0] == "setmaxnreg";
  });
  if (function->maxnreg > 0)
    kernel_->registers_per_thread = function->maxnreg;
  else if (reconfigures)
    kernel_->registers_per_thread = limit;
  else
    kernel_->registers_per_thread = std::min(limit, std::max(16, (live + 7) / 8 * 8));
  return kernel_;
}

}  // namespace

void register_opcode(const char* first_part, Decode decode) { opcodes()[first_part].push_back(decode); }

std::shared_ptr<Kernel> prepare(std::shared_ptr<const ptx::Module> module, const std::string& entry,
                                const std::unordered_map<std::string, uint64_t>& symbols, int arch) {
  static const bool registered = (register_isa(), true);
  (void)registered;
  return Preparation(std::move(module), symbols, arch).build(entry);
}

}  // namespace sim
