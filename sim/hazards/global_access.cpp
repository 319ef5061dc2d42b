// SPDX-License-Identifier: Apache-2.0
#include "sim/hazards/global_access.h"

#include "sim/machine/agents.h"
#include "sim/machine/fault.h"

namespace sim {

void fault_uncaused(const Warp& warp, Stamp write, int lane, const std::string& place) {
  const std::string by = describe_agent(*warp.cta->cluster, write.by);
  fault(Hazard::DataInFlight, warp, lane,
        "reads " + place + ", which " + by + " wrote, and " +
            (warp.has_seen(write)
                 ? "the synchronisation between them has .cta scope at one side at least: another block's "
                   "writes need .cluster or wider at both"
                 : "nothing orders the read after that write"));
}

bool is_uncaused(const Warp& warp, Stamp write) {
  if (write.at == 0 || warp.view.caused[write.by] >= write.at) return false;
  return warp.cta->cluster->agents[write.by].cta != warp.cta;
}

void global_warp_access(Warp& warp, const uint64_t* address, uint32_t mask, uint32_t size, Access access, bool strong) {
  GlobalWriters& writers = warp.cta->cluster->writers;
  if (access == Access::Read && (strong || writers.empty())) return;
  const Stamp stamp = access == Access::Write && !strong ? warp.stamp() : Stamp{};
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if (access != Access::Read) {
      writers.set(address[lane], size, stamp);
      continue;
    }
    for (uint64_t word = address[lane] / 4; word < (address[lane] + size + 3) / 4; ++word) {
      const Stamp write = writers.at(word);
      if (is_uncaused(warp, write)) fault_uncaused(warp, write, lane, "global memory at " + hex(word * 4));
    }
  }
}

void check_unfinished(Warp& warp, uint64_t address, uint64_t bytes, bool write, int lane, Reach reach) {
  const Cluster& cluster = *warp.cta->cluster;
  if (warp.view.seen[cluster.predecessor_grids] > 0) return;
  for (const auto& grid : cluster.launch->predecessors.unfinished_writes) {
    if (!(reaches_grids(reach) ? grid->plain.touches(address, bytes) : grid->touches(address, bytes))) continue;
    fault(Hazard::DataInFlight, warp, lane,
          std::string(write ? "writes to" : "reads") + " global memory at " + hex(address) +
              ", which the grid before may still be writing, and no griddepcontrol.wait stands before it");
  }
}

std::string explain_global(const Launch& launch, uint64_t address, uint64_t bytes) {
  const GlobalMemory& memory = *launch.global;
  GlobalMemory::Range range = memory.find(address);
  // The first of the allocations side by side that the device has no access to.
  while (range.end != 0 && range.end - address < bytes && memory.accessible(range, launch.device))
    range = memory.find(range.end);
  if (range.end == 0 || memory.accessible(range, launch.device)) return memory.explain(address, bytes);
  return "belongs to device " + std::to_string(range.residence.device) + ": device " + std::to_string(launch.device) +
         " has no access to it, because " +
         (range.residence.by_context ? "peer access was not enabled" : "it was not mapped for that device");
}

uint8_t* global_pointer(Warp& warp, uint64_t address, uint32_t size, int lane) {
  const GlobalMemory& memory = *warp.cta->cluster->launch->global;
  if (address + size < address || !global_range_cached(memory, address, address + size)) {
    fault(Hazard::Memory, warp, lane,
          "access of " + std::to_string(size) + (size == 1 ? " byte" : " bytes") + " at global address " +
              hex(address) + ", which " + explain_global(*warp.cta->cluster->launch, address, size));
  }
  return reinterpret_cast<uint8_t*>(address);
}

}  // namespace sim
