// SPDX-License-Identifier: Apache-2.0
// Device allocations. Each is a mapping of its own between two pages that nobody may touch; what was freed is
// remembered, so that a late access is called by its name.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdio>
#include <iterator>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "sim/memory/address_space.h"
#include "sim/memory/global.h"

namespace sim {
namespace {

constexpr uint64_t kPage = 4096;

std::string bytes_text(uint64_t n) { return std::to_string(n) + (n == 1 ? " byte" : " bytes"); }

uint64_t host_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  return pages > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE)) : 4ull << 30;
}

// Identity of a GlobalMemory that is never given twice, and the number of its last free: what a cached range depends
// on.
std::atomic<uint64_t> next_version{1};

}  // namespace

std::string hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

struct GlobalMemory::Impl {
  mutable std::shared_mutex mutex;
  std::vector<Range> live;  // sorted by begin
  std::vector<uint64_t> adopted;
  std::map<uint64_t, Range> shared;  // mappings that many allocations share, by their beginning
  std::vector<Range> freed;          // oldest first, at most kRemembered
  static constexpr size_t kRemembered = 4096;
  uint64_t used = 0;
  uint64_t limit = host_memory() / 4 * 3;
  std::atomic<uint64_t> version{next_version.fetch_add(1)};
  std::array<std::atomic<uint64_t>, 64> peers_of{};  // by device: those that have enabled access to its memory

  static uint64_t mapped(const Range& r) { return (r.end - r.begin + kPage - 1) / kPage * kPage; }
  static void unmap(const Range& r) { munmap(reinterpret_cast<void*>(r.begin - kPage), mapped(r) + 2 * kPage); }
  // Memory between two pages that nobody may touch; 0 when there is none.
  uint64_t map(uint64_t bytes) {
    if (bytes == 0 || bytes > limit || used > limit - bytes) return 0;
    const uint64_t inside = mapped({0, bytes});
    void* const base = mmap(nullptr, inside + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return 0;
    auto* const begin = static_cast<uint8_t*>(base) + kPage;
    if (mprotect(begin, inside, PROT_READ | PROT_WRITE) != 0) {
      munmap(base, inside + 2 * kPage);
      return 0;
    }
    const uint64_t at = reinterpret_cast<uint64_t>(begin);
    std::erase_if(freed, [&](const Range& r) { return r.begin < at + inside && at < r.end; });
    return at;
  }
  // The shared mapping that holds the address, if one does.
  std::map<uint64_t, Range>::iterator shared_at(uint64_t address) {
    const auto it = shared.upper_bound(address);
    return it == shared.begin() || address >= std::prev(it)->second.end ? shared.end() : std::prev(it);
  }
  void remember(const Range& range) {
    if (freed.size() == kRemembered) freed.erase(freed.begin());
    freed.push_back(range);
  }
  // The first allocation that does not begin before address, and the first that begins after it.
  std::vector<Range>::iterator from(uint64_t address) {
    return std::lower_bound(live.begin(), live.end(), address, [](const Range& r, uint64_t a) { return r.begin < a; });
  }
  std::vector<Range>::const_iterator after(uint64_t address) const {
    return std::upper_bound(live.begin(), live.end(), address, [](uint64_t a, const Range& r) { return a < r.begin; });
  }
  // Where the allocation and those that begin at its end stop, as far as `end` asks.
  uint64_t reach(std::vector<Range>::const_iterator it, uint64_t end) const {
    uint64_t at = it->end;
    while (at < end && ++it != live.end() && it->begin == at) at = it->end;
    return at;
  }
};

GlobalMemory::GlobalMemory() : impl_(std::make_unique<Impl>()) {}

GlobalMemory::~GlobalMemory() {
  for (const Range& r : impl_->live) {
    if (impl_->shared_at(r.begin) == impl_->shared.end() &&
        std::count(impl_->adopted.begin(), impl_->adopted.end(), r.begin) == 0)
      Impl::unmap(r);
  }
  for (const auto& [begin, mapping] : impl_->shared) Impl::unmap(mapping);
}

void GlobalMemory::adopt(uint64_t address, uint64_t bytes) {
  const std::unique_lock lock(impl_->mutex);
  impl_->live.insert(impl_->after(address), Range{address, address + bytes});
  impl_->adopted.push_back(address);
}

uint64_t GlobalMemory::allocate(uint64_t bytes, const Residence& residence) {
  const std::unique_lock lock(impl_->mutex);
  const uint64_t address = impl_->map(bytes);
  if (address == 0) return 0;
  impl_->live.insert(impl_->after(address), Range{address, address + bytes, residence});
  impl_->used += bytes;
  return address;
}

bool GlobalMemory::allocate_together(std::vector<Part>& parts, const Residence& residence) {
  constexpr uint64_t kGap = 256;  // so that the end of one is not the beginning of the next
  const auto up = [](uint64_t value, uint64_t alignment) { return (value + alignment - 1) / alignment * alignment; };
  if (parts.empty()) return true;
  const std::unique_lock lock(impl_->mutex);
  uint64_t bytes = 0, alignment = kGap;
  for (Part& part : parts) {
    if (part.bytes > impl_->limit) return false;
    part.address = up(bytes, std::max(kGap, part.alignment));
    bytes = part.address + part.bytes + kGap;
    alignment = std::max(alignment, part.alignment);
    if (bytes > impl_->limit) return false;
  }
  const uint64_t begin = impl_->map(bytes + alignment);
  if (begin == 0) return false;
  impl_->shared[begin] = {begin, begin + bytes + alignment};
  std::vector<Range> ranges;
  for (Part& part : parts) {
    part.address += up(begin, alignment);
    ranges.push_back({part.address, part.address + part.bytes, residence});
    impl_->used += part.bytes;
  }
  impl_->live.insert(impl_->after(begin), ranges.begin(), ranges.end());
  return true;
}

void GlobalMemory::map(uint64_t address, uint64_t bytes, const Residence& residence) {
  const std::unique_lock lock(impl_->mutex);
  std::erase_if(impl_->freed, [&](const Range& r) { return r.begin < address + bytes && address < r.end; });
  impl_->live.insert(impl_->after(address), Range{address, address + bytes, residence});
  impl_->version = next_version.fetch_add(1);
}

void GlobalMemory::unmap(uint64_t address) {
  const std::unique_lock lock(impl_->mutex);
  const auto it = impl_->from(address);
  if (it == impl_->live.end() || it->begin != address) return;
  undefined.define(it->begin, it->end - it->begin);
  impl_->remember(*it);
  impl_->live.erase(it);
  impl_->version = next_version.fetch_add(1);
}

bool GlobalMemory::free(uint64_t address) {
  const std::unique_lock lock(impl_->mutex);
  const auto it = impl_->from(address);
  if (it == impl_->live.end() || it->begin != address || impl_->shared_at(address) != impl_->shared.end()) return false;
  const Range range = *it;
  impl_->live.erase(it);
  impl_->used -= range.end - range.begin;
  undefined.define(range.begin, range.end - range.begin);
  Impl::unmap(range);
  impl_->remember(range);
  impl_->version = next_version.fetch_add(1);
  return true;
}

void GlobalMemory::free_together(uint64_t address) {
  const std::unique_lock lock(impl_->mutex);
  const auto mapping = impl_->shared_at(address);
  if (mapping == impl_->shared.end()) return;
  const auto first = impl_->from(mapping->second.begin), last = impl_->from(mapping->second.end);
  for (auto it = first; it != last; ++it) impl_->used -= it->end - it->begin;
  undefined.define(mapping->second.begin, mapping->second.end - mapping->second.begin);
  for (auto it = last - std::min<std::ptrdiff_t>(last - first, Impl::kRemembered); it != last; ++it)
    impl_->remember(*it);
  impl_->live.erase(first, last);
  Impl::unmap(mapping->second);
  impl_->shared.erase(mapping);
  impl_->version = next_version.fetch_add(1);
}

GlobalMemory::Range GlobalMemory::find(uint64_t address) const {
  const std::shared_lock lock(impl_->mutex);
  const auto it = impl_->after(address);
  if (it == impl_->live.begin()) return {};
  const Range& r = *(it - 1);
  return address < r.end ? r : Range{};
}

bool GlobalMemory::contains(uint64_t address, uint64_t bytes) const {
  const std::shared_lock lock(impl_->mutex);
  const auto it = impl_->after(address);
  return it != impl_->live.begin() && address < (it - 1)->end &&
         impl_->reach(it - 1, address + bytes) >= address + bytes;
}

void GlobalMemory::set_peers(uint64_t address, uint64_t peers) {
  const std::unique_lock lock(impl_->mutex);
  const auto it = impl_->from(address);
  if (it == impl_->live.end() || it->begin != address) return;
  it->residence.peers = peers;
  impl_->version = next_version.fetch_add(1);
}

void GlobalMemory::enable_peer(int device, int owner, bool enabled) {
  const uint64_t bit = uint64_t{1} << device;
  if (enabled)
    impl_->peers_of[static_cast<size_t>(owner)] |= bit;
  else
    impl_->peers_of[static_cast<size_t>(owner)] &= ~bit;
  impl_->version = next_version.fetch_add(1);
}

bool GlobalMemory::accessible(const Range& range, int device) const {
  const Residence& of = range.residence;
  if (of.device == Residence::kEverywhere || device == Residence::kEverywhere) return true;
  if (of.device == device && !of.by_mask_alone) return true;
  const uint64_t peers = of.peers | (of.by_context ? impl_->peers_of[static_cast<size_t>(of.device)].load() : 0);
  return (peers >> device & 1) != 0;
}

bool GlobalMemory::is_shared(const Range& range) const {
  const Residence& of = range.residence;
  if (of.device == Residence::kEverywhere) return false;
  const uint64_t peers = of.peers | (of.by_context ? impl_->peers_of[static_cast<size_t>(of.device)].load() : 0);
  return (peers & ~(uint64_t{1} << of.device)) != 0;
}

std::string GlobalMemory::explain(uint64_t address, uint64_t bytes) const {
  const std::shared_lock lock(impl_->mutex);
  const auto name = [](const Range& r) {
    return "the allocation of " + bytes_text(r.end - r.begin) + " at " + hex(r.begin);
  };
  const auto next = impl_->after(address);
  if (next != impl_->live.begin()) {
    const Range& r = *(next - 1);
    if (address < r.end) {
      if (impl_->reach(next - 1, address + bytes) >= address + bytes) return "is inside " + name(r);
      return "begins " + bytes_text(r.end - address) + " before the end of " + name(r) + " and passes it";
    }
  }
  for (auto it = impl_->freed.rbegin(); it != impl_->freed.rend(); ++it) {
    if (address >= it->begin && address < it->end) return "was freed: it belonged to " + name(*it);
  }
  const uint64_t behind = next == impl_->live.begin() ? UINT64_MAX : address - (next - 1)->end;
  const uint64_t before = next == impl_->live.end() ? UINT64_MAX : next->begin - address;
  if (behind <= before && behind < (16u << 20)) {
    return behind == 0 ? "is just past the end of " + name(*(next - 1))
                       : "is " + bytes_text(behind) + " past the end of " + name(*(next - 1));
  }
  if (before < (16u << 20)) return "is " + bytes_text(before) + " before " + name(*next);
  return "belongs to no allocation";
}

uint64_t GlobalMemory::used() const {
  const std::shared_lock lock(impl_->mutex);
  return impl_->used;
}
uint64_t GlobalMemory::limit() const { return impl_->limit; }
uint64_t GlobalMemory::version() const { return impl_->version.load(std::memory_order_acquire); }

namespace {

struct RangeCache {
  uint64_t version = 0;
  int device = Residence::kEverywhere;
  GlobalMemory::Range ranges[4];
  unsigned next = 0;
};
thread_local RangeCache cache;

}  // namespace

void enter_device(int device) {
  if (cache.device == device) return;
  cache.device = device;
  cache.version = 0;
}

bool global_range_cached(const GlobalMemory& memory, uint64_t begin, uint64_t end) {
  const uint64_t version = memory.version();
  if (cache.version != version) cache = {version, cache.device, {}, 0};
  for (const GlobalMemory::Range& r : cache.ranges) {
    if (begin >= r.begin && end <= r.end) return true;
  }
  GlobalMemory::Range r = memory.find(begin);
  if (r.end == 0 || !memory.accessible(r, cache.device)) return false;
  while (r.end < end) {
    const GlobalMemory::Range next = memory.find(r.end);
    if (next.end == 0 || !memory.accessible(next, cache.device)) return false;
    r.end = next.end;
  }
  cache.ranges[cache.next++ % 4] = r;
  return true;
}

}  // namespace sim
