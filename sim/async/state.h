// SPDX-License-Identifier: Apache-2.0
// What the asynchronous half of the simulator keeps for a cluster, a block and a warp: mbarriers, groups of
// copies, warpgroups, tensor maps; and the helpers that its instructions share.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/hazards/shared_access.h"
#include "sim/machine/agents.h"
#include "sim/machine/decode.h"
#include "sim/machine/fault.h"
#include "sim/machine/hierarchy.h"
#include "sim/machine/launch.h"
#include "sim/machine/operands.h"
#include "sim/memory/address_space.h"
#include "sim/memory/tensor_map.h"

namespace sim {

// PTX ISA 9.7.13.15. Its agent's clock counts the phases completed.
struct Mbarrier {
  Agent agent = 0;
  uint32_t offset = 0;
  uint32_t expected = 0, pending = 0;
  int64_t tx = 0;
  uint32_t phase = 0;
  Stamp init;                // by the initialisation agent of the warp that ran mbarrier.init
  uint32_t init_before = 0;  // the number of the barrier.cluster that its thread arrives at next
  View arriving, released;   // what arrivals of this phase, and of the completed ones, have published
  uint32_t last_copy = 0;    // completion stamp of the last copy that signals here
  Origin copy, expect;       // that copy; the last that expected bytes, or completed some
};
constexpr uint32_t kMbarrierLimit = (1u << 20) - 1;  // 9.7.13.15.2

// Bulk async-groups of one thread (9.7.9.25.1.1). The agents' clocks count groups whose sources have been read, and
// those that are complete.
struct BulkLane {
  Agent read = 0, written = 0;
  struct Group {
    uint32_t reading = 0, writing = 0;
  };
  std::vector<Group> groups{Group{}};             // the last one is not committed
  uint32_t last_used = 0;                         // number + 1 of the last group that is not empty
  Origin last;                                    // the last copy
  uint32_t first_reading = 0, first_writing = 0;  // groups before these are known to have read, to be complete
  uint32_t committed() const { return static_cast<uint32_t>(groups.size()) - 1; }
};

// cp.async-groups of one thread; the warp's cp.async agent counts instructions.
struct CopyLane {
  struct Group {
    uint32_t pending = 0;
    uint32_t last = 0;  // number of the last instruction in it
  };
  std::vector<Group> groups{Group{}};
  uint32_t committed() const { return static_cast<uint32_t>(groups.size()) - 1; }
};

struct AsyncWarpState {
  Agent init = 0;                // counts mbarrier.init
  std::map<int, BulkLane> bulk;  // by lane
  Agent copy = 0;
  uint32_t copy_count = 0;
  std::map<int, CopyLane> copy_lanes;
  uint32_t cluster_waiting = 0;   // lanes that have arrived and not yet waited
  uint32_t cluster_waited = 0;    // how many barriers had completed when the warp last waited for one
  uint32_t register_changes = 0;  // setmaxnreg executed
  Origin register_change;         // the last one
  uint64_t tried = 0;             // the try_wait that last had its chance to fail spuriously

  // wgmma
  uint32_t mma_issued = 0;     // wgmma.mma_async executed
  uint32_t mma_committed = 0;  // wgmma.commit_group executed
  uint32_t mma_waited = 0;     // groups known to be complete
  uint32_t mma_fences = 0;     // wgmma.fence executed
  // The registers of one operand as they stand in an instruction: an accumulator, or a fragment of A.
  struct RegisterSet {
    std::vector<uint32_t> rows;
    uint16_t shape = 0;      // of the operation that accumulates in it; 0: a fragment of A
    uint32_t in_flight = 0;  // wgmma-group + 1 of the last operation that uses it
    uint32_t touched = 0;    // wgmma.fence count + 1 at the last access by another instruction
  };
  std::vector<RegisterSet> sets;
  std::vector<uint16_t> set_of;   // by row of 64 bytes: index + 1 into sets
  std::vector<uint32_t> touched;  // by row: as RegisterSet::touched, for rows of no set
};

struct MmaRecord;  // sim/async/wgmma.cpp

// Four warps (9.7.15.1). The agent's clock counts wgmma-groups.
struct WarpGroup {
  Agent agent = 0;
  uint64_t queue = 0;
  std::vector<std::unique_ptr<MmaRecord>> open;  // issued by at least one warp, not yet submitted
  uint32_t open_first = 0;                       // number of open[0]
  struct Group {
    uint32_t end = 0;    // operations issued before its commit
    uint32_t warps = 0;  // that have committed it
  };
  std::vector<Group> groups;
  uint32_t completed = 0;
  ~WarpGroup();  // MmaRecord is complete in wgmma.cpp
  WarpGroup();
  WarpGroup(WarpGroup&&) noexcept;
};

struct AsyncCtaState {
  std::unordered_map<uint32_t, Mbarrier> mbarriers;  // live ones, by shared offset
  std::vector<WarpGroup> warpgroups;
  uint32_t registers_free = 0;  // a lane's registers, summed over the warps, that setmaxnreg.inc may take
};

struct AsyncClusterState {
  View cluster_arriving, cluster_released;  // barrier.cluster
  bool finishing = false;
};

// Whether a warp has waited for the barrier.cluster with this number (Warp::next_cluster_barrier()).
inline bool is_behind_cluster_barrier(const Warp& warp, uint32_t number) { return warp.async->cluster_waited > number; }

// Faults (registers in flight) when the instruction touches a register of a wgmma operation that has not been waited
// for. For instructions that are executed while Warp::kInFlight is set.
void check_wgmma_registers(Warp& warp, const Instr& instr);

// Executes an instruction that changes nothing the simulator looks at.
inline Step execute_nothing(Warp&, const Instr&, uint32_t) { return Step::Next; }

// What the rooms above need at birth and end of a cluster.
void create_async_state(Cluster& cluster);  // allocates each warp's agents, too
void finish_async_state(Cluster& cluster);  // after the last warp left: performs what is pending, checks leftovers

// ---- mbarriers ----

// The live object; faults when it is misaligned, not initialised, or its initialisation is not ordered before.
Mbarrier& find_mbarrier(Warp& warp, Cta& owner, uint32_t offset, int lane, bool for_copy = false);
// Changes on behalf of a warp, perhaps long after it issued them.
void mbarrier_expect(const Origin& origin, Mbarrier& barrier, int64_t bytes);  // negative: complete-tx
void mbarrier_arrive(const Origin& origin, Mbarrier& barrier, uint32_t count);
// The completion stamp of a copy issued now that will signal the barrier.
Stamp mbarrier_stamp(Mbarrier& barrier, const Origin& copy);
// A copy's complete-tx: finds the barrier again; faults (mbarrier misuse) when the phase it was issued in is over.
void mbarrier_copy_done(Cluster& cluster, Cta& owner, uint32_t offset, Stamp issued, uint32_t bytes,
                        const Origin& origin);

// ---- tensor maps ----

// The tensor map at a generic address.
TensorMapFields peek_tensor_map(Warp& warp, uint64_t address, int lane);
// Pushes the generic address of a tensor map, which may be given as a kernel parameter's name.
AddressOperand push_map_address(DecodeContext& context, const ptx::Operand& operand);

}  // namespace sim
