// SPDX-License-Identifier: Apache-2.0
// Which reading of the ISA a launch is held to.
#pragma once
#include <cstdint>

namespace sim {

// MOXIE_SIM_STRICT: what becomes of a deviation, which the ISA calls undefined while GPUs let it pass and published
// code relies on it. It is a fault, a warning at the end of the launch, or nothing.
enum class Strictness : uint8_t { Isa, Portable, Field };

// Programs in use, or the ISA itself, leave room for two readings. docs/simulator.md gives the reasons for each choice.
struct Rules {
  Strictness strictness = Strictness::Isa;
  // MOXIE_SIM_EXIT=drained: a block must not end while a bulk copy still reads its shared memory.
  bool drained_exit = false;
  // MOXIE_SIM_TCGEN05_FENCES=strict: tcgen05.fence also around synchronisation that releases and acquires.
  bool strict_tensor_fences = false;
};

}  // namespace sim
