// The memories: global (allocations with bounds, shared by all blocks), shared (one per block, with a shadow
// that records who touched what), and the generic address space that holds them.
#pragma once
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <vector>

#include "sim/memory/clock.h"
#include "sim/memory/lanes.h"
#include "sim/memory/writers.h"

namespace sim {

struct Warp;
struct Cta;

enum class Access : uint8_t { Read, Write, ReadWrite };

// Generic addresses. A global address is the host address of its byte. The windows lie above user space:
//   shared: kSharedWindow | (block rank + 1) << 24 | offset  -- cvta.shared of an own (rank-less) address names the own
//   rank param:  kParamWindow | offset        local: kLocalWindow | offset (of the executing lane)
// A 32-bit .shared address is `offset` (own block) or (rank + 1) << 24 | offset (shared::cluster, as mapa gives).
constexpr uint64_t kSharedWindow = 1ull << 56;
constexpr uint64_t kLocalWindow = 2ull << 56;
constexpr uint64_t kParamWindow = 3ull << 56;
constexpr uint64_t kWindowMask = 0xffull << 56;

// Device allocations. Thread-safe. Each allocation is followed and preceded by memory that no one owns.
class GlobalMemory {
 public:
  ~GlobalMemory();
  uint64_t allocate(uint64_t bytes);  // 256-byte aligned, 0 when there is no memory; bytes > 0
  struct Part {
    uint64_t bytes = 0, alignment = 1;
    uint64_t address = 0;  // is filled in
  };
  // Many small allocations, which only free_together() frees, given the address of any of them: a process can have no
  // more than some ten thousand mappings. False: there is no memory.
  bool allocate_together(std::vector<Part>& parts);
  void free_together(uint64_t address);
  bool free(uint64_t address);                   // false: not the start of a live allocation
  void adopt(uint64_t address, uint64_t bytes);  // memory that someone else owns, as an allocation; never freed here
  struct Range {
    uint64_t begin = 0, end = 0;
  };
  // The live allocation that holds address; an empty range when there is none.
  Range find(uint64_t address) const;
  bool contains(uint64_t address, uint64_t bytes) const;
  // "is 16 bytes past the end of the allocation of 4096 bytes at 0x...", "was freed", "belongs to no allocation"
  std::string explain(uint64_t address, uint64_t bytes) const;
  uint64_t used() const, limit() const;
  uint64_t version() const;  // changes when an allocation is freed (caches of Range)

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;

 public:
  GlobalMemory();
};

// Shared memory of a block. Every 16 bytes (a granule) point at a history: what was done to them since they were
// last written. Granules that were treated alike share one, so that a copy of 48 KB looks at a handful of histories.
struct SharedMemory {
  enum class Write : uint8_t {
    None,
    Generic,  // ld/st/atom: by = the warp
    CpAsync,  // cp.async: by = the warp's cp.async operations; the generic proxy, but in flight until waited for
    Async,    // bulk copies: by = the mbarrier, at = the phase in which they complete + 1
  };
  struct Reader {
    Stamp stamp;  // by = the warp, or the bulk or wgmma groups that read through the async proxy
    bool async = false;
  };
  struct History {
    static constexpr int kReaders = 10;
    Stamp write;
    Write kind = Write::None;
    uint8_t readers = 0;
    Reader reader[kReaders];  // since that write, at most one an agent
    uint32_t copy[4] = {};    // CpAsync: write.at of each word, since copies of 4 and 8 bytes share a granule
    Stamp next_stamp;         // the transition taken last: this history and that reader gives `next`
    uint32_t next = 0;
  };
  struct Granule {
    uint32_t history = 0;
    uint16_t written = 0;   // one bit a byte
    uint16_t mbarrier = 0;  // one bit for each half that holds a live mbarrier object
  };
  uint32_t size = 0;
  std::unique_ptr<uint8_t[]> data;
  std::vector<Granule> shadow;
  std::vector<History> histories;
  LaneOrder lanes;
  Writers writers;  // in clusters of several blocks
  bool written_from_outside = false;
  uint8_t* bytes = nullptr;  // 1024-byte aligned start inside data
  void create(uint32_t size, bool in_cluster);
  uint32_t with_reader(uint32_t history, Stamp stamp, bool async);
  uint32_t add_history(const History& history);
  // The history of granules that a warp has written in an epoch, and nobody touched since.
  uint32_t written_by(Stamp stamp);
  // Drops histories that no granule has, when there are many.
  void collect() {
    if (histories.size() >= collect_at) drop_unused();
  }
  void drop_unused();
  size_t collect_at = 8192;
  struct Written {
    Stamp stamp;
    uint32_t history = 0;
  };
  std::array<Written, 16> written{};  // by Stamp::by, of the last epochs
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
// A plain or `strong` access of the lanes of the mask at offset[lane], `size` bytes each (a power of two, aligned),
// with the order between the warp's lanes. `row`: all 32 lanes are there, one after the other.
void shared_warp_access(Warp& warp, Cta& owner, const uint64_t* offset, uint32_t mask, uint32_t size, Access access,
                        bool strong, bool row);
// The order between plain accesses of global memory by the blocks of one cluster.
void global_warp_access(Warp& warp, const uint64_t* address, uint32_t mask, uint32_t size, Access access, bool strong);
// Order between the lanes of one warp: a plain read or write by `lane`; a read by the whole warp has lane -1.
void shared_lane_read(Warp& warp, Cta& owner, uint32_t offset, uint32_t size, int lane);
void shared_lane_write(Warp& warp, Cta& owner, uint32_t offset, uint32_t size, int lane);
// What the lanes of `mask` wrote may from here on be known to others (any barrier, arrival or fence).
void release_lanes(Warp& warp, uint32_t mask);
// The warp has observed what others published.
void acquire_lanes(Warp& warp);

// The same for an operation that touches many pieces of one block's memory: the histories it meets are checked once.
class SharedAccess {
 public:
  enum class Kind { AsyncRead, AsyncWrite, CpAsyncWrite };
  SharedAccess(Warp& warp, Cta& owner, Kind kind, Stamp completion, int lane = -1);
  void touch(uint32_t offset, uint32_t size);  // faults (memory) when it is not all inside the block's memory
  // 32 aligned bytes that are known to be inside, read.
  void touch_pair(uint32_t offset) {
    SharedMemory::Granule* const two = shadow_ + (offset >> 4);
    uint64_t now[2];
    std::memcpy(now, two, sizeof now);
    if (now[0] != known_ || now[1] != known_) return touch(offset, 32);
    const uint64_t next[2] = {next_, next_};
    std::memcpy(two, next, sizeof next);
  }
  // The histories met so far with the place of each, for others whose view is to be held against the same bytes.
  struct Met {
    uint32_t index, offset;
    SharedMemory::History history;
  };
  std::vector<Met> take_met() { return std::move(met_); }
  static void check(Warp& other, Cta& owner, Kind kind, const std::vector<Met>& met);

 private:
  void step(SharedMemory::Granule& granule, uint32_t offset, uint32_t mask = 0xffff);
  Warp& warp_;
  Cta& owner_;
  Kind kind_;
  Stamp completion_;
  int lane_;
  SharedMemory::Granule* shadow_;
  uint32_t old_ = UINT32_MAX, new_ = 0;
  // A granule with history old_ and no byte unwritten, and what a read makes of it, as they lie in memory.
  uint64_t known_ = UINT64_MAX, next_ = 0;
  std::vector<Met> met_;
};

// Pointer to global memory for a warp access; throws Fault (memory) when [address, address + size) is not all
// inside one live allocation. Caches the last allocation per host thread.
uint8_t* global_pointer(Warp& warp, uint64_t address, uint32_t size, int lane);
// True when [begin, end) lies in one live allocation; remembers the last ones per host thread.
bool global_range_cached(const GlobalMemory& memory, uint64_t begin, uint64_t end);

}  // namespace sim
