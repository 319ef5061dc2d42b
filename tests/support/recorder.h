// SPDX-License-Identifier: Apache-2.0
// Sees that a call launches nothing and touches nothing: a stream that records launches instead of running them, and
// the bytes of all device memory that a test has.
#pragma once
#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "tests/support/device.h"

namespace moxie::test {

// A stream that records launches instead of running them.
class Recorder {
 public:
  Recorder() {
    library_ = dlopen(device().info().driver_path.c_str(), RTLD_NOW | RTLD_NOLOAD);
    CUcontext context;
    function<decltype(&::cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain")(&context, 0);
    function<decltype(&::cuCtxSetCurrent)>("cuCtxSetCurrent")(context);
    function<decltype(&::cuStreamCreate)>("cuStreamCreate")(&stream_, CU_STREAM_NON_BLOCKING);
  }
  ~Recorder() {
    function<decltype(&::cuStreamDestroy)>("cuStreamDestroy_v2")(stream_);
    function<decltype(&::cuCtxSetCurrent)>("cuCtxSetCurrent")(nullptr);
    function<decltype(&::cuDevicePrimaryCtxRelease)>("cuDevicePrimaryCtxRelease_v2")(0);
  }
  // What `call`, given the stream, puts on it.
  template <class Call>
  size_t launches(Call&& call) {
    const auto check = [](CUresult result) { ASSERT_EQ(result, CUDA_SUCCESS); };
    check(function<decltype(&::cuStreamBeginCapture)>("cuStreamBeginCapture_v2")(stream_,
                                                                                 CU_STREAM_CAPTURE_MODE_RELAXED));
    call(stream_);
    CUgraph graph = nullptr;
    check(function<decltype(&::cuStreamEndCapture)>("cuStreamEndCapture")(stream_, &graph));
    size_t count = 0;
    check(function<decltype(&::cuGraphGetNodes)>("cuGraphGetNodes")(graph, nullptr, &count));
    function<decltype(&::cuGraphDestroy)>("cuGraphDestroy")(graph);
    return count;
  }

 private:
  template <typename Function>
  Function function(const char* name) const {
    return reinterpret_cast<Function>(dlsym(library_, name));
  }
  void* library_;
  CUstream stream_ = nullptr;
};

// Of every buffer, by its address.
inline std::map<void*, std::vector<uint8_t>> all_bytes() {
  std::map<void*, std::vector<uint8_t>> all;
  for (const auto& [pointer, size] : Buffer::live()) {
    std::vector<uint8_t>& bytes = all[pointer];
    bytes.resize(size);
    if (size > 0) device().download(bytes.data(), pointer, size);
  }
  return all;
}

}  // namespace moxie::test
