// SPDX-License-Identifier: Apache-2.0
// What plans for sm_100a return fits the device. That it assembles too, tests/assembly finds out.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace moxie::test
