// SPDX-License-Identifier: Apache-2.0
#include "sim/hazards/system_access.h"

#include <algorithm>
#include <bit>

#include "sim/machine/fault.h"

namespace sim {
namespace {

// The allocation that an address lies in, and the region that remembers what was done to it; null when no other device
// may access it. Bytes may have several addresses and are known by one.
struct Place {
  GlobalMemory::Range range;
  SystemHistory::Region* region = nullptr;
  uint64_t known(uint64_t address) const { return address - range.begin + range.known_as(); }
  uint64_t address(uint64_t known) const { return known - range.known_as() + range.begin; }
  bool holds(uint64_t from, uint64_t bytes) const { return from >= range.begin && from + bytes <= range.end; }
};
Place place_at(SystemHistory& history, const GlobalMemory& memory, uint64_t address) {
  Place place;
  place.range = memory.find(address);
  if (place.range.end == 0 || !memory.is_shared(place.range)) return place;
  const uint64_t begin = place.range.known_as();
  place.region = &history.region(begin, begin + place.range.end - place.range.begin, place.range.residence.device);
  return place;
}

uint64_t known_address(const GlobalMemory& memory, uint64_t address) {
  const GlobalMemory::Range range = memory.find(address);
  return address - range.begin + range.known_as();
}

SystemCluster::OfWarp& of_warp(Warp& warp) { return warp.cta->cluster->system->warps[&warp]; }

bool has_seen(const Clock& seen, Stamp stamp) { return seen[stamp.by] >= stamp.at; }

// What who has seen this knows from the beginning of its kernel, or from its griddepcontrol.wait.
const Knowledge& known_from_the_launch(const Cluster& cluster, const Clock& seen) {
  const SystemLaunch& launch = *cluster.launch->system;
  return seen[cluster.predecessor_grids] > 0 ? launch.begin : launch.early;
}

bool knows(const Warp& warp, const SystemAccess& other) {
  const Cluster& cluster = *warp.cta->cluster;
  if (other.cluster == cluster.system->id) return has_seen(warp.view.seen, other.stamp);
  if (known_from_the_launch(cluster, warp.view.seen).covers(other)) return true;
  const auto& learned = cluster.system->learned;
  return std::any_of(learned.rbegin(), learned.rend(), [&](const SystemCluster::Learned& one) {
    return has_seen(warp.view.seen, one.at) && one.published.known.covers(other);
  });
}

// Whether a proxy fence stands between the other's access and what the warp does now. The end of a kernel is one: that
// of the other's kernel, and that of a kernel before this one that has learned of the access.
bool is_fenced(const Warp& warp, const SystemAccess& other) {
  const Cluster& cluster = *warp.cta->cluster;
  if (known_from_the_launch(cluster, warp.view.seen).covers(other)) return true;
  const auto& learned = cluster.system->learned;
  return std::any_of(learned.rbegin(), learned.rend(), [&](const SystemCluster::Learned& one) {
    return has_seen(warp.view.seen, one.at) &&
           (one.published.fenced.covers(other) || one.published.known.has_ended(other.work));
  });
}

// Whether anything but the scopes, or the completion of a copy, orders the other's access before.
bool is_ordered_narrowly(const Warp& warp, const SystemAccess& other) {
  const auto& learned = warp.cta->cluster->system->learned;
  return std::any_of(learned.begin(), learned.end(), [&](const SystemCluster::Learned& one) {
    return has_seen(warp.view.seen, one.at) && one.narrow.covers(other);
  });
}
bool knows_of_cluster(const Warp& warp, const SystemAccess& other) {
  const auto& learned = warp.cta->cluster->system->learned;
  return std::any_of(learned.begin(), learned.end(), [&](const SystemCluster::Learned& one) {
    return has_seen(warp.view.seen, one.at) &&
           (one.published.known.part_of(other.cluster) != nullptr || one.narrow.part_of(other.cluster) != nullptr);
  });
}

bool may_meet(const SystemAccess& a, const SystemAccess& b) {
  return a.reach == Reach::System && b.reach == Reach::System;
}

std::string place_text(const Place& place, uint64_t known) {
  return "global memory at " + hex(place.address(known)) + " of device " + std::to_string(place.region->device);
}
std::string doer_text(const SystemHistory& history, const SystemAccess& access) {
  std::string text = history.text_of(access.name) + " of device " + std::to_string(access.device);
  if (access.async) text = "a bulk copy of " + text;
  return text;
}
std::string line_text(const SystemAccess& access) {
  return access.ptx_line > 0 ? " at ptx line " + std::to_string(access.ptx_line) : "";
}

struct Verdict {
  Hazard hazard;
  std::string text;
};

// `does`: "reads", "writes to". The two are not ordered.
Verdict unordered(const SystemHistory& history, const Place& place, uint64_t address, const SystemAccess& now,
                  const SystemAccess& other, bool other_writes, const std::string& does, bool narrowly,
                  bool half_known) {
  std::string text = does + " " + place_text(place, address) + ", which " + doer_text(history, other) +
                     (other_writes ? " wrote" : " has read") + line_text(other) + ", and ";
  if (now.reach != Reach::Weak && other.reach != Reach::Weak)
    return {Hazard::Race, text + "one of the two has a narrower scope than .sys, which devices need"};
  if (narrowly)
    return {Hazard::DataInFlight,
            text + "the synchronization between them has a narrower scope than .sys at one side at least"};
  if (other.async && half_known)
    return {Hazard::DataInFlight,
            text + "what orders the two does not wait for that copy: " +
                (other_writes ? "a cp.async.bulk.wait_group without .read is missing before the release"
                              : "its mbarrier has not been waited for before the release")};
  return {Hazard::Race,
          text +
              "nothing orders the two: a release and an acquire at .sys scope, an event or a wait of the host is "
              "missing between them"};
}

struct SystemJudge {
  Warp& warp;
  SystemHistory& history;
  const Place& place;
  const SystemAccess& now;
  const char* does;
  bool writes;
  int lane;
  void operator()(uint32_t id, bool other_writes, uint64_t address) const {
    const SystemAccess other = history[id];
    if (other.device == now.device || may_meet(now, other)) return;
    if (!knows(warp, other)) {
      const Verdict verdict = unordered(history, place, address, now, other, other_writes, does,
                                        is_ordered_narrowly(warp, other), knows_of_cluster(warp, other));
      fault(verdict.hazard, warp, lane, verdict.text);
    }
    if (!now.async || other.async || is_fenced(warp, other)) return;
    const auto text = [&] {
      return std::string(writes ? "an asynchronous copy writes to " : "an asynchronous copy reads ") +
             place_text(place, address) + ", which " + doer_text(history, other) +
             (other_writes ? " wrote through the generic proxy" : " has read through the generic proxy") +
             line_text(other) + ", and no fence.proxy.async stands between";
    };
    if (other_writes) fault(Hazard::MissingProxyFence, warp, lane, text());
    deviation(Hazard::MissingProxyFence, warp, lane, text);
  }
};

int line_of(const ptx::Instruction* source) { return source != nullptr ? source->where.line : 0; }

SystemAccess access_of(Warp& warp, Stamp stamp, bool async, Reach reach) {
  const Launch& launch = *warp.cta->cluster->launch;
  SystemAccess access;
  access.work = launch.system->work;
  access.device = launch.device;
  access.cluster = warp.cta->cluster->system->id;
  access.stamp = stamp;
  access.name = launch.system->name;
  access.ptx_line = line_of(launch.kernel->code[static_cast<size_t>(warp.pc())].source);
  access.async = async;
  access.reach = reach;
  return access;
}

}  // namespace

void system_warp_access(Warp& warp, const uint64_t* address, uint32_t mask, uint32_t size, Access access, Reach reach) {
  const Launch& launch = *warp.cta->cluster->launch;
  SystemHistory& history = *launch.system->history;
  const std::lock_guard<std::mutex> lock(history.mutex);
  Place place;
  uint32_t id = 0;
  const bool writes = access != Access::Read;
  for (uint32_t rest = mask; rest != 0;) {
    const int lane = std::countr_zero(rest);
    const uint64_t at = address[lane];
    // Lanes whose bytes follow each other are judged together.
    uint32_t bytes = size;
    rest &= rest - 1;
    while (rest != 0 && address[std::countr_zero(rest)] == at + bytes) {
      bytes += size;
      rest &= rest - 1;
    }
    if (!place.holds(at, bytes)) place = place_at(history, *launch.global, at);
    if (place.region == nullptr) continue;
    if (id == 0) {
      SystemCluster::OfWarp& own = of_warp(warp);
      const void* const source = launch.kernel->code[static_cast<size_t>(warp.pc())].source;
      const Stamp stamp = warp.stamp();
      for (const auto& recent : own.recent) {
        if (recent.source == source && recent.stamp.at == stamp.at) id = recent.id;
      }
      if (id == 0) {
        id = history.add(access_of(warp, stamp, false, reach));
        own.recent[own.next++ % own.recent.size()] = {source, stamp, id};
      }
    }
    const SystemAccess now = history[id];
    const SystemJudge judge{warp, history, place, now, writes ? "writes to" : "reads", writes, lane};
    history.touch(*place.region, place.known(at), std::min<uint64_t>(bytes, place.range.end - at), id, writes, judge);
  }
}

void system_copy_access(Warp& warp, uint64_t address, uint64_t bytes, bool write, Stamp stamp, bool async, Reach reach,
                        int lane) {
  const Launch& launch = *warp.cta->cluster->launch;
  SystemHistory& history = *launch.system->history;
  const std::lock_guard<std::mutex> lock(history.mutex);
  const char* const does = !async ? "reads" : write ? "an asynchronous copy writes to" : "an asynchronous copy reads";
  for (const uint64_t end = address + bytes; address < end;) {
    const Place place = place_at(history, *launch.global, address);
    if (place.range.end == 0) return;
    const uint64_t here = std::min(end, place.range.end) - address;
    if (place.region != nullptr) {
      const uint32_t id = history.add(access_of(warp, stamp, async, reach));
      const SystemAccess now = history[id];
      const SystemJudge judge{warp, history, place, now, does, write, lane};
      history.touch(*place.region, place.known(address), here, id, write, judge);
    }
    address += here;
  }
}

void system_publish(Warp& warp, uint64_t address, Reach reach, bool release) {
  Cluster& cluster = *warp.cta->cluster;
  const SystemLaunch& launch = *cluster.launch->system;
  SystemCluster& own = *cluster.system;
  const int device = cluster.launch->device;
  const std::lock_guard<std::mutex> lock(launch.history->mutex);
  const SystemCluster::OfWarp& mine = of_warp(warp);
  if (!release && !mine.has_fenced) return;
  SystemFlag& flag = launch.history->flags[known_address(*cluster.launch->global, address)];
  ++flag.version;
  const auto publish = [&](Published& to, const Clock& seen) {
    const Knowledge& from_the_launch = known_from_the_launch(cluster, seen);
    to.known.join(from_the_launch);
    to.known.add(own.id, launch.work, seen);
    to.fenced.works.join(from_the_launch.works);
    for (const SystemCluster::Learned& one : own.learned) {
      if (has_seen(seen, one.at)) to.join(one.published);
    }
  };
  // What a fence of narrower scope lets a relaxed operation publish is published at that scope.
  const Clock& latest = release ? warp.view.seen : warp.fence_view.seen;
  const Clock& for_system = release ? latest : mine.system_fence;
  const Clock& for_device = release ? latest : mine.device_fence;
  const bool to_system = reach == Reach::System && !for_system.empty();
  const bool to_device = reach > Reach::Cluster && !for_device.empty();
  if (to_system) publish(flag.system[device], for_system);
  if (to_device && !(to_system && for_system.covers(for_device))) publish(flag.device[device], for_device);
  if (!(to_system && for_system.covers(latest))) flag.narrow.add(own.id, launch.work, latest);
  for (const SystemCluster::Learned& one : own.learned) {
    if (has_seen(latest, one.at)) flag.narrow.join(one.narrow);
  }
}

namespace {

// Where to note what holds for all that the warp does from now on.
SystemCluster::Learned& learned_now(Warp& warp) {
  constexpr size_t kMostLearned = 512;
  SystemCluster& own = *warp.cta->cluster->system;
  // The warp has told nobody anything since it learned at the same stamp. Where there is too much to keep apart the new
  // counts from when the last of the same warp did, or of any.
  auto place = std::find_if(own.learned.rbegin(), own.learned.rend(),
                            [&](const SystemCluster::Learned& one) { return one.at.by == warp.self; });
  const bool full = own.learned.size() >= kMostLearned;
  if (full && place == own.learned.rend()) place = own.learned.rbegin();
  if (place != own.learned.rend() && (full || place->at.at == warp.stamp().at)) return *place;
  own.learned.push_back({warp.stamp(), {}, {}});
  return own.learned.back();
}

}  // namespace

void system_observe(Warp& warp, uint64_t address, Reach reach, bool acquire) {
  const Launch& launch = *warp.cta->cluster->launch;
  SystemHistory& history = *launch.system->history;
  const std::lock_guard<std::mutex> lock(history.mutex);
  address = known_address(*launch.global, address);
  const auto found = history.flags.find(address);
  if (found == history.flags.end()) return;
  const SystemFlag& flag = found->second;
  SystemCluster::OfWarp& mine = of_warp(warp);
  uint64_t& version = mine.versions[address * 2 + (acquire ? 1 : 0)];
  if (version == flag.version) return;
  version = flag.version;
  SystemCluster::Learned* const now = acquire ? &learned_now(warp) : nullptr;
  Published& for_device = acquire ? now->published : mine.device_read;
  Published& for_system = acquire ? now->published : mine.system_read;
  Knowledge& narrow = acquire ? now->narrow : mine.narrow_read;
  for (const auto& [device, published] : flag.system) {
    const bool own = device == launch.device;
    if (own && reach > Reach::Cluster)
      for_device.join(published);
    else if (reach == Reach::System)
      for_system.join(published);
    else
      narrow.join(published.known);
  }
  for (const auto& [device, published] : flag.device) {
    if (device == launch.device && reach > Reach::Cluster)
      for_device.join(published);
    else
      narrow.join(published.known);
  }
  narrow.join(flag.narrow);
  mine.has_read = mine.has_read || !acquire;
}

void system_fence(Warp& warp, Reach reach) {
  const std::lock_guard<std::mutex> lock(warp.cta->cluster->launch->system->history->mutex);
  SystemCluster::OfWarp& mine = of_warp(warp);
  if (mine.has_read) {
    SystemCluster::Learned& now = learned_now(warp);
    now.narrow.join(mine.narrow_read);
    if (reach <= Reach::Cluster)
      now.narrow.join(mine.device_read.known);
    else
      now.published.join(mine.device_read);
    if (reach == Reach::System)
      now.published.join(mine.system_read);
    else
      now.narrow.join(mine.system_read.known);
    if (reach == Reach::System) {
      mine.has_read = false;
      mine.device_read = mine.system_read = {};
      mine.narrow_read = {};
    }
  }
  mine.has_fenced = true;
  if (reach > Reach::Cluster) mine.device_fence = warp.view.seen;
  if (reach == Reach::System) mine.system_fence = warp.view.seen;
}

void system_proxy_fence(Warp& warp) {
  const Cluster& cluster = *warp.cta->cluster;
  const SystemLaunch& launch = *cluster.launch->system;
  const std::lock_guard<std::mutex> lock(launch.history->mutex);
  Knowledge fenced;
  fenced.add(cluster.system->id, launch.work, warp.view.seen);
  for (const SystemCluster::Learned& one : cluster.system->learned) {
    if (!has_seen(warp.view.seen, one.at)) continue;
    fenced.join(one.published.known);
    fenced.join(one.published.fenced);
  }
  learned_now(warp).published.fenced.join(fenced);
}

void system_begin(Cluster& cluster) {
  SystemLaunch* const launch = cluster.launch->system;
  cluster.system.reset();
  if (launch == nullptr) return;
  const std::lock_guard<std::mutex> lock(launch->history->mutex);
  cluster.system = std::make_unique<SystemCluster>();
  cluster.system->id = launch->history->new_cluster();
}

void system_finish(Cluster& cluster) {
  if (cluster.system == nullptr) return;
  SystemLaunch& launch = *cluster.launch->system;
  const std::lock_guard<std::mutex> lock(launch.history->mutex);
  for (const SystemCluster::Learned& one : cluster.system->learned) launch.end.join(one.published.known);
}

std::string system_work_access(SystemHistory& history, const GlobalMemory& memory, const SystemAccess& access,
                               const Knowledge& known, uint64_t address, uint64_t bytes, bool write) {
  const std::lock_guard<std::mutex> lock(history.mutex);
  std::string wrong;
  for (const uint64_t end = address + bytes; address < end;) {
    const Place place = place_at(history, memory, address);
    if (place.range.end == 0) break;
    const uint64_t here = std::min(end, place.range.end) - address;
    const auto judge = [&](uint32_t earlier, bool other_writes, uint64_t at) {
      const SystemAccess other = history[earlier];
      if (!wrong.empty() || other.device == access.device || known.covers(other)) return;
      const Verdict verdict = unordered(history, place, at, access, other, other_writes,
                                        doer_text(history, access) + (write ? " writes to" : " reads"), false, false);
      wrong = std::string(hazard_name(verdict.hazard)) + ": " + verdict.text;
    };
    if (place.region != nullptr)
      history.touch(*place.region, place.known(address), here, history.add(access), write, judge);
    address += here;
  }
  return wrong;
}

}  // namespace sim
