// SPDX-License-Identifier: Apache-2.0
// Runs sm90_fp8_gemm_1d2d, sm90_fp8_gemm_1d1d or sm100_fp8_fp4_gemm_1d1d of DeepGEMM
// (https://github.com/deepseek-ai/DeepGEMM), which the library compiles at run time, on small numbers with scales that
// are powers of two, whose sums are exact. The -D of the list name the instance.
// usage: deepgemm_fp8 M, or what problem_of() in deepgemm.cuh takes for groups
#include "deepgemm.cuh"

#if __CUDA_ARCH_LIST__ >= 1000
#include "deep_gemm/impls/sm100_fp8_fp4_gemm_1d1d.cuh"
#elif defined(GEMM_SCALES_2D)
#include "deep_gemm/impls/sm90_fp8_gemm_1d2d.cuh"
#else
#include "deep_gemm/impls/sm90_fp8_gemm_1d1d.cuh"
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
// Whether an operand has four bits instead of eight, and how many elements along K share a scale.
#ifndef GEMM_FP4_A
#define GEMM_FP4_A false
#endif
#ifndef GEMM_FP4_B
#define GEMM_FP4_B false
#endif
#ifndef GEMM_SCALE_K_A
#define GEMM_SCALE_K_A 128
#endif
#ifndef GEMM_SCALE_K_B
#define GEMM_SCALE_K_B 128
#endif

using Out = std::conditional_t<std::is_same_v<GEMM_OUT, float>, float, __nv_bfloat16>;
constexpr GemmType type = GemmType::GEMM_TYPE;
constexpr auto major_a = cute::UMMA::Major::GEMM_MAJOR_A, major_b = cute::UMMA::Major::GEMM_MAJOR_B;
constexpr bool sm90 = __CUDA_ARCH_LIST__ < 1000;
#ifdef GEMM_SCALES_2D
constexpr bool scales_2d = true, scales_k_major = cute::UMMA::Major::GEMM_SCALES_2D == cute::UMMA::Major::K;
#else
constexpr bool scales_2d = false, scales_k_major = false;
#endif
constexpr Kernel kernel = {
    .type = type,
    .arch = __CUDA_ARCH_LIST__ / 10,
    .tile_m = GEMM_TILE_M,
    .tile_n = GEMM_TILE_N,
    .tile_k = 128,
    .cluster_m = GEMM_CLUSTER_M,
    .cluster_n = GEMM_CLUSTER_N,
    .swap_ab = GEMM_SWAP_AB,
    .k_major_a = major_a == cute::UMMA::Major::K,
    .k_major_b = major_b == cute::UMMA::Major::K,
    .size_ab = 1,
    .size_out = sizeof(Out),
    .scales_a = true,
    .scales_b = !scales_2d,
    .scales_2d = scales_2d,
    .k = GEMM_K,
};
// The depth of groups along K is not known to the compiler.
constexpr int known_k = grouped_by_k(type) ? 0 : GEMM_K;

#if __CUDA_ARCH_LIST__ >= 1000
template <bool fp4>
using Element = std::conditional_t<fp4, cutlass::detail::float_e2m1_unpacksmem_t, cutlass::float_e4m3_t>;
constexpr auto entry = deep_gemm::sm100_fp8_fp4_gemm_1d1d_impl < major_a, major_b, GEMM_SCALE_K_A, GEMM_SCALE_K_B,
               grouped_by_k(type) ? GEMM_ALIGNMENT : GEMM_SCALE_K_A,
               0, GEMM_N, known_k, kernel.tile_m, kernel.tile_n, kernel.tile_k,
               GEMM_GROUPS, kernel.swizzle_a(), kernel.swizzle_b(), kernel.swizzle_out(), kernel.stages(), 128,
               128, kernel.cluster(), (kernel.cluster_n > 1), GEMM_SMS, kernel.swap_ab, true, type, GEMM_ACCUMULATES,
               Element<GEMM_FP4_A>, Element<GEMM_FP4_B>, GEMM_OUT, deep_gemm::epilogue::transform::EpilogueIdentity > ;
#elif defined(GEMM_SCALES_2D)
constexpr auto entry =
    deep_gemm::sm90_fp8_gemm_1d2d_impl<cute::UMMA::Major::GEMM_SCALES_2D, 0, GEMM_N, known_k, GEMM_GROUPS,
                                       kernel.tile_m, kernel.tile_n, kernel.tile_k, kernel.swizzle_a(),
                                       kernel.swizzle_b(), kernel.swizzle_out(), kernel.stages(), 128,
                                       kernel.math_threads(), kernel.cluster(), (kernel.cluster_n > 1), GEMM_SMS, type,
                                       GEMM_OUT, deep_gemm::epilogue::transform::EpilogueIdentity>;
#else
constexpr auto entry = deep_gemm::sm90_fp8_gemm_1d1d_impl<0, GEMM_N, known_k, GEMM_GROUPS, kernel.tile_m, kernel.tile_n,
                                                          kernel.tile_k, kernel.swizzle_a(), kernel.swizzle_b(),
                                                          kernel.stages(), 128, kernel.math_threads(), kernel.cluster(),
                                                          (kernel.cluster_n > 1), GEMM_SMS, type, GEMM_OUT>;
#endif

// One operand with a scale for each row (or column of B) and some elements along K.
struct Operand {
  bool fp4, k_major;
  int mn, groups, scale_k;
  std::vector<size_t> base, pitch;  // of an element within its group, for each k
  std::vector<int> scale_row;       // for each k
  int scale_rows = 0;               // of a group
  std::vector<uint8_t> codes;
  std::vector<uint8_t> exponents;  // of a row of scales, all mn and then the next row; 127 is 1
  size_t group = 0;
  int scale_pitch = 0;

  Operand(const Problem& problem, bool fp4_, bool k_major_, int mn_, int groups_, int scale_k_, std::mt19937& random)
      : fp4(fp4_), k_major(k_major_), mn(mn_), groups(groups_), scale_k(scale_k_), scale_pitch(round_up(mn_, 4)) {
    const int k = problem.k, pack = sm90 ? 1 : 4;
    base.resize(size_t(k)), pitch.resize(size_t(k)), scale_row.resize(size_t(k));
    group = size_t(mn) * size_t(k);
    const auto add = [&](int first, int ks, int count) {
      // The groups of sm_90a along K follow one another, each with its own pitch.
      const bool own_pitch = sm90 && grouped_by_k(type);
      for (int i = 0; i < count; ++i) {
        const auto at = size_t(first + i);
        base[at] = !k_major ? at * size_t(mn) : own_pitch ? size_t(first) * size_t(mn) + size_t(i) : at;
        pitch[at] = !k_major ? 1 : size_t(own_pitch ? ks : k);
        scale_row[at] = scale_rows + i / scale_k;
      }
      scale_rows += round_up(divide_up(ks, scale_k), pack);
    };
    if (grouped_by_k(type)) {
      for (size_t g = 0; g < problem.parts.size(); ++g) {
        const Part& part = problem.parts[g];
        const int end = g + 1 < problem.parts.size() ? problem.parts[g + 1].first_k : k;
        add(part.first_k, part.ks, end - part.first_k);
      }
    } else {
      add(0, k, k);
    }
    std::uniform_int_distribution<int> small(-4, 4), code(0, 15), exponent(126, 128);
    codes.resize(group * size_t(groups) / (fp4 ? 2 : 1));
    for (auto& value : codes)
      value = fp4 ? uint8_t(code(random) | code(random) << 4)
                  : static_cast<uint8_t>(__nv_cvt_float_to_fp8(float(small(random)), __NV_SATFINITE, __NV_E4M3));
    for (int kk = 0; kk < k; ++kk)
      for (int i = 0; i < mn && !problem.counts(kk); ++i) codes[base[size_t(kk)] + size_t(i)] = 0;
    exponents.resize(size_t(groups) * size_t(scale_rows) * size_t(scale_pitch), 127);
    for (auto& value : exponents) value = uint8_t(exponent(random));
  }

  float element(int g, int i, int k) const {
    static const float numbers[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const size_t at = size_t(g) * group + base[size_t(k)] + size_t(i) * pitch[size_t(k)];
    if (fp4) {
      const int code = codes[at / 2] >> (at % 2 * 4) & 15;
      return code & 8 ? -numbers[code & 7] : numbers[code];
    }
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(codes[at], __NV_E4M3)));
  }
  uint8_t exponent(int g, int i, int k) const {
    return exponents[(size_t(g) * size_t(scale_rows) + size_t(scale_row[size_t(k)])) * size_t(scale_pitch) + size_t(i)];
  }
  float value(int g, int i, int k) const { return std::ldexp(element(g, i, k), exponent(g, i, k) - 127); }

  // What the kernel reads: on sm_90a floats, on sm_100a the exponents of four rows in one word.
  std::vector<uint32_t> scales() const {
    const size_t row = size_t(scale_pitch), pack = sm90 ? 1 : 4;
    std::vector<uint32_t> words(exponents.size() / pack);
    for (size_t i = 0; i < exponents.size(); ++i) {
      const size_t of = i / row;
      words[of / pack * row + i % row] |= sm90 ? uint32_t(exponents[i]) << 23 : uint32_t(exponents[i]) << of % 4 * 8;
    }
    return words;
  }

  CUtensorMap map(uint8_t* memory, int k, int ks, int load, int swizzle) const {
    const auto codes_of = [&](size_t elements) { return cuuint64_t(fp4 ? elements / 2 : elements); };
    const cuuint64_t inner = cuuint64_t(k_major ? ks : mn), outer = cuuint64_t(k_major ? mn : k) * cuuint64_t(groups);
    const cuuint32_t box_inner = cuuint32_t(k_major ? kernel.tile_k : load);
    const cuuint32_t box_outer = cuuint32_t(k_major ? load : kernel.tile_k);
    return tensor_map(fp4 ? CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B : CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, memory,
                      {inner, outer}, {codes_of(inner)}, {box_inner, box_outer}, swizzle);
  }
  CUtensorMap scale_map(uint32_t* memory, int tile) const {
    const auto row = cuuint64_t(scale_pitch), rows = cuuint64_t(scale_rows) * cuuint64_t(groups) / (sm90 ? 1 : 4);
    return tensor_map(sm90 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_INT32, 4, memory, {row, rows},
                      {row * 4}, {cuuint32_t(tile), 1}, 0);
  }
};

int main(int argc, char** argv) {
  const Problem problem = problem_of(type, GEMM_N, GEMM_K, GEMM_GROUPS, GEMM_ALIGNMENT, argc, argv);
  const int m = problem.m, n = problem.n, k = problem.k;
  const Place place_out = place_of(true, m, n);
  std::mt19937 random(1);
  const Operand a(problem, GEMM_FP4_A, kernel.k_major_a, m, problem.groups_a, GEMM_SCALE_K_A, random);
  Operand b(problem, GEMM_FP4_B, kernel.k_major_b, n, problem.groups_b, GEMM_SCALE_K_B, random);
  // Blocks of 128 columns of B share a scale where the kernel asks for that.
  std::vector<float> blocks;
  if (scales_2d) {
    const int rows = divide_up(n, 128), columns = divide_up(k, 128);
    blocks.resize(size_t(problem.groups_b) * size_t(rows) * size_t(columns));
    for (int g = 0; g < problem.groups_b; ++g)
      for (int kk = 0; kk < k; kk += 128)
        for (int j = 0; j < n; ++j) {
          const size_t line = (size_t(g) * size_t(b.scale_rows) + size_t(kk / 128)) * size_t(b.scale_pitch);
          b.exponents[line + size_t(j)] = b.exponents[line + size_t(j / 128 * 128)];
          const int row = j / 128, column = kk / 128;
          blocks[size_t(g) * size_t(rows) * size_t(columns) +
                 size_t(scales_k_major ? row * columns + column : column * rows + row)] =
              std::ldexp(1.0F, b.exponents[line + size_t(j)] - 127);
        }
  }
  std::uniform_int_distribution<int> small(-4, 4);
  std::vector<Out> before(size_t(problem.groups_out) * size_t(m) * size_t(n));
  for (auto& value : before) assign(value, GEMM_ACCUMULATES ? small(random) : NAN);

  uint8_t *at_a = on_device(a.codes), *at_b = on_device(b.codes);
  uint32_t *at_scales_a = on_device(a.scales()), *at_scales_b = on_device(b.scales());
  Out* at_out = on_device(before);
  std::vector<int> layout = problem.layout;
  layout.resize(layout.size() + 1);
  int* at_layout = on_device(layout);

  int ks = k;  // of the first group that has any
  if (sm90 && grouped_by_k(type))
    for (size_t g = problem.parts.size(); g-- > 0;) ks = problem.parts[g].ks != 0 ? problem.parts[g].ks : ks;
  const CUtensorMap map_a = a.map(at_a, k, ks, kernel.load_m(), kernel.swizzle_a());
  const CUtensorMap map_b = b.map(at_b, k, ks, kernel.load_n(), kernel.swizzle_b());
  const CUtensorMap map_scales_a = a.scale_map(at_scales_a, kernel.tile_m);
  const CUtensorMap map_scales_b = b.scale_map(at_scales_b, kernel.tile_n);
  const auto columns = static_cast<cuuint64_t>(n), rows = static_cast<cuuint64_t>(m);
  const CUtensorMap map_out =
      tensor_map(sizeof(Out) == 4 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, sizeof(Out),
                 at_out, {columns, rows * cuuint64_t(problem.groups_out)}, {columns * sizeof(Out)},
                 {cuuint32_t(kernel.tile_n), cuuint32_t(kernel.store_m())}, kernel.swizzle_out());

  const auto run = [&](auto... arguments) {
    launch(entry, dim3(GEMM_SMS), kernel.threads(), kernel.shared(), kernel.cluster(), arguments...);
  };
#if __CUDA_ARCH_LIST__ >= 1000
  run(at_layout, m, n, k, map_a, map_b, map_scales_a, map_scales_b, map_out);
#elif defined(GEMM_SCALES_2D)
  run(on_device(blocks), at_layout, m, n, k, map_a, map_b, map_out, map_scales_a);
#else
  auto* maps = on_device(std::vector<CUtensorMap>(GEMM_SMS * 4));
  run(reinterpret_cast<__nv_fp8_e4m3*>(at_a), reinterpret_cast<__nv_fp8_e4m3*>(at_b), at_layout,
      reinterpret_cast<cute::TmaDescriptor*>(maps), m, n, k, map_a, map_b, map_scales_a, map_scales_b, map_out);
#endif
  std::vector<Out> out(before.size());
  check(cudaMemcpy(out.data(), at_out, out.size() * sizeof(Out), cudaMemcpyDeviceToHost));
  return compare(
      problem, before, out, place_out, GEMM_ACCUMULATES, 0, [&](int g, int i, int kk) { return a.value(g, i, kk); },
      [&](int g, int j, int kk) { return b.value(g, j, kk); });
}
