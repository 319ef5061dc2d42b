// SPDX-License-Identifier: Apache-2.0
// Virtual memory management: memory without an address, addresses without memory, and what maps the one at the other.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "sim/driver/allocation.h"
#include "sim/driver/capture.h"
#include "sim/driver/queue.h"

namespace sim::driver {

PhysicalMemory::~PhysicalMemory() {
  if (file >= 0) close(file);
}

namespace {

constexpr uint64_t kGranularity = 2 << 20;
// Where bytes of such memory are known by: above what addresses can be.
constexpr uint64_t kKnownFrom = uint64_t{1} << 62;

void check_properties(const CUmemAllocationProp* p) {
  require(p != nullptr && p->type == CU_MEM_ALLOCATION_TYPE_PINNED, CUDA_ERROR_INVALID_VALUE,
          "the type of the memory is not CU_MEM_ALLOCATION_TYPE_PINNED");
  require(p->location.type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_NOT_SUPPORTED,
          "memory that is not a device's is not simulated here");
  check_device(p->location.id);
  require(p->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE, CUDA_ERROR_NOT_SUPPORTED,
          "requestedHandleTypes is " + std::to_string(static_cast<int>(p->requestedHandleTypes)) +
              ": the simulated devices belong to one process, so memory has no handle for others; allowed is 0");
}

void check_granular(uint64_t value, const char* what) {
  require(
      value % kGranularity == 0, CUDA_ERROR_INVALID_VALUE,
      std::string(what) + " is " + std::to_string(value) + ", which is no multiple of " + std::to_string(kGranularity));
}

// The reservation that holds the range.
std::map<uint64_t, uint64_t>::iterator reservation_of(uint64_t address, uint64_t bytes) {
  auto& all = state().reservations;
  auto it = all.upper_bound(address);
  require(it != all.begin() && bytes > 0 && std::prev(it)->first + std::prev(it)->second >= address + bytes,
          CUDA_ERROR_INVALID_VALUE, "the range was not reserved by cuMemAddressReserve");
  return std::prev(it);
}

// Calls visit(address, mapped) for the mappings that make up the range, all of it.
template <class Visit>
void each_mapped(uint64_t address, uint64_t bytes, Visit visit) {
  auto& all = state().mapped;
  uint64_t at = address;
  std::vector<uint64_t> found;
  for (auto it = all.find(address); it != all.end() && it->first == at && at < address + bytes; ++it) {
    found.push_back(at);
    at += it->second.bytes;
  }
  require(at == address + bytes && bytes > 0, CUDA_ERROR_INVALID_VALUE,
          "the range is not made up of whole mappings by cuMemMap");
  for (uint64_t begin : found) visit(begin, all.at(begin));
}

std::shared_ptr<PhysicalMemory>& live_memory(CUmemGenericAllocationHandle handle) {
  auto& all = state().physical;
  const auto found = all.find(handle);
  require(found != all.end() && !found->second->released, CUDA_ERROR_INVALID_VALUE, "not a live handle of cuMemCreate");
  return found->second;
}

void forget_if_unused(CUmemGenericAllocationHandle handle) {
  State& s = state();
  const auto found = s.physical.find(handle);
  if (found == s.physical.end() || !found->second->released || found->second.use_count() > 1) return;
  const std::lock_guard<std::mutex> lock(s.history.mutex);
  s.history.forget(found->second->known_as);
  s.physical.erase(found);
}

}  // namespace
}  // namespace sim::driver

using namespace sim::driver;

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags option) {
  API(Initialized, {
    require(granularity != nullptr &&
            (option == CU_MEM_ALLOC_GRANULARITY_MINIMUM || option == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    check_properties(properties);
    *granularity = kGranularity;
  });
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                     unsigned long long flags) {
  API(Initialized, {
    require(handle != nullptr && flags == 0 && bytes > 0);
    check_properties(properties);
    check_granular(bytes, "size");
    State& s = state();
    auto memory = std::make_shared<PhysicalMemory>();
    require(bytes <= s.memory.limit() - std::min(s.memory.limit(), s.memory.used()), CUDA_ERROR_OUT_OF_MEMORY);
    memory->file = memfd_create("simulated device memory", MFD_CLOEXEC);
    require(memory->file >= 0 && ftruncate(memory->file, static_cast<off_t>(bytes)) == 0, CUDA_ERROR_OUT_OF_MEMORY,
            "the host gives no memory");
    memory->bytes = bytes;
    memory->device = properties->location.id;
    const uint64_t id = s.next_id++;
    memory->known_as = kKnownFrom + id * (uint64_t{1} << 40);
    s.physical[id] = std::move(memory);
    *handle = id;
  });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  API(Initialized, {
    live_memory(handle)->released = true;
    forget_if_unused(handle);
  });
}

CUresult cuMemAddressReserve(CUdeviceptr* result, size_t bytes, size_t alignment, CUdeviceptr,
                             unsigned long long flags) {
  API(Initialized, {
    require(result != nullptr && flags == 0 && bytes > 0);
    check_granular(bytes, "size");
    require((alignment & (alignment - 1)) == 0, CUDA_ERROR_INVALID_VALUE, "alignment is no power of two");
    const uint64_t align = std::max<uint64_t>(alignment, kGranularity);
    void* const whole = mmap(nullptr, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require(whole != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY, "the host has no such range of addresses left");
    const auto begin = reinterpret_cast<uint64_t>(whole);
    const uint64_t at = (begin + align - 1) / align * align;
    if (at > begin) munmap(whole, at - begin);
    munmap(reinterpret_cast<void*>(at + bytes), begin + align - at);
    state().reservations[at] = bytes;
    *result = at;
  });
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  API(Initialized, {
    State& s = state();
    const auto found = s.reservations.find(address);
    require(found != s.reservations.end() && found->second == bytes, CUDA_ERROR_INVALID_VALUE,
            "not a range that cuMemAddressReserve gave");
    const auto inside = s.mapped.lower_bound(address);
    require(inside == s.mapped.end() || inside->first >= address + bytes, CUDA_ERROR_INVALID_VALUE,
            "something is still mapped in the range");
    munmap(reinterpret_cast<void*>(address), bytes);
    s.reservations.erase(found);
  });
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  API(Initialized, {
    State& s = state();
    require(flags == 0);
    check_granular(address, "ptr");
    check_granular(bytes, "size");
    check_granular(offset, "offset");
    const std::shared_ptr<PhysicalMemory> memory = live_memory(handle);
    reservation_of(address, bytes);
    require(offset + bytes <= memory->bytes, CUDA_ERROR_INVALID_VALUE,
            std::to_string(bytes) + " bytes at offset " + std::to_string(offset) + " of memory of " +
                std::to_string(memory->bytes) + " bytes");
    const auto next = s.mapped.lower_bound(address);
    const bool free_before =
        next == s.mapped.begin() || std::prev(next)->first + std::prev(next)->second.bytes <= address;
    require(free_before && (next == s.mapped.end() || next->first >= address + bytes), CUDA_ERROR_INVALID_VALUE,
            "something is mapped in the range already");
    require(mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory->file,
                 static_cast<off_t>(offset)) != MAP_FAILED,
            CUDA_ERROR_OUT_OF_MEMORY, "the host cannot map it");
    s.mapped[address] = {bytes, memory, handle, offset, 0};
  });
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  API(Initialized, {
    require(access != nullptr && count > 0);
    for (size_t i = 0; i < count; ++i) {
      require(access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_NOT_SUPPORTED,
              "access by the host is not simulated");
      check_device(access[i].location.id);
      require(access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ, CUDA_ERROR_NOT_SUPPORTED,
              "access for reading alone is not simulated");
    }
    each_mapped(address, bytes, [&](uint64_t begin, MappedMemory& mapped) {
      State& s = state();
      for (size_t i = 0; i < count; ++i) {
        const uint64_t bit = uint64_t{1} << access[i].location.id;
        mapped.devices =
            access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? mapped.devices & ~bit : mapped.devices | bit;
      }
      if (s.allocations.count(begin) != 0) {
        s.memory.set_peers(begin, mapped.devices);
        return;
      }
      sim::Residence residence;
      residence.device = mapped.memory->device;
      residence.peers = mapped.devices;
      residence.by_mask_alone = true;
      residence.known_as = mapped.memory->known_as + mapped.offset;
      s.memory.map(begin, mapped.bytes, residence);
      Allocation& allocation = s.allocations[begin];
      allocation.address = begin;
      allocation.bytes = mapped.bytes;
      allocation.kind = Allocation::Kind::Mapped;
      allocation.device = mapped.memory->device;
      allocation.id = s.next_id++;
    });
  });
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
  API(Initialized, {
    require(flags != nullptr && location != nullptr && location->type == CU_MEM_LOCATION_TYPE_DEVICE);
    check_device(location->id);
    auto& all = state().mapped;
    auto it = all.upper_bound(address);
    require(it != all.begin() && address < std::prev(it)->first + std::prev(it)->second.bytes, CUDA_ERROR_INVALID_VALUE,
            "nothing is mapped there");
    const bool has = (std::prev(it)->second.devices >> location->id & 1) != 0;
    *flags = has ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  });
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  API(Initialized, {
    State& s = state();
    for (auto& context : s.contexts) drain(c, *context);
    std::vector<uint64_t> gone;
    each_mapped(address, bytes, [&](uint64_t begin, MappedMemory&) { gone.push_back(begin); });
    const void* const emptied = mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    require(emptied != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY, "the addresses cannot be emptied");
    for (uint64_t begin : gone) {
      const uint64_t handle = s.mapped.at(begin).handle;
      s.memory.unmap(begin);
      s.allocations.erase(begin);
      s.mapped.erase(begin);
      forget_if_unused(handle);
    }
  });
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  API(Initialized, {
    require(handle != nullptr);
    const auto at = reinterpret_cast<uint64_t>(address);
    auto& all = state().mapped;
    auto it = all.upper_bound(at);
    require(it != all.begin() && at < std::prev(it)->first + std::prev(it)->second.bytes, CUDA_ERROR_INVALID_VALUE,
            "nothing is mapped there");
    *handle = std::prev(it)->second.handle;
  });
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  API(Initialized, {
    require(properties != nullptr);
    const auto memory = live_memory(handle);
    *properties = {};
    properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties->location.id = memory->device;
  });
}

CUresult cuMemExportToShareableHandle(void*, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long) {
  API(Initialized, {
    live_memory(handle);
    fail(CUDA_ERROR_NOT_SUPPORTED, "handleType is " + std::to_string(static_cast<int>(type)) +
                                       ": the simulated devices belong to one process, so memory has no handle for "
                                       "others; give the addresses themselves");
  });
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType) {
  API(Initialized, {
    fail(CUDA_ERROR_NOT_SUPPORTED, "the simulated devices belong to one process, so memory has no handle for others");
  });
}
