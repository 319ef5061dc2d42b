// SPDX-License-Identifier: Apache-2.0
// Calls of moxie/routing.h with their answers, computed on the host.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
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
  const void* ids() const { return ids_.get(); }

 private:
  SortJob job_;
  Buffer ids_, count_, ends_, order_, inverse_, workspace_;
};

// ---- Permute ----

struct PermuteJob {
  int64_t tokens = 0;
  int top_k = 1;
  int64_t width = 8, row_count = 0;
  DataType type = DataType::Bf16;
  int64_t padding = 0;   // elements between rows of both matrices
  std::vector<float> x;  // [T, H]; representable in its type
  std::vector<int32_t> inverse;
  std::optional<int32_t> token_count = {};
};

// Of `out` all bytes, with what lies between its rows and behind it.
std::vector<uint8_t> reference_permute(const PermuteJob& job);

class PermuteCall {
 public:
  explicit PermuteCall(const PermuteJob& job);
  void poison() const { out_.fill(kUntouchedByte); }
  void run(const LaunchOptions& options = {}) const;
  std::vector<uint8_t> results() const { return out_.download(); }

 private:
  PermuteJob job_;
  Buffer x_, inverse_, count_, out_;
};

// ---- Combine ----

struct CombineJob {
  int64_t tokens = 0;
  int top_k = 1;
  int64_t width = 8, row_count = 0;
  DataType rows_type = DataType::Bf16, out_type = DataType::Bf16;
  bool residual = false, in_place = false;  // in place: the residual is out
  int64_t padding = 0;                      // elements between rows of every matrix
  std::vector<float> rows, residuals;       // [R, H] and [T, H]; representable in their types
  std::vector<int32_t> inverse;
  std::vector<float> weights;  // empty: none
  std::optional<int32_t> token_count = {};
};

// Of `out` all bytes, with what lies between its rows and behind it.
std::vector<uint8_t> reference_combine(const CombineJob& job);

class CombineCall {
 public:
  explicit CombineCall(const CombineJob& job);
  void poison() const;
  void run(const LaunchOptions& options = {}) const;
  std::vector<uint8_t> results() const { return out_.download(); }

 private:
  CombineJob job_;
  Buffer rows_, residual_, inverse_, weights_, count_, out_;
};

// Equal bytes, but that a NaN is a NaN whatever its bits. Of a mismatch the first element.
std::string first_difference(const std::vector<uint8_t>& got, const std::vector<uint8_t>& wanted, DataType type);

// ---- Route ----

struct RouteJob {
  int64_t tokens = 0, experts = 1;
  int top_k = 1;
  DataType logits_type = DataType::F32;
  int64_t padding = 0;  // elements between tokens
  RouterScore score = RouterScore::Softmax;
  bool renormalize = true;
  float scaling_factor = 1;
  std::vector<float> correction_bias;  // empty: none
  int groups = 1, chosen_groups = 1;
  std::optional<int32_t> token_count = {};
  std::vector<float> logits;  // [T, E], representable in their type
};

// In double. `clear`: no two numbers that the choice compares are so close, without being equal, that float32 may
// decide otherwise.
struct RoutedToken {
  std::vector<int32_t> ids;
  std::vector<double> weights;
  bool clear = true;
};
RoutedToken reference_route(const RouteJob& job, const float* logits);

struct Routed {
  std::vector<int32_t> ids;  // with the guards
  std::vector<float> weights;
};

class RouteCall {
 public:
  explicit RouteCall(const RouteJob& job);
  void poison() const;
  void run(const LaunchOptions& options = {}) const;
  Routed results() const;

 private:
  RouteJob job_;
  Buffer logits_, bias_, count_, ids_, weights_;
};

}  // namespace moxie::test
