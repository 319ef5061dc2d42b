// SPDX-License-Identifier: Apache-2.0
// The state behind the driver ABI, which one lock guards. What a handle points to is defined in the room that owns it:
// here are the tables alone.
//
// A file of this folder calls only files to its left:
// state < error < allocation, image, call < device, execute, stream, graph < capture, module < submit, library < event,
// function < occupancy < launch < context < memory < graph_node < graph_exec, tensor_map, export_table < entry_points.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/driver/allocation.h"
#include "sim/driver/device.h"
#include "sim/driver/handles.h"
#include "sim/driver/queue.h"
#include "sim/history/system_history.h"
#include "sim/memory/global.h"

namespace sim::driver {

struct Capture;

// What each device has for itself.
struct DeviceSlot {
  CUcontext primary = nullptr;
  unsigned primary_count = 0;
  unsigned primary_flags = 0;
  CUmemoryPool default_pool = nullptr, current_pool = nullptr;
};

struct State {
  // Guards everything here. Nobody holds it while a kernel or a host function runs.
  std::mutex mutex;
  // Held while device work runs. It is taken after `mutex` or alone, never before it.
  std::mutex execution;
  bool initialized = false;
  Device device;
  GlobalMemory memory;
  // What was done to memory that devices share.
  SystemHistory history;
  // How many there are. With more than one, work waits in queues until a call waits for it (sim/driver/queue.h).
  int device_count = 1;
  std::vector<DeviceSlot> devices;
  Queue queue;
  // By address.
  std::map<uint64_t, Allocation> allocations;
  // By handle; the addresses that were reserved and their bytes; by address.
  std::map<uint64_t, std::shared_ptr<PhysicalMemory>> physical;
  std::map<uint64_t, uint64_t> reservations;
  std::map<uint64_t, MappedMemory> mapped;
  // Destroyed contexts stay, so that a stale handle is known as such.
  std::vector<std::unique_ptr<CUctx_st>> contexts;
  Handles<CUmod_st> modules;
  Handles<CUlib_st> libraries;
  Handles<CUkern_st> kernels;
  Handles<CUstream_st> streams;
  Handles<CUevent_st> events;
  Handles<CUgraph_st> graphs;
  Handles<CUgraphExec_st> graph_execs;
  Handles<CUmemPoolHandle_st> pools;
  std::unordered_map<CUfunction, CUfunc_st*> functions;
  std::unordered_map<CUgraphNode, CUgraph> nodes;
  std::vector<std::weak_ptr<Capture>> captures;
  uint64_t next_id = 1;
  // A loaded module has griddepcontrol, so what kernels write is remembered.
  bool has_dependent_grids = false;
  // The first line of the latest fault, and the code that it led to.
  std::string report;
  CUresult report_code = CUDA_SUCCESS;
};
State& state();

}  // namespace sim::driver
