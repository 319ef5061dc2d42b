// SPDX-License-Identifier: Apache-2.0
// Vector clocks: who has seen what. The order of every access that matters is decided from these,
// never from the order in which the simulator happened to run it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "sim/history/grid_view.h"

namespace sim {

// Something whose progress others must observe: a warp's own program order, the bulk groups of a warp, the wgmma
// groups of a warp, the phases of one mbarrier. Agents are numbered from 0 within a cluster.
using Agent = uint32_t;

class Clock {
 public:
  uint32_t operator[](Agent a) const { return a < t_.size() ? t_[a] : 0; }
  void raise(Agent a, uint32_t value) {
    if (a >= t_.size()) t_.resize(a + 1, 0);
    t_[a] = std::max(t_[a], value);
  }
  void join(const Clock& other);
  bool covers(const Clock& other) const {
    for (size_t i = 0; i < other.t_.size(); ++i) {
      if (other.t_[i] > (*this)[static_cast<Agent>(i)]) return false;
    }
    return true;
  }
  void clear() { t_.clear(); }
  bool empty() const { return t_.empty(); }
  void forget(Agent a) {
    if (a < t_.size()) t_[a] = 0;
  }

 private:
  std::vector<uint32_t> t_;
};

// The scope of a synchronising operation (PTX ISA 8.5): .cta; .cluster; .gpu or wider, which Grid is.
enum class Scope : uint8_t { Cta, Wide, Grid };

// What a thread of execution knows, or has told an object: `seen` is what has happened before; `fenced` is the part of
// it that is also ordered before later accesses through the async proxy (PTX ISA 8.10.6, fence.proxy.async).
// `caused` is the part of it that is causality order: it came over operations whose scopes include each other (8.9.4).
// It is kept in clusters of several blocks only, for the epochs of warps, and decides what a plain read may get to see
// of another block's plain writes.
struct View {
  Clock seen;
  Clock fenced;
  // A warp has one. A fence and a relaxed read have one that holds for threads of the same block.
  Clock caused;
  // A fence, a relaxed read and an object have one that holds for other blocks, too.
  Clock wide;
  // An object has the `caused` of those who published to it, by the rank of their block.
  std::vector<Clock> by_block;
  // Of other clusters.
  GridOrder grid;
  // Below isa: what is over on a GPU, though it came over operations that order no memory: a relaxed barrier.cluster,
  // and the complete-tx of a copy, which follows what its thread did before the copy (8.9.1.1).
  Clock weak;
  void join(const View& other) {
    seen.join(other.seen);
    fenced.join(other.fenced);
    caused.join(other.caused);
    wide.join(other.wide);
    grid.join(other.grid);
    weak.join(other.weak);
    if (by_block.size() < other.by_block.size()) by_block.resize(other.by_block.size());
    for (size_t i = 0; i < other.by_block.size(); ++i) by_block[i].join(other.by_block[i]);
  }
};

// One access, made by the agent `by` when its clock stood at `at`. There is none where `at` is 0.
struct Stamp {
  uint32_t by = 0;
  uint32_t at = 0;
};

}  // namespace sim
