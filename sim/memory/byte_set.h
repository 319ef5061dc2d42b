// SPDX-License-Identifier: Apache-2.0
// A set of bytes of global memory. It holds what a grid has written.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>

namespace sim {

class ByteSet {
 public:
  void add(uint64_t address, uint64_t bytes);
  void add(const ByteSet& other);
  bool touches(uint64_t address, uint64_t bytes) const;
  bool empty() const { return chunks_.empty(); }
  void clear() { chunks_.clear(), last_ = nullptr; }

 private:
  static constexpr uint64_t kChunk = 4096;
  using Chunk = std::array<uint64_t, kChunk / 64>;
  Chunk& chunk(uint64_t number);
  std::unordered_map<uint64_t, std::unique_ptr<Chunk>> chunks_;
  uint64_t last_number_ = 0;
  Chunk* last_ = nullptr;
};

}  // namespace sim
