// SPDX-License-Identifier: Apache-2.0
// moxie demo: a GPT-OSS-20B expert layer, from the router's logits to the weighted sum, on whatever device is there.
// The result is checked against double precision. With --format mxfp4 the weights are those of a checkpoint, which are
// packed first. On sm_100a in MXFP4 it is the first product alone, whose operands and output are quantized.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "bench/timing/buffer.h"
#include "bench/timing/data.h"
#include "bench/timing/host_clock.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "moxie/moxie.h"
#include "reference/comparison.h"
#include "reference/formats.h"
#include "reference/product.h"

namespace moxie::cli {

namespace {

using timing::Buffer;
using timing::random_bf16;
using timing::random_bytes;
using timing::Routing;
using timing::seconds_of;
using timing::worker_threads;

constexpr int kExperts = 32, kTop = 4;
constexpr int64_t kHidden = 2880, kOutputs = 2 * 2880;
constexpr int kTokensOnGpu = 4096, kTokensOnSimulator = 32;
constexpr int kMostChecked = 512;  // tokens, in double precision
constexpr uint64_t kSeed = 20;

// Returns rows of MXFP4 in bf16, which holds them exactly.
std::vector<uint16_t> to_bf16(const uint8_t* elements, const uint8_t* scales, int64_t rows, int64_t k) {
  std::vector<uint16_t> values(static_cast<size_t>(rows * k));
  std::vector<float> row(static_cast<size_t>(k));
  for (int64_t r = 0; r < rows; ++r) {
    reference::dequantize_row(DataType::Mxfp4, elements + r * k / 2, scales + r * (k / kScaleBlock), k, 1, row.data());
    for (int64_t i = 0; i < k; ++i)
      values[static_cast<size_t>(r * k + i)] = reference::float_to_bf16(row[static_cast<size_t>(i)]);
  }
  return values;
}

// Rows of MXFP4 weights as a checkpoint has them: codes [rows, K / 2], scales [rows, K / 32].
struct Mxfp4Weights {
  std::vector<uint8_t> codes, scales;

  Mxfp4Weights(uint64_t seed, int64_t rows)
      : codes(random_bytes(seed, rows * kHidden / 2)), scales(random_bytes(seed + 1, rows * kHidden / kScaleBlock)) {
    for (uint8_t& scale : scales) scale = static_cast<uint8_t>(119 + scale % 3);  // weights up to 0.1
  }
};

// One of a layer's two products: its weights [kExperts, n, kHidden] and bias [kExperts, n].
struct Weights {
  int64_t n;
  uint64_t seed;
  bool mxfp4, gated;
  std::vector<uint16_t> bias = random_bf16(seed, kExperts* n, 0.5f);

  // All take more than a gigabyte, those of MXFP4 a quarter of it, so they are made, uploaded and checked expert by
  // expert.
  Mxfp4Weights mxfp4_of(int expert) const { return {seed + 200 + 2 * static_cast<uint64_t>(expert), n}; }
  std::vector<uint16_t> of(int expert) const {
    if (!mxfp4) return random_bf16(seed + 100 + static_cast<uint64_t>(expert), n * kHidden, 0.1f);
    const Mxfp4Weights weights = mxfp4_of(expert);
    return to_bf16(weights.codes.data(), weights.scales.data(), n, kHidden);
  }

  // Makes in device memory those of the experts that `wanted` marks, packed where they are of MXFP4. Packing takes
  // memory for the checkpoint's tensors of one expert at a time.
  Buffer upload(const Device& device, const std::vector<bool>& wanted) const {
    const size_t bytes = mxfp4 ? packed_weight_bytes(1, n, kHidden) : static_cast<size_t>(n * kHidden * 2);
    Buffer all(device, kExperts * bytes);
    for (int expert = 0; expert < kExperts; ++expert) {
      if (!wanted[static_cast<size_t>(expert)]) continue;
      uint8_t* const to = all.as<uint8_t>() + static_cast<size_t>(expert) * bytes;
      if (mxfp4) {
        const Mxfp4Weights weights = mxfp4_of(expert);
        const Buffer codes(device, weights.codes), scales(device, weights.scales);
        pack_weights(device, {{1, n, kHidden, gated, GateLayout::Interleaved}, codes.as(), scales.as(), to});
        device.synchronize();
      } else {
        const auto weights = of(expert);
        device.upload(to, weights.data(), bytes);
      }
    }
    return all;
  }
};

// The router's logits [tokens, kExperts]. The popularity of experts falls off as 1 / rank, and every sixth has no
// token.
std::vector<uint16_t> make_logits(int tokens) {
  std::vector<uint16_t> logits = random_bf16(kSeed + 4, int64_t{tokens} * kExperts, 2);
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto expert = static_cast<int>(i % kExperts);
    const float popularity = expert % 6 == 5 ? -50.0f : -std::log(static_cast<float>(expert + 1));
    logits[i] = reference::float_to_bf16(reference::bf16_to_float(logits[i]) + popularity);
  }
  return logits;
}

// What a router of GPT-OSS makes of a token's logits.
struct Chosen {
  int32_t ids[kTop];
  double weights[kTop];
};
Chosen choose_experts(const uint16_t* logits) {
  std::vector<int32_t> order(kExperts);
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](int32_t expert) { return reference::bf16_to_float(logits[expert]); };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
  Chosen chosen;
  double sum = 0;
  for (int j = 0; j < kTop; ++j) {
    chosen.ids[j] = order[static_cast<size_t>(j)];
    sum += chosen.weights[j] = std::exp(double{logit(chosen.ids[j])} - logit(order[0]));
  }
  for (double& weight : chosen.weights) weight /= sum;
  return chosen;
}

// The layer's result for tokens 0, `step`, 2 * step, ..., in double precision but for the two roundings of a pair's row
// to bf16: [checked, kHidden].
std::vector<double> reference_layer(const std::vector<uint16_t>& x, const std::vector<Chosen>& chosen, int step,
                                    const Weights& up, const Weights& down, Progress& progress) {
  const auto tokens = static_cast<int64_t>(chosen.size());
  std::vector<double> y(static_cast<size_t>((tokens + step - 1) / step * kHidden));
  for (int expert = 0; expert < kExperts; ++expert) {
    progress.detail(fmt::format("checking expert {} of {} in double precision", expert + 1, kExperts));
    std::vector<std::pair<int64_t, double>> pairs;  // a checked token and its weight
    std::vector<uint16_t> rows;
    for (int64_t t = 0; t < tokens; t += step) {
      for (int j = 0; j < kTop; ++j) {
        if (chosen[static_cast<size_t>(t)].ids[j] != expert) continue;
        pairs.emplace_back(t / step, chosen[static_cast<size_t>(t)].weights[j]);
        rows.insert(rows.end(), x.begin() + t * kHidden, x.begin() + (t + 1) * kHidden);
      }
    }
    const auto count = static_cast<int64_t>(pairs.size());
    if (count == 0) continue;
    const auto product = [&](const std::vector<uint16_t>& a, const Weights& of) {
      const std::vector<uint16_t> weights = of.of(expert);
      return reference::product(
          {a.data(), kHidden, weights.data(), kHidden, of.bias.data() + expert * of.n, count, of.n, kHidden},
          worker_threads());
    };
    const auto rounded = [](double value) { return reference::float_to_bf16(static_cast<float>(value)); };
    const std::vector<double> inner =
        reference::activate_all(swiglu_oai(), GateLayout::Interleaved, product(rows, up), count, up.n);
    std::vector<uint16_t> between;
    for (const double value : inner) between.push_back(rounded(value));
    const std::vector<double> behind = product(between, down);
    for (size_t pair = 0; pair < pairs.size(); ++pair) {
      const auto [token, weight] = pairs[pair];
      for (int64_t i = 0; i < kHidden; ++i) {
        y[static_cast<size_t>(token * kHidden + i)] +=
            weight * reference::bf16_to_float(rounded(behind[pair * kHidden + static_cast<size_t>(i)]));
      }
    }
  }
  return y;
}

// The layer on tokens of bf16, with weights of bf16 or MXFP4.
int run_layer(const Device& device, std::optional<Progress>& running, int tokens, bool mxfp4) {
  Progress& progress = *running;
  const bool simulated = device.info().simulated;
  if (tokens == 0) tokens = simulated ? kTokensOnSimulator : kTokensOnGpu;

  ExpertLayerDescription d;
  d.experts = kExperts, d.top_k = kTop;
  d.hidden = kHidden, d.width = kHidden;
  if (mxfp4) d.weights = OperandFormat::Mxfp4;
  d.activation = swiglu_oai();
  d.up_bias = d.down_bias = true;
  d.router = RouterDescription{.logits_type = DataType::Bf16};
  d.max_tokens = d.expected_tokens.emplace(tokens);

  progress.step("compiling the kernels, or loading them from the cache");
  const ExpertLayer layer(device, d);

  const std::vector<uint16_t> x = random_bf16(kSeed + 1, tokens * kHidden, 1.7f), logits = make_logits(tokens);
  std::vector<Chosen> chosen;
  std::vector<int64_t> rows(kExperts);
  for (size_t token = 0; token < static_cast<size_t>(tokens); ++token) {
    chosen.push_back(choose_experts(logits.data() + token * kExperts));
    for (const int32_t expert : chosen.back().ids) ++rows[static_cast<size_t>(expert)];
  }
  // The simulator would take most of its time to pack what no token reads.
  std::vector<bool> wanted(kExperts, true);
  if (simulated) std::transform(rows.begin(), rows.end(), wanted.begin(), [](int64_t count) { return count > 0; });

  progress.step(fmt::format("making {} of {} experts", std::count(wanted.begin(), wanted.end(), true), kExperts));
  const Weights up{kOutputs, kSeed, mxfp4, true}, down{kHidden, kSeed + 1000, mxfp4, false};
  const Buffer device_x(device, x), device_logits(device, logits);
  const Buffer device_up = up.upload(device, wanted), up_bias(device, up.bias);
  const Buffer device_down = down.upload(device, wanted), down_bias(device, down.bias);
  const auto pairs = static_cast<size_t>(tokens) * kTop;
  const Buffer ids(device, pairs * 4), out(device, x.size() * 2);
  // 0xffff is a NaN, with which an element that is not written fails the check.
  device.fill(out.as(), 0xff, out.bytes());
  const Workspace workspace(device, layer.workspace_bytes());

  ExpertLayerTensors t;
  t.tokens = tokens;
  t.x.data = device_x.as(), t.logits = device_logits.as();
  t.up.data = device_up.as(), t.up_bias = up_bias.as();
  t.down.data = device_down.as(), t.down_bias = down_bias.as();
  t.chosen_ids = ids.as<int32_t>(), t.out.data = out.as();

  progress.step(simulated ? "running on the simulator" : "running");
  double seconds = seconds_of([&] {
    layer.run(t, workspace);
    device.synchronize();
  });
  if (!simulated) seconds = timing::launch_seconds(device, [&](int) { layer.run(t, workspace); });
  std::vector<uint16_t> y(x.size());
  std::vector<int32_t> got_ids(pairs);
  device.download(y.data(), out.as(), out.bytes());
  device.download(got_ids.data(), ids.as(), ids.bytes());

  progress.step("checking in double precision");
  int64_t misrouted = 0;
  for (size_t token = 0; token < static_cast<size_t>(tokens); ++token) {
    for (size_t j = 0; j < kTop; ++j) misrouted += got_ids[token * kTop + j] != chosen[token].ids[j];
  }
  const int step = (tokens + kMostChecked - 1) / kMostChecked;
  const std::vector<double> expected = reference_layer(x, chosen, step, up, down, progress);
  const auto checked = static_cast<int64_t>(expected.size()) / kHidden;
  reference::Comparison comparison;
  comparison.add(expected, y.data(), DataType::Bf16, checked, kHidden, step * kHidden);
  running.reset();

  const auto empty = std::count(rows.begin(), rows.end(), 0);
  const double flops = 2.0 * static_cast<double>(pairs) * static_cast<double>((kOutputs + kHidden) * kHidden);
  const ExpertLayerPlan plan = layer.plan();
  fmt::print(
      "GPT-OSS-20B expert layer{}: {} experts ({} of them empty), {} tokens x {} = {} rows, width {},\n"
      "router, biases, {}, weighted sum\n\n",
      mxfp4 ? " with a checkpoint's MXFP4 weights, packed" : "", kExperts, empty, tokens, kTop, pairs, kHidden,
      describe_activation(d.activation.function, d.gate));
  fmt::print("{:<10} {}\n", "device", device.info().name + (simulated ? " (simulated)" : ""));
  fmt::print("{:<10} {}\n{:<10} {}\n", "up", plan.up.kernel, "down", plan.down.kernel);
  fmt::print("{:<10} {}\n", "time",
             simulated ? fmt::format("{:.1f} s to simulate", seconds)
                       : fmt::format("{:.3f} ms\n{:<10} {:.1f}", seconds * 1e3, "TFLOP/s", flops / seconds * 1e-12));
  fmt::print("{:<10} {} of {} choices differ\n", "router", misrouted, pairs);
  fmt::print("{:<10} {:.2e} of at most {:.0e} (relative, {} of {} tokens); worst element {:.2f} of its bound\n",
             "error", comparison.relative_error(), reference::kBf16Bound.frobenius, checked, tokens,
             comparison.worst());
  const bool pass = comparison.pass() && misrouted == 0;
  fmt::print("{:<10} {}\n", "result",
             pass                ? "PASS"
             : comparison.pass() ? "FAIL: the router"
                                 : "FAIL: " + comparison.failure());
  return pass ? 0 : 1;
}

// Opens a GPU of sm_100a, or the simulator where there is none.
Device open_blackwell() {
  const Device device = Device::open();
  return device.info().arch == 100 ? device : Device::open(DeviceKind::Sim);
}

// The demo on sm_100a computes 4 of the 32 experts, since it mostly runs on the simulator. Three of them get tokens.
constexpr int kMxfp4Experts = 4, kMxfp4Top = 2, kMxfp4Tokens = 12;

// The float32 output is checked in double precision, and the quantized one bit for bit against its rounding.
int run_mxfp4(const Device& device, std::optional<Progress>& running, int tokens) {
  Progress& progress = *running;
  if (tokens == 0) tokens = kMxfp4Tokens;
  const Routing routing = timing::route(kSeed, tokens, kMxfp4Experts, kMxfp4Top);
  const auto rows = static_cast<int64_t>(routing.tokens.size());
  GemmDescription description;
  description.format = OperandFormat::Mxfp4;
  description.groups = Offsets{kMxfp4Experts, rows};
  description.n = kOutputs;
  description.k = kHidden;
  description.bias = true;
  description.activation = swiglu_oai();
  description.out = DataType::Mxfp4;
  GemmDescription plain_description = description;
  plain_description.out = DataType::F32;

  progress.step("compiling the kernels, or loading them from the cache");
  const GroupedGemm gemm(device, description), plain(device, plain_description);

  progress.step(fmt::format("making {} experts of {} x {}", kMxfp4Experts, kOutputs, kHidden));
  constexpr int64_t kWeightRows = kMxfp4Experts * kOutputs, kColumns = kHidden / kScaleBlock;
  const auto [weights, weight_scales] = Mxfp4Weights(kSeed + 3, kWeightRows);
  const auto bias = random_bf16(kSeed + 2, kWeightRows, 1.0f);
  const auto hidden = random_bf16(kSeed + 1, tokens * kHidden, 1.7f);
  std::vector<uint16_t> a(static_cast<size_t>(rows * kHidden));
  for (int64_t row = 0; row < rows; ++row)
    std::memcpy(a.data() + row * kHidden, hidden.data() + routing.tokens[row] * kHidden, kHidden * 2);

  const Buffer ends(device, routing.ends), device_bias(device, bias), device_weights(device, weights);
  const Buffer row_major(device, weight_scales), values(device, a);
  const Buffer b_scales(device, b_scale_bytes(description)), device_a_scales(device, a_scale_bytes(description));
  const Buffer device_a(device, static_cast<size_t>(rows * kHidden / 2));
  ScaleBlocking blocking;
  blocking.from = row_major.as(), blocking.to = b_scales.as();
  blocking.groups = kMxfp4Experts, blocking.rows = kOutputs, blocking.k = kHidden;
  block_scales(device, blocking);
  Quantization quantization;
  quantization.groups = kMxfp4Experts, quantization.rows = rows, quantization.k = kHidden;
  quantization.offsets = ends.as<int32_t>();
  quantization.values = values.as(), quantization.elements = device_a.as(), quantization.scales = device_a_scales.as();
  quantize(device, quantization);

  const auto launch = [&](const GroupedGemm& which, const Tensor& out) {
    const Workspace workspace(device, which.workspace_bytes());
    which.run({.a = {device_a.as(), 0, device_a_scales.as()},
               .b = {device_weights.as(), 0, b_scales.as()},
               .bias = device_bias.as(),
               .out = out,
               .rows = {.ends = ends.as<int32_t>()}},
              workspace);
    device.synchronize();
  };
  std::vector<float> out(static_cast<size_t>(rows * kHidden));
  std::vector<uint8_t> elements(out.size() / 2), scales(out_scale_bytes(description));
  const Buffer device_out(device, out.size() * 4), device_elements(device, elements.size());
  const Buffer device_scales(device, scales.size());
  device.fill(device_out.as(), 0xff, device_out.bytes());
  device.fill(device_elements.as(), 0xff, device_elements.bytes());
  device.fill(device_scales.as(), 0xff, device_scales.bytes());
  const bool simulated = device.info().simulated;
  progress.step(simulated ? "running on the simulator" : "running");
  const double seconds = seconds_of([&] { launch(gemm, {device_elements.as(), 0, device_scales.as()}); });
  launch(plain, {device_out.as()});
  device.download(out.data(), device_out.as(), out.size() * 4);
  device.download(elements.data(), device_elements.as(), elements.size());
  device.download(scales.data(), device_scales.as(), scales.size());

  progress.step("checking in double precision");
  std::vector<uint8_t> a_elements(static_cast<size_t>(rows * kHidden / 2)),
      a_scales(static_cast<size_t>(rows * kColumns));
  std::vector<float> row(static_cast<size_t>(kHidden));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < kHidden; ++i)
      row[static_cast<size_t>(i)] = reference::bf16_to_float(a[static_cast<size_t>(r * kHidden + i)]);
    reference::quantize_row(DataType::Mxfp4, row.data(), kHidden, 1, a_elements.data() + r * kHidden / 2,
                            a_scales.data() + r * kColumns);
  }
  reference::Comparison comparison(reference::Bound{1e-4, 1, 1e-4});
  int64_t different = 0, first_tile = 0;
  int empty = 0;
  for (int expert = 0; expert < kMxfp4Experts; ++expert) {
    const int64_t first = expert == 0 ? 0 : routing.ends[expert - 1], count = routing.ends[expert] - first;
    if (count == 0) {
      ++empty;
      continue;
    }
    const auto tokens_of =
        to_bf16(a_elements.data() + first * kHidden / 2, a_scales.data() + first * kColumns, count, kHidden);
    const auto weights_of_expert = to_bf16(weights.data() + expert * kOutputs * kHidden / 2,
                                           weight_scales.data() + expert * kOutputs * kColumns, kOutputs, kHidden);
    const auto pre = reference::product({tokens_of.data(), kHidden, weights_of_expert.data(), kHidden,
                                         bias.data() + expert * kOutputs, count, kOutputs, kHidden},
                                        worker_threads());
    const auto expected = reference::activate_all(description.activation, description.gate, pre, count, kOutputs);
    comparison.add(expected, out.data() + first * kHidden, DataType::F32, count, kHidden, kHidden, first);
    std::vector<uint8_t> row_elements(kHidden / 2), row_scales(kColumns);
    for (int64_t r = 0; r < count; ++r) {
      reference::quantize_row(DataType::Mxfp4, out.data() + (first + r) * kHidden, kHidden, 1, row_elements.data(),
                              row_scales.data());
      for (int64_t i = 0; i < kHidden / 2; ++i)
        different +=
            elements[static_cast<size_t>((first + r) * kHidden / 2 + i)] != row_elements[static_cast<size_t>(i)];
      for (int64_t c = 0; c < kColumns; ++c)
        different += scales[static_cast<size_t>(first_tile + blocked_scale_index(r, c, kHidden))] !=
                     row_scales[static_cast<size_t>(c)];
    }
    first_tile += blocked_scale_bytes(count, kHidden);
  }
  running.reset();

  fmt::print(
      "GPT-OSS-20B expert layer in MXFP4, first product: {} of its experts ({} of them empty), {} tokens x {} = {} "
      "rows, {} x {},\nbias, {} and MXFP4 output in one kernel\n\n",
      kMxfp4Experts, empty, tokens, kMxfp4Top, rows, kOutputs, kHidden,
      describe_activation(description.activation.function, description.gate));
  fmt::print("{:<10} {}\n", "device", device.info().name);
  fmt::print("{:<10} {}\n", "kernel", gemm.plan().kernel);
  fmt::print("{:<10} {}\n", "time",
             simulated ? fmt::format("{:.1f} s to simulate", seconds) : fmt::format("{:.3f} ms", seconds * 1e3));
  fmt::print("{:<10} {:.2e} (float32 output, relative, whole result); worst element {:.2f} of its bound\n", "error",
             comparison.relative_error(), comparison.worst());
  fmt::print("{:<10} {} bytes of {} elements and scales differ from the rounded float32 output\n", "quantized",
             different, rows * kHidden);
  const bool pass = comparison.pass() && different == 0;
  fmt::print("{:<10} {}\n", "result",
             pass                ? "PASS"
             : comparison.pass() ? "FAIL: the quantized output"
                                 : "FAIL: " + comparison.failure());
  return pass ? 0 : 1;
}

}  // namespace

Run add_demo(CLI::App& command) {
  auto tokens = std::make_shared<std::optional<int>>();
  auto arch = std::make_shared<std::string>(), format = std::make_shared<std::string>();
  command.add_option("--tokens", *tokens,
                     fmt::format("Tokens, each routed to {} experts; by default {} on a GPU, {} on the simulator; in "
                                 "MXFP4 on sm_100a {}, each routed to {}",
                                 kTop, kTokensOnGpu, kTokensOnSimulator, kMxfp4Tokens, kMxfp4Top));
  command.add_option(
      "--arch", *arch,
      "sm_100a, on the simulator where no such GPU is, or sm_90a, what the simulator is then; by default "
      "whatever device is there");
  command.add_option("--format", *format,
                     "bf16, or mxfp4: on sm_90a weights of a checkpoint, packed, beside activations of bf16; on "
                     "sm_100a four experts with all operands and the output in MXFP4; by default "
                     "mxfp4 with --arch sm_100a, else bf16");
  return [tokens, arch, format] {
    if (*tokens && (**tokens < 1 || **tokens > 1 << 20))
      throw InputError(fmt::format("--tokens: {} is not 1 to {}", **tokens, 1 << 20));
    const int count = tokens->value_or(0);  // 0 is the default of what runs
    const bool blackwell = !arch->empty() && choose("--arch", *arch, {"sm_90a", "sm_100a"}) == 1;
    const bool mxfp4 = format->empty() ? blackwell : choose("--format", *format, {"bf16", "mxfp4"}) == 1;
    auto running = std::make_optional<Progress>("opening the device");
    if (!arch->empty()) setenv("MOXIE_SIM_ARCH", arch->c_str(), 1);
    const Device device = blackwell ? open_blackwell() : Device::open();
    if (mxfp4 && device.info().arch == 100) return run_mxfp4(device, running, count);
    return run_layer(device, running, count, mxfp4);
  };
}

}  // namespace moxie::cli
