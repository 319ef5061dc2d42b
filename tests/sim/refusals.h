// SPDX-License-Identifier: Apache-2.0
// A fixture for what the driver refuses: the answer of a call, and the line that CUDA_LOG_FILE gets for it.
#pragma once
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#define CUDA_ENABLE_DEPRECATED
#include "tests/sim/driver.h"

namespace sim_test {

class SimRefusals : public SimDriver {
 protected:
  void SetUp() override {
    SimDriver::SetUp();
    log_ = testing::TempDir() + "moxie_sim_log_" + std::to_string(getpid());
    std::remove(log_.c_str());
    setenv("CUDA_LOG_FILE", log_.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("CUDA_LOG_FILE");
    std::remove(log_.c_str());
    SimDriver::TearDown();
  }

  // Calls the function and compares its answer and the one line of the log, which names the function, whatever its
  // version.
  template <class... Parameters, class... Arguments>
  void refused(CUresult code, const std::string& said, const std::string& name, CUresult (*function)(Parameters...),
               Arguments... arguments) {
    std::remove(log_.c_str());
    EXPECT_EQ(code, function(arguments...)) << name << ": " << said;
    std::ifstream file(log_);
    std::string line{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    const char* text = nullptr;
    CU(cuGetErrorName)(code, &text);
    const std::string plain = name.substr(0, name.find("_v"));
    const size_t colon = std::min(line.find(": "), line.size());
    if (const size_t version = line.find("_v"); version < colon) line.erase(version, colon - version);
    EXPECT_EQ(line, "[simulator][E] " + plain + ": " + text + (said.empty() ? "" : ": " + said) + "\n");
  }

  CUcontext create() {
    CUcontext made = nullptr;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuCtxCreate)(&made, nullptr, 0, 0));
    return made;
  }

  std::string log_;
};
#define REFUSED(code, said, function, ...) \
  refused(code, said, TEXT_OF(function), CU(function) __VA_OPT__(, ) __VA_ARGS__)

inline constexpr auto kInvalidValue = CUDA_ERROR_INVALID_VALUE;
inline constexpr const char* kOneDevice = "the simulator has one device, 0";
inline constexpr const char* kNoContext = "no context is current to the calling thread";

template <class Handle>
Handle stale() {
  static char byte[64];
  return reinterpret_cast<Handle>(byte);
}

}  // namespace sim_test
