// SPDX-License-Identifier: Apache-2.0
// A small expert layer: 4 experts share 96 tokens. The first product adds a bias and applies GPT-OSS SwiGLU, the second
// one brings its result back to the hidden size. The experts' token counts are only ever read by the GPU.
#include <moxie/moxie.h>

#include <algorithm>
#include <cstdio>
#include <vector>

int main() try {
  constexpr int64_t kExperts = 4, kTokens = 96, kHidden = 128, kWidth = 192;
  const moxie::Device device = moxie::Device::open();
  std::printf("%s\n", device.info().name.c_str());

  // Planned and compiled once. Without a total in Offsets one object serves every number of tokens.
  const moxie::Offsets groups{.count = kExperts, .total = kTokens};
  const moxie::GroupedGemm up(device, {.groups = groups,
                                       .n = 2 * kWidth,
                                       .k = kHidden,
                                       .bias = true,
                                       .activation = moxie::swiglu_oai({.alpha = 1.702f, .limit = 7.0f})});
  const moxie::GroupedGemm down(device, {.groups = groups, .n = kHidden, .k = kWidth});
  const moxie::Workspace workspace(device, std::max(up.workspace_bytes(), down.workspace_bytes()));
  std::printf("up: %s\ndown: %s\n", up.plan().kernel.c_str(), down.plan().kernel.c_str());

  // In a program all of these are on the GPU already.
  std::vector<moxie::Workspace> memory;
  const auto allocate = [&](size_t bytes) { return memory.emplace_back(device, bytes).data(); };
  const auto upload = [&](const auto& host) {
    void* const to = allocate(host.size() * sizeof(host[0]));
    device.upload(to, host.data(), host.size() * sizeof(host[0]));
    return to;
  };
  constexpr uint16_t kOne = 0x3f80, kSmall = 0x3c00;  // 1 and 1/128 in bf16
  const moxie::ConstTensor x{upload(std::vector<uint16_t>(kTokens * kHidden, kOne))};
  const moxie::ConstTensor w1{upload(std::vector<uint16_t>(kExperts * 2 * kWidth * kHidden, kSmall))};
  const moxie::ConstTensor w2{upload(std::vector<uint16_t>(kExperts * kHidden * kWidth, kSmall))};
  const void* const b1 = upload(std::vector<uint16_t>(kExperts * 2 * kWidth, kOne));
  const void* const ends = upload(std::vector<int32_t>{40, 40, 41, 96});  // the second expert has no token
  const moxie::Tensor h{allocate(kTokens * kWidth * 2)}, y{allocate(kTokens * kHidden * 2)};
  const moxie::Rows rows{.ends = static_cast<const int32_t*>(ends)};

  // Asynchronous, without allocation, and fit for a CUDA graph. The second product may load its weights while the first
  // one ends, since nothing writes them.
  up.run({.a = x, .b = w1, .bias = b1, .out = h, .rows = rows}, workspace);
  down.run({.a = h, .b = w2, .out = y, .rows = rows}, workspace, {.weights_ready = true});

  std::vector<uint16_t> result(kTokens * kHidden);
  device.download(result.data(), y.data, result.size() * 2);
  // The first products are 128 * 1 * 1/128 + 1 = 2, and SwiGLU makes them 2 * sigmoid(1.702 * 2) * (2 + 1) = 5.81, in
  // bf16 5.8125. The second ones are 192 * 5.8125 * 1/128 = 8.71875, which bf16 rounds to 8.75.
  constexpr uint16_t kExpected = 0x410c;
  const bool right = std::all_of(result.begin(), result.end(), [](uint16_t value) { return value == kExpected; });
  std::printf("y[0][0] = %#06x, y[95][127] = %#06x (8.75 is 0x410c)\n", result.front(), result.back());
  return right ? 0 : 1;
} catch (const moxie::Error& error) {
  std::fprintf(stderr, "%s: %s\n", moxie::to_string(error.code()).data(), error.what());
  return 1;
}
