// SPDX-License-Identifier: Apache-2.0
// Special registers (PTX ISA 10): names, widths and values.
#pragma once
#include <cstdint>
#include <string_view>

#include "sim/machine/hierarchy.h"
#include "sim/machine/kernel.h"

namespace sim {

enum class Special : int {
  None = 0,  // a ConstantRow with this is an immediate
  TidX,
  TidY,
  TidZ,
  NtidX,
  NtidY,
  NtidZ,
  Laneid,
  Warpid,
  Nwarpid,
  CtaidX,
  CtaidY,
  CtaidZ,
  NctaidX,
  NctaidY,
  NctaidZ,
  Smid,
  Nsmid,
  Gridid,
  IsExplicitCluster,
  ClusteridX,
  ClusteridY,
  ClusteridZ,
  NclusteridX,
  NclusteridY,
  NclusteridZ,
  ClusterCtaidX,
  ClusterCtaidY,
  ClusterCtaidZ,
  ClusterNctaidX,
  ClusterNctaidY,
  ClusterNctaidZ,
  ClusterCtarank,
  ClusterNctarank,
  LanemaskEq,
  LanemaskLe,
  LanemaskLt,
  LanemaskGe,
  LanemaskGt,
  TotalSmemSize,
  AggrSmemSize,
  DynamicSmemSize,
  ReservedSmemBegin,
  ReservedSmemEnd,
  ReservedSmemCap,
  ReservedSmem1,
  Envreg,
  Envreg1,
  Envreg2,
  // Not one of them: the address of the row's bits in the block's shared memory.
  SharedAddress,
  // These change while a warp runs; their rows are written again before each instruction that reads them.
  Clock,
  ClockHi,
  Clock64,
  Globaltimer,
  GlobaltimerLo,
  GlobaltimerHi,
};

Special special_from_name(std::string_view name);  // None: unknown
inline bool is_volatile(Special s) { return s >= Special::Clock; }
inline bool is_wide(Special s) { return s == Special::Clock64 || s == Special::Globaltimer; }
uint64_t special_value(const Warp& warp, int lane, Special special);

// Writes one constant row: an immediate for all lanes, or a special register.
void fill_row(Warp& warp, const Kernel::ConstantRow& row);

}  // namespace sim
