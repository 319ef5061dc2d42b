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
struct Options : ShapeOptions {
  bool all = false;
  TargetOptions target;
};
// Enough to see what the choice was made between.
std::string first_lines(const std::string& text) {
  constexpr int kLines = 14;
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
  options->add_to(command);
  command.add_flag("--all", options->all, "Every candidate, not only the best");
  options->target.add_to(command);
  return [options] {
    std::string text = explain_plan(options->problem(), options->target.arch(), options->target.sm_count());
    if (text.empty() || text.back() != '\n') text += '\n';
    if (!options->all) text = first_lines(text);
    fmt::print("{}", text);
    return 0;
  };
}

}  // namespace moxie::cli
