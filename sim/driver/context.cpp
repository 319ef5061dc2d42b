// SPDX-License-Identifier: Apache-2.0
// Contexts: the primary one, created ones, which of them is current, and their limits.
#include "sim/driver/context.h"

#include "sim/driver/capture.h"
#include "sim/driver/event.h"
#include "sim/driver/graph_exec.h"
#include "sim/driver/module.h"
#include "sim/driver/queue.h"

namespace sim::driver {

CUctx_st& live_context(CUcontext handle) {
  for (auto& context : state().contexts) {
    if (context.get() != handle) continue;
    require(!context->destroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    return *context;
  }
  fail(CUDA_ERROR_INVALID_CONTEXT);
}

void clear_context(Call& c, CUctx_st& context) {
  State& s = state();
  const CUcontext handle = &context;
  drain(c, context);
  s.modules.each([&](CUmod_st& m) {
    if (m.context != handle) return;
    for (auto& [name, function] : m.functions) s.functions.erase(function.get());
  });
  s.modules.remove_if([&](CUmod_st& m) { return m.context == handle; });
  s.events.remove_if([&](CUevent_st& e) { return e.context == handle; });
  s.streams.remove_if([&](CUstream_st& t) {
    if (t.context != handle) return false;
    if (t.capture) invalidate(*t.capture);
    return true;
  });
  s.graph_execs.remove_if([&](CUgraphExec_st& g) { return g.context == handle; });
  std::vector<uint64_t> owned;
  for (auto& [address, allocation] : s.allocations) {
    if (allocation.context == handle) owned.push_back(address);
  }
  for (uint64_t address : owned) release(address);
  context.heap.reset();
  context.legacy = nullptr;
  context.per_thread.clear();
  context.libraries.clear();
  context.failure = CUDA_SUCCESS;
  context.failure_seen = false;
  context.report.clear();
  for (int owner = 0; context.peers != 0 && owner < s.device_count; ++owner) {
    if (context.peers >> owner & 1) s.memory.enable_peer(context.device, owner, false);
  }
  context.peers = 0;
}

namespace {

constexpr size_t kPrintfFifo = 1 << 20;

CUcontext make_context(int device, unsigned flags, bool primary) {
  State& s = state();
  auto context = std::make_unique<CUctx_st>();
  context->device = device;
  context->primary = primary;
  context->flags = flags;
  context->id = s.next_id++;
  context->limits[CU_LIMIT_STACK_SIZE] = kStackBytes;
  context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = kPrintfFifo;
  context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
  context->limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
  context->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
  context->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
  s.contexts.push_back(std::move(context));
  return s.contexts.back().get();
}

void check_context_flags(unsigned flags) {
  require((flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) == 0, CUDA_ERROR_INVALID_VALUE, "unknown context flags");
  const unsigned schedule = flags & CU_CTX_SCHED_MASK;
  require(schedule == CU_CTX_SCHED_AUTO || schedule == CU_CTX_SCHED_SPIN || schedule == CU_CTX_SCHED_YIELD ||
          schedule == CU_CTX_SCHED_BLOCKING_SYNC);
}

CUresult create(const char* function, CUcontext* result, unsigned flags, CUdevice device) {
  return call(function, Call::Needs::Initialized, [&](Call&) {
    require(result != nullptr);
    check_device(device);
    check_context_flags(flags);
    *result = make_context(device, flags, false);
    context_stack().push_back(*result);
  });
}

// The device's own part of the state.
DeviceSlot& slot_of(CUdevice device) {
  check_device(device);
  return state().devices[static_cast<size_t>(device)];
}

}  // namespace
}  // namespace sim::driver

using namespace sim::driver;

CUresult cuDevicePrimaryCtxRetain(CUcontext* result, CUdevice device) {
  API(Initialized, {
    require(result != nullptr);
    DeviceSlot& slot = slot_of(device);
    if (slot.primary == nullptr) slot.primary = make_context(device, slot.primary_flags, true);
    slot.primary->destroyed = false;
    ++slot.primary_count;
    *result = slot.primary;
  });
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  API(Initialized, {
    DeviceSlot& slot = slot_of(device);
    require(slot.primary_count > 0, CUDA_ERROR_INVALID_CONTEXT, "the primary context is not retained");
    if (--slot.primary_count > 0) return;
    clear_context(c, *slot.primary);
    slot.primary->destroyed = true;
  });
}
PLAIN_NAME(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2);

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  API(Initialized, {
    DeviceSlot& slot = slot_of(device);
    if (slot.primary != nullptr) clear_context(c, *slot.primary);
  });
}
PLAIN_NAME(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2);

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
  API(Initialized, {
    DeviceSlot& slot = slot_of(device);
    check_context_flags(flags);
    slot.primary_flags = flags;
    if (slot.primary != nullptr) slot.primary->flags = flags;
  });
}
PLAIN_NAME(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2);

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  API(Initialized, {
    const DeviceSlot& slot = slot_of(device);
    if (flags != nullptr) *flags = slot.primary_flags;
    if (active != nullptr) *active = slot.primary_count > 0;
  });
}

CUresult cuCtxCreate_v4(CUcontext* result, CUctxCreateParams* params, unsigned int flags, CUdevice device) {
  if (params != nullptr && (params->numExecAffinityParams != 0 || params->cigParams != nullptr)) {
    API(Initialized, { fail(CUDA_ERROR_NOT_SUPPORTED, "execution affinity and graphics in a context"); });
  }
  return create(__func__, result, flags, device);
}

CUresult cuCtxCreate_v3(CUcontext* result, CUexecAffinityParam*, int count, unsigned int flags, CUdevice device) {
  if (count != 0) API(Initialized, { fail(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY); });
  return create(__func__, result, flags, device);
}

CUresult cuCtxCreate_v2(CUcontext* result, unsigned int flags, CUdevice device) {
  return create(__func__, result, flags, device);
}
CUresult cuCtxCreate(CUcontext* result, unsigned int flags, CUdevice device) {
  return create(__func__, result, flags, device);
}

CUresult cuCtxDestroy_v2(CUcontext handle) {
  API(Initialized, {
    CUctx_st& context = live_context(handle);
    require(!context.primary, CUDA_ERROR_INVALID_CONTEXT, "the primary context is released, not destroyed");
    clear_context(c, context);
    context.destroyed = true;
    auto& stack = context_stack();
    if (!stack.empty() && stack.back() == handle) stack.pop_back();
  });
}
PLAIN_NAME(cuCtxDestroy, cuCtxDestroy_v2);

CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  API(Initialized, { context_stack().push_back(&live_context(handle)); });
}
PLAIN_NAME(cuCtxPushCurrent, cuCtxPushCurrent_v2);

CUresult cuCtxPopCurrent_v2(CUcontext* result) {
  API(Initialized, {
    auto& stack = context_stack();
    require(!stack.empty(), CUDA_ERROR_INVALID_CONTEXT, "no context is current to the calling thread");
    if (result != nullptr) *result = stack.back();
    stack.pop_back();
  });
}
PLAIN_NAME(cuCtxPopCurrent, cuCtxPopCurrent_v2);

CUresult cuCtxSetCurrent(CUcontext handle) {
  API(Initialized, {
    auto& stack = context_stack();
    CUcontext next = handle == nullptr ? nullptr : &live_context(handle);
    if (!stack.empty()) stack.pop_back();
    if (next != nullptr) stack.push_back(next);
  });
}

CUresult cuCtxGetCurrent(CUcontext* result) {
  API(Initialized, {
    require(result != nullptr);
    *result = context_stack().empty() ? nullptr : context_stack().back();
  });
}

CUresult cuCtxGetDevice(CUdevice* device) {
  API(Context, {
    require(device != nullptr);
    *device = c.context().device;
  });
}

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext handle) {
  API(Initialized, {
    require(device != nullptr);
    require(handle != nullptr || c.has_context(), CUDA_ERROR_INVALID_CONTEXT);
    *device = live_context(handle != nullptr ? handle : &c.context()).device;
  });
}

CUresult cuCtxGetFlags(unsigned int* flags) {
  API(Context, {
    require(flags != nullptr);
    *flags = c.context().flags;
  });
}

CUresult cuCtxSetFlags(unsigned int flags) {
  API(Context, {
    check_context_flags(flags);
    c.context().flags = flags;
  });
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
  API(Initialized, {
    require(id != nullptr);
    require(handle != nullptr || c.has_context(), CUDA_ERROR_INVALID_CONTEXT);
    *id = live_context(handle != nullptr ? handle : &c.context()).id;
  });
}

CUresult cuCtxSynchronize() {
  API(HealthyContext, {
    forbid_synchronization_in_capture(c.context());
    synchronizing_call(c);
  });
}

CUresult cuCtxSynchronize_v2(CUcontext handle) {
  API(Initialized, {
    require(handle != nullptr || c.has_context(), CUDA_ERROR_INVALID_CONTEXT);
    CUctx_st& context = live_context(handle != nullptr ? handle : &c.context());
    forbid_synchronization_in_capture(context);
    synchronize_context(c, context);
  });
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int* version) {
  API(Initialized, {
    require(version != nullptr);
    if (handle != nullptr) live_context(handle);
    *version = 3020;  // Drivers have answered this since CUDA 3.2.
  });
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  API(HealthyContext, {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
  });
}

CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
  API(HealthyContext, {
    require(value != nullptr);
    require(limit >= 0 && limit < CU_LIMIT_CIG_ENABLED, CUDA_ERROR_UNSUPPORTED_LIMIT);
    *value = c.context().limits[limit];
  });
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  API(HealthyContext, {
    require(limit >= 0 && limit < CU_LIMIT_SHMEM_SIZE, CUDA_ERROR_UNSUPPORTED_LIMIT);
    if (limit == CU_LIMIT_STACK_SIZE) require(value <= 512 * 1024);
    if (limit == CU_LIMIT_MAX_L2_FETCH_GRANULARITY) require(value <= 128);
    c.context().limits[limit] = value;
  });
}

CUresult cuCtxGetCacheConfig(CUfunc_cache* config) {
  API(HealthyContext, {
    require(config != nullptr);
    *config = CU_FUNC_CACHE_PREFER_NONE;
  });
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
  API(HealthyContext, { require(config >= CU_FUNC_CACHE_PREFER_NONE && config <= CU_FUNC_CACHE_PREFER_EQUAL); });
}

CUresult cuCtxResetPersistingL2Cache() { API(HealthyContext, {}); }

// ---- peers -----------------------------------------------------------------------------------------

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
  API(HealthyContext, {
    CUctx_st& context = c.context();
    const int owner = live_context(peer).device;
    require(flags == 0, CUDA_ERROR_INVALID_VALUE, "cuCtxEnablePeerAccess takes no flags");
    require(owner != context.device, CUDA_ERROR_INVALID_DEVICE, "a device is no peer of itself");
    require(!(context.peers >> owner & 1), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    context.peers |= uint64_t{1} << owner;
    state().memory.enable_peer(context.device, owner, true);
  });
}

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  API(HealthyContext, {
    CUctx_st& context = c.context();
    const int owner = live_context(peer).device;
    require(context.peers >> owner & 1, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    synchronizing_call(c);
    context.peers &= ~(uint64_t{1} << owner);
    state().memory.enable_peer(context.device, owner, false);
  });
}
