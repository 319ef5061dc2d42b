// SPDX-License-Identifier: Apache-2.0
// Test data for the demo and the benchmarks: random bf16 values, and tokens routed to experts.
#pragma once
#include <cstdint>
#include <vector>

namespace moxie::timing {

int worker_threads();  // processors of this machine

// Makes `count` bf16 values, uniform in [-scale, scale). A value depends on `seed` and its index alone.
std::vector<uint16_t> random_bf16(uint64_t seed, int64_t count, float scale);
std::vector<uint8_t> random_bytes(uint64_t seed, int64_t count);

// Tokens routed to experts: a row for every pair of the two, sorted by expert.
struct Routing {
  std::vector<int32_t> ends;    // [experts] end of each expert's rows
  std::vector<int32_t> tokens;  // [rows]
};
// Sends each token to `top` experts, whose popularity falls off as 1 / rank. Every sixth expert gets no token.
Routing route(uint64_t seed, int tokens, int experts, int top);

}  // namespace moxie::timing
