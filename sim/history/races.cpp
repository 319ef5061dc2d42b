// SPDX-License-Identifier: Apache-2.0
#include "sim/history/races.h"

namespace sim {

void Races::create(uint32_t bytes, bool shared_by_warps) {
  lists_.clear();
  touches_.clear();
  collect_at_ = kCollectAt;
  if (!shared_by_warps) return;
  const size_t granules = (bytes + 15) / 16;
  list_of_.assign(granules, 0);
  for (auto& last : last_) last.resize(2 * granules);  // read only where a list names an access
  lists_.assign(1, {});
  steps_.assign(kSteps, {});
}

void Races::drop_unused() {
  std::vector<uint32_t> renamed(lists_.size(), 0);
  std::vector<List> kept(1);
  std::vector<Touch> touches;
  for (uint32_t& list : list_of_) {
    if (list == 0) continue;
    uint32_t& name = renamed[list];
    if (name == 0) {
      name = static_cast<uint32_t>(kept.size());
      const List& old = lists_[list];
      kept.push_back({static_cast<uint32_t>(touches.size()), old.count, 0, {}});
      touches.insert(touches.end(), touches_.begin() + old.first, touches_.begin() + old.first + old.count);
    }
    list = name;
  }
  lists_ = std::move(kept);
  touches_ = std::move(touches);
  steps_.assign(kSteps, {});
  collect_at_ = std::max(kCollectAt, 2 * touches_.size());
}

}  // namespace sim
