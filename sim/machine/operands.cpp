// SPDX-License-Identifier: Apache-2.0
#include "sim/machine/operands.h"

#include "sim/machine/fault.h"
#include "sim/memory/address_space.h"

namespace sim {

SharedPlace shared_place(Warp& warp, uint64_t address, bool generic, int lane) {
  if (generic && (address & kWindowMask) != kSharedWindow)
    fault(Hazard::Memory, warp, lane, "generic address " + hex(address) + " is not in shared memory");
  const uint64_t low = generic ? address & ~kWindowMask : address;
  const uint64_t rank = low >> kRankShift;
  Cluster& cluster = *warp.cta->cluster;
  if (rank >= cluster.ctas.size())
    fault(Hazard::Memory, warp, lane, "shared address " + hex(address) + " names a block outside the cluster");
  Cta* cta = cluster.ctas[rank].get();
  if (cta != warp.cta && cta->finished())
    fault(Hazard::Memory, warp, lane,
          "accesses the shared memory of block rank " + std::to_string(cta->rank) + ", which has finished");
  return {cta, static_cast<uint32_t>(low & kSharedOffset)};
}

}  // namespace sim
