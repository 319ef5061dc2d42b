// A small expert layer in MXFP4 on sm_100a: the first product adds the bias, applies GPT-OSS SwiGLU and stores MXFP4
// with its scales; the second product reads both as they are.
#include <moxie/moxie.h>

#include <cstdio>
#include <vector>

int main() try {
  constexpr int64_t kExperts = 4, kTokens = 96, kHidden = 128, kWidth = 192;
  const moxie::Device device = moxie::Device::open();
  std::printf("%s\n", device.info().name.c_str());

  moxie::GemmProblem first;
  first.format = moxie::OperandFormat::Mxfp4;
  first.grouping = moxie::Grouping::Offsets;
  first.groups = kExperts;
  first.m = kTokens;
  first.n = 2 * kWidth;
  first.k = kHidden;
  first.bias = true;
  first.activation = moxie::Activation::SwigluOai;
  first.out = moxie::DataType::Mxfp4;

  moxie::GemmProblem second = first;
  second.n = kHidden;
  second.k = kWidth;
  second.bias = false;
  second.activation = moxie::Activation::None;
  second.out = moxie::DataType::Bf16;

  auto upload = [&](const auto& host) {
    void* memory = device.allocate(host.size() * sizeof(host[0]));
    device.upload(memory, host.data(), host.size() * sizeof(host[0]));
    return memory;
  };
  const std::vector<int32_t> ends = {40, 40, 41, 96};  // the second expert has no token
  const auto offsets = static_cast<const int32_t*>(upload(ends));
  constexpr uint16_t kOne = 0x3f80, kSmall = 0x3c00;  // 1 and 1/128 in bf16

  // bf16 values to MXFP4 on the device, with the scales that gemm() reads.
  auto quantize = [&](uint16_t value, int64_t groups, int64_t rows, int64_t k, const int32_t* of_groups,
                      const void*& elements, const void*& scales) {
    moxie::Quantization x;
    x.groups = groups;
    x.rows = rows;
    x.k = k;
    x.offsets = of_groups;
    x.values = upload(std::vector<uint16_t>((of_groups ? 1 : groups) * rows * k, value));
    elements = x.elements = device.allocate((of_groups ? 1 : groups) * rows * k / 2);
    scales = x.scales = device.allocate(moxie::scale_bytes(x));
    moxie::quantize(device, x);
  };
  auto prepare = [&](const moxie::GemmProblem& problem, moxie::GemmArguments& arguments) {
    arguments.sizes = offsets;
    arguments.workspace_bytes = moxie::workspace_bytes(device, problem);
    arguments.workspace = device.allocate(arguments.workspace_bytes);
  };

  moxie::GemmArguments arguments;
  quantize(kOne, kExperts, kTokens, kHidden, offsets, arguments.a, arguments.sfa);
  quantize(kSmall, kExperts, first.n, kHidden, nullptr, arguments.b, arguments.sfb);
  arguments.bias = upload(std::vector<uint16_t>(kExperts * first.n, kOne));
  arguments.out = device.allocate(kTokens * kWidth / 2);
  arguments.out_scales = device.allocate(moxie::out_scale_bytes(first));
  prepare(first, arguments);
  moxie::gemm(device, first, arguments);

  moxie::GemmArguments next;
  next.a = arguments.out;
  next.sfa = arguments.out_scales;
  quantize(kSmall, kExperts, second.n, kWidth, nullptr, next.b, next.sfb);
  next.out = device.allocate(kTokens * kHidden * 2);
  prepare(second, next);
  moxie::gemm(device, second, next);

  std::vector<uint16_t> out(kTokens * kHidden);
  device.download(out.data(), next.out, out.size() * 2);
  // The first products are 128 * 1 * 1/128 + 1 = 2, SwiGLU makes them 5.81 and MXFP4 6: 192 * 6 * 1/128 = 9.
  std::printf("out[0][0] = %#06x, out[95][127] = %#06x (9 is 0x4110)\n", out.front(), out.back());
  return out.front() == 0x4110 && out.back() == 0x4110 ? 0 : 1;
} catch (const moxie::Error& error) {
  std::fprintf(stderr, "%s: %s\n", moxie::error_code_name(error.code()), error.what());
  return 1;
}
