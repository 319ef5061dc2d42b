// SPDX-License-Identifier: Apache-2.0
// What a launch did, for MOXIE_SIM_STATISTICS.
#pragma once
#include <cstdint>

namespace sim {

struct Statistics {
  uint64_t lane_instructions = 0;  // instructions, each counted once for every lane that its guard let execute it
  uint64_t multiply_adds = 0;      // of mma, wgmma and tcgen05.mma; of a sparse matrix those of its stored elements
  uint64_t bytes_read = 0;         // from global memory, also by copies
  uint64_t bytes_written = 0;      // to global memory, also by copies
  void add(const Statistics& other) {
    lane_instructions += other.lane_instructions;
    multiply_adds += other.multiply_adds;
    bytes_read += other.bytes_read;
    bytes_written += other.bytes_written;
  }
};

}  // namespace sim
