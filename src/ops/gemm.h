// What gemm.cpp works out once per problem. Internal; tests use it to look at a kernel's source and machine code.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "jit/jit.h"
#include "moxie/gemm.h"
#include "plan/plan.h"

namespace moxie::ops {

struct PreparedGemm {
  plan::Plan plan;                               // without its candidates
  std::optional<plan::BlackwellPlan> blackwell;  // on sm_100a, in place of `plan`
  std::vector<SinkNeeds> needs;
  int shared_bytes = 0;
  int blocks = 0;  // the most that a launch uses, a multiple of the cluster
  size_t workspace_bytes = 0;
  int64_t row_alignment = 1;
  std::string kernel_key;  // names the kernel within the process
};

plan::DeviceFigures figures_of(const DeviceInfo& info);
plan::Shape shape_of(const GemmProblem& problem);

// Checks and plans `problem`, or finds what an earlier call found. Throws as gemm() does for the problem.
std::shared_ptr<const PreparedGemm> prepare_gemm(const plan::DeviceFigures& device, const GemmProblem& problem);

// The translation unit of a configuration with the problem's sinks, for jit.
jit::Request kernel_request(const kernel::HopperConfig& config, const GemmProblem& problem);
jit::Request kernel_request(const kernel::BlackwellConfig& config, const GemmProblem& problem);

}  // namespace moxie::ops
