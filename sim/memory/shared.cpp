// Shared memory of a block and the order of accesses to it: uninitialised reads, data in flight, missing proxy
// fences. The order is happens-before as the warps' views record it, whatever the simulator ran first.
#include "sim/memory/memory.h"

#include <algorithm>
#include <cstring>

#include "sim/async/state.h"

namespace sim {

void SharedMemory::create(uint32_t bytes_wanted) {
  size = bytes_wanted;
  data = std::make_unique<uint8_t[]>(size + 1024);
  bytes = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(data.get()) + 1023) & ~uintptr_t{1023});
  // What a program has not written is not zero on a GPU either: all ones is a NaN in every float format.
  std::memset(bytes, 0xff, size);
  shadow.assign((size + 15) / 16, Granule{});
  histories.assign(1, History{});
  lanes.create(size);
}

uint32_t SharedMemory::add_history(const History& history) {
  histories.push_back(history);
  histories.back().next_stamp = {};
  return static_cast<uint32_t>(histories.size()) - 1;
}

uint32_t SharedMemory::with_reader(uint32_t index, Stamp stamp, bool async) {
  History& old = histories[index];
  if (old.next_stamp.by == stamp.by && old.next_stamp.at == stamp.at && stamp.at != 0) return old.next;
  for (int i = 0; i < old.readers; ++i) {
    if (old.reader[i].stamp.by == stamp.by && old.reader[i].stamp.at >= stamp.at) return index;
  }
  History fresh = old;
  int place = -1;
  for (int i = 0; i < fresh.readers; ++i) {
    if (fresh.reader[i].stamp.by == stamp.by) place = i;
  }
  if (place < 0 && fresh.readers < History::kReaders) place = fresh.readers++;
  // More readers than fit: forget a generic one, which can only be overtaken by a copy.
  for (int i = 0; place < 0 && i < fresh.readers; ++i) {
    if (!fresh.reader[i].async) place = i;
  }
  if (place < 0) place = 0;
  fresh.reader[place] = {stamp, async};
  const uint32_t result = add_history(fresh);
  histories[index].next_stamp = stamp;
  histories[index].next = result;
  return result;
}

void SharedMemory::collect() {
  if (histories.size() < collect_at) return;
  std::vector<uint32_t> renamed(histories.size(), UINT32_MAX);
  std::vector<History> kept(1, histories[0]);
  renamed[0] = 0;
  kept[0].next_stamp = {};
  for (Granule& granule : shadow) {
    uint32_t& name = renamed[granule.history];
    if (name == UINT32_MAX) {
      name = static_cast<uint32_t>(kept.size());
      kept.push_back(histories[granule.history]);
      kept.back().next_stamp = {};
    }
    granule.history = name;
  }
  collect_at = std::max<size_t>(8192, 2 * kept.size());
  histories = std::move(kept);
}

namespace {

bool seen(const Warp& warp, Stamp stamp) { return warp.view.seen[stamp.by] >= stamp.at; }

std::string place_text(const Warp& warp, const Cta& owner, uint32_t offset) {
  std::string text = "shared memory at offset " + hex(offset);
  if (&owner != warp.cta) text += " of block rank " + std::to_string(owner.rank);
  return text;
}

[[noreturn]] void out_of_bounds(const Warp& warp, const Cta& owner, uint32_t offset, uint32_t size, int lane) {
  fault(Hazard::Memory, warp, lane,
        std::to_string(size) + " bytes at " + place_text(warp, owner, offset) + " pass the end of the block's " +
            std::to_string(owner.shared.size) + " bytes");
}

[[noreturn]] void uninitialised(const Warp& warp, const Cta& owner, uint32_t offset, int lane) {
  fault(Hazard::Memory, warp, lane, "reads uninitialised " + place_text(warp, owner, offset));
}

[[noreturn]] void touches_mbarrier(const Warp& warp, const Cta& owner, uint32_t offset, int lane, const char* what) {
  fault(Hazard::MbarrierMisuse, warp, lane,
        std::string(what) + " " + place_text(warp, owner, offset) +
            ", which holds an mbarrier object that was not invalidated");
}

void check_in_flight(const Warp& warp, const Cta& owner, const SharedMemory::History& h, uint32_t offset, int lane,
                     const char* what, uint32_t mask = 0xffff) {
  if (h.kind < SharedMemory::Write::CpAsync || seen(warp, h.write)) return;
  if (h.kind == SharedMemory::Write::CpAsync) {
    uint32_t at = 0;
    for (int word = 0; word < 4; ++word) {
      if (mask >> (4 * word) & 0xf) at = std::max(at, h.copy[word]);
    }
    if (seen(warp, {h.write.by, at})) return;
  }
  fault(Hazard::DataInFlight, warp, lane,
        std::string(what) + " " + place_text(warp, owner, offset) + " while a copy is writing it: " +
            describe_agent(*warp.cta->cluster, h.write.by) + " has not been waited for");
}

void check_async_readers(const Warp& warp, const Cta& owner, const SharedMemory::History& h, uint32_t offset, int lane,
                         const char* what, bool generic_too, bool fenced = false) {
  for (int i = 0; i < h.readers; ++i) {
    const SharedMemory::Reader& r = h.reader[i];
    if (!(r.async || generic_too)) continue;
    if (seen(warp, r.stamp)) {
      // A read comes before a write of another proxy only by a proxy fence between them (PTX ISA 8.9.5, 8.10.6).
      if (r.async || !fenced || warp.view.fenced[r.stamp.by] >= r.stamp.at) continue;
      fault(Hazard::MissingProxyFence, warp, lane,
            std::string(what) + " " + place_text(warp, owner, offset) + ", which " +
                describe_agent(*warp.cta->cluster, r.stamp.by) +
                " has read through the generic proxy, and no fence.proxy.async stands between");
    }
    fault(Hazard::DataInFlight, warp, lane,
          std::string(what) + " " + place_text(warp, owner, offset) + " while " +
              (r.async ? "it is still being read: " : "it may still be read: ") +
              describe_agent(*warp.cta->cluster, r.stamp.by) +
              (r.async ? " has not been waited for" : " is not ordered before"));
  }
}

void check_async(const Warp& warp, const Cta& owner, const SharedMemory::History& h, uint32_t offset, int lane,
                 SharedAccess::Kind kind, uint32_t mask = 0xffff) {
  const char* what = kind == SharedAccess::Kind::AsyncRead    ? "an asynchronous operation reads"
                     : kind == SharedAccess::Kind::AsyncWrite ? "an asynchronous copy writes"
                                                              : "cp.async writes";
  // Four-byte cp.async operations share granules.
  if (kind != SharedAccess::Kind::CpAsyncWrite || h.kind != SharedMemory::Write::CpAsync)
    check_in_flight(warp, owner, h, offset, lane, what);
  if (kind != SharedAccess::Kind::CpAsyncWrite &&
      (h.kind == SharedMemory::Write::Generic || h.kind == SharedMemory::Write::CpAsync) &&
      warp.view.fenced[h.write.by] < h.write.at) {
    const std::string by = describe_agent(*warp.cta->cluster, h.write.by);
    if (!seen(warp, h.write)) {
      fault(Hazard::DataInFlight, warp, lane,
            std::string(what) + " " + place_text(warp, owner, offset) + " without being ordered after its write by " +
                by);
    }
    fault(Hazard::MissingProxyFence, warp, lane,
          std::string(what) + " " + place_text(warp, owner, offset) + ", which " + by +
              " wrote through the generic proxy, and no fence.proxy.async stands between");
  }
  // Who read a granule is not known word by word: a narrow copy is not held against readers of its neighbours.
  if (kind != SharedAccess::Kind::AsyncRead && mask == 0xffff)
    check_async_readers(warp, owner, h, offset, lane, what, true,
                        kind == SharedAccess::Kind::AsyncWrite && warp.cta->cluster->launch->rules.fenced_reads);
}

}  // namespace

void shared_generic_read(Warp& warp, Cta& owner, uint32_t offset, uint32_t size, int lane) {
  SharedMemory& memory = owner.shared;
  if (offset > memory.size || size > memory.size - offset) out_of_bounds(warp, owner, offset, size, lane);
  note_remote(warp, owner);
  memory.collect();
  const uint32_t end = offset + size;
  const Stamp stamp = warp.stamp();
  for (uint32_t at = offset; at < end;) {
    SharedMemory::Granule& granule = memory.shadow[at >> 4];
    const uint32_t stop = std::min(end, (at | 15) + 1);
    const uint32_t mask = ((1u << (stop - at)) - 1) << (at & 15);
    if (granule.mbarrier && (granule.mbarrier & ((mask & 0xff ? 1 : 0) | (mask >> 8 ? 2 : 0))))
      touches_mbarrier(warp, owner, at, lane, "reads");
    const SharedMemory::History& h = memory.histories[granule.history];
    check_in_flight(warp, owner, h, at, lane, "reads", mask);
    if ((granule.written & mask) != mask) uninitialised(warp, owner, at, lane);
    granule.history = memory.with_reader(granule.history, stamp, false);
    at = stop;
  }
}

void shared_generic_write(Warp& warp, Cta& owner, uint32_t offset, uint32_t size, int lane) {
  SharedMemory& memory = owner.shared;
  if (offset > memory.size || size > memory.size - offset) out_of_bounds(warp, owner, offset, size, lane);
  note_remote(warp, owner);
  memory.collect();
  const uint32_t end = offset + size;
  const Stamp stamp = warp.stamp();
  for (uint32_t at = offset; at < end;) {
    SharedMemory::Granule& granule = memory.shadow[at >> 4];
    const uint32_t stop = std::min(end, (at | 15) + 1);
    const uint32_t mask = ((1u << (stop - at)) - 1) << (at & 15);
    if (granule.mbarrier && (granule.mbarrier & ((mask & 0xff ? 1 : 0) | (mask >> 8 ? 2 : 0))))
      touches_mbarrier(warp, owner, at, lane, "writes to");
    const SharedMemory::History& h = memory.histories[granule.history];
    if (h.kind != SharedMemory::Write::Generic || h.write.by != stamp.by || h.write.at != stamp.at || h.readers != 0) {
      check_in_flight(warp, owner, h, at, lane, "writes to", mask);
      check_async_readers(warp, owner, h, at, lane, "writes to", false);
      // Neighbours written in the same epoch share the history.
      SharedMemory::History& last = memory.histories.back();
      if (last.kind == SharedMemory::Write::Generic && last.write.by == stamp.by && last.write.at == stamp.at &&
          last.readers == 0) {
        granule.history = static_cast<uint32_t>(memory.histories.size()) - 1;
      } else {
        SharedMemory::History fresh;
        fresh.kind = SharedMemory::Write::Generic;
        fresh.write = stamp;
        granule.history = memory.add_history(fresh);
      }
    }
    granule.written |= static_cast<uint16_t>(mask);
    at = stop;
  }
}

void shared_lane_read(Warp& warp, Cta& owner, uint32_t offset, uint32_t size, int lane) {
  if (&owner != warp.cta) return;
  const int writer = owner.shared.lanes.unordered_writer(static_cast<uint32_t>(warp.index), lane, offset, size);
  if (writer < 0) return;
  fault(Hazard::DataInFlight, warp, lane,
        "reads " + place_text(warp, owner, offset) + ", which lane " + std::to_string(writer) +
            " of the same warp wrote, and no bar.warp.sync or other barrier stands between");
}

void shared_lane_write(Warp& warp, Cta& owner, uint32_t offset, uint32_t size, int lane) {
  if (&owner == warp.cta && lane >= 0) {
    owner.shared.lanes.write(static_cast<uint32_t>(warp.index), lane, offset, size);
  } else {
    owner.shared.lanes.forget(offset, size);
  }
}

void release_lanes(Warp& warp, uint32_t mask) {
  warp.cta->shared.lanes.release(static_cast<uint32_t>(warp.index), mask);
}

void acquire_lanes(Warp& warp) { warp.cta->shared.lanes.acquire(static_cast<uint32_t>(warp.index)); }

SharedAccess::SharedAccess(Warp& warp, Cta& owner, Kind kind, Stamp completion, int lane)
    : warp_(warp),
      owner_(owner),
      kind_(kind),
      completion_(completion),
      lane_(lane),
      shadow_(owner.shared.shadow.data()) {
  SharedMemory& memory = owner.shared;
  memory.collect();
  if (kind != Kind::AsyncRead) {
    SharedMemory::History fresh;
    fresh.kind = kind == Kind::AsyncWrite ? SharedMemory::Write::Async : SharedMemory::Write::CpAsync;
    fresh.write = completion;
    std::fill_n(fresh.copy, 4, completion.at);
    new_ = memory.add_history(fresh);
  }
}

void SharedAccess::step(SharedMemory::Granule& granule, uint32_t offset, uint32_t mask) {
  SharedMemory& memory = owner_.shared;
  if (granule.history != old_) {
    old_ = granule.history;
    check_async(warp_, owner_, memory.histories[old_], offset, lane_, kind_,
                kind_ == Kind::CpAsyncWrite ? mask : 0xffff);
    if (kind_ == Kind::AsyncRead) {
      new_ = memory.with_reader(old_, completion_, true);
      const uint32_t old = old_;
      if (std::none_of(met_.begin(), met_.end(), [old](const Met& m) { return m.index == old; }))
        met_.push_back({old, offset, memory.histories[old]});
      const SharedMemory::Granule known{old_, 0xffff, 0}, next{new_, 0xffff, 0};
      static_assert(sizeof known == sizeof known_);
      std::memcpy(&known_, &known, sizeof known_);
      std::memcpy(&next_, &next, sizeof next_);
    } else if (kind_ == Kind::CpAsyncWrite && mask != 0xffff) {
      SharedMemory::History fresh;
      const SharedMemory::History& old = memory.histories[old_];
      fresh.kind = SharedMemory::Write::CpAsync;
      fresh.write = completion_;
      for (int word = 0; word < 4; ++word) {
        if (mask >> (4 * word) & 0xf)
          fresh.copy[word] = completion_.at;
        else if (old.kind == SharedMemory::Write::CpAsync && old.write.by == completion_.by)
          fresh.copy[word] = old.copy[word];
      }
      new_ = memory.add_history(fresh);
    }
  }
  granule.history = new_;
}

void SharedAccess::touch(uint32_t offset, uint32_t size) {
  SharedMemory& memory = owner_.shared;
  if (size == 0) return;
  if (offset > memory.size || size > memory.size - offset) out_of_bounds(warp_, owner_, offset, size, lane_);
  const uint32_t end = offset + size;
  const bool write = kind_ != Kind::AsyncRead;
  if (write) {
    memory.lanes.forget(offset, size);
  } else if (lane_ >= 0) {
    shared_lane_read(warp_, owner_, offset, size, lane_);
  }
  if (((offset | size) & 15) == 0) {
    for (uint32_t at = offset; at < end; at += 16) {
      SharedMemory::Granule& granule = memory.shadow[at >> 4];
      if (granule.history != old_) {
        step(granule, at);
      } else {
        granule.history = new_;
      }
      if (write) {
        if (granule.mbarrier) touches_mbarrier(warp_, owner_, at, lane_, "writes to");
        granule.written = 0xffff;
      } else if (granule.written != 0xffff) {
        uninitialised(warp_, owner_, at, lane_);
      }
    }
    return;
  }
  for (uint32_t at = offset; at < end;) {
    SharedMemory::Granule& granule = memory.shadow[at >> 4];
    const uint32_t stop = std::min(end, (at | 15) + 1);
    const uint32_t mask = ((1u << (stop - at)) - 1) << (at & 15);
    // A part of a granule that this operation has already written beside.
    if (!(write && granule.history == new_)) step(granule, at, mask);
    if (write) {
      if (granule.mbarrier) touches_mbarrier(warp_, owner_, at, lane_, "writes to");
      granule.written |= static_cast<uint16_t>(mask);
    } else if ((granule.written & mask) != mask) {
      uninitialised(warp_, owner_, at, lane_);
    }
    at = stop;
  }
}

void SharedAccess::check(Warp& other, Cta& owner, Kind kind, const std::vector<Met>& met) {
  for (const Met& m : met) check_async(other, owner, m.history, m.offset, -1, kind);
}

void shared_async_read(Warp& warp, Cta& owner, uint32_t offset, uint32_t size, Stamp completion) {
  SharedAccess(warp, owner, SharedAccess::Kind::AsyncRead, completion).touch(offset, size);
}

void shared_async_write(Warp& warp, Cta& owner, uint32_t offset, uint32_t size, Stamp completion) {
  SharedAccess(warp, owner, SharedAccess::Kind::AsyncWrite, completion).touch(offset, size);
}

}  // namespace sim
