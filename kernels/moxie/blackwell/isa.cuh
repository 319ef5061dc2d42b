// SPDX-License-Identifier: Apache-2.0
// Descriptors of sm_100a's tensor cores (tcgen05) and loads from tensor memory, in the few forms the kernels use. The
// instructions themselves come from cuda::ptx. Section numbers are those of the PTX ISA 9.1.
#pragma once
#include <cuda/__ptx/instructions/clusterlaunchcontrol.h>
#include <cuda/__ptx/instructions/tcgen05_alloc.h>
#include <cuda/__ptx/instructions/tcgen05_commit.h>
#include <cuda/__ptx/instructions/tcgen05_cp.h>
#include <cuda/__ptx/instructions/tcgen05_fence.h>
#include <cuda/__ptx/instructions/tcgen05_ld.h>
#include <cuda/__ptx/instructions/tcgen05_mma.h>
#include <cuda/__ptx/instructions/tcgen05_wait.h>

#include "moxie/isa.cuh"

namespace moxie::kernel {

// 9.7.16.4.1: descriptor of a matrix in shared memory, with `group_bytes` between groups of eight rows. Bits 46 to 48
// hold the constant 1.
MOXIE_DEVICE uint64_t tensor_descriptor(const void* matrix, uint32_t group_bytes, uint32_t swizzle) {
  const uint64_t address = (__cvta_generic_to_shared(matrix) & 0x3ffff) >> 4;
  return address | (uint64_t{1} << 16) | (uint64_t{group_bytes >> 4} << 32) | (uint64_t{1} << 46) |
         (uint64_t{swizzle} << 61);
}
// A K-major tile of 128-byte rows under the 128-byte swizzle, aligned to 1024 bytes. Adding bytes >> 4 moves along K.
MOXIE_DEVICE uint64_t operand_descriptor(const void* tile) { return tensor_descriptor(tile, 1024, 2); }
// A tile of scales: 32 rows of 16 bytes, one after the other.
MOXIE_DEVICE uint64_t scale_descriptor(const void* tile) { return tensor_descriptor(tile, 128, 0); }

// The .cta_group of every tcgen05 instruction of a kernel: a block alone, or a pair of blocks (9.7.16.5).
template <int kBlocks>
using CtaGroup = cuda::ptx::cta_group_t<kBlocks == 2 ? cuda::ptx::dot_cta_group::cta_group_2
                                                     : cuda::ptx::dot_cta_group::cta_group_1>;

// 9.7.9.23: the address, for every block of the cluster, of the object in block `rank` that corresponds to `object` in
// this block.
MOXIE_DEVICE uint64_t* in_block(uint64_t* object, uint32_t rank) {
  uint64_t* mapped;
  asm("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(object), "r"(rank));
  return mapped;
}

// Waits until the phase of the given parity is over. With a cluster it acquires what other blocks released.
template <int kCluster>
MOXIE_DEVICE void wait_parity(uint64_t* barrier, uint32_t parity) {
  if constexpr (kCluster > 1) {
    while (!cuda::ptx::mbarrier_try_wait_parity(cuda::ptx::sem_acquire, cuda::ptx::scope_cluster, barrier, parity)) {
    }
  } else {
    while (!cuda::ptx::mbarrier_try_wait_parity(barrier, parity)) {
    }
  }
}

// An address in tensor memory: lane in the upper half, column in the lower (9.7.16.1).
MOXIE_DEVICE constexpr uint32_t tensor_lane(uint32_t lane) { return lane << 16; }

// 9.7.16.8.1 tcgen05.ld of shape 16x256b: 16 lanes from the address's, 8 columns for each v[j]; thread t gets lane
// t / 4 + 8 h, column 8 j + 2 (t % 4) + c in v[j][2 h + c]. The whole warp calls it, for lanes of its own quarter.
template <int kGroups>
MOXIE_DEVICE void tensor_load(float (&v)[kGroups][4], uint32_t address) {
  uint32_t raw[4 * kGroups];
  cuda::ptx::tcgen05_ld_16x256b(raw, address);
  cuda::ptx::tcgen05_wait_ld();
#pragma unroll
  for (int i = 0; i < 4 * kGroups; ++i) {
    // The wait does not name the registers, so without this their readers could be moved above it.
    asm volatile("" : "+r"(raw[i]));
    v[i / 4][i % 4] = __uint_as_float(raw[i]);
  }
}

// 9.7.14.5.17 movmatrix transposes an 8 x 8 matrix of 16-bit elements. Thread t gives and gets elements 2 (t % 4) and
// 2 (t % 4) + 1 of row t / 4.
MOXIE_DEVICE uint32_t movmatrix_trans(uint32_t pair) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

// Transposes an 8 x 8 matrix of 32-bit elements: their upper and their lower halves by movmatrix.
MOXIE_DEVICE void transpose_8x8(uint32_t& first, uint32_t& second) {
  const uint32_t low = movmatrix_trans(__byte_perm(first, second, 0x5410));
  const uint32_t high = movmatrix_trans(__byte_perm(first, second, 0x7632));
  first = __byte_perm(low, high, 0x5410);
  second = __byte_perm(low, high, 0x7632);
}

// Loads the transpose of the warp's own 32 lanes by 8 kGroups columns: thread t gets column t / 4 + 8 h, lane
// 8 j + 2 (t % 4) + c in v[j][2 h + c]. From column 8 kGroups on it gets zeros.
template <int kGroups>
MOXIE_DEVICE void tensor_load_transposed(float (&v)[4][4], uint32_t address) {
  static_assert(kGroups == 1 || kGroups == 2);
  uint32_t raw[2][4 * kGroups];  // of 16 lanes each
  cuda::ptx::tcgen05_ld_16x256b(raw[0], address);
  cuda::ptx::tcgen05_ld_16x256b(raw[1], address + tensor_lane(16));
  cuda::ptx::tcgen05_wait_ld();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 4 * kGroups; ++i) asm volatile("" : "+r"(raw[half][i]));  // as in tensor_load
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float(&to)[4] = v[2 * half + h];
      to[2] = to[3] = 0.0f;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        transpose_8x8(raw[half][4 * g + 2 * h], raw[half][4 * g + 2 * h + 1]);
        to[2 * g] = __uint_as_float(raw[half][4 * g + 2 * h]);
        to[2 * g + 1] = __uint_as_float(raw[half][4 * g + 2 * h + 1]);
      }
    }
  }
}

}  // namespace moxie::kernel
