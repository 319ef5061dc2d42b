// SPDX-License-Identifier: Apache-2.0
// See packed_weights.h.
#include "reference/packed_weights.h"

#include <algorithm>

namespace moxie::reference {
namespace {

// Where the bits of a fragment's code for the even column stand, by register, the sign last. For the odd one they stand
// 16 bits on, round the word.
constexpr int kBits[4][4] = {{6, 7, 8, 15}, {0, 1, 2, 9}, {10, 11, 12, 19}, {4, 5, 14, 13}};

// Where the rows of a group lie, packed and in the checkpoint.
struct Layout {
  int64_t n, k;
  std::optional<GateLayout> gate;

  int64_t rows() const { return (n + 15) / 16 * 16; }
  int64_t row_bytes() const { return k / 2 + k / 32; }

  // The row of the checkpoint that is packed row `row`.
  int64_t source(int64_t row) const {
    if (!gate) return row;
    const bool second = row % 16 >= 8;
    const int64_t pair = row / 16 * 8 + row % 8;
    return *gate == GateLayout::Interleaved ? 2 * pair + second : pair + (second ? n / 2 : 0);
  }
  int64_t block_rows(int64_t row) const { return std::min<int64_t>(64, rows() - row / 64 * 64); }
  int64_t block_columns(int64_t column) const { return std::min<int64_t>(64, k - column / 64 * 64); }
  int64_t block(int64_t row, int64_t column) const {
    return row / 64 * 64 * row_bytes() + column / 64 * block_rows(row) * 34;
  }
  int64_t row_byte(int64_t row) const { return rows() * row_bytes() + row; }
  int64_t scale(int64_t row, int64_t column) const {
    const int64_t columns = block_columns(column), count = columns / 32, unit = row % 64 / 16;
    return block(row, column) + block_rows(row) * columns / 2 + unit * 16 * count + row % 8 * 2 * count +
           row % 16 / 8 * count + column % 64 / 32;
  }
  // Of the word that holds the code.
  int64_t word(int64_t row, int64_t column) const {
    const int64_t unit = row % 64 / 16, lane = row % 8 * 4 + column % 8 / 2, step = column % 64 / 16;
    return block(row, column) + (unit * 32 + lane) * block_columns(column) / 4 + step * 4;
  }
  static int bit(int64_t row, int64_t column, int bit) {
    return (kBits[row % 16 / 8 + column % 16 / 8 * 2][bit] + static_cast<int>(column % 2) * 16) % 32;
  }
};

}  // namespace

std::optional<int64_t> first_unpackable_row(const uint8_t* scales, int64_t n, int64_t k) {
  for (int64_t row = 0; row < n; ++row) {
    int most = 0, least = 255;
    for (int64_t i = row * (k / 32); i < (row + 1) * (k / 32); ++i) {
      if (scales[i] != 255) most = std::max<int>(most, scales[i]), least = std::min<int>(least, scales[i]);
    }
    if (most > 128 && most - least > 133) return row;
  }
  return std::nullopt;
}

std::vector<uint8_t> pack_weights(const uint8_t* codes, const uint8_t* scales, int64_t n, int64_t k,
                                  std::optional<GateLayout> gate) {
  const Layout at{n, k, gate};
  std::vector<uint8_t> packed(static_cast<size_t>(at.rows() * (at.row_bytes() + 1)));
  const auto byte = [&](int64_t place) -> uint8_t& { return packed[static_cast<size_t>(place)]; };
  for (int64_t row = 0; row < at.rows(); ++row) {
    const int64_t source = at.source(row);
    const bool exists = row < n;
    int most = 0;
    bool nan = false;
    for (int64_t i = 0; exists && i < k / 32; ++i) {
      const int scale = scales[source * (k / 32) + i];
      scale == 255 ? nan = true : most = std::max(most, scale);
    }
    const int shift = std::max(most - 128, 0);
    byte(at.row_byte(row)) = static_cast<uint8_t>(shift + (nan ? 128 : 0));
    for (int64_t column = 0; column < k; ++column) {
      if (column % 32 == 0) {
        const int scale = exists ? scales[source * (k / 32) + column / 32] : 0;
        byte(at.scale(row, column)) = static_cast<uint8_t>(scale == 255 ? 0 : scale + 126 - shift);
      }
      if (!exists) continue;
      const uint8_t pair = codes[source * (k / 2) + column / 2];
      const int code = column % 2 ? pair >> 4 : pair & 15;
      const int64_t word = at.word(row, column);
      for (int bit = 0; bit < 4; ++bit) {
        const int place = Layout::bit(row, column, bit);
        byte(word + place / 8) |= static_cast<uint8_t>((code >> bit & 1) << place % 8);
      }
    }
  }
  return packed;
}

void unpack_weights(const uint8_t* packed, int64_t n, int64_t k, std::optional<GateLayout> gate, uint8_t* codes,
                    uint8_t* scales) {
  const Layout at{n, k, gate};
  for (int64_t row = 0; row < n; ++row) {
    const int64_t source = at.source(row);
    const int shift = packed[at.row_byte(row)] % 128;
    for (int64_t column = 0; column < k; ++column) {
      if (column % 32 == 0) {
        const int stored = packed[at.scale(row, column)];
        scales[source * (k / 32) + column / 32] = static_cast<uint8_t>(stored == 0 ? 255 : stored - 126 + shift);
      }
      const int64_t word = at.word(row, column);
      int code = 0;
      for (int bit = 0; bit < 4; ++bit) {
        const int place = Layout::bit(row, column, bit);
        code |= (packed[word + place / 8] >> place % 8 & 1) << bit;
      }
      uint8_t& pair = codes[source * (k / 2) + column / 2];
      pair = static_cast<uint8_t>(column % 2 ? (pair & 15) | code << 4 : code);
    }
  }
}

}  // namespace moxie::reference
