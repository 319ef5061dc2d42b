// SPDX-License-Identifier: Apache-2.0
// Finding, initializing and questioning a libcuda: the system's or the simulator's.
#include "driver/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <cstdlib>
#include <filesystem>

#include "driver/functions.h"
#include "moxie/error.h"
#include "own_folders.h"

namespace moxie::driver {
namespace {

namespace fs = std::filesystem;

// The file behind a handle; the name it was asked for by when the linker does not tell.
std::string file_of(void* handle, const std::string& asked) {
  link_map* map = nullptr;
  return dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : asked;
}

std::string text_of(const Functions& call, CUresult result) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (call.cuGetErrorName == nullptr || call.cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) {
    return fmt::format("CUDA error {}", static_cast<int>(result));
  }
  if (call.cuGetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) return name;
  return fmt::format("{}: {}", name, text);
}

}  // namespace

std::vector<fs::path> sim_library_candidates() {
  if (const char* named = std::getenv("MOXIE_SIM_LIBRARY"); named != nullptr && *named != '\0') return {named};
  std::vector<fs::path> candidates;
  for (const fs::path& folder : own_folders()) {
    candidates.push_back(folder / "moxie/sim/libcuda.so.1");
    candidates.push_back(folder / "lib/moxie/sim/libcuda.so.1");
  }
  return candidates;
}

// The handle is never closed: a libcuda has threads and hooks that outlive its last caller.
std::shared_ptr<Driver> Driver::open(const std::string& name) {
  // Local, so that a simulator and a real driver in one process do not see each other's symbols.
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    throw Error(ErrorCode::Driver,
                fmt::format("the CUDA driver {} cannot be loaded ({})", name, reason == nullptr ? "unknown" : reason));
  }
  std::shared_ptr<Driver> driver(new Driver);
  driver->path_ = file_of(handle, name);
  driver->functions_ = std::make_unique<Functions>();
  Functions& call = *driver->functions_;

  const auto find = reinterpret_cast<decltype(&::cuGetProcAddress)>(dlsym(handle, "cuGetProcAddress_v2"));
  if (find == nullptr) {
    throw Error(ErrorCode::Driver,
                fmt::format("the CUDA driver {} is too old: it has no cuGetProcAddress_v2 (CUDA 12.0)", driver->path_));
  }
#define MOXIE_FIND(name)                                                                                            \
  {                                                                                                                 \
    void* address = nullptr;                                                                                        \
    CUdriverProcAddressQueryResult status{};                                                                        \
    if (find(#name, &address, MOXIE_DRIVER_ABI, CU_GET_PROC_ADDRESS_DEFAULT, &status) != CUDA_SUCCESS ||            \
        address == nullptr) {                                                                                       \
      throw Error(ErrorCode::Driver,                                                                                \
                  fmt::format("the CUDA driver {} has no {} (CUDA {}.{} or newer is needed)", driver->path_, #name, \
                              MOXIE_DRIVER_ABI / 1000, MOXIE_DRIVER_ABI % 1000 / 10));                              \
    }                                                                                                               \
    call.name = reinterpret_cast<decltype(call.name)>(address);                                                     \
  }
  MOXIE_DRIVER_FUNCTIONS(MOXIE_FIND)
#undef MOXIE_FIND

  if (const CUresult result = call.cuInit(0); result != CUDA_SUCCESS) {
    throw Error(ErrorCode::Driver,
                fmt::format("the CUDA driver {} does not start: cuInit: {}", driver->path_, text_of(call, result)));
  }
  driver->check(call.cuDriverGetVersion(&driver->version_), "cuDriverGetVersion");
  return driver;
}

std::shared_ptr<Driver> Driver::open_cuda() { return open("libcuda.so.1"); }

std::shared_ptr<Driver> Driver::open_sim() {
  std::string tried;
  for (const fs::path& candidate : sim_library_candidates()) {
    std::error_code failed;
    // A path that holds a slash is never searched for elsewhere.
    if (fs::exists(candidate, failed)) return open(fs::absolute(candidate).string());
    tried += (tried.empty() ? "" : ", ") + candidate.string();
  }
  throw Error(
      ErrorCode::Driver,
      fmt::format("the simulator's library was not found; looked for {} (MOXIE_SIM_LIBRARY names another)", tried));
}

Driver::~Driver() = default;

void Driver::check(CUresult result, const char* what) const {
  if (result == CUDA_SUCCESS) return;
  const ErrorCode code = result == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::OutOfMemory : ErrorCode::Driver;
  throw Error(code, fmt::format("{}: {}", what, text_of(*functions_, result)));
}

int Driver::device_count() const {
  int count = 0;
  check(functions_->cuDeviceGetCount(&count), "cuDeviceGetCount");
  return count;
}

DeviceInfo Driver::device_info(int ordinal, bool simulated) const {
  const int count = device_count();
  if (ordinal < 0 || ordinal >= count) {
    throw Error(ErrorCode::Driver,
                fmt::format("there is no device {}: {} has {} device{}", ordinal, path_, count, count == 1 ? "" : "s"));
  }
  CUdevice device = 0;
  check(functions_->cuDeviceGet(&device, ordinal), "cuDeviceGet");
  const auto attribute = [&](CUdevice_attribute which) {
    int value = 0;
    check(functions_->cuDeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
    return value;
  };
  char name[256] = {};
  check(functions_->cuDeviceGetName(name, sizeof(name) - 1, device), "cuDeviceGetName");
  size_t memory = 0;
  check(functions_->cuDeviceTotalMem(&memory, device), "cuDeviceTotalMem");

  DeviceInfo info;
  info.name = name;
  info.arch = 10 * attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
              attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  info.sm_count = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  info.shared_bytes = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  info.memory_bytes = memory;
  info.l2_bytes = static_cast<uint64_t>(attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE));
  // Both edges of the memory's clock carry data. Clocks are in kHz, the bus in bits.
  info.memory_rate = 2e3 * attribute(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE) *
                     attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH) / 8;
  info.clock = 1e3 * attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  info.driver_version = version_;
  info.simulated = simulated;
  info.driver_path = path_;
  return info;
}

}  // namespace moxie::driver
