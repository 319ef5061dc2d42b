// SPDX-License-Identifier: Apache-2.0
// Judges accesses to memory that several devices share, by what happened before at system scope (PTX ISA 8.5, 8.7 to
// 8.9). Only accesses of different devices are judged.
#pragma once
#include <cstdint>

#include "sim/history/system_history.h"
#include "sim/machine/hierarchy.h"
#include "sim/machine/launch.h"

namespace sim {

// An access by the lanes of a warp, each at its address, of `size` bytes.
void system_warp_access(Warp& warp, const uint64_t* address, uint32_t mask, uint32_t size, Access access, Reach reach);
// A read or write that `stamp` completes, through the generic proxy or the async one. A reduction has a reach.
void system_copy_access(Warp& warp, uint64_t address, uint64_t bytes, bool write, Stamp stamp, bool async, Reach reach,
                        int lane);

// A strong operation at an address of global memory.
void system_publish(Warp& warp, uint64_t address, Reach reach, bool release);
void system_observe(Warp& warp, uint64_t address, Reach reach, bool acquire);
void system_fence(Warp& warp, Reach reach);
void system_proxy_fence(Warp& warp);

// A cluster begins, or its last thread has left.
void system_begin(Cluster& cluster);
void system_finish(Cluster& cluster);

// An access by a copy or a fill that the host has enqueued, as all of its work. What is wrong with it; empty when
// nothing is.
std::string system_work_access(SystemHistory& history, const GlobalMemory& memory, const SystemAccess& access,
                               const Knowledge& known, uint64_t address, uint64_t bytes, bool write);

}  // namespace sim
