// The machine code of the sm_100a kernels: it assembles, nothing spills, and shared and tensor memory suffice.
#include <gmock/gmock.h>

#include <random>

#include "jit/jit.h"
#include "ops/gemm.h"
#include "tests/blackwell/mxfp4.h"

namespace moxie::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

plan::DeviceFigures b200() { return {100, 148, 232448}; }

// A problem of the given turn: everything a plan can be asked for comes up, and random extents.
GemmProblem problem_of(int turn, std::mt19937_64& random) {
  const auto below = [&](int64_t n) { return int64_t(random() % uint64_t(n)); };
  constexpr Grouping kGroupings[] = {Grouping::Dense, Grouping::Offsets, Grouping::Masked, Grouping::RowGroups,
                                     Grouping::Batched};
  GemmProblem p;
  p.format = turn % 4 == 3 ? OperandFormat::Bf16 : turn % 4 == 1 ? OperandFormat::Nvfp4 : OperandFormat::Mxfp4;
  p.grouping = kGroupings[turn % 5];
  p.groups = p.grouping == Grouping::Dense ? 1 : 1 + below(64);
  p.m = int64_t{1} << below(14), p.n = 16 * (1 + below(512)), p.k = 32 * (1 + below(256));
  p.activation = Activation(below(10));
  p.bias = below(2) == 0;
  if (below(3) == 0) p.pre = below(2) ? DataType::Bf16 : DataType::F32;
  p.out = below(2) ? DataType::Bf16 : DataType::F32;
  if (turn % 7 < 3) p.out = below(2) ? DataType::Mxfp4 : DataType::Mxfp8, p.n = (p.n + 63) / 64 * 64;
  if (turn % 3 == 0) p.scheduling = Scheduling(below(2));
  return p;
}

TEST(Plan, FitsTheDeviceForAnyShape) {
  std::mt19937_64 random(5);
  for (int turn = 0; turn < 500; ++turn) {
    const GemmProblem p = problem_of(turn, random);
    const auto prepared = ops::prepare_gemm(b200(), p);
    ASSERT_TRUE(prepared->blackwell);
    const kernel::BlackwellConfig& c = prepared->blackwell->config;
    EXPECT_LE(prepared->shared_bytes, b200().shared_bytes);
    EXPECT_LE(kernel::tensor_layout(c).columns, kernel::kTensorColumns);
    EXPECT_GE(c.stages, 2);
    EXPECT_EQ(c.format, p.format);
    // One accumulator only where two do not fit.
    kernel::BlackwellConfig two = c;
    two.accumulators = 2;
    EXPECT_EQ(c.accumulators == 2, kernel::tensor_layout(two).columns <= kernel::kTensorColumns);
  }
}

TEST(Plan, PrefersTwoAccumulatorsWhereThereAreManyTiles) {
  GemmProblem p;
  p.format = OperandFormat::Mxfp4;
  p.m = 4096, p.n = 4096, p.k = 7168;
  p.out = DataType::F32;
  const auto prepared = ops::prepare_gemm(b200(), p);
  EXPECT_EQ(prepared->blackwell->config.accumulators, 2);
  EXPECT_THAT(explain_plan(p, 100, 148), HasSubstr("chosen by model"));
}

class Compiled : public testing::TestWithParam<int> {};
TEST_P(Compiled, WithoutSpills) {
  std::mt19937_64 random(uint64_t(GetParam()) * 977);
  const GemmProblem p = problem_of(GetParam(), random);
  const auto prepared = ops::prepare_gemm(b200(), p);
  jit::Request request = ops::kernel_request(prepared->blackwell->config, p);
  request.kind = jit::ImageKind::Cubin;
  std::string log;
  jit::Compiler::get().compile(request, &log);
  EXPECT_THAT(log, HasSubstr("0 bytes spill stores, 0 bytes spill loads")) << log << request.source;
}
INSTANTIATE_TEST_SUITE_P(Code, Compiled, testing::Range(0, 12));

// The widest tile of every kind, where the registers are fewest.
TEST(Code, EveryWidthOfEachFormatAssembles) {
  for (int block_n = 16; block_n <= 256; block_n += 16) {
    GemmProblem p;
    p.format = block_n % 32 != 0 || block_n % 64 == 0 ? OperandFormat::Mxfp4 : OperandFormat::Bf16;
    p.grouping = Grouping::Offsets;
    p.groups = 8, p.m = 4096, p.n = 4096, p.k = 4096;
    p.bias = true;
    p.activation = block_n % 32 != 0 ? Activation::GeluErf : Activation::SwigluOai;
    p.tile_n = block_n;
    if (block_n % 64 == 0) p.cluster = 2;
    p.pre = DataType::F32;
    const auto prepared = ops::prepare_gemm(b200(), p);
    jit::Request request = ops::kernel_request(prepared->blackwell->config, p);
    std::string log;
    jit::Compiler::get().compile(request, &log);
    EXPECT_THAT(log, HasSubstr("0 bytes spill stores, 0 bytes spill loads")) << block_n << log;
  }
}

// Swapped operands: every tile of each format.
TEST(Code, EverySwappedTileAssembles) {
  for (int rows = 16; rows <= 256; rows *= 2) {
    for (const OperandFormat format : {OperandFormat::Mxfp4, OperandFormat::Bf16}) {
      GemmProblem p;
      p.format = format;
      p.grouping = rows == 32 ? Grouping::RowGroups : Grouping::Masked;
      p.groups = 8, p.m = 4096, p.n = 4096, p.k = 4096;
      p.bias = true;
      p.activation = rows == 64 ? Activation::GeluErf : Activation::SwigluOai;
      p.gate = format == OperandFormat::Bf16 ? GateLayout::Split : GateLayout::Interleaved;
      p.swap_ab = true;
      p.tile_m = rows;
      if (rows == 128) p.cluster = 2;
      p.pre = DataType::F32;
      const auto prepared = ops::prepare_gemm(b200(), p);
      jit::Request request = ops::kernel_request(prepared->blackwell->config, p);
      std::string log;
      jit::Compiler::get().compile(request, &log);
      EXPECT_THAT(log, HasSubstr("0 bytes spill stores, 0 bytes spill loads")) << rows << log;
    }
  }
}

}  // namespace
}  // namespace moxie::test
