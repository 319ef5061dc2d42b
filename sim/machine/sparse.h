// SPDX-License-Identifier: Apache-2.0
// Metadata of a sparse matrix A in registers: mma.sp (PTX ISA 9.7.14.6.1) and wgmma.mma_async.sp (9.7.15.6.1). Half of
// the elements of each chunk of a row are stored, and the metadata say in which columns of the chunk they stand. A
// chunk has four columns; of 4-bit elements it has four pairs of columns, and of tf32 two columns.
// Nothing in B is multiplied with what is not stored, so that infinities and NaNs in B go nowhere there: the ISA does
// not say so, and an H200 does it in mma.sp and wgmma.mma_async.sp.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "sim/machine/hierarchy.h"

namespace sim {

struct SparseRows {
  uint8_t bits;      // of an element
  uint8_t stored;    // elements of a row
  uint8_t selector;  // which of the lanes 4 g to 4 g + 3 have the metadata of the rows g and g + 8
  bool ordered;      // the indices of a chunk must increase

  // How many of the lanes 4 g to 4 g + 3 have the metadata that one selector names.
  int lanes() const { return stored * bits / 128 * (bits <= 8 ? 2 : 1); }
};

using Metadata = std::array<uint32_t, kLanes>;

// The column of a row's stored element. Metadata that name none give 0.
int sparse_column(const SparseRows& rows, const Metadata& metadata, int row, int element);

// Whether B has neither infinities nor NaNs, so that it may as well be multiplied with zeros that are not stored.
inline bool all_finite(const float* values, int64_t count) {
  return std::all_of(values, values + count, [](float x) { return std::isfinite(x); });
}

// Judges the metadata of 16 rows. `operation` is what the report calls the product.
void check_metadata(const Warp& warp, const SparseRows& rows, const Metadata& metadata, const char* operation);

}  // namespace sim
