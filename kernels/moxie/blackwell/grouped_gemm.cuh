// SPDX-License-Identifier: Apache-2.0
// The Blackwell grouped GEMM: D[g] = A[g] B[g]^T in float32, then the epilogue's sinks. Persistent and
// warp-specialized.
//
//   warp 0       every block    loads A, B and their scales into the ring of stages
//   warp 1       first block    multiplies stages into an accumulator in tensor memory
//   warp 2       every block    allocates tensor memory and frees it
//   warp 3       first block    with launch control, asks the device for further tiles
//   warps 4 - 7  every block    read the accumulator, run the epilogue and store
//
//            full[stage]                computed[accumulator]
//   loader ---------------> issuer --------------------------> epilogue ---> sinks
//          <---------------        <--------------------------
//            empty[stage]                stored[accumulator]
//
//              answered[answer]
//   warp 3 ------------------------> the scheduler of every role
//          <------------------------
//              taken[answer]
//
// With two accumulators a tile is stored while the next one is computed. The blocks of a pair share a tile of 256 rows
// (with swap_ab of 256 columns): the first block's issuer multiplies for both.
#pragma once
#include "moxie/blackwell/accumulator_reader.cuh"
#include "moxie/blackwell/issuer.cuh"
#include "moxie/blackwell/launch_queue.cuh"
#include "moxie/blackwell/loader.cuh"
#include "moxie/epilogue/epilogue.cuh"
#include "moxie/epilogue/store.cuh"

namespace moxie::kernel {

constexpr int kTensorEpilogueBarrier = 1;  // a named barrier; 0 is __syncthreads
constexpr int kEpilogueWarps = 4;
// Warps of a cluster that walk over its tiles: in every block the loader and the epilogue, in the first block also the
// issuer and the warp that asks.
constexpr uint32_t tile_readers(int cluster) { return cluster * (1 + kEpilogueWarps) + 2; }

// Everything that no tile depends on: barriers, tensor maps, tensor memory. Returns the address of the tensor memory
// when all of it is visible to every thread of the cluster. It touches no global memory.
template <BlackwellConfig C, class... Sinks>
MOXIE_DEVICE uint32_t prologue(const GemmParams& gemm, const ScaleParams* scales, SinkList<Sinks...>& sinks,
                               const typename Stages<C>::Ring& ring,
                               const typename Stages<C>::Accumulators& accumulators, const TileQueue<C>& queue,
                               uint32_t* tensor_address, int warp) {
  if (warp == 0 && elect()) {
    if constexpr (!operands_need_group_maps(C.grouping)) {
      prefetch_tensormap(&gemm.a);
      prefetch_tensormap(&gemm.b);
    }
    if constexpr (has_scales(C) && C.grouping != Grouping::Pointers) {
      prefetch_tensormap(&scales->a);
      prefetch_tensormap(&scales->b);
    }
    sinks.for_each([](auto& sink) {
      using Sink = cuda::std::remove_reference_t<decltype(sink)>;
      if constexpr (Sink::kNeeds.tensor_map && !outputs_need_group_maps(C.grouping)) prefetch_tensormap(&sink.map());
    });
    ring.init();
    accumulators.init(kEpilogueWarps);
    if constexpr (C.scheduling == TileSource::LaunchControl) queue.init(tile_readers(C.cluster));
    cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
  }
  if (warp == 2) {
    cuda::ptx::tcgen05_alloc(CtaGroup<C.cluster>{}, tensor_address, static_cast<uint32_t>(tensor_columns(C)));
    cuda::ptx::tcgen05_relinquish_alloc_permit(CtaGroup<C.cluster>{});
  }
  if constexpr (C.cluster > 1) {
    barrier_cluster_sync();  // the peer's copies and arrivals must find the barriers initialized
  } else {
    __syncthreads();
  }
  return *tensor_address;
}

// `scales` is null where the operands have none.
template <BlackwellConfig C, class... Sinks>
MOXIE_DEVICE void blackwell_grouped_gemm(const GemmParams& gemm, const ScaleParams* scales,
                                         const typename Sinks::Params&... params) {
  using Traits = SinkTraits<C, Sinks...>;
  using Queue = TileQueue<C>;
  constexpr BlackwellSharedLayout kShared = Traits::kShared;
  constexpr bool kControlled = C.scheduling == TileSource::LaunchControl;
  static_assert(kShared.bytes <= kMaxSharedBytes, "fewer stages or a smaller tile");

  // Shared memory and barriers.
  extern __shared__ __align__(1024) uint8_t shared[];
  const typename Stages<C>::Ring ring{reinterpret_cast<uint64_t*>(shared + kShared.full),
                                      reinterpret_cast<uint64_t*>(shared + kShared.empty)};
  const typename Stages<C>::Accumulators accumulators{reinterpret_cast<uint64_t*>(shared + kShared.computed),
                                                      reinterpret_cast<uint64_t*>(shared + kShared.stored)};
  const Stages<C> stages{shared + kShared.a, shared + kShared.b, shared + kShared.a_scales, shared + kShared.b_scales};
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  SinkList<Sinks...> sinks(params...);
  const Queue queue = [&] {
    if constexpr (kControlled) {
      return Queue(shared + kShared.launch_answers, reinterpret_cast<uint64_t*>(shared + kShared.answered),
                   reinterpret_cast<uint64_t*>(shared + kShared.taken));
    } else {
      return Queue();
    }
  }();

  const uint32_t tensor = prologue<C>(gemm, scales, sinks, ring, accumulators, queue,
                                      reinterpret_cast<uint32_t*>(shared + kShared.tensor_address), warp);

  // The predecessor grid may still be running up to here. What follows needs its results.
  griddepcontrol_wait();

  Scheduler<C, Queue> scheduler(gemm, queue);
  Tile tile;
  uint8_t* slots = nullptr;
  if constexpr (operand_maps(C) + Traits::kGroupMaps > 0) {
    slots = gemm.workspace + static_cast<uint64_t>(blockIdx.x) * (workspace_maps(C, Traits::kGroupMaps) * kMapBytes);
  }

  if (warp == 0) {
    // Loader.
    BlackwellLoader<C> loader(gemm, scales, ring, stages, shared + kShared.operand_maps, slots);
    while (scheduler.next(tile)) loader.load(tile);
    griddepcontrol_launch_dependents();
  } else if (warp == 1 && blockIdx.x % C.cluster == 0) {
    // Issuer.
    BlackwellIssuer<C> issuer(ring, accumulators, stages, tensor);
    while (scheduler.next(tile)) issuer.multiply(tile);
  } else if (kControlled && warp == 3 && blockIdx.x % C.cluster == 0) {
    // Asks for tiles: its scheduler asks for one more tile in every step, and has nothing to do with it.
    if constexpr (kControlled) {
      const auto asking = queue.asking();
      Scheduler<C, cuda::std::remove_cv_t<decltype(asking)>> walk(gemm, asking);
      while (walk.next(tile)) {
      }
    }
  } else if (warp >= 4) {
    // Epilogue.
    constexpr int kOperandSlots = operand_maps(C) * kMapSlots * kMapBytes;
    Epilogue<C, Sinks...> epilogue(gemm, sinks, shared, slots + kOperandSlots, 0, kTensorEpilogueBarrier);
    typename Stages<C>::Accumulators::Position at;
    while (scheduler.next(tile)) {
      epilogue.prefetch(tile);
      float factor = 1;
      if constexpr (has_tensor_scales(C)) factor = tensor_scale(*scales, tile.group);
      const bool computed = tile.k > 0;
      if (computed) accumulators.wait_computed(at);
      const uint32_t lanes = tensor + at.stage * accumulator_columns(C) + tensor_lane(warp % 4 * 32);
      const AccumulatorReader<C> reader(tile, lanes, computed, factor);
      epilogue.run(epilogue.chunk_of(tile, reader.kWarpRows, reader.kBlockRows), tile,
                   [&](auto& values, int first, int block) { reader.load(values, first, block); });
      if (computed) {
        accumulators.release(at, lane);
        at.advance();
      }
    }
    epilogue.finish();
  }

  if constexpr (C.cluster > 1) {
    barrier_cluster_sync();  // the peer may still use this block's barriers and shared memory
  } else {
    __syncthreads();
  }
  if (warp == 2) cuda::ptx::tcgen05_dealloc(CtaGroup<C.cluster>{}, tensor, static_cast<uint32_t>(tensor_columns(C)));
}

}  // namespace moxie::kernel
