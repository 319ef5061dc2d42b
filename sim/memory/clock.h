// Vector clocks: who has seen what. The order of every access that matters is decided from these,
// never from the order in which the simulator happened to run it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace sim {

// A dense index of something whose progress others must observe: a warp's own program order, the bulk
// groups of a warp, the wgmma groups of a warp, the phases of one mbarrier. Unique within a cluster.
using Agent = uint32_t;

class Clock {
 public:
  uint32_t operator[](Agent a) const { return a < t_.size() ? t_[a] : 0; }
  void raise(Agent a, uint32_t value) {
    if (a >= t_.size()) t_.resize(a + 1, 0);
    t_[a] = std::max(t_[a], value);
  }
  void join(const Clock& other) {
    if (other.t_.size() > t_.size()) t_.resize(other.t_.size(), 0);
    for (size_t i = 0; i < other.t_.size(); ++i) t_[i] = std::max(t_[i], other.t_[i]);
  }
  void clear() { t_.clear(); }
  void forget(Agent a) {
    if (a < t_.size()) t_[a] = 0;
  }

 private:
  std::vector<uint32_t> t_;
};

// What a thread of execution knows: `seen` is happens-before; `fenced` is the part of it that is also
// ordered before later accesses through the async proxy (PTX ISA 8.10.6, fence.proxy.async).
struct View {
  Clock seen;
  Clock fenced;
  void join(const View& other) {
    seen.join(other.seen);
    fenced.join(other.fenced);
  }
};

// One access: agent `by` when its clock stood at `at`. at == 0 means none.
struct Stamp {
  uint32_t by = 0;
  uint32_t at = 0;
};

}  // namespace sim
