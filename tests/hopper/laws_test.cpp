// SPDX-License-Identifier: Apache-2.0
// Laws that hold to the last bit whatever the kernel does inside: the product of integers is linear in A, groups may
// change places or be divided, and what was quantized once stays as it is. The programs of both architectures have
// these tests.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "moxie/quantize.h"
#include "reference/formats.h"
#include "tests/support/device.h"
#include "tests/support/product_spec.h"
#include "tests/support/random.h"

namespace moxie::test {
namespace {

constexpr int64_t kN = 72, kK = 136;

// Groups of rows by offsets: A of each group, and B of each group.
struct Groups {
  std::vector<std::vector<float>> a, b;
};

std::vector<float> integers(uint64_t seed, int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(float(int64_t(mix(seed * 1000003 + uint64_t(i)) % 9) - 4));
  return values;
}

Groups some_groups(uint64_t seed) {
  Groups groups;
  for (const int64_t rows : {70, 0, 3, 129, 1, 64}) {
    groups.a.push_back(integers(seed, rows * kK));
    groups.b.push_back(integers(seed + 100 * groups.b.size(), kN * kK));
    ++seed;
  }
  return groups;
}

// D of each group.
std::vector<std::vector<float>> product(const Groups& groups, ProductSpec p = {}) {
  std::vector<uint16_t> a, b;
  std::vector<int32_t> ends;
  for (size_t g = 0; g < groups.a.size(); ++g) {
    for (const float x : groups.a[g]) a.push_back(reference::float_to_bf16(x));
    for (const float x : groups.b[g]) b.push_back(reference::float_to_bf16(x));
    ends.push_back(int32_t(a.size() / kK));
  }
  p.grouping = Grouping::Offsets;
  p.groups = int64_t(groups.a.size()), p.m = ends.back(), p.n = kN, p.k = kK;
  p.out = DataType::F32;
  if (!p.tile_n) p.tile_n = 64;
  const Buffer a_buffer(a), b_buffer(b), sizes(ends), out(size_t(p.m * p.n * 4)),
      workspace(workspace_bytes(device(), p));
  ProductTensors x;
  x.a = a_buffer.get(), x.b = b_buffer.get(), x.out = out.get(), x.sizes = sizes.get<int32_t>();
  x.workspace = workspace.get(), x.workspace_bytes = workspace.size();
  out.fill(0xff);
  gemm(device(), p, x);
  device().synchronize();
  const std::vector<uint8_t> bytes = out.download();
  std::vector<std::vector<float>> d;
  size_t at = 0;
  for (const std::vector<float>& rows : groups.a) {
    d.emplace_back(rows.size() / size_t(kK) * size_t(kN));
    if (!d.back().empty()) std::memcpy(d.back().data(), bytes.data() + at, d.back().size() * 4);
    at += d.back().size() * 4;
  }
  return d;
}

TEST(Laws, TheProductIsLinearInA) {
  for (const char* order : orders()) {
    SCOPED_TRACE(order);
    set_order(order);
    Groups first = some_groups(1), second = some_groups(1), sum = first, scaled = first;
    for (size_t g = 0; g < first.a.size(); ++g) {
      second.a[g] = integers(500 + g, int64_t(first.a[g].size()));
      for (size_t i = 0; i < sum.a[g].size(); ++i) sum.a[g][i] += second.a[g][i], scaled.a[g][i] *= -0x1p60f;
    }
    const auto x = product(first), y = product(second), both = product(sum), large = product(scaled);
    for (size_t g = 0; g < x.size(); ++g) {
      for (size_t i = 0; i < x[g].size(); ++i) {
        ASSERT_EQ(x[g][i] + y[g][i], both[g][i]) << g << " " << i;
        ASSERT_EQ(x[g][i] * -0x1p60f, large[g][i]) << g << " " << i;
      }
    }
  }
}

TEST(Laws, GroupsMayChangePlaces) {
  const Groups groups = some_groups(2);
  const auto d = product(groups);
  Groups turned;
  const size_t count = groups.a.size();
  for (size_t g = 0; g < count; ++g) {
    turned.a.push_back(groups.a[(5 * g + 3) % count]), turned.b.push_back(groups.b[(5 * g + 3) % count]);
  }
  const auto got = product(turned);
  for (size_t g = 0; g < count; ++g) EXPECT_TRUE(got[g] == d[(5 * g + 3) % count]) << g;
}

TEST(Laws, AGroupMayBeDivided) {
  const Groups groups = some_groups(3);
  const auto d = product(groups);
  Groups divided;
  const std::vector<int64_t> cuts = {13, 0, 1, 65, 0, 64};  // rows of the first part
  for (size_t g = 0; g < cuts.size(); ++g) {
    const auto cut = groups.a[g].begin() + cuts[g] * kK;
    divided.a.emplace_back(groups.a[g].begin(), cut), divided.a.emplace_back(cut, groups.a[g].end());
    divided.b.push_back(groups.b[g]), divided.b.push_back(groups.b[g]);
  }
  const auto parts = product(divided);
  for (size_t g = 0; g < d.size(); ++g) {
    std::vector<float> whole = parts[2 * g];
    whole.insert(whole.end(), parts[2 * g + 1].begin(), parts[2 * g + 1].end());
    EXPECT_TRUE(whole == d[g]) << g;
  }
}

// Sums that float32 holds have no order: tiles, schedules and clusters change nothing.
TEST(Laws, EveryPlanComputesTheSame) {
  const Groups groups = some_groups(4);
  const auto d = product(groups);
  std::vector<ProductSpec> plans(4);
  if (device().info().arch == 100) {
    plans[0].tile_n = 128;
    plans[1].cluster = 2;
    plans[2].scheduling = TileSource::LaunchControl;
    plans[3].swap_ab = true, plans[3].tile_n = 128;
  } else {
    plans[0].tile_m = 64, plans[0].schedule = WarpSchedule::PingPong;
    plans[1].tile_m = 256, plans[1].cluster = 1;
    plans[2].tile_m = 128, plans[2].tile_n = 128, plans[2].cluster = 2;
    plans[3].tile_m = 8, plans[3].expected_rows = 1;
  }
  for (size_t i = 0; i < plans.size(); ++i) EXPECT_TRUE(product(groups, plans[i]) == d) << i;
}

// A value that has been quantized and dequantized is one that the format has.
TEST(Laws, QuantizingTwiceIsQuantizingOnce) {
  const int64_t rows = 20, k = 160;
  std::vector<float> values;
  for (uint64_t i = 0; i < uint64_t(rows * k); ++i)
    values.push_back(float(int64_t(mix(i) % 20001) - 10000) * std::ldexp(1.0f, int(mix(i / 32) % 30) - 8));
  for (const DataType format : {DataType::Mxfp4, DataType::Mxfp8, DataType::Nvfp4}) {
    SCOPED_TRACE(to_string(format));
    const Buffer from(values), back(values.size() * 4), factor(std::vector<float>{0.375f});
    Quantization x;
    x.format = format, x.type = DataType::F32;
    x.rows = rows, x.k = k;
    if (format == DataType::Nvfp4) x.tensor_scale = factor.get<float>();
    const auto quantized = [&](const Buffer& what) {
      const Buffer elements(size_t(rows * k * bits_of(format) / 8)), scales(scale_bytes(x));
      x.values = what.get(), x.elements = elements.get(), x.scales = scales.get();
      quantize(device(), x);
      Dequantization y;
      static_cast<QuantizedRows&>(y) = x;
      y.elements = x.elements, y.scales = x.scales, y.tensor_scale = x.tensor_scale;
      y.values = back.get();
      dequantize(device(), y);
      device().synchronize();
      return std::pair{elements.download(), scales.download()};
    };
    const auto once = quantized(from);
    const std::vector<uint8_t> values_once = back.download();
    const Buffer again(values_once);
    EXPECT_TRUE(quantized(again) == once);
    EXPECT_TRUE(back.download() == values_once);
  }
}

}  // namespace
}  // namespace moxie::test
