// SPDX-License-Identifier: Apache-2.0
// Races between clusters for global memory, and what orders them.
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "sim/hazards/global_races.h"
#include "sim/machine/agents.h"
#include "sim/machine/fault.h"
#include "sim/machine/launch.h"

namespace sim {

// ---- order ----------------------------------------------------------------------------------------

namespace {

uint32_t number_in_views(const Cluster& cluster) {
  return cluster.launch->grid_history->first_cluster + cluster.number;
}

// What other clusters have handed back of the warp's own cluster is order within it.
void put_before(Warp& warp, const GridView& other) {
  warp.view.grid.before.join(other);
  if (const Clock* const own = other.of(number_in_views(*warp.cta->cluster))) {
    warp.view.seen.join(*own);
    if (warp.cta->cluster->ctas.size() > 1) warp.view.caused.join(*own);
  }
}

}  // namespace

void release_to_grid(Warp& warp, uint64_t address, Reach reach, bool relaxed) {
  const Launch& launch = *warp.cta->cluster->launch;
  auto& objects = launch.grid_history->objects->objects;
  if (objects.size() >= GridObjects::kPlaces && objects.count(address) == 0) address = GridObjects::kSharedPlace;
  GridObjects::Object& object = objects[address];
  GridView& own = object.of_device[launch.device];
  const bool to_others = reach == Reach::System && launch.system != nullptr;
  if (!relaxed) {
    for (GridView* const view : {&own, &object.system}) {
      if (view == &object.system && !to_others) continue;
      view->join(warp.view.grid.before);
      view->add(number_in_views(*warp.cta->cluster), warp.view.seen);
    }
    return;
  }
  for (const ScopedView* const covered : {&warp.grid_fence, &warp.view.grid.released}) {
    own.join(covered->device);
    if (to_others) object.system.join(covered->system);
  }
}

void acquire_from_grid(Warp& warp, uint64_t address, Reach reach, bool relaxed) {
  const Launch& launch = *warp.cta->cluster->launch;
  const auto& objects = launch.grid_history->objects->objects;
  for (const uint64_t place : {address, GridObjects::kSharedPlace}) {
    const auto found = objects.find(place);
    if (found == objects.end()) continue;
    ScopedView brought;
    const auto own = found->second.of_device.find(launch.device);
    if (own != found->second.of_device.end()) brought.device = own->second;
    if (reach == Reach::System) brought.system = found->second.system;
    if (!relaxed) {
      put_before(warp, brought.device);
      put_before(warp, brought.system);
      continue;
    }
    warp.grid_read.join(brought);
    warp.view.grid.awaited.join(brought);
  }
}

void fence_grid(Warp& warp, Reach reach, bool sequential) {
  const bool system = reach == Reach::System && warp.cta->cluster->launch->system != nullptr;
  put_before(warp, std::exchange(warp.grid_read.device, {}));
  if (system) put_before(warp, std::exchange(warp.grid_read.system, {}));
  // All fence.sc are in one order (PTX ISA 8.9.3). That of a thread which has learned of another's comes after it.
  if (sequential) put_before(warp, warp.view.grid.awaited.device);
  if (sequential && system) put_before(warp, warp.view.grid.awaited.system);
  warp.fence(Scope::Grid);
  GridView covered = warp.view.grid.before;
  covered.add(number_in_views(*warp.cta->cluster), warp.fence_view.seen);
  warp.grid_fence.device = covered;
  if (system) warp.grid_fence.system = covered;
  warp.grid_fence_epoch = warp.fence_view.seen[warp.self];
  if (!sequential) return;
  for (View* view : {&warp.view, &warp.fence_view}) {
    view->grid.released.device.join(covered);
    if (system) view->grid.released.system.join(covered);
  }
}

// ---- races ----------------------------------------------------------------------------------------

namespace {

using Moment = GridHistory::Moment;

// Accesses of different clusters.
bool conflict_in_grid(const GlobalTouch& a, const GlobalTouch& b) {
  return (a.bytes & b.bytes) != 0 && (a.write || b.write) && !(a.reach >= Reach::Device && b.reach >= Reach::Device);
}

class Merger {
 public:
  Merger(Launch& launch, ClusterHistory& cluster, Deviations& deviations)
      : launch_(launch), grid_(*launch.grid_history), cluster_(cluster), deviations_(deviations) {
    if (grid_.lists.crowded()) {
      grid_.lists.collect([&](auto visit) {
        grid_.pages.each([&](GlobalPage& page) {
          for (uint32_t& list : page.lists) visit(list);
        });
      });
    }
  }
  void merge() {
    cluster_.global->pages.each([&](GlobalPage& own) {
      GlobalPage& all = grid_.pages.of(own.number << GlobalPage::kBits);
      uint32_t own_list = 0, list = 0, result = 0;  // the last step; those of granules that are alike are alike
      bool known = true;
      for (uint32_t granule = 0; granule < GlobalPage::kGranules; ++granule) {
        if (own.lists[granule] == 0) continue;
        if (!known || own.lists[granule] != own_list || all.lists[granule] != list) {
          own_list = own.lists[granule];
          list = all.lists[granule];
          known = step(own, all, granule, &result);
        }
        all.lists[granule] = result;
      }
      if (own.stored != nullptr) keep_stored(own, all);
    });
  }

 private:
  bool has_seen(const GridView& view, const Moment& moment) const {
    const Clock* const clock = view.of(grid_.first_cluster + moment.cluster);
    return clock != nullptr && (*clock)[moment.stamp.by] >= moment.stamp.at;
  }
  bool ordered(const Moment& a, const Moment& b) const { return has_seen(a.view, b) || has_seen(b.view, a); }
  // False when the outcome holds for this granule alone.
  bool step(GlobalPage& own, GlobalPage& all, uint32_t granule, uint32_t* result) {
    const uint64_t key = uint64_t{own.lists[granule]} << 32 | all.lists[granule];
    if (const auto found = steps_.find(key); found != steps_.end()) {
      *result = found->second;
      return true;
    }
    bool known = true;
    uint32_t list = all.lists[granule];
    cluster_.global->lists.each(own.lists[granule], [&](const GlobalTouch& touch) {
      const Moment now{cluster_.cluster, touch.stamp, cluster_.global->views[touch.view], cluster_.places[touch.warp]};
      // Where nothing can be handed over, whoever comes later and races with this touch races with one like it, too.
      bool told_already = false;
      grid_.lists.each(all.lists[granule], [&](const GlobalTouch& other) {
        const Moment& then = grid_.moments[other.stamp.by];
        if (then.cluster == now.cluster) return;
        if ((touch.bytes & ~other.bytes) == 0 && other.write == touch.write && other.reach == touch.reach)
          told_already = !grid_.can_synchronize;
        if (!conflict_in_grid(touch, other) || ordered(now, then)) return;
        known = false;
        uint16_t bytes = touch.bytes & other.bytes;
        if (touch.is_plain_write() && other.is_plain_write()) bytes = stored_apart(own, all, granule, bytes);
        if (bytes != 0) report(own, granule, bytes, touch, now, other, then);
      });
      if (told_already) return;
      GlobalTouch kept = touch;
      kept.view = 0;
      kept.stamp = {number_of(now, touch.pc), 0};
      list = grid_.lists.with(list, kept, [](const GlobalTouch&) { return false; });
    });
    if (known) steps_[key] = list;
    *result = list;
    return known;
  }
  // Without synchronization all moments of a cluster are alike.
  uint32_t number_of(const Moment& now, uint32_t pc) {
    const uint64_t key = grid_.can_synchronize ? uint64_t{now.stamp.by} << 40 ^ uint64_t { now.stamp.at } << 20 ^
                                                     reinterpret_cast<uintptr_t>(now.view.identity())
                                               : pc;
    uint32_t& number = numbers_[key];
    if (number != 0) {
      const Moment& same = grid_.moments[number - 1];
      if (!grid_.can_synchronize || (same.stamp.by == now.stamp.by && same.stamp.at == now.stamp.at &&
                                     same.view.identity() == now.view.identity()))
        return number - 1;
    }
    grid_.moments.push_back(now);
    number = static_cast<uint32_t>(grid_.moments.size());
    return number - 1;
  }
  static uint16_t stored_apart(GlobalPage& own, GlobalPage& all, uint32_t granule, uint16_t bytes) {
    uint16_t apart = 0;
    for (uint32_t rest = bytes; rest != 0; rest &= rest - 1) {
      const auto byte = static_cast<uint32_t>(std::countr_zero(rest));
      if (own.stored_at(granule)[byte] != all.stored_at(granule)[byte]) apart |= static_cast<uint16_t>(1u << byte);
    }
    return apart;
  }
  void keep_stored(GlobalPage& own, GlobalPage& all) {
    for (uint32_t granule = 0; granule < GlobalPage::kGranules; ++granule) {
      if (own.lists[granule] == 0) continue;
      uint32_t bytes = 0;
      cluster_.global->lists.each(own.lists[granule], [&](const GlobalTouch& touch) {
        if (touch.is_plain_write()) bytes |= touch.bytes;
      });
      if (bytes == 0xffff) {
        std::memcpy(all.stored_at(granule), own.stored_at(granule), 16);
        continue;
      }
      for (; bytes != 0; bytes &= bytes - 1)
        all.stored_at(granule)[std::countr_zero(bytes)] = own.stored_at(granule)[std::countr_zero(bytes)];
    }
  }
  std::string block_text(const Moment& moment) const {
    const Dim3 shape = launch_.cluster;
    const uint32_t across = launch_.grid.x / shape.x, down = launch_.grid.y / shape.y;
    const uint32_t rank = moment.place.rank;
    const uint32_t x = moment.cluster % across * shape.x + rank % shape.x;
    const uint32_t y = moment.cluster / across % down * shape.y + rank / shape.x % shape.y;
    const uint32_t z = moment.cluster / across / down * shape.z + rank / shape.x / shape.y;
    return "block (" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + ")";
  }
  void report(const GlobalPage& page, uint32_t granule, uint16_t bytes, const GlobalTouch& touch, const Moment& now,
              const GlobalTouch& other, const Moment& then) {
    const Kernel& kernel = *launch_.kernel;
    const ptx::Instruction* const source = kernel.code[touch.pc].source;
    const bool strong = touch.reach != Reach::Weak, other_strong = other.reach != Reach::Weak;
    // Published code lets an atomic or volatile access meet a plain one, or one of a narrower scope.
    const bool told = launch_.rules.strictness == Strictness::Isa || (!strong && !other_strong);
    Deviations::Seen& seen = deviations_.seen[{source, Hazard::Race}];
    if (++seen.count > 1 && !told) return;
    const uint64_t address =
        (page.number << GlobalPage::kBits) + granule * 16 + static_cast<unsigned>(std::countr_zero(bytes));
    std::string text = std::string(hazard_name(Hazard::Race)) + ": " + (touch.write ? "writes to" : "reads") +
                       " global memory at " + hex(address) + ", which " + block_text(then) + " " +
                       (other.write ? "wrote" : "read") + " at " +
                       describe_instruction(kernel, kernel.code[other.pc].source) + ", and nothing orders the two: ";
    if (strong && other_strong) {
      text += "both are atomic or volatile, but the scope of one is narrower than .gpu";
    } else {
      if (strong != other_strong) text += "only one of them is atomic or volatile, and ";
      text += "a release and an acquire of .gpu scope are missing between them";
    }
    text += " at " + describe_instruction(kernel, source) + ", " + block_text(now) + ", warp " +
            std::to_string(now.place.warp);
    if (told) throw Fault(Hazard::Race, text);
    seen.text = std::move(text);
  }

  Launch& launch_;
  GridHistory& grid_;
  ClusterHistory& cluster_;
  Deviations& deviations_;
  std::unordered_map<uint64_t, uint32_t> steps_;    // by the lists of cluster and grid
  std::unordered_map<uint64_t, uint32_t> numbers_;  // of moments, plus one
};

}  // namespace

ClusterHistory take_history(Cluster& cluster) {
  ClusterHistory history;
  history.cluster = cluster.number;
  for (const AgentInfo& agent : cluster.agents) {
    ClusterHistory::Place place;
    if (agent.cta != nullptr) place.rank = agent.cta->rank;
    place.warp = agent.index;
    history.places.push_back(place);
  }
  history.global = std::move(cluster.global_history);
  cluster.global_history = std::make_unique<GlobalHistory>();
  return history;
}

void judge_cluster(Launch& launch, ClusterHistory& cluster, Deviations& deviations) {
  Merger(launch, cluster, deviations).merge();
}

void judge_ended(Cluster& cluster) {
  if (cluster.launch->grid_history == nullptr) return;
  ClusterHistory history = take_history(cluster);
  judge_cluster(*cluster.launch, history, cluster.deviations);
  cluster.global_history = std::move(history.global);
}

}  // namespace sim
