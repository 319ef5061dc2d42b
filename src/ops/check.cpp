// SPDX-License-Identifier: Apache-2.0
// Checks of what a caller asks for.
#include "ops/check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "moxie/scales.h"
#include "moxie/weights.h"
#include "ops/gemm.h"

namespace moxie::ops {
namespace {

constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max() - 1023;  // rounding up to a tile stays an int32
constexpr int64_t kMaxBytes = int64_t{1} << 40;                           // strides of a tensor map are below it

void check_size(const char* name, int64_t value) {
  if (value < 0) reject("{} is {}, but cannot be negative", name, value);
  if (value > kMaxSize) reject("{} is {}, but at most {} is possible", name, value, kMaxSize);
}

void check_known_rows(const ProblemShape& p, const std::vector<int64_t>& rows) {
  if (rows.empty()) return;
  if (p.grouping == Grouping::KGroups)
    reject("known_rows is given, but with k groups every group has m = {} rows", p.m);
  if (int64_t(rows.size()) != p.groups)
    reject("known_rows has {} entries, but there are {} groups", rows.size(), p.groups);
  const bool shared = p.grouping == Grouping::Offsets || p.grouping == Grouping::RowGroups;
  int64_t sum = 0;
  for (size_t g = 0; g < rows.size(); ++g) {
    if (rows[g] < 0) reject("known_rows[{}] is {}, but cannot be negative", g, rows[g]);
    if (!shared && rows[g] > p.m) reject("known_rows[{}] is {}, but a group has at most {}", g, rows[g], p.m);
    if ((p.grouping == Grouping::Dense || p.grouping == Grouping::Batched) && rows[g] != p.m)
      reject("known_rows[{}] is {}, but dense and batched groups all have m = {} rows", g, rows[g], p.m);
    if (rows[g] > kMaxSize - sum) reject("known_rows sum to more than {}, the most rows that are possible", kMaxSize);
    sum += rows[g];
  }
}

void check_sink(size_t i, const CustomSink& sink) {
  if (sink.type.empty()) reject("sinks[{}].type is empty, but must name a struct", i);
  if (sink.source.empty()) reject("sinks[{}].source is empty, but must define {}", i, sink.type);
  if (sink.param_bytes == 0 || sink.param_bytes > size_t{kMaxSinkParams})
    reject("sinks[{}].param_bytes is {}, but must be sizeof({}::Params), 1 to {}", i, sink.param_bytes, sink.type,
           kMaxSinkParams);
  if (sink.needs.staging_bytes < 0 || sink.needs.staging_bytes % 1024 != 0)
    reject("sinks[{}].needs.staging_bytes is {}, but must be a multiple of 1024", i, sink.needs.staging_bytes);
}

void check_workspace(const ProblemShape& p, WorkspaceView workspace, size_t bytes) {
  check_pointer("workspace", workspace.data, bytes > 0 && !is_empty(p), 128);
  if (!is_empty(p) && workspace.bytes < bytes)
    reject("workspace has {} bytes, but this call needs {}", workspace.bytes, bytes);
}

void check_sink_params(const GemmDescription& d, std::span<const SinkParams> params) {
  if (params.size() != d.sinks.size())
    reject("sinks has {} entries, but the description has {} custom sinks", params.size(), d.sinks.size());
  for (size_t i = 0; i < params.size(); ++i) {
    if (params[i].bytes != d.sinks[i].param_bytes)
      reject("sinks[{}] has {} bytes, but the description says {}", i, params[i].bytes, d.sinks[i].param_bytes);
    if (!params[i].data) reject("sinks[{}].data is null, but must point to host memory", i);
  }
}

// The one array of Rows that the grouping takes; the others must be absent.
Range check_rows(const ProblemShape& p, const Rows& rows, bool needed) {
  struct Array {
    const char* name;
    const int32_t* pointer;
    bool taken;
  };
  const Array arrays[] = {
      {"rows.ends", rows.ends, p.grouping == Grouping::Offsets || p.grouping == Grouping::KGroups},
      {"rows.group_of_row", rows.group_of_row, p.grouping == Grouping::RowGroups},
      {"rows.counts", rows.counts, p.grouping == Grouping::Masked},
  };
  Range range{};
  for (const Array& array : arrays) {
    if (array.taken) {
      range = check_array(array.name, array.pointer, needed, 4, p.grouping == Grouping::RowGroups ? p.m : p.groups, 4);
    } else if (array.pointer) {
      reject("{} is given, but {} groups do not take it", array.name, to_string(p.grouping));
    }
  }
  return range;
}

// The list of gathered rows.
Range check_gather(const ProblemShape& p, const Gather& gather, int64_t lda, bool needed) {
  if (!p.gather) {
    if (gather.rows || gather.count != 0 || gather.divisor != 1)
      reject("gather is given, but the description gathers no rows");
    return {};
  }
  if (gather.divisor < 1) reject("gather.divisor is {}, but must be positive", gather.divisor);
  check_size("gather.count", gather.count);
  if (lda >= int64_t{1} << 31) reject("a.ld is {}, but must be below 2^31 elements where rows are gathered", lda);
  return check_array("gather.rows", gather.rows, needed, 4, p.m, 4);
}

// Scales that the operands' format does not have, and a bias that the description does not.
template <class Operand>
void check_operand_extras(const ProblemShape& p, const Operand& a, const Operand& b, bool has_bias) {
  const auto check = [&](bool scales, const float* tensor_scale, const char* name) {
    if (scales && !has_scales(p.format)) reject("{}.scales is given, but bf16 operands have no scales", name);
    if (tensor_scale && p.format != OperandFormat::Nvfp4)
      reject("{}.tensor_scale is given, but only NVFP4 operands have one", name);
  };
  check(a.scales != nullptr, a.tensor_scale, "a");
  check(b.scales != nullptr, b.tensor_scale, "b");
  if (has_bias && !p.bias) reject("bias is given, but the description has none");
}

// What both kinds of outputs have in common.
void check_output_extras(const char* name, std::optional<DataType> type, const void* data, const void* scales,
                         const float* tensor_scale) {
  if (data && !type) reject("{} is given, but the description does not store it", name);
  if (scales && (!type || !is_quantized(*type))) reject("{}.scales is given, but {} is not quantized", name, name);
  if (tensor_scale && type != DataType::Nvfp4)
    reject("{}.tensor_scale is given, but only NVFP4 outputs have one", name);
}

void check_buffers(const ProblemShape& p, const GemmTensors& t, const Range& workspace) {
  const int64_t rows = total_rows(p);
  const bool work = !is_empty(p);
  // a, b, their scales and tensor scales, the tensor scales of the outputs, bias, rows and gather. They are compared
  // with the outputs and the workspace, which are empty where there is no work.
  Ranges<11> inputs;
  Ranges<4> outputs;
  check_operand_extras(p, t.a, t.b, t.bias != nullptr);
  const int operand_bits = bits_of(p.format);
  const bool k_groups = p.grouping == Grouping::KGroups;
  const int64_t a_rows = k_groups ? p.m : p.gather ? t.gather.count : rows;
  inputs.push_back(check_gather(p, t.gather, t.a.ld ? t.a.ld : p.k, work));
  inputs.push_back(check_matrix("a", "a.ld", t.a.data, t.a.ld, a_rows, p.k, operand_bits, work));
  if (plan::has_packed_b(p)) {
    if (t.b.ld) reject("b.ld is {}, but packed weights have no leading dimension", t.b.ld);
    const auto bytes = int64_t(packed_weight_bytes(p.groups, p.n, p.k));
    inputs.push_back(check_array("b", t.b.data, work && p.k > 0, 16, bytes, 1));
  } else {
    inputs.push_back(
        check_matrix("b", "b.ld", t.b.data, t.b.ld, k_groups ? p.n : p.groups * p.n, p.k, operand_bits, work));
  }
  if (has_scales(p.format)) {
    const size_t a_bytes = a_scale_bytes(p), b_bytes = b_scale_bytes(p);
    inputs.push_back(check_array("a.scales", t.a.scales, work, 16, int64_t(a_bytes), 1));
    inputs.push_back(check_array("b.scales", t.b.scales, work, 16, int64_t(b_bytes), 1));
  }
  inputs.push_back(check_array("a.tensor_scale", t.a.tensor_scale, false, 4, 1, 4));
  inputs.push_back(check_array("b.tensor_scale", t.b.tensor_scale, false, 4, p.groups, 4));
  if (p.bias) inputs.push_back(check_matrix("bias", "n", t.bias, p.n, p.groups, p.n, 16, work));
  inputs.push_back(check_rows(p, t.rows, work));
  struct Names {
    const char *data, *ld, *scales, *tensor_scale;
  };
  const auto check_output = [&](const Names& names, bool pre, std::optional<DataType> type, const Tensor& x) {
    check_output_extras(names.data, type, x.data, x.scales, x.tensor_scale);
    if (!type) return;
    inputs.push_back(check_array(names.tensor_scale, x.tensor_scale, false, 4, 1, 4));
    outputs.push_back(
        check_matrix(names.data, names.ld, x.data, x.ld, rows, value_width(p, pre), bits_of(*type), work));
    // A plain output has 0 bytes of scales.
    outputs.push_back(check_array(names.scales, x.scales, work, 16, int64_t(output_scale_bytes(p, pre)), work));
  };
  check_output({"pre", "pre.ld", "pre.scales", "pre.tensor_scale"}, true, p.pre, t.pre);
  check_output({"out", "out.ld", "out.scales", "out.tensor_scale"}, false, p.out, t.out);
  for (const Range* output = outputs.begin(); output != outputs.end(); ++output) {
    for (const Range& input : inputs) check_disjoint(*output, input);
    for (const Range* other = output + 1; other != outputs.end(); ++other) check_disjoint(*output, *other);
    check_disjoint(*output, workspace);
  }
  for (const Range& input : inputs) check_disjoint(workspace, input);
}

}  // namespace

Range check_matrix(const char* name, const char* ld_name, const void* pointer, int64_t ld, int64_t rows, int64_t width,
                   int element_bits, bool needed) {
  const bool used = rows > 0 && width > 0;
  check_pointer(name, pointer, needed && used, 16);
  const int64_t multiple = 128 / element_bits;
  if (ld == 0) ld = width;
  if (ld < width) reject("{} is {}, but must be at least the width of {}, {}", ld_name, ld, name, width);
  if (ld % multiple != 0) reject("{} is {}, but must be a multiple of {} elements (16 bytes)", ld_name, ld, multiple);
  if (ld >= kMaxBytes * 8 / element_bits)
    reject("{} is {}, but must be below {} elements", ld_name, ld, kMaxBytes * 8 / element_bits);
  const auto begin = reinterpret_cast<uintptr_t>(pointer);
  if (!used || !needed) return {name, begin, begin};
  if (__int128(rows) * ld * element_bits / 8 >= kMaxBytes)
    reject("{} would take 2^40 bytes or more ({} rows of {} elements)", name, rows, ld);
  return {name, begin, begin + uintptr_t(((rows - 1) * ld + width) * element_bits / 8)};
}

void check_pointer(const char* name, const void* pointer, bool needed, size_t alignment) {
  if (needed && !pointer) reject("{} is null, but must point to device memory", name);
  if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0)
    reject("{} is {}, but must be aligned to {} bytes", name, fmt::ptr(pointer), alignment);
}

Range check_array(const char* name, const void* pointer, bool needed, size_t alignment, int64_t count, int64_t size) {
  check_pointer(name, pointer, needed && count > 0, alignment);
  const auto begin = reinterpret_cast<uintptr_t>(pointer);
  return {name, begin, begin + (pointer ? uintptr_t(count * size) : 0)};
}

void check_disjoint(const Range& a, const Range& b) {
  // What is empty overlaps nothing, wherever it lies.
  if (std::max(a.begin, b.begin) < std::min(a.end, b.end)) reject("{} overlaps {} in memory", a.name, b.name);
}

int64_t total_rows(const ProblemShape& p) {
  const bool each =
      p.grouping == Grouping::Batched || p.grouping == Grouping::Masked || p.grouping == Grouping::KGroups;
  return each ? p.groups * p.m : p.m;
}

int64_t value_width(const ProblemShape& p, bool pre) { return !pre && is_gated(p.activation) ? p.n / 2 : p.n; }

bool is_empty(const ProblemShape& p) { return p.m == 0 || p.n == 0; }

void check_description(const GemmDescription& d) {
  const ProblemShape p = shape_of(d, 0);
  check_enum("activation", p.activation);
  check_enum("format", p.format);
  check_enum("b_format", p.b_format);
  check_enum("gate", p.gate);
  check_enum("pre", p.pre);
  check_enum("out", p.out);
  const HopperTuning hopper = d.hopper.value_or(HopperTuning{});
  check_enum("hopper.schedule", hopper.schedule);
  check_enum("hopper.multicast", hopper.multicast);
  check_enum("blackwell.tile_source", d.blackwell.value_or(BlackwellTuning{}).tile_source);
  const auto check_limit = [](const char* name, float value) {
    if (!(value > 0)) reject("activation.{} is {}, but must be positive", name, value);
  };
  if (p.activation == Activation::SwigluOai) {
    const SwigluOaiParameters& parameters = d.activation.swiglu_oai;
    check_limit("limit", parameters.limit);
    if (!std::isfinite(parameters.alpha)) reject("activation.alpha is {}, but must be finite", parameters.alpha);
  }
  if (p.activation == Activation::SwigluClamped) {
    const SwigluClampedParameters& parameters = d.activation.swiglu_clamped;
    check_limit("gate_limit", parameters.gate_limit);
    check_limit("up_limit", parameters.up_limit);
  }
  if (p.activation == Activation::Situ) {
    const auto check_beta = [](const char* name, float value) {
      if (!(value > 0) || !std::isfinite(value))
        reject("activation.{} is {}, but must be positive and finite", name, value);
    };
    check_beta("beta", d.activation.situ.beta);
    check_beta("linear_beta", d.activation.situ.linear_beta);
  }

  if (p.b_format != p.format && (p.format != OperandFormat::Bf16 || p.b_format != OperandFormat::Mxfp4))
    reject("b_format is {} and format {}, but only mxfp4 beside bf16 differs", to_string(p.b_format),
           to_string(p.format));
  if (plan::has_packed_b(p) && p.grouping == Grouping::KGroups)
    reject("b_format is given, but k-groups have operands of one format");
  if (p.gather && p.grouping != Grouping::Offsets)
    reject("gather is true, but rows of {} groups are not gathered, only those of offsets", to_string(p.grouping));
  if (p.gather && p.format != OperandFormat::Bf16)
    reject("gather is true, but rows of {} operands are not gathered, only those of bf16", to_string(p.format));
  if (p.groups < 1 || p.groups > kMaxGroups) reject("groups.count is {}, but must be 1 to {}", p.groups, kMaxGroups);
  check_size("n", p.n);
  const int64_t n_multiple = is_gated(p.activation) ? 16 : 8;
  if (p.n % n_multiple != 0)
    reject("n is {}, but must be a multiple of {}{}", p.n, n_multiple,
           n_multiple == 16 ? " with a gated activation" : "");
  if (p.grouping != Grouping::Pointers && p.groups * p.n > kMaxSize)
    reject("groups * n is {}, but at most {} rows of b are possible", p.groups * p.n, kMaxSize);
  if (!p.pre && !p.out && d.sinks.empty())
    reject("pre, out and sinks are all absent, but at least one output must be asked for");
  if (p.pre && is_quantized(*p.pre) && is_gated(p.activation))
    reject("pre is quantized, but that of a gated activation can only be bf16 or float32");
  const bool quantized_out = p.out && is_quantized(*p.out);
  if (quantized_out || (p.pre && is_quantized(*p.pre))) {
    const bool gated = quantized_out && is_gated(p.activation);
    const int64_t multiple = gated ? 2 * kScaleBlock : kScaleBlock;
    if (p.n % multiple != 0)
      reject("n is {}, but must be a multiple of {} with a quantized output{}", p.n, multiple,
             gated ? " and a gate" : "");
  }
  if (d.sinks.size() > size_t{kMaxSinks})
    reject("sinks has {} entries, but at most {} are possible", d.sinks.size(), kMaxSinks);
  for (size_t i = 0; i < d.sinks.size(); ++i) check_sink(i, d.sinks[i]);
  if (const auto* offsets = std::get_if<Offsets>(&d.groups); offsets && offsets->total)
    check_size("groups.total", *offsets->total);
  check_sizes(p);
  check_known_rows(p, d.known_rows);
  if (d.expected_rows) check_size("expected_rows", *d.expected_rows);
}

void check_figures(const DeviceFigures& device) {
  if (device.arch != 90 && device.arch != 100)
    throw Error(ErrorCode::Unsupported,
                fmt::format("arch is {}, but plans exist for 90 (sm_90a) and 100 (sm_100a)", device.arch));
  if (device.sm_count < 1) reject("sm_count is {}, but must be at least 1", device.sm_count);
  if (device.l2_bytes < 1) reject("l2_bytes is {}, but must be at least 1", device.l2_bytes);
  const auto check_rate = [](const char* name, double rate) {
    if (!(rate >= 1) || !std::isfinite(rate)) reject("{} is {}, but must be at least 1 and finite", name, rate);
  };
  check_rate("memory_rate", device.memory_rate);
  check_rate("clock", device.clock);
}

void check_sizes(const ProblemShape& p) {
  const bool total = p.grouping == Grouping::Offsets || p.grouping == Grouping::RowGroups;
  const bool most = p.grouping == Grouping::Masked || p.grouping == Grouping::Pointers;
  check_size(total ? "rows.total" : most ? "max_m" : "m", p.m);
  check_size("k", p.k);
  // Rows of four-bit elements are whole 16 bytes.
  if (p.k % plan::k_unit(p) != 0)
    reject("k is {}, but must be a multiple of {} with {} operands", p.k, plan::k_unit(p), to_string(p.b_format));
  if (total_rows(p) > kMaxSize) reject("groups * m is {}, but at most {} rows are possible", total_rows(p), kMaxSize);
  // The kernel counts tiles in 32 bits. The smallest tile has 2,048 elements (sm_100a: 16 x 128), and every group may
  // add a started row of tiles. (Tiles of 8 x 64 on sm_90a are for plain outputs only, which lie below 2^40 bytes.)
  const __int128 row_tiles =
      p.grouping == Grouping::Pointers ? __int128(p.groups) * (p.m / 64 + 2) : total_rows(p) / 64 + 2 * p.groups;
  if (row_tiles * (p.n / 32 + 2) > kMaxSize)
    reject("m * n is too large: the product of m = {} and n = {} has 2^31 tiles or more", p.m, p.n);
}

void check_tensors(const ProblemShape& p, const GemmDescription& d, const GemmTensors& t, WorkspaceView workspace,
                   size_t workspace_bytes) {
  check_workspace(p, workspace, workspace_bytes);
  check_sink_params(d, t.sinks);
  const auto begin = reinterpret_cast<uintptr_t>(workspace.data);
  check_buffers(p, t, {"workspace", begin, begin + (is_empty(p) ? 0 : workspace_bytes)});
}

void check_tensors(const ProblemShape& p, const GemmDescription& d, const GroupPointers& t, WorkspaceView workspace,
                   size_t workspace_bytes) {
  check_workspace(p, workspace, workspace_bytes);
  check_sink_params(d, t.sinks);
  check_operand_extras(p, t.a, t.b, t.bias != nullptr);
  check_output_extras("pre", p.pre, t.pre.data, t.pre.scales, t.pre.tensor_scale);
  check_output_extras("out", p.out, t.out.data, t.out.scales, t.out.tensor_scale);
  if (plan::has_packed_b(p) && t.b.ld) reject("b.ld is given, but packed weights have no leading dimension");
  if (is_empty(p)) return;
  const auto array = [](const char* name, const void* pointer, size_t alignment) {
    check_pointer(name, pointer, true, alignment);
  };
  array("a.data", t.a.data, 8);
  array("b.data", t.b.data, 8);
  array("a.ld", t.a.ld, 8);
  if (!plan::has_packed_b(p)) array("b.ld", t.b.ld, 8);
  array("sizes", t.sizes, 4);
  if (has_scales(p.format)) array("a.scales", t.a.scales, 8), array("b.scales", t.b.scales, 8);
  check_pointer("a.tensor_scale", t.a.tensor_scale, false, 4);
  check_pointer("b.tensor_scale", t.b.tensor_scale, false, 4);
  if (p.bias) array("bias", t.bias, 8);
  const auto output = [&](const char* name, const char* ld_name, const char* scales_name, const char* scale_name,
                          std::optional<DataType> type, const TensorArray& x) {
    check_pointer(scale_name, x.tensor_scale, false, 4);
    if (!type) return;
    array(name, x.data, 8), array(ld_name, x.ld, 8);
    if (is_quantized(*type)) array(scales_name, x.scales, 8);
  };
  output("pre.data", "pre.ld", "pre.scales", "pre.tensor_scale", p.pre, t.pre);
  output("out.data", "out.ld", "out.scales", "out.tensor_scale", p.out, t.out);
}

}  // namespace moxie::ops
