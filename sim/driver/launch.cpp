// SPDX-License-Identifier: Apache-2.0
// Kernel launches: the checks of a launch configuration and the gathering of parameters.
#include "sim/driver/launch.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>

#include "sim/driver/call.h"
#include "sim/driver/device.h"
#include "sim/driver/occupancy.h"
#include "sim/driver/stream.h"
#include "sim/driver/submit.h"

namespace sim::driver {
namespace {

std::string text_of(const Dim3& d) {
  return "(" + std::to_string(d.x) + ", " + std::to_string(d.y) + ", " + std::to_string(d.z) + ")";
}

bool is_set(const Dim3& d) { return d.x != 0; }
bool equal(const Dim3& a, const Dim3& b) { return a.x == b.x && a.y == b.y && a.z == b.z; }

// The cluster of the launch, or nothing when it has none.
std::optional<Dim3> check_cluster(const CUfunc_st& function, const LaunchRequest& request) {
  const ptx::Function& source = *function.kernel->function;
  Dim3 fixed = function.required_cluster;
  if (!is_set(fixed) && source.reqnctapercluster[0] > 0) {
    fixed = {static_cast<uint32_t>(source.reqnctapercluster[0]),
             std::max(1u, static_cast<uint32_t>(source.reqnctapercluster[1])),
             std::max(1u, static_cast<uint32_t>(source.reqnctapercluster[2]))};
  }
  Dim3 cluster = request.cluster;
  if (is_set(fixed)) {
    require(!is_set(cluster) || equal(cluster, fixed), CUDA_ERROR_INVALID_CLUSTER_SIZE,
            "the kernel requires clusters of " + text_of(fixed) + ", the launch asks for " + text_of(cluster));
    cluster = fixed;
  }
  if (!is_set(cluster)) {
    require(!source.explicit_cluster, CUDA_ERROR_INVALID_CLUSTER_SIZE,
            "the kernel must be launched with a cluster dimension");
    return std::nullopt;
  }
  require(cluster.y != 0 && cluster.z != 0, CUDA_ERROR_INVALID_VALUE, "a cluster dimension of 0");
  const uint64_t size = cluster.count();
  const unsigned allowed = function.non_portable_cluster ? kMaxCluster : kMaxPortableCluster;
  require(size <= allowed, CUDA_ERROR_INVALID_CLUSTER_SIZE,
          "a cluster of " + std::to_string(size) + " blocks; allowed are " + std::to_string(allowed));
  require(source.maxclusterrank == 0 || size <= static_cast<uint64_t>(source.maxclusterrank),
          CUDA_ERROR_INVALID_CLUSTER_SIZE, "a cluster above the kernel's .maxclusterrank");
  require(request.grid.x % cluster.x == 0 && request.grid.y % cluster.y == 0 && request.grid.z % cluster.z == 0,
          CUDA_ERROR_INVALID_VALUE,
          "clusters of " + text_of(cluster) + " do not divide the grid of " + text_of(request.grid));
  return cluster;
}

void check_block(const CUfunc_st& function, const LaunchRequest& r) {
  require(
      r.grid.x > 0 && r.grid.y > 0 && r.grid.z > 0 && r.grid.x <= 0x7fffffffu && r.grid.y <= 65535 && r.grid.z <= 65535,
      CUDA_ERROR_INVALID_VALUE, "a grid of " + text_of(r.grid) + " blocks");
  require(r.block.x > 0 && r.block.y > 0 && r.block.z > 0 && r.block.x <= 1024 && r.block.y <= 1024 &&
              r.block.z <= 64 && r.block.count() <= kMaxThreadsPerBlock,
          CUDA_ERROR_INVALID_VALUE, "a block of " + text_of(r.block) + " threads");
  const ptx::Function& source = *function.kernel->function;
  if (source.reqntid[0] > 0) {
    const uint64_t required = uint64_t{static_cast<uint32_t>(source.reqntid[0])} * std::max(1, source.reqntid[1]) *
                              std::max(1, source.reqntid[2]);
    require(r.block.count() == required, CUDA_ERROR_INVALID_VALUE,
            "the kernel requires " + std::to_string(required) + " threads, the launch has " +
                std::to_string(r.block.count()));
  }
  require(r.block.count() <= threads_limit(*function.kernel), CUDA_ERROR_INVALID_VALUE,
          "the kernel is limited to " + std::to_string(threads_limit(*function.kernel)) + " threads, the launch has " +
              std::to_string(r.block.count()));
}

void check_shared(const CUfunc_st& function, unsigned dynamic) {
  const uint64_t fixed = function.kernel->static_shared;
  const auto allowed = static_cast<unsigned>(function.max_dynamic_shared);
  require(
      dynamic <= allowed, CUDA_ERROR_INVALID_VALUE,
      std::to_string(dynamic) + " bytes of dynamic shared memory; the function's limit is " + std::to_string(allowed));
  require(fixed + dynamic <= kMaxSharedPerBlockOptIn, CUDA_ERROR_INVALID_VALUE,
          std::to_string(fixed + dynamic) + " bytes of shared memory; a block can have " +
              std::to_string(kMaxSharedPerBlockOptIn));
}

std::vector<uint8_t> gather_params(const Kernel& kernel, void** params, void** extra) {
  require(params == nullptr || extra == nullptr, CUDA_ERROR_INVALID_VALUE, "both kernelParams and extra are given");
  std::vector<uint8_t> bytes(kernel.param_bytes, 0);
  const size_t count = kernel.param_offsets.size();
  if (extra != nullptr) {
    const void* buffer = nullptr;
    size_t size = 0;
    for (size_t i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
      if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
        buffer = extra[i + 1];
      } else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
        require(extra[i + 1] != nullptr);
        size = *static_cast<const size_t*>(extra[i + 1]);
      } else {
        fail(CUDA_ERROR_INVALID_VALUE, "unknown entry in extra");
      }
    }
    const size_t needed = count == 0 ? 0 : kernel.param_offsets.back() + kernel.param_sizes.back();
    require(size >= needed && (buffer != nullptr || needed == 0), CUDA_ERROR_INVALID_VALUE,
            "a parameter buffer of " + std::to_string(size) + " bytes; the kernel takes " + std::to_string(needed));
    if (buffer != nullptr && !bytes.empty()) std::memcpy(bytes.data(), buffer, std::min(size, bytes.size()));
    return bytes;
  }
  require(count == 0 || params != nullptr, CUDA_ERROR_INVALID_VALUE, "the kernel takes parameters and none are given");
  for (size_t i = 0; i < count; ++i) {
    require(params[i] != nullptr, CUDA_ERROR_INVALID_VALUE, "kernelParams[" + std::to_string(i) + "] is null");
    std::memcpy(bytes.data() + kernel.param_offsets[i], params[i], kernel.param_sizes[i]);
  }
  return bytes;
}

void submit_launch(Call& c, CUfunction handle, const LaunchRequest& request, CUstream stream, void** params,
                   void** extra) {
  CUfunc_st& function = live_function(c, handle);
  CUstream_st& s = live_stream(c, stream);
  require(s.context == function.context, CUDA_ERROR_INVALID_HANDLE, "function and stream belong to different contexts");
  submit(c, s, make_launch(function, request, params, extra), CU_GRAPH_NODE_TYPE_KERNEL);
}

CUresult launch(const char* name, CUfunction handle, const LaunchRequest& request, CUstream stream, void** params,
                void** extra) {
  return call(name, Call::Needs::HealthyContext,
              [&](Call& c) { submit_launch(c, handle, request, stream, params, extra); });
}

// What the attributes ask for. `events` gets those that complete with the launch or before.
LaunchRequest request_of(const CUlaunchConfig& config, std::vector<CUevent>& events) {
  require(config.attrs != nullptr || config.numAttrs == 0);
  LaunchRequest request;
  request.grid = {config.gridDimX, config.gridDimY, config.gridDimZ};
  request.block = {config.blockDimX, config.blockDimY, config.blockDimZ};
  request.dynamic_shared = config.sharedMemBytes;
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const CUlaunchAttribute& a = config.attrs[i];
    switch (a.id) {
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        request.cluster = {a.value.clusterDim.x, a.value.clusterDim.y, a.value.clusterDim.z};
        require(request.cluster.x != 0, CUDA_ERROR_INVALID_VALUE, "a cluster dimension of 0");
        break;
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
        request.cooperative = a.value.cooperative != 0;
        break;
      case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
        events.push_back(a.value.programmaticEvent.event);
        break;
      case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
        events.push_back(a.value.launchCompletionEvent.event);
        break;
      // The grid runs when its predecessor is done, and must not rely on that: Executor watches what it reads.
      case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
        request.programmatic = a.value.programmaticStreamSerializationAllowed != 0;
        break;
      // The simulator has nothing that these could change.
      case CU_LAUNCH_ATTRIBUTE_IGNORE:
      case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      case CU_LAUNCH_ATTRIBUTE_PRIORITY:
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
      case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        break;
      default:
        fail(CUDA_ERROR_NOT_SUPPORTED, "launch attribute " + std::to_string(static_cast<int>(a.id)));
    }
  }
  for (CUevent event : events) state().events.get(event);
  return request;
}

}  // namespace

KernelWork make_launch(CUfunc_st& function, const LaunchRequest& request, void** params, void** extra) {
  if (!function.kernel->refusal.empty()) {
    const std::string text = "kernel '" + function.name + "' cannot be simulated: " + function.kernel->refusal;
    state().report = text;
    state().report_code = CUDA_ERROR_NOT_SUPPORTED;
    std::fprintf(stderr, "%s\n", text.c_str());
    fail(CUDA_ERROR_NOT_SUPPORTED, text);
  }
  check_block(function, request);
  check_shared(function, request.dynamic_shared);
  KernelWork work;
  const std::optional<Dim3> cluster = check_cluster(function, request);
  work.cluster = cluster.value_or(Dim3{1, 1, 1});
  work.explicit_cluster = cluster.has_value();
  work.cooperative = request.cooperative;
  if (request.cooperative) {
    const uint64_t resident = static_cast<uint64_t>(blocks_per_sm(
                                  function, static_cast<unsigned>(request.block.count()), request.dynamic_shared)) *
                              static_cast<uint64_t>(state().device.sm_count);
    require(request.grid.count() <= resident, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
            std::to_string(request.grid.count()) + " blocks; " + std::to_string(resident) + " can be resident");
  }
  work.function = &function;
  work.kernel = function.kernel;
  work.grid = request.grid;
  work.block = request.block;
  work.dynamic_shared = request.dynamic_shared;
  work.programmatic = request.programmatic;
  work.blocks_per_multiprocessor = static_cast<uint32_t>(
      std::max(1, blocks_per_sm(function, static_cast<unsigned>(request.block.count()), request.dynamic_shared)));
  work.params = gather_params(*function.kernel, params, extra);
  return work;
}

}  // namespace sim::driver

using namespace sim::driver;

CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                        unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void** params,
                        void** extra) {
  LaunchRequest request;
  request.grid = {gx, gy, gz};
  request.block = {bx, by, bz};
  request.dynamic_shared = shared;
  return launch(__func__, f, request, stream, params, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                                   unsigned int by, unsigned int bz, unsigned int shared, CUstream stream,
                                   void** params) {
  LaunchRequest request;
  request.grid = {gx, gy, gz};
  request.block = {bx, by, bz};
  request.dynamic_shared = shared;
  request.cooperative = true;
  return launch(__func__, f, request, stream, params, nullptr);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** params, void** extra) {
  std::vector<CUevent> events;
  const CUresult launched = call(__func__, Call::Needs::HealthyContext, [&](Call& c) {
    require(config != nullptr);
    const LaunchRequest request = request_of(*config, events);
    submit_launch(c, f, request, config->hStream, params, extra);
  });
  if (launched != CUDA_SUCCESS) return launched;
  for (CUevent event : events) {
    if (CUresult result = cuEventRecord(event, config->hStream); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}
