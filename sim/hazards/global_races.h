// SPDX-License-Identifier: Apache-2.0
// Judges accesses to global memory by the order between them: those of one cluster as they are made, those of different
// clusters when the cluster has ended. The order is happens-before as the warps' views record it.
#pragma once
#include <cstdint>

#include "sim/history/grid_history.h"
#include "sim/machine/hierarchy.h"
#include "sim/memory/address_space.h"

namespace sim {

// An access by the lanes of the mask at address[lane], `size` bytes each (a power of two, aligned). `row`: all 32 lanes
// are there, one after the other. Behind a plain store, whose lanes are then Cluster::global_stores,
// finish_global_stores() is called.
void judge_global_access(Warp& warp, const uint64_t* address, uint32_t mask, uint32_t size, Access access, Reach reach,
                         bool row);
// A copy that the warp issues. Its `completion` is what others must observe. With a stamp of 0 it is in order with all
// that its cluster does later.
void judge_global_copy(Warp& warp, uint64_t address, uint64_t bytes, bool write, Reach reach, Stamp completion);
// What a store or a copy has stored.
void note_stored(Cluster& cluster, uint64_t address, const uint8_t* values, uint64_t bytes);
// Stores race by what they store: `values` has `size` bytes for each lane, which went to at[lane], or to the row.
void finish_global_stores(Warp& warp, const uint8_t* const* at, const uint8_t* row, const uint8_t* values,
                          uint32_t size);

// What is between clusters: a release at an address of global memory, and an acquire, of .gpu scope or .sys, which
// devices need. A relaxed operation releases what fences have covered, if anything, and what it acquires waits for a
// fence.
void release_to_grid(Warp& warp, uint64_t address, Reach reach, bool relaxed);
void acquire_from_grid(Warp& warp, uint64_t address, Reach reach, bool relaxed);
// A fence of .gpu scope or wider, in place of Warp::fence. `sequential`: fence.sc, or membar.
void fence_grid(Warp& warp, Reach reach, bool sequential);

// What a cluster that has ended did. Its own history is empty afterwards.
ClusterHistory take_history(Cluster& cluster);
// Holds it against what other clusters did. Races are deviations of the cluster.
void judge_cluster(Launch& launch, ClusterHistory& cluster, Deviations& deviations);
// Does both for a cluster whose launch has one host thread.
void judge_ended(Cluster& cluster);

}  // namespace sim
