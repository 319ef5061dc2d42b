// SPDX-License-Identifier: Apache-2.0
// Races between the accesses of one cluster to global memory.
#include "sim/hazards/global_races.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "sim/machine/agents.h"
#include "sim/machine/fault.h"
#include "sim/machine/launch.h"

namespace sim {

namespace {

// Two accesses of one cluster race when they meet in a byte, one of them writes, not both are strong, and nothing
// orders them (PTX ISA 8.7.1).
bool conflict(const GlobalTouch& a, const GlobalTouch& b) {
  return (a.bytes & b.bytes) != 0 && (a.write || b.write) && (a.reach == Reach::Weak || b.reach == Reach::Weak);
}

bool comes_before(const Warp& warp, const GlobalTouch& touch) {
  return touch.stamp.by == warp.self || warp.has_seen(touch.stamp);
}

// Published code lets an atomic or volatile access meet a plain one, and all lanes of a warp issue the same copy, and
// relies on what is over on a GPU.
bool is_relied_on(const Warp& warp, const GlobalTouch& now, const GlobalTouch& other) {
  const bool copies = now.stamp.by != now.warp && other.stamp.by != other.warp;
  const bool one_copy = copies && now.warp == other.warp && now.pc == other.pc;
  return (now.reach == Reach::Weak) != (other.reach == Reach::Weak) || one_copy ||
         warp.view.weak[other.stamp.by] >= other.stamp.at;
}

std::string race_text(const Warp& warp, uint64_t address, const GlobalTouch& now, const GlobalTouch& other) {
  const Cluster& cluster = *warp.cta->cluster;
  const Kernel& kernel = *cluster.launch->kernel;
  const AgentInfo& by = cluster.agents[other.stamp.by];
  const std::string agent = describe_agent(cluster, other.stamp.by);
  const std::string place = describe_instruction(kernel, kernel.code[other.pc].source);
  std::string text = std::string(now.write ? "writes to" : "reads") + " global memory at " + hex(address) + ", which ";
  if (by.kind != AgentInfo::Kind::Warp) {
    return text + "a copy at " + place + (other.write ? " writes" : " reads") +
           ", and nothing orders the two: " + agent + " has not been waited for";
  }
  text += agent + (other.write ? " wrote at " : " read at ") + place + ", and nothing orders the two: ";
  if (warp.has_read && warp.read_view.seen[other.stamp.by] >= other.stamp.at)
    return text + "a fence is missing after the relaxed read that followed it";
  const bool strong = now.reach != Reach::Weak;
  if (strong != (other.reach != Reach::Weak)) text += "only one of them is atomic or volatile, and ";
  return text + "a barrier, or a release and an acquire, is missing between them";
}

// What an instruction does to granules. What becomes of one granule's list is kept for the others with the same one.
class Judge {
 public:
  Judge(Warp& warp, GlobalTouch now, bool is_store)
      : warp_(warp), history_(*warp.cta->cluster->global_history), now_(now), is_store_(is_store) {
    if (history_.lists.crowded()) [[unlikely]] {
      history_.lists.collect([&](auto visit) {
        history_.pages.each([&](GlobalPage& page) {
          for (uint32_t& list : page.lists) visit(list);
        });
      });
      history_.steps.fill({});
    }
    GlobalSteps& steps = history_.steps[(now.pc ^ now.warp * 29) % history_.steps.size()];
    if (!steps.now.is_like(now) || steps.now.warp != now.warp) {
      steps.now = now;
      steps.by_first.fill({});
    }
    steps_ = steps.by_first.data();
  }
  void touch(GlobalPage& page, uint32_t granule, uint32_t bytes, int lane) {
    uint32_t& list = page.lists[granule];
    const GlobalSteps::Step& step = steps_[static_cast<size_t>(std::countr_zero(bytes)) / 2];
    if (list == step.before && bytes == step.bytes) [[likely]]
      list = step.after;
    else if (list != step.after || bytes != step.bytes)
      judge(page, granule, bytes, lane);
  }
  // Bytes that lie in any granules.
  void touch_range(uint64_t address, uint64_t size, int lane) {
    const uint64_t end = address + size;
    while (address < end) {
      GlobalPage& page = history_.pages.of(address);
      const uint64_t page_end = std::min(end, ((address >> GlobalPage::kBits) + 1) << GlobalPage::kBits);
      if ((address & 15) == 0 && all_known(page, granule_of(address), (page_end - address) / 16))
        address += (page_end - address) / 16 * 16;
      for (; (address & 15) == 0 && page_end - address >= 16; address += 16)
        touch(page, granule_of(address), 0xffff, lane);
      while (address < page_end) {
        const uint64_t stop = std::min(page_end, (address | 15) + 1);
        touch(page, granule_of(address), ((1u << (stop - address)) - 1) << (address & 15), lane);
        address = stop;
      }
    }
  }
  // Bytes of all lanes, `size` each, one lane's behind another's.
  void touch_row(uint64_t address, uint32_t size) {
    row_ = address;
    row_size_ = size;
    touch_range(address, uint64_t{kLanes} * size, 0);
  }
  // Aligned bytes of one lane, at most 16.
  void touch_piece(uint64_t address, uint32_t bytes, int lane) {
    touch(history_.pages.of(address), granule_of(address), bytes << (address & 15), lane);
  }

 private:
  // Takes the step that is known for whole granules when it is that of all of them.
  bool all_known(GlobalPage& page, uint32_t granule, uint64_t count) {
    const GlobalSteps::Step step = steps_[0];
    if (step.bytes != 0xffff) return false;
    uint32_t* const lists = page.lists.data() + granule;
    uint32_t others = 0;
    for (uint64_t i = 0; i < count; ++i)
      others |= static_cast<uint32_t>(lists[i] != step.before) & static_cast<uint32_t>(lists[i] != step.after);
    if (others != 0) return false;
    std::fill_n(lists, count, step.after);
    return true;
  }
  static uint32_t granule_of(uint64_t address) { return static_cast<uint32_t>(address >> 4) % GlobalPage::kGranules; }
  [[gnu::noinline]] void judge(GlobalPage& page, uint32_t granule, uint32_t bytes, int lane) {
    const Cluster& cluster = *warp_.cta->cluster;
    GlobalTouch now = now_;
    now.bytes = static_cast<uint16_t>(bytes);
    uint32_t& list = page.lists[granule];
    bool known = true;  // what holds for this granule holds for others with the same list
    history_.lists.each(list, [&](const GlobalTouch& other) {
      if (!conflict(now, other) || comes_before(warp_, other)) return;
      const AgentInfo& by = cluster.agents[other.stamp.by];
      // What a warp of another block stored is judged with its scopes, where a plain read meets it.
      const bool plain = now.reach == Reach::Weak && other.reach == Reach::Weak && by.kind == AgentInfo::Kind::Warp;
      if (plain && !now.write && by.cta != warp_.cta && now.stamp.by == warp_.self) return;
      known = false;
      GlobalTouch both = now;
      both.bytes &= other.bytes;
      if (plain && is_store_ && other.write) {
        UnorderedGlobalStore store{&page, granule, both, other, lane, {}};
        std::memcpy(store.before.data(), page.stored_at(granule), store.before.size());
        history_.unordered_stores.push_back(store);
        return;
      }
      const uint64_t address =
          (page.number << GlobalPage::kBits) + granule * 16 + static_cast<unsigned>(std::countr_zero(both.bytes));
      if (row_size_ != 0) lane = static_cast<int>((address - row_) / row_size_);
      judge_race(warp_, lane, is_relied_on(warp_, now, other), [&] { return race_text(warp_, address, now, other); });
    });
    const uint32_t before = list;
    list = history_.lists.with(list, now, [&](const GlobalTouch& other) {
      if (other.view != now.view || (other.write && !now.write)) return false;
      if (now.reach != Reach::Weak && (other.reach == Reach::Weak || other.reach < now.reach)) return false;
      return comes_before(warp_, other);
    });
    if (known) steps_[static_cast<size_t>(std::countr_zero(bytes)) / 2] = {before, list, bytes};
  }

  Warp& warp_;
  GlobalHistory& history_;
  const GlobalTouch now_;
  const bool is_store_;
  GlobalSteps::Step* steps_;
  uint64_t row_ = 0;
  uint32_t row_size_ = 0;  // 0: it is no row
};

// The number of what the warp knows of other clusters.
uint32_t view_of(Warp& warp) {
  if (warp.view.grid.before.empty()) return 0;
  std::vector<GridView>& views = warp.cta->cluster->global_history->views;
  const void* const known = warp.view.grid.before.identity();
  if (warp.grid_view == 0 || views[warp.grid_view].identity() != known) {
    warp.grid_view = static_cast<uint32_t>(views.size());
    views.push_back(warp.view.grid.before);
  }
  return warp.grid_view;
}

// A relaxed operation behind a fence is known to whoever has acquired what the fence covers: it is what tells of it.
Stamp stamp_of(const Warp& warp, Reach reach) {
  Stamp stamp = warp.stamp();
  if (reach == Reach::Weak) return stamp;
  const uint32_t fenced = warp.grid_fence_epoch > 0 ? warp.grid_fence_epoch : warp.fence_view.seen[warp.self];
  if (fenced > 0) stamp.at = fenced;
  return stamp;
}

}  // namespace

void judge_global_access(Warp& warp, const uint64_t* address, uint32_t mask, uint32_t size, Access access, Reach reach,
                         bool row) {
  const bool write = access != Access::Read;
  const bool is_store = write && reach == Reach::Weak;
  if (is_store) warp.cta->cluster->global_stores |= mask;
  Judge judge(warp, {stamp_of(warp, reach), view_of(warp), static_cast<uint32_t>(warp.pc()), warp.self, write, reach},
              is_store);
  if (size > 16) {
    each_lane(mask, [&](int lane) { judge.touch_range(address[lane], size, lane); });
  } else if (row && address[0] % 16 == 0) {
    judge.touch_row(address[0], size);
  } else {
    const uint32_t bytes = (1u << size) - 1;
    each_lane(mask, [&](int lane) { judge.touch_piece(address[lane], bytes, lane); });
  }
}

void judge_global_copy(Warp& warp, uint64_t address, uint64_t bytes, bool write, Reach reach, Stamp completion) {
  if (warp.cta->cluster->global_history == nullptr) return;
  Judge(warp, {completion, view_of(warp), static_cast<uint32_t>(warp.pc()), warp.self, write, reach}, false)
      .touch_range(address, bytes, -1);
}

void note_stored(Cluster& cluster, uint64_t address, const uint8_t* values, uint64_t bytes) {
  if (cluster.global_history == nullptr) return;
  GlobalPages& pages = cluster.global_history->pages;
  for (const uint64_t end = address + bytes; address < end;) {
    const uint64_t stop = std::min(end, (address / GlobalPage::kBytes + 1) * GlobalPage::kBytes);
    std::memcpy(pages.of(address).stored_at(0) + address % GlobalPage::kBytes, values, stop - address);
    values += stop - address;
    address = stop;
  }
}

void finish_global_stores(Warp& warp, const uint8_t* const* at, const uint8_t* row, const uint8_t* values,
                          uint32_t size) {
  Cluster& cluster = *warp.cta->cluster;
  GlobalHistory& history = *cluster.global_history;
  const uint32_t mask = std::exchange(cluster.global_stores, 0);
  const auto address = [&](int lane) { return reinterpret_cast<uint64_t>(at[lane]); };
  if (row != nullptr) {
    note_stored(cluster, reinterpret_cast<uint64_t>(row), values, uint64_t{kLanes} * size);
  } else if (size > 16) {
    each_lane(mask, [&](int lane) {
      note_stored(cluster, address(lane), values + static_cast<uint32_t>(lane) * size, size);
    });
  } else {
    const auto note = [&](auto piece) {
      each_lane(mask, [&](int lane) {
        constexpr size_t kSize = sizeof piece;
        uint8_t* const to = history.pages.of(address(lane)).stored_at(0);
        std::memcpy(to + address(lane) % GlobalPage::kBytes, values + static_cast<size_t>(lane) * kSize, kSize);
      });
    };
    if (size == 1)
      note(uint8_t{});
    else if (size == 2)
      note(uint16_t{});
    else if (size == 4)
      note(uint32_t{});
    else if (size == 8)
      note(uint64_t{});
    else
      note(std::array<uint8_t, 16>{});
  }
  if (history.unordered_stores.empty()) return;
  const std::vector<UnorderedGlobalStore> suspects = std::move(history.unordered_stores);
  history.unordered_stores.clear();
  for (const UnorderedGlobalStore& store : suspects) {
    const uint8_t* const now = store.page->stored_at(store.granule);
    for (uint32_t rest = store.now.bytes; rest != 0; rest &= rest - 1) {
      const auto byte = static_cast<uint32_t>(std::countr_zero(rest));
      if (now[byte] == store.before[byte]) continue;
      const uint64_t place = (store.page->number << GlobalPage::kBits) + store.granule * 16 + byte;
      const int lane = row == nullptr ? store.lane : static_cast<int>((place - reinterpret_cast<uint64_t>(row)) / size);
      judge_race(warp, lane, is_relied_on(warp, store.now, store.other),
                 [&] { return race_text(warp, place, store.now, store.other); });
      break;
    }
  }
}

}  // namespace sim
