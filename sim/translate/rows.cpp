// SPDX-License-Identifier: Apache-2.0
// Liveness of PTX registers and the sharing of register-file rows that follows from it. A warp of a large kernel
// would otherwise touch hundreds of kilobytes. A register that is taken for live too long only costs space, so
// everything that is not known to be a pure destination counts as a use.
#include "sim/translate/rows.h"

#include <algorithm>
#include <bit>
#include <map>
#include <queue>
#include <string_view>
#include <unordered_set>

namespace sim {
namespace {

using ptx::Operand;

bool writes_first_operand(const ptx::Instruction& in) {
  static const std::unordered_set<std::string_view> kWriters = {
      "abs",   "activemask", "add",      "addc",  "and",      "atom", "bfe",          "bfi",        "bfind",
      "bmsk",  "brev",       "clz",      "cnot",  "copysign", "cos",  "createpolicy", "cvt",        "cvta",
      "div",   "dp2a",       "dp4a",     "elect", "ex2",      "fma",  "fns",          "getctarank", "isspacep",
      "ld",    "ldmatrix",   "ldu",      "lg2",   "lop3",     "mad",  "mad24",        "madc",       "mapa",
      "match", "max",        "mbarrier", "min",   "mma",      "mov",  "movmatrix",    "mul",        "mul24",
      "neg",   "not",        "or",       "popc",  "prmt",     "rcp",  "redux",        "rem",        "rsqrt",
      "sad",   "selp",       "set",      "setp",  "shf",      "shfl", "shl",          "shr",        "sin",
      "slct",  "sqrt",       "sub",      "subc",  "szext",    "tanh", "testp",        "vabsdiff2",  "vabsdiff4",
      "vote",  "wmma",       "xor"};
  return !in.parts.empty() && kWriters.count(in.parts[0]) > 0;
}

// Asynchronous instructions write or read registers after they were issued.
bool keeps_registers(const ptx::Instruction& in) {
  return !in.parts.empty() && (in.parts[0] == "wgmma" || in.parts[0] == "tcgen05");
}

template <class Visit>
void each_register(const Operand& operand, Visit visit) {
  if (operand.kind == Operand::Kind::Register) visit(operand.reg);
  for (const Operand& element : operand.elements) each_register(element, visit);
}

struct Effects {
  std::vector<int> uses, defs;
};

Effects effects_of(const ptx::Instruction& in) {
  Effects e;
  const size_t written = writes_first_operand(in) ? (in.dual_destination ? 2 : 1) : 0;
  for (size_t i = 0; i < in.operands.size(); ++i) {
    const Operand& operand = in.operands[i];
    const bool destination =
        i < written && (operand.kind == Operand::Kind::Register || operand.kind == Operand::Kind::Vector);
    each_register(operand, [&](int r) { (destination ? e.defs : e.uses).push_back(r); });
  }
  if (in.guard >= 0) e.uses.push_back(in.guard);
  return e;
}

class Bits {
 public:
  explicit Bits(size_t n) : words_((n + 63) / 64) {}
  void set(size_t i) { words_[i / 64] |= 1ull << (i % 64); }
  void clear(size_t i) { words_[i / 64] &= ~(1ull << (i % 64)); }
  bool test(size_t i) const { return words_[i / 64] >> (i % 64) & 1; }
  // Adds the members of `other`, and says whether that changed anything.
  bool add(const Bits& other) {
    uint64_t changed = 0;
    for (size_t i = 0; i < words_.size(); ++i) {
      changed |= other.words_[i] & ~words_[i];
      words_[i] |= other.words_[i];
    }
    return changed != 0;
  }
  void add_without(const Bits& other, const Bits& removed) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i] & ~removed.words_[i];
  }
  template <class Visit>
  void each(Visit visit) const {
    for (size_t i = 0; i < words_.size(); ++i) {
      for (uint64_t w = words_[i]; w != 0; w &= w - 1) visit(static_cast<int>(i * 64 + std::countr_zero(w)));
    }
  }

 private:
  std::vector<uint64_t> words_;
};

struct Block {
  int begin = 0, end = 0;
  std::vector<int> next;
  Bits gen, kill, in, out;
  explicit Block(size_t registers) : gen(registers), kill(registers), in(registers), out(registers) {}
};

std::vector<int> targets_of(const ptx::Function& function, const ptx::Instruction& in) {
  std::vector<int> targets;
  for (const Operand& operand : in.operands) {
    if (operand.kind == Operand::Kind::Label) targets.push_back(operand.target);
  }
  if (!in.parts.empty() && in.parts[0] == "brx") {
    for (const Operand& operand : in.operands) {
      const auto table = function.branch_targets.find(operand.name);
      if (table != function.branch_targets.end()) {
        targets.insert(targets.end(), table->second.begin(), table->second.end());
      }
    }
  }
  return targets;
}

bool ends_block(const ptx::Instruction& in) {
  static const std::unordered_set<std::string_view> kEnders = {"bra", "brx", "ret", "exit", "trap"};
  return !in.parts.empty() && kEnders.count(in.parts[0]) > 0;
}

std::vector<Block> blocks_of(const ptx::Function& function, const std::vector<Effects>& effects, size_t registers) {
  const int n = static_cast<int>(function.body.size());
  std::vector<char> starts(n + 1, 0);
  starts[0] = 1;
  for (int i = 0; i < n; ++i) {
    const ptx::Instruction& in = function.body[i];
    if (ends_block(in)) starts[i + 1] = 1;
    for (int t : targets_of(function, in)) {
      if (t >= 0 && t <= n) starts[t] = 1;
    }
  }
  std::vector<Block> blocks;
  std::vector<int> block_at(n + 1, -1);
  for (int i = 0; i < n;) {
    Block block(registers);
    block.begin = i;
    do ++i;
    while (i < n && !starts[i]);
    block.end = i;
    block_at[block.begin] = static_cast<int>(blocks.size());
    blocks.push_back(std::move(block));
  }
  for (Block& block : blocks) {
    const ptx::Instruction& last = function.body[block.end - 1];
    for (int t : targets_of(function, last)) {
      if (t >= 0 && t < n) block.next.push_back(block_at[t]);
    }
    const bool falls_through = !ends_block(last) || last.guard >= 0;
    if (falls_through && block.end < n) block.next.push_back(block_at[block.end]);
    for (int i = block.end - 1; i >= block.begin; --i) {
      if (function.body[i].guard < 0) {
        for (int r : effects[i].defs) {
          block.kill.set(r);
          block.gen.clear(r);
        }
      }
      for (int r : effects[i].uses) {
        block.gen.set(r);
        block.kill.clear(r);
      }
    }
  }
  return blocks;
}

}  // namespace

uint32_t row_bytes(ptx::Type type) {
  if (type == ptx::Type::Pred) return 64;
  const int bytes = ptx::bytes_of(type);
  return bytes == 16 ? 512 : bytes == 8 ? 256 : 128;
}

RowPlan plan_rows(const ptx::Function& function, uint32_t begin) {
  const int n = static_cast<int>(function.body.size());
  RowPlan plan;
  plan.offset.assign(function.registers.size(), UINT32_MAX);
  plan.end = begin;

  // From here on only the registers that are used count, under numbers of their own: a function may declare a million.
  std::vector<int> number(function.registers.size(), -1), used;
  const auto number_of = [&](int r) {
    if (number[r] < 0) {
      number[r] = static_cast<int>(used.size());
      used.push_back(r);
    }
    return number[r];
  };
  std::vector<Effects> effects;
  effects.reserve(n);
  for (const ptx::Instruction& in : function.body) {
    effects.push_back(effects_of(in));
    for (std::vector<int>* list : {&effects.back().uses, &effects.back().defs}) {
      for (int& r : *list) r = number_of(r);
    }
  }
  // Callers write parameters and read results of the .reg space, which no instruction of the function shows.
  std::vector<int> formal;
  for (const std::vector<ptx::Variable>* list : {&function.params, &function.results}) {
    for (const ptx::Variable& v : *list) {
      if (v.space != ptx::Space::Reg) continue;
      const auto found = std::find_if(function.registers.begin(), function.registers.end(),
                                      [&](const ptx::Register& r) { return r.name == v.name; });
      if (found != function.registers.end())
        formal.push_back(number_of(static_cast<int>(found - function.registers.begin())));
    }
  }
  const size_t registers = used.size();
  const auto type_of = [&](int r) { return function.registers[used[r]].type; };
  std::vector<Block> blocks = blocks_of(function, effects, registers);

  for (bool changed = true; changed;) {
    changed = false;
    for (size_t b = blocks.size(); b-- > 0;) {
      Block& block = blocks[b];
      for (int successor : block.next) block.out.add(blocks[successor].in);
      Bits in = block.gen;
      in.add_without(block.out, block.kill);
      changed |= block.in.add(in);
    }
  }

  struct Interval {
    int first = INT32_MAX, last = -1;
    bool kept = false;
  };
  std::vector<Interval> intervals(registers);
  const auto cover = [&](int r, int at) {
    intervals[r].first = std::min(intervals[r].first, at);
    intervals[r].last = std::max(intervals[r].last, at);
  };
  for (const Block& block : blocks) {
    block.in.each([&](int r) { cover(r, block.begin); });
    block.out.each([&](int r) { cover(r, block.end - 1); });
    for (int i = block.begin; i < block.end; ++i) {
      const bool kept = keeps_registers(function.body[i]);
      for (const std::vector<int>* list : {&effects[i].uses, &effects[i].defs}) {
        for (int r : *list) {
          cover(r, i);
          intervals[r].kept |= kept;
        }
      }
    }
  }

  for (int r : formal) {
    cover(r, 0);
    cover(r, std::max(0, n - 1));
    intervals[r].kept = true;
  }

  // Counts what is live at once, from which the registers that a thread needs are estimated.
  std::vector<int> words(n + 2, 0);
  std::vector<int> order;
  for (size_t r = 0; r < registers; ++r) {
    if (intervals[r].last < 0) continue;
    order.push_back(static_cast<int>(r));
    if (type_of(static_cast<int>(r)) == ptx::Type::Pred) continue;
    const int size = std::max(1, ptx::bytes_of(type_of(static_cast<int>(r))) / 4);
    words[intervals[r].first] += size;
    words[intervals[r].last + 1] -= size;
  }
  for (int i = 0, live = 0; i <= n; ++i) plan.live_words = std::max(plan.live_words, live += words[i]);

  // An operand's row is never given to a destination of the same instruction, so that handlers may write one
  // destination before they have read every source.
  std::sort(order.begin(), order.end(), [&](int a, int b) { return intervals[a].first < intervals[b].first; });
  using Ending = std::pair<int, int>;  // where the last use of a register is, and the register
  std::priority_queue<Ending, std::vector<Ending>, std::greater<>> active;
  std::map<uint32_t, std::vector<uint32_t>> free_rows;
  for (int r : order) {
    const uint32_t size = row_bytes(type_of(r));
    if (intervals[r].kept) {
      plan.offset[used[r]] = plan.end;
      plan.end += size;
      continue;
    }
    while (!active.empty() && active.top().first < intervals[r].first) {
      const int done = active.top().second;
      free_rows[row_bytes(type_of(done))].push_back(plan.offset[used[done]]);
      active.pop();
    }
    std::vector<uint32_t>& rows = free_rows[size];
    if (!rows.empty()) {
      plan.offset[used[r]] = rows.back();
      rows.pop_back();
    } else {
      plan.offset[used[r]] = plan.end;
      plan.end += size;
    }
    active.emplace(intervals[r].last, r);
  }
  return plan;
}

}  // namespace sim
