// SPDX-License-Identifier: Apache-2.0
// The bookkeeping of allocations, and the checks of a range against them.
#include "sim/driver/allocation.h"

#include <algorithm>

#include "sim/driver/context.h"
#include "sim/driver/state.h"

namespace sim::driver {

Allocation* find_allocation(uint64_t address) {
  auto& all = state().allocations;
  auto it = all.upper_bound(address);
  if (it == all.begin()) return nullptr;
  --it;
  return address < it->second.address + it->second.bytes ? &it->second : nullptr;
}

Residence residence_of(Allocation::Kind kind, int device, CUmemoryPool pool) {
  if (state().device_count == 1 || kind == Allocation::Kind::Host || kind == Allocation::Kind::Managed) return {};
  // Memory from a pool is accessible to those devices that the pool is, whatever contexts have enabled.
  if (pool != nullptr) return {device, pool->peers, false};
  return {device, 0, true};
}

uint64_t allocate(CUcontext context, uint64_t bytes, Allocation::Kind kind, unsigned flags, CUmemoryPool pool,
                  int device) {
  State& s = state();
  if (context != nullptr) device = context->device;
  require(bytes > 0, CUDA_ERROR_INVALID_VALUE, "an allocation of 0 bytes");
  const uint64_t address = s.memory.allocate(bytes, residence_of(kind, device, pool));
  require(address != 0, CUDA_ERROR_OUT_OF_MEMORY,
          std::to_string(bytes) + " bytes asked for, " + std::to_string(s.memory.limit() - s.memory.used()) + " free");
  s.allocations[address] = {address, bytes, kind, context, device, pool, flags, s.next_id++};
  if (pool != nullptr) {
    pool->used += bytes;
    pool->used_high = std::max(pool->used_high, pool->used);
  }
  return address;
}

void release(uint64_t address) {
  State& s = state();
  auto it = s.allocations.find(address);
  if (it == s.allocations.end()) return;
  if (it->second.pool != nullptr && s.pools.contains(it->second.pool)) it->second.pool->used -= it->second.bytes;
  if (s.device_count > 1) {
    const std::lock_guard<std::mutex> lock(s.history.mutex);
    s.history.forget(address);
  }
  if (it->second.kind != Allocation::Kind::Registered) s.memory.free(address);
  s.allocations.erase(it);
}

namespace {

// Where the allocation ends, as far as `end` asks: memory that several calls of cuMemMap have mapped side by side is
// one to copies.
uint64_t reach(const Allocation& first, uint64_t end) {
  const auto& all = state().allocations;
  const auto is_mapped = [](const Allocation& a) { return a.kind == Allocation::Kind::Mapped; };
  uint64_t at = first.address + first.bytes;
  for (auto next = all.find(at); at < end && is_mapped(first) && next != all.end() && is_mapped(next->second);
       next = all.find(at))
    at += next->second.bytes;
  return at;
}

}  // namespace

void check_range(uint64_t address, uint64_t bytes, Side side) {
  if (bytes == 0) return;
  require(address != 0, CUDA_ERROR_INVALID_VALUE, "a copy or fill at address 0");
  require(address + bytes >= address, CUDA_ERROR_INVALID_VALUE, "a range that wraps around the address space");
  auto& all = state().allocations;
  const Allocation* allocation = find_allocation(address);
  if (allocation == nullptr) {
    require(side != Side::Device, CUDA_ERROR_INVALID_VALUE, "device range " + state().memory.explain(address, bytes));
    // Plain host memory must not reach into an allocation.
    auto next = all.upper_bound(address);
    require(next == all.end() || next->first >= address + bytes, CUDA_ERROR_INVALID_VALUE,
            "a host range that runs into a device allocation");
    return;
  }
  require(address + bytes <= reach(*allocation, address + bytes), CUDA_ERROR_INVALID_VALUE,
          std::to_string(bytes) + " bytes at offset " + std::to_string(address - allocation->address) +
              " of an allocation of " + std::to_string(allocation->bytes) + " bytes");
}

bool is_live(uint64_t address, uint64_t bytes) {
  const Allocation* a = find_allocation(address);
  return a != nullptr && address + bytes <= reach(*a, address + bytes);
}

uint64_t span(uint64_t width, uint64_t height, uint64_t depth, uint64_t pitch, uint64_t slice) {
  return (depth - 1) * slice + (height - 1) * pitch + width;
}

}  // namespace sim::driver
