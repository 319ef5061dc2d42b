// SPDX-License-Identifier: Apache-2.0
// GpuClock times work on a GPU: many launches between two events, replayed as a CUDA graph.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "moxie/device.h"

namespace moxie::timing {

// Launches once on the stream. Launches of different turns should touch different memory, so that none finds its
// operands in the L2 cache.
using Launch = std::function<void(int turn, Stream stream)>;

struct Contender {
  Launch launch;
  bool graph = true;         // false for copies: a graph gives them to the copy engine, which is slower than the SMs
  double rough_seconds = 0;  // of a launch, where the caller has timed one already; 0: the clock does
  int turns = 0;             // numbers that its launches are given; 0: as many as the clock is told
};

class GpuClock {
 public:
  // Makes the device's context current on this thread until the end of the clock.
  explicit GpuClock(const Device& device);
  ~GpuClock();
  GpuClock(const GpuClock&) = delete;
  GpuClock& operator=(const GpuClock&) = delete;

  // Returns the seconds of one launch of each contender: medians over `rounds` replays. Each round has an order of its
  // own, so that the contenders share clock rates and predecessors. A replay holds every turn equally often and lasts
  // about `graph_seconds`.
  std::vector<double> seconds(const std::vector<Contender>& contenders, int turns, int rounds = 15,
                              double graph_seconds = 2e-3) const;

  // Returns the seconds of a launch, roughly: the first one where it is long, else a few launches without a graph.
  double rough_seconds(const Launch& launch, int turns) const;

  // Returns the seconds that the host spends in one launch without a graph. It is the least mean of several batches, so
  // that no batch counts that waits for the GPU.
  double host_seconds(const Launch& launch, int turns) const;

  void copy(void* to, const void* from, size_t bytes, Stream stream) const;

 private:
  struct Driver;
  class Replay;
  const Device& device_;
  const std::unique_ptr<const Driver> driver_;
  Stream stream_ = nullptr;
};

}  // namespace moxie::timing
