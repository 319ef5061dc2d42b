// SPDX-License-Identifier: Apache-2.0
// A launch over host threads.
#include <algorithm>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "sim/hazards/global_races.h"
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
      for (bool time_passes = false; progress.changes == changes;) {
        if (!grid.comes_back(time_passes) || progress.changes != changes) continue;
        if (time_passes) report_deadlock({&grid}, "\n  nothing is pending");
        time_passes = true;
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
  if (kernel.uses.order_between_clusters) host_threads = 1;
  begin_history(launch, false);

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

  const auto run_one = [&](Cluster& cluster, uint64_t number, std::vector<ClusterHistory>& histories) {
    try {
      begin_cluster(cluster, launch, number);
      Schedule(cluster).run();
      if (failed.load() < cluster.share) return false;
      finish_cluster(cluster);
      if (host_threads == 1)
        judge_ended(cluster);
      else if (launch.grid_history != nullptr)
        histories.push_back(take_history(cluster));
      keep_deviations(cluster.deviations, number);
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
      keep_deviations(cluster.deviations, number);
      keep_failure(cluster.share);
      return false;
    }
  };
  const auto work = [&] {
    enter_device(launch.device);
    Cluster cluster;
    Statistics statistics;
    cluster.stop_above = &failed;
    cluster.alone = host_threads == 1;
    equip_cluster(cluster, launch, &statistics);
    for (;;) {
      cluster.share = next.fetch_add(1);
      if (cluster.share >= running || failed.load() < cluster.share) return keep_statistics(statistics);
      cluster.pending = share_of(launch.order, cluster.share, running, clusters);
      std::vector<ClusterHistory> histories;
      bool ended_well = true;
      while (ended_well && !cluster.pending.empty()) {
        const uint64_t number = cluster.pending.front();
        cluster.pending.pop_front();
        ended_well = run_one(cluster, number, histories);
      }
      if (ended_well) end_share(cluster.share, std::move(histories));
    }
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
