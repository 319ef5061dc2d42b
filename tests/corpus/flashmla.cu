// SPDX-License-Identifier: Apache-2.0
// Runs attention kernels of FlashMLA (https://github.com/deepseek-ai/FlashMLA, folder csrc), without torch, on small
// random data and compares with attention in double precision. INSTANCE is the source of the kernel, RUN the function
// that launches it, KEY_WIDTH how many numbers a key has, of which the first 512 are its value. KIND is one of
//   KIND_PREFILL   each query attends to the rows of one cache that its indices name, -1 for none
//                  usage: flashmla QUERIES HEADS ROWS CHOICES
//   KIND_DENSE     queries of several sequences with paged caches, by the library's schedule and its sum of parts
//                  usage: flashmla BATCH QUERIES HEADS APART PARTS CAUSAL LENGTH...
//   KIND_SPARSE    the same for the rows that indices name, of a cache in FP8
//                  usage: flashmla BATCH QUERIES HEADS APART PARTS CHOICES
// APART is 1 where the schedule is from an earlier call, as for the later layers of a model.
#define KIND_PREFILL 1
#define KIND_DENSE 2
#define KIND_SPARSE 3
#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "device_memory.cuh"

#include INSTANCE
#if KIND != KIND_PREFILL
#include "smxx/decode/combine/combine.cu"
#include "smxx/decode/get_decoding_sched_meta/get_decoding_sched_meta.cu"
#endif

using Element = cutlass::bfloat16_t;
constexpr int KEY = KEY_WIDTH, VALUE = 512, PAGE = 64;
constexpr float SCALE = 1.0f / 24;
// By how much of a value bf16 rounds at most, and sums and powers in float.
constexpr double ROUNDING = 1.0 / 256, IN_FLOAT = 1.0 / 16384;

template <class T>
static T* room(size_t count) {
  T* memory = nullptr;
  check(cudaMalloc(reinterpret_cast<void**>(&memory), count * sizeof(T)));
  return memory;
}

// Multiples of an eighth up to 1, so that the scores are exact in float.
static std::vector<Element> random_values(std::mt19937& random, size_t count) {
  std::uniform_int_distribution<int> eighths(-8, 8);
  std::vector<Element> values(count);
  for (Element& value : values) value = Element(0.125f * static_cast<float>(eighths(random)));
  return values;
}

// Of each query so many rows of a cache; a fifth of the indices names none, and none of the last query's does.
[[maybe_unused]] static std::vector<int> random_indices(std::mt19937& random, int queries, int choices, int rows) {
  std::vector<int> indices(size_t(queries) * choices);
  std::uniform_int_distribution<int> any(-rows / 4, rows - 1);
  for (int& index : indices) index = std::max(-1, any(random));
  std::fill(indices.end() - choices, indices.end(), -1);
  return indices;
}

[[maybe_unused]] static std::vector<const Element*> rows_of(const std::vector<Element>& cache, const int* indices,
                                                            int choices) {
  std::vector<const Element*> rows;
  for (int i = 0; i < choices; ++i) {
    if (indices[i] >= 0) rows.push_back(&cache[size_t(indices[i]) * KEY]);
  }
  return rows;
}

static size_t elements = 0, wrong = 0;
static double worst = 0;

static void compare(double value, double expected, double tolerance) {
  const double distance = value == expected ? 0 : std::abs(value - expected);
  ++elements;
  wrong += !(distance <= tolerance);
  worst = std::max(worst, distance / tolerance);
}

// One head of one query against the rows it sees: VALUE outputs, and the logarithm of the sum of exponentials.
static void compare_head(const Element* query, const std::vector<const Element*>& rows, const Element* out,
                         float logarithm) {
  double most = -std::numeric_limits<double>::infinity(), sum = 0;
  std::vector<double> scores(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    double score = 0;
    for (int k = 0; k < KEY; ++k) score += double(float(query[k])) * double(float(rows[i][k]));
    most = std::max(most, scores[i] = score * SCALE);
  }
  for (double& score : scores) sum += score = std::exp(score - most);
  if (rows.empty()) {  // nothing to attend to: zeros, and an infinite logarithm
    for (int v = 0; v < VALUE; ++v) compare(float(out[v]), 0, IN_FLOAT);
    compare(std::isinf(logarithm) ? 0 : 1, 0, IN_FLOAT);
    return;
  }
  for (int v = 0; v < VALUE; ++v) {
    double value = 0, sizes = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const double part = scores[i] / sum * double(float(rows[i][v]));
      value += part, sizes += std::abs(part);
    }
    compare(float(out[v]), value, sizes * (ROUNDING + IN_FLOAT) + std::abs(value) * ROUNDING);
  }
  const double expected = most + std::log(sum);
  compare(logarithm, expected, (1 + std::abs(expected)) * IN_FLOAT);
}

#if KIND == KIND_PREFILL
static void run(int, char** argv) {
  const int queries = std::atoi(argv[1]), heads = std::atoi(argv[2]), rows = std::atoi(argv[3]);
  const int choices = std::atoi(argv[4]);
  std::mt19937 random(7);
  const std::vector<Element> q = random_values(random, size_t(queries) * heads * KEY);
  const std::vector<Element> cache = random_values(random, size_t(rows) * KEY);
  const std::vector<int> indices = random_indices(random, queries, choices, rows);

  SparseAttnFwdParams p{};
  p.s_q = queries, p.s_kv = rows, p.h_q = heads, p.h_kv = 1, p.d_qk = KEY, p.d_v = VALUE, p.topk = choices;
  p.sm_scale = SCALE, p.sm_scale_div_log2 = float(SCALE * M_LOG2E);
  p.q = on_device(q), p.kv = on_device(cache), p.indices = on_device(indices);
  p.stride_q_s_q = heads * KEY, p.stride_q_h_q = p.stride_kv_s_kv = p.stride_kv_h_kv = KEY;
  p.stride_indices_s_q = p.stride_indices_h_kv = choices;
  p.out = room<Element>(size_t(queries) * heads * VALUE);
  p.max_logits = room<float>(size_t(queries) * heads), p.lse = room<float>(size_t(queries) * heads);
  check(cudaDeviceGetAttribute(&p.num_sm, cudaDevAttrMultiProcessorCount, 0));
  RUN(p);
  check(cudaDeviceSynchronize());

  const auto out = from_device(p.out, size_t(queries) * heads * VALUE);
  const auto logarithms = from_device(p.lse, size_t(queries) * heads);
  for (int row = 0; row < queries * heads; ++row)
    compare_head(&q[size_t(row) * KEY], rows_of(cache, &indices[size_t(row / heads) * choices], choices),
                 &out[size_t(row) * VALUE], logarithms[row]);
}
#else
// The results of all queries, of their parts, and which multiprocessor computes which part.
struct Decoding {
  int batch, queries, heads, parts, rows;
  bool apart;
  Element* out;
  float *logarithms, *part_logarithms, *part_out;
  DecodingSchedMeta* schedule;
  int* splits;

  explicit Decoding(char** argv)
      : batch(std::atoi(argv[1])),
        queries(std::atoi(argv[2])),
        heads(std::atoi(argv[3])),
        parts(std::atoi(argv[5])),
        rows(queries * heads),
        apart(std::atoi(argv[4]) != 0),
        out(room<Element>(size_t(batch) * rows * VALUE)),
        logarithms(room<float>(size_t(batch) * rows)),
        part_logarithms(room<float>(size_t(batch + parts) * rows)),
        part_out(room<float>(size_t(batch + parts) * rows * VALUE)),
        schedule(room<DecodingSchedMeta>(parts)),
        splits(room<int>(batch + 1)) {}

  void plan(int choices, int* lengths) const {
    GetDecodeSchedMetaParams p{};
    p.b = batch, p.s_q = queries, p.block_size_n = PAGE, p.fixed_overhead_num_blocks = 5, p.topk = choices;
    p.extra_topk = lengths != nullptr ? -1 : 0, p.seqlens_k_ptr = lengths;
    p.tile_scheduler_metadata_ptr = schedule, p.num_splits_ptr = splits, p.num_sm_parts = parts;
    smxx::decode::run_get_decoding_sched_meta_kernel(p);
    if (apart) check(cudaDeviceSynchronize());
  }
  void combine() const {
    CombineParams p{};
    p.b = batch, p.s_q = queries, p.h_q = heads, p.d_v = VALUE, p.lse = logarithms, p.out = out;
    p.stride_lse_b = p.stride_lse_accum_split = rows, p.stride_lse_s_q = p.stride_lse_accum_s_q = heads;
    p.stride_o_b = p.stride_o_accum_split = rows * VALUE, p.stride_o_s_q = p.stride_o_accum_s_q = heads * VALUE;
    p.stride_o_h_q = p.stride_o_accum_h_q = VALUE, p.lse_accum = part_logarithms, p.o_accum = part_out;
    p.tile_scheduler_metadata_ptr = schedule, p.num_splits_ptr = splits, p.num_sm_parts = parts;
    smxx::decode::run_flash_mla_combine_kernel<Element>(p);
    check(cudaDeviceSynchronize());
  }
  // keys(row) are those that query row / heads of all sequences' queries sees.
  template <class Keys>
  void compare(const std::vector<Element>& q, Keys keys) const {
    const auto values = from_device(out, size_t(batch) * rows * VALUE);
    const auto sums = from_device(logarithms, size_t(batch) * rows);
    for (int row = 0; row < batch * rows; ++row)
      compare_head(&q[size_t(row) * KEY], keys(row), &values[size_t(row) * VALUE], sums[row]);
  }
};
#endif

#if KIND == KIND_DENSE
static void run(int argc, char** argv) {
  const Decoding d(argv);
  const int batch = d.batch, queries = d.queries, heads = d.heads, rows = d.rows;
  const bool causal = std::atoi(argv[6]) != 0 && queries > 1;
  std::vector<int> lengths(batch);
  for (int b = 0; b < batch; ++b) lengths[b] = std::atoi(argv[7 + b % (argc - 7)]);
  const int most_pages = (*std::max_element(lengths.begin(), lengths.end()) + PAGE - 1) / PAGE;
  const int pages = batch * most_pages + 3;

  std::mt19937 random(7);
  const std::vector<Element> q = random_values(random, size_t(batch) * rows * KEY);
  const std::vector<Element> cache = random_values(random, size_t(pages) * PAGE * KEY);
  std::vector<int> order(pages);
  for (int i = 0; i < pages; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  const std::vector<int> table(order.begin(), order.begin() + size_t(batch) * most_pages);

  DenseAttnDecodeParams p{};
  p.b = batch, p.s_q = queries, p.q_seq_per_hk = rows, p.d = KEY, p.d_v = VALUE, p.h_q = heads, p.h_k = 1;
  p.num_blocks = pages, p.q_head_per_hk = heads, p.is_causal = causal;
  p.scale_softmax = SCALE, p.scale_softmax_log2 = float(SCALE * M_LOG2E);
  p.q_ptr = on_device(q), p.k_ptr = on_device(cache), p.o_ptr = d.out, p.softmax_lse_ptr = d.logarithms;
  p.q_batch_stride = int64_t(rows) * KEY, p.k_batch_stride = PAGE * KEY, p.o_batch_stride = int64_t(rows) * VALUE;
  p.q_row_stride = p.k_row_stride = p.q_head_stride = p.k_head_stride = KEY;
  p.o_row_stride = VALUE, p.o_head_stride = int64_t(rows) * VALUE;
  p.block_table = on_device(table), p.block_table_batch_stride = most_pages, p.page_block_size = PAGE;
  p.seqlens_k_ptr = on_device(lengths), p.tile_scheduler_metadata_ptr = d.schedule, p.num_sm_parts = d.parts;
  p.num_splits_ptr = d.splits, p.total_num_splits = batch + d.parts;
  p.softmax_lseaccum_ptr = d.part_logarithms, p.oaccum_ptr = d.part_out;
  d.plan(-1, p.seqlens_k_ptr);
  RUN(p);
  d.combine();
  d.compare(q, [&](int row) {
    const int b = row / rows, seen = lengths[b] - (causal ? queries - 1 - row % rows / heads : 0);
    std::vector<const Element*> keys;
    for (int i = 0; i < seen; ++i)
      keys.push_back(&cache[(size_t(table[b * most_pages + i / PAGE]) * PAGE + i % PAGE) * KEY]);
    return keys;
  });
}
#elif KIND == KIND_SPARSE
// A row of the cache has FP8 numbers, a scale for each TILE of them, and 64 numbers in bf16. With keys of 512 the
// scales are powers of two and stand behind all rows of a page.
static void run(int, char** argv) {
  const Decoding d(argv);
  const int batch = d.batch, queries = d.queries, heads = d.heads, choices = std::atoi(argv[6]);
  constexpr int EXTRA = 64, IN_FP8 = KEY - EXTRA, TILE = KEY == 576 ? 128 : 64, PAGES = 9;
  constexpr int ROW = KEY == 576 ? IN_FP8 + 16 + 2 * EXTRA : IN_FP8 + 2 * EXTRA, ALL = KEY == 576 ? ROW : ROW + 8;
  constexpr int OF_PAGE = KEY == 576 ? PAGE * ROW : (PAGE * ALL + 575) / 576 * 576;
  std::mt19937 random(7);
  const std::vector<Element> q = random_values(random, size_t(batch) * d.rows * KEY);
  std::vector<Element> cache = random_values(random, size_t(PAGES) * PAGE * KEY);
  std::vector<uint8_t> stored(size_t(PAGES) * OF_PAGE);
  for (int i = 0; i < PAGES * PAGE; ++i) {
    uint8_t* const page = &stored[size_t(i / PAGE) * OF_PAGE];
    uint8_t* const row = page + i % PAGE * ROW;
    for (int tile = 0; tile < IN_FP8 / TILE; ++tile) {
      const int power = int(random() % 3) - 1;
      const float scale = std::ldexp(1.0f, power);
      if (KEY == 576)
        std::memcpy(row + IN_FP8 + 4 * tile, &scale, 4);
      else
        page[PAGE * ROW + i % PAGE * 8 + tile] = uint8_t(127 + power);
      for (int k = tile * TILE; k < (tile + 1) * TILE; ++k) {
        Element& value = cache[size_t(i) * KEY + k];
        row[k] = __nv_fp8_e4m3(float(value)).__x;
        value = Element(float(value) * scale);
      }
    }
    std::memcpy(row + ROW - 2 * EXTRA, &cache[size_t(i) * KEY + IN_FP8], 2 * EXTRA);
  }
  const std::vector<int> indices = random_indices(random, batch * queries, choices, PAGES * PAGE);

  SparseAttnDecodeParams p{};
  p.b = batch, p.s_q = queries, p.h_q = heads, p.h_kv = 1, p.d_qk = KEY, p.d_v = VALUE;
  p.sm_scale = SCALE, p.sm_scale_div_log2 = float(SCALE * M_LOG2E);
  p.num_blocks = PAGES, p.page_block_size = PAGE, p.topk = choices;
  p.model_type = KEY == 576 ? ModelType::V32 : ModelType::MODEL1;
  p.q = on_device(q), p.kv = reinterpret_cast<Element*>(on_device(stored)), p.indices = on_device(indices);
  p.lse = d.logarithms, p.out = d.out;
  p.stride_q_b = d.rows * KEY, p.stride_q_s_q = heads * KEY, p.stride_q_h_q = KEY;
  p.stride_kv_block = OF_PAGE, p.stride_kv_row = ALL;
  p.stride_indices_b = queries * choices, p.stride_indices_s_q = choices;
  p.stride_lse_b = p.stride_lse_accum_split = d.rows, p.stride_lse_s_q = p.stride_lse_accum_s_q = heads;
  p.stride_o_b = p.stride_o_accum_split = d.rows * VALUE, p.stride_o_s_q = p.stride_o_accum_s_q = heads * VALUE;
  p.stride_o_h_q = p.stride_o_accum_h_q = VALUE, p.lse_accum = d.part_logarithms, p.o_accum = d.part_out;
  p.tile_scheduler_metadata_ptr = d.schedule, p.num_splits_ptr = d.splits, p.num_sm_parts = d.parts;
  d.plan(choices, nullptr);
  RUN(p);
  d.combine();
  d.compare(q, [&](int row) { return rows_of(cache, &indices[size_t(row / heads) * choices], choices); });
}
#endif

int main(int argc, char** argv) {
  run(argc, argv);
  std::printf("%zu of %zu elements are wrong, the worst is at %.2f of its tolerance: %s\n", wrong, elements, worst,
              wrong == 0 ? "Passed" : "Failed");
  return wrong == 0 ? 0 : 1;
}
