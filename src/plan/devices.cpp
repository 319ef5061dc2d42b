// SPDX-License-Identifier: Apache-2.0
// The figures of GPUs that need not be here.
#include <algorithm>
#include <array>

#include "moxie/device.h"
#include "moxie/plan.h"

namespace moxie {
namespace {

struct Named {
  std::string_view name;
  DeviceFigures figures;
};

// Those of the H100 SXM and the H200 were read from their drivers. The others are published, docs/plans.md says where;
// L2 and clock of the H20 and of the GH200, the one with 96 GB of HBM3, are taken to be an H200's. Of the B200 only the
// multiprocessors enter a plan.
constexpr int kSharedBytes = 232448;
constexpr std::array<Named, 6> kDevices = {{
    {"h100-sxm", {90, 132, kSharedBytes, 52428800, 3.35232e12, 1.98e9}},
    {"h100-pcie", {90, 114, kSharedBytes, 52428800, 2.03904e12, 1.755e9}},
    {"h200", {90, 132, kSharedBytes, 62914560, 4.814304e12, 1.98e9}},
    {"h20", {90, 78, kSharedBytes, 62914560, 4.022784e12, 1.98e9}},
    {"gh200", {90, 132, kSharedBytes, 62914560, 4.022784e12, 1.98e9}},
    {"b200", {100, 148, kSharedBytes, 132644864, 8.183808e12, 1.965e9}},
}};
constexpr auto kNames = [] {
  std::array<std::string_view, kDevices.size()> names{};
  for (size_t i = 0; i < names.size(); ++i) names[i] = kDevices[i].name;
  return names;
}();

}  // namespace

std::optional<DeviceFigures> named_device(std::string_view name) {
  const auto found = std::find_if(kDevices.begin(), kDevices.end(), [&](const Named& d) { return d.name == name; });
  if (found == kDevices.end()) return std::nullopt;
  return found->figures;
}

std::span<const std::string_view> device_names() { return kNames; }

DeviceFigures figures_of(const DeviceInfo& info) {
  DeviceFigures figures{info.arch, info.sm_count, info.shared_bytes};
  // A driver that does not tell answers 0.
  if (info.l2_bytes > 0) figures.l2_bytes = static_cast<int64_t>(info.l2_bytes);
  if (info.memory_rate > 0) figures.memory_rate = info.memory_rate;
  if (info.clock > 0) figures.clock = info.clock;
  return figures;
}

}  // namespace moxie
