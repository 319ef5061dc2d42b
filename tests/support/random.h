// SPDX-License-Identifier: Apache-2.0
// Random data that depend on a seed and an index alone.
#pragma once
#include <cstdint>
#include <iterator>

#include "reference/formats.h"
#include "reference/splitmix.h"

namespace moxie::test {

inline uint64_t mix(uint64_t x) { return reference::splitmix64(x); }

// Random bf16 of magnitude scale / 16 to scale, never zero.
inline uint16_t random_bf16(uint64_t seed, uint64_t index, float scale) {
  const uint64_t bits = mix(seed * 0x100000001b3 + index);
  const float magnitude = scale * (1.0f / 16 + float(bits >> 40) * (15.0f / 16 / float(1 << 24)));
  return reference::float_to_bf16(bits & 1 ? -magnitude : magnitude);
}

// Codes of random scales.
struct ScaleCodes {
  int lowest = 127, highest = 128, step = 1;
  int draw(uint64_t bits) const { return lowest + step * int(bits % uint64_t((highest - lowest) / step + 1)); }
};

// Numbers that follow from a seed.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(mix(seed)) {}
  uint64_t next() { return mix(state_++); }
  int64_t between(int64_t first, int64_t last) { return first + int64_t(next() % uint64_t(last - first + 1)); }
  bool one_in(uint64_t count) { return next() % count == 0; }
  template <class Values>
  auto of(const Values& values) {
    return std::data(values)[next() % std::size(values)];
  }

 private:
  uint64_t state_;
};

// This run's seed where data are fresh each time: MOXIE_TEST_SEED repeats those of another run.
uint64_t run_seed();

}  // namespace moxie::test
