// SPDX-License-Identifier: Apache-2.0
// Compiles kernels that differ in all that matters to a compiler with the NVRTC that MOXIE_NVRTC names, and prints one
// line for each: NAME REGISTERS SPILL_BYTES CODE_BYTES. scripts/check-nvrtc runs it with one version after another.
//
//   nvrtc_registers [FOLDER]     FOLDER receives the machine code, NAME.cubin
#include <elf.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <regex>

#include "jit/jit.h"
#include "jit/source.h"

namespace moxie {
namespace {

struct Kernel {
  const char* name;
  int arch;
  std::string source;
};

std::vector<jit::SinkSource> sinks(std::initializer_list<std::pair<bool, DataType>> outputs) {
  std::vector<jit::SinkSource> list;
  for (const auto& [pre, type] : outputs) list.push_back(jit::store_sink(pre, type));
  return list;
}

Kernel hopper(const char* name, const kernel::HopperConfig& config, const std::vector<jit::SinkSource>& outputs) {
  return {name, 90, jit::hopper_source(config, outputs)};
}
Kernel blackwell(const char* name, const kernel::BlackwellConfig& config, const std::vector<jit::SinkSource>& outputs) {
  return {name, 100, jit::blackwell_source(config, outputs)};
}

std::vector<Kernel> kernels() {
  const auto out = sinks({{false, DataType::Bf16}});
  const auto both = sinks({{true, DataType::Bf16}, {false, DataType::Bf16}});
  return {
      hopper("hopper-dense-cooperative-128x256",
             {.block_m = 128, .block_n = 256, .stages = 4, .cluster = 2, .multicast = Multicast::B}, out),
      hopper("hopper-offsets-cooperative-256x128-swiglu",
             {.grouping = Grouping::Offsets,
              .block_m = 256,
              .block_n = 128,
              .stages = 3,
              .cluster = 2,
              .multicast = Multicast::Either,
              .activation = Activation::SwigluOai,
              .bias = true},
             both),
      hopper("hopper-offsets-pingpong-64x256-swiglu",
             {.schedule = WarpSchedule::PingPong,
              .grouping = Grouping::Offsets,
              .block_m = 64,
              .block_n = 256,
              .activation = Activation::SwigluOai,
              .bias = true},
             out),
      hopper("hopper-offsets-pingpong-8x128-decode",
             {.schedule = WarpSchedule::PingPong,
              .grouping = Grouping::Offsets,
              .block_m = 8,
              .block_n = 128,
              .stages = 8,
              .activation = Activation::Swiglu,
              .decode_tile = true},
             out),
      hopper("hopper-pointers-cooperative-128x192-gelu-erf",
             {.grouping = Grouping::Pointers, .block_m = 128, .block_n = 192, .activation = Activation::GeluErf}, both),
      hopper("hopper-masked-pingpong-128x128-mxfp8",
             {.schedule = WarpSchedule::PingPong,
              .grouping = Grouping::Masked,
              .block_m = 128,
              .block_n = 128,
              .activation = Activation::Swiglu,
              .gate = GateLayout::Split,
              .quantized = true},
             sinks({{false, DataType::Mxfp8}})),
      blackwell("blackwell-mxfp4-offsets-256-swiglu",
                {.grouping = Grouping::Offsets,
                 .block_n = 256,
                 .cluster = 2,
                 .accumulators = 1,
                 .activation = Activation::SwigluOai,
                 .bias = true},
                out),
      blackwell("blackwell-mxfp4-masked-128-mxfp4",
                {.grouping = Grouping::Masked, .activation = Activation::Swiglu, .quantized = true},
                sinks({{false, DataType::Mxfp4}})),
      blackwell("blackwell-nvfp4-offsets-swapped",
                {.format = OperandFormat::Nvfp4,
                 .grouping = Grouping::Offsets,
                 .swap_ab = true,
                 .block_n = 32,
                 .stages = 6,
                 .activation = Activation::SwigluOai,
                 .bias = true},
                out),
      blackwell("blackwell-mxfp4-dense-launch-control", {.block_n = 192, .scheduling = TileSource::LaunchControl},
                sinks({{false, DataType::F32}})),
      blackwell("blackwell-bf16-k-groups",
                {.format = OperandFormat::Bf16, .grouping = Grouping::KGroups, .block_n = 256, .accumulators = 1}, out),
  };
}

long figure(const std::string& log, const char* pattern) {
  std::smatch match;
  return std::regex_search(log, match, std::regex(pattern)) ? std::stol(match[1]) : -1;
}

// Size of the kernel's section of machine code.
size_t code_bytes(const std::string& image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image.data(), sizeof header);
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  std::memcpy(sections.data(), image.data() + header.e_shoff, sections.size() * sizeof sections[0]);
  const char* names = image.data() + sections.at(header.e_shstrndx).sh_offset;
  for (const Elf64_Shdr& section : sections) {
    if (names + section.sh_name == std::string(".text.") + jit::kKernelName) return section.sh_size;
  }
  throw std::runtime_error("no machine code");
}

int run(int count, char** values) {
  const jit::Compiler& compiler = jit::Compiler::get();
  std::printf("NVRTC %s\n", compiler.version().c_str());
  bool failed = false;
  for (const Kernel& kernel : kernels()) {
    jit::Request request;
    request.source = kernel.source;
    request.arch = kernel.arch;
    std::string log;
    try {
      const std::string image = compiler.compile(request, &log);
      const long registers = figure(log, "Used (\\d+) registers");
      const long stores = figure(log, "(\\d+) bytes spill stores");
      const long loads = figure(log, "(\\d+) bytes spill loads");
      if (std::min({registers, stores, loads}) < 0) throw std::runtime_error("no report of registers: " + log);
      std::printf("%s %ld %ld %zu\n", kernel.name, registers, stores + loads, code_bytes(image));
      if (count > 1) std::ofstream(values[1] + std::string("/") + kernel.name + ".cubin", std::ios::binary) << image;
    } catch (const std::exception& error) {
      failed = true;
      std::printf("%s failed: %s\n", kernel.name, error.what());
    }
  }
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace moxie

int main(int count, char** values) {
  try {
    return moxie::run(count, values);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "nvrtc_registers: %s\n", error.what());
    return 1;
  }
}
