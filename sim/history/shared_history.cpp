// SPDX-License-Identifier: Apache-2.0
#include "sim/history/shared_history.h"

#include <algorithm>

namespace sim {

void SharedHistory::create(uint32_t bytes, bool in_cluster, bool shared_by_warps) {
  granules.assign((bytes + 15) / 16, Granule{});
  histories.assign(1, History{});
  written_ = {};
  lanes.create(bytes);
  writers.create(in_cluster ? bytes : 0);
  races.create(bytes, shared_by_warps);
  written_from_outside = false;
  undefined.clear();
}

uint32_t SharedHistory::add(const History& history) {
  histories.push_back(history);
  histories.back().next_stamp = {};
  return static_cast<uint32_t>(histories.size()) - 1;
}

uint32_t SharedHistory::with_reader(uint32_t index, Stamp stamp, bool async) {
  History& old = histories[index];
  if (old.next_stamp.by == stamp.by && old.next_stamp.at == stamp.at && stamp.at != 0) return old.next;
  for (int i = 0; i < old.readers; ++i) {
    if (old.reader[i].stamp.by == stamp.by && old.reader[i].stamp.at >= stamp.at) return index;
  }
  History fresh = old;
  int place = -1;
  for (int i = 0; i < fresh.readers; ++i) {
    if (fresh.reader[i].stamp.by == stamp.by) place = i;
  }
  if (place < 0 && fresh.readers < History::kReaders) place = fresh.readers++;
  // More readers than fit: forget a generic one, which can only be overtaken by a copy.
  for (int i = 0; place < 0 && i < fresh.readers; ++i) {
    if (!fresh.reader[i].async) place = i;
  }
  if (place < 0) place = 0;
  fresh.reader[place] = {stamp, async};
  const uint32_t result = add(fresh);
  for (const uint32_t from : {index, result}) {
    histories[from].next_stamp = stamp;
    histories[from].next = result;
  }
  return result;
}

uint32_t SharedHistory::written_by(Stamp stamp) {
  Written& last = written_[stamp.by % written_.size()];
  if (last.stamp.by == stamp.by && last.stamp.at == stamp.at) return last.history;
  History fresh;
  fresh.kind = Write::Generic;
  fresh.write = stamp;
  last = {stamp, add(fresh)};
  return last.history;
}

void SharedHistory::drop_unused() {
  std::vector<uint32_t> renamed(histories.size(), UINT32_MAX);
  std::vector<History> kept(1, histories[0]);
  renamed[0] = 0;
  kept[0].next_stamp = {};
  for (Granule& granule : granules) {
    uint32_t& name = renamed[granule.history];
    if (name == UINT32_MAX) {
      name = static_cast<uint32_t>(kept.size());
      kept.push_back(histories[granule.history]);
      kept.back().next_stamp = {};
    }
    granule.history = name;
  }
  collect_at_ = std::max<size_t>(8192, 2 * kept.size());
  histories = std::move(kept);
  written_ = {};
}

}  // namespace sim
