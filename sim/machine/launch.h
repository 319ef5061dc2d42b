// A launch of a kernel over a grid.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "sim/machine/engine.h"
#include "sim/machine/hierarchy.h"
#include "sim/machine/kernel.h"
#include "sim/machine/rules.h"
#include "sim/memory/byte_set.h"
#include "sim/memory/global.h"

namespace sim {

struct Launch {
  const Kernel* kernel = nullptr;
  Dim3 grid, block, cluster{1, 1, 1};
  bool explicit_cluster = false;  // launched with a cluster dimension, be it of one block
  uint32_t dynamic_shared = 0;
  std::vector<uint8_t> params;  // kernel->param_bytes
  GlobalMemory* global = nullptr;
  int arch = 90;  // 90 or 100
  Order order;
  int threads = 0;               // host threads, 0: as many as there are cores
  uint32_t multiprocessors = 0;  // %nsmid; 0: 132 (arch 90) or 148 (arch 100)
  uint32_t stack_bytes = kStackBytes;
  // Of a thread, with the stack behind what stands at fixed places.
  uint32_t local_bytes() const { return kernel->local_bytes + (kernel->stack_row != UINT32_MAX ? stack_bytes : 0); }
  Rules rules;
  std::atomic<uint64_t> instructions{0};
  // Programmatic dependent launch. What the grids before this one may still be writing when it starts: touched before a
  // griddepcontrol.wait it is a hazard. What this one writes, when `written` is given; whether its
  // dependents, which start when every block has let them or has ended, do so only after a wait.
  std::vector<std::shared_ptr<const ByteSet>> unfinished;
  ByteSet* written = nullptr;
  std::atomic<bool> waited{false};
  // What the grids before this one still have to do to memory when it starts: done when the first thread executes
  // griddepcontrol.wait, at the latest when the launch ends.
  std::function<void()> prerequisites;
  std::once_flag prerequisites_met;
  void meet_prerequisites() {
    if (prerequisites) std::call_once(prerequisites_met, prerequisites);
  }
};

}  // namespace sim
