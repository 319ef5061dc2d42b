// SPDX-License-Identifier: Apache-2.0
// What is known of the tensor maps in global memory: who has written, released and acquired each, and which copies may
// still read it. sim/hazards/tensor_map_order.h decides by it.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "sim/history/clock.h"

namespace sim {

// A tensor map that the device wrote, or that a copy of this cluster has used.
struct TensorMapRecord {
  bool written = false;  // by the device
  bool released = false;
  Stamp writer;                 // the write, then the release
  std::vector<Stamp> acquired;  // fence.proxy.tensormap...acquire of this version
  struct Use {
    Stamp stamp;     // completion of a copy that reads the map
    Stamp map_read;  // of a load: the bulk group whose completion says that the map has been read
  };
  std::vector<Use> uses;
};

struct TensorMapRecords {
  std::map<uint64_t, TensorMapRecord> maps;  // by address
  std::vector<Stamp> releases;               // fence.proxy.tensormap::generic.release
  uint64_t low = UINT64_MAX, high = 0;       // the addresses from the first map to the end of the last
  // False when a write to these bytes rewrites no map.
  bool may_hold(uint64_t address, uint64_t bytes) const { return address < high && address + bytes > low; }
};

}  // namespace sim
