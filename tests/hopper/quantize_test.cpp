// SPDX-License-Identifier: Apache-2.0
// Quantising and dequantising against the CPU's reference, bit for bit; the conversions of scales. The same tests for
// every architecture: the programs of both compile this file.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "moxie/quantize.h"
#include "reference/formats.h"
#include "tests/support/device.h"
#include "tests/support/print.h"
#include "tests/support/random.h"

namespace moxie::test {
namespace {

constexpr DataType kFormats[] = {DataType::Mxfp4, DataType::Mxfp8, DataType::Nvfp4};
constexpr uint8_t kUntouched = 0xa5;

const char* name_of(DataType format) {
  return format == DataType::Mxfp4 ? "Mxfp4" : format == DataType::Mxfp8 ? "Mxfp8" : "Nvfp4";
}

// Values that tell rules apart: ties between elements under many scales, the limits of float32, and random bits.
float telling_value(uint64_t index) {
  const uint64_t bits = mix(index);
  const uint64_t block = index / 32;
  switch (mix(block) % 8) {
    case 0:  // any bits, infinities and NaN included
      return std::bit_cast<float>(uint32_t(bits));
    case 1:  // zeros of both signs
      return bits & 1 ? 0.0f : -0.0f;
    case 2:  // subnormals
      return std::bit_cast<float>(uint32_t(bits) & 0x807fffff);
    case 3: {  // next to the largest
      const auto near = uint32_t(0x7f7fffff - (bits & 0xff) * 0x4000);
      return std::bit_cast<float>(near | uint32_t(bits >> 63 << 31));
    }
    case 4:  // eighths: every tie of E2M1 under some scale
      return float(int64_t(bits % 129) - 64) / 8 * std::ldexp(1.0f, int(mix(block * 3) % 200) - 100);
    case 5:  // and next to ties
      return std::nextafter(float(bits % 65) / 8, bits & 64 ? 9.0f : 0.0f);
    case 6:  // halves of the last place of E4M3
      return float(int64_t(bits % 2049) - 1024) / 32;
    default:
      return (float(bits >> 40) - float(1 << 23)) * 0x1p-23f;
  }
}

struct QuantizeJob {
  DataType format = DataType::Mxfp4, type = DataType::F32;
  ScaleLayout layout = ScaleLayout::Blocked;
  int64_t groups = 1, rows = 40, k = 96;
  std::vector<int32_t> ends;   // offsets
  std::vector<int32_t> given;  // what the device is given in their place
  int64_t padding = 0;         // elements between rows
};

// Runs both ways, and compares every byte.
void check_quantization(const QuantizeJob& job) {
  SCOPED_TRACE(fmt::format("{} of {}, {} rows of {}, {} groups{}, {}", name_of(job.format),
                           job.type == DataType::Bf16 ? "bf16" : "float32", job.rows, job.k, job.groups,
                           job.ends.empty() ? "" : " by offsets",
                           job.layout == ScaleLayout::Blocked ? "blocked" : "row-major"));
  const bool offsets = !job.ends.empty();
  const int64_t all_rows = offsets ? job.rows : job.groups * job.rows, block = scale_block(job.format);
  const int64_t ld = job.k + job.padding, bits = bits_of(job.format), value_bytes = size_of(job.type);
  std::vector<float> values(size_t(all_rows * ld));
  std::vector<uint8_t> stored(values.size() * size_t(value_bytes));
  float amax = 0;
  std::vector<bool> exists(size_t(all_rows), !offsets);
  if (offsets) std::fill_n(exists.begin(), job.ends.back(), true);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = telling_value(i + size_t(job.rows) * 1000);
    if (job.type == DataType::Bf16) {
      const uint16_t rounded = reference::float_to_bf16(values[i]);
      values[i] = reference::bf16_to_float(rounded);
      std::memcpy(&stored[2 * i], &rounded, 2);
    } else {
      std::memcpy(&stored[4 * i], &values[i], 4);
    }
    const bool counts = int64_t(i) % ld < job.k && exists[i / size_t(ld)];
    if (counts && std::isfinite(values[i])) amax = std::max(amax, std::fabs(values[i]));
  }
  // The reference.
  const float tensor_scale = reference::tensor_scale_of(amax);
  const int64_t columns = job.k / block;
  Quantization x;
  x.format = job.format, x.type = job.type, x.layout = job.layout;
  x.groups = job.groups, x.rows = job.rows, x.k = job.k;
  std::vector<uint8_t> elements(size_t(all_rows * ld * bits / 8), kUntouched), row_major(size_t(all_rows * columns));
  std::vector<uint8_t> scales, values_again(stored.size(), kUntouched);
  for (int64_t r = 0; r < all_rows; ++r) {
    if (!exists[size_t(r)]) continue;
    uint8_t* const row = elements.data() + r * ld * bits / 8;
    reference::quantize_row(job.format, values.data() + r * ld, job.k, tensor_scale, row,
                            row_major.data() + r * columns);
    std::vector<float> again(static_cast<size_t>(job.k));
    reference::dequantize_row(job.format, row, row_major.data() + r * columns, job.k, tensor_scale, again.data());
    for (int64_t i = 0; i < job.k; ++i) {
      const uint16_t rounded = reference::float_to_bf16(again[size_t(i)]);
      uint8_t* const to = values_again.data() + (r * ld + i) * value_bytes;
      std::memcpy(to, job.type == DataType::Bf16 ? static_cast<const void*>(&rounded) : &again[size_t(i)],
                  size_t(value_bytes));
    }
  }
  const Buffer ends(job.given.empty() ? job.ends : job.given);
  if (offsets) x.offsets = ends.get<int32_t>();
  scales.assign(scale_bytes(x), kUntouched);
  if (job.layout == ScaleLayout::RowMajor) {
    for (int64_t r = 0; r < all_rows; ++r) {
      if (exists[size_t(r)]) std::copy_n(row_major.begin() + r * columns, columns, scales.begin() + r * columns);
    }
  } else {
    int64_t at = 0;
    for (int64_t g = 0; g < job.groups; ++g) {
      const int64_t begin = !offsets ? g * job.rows : g == 0 ? 0 : job.ends[size_t(g - 1)];
      const int64_t count = offsets ? job.ends[size_t(g)] - begin : job.rows;
      std::fill_n(scales.begin() + at, blocked_scale_bytes(count, job.k, block), 0);
      for (int64_t r = 0; r < count; ++r) {
        for (int64_t c = 0; c < columns; ++c)
          scales[size_t(at + blocked_scale_index(r, c, job.k, block))] = row_major[size_t((begin + r) * columns + c)];
      }
      at += blocked_scale_bytes(count, job.k, block);
    }
  }
  // The device.
  const Buffer from(stored), to(std::vector<uint8_t>(elements.size(), kUntouched));
  const Buffer to_scales(std::vector<uint8_t>(scales.size(), kUntouched));
  const Buffer scale_of_tensor(std::vector<float>{-1});
  x.values = from.get(), x.ld_values = ld;
  x.elements = to.get(), x.ld_elements = ld;
  x.scales = to_scales.get();
  if (job.format == DataType::Nvfp4) {
    find_tensor_scale(device(), x, scale_of_tensor.get<float>());
    device().synchronize();
    float found;
    device().download(&found, scale_of_tensor.get(), 4);
    EXPECT_EQ(found, tensor_scale);
    x.tensor_scale = scale_of_tensor.get<float>();
  }
  quantize(device(), x);
  device().synchronize();
  EXPECT_TRUE(to.download() == elements) << "elements differ";
  EXPECT_TRUE(to_scales.download() == scales) << "scales differ";

  const Buffer back(std::vector<uint8_t>(stored.size(), kUntouched));
  Dequantization y;
  static_cast<QuantizedRows&>(y) = x;
  y.elements = to.get(), y.ld_elements = ld;
  y.scales = to_scales.get(), y.tensor_scale = x.tensor_scale;
  y.values = back.get(), y.ld_values = ld;
  dequantize(device(), y);
  device().synchronize();
  // A NaN is a NaN, whatever its bits.
  std::vector<uint8_t> got = back.download();
  const auto is_nan = [&](const std::vector<uint8_t>& bytes, size_t i) {
    if (job.type == DataType::Bf16) return (bytes[i + 1] & 0x7f) == 0x7f && (bytes[i] & 0x80) && (bytes[i] & 0x7f);
    return (bytes[i + 3] & 0x7f) == 0x7f && (bytes[i + 2] & 0x80) &&
           ((bytes[i + 2] & 0x7f) || bytes[i + 1] || bytes[i]);
  };
  int64_t different = 0;
  for (size_t i = 0; i < got.size(); i += size_t(value_bytes)) {
    if (is_nan(got, i) && is_nan(values_again, i)) continue;
    different += std::memcmp(&got[i], &values_again[i], size_t(value_bytes)) != 0;
  }
  EXPECT_EQ(different, 0) << "dequantised values differ";
}

class Quantize : public testing::TestWithParam<std::tuple<DataType, DataType>> {
 protected:
  QuantizeJob job() const {
    QuantizeJob j;
    std::tie(j.format, j.type) = GetParam();
    return j;
  }
};
TEST_P(Quantize, AgreesWithTheReference) {
  QuantizeJob job = this->job();
  job.rows = 150, job.k = 672;  // tails of tiles in both directions
  check_quantization(job);
}
TEST_P(Quantize, RowMajorScales) {
  QuantizeJob job = this->job();
  job.layout = ScaleLayout::RowMajor;
  job.rows = 130, job.k = 160, job.padding = 32;
  check_quantization(job);
}
TEST_P(Quantize, GroupsOfEqualRows) {
  QuantizeJob job = this->job();
  job.groups = 3, job.rows = 131, job.k = 224;
  check_quantization(job);
  job.layout = ScaleLayout::RowMajor;
  check_quantization(job);
}
TEST_P(Quantize, GroupsByOffsets) {
  QuantizeJob job = this->job();
  job.ends = {5, 5, 133, 270, 271};
  job.groups = 5, job.rows = 275, job.k = 96, job.padding = 64;
  check_quantization(job);
  job.layout = ScaleLayout::RowMajor;
  check_quantization(job);
}
// Ends that decrease, are negative or pass the rows are brought into range.
TEST_P(Quantize, WrongOffsetsStayInside) {
  constexpr int32_t kLow = std::numeric_limits<int32_t>::min(), kHigh = std::numeric_limits<int32_t>::max();
  QuantizeJob job = this->job();
  job.groups = 5, job.rows = 275, job.k = 96;
  job.ends = {5, 5, 133, 270, 275};
  for (const ScaleLayout layout : {ScaleLayout::Blocked, ScaleLayout::RowMajor}) {
    job.layout = layout;
    job.given = {5, -3, 133, 270, 4000};
    check_quantization(job);
    job.given = {5, kLow, 133, 270, kHigh};
    check_quantization(job);
  }
  job.ends = {275, 275, 275, 275, 275};
  job.given = {276, 0, 1000, 275, 7};
  check_quantization(job);
}
INSTANTIATE_TEST_SUITE_P(Formats, Quantize,
                         testing::Combine(testing::ValuesIn(kFormats), testing::Values(DataType::Bf16, DataType::F32)),
                         [](const auto& info) {
                           return fmt::format("{}{}", name_of(std::get<0>(info.param)),
                                              std::get<1>(info.param) == DataType::Bf16 ? "Bf16" : "F32");
                         });

TEST(QuantizeNvfp4, ATensorOfZerosOrOfNothingHasAScaleOfOne) {
  const Buffer zeros(std::vector<float>(4 * 32, 0));
  for (const int64_t rows : {4, 0}) {
    const Buffer found(std::vector<float>{-1});
    Quantization x;
    x.format = DataType::Nvfp4, x.type = DataType::F32;
    x.rows = rows, x.k = 32, x.values = zeros.get();
    find_tensor_scale(device(), x, found.get<float>());
    device().synchronize();
    float scale = 0;
    device().download(&scale, found.get(), 4);
    EXPECT_EQ(scale, 1) << rows;
  }
}

// A block of NVFP4 is half as long as that of the others.
TEST(QuantizeNvfp4, OddNumberOfBlocks) {
  QuantizeJob job;
  job.format = DataType::Nvfp4;
  job.k = 80, job.padding = 16;
  check_quantization(job);
}

// Quotients that lie between two codes: the product with a rounded reciprocal lies beside them for many scales.
TEST(QuantizeNvfp4, TiesAreThoseOfTheQuotient) {
  for (const float t : {3.0f, 5.0f, 7.0f, 11.0f, 13.0f, 19.0f, 0.75f, 1.1f}) {
    SCOPED_TRACE(t);
    std::vector<float> values;
    for (int exponent = 0; exponent < 7; ++exponent) {
      for (int eighth = 8; eighth < 15; ++eighth) {
        // A block whose scale lies between two codes, then one of that scale with elements that do.
        const float between = std::ldexp(float(eighth) + 0.5f, exponent - 3),
                    below = std::ldexp(float(eighth), exponent - 3);
        values.push_back(6 * t * between);
        for (int i = 1; i < 16; ++i) values.push_back(t * float(i - 8));
        values.push_back(6 * t * below);
        for (const float element : {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f}) {
          values.push_back(t * below * element);
          values.push_back(-t * below * element);
        }
        values.push_back(0);
      }
    }
    const auto k = int64_t(values.size());
    std::vector<uint8_t> elements(size_t(k / 2)), scales(size_t(k / 16));
    reference::quantize_row(DataType::Nvfp4, values.data(), k, t, elements.data(), scales.data());
    const Buffer from(values), to(elements.size()), to_scales(scales.size()), factor(std::vector<float>{t});
    Quantization x;
    x.format = DataType::Nvfp4, x.type = DataType::F32, x.layout = ScaleLayout::RowMajor;
    x.rows = 1, x.k = k;
    x.values = from.get(), x.elements = to.get(), x.scales = to_scales.get(), x.tensor_scale = factor.get<float>();
    quantize(device(), x);
    device().synchronize();
    EXPECT_TRUE(to.download() == elements);
    EXPECT_TRUE(to_scales.download() == scales);
  }
}

// From one layout to the other and back, in blocks of 32 and of 16. Offsets past the rows or in disorder are brought
// into range.
TEST(Scales, UnblockUndoesBlock) {
  for (int64_t block : {32, 16}) {
    for (const auto& [offsets, ends, last] : {std::tuple{false, std::vector<int32_t>{}, int64_t{0}},
                                              {true, {5, 5, 133, 400, 401}, 401},
                                              {true, {5, -7, 133, 400, 411}, 410},
                                              {true, {1000, 5, 2000000000, -2000000000, 0}, 410}}) {
      const int64_t groups = 5, rows = offsets ? 410 : 130, k = 9 * block;
      std::vector<uint8_t> from(size_t((offsets ? 1 : groups) * rows * 9));
      for (size_t i = 0; i < from.size(); ++i) from[i] = uint8_t(mix(i));
      std::vector<uint8_t> wanted = from;
      if (offsets) std::fill(wanted.begin() + last * 9, wanted.end(), kUntouched);
      const int64_t tiles = offsets ? rows / kScaleTileRows + groups : groups * 2;
      const Buffer source(from), sizes(ends), blocked(size_t(blocked_scale_bytes(tiles * 128, k, block)));
      const Buffer to(std::vector<uint8_t>(from.size(), kUntouched));
      ScaleBlocking x;
      x.from = source.get(), x.to = blocked.get();
      x.groups = groups, x.rows = rows, x.k = k, x.block = block;
      if (offsets) x.offsets = sizes.get<int32_t>();
      block_scales(device(), x);
      x.from = blocked.get(), x.to = to.get();
      unblock_scales(device(), x);
      device().synchronize();
      EXPECT_TRUE(to.download() == wanted) << block << " " << offsets;
    }
  }
}

// Every power of two becomes its code; what is none shows as NaN.
TEST(Scales, FloatsBecomeE8m0) {
  std::vector<float> from;
  std::vector<uint8_t> wanted;
  for (int code = 0; code < 255; ++code) from.push_back(std::ldexp(1.0f, code - 127)), wanted.push_back(uint8_t(code));
  for (const float x : {0.0f, -1.0f, 3.0f, 0x1p-128f, 0x1.000002p0f, std::numeric_limits<float>::infinity(),
                        std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::max(), -0.0f})
    from.push_back(x), wanted.push_back(255);
  const Buffer source(from), blocked(size_t(blocked_scale_bytes(1, int64_t(from.size()) * 32)));
  ScaleBlocking x;
  x.from = source.get(), x.to = blocked.get();
  x.rows = 1, x.k = int64_t(from.size()) * 32;
  x.from_floats = true;
  block_scales(device(), x);
  device().synchronize();
  const auto got = blocked.download();
  for (size_t i = 0; i < from.size(); ++i) {
    EXPECT_EQ(int(got[size_t(blocked_scale_index(0, int64_t(i), x.k))]), int(wanted[i])) << from[i];
  }
}

struct WrongQuantization {
  const char* name;
  const char* says;
  void (*spoil)(Quantization&);
};
void PrintTo(const WrongQuantization& wrong, std::ostream* out) { *out << wrong.name; }
class WrongQuantize : public testing::TestWithParam<WrongQuantization> {};
TEST_P(WrongQuantize, IsRefused) {
  const Buffer values(size_t(4 * 64 * 4)), elements(std::vector<uint8_t>(128, kUntouched)),
      scales(std::vector<uint8_t>(512, kUntouched)), tensor(std::vector<float>{1});
  Quantization x;
  x.type = DataType::F32;
  x.rows = 4, x.k = 64;
  x.values = values.get(), x.elements = elements.get(), x.scales = scales.get();
  GetParam().spoil(x);
  try {
    quantize(device(), x);
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
    EXPECT_NE(std::string(error.what()).find(GetParam().says), std::string::npos) << error.what();
  }
  device().synchronize();
  EXPECT_TRUE(elements.download() == std::vector<uint8_t>(128, kUntouched));
  EXPECT_TRUE(scales.download() == std::vector<uint8_t>(512, kUntouched));
}
template <class T>
T* moved(T* pointer, int64_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(pointer) + uintptr_t(bytes));
}
INSTANTIATE_TEST_SUITE_P(
    Arguments, WrongQuantize,
    testing::Values(
        WrongQuantization{"Format", "format is bf16", [](auto& x) { x.format = DataType::Bf16; }},
        WrongQuantization{"Type", "type is mxfp8", [](auto& x) { x.type = DataType::Mxfp8; }},
        WrongQuantization{"Layout", "layout is 2", [](auto& x) { x.layout = ScaleLayout(2); }},
        WrongQuantization{"Depth", "k is 48", [](auto& x) { x.k = 48; }},
        WrongQuantization{"Rows", "rows is -1", [](auto& x) { x.rows = -1; }},
        WrongQuantization{"Groups", "groups is 0", [](auto& x) { x.groups = 0; }},
        WrongQuantization{"Misaligned", "values is 0x", [](auto& x) { x.values = moved(x.values, 8); }},
        WrongQuantization{"ScalesMisaligned", "scales is 0x", [](auto& x) { x.scales = moved(x.scales, 4); }},
        WrongQuantization{"LeadingDimension", "ld_values is 32", [](auto& x) { x.ld_values = 32; }},
        WrongQuantization{"LeadingMultiple", "ld_elements is 72", [](auto& x) { x.ld_elements = 72; }},
        WrongQuantization{"Overlap", "elements overlaps values",
                          [](auto& x) { x.elements = const_cast<void*>(x.values); }},
        WrongQuantization{"ScalesOverlap", "elements overlaps scales", [](auto& x) { x.scales = x.elements; }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace moxie::test
