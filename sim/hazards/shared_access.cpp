// SPDX-License-Identifier: Apache-2.0
#include "sim/hazards/shared_access.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "sim/hazards/global_access.h"
#include "sim/hazards/undefined.h"
#include "sim/machine/agents.h"
#include "sim/machine/fault.h"
#include "sim/machine/launch.h"

namespace sim {

namespace {

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

// An access at `offset` reads bytes of its granule that nobody has written.
void uninitialised(Warp& warp, Cta& owner, uint32_t offset, uint32_t unwritten, int lane) {
  deviation(Hazard::Memory, warp, lane, [&] { return "reads uninitialised " + place_text(warp, owner, offset); });
  met_unwritten(warp, owner, offset / 16, unwritten);
}

[[noreturn]] void touches_mbarrier(const Warp& warp, const Cta& owner, uint32_t offset, int lane, const char* what) {
  fault(Hazard::MbarrierMisuse, warp, lane,
        std::string(what) + " " + place_text(warp, owner, offset) +
            ", which holds an mbarrier object that was not invalidated");
}

// Whether bytes of a granule belong to an mbarrier object, which has eight of them.
bool meets_mbarrier(const SharedHistory::Granule& granule, uint32_t mask) {
  return granule.mbarrier != 0 && (granule.mbarrier & ((mask & 0xff ? 1 : 0) | (mask >> 8 ? 2 : 0))) != 0;
}

void check_in_flight(const Warp& warp, const Cta& owner, const SharedHistory::History& h, uint32_t offset, int lane,
                     const char* what, uint32_t mask = 0xffff) {
  if (h.kind < SharedHistory::Write::CpAsync || warp.has_seen(h.write)) return;
  if (h.kind == SharedHistory::Write::CpAsync) {
    uint32_t at = 0;
    for (int word = 0; word < 4; ++word) {
      if (mask >> (4 * word) & 0xf) at = std::max(at, h.copy[word]);
    }
    if (warp.has_seen({h.write.by, at})) return;
  }
  fault(Hazard::DataInFlight, warp, lane,
        std::string(what) + " " + place_text(warp, owner, offset) + " while a copy is writing it: " +
            describe_agent(*warp.cta->cluster, h.write.by) + " has not been waited for");
}

void check_async_readers(const Warp& warp, const Cta& owner, const SharedHistory::History& h, uint32_t offset, int lane,
                         const char* what, bool generic_too, bool fenced = false) {
  for (int i = 0; i < h.readers; ++i) {
    const SharedHistory::Reader& r = h.reader[i];
    if (!(r.async || generic_too)) continue;
    if (warp.has_seen(r.stamp)) {
      // A read comes before a write of another proxy only by a proxy fence between them (PTX ISA 8.9.5, 8.10.6).
      if (r.async || !fenced || warp.view.fenced[r.stamp.by] >= r.stamp.at) continue;
      deviation(Hazard::MissingProxyFence, warp, lane, [&] {
        return std::string(what) + " " + place_text(warp, owner, offset) + ", which " +
               describe_agent(*warp.cta->cluster, r.stamp.by) +
               " has read through the generic proxy, and no fence.proxy.async stands between";
      });
      continue;
    }
    const AgentInfo& reader = warp.cta->cluster->agents[r.stamp.by];
    if (reader.kind == AgentInfo::Kind::Reads) {
      const Warp& other = *reader.cta->warps[reader.index];
      if (other.reads.came_before(r.stamp.by, warp.view.seen[other.self])) {
        fault(Hazard::DataInFlight, warp, lane,
              std::string(what) + " " + place_text(warp, owner, offset) +
                  " while it may still be read: nothing has brought the lanes of " +
                  describe_agent(*warp.cta->cluster, r.stamp.by) + " that read it together since (bar.warp.sync)");
      }
    }
    fault(Hazard::DataInFlight, warp, lane,
          std::string(what) + " " + place_text(warp, owner, offset) + " while " +
              (r.async ? "it is still being read: " : "it may still be read: ") +
              describe_agent(*warp.cta->cluster, r.stamp.by) +
              (r.async ? " has not been waited for" : " is not ordered before"));
  }
}

void check_async(const Warp& warp, const Cta& owner, const SharedHistory::History& h, uint32_t offset, int lane,
                 SharedAccess::Kind kind, uint32_t mask = 0xffff) {
  const char* what = kind == SharedAccess::Kind::AsyncRead    ? "an asynchronous operation reads"
                     : kind == SharedAccess::Kind::AsyncWrite ? "an asynchronous copy writes"
                                                              : "cp.async writes";
  // Four-byte cp.async operations share granules.
  if (kind != SharedAccess::Kind::CpAsyncWrite || h.kind != SharedHistory::Write::CpAsync)
    check_in_flight(warp, owner, h, offset, lane, what);
  if (kind != SharedAccess::Kind::CpAsyncWrite &&
      (h.kind == SharedHistory::Write::Generic || h.kind == SharedHistory::Write::CpAsync) &&
      warp.view.fenced[h.write.by] < h.write.at) {
    const std::string by = describe_agent(*warp.cta->cluster, h.write.by);
    if (!warp.has_seen(h.write)) {
      fault(Hazard::DataInFlight, warp, lane,
            std::string(what) + " " + place_text(warp, owner, offset) + " without being ordered after its write by " +
                by);
    }
    const auto text = [&] {
      return std::string(what) + " " + place_text(warp, owner, offset) + ", which " + by +
             " wrote through the generic proxy, and no fence.proxy.async stands between";
    };
    // Who writes over what was read knows that it had been written, and who waited for a cp.async that it is done.
    const bool was_read = std::any_of(h.reader, h.reader + h.readers, [&](const SharedHistory::Reader& r) {
      return !r.async && warp.has_seen(r.stamp);
    });
    const bool is_done =
        h.kind == SharedHistory::Write::CpAsync || (kind == SharedAccess::Kind::AsyncWrite && was_read);
    if (!is_done) fault(Hazard::MissingProxyFence, warp, lane, text());
    deviation(Hazard::MissingProxyFence, warp, lane, text);
  }
  // Who read a granule is not known word by word: a narrow copy is not held against readers of its neighbours.
  if (kind != SharedAccess::Kind::AsyncRead && mask == 0xffff)
    check_async_readers(warp, owner, h, offset, lane, what, true, kind == SharedAccess::Kind::AsyncWrite);
}

// ---- races --------------------------------------------------------------------------------------

// Whether the access is among what was `seen`, or the warp made it itself, which stays so.
bool is_known(const Warp& warp, const Touch& touch, const Clock& seen) {
  if (seen[touch.stamp.by] >= touch.stamp.at) return true;
  const AgentInfo& by = warp.cta->cluster->agents[touch.stamp.by];
  return by.cta == warp.cta && by.index == static_cast<uint32_t>(warp.index);
}

// Whether the access comes before what the warp does now, by what was `seen`. Reads by lanes that have told nobody
// count as ordered once any lane of their warp has released: what holds between the lanes of a warp is not asked here.
bool comes_before(const Warp& warp, const Touch& touch, const Clock& seen) {
  if (is_known(warp, touch, seen)) return true;
  const AgentInfo& by = warp.cta->cluster->agents[touch.stamp.by];
  if (by.kind != AgentInfo::Kind::Reads) return false;
  const Warp& other = *by.cta->warps[by.index];
  return other.reads.came_before(touch.stamp.by, seen[other.self]);
}

// Published code lets an atomic or volatile access meet a plain one, and relies on what is over on a GPU.
bool is_relied_on(const Warp& warp, const Touch& now, const Touch& other) {
  return now.strong != other.strong || comes_before(warp, other, warp.view.weak);
}

std::string race_text(const Warp& warp, const Cta& owner, uint32_t offset, const Touch& now, const Touch& other,
                      uint64_t last) {
  const Cluster& cluster = *warp.cta->cluster;
  std::string text = std::string(now.write ? "writes to " : "reads ") + place_text(warp, owner, offset) + ", which " +
                     describe_agent(cluster, other.stamp.by) + (other.write ? " wrote" : " read");
  const AgentInfo& by = cluster.agents[other.stamp.by];
  if (last >> 32 == by.cta->warps[by.index]->self) {
    const Kernel& kernel = *cluster.launch->kernel;
    text += " at " + describe_instruction(kernel, kernel.code[static_cast<uint32_t>(last)].source);
  }
  text += ", and nothing orders the two: ";
  if (warp.has_read && warp.read_view.seen[other.stamp.by] >= other.stamp.at)
    return text + "a fence is missing after the relaxed read that followed it";
  if (now.strong != other.strong) text += "only one of them is atomic or volatile, and ";
  return text + "a barrier, or a release and an acquire, is missing between them";
}

// The first of the bytes of both.
uint32_t first_common(uint32_t granule, const Touch& a, const Touch& b) {
  return granule * 16 + static_cast<uint32_t>(__builtin_ctz(static_cast<uint32_t>(a.bytes & b.bytes)));
}

// What an instruction is to others that touch the same bytes. A plain store of the value that is there already races
// with no other store.
enum class Racing { Unasked, Plain, PlainStore, Strong };

}  // namespace

void judge_unordered_stores(Warp& warp) {
  std::vector<UnorderedStore>& stores = warp.cta->cluster->unordered_stores;
  const std::vector<UnorderedStore> suspects = std::move(stores);
  stores.clear();
  for (const UnorderedStore& store : suspects) {
    const uint8_t* const now = store.owner->shared.bytes + size_t{store.granule} * 16;
    for (uint32_t rest = store.bytes; rest != 0; rest &= rest - 1) {
      const auto byte = static_cast<uint32_t>(__builtin_ctz(rest));
      if (now[byte] == store.before[byte]) continue;
      const Touch own{warp.stamp(), store.bytes, true, false};
      judge_race(warp, store.lane, is_relied_on(warp, own, store.other), [&] {
        return race_text(warp, *store.owner, store.granule * 16 + byte, own, store.other, store.last);
      });
      break;
    }
  }
}

namespace {

// Reads or writes of one instruction by the generic proxy, granule by granule. What one granule's history becomes is
// kept for the others with the same one.
template <bool kWrite>
class GenericAccess {
 public:
  GenericAccess(Warp& warp, Cta& owner, Stamp stamp, Racing racing)
      : warp_(warp), owner_(owner), history_(owner.history), stamp_(stamp), racing_(racing) {
    history_.collect();
    granules_ = history_.granules.data();
    if (racing == Racing::Unasked || !history_.races.kept()) return;
    history_.races.collect();
    lists_ = history_.races.list_of_granules();
    last_ = history_.races.last(kWrite);
    who_ = uint64_t{warp.self} << 32 | static_cast<uint32_t>(warp.pc());
  }
  void touch(uint32_t granule, uint32_t mask, int lane) {
    note(granule, mask, lane);
    if (lists_ == nullptr) return;
    uint32_t& list = lists_[granule];
    const Step& step = steps_[__builtin_ctz(mask) / 2];
    if (list == step.before && mask == step.bytes) [[likely]]
      list = step.after;
    else if (list != step.after || mask != step.bytes)
      race(list, granule, mask, lane);
    uint64_t* const last = last_ + size_t{granule} * 2;
    if ((last[0] ^ who_) >> 32 != 0) last[1] = last[0];
    last[0] = who_;
  }
  // Bytes of the mask of a granule.
  void note(uint32_t granule, uint32_t mask, int lane) {
    SharedHistory::Granule& g = granules_[granule];
    const bool known = (g.history == before_ || g.history == after_) && g.mbarrier == 0;
    if constexpr (kWrite) {
      if (!known) [[unlikely]]
        return step(g, granule, mask, lane);
      g.written |= static_cast<uint16_t>(mask);
      g.history = after_;
    } else {
      if (!known || (g.written & mask) != mask) [[unlikely]]
        return step(g, granule, mask, lane);
      g.history = after_;
    }
  }
  void touch_range(uint32_t offset, uint32_t size, int lane) {
    const uint32_t all = owner_.shared.size;
    if (offset > all || size > all - offset) out_of_bounds(warp_, owner_, offset, size, lane);
    const uint32_t end = offset + size;
    for (uint32_t at = offset; at < end;) {
      const uint32_t stop = std::min(end, (at | 15) + 1);
      touch(at >> 4, ((1u << (stop - at)) - 1) << (at & 15), lane);
      at = stop;
    }
  }

 private:
  [[gnu::noinline]] void race(uint32_t& list, uint32_t granule, uint32_t mask, int lane) {
    const Touch now{stamp_, static_cast<uint16_t>(mask), kWrite, racing_ == Racing::Strong};
    if (const uint32_t made = history_.races.kept_step(list, now); made != UINT32_MAX) {
      steps_[__builtin_ctz(mask) / 2] = {list, made, mask};
      list = made;
      return;
    }
    Cluster& cluster = *warp_.cta->cluster;
    bool known = true;  // what holds for this granule holds for others with the same list
    bool lasts = true;  // and for later accesses, too
    history_.races.each(list, [&](const Touch& other) {
      if (!conflict(now, other) || is_known(warp_, other, warp_.view.seen)) return;
      lasts = false;
      if (comes_before(warp_, other, warp_.view.seen)) return;
      // What another block stored is judged with its scopes, where a plain read meets it.
      if (!kWrite && racing_ == Racing::Plain && !other.strong && cluster.agents[other.stamp.by].cta != warp_.cta)
        return;
      known = false;
      const uint64_t* const two = history_.races.last(other.write) + size_t{granule} * 2;
      const AgentInfo& by = cluster.agents[other.stamp.by];
      const uint64_t last = two[two[0] >> 32 != by.cta->warps[by.index]->self];
      if (racing_ == Racing::PlainStore && other.write && !other.strong) {
        UnorderedStore store{&owner_, granule, other, last, static_cast<uint16_t>(now.bytes & other.bytes), lane, {}};
        const uint32_t size = std::min(16u, owner_.shared.size - granule * 16);
        std::memcpy(store.before.data(), owner_.shared.bytes + size_t{granule} * 16, size);
        cluster.unordered_stores.push_back(store);
        return;
      }
      judge_race(warp_, lane, is_relied_on(warp_, now, other),
                 [&] { return race_text(warp_, owner_, first_common(granule, now, other), now, other, last); });
    });
    const uint32_t before = list;
    list =
        history_.races.with(list, now, [&](const Touch& other) { return comes_before(warp_, other, warp_.view.seen); });
    if (!known) return;
    steps_[__builtin_ctz(mask) / 2] = {before, list, mask};
    if (lasts) history_.races.keep(before, now, list);
  }
  [[gnu::noinline]] void step(SharedHistory::Granule& g, uint32_t granule, uint32_t mask, int lane) {
    const uint32_t at = granule * 16 + static_cast<uint32_t>(__builtin_ctz(mask));
    const char* const what = kWrite ? "writes to" : "reads";
    if (meets_mbarrier(g, mask)) touches_mbarrier(warp_, owner_, at, lane, what);
    const SharedHistory::History& h = history_.histories[g.history];
    const bool by_word = h.kind == SharedHistory::Write::CpAsync;  // what holds for these bytes need not for others
    const uint32_t before = g.history;
    check_in_flight(warp_, owner_, h, at, lane, what, mask);
    if constexpr (kWrite) {
      check_async_readers(warp_, owner_, h, at, lane, what, false);
      g.history = history_.written_by(stamp_);
      g.written |= static_cast<uint16_t>(mask);
    } else {
      if (const uint32_t unwritten = mask & ~uint32_t{g.written}; unwritten != 0)
        uninitialised(warp_, owner_, at, unwritten, lane);
      g.history = history_.with_reader(before, stamp_, false);
    }
    before_ = by_word ? UINT32_MAX : before;
    after_ = by_word && !kWrite ? UINT32_MAX : g.history;
  }

  Warp& warp_;
  Cta& owner_;
  SharedHistory& history_;
  const Stamp stamp_;
  SharedHistory::Granule* granules_;
  uint32_t before_ = UINT32_MAX, after_ = UINT32_MAX;
  // Races: what becomes of a list, by the first of the bytes.
  const Racing racing_;
  uint32_t* lists_ = nullptr;
  uint64_t* last_ = nullptr;
  uint64_t who_ = 0;
  struct Step {
    uint32_t before = UINT32_MAX, after = UINT32_MAX, bytes = 0;
  };
  std::array<Step, 8> steps_{};
};

template <bool kWrite>
void generic_access(Warp& warp, Cta& owner, Stamp stamp, const uint64_t* offset, uint32_t mask, uint32_t size, bool row,
                    Racing racing) {
  const SharedMemory& memory = owner.shared;
  GenericAccess<kWrite> access(warp, owner, stamp, racing);
  if (row && size <= 16 && offset[0] % 16 == 0 && offset[0] + uint64_t{32} * size <= memory.size) {
    const uint32_t first = static_cast<uint32_t>(offset[0]) >> 4;
    const auto lanes = static_cast<int>(16 / size);  // of a granule
    for (uint32_t i = 0; i < 2 * size; ++i) access.touch(first + i, 0xffff, static_cast<int>(i) * lanes);
    return;
  }
  if (size > 16) {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      access.touch_range(static_cast<uint32_t>(offset[lane]), size, lane);
    }
    return;
  }
  // An aligned access of up to 16 bytes lies in one granule.
  const uint32_t bytes = (1u << size) - 1;
  const auto one = [&](int lane, bool inside) {
    const auto at = static_cast<uint32_t>(offset[lane]);
    if (!inside && (at > memory.size || size > memory.size - at)) out_of_bounds(warp, owner, at, size, lane);
    access.touch(at >> 4, bytes << (at & 15), lane);
  };
  if (mask == kFullMask) {
    uint64_t any = 0;  // no offset is greater than all in one
    for (int lane = 0; lane < kLanes; ++lane) any |= offset[lane];
    const bool inside = any + size <= memory.size;
    for (int lane = 0; lane < kLanes; ++lane) one(lane, inside);
  } else {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) one(__builtin_ctz(rest), false);
  }
}

void note_blocks(Warp& warp, Cta& owner, const uint64_t* offset, uint32_t mask, uint32_t size, Access access,
                 bool strong) {
  SharedHistory& history = owner.history;
  const bool reads = access == Access::Read && !strong && (history.written_from_outside || &owner != warp.cta);
  if (access == Access::Read && !reads) return;
  const bool writes = access == Access::Write && !strong;
  if (writes && &owner != warp.cta) history.written_from_outside = true;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    const auto at = static_cast<uint32_t>(offset[lane]);
    if (!reads) {
      history.writers.set(at, size, writes ? warp.stamp() : Stamp{});
      continue;
    }
    for (uint32_t word = at / 4; word < (at + size + 3) / 4; ++word) {
      const Stamp write = history.writers[word];
      if (is_uncaused(warp, write)) fault_uncaused(warp, write, lane, place_text(warp, owner, word * 4));
    }
  }
}

}  // namespace

namespace {

Stamp read_stamp(Warp& warp, uint32_t mask) {
  return warp.reads.stamp(warp.stamp(), mask, [&] {
    return new_agent(*warp.cta->cluster, {AgentInfo::Kind::Reads, warp.cta, static_cast<uint32_t>(warp.index)});
  });
}

}  // namespace

void shared_warp_access(Warp& warp, Cta& owner, const uint64_t* offset, uint32_t mask, uint32_t size, Access access,
                        bool strong, bool row) {
  note_remote(warp, owner, mask);
  if (access != Access::Write) {
    const Stamp stamp = access == Access::Read && !strong ? read_stamp(warp, mask) : warp.stamp();
    const Racing racing = access == Access::ReadWrite ? Racing::Unasked : strong ? Racing::Strong : Racing::Plain;
    generic_access<false>(warp, owner, stamp, offset, mask, size, row, racing);
  }
  if (access != Access::Read) {
    generic_access<true>(warp, owner, warp.stamp(), offset, mask, size, row,
                         strong ? Racing::Strong : Racing::PlainStore);
  }
  if (owner.history.writers.kept()) note_blocks(warp, owner, offset, mask, size, access, strong);
  LaneOrder& lanes = owner.history.lanes;
  const auto self = static_cast<uint32_t>(warp.index);
  if (access == Access::Read) {
    if (strong || &owner != warp.cta || lanes.ordered(self, offset, mask, size, row)) return;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      shared_lane_read(warp, owner, static_cast<uint32_t>(offset[lane]), size, lane);
    }
  } else if (access == Access::Write && !strong && &owner == warp.cta) {
    lanes.write(self, offset, mask, size, row);
  } else {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1)
      lanes.forget(static_cast<uint32_t>(offset[__builtin_ctz(rest)]), size);
  }
}

void shared_generic_read(Warp& warp, Cta& owner, uint32_t offset, uint32_t size, int lane) {
  note_remote(warp, owner, 1u << lane);
  GenericAccess<false>(warp, owner, warp.stamp(), Racing::Plain).touch_range(offset, size, lane);
}

void shared_generic_write(Warp& warp, Cta& owner, uint32_t offset, uint32_t size, int lane, bool is_store) {
  note_remote(warp, owner, 1u << lane);
  const Racing racing = is_store ? Racing::PlainStore : Racing::Plain;
  GenericAccess<true>(warp, owner, warp.stamp(), racing).touch_range(offset, size, lane);
}

void shared_lane_read(Warp& warp, Cta& owner, uint32_t offset, uint32_t size, int lane) {
  if (&owner != warp.cta) return;
  const auto self = static_cast<uint32_t>(warp.index);
  const int writer = owner.history.lanes.unordered_writer(self, lane, offset, size);
  if (writer < 0) return;
  const auto text = [&](const char* what) {
    return "reads " + place_text(warp, owner, offset) + ", which lane " + std::to_string(writer) +
           " of the same warp wrote, and " + what;
  };
  if (!owner.history.lanes.met_since(self, lane, offset, size))
    fault(Hazard::DataInFlight, warp, lane, text("no bar.warp.sync or other barrier stands between"));
  deviation(Hazard::DataInFlight, warp, lane,
            [&] { return text("what has brought the lanes together since orders no memory, as bar.warp.sync does"); });
}

void shared_lane_write(Warp& warp, Cta& owner, uint32_t offset, uint32_t size, int lane) {
  if (&owner == warp.cta && lane >= 0) {
    owner.history.lanes.write(static_cast<uint32_t>(warp.index), lane, offset, size);
  } else {
    owner.history.lanes.forget(offset, size);
  }
}

SharedAccess::SharedAccess(Warp& warp, Cta& owner, Kind kind, Stamp completion, int lane)
    : warp_(warp),
      owner_(owner),
      kind_(kind),
      completion_(completion),
      lane_(lane),
      granules_(owner.history.granules.data()) {
  SharedHistory& history = owner.history;
  history.collect();
  if (kind != Kind::AsyncRead && lane >= 0) warp.order_reads(1u << lane);
  if (kind != Kind::AsyncRead) {
    SharedHistory::History fresh;
    fresh.kind = kind == Kind::AsyncWrite ? SharedHistory::Write::Async : SharedHistory::Write::CpAsync;
    fresh.write = completion;
    std::fill_n(fresh.copy, 4, completion.at);
    new_ = history.add(fresh);
  }
}

void SharedAccess::step(SharedHistory::Granule& granule, uint32_t offset, uint32_t mask) {
  SharedHistory& history = owner_.history;
  if (granule.history != old_) {
    old_ = granule.history;
    check_async(warp_, owner_, history.histories[old_], offset, lane_, kind_,
                kind_ == Kind::CpAsyncWrite ? mask : 0xffff);
    if (kind_ == Kind::AsyncRead) {
      new_ = history.with_reader(old_, completion_, true);
      const uint32_t old = old_;
      if (std::none_of(met_.begin(), met_.end(), [old](const Met& m) { return m.index == old; }))
        met_.push_back({old, offset, history.histories[old]});
      const SharedHistory::Granule known{old_, 0xffff, 0}, next{new_, 0xffff, 0};
      static_assert(sizeof known == sizeof known_);
      std::memcpy(&known_, &known, sizeof known_);
      std::memcpy(&next_, &next, sizeof next_);
    } else if (kind_ == Kind::CpAsyncWrite && mask != 0xffff) {
      SharedHistory::History fresh;
      const SharedHistory::History& old = history.histories[old_];
      fresh.kind = SharedHistory::Write::CpAsync;
      fresh.write = completion_;
      for (int word = 0; word < 4; ++word) {
        if (mask >> (4 * word) & 0xf)
          fresh.copy[word] = completion_.at;
        else if (old.kind == SharedHistory::Write::CpAsync && old.write.by == completion_.by)
          fresh.copy[word] = old.copy[word];
      }
      new_ = history.add(fresh);
    }
  }
  granule.history = new_;
}

void SharedAccess::touch(uint32_t offset, uint32_t size) {
  SharedHistory& history = owner_.history;
  const uint32_t all = owner_.shared.size;
  if (size == 0) return;
  if (offset > all || size > all - offset) out_of_bounds(warp_, owner_, offset, size, lane_);
  const uint32_t end = offset + size;
  const bool write = kind_ != Kind::AsyncRead;
  if (write) {
    history.lanes.forget(offset, size);
    history.races.forget(offset, size);
    if (history.writers.kept()) history.writers.set(offset, size, {});
  } else if (lane_ >= 0) {
    shared_lane_read(warp_, owner_, offset, size, lane_);
  }
  if (((offset | size) & 15) == 0) {
    for (uint32_t at = offset; at < end; at += 16) {
      SharedHistory::Granule& granule = history.granules[at >> 4];
      if (granule.history != old_) {
        step(granule, at);
      } else {
        granule.history = new_;
      }
      if (write) {
        if (granule.mbarrier) touches_mbarrier(warp_, owner_, at, lane_, "writes to");
        granule.written = 0xffff;
      } else if (granule.written != 0xffff) {
        uninitialised(warp_, owner_, at, 0xffff & ~uint32_t{granule.written}, lane_);
      }
    }
    return;
  }
  for (uint32_t at = offset; at < end;) {
    SharedHistory::Granule& granule = history.granules[at >> 4];
    const uint32_t stop = std::min(end, (at | 15) + 1);
    const uint32_t mask = ((1u << (stop - at)) - 1) << (at & 15);
    // A part of a granule that this operation has already written beside.
    if (!(write && granule.history == new_)) step(granule, at, mask);
    if (write) {
      if (meets_mbarrier(granule, mask)) touches_mbarrier(warp_, owner_, at, lane_, "writes to");
      granule.written |= static_cast<uint16_t>(mask);
    } else if ((granule.written & mask) != mask) {
      uninitialised(warp_, owner_, at, mask & ~uint32_t{granule.written}, lane_);
    }
    at = stop;
  }
}

void SharedAccess::touch_for_write(uint32_t offset, uint32_t size, bool reduces) {
  if (!reduces || offset > owner_.shared.size || size > owner_.shared.size - offset) return touch(offset, size);
  uint8_t* const place = owner_.shared.bytes + offset;
  std::vector<uint8_t> undefined(size);
  load_undefined(warp_, place, undefined.data(), size);
  touch(offset, size);
  uint32_t bytes = 0;  // of a granule
  for (uint32_t i = 0; i < size; ++i) {
    const uint32_t at = offset + i;
    bytes |= static_cast<uint32_t>(undefined[i] != 0) << (at & 15);
    if ((at & 15) != 15 && i + 1 < size) continue;
    if (bytes != 0) uninitialised(warp_, owner_, at & ~15u, bytes, lane_);
    bytes = 0;
  }
  store_undefined(warp_, place, undefined.data(), size);
}

bool SharedAccess::is_ordered(const Warp& warp, const Met& met) {
  const SharedHistory::History& h = met.history;
  return (h.kind == SharedHistory::Write::Generic ? warp.view.fenced : warp.view.seen)[h.write.by] >= h.write.at;
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
