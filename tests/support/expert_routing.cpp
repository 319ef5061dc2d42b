// SPDX-License-Identifier: Apache-2.0
// See expert_routing.h.
#include "tests/support/expert_routing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "reference/formats.h"

namespace moxie::test {
namespace {

std::vector<int32_t> guarded(size_t places) { return std::vector<int32_t>(places + 2 * kGuard, kUntouchedInt); }

Buffer buffer_of(size_t places) { return Buffer((places + 2 * kGuard) * 4); }

int32_t* behind_guard(const Buffer& buffer) { return buffer.get<int32_t>() + kGuard; }

std::vector<int32_t> ints_of(const Buffer& buffer) {
  const std::vector<uint8_t> bytes = buffer.download();
  std::vector<int32_t> ints(bytes.size() / 4);
  std::memcpy(ints.data(), bytes.data(), bytes.size());
  return ints;
}

int64_t real_tokens(int64_t tokens, std::optional<int32_t> count) {
  return count ? std::clamp<int64_t>(*count, 0, tokens) : tokens;
}

Buffer count_buffer(std::optional<int32_t> count) { return count ? Buffer(std::vector<int32_t>{*count}) : Buffer(); }

}  // namespace

Sorted reference_sort(const SortJob& job) {
  const auto pairs = size_t(job.tokens * job.top_k);
  const auto real = size_t(real_tokens(job.tokens, job.token_count) * job.top_k);
  Sorted sorted{guarded(size_t(job.experts)), guarded(pairs), guarded(pairs)};
  std::fill_n(sorted.inverse.begin() + kGuard, pairs, -1);
  std::vector<std::vector<int32_t>> of_expert(static_cast<size_t>(job.experts));
  for (size_t pair = 0; pair < real; ++pair) {
    const int64_t id = job.ids[pair];
    if (id >= job.first_expert && id < job.first_expert + job.experts)
      of_expert[size_t(id - job.first_expert)].push_back(int32_t(pair));
  }
  int32_t row = 0;
  for (size_t e = 0; e < of_expert.size(); ++e) {
    for (const int32_t pair : of_expert[e]) {
      sorted.order[kGuard + size_t(row)] = pair;
      sorted.inverse[kGuard + size_t(pair)] = row++;
    }
    sorted.ends[kGuard + e] = row;
  }
  return sorted;
}

SortCall::SortCall(const SortJob& job)
    : job_(job),
      count_(count_buffer(job.token_count)),
      ends_(buffer_of(size_t(job.experts))),
      order_(buffer_of(size_t(job.tokens * job.top_k))),
      inverse_(buffer_of(size_t(job.tokens * job.top_k))),
      workspace_(sort_workspace_bytes(job.tokens, job.top_k, job.experts)) {
  if (job.id_type == IdType::Int64) {
    ids_ = Buffer(job.ids);
  } else {
    std::vector<int32_t> narrow;
    for (const int64_t id : job.ids) narrow.push_back(int32_t(id));
    ids_ = Buffer(narrow);
  }
}

void SortCall::poison() const {
  for (const Buffer* buffer : {&ends_, &order_, &inverse_, &workspace_}) buffer->fill(kUntouchedByte);
}

void SortCall::run(const LaunchOptions& options) const {
  ExpertSort x;
  x.tokens = job_.tokens, x.top_k = job_.top_k;
  x.first_expert = job_.first_expert, x.experts = job_.experts;
  x.id_type = job_.id_type, x.ids = ids_.get();
  x.token_count = count_.get<int32_t>();
  x.ends = behind_guard(ends_), x.order = behind_guard(order_), x.inverse = behind_guard(inverse_);
  sort_by_expert(device(), x, {workspace_.get(), workspace_.size()}, options);
}

Sorted SortCall::results() const { return {ints_of(ends_), ints_of(order_), ints_of(inverse_)}; }

// ---- Permute -------------------------------------------------------------------------------------------------------

namespace {

// Rows of `width` values, `padding` untouched elements behind each.
std::vector<uint8_t> matrix_bytes(const std::vector<float>& values, DataType type, int64_t rows, int64_t width,
                                  int64_t padding) {
  const auto size = size_t(size_of(type));
  const size_t stride = size_t(width + padding) * size;
  std::vector<uint8_t> bytes(size_t(rows) * stride, kUntouchedByte);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bf16 = reference::float_to_bf16(values[i]);
    uint8_t* const to = bytes.data() + i / size_t(width) * stride + i % size_t(width) * size;
    std::memcpy(to, type == DataType::Bf16 ? static_cast<const void*>(&bf16) : &values[i], size);
  }
  return bytes;
}

// A buffer of at least one byte, so that an empty matrix has an address.
Buffer filled(std::vector<uint8_t> bytes) {
  bytes.resize(std::max<size_t>(bytes.size(), 1));
  return Buffer(bytes);
}

}  // namespace

std::vector<uint8_t> reference_permute(const PermuteJob& job) {
  const std::vector<uint8_t> from = matrix_bytes(job.x, job.type, job.tokens, job.width, job.padding);
  const size_t row_bytes = size_t(job.width * size_of(job.type));
  const size_t stride = size_t(job.width + job.padding) * size_t(size_of(job.type));
  std::vector<uint8_t> bytes(std::max<size_t>(size_t(job.row_count) * stride, 1), kUntouchedByte);
  const int64_t real = real_tokens(job.tokens, job.token_count);
  for (int64_t pair = 0; pair < real * job.top_k; ++pair) {
    const int32_t row = job.inverse[size_t(pair)];
    if (row < 0 || row >= job.row_count) continue;
    std::copy_n(from.begin() + int64_t(size_t(pair / job.top_k) * stride), row_bytes,
                bytes.begin() + int64_t(size_t(row) * stride));
  }
  return bytes;
}

PermuteCall::PermuteCall(const PermuteJob& job)
    : job_(job),
      x_(filled(matrix_bytes(job.x, job.type, job.tokens, job.width, job.padding))),
      inverse_(job.inverse),
      count_(count_buffer(job.token_count)),
      out_(
          filled(std::vector<uint8_t>(size_t(job.row_count * (job.width + job.padding)) * size_t(size_of(job.type))))) {
}

void PermuteCall::run(const LaunchOptions& options) const {
  ExpertPermutation x;
  x.tokens = job_.tokens, x.top_k = job_.top_k;
  x.width = job_.width, x.row_count = job_.row_count;
  x.type = job_.type;
  x.x = x_.get(), x.inverse = inverse_.get<int32_t>(), x.out = out_.get();
  x.token_count = count_.get<int32_t>();
  x.ld_x = x.ld_out = job_.width + job_.padding;
  permute(device(), x, options);
}

// ---- Combine -------------------------------------------------------------------------------------------------------

std::vector<uint8_t> reference_combine(const CombineJob& job) {
  std::vector<float> sums(size_t(job.tokens * job.width));
  const int64_t real = real_tokens(job.tokens, job.token_count);
  for (int64_t t = 0; t < real; ++t) {
    for (int64_t h = 0; h < job.width; ++h) {
      const auto at = size_t(t * job.width + h);
      float sum = job.residual ? job.residuals[at] : 0;
      for (int j = 0; j < job.top_k; ++j) {
        const auto pair = size_t(t * job.top_k + j);
        const int32_t row = job.inverse[pair];
        if (row < 0 || row >= job.row_count) continue;
        sum = std::fma(job.weights.empty() ? 1.0f : job.weights[pair], job.rows[size_t(row * job.width + h)], sum);
      }
      sums[at] = sum;
    }
  }
  std::vector<uint8_t> bytes = matrix_bytes(sums, job.out_type, job.tokens, job.width, job.padding);
  const size_t stride = size_t(job.width + job.padding) * size_t(size_of(job.out_type));
  const std::vector<uint8_t> before = matrix_bytes(job.residuals, job.out_type, job.tokens, job.width, job.padding);
  for (size_t i = size_t(real) * stride; i < bytes.size(); ++i) bytes[i] = job.in_place ? before[i] : kUntouchedByte;
  bytes.resize(std::max<size_t>(bytes.size(), 1), kUntouchedByte);
  return bytes;
}

CombineCall::CombineCall(const CombineJob& job)
    : job_(job),
      rows_(filled(matrix_bytes(job.rows, job.rows_type, job.row_count, job.width, job.padding))),
      residual_(filled(matrix_bytes(job.residuals, job.out_type, job.tokens, job.width, job.padding))),
      inverse_(job.inverse),
      weights_(job.weights),
      count_(count_buffer(job.token_count)),
      out_(filled(
          std::vector<uint8_t>(size_t(job.tokens * (job.width + job.padding)) * size_t(size_of(job.out_type))))) {}

void CombineCall::poison() const {
  out_.fill(kUntouchedByte);
  if (!job_.in_place) return;
  const std::vector<uint8_t> before =
      matrix_bytes(job_.residuals, job_.out_type, job_.tokens, job_.width, job_.padding);
  device().upload(out_.get(), before.data(), before.size());
}

void CombineCall::run(const LaunchOptions& options) const {
  ExpertCombination x;
  x.tokens = job_.tokens, x.top_k = job_.top_k;
  x.width = job_.width, x.row_count = job_.row_count;
  x.rows_type = job_.rows_type, x.rows = rows_.get();
  x.out_type = job_.out_type, x.out = out_.get();
  x.inverse = inverse_.get<int32_t>(), x.weights = weights_.get<float>();
  if (job_.residual) x.residual = job_.in_place ? out_.get() : residual_.get();
  x.token_count = count_.get<int32_t>();
  x.ld_rows = x.ld_residual = x.ld_out = job_.width + job_.padding;
  combine(device(), x, options);
}

std::string first_difference(const std::vector<uint8_t>& got, const std::vector<uint8_t>& wanted, DataType type) {
  if (got.size() != wanted.size()) return fmt::format("{} bytes instead of {}", got.size(), wanted.size());
  const auto size = size_t(size_of(type));
  for (size_t i = 0; i + size <= got.size(); i += size) {
    if (std::memcmp(&got[i], &wanted[i], size) == 0) continue;
    const auto value = [&](const std::vector<uint8_t>& bytes) {
      float x;
      uint16_t half;
      std::memcpy(&half, &bytes[i], 2);
      if (size == 4) std::memcpy(&x, &bytes[i], 4);
      return size == 4 ? x : reference::bf16_to_float(half);
    };
    if (!std::isnan(value(got)) || !std::isnan(value(wanted)))
      return fmt::format("element {} is {} instead of {}", i / size, value(got), value(wanted));
  }
  return "";
}

// ---- Route ---------------------------------------------------------------------------------------------------------

namespace {

// Whether x comes before y: NaN counts as the highest.
bool above(double x, double y) { return std::isnan(x) ? !std::isnan(y) : x > y; }

// The places of the `count` best, the best first, of equal ones the lower; `clear` is cleared where neighbors in this
// order, the first that is left out included, are close and not `same`, which is asked with their places.
template <class Same>
std::vector<int32_t> best_of(const std::vector<double>& x, const std::vector<bool>& possible, size_t count, bool& clear,
                             const Same& same) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < x.size(); ++i) {
    if (possible[i]) order.push_back(int32_t(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return above(x[size_t(a)], x[size_t(b)]); });
  for (size_t i = 0; i < count && i + 1 < order.size(); ++i) {
    const auto here = size_t(order[i]), next = size_t(order[i + 1]);
    if (x[here] - x[next] < 1e-5 && !same(here, next)) clear = false;
  }
  order.resize(count);
  return order;
}

}  // namespace

RoutedToken reference_route(const RouteJob& job, const float* logits) {
  RoutedToken routed;
  const auto experts = size_t(job.experts);
  const bool sigmoid = job.score == RouterScore::Sigmoid;
  std::vector<double> choice(experts), score(experts);
  for (size_t e = 0; e < experts; ++e) {
    score[e] = sigmoid ? 1 / (1 + std::exp(-double(logits[e]))) : double(logits[e]);
    choice[e] = score[e] + (job.correction_bias.empty() ? 0.0 : double(job.correction_bias[e]));
  }
  std::vector<bool> possible(experts, true);
  if (job.chosen_groups < job.groups) {
    const size_t size = experts / size_t(job.groups);
    std::vector<double> of_group;
    std::vector<std::pair<double, double>> best_two;
    for (size_t g = 0; g < size_t(job.groups); ++g) {
      std::vector<double> members(choice.begin() + int64_t(g * size), choice.begin() + int64_t((g + 1) * size));
      std::sort(members.begin(), members.end(), above);
      best_two.emplace_back(members[0], members[1]);
      of_group.push_back(members[0] + members[1]);
    }
    // sigmoid(x) + sigmoid(-x) is 1 for any x: such sums are equal in double, and in float32 they need not be.
    const auto same_group = [&](size_t a, size_t b) { return best_two[a] == best_two[b]; };
    possible.assign(experts, false);
    bool& clear = routed.clear;
    const std::vector<bool> all(of_group.size(), true);
    for (const int32_t g : best_of(of_group, all, size_t(job.chosen_groups), clear, same_group))
      std::fill_n(possible.begin() + int64_t(g) * int64_t(size), size, true);
  }
  bool clear = true;
  const auto same_choice = [&](size_t a, size_t b) { return choice[a] == choice[b]; };
  routed.ids = best_of(choice, possible, size_t(job.top_k), clear, same_choice);
  if (sigmoid) routed.clear = routed.clear && clear;  // logits themselves are compared exactly
  double sum = 0;
  if (sigmoid) {
    for (const int32_t id : routed.ids) sum += score[size_t(id)];
    sum = job.renormalize ? sum + 1e-20 : 1;
  } else {
    const double highest = score[size_t(routed.ids[0])];
    for (double& x : score) x = std::exp(x - highest);
    if (job.renormalize) {
      for (const int32_t id : routed.ids) sum += score[size_t(id)];
    } else {
      for (const double x : score) sum += x;
    }
  }
  for (const int32_t id : routed.ids) routed.weights.push_back(score[size_t(id)] / sum * double(job.scaling_factor));
  return routed;
}

RouteCall::RouteCall(const RouteJob& job)
    : job_(job),
      logits_(filled(matrix_bytes(job.logits, job.logits_type, job.tokens, job.experts, job.padding))),
      bias_(job.correction_bias),
      count_(count_buffer(job.token_count)),
      ids_(buffer_of(size_t(job.tokens * job.top_k))),
      weights_(buffer_of(size_t(job.tokens * job.top_k))) {}

void RouteCall::poison() const {
  ids_.fill(kUntouchedByte);
  weights_.fill(kUntouchedByte);
}

void RouteCall::run(const LaunchOptions& options) const {
  ExpertRouting x;
  x.tokens = job_.tokens, x.experts = job_.experts, x.top_k = job_.top_k;
  x.logits_type = job_.logits_type, x.logits = logits_.get();
  x.ld_logits = job_.experts + job_.padding;
  x.score = job_.score, x.renormalize = job_.renormalize, x.scaling_factor = job_.scaling_factor;
  x.correction_bias = bias_.get<float>();
  x.expert_groups = job_.groups, x.chosen_groups = job_.chosen_groups;
  x.token_count = count_.get<int32_t>();
  x.ids = behind_guard(ids_), x.weights = weights_.get<float>() + kGuard;
  route(device(), x, options);
}

Routed RouteCall::results() const {
  const std::vector<int32_t> bits = ints_of(weights_);
  Routed routed{ints_of(ids_), std::vector<float>(bits.size())};
  std::memcpy(routed.weights.data(), bits.data(), bits.size() * 4);
  return routed;
}

}  // namespace moxie::test
