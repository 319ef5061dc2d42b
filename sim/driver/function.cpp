// SPDX-License-Identifier: Apache-2.0
// Functions, whether of a module or kernels of a library: how they are found, and their attributes.
#include "sim/driver/function.h"

#include <algorithm>

#include "sim/driver/call.h"
#include "sim/driver/device.h"
#include "sim/driver/library.h"

namespace sim::driver {

unsigned threads_limit(const Kernel& kernel) {
  const ptx::Function& f = *kernel.function;
  const int* bound = f.reqntid[0] > 0 ? f.reqntid : f.maxntid;
  if (bound[0] <= 0) return kMaxThreadsPerBlock;
  const uint64_t threads = uint64_t{static_cast<uint32_t>(bound[0])} * std::max(1, bound[1]) * std::max(1, bound[2]);
  return static_cast<unsigned>(std::min<uint64_t>(threads, kMaxThreadsPerBlock));
}

namespace {

// The registers of a thread: the estimate, within what the launch bounds and .maxnreg allow.
int registers_of(const Kernel& kernel) {
  const int warps = static_cast<int>((threads_limit(kernel) + kLanes - 1) / kLanes);
  const int room = static_cast<int>(kRegistersPerSm) / (warps * kLanes) / 8 * 8;
  int limit = std::min(255, room);
  if (kernel.function->maxnreg > 0) limit = std::min(limit, kernel.function->maxnreg);
  return std::max(1, std::min(kernel.registers_per_thread, limit));
}

void set_attribute(CUfunc_st& f, CUfunction_attribute attribute, int value) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      require(value >= 0 && static_cast<uint64_t>(value) + f.kernel->static_shared <= kMaxSharedPerBlockOptIn,
              CUDA_ERROR_INVALID_VALUE,
              std::to_string(value) + " bytes of dynamic beside " + std::to_string(f.kernel->static_shared) +
                  " bytes of static shared memory; a block can have " + std::to_string(kMaxSharedPerBlockOptIn));
      f.max_dynamic_shared = value;
      return;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      require(value >= -1 && value <= 100);
      f.carveout = value;
      return;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      f.non_portable_cluster = value != 0;
      return;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      f.cluster_policy = value;
      return;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH: {
      require(value >= 0 && value <= static_cast<int>(kMaxCluster));
      require(f.kernel->function->reqnctapercluster[0] == 0, CUDA_ERROR_NOT_PERMITTED,
              "the kernel fixes its cluster size");
      auto& d = f.required_cluster;
      (attribute == CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH    ? d.x
       : attribute == CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT ? d.y
                                                                : d.z) = static_cast<uint32_t>(value);
      return;
    }
    default:
      fail(CUDA_ERROR_INVALID_VALUE, "an attribute that cannot be set");
  }
}

void param_info(const Kernel& kernel, size_t index, size_t* offset, size_t* size) {
  require(offset != nullptr);
  require(index < kernel.param_offsets.size(), CUDA_ERROR_INVALID_VALUE, "there is no such parameter");
  *offset = kernel.param_offsets[index];
  if (size != nullptr) *size = kernel.param_sizes[index];
}

}  // namespace

CUfunc_st& live_function(Call& c, CUfunction handle) {
  auto it = state().functions.find(handle);
  if (it != state().functions.end()) return *it->second;
  const auto kernel = reinterpret_cast<CUkernel>(handle);
  require(state().kernels.contains(kernel), CUDA_ERROR_INVALID_HANDLE, "not a live function");
  return function_of(c.context(), kernel);
}

int function_attribute(const CUfunc_st& f, CUfunction_attribute attribute) {
  const Kernel& k = *f.kernel;
  const auto& cluster = k.function->reqnctapercluster;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return static_cast<int>(threads_limit(k));
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      return static_cast<int>(k.static_shared);
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: {
      uint64_t bytes = 0;
      for (const ptx::Variable& v : k.module->variables) bytes += v.space == ptx::Space::Const ? v.bytes : 0;
      return static_cast<int>(bytes);
    }
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      return static_cast<int>(k.local_bytes);
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      return registers_of(k);
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      return state().device.arch;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
      return 0;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      return f.max_dynamic_shared;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return f.carveout;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
      return k.function->explicit_cluster;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
      return cluster[0] > 0 ? cluster[0] : static_cast<int>(f.required_cluster.x);
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
      return cluster[0] > 0 ? cluster[1] : static_cast<int>(f.required_cluster.y);
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      return cluster[0] > 0 ? cluster[2] : static_cast<int>(f.required_cluster.z);
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      return f.non_portable_cluster;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      return f.cluster_policy;
    default:
      fail(CUDA_ERROR_INVALID_VALUE, "unknown function attribute");
  }
}

}  // namespace sim::driver

using namespace sim::driver;

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  API(HealthyContext, {
    require(value != nullptr);
    *value = function_attribute(live_function(c, function), attribute);
  });
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  API(HealthyContext, { set_attribute(live_function(c, function), attribute, value); });
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
  API(HealthyContext, {
    live_function(c, function);
    require(config >= CU_FUNC_CACHE_PREFER_NONE && config <= CU_FUNC_CACHE_PREFER_EQUAL);
  });
}

CUresult cuFuncGetModule(CUmodule* module, CUfunction function) {
  API(HealthyContext, {
    require(module != nullptr);
    *module = live_function(c, function).module;
  });
}

CUresult cuFuncGetName(const char** name, CUfunction function) {
  API(HealthyContext, {
    require(name != nullptr);
    *name = live_function(c, function).name.c_str();
  });
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* size) {
  API(HealthyContext, { param_info(*live_function(c, function).kernel, index, offset, size); });
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState* loaded, CUfunction function) {
  API(HealthyContext, {
    require(loaded != nullptr);
    live_function(c, function);
    *loaded = CU_FUNCTION_LOADING_STATE_LOADED;
  });
}

CUresult cuFuncLoad(CUfunction function) {
  API(HealthyContext, { live_function(c, function); });
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  API(HealthyContext, {
    require(function != nullptr);
    *function = &function_of(c.context(), kernel);
  });
}

CUresult cuKernelGetLibrary(CUlibrary* library, CUkernel kernel) {
  API(Initialized, {
    require(library != nullptr);
    *library = state().kernels.get(kernel).library;
  });
}

CUresult cuKernelGetName(const char** name, CUkernel kernel) {
  API(Initialized, {
    require(name != nullptr);
    *name = state().kernels.get(kernel).name.c_str();
  });
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device) {
  API(HealthyContext, {
    require(value != nullptr);
    check_device(device);
    *value = function_attribute(function_of(c.context(), kernel), attribute);
  });
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
  API(HealthyContext, {
    check_device(device);
    set_attribute(function_of(c.context(), kernel), attribute, value);
  });
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache, CUdevice device) {
  API(Initialized, {
    check_device(device);
    state().kernels.get(kernel);
  });
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* size) {
  API(HealthyContext, { param_info(*function_of(c.context(), kernel).kernel, index, offset, size); });
}
