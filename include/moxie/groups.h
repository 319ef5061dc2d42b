// SPDX-License-Identifier: Apache-2.0
// How the rows of a product are divided into groups. Each struct states the sizes of its own.
//
// T, G, N, K: rows of A in all, groups, columns (before a gate halves them) and length of the sums.
// W is the width of an output: N, or N / 2 for `out` of a gated activation.
#pragma once
#include <cstdint>
#include <optional>
#include <variant>

#include "moxie/types.h"

namespace moxie {

// The most groups that any grouping may have.
constexpr int64_t kMaxGroups = 65535;

// One product. A [m, K], B [N, K], outputs [m, W].
struct Dense {
  int64_t m = 0;  // rows
};

// `count` products of the same size. A [G, m, K], B [G, N, K], outputs [G, m, W].
struct Batched {
  int64_t count = 1;  // products
  int64_t m = 0;      // rows of each
};

// Rows sorted by group. A [T, K], B [G, N, K], outputs [T, W]. Rows::ends holds the end of each group's rows, the first
// group begins at row 0. Groups may be empty and need no alignment; rows past the last end are left untouched.
struct Offsets {
  int64_t count = 1;  // groups
  // T, when all calls have about as many rows: one kernel is planned and compiled, for this number. Without it kernels
  // are planned and compiled for every range of rows (mean rows of a group around 16, 64, 256, 1024 and 4096), and each
  // call takes the one for its rows. A call may have any number of rows in both cases.
  std::optional<int64_t> total = {};
};

// Every row names its group. A [T, K], B [G, N, K], outputs [T, W]. Rows::group_of_row holds the group of each row, or
// -1. Groups begin at multiples of GroupedGemm::row_alignment(). Rows marked -1 that share a tile with valid rows may
// be overwritten.
struct RowGroups {
  int64_t count = 1;  // groups
};

// Room for max_m rows in each group. A [G, max_m, K], B [G, N, K], outputs [G, max_m, W]. Rows::counts holds the number
// of valid rows of each group; rows past them are left untouched.
struct Masked {
  int64_t count = 1;  // groups
  int64_t max_m = 0;  // rows that each group has room for
};

// Each group has pointers, leading dimensions and sizes of its own, in arrays in device memory (GroupPointers). max_m,
// N and K are the most that any group has.
struct Pointers {
  int64_t count = 1;  // groups
  int64_t max_m = 0;  // most rows that any group has
};

// K is divided, not the rows (sm_100a): out[g] = A[:, group g] B[:, group g]^T, 0 for a sum over nothing. A [m, K],
// B [N, K], outputs [G, m, W]. Rows::ends holds the end of each group along K, a multiple of 8 (bf16) or 32.
struct KGroups {
  int64_t count = 1;  // groups
  int64_t m = 0;      // rows, the same for all groups
};

// In the order of enum Grouping.
using Groups = std::variant<Dense, Batched, Offsets, RowGroups, Masked, Pointers, KGroups>;

// The enumerator that names the alternative.
constexpr Grouping grouping_of(const Groups& groups) { return static_cast<Grouping>(groups.index()); }

// What a call says of its rows: one of the three arrays (Dense, Batched, Pointers: none), in device memory, read by the
// kernel and never by the host. The kernel takes any values. An end is brought into 0 to T (KGroups: 0 to K, and down
// to a multiple of 8 or 32), and then to no less than the end before it; a count into 0 to max_m. A row whose group
// does not exist counts as one marked -1.
struct Rows {
  const int32_t* ends = nullptr;          // Offsets, KGroups: [G]
  const int32_t* group_of_row = nullptr;  // RowGroups: [T]
  const int32_t* counts = nullptr;        // Masked: [G]
  // Offsets, RowGroups: T, where absent Offsets::total. KGroups: K of all groups together, where absent the
  // description's. Other groupings have none.
  std::optional<int64_t> total = {};
};

}  // namespace moxie
