// The first product of a small expert layer: 4 experts share 96 tokens, gate and up interleaved, GPT-OSS SwiGLU.
// The experts' token counts are only ever read by the GPU.
#include <moxie/moxie.h>

#include <cstdio>
#include <vector>

int main() try {
  constexpr int64_t kExperts = 4, kTokens = 96, kHidden = 128, kWidth = 192;  // out is [kTokens, kWidth]
  const moxie::Device device = moxie::Device::open();
  std::printf("%s\n", device.info().name.c_str());

  moxie::GemmProblem problem;
  problem.grouping = moxie::Grouping::Offsets;
  problem.groups = kExperts;
  problem.m = kTokens;
  problem.n = 2 * kWidth;
  problem.k = kHidden;
  problem.bias = true;
  problem.activation = moxie::Activation::SwigluOai;

  // In a program these are already on the GPU.
  auto upload = [&](const auto& host) {
    void* memory = device.allocate(host.size() * sizeof(host[0]));
    device.upload(memory, host.data(), host.size() * sizeof(host[0]));
    return memory;
  };
  constexpr uint16_t kOne = 0x3f80, kSmall = 0x3c00;  // 1 and 1/128 in bf16
  const std::vector<uint16_t> tokens(kTokens * kHidden, kOne);
  const std::vector<uint16_t> weights(kExperts * 2 * kWidth * kHidden, kSmall);
  const std::vector<uint16_t> bias(kExperts * 2 * kWidth, kOne);
  const std::vector<int32_t> ends = {40, 40, 41, 96};  // the second expert has no token

  moxie::GemmArguments arguments;
  arguments.a = upload(tokens);
  arguments.b = upload(weights);
  arguments.bias = upload(bias);
  arguments.sizes = static_cast<const int32_t*>(upload(ends));
  arguments.out = device.allocate(kTokens * kWidth * 2);
  arguments.workspace_bytes = moxie::workspace_bytes(device, problem);
  arguments.workspace = device.allocate(arguments.workspace_bytes);
  moxie::gemm(device, problem, arguments);  // asynchronous

  std::vector<uint16_t> out(kTokens * kWidth);
  device.download(out.data(), arguments.out, out.size() * 2);
  // Each product is 128 * 1 * 1/128 + 1 = 2: out = 2 * sigmoid(1.702 * 2) * (2 + 1) = 5.81.
  std::printf("out[0][0] = %#06x, out[95][191] = %#06x (5.81 is 0x40ba)\n", out.front(), out.back());
  return out.front() == 0x40ba && out.back() == 0x40ba ? 0 : 1;
} catch (const moxie::Error& error) {
  std::fprintf(stderr, "%s: %s\n", moxie::error_code_name(error.code()), error.what());
  return 1;
}
