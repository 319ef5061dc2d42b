// SPDX-License-Identifier: Apache-2.0
// See sparse.h.
#include "sim/machine/sparse.h"

#include <string>

#include "sim/machine/fault.h"

namespace sim {
namespace {

struct Place {
  int lane, bit;
};

// Where the index of a stored element stands, of 4-bit elements that of the pair which begins with it (9.7.14.6.2).
Place place_of(const SparseRows& rows, int row, int element) {
  const int of_lane = 128 / rows.bits, part = element / of_lane, within = element % of_lane;
  const int group = 4 * (row % 8) + rows.lanes() * rows.selector;
  // Of 8 and 4 bits a lane has one row: the first lane of a pair row g, the second one row g + 8.
  if (rows.bits <= 8) return {group + row / 8 + 2 * part, within * rows.bits / 4};
  // Of others it has both, row g in the lower half.
  return {group + part, row / 8 * 16 + within * (16 / of_lane)};
}

// Which of two columns an element of tf32 stands in, or -1.
int column_of_two(uint32_t index) { return index == 0b0100 ? 0 : index == 0b1110 ? 1 : -1; }

}  // namespace

int sparse_column(const SparseRows& rows, const Metadata& metadata, int row, int element) {
  const int together = rows.bits == 4 ? 2 : 1;  // columns that one index names
  const int first = element / together * together;
  const Place place = place_of(rows, row, first);
  const uint32_t index = metadata[static_cast<size_t>(place.lane)] >> place.bit;
  if (rows.bits == 32) return 2 * element + (column_of_two(index & 15) == 1 ? 1 : 0);
  const int chunk = 4 * together;
  return first / (chunk / 2) * chunk + static_cast<int>(index & 3) * together + element % together;
}

void check_metadata(const Warp& warp, const SparseRows& rows, const Metadata& metadata, const char* operation) {
  const int of_chunk = rows.bits == 32 ? 1 : rows.bits == 4 ? 4 : 2;
  for (int row = 0; row < 16; ++row) {
    for (int element = 0; element < rows.stored; element += of_chunk) {
      const Place place = place_of(rows, row, element);
      const uint32_t said = metadata[static_cast<size_t>(place.lane)], index = said >> place.bit & 15;
      const auto text = [&](const char* why) {
        return "the metadata " + hex(said) + " of a sparse " + operation + " has " + hex(index) + " at bit " +
               std::to_string(place.bit) + ", " + why;
      };
      if (rows.bits == 32) {
        if (column_of_two(index) < 0)
          fault(Hazard::IllegalUse, warp, place.lane, text("which is the index of no element"));
      } else if ((index & 3) == index >> 2) {
        deviation(Hazard::IllegalUse, warp, place.lane, [&] { return text("which names one column twice"); });
      } else if (rows.ordered && (index & 3) > index >> 2) {
        fault(Hazard::IllegalUse, warp, place.lane, text("and .sp::ordered_metadata wants indices that increase"));
      }
    }
  }
}

}  // namespace sim
