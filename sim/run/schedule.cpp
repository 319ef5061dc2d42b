// SPDX-License-Identifier: Apache-2.0
// The order in which the warps of a cluster run.
#include "sim/run/schedule.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "sim/machine/launch.h"
#include "sim/run/turn.h"

namespace sim {
namespace {

constexpr int kPatience = 4;                // rounds of nothing but polling until pending work is performed
constexpr int kDespair = 20000;             // rounds of polling with nothing pending until it is a deadlock
constexpr uint64_t kLivelock = 1ull << 20;  // instructions without event or store until pending work is performed
constexpr uint64_t kHopeless = 1ull << 29;  // instructions without event or store until it is a deadlock
constexpr int kStuck = 3;                   // rounds without event or store until others have their turn
constexpr int kStuckRandom = 24;            // the same with the short turns of random order
constexpr uint64_t kSettled = 48;           // rounds until every part of a diverged warp has had its turn
constexpr uint64_t kLongest = 1ull << 44;   // nanoseconds that a kernel may measure: four hours
constexpr uint64_t kExpiries = 1 << 16;     // times that waits expire until it is a deadlock
constexpr size_t kInVain = 1 << 10;         // the same without event or store

bool may_run(const Warp& warp) {
  const uint64_t now = warp.cta->cluster->events + 1;
  return std::any_of(warp.splits.begin(), warp.splits.end(), [&](const Warp::Split& s) { return s.blocked_at != now; });
}

uint64_t state_of(const Warp& warp, uint32_t register_bytes) {
  uint64_t state = warp.splits.size();
  const auto mix = [&state](uint64_t value) {
    state = (state ^ value) * 0x9e3779b97f4a7c15ull;
    state ^= state >> 29;
  };
  for (const Warp::Split& split : warp.splits) mix(uint64_t{static_cast<uint32_t>(split.pc)} << 32 | split.mask);
  for (uint32_t at = 0; at + 8 <= register_bytes; at += 8) {
    uint64_t word;
    std::memcpy(&word, warp.registers.get() + at, sizeof word);
    mix(word);
  }
  return state;
}

}  // namespace

Schedule::Schedule(Cluster& cluster) : cluster_(cluster) {
  for (const auto& cta : cluster.ctas) {
    for (const auto& warp : cta->warps) order_.push_back(warp.get());
  }
  if (cluster.order.mode == Mode::Lazy) std::reverse(order_.begin(), order_.end());
  alive_ = order_.size();
  hogged_.assign(order_.size(), 0);
}

void Schedule::round(Turns turns, bool same_length) {
  const Mode mode = cluster_.order.mode;
  const uint64_t events_before = cluster_.events;
  ran_ = worked_ = false;
  const bool random = mode == Mode::Random && !same_length;
  if (random) std::shuffle(order_.begin(), order_.end(), cluster_.rng);
  const size_t count = order_.size();
  for (size_t i = 0, at = first_; i < count; ++i, ++at) {
    if (at == count) at = 0;
    Warp& warp = *order_[at];
    if (warp.splits.empty()) continue;
    uint32_t quantum = mode == Mode::Lazy ? turns.lazy : turns.eager;
    if (random) {
      const uint64_t draw = cluster_.rng();
      // Now and then the others get far ahead of a warp.
      if (warp.rest == 0 && (draw >> 40) % 64 == 0) warp.rest = static_cast<uint32_t>(draw >> 48) % 64;
      if (warp.rest > 0) {
        --warp.rest;
        if (may_run(warp)) ran_ = worked_ = true;
        continue;
      }
      quantum = 1 + static_cast<uint32_t>(draw % 256);
      if (warp.splits.size() > 1 && (draw >> 32) % 8 == 0) warp.rotate = true;
    }
    uint32_t executed = 0;
    const Turn turn = run_warp(warp, quantum, &executed);
    cluster_.instructions += executed;
    if (executed > 0) ran_ = true;
    if (turn == Turn::Finished) --alive_;
    if (turn == Turn::Yielded) warp.rotate = true;
    if (turn == Turn::Quantum && warp.splits.size() > 1 && ++hogged_[static_cast<size_t>(warp.index)] % 16 == 0)
      warp.rotate = true;
    if (executed > 0 && turn != Turn::Yielded) worked_ = true;
    if (random) cluster_.engine.maybe_perform(cluster_);
  }
  if (alive_ > 0 && mode == Mode::Lazy) first_ = (first_ + 1) % order_.size();
  quiet_ = cluster_.events == events_before;
}

void Schedule::expire() {
  const uint64_t now = cluster_.events + 1;
  for (Warp* warp : order_) {
    for (Warp::Split& split : warp->splits) {
      if (split.blocked_at == now && !split.apart) split.blocked_at = Warp::Split::kExpired;
    }
  }
}

bool Schedule::expire_waits() {
  if (changes() != expired_at_) expired_.clear();
  expired_at_ = changes();
  uint64_t state = 0;
  for (const auto& cta : cluster_.ctas) {
    for (const auto& warp : cta->warps)
      state = state * 0x9e3779b97f4a7c15ull + state_of(*warp, cluster_.launch->kernel->variable_bytes);
  }
  if (++expiries_ > kExpiries || expired_.size() >= kInVain || !expired_.insert(state).second) return false;
  expire();
  return true;
}

void Schedule::run() {
  int polling_rounds = 0;
  uint64_t quiet_since = 0, patience = kLivelock;
  while (alive_ > 0) {
    round({4096, 1024});
    if (alive_ == 0) break;
    if (cluster_.stop_above != nullptr && cluster_.stop_above->load(std::memory_order_relaxed) < cluster_.share) return;

    if (!ran_ && quiet_) {
      if (cluster_.engine.perform_one(cluster_))
        cluster_.event();
      else if (!expire_waits())
        report_deadlock(cluster_, "no warp can run");
      continue;
    }
    polling_rounds = quiet_ && !worked_ ? polling_rounds + 1 : 0;
    if (polling_rounds >= kPatience && cluster_.engine.perform_one(cluster_)) {
      cluster_.event();
      polling_rounds = 0;
    }
    if (polling_rounds == kPatience) expire_waits();
    if (polling_rounds >= kDespair) report_deadlock(cluster_, "every warp that can run polls in vain");

    if (changes() != seen_) {
      seen_ = changes();
      quiet_since = cluster_.instructions;
      patience = kLivelock;
    } else if (cluster_.instructions - quiet_since > kLivelock && cluster_.engine.perform_one(cluster_)) {
      cluster_.event();
    } else if (cluster_.instructions - quiet_since > patience && expire_waits()) {
      patience += kLivelock;
    } else if (cluster_.instructions - quiet_since > kHopeless) {
      report_deadlock(cluster_, "no progress in " + std::to_string(kHopeless) + " instructions");
    }
  }
}

Schedule::State Schedule::run_for(uint32_t rounds) {
  const int patience = cluster_.order.mode == Mode::Random ? kStuckRandom : kStuck;
  for (; rounds > 0; --rounds) {
    round({1024, 512});
    if (alive_ == 0) return State::Finished;
    if (!ran_ && quiet_) {
      if (cluster_.engine.pending() > 0) return State::Stuck;
      if (!expire_waits()) report_deadlock(cluster_, "no warp can run");
      continue;
    }
    if (changes() != seen_) {
      seen_ = changes();
      quiet_rounds_ = 0;
    } else if (++quiet_rounds_ >= patience) {
      quiet_rounds_ = 0;
      return State::Stuck;
    }
  }
  return State::Going;
}

bool Schedule::has_changed() { return std::exchange(told_, changes()) != changes(); }

bool Schedule::comes_back(uint64_t since, bool time_passes) {
  if (orbits_.empty() || orbits_since_ != since) {
    orbits_.assign(order_.size(), {});
    orbits_since_ = since;
    orbit_rounds_ = 0;
    orbits_begin_ = cluster_.instructions;
    skipped_ = 1 << 16;
  }
  if (orbit_rounds_ < 2 * kInVain) expire();  // The answer of a wait and the next wait take two rounds.
  round({4096, 4096}, true);
  ++orbit_rounds_;
  if (cluster_.reads_clock) {
    if (!time_passes) return true;
    cluster_.skipped_time += skipped_;
    skipped_ *= 2;
    return skipped_ > kLongest;
  }
  if (orbit_rounds_ < kSettled) return false;
  bool all = true;
  size_t i = 0;
  for (const auto& cta : cluster_.ctas) {
    for (const auto& warp : cta->warps) {
      Orbit& orbit = orbits_[i++];
      if (warp->splits.empty() || orbit.closed) continue;
      const uint64_t state = state_of(*warp, cluster_.launch->kernel->variable_bytes);
      if (orbit.turns > 0 && state == orbit.state) {
        orbit.closed = true;
        continue;
      }
      if (orbit.turns == orbit.until) {
        orbit.state = state;
        orbit.until = std::max<uint64_t>(1, 2 * orbit.turns);
      }
      ++orbit.turns;
      all = false;
    }
  }
  return all || cluster_.instructions - orbits_begin_ > kHopeless;
}

}  // namespace sim
