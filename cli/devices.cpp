// SPDX-License-Identifier: Apache-2.0
// moxie devices: what this machine can compute on.
#include <fmt/format.h>

#include "cli/commands.h"
#include "moxie/device.h"

namespace moxie::cli {

Run add_devices(CLI::App&) {
  return [] {
    const auto devices = Device::list();
    if (devices.empty()) {
      fmt::print("no device: neither a CUDA driver nor the simulator was found\n");
      return 1;
    }
    fmt::print("{:<32} {:>7} {:>5} {:>12} {:>8} {:>8}  {}\n", "device", "arch", "SMs", "shared/block", "memory",
               "driver", "served by");
    for (const auto& d : devices) {
      const bool supported = d.arch == 90 || d.arch == 100;
      fmt::print("{:<32} {:>7} {:>5} {:>8} KiB {:>4} GiB {:>8}  {}{}\n", d.name,
                 fmt::format("sm_{}{}", d.arch, d.arch >= 90 ? "a" : ""), d.sm_count, d.shared_bytes >> 10,
                 d.memory_bytes >> 30, fmt::format("{}.{}", d.driver_version / 1000, d.driver_version % 1000 / 10),
                 d.driver_path,
                 d.simulated ? " (simulated)"
                 : supported ? ""
                             : " (not supported)");
    }
    return 0;
  };
}

}  // namespace moxie::cli
