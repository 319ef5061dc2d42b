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
  // What a release at an address of global memory has published. All places beyond a number share one.
  std::unordered_map<uint64_t, GridView> objects;
  static constexpr size_t kObjects = 4096;
  static constexpr uint64_t kSharedObject = 0;
};

}  // namespace sim
