// SPDX-License-Identifier: Apache-2.0
// A product and its tensors as flat structs, in which tests vary one thing at a time whatever the grouping; and their
// translation into the public interface.
#pragma once
#include <array>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "moxie/moxie.h"

namespace moxie::test {

struct SinkSpec {
  std::string type, source;
  std::vector<uint8_t> params;
  SinkNeeds needs;
};

// GemmDescription with the sizes of every grouping in m, the choices of both architectures, and the parameters of
// custom sinks and activations.
struct ProductSpec {
  Grouping grouping = Grouping::Dense;
  int64_t groups = 1;
  int64_t m = 0, n = 0, k = 0;
  OperandFormat format = OperandFormat::Bf16;
  bool bias = false;
  Activation activation = Activation::None;
  float alpha = 1.702f, limit = 7.0f;  // of SwigluOai
  SwigluClampedParameters swiglu_clamped;
  SituParameters situ;
  GateLayout gate = GateLayout::Interleaved;
  std::optional<DataType> pre;
  std::optional<DataType> out = DataType::Bf16;
  std::vector<SinkSpec> sinks;
  std::vector<int64_t> host_rows;
  std::optional<int64_t> expected_rows;
  std::optional<WarpSchedule> schedule;
  std::optional<int> tile_m, tile_n, cluster;
  std::optional<Multicast> multicast;
  std::optional<TileSource> scheduling;
  std::optional<bool> swap_ab;
  std::optional<OperandFormat> b_format;  // packed weights
  bool gather = false;
};

// GemmTensors and GroupPointers with the workspace and the options of the launch.
struct ProductTensors {
  const void* a = nullptr;
  int64_t lda = 0;
  const void* b = nullptr;
  int64_t ldb = 0;
  const void *sfa = nullptr, *sfb = nullptr;
  const float *a_tensor_scale = nullptr, *b_tensor_scale = nullptr;
  const void* bias = nullptr;
  void* pre = nullptr;
  int64_t ld_pre = 0;
  void* out = nullptr;
  int64_t ld_out = 0;
  void *pre_scales = nullptr, *out_scales = nullptr;
  const float *pre_tensor_scale = nullptr, *out_tensor_scale = nullptr;
  const int32_t* sizes = nullptr;  // the array of Rows that the grouping takes
  Gather gather;
  GroupPointers pointers;  // Pointers, without tensor scales and sinks
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  Stream stream = nullptr;
  bool programmatic_launch = true;
  bool weights_ready = false;
};

inline Groups groups_of(const ProductSpec& s) {
  switch (s.grouping) {
    case Grouping::Dense:
      return Dense{s.m};
    case Grouping::Batched:
      return Batched{s.groups, s.m};
    case Grouping::Offsets:
      return Offsets{s.groups, s.m};
    case Grouping::RowGroups:
      return RowGroups{s.groups};
    case Grouping::Masked:
      return Masked{s.groups, s.m};
    case Grouping::Pointers:
      return Pointers{s.groups, s.m};
    case Grouping::KGroups:
      break;
  }
  return KGroups{s.groups, s.m};
}

inline ActivationSpec activation_of(const ProductSpec& s) {
  ActivationSpec activation(s.activation, {s.alpha, s.limit});
  activation.swiglu_clamped = s.swiglu_clamped;
  activation.situ = s.situ;
  return activation;
}

inline GemmDescription describe(const ProductSpec& s) {
  GemmDescription d;
  d.groups = groups_of(s);
  d.n = s.n, d.k = s.k;
  d.format = s.format;
  d.b_format = s.b_format;
  d.gather = s.gather;
  d.bias = s.bias;
  d.activation = activation_of(s);
  d.gate = s.gate;
  d.pre = s.pre, d.out = s.out;
  for (const SinkSpec& sink : s.sinks) d.sinks.push_back({sink.type, sink.source, sink.params.size(), sink.needs});
  d.expected_rows = s.expected_rows;
  d.known_rows = s.host_rows;
  d.hopper = HopperTuning{s.schedule, s.tile_m, s.tile_n, s.cluster, s.multicast};
  d.blackwell = BlackwellTuning{s.tile_m, s.tile_n, s.cluster, s.scheduling, s.swap_ab};
  return d;
}

// Rows::total, where the grouping takes one.
inline std::optional<int64_t> total_of(const ProductSpec& s) {
  if (s.grouping == Grouping::Offsets || s.grouping == Grouping::RowGroups) return s.m;
  return std::nullopt;
}

inline std::vector<SinkParams> sink_params(const ProductSpec& s) {
  std::vector<SinkParams> params;
  for (const SinkSpec& sink : s.sinks) params.push_back({sink.params.data(), sink.params.size()});
  return params;
}

inline GemmTensors tensors_of(const ProductSpec& s, const ProductTensors& x) {
  GemmTensors t;
  t.a = {x.a, x.lda, x.sfa, x.a_tensor_scale};
  t.b = {x.b, x.ldb, x.sfb, x.b_tensor_scale};
  t.bias = x.bias;
  t.pre = {x.pre, x.ld_pre, x.pre_scales, x.pre_tensor_scale};
  t.out = {x.out, x.ld_out, x.out_scales, x.out_tensor_scale};
  if (s.grouping == Grouping::Offsets || s.grouping == Grouping::KGroups) t.rows.ends = x.sizes;
  if (s.grouping == Grouping::RowGroups) t.rows.group_of_row = x.sizes;
  if (s.grouping == Grouping::Masked) t.rows.counts = x.sizes;
  t.rows.total = total_of(s);
  t.gather = x.gather;
  return t;
}

inline GroupPointers pointers_of(const ProductTensors& x) {
  GroupPointers g = x.pointers;
  g.a.tensor_scale = x.a_tensor_scale, g.b.tensor_scale = x.b_tensor_scale;
  g.pre.tensor_scale = x.pre_tensor_scale, g.out.tensor_scale = x.out_tensor_scale;
  return g;
}

inline void run(const GroupedGemm& product, const ProductSpec& s, const ProductTensors& x) {
  const std::vector<SinkParams> sinks = sink_params(s);
  const WorkspaceView workspace{x.workspace, x.workspace_bytes};
  const LaunchOptions options{x.stream, x.programmatic_launch, x.weights_ready};
  if (s.grouping == Grouping::Pointers) {
    GroupPointers pointers = pointers_of(x);
    pointers.sinks = sinks;
    product.run(pointers, workspace, options);
  } else {
    GemmTensors tensors = tensors_of(s, x);
    tensors.sinks = sinks;
    product.run(tensors, workspace, options);
  }
}

// Plans, compiles and launches.
inline void gemm(const Device& device, const ProductSpec& s, const ProductTensors& x) {
  run(GroupedGemm(device, describe(s)), s, x);
}
inline void prepare(const Device& device, const ProductSpec& s) { GroupedGemm(device, describe(s)); }
inline size_t workspace_bytes(const Device& device, const ProductSpec& s) {
  return GroupedGemm(device, describe(s)).workspace_bytes(total_of(s));
}
inline int64_t row_alignment(const Device& device, const ProductSpec& s) {
  return GroupedGemm(device, describe(s)).row_alignment();
}

inline size_t a_scale_bytes(const ProductSpec& s) { return moxie::a_scale_bytes(describe(s), total_of(s)); }
inline size_t b_scale_bytes(const ProductSpec& s) { return moxie::b_scale_bytes(describe(s), total_of(s)); }
inline size_t pre_scale_bytes(const ProductSpec& s) { return moxie::pre_scale_bytes(describe(s), total_of(s)); }
inline size_t out_scale_bytes(const ProductSpec& s) { return moxie::out_scale_bytes(describe(s), total_of(s)); }

}  // namespace moxie::test

namespace moxie {
using test::ProductSpec;
using test::ProductTensors;
}  // namespace moxie
