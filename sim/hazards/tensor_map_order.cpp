// SPDX-License-Identifier: Apache-2.0
#include "sim/hazards/tensor_map_order.h"

#include <algorithm>
#include <string>

#include "sim/machine/agents.h"
#include "sim/machine/fault.h"
#include "sim/memory/address_space.h"
#include "sim/memory/tensor_map.h"

namespace sim {

namespace {

TensorMapRecord& record_of(Cluster& cluster, uint64_t address) {
  TensorMapRecords& records = cluster.tensor_maps;
  records.low = std::min(records.low, address);
  records.high = std::max(records.high, address + kTensorMapBytes);
  return records.maps[address];
}

}  // namespace

TensorMapRecord& rewrite_tensor_map(Warp& warp, uint64_t address, int lane) {
  Cluster& cluster = *warp.cta->cluster;
  TensorMapRecord& record = record_of(cluster, address);
  for (const TensorMapRecord::Use& use : record.uses) {
    if (warp.has_seen(use.stamp) || (use.map_read.at > 0 && warp.has_seen(use.map_read))) continue;
    fault(Hazard::TensorMapInFlight, warp, lane,
          "rewrites the tensor map at " + hex(address) +
              " while a copy may still read it: " + describe_agent(cluster, use.stamp.by) + " has not been waited for");
  }
  record.uses.clear();
  record.acquired.clear();
  record.written = true;
  record.released = false;
  record.writer = warp.stamp();
  return record;
}

void use_tensor_map(Warp& warp, uint64_t address, int lane, const std::vector<Stamp>& completions, Stamp map_read) {
  if ((address & kWindowMask) != 0) return;  // parameters: nobody can rewrite them
  Cluster& cluster = *warp.cta->cluster;
  TensorMapRecord& record = record_of(cluster, address);
  if (record.written) {
    bool acquired = false;
    for (const Stamp& stamp : record.acquired) acquired = acquired || warp.has_seen(stamp);
    if (!acquired) {
      const std::string by = describe_agent(cluster, record.writer.by);
      fault(Hazard::StaleTensorMap, warp, lane,
            "uses the tensor map at " + hex(address) + ", which " + by + " rewrote, " +
                (record.released ? "without fence.proxy.tensormap::generic.acquire after its release"
                                 : "but did not publish with fence.proxy.tensormap::generic.release or "
                                   "tensormap.cp_fenceproxy"));
    }
  }
  if (!record.written && cluster.written.touches(address, kTensorMapBytes)) {
    bool acquired = false;
    for (const Stamp& stamp : record.acquired) acquired = acquired || warp.has_seen(stamp);
    if (!acquired)
      fault(Hazard::StaleTensorMap, warp, lane,
            "uses the tensor map at " + hex(address) +
                ", which ordinary stores wrote, without "
                "fence.proxy.tensormap::generic.release after them and .acquire before the use");
  }
  for (const Stamp& stamp : completions) {
    bool known = false;
    for (TensorMapRecord::Use& use : record.uses) {
      if (use.stamp.by != stamp.by || use.map_read.by != map_read.by) continue;
      use.stamp.at = std::max(use.stamp.at, stamp.at);
      use.map_read.at = std::max(use.map_read.at, map_read.at);
      known = true;
    }
    if (!known) record.uses.push_back({stamp, map_read});
  }
}

void tensor_map_written(Warp& warp, uint64_t address, uint32_t bytes, int lane) {
  Cluster& cluster = *warp.cta->cluster;
  auto& maps = cluster.tensor_maps.maps;
  auto at = maps.upper_bound(address);
  if (at != maps.begin()) --at;
  for (; at != maps.end() && at->first < address + bytes; ++at) {
    if (at->first + kTensorMapBytes > address) rewrite_tensor_map(warp, at->first, lane);
  }
}

void release_tensor_maps(Warp& warp) {
  TensorMapRecords& records = warp.cta->cluster->tensor_maps;
  for (auto& [address, record] : records.maps) {
    if (!record.written || record.released || !warp.has_seen(record.writer)) continue;
    record.released = true;
    record.writer = warp.stamp();
  }
  records.releases.push_back(warp.stamp());
}

void acquire_tensor_map(Warp& warp, uint64_t address) {
  Cluster& cluster = *warp.cta->cluster;
  TensorMapRecord& record = record_of(cluster, address);
  bool ordered = record.released && warp.has_seen(record.writer);
  // A map whose writing was not noticed, since nothing told that it was one.
  for (const Stamp& release : cluster.tensor_maps.releases)
    ordered = ordered || (!record.written && warp.has_seen(release));
  if (ordered) record.acquired.push_back(warp.stamp());
}

}  // namespace sim
