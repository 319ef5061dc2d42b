// SPDX-License-Identifier: Apache-2.0
// Whole expert layers against sums in double precision: models' shapes made small, few and many tokens, experts that
// nobody chose and those that are elsewhere. Sizes and data are drawn anew in every run.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include "moxie/layer.h"
#include "moxie/scales.h"
#include "reference/formats.h"
#include "reference/packed_weights.h"
#include "reference/product.h"
#include "tests/support/device.h"
#include "tests/support/random.h"

namespace moxie::test {
namespace {

using reference::bf16_to_float;
using reference::float_to_bf16;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

double to_bf16(double x) { return bf16_to_float(float_to_bf16(float(x))); }

DataType quantized_type(OperandFormat f) { return f == OperandFormat::Nvfp4 ? DataType::Nvfp4 : DataType::Mxfp4; }

// A row as a quantized operand has it.
std::vector<double> quantized(const std::vector<double>& row, OperandFormat format, float tensor_scale) {
  const DataType type = quantized_type(format);
  const auto k = int64_t(row.size());
  std::vector<float> values(row.begin(), row.end());
  std::vector<uint8_t> codes(size_t(k / 2)), scales(size_t(k / scale_block(type)));
  reference::quantize_row(type, values.data(), k, tensor_scale, codes.data(), scales.data());
  reference::dequantize_row(type, codes.data(), scales.data(), k, tensor_scale, values.data());
  return {values.begin(), values.end()};
}

// One product's weights, on the device and as numbers.
struct Weights {
  Weights() = default;
  Weights(const ExpertLayerDescription& d, int64_t n, int64_t k, bool gated, uint64_t seed) : n(n), k(k) {
    values.resize(size_t(d.experts));
    if (d.weights == OperandFormat::Bf16) {
      std::vector<uint16_t> all;
      for (int64_t i = 0; i < d.experts * n * k; ++i)
        all.push_back(random_bf16(seed, uint64_t(i), 3 / std::sqrt(float(k))));
      for (int64_t i = 0; i < d.experts * n * k; ++i)
        values[size_t(i / (n * k))].push_back(bf16_to_float(all[size_t(i)]));
      memory = Buffer(all);
      return;
    }
    // E8M0 scales from 2^-6 on, of Nvfp4 E4M3 scales from 2^-5 on.
    const DataType type = quantized_type(d.weights);
    const bool nvfp4 = type == DataType::Nvfp4;
    const int64_t block = scale_block(type), columns = k / block;
    const auto blocked_bytes = size_t(blocked_scale_bytes(n, k, block));
    std::vector<uint8_t> all, blocked(size_t(d.experts) * blocked_bytes);
    std::vector<float> factors;
    for (int64_t e = 0; e < d.experts; ++e) {
      std::vector<uint8_t> codes, scales;
      for (int64_t i = 0; i < n * k / 2; ++i) codes.push_back(uint8_t(mix(seed + uint64_t(e * n * k + i))));
      for (int64_t i = 0; i < n * columns; ++i) {
        const uint64_t drawn = mix(seed * 3 + uint64_t(e * n + i));
        scales.push_back(uint8_t(nvfp4 ? 16 + drawn % 16 : 121 + drawn % 4));
        blocked[size_t(e) * blocked_bytes + size_t(blocked_scale_index(i / columns, i % columns, k, block))] =
            scales.back();
      }
      factors.push_back(nvfp4 ? 0.5f + 0.25f * float(e % 3) : 1);
      std::vector<float> row(static_cast<size_t>(k));
      for (int64_t r = 0; r < n; ++r) {
        reference::dequantize_row(type, codes.data() + r * k / 2, scales.data() + r * columns, k, factors.back(),
                                  row.data());
        values[size_t(e)].insert(values[size_t(e)].end(), row.begin(), row.end());
      }
      if (d.activations == OperandFormat::Bf16)
        codes =
            reference::pack_weights(codes.data(), scales.data(), n, k, gated ? std::optional(d.gate) : std::nullopt);
      all.insert(all.end(), codes.begin(), codes.end());
    }
    memory = Buffer(all);
    if (d.activations != OperandFormat::Bf16) scale_memory = Buffer(blocked);
    if (nvfp4) tensor_scales = Buffer(factors);
  }
  ConstTensor tensor() const { return {memory.get(), 0, scale_memory.get(), tensor_scales.get<float>()}; }
  int64_t n = 0, k = 0;
  std::vector<std::vector<double>> values;  // of each expert: [n, k]
  Buffer memory, scale_memory, tensor_scales;
};

struct Bias {
  Bias() = default;
  Bias(int64_t count, uint64_t seed) {
    std::vector<uint16_t> all;
    for (int64_t i = 0; i < count; ++i) all.push_back(random_bf16(seed, uint64_t(i), 0.5f));
    for (const uint16_t x : all) values.push_back(bf16_to_float(x));
    memory = Buffer(all);
  }
  double operator[](int64_t i) const { return values.empty() ? 0 : values[size_t(i)]; }
  std::vector<double> values;
  Buffer memory;
};

// A layer with its weights.
struct Layer {
  Layer(const ExpertLayerDescription& description, uint64_t seed)
      : d(description),
        gated(is_gated(d.activation.function)),
        up_rows(gated ? 2 * d.width : d.width),
        up(d, up_rows, d.hidden, gated, seed),
        down(d, d.hidden, d.width, false, seed + 1),
        layer(device(), d) {
    if (d.up_bias) up_bias = Bias(d.experts * up_rows, seed + 2);
    if (d.down_bias) down_bias = Bias(d.experts * d.hidden, seed + 3);
    if (d.activations == OperandFormat::Nvfp4 && seed % 2 == 0) {
      x_scale = 0.004f, inner_scale = 0.037f;
      tensor_scales = Buffer(std::vector<float>{x_scale, inner_scale});
    }
  }
  // What a call brings besides tokens.
  ExpertLayerTensors tensors() const {
    ExpertLayerTensors t;
    t.up = up.tensor(), t.down = down.tensor();
    t.up_bias = up_bias.memory.get(), t.down_bias = down_bias.memory.get();
    t.x.tensor_scale = tensor_scales.get<float>();
    if (t.x.tensor_scale) t.inner_tensor_scale = t.x.tensor_scale + 1;
    return t;
  }

  // The row of one pair as the layer computes it, in double precision but for the roundings of its rows. A value
  // between the products that lies in the middle of two of bf16 may be rounded either way: `slack` is what that changes
  // if it befalls the one that matters most. Of four-bit elements few lie so near to the middle, but each changes more,
  // and a scale changes a whole block: `slack` is then the sum of all that lie there.
  struct Row {
    std::vector<double> values, slack;
  };
  Row row(const std::vector<double>& x, int64_t e) const {
    const bool quantizes = d.activations != OperandFormat::Bf16;
    const std::vector<double> operand = quantizes ? quantized(x, d.activations, x_scale) : x;
    std::vector<double> pre = reference::product(operand, up.values[size_t(e)], 1, up_rows, d.hidden);
    for (int64_t j = 0; j < up_rows; ++j) pre[size_t(j)] += up_bias[e * up_rows + j];
    std::vector<double> inner = reference::activate_all(d.activation, d.gate, pre, 1, up_rows);
    std::vector<double> off(inner.size());  // how far each may be off what it becomes
    if (quantizes) {
      double most = 0;
      for (const double v : inner) most = std::max(most, std::abs(v));
      const auto moved = [&](double by) {
        std::vector<double> row = inner;
        for (double& v : row) v += by * (std::abs(v) + 0.1 * most) * (v < 0 ? -1 : 1);
        return quantized(row, d.activations, inner_scale);
      };
      const std::vector<double> less = moved(-1e-5), more = moved(1e-5);
      inner = moved(0);
      for (size_t i = 0; i < inner.size(); ++i)
        off[i] = std::max(std::abs(less[i] - inner[i]), std::abs(more[i] - inner[i]));
    } else {
      for (size_t i = 0; i < inner.size(); ++i) inner[i] = to_bf16(inner[i]), off[i] = 0x1p-8 * std::abs(inner[i]);
    }
    std::vector<double> y = reference::product(inner, down.values[size_t(e)], 1, d.hidden, d.width);
    std::vector<double> slack(size_t(d.hidden));
    for (int64_t j = 0; j < d.hidden; ++j) {
      y[size_t(j)] = to_bf16(y[size_t(j)] + down_bias[e * d.hidden + j]);
      for (int64_t i = 0; i < d.width; ++i) {
        const double may = off[size_t(i)] * std::abs(down.values[size_t(e)][size_t(j * d.width + i)]);
        slack[size_t(j)] = quantizes ? slack[size_t(j)] + may : std::max(slack[size_t(j)], may);
      }
    }
    return {y, slack};
  }

  ExpertLayerDescription d;
  bool gated;
  int64_t up_rows;
  Weights up, down;
  Bias up_bias, down_bias;
  float x_scale = 1, inner_scale = 1;  // tensor scales
  Buffer tensor_scales;
  ExpertLayer layer;
};

// Tokens with their experts, and memory for what comes of them.
struct Batch {
  Batch(const Layer& of, int64_t count, uint64_t seed) : layer(of), tokens(count) {
    const ExpertLayerDescription& d = of.d;
    for (int64_t i = 0; i < tokens * d.hidden; ++i) x.push_back(random_bf16(seed, uint64_t(i), 2));
    for (int64_t i = 0; i < tokens * d.top_k; ++i)
      weights.push_back(bf16_to_float(random_bf16(seed + 1, uint64_t(i), 1)));
    for (int64_t i = 0; d.residual && i < tokens * d.hidden; ++i)
      residual.push_back(bf16_to_float(random_bf16(seed + 2, uint64_t(i), 1)));
  }

  // ids are chosen by `choose`, which gets the token.
  void draw_ids(const std::function<int64_t()>& choose) {
    for (int64_t i = 0; i < tokens * layer.d.top_k; ++i) ids.push_back(choose());
  }

  Buffer residual_memory() const {
    if (layer.d.out == DataType::F32) return Buffer(residual);
    std::vector<uint16_t> bits;
    for (const float value : residual) bits.push_back(float_to_bf16(value));
    return Buffer(bits);
  }

  // Runs the layer and returns [tokens, hidden] as numbers; everything else must be as it was.
  std::vector<double> run(std::optional<int32_t> count = {}) const {
    const ExpertLayerDescription& d = layer.d;
    const int64_t ld = d.hidden + 8, guard = 32;
    const auto element = size_t(bits_of(d.out) / 8);
    const int64_t ld_x = d.hidden + 16;  // NaN between the rows
    std::vector<uint16_t> padded(size_t(tokens * ld_x), 0xffff);
    for (int64_t row = 0; row < tokens; ++row)
      std::copy_n(x.begin() + row * d.hidden, d.hidden, padded.begin() + row * ld_x);
    const Buffer xs(padded), ws(weights), out((size_t(tokens * ld + 2 * guard)) * element);
    const Buffer res = residual_memory();
    std::vector<int32_t> narrow(ids.begin(), ids.end());
    const Buffer id_memory = d.id_type == IdType::Int64 ? Buffer(ids) : Buffer(narrow);
    const Buffer count_memory(std::vector<int32_t>{count.value_or(0)});
    const size_t bytes = layer.layer.workspace_bytes(tokens);
    const Buffer workspace(bytes + 64);
    out.fill(0xff), workspace.fill(0xff);
    ExpertLayerTensors t = layer.tensors();
    t.tokens = tokens;
    if (count) t.token_count = count_memory.get<int32_t>();
    t.x.data = xs.get(), t.x.ld = ld_x;
    t.topk_ids = id_memory.get(), t.topk_weights = ws.get<float>();
    t.residual.data = res.get();
    t.out.data = out.get<uint8_t>() + guard * int64_t(element), t.out.ld = ld;
    // A layer makes no use of the promise, by which its first product would read the experts' ends too early.
    LaunchOptions options;
    options.weights_ready = true;
    layer.layer.run(t, {workspace.get(), bytes}, options);
    device().synchronize();
    const std::vector<uint8_t> behind = workspace.download();
    EXPECT_TRUE(std::all_of(behind.end() - 64, behind.end(), [](uint8_t b) { return b == 0xff; }))
        << "bytes behind the workspace";
    const std::vector<uint8_t> got = out.download();
    std::vector<double> values;
    int64_t written = 0;
    for (int64_t i = 0; i < tokens * ld + 2 * guard; ++i) {
      const uint8_t* const at = got.data() + size_t(i) * element;
      const int64_t place = i - guard;
      if (place >= 0 && place < tokens * ld && place % ld < d.hidden) {
        float value;
        if (d.out == DataType::F32) {
          std::memcpy(&value, at, 4);
        } else {
          uint16_t bits;
          std::memcpy(&bits, at, 2);
          value = bf16_to_float(bits);
        }
        values.push_back(value);
      } else {
        written += std::any_of(at, at + element, [](uint8_t b) { return b != 0xff; });
      }
    }
    EXPECT_EQ(written, 0) << "elements that are none of the layer's";
    return values;
  }

  // Compares tokens first to last - 1. An element may be off by two units in the last place of bf16 of the rows and the
  // residual that it is summed from, and everything together by 4e-3 of its norm, each with the slack of the rows.
  void check(const std::vector<double>& got, int64_t first, int64_t last) const {
    const ExpertLayerDescription& d = layer.d;
    std::map<std::pair<int64_t, int64_t>, Layer::Row> rows;
    double error = 0, norm = 0, slack = 0;
    int64_t wrong = 0;
    std::string where;
    for (int64_t t = first; t < last; ++t) {
      std::vector<double> token;
      for (int64_t c = 0; c < d.hidden; ++c) token.push_back(bf16_to_float(x[size_t(t * d.hidden + c)]));
      std::vector<double> sum(static_cast<size_t>(d.hidden)), most = sum, slack_of = sum;
      const auto add = [&](int64_t c, double value) { sum[size_t(c)] += value, most[size_t(c)] += std::abs(value); };
      for (int64_t c = 0; d.residual && c < d.hidden; ++c) add(c, residual[size_t(t * d.hidden + c)]);
      for (int64_t j = 0; j < d.top_k; ++j) {
        const int64_t e = ids[size_t(t * d.top_k + j)] - d.first_expert;
        if (e < 0 || e >= d.experts) continue;
        Layer::Row& row = rows[{t, e}];
        if (row.values.empty()) row = layer.row(token, e);
        const double weight = weights[size_t(t * d.top_k + j)];
        for (int64_t c = 0; c < d.hidden; ++c) {
          add(c, weight * row.values[size_t(c)]);
          slack_of[size_t(c)] += std::abs(weight) * row.slack[size_t(c)];
        }
      }
      double row_norm = 0;
      for (const double v : sum) row_norm += v * v;
      for (int64_t c = 0; c < d.hidden; ++c) {
        const double value = got[size_t(t * d.hidden + c)], wanted = sum[size_t(c)];
        if (std::isnan(wanted)) {
          wrong += !std::isnan(value);
          continue;
        }
        const double off = std::abs(value - wanted), more = slack_of[size_t(c)];
        const double may = most[size_t(c)] * 0x1p-7 + 1e-4 * std::sqrt(row_norm) + more;
        error += off * off, norm += wanted * wanted, slack += more * more;
        if (!(off <= may) && wrong++ == 0)
          where = fmt::format("token {}, column {}: {} instead of {}", t, c, value, wanted);
      }
    }
    EXPECT_EQ(wrong, 0) << where;
    EXPECT_LE(std::sqrt(error), 4e-3 * std::sqrt(norm) + std::sqrt(slack));
  }

  const Layer& layer;
  int64_t tokens;
  std::vector<uint16_t> x;
  std::vector<float> weights, residual;
  std::vector<int64_t> ids;
};

// What a layer is besides its sizes: these decide its kernels.
struct Kind {
  const char* name;
  OperandFormat weights;
  ActivationSpec activation;
  GateLayout gate;
  bool biases, residual;
  DataType out;
  IdType id_type;
  int64_t expected;  // tokens
  OperandFormat activations = OperandFormat::Bf16;
};
const Kind kKinds[] = {
    {"GptOss", OperandFormat::Bf16, swiglu_oai(), GateLayout::Interleaved, true, false, DataType::Bf16, IdType::Int32,
     1},
    {"GptOssPrefill", OperandFormat::Bf16, swiglu_oai(), GateLayout::Interleaved, true, true, DataType::Bf16,
     IdType::Int64, 4096},
    {"GptOssPacked", OperandFormat::Mxfp4, swiglu_oai(), GateLayout::Interleaved, true, false, DataType::Bf16,
     IdType::Int32, 1},
    {"GptOssPackedPrefill", OperandFormat::Mxfp4, swiglu_oai(), GateLayout::Interleaved, true, false, DataType::F32,
     IdType::Int64, 4096},
    {"Qwen3", OperandFormat::Bf16, Activation::Swiglu, GateLayout::Split, false, false, DataType::Bf16, IdType::Int64,
     64},
    {"Mixtral", OperandFormat::Bf16, Activation::Swiglu, GateLayout::SplitUpFirst, false, true, DataType::F32,
     IdType::Int32, 512},
    {"DeepSeekPacked", OperandFormat::Mxfp4, Activation::Swiglu, GateLayout::Split, false, true, DataType::Bf16,
     IdType::Int32, 64},
    {"Plain", OperandFormat::Bf16, Activation::Relu, GateLayout::Interleaved, true, false, DataType::F32, IdType::Int32,
     32},
    {"GptOssMxfp4", OperandFormat::Mxfp4, swiglu_oai(), GateLayout::Interleaved, true, false, DataType::Bf16,
     IdType::Int32, 1, OperandFormat::Mxfp4},
    {"GptOssMxfp4Prefill", OperandFormat::Mxfp4, swiglu_oai(), GateLayout::Interleaved, true, true, DataType::F32,
     IdType::Int64, 4096, OperandFormat::Mxfp4},
    {"PlainMxfp4", OperandFormat::Mxfp4, Activation::Relu2, GateLayout::Interleaved, false, false, DataType::Bf16,
     IdType::Int32, 64, OperandFormat::Mxfp4},
    {"Qwen3Nvfp4", OperandFormat::Nvfp4, Activation::Swiglu, GateLayout::Split, false, false, DataType::Bf16,
     IdType::Int64, 64, OperandFormat::Nvfp4},
    {"MixtralNvfp4Prefill", OperandFormat::Nvfp4, Activation::Swiglu, GateLayout::SplitUpFirst, true, true,
     DataType::Bf16, IdType::Int32, 4096, OperandFormat::Nvfp4},
};

void PrintTo(const Kind& kind, std::ostream* stream) { *stream << kind.name; }

std::string refusal(const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

class ExpertLayerMatrix : public ::testing::TestWithParam<Kind> {};

// Ten layers of each kind. On sm_100a eight, or four where the kernels are those of sm_90a; twenty with
// MOXIE_TEST_ALL=1.
TEST_P(ExpertLayerMatrix, IsRight) {
  const Kind& kind = GetParam();
  Random random(run_seed() ^ std::hash<std::string>()(kind.name));
  const bool hopper = device().info().arch == 90, bf16 = kind.weights == OperandFormat::Bf16;
  const int layers = std::getenv("MOXIE_TEST_ALL") ? 20 : hopper ? 10 : bf16 ? 8 : 4;
  for (int i = 0; i < layers; ++i) {
    ExpertLayerDescription d;
    const bool packed = kind.weights != OperandFormat::Bf16;
    const int64_t sizes[] = {8, 24, 64, 72, 120}, packed_sizes[] = {32, 64, 96, 160},
                  experts[] = {1, 2, 3, 8, 32, 60, 128}, counts[] = {0, 1, 2, 3, 7, 17, 64, 131};
    d.experts = i == 7 ? 1024 : random.of(experts);
    d.first_expert = random.one_in(3) ? random.between(0, 100) : 0;
    d.all_experts = d.first_expert + d.experts + (random.one_in(3) ? random.between(0, 300) : 0);
    d.top_k = int(random.between(1, std::min<int64_t>(16, random.one_in(4) ? 16 : 6)));
    d.hidden = packed ? random.of(packed_sizes) : random.of(sizes);
    d.width = packed ? random.of(packed_sizes) : random.of(sizes);
    if (d.experts > 60) d.hidden = d.width = packed ? 32 : 24;
    d.weights = kind.weights, d.activations = kind.activations;
    d.activation = kind.activation, d.gate = kind.gate;
    d.up_bias = kind.biases, d.down_bias = kind.biases, d.residual = kind.residual;
    d.out = kind.out, d.id_type = kind.id_type;
    d.max_tokens = 200, d.expected_tokens = kind.expected;
    if (random.one_in(2)) d.permute = random.one_in(2) || d.activations != OperandFormat::Bf16;
    if (d.activations != OperandFormat::Bf16 && device().info().arch == 90) {
      EXPECT_EQ(
          refusal([&] { ExpertLayer(device(), d); }),
          fmt::format("the device is of architecture sm_90a, but {} operands need sm_100a", to_string(d.activations)));
      return;
    }
    const Layer layer(d, random.next() % 100000);
    Batch batch(layer, random.of(counts), random.next() % 100000);
    // How tokens choose: any expert, all the same, one elsewhere now and then, or none that is here.
    const int64_t how = random.between(0, 3), favorite = d.first_expert + random.between(0, d.experts - 1);
    const int64_t wild[] = {-1, d.first_expert + d.experts, std::numeric_limits<int32_t>::min(),
                            std::numeric_limits<int32_t>::max(), d.first_expert - 1};
    batch.draw_ids([&] {
      if (how == 1) return favorite;
      if (how == 3 || (how == 2 && random.one_in(3))) return random.of(wild);
      return d.first_expert + random.between(0, d.experts - 1);
    });
    const auto count = random.one_in(3) ? std::optional(int32_t(random.between(-1, batch.tokens + 1))) : std::nullopt;
    const int64_t real = count ? std::clamp<int64_t>(*count, 0, batch.tokens) : batch.tokens;
    SCOPED_TRACE(
        fmt::format("{} tokens ({} real), top {}, experts {} to {}, {} x {}, choice {}, permute {}, MOXIE_TEST_SEED={}",
                    batch.tokens, real, d.top_k, d.first_expert, d.first_expert + d.experts - 1, d.hidden, d.width, how,
                    d.permute ? (*d.permute ? "on" : "off") : "auto", run_seed()));
    std::vector<double> first;
    for (const char* order : orders()) {
      SCOPED_TRACE(order);
      set_order(order);
      const std::vector<double> got = batch.run(count);
      for (size_t at = size_t(real * d.hidden); at < got.size(); ++at) {
        if (!std::isnan(got[at])) {
          ADD_FAILURE() << "a token past the count was written";
          break;
        }
      }
      if (first.empty()) {
        batch.check(got, 0, real);
        first = got;
      } else {
        EXPECT_TRUE(std::memcmp(got.data(), first.data(), got.size() * sizeof(double)) == 0)
            << "other bits than in the first order";
      }
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ExpertLayerMatrix, ::testing::ValuesIn(kKinds),
                         [](const auto& info) { return info.param.name; });

ExpertLayerDescription small() {
  ExpertLayerDescription d;
  d.experts = 4, d.top_k = 2, d.hidden = 64, d.width = 72;
  d.max_tokens = 300;
  return d;
}

// With activations of a format that the device has.
ExpertLayerDescription small_in(OperandFormat activations) {
  ExpertLayerDescription d = small();
  if (activations != OperandFormat::Bf16) d.width = 96, d.weights = d.activations = activations;
  return d;
}
std::vector<OperandFormat> activation_formats() {
  if (device().info().arch == 90) return {OperandFormat::Bf16};
  return {OperandFormat::Bf16, OperandFormat::Mxfp4, OperandFormat::Nvfp4};
}

// A NaN reaches its own token alone, be it among the tokens or their weights; weights of an expert those who chose it.
TEST(ExpertLayer, NanReachesItsTokenAlone) {
  for (const OperandFormat format : activation_formats()) {
    SCOPED_TRACE(to_string(format));
    const Layer layer(small_in(format), 5);
    Batch batch(layer, 11, 6);
    Random random(7);
    batch.draw_ids([&] { return random.between(0, 3); });
    const std::vector<double> before = batch.run();
    batch.x[3 * 64 + 5] = 0x7fc0;
    batch.weights[7 * 2 + 1] = kNan;
    const std::vector<double> after = batch.run();
    for (int64_t t = 0; t < 11; ++t) {
      for (int64_t c = 0; c < 64; ++c) {
        const auto at = size_t(t * 64 + c);
        if (t == 3 || t == 7) {
          EXPECT_TRUE(std::isnan(after[at])) << t;
        } else {
          EXPECT_EQ(after[at], before[at]) << t;
        }
      }
    }
  }
}

// A NaN among an expert's weights reaches the tokens that chose it.
TEST(ExpertLayer, NanOfAnExpertReachesWhoChoseIt) {
  for (const bool permute : {false, true}) {
    SCOPED_TRACE(permute);
    ExpertLayerDescription d = small();
    d.permute = permute;
    const Layer layer(d, 5);
    Batch batch(layer, 29, 6);
    Random random(7);
    batch.draw_ids([&] { return random.between(0, 3); });
    const std::vector<double> before = batch.run();
    const uint16_t nan = 0x7fc0;
    const auto poison = [&](const Weights& weights, int64_t expert, int64_t element) {
      device().upload(weights.memory.get<uint16_t>() + expert * weights.n * weights.k + element, &nan, 2);
    };
    poison(layer.up, 1, 100), poison(layer.down, 3, 63 * 72);  // all of 1's rows, and the last column of 3's
    const std::vector<double> after = batch.run();
    for (int64_t t = 0; t < 29; ++t) {
      const auto chose = [&](int64_t e) { return batch.ids[size_t(2 * t)] == e || batch.ids[size_t(2 * t + 1)] == e; };
      for (int64_t c = 0; c < 64; ++c) {
        const auto at = size_t(t * 64 + c);
        if (chose(1) || (c == 63 && chose(3))) {
          EXPECT_TRUE(std::isnan(after[at])) << t << ", " << c;
        } else {
          EXPECT_EQ(after[at], before[at]) << t << ", " << c;
        }
      }
    }
  }
}

TEST(ExpertLayer, IsTheSameForAnyNumberOfThreads) {
  if (!device().info().simulated) GTEST_SKIP() << "a GPU has no host threads";
  for (const bool permute : {false, true}) {
    ExpertLayerDescription d = small();
    d.experts = 13, d.permute = permute;
    const Layer layer(d, 31);
    Batch batch(layer, 150, 32);
    Random random(33);
    batch.draw_ids([&] { return random.between(0, 12); });
    std::vector<double> first;
    for (const char* order : orders()) {
      set_order(order);
      for (const char* threads : {"1", "2", "7"}) {
        setenv("MOXIE_SIM_THREADS", threads, 1);
        const std::vector<double> got = batch.run();
        if (first.empty()) first = got;
        EXPECT_TRUE(got == first) << order << ", " << threads << " threads";
      }
    }
    unsetenv("MOXIE_SIM_THREADS");
  }
}

// Unless the description says otherwise, tokens are gathered on sm_90a, and on sm_100a where an expert has fewer than
// 32 of them on average.
TEST(ExpertLayer, ManyTokensArePermutedOnBlackwell) {
  const bool hopper = device().info().arch == 90;
  for (const OperandFormat weights : {OperandFormat::Bf16, OperandFormat::Mxfp4}) {
    ExpertLayerDescription d = small();
    d.width = 96, d.weights = weights, d.max_tokens = 100;
    const auto gathers = [](const ExpertLayer& layer, std::optional<int64_t> tokens = {}) {
      return layer.plan(tokens).up.kernel.find("gathered rows") != std::string::npos;
    };
    const ExpertLayer any(device(), d);
    EXPECT_TRUE(gathers(any, 32));        // planned for 16 tokens: 8 an expert
    EXPECT_EQ(gathers(any, 33), hopper);  // planned for 64
    d.expected_tokens = 63;
    EXPECT_TRUE(gathers(ExpertLayer(device(), d)));
    d.permute = true;
    EXPECT_FALSE(gathers(ExpertLayer(device(), d)));
    d.expected_tokens = 64, d.permute.reset();
    EXPECT_EQ(gathers(ExpertLayer(device(), d), 1), hopper);
    d.permute = false;
    EXPECT_TRUE(gathers(ExpertLayer(device(), d)));
    d.all_experts = 8, d.permute.reset();  // half of the pairs meet experts that are not here
    EXPECT_TRUE(gathers(ExpertLayer(device(), d)));
  }
}

// Every range of tokens has kernels of its own, and all compute the same layer.
TEST(ExpertLayer, AnyNumberOfTokensIsRight) {
  for (const OperandFormat format : activation_formats()) {
    const Layer layer(small_in(format), 8);
    for (const int64_t tokens : {0, 1, 2, 3, 9, 33, 129, 257, 300}) {
      SCOPED_TRACE(fmt::format("{} tokens, {}", tokens, to_string(format)));
      Batch batch(layer, tokens, uint64_t(tokens));
      Random random(uint64_t(tokens) + 1);
      batch.draw_ids([&] { return random.between(0, 3); });
      batch.check(batch.run(), 0, tokens);
    }
  }
}

// The router's choice and what comes of it, as if both had been given.
TEST(ExpertLayer, ARouterChooses) {
  ExpertLayerDescription d = small();
  d.experts = 6, d.first_expert = 1, d.all_experts = 8;
  const Layer without(d, 9);
  Batch batch(without, 13, 10);
  std::vector<uint16_t> logits;
  for (uint64_t i = 0; i < 13 * 8; ++i) logits.push_back(random_bf16(11, i, 4));
  ExpertLayerDescription with = d;
  with.router = RouterDescription{.logits_type = DataType::Bf16};
  const Buffer xs(batch.x), from(logits), out(size_t(13 * 64 * 2)), ids(size_t(13 * 2 * 4)),
      weights(size_t(13 * 2 * 4));
  const ExpertLayer layer(device(), with);
  const Buffer workspace(layer.workspace_bytes());
  ExpertLayerTensors t;
  t.tokens = 13;
  t.x.data = xs.get(), t.logits = from.get(), t.out.data = out.get();
  t.up.data = without.up.memory.get(), t.down.data = without.down.memory.get();
  t.chosen_ids = ids.get<int32_t>(), t.chosen_weights = weights.get<float>();
  layer.run(t, {workspace.get(), workspace.size()});
  device().synchronize();
  const std::vector<uint8_t> chosen = ids.download(), weighted = weights.download(), first = out.download();
  for (size_t i = 0; i < 26; ++i) {
    int32_t id;
    std::memcpy(&id, &chosen[4 * i], 4);
    ASSERT_TRUE(id >= 0 && id < 8);
    batch.ids.push_back(id);
    std::memcpy(&batch.weights[i], &weighted[4 * i], 4);
  }
  for (size_t token = 0; token < 13; ++token) {
    const auto logit = [&](int64_t id) { return double(bf16_to_float(logits[token * 8 + size_t(id)])); };
    std::vector<double> sorted;
    for (int64_t e = 0; e < 8; ++e) sorted.push_back(logit(e));
    std::sort(sorted.rbegin(), sorted.rend());
    EXPECT_EQ(logit(batch.ids[2 * token]), sorted[0]);
    EXPECT_EQ(logit(batch.ids[2 * token + 1]), sorted[1]);
    EXPECT_NEAR(batch.weights[2 * token], 1 / (1 + std::exp(sorted[1] - sorted[0])), 1e-5);
  }
  batch.check(batch.run(), 0, 13);
  // Without places of the caller's, ids and weights lie in the workspace.
  t.chosen_ids = nullptr, t.chosen_weights = nullptr;
  out.fill(0xff), workspace.fill(0xff);
  layer.run(t, {workspace.get(), workspace.size()});
  device().synchronize();
  EXPECT_EQ(out.download(), first);
}

// Of the pairs of all tokens as many as meet the experts here, rounded up: none is planned for fewer than one.
TEST(ExpertLayer, ProductsArePlannedForTheRowsOfTheExpertsHere) {
  ExpertLayerDescription d = small();
  d.experts = 1, d.all_experts = 4, d.top_k = 1;
  for (const auto& [tokens, rows] : {std::pair{0, 1}, {1, 1}, {5, 2}, {8, 2}, {9, 3}}) {
    d.expected_tokens = tokens;
    EXPECT_EQ(ExpertLayer(device(), d).plan().up.mean_rows, rows) << tokens;
  }
}

TEST(ExpertLayer, TheResidualMayBeTheOutput) {
  ExpertLayerDescription d = small();
  d.residual = true;
  const Layer layer(d, 12);
  Batch batch(layer, 5, 13);
  Random random(14);
  batch.draw_ids([&] { return random.between(0, 3); });
  const std::vector<double> wanted = batch.run();
  const Buffer xs(batch.x), both = batch.residual_memory(), weights(batch.weights);
  const Buffer ids(std::vector<int32_t>(batch.ids.begin(), batch.ids.end()));
  const Buffer workspace(layer.layer.workspace_bytes(5));
  ExpertLayerTensors t;
  t.tokens = 5;
  t.x.data = xs.get(), t.topk_ids = ids.get(), t.topk_weights = weights.get<float>();
  t.up.data = layer.up.memory.get(), t.down.data = layer.down.memory.get();
  t.residual.data = both.get(), t.out.data = both.get();
  layer.layer.run(t, {workspace.get(), workspace.size()});
  device().synchronize();
  const std::vector<uint8_t> got = both.download();
  for (size_t i = 0; i < wanted.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, &got[2 * i], 2);
    EXPECT_EQ(double(bf16_to_float(bits)), wanted[i]);
  }
  t.residual.ld = 32;
  EXPECT_EQ(refusal([&] {
              layer.layer.run(t, {workspace.get(), workspace.size()});
            }),
            "residual.ld is 32, but must be at least the width of residual, 64");
}

TEST(ExpertLayer, WrongDescriptionsAreNamed) {
  const auto made = [](const std::function<void(ExpertLayerDescription&)>& change) {
    ExpertLayerDescription d = small();
    change(d);
    return refusal([&] { ExpertLayer(device(), d); });
  };
  EXPECT_EQ(made([](auto&) {}), "nothing");
  EXPECT_EQ(made([](auto& d) { d.experts = 0; }), "experts is 0, but must be 1 to 1024");
  EXPECT_EQ(made([](auto& d) { d.first_expert = -1; }), "first_expert is -1, but must be 0 to 2147483643");
  EXPECT_EQ(made([](auto& d) { d.all_experts = 3; }), "all_experts is 3, but the last one here is 3");
  EXPECT_EQ(made([](auto& d) { d.top_k = 17; }), "top_k is 17, but must be 1 to 16");
  EXPECT_EQ(made([](auto& d) { d.hidden = 0; }), "hidden is 0, but must be 8 to 1048576");
  EXPECT_EQ(made([](auto& d) { d.hidden = 60; }), "hidden is 60, but must be a multiple of 8 with bf16 weights");
  EXPECT_EQ(made([](auto& d) { d.width = 12; }), "width is 12, but must be a multiple of 8 with bf16 weights");
  EXPECT_EQ(made([](auto& d) { d.weights = OperandFormat::Mxfp4; }),
            "width is 72, but must be a multiple of 32 with mxfp4 weights");
  EXPECT_EQ(made([](auto& d) { d.weights = OperandFormat::Nvfp4; }),
            "weights is nvfp4, but beside activations of bf16 must be bf16 or mxfp4");
  EXPECT_EQ(made([](auto& d) { d.activations = OperandFormat::Mxfp4; }),
            "weights is bf16, but must be mxfp4 as activations is");
  const auto nvfp4 = [](auto& d) { d = small_in(OperandFormat::Nvfp4); };
  EXPECT_EQ(made([&](auto& d) { nvfp4(d), d.weights = OperandFormat::Mxfp4; }),
            "weights is mxfp4, but must be nvfp4 as activations is");
  EXPECT_EQ(made([&](auto& d) { nvfp4(d), d.width = 80; }),
            "width is 80, but must be a multiple of 32 with nvfp4 weights");
  EXPECT_EQ(made([&](auto& d) { nvfp4(d), d.permute = false; }),
            "permute is false, but quantized tokens are copied in the order of the sort");
  EXPECT_EQ(made([](auto& d) { d.weights = static_cast<OperandFormat>(3); }),
            "weights is 3, but only 0 to 2 have a meaning");
  EXPECT_EQ(made([](auto& d) { d.activations = static_cast<OperandFormat>(3); }),
            "activations is 3, but only 0 to 2 have a meaning");
  EXPECT_EQ(made([](auto& d) { d.activation = static_cast<Activation>(12); }),
            "activation is 12, but only 0 to 11 have a meaning");
  EXPECT_EQ(made([](auto& d) { d.id_type = static_cast<IdType>(2); }), "id_type is 2, but only 0 to 1 have a meaning");
  EXPECT_EQ(made([](auto& d) { d.out = DataType::Mxfp8; }), "out is mxfp8, but must be bf16 or f32");
  EXPECT_EQ(made([](auto& d) { d.max_tokens = -1; }), "max_tokens is -1, but must be 0 to 1048576");
  EXPECT_EQ(made([](auto& d) { d.expected_tokens = -1; }), "expected_tokens is -1, but must be 0 to 1048576");
  EXPECT_EQ(made([](auto& d) { d.activation = swiglu_oai({1, -1}); }), "activation.limit is -1, but must be positive");
  EXPECT_EQ(made([](auto& d) { d.router = RouterDescription{}, d.top_k = 5; }),
            "all_experts is 4, but must be 5 to 1024");
  EXPECT_EQ(made([](auto& d) { d.router = RouterDescription{}, d.id_type = IdType::Int64; }),
            "id_type is int64, but a router's ids are int32");
  EXPECT_EQ(made([](auto& d) { d.router = RouterDescription{.logits_type = DataType::Mxfp4}; }),
            "router.logits_type is mxfp4, but must be bf16 or f32");
  EXPECT_EQ(made([](auto& d) { d.router = RouterDescription{.score = static_cast<RouterScore>(2)}; }),
            "router.score is 2, but only 0 to 1 have a meaning");
  EXPECT_EQ(made([](auto& d) { d.router = RouterDescription{.expert_groups = 33}; }),
            "router.expert_groups is 33, but must be 1 to 32");
  EXPECT_EQ(made([](auto& d) { d.router = RouterDescription{.expert_groups = 2, .chosen_groups = 3}; }),
            "router.chosen_groups is 3, but must be 1 to expert_groups, 2");
  // What route() refuses is refused when the layer is made.
  EXPECT_EQ(made([](auto& d) { d.router = RouterDescription{.correction_bias = true}; }),
            "router.correction_bias is given, but only sigmoid scores have one");
  EXPECT_EQ(made([](auto& d) { d.router = RouterDescription{.expert_groups = 2}; }),
            "router.expert_groups is 2, but only sigmoid scores are chosen by groups");
  EXPECT_EQ(made([](auto& d) { d.router = RouterDescription{.score = RouterScore::Sigmoid, .expert_groups = 3}; }),
            "router.expert_groups is 3, but must divide the 4 experts into two or more each");
  EXPECT_EQ(made([](auto& d) {
              d.top_k = 3, d.router = RouterDescription{.score = RouterScore::Sigmoid, .expert_groups = 2};
            }),
            "top_k is 3, but the chosen groups have 2 experts");
  EXPECT_EQ(
      made([](auto& d) { d.router = RouterDescription{.scaling_factor = std::numeric_limits<float>::infinity()}; }),
      "router.scaling_factor is inf, but must be finite");
}

TEST(ExpertLayer, LogitsLieWhereTheirTypeMay) {
  for (const DataType type : {DataType::Bf16, DataType::F32}) {
    ExpertLayerDescription d = small();
    d.router = RouterDescription{.logits_type = type};
    const Layer layer(d, 15);
    const size_t bytes = size_t(bits_of(type) / 8), all = size_t(d.experts);
    const Buffer x(size_t(8 * 64 * 2)), workspace(layer.layer.workspace_bytes(8)), both(8 * all * bytes + 8 * 64 * 2);
    const auto ran = [&](const void* logits, void* out) {
      ExpertLayerTensors t;
      t.tokens = 8;
      t.x.data = x.get(), t.logits = logits, t.out.data = out;
      t.up.data = layer.up.memory.get(), t.down.data = layer.down.memory.get();
      return refusal([&] { layer.layer.run(t, {workspace.get(), workspace.size()}); });
    };
    uint8_t* const begin = both.get<uint8_t>();
    uint8_t* const end = begin + 8 * all * bytes;
    EXPECT_EQ(ran(begin, end), "nothing");
    EXPECT_EQ(ran(begin, end - 16), "out overlaps logits in memory");
    EXPECT_THAT(ran(begin + bytes / 2, end + 16),
                ::testing::HasSubstr(fmt::format("must be aligned to {} bytes", bytes)));
    device().synchronize();
  }
}

TEST(ExpertLayer, WrongCallsAreNamedAndTouchNothing) {
  ExpertLayerDescription d = small();
  d.up_bias = true;
  const Layer layer(d, 15);
  // Four inputs are longer than the layer reads, so that out can begin within what is read and end in the same memory.
  constexpr size_t kOut = 8 * 64 * 2;
  const Buffer x(kOut + kOut), ids(size_t(8 * 2 * 4) + kOut), weights(size_t(8 * 2 * 4) + kOut), count(16 + kOut),
      out(kOut), workspace(layer.layer.workspace_bytes(8));
  out.fill(0xab);
  LayerPart part = LayerPart::All;
  const auto ran = [&](const std::function<void(ExpertLayerTensors&, WorkspaceView&)>& change) {
    ExpertLayerTensors t;
    t.tokens = 8;
    t.x.data = x.get(), t.topk_ids = ids.get(), t.topk_weights = weights.get<float>();
    t.token_count = count.get<int32_t>();
    t.up.data = layer.up.memory.get(), t.down.data = layer.down.memory.get(), t.up_bias = layer.up_bias.memory.get();
    t.out.data = out.get();
    WorkspaceView view{workspace.get(), workspace.size()};
    change(t, view);
    return refusal([&] { layer.layer.run(t, view, {}, part); });
  };
  EXPECT_EQ(ran([](auto& t, auto&) { t.tokens = 301; }), "tokens is 301, but must be 0 to 300");
  EXPECT_EQ(ran([](auto& t, auto&) { t.tokens = -1; }), "tokens is -1, but must be 0 to 300");
  EXPECT_EQ(ran([](auto& t, auto&) { t.x.data = nullptr; }), "x is null, but must point to device memory");
  EXPECT_EQ(ran([](auto& t, auto&) { t.x.ld = 32; }), "x.ld is 32, but must be at least the width of x, 64");
  EXPECT_EQ(ran([](auto& t, auto&) { t.x.ld = 68; }), "x.ld is 68, but must be a multiple of 8 elements (16 bytes)");
  EXPECT_EQ(ran([](auto& t, auto&) { t.topk_ids = nullptr; }), "topk_ids is null, but must point to device memory");
  EXPECT_EQ(ran([](auto& t, auto&) { t.tokens = 1, t.topk_ids = nullptr; }),
            "topk_ids is null, but must point to device memory");
  EXPECT_EQ(ran([](auto& t, auto&) { t.up.data = nullptr; }), "up is null, but must point to device memory");
  EXPECT_EQ(ran([](auto& t, auto&) { t.down.data = nullptr; }), "down is null, but must point to device memory");
  EXPECT_EQ(ran([](auto& t, auto&) { t.up_bias = nullptr; }), "up_bias is null, but must point to device memory");
  EXPECT_EQ(ran([&](auto& t, auto&) { t.down_bias = x.get(); }), "down_bias is given, but the description has none");
  EXPECT_EQ(ran([&](auto& t, auto&) { t.residual.data = x.get(); }), "residual is given, but the description has none");
  EXPECT_EQ(ran([&](auto& t, auto&) { t.logits = x.get(); }), "logits is given, but the description has no router");
  EXPECT_EQ(ran([&](auto& t, auto&) { t.chosen_ids = ids.get<int32_t>(); }),
            "chosen_ids is given, but the description has no router");
  EXPECT_EQ(ran([](auto& t, auto&) { t.out.data = nullptr; }), "out is null, but must point to device memory");
  void* const no_window = nullptr;
  constexpr const char* kNoRanks = "is given, but the description has no ranks";
  EXPECT_EQ(ran([&](auto& t, auto&) { t.windows = &no_window; }), fmt::format("windows {}", kNoRanks));
  EXPECT_EQ(ran([&](auto& t, auto&) { t.places = ids.get<int32_t>(); }), fmt::format("places {}", kNoRanks));
  EXPECT_EQ(ran([&](auto& t, auto&) { t.out.data = x.get(); }), "out overlaps x in memory");
  EXPECT_EQ(ran([&](auto& t, auto&) { t.out.data = x.get<uint8_t>() + kOut - 16; }), "out overlaps x in memory");
  EXPECT_EQ(ran([&](auto& t, auto&) { t.out.data = ids.get<uint8_t>() + 48; }), "out overlaps topk_ids in memory");
  EXPECT_EQ(ran([&](auto& t, auto&) { t.out.data = weights.get<uint8_t>() + 48; }),
            "out overlaps topk_weights in memory");
  EXPECT_EQ(ran([&](auto& t, auto&) { t.out.data = count.get(); }), "out overlaps token_count in memory");
  EXPECT_EQ(ran([&](auto& t, auto&) { t.out.data = const_cast<void*>(t.up.data); }), "out overlaps up in memory");
  EXPECT_EQ(ran([&](auto& t, auto& w) { w.data = t.out.data; }), "out overlaps workspace in memory");
  const std::function<void(ExpertLayerTensors&)> stray_scales[] = {
      [&](auto& t) { t.x.scales = x.get(); },
      [&](auto& t) { t.residual.scales = x.get(); },
      [&](auto& t) { t.residual.tensor_scale = x.get<float>(); },
      [&](auto& t) { t.out.scales = x.get(); },
      [&](auto& t) { t.out.tensor_scale = x.get<float>(); },
  };
  for (const auto& give : stray_scales) {
    EXPECT_EQ(ran([&](auto& t, auto&) { give(t); }),
              "scales are given, but neither tokens nor residual nor output of a layer have scales");
  }
  constexpr const char* kNoScales = "is given, but weights beside activations of bf16 have no scales of their own";
  EXPECT_EQ(ran([&](auto& t, auto&) { t.up.scales = x.get(); }), fmt::format("up.scales {}", kNoScales));
  EXPECT_EQ(ran([&](auto& t, auto&) { t.down.scales = x.get(); }), fmt::format("down.scales {}", kNoScales));
  const auto* const number = weights.get<float>();
  constexpr const char* kNoNvfp4 = "is given, but activations are not nvfp4";
  EXPECT_EQ(ran([&](auto& t, auto&) { t.x.tensor_scale = number; }), fmt::format("x.tensor_scale {}", kNoNvfp4));
  EXPECT_EQ(ran([&](auto& t, auto&) { t.inner_tensor_scale = number; }),
            fmt::format("inner_tensor_scale {}", kNoNvfp4));
  EXPECT_EQ(ran([&](auto& t, auto&) { t.up.tensor_scale = number; }), fmt::format("up.tensor_scale {}", kNoNvfp4));
  EXPECT_EQ(ran([&](auto& t, auto&) { t.down.tensor_scale = number; }), fmt::format("down.tensor_scale {}", kNoNvfp4));
  EXPECT_EQ(ran([](auto&, auto& w) { w.data = nullptr; }), "workspace is null, but must point to device memory");
  EXPECT_THAT(ran([](auto&, auto& w) { w.bytes -= 256; }), ::testing::HasSubstr("but this call needs"));
  EXPECT_THAT(ran([](auto& t, auto&) { t.x.data = static_cast<const uint8_t*>(t.x.data) + 2; }),
              ::testing::HasSubstr("must be aligned to 16 bytes"));
  part = LayerPart::Sum;
  EXPECT_EQ(ran([](auto&, auto&) {}), "part is sum, but the description has no ranks");
  part = static_cast<LayerPart>(4);
  EXPECT_EQ(ran([](auto&, auto&) {}), "part is 4, but only 0 to 3 have a meaning");
  part = LayerPart::All;
  device().synchronize();
  for (const uint8_t byte : out.download()) ASSERT_EQ(byte, 0xab);
  EXPECT_EQ(ran([](auto& t, auto& w) { t = {}, w = {}; }), "nothing");
  // Without tokens nothing of the workspace is written.
  EXPECT_EQ(ran([](auto& t, auto& w) { t.tokens = 0, t.token_count = static_cast<const int32_t*>(w.data); }),
            "nothing");
  // The number of tokens may end where the output begins.
  EXPECT_EQ(
      ran([&](auto& t, auto&) { t.token_count = count.get<int32_t>() + 3, t.out.data = count.get<int32_t>() + 4; }),
      "nothing");
  device().synchronize();
  for (const int64_t tokens : {-1, 301}) {
    const std::string said = fmt::format("tokens is {}, but must be 0 to 300", tokens);
    EXPECT_EQ(refusal([&] { layer.layer.workspace_bytes(tokens); }), said);
    EXPECT_EQ(refusal([&] { layer.layer.plan(tokens); }), said);
  }
}

TEST(ExpertLayer, WrongCallsOfARouterAreNamed) {
  ExpertLayerDescription d = small();
  const ExpertLayer plain(device(), [&] { return d.router = RouterDescription{}, d; }());
  d.router->score = RouterScore::Sigmoid, d.router->correction_bias = true;
  const Layer layer(d, 15);
  // Three arrays are longer than the layer needs, so that out can begin within one and end in the same memory. The bias
  // begins 4 bytes into its memory, which is all the alignment that it must have.
  constexpr size_t kOut = 8 * 64 * 2;
  const Buffer x(kOut), logits(size_t(8 * 4 * 4)), ids(size_t(8 * 2 * 4) + kOut), weights(size_t(8 * 2 * 4) + kOut),
      bias(4 + 4 * 4 + kOut), out(kOut), workspace(layer.layer.workspace_bytes(8));
  const auto ran = [&](const ExpertLayer& of, const std::function<void(ExpertLayerTensors&)>& change) {
    ExpertLayerTensors t = layer.tensors();
    t.tokens = 8;
    t.x.data = x.get(), t.logits = logits.get(), t.correction_bias = bias.get<float>() + 1;
    t.chosen_ids = ids.get<int32_t>(), t.chosen_weights = weights.get<float>();
    t.out.data = out.get();
    change(t);
    return refusal([&] { of.run(t, {workspace.get(), workspace.size()}); });
  };
  const auto says = [&](const std::function<void(ExpertLayerTensors&)>& change) { return ran(layer.layer, change); };
  EXPECT_EQ(ran(plain, [](auto&) {}), "correction_bias is given, but the router has none");
  EXPECT_EQ(says([](auto& t) { t.correction_bias = nullptr; }),
            "correction_bias is null, but must point to device memory");
  EXPECT_EQ(says([](auto& t) { t.logits = nullptr; }), "logits is null, but must point to device memory");
  EXPECT_EQ(says([](auto& t) { t.ld_logits = 3; }), "ld_logits is 3, but there are 4 experts");
  EXPECT_EQ(says([&](auto& t) { t.topk_ids = x.get(); }), "topk_ids is given, but the router chooses them");
  EXPECT_EQ(says([&](auto& t) { t.topk_weights = weights.get<float>(); }),
            "topk_weights is given, but the router makes them");
  EXPECT_EQ(says([&](auto& t) { t.out.data = ids.get<uint8_t>() + 48; }), "chosen_ids overlaps out in memory");
  EXPECT_EQ(says([&](auto& t) { t.out.data = weights.get<uint8_t>() + 48; }), "chosen_weights overlaps out in memory");
  EXPECT_EQ(says([&](auto& t) { t.out.data = bias.get<uint8_t>() + 16; }), "out overlaps correction_bias in memory");
}

TEST(ExpertLayer, PackedWeightsHaveNoLeadingDimension) {
  ExpertLayerDescription d = small();
  d.width = 96, d.weights = OperandFormat::Mxfp4;
  const Layer layer(d, 15);
  const Buffer x(size_t(64 * 2)), ids(size_t(2 * 4)), out(size_t(64 * 2)), workspace(layer.layer.workspace_bytes(1));
  const auto ran = [&](const std::function<void(ExpertLayerTensors&)>& change) {
    ExpertLayerTensors t = layer.tensors();
    t.tokens = 1, t.x.data = x.get(), t.topk_ids = ids.get(), t.out.data = out.get();
    change(t);
    return refusal([&] { layer.layer.run(t, {workspace.get(), workspace.size()}); });
  };
  EXPECT_EQ(ran([](auto& t) { t.up.ld = 64; }), "up.ld is 64, but packed weights have no leading dimension");
  EXPECT_EQ(ran([](auto& t) { t.down.ld = 96; }), "down.ld is 96, but packed weights have no leading dimension");
}

// The scales of weights and the tensor scales of a layer that quantizes are wanted, aligned and not written over.
TEST(ExpertLayer, WrongScalesAreNamedAndNothingIsTouched) {
  if (device().info().arch == 90) GTEST_SKIP() << "layers on sm_90a quantize nothing";
  const Layer layer(small_in(OperandFormat::Nvfp4), 16);
  Batch batch(layer, 8, 17);
  const Buffer x(batch.x), ids(size_t(8 * 2 * 4)), out(size_t(8 * 64 * 2)), workspace(layer.layer.workspace_bytes(8));
  out.fill(0xab);
  const auto ran = [&](const std::function<void(ExpertLayerTensors&)>& change) {
    ExpertLayerTensors t = layer.tensors();
    t.tokens = 8, t.x.data = x.get(), t.topk_ids = ids.get(), t.out.data = out.get();
    change(t);
    return refusal([&] { layer.layer.run(t, {workspace.get(), workspace.size()}); });
  };
  constexpr const char* kNull = "is null, but must point to device memory";
  EXPECT_EQ(ran([](auto& t) { t.up.scales = nullptr; }), fmt::format("up.scales {}", kNull));
  EXPECT_EQ(ran([](auto& t) { t.down.scales = nullptr; }), fmt::format("down.scales {}", kNull));
  EXPECT_EQ(ran([](auto& t) { t.up.ld = 48; }), "up.ld is 48, but must be at least the width of up, 64");
  EXPECT_EQ(ran([](auto& t) { t.down.ld = 104; }), "down.ld is 104, but must be a multiple of 32 elements (16 bytes)");
  EXPECT_EQ(ran([](auto& t) { t.out.data = const_cast<void*>(t.up.scales); }), "out overlaps up.scales in memory");
  EXPECT_EQ(ran([](auto& t) { t.out.data = const_cast<void*>(t.down.scales); }), "out overlaps down.scales in memory");
  const auto last_of = [](const void* scales, int64_t n, int64_t k) {
    return static_cast<uint8_t*>(const_cast<void*>(scales)) + 4 * blocked_scale_bytes(n, k, 16) - 16;
  };
  const int64_t up_rows = layer.up_rows;
  EXPECT_EQ(ran([&](auto& t) { t.out.data = last_of(t.up.scales, up_rows, 64); }), "out overlaps up.scales in memory");
  EXPECT_EQ(ran([&](auto& t) { t.out.data = last_of(t.down.scales, 64, 96); }), "out overlaps down.scales in memory");
  EXPECT_EQ(ran([](auto& t) { t.out.data = const_cast<float*>(t.x.tensor_scale); }),
            "out overlaps x.tensor_scale in memory");
  EXPECT_EQ(ran([](auto& t) { t.x.tensor_scale = nullptr, t.out.data = const_cast<float*>(t.inner_tensor_scale - 1); }),
            "out overlaps inner_tensor_scale in memory");
  EXPECT_EQ(ran([](auto& t) { t.out.data = const_cast<float*>(t.up.tensor_scale); }),
            "out overlaps up.tensor_scale in memory");
  EXPECT_EQ(ran([](auto& t) { t.out.data = const_cast<float*>(t.down.tensor_scale); }),
            "out overlaps down.tensor_scale in memory");
  // The scales of four experts, and the output behind them.
  const Buffer both(std::vector<float>(4 + 8 * 64 / 2, 1));
  EXPECT_EQ(ran([&](auto& t) { t.up.tensor_scale = both.get<float>(), t.out.data = both.get<float>() + 4; }),
            "nothing");
  EXPECT_THAT(ran([](auto& t) { t.up.scales = static_cast<const uint8_t*>(t.up.scales) + 4; }),
              ::testing::HasSubstr("must be aligned to 16 bytes"));
  device().synchronize();
  for (const uint8_t byte : out.download()) ASSERT_EQ(byte, 0xab);
}

// The workspace is what the header says.
TEST(ExpertLayer, TheWorkspaceIsAsStated) {
  const auto rounded = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  for (const OperandFormat format : activation_formats()) {
    SCOPED_TRACE(to_string(format));
    const ExpertLayer layer(device(), small_in(format));
    for (const int64_t tokens : {0, 1, 7, 300}) {
      const int64_t pairs = tokens * 2;
      const int64_t scales = 512 * (pairs / 128 + 4);  // of 64 and, in two tiles of Nvfp4, 96 elements
      int64_t own = 2 * rounded(4 * pairs) + rounded(4 * 4);
      if (format == OperandFormat::Bf16) {
        own += rounded(2 * pairs * 72) + rounded(2 * pairs * 64);
      } else {
        own += rounded(pairs * 96 / 2) + scales * (format == OperandFormat::Nvfp4 ? 2 : 1);
        own += rounded(std::max(2 * pairs * 64, rounded(pairs * 64 / 2) + scales));
      }
      const int64_t rest = int64_t(layer.workspace_bytes(tokens)) - own;
      EXPECT_GE(rest, 0);
      // Tensor maps of every multiprocessor, which the kernels of sm_90a for few rows do without.
      EXPECT_LE(rest, device().info().arch == 90 && tokens < 300 ? 0 : 1 << 20);
      EXPECT_EQ(rest % 256, 0);
    }
    EXPECT_EQ(layer.workspace_bytes(), layer.workspace_bytes(300));
  }
}

}  // namespace
}  // namespace moxie::test
