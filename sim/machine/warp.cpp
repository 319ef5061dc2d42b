// SPDX-License-Identifier: Apache-2.0
// What becomes of a warp's lanes when they part and meet again, and what the warp knows and tells.
#include <algorithm>

#include <bit>

#include "sim/machine/hierarchy.h"
#include "sim/machine/launch.h"

namespace sim {

void Warp::new_epoch() {
  view.seen.raise(self, view.seen[self] + 1);
  if (cta->cluster->ctas.size() > 1) view.caused.raise(self, view.seen[self]);
}

void Warp::publish(View& object, Scope scope, bool relaxed) const {
  const View& known = relaxed ? fence_view : view;
  object.seen.join(known.seen);
  object.fenced.join(known.fenced);
  object.grid.join(known.grid);
  object.weak.join(view.weak);
  const size_t blocks = cta->cluster->ctas.size();
  if (blocks == 1) return;
  if (object.by_block.size() < blocks) object.by_block.resize(blocks);
  object.by_block[cta->rank].join(known.caused);
  if (scope != Scope::Cta) object.wide.join(relaxed ? fence_view.wide : view.caused);
}

void Warp::publish_weakly(View& object) {
  if (cta->cluster->launch->rules.strictness == Strictness::Isa) return;
  object.weak.join(view.seen);
  object.weak.join(view.weak);
  new_epoch();
}

void Warp::observe(const View& object, Scope scope, bool relaxed) {
  View& into = relaxed ? read_view : view;
  into.seen.join(object.seen);
  into.fenced.join(object.fenced);
  into.grid.join(object.grid);
  view.weak.join(object.weak);
  if (cta->rank < object.by_block.size()) into.caused.join(object.by_block[cta->rank]);
  if (scope != Scope::Cta) (relaxed ? read_view.wide : view.caused).join(object.wide);
  if (relaxed)
    has_read = true;
  else
    acquire_lanes(*this);
}

// Release and acquire patterns with a fence (PTX ISA 8.8): the relaxed reads before it become acquires, the relaxed
// writes after it releases, of the narrower of the two scopes.
void Warp::fence(Scope scope) {
  if (has_read) {
    view.seen.join(read_view.seen);
    view.fenced.join(read_view.fenced);
    view.caused.join(read_view.caused);
    view.grid.join(read_view.grid);
    if (scope != Scope::Cta) view.caused.join(read_view.wide);
    acquire_lanes(*this);
    View later;  // a wider fence may follow
    if (scope == Scope::Cta && cta->cluster->ctas.size() > 1) later.wide = std::move(read_view.wide);
    has_read = !later.wide.empty();
    read_view = std::move(later);
  }
  fence_view.seen = view.seen;
  fence_view.fenced = view.fenced;
  fence_view.caused = view.caused;
  fence_view.grid = view.grid;
  if (scope != Scope::Cta) fence_view.wide = view.caused;
  has_fenced = true;
  new_epoch();
}

void Warp::move_lanes(uint32_t lanes, int pc) {
  Split& split = splits[current];
  if (lanes == split.mask) {
    split.pc = pc;
    split.blocked_at = 0;
    return;
  }
  split.mask &= ~lanes;
  splits.push_back({pc, lanes, 0, false});
}

void Warp::exit_lanes(uint32_t lanes) {
  live &= ~lanes;
  order_reads(lanes);
  Split& split = splits[current];
  split.mask &= ~lanes;
  if (split.mask == 0)
    splits.erase(splits.begin() + static_cast<std::ptrdiff_t>(current));
  else
    ++split.pc;
  // Whoever waits for all lanes that live may now have them.
  for (Split& other : splits) other.blocked_at = 0;
  cta->cluster->event();
}

bool Warp::settle() {
  const uint64_t now = cta->cluster->events + 1;
  if (splits.size() == 1) {
    select(0);
    return splits[0].blocked_at != now;
  }
  for (size_t i = 0; i < splits.size(); ++i) {
    for (size_t j = i + 1; j < splits.size();) {
      if (splits[i].pc != splits[j].pc) {
        ++j;
        continue;
      }
      splits[i].mask |= splits[j].mask;
      splits[i].blocked_at = 0;
      splits.erase(splits.begin() + static_cast<std::ptrdiff_t>(j));
    }
  }
  size_t best = splits.size();
  for (size_t i = 0; i < splits.size(); ++i) {
    if (splits[i].blocked_at == now) continue;
    if (best == splits.size() || splits[i].pc < splits[best].pc) best = i;
  }
  if (best == splits.size()) return false;
  select(best);
  return true;
}

void Warp::select(size_t split) {
  current = split;
  splits[current].apart = false;  // until its instruction says so again
  stop_pc = INT32_MAX;
  for (const Split& other : splits) {
    if (other.pc > splits[current].pc) stop_pc = std::min(stop_pc, other.pc);
  }
}

bool Cta::finished() const {
  return std::all_of(warps.begin(), warps.end(), [](const auto& warp) { return warp->live == 0; });
}

bool Cluster::finished() const {
  return std::all_of(ctas.begin(), ctas.end(), [](const auto& cta) { return cta->finished(); });
}

bool converged(Warp& warp, uint32_t mask) {
  if (warp.all_live_in(mask)) {
    warp.order_reads(mask);
    meet_lanes(warp);
    return true;
  }
  warp.splits[warp.current].apart = true;
  return false;
}

bool complete(Warp& warp, const Instr& in, uint32_t mask) {
  if (!converged(warp, mask)) return false;
  if (mask != warp.born) {
    deviation(Hazard::IllegalUse, warp, -1, [&] {
      return in.source->opcode + " by " + std::to_string(std::popcount(mask)) + " of the warp's " +
             std::to_string(std::popcount(warp.born)) + " threads: the others have exited";
    });
  }
  return true;
}

bool gathered(Warp& warp, uint32_t mask, uint32_t members) {
  if ((members & warp.live & ~mask) == 0) {
    warp.order_reads(mask);
    if (warp.all_live_in(mask)) meet_lanes(warp);
    return true;
  }
  warp.splits[warp.current].apart = true;
  return false;
}

}  // namespace sim
