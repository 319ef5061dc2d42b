// SPDX-License-Identifier: Apache-2.0
// Programs with several devices: the simulator's driver with eight of them, and a context and a stream on each.
#pragma once
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "tests/sim/driver.h"

namespace sim_test {

inline constexpr int kDevices = 8;

class SimDevicesBase : public testing::Test {
 public:
  static void SetUpTestSuite() {
    for (const char* name : {"MOXIE_SIM_ARCH", "MOXIE_SIM_SMS", "MOXIE_SIM_REPORT"}) unsetenv(name);
    setenv("MOXIE_SIM_DEVICES", std::to_string(kDevices).c_str(), 1);
  }
  void begin() {
    OK(CU(cuInit)(0));
    for (int i = 0; i < kDevices; ++i) {
      OK(CU(cuDevicePrimaryCtxRetain)(&context[i], i));
      OK(CU(cuCtxSetCurrent)(context[i]));
      OK(CU(cuStreamCreate)(&stream[i], CU_STREAM_NON_BLOCKING));
    }
  }
  void end() {
    CU(cuCtxSetCurrent)(nullptr);
    for (int i = 0; i < kDevices; ++i) CU(cuDevicePrimaryCtxRelease)(i);
    unsetenv("MOXIE_SIM_ORDER");
  }

  void on(int device) { ASSERT_EQ(CUDA_SUCCESS, CU(cuCtxSetCurrent)(context[device])); }
  // Each of the first `count` devices gets access to the memory of the others.
  void enable_peers(int count) {
    for (int i = 0; i < count; ++i) {
      on(i);
      for (int j = 0; j < count; ++j) {
        if (i == j) continue;
        OK(CU(cuCtxEnablePeerAccess)(context[j], 0));
      }
    }
  }
  CUdeviceptr allocate(int device, size_t bytes) {
    on(device);
    CUdeviceptr address = 0;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuMemAlloc)(&address, bytes));
    EXPECT_EQ(CUDA_SUCCESS, CU(cuMemsetD8)(address, 0, bytes));
    EXPECT_EQ(CUDA_SUCCESS, CU(cuCtxSynchronize)());
    return address;
  }
  uint32_t word(int device, CUdeviceptr address) {
    on(device);
    uint32_t value = 0;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuMemcpyDtoH)(&value, address, 4));
    return value;
  }
  CUfunction function(int device, const std::string& ptx, const char* name) {
    on(device);
    CUmodule module = nullptr;
    const bool whole = ptx.find(".version") != std::string::npos;
    const std::string text = (whole ? "" : ".version 8.7\n.target sm_90a\n.address_size 64\n") + ptx;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuModuleLoadData)(&module, text.c_str()));
    CUfunction f = nullptr;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuModuleGetFunction)(&f, module, name));
    return f;
  }
  // Launches a kernel whose parameters are addresses and counts of 64 bits.
  // early: it may start before its predecessor grid has ended.
  CUresult launch(int device, CUfunction f, std::vector<uint64_t> values, unsigned grid = 1, unsigned block = 32,
                  bool early = false) {
    on(device);
    std::vector<void*> params;
    for (uint64_t& value : values) params.push_back(&value);
    CUlaunchAttribute attribute{};
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config{};
    config.gridDimX = grid, config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = block, config.blockDimY = config.blockDimZ = 1;
    config.hStream = stream[device];
    config.attrs = &attribute, config.numAttrs = early ? 1 : 0;
    return CU(cuLaunchKernelEx)(&config, f, params.data(), nullptr);
  }
  CUresult synchronize(int device) {
    on(device);
    return CU(cuStreamSynchronize)(stream[device]);
  }
  // What the driver says of the last failure.
  static std::string text_of(CUresult code) {
    const char* text = nullptr;
    CU(cuGetErrorString)(code, &text);
    return text;
  }

  std::array<CUcontext, kDevices> context{};
  std::array<CUstream, kDevices> stream{};
};

// Every test runs in all orders.
class SimDevices : public SimDevicesBase, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    setenv("MOXIE_SIM_ORDER", GetParam(), 1);
    begin();
  }
  void TearDown() override { end(); }
};

inline std::string order_name(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

#define IN_ALL_ORDERS(suite) \
  INSTANTIATE_TEST_SUITE_P(Orders, suite, testing::Values("eager", "lazy", "random:1", "random:77"), order_name)

}  // namespace sim_test
