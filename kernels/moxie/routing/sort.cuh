// SPDX-License-Identifier: Apache-2.0
// Sorts the pairs of token and expert by expert: stable, and by counting, so that the result depends on nothing but the
// ids. Few pairs are placed by one block in one launch. More are divided into slices and take two, of which the first
// finds out how many pairs of each expert lie before each slice:
//
//   count_pairs   a block a slice, kSortCluster blocks a cluster:   before, clusters
//   place_pairs   a block a slice:                                  ends, order, inverse
//
// Blocks of count_pairs wait for the predecessor grid and let the next one start right after. So the ids are complete
// when place_pairs starts, and it sorts its slice by itself before it waits for the counts.
#pragma once
#include "moxie/arguments.h"
#include "moxie/isa.cuh"
#include "moxie/routing/places.cuh"
#include "moxie/routing/tokens.cuh"

namespace moxie::kernel {

// The expert of each pair first + i * step that lies before `end`; `experts` for one that is none of ours and for the
// other pairs. All loads are on their way before the first is looked at. They read what L2 holds: with place_pairs the
// grid that wrote the ids is not the one before. kTable: SortParams::places may say where experts are.
template <typename Id, bool kTable, int kCount>
MOXIE_DEVICE void load_experts(int32_t (&expert)[kCount], const SortParams& params, int32_t first, int32_t step,
                               int32_t end) {
  const Id* const ids = static_cast<const Id*>(params.ids);
  Id id[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) id[i] = first + i * step < end ? __ldcg(ids + first + i * step) : Id{-1};
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    expert[i] = kTable ? place_of(id[i], params.first_expert, params.ids_here, params.places, params.experts)
                       : place_of(id[i], params.first_expert, params.experts, nullptr, params.experts);
}

// Pairs of tokens that there are.
MOXIE_DEVICE int32_t real_pairs(const SortParams& params) {
  return real_tokens(params.token_count, params.tokens) * params.top_k;
}

template <typename Id, bool kTable>
MOXIE_DEVICE void count_pairs(const SortParams& params) {
  __shared__ int32_t counts[kMaxRoutedExperts];
  const int thread = threadIdx.x;
  for (int e = thread; e < params.experts; e += kCountThreads) counts[e] = 0;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  __syncthreads();
  const int32_t of_slice = params.rounds * params.rows * kSortThreads, begin = blockIdx.x * of_slice;
  const int32_t end = min(begin + of_slice, real_pairs(params));
  constexpr int kLoads = 8;
  for (int32_t first = begin + thread; first < end; first += kLoads * kCountThreads) {
    int32_t expert[kLoads];
    load_experts<Id, kTable>(expert, params, first, kCountThreads, end);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (expert[i] < params.experts) atomicAdd(&counts[expert[i]], 1);
    }
  }
  barrier_cluster_sync();
  const int slice = blockIdx.x, rank = slice % kSortCluster;
#pragma unroll 1
  for (int e = thread; e < params.experts; e += kCountThreads) {
    int32_t before = 0, all = counts[e];
#pragma unroll
    for (int i = 1; i < kSortCluster; ++i) {
      const int other = (rank + i) % kSortCluster;
      const int32_t count = load_shared_cluster(&counts[e], other);
      before += other < rank ? count : 0;
      all += count;
    }
    if (slice < params.slices) params.before[slice * params.experts + e] = before;
    if (rank == 0) params.clusters[slice / kSortCluster * params.experts + e] = all;
  }
  barrier_cluster_sync();  // a peer may still read this block's counts
}

// Whole block, with a barrier: the sum of `value` over the threads up to this one.
MOXIE_DEVICE int32_t scan_block(int32_t value, int32_t (&of_warps)[kSortThreads / 32]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int32_t other = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += other;
  }
  if (lane == 31) of_warps[warp] = value;
  __syncthreads();
  return value + __reduce_add_sync(~0u, lane < warp ? of_warps[lane] : 0);
}

// Whole warp: adds to each expert, in its upper half, how many pairs of the same one the warp has before. `own` counts
// the warp's pairs of each expert. Lanes of the same expert find each other by a vote for every bit of the expert's
// number: match.any takes as many steps as the warp has experts.
MOXIE_DEVICE void rank_pairs(int32_t (&expert)[kSortRows], int32_t* own, const SortParams& params) {
  const unsigned lower = (1u << threadIdx.x % 32) - 1;
  constexpr int kTogether = 2, kBits = 3;  // rows and bits that share the instructions of a loop
#pragma unroll
  for (int i = 0; i < kSortRows; i += kTogether) {
    if (i >= params.rows) break;
    unsigned same[kTogether];
#pragma unroll
    for (unsigned& lanes : same) lanes = ~0u;
    for (int32_t bits = 1; bits <= params.experts; bits <<= kBits) {
#pragma unroll
      for (int b = 0; b < kBits; ++b) {
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          const bool set = (expert[i + j] & bits << b) != 0;
          const unsigned those = __ballot_sync(~0u, set);
          same[j] &= set ? those : ~those;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      int32_t before = 0;
      if ((same[j] & lower) == 0) {
        before = own[expert[i + j]];
        own[expert[i + j]] = before + __popc(same[j]);
      }
      expert[i + j] |= (__shfl_sync(~0u, before, __ffs(same[j]) - 1) + __popc(same[j] & lower)) << 16;
      if (i + j + 1 < kSortRows) __syncwarp();
    }
  }
}

template <typename Id, bool kTable>
MOXIE_DEVICE void place_pairs(const SortParams& params) {
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ int32_t of_warps[2][kSortThreads / 32];
  __shared__ int32_t placed;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, experts = params.experts;
  const int32_t all = params.tokens * params.top_k, of_warp = params.rows * 32;
  // Warps that have pairs. Others help with the experts.
  const int warps = params.slices > 1 ? kSortThreads / 32 : (all + of_warp - 1) / of_warp;
  const PlaceLayout layout = place_layout(warps, params.rows, experts);
  auto* const sorted = reinterpret_cast<int32_t*>(shared);
  auto* const shifts = reinterpret_cast<int32_t*>(shared + layout.shifts);
  auto* const counters = reinterpret_cast<int32_t*>(shared + layout.counters);
  int32_t* const own = counters + warp * (experts + 1);
  if (params.slices == 1) {
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
  }
  int32_t next_row = 0;  // of expert `thread`
  for (int32_t round = 0; round < params.rounds; ++round) {
    const int32_t round_begin = (blockIdx.x * params.rounds + round) * warps * of_warp;
    const int32_t first = round_begin + warp * of_warp + lane;
    int32_t pairs[kSortRows];  // the expert, and above it first a rank and then a place
    if (warp < warps) {
      load_experts<Id, kTable>(pairs, params, first, 32, min(first - lane + of_warp, real_pairs(params)));
      for (int e = lane; e <= experts; e += 32) own[e] = 0;
      __syncwarp();
      rank_pairs(pairs, own, params);
    }
    __syncthreads();

    // Where the pairs of each expert begin in the round, and in each warp. Loads of a batch come before its stores,
    // which the compiler would not change places with.
    constexpr int kBatch = 8;
    int32_t here = 0;
    if (thread < experts) {
#pragma unroll kBatch
      for (int w = 0; w < warps; ++w) here += counters[w * (experts + 1) + thread];
    }
    const int32_t begin = scan_block(here, of_warps[0]) - here;
    if (thread < experts) {
      int32_t next = begin;
      for (int w = 0; w < warps; w += kBatch) {
        int32_t count[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) count[i] = w + i < warps ? counters[(w + i) * (experts + 1) + thread] : 0;
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          if (w + i < warps) counters[(w + i) * (experts + 1) + thread] = next;
          next += count[i];
        }
      }
      if (thread == experts - 1) placed = next;
    }
    __syncthreads();
    if (warp < warps) {
#pragma unroll
      for (int i = 0; i < kSortRows; ++i) {
        if (i >= params.rows) break;
        const int32_t expert = pairs[i] & 0xffff;
        if (expert == experts) continue;
        pairs[i] += own[expert] << 16;
        sorted[pairs[i] >> 16] = (first + 32 * i - round_begin) << 16 | expert;
      }
    }

    // From places to rows.
    if (round == 0) {
      int32_t total = here, before = 0;
      if (params.slices > 1) {
        griddepcontrol_wait();
        griddepcontrol_launch_dependents();
        total = 0;
        if (thread < experts) {
          const int clusters = sort_clusters(params.slices), cluster = blockIdx.x / kSortCluster;
          before = params.before[blockIdx.x * experts + thread];
#pragma unroll 8
          for (int c = 0; c < clusters; ++c) {
            const int32_t count = params.clusters[c * experts + thread];
            before += c < cluster ? count : 0;
            total += count;
          }
        }
      }
      const int32_t end = scan_block(total, of_warps[1]);
      if (thread < experts && blockIdx.x == 0) params.ends[thread] = end;
      next_row = end - total + before;
    }
    if (thread < experts) shifts[thread] = next_row - begin;
    next_row += here;
    __syncthreads();
    if (warp < warps) {
#pragma unroll
      for (int i = 0; i < kSortRows; ++i) {
        if (i >= params.rows) break;
        const int32_t pair = first + 32 * i, expert = pairs[i] & 0xffff;
        if (pair < all) params.inverse[pair] = expert == experts ? -1 : (pairs[i] >> 16) + shifts[expert];
      }
    }
    // In the order of experts, so that neighboring threads mostly store to neighboring places.
    for (int32_t at = thread; at < placed; at += blockDim.x) {
      const int32_t pair = sorted[at];
      params.order[at + shifts[pair & 0xffff]] = round_begin + (pair >> 16);
    }
  }
}

}  // namespace moxie::kernel
