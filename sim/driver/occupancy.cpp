// SPDX-License-Identifier: Apache-2.0
// Occupancy: how many blocks and clusters fit on the device at once.
#include "sim/driver/occupancy.h"

#include <algorithm>

#include "sim/driver/call.h"
#include "sim/driver/device.h"

namespace sim::driver {
namespace {

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

struct BlockSizes {
  int grid = 0, block = 0;
};

BlockSizes best_block(Call& c, CUfunction handle, CUoccupancyB2DSize shared_of, size_t shared, int limit) {
  const unsigned bound = threads_limit(*live_function(c, handle).kernel);
  const unsigned top = limit > 0 ? std::min(bound, static_cast<unsigned>(limit)) : bound;
  BlockSizes best;
  uint64_t best_threads = 0;
  for (unsigned threads = top; threads > 0; threads = threads > 32 ? (threads - 1) / 32 * 32 : 0) {
    size_t bytes = shared;
    if (shared_of != nullptr) c.unlocked([&] { bytes = shared_of(static_cast<int>(threads)); }, false);
    const int blocks = blocks_per_sm(live_function(c, handle), threads, bytes);
    if (static_cast<uint64_t>(blocks) * threads > best_threads) {
      best_threads = static_cast<uint64_t>(blocks) * threads;
      best = {blocks * state().device.sm_count, static_cast<int>(threads)};
    }
  }
  require(best_threads > 0, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "no block of the function fits on a multiprocessor");
  return best;
}

uint64_t cluster_blocks(const CUlaunchConfig& config) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const CUlaunchAttribute& a = config.attrs[i];
    if (a.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      return uint64_t{a.value.clusterDim.x} * a.value.clusterDim.y * a.value.clusterDim.z;
    }
  }
  return 0;
}

CUresult max_blocks(const char* name, int* count, CUfunction f, int threads, size_t shared, unsigned flags) {
  return call(name, Call::Needs::HealthyContext, [&](Call& c) {
    require(count != nullptr && threads > 0 && (flags & ~1u) == 0);
    *count = blocks_per_sm(live_function(c, f), static_cast<unsigned>(threads), shared);
  });
}

CUresult potential(const char* name, int* grid, int* block, CUfunction f, CUoccupancyB2DSize shared_of, size_t shared,
                   int limit, unsigned flags) {
  return call(name, Call::Needs::HealthyContext, [&](Call& c) {
    require(grid != nullptr && block != nullptr && limit >= 0 && (flags & ~1u) == 0);
    const BlockSizes best = best_block(c, f, shared_of, shared, limit);
    *grid = best.grid;
    *block = best.block;
  });
}

}  // namespace

int blocks_per_sm(const CUfunc_st& function, unsigned threads, uint64_t dynamic_shared) {
  if (threads == 0 || threads > threads_limit(*function.kernel)) return 0;
  const uint64_t shared = function.kernel->static_shared + dynamic_shared;
  if (shared > kMaxSharedPerBlockOptIn) return 0;
  const uint64_t warps = (threads + kLanes - 1) / kLanes;
  // Registers are allotted to a warp in units of 256 (CUDA occupancy, compute capability 9.0 and 10.0).
  const auto registers = static_cast<uint64_t>(function_attribute(function, CU_FUNC_ATTRIBUTE_NUM_REGS));
  const uint64_t warp_registers = round_up(registers * kLanes, 256);
  uint64_t blocks = kMaxBlocksPerSm;
  blocks = std::min(blocks, kMaxThreadsPerSm / kLanes / warps);
  blocks = std::min(blocks, kRegistersPerSm / (warp_registers * warps));
  blocks = std::min(blocks, kSharedPerSm / round_up(shared + kReservedSharedPerBlock, 128));
  return static_cast<int>(blocks);
}

}  // namespace sim::driver

using namespace sim::driver;

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, CUfunction f, int threads, size_t shared) {
  return max_blocks(__func__, count, f, threads, shared, 0);
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count, CUfunction f, int threads, size_t shared,
                                                              unsigned int flags) {
  return max_blocks(__func__, count, f, threads, shared, flags);
}

CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction f, CUoccupancyB2DSize shared_of,
                                          size_t shared, int limit) {
  return potential(__func__, grid, block, f, shared_of, shared, limit, 0);
}
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, CUfunction f, CUoccupancyB2DSize shared_of,
                                                   size_t shared, int limit, unsigned int flags) {
  return potential(__func__, grid, block, f, shared_of, shared, limit, flags);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction handle, int blocks, int threads) {
  API(HealthyContext, {
    require(bytes != nullptr && blocks > 0 && threads > 0);
    const CUfunc_st& f = live_function(c, handle);
    require(blocks_per_sm(f, static_cast<unsigned>(threads), 0) >= blocks, CUDA_ERROR_INVALID_VALUE,
            "so many blocks do not fit on a multiprocessor");
    const uint64_t share = kSharedPerSm / static_cast<unsigned>(blocks) / 128 * 128 - kReservedSharedPerBlock;
    *bytes = std::min<uint64_t>(share, kMaxSharedPerBlockOptIn) - f.kernel->static_shared;
  });
}

CUresult cuOccupancyMaxActiveClusters(int* count, CUfunction handle, const CUlaunchConfig* config) {
  API(HealthyContext, {
    require(count != nullptr && config != nullptr);
    const CUfunc_st& f = live_function(c, handle);
    const uint64_t size = std::max<uint64_t>(cluster_blocks(*config), 1);
    require(size <= (f.non_portable_cluster ? kMaxCluster : kMaxPortableCluster), CUDA_ERROR_INVALID_CLUSTER_SIZE);
    const unsigned threads = config->blockDimX * config->blockDimY * config->blockDimZ;
    const auto resident = static_cast<uint64_t>(blocks_per_sm(f, threads, config->sharedMemBytes)) *
                          static_cast<uint64_t>(state().device.sm_count);
    *count = static_cast<int>(resident / size);
  });
}

CUresult cuOccupancyMaxPotentialClusterSize(int* size, CUfunction handle, const CUlaunchConfig* config) {
  API(HealthyContext, {
    require(size != nullptr && config != nullptr);
    const CUfunc_st& f = live_function(c, handle);
    const unsigned threads = config->blockDimX * config->blockDimY * config->blockDimZ;
    require(blocks_per_sm(f, threads, config->sharedMemBytes) > 0, CUDA_ERROR_INVALID_VALUE,
            "no block of this shape fits");
    *size = static_cast<int>(f.non_portable_cluster ? kMaxCluster : kMaxPortableCluster);
  });
}
