// SPDX-License-Identifier: Apache-2.0
// Stream capture: sequences of captured work, and what a capture forbids.
#pragma once
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "sim/driver/call.h"
#include "sim/driver/stream.h"

namespace sim::driver {

// A sequence of captured work. Streams take part in it by holding it.
struct Capture {
  uint64_t id = 0;
  CUgraph graph = nullptr;
  // False when the caller gave the graph to capture into.
  bool owns_graph = true;
  CUstream origin = nullptr;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  bool invalidated = false;
};

bool capturing(const std::shared_ptr<Capture>& capture);
void invalidate(Capture& capture);
// Requires that the capture the stream takes part in is valid.
void check_capture_alive(const CUstream_st& stream);
// Ends the capture that the stream takes part in, if any, because the stream is going away.
void abandon_capture(CUstream_st& stream);
void add_dependencies(std::vector<CUgraphNode>& to, const std::vector<CUgraphNode>& from);

// Each of these fails when a capture prohibits the call, and invalidates that capture.
void forbid_unsafe_in_capture();
void forbid_synchronization_in_capture(CUctx_st& context);
void forbid_on_capturing(CUstream_st& stream);
// For work that joins the legacy stream, which a capturing blocking stream prohibits.
void legacy_stream_used(CUctx_st& context);

}  // namespace sim::driver
