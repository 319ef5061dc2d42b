// SPDX-License-Identifier: Apache-2.0
// Copies the tokens that have come from all ranks in the order of our experts' rows, for products that do not gather.
// A thread has eight columns of a row, and a block goes on to another row when it has copied one: how many there are,
// the device alone knows.
#pragma once
#include "moxie/isa.cuh"
#include "moxie/ranks/row_format.cuh"
#include "moxie/window.h"

namespace moxie::kernel {

template <RowFormat kFormat>
MOXIE_DEVICE void gather_rows(const GatherRowsParams& params) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const RankParams& ranks = params.ranks;
  const int32_t column = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
  if (column >= params.columns) return;
  const auto* const order = reinterpret_cast<const int32_t*>(ranks.windows[ranks.rank] + ranks.at.order);
  const int32_t rows = min(params.ends[ranks.experts - 1], ranks.max_rows), tokens = ranks.ranks * ranks.tokens;
  for (int32_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int32_t place = order[row];
    if (static_cast<uint32_t>(place) >= static_cast<uint32_t>(tokens)) continue;
    *reinterpret_cast<uint4*>(static_cast<uint16_t*>(params.out) + int64_t{row} * params.columns + column) =
        TravelingColumns<kFormat>::load(ranks, place, column, params.columns);
  }
}

}  // namespace moxie::kernel
