// SPDX-License-Identifier: Apache-2.0
// Where the rows of each group lie in A and in the outputs of a product, for every grouping but Pointers.
#pragma once
#include <cstdint>
#include <iosfwd>
#include <vector>

#include "moxie/scales.h"

namespace moxie::test {

struct GroupRows {
  Grouping grouping = Grouping::Dense;
  std::vector<int64_t> rows;   // of each group
  int64_t m = 0, total = 0;    // ProductSpec::m; rows in memory (KGroups: of the outputs)
  std::vector<int64_t> first;  // row in memory where each group begins
  std::vector<int32_t> sizes;  // ProductTensors::sizes (not KGroups)

  GroupRows() = default;
  // spare: rows behind the last group, with Masked behind each. alignment: of the first rows of RowGroups; 512 is a
  // multiple of every plan's.
  GroupRows(Grouping how, std::vector<int64_t> of_groups, int64_t spare = 3, int64_t alignment = 512);

  int64_t groups() const { return int64_t(rows.size()); }
  // Whether each group has a matrix of m rows.
  bool stacked() const;
  // Whether all groups share one matrix of scales.
  bool one_matrix() const { return grouping == Grouping::Dense || grouping == Grouping::RowGroups; }
  std::vector<bool> exists() const;  // of the rows in memory
  // Where the scale of row r of group g stands in blocked scales of `k` columns.
  int64_t scale_index(size_t g, int64_t r, int64_t column, int64_t k, int64_t block = kScaleBlock) const;
};

// "masked, rows 5 0 140"
void PrintTo(const GroupRows& rows, std::ostream* out);

}  // namespace moxie::test
