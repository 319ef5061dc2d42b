// SPDX-License-Identifier: Apache-2.0
// What happened in the clusters of a grid, as threads of other clusters know it.
#pragma once
#include <cstdint>
#include <memory>

namespace sim {

class Clock;

// A clock for each cluster, by its number. Clusters that have released nothing have none. Copies share what is alike,
// so that one which thousands of clusters add to in turn stays small.
class GridView {
 public:
  bool empty() const { return root_ == nullptr; }
  // Two views of one identity are the same.
  const void* identity() const { return root_.get(); }
  void join(const GridView& other) {
    if (other.root_ != nullptr && other.root_ != root_) join_other(other);
  }
  void add(uint32_t cluster, const Clock& clock);
  // Null when nothing is known of the cluster.
  const Clock* of(uint32_t cluster) const;

 private:
  struct Node;
  using Pointer = std::shared_ptr<const Node>;
  static Pointer joined(const Pointer& a, const Pointer& b);
  static Pointer lifted(Pointer node, uint32_t height);
  void join_other(const GridView& other);
  Pointer root_;
};

// What operations of .gpu scope order, and what only those of .sys scope do. With one device these are one, and all is
// in the first.
struct ScopedView {
  GridView device, system;
  bool empty() const { return device.empty() && system.empty(); }
  void join(const ScopedView& other) {
    device.join(other.device);
    system.join(other.system);
  }
};

// What a thread, or an object that threads synchronize by, knows of other clusters.
struct GridOrder {
  GridView before;      // what comes before its next operations
  ScopedView released;  // what fence.sc has covered, by whichever thread: a relaxed write may release it
  ScopedView awaited;   // what relaxed reads have brought, by whichever thread: a fence.sc puts it before
  void join(const GridOrder& other) {
    before.join(other.before);
    released.join(other.released);
    awaited.join(other.awaited);
  }
};

}  // namespace sim
