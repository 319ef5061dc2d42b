// SPDX-License-Identifier: Apache-2.0
// Streams and events, as a program sees them.
#include <atomic>
#include <thread>
#include <vector>

#include "tests/sim/driver.h"

namespace sim_test {
namespace {

TEST_F(SimDriver, StreamsRunHostFunctionsInOrder) {
  CUstream stream = nullptr;
  OK(CU(cuStreamCreateWithPriority)(&stream, CU_STREAM_NON_BLOCKING, -100));
  int priority = 1;
  OK(CU(cuStreamGetPriority)(stream, &priority));
  EXPECT_EQ(priority, -5);
  CUdeviceptr data = upload(iota(4));
  static std::vector<int> order;
  static CUresult inside;
  order.clear();
  OK(scale_add(data, 4, stream));
  OK(CU(cuLaunchHostFunc)(
      stream,
      [](void*) {
        order.push_back(1);
        CUdeviceptr p = 0;
        inside = CU(cuMemAlloc)(&p, 4);
      },
      nullptr));
  OK(CU(cuStreamAddCallback)(
      stream, [](CUstream, CUresult status, void*) { order.push_back(status == CUDA_SUCCESS ? 2 : -2); }, nullptr, 0));
  OK(CU(cuStreamSynchronize)(stream));
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_EQ(inside, CUDA_ERROR_NOT_PERMITTED);
  // Meanwhile other threads may have the device.
  static CUresult beside;
  static CUcontext of_all;
  of_all = context;
  OK(CU(cuLaunchHostFunc)(
      stream,
      [](void*) {
        std::thread([] {
          CU(cuCtxSetCurrent)(of_all);
          CUdeviceptr p = 0;
          beside = CU(cuMemAlloc)(&p, 64);
          if (beside == CUDA_SUCCESS) beside = CU(cuMemsetD8)(p, 1, 64);
          if (beside == CUDA_SUCCESS) beside = CU(cuMemFree)(p);
        }).join();
      },
      nullptr));
  OK(CU(cuStreamSynchronize)(stream));
  EXPECT_EQ(beside, CUDA_SUCCESS);
  OK(CU(cuStreamQuery)(stream));
  CUcontext owner = nullptr;
  OK(CU(cuStreamGetCtx)(stream, &owner));
  EXPECT_EQ(owner, context);
  OK(CU(cuStreamDestroy)(stream));
  FAILS(CUDA_ERROR_INVALID_HANDLE, CU(cuStreamQuery)(stream));
  OK(CU(cuStreamSynchronize)(CU_STREAM_LEGACY));
  OK(CU(cuStreamSynchronize)(CU_STREAM_PER_THREAD));
}

TEST_F(SimDriver, EventsMeasureAndOrder) {
  CUevent start = nullptr, end = nullptr, silent = nullptr;
  OK(CU(cuEventCreate)(&start, CU_EVENT_DEFAULT));
  OK(CU(cuEventCreate)(&end, CU_EVENT_DEFAULT));
  OK(CU(cuEventCreate)(&silent, CU_EVENT_DISABLE_TIMING));
  float ms = -1;
  FAILS(CUDA_ERROR_INVALID_HANDLE, CU(cuEventElapsedTime)(&ms, start, end)) << "not recorded";
  OK(CU(cuEventRecord)(start, nullptr));
  OK(CU(cuEventRecord)(end, nullptr));
  OK(CU(cuEventRecord)(silent, nullptr));
  OK(CU(cuEventQuery)(end));
  OK(CU(cuEventSynchronize)(end));
  OK(CU(cuEventElapsedTime)(&ms, start, end));
  EXPECT_GE(ms, 0.0f);
  FAILS(CUDA_ERROR_INVALID_HANDLE, CU(cuEventElapsedTime)(&ms, start, silent));
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  OK(CU(cuStreamWaitEvent)(stream, end, 0));
  OK(CU(cuEventDestroy)(end));
  FAILS(CUDA_ERROR_INVALID_HANDLE, CU(cuEventRecord)(end, nullptr));
}

TEST_F(SimDriver, ThreadsHaveTheirOwnStreams) {
  CUfunction f = function("scale_add");
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, this] {
      if (CU(cuCtxSetCurrent)(context) != CUDA_SUCCESS) ++wrong;
      CUdeviceptr data = 0;
      uint32_t n = 64;
      auto values = iota(n);
      if (CU(cuMemAlloc)(&data, n * 4) != CUDA_SUCCESS) ++wrong;
      for (int round = 0; round < 5; ++round) {
        void* params[] = {&data, &n};
        if (CU(cuMemcpyHtoDAsync)(data, values.data(), n * 4, CU_STREAM_PER_THREAD) != CUDA_SUCCESS) ++wrong;
        if (CU(cuLaunchKernel)(f, 1, 1, 1, 64, 1, 1, 0, CU_STREAM_PER_THREAD, params, nullptr) != CUDA_SUCCESS) ++wrong;
        if (CU(cuMemcpyDtoHAsync)(values.data(), data, n * 4, CU_STREAM_PER_THREAD) != CUDA_SUCCESS) ++wrong;
        if (CU(cuStreamSynchronize)(CU_STREAM_PER_THREAD) != CUDA_SUCCESS) ++wrong;
      }
      for (uint32_t i = 0; i < n; ++i) {
        uint32_t expected = i;
        for (int round = 0; round < 5; ++round) expected = expected * 3 + i;
        if (values[i] != expected) ++wrong;
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace sim_test
