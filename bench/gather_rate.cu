// SPDX-License-Identifier: Apache-2.0
// How many bytes a cycle a multiprocessor of Hopper brings into swizzled tiles of shared memory when the rows lie
// anywhere: the question behind kernels/moxie/hopper/gathered_rows.cuh. A block has a ring of stages, warps that copy
// and one that waits for a stage and lets it go. A first launch compares every stage with what x holds.
//
//   nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a bench/gather_rate.cu -o gather_rate && ./gather_rate
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

constexpr int kColumns = 2048;          // bf16 of a row of x
constexpr int kRowsOfX = 16384;         // 64 MB
constexpr int kSlabs = kColumns / 64;   // stages of a tile: 64 columns each
constexpr int kStageRowBytes = 128;     // of a stage
constexpr int kRingBytes = 192 * 1024;  // stages
constexpr int kNone = -1;               // a row that stands for zeros

enum class Way : int {
  Threads,    // cp.async, 16 bytes a thread
  Registers,  // ld.global and st.shared, 16 bytes a thread
  Rows,       // tensor copies of one row
  Pairs,      // tensor copies of two rows that lie beside each other
  Plain,      // cp.async.bulk of a row, without a swizzle
  Box,        // one tensor copy of all rows of a stage, which lie beside each other
  Mixed,      // even rows as Rows by one half of the warps, odd ones as Threads by the other
};

struct Maps {
  CUtensorMap row, pair, box;
};

__device__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ void mbarrier_init(uint64_t* barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
__device__ void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(
          shared_address(barrier)),
      "r"(parity)
      : "memory");
}
__device__ void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ void mbarrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
__device__ void copy_box(void* to, const CUtensorMap* map, int column, int row, uint64_t* full) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(shared_address(to)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(full))
      : "memory");
}
__device__ void copy_plain(void* to, const void* from, uint32_t bytes, uint64_t* full) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(full))
               : "memory");
}
__device__ void copy_16(void* to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
               : "memory");
}
__device__ void arrive_behind_copies(uint64_t* full) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(full)) : "memory");
}

// Words that a stage must hold: of row `source`, from slab `slab` on.
__device__ uint32_t expected_word(int source, int slab, int word) {
  return source == kNone ? 0 : static_cast<uint32_t>(source * (kColumns / 2) + slab * 32 + word);
}

template <Way kWay, int kWarps, int kRows>
__global__ void __launch_bounds__(32 * (kWarps + 1), 1)
    gather(const __grid_constant__ Maps maps, const uint8_t* x, const int32_t* list, int tiles, int check,
           long long* cycles, unsigned* wrong) {
  constexpr int kStageBytes = kRows * kStageRowBytes, kStages = kRingBytes / kStageBytes;
  constexpr int kTmaWarps = kWay == Way::Mixed ? kWarps / 2 : kWarps;
  constexpr bool kThreads = kWay == Way::Threads || kWay == Way::Registers;
  constexpr int kArrivals = kThreads ? 32 * kWarps : kWay == Way::Mixed ? 1 + 32 * (kWarps - kTmaWarps) : 1;
  extern __shared__ __align__(1024) uint8_t ring[];
  __shared__ uint64_t full[kStages], empty[kStages];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage)
      mbarrier_init(full + stage, kArrivals), mbarrier_init(empty + stage, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const long long begin = clock64();
  int stage = 0;
  uint32_t phase = 0;
  const auto advance = [&] {
    if (++stage == kStages) stage = 0, phase ^= 1;
  };
  for (int tile = 0; tile < tiles; ++tile) {
    const int32_t* sources = list + (static_cast<int64_t>(blockIdx.x) * tiles + tile) * kRows;
    if (warp == kWarps) {
      for (int slab = 0; slab < kSlabs; ++slab) {
        mbarrier_wait(full + stage, phase);
        if (check != 0) {
          const auto* words = reinterpret_cast<const uint32_t*>(ring + stage * kStageBytes);
          for (int i = lane; i < kRows * 32; i += 32) {
            const int row = i / 32, word = i % 32, chunk = word / 4;
            const int at = kWay == Way::Plain ? chunk : chunk ^ row % 8;
            if (words[row * 32 + at * 4 + word % 4] != expected_word(sources[row], slab, word)) atomicAdd(wrong, 1);
          }
          asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        }
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty + stage);
        advance();
      }
    } else if (kThreads || (kWay == Way::Mixed && warp >= kTmaWarps)) {
      // Eight threads a row.
      constexpr int kCopiers = kThreads || kWay == Way::Mixed ? 32 * (kThreads ? kWarps : kWarps - kTmaWarps) : 32;
      constexpr int kStep = kCopiers / 8 * (kThreads ? 1 : 2), kEach = kRows / kStep;
      const int thread = kThreads ? threadIdx.x : threadIdx.x - 32 * kTmaWarps;
      const int first = kThreads ? thread / 8 : thread / 8 * 2 + 1, chunk = thread % 8;
      int32_t mine[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) mine[i] = sources[first + i * kStep];
      for (int slab = 0; slab < kSlabs; ++slab) {
        mbarrier_wait(empty + stage, phase ^ 1);
        uint8_t* const to = ring + stage * kStageBytes + first * kStageRowBytes + (chunk ^ first % 8) * 16;
        const uint8_t* const from = x + slab * kStageRowBytes + chunk * 16;
        if constexpr (kWay == Way::Registers) {
          uint4 values[kEach];
#pragma unroll
          for (int i = 0; i < kEach; ++i) {
            values[i] = uint4{};
            if (mine[i] != kNone)
              values[i] = __ldcg(reinterpret_cast<const uint4*>(from + int64_t{mine[i]} * (kColumns * 2)));
          }
#pragma unroll
          for (int i = 0; i < kEach; ++i) *reinterpret_cast<uint4*>(to + i * kStep * kStageRowBytes) = values[i];
          mbarrier_arrive(full + stage);
        } else {
#pragma unroll
          for (int i = 0; i < kEach; ++i) {
            const bool exists = mine[i] != kNone;
            copy_16(to + i * kStep * kStageRowBytes, exists ? from + int64_t{mine[i]} * (kColumns * 2) : x,
                    exists ? 16 : 0);
          }
          arrive_behind_copies(full + stage);
        }
        advance();
      }
    } else {
      // A lane a copy.
      constexpr int kCopyRows = kWay == Way::Box ? kRows : kWay == Way::Pairs ? 2 : 1;
      constexpr int kStep = kWay == Way::Mixed ? 2 : kCopyRows;  // rows from copy to copy
      constexpr int kCopies = kRows / kStep, kEach = (kCopies + 32 * kTmaWarps - 1) / (32 * kTmaWarps);
      int32_t mine[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int copy = i * 32 * kTmaWarps + threadIdx.x;
        mine[i] = copy < kCopies ? sources[copy * kStep] : kNone;
      }
      for (int slab = 0; slab < kSlabs; ++slab) {
        mbarrier_wait(empty + stage, phase ^ 1);
        if (threadIdx.x == 0) mbarrier_expect(full + stage, kWay == Way::Mixed ? kStageBytes / 2 : kStageBytes);
        __syncwarp();
        uint8_t* const stage_of = ring + stage * kStageBytes;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          const int copy = i * 32 * kTmaWarps + threadIdx.x;
          if (copy >= kCopies) continue;
          uint8_t* const to = stage_of + copy * kStep * kStageRowBytes;
          if constexpr (kWay == Way::Plain) {
            copy_plain(to, x + int64_t{mine[i]} * (kColumns * 2) + slab * kStageRowBytes, kStageRowBytes, full + stage);
          } else {
            copy_box(to,
                     kWay == Way::Box     ? &maps.box
                     : kWay == Way::Pairs ? &maps.pair
                                          : &maps.row,
                     slab * 64, mine[i], full + stage);
          }
        }
        advance();
      }
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - begin;
}

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "gather_rate: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

CUtensorMap make_map(void* x, uint32_t columns, uint32_t rows, CUtensorMapSwizzle swizzle) {
  static const Encode encode = [] {
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    return reinterpret_cast<Encode>(driver ? dlsym(driver, "cuTensorMapEncodeTiled") : nullptr);
  }();
  if (!encode) std::fprintf(stderr, "gather_rate: no cuTensorMapEncodeTiled\n"), std::exit(1);
  CUtensorMap map;
  const cuuint64_t sizes[] = {kColumns, kRowsOfX}, strides[] = {kColumns * 2};
  const cuuint32_t box[] = {columns, rows}, steps[] = {1, 1};
  if (encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, x, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
    std::fprintf(stderr, "gather_rate: the tensor map is refused\n"), std::exit(1);
  return map;
}

struct Bench {
  uint8_t* x = nullptr;
  int32_t* list = nullptr;
  long long* cycles = nullptr;
  unsigned* wrong = nullptr;
  int blocks = 0, most_tiles = 0;

  template <Way kWay, int kWarps, int kRows>
  void run(const char* name) {
    Maps maps;
    maps.row = make_map(x, 64, 1, CU_TENSOR_MAP_SWIZZLE_128B);
    maps.pair = make_map(x, 64, 2, CU_TENSOR_MAP_SWIZZLE_128B);
    maps.box = make_map(x, 64, kRows, CU_TENSOR_MAP_SWIZZLE_128B);
    // Random rows, of which some stand for zeros; as many of them in order as a copy takes.
    std::vector<int32_t> rows(size_t(blocks) * most_tiles * kRows);
    std::mt19937 random(1);
    const int together = kWay == Way::Box ? kRows : kWay == Way::Pairs ? 2 : 1;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (i % together != 0)
        rows[i] = rows[i - 1] + 1;
      else if (together == 1 && kWay != Way::Plain && random() % 64 == 0)
        rows[i] = kNone;
      else
        rows[i] = int32_t(random() % (kRowsOfX - together + 1));
    }
    check(cudaMemcpy(list, rows.data(), rows.size() * 4, cudaMemcpyHostToDevice), "upload");
    check(cudaMemset(wrong, 0, 4), "clear");
    const auto kernel = gather<kWay, kWarps, kRows>;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kRingBytes), "shared memory");
    const auto launch = [&](int grid, int tiles, int checked) {
      kernel<<<grid, 32 * (kWarps + 1), kRingBytes>>>(maps, x, list, tiles, checked, cycles, wrong);
      check(cudaGetLastError(), "launch");
    };
    launch(blocks, 1, 1);
    unsigned errors = 0;
    check(cudaMemcpy(&errors, wrong, 4, cudaMemcpyDeviceToHost), name);
    std::printf("%-34s %d rows, %d warps: %s", name, kRows, kWarps, errors == 0 ? "right" : "WRONG");
    if (std::getenv("GATHER_RATE_CHECK")) {
      std::printf("\n");
      return;
    }
    for (const int grid : {1, blocks}) {
      double best = 0;
      for (int turn = 0; turn < 5; ++turn) {
        launch(grid, most_tiles, 0);
        std::vector<long long> times(grid);
        check(cudaMemcpy(times.data(), cycles, grid * 8, cudaMemcpyDeviceToHost), name);
        double sum = 0;
        for (const long long time : times) sum += double(time);
        const double rate = double(most_tiles) * kRows * kColumns * 2 / (sum / grid);
        if (rate > best) best = rate;
      }
      std::printf("  %s %5.1f bytes a cycle", grid == 1 ? "alone" : "all", best);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
};

}  // namespace

int main() {
  Bench bench;
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0), "device");
  bench.blocks = std::getenv("GATHER_RATE_CHECK") ? 2 : properties.multiProcessorCount;
  bench.most_tiles = std::getenv("GATHER_RATE_CHECK") ? 1 : 40;
  std::printf("%s, %d multiprocessors\n", properties.name, properties.multiProcessorCount);
  const size_t words = size_t(kRowsOfX) * kColumns / 2;
  check(cudaMalloc(reinterpret_cast<void**>(&bench.x), words * 4), "x");
  check(cudaMalloc(reinterpret_cast<void**>(&bench.list), size_t(bench.blocks) * bench.most_tiles * 256 * 4), "list");
  check(cudaMalloc(reinterpret_cast<void**>(&bench.cycles), size_t(bench.blocks) * 8), "cycles");
  check(cudaMalloc(reinterpret_cast<void**>(&bench.wrong), 4), "wrong");
  std::vector<uint32_t> values(words);
  for (size_t i = 0; i < words; ++i) values[i] = uint32_t(i);
  check(cudaMemcpy(bench.x, values.data(), words * 4, cudaMemcpyHostToDevice), "upload");
  bench.run<Way::Box, 1, 128>("one box of all rows");
  bench.run<Way::Box, 1, 256>("one box of all rows");
  bench.run<Way::Threads, 4, 128>("cp.async");
  bench.run<Way::Threads, 4, 256>("cp.async");
  bench.run<Way::Threads, 8, 256>("cp.async");
  bench.run<Way::Registers, 4, 128>("ld.global, st.shared");
  bench.run<Way::Registers, 8, 256>("ld.global, st.shared");
  bench.run<Way::Rows, 1, 128>("boxes of one row");
  bench.run<Way::Rows, 2, 128>("boxes of one row");
  bench.run<Way::Rows, 4, 128>("boxes of one row");
  bench.run<Way::Rows, 1, 256>("boxes of one row");
  bench.run<Way::Rows, 4, 256>("boxes of one row");
  bench.run<Way::Pairs, 1, 128>("boxes of two rows");
  bench.run<Way::Pairs, 4, 128>("boxes of two rows");
  bench.run<Way::Plain, 1, 128>("cp.async.bulk of a row");
  bench.run<Way::Plain, 4, 128>("cp.async.bulk of a row");
  bench.run<Way::Mixed, 8, 256>("half boxes of a row, half cp.async");
  return 0;
}
