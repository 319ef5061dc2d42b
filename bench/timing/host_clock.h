// SPDX-License-Identifier: Apache-2.0
// Times by the clock of the host.
#pragma once
#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "moxie/device.h"

namespace moxie::timing {

inline double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Returns the seconds of one launch: the median over batches of launches without a wait between them.
inline double launch_seconds(const Device& device, const std::function<void(int)>& launch, int batches = 7,
                             int launches = 20) {
  for (int i = 0; i < 3; ++i) launch(i);
  device.synchronize();
  std::vector<double> times;
  for (int batch = 0; batch < batches; ++batch) {
    times.push_back(seconds_of([&] {
                      for (int i = 0; i < launches; ++i) launch(i);
                      device.synchronize();
                    }) /
                    launches);
  }
  return median(times);
}

}  // namespace moxie::timing
