// SPDX-License-Identifier: Apache-2.0
// The contract of every argument, as tests/support/contract.cpp has it in tables: what is missing or has no place is
// refused with its sentence before anything is launched, what may be absent may be absent, and what is ignored changes
// no bit, in C++ and in C. The programs of both architectures have these tests.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

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
  constexpr ErrorCode kOther = ErrorCode::Driver;
  return {false,
          status == MOXIE_ERROR_INVALID_ARGUMENT ? ErrorCode::InvalidArgument
          : status == MOXIE_ERROR_UNSUPPORTED    ? ErrorCode::Unsupported
                                                 : kOther,
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

// The whole sentence.
void expect_says(const Answer& answer, std::string_view says, ErrorCode code = ErrorCode::InvalidArgument) {
  EXPECT_EQ(answer.accepted ? "accepted" : answer.says, says);
  if (!answer.accepted) {
    EXPECT_EQ(answer.code, code) << answer.says;
  }
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
  bool packed = false;  // b, beside an a of bf16
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
    {OperandFormat::Bf16, false, {}, kF32, false, true},
    {OperandFormat::Bf16, true, kBf16, DataType::Mxfp4, false, true},
    {OperandFormat::Bf16, true, {}, kF32, true, true},
};
// Packed weights have no groups along K.
bool has_case(Grouping grouping, const ProductCase& c) {
  return (has_scaled_operands() || !has_scales(c.format)) && !(c.packed && grouping == Grouping::KGroups);
}

Job product_job(Grouping grouping, const ProductCase& c) {
  Job job;
  ProductSpec& p = job.problem;
  p.grouping = grouping;
  p.format = c.format, p.bias = c.bias;
  if (c.packed) p.b_format = OperandFormat::Mxfp4;
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
  void expect_whole(std::string_view says, Call&& call) {
    Answer answer;
    EXPECT_EQ(recorder_.launches([&](CUstream stream) { answer = call(stream); }), 0u);
    expect_says(answer, says);
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
      if (!has_case(GetParam(), c)) continue;
      SCOPED_TRACE(fmt::format("{}{}, bias {}, pre {}, out {}, K {}", to_string(c.format),
                               c.packed ? " by packed weights" : "", c.bias, c.pre ? to_string(*c.pre) : "no",
                               c.out ? to_string(*c.out) : "no", c.no_depth ? 0 : 64));
      const GroupedProduct product(product_job(GetParam(), c));
      const GroupedGemm gemm(device(), describe(product.problem()));
      const ProductSituation situation{
          GetParam(), c.format, c.bias, c.pre, c.out, c.no_depth, product.arguments().workspace_bytes > 0, c.packed};
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

// Every pointer that lies between the places where it may lie.
TEST_P(ProductContract, Alignment) {
  for_all_cases([&](const GroupedProduct& product, const GroupedGemm& gemm, const ProductSituation& situation) {
    Refusals refusals;
    for (const ProductField& field : kProductFields) {
      const size_t alignment = product_alignment(field.name, GetParam());
      if (!is_there(field, GetParam()) || alignment == 1) continue;
      const Use use = product_rule(field.name, situation).use;
      if (use != Use::Required && use != Use::Optional) continue;
      for (const bool in_c : {false, true}) {
        SCOPED_TRACE(fmt::format("{} in {}", field.name, in_c ? "C" : "C++"));
        ProductArguments x = arguments_of(product);
        void* const at = GetParam() == Grouping::Pointers ? field.of_pointers(x) : field.of_tensors(x);
        uint64_t address = 0;
        std::memcpy(&address, at, sizeof(address));
        address += alignment / 2;
        std::memcpy(at, &address, sizeof(address));
        // Sentences name a matrix itself, not its data, and an array of pointers as the field is called.
        const std::string_view name = GetParam() != Grouping::Pointers && field.name.ends_with(".data")
                                          ? field.name.substr(0, field.name.size() - 5)
                                          : field.name;
        refusals.expect_whole(fmt::format("{} is {:#x}, but must be aligned to {} bytes", name, address, alignment),
                              [&](CUstream stream) { return call(in_c, gemm, x, {.stream = stream}); });
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
    if (c.no_depth || !has_case(GetParam(), c)) continue;
    Job job = product_job(GetParam(), c);
    ProductSpec& p = job.problem;
    p.groups = int64_t(job.rows.size());
    p.m = total_of(p) ? 83 : 0;  // which the call takes back
    p.n = 64, p.k = 64;
    const GroupedGemm gemm(device(), describe(p));
    const ProductSituation situation{GetParam(), c.format, c.bias, c.pre, c.out, false, false, c.packed};
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
       if (d.activation.function != Activation::SwigluClamped) d.activation.swiglu_clamped = {std::nanf(""), -1.0f};
       if (d.activation.function != Activation::Situ) d.activation.situ = {std::nanf(""), -1.0f};
     }},
    {"a tuning of another architecture", [](auto&) { return true; },
     [](auto& d, auto&, auto&) {
       if (has_scaled_operands() && !d.b_format) {  // packed weights have Hopper's kernels
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

void check_hints(Grouping grouping, const ProductCase& c) {
  Job job = product_job(grouping, c);
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

TEST_P(ProductContract, HintsChangeNothing) {
  set_order("eager");
  const ProductCase cases[] = {kProductCases[0], {OperandFormat::Bf16, false, {}, kF32, false, true}};
  for (const ProductCase& c : cases) {
    SCOPED_TRACE(c.packed ? "packed weights" : "bf16");
    if (has_case(GetParam(), c)) check_hints(GetParam(), c);
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, ProductContract,
                         ::testing::Values(Grouping::Dense, Grouping::Batched, Grouping::Offsets, Grouping::RowGroups,
                                           Grouping::Masked, Grouping::Pointers, Grouping::KGroups),
                         [](const auto& info) {
                           return std::string(names<Grouping>()[size_t(info.param)].identifier);
                         });

// ---- Descriptions --------------------------------------------------------------------------------------------------

// An operation that takes a description. Those that make kernels are called with what they must refuse alone.
struct Operation {
  const char* name;
  bool plans, makes_kernels;
  Answer (*in_cpp)(const GemmDescription&, std::optional<int64_t> total);
  Answer (*in_c)(const moxie_gemm_description*, std::optional<int64_t> total);
};

// Nothing may lie in this folder.
std::string pack_folder() { return ::testing::TempDir() + fmt::format("moxie-refused-pack-{}", getpid()); }
GemmDescription sound_description() { return {.groups = Dense{40}, .n = 64, .k = 64}; }

template <auto InCpp, auto InC>
constexpr Operation kScaleBytes = {
    "", false, false,
    [](const GemmDescription& d, std::optional<int64_t> total) { return answer_of([&] { InCpp(d, total); }); },
    [](const moxie_gemm_description* d, std::optional<int64_t> total) {
      size_t bytes = 12345;
      const Answer answer = answer_of_c(InC(d, total.value_or(MOXIE_NO_TOTAL), &bytes));
      EXPECT_TRUE(answer.accepted || bytes == 12345u);
      return answer;
    }};
template <class Function>
constexpr Operation named(const char* name, Function operation) {
  Operation result = operation;
  result.name = name;
  return result;
}

const Operation kOperations[] = {
    {"a product", true, true,
     [](const GemmDescription& d, std::optional<int64_t>) { return answer_of([&] { GroupedGemm(device(), d); }); },
     [](const moxie_gemm_description* d, std::optional<int64_t>) {
       const moxie_device handle{device()};
       moxie_grouped_gemm* gemm = nullptr;
       const Answer answer = answer_of_c(moxie_grouped_gemm_create(&handle, d, &gemm));
       EXPECT_EQ(gemm != nullptr, answer.accepted);
       moxie_grouped_gemm_release(gemm);
       return answer;
     }},
    {"a plan", true, false,
     [](const GemmDescription& d, std::optional<int64_t>) {
       return answer_of([&] { plan_gemm(d, figures_of(device().info())); });
     },
     [](const moxie_gemm_description* d, std::optional<int64_t>) {
       moxie_device_figures figures{};
       figures.size = sizeof figures, figures.arch = device().info().arch;
       moxie_plan* plan = nullptr;
       const Answer answer = answer_of_c(moxie_plan_create(d, &figures, MOXIE_NO_TOTAL, &plan));
       EXPECT_EQ(plan != nullptr, answer.accepted);
       moxie_plan_release(plan);
       return answer;
     }},
    {"a pack", true, true,
     [](const GemmDescription& d, std::optional<int64_t>) {
       return answer_of([&] { pack({sound_description(), d}, pack_folder(), figures_of(device().info())); });
     },
     [](const moxie_gemm_description* d, std::optional<int64_t>) {
       const GemmDescription sound = sound_description();
       const CDescription first(sound);
       const moxie_gemm_description* const both[] = {&first.d, d};
       moxie_pack_options options{};
       options.size = sizeof options, options.arch = device().info().arch;
       moxie_pack_result result{};
       result.size = sizeof result, result.kernels = -1;
       const Answer answer = answer_of_c(moxie_pack(both, 2, pack_folder().c_str(), &options, &result));
       EXPECT_EQ(result.kernels, -1);
       return answer;
     }},
    named("bytes of a's scales", kScaleBytes<[](auto&... x) { a_scale_bytes(x...); }, moxie_a_scale_bytes>),
    named("bytes of b's scales", kScaleBytes<[](auto&... x) { b_scale_bytes(x...); }, moxie_b_scale_bytes>),
    named("bytes of pre's scales", kScaleBytes<[](auto&... x) { pre_scale_bytes(x...); }, moxie_pre_scale_bytes>),
    named("bytes of out's scales", kScaleBytes<[](auto&... x) { out_scale_bytes(x...); }, moxie_out_scale_bytes>),
};

Groups sound_groups(Grouping grouping) {
  ProductSpec p;
  p.grouping = grouping, p.groups = 2, p.m = 40;
  Groups groups = groups_of(p);
  if (auto* offsets = std::get_if<Offsets>(&groups)) offsets->total.reset();
  return groups;
}

class DescriptionContract : public ::testing::TestWithParam<Grouping> {};

TEST_P(DescriptionContract, EveryRule) {
  const int arch = device().info().arch;
  const bool brings_total = GetParam() == Grouping::Offsets || GetParam() == Grouping::RowGroups;
  const std::optional<int64_t> total = brings_total ? std::optional<int64_t>(80) : std::nullopt;
  for (const DescriptionRule& rule : description_rules()) {
    if (!rule.where(GetParam(), arch)) continue;
    for (const Operation& operation : kOperations) {
      GemmDescription d = sound_description();
      d.groups = sound_groups(GetParam());
      if (rule.change) rule.change(d);
      for (const bool in_c : {false, true}) {
        if (!in_c && !rule.change) continue;
        SCOPED_TRACE(fmt::format("{} of {} in {}", operation.name, rule.name, in_c ? "C" : "C++"));
        std::string_view says = in_c && !rule.says_in_c.empty() ? rule.says_in_c : rule.says;
        ErrorCode code = rule.code;
        if (rule.change && code == ErrorCode::Unsupported && !operation.plans) says = "";
        if (says.empty() && operation.plans && GetParam() == Grouping::KGroups && arch == 90) {
          says = "groups are k-groups, which need sm_100a, but the device is of architecture sm_90a";
          code = ErrorCode::Unsupported;
        }
        if (says.empty() && operation.makes_kernels) continue;
        Answer answer;
        if (in_c) {
          CDescription x(d);
          if (rule.change_in_c) rule.change_in_c(x);
          answer = operation.in_c(&x.d, total);
        } else {
          answer = operation.in_cpp(d, total);
        }
        const std::string sentence = fmt::format(fmt::runtime(says), to_string(GetParam()));
        expect_says(answer, says.empty() ? "accepted" : sentence, code);
      }
    }
  }
  EXPECT_NE(access(pack_folder().c_str(), F_OK), 0) << "a refused pack has made its folder";
}

INSTANTIATE_TEST_SUITE_P(Groups, DescriptionContract,
                         ::testing::Values(Grouping::Dense, Grouping::Batched, Grouping::Offsets, Grouping::RowGroups,
                                           Grouping::Masked, Grouping::Pointers, Grouping::KGroups),
                         [](const auto& info) {
                           return std::string(names<Grouping>()[size_t(info.param)].identifier);
                         });

// The figures of a device that nobody has, for the two operations that take figures.
TEST(FiguresContract, EveryRule) {
  struct Rule {
    void (*change)(DeviceFigures&);
    std::string_view says;
    ErrorCode code = ErrorCode::InvalidArgument;
  };
  constexpr Rule kRules[] = {
      {[](auto& f) { f.arch = 80; }, "arch is 80, but plans exist for 90 (sm_90a) and 100 (sm_100a)",
       ErrorCode::Unsupported},
      {[](auto& f) { f.sm_count = -1; }, "sm_count is -1, but must be at least 1"},
      {[](auto& f) { f.l2_bytes = -1; }, "l2_bytes is -1, but must be at least 1"},
      {[](auto& f) { f.memory_rate = 0.5; }, "memory_rate is 0.5, but must be at least 1 and finite"},
      {[](auto& f) { f.memory_rate = HUGE_VAL; }, "memory_rate is inf, but must be at least 1 and finite"},
      {[](auto& f) { f.clock = -1; }, "clock is -1, but must be at least 1 and finite"},
      {[](auto& f) { f.clock = std::nan(""); }, "clock is nan, but must be at least 1 and finite"},
  };
  const GemmDescription d = sound_description();
  const CDescription in_c(d);
  const moxie_gemm_description* const list[] = {&in_c.d};
  for (const Rule& rule : kRules) {
    DeviceFigures figures;
    rule.change(figures);
    expect_says(answer_of([&] { plan_gemm(d, figures); }), rule.says, rule.code);
    expect_says(answer_of([&] { pack({d}, pack_folder(), figures); }), rule.says, rule.code);
    moxie_device_figures of_plan{};
    of_plan.size = sizeof of_plan, of_plan.arch = figures.arch, of_plan.sm_count = figures.sm_count;
    of_plan.l2_bytes = figures.l2_bytes, of_plan.memory_rate = figures.memory_rate, of_plan.clock = figures.clock;
    moxie_plan* plan = nullptr;
    expect_says(answer_of_c(moxie_plan_create(&in_c.d, &of_plan, MOXIE_NO_TOTAL, &plan)), rule.says, rule.code);
    moxie_pack_options of_pack{};
    of_pack.size = sizeof of_pack, of_pack.arch = figures.arch, of_pack.sm_count = figures.sm_count;
    of_pack.l2_bytes = figures.l2_bytes, of_pack.memory_rate = figures.memory_rate, of_pack.clock = figures.clock;
    expect_says(answer_of_c(moxie_pack(list, 1, pack_folder().c_str(), &of_pack, nullptr)), rule.says, rule.code);
  }
  moxie_pack_options options{};
  options.size = sizeof options, options.image = 2;
  expect_says(answer_of_c(moxie_pack(list, 1, pack_folder().c_str(), &options, nullptr)),
              "options.image is 2, but only 0 and 1 have a meaning");
  moxie_device_figures reserved{};
  reserved.size = sizeof reserved, reserved.reserved = -1;
  moxie_plan* plan = nullptr;
  expect_says(answer_of_c(moxie_plan_create(&in_c.d, &reserved, MOXIE_NO_TOTAL, &plan)),
              "figures.reserved is -1, but this version of the library, " MOXIE_VERSION ", knows only 0",
              ErrorCode::Unsupported);
  EXPECT_NE(access(pack_folder().c_str(), F_OK), 0) << "a refused pack has made its folder";
}

// The total that a plan or a size of scales is asked for.
TEST(TotalContract, EveryGrouping) {
  for (const auto& [grouping, name, identifier] : names<Grouping>()) {
    GemmDescription d = sound_description();
    d.groups = sound_groups(grouping);
    const CDescription in_c(d);
    const bool taken = grouping == Grouping::Offsets || grouping == Grouping::RowGroups;
    const bool sums = grouping == Grouping::KGroups;
    struct Case {
      std::optional<int64_t> total;
      std::string of_plan, of_bytes;
    };
    const std::string not_taken = fmt::format("total is given, but {} groups do not take it", to_string(grouping));
    const std::string needed = fmt::format("total is absent, but {} groups need it", to_string(grouping));
    const Case cases[] = {
        {std::nullopt, "accepted", taken ? needed : "accepted"},
        {80, taken ? "accepted" : not_taken, "accepted"},
        {-5, taken ? "rows.total is -5, but cannot be negative" : not_taken,
         taken  ? "rows.total is -5, but cannot be negative"
         : sums ? "k is -5, but cannot be negative"
                : "accepted"},
        {2147482625, taken ? "rows.total is 2147482625, but at most 2147482624 is possible" : not_taken,
         taken  ? "rows.total is 2147482625, but at most 2147482624 is possible"
         : sums ? "k is 2147482625, but at most 2147482624 is possible"
                : "accepted"},
    };
    DeviceFigures figures;
    figures.arch = 100;
    moxie_device_figures figures_in_c{};
    figures_in_c.size = sizeof figures_in_c, figures_in_c.arch = 100;
    for (const auto& [total, of_plan, of_bytes] : cases) {
      SCOPED_TRACE(fmt::format("{}, total {}", to_string(grouping), total.value_or(MOXIE_NO_TOTAL)));
      expect_says(answer_of([&] { plan_gemm(d, figures, total); }), of_plan);
      moxie_plan* plan = nullptr;
      expect_says(answer_of_c(moxie_plan_create(&in_c.d, &figures_in_c, total.value_or(MOXIE_NO_TOTAL), &plan)),
                  of_plan);
      moxie_plan_release(plan);
      for (const Operation& operation : kOperations) {
        if (operation.plans) continue;
        expect_says(operation.in_cpp(d, total), of_bytes);
        expect_says(operation.in_c(&in_c.d, total), of_bytes);
      }
    }
  }
}

// A rule without a field would test nothing.
TEST(ProductTable, EveryRuleHasAField) {
  for (const ProductRule& rule : product_rules()) {
    EXPECT_TRUE(std::any_of(std::begin(kProductFields), std::end(kProductFields), [&](const ProductField& field) {
      return field.name == rule.field;
    })) << rule.field;
  }
}

// ---- Conversions ---------------------------------------------------------------------------------------------------

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
      : values(std::vector<float>(2 * 64 * 64, 1.5f)),  // two groups of 64 rows, for the calls without offsets
        elements(2 * 64 * 64),
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
void for_all_situations(Check&& check) {
  for (const Conversion conversion : {Conversion::Quantize, Conversion::Dequantize, Conversion::FindTensorScale,
                                      Conversion::BlockScales, Conversion::UnblockScales}) {
    for (const DataType format : {DataType::Mxfp4, DataType::Mxfp8, DataType::Nvfp4}) {
      for (const int offsets : {0, 1, 2}) {
        const bool blocks = conversion == Conversion::BlockScales || conversion == Conversion::UnblockScales;
        if ((blocks && format != DataType::Mxfp4) || (!blocks && offsets == 2)) continue;
        const ConversionSituation situation{conversion, format, offsets > 0, offsets == 2};
        SCOPED_TRACE(fmt::format("conversion {} of {}, offsets {}", int(conversion), to_string(format), offsets));
        check(situation);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

template <class Check>
void for_all_conversions(Check&& check) {
  for_all_situations([&](const ConversionSituation& situation) {
    for (const ConversionField& field : kConversionFields) {
      if (field.of != situation.conversion) continue;
      for (const bool in_c : {false, true}) {
        SCOPED_TRACE(fmt::format("{} in {}", field.name, in_c ? "C" : "C++"));
        ConversionCalls calls(situation);
        check(calls, field, situation, in_c);
        if (::testing::Test::HasFailure()) return;
      }
    }
  });
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

// Every value that no conversion takes, in a call that is right otherwise.
TEST(ConversionContract, Faults) {
  std::set<std::string_view> met;
  for_all_situations([&](const ConversionSituation& situation) {
    Refusals refusals;
    for (const ConversionFault& fault : conversion_faults()) {
      if (!fault.where(situation)) continue;
      met.insert(fault.name);
      for (const bool in_c : {false, true}) {
        SCOPED_TRACE(fmt::format("{} in {}", fault.name, in_c ? "C" : "C++"));
        ConversionCalls calls(situation);
        const void* const pointer = fault.change(calls.arguments);
        const auto run = [&](CUstream stream) { return call(in_c, situation.conversion, calls.arguments, stream); };
        const std::string_view says = in_c && !fault.says_in_c.empty() ? fault.says_in_c : fault.says;
        if (says == "accepted") {
          refusals.expect_accepted(run);
        } else {
          refusals.expect_whole(fmt::format(fmt::runtime(says), fmt::ptr(pointer)), run);
        }
      }
    }
  });
  EXPECT_EQ(met.size(), conversion_faults().size());
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
