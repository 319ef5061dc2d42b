// SPDX-License-Identifier: Apache-2.0
// Descriptions of products, from C to C++.
#include "c/description.h"

#include "c/structs.h"

namespace moxie::c {
namespace {

// Members that a grouping does not have say nothing, so a caller who sets one means something else.
void check_absent(const moxie_groups& g, Grouping grouping, bool has_count, bool has_m, bool has_max_m,
                  bool may_have_total) {
  const auto check = [&](const char* name, bool has, int64_t value) {
    if (!has && value != 0) reject("groups.{} is {}, but {} groups have none", name, value, to_string(grouping));
  };
  check("count", has_count, g.count);
  check("m", has_m, g.m);
  check("max_m", has_max_m, g.max_m);
  check("has_total", may_have_total, g.has_total);
  check("total", may_have_total, g.total);
}

Groups groups_of(const moxie_groups& g) {
  const auto grouping = enum_of<Grouping>("groups.grouping", g.grouping);
  const bool dense = grouping == Grouping::Dense, offsets = grouping == Grouping::Offsets;
  const bool sized = dense || grouping == Grouping::Batched || grouping == Grouping::KGroups;
  const bool roomy = grouping == Grouping::Masked || grouping == Grouping::Pointers;
  check_absent(g, grouping, !dense, sized, roomy, offsets);
  switch (grouping) {
    case Grouping::Dense:
      return Dense{g.m};
    case Grouping::Batched:
      return Batched{g.count, g.m};
    case Grouping::Offsets:
      return Offsets{g.count, optional_of("groups.has_total", g.has_total, "groups.total", g.total)};
    case Grouping::RowGroups:
      return RowGroups{g.count};
    case Grouping::Masked:
      return Masked{g.count, g.max_m};
    case Grouping::Pointers:
      return Pointers{g.count, g.max_m};
    case Grouping::KGroups:
      return KGroups{g.count, g.m};
  }
  reject("groups.grouping is {}, which has no structure", g.grouping);
}

HopperTuning tuning_of(const moxie_hopper_tuning* given) {
  const moxie_hopper_tuning t = read(given, "hopper");
  check_reserved("hopper.reserved", t.reserved);
  HopperTuning tuning;
  tuning.schedule = optional_enum<WarpSchedule>("hopper.has_schedule", t.has_schedule, "hopper.schedule", t.schedule);
  tuning.tile_m = unless_zero(t.tile_m);
  tuning.tile_n = unless_zero(t.tile_n);
  tuning.cluster = unless_zero(t.cluster);
  tuning.multicast = optional_enum<Multicast>("hopper.has_multicast", t.has_multicast, "hopper.multicast", t.multicast);
  return tuning;
}

BlackwellTuning tuning_of(const moxie_blackwell_tuning* given) {
  const moxie_blackwell_tuning t = read(given, "blackwell");
  check_reserved("blackwell.reserved", t.reserved);
  BlackwellTuning tuning;
  tuning.tile_m = unless_zero(t.tile_m);
  tuning.tile_n = unless_zero(t.tile_n);
  tuning.cluster = unless_zero(t.cluster);
  tuning.tile_source =
      optional_enum<TileSource>("blackwell.has_tile_source", t.has_tile_source, "blackwell.tile_source", t.tile_source);
  if (optional_of("blackwell.has_swap_ab", t.has_swap_ab, "blackwell.swap_ab", t.swap_ab))
    tuning.swap_ab = flag("blackwell.swap_ab", t.swap_ab);
  return tuning;
}

CustomSink sink_of(const moxie_custom_sink* given, size_t index) {
  const std::string name = fmt::format("sinks[{}]", index);
  const moxie_custom_sink s = read(given, name.c_str());
  CustomSink sink;
  sink.type = &not_null(s.type, (name + ".type").c_str());
  sink.source = &not_null(s.source, (name + ".source").c_str());
  sink.param_bytes = s.param_bytes;
  sink.needs.staging_bytes = s.needs.staging_bytes;
  sink.needs.tensor_map = flag((name + ".needs.tensor_map").c_str(), s.needs.tensor_map);
  sink.needs.narrow = flag((name + ".needs.narrow").c_str(), s.needs.narrow);
  sink.needs.transposed = flag((name + ".needs.transposed").c_str(), s.needs.transposed);
  return sink;
}

template <class Value>
void check_array(const char* name, const Value* array, const char* count_name, size_t count) {
  if (count > 0 && array == nullptr) reject("{} is null, but {} is {}", name, count_name, count);
  if (count == 0 && array != nullptr) reject("{} is given, but {} is 0", name, count_name);
}

}  // namespace

ActivationSpec activation_of(const moxie_activation_spec& a) {
  ActivationSpec spec(enum_of<Activation>("activation.function", a.function));
  // The structure's unions: the other members of each have the same bytes.
  const bool clamped = spec.function == Activation::SwigluClamped, situ = spec.function == Activation::Situ;
  const char* const names[] = {
      clamped ? "activation.gate_limit"
      : situ  ? "activation.beta"
              : "activation.alpha",
      clamped ? "activation.up_limit"
      : situ  ? "activation.linear_beta"
              : "activation.limit",
  };
  const auto first = optional_of("activation.has_parameters", a.has_parameters, names[0], a.alpha);
  const auto second = optional_of("activation.has_parameters", a.has_parameters, names[1], a.limit);
  if (!first) return spec;
  if (clamped) {
    spec.swiglu_clamped = {*first, *second};
  } else if (situ) {
    spec.situ = {*first, *second};
  } else {
    spec.swiglu_oai = {*first, *second};
  }
  return spec;
}

GemmDescription description_of(const moxie_gemm_description* given, const char* name) {
  const moxie_gemm_description d = read(given, name);
  GemmDescription description;
  description.groups = groups_of(d.groups);
  description.n = d.n;
  description.k = d.k;
  description.format = enum_of<OperandFormat>("format", d.format);
  description.b_format = optional_enum<OperandFormat>("has_b_format", d.has_b_format, "b_format", d.b_format);
  description.gather = flag("gather", d.gather);
  check_reserved("reserved", d.reserved);
  description.bias = flag("bias", d.bias);
  description.activation = activation_of(d.activation);
  description.gate = enum_of<GateLayout>("gate", d.gate);
  description.pre = optional_enum<DataType>("has_pre", d.has_pre, "pre", d.pre);
  description.out = enum_of<DataType>("out", d.out);
  if (flag("no_out", d.no_out)) {
    if (d.out != 0) reject("out is {}, but no_out is 1", d.out);
    description.out.reset();
  }
  description.expected_rows = optional_of("has_expected_rows", d.has_expected_rows, "expected_rows", d.expected_rows);
  check_array("known_rows", d.known_rows, "known_row_count", d.known_row_count);
  const int64_t groups = d.groups.grouping == MOXIE_GROUPING_DENSE ? 1 : d.groups.count;
  if (d.known_row_count > 0 && d.known_row_count != static_cast<uint64_t>(groups))
    reject("known_row_count is {}, but there are {} groups", d.known_row_count, groups);
  description.known_rows.assign(d.known_rows, d.known_rows + d.known_row_count);
  check_array("sinks", d.sinks, "sink_count", d.sink_count);
  for (size_t i = 0; i < d.sink_count; ++i) description.sinks.push_back(sink_of(d.sinks[i], i));
  if (d.hopper) description.hopper = tuning_of(d.hopper);
  if (d.blackwell) description.blackwell = tuning_of(d.blackwell);
  return description;
}

}  // namespace moxie::c
