// SPDX-License-Identifier: Apache-2.0
// Scales and quantized rows in C.
#include "moxie/quantize.h"

#include <limits>

#include "c/handles.h"
#include "c/structs.h"
#include "moxie/scales.h"

namespace moxie::c {
namespace {

// A single group needs no ends; groups that have some must be counted.
int64_t groups_of(int64_t groups, const int32_t* offsets) { return groups == 0 && offsets == nullptr ? 1 : groups; }

// What quantizing and dequantizing have in common.
template <class Given>
void take_rows(QuantizedRows& rows, const Given& given) {
  check_reserved("reserved", given.reserved);
  rows.format = enum_of<DataType>("format", given.format);
  rows.type = enum_of<DataType>("type", given.type);
  rows.layout = enum_of<ScaleLayout>("layout", given.layout);
  rows.groups = groups_of(given.groups, given.offsets);
  rows.rows = given.rows;
  rows.k = given.k;
  rows.offsets = given.offsets;
  rows.stream = given.stream;
}

Quantization to_cpp(const moxie_quantization* arguments) {
  const moxie_quantization q = read(arguments, "arguments");
  Quantization quantization;
  take_rows(quantization, q);
  quantization.values = q.values;
  quantization.ld_values = q.ld_values;
  quantization.elements = q.elements;
  quantization.ld_elements = q.ld_elements;
  quantization.scales = q.scales;
  quantization.tensor_scale = q.tensor_scale;
  return quantization;
}

Dequantization to_cpp(const moxie_dequantization* arguments) {
  const moxie_dequantization q = read(arguments, "arguments");
  Dequantization dequantization;
  take_rows(dequantization, q);
  dequantization.elements = q.elements;
  dequantization.ld_elements = q.ld_elements;
  dequantization.scales = q.scales;
  dequantization.tensor_scale = q.tensor_scale;
  dequantization.values = q.values;
  dequantization.ld_values = q.ld_values;
  return dequantization;
}

ScaleBlocking to_cpp(const moxie_scale_blocking* arguments) {
  const moxie_scale_blocking b = read(arguments, "arguments");
  ScaleBlocking blocking;
  blocking.from = b.from;
  blocking.to = b.to;
  blocking.groups = groups_of(b.groups, b.offsets);
  blocking.rows = b.rows;
  blocking.k = b.k;
  if (b.block != 0) blocking.block = b.block;
  blocking.offsets = b.offsets;
  blocking.along_k = flag("along_k", b.along_k);
  blocking.from_floats = flag("from_floats", b.from_floats);
  blocking.stream = b.stream;
  return blocking;
}

// With these bounds no size below exceeds 64 bits.
void check_extent(const char* name, int64_t value, int64_t least = 0) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (value < least || value > kMost) reject("{} is {}, but must be {} to {}", name, value, least, kMost);
}

void check_block(int64_t block) {
  if (block != 16 && block != 32) reject("block is {}, but must be 16 or 32", block);
}

}  // namespace
}  // namespace moxie::c

using moxie::c::check_block;
using moxie::c::check_extent;
using moxie::c::guarded;
using moxie::c::not_null;
using moxie::c::to_cpp;

extern "C" {

moxie_status moxie_blocked_scale_bytes(int64_t rows, int64_t k, int64_t block, size_t* bytes) {
  return guarded([&] {
    not_null(bytes, "bytes");
    check_extent("rows", rows), check_extent("k", k), check_block(block);
    *bytes = size_t(moxie::blocked_scale_bytes(rows, k, block));
  });
}

moxie_status moxie_blocked_scale_index(int64_t row, int64_t column, int64_t k, int64_t block, size_t* index) {
  return guarded([&] {
    not_null(index, "index");
    check_extent("row", row), check_extent("column", column), check_extent("k", k), check_block(block);
    if (column * block >= k) moxie::c::reject("column is {}, but k = {} elements have no such scale", column, k);
    *index = size_t(moxie::blocked_scale_index(row, column, k, block));
  });
}

moxie_status moxie_k_group_scale_bytes(int64_t rows, int64_t k, int64_t groups, int64_t block, size_t* bytes) {
  return guarded([&] {
    not_null(bytes, "bytes");
    check_extent("rows", rows), check_extent("k", k), check_extent("groups", groups, 1), check_block(block);
    *bytes = size_t(moxie::k_group_scale_bytes(rows, k, groups, block));
  });
}

moxie_status moxie_block_scales(const moxie_device* device, const moxie_scale_blocking* arguments) {
  return guarded([&] { moxie::block_scales(not_null(device, "device").device, to_cpp(arguments)); });
}

moxie_status moxie_unblock_scales(const moxie_device* device, const moxie_scale_blocking* arguments) {
  return guarded([&] { moxie::unblock_scales(not_null(device, "device").device, to_cpp(arguments)); });
}

moxie_status moxie_scale_bytes(const moxie_quantization* arguments, size_t* bytes) {
  return guarded([&] {
    not_null(bytes, "bytes");
    *bytes = moxie::scale_bytes(to_cpp(arguments));
  });
}

moxie_status moxie_quantize(const moxie_device* device, const moxie_quantization* arguments) {
  return guarded([&] { moxie::quantize(not_null(device, "device").device, to_cpp(arguments)); });
}

moxie_status moxie_dequantize(const moxie_device* device, const moxie_dequantization* arguments) {
  return guarded([&] { moxie::dequantize(not_null(device, "device").device, to_cpp(arguments)); });
}

moxie_status moxie_find_tensor_scale(const moxie_device* device, const moxie_quantization* arguments, float* to) {
  return guarded([&] { moxie::find_tensor_scale(not_null(device, "device").device, to_cpp(arguments), to); });
}

}  // extern "C"
