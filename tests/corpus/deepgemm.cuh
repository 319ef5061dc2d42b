// SPDX-License-Identifier: Apache-2.0
// What the programs deepgemm_*.cu share: problems with their expected results, tensor maps, and the sizes that
// DeepGEMM's host code (https://github.com/deepseek-ai/DeepGEMM) works out for its kernels.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "deep_gemm/common/types.cuh"
#include "device_memory.cuh"

using deep_gemm::GemmType;

constexpr int divide_up(int a, int b) { return (a + b - 1) / b; }
constexpr int round_up(int a, int b) { return divide_up(a, b) * b; }

// ---- What the library's host code chooses

constexpr bool grouped_by_k(GemmType type) {
  return type == GemmType::KGroupedContiguous || type == GemmType::KGroupedContiguousWithPsumLayout;
}

// The widest swizzle whose rows divide so many bytes.
constexpr int swizzle_of(int bytes) {
  for (int mode : {128, 64, 32, 16})
    if (bytes % mode == 0) return mode;
  return 0;
}

struct Kernel {
  GemmType type;
  int arch;                            // 90 or 100
  int tile_m, tile_n, tile_k;          // of a block
  int cluster_m, cluster_n;            // of which one is 1 and the other 1 or 2
  bool swap_ab;                        // sm_100a: B takes the place of A in the product
  bool k_major_a, k_major_b;           // K is contiguous
  int size_ab, size_out;               // bytes of an element
  bool scales_a, scales_b, scales_2d;  // whether stages hold scales of A and B, and memory those of blocks of B
  int k;

  constexpr bool sm90() const { return arch == 90; }
  constexpr int cluster() const { return cluster_m * cluster_n; }
  // A pair of blocks of sm_100a loads half of an operand each.
  constexpr int load_m() const { return sm90() ? tile_m : tile_m / cluster_n; }
  constexpr int load_n() const { return sm90() ? tile_n : tile_n / cluster_m; }
  constexpr int store_m() const {
    if (sm90()) return scales_b ? 64 : tile_m;
    return swap_ab ? 16 : (tile_m < 128 ? tile_m : 128);
  }
  constexpr int swizzle_a() const { return swizzle_of((k_major_a ? tile_k : load_m()) * size_ab); }
  constexpr int swizzle_b() const { return swizzle_of((k_major_b ? tile_k : load_n()) * size_ab); }
  constexpr int swizzle_out() const { return sm90() && size_out == 4 ? 0 : swizzle_of(tile_n * size_out); }
  constexpr int math_threads() const { return sm90() ? (tile_m <= 64 ? 128 : 256) : 128; }
  constexpr int threads() const { return math_threads() + 128; }

  constexpr int shared_besides_stages() const {
    if (!sm90()) {
      const int row = swap_ab ? tile_n * size_out : swizzle_out();
      return store_m() * row * 2 + 32 * 8 * 3 + 2 * 8 * 2 + 8 + 4;
    }
    const int of_blocks = scales_2d ? round_up(divide_up(k, tile_k) * 4 * (tile_k % tile_n == 0 ? 1 : 2), 8) : 0;
    return round_up(tile_m * tile_n * size_out, 1024) + 16 * 8 * 2 + of_blocks +
           (type == GemmType::KGroupedContiguous ? 4 * int(sizeof(CUtensorMap)) : 0);
  }
  constexpr int stage() const {
    const int tiles = (load_m() + load_n()) * tile_k * size_ab;
    if (sm90()) return tiles + (scales_a ? round_up(tile_m * 4, 128) : 0) + (scales_b ? round_up(tile_n * 4, 128) : 0);
    return tiles + (scales_a ? round_up(tile_m, 128) * 4 : 0) + (scales_b ? round_up(tile_n, 128) * 4 : 0);
  }
  constexpr int stages() const {
    const int most = sm90() ? 16 : 32, fit = (232448 - shared_besides_stages()) / stage();
    return fit < most ? fit : most;
  }
  constexpr int shared() const { return shared_besides_stages() + stages() * stage(); }
};

// ---- Tensor maps and launches

// Of two or three dimensions, the innermost first. Pitches are in bytes, and a swizzle gives the width of the box.
inline CUtensorMap tensor_map(CUtensorMapDataType type, int bytes, void* memory, std::vector<cuuint64_t> sizes,
                              std::vector<cuuint64_t> pitches, std::vector<cuuint32_t> box, int swizzle) {
  const bool packed = type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B;  // two elements in a byte of shared memory
  if (swizzle != 0) box[0] = static_cast<cuuint32_t>(packed ? swizzle * 2 : swizzle / bytes);
  const CUtensorMapSwizzle mode = swizzle == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                  : swizzle == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                  : swizzle == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                  : CU_TENSOR_MAP_SWIZZLE_NONE;
  const std::vector<cuuint32_t> steps(sizes.size(), 1);
  CUtensorMap map;
  const CUresult result = cuTensorMapEncodeTiled(
      &map, type, static_cast<cuuint32_t>(sizes.size()), memory, sizes.data(), pitches.data(), box.data(), steps.data(),
      CU_TENSOR_MAP_INTERLEAVE_NONE, mode, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    std::printf("cuTensorMapEncodeTiled() failed with %d\n", static_cast<int>(result));
    std::exit(1);
  }
  return map;
}

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 blocks, int threads, int shared, int cluster, Arguments... arguments) {
  check(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster);
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
  check(cudaGetLastError());
  check(cudaDeviceSynchronize());
}

// ---- Problems

// A product of some rows of A with all of a group of B.
struct Part {
  int group_a, row, rows, group_b, first_k, ks, group_out;
};

struct Problem {
  GemmType type;
  int m, n, k, groups;
  std::vector<int> layout;  // what the kernel reads
  std::vector<Part> parts;
  int groups_a, groups_b, groups_out;

  // Whether an index along K belongs to a group: what lies between two groups must be 0.
  bool counts(int at) const {
    for (const Part& part : parts)
      if (part.first_k <= at && at < part.first_k + part.ks) return true;
    return false;
  }
};

// The arguments of a program: M for one product or a batch. With groups of rows side by side: how many each group has.
// With masks: M and how many rows of each group count. With groups along K: M and the depth of each group.
inline Problem problem_of(GemmType type, int n, int k, int groups, int alignment, int argc, char** argv) {
  std::vector<int> numbers;
  for (int i = 1; i < argc; ++i) numbers.push_back(std::atoi(argv[i]));
  const bool contiguous = type == GemmType::MGroupedContiguous,
             ends = type == GemmType::MGroupedContiguousWithPsumLayout;
  const bool single = type == GemmType::Normal || type == GemmType::Batched;
  const size_t wanted = single ? 1 : static_cast<size_t>(groups) + !(contiguous || ends);
  if (numbers.size() != wanted) {
    std::printf("%zu arguments are needed\n", wanted);
    std::exit(2);
  }
  Problem problem{type, numbers[0], n, k, groups, {}, {}, 1, groups, groups};
  int start = 0;
  for (int g = 0; g < groups; ++g) {
    const int own = single ? 0 : numbers[static_cast<size_t>(g) + !(contiguous || ends)];
    if (single) {
      problem.parts.push_back({g, 0, numbers[0], g, 0, k, g});
    } else if (contiguous || ends) {
      problem.parts.push_back({0, start, own, g, 0, k, 0});
      if (ends) problem.layout.push_back(start + own);
      start += round_up(own, alignment);
      if (contiguous) {
        problem.layout.resize(problem.layout.size() + static_cast<size_t>(own), g);
        problem.layout.resize(static_cast<size_t>(start), -1);  // rows of no group
      }
    } else if (type == GemmType::MGroupedMasked) {
      problem.parts.push_back({g, 0, own, g, 0, k, g});
      problem.layout.push_back(own);
    } else {
      problem.parts.push_back({0, 0, numbers[0], 0, start, own, g});
      const bool psum = type == GemmType::KGroupedContiguousWithPsumLayout;
      problem.layout.push_back(psum ? start + own : own);
      start += psum ? round_up(own, alignment) : own;
    }
  }
  if (contiguous || ends) problem.m = start, problem.groups_out = 1;
  if (single || type == GemmType::MGroupedMasked) problem.groups_a = groups;
  if (grouped_by_k(type)) problem.k = start, problem.groups_b = 1;
  return problem;
}

// Where an operand's elements stand.
struct Place {
  size_t group, mn, k;
  size_t at(int g, int i, int kk) const {
    return static_cast<size_t>(g) * group + static_cast<size_t>(i) * mn + static_cast<size_t>(kk) * k;
  }
};

inline Place place_of(bool k_major, int mn, int k) {
  const auto all = static_cast<size_t>(mn) * static_cast<size_t>(k);
  return k_major ? Place{all, static_cast<size_t>(k), 1} : Place{all, 1, static_cast<size_t>(mn)};
}

inline float number(__nv_bfloat16 value) { return __bfloat162float(value); }
inline float number(float value) { return value; }
inline void assign(__nv_bfloat16& to, double value) { to = __float2bfloat16(static_cast<float>(value)); }
inline void assign(float& to, double value) { to = static_cast<float>(value); }

inline int verdict(size_t wrong, size_t count) {
  const bool passed = wrong == 0 && count != 0;
  std::printf("%zu of %zu elements are wrong: %s\n", wrong, count, passed ? "Passed" : "Failed");
  return passed ? 0 : 1;
}

// Compares what came out with the sums of the parts' rows, each added to what stood there before where the kernel
// accumulates. A value may differ by `error` times the sum of its products' magnitudes, which is 0 where all is exact.
template <class T, class A, class B>
int compare(const Problem& problem, const std::vector<T>& before, const std::vector<T>& out, const Place& place,
            bool accumulates, double error, A&& a, B&& b) {
  size_t wrong = 0, count = 0;
  std::vector<float> row, column;
  for (const Part& part : problem.parts) {
    const auto ks = static_cast<size_t>(part.ks);
    std::vector<float> columns(static_cast<size_t>(problem.n) * ks);
    for (int j = 0; j < problem.n; ++j)
      for (size_t k = 0; k < ks; ++k)
        columns[static_cast<size_t>(j) * ks + k] = b(part.group_b, j, part.first_k + static_cast<int>(k));
    row.resize(ks);
    for (int i = part.row; i < part.row + part.rows; ++i) {
      for (size_t k = 0; k < ks; ++k) row[k] = a(part.group_a, i, part.first_k + static_cast<int>(k));
      for (int j = 0; j < problem.n; ++j, ++count) {
        const float* const other = columns.data() + static_cast<size_t>(j) * ks;
        double sum = 0, magnitude = 0;
        for (size_t k = 0; k < ks; ++k) {
          const double product = static_cast<double>(row[k]) * static_cast<double>(other[k]);
          sum += product;
          magnitude += std::fabs(product);
        }
        const size_t at = place.at(part.group_out, i, j);
        T expected;
        assign(expected, sum);
        if (accumulates)
          assign(expected, static_cast<double>(number(before[at])) + static_cast<double>(number(expected)));
        const double difference =
            std::fabs(static_cast<double>(number(out[at])) - static_cast<double>(number(expected)));
        if (!(difference <= error * magnitude)) {
          if (++wrong <= 8)
            std::printf("group %d, row %d, column %d: %g, expected %g\n", part.group_out, i, j,
                        static_cast<double>(number(out[at])), static_cast<double>(number(expected)));
        }
      }
    }
  }
  return verdict(wrong, count);
}
