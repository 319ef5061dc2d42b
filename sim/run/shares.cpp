// SPDX-License-Identifier: Apache-2.0
#include "sim/run/shares.h"

#include <algorithm>
#include <random>
#include <string>

#include "sim/async/state.h"
#include "sim/run/grid.h"
#include "sim/run/turn.h"

namespace sim {
namespace {

constexpr uint32_t kSharedLimit = 232448;  // bytes a block may have

template <class Predicate>
bool any_instruction(const Kernel& kernel, Predicate predicate) {
  return std::any_of(kernel.code.begin(), kernel.code.end(),
                     [&](const Instr& in) { return in.source != nullptr && predicate(*in.source); });
}

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
  const bool cancels = std::any_of(launch.kernel->code.begin(), launch.kernel->code.end(), [](const Instr& in) {
    return in.source != nullptr && in.source->parts[0] == "clusterlaunchcontrol";
  });
  if (!cancels) return clusters;
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

// Whether clusters that run side by side could make the outcome depend on who comes first: what an atomic operation on
// global memory returns, and sums of floats, which are rounded in the order they are made.
bool order_between_clusters_matters(const Kernel& kernel) {
  return std::any_of(kernel.code.begin(), kernel.code.end(), [](const Instr& in) {
    if (in.source == nullptr) return false;
    const auto& parts = in.source->parts;
    const auto has = [&](auto found) { return std::any_of(parts.begin(), parts.end(), found); };
    const bool floats = has(
        [](const std::string& p) { return p.starts_with("f16") || p.starts_with("bf16") || p == "f32" || p == "f64"; });
    if (parts[0] == "cp") return floats && has([](const std::string& p) { return p == "reduce"; });
    if (parts[0] != "atom" && parts[0] != "red") return false;
    if (has([](const std::string& p) { return p.starts_with("shared"); })) return false;
    return parts[0] == "atom" || floats || has([](const std::string& p) { return p == "async"; });
  });
}

namespace {

// Whether a tensor map in global memory was stored over is asked when a copy uses it.
bool copies_tensors(const Kernel& kernel) {
  return any_instruction(kernel,
                         [](const ptx::Instruction& in) { return in.opcode.rfind("cp.async.bulk.tensor", 0) == 0; });
}

bool in_global_memory(const ptx::Instruction& in) {
  for (const char* space : {"shared", "shared::cta", "shared::cluster", "local", "param"}) {
    if (has_part(in, space)) return false;
  }
  return true;
}

// An access of global memory by which clusters can hand something over.
bool is_strong_read(const ptx::Instruction& in) {
  if (!in_global_memory(in)) return false;
  return in.parts[0] == "atom" || (in.parts[0] == "ld" && (has_part(in, "acquire") || has_part(in, "relaxed") ||
                                                           has_part(in, "volatile") || has_part(in, "mmio")));
}
bool is_strong_write(const ptx::Instruction& in) {
  if (!in_global_memory(in)) return false;
  return in.parts[0] == "atom" || in.parts[0] == "red" ||
         (in.parts[0] == "st" &&
          (has_part(in, "release") || has_part(in, "relaxed") || has_part(in, "volatile") || has_part(in, "mmio")));
}

}  // namespace

bool may_wait_for_others(const Kernel& kernel) { return any_instruction(kernel, is_strong_read); }

void begin_history(Launch& launch, bool interleaved) {
  if (launch.rules.strictness == Strictness::Field) return;
  if (!interleaved && launch.grid.count() == launch.cluster.count()) return;
  launch.grid_history = std::make_unique<GridHistory>();
  launch.grid_history->can_synchronize =
      may_wait_for_others(*launch.kernel) && any_instruction(*launch.kernel, is_strong_write);
}

void equip_cluster(Cluster& cluster, const Launch& launch, Statistics* statistics) {
  cluster.statistics = launch.counts ? statistics : nullptr;
  cluster.logs_writes = launch.written != nullptr || copies_tensors(*launch.kernel);
  // A launch of one warp has no races.
  const bool may_race =
      launch.rules.strictness != Strictness::Field && (launch.grid.count() > 1 || launch.block.count() > kLanes);
  if (may_race || launch.grid_history != nullptr) cluster.global_history = std::make_unique<GlobalHistory>();
  cluster.grid_can_synchronize = launch.grid_history != nullptr && launch.grid_history->can_synchronize;
}

}  // namespace sim
