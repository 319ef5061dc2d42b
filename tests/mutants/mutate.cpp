// SPDX-License-Identifier: Apache-2.0
// The mutation operators, and where each statement of the PTX came from.
#include "mutate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <optional>
#include <set>
#include <sstream>
#include <tuple>

namespace moxie::mutants {
namespace {

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\n"), last = text.find_last_not_of(" \t\n");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

// ---- where a line of PTX came from ---------------------------------------------------------------

// The .loc directives (PTX ISA 11.5.4): each names a place and, for inlined code, the place of the call.
class Origins {
  using Place = std::tuple<int, int, int>;  // file, line, column
  using Chain = std::vector<Place>;         // and the calls that it is inlined by, the innermost first

 public:
  Origins(const std::string& ptx, const std::map<std::string, std::string>& headers) {
    for (const auto& [name, text] : headers) {
      std::istringstream lines(text);
      auto& into = sources_[name];
      for (std::string line; std::getline(lines, line);) into.push_back(trimmed(line));
    }
    // The table of files stands at the end of the text.
    std::istringstream twice(ptx);
    for (std::string line; std::getline(twice, line);) {
      int number = 0;
      char name[1024];
      if (std::sscanf(line.c_str(), " .file %d \"%1023[^\"]\"", &number, name) == 2) files_[number] = name;
    }
    std::istringstream lines(ptx);
    std::map<Place, Chain> at_place;                            // of the places seen so far, the last of each
    std::map<std::pair<std::string, Place>, Chain> callers_of;  // of a function that is inlined at a place
    Chain now;
    for (std::string line; std::getline(lines, line);) {
      int file, row, column;
      if (std::sscanf(line.c_str(), " .loc %d %d %d", &file, &row, &column) == 3) {
        const Place place{file, row, column};
        Chain chain = {place};
        const size_t at = line.find("inlined_at");
        if (at != std::string::npos &&
            std::sscanf(line.c_str() + at, "inlined_at %d %d %d", &file, &row, &column) == 3) {
          // The compiler names all callers, the outermost first, only where an inlined call begins. Later the call's
          // place alone says too little: two instances of a template have the same places, but the functions inlined
          // in them have names of their own.
          const Place call{file, row, column};
          char name[128] = "";
          if (const size_t label = line.find("function_name"); label != std::string::npos)
            std::sscanf(line.c_str() + label, "function_name %127[^,]", name);
          Chain& callers = callers_of[{name, call}];
          if (!now.empty() && now.front() == call) {
            callers = now;
          } else if (callers.empty()) {
            const auto last = at_place.find(call);
            callers = last == at_place.end() ? Chain{call} : last->second;
          }
          chain.insert(chain.end(), callers.begin(), callers.end());
        }
        now = at_place[place] = chain;
      }
      of_line_.push_back(now);
    }
  }

  std::vector<std::string> of(int line) const {
    std::vector<std::string> texts;
    for (const auto& [file, row, column] : of_line_.at(size_t(line - 1))) {
      const auto path = files_.find(file);
      if (path == files_.end()) continue;
      for (const auto& [name, lines] : sources_) {
        const std::string& full = path->second;
        if (full.size() < name.size() || full.compare(full.size() - name.size(), name.size(), name) != 0) continue;
        const std::string text = row >= 1 && size_t(row) <= lines.size() ? lines[size_t(row - 1)] : "";
        texts.push_back(fmt::format("{}:{}: {}", name.substr(name.rfind('/') + 1), row, text));
      }
    }
    return texts;
  }

 private:
  std::map<std::string, std::vector<std::string>> sources_;
  std::map<int, std::string> files_;
  std::vector<Chain> of_line_;
};

// ---- a statement in the text ---------------------------------------------------------------------

struct Statement {
  std::string guard;  // "@%p1 " or nothing
  std::string opcode;
  std::vector<std::string> operands;
  size_t begin = 0, end = 0;  // the semicolon included

  std::string text() const { return with(opcode, operands); }
  std::string with(const std::string& op, const std::vector<std::string>& list) const {
    return fmt::format("{}{}{}{};", guard, op, list.empty() ? "" : " ", fmt::join(list, ", "));
  }
  std::string with_operand(size_t index, const std::string& value) const {
    auto list = operands;
    list.at(index) = value;
    return with(opcode, list);
  }
  std::string with_opcode(const std::string& op) const { return with(op, operands); }
  // Operand `index` replaced by the result of `compute`, which names the operand {0} and the result `mutant`.
  std::string computed(size_t index, const char* type, const std::string& compute) const {
    return fmt::format("{{ .reg .{} mutant; {} {} }}", type, fmt::format(fmt::runtime(compute), operands.at(index)),
                       with_operand(index, "mutant"));
  }
};

Statement statement_at(const std::string& ptx, const std::vector<size_t>& line_starts,
                       const sim::ptx::Location& where) {
  Statement s;
  size_t at = line_starts.at(size_t(where.line - 1)) + size_t(std::max(where.column - 1, 0));
  s.begin = at;
  while (s.begin > 0 && !std::strchr(";{}:\n", ptx[s.begin - 1])) --s.begin;
  while (std::isspace(static_cast<unsigned char>(ptx[s.begin]))) ++s.begin;
  s.end = ptx.find(';', at) + 1;
  std::string text = ptx.substr(s.begin, s.end - 1 - s.begin);
  if (text[0] == '@') {
    const size_t space = text.find_first_of(" \t");
    s.guard = text.substr(0, space) + " ";
    text = trimmed(text.substr(space));
  }
  const size_t space = text.find_first_of(" \t\n");
  s.opcode = text.substr(0, space);
  if (space == std::string::npos) return s;
  int depth = 0;
  std::string operand;
  for (const char c : text.substr(space)) {
    if (c == '[' || c == '{' || c == '(') ++depth;
    if (c == ']' || c == '}' || c == ')') --depth;
    if (c == ',' && depth == 0) {
      s.operands.push_back(trimmed(operand));
      operand.clear();
    } else {
      operand += c;
    }
  }
  s.operands.push_back(trimmed(operand));
  return s;
}

std::string without(std::string text, const std::string& part) {
  const size_t at = text.find(part);
  return at == std::string::npos ? text : text.erase(at, part.size());
}

std::string replaced(std::string text, const std::string& part, const std::string& by) {
  const size_t at = text.find(part);
  return at == std::string::npos ? text : text.replace(at, part.size(), by);
}

// ---- the operators -------------------------------------------------------------------------------

struct Change {
  const char* name;
  std::string text;
};

// The number in the last operand raised by `step`; it must be an immediate.
std::string raised(const Statement& s, int step) {
  return s.with_operand(s.operands.size() - 1, std::to_string(std::stoi(s.operands.back()) + step));
}

// Operands whose value the text shows: numbers, and registers that are set once, to a number.
class Constants {
 public:
  explicit Constants(const std::vector<Statement>& statements) {
    std::map<std::string, std::pair<int, std::optional<int>>> set;  // how often, the number
    for (const Statement& s : statements) {
      if (s.operands.empty() || starts_with(s.opcode, "bar.")) continue;  // a barrier sets nothing
      auto& [times, number] = set[s.operands[0]];
      ++times;
      if (starts_with(s.opcode, "mov.") && s.guard.empty()) number = number_of(s.operands.at(1));
    }
    for (const Statement& s : statements) {
      if (starts_with(s.opcode, "ld.acquire")) polled_.insert(s.operands.at(0));
    }
    for (const auto& [name, what] : set) {
      if (what.first == 1 && what.second) values_[name] = *what.second;
    }
    for (const Statement& s : statements) {
      if (starts_with(s.opcode, "bar.sync") || starts_with(s.opcode, "bar.arrive"))
        barriers_.insert(value(s.operands[0]));
    }
  }
  std::optional<int> value(const std::string& operand) const {
    const auto found = values_.find(operand);
    return found != values_.end() ? found->second : number_of(operand);
  }
  // Whether a comparison is of what an ld.acquire has read.
  bool is_polled(const Statement& s) const {
    return s.operands.size() > 2 && (polled_.count(s.operands[1]) > 0 || polled_.count(s.operands[2]) > 0);
  }
  // The ids of all named barriers; std::nullopt among them where the text does not show one.
  const std::set<std::optional<int>>& barriers() const { return barriers_; }

 private:
  static std::optional<int> number_of(const std::string& text) {
    int number = 0, length = 0;
    if (std::sscanf(text.c_str(), "%i%n", &number, &length) != 1 || size_t(length) != text.size()) return {};
    return number;
  }
  std::map<std::string, int> values_;
  std::set<std::string> polled_;
  std::set<std::optional<int>> barriers_;
};

void add_barrier_changes(const Statement& s, int block_threads, const Constants& constants, std::vector<Change>& out) {
  // Another barrier that the kernel uses: one that it does not use is as good as its own.
  const std::optional<int> id = constants.value(s.operands.at(0));
  const auto& ids = constants.barriers();
  const auto other = std::find_if(ids.begin(), ids.end(), [&](const auto& any) { return any && any != id; });
  if (other != ids.end()) {
    out.push_back({"another id", s.with_operand(0, std::to_string(**other))});
  } else if (ids.count(std::nullopt) > 0) {
    out.push_back({"id + 1", s.computed(0, "b32", "add.s32 mutant, {0}, 1;")});
  }
  out.push_back({"id + 1 in odd warps", s.computed(0, "b32",
                                                   "mov.u32 mutant, %tid.x; bfe.u32 mutant, mutant, 5, 1;"
                                                   " add.s32 mutant, mutant, {0};")});
  if (s.operands.size() > 1) {
    out.push_back({"32 threads more", s.computed(1, "b32", "add.s32 mutant, {0}, 32;")});
    out.push_back({"32 threads fewer", s.computed(1, "b32", "sub.s32 mutant, {0}, 32;")});
  } else {
    out.push_back({"32 threads fewer", s.with(s.opcode, {s.operands.at(0), std::to_string(block_threads - 32)})});
  }
}

void add_arrive_changes(const Statement& s, std::vector<Change>& out) {
  const bool expects = s.opcode.find(".expect_tx") != std::string::npos;
  out.push_back({"deleted", ""});
  out.push_back({"twice", s.text() + " " + s.text()});
  if (expects) {
    const size_t bytes = s.operands.size() - 1;
    out.push_back({"16 bytes more", s.computed(bytes, "b32", "add.s32 mutant, {0}, 16;")});
    out.push_back({"16 bytes fewer", s.computed(bytes, "b32", "sub.s32 mutant, {0}, 16;")});
    auto rest = s.operands;
    rest.pop_back();
    out.push_back({"expects nothing", s.with(without(s.opcode, ".expect_tx"), rest)});
  } else if (s.opcode.find(".release") != std::string::npos) {
    out.push_back({"relaxed", s.with_opcode(replaced(s.opcode, ".release", ".relaxed"))});
  }
}

// mbarrier.try_wait p, [barrier], parity
void add_wait_changes(const Statement& s, std::vector<Change>& out) {
  const std::string passed = fmt::format("setp.eq.u32 {}, 0, 0;", s.operands.at(0));
  out.push_back({"deleted", passed});
  out.push_back({"loop deleted", s.text() + " " + passed});
  out.push_back({"parity flipped", s.computed(2, "b32", "xor.b32 mutant, {0}, 1;")});
  if (s.opcode.find(".relaxed") != std::string::npos) return;
  const std::string relaxed = s.opcode.find(".acquire") != std::string::npos
                                  ? replaced(s.opcode, ".acquire", ".relaxed")
                                  : replaced(s.opcode, ".parity", ".parity.relaxed.cta");
  out.push_back({"relaxed", s.with_opcode(relaxed)});
}

// Lane l copies 4 bytes of the map, as an ordinary store would, in place of tensormap.cp_fenceproxy [to], [from], 128.
std::string plain_map_copy(const Statement& s) {
  const auto address = [](const std::string& operand) { return operand.substr(1, operand.size() - 2); };
  return fmt::format(
      "{{ .reg .b32 lane, from, value; .reg .b64 far, to; mov.u32 lane, %laneid; shl.b32 lane, lane, 2;"
      " cvt.u64.u32 far, lane; add.s64 to, far, {}; add.s32 from, lane, {}; ld.shared.b32 value, [from];"
      " st.global.b32 [to], value; }}",
      address(s.operands.at(0)), address(s.operands.at(1)));
}

std::vector<Change> changes_of(const Statement& s, int block_threads, const Constants& constants) {
  const std::string& op = s.opcode;
  std::vector<Change> out;
  const auto deleted = [&] { out.push_back({"deleted", ""}); };
  if (starts_with(op, "fence.") || starts_with(op, "membar.")) {
    deleted();
  } else if (starts_with(op, "mbarrier.try_wait") || starts_with(op, "mbarrier.test_wait")) {
    add_wait_changes(s, out);
  } else if (starts_with(op, "mbarrier.arrive")) {
    add_arrive_changes(s, out);
  } else if (starts_with(op, "mbarrier.init")) {
    deleted();
    out.push_back({"count + 1", s.computed(1, "b32", "add.s32 mutant, {0}, 1;")});
    out.push_back({"count - 1", s.computed(1, "b32", "sub.s32 mutant, {0}, 1;")});
  } else if (starts_with(op, "wgmma.fence") || starts_with(op, "wgmma.commit_group") ||
             starts_with(op, "cp.async.bulk.commit_group")) {
    deleted();
  } else if (starts_with(op, "wgmma.wait_group") || starts_with(op, "cp.async.bulk.wait_group")) {
    deleted();
    out.push_back({"count + 1", raised(s, 1)});
  } else if (starts_with(op, "cp.async.bulk.tensor") && op.find(".multicast") != std::string::npos) {
    const size_t mask = s.operands.size() - (op.find(".cache_hint") != std::string::npos ? 2 : 1);
    out.push_back({"only to the second block", s.computed(mask, "b16", "and.b16 mutant, {0}, 2;")});
    out.push_back({"only to the first block", s.computed(mask, "b16", "and.b16 mutant, {0}, 1;")});
  } else if (starts_with(op, "bar.sync") || starts_with(op, "barrier.sync")) {
    deleted();
    add_barrier_changes(s, block_threads, constants, out);
  } else if (starts_with(op, "bar.arrive") || starts_with(op, "barrier.arrive")) {
    deleted();
    out.push_back({"twice", s.text() + " " + s.text()});
    add_barrier_changes(s, block_threads, constants, out);
  } else if (starts_with(op, "bar.warp.sync")) {
    deleted();
  } else if (starts_with(op, "barrier.cluster.arrive")) {
    deleted();
    if (op.find(".release") != std::string::npos)
      out.push_back({"relaxed", s.with_opcode(replaced(op, ".release", ".relaxed"))});
  } else if (starts_with(op, "barrier.cluster.wait")) {
    deleted();
  } else if (starts_with(op, "tensormap.cp_fenceproxy")) {
    deleted();
    out.push_back({"a plain copy", plain_map_copy(s)});
  } else if (starts_with(op, "tensormap.replace")) {
    deleted();
  } else if (starts_with(op, "setmaxnreg")) {
    // Without .inc a warp has fewer registers than it may use, which no PTX can tell.
    if (op.find(".dec") != std::string::npos) deleted();
    out.push_back({"8 registers more", raised(s, 8)});
  } else if (starts_with(op, "griddepcontrol.wait")) {
    deleted();
  } else if (starts_with(op, "tcgen05.wait") || starts_with(op, "tcgen05.fence") ||
             starts_with(op, "tcgen05.dealloc")) {
    deleted();
  } else if (starts_with(op, "tcgen05.commit")) {
    deleted();
    out.push_back({"twice", s.text() + " " + s.text()});
    if (op.find(".multicast") != std::string::npos) {
      out.push_back({"only to the second block", s.computed(1, "b16", "and.b16 mutant, {0}, 2;")});
      out.push_back({"only to the first block", s.computed(1, "b16", "and.b16 mutant, {0}, 1;")});
    }
  } else if (starts_with(op, "mapa")) {
    if (constants.value(s.operands.at(2)) != 0) out.push_back({"always the first block", s.with_operand(2, "0")});
    if (constants.value(s.operands.at(2)) == 0) out.push_back({"the second block", s.with_operand(2, "1")});
  } else if (starts_with(op, "st.release")) {
    deleted();
    out.push_back({"relaxed", s.with_opcode(replaced(op, ".release", ".relaxed"))});
  } else if (starts_with(op, "ld.acquire")) {
    out.push_back({"relaxed", s.with_opcode(replaced(op, ".acquire", ".relaxed"))});
  } else if (starts_with(op, "setp.") && constants.is_polled(s)) {
    // What is waited for has come, whatever it is.
    auto same = s.operands;
    same.at(2) = same.at(1);
    out.push_back({"wait deleted", s.with(op, same)});
  }
  return out;
}

}  // namespace

std::vector<Mutant> mutants_of(const std::string& ptx, const sim::ptx::Module& module,
                               const std::map<std::string, std::string>& headers) {
  std::vector<size_t> line_starts = {0};
  for (size_t at = 0; (at = ptx.find('\n', at)) != std::string::npos;) line_starts.push_back(++at);
  const Origins origins(ptx, headers);
  std::vector<Mutant> all;
  for (const sim::ptx::Function& function : module.functions) {
    if (!function.is_entry) continue;
    const int threads = std::max(function.reqntid[0], function.maxntid[0]);
    std::vector<Statement> statements;
    for (const auto& instruction : function.body)
      statements.push_back(statement_at(ptx, line_starts, instruction.where));
    const Constants constants(statements);
    for (size_t i = 0; i < statements.size(); ++i) {
      const Statement& s = statements[i];
      const auto add = [&](const Change& change, size_t end) {
        Mutant m;
        m.instruction = s.opcode;
        m.change = change.name;
        m.line = function.body[i].where.line;
        m.statement = s.text();
        m.origin = origins.of(m.line);
        m.begin = s.begin, m.end = end;
        m.replacement = change.text;
        all.push_back(std::move(m));
      };
      for (const Change& change : changes_of(s, threads, constants)) add(change, s.end);
      const bool pair = starts_with(s.opcode, "barrier.cluster.arrive") && i + 1 < statements.size() &&
                        starts_with(statements[i + 1].opcode, "barrier.cluster.wait");
      if (pair) {
        // What lies between the two is comments and directives.
        add({"deleted with its wait", ""}, statements[i + 1].end);
      }
    }
  }
  return all;
}

}  // namespace moxie::mutants
