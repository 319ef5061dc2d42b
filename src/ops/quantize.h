// SPDX-License-Identifier: Apache-2.0
// Quantizing gathered rows, for layers.
#pragma once
#include "moxie/arguments.h"
#include "moxie/quantize.h"

namespace moxie::ops {

// quantize() of rows that `gather` finds among the values, which lie in any order. It checks nothing: leading
// dimensions are given, a tensor scale of null stands for 1. The kernel may start while its predecessor ends.
void gather_and_quantize(const Device& device, const Quantization& arguments, const kernel::GatherParams& gather,
                         bool programmatic);

}  // namespace moxie::ops
