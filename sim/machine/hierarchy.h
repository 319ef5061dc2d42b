// SPDX-License-Identifier: Apache-2.0
// The hierarchy of threads: a warp, its block (CTA), the block's cluster.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/history/clock.h"
#include "sim/history/global_touches.h"
#include "sim/history/lanes.h"
#include "sim/history/shared_history.h"
#include "sim/history/system_history.h"
#include "sim/history/tensor_map_records.h"
#include "sim/history/undefined_values.h"
#include "sim/history/writers.h"
#include "sim/machine/agents.h"
#include "sim/machine/dim3.h"
#include "sim/machine/engine.h"
#include "sim/machine/fault.h"
#include "sim/machine/instruction.h"
#include "sim/machine/statistics.h"
#include "sim/memory/address_space.h"
#include "sim/memory/byte_set.h"
#include "sim/memory/shared.h"

namespace sim {

struct Cta;
struct Cluster;
struct Launch;

// State of sim/async per cluster, block and warp: defined in sim/async/state.h, owned here.
struct AsyncClusterState;
struct AsyncCtaState;
struct AsyncWarpState;
// State of sim/tcgen05 per block and warp, created at the first tcgen05 instruction: sim/tcgen05/state.h.
struct TensorMemory;
struct TensorWarp;

struct Warp {
  Cta* cta = nullptr;
  int index = 0;      // within the block
  uint32_t born = 0;  // lanes that exist
  uint32_t live = 0;  // those that have not exited
  std::unique_ptr<uint8_t[], void (*)(void*)> registers{nullptr, nullptr};
  std::unique_ptr<uint8_t[]> local;  // kLanes * local_bytes, lane-major
  // Rows of callers that may be called again before they go on (sim/isa/call.cpp), a stack for each lane.
  std::unique_ptr<std::array<std::vector<uint8_t>, kLanes>> saved_rows;

  // Lanes that stand at different places. The split with the lowest pc runs first; splits at one pc merge.
  struct Split {
    int pc = 0;
    uint32_t mask = 0;
    uint64_t blocked_at = 0;  // cluster.events when it last answered Wait, +1; 0: runnable
    bool apart = false;       // it waits for other lanes of its own warp (converged() said no)
    // blocked_at of one that waits in mbarrier.try_wait and is to answer now.
    static constexpr uint64_t kExpired = UINT64_MAX;
  };
  std::vector<Split> splits;
  size_t current = 0;       // the split being executed
  int stop_pc = INT32_MAX;  // where the current split meets or passes another one
  size_t last_split = 0;    // that ran when the last turn ended
  bool rotate = false;      // begin the next turn with another split than that one
  uint32_t rest = 0;        // random order: turns that it leaves to the others
  int pc() const { return splits[current].pc; }

  View view;       // what this warp has observed
  Agent self = 0;  // program order of this warp
  // Tells an object what this warp knows, or what its last fence lets a relaxed operation tell.
  void publish(View& object, Scope scope, bool relaxed = false) const;
  // Below isa: tells an object what is over on a GPU when it goes on, by an operation that orders no memory.
  void publish_weakly(View& object);
  // Takes it over: at once, or for a relaxed operation at the next fence.
  void observe(const View& object, Scope scope, bool relaxed = false);
  void fence(Scope scope);
  // The lanes of the mask have come together, or each publishes only what it did itself.
  void order_reads(uint32_t mask) { reads.order(view, mask); }
  void new_epoch();  // raises view.seen[self] by one
  Stamp stamp() const { return {self, view.seen[self]}; }
  bool has_seen(Stamp stamp) const { return view.seen[stamp.by] >= stamp.at; }
  LaneReads reads;

  std::unique_ptr<AsyncWarpState, void (*)(AsyncWarpState*)> async{nullptr, nullptr};
  std::unique_ptr<TensorWarp, void (*)(TensorWarp*)> tensor{nullptr, nullptr};
  // sim/isa/control.cpp: lanes that have arrived at a named barrier and not yet gone on.
  struct BarrierWait {
    int barrier = 0;
    uint32_t lanes = 0;
    bool counted = false, released = false;  // all lanes of the warp are here; the barrier completed
    uint32_t popc = 0;                       // what the reduction gave
    bool all = false, any = false;
  };
  std::vector<BarrierWait> barrier_waits;
  // Release and acquire patterns through a fence and a relaxed access (PTX ISA 8.8): what the last fence may publish,
  // and what relaxed reads since the last fence may bring. sim/isa/address.h.
  View fence_view, read_view;
  bool has_fenced = false, has_read = false;
  // The same between clusters, by fences of .gpu scope (sim/hazards/global_races.h), with the epoch of the last one.
  ScopedView grid_fence, grid_read;
  uint32_t grid_fence_epoch = 0;
  uint32_t grid_view = 0;  // the number of view.grid.before in the cluster's global_history
  uint32_t carry = 0;      // CC.CF of each lane (sim/isa/integer.cpp)
  // barrier.cluster: how many have completed, and the lanes that have arrived at the next one.
  uint32_t cluster_barriers = 0, cluster_arrived = 0;
  // Which one, by its number, the lanes of the mask arrive at next. A barrier separates what stands before its arrivals
  // from what stands behind its waits, also where it is relaxed and orders no memory.
  uint32_t next_cluster_barrier(uint32_t mask) const { return cluster_barriers + ((cluster_arrived & mask) != 0); }
  int max_registers = 0;  // setmaxnreg, 0 before any
  // What the loop that runs the warp has to do beside executing its instructions.
  // kInFlight: accumulators or A fragments of wgmma, or results of tcgen05.ld, may be in flight, or unfenced accesses
  // matter (sim/async/wgmma.cpp): it checks the registers of each instruction first.
  // kUndefined: some values may be undefined (sim/hazards/undefined.h).
  static constexpr uint8_t kInFlight = 1, kUndefined = 2;
  uint8_t attention = 0;
  uint64_t polled_place = 0;       // that its last strong read was from, for the report of a deadlock
  uint32_t quantum = 0, left = 0;  // of the turn: how many instructions it may execute, and how many of them still
  std::unique_ptr<UndefinedValues> undefined;  // made when there first are any

  template <class T>
  T* row(uint32_t offset) {
    return reinterpret_cast<T*>(registers.get() + offset);
  }
  template <class T>
  const T* row(uint32_t offset) const {
    return reinterpret_cast<const T*>(registers.get() + offset);
  }
  uint32_t predicate(uint32_t offset) const { return *row<uint32_t>(offset); }
  bool all_live_in(uint32_t mask) const { return (live & ~mask) == 0; }

  // For handlers. `lanes` of the current split go on at `pc`; the others stay where they are. With none left behind
  // the split itself moves.
  void move_lanes(uint32_t lanes, int pc);
  // Merges splits at one place, chooses the lowest that can run; false when none can.
  bool settle();
  void select(size_t split);
  void exit_lanes(uint32_t lanes);
};

// For `.aligned` instructions: true when every live lane of the warp is in the mask. Otherwise answer Step::Wait: the
// lanes are joined by the others as they come, and if they never do it is a Fault (illegal use).
bool converged(Warp& warp, uint32_t mask);
// The same for instructions that no lane may have left before: the barriers alone count the lanes that have not exited.
bool complete(Warp& warp, const Instr& in, uint32_t mask);
// For instructions with a membermask (shfl.sync): true when the mask holds all live lanes of `members`. Otherwise the
// handler answers Step::Wait, as for converged().
bool gathered(Warp& warp, uint32_t mask, uint32_t members);

// The deadlock report says why an .aligned instruction or a barrier cannot go on yet.
struct WaitReason {
  std::string text;
};
// `return wait_for(warp, [&] { return std::string(...); });` The text is asked for only when a deadlock is being
// reported: the machine then executes each waiting instruction once more with Cluster::explaining set.
template <class Describe>
Step wait_for(Warp& warp, Describe describe);

struct Cta {
  Cluster* cluster = nullptr;
  uint32_t rank = 0;  // in the cluster
  Dim3 index;         // %ctaid
  SharedMemory shared;
  SharedHistory history;
  std::vector<std::unique_ptr<Warp>> warps;
  // Named barriers (sim/isa/control.cpp).
  struct NamedBarrier {
    uint32_t expected = 0, arrived = 0;  // threads; expected 0: all of the block
    uint32_t arrived_warps = 0;
    uint64_t generation = 0;
    View arriving;
    bool reduces = false;
    uint32_t reduction_and = kFullMask, reduction_or = 0, reduction_popc = 0;
  };
  std::array<NamedBarrier, 16> barriers;
  // griddepcontrol: a thread has waited for the predecessor grids. A thread has let dependent grids start before that.
  bool has_waited = false, released_dependents_early = false;
  // What warps of other blocks did to this block's shared memory: their agents, and of the last time the epoch and
  // which barrier.cluster the warp arrives at next, unless the access is asynchronous and none stands behind it.
  struct Remote {
    uint32_t epoch = 0;
    Origin by;
    uint32_t before = UINT32_MAX;
  };
  std::map<Agent, Remote> remote;
  std::unique_ptr<AsyncCtaState, void (*)(AsyncCtaState*)> async{nullptr, nullptr};
  std::unique_ptr<TensorMemory, void (*)(TensorMemory*)> tensor{nullptr, nullptr};
  bool finished() const;
  // The address of its shared memory within that of the cluster.
  uint32_t shared_base() const { return rank << kRankShift; }
};

// A store over bytes that another warp stored, with nothing between the two: a race unless both store one value.
struct UnorderedStore {
  Cta* owner;
  uint32_t granule;
  Touch other;
  uint64_t last;  // as Races::last() has it
  uint16_t bytes;
  int lane;
  std::array<uint8_t, 16> before;
};

struct Cluster {
  Launch* launch = nullptr;
  Dim3 index;           // %clusterid
  uint32_t number = 0;  // of the launch's clusters
  uint64_t share = 0;   // which of the launch's shares of clusters this one belongs to (sim/run/launch.cpp)
  std::vector<std::unique_ptr<Cta>> ctas;
  AsyncEngine engine;
  Deviations deviations;
  std::unique_ptr<AsyncClusterState, void (*)(AsyncClusterState*)> async{nullptr, nullptr};
  uint64_t events = 1;  // raised whenever something happens that a waiting warp may be waiting for
  void event() { ++events; }
  std::vector<AgentInfo> agents;  // by Agent; that of 0 is nobody
  std::mt19937_64 rng;            // seeded from the order's seed and the cluster index
  Order order;
  TensorMapRecords tensor_maps;
  std::unordered_map<const void*, WaitReason> waits;  // Warp* -> reason, for the deadlock report
  std::unique_ptr<SystemCluster> system;              // where a program has several devices
  GlobalWriters writers;                              // in clusters of several blocks
  // What a release of shared or global memory at an address has published (sim/isa/memory.cpp, atomics.cpp).
  std::unordered_map<uint64_t, View> sync_objects;
  std::vector<UnorderedStore> unordered_stores;  // of the instruction being executed
  // Where races for global memory are looked for.
  std::unique_ptr<GlobalHistory> global_history;
  bool grid_can_synchronize = false;  // GridHistory::can_synchronize
  uint32_t global_stores = 0;  // lanes that the instruction being executed stores to global memory, by plain stores
  bool explaining = false;     // waiting instructions are being asked for their reasons
  uint64_t instructions = 0;   // warp instructions executed
  Statistics* statistics = nullptr;  // counted where it is not null
  bool logs_writes = false;          // this cluster's writes to global memory, copies included, are kept in `written`
  WrittenBytes written;
  // The agent of the predecessor grids. Its clock is 1 for those behind a griddepcontrol.wait.
  Agent predecessor_grids = 0;
  uint64_t stores = 0;  // with `events`, what tells work from a livelock
  // Clusters of the share that have not started. clusterlaunchcontrol.try_cancel takes the first of them.
  std::deque<uint64_t> pending;
  std::vector<Stamp> cancel_failures;                 // completions of try_cancel that found none
  const std::atomic<uint64_t>* stop_above = nullptr;  // give up when a cluster of a lower share has failed
  bool finished() const;
  bool alone = true;  // no other cluster runs at the same time
  bool reads_clock = false;
  // What clocks show beyond the time of the instructions: it has passed while every warp of every device waited.
  uint64_t skipped_time = 0;
  const ptx::Instruction* undefined_read = nullptr;  // the first that read memory that nobody had written
};

inline void release_lanes(Warp& warp, uint32_t mask) {
  warp.cta->history.lanes.release(static_cast<uint32_t>(warp.index), mask);
}
inline void meet_lanes(Warp& warp) { warp.cta->history.lanes.meet(static_cast<uint32_t>(warp.index)); }
inline void acquire_lanes(Warp& warp) { warp.cta->history.lanes.acquire(static_cast<uint32_t>(warp.index)); }

template <class Describe>
Step wait_for(Warp& warp, Describe describe) {
  Cluster& cluster = *warp.cta->cluster;
  if (cluster.explaining) cluster.waits[&warp] = WaitReason{describe()};
  return Step::Wait;
}

}  // namespace sim
