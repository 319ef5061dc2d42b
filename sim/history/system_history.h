// SPDX-License-Identifier: Apache-2.0
// What was done to memory that several devices share, and what each part of a program knows of what others did. A view
// (sim/history/clock.h) tells what happened inside a cluster; knowledge is the same for all devices.
// sim/hazards/system_access.h decides by it.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/history/clock.h"
#include "sim/history/global_touches.h"

namespace sim {

// An access by a kernel, a copy or a fill. Kernels and copies are works: they stand in lines, and who knows a work
// knows what is before it in its line.
struct SystemAccess {
  Stamp work;  // by = the line
  int device = 0;
  uint64_t cluster = 0;  // 0: all of the work
  Stamp stamp;           // inside the cluster
  uint32_t name = 0;     // SystemHistory::name_of()
  int ptx_line = 0;
  bool async = false;
  Reach reach = Reach::Weak;
};

// Works that have ended before, and for clusters that need not have ended what of them has happened before.
struct Knowledge {
  Clock works;
  struct Part {
    uint64_t cluster = 0;
    Stamp work;
    Clock clock;
  };
  std::vector<std::shared_ptr<const Part>> parts;  // in the order of the clusters
  void join(const Knowledge& other);
  // All that has happened of a cluster until its clock shows this.
  void add(uint64_t cluster, Stamp work, const Clock& clock);
  const Part* part_of(uint64_t cluster) const;
  bool has_ended(Stamp work) const { return works[work.by] >= work.at; }
  bool covers(const SystemAccess& access) const;
};

struct Published {
  Knowledge known;
  Knowledge fenced;  // the part that is ordered before accesses through the async proxy
  void join(const Published& other) {
    known.join(other.known);
    fenced.join(other.fenced);
  }
};

// What releases of memory at an address have published: at .sys scope and at .gpu scope, by device, and beyond that
// what was published for nobody on another device, or in another cluster.
struct SystemFlag {
  std::map<int, Published> system, device;
  Knowledge narrow;
  uint64_t version = 0;
};

// What a cluster has learned from others, and when. An entry holds for whoever has seen its stamp.
struct SystemCluster {
  uint64_t id = 0;
  struct Learned {
    Stamp at;
    Published published;
    Knowledge narrow;  // what the scopes kept from it
  };
  std::vector<Learned> learned;
  struct OfWarp {
    Clock device_fence, system_fence;  // what the last fences of these scopes let relaxed operations publish
    bool has_fenced = false, has_read = false;
    // What relaxed reads since the last fence may bring.
    Published device_read, system_read;
    Knowledge narrow_read;
    std::unordered_map<uint64_t, uint64_t> versions;  // of flags, when they were last read
    struct Recent {
      const void* source = nullptr;
      Stamp stamp;
      uint32_t id = 0;
    };
    std::array<Recent, 4> recent{};
    unsigned next = 0;
  };
  std::map<const void*, OfWarp> warps;
};

// The part of a launch in this.
struct SystemLaunch {
  class SystemHistory* history = nullptr;
  Stamp work;
  uint32_t name = 0;
  Knowledge begin, end;  // what its threads know from the beginning, and what who knows that it has ended knows
  // Of `begin`, what those know that have not waited for predecessor grids which may still run.
  Knowledge early;
};

// All that was done to shared memory. What it gives is guarded by its mutex, which the caller holds.
class SystemHistory {
 public:
  SystemHistory();
  ~SystemHistory();
  std::mutex mutex;

  // A region of memory that devices share. Its words have histories.
  struct Region {
    uint64_t begin = 0, end = 0;
    int device = 0;
    uint32_t* words = nullptr;
  };
  Region& region(uint64_t begin, uint64_t end, int device);
  // The memory is given back.
  void forget(uint64_t begin);
  // Everything that was done happened before whatever follows.
  void forget_all();

  uint32_t name_of(const std::string& text);
  const std::string& text_of(uint32_t name) const { return names_[name]; }
  uint32_t add(const SystemAccess& access);
  const SystemAccess& operator[](uint32_t id) const { return accesses_[id]; }
  uint64_t new_cluster() { return ++clusters_; }

  std::unordered_map<uint64_t, SystemFlag> flags;  // by address

  // Notes an access to words of a region. Calls judge(earlier, is_write) for each earlier access that it meets.
  template <class Judge>
  void touch(Region& region, uint64_t address, uint64_t bytes, uint32_t id, bool write, Judge judge) {
    const uint64_t first = (address - region.begin) / 4, last = (address + bytes - region.begin + 3) / 4;
    if (address % 4 != 0 || bytes % 4 != 0) {  // Parts of words are not followed.
      if (write) std::fill(region.words + first, region.words + last, 0u);
      return;
    }
    uint32_t before = UINT32_MAX, after = 0;
    for (uint64_t word = first; word < last; ++word) {
      const uint32_t now = region.words[word];
      if (now != before) {
        const History history = histories_[now];
        if (history.write != 0) judge(history.write, true, region.begin + 4 * word);
        for (int i = 0; write && i < history.readers; ++i)
          judge(history.reader[static_cast<size_t>(i)], false, region.begin + 4 * word);
        before = now;
        after = next(now, id, write);
      }
      region.words[word] = after;
    }
  }

 private:
  struct History {
    uint32_t write = 0;
    int readers = 0;
    std::array<uint32_t, 6> reader{};
  };
  struct Memo {
    uint32_t from = 0, id = 0, to = 0;
    bool write = false;
  };
  uint32_t next(uint32_t history, uint32_t id, bool write);

  std::map<uint64_t, Region> regions_;
  std::vector<std::string> names_;
  std::map<std::string, uint32_t> numbers_;
  std::vector<SystemAccess> accesses_;
  std::vector<History> histories_;
  std::vector<Memo> memos_;
  uint64_t clusters_ = 0;
};

}  // namespace sim
