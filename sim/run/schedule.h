// SPDX-License-Identifier: Apache-2.0
// The turns of a cluster's warps; private to sim/run.
#pragma once
#include <cstdint>
#include <unordered_set>
#include <vector>

#include "sim/machine/hierarchy.h"

namespace sim {

// Runs a cluster that has begun, at a stretch or bit by bit.
class Schedule {
 public:
  explicit Schedule(Cluster& cluster);
  // Runs the cluster to its end, or throws Fault.
  void run();

  enum class State {
    Going,
    // No warp has done anything but wait, read and compute for a while. What others store may set it going.
    Stuck,
    Finished,
  };
  // Runs so many rounds, fewer when it gets stuck or ends.
  State run_for(uint32_t rounds);
  // Whether pending operations and the cluster's own stores have changed anything since the last call.
  bool has_changed();

  // Runs one round in which every turn has the same length, and remembers what each warp has in its registers. A warp
  // that comes back to a state does so for ever unless memory changes. True when all have. `since` tells when memory
  // changed last. A cluster that reads a clock waits for time to pass instead: with `time_passes` time passes fast, and
  // without it the answer is true.
  bool comes_back(uint64_t since, bool time_passes);

 private:
  struct Turns {
    uint32_t eager, lazy;
  };
  void round(Turns turns, bool same_length = false);
  // Every mbarrier.try_wait that waits comes to its time limit (9.7.13.15.16).
  void expire();
  // The same for warps that cannot go on, or false: it has led back to a state in which they were, so that they wait
  // for ever.
  bool expire_waits();

  // A warp's states are compared with one of them, which is replaced after 1, 2, 4, ... turns.
  struct Orbit {
    uint64_t state = 0, turns = 0, until = 0;
    bool closed = false;
  };

  Cluster& cluster_;
  std::vector<Warp*> order_;
  size_t alive_, first_ = 0;
  std::vector<uint32_t> hogged_;
  bool ran_ = false, worked_ = false,
       quiet_ = false;  // in the last round: executed anything; more than polls; no event
  int quiet_rounds_ = 0;
  // What the cluster has done so far that a warp may wait for.
  struct Changes {
    uint64_t events, stores;
    bool operator==(const Changes&) const = default;
  };
  Changes changes() const { return {cluster_.events, cluster_.stores}; }
  Changes seen_ = changes(), told_ = changes(), expired_at_ = changes();
  std::unordered_set<uint64_t> expired_;  // the states of all warps in which waits have expired since anything changed
  uint64_t expiries_ = 0;
  std::vector<Orbit> orbits_;                                      // empty before the first comes_back()
  uint64_t orbits_since_, orbits_begin_, orbit_rounds_, skipped_;  // of these orbits
};

}  // namespace sim
