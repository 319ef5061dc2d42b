// SPDX-License-Identifier: Apache-2.0
// `moxie layer`: a layer of GPT-OSS with its answers, layers of all models that are drawn and computed in double
// precision, and checkpoints that are wrong.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <random>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/safetensors.h"
#include "reference/formats.h"
#include "reference/product.h"
#include "tests/cli/program.h"

namespace moxie::test {
namespace {

using reference::bf16_to_float;
using reference::float_to_bf16;
using Strings = std::vector<std::string>;

const std::string kGolden = MOXIE_SOURCE_DIR "/tests/golden/gpt-oss-layer";

template <class T>
std::vector<T> values_of(const cli::SafetensorsReader& file, const std::string& name) {
  const auto bytes = file.read(name);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}
template <class T>
std::vector<uint8_t> bytes_of(const std::vector<T>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// y as numbers.
std::vector<double> result_of(const cli::SafetensorsReader& file) {
  std::vector<double> y;
  if (file.find("y")->dtype == "F32") {
    for (const float v : values_of<float>(file, "y")) y.push_back(v);
  } else {
    for (const uint16_t v : values_of<uint16_t>(file, "y")) y.push_back(bf16_to_float(v));
  }
  return y;
}

// The error relative to the norm of everything.
template <class T>
double relative_error(const std::vector<double>& got, const std::vector<T>& expected) {
  EXPECT_EQ(got.size(), expected.size());
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += double(expected[i]) * expected[i];
  }
  return std::sqrt(error / norm);
}

constexpr double kRoundedTwice = 8e-3;  // of rows that are rounded to bf16 behind both products

struct FixtureCase {
  std::string name;
  Strings more;
  std::map<std::string, std::string> environment;
};
void PrintTo(const FixtureCase& c, std::ostream* out) { *out << c.name; }

class GptOssFixture : public testing::TestWithParam<FixtureCase> {};

TEST_P(GptOssFixture, GivesItsAnswers) {
  const Folder folder;
  Strings arguments = {"layer", kGolden, kGolden + "/tokens.safetensors", folder / "out", "--layer", "0"};
  arguments.insert(arguments.end(), GetParam().more.begin(), GetParam().more.end());
  const Finished finished = run_moxie(arguments, {GetParam().environment});
  ASSERT_EQ(finished.status, 0) << finished.err;
  EXPECT_EQ(finished.out, "");
  const cli::SafetensorsReader tokens(kGolden + "/tokens.safetensors"), out(folder / "out");
  EXPECT_EQ(out.entries().size(), 3u);
  EXPECT_EQ(out.find("y")->shape, (std::vector<int64_t>{54, 192}));
  EXPECT_EQ(out.find("experts")->dtype, "I32");
  EXPECT_EQ(values_of<int32_t>(out, "experts"), values_of<int32_t>(tokens, "expected_experts"));
  EXPECT_EQ(out.find("weights")->dtype, "F32");
  const auto weights = values_of<float>(out, "weights"), expected = values_of<float>(tokens, "expected_weights");
  ASSERT_EQ(weights.size(), expected.size());
  for (size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(weights[i], expected[i], 2e-6) << i;
  EXPECT_LE(relative_error(result_of(out), values_of<float>(tokens, "expected_y")), kRoundedTwice);
}

INSTANTIATE_TEST_SUITE_P(
    Cli, GptOssFixture,
    testing::ValuesIn(std::vector<FixtureCase>{
        {"Stored", {}, {}},
        {"StoredLazy", {}, {{"MOXIE_SIM_ORDER", "lazy"}}},
        {"StoredRandom", {}, {{"MOXIE_SIM_ORDER", "random:7"}}},
        {"Bf16", {"--weights", "bf16"}, {}},
        {"Bf16Lazy", {"--weights", "bf16"}, {{"MOXIE_SIM_ORDER", "lazy"}}},
        {"Bf16Random", {"--weights", "bf16"}, {{"MOXIE_SIM_ORDER", "random:8"}}},
        {"Bf16Output", {"--out-dtype", "bf16"}, {}},
        {"Blackwell", {}, {{"MOXIE_DEVICE", "sim"}, {"MOXIE_SIM_ARCH", "sm_100a"}}},
        {"BlackwellLazy", {}, {{"MOXIE_DEVICE", "sim"}, {"MOXIE_SIM_ARCH", "sm_100a"}, {"MOXIE_SIM_ORDER", "lazy"}}},
        {"BlackwellRandom",
         {},
         {{"MOXIE_DEVICE", "sim"}, {"MOXIE_SIM_ARCH", "sm_100a"}, {"MOXIE_SIM_ORDER", "random:9"}}},
        {"BlackwellBf16", {"--weights", "bf16"}, {{"MOXIE_DEVICE", "sim"}, {"MOXIE_SIM_ARCH", "sm_100a"}}},
        {"BlackwellBf16Lazy",
         {"--weights", "bf16"},
         {{"MOXIE_DEVICE", "sim"}, {"MOXIE_SIM_ARCH", "sm_100a"}, {"MOXIE_SIM_ORDER", "lazy"}}},
        {"BlackwellBf16Random",
         {"--weights", "bf16"},
         {{"MOXIE_DEVICE", "sim"}, {"MOXIE_SIM_ARCH", "sm_100a"}, {"MOXIE_SIM_ORDER", "random:10"}}},
    }),
    [](const auto& info) { return info.param.name; });

// ---- Layers that are drawn ----

using Matrix = std::vector<uint16_t>;  // bf16

// How a checkpoint holds the weights of experts.
enum class Form { Each, Fused, Transposed, Mxfp4, FlatMxfp4 };

// A layer as numbers, whatever form its checkpoint has.
struct Drawn {
  int64_t experts = 0, top = 0, hidden = 0, width = 0, tokens = 19;
  Matrix x, router, router_bias;
  std::vector<Matrix> gate, up, down;                 // of each expert: [I, H], [I, H], [H, I]
  std::vector<Matrix> gate_bias, up_bias, down_bias;  // [I], [I], [H], or of no expert
  std::vector<float> correction;

  // Multiples of 1/64 that float32 adds up exactly, so that logits are the same in any order of their sums.
  void draw_router(std::mt19937& random, bool with_bias) {
    const auto draw = [&](int64_t count, int most, float unit) {
      Matrix all;
      for (int64_t i = 0; i < count; ++i)
        all.push_back(float_to_bf16(float(int(random() % (2 * most + 1)) - most) * unit));
      return all;
    };
    x = draw(tokens * hidden, 8, 0.25f);
    router = draw(experts * hidden, 12, 1.0f / 64);
    if (with_bias) router_bias = draw(experts, 60, 1.0f / 64);
  }
  static Matrix random_matrix(std::mt19937& random, int64_t count, double scale) {
    Matrix all;
    for (int64_t i = 0; i < count; ++i)
      all.push_back(float_to_bf16(float((double(random() % 20001) / 10000 - 1) * scale)));
    return all;
  }
  void draw_experts(std::mt19937& random, bool with_biases) {
    for (int64_t e = 0; e < experts; ++e) {
      gate.push_back(random_matrix(random, width * hidden, 2 / std::sqrt(double(hidden))));
      up.push_back(random_matrix(random, width * hidden, 2 / std::sqrt(double(hidden))));
      down.push_back(random_matrix(random, hidden * width, 2 / std::sqrt(double(width))));
      if (!with_biases) continue;
      gate_bias.push_back(random_matrix(random, width, 1));
      up_bias.push_back(random_matrix(random, width, 1));
      down_bias.push_back(random_matrix(random, hidden, 1));
    }
  }
};

struct Model {
  std::string name, type;
  Form form = Form::Each;
  bool sharded = false;
  int64_t experts = 6, top = 2, hidden = 64, width = 48;
  std::string config = "";  // more of it, with a comma in front
  Strings more = {};        // arguments
  // Of the router.
  bool sigmoid = false, renormalize = true, bf16_logits = false, bf16_correction = false;
  double scaling = 1, limit = 7;
  int64_t groups = 1, chosen_groups = 1;
  int64_t layer = 0;
  bool newer_names = false;       // of Mixtral
  std::string architecture = "";  // which the configuration has in place of a model_type

  bool is_gpt_oss() const { return type == "gpt_oss"; }
};
void PrintTo(const Model& m, std::ostream* out) { *out << m.name; }

std::string config_of(const Model& m) {
  const bool wide = m.is_gpt_oss() || m.type == "mixtral";
  const char* const experts = m.type == "deepseek_v3" ? "n_routed_experts" : wide ? "num_local_experts" : "num_experts";
  return fmt::format(R"({{{},"num_hidden_layers":5,"hidden_size":{},"{}":{},"{}":{},"num_experts_per_tok":{}{}}})",
                     m.architecture.empty() ? fmt::format(R"("model_type":"{}")", m.type)
                                            : fmt::format(R"("architectures":["{}"])", m.architecture),
                     m.hidden, wide ? "intermediate_size" : "moe_intermediate_size", m.width, experts, m.experts, m.top,
                     m.config);
}

using Tensors = std::vector<cli::TensorToWrite>;

Matrix joined(const std::vector<Matrix>& parts) {
  Matrix all;
  for (const Matrix& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}
Matrix transposed(const Matrix& from, int64_t rows, int64_t columns) {
  Matrix to;
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) to.push_back(from[size_t(r * columns + c)]);
  }
  return to;
}
// Row 2 i is row i of gate, and row 2 i + 1 that of up.
Matrix interleaved(const Matrix& gate, const Matrix& up, int64_t columns) {
  Matrix all;
  for (size_t i = 0; i < gate.size(); i += size_t(columns)) {
    for (const Matrix* part : {&gate, &up})
      all.insert(all.end(), part->begin() + int64_t(i), part->begin() + int64_t(i) + columns);
  }
  return all;
}

// Draws weights [rows, k] in MXFP4, and gives them as bf16.
Matrix draw_mxfp4(std::mt19937& random, int64_t rows, int64_t k, std::vector<uint8_t>& codes,
                  std::vector<uint8_t>& scales) {
  Matrix values;
  std::vector<float> row(static_cast<size_t>(k));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < k / 2; ++i) codes.push_back(uint8_t(random()));
    for (int64_t i = 0; i < k / 32; ++i) scales.push_back(uint8_t(121 + random() % 4));
    reference::dequantize_row(DataType::Mxfp4, codes.data() + r * k / 2, scales.data() + r * k / 32, k, 1, row.data());
    for (const float v : row) values.push_back(float_to_bf16(v));
  }
  return values;
}

// Draws the layer and makes its tensors.
Tensors draw(const Model& m, Drawn& d) {
  std::mt19937 random(uint32_t(std::hash<std::string>()(m.name)));
  d.experts = m.experts, d.top = m.top, d.hidden = m.hidden, d.width = m.width;
  d.draw_router(random, m.is_gpt_oss());
  d.draw_experts(random, m.is_gpt_oss());
  const int64_t e = m.experts, h = m.hidden, w = m.width;
  Tensors tensors;
  const std::string layer = fmt::format("model.layers.{}.", m.layer);
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, const Matrix& values) {
    tensors.push_back({layer + name, "BF16", std::move(shape), bytes_of(values)});
  };
  if (m.is_gpt_oss()) {
    add("mlp.router.weight", {e, h}, d.router);
    add("mlp.router.bias", {e}, d.router_bias);
    Matrix biases;
    for (int64_t i = 0; i < e; ++i)
      biases = joined({biases, interleaved(d.gate_bias[size_t(i)], d.up_bias[size_t(i)], 1)});
    add("mlp.experts.gate_up_proj_bias", {e, 2 * w}, biases);
    add("mlp.experts.down_proj_bias", {e, h}, joined(d.down_bias));
    if (m.form == Form::Transposed) {
      std::vector<Matrix> up, down;
      for (size_t i = 0; i < size_t(e); ++i) {
        up.push_back(transposed(interleaved(d.gate[i], d.up[i], h), 2 * w, h));
        down.push_back(transposed(d.down[i], h, w));
      }
      add("mlp.experts.gate_up_proj", {e, h, 2 * w}, joined(up));
      add("mlp.experts.down_proj", {e, w, h}, joined(down));
      return tensors;
    }
    std::vector<uint8_t> up_codes, up_scales, down_codes, down_scales;
    for (size_t i = 0; i < size_t(e); ++i) {
      std::vector<uint8_t> codes, scales;
      const Matrix up = draw_mxfp4(random, 2 * w, h, codes, scales);
      up_codes.insert(up_codes.end(), codes.begin(), codes.end());
      up_scales.insert(up_scales.end(), scales.begin(), scales.end());
      for (int64_t r = 0; r < 2 * w; ++r)
        std::copy_n(up.begin() + r * h, h, (r % 2 == 0 ? d.gate : d.up)[i].begin() + r / 2 * h);
      codes.clear(), scales.clear();
      d.down[i] = draw_mxfp4(random, h, w, codes, scales);
      down_codes.insert(down_codes.end(), codes.begin(), codes.end());
      down_scales.insert(down_scales.end(), scales.begin(), scales.end());
    }
    const bool flat = m.form == Form::FlatMxfp4;
    using Shape = std::vector<int64_t>;
    const std::string experts = layer + "mlp.experts.";
    tensors.push_back(
        {experts + "gate_up_proj_blocks", "U8", flat ? Shape{e, 2 * w, h / 2} : Shape{e, 2 * w, h / 32, 16}, up_codes});
    tensors.push_back({experts + "gate_up_proj_scales", "U8", {e, 2 * w, h / 32}, up_scales});
    tensors.push_back(
        {experts + "down_proj_blocks", "U8", flat ? Shape{e, h, w / 2} : Shape{e, h, w / 32, 16}, down_codes});
    tensors.push_back({experts + "down_proj_scales", "U8", {e, h, w / 32}, down_scales});
    return tensors;
  }
  const bool old_mixtral = m.type == "mixtral" && !m.newer_names;
  const std::string moe = old_mixtral ? "block_sparse_moe." : "mlp.";
  add(moe + "gate.weight", {e, h}, d.router);
  if (m.sigmoid) {
    for (int64_t i = 0; i < e; ++i) d.correction.push_back(float(random() % 64) / 128 - 0.25f);
    Matrix rounded;
    for (const float v : d.correction) rounded.push_back(float_to_bf16(v));
    tensors.push_back({layer + "mlp.gate.e_score_correction_bias",
                       m.bf16_correction ? "BF16" : "F32",
                       {e},
                       m.bf16_correction ? bytes_of(rounded) : bytes_of(d.correction)});
  }
  if (m.form == Form::Fused) {
    std::vector<Matrix> up;
    for (size_t i = 0; i < size_t(e); ++i) up.push_back(joined({d.gate[i], d.up[i]}));
    add(moe + "experts.gate_up_proj", {e, 2 * w, h}, joined(up));
    add(moe + "experts.down_proj", {e, h, w}, joined(d.down));
    return tensors;
  }
  for (int64_t i = 0; i < e; ++i) {
    const std::string one = fmt::format("{}experts.{}.", moe, i);
    add(one + (old_mixtral ? "w1.weight" : "gate_proj.weight"), {w, h}, d.gate[size_t(i)]);
    add(one + (old_mixtral ? "w3.weight" : "up_proj.weight"), {w, h}, d.up[size_t(i)]);
    add(one + (old_mixtral ? "w2.weight" : "down_proj.weight"), {h, w}, d.down[size_t(i)]);
  }
  // What DeepSeek-V3 has besides, and what another layer has.
  if (m.sigmoid) add("mlp.shared_experts.down_proj.weight", {8}, Matrix(8, 0x7fc0));
  tensors.push_back({"model.layers.3.mlp.up_proj.weight", "F16", {3}, std::vector<uint8_t>(6)});
  return tensors;
}

void write_checkpoint(const Folder& folder, const std::string& config, const Tensors& tensors, bool sharded) {
  write_file(folder / "config.json", config);
  if (!sharded) {
    cli::write_safetensors(folder / "model.safetensors", tensors, {{"format", "pt"}});
    return;
  }
  std::map<std::string, Tensors> files;
  std::string map;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string file = fmt::format("model-{:05}-of-00003.safetensors", i % 3 + 1);
    files[file].push_back(tensors[i]);
    map += fmt::format(R"({}"{}":"{}")", i == 0 ? "" : ",", tensors[i].name, file);
  }
  for (const auto& [file, some] : files) cli::write_safetensors(folder / file, some);
  write_file(folder / "model.safetensors.index.json",
             fmt::format(R"({{"metadata":{{"total_size":1}},"weight_map":{{{}}}}})", map));
}

void write_tokens(const Folder& folder, const Drawn& d) {
  cli::write_safetensors(folder / "x", {{"x", "BF16", {d.tokens, d.hidden}, bytes_of(d.x)}});
}

std::vector<double> numbers(const Matrix& bits) {
  std::vector<double> values;
  for (const uint16_t b : bits) values.push_back(bf16_to_float(b));
  return values;
}

struct Chosen {
  std::vector<int32_t> experts;
  std::vector<double> weights;
};

// The router of the model for one token's logits.
Chosen choose_experts(const Model& m, const Drawn& d, std::vector<double> logits) {
  if (m.bf16_logits) {
    for (double& v : logits) v = bf16_to_float(float_to_bf16(float(v)));
  }
  const auto experts = size_t(m.experts), top = size_t(m.top);
  std::vector<double> score(experts), choice(experts);
  if (m.sigmoid) {
    for (size_t e = 0; e < experts; ++e) {
      score[e] = 1 / (1 + std::exp(-logits[e]));
      choice[e] = score[e] + d.correction[e];
    }
    const size_t in_group = experts / size_t(m.groups);
    std::vector<std::pair<double, size_t>> groups;
    for (size_t g = 0; g < size_t(m.groups); ++g) {
      std::vector<double> members(choice.begin() + int64_t(g * in_group), choice.begin() + int64_t((g + 1) * in_group));
      std::sort(members.rbegin(), members.rend());
      groups.emplace_back(-(members[0] + (in_group > 1 ? members[1] : 0)), g);
    }
    std::sort(groups.begin(), groups.end());
    for (size_t i = size_t(m.chosen_groups); i < groups.size(); ++i)
      std::fill_n(choice.begin() + int64_t(groups[i].second * in_group), in_group, -INFINITY);
  } else {
    double sum = 0;
    for (size_t e = 0; e < experts; ++e) sum += score[e] = std::exp(logits[e]);
    for (size_t e = 0; e < experts; ++e) choice[e] = score[e] /= sum;
  }
  std::vector<int32_t> order(experts);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return choice[size_t(a)] > choice[size_t(b)]; });
  Chosen chosen;
  double sum = 0;
  for (size_t j = 0; j < top; ++j) {
    chosen.experts.push_back(order[j]);
    chosen.weights.push_back(score[size_t(order[j])]);
    sum += chosen.weights.back();
  }
  for (double& w : chosen.weights) w = (m.renormalize ? w / sum : w) * m.scaling;
  return chosen;
}

// The row of one token and expert, rounded to bf16 behind both products.
std::vector<double> row_of(const Model& m, const Drawn& d, const std::vector<double>& x, size_t e) {
  std::vector<double> g = reference::product(x, numbers(d.gate[e]), 1, m.width, m.hidden);
  std::vector<double> u = reference::product(x, numbers(d.up[e]), 1, m.width, m.hidden);
  std::vector<double> inner;
  for (size_t i = 0; i < g.size(); ++i) {
    if (m.is_gpt_oss()) {
      const double gate = std::min(g[i] + bf16_to_float(d.gate_bias[e][i]), m.limit);
      const double up = std::clamp(u[i] + bf16_to_float(d.up_bias[e][i]), -m.limit, m.limit);
      inner.push_back(gate / (1 + std::exp(-1.702 * gate)) * (up + 1));
    } else {
      inner.push_back(g[i] / (1 + std::exp(-g[i])) * u[i]);
    }
  }
  for (double& v : inner) v = bf16_to_float(float_to_bf16(float(v)));
  std::vector<double> y = reference::product(inner, numbers(d.down[e]), 1, m.hidden, m.width);
  for (size_t i = 0; i < y.size(); ++i) {
    if (m.is_gpt_oss()) y[i] += bf16_to_float(d.down_bias[e][i]);
    y[i] = bf16_to_float(float_to_bf16(float(y[i])));
  }
  return y;
}

void expect_layer(const Model& m, const Drawn& d, const cli::SafetensorsReader& out) {
  const auto experts = values_of<int32_t>(out, "experts");
  const auto weights = values_of<float>(out, "weights");
  ASSERT_EQ(out.find("experts")->shape, (std::vector<int64_t>{d.tokens, m.top}));
  ASSERT_EQ(out.find("weights")->shape, (std::vector<int64_t>{d.tokens, m.top}));
  std::vector<double> expected;
  const std::vector<double> router = numbers(d.router);
  for (int64_t t = 0; t < d.tokens; ++t) {
    const std::vector<double> x = numbers(Matrix(d.x.begin() + t * m.hidden, d.x.begin() + (t + 1) * m.hidden));
    std::vector<double> logits = reference::product(x, router, 1, m.experts, m.hidden);
    for (size_t e = 0; e < logits.size() && m.is_gpt_oss(); ++e) logits[e] += bf16_to_float(d.router_bias[e]);
    const Chosen chosen = choose_experts(m, d, logits);
    std::vector<double> y(static_cast<size_t>(m.hidden));
    for (size_t j = 0; j < size_t(m.top); ++j) {
      const size_t at = size_t(t * m.top) + j;
      ASSERT_EQ(experts[at], chosen.experts[j]) << "token " << t << ", choice " << j;
      EXPECT_NEAR(weights[at], chosen.weights[j], 2e-6 * std::max(1.0, m.scaling)) << "token " << t << ", choice " << j;
      const std::vector<double> row = row_of(m, d, x, size_t(chosen.experts[j]));
      for (size_t c = 0; c < y.size(); ++c) y[c] += chosen.weights[j] * row[c];
    }
    expected.insert(expected.end(), y.begin(), y.end());
  }
  EXPECT_LE(relative_error(result_of(out), expected), 4e-3);
}

class DrawnLayer : public testing::TestWithParam<Model> {};

TEST_P(DrawnLayer, IsItsModelsFormula) {
  const Model& m = GetParam();
  const Folder folder;
  Drawn d;
  const Tensors tensors = draw(m, d);
  write_checkpoint(folder, config_of(m), tensors, m.sharded);
  write_tokens(folder, d);
  Strings arguments = {"layer", folder.path(), folder / "x", folder / "out", "--layer", std::to_string(m.layer)};
  arguments.insert(arguments.end(), m.more.begin(), m.more.end());
  const Finished finished = run_moxie(arguments);
  ASSERT_EQ(finished.status, 0) << finished.err;
  expect_layer(m, d, cli::SafetensorsReader(folder / "out"));
}

std::vector<Model> drawn_models() {
  const std::string groups = R"(,"n_group":4,"topk_group":2,"routed_scaling_factor":2.5)";  // renormalized by default
  const std::string plain = R"(,"n_group":1,"topk_group":1,"routed_scaling_factor":1,"norm_topk_prob":false)";
  std::vector<Model> all = {
      {.name = "GptOss", .type = "gpt_oss", .form = Form::Transposed, .experts = 5, .top = 3},
      {.name = "GptOssSharded", .type = "gpt_oss", .form = Form::Transposed, .sharded = true, .width = 40, .layer = 4},
      {.name = "GptOssLimit",
       .type = "gpt_oss",
       .form = Form::Transposed,
       .config = R"(,"swiglu_limit":0.5)",
       .limit = 0.5},
      {.name = "GptOssMxfp4", .type = "gpt_oss", .form = Form::Mxfp4, .experts = 9, .top = 4, .width = 96},
      {.name = "GptOssMxfp4Sharded",
       .type = "gpt_oss",
       .form = Form::Mxfp4,
       .sharded = true,
       .hidden = 32,
       .width = 64},
      {.name = "GptOssMxfp4Flat",
       .type = "gpt_oss",
       .form = Form::FlatMxfp4,
       .width = 32,
       .architecture = "GptOssForCausalLM"},
      {.name = "GptOssMxfp4AsBf16",
       .type = "gpt_oss",
       .form = Form::Mxfp4,
       .experts = 3,
       .width = 96,
       .more = {"--weights", "bf16"}},
      {.name = "GptOssBf16Logits",
       .type = "gpt_oss",
       .form = Form::Mxfp4,
       .experts = 12,
       .width = 32,
       .more = {"--logits", "bf16"},
       .bf16_logits = true},
      {.name = "Qwen3", .type = "qwen3_moe", .experts = 20, .top = 8, .config = R"(,"norm_topk_prob":true)"},
      {.name = "Qwen3Sharded",
       .type = "qwen3_moe",
       .sharded = true,
       .config = R"(,"norm_topk_prob":false,"decoder_sparse_step":2,"mlp_only_layers":[1])",
       .renormalize = false,
       .layer = 3},
      {.name = "Qwen3Fused",
       .type = "qwen3_moe",
       .form = Form::Fused,
       .experts = 7,
       .hidden = 72,
       .width = 24,
       .more = {"--logits", "bf16"},
       .renormalize = false,
       .bf16_logits = true,
       .architecture = "Qwen3MoeForCausalLM"},
      {.name = "Mixtral", .type = "mixtral", .experts = 8, .width = 112, .config = R"(,"hidden_act":"silu")"},
      {.name = "MixtralSharded", .type = "mixtral", .sharded = true, .experts = 4, .top = 1, .layer = 2},
      {.name = "MixtralFused", .type = "mixtral", .form = Form::Fused, .newer_names = true},
      {.name = "MixtralNewerNames", .type = "mixtral", .newer_names = true, .architecture = "MixtralForCausalLM"},
      {.name = "DeepSeekV3",
       .type = "deepseek_v3",
       .experts = 16,
       .top = 4,
       .config =
           groups +
           R"(,"norm_topk_prob":true,"first_k_dense_replace":3,"scoring_func":"sigmoid","topk_method":"noaux_tc")",
       .sigmoid = true,
       .scaling = 2.5,
       .groups = 4,
       .chosen_groups = 2,
       .layer = 3},
      {.name = "DeepSeekV3Sharded",
       .type = "deepseek_v3",
       .sharded = true,
       .experts = 10,
       .top = 3,
       .config = plain + R"(,"first_k_dense_replace":0)",
       .sigmoid = true,
       .renormalize = false,
       .bf16_correction = true},
      {.name = "DeepSeekV3Fused",
       .type = "deepseek_v3",
       .form = Form::Fused,
       .experts = 12,
       .config = groups,
       .sigmoid = true,
       .scaling = 2.5,
       .groups = 4,
       .chosen_groups = 2,
       .architecture = "DeepseekV3ForCausalLM"},
  };
  return all;
}

INSTANTIATE_TEST_SUITE_P(Cli, DrawnLayer, testing::ValuesIn(drawn_models()),
                         [](const auto& info) { return info.param.name; });

TEST(Layer, OfNoTokenIsEmpty) {
  const Folder folder;
  cli::write_safetensors(folder / "x", {{"x", "BF16", {0, 192}, {}}});
  const Finished finished = run_moxie({"layer", kGolden, folder / "x", folder / "out", "--layer", "0"});
  ASSERT_EQ(finished.status, 0) << finished.err;
  const cli::SafetensorsReader out(folder / "out");
  EXPECT_EQ(out.find("y")->shape, (std::vector<int64_t>{0, 192}));
  EXPECT_EQ(out.find("experts")->shape, (std::vector<int64_t>{0, 3}));
}

// ---- What is wrong ----

// A checkpoint of Mixtral or GPT-OSS that a case spoils.
struct Spoiled {
  const Folder& folder;
  std::map<std::string, std::string> config;
  Tensors tensors;
  bool sharded;
  Strings arguments;
  Setting setting;

  cli::TensorToWrite& tensor(const std::string& name) {
    for (cli::TensorToWrite& t : tensors) {
      if (t.name == name) return t;
    }
    throw std::runtime_error(name);
  }
  void remove(const std::string& name) {
    std::erase_if(tensors, [&](const cli::TensorToWrite& t) { return t.name == name; });
  }
};

void write_x(const Spoiled& s, const cli::TensorToWrite& tensor) { cli::write_safetensors(s.folder / "x", {tensor}); }

struct WrongLayer {
  std::string name, type, says;
  std::function<void(Spoiled&)> spoil;
  bool sharded = false;
  std::function<void(const Folder&)> after = {};  // spoils what was written
  int status = 2;
};
void PrintTo(const WrongLayer& c, std::ostream* out) { *out << c.name; }

class WrongCheckpoint : public testing::TestWithParam<WrongLayer> {};

TEST_P(WrongCheckpoint, IsRefused) {
  const WrongLayer& c = GetParam();
  const Folder folder;
  Model m{.name = c.name, .type = c.type, .form = c.type == "gpt_oss" ? Form::Mxfp4 : Form::Each, .width = 64};
  m.sigmoid = c.type == "deepseek_v3";
  Drawn d;
  Spoiled s{folder, {}, draw(m, d), c.sharded, {}, {}};
  s.config = {{"model_type", '"' + c.type + '"'},
              {"num_hidden_layers", "2"},
              {"hidden_size", "64"},
              {"num_experts_per_tok", "2"}};
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"}) s.config[key] = "6";
  for (const char* key : {"intermediate_size", "moe_intermediate_size"}) s.config[key] = "64";
  for (const char* key : {"n_group", "topk_group", "routed_scaling_factor"}) s.config[key] = "1";
  write_tokens(folder, d);
  s.arguments = {"layer", folder.path(), folder / "x", folder / "out", "--layer", "0"};
  c.spoil(s);
  std::string config;
  for (const auto& [key, value] : s.config)
    config += fmt::format(R"({}"{}":{})", config.empty() ? "" : ",", key, value);
  write_checkpoint(folder, "{" + config + "}", s.tensors, c.sharded);
  if (c.after) c.after(folder);
  const Finished finished = run_moxie(s.arguments, s.setting);
  EXPECT_EQ(finished.status, c.status) << finished.err;
  EXPECT_EQ(finished.out, "");
  // Progress stands before what happens on the device.
  std::string said = folder.without_path(finished.err);
  if (const size_t moxie = said.rfind("moxie: ");
      moxie != std::string::npos && said.starts_with("opening the device ...\n"))
    said = said.substr(moxie);
  if (c.says.ends_with("(...")) {
    EXPECT_THAT(said, testing::StartsWith("moxie: " + c.says.substr(0, c.says.size() - 3)));
    EXPECT_EQ(finished.lines_on_stderr(), 1) << finished.err;
  } else {
    EXPECT_EQ(said, "moxie: " + c.says + "\n");
  }
  for (const auto& file : std::filesystem::directory_iterator(folder.path()))
    EXPECT_FALSE(file.path().filename().string().starts_with("out")) << file.path();
}

const std::string kMoe = "model.layers.0.block_sparse_moe.", kMlp = "model.layers.0.mlp.";

INSTANTIATE_TEST_SUITE_P(
    Cli, WrongCheckpoint,
    testing::ValuesIn(std::
                          vector<WrongLayer>{
                              {"MissingTensor", "mixtral", "DIR: tensor '" + kMoe + "experts.3.w3.weight' is missing",
                               [](Spoiled& s) { s.remove(kMoe + "experts.3.w3.weight"); }},
                              {"MissingTensorOfShards", "mixtral",
                               "DIR: tensor '" + kMoe + "experts.3.w3.weight' is missing",
                               [](Spoiled& s) { s.remove(kMoe + "experts.3.w3.weight"); }, true},
                              {"MissingRouter", "mixtral", "DIR: tensor '" + kMoe + "gate.weight' is missing",
                               [](Spoiled& s) { s.remove(kMoe + "gate.weight"); }},
                              {"MissingBias", "gpt_oss", "DIR: tensor '" + kMlp + "experts.down_proj_bias' is missing",
                               [](Spoiled& s) { s.remove(kMlp + "experts.down_proj_bias"); }},
                              {"MissingBlocks", "gpt_oss",
                               "DIR: tensor '" + kMlp + "experts.gate_up_proj_blocks' is missing",
                               [](Spoiled& s) { s.remove(kMlp + "experts.gate_up_proj_blocks"); }},
                              {"MissingCorrection", "deepseek_v3",
                               "DIR: tensor '" + kMlp + "gate.e_score_correction_bias' is missing",
                               [](Spoiled& s) { s.remove(kMlp + "gate.e_score_correction_bias"); }},
                              {"OtherShape", "mixtral",
                               "tensor '" + kMoe + "experts.5.w2.weight' is BF16 [32, 128], it must be BF16 [64, 64]",
                               [](Spoiled& s) {
                                 s.tensor(kMoe + "experts.5.w2.weight").shape = {32, 128};
                               }},
                              {"OtherType", "mixtral",
                               "tensor '" + kMoe + "experts.5.w2.weight' is F16 [64, 64], it must be BF16 [64, 64]",
                               [](Spoiled& s) { s.tensor(kMoe + "experts.5.w2.weight").dtype = "F16"; }},
                              {"Fp8", "deepseek_v3",
                               "tensor '" + kMlp +
                                   "experts.0.gate_proj.weight' is F8_E4M3 [64, 64], it must be BF16 [64, 64]",
                               [](Spoiled& s) {
                                 cli::TensorToWrite& t = s.tensor(kMlp + "experts.0.gate_proj.weight");
                                 t.dtype = "F8_E4M3", t.data.resize(64 * 64);
                               }},
                              {"ShapeOfScales", "gpt_oss",
                               "tensor '" + kMlp +
                                   "experts.gate_up_proj_scales' is U8 [6, 64, 4], it must be U8 [6, 128, 2]",
                               [](Spoiled& s) {
                                 s.tensor(kMlp + "experts.gate_up_proj_scales").shape = {6, 64, 4};
                               }},
                              {"ShapeOfBlocks", "gpt_oss",
                               "tensor '" + kMlp +
                                   "experts.down_proj_blocks' is U8 [6, 64, 4, 8], it must be U8 [6, 64, 2, 16]",
                               [](Spoiled& s) {
                                 s.tensor(kMlp + "experts.down_proj_blocks").shape = {6, 64, 4, 8};
                               }},
                              {"NanScale", "gpt_oss",
                               "tensor '" + kMlp +
                                   "experts.gate_up_proj_scales': row 17 of expert 2 has a scale of 255, which stands "
                                   "for NaN",
                               [](Spoiled& s) {
                                 s.tensor(kMlp + "experts.gate_up_proj_scales").data[(2 * 128 + 17) * 2 + 1] = 255;
                               }},
                              {"FarScales", "gpt_oss",
                               "tensor '" + kMlp +
                                   "experts.down_proj_scales': row 5 of group 3 has scales above 128 that are more "
                                   "than 133 "
                                   "above its smallest, whose weights bf16 cannot hold beside each other",
                               [](Spoiled& s) {
                                 auto& data = s.tensor(kMlp + "experts.down_proj_scales").data;
                                 data[(3 * 64 + 5) * 2] = 200, data[(3 * 64 + 5) * 2 + 1] = 60;
                               }},
                              {"OneBf16", "gpt_oss",
                               kMlp + "experts.gate_up_proj and down_proj: one is bf16 and the other MXFP4",
                               [](Spoiled& s) {
                                 s.tensors.push_back({kMlp + "experts.down_proj",
                                                      "BF16",
                                                      {6, 64, 64},
                                                      std::vector<uint8_t>(6 * 64 * 128)});
                               }},
                              {"NotOfBlocks", "gpt_oss",
                               "tensor '" + kMlp +
                                   "experts.gate_up_proj' is missing, and rows of 72 elements cannot be MXFP4",
                               [](Spoiled& s) {
                                 s.config["hidden_size"] = "72";
                                 s.tensor(kMlp + "router.weight").shape = {6, 72};
                                 s.tensor(kMlp + "router.weight").data.resize(6 * 72 * 2);
                               }},
                              {"NoConfig", "mixtral", "DIR/config.json: cannot be opened: No such file or directory",
                               [](Spoiled&) {}, false,
                               [](const Folder& f) { std::filesystem::remove(f / "config.json"); }},
                              {"ConfigIsAFolder", "mixtral", "DIR/config.json: is not a regular file", [](Spoiled&) {},
                               false,
                               [](const Folder& f) {
                                 std::filesystem::remove(f / "config.json");
                                 std::filesystem::create_directory(f / "config.json");
                               }},
                              {"ConfigMayNotBeRead", "mixtral", "DIR/config.json: cannot be opened: Permission denied",
                               [](Spoiled& s) { s.setting.obeys_permissions = true; }, false,
                               [](const Folder& f) {
                                 std::filesystem::permissions(f / "config.json", std::filesystem::perms::none);
                               }},
                              {"ConfigOfTheMostBytes", "mixtral", "DIR/config.json: must be a JSON object",
                               [](Spoiled&) {}, false,
                               [](const Folder& f) {
                                 write_file(f / "config.json", "[1]");
                                 std::filesystem::resize_file(f / "config.json", 100'000'000);
                               }},
                              {"ConfigOfTooManyBytes", "mixtral",
                               "DIR/config.json: has 100000001 bytes, at most 100000000 are allowed", [](Spoiled&) {},
                               false,
                               [](const Folder& f) { std::filesystem::resize_file(f / "config.json", 100'000'001); }},
                              {"ConfigIsNoJson", "mixtral", "DIR/config.json: is not valid JSON in UTF-8 (...",
                               [](Spoiled&) {}, false,
                               [](const Folder& f) { write_file(f / "config.json", "{\"model_type\":"); }},
                              {"ConfigIsAList", "mixtral", "DIR/config.json: must be a JSON object", [](Spoiled&) {},
                               false, [](const Folder& f) { write_file(f / "config.json", "[1]"); }},
                              {"OtherModel", "mixtral",
                               "DIR/config.json: model_type is \"llama\", only gpt_oss, qwen3_moe, mixtral and "
                               "deepseek_v3 are supported",
                               [](Spoiled& s) { s.config["model_type"] = "\"llama\""; }},
                              {"OtherArchitecture", "mixtral",
                               "DIR/config.json: architectures is \"LlamaForCausalLM\", only gpt_oss, qwen3_moe, "
                               "mixtral and deepseek_v3 are "
                               "supported",
                               [](Spoiled& s) {
                                 s.config.erase("model_type");
                                 s.config["architectures"] = "[\"LlamaForCausalLM\"]";
                               }},
                              {"NoHiddenSize", "mixtral", "DIR/config.json: hidden_size is missing",
                               [](Spoiled& s) { s.config.erase("hidden_size"); }},
                              {"HiddenSizeIsNull", "mixtral", "DIR/config.json: hidden_size is missing",
                               [](Spoiled& s) { s.config["hidden_size"] = "null"; }},
                              {"HiddenSizeIsAText", "mixtral",
                               "DIR/config.json: hidden_size is \"64\", but must be an integer from 1 to 1048576",
                               [](Spoiled& s) { s.config["hidden_size"] = "\"64\""; }},
                              {"ActivationIsANumber", "mixtral", "DIR/config.json: hidden_act is 5, but must be a text",
                               [](Spoiled& s) { s.config["hidden_act"] = "5"; }},
                              {"HiddenSizeIsHuge", "mixtral",
                               "DIR/config.json: hidden_size is 18446744073709551615, but must be an integer from 1 to "
                               "1048576",
                               [](Spoiled& s) { s.config["hidden_size"] = "18446744073709551615"; }},
                              {"TooManyExperts", "mixtral",
                               "DIR/config.json: num_local_experts is 1025, but must be an integer from 1 to 1024",
                               [](Spoiled& s) { s.config["num_local_experts"] = "1025"; }},
                              {"TopAboveExperts", "mixtral",
                               "DIR/config.json: num_experts_per_tok is 7, but must be an integer from 1 to 6",
                               [](Spoiled& s) { s.config["num_experts_per_tok"] = "7"; }},
                              {"OtherActivation", "mixtral",
                               "DIR/config.json: hidden_act is \"gelu\", only \"silu\" is supported",
                               [](Spoiled& s) { s.config["hidden_act"] = "\"gelu\""; }},
                              {"NormIsANumber", "qwen3_moe",
                               "DIR/config.json: norm_topk_prob is 1, but must be true or false",
                               [](Spoiled& s) { s.config["norm_topk_prob"] = "1"; }},
                              {"Limit", "gpt_oss", "DIR/config.json: swiglu_limit is 0, but must be positive",
                               [](Spoiled& s) { s.config["swiglu_limit"] = "0"; }},
                              {"LimitIsAText", "gpt_oss",
                               "DIR/config.json: swiglu_limit is \"7\", but must be a number",
                               [](Spoiled& s) { s.config["swiglu_limit"] = "\"7\""; }},
                              {"Groups", "deepseek_v3",
                               "DIR/config.json: n_group is 4, but must divide the 6 experts into two or more each",
                               [](Spoiled& s) { s.config["n_group"] = "4"; }},
                              {"TopAboveGroups", "deepseek_v3",
                               "DIR/config.json: num_experts_per_tok is 3, but topk_group leaves a token 2 experts",
                               [](Spoiled& s) { s.config["n_group"] = "3", s.config["num_experts_per_tok"] = "3"; }},
                              {"Scoring", "deepseek_v3",
                               "DIR/config.json: scoring_func is \"softmax\", only \"sigmoid\" is supported",
                               [](Spoiled& s) { s.config["scoring_func"] = "\"softmax\""; }},
                              {"NoScaling", "deepseek_v3", "DIR/config.json: routed_scaling_factor is missing",
                               [](Spoiled& s) { s.config.erase("routed_scaling_factor"); }},
                              {"LayerTooFar", "mixtral", "--layer: 2 is not one of the model's, 0 to 1",
                               [](Spoiled& s) { s.arguments.back() = "2"; }},
                              {"LayerBelow", "mixtral", "--layer: -1 is not one of the model's, 0 to 1",
                               [](Spoiled& s) { s.arguments.back() = "-1"; }},
                              {"LayerIsNone", "mixtral", "--layer is required (see moxie layer --help)",
                               [](Spoiled& s) { s.arguments.resize(4); }},
                              {"DenseLayer", "deepseek_v3",
                               "DIR/config.json: layer 0 has no experts, by first_k_dense_replace and moe_layer_freq",
                               [](Spoiled& s) { s.config["first_k_dense_replace"] = "1"; }},
                              {"DenseLayerOfQwen3", "qwen3_moe",
                               "DIR/config.json: layer 0 has no experts, by mlp_only_layers and decoder_sparse_step",
                               [](Spoiled& s) { s.config["mlp_only_layers"] = "[0]"; }},
                              {"SparseStepOfQwen3", "qwen3_moe",
                               "DIR/config.json: layer 0 has no experts, by mlp_only_layers and decoder_sparse_step",
                               [](Spoiled& s) { s.config["decoder_sparse_step"] = "2"; }},
                              {"NoFile", "mixtral",
                               "DIR: has neither model.safetensors nor model.safetensors.index.json", [](Spoiled&) {},
                               false, [](const Folder& f) { std::filesystem::remove(f / "model.safetensors"); }},
                              {"NoFolder", "mixtral",
                               "DIR/none/config.json: cannot be opened: No such file or directory",
                               [](Spoiled& s) { s.arguments[1] += "/none"; }},
                              {"NoShard", "mixtral",
                               "DIR/model-00002-of-00003.safetensors: cannot be opened: No such file or directory",
                               [](Spoiled&) {}, true,
                               [](const Folder& f) {
                                 std::filesystem::remove(f / "model-00002-of-00003.safetensors");
                               }},
                              {"OtherShard", "mixtral",
                               "DIR/model-00001-of-00003.safetensors: tensor '" + kMoe +
                                   "gate.weight' is missing, though model.safetensors.index.json says that it is there",
                               [](Spoiled&) {}, true,
                               [](const Folder& f) {
                                 std::filesystem::copy_file(f / "model-00002-of-00003.safetensors",
                                                            f / "model-00001-of-00003.safetensors",
                                                            std::filesystem::copy_options::overwrite_existing);
                               }},
                              {"ShardOutside", "mixtral",
                               "DIR/model.safetensors.index.json: tensor 'a' is in \"../x\", which is no name of a "
                               "file",
                               [](Spoiled&) {}, true,
                               [](const Folder& f) {
                                 write_file(f / "model.safetensors.index.json", R"({"weight_map":{"a":"../x"}})");
                               }},
                              {"IndexWithoutMap", "mixtral",
                               "DIR/model.safetensors.index.json: weight_map must be an object", [](Spoiled&) {}, true,
                               [](const Folder& f) {
                                 write_file(f / "model.safetensors.index.json", R"({"weight_map":[]})");
                               }},
                              {"IndexOfNothing", "mixtral", "DIR/model.safetensors.index.json: weight_map is empty",
                               [](Spoiled&) {}, true,
                               [](const Folder& f) {
                                 write_file(f / "model.safetensors.index.json", R"({"weight_map":{}})");
                               }},
                              {"CutOff", "mixtral",
                               "DIR/model.safetensors: tensor '" + kMoe +
                                   "experts.0.w1.weight': data_offsets end at byte 8192, the file holds 2 bytes of "
                                   "data",
                               [](Spoiled& s) {
                                 std::erase_if(s.tensors,
                                               [](const auto& t) { return !t.name.ends_with("s.0.w1.weight"); });
                               },
                               false,
                               [](const Folder& f) {
                                 const uintmax_t size = std::filesystem::file_size(f / "model.safetensors");
                                 std::filesystem::resize_file(f / "model.safetensors", size - 8190);
                               }},
                              {"NoX", "mixtral", "DIR/x: tensor 'x' is missing",
                               [](Spoiled& s) { write_x(s, {"y", "BF16", {1, 64}, std::vector<uint8_t>(128)}); }},
                              {"WidthOfX", "mixtral", "tensor 'x' is BF16 [2, 32], it must be BF16 [tokens, 64]",
                               [](Spoiled& s) {
                                 write_x(s, {"x", "BF16", {2, 32}, std::vector<uint8_t>(128)});
                               }},
                              {"TypeOfX", "mixtral", "tensor 'x' is F32 [1, 64], it must be BF16 [tokens, 64]",
                               [](Spoiled& s) {
                                 write_x(s, {"x", "F32", {1, 64}, std::vector<uint8_t>(256)});
                               }},
                              {"DimensionsOfX", "mixtral",
                               "tensor 'x' is BF16 [1, 1, 64], it must be BF16 [tokens, 64]",
                               [](Spoiled& s) { write_x(s, {"x", "BF16", {1, 1, 64}, std::vector<uint8_t>(128)}); }},
                              {"OutIsX", "mixtral", "OUT: DIR/x is an input file",
                               [](Spoiled& s) { s.arguments[3] = s.arguments[2]; }},
                              {"OutIsTheCheckpoint", "mixtral", "OUT: DIR/model.safetensors is an input file",
                               [](Spoiled& s) { s.arguments[3] = s.folder / "model.safetensors"; }},
                              {"OutIsAShard", "mixtral", "OUT: DIR/model-00003-of-00003.safetensors is an input file",
                               [](Spoiled& s) { s.arguments[3] = s.folder / "model-00003-of-00003.safetensors"; },
                               true},
                              {"OutNowhere", "mixtral",
                               "DIR/none/out: cannot be written: DIR/none: No such file or directory",
                               [](Spoiled& s) { s.arguments[3] = s.folder / "none/out"; }},
                              {"Weights", "mixtral", "--weights: 'fp8' is none of stored, bf16",
                               [](Spoiled& s) { s.arguments.insert(s.arguments.end(), {"--weights", "fp8"}); }},
                              {"Logits", "mixtral", "--logits: 'f16' is none of f32, bf16",
                               [](Spoiled& s) { s.arguments.insert(s.arguments.end(), {"--logits", "f16"}); }},
                              {"Output", "mixtral", "--out-dtype: 'f16' is none of f32, bf16",
                               [](Spoiled& s) { s.arguments.insert(s.arguments.end(), {"--out-dtype", "f16"}); }},
                              {"OtherUnit", "mixtral", "width is 60, but must be a multiple of 8 with bf16 weights",
                               [](Spoiled& s) {
                                 s.config["intermediate_size"] = "60";
                                 for (cli::TensorToWrite& t : s.tensors) {
                                   if (!t.name.starts_with(kMoe + "experts.")) continue;
                                   (t.name.ends_with("w2.weight") ? t.shape[1] : t.shape[0]) = 60;
                                   t.data.resize(64 * 60 * 2);
                                 }
                               }},
                          }),
    [](const auto& info) { return info.param.name; });

TEST(Layer, OnATerminalTheStepsShareALine) {
  const Folder folder;
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(grantpt(terminal), 0);
  ASSERT_EQ(unlockpt(terminal), 0);
  const std::string name = ptsname(terminal);
  const int other_end = open(name.c_str(), O_RDWR | O_NOCTTY);  // what was said stays readable while it is open
  const Strings arguments = {"layer", kGolden, kGolden + "/tokens.safetensors", folder / "out", "--layer", "0"};
  EXPECT_EQ(wait_for(start_moxie(arguments, {.environment = {{"MOXIE_DEVICE", "sim"}}}, name)), 0);
  std::string said(1 << 16, '\0');
  size_t size = 0;
  for (ssize_t got = 0; (got = read(terminal, said.data() + size, said.size() - size)) > 0;) size += size_t(got);
  said.resize(size);
  close(other_end);
  close(terminal);
  const std::string wipe = "\r\033[K";
  size_t at = 0;
  for (const char* step : {"opening the device", "compiling", "loading weights", "packing weights, 1 of 8",
                           "packing weights, 8 of 8", "running on the simulator"}) {
    at = said.find(wipe + step + " ... ", at);
    EXPECT_NE(at, std::string::npos) << step << " is not in its place: " << said;
  }
  EXPECT_THAT(said, testing::EndsWith(" s" + wipe));
  EXPECT_EQ(said.find('\n'), std::string::npos) << said;
}

// Of a file that cannot be written to its end nothing is left.
TEST(Layer, AFullDiskLeavesNothing) {
  const Folder folder;
  const std::string x = kGolden + "/tokens.safetensors";
  ASSERT_EQ(run_moxie({"layer", kGolden, x, folder / "warm", "--layer", "0"}).status, 0);  // kernels are in the cache
  Setting setting;
  setting.file_limit = 16 << 10;
  const Finished finished = run_moxie({"layer", kGolden, x, folder / "out", "--layer", "0"}, setting);
  EXPECT_EQ(finished.status, 1);
  EXPECT_THAT(folder.without_path(finished.err),
              testing::EndsWith("\nmoxie: DIR/out: cannot be written: File too large\n"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "something was left behind";
}

}  // namespace
}  // namespace moxie::test
