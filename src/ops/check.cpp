// Checks of what a caller asks for.
#include "ops/check.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>

#include "moxie/scales.h"

namespace moxie::ops {
namespace {

constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max() - 1023;  // rounding up to a tile stays an int32
constexpr int64_t kMaxBytes = int64_t{1} << 40;                           // strides of a tensor map are below it

template <typename... T>
[[noreturn]] void reject(fmt::format_string<T...> format, T&&... values) {
  throw Error(ErrorCode::InvalidArgument, fmt::format(format, std::forward<T>(values)...));
}

template <typename Enum>
void check_enum(const char* name, Enum value, Enum last) {
  if (int(value) < 0 || int(value) > int(last))
    reject("{} is {}, but only 0 to {} have a meaning", name, int(value), int(last));
}

void check_size(const char* name, int64_t value) {
  if (value < 0) reject("{} is {}, but cannot be negative", name, value);
  if (value > kMaxSize) reject("{} is {}, but at most {} is possible", name, value, kMaxSize);
}

void check_host_rows(const GemmProblem& p) {
  if (p.host_rows.empty()) return;
  if (p.grouping == Grouping::KGroups) reject("host_rows is given, but with k groups every group has m = {} rows", p.m);
  if (int64_t(p.host_rows.size()) != p.groups)
    reject("host_rows has {} entries, but groups is {}", p.host_rows.size(), p.groups);
  int64_t sum = 0;
  for (size_t g = 0; g < p.host_rows.size(); ++g) {
    const int64_t rows = p.host_rows[g];
    if (rows < 0) reject("host_rows[{}] is {}, but cannot be negative", g, rows);
    if (rows > p.m) reject("host_rows[{}] is {}, but m is {}", g, rows, p.m);
    if ((p.grouping == Grouping::Dense || p.grouping == Grouping::Batched) && rows != p.m)
      reject("host_rows[{}] is {}, but dense and batched groups all have m = {} rows", g, rows, p.m);
    sum += rows;
  }
  if ((p.grouping == Grouping::Offsets || p.grouping == Grouping::RowGroups) && sum > p.m)
    reject("host_rows sum to {}, but m, the rows of all groups together, is {}", sum, p.m);
}

void check_sink(size_t i, const CustomSink& sink) {
  if (sink.type.empty()) reject("sinks[{}].type is empty, but must name a struct", i);
  if (sink.source.empty()) reject("sinks[{}].source is empty, but must define {}", i, sink.type);
  if (sink.params.empty()) reject("sinks[{}].params is empty, but must hold the bytes of {}::Params", i, sink.type);
  if (sink.params.size() > size_t{kMaxSinkParams})
    reject("sinks[{}].params has {} bytes, but at most {} are possible", i, sink.params.size(), kMaxSinkParams);
  if (sink.needs.staging_bytes < 0 || sink.needs.staging_bytes % 1024 != 0)
    reject("sinks[{}].needs.staging_bytes is {}, but must be a multiple of 1024", i, sink.needs.staging_bytes);
}

// What a call reads or writes, in bytes.
struct Range {
  const char* name;
  uintptr_t begin, end;
};

// The ranges of a call, of which there are few.
struct Ranges {
  void push_back(const Range& range) { ranges[count++] = range; }
  const Range* begin() const { return ranges.data(); }
  const Range* end() const { return ranges.data() + count; }
  std::array<Range, 10> ranges;  // a, b, their scales and tensor scales, those of the outputs, bias, sizes: at most 10
  size_t count = 0;
};

void check_disjoint(const Range& a, const Range& b) {
  if (a.begin < b.end && b.begin < a.end) reject("{} overlaps {} in memory", a.name, b.name);
}

void check_pointer(const char* name, const void* pointer, bool needed, size_t alignment) {
  if (needed && !pointer) reject("{} is null, but must point to device memory", name);
  if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0)
    reject("{} is {}, but must be aligned to {} bytes", name, fmt::ptr(pointer), alignment);
}

// One matrix: pointer, leading dimension and place in memory.
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

void check_pointers_grouping(const GemmProblem& p, const GemmArguments& a) {
  const auto array = [](const char* name, const void* pointer, size_t alignment) {
    check_pointer(name, pointer, true, alignment);
  };
  array("arrays.a", a.arrays.a, 8);
  array("arrays.b", a.arrays.b, 8);
  array("arrays.lda", a.arrays.lda, 8);
  array("arrays.ldb", a.arrays.ldb, 8);
  array("arrays.sizes", a.arrays.sizes, 4);
  if (has_scales(p.format)) array("sfa_pointers", a.sfa_pointers, 8), array("sfb_pointers", a.sfb_pointers, 8);
  check_pointer("a_tensor_scale", a.a_tensor_scale, false, 4);
  check_pointer("b_tensor_scale", a.b_tensor_scale, false, 4);
  check_pointer("pre_tensor_scale", a.pre_tensor_scale, false, 4);
  check_pointer("out_tensor_scale", a.out_tensor_scale, false, 4);
  if (p.bias) array("arrays.bias", a.arrays.bias, 8);
  if (p.pre) array("pre_pointers", a.pre_pointers, 8), array("pre_lds", a.pre_lds, 8);
  if (p.out) array("out_pointers", a.out_pointers, 8), array("out_lds", a.out_lds, 8);
  if (p.pre && is_quantized(*p.pre)) array("pre_scale_pointers", a.pre_scale_pointers, 8);
  if (p.out && is_quantized(*p.out)) array("out_scale_pointers", a.out_scale_pointers, 8);
}

void check_buffers(const GemmProblem& p, const GemmArguments& a, const Range& workspace) {
  const int64_t rows = total_rows(p);
  const bool work = !is_empty(p);
  Ranges inputs, outputs;
  const int operand_bits = bits_of(p.format);
  const bool k_groups = p.grouping == Grouping::KGroups;
  inputs.push_back(check_matrix("a", "lda", a.a, a.lda, k_groups ? p.m : rows, p.k, operand_bits, work));
  inputs.push_back(check_matrix("b", "ldb", a.b, a.ldb, k_groups ? p.n : p.groups * p.n, p.k, operand_bits, work));
  if (has_scales(p.format)) {
    const auto check_scales = [&](const char* name, const void* pointer, size_t bytes) {
      check_pointer(name, pointer, work && bytes > 0, 16);
      const auto begin = reinterpret_cast<uintptr_t>(pointer);
      inputs.push_back({name, begin, begin + (work ? bytes : 0)});
    };
    check_scales("sfa", a.sfa, a_scale_bytes(p));
    check_scales("sfb", a.sfb, b_scale_bytes(p));
  } else if (a.sfa || a.sfb) {
    reject("{} is given, but bf16 operands have no scales", a.sfa ? "sfa" : "sfb");
  }
  const auto check_tensor_scale = [&](const char* name, const float* pointer, int64_t count) {
    if (pointer && p.format != OperandFormat::Nvfp4) reject("{} is given, but only NVFP4 operands have one", name);
    check_pointer(name, pointer, false, 4);
    const auto begin = reinterpret_cast<uintptr_t>(pointer);
    inputs.push_back({name, begin, begin + (work && pointer ? uintptr_t(count) * 4 : 0)});
  };
  check_tensor_scale("a_tensor_scale", a.a_tensor_scale, 1);
  check_tensor_scale("b_tensor_scale", a.b_tensor_scale, p.groups);
  const auto check_output_scale = [&](const char* name, const float* pointer, std::optional<DataType> type) {
    if (pointer && type != DataType::Nvfp4) reject("{} is given, but only NVFP4 outputs have one", name);
    check_pointer(name, pointer, false, 4);
    const auto begin = reinterpret_cast<uintptr_t>(pointer);
    inputs.push_back({name, begin, begin + (work && pointer ? 4 : 0)});
  };
  check_output_scale("pre_tensor_scale", a.pre_tensor_scale, p.pre);
  check_output_scale("out_tensor_scale", a.out_tensor_scale, p.out);
  if (p.bias) inputs.push_back(check_matrix("bias", "n", a.bias, p.n, p.groups, p.n, 16, work));
  const bool needs_sizes = k_groups || p.grouping == Grouping::Offsets || p.grouping == Grouping::RowGroups ||
                           p.grouping == Grouping::Masked;
  if (needs_sizes) {
    check_pointer("sizes", a.sizes, work, 4);
    const auto begin = reinterpret_cast<uintptr_t>(a.sizes);
    const int64_t count = !work ? 0 : p.grouping == Grouping::RowGroups ? p.m : p.groups;
    inputs.push_back({"sizes", begin, begin + uintptr_t(count) * 4});
  }
  const auto check_output = [&](const char* name, const char* ld_name, const char* scales_name, bool pre,
                                std::optional<DataType> type, void* base, int64_t ld, void* scales) {
    const bool quantized = type && is_quantized(*type);
    if (scales && !quantized) reject("{} is given, but {} is not quantised", scales_name, name);
    if (!type) return;
    outputs.push_back(check_matrix(name, ld_name, base, ld, rows, value_width(p, pre), bits_of(*type), work));
    if (!quantized) return;
    check_pointer(scales_name, scales, work, 16);
    const auto begin = reinterpret_cast<uintptr_t>(scales);
    outputs.push_back({scales_name, begin, begin + (work ? pre ? pre_scale_bytes(p) : out_scale_bytes(p) : 0)});
  };
  check_output("pre", "ld_pre", "pre_scales", true, p.pre, a.pre, a.ld_pre, a.pre_scales);
  check_output("out", "ld_out", "out_scales", false, p.out, a.out, a.ld_out, a.out_scales);
  for (const Range* output = outputs.begin(); output != outputs.end(); ++output) {
    for (const Range& input : inputs) check_disjoint(*output, input);
    for (const Range* other = output + 1; other != outputs.end(); ++other) check_disjoint(*output, *other);
    check_disjoint(*output, workspace);
  }
  for (const Range& input : inputs) check_disjoint(workspace, input);
}

}  // namespace

const char* format_name(OperandFormat format) {
  return format == OperandFormat::Mxfp4 ? "MXFP4" : format == OperandFormat::Nvfp4 ? "NVFP4" : "bf16";
}

int64_t total_rows(const GemmProblem& p) {
  const bool each =
      p.grouping == Grouping::Batched || p.grouping == Grouping::Masked || p.grouping == Grouping::KGroups;
  return each ? p.groups * p.m : p.m;
}

int64_t value_width(const GemmProblem& p, bool pre) { return !pre && is_gated(p.activation) ? p.n / 2 : p.n; }

bool is_scaled_output(const GemmProblem& p) {
  return (p.pre && is_quantized(*p.pre)) || (p.out && is_quantized(*p.out));
}

bool is_empty(const GemmProblem& p) { return p.m == 0 || p.n == 0; }

void check_problem(const GemmProblem& p) {
  check_enum("grouping", p.grouping, Grouping::KGroups);
  check_enum("activation", p.activation, Activation::Reglu);
  check_enum("format", p.format, OperandFormat::Nvfp4);
  check_enum("gate", p.gate, GateLayout::SplitUpFirst);
  if (p.pre) check_enum("pre", *p.pre, DataType::Nvfp4);
  if (p.out) check_enum("out", *p.out, DataType::Nvfp4);
  if (p.schedule) check_enum("schedule", *p.schedule, WarpSchedule::PingPong);
  if (p.multicast) check_enum("multicast", *p.multicast, Multicast::Either);
  if (p.scheduling) check_enum("scheduling", *p.scheduling, TileSource::LaunchControl);

  if (p.groups < 1 || p.groups > kMaxGroups) reject("groups is {}, but must be 1 to {}", p.groups, kMaxGroups);
  if (p.grouping == Grouping::Dense && p.groups != 1) reject("groups is {}, but a dense product has 1", p.groups);
  check_size("m", p.m);
  check_size("n", p.n);
  check_size("k", p.k);
  const int64_t n_multiple = is_gated(p.activation) ? 16 : 8;
  if (p.n % n_multiple != 0)
    reject("n is {}, but must be a multiple of {}{}", p.n, n_multiple,
           n_multiple == 16 ? " with a gated activation" : "");
  // Rows of four-bit elements are whole 16 bytes.
  if (has_scales(p.format) && p.k % 32 != 0)
    reject("k is {}, but must be a multiple of 32 with {} operands", p.k, format_name(p.format));
  if (p.k % 8 != 0) reject("k is {}, but must be a multiple of 8", p.k);
  if (total_rows(p) > kMaxSize) reject("groups * m is {}, but at most {} rows are possible", total_rows(p), kMaxSize);
  if (p.grouping != Grouping::Pointers && p.groups * p.n > kMaxSize)
    reject("groups * n is {}, but at most {} rows of b are possible", p.groups * p.n, kMaxSize);
  // The kernel counts tiles in 32 bits; the smallest tile has 2,048 elements (sm_100a: 16 x 128) and every group may
  // add a started row of tiles. (Those of 8 x 64 on sm_90a are for plain outputs only, which must lie below 2^40
  // bytes.)
  const __int128 row_tiles =
      p.grouping == Grouping::Pointers ? __int128(p.groups) * (p.m / 64 + 2) : total_rows(p) / 64 + 2 * p.groups;
  if (row_tiles * (p.n / 32 + 2) > kMaxSize)
    reject("m * n is too large: the product of m = {} and n = {} has 2^31 tiles or more", p.m, p.n);

  if (!p.pre && !p.out && p.sinks.empty())
    reject("pre, out and sinks are all absent, but at least one output must be asked for");
  if (p.pre && is_quantized(*p.pre) && is_gated(p.activation))
    reject("pre is quantised, but that of a gated activation can only be bf16 or float32");
  if (is_scaled_output(p)) {
    const bool gated = p.out && is_quantized(*p.out) && is_gated(p.activation);
    const int64_t multiple = gated ? 2 * kScaleBlock : kScaleBlock;
    if (p.n % multiple != 0)
      reject("n is {}, but must be a multiple of {} with a quantised output{}", p.n, multiple,
             gated ? " and a gate" : "");
  }
  if (p.sinks.size() > size_t{kMaxSinks})
    reject("sinks has {} entries, but at most {} are possible", p.sinks.size(), kMaxSinks);
  for (size_t i = 0; i < p.sinks.size(); ++i) check_sink(i, p.sinks[i]);
  check_host_rows(p);
  if (p.expected_rows) check_size("expected_rows", *p.expected_rows);
}

void check_arguments(const GemmProblem& p, const GemmArguments& a, size_t workspace) {
  check_pointer("workspace", a.workspace, workspace > 0 && !is_empty(p), 128);
  if (!is_empty(p) && a.workspace_bytes < workspace)
    reject("workspace_bytes is {}, but this problem needs {}", a.workspace_bytes, workspace);
  if (p.activation == Activation::SwigluOai) {
    if (!(a.limit > 0)) reject("limit is {}, but must be positive", a.limit);
    if (!std::isfinite(a.alpha)) reject("alpha is {}, but must be finite", a.alpha);
  }
  if (p.grouping == Grouping::Pointers) {
    if (!is_empty(p)) check_pointers_grouping(p, a);
    return;
  }
  const auto begin = reinterpret_cast<uintptr_t>(a.workspace);
  check_buffers(p, a, {"workspace", begin, begin + (is_empty(p) ? 0 : workspace)});
}

}  // namespace moxie::ops
