// SPDX-License-Identifier: Apache-2.0
// A launch whose clusters take turns on one host thread, and with them the launches of other streams and devices.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "sim/machine/launch.h"

namespace sim {

// What grids that run at the same time have in common. The number rises whenever something happens that a cluster which
// polls could wait for.
struct Progress {
  std::atomic<uint64_t> changes = 1;
  std::weak_ptr<GridObjects> objects;
};

class RunningGrid {
 public:
  // Throws Fault when the launch is not allowed. `interleaved`: other grids run at the same time, and clusters are
  // begun and given turns in a way that follows the order. Otherwise one runs to its end unless it gets stuck.
  RunningGrid(Launch& launch, Progress& progress, bool interleaved);
  ~RunningGrid();
  RunningGrid(const RunningGrid&) = delete;
  RunningGrid& operator=(const RunningGrid&) = delete;

  // Whether all clusters have ended.
  bool done() const;
  // Gives a cluster a turn. False when each is stuck and memory has not changed since. Throws Fault.
  bool turn();
  // Performs one of the pending operations. False when there is none.
  bool perform_pending();
  // Whether every cluster is bound to wait for ever (Schedule::comes_back), as far as a round of each tells. Time may
  // pass when that is so of all kernels that run.
  bool comes_back(bool time_passes);
  // A line for each warp that waits, as the report of a deadlock has them.
  void describe_waiting(std::string* lines, int* warps, std::string* first);
  // To be called once, at the end or when the launch is given up.
  void finish();
  Launch& launch() const { return launch_; }

 private:
  struct Active;
  void begin(Active& active);
  bool start_one();
  void end_of(size_t i);

  Launch& launch_;
  Progress& progress_;
  bool interleaved_;
  uint64_t clusters_, running_, resident_;
  std::vector<uint64_t> waiting_;  // shares that have not started, the next one last
  std::vector<std::unique_ptr<Active>> active_, idle_;
  size_t current_ = 0;
  std::mt19937_64 rng_;
  Statistics statistics_;
};

// Whether clusters of the kernel could wait for what other clusters or devices do: it reads global memory by strong
// operations. The others need not take turns.
bool may_wait_for_others(const Kernel& kernel);

// The report of a deadlock of grids that run at the same time and of which none can go on.
[[noreturn]] void report_deadlock(const std::vector<RunningGrid*>& grids, const std::string& more);

}  // namespace sim
