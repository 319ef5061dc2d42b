// SPDX-License-Identifier: Apache-2.0
// The device: which GPU the environment asks for, its name, memory and attributes.
#include "sim/driver/device.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "sim/driver/call.h"
#include "sim/machine/environment.h"
#include "sim/machine/instruction.h"

namespace sim::driver {

namespace {

int devices_from_environment() {
  const char* text = std::getenv("MOXIE_SIM_DEVICES");
  if (text == nullptr || *text == 0) return 1;
  char* end = nullptr;
  const long count = std::strtol(text, &end, 10);
  if (*end != 0 || count < 1 || count > kMaxDevices) {
    std::fprintf(stderr, "MOXIE_SIM_DEVICES is '%s'; allowed are 1 to %d\n", text, kMaxDevices);
    fail(CUDA_ERROR_NO_DEVICE, "MOXIE_SIM_DEVICES is not a number of devices");
  }
  return static_cast<int>(count);
}

void initialize(State& s) {
  Device device;
  const char* arch = std::getenv("MOXIE_SIM_ARCH");
  if (arch != nullptr && *arch != 0) device.target = arch;
  if (device.target == "sm_90a") {
    device.arch = 90;
    device.sm_count = 132;
  } else if (device.target == "sm_100a") {
    device.arch = 100;
    device.sm_count = 148;
  } else {
    std::fprintf(stderr, "MOXIE_SIM_ARCH is '%s'; allowed are sm_90a and sm_100a\n", arch);
    fail(CUDA_ERROR_NO_DEVICE, "MOXIE_SIM_ARCH is not an architecture that is simulated");
  }
  if (const char* sms = std::getenv("MOXIE_SIM_SMS"); sms != nullptr && *sms != 0) {
    char* end = nullptr;
    const long count = std::strtol(sms, &end, 10);
    if (*end != 0 || count < 1 || count > 1024) {
      std::fprintf(stderr, "MOXIE_SIM_SMS is '%s'; allowed are 1 to 1024\n", sms);
      fail(CUDA_ERROR_NO_DEVICE, "MOXIE_SIM_SMS is not a number of multiprocessors");
    }
    device.sm_count = static_cast<int>(count);
  }
  try {
    // Launches, and calls that wait, read these again. Checking them here reports a wrong value early.
    order_from_environment();
    threads_from_environment();
    patience_from_environment();
    rules_from_environment();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    fail(CUDA_ERROR_NO_DEVICE, e.what());
  }
  device.name = "Moxie simulator (" + device.target + ")";
  s.device = device;
  s.device_count = devices_from_environment();
  s.devices.resize(static_cast<size_t>(s.device_count));
  s.queue.devices.resize(static_cast<size_t>(s.device_count));
  for (int i = 0; i < s.device_count; ++i) {
    auto pool = std::make_unique<CUmemPoolHandle_st>();
    pool->is_default = true;
    pool->device = i;
    DeviceSlot& slot = s.devices[static_cast<size_t>(i)];
    slot.default_pool = slot.current_pool = s.pools.add(std::move(pool));
  }
  s.initialized = true;
}

}  // namespace

void check_device(CUdevice device) {
  const int count = state().device_count;
  require(
      device >= 0 && device < count, CUDA_ERROR_INVALID_DEVICE,
      count == 1 ? "the simulator has one device, 0" : "the simulator has devices 0 to " + std::to_string(count - 1));
}

namespace {

// The values are those of an H200 and a B200. An attribute that is not listed is 0: the device cannot do it.
int attribute_of(const Device& d, CUdevice_attribute attribute) {
  const bool hopper = d.arch == 90;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return kMaxThreadsPerBlock;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
      return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
      return 0x7fffffff;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
      return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
      return kMaxSharedPerBlock;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      return kMaxSharedPerBlockOptIn;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      return kSharedPerSm;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
      return kReservedSharedPerBlock;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
      return kMaxConstantBytes;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
      return 0x7fffffff;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
      return kRegistersPerSm;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
      return hopper ? 1980000 : 1965000;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
      return hopper ? 3201000 : 3996000;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
      return hopper ? 6016 : 8192;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      return hopper ? 62914560 : 132644864;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
    case CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT:
      return 512;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return d.sm_count;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
      return CU_COMPUTEMODE_DEFAULT;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 3;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return kMaxThreadsPerSm;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
      return kMaxBlocksPerSm;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return d.arch / 10;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return d.arch % 10;
    case CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO:
      return 2;
    case CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE:
      return hopper ? 39321600 : 82903040;
    case CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE:
      return 134213632;
    case CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT:
      return 4;
    case CU_DEVICE_ATTRIBUTE_NUMA_ID:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
      return -1;
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED:
      return 1;
    default:
      return 0;
  }
}

}  // namespace
}  // namespace sim::driver

using namespace sim::driver;

CUresult cuInit(unsigned int flags) {
  API(Nothing, {
    require(flags == 0);
    if (!state().initialized) initialize(state());
  });
}

CUresult cuDriverGetVersion(int* version) {
  constexpr int kDriverVersion = 13000;
  API(Nothing, {
    require(version != nullptr);
    *version = kDriverVersion;
  });
}

CUresult cuDeviceGetCount(int* count) {
  API(Initialized, {
    require(count != nullptr);
    *count = state().device_count;
  });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  API(Initialized, {
    require(device != nullptr);
    check_device(ordinal);
    *device = ordinal;
  });
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  API(Initialized, {
    check_device(device);
    require(name != nullptr && length > 0);
    std::snprintf(name, static_cast<size_t>(length), "%s", state().device.name.c_str());
  });
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  API(Initialized, {
    check_device(device);
    require(uuid != nullptr);
    std::memset(uuid->bytes, 0, sizeof uuid->bytes);
    std::snprintf(uuid->bytes, sizeof uuid->bytes, "moxie-%s", state().device.target.c_str());
    uuid->bytes[sizeof uuid->bytes - 1] = static_cast<char>(device);
  });
}
PLAIN_NAME(cuDeviceGetUuid, cuDeviceGetUuid_v2);

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  API(Initialized, {
    check_device(device);
    require(bytes != nullptr);
    *bytes = state().memory.limit();
  });
}
PLAIN_NAME(cuDeviceTotalMem, cuDeviceTotalMem_v2);

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  API(Initialized, {
    check_device(device);
    require(value != nullptr && attribute > 0 && attribute < CU_DEVICE_ATTRIBUTE_MAX);
    *value = attribute_of(state().device, attribute);
  });
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  API(Initialized, {
    check_device(device);
    require(major != nullptr && minor != nullptr);
    *major = state().device.arch / 10;
    *minor = state().device.arch % 10;
  });
}

CUresult cuDeviceGetProperties(CUdevprop* properties, CUdevice device) {
  API(Initialized, {
    check_device(device);
    require(properties != nullptr);
    *properties = {};
    properties->maxThreadsPerBlock = kMaxThreadsPerBlock;
    properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
    properties->maxThreadsDim[2] = 64;
    properties->maxGridSize[0] = 0x7fffffff;
    properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
    properties->sharedMemPerBlock = kMaxSharedPerBlock;
    properties->totalConstantMemory = kMaxConstantBytes;
    properties->SIMDWidth = sim::kLanes;
    properties->memPitch = 0x7fffffff;
    properties->regsPerBlock = kRegistersPerSm;
    properties->clockRate = attribute_of(state().device, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
    properties->textureAlign = 512;
  });
}

CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  API(Initialized, {
    check_device(device);
    require(id != nullptr && length > 0);
    std::snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0", device);
  });
}

CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* id) {
  API(Initialized, {
    require(device != nullptr && id != nullptr);
    unsigned domain = 0, bus = 0;
    const bool known = std::sscanf(id, "%4x:%2x:00.0", &domain, &bus) == 2 || std::sscanf(id, "%2x:00.0", &bus) == 1;
    require(known && domain == 0 && bus < static_cast<unsigned>(state().device_count), CUDA_ERROR_INVALID_DEVICE);
    *device = static_cast<int>(bus);
  });
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  API(Initialized, {
    check_device(device);
    check_device(peer);
    require(can != nullptr);
    *can = device != peer;
  });
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to) {
  API(Initialized, {
    check_device(from);
    check_device(to);
    require(value != nullptr && from != to);
    switch (attribute) {
      case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
        *value = 0;
        return;
      case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
      case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
        *value = 1;
        return;
      case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
      case CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED:
        *value = 0;
        return;
      default:
        fail(CUDA_ERROR_INVALID_VALUE, "unknown attribute of a pair of devices");
    }
  });
}

CUresult cuProfilerStart() { API(Context, {}); }

CUresult cuProfilerStop() { API(Context, {}); }
