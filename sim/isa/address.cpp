// SPDX-License-Identifier: Apache-2.0
// Addresses of memory instructions (PTX ISA 5.1, 6.4.1): the generic windows, bounds, alignment.
#include "sim/isa/address.h"

#include <algorithm>
#include <bit>

#include "sim/hazards/global_access.h"
#include "sim/hazards/global_races.h"
#include "sim/hazards/shared_access.h"
#include "sim/hazards/system_access.h"
#include "sim/hazards/tensor_map_order.h"
#include "sim/hazards/undefined.h"
#include "sim/machine/operands.h"

namespace sim {
namespace {

// The lanes' addresses, less `origin`.
void gather(const Warp& warp, const Instr& in, const MemoryForm& form, uint64_t* at, uint32_t origin = 0) {
  const uint32_t base = in.reg[form.base.place];
  if (form.wide_base) {
    const uint64_t* row = warp.row<uint64_t>(base);
    const uint64_t addend = static_cast<uint64_t>(form.addend) - origin;
    for (int lane = 0; lane < kLanes; ++lane) at[lane] = row[lane] + addend;
  } else {
    const uint32_t* row = warp.row<uint32_t>(base);
    const uint32_t addend = static_cast<uint32_t>(form.addend) - origin;
    for (int lane = 0; lane < kLanes; ++lane) at[lane] = row[lane] + addend;
  }
}

[[noreturn]] void misaligned(const Warp& warp, const uint64_t* at, uint32_t mask, uint32_t alignment) {
  int bad = -1;
  each_lane(mask, [&](int lane) {
    if (bad < 0 && at[lane] % alignment != 0) bad = lane;
  });
  fault(Hazard::Memory, warp, bad,
        "misaligned address " + hex(at[bad]) + ", which is not a multiple of " + std::to_string(alignment));
}

// Whether all 32 lanes' bytes follow each other.
bool is_row(const uint64_t* at, uint32_t mask, uint32_t size) {
  if (mask != kFullMask || at[kLanes - 1] != at[0] + uint64_t{kLanes - 1} * size) return false;
  uint64_t difference = 0;
  for (uint64_t lane = 0; lane < kLanes; ++lane) difference |= at[lane] ^ (at[0] + lane * size);
  return difference == 0;
}

void resolve_global(Warp& warp, const uint64_t* at, uint32_t mask, uint32_t size, Access access, Reach reach,
                    Pointers* out) {
  uint64_t low = UINT64_MAX, high = 0;
  const bool row = is_row(at, mask, size) && at[0] < at[kLanes - 1];  // and does not pass the last address
  if (row) {
    low = at[0];
    high = at[kLanes - 1];
  } else if (mask == kFullMask) {
    for (int lane = 0; lane < kLanes; ++lane) {
      low = std::min(low, at[lane]);
      high = std::max(high, at[lane]);
    }
  } else {
    each_lane(mask, [&](int lane) {
      low = std::min(low, at[lane]);
      high = std::max(high, at[lane]);
    });
  }
  Cluster& cluster = *warp.cta->cluster;
  count_global(cluster, uint64_t{size} * static_cast<uint64_t>(std::popcount(mask)), access != Access::Write,
               access != Access::Read);
  if ((access != Access::Read && cluster.logs_writes) || !cluster.launch->predecessors.unfinished_writes.empty()) {
    if (mask == kFullMask && high - low == uint64_t{kLanes - 1} * size &&
        cluster.launch->predecessors.unfinished_writes.empty()) {
      (reaches_grids(reach) ? cluster.written.strong : cluster.written.plain).add(low, uint64_t{kLanes} * size);
    } else {
      each_lane(mask, [&](int lane) { note_global(warp, at[lane], size, access != Access::Read, lane, reach); });
    }
  }
  if (access != Access::Read && cluster.tensor_maps.may_hold(low, high + size - low)) {
    each_lane(mask, [&](int lane) { tensor_map_written(warp, at[lane], size, lane); });
  }
  if (cluster.ctas.size() > 1) [[unlikely]]
    global_warp_access(warp, at, mask, size, access, reach != Reach::Weak);
  const GlobalMemory& memory = *warp.cta->cluster->launch->global;
  if (memory.undefined.any()) [[unlikely]]
    hold_undefined(warp);
  if (high + size > high && global_range_cached(memory, low, high + size)) {
    if (row) out->row = reinterpret_cast<uint8_t*>(at[0]);
    std::memcpy(out->at, at, sizeof out->at);
  } else {
    each_lane(mask, [&](int lane) { out->at[lane] = global_pointer(warp, at[lane], size, lane); });
  }
  if (cluster.global_history != nullptr) judge_global_access(warp, at, mask, size, access, reach, out->row != nullptr);
  if (cluster.system != nullptr) [[unlikely]]
    system_warp_access(warp, at, mask, size, access, reach);
}

// `at` holds shared::cluster addresses less that of the block itself. `any` is the union of their bits.
void resolve_shared(Warp& warp, const uint64_t* at, uint64_t any, uint32_t mask, uint32_t size, Access access,
                    bool cluster_wide, bool strong, Pointers* out) {
  Cta& own = *warp.cta;
  Cluster& cluster = *own.cluster;
  if (any >> kRankShift == 0) [[likely]] {
    const bool row = is_row(at, mask, size);
    shared_warp_access(warp, own, at, mask, size, access, strong, row);
    if (row) out->row = own.shared.bytes + at[0];
    if (mask == kFullMask) {
      for (int lane = 0; lane < kLanes; ++lane) out->at[lane] = own.shared.bytes + at[lane];
    } else {
      each_lane(mask, [&](int lane) { out->at[lane] = own.shared.bytes + at[lane]; });
    }
    return;
  }
  uint64_t offset[kLanes] = {};
  for (uint32_t rest = mask; rest != 0;) {
    const int leader = std::countr_zero(rest);
    const uint64_t distance = at[leader] >> kRankShift;
    const uint64_t given = at[leader] + own.shared_base();
    if ((given & kWindowMask) == kSharedWindow) generic_as_shared(warp, given, leader);
    const auto address = static_cast<uint32_t>(given);
    const uint32_t rank = address >> kRankShift;
    if (rank >= cluster.ctas.size())
      fault(Hazard::Memory, warp, leader, "shared address " + hex(address) + " names a block outside the cluster");
    Cta& owner = *cluster.ctas[rank];
    if (&owner != &own) {
      if (!cluster_wide) {
        fault(Hazard::Memory, warp, leader,
              "shared address " + hex(address) + " of block rank " + std::to_string(owner.rank) +
                  " is used by an instruction for the block's own shared memory");
      }
      if (owner.finished()) {
        fault(Hazard::Memory, warp, leader,
              "accesses the shared memory of block rank " + std::to_string(owner.rank) + ", which has finished");
      }
    }
    uint32_t lanes = 0;
    each_lane(rest, [&](int lane) {
      if (at[lane] >> kRankShift != distance) return;
      lanes |= 1u << lane;
      offset[lane] = at[lane] & kSharedOffset;
    });
    shared_warp_access(warp, owner, offset, lanes, size, access, strong, false);
    each_lane(lanes, [&](int lane) { out->at[lane] = owner.shared.bytes + offset[lane]; });
    rest &= ~lanes;
  }
}

void resolve_local(Warp& warp, const uint64_t* at, uint32_t mask, uint32_t size, Pointers* out) {
  const uint32_t frame = warp.cta->cluster->launch->local_bytes();
  each_lane(mask, [&](int lane) {
    if (at[lane] + size > frame || at[lane] + size < at[lane]) {
      fault(Hazard::Memory, warp, lane,
            "access of " + std::to_string(size) + " bytes at local address " + hex(at[lane]) + " passes the thread's " +
                std::to_string(frame) + " bytes of local memory");
    }
    out->at[lane] = warp.local.get() + size_t{static_cast<uint32_t>(lane)} * frame + at[lane];
  });
}

void resolve_param(Warp& warp, const uint64_t* at, uint32_t mask, uint32_t size, Access access, Pointers* out) {
  std::vector<uint8_t>& params = warp.cta->cluster->launch->params;
  each_lane(mask, [&](int lane) {
    if (access != Access::Read) fault(Hazard::Memory, warp, lane, "write to a kernel parameter");
    if (at[lane] + size > params.size() || at[lane] + size < at[lane]) {
      fault(Hazard::Memory, warp, lane,
            "access of " + std::to_string(size) + " bytes at parameter offset " + hex(at[lane]) +
                " passes the kernel's " + std::to_string(params.size()) + " bytes of parameters");
    }
    out->at[lane] = params.data() + at[lane];
  });
}

bool is_shared(AddressSpace space) { return space == AddressSpace::SharedCta || space == AddressSpace::SharedCluster; }

// Where an access of a lane leads, as a generic address. Each place has one such name.
uint64_t place_of(AddressSpace space, uint64_t address) { return is_shared(space) ? kSharedWindow | address : address; }

// All places beyond this number share one object.
constexpr size_t kSyncObjects = 4096;
constexpr uint64_t kSharedObject = 0;

// Establishes happens-before between clusters.
void synchronize_grid(Warp& warp, const Instr& in, const MemoryForm& form, uint32_t mask, bool reads, bool writes) {
  // Most atomic operations find that nobody has released anything, and have nothing to release.
  reads = reads && !warp.cta->cluster->launch->grid_history->objects->objects.empty();
  writes = writes && (form.release || !warp.grid_fence.empty() || !warp.view.grid.released.empty());
  if (!reads && !writes) return;
  uint64_t at[kLanes];
  gather(warp, in, form, at);
  uint64_t last = UINT64_MAX;
  each_lane(mask, [&](int lane) {
    if (at[lane] == last || (at[lane] & kWindowMask) != 0) return;
    last = at[lane];
    if (reads) acquire_from_grid(warp, last, form.reach(), !form.acquire);
    if (writes) release_to_grid(warp, last, form.reach(), !form.release);
  });
}

}  // namespace

bool read_modifier(const std::string& part, MemoryForm* form) {
  static const struct {
    const char* name;
    AddressSpace space;
  } kSpaces[] = {{"global", AddressSpace::Global},
                 {"const", AddressSpace::Global},
                 {"shared", AddressSpace::SharedCta},
                 {"shared::cta", AddressSpace::SharedCta},
                 {"shared::cluster", AddressSpace::SharedCluster},
                 {"local", AddressSpace::Local},
                 {"param", AddressSpace::Param},
                 {"param::entry", AddressSpace::Param},
                 {"param::func", AddressSpace::Param}};
  for (const auto& s : kSpaces) {
    if (part == s.name) {
      form->space = s.space;
      return true;
    }
  }
  if (part == "v2" || part == "v4" || part == "v8") {
    form->vector = static_cast<uint8_t>(part[1] - '0');
    return true;
  }
  if (part == "relaxed" || part == "volatile" || part == "mmio") {
    form->strong = true;
    // A volatile access is relaxed at system scope (8.4).
    form->system_scope = form->system_scope || part != "relaxed";
    return true;
  }
  if (part == "acquire" || part == "release" || part == "acq_rel") {
    form->strong = true;
    form->acquire = form->acquire || part != "release";
    form->release = form->release || part != "acquire";
    return true;
  }
  if (part == "cta") {
    form->cta_scope = true;
    return true;
  }
  if (part == "cluster") {
    form->cluster_scope = true;
    return true;
  }
  if (part == "sys") {
    form->system_scope = true;
    return true;
  }
  static const char* const kHints[] = {"weak", "gpu", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc"};
  if (std::any_of(std::begin(kHints), std::end(kHints), [&](const char* hint) { return part == hint; })) return true;
  if (part.starts_with("L1::") || part.starts_with("L2::")) return true;
  const ptx::Type type = ptx::type_from_name(part);
  if (type == ptx::Type::Other || type == ptx::Type::None) return false;
  form->type = type;
  return true;
}

void push_base(const ptx::Operand& operand, DecodeContext& context, MemoryForm* form) {
  if (operand.kind != ptx::Operand::Kind::Address) throw Unsupported("the address must stand in [ ]");
  form->base.place = context.pushed();
  context.push(operand, ptx::Type::U64, &form->addend);
  form->wide_base = ptx::bytes_of(context.register_type(operand)) == 8;
}

namespace {

// `at` holds the lanes' addresses, those of shared memory less that of the block.
[[gnu::always_inline]] inline void resolve_addresses(Warp& warp, const uint64_t* at, const MemoryForm& form,
                                                     uint32_t mask, uint32_t size, uint32_t alignment, Access access,
                                                     Pointers* out) {
  const uint32_t own = warp.cta->shared_base();
  uint64_t any = 0;
  if (mask == kFullMask) {
    for (int lane = 0; lane < kLanes; ++lane) any |= at[lane];
  } else {
    each_lane(mask, [&](int lane) { any |= at[lane]; });
  }
  if ((any & (alignment - 1)) != 0) misaligned(warp, at, mask, alignment);
  if (access == Access::Write) ++warp.cta->cluster->stores;
  switch (form.space) {
    case AddressSpace::Global:
      resolve_global(warp, at, mask, size, access, form.reach(), out);
      return;
    case AddressSpace::SharedCta:
      resolve_shared(warp, at, any, mask, size, access, false, form.strong, out);
      return;
    case AddressSpace::SharedCluster:
      resolve_shared(warp, at, any, mask, size, access, true, form.strong, out);
      return;
    case AddressSpace::Local:
      resolve_local(warp, at, mask, size, out);
      return;
    case AddressSpace::Param:
      resolve_param(warp, at, mask, size, access, out);
      return;
    case AddressSpace::Generic:
      break;
  }
  if ((any & kWindowMask) == 0) {
    resolve_global(warp, at, mask, size, access, form.reach(), out);
    return;
  }
  for (uint32_t rest = mask; rest != 0;) {
    const int leader = std::countr_zero(rest);
    const uint64_t window = at[leader] & kWindowMask;
    uint32_t lanes = 0;
    each_lane(rest, [&](int lane) { lanes |= (at[lane] & kWindowMask) == window ? 1u << lane : 0; });
    uint64_t inside[kLanes];
    const uint32_t origin = window == kSharedWindow ? own : 0;
    uint64_t any_inside = 0;
    for (int lane = 0; lane < kLanes; ++lane) inside[lane] = (at[lane] & ~kWindowMask) - origin;
    each_lane(lanes, [&](int lane) { any_inside |= inside[lane]; });
    if (window != 0 && size == 32)
      fault(Hazard::IllegalUse, warp, leader, "a vector of 256 bits that is not in global memory");
    if (window == 0) {
      resolve_global(warp, at, lanes, size, access, form.reach(), out);
    } else if (window == kSharedWindow) {
      resolve_shared(warp, inside, any_inside, lanes, size, access, true, form.strong, out);
    } else if (window == kLocalWindow) {
      resolve_local(warp, inside, lanes, size, out);
    } else if (window == kParamWindow) {
      resolve_param(warp, inside, lanes, size, access, out);
    } else {
      fault(Hazard::Memory, warp, leader, "address " + hex(at[leader]) + " is in no memory");
    }
    rest &= ~lanes;
  }
}

}  // namespace

void resolve(Warp& warp, const Instr& in, const MemoryForm& form, uint32_t mask, uint32_t size, uint32_t alignment,
             Access access, Pointers* out) {
  if (holds_undefined(warp)) [[unlikely]]
    check_defined(warp, in, in.reg[form.base.place], mask, "the address");
  uint64_t at[kLanes];
  gather(warp, in, form, at, is_shared(form.space) ? warp.cta->shared_base() : 0);
  resolve_addresses(warp, at, form, mask, size, alignment, access, out);
}

void resolve_behind(Warp& warp, const Instr& in, const MemoryForm& form, const uint64_t* distance, uint32_t size,
                    Access access, Pointers* out) {
  if (holds_undefined(warp)) [[unlikely]]
    check_defined(warp, in, in.reg[form.base.place], kFullMask, "the address");
  uint64_t at[kLanes];
  gather(warp, in, form, at, is_shared(form.space) ? warp.cta->shared_base() : 0);
  for (int lane = 0; lane < kLanes; ++lane) {
    at[lane] += distance[lane];
    if (!form.wide_base) at[lane] = static_cast<uint32_t>(at[lane]);
  }
  resolve_addresses(warp, at, form, kFullMask, size, size, access, out);
}

namespace {

void system_synchronize(Warp& warp, const Instr& in, const MemoryForm& form, uint32_t mask, bool reads, bool releases) {
  uint64_t at[kLanes];
  gather(warp, in, form, at);
  uint64_t last = UINT64_MAX;
  each_lane(mask, [&](int lane) {
    const uint64_t place = place_of(form.space, at[lane]);
    if (place == last || (place & kWindowMask) != 0) return;
    last = place;
    if (reads) system_observe(warp, place, form.reach(), form.acquire);
    if (releases) system_publish(warp, place, form.reach(), form.release);
  });
}

}  // namespace

void synchronize(Warp& warp, const Instr& in, const MemoryForm& form, uint32_t mask, bool reads, bool writes) {
  Cluster& cluster = *warp.cta->cluster;
  if (reads) {
    uint64_t at[kLanes];
    gather(warp, in, form, at);
    warp.polled_place = place_of(form.space, at[std::countr_zero(mask)]);
  }
  const bool releases = writes && (form.release || warp.has_fenced);
  if (cluster.system != nullptr) [[unlikely]]
    system_synchronize(warp, in, form, mask, reads, releases);
  const bool acquires = reads && !cluster.sync_objects.empty();
  const Scope scope = form.scope();
  if (cluster.grid_can_synchronize && scope == Scope::Grid && !is_shared(form.space))
    synchronize_grid(warp, in, form, mask, reads, writes);
  if (!releases && !acquires) return;
  if (releases) release_lanes(warp, mask);
  if (releases) warp.order_reads(mask);
  uint64_t at[kLanes];
  gather(warp, in, form, at);
  uint64_t last = UINT64_MAX;
  each_lane(mask, [&](int lane) {
    uint64_t place = place_of(form.space, at[lane]);
    if (place == last) return;
    last = place;
    if (acquires) {
      for (const uint64_t key : {place, kSharedObject}) {
        const auto found = cluster.sync_objects.find(key);
        if (found == cluster.sync_objects.end()) continue;
        warp.observe(found->second, scope, !form.acquire);
      }
    }
    if (releases) {
      if (cluster.sync_objects.size() >= kSyncObjects && cluster.sync_objects.count(place) == 0) place = kSharedObject;
      warp.publish(cluster.sync_objects[place], scope, !form.release);
    }
  });
  if (releases && form.release) warp.new_epoch();
}

}  // namespace sim
