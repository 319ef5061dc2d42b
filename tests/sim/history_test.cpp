// SPDX-License-Identifier: Apache-2.0
// The histories of memory by themselves: what nobody needs is dropped when there is much, and again when there is twice
// as much as was kept, so that its cost is spread over what is added.
#include <gtest/gtest.h>

#include "sim/history/global_touches.h"
#include "sim/history/shared_history.h"

namespace {

TEST(TouchLists, AreCrowdedAgainWhenTheyHaveDoubled) {
  sim::TouchLists lists;
  lists.clear();
  std::vector<uint32_t> kept;
  uint32_t made = 0;
  const auto fill = [&] {
    while (!lists.crowded()) {
      sim::GlobalTouch touch{};
      touch.stamp = {1, ++made};
      touch.bytes = 1;
      kept.push_back(lists.with(0, touch, [](const sim::GlobalTouch&) { return false; }));
    }
    return made;
  };
  const auto collect = [&] {
    lists.collect([&](auto visit) {
      for (uint32_t& list : kept) visit(list);
    });
  };
  EXPECT_EQ(fill(), 65536u);
  collect();
  EXPECT_EQ(lists.size(), 65537u) << "with the empty one";
  EXPECT_EQ(fill(), 2 * 65536u);
  kept.resize(3);
  collect();
  EXPECT_EQ(lists.size(), 4u);
  for (size_t i = 0; i < kept.size(); ++i)
    lists.each(kept[i], [&](const sim::GlobalTouch& touch) { EXPECT_EQ(touch.stamp.at, i + 1); });
  EXPECT_EQ(fill(), 3 * 65536u - 3);
}

// Adds histories that no granule has until they are dropped, and says how many there were.
size_t histories_until_collected(sim::SharedHistory& history) {
  for (;;) {
    history.add({});
    const size_t before = history.histories.size();
    history.collect();
    if (history.histories.size() < before) return before;
  }
}

TEST(SharedHistory, IsCollectedAgainWhenItHasDoubled) {
  sim::SharedHistory history;
  history.create(6000 * 16, false, false);
  for (sim::SharedHistory::Granule& granule : history.granules) granule.history = history.add({});
  EXPECT_EQ(histories_until_collected(history), 8192u);
  EXPECT_EQ(history.histories.size(), 6001u) << "with that of nothing";
  EXPECT_EQ(histories_until_collected(history), 12002u);
  for (sim::SharedHistory::Granule& granule : history.granules) granule.history = 0;
  EXPECT_EQ(histories_until_collected(history), 12002u);
  EXPECT_EQ(histories_until_collected(history), 8192u);
}

// The number of the list that an access makes, where nothing has been there. Numbers begin anew behind what was kept.
class RacesOfManyEpochs {
 public:
  explicit RacesOfManyEpochs(uint32_t granules) { races_.create(granules * 16, true); }
  uint32_t* lists() { return races_.list_of_granules(); }
  uint32_t add() {
    races_.collect();
    const sim::Touch touch{{1, ++epoch_}, 1, true, false};
    return races_.with(0, touch, [](const sim::Touch&) { return false; });
  }
  uint32_t last_before_collected() {
    uint32_t last = add();
    for (uint32_t next = add(); next > last; next = add()) last = next;
    return last;
  }

 private:
  sim::Races races_;
  uint32_t epoch_ = 0;
};

TEST(Races, AreCollectedAgainWhenTheyHaveDoubled) {
  constexpr uint32_t kGranules = 10000;
  RacesOfManyEpochs races(kGranules);
  for (uint32_t granule = 0; granule < kGranules; ++granule) races.lists()[granule] = races.add();
  EXPECT_EQ(races.last_before_collected(), 16384u);
  EXPECT_EQ(races.last_before_collected(), 2 * kGranules);
  for (uint32_t granule = 0; granule < kGranules; ++granule) races.lists()[granule] = 0;
  EXPECT_EQ(races.last_before_collected(), 2 * kGranules);
  EXPECT_EQ(races.last_before_collected(), 16384u);
}

}  // namespace
