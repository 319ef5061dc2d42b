// SPDX-License-Identifier: Apache-2.0
// The reductions of cp.reduce.async.bulk and cp.reduce.async.bulk.tensor (PTX ISA 9.7.9.25.4.2): one element into
// memory that other blocks may be changing at the same time.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "sim/memory/tensor_map.h"

namespace sim {

enum class Reduction : uint8_t { None, Add, Min, Max, Inc, Dec, And, Or, Xor };
std::optional<Reduction> reduction_from_name(std::string_view name);
// Whether an operation has an element type (the table of 9.7.9.25.4.2).
bool reduction_supports(Reduction op, TensorElement element, bool to_shared);
void reduce_elements(Reduction op, TensorElement element, uint8_t* destination, const uint8_t* source, uint32_t bytes);

}  // namespace sim
