// SPDX-License-Identifier: Apache-2.0
// From a description to a planned kernel and its source.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "jit/source.h"
#include "moxie/arguments.h"
#include "ops/check.h"
#include "ops/gemm.h"
#include "plan/row_estimate.h"

namespace moxie::ops {
namespace {

using kernel::BlackwellConfig;
using kernel::HopperConfig;
using plan::ProblemShape;

// Unsupported when a device of this architecture has no kernel for the problem.
void check_device(int arch, const ProblemShape& p) {
  const auto reject = [](const std::string& sentence) { throw Error(ErrorCode::Unsupported, sentence); };
  const bool scaled = has_scales(p.format);
  if (arch != 90 && arch != 100)
    reject(fmt::format("the device is of architecture sm_{}, but products need sm_90a or sm_100a", arch));
  if (scaled && arch != 100)
    reject(
        fmt::format("the device is of architecture sm_{}a, but {} operands need sm_100a", arch, to_string(p.format)));
  if (arch == 90 && p.grouping == Grouping::KGroups)
    reject("groups are k-groups, which need sm_100a, but the device is of architecture sm_90a");
  if (scaled && is_gated(p.activation) && p.gate != GateLayout::Interleaved && p.n % 64 != 0)
    reject(fmt::format("n is {}, but {} operands with a split gate need a multiple of 64", p.n, to_string(p.format)));
}

template <class Plan>
PlannedKernel fill_in(Plan plan, const GemmDescription& d) {
  const auto& c = plan.config;
  PlannedKernel kernel;
  if (d.pre) kernel.needs.push_back(kernel::store_needs(c, true, *d.pre));
  if (d.out) kernel.needs.push_back(kernel::store_needs(c, false, *d.out));
  for (const CustomSink& sink : d.sinks) kernel.needs.push_back(sink.needs);
  kernel.mapped_sinks =
      int(std::count_if(kernel.needs.begin(), kernel.needs.end(), [](const SinkNeeds& n) { return n.tensor_map; }));
  kernel.shared_bytes = kernel::shared_bytes(c, kernel.needs.data(), int(kernel.needs.size()));
  kernel.row_alignment = c.grouping == Grouping::RowGroups ? kernel::cluster_tile_rows(c) : 1;
  kernel.rows_are_known = !d.known_rows.empty();
  kernel.plan = std::move(plan);
  return kernel;
}

TileSource tile_source(const HopperConfig&) { return TileSource::Static; }
TileSource tile_source(const BlackwellConfig& c) { return c.scheduling; }

// Of a launch: those of the plan where the caller knew the rows, else the most there can be.
template <class Plan>
int64_t tiles_of(const Plan& plan, const ProblemShape& shape, bool rows_are_known) {
  const auto& c = plan.config;
  if (rows_are_known && tile_source(c) == TileSource::Static) return plan.tiles;
  return c.cluster * plan::most_cluster_tiles(shape, kernel::cluster_tile_rows(c), kernel::cluster_tile_columns(c));
}

// The most blocks of a launch, a multiple of the cluster: what the device holds, with launch control all tiles.
template <class Plan>
int64_t most_blocks(const Plan& plan, const DeviceFigures& device, int64_t tiles) {
  const int cluster = plan.config.cluster;
  if (tile_source(plan.config) == TileSource::LaunchControl) return std::max<int64_t>(tiles, cluster);
  return device.sm_count / cluster * cluster;
}

// The description's sinks; a custom one's header goes into the request, known to the translation unit by its place in
// the list, the same text once.
std::vector<jit::SinkSource> sink_sources(const GemmDescription& p, jit::Request& request) {
  std::vector<jit::SinkSource> sinks;
  if (p.pre) sinks.push_back(jit::store_sink(true, *p.pre));
  if (p.out) sinks.push_back(jit::store_sink(false, *p.out));
  for (const CustomSink& sink : p.sinks) {
    const auto same = std::find_if(request.headers.begin(), request.headers.end(),
                                   [&](const auto& header) { return header.second == sink.source; });
    const std::string name =
        same != request.headers.end() ? same->first : fmt::format("custom_sink_{}.cuh", request.headers.size());
    request.headers.emplace(name, sink.source);
    sinks.push_back({sink.type, name});
  }
  return sinks;
}

}  // namespace

ProblemShape shape_of(const GemmDescription& d, int64_t total) {
  ProblemShape s;
  s.grouping = grouping_of(d.groups);
  std::visit(
      [&](const auto& groups) {
        using T = std::decay_t<decltype(groups)>;
        if constexpr (!std::is_same_v<T, Dense>) s.groups = groups.count;
        if constexpr (std::is_same_v<T, Offsets> || std::is_same_v<T, RowGroups>) {
          s.m = total;
        } else if constexpr (std::is_same_v<T, Masked> || std::is_same_v<T, Pointers>) {
          s.m = groups.max_m;
        } else {
          s.m = groups.m;
        }
      },
      d.groups);
  s.n = d.n, s.k = d.k;
  s.format = d.format;
  s.b_format = d.b_format.value_or(d.format);
  s.bias = d.bias;
  s.activation = d.activation.function;
  s.gate = d.gate;
  s.pre = d.pre, s.out = d.out;
  s.gather = d.gather;
  return s;
}

plan::Shape plan_shape(const GemmDescription& d, int64_t total) {
  plan::Shape s;
  static_cast<ProblemShape&>(s) = shape_of(d, total);
  s.known_rows = d.known_rows;
  s.expected_rows = d.expected_rows;
  for (const CustomSink& sink : d.sinks) s.custom_sinks.push_back(sink.needs);
  if (d.hopper) s.hopper = *d.hopper;
  if (d.blackwell) s.blackwell = *d.blackwell;
  return s;
}

std::vector<int64_t> planned_totals(const GemmDescription& d) {
  const auto* offsets = std::get_if<Offsets>(&d.groups);
  if (offsets && offsets->total) return {*offsets->total};
  if (!d.known_rows.empty()) return {std::accumulate(d.known_rows.begin(), d.known_rows.end(), int64_t{0})};
  const int64_t groups = shape_of(d, 0).groups;
  if (d.expected_rows) return {groups * *d.expected_rows};
  if (!offsets) return {groups * int64_t(plan::kTypicalRows)};
  std::vector<int64_t> totals;
  for (int range = 0; range < plan::kPlannedRanges; ++range) totals.push_back(groups * plan::planned_rows(range));
  return totals;
}

PlannedKernel plan_kernel(const DeviceFigures& device, const GemmDescription& d, int64_t total) {
  check_description(d);
  const plan::Shape shape = plan_shape(d, total);
  check_device(device.arch, shape);
  const bool blackwell = device.arch == 100 && !plan::has_packed_b(shape);
  PlannedKernel kernel = blackwell ? fill_in(plan::make_blackwell_plan(shape, device), d)
                                   : fill_in(plan::make_hopper_plan(shape, device), d);
  kernel.arch = device.arch;
  return kernel;
}

int64_t launch_blocks(const PlannedKernel& kernel, const DeviceFigures& device, const ProblemShape& shape) {
  return kernel.visit([&](const auto& plan) {
    const int64_t tiles = tiles_of(plan, shape, kernel.rows_are_known), cluster = plan.config.cluster;
    const int64_t blocks = std::clamp<int64_t>(tiles, 1, most_blocks(plan, device, tiles));
    return (blocks + cluster - 1) / cluster * cluster;
  });
}

size_t workspace_bytes(const PlannedKernel& kernel, const DeviceFigures& device, const ProblemShape& shape) {
  return kernel.visit([&](const auto& plan) {
    const int maps = kernel::workspace_maps(plan.config, kernel.mapped_sinks);
    const int64_t blocks = most_blocks(plan, device, tiles_of(plan, shape, kernel.rows_are_known));
    return size_t(blocks) * size_t(maps) * sizeof(kernel::TensorMap);
  });
}

jit::Request kernel_request(const HopperConfig& config, const GemmDescription& d) {
  jit::Request request;
  request.source = jit::hopper_source(config, sink_sources(d, request));
  return request;
}

jit::Request kernel_request(const BlackwellConfig& config, const GemmDescription& d) {
  jit::Request request;
  request.arch = 100;
  request.source = jit::blackwell_source(config, sink_sources(d, request));
  return request;
}

jit::Request kernel_request(const PlannedKernel& kernel, const GemmDescription& d) {
  jit::Request request = kernel.visit([&](const auto& plan) { return kernel_request(plan.config, d); });
  request.arch = kernel.arch;
  return request;
}

std::string request_key(const jit::Request& request) {
  std::string key = request.source;
  for (const auto& [name, text] : request.headers) key += fmt::format("\n// {}: {} bytes\n", name, text.size()) + text;
  return key;
}

}  // namespace moxie::ops

namespace moxie {

PlanInfo plan_gemm(const GemmDescription& d, const DeviceFigures& device, std::optional<int64_t> total) {
  ops::check_figures(device);
  ops::check_description(d);
  const Grouping grouping = grouping_of(d.groups);
  if (total && grouping != Grouping::Offsets && grouping != Grouping::RowGroups)
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("total is given, but {} groups do not take it", to_string(grouping)));
  if (total) ops::check_sizes(ops::shape_of(d, *total));
  if (!total) {
    const std::vector<int64_t> totals = ops::planned_totals(d);
    total = totals.size() == 1 ? totals.front() : ops::shape_of(d, 0).groups * int64_t(plan::kTypicalRows);
  }
  const ops::PlannedKernel kernel = ops::plan_kernel(device, d, *total);
  const plan::Shape shape = ops::plan_shape(d, *total);
  return kernel.visit([&](const auto& plan) { return plan::info_of(shape, plan); });
}

}  // namespace moxie
