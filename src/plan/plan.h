// SPDX-License-Identifier: Apache-2.0
// Planning: a pure function from a problem and a device's figures to a kernel configuration.
// Deterministic, no device calls; it can explain itself.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "moxie/layout.h"
#include "moxie/plan.h"
#include "moxie/tuned.h"
#include "moxie/tuning.h"

namespace moxie::plan {

using moxie::DeviceFigures;

// The sizes and types of a product. Where a call brings rows or a K of its own, m or k is replaced by the call's.
struct ProblemShape {
  Grouping grouping = Grouping::Dense;
  int64_t groups = 1;
  // Rows of A: all of them (Dense, Offsets, RowGroups), of each group (Batched), the allocated rows of each group
  // (Masked), the most that any group has (Pointers), those of A and of each group's result (KGroups).
  int64_t m = 0;
  int64_t n = 0, k = 0;
  OperandFormat format = OperandFormat::Bf16;    // of A
  OperandFormat b_format = OperandFormat::Bf16;  // of B: A's, or Mxfp4 in packed weights beside an A of bf16
  bool bias = false;
  Activation activation = Activation::None;
  GateLayout gate = GateLayout::Interleaved;
  std::optional<DataType> pre, out;
  bool gather = false;  // rows of A are gathered
};

// Whether B is packed weights (moxie/weights.h).
inline bool has_packed_b(const ProblemShape& p) { return p.b_format != p.format; }
inline int k_unit(const ProblemShape& p) { return std::max(moxie::k_unit(p.format), moxie::k_unit(p.b_format)); }

// What of a product matters to the choice of a kernel.
struct Shape : ProblemShape {
  std::vector<int64_t> known_rows;  // of each group; empty when the host does not know
  std::optional<int64_t> expected_rows;
  std::vector<SinkNeeds> custom_sinks;
  HopperTuning hopper;  // the caller's choices
  BlackwellTuning blackwell;
};

template <class Config>
struct Candidate {
  Config config;
  double cycles = 0;   // predicted time of the launch on the device
  std::string reason;  // what dominates it, in a few words; or why it is not possible
  bool possible = true;
};

template <class Config>
struct Plan {
  Config config;
  int panel_columns = 8;
  // Of the whole launch when the rows are known, else the most there can be. With launch control always the most there
  // can be, whatever the host knows.
  int64_t tiles = 0;
  std::vector<Candidate<Config>> candidates;  // best first
  PlanSource source = PlanSource::Model;
  double clock = 0;  // cycles a second of the candidates' times
};
using HopperPlan = Plan<kernel::HopperConfig>;
using BlackwellPlan = Plan<kernel::BlackwellConfig>;

// The rows of the file that MOXIE_TUNED names, read once in a process, then those of src/plan/tuned_hopper.inc for such
// a device: the first that fits and names a possible configuration is taken. Throws Error(InvalidArgument) with the
// file and the line that is wrong.
std::span<const TunedHopper> tuned_hopper(const DeviceFigures& device);

// Throw Error(InvalidArgument) when the caller's choices exclude each other or every configuration. The caller's
// choices go before the table, the table before the model. Rows enter the choice where the host knows or expects them;
// with Offsets otherwise through the power of four nearest to m / groups, so that a few kernels serve every m.
HopperPlan make_hopper_plan(const Shape& shape, const DeviceFigures& device, std::span<const TunedHopper> tuned);
inline HopperPlan make_hopper_plan(const Shape& shape, const DeviceFigures& device) {
  return make_hopper_plan(shape, device, tuned_hopper(device));
}
// What a plan chooses among, without their times, and how many cluster columns of a candidate are walked together.
std::vector<Candidate<kernel::HopperConfig>> hopper_candidates(const Shape& shape, const DeviceFigures& device);
int hopper_panel(const Shape& shape, const DeviceFigures& device, const kernel::HopperConfig& config);
BlackwellPlan make_blackwell_plan(const Shape& shape, const DeviceFigures& device);

// The kernel that a plan names, and the choices that lead to it.
std::string describe(const kernel::HopperConfig& config);     // "cooperative 128x256x64, 4 stages, ..."
std::string describe(const kernel::BlackwellConfig& config);  // "mxfp4 128x224x256, 4 stages, 2 accumulators"
HopperTuning tuning_of(const kernel::HopperConfig& config);
BlackwellTuning tuning_of(const kernel::BlackwellConfig& config);

// The plan as callers see it.
PlanInfo info_of(const Shape& shape, const HopperPlan& plan);
PlanInfo info_of(const Shape& shape, const BlackwellPlan& plan);

}  // namespace moxie::plan
