// SPDX-License-Identifier: Apache-2.0
// Events: what one remembers of its last record.
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "sim/driver/abi.h"

namespace sim::driver {
struct Capture;
struct Item;
}  // namespace sim::driver

struct CUevent_st {
  CUcontext context = nullptr;
  unsigned flags = 0;
  std::optional<std::chrono::steady_clock::time_point> time;
  // The last record, where work is queued.
  std::shared_ptr<sim::driver::Item> record;
  // The capture that the last record belongs to, and the nodes that it stands for there.
  std::shared_ptr<sim::driver::Capture> capture;
  std::vector<CUgraphNode> dependencies;
};
