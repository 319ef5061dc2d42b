// SPDX-License-Identifier: Apache-2.0
#include "sim/history/system_history.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace sim {
namespace {

constexpr size_t kMemos = 4096;
// Beyond so many accesses and histories everything is forgotten. Nothing is reported then that should not be.
constexpr size_t kMost = 8 << 20;

size_t shadow_bytes(const SystemHistory::Region& region) { return (region.end - region.begin + 3) / 4 * 4; }

}  // namespace

void Knowledge::join(const Knowledge& other) {
  if (&other == this) return;
  works.join(other.works);
  std::vector<std::shared_ptr<const Part>> joined;
  joined.reserve(std::max(parts.size(), other.parts.size()));
  auto a = parts.begin();
  auto b = other.parts.begin();
  const auto keep = [&](const std::shared_ptr<const Part>& part) {
    if (!has_ended(part->work)) joined.push_back(part);
  };
  while (a != parts.end() || b != other.parts.end()) {
    if (b == other.parts.end() || (a != parts.end() && (*a)->cluster < (*b)->cluster)) {
      keep(*a++);
    } else if (a == parts.end() || (*b)->cluster < (*a)->cluster) {
      keep(*b++);
    } else {
      if (*a == *b || (*a)->clock.covers((*b)->clock)) {
        keep(*a);
      } else if ((*b)->clock.covers((*a)->clock)) {
        keep(*b);
      } else {
        auto both = std::make_shared<Part>(**a);
        both->clock.join((*b)->clock);
        keep(both);
      }
      ++a;
      ++b;
    }
  }
  parts = std::move(joined);
}

void Knowledge::add(uint64_t cluster, Stamp work, const Clock& clock) {
  Knowledge one;
  one.parts.push_back(std::make_shared<Part>(Part{cluster, work, clock}));
  join(one);
}

const Knowledge::Part* Knowledge::part_of(uint64_t cluster) const {
  const auto found = std::lower_bound(parts.begin(), parts.end(), cluster,
                                      [](const auto& part, uint64_t number) { return part->cluster < number; });
  return found != parts.end() && (*found)->cluster == cluster ? found->get() : nullptr;
}

bool Knowledge::covers(const SystemAccess& access) const {
  if (has_ended(access.work)) return true;
  const Part* const part = access.cluster != 0 ? part_of(access.cluster) : nullptr;
  return part != nullptr && part->clock[access.stamp.by] >= access.stamp.at;
}

SystemHistory::SystemHistory() : names_(1), accesses_(1), histories_(1), memos_(kMemos) {}

SystemHistory::~SystemHistory() {
  while (!regions_.empty()) forget(regions_.begin()->first);
}

SystemHistory::Region& SystemHistory::region(uint64_t begin, uint64_t end, int device) {
  Region& region = regions_[begin];
  if (region.words != nullptr) return region;
  region = {begin, end, device, nullptr};
  void* const words =
      mmap(nullptr, shadow_bytes(region), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (words == MAP_FAILED) throw std::bad_alloc();
  region.words = static_cast<uint32_t*>(words);
  return region;
}

void SystemHistory::forget(uint64_t begin) {
  const auto found = regions_.find(begin);
  if (found == regions_.end()) return;
  munmap(found->second.words, shadow_bytes(found->second));
  regions_.erase(found);
}

void SystemHistory::forget_all() {
  if (accesses_.size() == 1 && flags.empty()) return;
  for (const auto& [begin, region] : regions_) madvise(region.words, shadow_bytes(region), MADV_DONTNEED);
  accesses_.resize(1);
  histories_.resize(1);
  std::fill(memos_.begin(), memos_.end(), Memo{});
  flags.clear();
}

uint32_t SystemHistory::name_of(const std::string& text) {
  const auto [found, is_new] = numbers_.emplace(text, static_cast<uint32_t>(names_.size()));
  if (is_new) names_.push_back(text);
  return found->second;
}

uint32_t SystemHistory::add(const SystemAccess& access) {
  accesses_.push_back(access);
  return static_cast<uint32_t>(accesses_.size()) - 1;
}

uint32_t SystemHistory::next(uint32_t from, uint32_t id, bool write) {
  Memo& memo = memos_[(from * 31 + id * 7 + (write ? 1 : 0)) % kMemos];
  if (memo.to != 0 && memo.from == from && memo.id == id && memo.write == write) return memo.to;
  History history = histories_[from];
  if (write) {
    if (history.write == id && history.readers == 0) return from;
    history = {id, 0, {}};
  } else {
    const SystemAccess& access = accesses_[id];
    int place = -1;
    for (int i = 0; i < history.readers; ++i) {
      const uint32_t other = history.reader[static_cast<size_t>(i)];
      if (other == id) return from;
      // A later read by the same agent stands for the earlier one.
      if (accesses_[other].cluster == access.cluster && accesses_[other].stamp.by == access.stamp.by &&
          accesses_[other].work.by == access.work.by && accesses_[other].work.at == access.work.at)
        place = i;
    }
    constexpr int kMostReaders = static_cast<int>(std::tuple_size_v<decltype(history.reader)>);
    if (place < 0 && history.readers < kMostReaders) place = history.readers++;
    if (place < 0) place = static_cast<int>(id % kMostReaders);
    history.reader[static_cast<size_t>(place)] = id;
  }
  histories_.push_back(history);
  memo = {from, id, static_cast<uint32_t>(histories_.size()) - 1, write};
  return memo.to;
}

}  // namespace sim
