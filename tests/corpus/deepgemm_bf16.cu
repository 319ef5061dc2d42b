// SPDX-License-Identifier: Apache-2.0
// Runs sm90_bf16_gemm or sm100_bf16_gemm of DeepGEMM (https://github.com/deepseek-ai/DeepGEMM), which the library
// compiles at run time, on small integers, whose sums are exact. The -D of the list name the instance.
// usage: deepgemm_bf16 M, or what problem_of() in deepgemm.cuh takes for groups
#include "deepgemm.cuh"

#if __CUDA_ARCH_LIST__ >= 1000
#include "deep_gemm/impls/sm100_bf16_gemm.cuh"
#else
#include "deep_gemm/impls/sm90_bf16_gemm.cuh"
#endif

#ifndef GEMM_TYPE
#define GEMM_TYPE Normal
#endif
#ifndef GEMM_GROUPS
#define GEMM_GROUPS 1
#endif
#ifndef GEMM_CLUSTER_M
#define GEMM_CLUSTER_M 1
#endif
#ifndef GEMM_CLUSTER_N
#define GEMM_CLUSTER_N 1
#endif
#ifndef GEMM_SWAP_AB
#define GEMM_SWAP_AB false
#endif
#ifndef GEMM_MAJOR_A
#define GEMM_MAJOR_A K
#endif
#ifndef GEMM_MAJOR_B
#define GEMM_MAJOR_B K
#endif
#ifndef GEMM_OUT
#define GEMM_OUT cutlass::bfloat16_t
#endif
#ifndef GEMM_ACCUMULATES
#define GEMM_ACCUMULATES false
#endif
#ifndef GEMM_ALIGNMENT
#define GEMM_ALIGNMENT 128
#endif

using Out = std::conditional_t<std::is_same_v<GEMM_OUT, float>, float, __nv_bfloat16>;
constexpr GemmType type = GemmType::GEMM_TYPE;
constexpr auto major_a = cute::UMMA::Major::GEMM_MAJOR_A, major_b = cute::UMMA::Major::GEMM_MAJOR_B;
constexpr Kernel kernel = {
    .type = type,
    .arch = __CUDA_ARCH_LIST__ / 10,
    .tile_m = GEMM_TILE_M,
    .tile_n = GEMM_TILE_N,
    .tile_k = 64,
    .cluster_m = GEMM_CLUSTER_M,
    .cluster_n = GEMM_CLUSTER_N,
    .swap_ab = GEMM_SWAP_AB,
    .k_major_a = major_a == cute::UMMA::Major::K,
    .k_major_b = major_b == cute::UMMA::Major::K,
    .size_ab = 2,
    .size_out = sizeof(Out),
    .scales_a = false,
    .scales_b = false,
    .scales_2d = false,
    .k = GEMM_K,
};
// The depth of groups along K is not known to the compiler.
constexpr int known_k = grouped_by_k(type) ? 0 : GEMM_K;

#if __CUDA_ARCH_LIST__ >= 1000
constexpr auto entry =
    deep_gemm::sm100_bf16_gemm_impl<major_a, major_b, 0, GEMM_N, known_k, kernel.tile_m, kernel.tile_n, kernel.tile_k,
                                    GEMM_GROUPS, kernel.swizzle_a(), kernel.swizzle_b(), kernel.swizzle_out(),
                                    kernel.stages(), 128, 128, kernel.cluster(), (kernel.cluster_n > 1), GEMM_SMS,
                                    GEMM_ALIGNMENT, kernel.swap_ab, true, type, GEMM_ACCUMULATES, GEMM_OUT, 100>;
#else
constexpr auto entry =
    deep_gemm::sm90_bf16_gemm_impl<major_a, major_b, 0, GEMM_N, known_k, GEMM_GROUPS, kernel.tile_m, kernel.tile_n,
                                   kernel.tile_k, kernel.swizzle_a(), kernel.swizzle_b(), kernel.swizzle_out(),
                                   kernel.stages(), 128, kernel.math_threads(), kernel.cluster(),
                                   (kernel.cluster_n > 1), GEMM_SMS, type, GEMM_ACCUMULATES, GEMM_OUT>;
#endif

int main(int argc, char** argv) {
  const Problem problem = problem_of(type, GEMM_N, GEMM_K, GEMM_GROUPS, GEMM_ALIGNMENT, argc, argv);
  const int m = problem.m, n = problem.n, k = problem.k, groups = problem.groups;
  constexpr bool batched = type == GemmType::Batched;
  Place place_a = place_of(kernel.k_major_a, m, k), place_b = place_of(kernel.k_major_b, n, k);
  Place place_out = place_of(true, m, n);
  if (batched) {
    // The batch lies between the rows of A and of the result.
    place_a = {size_t(k), size_t(k) * size_t(groups), 1};
    place_out = {size_t(n), size_t(n) * size_t(groups), 1};
  }

  std::mt19937 random(1);
  std::uniform_int_distribution<int> small(-4, 4);
  std::vector<__nv_bfloat16> a(size_t(problem.groups_a) * size_t(m) * size_t(k));
  std::vector<__nv_bfloat16> b(size_t(problem.groups_b) * size_t(n) * size_t(k));
  std::vector<Out> before(size_t(problem.groups_out) * size_t(m) * size_t(n));
  for (auto& value : a) assign(value, small(random));
  for (auto& value : b) assign(value, small(random));
  for (int kk = 0; kk < k; ++kk) {
    if (problem.counts(kk)) continue;
    for (int i = 0; i < m; ++i) assign(a[place_a.at(0, i, kk)], 0);
    for (int j = 0; j < n; ++j) assign(b[place_b.at(0, j, kk)], 0);
  }
  for (auto& value : before) assign(value, GEMM_ACCUMULATES ? small(random) : NAN);
  __nv_bfloat16 *at_a = on_device(a), *at_b = on_device(b);
  Out* at_out = on_device(before);
  std::vector<int> layout = problem.layout;
  layout.resize(layout.size() + 1);
  int* at_layout = on_device(layout);

  constexpr auto bf16 = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  constexpr auto type_out = sizeof(Out) == 4 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : bf16;
  constexpr cuuint32_t tile_k = kernel.tile_k, load_m = kernel.load_m(), load_n = kernel.load_n();
  constexpr cuuint32_t store_m = kernel.store_m(), tile_n = kernel.tile_n;
  const auto operand = [&](__nv_bfloat16* memory, const Place& place, bool k_major, int mn, int count, cuuint32_t load,
                           int swizzle) {
    const cuuint64_t pitch = (k_major ? place.mn : place.k) * 2, between = place.group * 2;
    const auto inner = static_cast<cuuint64_t>(k_major ? k : mn), outer = static_cast<cuuint64_t>(k_major ? mn : k);
    const cuuint32_t box_inner = k_major ? tile_k : load, box_outer = k_major ? load : tile_k;
    if (batched)
      return tensor_map(bf16, 2, memory, {inner, outer, cuuint64_t(groups)}, {pitch, between},
                        {box_inner, box_outer, 1}, swizzle);
    return tensor_map(bf16, 2, memory, {inner, outer * cuuint64_t(count)}, {pitch}, {box_inner, box_outer}, swizzle);
  };
  const CUtensorMap map_a = operand(at_a, place_a, kernel.k_major_a, m, problem.groups_a, load_m, kernel.swizzle_a());
  const CUtensorMap map_b = operand(at_b, place_b, kernel.k_major_b, n, problem.groups_b, load_n, kernel.swizzle_b());
  const auto columns = static_cast<cuuint64_t>(n), rows = static_cast<cuuint64_t>(m);
  const CUtensorMap map_out =
      batched ? tensor_map(type_out, sizeof(Out), at_out, {columns, rows, cuuint64_t(groups)},
                           {place_out.mn * sizeof(Out), place_out.group * sizeof(Out)}, {tile_n, store_m, 1},
                           kernel.swizzle_out())
              : tensor_map(type_out, sizeof(Out), at_out, {columns, rows * cuuint64_t(problem.groups_out)},
                           {columns * sizeof(Out)}, {tile_n, store_m}, kernel.swizzle_out());

  launch(entry, dim3(GEMM_SMS), kernel.threads(), kernel.shared(), kernel.cluster(), at_layout, m, n, k, map_a, map_b,
         map_out);
  std::vector<Out> out(before.size());
  check(cudaMemcpy(out.data(), at_out, out.size() * sizeof(Out), cudaMemcpyDeviceToHost));
  return compare(
      problem, before, out, place_out, GEMM_ACCUMULATES, 0,
      [&](int g, int i, int kk) { return number(a[place_a.at(g, i, kk)]); },
      [&](int g, int j, int kk) { return number(b[place_b.at(g, j, kk)]); });
}
