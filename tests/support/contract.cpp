// SPDX-License-Identifier: Apache-2.0
// See contract.h.
#include "tests/support/contract.h"

#include <algorithm>
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

}  // namespace moxie::test
