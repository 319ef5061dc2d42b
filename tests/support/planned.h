// SPDX-License-Identifier: Apache-2.0
// What the library makes of a product before it launches, for tests that look at plans, sources and machine code.
#pragma once
#include "ops/check.h"
#include "ops/gemm.h"
#include "tests/support/product_spec.h"

namespace moxie::test {

struct Planned : ops::PlannedKernel {
  size_t workspace_bytes = 0;
  int64_t blocks = 0;
  std::string key;  // of its source

  const plan::HopperPlan& hopper() const { return std::get<plan::HopperPlan>(plan); }
  const plan::BlackwellPlan& blackwell() const { return std::get<plan::BlackwellPlan>(plan); }
};

inline Planned plan_of(const DeviceFigures& device, const ProductSpec& s) {
  const GemmDescription d = describe(s);
  Planned planned{ops::plan_kernel(device, d, s.m), 0, 0, ""};
  const plan::ProblemShape shape = ops::shape_of(d, s.m);
  ops::check_sizes(shape);
  planned.workspace_bytes = ops::workspace_bytes(planned, device, shape);
  planned.blocks = ops::launch_blocks(planned, device, shape);
  planned.key = ops::request_key(ops::kernel_request(planned, d));
  return planned;
}

inline jit::Request request_of(const DeviceFigures& device, const ProductSpec& s) {
  return ops::kernel_request(plan_of(device, s), describe(s));
}

inline plan::Shape shape_of(const ProductSpec& s) { return ops::plan_shape(describe(s), s.m); }

}  // namespace moxie::test
