// SPDX-License-Identifier: Apache-2.0
// Which accesses of the generic proxy a later one may race with. sim/hazards/shared_access.h decides by it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "sim/history/clock.h"

namespace sim {

// What one agent did to 16 bytes (a granule) in one epoch.
struct Touch {
  Stamp stamp;
  uint16_t bytes = 0;  // one bit a byte
  bool write = false;
  bool strong = false;  // PTX ISA 8.4: atomic, volatile, relaxed or stronger
};

// Two accesses race when they conflict and nothing orders them (PTX ISA 8.7.1).
inline bool conflict(const Touch& a, const Touch& b) {
  return (a.bytes & b.bytes) != 0 && (a.write || b.write) && !(a.strong && b.strong);
}

// Each granule has a list of touches, and granules that were treated alike share one. It leaves out what came before
// another one of the list that conflicts with all that it would conflict with.
class Races {
 public:
  void create(uint32_t bytes, bool shared_by_warps);
  // False when one warp alone reaches this memory.
  bool kept() const { return !lists_.empty(); }
  uint32_t* list_of_granules() { return list_of_.data(); }
  // Two for each granule: who made the last read or write, as the user of this class names it, and who another before.
  uint64_t* last(bool write) { return last_[write].data(); }
  // Calls visit for each touch of a list.
  template <class Visit>
  void each(uint32_t list, Visit visit) const {
    for (uint32_t i = 0; i < lists_[list].count; ++i) visit(touches_[lists_[list].first + i]);
  }
  // What keep() was told of the list with one touch more; UINT32_MAX: nothing. Lanes that scatter meet many lists.
  uint32_t kept_step(uint32_t list, const Touch& touch) const {
    const Step& step = steps_[place_of(list, touch)];
    return step.list == list && same(step.touch, touch) ? step.made : UINT32_MAX;
  }
  // The list becomes `made` by the touch, whose warp has seen all on it that conflicts.
  void keep(uint32_t list, const Touch& touch, uint32_t made) { steps_[place_of(list, touch)] = {list, made, touch}; }
  // The list with one touch more. `before(touch)` says which others come before it.
  template <class Before>
  uint32_t with(uint32_t list, Touch touch, Before before) {
    const List old = lists_[list];
    if (old.next != 0 && same(old.by, touch)) return old.next;
    for (uint32_t i = 0; i < old.count; ++i) {
      Touch held = touches_[old.first + i];
      held.bytes &= touch.bytes;
      if (same(held, touch)) return list;
    }
    const auto first = static_cast<uint32_t>(touches_.size());
    const Touch by = touch;
    for (uint32_t i = 0; i < old.count; ++i) {
      Touch other = touches_[old.first + i];
      if (other.stamp.by == touch.stamp.by && other.stamp.at == touch.stamp.at && other.write == touch.write &&
          other.strong == touch.strong) {
        touch.bytes |= other.bytes;
        continue;
      }
      const bool stronger = (touch.write || !other.write) && (!touch.strong || other.strong);
      if (stronger && before(other)) other.bytes &= static_cast<uint16_t>(~touch.bytes);
      if (other.bytes != 0) touches_.push_back(other);
    }
    touches_.push_back(touch);
    const auto made = static_cast<uint32_t>(lists_.size());
    lists_.push_back({first, static_cast<uint32_t>(touches_.size()) - first, made, by});
    lists_[list].next = made;
    lists_[list].by = by;
    return made;
  }
  // A copy has overwritten the bytes, in an order that was checked.
  void forget(uint32_t offset, uint32_t size) {
    if (kept() && size > 0) std::fill(list_of_.begin() + offset / 16, list_of_.begin() + (offset + size + 15) / 16, 0u);
  }
  // Drops lists that no granule has, when there are many.
  void collect() {
    if (touches_.size() >= collect_at_) drop_unused();
  }

 private:
  struct List {
    uint32_t first = 0, count = 0;
    uint32_t next = 0;  // this list with `by`; 0: not known
    Touch by;
  };
  struct Step {
    uint32_t list = UINT32_MAX, made = 0;
    Touch touch;
  };
  static constexpr size_t kSteps = 512;
  static size_t place_of(uint32_t list, const Touch& touch) {
    const uint32_t hash = list * 0x9e3779b1u ^ touch.stamp.by * 0x85ebca6bu ^ touch.stamp.at * 0xc2b2ae35u ^
                          touch.bytes * 0x165667b1u ^ (touch.write ? 0x5bd1e995u : 0);
    return hash >> 23;
  }
  static bool same(const Touch& a, const Touch& b) {
    return a.stamp.by == b.stamp.by && a.stamp.at == b.stamp.at && a.bytes == b.bytes && a.write == b.write &&
           a.strong == b.strong;
  }
  void drop_unused();
  std::vector<uint32_t> list_of_;  // by granule
  std::vector<uint64_t> last_[2];
  std::vector<List> lists_;  // the first one is empty
  std::vector<Touch> touches_;
  std::vector<Step> steps_;
  static constexpr size_t kCollectAt = 16384;
  size_t collect_at_ = kCollectAt;
};

}  // namespace sim
