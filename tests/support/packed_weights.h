// SPDX-License-Identifier: Apache-2.0
// Packed weights (moxie/weights.h) made by the CPU, element by element, as docs/weights.md describes them.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "moxie/types.h"

namespace moxie::test {

// codes: [n, k / 2], scales: [n, k / 32], both of one group.
std::vector<uint8_t> pack_reference(const std::vector<uint8_t>& codes, const std::vector<uint8_t>& scales, int64_t n,
                                    int64_t k, std::optional<GateLayout> gate);

}  // namespace moxie::test
