// SPDX-License-Identifier: Apache-2.0
// Copies each token into the windows of the ranks that have experts which it chose, to each of them once. A rank that
// copies the tokens in the order of its rows gets a record of each, which says where its rows are. Any other rank
// gets for each pair the token that the expert's row is made of, and where rows travel back the pair that the row
// belongs to. Where sums travel back, all ranks get records.
//
// The blocks of two kinds have four warps each. In the first blocks of the grid a warp sends 256 columns of a token,
// which it reads once. In the last ones a warp says where the rows of a token are, for which it waits for exchange.
// Behind a call of the same layer the first blocks wait for nothing and end, and so all columns leave while the ranks
// still tell each other how many rows they have.
#pragma once
#include "moxie/isa.cuh"
#include "moxie/ranks/meet.cuh"
#include "moxie/ranks/row_format.cuh"
#include "moxie/routing/places.cuh"
#include "moxie/routing/tokens.cuh"
#include "moxie/window.h"

namespace moxie::kernel {

// One of a warp's lanes for each rank that lane j has for choice j, where that is not below 0.
MOXIE_DEVICE unsigned lanes_of_ranks(int32_t rank_of_lane) {
  const unsigned same = __match_any_sync(~0u, rank_of_lane);
  return __ballot_sync(~0u, rank_of_lane >= 0 && static_cast<int>(threadIdx.x % 32) == __ffs(same) - 1);
}

// By a warp: the eight columns of a token that `thread`, of this lane, has into the windows of its experts' ranks. Lane
// j has that of choice j, or a number below 0.
template <RowFormat kFormat>
MOXIE_DEVICE void send_columns(const DispatchParams& params, int32_t token, int32_t thread, int32_t rank_of_lane) {
  const RankParams& ranks = params.ranks;
  const int32_t column = thread * 8;
  const bool exists = column < params.columns;
  uint4 words = {};
  if (exists)
    words =
        *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(params.from) + token * params.ld_from + column);
  const TravelingColumns<kFormat> columns(words);
  for (unsigned left = lanes_of_ranks(rank_of_lane); left != 0; left &= left - 1) {
    const int32_t rank = __shfl_sync(~0u, rank_of_lane, __ffs(left) - 1);
    if (exists) columns.store(ranks, rank, ranks.rank * ranks.tokens + token, column, params.columns);
  }
}

// By a warp: a token's record into the windows of its experts' ranks. Lane j has the rank and the row of choice j.
MOXIE_DEVICE void send_record(const DispatchParams& params, int32_t token, int32_t rank_of_lane, int32_t row) {
  const RankParams& ranks = params.ranks;
  const int lane = threadIdx.x % 32;
  float weight = 1;
  if (params.sums != 0 && params.weights != nullptr && rank_of_lane >= 0)
    weight = params.weights[int64_t{token} * params.top_k + lane];
  for (unsigned left = lanes_of_ranks(rank_of_lane); left != 0; left &= left - 1) {
    const int32_t rank = __shfl_sync(~0u, rank_of_lane, __ffs(left) - 1);
    if (lane >= params.top_k) continue;
    auto* const record = reinterpret_cast<int32_t*>(ranks.windows[rank] + ranks.at.records) +
                         (ranks.rank * ranks.tokens + token) * record_words(params.top_k);
    if (lane == 0) {
      record[0] = static_cast<int32_t>(header_of(ranks, ranks.rank).call);
      record[1] = static_cast<int32_t>(ranks.signature);
    }
    record[2 + lane] = rank_of_lane == rank ? row : -1;
    if (params.sums != 0) record[2 + params.top_k + lane] = __float_as_int(weight);
  }
}

// By a warp, for a token that exists. Lane j has the place of the expert of choice j, or a number that is none.
template <typename Id>
MOXIE_DEVICE int32_t place_of_lane(const DispatchParams& params, int32_t token) {
  const int lane = threadIdx.x % 32;
  const int32_t places = params.ranks.ranks * params.ranks.experts;
  if (lane >= params.top_k) return places;
  return place_of(static_cast<const Id*>(params.ids)[int64_t{token} * params.top_k + lane], 0, params.ids_here,
                  params.places, places);
}

// By a warp, for a token that exists, in a call that goes on: what says of the token's pairs where their rows are.
template <typename Id>
MOXIE_DEVICE void send_places(const DispatchParams& params, int32_t token) {
  const RankParams& ranks = params.ranks;
  // Lane j has the rank and the row of pair j; a rank of -1: it is skipped.
  const int lane = threadIdx.x % 32;
  const int64_t pair = int64_t{token} * params.top_k + lane;
  const int32_t place = place_of_lane<Id>(params, token);
  int32_t rank_of_lane = -1, row = -1;
  bool wants_record = false;
  if (place < ranks.ranks * ranks.experts) {
    row = params.inverse[pair] + params.shifts[place];
    if (static_cast<uint32_t>(row) < static_cast<uint32_t>(ranks.max_rows)) rank_of_lane = place / ranks.experts;
    wants_record = (header_of(ranks, ranks.rank).told_tokens[place / ranks.experts] & kWantsRecords) != 0;
  }
  if (lane < params.top_k) {
    const bool goes = rank_of_lane >= 0;
    params.rows[pair] = goes ? RowPlace{rank_of_lane} << 32 | row : -1;
    if (goes && !wants_record) {
      uint8_t* const theirs = ranks.windows[rank_of_lane];
      reinterpret_cast<int32_t*>(theirs + ranks.at.order)[row] = ranks.rank * ranks.tokens + token;
      if (params.sums == 0)
        reinterpret_cast<RowPlace*>(theirs + ranks.at.origins)[row] = RowPlace{ranks.rank} << 32 | pair;
    }
  }
  send_record(params, token, wants_record || params.sums != 0 ? rank_of_lane : -1, row);
}

template <typename Id, RowFormat kFormat>
MOXIE_DEVICE void dispatch(const DispatchParams& params) {
  const RankParams& ranks = params.ranks;
  WindowHeader& own = header_of(ranks, ranks.rank);
  const int64_t first_of_places = column_blocks(params.tokens, params.columns);
  const bool has_columns = blockIdx.x < first_of_places;
  // Blocks with columns read what grids before exchange have written. Exchange has waited for those and then released
  // the flag, so that whoever acquires it need not wait.
  const bool early = __any_sync(~0u, ld_acquire_gpu(&own.sends_early) != 0);
  __syncwarp();
  if (!has_columns || !early) griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if ((params.halves & (has_columns && early ? kTell : kWait)) == 0) return;
  const int32_t tokens = real_tokens(params.token_count, params.tokens);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (has_columns) {
    const int64_t piece = int64_t{blockIdx.x} * kDispatchWarps + warp;
    const auto token = static_cast<int32_t>(piece / warps_of_columns(params.columns));
    if (token >= tokens || (!early && own.outcome != Outcome::Fine)) return;
    const auto thread = static_cast<int32_t>(piece % warps_of_columns(params.columns)) * 32 + lane;
    const int32_t place = place_of_lane<Id>(params, token);
    send_columns<kFormat>(params, token, thread, place < ranks.ranks * ranks.experts ? place / ranks.experts : -1);
  } else {
    const auto token = static_cast<int32_t>((blockIdx.x - first_of_places) * kDispatchWarps + warp);
    if (token < tokens && own.outcome == Outcome::Fine) send_places<Id>(params, token);
  }
}

}  // namespace moxie::kernel
