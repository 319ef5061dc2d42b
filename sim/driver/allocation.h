// SPDX-License-Identifier: Apache-2.0
// The allocations that the device and the host share, and the pools that some of them come from.
#pragma once
#include <array>
#include <cstdint>
#include <memory>

#include "sim/driver/abi.h"
#include "sim/memory/global.h"

namespace sim::driver {

struct Allocation {
  enum class Kind { Device, Host, Registered, Managed, Pool, Graph, Mapped };
  uint64_t address = 0;
  uint64_t bytes = 0;
  Kind kind = Kind::Device;
  // Null for module variables, for registered memory and for memory of graphs.
  CUcontext context = nullptr;
  // That it belongs to; that of the host belongs to none.
  int device = 0;
  CUmemoryPool pool = nullptr;
  unsigned flags = 0;
  uint64_t id = 0;
};

// Memory that cuMemCreate made: pages of a file without a name, which may be mapped at several addresses.
struct PhysicalMemory {
  int file = -1;
  uint64_t bytes = 0;
  int device = 0;
  uint64_t known_as = 0;  // as Residence has it
  bool released = false;
  ~PhysicalMemory();
};
// Where a part of it is mapped.
struct MappedMemory {
  uint64_t bytes = 0;
  std::shared_ptr<PhysicalMemory> memory;
  uint64_t handle = 0, offset = 0;
  uint64_t devices = 0;  // that have access, one bit each
};

// The allocation that the address lies in, or null.
Allocation* find_allocation(uint64_t address);
// With a context the memory is that of its device. Otherwise `device` says whose it is.
uint64_t allocate(CUcontext context, uint64_t bytes, Allocation::Kind kind, unsigned flags = 0,
                  CUmemoryPool pool = nullptr, int device = 0);
// Where the memory of an allocation of this kind lies, and who may access it.
Residence residence_of(Allocation::Kind kind, int device, CUmemoryPool pool);
// Gives back the allocation that begins at the address, if there is one.
void release(uint64_t address);

// Where a range is said to lie. A unified address may be either.
enum class Side { Host, Device, Unified };
void check_range(uint64_t address, uint64_t bytes, Side side);
// True when all of the range lies inside one allocation.
bool is_live(uint64_t address, uint64_t bytes);
// The bytes from the first to the last of a pitched box.
uint64_t span(uint64_t width, uint64_t height, uint64_t depth, uint64_t pitch, uint64_t slice);

}  // namespace sim::driver

struct CUmemPoolHandle_st {
  bool is_default = false;
  int device = 0;
  // The other devices that may access what comes from it, one bit each.
  uint64_t peers = 0;
  uint64_t used = 0, used_high = 0, release_threshold = 0;
  std::array<int, 4> reuse{0, 1, 1, 1};
};
