// SPDX-License-Identifier: Apache-2.0
// moxie demo: the first product of a GPT-OSS-20B expert layer with bias and activation in one kernel, on whatever
// device is there. The result is checked against double precision. In MXFP4 are the weights of a checkpoint, which are
// packed first, and on sm_100a operands and output.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

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

// The weights take a gigabyte, those of MXFP4 a quarter of it, so they are made, uploaded and checked expert by expert.
Mxfp4Weights mxfp4_weights_of(int expert) { return {kSeed + 200 + 2 * static_cast<uint64_t>(expert), kOutputs}; }
std::vector<uint16_t> weights_of(int expert, bool mxfp4) {
  if (!mxfp4) return random_bf16(kSeed + 100 + static_cast<uint64_t>(expert), kOutputs * kHidden, 0.1f);
  const Mxfp4Weights weights = mxfp4_weights_of(expert);
  return to_bf16(weights.codes.data(), weights.scales.data(), kOutputs, kHidden);
}

// Makes the weights of all experts in device memory, packed where they are of MXFP4. Packing takes memory for the
// checkpoint's tensors of one expert at a time.
Buffer upload_weights(const Device& device, bool mxfp4) {
  const size_t bytes = mxfp4 ? packed_weight_bytes(1, kOutputs, kHidden) : kOutputs * kHidden * 2;
  Buffer all(device, kExperts * bytes);
  for (int expert = 0; expert < kExperts; ++expert) {
    uint8_t* const to = all.as<uint8_t>() + static_cast<size_t>(expert) * bytes;
    if (mxfp4) {
      const Mxfp4Weights weights = mxfp4_weights_of(expert);
      const Buffer codes(device, weights.codes), scales(device, weights.scales);
      pack_weights(device, {{1, kOutputs, kHidden, true, GateLayout::Interleaved}, codes.as(), scales.as(), to});
      device.synchronize();
    } else {
      const auto weights = weights_of(expert, false);
      device.upload(to, weights.data(), bytes);
    }
  }
  return all;
}

// Activations of bf16 by weights of bf16 or MXFP4.
int run_layer(const Device& device, std::optional<Progress>& running, int tokens, bool mxfp4) {
  Progress& progress = *running;
  const bool simulated = device.info().simulated;
  if (tokens == 0) tokens = simulated ? kTokensOnSimulator : kTokensOnGpu;
  const Routing routing = timing::route(kSeed, tokens, kExperts, kTop);
  const auto rows = static_cast<int64_t>(routing.tokens.size());

  GemmDescription description;
  description.groups = Offsets{kExperts, rows};
  description.n = kOutputs;
  description.k = kHidden;
  description.bias = true;
  description.activation = swiglu_oai();
  if (mxfp4) description.b_format = OperandFormat::Mxfp4;

  progress.step("compiling the kernel, or loading it from the cache");
  const GroupedGemm gemm(device, description);

  progress.step(fmt::format("making {} experts of {} x {}", kExperts, kOutputs, kHidden));
  const auto hidden = random_bf16(kSeed + 1, tokens * kHidden, 1.7f);
  const auto bias = random_bf16(kSeed + 2, kExperts * kOutputs, 1.0f);
  std::vector<uint16_t> a(static_cast<size_t>(rows * kHidden));
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(a.data() + row * kHidden, hidden.data() + routing.tokens[row] * kHidden, kHidden * 2);
  }
  const Buffer device_a(device, a), device_bias(device, bias), device_ends(device, routing.ends);
  const Buffer device_b = upload_weights(device, mxfp4);
  std::vector<uint16_t> out(static_cast<size_t>(rows * kHidden));
  const Buffer device_out(device, out.size() * 2);
  // 0xffff is a NaN, with which an element that is not written fails the check.
  device.fill(device_out.as(), 0xff, device_out.bytes());

  const GemmTensors tensors{.a = {device_a.as()},
                            .b = {device_b.as()},
                            .bias = device_bias.as(),
                            .out = {device_out.as()},
                            .rows = {.ends = device_ends.as<int32_t>()}};
  const Workspace workspace(device, gemm.workspace_bytes());

  progress.step(simulated ? "running on the simulator" : "running");
  double seconds = seconds_of([&] {
    gemm.run(tensors, workspace);
    device.synchronize();
  });
  if (!simulated) seconds = timing::launch_seconds(device, [&](int) { gemm.run(tensors, workspace); });
  device.download(out.data(), device_out.as(), out.size() * 2);

  progress.step("checking in double precision");
  reference::Comparison comparison;
  int empty = 0;
  for (int expert = 0; expert < kExperts; ++expert) {
    const int64_t first = expert == 0 ? 0 : routing.ends[expert - 1], count = routing.ends[expert] - first;
    if (count == 0) {
      ++empty;
      continue;
    }
    progress.detail(fmt::format("checking expert {} of {} in double precision", expert + 1, kExperts));
    const auto weights = weights_of(expert, mxfp4);
    const auto pre = reference::product({a.data() + first * kHidden, kHidden, weights.data(), kHidden,
                                         bias.data() + expert * kOutputs, count, kOutputs, kHidden},
                                        worker_threads());
    const auto expected = reference::activate_all(description.activation, description.gate, pre, count, kOutputs);
    comparison.add(expected, out.data() + first * kHidden, DataType::Bf16, count, kHidden, kHidden, first);
  }

  running.reset();

  const double flops = 2.0 * static_cast<double>(rows * kOutputs * kHidden);
  fmt::print(
      "GPT-OSS-20B expert layer{}, first product: {} experts ({} of them empty), {} tokens x {} = {} rows, {} x {},\n"
      "bias and {} in one kernel\n\n",
      mxfp4 ? " with a checkpoint's MXFP4 weights, packed" : "", kExperts, empty, tokens, kTop, rows, kOutputs, kHidden,
      describe_activation(description.activation.function, description.gate));
  fmt::print("{:<10} {}\n", "device", device.info().name + (simulated ? " (simulated)" : ""));
  fmt::print("{:<10} {}\n", "kernel", gemm.plan().kernel);
  fmt::print("{:<10} {}\n", "time",
             simulated ? fmt::format("{:.1f} s to simulate", seconds) : fmt::format("{:.3f} ms", seconds * 1e3));
  if (!simulated) fmt::print("{:<10} {:.1f}\n", "TFLOP/s", flops / seconds * 1e-12);
  fmt::print("{:<10} {:.2e} of at most {:.0e} (relative, whole result); worst element {:.2f} of its bound\n", "error",
             comparison.relative_error(), reference::kBf16Bound.frobenius, comparison.worst());
  const bool pass = comparison.pass();
  fmt::print("{:<10} {}\n", "result", pass ? "PASS" : "FAIL: " + comparison.failure());
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
    auto running = std::make_optional<Progress>();
    running->step("opening the device");
    if (!arch->empty()) setenv("MOXIE_SIM_ARCH", arch->c_str(), 1);
    const Device device = blackwell ? open_blackwell() : Device::open();
    if (mxfp4 && device.info().arch == 100) return run_mxfp4(device, running, count);
    return run_layer(device, running, count, mxfp4);
  };
}

}  // namespace moxie::cli
