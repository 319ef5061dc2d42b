// SPDX-License-Identifier: Apache-2.0
// Lanes that go each to its own place: brx, call and ret.
#pragma once
#include <bit>
#include <cstdint>

#include "sim/machine/hierarchy.h"

namespace sim {

// Lanes of the mask go each to its own target; the rest of the split goes on.
template <class Target>
Step scatter(Warp& warp, uint32_t mask, Target target) {
  const int next = warp.pc() + 1;
  const uint32_t staying = warp.splits[warp.current].mask & ~mask;
  bool first = true;
  for (uint32_t rest = mask; rest != 0;) {
    const int pc = target(std::countr_zero(rest));
    uint32_t lanes = 0;
    for (uint32_t r = rest; r != 0; r &= r - 1) {
      const int lane = std::countr_zero(r);
      if (target(lane) == pc) lanes |= 1u << lane;
    }
    rest &= ~lanes;
    if (first) {
      Warp::Split& split = warp.splits[warp.current];
      split.mask = lanes;
      split.pc = pc;
      first = false;
    } else {
      warp.splits.push_back({pc, lanes, 0, false});
    }
  }
  if (staying != 0) warp.splits.push_back({next, staying, 0, false});
  return Step::Jump;
}

}  // namespace sim
