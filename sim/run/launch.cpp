// SPDX-License-Identifier: Apache-2.0
// A launch over host threads.
#include <algorithm>
#include <deque>
#include <exception>
#include <initializer_list>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "sim/hazards/global_races.h"
#include "sim/machine/coverage.h"
#include "sim/run/run.h"
#include "sim/run/turn.h"

namespace sim {
namespace {

constexpr uint32_t kSharedLimit = 232448;  // bytes a block may have

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

// Whether clusters can hand anything over: the kernel reads and writes global memory by strong operations.
bool can_synchronize(const Kernel& kernel) {
  bool reads = false, writes = false;
  for (const Instr& in : kernel.code) {
    if (in.source == nullptr) continue;
    const auto& parts = in.source->parts;
    const auto has = [&](std::initializer_list<const char*> names) {
      return std::any_of(parts.begin(), parts.end(), [&](const std::string& part) {
        return std::any_of(names.begin(), names.end(), [&](const char* name) { return part == name; });
      });
    };
    if (has({"shared", "shared::cta", "shared::cluster", "local", "param"})) continue;
    const bool strong = has({"volatile", "relaxed", "acquire", "release", "mmio"});
    reads = reads || parts[0] == "atom" || (parts[0] == "ld" && strong);
    writes = writes || parts[0] == "atom" || parts[0] == "red" || (parts[0] == "st" && strong);
  }
  return reads && writes;
}

}  // namespace

void run(Launch& launch) {
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
  const uint64_t clusters = launch.grid.count() / launch.cluster.count();
  unsigned host_threads =
      launch.threads > 0 ? static_cast<unsigned>(launch.threads) : std::thread::hardware_concurrency();
  host_threads = static_cast<unsigned>(std::min<uint64_t>(std::max(1u, host_threads), std::max<uint64_t>(1, clusters)));

  const uint64_t running = running_clusters(launch, clusters);
  host_threads = static_cast<unsigned>(std::min<uint64_t>(host_threads, running));
  if (order_between_clusters_matters(kernel)) host_threads = 1;

  const bool looks_for_races =
      launch.rules.strictness != Strictness::Field && (launch.grid.count() > 1 || threads_per_block > kLanes);
  if (looks_for_races && clusters > 1) {
    launch.grid_history = std::make_unique<GridHistory>();
    launch.grid_history->can_synchronize = can_synchronize(kernel);
    if (launch.grid_history->can_synchronize) host_threads = 1;
  }

  // Whether a tensor map in global memory was stored over is asked when a copy uses it.
  const bool copies_tensors = std::any_of(kernel.code.begin(), kernel.code.end(), [](const Instr& in) {
    return in.source != nullptr && in.source->opcode.rfind("cp.async.bulk.tensor", 0) == 0;
  });
  // Clusters that wait for others can only take turns on one thread.
  const bool parks = host_threads == 1 && running == clusters && clusters > 1;
  std::atomic<uint64_t> next{0}, failed{UINT64_MAX};  // shares
  std::mutex mutex;
  std::exception_ptr failure;
  const auto keep_failure = [&](uint64_t share) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (share >= failed.load()) return;
    failed = share;
    failure = std::current_exception();
  };
  const auto keep_deviations = [&](Deviations& deviations, uint64_t number) {
    if (deviations.seen.empty()) return;
    const std::lock_guard<std::mutex> lock(mutex);
    launch.deviations.add(std::move(deviations), number);
  };
  const auto keep_statistics = [&](const Statistics& of_worker) {
    const std::lock_guard<std::mutex> lock(mutex);
    launch.statistics.add(of_worker);
  };

  // Clusters are held against those before them in the order of their shares, whichever ended first.
  std::mutex judging;
  std::map<uint64_t, std::vector<ClusterHistory>> ended;
  uint64_t next_judged = 0;
  const auto end_share = [&](uint64_t share, std::vector<ClusterHistory> histories) {
    if (launch.grid_history == nullptr || host_threads == 1) return;
    const std::lock_guard<std::mutex> lock(judging);
    ended[share] = std::move(histories);
    for (auto first = ended.begin(); first != ended.end() && first->first == next_judged && next_judged < failed.load();
         first = ended.erase(first), ++next_judged) {
      for (ClusterHistory& history : first->second) {
        Deviations deviations;
        try {
          judge_cluster(launch, history, deviations);
        } catch (...) {
          keep_failure(next_judged);
        }
        keep_deviations(deviations, history.cluster);
      }
    }
  };

  enum class End { Done, Parked, Failed };
  const auto go_on = [&](Cluster& cluster, std::vector<ClusterHistory>* histories) {
    if (!run_cluster(cluster)) return End::Parked;
    if (failed.load() < cluster.share) return End::Failed;
    finish_cluster(cluster);
    if (launch.grid_history != nullptr) {
      ClusterHistory history = take_history(cluster);
      if (host_threads == 1) {
        judge_cluster(launch, history, cluster.deviations);
        cluster.global_history = std::move(history.global);
      } else {
        histories->push_back(std::move(history));
        cluster.global_history = std::make_unique<GlobalHistory>();
      }
    }
    keep_deviations(cluster.deviations, cluster.number);
    launch.instructions += cluster.instructions;
    for (const auto& cta : cluster.ctas) {
      if (cta->has_waited && !cta->released_dependents_early) launch.predecessors.waited_for = true;
    }
    if (launch.written != nullptr) {
      const std::lock_guard<std::mutex> lock(mutex);
      launch.written->add(cluster.written);
    }
    return End::Done;
  };
  // Does something with a cluster that may fail.
  const auto guarded = [&](Cluster& cluster, auto action) {
    try {
      return action();
    } catch (...) {
      keep_deviations(cluster.deviations, cluster.number);
      keep_failure(cluster.share);
      return End::Failed;
    }
  };
  const auto work = [&] {
    Statistics statistics;
    const auto new_cluster = [&] {
      auto cluster = std::make_unique<Cluster>();
      cluster->statistics = launch.counts ? &statistics : nullptr;
      cluster->stop_above = &failed;
      cluster->alone = host_threads == 1;
      cluster->logs_writes = launch.written != nullptr || copies_tensors;
      cluster->may_park = parks;
      if (looks_for_races) cluster->global_history = std::make_unique<GlobalHistory>();
      cluster->grid_can_synchronize = launch.grid_history != nullptr && launch.grid_history->can_synchronize;
      return cluster;
    };
    std::deque<std::unique_ptr<Cluster>> parked;
    std::unique_ptr<Cluster> cluster = new_cluster();
    for (;;) {
      const uint64_t share = cluster->share = next.fetch_add(1);
      if (share >= running || failed.load() < share) break;
      cluster->pending = share_of(launch.order, share, running, clusters);
      std::vector<ClusterHistory> histories;
      End end = End::Done;
      while (end == End::Done && !cluster->pending.empty()) {
        const uint64_t number = cluster->pending.front();
        cluster->pending.pop_front();
        end = guarded(*cluster, [&] {
          begin_cluster(*cluster, launch, number);
          return go_on(*cluster, &histories);
        });
      }
      if (end == End::Done) end_share(share, std::move(histories));
      if (end != End::Parked) continue;
      parked.push_back(std::move(cluster));
      cluster = new_cluster();
    }
    // Those that wait for others take turns until none gets any further.
    for (size_t in_vain = 0; !parked.empty();) {
      cluster = std::move(parked.front());
      parked.pop_front();
      if (failed.load() < cluster->share) continue;
      const uint64_t before = cluster->stores + cluster->events;
      const bool lost = in_vain > parked.size();
      const End end = guarded(*cluster, [&] {
        if (lost) report_deadlock(*cluster, "every warp that can run polls in vain");
        return go_on(*cluster, nullptr);
      });
      in_vain = end == End::Parked && cluster->stores + cluster->events == before ? in_vain + 1 : 0;
      if (end == End::Parked) parked.push_back(std::move(cluster));
    }
    keep_statistics(statistics);
  };
  if (host_threads == 1) {
    work();
  } else {
    std::vector<std::thread> workers;
    for (unsigned i = 0; i < host_threads; ++i) workers.emplace_back(work);
    for (std::thread& worker : workers) worker.join();
  }
  launch.grid_history.reset();
  launch.predecessors.complete();
  record_coverage(kernel);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace sim
