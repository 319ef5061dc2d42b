// SPDX-License-Identifier: Apache-2.0
// Wrong calls for the formats of sm_100a: the right kind of error, one sentence that names the argument, nothing
// launched and no byte of device memory touched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <set>

#include "tests/support/grouped_product.h"
#include "tests/support/recorder.h"

namespace moxie::test {
namespace {

constexpr auto kInvalid = ErrorCode::InvalidArgument, kUnsupported = ErrorCode::Unsupported;

// Calls that are right until they are spoiled.
enum Base { Dense, Nvfp4, KGroups, Pointers, Quantised, Swapped, kBases };
struct Call {
  ProductSpec problem;
  ProductTensors arguments;
};
class Calls {
 public:
  Calls() : scales_(std::vector<uint8_t>(4096, 0xcd)) {
    Job dense = job_of(OperandFormat::Mxfp4);
    dense.problem.out = DataType::F32;
    dense.problem.swap_ab = false;
    dense.rows = {64}, dense.k = 96;
    keep(Dense, dense);
    calls_[Quantised] = calls_[Dense];
    calls_[Quantised].problem.out = DataType::Mxfp4;
    calls_[Quantised].arguments.out_scales = scales_.get();
    calls_[Quantised].arguments.ld_out = 96;
    dense.problem.swap_ab = true;
    keep(Swapped, dense);
    dense.problem.swap_ab = false;
    dense.problem.format = OperandFormat::Nvfp4;
    dense.a_tensor_scale = {0.5f}, dense.b_tensor_scale = {2.0f};
    keep(Nvfp4, dense);
    Job grouped = job_of(OperandFormat::Mxfp4);
    grouped.problem.grouping = Grouping::KGroups;
    grouped.problem.out = DataType::F32;
    grouped.rows = {40, 40}, grouped.group_k = {96, 64};
    keep(KGroups, grouped);
    grouped.problem.format = OperandFormat::Nvfp4;
    grouped.problem.grouping = Grouping::Pointers;
    grouped.rows = {40, 7};
    keep(Pointers, grouped);
  }
  const Call& operator[](Base base) const { return calls_[base]; }

 private:
  void keep(Base base, const Job& job) {
    GroupedProduct& product = products_.emplace_back(job);
    calls_[base] = {product.problem(), product.arguments()};
  }
  std::deque<GroupedProduct> products_;
  Buffer scales_;
  Call calls_[kBases];
};

template <typename T>
T* shifted(T* pointer, int64_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(pointer) + uintptr_t(bytes));
}
const float* as_floats(const void* pointer) { return static_cast<const float*>(pointer); }

struct Wrong {
  Base base;
  ErrorCode code;
  const char* says;
  void (*spoil)(ProductSpec&, ProductTensors&);
};
const Wrong kWrong[] = {
    // The shape.
    {Dense, kInvalid, "k is 72, but must be a multiple of 32 with mxfp4", [](auto& p, auto&) { p.k = 72; }},
    {Nvfp4, kInvalid, "k is 80, but must be a multiple of 32 with nvfp4", [](auto& p, auto&) { p.k = 80; }},
    {Dense, kInvalid, "k is -32", [](auto& p, auto&) { p.k = -32; }},
    {Dense, kInvalid, "n is 60", [](auto& p, auto&) { p.n = 60; }},
    {Dense, kInvalid, "n is 72", [](auto& p, auto&) { p.n = 72, p.activation = Activation::Swiglu; }},
    {Dense, kUnsupported, "n is 48, but mxfp4 operands with a split gate",
     [](auto& p, auto&) { p.activation = Activation::Swiglu, p.gate = GateLayout::Split, p.n = 48; }},
    {Nvfp4, kUnsupported, "n is 48, but nvfp4 operands with a split gate",
     [](auto& p, auto&) { p.activation = Activation::Swiglu, p.gate = GateLayout::Split, p.n = 48; }},
    {Dense, kInvalid, "m is -1", [](auto& p, auto&) { p.m = -1; }},
    {Dense, kInvalid, "m is 4294967296", [](auto& p, auto&) { p.m = int64_t{1} << 32; }},
    {Dense, kInvalid, "format is 7", [](auto& p, auto&) { p.format = OperandFormat(7); }},
    // Groups.
    {Dense, kInvalid, "groups.count is 0", [](auto& p, auto&) { p.grouping = Grouping::Masked, p.groups = 0; }},
    {Dense, kInvalid, "known_rows has 2 entries, but there are 1 groups",
     [](auto& p, auto&) {
       p.host_rows = {32, 32};
     }},
    {Pointers, kInvalid, "known_rows has 3 entries, but there are 2 groups",
     [](auto& p, auto&) {
       p.host_rows = {7, 7, 7};
     }},
    {KGroups, kInvalid, "known_rows is given", [](auto& p, auto&) { p.host_rows.assign(size_t(p.groups), p.m); }},
    {KGroups, kInvalid, "rows.ends is 0x", [](auto&, auto& x) { x.sizes = shifted(x.sizes, 2); }},
    // Scales.
    {Dense, kInvalid, "a.scales is 0x", [](auto&, auto& x) { x.sfa = shifted(x.sfa, 8); }},
    {Dense, kInvalid, "b.scales is 0x", [](auto&, auto& x) { x.sfb = shifted(x.sfb, 4); }},
    {Nvfp4, kInvalid, "a.tensor_scale is 0x", [](auto&, auto& x) { x.a_tensor_scale = shifted(x.a_tensor_scale, 2); }},
    {Nvfp4, kInvalid, "b.tensor_scale is 0x", [](auto&, auto& x) { x.b_tensor_scale = shifted(x.b_tensor_scale, 1); }},
    {Pointers, kInvalid, "b.scales is 0x",
     [](auto&, auto& x) { x.pointers.b.scales = shifted(x.pointers.b.scales, 4); }},
    // Operands.
    {Dense, kInvalid, "a is 0x", [](auto&, auto& x) { x.a = shifted(x.a, 8); }},
    {Dense, kInvalid, "b is 0x", [](auto&, auto& x) { x.b = shifted(x.b, 2); }},
    {Dense, kInvalid, "a.ld is 104, but must be a multiple of 32", [](auto&, auto& x) { x.lda = 104; }},
    {Dense, kInvalid, "a.ld is 64, but must be at least", [](auto&, auto& x) { x.lda = 64; }},
    {Dense, kInvalid, "b.ld is 112, but must be a multiple of 32", [](auto&, auto& x) { x.ldb = 112; }},
    {KGroups, kInvalid, "b.ld is 32, but must be at least", [](auto&, auto& x) { x.ldb = 32; }},
    // Outputs.
    {Dense, kInvalid, "pre, out and sinks", [](auto& p, auto&) { p.out.reset(); }},
    {Dense, kInvalid, "out is 0x", [](auto&, auto& x) { x.out = shifted(x.out, 4); }},
    {Dense, kInvalid, "out is 5, but only", [](auto& p, auto&) { p.out = DataType(5); }},
    {Dense, kInvalid, "out.ld is 66, but must be a multiple of 4", [](auto&, auto& x) { x.ld_out = 66; }},
    {Dense, kInvalid, "out.ld is 32, but must be at least", [](auto&, auto& x) { x.ld_out = 32; }},
    {Dense, kInvalid, "out overlaps a ", [](auto&, auto& x) { x.a = x.out; }},
    {Dense, kInvalid, "out overlaps b ", [](auto&, auto& x) { x.b = x.out; }},
    {Dense, kInvalid, "out overlaps a.scales", [](auto&, auto& x) { x.sfa = x.out; }},
    {Dense, kInvalid, "out overlaps b.scales", [](auto&, auto& x) { x.sfb = x.out; }},
    {Nvfp4, kInvalid, "out overlaps a.tensor_scale", [](auto&, auto& x) { x.a_tensor_scale = as_floats(x.out); }},
    {Nvfp4, kInvalid, "out overlaps b.tensor_scale", [](auto&, auto& x) { x.b_tensor_scale = as_floats(x.out); }},
    {KGroups, kInvalid, "out overlaps rows.ends", [](auto&, auto& x) { x.sizes = static_cast<const int32_t*>(x.out); }},
    {Dense, kInvalid, "pre overlaps out", [](auto& p, auto& x) { p.pre = DataType::F32, x.pre = x.out; }},
    {Dense, kInvalid, "sinks[0].param_bytes is 0",
     [](auto& p, auto&) {
       p.sinks = {{"Sink", "struct Sink {};", {}, {}}};
     }},
    // Quantised outputs.
    {Quantised, kInvalid, "out.scales is 0x", [](auto&, auto& x) { x.out_scales = shifted(x.out_scales, 8); }},
    {Quantised, kInvalid, "out.scales overlaps a.scales", [](auto&, auto& x) { x.sfa = x.out_scales; }},
    {Quantised, kInvalid, "out overlaps out.scales", [](auto&, auto& x) { x.out_scales = x.out; }},
    {Quantised, kInvalid, "out.ld is 80, but must be a multiple of 32", [](auto&, auto& x) { x.ld_out = 80; }},
    {Quantised, kInvalid, "n is 40, but must be a multiple of 32 with a quantized output",
     [](auto& p, auto&) { p.n = 40; }},
    {Quantised, kInvalid, "n is 96, but must be a multiple of 64 with a quantized output and a gate",
     [](auto& p, auto&) { p.n = 96, p.activation = Activation::Swiglu; }},
    {Quantised, kInvalid, "tile_n is 48, but with a quantized output", [](auto& p, auto&) { p.tile_n = 48; }},
    {Quantised, kInvalid, "pre is quantized",
     [](auto& p, auto&) { p.pre = DataType::Mxfp4, p.activation = Activation::Swiglu; }},
    // The workspace.
    {KGroups, kInvalid, "workspace is 0x", [](auto&, auto& x) { x.workspace = shifted(x.workspace, 64); }},
    {KGroups, kInvalid, "workspace has 128 bytes", [](auto&, auto& x) { x.workspace_bytes = 128; }},
    {KGroups, kInvalid, "out overlaps workspace",
     [](auto&, auto& x) { x.workspace = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(x.out) / 128 * 128); }},
    // Choices.
    {Dense, kInvalid, "blackwell.tile_source is 5", [](auto& p, auto&) { p.scheduling = TileSource(5); }},
    {Dense, kInvalid, "cluster is 4", [](auto& p, auto&) { p.cluster = 4; }},
    {Dense, kInvalid, "tile_m is 64, but only", [](auto& p, auto&) { p.tile_m = 64; }},
    {Dense, kInvalid, "tile_m is 128, but with cluster 2", [](auto& p, auto&) { p.tile_m = 128, p.cluster = 2; }},
    {Dense, kInvalid, "tile_n is 40", [](auto& p, auto&) { p.tile_n = 40; }},
    {Dense, kInvalid, "tile_n is 272", [](auto& p, auto&) { p.tile_n = 272; }},
    {Dense, kInvalid, "tile_n is 48, but on a pair of blocks", [](auto& p, auto&) { p.tile_n = 48, p.cluster = 2; }},
    {Dense, kInvalid, "tile_n is 48, but with a gated activation",
     [](auto& p, auto&) { p.tile_n = 48, p.activation = Activation::Swiglu; }},
    {Dense, kInvalid, "tile_n is 96, but with a split gate",
     [](auto& p, auto&) { p.tile_n = 96, p.activation = Activation::Swiglu, p.gate = GateLayout::Split; }},
    {Dense, kInvalid, "tile_n is 48, but with bf16 operands",
     [](auto& p, auto&) { p.tile_n = 48, p.format = OperandFormat::Bf16; }},
    {Swapped, kInvalid, "tile_m is 48, but with swap_ab only", [](auto& p, auto&) { p.tile_m = 48; }},
    {Quantised, kInvalid, "tile_m is 16, but with swap_ab row groups with a quantized output",
     [](auto& p, auto&) { p.swap_ab = true, p.tile_m = 16, p.grouping = Grouping::RowGroups; }},
    {Swapped, kInvalid, "tile_m is 256, but with swap_ab row groups",
     [](auto& p, auto&) { p.tile_m = 256, p.grouping = Grouping::RowGroups; }},
    {Swapped, kInvalid, "tile_m is 256, but with swap_ab and a split gate",
     [](auto& p, auto&) { p.tile_m = 256, p.activation = Activation::Swiglu, p.gate = GateLayout::Split; }},
    {Swapped, kInvalid, "tile_n is 64, but with swap_ab only", [](auto& p, auto&) { p.tile_n = 64; }},
    {Swapped, kInvalid, "tile_n is 256, but with swap_ab and cluster 1",
     [](auto& p, auto&) { p.tile_n = 256, p.cluster = 1; }},
};

TEST(WrongCalls, AreRefusedBeforeAnythingHappens) {
  static_assert(std::size(kWrong) >= 30);
  const Calls calls;
  device().synchronize();
  Recorder recorder;
  const auto before = all_bytes();
  std::set<std::string> sentences;
  for (const Wrong& wrong : kWrong) {
    SCOPED_TRACE(wrong.says);
    Call call = calls[wrong.base];
    wrong.spoil(call.problem, call.arguments);
    const size_t launches = recorder.launches([&](CUstream stream) {
      call.arguments.stream = stream;
      try {
        gemm(device(), call.problem, call.arguments);
        ADD_FAILURE() << "was accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), wrong.code);
        EXPECT_THAT(error.what(), testing::HasSubstr(wrong.says));
        sentences.insert(std::to_string(wrong.base) + error.what());
      }
    });
    EXPECT_EQ(launches, 0u);
  }
  EXPECT_TRUE(all_bytes() == before) << "device memory was touched";
  EXPECT_EQ(sentences.size(), std::size(kWrong)) << "some sentences are the same";
}

// What is spoiled above is right, and the recorder sees what is launched.
TEST(WrongCalls, BeginAsRightOnes) {
  const Calls calls;
  Recorder recorder;
  for (int base = 0; base < kBases; ++base) {
    SCOPED_TRACE(base);
    Call call = calls[Base(base)];
    prepare(device(), call.problem);
    const size_t launches = recorder.launches([&](CUstream stream) {
      call.arguments.stream = stream;
      EXPECT_NO_THROW(gemm(device(), call.problem, call.arguments));
    });
    EXPECT_EQ(launches, 1u);
  }
}

}  // namespace
}  // namespace moxie::test
