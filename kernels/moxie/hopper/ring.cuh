// SPDX-License-Identifier: Apache-2.0
// The ring of operand stages of a Hopper block: a pair of mbarriers a stage. `full` completes when both tiles of a
// stage have landed, `empty` when every consumer warp that reads the stage has let it go.
#pragma once
#include "moxie/pipeline.cuh"

namespace moxie::kernel {

// kReleases: arrivals that free a stage, counted over all blocks that read it. kCopies: threads of this block whose
// copies fill it beside those that are announced in bytes.
template <int kStages, int kCluster, int kReleases, int kCopies = 0>
struct HopperRing {
  uint64_t* full;
  uint64_t* empty;

  // Called by one thread of the block. A barrier of the block or the cluster must follow before others use the ring.
  MOXIE_DEVICE void init() const {
    for (int stage = 0; stage < kStages; ++stage) {
      cuda::ptx::mbarrier_init(full + stage, 1 + kCopies);
      cuda::ptx::mbarrier_init(empty + stage, kReleases);
    }
    cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
  }

  // The producer waits until the consumers have let go what the stage held before.
  MOXIE_DEVICE void wait_empty(uint32_t stage, uint32_t parity) const {
    while (!cuda::ptx::mbarrier_try_wait_parity(empty + stage, parity)) {
    }
  }
  // The producer announces the bytes of its copies.
  MOXIE_DEVICE void expect(uint32_t stage, uint32_t bytes) const {
    cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cta, cuda::ptx::space_shared,
                                         full + stage, bytes);
  }

  // A consumer waits until the copies have landed.
  MOXIE_DEVICE void wait_full(uint32_t stage, uint32_t parity) const {
    while (!cuda::ptx::mbarrier_try_wait_parity(full + stage, parity)) {
    }
  }
  // A consumer warp lets the stage go: one arrival at every block that copies into this block's stage.
  MOXIE_DEVICE void release(uint32_t stage, int lane) const {
    if constexpr (kCluster > 1) {
      if (lane < kCluster) mbarrier_arrive_at(empty + stage, lane);
    } else {
      if (lane == 0) {
        cuda::ptx::mbarrier_arrive(cuda::ptx::sem_release, cuda::ptx::scope_cta, cuda::ptx::space_shared,
                                   empty + stage);
      }
    }
  }
};

}  // namespace moxie::kernel
