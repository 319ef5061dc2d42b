// SPDX-License-Identifier: Apache-2.0
// See layer_weights.h. The names of tensors and of configurations are those of Hugging Face's transformers, which
// docs/layer.md cites.
#include "cli/layer_weights.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "cli/packed_tensor.h"
#include "moxie/quantize.h"
#include "moxie/weights.h"

namespace moxie::cli {

namespace {

using timing::Buffer;

constexpr int64_t kMostWidth = int64_t{1} << 20;
constexpr int64_t kMostLayers = 100'000;
constexpr uint8_t kNanScale = 255;

// What a model's tensors are called. `{}` stands for the expert.
struct Names {
  std::string router;            // its weight
  std::string gate, up, down;    // of one expert, where each has tensors of its own
  std::string all_up, all_down;  // of all experts
};

void set_sizes(const ModelConfig& config, const char* experts, const char* width, ExpertLayerDescription& d) {
  d.experts = config.integer(experts, 1, kMaxRoutedExperts);
  d.top_k = int(config.integer("num_experts_per_tok", 1, std::min<int64_t>(kMaxTopK, d.experts)));
  d.hidden = config.integer("hidden_size", 1, kMostWidth);
  d.width = config.integer(width, 1, kMostWidth);
  d.router = RouterDescription{};
}

// Swiglu, which is silu in a configuration, with gate before up.
void set_swiglu(const ModelConfig& config, ExpertLayerDescription& d) {
  if (const std::string name = config.text("hidden_act", "silu"); name != "silu")
    config.refuse(fmt::format("hidden_act is \"{}\", only \"silu\" is supported", name));
  d.activation = Activation::Swiglu;
  d.gate = GateLayout::Split;
}

void set_shapes(StoredLayer& layer) {
  const ExpertLayerDescription& d = layer.description;
  layer.up.experts = layer.down.experts = d.experts;
  layer.up.n = 2 * d.width, layer.up.k = d.hidden, layer.down.n = d.hidden, layer.down.k = d.width;
}

void read_bf16(Checkpoint& checkpoint, const Names& names, StoredLayer& layer) {
  const ExpertLayerDescription& d = layer.description;
  const int64_t element = 2;
  const auto add = [&](StoredWeights& weights, const std::string& name, int64_t rows) {
    weights.pieces.push_back({checkpoint.tensor(name, "BF16", {{rows, weights.k}}), nullptr, rows});
  };
  const auto add_all = [&](StoredWeights& weights, const std::string& name) {
    const uint8_t* const data = checkpoint.tensor(name, "BF16", {{d.experts, weights.n, weights.k}});
    for (int64_t e = 0; e < d.experts; ++e)
      weights.pieces.push_back({data + e * weights.n * weights.k * element, nullptr, weights.n});
  };
  if (checkpoint.has(names.all_up)) {
    add_all(layer.up, names.all_up);
    add_all(layer.down, names.all_down);
    return;
  }
  for (int64_t e = 0; e < d.experts; ++e) {
    add(layer.up, fmt::format(fmt::runtime(names.gate), e), d.width);
    add(layer.up, fmt::format(fmt::runtime(names.up), e), d.width);
    add(layer.down, fmt::format(fmt::runtime(names.down), e), d.hidden);
  }
}

// Weights of GPT-OSS, whose names begin with `name`.
void read_gpt_oss(Checkpoint& checkpoint, const std::string& name, StoredWeights& weights) {
  const int64_t experts = weights.experts, n = weights.n, k = weights.k;
  if (checkpoint.has(name)) {
    weights.transposed = true;
    const uint8_t* const data = checkpoint.tensor(name, "BF16", {{experts, k, n}});
    for (int64_t e = 0; e < experts; ++e) weights.pieces.push_back({data + e * n * k * 2, nullptr, n});
    return;
  }
  if (k % 32 != 0)
    throw InputError(fmt::format("tensor '{}' is missing, and rows of {} elements cannot be MXFP4", name, k));
  weights.format = OperandFormat::Mxfp4;
  weights.scales_name = name + "_scales";
  const uint8_t* const codes =
      checkpoint.tensor(name + "_blocks", "U8", {{experts, n, k / 32, 16}, {experts, n, k / 2}});
  const uint8_t* const scales = checkpoint.tensor(weights.scales_name, "U8", {{experts, n, k / 32}});
  const int64_t count = experts * n * k / 32;
  if (const uint8_t* const nan = std::find(scales, scales + count, kNanScale); nan != scales + count) {
    const int64_t row = (nan - scales) / (k / 32);
    throw InputError(fmt::format("tensor '{}': row {} of expert {} has a scale of 255, which stands for NaN",
                                 weights.scales_name, row % n, row / n));
  }
  for (int64_t e = 0; e < experts; ++e) weights.pieces.push_back({codes + e * n * k / 2, scales + e * n * k / 32, n});
}

void find_gpt_oss(Checkpoint& checkpoint, const std::string& prefix, int64_t, StoredLayer& layer) {
  const ModelConfig& config = checkpoint.config();
  ExpertLayerDescription& d = layer.description;
  set_sizes(config, "num_local_experts", "intermediate_size", d);
  SwigluOaiParameters parameters;
  parameters.limit = float(config.number("swiglu_limit", parameters.limit));
  if (!(parameters.limit > 0)) config.refuse(fmt::format("swiglu_limit is {}, but must be positive", parameters.limit));
  d.activation = swiglu_oai(parameters);
  d.gate = GateLayout::Interleaved;
  d.up_bias = d.down_bias = true;
  set_shapes(layer);
  layer.router = checkpoint.tensor(prefix + "mlp.router.weight", "BF16", {{d.experts, d.hidden}});
  layer.router_bias = checkpoint.tensor(prefix + "mlp.router.bias", "BF16", {{d.experts}});
  const std::string experts = prefix + "mlp.experts.";
  read_gpt_oss(checkpoint, experts + "gate_up_proj", layer.up);
  read_gpt_oss(checkpoint, experts + "down_proj", layer.down);
  if (layer.up.format != layer.down.format)
    throw InputError(fmt::format("{}gate_up_proj and down_proj: one is bf16 and the other MXFP4", experts));
  d.weights = layer.up.format;
  layer.up_bias = checkpoint.tensor(experts + "gate_up_proj_bias", "BF16", {{d.experts, 2 * d.width}});
  layer.down_bias = checkpoint.tensor(experts + "down_proj_bias", "BF16", {{d.experts, d.hidden}});
}

// The other models, whose layers differ in their routers.
void find_bf16(Checkpoint& checkpoint, const Names& names, StoredLayer& layer) {
  const ExpertLayerDescription& d = layer.description;
  set_shapes(layer);
  layer.router = checkpoint.tensor(names.router, "BF16", {{d.experts, d.hidden}});
  read_bf16(checkpoint, names, layer);
}

Names mlp_names(const std::string& prefix) {
  const std::string mlp = prefix + "mlp.", one = mlp + "experts.{}.";
  return {mlp + "gate.weight",      one + "gate_proj.weight",     one + "up_proj.weight",
          one + "down_proj.weight", mlp + "experts.gate_up_proj", mlp + "experts.down_proj"};
}

void find_qwen3(Checkpoint& checkpoint, const std::string& prefix, int64_t index, StoredLayer& layer) {
  const ModelConfig& config = checkpoint.config();
  const std::vector<int64_t> dense = config.integers("mlp_only_layers");
  if (std::count(dense.begin(), dense.end(), index) != 0 ||
      (index + 1) % config.integer("decoder_sparse_step", 1, kMostLayers, 1) != 0)
    config.refuse(fmt::format("layer {} has no experts, by mlp_only_layers and decoder_sparse_step", index));
  set_sizes(config, "num_experts", "moe_intermediate_size", layer.description);
  set_swiglu(config, layer.description);
  layer.description.router->renormalize = config.flag("norm_topk_prob", false);
  find_bf16(checkpoint, mlp_names(prefix), layer);
}

void find_mixtral(Checkpoint& checkpoint, const std::string& prefix, int64_t, StoredLayer& layer) {
  set_sizes(checkpoint.config(), "num_local_experts", "intermediate_size", layer.description);
  set_swiglu(checkpoint.config(), layer.description);
  Names names = mlp_names(prefix);
  if (!checkpoint.has(names.router)) {
    const std::string moe = prefix + "block_sparse_moe.", one = moe + "experts.{}.";
    names.router = moe + "gate.weight";
    names.gate = one + "w1.weight", names.up = one + "w3.weight", names.down = one + "w2.weight";
  }
  find_bf16(checkpoint, names, layer);
}

void find_deepseek_v3(Checkpoint& checkpoint, const std::string& prefix, int64_t index, StoredLayer& layer) {
  const ModelConfig& config = checkpoint.config();
  const int64_t dense = config.integer("first_k_dense_replace", 0, kMostLayers, 0);
  if (index < dense || index % config.integer("moe_layer_freq", 1, kMostLayers, 1) != 0)
    config.refuse(fmt::format("layer {} has no experts, by first_k_dense_replace and moe_layer_freq", index));
  for (const auto& [key, supported] : {std::pair("scoring_func", "sigmoid"), std::pair("topk_method", "noaux_tc")}) {
    if (const std::string name = config.text(key, supported); name != supported)
      config.refuse(fmt::format("{} is \"{}\", only \"{}\" is supported", key, name, supported));
  }
  ExpertLayerDescription& d = layer.description;
  set_sizes(config, "n_routed_experts", "moe_intermediate_size", d);
  set_swiglu(config, d);
  RouterDescription& router = *d.router;
  router.score = RouterScore::Sigmoid;
  router.renormalize = config.flag("norm_topk_prob", true);
  router.scaling_factor = float(config.number("routed_scaling_factor"));
  router.correction_bias = true;
  router.expert_groups = int(config.integer("n_group", 1, kMaxExpertGroups));
  router.chosen_groups = int(config.integer("topk_group", 1, router.expert_groups));
  const int64_t in_group = d.experts / router.expert_groups;
  if (router.expert_groups > 1 && (d.experts % router.expert_groups != 0 || in_group < 2))
    config.refuse(fmt::format("n_group is {}, but must divide the {} experts into two or more each",
                              router.expert_groups, d.experts));
  if (d.top_k > in_group * router.chosen_groups)
    config.refuse(fmt::format("num_experts_per_tok is {}, but topk_group leaves a token {} experts", d.top_k,
                              in_group * router.chosen_groups));
  find_bf16(checkpoint, mlp_names(prefix), layer);
  const std::string name = prefix + "mlp.gate.e_score_correction_bias";
  const bool f32 = checkpoint.dtype(name) == "F32";
  const uint8_t* const bias = checkpoint.tensor(name, f32 ? "F32" : "BF16", {{d.experts}});
  for (int64_t e = 0; e < d.experts; ++e) {
    uint32_t bits = 0;
    if (f32) {
      std::memcpy(&bits, bias + 4 * e, 4);
    } else {
      bits = uint32_t(bias[2 * e]) << 16 | uint32_t(bias[2 * e + 1]) << 24;
    }
    float value;
    std::memcpy(&value, &bits, 4);
    layer.correction_bias.push_back(value);
  }
}

// [k, n] to [n, k], in squares that stay in the cache.
void transpose(const uint8_t* from, int64_t n, int64_t k, std::vector<uint16_t>& to) {
  constexpr int64_t kSquare = 32;
  to.resize(size_t(n * k));
  for (int64_t row = 0; row < n; row += kSquare) {
    for (int64_t column = 0; column < k; column += kSquare) {
      for (int64_t c = column; c < std::min(column + kSquare, k); ++c) {
        for (int64_t r = row; r < std::min(row + kSquare, n); ++r)
          std::memcpy(&to[size_t(r * k + c)], from + (c * n + r) * 2, 2);
      }
    }
  }
}

Buffer load_bf16(const Device& device, const StoredWeights& weights, Progress& progress) {
  Buffer all(device, size_t(weights.experts * weights.n * weights.k) * 2);
  std::vector<uint16_t> turned;
  auto* to = all.as<uint8_t>();
  for (size_t i = 0; i < weights.pieces.size(); ++i) {
    const StoredWeights::Piece& piece = weights.pieces[i];
    const size_t bytes = size_t(piece.rows * weights.k) * 2;
    if (weights.transposed) transpose(piece.data, piece.rows, weights.k, turned);
    device.upload(to, weights.transposed ? static_cast<const void*>(turned.data()) : piece.data, bytes);
    to += bytes;
    progress.detail(fmt::format("loading weights, {} of {}", i + 1, weights.pieces.size()));
  }
  return all;
}

// Packs the weights of an expert at a time, or dequantizes them.
Buffer load_mxfp4(const Device& device, const StoredWeights& weights, bool packed, Progress& progress) {
  const int64_t n = weights.n, k = weights.k;
  const auto experts = int64_t(weights.pieces.size());
  const WeightShape shape{1, n, k, weights.gated, GateLayout::Interleaved};
  const size_t each = packed ? packed_weight_bytes(shape) : size_t(n * k) * 2;
  Buffer all(device, size_t(weights.experts) * each);
  const Buffer codes(device, size_t(n * k / 2)), scales(device, size_t(n * k / 32)), refused(device, 8);
  for (int64_t e = 0; e < experts; ++e) {
    const StoredWeights::Piece& piece = weights.pieces[size_t(e)];
    device.upload(codes.as(), piece.data, size_t(n * k / 2));
    device.upload(scales.as(), piece.scales, size_t(n * k / 32));
    void* const to = all.as<uint8_t>() + size_t(e) * each;
    if (packed) {
      device.fill(refused.as(), 0xff, 8);
      pack_weights(device, {shape, codes.as(), scales.as(), to, refused.as<uint64_t>()});
      uint64_t row = 0;
      device.download(&row, refused.as(), sizeof row);
      if (row != ~uint64_t{0}) refuse_row(weights.scales_name, uint64_t(e * n) + row, n);
    } else {
      Dequantization x;
      x.layout = ScaleLayout::RowMajor;
      x.rows = n, x.k = k;
      x.elements = codes.as(), x.scales = scales.as(), x.values = to;
      dequantize(device, x);
    }
    progress.detail(fmt::format("{} weights, {} of {}", packed ? "packing" : "dequantizing", e + 1, experts));
  }
  return all;
}

}  // namespace

StoredLayer find_layer(Checkpoint& checkpoint, int64_t layer) {
  struct Model {
    std::string_view type, architecture;
    void (*find)(Checkpoint&, const std::string&, int64_t, StoredLayer&);
  };
  constexpr Model kModels[] = {{"gpt_oss", "GptOssForCausalLM", find_gpt_oss},
                               {"qwen3_moe", "Qwen3MoeForCausalLM", find_qwen3},
                               {"mixtral", "MixtralForCausalLM", find_mixtral},
                               {"deepseek_v3", "DeepseekV3ForCausalLM", find_deepseek_v3}};
  const ModelConfig& config = checkpoint.config();
  const std::string type = config.text("model_type", ""), architecture = config.first_text("architectures");
  for (const Model& model : kModels) {
    if (type.empty() ? architecture != model.architecture : type != model.type) continue;
    const int64_t layers = config.integer("num_hidden_layers", 1, kMostLayers);
    if (layer < 0 || layer >= layers)
      throw InputError(fmt::format("--layer: {} is not one of the model's, 0 to {}", layer, layers - 1));
    StoredLayer found;
    found.up.gated = true;
    model.find(checkpoint, fmt::format("model.layers.{}.", layer), layer, found);
    return found;
  }
  const char* const key = type.empty() ? "architectures" : "model_type";
  config.refuse(fmt::format("{} is \"{}\", only gpt_oss, qwen3_moe, mixtral and deepseek_v3 are supported", key,
                            type.empty() ? architecture : type));
}

Buffer load_weights(const Device& device, const StoredWeights& weights, OperandFormat to, Progress& progress) {
  if (weights.format == OperandFormat::Bf16) return load_bf16(device, weights, progress);
  return load_mxfp4(device, weights, to == OperandFormat::Mxfp4, progress);
}

}  // namespace moxie::cli
