// SPDX-License-Identifier: Apache-2.0
// Stream capture and graphs, whether captured or built by hand.
#include <thread>
#include <vector>

#include "tests/sim/driver.h"

namespace sim_test {
namespace {

class SimCapture : public SimDriver {
 protected:
  void SetUp() override {
    SimDriver::SetUp();
    OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    OK(CU(cuStreamCreate)(&other, CU_STREAM_NON_BLOCKING));
    OK(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
    data = upload(iota(100));
    function("scale_add");
  }
  CUresult begin(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    return CU(cuStreamBeginCapture)(stream, mode);
  }
  CUresult end() {
    graph = nullptr;
    return CU(cuStreamEndCapture)(stream, &graph);
  }
  size_t nodes() {
    size_t count = 0;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuGraphGetNodes)(graph, nullptr, &count));
    return count;
  }
  CUstream stream = nullptr, other = nullptr;
  CUevent event = nullptr;
  CUgraph graph = nullptr;
  CUdeviceptr data = 0;
};

TEST_F(SimCapture, RecordsAndReplays) {
  static int calls;
  calls = 0;
  CUdeviceptr copy = allocate(400);
  OK(begin());
  CUstreamCaptureStatus status{};
  OK(CU(cuStreamIsCapturing)(stream, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  OK(CU(cuMemsetD8Async)(copy, 0, 400, stream));
  OK(scale_add(data, 100, stream));  // The parameters are gone when the graph runs.
  OK(CU(cuMemcpyDtoDAsync)(copy, data, 400, stream));
  OK(CU(cuLaunchHostFunc)(
      stream, [](void*) { ++calls; }, nullptr));
  cuuint64_t id = 0;
  CUgraph live = nullptr;
  const CUgraphNode* dependencies = nullptr;
  size_t count = 0;
  OK(CU(cuStreamGetCaptureInfo)(stream, &status, &id, &live, &dependencies, nullptr, &count));
  EXPECT_EQ(count, 1u);
  EXPECT_NE(live, nullptr);
  OK(end());
  EXPECT_EQ(nodes(), 4u);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(download(data, 100), iota(100)) << "nothing ran while capturing";
  CUgraphExec exec = nullptr;
  OK(CU(cuGraphInstantiate)(&exec, graph, 0));
  OK(CU(cuGraphDestroy)(graph));
  OK(CU(cuGraphLaunch)(exec, stream));
  OK(CU(cuGraphLaunch)(exec, stream));
  OK(CU(cuStreamSynchronize)(stream));
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(download(copy, 100)[99], 99u * 4 * 3 + 99);
  OK(CU(cuGraphExecDestroy)(exec));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuGraphLaunch)(exec, stream));
}

TEST_F(SimCapture, FollowsEventsIntoOtherStreams) {
  OK(begin());
  OK(scale_add(data, 100, stream));
  OK(CU(cuEventRecord)(event, stream));
  OK(CU(cuStreamWaitEvent)(other, event, 0));
  OK(scale_add(data, 50, other));
  OK(CU(cuEventRecord)(event, other));
  FAILS(CUDA_ERROR_CAPTURED_EVENT, CU(cuEventQuery)(event));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());

  OK(begin());
  OK(scale_add(data, 100, stream));
  OK(CU(cuEventRecord)(event, stream));
  OK(CU(cuStreamWaitEvent)(other, event, 0));
  OK(scale_add(data, 50, other));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, end());

  OK(begin());
  OK(scale_add(data, 100, stream));
  OK(CU(cuEventRecord)(event, stream));
  OK(CU(cuStreamWaitEvent)(other, event, 0));
  OK(scale_add(data, 50, other));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, CU(cuStreamEndCapture)(other, &graph));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());

  OK(begin());
  OK(scale_add(data, 100, stream));
  OK(CU(cuEventRecord)(event, stream));
  OK(CU(cuStreamWaitEvent)(other, event, 0));
  OK(scale_add(data, 50, other));
  CUevent join = nullptr;
  OK(CU(cuEventCreate)(&join, CU_EVENT_DISABLE_TIMING));
  OK(CU(cuEventRecord)(join, other));
  OK(CU(cuStreamWaitEvent)(stream, join, 0));
  OK(scale_add(data, 10, stream));
  OK(end());
  EXPECT_EQ(nodes(), 3u);
  size_t edges = 0;
  OK(CU(cuGraphGetEdges)(graph, nullptr, nullptr, nullptr, &edges));
  EXPECT_EQ(edges, 3u);  // The last kernel follows both others.
  CUgraphExec exec = nullptr;
  OK(CU(cuGraphInstantiate)(&exec, graph, 0));
  OK(CU(cuGraphLaunch)(exec, stream));
  const auto out = download(data, 100);
  EXPECT_EQ(out[99], 99u * 4);
  EXPECT_EQ(out[49], 49u * 4 * 3 + 49);
  EXPECT_EQ(out[9], (9u * 4 * 3 + 9) * 3 + 9);
}

TEST_F(SimCapture, ForbidsWhatCannotBeCaptured) {
  FAILS(CUDA_ERROR_ILLEGAL_STATE, end()) << "nothing to end";
  FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CU(cuStreamBeginCapture)(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(begin());
  FAILS(CUDA_ERROR_ILLEGAL_STATE, begin());
  FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CU(cuStreamSynchronize)(stream));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, scale_add(data, 100, stream));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
  EXPECT_EQ(graph, nullptr);

  CUdeviceptr p = 0;
  OK(begin());
  FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CU(cuMemAlloc)(&p, 4));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
  OK(begin());
  FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CU(cuCtxSynchronize)());
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
  OK(begin(CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(CU(cuMemAlloc)(&p, 4)) << "a relaxed capture leaves the rest alone";
  OK(end());

  OK(CU(cuEventRecord)(event, other));
  OK(begin());
  FAILS(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, CU(cuStreamWaitEvent)(stream, event, 0));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());

  // Two captures must not meet.
  OK(begin());
  OK(CU(cuStreamBeginCapture)(other, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(CU(cuEventRecord)(event, other));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_MERGE, CU(cuStreamWaitEvent)(stream, event, 0));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CU(cuStreamEndCapture)(other, &graph));

  // The legacy stream waits for blocking streams, so it cannot run while one captures.
  CUstream blocking = nullptr;
  OK(CU(cuStreamCreate)(&blocking, CU_STREAM_DEFAULT));
  OK(CU(cuStreamBeginCapture)(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, scale_add(data, 100));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CU(cuStreamEndCapture)(blocking, &graph));

  OK(begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CUresult elsewhere = CUDA_SUCCESS;
  std::thread([&] {
    CU(cuCtxSetCurrent)(context);
    elsewhere = CU(cuStreamEndCapture)(stream, &graph);
  }).join();
  EXPECT_EQ(elsewhere, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  OK(end());
}

TEST_F(SimCapture, PerThreadFormsTakeTheNullStreamForTheThreads) {
  auto begin_capture = symbol<decltype(&cuStreamBeginCapture)>("cuStreamBeginCapture_v2_ptsz");
  auto end_capture = symbol<decltype(&cuStreamEndCapture)>("cuStreamEndCapture_ptsz");
  auto fill = symbol<decltype(&cuMemsetD8Async)>("cuMemsetD8Async_ptsz");
  OK(begin_capture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(fill(data, 1, 400, nullptr));
  CUstreamCaptureStatus status{};
  OK(CU(cuStreamIsCapturing)(CU_STREAM_PER_THREAD, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  OK(end_capture(nullptr, &graph));
  EXPECT_EQ(nodes(), 1u);
}

TEST_F(SimCapture, GraphsAreBuiltByHandAndUpdated) {
  OK(CU(cuGraphCreate)(&graph, 0));
  uint32_t n = 100;
  void* params[] = {&data, &n};
  CUDA_KERNEL_NODE_PARAMS kernel{};
  kernel.func = function("scale_add");
  kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = 1;
  kernel.blockDimX = 128;
  kernel.blockDimY = kernel.blockDimZ = 1;
  kernel.kernelParams = params;
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = data;
  fill.value = 5;
  fill.elementSize = 4;
  fill.width = 100;
  fill.height = 1;
  CUgraphNode first = nullptr, second = nullptr;
  OK(CU(cuGraphAddKernelNode)(&second, graph, nullptr, 0, &kernel));
  OK(CU(cuGraphAddMemsetNode)(&first, graph, nullptr, 0, &fill, context));
  OK(CU(cuGraphAddDependencies)(graph, &first, &second, nullptr, 1));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuGraphAddDependencies)(graph, &second, &first, nullptr, 1)) << "a cycle";
  CUgraphExec exec = nullptr;
  OK(CU(cuGraphInstantiate)(&exec, graph, 0));
  OK(CU(cuGraphLaunch)(exec, nullptr));
  EXPECT_EQ(download(data, 100)[99], 5u * 3 + 99);
  n = 10;
  OK(CU(cuGraphExecKernelNodeSetParams)(exec, second, &kernel));
  OK(CU(cuGraphLaunch)(exec, nullptr));
  EXPECT_EQ(download(data, 100)[99], 5u);
  EXPECT_EQ(download(data, 100)[9], 5u * 3 + 9);
  OK(CU(cuGraphNodeSetEnabled)(exec, second, 0));
  OK(CU(cuGraphLaunch)(exec, nullptr));
  EXPECT_EQ(download(data, 100)[9], 5u);
  CUgraphExecUpdateResultInfo info{};
  CUgraph empty = nullptr;
  OK(CU(cuGraphCreate)(&empty, 0));
  FAILS(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, CU(cuGraphExecUpdate)(exec, empty, &info));
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  OK(CU(cuGraphExecUpdate)(exec, graph, &info));
}

TEST_F(SimDriver, AGraphOverFreedMemoryFails) {
  // What a graph did with the memory, and whether the memory that was freed is where it would have read or written.
  struct Row {
    bool fills, source;
    const char* said;
  };
  for (const Row& row : {Row{true, false, "memory: a fill of memory that was freed"},
                         Row{false, false, "memory: a copy of memory that was freed"},
                         Row{false, true, "memory: a copy of memory that was freed"}}) {
    CUstream stream = nullptr;
    OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    CUdeviceptr memory = allocate(64), other = allocate(64);
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    OK(CU(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    if (row.fills)
      OK(CU(cuMemsetD8Async)(memory, 0, 64, stream));
    else
      OK(CU(cuMemcpyDtoDAsync)(row.source ? other : memory, row.source ? memory : other, 64, stream));
    OK(CU(cuStreamEndCapture)(stream, &graph));
    OK(CU(cuGraphInstantiate)(&exec, graph, 0));
    OK(CU(cuGraphLaunch)(exec, stream));
    OK(CU(cuStreamSynchronize)(stream));
    OK(CU(cuMemFree)(memory));
    testing::internal::CaptureStderr();
    OK(CU(cuGraphLaunch)(exec, stream));
    EXPECT_EQ(testing::internal::GetCapturedStderr(), std::string(row.said) + "\n");
    FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuStreamSynchronize)(stream));
    const char* text = nullptr;
    OK(CU(cuGetErrorString)(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
    EXPECT_EQ(text, std::string("an illegal memory access was encountered: ") + row.said);
    OK(CU(cuDevicePrimaryCtxReset)(0));
  }
}

}  // namespace
}  // namespace sim_test
