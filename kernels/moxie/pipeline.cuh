// The ring of operand stages: a pair of mbarriers a stage. `full` completes when both tiles of a stage have landed,
// `empty` when every consumer warp that reads the stage has let it go.
#pragma once
#include "moxie/isa.cuh"

namespace moxie::kernel {

// Where the next tile of the k loop lies. The phase is the parity of the stage's use.
template <int kStages>
struct RingPosition {
  uint32_t stage = 0;
  uint32_t phase = 0;

  MOXIE_DEVICE void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
  MOXIE_DEVICE void advance(uint32_t tiles) {
    tiles += stage;
    phase ^= tiles / kStages & 1;
    stage = tiles % kStages;
  }
};

// kReleases: arrivals that free a stage, counted over all blocks that read it.
template <int kStages, int kCluster, int kReleases>
struct Ring {
  uint64_t* full;
  uint64_t* empty;

  // One thread of the block. The caller synchronises the block (the cluster) afterwards.
  MOXIE_DEVICE void init() const {
    for (int stage = 0; stage < kStages; ++stage) {
      cuda::ptx::mbarrier_init(full + stage, 1);
      cuda::ptx::mbarrier_init(empty + stage, kReleases);
    }
    cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
  }

  // Producer: until the use before this one of the stage is over.
  MOXIE_DEVICE void wait_empty(uint32_t stage, uint32_t parity) const {
    while (!cuda::ptx::mbarrier_try_wait_parity(empty + stage, parity)) {
    }
  }
  MOXIE_DEVICE void expect(uint32_t stage, uint32_t bytes) const {
    cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cta, cuda::ptx::space_shared,
                                         full + stage, bytes);
  }

  // Consumer.
  MOXIE_DEVICE void wait_full(uint32_t stage, uint32_t parity) const {
    while (!cuda::ptx::mbarrier_try_wait_parity(full + stage, parity)) {
    }
  }
  // One arrival of the calling warp at every block that writes this block's stage.
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
