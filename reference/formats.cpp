// SPDX-License-Identifier: Apache-2.0
// See formats.h.
#include "reference/formats.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace moxie::reference {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The non-negative values of a format in the order of their codes, and halfway from each to the next.
template <int kCount>
struct Table {
  std::array<float, kCount> value;
  std::array<float, kCount - 1> halfway;

  template <class Decode>
  constexpr explicit Table(Decode decode) : value{}, halfway{} {
    for (int i = 0; i < kCount; ++i) value[size_t(i)] = decode(i);
    for (int i = 0; i + 1 < kCount; ++i) halfway[size_t(i)] = (value[size_t(i)] + value[size_t(i) + 1]) / 2;
  }
  // The code nearest to a magnitude; a tie goes to the even code.
  uint8_t nearest(float magnitude) const {
    const auto above = std::lower_bound(halfway.begin(), halfway.end(), magnitude);
    auto code = above - halfway.begin();
    if (above != halfway.end() && *above == magnitude) code += code & 1;
    return static_cast<uint8_t>(code);
  }
};

constexpr float power_of_two(int exponent) {
  float x = 1;
  for (; exponent > 0; --exponent) x *= 2;
  for (; exponent < 0; ++exponent) x /= 2;
  return x;
}
// A code has the exponent in front of `fraction_bits` of fraction. Exponent 0 holds the subnormals.
constexpr float decode(int code, int fraction_bits, int bias) {
  const int exponent = code >> fraction_bits, fraction = code & ((1 << fraction_bits) - 1);
  return exponent == 0 ? float(fraction) * power_of_two(1 - bias - fraction_bits)
                       : float((1 << fraction_bits) + fraction) * power_of_two(exponent - bias - fraction_bits);
}
constexpr Table<8> kE2m1{[](int code) { return decode(code, 1, 1); }};
constexpr Table<127> kE4m3{[](int code) { return decode(code, 3, 7); }};  // without NaN, the last code

}  // namespace

float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

uint8_t float_to_e2m1(float value) {
  if (std::isnan(value)) return 0;
  return static_cast<uint8_t>(kE2m1.nearest(std::fabs(value)) | (std::signbit(value) ? 8 : 0));
}
uint8_t float_to_e4m3(float value) {
  const uint8_t sign = std::signbit(value) ? 128 : 0;
  return static_cast<uint8_t>(sign | (std::isnan(value) ? 127 : kE4m3.nearest(std::fabs(value))));
}
float e2m1_to_float(uint8_t code) { return (code & 8 ? -1.0f : 1.0f) * kE2m1.value[code & 7]; }
float e4m3_to_float(uint8_t code) {
  const int magnitude = code & 127;
  return magnitude == 127 ? kNan : (code & 128 ? -1.0f : 1.0f) * kE4m3.value[size_t(magnitude)];
}
float e8m0_to_float(uint8_t code) { return code == 255 ? kNan : std::ldexp(1.0f, code - 127); }

float tensor_scale_of(float amax) {
  return amax > 0 ? std::max(amax / (6.0f * 448.0f), std::numeric_limits<float>::min()) : 1.0f;
}

void quantize_row(DataType format, const float* values, int64_t k, float tensor_scale, uint8_t* elements,
                  uint8_t* scales) {
  const int64_t block = scale_block(format);
  const bool nvfp4 = format == DataType::Nvfp4, mxfp8 = format == DataType::Mxfp8;
  for (int64_t first = 0; first < k; first += block) {
    float amax = 0;
    bool finite = true;
    for (int64_t i = first; i < first + block; ++i) {
      finite = finite && std::isfinite(values[i]);
      amax = std::max(amax, std::fabs(values[i]));
    }
    uint8_t& scale = scales[first / block];
    float factor = 0;  // what the values are divided by
    if (!finite) {
      scale = nvfp4 ? 127 : 255;
    } else if (nvfp4) {
      scale = float_to_e4m3(amax / (6.0f * tensor_scale));
      factor = e4m3_to_float(scale) * tensor_scale;
    } else {
      const int exponent = amax == 0 ? -127 : std::max(std::ilogb(amax) - (mxfp8 ? 8 : 2), -127);
      scale = static_cast<uint8_t>(exponent + 127);
      factor = std::ldexp(1.0f, exponent);
    }
    for (int64_t i = first; i < first + block; ++i) {
      const float quotient = factor > 0 ? values[i] / factor : 0.0f;
      if (mxfp8) {
        elements[i] = float_to_e4m3(quotient);
      } else {
        const uint8_t code = float_to_e2m1(quotient);
        elements[i / 2] = static_cast<uint8_t>(i % 2 == 0 ? code : elements[i / 2] | code << 4);
      }
    }
  }
}

void dequantize_row(DataType format, const uint8_t* elements, const uint8_t* scales, int64_t k, float tensor_scale,
                    float* values) {
  const int64_t block = scale_block(format);
  for (int64_t i = 0; i < k; ++i) {
    const uint8_t code = scales[i / block];
    const float scale = format == DataType::Nvfp4 ? e4m3_to_float(code) * tensor_scale : e8m0_to_float(code);
    const float element = format == DataType::Mxfp8
                              ? e4m3_to_float(elements[i])
                              : e2m1_to_float(i % 2 == 0 ? elements[i / 2] & 15 : elements[i / 2] >> 4);
    values[i] = element * scale;
  }
}

}  // namespace moxie::reference
