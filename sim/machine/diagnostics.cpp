// How the machine speaks of what went wrong: hazards, places, and who waits for what in a deadlock.
#include <cstdlib>
#include <sstream>
#include <stdexcept>

#include "sim/machine/machine.h"
#include "sim/machine/run.h"

namespace sim {
namespace {

std::string hex(uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", value);
  return text;
}

std::string block_name(const Cta& cta) {
  return "block (" + std::to_string(cta.index.x) + "," + std::to_string(cta.index.y) + "," +
         std::to_string(cta.index.z) + ")";
}

}  // namespace

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
    case Hazard::IllegalUse:
      return "illegal use";
  }
  return "unknown hazard";
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
  text += ", " + block_name(*warp.cta) + ", warp " + std::to_string(warp.index);
  if (lane >= 0) text += ", lane " + std::to_string(lane);
  return text;
}

void fault(Hazard kind, const Warp& warp, int lane, const std::string& text) {
  throw Fault(kind, std::string(hazard_name(kind)) + ": " + text + " " + describe_location(warp, lane));
}

void report_deadlock(Cluster& cluster, const std::string& why) {
  const Kernel& kernel = *cluster.launch->kernel;
  std::ostringstream list;
  const Warp* lost = nullptr;  // a warp that waits for none but its own lanes
  const Warp* first = nullptr;
  int waiting = 0;
  cluster.explaining = true;
  for (const auto& cta : cluster.ctas) {
    for (const auto& warp : cta->warps) {
      if (warp->splits.empty()) continue;
      ++waiting;
      bool apart = true;
      for (size_t i = 0; i < warp->splits.size(); ++i) {
        warp->current = i;
        const Warp::Split before = warp->splits[i];
        const Instr& in = kernel.code[static_cast<size_t>(before.pc)];
        std::string reason;
        if (before.apart) {
          reason = "lanes " + hex(before.mask) + " wait for the warp's other lanes " + hex(warp->live & ~before.mask);
        } else if (before.blocked_at != 0) {
          apart = false;
          uint32_t mask = before.mask;
          if (in.guard != UINT32_MAX) mask &= in.guard_negated ? ~warp->predicate(in.guard) : warp->predicate(in.guard);
          cluster.waits.erase(warp.get());
          in.execute(*warp, in, mask);
          const auto found = cluster.waits.find(warp.get());
          if (found != cluster.waits.end()) reason = found->second.text;
        } else {
          apart = false;
          reason = "polls";
        }
        list << "\n  " << block_name(*cta) << " warp " << warp->index;
        if (before.mask != warp->live) list << " lanes " << hex(before.mask);
        list << ": " << describe_instruction(kernel, in.source) << ": "
             << (in.source != nullptr ? in.source->opcode : "?");
        if (!reason.empty()) list << ": " << reason;
      }
      warp->current = 0;
      if (first == nullptr) first = warp.get();
      if (apart && lost == nullptr) lost = warp.get();
    }
  }
  cluster.explaining = false;
  const std::vector<std::string> pending = cluster.engine.describe();
  if (pending.empty()) list << "\n  nothing is pending";
  for (const std::string& op : pending) list << "\n  pending: " << op;
  if (lost != nullptr) {
    throw Fault(Hazard::IllegalUse, std::string(hazard_name(Hazard::IllegalUse)) + ": divergent .aligned instruction " +
                                        describe_location(*lost, -1) + list.str());
  }
  throw Fault(Hazard::Deadlock, std::string(hazard_name(Hazard::Deadlock)) + ": " + why + ", " +
                                    std::to_string(waiting) + (waiting == 1 ? " warp waits" : " warps wait") +
                                    (first != nullptr ? ", the first " + describe_location(*first, -1) : "") +
                                    list.str());
}

Order order_from_environment() {
  const char* value = std::getenv("MOXIE_SIM_ORDER");
  Order order;
  if (value == nullptr || *value == 0) return order;
  const std::string text = value;
  if (text == "eager") return order;
  if (text == "lazy") {
    order.mode = Mode::Lazy;
    return order;
  }
  if (text == "random" || text.rfind("random:", 0) == 0) {
    order.mode = Mode::Random;
    if (text.size() > 7) {
      char* end = nullptr;
      order.seed = std::strtoull(text.c_str() + 7, &end, 10);
      if (end != nullptr && *end == 0) return order;
    } else if (text == "random") {
      return order;
    }
  }
  throw std::invalid_argument("MOXIE_SIM_ORDER is '" + text + "', but must be eager, lazy or random:SEED");
}

int threads_from_environment() {
  const char* value = std::getenv("MOXIE_SIM_THREADS");
  if (value == nullptr || *value == 0) return 0;
  char* end = nullptr;
  const long threads = std::strtol(value, &end, 10);
  if (*end == 0 && threads >= 1 && threads <= 1024) return static_cast<int>(threads);
  throw std::invalid_argument("MOXIE_SIM_THREADS is '" + std::string(value) + "', but must be a number from 1 to 1024");
}

namespace {

// True when the variable is `other`, false when it is `usual` or not set.
bool chosen(const char* name, const char* usual, const char* other) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == 0 || std::string(value) == usual) return false;
  if (std::string(value) == other) return true;
  throw std::invalid_argument(std::string(name) + " is '" + value + "', but must be " + usual + " or " + other);
}

}  // namespace

Rules rules_from_environment() {
  Rules rules;
  rules.drained_exit = chosen("MOXIE_SIM_EXIT", "undrained", "drained");
  rules.fenced_reads = !chosen("MOXIE_SIM_READS", "fenced", "unfenced");
  rules.strict_tensor_fences = chosen("MOXIE_SIM_TCGEN05_FENCES", "relaxed", "strict");
  return rules;
}

}  // namespace sim
