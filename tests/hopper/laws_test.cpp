// SPDX-License-Identifier: Apache-2.0
// Laws that hold to the last bit whatever the kernel does inside: the product of integers is linear in A, groups may
// change places or be divided, every plan computes the same, and what was quantized once stays as it is. For every
// grouping and format, packed weights among them; the programs of both architectures have these tests.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "moxie/quantize.h"
#include "moxie/weights.h"
#include "reference/formats.h"
#include "reference/packed_weights.h"
#include "tests/support/device.h"
#include "tests/support/group_rows.h"
#include "tests/support/print.h"
#include "tests/support/product_spec.h"
#include "tests/support/random.h"

namespace moxie::test {
namespace {

constexpr int64_t kM = 40, kN = 72, kK = 160;  // kM: rows along K

using Matrix = std::vector<float>;
// A and B of each group: [rows, kK] and [kN, kK], along K [kM, K_g] and [kN, K_g]. All values are small integers, which
// bf16 and E2M1 hold, and the scales are 1, so that every sum is exact.
struct Groups {
  Grouping grouping = Grouping::Offsets;
  OperandFormat format = OperandFormat::Bf16;
  std::vector<Matrix> a, b;
  bool packed = false;  // b, beside an a of bf16
  bool along_k() const { return grouping == Grouping::KGroups; }
  int64_t rows(size_t g) const { return along_k() ? kM : int64_t(a[g].size()) / kK; }
  int64_t k(size_t g) const { return along_k() ? int64_t(b[g].size()) / kN : kK; }
};

bool on_sm_100a() { return device().info().arch == 100; }

Matrix integers(uint64_t seed, int64_t count) {
  Matrix values;
  for (int64_t i = 0; i < count; ++i) values.push_back(float(int64_t(mix(seed * 1000003 + uint64_t(i)) % 5) - 2));
  return values;
}

Groups some_groups(Grouping grouping, OperandFormat format, bool packed, uint64_t seed) {
  Groups groups{grouping, format, {}, {}, packed};
  std::vector<int64_t> sizes = {70, 0, 3, 129, 1, 64};  // rows; along K units of 32
  if (grouping == Grouping::Dense) sizes = {140};
  if (grouping == Grouping::Batched) sizes = {70, 70, 70};
  if (grouping == Grouping::KGroups) sizes = {3, 0, 1, 10, 2, 5};
  for (const int64_t size : sizes) {
    const bool along_k = groups.along_k();
    groups.a.push_back(integers(seed, along_k ? kM * 32 * size : size * kK));
    groups.b.push_back(integers(seed + 100, along_k ? kN * 32 * size : kN * kK));
    ++seed;
  }
  return groups;
}

std::vector<uint8_t> stored(const Matrix& values, OperandFormat format) {
  std::vector<uint8_t> bytes(values.size() * size_t(bits_of(format)) / 8);
  for (size_t i = 0; i < values.size(); ++i) {
    if (format == OperandFormat::Bf16) {
      const uint16_t bits = reference::float_to_bf16(values[i]);
      std::memcpy(&bytes[2 * i], &bits, 2);
    } else {
      bytes[i / 2] = uint8_t(bytes[i / 2] | reference::float_to_e2m1(values[i]) << (i % 2 ? 4 : 0));
    }
  }
  return bytes;
}

// The groups' matrices in one: below each other from the rows `first` on, along K beside each other.
Matrix joined(const Groups& groups, const std::vector<Matrix>& parts, const std::vector<int64_t>& first, int64_t rows,
              int64_t k) {
  Matrix all(size_t(rows * k), 0.0f);
  int64_t begin = 0;
  for (size_t g = 0; g < parts.size(); ++g) {
    const int64_t width = groups.k(g);
    for (int64_t i = 0; i < (width == 0 ? 0 : int64_t(parts[g].size()) / width); ++i)
      std::copy_n(parts[g].begin() + i * width, width, all.begin() + (first[g] + i) * k + begin);
    if (groups.along_k()) begin += width;
  }
  return all;
}

// B of all groups as packed weights, whose scales are 1.
std::vector<uint8_t> packed(const Groups& groups) {
  const std::vector<uint8_t> scales(size_t(kN * kK / kScaleBlock), 127);
  std::vector<uint8_t> all;
  for (const Matrix& b : groups.b) {
    const std::vector<uint8_t> of_group =
        reference::pack_weights(stored(b, OperandFormat::Mxfp4).data(), scales.data(), kN, kK, {});
    all.insert(all.end(), of_group.begin(), of_group.end());
  }
  return all;
}

// D of each group.
std::vector<Matrix> product(const Groups& groups, ProductSpec p = {}) {
  const size_t count = groups.a.size();
  const bool along_k = groups.along_k();
  std::vector<int64_t> rows, first_b;
  std::vector<int32_t> ends;
  for (size_t g = 0; g < count; ++g) {
    rows.push_back(groups.rows(g));
    first_b.push_back(along_k ? 0 : int64_t(g) * kN);
    ends.push_back(int32_t((g > 0 ? ends[g - 1] : 0) + groups.k(g)));
  }
  p.grouping = groups.grouping, p.format = groups.format;
  p.groups = int64_t(count), p.n = kN, p.k = along_k ? ends.back() : kK;
  p.out = DataType::F32;
  if (groups.packed) p.b_format = OperandFormat::Mxfp4;
  if (!p.tile_n && !groups.packed) p.tile_n = 64;
  p.m = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  const GroupRows at(p.grouping, rows, 3, p.grouping == Grouping::RowGroups ? row_alignment(device(), p) : 1);
  p.m = at.m;
  const std::vector<int64_t> first_a = along_k ? std::vector<int64_t>(count, 0) : at.first;
  const Buffer a(stored(joined(groups, groups.a, first_a, along_k ? kM : at.total, p.k), p.format));
  const Buffer b(groups.packed
                     ? packed(groups)
                     : stored(joined(groups, groups.b, first_b, along_k ? kN : p.groups * kN, p.k), p.format));
  const uint8_t one = p.format == OperandFormat::Nvfp4 ? 0x38 : 127;
  const Buffer scales(std::vector<uint8_t>(has_scales(p.format) ? size_t{1} << 17 : 0, one));
  const Buffer sizes(along_k ? ends : at.sizes), out(size_t(at.total * kN * 4)),
      workspace(workspace_bytes(device(), p));
  ProductTensors x;
  std::vector<Buffer> arrays;
  const auto upload = [&](const auto& values) {
    arrays.emplace_back(values);
    return arrays.back().get<typename std::decay_t<decltype(values)>::value_type>();
  };
  if (p.grouping == Grouping::Pointers) {
    std::vector<const void*> of_a, of_b, of_scales(count, scales.get());
    std::vector<void*> of_out;
    std::vector<int32_t> each;
    for (size_t g = 0; g < count; ++g) {
      of_a.push_back(a.get<uint8_t>() + at.first[g] * kK * bits_of(p.format) / 8);
      const int64_t of_group =
          groups.packed ? int64_t(packed_weight_bytes(1, kN, kK)) : kN * kK * bits_of(p.format) / 8;
      of_b.push_back(b.get<uint8_t>() + int64_t(g) * of_group);
      of_out.push_back(out.get<float>() + at.first[g] * kN);
      each.insert(each.end(), {int32_t(rows[g]), int32_t(kN), int32_t(kK)});
    }
    const int64_t* const k = upload(std::vector<int64_t>(count, kK));
    x.pointers.a = {upload(of_a), k, nullptr, nullptr},
    x.pointers.b = {upload(of_b), groups.packed ? nullptr : k, nullptr, nullptr};
    if (has_scales(p.format)) x.pointers.a.scales = x.pointers.b.scales = upload(of_scales);
    x.pointers.out = {upload(of_out), upload(std::vector<int64_t>(count, kN)), nullptr, nullptr};
    x.pointers.sizes = upload(each);
  } else {
    x.a = a.get(), x.b = b.get(), x.out = out.get(), x.sizes = sizes.get<int32_t>();
    if (has_scales(p.format)) {
      EXPECT_LE(std::max(a_scale_bytes(p), b_scale_bytes(p)), scales.size());
      x.sfa = x.sfb = scales.get();
    }
  }
  x.workspace = workspace.get(), x.workspace_bytes = workspace.size();
  out.fill(0xff);
  gemm(device(), p, x);
  device().synchronize();
  const std::vector<uint8_t> bytes = out.download();
  std::vector<Matrix> d;
  for (size_t g = 0; g < count; ++g) {
    d.emplace_back(size_t(rows[g] * kN));
    if (rows[g] > 0) std::memcpy(d.back().data(), bytes.data() + at.first[g] * kN * 4, d.back().size() * 4);
  }
  return d;
}

class Laws : public ::testing::TestWithParam<Grouping> {
 protected:
  void SetUp() override {
    if (GetParam() == Grouping::KGroups && !on_sm_100a()) GTEST_SKIP() << "sm_90a has no k groups";
  }
  // Of every format that the device has.
  template <class Check>
  static void for_all_formats(uint64_t seed, Check&& check) {
    for (const OperandFormat format : {OperandFormat::Bf16, OperandFormat::Mxfp4, OperandFormat::Nvfp4}) {
      if (has_scales(format) && !on_sm_100a()) continue;
      SCOPED_TRACE(to_string(format));
      check(some_groups(GetParam(), format, false, seed));
      if (HasFailure()) return;
    }
    if (GetParam() == Grouping::KGroups) return;  // which packed weights do not have
    SCOPED_TRACE("packed weights");
    check(some_groups(GetParam(), OperandFormat::Bf16, true, seed));
  }
};

TEST_P(Laws, TheProductIsLinearInA) {
  for_all_formats(1, [](const Groups& first) {
    const float factor = first.format == OperandFormat::Bf16 ? -0x1p60f : -2;
    Groups second = first, sum = first, scaled = first;
    for (size_t g = 0; g < first.a.size(); ++g) {
      second.a[g] = integers(500 + g, int64_t(first.a[g].size()));
      for (size_t i = 0; i < sum.a[g].size(); ++i) sum.a[g][i] += second.a[g][i], scaled.a[g][i] *= factor;
    }
    for (const char* order : orders()) {
      SCOPED_TRACE(order);
      set_order(order);
      const auto x = product(first), y = product(second), both = product(sum), large = product(scaled);
      for (size_t g = 0; g < x.size(); ++g) {
        for (size_t i = 0; i < x[g].size(); ++i) {
          ASSERT_EQ(x[g][i] + y[g][i], both[g][i]) << g << " " << i;
          ASSERT_EQ(x[g][i] * factor, large[g][i]) << g << " " << i;
        }
      }
    }
  });
}

TEST_P(Laws, GroupsMayChangePlaces) {
  if (GetParam() == Grouping::Dense) GTEST_SKIP() << "there is one group";
  for_all_formats(2, [](const Groups& groups) {
    const auto d = product(groups);
    Groups turned{groups.grouping, groups.format, {}, {}, groups.packed};
    const size_t count = groups.a.size();
    const auto from = [&](size_t g) { return (5 * g + 1) % count; };
    for (size_t g = 0; g < count; ++g) turned.a.push_back(groups.a[from(g)]), turned.b.push_back(groups.b[from(g)]);
    const auto got = product(turned);
    for (size_t g = 0; g < count; ++g) EXPECT_TRUE(got[g] == d[from(g)]) << g;
  });
}

// In two, whose results stand below each other; along K their sum is the whole.
TEST_P(Laws, AGroupMayBeDivided) {
  for_all_formats(3, [](const Groups& groups) {
    const auto d = product(groups);
    Groups divided{groups.grouping, groups.format, {}, {}, groups.packed};
    for (size_t g = 0; g < groups.a.size(); ++g) {
      if (groups.along_k()) {
        const int64_t k = groups.k(g), cut = k / 64 * 32;
        for (const bool second : {false, true}) {
          const auto part = [&](const Matrix& whole) {
            Matrix columns;
            for (size_t i = 0; i < whole.size(); ++i) {
              if ((int64_t(i) % k >= cut) == second) columns.push_back(whole[i]);
            }
            return columns;
          };
          divided.a.push_back(part(groups.a[g])), divided.b.push_back(part(groups.b[g]));
        }
        continue;
      }
      const int64_t rows = groups.rows(g);
      const auto cut = groups.a[g].begin() + (g % 2 && groups.grouping != Grouping::Batched ? rows / 3 : rows / 2) * kK;
      divided.a.emplace_back(groups.a[g].begin(), cut), divided.a.emplace_back(cut, groups.a[g].end());
      divided.b.insert(divided.b.end(), 2, groups.b[g]);
    }
    std::vector<Matrix> parts;
    if (groups.grouping == Grouping::Dense) {
      for (const Matrix& half : divided.a)
        parts.push_back(product({groups.grouping, groups.format, {half}, groups.b, groups.packed})[0]);
    } else {
      parts = product(divided);
    }
    for (size_t g = 0; g < d.size(); ++g) {
      Matrix whole = parts[2 * g];
      const Matrix& rest = parts[2 * g + 1];
      if (groups.along_k()) {
        for (size_t i = 0; i < whole.size(); ++i) whole[i] += rest[i];
      } else {
        whole.insert(whole.end(), rest.begin(), rest.end());
      }
      EXPECT_TRUE(whole == d[g]) << g;
    }
  });
}

// Sums that float32 holds have no order: tiles, schedules and clusters change nothing.
TEST_P(Laws, EveryPlanComputesTheSame) {
  for_all_formats(4, [](const Groups& groups) {
    const auto d = product(groups);
    std::vector<ProductSpec> plans(4);
    if (groups.packed) {
      // All of them where the plan has a choice: each architecture reads the tiles it has.
      plans[0].tile_n = 128, plans[1].tile_n = 256;
      plans[2].tile_m = 64, plans[2].tile_n = 128;
      plans[3].tile_m = 8, plans[3].tile_n = 128, plans[3].expected_rows = 1;
      if (groups.grouping == Grouping::Pointers) plans.pop_back();
    } else if (on_sm_100a()) {
      plans[0].tile_n = 128;
      plans[1].cluster = 2;
      plans[2].scheduling = TileSource::LaunchControl;
      plans[3].swap_ab = true, plans[3].tile_n = 128;
    } else {
      plans[0].tile_m = 64, plans[0].schedule = WarpSchedule::PingPong;
      plans[1].tile_m = 256, plans[1].cluster = 1;
      plans[2].tile_m = 128, plans[2].tile_n = 128, plans[2].cluster = 2;
      plans[3].tile_m = 8, plans[3].expected_rows = 1;
      if (groups.grouping == Grouping::Pointers) plans.pop_back();  // which have no tiles of 8 rows
    }
    // Every second one, so that each meets half of the groupings and formats; all of them with MOXIE_TEST_ALL=1.
    for (size_t i = 0; i < plans.size(); ++i) {
      if ((i + size_t(groups.grouping) + size_t(groups.format)) % 2 != 0 && !std::getenv("MOXIE_TEST_ALL")) continue;
      EXPECT_TRUE(product(groups, plans[i]) == d) << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, Laws,
                         ::testing::Values(Grouping::Dense, Grouping::Batched, Grouping::Offsets, Grouping::RowGroups,
                                           Grouping::Masked, Grouping::Pointers, Grouping::KGroups),
                         [](const auto& info) {
                           return std::string(names<Grouping>()[size_t(info.param)].identifier);
                         });

// A value that has been quantized and dequantized is one that the format has.
TEST(QuantizationLaws, QuantizingTwiceIsQuantizingOnce) {
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
