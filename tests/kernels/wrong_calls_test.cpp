// What sm_90a does not have is refused with a sentence before anything happens: formats with scales, k groups, launch
// control, swapped operands. tests/unit/arguments_test.cpp has the misuse that needs no device.
#include <gmock/gmock.h>

#include "tests/kernels/recorder.h"

namespace moxie::test {
namespace {

struct Wrong {
  ErrorCode code;
  const char* says;
  void (*spoil)(GemmProblem&, GemmArguments&);
};
constexpr auto kInvalid = ErrorCode::InvalidArgument, kUnsupported = ErrorCode::Unsupported;
const Wrong kWrong[] = {
    {kUnsupported, "architecture sm_90a, but gemm of MXFP4 operands needs sm_100a",
     [](auto& p, auto& x) { p.format = OperandFormat::Mxfp4, x.sfa = x.sfb = x.b; }},
    {kUnsupported, "architecture sm_90a, but gemm of NVFP4 operands needs sm_100a",
     [](auto& p, auto& x) { p.format = OperandFormat::Nvfp4, x.sfa = x.sfb = x.b; }},
    {kUnsupported, "grouping is KGroups, which gemm has on sm_100a only",
     [](auto& p, auto&) { p.grouping = Grouping::KGroups; }},
    {kInvalid, "scheduling is LaunchControl, but the kernels of sm_90a",
     [](auto& p, auto&) { p.scheduling = TileSource::LaunchControl; }},
    {kInvalid, "swap_ab is true, but the kernels of sm_90a", [](auto& p, auto&) { p.swap_ab = true; }},
    {kInvalid, "tile_n is 48, but only 64 to 256", [](auto& p, auto&) { p.tile_n = 48; }},
};

TEST(WrongCalls, AreRefusedBeforeAnythingHappens) {
  Job job;
  job.problem.grouping = Grouping::Offsets;
  job.rows = {20, 0, 7};
  Layer layer(job);
  layer.poison();
  device().synchronize();
  Recorder recorder;
  const auto before = all_bytes();
  for (const Wrong& wrong : kWrong) {
    SCOPED_TRACE(wrong.says);
    GemmProblem p = layer.problem();
    GemmArguments x = layer.arguments();
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
