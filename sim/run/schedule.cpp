// SPDX-License-Identifier: Apache-2.0
// The order in which the warps of a cluster run.
#include <algorithm>
#include <string>
#include <vector>

#include "sim/machine/launch.h"
#include "sim/run/turn.h"

namespace sim {
namespace {

constexpr int kPatience = 4;                       // rounds of nothing but polling until pending work is performed
constexpr int kDespair = 20000;                    // rounds of polling with nothing pending until it is a deadlock
constexpr uint64_t kPolls = 64;                    // strong reads of global memory without event or store, and
constexpr uint64_t kPatienceOfPolls = 1ull << 13;  // instructions, until a cluster makes room for others
constexpr uint64_t kLivelock = 1ull << 20;  // instructions without event or store until pending work is performed
constexpr uint64_t kHopeless = 1ull << 29;  // instructions without event or store until it is a deadlock

}  // namespace

bool run_cluster(Cluster& cluster) {
  std::vector<Warp*> order_of;
  for (const auto& cta : cluster.ctas) {
    for (const auto& warp : cta->warps) order_of.push_back(warp.get());
  }
  if (cluster.order.mode == Mode::Lazy) std::reverse(order_of.begin(), order_of.end());
  auto alive = static_cast<size_t>(
      std::count_if(order_of.begin(), order_of.end(), [](const Warp* warp) { return !warp->splits.empty(); }));
  size_t first = 0;
  int polling_rounds = 0;
  std::vector<uint32_t> hogged(order_of.size(), 0);
  uint64_t seen_events = cluster.events, seen_stores = cluster.stores, quiet_since = cluster.instructions;
  uint64_t seen_polls = cluster.polls;

  while (alive > 0) {
    const uint64_t events_before = cluster.events;
    bool ran = false, worked = false;
    if (cluster.order.mode == Mode::Random) std::shuffle(order_of.begin(), order_of.end(), cluster.rng);
    for (size_t i = 0; i < order_of.size(); ++i) {
      Warp& warp = *order_of[(first + i) % order_of.size()];
      if (warp.splits.empty()) continue;
      uint32_t quantum = 4096;
      if (cluster.order.mode == Mode::Lazy) quantum = 1024;
      if (cluster.order.mode == Mode::Random) {
        const uint64_t draw = cluster.rng();
        // Now and then the others get far ahead of a warp.
        if (warp.rest == 0 && (draw >> 40) % 64 == 0) warp.rest = static_cast<uint32_t>(draw >> 48) % 64;
        if (warp.rest > 0) {
          --warp.rest;
          ran = worked = true;
          continue;
        }
        quantum = 1 + static_cast<uint32_t>(draw % 256);
        if (warp.splits.size() > 1 && (draw >> 32) % 8 == 0) warp.rotate = true;
      }
      uint32_t executed = 0;
      const Turn turn = run_warp(warp, quantum, &executed);
      cluster.instructions += executed;
      if (executed > 0) ran = true;
      if (turn == Turn::Finished) --alive;
      if (turn == Turn::Yielded) warp.rotate = true;
      if (turn == Turn::Quantum && warp.splits.size() > 1 && ++hogged[static_cast<size_t>(warp.index)] % 16 == 0)
        warp.rotate = true;
      if (executed > 0 && turn != Turn::Yielded) worked = true;
      if (cluster.order.mode == Mode::Random) cluster.engine.maybe_perform(cluster);
    }
    if (alive == 0) break;
    if (cluster.order.mode == Mode::Lazy) first = (first + 1) % order_of.size();
    if (cluster.stop_above != nullptr && cluster.stop_above->load(std::memory_order_relaxed) < cluster.share)
      return true;

    const bool quiet = cluster.events == events_before;
    if (!ran && quiet) {
      if (!cluster.engine.perform_one(cluster)) report_deadlock(cluster, "no warp can run");
      cluster.event();
      continue;
    }
    polling_rounds = quiet && !worked ? polling_rounds + 1 : 0;
    if (polling_rounds >= kPatience && cluster.engine.perform_one(cluster)) {
      cluster.event();
      polling_rounds = 0;
    }
    if (polling_rounds >= kDespair / 100 && cluster.may_park) return false;
    if (polling_rounds >= kDespair) report_deadlock(cluster, "every warp that can run polls in vain");

    if (cluster.events != seen_events || cluster.stores != seen_stores) {
      seen_events = cluster.events;
      seen_stores = cluster.stores;
      quiet_since = cluster.instructions;
      seen_polls = cluster.polls;
    } else if (cluster.may_park && cluster.engine.pending() == 0 && cluster.polls - seen_polls > kPolls &&
               cluster.instructions - quiet_since > kPatienceOfPolls) {
      return false;
    } else if (cluster.instructions - quiet_since > kLivelock && cluster.engine.pending() > 0) {
      cluster.engine.perform_one(cluster);
      cluster.event();
    } else if (cluster.instructions - quiet_since > kHopeless) {
      report_deadlock(cluster, "no progress in " + std::to_string(kHopeless) + " instructions");
    }
  }
  return true;
}

}  // namespace sim
