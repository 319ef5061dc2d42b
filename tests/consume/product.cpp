// SPDX-License-Identifier: Apache-2.0
// The program of three small projects that use Moxie in C++, each in its own way: a product with two groups of
// integers, exact in float32, on the simulator.
#include <moxie/moxie.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

namespace {

constexpr int64_t kRows = 24, kColumns = 64, kLength = 64;
constexpr int32_t kEnds[] = {9, 24};

int a_value(int64_t row, int64_t k) { return static_cast<int>((3 * row + k) % 7) - 3; }
int b_value(int64_t group, int64_t column, int64_t k) { return static_cast<int>((5 * group + 2 * column + k) % 5) - 2; }

// Small integers are the upper half of their float.
uint16_t bf16(int value) {
  const float number = static_cast<float>(value);
  uint32_t bits = 0;
  std::memcpy(&bits, &number, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

}  // namespace

int main() try {
  const moxie::Device device = moxie::Device::open(moxie::DeviceKind::Sim);
  moxie::GemmDescription description;
  description.groups = moxie::Offsets{.count = 2, .total = kRows};
  description.n = kColumns;
  description.k = kLength;
  description.out = moxie::DataType::F32;
  const moxie::GroupedGemm gemm(device, description);

  std::vector<uint16_t> a, b;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t k = 0; k < kLength; ++k) a.push_back(bf16(a_value(row, k)));
  }
  for (int64_t group = 0; group < 2; ++group) {
    for (int64_t column = 0; column < kColumns; ++column) {
      for (int64_t k = 0; k < kLength; ++k) b.push_back(bf16(b_value(group, column, k)));
    }
  }
  const moxie::Workspace a_memory(device, a.size() * 2), b_memory(device, b.size() * 2);
  const moxie::Workspace ends(device, sizeof kEnds), out(device, kRows * kColumns * 4);
  const moxie::Workspace workspace(device, gemm.workspace_bytes());
  device.upload(a_memory.data(), a.data(), a.size() * 2);
  device.upload(b_memory.data(), b.data(), b.size() * 2);
  device.upload(ends.data(), kEnds, sizeof kEnds);

  moxie::GemmTensors tensors;
  tensors.a.data = a_memory.data();
  tensors.b.data = b_memory.data();
  tensors.out.data = out.data();
  tensors.rows.ends = static_cast<const int32_t*>(ends.data());
  gemm.run(tensors, workspace);
  std::vector<float> result(kRows * kColumns);
  device.download(result.data(), out.data(), result.size() * 4);

  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t column = 0; column < kColumns; ++column) {
      int expected = 0;
      for (int64_t k = 0; k < kLength; ++k) expected += a_value(row, k) * b_value(row >= kEnds[0] ? 1 : 0, column, k);
      const float got = result[static_cast<size_t>(row * kColumns + column)];
      if (got != static_cast<float>(expected)) {
        std::printf("row %d, column %d: %g instead of %d\n", static_cast<int>(row), static_cast<int>(column),
                    static_cast<double>(got), expected);
        return 1;
      }
    }
  }
  std::printf("moxie %s: the product is right\n", moxie::version());
  return std::strcmp(moxie::version(), MOXIE_VERSION) == 0 ? 0 : 1;
} catch (const std::exception& error) {
  std::printf("%s\n", error.what());
  return 1;
}
