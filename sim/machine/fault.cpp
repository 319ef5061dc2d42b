// SPDX-License-Identifier: Apache-2.0
#include "sim/machine/fault.h"

#include <algorithm>

#include "sim/machine/hierarchy.h"
#include "sim/machine/launch.h"

namespace sim {
const char* hazard_name(Hazard h) {
  switch (h) {
    case Hazard::MissingProxyFence:
      return "missing proxy fence";
    case Hazard::DataInFlight:
      return "data in flight";
    case Hazard::RegistersInFlight:
      return "registers in flight";
    case Hazard::StaleTensorMap:
      return "stale tensor map";
    case Hazard::TensorMapInFlight:
      return "tensor map in flight";
    case Hazard::MbarrierMisuse:
      return "mbarrier misuse";
    case Hazard::Deadlock:
      return "deadlock";
    case Hazard::Memory:
      return "memory";
    case Hazard::TensorMemory:
      return "tensor memory";
    case Hazard::Race:
      return "race";
    case Hazard::Assertion:
      return "assertion";
    case Hazard::IllegalUse:
      return "illegal use";
  }
  return "unknown hazard";
}

std::string describe_block(const Cta& cta) {
  const int device = cta.cluster->launch->device;
  return (device != Residence::kEverywhere ? "device " + std::to_string(device) + ", block (" : "block (") +
         std::to_string(cta.index.x) + "," + std::to_string(cta.index.y) + "," + std::to_string(cta.index.z) + ")";
}

std::string describe_instruction(const Kernel& kernel, const ptx::Instruction* source) {
  if (source == nullptr) return "an unknown place";
  std::string text = "ptx line " + std::to_string(source->where.line);
  if (source->source_line > 0) {
    const auto file = kernel.module->files.find(source->file);
    std::string name = file == kernel.module->files.end() ? "file " + std::to_string(source->file) : file->second;
    const size_t slash = name.rfind('/');
    if (slash != std::string::npos) name = name.substr(slash + 1);
    text += " (" + name + ":" + std::to_string(source->source_line) + ")";
  }
  return text;
}

std::string describe_location(const Warp& warp, int lane) {
  const Kernel& kernel = *warp.cta->cluster->launch->kernel;
  std::string text = "at ";
  if (warp.current < warp.splits.size())
    text += describe_instruction(kernel, kernel.code[static_cast<size_t>(warp.pc())].source);
  else
    text += "the end";
  text += ", " + describe_block(*warp.cta) + ", warp " + std::to_string(warp.index);
  if (lane >= 0) text += ", lane " + std::to_string(lane);
  return text;
}

void fault(Hazard kind, const Warp& warp, int lane, const std::string& text) {
  throw Fault(kind, std::string(hazard_name(kind)) + ": " + text + " " + describe_location(warp, lane));
}

Origin current_origin(Warp& warp, int lane) {
  const std::vector<Instr>& code = warp.cta->cluster->launch->kernel->code;
  return {&warp, code[static_cast<size_t>(warp.pc())].source, lane};
}

std::string Origin::text() const {
  std::string text = source->opcode + " at " + describe_instruction(*warp->cta->cluster->launch->kernel, source) +
                     ", " + describe_block(*warp->cta) + ", warp " + std::to_string(warp->index);
  if (lane >= 0) text += ", lane " + std::to_string(lane);
  return text;
}

namespace {

// Null when the warp has left.
const ptx::Instruction* executed_by(const Warp& warp) {
  if (warp.current >= warp.splits.size()) return nullptr;
  return warp.cta->cluster->launch->kernel->code[static_cast<size_t>(warp.pc())].source;
}

}  // namespace

bool is_told(Hazard kind, const Warp& warp) { return is_told(kind, warp, executed_by(warp)); }
bool is_told(Hazard kind, const Warp& warp, const ptx::Instruction* source) {
  Cluster& cluster = *warp.cta->cluster;
  const Strictness strictness = cluster.launch->rules.strictness;
  if (strictness != Strictness::Portable) return strictness == Strictness::Isa;
  return ++cluster.deviations.seen[{source, kind}].count == 1;
}

void tell(Hazard kind, const Warp& warp, int lane, const std::string& text) {
  Cluster& cluster = *warp.cta->cluster;
  if (cluster.launch->rules.strictness == Strictness::Isa) fault(kind, warp, lane, text);
  cluster.deviations.seen[{executed_by(warp), kind}].text =
      std::string(hazard_name(kind)) + ": " + text + " " + describe_location(warp, lane);
}

void Deviations::add(Deviations&& others, uint64_t cluster) {
  for (auto& [key, other] : others.seen) {
    Seen& own = seen[key];
    if (own.count == 0 || cluster < own.cluster) {
      own.cluster = cluster;
      own.text = std::move(other.text);
    }
    own.count += other.count;
  }
  others.seen.clear();
}

std::vector<std::string> Deviations::lines() const {
  std::vector<std::pair<int, std::string>> sorted;
  for (const auto& [key, one] : seen) {
    const std::string times = one.count > 1 ? " (" + std::to_string(one.count) + " times)" : "";
    sorted.emplace_back(key.first != nullptr ? key.first->where.line : INT32_MAX, "warning: " + one.text + times);
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::string> lines;
  for (auto& [line, text] : sorted) lines.push_back(std::move(text));
  return lines;
}

void Origin::tell(Hazard hazard, const std::string& what) const {
  Cluster& cluster = *warp->cta->cluster;
  if (cluster.launch->rules.strictness == Strictness::Isa) fail(hazard, what);
  cluster.deviations.seen[{source, hazard}].text = std::string(hazard_name(hazard)) + ": " + what + ", by " + text();
}

void Origin::fail(Hazard hazard, const std::string& what) const {
  throw Fault(hazard, std::string(hazard_name(hazard)) + ": " + what + ", by " + text());
}

}  // namespace sim
