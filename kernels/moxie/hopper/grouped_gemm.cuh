// SPDX-License-Identifier: Apache-2.0
// The Hopper bf16 grouped GEMM: D[g] = A[g] B[g]^T in float32, then the epilogue's sinks. Persistent and
// warp-specialized.
//
//   warp group 0, warp 0   producer    loads tiles of A and B into the ring of stages
//   warp groups 1 and 2    consumers   multiply stages into their registers, run the epilogue and store
//   warp groups 3 and 4    consumers   as well, with packed weights and fewer than 64 rows
//
// Where rows of A are gathered, the other warps of warp group 0 are producers, too: they copy A.
//
//              full[stage]
//   producer ---------------> consumer 1 ---> sinks
//            <--------------- consumer 2 ---> sinks
//              empty[stage]
//
//   kEpilogueBarrier + i   named barrier of consumer i, within its epilogue
//   kTurnBarrier + i       ping-pong: consumer i waits here for its turn at the tensor cores
//
// Cooperative: the consumers divide the rows of one tile among them, with packed weights its columns in strips of 64,
// and all read every stage. Where there are more consumers than strips, two share a strip: each takes every other slab
// of 64 columns of K, and the first adds the other's sums to its own.
// Ping-pong: the consumers take tiles in turn. While one stores its tile, the other has the tensor cores.
//
//   consumer 1   [ multiply tile 0 ][ epilogue 0        ][ multiply tile 2 ][ epilogue 2 ...
//   consumer 2                      [ multiply tile 1 ][ epilogue 1        ][ multiply tile 3 ...
//
// With a cluster of two blocks, copies of shared tiles complete `full` in both blocks, and consumers complete `empty`
// in both.
#pragma once
#include "moxie/epilogue/epilogue.cuh"
#include "moxie/epilogue/store.cuh"
#include "moxie/hopper/loader.cuh"
#include "moxie/hopper/mainloop.cuh"
#include "moxie/hopper/packed_mainloop.cuh"
#include "moxie/scheduler.cuh"

namespace moxie::kernel {

// Named barriers (0 is __syncthreads): one for each consumer's epilogue, one for each consumer's turn.
constexpr int kEpilogueBarrier = 1;
constexpr int kTurnBarrier = kEpilogueBarrier + 2;
// Of packed weights, for each strip of 64 columns: partial sums are there, and they have been taken.
constexpr int kPartialBarrier = kEpilogueBarrier + 4;
constexpr int kTakenBarrier = kPartialBarrier + 2;

// Registers of a thread after the hand-over from producer to consumers. Before it has 168: 3 x 168 = 40 + 2 x 232. The
// loader needs more with packed weights or gathered rows, 56 + 2 x 224, with both, 72 + 2 x 216, and for the addresses
// of 16 gathered rows, 88 + 2 x 208. With four consumers it has 96: 5 x 96 = 64 + 4 x 104.
constexpr int producer_registers(const HopperConfig& c) {
  if (consumer_warp_groups(c) == 4) return 64;
  if (c.gather && c.block_m == 256) return 88;
  return 40 + (c.gather ? 16 : 0) + (has_packed_b(c) ? 16 : 0);
}
constexpr int consumer_registers(const HopperConfig& c) {
  return consumer_warp_groups(c) == 4 ? 104 : (3 * 168 - producer_registers(c)) / 2;
}

// The prologue, first half: prefetches tensor maps and initializes barriers.
template <HopperConfig C, class... Sinks>
MOXIE_DEVICE void initialize(const GemmParams& gemm, SinkList<Sinks...>& sinks,
                             const typename MainloopOf<C>::Ring& ring, int warp) {
  // Decode kernels run one or two tiles per block, so the time before the first copy matters: warp 1 does this while
  // warp 0 prepares to load.
  if (warp == (C.decode_tile ? 1 : 0) && elect()) {
    if constexpr (!operands_need_group_maps(C.grouping)) {
      if constexpr (!C.gather) prefetch_tensormap(&gemm.a);
      if constexpr (!has_packed_b(C)) prefetch_tensormap(&gemm.b);
      if constexpr (loads_in_parts(C)) prefetch_tensormap(&gemm.a_part);
    }
    sinks.for_each([](auto& sink) {
      using Sink = cuda::std::remove_reference_t<decltype(sink)>;
      if constexpr (Sink::kNeeds.tensor_map && !outputs_need_group_maps(C.grouping)) prefetch_tensormap(&sink.map());
    });
    ring.init();
  }
}

// The prologue, second half: makes the barriers visible to every thread of the cluster, and waits for the predecessor
// grid where `early` is false. With `early`, B and sizes may be read behind it, but A, outputs and the workspace are
// touched only after griddepcontrol.wait.
template <HopperConfig C>
MOXIE_DEVICE void synchronize(Scheduler<C>& scheduler, bool early) {
  if constexpr (C.cluster > 1) barrier_cluster_arrive_relaxed();
  // A decode kernel's sizes are on the way before the barrier.
  if constexpr (C.decode_tile) {
    if (!early) griddepcontrol_wait();
    scheduler.fetch();
  }
  // The peer's copies and arrivals must find the barriers initialized. Nothing else is handed over here, so the fence
  // of ring.init() is enough beside a relaxed arrival.
  if constexpr (C.cluster > 1) {
    barrier_cluster_wait();
  } else {
    __syncthreads();
  }
  if constexpr (!C.decode_tile) {
    if (!early) griddepcontrol_wait();
  }
}

template <HopperConfig C, class... Sinks>
MOXIE_DEVICE void hopper_grouped_gemm(const GemmParams& gemm, const typename Sinks::Params&... params) {
  using Loop = MainloopOf<C>;
  using Traits = SinkTraits<C, Sinks...>;
  constexpr HopperSharedLayout kShared = Traits::kShared;
  static_assert(kShared.bytes <= kMaxSharedBytes, "fewer stages or a smaller tile");

  // Shared memory and barriers.
  extern __shared__ __align__(1024) uint8_t shared[];
  const typename Loop::Ring ring{reinterpret_cast<uint64_t*>(shared + kShared.full),
                                 reinterpret_cast<uint64_t*>(shared + kShared.empty)};
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  SinkList<Sinks...> sinks(params...);

  // Prologue. The predecessor grid may still be running; with weights_ready it writes neither B nor sizes.
  initialize<C>(gemm, sinks, ring, warp);
  Scheduler<C> scheduler(gemm);
  const bool early = !operands_need_group_maps(C.grouping) && gemm.weights_ready != 0;
  synchronize<C>(scheduler, early);

  uint8_t* slots = nullptr;
  if constexpr (workspace_maps(C, 1) > 0 && (operands_need_group_maps(C.grouping) || Traits::kGroupMaps > 0)) {
    slots = gemm.workspace + static_cast<uint64_t>(blockIdx.x) * (workspace_maps(C, Traits::kGroupMaps) * kMapBytes);
  }
  Tile tile;

  if (warp < 4) {
    // Producer: one warp loads, or all that copy gathered rows. The others only give their registers away.
    constexpr int kWarps = producer_warps(C);
    setmaxnreg_dec<producer_registers(C)>();
    if (kWarps == 1 ? warp == 0 : warp < kWarps) {
      HopperLoader<C> loader(gemm, ring, shared + kShared.a, shared + kShared.b, shared + kShared.operand_maps, slots);
      for (bool first = early;; first = false) {
        const bool more = scheduler.next(tile);
        if (first) {
          if (more) loader.load_b_ahead(tile);
          // A block without any tile waits as well: the dependent grid relies on every block having waited.
          griddepcontrol_wait();
        }
        if (!more) break;
        loader.load(tile);
      }
      griddepcontrol_launch_dependents();
    }
  } else {
    // Consumers.
    setmaxnreg_inc<consumer_registers(C)>();
    if (early) griddepcontrol_wait();  // before outputs and the workspace are written
    const int warp_group = warp / 4 - 1;
    constexpr int kOperandSlots = operand_maps(C) * kMapSlots * kMapBytes;
    Epilogue<C, Sinks...> epilogue(gemm, sinks, shared, slots + kOperandSlots, warp_group,
                                   kEpilogueBarrier + warp_group);
    typename Loop::Position at;
    // Whether this warp group has handed partial sums over and not yet waited until they were taken.
    [[maybe_unused]] bool handed_over = false;

    // One tile from its first stage to its sinks. Ping-pong warp groups call wait_turn() before the first stage, and
    // all_issued() when the tensor cores have the last.
    const auto compute = [&](const Tile& of, auto&& wait_turn, auto&& all_issued) {
      typename Loop::Accumulator acc;  // declared here, so that it is not carried from tile to tile
      if constexpr (has_packed_b(C)) {
        const typename Loop::Part part = Loop::part_of(gemm, of, warp_group);
        const int thread = threadIdx.x % 128;
        Tile own = of;
        own.column = part.column;
        typename Loop::Shifts shifts;
        if (part.first_slab == 0) {
          epilogue.prefetch(own);
          shifts = typename Loop::Shifts(part, thread);
        }
        const uint8_t* b = shared + kShared.b + (part.column - of.column) / kPackRows * Loop::kStripBytes;
        Loop::multiply(acc, ring, at, of.rows, of.k, part, shared + kShared.a, b, thread);
        if constexpr (Loop::kParts > 1) {
          const int strip = warp_group % Loop::kStrips;
          float* const partials =
              reinterpret_cast<float*>(shared + kShared.partials + strip * partial_bytes(C)) + thread;
          if (part.first_slab > 0) {
            if (handed_over) bar_sync(kTakenBarrier + strip, 128 * Loop::kParts);
            Loop::hand_over(acc, partials);
            bar_arrive(kPartialBarrier + strip, 128 * Loop::kParts);
            handed_over = true;
            return;
          }
          bar_sync(kPartialBarrier + strip, 128 * Loop::kParts);
          Loop::add(acc, partials);
          bar_arrive(kTakenBarrier + strip, 128 * Loop::kParts);
        }
        typename Loop::Factors factors;
        shifts.get(factors);
        if constexpr (Traits::kByWarps) {
          epilogue.run_by_warps(acc, factors, own);
        } else if constexpr (Traits::kStoresTransposed) {
          epilogue.run_to_transposed_sinks(acc, factors, own);
        } else {
          epilogue.run_transposed(acc, factors, own);
        }
      } else {
        // Cooperative: this consumer's half of the tile's rows.
        constexpr int kHalf = C.schedule == WarpSchedule::Cooperative ? warp_group_rows(C) * kStageRowBytes : 0;
        epilogue.prefetch(of);
        wait_turn();
        Loop::multiply(acc, ring, at, of.k_tiles(C.block_k), shared + kShared.a + warp_group * kHalf,
                       shared + kShared.b, lane, all_issued);
        epilogue.run(acc, of);
      }
    };

    if constexpr (C.schedule == WarpSchedule::Cooperative) {
      // Every consumer takes every tile, a part of it.
      while (scheduler.next(tile))
        compute(
            tile, [] {}, [] {});
    } else {
      // Each consumer takes every other tile and skips the stages of the tiles between. A consumer may wait for full
      // stages only after the other one has waited for all stages of its tile. Until then the barrier of a stage could
      // be a whole phase behind, and its parity would lie.
      bool more = scheduler.next(tile);
      bool first = warp_group == 0;
      if (warp_group == 1 && more) {
        at.advance(tile.k_tiles(C.block_k));
        more = scheduler.next(tile);
      }
      while (more) {
        Tile others;  // the next tile, which the other consumer computes
        const bool another = scheduler.next(others);
        compute(
            tile,
            [&] {
              if (!first) bar_sync(kTurnBarrier + warp_group, 256);
              first = false;
            },
            [&] {
              if (another) bar_arrive(kTurnBarrier + (warp_group ^ 1), 256);
            });
        if (!another) break;
        at.advance(others.k_tiles(C.block_k));
        more = scheduler.next(tile);
      }
    }
    epilogue.finish();
  }

  if constexpr (C.cluster > 1) barrier_cluster_sync();  // the peer may still arrive at barriers of this block
}

}  // namespace moxie::kernel
