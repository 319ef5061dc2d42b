// SPDX-License-Identifier: Apache-2.0
// Every hazard between devices, as a small pair of kernels: the files of tests/devices/hazards. Device 0 runs `zero`
// and, where the file has it, its dependent grid `behind`, and device 1 `one`, which is launched first. Parameters:
// p_window, 16 KB of device 1; p_home, 16 KB of device 0; p_out, 4 KB of the device that runs the kernel; all are zero.
// And p_map, a tensor map of the window, 128 rows of 32 words, with boxes of one row.
#include "sim/memory/tensor_map.h"
#include "tests/devices/devices.h"
#include "tests/sim/hazard_files.h"

namespace sim_test {
namespace {

class DeviceHazards : public SimDevicesBase, public testing::WithParamInterface<Example> {};
INSTANTIATE_TEST_SUITE_P(All, DeviceHazards, testing::ValuesIn(examples(MOXIE_SOURCE_DIR "/tests/devices/hazards")),
                         [](const auto& info) { return info.param.name; });

const std::vector<std::string>& orders() {
  static const std::vector<std::string> all{"eager", "lazy", "random:1", "random:2", "random:3"};
  return all;
}

// The first lines of the reports.
std::vector<std::string> run(DeviceHazards& test, const Example& e, const std::string& text) {
  test.begin();
  test.enable_peers(2);
  const CUdeviceptr window = test.allocate(1, 16384), home = test.allocate(0, 16384);
  const CUdeviceptr outs[] = {test.allocate(0, 4096), test.allocate(1, 4096)};
  sim::TensorMapFields fields;
  fields.address = window;
  fields.element = sim::TensorElement::U32;
  fields.rank = 2;
  fields.dims = {32, 128, 1, 1, 1};
  fields.strides[0] = 128;
  fields.box = {32, 1, 1, 1, 1};
  std::vector<uint8_t> bytes(128);
  sim::encode(fields, bytes.data());
  CUdeviceptr maps[2];
  for (const int device : {0, 1}) {
    maps[device] = test.allocate(device, bytes.size());
    EXPECT_EQ(CUDA_SUCCESS, CU(cuMemcpyHtoD)(maps[device], bytes.data(), bytes.size()));
  }
  std::vector<std::string> reports;
  for (const int device : {1, 0}) {
    const CUfunction f = test.function(device, text, device == 0 ? "zero" : "one");
    EXPECT_EQ(CUDA_SUCCESS, test.launch(device, f, {window, home, outs[device], maps[device]}, e.clusters, e.threads));
  }
  if (text.find(".entry behind(") != std::string::npos) {
    const CUfunction f = test.function(0, text, "behind");
    EXPECT_EQ(CUDA_SUCCESS, test.launch(0, f, {window, home, outs[0], maps[0]}, e.clusters, e.threads, true));
  }
  for (const int device : {0, 1}) {
    const CUresult result = test.synchronize(device);
    if (result == CUDA_SUCCESS) continue;
    const std::string said = test.text_of(result);
    reports.push_back(said.substr(said.find(": ") + 2));
  }
  test.end();
  return reports;
}

TEST_P(DeviceHazards, BrokenIsReported) {
  const Example& e = GetParam();
  ASSERT_FALSE(e.reports.empty());
  for (const std::string& order : orders()) {
    setenv("MOXIE_SIM_ORDER", order.c_str(), 1);
    const std::vector<std::string> said = run(*this, e, e.broken);
    const bool fitting = std::any_of(said.begin(), said.end(), [&](const std::string& line) {
      return std::any_of(e.reports.begin(), e.reports.end(),
                         [&](const std::string& report) { return fits(line, report, e.broken); });
    });
    EXPECT_TRUE(fitting) << order << " said: " << (said.empty() ? "nothing" : said[0]);
  }
}

TEST_P(DeviceHazards, MendedIsSilent) {
  const Example& e = GetParam();
  for (const std::string& order : orders()) {
    setenv("MOXIE_SIM_ORDER", order.c_str(), 1);
    const std::vector<std::string> said = run(*this, e, e.mended);
    EXPECT_TRUE(said.empty()) << order << " said: " << said[0];
  }
}

}  // namespace
}  // namespace sim_test
