// SPDX-License-Identifier: Apache-2.0
// Sort, exchange, dispatch and the meeting behind it in one block, for few tokens. A rank sends its tokens, and what
// each of its pairs is for, with the numbers of its rows. Where all ranks do, one meeting suffices: whoever has the
// expert of a pair finds the pair's row by itself (place_few_pairs() in exchange.cuh).
//
// Tokens may come that early only behind a call of the same layer: at its end the other rank may still add the rows
// that came to its window, and where tokens of this layer lie may be where another layer has rows. Pairs lie where no
// layer has anything else.
#pragma once
#include "moxie/ranks/dispatch.cuh"
#include "moxie/ranks/exchange.cuh"

namespace moxie::kernel {

template <typename Id, RowFormat kFormat>
MOXIE_DEVICE void send_few(const SendFewParams& params) {
  __shared__ ExchangeMemory shared;
  __shared__ int32_t counts[kMaxRoutedExperts];  // of our pairs for each place, then the first's row there
  __shared__ int32_t place_of_pair[kFewPairs];
  const DispatchParams& send = params.send;
  const RankParams& ranks = send.ranks;
  const int32_t thread = threadIdx.x, places = ranks.ranks * ranks.experts;
  if (thread < places) counts[thread] = 0;
  griddepcontrol_wait();
  WindowHeader& own = header_of(ranks, ranks.rank);
  const uint32_t call = own.call + 1;
  const bool is_same_layer = was_same_layer(ranks);
  const bool failed = has_failed(ranks);
  // All threads have looked at the outcome before it may become another.
  __syncthreads();
  if (failed) return fail(ranks, params.ends);

  const int32_t tokens = real_tokens(send.token_count, send.tokens), pairs = tokens * send.top_k;
  int32_t place = places, number = 0;  // of this thread's pair
  if (thread < pairs) {
    place = place_of(static_cast<const Id*>(send.ids)[thread], 0, send.ids_here, send.places, places);
    place_of_pair[thread] = place;
    if (place < places) atomicAdd(&counts[place], 1);
  }
  __syncthreads();
  if (thread < pairs) {
#pragma unroll 8
    for (int32_t i = 0; i < thread; ++i) number += place_of_pair[i] == place ? 1 : 0;
    const float weight = send.sums != 0 && send.weights != nullptr ? send.weights[thread] : 1;
    for (int rank = 0; rank < ranks.ranks; ++rank) {
      const bool goes = place < places && place / ranks.experts == rank;
      pairs_of(ranks, rank)[ranks.rank * kFewPairs + thread] = {goes ? place % ranks.experts * kFewPairs + number : -1,
                                                                weight};
    }
  }
  const auto send_tokens = [&] {
    const int32_t warps_of_token = warps_of_columns(send.columns), lane = thread % 32;
    for (int32_t i = thread / 32; i < tokens * warps_of_token; i += blockDim.x / 32) {
      const int32_t token = i / warps_of_token;
      int32_t rank = -1;
      if (lane < send.top_k) {
        const int32_t of_lane = place_of_pair[token * send.top_k + lane];
        if (of_lane < places) rank = of_lane / ranks.experts;
      }
      send_columns<kFormat>(send, token, i % warps_of_token * 32 + lane, rank);
    }
  };
  if (is_same_layer) send_tokens();
  tell_numbers(ranks, thread < places ? counts[thread] : 0,
               tokens | kPairsSent | (is_same_layer ? kTokensSent : 0) | (params.permutes != 0 ? kWantsRecords : 0));
  // All of it comes before the flags.
  __syncthreads();
  bool go_on = true;
  if (thread < 32) {
    tell(ranks, Meeting::Counts, call);
    // As in meet().
    griddepcontrol_launch_dependents();
    go_on = wait(ranks, Meeting::Counts, call);
  }
  // Behind the barrier all threads have what the first warp has acquired.
  if (!__syncthreads_and(go_on)) return fail(ranks, params.ends);
  const FewPair pair = load_few_pair(ranks);
  const PlaceRows rows = find_rows(ranks, shared, call, params.ends);
  if (thread < places) counts[thread] = rows.first_row;
  if (rows.fit) place_few_pairs(ranks, shared, pair, call, send.top_k, send.sums != 0, params.permutes != 0);
  __syncthreads();
  if (thread < pairs && rows.fit) {
    const int32_t row = place < places ? counts[place] + number : -1;
    const bool goes = static_cast<uint32_t>(row) < static_cast<uint32_t>(ranks.max_rows);
    send.rows[thread] = goes ? RowPlace{place / ranks.experts} << 32 | row : -1;
  }
  if (shared.tokens_sent != 0 && rows.fit) return;

  // Also where rows do not fit: so no rank is at the next call before all have read these numbers.
  if (!is_same_layer && rows.fit) send_tokens();
  __syncthreads();
  if (thread >= 32) return;
  tell(ranks, Meeting::Tokens, call);
  wait(ranks, Meeting::Tokens, call);
}

}  // namespace moxie::kernel
