// Descriptors and loads of sm_100a's tensor cores (tcgen05) in the few forms the kernels use. The instructions
// themselves come from cuda::ptx. Section numbers are those of the PTX ISA 9.1.
#pragma once
#include "moxie/isa.cuh"

namespace moxie::kernel {

// 9.7.16.4.1: descriptor of a matrix in shared memory. Bits 46 to 48 hold the constant 1.
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
using TensorGroup = cuda::ptx::cta_group_t<kBlocks == 2 ? cuda::ptx::dot_cta_group::cta_group_2
                                                        : cuda::ptx::dot_cta_group::cta_group_1>;

// 9.7.9.23: where every block of the cluster finds the object of block `rank` that lies at `object` in its own memory.
MOXIE_DEVICE uint64_t* in_block(uint64_t* object, uint32_t rank) {
  uint64_t* mapped;
  asm("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(object), "r"(rank));
  return mapped;
}

// Until the phase of the given parity is over, as seen by the blocks of the cluster.
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
// t / 4 + 8 h, column 8 j + 2 (t % 4) + c in v[j][2 h + c]. The whole warp, and only lanes of its own quarter.
template <int kGroups>
MOXIE_DEVICE void tensor_load(float (&v)[kGroups][4], uint32_t address) {
  uint32_t raw[4 * kGroups];
  cuda::ptx::tcgen05_ld_16x256b(raw, address);
  cuda::ptx::tcgen05_wait_ld();
#pragma unroll
  for (int i = 0; i < 4 * kGroups; ++i) {
    asm volatile("" : "+r"(raw[i]));  // nothing that reads it may be moved above the wait, which does not name it
    v[i / 4][i % 4] = __uint_as_float(raw[i]);
  }
}

}  // namespace moxie::kernel
