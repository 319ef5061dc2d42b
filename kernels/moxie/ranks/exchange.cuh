// SPDX-License-Identifier: Apache-2.0
// Tells all ranks how many tokens this one has, and how many pairs for the expert in each place, and finds out from
// what all of them say where its pairs' rows lie on the ranks of their experts. There the rows of an expert are in the
// order of the ranks that they come from, and of one rank in the order of its pairs. One block, a thread for each
// place; its first warp meets the other ranks.
#pragma once
#include "moxie/isa.cuh"
#include "moxie/ranks/meet.cuh"
#include "moxie/routing/sort.cuh"
#include "moxie/routing/tokens.cuh"
#include "moxie/window.h"

namespace moxie::kernel {

MOXIE_DEVICE int32_t* counts_of(const RankParams& ranks, int rank) {
  return reinterpret_cast<int32_t*>(ranks.windows[rank] + ranks.at.counts);
}

MOXIE_DEVICE void exchange(const ExchangeParams& params) {
  __shared__ int32_t sums[kMaxRoutedExperts];
  __shared__ int32_t of_warps[kSortThreads / 32];
  __shared__ int32_t crowded, most_tokens;
  const RankParams& ranks = params.ranks;
  const int32_t place = threadIdx.x, places = ranks.ranks * ranks.experts;
  const bool exists = place < places;
  if (place == 0) crowded = ranks.ranks, most_tokens = 0;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  WindowHeader& own = header_of(ranks, ranks.rank);
  const uint32_t call = own.call + 1;
  const bool failed = has_failed(ranks);
  int32_t begin = 0, count = 0;
  if (exists) {
    if (place > 0) begin = params.place_ends[place - 1];
    count = params.place_ends[place] - begin;
  }
  const bool tells = (params.halves & kTell) && !failed;
  if (tells && exists) {
    for (int rank = 0; rank < ranks.ranks; ++rank) counts_of(ranks, rank)[ranks.rank * places + place] = count;
  }
  // There are no fewer places than ranks.
  if (tells && place < ranks.ranks)
    header_of(ranks, place).told_tokens[ranks.rank] = real_tokens(params.token_count, params.tokens);
  // All counts come before the flags, and all threads have looked at the outcome before it may become another.
  __syncthreads();
  if (tells && place < 32) tell(ranks, Meeting::Counts, call);
  if (!(params.halves & kWait)) return;
  bool go_on = !failed;
  if (go_on && place < 32) go_on = wait(ranks, Meeting::Counts, call);
  // Behind the barrier all threads have what the first warp has acquired.
  if (!__syncthreads_and(go_on)) {
    if (place < ranks.experts) params.ends[place] = 0;
    if (place == 0) own.outcome = Outcome::Failed;
    return;
  }

  // Of this place: the rows of all ranks, and of those before this one.
  int32_t rows = 0, before = 0;
  if (exists) {
    const int32_t* const counts = counts_of(ranks, ranks.rank) + place;
#pragma unroll 8
    for (int rank = 0; rank < ranks.ranks; ++rank) {
      const int32_t theirs = counts[rank * places];
      rows += theirs;
      if (rank < ranks.rank) before += theirs;
    }
  }
  if (place < ranks.ranks) {
    own.tokens[place] = min(max(own.told_tokens[place], 0), ranks.tokens);
    atomicMax(&most_tokens, own.tokens[place]);
  }
  const int32_t end = scan_block(rows, of_warps);
  if (exists) sums[place] = end;
  __syncthreads();
  const int32_t rank = place / ranks.experts, number = place % ranks.experts;
  const int32_t first = exists && rank > 0 ? sums[rank * ranks.experts - 1] : 0;  // the rank's first row
  if (exists) {
    params.shifts[place] = end - rows - first + before - begin;
    if (number == ranks.experts - 1 && end - first > ranks.max_rows) atomicMin(&crowded, rank);
  }
  __syncthreads();
  // All ranks have the same counts, and so the same answer.
  const bool fits = crowded == ranks.ranks;
  if (exists && rank == ranks.rank) params.ends[number] = fits ? end - first : 0;
  if (exists && rank == crowded && number == ranks.experts - 1 && own.status.failure == RankFailure::None) {
    own.status.call = call;
    own.status.rank = rank, own.status.rows = end - first;
    own.status.failure = RankFailure::TooManyRows;
  }
  if (place == 0) {
    own.call = call, own.most_tokens = most_tokens;
    own.outcome = fits ? Outcome::Fine : Outcome::TooManyRows;
  }
}

}  // namespace moxie::kernel
