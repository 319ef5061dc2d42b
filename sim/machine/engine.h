// SPDX-License-Identifier: Apache-2.0
// When asynchronous operations are performed: the order of a launch, and the engine that holds what is pending.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace sim {

struct Cluster;

enum class Mode { Eager, Lazy, Random };
struct Order {
  Mode mode = Mode::Eager;
  uint64_t seed = 0;
};
// One asynchronous operation that was issued and not yet performed.
class AsyncOp {
 public:
  virtual ~AsyncOp() = default;
  virtual void perform(Cluster& cluster) = 0;
  // Operations of one queue are performed in the order of their submission; 0: unordered.
  uint64_t queue = 0;
};

// Holds what is pending. Eager performs at submission; lazy when no warp can run (latest submitted first among
// those that may go, unless a queue orders them); random at seeded moments.
class AsyncEngine {
 public:
  void submit(Cluster& cluster, std::unique_ptr<AsyncOp> op);
  bool perform_one(Cluster& cluster);    // false when nothing is pending
  void maybe_perform(Cluster& cluster);  // random mode: between quanta
  void perform_all(Cluster& cluster);    // at the end of the cluster
  size_t pending() const { return ops_.size(); }

 private:
  size_t pick(Cluster& cluster);
  std::vector<std::unique_ptr<AsyncOp>> ops_;
};

}  // namespace sim
