// SPDX-License-Identifier: Apache-2.0
#include "sim/machine/engine.h"

#include "sim/machine/hierarchy.h"

namespace sim {

void AsyncEngine::submit(Cluster& cluster, std::unique_ptr<AsyncOp> op) {
  if (cluster.order.mode == Mode::Eager) {
    op->perform(cluster);
    cluster.event();
    return;
  }
  ops_.push_back(std::move(op));
  if (cluster.order.mode == Mode::Random && cluster.rng() % 8 == 0) perform_one(cluster);
}

// Lazy: the newest operation, or the head of its queue. Random: any, or the head of its queue.
size_t AsyncEngine::pick(Cluster& cluster) {
  const size_t chosen = cluster.order.mode == Mode::Random ? cluster.rng() % ops_.size() : ops_.size() - 1;
  const uint64_t queue = ops_[chosen]->queue;
  if (queue == 0) return chosen;
  for (size_t i = 0; i < chosen; ++i) {
    if (ops_[i]->queue == queue) return i;
  }
  return chosen;
}

bool AsyncEngine::perform_one(Cluster& cluster) {
  if (ops_.empty()) return false;
  const size_t index = pick(cluster);
  const std::unique_ptr<AsyncOp> op = std::move(ops_[index]);
  ops_.erase(ops_.begin() + static_cast<ptrdiff_t>(index));
  op->perform(cluster);
  cluster.event();
  return true;
}

void AsyncEngine::maybe_perform(Cluster& cluster) {
  if (cluster.order.mode == Mode::Random && !ops_.empty() && cluster.rng() % 4 == 0) perform_one(cluster);
}

void AsyncEngine::perform_all(Cluster& cluster) {
  while (perform_one(cluster)) {
  }
}

}  // namespace sim
