// SPDX-License-Identifier: Apache-2.0
#include "sim/machine/operands.h"

#include "sim/machine/fault.h"
#include "sim/memory/address_space.h"

namespace sim {

void generic_as_shared(const Warp& warp, uint64_t address, int lane) {
  deviation(Hazard::Memory, warp, lane, [&] {
    return "generic address " + hex(address) + " is used as a shared address, which cvta.to.shared would make of it";
  });
}

SharedPlace shared_place(Warp& warp, uint64_t address, bool generic, int lane) {
  if (generic && (address & kWindowMask) != kSharedWindow) {
    const auto text = [&] { return "generic address " + hex(address) + " is not in shared memory"; };
    if (address >> 32 != 0) fault(Hazard::Memory, warp, lane, text());
    // A shared address; what can only be in shared memory is found by the low 32 bits.
    deviation(Hazard::Memory, warp, lane, text);
  }
  if (!generic && (address & kWindowMask) == kSharedWindow) generic_as_shared(warp, address, lane);
  const uint64_t low = address & ~(generic || (address & kWindowMask) == kSharedWindow ? kWindowMask : 0);
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
