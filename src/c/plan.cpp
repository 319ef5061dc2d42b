// SPDX-License-Identifier: Apache-2.0
// Plans as data in C.
#include "moxie/plan.h"

#include "c/description.h"
#include "c/handles.h"
#include "c/structs.h"
#include "moxie/ranks.h"

namespace moxie::c {
namespace {

int arch_of(const PlanInfo& plan) { return std::holds_alternative<HopperTuning>(plan.tuning) ? 90 : 100; }

moxie_plan_info to_c(const PlanInfo& p) {
  moxie_plan_info info{};
  info.kernel = p.kernel.c_str();
  info.source = static_cast<int32_t>(p.source);
  info.arch = arch_of(p);
  info.stages = p.stages;
  info.decode_tile = p.decode_tile;
  info.store_buffers = p.store_buffers;
  info.shared_bytes = p.shared_bytes;
  info.tensor_columns = p.tensor_columns;
  info.panel_columns = p.panel_columns;
  info.tiles = p.tiles;
  info.mean_rows = p.mean_rows;
  info.flops = p.flops;
  info.predicted_seconds = p.predicted_seconds;
  info.clock = p.clock;
  info.candidate_count = p.candidates.size();
  info.rows_source = static_cast<int32_t>(p.rows_source);
  return info;
}

moxie_plan_candidate to_c(const PlanCandidate& x) {
  moxie_plan_candidate candidate{};
  candidate.kernel = x.kernel.c_str();
  candidate.reason = x.reason.c_str();
  candidate.cycles = x.cycles;
  candidate.possible = x.possible;
  return candidate;
}

// The tunings of a plan are those of its kernels: no member is absent.
moxie_hopper_tuning to_c(const HopperTuning& t) {
  moxie_hopper_tuning tuning{};
  tuning.has_schedule = tuning.has_multicast = true;
  tuning.schedule = static_cast<int32_t>(t.schedule.value());
  tuning.tile_m = t.tile_m.value();
  tuning.tile_n = t.tile_n.value();
  tuning.cluster = t.cluster.value();
  tuning.multicast = static_cast<int32_t>(t.multicast.value());
  return tuning;
}

moxie_blackwell_tuning to_c(const BlackwellTuning& t) {
  moxie_blackwell_tuning tuning{};
  tuning.has_tile_source = tuning.has_swap_ab = true;
  tuning.tile_m = t.tile_m.value();
  tuning.tile_n = t.tile_n.value();
  tuning.cluster = t.cluster.value();
  tuning.tile_source = static_cast<int32_t>(t.tile_source.value());
  tuning.swap_ab = t.swap_ab.value();
  return tuning;
}

const PlanCandidate& candidate_at(const PlanInfo& plan, size_t index) {
  if (index >= plan.candidates.size())
    reject("the index of the candidate is {}, but the plan has {} candidates", index, plan.candidates.size());
  return plan.candidates[index];
}

DeviceFigures figures_of(const moxie_device_figures* given) {
  const moxie_device_figures f = read_optional(given, "figures");
  check_reserved("figures.reserved", f.reserved);
  return device_figures_of(f);
}

RankedLayer ranked_layer_of(const moxie_ranked_layer& given) {
  check_reserved("layer.reserved", given.reserved);
  RankedLayer layer;
  layer.up = description_of(given.up, "layer.up");
  layer.tokens = given.tokens, layer.experts = given.experts, layer.ranks = given.ranks, layer.top_k = given.top_k;
  layer.windows = flag("layer.windows", given.windows);
  layer.format = enum_of<RowFormat>("layer.format", given.format);
  if (given.domain != 0) layer.domain = given.domain;
  return layer;
}

moxie_rank_costs to_c(const RankCosts& x) {
  moxie_rank_costs costs{};
  costs.dispatch_bytes = x.dispatch_bytes, costs.combine_bytes = x.combine_bytes;
  costs.dispatch = x.dispatch, costs.combine = x.combine;
  costs.up = x.up, costs.down = x.down, costs.around = x.around;
  costs.sum = x.sum(), costs.in_halves = x.in_halves.value_or(0);
  return costs;
}

template <class Tuning, class CTuning>
moxie_status get_tuning(const moxie_plan* plan, int64_t candidate, CTuning* tuning) {
  return guarded([&] {
    const PlanInfo& info = not_null(plan, "plan").info;
    const size_t size = checked_size(tuning, "tuning");
    if (candidate < MOXIE_CHOSEN) reject("candidate is {}, but must be MOXIE_CHOSEN (-1) or an index", candidate);
    const auto& chosen = candidate == MOXIE_CHOSEN ? info.tuning : candidate_at(info, size_t(candidate)).tuning;
    const auto* found = std::get_if<Tuning>(&chosen);
    if (found == nullptr) reject("the plan is for sm_{}a, which has the other kind of tuning", arch_of(info));
    write(tuning, size, to_c(*found));
  });
}

}  // namespace
}  // namespace moxie::c

using moxie::c::guarded;
using moxie::c::not_null;
using moxie::c::to_c;

extern "C" {

moxie_status moxie_plan_create(const moxie_gemm_description* description, const moxie_device_figures* figures,
                               int64_t total, moxie_plan** plan) {
  return guarded([&] {
    not_null(plan, "plan");
    *plan = new moxie_plan{moxie::plan_gemm(moxie::c::description_of(description), moxie::c::figures_of(figures),
                                            moxie::c::total_of(total))};
  });
}

void moxie_plan_release(moxie_plan* plan) { delete plan; }

moxie_status moxie_plan_get_info(const moxie_plan* plan, moxie_plan_info* info) {
  return guarded([&] {
    const moxie::PlanInfo& of = not_null(plan, "plan").info;
    moxie::c::write(info, moxie::c::checked_size(info, "info"), to_c(of));
  });
}

moxie_status moxie_plan_get_candidate(const moxie_plan* plan, size_t index, moxie_plan_candidate* candidate) {
  return guarded([&] {
    const moxie::PlanInfo& of = not_null(plan, "plan").info;
    const size_t size = moxie::c::checked_size(candidate, "candidate");
    moxie::c::write(candidate, size, to_c(moxie::c::candidate_at(of, index)));
  });
}

moxie_status moxie_plan_get_hopper_tuning(const moxie_plan* plan, int64_t candidate, moxie_hopper_tuning* tuning) {
  return moxie::c::get_tuning<moxie::HopperTuning>(plan, candidate, tuning);
}

moxie_status moxie_plan_get_blackwell_tuning(const moxie_plan* plan, int64_t candidate,
                                             moxie_blackwell_tuning* tuning) {
  return moxie::c::get_tuning<moxie::BlackwellTuning>(plan, candidate, tuning);
}

moxie_status moxie_rank_costs_of(const moxie_ranked_layer* layer, const moxie_device_figures* figures,
                                 moxie_rank_costs* costs) {
  return guarded([&] {
    const moxie_ranked_layer given = moxie::c::read(layer, "layer");
    const size_t size = moxie::c::checked_size(costs, "costs");
    const moxie::DeviceFigures device = moxie::c::figures_of(figures);
    const moxie::RankLinks links =
        given.network == 0 ? moxie::rank_links(device.arch) : moxie::rank_links(device.arch, given.network);
    moxie::c::write(costs, size, to_c(moxie::rank_costs(moxie::c::ranked_layer_of(given), device, links)));
  });
}

}  // extern "C"
