// SPDX-License-Identifier: Apache-2.0
// Stream capture: how a capture begins, spreads over streams, is invalidated and ends in a graph.
#include "sim/driver/capture.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "sim/driver/graph.h"

namespace sim::driver {
namespace {

thread_local CUstreamCaptureMode interaction_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

template <class Visit>
void each_capture(Visit visit) {
  auto& captures = state().captures;
  for (size_t i = 0; i < captures.size();) {
    auto capture = captures[i].lock();
    if (!capturing(capture)) {
      captures.erase(captures.begin() + static_cast<ptrdiff_t>(i));
      continue;
    }
    visit(*capture);
    ++i;
  }
}

}  // namespace

bool capturing(const std::shared_ptr<Capture>& capture) { return capture != nullptr && capture->graph != nullptr; }

void invalidate(Capture& capture) { capture.invalidated = true; }

void check_capture_alive(const CUstream_st& stream) {
  require(!stream.capture->invalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

void abandon_capture(CUstream_st& stream) {
  if (!capturing(stream.capture)) return;
  invalidate(*stream.capture);
  if (stream.capture->origin != &stream) return;
  const std::shared_ptr<Capture> capture = stream.capture;
  CUgraph graph = capture->graph;
  capture->graph = nullptr;
  if (capture->owns_graph) destroy_graph(graph);
}

void add_dependencies(std::vector<CUgraphNode>& to, const std::vector<CUgraphNode>& from) {
  for (CUgraphNode node : from) {
    if (std::find(to.begin(), to.end(), node) == to.end()) to.push_back(node);
  }
}

void legacy_stream_used(CUctx_st& context) {
  bool blocked = false;
  state().streams.each([&](CUstream_st& s) {
    if (s.context != &context || !s.blocking() || !capturing(s.capture)) return;
    blocked = true;
    invalidate(*s.capture);
  });
  require(!blocked, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
}

void forbid_unsafe_in_capture() {
  if (interaction_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return;
  bool forbidden = false;
  each_capture([&](Capture& capture) {
    if (capture.mode == CU_STREAM_CAPTURE_MODE_RELAXED) return;
    const bool own = capture.thread == std::this_thread::get_id();
    const bool global =
        capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL && interaction_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !global) return;
    forbidden = true;
    invalidate(capture);
  });
  require(!forbidden, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a call that is unsafe while a stream captures");
}

void forbid_synchronization_in_capture(CUctx_st& context) {
  bool forbidden = false;
  state().streams.each([&](CUstream_st& s) {
    if (s.context != &context || !capturing(s.capture)) return;
    forbidden = true;
    invalidate(*s.capture);
  });
  require(!forbidden, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a stream of the context is capturing");
}

void forbid_on_capturing(CUstream_st& stream) {
  if (!capturing(stream.capture)) return;
  invalidate(*stream.capture);
  fail(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the stream is capturing");
}

namespace {

void begin_capture(Call& c, CUstream handle, CUstreamCaptureMode mode, CUgraph graph, std::vector<CUgraphNode> after) {
  require(mode >= CU_STREAM_CAPTURE_MODE_GLOBAL && mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
  CUstream_st& stream = live_stream(c, handle);
  require(!stream.legacy, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the legacy stream cannot capture");
  require(!capturing(stream.capture), CUDA_ERROR_ILLEGAL_STATE, "the stream is capturing already");
  auto capture = std::make_shared<Capture>();
  capture->id = state().next_id++;
  capture->owns_graph = graph == nullptr;
  capture->graph = graph != nullptr ? graph : new_graph();
  capture->origin = &stream;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  state().captures.push_back(capture);
  stream.capture = std::move(capture);
  stream.dependencies = std::move(after);
}

// True when the origin's last work follows everything that other streams of the capture did.
bool all_joined(const Capture& capture) {
  std::unordered_map<CUgraphNode, bool> reached;
  std::vector<CUgraphNode> open = capture.origin->dependencies;
  while (!open.empty()) {
    CUgraphNode node = open.back();
    open.pop_back();
    if (!reached.emplace(node, true).second) continue;
    open.insert(open.end(), node->dependencies.begin(), node->dependencies.end());
  }
  bool joined = true;
  state().streams.each([&](CUstream_st& s) {
    if (s.capture.get() != &capture) return;
    for (CUgraphNode node : s.dependencies) joined = joined && reached.count(node) != 0;
  });
  return joined;
}

void end_capture(Call& c, CUstream handle, CUgraph* result) {
  require(result != nullptr);
  *result = nullptr;
  CUstream_st& stream = live_stream(c, handle);
  require(capturing(stream.capture), CUDA_ERROR_ILLEGAL_STATE, "the stream is not capturing");
  std::shared_ptr<Capture> capture = stream.capture;
  if (capture->origin != &stream) {
    invalidate(*capture);
    fail(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  }
  require(capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED || capture->thread == std::this_thread::get_id(),
          CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  const bool joined = all_joined(*capture);
  CUgraph graph = capture->graph;
  capture->graph = nullptr;
  state().streams.each([&](CUstream_st& s) {
    if (s.capture != capture) return;
    s.capture.reset();
    s.dependencies.clear();
  });
  if (capture->invalidated || !joined) {
    if (capture->owns_graph) destroy_graph(graph);
    fail(capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  }
  *result = graph;
}

void capture_info(Call& c, CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                  const CUgraphNode** dependencies, size_t* count) {
  require(status != nullptr);
  CUstream_st& stream = live_stream(c, handle);
  if (stream.legacy) {
    bool blocked = false;
    state().streams.each([&](CUstream_st& s) {
      blocked = blocked || (s.context == stream.context && s.blocking() && capturing(s.capture));
    });
    require(!blocked, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  }
  if (!capturing(stream.capture)) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return;
  }
  const bool active = !stream.capture->invalidated;
  *status = active ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  if (!active) return;
  if (id != nullptr) *id = stream.capture->id;
  if (graph != nullptr) *graph = stream.capture->graph;
  if (dependencies != nullptr) *dependencies = stream.dependencies.data();
  if (count != nullptr) *count = stream.dependencies.size();
}

void update_dependencies(Call& c, CUstream handle, CUgraphNode* nodes, size_t count, unsigned flags) {
  CUstream_st& stream = live_stream(c, handle);
  require(capturing(stream.capture), CUDA_ERROR_ILLEGAL_STATE, "the stream is not capturing");
  check_capture_alive(stream);
  require(nodes != nullptr || count == 0);
  require(flags == CU_STREAM_ADD_CAPTURE_DEPENDENCIES || flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES);
  std::vector<CUgraphNode> given(nodes, nodes + count);
  for (CUgraphNode node : given) {
    auto it = state().nodes.find(node);
    require(it != state().nodes.end() && it->second == stream.capture->graph);
  }
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) stream.dependencies.clear();
  add_dependencies(stream.dependencies, given);
}

}  // namespace
}  // namespace sim::driver

using namespace sim::driver;

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  API(HealthyContext, { begin_capture(c, stream, mode, nullptr, {}); });
}

CUresult cuStreamBeginCapture(CUstream stream) {
  return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode* nodes, const CUgraphEdgeData*,
                                     size_t count, CUstreamCaptureMode mode) {
  API(HealthyContext, {
    state().graphs.get(graph);
    require(nodes != nullptr || count == 0);
    std::vector<CUgraphNode> after(nodes, nodes + count);
    for (CUgraphNode node : after) require(state().nodes.count(node) != 0 && node->graph == graph);
    begin_capture(c, stream, mode, graph, std::move(after));
  });
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  API(HealthyContext, { end_capture(c, stream, graph); });
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  API(HealthyContext, { capture_info(c, stream, status, nullptr, nullptr, nullptr, nullptr); });
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  API(HealthyContext, { capture_info(c, stream, status, id, nullptr, nullptr, nullptr); });
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                   const CUgraphNode** dependencies, size_t* count) {
  API(HealthyContext, { capture_info(c, stream, status, id, graph, dependencies, count); });
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                   const CUgraphNode** dependencies, const CUgraphEdgeData** edges, size_t* count) {
  if (edges != nullptr) *edges = nullptr;  // Every edge is a plain one.
  return cuStreamGetCaptureInfo_v2(stream, status, id, graph, dependencies, count);
}

CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* nodes, size_t count, unsigned int flags) {
  API(HealthyContext, { update_dependencies(c, stream, nodes, count, flags); });
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode* nodes, const CUgraphEdgeData*, size_t count,
                                              unsigned int flags) {
  API(HealthyContext, { update_dependencies(c, stream, nodes, count, flags); });
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  API(Initialized, {
    require(mode != nullptr && *mode >= CU_STREAM_CAPTURE_MODE_GLOBAL && *mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
    std::swap(*mode, interaction_mode);
  });
}
