// SPDX-License-Identifier: Apache-2.0
#include "sim/async/copy_target.h"

namespace sim {

std::vector<Target> targets_of(Warp& warp, uint64_t destination, uint64_t barrier, const TargetForm& form,
                               uint32_t cta_mask, int lane) {
  const SharedPlace to = shared_place(warp, destination, form.generic, lane);
  const SharedPlace bar = shared_place(warp, barrier, form.generic, lane);
  std::vector<Target> targets;
  const auto add = [&](Cta& cta) {
    Cta* signalled = &cta;
    if (form.pair) {
      const uint32_t rank = (cta.rank & ~1u) | (bar.cta->rank & 1);
      if ((cta.rank | 1) >= warp.cta->cluster->ctas.size())
        fault(Hazard::IllegalUse, warp, lane,
              ".cta_group::2 in a cluster where block rank " + std::to_string(cta.rank) + " has no peer");
      signalled = warp.cta->cluster->ctas[rank].get();
    }
    Mbarrier& object = find_mbarrier(warp, *signalled, bar.offset, lane, true);
    targets.push_back({&cta, to.offset, bar.offset, mbarrier_stamp(object, current_origin(warp, lane)), signalled});
  };
  if (!form.multicast) {
    if (form.own_only && to.cta != warp.cta)
      fault(Hazard::IllegalUse, warp, lane, "the destination in .shared::cta lies in another block");
    if (bar.cta != to.cta && !(form.pair && bar.cta->rank == (to.cta->rank ^ 1)))
      fault(Hazard::IllegalUse, warp, lane, "the destination and the mbarrier lie in different blocks");
    add(*to.cta);
    return targets;
  }
  Cluster& cluster = *warp.cta->cluster;
  if (cta_mask == 0 || cta_mask >> cluster.ctas.size() != 0)
    fault(Hazard::IllegalUse, warp, lane,
          "multicast mask " + hex(cta_mask) + " in a cluster of " + std::to_string(cluster.ctas.size()) + " blocks");
  for (uint32_t rest = cta_mask; rest != 0; rest &= rest - 1) {
    Cta& cta = *cluster.ctas[first_lane(rest)];
    if (&cta != warp.cta && cta.finished())
      fault(Hazard::Memory, warp, lane,
            "multicasts to block rank " + std::to_string(cta.rank) + ", which has finished");
    add(cta);
  }
  return targets;
}

void check_alignment(Warp& warp, int lane, const char* what, uint64_t value, uint32_t align) {
  if (value % align != 0)
    fault(Hazard::Memory, warp, lane,
          std::string(what) + " " + hex(value) + " is not a multiple of " + std::to_string(align));
}

BulkLane& bulk_lane(Warp& warp, int lane) {
  BulkLane& bulk = warp.async->bulk[lane];
  if (bulk.read == 0) {
    const auto index = static_cast<uint32_t>(warp.index);
    bulk.read = new_agent(*warp.cta->cluster, {AgentInfo::Kind::BulkRead, warp.cta, index});
    bulk.written = new_agent(*warp.cta->cluster, {AgentInfo::Kind::BulkWrite, warp.cta, index});
  }
  return bulk;
}

Stamp join_bulk_group(BulkLane& bulk, const Origin& origin) {
  bulk.last = origin;
  ++bulk.groups.back().reading;
  ++bulk.groups.back().writing;
  bulk.last_used = bulk.committed() + 1;
  return {bulk.read, bulk.committed() + 1};
}

std::optional<TensorElement> element_from_name(const std::string& name) {
  static constexpr struct {
    const char* name;
    TensorElement element;
  } kNames[] = {{"b32", TensorElement::U32}, {"u32", TensorElement::U32},   {"s32", TensorElement::S32},
                {"b64", TensorElement::U64}, {"u64", TensorElement::U64},   {"s64", TensorElement::S64},
                {"f16", TensorElement::F16}, {"bf16", TensorElement::BF16}, {"f32", TensorElement::F32},
                {"f64", TensorElement::F64}};
  for (const auto& n : kNames) {
    if (name == n.name) return n.element;
  }
  return std::nullopt;
}

void need_operands(const ptx::Instruction& source, size_t count) {
  if (source.operands.size() != count)
    unsupported(source, "has " + std::to_string(source.operands.size()) + " operands where " + std::to_string(count) +
                            " are expected");
}

}  // namespace sim
