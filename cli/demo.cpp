// moxie demo: the first product of a GPT-OSS-20B expert layer with bias and activation in one kernel, on whatever
// device is there, checked against double precision.
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "cli/buffer.h"
#include "cli/commands.h"
#include "cli/data.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/reference.h"
#include "cli/safetensors.h"
#include "cli/timing.h"
#include "moxie/moxie.h"

namespace moxie::cli {

namespace {

constexpr int kExperts = 32, kTop = 4;
constexpr int64_t kHidden = 2880, kOutputs = 2 * 2880;
constexpr int kTokensOnGpu = 4096, kTokensOnSimulator = 32;
constexpr uint64_t kSeed = 20;

// The weights are a gigabyte: made, uploaded and checked expert by expert.
std::vector<uint16_t> weights_of(int expert) {
  return random_bf16(kSeed + 100 + static_cast<uint64_t>(expert), kOutputs * kHidden, 0.1f);
}

int run(int tokens) {
  auto running = std::make_optional<Progress>();
  Progress& progress = *running;
  progress.step("opening the device");
  const Device device = Device::open();
  const bool simulated = device.info().simulated;
  if (tokens == 0) tokens = simulated ? kTokensOnSimulator : kTokensOnGpu;
  const Routing routing = route(kSeed, tokens, kExperts, kTop);
  const auto rows = static_cast<int64_t>(routing.tokens.size());

  GemmProblem problem;
  problem.grouping = Grouping::Offsets;
  problem.groups = kExperts;
  problem.m = rows;
  problem.n = kOutputs;
  problem.k = kHidden;
  problem.bias = true;
  problem.activation = Activation::SwigluOai;
  problem.gate = GateLayout::Interleaved;
  problem.out = DataType::Bf16;

  progress.step("compiling the kernel, or loading it from the cache");
  prepare(device, problem);

  progress.step(fmt::format("making {} experts of {} x {}", kExperts, kOutputs, kHidden));
  const auto hidden = random_bf16(kSeed + 1, tokens * kHidden, 1.7f);
  const auto bias = random_bf16(kSeed + 2, kExperts * kOutputs, 1.0f);
  std::vector<uint16_t> a(static_cast<size_t>(rows * kHidden));
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(a.data() + row * kHidden, hidden.data() + routing.tokens[row] * kHidden, kHidden * 2);
  }
  const Buffer device_a(device, a), device_bias(device, bias), device_ends(device, routing.ends);
  const Buffer device_b(device, static_cast<size_t>(kExperts * kOutputs * kHidden * 2));
  for (int expert = 0; expert < kExperts; ++expert) {
    const auto weights = weights_of(expert);
    device.upload(device_b.as<uint16_t>() + expert * kOutputs * kHidden, weights.data(), weights.size() * 2);
  }
  std::vector<uint16_t> out(static_cast<size_t>(rows * kHidden));
  const Buffer device_out(device, out.size() * 2);
  device.fill(device_out.as(), 0xff, device_out.bytes());  // NaN: an element that is not written fails the check

  GemmArguments arguments;
  arguments.a = device_a.as();
  arguments.b = device_b.as();
  arguments.bias = device_bias.as();
  arguments.out = device_out.as();
  arguments.sizes = device_ends.as<int32_t>();
  const Buffer workspace(device, workspace_bytes(device, problem));
  arguments.workspace = workspace.as();
  arguments.workspace_bytes = workspace.bytes();

  progress.step(simulated ? "running on the simulator" : "running");
  double seconds = seconds_of([&] {
    gemm(device, problem, arguments);
    device.synchronize();
  });
  if (!simulated) seconds = launch_seconds(device, [&](int) { gemm(device, problem, arguments); });
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
    const auto weights = weights_of(expert);
    const auto pre = reference::product({a.data() + first * kHidden, kHidden, weights.data(), kHidden,
                                         bias.data() + expert * kOutputs, count, kOutputs, kHidden},
                                        worker_threads());
    const auto expected = reference::activate_all(problem.activation, problem.gate, pre, count, kOutputs);
    comparison.add(expected, out.data() + first * kHidden, DataType::Bf16, count, kHidden, kHidden, first);
  }

  running.reset();

  const double flops = 2.0 * static_cast<double>(rows * kOutputs * kHidden);
  fmt::print(
      "GPT-OSS-20B expert layer, first product: {} experts ({} of them empty), {} tokens x {} = {} rows, {} x {},\n"
      "bias and {} in one kernel\n\n",
      kExperts, empty, tokens, kTop, rows, kOutputs, kHidden, name_of(problem.activation, problem.gate));
  fmt::print("{:<10} {}\n", "device", device.info().name + (simulated ? " (simulated)" : ""));
  fmt::print("{:<10} {}\n", "kernel", plan_headline(problem, device.info()));
  fmt::print("{:<10} {}\n", "time",
             simulated ? fmt::format("{:.1f} s to simulate", seconds) : fmt::format("{:.3f} ms", seconds * 1e3));
  if (!simulated) fmt::print("{:<10} {:.1f}\n", "TFLOP/s", flops / seconds * 1e-12);
  fmt::print("{:<10} {:.2e} of at most {:.0e} (relative, whole result); worst element {:.2f} of its bound\n", "error",
             comparison.relative_error(), reference::kBf16Bound.frobenius, comparison.worst());
  const bool pass = comparison.pass();
  fmt::print("{:<10} {}\n", "result", pass ? "PASS" : "FAIL: " + comparison.failure());
  return pass ? 0 : 1;
}

}  // namespace

Run add_demo(CLI::App& command) {
  auto tokens = std::make_shared<int>(0);
  command.add_option("--tokens", *tokens,
                     fmt::format("Tokens, each routed to {} experts; by default {} on a GPU, {} on the simulator", kTop,
                                 kTokensOnGpu, kTokensOnSimulator));
  return [tokens] {
    if (*tokens < 0 || *tokens > 1 << 20)
      throw InputError(fmt::format("--tokens: {} is not 1 to {}", *tokens, 1 << 20));
    return run(*tokens);
  };
}

}  // namespace moxie::cli
