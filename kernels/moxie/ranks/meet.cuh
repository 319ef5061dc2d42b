// SPDX-License-Identifier: Apache-2.0
// Where ranks wait for each other. A rank tells all that it has come by writing the number of the call into their
// windows, and waits until all have written theirs into its own.
//
// What a rank did before comes before what another does afterwards: the writer's flag is a release at system scope,
// which is cumulative over what the barrier and the grids before have brought before it, and the reader's an acquire
// (PTX ISA 8.8 to 8.10). The kernels behind this one are ordered by griddepcontrol.wait.
#pragma once
#include "moxie/isa.cuh"
#include "moxie/window.h"

namespace moxie::kernel {

MOXIE_DEVICE WindowHeader& header_of(const RankParams& ranks, int rank) {
  return *reinterpret_cast<WindowHeader*>(ranks.windows[rank]);
}

// Whether this rank's last call was one that may not go on.
MOXIE_DEVICE bool has_failed(const RankParams& ranks) {
  return header_of(ranks, ranks.rank).outcome == Outcome::Failed;
}

MOXIE_DEVICE void tell(const RankParams& ranks, Meeting meeting, uint32_t call) {
  // All that the threads of this block have written comes before the flags.
  __syncthreads();
  const int rank = threadIdx.x;
  if (rank >= ranks.ranks) return;
  WindowHeader& theirs = header_of(ranks, rank);
  // At the first meeting alone: at a later one this rank may be on its way to the next call, of another layer, when the
  // other one looks.
  if (meeting == Meeting::Counts) theirs.signatures[ranks.rank] = ranks.signature;
  st_release_sys(&theirs.met[static_cast<int>(meeting)][ranks.rank], call);
}

// Every rank is at the same call: no rank can be at the next one's meeting before this one has let it go. So a flag of
// any other call, older or not, is one that does not come.
MOXIE_DEVICE bool has_come(const uint32_t* flag, uint32_t call, uint64_t time_limit) {
  const uint64_t begin = globaltimer();
  while (ld_acquire_sys(flag) != call) {
    if (globaltimer() - begin > time_limit) return false;
  }
  return true;
}

// Waits for all ranks and returns true in all threads, or false when one is late or computes another layer: the call
// has failed then.
MOXIE_DEVICE bool wait(const RankParams& ranks, Meeting meeting, uint32_t call) {
  constexpr int kWords = sizeof(RankStatus::ranks) / sizeof(uint32_t);
  __shared__ uint32_t late[kWords], different[kWords];
  const int rank = threadIdx.x;
  if (rank < kWords) late[rank] = different[rank] = 0;
  __syncthreads();
  WindowHeader& own = header_of(ranks, ranks.rank);
  bool comes = true, agrees = true;
  if (rank < ranks.ranks) {
    comes = has_come(&own.met[static_cast<int>(meeting)][rank], call, ranks.time_limit);
    agrees = !comes || meeting != Meeting::Counts || own.signatures[rank] == ranks.signature;
    if (!comes) atomicOr(&late[rank / 32], 1u << rank % 32);
    if (!agrees) atomicOr(&different[rank / 32], 1u << rank % 32);
  }
  // Behind the barrier all threads have what each has acquired.
  if (__syncthreads_and(comes && agrees)) return true;
  if (threadIdx.x == 0) {
    uint32_t any_late = 0;
#pragma unroll
    for (int i = 0; i < kWords; ++i) any_late |= late[i];
    RankStatus& status = own.status;
    status.failure = any_late != 0 ? RankFailure::Late : RankFailure::Different;
    status.call = call, status.meeting = meeting;
#pragma unroll
    for (int i = 0; i < kWords; ++i) status.ranks[i] = any_late != 0 ? late[i] : different[i];
    own.outcome = Outcome::Failed;
  }
  return false;
}

MOXIE_DEVICE void meet(const MeetParams& params) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (has_failed(params.ranks)) return;
  const uint32_t call = header_of(params.ranks, params.ranks.rank).call;
  if (params.halves & kTell) tell(params.ranks, params.meeting, call);
  if (params.halves & kWait) wait(params.ranks, params.meeting, call);
}

}  // namespace moxie::kernel
