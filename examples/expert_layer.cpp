// SPDX-License-Identifier: Apache-2.0
// A whole expert layer in one call: each of 96 tokens goes to two of eight experts, with SwiGLU as in Qwen3 or Mixtral.
// The first number of the result is computed once more on the host, in double precision.
#include <moxie/moxie.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

int main() try {
  constexpr int64_t kTokens = 96, kExperts = 8, kTopK = 2, kHidden = 128, kWidth = 192;
  const moxie::Device device = moxie::Device::open();
  // Planned and compiled once. It takes any number of tokens up to max_tokens.
  moxie::ExpertLayerDescription description{.experts = kExperts, .top_k = kTopK, .hidden = kHidden, .width = kWidth};
  description.gate = moxie::GateLayout::Split, description.out = moxie::DataType::F32;
  description.max_tokens = kTokens;
  const moxie::ExpertLayer layer(device, description);
  const moxie::Workspace workspace(device, layer.workspace_bytes());

  // In a program all of these are on the GPU already.
  std::vector<moxie::Workspace> memory;
  const auto upload = [&](const auto& host) {
    memory.emplace_back(device, host.size() * sizeof(host[0]));
    device.upload(memory.back().data(), host.data(), host.size() * sizeof(host[0]));
    return memory.back().data();
  };
  // Random numbers that are exact in bf16, the upper half of their float.
  std::mt19937 random;
  const auto draw = [&](std::vector<float>& values, float scale) {
    std::vector<uint16_t> halves;
    for (float& value : values) {
      value = scale * float(int(random() % 33) - 16);
      halves.push_back(uint16_t(std::bit_cast<uint32_t>(value) >> 16));
    }
    return moxie::ConstTensor{upload(halves)};
  };
  std::vector<float> x(kTokens * kHidden), up(kExperts * 2 * kWidth * kHidden), down(kExperts * kHidden * kWidth);
  std::vector<float> weights, y(kTokens * kHidden);
  std::vector<int32_t> ids;
  for (int t = 0; t < kTokens; ++t) {
    const float weight = float(t % 7 + 1) / 8;
    weights.insert(weights.end(), {weight, 1 - weight});
    ids.insert(ids.end(), {t % int{kExperts}, (3 * t + 1) % int{kExperts}});
  }
  moxie::ExpertLayerTensors tensors{.tokens = kTokens, .x = draw(x, 1 / 8.0f), .topk_ids = upload(ids)};
  tensors.topk_weights = static_cast<const float*>(upload(weights));
  tensors.up = draw(up, 1 / 64.0f), tensors.down = draw(down, 1 / 64.0f);
  tensors.out.data = upload(y);

  // Asynchronous, without allocation, and fit for a CUDA graph. The GPU alone reads which experts were chosen.
  layer.run(tensors, workspace);
  device.download(y.data(), tensors.out.data, y.size() * sizeof(float));

  double expected = 0;
  for (int64_t j = 0; j < kTopK; ++j) {
    for (int64_t i = 0; i < kWidth; ++i) {
      const float* const rows = &up[(ids[j] * 2 * kWidth + i) * kHidden];  // the gate's; those of `up` are behind them
      double gate = 0, linear = 0;
      for (int64_t h = 0; h < kHidden; ++h) gate += x[h] * rows[h], linear += x[h] * rows[kWidth * kHidden + h];
      expected += weights[j] * gate / (1 + std::exp(-gate)) * linear * down[ids[j] * kHidden * kWidth + i];
    }
  }
  std::printf("%s\ny[0][0] = %g, in double precision %g\n", device.info().name.c_str(), double(y[0]), expected);
  return std::abs(y[0] - expected) < 0.02 * std::abs(expected) ? 0 : 1;
} catch (const moxie::Error& error) {
  std::fprintf(stderr, "%s: %s\n", moxie::to_string(error.code()).data(), error.what());
  return 1;
}
