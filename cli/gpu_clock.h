// Times of work on a GPU: CUDA graphs of many launches, replayed between two events.
#pragma once
#include <functional>
#include <vector>

#include "moxie/device.h"

namespace moxie::driver {
class Driver;
}

namespace moxie::cli {

// One launch on the stream. Launches of different turns should touch different memory, so that none finds its operands
// in the L2 cache.
using Launch = std::function<void(int turn, Stream stream)>;

class GpuClock {
 public:
  // Makes the device's context current on this thread until the end of the clock.
  explicit GpuClock(const Device& device);
  ~GpuClock();
  GpuClock(const GpuClock&) = delete;
  GpuClock& operator=(const GpuClock&) = delete;

  // Seconds of one launch of each contender: medians over `rounds` replays. The contenders replay by turns, so that
  // they share the clock rates. Each graph holds every turn equally often and lasts about `graph_seconds`.
  std::vector<double> seconds(const std::vector<Launch>& contenders, int turns, int rounds = 15,
                              double graph_seconds = 2e-3) const;

  // Seconds of the host in one launch that is not captured: the least mean of several batches, so that no batch waits
  // for the GPU to take what is queued.
  double host_seconds(const Launch& launch, int turns) const;

  void copy(void* to, const void* from, size_t bytes, Stream stream) const;

 private:
  class Graph;
  const Device& device_;
  const driver::Driver& driver_;
  Stream stream_ = nullptr;
};

}  // namespace moxie::cli
