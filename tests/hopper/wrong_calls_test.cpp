// SPDX-License-Identifier: Apache-2.0
// What sm_90a does not have is refused with a sentence before anything happens: formats with scales, k groups, launch
// control, swapped operands. tests/unit/arguments_test.cpp has the misuse that needs no device.
#include <gmock/gmock.h>

#include "tests/support/grouped_product.h"
#include "tests/support/recorder.h"

namespace moxie::test {
namespace {

struct Wrong {
  ErrorCode code;
  const char* says;
  void (*spoil)(ProductSpec&, ProductTensors&);
};
constexpr auto kInvalid = ErrorCode::InvalidArgument, kUnsupported = ErrorCode::Unsupported;
const Wrong kWrong[] = {
    {kUnsupported, "architecture sm_90a, but mxfp4 operands need sm_100a",
     [](auto& p, auto& x) { p.format = OperandFormat::Mxfp4, x.sfa = x.sfb = x.b; }},
    {kUnsupported, "architecture sm_90a, but nvfp4 operands need sm_100a",
     [](auto& p, auto& x) { p.format = OperandFormat::Nvfp4, x.sfa = x.sfb = x.b; }},
    {kUnsupported, "k-groups, which need sm_100a", [](auto& p, auto&) { p.grouping = Grouping::KGroups; }},
    {kInvalid, "tile_n is 48, but only 64 to 256", [](auto& p, auto&) { p.tile_n = 48; }},
};

TEST(WrongCalls, AreRefusedBeforeAnythingHappens) {
  Job job;
  job.problem.grouping = Grouping::Offsets;
  job.rows = {20, 0, 7};
  GroupedProduct product(job);
  product.poison();
  device().synchronize();
  Recorder recorder;
  const auto before = all_bytes();
  for (const Wrong& wrong : kWrong) {
    SCOPED_TRACE(wrong.says);
    ProductSpec p = product.problem();
    ProductTensors x = product.arguments();
    wrong.spoil(p, x);
    const size_t launches = recorder.launches([&](CUstream stream) {
      x.stream = stream;
      try {
        gemm(device(), p, x);
        ADD_FAILURE() << "was accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), wrong.code);
        EXPECT_THAT(error.what(), testing::HasSubstr(wrong.says));
      }
    });
    EXPECT_EQ(launches, 0u);
  }
  EXPECT_TRUE(all_bytes() == before) << "device memory was touched";
}

}  // namespace
}  // namespace moxie::test
