// SPDX-License-Identifier: Apache-2.0
// Cluster launch control (PTX ISA 9.7.13.17, 9.7.13.18): a cluster that is done with a tile cancels the launch of
// another cluster of the grid, and computes its tile in its place. One warp asks. The answers lie in a ring in the
// shared memory of every block, and every warp that walks over tiles reads them there.
//
//   asking warp   wait taken[i]; expect an answer's bytes at answered[i] of every block; try_cancel
//   all readers   wait answered[i]; read the answer; arrive at taken[i] of the first block
#pragma once
#include "moxie/blackwell/isa.cuh"
#include "moxie/layout.h"
#include "moxie/pipeline.cuh"
#include "moxie/scheduler.cuh"

namespace moxie::kernel {

// kAsks is true for the one warp of a cluster that asks before it reads.
template <int kAnswers, int kCluster, bool kAsks = false>
class LaunchQueue {
 public:
  MOXIE_DEVICE LaunchQueue(uint8_t* answers, uint64_t* answered, uint64_t* taken)
      : answers_(answers), answered_(answered), taken_(taken) {}
  MOXIE_DEVICE LaunchQueue<kAnswers, kCluster, true> asking() const { return {answers_, answered_, taken_}; }

  // Called by one thread of the block. `readers` are the warps of the cluster that call next().
  MOXIE_DEVICE void init(uint32_t readers) const {
    for (int i = 0; i < kAnswers; ++i) {
      cuda::ptx::mbarrier_init(answered_ + i, 1);
      cuda::ptx::mbarrier_init(taken_ + i, readers);
    }
  }

  // Whole warp. Gives the number of another cluster, whose tile is to be computed. False when every cluster has
  // started; next() must not be called again then.
  MOXIE_DEVICE bool next(uint32_t& cluster) {
    if constexpr (kAsks) ask();
    wait_parity<kCluster>(answered_ + at_.stage, at_.phase);
    const longlong2 answer = *reinterpret_cast<const longlong2*>(answers_ + at_.stage * kLaunchAnswerBytes);
    const bool more = cuda::ptx::clusterlaunchcontrol_query_cancel_is_canceled(answer);
    if (more) {
      cluster = cuda::ptx::clusterlaunchcontrol_query_cancel_get_first_ctaid_x<uint32_t>(answer) / kCluster;
    }
    // Orders the reading of this answer before the asynchronous proxy writes another one there.
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      if constexpr (kCluster > 1) {
        cuda::ptx::mbarrier_arrive(cuda::ptx::sem_release, cuda::ptx::scope_cluster, cuda::ptx::space_cluster,
                                   in_block(taken_ + at_.stage, 0));
      } else {
        cuda::ptx::mbarrier_arrive(cuda::ptx::sem_release, cuda::ptx::scope_cta, cuda::ptx::space_shared,
                                   taken_ + at_.stage);
      }
    }
    at_.advance();
    return more;
  }

 private:
  MOXIE_DEVICE void ask() const {
    uint8_t* const answer = answers_ + at_.stage * kLaunchAnswerBytes;
    uint64_t* const answered = answered_ + at_.stage;
    wait_parity<kCluster>(taken_ + at_.stage, at_.phase ^ 1);
    if constexpr (kCluster > 1) {
      const uint32_t lane = threadIdx.x % 32;
      if (lane < kCluster) {
        cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cluster, cuda::ptx::space_cluster,
                                             in_block(answered, lane), kLaunchAnswerBytes);
      }
      __syncwarp();
      if (elect()) cuda::ptx::clusterlaunchcontrol_try_cancel_multicast(answer, answered);
    } else if (elect()) {
      cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cta, cuda::ptx::space_shared,
                                           answered, kLaunchAnswerBytes);
      cuda::ptx::clusterlaunchcontrol_try_cancel(answer, answered);
    }
  }

  uint8_t* answers_;
  uint64_t* answered_;
  uint64_t* taken_;
  RingPosition<kAnswers> at_;
};

template <BlackwellConfig C, bool kControlled>
struct TileQueueOf {
  using Type = NoQueue;
};
template <BlackwellConfig C>
struct TileQueueOf<C, true> {
  using Type = LaunchQueue<launch_answers(C), C.cluster>;
};
// The queue of a kernel's schedulers.
template <BlackwellConfig C>
using TileQueue = typename TileQueueOf<C, C.scheduling == TileSource::LaunchControl>::Type;

}  // namespace moxie::kernel
