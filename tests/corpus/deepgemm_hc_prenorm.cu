// SPDX-License-Identifier: Apache-2.0
// Runs sm90_tf32_hc_prenorm_gemm or sm100_tf32_hc_prenorm_gemm of DeepGEMM (https://github.com/deepseek-ai/DeepGEMM):
// the product of bfloat16 and tf32 in parts along K, and the sum of squares of A's rows, on small integers.
// usage: deepgemm_hc_prenorm M
#include "deepgemm.cuh"

#if __CUDA_ARCH_LIST__ >= 1000
#include "deep_gemm/impls/sm100_tf32_hc_prenorm_gemm.cuh"
#else
#include "deep_gemm/impls/sm90_tf32_hc_prenorm_gemm.cuh"
#endif

constexpr int n = GEMM_N, k = GEMM_K, splits = GEMM_SPLITS, tile_m = 64, tile_n = round_up(n, 16), tile_k = 64;
constexpr bool sm90 = __CUDA_ARCH_LIST__ < 1000;
constexpr int swizzle_out = swizzle_of(tile_n * 4);

constexpr int shared(int stages) {
  const int barriers = sm90 ? stages * 2 * 8 : (stages * 4 + 1) * 8 + 4;
  return (tile_m * tile_k * 2 + tile_n * tile_k * 4) * stages + tile_m * swizzle_out + barriers;
}
constexpr int stages_that_fit() {
  int stages = 12;
  while (shared(stages) > 232448) --stages;
  return stages;
}
constexpr int stages = stages_that_fit();

#if __CUDA_ARCH_LIST__ >= 1000
constexpr auto entry =
    deep_gemm::sm100_tf32_hc_prenorm_gemm_impl<n, k, tile_m, tile_n, tile_k, splits, swizzle_out, stages, 128, 128>;
#else
constexpr auto entry =
    deep_gemm::sm90_tf32_hc_prenorm_gemm_impl<n, k, tile_m, tile_n, tile_k, splits, swizzle_out, stages, 128, 128>;
#endif

int main(int argc, char** argv) {
  const int m = argc > 1 ? std::atoi(argv[1]) : 0;
  if (m < 1) return std::puts("usage: deepgemm_hc_prenorm M"), 2;
  std::mt19937 random(1);
  std::uniform_int_distribution<int> small(-4, 4);
  std::vector<__nv_bfloat16> a(size_t(m) * k);
  std::vector<float> b(size_t(n) * k), before(size_t(splits) * size_t(m) * n, NAN), squares(size_t(splits) * size_t(m));
  for (auto& value : a) assign(value, small(random));
  for (auto& value : b) assign(value, small(random));
  __nv_bfloat16* at_a = on_device(a);
  float *at_b = on_device(b), *at_out = on_device(before), *at_squares = on_device(squares);

  const auto rows = static_cast<cuuint64_t>(m);
  const CUtensorMap map_a =
      tensor_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, at_a, {k, rows}, {k * 2}, {tile_k, tile_m}, 128);
  const CUtensorMap map_b =
      tensor_map(CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, 4, at_b, {k, n}, {k * 4}, {tile_k, tile_n}, 128);
  constexpr auto float32 = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  const CUtensorMap map_out =
      splits == 1
          ? tensor_map(float32, 4, at_out, {n, rows}, {n * 4}, {tile_n, tile_m}, swizzle_out)
          : tensor_map(float32, 4, at_out, {n, rows, splits}, {n * 4, rows * n * 4}, {tile_n, tile_m, 1}, swizzle_out);
  launch(entry, dim3(static_cast<unsigned>(splits * divide_up(m, tile_m))), 256, sm90 ? 232448 : shared(stages), 1, m,
         map_a, map_b, map_out, at_squares);
  std::vector<float> out(before.size());
  check(cudaMemcpy(out.data(), at_out, out.size() * sizeof(float), cudaMemcpyDeviceToHost));
  check(cudaMemcpy(squares.data(), at_squares, squares.size() * sizeof(float), cudaMemcpyDeviceToHost));

  Problem problem{GemmType::Normal, m, n, k, splits, {}, {}, 1, 1, splits};
  size_t wrong = 0;
  for (int split = 0, first = 0; split < splits; ++split) {
    const int ks = tile_k * (k / tile_k / splits + (split < k / tile_k % splits));
    problem.parts.push_back({0, 0, m, 0, first, ks, split});
    for (int i = 0; i < m; ++i) {
      double sum = 0;
      for (int kk = first; kk < first + ks; ++kk) {
        const double value = static_cast<double>(number(a[size_t(i) * k + size_t(kk)]));
        sum += value * value;
      }
      wrong += static_cast<double>(squares[size_t(split) * size_t(m) + size_t(i)]) != sum;
    }
    first += ks;
  }
  const int squares_are_wrong = verdict(wrong, squares.size());
  const int products_are_wrong = compare(
      problem, before, out, place_of(true, m, n), false, 0,
      [&](int, int i, int kk) { return number(a[size_t(i) * k + size_t(kk)]); },
      [&](int, int j, int kk) { return b[size_t(j) * k + size_t(kk)]; });
  return squares_are_wrong | products_are_wrong;
}
