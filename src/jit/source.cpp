#include "jit/source.h"

#include <algorithm>
#include <sstream>

namespace moxie::jit {
namespace {

const char* name(WarpSchedule value) { return value == WarpSchedule::Cooperative ? "Cooperative" : "PingPong"; }

const char* name(Grouping value) {
  switch (value) {
    case Grouping::Dense:
      return "Dense";
    case Grouping::Batched:
      return "Batched";
    case Grouping::Offsets:
      return "Offsets";
    case Grouping::RowGroups:
      return "RowGroups";
    case Grouping::Masked:
      return "Masked";
    case Grouping::Pointers:
      return "Pointers";
    case Grouping::KGroups:
      break;
  }
  return "KGroups";
}

const char* name(TileSource value) { return value == TileSource::Static ? "Static" : "LaunchControl"; }

const char* name(OperandFormat value) {
  return value == OperandFormat::Mxfp4 ? "Mxfp4" : value == OperandFormat::Nvfp4 ? "Nvfp4" : "Bf16";
}

const char* name(Multicast value) {
  switch (value) {
    case Multicast::None:
      return "None";
    case Multicast::A:
      return "A";
    case Multicast::B:
      return "B";
    case Multicast::Either:
      break;
  }
  return "Either";
}

const char* name(Activation value) {
  switch (value) {
    case Activation::None:
      return "None";
    case Activation::Relu:
      return "Relu";
    case Activation::Relu2:
      return "Relu2";
    case Activation::GeluTanh:
      return "GeluTanh";
    case Activation::GeluErf:
      return "GeluErf";
    case Activation::Silu:
      return "Silu";
    case Activation::Swiglu:
      return "Swiglu";
    case Activation::SwigluOai:
      return "SwigluOai";
    case Activation::Geglu:
      return "Geglu";
    case Activation::Reglu:
      break;
  }
  return "Reglu";
}

const char* name(GateLayout value) {
  switch (value) {
    case GateLayout::Interleaved:
      return "Interleaved";
    case GateLayout::Split:
      return "Split";
    case GateLayout::SplitUpFirst:
      break;
  }
  return "SplitUpFirst";
}

std::string type_name(DataType type) {
  switch (type) {
    case DataType::Bf16:
      return "moxie::DataType::Bf16";
    case DataType::F32:
      return "moxie::DataType::F32";
    case DataType::Mxfp4:
      return "moxie::DataType::Mxfp4";
    case DataType::Mxfp8:
      return "moxie::DataType::Mxfp8";
    case DataType::Nvfp4:
      break;
  }
  return "moxie::DataType::Nvfp4";
}

}  // namespace

SinkSource store_sink(bool pre, DataType type) {
  const std::string arguments =
      std::string("<kConfig, moxie::kernel::Value::") + (pre ? "Pre, " : "Out, ") + type_name(type) + ">";
  if (is_quantized(type)) return {"moxie::kernel::QuantizedStore" + arguments, "moxie/epilogue/quantized_store.cuh"};
  return {"moxie::kernel::Store" + arguments, ""};
}

namespace {

// A field's value in C++.
std::string spell(int value) { return std::to_string(value); }
std::string spell(bool value) { return value ? "true" : "false"; }
std::string spell(WarpSchedule value) { return std::string("moxie::WarpSchedule::") + name(value); }
std::string spell(Grouping value) { return std::string("moxie::Grouping::") + name(value); }
std::string spell(Multicast value) { return std::string("moxie::Multicast::") + name(value); }
std::string spell(Activation value) { return std::string("moxie::Activation::") + name(value); }
std::string spell(GateLayout value) { return std::string("moxie::GateLayout::") + name(value); }
std::string spell(OperandFormat value) { return std::string("moxie::OperandFormat::") + name(value); }
std::string spell(TileSource value) { return std::string("moxie::TileSource::") + name(value); }

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
  add_entry(text, "hopper_grouped_gemm", "kHopperThreads", Scales::NotAsked, sinks.size());
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

std::string block_scales_source() {
  return std::string(
             "#include \"moxie/scaling/block_scales.cuh\"\n\nextern \"C\" __global__ void "
             "__launch_bounds__(moxie::kernel::kBlockScalesThreads)\n") +
         kKernelName +
         "(const __grid_constant__ moxie::kernel::BlockScalesParams params) {\n  "
         "moxie::kernel::block_scales(params);\n}\n";
}

std::string quantize_source(QuantizeKernel kernel, DataType format, DataType type) {
  const bool step = kernel == QuantizeKernel::TensorScale;
  std::ostringstream text;
  text << "#include \"moxie/scaling/quantize.cuh\"\n\nextern \"C\" __global__ void "
       << "__launch_bounds__(moxie::kernel::kQuantizeThreads)\n"
       << kKernelName << "(const __grid_constant__ moxie::kernel::QuantizeParams params" << (step ? ", int step" : "")
       << ") {\n  moxie::kernel::";
  if (step) {
    text << "find_tensor_scale<" << type_name(type) << ">(params, static_cast<moxie::kernel::TensorScaleStep>(step)";
  } else {
    text << (kernel == QuantizeKernel::Quantize ? "quantize<" : "dequantize<") << type_name(format) << ", "
         << type_name(type) << ">(params";
  }
  text << ");\n}\n";
  return text.str();
}

}  // namespace moxie::jit
