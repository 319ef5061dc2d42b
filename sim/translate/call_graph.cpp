// SPDX-License-Identifier: Apache-2.0
// Which functions a kernel can reach, and which of them can come back to themselves.
#include <algorithm>
#include <functional>
#include <set>
#include <unordered_set>

#include "sim/translate/kernel_builder.h"

namespace sim {

using ptx::Operand;
using ptx::ParseError;

const ptx::Function* KernelBuilder::find(const std::string& written) const {
  const auto alias = module_->aliases.find(written);
  const auto found = functions_.find(alias == module_->aliases.end() ? written : alias->second);
  return found == functions_.end() ? nullptr : found->second;
}

// Plain targets run on any later architecture, `a` ones on their own, `f` ones on their family (PTX ISA 11.1.2).
void KernelBuilder::check_target(const ptx::Function& function) const {
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
const std::vector<const ptx::Function*>& KernelBuilder::address_taken() {
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
std::vector<const ptx::Function*> KernelBuilder::callees(const ptx::Function& function, const ptx::Instruction& in) {
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
void KernelBuilder::collect(const ptx::Function& entry) {
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

}  // namespace sim
