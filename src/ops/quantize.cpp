// SPDX-License-Identifier: Apache-2.0
// Quantizing and dequantizing rows: checks, kernel, launch.
#include "moxie/quantize.h"

#include <algorithm>

#include "device_state.h"
#include "jit/source.h"
#include "ops/check.h"
#include "ops/quantize.h"

namespace moxie {
namespace {

using jit::QuantizeKernel;
using ops::check_array;
using ops::Range;
using ops::reject;

void check_rows(const QuantizedRows& x) {
  if (x.format != DataType::Mxfp4 && x.format != DataType::Mxfp8 && x.format != DataType::Nvfp4)
    reject("format is {}, but must be mxfp4, mxfp8 or nvfp4", to_string(x.format));
  if (x.type != DataType::Bf16 && x.type != DataType::F32)
    reject("type is {}, but must be bf16 or f32", to_string(x.type));
  if (!is_enumerator(x.layout)) reject("layout is {}, but must be blocked or row-major", int(x.layout));
  ops::check_scale_rows(x.groups, x.rows, x.k, scale_block(x.format));
}

bool is_empty(const QuantizedRows& x) { return x.rows == 0 || x.k == 0; }

// A matrix of all rows; its leading dimension is made explicit.
Range check_matrix(const char* name, const void* pointer, int64_t& ld, DataType type, const QuantizedRows& x) {
  constexpr int64_t kMost = int64_t{1} << 40;
  const int64_t multiple = 128 / bits_of(type), rows = x.offsets ? x.rows : x.groups * x.rows;
  if (ld == 0) ld = x.k;
  if (ld < x.k) reject("ld_{} is {}, but must be at least k, {}", name, ld, x.k);
  if (ld % multiple != 0) reject("ld_{} is {}, but must be a multiple of {} elements (16 bytes)", name, ld, multiple);
  if (ld > kMost || __int128(rows) * ld > kMost) reject("{} has too many elements: {} rows of {}", name, rows, ld);
  return check_array(name, pointer, true, 16, ((rows - 1) * ld + x.k) * bits_of(type) / 8, 1);
}

void check_disjoint(const Range& written, std::initializer_list<Range> others) {
  for (const Range& other : others) ops::check_disjoint(written, other);
}

Range check_scales(const void* scales, const QuantizedRows& x) {
  return check_array("scales", scales, true, x.layout == ScaleLayout::Blocked ? 16 : 1, int64_t(scale_bytes(x)), 1);
}

// Also where there is nothing to convert.
void check_stray(const void* tensor_scale, const QuantizedRows& x) {
  if (x.format != DataType::Nvfp4 && tensor_scale) reject("tensor_scale is given, but only NVFP4 has one");
}

Range check_tensor_scale(const void* scale, const QuantizedRows& x) {
  return check_array("tensor_scale", scale, x.format == DataType::Nvfp4, 4, 1, 4);
}

Range check_offsets(const QuantizedRows& x) { return check_array("offsets", x.offsets, false, 4, x.groups, 4); }

kernel::QuantizeParams params_of(const QuantizedRows& x, const void* from, int64_t ld_from, void* to, int64_t ld_to,
                                 const void* scales, const float* tensor_scale) {
  kernel::QuantizeParams params;
  params.from = from, params.ld_from = ld_from;
  params.to = to, params.ld_to = ld_to;
  params.scales = static_cast<uint8_t*>(const_cast<void*>(scales));
  params.tensor_scale = const_cast<float*>(tensor_scale);
  params.rows = {x.offsets, int32_t(x.groups), int32_t(x.rows)};
  params.columns = int32_t(x.k);
  params.blocked = x.layout == ScaleLayout::Blocked;
  return params;
}

const driver::LoadedKernel& kernel_of(const Device& device, QuantizeKernel kernel, const QuantizedRows& x) {
  return device.state().quantize_kernel(kernel, x.format, x.type);
}

// A block for each 128 rows and, as long as they are few enough for the device, each tile of scales along K.
driver::Context::LaunchShape shape_of(const QuantizedRows& x) {
  constexpr int64_t kMostAlongK = 65535;
  const int64_t tile = kScaleTileColumns * scale_block(x.format);
  driver::Context::LaunchShape shape;
  shape.grid = unsigned(ops::scale_row_tiles(x.groups, x.rows, x.offsets != nullptr));
  shape.grid_y = unsigned(std::min((x.k + tile - 1) / tile, kMostAlongK));
  shape.block = kernel::kQuantizeThreads;
  return shape;
}

void launch_rows(const Device& device, QuantizeKernel kernel, const QuantizedRows& x, kernel::QuantizeParams& params,
                 bool programmatic = false) {
  driver::Context::LaunchShape shape = shape_of(x);
  shape.programmatic = programmatic;
  void* arguments[] = {&params};
  device.state().context().launch(kernel_of(device, kernel, x), shape, arguments, x.stream);
}

}  // namespace

size_t scale_bytes(const QuantizedRows& x) {
  check_rows(x);
  const int64_t block = scale_block(x.format);
  if (x.layout == ScaleLayout::RowMajor) return size_t((x.offsets ? 1 : x.groups) * x.rows * (x.k / block));
  const int64_t tiles = ops::scale_row_tiles(x.groups, x.rows, x.offsets != nullptr);
  return size_t(blocked_scale_bytes(tiles * kScaleTileRows, x.k, block));
}

void quantize(const Device& device, const Quantization& x) {
  check_rows(x);
  check_stray(x.tensor_scale, x);
  if (is_empty(x)) return;
  int64_t ld_values = x.ld_values, ld_elements = x.ld_elements;
  const Range values = check_matrix("values", x.values, ld_values, x.type, x);
  const Range elements = check_matrix("elements", x.elements, ld_elements, x.format, x);
  const Range scales = check_scales(x.scales, x), scale = check_tensor_scale(x.tensor_scale, x);
  const Range offsets = check_offsets(x);
  check_disjoint(elements, {values, scales, scale, offsets});
  check_disjoint(scales, {values, scale, offsets});
  auto params = params_of(x, x.values, ld_values, x.elements, ld_elements, x.scales, x.tensor_scale);
  launch_rows(device, QuantizeKernel::Quantize, x, params);
}

void ops::gather_and_quantize(const Device& device, const Quantization& x, const kernel::GatherParams& gather,
                              bool programmatic) {
  auto params = params_of(x, x.values, x.ld_values, x.elements, x.ld_elements, x.scales, x.tensor_scale);
  params.gather = gather;
  launch_rows(device, QuantizeKernel::GatherAndQuantize, x, params, programmatic);
}

void dequantize(const Device& device, const Dequantization& x) {
  check_rows(x);
  check_stray(x.tensor_scale, x);
  if (is_empty(x)) return;
  int64_t ld_values = x.ld_values, ld_elements = x.ld_elements;
  const Range values = check_matrix("values", x.values, ld_values, x.type, x);
  const Range elements = check_matrix("elements", x.elements, ld_elements, x.format, x);
  const Range scales = check_scales(x.scales, x), scale = check_tensor_scale(x.tensor_scale, x);
  check_disjoint(values, {elements, scales, scale, check_offsets(x)});
  auto params = params_of(x, x.elements, ld_elements, x.values, ld_values, x.scales, x.tensor_scale);
  launch_rows(device, QuantizeKernel::Dequantize, x, params);
}

void find_tensor_scale(const Device& device, const Quantization& x, float* to) {
  check_rows(x);
  const Range written = check_array("to", to, true, 4, 1, 4);
  int64_t ld_values = x.ld_values;
  if (!is_empty(x)) check_disjoint(written, {check_matrix("values", x.values, ld_values, x.type, x)});
  check_disjoint(written, {check_offsets(x)});
  auto params = params_of(x, x.values, ld_values, nullptr, 0, nullptr, to);
  const auto& kernel = kernel_of(device, QuantizeKernel::TensorScale, x);
  for (int step = 0; step < 3; ++step) {
    driver::Context::LaunchShape shape;
    shape.block = kernel::kQuantizeThreads;
    if (step == 1) {
      if (is_empty(x)) continue;
      shape.grid = shape_of(x).grid;
      shape.grid_y = unsigned(std::clamp<int64_t>(x.k / (kernel::kQuantizeThreads * 8), 1, 64));
    }
    void* arguments[] = {&params, &step};
    device.state().context().launch(kernel, shape, arguments, x.stream);
  }
}

}  // namespace moxie
