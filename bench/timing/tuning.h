// From measured times to a table of winners: few kernels, each within a little of the fastest. No device.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "moxie/tuned.h"

namespace moxie::timing {

// One problem's candidates with their times.
struct Measured {
  std::string kernel_class;  // problems of equal class share a kernel when they share a configuration
  TunedHopper shape{};       // grouping, n, k, gated; the choice is not set
  int64_t rows = 0;          // of a typical group
  struct Candidate {
    TunedHopper choice{};  // schedule, tile and multicast
    double seconds = 0;
  };
  std::vector<Candidate> candidates;
};

// The index of the candidate that each problem gets: within `slack` of its fastest (0.01: one per cent), and of those
// the ones that serve most problems of the class, so that few kernels are needed.
std::vector<size_t> choose_candidates(const std::vector<Measured>& measured, double slack);

// The table's rows. Between two measured numbers of rows the boundary is their geometric mean; neighbours with the same
// choice become one row. The last of a shape's rows has no upper end.
std::vector<TunedHopper> make_table(const std::vector<Measured>& measured, const std::vector<size_t>& chosen);

// The row as src/plan/tuned_hopper.inc holds it.
std::string include_line(const TunedHopper& row);

}  // namespace moxie::timing
