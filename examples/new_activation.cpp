// Softplus, which the library does not know, fused into a product: new_activation.cuh holds it as one small struct.
#include <moxie/moxie.h>

#include <cstdio>
#include <cstring>
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
  auto upload = [&](const auto& host) {
    void* memory = device.allocate(host.size() * sizeof(host[0]));
    device.upload(memory, host.data(), host.size() * sizeof(host[0]));
    return memory;
  };
  struct {
    void* out;
    int64_t ld;
  } params = {device.allocate(kRows * kColumns * 2), kColumns};

  moxie::GemmProblem problem;
  problem.m = kRows;
  problem.n = kColumns;
  problem.k = kSums;
  problem.out.reset();  // the sink below is the only output
  moxie::CustomSink sink{"example::Apply<example::Softplus>", kSource, std::vector<uint8_t>(sizeof(params)), {}};
  std::memcpy(sink.params.data(), &params, sizeof(params));
  problem.sinks.push_back(sink);

  moxie::GemmArguments arguments;
  const std::vector<uint16_t> a(kRows * kSums, 0x3f80), b(kColumns * kSums, 0x3c80);  // 1 and 1/64
  arguments.a = upload(a);
  arguments.b = upload(b);
  arguments.workspace_bytes = moxie::workspace_bytes(device, problem);
  arguments.workspace = device.allocate(arguments.workspace_bytes);
  moxie::gemm(device, problem, arguments);

  std::vector<uint16_t> out(kRows * kColumns);
  device.download(out.data(), params.out, out.size() * 2);
  // log(1 + e^1) = 1.3133
  std::printf("out[0][0] = %#06x, out[99][135] = %#06x (softplus(1) is 0x3fa8)\n", out.front(), out.back());
  return out.front() == 0x3fa8 && out.back() == 0x3fa8 ? 0 : 1;
} catch (const moxie::Error& error) {
  std::fprintf(stderr, "%s: %s\n", moxie::error_code_name(error.code()), error.what());
  return 1;
}
