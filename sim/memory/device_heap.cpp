// SPDX-License-Identifier: Apache-2.0
#include "sim/memory/device_heap.h"

#include <cstring>

namespace sim {

DeviceHeap::~DeviceHeap() {
  collect();
  for (const auto& [address, bytes] : live_) memory_.free(address);
}

uint64_t DeviceHeap::allocate(uint64_t bytes, uint64_t limit) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (bytes == 0 || used_ > limit || bytes > limit - used_) return 0;
  const uint64_t address = memory_.allocate(bytes, residence_);
  if (address == 0) return 0;
  std::memset(reinterpret_cast<void*>(address), 0xff, bytes);  // a NaN in every float format, as in shared memory
  live_[address] = bytes;
  used_ += bytes;
  return address;
}

bool DeviceHeap::free(uint64_t address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = live_.find(address);
  if (found == live_.end()) return false;
  used_ -= found->second;
  live_.erase(found);
  freed_.push_back(address);
  return true;
}

void DeviceHeap::collect() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const uint64_t address : freed_) memory_.free(address);
  freed_.clear();
}

}  // namespace sim
