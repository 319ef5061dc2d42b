// SPDX-License-Identifier: Apache-2.0
// A device's primary context: modules, launches, memory.
#include <fmt/format.h>

#include <bit>

#include "driver/driver.h"
#include "driver/functions.h"
#include "moxie/error.h"

namespace moxie::driver {
namespace {

// Makes a context current on this thread until the end of the scope. Mostly it is already: callers use the primary one.
class Current {
 public:
  Current(const Driver& driver, CUcontext context) : driver_(driver) {
    CUcontext current = nullptr;
    driver_.check(driver_.call().cuCtxGetCurrent(&current), "cuCtxGetCurrent");
    if (current == context) return;
    driver_.check(driver_.call().cuCtxPushCurrent(context), "cuCtxPushCurrent");
    pushed_ = true;
  }
  ~Current() {
    CUcontext popped = nullptr;
    if (pushed_) driver_.call().cuCtxPopCurrent(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

std::atomic<uint64_t> contexts{0};  // the number of the last one

CUdeviceptr address_of(const void* p) { return reinterpret_cast<CUdeviceptr>(p); }

}  // namespace

Context::Context(std::shared_ptr<Driver> driver, int ordinal, bool simulated)
    : driver_(std::move(driver)),
      number_(++contexts),
      info_(driver_->device_info(ordinal, simulated)),
      wants_ptx_(simulated) {
  const Functions& call = driver_->call();
  CUdevice device = 0;
  driver_->check(call.cuDeviceGet(&device, ordinal), "cuDeviceGet");
  driver_->check(call.cuDevicePrimaryCtxRetain(&context_, device), "cuDevicePrimaryCtxRetain");
  primary_ = std::shared_ptr<void>(
      context_, [driver = driver_, device](void*) { driver->call().cuDevicePrimaryCtxRelease(device); });
}

Context::~Context() = default;

bool Context::wants_ptx() const { return wants_ptx_.load(std::memory_order_relaxed); }
void Context::set_wants_ptx() { wants_ptx_.store(true, std::memory_order_relaxed); }

LoadedKernel Context::load(const std::string& image, const char* entry, int dynamic_shared_bytes,
                           bool* no_binary) const {
  const Functions& call = driver_->call();
  const Current current(*driver_, context_);

  std::string log(4096, '\0');
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log.data(), std::bit_cast<void*>(log.size())};
  CUmodule loaded = nullptr;
  // std::string ends in a zero byte, which PTX text must.
  const CUresult result = call.cuModuleLoadDataEx(&loaded, image.c_str(), 2, options, values);
  if (result == CUDA_ERROR_NO_BINARY_FOR_GPU && no_binary != nullptr) {
    *no_binary = true;
    return {};
  }
  const std::string said = log[0] == '\0' ? "" : fmt::format(": {}", log.c_str());
  driver_->check(result, fmt::format("cuModuleLoadDataEx ({}){}", entry, said).c_str());

  LoadedKernel kernel;
  kernel.module = std::shared_ptr<void>(loaded, [driver = driver_, primary = primary_](void* module) {
    // Not through Current: at the end of the process the driver may already refuse, and a destructor must not throw.
    CUcontext popped = nullptr;
    if (driver->call().cuCtxPushCurrent(static_cast<CUcontext>(primary.get())) != CUDA_SUCCESS) return;
    driver->call().cuModuleUnload(static_cast<CUmodule>(module));
    driver->call().cuCtxPopCurrent(&popped);
  });
  driver_->check(call.cuModuleGetFunction(&kernel.function, loaded, entry),
                 fmt::format("cuModuleGetFunction ({})", entry).c_str());
  if (dynamic_shared_bytes > 0) {
    driver_->check(
        call.cuFuncSetAttribute(kernel.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic_shared_bytes),
        fmt::format("cuFuncSetAttribute ({}, {} bytes of shared memory)", entry, dynamic_shared_bytes).c_str());
  }
  return kernel;
}

void Context::launch(const LoadedKernel& kernel, const LaunchShape& shape, void** arguments, Stream stream) const {
  const Current current(*driver_, context_);
  CUlaunchAttribute attributes[2] = {};
  CUlaunchConfig config = {};
  config.gridDimX = shape.grid;
  config.gridDimY = shape.grid_y;
  config.gridDimZ = 1;
  config.blockDimX = shape.block;
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = shape.shared;
  config.hStream = stream;
  config.attrs = attributes;
  if (shape.cluster > 1) {
    CUlaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    cluster.value.clusterDim.x = shape.cluster;
    cluster.value.clusterDim.y = cluster.value.clusterDim.z = 1;
  }
  constexpr int kProgrammaticEdges =
      12030;  // the first CUDA version whose graphs have them: captured launches are safe
  if (shape.programmatic && driver_->version() >= kProgrammaticEdges) {
    CUlaunchAttribute& overlap = attributes[config.numAttrs++];
    overlap.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    overlap.value.programmaticStreamSerializationAllowed = 1;
  }
  driver_->check(driver_->call().cuLaunchKernelEx(&config, kernel.function, arguments, nullptr), "cuLaunchKernelEx");
}

CUresult Context::encode(CUtensorMap& map, const void* address, const TensorMapShape& shape) const {
  const Current current(*driver_, context_);
  const cuuint32_t element_strides[5] = {1, 1, 1, 1, 1};
  const CUtensorMapSwizzle swizzle = shape.swizzle_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : shape.swizzle_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                     : shape.swizzle_bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                                 : CU_TENSOR_MAP_SWIZZLE_NONE;
  return driver_->call().cuTensorMapEncodeTiled(&map, shape.type, static_cast<cuuint32_t>(shape.rank),
                                                const_cast<void*>(address), shape.dims, shape.strides, shape.box,
                                                element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                                CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

void* Context::allocate(size_t bytes) const {
  if (bytes == 0) return nullptr;
  const Current current(*driver_, context_);
  CUdeviceptr p = 0;
  const CUresult result = driver_->call().cuMemAlloc(&p, bytes);
  if (result != CUDA_SUCCESS) driver_->check(result, fmt::format("cuMemAlloc of {} bytes", bytes).c_str());
  return std::bit_cast<void*>(p);
}

void Context::free(void* p) const noexcept {
  if (p == nullptr) return;
  CUcontext popped = nullptr;
  if (driver_->call().cuCtxPushCurrent(context_) != CUDA_SUCCESS) return;
  driver_->call().cuMemFree(address_of(p));
  driver_->call().cuCtxPopCurrent(&popped);
}

void Context::upload(void* to, const void* from, size_t bytes, Stream stream) const {
  if (bytes == 0) return;
  const Current current(*driver_, context_);
  driver_->check(driver_->call().cuMemcpyHtoDAsync(address_of(to), from, bytes, stream), "cuMemcpyHtoDAsync");
  driver_->check(driver_->call().cuStreamSynchronize(stream), "cuStreamSynchronize");
}

void Context::download(void* to, const void* from, size_t bytes, Stream stream) const {
  if (bytes == 0) return;
  const Current current(*driver_, context_);
  driver_->check(driver_->call().cuMemcpyDtoHAsync(to, address_of(from), bytes, stream), "cuMemcpyDtoHAsync");
  driver_->check(driver_->call().cuStreamSynchronize(stream), "cuStreamSynchronize");
}

void Context::fill(void* p, uint8_t value, size_t bytes, Stream stream) const {
  if (bytes == 0) return;
  const Current current(*driver_, context_);
  driver_->check(driver_->call().cuMemsetD8Async(address_of(p), value, bytes, stream), "cuMemsetD8Async");
  driver_->check(driver_->call().cuStreamSynchronize(stream), "cuStreamSynchronize");
}

void Context::synchronize(Stream stream) const {
  const Current current(*driver_, context_);
  driver_->check(driver_->call().cuStreamSynchronize(stream), "cuStreamSynchronize");
}

}  // namespace moxie::driver
