// SPDX-License-Identifier: Apache-2.0
// Runs an instance of FlashAttention 3's forward pass (https://github.com/Dao-AILab/flash-attention, folder hopper)
// through the library's launch template, without torch, on small random data and compares with attention in double
// precision. ELEMENT, HEAD_DIM, CAUSAL, LOCAL, VARLEN, PACK_GQA and CLUSTER say which instance is compiled.
// usage: flash_attention BATCH HEADS KV_HEADS QUERIES KEYS MULTIPROCESSORS
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "device_memory.cuh"
#include "flash_fwd_launch_template.h"
#if VARLEN
#include "flash_prepare_scheduler.cu"
#endif

using Element = cutlass::ELEMENT;
constexpr bool FP8 = sizeof(Element) == 1;
using Out = std::conditional_t<FP8, cutlass::bfloat16_t, Element>;

// By how much of a value rounding to the type errs at most.
template <class T>
constexpr double ROUNDING = std::is_same_v<T, cutlass::bfloat16_t> ? 1.0 / 256
                            : std::is_same_v<T, cutlass::half_t>   ? 1.0 / 2048
                                                                   : 1.0 / 16;
// The least number in which half_t and the 8-bit formats have all their digits; below, the error is a fixed one.
template <class T>
constexpr double LEAST = std::is_same_v<T, cutlass::bfloat16_t> ? 1e-38
                         : sizeof(T) == 2                       ? 1.0 / 16384
                                                                : 1.0 / 64;
// For sums and powers in float, which err far less.
constexpr double IN_FLOAT = 1.0 / 16384;

// Multiples of a quarter up to 2, so that the scores are exact in float.
static std::vector<Element> random_values(std::mt19937& random, size_t count) {
  std::uniform_int_distribution<int> quarters(-8, 8);
  std::vector<Element> values(count);
  for (Element& value : values) value = Element(0.25f * static_cast<float>(quarters(random)));
  return values;
}

// An expected value, and how far from it a right kernel may be.
struct Expected {
  double value = 0, tolerance = 0;
};

template <class T>
static size_t wrong_of(const char* name, const std::vector<T>& values, const std::vector<Expected>& expected) {
  size_t wrong = 0;
  double worst = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = static_cast<double>(static_cast<float>(values[i]));
    const double distance = value == expected[i].value ? 0 : std::abs(value - expected[i].value);
    wrong += !(distance <= expected[i].tolerance);
    worst = std::max(worst, distance / expected[i].tolerance);
  }
  std::printf("%s: %zu of %zu are wrong, the worst is at %.2f of its tolerance\n", name, wrong, values.size(), worst);
  return wrong;
}

int main(int argc, char** argv) {
  if (argc != 7) return std::puts("usage: flash_attention BATCH HEADS KV_HEADS QUERIES KEYS MULTIPROCESSORS"), 2;
  const int batch = std::atoi(argv[1]), heads = std::atoi(argv[2]), kv_heads = std::atoi(argv[3]);
  const int queries = std::atoi(argv[4]), keys = std::atoi(argv[5]), group = heads / kv_heads;
  constexpr int LEFT = 100, RIGHT = 30;  // of LOCAL

  // Where sequences begin, all as long as the longest unless VARLEN.
  std::vector<int> q_begins{0}, k_begins{0};
  for (int b = 0; b < batch; ++b) {
    q_begins.push_back(q_begins.back() + (VARLEN ? queries * (batch - b) / batch : queries));
    k_begins.push_back(k_begins.back() + (VARLEN ? keys * (batch - b) / batch : keys));
  }
  const auto q_rows = static_cast<size_t>(q_begins.back()), k_rows = static_cast<size_t>(k_begins.back());
  std::mt19937 random(1);
  const std::vector<Element> q = random_values(random, q_rows * heads * HEAD_DIM);
  const std::vector<Element> k = random_values(random, k_rows * kv_heads * HEAD_DIM);
  const std::vector<Element> v = random_values(random, k_rows * kv_heads * HEAD_DIM);

  Flash_fwd_params params = {};
  params.is_bf16 = std::is_same_v<Element, cutlass::bfloat16_t>;
  params.is_e4m3 = FP8;
  params.q_ptr = on_device(q);
  params.k_ptr = on_device(k);
  params.v_ptr = on_device(v);
  Out* const o = on_device(std::vector<Out>(q.size(), Out(NAN)));
  float* const logs = on_device(std::vector<float>(q_rows * heads, NAN));
  params.o_ptr = o;
  params.softmax_lse_ptr = logs;
  params.q_row_stride = params.o_row_stride = heads * HEAD_DIM;
  params.k_row_stride = params.v_row_stride = kv_heads * HEAD_DIM;
  params.q_head_stride = params.k_head_stride = params.v_head_stride = params.o_head_stride = HEAD_DIM;
  params.v_dim_stride = 1;
  if (VARLEN) {
    params.cu_seqlens_q = on_device(q_begins);
    params.cu_seqlens_k = on_device(k_begins);
  } else {
    params.q_batch_stride = params.o_batch_stride = queries * params.q_row_stride;
    params.k_batch_stride = params.v_batch_stride = keys * params.k_row_stride;
  }
  params.b = params.b_k = batch;
  params.h = heads, params.h_k = kv_heads;
  params.seqlen_q = queries, params.seqlen_k = keys;
  params.seqlen_q_rounded = (queries + 127) / 128 * 128, params.seqlen_k_rounded = (keys + 127) / 128 * 128;
  params.total_q = static_cast<int>(q_rows), params.total_k = static_cast<int>(k_rows);
  params.d = params.d_rounded = params.dv = params.dv_rounded = HEAD_DIM;
  params.scale_softmax = 1 / std::sqrt(static_cast<float>(HEAD_DIM));
  params.p_dropout = params.rp_dropout = 1;
  params.p_dropout_in_uint8_t = 255;
  params.is_causal = CAUSAL, params.is_local = LOCAL;
  params.window_size_left = LOCAL ? LEFT : keys - 1;
  params.window_size_right = CAUSAL ? 0 : LOCAL ? RIGHT : queries - 1;
  params.arch = 90;
  params.num_sm = std::atoi(argv[6]);  // the caller of the library may keep some for others
  params.num_splits = 1;
  params.pack_gqa = PACK_GQA;
  params.varlen_sort_batches = !LOCAL;
  params.head_swizzle = CAUSAL || LOCAL;
  // The scheduler's memory: four numbers for each sequence, then the next tile's.
  const int rounded = (batch + 3) / 4 * 4;
  int* const memory = on_device(std::vector<int>(4 * static_cast<size_t>(rounded) + 1, 0));
  params.tile_count_semaphore = VARLEN || CAUSAL || LOCAL ? memory + 4 * rounded : nullptr;
  if (VARLEN) {
    params.num_splits_dynamic_ptr = memory;
    params.num_m_blocks_ptr = memory + rounded;
    params.varlen_batch_idx_ptr = params.varlen_sort_batches ? memory + 2 * rounded : nullptr;
    params.num_nheads_in_l2_ptr = params.head_swizzle ? memory + 3 * rounded : nullptr;
  }
  run_flash_fwd<90, HEAD_DIM, HEAD_DIM, CLUSTER, Element, Out, CAUSAL, LOCAL, false, VARLEN, false, false, false,
                PACK_GQA, false, false>(params, nullptr);
  check(cudaGetLastError());
  check(cudaDeviceSynchronize());

  std::vector<Expected> expected(q.size()), expected_logs(q_rows * heads);
  std::vector<double> weights(static_cast<size_t>(keys));
  for (int b = 0; b < batch; ++b) {
    const int own_queries = q_begins[b + 1] - q_begins[b], own_keys = k_begins[b + 1] - k_begins[b];
    for (int h = 0; h < heads; ++h) {
      for (int i = 0; i < own_queries; ++i) {
        // The last query sees the last key.
        const int at = i + own_keys - own_queries;
        const int end = CAUSAL ? at + 1 : LOCAL ? std::min(own_keys, at + RIGHT + 1) : own_keys;
        const int begin = LOCAL ? std::max(0, at - LEFT) : 0;
        const size_t row = (static_cast<size_t>(q_begins[b] + i) * heads + h) * HEAD_DIM;
        double largest = -INFINITY, sum = 0;
        for (int j = begin; j < end; ++j) {
          const size_t key = (static_cast<size_t>(k_begins[b] + j) * kv_heads + h / group) * HEAD_DIM;
          float score = 0;
          for (int d = 0; d < HEAD_DIM; ++d) score += static_cast<float>(q[row + d]) * static_cast<float>(k[key + d]);
          weights[j] = static_cast<double>(score) / std::sqrt(static_cast<double>(HEAD_DIM));
          largest = std::max(largest, weights[j]);
        }
        for (int j = begin; j < end; ++j) sum += weights[j] = std::exp(weights[j] - largest);
        const double log = largest + std::log(sum);
        expected_logs[VARLEN ? h * q_rows + static_cast<size_t>(q_begins[b] + i)
                             : (static_cast<size_t>(b) * heads + h) * queries + i] = {log,
                                                                                      IN_FLOAT * (1 + std::abs(log))};
        // The weights are rounded before they multiply, FP8's times 2^8, and the result is.
        const double fixed = ROUNDING<Element> * LEAST<Element> / (FP8 ? 256 : 1);
        for (int j = begin; j < end; ++j) {
          const size_t value = (static_cast<size_t>(k_begins[b] + j) * kv_heads + h / group) * HEAD_DIM;
          for (int d = 0; d < HEAD_DIM; ++d) {
            const double other = static_cast<double>(static_cast<float>(v[value + d])) / sum;
            expected[row + d].value += weights[j] * other;
            expected[row + d].tolerance += ((ROUNDING<Element> + IN_FLOAT) * weights[j] + fixed) * std::abs(other);
          }
        }
        for (int d = 0; d < HEAD_DIM; ++d) {
          Expected& one = expected[row + d];
          one.tolerance += ROUNDING<Out> * (std::max(std::abs(one.value), LEAST<Out>) + one.tolerance) + 1e-30;
        }
      }
    }
  }
  const size_t wrong = wrong_of("o", from_device(o, q.size()), expected) +
                       wrong_of("logs", from_device(logs, q_rows * heads), expected_logs);
  std::printf("%zu elements are wrong: %s\n", wrong, wrong == 0 ? "Passed" : "Failed");
  return wrong == 0 ? 0 : 1;
}
