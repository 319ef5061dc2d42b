// SPDX-License-Identifier: Apache-2.0
// Tells all ranks how many tokens this one has, and how many pairs for the expert in each place, and finds out from
// what all of them say where its pairs' rows lie on the ranks of their experts. There the rows of an expert are in the
// order of the ranks that they come from, and of one rank in the order of its pairs. One block, a thread for each
// place; its first warp meets the other ranks.
//
// A rank with few tokens says at the same time what each of its pairs is for (send_few.cuh), and the rank that has the
// expert finds where the pair's row lies.
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
MOXIE_DEVICE FewPair* pairs_of(const RankParams& ranks, int rank) {
  return reinterpret_cast<FewPair*>(ranks.windows[rank] + ranks.at.pairs);
}

// What the threads of the block share.
struct ExchangeMemory {
  int32_t ends[kMaxRoutedExperts];    // of the rows in each place, those of all ranks one behind the other
  int32_t before[kMaxRoutedExperts];  // [experts][ranks]: of ours the rows that come from the ranks before each
  int32_t told[kMaxRanks];            // WindowHeader::told_tokens
  int32_t of_warps[kSortThreads / 32];
  int32_t crowded, most_tokens;
  int32_t tokens_sent;  // 1: by all ranks
};

// Tells all ranks the number of our pairs for this thread's place, and WindowHeader::told_tokens. There are no fewer
// threads than ranks.
MOXIE_DEVICE void tell_numbers(const RankParams& ranks, int32_t count, int32_t told) {
  const int32_t place = threadIdx.x, places = ranks.ranks * ranks.experts;
  if (place < places) {
    for (int rank = 0; rank < ranks.ranks; ++rank) counts_of(ranks, rank)[ranks.rank * places + place] = count;
  }
  if (place < ranks.ranks) header_of(ranks, place).told_tokens[ranks.rank] = told;
}

// By the whole block: no rows, and no later kernel of the call may go on.
MOXIE_DEVICE void fail(const RankParams& ranks, int32_t* ends) {
  if (threadIdx.x < ranks.experts) ends[threadIdx.x] = 0;
  if (threadIdx.x == 0) header_of(ranks, ranks.rank).outcome = Outcome::Failed;
}

// What this thread's place gets: in its first row on its rank lies the first pair of ours.
struct PlaceRows {
  int32_t first_row;
  bool fit;  // the rows of every rank
};

// By the whole block, behind the meeting for numbers: finds where rows lie, and begins the call.
MOXIE_DEVICE PlaceRows find_rows(const RankParams& ranks, ExchangeMemory& shared, uint32_t call, int32_t* ends) {
  WindowHeader& own = header_of(ranks, ranks.rank);
  const int32_t place = threadIdx.x, places = ranks.ranks * ranks.experts;
  const bool exists = place < places;
  const int32_t rank = place / ranks.experts, number = place % ranks.experts;
  const bool is_ours = exists && rank == ranks.rank;
  if (place == 0) shared.crowded = ranks.ranks, shared.most_tokens = 0, shared.tokens_sent = 1;
  const int32_t told = place < ranks.ranks ? own.told_tokens[place] : 0;
  // Of this place: the rows of all ranks, and of those before this one.
  int32_t rows = 0, before = 0;
  if (exists) {
    const int32_t* const counts = counts_of(ranks, ranks.rank) + place;
#pragma unroll 8
    for (int of = 0; of < ranks.ranks; ++of) {
      const int32_t theirs = counts[of * places];
      if (of == ranks.rank) before = rows;
      if (is_ours) shared.before[number * ranks.ranks + of] = rows;
      rows += theirs;
    }
  }
  const int32_t end = scan_block(rows, shared.of_warps);
  if (exists) shared.ends[place] = end;
  __syncthreads();
  if (place < ranks.ranks) {
    const int32_t tokens = min(told_number(told), ranks.tokens);
    shared.told[place] = told;
    own.tokens[place] = tokens;
    atomicMax(&shared.most_tokens, tokens);
    if ((told & kTokensSent) == 0) atomicAnd(&shared.tokens_sent, 0);
  }
  const int32_t first = exists && rank > 0 ? shared.ends[rank * ranks.experts - 1] : 0;  // the rank's first row
  if (exists && number == ranks.experts - 1 && end - first > ranks.max_rows) atomicMin(&shared.crowded, rank);
  __syncthreads();
  // All ranks have the same counts, and so the same answer.
  const int32_t crowded = shared.crowded;
  const bool fit = crowded == ranks.ranks;
  if (is_ours) ends[number] = fit ? end - first : 0;
  if (exists && rank == crowded && number == ranks.experts - 1 && own.status.failure == RankFailure::None) {
    own.status.call = call;
    own.status.rank = rank, own.status.rows = end - first;
    own.status.failure = RankFailure::TooManyRows;
  }
  if (place == 0) {
    own.call = call, own.most_tokens = shared.most_tokens;
    own.outcome = fit ? Outcome::Fine : Outcome::TooManyRows;
  }
  return {end - rows - first + before, fit};
}

// By a thread: the first pair that it has in place_few_pairs(), asked for before anybody knows where rows lie, and
// whether the pair is of this call.
MOXIE_DEVICE FewPair load_few_pair(const RankParams& ranks) {
  const auto i = static_cast<int32_t>(threadIdx.x);
  return i < ranks.ranks * kFewPairs ? pairs_of(ranks, ranks.rank)[i] : FewPair{};
}

// By the whole block, in a call that goes on: writes what dispatch would of the pairs of ranks that have few tokens.
MOXIE_DEVICE void place_few_pairs(const RankParams& ranks, const ExchangeMemory& shared, const FewPair& first,
                                  uint32_t call, int32_t top_k, bool sums, bool permutes) {
  uint8_t* const window = ranks.windows[ranks.rank];
  const int32_t first_place = ranks.rank * ranks.experts;
  const int32_t first_row = first_place > 0 ? shared.ends[first_place - 1] : 0;
#pragma unroll 1
  for (int32_t i = threadIdx.x; i < ranks.ranks * kFewPairs; i += blockDim.x) {
    const int32_t rank = i / kFewPairs, pair = i % kFewPairs, told = shared.told[rank];
    if ((told & kPairsSent) == 0 || pair >= min(told_number(told), ranks.tokens) * top_k) continue;
    const FewPair said = i == static_cast<int32_t>(threadIdx.x) ? first : pairs_of(ranks, ranks.rank)[i];
    const int32_t expert = said.expert_and_number / kFewPairs, token = pair / top_k;
    int32_t row = -1;
    if (said.expert_and_number >= 0 && expert < ranks.experts) {
      const int32_t begin = (first_place + expert > 0 ? shared.ends[first_place + expert - 1] : 0) - first_row;
      row = begin + shared.before[expert * ranks.ranks + rank] + said.expert_and_number % kFewPairs;
    }
    const int32_t there = rank * ranks.tokens + token;
    if (static_cast<uint32_t>(row) >= static_cast<uint32_t>(ranks.max_rows)) row = -1;
    if (row >= 0 && !permutes) {
      reinterpret_cast<int32_t*>(window + ranks.at.order)[row] = there;
      if (!sums) reinterpret_cast<RowPlace*>(window + ranks.at.origins)[row] = RowPlace{rank} << 32 | pair;
    }
    if (sums || permutes) {
      auto* const record = reinterpret_cast<int32_t*>(window + ranks.at.records) + int64_t{there} * record_words(top_k);
      const int32_t choice = pair % top_k;
      if (choice == 0) record[0] = static_cast<int32_t>(call), record[1] = static_cast<int32_t>(ranks.signature);
      record[2 + choice] = row;
      if (sums) record[2 + top_k + choice] = __float_as_int(said.weight);
    }
  }
}

MOXIE_DEVICE void exchange(const ExchangeParams& params) {
  __shared__ ExchangeMemory shared;
  const RankParams& ranks = params.ranks;
  const int32_t place = threadIdx.x;
  const bool exists = place < ranks.ranks * ranks.experts;
  griddepcontrol_wait();
  WindowHeader& own = header_of(ranks, ranks.rank);
  const uint32_t call = own.call + 1;
  const bool failed = has_failed(ranks), tells = (params.halves & kTell) && !failed;
  // docs/distributed.md, "Meetings", says why no token may leave early behind another layer.
  if (place == 0 && tells && was_same_layer(ranks)) st_release_gpu(&own.sends_early, 1);
  if (place < 32) griddepcontrol_launch_dependents();
  int32_t begin = 0, count = 0;
  if (exists) {
    if (place > 0) begin = params.place_ends[place - 1];
    count = params.place_ends[place] - begin;
  }
  if (tells)
    tell_numbers(ranks, count,
                 real_tokens(params.token_count, params.tokens) | (params.permutes != 0 ? kWantsRecords : 0));
  // All numbers come before the flags, and all threads have looked at the outcome before it may become another.
  __syncthreads();
  if (tells && place < 32) tell(ranks, Meeting::Counts, call);
  if (!(params.halves & kWait)) return;
  bool go_on = !failed;
  if (go_on && place < 32) go_on = wait(ranks, Meeting::Counts, call);
  // Behind the barrier all threads have what the first warp has acquired.
  if (!__syncthreads_and(go_on)) return fail(ranks, params.ends);
  const FewPair pair = load_few_pair(ranks);
  const PlaceRows rows = find_rows(ranks, shared, call, params.ends);
  if (exists) params.shifts[place] = rows.first_row - begin;
  if (rows.fit) place_few_pairs(ranks, shared, pair, call, params.top_k, params.sums != 0, params.permutes != 0);
}

}  // namespace moxie::kernel
