// SPDX-License-Identifier: Apache-2.0
// What Hopper kernels with packed weights (HopperConfig::b_format) can be, and what each would cost.
#pragma once
#include "plan/hopper_cost.h"
#include "plan/plan.h"
#include "plan/row_estimate.h"

namespace moxie::plan {

// Tiles whose accumulators leave room for two sets of fragments. Those of fewer than 64 rows are for few rows alone.
constexpr HopperTile kPackedTiles[] = {
    {WarpSchedule::Cooperative, 256, 128}, {WarpSchedule::Cooperative, 128, 256}, {WarpSchedule::Cooperative, 128, 128},
    {WarpSchedule::Cooperative, 64, 256},  {WarpSchedule::Cooperative, 64, 128},  {WarpSchedule::Cooperative, 32, 256},
    {WarpSchedule::Cooperative, 32, 128},  {WarpSchedule::Cooperative, 16, 256},  {WarpSchedule::Cooperative, 16, 128},
    {WarpSchedule::Cooperative, 8, 256},   {WarpSchedule::Cooperative, 8, 128}};

// Columns of K in a stage of such a tile. The more, the less often a warp waits for a stage and hands one back.
constexpr int packed_block_k(int tile_m) { return tile_m < 64 ? 256 : tile_m <= 128 ? 128 : 64; }

// Throws Error(InvalidArgument) when the caller's choices are none of them.
void check_packed_choices(const Shape& shape, const DeviceFigures& device);

// The time of a launch for such rows.
HopperTime packed_time_of(const Shape& shape, const DeviceFigures& device, const RowEstimate& rows,
                          const kernel::HopperConfig& config);

}  // namespace moxie::plan
