// SPDX-License-Identifier: Apache-2.0
// A launch over host threads.
#include <algorithm>
#include <deque>
#include <exception>
#include <mutex>
#include <random>
#include <thread>

#include "sim/machine/coverage.h"
#include "sim/run/grid.h"
#include "sim/run/run.h"
#include "sim/run/schedule.h"
#include "sim/run/shares.h"
#include "sim/run/turn.h"

namespace sim {
namespace {

// One host thread, so that what a cluster reads of another's does not depend on the number of threads.
void take_turns(Launch& launch) {
  Progress progress;
  RunningGrid grid(launch, progress, false);
  const auto run = [&] {
    for (;;) {
      if (grid.turn()) continue;
      if (grid.done()) return;
      const uint64_t changes = progress.changes;
      if (grid.perform_pending()) continue;
      while (progress.changes == changes) {
        if (grid.comes_back() && progress.changes == changes) report_deadlock({&grid}, "\n  nothing is pending");
      }
    }
  };
  try {
    run();
  } catch (...) {
    grid.finish();
    throw;
  }
  grid.finish();
}

}  // namespace

void run(Launch& launch) {
  const Kernel& kernel = *launch.kernel;
  check_launch(launch);
  const uint64_t clusters = launch.grid.count() / launch.cluster.count();
  unsigned host_threads =
      launch.threads > 0 ? static_cast<unsigned>(launch.threads) : std::thread::hardware_concurrency();
  host_threads = static_cast<unsigned>(std::min<uint64_t>(std::max(1u, host_threads), std::max<uint64_t>(1, clusters)));

  const uint64_t running = running_clusters(launch, clusters);
  if (may_wait_for_others(kernel)) return take_turns(launch);
  host_threads = static_cast<unsigned>(std::min<uint64_t>(host_threads, running));
  if (order_between_clusters_matters(kernel)) host_threads = 1;

  std::atomic<uint64_t> next{0}, failed{UINT64_MAX};  // shares
  std::mutex mutex;
  std::exception_ptr failure;
  const auto keep_deviations = [&](Cluster& cluster, uint64_t number) {
    if (cluster.deviations.seen.empty()) return;
    const std::lock_guard<std::mutex> lock(mutex);
    launch.deviations.add(std::move(cluster.deviations), number);
  };
  const auto keep_statistics = [&](const Statistics& of_worker) {
    const std::lock_guard<std::mutex> lock(mutex);
    launch.statistics.add(of_worker);
  };
  const auto run_one = [&](Cluster& cluster, uint64_t number) {
    try {
      begin_cluster(cluster, launch, number);
      Schedule(cluster).run();
      if (failed.load() < cluster.share) return false;
      finish_cluster(cluster);
      keep_deviations(cluster, number);
      launch.instructions += cluster.instructions;
      for (const auto& cta : cluster.ctas) {
        if (cta->has_waited && !cta->released_dependents_early) launch.predecessors.waited_for = true;
      }
      if (launch.written != nullptr) {
        const std::lock_guard<std::mutex> lock(mutex);
        launch.written->add(cluster.written);
      }
      return true;
    } catch (...) {
      keep_deviations(cluster, number);
      const std::lock_guard<std::mutex> lock(mutex);
      if (cluster.share < failed.load()) {
        failed = cluster.share;
        failure = std::current_exception();
      }
      return false;
    }
  };
  const auto work = [&] {
    enter_device(launch.device);
    Cluster cluster;
    Statistics statistics;
    cluster.statistics = launch.counts ? &statistics : nullptr;
    cluster.stop_above = &failed;
    cluster.alone = host_threads == 1;
    cluster.logs_writes = launch.written != nullptr || copies_tensors(kernel);
    for (;;) {
      cluster.share = next.fetch_add(1);
      if (cluster.share >= running || failed.load() < cluster.share) return keep_statistics(statistics);
      cluster.pending = share_of(launch.order, cluster.share, running, clusters);
      while (!cluster.pending.empty()) {
        const uint64_t number = cluster.pending.front();
        cluster.pending.pop_front();
        if (!run_one(cluster, number)) break;
      }
    }
  };
  if (host_threads == 1) {
    work();
  } else {
    std::vector<std::thread> workers;
    for (unsigned i = 0; i < host_threads; ++i) workers.emplace_back(work);
    for (std::thread& worker : workers) worker.join();
  }
  launch.predecessors.complete();
  record_coverage(kernel);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace sim
