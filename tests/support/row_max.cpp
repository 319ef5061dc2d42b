// SPDX-License-Identifier: Apache-2.0
// See row_max.h.
#include "tests/support/row_max.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/custom_sinks.h"

namespace moxie::test {

void check_row_max(Job job, int times) {
  const ProductSpec& p = job.problem;
  const bool gated = is_gated(p.activation);
  const GroupRows rows(p.grouping, job.rows, job.spare_rows);
  const int64_t width = gated ? job.n / 2 : job.n, spans = (width + 31) / 32, ld = spans + 1;
  std::vector<Buffer> largest;
  for (int i = 0; i < times; ++i) {
    largest.emplace_back(size_t((rows.total + 2) * ld) * sizeof(float));  // a row before and one behind
    job.problem.sinks.push_back(
        row_max_sink({largest.back().get<float>() + ld, ld, rows.stacked() ? rows.m : 0, gated}));
  }
  const GroupedProduct product(job);
  for (const char* order : orders()) {
    SCOPED_TRACE(order);
    set_order(order);
    for (const Buffer& each : largest) each.fill(0xff);
    product.check(product.run());
    const std::vector<uint8_t> bytes = largest.front().download();
    for (const Buffer& each : largest) ASSERT_EQ(each.download(), bytes);
    std::vector<float> got(bytes.size() / sizeof(float));
    std::memcpy(got.data(), bytes.data(), bytes.size());
    std::vector<bool> due(got.size());
    for (size_t g = 0; g < job.rows.size(); ++g) {
      const std::vector<double> out = product.expected_out(g);
      for (int64_t i = 0; i < job.rows[g]; ++i) {
        for (int64_t span = 0; span < spans; ++span) {
          double expected = 0;
          for (int64_t c = span * 32; c < std::min(width, span * 32 + 32); ++c)
            expected = std::max(expected, std::abs(out[size_t(i * width + c)]));
          const auto at = size_t((rows.first[g] + i + 1) * ld + span);
          due[at] = true;
          ASSERT_NEAR(got[at], expected, 1e-4 * std::max(1.0, expected))
              << "group " << g << " row " << i << " span " << span;
        }
      }
    }
    for (size_t i = 0; i < got.size(); ++i) {
      if (!due[i]) {
        ASSERT_TRUE(std::isnan(got[i])) << "written at " << i;
      }
    }
  }
}

}  // namespace moxie::test
