// SPDX-License-Identifier: Apache-2.0
// What the clusters of a grid did to global memory, and by which words of it they have synchronized.
#pragma once
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "sim/history/global_touches.h"
#include "sim/history/grid_view.h"

namespace sim {

// What remains of a cluster that has ended, until it is held against others.
struct ClusterHistory {
  uint32_t cluster = 0;  // its number
  std::unique_ptr<GlobalHistory> global;
  struct Place {
    uint32_t rank = 0, warp = 0;
  };
  std::vector<Place> places;  // by agent: of warps the block's rank and the number in it
};

// What releases at addresses of global memory have published. Grids of several devices that run at the same time have
// one, because what a block has released may come back to its grid by way of another device.
struct GridObjects {
  struct Object {
    std::unordered_map<int, GridView> of_device;  // what each device has released; others see .sys scope alone
    GridView system;
  };
  std::unordered_map<uint64_t, Object> objects;  // all places beyond a number share one
  static constexpr size_t kPlaces = 4096;
  static constexpr uint64_t kSharedPlace = 0;
  uint32_t clusters = 0;  // of all those grids: the views number them through
};

struct GridHistory {
  // When and where an access was made.
  struct Moment {
    uint32_t cluster = 0;
    Stamp stamp;    // of an agent of that cluster
    GridView view;  // what the warp knew of other clusters
    ClusterHistory::Place place;
  };
  std::vector<Moment> moments;
  GlobalPages pages;
  TouchLists lists;

  // Whether clusters can hand anything over: the kernel has strong reads and strong writes of global memory. Its
  // clusters then run on one host thread.
  bool can_synchronize = false;
  std::shared_ptr<GridObjects> objects = std::make_shared<GridObjects>();
  uint32_t first_cluster = 0;  // the number of this grid's first cluster in views
};

}  // namespace sim
