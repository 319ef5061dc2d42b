// SPDX-License-Identifier: Apache-2.0
// The CUDA driver, loaded at run time: the system's libcuda.so.1 or the simulator's. The code here does not know which
// of the two it calls.
#pragma once
#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "moxie/arguments.h"
#include "moxie/device.h"

namespace moxie::driver {

struct TensorMapShape;

// The driver functions the library uses, each found through cuGetProcAddress. See functions.h.
struct Functions;

class Driver {
 public:
  // Finds and initializes a libcuda. Throws Error(Driver) with the path that was tried and why it failed.
  // open_cuda: libcuda.so.1 by the system's search rules.
  // open_sim: $MOXIE_SIM_LIBRARY, else lib/moxie/sim/libcuda.so.1 beside this library or program.
  static std::shared_ptr<Driver> open_cuda();
  static std::shared_ptr<Driver> open_sim();
  const Functions& call() const { return *functions_; }
  const std::string& path() const { return path_; }
  int version() const { return version_; }
  int device_count() const;
  // Touches no context. Throws Error(Driver) when there is no device `ordinal`.
  DeviceInfo device_info(int ordinal, bool simulated) const;
  // Throws Error (Driver, or OutOfMemory for CUDA_ERROR_OUT_OF_MEMORY): "cuLaunchKernelEx: <name>: <text>".
  void check(CUresult result, const char* what) const;
  ~Driver();

 private:
  Driver() = default;
  static std::shared_ptr<Driver> open(const std::string& name);
  std::unique_ptr<Functions> functions_;
  std::string path_;
  int version_ = 0;
};

// Where open_sim looks, in order.
std::vector<std::filesystem::path> sim_library_candidates();

// A loaded kernel. The module (and with it the context) lives as long as the last copy.
struct LoadedKernel {
  CUfunction function = nullptr;
  std::shared_ptr<void> module;
};

// A device's primary context. Every member that needs it current makes it so for its own duration and leaves the thread
// as it was.
class Context {
 public:
  Context(std::shared_ptr<Driver> driver, int ordinal, bool simulated);
  ~Context();
  const DeviceInfo& info() const { return info_; }
  const Driver& driver() const { return *driver_; }
  uint64_t number() const { return number_; }  // of no other context of the process, past ones included; not 0

  // Machine code is tried first unless the driver has said that it takes none (CUDA_ERROR_NO_BINARY_FOR_GPU); then PTX
  // is wanted. It is wanted from the start where the caller asked for the simulator, which spares a compilation.
  bool wants_ptx() const;
  void set_wants_ptx();

  // Loads an image (cubin or PTX text) and finds `entry`. Error(Driver) otherwise; no_binary is set instead of a
  // throw when the image is machine code that this driver does not take.
  LoadedKernel load(const std::string& image, const char* entry, int dynamic_shared_bytes, bool* no_binary) const;

  struct LaunchShape {
    unsigned grid = 1;  // blocks along x, a multiple of cluster
    unsigned grid_y = 1;
    unsigned block = 1;   // threads
    unsigned shared = 0;  // dynamic bytes
    unsigned cluster = 1;
    bool programmatic = false;  // programmatic stream serialization, where the driver can capture it
  };
  void launch(const LoadedKernel& kernel, const LaunchShape& shape, void** arguments, Stream stream) const;

  // cuTensorMapEncodeTiled; it too needs a current context.
  CUresult encode(CUtensorMap& map, const void* address, const TensorMapShape& shape) const;

  void* allocate(size_t bytes) const;
  void free(void* p) const noexcept;
  void upload(void* to, const void* from, size_t bytes, Stream stream) const;
  void download(void* to, const void* from, size_t bytes, Stream stream) const;
  void fill(void* p, uint8_t value, size_t bytes, Stream stream) const;
  void synchronize(Stream stream) const;

 private:
  std::shared_ptr<Driver> driver_;
  const uint64_t number_;
  CUcontext context_ = nullptr;
  std::shared_ptr<void> primary_;  // releases context_
  DeviceInfo info_;
  std::atomic<bool> wants_ptx_{false};
};

// A tiled tensor map over `address`. dims[0] is the contiguous dimension (elements); strides in bytes for
// dims 1..rank-1, further entries 0. Out-of-bounds elements read as zero. swizzle_bytes: 0, 32, 64 or 128. Throws
// Error(InvalidArgument) naming `what`. A map is a value, made of the arguments alone and valid as long as the address
// is, so each thread keeps those it made last, and the driver is asked only for others.
struct TensorMapShape {
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  int rank = 2;
  uint64_t dims[5] = {};
  uint64_t strides[4] = {};
  uint32_t box[5] = {};
  int swizzle_bytes = 128;
};
kernel::TensorMap make_tensor_map(const Context& context, const char* what, const void* address,
                                  const TensorMapShape& shape);

}  // namespace moxie::driver
