// SPDX-License-Identifier: Apache-2.0
// See random.h.
#include "tests/support/random.h"

#include <cstdio>
#include <cstdlib>
#include <random>

namespace moxie::test {

uint64_t run_seed() {
  static const uint64_t seed = [] {
    const char* const given = std::getenv("MOXIE_TEST_SEED");
    const uint64_t drawn = given ? std::strtoull(given, nullptr, 10) : std::random_device()();
    std::printf("MOXIE_TEST_SEED=%llu repeats these data\n", static_cast<unsigned long long>(drawn));
    return drawn;
  }();
  return seed;
}

}  // namespace moxie::test
