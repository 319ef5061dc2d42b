// SPDX-License-Identifier: Apache-2.0
// Times whole expert layers (moxie/layer.h) of models, as planned and with tokens gathered and permuted, and in the
// same run what they are made of: the first product with gathered rows and with rows in order, the second one, the
// sort, the permutation and the sum. Prints JSON. Medians of graph replays; every launch has tokens and experts of its
// own, drawn with the popularity that real routers show.
// bench_layer [--most TOKENS] [--model NAME]
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/timing/buffer.h"
#include "bench/timing/data.h"
#include "bench/timing/gpu_clock.h"
#include "moxie/moxie.h"

namespace moxie {
namespace {

using timing::Buffer;
using timing::GpuClock;

struct Model {
  const char* name;
  int64_t experts, all_experts;
  int top_k;
  int64_t hidden, width;
  OperandFormat weights;
  Activation activation;
  bool bias;
};
constexpr auto kBf16 = OperandFormat::Bf16, kMxfp4 = OperandFormat::Mxfp4;
constexpr Model kModels[] = {
    {"gpt-oss-20b", 32, 32, 4, 2880, 2880, kBf16, Activation::SwigluOai, true},
    {"gpt-oss-20b-mxfp4", 32, 32, 4, 2880, 2880, kMxfp4, Activation::SwigluOai, true},
    {"gpt-oss-120b-mxfp4", 128, 128, 4, 2880, 2880, kMxfp4, Activation::SwigluOai, true},
    {"qwen3-30b-a3b", 128, 128, 8, 2048, 768, kBf16, Activation::Swiglu, false},
    {"mixtral-8x7b", 8, 8, 2, 4096, 14336, kBf16, Activation::Swiglu, false},
    {"deepseek-v3", 32, 256, 8, 7168, 2048, kBf16, Activation::Swiglu, false},  // experts spread over 8 GPUs
};
constexpr int64_t kTokens[] = {1, 16, 64, 256, 512, 1024, 2048, 4096, 16384};
constexpr int kTurns = 6;

// Memory of so many bytes, filled with copies of what `some` holds.
Buffer repeated(const Device& device, const GpuClock& clock, const Buffer& some, size_t bytes) {
  Buffer all(device, bytes);
  for (size_t at = 0; at < bytes; at += some.bytes())
    clock.copy(all.as<uint8_t>() + at, some.as(), std::min(some.bytes(), bytes - at), nullptr);
  device.synchronize();
  return all;
}

Buffer make_weights(const Device& device, const GpuClock& clock, const Model& model, int64_t n, int64_t k, bool gated) {
  if (model.weights == kBf16) {
    const Buffer some(device, timing::random_bf16(3, int64_t{1} << 24, 1 / std::sqrt(float(k))));
    return repeated(device, clock, some, size_t(model.experts * n * k) * 2);
  }
  std::mt19937_64 random(5);
  std::vector<uint8_t> codes(size_t(n * k / 2)), scales(size_t(n * k / 32));
  for (uint8_t& code : codes) code = uint8_t(random());
  for (uint8_t& scale : scales) scale = uint8_t(118 + random() % 4);
  const Buffer from(device, codes), of(device, scales);
  WeightPacking packing{{1, n, k, gated}, from.as(), of.as()};
  const Buffer one(device, packed_weight_bytes(packing));
  packing.packed = one.as();
  pack_weights(device, packing);
  device.synchronize();
  return repeated(device, clock, one, packed_weight_bytes({model.experts, n, k, gated}));
}

// The experts of tokens: k different ones, where the one of rank r is as popular as 1 / sqrt(r).
std::vector<int32_t> draw_ids(const Model& model, int64_t tokens, std::mt19937_64& random) {
  std::vector<double> popularity;
  for (int64_t r = 1; r <= model.all_experts; ++r) popularity.push_back(-0.5 * std::log(double(r)));
  std::shuffle(popularity.begin(), popularity.end(), random);
  std::extreme_value_distribution<double> gumbel;
  std::vector<int32_t> ids, order(size_t(model.all_experts));
  std::vector<double> keys(order.size());
  for (int64_t t = 0; t < tokens; ++t) {
    for (size_t e = 0; e < keys.size(); ++e) keys[e] = popularity[e] + gumbel(random);
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + model.top_k, order.end(),
                      [&](int32_t a, int32_t b) { return keys[size_t(a)] > keys[size_t(b)]; });
    ids.insert(ids.end(), order.begin(), order.begin() + model.top_k);
  }
  return ids;
}

void time_layer(const Device& device, const GpuClock& clock, const Model& model, int64_t tokens, const Buffer& up,
                const Buffer& down, const Buffer& bias, const char*& separator) {
  ExpertLayerDescription d;
  d.experts = model.experts, d.all_experts = model.all_experts, d.top_k = model.top_k;
  d.hidden = model.hidden, d.width = model.width;
  d.weights = model.weights, d.activation = model.activation;
  d.up_bias = d.down_bias = model.bias;
  d.max_tokens = d.expected_tokens.emplace(tokens);
  const ExpertLayer layer(device, d);
  d.permute = false;
  const ExpertLayer gathering(device, d);
  d.permute = true;
  const ExpertLayer permuting(device, d);

  const int64_t pairs = tokens * model.top_k, n = is_gated(model.activation) ? 2 * model.width : model.width;
  GemmDescription first;
  // As the layer plans them.
  const int64_t rows = std::max<int64_t>((pairs * model.experts + model.all_experts - 1) / model.all_experts, 1);
  first.groups = Offsets{model.experts, rows};
  first.expected_rows = (rows + model.experts - 1) / model.experts;
  first.n = n, first.k = model.hidden;
  if (model.weights != kBf16) first.b_format = model.weights;
  first.bias = model.bias, first.activation = model.activation;
  GemmDescription gathered = first, second = first;
  gathered.gather = true;
  second.n = model.hidden, second.k = model.width, second.activation = Activation::None;
  const GroupedGemm in_order(device, first), up_product(device, gathered), down_product(device, second);

  std::mt19937_64 random(7);
  const Buffer some(device, timing::random_bf16(9, std::min<int64_t>(pairs * model.hidden, 1 << 24), 1));
  struct Turn {
    Buffer x, sorted, ids, weights, ends, order, inverse, inner, rows, out;
    Workspace workspace;
  };
  std::vector<Turn> turns;
  const auto bytes = [](int64_t elements) { return size_t(elements) * 2; };
  for (int i = 0; i < kTurns; ++i) {
    const std::vector<int32_t> ids = draw_ids(model, tokens, random);
    Turn t{repeated(device, clock, some, bytes(tokens * model.hidden)),
           repeated(device, clock, some, bytes(pairs * model.hidden)),
           Buffer(device, ids),
           Buffer(device, std::vector<float>(size_t(pairs), 0.25f)),
           Buffer(device, size_t(model.experts) * 4),
           Buffer(device, size_t(pairs) * 4),
           Buffer(device, size_t(pairs) * 4),
           Buffer(device, bytes(pairs * model.width)),
           Buffer(device, bytes(pairs * model.hidden)),
           Buffer(device, bytes(tokens * model.hidden)),
           Workspace(device, std::max({layer.workspace_bytes(), gathering.workspace_bytes(),
                                       permuting.workspace_bytes(), up_product.workspace_bytes(pairs),
                                       in_order.workspace_bytes(pairs), down_product.workspace_bytes(pairs),
                                       sort_workspace_bytes(tokens, model.top_k, model.experts)}))};
    turns.push_back(std::move(t));
  }
  const void* const biases = model.bias ? bias.as() : nullptr;
  const auto sort = [&](int turn, Stream stream) {
    const Turn& t = turns[size_t(turn % kTurns)];
    sort_by_expert(device,
                   {.tokens = tokens,
                    .top_k = model.top_k,
                    .experts = model.experts,
                    .ids = t.ids.as(),
                    .ends = t.ends.as<int32_t>(),
                    .order = t.order.as<int32_t>(),
                    .inverse = t.inverse.as<int32_t>()},
                   t.workspace, {.stream = stream});
  };
  const auto product = [&](const GroupedGemm& gemm, const Buffer Turn::*a, const Buffer& b, Buffer Turn::*out,
                           bool gather) {
    return [&, a, out, gather](int turn, Stream stream) {
      const Turn& t = turns[size_t(turn % kTurns)];
      GemmTensors x;
      x.a.data = (t.*a).as(), x.b.data = b.as(), x.bias = biases;
      x.out.data = (t.*out).as();
      x.rows.ends = t.ends.as<int32_t>(), x.rows.total = pairs;
      if (gather) x.gather = {t.order.as<int32_t>(), model.top_k, tokens};
      gemm.run(x, t.workspace, {.stream = stream, .weights_ready = true});
    };
  };
  const auto copy = [&](int turn, Stream stream) {
    const Turn& t = turns[size_t(turn % kTurns)];
    permute(device,
            {.tokens = tokens,
             .top_k = model.top_k,
             .width = model.hidden,
             .row_count = pairs,
             .x = t.x.as(),
             .inverse = t.inverse.as<int32_t>(),
             .out = t.rows.as()},
            {.stream = stream});
  };
  const auto sum = [&](int turn, Stream stream) {
    const Turn& t = turns[size_t(turn % kTurns)];
    combine(device,
            {.tokens = tokens,
             .top_k = model.top_k,
             .width = model.hidden,
             .row_count = pairs,
             .rows = t.rows.as(),
             .inverse = t.inverse.as<int32_t>(),
             .weights = t.weights.as<float>(),
             .out = t.out.as()},
            {.stream = stream});
  };
  const auto whole = [&](const ExpertLayer& of) {
    return [&, &of = of](int turn, Stream stream) {
      const Turn& t = turns[size_t(turn % kTurns)];
      ExpertLayerTensors x;
      x.tokens = tokens;
      x.x.data = t.x.as(), x.topk_ids = t.ids.as(), x.topk_weights = t.weights.as<float>();
      x.up.data = up.as(), x.down.data = down.as(), x.up_bias = biases, x.down_bias = biases;
      x.out.data = t.out.as();
      of.run(x, t.workspace, {.stream = stream});
    };
  };
  for (int turn = 0; turn < kTurns; ++turn) sort(turn, nullptr);
  device.synchronize();
  const std::vector<double> seconds = clock.seconds({{whole(layer)},
                                                     {product(up_product, &Turn::x, up, &Turn::inner, true)},
                                                     {product(in_order, &Turn::sorted, up, &Turn::inner, false)},
                                                     {product(down_product, &Turn::inner, down, &Turn::rows, false)},
                                                     {sort},
                                                     {sum},
                                                     {whole(gathering)},
                                                     {whole(permuting)},
                                                     {copy}},
                                                    kTurns);
  const bool gathers = layer.plan().up.kernel.find("gathered") != std::string::npos;
  const double products = (gathers ? seconds[1] : seconds[2]) + seconds[3];
  fmt::print(
      "{}  {{\"model\": \"{}\", \"tokens\": {}, \"layer_us\": {:.2f}, \"up_us\": {:.2f}, \"up_in_order_us\": {:.2f}, "
      "\"down_us\": {:.2f}, \"sort_us\": {:.2f}, \"combine_us\": {:.2f}, \"gathering_us\": {:.2f}, "
      "\"permuting_us\": {:.2f}, \"permute_us\": {:.2f}, \"gather\": {:.3f}, \"rest_us\": {:.2f}, \"rest\": {:.3f}, "
      "\"tflops\": {:.0f}, \"workspace_bytes\": {}, \"up\": \"{}\", \"up_in_order\": \"{}\", "
      "\"down\": \"{}\"}}",
      separator, model.name, tokens, seconds[0] * 1e6, seconds[1] * 1e6, seconds[2] * 1e6, seconds[3] * 1e6,
      seconds[4] * 1e6, seconds[5] * 1e6, seconds[6] * 1e6, seconds[7] * 1e6, seconds[8] * 1e6, seconds[1] / seconds[2],
      (seconds[0] - products) * 1e6, (seconds[0] - products) / products,
      2.0 * double(pairs) * double(model.experts) / double(model.all_experts) * double(n + model.width) *
          double(model.hidden) / seconds[0] * 1e-12,
      layer.workspace_bytes(), up_product.plan().kernel, in_order.plan().kernel, down_product.plan().kernel);
  separator = ",\n";
  std::fflush(stdout);
}

void run(int64_t most, const std::string& only) {
  const Device device = Device::open();
  const GpuClock clock(device);
  fmt::print("{{\"device\": \"{}\", \"results\": [", device.info().name);
  const char* separator = "\n";
  for (const Model& model : kModels) {
    if (std::string(model.name).find(only) == std::string::npos) continue;
    const bool gated = is_gated(model.activation);
    const int64_t n = gated ? 2 * model.width : model.width;
    const Buffer up = make_weights(device, clock, model, n, model.hidden, gated);
    const Buffer down = make_weights(device, clock, model, model.hidden, model.width, false);
    const Buffer bias(device, timing::random_bf16(11, model.experts * std::max(n, model.hidden), 1));
    for (const int64_t tokens : kTokens) {
      if (tokens <= most) time_layer(device, clock, model, tokens, up, down, bias, separator);
    }
  }
  fmt::print("\n]}}\n");
}

}  // namespace
}  // namespace moxie

int main(int count, char** arguments) {
  int64_t most = std::numeric_limits<int64_t>::max();
  std::string only;
  for (int i = 1; i < count; i += 2) {
    const std::string option = arguments[i];
    if (i + 1 < count && option == "--most") {
      most = std::atoll(arguments[i + 1]);
    } else if (i + 1 < count && option == "--model") {
      only = arguments[i + 1];
    } else {
      fmt::print(stderr, "usage: bench_layer [--most TOKENS] [--model NAME]\n");
      return 2;
    }
  }
  try {
    moxie::run(most, only);
  } catch (const moxie::Error& error) {
    fmt::print(stderr, "bench_layer: {}\n", error.what());
    return 1;
  }
  return 0;
}
