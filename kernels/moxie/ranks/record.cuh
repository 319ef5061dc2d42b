// SPDX-License-Identifier: Apache-2.0
// A token's record, which says of each choice of the token which row of our experts it is (record_words() in window.h).
#pragma once
#include "moxie/ranks/meet.cuh"
#include "moxie/window.h"

namespace moxie::kernel {

MOXIE_DEVICE const int32_t* records_of(const RankParams& ranks) {
  return reinterpret_cast<const int32_t*>(ranks.windows[ranks.rank] + ranks.at.records);
}

// Lane j has the row of choice j, and the two lanes behind those of the most choices the call and the signature.
struct RecordOfLanes {
  int32_t word = 0;

  MOXIE_DEVICE void load(const int32_t* record, int32_t top_k) {
    const int lane = threadIdx.x % 32;
    word = lane < top_k ? record[2 + lane] : lane >= kMaxTopK && lane < kMaxTopK + 2 ? record[lane - kMaxTopK] : 0;
  }
  // By a warp: whether the token has come in this call of this layer.
  MOXIE_DEVICE bool has_come(const RankParams& ranks, uint32_t call) const {
    const int lane = threadIdx.x % 32;
    const uint32_t wanted = lane == kMaxTopK ? call : ranks.signature;
    return __all_sync(~0u, lane < kMaxTopK || lane >= kMaxTopK + 2 || static_cast<uint32_t>(word) == wanted);
  }
  // Of this lane, or -1.
  MOXIE_DEVICE int32_t row(const RankParams& ranks, int32_t top_k) const {
    const bool is_row = static_cast<int>(threadIdx.x % 32) < top_k &&
                        static_cast<uint32_t>(word) < static_cast<uint32_t>(ranks.max_rows);
    return is_row ? word : -1;
  }
};

}  // namespace moxie::kernel
