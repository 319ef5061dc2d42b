// SPDX-License-Identifier: Apache-2.0
// The words that lanes of a warp have written and not yet published.
#include "sim/history/lanes.h"

#include <cstring>

namespace sim {

void LaneReads::raise(View& view, uint32_t mask) {
  unordered_ &= ~mask;
  for (uint32_t lane = 0; lane < 32; ++lane) ordered_[lane] = mask >> lane & 1 ? time_ : ordered_[lane];
  ++time_;
  for (const Group& group : groups_) {
    if ((group.mask & mask) == 0) continue;
    uint32_t at = UINT32_MAX;
    for (uint32_t lane = 0; lane < 32; ++lane) at = std::min(at, group.mask >> lane & 1 ? ordered_[lane] : UINT32_MAX);
    view.seen.raise(group.agent, at);
    view.fenced.raise(group.agent, std::min(at, fenced_));
  }
}

LaneOrder::WarpOrder& LaneOrder::writer(uint32_t warp, uint32_t lanes) {
  if (warps_.size() <= warp) warps_.resize(warp + 1);
  WarpOrder& order = warps_[warp];
  if ((order.writers & lanes) == lanes) return order;
  order.writers |= lanes;
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<size_t>(__builtin_ctz(rest));
    if (order.writes[lane] != 0) continue;
    order.writes[lane] = ~0u;
    order.floor = std::min(order.floor, order.visible[lane]);
  }
  return order;
}

void LaneOrder::forget_warp(uint32_t warp) {
  for (uint32_t& word : words_) {
    if (word >> 26 == warp + 1) word = 0;
  }
  warps_[warp] = WarpOrder{};
}

void LaneOrder::write(uint32_t warp, int lane, uint32_t offset, uint32_t size) {
  if (offset % 4 != 0 || size % 4 != 0) return forget(offset, size);
  const WarpOrder& order = writer(warp, 1u << lane);
  const uint32_t mine = mark_of(warp, order.time) | static_cast<uint32_t>(lane);
  for (uint32_t word = offset / 4; word < (offset + size) / 4; ++word) {
    uint32_t& now = words_[word];
    // Several lanes that write one word, as when all store the same value, are not told apart.
    const int other = unordered(order, warp, now);
    now = other >= 0 && other != lane ? 0 : mine;
  }
}

namespace {

// Two lanes may write one word, as when all store the same value: they are not told apart.
template <int kWords>
void mark(uint32_t* words, const uint64_t* offset, uint32_t mask, uint32_t mine) {
  each_lane(mask, [&](int lane) {
    for (int i = 0; i < kWords; ++i)
      words[offset[lane] / 4 + static_cast<unsigned>(i)] = mine | static_cast<uint32_t>(lane);
  });
  uint32_t clash = 0;
  each_lane(mask, [&](int lane) {
    for (int i = 0; i < kWords; ++i)
      clash |= words[offset[lane] / 4 + static_cast<unsigned>(i)] ^ (mine | static_cast<uint32_t>(lane));
  });
  if (clash == 0) return;
  each_lane(mask, [&](int lane) {
    for (int i = 0; i < kWords; ++i) {
      uint32_t& word = words[offset[lane] / 4 + static_cast<unsigned>(i)];
      if (word != (mine | static_cast<uint32_t>(lane))) word = 0;
    }
  });
}

}  // namespace

template <int kWords>
struct WordsOf;
template <>
struct WordsOf<1> {
  using Type = uint32_t __attribute__((vector_size(4)));
};
template <>
struct WordsOf<2> {
  using Type = uint32_t __attribute__((vector_size(8)));
};
template <>
struct WordsOf<4> {
  using Type = uint32_t __attribute__((vector_size(16)));
};

// Whether a lane meets a word that another lane of the warp has marked since then.
template <int kWords>
bool LaneOrder::doubtful(const uint32_t* words, const uint64_t* offset, uint32_t mask, Marks since) {
  using Words = typename WordsOf<kWords>::Type;
  Words found{};
  each_lane(mask, [&](int lane) {
    Words word;
    std::memcpy(&word, words + offset[lane] / 4, sizeof word);
    found |= reinterpret_cast<Words>(word - since.first < since.count) &
             reinterpret_cast<Words>((word & 31) != static_cast<uint32_t>(lane));
  });
  uint32_t any = 0;
  for (int i = 0; i < kWords; ++i) any |= found[i];
  return any != 0;
}

uint32_t LaneOrder::doubtful_row(const uint32_t* words, uint32_t size, Marks since) {
  uint32_t found = 0;
  const int shift = __builtin_ctz(size / 4);
  for (int i = 0; i < static_cast<int>(8 * size); ++i) {
    const uint32_t word = words[i];
    found |= static_cast<uint32_t>(word - since.first < since.count) &
             static_cast<uint32_t>((word & 31) != static_cast<uint32_t>(i >> shift));
  }
  return found;
}

bool LaneOrder::ordered(uint32_t warp, const uint64_t* offset, uint32_t mask, uint32_t size, bool row) const {
  if (warp >= warps_.size()) return true;
  const WarpOrder& order = warps_[warp];
  const uint32_t* const words = words_.data();
  const Marks since(warp, order.floor);
  if (row && size % 4 == 0 && offset[0] % 4 == 0) {
    if (doubtful_row(words + offset[0] / 4, size, since) == 0) return true;
  } else if (size <= 4) {
    if (!doubtful<1>(words, offset, mask, since)) return true;
  } else if (size == 8) {
    if (!doubtful<2>(words, offset, mask, since)) return true;
  } else if (size == 16) {
    if (!doubtful<4>(words, offset, mask, since)) return true;
  }
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if (unordered_writer(warp, lane, static_cast<uint32_t>(offset[lane]), size) >= 0) return false;
  }
  return true;
}

void LaneOrder::write(uint32_t warp, const uint64_t* offset, uint32_t mask, uint32_t size, bool row) {
  const bool known = (size == 4 || size == 8 || size == 16) && ordered(warp, offset, mask, size, row);
  if (!known) {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      write(warp, lane, static_cast<uint32_t>(offset[lane]), size);
    }
    return;
  }
  const uint32_t mine = mark_of(warp, writer(warp, mask).time);
  if (row) {
    uint32_t* const words = words_.data() + offset[0] / 4;
    const int shift = __builtin_ctz(size / 4);
    for (int i = 0; i < static_cast<int>(8 * size); ++i) words[i] = mine | static_cast<uint32_t>(i >> shift);
  } else if (size == 4) {
    mark<1>(words_.data(), offset, mask, mine);
  } else if (size == 8) {
    mark<2>(words_.data(), offset, mask, mine);
  } else {
    mark<4>(words_.data(), offset, mask, mine);
  }
}

}  // namespace sim
