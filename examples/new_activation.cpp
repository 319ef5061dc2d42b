// SPDX-License-Identifier: Apache-2.0
// Softplus, which the library does not know, fused into a product: new_activation.cuh holds it as one small struct.
#include <moxie/moxie.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {
const std::string kSource = {
#include "new_activation.inc"
};
}  // namespace

int main() try {
  constexpr int64_t kRows = 100, kColumns = 136, kSums = 64;
  const moxie::Device device = moxie::Device::open();
  std::vector<moxie::Workspace> memory;
  const auto allocate = [&](size_t bytes) { return memory.emplace_back(device, bytes).data(); };
  const auto upload = [&](const auto& host) {
    void* const to = allocate(host.size() * sizeof(host[0]));
    device.upload(to, host.data(), host.size() * sizeof(host[0]));
    return to;
  };

  // The sink's Params as the host sees them: new_activation.cuh has the same members.
  struct Params {
    void* out;
    int64_t ld;
  };
  moxie::GemmDescription description;
  description.groups = moxie::Dense{.m = kRows};
  description.n = kColumns;
  description.k = kSums;
  description.out.reset();  // the sink is the only output
  description.sinks.push_back({"example::Apply<example::Softplus>", kSource, sizeof(Params), {}});
  const moxie::GroupedGemm gemm(device, description);
  const moxie::Workspace workspace(device, gemm.workspace_bytes());

  // Every call brings the parameters of its sinks.
  const Params params = {allocate(kRows * kColumns * 2), kColumns};
  const moxie::SinkParams sinks[] = {{&params, sizeof(params)}};
  moxie::GemmTensors tensors;
  tensors.a.data = upload(std::vector<uint16_t>(kRows * kSums, 0x3f80));     // 1
  tensors.b.data = upload(std::vector<uint16_t>(kColumns * kSums, 0x3c80));  // 1/64
  tensors.sinks = sinks;
  gemm.run(tensors, workspace);

  std::vector<uint16_t> out(kRows * kColumns);
  device.download(out.data(), params.out, out.size() * 2);
  // log(1 + e^1) = 1.3133
  std::printf("out[0][0] = %#06x, out[99][135] = %#06x (softplus(1) is 0x3fa8)\n", out.front(), out.back());
  return out.front() == 0x3fa8 && out.back() == 0x3fa8 ? 0 : 1;
} catch (const moxie::Error& error) {
  std::fprintf(stderr, "%s: %s\n", moxie::to_string(error.code()).data(), error.what());
  return 1;
}
