// SPDX-License-Identifier: Apache-2.0
// Memory: allocations of every kind, what an address belongs to, copies and fills. Each range is checked against the
// allocations before anything is moved.
#include "sim/driver/memory.h"

#include <algorithm>
#include <utility>

#include "sim/driver/allocation.h"
#include "sim/driver/capture.h"
#include "sim/driver/execute.h"
#include "sim/driver/graph.h"
#include "sim/driver/queue.h"
#include "sim/driver/submit.h"

namespace sim::driver {

namespace {

void check_copy(CopyWork& copy, Side source, Side destination) {
  if (copy.width == 0 || copy.height == 0 || copy.depth == 0) return;
  require(copy.height == 1 || (copy.source_pitch >= copy.width && copy.destination_pitch >= copy.width),
          CUDA_ERROR_INVALID_VALUE, "a pitch smaller than the row");
  check_range(copy.source, span(copy.width, copy.height, copy.depth, copy.source_pitch, copy.source_slice), source);
  check_range(copy.destination,
              span(copy.width, copy.height, copy.depth, copy.destination_pitch, copy.destination_slice), destination);
  copy.source_owned = find_allocation(copy.source) != nullptr;
  copy.destination_owned = find_allocation(copy.destination) != nullptr;
}

uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// One side of a 2D or 3D copy.
struct Place {
  uint64_t base = 0;
  Side side = Side::Host;
};
Place place_of(CUmemorytype type, const void* host, CUdeviceptr device) {
  switch (type) {
    case CU_MEMORYTYPE_HOST:
      return {address_of(host), Side::Host};
    case CU_MEMORYTYPE_DEVICE:
      return {device, Side::Device};
    case CU_MEMORYTYPE_UNIFIED:
      return {device, Side::Unified};
    case CU_MEMORYTYPE_ARRAY:
      fail(CUDA_ERROR_NOT_SUPPORTED, "CUDA arrays are not simulated");
  }
  fail(CUDA_ERROR_INVALID_VALUE, "unknown memory type");
}

CopyWork flat_copy(uint64_t destination, Side destination_side, uint64_t source, Side source_side, uint64_t bytes) {
  CopyWork copy;
  copy.source = source;
  copy.destination = destination;
  copy.width = copy.source_pitch = copy.destination_pitch = bytes;
  check_copy(copy, source_side, destination_side);
  return copy;
}

void run_now(Call& c, const Work& work) {
  legacy_stream_used(c.context());
  forbid_unsafe_in_capture();
  if (state().device_count > 1) return run_and_wait(c, work);
  synchronizing_call(c);
  execute(c, c.context(), work);
  synchronizing_call(c);
}

void enqueue(Call& c, CUstream stream, Work work, CUgraphNodeType type) {
  submit(c, live_stream(c, stream), std::move(work), type);
}

}  // namespace

CopyWork copy_of(const CUDA_MEMCPY3D& d) {
  require(d.srcLOD == 0 && d.dstLOD == 0 && d.reserved0 == nullptr && d.reserved1 == nullptr);
  const Place from = place_of(d.srcMemoryType, d.srcHost, d.srcDevice);
  const Place to = place_of(d.dstMemoryType, d.dstHost, d.dstDevice);
  CopyWork copy;
  copy.width = d.WidthInBytes;
  copy.height = d.Height;
  copy.depth = d.Depth;
  copy.source_pitch = d.srcPitch != 0 ? d.srcPitch : d.srcXInBytes + d.WidthInBytes;
  copy.destination_pitch = d.dstPitch != 0 ? d.dstPitch : d.dstXInBytes + d.WidthInBytes;
  copy.source_slice = copy.source_pitch * (d.srcHeight != 0 ? d.srcHeight : d.srcY + d.Height);
  copy.destination_slice = copy.destination_pitch * (d.dstHeight != 0 ? d.dstHeight : d.dstY + d.Height);
  copy.source = from.base + d.srcZ * copy.source_slice + d.srcY * copy.source_pitch + d.srcXInBytes;
  copy.destination = to.base + d.dstZ * copy.destination_slice + d.dstY * copy.destination_pitch + d.dstXInBytes;
  require(d.srcXInBytes + d.WidthInBytes <= copy.source_pitch, CUDA_ERROR_INVALID_VALUE,
          "srcPitch is smaller than the row");
  require(d.dstXInBytes + d.WidthInBytes <= copy.destination_pitch, CUDA_ERROR_INVALID_VALUE,
          "dstPitch is smaller than the row");
  require(d.Depth <= 1 || ((d.srcHeight == 0 || d.srcHeight >= d.srcY + d.Height) &&
                           (d.dstHeight == 0 || d.dstHeight >= d.dstY + d.Height)),
          CUDA_ERROR_INVALID_VALUE, "a slice smaller than its rows");
  check_copy(copy, from.side, to.side);
  return copy;
}

namespace {

CopyWork copy_of(const CUDA_MEMCPY2D& d) {
  CUDA_MEMCPY3D e{};
  e.srcXInBytes = d.srcXInBytes;
  e.srcY = d.srcY;
  e.srcMemoryType = d.srcMemoryType;
  e.srcHost = d.srcHost;
  e.srcDevice = d.srcDevice;
  e.srcPitch = d.srcPitch;
  e.dstXInBytes = d.dstXInBytes;
  e.dstY = d.dstY;
  e.dstMemoryType = d.dstMemoryType;
  e.dstHost = d.dstHost;
  e.dstDevice = d.dstDevice;
  e.dstPitch = d.dstPitch;
  e.WidthInBytes = d.WidthInBytes;
  e.Height = d.Height;
  e.Depth = 1;
  return sim::driver::copy_of(e);
}

}  // namespace

SetWork set_of(uint64_t destination, uint64_t pitch, uint32_t value, uint32_t element_bytes, uint64_t width,
               uint64_t height) {
  require(destination % element_bytes == 0, CUDA_ERROR_INVALID_VALUE, "a fill that is not aligned to its element");
  if (width != 0 && height != 0) {
    require(height == 1 || (pitch >= width * element_bytes && pitch % element_bytes == 0), CUDA_ERROR_INVALID_VALUE,
            "a pitch smaller than the row");
    check_range(destination, span(width * element_bytes, height, 1, pitch, 0), Side::Device);
  }
  return {destination, pitch, value, element_bytes, width, height};
}

namespace {

CUresult set_now(const char* function, uint64_t d, uint64_t pitch, uint32_t v, uint32_t size, uint64_t w, uint64_t h) {
  return call(function, Call::Needs::HealthyContext, [&](Call& c) {
    // A fill of device memory is asynchronous on the null stream.
    enqueue(c, nullptr, set_of(d, pitch, v, size, w, h), CU_GRAPH_NODE_TYPE_MEMSET);
  });
}
CUresult set_later(const char* function, uint64_t d, uint64_t pitch, uint32_t v, uint32_t size, uint64_t w, uint64_t h,
                   CUstream stream) {
  return call(function, Call::Needs::HealthyContext,
              [&](Call& c) { enqueue(c, stream, set_of(d, pitch, v, size, w, h), CU_GRAPH_NODE_TYPE_MEMSET); });
}

CUresult allocate_host(const char* function, void** result, size_t bytes, unsigned flags) {
  return call(function, Call::Needs::HealthyContext, [&](Call& c) {
    require(result != nullptr);
    require((flags & ~7u) == 0, CUDA_ERROR_INVALID_VALUE, "unknown host allocation flags");
    forbid_unsafe_in_capture();
    *result = reinterpret_cast<void*>(allocate(&c.context(), bytes, Allocation::Kind::Host, flags));
  });
}

bool is_host(const Allocation& a) { return a.kind == Allocation::Kind::Host || a.kind == Allocation::Kind::Registered; }

}  // namespace
}  // namespace sim::driver

using namespace sim::driver;

CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  API(HealthyContext, {
    require(free_bytes != nullptr && total != nullptr);
    auto& memory = state().memory;
    *total = memory.limit();
    *free_bytes = memory.limit() - std::min(memory.limit(), memory.used());
  });
}
PLAIN_NAME(cuMemGetInfo, cuMemGetInfo_v2);

CUresult cuMemAlloc_v2(CUdeviceptr* result, size_t bytes) {
  API(HealthyContext, {
    require(result != nullptr);
    forbid_unsafe_in_capture();
    *result = allocate(&c.context(), bytes, Allocation::Kind::Device);
  });
}
PLAIN_NAME(cuMemAlloc, cuMemAlloc_v2);

CUresult cuMemAllocPitch_v2(CUdeviceptr* result, size_t* pitch, size_t width, size_t height, unsigned int element) {
  API(HealthyContext, {
    constexpr size_t kPitchAlignment = 512;
    require(result != nullptr && pitch != nullptr && width > 0 && height > 0);
    require(element == 4 || element == 8 || element == 16, CUDA_ERROR_INVALID_VALUE, "ElementSizeBytes is 4, 8 or 16");
    forbid_unsafe_in_capture();
    require(width <= 0x7fffffff && height <= (uint64_t{1} << 48) / width);
    *pitch = (width + kPitchAlignment - 1) / kPitchAlignment * kPitchAlignment;
    *result = allocate(&c.context(), *pitch * height, Allocation::Kind::Device);
  });
}
PLAIN_NAME(cuMemAllocPitch, cuMemAllocPitch_v2);

CUresult cuMemFree_v2(CUdeviceptr address) {
  API(HealthyContext, {
    if (address == 0) return;
    forbid_unsafe_in_capture();
    const Allocation* allocation = find_allocation(address);
    require(allocation != nullptr && allocation->address == address && !is_host(*allocation) &&
                allocation->kind != Allocation::Kind::Graph && allocation->kind != Allocation::Kind::Mapped &&
                allocation->context != nullptr,
            CUDA_ERROR_INVALID_VALUE, "not the start of a live device allocation");
    synchronize_context(c, *allocation->context);
    release(address);
  });
}
PLAIN_NAME(cuMemFree, cuMemFree_v2);

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  API(HealthyContext, {
    const Allocation* allocation = find_allocation(address);
    require(allocation != nullptr, CUDA_ERROR_NOT_FOUND);
    if (base != nullptr) *base = allocation->address;
    if (bytes != nullptr) *bytes = allocation->bytes;
  });
}
PLAIN_NAME(cuMemGetAddressRange, cuMemGetAddressRange_v2);

CUresult cuMemAllocHost_v2(void** result, size_t bytes) { return allocate_host(__func__, result, bytes, 0); }
PLAIN_NAME(cuMemAllocHost, cuMemAllocHost_v2);
CUresult cuMemHostAlloc(void** result, size_t bytes, unsigned int flags) {
  return allocate_host(__func__, result, bytes, flags);
}

CUresult cuMemFreeHost(void* pointer) {
  API(HealthyContext, {
    forbid_unsafe_in_capture();
    const Allocation* allocation = find_allocation(address_of(pointer));
    require(allocation != nullptr && allocation->address == address_of(pointer) &&
                allocation->kind == Allocation::Kind::Host,
            CUDA_ERROR_INVALID_VALUE, "not the start of live page-locked memory");
    synchronizing_call(c);
    release(address_of(pointer));
  });
}

CUresult cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned int flags) {
  API(HealthyContext, {
    const uint64_t begin = address_of(pointer);
    require(pointer != nullptr && begin + bytes > begin);
    require((flags & ~15u) == 0, CUDA_ERROR_INVALID_VALUE, "unknown registration flags");
    // Copies may use registered memory, but kernels reach only what the simulator has allocated.
    require((flags & (CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_DEVICEMAP)) == 0, CUDA_ERROR_NOT_SUPPORTED,
            "registered memory is not mapped into the device");
    auto& all = state().allocations;
    auto next = all.lower_bound(begin);
    require(find_allocation(begin) == nullptr && (next == all.end() || next->first >= begin + bytes),
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    all[begin] = {begin,
                  bytes,
                  Allocation::Kind::Registered,
                  &c.context(),
                  c.context().device,
                  nullptr,
                  flags,
                  state().next_id++};
  });
}
PLAIN_NAME(cuMemHostRegister, cuMemHostRegister_v2);

CUresult cuMemHostUnregister(void* pointer) {
  API(HealthyContext, {
    const Allocation* allocation = find_allocation(address_of(pointer));
    require(allocation != nullptr && allocation->kind == Allocation::Kind::Registered,
            CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    require(allocation->address == address_of(pointer));
    synchronizing_call(c);
    release(address_of(pointer));
  });
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* result, void* pointer, unsigned int flags) {
  API(HealthyContext, {
    require(result != nullptr && flags == 0);
    const Allocation* allocation = find_allocation(address_of(pointer));
    require(allocation != nullptr && is_host(*allocation), CUDA_ERROR_INVALID_VALUE, "not page-locked memory");
    require(allocation->kind == Allocation::Kind::Host, CUDA_ERROR_NOT_SUPPORTED,
            "registered memory is not mapped into the device");
    *result = address_of(pointer);
  });
}
PLAIN_NAME(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2);

CUresult cuMemHostGetFlags(unsigned int* flags, void* pointer) {
  API(HealthyContext, {
    const Allocation* allocation = find_allocation(address_of(pointer));
    require(flags != nullptr && allocation != nullptr && allocation->kind == Allocation::Kind::Host);
    *flags = allocation->flags;
  });
}

CUresult cuMemAllocManaged(CUdeviceptr* result, size_t bytes, unsigned int flags) {
  API(HealthyContext, {
    require(result != nullptr);
    require(flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST);
    forbid_unsafe_in_capture();
    *result = allocate(&c.context(), bytes, Allocation::Kind::Managed, flags);
  });
}

// ---- pools ---------------------------------------------------------------------------------------

namespace {

// The device whose pools a place names. Only devices have some.
DeviceSlot& pooling_device(const CUmemLocation* location, CUmemAllocationType type) {
  require(location != nullptr && type == CU_MEM_ALLOCATION_TYPE_PINNED);
  require(location->type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_NOT_SUPPORTED, "only devices have memory pools");
  check_device(location->id);
  return state().devices[static_cast<size_t>(location->id)];
}

DeviceSlot& slot_of_current(Call& c) { return state().devices[static_cast<size_t>(c.context().device)]; }

CUresult allocate_async(const char* function, CUdeviceptr* result, size_t bytes, CUmemoryPool handle, CUstream stream) {
  return call(function, Call::Needs::HealthyContext, [&](Call& c) {
    require(result != nullptr);
    CUmemoryPool pool = handle != nullptr ? &state().pools.get(handle) : slot_of_current(c).current_pool;
    CUstream_st& s = live_stream(c, stream);
    if (s.capture == nullptr) {
      legacy_stream_used(c.context());
      *result = allocate(&c.context(), bytes, Allocation::Kind::Pool, 0, pool);
      return;
    }
    // The address is fixed when the node is made. The memory lives as long as a graph refers to it.
    const uint64_t address = allocate(nullptr, bytes, Allocation::Kind::Graph, 0, nullptr, c.context().device);
    std::shared_ptr<uint64_t> owner(new uint64_t(address), [](uint64_t* a) {
      release(*a);
      delete a;
    });
    CUgraphNode node = submit(c, s, Work{}, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    node->memory = owner;
    node->memory_bytes = bytes;
    *result = address;
  });
}

}  // namespace

CUresult cuMemAllocAsync(CUdeviceptr* result, size_t bytes, CUstream stream) {
  return allocate_async(__func__, result, bytes, nullptr, stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* result, size_t bytes, CUmemoryPool pool, CUstream stream) {
  if (pool == nullptr) API(Initialized, { fail(CUDA_ERROR_INVALID_VALUE, "the pool is null"); });
  return allocate_async(__func__, result, bytes, pool, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  API(HealthyContext, {
    if (address == 0) return;
    const Allocation* allocation = find_allocation(address);
    require(allocation != nullptr && allocation->address == address && !is_host(*allocation), CUDA_ERROR_INVALID_VALUE,
            "not the start of a live device allocation");
    enqueue(c, stream, MemoryFreeWork{address}, CU_GRAPH_NODE_TYPE_MEM_FREE);
  });
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  API(Initialized, {
    check_device(device);
    require(pool != nullptr);
    *pool = state().devices[static_cast<size_t>(device)].default_pool;
  });
}

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  API(Initialized, {
    check_device(device);
    require(pool != nullptr);
    *pool = state().devices[static_cast<size_t>(device)].current_pool;
  });
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  API(Initialized, {
    check_device(device);
    state().devices[static_cast<size_t>(device)].current_pool = &state().pools.get(pool);
  });
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  API(Initialized, {
    require(pool != nullptr);
    *pool = pooling_device(location, type).default_pool;
  });
}

CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  API(Initialized, {
    require(pool != nullptr);
    *pool = pooling_device(location, type).current_pool;
  });
}

CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  API(Initialized, { pooling_device(location, type).current_pool = &state().pools.get(pool); });
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  API(Initialized, {
    require(pool != nullptr && properties != nullptr);
    require(properties->allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
            properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE);
    check_device(properties->location.id);
    require(properties->handleTypes == CU_MEM_HANDLE_TYPE_NONE, CUDA_ERROR_NOT_SUPPORTED);
    auto made = std::make_unique<CUmemPoolHandle_st>();
    made->device = properties->location.id;
    *pool = state().pools.add(std::move(made));
  });
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  API(Initialized, {
    State& s = state();
    require(!s.pools.get(pool).is_default);
    for (auto& [address, allocation] : s.allocations) {
      if (allocation.pool == pool) allocation.pool = nullptr;
    }
    for (DeviceSlot& slot : s.devices) {
      if (slot.current_pool == pool) slot.current_pool = slot.default_pool;
    }
    s.pools.remove(pool);
  });
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t) {
  // A pool keeps nothing beyond what is in use.
  API(Initialized, { state().pools.get(pool); });
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  API(Initialized, {
    require(value != nullptr);
    const CUmemPoolHandle_st& pool = state().pools.get(handle);
    switch (attribute) {
      case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *static_cast<int*>(value) = pool.reuse[attribute];
        return;
      case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *static_cast<cuuint64_t*>(value) = pool.release_threshold;
        return;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *static_cast<cuuint64_t*>(value) = pool.used;
        return;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *static_cast<cuuint64_t*>(value) = pool.used_high;
        return;
      default:
        fail(CUDA_ERROR_INVALID_VALUE);
    }
  });
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  API(Initialized, {
    require(value != nullptr);
    CUmemPoolHandle_st& pool = state().pools.get(handle);
    switch (attribute) {
      case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool.reuse[attribute] = *static_cast<int*>(value);
        return;
      case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool.release_threshold = *static_cast<cuuint64_t*>(value);
        return;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        require(*static_cast<cuuint64_t*>(value) == 0);
        pool.used_high = pool.used;
        return;
      default:
        fail(CUDA_ERROR_INVALID_VALUE);
    }
  });
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* access, size_t count) {
  API(Initialized, {
    CUmemPoolHandle_st& p = state().pools.get(pool);
    require(access != nullptr || count == 0);
    for (size_t i = 0; i < count; ++i) {
      check_device(access[i].location.id);
      const uint64_t bit = uint64_t{1} << access[i].location.id;
      if (access[i].location.id == p.device) continue;  // It always has access.
      p.peers = access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? p.peers & ~bit : p.peers | bit;
    }
    for (auto& [address, allocation] : state().allocations) {
      if (allocation.pool == pool) state().memory.set_peers(address, p.peers);
    }
  });
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool pool, CUmemLocation* location) {
  API(Initialized, {
    const CUmemPoolHandle_st& p = state().pools.get(pool);
    require(flags != nullptr && location != nullptr);
    check_device(location->id);
    const bool has = location->id == p.device || (p.peers >> location->id & 1) != 0;
    *flags = has ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  });
}

// ---- copies --------------------------------------------------------------------------------------

#define NOW(...) API(HealthyContext, { run_now(c, __VA_ARGS__); })
#define LATER(stream, ...) API(HealthyContext, { enqueue(c, stream, __VA_ARGS__, CU_GRAPH_NODE_TYPE_MEMCPY); })

CUresult cuMemcpy(CUdeviceptr destination, CUdeviceptr source, size_t bytes) {
  NOW(flat_copy(destination, Side::Unified, source, Side::Unified, bytes));
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr destination, const void* source, size_t bytes) {
  NOW(flat_copy(destination, Side::Device, address_of(source), Side::Host, bytes));
}
CUresult cuMemcpyDtoH_v2(void* destination, CUdeviceptr source, size_t bytes) {
  NOW(flat_copy(address_of(destination), Side::Host, source, Side::Device, bytes));
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr destination, CUdeviceptr source, size_t bytes) {
  LATER(nullptr, flat_copy(destination, Side::Device, source, Side::Device, bytes));
}
CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* copy) {
  API(HealthyContext, {
    require(copy != nullptr);
    run_now(c, copy_of(*copy));
  });
}
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* copy) {
  API(HealthyContext, {
    require(copy != nullptr);
    run_now(c, copy_of(*copy));
  });
}
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* copy) {
  API(HealthyContext, {
    require(copy != nullptr);
    run_now(c, copy_of(*copy));
  });
}
CUresult cuMemcpyPeer(CUdeviceptr destination, CUcontext to, CUdeviceptr source, CUcontext from, size_t bytes) {
  API(HealthyContext, {
    live_context(to);
    live_context(from);
    run_now(c, flat_copy(destination, Side::Device, source, Side::Device, bytes));
  });
}

CUresult cuMemcpyAsync(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream) {
  LATER(stream, flat_copy(destination, Side::Unified, source, Side::Unified, bytes));
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr destination, const void* source, size_t bytes, CUstream stream) {
  LATER(stream, flat_copy(destination, Side::Device, address_of(source), Side::Host, bytes));
}
CUresult cuMemcpyDtoHAsync_v2(void* destination, CUdeviceptr source, size_t bytes, CUstream stream) {
  LATER(stream, flat_copy(address_of(destination), Side::Host, source, Side::Device, bytes));
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream) {
  LATER(stream, flat_copy(destination, Side::Device, source, Side::Device, bytes));
}
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
  API(HealthyContext, {
    require(copy != nullptr);
    enqueue(c, stream, copy_of(*copy), CU_GRAPH_NODE_TYPE_MEMCPY);
  });
}
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream) {
  API(HealthyContext, {
    require(copy != nullptr);
    enqueue(c, stream, copy_of(*copy), CU_GRAPH_NODE_TYPE_MEMCPY);
  });
}
CUresult cuMemcpyPeerAsync(CUdeviceptr destination, CUcontext to, CUdeviceptr source, CUcontext from, size_t bytes,
                           CUstream stream) {
  API(HealthyContext, {
    live_context(to);
    live_context(from);
    enqueue(c, stream, flat_copy(destination, Side::Device, source, Side::Device, bytes), CU_GRAPH_NODE_TYPE_MEMCPY);
  });
}

#undef NOW
#undef LATER

PLAIN_NAME(cuMemcpyHtoD, cuMemcpyHtoD_v2);
PLAIN_NAME(cuMemcpyDtoH, cuMemcpyDtoH_v2);
PLAIN_NAME(cuMemcpyDtoD, cuMemcpyDtoD_v2);
PLAIN_NAME(cuMemcpy2D, cuMemcpy2D_v2);
PLAIN_NAME(cuMemcpy2DUnaligned, cuMemcpy2DUnaligned_v2);
PLAIN_NAME(cuMemcpy3D, cuMemcpy3D_v2);
PLAIN_NAME(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2);
PLAIN_NAME(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2);
PLAIN_NAME(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2);
PLAIN_NAME(cuMemcpy2DAsync, cuMemcpy2DAsync_v2);
PLAIN_NAME(cuMemcpy3DAsync, cuMemcpy3DAsync_v2);

// ---- fills ---------------------------------------------------------------------------------------

CUresult cuMemsetD8_v2(CUdeviceptr d, unsigned char v, size_t n) { return set_now(__func__, d, n, v, 1, n, 1); }
CUresult cuMemsetD16_v2(CUdeviceptr d, unsigned short v, size_t n) { return set_now(__func__, d, n * 2, v, 2, n, 1); }
CUresult cuMemsetD32_v2(CUdeviceptr d, unsigned int v, size_t n) { return set_now(__func__, d, n * 4, v, 4, n, 1); }
CUresult cuMemsetD2D8_v2(CUdeviceptr d, size_t pitch, unsigned char v, size_t w, size_t h) {
  return set_now(__func__, d, pitch, v, 1, w, h);
}
CUresult cuMemsetD2D16_v2(CUdeviceptr d, size_t pitch, unsigned short v, size_t w, size_t h) {
  return set_now(__func__, d, pitch, v, 2, w, h);
}
CUresult cuMemsetD2D32_v2(CUdeviceptr d, size_t pitch, unsigned int v, size_t w, size_t h) {
  return set_now(__func__, d, pitch, v, 4, w, h);
}
CUresult cuMemsetD8Async(CUdeviceptr d, unsigned char v, size_t n, CUstream s) {
  return set_later(__func__, d, n, v, 1, n, 1, s);
}
CUresult cuMemsetD16Async(CUdeviceptr d, unsigned short v, size_t n, CUstream s) {
  return set_later(__func__, d, n * 2, v, 2, n, 1, s);
}
CUresult cuMemsetD32Async(CUdeviceptr d, unsigned int v, size_t n, CUstream s) {
  return set_later(__func__, d, n * 4, v, 4, n, 1, s);
}
CUresult cuMemsetD2D8Async(CUdeviceptr d, size_t pitch, unsigned char v, size_t w, size_t h, CUstream s) {
  return set_later(__func__, d, pitch, v, 1, w, h, s);
}
CUresult cuMemsetD2D16Async(CUdeviceptr d, size_t pitch, unsigned short v, size_t w, size_t h, CUstream s) {
  return set_later(__func__, d, pitch, v, 2, w, h, s);
}
CUresult cuMemsetD2D32Async(CUdeviceptr d, size_t pitch, unsigned int v, size_t w, size_t h, CUstream s) {
  return set_later(__func__, d, pitch, v, 4, w, h, s);
}
PLAIN_NAME(cuMemsetD8, cuMemsetD8_v2);
PLAIN_NAME(cuMemsetD16, cuMemsetD16_v2);
PLAIN_NAME(cuMemsetD32, cuMemsetD32_v2);
PLAIN_NAME(cuMemsetD2D8, cuMemsetD2D8_v2);
PLAIN_NAME(cuMemsetD2D16, cuMemsetD2D16_v2);
PLAIN_NAME(cuMemsetD2D32, cuMemsetD2D32_v2);

// ---- managed memory hints --------------------------------------------------------------------------

CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation, unsigned int flags, CUstream stream) {
  API(HealthyContext, {
    require(flags == 0 && bytes > 0);
    check_range(address, bytes, Side::Device);
    require(find_allocation(address)->kind == Allocation::Kind::Managed, CUDA_ERROR_INVALID_VALUE,
            "not managed memory");
    live_stream(c, stream);
  });
}

CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise, CUmemLocation) {
  API(HealthyContext, {
    check_range(address, bytes, Side::Device);
    require(find_allocation(address)->kind == Allocation::Kind::Managed, CUDA_ERROR_INVALID_VALUE,
            "not managed memory");
  });
}

CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t, unsigned int) {
  API(HealthyContext, {
    live_stream(c, stream);
    const Allocation* allocation = find_allocation(address);
    require(allocation != nullptr && allocation->kind == Allocation::Kind::Managed);
  });
}

// ---- attributes of pointers --------------------------------------------------------------------------

namespace {

// Throws when the attribute has no meaning for the address.
void pointer_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  const Allocation* a = find_allocation(address);
  require(a != nullptr, CUDA_ERROR_INVALID_VALUE, "the address belongs to no allocation");
  auto put = [data](auto value) { *static_cast<decltype(value)*>(data) = value; };
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return put(a->context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put(static_cast<unsigned>(is_host(*a) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      require(a->kind != Allocation::Kind::Registered, CUDA_ERROR_INVALID_VALUE, "the device cannot reach it");
      return put(address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      require(is_host(*a) || a->kind == Allocation::Kind::Managed, CUDA_ERROR_INVALID_VALUE,
              "the host cannot reach it");
      return put(reinterpret_cast<void*>(address));
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return put(static_cast<unsigned long long>(a->id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put(static_cast<int>(a->kind == Allocation::Kind::Managed));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put(a->device);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return put(0);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return put(static_cast<CUdeviceptr>(a->address));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return put(static_cast<size_t>(a->bytes));
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put(1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put(0ull);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return put(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put(a->pool);
    default:
      fail(CUDA_ERROR_INVALID_VALUE, "unknown pointer attribute");
  }
}

}  // namespace

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  API(Initialized, {
    require(data != nullptr);
    pointer_attribute(data, attribute, address);
  });
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** data, CUdeviceptr address) {
  API(Initialized, {
    require(count > 0 && attributes != nullptr && data != nullptr);
    const bool known = find_allocation(address) != nullptr;
    for (unsigned i = 0; i < count; ++i) {
      try {
        pointer_attribute(data[i], attributes[i], address);
      } catch (const ApiError&) {
        // An attribute without meaning reads as zero, so that programs can ask whether an address is the device's.
        require(attributes[i] > 0 && attributes[i] <= CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE);
        if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL && !known) {
          *static_cast<int*>(data[i]) = -2;
        } else if (attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ||
                   attributes[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED || attributes[i] == CU_POINTER_ATTRIBUTE_MAPPED) {
          *static_cast<int*>(data[i]) = 0;
        } else {
          *static_cast<void**>(data[i]) = nullptr;
        }
      }
    }
  });
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  API(Initialized, {
    require(value != nullptr && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && find_allocation(address) != nullptr);
  });
}
