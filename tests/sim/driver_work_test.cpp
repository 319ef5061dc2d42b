// SPDX-License-Identifier: Apache-2.0
// What functions of streams, events, captures, modules, kernels and launches refuse, and what they answer when they do
// not: the CUresult that the CUDA driver API documents, and the line of the log.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/sim/refusals.h"

namespace sim_test {
namespace {

constexpr auto kInvalidHandle = CUDA_ERROR_INVALID_HANDLE;

TEST_F(SimRefusals, Streams) {
  CUstream stream = nullptr, urgent = nullptr;
  int number = 0;
  unsigned flags = 9;
  unsigned long long id = 0, other = 0;
  CUdevice device = 5;
  CUcontext owner = nullptr;
  REFUSED(kInvalidValue, "", cuStreamCreate, nullptr, 0u);
  REFUSED(kInvalidValue, "unknown stream flags", cuStreamCreate, &stream, 2u);
  REFUSED(kInvalidValue, "", cuStreamCreateWithPriority, nullptr, 0u, 0);
  REFUSED(kInvalidValue, "unknown stream flags", cuStreamCreateWithPriority, &stream, 4u, 0);
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  OK(CU(cuStreamGetFlags)(stream, &flags));
  EXPECT_EQ(flags, unsigned{CU_STREAM_NON_BLOCKING});
  OK(CU(cuStreamGetPriority)(stream, &number));
  EXPECT_EQ(number, 0);
  // A priority outside of the range is taken for the nearest.
  for (const auto& [asked, given] : {std::pair{0, 0}, {-1, -1}, {-5, -5}, {-6, -5}, {1, 0}, {100, 0}}) {
    OK(CU(cuStreamCreateWithPriority)(&urgent, CU_STREAM_DEFAULT, asked));
    OK(CU(cuStreamGetPriority)(urgent, &number));
    EXPECT_EQ(number, given) << asked;
  }
  OK(CU(cuStreamGetFlags)(urgent, &flags));
  EXPECT_EQ(flags, unsigned{CU_STREAM_DEFAULT});
  OK(CU(cuStreamGetId)(stream, &id));
  OK(CU(cuStreamGetId)(urgent, &other));
  EXPECT_NE(id, other);
  OK(CU(cuStreamGetDevice)(stream, &device));
  EXPECT_EQ(device, 0);
  CUgreenCtx green = reinterpret_cast<CUgreenCtx>(&green);
  const auto context_of = symbol<CUresult (*)(CUstream, CUcontext*, CUgreenCtx*)>("cuStreamGetCtx_v2");
  OK(context_of(stream, &owner, &green));
  EXPECT_EQ(owner, context);
  EXPECT_EQ(green, nullptr);
  OK(context_of(stream, &owner, nullptr));
  const auto first_context_of = symbol<CUresult (*)(CUstream, CUcontext*)>("cuStreamGetCtx");
  refused(kInvalidValue, "", "cuStreamGetCtx", first_context_of, stream, nullptr);
  refused(kInvalidHandle, "", "cuStreamGetCtx", first_context_of, stale<CUstream>(), &owner);
  const auto bad = stale<CUstream>();
  REFUSED(kInvalidValue, "", cuStreamGetPriority, stream, nullptr);
  REFUSED(kInvalidHandle, "", cuStreamGetPriority, bad, &number);
  REFUSED(kInvalidValue, "", cuStreamGetFlags, stream, nullptr);
  REFUSED(kInvalidHandle, "", cuStreamGetFlags, bad, &flags);
  REFUSED(kInvalidValue, "", cuStreamGetId, stream, nullptr);
  REFUSED(kInvalidHandle, "", cuStreamGetId, bad, &id);
  REFUSED(kInvalidValue, "", cuStreamGetDevice, stream, nullptr);
  REFUSED(kInvalidHandle, "", cuStreamGetDevice, bad, &device);
  REFUSED(kInvalidHandle, "", cuStreamQuery, bad);
  REFUSED(kInvalidHandle, "", cuStreamSynchronize, bad);
  REFUSED(kInvalidHandle, "", cuStreamDestroy, bad);
  REFUSED(kInvalidHandle, "", cuStreamDestroy, nullptr);
  REFUSED(kInvalidHandle, "", cuStreamDestroy, CU_STREAM_LEGACY);
  REFUSED(kInvalidHandle, "", cuStreamDestroy, CU_STREAM_PER_THREAD);

  // The legacy stream is one of the context, the per-thread ones are one a thread.
  unsigned long long legacy = 0, null_stream = 0, mine = 0, again = 0, theirs = 0;
  OK(CU(cuStreamGetId)(CU_STREAM_LEGACY, &legacy));
  OK(CU(cuStreamGetId)(nullptr, &null_stream));
  EXPECT_EQ(legacy, null_stream);
  OK(CU(cuStreamGetId)(CU_STREAM_PER_THREAD, &mine));
  OK(CU(cuStreamGetId)(CU_STREAM_PER_THREAD, &again));
  EXPECT_EQ(mine, again);
  EXPECT_NE(mine, legacy);
  OK(symbol<decltype(CU(cuStreamGetId))>("cuStreamGetId_ptsz")(nullptr, &again));
  EXPECT_EQ(mine, again);
  OK(CU(cuStreamGetId)(nullptr, &again));
  EXPECT_EQ(again, legacy) << "a per-thread call changes nothing for the next";
  std::thread([&] {
    CU(cuCtxSetCurrent)(context);
    CU(cuStreamGetId)(CU_STREAM_PER_THREAD, &theirs);
  }).join();
  EXPECT_NE(theirs, 0u);
  EXPECT_NE(theirs, mine);

  CUstreamAttrValue value{}, got{};
  value.priority = -9;
  OK(CU(cuStreamSetAttribute)(stream, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
  OK(CU(cuStreamGetAttribute)(stream, CU_LAUNCH_ATTRIBUTE_PRIORITY, &got));
  EXPECT_EQ(got.priority, -5);
  OK(CU(cuStreamGetPriority)(stream, &number));
  EXPECT_EQ(number, -5);
  for (auto attribute : {CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
                         CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW}) {
    std::memset(&got, 0xff, sizeof got);
    OK(CU(cuStreamGetAttribute)(urgent, attribute, &got));
    EXPECT_EQ(got.syncPolicy, 0u) << "not set yet";
    value = {};
    value.syncPolicy = CU_SYNC_POLICY_YIELD;
    OK(CU(cuStreamSetAttribute)(urgent, attribute, &value));
    OK(CU(cuStreamGetAttribute)(urgent, attribute, &got));
    EXPECT_EQ(got.syncPolicy, CU_SYNC_POLICY_YIELD);
  }
  OK(CU(cuStreamGetAttribute)(stream, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, &got));
  EXPECT_EQ(got.syncPolicy, 0u);
  OK(CU(cuStreamCopyAttributes)(stream, urgent));
  OK(CU(cuStreamGetAttribute)(stream, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, &got));
  EXPECT_EQ(got.syncPolicy, CU_SYNC_POLICY_YIELD);
  OK(CU(cuStreamGetPriority)(stream, &number));
  EXPECT_EQ(number, 0);
  REFUSED(kInvalidValue, "", cuStreamGetAttribute, stream, CU_LAUNCH_ATTRIBUTE_PRIORITY, nullptr);
  REFUSED(kInvalidHandle, "", cuStreamGetAttribute, bad, CU_LAUNCH_ATTRIBUTE_PRIORITY, &got);
  REFUSED(kInvalidValue, "", cuStreamSetAttribute, stream, CU_LAUNCH_ATTRIBUTE_PRIORITY, nullptr);
  REFUSED(kInvalidHandle, "", cuStreamSetAttribute, bad, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value);
  REFUSED(kInvalidValue, "not an attribute of a stream", cuStreamSetAttribute, stream, CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
          &value);
  REFUSED(kInvalidHandle, "", cuStreamCopyAttributes, bad, stream);
  REFUSED(kInvalidHandle, "", cuStreamCopyAttributes, stream, bad);

  const CUhostFn host = [](void*) {};
  const CUstreamCallback callback = [](CUstream, CUresult, void*) {};
  REFUSED(kInvalidValue, "", cuLaunchHostFunc, stream, nullptr, nullptr);
  REFUSED(kInvalidHandle, "", cuLaunchHostFunc, bad, host, nullptr);
  REFUSED(kInvalidValue, "", cuStreamAddCallback, stream, nullptr, nullptr, 0u);
  REFUSED(kInvalidValue, "", cuStreamAddCallback, stream, callback, nullptr, 1u);
  REFUSED(kInvalidHandle, "", cuStreamAddCallback, bad, callback, nullptr, 0u);
  static std::pair<CUstream, void*> called;
  OK(CU(cuStreamAddCallback)(
      stream,
      [](CUstream s, CUresult, void* data) {
        called = {s, data};
      },
      &called, 0));
  EXPECT_EQ(called, (std::pair<CUstream, void*>{stream, &called}));
  // A host function may not call the driver, and the thread may again when it is over.
  static CUresult inside[2];
  OK(CU(cuLaunchHostFunc)(
      stream, [](void*) { inside[0] = CU(cuCtxSynchronize)(), inside[1] = CU(cuDeviceGetCount)(nullptr); }, nullptr));
  EXPECT_EQ(inside[0], CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(inside[1], CUDA_ERROR_NOT_PERMITTED);
  OK(CU(cuCtxSynchronize)());
}

TEST_F(SimRefusals, Events) {
  CUevent event = nullptr, timed = nullptr;
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  REFUSED(kInvalidValue, "", cuEventCreate, nullptr, 0u);
  REFUSED(kInvalidValue, "unknown event flags", cuEventCreate, &event, 8u);
  REFUSED(CUDA_ERROR_NOT_SUPPORTED, "events between processes", cuEventCreate, &event,
          unsigned{CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING});
  OK(CU(cuEventCreate)(&event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING));
  OK(CU(cuEventCreate)(&timed, CU_EVENT_DEFAULT));
  const auto bad = stale<CUevent>();
  REFUSED(kInvalidHandle, "", cuEventDestroy, bad);
  REFUSED(kInvalidHandle, "", cuEventRecord, bad, stream);
  REFUSED(kInvalidHandle, "", cuEventRecord, event, stale<CUstream>());
  REFUSED(kInvalidValue, "", cuEventRecordWithFlags, event, stream, 2u);
  REFUSED(kInvalidValue, "an external record outside of a capture", cuEventRecordWithFlags, event, stream,
          unsigned{CU_EVENT_RECORD_EXTERNAL});
  REFUSED(kInvalidHandle, "", cuEventQuery, bad);
  REFUSED(kInvalidHandle, "", cuEventSynchronize, bad);
  REFUSED(kInvalidHandle, "", cuStreamWaitEvent, stream, bad, 0u);
  REFUSED(kInvalidHandle, "", cuStreamWaitEvent, stale<CUstream>(), event, 0u);
  REFUSED(kInvalidValue, "", cuStreamWaitEvent, stream, event, 2u);
  REFUSED(kInvalidValue, "an external wait outside of a capture", cuStreamWaitEvent, stream, event,
          unsigned{CU_EVENT_WAIT_EXTERNAL});
  CUcontext second = create();
  CUstream foreign = nullptr;
  OK(CU(cuStreamCreate)(&foreign, 0));
  REFUSED(kInvalidHandle, "event and stream belong to different contexts", cuEventRecord, event, foreign);
  OK(CU(cuCtxDestroy)(second));
  float ms = -1;
  for (const char* name : {"cuEventElapsedTime", "cuEventElapsedTime_v2"}) {
    const auto elapsed = symbol<CUresult (*)(float*, CUevent, CUevent)>(name);
    OK(CU(cuEventDestroy)(timed));
    OK(CU(cuEventCreate)(&timed, CU_EVENT_DEFAULT));
    CUevent later = nullptr;
    OK(CU(cuEventCreate)(&later, CU_EVENT_DEFAULT));
    refused(kInvalidValue, "", name, elapsed, nullptr, timed, timed);
    refused(kInvalidHandle, "", name, elapsed, &ms, bad, timed);
    refused(kInvalidHandle, "", name, elapsed, &ms, timed, bad);
    refused(kInvalidHandle, "an event without timing", name, elapsed, &ms, event, timed);
    refused(kInvalidHandle, "an event without timing", name, elapsed, &ms, timed, event);
    refused(kInvalidHandle, "an event that was not recorded", name, elapsed, &ms, timed, timed);
    OK(CU(cuEventRecord)(timed, stream));
    refused(kInvalidHandle, "an event that was not recorded", name, elapsed, &ms, timed, later);
    refused(kInvalidHandle, "an event that was not recorded", name, elapsed, &ms, later, timed);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    OK(CU(cuEventRecordWithFlags)(later, stream, CU_EVENT_RECORD_DEFAULT));
    OK(elapsed(&ms, timed, later));
    EXPECT_GE(ms, 19.0f) << "milliseconds";
    OK(elapsed(&ms, later, timed));
    EXPECT_LE(ms, -19.0f);
  }
  OK(CU(cuEventSynchronize)(event)) << "an event without a record is complete";
  OK(CU(cuEventQuery)(event));
}

TEST_F(SimRefusals, Captures) {
  CUstream stream = nullptr, blocking = nullptr, side = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  OK(CU(cuStreamCreate)(&side, CU_STREAM_NON_BLOCKING));
  OK(CU(cuStreamCreate)(&blocking, CU_STREAM_DEFAULT));
  CUdeviceptr data = upload(iota(16));
  const auto bad = stale<CUstream>();
  CUgraph graph = nullptr;
  CUstreamCaptureStatus status{};
  cuuint64_t id = 0;
  CUevent event = nullptr;
  OK(CU(cuEventCreate)(&event, CU_EVENT_DEFAULT));
  const auto begin = [&](CUstream s, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    EXPECT_EQ(CUDA_SUCCESS, CU(cuStreamBeginCapture)(s, mode));
  };
  const auto end = [&](CUstream s, CUresult result) { EXPECT_EQ(result, CU(cuStreamEndCapture)(s, &graph)); };
  for (int mode : {-1, 3})
    REFUSED(kInvalidValue, "", cuStreamBeginCapture, stream, static_cast<CUstreamCaptureMode>(mode));
  REFUSED(kInvalidHandle, "", cuStreamBeginCapture, bad, CU_STREAM_CAPTURE_MODE_GLOBAL);
  for (CUstream legacy : {CUstream{nullptr}, CU_STREAM_LEGACY})
    REFUSED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the legacy stream cannot capture", cuStreamBeginCapture, legacy,
            CU_STREAM_CAPTURE_MODE_GLOBAL);
  REFUSED(CUDA_ERROR_ILLEGAL_STATE, "the stream is not capturing", cuStreamEndCapture, stream, &graph);
  REFUSED(kInvalidValue, "", cuStreamEndCapture, stream, nullptr);
  REFUSED(kInvalidHandle, "", cuStreamEndCapture, bad, &graph);
  REFUSED(kInvalidValue, "", cuStreamIsCapturing, stream, nullptr);
  REFUSED(kInvalidHandle, "", cuStreamIsCapturing, bad, &status);
  status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  OK(CU(cuStreamIsCapturing)(stream, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  REFUSED(CUDA_ERROR_ILLEGAL_STATE, "the stream is not capturing", cuStreamUpdateCaptureDependencies, stream, nullptr,
          nullptr, size_t{0}, 0u);

  // What a capture tells of itself. The first form of beginning one is a global capture.
  OK(symbol<CUresult (*)(CUstream)>("cuStreamBeginCapture")(stream));
  REFUSED(CUDA_ERROR_ILLEGAL_STATE, "the stream is capturing already", cuStreamBeginCapture, stream,
          CU_STREAM_CAPTURE_MODE_GLOBAL);
  OK(CU(cuMemsetD32Async)(data, 1, 16, stream));
  OK(CU(cuMemsetD32Async)(data, 2, 16, stream));
  CUgraph live = nullptr;
  const CUgraphNode* dependencies = nullptr;
  const CUgraphEdgeData* edges = reinterpret_cast<const CUgraphEdgeData*>(&id);
  size_t count = 9;
  OK(CU(cuStreamGetCaptureInfo)(stream, &status, &id, &live, &dependencies, &edges, &count));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(edges, nullptr);
  EXPECT_EQ(count, 1u);
  const CUgraphNode last = dependencies[0];
  cuuint64_t same = 0;
  OK(symbol<CUresult (*)(CUstream, CUstreamCaptureStatus*, cuuint64_t*)>("cuStreamGetCaptureInfo")(stream, &status,
                                                                                                   &same));
  EXPECT_EQ(same, id);
  OK((symbol<CUresult (*)(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*, const CUgraphNode**, size_t*)>(
      "cuStreamGetCaptureInfo_v2")(stream, &status, nullptr, nullptr, nullptr, nullptr)));
  size_t before = 9;
  OK(CU(cuGraphNodeGetDependencies)(last, nullptr, nullptr, &before));
  EXPECT_EQ(before, 1u) << "the second fill follows the first";

  // The nodes that the next one follows can be set, and more can be added.
  CUgraphNode first = nullptr;
  before = 1;
  OK(CU(cuGraphNodeGetDependencies)(last, &first, nullptr, &before));
  CUgraphNode both[] = {first, last};
  using Update = CUresult (*)(CUstream, CUgraphNode*, size_t, unsigned);
  const auto old_update = symbol<Update>("cuStreamUpdateCaptureDependencies");
  OK(old_update(stream, &first, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  OK(CU(cuStreamGetCaptureInfo)(stream, &status, nullptr, nullptr, &dependencies, nullptr, &count));
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(dependencies[0], first);
  OK(CU(cuStreamUpdateCaptureDependencies)(stream, both, nullptr, 2, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
  OK(CU(cuStreamGetCaptureInfo)(stream, &status, nullptr, nullptr, &dependencies, nullptr, &count));
  ASSERT_EQ(count, 2u) << "each is there once";
  EXPECT_EQ(dependencies[1], last);
  REFUSED(kInvalidValue, "", cuStreamUpdateCaptureDependencies, stream, both, nullptr, size_t{2}, 2u);
  REFUSED(kInvalidValue, "", cuStreamUpdateCaptureDependencies, stream, nullptr, nullptr, size_t{1}, 0u);
  REFUSED(kInvalidHandle, "", cuStreamUpdateCaptureDependencies, bad, both, nullptr, size_t{2}, 0u);
  CUgraph foreign = nullptr;
  CUgraphNode stranger = nullptr;
  OK(CU(cuGraphCreate)(&foreign, 0));
  OK(CU(cuGraphAddEmptyNode)(&stranger, foreign, nullptr, 0));
  REFUSED(kInvalidValue, "", cuStreamUpdateCaptureDependencies, stream, &stranger, nullptr, size_t{1}, 0u);
  CUgraphNode nobody = nullptr;
  REFUSED(kInvalidValue, "", cuStreamUpdateCaptureDependencies, stream, &nobody, nullptr, size_t{1}, 0u);
  end(stream, CUDA_SUCCESS);
  EXPECT_EQ(graph, live);

  // A capture into a graph of the program's own, behind nodes of it.
  REFUSED(kInvalidHandle, "", cuStreamBeginCaptureToGraph, stream, stale<CUgraph>(), nullptr, nullptr, size_t{0},
          CU_STREAM_CAPTURE_MODE_GLOBAL);
  REFUSED(kInvalidValue, "", cuStreamBeginCaptureToGraph, stream, graph, nullptr, nullptr, size_t{1},
          CU_STREAM_CAPTURE_MODE_GLOBAL);
  REFUSED(kInvalidValue, "", cuStreamBeginCaptureToGraph, stream, graph, &stranger, nullptr, size_t{1},
          CU_STREAM_CAPTURE_MODE_GLOBAL);
  REFUSED(kInvalidValue, "", cuStreamBeginCaptureToGraph, stream, graph, &nobody, nullptr, size_t{1},
          CU_STREAM_CAPTURE_MODE_GLOBAL);
  OK(CU(cuStreamBeginCaptureToGraph)(stream, foreign, &stranger, nullptr, 1, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(CU(cuMemsetD32Async)(data, 7, 16, stream));
  end(stream, CUDA_SUCCESS);
  EXPECT_EQ(graph, foreign);
  size_t nodes = 0, edge_count = 0;
  OK(CU(cuGraphGetNodes)(foreign, nullptr, &nodes));
  OK(CU(cuGraphGetEdges)(foreign, nullptr, nullptr, nullptr, &edge_count));
  EXPECT_EQ(nodes, 2u);
  EXPECT_EQ(edge_count, 1u);
  OK(CU(cuStreamBeginCaptureToGraph)(stream, foreign, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CU(cuStreamQuery)(stream));
  end(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(CU(cuGraphGetNodes)(foreign, nullptr, &nodes)) << "a failed capture leaves the program's graph";

  // Each call that a capture forbids invalidates it, says so, and leaves nothing behind.
  const char* kUnsafe = "a call that is unsafe while a stream captures";
  CUdeviceptr p = 0;
  void* host = nullptr;
  size_t pitch = 0;
  uint32_t word = 0;
  using Do = std::function<void()>;
  const Do unsafe[] = {
      [&] { REFUSED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, kUnsafe, cuMemAlloc, &p, size_t{4}); },
      [&] { REFUSED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, kUnsafe, cuMemFree, data); },
      [&] { REFUSED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, kUnsafe, cuMemAllocHost, &host, size_t{4}); },
      [&] { REFUSED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, kUnsafe, cuMemFreeHost, &word); },
      [&] {
        REFUSED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, kUnsafe, cuMemAllocPitch, &p, &pitch, size_t{4}, size_t{4}, 4u);
      },
      [&] { REFUSED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, kUnsafe, cuMemAllocManaged, &p, size_t{4}, 1u); },
      [&] { REFUSED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, kUnsafe, cuMemcpyDtoH, &word, data, size_t{4}); },
      [&] { REFUSED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, kUnsafe, cuEventQuery, event); },
      [&] { REFUSED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, kUnsafe, cuEventSynchronize, event); },
      [&] { REFUSED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a stream of the context is capturing", cuCtxSynchronize); },
      [&] { REFUSED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the stream is capturing", cuStreamSynchronize, stream); },
      [&] { REFUSED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the stream is capturing", cuStreamQuery, stream); },
      [&] {
        const CUstreamCallback callback = [](CUstream, CUresult, void*) {};
        REFUSED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the stream is capturing", cuStreamAddCallback, stream, callback,
                nullptr, 0u);
      },
  };
  for (const Do& call : unsafe) {
    begin(stream);
    call();
    OK(CU(cuStreamIsCapturing)(stream, &status));
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    id = 77;
    OK(CU(cuStreamGetCaptureInfo)(stream, &status, &id, nullptr, nullptr, nullptr, nullptr));
    EXPECT_EQ(id, 77u) << "nothing is told of an invalid capture";
    REFUSED(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "", cuMemsetD32Async, data, 1u, size_t{1}, stream);
    REFUSED(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "", cuEventRecord, event, stream);
    REFUSED(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "", cuStreamUpdateCaptureDependencies, stream, nullptr, nullptr,
            size_t{0}, 0u);
    end(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(graph, nullptr);
    OK(CU(cuStreamIsCapturing)(stream, &status));
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
    OK(CU(cuMemAlloc)(&p, 4)) << "the capture is over";
    OK(CU(cuMemFree)(p));
  }
  // Which captures forbid an unsafe call to whom: by the mode of the capture and that of the calling thread.
  const auto G = CU_STREAM_CAPTURE_MODE_GLOBAL, T = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
             R = CU_STREAM_CAPTURE_MODE_RELAXED;
  const struct {
    CUstreamCaptureMode capture, thread;
    bool own, forbidden;
  } modes[] = {{G, G, true, true},   {G, G, false, true},  {G, T, true, true},  {G, T, false, false},
               {G, R, true, false},  {G, R, false, false}, {T, G, true, true},  {T, G, false, false},
               {T, T, true, true},   {T, T, false, false}, {T, R, true, false}, {R, G, true, false},
               {R, G, false, false}, {R, T, true, false},  {R, R, true, false}};
  for (const auto& [capture, thread, own, forbidden] : modes) {
    begin(stream, capture);
    CUresult answer = CUDA_ERROR_UNKNOWN;
    const auto ask = [&, mode = thread] {
      CU(cuCtxSetCurrent)(context);
      CUstreamCaptureMode swapped = mode;
      EXPECT_EQ(CUDA_SUCCESS, CU(cuThreadExchangeStreamCaptureMode)(&swapped));
      EXPECT_EQ(swapped, G) << "a thread begins with global";
      CUdeviceptr memory = 0;
      answer = CU(cuMemAlloc)(&memory, 4);
      EXPECT_EQ(CUDA_SUCCESS, CU(cuThreadExchangeStreamCaptureMode)(&swapped));
      EXPECT_EQ(swapped, mode);
    };
    if (own) {
      ask();
    } else {
      std::thread(ask).join();
    }
    EXPECT_EQ(answer, forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS)
        << capture << ' ' << thread << ' ' << own;
    end(stream, forbidden ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
  }
  REFUSED(kInvalidValue, "", cuThreadExchangeStreamCaptureMode, nullptr);
  for (int wrong : {-1, 3}) {
    auto mode = static_cast<CUstreamCaptureMode>(wrong);
    REFUSED(kInvalidValue, "", cuThreadExchangeStreamCaptureMode, &mode);
  }
  // A relaxed capture may be ended by any thread, others by the one that began them.
  for (const auto& [mode, result] : {std::pair{R, CUDA_SUCCESS}, {G, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD}}) {
    begin(stream, mode);
    CUresult answer = CUDA_ERROR_UNKNOWN;
    std::thread([&] {
      CU(cuCtxSetCurrent)(context);
      answer = CU(cuStreamEndCapture)(stream, &graph);
    }).join();
    EXPECT_EQ(answer, result);
    if (result != CUDA_SUCCESS) end(stream, CUDA_SUCCESS);
  }

  // The legacy stream would wait for a capturing blocking stream, not for a non-blocking one.
  begin(blocking);
  REFUSED(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "", cuStreamIsCapturing, nullptr, &status);
  REFUSED(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "", cuMemsetD8, data, static_cast<unsigned char>(1), size_t{1});
  end(blocking, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  for (int form = 0; form < 3; ++form) {
    begin(blocking);
    CUdeviceptr q = 0;
    const CUresult answer = form == 0   ? CU(cuStreamSynchronize)(nullptr)
                            : form == 1 ? CU(cuMemAllocAsync)(&q, 4, side)
                                        : CU(cuMemcpyHtoD)(data, &word, 4);
    EXPECT_EQ(answer, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) << form;
    end(blocking, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  begin(stream, R);
  OK(CU(cuStreamIsCapturing)(nullptr, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  OK(CU(cuMemsetD8)(data, 1, 1));
  OK(CU(cuStreamSynchronize)(side));
  end(stream, CUDA_SUCCESS);

  // Events: into another stream, from outside, external ones, and the legacy stream.
  begin(stream);
  OK(CU(cuEventRecord)(event, stream));
  REFUSED(CUDA_ERROR_CAPTURED_EVENT, "", cuEventSynchronize, event);
  end(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  float ms = 0;
  CUevent plain = nullptr;
  OK(CU(cuEventCreate)(&plain, CU_EVENT_DEFAULT));
  OK(CU(cuEventRecord)(plain, side));
  REFUSED(CUDA_ERROR_CAPTURED_EVENT, "", cuEventElapsedTime, &ms, event, plain);
  REFUSED(CUDA_ERROR_CAPTURED_EVENT, "", cuEventElapsedTime, &ms, plain, event);
  OK(CU(cuEventDestroy)(plain));
  begin(stream);
  OK(CU(cuEventRecord)(event, stream));
  REFUSED(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "", cuStreamWaitEvent, nullptr, event, 0u);
  REFUSED(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "", cuStreamWaitEvent, side, event, 0u);
  end(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CUevent outside = nullptr;
  OK(CU(cuEventCreate)(&outside, CU_EVENT_DEFAULT));
  begin(stream);
  OK(CU(cuStreamWaitEvent)(stream, outside, 0)) << "it was never recorded";
  OK(CU(cuEventRecordWithFlags)(outside, stream, CU_EVENT_RECORD_EXTERNAL));
  OK(CU(cuStreamWaitEvent)(stream, outside, CU_EVENT_WAIT_EXTERNAL));
  end(stream, CUDA_SUCCESS);
  OK(CU(cuGraphGetNodes)(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 2u);
  begin(stream);
  OK(CU(cuEventRecord)(outside, side));
  REFUSED(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "the event was recorded outside of the capture", cuStreamWaitEvent,
          stream, outside, 0u);
  end(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  // A stream that is destroyed takes its capture along. One that only takes part makes it invalid.
  begin(stream);
  OK(CU(cuEventRecord)(event, stream));
  OK(CU(cuStreamWaitEvent)(side, event, 0));
  OK(CU(cuStreamDestroy)(side));
  end(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  begin(stream);
  OK(CU(cuStreamDestroy)(stream));
  OK(CU(cuMemAlloc)(&p, 4)) << "no capture is left";
  OK(CU(cuStreamDestroy)(blocking));
}

// Memory that is allocated in a capture lives as long as a graph of it does.
TEST_F(SimRefusals, MemoryOfGraphs) {
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  size_t before = 0, now = 0, total = 0;
  OK(CU(cuMemGetInfo)(&before, &total));
  CUgraph graph = nullptr, clone = nullptr;
  CUdeviceptr p = 0;
  OK(CU(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(CU(cuMemAllocAsync)(&p, 4096, stream));
  OK(CU(cuMemsetD32Async)(p, 5, 1024, stream));
  OK(CU(cuMemFreeAsync)(p, stream));
  OK(CU(cuStreamEndCapture)(stream, &graph));
  CUgraphExec exec = nullptr;
  OK(CU(cuGraphInstantiate)(&exec, graph, 0));
  OK(CU(cuGraphClone)(&clone, graph));
  for (int i = 0; i < 2; ++i) OK(CU(cuGraphLaunch)(exec, stream));
  EXPECT_EQ(download(p, 1)[0], 5u) << "it stays for the next launch";
  REFUSED(kInvalidValue, "not the start of a live device allocation", cuMemFree, p);
  OK(CU(cuGraphDestroy)(graph));
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuMemGetInfo)(&now, &total));
  EXPECT_EQ(before - now, 4096u) << "the clone holds it";
  OK(CU(cuGraphDestroy)(clone));
  OK(CU(cuMemGetInfo)(&now, &total));
  EXPECT_EQ(before, now);
}

TEST_F(SimRefusals, Functions) {
  CUmodule module = load(), owner = nullptr;
  CUfunction f = function("in_pairs"), plain = function("scale_add"), got = nullptr;
  const auto bad = stale<CUfunction>();
  const char* kNotLive = "not a live function";
  const char* name = nullptr;
  int value = 0;
  size_t offset = 9, size = 9;
  CUfunctionLoadingState loaded{};
  REFUSED(kInvalidValue, "", cuFuncGetAttribute, nullptr, CU_FUNC_ATTRIBUTE_NUM_REGS, f);
  REFUSED(kInvalidHandle, kNotLive, cuFuncGetAttribute, &value, CU_FUNC_ATTRIBUTE_NUM_REGS, bad);
  REFUSED(kInvalidValue, "unknown function attribute", cuFuncGetAttribute, &value, CU_FUNC_ATTRIBUTE_MAX, f);
  REFUSED(kInvalidHandle, kNotLive, cuFuncSetAttribute, bad, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 1);
  REFUSED(kInvalidValue, "an attribute that cannot be set", cuFuncSetAttribute, f, CU_FUNC_ATTRIBUTE_NUM_REGS, 1);
  REFUSED(kInvalidValue, "", cuFuncGetModule, nullptr, f);
  REFUSED(kInvalidHandle, kNotLive, cuFuncGetModule, &owner, bad);
  REFUSED(kInvalidValue, "", cuFuncGetName, nullptr, f);
  REFUSED(kInvalidHandle, kNotLive, cuFuncGetName, &name, bad);
  REFUSED(kInvalidValue, "", cuFuncGetParamInfo, plain, size_t{0}, nullptr, &size);
  REFUSED(kInvalidValue, "there is no such parameter", cuFuncGetParamInfo, plain, size_t{2}, &offset, &size);
  REFUSED(kInvalidHandle, kNotLive, cuFuncGetParamInfo, bad, size_t{0}, &offset, &size);
  REFUSED(kInvalidValue, "", cuFuncIsLoaded, nullptr, f);
  REFUSED(kInvalidHandle, kNotLive, cuFuncIsLoaded, &loaded, bad);
  REFUSED(kInvalidHandle, kNotLive, cuFuncLoad, bad);
  OK(CU(cuFuncLoad)(f));
  OK(CU(cuFuncIsLoaded)(&loaded, f));
  EXPECT_EQ(loaded, CU_FUNCTION_LOADING_STATE_LOADED);
  OK(CU(cuFuncGetModule)(&owner, f));
  EXPECT_EQ(owner, module_);
  OK(CU(cuFuncGetParamInfo)(plain, 0, &offset, nullptr));
  EXPECT_EQ(offset, 0u);

  // What can be set is kept, within its bounds.
  const auto get = [&](CUfunction_attribute attribute, CUfunction of) {
    int answer = -99;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuFuncGetAttribute)(&answer, attribute, of));
    return answer;
  };
  constexpr auto kDynamic = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  constexpr auto kCarveout = CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
  EXPECT_EQ(get(kDynamic, plain), 49152);
  EXPECT_EQ(get(kCarveout, plain), -1);
  REFUSED(kInvalidValue, "232449 bytes of dynamic beside 0 bytes of static shared memory; a block can have 232448",
          cuFuncSetAttribute, plain, kDynamic, 232449);
  EXPECT_EQ(kInvalidValue, CU(cuFuncSetAttribute)(plain, kDynamic, -1));
  for (int wrong : {-2, 101}) REFUSED(kInvalidValue, "", cuFuncSetAttribute, plain, kCarveout, wrong);
  struct Setting {
    CUfunction_attribute attribute;
    int value;
  };
  for (const auto& [attribute, set] :
       {Setting{kDynamic, 0}, Setting{kDynamic, 232448}, Setting{kCarveout, -1}, Setting{kCarveout, 100},
        Setting{kCarveout, 0}, Setting{CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1},
        Setting{CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 0},
        Setting{CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE, 2},
        Setting{CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 2}, Setting{CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT, 3},
        Setting{CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH, 16}}) {
    OK(CU(cuFuncSetAttribute)(plain, attribute, set));
    EXPECT_EQ(get(attribute, plain), set) << attribute;
  }
  EXPECT_EQ(get(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, plain), 2);
  EXPECT_EQ(get(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT, plain), 3);
  for (auto dimension : {CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
                         CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH}) {
    for (int wrong : {-1, 17}) REFUSED(kInvalidValue, "", cuFuncSetAttribute, plain, dimension, wrong);
    REFUSED(CUDA_ERROR_NOT_PERMITTED, "the kernel fixes its cluster size", cuFuncSetAttribute, f, dimension, 2);
    EXPECT_EQ(get(dimension, f), dimension == CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH ? 2 : 1);
    OK(CU(cuFuncSetAttribute)(plain, dimension, 0));
  }
  const std::string text = R"(.version 8.7
.target sm_90a
.address_size 64
.const .b32 c[5];
.const .b64 d = 1;
.global .b32 g[100];
.entry sized(.param .b8 a, .param .align 16 .b8 b[24], .param .b16 e) .maxntid 40, 2, 2 .maxnreg 24
{
  .shared .align 16 .b8 s[100];
  .local .b8 l[40];
  st.shared.b8 [s], 1;
  st.local.b8 [l], 1;
  ret;
}
.entry exact() .reqntid 8, 4, 2 { ret; }
.entry clustered() .reqntid 32 .explicitcluster { ret; }
.entry ranked() .maxclusterrank 2 { ret; }
)";
  CUmodule sized = nullptr;
  OK(CU(cuModuleLoadData)(&sized, text.c_str()));
  const auto of = [&](const char* kernel) {
    EXPECT_EQ(CUDA_SUCCESS, CU(cuModuleGetFunction)(&got, sized, kernel));
    return got;
  };
  const CUfunction s = of("sized");
  EXPECT_EQ(get(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, s), 160);
  EXPECT_EQ(get(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, s), 100);
  EXPECT_EQ(get(CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, s), 28);
  EXPECT_GE(get(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, s), 40);
  EXPECT_GT(get(CU_FUNC_ATTRIBUTE_NUM_REGS, s), 0);
  EXPECT_LE(get(CU_FUNC_ATTRIBUTE_NUM_REGS, s), 24);
  EXPECT_EQ(get(CU_FUNC_ATTRIBUTE_PTX_VERSION, s), 90);
  EXPECT_EQ(get(CU_FUNC_ATTRIBUTE_BINARY_VERSION, s), 90);
  EXPECT_EQ(get(CU_FUNC_ATTRIBUTE_CACHE_MODE_CA, s), 0);
  EXPECT_EQ(get(kDynamic, s), 49152 - 100);
  EXPECT_EQ(get(CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET, s), 0);
  EXPECT_EQ(get(CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET, of("clustered")), 1);
  REFUSED(kInvalidValue, "232349 bytes of dynamic beside 100 bytes of static shared memory; a block can have 232448",
          cuFuncSetAttribute, s, kDynamic, 232349);
  OK(CU(cuFuncSetAttribute)(s, kDynamic, 232348));
  for (const auto& [index, at, bytes] : {std::tuple{size_t{0}, size_t{0}, size_t{1}}, {1, 16, 24}, {2, 40, 2}}) {
    OK(CU(cuFuncGetParamInfo)(s, index, &offset, &size));
    EXPECT_EQ(offset, at);
    EXPECT_EQ(size, bytes);
  }
  EXPECT_EQ(get(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, of("exact")), 64);

  // The bounds of a block.
  struct Launch {
    const char* kernel;
    std::array<unsigned, 6> shape;
    const char* said;
  };
  for (const auto& [kernel, d, said] : {
           Launch{"exact", {1, 1, 1, 64, 1, 1}, nullptr},
           Launch{"exact", {1, 1, 1, 8, 4, 2}, nullptr},
           Launch{"exact", {1, 1, 1, 8, 4, 1}, "the kernel requires 64 threads, the launch has 32"},
           Launch{"ranked", {1, 1, 1, 1024, 1, 1}, nullptr},
           Launch{"ranked", {1, 1, 1, 1, 1024, 1}, nullptr},
           Launch{"ranked", {1, 1, 1, 16, 1, 64}, nullptr},
           Launch{"ranked", {1, 1, 1, 1025, 1, 1}, "a block of (1025, 1, 1) threads"},
           Launch{"ranked", {1, 1, 1, 1, 1025, 1}, "a block of (1, 1025, 1) threads"},
           Launch{"ranked", {1, 1, 1, 1, 1, 65}, "a block of (1, 1, 65) threads"},
           Launch{"ranked", {1, 1, 1, 32, 33, 1}, "a block of (32, 33, 1) threads"},
           Launch{"ranked", {1, 1, 1, 0, 1, 1}, "a block of (0, 1, 1) threads"},
           Launch{"ranked", {1, 1, 1, 1, 0, 1}, "a block of (1, 0, 1) threads"},
           Launch{"ranked", {1, 1, 1, 1, 1, 0}, "a block of (1, 1, 0) threads"},
           Launch{"ranked", {0, 1, 1, 1, 1, 1}, "a grid of (0, 1, 1) blocks"},
           Launch{"ranked", {1, 0, 1, 1, 1, 1}, "a grid of (1, 0, 1) blocks"},
           Launch{"ranked", {1, 1, 0, 1, 1, 1}, "a grid of (1, 1, 0) blocks"},
           Launch{"ranked", {0x80000000, 1, 1, 1, 1, 1}, "a grid of (2147483648, 1, 1) blocks"},
           Launch{"ranked", {1, 65536, 1, 1, 1, 1}, "a grid of (1, 65536, 1) blocks"},
           Launch{"ranked", {1, 1, 65536, 1, 1, 1}, "a grid of (1, 1, 65536) blocks"},
           Launch{"ranked", {1, 65535, 1, 1, 1, 1}, nullptr},
           Launch{"ranked", {1, 1, 65535, 1, 1, 1}, nullptr},
           Launch{"clustered", {1, 1, 1, 32, 1, 1}, "the kernel must be launched with a cluster dimension"},
       }) {
    const CUfunction k = of(kernel);
    if (said == nullptr) {
      OK(CU(cuLaunchKernel)(k, d[0], d[1], d[2], d[3], d[4], d[5], 0, nullptr, nullptr, nullptr)) << kernel << d[3];
    } else {
      REFUSED(std::string(said).find("cluster") == std::string::npos ? kInvalidValue : CUDA_ERROR_INVALID_CLUSTER_SIZE,
              said, cuLaunchKernel, k, d[0], d[1], d[2], d[3], d[4], d[5], 0u, nullptr, nullptr, nullptr);
    }
  }
  std::array<uint8_t, 64> bytes{};
  void* params[] = {bytes.data(), bytes.data(), bytes.data()};
  REFUSED(kInvalidValue, "the kernel is limited to 160 threads, the launch has 161", cuLaunchKernel, s, 1u, 1u, 1u,
          161u, 1u, 1u, 0u, nullptr, params, nullptr);
  OK(CU(cuLaunchKernel)(s, 1, 1, 1, 160, 1, 1, 0, nullptr, params, nullptr));
  OK(CU(cuModuleUnload)(module));
}

TEST_F(SimRefusals, Launches) {
  const CUfunction f = function("bounded"), scale = function("scale_add"), pairs = function("in_pairs");
  CUdeviceptr data = upload(iota(4));
  uint32_t n = 4;
  void* params[] = {&data, &n};
  const auto launch_with = [&](CUresult code, const char* said, CUfunction k, void** given, void** extra) {
    REFUSED(code, said, cuLaunchKernel, k, 1u, 1u, 1u, 4u, 1u, 1u, 0u, nullptr, given, extra);
  };
  launch_with(kInvalidHandle, "not a live function", nullptr, nullptr, nullptr);
  launch_with(kInvalidValue, "the kernel takes parameters and none are given", scale, nullptr, nullptr);
  void* holes[] = {&data, nullptr};
  launch_with(kInvalidValue, "kernelParams[1] is null", scale, holes, nullptr);
  std::array<char, 12> packed{};
  std::memcpy(packed.data(), &data, 8);
  std::memcpy(packed.data() + 8, &n, 4);
  size_t size = 12;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_BUFFER_POINTER, packed.data(),
                   CU_LAUNCH_PARAM_END};
  launch_with(kInvalidValue, "both kernelParams and extra are given", scale, params, extra);
  size = 11;
  launch_with(kInvalidValue, "a parameter buffer of 11 bytes; the kernel takes 12", scale, nullptr, extra);
  size = 12;
  void* no_buffer[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  launch_with(kInvalidValue, "a parameter buffer of 12 bytes; the kernel takes 12", scale, nullptr, no_buffer);
  void* no_size[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, nullptr, CU_LAUNCH_PARAM_END};
  launch_with(kInvalidValue, "", scale, nullptr, no_size);
  void* unknown[] = {&size, &size, CU_LAUNCH_PARAM_END};
  launch_with(kInvalidValue, "unknown entry in extra", scale, nullptr, unknown);
  void* nothing[] = {CU_LAUNCH_PARAM_END};
  OK(CU(cuLaunchKernel)(f, 1, 1, 1, 4, 1, 1, 0, nullptr, nullptr, nothing)) << "a kernel without parameters";
  OK(CU(cuLaunchKernel)(f, 1, 1, 1, 4, 1, 1, 0, nullptr, nullptr, extra)) << "a buffer that is longer";
  OK(CU(cuLaunchKernel)(scale, 1, 1, 1, 4, 1, 1, 0, nullptr, nullptr, extra));
  EXPECT_EQ(download(data, 4)[3], 12u);
  REFUSED(kInvalidHandle, "", cuLaunchKernel, f, 1u, 1u, 1u, 4u, 1u, 1u, 0u, stale<CUstream>(), nullptr, nullptr);
  REFUSED(kInvalidValue, "49153 bytes of dynamic shared memory; the function's limit is 49152", cuLaunchKernel, f, 1u,
          1u, 1u, 4u, 1u, 1u, 49153u, nullptr, nullptr, nullptr);
  CUcontext second = create();
  CUstream foreign = nullptr;
  OK(CU(cuStreamCreate)(&foreign, 0));
  REFUSED(kInvalidHandle, "function and stream belong to different contexts", cuLaunchKernel, f, 1u, 1u, 1u, 4u, 1u, 1u,
          0u, foreign, nullptr, nullptr);
  OK(CU(cuCtxDestroy)(second));

  // All blocks of a cooperative launch are resident: 132 multiprocessors take 32 of these blocks each.
  const auto cooperative = [&](unsigned blocks) {
    return CU(cuLaunchCooperativeKernel)(f, blocks, 1, 1, 64, 1, 1, 0, nullptr, nullptr);
  };
  OK(cooperative(4224));
  REFUSED(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "4225 blocks; 4224 can be resident", cuLaunchCooperativeKernel, f,
          4225u, 1u, 1u, 64u, 1u, 1u, 0u, nullptr, nullptr);
  REFUSED(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "529 blocks; 528 can be resident", cuLaunchCooperativeKernel, f, 23u,
          23u, 1u, 64u, 1u, 1u, 48u * 1024, nullptr, nullptr);
  OK(CU(cuLaunchKernel)(f, 4225, 1, 1, 64, 1, 1, 0, nullptr, nullptr, nullptr));

  CUlaunchAttribute attribute{};
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 4;
  config.blockDimX = 64;
  config.blockDimY = config.blockDimZ = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const auto ex = [&](CUresult code, const std::string& said, CUfunction k) {
    if (code == CUDA_SUCCESS) {
      EXPECT_EQ(CUDA_SUCCESS, CU(cuLaunchKernelEx)(&config, k, nullptr, nullptr));
    } else {
      REFUSED(code, said, cuLaunchKernelEx, &config, k, nullptr, nullptr);
    }
  };
  REFUSED(kInvalidValue, "", cuLaunchKernelEx, nullptr, f, nullptr, nullptr);
  config.attrs = nullptr;
  ex(kInvalidValue, "", f);
  config.numAttrs = 0;
  ex(CUDA_SUCCESS, "", f);
  config.attrs = &attribute;
  config.numAttrs = 1;
  for (auto id :
       {CU_LAUNCH_ATTRIBUTE_IGNORE, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
        CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
        CU_LAUNCH_ATTRIBUTE_PRIORITY, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
        CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION, CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT}) {
    attribute.id = id;
    ex(CUDA_SUCCESS, "", f);
  }
  attribute.id = CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE;
  ex(CUDA_ERROR_NOT_SUPPORTED, "launch attribute " + std::to_string(attribute.id), f);
  attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  attribute.value.cooperative = 1;
  config.gridDimX = 265;
  ex(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "4240 blocks; 4224 can be resident", f);
  config.gridDimX = 264;
  ex(CUDA_SUCCESS, "", f);
  config.gridDimX = 265;
  attribute.value.cooperative = 0;
  ex(CUDA_SUCCESS, "", f);

  // Clusters: their size, the kernel's own, and the grid that they divide.
  config.gridDimX = 4;
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  struct Cluster {
    std::array<unsigned, 3> shape;
    CUresult code;
    const char* said;
  };
  for (const auto& [shape, code, said] : {
           Cluster{{2, 2, 2}, CUDA_SUCCESS, ""},
           Cluster{{4, 2, 1}, CUDA_SUCCESS, ""},
           Cluster{{0, 1, 1}, kInvalidValue, "a cluster dimension of 0"},
           Cluster{{1, 0, 1}, kInvalidValue, "a cluster dimension of 0"},
           Cluster{{1, 1, 0}, kInvalidValue, "a cluster dimension of 0"},
           Cluster{{4, 4, 1}, CUDA_ERROR_INVALID_CLUSTER_SIZE, "a cluster of 16 blocks; allowed are 8"},
           Cluster{{3, 1, 1}, kInvalidValue, "clusters of (3, 1, 1) do not divide the grid of (4, 4, 4)"},
           Cluster{{1, 3, 1}, kInvalidValue, "clusters of (1, 3, 1) do not divide the grid of (4, 4, 4)"},
           Cluster{{1, 1, 3}, kInvalidValue, "clusters of (1, 1, 3) do not divide the grid of (4, 4, 4)"},
       }) {
    attribute.value.clusterDim = {shape[0], shape[1], shape[2]};
    ex(code, said, f);
  }
  for (const auto& [shape, code, said] : {
           Cluster{{2, 1, 1}, CUDA_SUCCESS, ""},
           Cluster{{1, 2, 1},
                   CUDA_ERROR_INVALID_CLUSTER_SIZE,
                   "the kernel requires clusters of (2, 1, 1), the launch asks for (1, 2, 1)"},
           Cluster{{2, 2, 1},
                   CUDA_ERROR_INVALID_CLUSTER_SIZE,
                   "the kernel requires clusters of (2, 1, 1), the launch asks for (2, 2, 1)"},
           Cluster{{2, 1, 2},
                   CUDA_ERROR_INVALID_CLUSTER_SIZE,
                   "the kernel requires clusters of (2, 1, 1), the launch asks for (2, 1, 2)"},
       }) {
    attribute.value.clusterDim = {shape[0], shape[1], shape[2]};
    ex(code, said, pairs);
  }
  OK(CU(cuFuncSetAttribute)(f, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 4));
  REFUSED(kInvalidValue, "a cluster dimension of 0", cuLaunchKernel, f, 4u, 1u, 1u, 4u, 1u, 1u, 0u, nullptr, nullptr,
          nullptr);
  OK(CU(cuFuncSetAttribute)(f, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT, 1));
  OK(CU(cuFuncSetAttribute)(f, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH, 1));
  attribute.value.clusterDim = {2, 1, 1};
  ex(CUDA_ERROR_INVALID_CLUSTER_SIZE, "the kernel requires clusters of (4, 1, 1), the launch asks for (2, 1, 1)", f);
  REFUSED(kInvalidValue, "clusters of (4, 1, 1) do not divide the grid of (6, 1, 1)", cuLaunchKernel, f, 6u, 1u, 1u, 4u,
          1u, 1u, 0u, nullptr, nullptr, nullptr);
  OK(CU(cuLaunchKernel)(f, 8, 1, 1, 4, 1, 1, 0, nullptr, nullptr, nullptr));
  OK(CU(cuFuncSetAttribute)(f, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 0));
  CUmodule ranked = nullptr;
  CUfunction two = nullptr;
  OK(CU(cuModuleLoadData)(&ranked, ".version 8.7\n.target sm_90a\n.entry k() .maxclusterrank 2 { ret; }"));
  OK(CU(cuModuleGetFunction)(&two, ranked, "k"));
  ex(CUDA_SUCCESS, "", two);
  attribute.value.clusterDim = {4, 1, 1};
  ex(CUDA_ERROR_INVALID_CLUSTER_SIZE, "a cluster above the kernel's .maxclusterrank", two);

  // Events of a launch are recorded with it.
  CUevent event = nullptr;
  for (auto id : {CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT, CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT}) {
    OK(CU(cuEventCreate)(&event, CU_EVENT_DEFAULT));
    attribute = {};
    attribute.id = id;
    if (id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT) {
      attribute.value.programmaticEvent.event = event;
    } else {
      attribute.value.launchCompletionEvent.event = event;
    }
    float ms = 0;
    EXPECT_EQ(kInvalidHandle, CU(cuEventElapsedTime)(&ms, event, event)) << "not recorded";
    ex(CUDA_SUCCESS, "", f);
    OK(CU(cuEventElapsedTime)(&ms, event, event));
    OK(CU(cuEventDestroy)(event));
    ex(kInvalidHandle, "", f);
  }
}

// How many blocks fit, by the rules of the occupancy calculator: threads, registers in units of 256 a warp, shared
// memory with the 1 KB that the system takes of each block, in units of 128 bytes, and 32 blocks.
TEST_F(SimRefusals, OccupancyByEveryResource) {
  CUmodule module = nullptr;
  CUfunction f = nullptr, fat = nullptr;
  OK(CU(cuModuleLoadData)(&module, R"(.version 8.7
.target sm_90a
.address_size 64
.entry thin() { ret; }
.entry fat() .maxntid 512 .maxnreg 128 { setmaxnreg.inc.sync.aligned.u32 128; ret; }
)"));
  OK(CU(cuModuleGetFunction)(&f, module, "thin"));
  OK(CU(cuModuleGetFunction)(&fat, module, "fat"));
  OK(CU(cuFuncSetAttribute)(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232448));
  const auto blocks = [&](CUfunction k, int threads, size_t shared) {
    int count = -1, again = -1;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&count, k, threads, shared));
    EXPECT_EQ(CUDA_SUCCESS, CU(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(&again, k, threads, shared, 1));
    EXPECT_EQ(count, again);
    return count;
  };
  int registers = 0;
  OK(CU(cuFuncGetAttribute)(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, fat));
  EXPECT_EQ(registers, 128);
  for (int threads : {1, 31, 32, 33, 64, 65, 96, 128, 160, 192, 256, 257, 384, 512, 544, 640, 768, 1023, 1024})
    EXPECT_EQ(blocks(f, threads, 0), std::min(32, 64 / ((threads + 31) / 32))) << threads;
  for (int threads : {32, 64, 128, 256, 288, 512})
    EXPECT_EQ(blocks(fat, threads, 0), std::min(32, 65536 / (128 * ((threads + 31) / 32 * 32)))) << threads;
  for (size_t shared : {0u, 1u, 127u, 128u, 1000u, 6272u, 6273u, 37888u, 75776u, 75777u, 115712u, 115713u, 232448u}) {
    const size_t taken = (shared + 1024 + 127) / 128 * 128;
    EXPECT_EQ(blocks(f, 32, shared), std::min<int>(32, static_cast<int>(233472 / taken))) << shared;
  }
  EXPECT_EQ(blocks(f, 32, 232449), 0);
  EXPECT_EQ(blocks(fat, 513, 0), 0);
  EXPECT_EQ(blocks(f, 1025, 0), 0);

  int count = 0, grid = 0, block = 0;
  const char* kNotLive = "not a live function";
  const auto bad = stale<CUfunction>();
  REFUSED(kInvalidValue, "", cuOccupancyMaxActiveBlocksPerMultiprocessor, nullptr, f, 32, size_t{0});
  REFUSED(kInvalidValue, "", cuOccupancyMaxActiveBlocksPerMultiprocessor, &count, f, 0, size_t{0});
  REFUSED(kInvalidHandle, kNotLive, cuOccupancyMaxActiveBlocksPerMultiprocessor, &count, bad, 32, size_t{0});
  REFUSED(kInvalidValue, "", cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, &count, f, 32, size_t{0}, 2u);
  REFUSED(kInvalidValue, "", cuOccupancyMaxPotentialBlockSize, nullptr, &block, f, nullptr, size_t{0}, 0);
  REFUSED(kInvalidValue, "", cuOccupancyMaxPotentialBlockSize, &grid, nullptr, f, nullptr, size_t{0}, 0);
  REFUSED(kInvalidValue, "", cuOccupancyMaxPotentialBlockSize, &grid, &block, f, nullptr, size_t{0}, -1);
  REFUSED(kInvalidValue, "", cuOccupancyMaxPotentialBlockSizeWithFlags, &grid, &block, f, nullptr, size_t{0}, 0, 2u);
  REFUSED(kInvalidHandle, kNotLive, cuOccupancyMaxPotentialBlockSize, &grid, &block, bad, nullptr, size_t{0}, 0);
  REFUSED(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "no block of the function fits on a multiprocessor",
          cuOccupancyMaxPotentialBlockSize, &grid, &block, f, nullptr, size_t{232449}, 0);
  // The largest block of those that keep the most threads resident.
  const auto potential = [&](CUfunction k, CUoccupancyB2DSize shared_of, size_t shared, int limit) {
    EXPECT_EQ(CUDA_SUCCESS, CU(cuOccupancyMaxPotentialBlockSize)(&grid, &block, k, shared_of, shared, limit));
    const std::pair answer{grid, block};
    EXPECT_EQ(CUDA_SUCCESS,
              CU(cuOccupancyMaxPotentialBlockSizeWithFlags)(&grid, &block, k, shared_of, shared, limit, 1));
    EXPECT_EQ(answer, (std::pair{grid, block}));
    return answer;
  };
  EXPECT_EQ(potential(f, nullptr, 0, 0), (std::pair{2 * 132, 1024}));
  EXPECT_EQ(potential(f, nullptr, 0, 700), (std::pair{4 * 132, 512}));
  EXPECT_EQ(potential(f, nullptr, 0, 500), (std::pair{8 * 132, 256}));
  EXPECT_EQ(potential(f, nullptr, 0, 20), (std::pair{32 * 132, 20}));
  EXPECT_EQ(potential(f, nullptr, 232448, 0), (std::pair{132, 1024}));
  EXPECT_EQ(potential(f, nullptr, 232448, 1), (std::pair{132, 1}));
  EXPECT_EQ(potential(fat, nullptr, 0, 0), (std::pair{132, 512}));
  // 128 bytes for each thread: 1024 threads leave room for one block, 896 for two of 114688 + 1024 bytes.
  EXPECT_EQ(potential(
                f, [](int threads) { return static_cast<size_t>(threads) * 128; }, 0, 0),
            (std::pair{2 * 132, 896}));

  size_t bytes = 0;
  for (int wanted : {1, 2, 3, 5, 16, 32}) {
    OK(CU(cuOccupancyAvailableDynamicSMemPerBlock)(&bytes, f, wanted, 32));
    EXPECT_EQ(bytes, std::min<size_t>(232448, 233472 / static_cast<size_t>(wanted) / 128 * 128 - 1024)) << wanted;
    EXPECT_GE(blocks(f, 32, bytes), wanted);
    EXPECT_LT(blocks(f, 32, bytes + 128), wanted);
  }
  REFUSED(kInvalidValue, "", cuOccupancyAvailableDynamicSMemPerBlock, nullptr, f, 1, 32);
  REFUSED(kInvalidValue, "", cuOccupancyAvailableDynamicSMemPerBlock, &bytes, f, 0, 32);
  REFUSED(kInvalidValue, "", cuOccupancyAvailableDynamicSMemPerBlock, &bytes, f, 1, 0);
  REFUSED(kInvalidValue, "so many blocks do not fit on a multiprocessor", cuOccupancyAvailableDynamicSMemPerBlock,
          &bytes, f, 3, 1024);
  OK(CU(cuOccupancyAvailableDynamicSMemPerBlock)(&bytes, f, 2, 1024));

  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  CUlaunchConfig config{};
  config.blockDimX = 256;
  config.blockDimY = 2;
  config.blockDimZ = 2;
  config.attrs = &attribute;
  const auto clusters = [&](unsigned x, unsigned y, unsigned z) {
    attribute.value.clusterDim = {x, y, z};
    config.numAttrs = 1;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuOccupancyMaxActiveClusters)(&count, f, &config));
    return count;
  };
  EXPECT_EQ(clusters(2, 1, 1), 132);
  EXPECT_EQ(clusters(1, 3, 1), 88);
  EXPECT_EQ(clusters(2, 2, 2), 33);
  config.numAttrs = 0;
  OK(CU(cuOccupancyMaxActiveClusters)(&count, f, &config));
  EXPECT_EQ(count, 264);
  config.sharedMemBytes = 232448;
  OK(CU(cuOccupancyMaxActiveClusters)(&count, f, &config));
  EXPECT_EQ(count, 132);
  config.numAttrs = 1;
  attribute.value.clusterDim = {4, 4, 1};
  REFUSED(CUDA_ERROR_INVALID_CLUSTER_SIZE, "", cuOccupancyMaxActiveClusters, &count, f, &config);
  REFUSED(kInvalidValue, "", cuOccupancyMaxActiveClusters, nullptr, f, &config);
  REFUSED(kInvalidValue, "", cuOccupancyMaxActiveClusters, &count, f, nullptr);
  REFUSED(kInvalidHandle, kNotLive, cuOccupancyMaxActiveClusters, &count, bad, &config);
  REFUSED(kInvalidValue, "", cuOccupancyMaxPotentialClusterSize, nullptr, f, &config);
  REFUSED(kInvalidValue, "", cuOccupancyMaxPotentialClusterSize, &count, f, nullptr);
  OK(CU(cuOccupancyMaxPotentialClusterSize)(&count, f, &config));
  EXPECT_EQ(count, 8);
  OK(CU(cuFuncSetAttribute)(f, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
  OK(CU(cuOccupancyMaxPotentialClusterSize)(&count, f, &config));
  EXPECT_EQ(count, 16);
  OK(CU(cuOccupancyMaxActiveClusters)(&count, f, &config));
  EXPECT_EQ(count, 8);
  attribute.value.clusterDim = {4, 4, 2};
  REFUSED(CUDA_ERROR_INVALID_CLUSTER_SIZE, "", cuOccupancyMaxActiveClusters, &count, f, &config);
  config.blockDimX = 257;
  REFUSED(kInvalidValue, "no block of this shape fits", cuOccupancyMaxPotentialClusterSize, &count, f, &config);
}

}  // namespace
}  // namespace sim_test
