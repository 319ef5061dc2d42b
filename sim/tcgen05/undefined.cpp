// SPDX-License-Identifier: Apache-2.0
// Undefined values in tensor memory.
#include <algorithm>

#include "sim/hazards/undefined.h"
#include "sim/tcgen05/state.h"

namespace sim {

namespace {

bool any_undefined(TensorMemory& memory, const std::vector<TensorColumns>& columns) {
  if (memory.undefined.empty()) return false;
  for (const TensorColumns& some : columns) {
    const uint32_t count = std::min(some.columns, kTensorColumns - std::min(some.column, kTensorColumns));
    for (uint32_t lane = 0; lane < kTensorLanes; ++lane) {
      const uint32_t* const bits = memory.undefined_row(lane) + some.column;
      if (std::any_of(bits, bits + count, [](uint32_t word) { return word != 0; })) return true;
    }
  }
  return false;
}

}  // namespace

void perform_operation(Cluster& cluster, const Origin& origin, const TensorGroup& group,
                       const std::vector<TensorColumns>& columns, bool reads_unwritten,
                       const std::function<void()>& operation) {
  bool undefined = reads_unwritten;
  for (int c = 0; c < group.count; ++c) undefined = undefined || any_undefined(tensor_memory(*group.cta[c]), columns);
  if (!undefined) return operation();
  std::vector<Tried> parts;
  std::vector<std::vector<uint8_t>> shared;
  for (int c = 0; c < group.count; ++c) {
    Cta& cta = *group.cta[c];
    TensorMemory& memory = tensor_memory(cta);
    for (const TensorColumns& some : columns) {
      const uint32_t count = std::min(some.columns, kTensorColumns - std::min(some.column, kTensorColumns));
      for (uint32_t lane = 0; lane < kTensorLanes; ++lane) {
        parts.push_back({reinterpret_cast<uint8_t*>(memory.row(lane) + some.column),
                         reinterpret_cast<uint8_t*>(memory.undefined_row(lane) + some.column), size_t{count} * 4});
      }
    }
    shared.push_back(undefined_shared(*origin.warp, cta));
    parts.push_back({cta.shared.bytes, shared.back().data(), shared.back().size(), true});
  }
  Statistics* const statistics = cluster.statistics;
  try_values(parts, kProductTrials, [&](int) {
    operation();
    cluster.statistics = nullptr;
    return true;
  });
  cluster.statistics = statistics;
}

}  // namespace sim
