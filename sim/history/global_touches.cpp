// SPDX-License-Identifier: Apache-2.0
#include "sim/history/global_touches.h"

namespace sim {

namespace {

constexpr size_t kKeptPages = 4096;  // for the next cluster

}  // namespace

GlobalPage* GlobalPages::find(uint64_t number) {
  GlobalPage*& page = by_number_[number];
  if (page == nullptr) {
    if (used_ == pages_.size()) pages_.push_back(std::make_unique<GlobalPage>());
    page = pages_[used_++].get();
    page->number = number;
  }
  return page;
}

void GlobalPages::clear() {
  if (used_ > kKeptPages) pages_.resize(kKeptPages);
  for (size_t i = 0; i < std::min(used_, pages_.size()); ++i) {
    pages_[i]->lists.fill(0);
    pages_[i]->stored.reset();
  }
  used_ = 0;
  by_number_.clear();
  near_.fill(nullptr);
}

void GlobalHistory::clear() {
  pages.clear();
  lists.clear();
  steps.fill({});
  unordered_stores.clear();
  views.resize(1);
}

}  // namespace sim
