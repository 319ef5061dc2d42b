// The Blackwell grouped GEMM: D[g] = A[g] B[g]^T in float32, then the epilogue's
// sinks. Persistent and warp-specialised: warp 0 loads, warp 1 multiplies, warp 2 owns the tensor memory, warp 3 asks
// for further tiles where the launch is controlled, warps 4 to 7 store. With two accumulators one tile is stored while
// the next is computed.
#pragma once
#include "moxie/blackwell/launch_queue.cuh"
#include "moxie/blackwell/mainloop.cuh"
#include "moxie/epilogue/epilogue.cuh"
#include "moxie/epilogue/store.cuh"
#include "moxie/scheduler.cuh"

namespace moxie::kernel {

constexpr int kTensorEpilogueBarrier = 1;  // a named barrier; 0 is __syncthreads
constexpr int kEpilogueWarps = 4;
// Warps of a cluster that walk over its tiles: in every block the loader and the epilogue, in the first the issuer and
// the warp that asks, too.
constexpr uint32_t tile_readers(int cluster) { return cluster * (1 + kEpilogueWarps) + 2; }

// What the sums of products of a group are to be multiplied by.
MOXIE_DEVICE float tensor_scale(const ScaleParams& scales, int32_t group) {
  float factor = scales.a_tensor_scale != nullptr ? *scales.a_tensor_scale : 1.0f;
  if (scales.b_tensor_scale != nullptr) factor *= scales.b_tensor_scale[group];
  return factor;
}

template <int kColumns>
MOXIE_DEVICE void multiply(Fragment<kColumns>& values, float factor) {
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) values.v[j][i] *= factor;
  }
}

// load(fragment, product) for each product; their groups of eight columns alternate, as the rows of a gathered B do.
template <int kProducts, int kColumns, class Load>
MOXIE_DEVICE void load_products(Fragment<kColumns>& values, Load&& load) {
  if constexpr (kProducts == 1) {
    load(values, 0);
  } else {
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      Fragment<kColumns / 2> part;
      load(part, p);
#pragma unroll
      for (int j = 0; j < kColumns / 16; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) values.v[2 * j + p][i] = part.v[j][i];
      }
    }
  }
}

// scales: null where the operands have none.
template <BlackwellConfig C, class... Sinks>
MOXIE_DEVICE void blackwell_grouped_gemm(const GemmParams& gemm, const ScaleParams* scales,
                                         const typename Sinks::Params&... params) {
  using Loop = BlackwellMainloop<C>;
  using Traits = SinkTraits<C, Sinks...>;
  constexpr BlackwellSharedLayout kShared = Traits::kShared;
  constexpr uint32_t kColumns = tensor_columns(C);
  static_assert(kShared.bytes <= kMaxSharedBytes, "fewer stages or a smaller tile");

  extern __shared__ __align__(1024) uint8_t shared[];
  const typename Loop::Ring ring{reinterpret_cast<uint64_t*>(shared + kShared.full),
                                 reinterpret_cast<uint64_t*>(shared + kShared.empty)};
  const typename Loop::Accumulators accumulators{reinterpret_cast<uint64_t*>(shared + kShared.computed),
                                                 reinterpret_cast<uint64_t*>(shared + kShared.stored)};
  const typename Loop::Stages stages{shared + kShared.a, shared + kShared.b, shared + kShared.a_scales,
                                     shared + kShared.b_scales};
  constexpr bool kControlled = C.scheduling == TileSource::LaunchControl;
  using Queue = TileQueue<C>;
  uint32_t* const tensor_address = reinterpret_cast<uint32_t*>(shared + kShared.tensor_address);
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
    if constexpr (kControlled) queue.init(tile_readers(C.cluster));
    cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
  }
  if (warp == 2) {
    cuda::ptx::tcgen05_alloc(typename Loop::Group{}, tensor_address, kColumns);
    cuda::ptx::tcgen05_relinquish_alloc_permit(typename Loop::Group{});
  }
  if constexpr (C.cluster > 1) {
    barrier_cluster_sync();  // the peer's copies and arrivals must find the barriers initialised
  } else {
    __syncthreads();
  }
  const uint32_t tensor = *tensor_address;

  // Everything above touched no global memory; from here on the results of the kernel before this one are needed.
  griddepcontrol_wait();

  Scheduler<C, Queue> scheduler(gemm, queue);
  Tile tile;
  uint8_t* slots = nullptr;
  if constexpr (operand_maps(C) + Traits::kGroupMaps > 0) {
    slots = gemm.workspace + static_cast<uint64_t>(blockIdx.x) * (workspace_maps(C, Traits::kGroupMaps) * kMapBytes);
  }
  if (warp == 0) {
    typename Loop::Loader loader(gemm, scales, ring, stages, shared + kShared.operand_maps, slots);
    while (scheduler.next(tile)) loader.load(tile);
    griddepcontrol_launch_dependents();
  } else if (warp == 1 && blockIdx.x % C.cluster == 0) {
    typename Loop::Issuer issuer(ring, accumulators, stages, tensor);
    while (scheduler.next(tile)) issuer.multiply(tile);
  } else if (kControlled && warp == 3 && blockIdx.x % C.cluster == 0) {
    if constexpr (kControlled) {
      const auto asking = queue.asking();
      Scheduler<C, cuda::std::remove_cv_t<decltype(asking)>> walk(gemm, asking);
      while (walk.next(tile)) {
      }
    }
  } else if (warp >= 4) {
    constexpr int kOperandSlots = operand_maps(C) * kMapSlots * kMapBytes;
    Epilogue<C, Sinks...> epilogue(gemm, sinks, shared, slots + kOperandSlots, 0, kTensorEpilogueBarrier);
    typename Loop::Accumulators::Position at;
    while (scheduler.next(tile)) {
      epilogue.prefetch(tile);
      float factor = 1;
      if constexpr (has_tensor_scales(C)) factor = tensor_scale(*scales, tile.group);
      const bool computed = tile.k > 0;
      if (computed) accumulators.wait_computed(at);
      // A warp reaches the 32 lanes of its own quarter: 16 rows of each block of the fragments, with swap_ab 32 columns
      // of all blocks.
      const uint32_t own = tensor + at.stage * accumulator_columns(C) + tensor_lane(warp % 4 * 32);
      constexpr int kProducts = Loop::kProducts, kProductColumns = accumulator_columns(C) / kProducts;
      if constexpr (C.swap_ab) {
        const int columns = computed ? Loop::columns_of(tile) : 0;
        epilogue.run(epilogue.chunk_of(tile, 0, 16), tile, [&](auto& values, int first, int block) {
          const int column = first + block * 16;
          if (columns - column <= 0) {
            values = {};
            return;
          }
          load_products<kProducts>(values, [&](auto& part, int p) {
            if (Loop::kSwappedStep == 16 || columns - column > 8) {
              tensor_load_transposed<2>(part.v, own + p * kProductColumns + column);
            } else {
              tensor_load_transposed<1>(part.v, own + p * kProductColumns + column);
            }
          });
          if constexpr (has_tensor_scales(C)) multiply(values, factor);
        });
      } else {
        epilogue.run(epilogue.chunk_of(tile, 32, 16), tile, [&](auto& values, int first, int block) {
          if (computed) {
            load_products<kProducts>(values, [&](auto& part, int p) {
              tensor_load(part.v, own + p * kProductColumns + first / kProducts + tensor_lane(block * 16));
            });
            if constexpr (has_tensor_scales(C)) multiply(values, factor);
          } else {
            values = {};
          }
        });
      }
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
  if (warp == 2) cuda::ptx::tcgen05_dealloc(typename Loop::Group{}, tensor, kColumns);
}

}  // namespace moxie::kernel
