// SPDX-License-Identifier: Apache-2.0
// Global memory: device allocations with bounds, shared by all blocks.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/memory/undefined_bytes.h"

namespace sim {

// Whose memory an allocation is, and which devices may access it.
struct Residence {
  static constexpr int kEverywhere = -1;
  int device = kEverywhere;  // or memory of the host, or of a program that has one device
  // Other devices that may access it, one bit each. Where `by_context` is set those that have enabled access to the
  // memory of the device may, too.
  uint64_t peers = 0;
  bool by_context = false;
  // The device itself may only where `peers` says so.
  bool by_mask_alone = false;
  // Where the same bytes may have several addresses, the one by which their order is known; 0: their address.
  uint64_t known_as = 0;
};

// Device allocations. All members are thread-safe. Memory that no one owns lies before and behind each allocation.
class GlobalMemory {
 public:
  ~GlobalMemory();
  // 256-byte aligned, 0 when there is no memory; bytes > 0
  uint64_t allocate(uint64_t bytes, const Residence& residence = {});
  struct Part {
    uint64_t bytes = 0, alignment = 1;
    uint64_t address = 0;  // is filled in
  };
  // Makes many small allocations in one mapping, since a process can have only some ten thousand mappings. Only
  // free_together() frees them, given the address of any of them. Returns false when there is no memory.
  bool allocate_together(std::vector<Part>& parts, const Residence& residence = {});
  void free_together(uint64_t address);
  bool free(uint64_t address);                   // false: not the start of a live allocation
  void adopt(uint64_t address, uint64_t bytes);  // memory that someone else owns, as an allocation; never freed here
  // Memory that was mapped elsewhere becomes an allocation, and ceases to be one.
  void map(uint64_t address, uint64_t bytes, const Residence& residence);
  void unmap(uint64_t address);
  struct Range {
    uint64_t begin = 0, end = 0;
    Residence residence{};
    uint64_t known_as() const { return residence.known_as != 0 ? residence.known_as : begin; }
  };
  // Replaces the devices that may access the allocation that begins at the address.
  void set_peers(uint64_t address, uint64_t peers);
  // Whether `device` may access what belongs to `owner` by its context.
  void enable_peer(int device, int owner, bool enabled);
  bool accessible(const Range& range, int device) const;
  // Whether devices beside its own may access it.
  bool is_shared(const Range& range) const;
  // The live allocation that holds address; an empty range when there is none.
  Range find(uint64_t address) const;
  // Whether all bytes belong to live allocations. Several do where one begins at the end of another, which memory that
  // was mapped does (cuMemMap).
  bool contains(uint64_t address, uint64_t bytes) const;
  // "is 16 bytes past the end of the allocation of 4096 bytes at 0x...", "was freed", "belongs to no allocation"
  std::string explain(uint64_t address, uint64_t bytes) const;
  uint64_t used() const, limit() const;
  uint64_t version() const;  // changes when an allocation is freed (caches of Range)
  UndefinedBytes undefined;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;

 public:
  GlobalMemory();
};

// The device whose kernel the calling host thread executes from now on.
void enter_device(int device);
// True when [begin, end) lies in live allocations that this thread's device may access, without a gap. Each host thread
// remembers the last ones it found.
bool global_range_cached(const GlobalMemory& memory, uint64_t begin, uint64_t end);

}  // namespace sim
