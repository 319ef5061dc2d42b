// SPDX-License-Identifier: Apache-2.0
// instruction_bits: runs every instruction form that sm_90a executes on random data, on a GPU or in the simulator, and
// compares the bits of two machines. It speaks to the first libcuda.so.1 that the dynamic loader finds:
//
//   bin/instruction_bits --out gpu.bits                                   on a machine with a Hopper GPU
//   LD_LIBRARY_PATH=lib/moxie/sim bin/instruction_bits --out sim.bits     in the simulator
//   bin/instruction_bits --compare sim.bits gpu.bits                      the table; exit code 1 when a form is outside
//
// --digest RESULTS FILE keeps hashes of the defined bits, --check FILE compares the bits of a run with such hashes and
// fails for a form that has none: the tests hold the simulator to those of an H200 (tests/bits/h200.digest).
// --filter TEXT keeps the forms whose names hold TEXT, --list prints names, --ptx FOLDER writes the modules, --all adds
// a line for each form to the comparison. --processes N runs N parts at once, --seconds N ends after so long with the
// results until then.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <set>
#include <stdexcept>

#include "tests/bits/compare.h"

namespace {

size_t number_of(const std::string& text) {
  size_t end = 0;
  const unsigned long value = std::stoul(text, &end);
  if (end != text.size() || value == 0 || value > 100'000) throw std::invalid_argument("no number");
  return value;
}

int run(int count, char** values) {
  std::string out, filter, ptx, first, second, check, results_file, digest;
  bool list = false, all = false;
  bits::Isolation how;
  for (int i = 1; i < count; ++i) {
    const std::string option = values[i];
    const auto next = [&] {
      if (i + 1 >= count) throw std::runtime_error(option + " needs a value");
      return std::string(values[++i]);
    };
    if (option == "--out")
      out = next();
    else if (option == "--filter")
      filter = next();
    else if (option == "--ptx")
      ptx = next();
    else if (option == "--compare")
      first = next(), second = next();
    else if (option == "--digest")
      results_file = next(), digest = next();
    else if (option == "--check")
      check = next();
    else if (option == "--processes")
      how.processes = number_of(next());
    else if (option == "--seconds")
      how.seconds = static_cast<unsigned>(number_of(next()));
    else if (option == "--list")
      list = true;
    else if (option == "--all")
      all = true;
    else
      throw std::runtime_error("unknown option " + option + "; see the first lines of tests/bits/instruction_bits.cpp");
  }
  bits::Forms forms;
  std::set<std::string> names;
  for (bits::Form& form : bits::all_forms())
    if (form.name.find(filter) != std::string::npos && names.insert(form.name).second) forms.push_back(std::move(form));
  if (list)
    for (const bits::Form& form : forms) std::printf("%s\t%s\n", form.family.c_str(), form.name.c_str());
  if (!ptx.empty())
    for (size_t at = 0; at < forms.size(); at += how.forms_a_module)
      std::ofstream(ptx + "/" + std::to_string(at) + ".ptx")
          << bits::module_of(forms, at, std::min(forms.size(), at + how.forms_a_module));
  if (!first.empty()) return bits::compare(forms, bits::read(first), bits::read(second), all) == 0 ? 0 : 1;
  if (!digest.empty()) bits::write_digest(forms, bits::read(results_file), digest);
  if (out.empty() && check.empty()) {
    if (!list && ptx.empty() && digest.empty())
      throw std::runtime_error("one of --out, --check, --compare, --digest, --list and --ptx is needed");
    return 0;
  }
  const auto start = std::chrono::steady_clock::now();
  bits::Results results;
  results.machine = bits::run_isolated(forms, how, results.forms);
  if (!out.empty()) bits::write(results, out);
  size_t failed = 0;
  for (const bits::Result& r : results.forms) {
    if (r.error.empty()) continue;
    ++failed;
    std::printf("%s: %s\n", r.name.c_str(), r.error.c_str());
  }
  std::printf("%s: %zu forms, %zu of them not run, %.1f s; %s\n", results.machine.c_str(), forms.size(), failed,
              std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), out.c_str());
  if (!check.empty() && bits::check_digest(forms, results, check) != 0) return 1;
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** values) {
  try {
    return run(count, values);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "instruction_bits: %s\n", error.what());
    return 2;
  }
}
