// All families of instructions, in one place: nothing registers itself.
#include "sim/isa/whole_warp.h"
#include "sim/machine/machine.h"

namespace sim {

void register_isa() {
  register_integer();
  register_float();
  register_convert();
  register_logic();
  register_move();
  register_memory();
  register_control();
  register_call();
  register_warp();
  register_mma();
  register_atomics();
  register_mbarrier();
  register_copy();
  register_tensor_map();
  register_fence();
  register_wgmma();
  register_cluster();
  register_tcgen05();
  register_launch_control();
}

}  // namespace sim
