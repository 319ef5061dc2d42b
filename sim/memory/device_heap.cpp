// SPDX-License-Identifier: Apache-2.0
#include "sim/memory/device_heap.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace sim {
namespace {

constexpr uint64_t kChunk = 64 << 20;
constexpr uint64_t kGap = 256;  // so that the end of one allocation is not the beginning of the next

}  // namespace

DeviceHeap::~DeviceHeap() {
  for (const auto& [address, bytes] : live_) memory_.unmap(address);
  for (const Chunk& chunk : chunks_) munmap(chunk.begin, chunk.bytes);
}

uint64_t DeviceHeap::place(uint64_t bytes) {
  const uint64_t needed = (bytes + 2 * kGap - 1) / kGap * kGap;
  if (chunks_.empty() || needed > chunks_.back().bytes - taken_) {
    // What was freed there goes back to the host, and its addresses stay taken.
    if (live_.empty()) {
      for (const Chunk& chunk : chunks_) madvise(chunk.begin, chunk.bytes, MADV_DONTNEED);
    }
    const uint64_t size = std::max(kChunk, needed);
    void* const begin = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin == MAP_FAILED) return 0;
    chunks_.push_back({static_cast<uint8_t*>(begin), size});
    taken_ = 0;
  }
  const uint64_t address = reinterpret_cast<uint64_t>(chunks_.back().begin) + taken_;
  taken_ += needed;
  return address;
}

uint64_t DeviceHeap::allocate(uint64_t bytes, uint64_t limit) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (bytes == 0 || used_ > limit || bytes > limit - used_) return 0;
  const uint64_t address = place(bytes);
  if (address == 0) return 0;
  std::memset(reinterpret_cast<void*>(address), 0xff, bytes);  // a NaN in every float format, as in shared memory
  memory_.map(address, bytes, residence_);
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
  memory_.unmap(address);
  return true;
}

}  // namespace sim
