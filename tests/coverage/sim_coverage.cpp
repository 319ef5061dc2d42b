// SPDX-License-Identifier: Apache-2.0
// sim_coverage FILE [--forms] [--opcode TEXT]: the forms of instructions that tests executed in the simulator, from the
// file that MOXIE_SIM_COVERAGE named. Prints every opcode with its forms and their tests, then the forms of
// tests/coverage/required.txt and the opcodes that the simulator registers, each with the test that checks its result
// against a direct computation or a hazard when it is missing (tests/coverage/verified.txt says which tests do that for
// which forms), or with those that only execute it. Exit code 1 when a required form is checked by none.
// `make coverage` runs the tests and then this.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "sim/translate/opcodes.h"

namespace {

using Tests = std::set<std::string>;

std::string joined(const Tests& tests, size_t most) {
  std::string text;
  size_t shown = 0;
  for (const std::string& test : tests) {
    if (shown++ == most) return text + ", and " + std::to_string(tests.size() - most) + " more";
    text += (text.empty() ? "" : ", ") + test;
  }
  return text;
}

std::string opcode_of(const std::string& form) { return form.substr(0, form.find_first_of(". ")); }

// A line of the list is a form with {a|b|c} for alternatives, each of which must have been executed.
void expand(const std::string& line, std::vector<std::string>& forms) {
  const size_t open = line.find('{'), close = line.find('}');
  if (open == std::string::npos) {
    forms.push_back(line);
    return;
  }
  const std::string choices = line.substr(open + 1, close - open - 1) + "|";
  for (size_t at = 0; at < choices.size();) {
    const size_t end = choices.find('|', at);
    expand(line.substr(0, open) + choices.substr(at, end - at) + line.substr(close + 1), forms);
    at = end + 1;
  }
}

// Whether `form` has every part of `wanted` in its order: "tcgen05.mma.kind::i8 M 64" is in
// "tcgen05.mma.cta_group::1.kind::i8 M 64 N 32".
bool has_parts(const std::string& form, const std::string& wanted) {
  size_t at = 0;
  for (size_t i = 0; i < wanted.size();) {
    size_t end = wanted.find_first_of(". ", i + 1);
    if (end == std::string::npos) end = wanted.size();
    const std::string part = wanted.substr(i, end - i);
    for (;;) {
      at = form.find(part, at);
      if (at == std::string::npos || (i == 0 && at != 0)) return false;
      at += part.size();
      if (at == form.size() || form[at] == '.' || form[at] == ' ' || form[at] == ',') break;
    }
    i = end;
  }
  return true;
}

// "All/Tiles.Load/u8_1d" is the test Tiles.Load.
std::string plain_name(const std::string& test) {
  const size_t dot = test.find('.'), first = test.find('/');
  const size_t begin = first < dot ? first + 1 : 0;
  return test.substr(begin, test.find('/', dot == std::string::npos ? 0 : dot) - begin);
}

// What tests/coverage/verified.txt says: the tests, and the forms that each holds to their definitions.
class Verified {
 public:
  Verified() {
    std::ifstream list(MOXIE_SOURCE_DIR "/tests/coverage/verified.txt");
    if (!list) throw std::runtime_error("cannot read tests/coverage/verified.txt");
    for (std::string line; std::getline(list, line);) {
      if (line.empty() || line[0] == '#') continue;
      const size_t colon = line.find(": ");
      if (colon == std::string::npos) throw std::runtime_error("tests/coverage/verified.txt: no colon in: " + line);
      std::istringstream forms(line.substr(colon + 2));
      for (std::string form; forms >> form;) forms_[line.substr(0, colon)].push_back(form);
    }
  }
  bool holds(const std::string& test, const std::string& form) const {
    const auto found = forms_.find(plain_name(test));
    if (found == forms_.end()) return false;
    return std::any_of(found->second.begin(), found->second.end(),
                       [&](const std::string& declared) { return has_parts(form, declared); });
  }

 private:
  std::map<std::string, std::vector<std::string>> forms_;
};

int run(int count, char** values) {
  if (count < 2) throw std::runtime_error("usage: sim_coverage FILE [--forms] [--opcode TEXT]");
  bool forms_too = false;
  std::string only;
  for (int i = 2; i < count; ++i) {
    if (std::string(values[i]) == "--forms")
      forms_too = true;
    else if (std::string(values[i]) == "--opcode" && i + 1 < count)
      only = values[++i], forms_too = true;
    else
      throw std::runtime_error("unknown option " + std::string(values[i]));
  }
  std::ifstream in(values[1]);
  if (!in) throw std::runtime_error(std::string("cannot read ") + values[1]);
  std::map<std::string, std::map<std::string, Tests>> opcodes;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with('@')) continue;  // a line of a kernel's source
    const size_t tab = line.find('\t');
    if (tab == std::string::npos) continue;
    const std::string form = line.substr(0, tab);
    opcodes[opcode_of(form)][form].insert(line.substr(tab + 1));
  }
  size_t forms = 0;
  for (const auto& [opcode, of_opcode] : opcodes) {
    forms += of_opcode.size();
    if (!only.empty() && opcode != only) continue;
    Tests all;
    for (const auto& [form, tests] : of_opcode) all.insert(tests.begin(), tests.end());
    std::printf("%s: %zu forms, %zu tests\n", opcode.c_str(), of_opcode.size(), all.size());
    if (!forms_too) continue;
    for (const auto& [form, tests] : of_opcode) std::printf("  %-70s %s\n", form.c_str(), joined(tests, 3).c_str());
  }
  if (!only.empty()) return 0;

  const Verified verified;
  size_t missing = 0, executed_only = 0, required = 0;
  // `by`: executed forms that have what is required, with their tests.
  const auto show = [&](const std::string& name, const std::map<std::string, Tests>& by) {
    Tests all, checking;
    for (const auto& [form, tests] : by) {
      all.insert(tests.begin(), tests.end());
      for (const std::string& test : tests)
        if (verified.holds(test, form)) checking.insert(plain_name(test));
    }
    ++required;
    missing += all.empty();
    executed_only += !all.empty() && checking.empty();
    if (all.empty())
      std::printf("  NO TEST        %s\n", name.c_str());
    else if (checking.empty())
      std::printf("  executed only  %-70s %s\n", name.c_str(), joined(all, 3).c_str());
    else if (forms_too)
      std::printf("  checked        %-70s %s\n", name.c_str(), joined(checking, 3).c_str());
  };
  std::printf("\nforms that must have a test:\n");
  std::ifstream list(MOXIE_SOURCE_DIR "/tests/coverage/required.txt");
  if (!list) throw std::runtime_error("cannot read tests/coverage/required.txt");
  for (std::string line; std::getline(list, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::vector<std::string> wanted;
    expand(line, wanted);
    for (const std::string& form : wanted) {
      std::map<std::string, Tests> found;
      const auto of_opcode = opcodes.find(opcode_of(form));
      if (of_opcode != opcodes.end())
        for (const auto& [executed, by] : of_opcode->second)
          if (has_parts(executed, form)) found[executed] = by;
      show(form, found);
    }
  }
  for (const std::string& opcode : sim::registered_opcodes()) {
    const auto found = opcodes.find(opcode);
    show(opcode, found != opcodes.end() ? found->second : std::map<std::string, Tests>());
  }
  std::printf(
      "%zu opcodes, %zu forms executed; of %zu required forms %zu checked, %zu executed only, %zu without a test\n",
      opcodes.size(), forms, required, required - executed_only - missing, executed_only, missing);
  return missing + executed_only == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** values) {
  try {
    return run(count, values);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sim_coverage: %s\n", error.what());
    return 2;
  }
}
