// Test data for the demo and the benchmarks: random bf16 values, and tokens routed to experts.
#pragma once
#include <cstdint>
#include <vector>

namespace moxie::timing {

int worker_threads();  // processors of this machine

// `count` bf16 values, uniform in [-scale, scale): a function of `seed` and the index alone, filled by all processors.
std::vector<uint16_t> random_bf16(uint64_t seed, int64_t count, float scale);
std::vector<uint8_t> random_bytes(uint64_t seed, int64_t count);

// Rows of each expert and the token of each row, sorted by expert.
struct Routing {
  std::vector<int32_t> ends;    // [experts] end of each expert's rows
  std::vector<int32_t> tokens;  // [rows]
};
// Each token goes to `top` experts whose popularity falls off as 1 / rank; every sixth expert gets no token.
Routing route(uint64_t seed, int tokens, int experts, int top);

}  // namespace moxie::timing
