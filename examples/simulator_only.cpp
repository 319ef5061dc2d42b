// SPDX-License-Identifier: Apache-2.0
// A program that uses nothing of Moxie: it speaks the CUDA driver API, and its kernel is PTX. docs/simulator.md runs
// it.
#include <cuda.h>

#include <cstdio>
#include <vector>

// Doubles 32 numbers: a bulk copy brings them to shared memory, and every thread waits for it.
const char* const kPtx = R"(
.version 8.7
.target sm_90a
.address_size 64
.visible .entry twice(.param .u64 p_data) {
  .shared .align 128 .b8 numbers[128];
  .shared .align 8 .b64 bar;
  .reg .pred %leader, %done;
  .reg .b32 %thread, %at, %x;
  .reg .b64 %data, %to;
  ld.param.u64 %data, [p_data];
  mov.u32 %thread, %tid.x;
  setp.eq.u32 %leader, %thread, 0;
  @%leader mbarrier.init.shared::cta.b64 [bar], 1;
  @%leader fence.mbarrier_init.release.cluster;
  bar.sync 0;
  @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 128;
  @%leader cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [numbers], [%data], 128, [bar];
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %done, [bar], 0;
  @!%done bra WAIT;
  mov.u32 %at, numbers;
  mad.lo.u32 %at, %thread, 4, %at;
  ld.shared.u32 %x, [%at];
  shl.b32 %x, %x, 1;
  mad.wide.u32 %to, %thread, 4, %data;
  st.global.u32 [%to], %x;
  ret;
})";

#define CHECK(call)                                                                                 \
  if (const CUresult error = (call)) {                                                              \
    const char* text = "";                                                                          \
    return cuGetErrorString(error, &text), std::printf("%s failed: %s\n", #call, text), int(error); \
  }

int main() {
  CUcontext context;
  CUmodule module;
  CUfunction twice;
  CUdeviceptr data;
  std::vector<unsigned> numbers(32, 21);
  CHECK(cuInit(0));
  CHECK(cuDevicePrimaryCtxRetain(&context, 0));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuModuleLoadData(&module, kPtx));
  CHECK(cuModuleGetFunction(&twice, module, "twice"));
  CHECK(cuMemAlloc(&data, 128));
  CHECK(cuMemcpyHtoD(data, numbers.data(), 128));
  void* params[] = {&data};
  CHECK(cuLaunchKernel(twice, 1, 1, 1, 32, 1, 1, 0, nullptr, params, nullptr));
  CHECK(cuCtxSynchronize());
  CHECK(cuMemcpyDtoH(numbers.data(), data, 128));
  std::printf("%u\n", numbers[31]);
  return numbers[31] == 42 ? 0 : 1;
}
