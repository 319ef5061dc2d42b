// SPDX-License-Identifier: Apache-2.0
// The simulator's libcuda.so.1 as a program sees it: loaded at run time, spoken to through the driver API alone. The
// tests of sim/driver share this fixture, whose module holds one kernel for each thing that a call can meet.
#pragma once
#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

namespace sim_test {

inline void* library() {
  static void* handle = dlopen(MOXIE_SIM_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::abort();
  }
  return handle;
}

template <class Function>
Function symbol(const char* name) {
  void* address = dlsym(library(), name);
  if (address == nullptr) {
    std::fprintf(stderr, "the library has no %s\n", name);
    std::abort();
  }
  return reinterpret_cast<Function>(address);
}

// CU(cuMemAlloc)(...) calls the ABI name that cuda.h maps the function to.
#define TEXT_OF_(x) #x
#define TEXT_OF(x) TEXT_OF_(x)
#define CU(function) symbol<decltype(&function)>(TEXT_OF(function))
#define OK(expression) ASSERT_EQ(CUDA_SUCCESS, (expression))
#define FAILS(code, expression) EXPECT_EQ(code, (expression))

inline constexpr char kPtx[] = R"(
.version 8.0
.target sm_90a
.address_size 64

.visible .global .align 4 .u32 counter = 7;
.visible .const .align 4 .u32 scale = 3;
.extern .shared .align 16 .b8 dynamic[];

.visible .entry scale_add(.param .u64 p_data, .param .u32 p_count)
{
  .reg .pred %p<2>;
  .reg .b32 %r<10>;
  .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [p_data];
  ld.param.u32 %r1, [p_count];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 bra DONE;
  cvta.to.global.u64 %rd2, %rd1;
  mul.wide.u32 %rd3, %r5, 4;
  add.s64 %rd4, %rd2, %rd3;
  ld.global.u32 %r6, [%rd4];
  ld.const.u32 %r7, [scale];
  mad.lo.u32 %r8, %r6, %r7, %r5;
  st.global.u32 [%rd4], %r8;
DONE:
  ret;
}

.visible .entry reverse(.param .u64 p_data)
{
  .reg .b32 %r<10>;
  .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [p_data];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ntid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.s64 %rd3, %rd1, %rd2;
  ld.global.u32 %r3, [%rd3];
  mov.u32 %r4, dynamic;
  shl.b32 %r5, %r1, 2;
  add.s32 %r6, %r4, %r5;
  st.shared.u32 [%r6], %r3;
  bar.sync 0;
  sub.s32 %r7, %r2, %r1;
  shl.b32 %r8, %r7, 2;
  add.s32 %r8, %r8, %r4;
  ld.shared.u32 %r9, [%r8+-4];
  st.global.u32 [%rd3], %r9;
  ret;
}

.visible .entry count(.param .u64 p_out)
{
  .reg .b32 %r<3>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [p_out];
  ld.global.u32 %r1, [counter];
  st.global.u32 [%rd1], %r1;
  add.s32 %r2, %r1, 1;
  st.global.u32 [counter], %r2;
  ret;
}

.visible .entry store(.param .u64 p_address)
{
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [p_address];
  st.global.u32 [%rd1], 1;
  ret;
}

.visible .entry wait_for_nobody()
{
  .reg .pred %p<2>;
  .reg .b32 %r<2>;
  mov.u32 %r1, %tid.x;
  setp.ge.u32 %p1, %r1, 32;
  @%p1 exit;
  bar.sync 1, 64;
  ret;
}

.visible .entry bounded() .maxntid 64, 1, 1
{
  ret;
}

.visible .entry in_pairs() .reqnctapercluster 2, 1, 1
{
  ret;
}
)";

class SimDriver : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    for (const char* name : {"MOXIE_SIM_ARCH", "MOXIE_SIM_SMS", "MOXIE_SIM_REPORT", "CUDA_LOG_FILE"}) unsetenv(name);
  }
  void SetUp() override {
    OK(CU(cuInit)(0));
    OK(CU(cuDevicePrimaryCtxRetain)(&context, 0));
    OK(CU(cuCtxSetCurrent)(context));
  }
  void TearDown() override {
    CU(cuCtxSetCurrent)(nullptr);
    CU(cuDevicePrimaryCtxRelease)(0);
  }

  CUmodule load() {
    CUmodule module = nullptr;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuModuleLoadData)(&module, kPtx));
    return module;
  }
  CUfunction function(const char* name) {
    if (module_ == nullptr) module_ = load();
    CUfunction f = nullptr;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuModuleGetFunction)(&f, module_, name));
    return f;
  }
  CUdeviceptr allocate(size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuMemAlloc)(&address, bytes));
    return address;
  }
  CUdeviceptr upload(const std::vector<uint32_t>& data) {
    CUdeviceptr address = allocate(data.size() * 4);
    EXPECT_EQ(CUDA_SUCCESS, CU(cuMemcpyHtoD)(address, data.data(), data.size() * 4));
    return address;
  }
  std::vector<uint32_t> download(CUdeviceptr address, size_t count) {
    std::vector<uint32_t> data(count);
    EXPECT_EQ(CUDA_SUCCESS, CU(cuMemcpyDtoH)(data.data(), address, count * 4));
    return data;
  }
  CUresult scale_add(CUdeviceptr data, uint32_t count, CUstream stream = nullptr) {
    void* params[] = {&data, &count};
    return CU(cuLaunchKernel)(function("scale_add"), (count + 127) / 128, 1, 1, 128, 1, 1, 0, stream, params, nullptr);
  }
  CUresult store_at(CUdeviceptr address) {
    void* params[] = {&address};
    return CU(cuLaunchKernel)(function("store"), 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr);
  }
  CUresult launch(const char* name, unsigned grid, unsigned block, unsigned shared = 0) {
    return CU(cuLaunchKernel)(function(name), grid, 1, 1, block, 1, 1, shared, nullptr, nullptr, nullptr);
  }

  CUcontext context = nullptr;
  CUmodule module_ = nullptr;
};

inline std::vector<uint32_t> iota(size_t n) {
  std::vector<uint32_t> v(n);
  std::iota(v.begin(), v.end(), 0u);
  return v;
}

}  // namespace sim_test
