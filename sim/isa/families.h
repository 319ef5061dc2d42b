// SPDX-License-Identifier: Apache-2.0
// The families of opcodes in sim/isa. Each registers its decoders (sim/machine/decode.h).
#pragma once

namespace sim {

void register_integer();  // integer.cpp
void register_float();    // float.cpp
void register_convert();  // convert.cpp
void register_logic();    // logic.cpp
void register_move();     // move.cpp
void register_memory();   // memory.cpp
void register_control();  // control.cpp
void register_call();     // call.cpp
void register_warp();     // warp.cpp
void register_mma();      // mma.cpp
void register_wmma();     // wmma.cpp
void register_atomics();  // atomics.cpp

}  // namespace sim
