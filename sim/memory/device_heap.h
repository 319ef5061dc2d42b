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
  DeviceHeap(GlobalMemory& memory, const Residence& residence) : memory_(memory), residence_(residence) {}
  ~DeviceHeap();
  DeviceHeap(const DeviceHeap&) = delete;
  DeviceHeap& operator=(const DeviceHeap&) = delete;
  // The address of `bytes` that nobody has written, or 0 where less than that is left of `limit` bytes.
  uint64_t allocate(uint64_t bytes, uint64_t limit);
  // False: not what allocate() has given, or free already. No address is given twice: what threads do at one that
  // others have had would look like races.
  bool free(uint64_t address);

 private:
  struct Chunk {
    uint8_t* begin;
    uint64_t bytes;
  };
  // A place for so many bytes in the last chunk, or in a new one; 0 when there is no memory.
  uint64_t place(uint64_t bytes);

  GlobalMemory& memory_;
  Residence residence_;
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> live_;  // bytes by address
  // A process can have only some ten thousand mappings, and kernels make more allocations than that.
  std::vector<Chunk> chunks_;
  uint64_t taken_ = 0;  // bytes of the last chunk
  uint64_t used_ = 0;
};

}  // namespace sim
