// SPDX-License-Identifier: Apache-2.0
// The last plain store to each word. It is kept in clusters of several blocks, since a plain read in another block must
// be ordered after it. Words written in parts, by strong or by asynchronous operations have no writer.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "sim/history/clock.h"

namespace sim {

// The writers of one range of addresses that begins at 0.
class Writers {
 public:
  void create(uint32_t bytes) { words_.assign((bytes + 3) / 4, Stamp{}); }
  bool kept() const { return !words_.empty(); }
  Stamp operator[](uint32_t word) const { return words_[word]; }
  void set(uint32_t offset, uint32_t size, Stamp stamp) {
    if (offset % 4 != 0 || size % 4 != 0) stamp = {};
    for (uint32_t word = offset / 4; word < (offset + size + 3) / 4; ++word) words_[word] = stamp;
  }

 private:
  std::vector<Stamp> words_;
};

// The writers of global memory, a page at a time.
class GlobalWriters {
 public:
  void clear() {
    pages_.clear();
    last_ = nullptr;
  }
  bool empty() const { return pages_.empty(); }
  Stamp at(uint64_t word) {
    const Writers* const page = find(word / kWords, false);
    return page ? (*page)[static_cast<uint32_t>(word % kWords)] : Stamp{};
  }
  // The bytes lie in one page: accesses are aligned to their size.
  void set(uint64_t address, uint32_t size, Stamp stamp) {
    if (Writers* const page = find(address / (4 * kWords), stamp.at != 0))
      page->set(static_cast<uint32_t>(address % (4 * kWords)), size, stamp);
  }

 private:
  static constexpr uint64_t kWords = 1024;
  Writers* find(uint64_t page, bool make) {
    if (last_ != nullptr && last_page_ == page) return last_;
    auto found = pages_.find(page);
    if (found == pages_.end()) {
      if (!make) return nullptr;
      found = pages_.emplace(page, Writers{}).first;
      found->second.create(4 * kWords);
    }
    last_page_ = page;
    last_ = &found->second;
    return last_;
  }
  std::unordered_map<uint64_t, Writers> pages_;
  uint64_t last_page_ = 0;
  Writers* last_ = nullptr;
};

}  // namespace sim
