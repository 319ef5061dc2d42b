// SPDX-License-Identifier: Apache-2.0
// Choices that are the plan's unless the caller makes them. They name what only one architecture has.
#pragma once
#include <optional>
#include <variant>

#include "moxie/types.h"

namespace moxie {

// sm_90a. tile_m is 64, 128 or 256, also 8 (ping-pong, one block, groups of fewer than 256 rows that are not given by
// pointers, bf16 or float32 outputs, no custom sinks). tile_n is 64 to 256 in steps of 32. With packed weights
// (GemmDescription::b_format) the schedule is cooperative, tile_m also 16 and 32, tile_n 128 or 256, and A alone is
// shared; a tile_m below 64 asks for what that of 8 asks for, the schedule aside.
struct HopperTuning {
  std::optional<WarpSchedule> schedule = {};  // how consumer warp groups share tiles
  std::optional<int> tile_m = {};             // rows of a tile
  std::optional<int> tile_n = {};             // columns of a tile
  std::optional<int> cluster = {};            // blocks: 1 or 2
  std::optional<Multicast> multicast = {};    // Either: Offsets and Masked only

  bool operator==(const HopperTuning&) const = default;
};

// sm_100a. tile_m is 128 times the cluster; with swap_ab it is 16, 32, 64, 128 or 256 (not for RowGroups). tile_n is 32
// to 256 in steps of 32, for MXFP4 on one block without a gate or custom sinks in steps of 16; with swap_ab it is 128
// times the cluster.
struct BlackwellTuning {
  std::optional<int> tile_m = {};   // rows of a tile
  std::optional<int> tile_n = {};   // columns of a tile
  std::optional<int> cluster = {};  // blocks: 1 or 2
  // LaunchControl hands out tiles as blocks finish, which evens out tiles of unequal length and a GPU that other
  // kernels share. Static deals them out beforehand.
  std::optional<TileSource> tile_source = {};
  // Whether B takes the side of the tensor cores that has 128 rows and A the other, which has as few as 16: for groups
  // of few rows. Where absent the plan decides; where tile_m or tile_n is given it is then off.
  std::optional<bool> swap_ab = {};

  bool operator==(const BlackwellTuning&) const = default;
};

// The choices of one architecture.
using Tuning = std::variant<HopperTuning, BlackwellTuning>;

}  // namespace moxie
