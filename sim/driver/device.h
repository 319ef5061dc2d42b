// SPDX-License-Identifier: Apache-2.0
// The simulated device: its limits, and what the environment chose of it.
#pragma once
#include <string>

#include "sim/driver/abi.h"

namespace sim::driver {

constexpr unsigned kMaxThreadsPerBlock = 1024;
// Shared memory of a block that has not opted in to more.
constexpr unsigned kMaxSharedPerBlock = 48 * 1024;
constexpr unsigned kMaxSharedPerBlockOptIn = 232448;
constexpr unsigned kSharedPerSm = 233472;
constexpr unsigned kReservedSharedPerBlock = 1024;
constexpr unsigned kRegistersPerSm = 65536;
constexpr unsigned kMaxThreadsPerSm = 2048;
constexpr unsigned kMaxBlocksPerSm = 32;
constexpr unsigned kMaxPortableCluster = 8;
constexpr unsigned kMaxCluster = 16;
constexpr unsigned kMaxConstantBytes = 65536;
// As many as one NVLink domain has, and as fit into a mask.
constexpr int kMaxDevices = 64;

struct Device {
  int arch = 90;
  std::string target = "sm_90a";
  int sm_count = 132;
  std::string name;
};

void check_device(CUdevice device);

}  // namespace sim::driver
