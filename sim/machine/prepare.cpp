// From a parsed function to a Kernel: which functions it calls, where variables, parameters and registers live, and
// the decoded instructions.
#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <unordered_set>

#include "sim/isa/call.h"
#include "sim/isa/external.h"
#include "sim/machine/coverage.h"
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

// A type's place in a row that it does not fill is the low end; a predicate has no bytes of its own.
uint32_t step_of(Type type) { return type == Type::Pred ? 0 : row_bytes(type) / kLanes; }

constexpr uint64_t kFunctionWindow = 4ull << 56;  // beside those of sim/memory/memory.h

class Preparation final : public DecodeContext {
 public:
  Preparation(std::shared_ptr<const ptx::Module> module, const std::unordered_map<std::string, uint64_t>& symbols,
              int arch)
      : module_(std::move(module)), symbols_(symbols), arch_(arch), kernel_(std::make_shared<Kernel>()) {
    for (const ptx::Function& f : module_->functions) functions_[f.name] = &f;
  }

  std::shared_ptr<Kernel> build(const std::string& entry);

  void push(const Operand& operand, Type as, int64_t* addend) override;
  uint32_t offset_of(const Operand& operand, Type as) override;
  uint8_t pushed() const override { return static_cast<uint8_t>(pushed_.size()); }
  Type register_type(const Operand& operand) const override;
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
  bool on_stack(const Place& place) const { return frame_->stack_frame >= 0 && place.space == Space::Local; }
  void lay_out(Frame& frame);
  void generate(Frame& frame);
  void decode(const ptx::Instruction& source, Instr& out);
  void finish();
  uint32_t constant(uint8_t bytes, uint64_t bits, Special special);
  uint32_t immediate(const Operand& operand, Type as);
  Kernel::CallCopy value_place(const Operand& operand, Type as);
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

const ptx::Function* Preparation::find(const std::string& written) const {
  const auto alias = module_->aliases.find(written);
  const auto found = functions_.find(alias == module_->aliases.end() ? written : alias->second);
  return found == functions_.end() ? nullptr : found->second;
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

// Functions that something other than a call names: code that moves their address, initialisers.
const std::vector<const ptx::Function*>& Preparation::address_taken() {
  if (address_taken_known_) return address_taken_;
  address_taken_known_ = true;
  std::set<const ptx::Function*> seen;
  const auto take = [&](const std::string& name) {
    const ptx::Function* f = find(name);
    if (f != nullptr && !f->is_declaration && !f->is_entry && seen.insert(f).second) address_taken_.push_back(f);
  };
  const std::function<void(const Operand&)> visit = [&](const Operand& operand) {
    if (operand.kind == Operand::Kind::Symbol) take(operand.name);
    for (const Operand& element : operand.elements) visit(element);
  };
  for (const ptx::Variable& v : module_->variables) {
    for (const auto& r : v.relocations) take(r.symbol);
  }
  for (const ptx::Function& f : module_->functions) {
    for (const ptx::Instruction& in : f.body) {
      for (size_t i = 0; i < in.operands.size(); ++i) {
        if (in.parts[0] != "call" || i == 2) visit(in.operands[i]);
      }
    }
  }
  return address_taken_;
}

// The functions with a body that a call may reach.
std::vector<const ptx::Function*> Preparation::callees(const ptx::Function& function, const ptx::Instruction& in) {
  if (in.operands.size() < 2) return {};
  const Operand& callee = in.operands[1];
  if (callee.kind == Operand::Kind::Symbol) {
    const ptx::Function* target = find(callee.name);
    if (target == nullptr) throw ParseError(in.where, "call of '" + callee.name + "', which is not declared");
    if (target->is_entry) throw ParseError(in.where, "call of '" + callee.name + "', which is a kernel");
    if (target->is_declaration) return {};
    return {target};
  }
  if (in.operands.size() < 4)
    throw ParseError(in.where, "'" + in.opcode + "': an indirect call needs a list of targets or a prototype");
  const auto table = function.call_tables.find(in.operands[3].name);
  const bool known = table != function.call_tables.end();
  std::vector<const ptx::Function*> targets;
  if (known && !table->second.is_prototype) {
    for (const std::string& name : table->second.targets) {
      const ptx::Function* target = find(name);
      if (target != nullptr && !target->is_declaration && !target->is_entry) targets.push_back(target);
    }
    return targets;
  }
  const auto alike = [](const std::vector<ptx::Variable>& a, const std::vector<ptx::Variable>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const ptx::Variable& x, const ptx::Variable& y) { return x.bytes == y.bytes; });
  };
  for (const ptx::Function* target : address_taken()) {
    const bool fits = known
                          ? alike(target->params, table->second.params) && alike(target->results, table->second.results)
                          : target->params.size() == in.operands[2].elements.size() &&
                                target->results.size() == in.operands[0].elements.size();
    if (fits) targets.push_back(target);
  }
  return targets;
}

// The functions that the kernel can reach, and which of them can come back to themselves: Tarjan's strongly connected
// components, which end with callees before their callers.
void Preparation::collect(const ptx::Function& entry) {
  struct Visit {
    const ptx::Function* function;
    std::vector<const ptx::Function*> next;
    size_t done = 0;
  };
  struct Node {
    int index = -1, low = 0;
    bool open = false, calls_itself = false;
  };
  std::unordered_map<const ptx::Function*, Node> nodes;
  std::vector<const ptx::Function*> open;
  std::vector<Visit> path;
  int count = 0, components = 0;
  const auto begin = [&](const ptx::Function& f) {
    check_target(f);
    Visit visit{&f, {}, 0};
    for (const ptx::Instruction& in : f.body) {
      if (in.parts[0] != "call") continue;
      for (const ptx::Function* callee : callees(f, in)) visit.next.push_back(callee);
    }
    std::sort(visit.next.begin(), visit.next.end());
    visit.next.erase(std::unique(visit.next.begin(), visit.next.end()), visit.next.end());
    std::sort(visit.next.begin(), visit.next.end(), [](auto a, auto b) { return a->name < b->name; });
    Node& node = nodes[&f];
    node.index = node.low = count++;
    node.open = true;
    open.push_back(&f);
    path.push_back(std::move(visit));
  };
  begin(entry);
  while (!path.empty()) {
    Visit& visit = path.back();
    Node& node = nodes[visit.function];
    if (visit.done < visit.next.size()) {
      const ptx::Function* callee = visit.next[visit.done++];
      if (callee == visit.function) node.calls_itself = true;
      const auto known = nodes.find(callee);
      if (known == nodes.end())
        begin(*callee);
      else if (known->second.open)
        node.low = std::min(node.low, known->second.index);
      continue;
    }
    if (node.low == node.index) {
      const bool alone = open.back() == visit.function;
      for (const ptx::Function* member = nullptr; member != visit.function;) {
        member = open.back();
        open.pop_back();
        nodes[member].open = false;
        frames_.push_back(std::make_unique<Frame>());
        Frame& frame = *frames_.back();
        frame.function = member;
        frame.component = components;
        frame_of_[member] = &frame;
        const bool allocates = std::any_of(member->body.begin(), member->body.end(), [](const ptx::Instruction& in) {
          return in.parts[0] == "alloca" || in.parts[0] == "stacksave" || in.parts[0] == "stackrestore";
        });
        if (!member->is_entry && (!alone || node.calls_itself || allocates)) {
          frame.stack_frame = static_cast<int>(kernel_->frames.size());
          kernel_->frames.emplace_back().function = member->name;
        }
        if ((frame.stack_frame >= 0 || allocates) && kernel_->stack_row == UINT32_MAX) {
          kernel_->stack_row = next_row_;
          next_row_ += 8 * kLanes;
        }
      }
      ++components;
    }
    const int low = node.low;
    path.pop_back();
    if (!path.empty()) {
      Node& parent = nodes[path.back().function];
      parent.low = std::min(parent.low, low);
    }
  }
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
    uint32_t& end = frame.stack_frame >= 0 ? frame.local_bytes : local_bytes_;
    const uint64_t at = align_up(end, static_cast<uint64_t>(std::max(1, v.align)));
    if (at + v.bytes > (1u << 24)) throw ParseError({1, 1}, "local memory of '" + f.name + "' is over the limit");
    frame.places[v.name] = {true, Space::Local, at};
    end = static_cast<uint32_t>(at + v.bytes);
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
  if (!f.is_entry) next_row_ += 4 * kLanes;
  frame.base_row = next_row_;
  if (frame.stack_frame >= 0) next_row_ += 8 * kLanes;
  frame.rows = plan_rows(f, next_row_);
  next_row_ = frame.rows.end;
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
      const uint64_t function = at.found ? 0 : function_address(*module_, operand.name);
      if (!at.found && function == 0) throw Unsupported("'" + operand.name + "' has no address");
      const uint64_t address = (at.found ? at.address : function) + static_cast<uint64_t>(operand.addend);
      const uint8_t bytes = ptx::bytes_of(as) == 4 ? 4 : 8;
      if (!on_stack(at)) return constant(bytes, address, Special::None);
      const auto [row, is_new] = frame_->symbol_rows.try_emplace({bytes, address}, next_row_);
      if (is_new) next_row_ += bytes * kLanes;
      return row->second;
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
Kernel::CallCopy Preparation::value_place(const Operand& operand, Type as) {
  Kernel::CallCopy copy;
  if (operand.kind == Operand::Kind::Register) {
    copy.from_row = true;
    copy.from = frame_->rows.offset[static_cast<size_t>(operand.reg)];
    copy.from_step = step_of(frame_->function->registers[static_cast<size_t>(operand.reg)].type);
  } else if (operand.kind == Operand::Kind::Symbol) {
    const Place at = place(operand.name);
    if (!at.found || at.space != Space::Local) throw Unsupported("'" + operand.name + "' is not a .param variable");
    copy.from = static_cast<uint32_t>(at.address);
    if (on_stack(at)) copy.from_base = frame_->base_row;
  } else if (operand.kind == Operand::Kind::Immediate) {
    copy.from_row = true;
    copy.from = immediate(operand, as);
    copy.from_step = as == Type::Pred ? 0 : ptx::bytes_of(as) == 8 ? 8 : 4;
  } else {
    throw Unsupported("an argument or result must be a register, a number or a .param variable");
  }
  return copy;
}

// A Kernel::Call of the function, by the instruction; its index.
int Preparation::call_of(const ptx::Instruction& source, const ptx::Function& callee) {
  const Operand& results = source.operands.at(0);
  const Operand& arguments = source.operands.at(2);
  if (arguments.elements.size() != callee.params.size() || results.elements.size() != callee.results.size()) {
    throw Unsupported("'" + callee.name + "' takes " + std::to_string(callee.params.size()) + " arguments and gives " +
                      std::to_string(callee.results.size()) + " results");
  }
  const auto known = frame_of_.find(&callee);
  Frame* const target = known == frame_of_.end() ? nullptr : known->second;
  if (target == nullptr && !is_external_function(callee.name))
    throw Unsupported("function '" + callee.name + "' has no body");
  // Where the callee has a parameter or result of its own, as the place that a copy comes from.
  const auto formal = [&](const ptx::Variable& v) {
    Kernel::CallCopy copy;
    copy.from_row = v.space == Space::Reg;
    if (!copy.from_row) {
      copy.from = static_cast<uint32_t>(target->places.at(v.name).address);
      if (target->stack_frame >= 0) copy.from_base = target->base_row;
      return copy;
    }
    for (size_t r = 0; r < callee.registers.size(); ++r) {
      if (callee.registers[r].name != v.name) continue;
      copy.from = target->rows.offset[r];
      copy.from_step = step_of(callee.registers[r].type);
      return copy;
    }
    throw Unsupported("parameter '" + v.name + "' of '" + callee.name + "' has no register");
  };
  const auto copied = [](Kernel::CallCopy from, const Kernel::CallCopy& to, const ptx::Variable& v) {
    from.to_row = to.from_row;
    from.to = to.from;
    from.to_step = to.from_step;
    from.to_base = to.from_base;
    from.bytes = static_cast<uint32_t>(v.type == Type::Pred ? 1 : v.bytes);
    if ((from.from_row && from.to_row) && (from.from_step == 0) != (from.to_step == 0))
      throw Unsupported("'" + v.name + "' is a predicate on one side of the call only");
    return from;
  };
  Kernel::Call call;
  if (target == nullptr) call.external = callee.name;
  for (size_t i = 0; i < callee.params.size(); ++i) {
    const ptx::Variable& v = callee.params[i];
    const Kernel::CallCopy mine = value_place(arguments.elements[i], v.type);
    call.arguments.push_back(copied(mine, target == nullptr ? mine : formal(v), v));
  }
  for (size_t i = 0; i < callee.results.size(); ++i) {
    const ptx::Variable& v = callee.results[i];
    if (results.elements[i].kind == Operand::Kind::Sink) continue;
    if (results.elements[i].kind == Operand::Kind::Immediate) throw Unsupported("a result cannot be a number");
    const Kernel::CallCopy mine = value_place(results.elements[i], v.type);
    call.results.push_back(copied(target == nullptr ? mine : formal(v), mine, v));
  }
  if (target != nullptr) {
    call.return_row = target->return_row;
    call.frame = target->stack_frame;
    if (target->component == frame_->component) call.saved_frame = frame_->stack_frame;
  }
  kernel_->calls.push_back(std::move(call));
  call_targets_.push_back(target);
  const int index = static_cast<int>(kernel_->calls.size()) - 1;
  site_calls_.push_back(index);
  return index;
}

int Preparation::call(const ptx::Instruction& source) {
  site_calls_.clear();
  const Operand& callee = source.operands.at(1);
  if (callee.kind == Operand::Kind::Symbol) return call_of(source, *find(callee.name));
  std::unordered_map<uint64_t, int> site;
  for (const ptx::Function* target : callees(*frame_->function, source))
    site[function_address(*module_, target->name)] = call_of(source, *target);
  kernel_->call_sites.push_back(std::move(site));
  return static_cast<int>(kernel_->call_sites.size()) - 1;
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
      refresh.imm = row;
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

void Preparation::finish() {
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
  kernel_->stack_base = align_up(local_bytes_, 16);
  kernel_->local_bytes = kernel_->stack_base;
}

// What of a function must outlive a call that may come back to it.
void Preparation::describe_frames() {
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

std::shared_ptr<Kernel> Preparation::build(const std::string& entry) {
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
  if (coverage_wanted()) kernel_->covered.resize(kernel_->code.size());
  return kernel_;
}

}  // namespace

uint64_t function_address(const ptx::Module& module, const std::string& written) {
  const auto alias = module.aliases.find(written);
  const std::string& name = alias == module.aliases.end() ? written : alias->second;
  for (size_t i = 0; i < module.functions.size(); ++i) {
    if (module.functions[i].name == name && !module.functions[i].is_entry) return kFunctionWindow | 16 * (i + 1);
  }
  return 0;
}

void register_opcode(const char* first_part, Decode decode) { opcodes()[first_part].push_back(decode); }

namespace {

void register_once() {
  static const bool registered = (register_isa(), true);
  (void)registered;
}

}  // namespace

std::vector<std::string> registered_opcodes() {
  register_once();
  std::vector<std::string> names;
  for (const auto& [name, decoders] : opcodes()) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

std::shared_ptr<Kernel> prepare(std::shared_ptr<const ptx::Module> module, const std::string& entry,
                                const std::unordered_map<std::string, uint64_t>& symbols, int arch) {
  register_once();
  return Preparation(std::move(module), symbols, arch).build(entry);
}

}  // namespace sim
