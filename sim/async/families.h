// SPDX-License-Identifier: Apache-2.0
// The families of opcodes in sim/async. Each registers its decoders (sim/machine/decode.h).
#pragma once

namespace sim {

void register_mbarrier();  // mbarrier.cpp
void register_bulk_copy();
void register_tensor_copy();
void register_cp_async();
void register_st_async();
void register_tensor_map();      // tensor_map.cpp
void register_fence();           // fence.cpp
void register_wgmma();           // wgmma.cpp
void register_cluster();         // cluster.cpp: barrier.cluster, mapa, setmaxnreg, griddepcontrol
void register_launch_control();  // launch_control.cpp

}  // namespace sim
