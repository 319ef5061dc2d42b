// SPDX-License-Identifier: Apache-2.0
// Errors: names and texts, and the log that CUDA_LOG_FILE asks for.
#include "sim/driver/error.h"

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <new>

#include "sim/driver/state.h"

namespace sim::driver {
namespace {

struct ErrorText {
  CUresult code;
  const char* name;
  const char* text;
};

constexpr ErrorText kErrors[] = {
#define ERROR(code, text) \
  { code, #code, text }
    ERROR(CUDA_SUCCESS, "no error"),
    ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    ERROR(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    ERROR(CUDA_ERROR_PROFILER_DISABLED, "profiler disabled while using external profiling tool"),
    ERROR(CUDA_ERROR_PROFILER_NOT_INITIALIZED, "profiler not initialized"),
    ERROR(CUDA_ERROR_PROFILER_ALREADY_STARTED, "profiler already started"),
    ERROR(CUDA_ERROR_PROFILER_ALREADY_STOPPED, "profiler already stopped"),
    ERROR(CUDA_ERROR_STUB_LIBRARY, "driver is a stub library"),
    ERROR(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, "call requires a newer driver"),
    ERROR(CUDA_ERROR_DEVICE_UNAVAILABLE, "device is busy or unavailable"),
    ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    ERROR(CUDA_ERROR_DEVICE_NOT_LICENSED, "device is not licensed"),
    ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    ERROR(CUDA_ERROR_CONTEXT_ALREADY_CURRENT, "context is already current"),
    ERROR(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
    ERROR(CUDA_ERROR_UNMAP_FAILED, "unmapping of buffer object failed"),
    ERROR(CUDA_ERROR_ARRAY_IS_MAPPED, "array is mapped"),
    ERROR(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"),
    ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    ERROR(CUDA_ERROR_ALREADY_ACQUIRED, "resource already acquired"),
    ERROR(CUDA_ERROR_NOT_MAPPED, "resource not mapped"),
    ERROR(CUDA_ERROR_NOT_MAPPED_AS_ARRAY, "resource not mapped as array"),
    ERROR(CUDA_ERROR_NOT_MAPPED_AS_POINTER, "resource not mapped as pointer"),
    ERROR(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    ERROR(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture"),
    ERROR(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, "exclusive-thread device already in use by a different thread"),
    ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"),
    ERROR(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    ERROR(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, "invalid OpenGL or DirectX context"),
    ERROR(CUDA_ERROR_NVLINK_UNCORRECTABLE, "uncorrectable NVLink error detected during the execution"),
    ERROR(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "PTX JIT compiler library not found"),
    ERROR(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "the provided PTX was compiled with an unsupported toolchain"),
    ERROR(CUDA_ERROR_JIT_COMPILATION_DISABLED, "PTX JIT compilation was disabled"),
    ERROR(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, "the provided execution affinity is not supported"),
    ERROR(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC, "the provided PTX contains unsupported device-side synchronization"),
    ERROR(CUDA_ERROR_CONTAINED, "contained error"),
    ERROR(CUDA_ERROR_INVALID_SOURCE, "device kernel image is invalid"),
    ERROR(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
    ERROR(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, "shared object symbol not found"),
    ERROR(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, "shared object initialization failed"),
    ERROR(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    ERROR(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    ERROR(CUDA_ERROR_LOSSY_QUERY, "attempted introspection would be semantically lossy"),
    ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    ERROR(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    ERROR(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
    ERROR(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, "launch uses incompatible texturing mode"),
    ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    ERROR(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    ERROR(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"),
    ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    ERROR(CUDA_ERROR_ASSERT, "device-side assert triggered"),
    ERROR(CUDA_ERROR_TOO_MANY_PEERS, "peer mapping resources exhausted"),
    ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"),
    ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
    ERROR(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error"),
    ERROR(CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered"),
    ERROR(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    ERROR(CUDA_ERROR_INVALID_ADDRESS_SPACE, "operation not supported on global/shared address space"),
    ERROR(CUDA_ERROR_INVALID_PC, "invalid program counter"),
    ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    ERROR(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch"),
    ERROR(CUDA_ERROR_TENSOR_MEMORY_LEAK, "tensor memory not completely freed"),
    ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    ERROR(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
    ERROR(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "unsupported display driver / cuda driver combination"),
    ERROR(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "forward compatibility was attempted on non supported hardware"),
    ERROR(CUDA_ERROR_MPS_CONNECTION_FAILED, "MPS client failed to connect to the MPS control daemon or server"),
    ERROR(CUDA_ERROR_MPS_RPC_FAILURE, "the remote procedural call between the MPS server and the MPS client failed"),
    ERROR(CUDA_ERROR_MPS_SERVER_NOT_READY, "MPS server is not ready to accept new MPS client requests"),
    ERROR(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, "the hardware resources for MPS clients are exhausted"),
    ERROR(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, "the hardware resources for device connections are exhausted"),
    ERROR(CUDA_ERROR_MPS_CLIENT_TERMINATED, "the MPS client has been terminated by the server"),
    ERROR(CUDA_ERROR_CDP_NOT_SUPPORTED, "dynamic parallelism is not supported"),
    ERROR(CUDA_ERROR_CDP_VERSION_MISMATCH, "unsupported interaction between versions of dynamic parallelism"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
          "operation would make the legacy stream depend on a capturing blocking stream"),
    ERROR(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
          "attempt to terminate a thread-local capture sequence from another thread"),
    ERROR(CUDA_ERROR_TIMEOUT, "wait operation timed out"),
    ERROR(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
          "the graph update was not performed because it included changes "
          "which violated constraints specific to instantiated graph update"),
    ERROR(CUDA_ERROR_EXTERNAL_DEVICE, "an async error has occurred in external entity outside of CUDA"),
    ERROR(CUDA_ERROR_INVALID_CLUSTER_SIZE, "a kernel launch error has occurred due to cluster misconfiguration"),
    ERROR(CUDA_ERROR_FUNCTION_NOT_LOADED, "the function handle is not loaded"),
    ERROR(CUDA_ERROR_INVALID_RESOURCE_TYPE, "one or more resources passed in are not valid resource types"),
    ERROR(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "one or more resources are insufficient or non-applicable"),
    ERROR(CUDA_ERROR_KEY_ROTATION, "a key rotation is in progress"),
    ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
#undef ERROR
};

const ErrorText* find_error(CUresult code) {
  for (const ErrorText& e : kErrors) {
    if (e.code == code) return &e;
  }
  return nullptr;
}

// A text that was handed out stays valid for the life of the process.
const char* keep(const std::string& text) {
  static auto* kept = new std::deque<std::string>;
  for (const std::string& k : *kept) {
    if (k == text) return k.c_str();
  }
  return kept->emplace_back(text).c_str();
}

}  // namespace

void fail(CUresult code, const std::string& detail) { throw ApiError{code, detail}; }

void log_error(const char* function, CUresult code, const std::string& detail) {
  const char* where = std::getenv("CUDA_LOG_FILE");
  if (where == nullptr || *where == 0) return;
  const ErrorText* error = find_error(code);
  const std::string line = std::string("[simulator][E] ") + function + ": " + (error ? error->name : "error") +
                           (detail.empty() ? "" : ": " + detail) + "\n";
  const std::string target = where;
  if (target == "stderr" || target == "stdout") {
    std::fputs(line.c_str(), target == "stderr" ? stderr : stdout);
  } else if (std::FILE* file = std::fopen(where, "a")) {
    std::fputs(line.c_str(), file);
    std::fclose(file);
  }
}

CUresult answer_for_current_exception(const char* function) {
  try {
    throw;
  } catch (const ApiError& e) {
    log_error(function, e.code, e.detail);
    return e.code;
  } catch (const std::bad_alloc&) {
    log_error(function, CUDA_ERROR_OUT_OF_MEMORY, "the host has no memory left");
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (const std::exception& e) {
    log_error(function, CUDA_ERROR_UNKNOWN, e.what());
    return CUDA_ERROR_UNKNOWN;
  }
}

}  // namespace sim::driver

using namespace sim::driver;

CUresult cuGetErrorName(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* found = find_error(error);
  *text = found ? found->name : nullptr;
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* found = find_error(error);
  *text = found ? found->text : nullptr;
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  if (error == s.report_code && !s.report.empty()) *text = keep(std::string(found->text) + ": " + s.report);
  return CUDA_SUCCESS;
}
