// SPDX-License-Identifier: Apache-2.0
// Sets of bytes of global memory.
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

// What a grid writes: by plain accesses and copies, and by strong accesses whose scope holds other grids.
struct WrittenBytes {
  ByteSet plain, strong;
  void add(const WrittenBytes& other) { plain.add(other.plain), strong.add(other.strong); }
  bool touches(uint64_t address, uint64_t bytes) const {
    return plain.touches(address, bytes) || strong.touches(address, bytes);
  }
  void clear() { plain.clear(), strong.clear(); }
};

}  // namespace sim
