// SPDX-License-Identifier: Apache-2.0
// Part of every test program: tells the simulator, also of child processes, which test runs (sim/machine/coverage.h).
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace {

class NameOfTest : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& info) override {
    setenv("MOXIE_SIM_COVERAGE_TEST", (std::string(info.test_suite_name()) + "." + info.name()).c_str(), 1);
  }
};

const bool added = [] {
  if (std::getenv("MOXIE_SIM_COVERAGE") != nullptr)
    testing::UnitTest::GetInstance()->listeners().Append(new NameOfTest);
  return true;
}();

}  // namespace
