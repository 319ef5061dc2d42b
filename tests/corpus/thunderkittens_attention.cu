// SPDX-License-Identifier: Apache-2.0
// Runs an attention kernel of ThunderKittens (https://github.com/HazyResearch/ThunderKittens) on small random data and
// compares with attention in double precision. SOURCE is the kernel's file, included as it is with its main() under
// another name; KERNEL says which of the kernels below it holds, HEAD_DIM and CAUSAL which instance is run.
// BACKWARD adds the backward pass; DISPATCH names the host function of a file that binds to PyTorch.
// usage: thunderkittens_attention forward|backward BATCH HEADS KV_HEADS LENGTH
#define MHA_H100 1  // a block for each 192 queries
#define MHA_LCF 2   // persistent blocks from the pipeline template
#define MHA_B300 3  // pairs of blocks; queries and keys are 192 wide, values 128

#include <cassert>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "device_memory.cuh"

#define main main_of_source
#include SOURCE
#undef main

// Multiples of a quarter, so that the scores are exact in float.
static std::vector<bf16> random_values(std::mt19937& random, size_t count, int largest) {
  std::uniform_int_distribution<int> quarters(-4 * largest, 4 * largest);
  std::vector<bf16> values(count);
  for (bf16& value : values) value = __float2bfloat16(0.25f * static_cast<float>(quarters(random)));
  return values;
}

static double as_double(bf16 value) { return static_cast<double>(__bfloat162float(value)); }
static double as_double(float value) { return static_cast<double>(value); }

// An expected value, and how far from it a right kernel may be.
struct Expected {
  double value = 0, tolerance = 0;
};

template <class T>
static size_t wrong_of(const char* name, const std::vector<T>& values, const std::vector<Expected>& expected) {
  size_t wrong = 0;
  double worst = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double distance = std::abs(as_double(values[i]) - expected[i].value);
    wrong += !(distance <= expected[i].tolerance);
    worst = std::max(worst, distance / expected[i].tolerance);
  }
  std::printf("%s: %zu of %zu are wrong, the worst is at %.2f of its tolerance\n", name, wrong, values.size(), worst);
  return wrong;
}

// Rounding to bf16 errs by 2^-8 of a value at most. The other is for sums and powers in float, which err far less.
constexpr double ROUNDING = 1.0 / 256, IN_FLOAT = 1.0 / 16384;

struct Problem {
  int batch, heads, kv_heads, length;
  bool causal;
  int dim, value_dim;  // of queries and keys, of values

  std::vector<bf16> q, k, v;  // [batch, heads, length, dim], or [batch, length, heads, dim] if length_first
  bool length_first = false;
  std::vector<Expected> o, logs;     // logs[batch, heads, length] are the logarithms of the sums of exp(score)
  std::vector<Expected> dq, dk, dv;  // after backward()

  size_t at(int b, int h, int i, int all_heads, int width) const {
    return (length_first ? (size_t(b) * length + i) * all_heads + h : (size_t(b) * all_heads + h) * length + i) * width;
  }

  void fill() {
    std::mt19937 random(1);
    q = random_values(random, size_t(batch) * heads * length * dim, 2);
    k = random_values(random, size_t(batch) * kv_heads * length * dim, 2);
    v = random_values(random, size_t(batch) * kv_heads * length * value_dim, 2);
  }

  double score(int b, int h, int i, int j) const {
    const bf16 *one = &q[at(b, h, i, heads, dim)], *other = &k[at(b, h / (heads / kv_heads), j, kv_heads, dim)];
    float sum = 0;  // exact
    for (int d = 0; d < dim; ++d) sum += __bfloat162float(one[d]) * __bfloat162float(other[d]);
    return static_cast<double>(sum) / std::sqrt(static_cast<double>(dim));
  }

  // Calls use(b, h, i, weights) with the softmax of each row of scores.
  template <class Use>
  void each_row(Use use) {
    std::vector<double> weights(length);
    logs.resize(size_t(batch) * heads * length);
    for (int b = 0; b < batch; ++b) {
      for (int h = 0; h < heads; ++h) {
        for (int i = 0; i < length; ++i) {
          const int end = causal ? i + 1 : length;
          double largest = -INFINITY, sum = 0;
          for (int j = 0; j < end; ++j) largest = std::max(largest, weights[j] = score(b, h, i, j));
          for (int j = 0; j < end; ++j) sum += weights[j] = std::exp(weights[j] - largest);
          for (int j = 0; j < length; ++j) weights[j] = j < end ? weights[j] / sum : 0;
          const double log = largest + std::log(sum);
          logs[(size_t(b) * heads + h) * length + i] = {log, IN_FLOAT * (1 + std::abs(log))};
          use(b, h, i, weights);
        }
      }
    }
  }

  // The weights are rounded to bf16 before they multiply, and the result is.
  void forward() {
    o.assign(size_t(batch) * heads * length * value_dim, {});
    each_row([this](int b, int h, int i, const std::vector<double>& weights) {
      Expected* const row = &o[at(b, h, i, heads, value_dim)];
      for (int j = 0; j < length; ++j) {
        const bf16* const values = &v[at(b, h / (heads / kv_heads), j, kv_heads, value_dim)];
        for (int d = 0; weights[j] != 0 && d < value_dim; ++d) {
          const double part = weights[j] * as_double(values[d]);
          row[d].value += part;
          row[d].tolerance += (ROUNDING + IN_FLOAT) * std::abs(part);
        }
      }
      for (int d = 0; d < value_dim; ++d)
        row[d].tolerance += ROUNDING * (std::abs(row[d].value) + row[d].tolerance) + 1e-30;
    });
  }

  // Of the sum of o * o_gradient, o as rounded. The weights and their gradients are rounded to bf16.
  void backward(const std::vector<bf16>& rounded_o, const std::vector<bf16>& o_gradient) {
    dq.assign(q.size(), {}), dk.assign(k.size(), {}), dv.assign(v.size(), {});
    const double scale = 1 / std::sqrt(static_cast<double>(dim));
    const auto add = [](Expected& to, double factor, double other, double magnitude) {
      to.value += factor * other;
      to.tolerance += ROUNDING * std::abs(factor * other) + IN_FLOAT * std::abs(magnitude * other) + 1e-30;
    };
    each_row([&](int b, int h, int i, const std::vector<double>& weights) {
      const bf16 *const gradient = &o_gradient[at(b, h, i, heads, dim)], *const out =
                                                                             &rounded_o[at(b, h, i, heads, dim)];
      double inner = 0;
      for (int d = 0; d < dim; ++d) inner += as_double(gradient[d]) * as_double(out[d]);
      for (int j = 0; j < length; ++j) {
        if (weights[j] == 0) continue;
        const size_t other = at(b, h / (heads / kv_heads), j, kv_heads, dim), own = at(b, h, i, heads, dim);
        double product = 0;
        for (int d = 0; d < dim; ++d) product += as_double(gradient[d]) * as_double(v[other + d]);
        const double of_score = weights[j] * (product - inner) * scale;
        const double magnitude = weights[j] * (std::abs(product) + std::abs(inner)) * scale;
        for (int d = 0; d < dim; ++d) {
          add(dv[other + d], weights[j], as_double(gradient[d]), weights[j]);
          add(dk[other + d], of_score, as_double(q[own + d]), magnitude);
          add(dq[own + d], of_score, as_double(k[other + d]), magnitude);
        }
      }
    });
  }
};

#if KERNEL == MHA_H100
static size_t run_forward(Problem& p) {
  using Globals = fwd_globals<HEAD_DIM>;
  bf16 *const q = on_device(p.q), *const k = on_device(p.k), *const v = on_device(p.v);
  bf16* const o = on_device(std::vector<bf16>(p.q.size()));
  float* const l = on_device(std::vector<float>(p.q.size() / HEAD_DIM));
  const auto batch = static_cast<unsigned>(p.batch), heads = static_cast<unsigned>(p.heads);
  const auto kv_heads = static_cast<unsigned>(p.kv_heads), length = static_cast<unsigned>(p.length);
  Globals globals{typename Globals::q_gl{q, batch, heads, length, HEAD_DIM},
                  typename Globals::k_gl{k, batch, kv_heads, length, HEAD_DIM},
                  typename Globals::v_gl{v, batch, kv_heads, length, HEAD_DIM},
                  typename Globals::l_gl{l, batch, heads, 1U, length},
                  typename Globals::o_gl{o, batch, heads, length, HEAD_DIM},
                  p.length,
                  p.heads / p.kv_heads};
  const int bytes = kittens::MAX_SHARED_MEMORY - 1024;
  auto* const kernel = fwd_attend_ker<HEAD_DIM, CAUSAL>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<dim3(length / (CONSUMER_WARPGROUPS * 64), heads, batch), 32 * NUM_WORKERS, bytes>>>(globals);
  check(cudaGetLastError());
  check(cudaDeviceSynchronize());
  // The kernel leaves the logarithm times -sqrt(d), which its backward pass adds to scores.
  p.forward();
  const double factor = -std::sqrt(static_cast<double>(HEAD_DIM));
  std::vector<Expected> logs = p.logs;
  for (Expected& log : logs) log = {log.value * factor, log.tolerance * std::abs(factor)};
  return wrong_of("o", from_device(o, p.q.size()), p.o) + wrong_of("l", from_device(l, p.q.size() / HEAD_DIM), logs);
}

#ifdef BACKWARD
static size_t run_backward(Problem& p) {
  std::mt19937 random(2);
  const std::vector<bf16> gradient = random_values(random, p.q.size(), 2);
  p.forward();
  std::vector<bf16> rounded;
  std::vector<float> logs;
  for (const Expected& value : p.o) rounded.push_back(__float2bfloat16(static_cast<float>(value.value)));
  for (const Expected& log : p.logs)
    logs.push_back(static_cast<float>(-log.value * std::sqrt(static_cast<double>(HEAD_DIM))));
  bf16 *const q = on_device(p.q), *const k = on_device(p.k), *const v = on_device(p.v);
  bf16 *const o = on_device(rounded), *const og = on_device(gradient);
  float *const l = on_device(logs), *const d = on_device(std::vector<float>(logs.size(), NAN));
  float *const qg = on_device(std::vector<float>(p.q.size())), *const kg = on_device(std::vector<float>(p.k.size()));
  float* const vg = on_device(std::vector<float>(p.v.size()));
  const auto batch = static_cast<unsigned>(p.batch), heads = static_cast<unsigned>(p.heads);
  const auto kv_heads = static_cast<unsigned>(p.kv_heads), length = static_cast<unsigned>(p.length);

  using Prepare = bwd_prep_globals<HEAD_DIM>;
  Prepare prepare{typename Prepare::og_gl{og, batch, heads, length, HEAD_DIM},
                  typename Prepare::o_gl{o, batch, heads, length, HEAD_DIM},
                  typename Prepare::d_gl{d, batch, heads, 1U, length}};
  const int prepare_bytes = 4 * (2 * 64 * HEAD_DIM * 2 + 64 * 4) + 4096;
  auto* const preparation = bwd_attend_prep_ker<HEAD_DIM>;
  check(cudaFuncSetAttribute(preparation, cudaFuncAttributeMaxDynamicSharedMemorySize, prepare_bytes));
  preparation<<<dim3(length / 256, heads, batch), 128, prepare_bytes>>>(prepare);

  using Globals = bwd_globals<HEAD_DIM>;
  Globals globals{typename Globals::q_gl{q, batch, heads, length, HEAD_DIM},
                  typename Globals::k_gl{k, batch, kv_heads, length, HEAD_DIM},
                  typename Globals::v_gl{v, batch, kv_heads, length, HEAD_DIM},
                  typename Globals::og_gl{og, batch, heads, length, HEAD_DIM},
                  typename Globals::qg_gl{qg, batch, heads, length, HEAD_DIM},
                  typename Globals::kg_gl{kg, batch, kv_heads, length, HEAD_DIM},
                  typename Globals::vg_gl{vg, batch, kv_heads, length, HEAD_DIM},
                  typename Globals::l_gl{l, batch, heads, 1U, length},
                  typename Globals::d_gl{d, batch, heads, 1U, length},
                  p.length,
                  p.heads / p.kv_heads};
  const int bytes = HEAD_DIM == 64 ? 117760 : 183296;
  auto* const kernel = bwd_attend_ker<HEAD_DIM, CAUSAL>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<dim3(length / (64 * BWD_CONSUMER_WARPGROUPS), heads, batch), 32 * BWD_NUM_WORKERS, bytes>>>(globals);
  check(cudaGetLastError());
  check(cudaDeviceSynchronize());
  p.backward(rounded, gradient);
  return wrong_of("dq", from_device(qg, p.q.size()), p.dq) + wrong_of("dk", from_device(kg, p.k.size()), p.dk) +
         wrong_of("dv", from_device(vg, p.v.size()), p.dv);
}
#endif
#endif

#if KERNEL == MHA_LCF
static size_t run_forward(Problem& p) {
  using Template = attn_fwd_template<HEAD_DIM>;
  using Layout = Template::layout;
  bf16 *const q = on_device(p.q), *const k = on_device(p.k), *const v = on_device(p.v);
  bf16* const o = on_device(std::vector<bf16>(p.q.size()));
  const auto batch = static_cast<size_t>(p.batch), heads = static_cast<size_t>(p.heads);
  const auto length = static_cast<size_t>(p.length);
  Layout::globals globals = {
      Layout::qo_global(o, batch, heads, length, nullptr), Layout::qo_global(q, batch, heads, length, nullptr),
      Layout::kv_global(k, batch, heads, length, nullptr), Layout::kv_global(v, batch, heads, length, nullptr)};
  const int bytes = kittens::MAX_SHARED_MEMORY - 2000;
  auto* const kernel = kittens::prototype::lcf::kernel<Template>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  // Fewer blocks than the library's 132, so that each has more than one tile.
  kernel<<<3, kittens::prototype::detail::NUM_THREADS_v<Template>, bytes>>>(globals);
  check(cudaGetLastError());
  check(cudaDeviceSynchronize());
  p.forward();
  return wrong_of("o", from_device(o, p.q.size()), p.o);
}
#endif

#if KERNEL == MHA_B300
static size_t run_forward(Problem& p) {
  p.length_first = true;
  const int64_t batch = p.batch, heads = p.heads, length = p.length;
  bf16* const o = on_device(std::vector<bf16>(static_cast<size_t>(batch * heads * length * p.value_dim)));
  float* const logs = on_device(std::vector<float>(static_cast<size_t>(batch * heads * length), NAN));
  const auto tensor = [&](void* memory, int64_t width) {
    return at::Tensor(memory, {batch, length, heads, width}, at::ScalarType::BFloat16);
  };
  // The library's own host code makes the tensor maps and launches.
  DISPATCH(tensor(on_device(p.q), p.dim), tensor(on_device(p.k), p.dim), tensor(on_device(p.v), p.value_dim),
           tensor(o, p.value_dim), at::Tensor(logs, {batch, heads, 1, length}, at::ScalarType::Float));
  check(cudaGetLastError());
  check(cudaDeviceSynchronize());
  p.forward();
  return wrong_of("o", from_device(o, p.o.size()), p.o) + wrong_of("logs", from_device(logs, p.logs.size()), p.logs);
}
#endif

int main(int argc, char** argv) {
  if (argc != 6) return std::puts("usage: thunderkittens_attention forward|backward BATCH HEADS KV_HEADS LENGTH"), 2;
  Problem problem{std::atoi(argv[2]),
                  std::atoi(argv[3]),
                  std::atoi(argv[4]),
                  std::atoi(argv[5]),
                  CAUSAL,
                  HEAD_DIM,
                  KERNEL == MHA_B300 ? 128 : HEAD_DIM};
  problem.fill();
  size_t wrong = 0;
  if (std::strcmp(argv[1], "forward") == 0) {
    wrong = run_forward(problem);
#ifdef BACKWARD
  } else if (std::strcmp(argv[1], "backward") == 0) {
    wrong = run_backward(problem);
#endif
  } else {
    return std::puts("this binary has no such pass"), 2;
  }
  std::printf("%zu elements are wrong: %s\n", wrong, wrong == 0 ? "Passed" : "Failed");
  return wrong == 0 ? 0 : 1;
}
