// What the asynchronous half of the simulator keeps for a cluster, a block and a warp: mbarriers, groups of
// copies, warpgroups, tensor maps; and the helpers that its instructions share.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/async/tensor_map.h"
#include "sim/machine/machine.h"

namespace sim {

// Who an Agent is, for the text of a fault.
struct AgentInfo {
  enum class Kind { Warp, Mbarrier, BulkRead, Wgmma, CpAsync, Init, TensorPipe, Prerequisites, Reads };
  Kind kind = Kind::Warp;
  const Cta* cta = nullptr;
  uint32_t index = 0;  // warp, warpgroup or shared offset
};

// Who issued an operation that is performed later, for the text of a fault.
struct Origin {
  Warp* warp = nullptr;
  const ptx::Instruction* source = nullptr;
  int lane = -1;
  std::string text() const;
  [[noreturn]] void fail(Hazard hazard, const std::string& what) const;
};
// The instruction that the warp is executing.
Origin current_origin(Warp& warp, int lane);

// PTX ISA 9.7.13.15. Its agent's clock counts the phases completed.
struct Mbarrier {
  Agent agent = 0;
  uint32_t offset = 0;
  uint32_t expected = 0, pending = 0;
  int64_t tx = 0;
  uint32_t phase = 0;
  Stamp init;               // by the initialisation agent of the warp that ran mbarrier.init
  View arriving, released;  // what arrivals of this phase, and of the completed ones, have published
  uint32_t last_copy = 0;   // completion stamp of the last copy that signals here
  Origin copy, expect;      // that copy; the last that expected bytes, or completed some
};
constexpr uint32_t kMbarrierLimit = (1u << 20) - 1;  // 9.7.13.15.2

// Bulk async-groups of one thread (9.7.9.25.1.1). The agent's clock counts groups whose sources have been read.
struct BulkLane {
  Agent read = 0;
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
  uint32_t cluster_arrived = 0;  // lanes that have arrived at the barrier.cluster in progress
  uint32_t cluster_waiting = 0;  // lanes that have arrived and not yet waited
  uint64_t tried = 0;            // the try_wait that last had its chance to fail spuriously

  // wgmma
  uint32_t mma_issued = 0;     // wgmma.mma_async executed
  uint32_t mma_committed = 0;  // wgmma.commit_group executed
  uint32_t mma_waited = 0;     // groups known to be complete
  uint32_t mma_fences = 0;     // wgmma.fence executed
  bool mma_watch = false;      // nothing in flight, but an access of these registers still calls for a wgmma.fence
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
  // What warps of other blocks did to this block's shared memory: their agents, and the epoch of the last time.
  struct Remote {
    uint32_t epoch = 0;
    Origin by;
  };
  std::map<Agent, Remote> remote;
};

// A tensor map in global memory that the device wrote, or that a copy of this cluster has used.
struct MapRecord {
  bool written = false;  // by the device
  bool released = false;
  Stamp writer;                 // the write, then the release
  std::vector<Stamp> acquired;  // fence.proxy.tensormap...acquire of this version
  struct Use {
    Stamp stamp;     // completion of a copy that reads it
    Stamp map_read;  // of a load: the bulk group whose completion says that the map has been read
  };
  std::vector<Use> uses;
};

struct AsyncClusterState {
  std::vector<AgentInfo> agents;
  std::map<uint64_t, MapRecord> maps;
  std::vector<Stamp> map_releases;          // fence.proxy.tensormap::generic.release
  View cluster_arriving, cluster_released;  // barrier.cluster
  bool finishing = false;
};

Agent new_agent(Cluster& cluster, AgentInfo info);
std::string describe_agent(const Cluster& cluster, Agent agent);
std::string hex(uint64_t value);

// ---- operands ----

// An address operand takes two places in Instr::reg: its base and a constant row with its addend. Bit `slot` of
// Instr::flags says that the base is 64 bits wide.
void push_address(DecodeContext& context, Instr& out, const ptx::Operand& operand, int slot);
inline uint64_t read_address(const Warp& warp, const Instr& instr, int place, int slot, int lane) {
  const uint64_t base =
      instr.flags >> slot & 1 ? warp.row<uint64_t>(instr.reg[place])[lane] : warp.row<uint32_t>(instr.reg[place])[lane];
  return base + warp.row<uint64_t>(instr.reg[place + 1])[lane];
}
// The same with operands that the form of the instruction names.
ValueOperand push_value(DecodeContext& context, const ptx::Operand& operand, ptx::Type type);
AddressOperand push_address(DecodeContext& context, const ptx::Operand& operand);
inline uint64_t read_address(const Warp& warp, const Instr& instr, AddressOperand operand, int lane) {
  const uint32_t row = instr.reg[operand.place];
  const uint64_t base = operand.wide ? warp.row<uint64_t>(row)[lane] : warp.row<uint32_t>(row)[lane];
  return base + warp.row<uint64_t>(instr.reg[operand.place + 1])[lane];
}
inline uint32_t read32(const Warp& warp, const Instr& instr, ValueOperand operand, int lane) {
  return warp.row<uint32_t>(instr.reg[operand.place])[lane];
}
inline uint32_t read32(const Warp& warp, const Instr& instr, int place, int lane) {
  return warp.row<uint32_t>(instr.reg[place])[lane];
}
inline uint64_t read64(const Warp& warp, const Instr& instr, int place, int lane) {
  return warp.row<uint64_t>(instr.reg[place])[lane];
}
ptx::Operand immediate_operand(int64_t value);
// True when `parts` has `part`.
bool has_part(const ptx::Instruction& source, const char* part);
// Throws Unsupported: "OPCODE: WHY".
[[noreturn]] void unsupported(const ptx::Instruction& source, const std::string& why);
// The value of an immediate operand; throws Unsupported when it is not one.
int64_t immediate_of(const ptx::Instruction& source, const ptx::Operand& operand);

struct SharedPlace {
  Cta* cta;
  uint32_t offset;
};
// A shared address of a lane, .shared::cta/.shared::cluster or generic; faults when it is not one or the block is
// finished.
SharedPlace shared_place(Warp& warp, uint64_t address, bool generic, int lane);

inline int first_lane(uint32_t mask) { return __builtin_ctz(mask); }

// ---- mbarriers ----

// Remembers an access to another block's shared memory: the block must not exit before it.
inline void note_remote(Warp& warp, Cta& owner) {
  if (&owner != warp.cta) owner.async->remote[warp.self] = {warp.view.seen[warp.self], current_origin(warp, -1)};
}
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
// A copy that `warp` issues reads the map: faults when the map is stale. `completions` are what must have been seen
// before it may be rewritten.
void use_tensor_map(Warp& warp, uint64_t address, int lane, const std::vector<Stamp>& completions, Stamp map_read = {});
void release_tensor_maps(Warp& warp);                   // fence.proxy.tensormap::generic.release
void acquire_tensor_map(Warp& warp, uint64_t address);  // fence.proxy.tensormap::generic.acquire
// As push_address, for the generic address of a tensor map, which may be given as a kernel parameter's name.
void push_map_address(DecodeContext& context, Instr& out, const ptx::Operand& operand, int slot);

}  // namespace sim
