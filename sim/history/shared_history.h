// SPDX-License-Identifier: Apache-2.0
// What was done to the shared memory of a block: for every byte whether it has been written, and who wrote and who read
// it since. sim/hazards/shared_access.h decides by it.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "sim/history/clock.h"
#include "sim/history/lanes.h"
#include "sim/history/races.h"
#include "sim/history/writers.h"

namespace sim {

// Every 16 bytes (a granule) point at a history: what was done to them since they were last written. Granules that were
// treated alike share one, so that a copy of 48 KB looks at a handful of histories.
struct SharedHistory {
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
  std::vector<Granule> granules;
  std::vector<History> histories;
  LaneOrder lanes;
  Writers writers;  // in clusters of several blocks
  Races races;      // where several warps can reach the memory
  bool written_from_outside = false;
  // Of a byte that is not `written`: which of its bits are undefined, where a store has put them there. Empty: all.
  std::vector<uint8_t> undefined;

  void create(uint32_t bytes, bool in_cluster, bool shared_by_warps);
  uint32_t with_reader(uint32_t history, Stamp stamp, bool async);
  uint32_t add(const History& history);
  // The history of granules that a warp has written in an epoch, and nobody touched since.
  uint32_t written_by(Stamp stamp);
  // Drops histories that no granule has, when there are many.
  void collect() {
    if (histories.size() >= collect_at_) drop_unused();
  }

 private:
  void drop_unused();
  size_t collect_at_ = 8192;
  struct Written {
    Stamp stamp;
    uint32_t history = 0;
  };
  std::array<Written, 16> written_{};  // by Stamp::by, of the last epochs
};

}  // namespace sim
