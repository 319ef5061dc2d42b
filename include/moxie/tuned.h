// SPDX-License-Identifier: Apache-2.0
// Tables of measured kernels for sm_90a: the text files that the environment variable MOXIE_TUNED names.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "moxie/types.h"

namespace moxie {

// One measured winner. It stands for products of bf16 with this grouping, n, k and gating whose mean rows a group lie
// in [rows_from, rows_to]. Products of packed weights take no row, and `moxie tune` makes none of them.
struct TunedHopper {
  Grouping grouping = Grouping::Offsets;              // of the products it stands for
  int64_t n = 0;                                      // columns
  int64_t k = 0;                                      // length of the sums
  int64_t rows_from = 0;                              // fewest mean rows
  int64_t rows_to = 0;                                // most mean rows
  bool gated = false;                                 // whether the activation is
  WarpSchedule schedule = WarpSchedule::Cooperative;  // of the winner
  int tile_m = 0;                                     // rows of its tiles
  int tile_n = 0;                                     // columns of its tiles
  Multicast multicast = Multicast::None;              // None: no cluster

  bool operator==(const TunedHopper&) const = default;
};

// Mean rows a group up to which plans take tiles of 8 rows.
constexpr int kMostMeanRowsOf8 = 2;

// The row as a line of the file: "offsets 5760 2880 0 24 gated pingpong 64x192 a".
std::string tuned_line(const TunedHopper& row);

// The rows of a file, one a line; # begins a comment. Throws Error(InvalidArgument) with the file and the line that is
// wrong.
std::vector<TunedHopper> read_tuned(const std::string& path);

}  // namespace moxie
