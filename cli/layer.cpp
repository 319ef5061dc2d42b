// SPDX-License-Identifier: Apache-2.0
// moxie layer: a whole expert layer of a checkpoint, router and experts. Everything that the files say is checked
// before a device is opened.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "bench/timing/buffer.h"
#include "cli/commands.h"
#include "cli/layer_weights.h"
#include "cli/options.h"
#include "cli/output_file.h"
#include "moxie/gemm.h"
#include "moxie/layer.h"

namespace moxie::cli {

namespace {

using timing::Buffer;

struct LayerOptions {
  std::string checkpoint, x, out_file, weights = "stored", logits = "f32", out_dtype = "f32";
  int64_t layer = 0;
};

DataType bf16_or_f32(const char* option, const std::string& text) {
  return choose(option, text, {"f32", "bf16"}) == 1 ? DataType::Bf16 : DataType::F32;
}

// The router's product. Its columns are a multiple of 8: those past the experts have weights of 0, and nobody reads
// them.
struct Router {
  GroupedGemm gemm;
  Buffer weight, bias, logits;

  Router(const Device& device, const StoredLayer& stored, DataType logits_type, int64_t tokens)
      : gemm(device, describe(stored, logits_type, tokens)) {
    const ExpertLayerDescription& d = stored.description;
    weight = padded(device, stored.router, d.experts * d.hidden, columns() * d.hidden);
    if (stored.router_bias != nullptr) bias = padded(device, stored.router_bias, d.experts, columns());
    logits = Buffer(device, size_t(tokens * columns()) * size_t(size_of(logits_type)));
  }

  static GemmDescription describe(const StoredLayer& stored, DataType logits_type, int64_t tokens) {
    GemmDescription d;
    d.groups = Dense{tokens};
    d.n = (stored.description.experts + 7) / 8 * 8;
    d.k = stored.description.hidden;
    d.bias = stored.router_bias != nullptr;
    d.out = logits_type;
    return d;
  }
  static Buffer padded(const Device& device, const uint8_t* bf16, int64_t count, int64_t all) {
    std::vector<uint8_t> bytes(bf16, bf16 + 2 * count);
    bytes.resize(size_t(2 * all));
    return Buffer(device, bytes);
  }
  int64_t columns() const { return gemm.description().n; }

  void run(const Device& device, const Buffer& x) const {
    const Workspace workspace(device, gemm.workspace_bytes());
    GemmTensors tensors;
    tensors.a.data = x.as(), tensors.b.data = weight.as(), tensors.out.data = logits.as();
    if (gemm.description().bias) tensors.bias = bias.as();
    gemm.run(tensors, workspace);
    device.synchronize();
  }
};

Buffer upload(const Device& device, const uint8_t* bytes, int64_t count) {
  return Buffer(device, std::vector<uint8_t>(bytes, bytes + count));
}

TensorToWrite download(const Device& device, const Buffer& buffer, std::string name, std::string dtype,
                       std::vector<int64_t> shape, int64_t element_bytes) {
  TensorToWrite tensor{std::move(name), std::move(dtype), std::move(shape), {}};
  tensor.data.resize(size_t(tensor.shape[0] * tensor.shape[1] * element_bytes));
  if (!tensor.data.empty()) device.download(tensor.data.data(), buffer.as(), tensor.data.size());
  return tensor;
}

std::vector<TensorToWrite> compute(const StoredLayer& stored, ExpertLayerDescription d, const uint8_t* x_bytes,
                                   int64_t tokens) {
  Progress progress("opening the device");
  const Device device = Device::open();
  d.max_tokens = tokens, d.expected_tokens = tokens;
  progress.step("compiling");
  const ExpertLayer layer(device, d);
  const Router router(device, stored, d.router->logits_type, tokens);

  progress.step("loading weights");
  const Buffer up = load_weights(device, stored.up, d.weights, progress);
  const Buffer down = load_weights(device, stored.down, d.weights, progress);
  Buffer up_bias, down_bias;
  if (d.up_bias) up_bias = upload(device, stored.up_bias, d.experts * stored.up.n * 2);
  if (d.down_bias) down_bias = upload(device, stored.down_bias, d.experts * d.hidden * 2);
  const Buffer correction(device, stored.correction_bias), x = upload(device, x_bytes, tokens * d.hidden * 2);

  const int64_t pairs = tokens * d.top_k;
  const Buffer ids(device, size_t(pairs) * 4), weights(device, size_t(pairs) * 4);
  const Buffer y(device, size_t(tokens * d.hidden * size_of(d.out)));
  const Workspace workspace(device, layer.workspace_bytes(tokens));
  progress.step(device.info().simulated ? "running on the simulator" : "running");
  router.run(device, x);
  ExpertLayerTensors t;
  t.tokens = tokens;
  t.x.data = x.as();
  t.logits = router.logits.as(), t.ld_logits = router.columns();
  if (d.router->correction_bias) t.correction_bias = correction.as<float>();
  t.chosen_ids = ids.as<int32_t>(), t.chosen_weights = weights.as<float>();
  t.up.data = up.as(), t.down.data = down.as(), t.out.data = y.as();
  if (d.up_bias) t.up_bias = up_bias.as();
  if (d.down_bias) t.down_bias = down_bias.as();
  layer.run(t, workspace);
  device.synchronize();

  std::vector<TensorToWrite> tensors;
  tensors.push_back(
      download(device, y, "y", d.out == DataType::F32 ? "F32" : "BF16", {tokens, d.hidden}, size_of(d.out)));
  tensors.push_back(download(device, ids, "experts", "I32", {tokens, d.top_k}, 4));
  tensors.push_back(download(device, weights, "weights", "F32", {tokens, d.top_k}, 4));
  return tensors;
}

int run_layer(const LayerOptions& options) {
  const bool as_bf16 = choose("--weights", options.weights, {"stored", "bf16"}) == 1;
  const DataType logits = bf16_or_f32("--logits", options.logits), out = bf16_or_f32("--out-dtype", options.out_dtype);
  Checkpoint checkpoint(options.checkpoint);
  std::error_code ignored;
  if (std::filesystem::equivalent(options.x, options.out_file, ignored) || checkpoint.holds(options.out_file))
    throw InputError(fmt::format("OUT: {} is an input file", options.out_file));
  check_writable(options.out_file);

  const StoredLayer stored = find_layer(checkpoint, options.layer);
  ExpertLayerDescription d = stored.description;
  if (as_bf16) d.weights = OperandFormat::Bf16;
  d.router->logits_type = logits;
  d.out = out;

  SafetensorsReader file(options.x);
  const auto* entry = file.find("x");
  if (entry == nullptr) throw InputError(fmt::format("{}: tensor 'x' is missing", options.x));
  if (entry->dtype != "BF16" || entry->shape.size() != 2 || entry->shape[1] != d.hidden)
    throw InputError(fmt::format("tensor 'x' is {} {}, it must be BF16 [tokens, {}]", entry->dtype,
                                 shape_text(entry->shape), d.hidden));
  const int64_t tokens = entry->shape[0];
  if (tokens > kMaxRoutedTokens)
    throw InputError(fmt::format("tensor 'x' has {} tokens, at most {} are possible", tokens, kMaxRoutedTokens));
  write_safetensors(options.out_file, compute(stored, d, file.map("x"), tokens));
  return 0;
}

}  // namespace

Run add_layer(CLI::App& command) {
  auto options = std::make_shared<LayerOptions>();
  command
      .add_option("CHECKPOINT", options->checkpoint,
                  "Folder with config.json and model.safetensors, or with model.safetensors.index.json and the files "
                  "that it names: GPT-OSS in bf16 or MXFP4, Qwen3-MoE, Mixtral or DeepSeek-V3 in bf16. Shared experts, "
                  "which DeepSeek-V3 adds to its routed ones, are left out")
      ->required();
  command.add_option("X", options->x, "safetensors file: x [T, H] bf16, the tokens behind the layer's norm")
      ->required();
  command
      .add_option("OUT", options->out_file,
                  "safetensors file to write: y [T, H], and what the router chose, experts [T, k] int32 and weights "
                  "[T, k] float32")
      ->required();
  command.add_option("--layer", options->layer, "Which layer of the model, the first is 0")->required();
  command
      .add_option("--weights", options->weights,
                  "Weights of the experts: stored (MXFP4 stays MXFP4, packed), or bf16 (MXFP4 is dequantized)")
      ->capture_default_str();
  command
      .add_option("--logits", options->logits,
                  "The router's logits: f32, or bf16 (rounded, as by modules of bf16 in PyTorch)")
      ->capture_default_str();
  command.add_option("--out-dtype", options->out_dtype, "Elements of y: f32 or bf16")->capture_default_str();
  return [options] { return run_layer(*options); };
}

}  // namespace moxie::cli
