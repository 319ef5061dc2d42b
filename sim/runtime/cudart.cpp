// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA runtime that compute programs use, over the documented driver API: libcudart.so.13 beside the
// simulator's libcuda.so.1, for programs that nvcc has linked with -cudart shared. NVIDIA's own runtime asks the driver
// for private tables, which the simulator does not have. Its error codes are the driver's.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace {

// ---- what nvcc's code registers before main ------------------------------------------------------

struct FatBinary {
  const void* image;
  CUmodule module;
};
// A kernel or a variable, which the program knows by the address of its host twin.
struct Symbol {
  FatBinary* binary;
  std::string name;
  CUfunction function;
};
struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<FatBinary>> binaries;
  std::map<const void*, std::unique_ptr<Symbol>> kernels, variables;
};
// The registry is never destroyed: programs call the runtime from the destructors of their static objects.
Registry& registry() {
  static Registry& all = *new Registry;
  return all;
}

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t answer(CUresult result) {
  const auto error = static_cast<cudaError_t>(result);
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}
cudaError_t answer(cudaError_t error) { return answer(static_cast<CUresult>(error)); }

// Every thread works in the primary context of the only device.
CUresult begin() {
  static const CUresult ready = [] {
    CUcontext context = nullptr;
    const CUresult result = cuInit(0);
    return result == CUDA_SUCCESS ? cuDevicePrimaryCtxRetain(&context, 0) : result;
  }();
  thread_local bool current = false;
  if (ready != CUDA_SUCCESS || current) return ready;
  CUcontext context = nullptr;
  if (const CUresult result = cuDevicePrimaryCtxRetain(&context, 0); result != CUDA_SUCCESS) return result;
  current = true;
  return cuCtxSetCurrent(context);
}

// Begins, does what `work` says, and answers for both.
template <class Work>
cudaError_t run(Work work) {
  const CUresult ready = begin();
  return answer(ready == CUDA_SUCCESS ? work() : ready);
}

CUresult load(FatBinary& binary) {
  if (binary.module != nullptr) return CUDA_SUCCESS;
  return cuModuleLoadData(&binary.module, binary.image);
}

// The key is the host twin's address or what __cudaGetKernel gave.
CUresult find_function(const void* key, CUfunction* function) {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  Symbol* kernel = nullptr;
  for (const auto& [address, symbol] : registry().kernels) {
    if (address == key || symbol.get() == key) kernel = symbol.get();
  }
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (kernel->function == nullptr) {
    CUresult result = load(*kernel->binary);
    if (result == CUDA_SUCCESS)
      result = cuModuleGetFunction(&kernel->function, kernel->binary->module, kernel->name.c_str());
    if (result != CUDA_SUCCESS) return result;
  }
  *function = kernel->function;
  return CUDA_SUCCESS;
}
template <class Use>
cudaError_t with_function(const void* key, Use use) {
  return run([&] {
    CUfunction function = nullptr;
    const CUresult found = find_function(key, &function);
    return found == CUDA_SUCCESS ? use(function) : found;
  });
}

CUresult find_variable(const void* key, CUdeviceptr* address, size_t* bytes) {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  const auto found = registry().variables.find(key);
  if (found == registry().variables.end()) return CUDA_ERROR_NOT_FOUND;
  const CUresult loaded = load(*found->second->binary);
  if (loaded != CUDA_SUCCESS) return loaded;
  return cuModuleGetGlobal(address, bytes, found->second->binary->module, found->second->name.c_str());
}

CUdeviceptr device(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

CUresult copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, bool async, cudaStream_t stream) {
  if (bytes == 0) return CUDA_SUCCESS;
  switch (kind) {
    case cudaMemcpyHostToHost:
      std::memcpy(to, from, bytes);
      return CUDA_SUCCESS;
    case cudaMemcpyHostToDevice:
      return async ? cuMemcpyHtoDAsync(device(to), from, bytes, stream) : cuMemcpyHtoD(device(to), from, bytes);
    case cudaMemcpyDeviceToHost:
      return async ? cuMemcpyDtoHAsync(to, device(from), bytes, stream) : cuMemcpyDtoH(to, device(from), bytes);
    case cudaMemcpyDeviceToDevice:
      return async ? cuMemcpyDtoDAsync(device(to), device(from), bytes, stream)
                   : cuMemcpyDtoD(device(to), device(from), bytes);
    case cudaMemcpyDefault:
      return async ? cuMemcpyAsync(device(to), device(from), bytes, stream) : cuMemcpy(device(to), device(from), bytes);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUlaunchConfig config_of(const cudaLaunchConfig_t& from) {
  // The runtime's launch attributes are the driver's under other names.
  static_assert(sizeof(cudaLaunchAttribute) == sizeof(CUlaunchAttribute));
  CUlaunchConfig to{};
  to.gridDimX = from.gridDim.x, to.gridDimY = from.gridDim.y, to.gridDimZ = from.gridDim.z;
  to.blockDimX = from.blockDim.x, to.blockDimY = from.blockDim.y, to.blockDimZ = from.blockDim.z;
  to.sharedMemBytes = static_cast<unsigned>(from.dynamicSmemBytes);
  to.hStream = from.stream;
  to.attrs = reinterpret_cast<CUlaunchAttribute*>(from.attrs);
  to.numAttrs = from.numAttrs;
  return to;
}

struct CallConfiguration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<CallConfiguration> configurations;

}  // namespace

extern "C" {

// ---- registration and <<<>>> ----------------------------------------------------------------------

void** __cudaRegisterFatBinary(void* wrapper) {
  struct Wrapper {
    int magic, version;
    const void* image;
  };
  const std::lock_guard<std::mutex> lock(registry().mutex);
  auto& binaries = registry().binaries;
  binaries.push_back(std::make_unique<FatBinary>(FatBinary{static_cast<Wrapper*>(wrapper)->image, nullptr}));
  return reinterpret_cast<void**>(binaries.back().get());
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void** binary, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  registry().kernels[host] = std::make_unique<Symbol>(Symbol{reinterpret_cast<FatBinary*>(binary), name, nullptr});
}
void __cudaRegisterVar(void** binary, char* host, char*, const char* name, int, size_t, int, int) {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  registry().variables[host] = std::make_unique<Symbol>(Symbol{reinterpret_cast<FatBinary*>(binary), name, nullptr});
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  configurations.push_back({grid, block, shared, static_cast<cudaStream_t>(stream)});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  if (configurations.empty()) return answer(cudaErrorMissingConfiguration);
  const CallConfiguration& c = configurations.back();
  *grid = c.grid, *block = c.block, *shared = c.shared;
  *static_cast<cudaStream_t*>(stream) = c.stream;
  configurations.pop_back();
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  const auto found = registry().kernels.find(host);
  if (found == registry().kernels.end()) return answer(cudaErrorInvalidDeviceFunction);
  *kernel = reinterpret_cast<cudaKernel_t>(found->second.get());
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* host, dim3 grid, dim3 block, void** args, size_t shared, cudaStream_t stream) {
  return with_function(host, [&](CUfunction f) {
    return cuLaunchKernel(f, grid.x, grid.y, grid.z, block.x, block.y, block.z, static_cast<unsigned>(shared), stream,
                          args, nullptr);
  });
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args, size_t shared,
                               cudaStream_t stream) {
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, args, shared, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* host, void** args) {
  return with_function(host, [&](CUfunction f) {
    const CUlaunchConfig c = config_of(*config);
    return cuLaunchKernelEx(&c, f, args, nullptr);
  });
}
cudaError_t cudaLaunchCooperativeKernel(const void* host, dim3 grid, dim3 block, void** args, size_t shared,
                                        cudaStream_t stream) {
  return with_function(host, [&](CUfunction f) {
    return cuLaunchCooperativeKernel(f, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                     static_cast<unsigned>(shared), stream, args);
  });
}

// ---- functions ------------------------------------------------------------------------------------

cudaError_t cudaFuncSetAttribute(const void* host, cudaFuncAttribute attribute, int value) {
  return with_function(
      host, [&](CUfunction f) { return cuFuncSetAttribute(f, static_cast<CUfunction_attribute>(attribute), value); });
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void* host) {
  return with_function(host, [&](CUfunction f) {
    std::memset(out, 0, sizeof *out);
    const auto get = [&](CUfunction_attribute attribute) {
      int value = 0;
      cuFuncGetAttribute(&value, attribute, f);
      return value;
    };
    out->sharedSizeBytes = static_cast<size_t>(get(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
    out->constSizeBytes = static_cast<size_t>(get(CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES));
    out->localSizeBytes = static_cast<size_t>(get(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES));
    out->maxThreadsPerBlock = get(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    out->numRegs = get(CU_FUNC_ATTRIBUTE_NUM_REGS);
    out->ptxVersion = get(CU_FUNC_ATTRIBUTE_PTX_VERSION);
    out->binaryVersion = get(CU_FUNC_ATTRIBUTE_BINARY_VERSION);
    out->maxDynamicSharedSizeBytes = get(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
    return CUDA_SUCCESS;
  });
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* host, int threads,
                                                                   size_t shared, unsigned flags) {
  return with_function(host, [&](CUfunction f) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, threads, shared, flags);
  });
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* host, int threads, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, host, threads, shared, 0);
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* host, const cudaLaunchConfig_t* config) {
  return with_function(host, [&](CUfunction f) {
    const CUlaunchConfig c = config_of(*config);
    return cuOccupancyMaxActiveClusters(clusters, f, &c);
  });
}

// ---- memory ---------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return run([&] {
    *pointer = nullptr;
    CUdeviceptr address = 0;
    const CUresult result = bytes > 0 ? cuMemAlloc(&address, bytes) : CUDA_SUCCESS;
    *pointer = reinterpret_cast<void*>(address);
    return result;
  });
}
cudaError_t cudaFree(void* pointer) {
  return run([&] { return pointer ? cuMemFree(device(pointer)) : CUDA_SUCCESS; });
}
cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) { return cudaMalloc(pointer, bytes); }
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  return run([&] { return cuMemFreeAsync(device(pointer), stream); });
}
cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned flags) {
  return run([&] { return cuMemAllocManaged(reinterpret_cast<CUdeviceptr*>(pointer), bytes, flags); });
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return run([&] { return cuMemHostAlloc(pointer, bytes, 0); });
}
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  return run([&] { return cuMemHostAlloc(pointer, bytes, flags); });
}
cudaError_t cudaFreeHost(void* pointer) {
  return run([&] { return pointer ? cuMemFreeHost(pointer) : CUDA_SUCCESS; });
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return run([&] { return copy(to, from, bytes, kind, false, nullptr); });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return run([&] { return copy(to, from, bytes, kind, true, stream); });
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return run([&] { return bytes ? cuMemsetD8(device(to), static_cast<unsigned char>(value), bytes) : CUDA_SUCCESS; });
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return run([&] {
    return bytes ? cuMemsetD8Async(device(to), static_cast<unsigned char>(value), bytes, stream) : CUDA_SUCCESS;
  });
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return run([&] { return cuMemGetInfo(free, total); });
}
cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
  return run([&] {
    size_t bytes = 0;
    return find_variable(symbol, reinterpret_cast<CUdeviceptr*>(pointer), &bytes);
  });
}
cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind kind) {
  void* to = nullptr;
  const cudaError_t found = cudaGetSymbolAddress(&to, symbol);
  return found != cudaSuccess ? found : cudaMemcpy(static_cast<char*>(to) + offset, from, bytes, kind);
}
cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind kind) {
  void* from = nullptr;
  const cudaError_t found = cudaGetSymbolAddress(&from, symbol);
  return found != cudaSuccess ? found : cudaMemcpy(to, static_cast<char*>(from) + offset, bytes, kind);
}

// ---- device ---------------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int* count) {
  return run([&] { return cuDeviceGetCount(count); });
}
cudaError_t cudaGetDevice(int* ordinal) {
  return run([&] { return *ordinal = 0, CUDA_SUCCESS; });
}
cudaError_t cudaSetDevice(int ordinal) {
  return run([&] { return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE; });
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int ordinal) {
  return run([&] { return cuDeviceGetAttribute(value, static_cast<CUdevice_attribute>(attribute), ordinal); });
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int ordinal) {
  return run([&] {
    std::memset(out, 0, sizeof *out);
    const auto get = [&](cudaDeviceAttr attribute) {
      int value = 0;
      cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(attribute), ordinal);
      return value;
    };
    const auto size = [&](cudaDeviceAttr attribute) { return static_cast<size_t>(get(attribute)); };
    const CUresult named = cuDeviceGetName(out->name, sizeof out->name, ordinal);
    cuDeviceTotalMem(&out->totalGlobalMem, ordinal);
    out->major = get(cudaDevAttrComputeCapabilityMajor), out->minor = get(cudaDevAttrComputeCapabilityMinor);
    out->multiProcessorCount = get(cudaDevAttrMultiProcessorCount);
    out->warpSize = get(cudaDevAttrWarpSize);
    out->maxThreadsPerBlock = get(cudaDevAttrMaxThreadsPerBlock);
    out->maxThreadsPerMultiProcessor = get(cudaDevAttrMaxThreadsPerMultiProcessor);
    out->regsPerBlock = get(cudaDevAttrMaxRegistersPerBlock);
    out->regsPerMultiprocessor = get(cudaDevAttrMaxRegistersPerMultiprocessor);
    out->sharedMemPerBlock = size(cudaDevAttrMaxSharedMemoryPerBlock);
    out->sharedMemPerBlockOptin = size(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    out->sharedMemPerMultiprocessor = size(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    out->l2CacheSize = get(cudaDevAttrL2CacheSize);
    out->unifiedAddressing = get(cudaDevAttrUnifiedAddressing);
    out->cooperativeLaunch = get(cudaDevAttrCooperativeLaunch);
    return named;
  });
}
cudaError_t cudaDeviceSynchronize() {
  return run([] { return cuCtxSynchronize(); });
}
cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  return run([&] { return cuCtxSetLimit(static_cast<CUlimit>(limit), value); });
}
cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  return run([&] { return cuCtxGetLimit(value, static_cast<CUlimit>(limit)); });
}
cudaError_t cudaDriverGetVersion(int* version) { return answer(cuDriverGetVersion(version)); }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                             unsigned long long flags, cudaDriverEntryPointQueryResult* result) {
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  const CUresult error = cuGetProcAddress(name, function, static_cast<int>(version), flags, &found);
  if (result != nullptr) *result = static_cast<cudaDriverEntryPointQueryResult>(found);
  // That a function is not there is the query's answer and no error.
  return answer(error == CUDA_ERROR_NOT_FOUND ? CUDA_SUCCESS : error);
}

// ---- streams, events, errors ------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return run([&] { return cuStreamCreate(stream, flags); });
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return run([&] { return cuStreamDestroy(stream); });
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return run([&] { return cuStreamSynchronize(stream); });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return run([&] { return cuStreamWaitEvent(stream, event, flags); });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return run([&] { return cuEventCreate(event, flags); });
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return run([&] { return cuEventRecord(event, stream); });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return run([&] { return cuEventSynchronize(event); });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return run([&] { return cuEventElapsedTime(milliseconds, start, end); });
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return run([&] { return cuEventDestroy(event); });
}
cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorString(cudaError_t error) {
  const char* text = nullptr;
  return cuGetErrorString(static_cast<CUresult>(error), &text) == CUDA_SUCCESS ? text : "unrecognized error code";
}
const char* cudaGetErrorName(cudaError_t error) {
  const char* text = nullptr;
  return cuGetErrorName(static_cast<CUresult>(error), &text) == CUDA_SUCCESS ? text : "unrecognized error code";
}

}  // extern "C"
