// SPDX-License-Identifier: Apache-2.0
// See packed_weights.h.
#include "tests/support/packed_weights.h"

#include <algorithm>

namespace moxie::test {
namespace {

// The row of the checkpoint that becomes packed row `row`.
int64_t source_of(int64_t row, int64_t n, std::optional<GateLayout> gate) {
  if (!gate) return row;
  const bool second = row % 16 >= 8;
  const int64_t pair = row / 16 * 8 + row % 8;
  return *gate == GateLayout::Interleaved ? 2 * pair + second : pair + (second ? n / 2 : 0);
}

}  // namespace

std::vector<uint8_t> pack_reference(const std::vector<uint8_t>& codes, const std::vector<uint8_t>& scales, int64_t n,
                                    int64_t k, std::optional<GateLayout> gate) {
  const int64_t padded = (n + 15) / 16 * 16, row_bytes = k / 2 + k / 32;
  std::vector<uint8_t> packed(size_t(padded * (row_bytes + 1)));
  // Where the bits of a fragment's code for the even column stand, by register, the sign last. For the odd one they
  // stand 16 bits on, round the word.
  constexpr int kBits[4][4] = {{6, 7, 8, 15}, {0, 1, 2, 9}, {10, 11, 12, 19}, {4, 5, 14, 13}};
  for (int64_t row = 0; row < padded; ++row) {
    const int64_t source = source_of(row, n, gate);
    const bool exists = row < n;
    int most = 0;
    bool nan = false;
    for (int64_t i = 0; exists && i < k / 32; ++i) {
      const int scale = scales[size_t(source * (k / 32) + i)];
      scale == 255 ? nan = true : most = std::max(most, scale);
    }
    const int shift = std::max(most - 128, 0);
    packed[size_t(padded * row_bytes + row)] = uint8_t(shift + (nan ? 128 : 0));

    const int64_t block_rows = std::min<int64_t>(64, padded - row / 64 * 64), unit = row % 64 / 16;
    for (int64_t column = 0; column < k; ++column) {
      const int64_t first = column / 64 * 64, columns = std::min<int64_t>(64, k - first);
      const int64_t block = row / 64 * 64 * row_bytes + first / 64 * block_rows * 34;
      if (column % 32 == 0) {
        const int64_t count = columns / 32;
        const int64_t at = block + block_rows * columns / 2 + unit * 16 * count + row % 8 * 2 * count +
                           row % 16 / 8 * count + (column - first) / 32;
        const int scale = exists ? scales[size_t(source * (k / 32) + column / 32)] : 0;
        packed[size_t(at)] = uint8_t(scale == 255 ? 0 : scale + 126 - shift);
      }
      if (!exists) continue;
      const uint8_t pair = codes[size_t(source * (k / 2) + column / 2)];
      const uint32_t code = column % 2 ? pair >> 4 : pair & 15;
      const int64_t lane = row % 8 * 4 + column % 8 / 2, step = (column - first) / 16;
      const int64_t at_register = row % 16 / 8 + column % 16 / 8 * 2;
      const int64_t at = block + (unit * 32 + lane) * columns / 4 + step * 4;
      for (int bit = 0; bit < 4; ++bit) {
        const int place = (kBits[at_register][bit] + column % 2 * 16) % 32;
        packed[size_t(at + place / 8)] |= uint8_t((code >> bit & 1) << place % 8);
      }
    }
  }
  return packed;
}

}  // namespace moxie::test
