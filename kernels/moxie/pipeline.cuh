// SPDX-License-Identifier: Apache-2.0
// Where a role stands in a ring of stages, of operands or of accumulators.
#pragma once
#include "moxie/isa.cuh"

namespace moxie::kernel {

// The phase is the parity of how often the stage was used before.
template <int kStages>
struct RingPosition {
  uint32_t stage = 0;
  uint32_t phase = 0;

  MOXIE_DEVICE void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
  MOXIE_DEVICE void advance(uint32_t stages) {
    stages += stage;
    phase ^= stages / kStages & 1;
    stage = stages % kStages;
  }
};

}  // namespace moxie::kernel
