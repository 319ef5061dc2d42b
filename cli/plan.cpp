// moxie plan: the kernel that a problem gets, with the other candidates and the reason. Needs no device.
#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/safetensors.h"
#include "moxie/gemm.h"

namespace moxie::cli {

namespace {
struct Options : ProblemOptions {
  int64_t m = 0, n = 0, k = 0, groups = 1, expected = -1;
  std::string grouping;
  std::vector<int64_t> rows;
  bool bias = false, all = false;
  int arch = 90, sms = 132;
};
// Enough to see what the choice was made between.
std::string first_lines(const std::string& text) {
  constexpr int kLines = 13;
  size_t end = 0;
  for (int line = 0; line < kLines; ++line) {
    end = text.find('\n', end) + 1;
    if (end == 0 || end == text.size()) return text;
  }
  const auto more = std::count(text.begin() + static_cast<ptrdiff_t>(end), text.end(), '\n');
  return fmt::format("{}... and {} more (--all shows them)\n", text.substr(0, end), more);
}

}  // namespace

Run add_plan(CLI::App& command) {
  auto options = std::make_shared<Options>();
  command
      .add_option("M", options->m,
                  "Rows: of A in all (dense, offsets, row-groups), of a group (batched), the most of a group (masked, "
                  "pointers)")
      ->required();
  command.add_option("N", options->n, "Columns, before a gate halves them")->required();
  command.add_option("K", options->k, "Length of the sums")->required();
  command.add_option("--groups", options->groups, "Groups")->capture_default_str();
  command.add_option("--grouping", options->grouping,
                     "dense, batched, offsets, row-groups, masked or pointers; dense for one group, offsets for more");
  command.add_option("--rows", options->rows, "Rows of each group, when the host knows them")->delimiter(',');
  command.add_option("--expected-rows", options->expected, "Rows of a typical group, when only that is known");
  command.add_flag("--bias", options->bias, "With a bias");
  command.add_flag("--all", options->all, "Every candidate, not only the best");
  command.add_option("--arch", options->arch, "90 for sm_90a")->capture_default_str();
  command.add_option("--sms", options->sms, "Streaming multiprocessors of the device")->capture_default_str();
  options->add_to(command);
  return [options] {
    GemmProblem problem;
    options->apply(problem);
    problem.grouping = !options->grouping.empty() ? choose("--grouping", options->grouping, grouping_names())
                       : options->groups > 1      ? Grouping::Offsets
                                                  : Grouping::Dense;
    problem.groups = options->groups;
    problem.m = options->m;
    problem.n = options->n;
    problem.k = options->k;
    problem.bias = options->bias;
    problem.host_rows = options->rows;
    if (options->expected >= 0) problem.expected_rows = options->expected;
    std::string text = explain_plan(problem, options->arch, options->sms);
    if (text.empty() || text.back() != '\n') text += '\n';
    if (!options->all) text = first_lines(text);
    fmt::print("{}", text);
    return 0;
  };
}

}  // namespace moxie::cli
