// SPDX-License-Identifier: Apache-2.0
// Allocations, copies and fills, as a program sees them.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "tests/sim/driver.h"

namespace sim_test {
namespace {

TEST_F(SimDriver, CopiesAreCheckedAgainstAllocations) {
  const auto data = iota(64);
  CUdeviceptr a = upload(data), b = allocate(256);
  OK(CU(cuMemcpyDtoD)(b + 16, a, 240));
  const auto back = download(b + 16, 60);
  EXPECT_TRUE(std::equal(back.begin(), back.end(), data.begin()));
  std::vector<uint32_t> host(256);
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyHtoD)(a + 4, host.data(), 256));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyDtoH)(host.data(), a + 256, 1));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyDtoD)(a, b + 200, 100));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyHtoD)(0, host.data(), 4));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyHtoD)(reinterpret_cast<CUdeviceptr>(host.data()), data.data(), 4));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyDtoH)(host.data(), a, ~size_t{0}));
  OK(CU(cuMemcpy)(reinterpret_cast<CUdeviceptr>(host.data()), a, 256));
  EXPECT_TRUE(std::equal(data.begin(), data.end(), host.begin()));
  OK(CU(cuMemFree)(a));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemFree)(a));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemFree)(b + 8));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyDtoH)(host.data(), a, 4));
  OK(CU(cuMemFree)(0));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemAlloc)(&a, 0));
  FAILS(CUDA_ERROR_OUT_OF_MEMORY, CU(cuMemAlloc)(&a, size_t{1} << 60));
}

// Copies 4096 bytes to shared memory and from there to `to`.
constexpr char kThroughSharedMemory[] = R"(
.version 8.6
.target sm_90a
.address_size 64
.visible .entry through(.param .u64 p_from, .param .u64 p_to) {
  .shared .align 128 .b8 tile[4096];
  .shared .align 8 .b64 barrier;
  .reg .b64 %from, %to, %state; .reg .pred %done;
  ld.param.u64 %from, [p_from];
  ld.param.u64 %to, [p_to];
  mbarrier.init.shared.b64 [barrier], 1;
  fence.proxy.async.shared::cta;
  mbarrier.arrive.expect_tx.shared.b64 %state, [barrier], 4096;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%from], 4096, [barrier];
WAIT:
  mbarrier.try_wait.shared.b64 %done, [barrier], %state;
  @!%done bra WAIT;
  cp.async.bulk.global.shared::cta.bulk_group [%to], [tile], 4096;
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
  ret;
}
)";

// As the pool of an allocator grows that maps one piece of memory behind the other.
TEST_F(SimDriver, AdjacentMappingsAreOneRange) {
  constexpr size_t kUnit = 2 << 20;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr at = 0;
  OK(CU(cuMemAddressReserve)(&at, 4 * kUnit, 0, 0, 0));
  for (const size_t place : {size_t{0}, kUnit, 3 * kUnit}) {
    CUmemGenericAllocationHandle memory = 0;
    OK(CU(cuMemCreate)(&memory, kUnit, &properties, 0));
    OK(CU(cuMemMap)(at + place, kUnit, 0, memory, 0));
    OK(CU(cuMemSetAccess)(at + place, kUnit, &access, 1));
    OK(CU(cuMemRelease)(memory));
  }
  const auto data = iota(2 * kUnit / 4);
  OK(CU(cuMemcpyHtoD)(at, data.data(), 2 * kUnit));
  EXPECT_EQ(download(at, data.size()), data);
  OK(CU(cuMemcpyDtoD)(at + kUnit - 64, at, 128));
  EXPECT_EQ(download(at + kUnit - 64, 32), iota(32));
  OK(CU(cuMemsetD32)(at + kUnit - 8, 7, 4));
  EXPECT_EQ(download(at + kUnit - 8, 4), std::vector<uint32_t>(4, 7));
  // What is not mapped is a gap.
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemsetD8)(at, 0, 2 * kUnit + 1));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemsetD8)(at + kUnit, 0, 2 * kUnit));
  // Copies of kernels go over the boundary as well, but not over the gap.
  CUmodule module = nullptr;
  CUfunction through = nullptr;
  OK(CU(cuModuleLoadData)(&module, kThroughSharedMemory));
  OK(CU(cuModuleGetFunction)(&through, module, "through"));
  CUdeviceptr from = at, to = at + kUnit - 2048;
  void* params[] = {&from, &to};
  OK(CU(cuLaunchKernel)(through, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
  OK(CU(cuCtxSynchronize)());
  EXPECT_EQ(download(to, 1024), iota(1024));
  from = to, to = at;
  OK(CU(cuLaunchKernel)(through, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
  OK(CU(cuCtxSynchronize)());
  from = at + 2 * kUnit - 2048;
  OK(CU(cuLaunchKernel)(through, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
  EXPECT_EQ(CU(cuCtxSynchronize)(), CUDA_ERROR_ILLEGAL_ADDRESS);
  OK(CU(cuDevicePrimaryCtxReset)(0));
}

TEST_F(SimDriver, FreeMemoryIsCounted) {
  size_t before = 0, after = 0, total = 0, device_total = 0;
  OK(CU(cuMemGetInfo)(&before, &total));
  OK(CU(cuDeviceTotalMem)(&device_total, 0));
  EXPECT_EQ(total, device_total);
  CUdeviceptr a = allocate(1 << 20);
  OK(CU(cuMemGetInfo)(&after, &total));
  EXPECT_EQ(before - after, size_t{1} << 20);
  OK(CU(cuMemFree)(a));
  OK(CU(cuMemGetInfo)(&after, &total));
  EXPECT_EQ(before, after);
}

TEST_F(SimDriver, PitchedCopiesAndFills) {
  CUdeviceptr image = 0;
  size_t pitch = 0;
  OK(CU(cuMemAllocPitch)(&image, &pitch, 20, 6, 4));
  EXPECT_EQ(pitch % 512, 0u);
  OK(CU(cuMemsetD2D32)(image, pitch, 0xabcd1234, 5, 6));
  std::array<uint32_t, 6 * 8> host{};
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = image;
  copy.srcPitch = pitch;
  copy.srcXInBytes = 4;
  copy.srcY = 1;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = host.data();
  copy.dstPitch = 32;
  copy.dstXInBytes = 8;
  copy.dstY = 2;
  copy.WidthInBytes = 16;
  copy.Height = 4;
  OK(CU(cuMemcpy2D)(&copy));
  for (int y = 0; y < 6; ++y) {
    for (int x = 0; x < 8; ++x) {
      EXPECT_EQ(host[static_cast<size_t>(y * 8 + x)], y >= 2 && x >= 2 && x < 6 ? 0xabcd1234 : 0) << y << ' ' << x;
    }
  }
  copy.Height = 6;
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpy2D)(&copy)) << "a seventh row";
  copy.Height = 4;
  copy.srcPitch = 8;
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpy2D)(&copy)) << "a pitch below the width";

  CUdeviceptr flat = allocate(64);
  OK(CU(cuMemsetD8)(flat, 0x11, 64));
  OK(CU(cuMemsetD16)(flat + 2, 0x2233, 3));
  OK(CU(cuMemsetD32Async)(flat + 8, 0x44556677, 1, nullptr));
  const auto words = download(flat, 4);
  EXPECT_EQ(words[0], 0x22331111u);
  EXPECT_EQ(words[1], 0x22332233u);
  EXPECT_EQ(words[2], 0x44556677u);
  EXPECT_EQ(words[3], 0x11111111u);
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemsetD32)(flat + 2, 0, 1)) << "misaligned";
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemsetD8)(flat, 0, 65));

  // Two planes of 2 x 3 words are taken out of a box of 4 x 4 x 2.
  const auto box = iota(32);
  CUdeviceptr volume = upload(box);
  std::array<uint32_t, 12> out{};
  CUDA_MEMCPY3D deep{};
  deep.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  deep.srcDevice = volume;
  deep.srcPitch = 16;
  deep.srcHeight = 4;
  deep.srcXInBytes = 4;
  deep.srcY = 2;
  deep.dstMemoryType = CU_MEMORYTYPE_HOST;
  deep.dstHost = out.data();
  deep.dstPitch = 12;
  deep.dstHeight = 2;
  deep.WidthInBytes = 12;
  deep.Height = 2;
  deep.Depth = 2;
  OK(CU(cuMemcpy3D)(&deep));
  const std::array<uint32_t, 12> expected{9, 10, 11, 13, 14, 15, 25, 26, 27, 29, 30, 31};
  EXPECT_EQ(out, expected);
}

TEST_F(SimDriver, HostAndManagedMemoryIsReachedByKernels) {
  void* host = nullptr;
  OK(CU(cuMemHostAlloc)(&host, 400, CU_MEMHOSTALLOC_DEVICEMAP));
  auto* words = static_cast<uint32_t*>(host);
  for (uint32_t i = 0; i < 100; ++i) words[i] = i;
  CUdeviceptr mapped = 0;
  OK(CU(cuMemHostGetDevicePointer)(&mapped, host, 0));
  OK(scale_add(mapped, 100));
  OK(CU(cuCtxSynchronize)());
  for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(words[i], i * 4);
  unsigned type = 0;
  OK(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, mapped));
  EXPECT_EQ(type, CU_MEMORYTYPE_HOST);
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemFree)(mapped));
  OK(CU(cuMemFreeHost)(host));

  CUdeviceptr managed = 0;
  OK(CU(cuMemAllocManaged)(&managed, 16, CU_MEM_ATTACH_GLOBAL));
  std::memset(reinterpret_cast<void*>(managed), 0, 16);
  OK(scale_add(managed, 4));
  EXPECT_EQ(reinterpret_cast<uint32_t*>(managed)[3], 3u);
  int is_managed = 0;
  OK(CU(cuPointerGetAttribute)(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, managed));
  EXPECT_EQ(is_managed, 1);
  CUdeviceptr base = 0;
  size_t size = 0;
  OK(CU(cuMemGetAddressRange)(&base, &size, managed + 5));
  EXPECT_EQ(base, managed);
  EXPECT_EQ(size, 16u);
  int local = 0;
  FAILS(CUDA_ERROR_INVALID_VALUE,
        CU(cuPointerGetAttribute)(&local, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(&local)));
}

TEST_F(SimDriver, StreamOrderedAllocation) {
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  CUmemoryPool pool = nullptr;
  OK(CU(cuDeviceGetDefaultMemPool)(&pool, 0));
  CUdeviceptr memory = 0;
  OK(CU(cuMemAllocAsync)(&memory, 4096, stream));
  cuuint64_t used = 0;
  OK(CU(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  EXPECT_EQ(used, 4096u);
  OK(CU(cuMemsetD8Async)(memory, 1, 4096, stream));
  OK(CU(cuMemFreeAsync)(memory, stream));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemFreeAsync)(memory, stream));
  OK(CU(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  EXPECT_EQ(used, 0u);
}

}  // namespace
}  // namespace sim_test
