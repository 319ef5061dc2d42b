// Streams and events, the execution of work in stream order, and stream capture. Work is done by the time the call
// that enqueues it returns; its failure comes to light later, in a call that synchronises.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "sim/driver/driver.h"

namespace sim::driver {

thread_local bool null_stream_is_per_thread = false;
thread_local bool in_host_function = false;

namespace {

thread_local CUstreamCaptureMode interaction_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUstream make_stream(CUctx_st& context, unsigned flags, int priority) {
  auto stream = std::make_unique<CUstream_st>();
  stream->context = &context;
  stream->flags = flags;
  stream->priority = priority;
  stream->id = state().next_id++;
  return state().streams.add(std::move(stream));
}

// The lowest and highest priority that cuCtxGetStreamPriorityRange names.
int clamp_priority(int priority) { return std::clamp(priority, -5, 0); }

CUevent_st& live_event(CUevent handle) { return state().events.get(handle); }

bool capturing(const std::shared_ptr<Capture>& capture) { return capture != nullptr && capture->graph != nullptr; }

void check_capture_alive(const CUstream_st& stream) {
  require(!stream.capture->invalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

void add_dependencies(std::vector<CUgraphNode>& to, const std::vector<CUgraphNode>& from) {
  for (CUgraphNode node : from) {
    if (std::find(to.begin(), to.end(), node) == to.end()) to.push_back(node);
  }
}

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

void copy_bytes(const CopyWork& copy) {
  auto* to = reinterpret_cast<uint8_t*>(copy.destination);
  auto* from = reinterpret_cast<const uint8_t*>(copy.source);
  for (uint64_t z = 0; z < copy.depth; ++z) {
    for (uint64_t y = 0; y < copy.height; ++y) {
      std::memmove(to + z * copy.destination_slice + y * copy.destination_pitch,
                   from + z * copy.source_slice + y * copy.source_pitch, copy.width);
    }
  }
}

void fill(const SetWork& set) {
  for (uint64_t y = 0; y < set.height; ++y) {
    auto* row = reinterpret_cast<uint8_t*>(set.destination + y * set.pitch);
    if (set.element_bytes == 1) {
      std::memset(row, static_cast<int>(set.value), set.width);
      continue;
    }
    for (uint64_t x = 0; x < set.width; ++x) std::memcpy(row + x * set.element_bytes, &set.value, set.element_bytes);
  }
}

// All that was enqueued is done: no kernel to come can meet an unfinished one.
void forget_grids(CUctx_st& context) {
  state().streams.each([&](CUstream_st& s) {
    if (s.context == &context) s.last.reset();
  });
}

struct HostFunctionScope {
  HostFunctionScope() { in_host_function = true; }
  ~HostFunctionScope() { in_host_function = false; }
};

struct Executor {
  Call& c;
  CUctx_st& context;
  CUstream_st* stream;  // null: part of a graph

  void operator()(const std::monostate&) const {}

  void operator()(const KernelWork& work) const {
    Launch launch;
    launch.kernel = work.kernel.get();
    launch.grid = work.grid;
    launch.block = work.block;
    launch.cluster = work.cluster;
    launch.explicit_cluster = work.explicit_cluster;
    launch.dynamic_shared = work.dynamic_shared;
    launch.params = work.params;
    launch.global = &state().memory;
    launch.arch = state().device.arch;
    launch.multiprocessors = static_cast<uint32_t>(state().device.sm_count);
    launch.stack_bytes = static_cast<uint32_t>(context.limits[CU_LIMIT_STACK_SIZE]);
    try {
      launch.order = order_from_environment();
      launch.threads = threads_from_environment();
      launch.rules = rules_from_environment();
    } catch (const std::invalid_argument& e) {
      fail(CUDA_ERROR_INVALID_VALUE, e.what());
    }
    Grid grid;
    if (stream != nullptr && state().has_dependent_grids) {
      if (work.programmatic && stream->last) {
        launch.unfinished = stream->last->unfinished;
        launch.unfinished.push_back(stream->last->written);
      }
      grid.written = std::make_shared<ByteSet>();
      launch.written = grid.written.get();
    }
    std::optional<Fault> failure;
    c.unlocked(
        [&] {
          try {
            run(launch);
          } catch (const Fault& f) {
            failure = f;
          } catch (const Unsupported& e) {
            failure = Fault(Hazard::IllegalUse, e.what());
          }
        },
        true);
    if (failure) report_fault(context, *failure);
    if (grid.written != nullptr) {
      if (!launch.waited) grid.unfinished = launch.unfinished;  // the next one may start before they have ended
      if (state().streams.contains(stream)) stream->last = std::move(grid);
    }
  }

  // Between enqueueing and running (a graph launched later) memory may have been freed.
  void operator()(const CopyWork& copy) const {
    if (copy.width == 0 || copy.height == 0 || copy.depth == 0) return;
    const uint64_t from = span(copy.width, copy.height, copy.depth, copy.source_pitch, copy.source_slice);
    const uint64_t to = span(copy.width, copy.height, copy.depth, copy.destination_pitch, copy.destination_slice);
    if ((copy.source_owned && !is_live(copy.source, from)) ||
        (copy.destination_owned && !is_live(copy.destination, to))) {
      return report_fault(context, Fault(Hazard::Memory, "memory: a copy of memory that was freed"));
    }
    c.unlocked([&] { copy_bytes(copy); }, true);
  }

  void operator()(const SetWork& set) const {
    if (set.width == 0 || set.height == 0) return;
    if (!is_live(set.destination, span(set.width * set.element_bytes, set.height, 1, set.pitch, 0))) {
      return report_fault(context, Fault(Hazard::Memory, "memory: a fill of memory that was freed"));
    }
    c.unlocked([&] { fill(set); }, true);
  }

  void operator()(const HostWork& work) const {
    c.unlocked(
        [&] {
          HostFunctionScope scope;
          work.function(work.data);
        },
        false);
  }

  void operator()(const CallbackWork& work) const {
    const CUresult status = context.failure;
    c.unlocked(
        [&] {
          HostFunctionScope scope;
          work.function(work.stream, status, work.data);
        },
        false);
  }

  void operator()(const EventRecordWork& work) const {
    if (!state().events.contains(work.event)) return;
    work.event->time = std::chrono::steady_clock::now();
    work.event->capture.reset();
    work.event->dependencies.clear();
  }

  void operator()(const EventWaitWork&) const {}  // whatever was recorded has happened

  void operator()(const MemoryFreeWork& work) const {
    const Allocation* a = find_allocation(work.address);
    // Memory of a graph stays for its next launch.
    if (a != nullptr && a->address == work.address && a->kind != Allocation::Kind::Graph) release(work.address);
  }

  void operator()(const std::shared_ptr<GraphWork>& graph) const {
    for (const Work& step : graph->steps) execute(c, context, step, nullptr);
  }
};

}  // namespace

CUstream_st& live_stream(Call& c, CUstream handle) {
  CUctx_st& context = c.context();
  if (handle == nullptr) handle = null_stream_is_per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
  if (handle == CU_STREAM_LEGACY) {
    if (context.legacy == nullptr) {
      context.legacy = make_stream(context, CU_STREAM_DEFAULT, 0);
      context.legacy->legacy = true;
    }
    return *context.legacy;
  }
  if (handle == CU_STREAM_PER_THREAD) {
    CUstream& stream = context.per_thread[std::this_thread::get_id()];
    if (stream == nullptr) stream = make_stream(context, CU_STREAM_DEFAULT, 0);
    return *stream;
  }
  CUstream_st& stream = state().streams.get(handle);
  if (stream.context->failure_seen) fail(stream.context->failure, state().report);
  return stream;
}

void invalidate(Capture& capture) { capture.invalidated = true; }

void execute(Call& c, CUctx_st& context, const Work& work, CUstream_st* stream) {
  if (context.failure != CUDA_SUCCESS) {
    // Work behind failed work never runs; only callbacks learn of it.
    if (const auto* callback = std::get_if<CallbackWork>(&work)) Executor{c, context, stream}(*callback);
    return;
  }
  if (stream == nullptr) {
    forget_grids(context);
  } else if (!std::holds_alternative<KernelWork>(work)) {
    stream->last.reset();
  }
  std::visit(Executor{c, context, stream}, work);
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

void forbid_synchronisation_in_capture(CUctx_st& context) {
  bool forbidden = false;
  state().streams.each([&](CUstream_st& s) {
    if (s.context != &context || !capturing(s.capture)) return;
    forbidden = true;
    invalidate(*s.capture);
  });
  require(!forbidden, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a stream of the context is capturing");
}

void synchronising_call(Call& c) {
  CUctx_st& context = c.context();
  c.unlocked([] {}, true);  // what other threads have enqueued
  forget_grids(context);
  if (context.failure == CUDA_SUCCESS) return;
  context.failure_seen = true;
  fail(context.failure, state().report);
}

CUgraphNode submit(Call& c, CUstream_st& stream, Work work, CUgraphNodeType type) {
  if (!capturing(stream.capture)) {
    if (stream.legacy) legacy_stream_used(*stream.context);
    execute(c, *stream.context, work, &stream);
    return nullptr;
  }
  check_capture_alive(stream);
  CUgraphNode node = add_node(*stream.capture->graph, type, std::move(work), stream.dependencies);
  stream.dependencies = {node};
  return node;
}

namespace {

CUresult create_stream(const char* function, CUstream* result, unsigned flags, int priority) {
  return call(function, Call::Needs::HealthyContext, [&](Call& c) {
    require(result != nullptr);
    require((flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) == 0, CUDA_ERROR_INVALID_VALUE,
            "unknown stream flags");
    *result = make_stream(c.context(), flags, clamp_priority(priority));
  });
}

void record(Call& c, CUevent handle, CUstream stream_handle, unsigned flags) {
  CUevent_st& event = live_event(handle);
  CUstream_st& stream = live_stream(c, stream_handle);
  require((flags & ~static_cast<unsigned>(CU_EVENT_RECORD_EXTERNAL)) == 0);
  require(event.context == stream.context, CUDA_ERROR_INVALID_HANDLE, "event and stream belong to different contexts");
  if (capturing(stream.capture) && !(flags & CU_EVENT_RECORD_EXTERNAL)) {
    check_capture_alive(stream);
    event.capture = stream.capture;
    event.dependencies = stream.dependencies;
    event.time.reset();
    return;
  }
  require(capturing(stream.capture) || !(flags & CU_EVENT_RECORD_EXTERNAL), CUDA_ERROR_INVALID_VALUE,
          "an external record outside of a capture");
  submit(c, stream, EventRecordWork{handle}, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
}

void wait(Call& c, CUstream stream_handle, CUevent handle, unsigned flags) {
  CUstream_st& stream = live_stream(c, stream_handle);
  CUevent_st& event = live_event(handle);
  require((flags & ~static_cast<unsigned>(CU_EVENT_WAIT_EXTERNAL)) == 0);
  if (flags & CU_EVENT_WAIT_EXTERNAL) {
    require(capturing(stream.capture), CUDA_ERROR_INVALID_VALUE, "an external wait outside of a capture");
    submit(c, stream, EventWaitWork{handle}, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
    return;
  }
  if (capturing(event.capture)) {
    require(!event.capture->invalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    if (stream.legacy) {
      invalidate(*event.capture);
      fail(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    if (!capturing(stream.capture)) {
      stream.capture = event.capture;
      stream.dependencies = event.dependencies;
      return;
    }
    if (stream.capture != event.capture) {
      invalidate(*stream.capture);
      invalidate(*event.capture);
      fail(CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    check_capture_alive(stream);
    add_dependencies(stream.dependencies, event.dependencies);
    return;
  }
  if (capturing(stream.capture) && event.time) {
    invalidate(*stream.capture);
    fail(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "the event was recorded outside of the capture");
  }
}

// An event that was recorded into a capture has no completion to ask for.
void check_not_captured(CUevent_st& event) {
  if (event.capture == nullptr) return;
  if (capturing(event.capture)) invalidate(*event.capture);
  fail(CUDA_ERROR_CAPTURED_EVENT);
}

void forbid_on_capturing(CUstream_st& stream) {
  if (!capturing(stream.capture)) return;
  invalidate(*stream.capture);
  fail(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the stream is capturing");
}

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

// True when everything that streams of the capture did is followed by what its origin did last.
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

CUresult elapsed(float* milliseconds, CUevent start, CUevent end) {
  API(HealthyContext, {
    require(milliseconds != nullptr);
    CUevent_st& from = live_event(start);
    CUevent_st& to = live_event(end);
    check_not_captured(from);
    check_not_captured(to);
    require(!(from.flags & CU_EVENT_DISABLE_TIMING) && !(to.flags & CU_EVENT_DISABLE_TIMING), CUDA_ERROR_INVALID_HANDLE,
            "an event without timing");
    require(from.time && to.time, CUDA_ERROR_INVALID_HANDLE, "an event that was not recorded");
    synchronising_call(c);
    *milliseconds = std::chrono::duration<float, std::milli>(*to.time - *from.time).count();
  });
}

}  // namespace
}  // namespace sim::driver

using namespace sim::driver;

// ---- streams -------------------------------------------------------------------------------------

CUresult cuStreamCreate(CUstream* result, unsigned int flags) { return create_stream(__func__, result, flags, 0); }
CUresult cuStreamCreateWithPriority(CUstream* result, unsigned int flags, int priority) {
  return create_stream(__func__, result, flags, priority);
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  API(HealthyContext, {
    require(handle != nullptr && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD,
            CUDA_ERROR_INVALID_HANDLE);
    CUstream_st& stream = live_stream(c, handle);
    require(!stream.legacy, CUDA_ERROR_INVALID_HANDLE);
    if (capturing(stream.capture)) {
      invalidate(*stream.capture);
      if (stream.capture->origin == &stream) {
        std::shared_ptr<Capture> capture = stream.capture;
        CUgraph graph = capture->graph;
        capture->graph = nullptr;
        if (capture->owns_graph) destroy_graph(graph);
      }
    }
    state().streams.remove(handle);
  });
}
PLAIN_NAME(cuStreamDestroy, cuStreamDestroy_v2);

CUresult cuStreamQuery(CUstream handle) {
  API(HealthyContext, {
    forbid_on_capturing(live_stream(c, handle));
    synchronising_call(c);
  });
}

CUresult cuStreamSynchronize(CUstream handle) {
  API(HealthyContext, {
    CUstream_st& stream = live_stream(c, handle);
    forbid_on_capturing(stream);
    if (stream.legacy) legacy_stream_used(c.context());
    synchronising_call(c);
  });
}

CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  API(HealthyContext, {
    require(priority != nullptr);
    *priority = live_stream(c, handle).priority;
  });
}

CUresult cuStreamGetFlags(CUstream handle, unsigned int* flags) {
  API(HealthyContext, {
    require(flags != nullptr);
    *flags = live_stream(c, handle).flags;
  });
}

CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  API(HealthyContext, {
    require(id != nullptr);
    *id = live_stream(c, handle).id;
  });
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice* device) {
  API(HealthyContext, {
    require(device != nullptr);
    live_stream(c, handle);
    *device = 0;
  });
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  API(HealthyContext, {
    require(context != nullptr);
    *context = live_stream(c, handle).context;
  });
}

CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext* context, CUgreenCtx* green) {
  if (green != nullptr) *green = nullptr;
  return cuStreamGetCtx(handle, context);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  API(HealthyContext, { wait(c, stream, event, flags); });
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* data, unsigned int flags) {
  API(HealthyContext, {
    require(callback != nullptr && flags == 0);
    CUstream_st& s = live_stream(c, stream);
    forbid_on_capturing(s);
    submit(c, s, CallbackWork{callback, stream, data}, CU_GRAPH_NODE_TYPE_HOST);
  });
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  API(HealthyContext, {
    require(function != nullptr);
    submit(c, live_stream(c, stream), HostWork{function, data}, CU_GRAPH_NODE_TYPE_HOST);
  });
}

CUresult cuStreamGetAttribute(CUstream handle, CUstreamAttrID attribute, CUstreamAttrValue* value) {
  API(HealthyContext, {
    require(value != nullptr);
    CUstream_st& stream = live_stream(c, handle);
    auto it = stream.attributes.find(attribute);
    *value = it != stream.attributes.end() ? it->second : CUstreamAttrValue{};
    if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) value->priority = stream.priority;
  });
}

CUresult cuStreamSetAttribute(CUstream handle, CUstreamAttrID attribute, const CUstreamAttrValue* value) {
  API(HealthyContext, {
    require(value != nullptr);
    CUstream_st& stream = live_stream(c, handle);
    switch (attribute) {
      case CU_LAUNCH_ATTRIBUTE_PRIORITY:
        stream.priority = clamp_priority(value->priority);
        break;
      case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        stream.attributes[attribute] = *value;
        break;
      default:
        fail(CUDA_ERROR_INVALID_VALUE, "not an attribute of a stream");
    }
  });
}

CUresult cuStreamCopyAttributes(CUstream destination, CUstream source) {
  API(HealthyContext, {
    CUstream_st& from = live_stream(c, source);
    CUstream_st& to = live_stream(c, destination);
    to.attributes = from.attributes;
    to.priority = from.priority;
  });
}

// ---- capture -------------------------------------------------------------------------------------

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
  if (edges != nullptr) *edges = nullptr;  // all edges are plain ones
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
  API(Initialised, {
    require(mode != nullptr && *mode >= CU_STREAM_CAPTURE_MODE_GLOBAL && *mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
    std::swap(*mode, interaction_mode);
  });
}

// ---- events --------------------------------------------------------------------------------------

CUresult cuEventCreate(CUevent* result, unsigned int flags) {
  API(HealthyContext, {
    require(result != nullptr);
    constexpr unsigned kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    require((flags & ~kKnown) == 0, CUDA_ERROR_INVALID_VALUE, "unknown event flags");
    require(!(flags & CU_EVENT_INTERPROCESS), CUDA_ERROR_NOT_SUPPORTED, "events between processes");
    auto event = std::make_unique<CUevent_st>();
    event->context = &c.context();
    event->flags = flags;
    *result = state().events.add(std::move(event));
  });
}

CUresult cuEventDestroy_v2(CUevent event) {
  API(HealthyContext, {
    live_event(event);
    state().events.remove(event);
  });
}
PLAIN_NAME(cuEventDestroy, cuEventDestroy_v2);

CUresult cuEventRecord(CUevent event, CUstream stream) {
  API(HealthyContext, { record(c, event, stream, CU_EVENT_RECORD_DEFAULT); });
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
  API(HealthyContext, { record(c, event, stream, flags); });
}

CUresult cuEventQuery(CUevent event) {
  API(HealthyContext, {
    check_not_captured(live_event(event));
    forbid_unsafe_in_capture();
    synchronising_call(c);
  });
}

CUresult cuEventSynchronize(CUevent event) {
  API(HealthyContext, {
    check_not_captured(live_event(event));
    forbid_unsafe_in_capture();
    synchronising_call(c);
  });
}

CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(milliseconds, start, end);
}
CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(milliseconds, start, end);
}
