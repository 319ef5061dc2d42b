// SPDX-License-Identifier: Apache-2.0
// The heap from which malloc() takes memory in kernels. It lasts from launch to launch, until its owner ends.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "sim/memory/global.h"

namespace sim {

// All members are thread-safe.
class DeviceHeap {
 public:
  explicit DeviceHeap(GlobalMemory& memory, const Residence& residence = {}) : memory_(memory), residence_(residence) {}
  ~DeviceHeap();
  DeviceHeap(const DeviceHeap&) = delete;
  DeviceHeap& operator=(const DeviceHeap&) = delete;
  // The address of `bytes` that nobody has written, or 0 where less than that is left of `limit` bytes.
  uint64_t allocate(uint64_t bytes, uint64_t limit);
  // False: not what allocate() has given, or free already. The memory stays until collect(), so that one grid gets no
  // address twice: what its threads do there would look like races.
  bool free(uint64_t address);
  void collect();  // to be called between grids

 private:
  GlobalMemory& memory_;
  Residence residence_;
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> live_;  // bytes by address
  std::vector<uint64_t> freed_;
  uint64_t used_ = 0;
};

}  // namespace sim
