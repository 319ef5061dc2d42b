// SPDX-License-Identifier: Apache-2.0
#include "sim/memory/byte_set.h"

#include <algorithm>

namespace sim {
namespace {

// f(word, mask) for each 64-bit word of a chunk that [begin, end) of its bits meets; stops when f says true.
template <class F>
bool each_word(uint64_t begin, uint64_t end, F f) {
  while (begin < end) {
    const uint64_t bit = begin % 64, count = std::min(end - begin, 64 - bit);
    if (f(begin / 64, (count == 64 ? ~0ull : (1ull << count) - 1) << bit)) return true;
    begin += count;
  }
  return false;
}

}  // namespace

ByteSet::Chunk& ByteSet::chunk(uint64_t number) {
  if (last_ != nullptr && last_number_ == number) return *last_;
  std::unique_ptr<Chunk>& found = chunks_[number];
  if (!found) found = std::make_unique<Chunk>();
  last_number_ = number;
  last_ = found.get();
  return *last_;
}

void ByteSet::add(uint64_t address, uint64_t bytes) {
  while (bytes > 0) {
    const uint64_t begin = address % kChunk, count = std::min(bytes, kChunk - begin);
    Chunk& words = chunk(address / kChunk);
    each_word(begin, begin + count, [&](uint64_t word, uint64_t mask) {
      words[word] |= mask;
      return false;
    });
    address += count;
    bytes -= count;
  }
}

void ByteSet::add(const ByteSet& other) {
  for (const auto& [number, theirs] : other.chunks_) {
    Chunk& words = chunk(number);
    for (size_t i = 0; i < words.size(); ++i) words[i] |= (*theirs)[i];
  }
}

bool ByteSet::touches(uint64_t address, uint64_t bytes) const {
  while (bytes > 0) {
    const uint64_t begin = address % kChunk, count = std::min(bytes, kChunk - begin);
    const auto found = chunks_.find(address / kChunk);
    if (found != chunks_.end() && each_word(begin, begin + count, [&](uint64_t word, uint64_t mask) {
          return ((*found->second)[word] & mask) != 0;
        }))
      return true;
    address += count;
    bytes -= count;
  }
  return false;
}

}  // namespace sim
