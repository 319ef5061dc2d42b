// The memories: global (allocations with bounds, shared by all blocks), shared (one per block, with a shadow
// that records who touched what), and the generic address space that holds them.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <vector>

#include "sim/memory/clock.h"

namespace sim {

struct Warp;
struct Cta;

// Generic addresses. A global address is the host address of its byte. The windows lie above user space:
//   shared: kSharedWindow | (block rank + 1) << 24 | offset  -- cvta.shared of an own (rank-less) address names the own rank
//   param:  kParamWindow | offset        local: kLocalWindow | offset (of the executing lane)
// A 32-bit .shared address is `offset` (own block) or (rank + 1) << 24 | offset (shared::cluster, as mapa gives).
constexpr uint64_t kSharedWindow = 1ull << 56;
constexpr uint64_t kLocalWindow = 2ull << 56;
constexpr uint64_t kParamWindow = 3ull << 56;
constexpr uint64_t kWindowMask = 0xffull << 56;

// Device allocations. Thread-safe. Each allocation is followed and preceded by memory that no one owns.
class GlobalMemory {
 public:
  ~GlobalMemory();
  uint64_t allocate(uint64_t bytes);            // 256-byte aligned, 0 when there is no memory; bytes > 0
  bool free(uint64_t address);                  // false: not the start of a live allocation
  struct Range { uint64_t begin = 0, end = 0; };
  // The live allocation that holds address; an empty range when there is none.
  Range find(uint64_t address) const;
  bool contains(uint64_t address, uint64_t bytes) const;
  // "is 16 bytes past the end of the allocation of 4096 bytes at 0x...", "was freed", "belongs to no allocation"
  std::string explain(uint64_t address, uint64_t bytes) const;
  uint64_t used() const, limit() const;
  uint64_t version() const;                     // changes when an allocation is freed (caches of Range)

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
 public:
  GlobalMemory();
};

// Shared memory of a block. `data` is what is there; `shadow` has a record for every 16 bytes.
struct SharedMemory {
  struct Granule {
    Stamp generic_write;   // last write through the generic proxy
    Stamp async_write;     // last write through the async proxy: agent = mbarrier, at = phase in which it completes + 1
    Stamp async_read;      // last read through the async proxy still to be awaited: agent = bulk or wgmma groups of a warp
    bool written = false;
  };
  uint32_t size = 0;
  std::unique_ptr<uint8_t[]> data;    // 1024-byte aligned start inside storage
  std::vector<Granule> shadow;
  uint8_t* bytes = nullptr;           // aligned start
  void create(uint32_t size);
};

// Accesses of the generic proxy (ld, st, atom, ldmatrix, stmatrix, ...): bounds, uninitialised reads, data in
// flight. They throw Fault. `owner` is the block whose memory it is (another one of the cluster for remote
// access); size is of one lane. sim/memory/shared.cpp.
void shared_generic_read(Warp& warp, Cta& owner, uint32_t offset, uint32_t size, int lane);
void shared_generic_write(Warp& warp, Cta& owner, uint32_t offset, uint32_t size, int lane);
// Accesses of the async proxy issued by `warp`: order against generic writes and against other async work.
// The stamp is what others must observe before the bytes may be touched again.
void shared_async_read(Warp& warp, Cta& owner, uint32_t offset, uint32_t size, Stamp completion);
void shared_async_write(Warp& warp, Cta& owner, uint32_t offset, uint32_t size, Stamp completion);

// Pointer to global memory for a warp access; throws Fault (memory) when [address, address + size) is not all
// inside one live allocation. Caches the last allocation per host thread.
uint8_t* global_pointer(Warp& warp, uint64_t address, uint32_t size, int lane);

}  // namespace sim
