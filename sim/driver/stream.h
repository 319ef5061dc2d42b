// SPDX-License-Identifier: Apache-2.0
// Streams: what one holds, and the null streams that a context has.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "sim/driver/abi.h"
#include "sim/history/system_history.h"
#include "sim/memory/byte_set.h"

namespace sim::driver {

class Call;
struct Capture;
struct Item;

// The last kernel of a stream, for the dependent grid behind it.
struct Grid {
  std::shared_ptr<WrittenBytes> written;
  // What earlier grids may have left unfinished, because this one did not wait for them.
  std::vector<std::shared_ptr<const WrittenBytes>> unfinished;
  // What has happened before it for certain, where there are several devices.
  Knowledge before;
};

CUstream_st& live_stream(Call& c, CUstream handle);
// Set while the calling thread is inside the per-thread form of an entry point.
extern thread_local bool null_stream_is_per_thread;

}  // namespace sim::driver

struct CUstream_st {
  CUcontext context = nullptr;
  unsigned flags = 0;
  int priority = 0;
  uint64_t id = 0;
  bool legacy = false;
  std::map<int, CUlaunchAttributeValue> attributes;
  std::shared_ptr<sim::driver::Capture> capture;
  // The nodes that the next captured node depends on.
  std::vector<CUgraphNode> dependencies;
  // What was submitted last, where work is queued. The next piece runs behind it.
  std::shared_ptr<sim::driver::Item> tail;
  // Empty when the stream's last work was no kernel.
  std::optional<sim::driver::Grid> last;
  bool blocking() const { return !(flags & CU_STREAM_NON_BLOCKING); }
};
