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

}  // namespace

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
          reason = "polls";
        }
        list << "\n  " << describe_block(*cta) << " warp " << warp->index;
        if (before.mask != warp->live) list << " lanes " << lanes_text(before.mask);
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

}  // namespace sim
