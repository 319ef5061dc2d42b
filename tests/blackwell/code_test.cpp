// SPDX-License-Identifier: Apache-2.0
// What plans for sm_100a return fits the device, and a kernel has what its text must have. That plans assemble too,
// tests/assembly finds out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "jit/jit.h"
#include "tests/assembly/grid.h"
#include "tests/support/planned.h"

namespace moxie::test {
namespace {

TEST(Plan, FitsTheDeviceForAnyShape) {
  const DeviceFigures device = assembly::b200();
  const std::vector<ProductSpec> problems = assembly::grid();
  ASSERT_GE(problems.size(), 500u);
  for (const ProductSpec& p : problems) {
    SCOPED_TRACE(assembly::describe(p));
    const auto prepared = test::plan_of(device, p);
    const kernel::BlackwellConfig& c = prepared.blackwell().config;
    EXPECT_LE(prepared.shared_bytes, device.shared_bytes);
    EXPECT_LE(kernel::tensor_layout(c).columns, kernel::kTensorColumns);
    EXPECT_GE(c.stages, 2);
    EXPECT_EQ(c.format, p.format);
    EXPECT_EQ(c.swap_ab, p.swap_ab.value_or(c.swap_ab));
    EXPECT_EQ(c.scheduling, p.scheduling.value_or(c.scheduling));
    // One accumulator only where two do not fit.
    kernel::BlackwellConfig two = c;
    two.accumulators = 2;
    EXPECT_EQ(c.accumulators == 2, kernel::tensor_layout(two).columns <= kernel::kTensorColumns);
  }
}

// A grid that never says so keeps the launch behind it from beginning early.
TEST(Code, AKernelLetsTheNextBegin) {
  const ProductSpec p = assembly::grid().front();
  jit::Request request = ops::kernel_request(test::plan_of(assembly::b200(), p), test::describe(p));
  request.kind = jit::ImageKind::Ptx;
  EXPECT_THAT(jit::obtain(request).bytes, testing::HasSubstr("griddepcontrol.launch_dependents;"));
}

}  // namespace
}  // namespace moxie::test
