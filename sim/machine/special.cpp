// SPDX-License-Identifier: Apache-2.0
// Values of the special registers (PTX ISA 10).
#include "sim/machine/special.h"
#include "sim/machine/launch.h"

#include <unordered_map>

namespace sim {
namespace {

// A clock that advances with the instructions of the cluster, so that a run repeats exactly; also the timer's
// nanoseconds.
uint64_t clock_of(const Warp& warp) {
  Cluster& cluster = *warp.cta->cluster;
  cluster.reads_clock = true;
  return (cluster.instructions + warp.quantum - warp.left) * 4 + cluster.skipped_time;
}

Dim3 divided(const Dim3& a, const Dim3& b) { return {a.x / b.x, a.y / b.y, a.z / b.z}; }

}  // namespace

Special special_from_name(std::string_view name) {
  static const std::unordered_map<std::string_view, Special> kNames = {
      {"%tid.x", Special::TidX},
      {"%tid.y", Special::TidY},
      {"%tid.z", Special::TidZ},
      {"%ntid.x", Special::NtidX},
      {"%ntid.y", Special::NtidY},
      {"%ntid.z", Special::NtidZ},
      {"%laneid", Special::Laneid},
      {"%warpid", Special::Warpid},
      {"%nwarpid", Special::Nwarpid},
      {"%ctaid.x", Special::CtaidX},
      {"%ctaid.y", Special::CtaidY},
      {"%ctaid.z", Special::CtaidZ},
      {"%nctaid.x", Special::NctaidX},
      {"%nctaid.y", Special::NctaidY},
      {"%nctaid.z", Special::NctaidZ},
      {"%smid", Special::Smid},
      {"%nsmid", Special::Nsmid},
      {"%gridid", Special::Gridid},
      {"%is_explicit_cluster", Special::IsExplicitCluster},
      {"%clusterid.x", Special::ClusteridX},
      {"%clusterid.y", Special::ClusteridY},
      {"%clusterid.z", Special::ClusteridZ},
      {"%nclusterid.x", Special::NclusteridX},
      {"%nclusterid.y", Special::NclusteridY},
      {"%nclusterid.z", Special::NclusteridZ},
      {"%cluster_ctaid.x", Special::ClusterCtaidX},
      {"%cluster_ctaid.y", Special::ClusterCtaidY},
      {"%cluster_ctaid.z", Special::ClusterCtaidZ},
      {"%cluster_nctaid.x", Special::ClusterNctaidX},
      {"%cluster_nctaid.y", Special::ClusterNctaidY},
      {"%cluster_nctaid.z", Special::ClusterNctaidZ},
      {"%cluster_ctarank", Special::ClusterCtarank},
      {"%cluster_nctarank", Special::ClusterNctarank},
      {"%lanemask_eq", Special::LanemaskEq},
      {"%lanemask_le", Special::LanemaskLe},
      {"%lanemask_lt", Special::LanemaskLt},
      {"%lanemask_ge", Special::LanemaskGe},
      {"%lanemask_gt", Special::LanemaskGt},
      {"%total_smem_size", Special::TotalSmemSize},
      {"%aggr_smem_size", Special::AggrSmemSize},
      {"%dynamic_smem_size", Special::DynamicSmemSize},
      {"%reserved_smem_offset_begin", Special::ReservedSmemBegin},
      {"%reserved_smem_offset_end", Special::ReservedSmemEnd},
      {"%reserved_smem_offset_cap", Special::ReservedSmemCap},
      {"%reserved_smem_offset_0", Special::ReservedSmemBegin},
      {"%reserved_smem_offset_1", Special::ReservedSmem1},
      {"%clock", Special::Clock},
      {"%clock_lo", Special::Clock},
      {"%clock_hi", Special::ClockHi},
      {"%clock64", Special::Clock64},
      {"%globaltimer", Special::Globaltimer},
      {"%globaltimer_lo", Special::GlobaltimerLo},
      {"%globaltimer_hi", Special::GlobaltimerHi},
      {"%envreg1", Special::Envreg1},
      {"%envreg2", Special::Envreg2},
  };
  const auto it = kNames.find(name);
  if (it != kNames.end()) return it->second;
  if (name.starts_with("%envreg")) return Special::Envreg;
  return Special::None;
}

uint64_t special_value(const Warp& warp, int lane, Special special) {
  const Cta& cta = *warp.cta;
  const Cluster& cluster = *cta.cluster;
  const Launch& launch = *cluster.launch;
  const Dim3& block = launch.block;
  const Dim3& shape = launch.cluster;
  const uint32_t thread = static_cast<uint32_t>(warp.index) * kLanes + static_cast<uint32_t>(lane);
  const uint32_t bit = 1u << lane;
  const uint32_t sms = launch.multiprocessors != 0 ? launch.multiprocessors : launch.arch >= 100 ? 148 : 132;
  switch (special) {
    case Special::None:
      return 0;
    case Special::TidX:
      return thread % block.x;
    case Special::TidY:
      return thread / block.x % block.y;
    case Special::TidZ:
      return thread / block.x / block.y;
    case Special::NtidX:
      return block.x;
    case Special::NtidY:
      return block.y;
    case Special::NtidZ:
      return block.z;
    case Special::Laneid:
      return static_cast<uint32_t>(lane);
    case Special::Warpid:
      return static_cast<uint32_t>(warp.index);
    case Special::Nwarpid:
      return 64;
    case Special::CtaidX:
      return cta.index.x;
    case Special::CtaidY:
      return cta.index.y;
    case Special::CtaidZ:
      return cta.index.z;
    case Special::NctaidX:
      return launch.grid.x;
    case Special::NctaidY:
      return launch.grid.y;
    case Special::NctaidZ:
      return launch.grid.z;
    case Special::Smid: {
      const uint64_t linear =
          cta.index.x + uint64_t{launch.grid.x} * (cta.index.y + uint64_t{launch.grid.y} * cta.index.z);
      return linear % sms;
    }
    case Special::Nsmid:
      return sms;
    case Special::Gridid:
      return 1;
    case Special::IsExplicitCluster:
      return launch.explicit_cluster;
    case Special::ClusteridX:
      return cluster.index.x;
    case Special::ClusteridY:
      return cluster.index.y;
    case Special::ClusteridZ:
      return cluster.index.z;
    case Special::NclusteridX:
      return divided(launch.grid, shape).x;
    case Special::NclusteridY:
      return divided(launch.grid, shape).y;
    case Special::NclusteridZ:
      return divided(launch.grid, shape).z;
    case Special::ClusterCtaidX:
      return cta.index.x % shape.x;
    case Special::ClusterCtaidY:
      return cta.index.y % shape.y;
    case Special::ClusterCtaidZ:
      return cta.index.z % shape.z;
    case Special::ClusterNctaidX:
      return shape.x;
    case Special::ClusterNctaidY:
      return shape.y;
    case Special::ClusterNctaidZ:
      return shape.z;
    case Special::ClusterCtarank:
      return cta.rank;
    case Special::ClusterNctarank:
      return shape.count();
    case Special::LanemaskEq:
      return bit;
    case Special::LanemaskLe:
      return bit | (bit - 1);
    case Special::LanemaskLt:
      return bit - 1;
    case Special::LanemaskGe:
      return ~(bit - 1);
    case Special::LanemaskGt:
      return ~(bit | (bit - 1));
    case Special::TotalSmemSize:
      return launch.own_shared();
    case Special::AggrSmemSize:
      return cta.shared.size;
    case Special::DynamicSmemSize:
      return launch.dynamic_shared;
    case Special::ReservedSmemBegin:
      return launch.reserved_shared_begin();
    case Special::ReservedSmem1:
      return launch.reserved_shared_begin() + kReservedShared / 2;
    case Special::ReservedSmemEnd:
      return launch.reserved_shared_begin() + kReservedShared;
    case Special::ReservedSmemCap:
      return kReservedShared;
    case Special::Envreg:
      return 0;
    case Special::Envreg1:
      return launch.grid_workspace >> 32;
    case Special::Envreg2:
      return static_cast<uint32_t>(launch.grid_workspace);
    case Special::SharedAddress:
      return cta.shared_base();
    case Special::Clock:
      return static_cast<uint32_t>(clock_of(warp));
    case Special::ClockHi:
      return clock_of(warp) >> 32;
    case Special::Clock64:
      return clock_of(warp);
    case Special::Globaltimer:
      return clock_of(warp);
    case Special::GlobaltimerLo:
      return static_cast<uint32_t>(clock_of(warp));
    case Special::GlobaltimerHi:
      return clock_of(warp) >> 32;
  }
  return 0;
}

void fill_row(Warp& warp, const Kernel::ConstantRow& row) {
  const auto special = static_cast<Special>(row.special);
  const auto value = [&](int lane) { return row.bits + special_value(warp, lane, special); };
  if (row.bytes == 0) {  // a predicate
    uint32_t mask = 0;
    for (int lane = 0; lane < kLanes; ++lane) mask |= value(lane) != 0 ? 1u << lane : 0;
    *warp.row<uint32_t>(row.offset) = mask;
    return;
  }
  if (is_volatile(special)) {  // one reading for the warp
    const uint64_t now = special_value(warp, 0, special);
    for (int lane = 0; lane < kLanes; ++lane) {
      if (row.bytes == 8)
        warp.row<uint64_t>(row.offset)[lane] = now;
      else
        warp.row<uint32_t>(row.offset)[lane] = static_cast<uint32_t>(now);
    }
    return;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    if (row.bytes == 16) {
      warp.row<uint64_t>(row.offset)[2 * lane] = value(lane);
      warp.row<uint64_t>(row.offset)[2 * lane + 1] = 0;
    } else if (row.bytes == 8) {
      warp.row<uint64_t>(row.offset)[lane] = value(lane);
    } else {
      warp.row<uint32_t>(row.offset)[lane] = static_cast<uint32_t>(value(lane));
    }
  }
}

}  // namespace sim
