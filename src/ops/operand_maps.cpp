// SPDX-License-Identifier: Apache-2.0
#include "ops/operand_maps.h"

#include <algorithm>
#include <initializer_list>

#include "ops/check.h"

namespace moxie::ops {
namespace {

using driver::TensorMapShape;
using kernel::BlackwellConfig;

struct Dimension {
  int64_t size;
  int64_t stride;  // bytes; of the innermost dimension not used
  int box;
};

void add(TensorMapShape& shape, const Dimension& d) {
  shape.dims[shape.rank] = uint64_t(std::max<int64_t>(d.size, 1));
  shape.box[shape.rank] = uint32_t(d.box);
  if (shape.rank > 0) shape.strides[shape.rank - 1] = uint64_t(std::max<int64_t>(d.stride, 16));
  ++shape.rank;
}

TensorMapShape map_shape(CUtensorMapDataType type, int swizzle, std::initializer_list<Dimension> dimensions) {
  TensorMapShape shape;
  shape.type = type;
  shape.swizzle_bytes = swizzle;
  shape.rank = 0;
  for (const Dimension& d : dimensions) add(shape, d);
  return shape;
}

CUtensorMapDataType map_type(DataType type) {
  return type == DataType::Bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
}

// How the rows of A and B lie: `k` elements of the map's type in 128-byte pieces, and the bytes from row to row.
struct OperandRows {
  CUtensorMapDataType type;
  int64_t k;
  int box;
  int64_t stride;
};
OperandRows rows_of(const ProblemShape& p, int64_t ld) {
  if (has_scales(p.format)) return {CU_TENSOR_MAP_DATA_TYPE_UINT8, p.k / 2, 128, ld / 2};
  return {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, p.k, 64, 2 * ld};
}

int64_t scale_tiles(int64_t rows) { return (rows + kScaleTileRows - 1) / kScaleTileRows; }
// Rows of tiles of A's scales, of each group where they are stacked.
int64_t a_scale_tiles(const ProblemShape& p) {
  return p.grouping == Grouping::Offsets ? p.m / kScaleTileRows + p.groups : scale_tiles(p.m);
}
int64_t scale_k_tiles(const ProblemShape& p) { return (p.k + scale_tile_k(p.format) - 1) / scale_tile_k(p.format); }
// Those of a stage.
int stage_scale_tiles(const ProblemShape& p) {
  BlackwellConfig c;
  c.format = p.format;
  return kernel::stage_scale_tiles(c);
}

// Tiles in a row: those of all groups, or of a group that the kernel describes.
TensorMapShape flat_scale_shape(const ProblemShape& p, size_t bytes) {
  const int64_t tiles = p.grouping == Grouping::Pointers ? 1 : int64_t(bytes) / kScaleTileBytes;
  return map_shape(CU_TENSOR_MAP_DATA_TYPE_UINT32, 0,
                   {{4, 0, 4}, {32, 16, 32}, {tiles, kScaleTileBytes, stage_scale_tiles(p)}});
}

}  // namespace

bool is_stacked(const ProblemShape& p) { return p.grouping == Grouping::Batched || p.grouping == Grouping::Masked; }

TensorMapShape a_shape(const ProblemShape& p, int64_t lda, int rows) {
  const OperandRows row = rows_of(p, lda);
  TensorMapShape shape = map_shape(row.type, 128, {{row.k, 0, row.box}, {p.m, row.stride, rows}});
  if (is_stacked(p)) add(shape, {p.groups, row.stride * p.m, 1});
  return shape;
}

template <class Config>
TensorMapShape b_shape(const Config& c, const ProblemShape& p, int64_t ldb, int rows) {
  const OperandRows row = rows_of(p, ldb);
  TensorMapShape shape = map_shape(row.type, 128, {{row.k, 0, row.box}});
  if (!is_gated(c.activation) || kernel::gate_halves(c) == 2) {
    add(shape, {p.n, row.stride, rows});
  } else {
    const bool split = kernel::gate_is_split(c);
    add(shape, {8, split ? row.stride : 2 * row.stride, 8});
    add(shape, {2, split ? row.stride * (p.n / 2) : row.stride, 2});
    add(shape, {p.n / 16, split ? 8 * row.stride : 16 * row.stride, rows / 16});
  }
  if (!kernel::has_one_b(p.grouping)) add(shape, {p.groups, row.stride * p.n, 1});
  return shape;
}

TensorMapShape a_scale_shape(const BlackwellConfig& c, const ProblemShape& p) {
  if (kernel::has_flat_scales(p.grouping)) return flat_scale_shape(p, a_scale_bytes(p));
  const int64_t k_tiles = scale_k_tiles(p), row = k_tiles * kScaleTileBytes;
  TensorMapShape shape = c.swap_ab ? map_shape(CU_TENSOR_MAP_DATA_TYPE_UINT32, 0,
                                               {{4, 0, 4},
                                                {32, 16, 32},
                                                {k_tiles, kScaleTileBytes, stage_scale_tiles(p)},
                                                {a_scale_tiles(p), row, kernel::a_scale_tiles(c)}})
                                   : map_shape(CU_TENSOR_MAP_DATA_TYPE_UINT32, 0,
                                               {{kScaleTileBytes / 4, 0, kScaleTileBytes / 4},
                                                {k_tiles, kScaleTileBytes, stage_scale_tiles(p)},
                                                {a_scale_tiles(p), row, 1}});
  if (is_stacked(p)) add(shape, {p.groups, row * a_scale_tiles(p), 1});
  return shape;
}

TensorMapShape b_scale_shape(const BlackwellConfig& c, const ProblemShape& p) {
  const int64_t k_tiles = scale_k_tiles(p), n_tiles = scale_tiles(p.n), row = k_tiles * kScaleTileBytes;
  if (is_gated(p.activation) && kernel::gate_halves(c) == 1) {
    const int64_t tiles = int64_t(b_scale_bytes(p)) / kScaleTileBytes;
    return map_shape(CU_TENSOR_MAP_DATA_TYPE_UINT32, 0,
                     {{4, 0, 4}, {8, 32, 8}, {2, 16, 2}, {2, 256, 2}, {tiles, kScaleTileBytes, stage_scale_tiles(p)}});
  }
  if (kernel::has_flat_scales(p.grouping)) return flat_scale_shape(p, b_scale_bytes(p));
  return map_shape(CU_TENSOR_MAP_DATA_TYPE_UINT32, 0,
                   {{kScaleTileBytes / 4, 0, kScaleTileBytes / 4},
                    {k_tiles, kScaleTileBytes, stage_scale_tiles(p)},
                    {n_tiles, row, std::max(kernel::b_scale_tiles(c), 1)},
                    {p.groups, row * n_tiles, 1}});
}

TensorMapShape half_group_shape(const ProblemShape& p) {
  const int64_t k_tiles = scale_k_tiles(p), n_tiles = scale_tiles(p.n), row = k_tiles * kScaleTileBytes;
  return map_shape(CU_TENSOR_MAP_DATA_TYPE_UINT32, 0,
                   {{4, 0, 4},
                    {32, 16, 32},
                    {k_tiles, kScaleTileBytes, stage_scale_tiles(p)},
                    {n_tiles, row, 1},
                    {p.groups, row * n_tiles, 1}});
}

template <class Config>
TensorMapShape store_shape(const Config& c, const ProblemShape& p, bool pre, DataType type, int64_t ld, int64_t width) {
  const kernel::StoreBox box = kernel::store_box(c, pre, type);
  const int64_t s = size_of(type);
  const Dimension columns = {width / box.halves, 0, box.columns}, rows = {p.m, s * ld, box.rows};
  const Dimension halves = {2, s * width / 2, 2}, group = {p.groups, s * ld * p.m, 1};
  const bool batched = kernel::outputs_are_stacked(p.grouping);
  if (box.halves == 2) {
    return batched ? map_shape(map_type(type), box.swizzle, {columns, rows, halves, group})
                   : map_shape(map_type(type), box.swizzle, {columns, rows, halves});
  }
  return batched ? map_shape(map_type(type), box.swizzle, {columns, rows, group})
                 : map_shape(map_type(type), box.swizzle, {columns, rows});
}

template TensorMapShape b_shape(const kernel::HopperConfig&, const ProblemShape&, int64_t, int);
template TensorMapShape b_shape(const BlackwellConfig&, const ProblemShape&, int64_t, int);
template TensorMapShape store_shape(const kernel::HopperConfig&, const ProblemShape&, bool, DataType, int64_t, int64_t);
template TensorMapShape store_shape(const BlackwellConfig&, const ProblemShape&, bool, DataType, int64_t, int64_t);

}  // namespace moxie::ops
