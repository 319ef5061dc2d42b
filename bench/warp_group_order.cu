// SPDX-License-Identifier: Apache-2.0
// When a wgmma reads its matrix B from shared memory: as soon as a warp has issued it, or when all four warps of the
// warp group have? The PTX ISA does not say, and published kernels store B's rows by four warps with nothing but each
// warp's own fence before the product. One warp is late here, and so are its rows. How many results of the other warps
// have the late rows, and how many have what was there before?
//
//   nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a bench/warp_group_order.cu -o warp_group_order
//   ./warp_group_order
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int kColumns = 64, kDepth = 16, kBlocks = 264, kThreads = 128;
constexpr uint32_t kOnes = 0x3f803f80;  // two in bf16
constexpr long long kLate = 200000;     // cycles

enum class Case : int {
  Stored,       // the late warp stores its rows of B before its wgmma
  Overwritten,  // it has stored them with the others, and these store zeros over theirs once they have waited
};
constexpr const char* kNames[] = {"stored late", "overwritten behind the wait"};

// Rows of 16 bf16 without a swizzle: 8 rows of 8 elements lie together, the next 8 elements 128 bytes on, the next 8
// rows 256.
__device__ uint64_t descriptor(const void* matrix) {
  const uint64_t start = __cvta_generic_to_shared(matrix);
  return (start & 0x3ffff) >> 4 | uint64_t{128 >> 4} << 16 | uint64_t{256 >> 4} << 32;
}
// A warp's 16 rows of a matrix, 512 bytes.
__device__ void fill(uint32_t* matrix, int warp, uint32_t value) {
  for (int i = 0; i < 4; ++i) matrix[warp * 128 + i * 32 + threadIdx.x % 32] = value;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ void spin() {
  const long long begin = clock64();
  while (clock64() - begin < kLate) {
  }
}

__global__ void __launch_bounds__(kThreads) multiply(Case which, int late, float* out, long long* times) {
  __shared__ alignas(128) uint32_t a[64 * kDepth / 2], b[kColumns * kDepth / 2];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  fill(a, warp, kOnes);
  fill(b, warp, which == Case::Overwritten ? kOnes : 0);
  __syncthreads();
  float d[32];
  if (warp == late) spin();
  if (which == Case::Stored) fill(b, warp, kOnes);
  __syncwarp();
  const long long issued = clock64();
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.u32 add, 0, 0;\n"
      "wgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, add, "
      "1, 1, 0, 0;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 0;\n"
      "}"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]), "=f"(d[8]),
        "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15]), "=f"(d[16]),
        "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]), "=f"(d[21]), "=f"(d[22]), "=f"(d[23]), "=f"(d[24]),
        "=f"(d[25]), "=f"(d[26]), "=f"(d[27]), "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31])
      : "l"(descriptor(a)), "l"(descriptor(b))
      : "memory");
  const long long waited = clock64();
  if (which == Case::Overwritten && warp != late) fill(b, warp, 0);
  for (int i = 0; i < 32; ++i) out[(blockIdx.x * kThreads + threadIdx.x) * 32 + i] = d[i];
  if (threadIdx.x % 32 == 0) {
    times[2 * (blockIdx.x * 4 + warp)] = issued;
    times[2 * (blockIdx.x * 4 + warp) + 1] = waited;
  }
}

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}

}  // namespace

int main() {
  cudaDeviceProp device{};
  check(cudaGetDeviceProperties(&device, 0));
  std::printf("%s, %d blocks a case, one warp %lld cycles late\n", device.name, kBlocks, kLate);
  constexpr size_t kResults = size_t{kBlocks} * kThreads * 32, kTimes = size_t{kBlocks} * 4 * 2;
  float* out = nullptr;
  long long* times = nullptr;
  check(cudaMalloc(&out, kResults * sizeof(float)));
  check(cudaMalloc(&times, kTimes * sizeof(long long)));
  std::vector<float> results(kResults);
  std::vector<long long> clocks(kTimes);
  for (int which = 0; which < 2; ++which) {
    for (int late = 0; late < 4; ++late) {
      multiply<<<kBlocks, kThreads>>>(Case(which), late, out, times);
      check(cudaMemcpy(results.data(), out, kResults * sizeof(float), cudaMemcpyDeviceToHost));
      check(cudaMemcpy(clocks.data(), times, kTimes * sizeof(long long), cudaMemcpyDeviceToHost));
      size_t old = 0, before = 0;  // results of earlier data; warps whose wait ended before the late warp's issue
      for (const float result : results) old += result != kDepth;
      for (int w = 0; w < kBlocks * 4; ++w) before += clocks[2 * w + 1] < clocks[2 * (w / 4 * 4 + late)];
      std::printf("%-28s warp %d late: %zu of %zu results old, %zu of %d other warps had waited before it issued\n",
                  kNames[which], late, old, kResults, before, kBlocks * 3);
    }
  }
  return 0;
}
