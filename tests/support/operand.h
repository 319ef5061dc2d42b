// SPDX-License-Identifier: Apache-2.0
// One operand of a grouped product: the rows of each group as they lie in memory, with random values and, in formats
// that have them, row-major scales. All that is no group's has every bit set: NaN, or elements under scales that are
// NaN.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "moxie/types.h"
#include "tests/support/random.h"

namespace moxie::test {

// NaN of both signs, infinities, the largest numbers, subnormals and zeros.
constexpr uint16_t kSpecialBf16[] = {0x7fc0, 0xffc0, 0x7f81, 0x7f80, 0xff80, 0x7f7f, 0xff7f,
                                     0x0001, 0x8001, 0x007f, 0x807f, 0x8000, 0x0000};

// The rows of one group.
struct OperandRows {
  int64_t rows = 0, k = 0;
  int64_t first = 0, ld = 0;              // elements
  int64_t first_scale = 0, ld_scale = 0;  // row-major scales
  int64_t end() const { return rows == 0 ? first : first + (rows - 1) * ld + k; }
};

class Operand {
 public:
  // Elements of 16 bytes: no group is better aligned than it must be.
  static int64_t unit(OperandFormat format) { return 128 / bits_of(format); }

  Operand() = default;
  // `elements` and `scales` are counts of the memory that holds all groups.
  Operand(OperandFormat format, std::vector<OperandRows> groups, int64_t elements, int64_t scales);

  // Draws bf16 values of up to scale / sqrt(K), of up to `scale` with over_root_k false.
  void draw_bf16(uint64_t seed, float scale, bool over_root_k);
  // Draws values of E2M1, stored in any format, and scales. One scale of `nan_each` is NaN, with 0 none.
  void draw_e2m1(uint64_t seed, const ScaleCodes& codes, int nan_each);

  // Puts values between the others that arithmetic treats apart: NaN, infinities, the largest, subnormals, zeros, and
  // such scales. Most groups get some, in a few rows.
  void plant_specials(uint64_t seed);
  // Whether one of them stands in a row of a group.
  bool has_special(size_t group, int64_t row) const { return !special_.empty() && special_[group][size_t(row)]; }

  const std::vector<OperandRows>& groups() const { return groups_; }
  const std::vector<uint8_t>& scales() const { return scales_; }
  // The stored bytes from element `begin` to element `end`.
  std::vector<uint8_t> bytes(int64_t begin, int64_t end) const;
  // What the tensor cores see of a group: [rows, k].
  std::vector<double> values(size_t group) const;

 private:
  void put(int64_t at, int e2m1);

  OperandFormat format_ = OperandFormat::Bf16;
  std::vector<OperandRows> groups_;
  std::vector<uint8_t> elements_, scales_;
  std::vector<std::vector<bool>> special_;  // of each group's rows
};

}  // namespace moxie::test
