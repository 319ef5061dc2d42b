// SPDX-License-Identifier: Apache-2.0
// How work enters a stream, and how a program waits for it.
#include "sim/driver/submit.h"

#include <utility>

#include "sim/driver/capture.h"
#include "sim/driver/execute.h"
#include "sim/driver/graph.h"
#include "sim/driver/queue.h"

namespace sim::driver {

CUgraphNode submit(Call& c, CUstream_st& stream, Work work, CUgraphNodeType type) {
  if (!capturing(stream.capture)) {
    if (stream.legacy) legacy_stream_used(*stream.context);
    if (state().device_count > 1)
      enqueue(c, stream, std::move(work));
    else
      execute(c, *stream.context, work, &stream);
    return nullptr;
  }
  check_capture_alive(stream);
  CUgraphNode node = add_node(*stream.capture->graph, type, std::move(work), stream.dependencies, stream.context);
  stream.dependencies = {node};
  return node;
}

}  // namespace sim::driver

using namespace sim::driver;

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  API(HealthyContext, {
    require(function != nullptr);
    submit(c, live_stream(c, stream), HostWork{function, data}, CU_GRAPH_NODE_TYPE_HOST);
  });
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* data, unsigned int flags) {
  API(HealthyContext, {
    require(callback != nullptr && flags == 0);
    CUstream_st& s = live_stream(c, stream);
    forbid_on_capturing(s);
    submit(c, s, CallbackWork{callback, stream, data}, CU_GRAPH_NODE_TYPE_HOST);
  });
}

CUresult cuStreamQuery(CUstream handle) {
  API(HealthyContext, {
    CUstream_st& stream = live_stream(c, handle);
    forbid_on_capturing(stream);
    query_stream(c, stream);
  });
}

CUresult cuStreamSynchronize(CUstream handle) {
  API(HealthyContext, {
    CUstream_st& stream = live_stream(c, handle);
    forbid_on_capturing(stream);
    if (stream.legacy) legacy_stream_used(c.context());
    synchronize_stream(c, stream);
  });
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  API(HealthyContext, {
    require(handle != nullptr && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD,
            CUDA_ERROR_INVALID_HANDLE);
    CUstream_st& stream = live_stream(c, handle);
    require(!stream.legacy, CUDA_ERROR_INVALID_HANDLE);
    abandon_capture(stream);
    forget_stream(stream);
    state().streams.remove(handle);
  });
}
PLAIN_NAME(cuStreamDestroy, cuStreamDestroy_v2);
