// SPDX-License-Identifier: Apache-2.0
// A launch of a kernel over a grid.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "sim/history/grid_history.h"
#include "sim/machine/engine.h"
#include "sim/machine/hierarchy.h"
#include "sim/machine/kernel.h"
#include "sim/machine/rules.h"
#include "sim/machine/statistics.h"
#include "sim/memory/byte_set.h"
#include "sim/memory/device_heap.h"
#include "sim/memory/global.h"

namespace sim {

// Programmatic dependent launch: the grids that may still run when this one starts.
struct PredecessorGrids {
  // What they may still be writing. An access to these bytes before a griddepcontrol.wait is a hazard, unless it and
  // all that writes them are strong: so may grids that run at the same time speak to each other.
  std::vector<std::shared_ptr<const WrittenBytes>> unfinished_writes;
  // What they still have to do to memory.
  std::function<void()> remaining_work;
  // Does the remaining work, once. The first thread that executes griddepcontrol.wait calls it, or the end of the
  // launch.
  void complete() {
    if (remaining_work) std::call_once(completed_, remaining_work);
  }
  // Some block has waited for them before it let dependent grids start. A grid starts when every block of its
  // predecessor has let it or has ended, so that dependent grids need not expect the unfinished writes any more.
  std::atomic<bool> waited_for{false};

 private:
  std::once_flag completed_;
};

struct Launch {
  const Kernel* kernel = nullptr;
  Dim3 grid, block, cluster{1, 1, 1};
  bool explicit_cluster = false;  // launched with a cluster dimension, be it of one block
  uint32_t dynamic_shared = 0;
  // Bytes of a block's shared memory that its program has, and those behind them that are reserved for the system:
  // kReservedShared where the kernel asks for them, so that others meet the end of their own.
  uint32_t own_shared() const;
  uint32_t reserved_shared_begin() const { return (own_shared() + 15) / 16 * 16; }
  // Of a cooperative launch: where %envreg1 (above) and %envreg2 lead. Of the words there, all 0 at its beginning,
  // cooperative groups take the second for the barrier of the grid (cooperative_groups/details/driver_abi.h).
  uint64_t grid_workspace = 0;
  std::vector<uint8_t> params;  // kernel->param_bytes
  GlobalMemory* global = nullptr;
  // From where malloc() in a kernel takes memory, this much at a time at most. Without it there is none.
  DeviceHeap* heap = nullptr;
  uint64_t heap_bytes = 0;
  int arch = 90;  // 90 or 100
  // The device that runs it; none where a program has one device only.
  int device = Residence::kEverywhere;
  Order order;
  int threads = 0;               // host threads, 0: as many as there are cores
  uint32_t multiprocessors = 0;  // %nsmid; 0: 132 (arch 90) or 148 (arch 100)
  // Blocks that may be resident on a multiprocessor. Clusters that wait for others do not end where these cannot start.
  uint32_t blocks_per_multiprocessor = 1;
  uint32_t stack_bytes = kStackBytes;
  // The local memory of a thread: what stands at fixed places, then the stack.
  uint32_t local_bytes() const { return kernel->local_bytes + (kernel->stack_row != UINT32_MAX ? stack_bytes : 0); }
  // Where devices share memory, what this launch is to the others.
  SystemLaunch* system = nullptr;
  Rules rules;
  Deviations deviations;
  std::atomic<uint64_t> instructions{0};
  bool counts = false;  // whether `statistics` is wanted
  Statistics statistics;
  PredecessorGrids predecessors;
  std::unique_ptr<GridHistory> grid_history;  // where races for global memory are looked for
  WrittenBytes* written = nullptr;            // what this grid writes, when somebody wants to know
};

}  // namespace sim
