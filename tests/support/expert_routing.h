// SPDX-License-Identifier: Apache-2.0
// Calls of moxie/routing.h with their answers, computed on the host.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "moxie/routing.h"
#include "tests/support/device.h"

namespace moxie::test {

// Every output has this many int32 or float places before and behind it that no kernel may touch, and every place
// begins as kUntouched bytes.
constexpr size_t kGuard = 4;
constexpr uint8_t kUntouchedByte = 0xa5;
constexpr int32_t kUntouchedInt = int32_t(0xa5a5a5a5);

// ---- Sort ----

struct SortJob {
  int64_t tokens = 0;
  int top_k = 1;
  int64_t first_expert = 0, experts = 1;
  IdType id_type = IdType::Int32;
  std::vector<int64_t> ids;
  std::optional<int32_t> token_count = {};
};

struct Sorted {
  std::vector<int32_t> ends, order, inverse;  // with the guards
  bool operator==(const Sorted&) const = default;
};

Sorted reference_sort(const SortJob& job);

// The job on the device.
class SortCall {
 public:
  explicit SortCall(const SortJob& job);
  void poison() const;
  void run(const LaunchOptions& options = {}) const;
  Sorted results() const;

 private:
  SortJob job_;
  Buffer ids_, count_, ends_, order_, inverse_, workspace_;
};

}  // namespace moxie::test
