// SPDX-License-Identifier: Apache-2.0
#include "sim/translate/opcodes.h"

#include <algorithm>

#include "sim/async/families.h"
#include "sim/isa/families.h"
#include "sim/machine/decode.h"
#include "sim/tcgen05/families.h"

namespace sim {

void register_opcodes() {
  static const bool registered = [] {
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
    register_wmma();
    register_atomics();
    register_mbarrier();
    register_bulk_copy();
    register_tensor_copy();
    register_cp_async();
    register_st_async();
    register_tensor_map();
    register_fence();
    register_wgmma();
    register_cluster();
    register_tcgen05();
    register_launch_control();
    return true;
  }();
  (void)registered;
}

std::vector<std::string> registered_opcodes() {
  register_opcodes();
  std::vector<std::string> names;
  for (const auto& [name, decoders] : opcode_table()) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace sim
