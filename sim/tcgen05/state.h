// SPDX-License-Identifier: Apache-2.0
// Tensor memory (PTX ISA 9.7.16.1) of a block, who has done what to it, and what the tcgen05 instructions share:
// their order (9.7.16.6), their pipe, and the rules for addresses.
//
// Order. Every access leaves a mark in the cells it touches: 16 lanes of one column. Operations of the pipe (mma, cp,
// shift) are performed in the order of their issue; to order them between warps without waiting for their completion
// the first one's warp must execute tcgen05.fence::before_thread_sync, the other one's
// tcgen05.fence::after_thread_sync, and a synchronisation must stand between. An access of another kind (ld, st,
// dealloc) must be ordered after their completion: a wait on an mbarrier that tcgen05.commit signals. A ld or st must
// be waited for with tcgen05.wait before anything that conflicts with it, and then be ordered before it. What has
// completed is ordered by the standard synchronisations too (9.7.16.6.3), if they release and acquire; relaxed ones
// need the two fences (9.7.16.6.4). Rules::strict_tensor_fences asks for them everywhere.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/async/state.h"
#include "sim/machine/hierarchy.h"

namespace sim {

constexpr uint32_t kTensorLanes = 128, kTensorColumns = 512;
constexpr uint32_t kCellLanes = 16, kCellRows = kTensorLanes / kCellLanes;
constexpr uint32_t kAllocationUnit = 32;

// The operations of one thread that tcgen05.commit tracks.
struct TensorPipe {
  Agent issued = 0;  // its clock counts the operations issued before a fence::before_thread_sync
  Agent done = 0;    // its clock counts the operations whose completion a commit has signalled
  uint32_t count = 0;
  Origin last;        // where the last operation was issued
  Agent commits = 0;  // its clock counts the commits that have arrived
  uint32_t committed = 0;
};

// The tcgen05.ld, or the tcgen05.st, of one warp.
struct TensorTransfers {
  Agent published = 0;  // its clock counts those waited for before a fence::before_thread_sync
  Agent waited = 0;     // its clock counts those waited for
  uint32_t count = 0, done = 0;
};

struct TensorWarp {
  bool strict = false;              // Rules::strict_tensor_fences
  std::map<int, TensorPipe> pipes;  // of each lane that has issued an operation
  TensorTransfers loads, stores;
  Agent allocated = 0;  // its clock counts the warp's allocations, which come before all that it issues later
  uint32_t allocations = 0;
  Clock ordered;  // what fence::after_thread_sync has put before later tcgen05 operations
  enum : uint8_t { kLoaded = 1, kCopied = 2 };
  // For each row of 64 bytes of the register file whether it is a destination of a tcgen05.ld that nobody has waited
  // for (kLoaded), or a copy of one (kCopied).
  std::vector<uint8_t> in_flight;
  std::vector<uint32_t> in_flight_rows;
  std::vector<uint32_t> load_of;  // for each row that is in flight the number of its load
};

// Who did something to a cell.
struct TensorMark {
  enum class By : uint8_t { None, Pipe, Load, Store, Dealloc };
  By by = By::None;
  Warp* warp = nullptr;
  const TensorPipe* pipe = nullptr;
  uint32_t at = 0;
  const ptx::Instruction* source = nullptr;
  bool same(const TensorMark& other) const {
    return by == other.by && warp == other.warp && pipe == other.pipe && at == other.at;
  }
};

// An access that is being made.
struct TensorAccess {
  Warp& warp;
  int lane;
  TensorMark mark;
};

struct TensorMemory {
  explicit TensorMemory(Cta& owner);

  struct Allocation {
    uint32_t column = 0, columns = 0;
    int group = 1;
    Stamp stamp;  // by TensorWarp::allocated of the warp of this block
    Origin by;
    uint32_t before = 0;   // the number of the barrier.cluster that the warp arrives at next
    bool leaving = false;  // this block has executed dealloc.cta_group::2, and its peer has not yet
  };
  struct Request {  // an alloc.cta_group::2 that waits for the peer
    Warp* warp = nullptr;
    uint32_t columns = 0;
    bool granted = false;
    uint32_t column = 0;
  };
  struct Departure {  // a dealloc.cta_group::2 that blocks until the peer's
    Warp* warp = nullptr;
    bool done = false;
  };

  Cta& cta;
  int group = 0;       // the .cta_group that every tcgen05 instruction has used, or 0 before the first one
  uint64_t queue = 0;  // the queue of the pipe's operations
  std::vector<Allocation> allocations;
  Request request;
  Departure departure;
  uint32_t smallest =
      kTensorColumns;  // the columns of the smallest allocation so far, as none may be larger (9.7.16.7.1)
  bool relinquished = false;

  // Which bits of the words are undefined (sim/hazards/undefined.h), as they lie; empty where none are.
  std::vector<uint32_t> undefined;
  uint32_t* undefined_row(uint32_t lane) {
    if (undefined.empty()) undefined.resize(size_t{kTensorLanes} * kTensorColumns);
    return undefined.data() + size_t{lane} * kTensorColumns;
  }

  uint32_t* row(uint32_t lane) { return words_.get() + size_t{lane} * kTensorColumns; }
  float* floats(uint32_t lane, uint32_t column) { return reinterpret_cast<float*>(row(lane) + column); }
  bool is_free(uint32_t column, uint32_t columns) const;
  // The first column from which enough are free here and, when given, in `peer`, or kTensorColumns.
  uint32_t find_free(uint32_t columns, const TensorMemory* peer) const;
  void allocate(uint32_t column, uint32_t columns, int group, const Origin& by);
  Allocation* find(uint32_t column);
  void release(uint32_t column);

  // Checks an access to the cells [cell, cell + cells) x [column, column + columns) against what is in flight there and
  // leaves its mark.
  // Reading what nobody has written since its tcgen05.alloc is an error, but a whole access may take in lanes or
  // columns that its program does not use: it is one when nothing in the columns was written.
  // Says whether it was; what is read otherwise is undefined where that is no fault.
  bool expect_written(const TensorAccess& access, uint32_t column, uint32_t columns) const;
  void touch(const TensorAccess& access, uint32_t cell, uint32_t cells, uint32_t column, uint32_t columns, bool write);

 private:
  struct History {
    static constexpr int kReaders = 6;
    TensorMark write;
    TensorMark readers[kReaders];
    int count = 0;
  };
  uint32_t after(uint32_t history, const TensorMark& mark, bool write);
  void collect();
  struct Free {
    void operator()(uint32_t* p) const;
  };
  std::unique_ptr<uint32_t[], Free> words_;
  std::vector<uint32_t> cells_;  // [cell][column]
  std::vector<History> histories_{1};
  uint32_t written_ = 0;  // the history that the last write made, which has no readers yet
  size_t collect_at_ = 4096;
};

TensorMemory& tensor_memory(Cta& cta);
TensorWarp& tensor_warp(Warp& warp);
TensorPipe& tensor_pipe(Warp& warp, int lane);

// Faults when another .cta_group was used before; the peer's too, for group 2. Gives the blocks, the even one first.
struct TensorGroup {
  Cta* cta[2] = {nullptr, nullptr};
  int count = 1;
  int own = 0;  // index of the executing block
};
TensorGroup tensor_group(Warp& warp, int group, int lane);

// A new operation of the pipe, issued by one lane.
TensorMark pipe_mark(Warp& warp, int lane, const ptx::Instruction& source);
void submit_to_pipe(Warp& warp, const TensorGroup& group, std::unique_ptr<AsyncOp> op);
// Columns of tensor memory that an operation reads or writes.
struct TensorColumns {
  uint32_t column, columns;
};
// Performs an operation of the pipe on columns of tensor memory and on shared memory of its blocks, of which it has
// read bytes that nobody has written, or not.
void perform_operation(Cluster& cluster, const Origin& origin, const TensorGroup& group,
                       const std::vector<TensorColumns>& columns, bool reads_unwritten,
                       const std::function<void()>& operation);

struct TensorAddress {
  uint32_t lane, column;
};
inline TensorAddress tensor_address(uint64_t bits) {
  return {static_cast<uint32_t>(bits >> 16 & 0xffff), static_cast<uint32_t>(bits & 0xffff)};
}
std::string tensor_text(uint32_t lane, uint32_t column);

// The value of `cta_group::N` among the parts; throws Unsupported when there is none.
int group_of(const ptx::Instruction& source);

// ---- birth, end, and what is checked before each instruction ----
void reset_tensor_state(Cluster& cluster);
// Before finish_async_state: faults when tensor memory was not given back or tcgen05 operations may be in flight.
void finish_tensor_state(Cluster& cluster);
// Faults when the instruction touches a destination of a tcgen05.ld that has not been waited for.
void check_tensor_registers(Warp& warp, const Instr& instr);

// ---- instructions, one file each ----
bool decode_allocation(const ptx::Instruction& source, DecodeContext& context, Instr& out);  // alloc, dealloc, ...
bool decode_transfer(const ptx::Instruction& source, DecodeContext& context, Instr& out);    // ld, st, wait
bool decode_movement(const ptx::Instruction& source, DecodeContext& context, Instr& out);    // cp, shift
bool decode_order(const ptx::Instruction& source, DecodeContext& context, Instr& out);       // commit, fence
bool decode_mma(const ptx::Instruction& source, DecodeContext& context, Instr& out);         // mma

}  // namespace sim
