// SPDX-License-Identifier: Apache-2.0
// See expert_routing.h.
#include "tests/support/expert_routing.h"

#include <algorithm>
#include <cstring>

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

}  // namespace moxie::test
