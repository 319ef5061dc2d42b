// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime over the simulator: what nvcc's code does for `twice<<<1, 32, 0, stream>>>(data, 3)`, call by call.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace {

constexpr char kPtx[] = R"(
.version 8.7
.target sm_90a
.address_size 64
.global .align 4 .u32 launches;
.visible .entry twice(.param .u64 p_data, .param .u32 p_factor)
{
  .reg .pred %p<2>;
  .reg .b32 %r<5>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [p_data];
  ld.param.u32 %r1, [p_factor];
  mov.u32 %r2, %tid.x;
  mad.wide.u32 %rd2, %r2, 4, %rd1;
  ld.global.u32 %r3, [%rd2];
  mul.lo.u32 %r3, %r3, %r1;
  st.global.u32 [%rd2], %r3;
  setp.ne.u32 %p1, %r2, 0;
  @%p1 ret;
  ld.global.u32 %r4, [launches];
  add.u32 %r4, %r4, 1;
  st.global.u32 [launches], %r4;
  ret;
}
)";

template <class F>
F* symbol(const char* name) {
  static void* const library = [] {
    const std::string driver = MOXIE_SIM_LIBRARY;
    return dlopen((driver.substr(0, driver.rfind('/')) + "/libcudart.so.13").c_str(), RTLD_NOW | RTLD_LOCAL);
  }();
  void* const found = library ? dlsym(library, name) : nullptr;
  EXPECT_NE(found, nullptr) << (library ? name : dlerror());
  return reinterpret_cast<F*>(found);
}
#define RT(name) (*symbol<decltype(name)>(#name))

TEST(CudaRuntime, AProgramRuns) {
  struct {
    int magic = 0x466243b1, version = 1;
    const void* image = kPtx;
    void* unused = nullptr;
  } wrapper;
  static char twice, launches;  // The host twins.
  void** const binary = (*symbol<void**(void*)>("__cudaRegisterFatBinary"))(&wrapper);
  (*symbol<void(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*)>(
      "__cudaRegisterFunction"))(binary, &twice, &twice, "twice", -1, nullptr, nullptr, nullptr, nullptr, nullptr);
  (*symbol<void(void**, char*, char*, const char*, int, size_t, int, int)>("__cudaRegisterVar"))(
      binary, &launches, &launches, "launches", 0, 4, 0, 0);

  std::vector<uint32_t> numbers(32, 14);
  void* data = nullptr;
  ASSERT_EQ(RT(cudaMalloc)(&data, 128), cudaSuccess);
  EXPECT_EQ(RT(cudaMemcpy)(data, numbers.data(), 128, cudaMemcpyHostToDevice), cudaSuccess);
  uint32_t factor = 3;
  void* args[] = {&data, &factor};
  dim3 grid, block;
  size_t shared = 1;
  cudaStream_t stream = nullptr;
  ASSERT_EQ(
      (*symbol<unsigned(dim3, dim3, size_t, void*)>("__cudaPushCallConfiguration"))({1, 1, 1}, {32, 1, 1}, 0, nullptr),
      0u);
  ASSERT_EQ((*symbol<cudaError_t(dim3*, dim3*, size_t*, void*)>("__cudaPopCallConfiguration"))(&grid, &block, &shared,
                                                                                               &stream),
            cudaSuccess);
  EXPECT_EQ(block.x, 32u);
  EXPECT_EQ(RT(cudaLaunchKernel)(&twice, grid, block, args, shared, stream), cudaSuccess);
  EXPECT_EQ(RT(cudaDeviceSynchronize)(), cudaSuccess);
  EXPECT_EQ(RT(cudaMemcpy)(numbers.data(), data, 128, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(numbers, std::vector<uint32_t>(32, 42));
  uint32_t count = 0;
  EXPECT_EQ(RT(cudaMemcpyFromSymbol)(&count, &launches, 4, 0, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(count, 1u);

  size_t before = 0, stack = 0;
  EXPECT_EQ(RT(cudaDeviceGetLimit)(&before, cudaLimitStackSize), cudaSuccess);
  EXPECT_EQ(RT(cudaDeviceSetLimit)(cudaLimitStackSize, 4096), cudaSuccess);
  EXPECT_EQ(RT(cudaDeviceGetLimit)(&stack, cudaLimitStackSize), cudaSuccess);
  EXPECT_EQ(stack, 4096u);
  EXPECT_EQ(RT(cudaDeviceSetLimit)(cudaLimitStackSize, before), cudaSuccess);  // Tests share the context.

  EXPECT_EQ(RT(cudaLaunchKernel)(&numbers, grid, block, args, shared, stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(RT(cudaGetLastError)(), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(RT(cudaGetLastError)(), cudaSuccess);
  EXPECT_EQ(RT(cudaFree)(data), cudaSuccess);
}

}  // namespace
