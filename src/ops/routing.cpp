// SPDX-License-Identifier: Apache-2.0
// What stands around the products of an expert layer: checks, kernels, launches.
#include "moxie/routing.h"

#include <algorithm>
#include <cmath>

#include "device_state.h"
#include "jit/source.h"
#include "ops/check.h"
#include "ops/routing.h"

namespace moxie {
namespace {

using jit::SortKernel;
using ops::blocks_of;
using ops::check_array;
using ops::launch;
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

Range check_scratch(WorkspaceView workspace, size_t bytes) {
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

void check_type(const char* name, DataType type) {
  if (type != DataType::Bf16 && type != DataType::F32)
    reject("{} is {}, but must be bf16 or f32", name, to_string(type));
}

// A matrix whose width is made of 16 bytes. Its leading dimension is made explicit.
Range check_rows(const char* name, const void* pointer, bool needed, DataType type, int64_t rows, int64_t width,
                 int64_t& ld) {
  constexpr int64_t kMost = int64_t{1} << 31;
  const int64_t multiple = 16 / size_of(type);
  if (ld == 0) ld = width;
  if (ld < width) reject("ld_{} is {}, but must be at least width, {}", name, ld, width);
  if (ld > kMost || ld % multiple != 0)
    reject("ld_{} is {}, but must be a multiple of {} elements (16 bytes) up to {}", name, ld, multiple, kMost);
  const int64_t elements = rows > 0 && width > 0 ? (rows - 1) * ld + width : 0;
  return check_array(name, pointer, needed, 16, elements, size_of(type));
}

void check_matrices(int64_t width, int64_t row_count) {
  constexpr int64_t kMostWidth = 1 << 20, kMostRows = (int64_t{1} << 31) - 1;
  if (width < 0 || width > kMostWidth || width % 8 != 0)
    reject("width is {}, but must be a multiple of 8 from 0 to {}", width, kMostWidth);
  if (row_count < 0 || row_count > kMostRows) reject("row_count is {}, but must be 0 to {}", row_count, kMostRows);
}

}  // namespace

void ops::check_router(const char* prefix, int64_t experts, int top_k, const RouterDescription& r) {
  if (top_k > experts) reject("top_k is {}, but there are {} experts", top_k, experts);
  check_type(fmt::format("{}logits_type", prefix).c_str(), r.logits_type);
  check_enum(fmt::format("{}score", prefix).c_str(), r.score);
  const bool sigmoid = r.score == RouterScore::Sigmoid;
  if (!std::isfinite(r.scaling_factor)) reject("{}scaling_factor is {}, but must be finite", prefix, r.scaling_factor);
  if (r.correction_bias && !sigmoid) reject("{}correction_bias is given, but only sigmoid scores have one", prefix);
  const int groups = r.expert_groups;
  if (groups < 1 || groups > kMaxExpertGroups)
    reject("{}expert_groups is {}, but must be 1 to {}", prefix, groups, kMaxExpertGroups);
  if (r.chosen_groups < 1 || r.chosen_groups > groups)
    reject("{}chosen_groups is {}, but must be 1 to expert_groups, {}", prefix, r.chosen_groups, groups);
  if (groups == 1) return;
  if (!sigmoid) reject("{}expert_groups is {}, but only sigmoid scores are chosen by groups", prefix, groups);
  if (experts % groups != 0 || experts / groups < 2)
    reject("{}expert_groups is {}, but must divide the {} experts into two or more each", prefix, groups, experts);
  const int64_t most = experts / groups * r.chosen_groups;
  if (top_k > most) reject("top_k is {}, but the chosen groups have {} experts", top_k, most);
}

void route(const Device& device, const ExpertRouting& x, const LaunchOptions& options) {
  check_tokens(x.tokens, x.top_k);
  check_experts(x.experts);
  ops::check_router("", x.experts, x.top_k,
                    {.logits_type = x.logits_type,
                     .score = x.score,
                     .scaling_factor = x.scaling_factor,
                     .correction_bias = x.correction_bias != nullptr,
                     .expert_groups = x.expert_groups,
                     .chosen_groups = x.chosen_groups});
  const int64_t size = size_of(x.logits_type), ld = x.ld_logits == 0 ? x.experts : x.ld_logits;
  constexpr int64_t kMostLd = int64_t{1} << 31;
  if (ld < x.experts || ld > kMostLd) reject("ld_logits is {}, but must be experts, {}, to {}", ld, x.experts, kMostLd);
  const int64_t elements = x.tokens > 0 ? (x.tokens - 1) * ld + x.experts : 0, pairs = x.tokens * x.top_k;
  check_ranges({check_array("logits", x.logits, true, size_t(size), elements, size),
                check_array("correction_bias", x.correction_bias, false, 4, x.experts, 4), check_count(x.token_count)},
               {check_array("ids", x.ids, true, 4, pairs, 4), check_array("weights", x.weights, true, 4, pairs, 4)});
  if (x.tokens == 0) return;
  kernel::RouteParams params;
  params.logits = x.logits, params.ld = ld;
  params.bias = x.correction_bias;
  params.token_count = x.token_count;
  params.ids = x.ids, params.weights = x.weights;
  params.tokens = int32_t(x.tokens), params.experts = int32_t(x.experts), params.top_k = x.top_k;
  params.expert_groups = x.expert_groups, params.chosen_groups = x.chosen_groups;
  params.renormalize = x.renormalize;
  params.scaling_factor = x.scaling_factor;
  constexpr int kTokens = kernel::kRouteThreads / 32;
  launch(device, device.state().route_kernel(x.logits_type, x.score, jit::route_size(x.experts)),
         {.grid = (x.tokens + kTokens - 1) / kTokens, .threads = kernel::kRouteThreads}, params, options);
}

void permute(const Device& device, const ExpertPermutation& x, const LaunchOptions& options) {
  check_tokens(x.tokens, x.top_k);
  check_matrices(x.width, x.row_count);
  check_type("type", x.type);
  int64_t ld_x = x.ld_x, ld_out = x.ld_out;
  const int64_t pairs = x.width > 0 ? x.tokens * x.top_k : 0;
  check_ranges({check_rows("x", x.x, true, x.type, x.tokens, x.width, ld_x),
                check_array("inverse", x.inverse, true, 4, pairs, 4), check_count(x.token_count)},
               {check_rows("out", x.out, x.tokens > 0, x.type, x.row_count, x.width, ld_out)});
  if (x.tokens == 0 || x.width == 0) return;
  const int64_t in_word = 16 / size_of(x.type);
  kernel::PermuteParams params;
  params.from = x.x, params.ld_from = ld_x / in_word;
  params.inverse = x.inverse, params.token_count = x.token_count;
  params.out = x.out, params.ld_out = ld_out / in_word;
  params.tokens = int32_t(x.tokens), params.top_k = x.top_k;
  params.rows = int32_t(x.row_count), params.words = int32_t(x.width / in_word);
  launch(device, device.state().permute_kernel(), blocks_of(x.tokens, params.words, kernel::kPermuteThreads), params,
         options);
}

void combine(const Device& device, const ExpertCombination& x, const LaunchOptions& options) {
  check_tokens(x.tokens, x.top_k);
  check_matrices(x.width, x.row_count);
  check_type("rows_type", x.rows_type);
  check_type("out_type", x.out_type);
  int64_t ld_rows = x.ld_rows, ld_residual = x.ld_residual, ld_out = x.ld_out;
  const int64_t pairs = x.width > 0 ? x.tokens * x.top_k : 0;
  const Range out = check_rows("out", x.out, true, x.out_type, x.tokens, x.width, ld_out);
  const Range residual = check_rows("residual", x.residual, false, x.out_type, x.tokens, x.width, ld_residual);
  check_ranges({check_rows("rows", x.rows, x.tokens > 0, x.rows_type, x.row_count, x.width, ld_rows),
                check_array("inverse", x.inverse, true, 4, pairs, 4),
                check_array("weights", x.weights, false, 4, pairs, 4), check_count(x.token_count)},
               {out});
  if (x.residual != x.out || ld_residual != ld_out) ops::check_disjoint(out, residual);
  if (x.tokens == 0 || x.width == 0) return;
  kernel::CombineParams params;
  params.from = x.rows, params.ld_rows = ld_rows;
  params.inverse = x.inverse, params.weights = x.weights;
  params.residual = x.residual, params.ld_residual = ld_residual;
  params.token_count = x.token_count;
  params.out = x.out, params.ld_out = ld_out;
  params.tokens = int32_t(x.tokens), params.top_k = x.top_k;
  params.rows = int32_t(x.row_count), params.columns = int32_t(x.width);
  auto blocks = blocks_of(x.tokens, x.width / 8, kernel::kCombineThreads);
  // A block has several tokens where the blocks still fill the device.
  const int64_t fill = int64_t{device.info().sm_count} * kernel::kCombineBlocks;
  const int most = std::min(kernel::kCombineTokens, 32 / x.top_k);
  params.tokens_of_block = int32_t(std::clamp<int64_t>(x.tokens * blocks.grid_y / fill, 1, most));
  for (int i = 1; i < params.tokens_of_block; ++i) params.first_pairs |= 1u << i * x.top_k;
  blocks.grid = (x.tokens + params.tokens_of_block - 1) / params.tokens_of_block;
  launch(device, device.state().combine_kernel(x.rows_type, x.out_type), blocks, params, options);
}

size_t sort_workspace_bytes(int64_t tokens, int top_k, int64_t experts) {
  check_tokens(tokens, top_k);
  check_experts(experts);
  const int slices = kernel::sort_shape(tokens * top_k).slices;
  return slices == 1 ? 0 : size_t(slices + kernel::sort_clusters(slices)) * size_t(experts) * sizeof(int32_t);
}

namespace {

// ids, places: of sort_by_place(). `table`: with the kernels that know them.
void sort(const Device& device, const ExpertSort& x, bool table, int64_t ids, const int32_t* places,
          WorkspaceView workspace, const LaunchOptions& options) {
  const size_t workspace_bytes = sort_workspace_bytes(x.tokens, x.top_k, x.experts);
  constexpr int64_t kIds = int64_t{1} << 31;
  if (x.first_expert < 0 || x.first_expert > kIds - 1 - x.experts)
    reject("first_expert is {}, but must be 0 to {}", x.first_expert, kIds - 1 - x.experts);
  ops::check_enum("id_type", x.id_type);
  const int64_t pairs = x.tokens * x.top_k, id_bytes = x.id_type == IdType::Int32 ? 4 : 8;
  check_ranges({check_array("ids", x.ids, true, size_t(id_bytes), pairs, id_bytes), check_count(x.token_count)},
               {check_array("ends", x.ends, true, 4, x.experts, 4), check_array("order", x.order, true, 4, pairs, 4),
                check_array("inverse", x.inverse, true, 4, pairs, 4), check_scratch(workspace, workspace_bytes)});
  kernel::SortParams params;
  params.ids = x.ids;
  params.token_count = x.token_count;
  params.ends = x.ends, params.order = x.order, params.inverse = x.inverse;
  params.first_expert = x.first_expert;
  params.tokens = int32_t(x.tokens), params.top_k = x.top_k, params.experts = int32_t(x.experts);
  params.ids_here = int32_t(ids), params.places = places;
  const kernel::SortShape shape = kernel::sort_shape(pairs);
  params.slices = shape.slices, params.rounds = shape.rounds, params.rows = shape.rows;
  params.before = static_cast<int32_t*>(workspace.data);

  // All that can fail comes before the first launch.
  const driver::LoadedKernel& place = device.state().sort_kernel(SortKernel::Place, x.id_type, table);
  if (shape.slices > 1) {
    params.clusters = params.before + shape.slices * x.experts;
    launch(device, device.state().sort_kernel(SortKernel::Count, x.id_type, table),
           {.grid = kernel::sort_clusters(shape.slices) * kernel::kSortCluster, .threads = kernel::kCountThreads},
           params, options);
  }
  // A warp for its pairs, and a thread for every expert.
  const int64_t of_warp = shape.rows * 32;
  const int64_t warps = shape.slices > 1 ? kernel::kSortThreads / 32 : (pairs + of_warp - 1) / of_warp;
  launch(device, place,
         {.grid = shape.slices,
          .threads = 32 * std::max(warps, (x.experts + 31) / 32),
          .shared = kernel::place_layout(int(warps), shape.rows, params.experts).bytes},
         params, options);
}

}  // namespace

void sort_by_expert(const Device& device, const ExpertSort& x, WorkspaceView workspace, const LaunchOptions& options) {
  sort(device, x, false, x.experts, nullptr, workspace, options);
}

void ops::sort_by_place(const Device& device, const ExpertSort& x, int64_t ids, const int32_t* places,
                        WorkspaceView workspace, const LaunchOptions& options) {
  sort(device, x, true, ids, places, workspace, options);
}

}  // namespace moxie
