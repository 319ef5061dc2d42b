// SPDX-License-Identifier: Apache-2.0
// Which accesses to global memory a later one may race with: page by page, and in a page by pieces of 16 bytes
// (granules). A cluster has a history of its own, and the grid one of its clusters. sim/hazards/global_races.h decides
// by them.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "sim/history/clock.h"

namespace sim {

// How far a strong access (PTX ISA 8.4: atomic, volatile, relaxed or stronger) reaches by its scope: .cta, .cluster,
// .gpu, .sys.
enum class Reach : uint8_t { Weak, Cta, Cluster, Device, System };

// What was done to a granule. In a cluster's history `stamp` is of the agent whose progress others must observe. In the
// grid's `stamp.by` is a number of GridHistory::moments.
struct GlobalTouch {
  Stamp stamp;
  uint32_t view;  // in a cluster's history: what the warp knew of other clusters, as the cluster numbers it
  uint32_t pc;    // of the instruction
  Agent warp;     // that executed it
  bool write = false;
  Reach reach = Reach::Weak;
  uint16_t bytes = 0;  // one bit a byte
  bool is_plain_write() const { return write && reach == Reach::Weak; }
  // Whether it is the same access, perhaps of other bytes.
  bool is_like(const GlobalTouch& other) const {
    return stamp.by == other.stamp.by && stamp.at == other.stamp.at && view == other.view && pc == other.pc &&
           write == other.write && reach == other.reach;
  }
};

// Lists of touches. Granules that were treated alike share one. The empty list is number 0.
class TouchLists {
 public:
  void clear() {
    lists_.assign(1, {});
    touches_.clear();
    steps_.assign(kSteps, {});
    collect_at_ = kCollectAt;
  }
  bool empty() const { return lists_.size() <= 1; }
  size_t size() const { return lists_.size(); }
  template <class Visit>
  void each(uint32_t list, Visit visit) const {
    for (uint32_t i = 0; i < lists_[list].count; ++i) visit(touches_[lists_[list].first + i]);
  }
  // The list with one touch more. `covered(other)`: whoever races with the other races with the new one, too.
  template <class Covered>
  uint32_t with(uint32_t list, const GlobalTouch& touch, Covered covered) {
    Step& step = step_of(list, touch);
    if (step.list == list && step.touch.bytes == touch.bytes && step.touch.is_like(touch)) return step.made;
    step = {list, 0, touch};
    return step.made = make(list, touch, covered);
  }
  bool crowded() const { return touches_.size() >= collect_at_; }
  // Drops lists that no page has. `each_list(visit)` calls visit(uint32_t&) for each granule's list.
  template <class EachList>
  void collect(EachList each_list) {
    std::vector<uint32_t> renamed(lists_.size(), 0);
    std::vector<List> kept(1);
    std::vector<GlobalTouch> touches;
    each_list([&](uint32_t& list) {
      if (list == 0) return;
      uint32_t& name = renamed[list];
      if (name == 0) {
        name = static_cast<uint32_t>(kept.size());
        const List& old = lists_[list];
        kept.push_back({static_cast<uint32_t>(touches.size()), old.count});
        touches.insert(touches.end(), touches_.begin() + old.first, touches_.begin() + old.first + old.count);
      }
      list = name;
    });
    lists_ = std::move(kept);
    touches_ = std::move(touches);
    steps_.assign(kSteps, {});
    collect_at_ = std::max(kCollectAt, 2 * touches_.size());
  }

 private:
  struct List {
    uint32_t first = 0, count = 0;
  };
  // A transition that was taken: this list with that touch is `made`.
  struct Step {
    uint32_t list = UINT32_MAX, made;
    GlobalTouch touch;
  };
  static constexpr size_t kSteps = 256, kCollectAt = 1u << 16;
  static constexpr uint32_t kLongest = 64;  // a longer list forgets its oldest touches
  Step& step_of(uint32_t list, const GlobalTouch& touch) {
    const uint32_t hash = list * 0x9e3779b1u ^ touch.stamp.by * 0x85ebca6bu ^ touch.stamp.at * 0xc2b2ae35u ^
                          touch.pc * 0x27d4eb2fu ^ touch.bytes * 0x165667b1u ^ (touch.write ? 0x5bd1e995u : 0);
    return steps_[hash >> 24];
  }
  template <class Covered>
  uint32_t make(uint32_t list, GlobalTouch touch, Covered covered) {
    const List old = lists_[list];
    for (uint32_t i = 0; i < old.count; ++i) {
      const GlobalTouch& held = touches_[old.first + i];
      if ((touch.bytes & ~held.bytes) == 0 && held.is_like(touch)) return list;
    }
    const auto first = static_cast<uint32_t>(touches_.size());
    for (uint32_t i = old.count < kLongest ? 0 : 1; i < old.count; ++i) {
      GlobalTouch other = touches_[old.first + i];
      if (other.is_like(touch)) {
        touch.bytes |= other.bytes;
        continue;
      }
      if (covered(other)) other.bytes &= static_cast<uint16_t>(~touch.bytes);
      if (other.bytes != 0) touches_.push_back(other);
    }
    touches_.push_back(touch);
    lists_.push_back({first, static_cast<uint32_t>(touches_.size()) - first});
    return static_cast<uint32_t>(lists_.size()) - 1;
  }
  std::vector<List> lists_{1};
  std::vector<GlobalTouch> touches_;
  std::vector<Step> steps_{kSteps};
  size_t collect_at_ = kCollectAt;
};

// Pages of 4096 bytes that somebody has touched.
struct GlobalPage {
  static constexpr uint32_t kBits = 12, kBytes = 1u << kBits, kGranules = kBytes / 16;
  uint64_t number = 0;
  std::array<uint32_t, kGranules> lists{};
  // The bytes that plain stores and copies have stored last, where there were any.
  std::unique_ptr<uint8_t[]> stored;
  uint8_t* stored_at(uint32_t granule) {
    if (stored == nullptr) stored = std::make_unique<uint8_t[]>(kBytes);
    return stored.get() + size_t{granule} * 16;
  }
};

class GlobalPages {
 public:
  GlobalPage& of(uint64_t address) {
    const uint64_t number = address >> GlobalPage::kBits;
    GlobalPage*& near = near_[number % near_.size()];
    if (near == nullptr || near->number != number) near = find(number);
    return *near;
  }
  void clear();
  bool empty() const { return used_ == 0; }
  template <class Visit>
  void each(Visit visit) {
    for (size_t i = 0; i < used_; ++i) visit(*pages_[i]);
  }

 private:
  GlobalPage* find(uint64_t number);
  std::vector<std::unique_ptr<GlobalPage>> pages_;  // the first used_ of them are, in the order of their first touch
  size_t used_ = 0;
  std::unordered_map<uint64_t, GlobalPage*> by_number_;
  std::array<GlobalPage*, 32> near_{};
};

// Over bytes that another warp of the cluster stored, with nothing between the two: a race unless both store one value.
struct UnorderedGlobalStore {
  GlobalPage* page;
  uint32_t granule;
  GlobalTouch now, other;  // with the bytes of both
  int lane;
  std::array<uint8_t, 16> before;  // what the other stored
};

// What an access has made of lists, by the first of the bytes that it touches in a granule.
struct GlobalSteps {
  GlobalTouch now;
  struct Step {
    uint32_t before = UINT32_MAX, after = UINT32_MAX, bytes = 0;
  };
  std::array<Step, 8> by_first{};
};

struct GlobalHistory {
  GlobalPages pages;
  TouchLists lists;
  std::array<GlobalSteps, 64> steps{};                 // of the last instructions
  std::vector<UnorderedGlobalStore> unordered_stores;  // of the instruction being executed
  std::vector<GridView> views{1};                      // by GlobalTouch::view; the first knows nothing
  void clear();
};

}  // namespace sim
