// SPDX-License-Identifier: Apache-2.0
// The random bits of test data.
#pragma once
#include <cstdint>

namespace moxie::reference {

// splitmix64: the numbers from 0 on become bits that look independent of each other.
constexpr uint64_t splitmix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

}  // namespace moxie::reference
