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

// Whether this rank's last call was one that may not go on. Sums that did not come are in the status alone until the
// next call begins.
MOXIE_DEVICE bool has_failed(const RankParams& ranks) {
  const WindowHeader& own = header_of(ranks, ranks.rank);
  return own.outcome == Outcome::Failed || own.status.failure == RankFailure::Late;
}

// Whether this rank's last call was of the same layer, or one with its signature, until the next call tells.
MOXIE_DEVICE bool was_same_layer(const RankParams& ranks) {
  return header_of(ranks, ranks.rank).signatures[ranks.rank] == ranks.signature;
}

// By one warp.
MOXIE_DEVICE void tell(const RankParams& ranks, Meeting meeting, uint32_t call) {
#pragma unroll 1
  for (int rank = threadIdx.x; rank < ranks.ranks; rank += 32) {
    WindowHeader& theirs = header_of(ranks, rank);
    // At the first meeting alone: at a later one this rank may be on its way to the next call, of another layer, when
    // the other one looks.
    if (meeting == Meeting::Counts) theirs.signatures[ranks.rank] = ranks.signature;
    st_release_sys(&theirs.met[static_cast<int>(meeting)][ranks.rank], call);
  }
}

// Every rank is at the same call: no rank can be at the next one's meeting before this one has let it go. So a flag of
// any other call, older or not, is one that does not come.
MOXIE_DEVICE bool has_come(const uint32_t* flag, uint32_t call, uint64_t begin, uint64_t time_limit) {
  while (ld_acquire_sys(flag) != call) {
    if (globaltimer() - begin > time_limit) return false;
  }
  return true;
}

// By the same warp: waits for all ranks. False when one is late or computes another layer: the call has failed then.
MOXIE_DEVICE bool wait(const RankParams& ranks, Meeting meeting, uint32_t call) {
  WindowHeader& own = header_of(ranks, ranks.rank);
  RankStatus& status = own.status;
  uint32_t any_late = 0, any_different = 0;
  const uint64_t begin = globaltimer();
#pragma unroll 1
  for (int first = 0; first < ranks.ranks; first += 32) {
    const int rank = first + threadIdx.x;
    bool comes = true, agrees = true;
    if (rank < ranks.ranks) {
      comes = has_come(&own.met[static_cast<int>(meeting)][rank], call, begin, ranks.time_limit);
      agrees = !comes || meeting != Meeting::Counts || own.signatures[rank] == ranks.signature;
    }
    const uint32_t late = __ballot_sync(~0u, !comes), different = __ballot_sync(~0u, !agrees);
    if ((late | different) != 0 && threadIdx.x == 0)
      status.late[first / 32] = late, status.different[first / 32] = different;
    any_late |= late, any_different |= different;
  }
  if ((any_late | any_different) == 0) return true;
  if (threadIdx.x == 0) {
    status.failure = any_late != 0 ? RankFailure::Late : RankFailure::Different;
    status.call = call, status.meeting = meeting;
    own.outcome = Outcome::Failed;
  }
  return false;
}

// By a warp, of which a grid may have many: waits until every other rank has stored the call's number at flag_of(rank).
// False when one is late, which the status has then. Other warps may find the same, or that others are late. A lane has
// what it has acquired, and the others behind a barrier.
template <class FlagOf>
MOXIE_DEVICE bool wait_for_results(const RankParams& ranks, WindowHeader& own, const FlagOf& flag_of) {
  const int lane = threadIdx.x % 32;
  const uint64_t begin = globaltimer();
  bool come = true;
#pragma unroll 1
  for (int first = 0; first < ranks.ranks; first += 32) {
    const int rank = first + lane;
    const bool comes =
        rank >= ranks.ranks || rank == ranks.rank || has_come(flag_of(rank), own.call, begin, ranks.time_limit);
    const unsigned late = __ballot_sync(~0u, !comes);
    if (late == 0) continue;
    come = false;
    if (lane == 0) atomicOr(&own.status.late[first / 32], late);
  }
  if (!come && lane == 0) {
    atomicExch(&own.status.call, own.call);
    atomicExch(reinterpret_cast<int*>(&own.status.meeting), static_cast<int>(Meeting::Results));
    atomicExch(reinterpret_cast<int*>(&own.status.failure), static_cast<int>(RankFailure::Late));
  }
  return come;
}

// One warp. The grid behind begins when the others have been told, and not before: what it reads early, a product its
// weights, would keep our flags waiting.
MOXIE_DEVICE void meet(const MeetParams& params) {
  griddepcontrol_wait();
  if (params.meeting == Meeting::Tokens && (params.halves & kTell) && threadIdx.x == 0)
    header_of(params.ranks, params.ranks.rank).sends_early = 0;
  if (has_failed(params.ranks)) return;
  const uint32_t call = header_of(params.ranks, params.ranks.rank).call;
  if (params.halves & kTell) tell(params.ranks, params.meeting, call);
  griddepcontrol_launch_dependents();
  if (params.halves & kWait) wait(params.ranks, params.meeting, call);
}

}  // namespace moxie::kernel
