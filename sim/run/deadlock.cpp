// SPDX-License-Identifier: Apache-2.0
// Who waits for what when no warp can go on.
#include <cstdio>
#include <sstream>

#include "sim/machine/fault.h"
#include "sim/machine/launch.h"
#include "sim/run/turn.h"

namespace sim {
namespace {

std::string lanes_text(uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", value);
  return text;
}

// What a warp that is not blocked does: it reads a place that nobody changes.
std::string polled_text(const Warp& warp) {
  if (warp.polled_place == 0) return "polls";
  if ((warp.polled_place & kWindowMask) != 0) return "polls shared memory";
  const GlobalMemory::Range range = warp.cta->cluster->launch->global->find(warp.polled_place);
  std::string text = "polls global memory at " + hex(warp.polled_place);
  if (range.residence.device != Residence::kEverywhere) text += " of device " + std::to_string(range.residence.device);
  return text + ", which nobody changes";
}

}  // namespace

Waiting describe_waiting(Cluster& cluster) {
  const Kernel& kernel = *cluster.launch->kernel;
  std::ostringstream list;
  Waiting waiting;
  cluster.explaining = true;
  for (const auto& cta : cluster.ctas) {
    for (const auto& warp : cta->warps) {
      if (warp->splits.empty()) continue;
      ++waiting.warps;
      bool apart = true;
      for (size_t i = 0; i < warp->splits.size(); ++i) {
        warp->current = i;
        const Warp::Split before = warp->splits[i];
        const Instr& in = kernel.code[static_cast<size_t>(before.pc)];
        std::string reason;
        if (before.apart) {
          reason = "lanes " + lanes_text(before.mask) + " wait for the warp's other lanes " +
                   lanes_text(warp->live & ~before.mask);
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
          reason = polled_text(*warp);
        }
        list << "\n  " << describe_block(*cta) << " warp " << warp->index;
        if (before.mask != warp->live) list << " lanes " << lanes_text(before.mask);
        list << ": " << describe_instruction(kernel, in.source) << ": "
             << (in.source != nullptr ? in.source->opcode : "?");
        if (!reason.empty()) list << ": " << reason;
      }
      warp->current = 0;
      if (waiting.first.empty()) waiting.first = describe_location(*warp, -1);
      if (apart && waiting.lost.empty()) waiting.lost = describe_location(*warp, -1);
    }
  }
  cluster.explaining = false;
  waiting.lines = list.str();
  return waiting;
}

void report_deadlock(Cluster& cluster, const std::string& why) {
  Waiting waiting = describe_waiting(cluster);
  waiting.lines += "\n  nothing is pending";
  if (!waiting.lost.empty()) {
    throw Fault(Hazard::IllegalUse, std::string(hazard_name(Hazard::IllegalUse)) + ": divergent .aligned instruction " +
                                        waiting.lost + waiting.lines);
  }
  throw Fault(Hazard::Deadlock, std::string(hazard_name(Hazard::Deadlock)) + ": " + why + ", " +
                                    std::to_string(waiting.warps) +
                                    (waiting.warps == 1 ? " warp waits" : " warps wait") +
                                    (waiting.first.empty() ? "" : ", the first " + waiting.first) + waiting.lines);
}

}  // namespace sim
