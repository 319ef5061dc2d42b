// SPDX-License-Identifier: Apache-2.0
// Products whose rows of A are gathered, for sizes that are drawn anew in every run.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>

#include "tests/support/grouped_product.h"

namespace moxie::test {

struct GatheredProduct {
  ProductSpec problem;  // of groups by offsets
  std::string name;
};

inline void PrintTo(const GatheredProduct& product, std::ostream* stream) { *stream << product.name; }

// Computes it `times` times in every order of the simulator. tile_rows: the rows of its tile.
inline void run_gathered(const GatheredProduct& product, int64_t tile_rows, int times) {
  Random random(run_seed() ^ std::hash<std::string>()(product.name));
  for (int i = 0; i < times; ++i) {
    Job job;
    job.problem = product.problem;
    const bool packed = job.problem.b_format.has_value();
    const int64_t rows[] = {0, 1, 3, 7, 8, tile_rows - 1, tile_rows, tile_rows + 1, 67, 130};
    const int64_t unit = is_gated(job.problem.activation) ? 16 : 8;
    const int64_t columns[] = {unit, 48, 64, 128, 176, 272}, depths[] = {8, 64, 72, 200, 392},
                  packed_depths[] = {32, 64, 160, 352, 672};
    job.n = random.of(columns), job.k = packed ? random.of(packed_depths) : random.of(depths);
    for (int64_t g = random.between(1, 6); g > 0; --g) job.rows.push_back(random.of(rows));
    job.host_sizes = !job.problem.expected_rows && random.one_in(2);
    job.weights_ready = random.one_in(2);
    job.seed = random.next() % 1000;
    if (random.one_in(3)) job.wild_sizes = random.next() | 1;
    if (random.one_in(3)) job.specials = random.next() | 1;
    SCOPED_TRACE(fmt::format("n {}, k {}, rows {}, MOXIE_TEST_SEED={}", job.n, job.k,
                             ::testing::PrintToString(job.rows), run_seed()));
    run_in_all_orders(job);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace moxie::test
