// Misuse of the grouped product: every rule of moxie/gemm.h has a call that breaks it, and the error has the right code
// and names the argument. No device is needed: the checks come before anything is launched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "ops/check.h"
#include "ops/gemm.h"

namespace moxie {
namespace {

using ::testing::HasSubstr;

// Addresses far apart that no one reads.
template <typename T = void>
T* at(uintptr_t megabytes, uintptr_t bytes = 0) {
  return reinterpret_cast<T*>((megabytes << 20) + bytes);
}

struct Call {
  GemmProblem problem;
  GemmArguments arguments;
  plan::DeviceFigures device;
};

void run(const Call& call) {
  const auto prepared = ops::prepare_gemm(call.device, call.problem);
  ops::check_arguments(call.problem, call.arguments, prepared->workspace_bytes);
}

// 100 rows in 4 groups, gated, both outputs.
Call good(Grouping grouping = Grouping::Offsets) {
  Call call;
  GemmProblem& p = call.problem;
  p.grouping = grouping;
  p.groups = grouping == Grouping::Dense ? 1 : 4;
  p.m = 100, p.n = 64, p.k = 72;
  p.bias = true;
  p.activation = Activation::SwigluOai;
  p.pre = DataType::Bf16, p.out = DataType::F32;
  p.tile_m = 128;  // tiles of 64 rows for groups of so few would need no workspace
  GemmArguments& a = call.arguments;
  if (grouping == Grouping::Pointers) {
    a.arrays.a = at<const void*>(1), a.arrays.b = at<const void*>(2), a.arrays.bias = at<const void*>(3);
    a.arrays.lda = at<const int64_t>(4), a.arrays.ldb = at<const int64_t>(5), a.arrays.sizes = at<const int32_t>(6);
    a.pre_pointers = at<void*>(7), a.out_pointers = at<void*>(8);
    a.pre_lds = at<const int64_t>(9), a.out_lds = at<const int64_t>(10);
  } else {
    a.a = at(1), a.b = at(2), a.bias = at(3), a.pre = at(4), a.out = at(5), a.sizes = at<const int32_t>(6);
  }
  a.workspace = at(16);
  a.workspace_bytes = 1 << 20;
  return call;
}

constexpr Grouping kAll[] = {Grouping::Dense,     Grouping::Batched, Grouping::Offsets,
                             Grouping::RowGroups, Grouping::Masked,  Grouping::Pointers};

TEST(Arguments, GoodOnesPass) {
  for (Grouping grouping : kAll) {
    EXPECT_NO_THROW(run(good(grouping))) << int(grouping);
    Call strided = good(grouping);
    strided.arguments.lda = 80, strided.arguments.ldb = 72, strided.arguments.ld_pre = 72,
    strided.arguments.ld_out = 36;
    EXPECT_NO_THROW(run(strided)) << int(grouping);
    Call unknown = good(grouping);
    unknown.problem.expected_rows = 25;
    EXPECT_NO_THROW(run(unknown));
  }
  Call infinite = good();
  infinite.arguments.limit = std::numeric_limits<float>::infinity();
  EXPECT_NO_THROW(run(infinite));
  Call other = good();  // limit means nothing to the other activations
  other.problem.activation = Activation::Swiglu, other.arguments.limit = -1;
  EXPECT_NO_THROW(run(other));
}

TEST(Arguments, EmptyProductsNeedNoPointers) {
  for (Grouping grouping : kAll) {
    for (int64_t GemmProblem::*size : {&GemmProblem::m, &GemmProblem::n}) {
      Call call = good(grouping);
      call.problem.*size = 0;
      call.arguments = {};
      EXPECT_NO_THROW(run(call)) << int(grouping);
      EXPECT_TRUE(ops::is_empty(call.problem));
    }
    Call no_k = good(grouping);  // the product is zero, but bias and activation apply
    no_k.problem.k = 0;
    no_k.arguments.a = no_k.arguments.b = nullptr;
    EXPECT_NO_THROW(run(no_k)) << int(grouping);
    EXPECT_FALSE(ops::is_empty(no_k.problem));
  }
}

struct Misuse {
  const char* name;
  const char* words;  // of the sentence
  std::function<void(Call&)> change;
  Grouping grouping = Grouping::Offsets;
  ErrorCode code = ErrorCode::InvalidArgument;
};

const Misuse kMisuses[] = {
    {"GroupingUnknown", "grouping is 17", [](Call& c) { c.problem.grouping = Grouping(17); }},
    {"ActivationUnknown", "activation is -1", [](Call& c) { c.problem.activation = Activation(-1); }},
    {"GateUnknown", "gate is 3", [](Call& c) { c.problem.gate = GateLayout(3); }},
    {"PreTypeUnknown", "pre is 5", [](Call& c) { c.problem.pre = DataType(5); }},
    {"OutTypeUnknown", "out is 9", [](Call& c) { c.problem.out = DataType(9); }},
    {"NoGroups", "groups is 0", [](Call& c) { c.problem.groups = 0; }},
    {"TooManyGroups", "groups is 70000, but must be 1 to 65535", [](Call& c) { c.problem.groups = 70000; }},
    {"DenseGroups", "a dense product has 1", [](Call& c) { c.problem.groups = 2; }, Grouping::Dense},
    {"NegativeM", "m is -1", [](Call& c) { c.problem.m = -1; }},
    {"NegativeN", "n is -64", [](Call& c) { c.problem.n = -64; }},
    {"NegativeK", "k is -8", [](Call& c) { c.problem.k = -8; }},
    {"HugeM", "m is 4294967296", [](Call& c) { c.problem.m = int64_t{1} << 32; }},
    {"HugeN", "n is 2147483648", [](Call& c) { c.problem.n = int64_t{1} << 31; }},
    {"HugeK", "k is 2147483648", [](Call& c) { c.problem.k = int64_t{1} << 31; }},
    {"HugeRows", "groups * m", [](Call& c) { c.problem.m = 1 << 30; }, Grouping::Masked},
    {"HugeB", "groups * n", [](Call& c) { c.problem.n = 1 << 30; }},
    {"HugeProduct", "2^31 tiles", [](Call& c) { c.problem.groups = 1, c.problem.m = c.problem.n = 1 << 30; }},
    {"GatedN", "n is 72, but must be a multiple of 16", [](Call& c) { c.problem.n = 72; }},
    {"N", "n is 68, but must be a multiple of 8",
     [](Call& c) { c.problem.activation = Activation::Relu, c.problem.n = 68; }},
    {"K", "k is 12, but must be a multiple of 8", [](Call& c) { c.problem.k = 12; }},
    {"NoOutput", "at least one output", [](Call& c) { c.problem.pre.reset(), c.problem.out.reset(); }},
    {"HostRowsCount", "host_rows has 3 entries, but groups is 4",
     [](Call& c) {
       c.problem.host_rows = {1, 2, 3};
     }},
    {"HostRowsNegative", "host_rows[2] is -5",
     [](Call& c) {
       c.problem.host_rows = {1, 2, -5, 0};
     }},
    {"HostRowsSum", "host_rows sum to 101",
     [](Call& c) {
       c.problem.host_rows = {50, 50, 1, 0};
     }},
    {"HostRowsPastM", "host_rows[3] is 101, but m is 100",
     [](Call& c) {
       c.problem.host_rows = {1, 2, 0, 101};
     },
     Grouping::Masked},
    {"HostRowsBatched", "host_rows[1] is 99",
     [](Call& c) {
       c.problem.host_rows = {100, 99, 100, 100};
     },
     Grouping::Batched},
    {"ExpectedRows", "expected_rows is -1", [](Call& c) { c.problem.expected_rows = -1; }},
    {"SinkType", "sinks[0].type",
     [](Call& c) {
       c.problem.sinks = {{"", "x", {1}, {}}};
     }},
    {"SinkSource", "sinks[0].source",
     [](Call& c) {
       c.problem.sinks = {{"X", "", {1}, {}}};
     }},
    {"SinkParams", "sinks[0].params is empty",
     [](Call& c) {
       c.problem.sinks = {{"X", "x", {}, {}}};
     }},
    {"SinkParamsSize", "sinks[0].params has 2000",
     [](Call& c) {
       c.problem.sinks = {{"X", "x", std::vector<uint8_t>(2000), {}}};
     }},
    {"SinkStaging", "sinks[0].needs.staging_bytes is 1000",
     [](Call& c) {
       c.problem.sinks = {{"X", "x", {1}, {1000, false}}};
     }},
    {"SinkCount", "sinks has 9",
     [](Call& c) {
       c.problem.sinks.assign(9, {"X", "x", {1}, {}});
     }},
    {"TileM", "tile_m is 32", [](Call& c) { c.problem.tile_m = 32; }},
    {"Cluster", "cluster is 3", [](Call& c) { c.problem.cluster = 3; }},
    {"Tile", "256x256 tile", [](Call& c) { c.problem.tile_m = 256, c.problem.tile_n = 256; }},
    {"ScheduleOnBlackwell", "sm_100a have only one",
     [](Call& c) { c.device.arch = 100, c.problem.schedule = WarpSchedule::PingPong; }},
    {"Mxfp4OnHopper", "MXFP4 operands needs sm_100a",
     [](Call& c) { c.problem.format = OperandFormat::Mxfp4, c.problem.k = 96; }, Grouping::Offsets,
     ErrorCode::Unsupported},
    {"Ampere", "sm_80", [](Call& c) { c.device.arch = 80; }, Grouping::Dense, ErrorCode::Unsupported},

    {"NullA", "a is null", [](Call& c) { c.arguments.a = nullptr; }},
    {"NullB", "b is null", [](Call& c) { c.arguments.b = nullptr; }},
    {"NullBias", "bias is null", [](Call& c) { c.arguments.bias = nullptr; }},
    {"NullPre", "pre is null", [](Call& c) { c.arguments.pre = nullptr; }},
    {"NullOut", "out is null", [](Call& c) { c.arguments.out = nullptr; }},
    {"NullOffsets", "sizes is null", [](Call& c) { c.arguments.sizes = nullptr; }},
    {"NullIndices", "sizes is null", [](Call& c) { c.arguments.sizes = nullptr; }, Grouping::RowGroups},
    {"NullMasked", "sizes is null", [](Call& c) { c.arguments.sizes = nullptr; }, Grouping::Masked},
    {"AlignA", "aligned to 16", [](Call& c) { c.arguments.a = at(1, 8); }},
    {"AlignB", "aligned to 16", [](Call& c) { c.arguments.b = at(2, 2); }},
    {"AlignBias", "bias is 0x300004", [](Call& c) { c.arguments.bias = at(3, 4); }},
    {"AlignPre", "pre is 0x400008", [](Call& c) { c.arguments.pre = at(4, 8); }},
    {"AlignOut", "out is 0x500004", [](Call& c) { c.arguments.out = at(5, 4); }},
    {"AlignSizes", "aligned to 4", [](Call& c) { c.arguments.sizes = at<const int32_t>(6, 2); }},
    {"LdaSmall", "lda is 64, but must be at least the width of a, 72", [](Call& c) { c.arguments.lda = 64; }},
    {"LdaMultiple", "lda is 76, but must be a multiple of 8", [](Call& c) { c.arguments.lda = 76; }},
    {"LdaNegative", "lda is -72", [](Call& c) { c.arguments.lda = -72; }},
    {"LdaHuge", "lda is", [](Call& c) { c.arguments.lda = int64_t{1} << 40; }},
    {"LdbMultiple", "ldb is 73", [](Call& c) { c.arguments.ldb = 73; }},
    {"LdPreMultiple", "ld_pre is 68, but must be a multiple of 8", [](Call& c) { c.arguments.ld_pre = 68; }},
    {"LdPreSmall", "ld_pre is 32", [](Call& c) { c.arguments.ld_pre = 32; }},
    {"LdOutMultiple", "ld_out is 38, but must be a multiple of 4", [](Call& c) { c.arguments.ld_out = 38; }},
    {"LdOutSmall", "ld_out is 24, but must be at least the width of out, 32", [](Call& c) { c.arguments.ld_out = 24; }},
    {"Terabytes", "2^40 bytes", [](Call& c) { c.arguments.lda = int64_t{1} << 34; }},
    {"OutOverA", "out overlaps a", [](Call& c) { c.arguments.out = at(1, 1024); }},
    {"OutOverB", "out overlaps b", [](Call& c) { c.arguments.out = at(2, 4 * 64 * 72 * 2 - 16); }},
    {"PreOverBias", "pre overlaps bias", [](Call& c) { c.arguments.pre = at(3, 496); }},
    {"PreOverOut", "pre overlaps out", [](Call& c) { c.arguments.pre = at(5, 99 * 32 * 4); }},
    {"OutOverSizes", "out overlaps sizes", [](Call& c) { c.arguments.sizes = at<const int32_t>(5, 4); }},
    {"OutOverIndices", "out overlaps sizes", [](Call& c) { c.arguments.sizes = at<const int32_t>(5, -396); },
     Grouping::RowGroups},
    {"OutOverWorkspace", "out overlaps workspace", [](Call& c) { c.arguments.workspace = at(5, 128); }},
    {"WorkspaceOverA", "workspace overlaps a", [](Call& c) { c.arguments.workspace = at(1, 1024); }},
    {"NullWorkspace", "workspace is null", [](Call& c) { c.arguments.workspace = nullptr; }},
    {"SmallWorkspace", "workspace_bytes is 128", [](Call& c) { c.arguments.workspace_bytes = 128; }},
    {"AlignWorkspace", "aligned to 128", [](Call& c) { c.arguments.workspace = at(16, 64); }},
    {"LimitZero", "limit is 0", [](Call& c) { c.arguments.limit = 0; }},
    {"LimitNegative", "limit is -7", [](Call& c) { c.arguments.limit = -7; }},
    {"LimitNan", "limit is nan", [](Call& c) { c.arguments.limit = NAN; }},
    {"AlphaNan", "alpha is nan", [](Call& c) { c.arguments.alpha = NAN; }},

    {"ArraysA", "arrays.a is null", [](Call& c) { c.arguments.arrays.a = nullptr; }, Grouping::Pointers},
    {"ArraysB", "arrays.b is null", [](Call& c) { c.arguments.arrays.b = nullptr; }, Grouping::Pointers},
    {"ArraysBias", "arrays.bias is null", [](Call& c) { c.arguments.arrays.bias = nullptr; }, Grouping::Pointers},
    {"ArraysLda", "arrays.lda is null", [](Call& c) { c.arguments.arrays.lda = nullptr; }, Grouping::Pointers},
    {"ArraysLdb", "arrays.ldb", [](Call& c) { c.arguments.arrays.ldb = at<const int64_t>(5, 4); }, Grouping::Pointers},
    {"ArraysSizes", "arrays.sizes is null", [](Call& c) { c.arguments.arrays.sizes = nullptr; }, Grouping::Pointers},
    {"PrePointers", "pre_pointers is null", [](Call& c) { c.arguments.pre_pointers = nullptr; }, Grouping::Pointers},
    {"OutPointers", "out_pointers is null", [](Call& c) { c.arguments.out_pointers = nullptr; }, Grouping::Pointers},
    {"PreLds", "pre_lds is null", [](Call& c) { c.arguments.pre_lds = nullptr; }, Grouping::Pointers},
    {"OutLds", "out_lds is null", [](Call& c) { c.arguments.out_lds = nullptr; }, Grouping::Pointers},
    {"PointersWorkspace", "workspace is null", [](Call& c) { c.arguments.workspace = nullptr; }, Grouping::Pointers},
};

class ArgumentsMisuse : public ::testing::TestWithParam<Misuse> {};

TEST_P(ArgumentsMisuse, IsNamed) {
  const Misuse& misuse = GetParam();
  Call call = good(misuse.grouping);
  ASSERT_NO_THROW(run(call));
  misuse.change(call);
  try {
    run(call);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), misuse.code) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(misuse.words));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

void PrintTo(const Misuse& misuse, std::ostream* stream) { *stream << misuse.name; }

INSTANTIATE_TEST_SUITE_P(Gemm, ArgumentsMisuse, ::testing::ValuesIn(kMisuses),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Arguments, OutputsSideBySideInOneBufferPass) {
  // pre and out as the two halves of the rows of one matrix overlap by range only; that is refused, but blocks in a row
  // are not.
  Call call = good();
  call.problem.pre = call.problem.out = DataType::Bf16;
  call.arguments.out = at(4, 100 * 64 * 2);
  EXPECT_NO_THROW(run(call));
  call.arguments.out = at(4, 100 * 64 * 2 - 16);
  EXPECT_THROW(run(call), Error);
}

TEST(Arguments, WorkspaceFollowsFromTheMapsThatChange) {
  const auto bytes = [](Grouping grouping, std::optional<DataType> pre, std::optional<DataType> out) {
    Call call = good(grouping);
    call.problem.pre = pre, call.problem.out = out, call.problem.cluster = 1;
    return ops::prepare_gemm(call.device, call.problem)->workspace_bytes;
  };
  const auto bf16 = DataType::Bf16;
  const size_t slots = 132 * 128 * kernel::kMapSlots;
  for (Grouping grouping : {Grouping::Dense, Grouping::Batched, Grouping::RowGroups})
    EXPECT_EQ(bytes(grouping, bf16, bf16), 0u);
  for (Grouping grouping : {Grouping::Offsets, Grouping::Masked}) {
    EXPECT_EQ(bytes(grouping, {}, bf16), slots * 2);
    EXPECT_EQ(bytes(grouping, bf16, bf16), slots * 4);
  }
  EXPECT_EQ(bytes(Grouping::Pointers, bf16, {}), slots * 4);
  EXPECT_EQ(bytes(Grouping::Pointers, bf16, bf16), slots * 6);
  Call few = good();  // 25 rows a group
  few.problem.tile_m = 64;
  EXPECT_EQ(ops::prepare_gemm(few.device, few.problem)->workspace_bytes, 0u);
  few.problem.expected_rows = 256;
  EXPECT_EQ(ops::prepare_gemm(few.device, few.problem)->workspace_bytes, slots * 4);
  Call custom = good();  // a sink that stores directly
  custom.problem.pre.reset(), custom.problem.out.reset();
  custom.problem.sinks = {{"X", "struct X {};", {1}, {0, false}}};
  EXPECT_EQ(ops::prepare_gemm(custom.device, custom.problem)->workspace_bytes, 0u);
}

TEST(Arguments, ExplainPlanChecksToo) {
  GemmProblem problem = good().problem;
  problem.tile_m.reset();
  EXPECT_THAT(explain_plan(problem), HasSubstr("chosen by model"));
  EXPECT_THROW(explain_plan(problem, 80), Error);
  EXPECT_THROW(explain_plan(problem, 90, 0), Error);
  problem.k = 7;
  EXPECT_THROW(explain_plan(problem), Error);
}

TEST(Arguments, APlanIsMadeOncePerProblem) {
  const Call call = good();
  const auto first = ops::prepare_gemm(call.device, call.problem);
  EXPECT_EQ(first, ops::prepare_gemm(call.device, call.problem));
  const std::function<void(Call&)> changes[] = {
      [](Call& c) { c.problem.m += 1; },
      [](Call& c) { c.problem.k += 8; },
      [](Call& c) {
        c.problem.host_rows = {1, 2, 3, 4};
      },
      [](Call& c) { c.problem.tile_n = 64; },
      [](Call& c) { c.problem.pre.reset(); },
      [](Call& c) {
        c.problem.sinks = {{"X", "struct X {};", {1}, {0, false}}};
      },
      [](Call& c) { c.device.sm_count = 4; },
  };
  for (const auto& change : changes) {
    Call other = call;
    change(other);
    EXPECT_NE(first, ops::prepare_gemm(other.device, other.problem));
  }
  Call rows = call;  // another plan, but the same kernel
  rows.problem.m += 1;
  EXPECT_EQ(first->kernel_key, ops::prepare_gemm(rows.device, rows.problem)->kernel_key);
}

}  // namespace
}  // namespace moxie
