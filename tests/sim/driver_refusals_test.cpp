// SPDX-License-Identifier: Apache-2.0
// What the driver refuses: for each bad argument the CUresult that the CUDA driver API documents, and the line that
// CUDA_LOG_FILE gets. Beside a limit stands what is just within it.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>

#include "tests/sim/refusals.h"

namespace sim_test {
namespace {

TEST_F(SimRefusals, Device) {
  int number = 0;
  CUdevice device = 0;
  char text[64];
  size_t bytes = 0;
  CUuuid id;
  CUdevprop properties;
  CUmemoryPool pool = nullptr;
  REFUSED(kInvalidValue, "", cuInit, 1u);
  REFUSED(kInvalidValue, "", cuDriverGetVersion, nullptr);
  REFUSED(kInvalidValue, "", cuDeviceGetCount, nullptr);
  REFUSED(kInvalidValue, "", cuDeviceGet, nullptr, 0);
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuDeviceGet, &device, 1);
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuDeviceGet, &device, -1);
  REFUSED(kInvalidValue, "", cuDeviceGetName, nullptr, 1, 0);
  REFUSED(kInvalidValue, "", cuDeviceGetName, text, 0, 0);
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuDeviceGetName, text, 64, 1);
  REFUSED(kInvalidValue, "", cuDeviceGetUuid, nullptr, 0);
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuDeviceGetUuid, &id, 1);
  REFUSED(kInvalidValue, "", cuDeviceTotalMem, nullptr, 0);
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuDeviceTotalMem, &bytes, 1);
  REFUSED(kInvalidValue, "", cuDeviceGetAttribute, nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0);
  REFUSED(kInvalidValue, "", cuDeviceGetAttribute, &number, static_cast<CUdevice_attribute>(0), 0);
  REFUSED(kInvalidValue, "", cuDeviceGetAttribute, &number, CU_DEVICE_ATTRIBUTE_MAX, 0);
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuDeviceGetAttribute, &number, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 1);
  REFUSED(kInvalidValue, "", cuDeviceComputeCapability, nullptr, &number, 0);
  REFUSED(kInvalidValue, "", cuDeviceComputeCapability, &number, nullptr, 0);
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuDeviceComputeCapability, &number, &number, 1);
  REFUSED(kInvalidValue, "", cuDeviceGetProperties, nullptr, 0);
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuDeviceGetProperties, &properties, 1);
  REFUSED(kInvalidValue, "", cuDeviceGetPCIBusId, nullptr, 13, 0);
  REFUSED(kInvalidValue, "", cuDeviceGetPCIBusId, text, 0, 0);
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuDeviceGetPCIBusId, text, 13, 1);
  REFUSED(kInvalidValue, "", cuDeviceGetByPCIBusId, nullptr, "0000:00:00.0");
  REFUSED(kInvalidValue, "", cuDeviceGetByPCIBusId, &device, nullptr);
  REFUSED(CUDA_ERROR_INVALID_DEVICE, "", cuDeviceGetByPCIBusId, &device, "0000:01:00.0");
  REFUSED(kInvalidValue, "", cuDeviceCanAccessPeer, nullptr, 0, 0);
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuDeviceCanAccessPeer, &number, 1, 0);
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuDeviceCanAccessPeer, &number, 0, 1);
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuDeviceGetDefaultMemPool, &pool, 1);
  REFUSED(kInvalidValue, "", cuDeviceGetDefaultMemPool, nullptr, 0);
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuDeviceGetMemPool, &pool, 1);
  REFUSED(kInvalidValue, "", cuDeviceGetMemPool, nullptr, 0);
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuDeviceSetMemPool, 1, pool);
  REFUSED(CUDA_ERROR_INVALID_HANDLE, "", cuDeviceSetMemPool, 0, stale<CUmemoryPool>());
}

TEST_F(SimRefusals, Contexts) {
  CUcontext made = nullptr;
  REFUSED(kInvalidValue, "", cuDevicePrimaryCtxRetain, nullptr, 0);
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuDevicePrimaryCtxRetain, &made, 1);
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuDevicePrimaryCtxRelease, 1);
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuDevicePrimaryCtxReset, 1);
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuDevicePrimaryCtxSetFlags, 1, 0u);
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuDevicePrimaryCtxGetState, 1, nullptr, nullptr);
  REFUSED(kInvalidValue, "unknown context flags", cuDevicePrimaryCtxSetFlags, 0, 0x100u);
  REFUSED(kInvalidValue, "", cuCtxCreate, nullptr, nullptr, 0u, 0);
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuCtxCreate, &made, nullptr, 0u, 1);
  REFUSED(kInvalidValue, "unknown context flags", cuCtxCreate, &made, nullptr, 0x100u, 0);
  REFUSED(kInvalidValue, "", cuCtxCreate, &made, nullptr, 3u, 0);
  CUctxCreateParams params{};
  params.numExecAffinityParams = 1;
  REFUSED(CUDA_ERROR_NOT_SUPPORTED, "execution affinity and graphics in a context", cuCtxCreate, &made, &params, 0u, 0);
  CUctxCigParam graphics{};
  params = {};
  params.cigParams = &graphics;
  REFUSED(CUDA_ERROR_NOT_SUPPORTED, "execution affinity and graphics in a context", cuCtxCreate, &made, &params, 0u, 0);
  const auto third = symbol<CUresult (*)(CUcontext*, CUexecAffinityParam*, int, unsigned, CUdevice)>("cuCtxCreate_v3");
  CUexecAffinityParam affinity{};
  refused(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, "", "cuCtxCreate_v3", third, &made, &affinity, 1, 0u, 0);
  refused(kInvalidValue, "unknown context flags", "cuCtxCreate_v3", third, &made, nullptr, 0, 0x100u, 0);
  for (const char* name : {"cuCtxCreate", "cuCtxCreate_v2"}) {
    const auto second = symbol<CUresult (*)(CUcontext*, unsigned, CUdevice)>(name);
    refused(kInvalidValue, "unknown context flags", name, second, &made, 0x100u, 0);
    OK(second(&made, CU_CTX_SCHED_YIELD, 0));
    unsigned flags = 0;
    OK(CU(cuCtxGetFlags)(&flags));
    EXPECT_EQ(flags, CU_CTX_SCHED_YIELD);
    OK(CU(cuCtxDestroy)(made));
  }
  OK(third(&made, nullptr, 0, 0, 0));
  OK(CU(cuCtxDestroy)(made));
  params = {};
  OK(CU(cuCtxCreate)(&made, &params, 0, 0));
  OK(CU(cuCtxDestroy)(made));

  REFUSED(CUDA_ERROR_INVALID_CONTEXT, "the primary context is released, not destroyed", cuCtxDestroy, context);
  REFUSED(CUDA_ERROR_CONTEXT_IS_DESTROYED, "", cuCtxDestroy, made);
  REFUSED(CUDA_ERROR_INVALID_CONTEXT, "", cuCtxDestroy, stale<CUcontext>());
  REFUSED(CUDA_ERROR_CONTEXT_IS_DESTROYED, "", cuCtxPushCurrent, made);
  REFUSED(CUDA_ERROR_INVALID_CONTEXT, "", cuCtxPushCurrent, nullptr);
  REFUSED(CUDA_ERROR_CONTEXT_IS_DESTROYED, "", cuCtxSetCurrent, made);
  REFUSED(CUDA_ERROR_INVALID_CONTEXT, "", cuCtxSetCurrent, stale<CUcontext>());
  CUcontext now = nullptr;
  OK(CU(cuCtxGetCurrent)(&now));
  EXPECT_EQ(now, context) << "a refused context leaves the current one";
  CUdevice device = 1;
  unsigned flags = 0;
  unsigned long long id = 0;
  REFUSED(kInvalidValue, "", cuCtxGetCurrent, nullptr);
  REFUSED(kInvalidValue, "", cuCtxGetFlags, nullptr);
  REFUSED(kInvalidValue, "unknown context flags", cuCtxSetFlags, 0x100u);
  REFUSED(kInvalidValue, "", cuCtxGetId, nullptr, nullptr);
  REFUSED(CUDA_ERROR_CONTEXT_IS_DESTROYED, "", cuCtxGetId, made, &id);
  REFUSED(kInvalidValue, "", cuCtxGetApiVersion, nullptr, nullptr);
  REFUSED(CUDA_ERROR_CONTEXT_IS_DESTROYED, "", cuCtxGetApiVersion, made, &flags);
  const auto device_of = symbol<CUresult (*)(CUdevice*, CUcontext)>("cuCtxGetDevice_v2");
  refused(kInvalidValue, "", "cuCtxGetDevice_v2", device_of, nullptr, context);
  refused(CUDA_ERROR_CONTEXT_IS_DESTROYED, "", "cuCtxGetDevice_v2", device_of, &device, made);
  const auto synchronize = symbol<CUresult (*)(CUcontext)>("cuCtxSynchronize_v2");
  refused(CUDA_ERROR_CONTEXT_IS_DESTROYED, "", "cuCtxSynchronize_v2", synchronize, made);

  // A stack holds 256 contexts.
  for (int i = 1; i < 256; ++i) OK(CU(cuCtxPushCurrent)(context));
  REFUSED(CUDA_ERROR_OUT_OF_MEMORY, "256 contexts are pushed by this thread already", cuCtxPushCurrent, context);
  for (int i = 0; i < 256; ++i) {
    now = nullptr;
    OK(CU(cuCtxPopCurrent)(i % 2 == 0 ? &now : nullptr));
    EXPECT_EQ(now, i % 2 == 0 ? context : nullptr);
  }
  REFUSED(CUDA_ERROR_INVALID_CONTEXT, kNoContext, cuCtxPopCurrent, nullptr);

  // Nothing is current now. What needs a context says so, and the rest answers.
  OK(CU(cuCtxGetCurrent)(&now));
  EXPECT_EQ(now, nullptr);
  const auto current_device = symbol<CUresult (*)(CUdevice*)>("cuCtxGetDevice");
  refused(CUDA_ERROR_INVALID_CONTEXT, kNoContext, "cuCtxGetDevice", current_device, &device);
  refused(CUDA_ERROR_INVALID_CONTEXT, "", "cuCtxGetDevice_v2", device_of, &device, nullptr);
  refused(CUDA_ERROR_INVALID_CONTEXT, "", "cuCtxSynchronize_v2", synchronize, nullptr);
  REFUSED(CUDA_ERROR_INVALID_CONTEXT, "", cuCtxGetId, nullptr, &id);
  REFUSED(CUDA_ERROR_INVALID_CONTEXT, kNoContext, cuCtxGetFlags, &flags);
  REFUSED(CUDA_ERROR_INVALID_CONTEXT, kNoContext, cuCtxSetFlags, 0u);
  for (const char* name : {"cuProfilerStart", "cuProfilerStop"})
    refused(CUDA_ERROR_INVALID_CONTEXT, kNoContext, name, symbol<CUresult (*)()>(name));
  CUtensorMap map;
  cuuint64_t one = 16;
  cuuint32_t small = 16;
  REFUSED(CUDA_ERROR_INVALID_CONTEXT, kNoContext, cuTensorMapEncodeTiled, &map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1u, &map,
          &one, &one, &small, &small, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
          CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  OK(device_of(&device, context));
  EXPECT_EQ(device, 0);
  OK(CU(cuCtxGetId)(context, &id));
  OK(synchronize(context));
  OK(CU(cuCtxGetApiVersion)(nullptr, &flags));
  OK(CU(cuCtxSetCurrent)(context));
  unsigned long long same = 0;
  OK(CU(cuCtxGetId)(nullptr, &same));
  EXPECT_EQ(same, id);
  device = 1;
  OK(current_device(&device));
  EXPECT_EQ(device, 0);
  device = 1;
  OK(device_of(&device, nullptr));
  EXPECT_EQ(device, 0);
  refused(kInvalidValue, "", "cuCtxGetDevice", current_device, nullptr);
  OK(synchronize(nullptr));
  for (const char* name : {"cuProfilerStart", "cuProfilerStop"}) OK(symbol<CUresult (*)()>(name)());
}

TEST_F(SimRefusals, LimitsAndCaches) {
  size_t value = 0;
  REFUSED(kInvalidValue, "", cuCtxGetLimit, nullptr, CU_LIMIT_STACK_SIZE);
  for (CUlimit limit : {static_cast<CUlimit>(-1), CU_LIMIT_CIG_ENABLED, CU_LIMIT_MAX})
    REFUSED(CUDA_ERROR_UNSUPPORTED_LIMIT, "", cuCtxGetLimit, &value, limit);
  for (CUlimit limit : {static_cast<CUlimit>(-1), CU_LIMIT_SHMEM_SIZE, CU_LIMIT_CIG_ENABLED, CU_LIMIT_MAX})
    REFUSED(CUDA_ERROR_UNSUPPORTED_LIMIT, "", cuCtxSetLimit, limit, size_t{0});
  // The stack is the simulator's own (docs/simulator.md), the heap and the launches are those of the programming guide.
  struct Limit {
    CUlimit limit;
    size_t first, most;
  };
  for (const auto& [limit, first, most] :
       {Limit{CU_LIMIT_STACK_SIZE, 64 << 10, 512 << 10}, Limit{CU_LIMIT_PRINTF_FIFO_SIZE, 1 << 20, 1 << 30},
        Limit{CU_LIMIT_MALLOC_HEAP_SIZE, 8 << 20, 1 << 30}, Limit{CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 2, 24},
        Limit{CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, 2048, 1 << 20},
        Limit{CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 64, 128}, Limit{CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0, 1 << 20}}) {
    CUcontext made = create();
    OK(CU(cuCtxGetLimit)(&value, limit));
    EXPECT_EQ(value, first) << limit;
    OK(CU(cuCtxSetLimit)(limit, most));
    OK(CU(cuCtxGetLimit)(&value, limit));
    EXPECT_EQ(value, most) << limit;
    OK(CU(cuCtxDestroy)(made));
  }
  REFUSED(kInvalidValue, "", cuCtxSetLimit, CU_LIMIT_STACK_SIZE, size_t{512 * 1024 + 1});
  REFUSED(kInvalidValue, "", cuCtxSetLimit, CU_LIMIT_MAX_L2_FETCH_GRANULARITY, size_t{129});
  OK(CU(cuCtxGetLimit)(&value, CU_LIMIT_SHMEM_SIZE));
  OK(CU(cuCtxResetPersistingL2Cache)());

  CUfunc_cache config = CU_FUNC_CACHE_PREFER_L1;
  REFUSED(kInvalidValue, "", cuCtxGetCacheConfig, nullptr);
  OK(CU(cuCtxGetCacheConfig)(&config));
  EXPECT_EQ(config, CU_FUNC_CACHE_PREFER_NONE) << "shared memory and cache are not apart here";
  CUfunction f = function("bounded");
  for (int wrong : {-1, 4}) {
    REFUSED(kInvalidValue, "", cuCtxSetCacheConfig, static_cast<CUfunc_cache>(wrong));
    REFUSED(kInvalidValue, "", cuFuncSetCacheConfig, f, static_cast<CUfunc_cache>(wrong));
  }
  for (int right = CU_FUNC_CACHE_PREFER_NONE; right <= CU_FUNC_CACHE_PREFER_EQUAL; ++right) {
    OK(CU(cuCtxSetCacheConfig)(static_cast<CUfunc_cache>(right)));
    OK(CU(cuFuncSetCacheConfig)(f, static_cast<CUfunc_cache>(right)));
  }
  REFUSED(CUDA_ERROR_INVALID_HANDLE, "not a live function", cuFuncSetCacheConfig, stale<CUfunction>(),
          CU_FUNC_CACHE_PREFER_NONE);
  int least = 1, greatest = 1;
  OK(CU(cuCtxGetStreamPriorityRange)(&least, &greatest));
  EXPECT_EQ(least, 0);
  EXPECT_EQ(greatest, -5);
  OK(CU(cuCtxGetStreamPriorityRange)(nullptr, nullptr));
}

TEST_F(SimRefusals, ContextFlagsAreKept) {
  unsigned flags = 99;
  int active = 0;
  OK(CU(cuDevicePrimaryCtxSetFlags)(0, CU_CTX_SCHED_BLOCKING_SYNC | CU_CTX_MAP_HOST));
  OK(CU(cuDevicePrimaryCtxGetState)(0, &flags, &active));
  EXPECT_EQ(flags, unsigned{CU_CTX_SCHED_BLOCKING_SYNC | CU_CTX_MAP_HOST});
  EXPECT_EQ(active, 1);
  OK(CU(cuDevicePrimaryCtxGetState)(0, nullptr, nullptr));
  OK(CU(cuCtxGetFlags)(&flags));
  EXPECT_EQ(flags, unsigned{CU_CTX_SCHED_BLOCKING_SYNC | CU_CTX_MAP_HOST});
  OK(CU(cuDevicePrimaryCtxSetFlags)(0, 0));
  for (unsigned mode : {CU_CTX_SCHED_AUTO, CU_CTX_SCHED_SPIN, CU_CTX_SCHED_YIELD, CU_CTX_SCHED_BLOCKING_SYNC}) {
    OK(CU(cuCtxSetFlags)(mode));
    OK(CU(cuCtxGetFlags)(&flags));
    EXPECT_EQ(flags, mode);
  }
  for (unsigned mode : {3u, 5u, 6u, 7u}) REFUSED(kInvalidValue, "", cuCtxSetFlags, mode);
  OK(CU(cuCtxSetFlags)(CU_CTX_FLAGS_MASK & ~unsigned{CU_CTX_SCHED_MASK}));
  OK(CU(cuCtxSetFlags)(0));
  unsigned version = 0;
  OK(CU(cuCtxGetApiVersion)(context, &version));
  EXPECT_EQ(version, 3020u);  // What drivers have answered since CUDA 3.2.
}

// A primary context that nobody retains is inactive and empty. A handle to it stays good when it is retained again.
TEST_F(SimRefusals, AReleasedPrimaryContextIsGone) {
  CUdeviceptr memory = allocate(64);
  int active = 1;
  for (int i = 0; i < 1000 && active != 0; ++i) {  // Tests before this one may have kept it.
    OK(CU(cuDevicePrimaryCtxRelease)(0));
    OK(CU(cuDevicePrimaryCtxGetState)(0, nullptr, &active));
  }
  EXPECT_EQ(active, 0);
  REFUSED(CUDA_ERROR_INVALID_CONTEXT, "the primary context is not retained", cuDevicePrimaryCtxRelease, 0);
  CUdeviceptr p = 0;
  REFUSED(CUDA_ERROR_CONTEXT_IS_DESTROYED, "", cuMemAlloc, &p, size_t{4});
  CUcontext again = nullptr;
  OK(CU(cuDevicePrimaryCtxRetain)(&again, 0));
  EXPECT_EQ(again, context);
  uint32_t word = 0;
  EXPECT_EQ(kInvalidValue, CU(cuMemcpyDtoH)(&word, memory, 4)) << "its memory went with the context";
  OK(CU(cuMemAlloc)(&p, 4));
  OK(CU(cuDevicePrimaryCtxRetain)(&again, 0));
  OK(CU(cuDevicePrimaryCtxRelease)(0));
  OK(CU(cuMemcpyDtoH)(&word, p, 4)) << "somebody still retains it";
}

TEST_F(SimRefusals, Allocations) {
  CUdeviceptr p = 0;
  size_t pitch = 0, bytes = 0;
  void* host = nullptr;
  unsigned flags = 0;
  REFUSED(kInvalidValue, "", cuMemGetInfo, nullptr, &bytes);
  REFUSED(kInvalidValue, "", cuMemGetInfo, &bytes, nullptr);
  REFUSED(kInvalidValue, "", cuMemAlloc, nullptr, size_t{4});
  REFUSED(kInvalidValue, "an allocation of 0 bytes", cuMemAlloc, &p, size_t{0});
  OK(CU(cuMemGetInfo)(&bytes, &pitch));
  REFUSED(CUDA_ERROR_OUT_OF_MEMORY,
          std::to_string(size_t{1} << 60) + " bytes asked for, " + std::to_string(bytes) + " free", cuMemAlloc, &p,
          size_t{1} << 60);

  // Rows begin at multiples of 512 bytes. The widest is the MAX_PITCH of the device.
  REFUSED(kInvalidValue, "", cuMemAllocPitch, nullptr, &pitch, size_t{1}, size_t{1}, 4u);
  REFUSED(kInvalidValue, "", cuMemAllocPitch, &p, nullptr, size_t{1}, size_t{1}, 4u);
  REFUSED(kInvalidValue, "", cuMemAllocPitch, &p, &pitch, size_t{0}, size_t{1}, 4u);
  REFUSED(kInvalidValue, "", cuMemAllocPitch, &p, &pitch, size_t{1}, size_t{0}, 4u);
  REFUSED(kInvalidValue, "", cuMemAllocPitch, &p, &pitch, size_t{0x80000000}, size_t{1}, 4u);
  REFUSED(kInvalidValue, "", cuMemAllocPitch, &p, &pitch, size_t{512}, (size_t{1} << 39) + 1, 4u);
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, CU(cuMemAllocPitch)(&p, &pitch, 512, size_t{1} << 39, 4));
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, CU(cuMemAllocPitch)(&p, &pitch, 0x7fffffff, 1 << 12, 4));
  for (unsigned element : {0u, 1u, 2u, 3u, 5u, 7u, 9u, 12u, 15u, 17u, 32u})
    REFUSED(kInvalidValue, "ElementSizeBytes is 4, 8 or 16", cuMemAllocPitch, &p, &pitch, size_t{1}, size_t{1},
            element);
  struct Pitch {
    size_t width, pitch;
    unsigned element;
  };
  for (const auto& [width, expected, element] :
       {Pitch{1, 512, 4}, Pitch{511, 512, 8}, Pitch{512, 512, 16}, Pitch{513, 1024, 4}}) {
    OK(CU(cuMemAllocPitch)(&p, &pitch, width, 3, element));
    EXPECT_EQ(pitch, expected);
    OK(CU(cuMemGetAddressRange)(nullptr, &bytes, p));
    EXPECT_EQ(bytes, 3 * expected);
    OK(CU(cuMemFree)(p));
  }

  constexpr const char* kNoStart = "not the start of a live device allocation";
  p = allocate(64);
  REFUSED(kInvalidValue, kNoStart, cuMemFree, p + 1);
  REFUSED(kInvalidValue, kNoStart, cuMemFree, p + 64);
  REFUSED(CUDA_ERROR_NOT_FOUND, "", cuMemGetAddressRange, nullptr, nullptr, p + 64);
  REFUSED(CUDA_ERROR_NOT_FOUND, "", cuMemGetAddressRange, nullptr, nullptr, CUdeviceptr{1});
  CUdeviceptr base = 0;
  OK(CU(cuMemGetAddressRange)(&base, nullptr, p + 63));
  EXPECT_EQ(base, p);
  REFUSED(kInvalidValue, kNoStart, cuMemFreeAsync, p + 1, nullptr);
  REFUSED(CUDA_ERROR_INVALID_HANDLE, "", cuMemFreeAsync, p, stale<CUstream>());
  OK(CU(cuMemFreeAsync)(0, nullptr));

  REFUSED(kInvalidValue, "", cuMemAllocHost, nullptr, size_t{4});
  REFUSED(kInvalidValue, "", cuMemHostAlloc, nullptr, size_t{4}, 0u);
  REFUSED(kInvalidValue, "an allocation of 0 bytes", cuMemHostAlloc, &host, size_t{0}, 0u);
  REFUSED(kInvalidValue, "unknown host allocation flags", cuMemHostAlloc, &host, size_t{4}, 8u);
  OK(CU(cuMemHostAlloc)(&host, 64,
                        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED));
  OK(CU(cuMemHostGetFlags)(&flags, host));
  EXPECT_EQ(flags, 7u);
  void* plain = nullptr;
  OK(CU(cuMemAllocHost)(&plain, 64));
  OK(CU(cuMemHostGetFlags)(&flags, plain));
  EXPECT_EQ(flags, 0u);
  const auto inside = static_cast<char*>(host) + 8;
  constexpr const char* kNoHostStart = "not the start of live page-locked memory";
  REFUSED(kInvalidValue, kNoHostStart, cuMemFreeHost, inside);
  REFUSED(kInvalidValue, kNoHostStart, cuMemFreeHost, nullptr);
  REFUSED(kInvalidValue, kNoHostStart, cuMemFreeHost, reinterpret_cast<void*>(p));
  REFUSED(kInvalidValue, kNoStart, cuMemFree, reinterpret_cast<CUdeviceptr>(host));
  REFUSED(kInvalidValue, kNoStart, cuMemFreeAsync, reinterpret_cast<CUdeviceptr>(host), nullptr);
  REFUSED(kInvalidValue, "", cuMemHostGetFlags, nullptr, host);
  REFUSED(kInvalidValue, "", cuMemHostGetFlags, &flags, &flags);
  REFUSED(kInvalidValue, "", cuMemHostGetFlags, &flags, reinterpret_cast<void*>(p));
  REFUSED(kInvalidValue, "", cuMemHostGetDevicePointer, nullptr, host, 0u);
  REFUSED(kInvalidValue, "", cuMemHostGetDevicePointer, &p, host, 1u);
  REFUSED(kInvalidValue, "not page-locked memory", cuMemHostGetDevicePointer, &base, &flags, 0u);
  REFUSED(kInvalidValue, "not page-locked memory", cuMemHostGetDevicePointer, &base, reinterpret_cast<void*>(p), 0u);
  OK(CU(cuMemHostGetDevicePointer)(&base, inside, 0));
  EXPECT_EQ(base, reinterpret_cast<CUdeviceptr>(inside));

  REFUSED(kInvalidValue, "", cuMemAllocManaged, nullptr, size_t{4}, unsigned{CU_MEM_ATTACH_GLOBAL});
  for (unsigned wrong : {0u, 3u, 4u}) REFUSED(kInvalidValue, "", cuMemAllocManaged, &p, size_t{4}, wrong);
  CUdeviceptr managed = 0;
  OK(CU(cuMemAllocManaged)(&managed, 64, CU_MEM_ATTACH_HOST));
  CUmemLocation location{};
  const auto none = static_cast<CUmem_advise>(0);
  REFUSED(kInvalidValue, "not managed memory", cuMemPrefetchAsync, p, size_t{4}, location, 0u, nullptr);
  REFUSED(kInvalidValue, "", cuMemPrefetchAsync, managed, size_t{4}, location, 1u, nullptr);
  REFUSED(kInvalidValue, "", cuMemPrefetchAsync, managed, size_t{0}, location, 0u, nullptr);
  REFUSED(CUDA_ERROR_INVALID_HANDLE, "", cuMemPrefetchAsync, managed, size_t{4}, location, 0u, stale<CUstream>());
  REFUSED(kInvalidValue, "65 bytes at offset 0 of an allocation of 64 bytes", cuMemPrefetchAsync, managed, size_t{65},
          location, 0u, nullptr);
  OK(CU(cuMemPrefetchAsync)(managed, 64, location, 0, nullptr));
  REFUSED(kInvalidValue, "not managed memory", cuMemAdvise, p, size_t{4}, none, location);
  REFUSED(kInvalidValue, "4 bytes at offset 61 of an allocation of 64 bytes", cuMemAdvise, managed + 61, size_t{4},
          none, location);
  OK(CU(cuMemAdvise)(managed, 64, none, location));
  REFUSED(CUDA_ERROR_INVALID_HANDLE, "", cuStreamAttachMemAsync, stale<CUstream>(), managed, size_t{64}, 1u);
  REFUSED(kInvalidValue, "", cuStreamAttachMemAsync, nullptr, p, size_t{64}, 1u);
  REFUSED(kInvalidValue, "", cuStreamAttachMemAsync, nullptr, CUdeviceptr{1}, size_t{64}, 1u);
  OK(CU(cuStreamAttachMemAsync)(nullptr, managed, 64, CU_MEM_ATTACH_GLOBAL));
}

TEST_F(SimRefusals, RegisteredMemory) {
  alignas(64) static std::array<uint32_t, 64> mine{};
  char* const begin = reinterpret_cast<char*>(mine.data());
  REFUSED(kInvalidValue, "", cuMemHostRegister, nullptr, size_t{4}, 0u);
  REFUSED(kInvalidValue, "", cuMemHostRegister, begin, size_t{0}, 0u);
  REFUSED(kInvalidValue, "", cuMemHostRegister, begin, ~size_t{0}, 0u);
  REFUSED(kInvalidValue, "unknown registration flags", cuMemHostRegister, begin, size_t{4}, 16u);
  for (unsigned flag : {CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_IOMEMORY})
    REFUSED(CUDA_ERROR_NOT_SUPPORTED, "registered memory is not mapped into the device", cuMemHostRegister, begin,
            size_t{4}, flag);
  OK(CU(cuMemHostRegister)(begin + 64, 64, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_READ_ONLY));
  // It may neither begin nor end in what is registered.
  for (size_t at : {size_t{1}, size_t{32}, size_t{64}, size_t{100}, size_t{127}})
    REFUSED(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "", cuMemHostRegister, begin + at, size_t{64}, 0u);
  OK(CU(cuMemHostRegister)(begin, 64, 0));
  OK(CU(cuMemHostRegister)(begin + 128, 64, 0));
  CUdeviceptr p = 0;
  unsigned flags = 0;
  REFUSED(CUDA_ERROR_NOT_SUPPORTED, "registered memory is not mapped into the device", cuMemHostGetDevicePointer, &p,
          begin, 0u);
  REFUSED(kInvalidValue, "", cuMemHostGetFlags, &flags, begin);
  REFUSED(kInvalidValue, "not the start of live page-locked memory", cuMemFreeHost, begin);
  REFUSED(kInvalidValue, "not the start of a live device allocation", cuMemFree, reinterpret_cast<CUdeviceptr>(begin));
  REFUSED(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "", cuMemHostUnregister, begin + 192);
  REFUSED(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "", cuMemHostUnregister, reinterpret_cast<void*>(allocate(4)));
  REFUSED(kInvalidValue, "", cuMemHostUnregister, begin + 8);
  // Copies use it, within its bounds.
  CUdeviceptr data = upload({1, 2, 3, 4});
  OK(CU(cuMemcpyDtoH)(begin + 64, data, 16));
  EXPECT_EQ(mine[19], 4u);
  REFUSED(kInvalidValue, "16 bytes at offset 56 of an allocation of 64 bytes", cuMemcpyDtoH, begin + 120, data,
          size_t{16});
  unsigned type = 0;
  void* pointer = nullptr;
  OK(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(begin)));
  EXPECT_EQ(type, CU_MEMORYTYPE_HOST);
  OK(CU(cuPointerGetAttribute)(&pointer, CU_POINTER_ATTRIBUTE_HOST_POINTER, reinterpret_cast<CUdeviceptr>(begin)));
  EXPECT_EQ(pointer, begin);
  REFUSED(kInvalidValue, "the device cannot reach it", cuPointerGetAttribute, &p, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
          reinterpret_cast<CUdeviceptr>(begin));
  for (int i = 0; i < 3; ++i) OK(CU(cuMemHostUnregister)(begin + 64 * i));
  REFUSED(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "", cuMemHostUnregister, begin);
  mine[0] = 7;
  EXPECT_EQ(mine[0], 7u) << "the memory stays the program's";
}

TEST_F(SimRefusals, VirtualMemory) {
  constexpr size_t kUnit = 2 << 20;
  const std::string no_handle = ": the simulated devices belong to one process, so memory has no handle for ";
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemAllocationProp managed = properties, of_the_host = properties, of_no_device = properties, shared = properties;
  managed.type = CU_MEM_ALLOCATION_TYPE_INVALID;
  of_the_host.location.type = CU_MEM_LOCATION_TYPE_HOST;
  of_no_device.location.id = 1;
  shared.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  size_t unit = 0;
  for (const auto option : {CU_MEM_ALLOC_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED}) {
    OK(CU(cuMemGetAllocationGranularity)(&unit, &properties, option));
    EXPECT_EQ(unit, kUnit);
  }
  REFUSED(kInvalidValue, "", cuMemGetAllocationGranularity, nullptr, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  REFUSED(kInvalidValue, "", cuMemGetAllocationGranularity, &unit, &properties,
          static_cast<CUmemAllocationGranularity_flags>(2));

  CUmemGenericAllocationHandle memory = 0, again = 0;
  REFUSED(kInvalidValue, "", cuMemCreate, nullptr, kUnit, &properties, 0ull);
  REFUSED(kInvalidValue, "", cuMemCreate, &memory, kUnit, &properties, 1ull);
  REFUSED(kInvalidValue, "", cuMemCreate, &memory, size_t{0}, &properties, 0ull);
  REFUSED(kInvalidValue, "size is 2097153, which is no multiple of 2097152", cuMemCreate, &memory, kUnit + 1,
          &properties, 0ull);
  REFUSED(CUDA_ERROR_OUT_OF_MEMORY, "", cuMemCreate, &memory, kUnit << 30, &properties, 0ull);
  for (const CUmemAllocationProp* wrong : {static_cast<const CUmemAllocationProp*>(nullptr), &std::as_const(managed)})
    REFUSED(kInvalidValue, "the type of the memory is not CU_MEM_ALLOCATION_TYPE_PINNED", cuMemCreate, &memory, kUnit,
            wrong, 0ull);
  REFUSED(CUDA_ERROR_NOT_SUPPORTED, "memory that is not a device's is not simulated here", cuMemCreate, &memory, kUnit,
          &of_the_host, 0ull);
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuMemCreate, &memory, kUnit, &of_no_device, 0ull);
  REFUSED(CUDA_ERROR_NOT_SUPPORTED, "requestedHandleTypes is 1" + no_handle + "others; allowed is 0", cuMemCreate,
          &memory, kUnit, &shared, 0ull);
  OK(CU(cuMemCreate)(&memory, 2 * kUnit, &properties, 0));
  REFUSED(CUDA_ERROR_NOT_SUPPORTED, "handleType is 1" + no_handle + "others; give the addresses themselves",
          cuMemExportToShareableHandle, &again, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0ull);
  REFUSED(CUDA_ERROR_NOT_SUPPORTED, no_handle.substr(2) + "others", cuMemImportFromShareableHandle, &again, &memory,
          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CUmemAllocationProp got{};
  OK(CU(cuMemGetAllocationPropertiesFromHandle)(&got, memory));
  EXPECT_EQ(std::memcmp(&got, &properties, sizeof got), 0);
  REFUSED(kInvalidValue, "", cuMemGetAllocationPropertiesFromHandle, nullptr, memory);

  CUdeviceptr at = 0;
  REFUSED(kInvalidValue, "", cuMemAddressReserve, nullptr, kUnit, size_t{0}, CUdeviceptr{0}, 0ull);
  REFUSED(kInvalidValue, "", cuMemAddressReserve, &at, size_t{0}, size_t{0}, CUdeviceptr{0}, 0ull);
  REFUSED(kInvalidValue, "", cuMemAddressReserve, &at, kUnit, size_t{0}, CUdeviceptr{0}, 1ull);
  REFUSED(kInvalidValue, "size is 1, which is no multiple of 2097152", cuMemAddressReserve, &at, size_t{1}, size_t{0},
          CUdeviceptr{0}, 0ull);
  for (const size_t alignment : {size_t{3}, 3 * kUnit})
    REFUSED(kInvalidValue, "alignment is no power of two", cuMemAddressReserve, &at, kUnit, alignment, CUdeviceptr{0},
            0ull);
  for (const size_t alignment : {size_t{1}, kUnit, 16 * kUnit}) {
    OK(CU(cuMemAddressReserve)(&at, kUnit, alignment, 0, 0));
    EXPECT_EQ(at % std::max(alignment, kUnit), 0u);
    OK(CU(cuMemAddressFree)(at, kUnit));
  }
  OK(CU(cuMemAddressReserve)(&at, 3 * kUnit, 0, 0, 0));
  REFUSED(kInvalidValue, "", cuMemMap, at, kUnit, size_t{0}, memory, 1ull);
  REFUSED(kInvalidValue, "ptr is " + std::to_string(at + 1) + ", which is no multiple of 2097152", cuMemMap, at + 1,
          kUnit, size_t{0}, memory, 0ull);
  REFUSED(kInvalidValue, "size is 1, which is no multiple of 2097152", cuMemMap, at, size_t{1}, size_t{0}, memory,
          0ull);
  REFUSED(kInvalidValue, "offset is 1, which is no multiple of 2097152", cuMemMap, at, kUnit, size_t{1}, memory, 0ull);
  REFUSED(kInvalidValue, "not a live handle of cuMemCreate", cuMemMap, at, kUnit, size_t{0}, memory + (1 << 20), 0ull);
  const std::string not_reserved = "the range was not reserved by cuMemAddressReserve";
  REFUSED(kInvalidValue, not_reserved, cuMemMap, at, 4 * kUnit, size_t{0}, memory, 0ull);
  REFUSED(kInvalidValue, not_reserved, cuMemMap, at - kUnit, kUnit, size_t{0}, memory, 0ull);
  REFUSED(kInvalidValue, not_reserved, cuMemMap, at, size_t{0}, size_t{0}, memory, 0ull);
  REFUSED(kInvalidValue, "2097152 bytes at offset 4194304 of memory of 4194304 bytes", cuMemMap, at, kUnit, 2 * kUnit,
          memory, 0ull);
  OK(CU(cuMemMap)(at + kUnit, kUnit, kUnit, memory, 0));
  for (const CUdeviceptr begin : {at, at + kUnit})
    REFUSED(kInvalidValue, "something is mapped in the range already", cuMemMap, begin, 2 * kUnit, size_t{0}, memory,
            0ull);
  OK(CU(cuMemMap)(at, kUnit, 0, memory, 0));
  CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}, wrong = access;
  REFUSED(kInvalidValue, "", cuMemSetAccess, at, kUnit, nullptr, size_t{1});
  REFUSED(kInvalidValue, "", cuMemSetAccess, at, kUnit, &access, size_t{0});
  const std::string not_whole = "the range is not made up of whole mappings by cuMemMap";
  for (const auto& [begin, bytes] : {std::pair{at, 3 * kUnit}, {at + 1, kUnit}, {at, kUnit - 1}, {at, size_t{0}}})
    REFUSED(kInvalidValue, not_whole, cuMemSetAccess, begin, bytes, &access, size_t{1});
  wrong.location.type = CU_MEM_LOCATION_TYPE_HOST;
  REFUSED(CUDA_ERROR_NOT_SUPPORTED, "access by the host is not simulated", cuMemSetAccess, at, kUnit, &wrong,
          size_t{1});
  wrong = access, wrong.location.id = 1;
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuMemSetAccess, at, kUnit, &wrong, size_t{1});
  wrong = access, wrong.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  REFUSED(CUDA_ERROR_NOT_SUPPORTED, "access for reading alone is not simulated", cuMemSetAccess, at, kUnit, &wrong,
          size_t{1});
  OK(CU(cuMemSetAccess)(at, 2 * kUnit, &access, 1));
  unsigned long long flags = 9;
  for (const CUdeviceptr byte : {at, at + 2 * kUnit - 1}) {
    OK(CU(cuMemGetAccess)(&flags, &properties.location, byte));
    EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(CU(cuMemRetainAllocationHandle)(&again, reinterpret_cast<void*>(byte)));
    EXPECT_EQ(again, memory);
  }
  for (const CUdeviceptr byte : {at - 1, at + 2 * kUnit}) {
    REFUSED(kInvalidValue, "nothing is mapped there", cuMemGetAccess, &flags, &properties.location, byte);
    REFUSED(kInvalidValue, "nothing is mapped there", cuMemRetainAllocationHandle, &again,
            reinterpret_cast<void*>(byte));
  }
  REFUSED(kInvalidValue, "something is still mapped in the range", cuMemAddressFree, at, 3 * kUnit);
  REFUSED(kInvalidValue, not_whole, cuMemUnmap, at, 3 * kUnit);
  OK(CU(cuMemUnmap)(at, 2 * kUnit));
  for (const auto& [begin, bytes] : {std::pair{at, kUnit}, {at + kUnit, 2 * kUnit}})
    REFUSED(kInvalidValue, "not a range that cuMemAddressReserve gave", cuMemAddressFree, begin, bytes);
  OK(CU(cuMemAddressFree)(at, 3 * kUnit));
  OK(CU(cuMemRelease)(memory));
  REFUSED(kInvalidValue, "not a live handle of cuMemCreate", cuMemRelease, memory);
}

TEST_F(SimRefusals, Pools) {
  CUmemoryPool pool = nullptr, current = nullptr, first = nullptr;
  CUmemPoolProps good{};
  good.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  good.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemPoolProps wrong = good;
  REFUSED(kInvalidValue, "", cuMemPoolCreate, nullptr, &good);
  CUmemLocation there = good.location, host = there, missing = there;
  host.type = CU_MEM_LOCATION_TYPE_HOST;
  missing.id = 1;
  const CUmemAllocationType pinned = CU_MEM_ALLOCATION_TYPE_PINNED;
  OK(CU(cuDeviceGetDefaultMemPool)(&first, 0));
  // cuda.h has them from CUDA 13 on.
  using Get = CUresult (*)(CUmemoryPool*, CUmemLocation*, CUmemAllocationType);
  using Set = CUresult (*)(CUmemLocation*, CUmemAllocationType, CUmemoryPool);
  const auto get_current = symbol<Get>("cuMemGetMemPool");
  const auto set_current = symbol<Set>("cuMemSetMemPool");
  for (const auto get : {symbol<Get>("cuMemGetDefaultMemPool"), get_current}) {
    OK(get(&pool, &there, pinned));
    EXPECT_EQ(pool, first);
    FAILS(CUDA_ERROR_INVALID_VALUE, get(nullptr, &there, pinned));
    FAILS(CUDA_ERROR_INVALID_VALUE, get(&pool, nullptr, pinned));
    FAILS(CUDA_ERROR_INVALID_VALUE, get(&pool, &there, CU_MEM_ALLOCATION_TYPE_INVALID));
    FAILS(CUDA_ERROR_INVALID_DEVICE, get(&pool, &missing, pinned));
    FAILS(CUDA_ERROR_NOT_SUPPORTED, get(&pool, &host, pinned));
  }
  OK(CU(cuMemPoolCreate)(&pool, &good));
  OK(set_current(&there, pinned, pool));
  OK(get_current(&current, &there, pinned));
  EXPECT_EQ(current, pool);
  FAILS(CUDA_ERROR_NOT_SUPPORTED, set_current(&host, pinned, pool));
  OK(set_current(&there, pinned, first));
  OK(CU(cuMemPoolDestroy)(pool));
  REFUSED(kInvalidValue, "", cuMemPoolCreate, &pool, nullptr);
  wrong.allocType = CU_MEM_ALLOCATION_TYPE_INVALID;
  REFUSED(kInvalidValue, "", cuMemPoolCreate, &pool, &wrong);
  wrong = good;
  wrong.location.type = CU_MEM_LOCATION_TYPE_HOST;
  REFUSED(kInvalidValue, "", cuMemPoolCreate, &pool, &wrong);
  wrong = good;
  wrong.location.id = 1;
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuMemPoolCreate, &pool, &wrong);
  wrong = good;
  wrong.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  REFUSED(CUDA_ERROR_NOT_SUPPORTED, "", cuMemPoolCreate, &pool, &wrong);
  OK(CU(cuMemPoolCreate)(&pool, &good));
  OK(CU(cuDeviceGetDefaultMemPool)(&first, 0));
  OK(CU(cuDeviceGetMemPool)(&current, 0));
  EXPECT_EQ(current, first);
  REFUSED(kInvalidValue, "", cuMemPoolDestroy, first);
  REFUSED(CUDA_ERROR_INVALID_HANDLE, "", cuMemPoolDestroy, stale<CUmemoryPool>());
  REFUSED(CUDA_ERROR_INVALID_HANDLE, "", cuMemPoolTrimTo, stale<CUmemoryPool>(), size_t{0});
  OK(CU(cuMemPoolTrimTo)(pool, 0));

  CUdeviceptr a = 0, b = 0;
  REFUSED(kInvalidValue, "", cuMemAllocAsync, nullptr, size_t{64}, nullptr);
  REFUSED(kInvalidValue, "an allocation of 0 bytes", cuMemAllocAsync, &a, size_t{0}, nullptr);
  REFUSED(CUDA_ERROR_INVALID_HANDLE, "", cuMemAllocAsync, &a, size_t{64}, stale<CUstream>());
  REFUSED(kInvalidValue, "the pool is null", cuMemAllocFromPoolAsync, &a, size_t{64}, nullptr, nullptr);
  REFUSED(CUDA_ERROR_INVALID_HANDLE, "", cuMemAllocFromPoolAsync, &a, size_t{64}, stale<CUmemoryPool>(), nullptr);
  // Each pool counts what was taken from it, and remembers the most.
  const auto used = [&](CUmemoryPool of, CUmemPool_attribute attribute) {
    cuuint64_t value = ~cuuint64_t{0};
    EXPECT_EQ(CUDA_SUCCESS, CU(cuMemPoolGetAttribute)(of, attribute, &value));
    return value;
  };
  OK(CU(cuMemAllocFromPoolAsync)(&a, 64, pool, nullptr));
  OK(CU(cuMemAllocFromPoolAsync)(&b, 128, pool, nullptr));
  OK(CU(cuMemFreeAsync)(b, nullptr));
  for (auto now : {CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT})
    EXPECT_EQ(used(pool, now), 64u);
  for (auto most : {CU_MEMPOOL_ATTR_USED_MEM_HIGH, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH})
    EXPECT_EQ(used(pool, most), 192u);
  EXPECT_EQ(used(first, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0u);
  cuuint64_t value = 1;
  for (auto most : {CU_MEMPOOL_ATTR_USED_MEM_HIGH, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH})
    REFUSED(kInvalidValue, "", cuMemPoolSetAttribute, pool, most, &value);
  value = 0;
  OK(CU(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value));
  EXPECT_EQ(used(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 64u);
  CUmemoryPool owner = nullptr;
  OK(CU(cuPointerGetAttribute)(&owner, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, a));
  EXPECT_EQ(owner, pool);

  EXPECT_EQ(used(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0u);
  value = 12345;
  OK(CU(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
  EXPECT_EQ(used(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 12345u);
  for (auto attribute : {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
                         CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES}) {
    int allowed = 5;
    OK(CU(cuMemPoolGetAttribute)(pool, attribute, &allowed));
    EXPECT_EQ(allowed, 1) << "all kinds of reuse are allowed at first";
    allowed = 0;
    OK(CU(cuMemPoolSetAttribute)(pool, attribute, &allowed));
    allowed = 5;
    OK(CU(cuMemPoolGetAttribute)(pool, attribute, &allowed));
    EXPECT_EQ(allowed, 0);
  }
  REFUSED(kInvalidValue, "", cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, nullptr);
  REFUSED(kInvalidValue, "", cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, nullptr);
  REFUSED(kInvalidValue, "", cuMemPoolGetAttribute, pool, static_cast<CUmemPool_attribute>(99), &value);
  REFUSED(kInvalidValue, "", cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value);
  REFUSED(CUDA_ERROR_INVALID_HANDLE, "", cuMemPoolGetAttribute, stale<CUmemoryPool>(), CU_MEMPOOL_ATTR_USED_MEM_HIGH,
          &value);
  REFUSED(CUDA_ERROR_INVALID_HANDLE, "", cuMemPoolSetAttribute, stale<CUmemoryPool>(), CU_MEMPOOL_ATTR_USED_MEM_HIGH,
          &value);

  CUmemAccess_flags access{};
  CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemAccessDesc descriptions[2]{};
  descriptions[0].location = descriptions[1].location = here;
  REFUSED(CUDA_ERROR_INVALID_HANDLE, "", cuMemPoolGetAccess, &access, stale<CUmemoryPool>(), &here);
  REFUSED(kInvalidValue, "", cuMemPoolGetAccess, nullptr, pool, &here);
  REFUSED(kInvalidValue, "", cuMemPoolGetAccess, &access, pool, nullptr);
  OK(CU(cuMemPoolGetAccess)(&access, pool, &here));
  EXPECT_EQ(access, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  REFUSED(CUDA_ERROR_INVALID_HANDLE, "", cuMemPoolSetAccess, stale<CUmemoryPool>(), descriptions, size_t{1});
  REFUSED(kInvalidValue, "", cuMemPoolSetAccess, pool, nullptr, size_t{1});
  OK(CU(cuMemPoolSetAccess)(pool, nullptr, 0));
  OK(CU(cuMemPoolSetAccess)(pool, descriptions, 2));
  descriptions[1].location.id = 1;
  REFUSED(CUDA_ERROR_INVALID_DEVICE, kOneDevice, cuMemPoolSetAccess, pool, descriptions, size_t{2});
  OK(CU(cuMemPoolSetAccess)(pool, descriptions, 1));

  // The current pool serves cuMemAllocAsync. When it goes, the default pool does, and what was taken stays.
  OK(CU(cuDeviceSetMemPool)(0, pool));
  OK(CU(cuDeviceGetMemPool)(&current, 0));
  EXPECT_EQ(current, pool);
  OK(CU(cuDeviceGetDefaultMemPool)(&current, 0));
  EXPECT_EQ(current, first);
  OK(CU(cuMemAllocAsync)(&b, 32, nullptr));
  EXPECT_EQ(used(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 96u);
  OK(CU(cuMemPoolDestroy)(pool));
  OK(CU(cuDeviceGetMemPool)(&current, 0));
  EXPECT_EQ(current, first);
  OK(CU(cuMemsetD8)(a, 1, 64));
  OK(CU(cuPointerGetAttribute)(&owner, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, a));
  EXPECT_EQ(owner, nullptr);
  OK(CU(cuMemFree)(a));
  OK(CU(cuMemFreeAsync)(b, nullptr));
  CUmemoryPool unused = nullptr;
  OK(CU(cuMemPoolCreate)(&unused, &good));
  OK(CU(cuMemPoolDestroy)(unused));
  OK(CU(cuDeviceGetMemPool)(&current, 0));
  EXPECT_EQ(current, first);
}

TEST_F(SimRefusals, Copies) {
  CUdeviceptr a = upload(iota(64)), b = allocate(256);
  std::array<uint32_t, 64> host{};
  const auto at_host = reinterpret_cast<CUdeviceptr>(host.data());
  constexpr const char* kAtZero = "a copy or fill at address 0";
  constexpr const char* kWraps = "a range that wraps around the address space";
  const std::string beyond = "257 bytes at offset 0 of an allocation of 256 bytes";
  const std::string tail = "8 bytes at offset 252 of an allocation of 256 bytes";
  REFUSED(kInvalidValue, kAtZero, cuMemcpyHtoD, CUdeviceptr{0}, host.data(), size_t{4});
  REFUSED(kInvalidValue, kAtZero, cuMemcpyHtoD, a, nullptr, size_t{4});
  REFUSED(kInvalidValue, kWraps, cuMemcpyHtoD, a, host.data(), ~size_t{0});
  REFUSED(kInvalidValue, beyond, cuMemcpyHtoD, a, host.data(), size_t{257});
  REFUSED(kInvalidValue, beyond, cuMemcpyDtoH, host.data(), a, size_t{257});
  REFUSED(kInvalidValue, tail, cuMemcpyDtoD, a, b + 252, size_t{8});
  REFUSED(kInvalidValue, tail, cuMemcpyDtoD, a + 252, b, size_t{8});
  REFUSED(kInvalidValue, tail, cuMemcpy, a, b + 252, size_t{8});
  REFUSED(kInvalidValue, tail, cuMemcpy, a + 252, b, size_t{8});
  REFUSED(kInvalidValue, tail, cuMemcpyAsync, a, b + 252, size_t{8}, nullptr);
  REFUSED(kInvalidValue, tail, cuMemcpyAsync, a + 252, b, size_t{8}, nullptr);
  REFUSED(kInvalidValue, tail, cuMemcpyHtoDAsync, a + 252, host.data(), size_t{8}, nullptr);
  REFUSED(kInvalidValue, tail, cuMemcpyDtoHAsync, host.data(), a + 252, size_t{8}, nullptr);
  REFUSED(kInvalidValue, tail, cuMemcpyDtoDAsync, a, b + 252, size_t{8}, nullptr);
  REFUSED(kInvalidValue, tail, cuMemcpyPeer, a, context, b + 252, context, size_t{8});
  REFUSED(kInvalidValue, tail, cuMemcpyPeerAsync, a, context, b + 252, context, size_t{8}, nullptr);
  for (int side = 0; side < 2; ++side) {
    const CUcontext to = side == 0 ? context : stale<CUcontext>(), from = side == 1 ? context : stale<CUcontext>();
    REFUSED(CUDA_ERROR_INVALID_CONTEXT, "", cuMemcpyPeer, a, to, b, from, size_t{8});
    REFUSED(CUDA_ERROR_INVALID_CONTEXT, "", cuMemcpyPeerAsync, a, to, b, from, size_t{8}, nullptr);
  }
  for (auto copy : {CU(cuMemcpyDtoDAsync), CU(cuMemcpyAsync)})
    EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, copy(a, b, 8, stale<CUstream>()));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, CU(cuMemcpyHtoDAsync)(a, host.data(), 8, stale<CUstream>()));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, CU(cuMemcpyDtoHAsync)(host.data(), a, 8, stale<CUstream>()));
  // A copy of no bytes is none, whatever its addresses.
  OK(CU(cuMemcpyHtoD)(0, nullptr, 0));
  OK(CU(cuMemcpyDtoD)(a + 1000, 1, 0));
  // Host memory that runs into an allocation.
  const CUdeviceptr middle = std::min(a, b);
  REFUSED(kInvalidValue, "a host range that runs into a device allocation", cuMemcpyDtoH,
          reinterpret_cast<void*>(middle - 4), std::max(a, b), size_t{8});
  // What each form moves.
  OK(CU(cuMemcpyPeer)(b, context, a, context, 256));
  EXPECT_EQ(download(b, 64), iota(64));
  OK(CU(cuMemsetD8)(b, 0, 256));
  OK(CU(cuMemcpyPeerAsync)(b + 4, context, a, context, 252, nullptr));
  EXPECT_EQ(download(b, 64)[63], 62u);
  OK(CU(cuMemcpyAsync)(at_host, b + 4, 252, nullptr));
  EXPECT_EQ(host[62], 62u);
  EXPECT_EQ(host[63], 0u);
  host[0] = 1234;
  OK(CU(cuMemcpyHtoDAsync)(b, host.data(), 4, nullptr));
  OK(CU(cuMemcpyDtoDAsync)(a, b, 8, nullptr));
  OK(CU(cuMemcpyDtoHAsync)(&host[10], a, 8, nullptr));
  EXPECT_EQ(host[10], 1234u);
  EXPECT_EQ(host[11], 0u);
}

TEST_F(SimRefusals, PitchedCopies) {
  CUdeviceptr a = upload(iota(64));
  std::array<uint32_t, 64> host{};
  CUDA_MEMCPY3D good{};
  good.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  good.srcDevice = a;
  good.srcPitch = 16;
  good.srcHeight = 4;
  good.dstMemoryType = CU_MEMORYTYPE_HOST;
  good.dstHost = host.data();
  good.dstPitch = 16;
  good.dstHeight = 4;
  good.WidthInBytes = 16;
  good.Height = 4;
  good.Depth = 4;
  OK(CU(cuMemcpy3D)(&good));
  EXPECT_TRUE(std::equal(host.begin(), host.end(), iota(64).begin())) << "the whole allocation";
  struct {
    const char* said;
    void (*change)(CUDA_MEMCPY3D&);
    CUresult code = kInvalidValue;
  } const wrong[] = {
      {"", [](CUDA_MEMCPY3D& d) { d.srcLOD = 1; }},
      {"", [](CUDA_MEMCPY3D& d) { d.dstLOD = 1; }},
      {"", [](CUDA_MEMCPY3D& d) { d.reserved0 = &d; }},
      {"CUDA arrays are not simulated", [](CUDA_MEMCPY3D& d) { d.srcMemoryType = CU_MEMORYTYPE_ARRAY; },
       CUDA_ERROR_NOT_SUPPORTED},
      {"CUDA arrays are not simulated", [](CUDA_MEMCPY3D& d) { d.dstMemoryType = CU_MEMORYTYPE_ARRAY; },
       CUDA_ERROR_NOT_SUPPORTED},
      {"unknown memory type", [](CUDA_MEMCPY3D& d) { d.srcMemoryType = static_cast<CUmemorytype>(0); }},
      {"unknown memory type", [](CUDA_MEMCPY3D& d) { d.dstMemoryType = static_cast<CUmemorytype>(5); }},
      {"srcPitch is smaller than the row", [](CUDA_MEMCPY3D& d) { d.srcPitch = 15; }},
      {"dstPitch is smaller than the row", [](CUDA_MEMCPY3D& d) { d.dstPitch = 15; }},
      {"srcPitch is smaller than the row", [](CUDA_MEMCPY3D& d) { d.srcXInBytes = 1; }},
      {"dstPitch is smaller than the row", [](CUDA_MEMCPY3D& d) { d.dstXInBytes = 1; }},
      {"a slice smaller than its rows", [](CUDA_MEMCPY3D& d) { d.srcHeight = 3; }},
      {"a slice smaller than its rows", [](CUDA_MEMCPY3D& d) { d.dstHeight = 3; }},
      {"a slice smaller than its rows", [](CUDA_MEMCPY3D& d) { d.srcY = 1; }},
      {"a slice smaller than its rows", [](CUDA_MEMCPY3D& d) { d.dstY = 1; }},
      {"256 bytes at offset 64 of an allocation of 256 bytes", [](CUDA_MEMCPY3D& d) { d.srcZ = 1; }},
      {"320 bytes at offset 0 of an allocation of 256 bytes", [](CUDA_MEMCPY3D& d) { d.Depth = 5; }},
      {"304 bytes at offset 0 of an allocation of 256 bytes", [](CUDA_MEMCPY3D& d) { d.srcHeight = 5; }},
      {"316 bytes at offset 0 of an allocation of 256 bytes", [](CUDA_MEMCPY3D& d) { d.srcPitch = 20; }},
      {"a copy or fill at address 0", [](CUDA_MEMCPY3D& d) { d.dstHost = nullptr; }},
  };
  for (const auto& [said, change, code] : wrong) {
    CUDA_MEMCPY3D d = good;
    change(d);
    REFUSED(code, said, cuMemcpy3D, &d);
    REFUSED(code, said, cuMemcpy3DAsync, &d, nullptr);
  }
  REFUSED(kInvalidValue, "", cuMemcpy3D, nullptr);
  REFUSED(kInvalidValue, "", cuMemcpy3DAsync, nullptr, nullptr);
  REFUSED(CUDA_ERROR_INVALID_HANDLE, "", cuMemcpy3DAsync, &good, stale<CUstream>());
  REFUSED(kInvalidValue, "", cuMemcpy2D, nullptr);
  REFUSED(kInvalidValue, "", cuMemcpy2DUnaligned, nullptr);
  REFUSED(kInvalidValue, "", cuMemcpy2DAsync, nullptr, nullptr);
  CUDA_MEMCPY2D flat{};
  flat.srcMemoryType = flat.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  flat.srcDevice = a;
  flat.dstDevice = reinterpret_cast<CUdeviceptr>(host.data());
  flat.WidthInBytes = 12;
  flat.Height = 3;
  flat.srcPitch = 11;
  REFUSED(kInvalidValue, "srcPitch is smaller than the row", cuMemcpy2D, &flat);
  REFUSED(kInvalidValue, "srcPitch is smaller than the row", cuMemcpy2DUnaligned, &flat);
  REFUSED(kInvalidValue, "srcPitch is smaller than the row", cuMemcpy2DAsync, &flat, nullptr);

  // A box of every kind of offset, moved between pitched places, compared with what indices say.
  for (int form = 0; form < 2; ++form) {
    CUdeviceptr from = upload(iota(6 * 5 * 4)), to = allocate(7 * 6 * 5 * 4);
    OK(CU(cuMemsetD32)(to, 999, 7 * 6 * 5));
    CUDA_MEMCPY3D d{};
    d.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    d.srcDevice = from;
    d.srcPitch = 6 * 4;
    d.srcHeight = 5;
    d.srcXInBytes = 8;
    d.srcY = 1;
    d.srcZ = 2;
    d.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    d.dstDevice = to;
    d.dstPitch = 7 * 4;
    d.dstHeight = 6;
    d.dstXInBytes = 12;
    d.dstY = 2;
    d.dstZ = 1;
    d.WidthInBytes = 12;
    d.Height = 3;
    d.Depth = 2;
    if (form == 0) {
      OK(CU(cuMemcpy3D)(&d));
    } else {
      OK(CU(cuMemcpy3DAsync)(&d, nullptr));
    }
    const auto out = download(to, 7 * 6 * 5);
    for (uint32_t z = 0; z < 5; ++z) {
      for (uint32_t y = 0; y < 6; ++y) {
        for (uint32_t x = 0; x < 7; ++x) {
          const bool inside = z >= 1 && z < 3 && y >= 2 && y < 5 && x >= 3 && x < 6;
          EXPECT_EQ(out[(z * 6 + y) * 7 + x], inside ? ((z - 1 + 2) * 5 + y - 2 + 1) * 6 + x - 3 + 2 : 999);
        }
      }
    }
    OK(CU(cuMemFree)(from));
    OK(CU(cuMemFree)(to));
  }
  // A pitch and a height of 0 are those of the box with its offset.
  for (auto copy2d : {CU(cuMemcpy2D), CU(cuMemcpy2DUnaligned)}) {
    host.fill(0);
    flat.srcPitch = flat.dstPitch = 0;
    flat.srcXInBytes = 4;
    flat.dstY = 1;
    OK(copy2d(&flat));
    for (uint32_t i = 0; i < 9; ++i) EXPECT_EQ(host[3 + i], i / 3 * 4 + i % 3 + 1);
  }
  CUDA_MEMCPY3D dense = good;
  dense.srcPitch = dense.dstPitch = 0;
  dense.srcHeight = dense.dstHeight = 0;
  host.fill(0);
  OK(CU(cuMemcpy3D)(&dense));
  EXPECT_EQ(host[63], 63u);
  dense.srcY = 1;
  dense.Depth = 3;
  dense.dstZ = 1;
  host.fill(0);
  OK(CU(cuMemcpy3D)(&dense));  // Planes of the source are five rows apart.
  EXPECT_EQ(host[16], 4u);
  EXPECT_EQ(host[32], 24u);
  EXPECT_EQ(host[63], 59u);
  EXPECT_EQ(host[0], 0u);
  // The first row may be narrower than the pitch, and the last may end where the memory does.
  CUDA_MEMCPY3D none = good;
  none.WidthInBytes = 0;
  OK(CU(cuMemcpy3D)(&none));
  none = good;
  none.Height = 0;
  OK(CU(cuMemcpy3D)(&none));
  none = good;
  none.Depth = 0;
  OK(CU(cuMemcpy3D)(&none));
}

TEST_F(SimRefusals, Fills) {
  CUdeviceptr a = allocate(64);
  constexpr const char* kMisaligned = "a fill that is not aligned to its element";
  constexpr const char* kPitch = "a pitch smaller than the row";
  const auto w = [](uint64_t bytes) {
    std::string said = std::to_string(bytes);
    said += " bytes at offset 0 of an allocation of 64 bytes";
    return said;
  };
  REFUSED(kInvalidValue, w(65), cuMemsetD8, a, static_cast<unsigned char>(1), size_t{65});
  REFUSED(kInvalidValue, w(66), cuMemsetD16, a, static_cast<unsigned short>(1), size_t{33});
  REFUSED(kInvalidValue, w(68), cuMemsetD32, a, 1u, size_t{17});
  REFUSED(kInvalidValue, kMisaligned, cuMemsetD16, a + 1, static_cast<unsigned short>(1), size_t{1});
  REFUSED(kInvalidValue, kMisaligned, cuMemsetD32, a + 2, 1u, size_t{1});
  REFUSED(kInvalidValue, kPitch, cuMemsetD2D8, a, size_t{7}, static_cast<unsigned char>(1), size_t{8}, size_t{2});
  REFUSED(kInvalidValue, kPitch, cuMemsetD2D16, a, size_t{14}, static_cast<unsigned short>(1), size_t{8}, size_t{2});
  REFUSED(kInvalidValue, kPitch, cuMemsetD2D32, a, size_t{28}, 1u, size_t{8}, size_t{2});
  REFUSED(kInvalidValue, kPitch, cuMemsetD2D32, a, size_t{18}, 1u, size_t{2}, size_t{2});
  REFUSED(kInvalidValue, w(72), cuMemsetD2D32, a, size_t{64}, 1u, size_t{2}, size_t{2});
  REFUSED(kInvalidValue, w(65), cuMemsetD8Async, a, static_cast<unsigned char>(1), size_t{65}, nullptr);
  REFUSED(kInvalidValue, kMisaligned, cuMemsetD16Async, a + 1, static_cast<unsigned short>(1), size_t{1}, nullptr);
  REFUSED(kInvalidValue, kMisaligned, cuMemsetD32Async, a + 2, 1u, size_t{1}, nullptr);
  REFUSED(kInvalidValue, kPitch, cuMemsetD2D8Async, a, size_t{7}, static_cast<unsigned char>(1), size_t{8}, size_t{2},
          nullptr);
  REFUSED(kInvalidValue, kPitch, cuMemsetD2D16Async, a, size_t{14}, static_cast<unsigned short>(1), size_t{8},
          size_t{2}, nullptr);
  REFUSED(kInvalidValue, kPitch, cuMemsetD2D32Async, a, size_t{28}, 1u, size_t{8}, size_t{2}, nullptr);
  std::array<uint32_t, 4> mine{};
  EXPECT_EQ(kInvalidValue, CU(cuMemsetD8)(reinterpret_cast<CUdeviceptr>(mine.data()), 1, 4)) << "not the device's";
  OK(CU(cuMemsetD8)(1, 1, 0));
  OK(CU(cuMemsetD2D8)(1, 0, 1, 4, 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, CU(cuMemsetD8Async)(a, 1, 4, stale<CUstream>()));

  // Each form fills its elements and nothing beside them. A pitch means nothing for one row.
  struct Fill {
    const char* name;
    CUresult (*now)(CUdeviceptr, size_t pitch, uint32_t value, size_t width, size_t height);
    unsigned element, height;
  };
  const Fill fills[] = {
      {"D8",
       [](CUdeviceptr d, size_t, uint32_t v, size_t w, size_t) {
         return CU(cuMemsetD8)(d, static_cast<uint8_t>(v), w);
       },
       1, 1},
      {"D16",
       [](CUdeviceptr d, size_t, uint32_t v, size_t w, size_t) {
         return CU(cuMemsetD16)(d, static_cast<uint16_t>(v), w);
       },
       2, 1},
      {"D32", [](CUdeviceptr d, size_t, uint32_t v, size_t w, size_t) { return CU(cuMemsetD32)(d, v, w); }, 4, 1},
      {"D8Async",
       [](CUdeviceptr d, size_t, uint32_t v, size_t w, size_t) {
         return CU(cuMemsetD8Async)(d, static_cast<uint8_t>(v), w, nullptr);
       },
       1, 1},
      {"D16Async",
       [](CUdeviceptr d, size_t, uint32_t v, size_t w, size_t) {
         return CU(cuMemsetD16Async)(d, static_cast<uint16_t>(v), w, nullptr);
       },
       2, 1},
      {"D32Async",
       [](CUdeviceptr d, size_t, uint32_t v, size_t w, size_t) { return CU(cuMemsetD32Async)(d, v, w, nullptr); }, 4,
       1},
      {"D2D8",
       [](CUdeviceptr d, size_t p, uint32_t v, size_t w, size_t h) {
         return CU(cuMemsetD2D8)(d, p, static_cast<uint8_t>(v), w, h);
       },
       1, 3},
      {"D2D16",
       [](CUdeviceptr d, size_t p, uint32_t v, size_t w, size_t h) {
         return CU(cuMemsetD2D16)(d, p, static_cast<uint16_t>(v), w, h);
       },
       2, 3},
      {"D2D32",
       [](CUdeviceptr d, size_t p, uint32_t v, size_t w, size_t h) { return CU(cuMemsetD2D32)(d, p, v, w, h); }, 4, 3},
      {"D2D8Async",
       [](CUdeviceptr d, size_t p, uint32_t v, size_t w, size_t h) {
         return CU(cuMemsetD2D8Async)(d, p, static_cast<uint8_t>(v), w, h, nullptr);
       },
       1, 3},
      {"D2D16Async",
       [](CUdeviceptr d, size_t p, uint32_t v, size_t w, size_t h) {
         return CU(cuMemsetD2D16Async)(d, p, static_cast<uint16_t>(v), w, h, nullptr);
       },
       2, 3},
      {"D2D32Async",
       [](CUdeviceptr d, size_t p, uint32_t v, size_t w, size_t h) {
         return CU(cuMemsetD2D32Async)(d, p, v, w, h, nullptr);
       },
       4, 3},
  };
  for (const Fill& f : fills) {
    const uint32_t value = 0xa1b2c3d4;
    std::array<uint8_t, 64> expected{}, got{};
    expected.fill(0x77);
    OK(CU(cuMemsetD8)(a, 0x77, 64));
    OK(f.now(a + 4, 16, value, 3, f.height)) << f.name;
    for (unsigned y = 0; y < f.height; ++y) {
      for (unsigned i = 0; i < 3 * f.element; ++i)
        expected[4 + 16 * y + i] = static_cast<uint8_t>(value >> (8 * (i % f.element)));
    }
    OK(CU(cuMemcpyDtoH)(got.data(), a, 64));
    EXPECT_EQ(got, expected) << f.name;
  }
  OK(CU(cuMemsetD2D32)(a, 1, 5, 16, 1));
  EXPECT_EQ(download(a, 16)[15], 5u);
  OK(CU(cuMemsetD2D32)(a, 60, 6, 1, 2));
  EXPECT_EQ(download(a, 16)[15], 6u);
}

TEST_F(SimRefusals, PointerAttributes) {
  CUdeviceptr device = allocate(64), managed = 0, pooled = 0;
  void* host = nullptr;
  OK(CU(cuMemHostAlloc)(&host, 64, 0));
  OK(CU(cuMemAllocManaged)(&managed, 64, CU_MEM_ATTACH_GLOBAL));
  OK(CU(cuMemAllocAsync)(&pooled, 64, nullptr));
  CUmemoryPool pool = nullptr;
  OK(CU(cuDeviceGetDefaultMemPool)(&pool, 0));
  const auto at_host = reinterpret_cast<CUdeviceptr>(host);
  const auto get = [](CUpointer_attribute attribute, CUdeviceptr address) {
    uint64_t value = 0;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuPointerGetAttribute)(&value, attribute, address)) << attribute;
    return value;
  };
  for (const auto& [address, type, is_managed, owner] : {std::tuple{device, CU_MEMORYTYPE_DEVICE, 0u, CUmemoryPool{}},
                                                         {managed, CU_MEMORYTYPE_DEVICE, 1u, {}},
                                                         {at_host, CU_MEMORYTYPE_HOST, 0u, {}},
                                                         {pooled, CU_MEMORYTYPE_DEVICE, 0u, pool}}) {
    EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_CONTEXT, address + 5), reinterpret_cast<uint64_t>(context));
    EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address + 5), static_cast<uint64_t>(type));
    EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address + 5), address + 5);
    EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_IS_MANAGED, address), is_managed);
    EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_MAPPED, address), 1u);
    for (auto start : {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR})
      EXPECT_EQ(get(start, address + 5), address);
    for (auto size : {CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_MAPPING_SIZE})
      EXPECT_EQ(get(size, address), 64u);
    EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, address), uint64_t{CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE});
    EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address), reinterpret_cast<uint64_t>(owner));
    for (auto zero : {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                      CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
                      CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE}) {
      int value = 99;
      OK(CU(cuPointerGetAttribute)(&value, zero, address));
      EXPECT_EQ(value, 0) << zero;
    }
    uint64_t handles = 99;
    OK(CU(cuPointerGetAttribute)(&handles, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, address));
    EXPECT_EQ(handles, 0u);
    EXPECT_NE(get(CU_POINTER_ATTRIBUTE_BUFFER_ID, address), 0u);
    EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_BUFFER_ID, address), get(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, address + 9));
  }
  EXPECT_NE(get(CU_POINTER_ATTRIBUTE_BUFFER_ID, device), get(CU_POINTER_ATTRIBUTE_BUFFER_ID, managed));
  EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_HOST_POINTER, at_host + 3), at_host + 3);
  EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_HOST_POINTER, managed), managed);
  int value = 0;
  constexpr const char* kNoAllocation = "the address belongs to no allocation";
  REFUSED(kInvalidValue, "the host cannot reach it", cuPointerGetAttribute, &value, CU_POINTER_ATTRIBUTE_HOST_POINTER,
          device);
  REFUSED(kInvalidValue, kNoAllocation, cuPointerGetAttribute, &value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device + 64);
  REFUSED(kInvalidValue, "unknown pointer attribute", cuPointerGetAttribute, &value, CU_POINTER_ATTRIBUTE_P2P_TOKENS,
          device);
  REFUSED(kInvalidValue, "", cuPointerGetAttribute, nullptr, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device);
  REFUSED(kInvalidValue, "", cuPointerSetAttribute, nullptr, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, device);
  REFUSED(kInvalidValue, "", cuPointerSetAttribute, &value, CU_POINTER_ATTRIBUTE_MAPPED, device);
  REFUSED(kInvalidValue, "", cuPointerSetAttribute, &value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, CUdeviceptr{1});
  OK(CU(cuPointerSetAttribute)(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, device));

  // Asked together, what has no meaning for an address is 0, and the device of an unknown address is -2.
  CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                 CU_POINTER_ATTRIBUTE_HOST_POINTER, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_MAPPED,       CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  for (const auto& [address, known] : {std::pair{device, true}, {CUdeviceptr{1}, false}}) {
    uint32_t type[2] = {9, 9}, is_managed[2] = {9, 9}, mapped[2] = {9, 9};
    int ordinal = 9;
    void* pointer = &ordinal;
    size_t size = 9;
    void* data[] = {type, &ordinal, &pointer, is_managed, mapped, &size};
    OK(CU(cuPointerGetAttributes)(6, asked, data, address));
    EXPECT_EQ(type[0], known ? unsigned{CU_MEMORYTYPE_DEVICE} : 0u);
    EXPECT_EQ(ordinal, known ? 0 : -2);
    EXPECT_EQ(pointer, nullptr);
    EXPECT_EQ(is_managed[0], 0u);
    EXPECT_EQ(mapped[0], known ? 1u : 0u);
    EXPECT_EQ(size, known ? 64u : 0u);
    for (const uint32_t* beyond : {type, is_managed, mapped}) EXPECT_EQ(beyond[1], 9u) << "an attribute of 4 bytes";
  }
  void* data[] = {&value};
  REFUSED(kInvalidValue, "", cuPointerGetAttributes, 0u, asked, data, device);
  REFUSED(kInvalidValue, "", cuPointerGetAttributes, 1u, nullptr, data, device);
  REFUSED(kInvalidValue, "", cuPointerGetAttributes, 1u, asked, nullptr, device);
  for (int unknown : {0, CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE + 1}) {
    asked[0] = static_cast<CUpointer_attribute>(unknown);
    REFUSED(kInvalidValue, "", cuPointerGetAttributes, 1u, asked, data, device);
  }
  OK(CU(cuMemFreeHost)(host));
}

}  // namespace
}  // namespace sim_test
