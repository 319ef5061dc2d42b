// The words that lanes of a warp have written and not yet published.
#include "sim/memory/lanes.h"

#include <algorithm>

namespace sim {

void LaneOrder::write(uint32_t warp, int lane, uint32_t offset, uint32_t size) {
  if (offset % 4 != 0 || size % 4 != 0) return forget(offset, size);
  if (warps_.size() <= warp) warps_.resize(warp + 1);
  const uint32_t released = warps_[warp].released[static_cast<size_t>(lane)];
  const uint32_t mine = released % kEpochs << 11 | static_cast<uint32_t>(lane) << 6 | (warp + 1);
  for (uint32_t word = offset / 4; word < (offset + size) / 4; ++word) {
    uint32_t& now = words_[word];
    // Several lanes that write one word, as when all store the same value, are not told apart.
    const int other = unordered(warp, now);
    now = other >= 0 && other != lane ? 0 : mine;
  }
}

void LaneOrder::forget(uint32_t offset, uint32_t size) {
  std::fill(words_.begin() + offset / 4, words_.begin() + (offset + size + 3) / 4, 0u);
}

int LaneOrder::unordered_writer(uint32_t warp, int reader, uint32_t offset, uint32_t size) const {
  for (uint32_t word = offset / 4; word < (offset + size + 3) / 4; ++word) {
    const int lane = unordered(warp, words_[word]);
    if (lane >= 0 && lane != reader) return lane;
  }
  return -1;
}

}  // namespace sim
