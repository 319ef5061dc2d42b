// SPDX-License-Identifier: Apache-2.0
// Packed weights (moxie/weights.h) made by the CPU, element by element, as docs/weights.md describes them, and the way
// back. All are of one group: codes [n, k / 2], scales [n, k / 32].
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "moxie/types.h"

namespace moxie::reference {

// The first row whose scales lie too far apart to be packed.
std::optional<int64_t> first_unpackable_row(const uint8_t* scales, int64_t n, int64_t k);

// Every row must be one that can be packed.
std::vector<uint8_t> pack_weights(const uint8_t* codes, const uint8_t* scales, int64_t n, int64_t k,
                                  std::optional<GateLayout> gate);
void unpack_weights(const uint8_t* packed, int64_t n, int64_t k, std::optional<GateLayout> gate, uint8_t* codes,
                    uint8_t* scales);

}  // namespace moxie::reference
