// SPDX-License-Identifier: Apache-2.0
// See data.h.
#include "bench/timing/data.h"
#include "reference/formats.h"
#include "reference/splitmix.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>
#include <utility>

namespace moxie::timing {

int worker_threads() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

std::vector<uint16_t> random_bf16(uint64_t seed, int64_t count, float scale) {
  std::vector<uint16_t> values(static_cast<size_t>(count));
  const uint64_t start = reference::splitmix64(seed);
  const float step = scale / 32768.0f;
  auto fill = [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i += 4) {
      uint64_t bits = reference::splitmix64(start + static_cast<uint64_t>(i));
      for (int64_t j = i; j < std::min(i + 4, to); ++j, bits >>= 16) {
        values[j] = reference::float_to_bf16(static_cast<float>(static_cast<int16_t>(bits)) * step);
      }
    }
  };
  const int threads = worker_threads();
  const int64_t share = (count / threads + 4) / 4 * 4;
  std::vector<std::thread> others;
  for (int64_t from = share; from < count; from += share)
    others.emplace_back(fill, from, std::min(from + share, count));
  fill(0, std::min(share, count));
  for (auto& thread : others) thread.join();
  return values;
}

std::vector<uint8_t> random_bytes(uint64_t seed, int64_t count) {
  const auto words = random_bf16(seed, count, 1.0f);
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(words[i] ^ words[i] >> 7);
  return bytes;
}

Routing route(uint64_t seed, int tokens, int experts, int top) {
  std::vector<std::vector<int32_t>> chosen(static_cast<size_t>(experts));
  std::vector<std::pair<double, int>> keys;
  for (int token = 0; token < tokens; ++token) {
    keys.clear();
    for (int expert = 0; expert < experts; ++expert) {
      if (expert % 6 == 3) continue;
      // To sample without replacement, every expert draws an exponential variable whose rate is its popularity, and the
      // smallest ones win.
      const int rank = expert * 11 % experts + 1;
      const uint64_t bits = reference::splitmix64(reference::splitmix64(seed + static_cast<uint64_t>(token)) +
                                                  static_cast<uint64_t>(expert));
      const double uniform = (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
      keys.emplace_back(-std::log(uniform) * rank, expert);
    }
    const auto count = std::min<size_t>(static_cast<size_t>(top), keys.size());
    std::partial_sort(keys.begin(), keys.begin() + static_cast<ptrdiff_t>(count), keys.end());
    for (size_t i = 0; i < count; ++i) chosen[static_cast<size_t>(keys[i].second)].push_back(token);
  }
  Routing routing;
  for (const auto& rows : chosen) {
    routing.tokens.insert(routing.tokens.end(), rows.begin(), rows.end());
    routing.ends.push_back(static_cast<int32_t>(routing.tokens.size()));
  }
  return routing;
}

}  // namespace moxie::timing
