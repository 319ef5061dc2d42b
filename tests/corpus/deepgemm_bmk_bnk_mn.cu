// SPDX-License-Identifier: Apache-2.0
// Runs sm90_bmk_bnk_mn or sm100_bmk_bnk_mn of DeepGEMM (https://github.com/deepseek-ai/DeepGEMM), which add to one
// matrix the products of S pairs of matrices, on small integers, whose sums are exact in any order.
// usage: deepgemm_bmk_bnk_mn S
#include "deepgemm.cuh"

#if __CUDA_ARCH_LIST__ >= 1000
#include "deep_gemm/impls/sm100_bmk_bnk_mn.cuh"
#else
#include "deep_gemm/impls/sm90_bmk_bnk_mn.cuh"
#endif

constexpr int m = GEMM_M, n = GEMM_N, k = GEMM_K, tile = 128, tile_k = 64, stages = 4, blocks = GEMM_BLOCKS;
constexpr bool sm90 = __CUDA_ARCH_LIST__ < 1000;
constexpr int tiles = divide_up(m, tile) * divide_up(n, tile);

#if __CUDA_ARCH_LIST__ >= 1000
constexpr int threads = 128;
constexpr auto entry =
    deep_gemm::sm100_bmn_bnk_mn_gemm_impl<m, n, k, tile, tile, tile_k, blocks, 128, 128, stages, threads>;
#else
constexpr int threads = 384;
constexpr auto entry = deep_gemm::sm90_bmn_bnk_mn_gemm_impl<m, n, k, tile, tile, tile_k, blocks, stages, 128, 256>;
#endif

int main(int argc, char** argv) {
  const int s = argc > 1 ? std::atoi(argv[1]) : 0;
  if (s < 1) return std::puts("usage: deepgemm_bmk_bnk_mn S"), 2;
  std::mt19937 random(1);
  std::uniform_int_distribution<int> small(-4, 4);
  std::vector<__nv_bfloat16> a(size_t(s) * m * k), b(size_t(s) * n * k);
  std::vector<float> before(size_t(m) * n), out(before.size());
  for (auto& value : a) assign(value, small(random));
  for (auto& value : b) assign(value, small(random));
  for (auto& value : before) assign(value, small(random));
  __nv_bfloat16 *at_a = on_device(a), *at_b = on_device(b);
  float* at_out = on_device(before);

  constexpr auto bf16 = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const auto rows = static_cast<cuuint64_t>(s);
  const CUtensorMap map_a = tensor_map(bf16, 2, at_a, {k, rows * m}, {k * 2}, {tile_k, tile}, 128);
  const CUtensorMap map_b = tensor_map(bf16, 2, at_b, {k, rows * n}, {k * 2}, {tile_k, tile}, 128);
  const int pieces = divide_up(s * (k / tile_k), blocks), operands = stages * 2 * tile * tile_k * 2;
  const dim3 grid(static_cast<unsigned>(tiles * pieces));
#if __CUDA_ARCH_LIST__ >= 1000
  const CUtensorMap map_out =
      tensor_map(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, at_out, {n, m}, {n * 4}, {tile, tile}, 128);
  launch(entry, grid, threads, operands + tile * 128 * 2 + stages * 8 * 3 + 2 * 8 * 2 + 8 + 4, 1, s, map_a, map_b,
         map_out);
#else
  launch(entry, grid, threads, operands + stages * 8 * 2, 1, s, map_a, map_b, at_out);
#endif
  check(cudaMemcpy(out.data(), at_out, out.size() * sizeof(float), cudaMemcpyDeviceToHost));
  // The matrices of a side lie one after the other along K.
  const Problem problem{GemmType::Normal, m, n, s * k, 1, {}, {{0, 0, m, 0, 0, s * k, 0}}, 1, 1, 1};
  const auto at = [](int i, int kk, int all) {
    return (size_t(kk / k) * size_t(all) + size_t(i)) * k + size_t(kk % k);
  };
  return compare(
      problem, before, out, place_of(true, m, n), true, 0, [&](int, int i, int kk) { return number(a[at(i, kk, m)]); },
      [&](int, int j, int kk) { return number(b[at(j, kk, n)]); });
}
