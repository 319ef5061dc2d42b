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
  int arch = 90, sms = 132;
  std::string format = "bf16";
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
  options->add_to(command);
  command.add_flag("--all", options->all, "Every candidate, not only the best");
  command.add_option("--arch", options->arch, "90 for sm_90a, 100 for sm_100a")->capture_default_str();
  command.add_option("--format", options->format, "Elements of a and b: bf16, or mxfp4 or nvfp4 (sm_100a)")
      ->check(CLI::IsMember({"bf16", "mxfp4", "nvfp4"}))
      ->capture_default_str();
  command.add_option("--sms", options->sms, "Streaming multiprocessors of the device")->capture_default_str();
  return [options] {
    GemmProblem problem = options->problem();
    if (options->format == "mxfp4") problem.format = OperandFormat::Mxfp4;
    if (options->format == "nvfp4") problem.format = OperandFormat::Nvfp4;
    std::string text = explain_plan(problem, options->arch, options->sms);
    if (text.empty() || text.back() != '\n') text += '\n';
    if (!options->all) text = first_lines(text);
    fmt::print("{}", text);
    return 0;
  };
}

}  // namespace moxie::cli
