// SPDX-License-Identifier: Apache-2.0
// The way in: cuGetProcAddress and the per-thread forms of functions that take a stream.
#include <string>
#include <unordered_map>

#include "sim/driver/abi.h"
#include "sim/driver/stream.h"

using namespace sim::driver;

namespace {

template <auto Function>
struct PerThread;
template <class... Args, CUresult (*Function)(Args...)>
struct PerThread<Function> {
  static CUresult call(Args... args) {
    const bool before = null_stream_is_per_thread;
    null_stream_is_per_thread = true;
    const CUresult result = Function(args...);
    null_stream_is_per_thread = before;
    return result;
  }
};

}  // namespace

// The loader asks resolve_* once for the address of each per-thread symbol, whose prototype is the plain function's.
// The resolvers are not static, since clang looks for them by their C names.
#define ENTRY(name, version, symbol)
#define STREAM_ENTRY(name, version, symbol, per_thread_version, suffix)                                             \
  extern "C" {                                                                                                      \
  decltype(&symbol) resolve_##symbol##_##suffix() { return &PerThread<&symbol>::call; }                             \
  decltype(symbol) symbol##_##suffix __attribute__((visibility("default"), ifunc("resolve_" #symbol "_" #suffix))); \
  }
#include "sim/driver/entry_points.inc"
#undef ENTRY
#undef STREAM_ENTRY

namespace {

struct EntryPoint {
  int version;
  bool per_thread;
  void* address;
};

template <class Function>
void* address_of_function(Function* function) {
  return reinterpret_cast<void*>(function);
}

const std::unordered_multimap<std::string, EntryPoint>& entry_points() {
  static const std::unordered_multimap<std::string, EntryPoint> all = {
#define ENTRY(name, version, symbol) {#name, {version, false, address_of_function(&symbol)}},
#define STREAM_ENTRY(name, version, symbol, per_thread_version, suffix) \
  {#name, {version, false, address_of_function(&symbol)}},              \
      {#name, {per_thread_version, true, address_of_function(&PerThread<&symbol>::call)}},
#include "sim/driver/entry_points.inc"
#undef ENTRY
#undef STREAM_ENTRY
  };
  return all;
}

CUresult look_up(const char* symbol, void** result, int version, cuuint64_t flags,
                 CUdriverProcAddressQueryResult* status) {
  if (symbol == nullptr || result == nullptr || version < 2000) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & ~cuuint64_t{CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM}) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  auto [begin, end] = entry_points().equal_range(symbol);
  const EntryPoint* best = nullptr;
  for (auto it = begin; it != end; ++it) {
    const EntryPoint& e = it->second;
    if (e.version > version || (e.per_thread && !per_thread)) continue;
    // The newest form wins. Among equals the per-thread form does, which is considered only when asked for.
    if (best == nullptr || e.version > best->version || (e.version == best->version && e.per_thread)) best = &e;
  }
  *result = best != nullptr ? best->address : nullptr;
  if (status != nullptr) {
    *status = best != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
              : begin != end  ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                              : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return best != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // namespace

CUresult cuGetProcAddress_v2(const char* symbol, void** result, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  return look_up(symbol, result, version, flags, status);
}

CUresult cuGetProcAddress(const char* symbol, void** result, int version, cuuint64_t flags) {
  return look_up(symbol, result, version, flags, nullptr);
}
