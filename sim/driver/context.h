// SPDX-License-Identifier: Apache-2.0
// Contexts: what one holds, and how it is found and emptied.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "sim/driver/abi.h"
#include "sim/memory/device_heap.h"

struct CUctx_st {
  int device = 0;
  bool primary = false, destroyed = false;
  unsigned flags = 0;
  uint64_t id = 0;
  CUstream legacy = nullptr;
  std::map<std::thread::id, CUstream> per_thread;
  std::map<CUlibrary, CUmodule> libraries;
  std::array<size_t, CU_LIMIT_MAX> limits{};
  // A failed launch sets it. The first call that synchronizes reports it, and then every call does.
  CUresult failure = CUDA_SUCCESS;
  bool failure_seen = false;
  // The first line of the fault that made it fail.
  std::string report;
  // The devices to whose memory it has access, one bit each.
  uint64_t peers = 0;
  // From where its kernels' malloc() takes memory.
  std::unique_ptr<sim::DeviceHeap> heap;
};

namespace sim::driver {

class Call;

CUctx_st& live_context(CUcontext handle);
// Destroys what the context owns and forgets its failure.
void clear_context(Call& c, CUctx_st& context);

}  // namespace sim::driver
