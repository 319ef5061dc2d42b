// SPDX-License-Identifier: Apache-2.0
// A small expert layer in MXFP4 on sm_100a: the first product adds the bias, applies GPT-OSS SwiGLU and stores MXFP4
// with its scales. The second product reads both as they are.
#include <moxie/moxie.h>

#include <algorithm>
#include <cstdio>
#include <vector>

int main() try {
  constexpr int64_t kExperts = 4, kTokens = 96, kHidden = 128, kWidth = 192;
  const moxie::Device device = moxie::Device::open();
  std::printf("%s\n", device.info().name.c_str());

  moxie::GemmDescription description;
  description.groups = moxie::Offsets{.count = kExperts, .total = kTokens};
  description.format = moxie::OperandFormat::Mxfp4;
  description.n = 2 * kWidth;
  description.k = kHidden;
  description.bias = true;
  description.activation = moxie::swiglu_oai();
  description.out = moxie::DataType::Mxfp4;
  const moxie::GroupedGemm up(device, description);
  description.n = kHidden;
  description.k = kWidth;
  description.bias = false;
  description.activation = moxie::Activation::None;
  description.out = moxie::DataType::Bf16;
  const moxie::GroupedGemm down(device, description);
  const moxie::Workspace workspace(device, std::max(up.workspace_bytes(), down.workspace_bytes()));

  std::vector<moxie::Workspace> memory;
  const auto allocate = [&](size_t bytes) { return memory.emplace_back(device, bytes).data(); };
  const auto upload = [&](const auto& host) {
    void* const to = allocate(host.size() * sizeof(host[0]));
    device.upload(to, host.data(), host.size() * sizeof(host[0]));
    return to;
  };
  const auto* const ends =
      static_cast<const int32_t*>(upload(std::vector<int32_t>{40, 40, 41, 96}));  // the second expert has no token
  constexpr uint16_t kOne = 0x3f80, kSmall = 0x3c00;                              // 1 and 1/128 in bf16

  // bf16 values to MXFP4 on the device, with the scales that products read. Weights have all rows of every expert,
  // tokens are divided among the experts by `of_groups`.
  const auto quantize = [&](uint16_t value, int64_t rows, int64_t k, const int32_t* of_groups) {
    const int64_t all_rows = of_groups ? rows : kExperts * rows;
    moxie::Quantization x;
    x.groups = kExperts;
    x.rows = rows;
    x.k = k;
    x.offsets = of_groups;
    x.values = upload(std::vector<uint16_t>(all_rows * k, value));
    x.elements = allocate(all_rows * k / 2);
    x.scales = allocate(moxie::scale_bytes(x));
    moxie::quantize(device, x);
    return moxie::ConstTensor{.data = x.elements, .scales = x.scales};
  };

  const moxie::Rows rows{.ends = ends};
  moxie::GemmTensors first;
  first.a = quantize(kOne, kTokens, kHidden, ends);
  first.b = quantize(kSmall, 2 * kWidth, kHidden, nullptr);
  first.bias = upload(std::vector<uint16_t>(kExperts * 2 * kWidth, kOne));
  first.out = {.data = allocate(kTokens * kWidth / 2), .scales = allocate(moxie::out_scale_bytes(up.description()))};
  first.rows = rows;
  up.run(first, workspace);

  moxie::GemmTensors second;
  second.a = first.out;
  second.b = quantize(kSmall, kHidden, kWidth, nullptr);
  second.out.data = allocate(kTokens * kHidden * 2);
  second.rows = rows;
  down.run(second, workspace);

  std::vector<uint16_t> out(kTokens * kHidden);
  device.download(out.data(), second.out.data, out.size() * 2);
  // The first products are 128 * 1 * 1/128 + 1 = 2, SwiGLU makes them 5.81 and MXFP4 6: 192 * 6 * 1/128 = 9.
  constexpr uint16_t kNine = 0x4110;
  const bool right = std::all_of(out.begin(), out.end(), [](uint16_t value) { return value == kNine; });
  std::printf("out[0][0] = %#06x, out[95][127] = %#06x (9 is 0x4110)\n", out.front(), out.back());
  return right ? 0 : 1;
} catch (const moxie::Error& error) {
  std::fprintf(stderr, "%s: %s\n", moxie::to_string(error.code()).data(), error.what());
  return 1;
}
