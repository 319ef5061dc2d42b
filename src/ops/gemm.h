// SPDX-License-Identifier: Apache-2.0
// A kernel that is planned for a product, and what a launch of it needs. Internal: tests use it to look at a kernel's
// source and machine code.
#pragma once
#include <optional>
#include <variant>
#include <vector>

#include "jit/jit.h"
#include "moxie/gemm.h"
#include "plan/plan.h"

namespace moxie::ops {

// The sizes and types of a description. `total` stands for the rows of groupings whose calls bring them.
plan::ProblemShape shape_of(const GemmDescription& description, int64_t total);
plan::Shape plan_shape(const GemmDescription& description, int64_t total);

// The rows for which kernels are planned where the calls bring them: one number from the description, or one for each
// range of rows (plan::planned_range). After check_description.
std::vector<int64_t> planned_totals(const GemmDescription& description);

struct PlannedKernel {
  std::variant<plan::HopperPlan, plan::BlackwellPlan> plan;
  int arch = 90;  // the architecture that it is compiled for; the kernels of packed weights run on both
  std::vector<SinkNeeds> needs;
  int mapped_sinks = 0;         // sinks that store through a tensor map
  bool rows_are_known = false;  // by the caller, when the plan was made
  int shared_bytes = 0;
  int64_t row_alignment = 1;

  template <class Visitor>
  auto visit(Visitor&& visitor) const {
    return std::visit(std::forward<Visitor>(visitor), plan);
  }
};

// Checks and plans. Throws as GroupedGemm does.
PlannedKernel plan_kernel(const DeviceFigures& device, const GemmDescription& description, int64_t total);

// Blocks of a launch, a multiple of the cluster: as many as the device holds and there are tiles.
int64_t launch_blocks(const PlannedKernel& kernel, const DeviceFigures& device, const plan::ProblemShape& shape);
size_t workspace_bytes(const PlannedKernel& kernel, const DeviceFigures& device, const plan::ProblemShape& shape);

// The translation unit of a configuration with the description's sinks, for jit.
jit::Request kernel_request(const kernel::HopperConfig& config, const GemmDescription& description);
jit::Request kernel_request(const kernel::BlackwellConfig& config, const GemmDescription& description);
jit::Request kernel_request(const PlannedKernel& kernel, const GemmDescription& description);

// Names a request among those for one device: all that the compiler sees of it but the architecture.
std::string request_key(const jit::Request& request);

}  // namespace moxie::ops
