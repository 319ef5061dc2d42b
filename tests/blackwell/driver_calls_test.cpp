// SPDX-License-Identifier: Apache-2.0
// What a call asks of the driver: a run encodes tensor maps, those that the thread does not have yet, and launches. It
// reads no device memory, copies nothing and waits for nothing, so no choice can depend on what lies on the device.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>

#include "device_state.h"
#include "driver/driver.h"
#include "driver/functions.h"
#include "tests/support/grouped_product.h"

namespace moxie::test {
namespace {

driver::Functions original;

template <auto kMember>
struct Counted;
template <class Result, class... Arguments, Result (*driver::Functions::*kMember)(Arguments...)>
struct Counted<kMember> {
  static inline int calls = 0;
  static Result call(Arguments... arguments) {
    ++calls;
    return (original.*kMember)(arguments...);
  }
};

// Counts the calls of every driver function while it lives.
class Calls {
 public:
  Calls() : table_(const_cast<driver::Functions&>(device().state().context().driver().call())) {
    original = table_;
#define MOXIE_COUNT(name) \
  table_.name = Counted<&driver::Functions::name>::call, Counted<& driver::Functions::name>::calls = 0;
    MOXIE_DRIVER_FUNCTIONS(MOXIE_COUNT)
#undef MOXIE_COUNT
  }
  ~Calls() { table_ = original; }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;
  std::map<std::string, int> made() const {
    std::map<std::string, int> all;
#define MOXIE_READ(name) \
  if (const int calls = Counted<&driver::Functions::name>::calls; calls > 0) all[#name] = calls;
    MOXIE_DRIVER_FUNCTIONS(MOXIE_READ)
#undef MOXIE_READ
    return all;
  }

 private:
  driver::Functions& table_;
};

TEST(DriverCalls, AProductEncodesMapsAndLaunches) {
  for (const Grouping grouping :
       {Grouping::Dense, Grouping::Batched, Grouping::Offsets, Grouping::RowGroups, Grouping::Masked}) {
    for (const std::optional<bool> swap : {std::optional<bool>{}, std::optional(true), std::optional(false)}) {
      for (const std::optional<int64_t> expected : {std::optional<int64_t>{}, std::optional<int64_t>{4}}) {
        SCOPED_TRACE(testing::Message() << int(grouping) << (swap ? *swap ? " on" : " off" : " auto"));
        Job job = job_of(OperandFormat::Mxfp4);
        job.problem.grouping = grouping;
        job.problem.out = DataType::F32;
        job.problem.swap_ab = swap;
        job.problem.expected_rows = expected;
        job.rows = grouping == Grouping::Dense ? std::vector<int64_t>{5} : std::vector<int64_t>{3, 3};
        GroupedProduct product(job);
        product.check(product.run());  // compiled now
        const auto call = [&] {
          const Calls counted;
          gemm(device(), product.problem(), product.arguments());
          return counted.made();
        };
        std::map<std::string, int> first;
        std::thread([&] { first = call(); }).join();
        device().synchronize();
        std::map<std::string, int> again = call();
        device().synchronize();
        EXPECT_GE(first["cuTensorMapEncodeTiled"], 5);  // of a, b, their scales, out
        EXPECT_EQ(again["cuTensorMapEncodeTiled"], 0);
        for (auto* calls : {&first, &again}) {
          EXPECT_EQ((*calls)["cuLaunchKernelEx"], 1);
          for (const char* name :
               {"cuLaunchKernelEx", "cuTensorMapEncodeTiled", "cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent"})
            calls->erase(name);
          for (const auto& [name, count] : *calls) ADD_FAILURE() << name << " called " << count << " times";
        }
      }
    }
  }
}

// A plan depends on the problem alone: whatever the sizes on the device are, they are one kernel and one launch.
TEST(DriverCalls, PlansAreThereWithoutADriver) {
  const Calls counted;
  ProductSpec p;
  p.format = OperandFormat::Mxfp4;
  p.grouping = Grouping::Masked;
  p.groups = 64, p.m = 256, p.n = 2048, p.k = 2048;
  for (const std::optional<int64_t> expected : {std::optional<int64_t>{}, std::optional<int64_t>{8}}) {
    p.expected_rows = expected;
    EXPECT_FALSE(plan_gemm(describe(p), {100, 148, 232448}).candidates.empty());
  }
  EXPECT_TRUE(counted.made().empty());
}

}  // namespace
}  // namespace moxie::test
