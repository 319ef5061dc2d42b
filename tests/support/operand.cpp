// SPDX-License-Identifier: Apache-2.0
// See operand.h.
#include "tests/support/operand.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace moxie::test {

Operand::Operand(OperandFormat format, std::vector<OperandRows> groups, int64_t elements, int64_t scales)
    : format_(format),
      groups_(std::move(groups)),
      elements_(size_t(elements * bits_of(format) / 8), 0xff),
      scales_(size_t(scales), 0xff) {}

void Operand::draw_bf16(uint64_t seed, float scale, bool over_root_k) {
  for (const OperandRows& g : groups_) {
    const float largest = over_root_k ? scale / std::sqrt(float(std::max<int64_t>(g.k, 1))) : scale;
    for (int64_t i = 0; i < g.rows; ++i) {
      for (int64_t at = g.first + i * g.ld; at < g.first + i * g.ld + g.k; ++at) {
        const uint16_t value = random_bf16(seed, uint64_t(at), largest);
        std::memcpy(elements_.data() + at * 2, &value, 2);
      }
    }
  }
}

void Operand::put(int64_t at, int e2m1) {
  if (format_ == OperandFormat::Bf16) {
    const uint16_t value = reference::float_to_bf16(reference::e2m1_to_float(uint8_t(e2m1)));
    std::memcpy(elements_.data() + at * 2, &value, 2);
  } else {
    uint8_t& pair = elements_[size_t(at / 2)];
    pair = uint8_t(at % 2 ? (pair & 15) | e2m1 << 4 : (pair & 0xf0) | e2m1);
  }
}

void Operand::draw_e2m1(uint64_t seed, const ScaleCodes& codes, int nan_each) {
  const int64_t block = scale_block(format_);
  for (size_t g = 0; g < groups_.size(); ++g) {
    const OperandRows& rows = groups_[g];
    for (int64_t i = 0; i < rows.rows; ++i) {
      for (int64_t k = 0; k < rows.k; ++k) {
        const uint64_t bits = mix(seed * 7919 + g * 104729 + uint64_t(i * 65536 + k));
        put(rows.first + i * rows.ld + k, int(bits >> 20 & 15));
        if (!has_scales(format_) || k % block != 0) continue;
        const bool nan = nan_each > 0 && mix(bits) % uint64_t(nan_each) == 0;
        scales_[size_t(rows.first_scale + i * rows.ld_scale + k / block)] = nan ? 255 : uint8_t(codes.draw(bits >> 30));
      }
    }
  }
}

void Operand::plant_specials(uint64_t seed) {
  constexpr int kE2m1[] = {0, 8, 1, 9, 7, 15};              // zeros, subnormals, the largest
  constexpr uint8_t kE8m0[] = {255, 255, 0, 254};           // NaN, the smallest, the largest
  constexpr uint8_t kE4m3[] = {0x7f, 0x7f, 0, 0x01, 0x7e};  // NaN, zero, the smallest, the largest
  const int64_t block = scale_block(format_);
  for (size_t g = 0; g < groups_.size(); ++g) {
    const OperandRows& rows = groups_[g];
    Random random(seed * 1000003 + g);
    std::vector<bool>& special = special_.emplace_back(size_t(rows.rows));
    if (rows.rows == 0 || rows.k == 0 || random.one_in(4)) continue;
    for (int64_t count = random.between(1, 4); count > 0; --count) {
      const int64_t row = random.between(0, rows.rows - 1), k = random.between(0, rows.k - 1);
      const int64_t at = rows.first + row * rows.ld + k;
      special[size_t(row)] = true;
      if (format_ == OperandFormat::Bf16) {
        const uint16_t value = random.of(kSpecialBf16);
        std::memcpy(elements_.data() + at * 2, &value, 2);
      } else if (random.one_in(2)) {
        put(at, random.of(kE2m1));
      } else {
        scales_[size_t(rows.first_scale + row * rows.ld_scale + k / block)] =
            format_ == OperandFormat::Nvfp4 ? random.of(kE4m3) : random.of(kE8m0);
      }
    }
  }
}

std::vector<uint8_t> Operand::bytes(int64_t begin, int64_t end) const {
  return {elements_.begin() + begin * bits_of(format_) / 8, elements_.begin() + end * bits_of(format_) / 8};
}

std::vector<double> Operand::values(size_t group) const {
  const OperandRows& g = groups_[group];
  const int64_t block = scale_block(format_);
  std::vector<double> values;
  values.reserve(size_t(g.rows * g.k));
  for (int64_t i = 0; i < g.rows; ++i) {
    double scale = 1;
    for (int64_t k = 0; k < g.k; ++k) {
      const auto at = size_t(g.first + i * g.ld + k);
      if (format_ == OperandFormat::Bf16) {
        uint16_t value;
        std::memcpy(&value, elements_.data() + at * 2, 2);
        values.push_back(reference::bf16_to_float(value));
        continue;
      }
      if (k % block == 0) {
        const uint8_t code = scales_[size_t(g.first_scale + i * g.ld_scale + k / block)];
        scale = format_ == OperandFormat::Nvfp4 ? reference::e4m3_to_float(code) : reference::e8m0_to_float(code);
      }
      values.push_back(scale * reference::e2m1_to_float(at % 2 ? elements_[at / 2] >> 4 : elements_[at / 2] & 15));
    }
  }
  return values;
}

}  // namespace moxie::test
