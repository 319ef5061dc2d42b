// SPDX-License-Identifier: Apache-2.0
// See contract.h.
#include "tests/support/contract.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace moxie::test {
namespace {

using P = const ProductSituation&;
bool always(P) { return true; }
bool by_pointers(P s) { return s.grouping == Grouping::Pointers; }
bool has_ends(P s) { return s.grouping == Grouping::Offsets || s.grouping == Grouping::KGroups; }
bool has_row_groups(P s) { return s.grouping == Grouping::RowGroups; }
bool has_counts(P s) { return s.grouping == Grouping::Masked; }
// The map of an operand without elements is never used. Along K the sizes of the groups are the device's.
bool has_no_elements(P s) { return s.no_depth && !by_pointers(s); }
bool has_no_scales(P s) {
  return s.no_depth && has_scales(s.format) && s.grouping != Grouping::KGroups && !by_pointers(s);
}
bool scaled(P s) { return has_scales(s.format); }
bool nvfp4(P s) { return s.format == OperandFormat::Nvfp4; }
bool packed(P s) { return s.packed; }
bool with_bias(P s) { return s.bias; }
bool with_workspace(P s) { return s.workspace; }
bool stores_pre(P s) { return s.pre.has_value(); }
bool stores_pre_array(P s) { return s.pre && by_pointers(s); }
bool quantizes_pre(P s) { return s.pre && is_quantized(*s.pre); }
bool nvfp4_pre(P s) { return s.pre == DataType::Nvfp4; }
bool stores_out(P s) { return s.out.has_value(); }
bool stores_out_array(P s) { return s.out && by_pointers(s); }
bool quantizes_out(P s) { return s.out && is_quantized(*s.out); }
bool nvfp4_out(P s) { return s.out == DataType::Nvfp4; }

constexpr ProductRule kProductRules[] = {
    {"a.data", by_pointers, Use::Required, "a.data is null"},
    {"a.data", has_no_elements, Use::Ignored, ""},
    {"a.data", always, Use::Required, "a is null"},
    {"a.ld", by_pointers, Use::Required, "a.ld is null"},
    {"a.ld", always, Use::Optional, ""},
    {"a.scales", has_no_scales, Use::Ignored, ""},
    {"a.scales", scaled, Use::Required, "a.scales is null"},
    {"a.scales", always, Use::Refused, "a.scales is given, but bf16 operands have no scales"},
    {"a.tensor_scale", nvfp4, Use::Optional, ""},
    {"a.tensor_scale", always, Use::Refused, "a.tensor_scale is given, but only NVFP4 operands have one"},
    {"b.data", by_pointers, Use::Required, "b.data is null"},
    {"b.data", has_no_elements, Use::Ignored, ""},
    {"b.data", always, Use::Required, "b is null"},
    {"b.ld", packed, Use::Refused, ", but packed weights have no leading dimension"},
    {"b.ld", by_pointers, Use::Required, "b.ld is null"},
    {"b.ld", always, Use::Optional, ""},
    {"b.scales", has_no_scales, Use::Ignored, ""},
    {"b.scales", scaled, Use::Required, "b.scales is null"},
    {"b.scales", always, Use::Refused, "b.scales is given, but bf16 operands have no scales"},
    {"b.tensor_scale", nvfp4, Use::Optional, ""},
    {"b.tensor_scale", always, Use::Refused, "b.tensor_scale is given, but only NVFP4 operands have one"},
    {"bias", with_bias, Use::Required, "bias is null"},
    {"bias", always, Use::Refused, "bias is given, but the description has none"},
    {"pre.data", stores_pre_array, Use::Required, "pre.data is null"},
    {"pre.data", stores_pre, Use::Required, "pre is null"},
    {"pre.data", always, Use::Refused, "pre is given, but the description does not store it"},
    {"pre.ld", stores_pre_array, Use::Required, "pre.ld is null"},
    {"pre.ld", stores_pre, Use::Optional, ""},
    {"pre.ld", always, Use::Ignored, ""},
    {"pre.scales", quantizes_pre, Use::Required, "pre.scales is null"},
    {"pre.scales", always, Use::Refused, "pre.scales is given, but pre is not quantized"},
    {"pre.tensor_scale", nvfp4_pre, Use::Optional, ""},
    {"pre.tensor_scale", always, Use::Refused, "pre.tensor_scale is given, but only NVFP4 outputs have one"},
    {"out.data", stores_out_array, Use::Required, "out.data is null"},
    {"out.data", stores_out, Use::Required, "out is null"},
    {"out.data", always, Use::Refused, "out is given, but the description does not store it"},
    {"out.ld", stores_out_array, Use::Required, "out.ld is null"},
    {"out.ld", stores_out, Use::Optional, ""},
    {"out.ld", always, Use::Ignored, ""},
    {"out.scales", quantizes_out, Use::Required, "out.scales is null"},
    {"out.scales", always, Use::Refused, "out.scales is given, but out is not quantized"},
    {"out.tensor_scale", nvfp4_out, Use::Optional, ""},
    {"out.tensor_scale", always, Use::Refused, "out.tensor_scale is given, but only NVFP4 outputs have one"},
    {"rows.ends", has_ends, Use::Required, "rows.ends is null"},
    {"rows.ends", always, Use::Refused, "rows.ends is given, but"},
    {"rows.group_of_row", has_row_groups, Use::Required, "rows.group_of_row is null"},
    {"rows.group_of_row", always, Use::Refused, "rows.group_of_row is given, but"},
    {"rows.counts", has_counts, Use::Required, "rows.counts is null"},
    {"rows.counts", always, Use::Refused, "rows.counts is given, but"},
    {"rows.total", has_ends, Use::Optional, ""},
    {"rows.total", has_row_groups, Use::Required, "rows.total is absent"},
    {"rows.total", always, Use::Refused, "rows.total is given, but"},
    {"sizes", always, Use::Required, "sizes is null"},
    {"sinks", always, Use::Refused, "but the description has 0 custom sinks"},
    {"workspace", with_workspace, Use::Required, "workspace is null"},
    {"workspace", always, Use::Ignored, ""},
};

using C = const ConversionSituation&;
bool any(C) { return true; }
bool blocks(C s) { return s.conversion == Conversion::BlockScales || s.conversion == Conversion::UnblockScales; }
bool finds(C s) { return s.conversion == Conversion::FindTensorScale; }
bool unblocks(C s) { return s.conversion == Conversion::UnblockScales; }
bool of_nvfp4(C s) { return s.format == DataType::Nvfp4; }
bool along_k(C s) { return s.along_k; }

constexpr ConversionRule kConversionRules[] = {
    {"values", any, Use::Required, "values is null"},
    {"ld_values", any, Use::Optional, ""},
    {"elements", finds, Use::Ignored, ""},
    {"elements", any, Use::Required, "elements is null"},
    {"ld_elements", finds, Use::Ignored, ""},
    {"ld_elements", any, Use::Optional, ""},
    {"scales", finds, Use::Ignored, ""},
    {"scales", any, Use::Required, "scales is null"},
    {"tensor_scale", finds, Use::Ignored, ""},
    {"tensor_scale", of_nvfp4, Use::Required, "tensor_scale is null"},
    {"tensor_scale", any, Use::Refused, "tensor_scale is given, but only NVFP4 has one"},
    {"to", any, Use::Required, "to is null"},
    {"from", any, Use::Required, "from is null"},
    {"offsets", along_k, Use::Required, "offsets is null"},
    {"offsets", any, Use::Optional, ""},
    {"from_floats", unblocks, Use::Refused, "from_floats is set"},
    {"from_floats", blocks, Use::Optional, ""},
};

// ---- Values that conversions refuse ----

bool converts(C s) { return s.conversion == Conversion::Quantize || s.conversion == Conversion::Dequantize; }
bool has_rows(C s) { return !blocks(s); }  // a QuantizedRows
bool blocks_of_32(C s) { return has_rows(s) && s.format != DataType::Nvfp4; }
bool blocks_of_16(C s) { return has_rows(s) && s.format == DataType::Nvfp4; }
bool converts_mxfp8(C s) { return converts(s) && s.format == DataType::Mxfp8; }
bool converts_fp4(C s) { return converts(s) && s.format != DataType::Mxfp8; }
bool converts_nvfp4(C s) { return converts(s) && s.format == DataType::Nvfp4; }
bool counts_groups(C s) { return has_rows(s) && s.offsets; }
bool one_group_in_c(C s) { return has_rows(s) && !s.offsets; }
bool rows_of_groups(C s) { return blocks(s) && !s.along_k; }
bool counts_blocked_groups(C s) { return blocks(s) && s.offsets; }
bool one_blocked_group_in_c(C s) { return blocks(s) && !s.offsets; }
bool with_offsets(C s) { return has_rows(s) && s.offsets; }
bool blocks_with_offsets(C s) { return blocks(s) && s.offsets; }
bool only_blocks(C s) { return s.conversion == Conversion::BlockScales; }

// The same member of both structures with rows.
template <auto Change>
const void* of_rows(ConversionArguments& x) {
  Change(static_cast<QuantizedRows&>(x.quantize)), Change(static_cast<QuantizedRows&>(x.dequantize));
  return nullptr;
}
template <auto Change>
const void* of_blocking(ConversionArguments& x) {
  Change(x.blocking);
  return nullptr;
}
template <auto Change>
const void* of_both(ConversionArguments& x) {
  Change(x.quantize), Change(x.dequantize);
  return nullptr;
}
template <class Value>
const void* shift(Value*& pointer, int bytes) {
  pointer = reinterpret_cast<Value*>(reinterpret_cast<uintptr_t>(pointer) + bytes);
  return pointer;
}

using X = ConversionArguments&;
constexpr ConversionFault kConversionFaults[] = {
    {"format bf16", has_rows, of_rows<[](auto& x) { x.format = DataType::Bf16; }>,
     "format is bf16, but must be mxfp4, mxfp8 or nvfp4"},
    {"format f32", has_rows, of_rows<[](auto& x) { x.format = DataType::F32; }>,
     "format is f32, but must be mxfp4, mxfp8 or nvfp4"},
    {"no format", has_rows, of_rows<[](auto& x) { x.format = DataType(5); }>,
     "format is ?, but must be mxfp4, mxfp8 or nvfp4", "format is 5, but only 0 to 4 have a meaning"},
    {"type mxfp4", has_rows, of_rows<[](auto& x) { x.type = DataType::Mxfp4; }>,
     "type is mxfp4, but must be bf16 or f32"},
    {"type nvfp4", has_rows, of_rows<[](auto& x) { x.type = DataType::Nvfp4; }>,
     "type is nvfp4, but must be bf16 or f32"},
    {"no type", has_rows, of_rows<[](auto& x) { x.type = DataType(-1); }>, "type is ?, but must be bf16 or f32",
     "type is -1, but only 0 to 4 have a meaning"},
    {"no layout", has_rows, of_rows<[](auto& x) { x.layout = ScaleLayout(2); }>,
     "layout is 2, but must be blocked or row-major", "layout is 2, but only 0 to 1 have a meaning"},
    {"no group", counts_groups, of_rows<[](auto& x) { x.groups = 0; }>, "groups is 0, but must be 1 to 65535"},
    {"no group without ends", one_group_in_c, of_rows<[](auto& x) { x.groups = 0; }>,
     "groups is 0, but must be 1 to 65535", "accepted"},
    {"negative groups", has_rows, of_rows<[](auto& x) { x.groups = -1; }>, "groups is -1, but must be 1 to 65535"},
    {"too many groups", has_rows, of_rows<[](auto& x) { x.groups = 65536; }>,
     "groups is 65536, but must be 1 to 65535"},
    {"negative rows", has_rows, of_rows<[](auto& x) { x.rows = -1; }>, "rows is -1, but must be 0 to 536870912"},
    {"too many rows", has_rows, of_rows<[](auto& x) { x.rows = 536870913; }>,
     "rows is 536870913, but must be 0 to 536870912"},
    {"negative k", blocks_of_32, of_rows<[](auto& x) { x.k = -32; }>,
     "k is -32, but must be a multiple of 32 from 0 to 1073741824"},
    {"k between blocks", blocks_of_32, of_rows<[](auto& x) { x.k = 48; }>,
     "k is 48, but must be a multiple of 32 from 0 to 1073741824"},
    {"k between blocks of nvfp4", blocks_of_16, of_rows<[](auto& x) { x.k = 40; }>,
     "k is 40, but must be a multiple of 16 from 0 to 1073741824"},
    {"too large a k", has_rows, of_rows<[](auto& x) { x.k = 1073741856, x.format = DataType::Mxfp4; }>,
     "k is 1073741856, but must be a multiple of 32 from 0 to 1073741824"},
    {"ld_values below k", has_rows, of_both<[](auto& x) { x.ld_values = 60; }>,
     "ld_values is 60, but must be at least k, 64"},
    {"negative ld_values", has_rows, of_both<[](auto& x) { x.ld_values = -64; }>,
     "ld_values is -64, but must be at least k, 64"},
    {"ld_values of f32", has_rows, of_both<[](auto& x) { x.ld_values = 66; }>,
     "ld_values is 66, but must be a multiple of 4 elements (16 bytes)"},
    {"ld_values of bf16", has_rows, of_both<[](auto& x) { x.ld_values = 68, x.type = DataType::Bf16; }>,
     "ld_values is 68, but must be a multiple of 8 elements (16 bytes)"},
    {"values past 2^40", has_rows, of_both<[](auto& x) { x.ld_values = (int64_t{1} << 34) + 4; }>,
     "values has too many elements: 64 rows of 17179869188"},
    {"ld_values past 2^40", has_rows, of_both<[](auto& x) { x.ld_values = (int64_t{1} << 40) + 4; }>,
     "values has too many elements: 64 rows of 1099511627780"},
    {"ld_elements below k", converts, of_both<[](auto& x) { x.ld_elements = 32; }>,
     "ld_elements is 32, but must be at least k, 64"},
    {"ld_elements of four bits", converts_fp4, of_both<[](auto& x) { x.ld_elements = 80; }>,
     "ld_elements is 80, but must be a multiple of 32 elements (16 bytes)"},
    {"ld_elements of eight bits", converts_mxfp8, of_both<[](auto& x) { x.ld_elements = 72; }>,
     "ld_elements is 72, but must be a multiple of 16 elements (16 bytes)"},
    {"elements past 2^40", converts, of_both<[](auto& x) { x.ld_elements = (int64_t{1} << 34) + 32; }>,
     "elements has too many elements: 64 rows of 17179869216"},
    {"values", has_rows, [](X x) { return shift(x.dequantize.values, 8), shift(x.quantize.values, 8); },
     "values is {0}, but must be aligned to 16 bytes"},
    {"elements", converts, [](X x) { return shift(x.dequantize.elements, 8), shift(x.quantize.elements, 8); },
     "elements is {0}, but must be aligned to 16 bytes"},
    {"scales", converts, [](X x) { return shift(x.dequantize.scales, 8), shift(x.quantize.scales, 8); },
     "scales is {0}, but must be aligned to 16 bytes"},
    {"tensor_scale", converts_nvfp4,
     [](X x) { return shift(x.dequantize.tensor_scale, 2), shift(x.quantize.tensor_scale, 2); },
     "tensor_scale is {0}, but must be aligned to 4 bytes"},
    {"offsets", with_offsets, [](X x) { return shift(x.dequantize.offsets, 2), shift(x.quantize.offsets, 2); },
     "offsets is {0}, but must be aligned to 4 bytes"},
    {"to", finds, [](X x) { return shift(x.to, 2); }, "to is {0}, but must be aligned to 4 bytes"},

    {"no block", blocks, of_blocking<[](auto& x) { x.block = 0; }>, "block is 0, but must be 16 or 32", "accepted"},
    {"a small block", blocks, of_blocking<[](auto& x) { x.block = 8; }>, "block is 8, but must be 16 or 32"},
    {"a large block", blocks, of_blocking<[](auto& x) { x.block = 64; }>, "block is 64, but must be 16 or 32"},
    {"no blocked group", counts_blocked_groups, of_blocking<[](auto& x) { x.groups = 0; }>,
     "groups is 0, but must be 1 to 65535"},
    {"no blocked group without ends", one_blocked_group_in_c, of_blocking<[](auto& x) { x.groups = 0; }>,
     "groups is 0, but must be 1 to 65535", "accepted"},
    {"too many blocked groups", blocks, of_blocking<[](auto& x) { x.groups = 65536; }>,
     "groups is 65536, but must be 1 to 65535"},
    {"too many blocked rows", rows_of_groups, of_blocking<[](auto& x) { x.rows = 536870913; }>,
     "rows is 536870913, but must be 0 to 536870912"},
    {"negative blocked rows", rows_of_groups, of_blocking<[](auto& x) { x.rows = -1; }>,
     "rows is -1, but must be 0 to 536870912"},
    {"too many rows of groups along k", along_k, of_blocking<[](auto& x) { x.rows = 1073741825; }>,
     "rows is 1073741825, but must be 0 to 1073741824"},
    {"negative k of scales", blocks, of_blocking<[](auto& x) { x.k = -32; }>,
     "k is -32, but must be a multiple of 32 from 0 to 1073741824"},
    {"k between scales", blocks, of_blocking<[](auto& x) { x.k = 40, x.block = 16; }>,
     "k is 40, but must be a multiple of 16 from 0 to 1073741824"},
    {"blocked to", only_blocks, [](X x) { return shift(x.blocking.to, 8); },
     "to is {0}, but must be aligned to 16 bytes"},
    {"blocked from", unblocks, [](X x) { return shift(x.blocking.from, 8); },
     "from is {0}, but must be aligned to 16 bytes"},
    {"floats", only_blocks, [](X x) { return x.blocking.from_floats = true, shift(x.blocking.from, 2); },
     "from is {0}, but must be aligned to 4 bytes"},
    {"ends of blocked groups", blocks_with_offsets, [](X x) { return shift(x.blocking.offsets, 2); },
     "offsets is {0}, but must be aligned to 4 bytes"},
};

// ---- Values that descriptions refuse ----

constexpr int64_t kMost = 2147482624;  // what no size may exceed

using G = Grouping;
bool everywhere(G, int) { return true; }
bool dense(G g, int) { return g == Grouping::Dense; }
bool grouped(G g, int) { return g != Grouping::Dense; }
bool offsets(G g, int) { return g == Grouping::Offsets; }
bool arrays(G g, int) { return g == Grouping::Pointers; }
bool k_groups(G g, int) { return g == Grouping::KGroups; }
bool no_k_groups(G g, int) { return g != Grouping::KGroups; }
bool batched(G g, int) { return g == Grouping::Batched; }
bool shares_rows(G g, int) { return g == Grouping::Offsets || g == Grouping::RowGroups; }
bool has_m(G g, int) { return g == Grouping::Dense || g == Grouping::Batched || g == Grouping::KGroups; }
bool has_max_m(G g, int) { return g == Grouping::Masked || g == Grouping::Pointers; }
bool has_room(G g, int) { return g == Grouping::Batched || g == Grouping::Masked || g == Grouping::Pointers; }
bool equal_rows(G g, int) { return g == Grouping::Dense || g == Grouping::Batched; }
bool stacks_rows(G g, int) { return g == Grouping::Batched || g == Grouping::Masked || g == Grouping::KGroups; }
bool stacks_b(G g, int) { return g != Grouping::Dense && g != Grouping::Pointers; }
bool has_two_entries(G g, int) { return g != Grouping::Dense && g != Grouping::KGroups; }
bool lacks_m(G g, int arch) { return !has_m(g, arch); }
bool lacks_max_m(G g, int arch) { return !has_max_m(g, arch); }
bool lacks_total(G g, int) { return g != Grouping::Offsets; }
bool on_hopper(G g, int arch) { return arch == 90 && g != Grouping::KGroups; }
bool on_blackwell(G, int arch) { return arch == 100; }

using D = GemmDescription&;
using R = CDescription&;
void set_count(D d, int64_t count) {
  std::visit(
      [&](auto& groups) {
        if constexpr (requires { groups.count; }) groups.count = count;
      },
      d.groups);
}
void set_rows(D d, int64_t rows) {
  std::visit(
      [&](auto& groups) {
        if constexpr (requires { groups.m; }) groups.m = rows;
        if constexpr (requires { groups.max_m; }) groups.max_m = rows;
      },
      d.groups);
}
void set_total(D d, int64_t rows) { std::get<Offsets>(d.groups).total = rows; }
void set_swiglu(D d, float alpha, float limit) { d.activation = {Activation::SwigluOai, {alpha, limit}}; }
void set_clamped(D d, float gate_limit, float up_limit) { d.activation = swiglu_clamped({gate_limit, up_limit}); }
void set_situ(D d, float beta, float linear_beta) { d.activation = situ({beta, linear_beta}); }
void set_sink(D d, std::string type, std::string source, size_t bytes, int staging, size_t count = 1) {
  d.sinks.assign(count, {std::move(type), std::move(source), bytes, {staging, false}});
}
// Parameters without has_parameters. They stand in unions, of which alpha and limit are the first members.
void set_alone(R x, moxie_activation function, float alpha, float limit) {
  x.d.activation = {};
  x.d.activation.function = function, x.d.activation.alpha = alpha, x.d.activation.limit = limit;
}
moxie_custom_sink sound_sink() {
  moxie_custom_sink sink{};
  sink.size = sizeof sink, sink.type = "Sink", sink.source = "struct Sink;", sink.param_bytes = 4;
  return sink;
}
template <auto Change>
void in_sink(R x) {
  moxie_custom_sink sink = sound_sink();
  Change(sink);
  x.set_sinks({sink});
}
const int64_t kThreeRows[] = {1, 2, 3};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr auto kUnsupported = ErrorCode::Unsupported;

constexpr DescriptionRule kDescriptionRules[] = {
    // Sizes.
    {"as it is", everywhere, [](D) {}, nullptr, ""},
    {"no groups", grouped, [](D d) { set_count(d, 0); }, nullptr, "groups.count is 0, but must be 1 to 65535"},
    {"negative groups", grouped, [](D d) { set_count(d, -1); }, nullptr, "groups.count is -1, but must be 1 to 65535"},
    {"most groups", grouped, [](D d) { set_count(d, 65535); }, nullptr, ""},
    {"too many groups", grouped, [](D d) { set_count(d, 65536); }, nullptr,
     "groups.count is 65536, but must be 1 to 65535"},
    {"no rows", everywhere, [](D d) { set_rows(d, 0); }, nullptr, ""},
    {"negative m", has_m, [](D d) { set_rows(d, -1); }, nullptr, "m is -1, but cannot be negative"},
    {"negative max_m", has_max_m, [](D d) { set_rows(d, -1); }, nullptr, "max_m is -1, but cannot be negative"},
    {"most rows", dense, [](D d) { set_rows(d, kMost); }, nullptr, ""},
    {"too many rows", has_m, [](D d) { set_rows(d, kMost + 1); }, nullptr,
     "m is 2147482625, but at most 2147482624 is possible"},
    {"too much room", has_max_m, [](D d) { set_rows(d, kMost + 1); }, nullptr,
     "max_m is 2147482625, but at most 2147482624 is possible"},
    {"most rows of both groups", stacks_rows, [](D d) { set_rows(d, kMost / 2); }, nullptr, ""},
    {"too many rows of both groups", stacks_rows, [](D d) { set_rows(d, kMost / 2 + 1); }, nullptr,
     "groups * m is 2147482626, but at most 2147482624 rows are possible"},
    {"a total of no rows", offsets, [](D d) { set_total(d, 0); }, nullptr, ""},
    {"most rows in all", offsets, [](D d) { set_total(d, kMost); }, nullptr, ""},
    {"a negative total", offsets, [](D d) { set_total(d, -1); }, nullptr, "groups.total is -1, but cannot be negative"},
    {"too large a total", offsets, [](D d) { set_total(d, kMost + 1); }, nullptr,
     "groups.total is 2147482625, but at most 2147482624 is possible"},
    {"no columns", everywhere, [](D d) { d.n = 0; }, nullptr, ""},
    {"negative n", everywhere, [](D d) { d.n = -8; }, nullptr, "n is -8, but cannot be negative"},
    {"most columns", dense, [](D d) { d.n = kMost; }, nullptr, ""},
    {"too many columns", everywhere, [](D d) { d.n = kMost + 8; }, nullptr,
     "n is 2147482632, but at most 2147482624 is possible"},
    {"most columns of both groups", stacks_b, [](D d) { d.n = kMost / 2; }, nullptr, ""},
    {"too many columns of both groups", stacks_b, [](D d) { d.n = kMost / 2 + 8; }, nullptr,
     "groups * n is 2147482640, but at most 2147482624 rows of b are possible"},
    {"more columns than rows of one b", arrays, [](D d) { d.n = kMost / 2 + 8; }, nullptr, ""},
    {"n", everywhere, [](D d) { d.n = 68; }, nullptr, "n is 68, but must be a multiple of 8"},
    {"n of eight", everywhere, [](D d) { d.n = 72; }, nullptr, ""},
    {"gated n", everywhere, [](D d) { d.n = 72, d.activation = Activation::Swiglu; }, nullptr,
     "n is 72, but must be a multiple of 16 with a gated activation"},
    {"gated n of sixteen", everywhere, [](D d) { d.n = 80, d.activation = Activation::Swiglu; }, nullptr, ""},
    {"quantized n", everywhere, [](D d) { d.n = 72, d.out = DataType::Mxfp8; }, nullptr,
     "n is 72, but must be a multiple of 32 with a quantized output"},
    {"quantized pre", everywhere, [](D d) { d.n = 48, d.pre = DataType::Nvfp4; }, nullptr,
     "n is 48, but must be a multiple of 32 with a quantized output"},
    {"quantized n of a block", everywhere, [](D d) { d.n = 96, d.out = DataType::Mxfp8; }, nullptr, ""},
    {"quantized gated n", everywhere, [](D d) { d.n = 96, d.out = DataType::Mxfp4, d.activation = Activation::Reglu; },
     nullptr, "n is 96, but must be a multiple of 64 with a quantized output and a gate"},
    {"quantized gated n of two blocks", everywhere,
     [](D d) { d.n = 128, d.out = DataType::Mxfp4, d.activation = Activation::Reglu; }, nullptr, ""},
    {"quantized gated pre", everywhere, [](D d) { d.pre = DataType::Mxfp8, d.activation = Activation::Geglu; }, nullptr,
     "pre is quantized, but that of a gated activation can only be bf16 or float32"},
    {"no depth", everywhere, [](D d) { d.k = 0; }, nullptr, ""},
    {"negative k", everywhere, [](D d) { d.k = -8; }, nullptr, "k is -8, but cannot be negative"},
    {"most depth", everywhere, [](D d) { d.k = kMost; }, nullptr, ""},
    {"too much depth", everywhere, [](D d) { d.k = kMost + 8; }, nullptr,
     "k is 2147482632, but at most 2147482624 is possible"},
    {"k", everywhere, [](D d) { d.k = 12; }, nullptr, "k is 12, but must be a multiple of 8 with bf16 operands"},
    {"k of mxfp4", everywhere, [](D d) { d.k = 48, d.format = OperandFormat::Mxfp4; }, nullptr,
     "k is 48, but must be a multiple of 32 with mxfp4 operands"},
    {"k of nvfp4", everywhere, [](D d) { d.k = 48, d.format = OperandFormat::Nvfp4; }, nullptr,
     "k is 48, but must be a multiple of 32 with nvfp4 operands"},
    {"k of packed weights", no_k_groups, [](D d) { d.k = 48, d.b_format = OperandFormat::Mxfp4; }, nullptr,
     "k is 48, but must be a multiple of 32 with mxfp4 operands"},
    {"packed weights", no_k_groups, [](D d) { d.k = 96, d.b_format = OperandFormat::Mxfp4; }, nullptr, ""},
    {"packed weights along k", k_groups, [](D d) { d.b_format = OperandFormat::Mxfp4; }, nullptr,
     "b_format is given, but k-groups have operands of one format"},
    {"packed weights of nvfp4", everywhere, [](D d) { d.b_format = OperandFormat::Nvfp4; }, nullptr,
     "b_format is nvfp4 and format bf16, but only mxfp4 beside bf16 differs"},
    {"bf16 beside mxfp4", everywhere,
     [](D d) { d.format = OperandFormat::Mxfp4, d.b_format = OperandFormat::Bf16; }, nullptr,
     "b_format is bf16 and format mxfp4, but only mxfp4 beside bf16 differs"},
    {"no b_format", everywhere, [](D d) { d.b_format = OperandFormat(3); }, nullptr,
     "b_format is 3, but only 0 to 2 have a meaning"},
    {"b_format without has_b_format", everywhere, nullptr, [](CDescription& c) { c.d.b_format = 1; }, "",
     "b_format is 1, but has_b_format is 0"},
    // 1,024 times 2,097,151 tiles are as many as the limit.
    {"most tiles", dense, [](D d) { d.n = 32 * 1022, set_rows(d, int64_t{64} * 2097149); }, nullptr, ""},
    {"too many tiles", dense, [](D d) { d.n = 32 * 1022, set_rows(d, int64_t{64} * 2097150); }, nullptr,
     "m * n is too large: the product of m = 134217600 and n = 32704 has 2^31 tiles or more"},
    {"most tiles of both groups", batched, [](D d) { d.n = 32 * 1022, set_rows(d, int64_t{32} * 2097147); }, nullptr,
     ""},
    {"too many tiles of both groups", batched, [](D d) { d.n = 32 * 1022, set_rows(d, int64_t{32} * 2097148); },
     nullptr, "m * n is too large: the product of m = 67108736 and n = 32704 has 2^31 tiles or more"},
    {"most tiles by pointers", arrays, [](D d) { d.n = 32 * 510, set_rows(d, int64_t{64} * 2097149); }, nullptr, ""},
    {"too many tiles by pointers", arrays, [](D d) { d.n = 32 * 510, set_rows(d, int64_t{64} * 2097150); }, nullptr,
     "m * n is too large: the product of m = 134217600 and n = 16320 has 2^31 tiles or more"},
    // Choices.
    {"no format", everywhere, [](D d) { d.format = OperandFormat(3); }, nullptr,
     "format is 3, but only 0 to 2 have a meaning"},
    {"no activation", everywhere, [](D d) { d.activation.function = Activation(12); }, nullptr,
     "activation is 12, but only 0 to 11 have a meaning",
     "activation.function is 12, but only 0 to 11 have a meaning"},
    {"no gate layout", everywhere, [](D d) { d.gate = GateLayout(3); }, nullptr,
     "gate is 3, but only 0 to 2 have a meaning"},
    {"no type of pre", everywhere, [](D d) { d.pre = DataType(5); }, nullptr,
     "pre is 5, but only 0 to 4 have a meaning"},
    {"no type of out", everywhere, [](D d) { d.out = DataType(-1); }, nullptr,
     "out is -1, but only 0 to 4 have a meaning"},
    {"no schedule", everywhere, [](D d) { d.hopper.emplace().schedule = WarpSchedule(2); }, nullptr,
     "hopper.schedule is 2, but only 0 to 1 have a meaning"},
    {"no multicast", everywhere, [](D d) { d.hopper.emplace().multicast = Multicast(4); }, nullptr,
     "hopper.multicast is 4, but only 0 to 3 have a meaning"},
    {"no source of tiles", everywhere, [](D d) { d.blackwell.emplace().tile_source = TileSource(2); }, nullptr,
     "blackwell.tile_source is 2, but only 0 to 1 have a meaning"},
    {"a limit of 0", everywhere, [](D d) { set_swiglu(d, 1, 0); }, nullptr,
     "activation.limit is 0, but must be positive"},
    {"a negative limit", everywhere, [](D d) { set_swiglu(d, 1, -7); }, nullptr,
     "activation.limit is -7, but must be positive"},
    {"a limit that is none", everywhere, [](D d) { set_swiglu(d, 1, NAN); }, nullptr,
     "activation.limit is nan, but must be positive"},
    {"an infinite alpha", everywhere, [](D d) { set_swiglu(d, -kInfinity, 7); }, nullptr,
     "activation.alpha is -inf, but must be finite"},
    {"no limit and a negative alpha", everywhere, [](D d) { set_swiglu(d, -2, kInfinity); }, nullptr, ""},
    {"a gate limit of 0", everywhere, [](D d) { set_clamped(d, 0, 1); }, nullptr,
     "activation.gate_limit is 0, but must be positive"},
    {"a gate limit that is none", everywhere, [](D d) { set_clamped(d, NAN, 1); }, nullptr,
     "activation.gate_limit is nan, but must be positive"},
    {"a negative up limit", everywhere, [](D d) { set_clamped(d, 1, -kInfinity); }, nullptr,
     "activation.up_limit is -inf, but must be positive"},
    {"no gate limit and a small up limit", everywhere, [](D d) { set_clamped(d, kInfinity, 0x1p-149f); }, nullptr, ""},
    {"a beta of 0", everywhere, [](D d) { set_situ(d, 0, 1); }, nullptr,
     "activation.beta is 0, but must be positive and finite"},
    {"an infinite beta", everywhere, [](D d) { set_situ(d, kInfinity, 1); }, nullptr,
     "activation.beta is inf, but must be positive and finite"},
    {"a negative linear beta", everywhere, [](D d) { set_situ(d, 1, -25); }, nullptr,
     "activation.linear_beta is -25, but must be positive and finite"},
    {"a linear beta that is none", everywhere, [](D d) { set_situ(d, 1, NAN); }, nullptr,
     "activation.linear_beta is nan, but must be positive and finite"},
    {"a small beta and a large one", everywhere, [](D d) { set_situ(d, 0x1p-149f, 3e38f); }, nullptr, ""},
    {"no output", everywhere, [](D d) { d.out.reset(); }, nullptr,
     "pre, out and sinks are all absent, but at least one output must be asked for"},
    {"pre alone", everywhere, [](D d) { d.pre = DataType::F32, d.out.reset(); }, nullptr, ""},
    {"a sink alone", everywhere, [](D d) { set_sink(d, "Sink", "x", 1, 0), d.out.reset(); }, nullptr, ""},
    // Rows that the caller knows.
    {"rows of too many groups", has_two_entries,
     [](D d) {
       d.known_rows = {1, 2, 3};
     },
     nullptr, "known_rows has 3 entries, but there are 2 groups", "known_row_count is 3, but there are 2 groups"},
    {"rows of more than one group", dense,
     [](D d) {
       d.known_rows = {40, 40};
     },
     nullptr, "known_rows has 2 entries, but there are 1 groups", "known_row_count is 2, but there are 1 groups"},
    {"rows of k groups", k_groups,
     [](D d) {
       d.known_rows = {40, 40};
     },
     nullptr, "known_rows is given, but with k groups every group has m = 40 rows"},
    {"negative rows of a group", has_two_entries,
     [](D d) {
       d.known_rows = {40, -1};
     },
     nullptr, "known_rows[1] is -1, but cannot be negative"},
    {"more rows than fit", has_room,
     [](D d) {
       d.known_rows = {40, 41};
     },
     nullptr, "known_rows[1] is 41, but a group has at most 40"},
    {"fewer rows than all", equal_rows, [](D d) { d.known_rows.assign(grouping_of(d.groups) == G::Dense ? 1 : 2, 39); },
     nullptr, "known_rows[0] is 39, but dense and batched groups all have m = 40 rows"},
    {"fewer rows than fit", has_max_m,
     [](D d) {
       d.known_rows = {0, 39};
     },
     nullptr, ""},
    {"as many rows as are possible", shares_rows,
     [](D d) {
       d.known_rows = {kMost - 1, 1};
     },
     nullptr, ""},
    {"more rows than are possible", shares_rows,
     [](D d) {
       d.known_rows = {kMost - 1, 2};
     },
     nullptr, "known_rows sum to more than 2147482624, the most rows that are possible"},
    {"negative expected rows", everywhere, [](D d) { d.expected_rows = -1; }, nullptr,
     "expected_rows is -1, but cannot be negative"},
    {"too many expected rows", everywhere, [](D d) { d.expected_rows = kMost + 1; }, nullptr,
     "expected_rows is 2147482625, but at most 2147482624 is possible"},
    {"no expected rows", everywhere, [](D d) { d.expected_rows = 0; }, nullptr, ""},
    // Custom sinks.
    {"a sink without a type", everywhere, [](D d) { set_sink(d, "", "x", 4, 0); }, nullptr,
     "sinks[0].type is empty, but must name a struct"},
    {"a sink without a source", everywhere, [](D d) { set_sink(d, "Sink", "", 4, 0); }, nullptr,
     "sinks[0].source is empty, but must define Sink"},
    {"a sink without parameters", everywhere, [](D d) { set_sink(d, "Sink", "x", 0, 0); }, nullptr,
     "sinks[0].param_bytes is 0, but must be sizeof(Sink::Params), 1 to 1024"},
    {"a sink with most parameters", everywhere, [](D d) { set_sink(d, "Sink", "x", 1024, 1024); }, nullptr, ""},
    {"a sink with too many parameters", everywhere, [](D d) { set_sink(d, "Sink", "x", 1025, 0); }, nullptr,
     "sinks[0].param_bytes is 1025, but must be sizeof(Sink::Params), 1 to 1024"},
    {"staging", everywhere, [](D d) { set_sink(d, "Sink", "x", 4, 1000); }, nullptr,
     "sinks[0].needs.staging_bytes is 1000, but must be a multiple of 1024"},
    {"negative staging", everywhere, [](D d) { set_sink(d, "Sink", "x", 4, -1024); }, nullptr,
     "sinks[0].needs.staging_bytes is -1024, but must be a multiple of 1024"},
    {"most sinks", everywhere, [](D d) { set_sink(d, "Sink", "x", 4, 0, 8); }, nullptr, ""},
    {"too many sinks", everywhere, [](D d) { set_sink(d, "Sink", "x", 4, 0, 9); }, nullptr,
     "sinks has 9 entries, but at most 8 are possible"},
    // What the device does not have.
    {"mxfp4 on sm_90a",
     on_hopper,
     [](D d) { d.format = OperandFormat::Mxfp4; },
     nullptr,
     "the device is of architecture sm_90a, but mxfp4 operands need sm_100a",
     {},
     kUnsupported},
    {"nvfp4 on sm_90a",
     on_hopper,
     [](D d) { d.format = OperandFormat::Nvfp4; },
     nullptr,
     "the device is of architecture sm_90a, but nvfp4 operands need sm_100a",
     {},
     kUnsupported},
    {"a split gate of scales",
     on_blackwell,
     [](D d) {
       d.format = OperandFormat::Mxfp4, d.n = 96, d.activation = Activation::Swiglu, d.gate = GateLayout::Split;
     },
     nullptr,
     "n is 96, but mxfp4 operands with a split gate need a multiple of 64",
     {},
     kUnsupported},
    {"an interleaved gate of scales", on_blackwell,
     [](D d) { d.format = OperandFormat::Nvfp4, d.n = 96, d.activation = Activation::Swiglu; }, nullptr, ""},
    // What C alone can say.
    {"no grouping", everywhere, nullptr, [](R x) { x.d.groups.grouping = 7; },
     "groups.grouping is 7, but only 0 to 6 have a meaning"},
    {"negative grouping", everywhere, nullptr, [](R x) { x.d.groups.grouping = -1; },
     "groups.grouping is -1, but only 0 to 6 have a meaning"},
    {"a count of one", dense, nullptr, [](R x) { x.d.groups.count = 1; }, "groups.count is 1, but {} groups have none"},
    {"an m", lacks_m, nullptr, [](R x) { x.d.groups.m = 5; }, "groups.m is 5, but {} groups have none"},
    {"a max_m", lacks_max_m, nullptr, [](R x) { x.d.groups.max_m = 5; }, "groups.max_m is 5, but {} groups have none"},
    {"has_total", lacks_total, nullptr, [](R x) { x.d.groups.has_total = 1; },
     "groups.has_total is 1, but {} groups have none"},
    {"a total", lacks_total, nullptr, [](R x) { x.d.groups.total = 5; }, "groups.total is 5, but {} groups have none"},
    {"a total that is absent", offsets, nullptr, [](R x) { x.d.groups.total = 5; },
     "groups.total is 5, but groups.has_total is 0"},
    {"has_total of 2", offsets, nullptr, [](R x) { x.d.groups.has_total = 2; },
     "groups.has_total is 2, but must be 0 or 1"},
    {"bias", everywhere, nullptr, [](R x) { x.d.bias = 2; }, "bias is 2, but must be 0 or 1"},
    {"has_parameters", everywhere, nullptr, [](R x) { x.d.activation.has_parameters = -1; },
     "activation.has_parameters is -1, but must be 0 or 1"},
    {"alpha alone", everywhere, nullptr, [](R x) { set_alone(x, MOXIE_ACTIVATION_SWIGLU_OAI, 2, 0); },
     "activation.alpha is 2, but activation.has_parameters is 0"},
    {"limit alone", everywhere, nullptr, [](R x) { set_alone(x, MOXIE_ACTIVATION_SWIGLU_OAI, 0, 3); },
     "activation.limit is 3, but activation.has_parameters is 0"},
    {"gate limit alone", everywhere, nullptr, [](R x) { set_alone(x, MOXIE_ACTIVATION_SWIGLU_CLAMPED, 2, 0); },
     "activation.gate_limit is 2, but activation.has_parameters is 0"},
    {"up limit alone", everywhere, nullptr, [](R x) { set_alone(x, MOXIE_ACTIVATION_SWIGLU_CLAMPED, 0, 3); },
     "activation.up_limit is 3, but activation.has_parameters is 0"},
    {"beta alone", everywhere, nullptr, [](R x) { set_alone(x, MOXIE_ACTIVATION_SITU, 2, 0); },
     "activation.beta is 2, but activation.has_parameters is 0"},
    {"linear beta alone", everywhere, nullptr, [](R x) { set_alone(x, MOXIE_ACTIVATION_SITU, 0, 3); },
     "activation.linear_beta is 3, but activation.has_parameters is 0"},
    {"has_pre", everywhere, nullptr, [](R x) { x.d.has_pre = 2; }, "has_pre is 2, but must be 0 or 1"},
    {"pre that is absent", everywhere, nullptr, [](R x) { x.d.pre = 1; }, "pre is 1, but has_pre is 0"},
    {"no_out", everywhere, nullptr, [](R x) { x.d.no_out = 2; }, "no_out is 2, but must be 0 or 1"},
    {"out that is not wanted", everywhere, nullptr, [](R x) { x.d.no_out = 1, x.d.out = 1; },
     "out is 1, but no_out is 1"},
    {"has_expected_rows", everywhere, nullptr, [](R x) { x.d.has_expected_rows = 2; },
     "has_expected_rows is 2, but must be 0 or 1"},
    {"expected rows that are absent", everywhere, nullptr, [](R x) { x.d.expected_rows = 5; },
     "expected_rows is 5, but has_expected_rows is 0"},
    {"known rows that are null", everywhere, nullptr, [](R x) { x.d.known_row_count = 2; },
     "known_rows is null, but known_row_count is 2"},
    {"known rows that are not counted", everywhere, nullptr, [](R x) { x.d.known_rows = kThreeRows; },
     "known_rows is given, but known_row_count is 0"},
    {"sinks that are null", everywhere, nullptr, [](R x) { x.d.sink_count = 1; }, "sinks is null, but sink_count is 1"},
    {"sinks that are not counted", everywhere, nullptr, [](R x) { x.set_sinks({sound_sink()}), x.d.sink_count = 0; },
     "sinks is given, but sink_count is 0"},
    {"a sink that is null", everywhere, nullptr,
     [](R x) { x.set_sinks({sound_sink(), sound_sink()}), x.sink_list[1] = nullptr; }, "sinks[1] is null"},
    {"a type that is null", everywhere, nullptr, in_sink<[](auto& sink) { sink.type = nullptr; }>,
     "sinks[0].type is null"},
    {"a source that is null", everywhere, nullptr, in_sink<[](auto& sink) { sink.source = nullptr; }>,
     "sinks[0].source is null"},
    {"a sink's tensor map", everywhere, nullptr, in_sink<[](auto& sink) { sink.needs.tensor_map = 2; }>,
     "sinks[0].needs.tensor_map is 2, but must be 0 or 1"},
    {"a narrow sink", everywhere, nullptr, in_sink<[](auto& sink) { sink.needs.narrow = -1; }>,
     "sinks[0].needs.narrow is -1, but must be 0 or 1"},
    {"a sink of transposed fragments", everywhere, nullptr, in_sink<[](auto& sink) { sink.needs.transposed = 2; }>,
     "sinks[0].needs.transposed is 2, but must be 0 or 1"},
    {"has_schedule", everywhere, nullptr, [](R x) { x.hopper.has_schedule = 2, x.d.hopper = &x.hopper; },
     "hopper.has_schedule is 2, but must be 0 or 1"},
    {"schedule alone", everywhere, nullptr, [](R x) { x.hopper.schedule = 1, x.d.hopper = &x.hopper; },
     "hopper.schedule is 1, but hopper.has_schedule is 0"},
    {"has_multicast", everywhere, nullptr, [](R x) { x.hopper.has_multicast = 2, x.d.hopper = &x.hopper; },
     "hopper.has_multicast is 2, but must be 0 or 1"},
    {"multicast alone", everywhere, nullptr, [](R x) { x.hopper.multicast = 3, x.d.hopper = &x.hopper; },
     "hopper.multicast is 3, but hopper.has_multicast is 0"},
    {"what a tuning reserves",
     everywhere,
     nullptr,
     [](R x) { x.hopper.reserved = 1, x.d.hopper = &x.hopper; },
     "hopper.reserved is 1, but this version of the library, " MOXIE_VERSION ", knows only 0",
     {},
     kUnsupported},
    {"has_tile_source", everywhere, nullptr, [](R x) { x.blackwell.has_tile_source = 2, x.d.blackwell = &x.blackwell; },
     "blackwell.has_tile_source is 2, but must be 0 or 1"},
    {"tile_source alone", everywhere, nullptr, [](R x) { x.blackwell.tile_source = 1, x.d.blackwell = &x.blackwell; },
     "blackwell.tile_source is 1, but blackwell.has_tile_source is 0"},
    {"has_swap_ab", everywhere, nullptr, [](R x) { x.blackwell.has_swap_ab = 2, x.d.blackwell = &x.blackwell; },
     "blackwell.has_swap_ab is 2, but must be 0 or 1"},
    {"swap_ab alone", everywhere, nullptr, [](R x) { x.blackwell.swap_ab = 1, x.d.blackwell = &x.blackwell; },
     "blackwell.swap_ab is 1, but blackwell.has_swap_ab is 0"},
    {"swap_ab", everywhere, nullptr,
     [](R x) { x.blackwell.has_swap_ab = 1, x.blackwell.swap_ab = 3, x.d.blackwell = &x.blackwell; },
     "blackwell.swap_ab is 3, but must be 0 or 1"},
    {"what the other tuning reserves",
     everywhere,
     nullptr,
     [](R x) { x.blackwell.reserved = 1, x.d.blackwell = &x.blackwell; },
     "blackwell.reserved is 1, but this version of the library, " MOXIE_VERSION ", knows only 0",
     {},
     kUnsupported},
};

template <class Rules, class Situation>
const auto& first_that_holds(const Rules& rules, std::string_view field, const Situation& situation) {
  const auto found = std::find_if(std::begin(rules), std::end(rules),
                                  [&](const auto& rule) { return rule.field == field && rule.where(situation); });
  if (found == std::end(rules)) throw std::logic_error("no rule says what " + std::string(field) + " means");
  return *found;
}

}  // namespace

std::span<const ProductRule> product_rules() { return kProductRules; }
const ProductRule& product_rule(std::string_view field, const ProductSituation& situation) {
  return first_that_holds(kProductRules, field, situation);
}
std::span<const ConversionRule> conversion_rules() { return kConversionRules; }
const ConversionRule& conversion_rule(std::string_view field, const ConversionSituation& situation) {
  return first_that_holds(kConversionRules, field, situation);
}
std::span<const ConversionFault> conversion_faults() { return kConversionFaults; }
std::span<const DescriptionRule> description_rules() { return kDescriptionRules; }

size_t product_alignment(std::string_view field, Grouping grouping) {
  if (field == "workspace") return 128;
  if (field == "sinks" || field == "rows.total") return 1;
  if (field == "sizes" || field.starts_with("rows.") || field.ends_with(".tensor_scale")) return 4;
  if (grouping == Grouping::Pointers) return 8;
  return field.ends_with(".ld") ? 1 : 16;
}

CDescription::CDescription(const GemmDescription& from) {
  d.size = sizeof d, hopper.size = sizeof hopper, blackwell.size = sizeof blackwell;
  d.groups.grouping = int32_t(grouping_of(from.groups));
  std::visit(
      [&](const auto& groups) {
        if constexpr (requires { groups.count; }) d.groups.count = groups.count;
        if constexpr (requires { groups.m; }) d.groups.m = groups.m;
        if constexpr (requires { groups.max_m; }) d.groups.max_m = groups.max_m;
        if constexpr (requires { groups.total; }) {
          d.groups.has_total = groups.total.has_value(), d.groups.total = groups.total.value_or(0);
        }
      },
      from.groups);
  d.n = from.n, d.k = from.k;
  d.has_b_format = from.b_format.has_value(), d.b_format = int32_t(from.b_format.value_or(OperandFormat{}));
  d.format = int32_t(from.format), d.bias = from.bias, d.gate = int32_t(from.gate);
  d.activation.function = int32_t(from.activation.function), d.activation.has_parameters = 1;
  if (from.activation.function == Activation::SwigluClamped) {
    d.activation.gate_limit = from.activation.swiglu_clamped.gate_limit;
    d.activation.up_limit = from.activation.swiglu_clamped.up_limit;
  } else if (from.activation.function == Activation::Situ) {
    d.activation.beta = from.activation.situ.beta, d.activation.linear_beta = from.activation.situ.linear_beta;
  } else {
    d.activation.alpha = from.activation.swiglu_oai.alpha, d.activation.limit = from.activation.swiglu_oai.limit;
  }
  d.has_pre = from.pre.has_value(), d.pre = int32_t(from.pre.value_or(DataType{}));
  d.no_out = !from.out.has_value(), d.out = int32_t(from.out.value_or(DataType{}));
  d.has_expected_rows = from.expected_rows.has_value(), d.expected_rows = from.expected_rows.value_or(0);
  if (!from.known_rows.empty()) d.known_rows = from.known_rows.data();
  d.known_row_count = from.known_rows.size();
  std::vector<moxie_custom_sink> given;
  for (const CustomSink& sink : from.sinks) {
    const moxie_sink_needs needs = {sink.needs.staging_bytes, sink.needs.tensor_map, sink.needs.narrow,
                                    sink.needs.transposed};
    given.push_back({sizeof(moxie_custom_sink), sink.type.c_str(), sink.source.c_str(), sink.param_bytes, needs});
  }
  if (!given.empty()) set_sinks(std::move(given));
  if (from.hopper) {
    const HopperTuning& t = *from.hopper;
    hopper.has_schedule = t.schedule.has_value(), hopper.schedule = int32_t(t.schedule.value_or(WarpSchedule{}));
    hopper.tile_m = t.tile_m.value_or(0), hopper.tile_n = t.tile_n.value_or(0), hopper.cluster = t.cluster.value_or(0);
    hopper.has_multicast = t.multicast.has_value(), hopper.multicast = int32_t(t.multicast.value_or(Multicast{}));
    d.hopper = &hopper;
  }
  if (from.blackwell) {
    const BlackwellTuning& t = *from.blackwell;
    blackwell.tile_m = t.tile_m.value_or(0), blackwell.tile_n = t.tile_n.value_or(0);
    blackwell.cluster = t.cluster.value_or(0);
    blackwell.has_tile_source = t.tile_source.has_value();
    blackwell.tile_source = int32_t(t.tile_source.value_or(TileSource{}));
    blackwell.has_swap_ab = t.swap_ab.has_value(), blackwell.swap_ab = t.swap_ab.value_or(false);
    d.blackwell = &blackwell;
  }
}

void CDescription::set_sinks(std::vector<moxie_custom_sink> given) {
  sinks = std::move(given);
  sink_list.clear();
  for (const moxie_custom_sink& sink : sinks) sink_list.push_back(&sink);
  d.sinks = sink_list.data(), d.sink_count = sink_list.size();
}

}  // namespace moxie::test
