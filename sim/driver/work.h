// SPDX-License-Identifier: Apache-2.0
// Work: what a stream runs and a graph records.
#pragma once
#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "sim/driver/abi.h"
#include "sim/machine/launch.h"

namespace sim::driver {

struct KernelWork {
  // The function answers queries alone: execution needs only the kernel.
  CUfunction function = nullptr;
  std::shared_ptr<const Kernel> kernel;
  Dim3 grid, block, cluster{1, 1, 1};
  bool explicit_cluster = false;
  bool cooperative = false;  // all blocks are resident, and may wait for each other
  unsigned dynamic_shared = 0;
  std::vector<uint8_t> params;
  // A programmatic launch may start before its predecessor grid in the stream has ended.
  bool programmatic = false;
  // How many of its blocks a multiprocessor holds at once.
  uint32_t blocks_per_multiprocessor = 1;
};

// A box of bytes from one pitched place to another. Both sides are checked when the work is submitted.
struct CopyWork {
  uint64_t source = 0, destination = 0;
  // Bytes from a row to the next.
  uint64_t source_pitch = 0, destination_pitch = 0;
  // Bytes from a plane to the next.
  uint64_t source_slice = 0, destination_slice = 0;
  // The box, in bytes, rows and planes.
  uint64_t width = 0, height = 1, depth = 1;
  // A side that lies in an allocation must still do so when the copy runs.
  bool source_owned = false, destination_owned = false;
};

struct SetWork {
  uint64_t destination = 0, pitch = 0;
  uint32_t value = 0, element_bytes = 1;
  // The box, in elements and rows.
  uint64_t width = 0, height = 1;
};

struct HostWork {
  CUhostFn function = nullptr;
  void* data = nullptr;
};

struct CallbackWork {
  CUstreamCallback function = nullptr;
  CUstream stream = nullptr;
  void* data = nullptr;
};

struct EventRecordWork {
  CUevent event = nullptr;
};
struct EventWaitWork {
  CUevent event = nullptr;
};
struct MemoryFreeWork {
  uint64_t address = 0;
};
// A child graph, or a whole graph that was launched.
struct GraphWork;
using Work = std::variant<std::monostate, KernelWork, CopyWork, SetWork, HostWork, CallbackWork, EventRecordWork,
                          EventWaitWork, MemoryFreeWork, std::shared_ptr<GraphWork>>;
struct GraphWork {
  // The steps stand in an order that respects the edges.
  std::vector<Work> steps;
  // The steps that each follows, by their places, and the context of each.
  std::vector<std::vector<size_t>> dependencies;
  std::vector<CUcontext> contexts;
  // What its nodes allocated outlives the launch.
  std::vector<std::shared_ptr<uint64_t>> memory;
};

}  // namespace sim::driver
