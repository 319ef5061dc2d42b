// SPDX-License-Identifier: Apache-2.0
// The MXFP4 products whose speed or correctness others have published: DeepGEMM's pull request 348 (its dense table,
// its tests of contiguous and masked groups, its sweep over 256 experts).
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "tests/support/product_spec.h"

namespace moxie::test {

struct ReferenceShape {
  std::string name;
  Grouping grouping;
  int64_t groups, rows;  // of a group; Masked: max_m
  int64_t n, k;
  int percent = 100;  // Masked: rows that a group has on average
};
inline void PrintTo(const ReferenceShape& shape, std::ostream* out) { *out << shape.name; }

inline std::vector<ReferenceShape> reference_shapes() {
  std::vector<ReferenceShape> all;
  const auto add = [&](const char* kind, Grouping grouping, int64_t groups, int64_t rows, int64_t n, int64_t k,
                       int percent = 100) {
    const std::string share = percent == 100 ? "" : fmt::format("_{}Percent", percent);
    all.push_back(
        {fmt::format("{}_{}x{}x{}x{}{}", kind, groups, rows, n, k, share), grouping, groups, rows, n, k, percent});
  };
  constexpr int64_t kDense[][3] = {{128, 2048, 7168},  {128, 24576, 1536}, {256, 7168, 2048},
                                   {512, 2048, 7168},  {512, 7168, 2048},  {1024, 4096, 7168},
                                   {1024, 7168, 2048}, {4096, 4096, 7168}, {8192, 8192, 8192}};
  for (const auto& s : kDense) add("Dense", Grouping::Dense, 1, s[0], s[1], s[2]);
  constexpr int64_t kContiguous[][4] = {{4, 8192, 4096, 7168}, {4, 8192, 7168, 2048},  {8, 4096, 4096, 7168},
                                        {8, 4096, 7168, 2048}, {4, 8192, 24576, 1536}, {4, 8192, 32768, 512},
                                        {4, 300, 512, 256},    {4, 300, 768, 256}};
  for (const auto& s : kContiguous) add("Contiguous", Grouping::RowGroups, s[0], s[1], s[2], s[3]);
  constexpr int64_t kMasked[][2] = {{1, 1024}, {2, 512}, {4, 256}};
  for (const auto& s : kMasked) {
    add("Masked", Grouping::Masked, s[0], s[1], 4096, 7168, 60);
    add("Masked", Grouping::Masked, s[0], s[1], 7168, 2048, 60);
  }
  add("Masked", Grouping::Masked, 4, 4096, 4096, 7168, 25);
  // DeepSeek-R1: a token goes to 8 of 256 experts.
  for (const int64_t tokens : {32, 512, 2048, 8192}) {
    const int64_t rows = tokens * 8 / 256;
    add("ExpertsContiguous", Grouping::RowGroups, 256, rows, 4096, 7168);
    add("ExpertsContiguous", Grouping::RowGroups, 256, rows, 7168, 2048);
    add("ExpertsOffsets", Grouping::Offsets, 256, rows, 4096, 7168);
  }
  return all;
}

// What a caller would say of it: a problem without choices.
inline ProductSpec problem_of(const ReferenceShape& s) {
  ProductSpec p;
  p.format = OperandFormat::Mxfp4;
  p.grouping = s.grouping;
  p.groups = s.groups;
  p.m = s.grouping == Grouping::Offsets || s.grouping == Grouping::RowGroups ? s.groups * s.rows : s.rows;
  p.n = s.n, p.k = s.k;
  p.out = DataType::F32;
  if (s.grouping == Grouping::RowGroups) p.expected_rows = s.rows;
  if (s.grouping == Grouping::Masked) p.expected_rows = std::max<int64_t>(1, s.rows * s.percent / 100);
  return p;
}

}  // namespace moxie::test
