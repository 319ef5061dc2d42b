// SPDX-License-Identifier: Apache-2.0
// The contract of every argument, as tests/support/contract.cpp has it in tables: what is missing or has no place is
// refused with its sentence before anything is launched, what may be absent may be absent, and what is ignored changes
// no bit, in C++ and in C. The programs of both architectures have these tests.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "c/handles.h"
#include "tests/support/contract.h"
#include "tests/support/grouped_product.h"
#include "tests/support/print.h"
#include "tests/support/recorder.h"

namespace moxie::test {
namespace {

bool has_scaled_operands() { return device().info().arch == 100; }

// As a pointer it points nowhere, as a leading dimension no tensor map has it. It is aligned to whatever is asked.
constexpr uint64_t kGarbage = uint64_t{0x7e5} << 44;

struct Answer {
  bool accepted = true;
  ErrorCode code = ErrorCode::InvalidArgument;
  std::string says;
};
template <class Work>
Answer answer_of(Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    return {false, error.code(), error.what()};
  }
  return {};
}
Answer answer_of_c(moxie_status status) {
  if (status == MOXIE_OK) return {};
  return {false, status == MOXIE_ERROR_INVALID_ARGUMENT ? ErrorCode::InvalidArgument : ErrorCode::Driver,
          moxie_last_error()};
}

void expect_refused(const Answer& answer, std::string_view says) {
  if (answer.accepted) {
    ADD_FAILURE() << "was accepted instead of: " << says;
    return;
  }
  EXPECT_EQ(answer.code, ErrorCode::InvalidArgument) << answer.says;
  EXPECT_THAT(answer.says, ::testing::HasSubstr(std::string(says)));
}

// ---- Products ------------------------------------------------------------------------------------------------------

struct ProductArguments {
  GemmTensors tensors;
  GroupPointers pointers;
  WorkspaceView workspace;
  std::vector<SinkParams> sinks;
};

// Where an argument of eight bytes stands in each of the two structures.
struct ProductField {
  std::string_view name;
  void* (*of_tensors)(ProductArguments&);
  void* (*of_pointers)(ProductArguments&);
};
#define MOXIE_BOTH(member)                                                                                             \
  {                                                                                                                    \
#member,                                                                                                           \
        [](ProductArguments & x) -> void* { return &x.tensors.member; }, [](ProductArguments &                         \
                                                                            x) -> void* { return &x.pointers.member; } \
  }
#define MOXIE_TENSORS(member)                                                         \
  {                                                                                   \
#member, [](ProductArguments & x) -> void* { return &x.tensors.member; }, nullptr \
  }
const ProductField kProductFields[] = {
    MOXIE_BOTH(a.data),
    MOXIE_BOTH(a.ld),
    MOXIE_BOTH(a.scales),
    MOXIE_BOTH(a.tensor_scale),
    MOXIE_BOTH(b.data),
    MOXIE_BOTH(b.ld),
    MOXIE_BOTH(b.scales),
    MOXIE_BOTH(b.tensor_scale),
    MOXIE_BOTH(bias),
    MOXIE_BOTH(pre.data),
    MOXIE_BOTH(pre.ld),
    MOXIE_BOTH(pre.scales),
    MOXIE_BOTH(pre.tensor_scale),
    MOXIE_BOTH(out.data),
    MOXIE_BOTH(out.ld),
    MOXIE_BOTH(out.scales),
    MOXIE_BOTH(out.tensor_scale),
    MOXIE_TENSORS(rows.ends),
    MOXIE_TENSORS(rows.group_of_row),
    MOXIE_TENSORS(rows.counts),
    MOXIE_TENSORS(rows.total),
    {"sizes", nullptr, [](ProductArguments& x) -> void* { return &x.pointers.sizes; }},
    {"sinks", [](ProductArguments& x) -> void* { return &x.sinks; },
     [](ProductArguments& x) -> void* { return &x.sinks; }},
    {"workspace", [](ProductArguments& x) -> void* { return &x.workspace.data; },
     [](ProductArguments& x) -> void* { return &x.workspace.data; }},
};
#undef MOXIE_BOTH
#undef MOXIE_TENSORS

bool is_there(const ProductField& field, Grouping grouping) {
  return (grouping == Grouping::Pointers ? field.of_pointers : field.of_tensors) != nullptr;
}

void put(const ProductField& field, Grouping grouping, ProductArguments& x, bool garbage) {
  static const SinkParams kSink{"x", 1};
  if (field.name == "rows.total") {
    x.tensors.rows.total = garbage ? std::optional<int64_t>(96) : std::nullopt;
  } else if (field.name == "sinks") {
    x.sinks.assign(garbage ? 1 : 0, kSink);
  } else {
    const uint64_t value = garbage ? kGarbage : 0;
    void* const at = grouping == Grouping::Pointers ? field.of_pointers(x) : field.of_tensors(x);
    std::memcpy(at, &value, sizeof(value));
  }
}

template <class To, class From>
To tensor_to_c(const From& x) {
  return {x.data, x.ld, x.scales, x.tensor_scale};
}

// Calls through C or C++.
Answer call(bool in_c, const GroupedGemm& product, const ProductArguments& x, const LaunchOptions& options) {
  const bool pointers = std::holds_alternative<Pointers>(product.description().groups);
  if (!in_c) {
    return answer_of([&] {
      GemmTensors tensors = x.tensors;
      GroupPointers arrays = x.pointers;
      tensors.sinks = arrays.sinks = x.sinks;
      pointers ? product.run(arrays, x.workspace, options) : product.run(tensors, x.workspace, options);
    });
  }
  std::vector<moxie_sink_params> sinks;
  for (const SinkParams& sink : x.sinks) sinks.push_back({sink.data, sink.bytes});
  moxie_launch_options launch{};
  launch.size = sizeof launch;
  launch.stream = options.stream;
  launch.no_programmatic = !options.programmatic, launch.weights_ready = options.weights_ready;
  const moxie_grouped_gemm handle{product};
  if (pointers) {
    moxie_group_pointers t{};
    t.size = sizeof t;
    t.a = tensor_to_c<moxie_const_tensor_array>(x.pointers.a),
    t.b = tensor_to_c<moxie_const_tensor_array>(x.pointers.b);
    t.pre = tensor_to_c<moxie_tensor_array>(x.pointers.pre), t.out = tensor_to_c<moxie_tensor_array>(x.pointers.out);
    t.bias = x.pointers.bias, t.sizes = x.pointers.sizes;
    t.sinks = sinks.data(), t.sink_count = sinks.size();
    return answer_of_c(moxie_grouped_gemm_run_pointers(&handle, &t, x.workspace.data, x.workspace.bytes, &launch));
  }
  moxie_gemm_tensors t{};
  t.size = sizeof t;
  t.a = tensor_to_c<moxie_const_tensor>(x.tensors.a), t.b = tensor_to_c<moxie_const_tensor>(x.tensors.b);
  t.pre = tensor_to_c<moxie_tensor>(x.tensors.pre), t.out = tensor_to_c<moxie_tensor>(x.tensors.out);
  t.bias = x.tensors.bias;
  t.rows = {x.tensors.rows.ends, x.tensors.rows.group_of_row, x.tensors.rows.counts, x.tensors.rows.total.value_or(0),
            x.tensors.rows.total.has_value()};
  t.sinks = sinks.data(), t.sink_count = sinks.size();
  return answer_of_c(moxie_grouped_gemm_run(&handle, &t, x.workspace.data, x.workspace.bytes, &launch));
}

struct ProductCase {
  OperandFormat format;
  bool bias;
  std::optional<DataType> pre, out;
  bool no_depth;
};
constexpr auto kBf16 = DataType::Bf16, kF32 = DataType::F32;
constexpr ProductCase kProductCases[] = {
    {OperandFormat::Bf16, false, {}, kF32, false},
    {OperandFormat::Bf16, true, kBf16, DataType::Nvfp4, false},
    {OperandFormat::Bf16, false, DataType::Mxfp8, {}, false},
    {OperandFormat::Bf16, false, {}, kF32, true},
    {OperandFormat::Mxfp4, false, {}, kF32, false},
    {OperandFormat::Nvfp4, true, kF32, DataType::Mxfp4, false},
    {OperandFormat::Nvfp4, true, kF32, DataType::Mxfp4, true},
};

Job product_job(Grouping grouping, const ProductCase& c) {
  Job job;
  ProductSpec& p = job.problem;
  p.grouping = grouping;
  p.format = c.format, p.bias = c.bias;
  p.pre = c.pre, p.out = c.out;
  job.n = 64, job.k = c.no_depth ? 0 : 64;
  job.e2m1 = true;
  job.rows = grouping == Grouping::Dense ? std::vector<int64_t>{40} : std::vector<int64_t>{40, 40};
  if (grouping == Grouping::KGroups) {
    job.group_k = c.no_depth ? std::vector<int64_t>{0, 0} : std::vector<int64_t>{64, 32};
    job.spare_k = c.no_depth ? 0 : 64;
  }
  if (c.format == OperandFormat::Nvfp4) {
    job.a_tensor_scale = {0.5f};
    job.b_tensor_scale.assign(job.rows.size(), 2.0f);
  }
  if (c.pre == DataType::Nvfp4 || c.out == DataType::Nvfp4) job.output_tensor_scale = 0.25f;
  return job;
}

ProductArguments arguments_of(const GroupedProduct& product) {
  const ProductTensors& x = product.arguments();
  return {tensors_of(product.problem(), x), pointers_of(x), {x.workspace, x.workspace_bytes}, {}};
}

// The calls that must be refused, of which none may reach a stream or memory.
class Refusals {
 public:
  Refusals() : before_((device().synchronize(), all_bytes())) {}
  ~Refusals() {
    device().synchronize();
    EXPECT_TRUE(all_bytes() == before_) << "device memory was touched";
  }
  template <class Call>
  void expect(std::string_view says, Call&& call) {
    Answer answer;
    EXPECT_EQ(recorder_.launches([&](CUstream stream) { answer = call(stream); }), 0u);
    expect_refused(answer, says);
  }
  template <class Call>
  void expect_accepted(Call&& call) {
    Answer answer;
    EXPECT_GE(recorder_.launches([&](CUstream stream) { answer = call(stream); }), 1u);
    EXPECT_TRUE(answer.accepted) << answer.says;
  }

 private:
  Recorder recorder_;
  std::map<void*, std::vector<uint8_t>> before_;
};

class ProductContract : public ::testing::TestWithParam<Grouping> {
 protected:
  void SetUp() override {
    if (GetParam() == Grouping::KGroups && !has_scaled_operands()) GTEST_SKIP() << "sm_90a has no k groups";
  }
  template <class Check>
  void for_all_cases(Check&& check) {
    for (const ProductCase& c : kProductCases) {
      if (has_scales(c.format) && !has_scaled_operands()) continue;
      SCOPED_TRACE(fmt::format("{}, bias {}, pre {}, out {}, K {}", to_string(c.format), c.bias,
                               c.pre ? to_string(*c.pre) : "no", c.out ? to_string(*c.out) : "no",
                               c.no_depth ? 0 : 64));
      const GroupedProduct product(product_job(GetParam(), c));
      const GroupedGemm gemm(device(), describe(product.problem()));
      const ProductSituation situation{
          GetParam(), c.format, c.bias, c.pre, c.out, c.no_depth, product.arguments().workspace_bytes > 0};
      check(product, gemm, situation);
      if (HasFailure()) return;
    }
  }
};

TEST_P(ProductContract, RequiredAndRefused) {
  for_all_cases([&](const GroupedProduct& product, const GroupedGemm& gemm, const ProductSituation& situation) {
    Refusals refusals;
    for (const ProductField& field : kProductFields) {
      if (!is_there(field, GetParam())) continue;
      const ProductRule& rule = product_rule(field.name, situation);
      for (const bool in_c : {false, true}) {
        SCOPED_TRACE(fmt::format("{} in {}", field.name, in_c ? "C" : "C++"));
        ProductArguments x = arguments_of(product);
        const auto run = [&](CUstream stream) { return call(in_c, gemm, x, {.stream = stream}); };
        // In C the sentence names the count of the sinks.
        put(field, GetParam(), x, rule.use == Use::Refused);
        if (rule.use == Use::Required || rule.use == Use::Refused) {
          refusals.expect(rule.says, run);
        } else {
          refusals.expect_accepted(run);
        }
      }
    }
  });
}

TEST_P(ProductContract, WhatIsIgnoredChangesNothing) {
  set_order("eager");
  for_all_cases([&](const GroupedProduct& product, const GroupedGemm& gemm, const ProductSituation& situation) {
    const Results wanted = product.run();
    for (const ProductField& field : kProductFields) {
      if (!is_there(field, GetParam()) || product_rule(field.name, situation).use != Use::Ignored) continue;
      for (const bool in_c : {false, true}) {
        SCOPED_TRACE(fmt::format("{} in {}", field.name, in_c ? "C" : "C++"));
        ProductArguments x = arguments_of(product);
        put(field, GetParam(), x, true);
        product.poison();
        const Answer answer = call(in_c, gemm, x, {});
        EXPECT_TRUE(answer.accepted) << answer.says;
        ASSERT_NO_THROW(device().synchronize());
        EXPECT_TRUE(product.results() == wanted);
      }
    }
  });
}

// Without a row nothing is required, and what a description does not take is refused all the same.
TEST_P(ProductContract, WithoutRows) {
  for (const ProductCase& c : kProductCases) {
    if (c.no_depth || (has_scales(c.format) && !has_scaled_operands())) continue;
    Job job = product_job(GetParam(), c);
    ProductSpec& p = job.problem;
    p.groups = int64_t(job.rows.size());
    p.m = total_of(p) ? 83 : 0;  // which the call takes back
    p.n = 64, p.k = 64;
    const GroupedGemm gemm(device(), describe(p));
    const ProductSituation situation{GetParam(), c.format, c.bias, c.pre, c.out, false, false};
    Recorder recorder;
    for (const ProductField& field : kProductFields) {
      if (!is_there(field, GetParam()) || field.name == "rows.total") continue;
      const ProductRule& rule = product_rule(field.name, situation);
      for (const bool in_c : {false, true}) {
        SCOPED_TRACE(fmt::format("{} in {}", field.name, in_c ? "C" : "C++"));
        ProductArguments x;
        if (total_of(p)) x.tensors.rows.total = 0;
        put(field, GetParam(), x, rule.use == Use::Refused);
        Answer answer;
        EXPECT_EQ(recorder.launches([&](CUstream stream) { answer = call(in_c, gemm, x, {.stream = stream}); }), 0u);
        if (rule.use == Use::Refused) {
          expect_refused(answer, rule.says);
        } else {
          EXPECT_TRUE(answer.accepted) << answer.says;
        }
      }
    }
  }
}

// Members of a description, and options of a launch, that change nothing where they have no meaning or are hints.
struct Hint {
  const char* name;
  bool (*applies)(const GemmDescription&);
  void (*change)(GemmDescription&, LaunchOptions&, const std::vector<int64_t>& rows);
};
const Hint kHints[] = {
    {"a gate layout without a gate", [](auto& d) { return !is_gated(d.activation.function); },
     [](auto& d, auto&, auto&) { d.gate = GateLayout::SplitUpFirst; }},
    {"parameters of another activation", [](auto& d) { return d.activation.function != Activation::SwigluOai; },
     [](auto& d, auto&, auto&) {
       d.activation.swiglu_oai = {std::nanf(""), -1.0f};
     }},
    {"a tuning of another architecture", [](auto&) { return true; },
     [](auto& d, auto&, auto&) {
       if (has_scaled_operands()) {
         d.hopper = HopperTuning{WarpSchedule::PingPong, 12345, -7, 99, Multicast::B};
       } else {
         d.blackwell = BlackwellTuning{12345, -7, 99, TileSource::LaunchControl, true};
       }
     }},
    {"few expected rows", [](auto&) { return true; }, [](auto& d, auto&, auto&) { d.expected_rows = 1; }},
    {"many expected rows", [](auto&) { return true; }, [](auto& d, auto&, auto&) { d.expected_rows = 100000; }},
    {"known rows", [](auto& d) { return grouping_of(d.groups) != Grouping::KGroups; },
     [](auto& d, auto&, auto& rows) { d.known_rows = rows; }},
    {"a plain launch", [](auto&) { return true; }, [](auto&, auto& o, auto&) { o.programmatic = false; }},
    {"ready weights", [](auto&) { return true; }, [](auto&, auto& o, auto&) { o.weights_ready = true; }},
};

TEST_P(ProductContract, HintsChangeNothing) {
  set_order("eager");
  Job job = product_job(GetParam(), kProductCases[0]);
  job.row_alignment = 512;  // a multiple of what every plan needs
  const GroupedProduct product(job);
  const Results results = product.run();
  product.check(results);
  const std::vector<std::vector<double>> wanted = product.out_values(results);
  const GemmDescription description = describe(product.problem());
  for (const Hint& hint : kHints) {
    if (!hint.applies(description)) continue;
    for (const bool in_c : {false, true}) {
      SCOPED_TRACE(fmt::format("{} in {}", hint.name, in_c ? "C" : "C++"));
      GemmDescription changed = description;
      LaunchOptions options;
      hint.change(changed, options, job.rows);
      const GroupedGemm gemm(device(), changed);
      ProductArguments x = arguments_of(product);
      const Buffer workspace(gemm.workspace_bytes(total_of(product.problem())));
      x.workspace = {workspace.get(), workspace.size()};
      product.poison();
      const Answer answer = call(in_c, gemm, x, options);
      EXPECT_TRUE(answer.accepted) << answer.says;
      device().synchronize();
      // Rows of no group may be overwritten, by each plan others.
      EXPECT_TRUE(product.out_values(product.results()) == wanted);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, ProductContract,
                         ::testing::Values(Grouping::Dense, Grouping::Batched, Grouping::Offsets, Grouping::RowGroups,
                                           Grouping::Masked, Grouping::Pointers, Grouping::KGroups),
                         [](const auto& info) {
                           return std::string(names<Grouping>()[size_t(info.param)].identifier);
                         });

// A rule without a field would test nothing.
TEST(ProductTable, EveryRuleHasAField) {
  for (const ProductRule& rule : product_rules()) {
    EXPECT_TRUE(std::any_of(std::begin(kProductFields), std::end(kProductFields), [&](const ProductField& field) {
      return field.name == rule.field;
    })) << rule.field;
  }
}

// ---- Conversions ---------------------------------------------------------------------------------------------------

struct ConversionArguments {
  Quantization quantize;
  Dequantization dequantize;
  ScaleBlocking blocking;
  float* to = nullptr;
};
struct ConversionField {
  std::string_view name;
  Conversion of;
  void* (*at)(ConversionArguments&);
};
#define MOXIE_FIELD(operation, structure, member)                                                        \
  {                                                                                                      \
#member, Conversion::operation, [](ConversionArguments & x) -> void* { return &x.structure.member; } \
  }
const ConversionField kConversionFields[] = {
    MOXIE_FIELD(Quantize, quantize, values),
    MOXIE_FIELD(Quantize, quantize, ld_values),
    MOXIE_FIELD(Quantize, quantize, elements),
    MOXIE_FIELD(Quantize, quantize, ld_elements),
    MOXIE_FIELD(Quantize, quantize, scales),
    MOXIE_FIELD(Quantize, quantize, tensor_scale),
    MOXIE_FIELD(Quantize, quantize, offsets),
    MOXIE_FIELD(Dequantize, dequantize, values),
    MOXIE_FIELD(Dequantize, dequantize, ld_values),
    MOXIE_FIELD(Dequantize, dequantize, elements),
    MOXIE_FIELD(Dequantize, dequantize, ld_elements),
    MOXIE_FIELD(Dequantize, dequantize, scales),
    MOXIE_FIELD(Dequantize, dequantize, tensor_scale),
    MOXIE_FIELD(Dequantize, dequantize, offsets),
    MOXIE_FIELD(FindTensorScale, quantize, values),
    MOXIE_FIELD(FindTensorScale, quantize, ld_values),
    MOXIE_FIELD(FindTensorScale, quantize, elements),
    MOXIE_FIELD(FindTensorScale, quantize, ld_elements),
    MOXIE_FIELD(FindTensorScale, quantize, scales),
    MOXIE_FIELD(FindTensorScale, quantize, tensor_scale),
    MOXIE_FIELD(FindTensorScale, quantize, offsets),
    {"to", Conversion::FindTensorScale, [](ConversionArguments& x) -> void* { return &x.to; }},
    MOXIE_FIELD(BlockScales, blocking, from),
    MOXIE_FIELD(BlockScales, blocking, to),
    MOXIE_FIELD(BlockScales, blocking, offsets),
    MOXIE_FIELD(BlockScales, blocking, from_floats),
    MOXIE_FIELD(UnblockScales, blocking, from),
    MOXIE_FIELD(UnblockScales, blocking, to),
    MOXIE_FIELD(UnblockScales, blocking, offsets),
    MOXIE_FIELD(UnblockScales, blocking, from_floats),
};
#undef MOXIE_FIELD

void put(const ConversionField& field, ConversionArguments& x, bool garbage) {
  if (field.name == "from_floats") {
    x.blocking.from_floats = garbage;
    return;
  }
  const uint64_t value = garbage ? kGarbage : 0;
  std::memcpy(field.at(x), &value, sizeof(value));
}

template <class To, class From>
To rows_to_c(const From& x) {
  To q{};
  q.size = sizeof q;
  q.format = int32_t(x.format), q.type = int32_t(x.type), q.layout = int32_t(x.layout);
  q.rows = x.rows, q.k = x.k, q.groups = x.groups, q.offsets = x.offsets, q.stream = x.stream;
  q.values = const_cast<void*>(static_cast<const void*>(x.values)), q.ld_values = x.ld_values;
  q.elements = const_cast<void*>(static_cast<const void*>(x.elements)), q.ld_elements = x.ld_elements;
  q.scales = const_cast<void*>(static_cast<const void*>(x.scales)), q.tensor_scale = x.tensor_scale;
  return q;
}

Answer call(bool in_c, Conversion conversion, ConversionArguments x, Stream stream) {
  x.quantize.stream = x.dequantize.stream = x.blocking.stream = stream;
  if (!in_c) {
    return answer_of([&] {
      switch (conversion) {
        case Conversion::Quantize:
          return quantize(device(), x.quantize);
        case Conversion::Dequantize:
          return dequantize(device(), x.dequantize);
        case Conversion::FindTensorScale:
          return find_tensor_scale(device(), x.quantize, x.to);
        case Conversion::BlockScales:
          return block_scales(device(), x.blocking);
        case Conversion::UnblockScales:
          return unblock_scales(device(), x.blocking);
      }
    });
  }
  const moxie_device handle{device()};
  const auto quantization = rows_to_c<moxie_quantization>(x.quantize);
  const auto dequantization = rows_to_c<moxie_dequantization>(x.dequantize);
  moxie_scale_blocking blocking{};
  blocking.size = sizeof blocking;
  blocking.from = x.blocking.from, blocking.to = x.blocking.to;
  blocking.rows = x.blocking.rows, blocking.k = x.blocking.k, blocking.groups = x.blocking.groups;
  blocking.block = x.blocking.block, blocking.offsets = x.blocking.offsets;
  blocking.along_k = x.blocking.along_k, blocking.from_floats = x.blocking.from_floats, blocking.stream = stream;
  switch (conversion) {
    case Conversion::Quantize:
      return answer_of_c(moxie_quantize(&handle, &quantization));
    case Conversion::Dequantize:
      return answer_of_c(moxie_dequantize(&handle, &dequantization));
    case Conversion::FindTensorScale:
      return answer_of_c(moxie_find_tensor_scale(&handle, &quantization, x.to));
    case Conversion::BlockScales:
      return answer_of_c(moxie_block_scales(&handle, &blocking));
    case Conversion::UnblockScales:
      break;
  }
  return answer_of_c(moxie_unblock_scales(&handle, &blocking));
}

// Five calls that are right, on the same 64 rows of 64 elements.
struct ConversionCalls {
  explicit ConversionCalls(const ConversionSituation& s)
      : values(std::vector<float>(64 * 64, 1.5f)),
        elements(64 * 64),
        scales(std::vector<uint8_t>(16384, 1)),
        other_scales(std::vector<uint8_t>(16384, 1)),
        factor(std::vector<float>{0.5f}),
        found(4),
        ends(std::vector<int32_t>{32, 64}) {
    Quantization& q = arguments.quantize;
    q.format = s.format, q.type = DataType::F32;
    q.groups = 2, q.rows = s.offsets ? 64 : 32, q.k = 64;
    if (s.offsets) q.offsets = ends.get<int32_t>();
    q.values = values.get(), q.elements = elements.get(), q.scales = scales.get();
    if (s.format == DataType::Nvfp4) q.tensor_scale = factor.get<float>();
    Dequantization& d = arguments.dequantize;
    static_cast<QuantizedRows&>(d) = q;
    d.elements = q.elements, d.scales = q.scales, d.tensor_scale = q.tensor_scale, d.values = values.get();
    ScaleBlocking& b = arguments.blocking;
    b.from = scales.get(), b.to = other_scales.get();
    b.groups = 2, b.rows = s.offsets ? 64 : 32, b.k = 64;
    if (s.offsets) b.offsets = q.offsets;
    b.along_k = s.along_k;
    arguments.to = found.get<float>();
  }
  Buffer values, elements, scales, other_scales, factor, found, ends;
  ConversionArguments arguments;
};

// Every format with and without offsets, and scales along K.
template <class Check>
void for_all_conversions(Check&& check) {
  for (const Conversion conversion : {Conversion::Quantize, Conversion::Dequantize, Conversion::FindTensorScale,
                                      Conversion::BlockScales, Conversion::UnblockScales}) {
    for (const DataType format : {DataType::Mxfp4, DataType::Mxfp8, DataType::Nvfp4}) {
      for (const int offsets : {0, 1, 2}) {
        const bool blocks = conversion == Conversion::BlockScales || conversion == Conversion::UnblockScales;
        if ((blocks && format != DataType::Mxfp4) || (!blocks && offsets == 2)) continue;
        const ConversionSituation situation{conversion, format, offsets > 0, offsets == 2};
        SCOPED_TRACE(fmt::format("conversion {} of {}, offsets {}", int(conversion), to_string(format), offsets));
        for (const ConversionField& field : kConversionFields) {
          if (field.of != conversion) continue;
          for (const bool in_c : {false, true}) {
            SCOPED_TRACE(fmt::format("{} in {}", field.name, in_c ? "C" : "C++"));
            ConversionCalls calls(situation);
            check(calls, field, situation, in_c);
            if (::testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(ConversionContract, RequiredAndRefused) {
  for_all_conversions(
      [&](ConversionCalls& calls, const ConversionField& field, const ConversionSituation& situation, bool in_c) {
        const ConversionRule& rule = conversion_rule(field.name, situation);
        Refusals refusals;
        put(field, calls.arguments, rule.use == Use::Refused);
        const auto run = [&](CUstream stream) { return call(in_c, situation.conversion, calls.arguments, stream); };
        if (rule.use == Use::Required || rule.use == Use::Refused) {
          refusals.expect(rule.says, run);
          // Without a row nothing is required but the place of a tensor scale, which becomes 1.
          calls.arguments.quantize.rows = calls.arguments.dequantize.rows = calls.arguments.blocking.rows = 0;
          if (rule.use == Use::Refused) refusals.expect(rule.says, run);
        } else {
          refusals.expect_accepted(run);
        }
      });
}

TEST(ConversionContract, WhatIsIgnoredChangesNothing) {
  set_order("eager");
  for_all_conversions(
      [&](ConversionCalls& calls, const ConversionField& field, const ConversionSituation& situation, bool in_c) {
        if (conversion_rule(field.name, situation).use != Use::Ignored) return;
        const auto bytes = [&](const ConversionArguments& x) {
          calls.found.fill(0xff);
          const Answer answer = call(in_c, situation.conversion, x, nullptr);
          EXPECT_TRUE(answer.accepted) << answer.says;
          device().synchronize();
          return all_bytes();
        };
        const auto wanted = bytes(calls.arguments);
        put(field, calls.arguments, true);
        EXPECT_TRUE(bytes(calls.arguments) == wanted);
      });
}

TEST(ConversionTable, EveryRuleHasAField) {
  for (const ConversionRule& rule : conversion_rules()) {
    EXPECT_TRUE(std::any_of(std::begin(kConversionFields), std::end(kConversionFields),
                            [&](const ConversionField& field) { return field.name == rule.field; }))
        << rule.field;
  }
}

}  // namespace
}  // namespace moxie::test
