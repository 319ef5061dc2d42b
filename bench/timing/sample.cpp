// SPDX-License-Identifier: Apache-2.0
// See sample.h.
#include "bench/timing/sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "bench/timing/benchmark_case.h"

namespace moxie::timing {

std::vector<GemmDescription> draw_problems(uint64_t seed, int count) {
  std::mt19937_64 random(seed);
  // The distributions of the standard library differ between implementations.
  const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  const auto logarithmic = [&](double least, double most) { return least * std::pow(most / least, uniform()); };
  constexpr double kMostFlops = 8e12, kMostWeights = 12e9;
  std::vector<GemmDescription> drawn;
  while (drawn.size() < static_cast<size_t>(count)) {
    GemmDescription d;
    const auto groups = static_cast<int64_t>(logarithmic(2, 257));
    const double rows = logarithmic(1, 8192);
    d.n = static_cast<int64_t>(logarithmic(512, 16384) / 64) * 64;
    d.k = static_cast<int64_t>(logarithmic(512, 16384) / 64) * 64;
    const auto total = std::max<int64_t>(1, std::llround(rows * static_cast<double>(groups)));
    if (uniform() < 0.5) d.activation.function = Activation::Swiglu;
    d.groups = Offsets{groups, total};
    d.expected_rows = (total + groups - 1) / groups;
    if (flops_of(d) <= kMostFlops && 2.0 * static_cast<double>(groups * d.n * d.k) <= kMostWeights) drawn.push_back(d);
  }
  return drawn;
}

std::string words_of(const GemmDescription& d) {
  std::string words =
      fmt::format("{} {} {} --groups {} --grouping offsets", rows_of(d), d.n, d.k, timed_groups(d).count);
  if (d.expected_rows) words += fmt::format(" --expected-rows {}", *d.expected_rows);
  words += fmt::format(" --activation {}", to_string(d.activation.function));
  if (d.bias) words += " --bias";
  if (d.gather) words += " --gather";
  if (d.pre) words += d.out ? " --outputs pre,out" : " --outputs pre";
  return words;
}

}  // namespace moxie::timing
