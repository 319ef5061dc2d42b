// SPDX-License-Identifier: Apache-2.0
// moxie plan: prints the kernel that a product gets, the other candidates, and what limits each; with --ranks what a
// layer costs whose experts are divided among ranks. It needs no device.
#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "moxie/ranks.h"

namespace moxie::cli {

namespace {

struct PlanOptions : ShapeOptions {
  bool all = false;
  TargetOptions target;
  std::optional<int64_t> ranks, domain;
  int top_k = 1;
  std::string row_format = "bf16";
  double network = 50;  // GB/s
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

RankedLayer ranked_layer(const PlanOptions& options, const DeviceFigures& device) {
  RankedLayer layer;
  layer.ranks = *options.ranks;
  layer.experts = options.groups;
  layer.top_k = options.top_k;
  layer.tokens = options.m;
  layer.domain = options.domain.value_or(std::min(layer.ranks, nvlink_domain(device.arch)));
  layer.format = choose<RowFormat>("--row-format", options.row_format);
  if (layer.ranks < 1 || layer.ranks > 1024)
    throw InputError(fmt::format("--ranks: {}, but must be 1 to 1024", layer.ranks));
  if (layer.experts < layer.ranks || layer.experts > 1024 * layer.ranks)
    throw InputError(fmt::format("--groups: {} experts of all ranks, but {} ranks have {} to {}", layer.experts,
                                 layer.ranks, layer.ranks, 1024 * layer.ranks));
  if (layer.top_k < 1 || layer.top_k > 16 || layer.top_k > layer.experts)
    throw InputError(
        fmt::format("--top-k: {}, but must be 1 to {}", layer.top_k, std::min<int64_t>(16, layer.experts)));
  if (layer.tokens < 1 || layer.tokens > (int64_t{1} << 20))
    throw InputError(fmt::format("M: {} tokens of a rank, but must be 1 to 1048576", layer.tokens));
  if (*layer.domain < 1 || *layer.domain > layer.ranks)
    throw InputError(fmt::format("--domain: {}, but must be 1 to the {} ranks", *layer.domain, layer.ranks));
  if (!(options.network > 0)) throw InputError(fmt::format("--network: {}, but must be more than 0", options.network));
  if (!options.grouping.empty() && choose<Grouping>("--grouping", options.grouping) != Grouping::Offsets)
    throw InputError(fmt::format("--grouping: {}, but a layer's groups are offsets", options.grouping));
  if (!options.rows.empty()) throw InputError("--rows: given, but with --ranks the rows of experts are even");
  if (options.expected >= 0) throw InputError("--expected-rows: given, but with --ranks they follow from the tokens");
  layer.up = options.description(device.arch);
  return layer;
}

void print_transport(const char* name, const RankCosts& costs) {
  fmt::print("{:<11} {:>11.2f} {:>10.2f} {:>12.1f} {:>9.1f} {:>9.1f} {:>9.1f}", name, costs.dispatch_bytes * 1e-6,
             costs.combine_bytes * 1e-6, costs.dispatch * 1e6, costs.products() * 1e6, costs.combine * 1e6,
             costs.sum() * 1e6);
  if (!costs.in_halves) {
    fmt::print("          -  one token has no halves\n");
    return;
  }
  fmt::print(" {:>10.1f}  {}\n", *costs.in_halves * 1e6,
             costs.halves_pay() ? fmt::format("pays: {:.0f}% less", 100 * (1 - *costs.in_halves / costs.sum()))
                                : std::string("does not pay"));
}

int print_ranks(const PlanOptions& options, const DeviceFigures& device) {
  RankedLayer layer = ranked_layer(options, device);
  const RankLinks links = rank_links(device.arch, options.network * 1e9);
  const RankCosts costs = rank_costs(layer, device, links);
  fmt::print("{} experts on {} rank{}, top {}, hidden {}, {} columns of the first product ({}), {} token{} a rank\n",
             layer.experts, layer.ranks, plural(layer.ranks), layer.top_k, layer.up.k, layer.up.n,
             describe_activation(layer.up.activation.function, layer.up.gate), layer.tokens, plural(layer.tokens));
  fmt::print("NVLink domains of {} rank{}", *layer.domain, plural(*layer.domain));
  if (*layer.domain < layer.ranks) fmt::print(", {} GB/s of network a rank", options.network);
  fmt::print("; experts chosen evenly\n");
  fmt::print("products of a rank: up {:.1f} us, down {:.1f} us, sort, permute and sum {:.1f} us\n", costs.up * 1e6,
             costs.down * 1e6, costs.around * 1e6);
  fmt::print("{:<11} {:>11} {:>10} {:>12} {:>9} {:>9} {:>9} {:>10}\n", "transport", "dispatch MB", "combine MB",
             "dispatch us", "products", "combine", "sum", "in halves");
  if (*layer.domain == layer.ranks) {
    layer.windows = true;
    print_transport("windows", rank_costs(layer, device, links));
  }
  print_transport("all_to_all", costs);
  return 0;
}

}  // namespace

Run add_plan(CLI::App& command) {
  auto options = std::make_shared<PlanOptions>();
  options->add_to(command);
  command.add_flag("--all", options->all, "Every candidate, not only the best");
  options->target.add_to(command);
  command.add_option(
      "--ranks", options->ranks,
      "What a layer costs whose experts are divided among so many ranks (docs/scale.md): M are the tokens "
      "of a rank, N and K those of its first product, --groups the experts of all ranks");
  command.add_option("--top-k", options->top_k, "With --ranks: experts of a token")->capture_default_str();
  command
      .add_option("--row-format", options->row_format,
                  "With --ranks: of tokens on their way through windows: bf16, fp8 or mxfp8")
      ->capture_default_str();
  command.add_option("--domain", options->domain,
                     "With --ranks: how many of them NVLink connects; at most 8 by default, on sm_100a 72");
  command.add_option("--network", options->network, "With --ranks: GB/s of a rank's network adapter")
      ->capture_default_str();
  return [options] {
    const DeviceFigures device = options->target.figures();
    if (options->ranks) return print_ranks(*options, device);
    const GemmDescription description = options->description(device.arch);
    const PlanInfo plan = plan_gemm(description, device, options->total());
    print_product(description, plan, device, options->groups);
    print_choice(plan, device);
    print_candidates(plan, options->all);
    return 0;
  };
}

}  // namespace moxie::cli
