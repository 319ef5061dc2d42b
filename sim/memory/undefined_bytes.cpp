// SPDX-License-Identifier: Apache-2.0
#include "sim/memory/undefined_bytes.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace sim {

template <class Visit>
void UndefinedBytes::each_page(uint64_t address, uint64_t bytes, Visit visit) {
  for (uint64_t at = address; at < address + bytes;) {
    const uint64_t stop = std::min(address + bytes, (at / kPage + 1) * kPage);
    visit(at / kPage, at % kPage, stop - at, at - address);
    at = stop;
  }
}

void UndefinedBytes::set(uint64_t address, const uint8_t* bits, uint64_t bytes, const std::string& by) {
  each_page(address, bytes, [&](uint64_t number, uint64_t first, uint64_t count, uint64_t done) {
    const bool stores = bits != nullptr && std::any_of(bits + done, bits + done + count, [](uint8_t b) { return b; });
    auto found = pages_.find(number);
    if (found == pages_.end()) {
      if (!stores) return;
      found = pages_.emplace(number, std::make_unique<Page>()).first;
    }
    Page& page = *found->second;
    for (uint64_t i = 0; i < count; ++i) {
      uint8_t& have = page.bits[first + i];
      const uint8_t now = stores ? bits[done + i] : 0;
      page.undefined += static_cast<uint32_t>(now != 0) - static_cast<uint32_t>(have != 0);
      have = now;
    }
    if (stores && (page.by.empty() || by < page.by)) page.by = by;
    if (page.undefined == 0) pages_.erase(found);
  });
  any_.store(!pages_.empty(), std::memory_order_relaxed);
}

void UndefinedBytes::store(uint64_t address, const uint8_t* bits, uint64_t bytes, const std::string& by) {
  const std::lock_guard<std::mutex> lock(mutex_);
  set(address, bits, bytes, by);
}

void UndefinedBytes::define(uint64_t address, uint64_t bytes) {
  if (!any()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  set(address, nullptr, bytes, {});
}

void UndefinedBytes::load(uint64_t address, uint8_t* bits, uint64_t bytes) const {
  std::memset(bits, 0, bytes);
  if (!any()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  each_page(address, bytes, [&](uint64_t number, uint64_t first, uint64_t count, uint64_t done) {
    const auto found = pages_.find(number);
    if (found != pages_.end()) std::memcpy(bits + done, found->second->bits.data() + first, count);
  });
}

UndefinedBytes::Found UndefinedBytes::find(uint64_t address, uint64_t bytes) const {
  Found result;
  if (!any()) return result;
  const std::lock_guard<std::mutex> lock(mutex_);
  each_page(address, bytes, [&](uint64_t number, uint64_t first, uint64_t count, uint64_t) {
    const auto found = pages_.find(number);
    if (result.address != 0 || found == pages_.end()) return;
    const auto begin = found->second->bits.begin() + static_cast<ptrdiff_t>(first);
    const auto at = std::find_if(begin, begin + static_cast<ptrdiff_t>(count), [](uint8_t b) { return b != 0; });
    if (at == begin + static_cast<ptrdiff_t>(count)) return;
    result = {number * kPage + static_cast<uint64_t>(at - found->second->bits.begin()), found->second->by};
  });
  return result;
}

void UndefinedBytes::copy(uint64_t to, uint64_t from, uint64_t bytes) {
  if (!any()) return;
  std::vector<uint8_t> bits(bytes);
  load(from, bits.data(), bytes);
  const std::string by = find(from, bytes).by;
  store(to, bits.data(), bytes, by);
}

}  // namespace sim
