// SPDX-License-Identifier: Apache-2.0
// From measured times to a table of winners: few kernels, each nearly as fast as the fastest. It needs no device.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "moxie/tuned.h"

namespace moxie::timing {

// The candidates for one product, with their times.
struct Measured {
  std::string kernel_class;  // products of equal class share a kernel when they share a choice
  TunedHopper shape{};       // grouping, n, k, gated; the choice is not set
  int64_t rows = 0;          // of a typical group
  struct Candidate {
    TunedHopper choice{};  // schedule, tile and multicast
    double seconds = 0;
  };
  std::vector<Candidate> candidates;
};

// Returns the index of the candidate that each product gets. It is within `slack` of the fastest (0.01 is one per
// cent), and of those it serves most products of the class, so that few kernels are needed.
std::vector<size_t> choose_candidates(const std::vector<Measured>& measured, double slack);

// Returns the rows of the table. The boundary between two measured numbers of rows is their geometric mean. Neighbors
// with the same choice become one row. The last row of a shape has no upper end.
std::vector<TunedHopper> make_table(const std::vector<Measured>& measured, const std::vector<size_t>& chosen);

// Returns the row as src/plan/tuned_hopper.inc holds it.
std::string include_line(const TunedHopper& row);

}  // namespace moxie::timing
