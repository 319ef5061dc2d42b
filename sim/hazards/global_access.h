// SPDX-License-Identifier: Apache-2.0
// Judges accesses to global memory: their bounds, what unfinished predecessor grids may still write, and what other
// blocks of the cluster have written.
#pragma once
#include <cstdint>

#include "sim/machine/hierarchy.h"
#include "sim/machine/launch.h"
#include "sim/memory/address_space.h"

namespace sim {

// The bytes of an access by one lane. Faults (memory) when [address, address + size) is not all inside one live
// allocation.
uint8_t* global_pointer(Warp& warp, uint64_t address, uint32_t size, int lane);
// Why the bytes may not be accessed: "is 16 bytes past the end of ...", "belongs to device 1: device 0 has ...".
std::string explain_global(const Launch& launch, uint64_t address, uint64_t bytes);

// Checks and notes the order between plain accesses of global memory by the blocks of one cluster.
void global_warp_access(Warp& warp, const uint64_t* address, uint32_t mask, uint32_t size, Access access, bool strong);
// A plain read by `warp` must be ordered after another block's plain write of the word by operations whose scopes
// include both (PTX ISA 8.7.1, 8.9.4): the write must be in the reader's causality order. Otherwise it is `uncaused`.
bool is_uncaused(const Warp& warp, Stamp write);
[[noreturn]] void fault_uncaused(const Warp& warp, Stamp write, int lane, const std::string& place);

// Whether threads of other grids are within the scope of an access. Two such accesses are morally strong (PTX ISA
// 8.7.1).
inline bool reaches_grids(Reach reach) { return reach >= Reach::Device; }
// Faults when the bytes belong to what an unfinished predecessor grid has written, if either access may race.
void check_unfinished(Warp& warp, uint64_t address, uint64_t bytes, bool write, int lane, Reach reach);
// Counts the bytes that an instruction, or a copy that it issues, reads and writes, for MOXIE_SIM_STATISTICS.
inline void count_global(const Cluster& cluster, uint64_t bytes, bool read, bool write) {
  if (cluster.statistics == nullptr) return;
  if (read) cluster.statistics->bytes_read += bytes;
  if (write) cluster.statistics->bytes_written += bytes;
}
// Called when a warp touches global memory, itself or by a copy that it issues.
inline void note_global(Warp& warp, uint64_t address, uint64_t bytes, bool write, int lane, Reach reach = Reach::Weak) {
  Cluster& cluster = *warp.cta->cluster;
  if (write && cluster.logs_writes)
    (reaches_grids(reach) ? cluster.written.strong : cluster.written.plain).add(address, bytes);
  if (!cluster.launch->predecessors.unfinished_writes.empty())
    check_unfinished(warp, address, bytes, write, lane, reach);
}

}  // namespace sim
