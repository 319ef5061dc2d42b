// SPDX-License-Identifier: Apache-2.0
// The two rings of a Blackwell block: stages of operands between loader and issuer, accumulators between issuer and
// epilogue. Each is an array of pairs of mbarriers, of which one says full and the other says empty.
#pragma once
#include "moxie/blackwell/isa.cuh"
#include "moxie/pipeline.cuh"

namespace moxie::kernel {

// The ring of operand stages. In a pair the `full` of the first block stands for the tiles of both blocks. Each block
// has an `empty` of its own, and the issuer completes both of them.
template <int kStages, int kCluster>
struct BlackwellRing {
  using Position = RingPosition<kStages>;
  uint64_t* full;
  uint64_t* empty;

  // Called by one thread of the block.
  MOXIE_DEVICE void init() const {
    for (int stage = 0; stage < kStages; ++stage) {
      cuda::ptx::mbarrier_init(full + stage, kCluster);
      cuda::ptx::mbarrier_init(empty + stage, 1);
    }
  }
  // The loader waits until the tensor cores have read what the stage held before.
  MOXIE_DEVICE void wait_empty(const Position& at) const { wait_parity<kCluster>(empty + at.stage, at.phase ^ 1); }
  // The issuer waits until the copies of both blocks have landed.
  MOXIE_DEVICE void wait_full(const Position& at) const { wait_parity<kCluster>(full + at.stage, at.phase); }
  // The barrier that copies into a stage complete.
  MOXIE_DEVICE uint64_t* filled(const Position& at) const {
    if constexpr (kCluster > 1) {
      return in_block(full + at.stage, 0);
    } else {
      return full + at.stage;
    }
  }
  // The loader announces its copies and gets the barrier that they are to complete.
  MOXIE_DEVICE uint64_t* expect(const Position& at, uint32_t bytes) const {
    uint64_t* const barrier = filled(at);
    if constexpr (kCluster > 1) {
      cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cluster, cuda::ptx::space_cluster,
                                           barrier, bytes);
    } else {
      cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cta, cuda::ptx::space_shared,
                                           barrier, bytes);
    }
    return barrier;
  }
};

// The ring of accumulators in tensor memory. The issuer completes `computed` in every block when a tile's product is
// there. The epilogue warps of all blocks complete the first block's `stored` when they have read it.
template <int kAccumulators, int kCluster>
struct AccumulatorRing {
  using Position = RingPosition<kAccumulators>;
  uint64_t* computed;
  uint64_t* stored;

  // Called by one thread of the block. `readers` are the epilogue warps of a block.
  MOXIE_DEVICE void init(uint32_t readers) const {
    for (int i = 0; i < kAccumulators; ++i) {
      cuda::ptx::mbarrier_init(computed + i, 1);
      cuda::ptx::mbarrier_init(stored + i, readers * kCluster);
    }
  }
  MOXIE_DEVICE void wait_computed(const Position& at) const {
    wait_parity<kCluster>(computed + at.stage, at.phase);
    cuda::ptx::tcgen05_fence_after_thread_sync();
  }
  // `stored` hands over tensor memory alone, which the fences order beside relaxed operations (9.7.16.6.4.4).
  MOXIE_DEVICE void wait_stored(const Position& at) const {
    while (!cuda::ptx::mbarrier_try_wait_parity(cuda::ptx::sem_relaxed, scope(), stored + at.stage, at.phase ^ 1)) {
    }
    cuda::ptx::tcgen05_fence_after_thread_sync();
  }
  // Called by a whole epilogue warp after tcgen05.wait::ld has waited for its loads.
  MOXIE_DEVICE void release(const Position& at, int lane) const {
    cuda::ptx::tcgen05_fence_before_thread_sync();
    if (lane != 0) return;
    if constexpr (kCluster > 1) {
      cuda::ptx::mbarrier_arrive(cuda::ptx::sem_relaxed, scope(), cuda::ptx::space_cluster,
                                 in_block(stored + at.stage, 0));
    } else {
      cuda::ptx::mbarrier_arrive(cuda::ptx::sem_relaxed, scope(), cuda::ptx::space_shared, stored + at.stage);
    }
  }

 private:
  static MOXIE_DEVICE constexpr auto scope() {
    if constexpr (kCluster > 1) {
      return cuda::ptx::scope_cluster;
    } else {
      return cuda::ptx::scope_cta;
    }
  }
};

}  // namespace moxie::kernel
