// SPDX-License-Identifier: Apache-2.0
// See routing.h.
#include "tests/support/routing.h"

#include <limits>

#include "tests/support/random.h"

namespace moxie::test {
namespace {

constexpr int32_t kLow = std::numeric_limits<int32_t>::min(), kHigh = std::numeric_limits<int32_t>::max();

class Disguise {
 public:
  Disguise(const ProductSpec& problem, uint64_t seed) : p_(problem), random_(seed) {}

  // Any number up to `most`.
  int32_t at_most(int64_t most) {
    const int32_t all[] = {kLow, -1, 0, int32_t(most) - 1, int32_t(most), int32_t(random_.between(kLow, most))};
    const int32_t value = random_.of(all);
    return value > most ? kLow : value;
  }
  int32_t at_least(int64_t least) {
    const int32_t all[] = {int32_t(least), int32_t(least) + 1, int32_t(least) + 8, kHigh,
                           int32_t(random_.between(least, kHigh))};
    return random_.of(all);
  }
  // A size that is clamped to 0 to `most`.
  int32_t clamped(int64_t size, int64_t most) {
    if (size == 0 && most == 0) return random_.one_in(2) ? at_most(0) : at_least(0);
    return size == 0 ? at_most(0) : size == most ? at_least(most) : int32_t(size);
  }

  // Ends are taken down to whole units and then no lower than those before.
  void ends(std::vector<int32_t>& ends, int64_t most, int64_t unit) {
    int32_t begin = 0;
    for (int32_t& end : ends) {
      const int32_t right = end;
      if (right == most && (right > begin || random_.one_in(2))) {
        end = at_least(most);
      } else if (right == begin && random_.one_in(2)) {
        end = at_most(begin);
      } else {
        end = int32_t(right + random_.between(0, unit - 1));
      }
      begin = right;
    }
  }

  // M, N and K of a group by pointers.
  void group(int32_t* sizes) {
    const bool empty = sizes[0] == 0 || sizes[1] == 0;
    const int32_t right_n = sizes[1];
    const int64_t unit = is_gated(p_.activation) ? 16 : 8;
    sizes[0] = clamped(sizes[0], p_.m), sizes[1] = clamped(sizes[1], p_.n), sizes[2] = clamped(sizes[2], p_.k);
    if (!empty) return;
    // Each of these alone makes it empty.
    switch (right_n == 0 ? random_.between(1, 2) : random_.between(0, 2)) {
      case 0:
        sizes[0] = at_most(0);
        sizes[1] = random_.one_in(2) ? kHigh : kLow;
        break;
      case 1:
        sizes[0] = at_least(0);
        sizes[1] = at_most(0);
        break;
      case 2:
        sizes[0] = at_least(0);
        sizes[1] = p_.n == 0 ? 0 : int32_t(random_.between(0, p_.n / unit - 1) * unit + random_.between(1, unit - 1));
        break;
    }
    if (random_.one_in(2)) sizes[2] = random_.one_in(2) ? kHigh : kLow;
  }

  // What is no group.
  int32_t no_group() {
    const int32_t all[] = {-1,
                           -7,
                           kLow,
                           int32_t(p_.groups),
                           int32_t(p_.groups) + 1,
                           kHigh,
                           int32_t(random_.between(p_.groups, kHigh)),
                           int32_t(random_.between(kLow, -1))};
    return random_.of(all);
  }

 private:
  const ProductSpec& p_;
  Random random_;
};

}  // namespace

std::vector<int32_t> disguise(const ProductSpec& p, std::vector<int32_t> sizes, uint64_t seed) {
  Disguise drawn(p, seed);
  switch (p.grouping) {
    case Grouping::Dense:
    case Grouping::Batched:
      break;
    case Grouping::Offsets:
      drawn.ends(sizes, p.m, 1);
      break;
    case Grouping::KGroups:
      drawn.ends(sizes, p.k, k_unit(p.format));
      break;
    case Grouping::RowGroups:
      for (int32_t& group : sizes) group = group < 0 ? drawn.no_group() : group;
      break;
    case Grouping::Masked:
      for (int32_t& rows : sizes) rows = drawn.clamped(rows, p.m);
      break;
    case Grouping::Pointers:
      for (size_t g = 0; g < sizes.size(); g += 3) drawn.group(&sizes[g]);
      break;
  }
  return sizes;
}

}  // namespace moxie::test
