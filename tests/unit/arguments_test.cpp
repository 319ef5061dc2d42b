// SPDX-License-Identifier: Apache-2.0
// Misuse of the grouped product: every rule of moxie/gemm.h has a call that breaks it, and the error has the right code
// and names the argument. No device is needed: the checks come before anything is launched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "ops/check.h"
#include "tests/support/planned.h"

namespace moxie {
namespace {

using ::testing::HasSubstr;

// Addresses far apart that no one reads.
template <typename T = void>
T* at(uintptr_t megabytes, uintptr_t bytes = 0) {
  return reinterpret_cast<T*>((megabytes << 20) + bytes);
}

struct Call {
  ProductSpec problem;
  ProductTensors arguments;
  DeviceFigures device;
};

void run(const Call& call) {
  const auto planned = test::plan_of(call.device, call.problem);
  const GemmDescription description = test::describe(call.problem);
  const WorkspaceView workspace{call.arguments.workspace, call.arguments.workspace_bytes};
  const plan::ProblemShape shape = test::shape_of(call.problem);
  const std::vector<SinkParams> sinks = test::sink_params(call.problem);
  if (call.problem.grouping == Grouping::Pointers) {
    GroupPointers pointers = test::pointers_of(call.arguments);
    pointers.sinks = sinks;
    ops::check_tensors(shape, description, pointers, workspace, planned.workspace_bytes);
  } else {
    GemmTensors tensors = test::tensors_of(call.problem, call.arguments);
    tensors.sinks = sinks;
    ops::check_tensors(shape, description, tensors, workspace, planned.workspace_bytes);
  }
}

// 100 rows in 4 groups, gated, both outputs.
Call good(Grouping grouping = Grouping::Offsets) {
  Call call;
  ProductSpec& p = call.problem;
  p.grouping = grouping;
  p.groups = grouping == Grouping::Dense ? 1 : 4;
  p.m = 100, p.n = 64, p.k = 72;
  p.bias = true;
  p.activation = Activation::SwigluOai;
  p.pre = DataType::Bf16, p.out = DataType::F32;
  p.tile_m = 128;  // tiles of 64 rows for groups of so few would need no workspace
  ProductTensors& a = call.arguments;
  if (grouping == Grouping::Pointers) {
    a.pointers.a.data = at<const void*>(1), a.pointers.b.data = at<const void*>(2),
    a.pointers.bias = at<const void*>(3);
    a.pointers.a.ld = at<const int64_t>(4), a.pointers.b.ld = at<const int64_t>(5),
    a.pointers.sizes = at<const int32_t>(6);
    a.pointers.pre.data = at<void*>(7), a.pointers.out.data = at<void*>(8);
    a.pointers.pre.ld = at<const int64_t>(9), a.pointers.out.ld = at<const int64_t>(10);
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
  infinite.problem.limit = std::numeric_limits<float>::infinity();
  EXPECT_NO_THROW(run(infinite));
  Call other = good();  // limit means nothing to the other activations
  other.problem.activation = Activation::Swiglu, other.problem.limit = -1;
  EXPECT_NO_THROW(run(other));
}

TEST(Arguments, EmptyProductsNeedNoPointers) {
  for (Grouping grouping : kAll) {
    for (int64_t ProductSpec::*size : {&ProductSpec::m, &ProductSpec::n}) {
      Call call = good(grouping);
      call.problem.*size = 0;
      call.arguments = {};
      EXPECT_NO_THROW(run(call)) << int(grouping);
      EXPECT_TRUE(ops::is_empty(test::shape_of(call.problem)));
    }
    Call no_k = good(grouping);  // the product is zero, but bias and activation apply
    no_k.problem.k = 0;
    no_k.arguments.a = no_k.arguments.b = nullptr;
    EXPECT_NO_THROW(run(no_k)) << int(grouping);
    EXPECT_FALSE(ops::is_empty(test::shape_of(no_k.problem)));
  }
}

// Nor does what they are given overlap anything, for nothing of it is read or written.
TEST(Arguments, EmptyProductsOverlapNothing) {
  for (Grouping grouping : kAll) {
    if (grouping == Grouping::Pointers) continue;  // arrays of pointers are not compared
    for (const bool gather : {false, grouping == Grouping::Offsets}) {
      for (int64_t ProductSpec::*size : {&ProductSpec::m, &ProductSpec::n}) {
        Call call = good(grouping);
        call.problem.groups = grouping == Grouping::Dense ? 1 : 100;
        call.problem.*size = 0;
        call.problem.gather = gather;
        ProductTensors& x = call.arguments;
        x.sizes = at<const int32_t>(1), x.gather.rows = gather ? at<const int32_t>(1, 16) : nullptr;
        x.a = at(1, 32), x.b = at(1, 48), x.bias = at(1, 64), x.pre = at(1, 80), x.out = at(1, 96);
        x.workspace = at(1, 128);
        EXPECT_NO_THROW(run(call)) << to_string(grouping) << (gather ? " of gathered rows" : "");
      }
    }
  }
  // Sums over nothing read nothing, so that A and B may lie inside what the product fills with zeros.
  Call call = good(Grouping::Dense);
  call.problem.k = 0;
  call.arguments.a = call.arguments.b = static_cast<const char*>(call.arguments.out) + 16;
  EXPECT_NO_THROW(run(call));
}

// On sm_100a, with operands of NVFP4 that are given by pointers.
void make_scaled(Call& call) {
  call.device = *named_device("b200");
  call.problem.format = OperandFormat::Nvfp4, call.problem.k = 96;
  call.arguments.pointers.a.scales = at<const void*>(11), call.arguments.pointers.b.scales = at<const void*>(12);
}

// With an output `pre` in NVFP4 besides, whose scales are missing.
void make_quantized_pre(Call& call) {
  make_scaled(call);
  call.problem.activation = Activation::None;
  call.problem.pre = DataType::Nvfp4;
}

struct Misuse {
  const char* name;
  const char* words;  // of the sentence
  std::function<void(Call&)> change;
  Grouping grouping = Grouping::Offsets;
  ErrorCode code = ErrorCode::InvalidArgument;
};

const Misuse kMisuses[] = {
    {"ActivationUnknown", "activation is -1", [](Call& c) { c.problem.activation = Activation(-1); }},
    {"GateUnknown", "gate is 3", [](Call& c) { c.problem.gate = GateLayout(3); }},
    {"PreTypeUnknown", "pre is 5", [](Call& c) { c.problem.pre = DataType(5); }},
    {"OutTypeUnknown", "out is 9", [](Call& c) { c.problem.out = DataType(9); }},
    {"NoGroups", "groups.count is 0", [](Call& c) { c.problem.groups = 0; }},
    {"TooManyGroups", "groups.count is 70000, but must be 1 to 65535", [](Call& c) { c.problem.groups = 70000; }},
    {"NegativeM", "total is -1", [](Call& c) { c.problem.m = -1; }},
    {"NegativeN", "n is -64", [](Call& c) { c.problem.n = -64; }},
    {"NegativeK", "k is -8", [](Call& c) { c.problem.k = -8; }},
    {"HugeM", "total is 4294967296", [](Call& c) { c.problem.m = int64_t{1} << 32; }},
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
    {"HostRowsCount", "known_rows has 3 entries, but there are 4 groups",
     [](Call& c) {
       c.problem.host_rows = {1, 2, 3};
     }},
    {"HostRowsNegative", "known_rows[2] is -5",
     [](Call& c) {
       c.problem.host_rows = {1, 2, -5, 0};
     }},
    {"HostRowsSum", "known_rows sum to more than",
     [](Call& c) {
       c.problem.host_rows = {1 << 30, 1 << 30, 1, 0};
     }},
    {"HostRowsPastM", "known_rows[3] is 101, but a group has at most 100",
     [](Call& c) {
       c.problem.host_rows = {1, 2, 0, 101};
     },
     Grouping::Masked},
    {"HostRowsBatched", "known_rows[1] is 99",
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
    {"SecondSinkSource", "sinks[1].source",
     [](Call& c) {
       c.problem.sinks = {{"X", "x", {1}, {}}, {"Y", "", {1}, {}}};
     }},
    {"SinkParams", "sinks[0].param_bytes is 0",
     [](Call& c) {
       c.problem.sinks = {{"X", "x", {}, {}}};
     }},
    {"SinkParamsSize", "sinks[0].param_bytes is 2000",
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
    {"Mxfp4OnHopper", "mxfp4 operands need sm_100a",
     [](Call& c) { c.problem.format = OperandFormat::Mxfp4, c.problem.k = 96; }, Grouping::Offsets,
     ErrorCode::Unsupported},
    {"Ampere", "sm_80", [](Call& c) { c.device.arch = 80; }, Grouping::Dense, ErrorCode::Unsupported},

    {"AlignA", "aligned to 16", [](Call& c) { c.arguments.a = at(1, 8); }},
    {"AlignB", "aligned to 16", [](Call& c) { c.arguments.b = at(2, 2); }},
    {"AlignBias", "bias is 0x300004", [](Call& c) { c.arguments.bias = at(3, 4); }},
    {"AlignPre", "pre is 0x400008", [](Call& c) { c.arguments.pre = at(4, 8); }},
    {"AlignOut", "out is 0x500004", [](Call& c) { c.arguments.out = at(5, 4); }},
    {"AlignSizes", "aligned to 4", [](Call& c) { c.arguments.sizes = at<const int32_t>(6, 2); }},
    {"LdaSmall", "a.ld is 64, but must be at least the width of a, 72", [](Call& c) { c.arguments.lda = 64; }},
    {"LdaMultiple", "a.ld is 76, but must be a multiple of 8", [](Call& c) { c.arguments.lda = 76; }},
    {"LdaNegative", "a.ld is -72", [](Call& c) { c.arguments.lda = -72; }},
    {"LdaHuge", "a.ld is 549755813888, but must be below 549755813888 elements",
     [](Call& c) { c.arguments.lda = int64_t{1} << 39; }},
    {"LdbMultiple", "b.ld is 73", [](Call& c) { c.arguments.ldb = 73; }},
    {"LdPreMultiple", "pre.ld is 68, but must be a multiple of 8", [](Call& c) { c.arguments.ld_pre = 68; }},
    {"LdPreSmall", "pre.ld is 32", [](Call& c) { c.arguments.ld_pre = 32; }},
    {"LdOutMultiple", "out.ld is 38, but must be a multiple of 4", [](Call& c) { c.arguments.ld_out = 38; }},
    {"LdOutSmall", "out.ld is 24, but must be at least the width of out, 32", [](Call& c) { c.arguments.ld_out = 24; }},
    {"Terabytes", "2^40 bytes", [](Call& c) { c.arguments.lda = int64_t{1} << 34; }},
    {"OutOverA", "out overlaps a", [](Call& c) { c.arguments.out = at(1, 1024); }},
    {"OutOverB", "out overlaps b", [](Call& c) { c.arguments.out = at(2, 4 * 64 * 72 * 2 - 16); }},
    {"PreOverBias", "pre overlaps bias", [](Call& c) { c.arguments.pre = at(3, 496); }},
    {"PreOverOut", "pre overlaps out", [](Call& c) { c.arguments.pre = at(5, 99 * 32 * 4); }},
    {"OutOverSizes", "out overlaps rows.ends", [](Call& c) { c.arguments.sizes = at<const int32_t>(5, 4); }},
    {"OutOverIndices", "out overlaps rows.group_of_row",
     [](Call& c) { c.arguments.sizes = at<const int32_t>(5, -396); }, Grouping::RowGroups},
    {"OutOverWorkspace", "out overlaps workspace", [](Call& c) { c.arguments.workspace = at(5, 128); }},
    {"WorkspaceOverA", "workspace overlaps a", [](Call& c) { c.arguments.workspace = at(1, 1024); }},
    {"SmallWorkspace", "workspace has 128 bytes", [](Call& c) { c.arguments.workspace_bytes = 128; }},
    {"AlignWorkspace", "aligned to 128", [](Call& c) { c.arguments.workspace = at(16, 64); }},
    {"LimitZero", "activation.limit is 0", [](Call& c) { c.problem.limit = 0; }},
    {"LimitNegative", "activation.limit is -7", [](Call& c) { c.problem.limit = -7; }},
    {"LimitNan", "activation.limit is nan", [](Call& c) { c.problem.limit = NAN; }},
    {"AlphaNan", "activation.alpha is nan", [](Call& c) { c.problem.alpha = NAN; }},

    {"ArraysLdb", "b.ld", [](Call& c) { c.arguments.pointers.b.ld = at<const int64_t>(5, 4); }, Grouping::Pointers},
    {"ArraysScales", "b.scales is null", [](Call& c) { make_scaled(c), c.arguments.pointers.b.scales = nullptr; },
     Grouping::Pointers},
    {"ArraysTensorScale", "b.tensor_scale is 0xd00002, but must be aligned to 4 bytes",
     [](Call& c) { make_scaled(c), c.arguments.b_tensor_scale = at<const float>(13, 2); }, Grouping::Pointers},
    {"ArraysPreTensorScale", "pre.tensor_scale is 0xd00002, but must be aligned to 4 bytes",
     [](Call& c) { make_quantized_pre(c), c.arguments.pre_tensor_scale = at<const float>(13, 2); }, Grouping::Pointers},
    {"ArraysPreScales", "pre.scales is null", [](Call& c) { make_quantized_pre(c); }, Grouping::Pointers},
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

TEST(Arguments, ParametersOfSinksAreWantedAndOfTheirSize) {
  Call call = good();
  call.problem.sinks = {{"X", "x", {1}, {}}, {"Y", "y", {1, 2}, {}}};
  const GemmDescription description = test::describe(call.problem);
  const auto said_of = [&](const SinkParams& second) -> std::string {
    const std::vector<SinkParams> sinks = {{"a", 1}, second};
    GemmTensors tensors = test::tensors_of(call.problem, call.arguments);
    tensors.sinks = sinks;
    try {
      ops::check_tensors(test::shape_of(call.problem), description, tensors, {call.arguments.workspace, 1 << 20}, 0);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(said_of({"bc", 2}), "accepted");
  EXPECT_EQ(said_of({nullptr, 2}), "sinks[1].data is null, but must point to host memory");
  EXPECT_EQ(said_of({"b", 1}), "sinks[1] has 1 bytes, but the description says 2");
}

TEST(Arguments, KnownRowsLaunchNoMoreBlocksThanTheyHaveTiles) {
  Call call = good();
  call.problem.cluster = 1;
  EXPECT_EQ(test::plan_of(call.device, call.problem).blocks, 4);  // each group may have a row
  call.problem.host_rows = {100, 0, 0, 0};
  EXPECT_EQ(test::plan_of(call.device, call.problem).blocks, 1);
}

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
    return test::plan_of(call.device, call.problem).workspace_bytes;
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
  EXPECT_EQ(test::plan_of(few.device, few.problem).workspace_bytes, 0u);
  few.problem.expected_rows = 256;
  EXPECT_EQ(test::plan_of(few.device, few.problem).workspace_bytes, slots * 4);
  Call custom = good();  // a sink that stores directly
  custom.problem.pre.reset(), custom.problem.out.reset();
  custom.problem.sinks = {{"X", "struct X {};", {1}, {0, false}}};
  EXPECT_EQ(test::plan_of(custom.device, custom.problem).workspace_bytes, 0u);
}

TEST(Arguments, PlansAreCheckedToo) {
  GemmDescription description = test::describe(good().problem);
  description.hopper.reset();
  EXPECT_EQ(plan_gemm(description).source, PlanSource::Model);
  GemmDescription grouped;
  grouped.groups = Offsets{4}, grouped.n = 256, grouped.k = 128, grouped.out = DataType::Bf16;
  EXPECT_EQ(plan_gemm(grouped, {}, 4 * 16).mean_rows, 16);
  EXPECT_EQ(plan_gemm(grouped, {}, 4 * 4096).mean_rows, 4096);
  const auto said_of = [&](const DeviceFigures& device) {
    try {
      plan_gemm(description, device);
    } catch (const Error& error) {
      return std::string(to_string(error.code())) + ": " + error.what();
    }
    return std::string("accepted");
  };
  using testing::StartsWith;
  EXPECT_EQ(said_of({.arch = 80}), "Unsupported: arch is 80, but plans exist for 90 (sm_90a) and 100 (sm_100a)");
  EXPECT_EQ(said_of({.arch = 90, .sm_count = 0}), "InvalidArgument: sm_count is 0, but must be at least 1");
  EXPECT_EQ(said_of({.sm_count = 1, .l2_bytes = 1, .memory_rate = 1, .clock = 1}), "accepted");
  EXPECT_EQ(said_of({.l2_bytes = 0}), "InvalidArgument: l2_bytes is 0, but must be at least 1");
  EXPECT_EQ(said_of({.memory_rate = 0}), "InvalidArgument: memory_rate is 0, but must be at least 1 and finite");
  EXPECT_THAT(said_of({.memory_rate = std::numeric_limits<double>::infinity()}),
              StartsWith("InvalidArgument: memory_rate is inf"));
  EXPECT_THAT(said_of({.clock = -1}), StartsWith("InvalidArgument: clock is -1, but"));
  EXPECT_THAT(said_of({.clock = std::numeric_limits<double>::quiet_NaN()}),
              StartsWith("InvalidArgument: clock is nan"));
  description.k = 7;
  EXPECT_THAT(said_of({}), StartsWith("InvalidArgument: k is 7"));
}

// What another language hands over may be none of the enumerators.
TEST(Arguments, NumbersThatNameNothingAreRefused) {
  const GemmDescription good_one = test::describe(good().problem);
  const auto said_of = [&](const std::function<void(GemmDescription&)>& change) {
    GemmDescription d = good_one;
    d.hopper.reset(), d.blackwell.reset();
    change(d);
    try {
      plan_gemm(d);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  using D = GemmDescription;
  const std::vector<std::pair<std::string, std::function<void(D&)>>> changes = {
      {"activation", [](D& d) { d.activation.function = Activation(99); }},
      {"format", [](D& d) { d.format = OperandFormat(99); }},
      {"gate", [](D& d) { d.gate = GateLayout(99); }},
      {"pre", [](D& d) { d.pre = DataType(99); }},
      {"out", [](D& d) { d.out = DataType(99); }},
      {"hopper.schedule", [](D& d) { d.hopper.emplace().schedule = WarpSchedule(99); }},
      {"hopper.multicast", [](D& d) { d.hopper.emplace().multicast = Multicast(99); }},
      {"blackwell.tile_source", [](D& d) { d.blackwell.emplace().tile_source = TileSource(99); }},
  };
  EXPECT_EQ(said_of([](D&) {}), "accepted");
  for (const auto& [name, change] : changes) EXPECT_THAT(said_of(change), testing::StartsWith(name + " is 99")) << name;
  EXPECT_EQ(said_of([](D& d) { d.activation = Activation::Swiglu, d.pre = DataType::Mxfp8; }),
            "pre is quantized, but that of a gated activation can only be bf16 or float32");
}

// The ends of what is possible, and the one step beyond.
TEST(Arguments, RowsWithScalesHaveLimits) {
  const auto said_of = [](int64_t groups, int64_t rows, int64_t k) {
    QuantizedRows x;
    x.groups = groups, x.rows = rows, x.k = k;
    try {
      return fmt::format("{} bytes", scale_bytes(x));
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  constexpr int64_t kMost = int64_t{1} << 30;
  EXPECT_EQ(said_of(1, 1, 0), "0 bytes");
  EXPECT_EQ(said_of(1, 0, 32), "0 bytes");
  EXPECT_EQ(said_of(65535, 1, 32), fmt::format("{} bytes", 65535 * 512));
  EXPECT_EQ(said_of(1, 1, kMost), fmt::format("{} bytes", kMost / 32 * 128));
  EXPECT_EQ(said_of(1, kMost, 32), fmt::format("{} bytes", kMost / 128 * 512));
  EXPECT_EQ(said_of(65536, 1, 32), "groups is 65536, but must be 1 to 65535");
  EXPECT_EQ(said_of(3, kMost / 3 + 1, 32), "rows is 357913942, but must be 0 to 357913941");
  EXPECT_EQ(said_of(1, 1, kMost + 32), "k is 1073741856, but must be a multiple of 32 from 0 to 1073741824");
}

// A call's total goes before the description's, as in GroupedGemm.
TEST(Arguments, ScalesAreOfTheCallsRowsOrTheDescriptions) {
  GemmDescription d{.n = 64, .k = 128, .format = OperandFormat::Mxfp4};
  d.groups = Offsets{3, 300};
  d.pre = DataType::Mxfp8, d.out = DataType::Mxfp4;
  // A tile of 128 rows and 128 columns has 512 bytes; every group may begin one of its own.
  EXPECT_EQ(a_scale_bytes(d), (300 / 128 + 3) * 512u);
  EXPECT_EQ(a_scale_bytes(d, 1000), (1000 / 128 + 3) * 512u);
  EXPECT_EQ(b_scale_bytes(d), 3 * 512u);
  EXPECT_EQ(pre_scale_bytes(d), (300 / 128 + 3) * 512u);
  EXPECT_EQ(out_scale_bytes(d), (300 / 128 + 3) * 512u);
  EXPECT_EQ(out_scale_bytes(d, 1000), (1000 / 128 + 3) * 512u);
  d.format = OperandFormat::Bf16;
  EXPECT_EQ(a_scale_bytes(d), 0u);
  EXPECT_EQ(b_scale_bytes(d), 0u);
  d.format = OperandFormat::Mxfp4;
  d.groups = Offsets{3};
  try {
    b_scale_bytes(d);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "total is absent, but offsets groups need it");
  }
}

TEST(Arguments, AKernelDependsOnTheRangeOfRowsAlone) {
  Call call = good();
  const std::string first = test::plan_of(call.device, call.problem).key;
  call.problem.m += 1;
  EXPECT_EQ(test::plan_of(call.device, call.problem).key, first);
  call.problem.m = 100000, call.problem.tile_m.reset();
  EXPECT_NE(test::plan_of(call.device, call.problem).key, first);
}

}  // namespace
}  // namespace moxie
