// SPDX-License-Identifier: Apache-2.0
// A pipelined MXFP4 product of one block (BLOCKS 1) or a pair of blocks (BLOCKS 2), as such kernels are written: warp 0
// copies, warp 1 multiplies, warps 4 to 7 store, two stages of operands, two of accumulators. mxf4_gemm_1.ptx and
// mxf4_gemm_2.ptx beside this file are what NVRTC 13.0 makes of it for sm_100a; the simulator's tests run them, whole
// and with their synchronisation removed piece by piece.
#include <cuda/ptx>

namespace ptx = cuda::ptx;

constexpr int kBlocks = BLOCKS, kStages = 2, kTiles = 5, kSteps = 3, kN = 64;
constexpr ptx::cta_group_t<kBlocks == 1 ? ptx::dot_cta_group::cta_group_1 : ptx::dot_cta_group::cta_group_2> kGroup{};

struct alignas(64) TensorMap {
  unsigned long long words[16];
};

struct alignas(1024) Shared {
  uint8_t a[kStages][128 * 64];  // 128 elements of 128 rows, swizzled by 64 bytes
  uint8_t b[kStages][kN / kBlocks * 64];
  uint8_t scale_a[kStages][512];  // in the blocked layout
  uint8_t scale_b[kStages][512];
  uint64_t full[kStages], empty[kStages], sum_full[2], sum_empty[2];
  uint32_t tensor;
};
constexpr uint32_t kStageBytes = kBlocks * (128 * 64 + kN / kBlocks * 64 + 1024);

__device__ uint32_t address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ uint32_t in_first_block(const void* p) {
  uint32_t r;
  asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(r) : "r"(address(p)));
  return r;
}
__device__ void wait(uint64_t* barrier, uint32_t parity) {
  while (!ptx::mbarrier_try_wait_parity(barrier, parity)) {
  }
}
__device__ uint64_t descriptor(uint32_t at, uint64_t stride, uint64_t swizzle) {
  return (at & 0x3ffff) >> 4 | 1ull << 16 | stride >> 4 << 32 | 1ull << 46 | swizzle << 61;
}
__device__ bool elected() {
  uint32_t p;
  asm volatile("{.reg .pred p; elect.sync _|p, -1; selp.u32 %0, 1, 0, p;}" : "=r"(p));
  return p;
}
__device__ void copy(const TensorMap& map, void* to, uint64_t* barrier, int x, int y) {
  if constexpr (kBlocks == 1)
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
            address(to)),
        "l"(&map), "r"(address(barrier)), "r"(x), "r"(y)
        : "memory");
  else
    asm volatile(
        "cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
        "%4}], "
        "[%2];" ::"r"(address(to)),
        "l"(&map), "r"(in_first_block(barrier)), "r"(x), "r"(y)
        : "memory");
}
__device__ void commit(uint64_t* barrier) {
  if constexpr (kBlocks == 1)
    ptx::tcgen05_commit(kGroup, barrier);
  else
    ptx::tcgen05_commit_multicast(kGroup, barrier, static_cast<uint16_t>(3));
}
__device__ void sync_blocks() {
  if constexpr (kBlocks == 1)
    __syncthreads();
  else
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}

extern "C" __global__ void __launch_bounds__(256)
    gemm(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
         const __grid_constant__ TensorMap scale_a, const __grid_constant__ TensorMap scale_b, float* out) {
  extern __shared__ Shared shared[];
  Shared& s = shared[0];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(&s.full[i], 1);
      ptx::mbarrier_init(&s.empty[i], 1);
      ptx::mbarrier_init(&s.sum_full[i], 1);
      ptx::mbarrier_init(&s.sum_empty[i], 4 * kBlocks);
    }
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  if (warp == 2) {
    ptx::tcgen05_alloc(kGroup, &s.tensor, 256);
    ptx::tcgen05_relinquish_alloc_permit(kGroup);
  }
  sync_blocks();
  const uint32_t sums = s.tensor, scales = sums + 2 * kN;

  if (warp == 0 && elected()) {
#pragma unroll 1
    for (int i = 0; i < kTiles * kSteps; ++i) {
      const int tile = i / kSteps, step = i % kSteps, stage = i % kStages;
      wait(&s.empty[stage], (i / kStages & 1) ^ 1);
      if (rank == 0)
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &s.full[stage],
                                       kStageBytes);
      copy(a, s.a[stage], &s.full[stage], step * 64, (tile * kBlocks + rank) * 128);
      copy(b, s.b[stage], &s.full[stage], step * 64, rank * kN / kBlocks);
      copy(scale_a, s.scale_a[stage], &s.full[stage], 0, 2 * ((tile * kBlocks + rank) * kSteps + step));
      copy(scale_b, s.scale_b[stage], &s.full[stage], 0, 2 * step);
    }
  } else if (warp == 1 && rank == 0 && elected()) {
#pragma unroll 1
    for (int i = 0; i < kTiles * kSteps; ++i) {
      const int tile = i / kSteps, step = i % kSteps, stage = i % kStages, buffer = tile % 2;
      if (step == 0) {
        wait(&s.sum_empty[buffer], (tile / 2 & 1) ^ 1);
        ptx::tcgen05_fence_after_thread_sync();
      }
      wait(&s.full[stage], i / kStages & 1);
      const uint32_t scale_a_at = scales + stage * 8, scale_b_at = scale_a_at + 4;
      ptx::tcgen05_cp_32x128b_warpx4(kGroup, scale_a_at, descriptor(address(s.scale_a[stage]), 128, 0));
      ptx::tcgen05_cp_32x128b_warpx4(kGroup, scale_b_at, descriptor(address(s.scale_b[stage]), 128, 0));
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        const uint32_t instruction =
            1u << 7 | 1u << 10 | kN / 8 << 17 | 1u << 23 | kBlocks << 27 | (2u * half) << 4 | (2u * half) << 29;
        ptx::tcgen05_mma_block_scale_vec_2x(
            ptx::kind_mxf4, kGroup, sums + buffer * kN, descriptor(address(s.a[stage]) + 32 * half, 512, 4),
            descriptor(address(s.b[stage]) + 32 * half, 512, 4), instruction, scale_a_at, scale_b_at, step + half > 0);
      }
      commit(&s.empty[stage]);
      if (step == kSteps - 1) commit(&s.sum_full[buffer]);
    }
  } else if (warp >= 4) {
#pragma unroll 1
    for (int tile = 0; tile < kTiles; ++tile) {
      const int buffer = tile % 2, row = (tile * kBlocks + rank) * 128 + (warp - 4) * 32 + lane;
      wait(&s.sum_full[buffer], tile / 2 & 1);
      ptx::tcgen05_fence_after_thread_sync();
#pragma unroll 1
      for (int at = 0; at < kN; at += 16) {
        float v[16];
        ptx::tcgen05_ld_32x32b(reinterpret_cast<uint32_t(&)[16]>(v), sums + buffer * kN + at + ((warp - 4) * 32 << 16));
        ptx::tcgen05_wait_ld();
        for (int j = 0; j < 16; ++j) out[row * kN + at + j] = v[j];
      }
      ptx::tcgen05_fence_before_thread_sync();
      __syncwarp();
      if (lane == 0) {
        if constexpr (kBlocks == 1)
          ptx::mbarrier_arrive(&s.sum_empty[buffer]);
        else
          asm volatile(
              "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(in_first_block(&s.sum_empty[buffer]))
              : "memory");
      }
    }
  }
  __syncwarp();
  sync_blocks();
  if (warp == 2) ptx::tcgen05_dealloc(kGroup, sums, 256);
}
