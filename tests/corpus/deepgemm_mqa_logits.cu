// SPDX-License-Identifier: Apache-2.0
// Runs sm90_fp8_mqa_logits or sm100_mqa_logits of DeepGEMM (https://github.com/deepseek-ai/DeepGEMM): for each query
// and each key that it sees, the sum over the heads of the dot product, or 0 where that is negative, times the head's
// weight, all times the key's scale. Small numbers and scales that are powers of two make the sums exact.
// usage: deepgemm_mqa_logits QUERIES KEYS
#if __CUDA_ARCH_LIST__ >= 1000
#include "deep_gemm/impls/sm100_mqa_logits.cuh"
#else
#include "deep_gemm/impls/sm90_fp8_mqa_logits.cuh"
#endif

#include "deepgemm.cuh"

#ifndef LOGITS_COMPRESSED
#define LOGITS_COMPRESSED false
#endif
// Four bits for an element, and a scale for each 32 of them.
#ifndef LOGITS_FP4
#define LOGITS_FP4 false
#endif

constexpr bool compressed = LOGITS_COMPRESSED, fp4 = LOGITS_FP4;
constexpr int heads = LOGITS_HEADS, size = LOGITS_SIZE, sms = LOGITS_SMS, tile_q = 128 / heads, tile_keys = 256;
constexpr int bytes = fp4 ? size / 2 : size;  // of a head or a key
constexpr int stages_q = 3;

#if __CUDA_ARCH_LIST__ >= 1000
constexpr int stages_keys = fp4 ? 10 : 5, threads = 384;
constexpr int shared = sizeof(
    deep_gemm::layout::MQALogitsSharedStorage<fp4, heads, size, tile_q, tile_keys, stages_q, stages_keys, 3, float>);
constexpr auto entry = deep_gemm::sm100_mqa_logits<fp4, heads, size, compressed, tile_q, tile_keys, stages_q,
                                                   stages_keys, sms, 128, 256, float, float>;
#else
constexpr int stages_keys = 3, threads = 640;
constexpr int shared = stages_q * tile_q * heads * (size + 4) + stages_keys * tile_keys * (size + 4) +
                       (stages_q * 2 + stages_keys * 2 + 4 * 2) * 8 + 4;
constexpr auto entry = deep_gemm::sm90_fp8_mqa_logits<heads, size, compressed, tile_q, tile_keys, stages_q, stages_keys,
                                                      sms, 128, 512, float>;
#endif

// Rows of elements, and with four bits the exponents of their scales, four to a word.
struct Rows {
  std::vector<uint8_t> codes;
  std::vector<uint32_t> scales;
  std::vector<float> values;

  Rows(size_t count, std::mt19937& random) : codes(count * bytes), scales((count + 3) / 4 * 4), values(count * size) {
    static const float numbers[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    std::uniform_int_distribution<int> small(-4, 4), code(0, 15), exponent(126, 128);
    for (auto& word : scales)
      for (int i = 0; i < 4; ++i) word |= static_cast<uint32_t>(exponent(random)) << i * 8;
    for (size_t at = 0; at < values.size(); ++at) {
      if (fp4) {
        const int bits = code(random);
        codes[at / 2] = static_cast<uint8_t>(codes[at / 2] | bits << at % 2 * 4);
        const int scale = static_cast<int>(scales[at / size] >> at % size / 32 * 8 & 255) - 127;
        values[at] = std::ldexp(bits & 8 ? -numbers[bits & 7] : numbers[bits & 7], scale);
      } else {
        values[at] = static_cast<float>(small(random));
        codes[at] = static_cast<uint8_t>(__nv_cvt_float_to_fp8(values[at], __NV_SATFINITE, __NV_E4M3));
      }
    }
  }
};

int main(int argc, char** argv) {
  const int queries = argc > 2 ? std::atoi(argv[1]) : 0, keys = argc > 2 ? std::atoi(argv[2]) : 0;
  if (queries < 1 || keys < 1) return std::puts("usage: deepgemm_mqa_logits QUERIES KEYS"), 2;
  std::mt19937 random(1);
  std::uniform_int_distribution<int> small(-4, 4), exponent(-2, 2), key(0, keys - 1);
  const Rows q(size_t(queries) * heads, random), kv(size_t(keys), random);
  std::vector<float> weights(size_t(queries) * heads), scales(size_t(round_up(keys, 4)), 1);
  std::vector<int> first(static_cast<size_t>(queries)), last(first.size());
  for (auto& value : weights) value = static_cast<float>(small(random));
  for (auto& value : scales) value = fp4 ? 1.0F : std::ldexp(1.0F, exponent(random));
  int longest = 0;
  for (size_t i = 0; i < first.size(); ++i) {
    const int a = key(random), b = key(random);
    first[i] = a < b ? a : b, last[i] = (a < b ? b : a) + 1;
    longest = longest < last[i] - first[i] ? last[i] - first[i] : longest;
  }
  // The kernel writes whole tiles of keys.
  const int pitch = compressed ? round_up(longest, tile_keys) : round_up(keys + tile_keys, 256);
  std::vector<float> out(size_t(round_up(queries, tile_q)) * size_t(pitch), NAN);
  uint8_t *at_q = on_device(q.codes), *at_kv = on_device(kv.codes);
  float *at_weights = on_device(weights), *at_scales = on_device(scales), *at_out = on_device(out);
  auto *at_first = reinterpret_cast<uint32_t*>(on_device(first)),
       *at_last = reinterpret_cast<uint32_t*>(on_device(last));

  const auto rows = static_cast<cuuint64_t>(queries), columns = static_cast<cuuint64_t>(keys);
  constexpr auto element = fp4 ? CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B : CU_TENSOR_MAP_DATA_TYPE_UINT8;
  constexpr auto floats = CU_TENSOR_MAP_DATA_TYPE_FLOAT32, words = CU_TENSOR_MAP_DATA_TYPE_INT32;
  const cuuint64_t scale_columns = scales.size();
  const CUtensorMap map_q = tensor_map(element, 1, at_q, {size, rows * heads}, {bytes}, {size, tile_q * heads}, bytes);
  const CUtensorMap map_kv = tensor_map(element, 1, at_kv, {size, columns}, {bytes}, {size, tile_keys}, bytes);
  const CUtensorMap map_weights = tensor_map(floats, 4, at_weights, {heads, rows}, {heads * 4}, {heads, tile_q}, 0);
  const CUtensorMap map_scales =
      fp4 ? tensor_map(words, 4, on_device(kv.scales), {scale_columns, 1}, {tile_keys * 4}, {tile_keys, 1}, 0)
          : tensor_map(floats, 4, at_scales, {scale_columns, 1}, {tile_keys * 4}, {tile_keys, 1}, 0);
#if __CUDA_ARCH_LIST__ >= 1000
  const CUtensorMap map_scales_q =
      fp4 ? tensor_map(words, 4, on_device(q.scales), {heads, rows}, {heads * 4}, {heads, tile_q}, 0) : map_scales;
  launch(entry, dim3(sms), threads, shared, 1, queries, keys, pitch, at_first, at_last, at_out, map_q, map_scales_q,
         map_kv, map_scales, map_weights);
#else
  launch(entry, dim3(sms), threads, shared, 1, queries, keys, compressed ? longest : 0, pitch, at_first, at_last,
         at_out, map_q, map_kv, map_scales, map_weights);
#endif
  check(cudaMemcpy(out.data(), at_out, out.size() * sizeof(float), cudaMemcpyDeviceToHost));

  size_t wrong = 0, count = 0;
  for (size_t i = 0; i < first.size(); ++i) {
    for (auto j = static_cast<size_t>(first[i]); j < static_cast<size_t>(last[i]); ++j, ++count) {
      double sum = 0;
      for (size_t h = 0; h < heads; ++h) {
        double dot = 0;
        for (size_t d = 0; d < size; ++d)
          dot +=
              static_cast<double>(q.values[(i * heads + h) * size + d]) * static_cast<double>(kv.values[j * size + d]);
        if (dot > 0) sum += dot * static_cast<double>(weights[i * heads + h]);
      }
      const double got = static_cast<double>(out[i * size_t(pitch) + (compressed ? j - size_t(first[i]) : j)]);
      wrong += got != sum * static_cast<double>(scales[j]);
    }
  }
  return verdict(wrong, count);
}
