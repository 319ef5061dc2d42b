// SPDX-License-Identifier: Apache-2.0
// Which reading of the ISA a launch is held to.
#pragma once

namespace sim {

// Programs in use, or the ISA itself, leave room for two readings. docs/simulator.md gives the reasons for each choice.
struct Rules {
  // MOXIE_SIM_EXIT=drained: a block must not end while a bulk copy still reads its shared memory.
  bool drained_exit = false;
  // MOXIE_SIM_READS=unfenced: a copy may land where the generic proxy has read without a fence.proxy.async between.
  bool fenced_reads = true;
  // MOXIE_SIM_TCGEN05_FENCES=strict: tcgen05.fence also around synchronisation that releases and acquires.
  bool strict_tensor_fences = false;
};

}  // namespace sim
