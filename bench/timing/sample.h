// SPDX-License-Identifier: Apache-2.0
// Problems drawn at random, which the cost model of plans is fitted to.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "moxie/gemm.h"

namespace moxie::timing {

// Draws `count` products with groups by offsets: groups, mean rows, N and K on logarithmic scales, with SwiGLU or
// without an activation. None takes more than 8 TFLOP or 12 GB of weights. The same seed draws the same products.
std::vector<GemmDescription> draw_problems(uint64_t seed, int count);

// The product in the words of `moxie plan`.
std::string words_of(const GemmDescription& description);

}  // namespace moxie::timing
