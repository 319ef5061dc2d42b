// SPDX-License-Identifier: Apache-2.0
#include "jit/source.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "moxie/names.h"

namespace moxie::jit {
namespace {

// An enumerator in C++: "moxie::Grouping::RowGroups".
template <class Enum>
std::string spell(Enum value) {
  return fmt::format("moxie::{}::{}", EnumTable<Enum>::kType, names<Enum>()[size_t(value)].identifier);
}
std::string spell(int value) { return std::to_string(value); }
std::string spell(bool value) { return value ? "true" : "false"; }

}  // namespace

SinkSource store_sink(bool pre, DataType type) {
  const std::string arguments =
      std::string("<kConfig, moxie::kernel::Value::") + (pre ? "Pre, " : "Out, ") + spell(type) + ">";
  if (is_quantized(type)) return {"moxie::kernel::QuantizedStore" + arguments, "moxie/epilogue/quantized_store.cuh"};
  return {"moxie::kernel::Store" + arguments, ""};
}

namespace {

// The headers of the kernel and of the sinks, each once.
void add_headers(std::ostringstream& text, const char* kernel, const std::vector<SinkSource>& sinks) {
  text << "#include \"" << kernel << "\"\n";
  std::vector<std::string> included;
  for (const SinkSource& sink : sinks) {
    if (sink.header.empty() || std::find(included.begin(), included.end(), sink.header) != included.end()) continue;
    text << "#include \"" << sink.header << "\"\n";
    included.push_back(sink.header);
  }
}

// The configuration as a designated initializer. Its text, with the sinks, is the identity of a kernel.
template <class Config>
void add_config(std::ostringstream& text, const char* type, const Config& config) {
  text << "\nconstexpr moxie::kernel::" << type << " kConfig{\n";
  kernel::visit_fields(config, [&](const char* field, const auto& value) {
    text << "    ." << field << " = " << spell(value) << ",\n";
  });
  text << "};\n";
}

enum class Scales { NotAsked, Absent, Given };  // by the kernel's function

// The entry: its parameters are GemmParams, with scales ScaleParams, and the sinks'.
void add_entry(std::ostringstream& text, const char* function, const char* threads, Scales scales, size_t sinks) {
  text << "\nextern \"C\" __global__ void __launch_bounds__(moxie::kernel::" << threads << ", 1)\n"
       << kKernelName << "(const __grid_constant__ moxie::kernel::GemmParams gemm";
  if (scales == Scales::Given) text << ",\n             const __grid_constant__ moxie::kernel::ScaleParams scales";
  for (size_t i = 0; i < sinks; ++i) {
    text << ",\n             const __grid_constant__ Sink" << i << "::Params params" << i;
  }
  text << ") {\n  moxie::kernel::" << function << "<kConfig";
  for (size_t i = 0; i < sinks; ++i) text << ", Sink" << i;
  text << ">(gemm" << (scales == Scales::Given ? ", &scales" : scales == Scales::Absent ? ", nullptr" : "");
  for (size_t i = 0; i < sinks; ++i) text << ", params" << i;
  text << ");\n}\n";
}

}  // namespace

std::string hopper_source(const kernel::HopperConfig& config, const std::vector<SinkSource>& sinks) {
  std::ostringstream text;
  add_headers(text, "moxie/hopper/grouped_gemm.cuh", sinks);
  add_config(text, "HopperConfig", config);
  for (size_t i = 0; i < sinks.size(); ++i) text << "using Sink" << i << " = " << sinks[i].type << ";\n";
  add_entry(text, "hopper_grouped_gemm", "hopper_threads(kConfig)", Scales::NotAsked, sinks.size());
  return text.str();
}

std::string blackwell_source(const kernel::BlackwellConfig& config, const std::vector<SinkSource>& sinks) {
  std::ostringstream text;
  add_headers(text, "moxie/blackwell/grouped_gemm.cuh", sinks);
  add_config(text, "BlackwellConfig", config);
  for (size_t i = 0; i < sinks.size(); ++i) text << "using Sink" << i << " = " << sinks[i].type << ";\n";
  add_entry(text, "blackwell_grouped_gemm", "kBlackwellThreads",
            kernel::has_scales(config) ? Scales::Given : Scales::Absent, sinks.size());
  return text.str();
}

namespace {

// A kernel whose one argument is `params` and whose work one function does. `attributes` stand before its name.
std::string small_source_with(const char* header, const std::string& attributes, const char* params,
                              const std::string& function) {
  return fmt::format(
      "#include \"moxie/{}\"\n\nextern \"C\" __global__ void {}\n"
      "{}(const __grid_constant__ moxie::kernel::{} params) {{\n  moxie::kernel::{}(params);\n}}\n",
      header, attributes, kKernelName, params, function);
}
std::string small_source(const char* header, const char* threads, const char* params, const std::string& function) {
  return small_source_with(header, fmt::format("__launch_bounds__(moxie::kernel::{})", threads), params, function);
}

}  // namespace

std::string block_scales_source() {
  return small_source("scaling/block_scales.cuh", "kBlockScalesThreads", "BlockScalesParams", "block_scales");
}

std::string pack_weights_source(bool unpack) {
  return small_source("scaling/pack_weights.cuh", "kPackWeightsThreads", "PackWeightsParams",
                      unpack ? "unpack_weights" : "pack_weights");
}

std::string sort_source(SortKernel kernel, IdType type, bool table) {
  const std::string id = type == IdType::Int32 ? "int32_t" : "int64_t";
  const std::string of = "<" + id + ", " + spell(table) + ">";
  if (kernel == SortKernel::Count)
    return small_source_with("routing/sort.cuh",
                             "__launch_bounds__(moxie::kernel::kCountThreads) "
                             "__cluster_dims__(moxie::kernel::kSortCluster)",
                             "SortParams", "count_pairs" + of);
  return small_source_with("routing/sort.cuh", "__maxnreg__(moxie::kernel::kPlaceRegisters)", "SortParams",
                           "place_pairs" + of);
}

std::string route_source(DataType logits, RouterScore score, int size) {
  return small_source("routing/route.cuh", "kRouteThreads", "RouteParams",
                      fmt::format("route<{}, {}, {}>", spell(logits), spell(score), 1 << size));
}

std::string permute_source() {
  return small_source("routing/permute.cuh", "kPermuteThreads", "PermuteParams", "permute");
}

std::string combine_source(DataType rows, DataType out) {
  return small_source_with("routing/combine.cuh",
                           "__launch_bounds__(moxie::kernel::kCombineThreads, moxie::kernel::kCombineBlocks)",
                           "CombineParams", fmt::format("combine<{}, {}>", spell(rows), spell(out)));
}

std::string exchange_source() {
  return small_source("ranks/exchange.cuh", "kSortThreads", "ExchangeParams", "exchange");
}

std::string meet_source() { return small_source("ranks/meet.cuh", "kMeetThreads", "MeetParams", "meet"); }

std::string dispatch_source(IdType type, RowFormat format) {
  return small_source("ranks/dispatch.cuh", "kDispatchThreads", "DispatchParams",
                      fmt::format("dispatch<{}, {}>", type == IdType::Int32 ? "int32_t" : "int64_t", spell(format)));
}

std::string send_few_source(IdType type, RowFormat format) {
  // One block: ptxas otherwise keeps room for a second one, and spills.
  return small_source_with(
      "ranks/send_few.cuh", "__launch_bounds__(moxie::kernel::kSendFewThreads, 1)", "SendFewParams",
      fmt::format("send_few<{}, {}>", type == IdType::Int32 ? "int32_t" : "int64_t", spell(format)));
}

std::string gather_rows_source(RowFormat format) {
  return small_source("ranks/gather_rows.cuh", "kGatherRowsThreads", "GatherRowsParams",
                      fmt::format("gather_rows<{}>", spell(format)));
}

std::string combine_ranks_source(DataType out, bool meets) {
  const std::string call = fmt::format("combine_over_ranks<{}, {}>", spell(out), meets);
  if (!meets) return small_source("ranks/combine.cuh", "kCombineThreads", "CombineRanksParams", call);
  return small_source_with("ranks/combine.cuh",
                           "__launch_bounds__(moxie::kernel::kCombineThreads, moxie::kernel::kCombineRanksBlocks)",
                           "CombineRanksParams", call);
}

std::string combine_sums_source(DataType out, ResultFormat results) {
  return small_source_with("ranks/combine_sums.cuh",
                           "__launch_bounds__(moxie::kernel::kCombineSumsThreads, moxie::kernel::kCombineSumsBlocks)",
                           "CombineSumsParams", fmt::format("combine_sums<{}, {}>", spell(out), spell(results)));
}

std::string quantize_source(QuantizeKernel kernel, DataType format, DataType type) {
  const bool step = kernel == QuantizeKernel::TensorScale;
  std::ostringstream text;
  text << "#include \"moxie/scaling/quantize.cuh\"\n\nextern \"C\" __global__ void "
       << "__launch_bounds__(moxie::kernel::kQuantizeThreads)\n"
       << kKernelName << "(const __grid_constant__ moxie::kernel::QuantizeParams params" << (step ? ", int step" : "")
       << ") {\n  moxie::kernel::";
  if (step) {
    text << "find_tensor_scale<" << spell(type) << ">(params, static_cast<moxie::kernel::TensorScaleStep>(step)";
  } else {
    const bool back = kernel == QuantizeKernel::Dequantize;
    text << (back ? "dequantize<" : "quantize<") << spell(format) << ", " << spell(type)
         << (back ? "" : ", " + spell(kernel == QuantizeKernel::GatherAndQuantize)) << ">(params";
  }
  text << ");\n}\n";
  return text.str();
}

}  // namespace moxie::jit
