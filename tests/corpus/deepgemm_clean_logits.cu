// SPDX-License-Identifier: Apache-2.0
// Runs smxx_clean_logits of DeepGEMM (https://github.com/deepseek-ai/DeepGEMM), which fills what a query does not see
// with minus infinity.
// usage: deepgemm_clean_logits QUERIES
#include "deep_gemm/impls/smxx_clean_logits.cuh"

#include "deepgemm.cuh"

constexpr size_t keys = 9000, pitch = 9472;
constexpr int tile = 8192, warps = 8, sms = 2;

int main(int argc, char** argv) {
  const int queries = argc > 1 ? std::atoi(argv[1]) : 0;
  if (queries < 1) return std::puts("usage: deepgemm_clean_logits QUERIES"), 2;
  std::mt19937 random(1);
  std::uniform_int_distribution<uint32_t> key(0, keys);
  std::vector<uint32_t> first(static_cast<size_t>(queries)), end(first.size());
  for (size_t i = 0; i < first.size(); ++i) {
    const uint32_t a = key(random), b = key(random);
    first[i] = a < b ? a : b, end[i] = a < b ? b : a;
  }
  std::vector<float> logits(first.size() * pitch, 1);
  float* const at_logits = on_device(logits);
  launch(deep_gemm::smxx_clean_logits<1, tile, warps, float>, dim3(sms), warps * 32, tile * 4, 1, queries, int(keys),
         pitch, on_device(first), on_device(end), at_logits);
  check(cudaMemcpy(logits.data(), at_logits, logits.size() * sizeof(float), cudaMemcpyDeviceToHost));

  size_t wrong = 0;
  for (size_t i = 0; i < first.size(); ++i)
    for (size_t j = 0; j < keys; ++j) {
      const float value = logits[i * pitch + j];
      wrong += !(first[i] <= j && j < end[i] ? value == 1 : std::isinf(value) && value < 0);
    }
  return verdict(wrong, first.size() * keys);
}
