// SPDX-License-Identifier: Apache-2.0
// ptx_forms [--arch sm_90a|sm_100a] [--sample N] [--seed N] [--list] [--only TEXT]: compares the forms of instructions
// that the simulator takes with those that ptxas assembles. The forms are all combinations that the patterns of
// tests/forms/syntax.txt and tests/sim/plain_forms.h describe, valid and not; --sample takes about N of them. A form
// that only one side takes must have a reason in tests/forms/apart.txt, and each reason a form, or the exit code is 1.
// It is 77 where there is no ptxas.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "sim/ptx/ast.h"
#include "sim/translate/build_kernel.h"
#include "tests/sim/plain_forms.h"

namespace {

namespace fs = std::filesystem;

const char* const kFolder = MOXIE_SOURCE_DIR "/tests/forms/";
constexpr int kRegisters = 260;

// ---- from patterns to instructions ----------------------------------------------------------------

std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts;
  std::istringstream in(name);
  for (std::string part; std::getline(in, part, '.');) parts.push_back(part);
  return parts;
}

std::string vector_of(char kind, int count) {
  std::string text = "{";
  for (int i = 0; i < count; ++i) text += (i == 0 ? "%" : ", %") + std::string(1, kind) + std::to_string(i + 1);
  return text + "}";
}

int number_behind(const std::string& name, const std::string& before) {
  const size_t at = name.find(before);
  return at == std::string::npos ? 0 : std::atoi(name.c_str() + at + before.size());
}

// How many 32-bit registers a thread gives to the accumulator of a wgmma (9.7.15.5.1), and to a tcgen05.ld or
// tcgen05.st (9.7.16.2.3).
int accumulator_words(const std::string& name) {
  const int n = number_behind(name, "m64n");
  return name.find(".f16.") != std::string::npos && name.find(".f32.") == std::string::npos ? n / 4 : n / 2;
}
int tensor_memory_words(const std::string& name) {
  const int lanes = name.find("16x256b") != std::string::npos ? 4 : name.find("16x128b") != std::string::npos ? 2 : 1;
  for (const std::string& part : parts_of(name)) {
    if (part[0] == 'x') return lanes * std::atoi(part.c_str() + 1);
  }
  return lanes;
}

// @t1: a register of the size of the name's last type, @v: as many as .v2, .v4 or .v8 say, @w4: a vector of four
// registers %w, @D and @R: the registers of a wgmma and of a tcgen05.ld.
std::string with_registers(const std::string& name, const std::string& operands) {
  const std::vector<std::string> parts = parts_of(name);
  int bytes = 4;
  for (const std::string& part : parts) {
    const sim::ptx::Type type = sim::ptx::type_from_name(part);
    if (type != sim::ptx::Type::Other && type != sim::ptx::Type::None) bytes = sim::ptx::bytes_of(type);
  }
  const char kind = bytes == 0 ? 'p' : bytes <= 2 ? 'h' : bytes == 4 ? 'w' : bytes == 8 ? 'd' : 'q';
  std::string text;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i] != '@') {
      text += operands[i];
      continue;
    }
    const char what = operands.at(++i);
    const size_t digits = operands.find_first_not_of("0123456789", i + 1);
    const std::string number = operands.substr(i + 1, std::min(digits, operands.size()) - i - 1);
    i += number.size();
    if (what == 't') {
      text += std::string("%") + kind + number;
    } else if (what == 'v') {
      const int count = number_behind(name, ".v");
      text += count == 0 ? std::string("%") + kind + "1" : vector_of(kind, count);
    } else if (what == 'D' || what == 'R') {
      text += vector_of('w', what == 'D' ? accumulator_words(name) : tensor_memory_words(name));
    } else {
      text += vector_of(what, std::atoi(number.c_str()));
    }
  }
  return text;
}

// A pattern's alternatives stand in parentheses and may nest. `\|` joins two destinations.
std::vector<std::string> expand(const std::string& pattern) {
  const size_t open = pattern.find('(');
  if (open == std::string::npos) return {pattern};
  std::vector<size_t> marks = {open};
  size_t at = open;
  for (int depth = 0;; ++at) {
    if (at == pattern.size()) throw std::runtime_error("no ) in " + pattern);
    if (pattern[at] == '(') ++depth;
    if (pattern[at] == '|' && depth == 1 && pattern[at - 1] != '\\') marks.push_back(at);
    if (pattern[at] == ')' && --depth == 0) break;
  }
  marks.push_back(at);
  const std::vector<std::string> tails = expand(pattern.substr(at + 1));
  std::vector<std::string> all;
  for (size_t i = 0; i + 1 < marks.size(); ++i) {
    for (const std::string& choice : expand(pattern.substr(marks[i] + 1, marks[i + 1] - marks[i] - 1))) {
      for (const std::string& tail : tails) all.push_back(pattern.substr(0, open) + choice + tail);
    }
  }
  return all;
}

std::vector<std::string> all_forms() {
  std::vector<std::string> forms;
  for (const sim_test::Family& family : sim_test::families()) {
    for (const std::string& form : sim_test::expand(family.tried))
      forms.push_back(family.opcode + form + " " + sim_test::operands_of(family, form));
  }
  std::ifstream file(std::string(kFolder) + "syntax.txt");
  if (!file) throw std::runtime_error(std::string(kFolder) + "syntax.txt cannot be read");
  std::map<std::string, std::string, std::greater<>> names;
  std::string line, more;
  while (std::getline(file, more)) {
    if (more.empty() || more[0] == '#') continue;
    line += more.substr(more.find_first_not_of(' '));
    if (line.back() == '\\') {
      line.pop_back();
      continue;
    }
    std::string pattern;
    std::swap(pattern, line);
    for (const auto& [name, text] : names) {
      for (size_t at = 0; (at = pattern.find("$" + name, at)) != std::string::npos;)
        pattern.replace(at, name.size() + 1, text);
    }
    if (const size_t sign = pattern.find(" = "); sign != std::string::npos && pattern.find(' ') == sign) {
      names[pattern.substr(0, sign)] = pattern.substr(sign + 3);
      continue;
    }
    for (std::string form : expand(pattern)) {
      const size_t space = std::min(form.find(' '), form.size());
      const std::string name = form.substr(0, space);
      form = name + with_registers(name, form.substr(space));
      for (size_t at; (at = form.find("\\|")) != std::string::npos;) form.erase(at, 1);
      forms.push_back(form);
    }
  }
  std::sort(forms.begin(), forms.end());
  forms.erase(std::unique(forms.begin(), forms.end()), forms.end());
  return forms;
}

// ---- the two that are asked --------------------------------------------------------------------------

std::string head(const std::string& arch) {
  std::string text = ".version 9.0\n.target " + arch + "\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n";
  for (const char* kind : {"b16 %h", "b32 %w", "b64 %d", "b128 %q", "pred %p"})
    text += ".reg ." + std::string(kind) + "<" + std::to_string(kRegisters) + ">; ";
  return text + "\n";
}

struct Folder {
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "moxie-forms-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder can be made");
    path = pattern;
  }
  ~Folder() { fs::remove_all(path); }
  fs::path path;
};

// What ptxas says about each instruction; empty where it assembles it. It reports all errors of meaning at once but
// only the first of syntax, and generates code when there are none, so that it is asked until nothing new comes.
class Ptxas {
 public:
  explicit Ptxas(std::string arch) : arch_(std::move(arch)), head_(head(arch_)) {}
  static bool is_there() { return std::system("ptxas --version > /dev/null 2>&1") == 0; }

  std::vector<std::string> ask(const std::vector<std::string>& forms) {
    std::vector<std::string> said(forms.size());
    std::vector<size_t> left(forms.size());
    for (size_t i = 0; i < left.size(); ++i) left[i] = i;
    settle(forms, left, said);
    return said;
  }

 private:
  void settle(const std::vector<std::string>& forms, std::vector<size_t> left, std::vector<std::string>& said) {
    for (;;) {
      if (left.empty()) return;
      std::string output;
      if (assembles(forms, left, &output)) return;
      std::istringstream lines(output);
      const auto lines_before = static_cast<int>(std::count(head_.begin(), head_.end(), '\n'));
      static const std::regex kError(R"(, line (\d+); (?:error|fatal)\s*: (.*))");
      bool found = false;
      for (std::string line; std::getline(lines, line);) {
        std::smatch match;
        if (!std::regex_search(line, match, kError)) continue;
        const int at = std::stoi(match[1]) - lines_before - 1;
        if (at < 0 || at >= static_cast<int>(left.size())) continue;
        found = true;
        if (said[left[at]].empty()) said[left[at]] = match[2];
      }
      if (!found) {  // A refusal without a line.
        if (left.size() == 1) {
          said[left[0]] = output.empty() ? "ptxas does not finish" : output.substr(0, output.find('\n'));
          return;
        }
        settle(forms, {left.begin(), left.begin() + left.size() / 2}, said);
        settle(forms, {left.begin() + left.size() / 2, left.end()}, said);
        return;
      }
      std::erase_if(left, [&](size_t i) { return !said[i].empty(); });
    }
  }

  bool assembles(const std::vector<std::string>& forms, const std::vector<size_t>& which, std::string* output) {
    const fs::path ptx = folder_.path / "forms.ptx", log = folder_.path / "log";
    std::ofstream file(ptx);
    file << head_;
    for (const size_t i : which) file << forms[i] << ";\n";
    file << "ret;\n}\n";
    file.close();
    const std::string command = "timeout 60 ptxas -O0 -arch=" + arch_ + " " + ptx.string() + " -o " +
                                (folder_.path / "forms.cubin").string() + " > " + log.string() + " 2>&1";
    const int status = std::system(command.c_str());
    std::ifstream in(log);
    output->assign(std::istreambuf_iterator<char>(in), {});
    return status == 0;
  }

  std::string arch_, head_;
  Folder folder_;
};

// What the simulator says about an instruction; empty where it takes it.
std::string refusal(const std::string& arch, const std::string& before, const std::string& form) {
  try {
    const auto module = std::make_shared<const sim::ptx::Module>(sim::ptx::parse(before + form + ";\nret;\n}\n"));
    sim::build_kernel(module, "k", {}, arch == "sm_100a" ? 100 : 90);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// ---- the comparison ------------------------------------------------------------------------------

struct Reason {
  std::string who, text, pattern;
  std::regex form;
  size_t forms = 0;
};

std::vector<Reason> reasons(const std::string& arch) {
  std::ifstream file(std::string(kFolder) + "apart.txt");
  std::vector<Reason> all;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream in(line);
    Reason reason;
    std::string archs;
    in >> archs >> reason.who;
    if (archs != "both" && archs != arch) continue;
    const size_t colon = line.find(" : "), begin = archs.size() + reason.who.size() + 2;
    if (colon == std::string::npos || (reason.who != "ptxas" && reason.who != "simulator"))
      throw std::runtime_error("apart.txt: " + line);
    reason.pattern = line.substr(begin, colon - begin);
    reason.text = line.substr(colon + 3);
    reason.form = std::regex(reason.pattern, std::regex::optimize);
    all.push_back(std::move(reason));
  }
  return all;
}

int run(int argc, char** argv) {
  std::string arch = "sm_90a", only;
  size_t sample = 0;
  unsigned seed = 1;
  bool list = false;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const bool has_value = i + 1 < argc;
    if (option == "--list")
      list = true;
    else if (option == "--arch" && has_value)
      arch = argv[++i];
    else if (option == "--only" && has_value)
      only = argv[++i];
    else if (option == "--sample" && has_value)
      sample = std::stoul(argv[++i]);
    else if (option == "--seed" && has_value)
      seed = static_cast<unsigned>(std::stoul(argv[++i]));
    else
      throw std::runtime_error("unknown option " + option);
  }
  if (arch != "sm_90a" && arch != "sm_100a") throw std::runtime_error("--arch is sm_90a or sm_100a");
  if (!Ptxas::is_there()) {
    std::printf("there is no ptxas\n");
    return 77;
  }
  std::vector<std::string> forms = all_forms();
  if (!only.empty())
    std::erase_if(forms, [&](const std::string& form) { return form.find(only) == std::string::npos; });
  const size_t all = forms.size();
  if (sample > 0 && sample < forms.size()) {
    std::shuffle(forms.begin(), forms.end(), std::mt19937(seed));
    forms.resize(sample);
    std::sort(forms.begin(), forms.end());
  }

  std::vector<Reason> known = reasons(arch);
  const std::string before = head(arch);
  Ptxas ptxas(arch);
  size_t both = 0, neither = 0, apart = 0, unexplained = 0;
  constexpr size_t kModule = 4000;
  for (size_t begin = 0; begin < forms.size(); begin += kModule) {
    const std::vector<std::string> some(forms.begin() + begin, forms.begin() + std::min(begin + kModule, forms.size()));
    const std::vector<std::string> answers = ptxas.ask(some);
    for (size_t i = 0; i < some.size(); ++i) {
      const std::string refused = refusal(arch, before, some[i]);
      if (refused.empty() == answers[i].empty()) {
        ++(refused.empty() ? both : neither);
        continue;
      }
      ++apart;
      const std::string who = refused.empty() ? "simulator" : "ptxas";
      const auto reason = std::find_if(known.begin(), known.end(), [&](const Reason& r) {
        return r.who == who && std::regex_search(some[i] + " | " + refused + answers[i], r.form);
      });
      if (reason != known.end()) ++reason->forms;
      if (reason == known.end()) ++unexplained;
      if (list || reason == known.end())
        std::printf("%s only: %s | %s\n", who.c_str(), some[i].c_str(), (refused + answers[i]).c_str());
    }
  }
  std::printf(
      "%s: %zu of %zu forms tried, %zu accepted by both, %zu refused by both, %zu apart with a reason, "
      "%zu apart without\n",
      arch.c_str(), forms.size(), all, both, neither, apart - unexplained, unexplained);
  bool useless = false;
  for (const Reason& reason : known) {
    if (reason.forms > 0 || sample > 0 || !only.empty()) {
      if (reason.forms > 0) std::printf("  %6zu only %s: %s\n", reason.forms, reason.who.c_str(), reason.text.c_str());
      continue;
    }
    std::printf("a reason without a form: %s %s\n", reason.who.c_str(), reason.pattern.c_str());
    useless = true;
  }
  return unexplained > 0 || useless ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ptx_forms: %s\n", error.what());
    return 2;
  }
}
