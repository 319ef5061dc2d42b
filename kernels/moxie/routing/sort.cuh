// SPDX-License-Identifier: Apache-2.0
// Sorts the pairs of token and expert by expert: stable, and by counting, so that the result depends on nothing but the
// ids. Up to a slice of pairs is placed by one block in one launch. More take three, of which the first two find out
// how many pairs of each expert lie before each slice:
//
//   count_pairs   a block a slice:     counts[slice][e] = pairs of expert e
//   scan_slices   a warp's lane an e:  counts[slice][e] = those of the slices before; totals[e] = all
//   place_pairs   a block a slice:     ends, order, inverse
//
// All of them wait for the predecessor grid before they touch global memory, and let the next one start right after.
#pragma once
#include "moxie/arguments.h"
#include "moxie/isa.cuh"
#include "moxie/routing/places.cuh"
#include "moxie/routing/tokens.cuh"

namespace moxie::kernel {

// The experts of this thread's pairs of a slice; `experts` for pairs of no expert of ours and those that do not exist.
template <typename Id>
MOXIE_DEVICE void load_experts(int32_t (&expert)[kSortRows], const SortParams& params, int32_t first_pair) {
  const Id* const ids = static_cast<const Id*>(params.ids);
  const int32_t pairs = real_tokens(params.token_count, params.tokens) * params.top_k;
  // All loads are on their way before the first is looked at.
  Id id[kSortRows];
#pragma unroll
  for (int i = 0; i < kSortRows; ++i) id[i] = first_pair + 32 * i < pairs ? ids[first_pair + 32 * i] : Id{-1};
#pragma unroll
  for (int i = 0; i < kSortRows; ++i)
    expert[i] = place_of(id[i], params.first_expert, params.ids_here, params.places, params.experts);
}

// The first of this thread's pairs: a warp has kSortWarpPairs in order, a thread every 32nd of them.
MOXIE_DEVICE int32_t first_pair_of_thread() {
  return blockIdx.x * kSortSlice + threadIdx.x / 32 * kSortWarpPairs + threadIdx.x % 32;
}

template <typename Id>
MOXIE_DEVICE void count_pairs(const SortParams& params) {
  __shared__ int32_t counts[kMaxRoutedExperts];
  const int thread = threadIdx.x;
  if (thread < params.experts) counts[thread] = 0;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  int32_t expert[kSortRows];
  load_experts<Id>(expert, params, first_pair_of_thread());
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSortRows; ++i) {
    if (expert[i] < params.experts) atomicAdd(&counts[expert[i]], 1);
  }
  __syncthreads();
  if (thread < params.experts) params.counts[blockIdx.x * params.experts + thread] = counts[thread];
}

// A block has 32 experts, one a lane, and each of its warps a part of the slices.
MOXIE_DEVICE void scan_slices(const SortParams& params) {
  constexpr int kWarps = kSortThreads / 32;
  __shared__ int32_t sums[kWarps][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int32_t expert = blockIdx.x * 32 + lane, part = (params.slices + kWarps - 1) / kWarps;
  const int32_t begin = min(warp * part, params.slices), end = min(begin + part, params.slices);
  const bool exists = expert < params.experts;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  int32_t sum = 0;
  if (exists) {
#pragma unroll 4
    for (int32_t slice = begin; slice < end; ++slice) sum += params.counts[slice * params.experts + expert];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (!exists) return;
  int32_t before = 0;
  for (int w = 0; w < warp; ++w) before += sums[w][lane];
  for (int32_t slice = begin; slice < end; ++slice) {
    int32_t& count = params.counts[slice * params.experts + expert];
    const int32_t here = count;
    count = before;
    before += here;
  }
  if (warp == kWarps - 1) params.totals[expert] = before;
}

// Sums over the lanes before this one and over the warps before this one, of two numbers at once.
class BlockScan {
 public:
  // The sums over the warp's lanes up to this one. The last lane hands the warp's on through `of_warps`.
  MOXIE_DEVICE BlockScan(int32_t& first, int32_t& second, int32_t (*of_warps)[2]) : of_warps_(of_warps) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int32_t a = __shfl_up_sync(~0u, first, step), b = __shfl_up_sync(~0u, second, step);
      if (lane >= step) first += a, second += b;
    }
    if (lane == 31) of_warps_[threadIdx.x / 32][0] = first, of_warps_[threadIdx.x / 32][1] = second;
  }
  // After a barrier: adds those of the warps before.
  MOXIE_DEVICE void add_warps_before(int32_t& first, int32_t& second) const {
    const bool before = threadIdx.x % 32 < threadIdx.x / 32;
    first += __reduce_add_sync(~0u, before ? of_warps_[threadIdx.x % 32][0] : 0);
    second += __reduce_add_sync(~0u, before ? of_warps_[threadIdx.x % 32][1] : 0);
  }

 private:
  int32_t (*of_warps_)[2];
};

template <typename Id>
MOXIE_DEVICE void place_pairs(const SortParams& params) {
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ int32_t of_warps[kSortThreads / 32][2];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int32_t all = params.tokens * params.top_k, slice_begin = blockIdx.x * kSortSlice;
  // Warps that have pairs, real or not. Others help with the experts.
  const int warps = (min(all - slice_begin, kSortSlice) + kSortWarpPairs - 1) / kSortWarpPairs;
  const PlaceLayout layout = place_layout(warps, params.experts);
  auto* const sorted = reinterpret_cast<uint32_t*>(shared);
  auto* const begins = reinterpret_cast<int32_t*>(shared + layout.begins);
  auto* const shifts = reinterpret_cast<int32_t*>(shared + layout.shifts);
  auto* const counters = reinterpret_cast<int32_t*>(shared + layout.counters);
  int32_t* const own = counters + warp * params.experts;
  if (warp < warps) {
    for (int e = lane; e < params.experts; e += 32) own[e] = 0;
  }
  __syncwarp();
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();

  // The pairs of each expert that lie before this slice, and all of them.
  int32_t before_slice = 0, total = 0;
  if (params.slices > 1 && thread < params.experts) {
    before_slice = params.counts[blockIdx.x * params.experts + thread];
    total = params.totals[thread];
  }

  // How many pairs of the same expert this warp has before each.
  const int32_t first_pair = first_pair_of_thread();
  int32_t expert[kSortRows];
  int32_t earlier[kSortRows];
  if (warp < warps) {
    load_experts<Id>(expert, params, first_pair);
#pragma unroll
    for (int i = 0; i < kSortRows; ++i) {
      const unsigned peers = __match_any_sync(~0u, expert[i]);
      const int leader = __ffs(peers) - 1;
      int32_t before = 0;
      if (lane == leader && expert[i] < params.experts) {
        before = own[expert[i]];
        own[expert[i]] = before + __popc(peers);
      }
      earlier[i] = __shfl_sync(~0u, before, leader) + __popc(peers & ((1u << lane) - 1));
      if (i + 1 < kSortRows) __syncwarp();
    }
  }
  __syncthreads();

  // The same over the warps, then over the experts.
  int32_t here = 0;
  if (thread < params.experts) {
    for (int w = 0; w < warps; ++w) {
      int32_t& counter = counters[w * params.experts + thread];
      const int32_t count = counter;
      counter = here;
      here += count;
    }
    if (params.slices == 1) total = here;
  }
  int32_t begin = here, row = total;
  const BlockScan scan(begin, row, of_warps);
  __syncthreads();
  scan.add_warps_before(begin, row);
  if (thread < params.experts) {
    if (blockIdx.x == 0) params.ends[thread] = row;
    begins[thread] = begin - here;
    shifts[thread] = row - total + before_slice - (begin - here);
    if (thread == params.experts - 1) begins[params.experts] = begin;
  }
  __syncthreads();

  if (warp < warps) {
#pragma unroll
    for (int i = 0; i < kSortRows; ++i) {
      const int32_t pair = first_pair + 32 * i;
      if (pair >= all) continue;
      int32_t sorted_row = -1;
      if (expert[i] < params.experts) {
        const int32_t place = begins[expert[i]] + own[expert[i]] + earlier[i];
        sorted[place] = static_cast<uint32_t>(pair - slice_begin) | static_cast<uint32_t>(expert[i]) << 16;
        sorted_row = place + shifts[expert[i]];
      }
      params.inverse[pair] = sorted_row;
    }
  }
  __syncthreads();

  // In the order of experts, so that neighboring threads mostly store to neighboring places.
  const int32_t placed = begins[params.experts];
  for (int32_t place = thread; place < placed; place += blockDim.x) {
    const uint32_t pair = sorted[place];
    params.order[place + shifts[pair >> 16]] = slice_begin + static_cast<int32_t>(pair & 0xffff);
  }
}

}  // namespace moxie::kernel
