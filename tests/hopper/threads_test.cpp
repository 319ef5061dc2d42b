// SPDX-License-Identifier: Apache-2.0
// The simulator gives the same bytes for any number of host threads.
#include <gtest/gtest.h>

#include "tests/support/grouped_product.h"

namespace moxie::test {
namespace {

TEST(HostThreads, GroupedGemmIsTheSameBitForBit) {
  if (!device().info().simulated) GTEST_SKIP() << "a GPU has no host threads";
  for (const auto& [grouping, multicast] :
       {std::pair{Grouping::Offsets, Multicast::A}, std::pair{Grouping::Pointers, Multicast::None}}) {
    Job job;
    job.problem.schedule = WarpSchedule::PingPong;
    job.problem.grouping = grouping;
    job.problem.multicast = multicast;
    job.problem.tile_m = 64, job.problem.tile_n = 64;
    job.problem.bias = true;
    job.problem.activation = Activation::SwigluOai;
    job.problem.pre = DataType::Bf16, job.problem.out = DataType::F32;
    job.rows = {70, 0, 130, 5, 64};
    job.n = 176, job.k = 200;
    job.seed = 4;
    const GroupedProduct product(job);
    for (const char* order : orders()) {
      set_order(order);
      setenv("MOXIE_SIM_THREADS", "1", 1);
      const Results once = product.run();
      product.check(once);
      for (const char* threads : {"2", "3", "8"}) {
        setenv("MOXIE_SIM_THREADS", threads, 1);
        const Results results = product.run();
        EXPECT_EQ(results.pre, once.pre) << order << ", " << threads << " threads";
        EXPECT_EQ(results.out, once.out) << order << ", " << threads << " threads";
      }
    }
  }
  unsetenv("MOXIE_SIM_THREADS");
  set_order("eager");
}

}  // namespace
}  // namespace moxie::test
