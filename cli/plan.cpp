// SPDX-License-Identifier: Apache-2.0
// moxie plan: prints the kernel that a product gets, the other candidates, and what limits each. It needs no device.
#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/options.h"

namespace moxie::cli {

namespace {

struct PlanOptions : ShapeOptions {
  bool all = false;
  TargetOptions target;
};

const char* plural(int64_t count) { return count == 1 ? "" : "s"; }

const char* describe_rows(const GemmDescription& description, const PlanInfo& plan) {
  if (!description.known_rows.empty()) return "rows known to the host";
  switch (plan.rows_source) {
    case RowsSource::Given:
      return "rows given by m";
    case RowsSource::Expected:
      return "expected rows given";
    case RowsSource::Assumed:
      break;
  }
  return "rows known to the device only";
}

void print_product(const GemmDescription& d, const PlanInfo& plan, const DeviceFigures& device, int64_t groups) {
  std::string grouping(to_string(grouping_of(d.groups)));
  std::replace(grouping.begin(), grouping.end(), '-', ' ');
  fmt::print("{}, {} group{} of about {:.0f} rows ({}), n {}, k {}, {} SMs\n", grouping, groups, plural(groups),
             plan.mean_rows, describe_rows(d, plan), d.n, d.k, device.sm_count);
}

void print_choice(const PlanInfo& plan, const DeviceFigures& device) {
  fmt::print("chosen by {}: {}, {} store buffer{}, {} bytes of shared memory, ", to_string(plan.source), plan.kernel,
             plan.store_buffers, plural(plan.store_buffers), plan.shared_bytes);
  if (plan.tensor_columns > 0) fmt::print("{} columns of tensor memory, ", plan.tensor_columns);
  fmt::print("{} tile{} at most, panels of {}\n", plan.tiles, plural(plan.tiles), plan.panel_columns);
  // The cost model of sm_90a ranks kernels, it does not predict times.
  if (device.arch == 100) {
    fmt::print("predicted for {:.2f} GHz: {:.1f} us, {:.0f} TFLOP/s\n", plan.clock * 1e-9, plan.predicted_seconds * 1e6,
               plan.flops / plan.predicted_seconds * 1e-12);
  }
}

void print_candidates(const PlanInfo& plan, bool all) {
  constexpr size_t kShown = 11;  // enough to see what the choice was made between
  size_t width = 0;
  for (const PlanCandidate& candidate : plan.candidates) width = std::max(width, candidate.kernel.size());
  const auto line = [&](const std::string& cycles, const std::string& kernel, const std::string& reason) {
    fmt::print("{:>12}  {:<{}}  {}\n", cycles, kernel, width, reason);
  };
  line("cycles", "candidate", "limited by");
  const size_t shown = all ? plan.candidates.size() : std::min(kShown, plan.candidates.size());
  for (size_t i = 0; i < shown; ++i) {
    const PlanCandidate& candidate = plan.candidates[i];
    line(candidate.possible ? fmt::format("{:.0f}", candidate.cycles) : "-", candidate.kernel, candidate.reason);
  }
  if (shown < plan.candidates.size())
    fmt::print("... and {} more (--all shows them)\n", plan.candidates.size() - shown);
}

}  // namespace

Run add_plan(CLI::App& command) {
  auto options = std::make_shared<PlanOptions>();
  options->add_to(command);
  command.add_flag("--all", options->all, "Every candidate, not only the best");
  options->target.add_to(command);
  return [options] {
    const DeviceFigures device = options->target.figures();
    const GemmDescription description = options->description(device.arch);
    const PlanInfo plan = plan_gemm(description, device, options->total());
    print_product(description, plan, device, options->groups);
    print_choice(plan, device);
    print_candidates(plan, options->all);
    return 0;
  };
}

}  // namespace moxie::cli
