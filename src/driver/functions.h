// SPDX-License-Identifier: Apache-2.0
// The CUDA driver functions that the library calls: the list of their names, and the table of their addresses.
// cuda.h maps some names to versioned ones (cuMemAlloc is cuMemAlloc_v2) by macros; member names follow them, so
// callers write `call().cuMemAlloc(...)`, while cuGetProcAddress is asked for the plain name.
#pragma once
#include <cuda.h>

// The oldest CUDA version whose driver interface has all of them in the form used here.
#define MOXIE_DRIVER_ABI 12000

#define MOXIE_DRIVER_FUNCTIONS(X) \
  X(cuInit)                       \
  X(cuDriverGetVersion)           \
  X(cuGetErrorName)               \
  X(cuGetErrorString)             \
  X(cuDeviceGetCount)             \
  X(cuDeviceGet)                  \
  X(cuDeviceGetName)              \
  X(cuDeviceGetAttribute)         \
  X(cuDeviceTotalMem)             \
  X(cuDevicePrimaryCtxRetain)     \
  X(cuDevicePrimaryCtxRelease)    \
  X(cuCtxPushCurrent)             \
  X(cuCtxPopCurrent)              \
  X(cuCtxGetCurrent)              \
  X(cuModuleLoadDataEx)           \
  X(cuModuleUnload)               \
  X(cuModuleGetFunction)          \
  X(cuFuncSetAttribute)           \
  X(cuLaunchKernelEx)             \
  X(cuMemAlloc)                   \
  X(cuMemFree)                    \
  X(cuMemcpyHtoDAsync)            \
  X(cuMemcpyDtoHAsync)            \
  X(cuMemsetD8Async)              \
  X(cuStreamSynchronize)          \
  X(cuTensorMapEncodeTiled)

namespace moxie::driver {

struct Functions {
#define MOXIE_DECLARE(name) decltype(&::name) name = nullptr;
  MOXIE_DRIVER_FUNCTIONS(MOXIE_DECLARE)
#undef MOXIE_DECLARE
};

}  // namespace moxie::driver
