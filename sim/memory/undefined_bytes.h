// SPDX-License-Identifier: Apache-2.0
// The bits of global memory that hold what no program has determined: values that depend on uninitialised memory.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

namespace sim {

// All members are thread-safe.
class UndefinedBytes {
 public:
  bool any() const { return any_.load(std::memory_order_relaxed); }
  // The undefined bits of each byte that `by` stores; 0 where all are defined.
  void store(uint64_t address, const uint8_t* bits, uint64_t bytes, const std::string& by);
  void define(uint64_t address, uint64_t bytes);
  void load(uint64_t address, uint8_t* bits, uint64_t bytes) const;
  struct Found {
    uint64_t address = 0;  // 0: all are defined
    std::string by;        // who stored it
  };
  // The first byte that is not all defined.
  Found find(uint64_t address, uint64_t bytes) const;
  // A copy of memory.
  void copy(uint64_t to, uint64_t from, uint64_t bytes);

 private:
  static constexpr uint64_t kPage = 4096;
  struct Page {
    std::array<uint8_t, kPage> bits{};
    uint32_t undefined = 0;  // bytes that are
    std::string by;          // the first by name of those that stored some
  };
  // Calls visit with the number of each page that the bytes meet, and which of its bytes they are.
  template <class Visit>
  static void each_page(uint64_t address, uint64_t bytes, Visit visit);
  void set(uint64_t address, const uint8_t* bits, uint64_t bytes, const std::string& by);
  std::unordered_map<uint64_t, std::unique_ptr<Page>> pages_;
  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
};

}  // namespace sim
