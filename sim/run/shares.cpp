// SPDX-License-Identifier: Apache-2.0
#include "sim/run/shares.h"

#include <algorithm>
#include <random>
#include <string>

#include "sim/async/state.h"
#include "sim/machine/random.h"
#include "sim/run/grid.h"
#include "sim/run/turn.h"

namespace sim {
namespace {

constexpr uint32_t kSharedLimit = 232448;  // bytes a block may have

}  // namespace

void check_launch(const Launch& launch) {
  const Kernel& kernel = *launch.kernel;
  const auto refuse = [&](const std::string& text) {
    throw Fault(Hazard::IllegalUse,
                std::string(hazard_name(Hazard::IllegalUse)) + ": kernel '" + kernel.name + "': " + text);
  };
  const uint64_t threads_per_block = launch.block.count();
  if (threads_per_block == 0 || threads_per_block > 1024)
    refuse("a block of " + std::to_string(threads_per_block) + " threads is not allowed");
  if (launch.cluster.count() == 0 || launch.grid.x % launch.cluster.x != 0 || launch.grid.y % launch.cluster.y != 0 ||
      launch.grid.z % launch.cluster.z != 0) {
    refuse("the grid is not a whole number of clusters");
  }
  if (kernel.static_shared + uint64_t{launch.dynamic_shared} > kSharedLimit) {
    refuse("a block needs " + std::to_string(kernel.static_shared + uint64_t{launch.dynamic_shared}) +
           " bytes of shared memory, over the limit of " + std::to_string(kSharedLimit));
  }
  if (launch.params.size() < kernel.param_bytes) {
    refuse("parameters of " + std::to_string(launch.params.size()) + " bytes given, " +
           std::to_string(kernel.param_bytes) + " needed");
  }
}

// How many clusters run at once. Without clusterlaunchcontrol that makes no difference: all. With it the others are
// pending. On a GPU as many run as fit, any number from one up. Here the number follows the order, so that small grids
// meet both answers of try_cancel.
uint64_t running_clusters(const Launch& launch, uint64_t clusters) {
  if (!launch.kernel->uses.launch_control) return clusters;
  const uint64_t processors = launch.multiprocessors > 0 ? launch.multiprocessors : launch.arch >= 100 ? 148 : 132;
  const uint64_t fitting = std::max<uint64_t>(1, std::min(clusters, processors / launch.cluster.count()));
  if (launch.order.mode == Mode::Lazy) return std::min<uint64_t>(2, fitting);
  if (launch.order.mode == Mode::Random) return 1 + splitmix64(launch.order.seed) % fitting;
  return std::min(fitting, (clusters + 2) / 3);
}

// The clusters i, i + n, i + 2 n, ... of a launch of which n run at once, in the order in which they begin. The first
// one starts. The others are handed to its try_cancel, and to that of whichever of them starts when it has ended, so
// that the outcome does not depend on host threads. The ISA names no order in which a GPU takes clusters.
std::deque<uint64_t> share_of(const Order& order, uint64_t i, uint64_t n, uint64_t clusters) {
  std::deque<uint64_t> share;
  for (uint64_t number = i; number < clusters; number += n) share.push_back(number);
  if (order.mode == Mode::Lazy) std::reverse(share.begin(), share.end());
  if (order.mode == Mode::Random)
    std::shuffle(share.begin(), share.end(), std::mt19937_64(splitmix64(order.seed) ^ splitmix64(i)));
  return share;
}

bool may_wait_for_others(const Kernel& kernel) { return kernel.uses.strong_reads; }

void begin_history(Launch& launch, bool interleaved) {
  if (launch.rules.strictness == Strictness::Field) return;
  if (!interleaved && launch.grid.count() == launch.cluster.count()) return;
  launch.grid_history = std::make_unique<GridHistory>();
  launch.grid_history->can_synchronize = launch.kernel->uses.strong_reads && launch.kernel->uses.strong_writes;
}

void equip_cluster(Cluster& cluster, const Launch& launch, Statistics* statistics) {
  cluster.statistics = launch.counts ? statistics : nullptr;
  // Whether a tensor map in global memory was stored over is asked when a copy uses it.
  cluster.logs_writes = launch.written != nullptr || launch.kernel->uses.tensor_copies;
  // A launch of one warp has no races.
  const bool may_race =
      launch.rules.strictness != Strictness::Field && (launch.grid.count() > 1 || launch.block.count() > kLanes);
  if (may_race || launch.grid_history != nullptr) cluster.global_history = std::make_unique<GlobalHistory>();
  cluster.grid_can_synchronize = launch.grid_history != nullptr && launch.grid_history->can_synchronize;
}

}  // namespace sim
