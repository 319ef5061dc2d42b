// SPDX-License-Identifier: Apache-2.0
// Judges the uses of tensor maps that the device rewrites: which version a copy may read, and when a map may be
// rewritten (PTX ISA 8.6, 9.7.13.4).
#pragma once
#include <cstdint>
#include <vector>

#include "sim/history/tensor_map_records.h"
#include "sim/machine/hierarchy.h"

namespace sim {

// A copy that `warp` issues reads the map: faults when the map is stale. `completions` are what must have been seen
// before the map may be rewritten.
void use_tensor_map(Warp& warp, uint64_t address, int lane, const std::vector<Stamp>& completions, Stamp map_read = {});
// A generic write to the map. Nothing may still be reading the map, and nobody has acquired its new version.
TensorMapRecord& rewrite_tensor_map(Warp& warp, uint64_t address, int lane);
// Called for a write of one lane (a store, an atomic, a copy) to bytes that may hold tensor maps, as
// TensorMapRecords::may_hold says. It rewrites every map that the bytes meet.
void tensor_map_written(Warp& warp, uint64_t address, uint32_t bytes, int lane);
void release_tensor_maps(Warp& warp);                   // fence.proxy.tensormap::generic.release
void acquire_tensor_map(Warp& warp, uint64_t address);  // fence.proxy.tensormap::generic.acquire

}  // namespace sim
