// sim_coverage FILE [--forms] [--opcode TEXT]: the forms of instructions that tests executed in the simulator, from the
// file that MOXIE_SIM_COVERAGE named. Prints every opcode with its forms and their tests, then the forms of
// tests/coverage/required.txt and the opcodes that the simulator registers with how many tests executed each.
// Exit code 1 when one of those was executed by none. `make coverage` runs the tests and then this.
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "sim/machine/machine.h"

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

  size_t missing = 0, required = 0;
  const auto show = [&](const std::string& name, const Tests& tests) {
    ++required;
    missing += tests.empty();
    if (tests.empty())
      std::printf("  NO TEST  %s\n", name.c_str());
    else if (forms_too)
      std::printf("  %-70s %s\n", name.c_str(), joined(tests, 3).c_str());
  };
  std::printf("\nforms that must have a test:\n");
  std::ifstream list(MOXIE_SOURCE_DIR "/tests/coverage/required.txt");
  if (!list) throw std::runtime_error("cannot read tests/coverage/required.txt");
  for (std::string line; std::getline(list, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::vector<std::string> wanted;
    expand(line, wanted);
    for (const std::string& form : wanted) {
      Tests tests;
      const auto of_opcode = opcodes.find(opcode_of(form));
      if (of_opcode != opcodes.end())
        for (const auto& [executed, by] : of_opcode->second)
          if (has_parts(executed, form)) tests.insert(by.begin(), by.end());
      show(form, tests);
    }
  }
  for (const std::string& opcode : sim::registered_opcodes()) {
    Tests tests;
    if (const auto found = opcodes.find(opcode); found != opcodes.end())
      for (const auto& [form, by] : found->second) tests.insert(by.begin(), by.end());
    show(opcode, tests);
  }
  std::printf("%zu opcodes, %zu forms executed; %zu of %zu required forms without a test\n", opcodes.size(), forms,
              missing, required);
  return missing == 0 ? 0 : 1;
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
