// SPDX-License-Identifier: Apache-2.0
// Events: records and waits, in a stream or in its capture, and the time between two records.
#include "sim/driver/event.h"

#include "sim/driver/capture.h"
#include "sim/driver/queue.h"
#include "sim/driver/submit.h"

namespace sim::driver {
namespace {

CUevent_st& live_event(CUevent handle) { return state().events.get(handle); }

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
    event.record.reset();
    return;
  }
  require(capturing(stream.capture) || !(flags & CU_EVENT_RECORD_EXTERNAL), CUDA_ERROR_INVALID_VALUE,
          "an external record outside of a capture");
  submit(c, stream, EventRecordWork{handle}, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  if (!capturing(stream.capture)) event.record = stream.tail;
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
  if (capturing(stream.capture) && (event.time || event.record != nullptr)) {
    invalidate(*stream.capture);
    fail(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "the event was recorded outside of the capture");
  }
  if (event.record != nullptr) submit(c, stream, EventWaitWork{handle}, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
}

// An event that was recorded into a capture has no completion to ask for.
void check_not_captured(CUevent_st& event) {
  if (event.capture == nullptr) return;
  if (capturing(event.capture)) invalidate(*event.capture);
  fail(CUDA_ERROR_CAPTURED_EVENT);
}

CUresult elapsed(const char* function, float* milliseconds, CUevent start, CUevent end) {
  return call(function, Call::Needs::HealthyContext, [&](Call& c) {
    require(milliseconds != nullptr);
    CUevent_st& from = live_event(start);
    CUevent_st& to = live_event(end);
    check_not_captured(from);
    check_not_captured(to);
    require(!(from.flags & CU_EVENT_DISABLE_TIMING) && !(to.flags & CU_EVENT_DISABLE_TIMING), CUDA_ERROR_INVALID_HANDLE,
            "an event without timing");
    require((from.time || from.record != nullptr) && (to.time || to.record != nullptr), CUDA_ERROR_INVALID_HANDLE,
            "an event that was not recorded");
    query_event(c, from);
    query_event(c, to);
    *milliseconds = std::chrono::duration<float, std::milli>(*to.time - *from.time).count();
  });
}

}  // namespace
}  // namespace sim::driver

using namespace sim::driver;

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
    query_event(c, *event);
  });
}

CUresult cuEventSynchronize(CUevent event) {
  API(HealthyContext, {
    check_not_captured(live_event(event));
    forbid_unsafe_in_capture();
    synchronize_event(c, *event);
  });
}

CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(__func__, milliseconds, start, end);
}
CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(__func__, milliseconds, start, end);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  API(HealthyContext, { wait(c, stream, event, flags); });
}
