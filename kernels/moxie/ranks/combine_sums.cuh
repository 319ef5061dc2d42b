// SPDX-License-Identifier: Apache-2.0
// All of combine where sums travel back: sums the rows that our experts made of each token of another rank, writes the
// sum into that rank's window, and adds to the rows that our experts made of our own tokens the sums that the other
// ranks have written into our window. Sums are made in float32, in the order of a token's choices. Sending keeps NVLink
// busy and adding local memory, so both happen at once: a block has one block of columns, eight of a token for each
// thread, and sends a chunk of every rank's tokens before it adds the chunk of ours that is as far as the one that it
// sent before.
//
// A rank tells another that the sums of a chunk are there by the number of the call in a flag of this rank, chunk and
// block of columns: a release at system scope behind a barrier, and with it what the block's threads have stored before
// (PTX ISA 8.8 to 8.10). Whoever adds them acquires the flag and brings its warp together.
//
// Ranks cannot wait for each other in a ring. A block sends chunk n to all ranks before it waits for chunk n of them,
// and comes to its chunks in the order of their numbers. Of all chunks that anybody waits for, let n be the lowest. The
// block that shall send it runs, since all blocks of a grid do, and has not come to it, so it could only wait for a
// chunk that is lower than n.
#pragma once
#include "moxie/ranks/combine.cuh"
#include "moxie/ranks/record.cuh"

namespace moxie::kernel {

// Adds the weighted rows of a token that our experts made to eight columns of a sum, in the order of its choices. Lane
// j has choice j's row and weight; a row below 0 is skipped. All lanes of a warp take part.
MOXIE_DEVICE void add_our_rows(float (&sum)[8], const CombineSumsParams& params, int32_t row_of_lane,
                               float weight_of_lane, bool exists, int32_t column) {
  constexpr int kAtOnce = 3;  // with more rows on their way a multiprocessor holds fewer threads
  for_rows<kAtOnce, DataType::Bf16>(
      __ballot_sync(~0u, row_of_lane >= 0), row_of_lane, exists, column,
      [&](int32_t row) { return static_cast<const uint8_t*>(params.sum.from) + int64_t{row} * params.sum.columns * 2; },
      [&](const Eight<DataType::Bf16>& row, int lane) {
        const float weight = __shfl_sync(~0u, weight_of_lane, lane);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[i] = fmaf(weight, row[i], sum[i]);
      });
}

// Tokens of a chunk that a rank has: none beyond its last, but a first chunk even if it has no token.
MOXIE_DEVICE bool has_chunk(const WindowHeader& own, int rank, int32_t first_token) {
  return first_token < max(own.tokens[rank], 1);
}

// Where `from` tells `rank` that a chunk has come, this block's columns of it.
MOXIE_DEVICE uint32_t* sum_flag(const RankParams& ranks, int rank, int from, int32_t chunk) {
  auto* const flags = reinterpret_cast<uint32_t*>(ranks.windows[rank] + ranks.at.flags);
  return flags + from * kSumFlags + chunk * gridDim.y + blockIdx.y;
}

// A record, and of lane j the weight of choice j. It is asked for while the rows of the one before are on their way.
struct WeightedRecord : RecordOfLanes {
  float weight = 0;

  MOXIE_DEVICE void load(const int32_t* record, int32_t top_k) {
    RecordOfLanes::load(record, top_k);
    const int lane = threadIdx.x % 32;
    if (lane < top_k) weight = __int_as_float(record[2 + top_k + lane]);
  }
};

// Sends the sums of all other ranks' tokens from `first` on, so many of each.
template <DataType kSums>
MOXIE_DEVICE void send_chunk(const CombineSumsParams& params, const WindowHeader& own, int32_t first, int32_t tokens) {
  const RankParams& ranks = params.ranks;
  const int32_t* const records = records_of(ranks);
  const uint32_t call = own.call;
  const int32_t top_k = params.sum.top_k, columns = params.sum.columns;
  const int32_t column = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
  const bool exists = column < columns;
  // Each block begins with another rank, so that at every time sums are on their way to all ranks.
  const int first_rank = blockIdx.x % ranks.ranks;
  int to = first_rank;
#pragma unroll 1
  do {
    const int32_t end = to == ranks.rank ? first : min(first + tokens, own.tokens[to]);
    const int32_t* record = records + (int64_t{to} * ranks.tokens + first) * record_words(top_k);
    WeightedRecord next;
    if (first < end) next.load(record, top_k);
#pragma unroll 1
    for (int32_t token = first; token < end; ++token) {
      const WeightedRecord now = next;
      record += record_words(top_k);
      if (token + 1 < end) next.load(record, top_k);
      if (!now.has_come(ranks, call)) continue;
      const int32_t row = now.row(ranks, top_k);
      // Ranks with few tokens have a record of each on every rank.
      if (!__any_sync(~0u, row >= 0)) continue;
      float sum[8] = {};
      add_our_rows(sum, params, row, now.weight, exists, column);
      const int64_t place = int64_t{ranks.rank} * ranks.tokens + token;
      if (exists) store_eight(ranks.windows[to] + ranks.at.sums, place * columns + column, sum, kSums);
    }
    to = to + 1 == ranks.ranks ? 0 : to + 1;
  } while (to != first_rank);
}

// By one warp, behind a barrier.
MOXIE_DEVICE void tell_chunk(const RankParams& ranks, const WindowHeader& own, int32_t chunk, int32_t first) {
#pragma unroll 1
  for (int rank = threadIdx.x; rank < ranks.ranks; rank += 32) {
    if (rank != ranks.rank && has_chunk(own, rank, first))
      st_release_sys(sum_flag(ranks, rank, ranks.rank, chunk), own.call);
  }
}

// Adds to our rows of a chunk of our own tokens what the other ranks have sent, one sum of each rank that has any of a
// token's experts, in the order of its first choice there. False when a rank is late.
template <DataType kSums, DataType kOut>
MOXIE_DEVICE bool add_chunk(const CombineSumsParams& params, WindowHeader& own, int32_t chunk, int32_t first,
                            int32_t tokens, bool go_on) {
  const RankParams& ranks = params.ranks;
  const int lane = threadIdx.x % 32;
  const int32_t top_k = params.sum.top_k;
  const int32_t column = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
  const bool exists = column < params.sum.columns;
  const uint8_t* const sums = ranks.windows[ranks.rank] + ranks.at.sums;
  const int32_t end = min(first + tokens, own.tokens[ranks.rank]);
  int32_t token = first;
#pragma unroll 1
  do {
    RowPlace at = -1;
    float weight = 1;
    if (token < end && lane < top_k) {
      const int64_t pair = int64_t{token} * top_k + lane;
      at = params.rows[pair];
      if (params.sum.weights != nullptr) weight = params.sum.weights[pair];
    }
    const auto rank_of_lane = static_cast<int32_t>(at >> 32);
    float ours[8] = {};
    const int32_t row = rank_of_lane == ranks.rank ? static_cast<int32_t>(at) : -1;
    add_our_rows(ours, params, row, weight, exists, column);
    // The flags may come meanwhile.
    if (token == first && go_on) {
      go_on = wait_for_results(ranks, own, [&](int rank) { return sum_flag(ranks, ranks.rank, rank, chunk); });
      __syncwarp();
    }
    if (token >= end) break;
    if (!go_on) {
      store_nan<kOut>(params.sum, token, column);
      continue;
    }
    const unsigned same = __match_any_sync(~0u, rank_of_lane);
    unsigned senders = __ballot_sync(~0u, rank_of_lane >= 0 && lane == __ffs(same) - 1);
    float sum[8] = {};
    if (exists && params.sum.residual != nullptr) {
      Eight<kOut> residual;
      residual.load(params.sum.residual, token * params.sum.ld_residual + column);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] = residual[i];
    }
#pragma unroll 1
    for (; senders != 0; senders &= senders - 1) {
      const int32_t rank = __shfl_sync(~0u, rank_of_lane, __ffs(senders) - 1);
      if (rank == ranks.rank) {
        // Rounded as those that travel.
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[i] += kSums == DataType::F32 ? ours[i] : bf16_low(cvt_bf16x2(ours[i], 0));
      } else if (exists) {
        Eight<kSums> theirs;
        theirs.load(sums, (int64_t{rank} * ranks.tokens + token) * params.sum.columns + column);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[i] += theirs[i];
      }
    }
    if (exists) store_eight(params.sum.out, token * params.sum.ld_out + column, sum, kOut);
  } while (++token < end);
  return go_on;
}

template <DataType kOut, ResultFormat kResults>
MOXIE_DEVICE void combine_sums(const CombineSumsParams& params) {
  constexpr DataType kSums = kResults == ResultFormat::Sums ? DataType::F32 : DataType::Bf16;
  griddepcontrol_wait();
  // Every block of ours runs by when the grid behind begins, so it takes nobody's place.
  griddepcontrol_launch_dependents();
  const RankParams& ranks = params.ranks;
  WindowHeader& own = header_of(ranks, ranks.rank);
  if (own.outcome != Outcome::Fine) {
    if ((params.halves & kWait) == 0) return;
    const int32_t tokens = real_tokens(params.sum.token_count, params.sum.tokens);
    for (int32_t token = blockIdx.x; token < tokens; token += gridDim.x)
      store_nan<kOut>(params.sum, token, (blockIdx.y * blockDim.x + threadIdx.x) * 8);
    return;
  }
  const int32_t blocks = gridDim.x, of_chunk = tokens_of_chunk(own.most_tokens, gridDim.y);
  bool go_on = true;
#pragma unroll 1
  for (int32_t chunk = blockIdx.x;; chunk += blocks) {
    const int32_t first = chunk * of_chunk;
    const bool sends = first < max(own.most_tokens, 1);
    if (sends && (params.halves & kTell)) {
      send_chunk<kSums>(params, own, first, of_chunk);
      __syncthreads();
      if (threadIdx.x < 32) tell_chunk(ranks, own, chunk, first);
    }
    const int32_t before = first - blocks * of_chunk;
    if (before >= 0 && (params.halves & kWait) && has_chunk(own, ranks.rank, before))
      go_on = add_chunk<kSums, kOut>(params, own, chunk - blocks, before, of_chunk, go_on);
    if (!sends) return;
  }
}

}  // namespace moxie::kernel
