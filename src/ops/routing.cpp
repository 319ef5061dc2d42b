// SPDX-License-Identifier: Apache-2.0
// What stands around the products of an expert layer: checks, kernels, launches.
#include "moxie/routing.h"

#include <algorithm>

#include "device_state.h"
#include "jit/source.h"
#include "ops/check.h"

namespace moxie {
namespace {

using jit::SortKernel;
using ops::check_array;
using ops::Range;
using ops::reject;

void check_tokens(int64_t tokens, int top_k) {
  if (tokens < 0 || tokens > kMaxRoutedTokens) reject("tokens is {}, but must be 0 to {}", tokens, kMaxRoutedTokens);
  if (top_k < 1 || top_k > kMaxTopK) reject("top_k is {}, but must be 1 to {}", top_k, kMaxTopK);
}

void check_experts(int64_t experts) {
  if (experts < 1 || experts > kMaxRoutedExperts)
    reject("experts is {}, but must be 1 to {}", experts, kMaxRoutedExperts);
}

Range check_workspace(WorkspaceView workspace, size_t bytes) {
  if (workspace.bytes < bytes) reject("workspace has {} bytes, but must have at least {}", workspace.bytes, bytes);
  return check_array("workspace", workspace.data, bytes > 0, 128, int64_t(bytes), 1);
}

Range check_count(const int32_t* token_count) { return check_array("token_count", token_count, false, 4, 1, 4); }

// What is written overlaps nothing else; what is only read may.
void check_ranges(std::initializer_list<Range> read, std::initializer_list<Range> written) {
  for (const Range& x : written) {
    for (const Range& y : read) ops::check_disjoint(x, y);
    for (const Range& y : written) {
      if (&x < &y) ops::check_disjoint(x, y);
    }
  }
}

int64_t chunks_of(int64_t tokens, int top_k) {
  return std::max<int64_t>((tokens * top_k + kernel::kSortChunk - 1) / kernel::kSortChunk, 1);
}

}  // namespace

size_t sort_workspace_bytes(int64_t tokens, int top_k, int64_t experts) {
  check_tokens(tokens, top_k);
  check_experts(experts);
  const int64_t chunks = chunks_of(tokens, top_k);
  return chunks == 1 ? 0 : size_t(chunks + 1) * size_t(experts) * sizeof(int32_t);
}

void sort_by_expert(const Device& device, const ExpertSort& x, WorkspaceView workspace, const LaunchOptions& options) {
  const size_t workspace_bytes = sort_workspace_bytes(x.tokens, x.top_k, x.experts);
  constexpr int64_t kIds = int64_t{1} << 31;
  if (x.first_expert < 0 || x.first_expert > kIds - 1 - x.experts)
    reject("first_expert is {}, but must be 0 to {}", x.first_expert, kIds - 1 - x.experts);
  ops::check_enum("id_type", x.id_type);
  const int64_t pairs = x.tokens * x.top_k, id_bytes = x.id_type == IdType::Int32 ? 4 : 8;
  check_ranges({check_array("ids", x.ids, true, size_t(id_bytes), pairs, id_bytes), check_count(x.token_count)},
               {check_array("ends", x.ends, true, 4, x.experts, 4), check_array("order", x.order, true, 4, pairs, 4),
                check_array("inverse", x.inverse, true, 4, pairs, 4), check_workspace(workspace, workspace_bytes)});
  kernel::SortParams params;
  params.ids = x.ids;
  params.token_count = x.token_count;
  params.ends = x.ends, params.order = x.order, params.inverse = x.inverse;
  params.first_expert = x.first_expert;
  params.tokens = int32_t(x.tokens), params.top_k = x.top_k, params.experts = int32_t(x.experts);
  params.chunks = int32_t(chunks_of(x.tokens, x.top_k));
  params.counts = static_cast<int32_t*>(workspace.data);
  if (params.chunks > 1) params.totals = params.counts + int64_t{params.chunks} * params.experts;

  // All that can fail comes before the first launch.
  const auto kernel_of = [&](SortKernel kernel) -> const driver::LoadedKernel& {
    return device.state().sort_kernel(kernel, x.id_type);
  };
  const bool counts = params.chunks > 1;
  const driver::LoadedKernel& place = kernel_of(SortKernel::Place);
  const driver::LoadedKernel* const count = counts ? &kernel_of(SortKernel::Count) : nullptr;
  const driver::LoadedKernel* const scan = counts ? &kernel_of(SortKernel::Scan) : nullptr;

  void* arguments[] = {&params};
  const auto launch = [&](const driver::LoadedKernel& kernel, int64_t grid, int64_t block, int shared) {
    driver::Context::LaunchShape shape;
    shape.grid = unsigned(grid), shape.block = unsigned(block), shape.shared = unsigned(shared);
    shape.programmatic = options.programmatic;
    device.state().context().launch(kernel, shape, arguments, options.stream);
  };
  const int64_t expert_warps = (x.experts + 31) / 32;
  if (counts) {
    launch(*count, params.chunks, kernel::kSortThreads, 0);
    launch(*scan, expert_warps, kernel::kSortThreads, 0);
  }
  // A warp for every kSortWarpPairs pairs of a chunk, and a thread for every expert.
  const int64_t of_chunk = std::min<int64_t>(pairs, kernel::kSortChunk);
  const auto warps = int((of_chunk + kernel::kSortWarpPairs - 1) / kernel::kSortWarpPairs);
  launch(place, params.chunks, 32 * std::max<int64_t>(warps, expert_warps),
         kernel::place_layout(warps, params.experts).bytes);
}

}  // namespace moxie
