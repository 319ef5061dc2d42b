// SPDX-License-Identifier: Apache-2.0
// Streams: how they are made and found, and their properties.
#include "sim/driver/stream.h"

#include <algorithm>
#include <thread>

#include "sim/driver/call.h"

namespace sim::driver {

thread_local bool null_stream_is_per_thread = false;

namespace {

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

CUresult create_stream(const char* function, CUstream* result, unsigned flags, int priority) {
  return call(function, Call::Needs::HealthyContext, [&](Call& c) {
    require(result != nullptr);
    require((flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) == 0, CUDA_ERROR_INVALID_VALUE,
            "unknown stream flags");
    *result = make_stream(c.context(), flags, clamp_priority(priority));
  });
}

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
  if (stream.context->failure_seen) fail(stream.context->failure, stream.context->report);
  return stream;
}

}  // namespace sim::driver

using namespace sim::driver;

CUresult cuStreamCreate(CUstream* result, unsigned int flags) { return create_stream(__func__, result, flags, 0); }

CUresult cuStreamCreateWithPriority(CUstream* result, unsigned int flags, int priority) {
  return create_stream(__func__, result, flags, priority);
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
    *device = live_stream(c, handle).context->device;
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
