// SPDX-License-Identifier: Apache-2.0
// A CUDA driver that does nothing and says that it has an H200. It shows the library's own time on the host
// (bench_host) and which calls the library makes (tests/unit/host_calls_test.cpp). It takes the place of the
// simulator's library, so MOXIE_SIM_LIBRARY names it. MOXIE_IDLE_VERSION is the CUDA version that it reports,
// MOXIE_IDLE_MISSING a function that it does not have. A function can be made to fail.
#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "driver/functions.h"

namespace {

constexpr std::string_view kNames[] = {
#define MOXIE_NAME(name) #name,
    MOXIE_DRIVER_FUNCTIONS(MOXIE_NAME)
#undef MOXIE_NAME
};
std::atomic<int> calls[std::size(kNames)];
std::atomic<int> failures[std::size(kNames)];  // what a function returns instead of doing its work; 0: it works

constexpr size_t index_of(std::string_view name) {
  size_t i = 0;
  while (i < std::size(kNames) && kNames[i] != name) ++i;
  return i;
}

template <class F>
struct Nothing;
template <class... Args>
struct Nothing<CUresult(Args...)> {
  static CUresult call(Args...) { return CUDA_SUCCESS; }
};

template <size_t kIndex, auto kFunction>
struct Counted;
template <size_t kIndex, class... Args, CUresult (*kFunction)(Args...)>
struct Counted<kIndex, kFunction> {
  static CUresult call(Args... args) {
    calls[kIndex].fetch_add(1, std::memory_order_relaxed);
    const int failure = failures[kIndex].load(std::memory_order_relaxed);
    return failure == CUDA_SUCCESS ? kFunction(args...) : static_cast<CUresult>(failure);
  }
};

// The state behind the calls that answer something.
thread_local CUcontext current = nullptr;
int object;                        // its address stands for every handle
std::atomic<int> programmatic{0};  // launches that may begin before their predecessor in the stream has ended

namespace answers {
CUresult driver_version(int* version) {
  const char* chosen = std::getenv("MOXIE_IDLE_VERSION");
  return *version = chosen == nullptr ? 13000 : std::atoi(chosen), CUDA_SUCCESS;
}
CUresult device_count(int* count) { return *count = 1, CUDA_SUCCESS; }
CUresult device(CUdevice* device, int) { return *device = 0, CUDA_SUCCESS; }
CUresult attribute(int* value, CUdevice_attribute which, CUdevice) {
  *value = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR            ? 9
           : which == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT              ? 132
           : which == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? 232448
                                                                            : 0;
  return CUDA_SUCCESS;
}
CUresult primary_context(CUcontext* context, CUdevice) {
  return *context = reinterpret_cast<CUcontext>(&object), CUDA_SUCCESS;
}
CUresult push(CUcontext context) { return current = context, CUDA_SUCCESS; }
CUresult pop(CUcontext* context) {
  *context = current;
  return current = nullptr, CUDA_SUCCESS;
}
CUresult get_current(CUcontext* context) { return *context = current, CUDA_SUCCESS; }
CUresult load(CUmodule* module, const void*, unsigned, CUjit_option*, void**) {
  return *module = reinterpret_cast<CUmodule>(&object), CUDA_SUCCESS;
}
CUresult function(CUfunction* function, CUmodule, const char*) {
  return *function = reinterpret_cast<CUfunction>(&object), CUDA_SUCCESS;
}
CUresult encode(CUtensorMap* map, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                CUtensorMapFloatOOBfill) {
  return *map = {}, CUDA_SUCCESS;
}
CUresult launch(const CUlaunchConfig* config, CUfunction, void**, void**) {
  programmatic += std::any_of(config->attrs, config->attrs + config->numAttrs, [](const CUlaunchAttribute& attribute) {
    return attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
           attribute.value.programmaticStreamSerializationAllowed == 1;
  });
  return CUDA_SUCCESS;
}
}  // namespace answers

void* find(std::string_view wanted) {
#define MOXIE_ANSWER(name, answer) \
  if (wanted == #name) return reinterpret_cast<void*>(&Counted<index_of(#name), &answers::answer>::call);
  MOXIE_ANSWER(cuDriverGetVersion, driver_version)
  MOXIE_ANSWER(cuDeviceGetCount, device_count)
  MOXIE_ANSWER(cuDeviceGet, device)
  MOXIE_ANSWER(cuDeviceGetAttribute, attribute)
  MOXIE_ANSWER(cuDevicePrimaryCtxRetain, primary_context)
  MOXIE_ANSWER(cuCtxPushCurrent, push)
  MOXIE_ANSWER(cuCtxPopCurrent, pop)
  MOXIE_ANSWER(cuCtxGetCurrent, get_current)
  MOXIE_ANSWER(cuModuleLoadDataEx, load)
  MOXIE_ANSWER(cuModuleGetFunction, function)
  MOXIE_ANSWER(cuTensorMapEncodeTiled, encode)
  MOXIE_ANSWER(cuLaunchKernelEx, launch)
#define MOXIE_NOTHING(name) \
  if (wanted == #name)      \
    return reinterpret_cast<void*>(&Counted<index_of(#name), &Nothing<decltype(::name)>::call>::call);
  MOXIE_DRIVER_FUNCTIONS(MOXIE_NOTHING)
  return nullptr;
}

}  // namespace

extern "C" {

#undef cuGetProcAddress
__attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(const char* name, void** function, int, cuuint64_t,
                                                                    CUdriverProcAddressQueryResult*) {
  const char* missing = std::getenv("MOXIE_IDLE_MISSING");
  *function = missing != nullptr && std::string_view(missing) == name ? nullptr : find(name);
  return *function == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

// Returns how often the function was called so far.
__attribute__((visibility("default"))) int idle_driver_calls(const char* name) { return calls[index_of(name)]; }

// From now on the function returns `result`, and with CUDA_SUCCESS works again.
__attribute__((visibility("default"))) void idle_driver_fail(const char* name, int result) {
  failures[index_of(name)] = result;
}

// Returns how many launches might begin before their predecessor in the stream had ended.
__attribute__((visibility("default"))) int idle_driver_programmatic() { return programmatic.load(); }
}
