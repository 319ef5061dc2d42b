// SPDX-License-Identifier: Apache-2.0
// The families of opcodes in sim/tcgen05. Each registers its decoders (sim/machine/decode.h).
#pragma once

namespace sim {

void register_tcgen05();  // state.cpp

}  // namespace sim
