// SPDX-License-Identifier: Apache-2.0
// The part of a tensor that one tensor copy moves.
#pragma once
#include <array>
#include <cstdint>
#include <cstring>

#include "sim/machine/hierarchy.h"
#include "sim/memory/tensor_map.h"

namespace sim {

// A bounding box at its place in the tensor (5.5.3 to 5.5.5), as rows along dimension 0: those of a box, or the pixels
// of a column.
struct Tile {
  TensorMapFields map;
  std::array<int64_t, 5> at{};       // coordinates
  std::array<uint32_t, 5> count{};   // rows visited along each dimension; units along dimension 0
  TensorUnit unit{1, 1, 1};          // coordinates of dimension 0 count these
  uint32_t row_bytes = 0, rows = 0;  // in shared memory
  uint32_t pitch = 0;                // from row to row there; under a swizzle its span, as on an H200
  // These of the address bits 7 to 9 are XORed to the bits from `swizzle_shift` on (5.5.7). With `flip` bit 7 is XORed
  // to bit 3, too.
  uint32_t swizzle_mask = 0, swizzle_shift = 4;
  bool flip = false;
  uint32_t inside_first = 0, inside_end = 0;  // units of a row inside the tensor along dimension 0
  std::array<int32_t, 4> four{};              // tile::gather4 and scatter4 (5.5.3.4): rows along dimension 1
  bool has_four = false;
  // im2col (5.5.4, 5.5.5): of W, H and D the first and the last place of a pixel, and what the copy adds to all places.
  std::array<int64_t, 3> first_pixel{}, last_pixel{}, offset{};

  uint32_t bytes() const { return rows * row_bytes; }
  // What a load counts at its mbarrier: the elements without the padding that 4 and 6 bits get in shared memory. The
  // ISA names no number; published kernels expect this one.
  uint32_t counted_bytes() const { return rows * count[0] * unit.global_bytes; }
  // Where the swizzle puts a piece of 16 bytes.
  uint32_t swizzled(uint32_t address) const { return address ^ (address >> 7 & swizzle_mask) << swizzle_shift; }
  // Copies a row to its place in shared memory, and back.
  void put_row(uint8_t* shared, uint32_t to, const uint8_t* row) const {
    for (uint32_t i = 0; i < row_bytes; i += 16) {
      uint8_t* const piece = shared + swizzled(to + i);
      const uint32_t half = flip && (to + i) >> 7 & 1 ? 8 : 0;
      std::memcpy(piece + half, row + i, 8);
      std::memcpy(piece + (half ^ 8), row + i + 8, 8);
    }
  }
  void take_row(const uint8_t* shared, uint32_t from, uint8_t* row) const {
    for (uint32_t i = 0; i < row_bytes; i += 16) {
      const uint8_t* const piece = shared + swizzled(from + i);
      const uint32_t half = flip && (from + i) >> 7 & 1 ? 8 : 0;
      std::memcpy(row + i, piece + half, 8);
      std::memcpy(row + i + 8, piece + (half ^ 8), 8);
    }
  }

  // Calls f(row, inside, address) for each row. The address is that of the row's first element, and means something
  // only for a row inside the tensor.
  template <class F>
  void each_row(F f) const {
    if (map.mode != TensorMode::Tiled) return each_pixel(f);
    std::array<uint32_t, 5> i{};
    for (uint32_t row = 0; row < rows; ++row) {
      bool inside = inside_first < inside_end;
      int64_t address = static_cast<int64_t>(map.address) + at[0] * static_cast<int64_t>(unit.global_bytes);
      for (uint32_t d = 1; d < map.rank; ++d) {
        const int64_t c = has_four ? four[row] : at[d] + static_cast<int64_t>(i[d]) * map.element_strides[d];
        inside = inside && c >= 0 && static_cast<uint64_t>(c) < map.dims[d];
        address += c * static_cast<int64_t>(map.strides[d - 1]);
      }
      f(row, inside, static_cast<uint64_t>(address));
      for (uint32_t d = 1; d < map.rank && ++i[d] == count[d]; ++d) i[d] = 0;
    }
  }
  // From the place of the filter on, W innermost and N outermost. Behind the last pixel of a dimension comes the first.
  template <class F>
  void each_pixel(F f) const {
    std::array<int64_t, 5> place = at;
    const uint32_t n = map.rank - 1;
    for (uint32_t row = 0; row < rows; ++row) {
      bool inside = inside_first < inside_end;
      int64_t address = static_cast<int64_t>(map.address) + at[0] * static_cast<int64_t>(unit.global_bytes);
      for (uint32_t d = 1; d <= n; ++d) {
        const int64_t c = place[d] + (d < n ? offset[d - 1] : 0);
        inside = inside && c >= 0 && static_cast<uint64_t>(c) < map.dims[d];
        address += c * static_cast<int64_t>(map.strides[d - 1]);
      }
      f(row, inside, static_cast<uint64_t>(address));
      uint32_t d = 1;
      for (; d < n && (place[d] += map.element_strides[d]) > last_pixel[d - 1]; ++d) place[d] = first_pixel[d - 1];
      if (d == n) ++place[n];
    }
  }
};

// Which elements a copy takes: those of a box, four rows of their own (gather4, scatter4) whose numbers are the
// coordinates from the second on, or pixels (im2col, im2col::w, im2col::w::128).
enum class TileMode : uint8_t { Box, FourRows, Pixels, PixelsW, PixelsW128 };
// Checks what the driver and the ISA ask of a map that is used for a copy. `info` is im2colInfo (9.7.9.27.1.2): what an
// im2col load adds to W, H and D, or wHalo and wOffset of the other two modes.
Tile make_tile(Warp& warp, int lane, const TensorMapFields& map, uint32_t rank, const int32_t* coordinates,
               TileMode mode = TileMode::Box, const std::array<uint32_t, 3>& info = {});
// Judges and notes what a copy of the tile touches in global memory.
void note_rows(Warp& warp, const Tile& tile, bool write, Reach reach, Stamp completion, int lane);

}  // namespace sim
