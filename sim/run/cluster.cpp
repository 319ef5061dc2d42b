// SPDX-License-Identifier: Apache-2.0
// Birth and end of a cluster.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "sim/async/state.h"
#include "sim/hazards/system_access.h"
#include "sim/machine/launch.h"
#include "sim/machine/random.h"
#include "sim/machine/special.h"
#include "sim/run/turn.h"
#include "sim/tcgen05/state.h"

namespace sim {
namespace {

Dim3 unflatten(uint64_t i, const Dim3& shape) {
  return {static_cast<uint32_t>(i % shape.x), static_cast<uint32_t>(i / shape.x % shape.y),
          static_cast<uint32_t>(i / shape.x / shape.y)};
}

bool varies_between_clusters(Special s) {
  switch (s) {
    case Special::CtaidX:
    case Special::CtaidY:
    case Special::CtaidZ:
    case Special::Smid:
    case Special::ClusteridX:
    case Special::ClusteridY:
    case Special::ClusteridZ:
      return true;
    default:
      return false;
  }
}

void reset_warp(Warp& warp, const Launch& launch, bool fresh, uint32_t live) {
  const Kernel& kernel = *launch.kernel;
  const size_t local_bytes = launch.local_bytes();
  warp.born = warp.live = live;
  warp.splits.assign(1, Warp::Split{kernel.entry_pc, live, 0, false});
  warp.current = warp.last_split = 0;
  warp.rotate = false;
  warp.rest = 0;
  warp.stop_pc = INT32_MAX;
  warp.view = warp.fence_view = warp.read_view = View{};
  warp.has_fenced = warp.has_read = false;
  warp.grid_fence = warp.grid_read = ScopedView{};
  warp.grid_fence_epoch = warp.grid_view = 0;
  warp.cluster_barriers = warp.cluster_arrived = 0;
  warp.reads.reset();
  warp.barrier_waits.clear();
  warp.saved_rows.reset();
  warp.undefined.reset();
  warp.max_registers = 0;
  warp.quantum = warp.left = 0;
  // What a register holds before its first write must not depend on the cluster that used this warp before.
  std::memset(warp.registers.get(), 0, kernel.variable_bytes);
  if (local_bytes != 0) std::memset(warp.local.get(), 0, kLanes * local_bytes);
  for (const Kernel::ConstantRow& row : kernel.constants) {
    if (fresh || varies_between_clusters(static_cast<Special>(row.special))) fill_row(warp, row);
  }
}

}  // namespace

void begin_cluster(Cluster& cluster, Launch& launch, uint64_t number) {
  const Kernel& kernel = *launch.kernel;
  const Dim3 clusters{launch.grid.x / launch.cluster.x, launch.grid.y / launch.cluster.y,
                      launch.grid.z / launch.cluster.z};
  const uint64_t blocks = launch.cluster.count();
  const uint64_t threads = launch.block.count();
  const uint64_t warps = (threads + kLanes - 1) / kLanes;
  const size_t local_bytes = launch.local_bytes();
  const bool fresh = cluster.ctas.empty();
  cluster.launch = &launch;
  cluster.index = unflatten(number, clusters);
  cluster.number = static_cast<uint32_t>(number);
  cluster.events = 1;
  cluster.agents.assign(1, {});
  cluster.order = launch.order;
  cluster.rng.seed(splitmix64(launch.order.seed) ^ splitmix64(number));
  cluster.waits.clear();
  cluster.sync_objects.clear();
  cluster.unordered_stores.clear();
  if (cluster.global_history != nullptr) cluster.global_history->clear();
  cluster.global_stores = 0;
  cluster.writers.clear();
  cluster.instructions = cluster.stores = cluster.skipped_time = 0;
  cluster.reads_clock = false;
  cluster.undefined_read = nullptr;
  cluster.written.clear();
  if (fresh) {
    for (uint64_t rank = 0; rank < blocks; ++rank) {
      auto cta = std::make_unique<Cta>();
      cta->cluster = &cluster;
      cta->rank = static_cast<uint32_t>(rank);
      for (uint64_t w = 0; w < warps; ++w) {
        auto warp = std::make_unique<Warp>();
        warp->cta = cta.get();
        warp->index = static_cast<int>(w);
        warp->registers = {static_cast<uint8_t*>(std::aligned_alloc(64, std::max<size_t>(64, kernel.register_bytes))),
                           std::free};
        if (!warp->registers) throw std::bad_alloc();
        if (local_bytes != 0) warp->local = std::make_unique<uint8_t[]>(kLanes * local_bytes);
        cta->warps.push_back(std::move(warp));
      }
      cluster.ctas.push_back(std::move(cta));
    }
  }
  for (uint64_t rank = 0; rank < blocks; ++rank) {
    Cta& cta = *cluster.ctas[rank];
    const Dim3 inside = unflatten(rank, launch.cluster);
    cta.index = {cluster.index.x * launch.cluster.x + inside.x, cluster.index.y * launch.cluster.y + inside.y,
                 cluster.index.z * launch.cluster.z + inside.z};
    cta.barriers = {};
    cta.has_waited = cta.released_dependents_early = false;
    const uint32_t reserved = launch.reserved_shared_begin();
    cta.shared.create(kernel.uses.reserved_shared ? reserved + kReservedShared : launch.own_shared());
    cta.history.create(cta.shared.size, blocks > 1, blocks * warps > 1);
    if (kernel.uses.reserved_shared) {
      // cooperative_groups keeps counters there that it does not set before.
      std::memset(cta.shared.bytes + reserved, 0, kReservedShared);
      for (uint32_t at = reserved; at < cta.shared.size; at += 16) cta.history.granules[at / 16].written = 0xffff;
    }
    cta.remote.clear();
  }
  for (const auto& cta : cluster.ctas) {
    for (uint64_t w = 0; w < warps; ++w) {
      const uint64_t rest = threads - w * kLanes;
      reset_warp(*cta->warps[w], launch, fresh, rest >= kLanes ? kFullMask : (1u << rest) - 1);
    }
  }
  cluster.cancel_failures.clear();
  reset_tensor_state(cluster);
  system_begin(cluster);
  create_async_state(cluster);
}

void finish_cluster(Cluster& cluster) {
  finish_tensor_state(cluster);
  finish_async_state(cluster);
  system_finish(cluster);
}

}  // namespace sim
