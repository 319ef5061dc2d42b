// SPDX-License-Identifier: Apache-2.0
// Scales: sizes, and the conversions to and from the blocked layout.
#include "moxie/scales.h"

#include "device_state.h"
#include "jit/source.h"
#include "ops/check.h"
#include "ops/gemm.h"

namespace moxie {
namespace {

using ops::reject;

void check(const ScaleBlocking& x, const void* blocked, const char* name) {
  if (x.block != 16 && x.block != 32) reject("block is {}, but must be 16 or 32", x.block);
  ops::check_scale_rows(x.along_k ? 1 : x.groups, x.rows, x.k, x.block);
  if (x.along_k && (x.groups < 1 || x.groups > kMaxGroups))
    reject("groups is {}, but must be 1 to {}", x.groups, kMaxGroups);
  if (x.along_k && !x.offsets) reject("offsets is null, but groups along k need their ends");
  if (x.rows == 0 || x.k == 0) return;
  ops::check_pointer("from", x.from, true, x.from_floats ? 4 : 1);
  ops::check_pointer("to", x.to, true, 1);
  ops::check_pointer(name, blocked, true, 16);
  ops::check_pointer("offsets", x.offsets, false, 4);
}

void convert(const Device& device, const ScaleBlocking& x, kernel::ScaleConversion conversion) {
  if (x.rows == 0 || x.k == 0) return;
  kernel::BlockScalesParams params;
  params.conversion = conversion;
  params.from = x.from;
  params.to = static_cast<uint8_t*>(x.to);
  params.rows = {x.offsets, int32_t(x.groups), int32_t(x.rows)};
  params.columns = int32_t(x.k / x.block);
  params.along_k = x.along_k;
  params.k = int32_t(x.k), params.block = int32_t(x.block);
  driver::Context::LaunchShape shape;
  shape.grid = unsigned(x.along_k ? ops::scale_row_tiles(1, x.rows, false)
                                  : ops::scale_row_tiles(x.groups, x.rows, x.offsets != nullptr));
  shape.block = kernel::kBlockScalesThreads;
  void* arguments[] = {&params};
  device.state().context().launch(device.state().block_scales_kernel(), shape, arguments, x.stream);
}

}  // namespace

namespace ops {

void check_scale_rows(int64_t groups, int64_t rows, int64_t k, int64_t block) {
  constexpr int64_t kMaxRows = int64_t{1} << 30;
  if (groups < 1 || groups > kMaxGroups) reject("groups is {}, but must be 1 to {}", groups, kMaxGroups);
  if (rows < 0 || rows > kMaxRows / groups) reject("rows is {}, but must be 0 to {}", rows, kMaxRows / groups);
  if (k < 0 || k > kMaxRows || k % block != 0)
    reject("k is {}, but must be a multiple of {} from 0 to {}", k, block, kMaxRows);
}

int64_t scale_row_tiles(int64_t groups, int64_t rows, bool offsets) {
  return offsets ? rows / kScaleTileRows + groups : groups * ((rows + kScaleTileRows - 1) / kScaleTileRows);
}

}  // namespace ops

namespace ops {

size_t a_scale_bytes(const ProblemShape& p) {
  if (!has_scales(p.format)) return 0;
  const int block = scale_block(p.format);
  if (p.grouping == Grouping::KGroups) return size_t(k_group_scale_bytes(p.m, p.k, p.groups, block));
  if (p.grouping == Grouping::Offsets) {
    const int64_t tiles = p.m / kScaleTileRows + p.groups;
    return size_t(blocked_scale_bytes(tiles * kScaleTileRows, p.k, block));
  }
  const bool stacked = p.grouping == Grouping::Batched || p.grouping == Grouping::Masked;
  return size_t((stacked ? p.groups : 1) * blocked_scale_bytes(p.m, p.k, block));
}

size_t b_scale_bytes(const ProblemShape& p) {
  if (has_scales(p.format) && p.grouping == Grouping::KGroups)
    return size_t(k_group_scale_bytes(p.n, p.k, p.groups, scale_block(p.format)));
  return has_scales(p.format) ? size_t(p.groups * blocked_scale_bytes(p.n, p.k, scale_block(p.format))) : 0;
}

size_t output_scale_bytes(const ProblemShape& p, bool pre) {
  const std::optional<DataType> type = pre ? p.pre : p.out;
  if (!type || !is_quantized(*type)) return 0;
  const bool offsets = p.grouping == Grouping::Offsets;
  const bool stacked =
      p.grouping == Grouping::Batched || p.grouping == Grouping::Masked || p.grouping == Grouping::KGroups;
  const int64_t tiles = scale_row_tiles(stacked || offsets ? p.groups : 1, p.m, offsets);
  return size_t(blocked_scale_bytes(tiles * kScaleTileRows, value_width(p, pre), scale_block(*type)));
}

}  // namespace ops

namespace {

// The sizes of a call with `total` rows.
ops::ProblemShape call_shape(const GemmDescription& d, std::optional<int64_t> total) {
  ops::check_description(d);
  const auto* offsets = std::get_if<Offsets>(&d.groups);
  if (!total && offsets) total = offsets->total;
  const bool brings_total = offsets || std::holds_alternative<RowGroups>(d.groups);
  if (!total && brings_total) ops::reject("total is absent, but {} groups need it", to_string(grouping_of(d.groups)));
  ops::ProblemShape shape = ops::shape_of(d, total.value_or(0));
  if (total && std::holds_alternative<KGroups>(d.groups)) shape.k = *total;
  ops::check_sizes(shape);
  return shape;
}

}  // namespace

size_t a_scale_bytes(const GemmDescription& d, std::optional<int64_t> total) {
  return ops::a_scale_bytes(call_shape(d, total));
}
size_t b_scale_bytes(const GemmDescription& d, std::optional<int64_t> total) {
  return ops::b_scale_bytes(call_shape(d, total));
}
size_t pre_scale_bytes(const GemmDescription& d, std::optional<int64_t> total) {
  return ops::output_scale_bytes(call_shape(d, total), true);
}
size_t out_scale_bytes(const GemmDescription& d, std::optional<int64_t> total) {
  return ops::output_scale_bytes(call_shape(d, total), false);
}

void block_scales(const Device& device, const ScaleBlocking& x) {
  check(x, x.to, "to");
  convert(device, x, x.from_floats ? kernel::ScaleConversion::BlockFloats : kernel::ScaleConversion::Block);
}

void unblock_scales(const Device& device, const ScaleBlocking& x) {
  check(x, x.from, "from");
  if (x.from_floats) reject("from_floats is set, but blocked scales are never floats");
  convert(device, x, kernel::ScaleConversion::Unblock);
}

}  // namespace moxie
