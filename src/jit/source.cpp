#include "jit/source.h"

#include <algorithm>
#include <sstream>

namespace moxie::jit {
namespace {

const char* name(Schedule value) { return value == Schedule::Cooperative ? "Cooperative" : "PingPong"; }

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
      break;
  }
  return "Pointers";
}

const char* name(Multicast value) {
  switch (value) {
    case Multicast::None:
      return "None";
    case Multicast::A:
      return "A";
    case Multicast::B:
      break;
  }
  return "B";
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

}  // namespace

std::string store_sink_type(bool pre, DataType type) {
  return std::string("moxie::kernel::Store<kConfig, moxie::kernel::Value::") + (pre ? "Pre" : "Out") +
         ", moxie::DataType::" + (type == DataType::Bf16 ? "Bf16" : "F32") + ">";
}

std::string hopper_source(const kernel::HopperConfig& config, const std::vector<SinkSource>& sinks) {
  std::ostringstream text;
  text << "#include \"moxie/hopper/grouped_gemm.cuh\"\n";
  std::vector<std::string> included;
  for (const SinkSource& sink : sinks) {
    if (sink.header.empty() || std::find(included.begin(), included.end(), sink.header) != included.end()) continue;
    text << "#include \"" << sink.header << "\"\n";
    included.push_back(sink.header);
  }
  text << "\nconstexpr moxie::kernel::HopperConfig kConfig{\n"
       << "    .schedule = moxie::Schedule::" << name(config.schedule) << ",\n"
       << "    .grouping = moxie::Grouping::" << name(config.grouping) << ",\n"
       << "    .block_m = " << config.block_m << ",\n"
       << "    .block_n = " << config.block_n << ",\n"
       << "    .block_k = " << config.block_k << ",\n"
       << "    .stages = " << config.stages << ",\n"
       << "    .cluster = " << config.cluster << ",\n"
       << "    .multicast = moxie::Multicast::" << name(config.multicast) << ",\n"
       << "    .activation = moxie::Activation::" << name(config.activation) << ",\n"
       << "    .gate = moxie::GateLayout::" << name(config.gate) << ",\n"
       << "    .bias = " << (config.bias ? "true" : "false") << ",\n"
       << "    .store_buffers = " << config.store_buffers << ",\n"
       << "};\n";
  for (size_t i = 0; i < sinks.size(); ++i) text << "using Sink" << i << " = " << sinks[i].type << ";\n";
  text << "\nextern \"C\" __global__ void __launch_bounds__(moxie::kernel::kThreads, 1)\n"
       << kKernelName << "(const __grid_constant__ moxie::kernel::GemmParams gemm";
  for (size_t i = 0; i < sinks.size(); ++i) {
    text << ",\n             const __grid_constant__ Sink" << i << "::Params params" << i;
  }
  text << ") {\n  moxie::kernel::hopper_grouped_gemm<kConfig";
  for (size_t i = 0; i < sinks.size(); ++i) text << ", Sink" << i;
  text << ">(gemm";
  for (size_t i = 0; i < sinks.size(); ++i) text << ", params" << i;
  text << ");\n}\n";
  return text.str();
}

}  // namespace moxie::jit
