// The Hopper bf16 grouped GEMM: D[g] = A[g] B[g]^T in float32, then the epilogue's sinks. Persistent and
// warp-specialised: warp group 0 loads, warp groups 1 and 2 multiply and store.
//   Cooperative: the two consumers halve the rows of one tile.
//   Ping-pong: they take tiles in turn; while one stores its tile, the other has the tensor cores.
#pragma once
#include "moxie/epilogue/epilogue.cuh"
#include "moxie/epilogue/store.cuh"
#include "moxie/hopper/mainloop.cuh"
#include "moxie/scheduler.cuh"

namespace moxie::kernel {

// Named barriers (0 is __syncthreads): one for each consumer's epilogue, one for each consumer's turn.
constexpr int kEpilogueBarrier = 1;
constexpr int kTurnBarrier = kEpilogueBarrier + kConsumerWarpGroups;

// Registers a thread before and after the hand-over from producer to consumers: 3 x 168 = 40 + 2 x 232.
constexpr int kProducerRegisters = 40;
constexpr int kConsumerRegisters = 232;

template <HopperConfig C, class... Sinks>
MOXIE_DEVICE void hopper_grouped_gemm(const GemmParams& gemm, const typename Sinks::Params&... params) {
  using Loop = HopperMainloop<C>;
  using Traits = SinkTraits<C, Sinks...>;
  constexpr HopperSharedLayout kShared = Traits::kShared;
  static_assert(kShared.bytes <= kMaxSharedBytes, "fewer stages or a smaller tile");

  extern __shared__ __align__(1024) uint8_t shared[];
  const typename Loop::Ring ring{reinterpret_cast<uint64_t*>(shared + kShared.full),
                                 reinterpret_cast<uint64_t*>(shared + kShared.empty)};
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  SinkList<Sinks...> sinks(params...);

  // With few rows a block has a tile or two, and what comes before the first copy counts: not the loading warp does
  // this, and the sizes are on their way before the barrier.
  if (warp == (C.decode_tile ? 1 : 0) && elect()) {
    if constexpr (!operands_need_group_maps(C.grouping)) {
      prefetch_tensormap(&gemm.a);
      prefetch_tensormap(&gemm.b);
      if constexpr (loads_in_parts(C)) prefetch_tensormap(&gemm.a_part);
    }
    sinks.for_each([](auto& sink) {
      using Sink = cuda::std::remove_reference_t<decltype(sink)>;
      if constexpr (Sink::kNeeds.tensor_map && !outputs_need_group_maps(C.grouping)) prefetch_tensormap(&sink.map());
    });
    ring.init();
  }
  Scheduler<C> scheduler(gemm);
  // The kernel before this one may still run. Its results are there behind griddepcontrol.wait. With weights_ready B
  // and sizes are not among them, and only A, outputs and the workspace are touched behind it.
  const bool early = !operands_need_group_maps(C.grouping) && gemm.weights_ready != 0;
  if constexpr (C.cluster > 1) barrier_cluster_arrive_relaxed();
  if constexpr (C.decode_tile) {
    if (!early) griddepcontrol_wait();
    scheduler.fetch();
  }
  // The peer's copies and arrivals must find the barriers initialised: nothing else, so init()'s fence is enough.
  if constexpr (C.cluster > 1) {
    barrier_cluster_wait();
  } else {
    __syncthreads();
  }
  if constexpr (!C.decode_tile) {
    if (!early) griddepcontrol_wait();
  }

  uint8_t* slots = nullptr;
  if constexpr (workspace_maps(C, 1) > 0 && (operands_need_group_maps(C.grouping) || Traits::kGroupMaps > 0)) {
    slots = gemm.workspace + static_cast<uint64_t>(blockIdx.x) * (workspace_maps(C, Traits::kGroupMaps) * kMapBytes);
  }
  Tile tile;

  if (warp < 4) {
    setmaxnreg_dec<kProducerRegisters>();
    if (warp == 0) {
      typename Loop::Loader loader(gemm, ring, shared + kShared.a, shared + kShared.b, shared + kShared.operand_maps,
                                   slots);
      for (bool first = early;; first = false) {
        const bool more = scheduler.next(tile);
        if (first) {
          if (more) loader.load_b_ahead(tile);
          griddepcontrol_wait();  // also where there is no tile: the next kernel trusts that this one has waited
        }
        if (!more) break;
        loader.load(tile);
      }
      griddepcontrol_launch_dependents();
    }
  } else {
    setmaxnreg_inc<kConsumerRegisters>();
    if (early) griddepcontrol_wait();  // before outputs and the workspace are written
    const int warp_group = warp / 4 - 1;
    constexpr int kOperandSlots = operands_need_group_maps(C.grouping) ? 2 * kMapSlots * kMapBytes : 0;
    Epilogue<C, Sinks...> epilogue(gemm, sinks, shared, slots + kOperandSlots, warp_group,
                                   kEpilogueBarrier + warp_group);
    typename Loop::Position at;

    if constexpr (C.schedule == WarpSchedule::Cooperative) {
      const uint8_t* a = shared + kShared.a + warp_group * warp_group_rows(C) * 128;
      while (scheduler.next(tile)) {
        typename Loop::Accumulator acc;  // not carried from tile to tile
        epilogue.prefetch(tile);
        Loop::multiply(acc, ring, at, tile.k_tiles(), a, shared + kShared.b, lane, [] {});
        epilogue.run(acc, tile);
      }
    } else {
      // The tiles go to the warp groups in turn. A warp group may wait for full stages only after the other has waited
      // for all of its own: until then a stage's barrier could be a whole phase behind and its parity would lie.
      bool more = scheduler.next(tile);
      bool first = warp_group == 0;
      if (warp_group == 1 && more) {
        at.advance(tile.k_tiles());
        more = scheduler.next(tile);
      }
      while (more) {
        typename Loop::Accumulator acc;
        Tile others;
        const bool another = scheduler.next(others);
        epilogue.prefetch(tile);
        if (!first) bar_sync(kTurnBarrier + warp_group, 256);
        first = false;
        Loop::multiply(acc, ring, at, tile.k_tiles(), shared + kShared.a, shared + kShared.b, lane, [&] {
          if (another) bar_arrive(kTurnBarrier + (warp_group ^ 1), 256);
        });
        epilogue.run(acc, tile);
        if (!another) break;
        at.advance(others.k_tiles());
        more = scheduler.next(tile);
      }
    }
    epilogue.finish();
  }

  if constexpr (C.cluster > 1) barrier_cluster_sync();  // the peer may still arrive at barriers here
}

}  // namespace moxie::kernel
