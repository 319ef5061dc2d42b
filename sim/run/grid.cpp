// SPDX-License-Identifier: Apache-2.0
// Which clusters of a launch take turns, and how they begin and end.
#include "sim/run/grid.h"

#include <algorithm>
#include <deque>
#include <sstream>

#include "sim/hazards/global_races.h"
#include "sim/machine/coverage.h"
#include "sim/machine/random.h"
#include "sim/run/schedule.h"
#include "sim/run/shares.h"
#include "sim/run/turn.h"

namespace sim {

struct RunningGrid::Active {
  Cluster cluster;
  std::unique_ptr<Schedule> schedule;
  uint64_t stuck_at = 0;  // Progress::changes when it got stuck
};

RunningGrid::RunningGrid(Launch& launch, Progress& progress, bool interleaved)
    : launch_(launch), progress_(progress), interleaved_(interleaved) {
  check_launch(launch);
  clusters_ = launch.grid.count() / launch.cluster.count();
  running_ = running_clusters(launch, clusters_);
  const uint64_t processors = launch.multiprocessors > 0 ? launch.multiprocessors : launch.arch >= 100 ? 148 : 132;
  resident_ = std::max<uint64_t>(1, processors * launch.blocks_per_multiprocessor / launch.cluster.count());
  begin_history(launch, interleaved);
  if (launch.grid_history != nullptr && interleaved) {
    GridHistory& history = *launch.grid_history;
    if (const auto objects = progress.objects.lock()) history.objects = objects;
    progress.objects = history.objects;
    history.first_cluster = history.objects->clusters;
    history.objects->clusters += static_cast<uint32_t>(clusters_);
  }
  rng_.seed(splitmix64(launch.order.seed ^ 0x6d6f786965ull));
  for (uint64_t share = running_; share > 0; --share) waiting_.push_back(share - 1);
  if (!interleaved) return;
  if (launch.order.mode == Mode::Lazy) std::reverse(waiting_.begin(), waiting_.end());
  if (launch.order.mode == Mode::Random) std::shuffle(waiting_.begin(), waiting_.end(), rng_);
}

RunningGrid::~RunningGrid() = default;

bool RunningGrid::done() const { return active_.empty() && waiting_.empty(); }

void RunningGrid::begin(Active& active) {
  const uint64_t number = active.cluster.pending.front();
  active.cluster.pending.pop_front();
  begin_cluster(active.cluster, launch_, number);
  active.schedule = std::make_unique<Schedule>(active.cluster);
  active.stuck_at = 0;
}

bool RunningGrid::start_one() {
  if (waiting_.empty() || active_.size() >= resident_) return false;
  if (idle_.empty()) {
    idle_.push_back(std::make_unique<Active>());
    equip_cluster(idle_.back()->cluster, launch_, &statistics_);
  }
  std::unique_ptr<Active> active = std::move(idle_.back());
  idle_.pop_back();
  Cluster& cluster = active->cluster;
  cluster.alone = true;
  cluster.share = waiting_.back();
  waiting_.pop_back();
  cluster.pending = share_of(launch_.order, cluster.share, running_, clusters_);
  begin(*active);
  active_.push_back(std::move(active));
  current_ = active_.size() - 1;
  return true;
}

void RunningGrid::end_of(size_t i) {
  Active& active = *active_[i];
  Cluster& cluster = active.cluster;
  finish_cluster(cluster);
  judge_ended(cluster);
  launch_.instructions += cluster.instructions;
  for (const auto& cta : cluster.ctas) {
    if (cta->has_waited && !cta->released_dependents_early) launch_.predecessors.waited_for = true;
  }
  if (launch_.written != nullptr) launch_.written->add(cluster.written);
  launch_.deviations.add(std::move(cluster.deviations), cluster.number);
  ++progress_.changes;
  if (!cluster.pending.empty()) return begin(active);
  idle_.push_back(std::move(active_[i]));
  active_.erase(active_.begin() + static_cast<ptrdiff_t>(i));
  current_ = active_.empty() ? 0 : i % active_.size();
}

bool RunningGrid::turn() {
  enter_device(launch_.device);
  const bool random = interleaved_ && launch_.order.mode == Mode::Random;
  if (active_.empty() || (random && rng_() % 4 == 0)) start_one();
  if (active_.empty()) return false;
  if (random) current_ = rng_() % active_.size();
  size_t tried = 0;
  while (tried < active_.size() && active_[current_]->stuck_at == progress_.changes) {
    current_ = (current_ + 1) % active_.size();
    ++tried;
  }
  if (tried == active_.size() && !start_one()) return false;
  const size_t i = current_;
  Active& active = *active_[i];
  const Schedule::State state = active.schedule->run_for(random ? 1 + static_cast<uint32_t>(rng_() % 64) : 64);
  if (state == Schedule::State::Finished) {
    end_of(i);
    return true;
  }
  if (active.schedule->has_changed()) ++progress_.changes;
  if (state == Schedule::State::Stuck) {
    active.stuck_at = progress_.changes;
    current_ = (i + 1) % active_.size();
  }
  return true;
}

bool RunningGrid::perform_pending() {
  for (size_t n = 0; n < active_.size(); ++n) {
    Cluster& cluster = active_[(current_ + n) % active_.size()]->cluster;
    if (!cluster.engine.perform_one(cluster)) continue;
    cluster.event();
    ++progress_.changes;
    return true;
  }
  return false;
}

bool RunningGrid::comes_back(bool time_passes) {
  enter_device(launch_.device);
  const uint64_t since = progress_.changes;
  bool all = true;
  for (size_t i = 0; i < active_.size(); ++i) {
    Active& active = *active_[i];
    all = active.schedule->comes_back(since, time_passes) && all;
    if (active.cluster.finished()) {
      end_of(i);
      return false;
    }
    if (active.schedule->has_changed() || active.cluster.engine.pending() > 0) ++progress_.changes;
    if (progress_.changes != since) return false;
  }
  return all;
}

void RunningGrid::describe_waiting(std::string* lines, int* warps, std::string* first) {
  enter_device(launch_.device);
  size_t shown = 0;
  for (const auto& active : active_) {
    const Waiting waiting = sim::describe_waiting(active->cluster);
    *warps += waiting.warps;
    if (first->empty()) *first = waiting.first;
    if (++shown <= 16) *lines += waiting.lines;
  }
  if (shown > 16) *lines += "\n  and " + std::to_string(shown - 16) + " more clusters of this kernel";
  if (!waiting_.empty())
    *lines += "\n  " + std::to_string(waiting_.size()) + " clusters of this kernel have not started: no more than " +
              std::to_string(resident_) + " are resident at once";
}

void RunningGrid::finish() {
  for (const auto& active : active_)
    launch_.deviations.add(std::move(active->cluster.deviations), active->cluster.number);
  launch_.grid_history.reset();
  launch_.statistics.add(statistics_);
  launch_.predecessors.complete();
  record_coverage(*launch_.kernel);
}

void report_deadlock(const std::vector<RunningGrid*>& grids, const std::string& more) {
  std::string lines, first;
  int warps = 0;
  for (RunningGrid* const grid : grids) {
    lines += "\n  kernel '" + grid->launch().kernel->name + "'";
    if (grid->launch().device != Residence::kEverywhere) lines += " of device " + std::to_string(grid->launch().device);
    lines += ":";
    grid->describe_waiting(&lines, &warps, &first);
  }
  throw Fault(Hazard::Deadlock, std::string(hazard_name(Hazard::Deadlock)) + ": no warp can go on, " +
                                    std::to_string(warps) + (warps == 1 ? " warp waits" : " warps wait") +
                                    (first.empty() ? "" : ", the first " + first) + lines + more);
}

}  // namespace sim
