// SPDX-License-Identifier: Apache-2.0
// The cost model of Hopper kernels as a shared library, for bench/fit_plan.py: the times that it predicts with given
// constants.
#include <cstring>
#include <iterator>

#include "plan/hopper_cost.h"

namespace {

using namespace moxie;
using namespace moxie::plan;

constexpr int kConstants = sizeof(HopperCosts) / sizeof(double);

struct Candidates {
  Shape shape;
  DeviceFigures device;
  RowEstimate rows;
  std::vector<kernel::HopperConfig> configs;
};
std::vector<Candidates> problems;

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int32_t costs_count() { return kConstants; }

void costs_default(double* values) { std::memcpy(values, &kHopperCosts, sizeof(HopperCosts)); }

// Adds a problem with groups by offsets, one bf16 output and, where it is gated, SwiGLU. `routing`: 0 for balanced
// rows, 1 for skewed, 2 for scattered ones.
void costs_add_problem(int32_t sm_count, double l2_bytes, double memory_rate, double clock, int64_t total, int64_t n,
                       int64_t k, int64_t groups, int64_t expected_rows, int32_t gated, int32_t routing) {
  Candidates c;
  c.device.sm_count = sm_count;
  c.device.l2_bytes = static_cast<int64_t>(l2_bytes);
  c.device.memory_rate = memory_rate;
  c.device.clock = clock;
  c.shape.grouping = Grouping::Offsets;
  c.shape.groups = groups;
  c.shape.m = total, c.shape.n = n, c.shape.k = k;
  c.shape.expected_rows = expected_rows;
  c.shape.activation = gated != 0 ? Activation::Swiglu : Activation::None;
  c.shape.out = DataType::Bf16;
  constexpr RowEstimate (*kRoutings[])(int64_t, int64_t) = {balanced_rows, skewed_rows, scattered_rows};
  c.rows = kRoutings[routing](total, groups);
  problems.push_back(std::move(c));
}

// Adds a candidate of the last problem. Returns 0 where there is no such kernel.
int32_t costs_add_candidate(int32_t schedule, int32_t tile_m, int32_t tile_n, int32_t multicast) {
  Candidates& c = problems.back();
  Shape shape = c.shape;
  shape.hopper.schedule = static_cast<WarpSchedule>(schedule);
  shape.hopper.tile_m = tile_m, shape.hopper.tile_n = tile_n;
  shape.hopper.multicast = static_cast<Multicast>(multicast);
  const auto found = hopper_candidates(shape, c.device);
  if (found.size() != 1 || !found[0].possible) return 0;
  c.configs.push_back(found[0].config);
  return 1;
}

// The seconds of all candidates of all problems, in the order in which they were added: for the routing that was
// measured, or, where `planned`, those by which a plan that knows no routing chooses.
void costs_predict(const double* values, int32_t planned, double* seconds) {
  HopperCosts costs;
  std::memcpy(&costs, values, sizeof(costs));
  for (const Candidates& c : problems) {
    const std::vector<RowEstimate> routings = planned != 0 ? estimate_routings(c.shape) : std::vector{c.rows};
    for (const kernel::HopperConfig& config : c.configs) {
      const int panel = hopper_panel(c.shape, c.device, config);
      *seconds++ = mean_seconds(
          routings, [&](const RowEstimate& w) { return time_of(c.shape, c.device, w, config, panel, costs).total; });
    }
  }
}

}  // extern "C"
#pragma GCC visibility pop
