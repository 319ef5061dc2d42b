// SPDX-License-Identifier: Apache-2.0
// See group_rows.h.
#include "tests/support/group_rows.h"

#include <algorithm>
#include <ostream>
#include <utility>

#include "tests/support/print.h"

namespace moxie::test {

GroupRows::GroupRows(Grouping how, std::vector<int64_t> of_groups, int64_t spare, int64_t alignment)
    : grouping(how), rows(std::move(of_groups)) {
  const int64_t most = *std::max_element(rows.begin(), rows.end());
  if (stacked()) m = most + (how == Grouping::Masked ? spare : 0);
  for (size_t g = 0; g < rows.size(); ++g) {
    const bool last = g + 1 == rows.size();
    first.push_back(total);
    const int64_t end = total + rows[g];
    switch (how) {
      case Grouping::Masked:
        sizes.push_back(int32_t(rows[g]));
        [[fallthrough]];
      case Grouping::Batched:
      case Grouping::KGroups:
        total += m;
        break;
      case Grouping::Offsets:
        sizes.push_back(int32_t(end));
        total = end;
        break;
      case Grouping::RowGroups:
        total = last ? end + spare : (end + alignment - 1) / alignment * alignment;
        sizes.insert(sizes.end(), size_t(rows[g]), int32_t(g));
        sizes.resize(size_t(total), -1);
        break;
      case Grouping::Dense:
      case Grouping::Pointers:
        total = end;
        break;
    }
  }
  if (how == Grouping::Offsets) total += spare;
  if (!stacked()) m = how == Grouping::Pointers ? most : total;
}

bool GroupRows::stacked() const {
  return grouping == Grouping::Batched || grouping == Grouping::Masked || grouping == Grouping::KGroups;
}

std::vector<bool> GroupRows::exists() const {
  std::vector<bool> all(size_t(total), false);
  for (size_t g = 0; g < rows.size(); ++g) std::fill_n(all.begin() + first[g], rows[g], true);
  return all;
}

int64_t GroupRows::scale_index(size_t g, int64_t r, int64_t column, int64_t k, int64_t block) const {
  if (one_matrix()) return blocked_scale_index(first[g] + r, column, k, block);
  int64_t before = 0;
  for (size_t i = 0; i < g; ++i) before += blocked_scale_bytes(stacked() ? m : rows[i], k, block);
  return before + blocked_scale_index(r, column, k, block);
}

void PrintTo(const GroupRows& rows, std::ostream* out) {
  PrintTo(rows.grouping, out);
  *out << ", rows";
  for (const int64_t r : rows.rows) *out << ' ' << r;
}

}  // namespace moxie::test
