// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA runtime that compute programs use, over the documented driver API: libcudart.so.13 beside the
// simulator's libcuda.so.1, for programs that nvcc has linked with -cudart shared. NVIDIA's own runtime asks the driver
// for private tables, which the simulator does not have. Its error codes are the driver's.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdio>
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
  // __managed__ variables: by the pointers through which the host reaches them.
  std::map<void**, Symbol*> managed;
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

std::atomic<unsigned> resets{0};  // how often cudaDeviceReset() has ended the primary context

// Every thread works in the primary context of the only device.
CUresult begin() {
  static const CUresult ready = [] {
    CUcontext context = nullptr;
    const CUresult result = cuInit(0);
    return result == CUDA_SUCCESS ? cuDevicePrimaryCtxRetain(&context, 0) : result;
  }();
  thread_local unsigned current = UINT_MAX;
  const unsigned now = resets;
  if (ready != CUDA_SUCCESS || current == now) return ready;
  CUcontext context = nullptr;
  if (const CUresult result = cuDevicePrimaryCtxRetain(&context, 0); result != CUDA_SUCCESS) return result;
  current = now;
  return cuCtxSetCurrent(context);
}

// Begins, does what `work` says, and answers for both.
template <class Work>
cudaError_t run(Work work) {
  const CUresult ready = begin();
  return answer(ready == CUDA_SUCCESS ? work() : ready);
}

// A program hears no more of a module that is refused than an error's name, so the reason is printed.
CUresult load(FatBinary& binary) {
  if (binary.module != nullptr) return CUDA_SUCCESS;
  std::string log(4096, '\0');
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log.data(), reinterpret_cast<void*>(log.size())};
  const CUresult result = cuModuleLoadDataEx(&binary.module, binary.image, 2, options, values);
  if (result != CUDA_SUCCESS && log[0] != '\0')
    std::fprintf(stderr, "the program's module is refused: %s\n", log.c_str());
  for (auto& [pointer, symbol] : registry().managed) {
    CUdeviceptr address = 0;
    if (result == CUDA_SUCCESS && symbol->binary == &binary &&
        cuModuleGetGlobal(&address, nullptr, binary.module, symbol->name.c_str()) == CUDA_SUCCESS)
      *pointer = reinterpret_cast<void*>(address);
  }
  return result;
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

// Whether a GPU has launches of this shape.
bool can_launch(dim3 grid, dim3 block) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  return grid.x > 0 && grid.x <= INT_MAX && grid.y > 0 && grid.y <= 65535 && grid.z > 0 && grid.z <= 65535 &&
         threads > 0 && threads <= 1024 && block.z <= 64;
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

// A box of bytes between pitched places.
struct Place {
  void* pointer;
  size_t pitch, rows;  // bytes from a row to the next, rows from a plane to the next
};
CUDA_MEMCPY3D box(const Place& to, const Place& from, size_t width, size_t height, size_t depth, cudaMemcpyKind kind) {
  const auto type_of = [&](bool on_host) {
    return kind == cudaMemcpyDefault ? CU_MEMORYTYPE_UNIFIED : on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  };
  CUDA_MEMCPY3D all{};
  all.srcMemoryType = type_of(kind == cudaMemcpyHostToHost || kind == cudaMemcpyHostToDevice);
  all.dstMemoryType = type_of(kind == cudaMemcpyHostToHost || kind == cudaMemcpyDeviceToHost);
  all.srcHost = from.pointer, all.srcDevice = device(from.pointer);
  all.dstHost = to.pointer, all.dstDevice = device(to.pointer);
  all.srcPitch = from.pitch, all.srcHeight = from.rows;
  all.dstPitch = to.pitch, all.dstHeight = to.rows;
  all.WidthInBytes = width, all.Height = height, all.Depth = depth;
  return all;
}
CUresult copy_box(const CUDA_MEMCPY3D& all, bool async, cudaStream_t stream) {
  if (all.WidthInBytes == 0 || all.Height == 0 || all.Depth == 0) return CUDA_SUCCESS;
  return async ? cuMemcpy3DAsync(&all, stream) : cuMemcpy3D(&all);
}
// Arrays are not simulated.
CUresult box_of(const cudaMemcpy3DParms& p, CUDA_MEMCPY3D* all) {
  if (p.srcArray != nullptr || p.dstArray != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  *all = box({p.dstPtr.ptr, p.dstPtr.pitch, p.dstPtr.ysize}, {p.srcPtr.ptr, p.srcPtr.pitch, p.srcPtr.ysize},
             p.extent.width, p.extent.height, p.extent.depth, p.kind);
  all->srcXInBytes = p.srcPos.x, all->srcY = p.srcPos.y, all->srcZ = p.srcPos.z;
  all->dstXInBytes = p.dstPos.x, all->dstY = p.dstPos.y, all->dstZ = p.dstPos.z;
  return CUDA_SUCCESS;
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
// Called before the host first uses a __managed__ variable of the module.
char __cudaInitModule(void** binary) {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  return begin() == CUDA_SUCCESS && load(*reinterpret_cast<FatBinary*>(binary)) == CUDA_SUCCESS;
}
void __cudaRegisterFunction(void** binary, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  registry().kernels[host] = std::make_unique<Symbol>(Symbol{reinterpret_cast<FatBinary*>(binary), name, nullptr});
}
void __cudaRegisterVar(void** binary, char* host, char*, const char* name, int, size_t, int, int) {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  registry().variables[host] = std::make_unique<Symbol>(Symbol{reinterpret_cast<FatBinary*>(binary), name, nullptr});
}
void __cudaRegisterManagedVar(void** binary, void** host, char*, const char* name, int, size_t, int, int) {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  auto symbol = std::make_unique<Symbol>(Symbol{reinterpret_cast<FatBinary*>(binary), name, nullptr});
  registry().managed[host] = symbol.get();
  registry().variables[host] = std::move(symbol);
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
  if (!can_launch(grid, block)) return answer(cudaErrorInvalidConfiguration);
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
  if (!can_launch(config->gridDim, config->blockDim)) return answer(cudaErrorInvalidConfiguration);
  return with_function(host, [&](CUfunction f) {
    const CUlaunchConfig c = config_of(*config);
    return cuLaunchKernelEx(&c, f, args, nullptr);
  });
}
cudaError_t cudaLaunchCooperativeKernel(const void* host, dim3 grid, dim3 block, void** args, size_t shared,
                                        cudaStream_t stream) {
  if (!can_launch(grid, block)) return answer(cudaErrorInvalidConfiguration);
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
cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, const void* host, const cudaLaunchConfig_t* config) {
  return with_function(host, [&](CUfunction f) {
    const CUlaunchConfig c = config_of(*config);
    return cuOccupancyMaxPotentialClusterSize(size, f, &c);
  });
}
cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void* host, int blocks, int threads) {
  return with_function(
      host, [&](CUfunction f) { return cuOccupancyAvailableDynamicSMemPerBlock(bytes, f, blocks, threads); });
}
cudaError_t cudaFuncSetCacheConfig(const void* host, cudaFuncCache config) {
  return with_function(host, [&](CUfunction f) { return cuFuncSetCacheConfig(f, static_cast<CUfunc_cache>(config)); });
}
cudaError_t cudaFuncGetName(const char** name, const void* host) {
  return with_function(host, [&](CUfunction f) { return cuFuncGetName(name, f); });
}
cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* host) {
  return with_function(host, [&](CUfunction f) { return *function = f, CUDA_SUCCESS; });
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
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                cudaStream_t stream) {
  return run([&] {
    if (to_device != 0 || from_device != 0) return CUDA_ERROR_INVALID_DEVICE;
    return copy(to, from, bytes, cudaMemcpyDeviceToDevice, true, stream);
  });
}
cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device, size_t bytes) {
  const cudaError_t copied = cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, nullptr);
  return copied != cudaSuccess ? copied : cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return run([&] { return bytes ? cuMemsetD8(device(to), static_cast<unsigned char>(value), bytes) : CUDA_SUCCESS; });
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return run([&] {
    return bytes ? cuMemsetD8Async(device(to), static_cast<unsigned char>(value), bytes, stream) : CUDA_SUCCESS;
  });
}
cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  return run([&] {
    *pointer = nullptr, *pitch = 0;
    if (width == 0 || height == 0) return CUDA_SUCCESS;
    return cuMemAllocPitch(reinterpret_cast<CUdeviceptr*>(pointer), pitch, width, height, 4);
  });
}
cudaError_t cudaMalloc3D(cudaPitchedPtr* out, cudaExtent extent) {
  *out = {nullptr, 0, extent.width, extent.height};
  return cudaMallocPitch(&out->ptr, &out->pitch, extent.width, extent.height * extent.depth);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return run([&] {
    if (width > to_pitch || width > from_pitch) return CUDA_ERROR_INVALID_VALUE;
    return copy_box(box({to, to_pitch, 0}, {const_cast<void*>(from), from_pitch, 0}, width, height, 1, kind), true,
                    stream);
  });
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind) {
  return run([&] {
    if (width > to_pitch || width > from_pitch) return CUDA_ERROR_INVALID_VALUE;
    return copy_box(box({to, to_pitch, 0}, {const_cast<void*>(from), from_pitch, 0}, width, height, 1, kind), false,
                    nullptr);
  });
}
cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* copy, cudaStream_t stream) {
  return run([&] {
    CUDA_MEMCPY3D all;
    const CUresult result = box_of(*copy, &all);
    return result == CUDA_SUCCESS ? copy_box(all, true, stream) : result;
  });
}
cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* copy) {
  return run([&] {
    CUDA_MEMCPY3D all;
    const CUresult result = box_of(*copy, &all);
    return result == CUDA_SUCCESS ? copy_box(all, false, nullptr) : result;
  });
}
cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
  return run([&] {
    if (width == 0 || height == 0) return CUDA_SUCCESS;
    return cuMemsetD2D8Async(device(to), pitch, static_cast<unsigned char>(value), width, height, stream);
  });
}
cudaError_t cudaMemset2D(void* to, size_t pitch, int value, size_t width, size_t height) {
  return run([&] {
    if (width == 0 || height == 0) return CUDA_SUCCESS;
    return cuMemsetD2D8(device(to), pitch, static_cast<unsigned char>(value), width, height);
  });
}
cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned flags) {
  return run([&] { return cuMemHostRegister(pointer, bytes, flags); });
}
cudaError_t cudaHostUnregister(void* pointer) {
  return run([&] { return cuMemHostUnregister(pointer); });
}
cudaError_t cudaHostGetDevicePointer(void** out, void* pointer, unsigned flags) {
  return run([&] { return cuMemHostGetDevicePointer(reinterpret_cast<CUdeviceptr*>(out), pointer, flags); });
}
cudaError_t cudaHostGetFlags(unsigned* flags, void* pointer) {
  return run([&] { return cuMemHostGetFlags(flags, pointer); });
}
// Memory that the driver does not know is no error.
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* pointer) {
  return run([&] {
    std::memset(out, 0, sizeof *out);
    out->type = cudaMemoryTypeUnregistered;
    out->device = cudaInvalidDeviceId;
    out->hostPointer = const_cast<void*>(pointer);
    const auto get = [&](CUpointer_attribute attribute, auto* value) {
      return cuPointerGetAttribute(value, attribute, device(pointer)) == CUDA_SUCCESS;
    };
    CUmemorytype type{};
    if (!get(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, &type)) return CUDA_SUCCESS;
    int managed = 0;
    get(CU_POINTER_ATTRIBUTE_IS_MANAGED, &managed);
    get(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, &out->device);
    out->type = managed                      ? cudaMemoryTypeManaged
                : type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost
                                             : cudaMemoryTypeDevice;
    if (!get(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, &out->devicePointer)) out->devicePointer = nullptr;
    if (!get(CU_POINTER_ATTRIBUTE_HOST_POINTER, &out->hostPointer)) out->hostPointer = nullptr;
    return CUDA_SUCCESS;
  });
}
#if CUDART_VERSION >= 13000  // before, a place is the number of a device
cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t bytes, cudaMemLocation location, unsigned flags,
                                 cudaStream_t stream) {
  return run([&] {
    const CUmemLocation to{static_cast<CUmemLocationType>(location.type), {location.id}};
    return cuMemPrefetchAsync(device(pointer), bytes, to, flags, stream);
  });
}
cudaError_t cudaMemAdvise(const void* pointer, size_t bytes, cudaMemoryAdvise advice, cudaMemLocation location) {
  return run([&] {
    const CUmemLocation to{static_cast<CUmemLocationType>(location.type), {location.id}};
    return cuMemAdvise(device(pointer), bytes, static_cast<CUmem_advise>(advice), to);
  });
}
#endif
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int ordinal) {
  return run([&] { return cuDeviceGetDefaultMemPool(pool, ordinal); });
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int ordinal) {
  return run([&] { return cuDeviceGetMemPool(pool, ordinal); });
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return run([&] { return cuMemPoolSetAttribute(pool, static_cast<CUmemPool_attribute>(attribute), value); });
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return run([&] { return cuMemPoolGetAttribute(pool, static_cast<CUmemPool_attribute>(attribute), value); });
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) {
  return run([&] { return cuMemPoolTrimTo(pool, keep); });
}
cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  return run([&] {
    *pointer = nullptr;
    if (bytes == 0) return CUDA_SUCCESS;
    return cuMemAllocFromPoolAsync(reinterpret_cast<CUdeviceptr*>(pointer), bytes, pool, stream);
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
cudaError_t cudaGetSymbolSize(size_t* bytes, const void* symbol) {
  return run([&] {
    CUdeviceptr address = 0;
    return find_variable(symbol, &address, bytes);
  });
}
cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes, size_t offset,
                                    cudaMemcpyKind kind, cudaStream_t stream) {
  void* to = nullptr;
  const cudaError_t found = cudaGetSymbolAddress(&to, symbol);
  return found != cudaSuccess ? found : cudaMemcpyAsync(static_cast<char*>(to) + offset, from, bytes, kind, stream);
}
cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind kind,
                                      cudaStream_t stream) {
  void* from = nullptr;
  const cudaError_t found = cudaGetSymbolAddress(&from, symbol);
  return found != cudaSuccess ? found : cudaMemcpyAsync(to, static_cast<char*>(from) + offset, bytes, kind, stream);
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
    const CUresult named = cuDeviceGetName(out->name, sizeof out->name, ordinal);
    cuDeviceTotalMem(&out->totalGlobalMem, ordinal);
    out->major = get(cudaDevAttrComputeCapabilityMajor);
    out->minor = get(cudaDevAttrComputeCapabilityMinor);
    out->multiProcessorCount = get(cudaDevAttrMultiProcessorCount);
    out->warpSize = get(cudaDevAttrWarpSize);
    out->maxThreadsPerBlock = get(cudaDevAttrMaxThreadsPerBlock);
    out->maxThreadsPerMultiProcessor = get(cudaDevAttrMaxThreadsPerMultiProcessor);
    out->maxBlocksPerMultiProcessor = get(cudaDevAttrMaxBlocksPerMultiprocessor);
    out->regsPerBlock = get(cudaDevAttrMaxRegistersPerBlock);
    out->regsPerMultiprocessor = get(cudaDevAttrMaxRegistersPerMultiprocessor);
    out->l2CacheSize = get(cudaDevAttrL2CacheSize);
    out->persistingL2CacheMaxSize = get(cudaDevAttrMaxPersistingL2CacheSize);
    out->accessPolicyMaxWindowSize = get(cudaDevAttrMaxAccessPolicyWindowSize);
    out->memoryBusWidth = get(cudaDevAttrGlobalMemoryBusWidth);
    out->asyncEngineCount = get(cudaDevAttrAsyncEngineCount);
    out->integrated = get(cudaDevAttrIntegrated);
    out->canMapHostMemory = get(cudaDevAttrCanMapHostMemory);
    out->concurrentKernels = get(cudaDevAttrConcurrentKernels);
    out->ECCEnabled = get(cudaDevAttrEccEnabled);
    out->pciBusID = get(cudaDevAttrPciBusId);
    out->pciDeviceID = get(cudaDevAttrPciDeviceId);
    out->pciDomainID = get(cudaDevAttrPciDomainId);
    out->unifiedAddressing = get(cudaDevAttrUnifiedAddressing);
    out->streamPrioritiesSupported = get(cudaDevAttrStreamPrioritiesSupported);
    out->globalL1CacheSupported = get(cudaDevAttrGlobalL1CacheSupported);
    out->localL1CacheSupported = get(cudaDevAttrLocalL1CacheSupported);
    out->managedMemory = get(cudaDevAttrManagedMemory);
    out->pageableMemoryAccess = get(cudaDevAttrPageableMemoryAccess);
    out->concurrentManagedAccess = get(cudaDevAttrConcurrentManagedAccess);
    out->computePreemptionSupported = get(cudaDevAttrComputePreemptionSupported);
    out->canUseHostPointerForRegisteredMem = get(cudaDevAttrCanUseHostPointerForRegisteredMem);
    out->cooperativeLaunch = get(cudaDevAttrCooperativeLaunch);
    out->hostRegisterSupported = get(cudaDevAttrHostRegisterSupported);
    out->hostRegisterReadOnlySupported = get(cudaDevAttrHostRegisterReadOnlySupported);
    out->memoryPoolsSupported = get(cudaDevAttrMemoryPoolsSupported);
    out->clusterLaunch = get(cudaDevAttrClusterLaunch);
    out->sharedMemPerBlock = static_cast<size_t>(get(cudaDevAttrMaxSharedMemoryPerBlock));
    out->sharedMemPerBlockOptin = static_cast<size_t>(get(cudaDevAttrMaxSharedMemoryPerBlockOptin));
    out->sharedMemPerMultiprocessor = static_cast<size_t>(get(cudaDevAttrMaxSharedMemoryPerMultiprocessor));
    out->reservedSharedMemPerBlock = static_cast<size_t>(get(cudaDevAttrReservedSharedMemoryPerBlock));
    out->memPitch = static_cast<size_t>(get(cudaDevAttrMaxPitch));
    out->totalConstMem = static_cast<size_t>(get(cudaDevAttrTotalConstantMemory));
    out->textureAlignment = static_cast<size_t>(get(cudaDevAttrTextureAlignment));
    out->texturePitchAlignment = static_cast<size_t>(get(cudaDevAttrTexturePitchAlignment));
    out->surfaceAlignment = static_cast<size_t>(get(cudaDevAttrSurfaceAlignment));
    for (int i = 0; i < 3; ++i) {
      out->maxThreadsDim[i] = get(static_cast<cudaDeviceAttr>(cudaDevAttrMaxBlockDimX + i));
      out->maxGridSize[i] = get(static_cast<cudaDeviceAttr>(cudaDevAttrMaxGridDimX + i));
    }
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
// Ends the primary context, and its failure. The next call begins another, in which nothing of the first is left.
cudaError_t cudaDeviceReset() {
  return run([] {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    for (const auto& [host, kernel] : registry().kernels) kernel->function = nullptr;
    for (const auto& binary : registry().binaries) binary->module = nullptr;
    ++resets;
    return cuDevicePrimaryCtxReset(0);
  });
}
cudaError_t cudaInitDevice(int ordinal, unsigned, unsigned) { return cudaSetDevice(ordinal); }
cudaError_t cudaSetDeviceFlags(unsigned flags) {
  return run([&] { return cuCtxSetFlags(flags); });
}
cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  return run([&] { return cuCtxGetFlags(flags); });
}
cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache config) {
  return run([&] { return cuCtxSetCacheConfig(static_cast<CUfunc_cache>(config)); });
}
cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache* config) {
  return run([&] { return cuCtxGetCacheConfig(reinterpret_cast<CUfunc_cache*>(config)); });
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return run([&] { return cuCtxGetStreamPriorityRange(least, greatest); });
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int ordinal) {
  return run([&] { return cuDeviceGetPCIBusId(id, length, ordinal); });
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int ordinal, int peer) {
  return run([&] { return cuDeviceCanAccessPeer(can, ordinal, peer); });
}
// No device is a peer of itself, and there is no other.
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned flags) {
  return run([&] { return flags != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE; });
}
cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return run([&] { return peer == 0 ? CUDA_ERROR_PEER_ACCESS_NOT_ENABLED : CUDA_ERROR_INVALID_DEVICE; });
}
// There is no profiler.
cudaError_t cudaProfilerStart() {
  return run([] { return CUDA_SUCCESS; });
}
cudaError_t cudaProfilerStop() {
  return run([] { return CUDA_SUCCESS; });
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
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return run([&] { return cuStreamCreateWithPriority(stream, flags, priority); });
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return run([&] { return cuStreamGetPriority(stream, priority); });
}
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  return run([&] { return cuStreamGetFlags(stream, flags); });
}
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  return run([&] { return cuStreamGetId(stream, id); });
}
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* ordinal) {
  return run([&] { return cuStreamGetDevice(stream, ordinal); });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return run([&] { return cuStreamQuery(stream); });
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned flags) {
  return run([&] { return cuStreamAddCallback(stream, reinterpret_cast<CUstreamCallback>(callback), data, flags); });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return run([&] { return cuLaunchHostFunc(stream, function, data); });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return run([&] { return cuEventQuery(event); });
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return run([&] { return cuEventRecordWithFlags(event, stream, flags); });
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
  // The driver has no such errors.
  switch (static_cast<int>(error)) {
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorMissingConfiguration:
      return "__global__ function call is not configured";
    case cudaErrorInvalidDeviceFunction:
      return "invalid device function";
  }
  const char* text = nullptr;
  return cuGetErrorString(static_cast<CUresult>(error), &text) == CUDA_SUCCESS ? text : "unrecognized error code";
}
const char* cudaGetErrorName(cudaError_t error) {
  switch (static_cast<int>(error)) {
#define NAME(name) \
  case name:       \
    return #name;
#include "sim/runtime/error_names.inc"
#undef NAME
  }
  return "unrecognized error code";
}

// ---- graphs ---------------------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return run([&] { return cuStreamBeginCapture(stream, static_cast<CUstreamCaptureMode>(mode)); });
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return run([&] { return cuStreamEndCapture(stream, graph); });
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return run([&] { return cuStreamIsCapturing(stream, reinterpret_cast<CUstreamCaptureStatus*>(status)); });
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return run([&] { return cuThreadExchangeStreamCaptureMode(reinterpret_cast<CUstreamCaptureMode*>(mode)); });
}
cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned flags) {
  return run([&] { return cuGraphCreate(graph, flags); });
}
cudaError_t cudaGraphClone(cudaGraph_t* clone, cudaGraph_t graph) {
  return run([&] { return cuGraphClone(clone, graph); });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return run([&] { return cuGraphDestroy(graph); });
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return run([&] { return cuGraphGetNodes(graph, nodes, count); });
}
cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return run([&] { return cuGraphGetRootNodes(graph, nodes, count); });
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  return run([&] { return cuGraphNodeGetType(node, reinterpret_cast<CUgraphNodeType*>(type)); });
}
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* before,
                                   size_t count, const cudaKernelNodeParams* params) {
  return with_function(params->func, [&](CUfunction f) {
    CUDA_KERNEL_NODE_PARAMS all{};
    all.func = f;
    all.gridDimX = params->gridDim.x, all.gridDimY = params->gridDim.y, all.gridDimZ = params->gridDim.z;
    all.blockDimX = params->blockDim.x, all.blockDimY = params->blockDim.y, all.blockDimZ = params->blockDim.z;
    all.sharedMemBytes = params->sharedMemBytes;
    all.kernelParams = params->kernelParams, all.extra = params->extra;
    return cuGraphAddKernelNode(node, graph, before, count, &all);
  });
}
cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* before,
                                   size_t count, const cudaMemcpy3DParms* copy) {
  return run([&] {
    CUDA_MEMCPY3D all;
    CUcontext context = nullptr;
    CUresult result = box_of(*copy, &all);
    if (result == CUDA_SUCCESS) result = cuCtxGetCurrent(&context);
    return result == CUDA_SUCCESS ? cuGraphAddMemcpyNode(node, graph, before, count, &all, context) : result;
  });
}
cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* before,
                                     size_t count, void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return run([&] {
    const CUDA_MEMCPY3D all = box({to, bytes, 1}, {const_cast<void*>(from), bytes, 1}, bytes, 1, 1, kind);
    CUcontext context = nullptr;
    const CUresult result = cuCtxGetCurrent(&context);
    return result == CUDA_SUCCESS ? cuGraphAddMemcpyNode(node, graph, before, count, &all, context) : result;
  });
}
cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* before,
                                   size_t count, const cudaMemsetParams* params) {
  return run([&] {
    CUDA_MEMSET_NODE_PARAMS all{};
    all.dst = device(params->dst), all.pitch = params->pitch;
    all.value = params->value, all.elementSize = params->elementSize;
    all.width = params->width, all.height = params->height;
    CUcontext context = nullptr;
    const CUresult result = cuCtxGetCurrent(&context);
    return result == CUDA_SUCCESS ? cuGraphAddMemsetNode(node, graph, before, count, &all, context) : result;
  });
}
cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* before, size_t count,
                                 const cudaHostNodeParams* params) {
  return run([&] {
    CUDA_HOST_NODE_PARAMS all{};
    all.fn = params->fn, all.userData = params->userData;
    return cuGraphAddHostNode(node, graph, before, count, &all);
  });
}
cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* before,
                                  size_t count) {
  return run([&] { return cuGraphAddEmptyNode(node, graph, before, count); });
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return run([&] { return cuGraphInstantiateWithFlags(exec, graph, flags); });
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(exec, graph, flags);
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* info) {
  static_assert(sizeof(cudaGraphExecUpdateResultInfo) == sizeof(CUgraphExecUpdateResultInfo));
  return run([&] { return cuGraphExecUpdate(exec, graph, reinterpret_cast<CUgraphExecUpdateResultInfo*>(info)); });
}
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  return run([&] { return cuGraphUpload(exec, stream); });
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return run([&] { return cuGraphLaunch(exec, stream); });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return run([&] { return cuGraphExecDestroy(exec); });
}

}  // extern "C"
