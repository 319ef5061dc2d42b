// SPDX-License-Identifier: Apache-2.0
// How many tokens there are.
#pragma once
#include "moxie/isa.cuh"

namespace moxie::kernel {

// `tokens` is the most there can be; `token_count`, where it is not null, says how many there are.
MOXIE_DEVICE int32_t real_tokens(const int32_t* token_count, int32_t tokens) {
  return token_count == nullptr ? tokens : min(max(*token_count, 0), tokens);
}

}  // namespace moxie::kernel
