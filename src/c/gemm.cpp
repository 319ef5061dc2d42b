// SPDX-License-Identifier: Apache-2.0
// Products in C: create, run, and what a caller asks of one.
#include "moxie/gemm.h"

#include <array>

#include "c/description.h"
#include "c/handles.h"
#include "c/structs.h"
#include "moxie/scales.h"
#include "ops/check.h"

namespace moxie::c {
namespace {

ConstTensorArray to_cpp(const moxie_const_tensor_array& t) { return {t.data, t.ld, t.scales, t.tensor_scale}; }
TensorArray to_cpp(const moxie_tensor_array& t) { return {t.data, t.ld, t.scales, t.tensor_scale}; }

Rows to_cpp(const moxie_rows& r) {
  Rows rows;
  rows.ends = r.ends;
  rows.group_of_row = r.group_of_row;
  rows.counts = r.counts;
  rows.total = optional_of("rows.has_total", r.has_total, "rows.total", r.total);
  return rows;
}

Gather to_cpp(const moxie_gather& g) {
  check_reserved("gather.reserved", g.reserved);
  return {g.rows, g.divisor == 0 ? 1 : g.divisor, g.count};
}

// The sinks' parameters. A call allocates nothing, so they lie in an array of as many as a description can have.
struct SinkArray {
  SinkArray(const GemmDescription& description, const moxie_sink_params* given, size_t count) {
    if (count != description.sinks.size())
      reject("sink_count is {}, but the description has {} custom sinks", count, description.sinks.size());
    if (count > 0) not_null(given, "sinks");
    for (size_t i = 0; i < count; ++i) sinks[i] = {given[i].data, given[i].bytes};
  }
  std::array<SinkParams, ops::kMaxSinks> sinks;
};

bool takes_pointers(const GroupedGemm& gemm) { return std::holds_alternative<Pointers>(gemm.description().groups); }

template <size_t (*bytes_of)(const GemmDescription&, std::optional<int64_t>)>
moxie_status scale_bytes(const moxie_gemm_description* description, int64_t total, size_t* bytes) {
  return guarded([&] {
    not_null(bytes, "bytes");
    *bytes = bytes_of(description_of(description), total_of(total));
  });
}

}  // namespace

ConstTensor tensor_of(const moxie_const_tensor& t) { return {t.data, t.ld, t.scales, t.tensor_scale}; }
Tensor tensor_of(const moxie_tensor& t) { return {t.data, t.ld, t.scales, t.tensor_scale}; }

LaunchOptions launch_options_of(const moxie_launch_options* given) {
  const moxie_launch_options o = read_optional(given, "options");
  LaunchOptions options;
  options.stream = o.stream;
  options.programmatic = !flag("options.no_programmatic", o.no_programmatic);
  options.weights_ready = flag("options.weights_ready", o.weights_ready);
  return options;
}

}  // namespace moxie::c

using moxie::c::guarded;
using moxie::c::not_null;
using moxie::c::tensor_of;
using moxie::c::to_cpp;

extern "C" {

moxie_status moxie_grouped_gemm_create(const moxie_device* device, const moxie_gemm_description* description,
                                       moxie_grouped_gemm** gemm) {
  return guarded([&] {
    const moxie::Device& on = not_null(device, "device").device;
    not_null(gemm, "gemm");
    *gemm = new moxie_grouped_gemm{moxie::GroupedGemm(on, moxie::c::description_of(description))};
  });
}

void moxie_grouped_gemm_release(moxie_grouped_gemm* gemm) { delete gemm; }

moxie_status moxie_grouped_gemm_run(const moxie_grouped_gemm* gemm, const moxie_gemm_tensors* tensors, void* workspace,
                                    size_t workspace_bytes, const moxie_launch_options* options) {
  return guarded([&] {
    const moxie::GroupedGemm& product = not_null(gemm, "gemm").gemm;
    const moxie_gemm_tensors given = moxie::c::read(tensors, "tensors");
    if (moxie::c::takes_pointers(product))
      moxie::c::reject("gemm has pointers groups, which moxie_grouped_gemm_run_pointers computes");
    const moxie::c::SinkArray sinks(product.description(), given.sinks, given.sink_count);
    moxie::GemmTensors t;
    t.a = tensor_of(given.a);
    t.b = tensor_of(given.b);
    t.bias = given.bias;
    t.pre = tensor_of(given.pre);
    t.out = tensor_of(given.out);
    t.rows = to_cpp(given.rows);
    t.gather = to_cpp(given.gather);
    t.sinks = {sinks.sinks.data(), given.sink_count};
    product.run(t, {workspace, workspace_bytes}, moxie::c::launch_options_of(options));
  });
}

moxie_status moxie_grouped_gemm_run_pointers(const moxie_grouped_gemm* gemm, const moxie_group_pointers* tensors,
                                             void* workspace, size_t workspace_bytes,
                                             const moxie_launch_options* options) {
  return guarded([&] {
    const moxie::GroupedGemm& product = not_null(gemm, "gemm").gemm;
    const moxie_group_pointers given = moxie::c::read(tensors, "tensors");
    if (!moxie::c::takes_pointers(product))
      moxie::c::reject("gemm has {} groups, which moxie_grouped_gemm_run computes",
                       to_string(grouping_of(product.description().groups)));
    const moxie::c::SinkArray sinks(product.description(), given.sinks, given.sink_count);
    moxie::GroupPointers t;
    t.a = to_cpp(given.a);
    t.b = to_cpp(given.b);
    t.bias = given.bias;
    t.pre = to_cpp(given.pre);
    t.out = to_cpp(given.out);
    t.sizes = given.sizes;
    t.sinks = {sinks.sinks.data(), given.sink_count};
    product.run(t, {workspace, workspace_bytes}, moxie::c::launch_options_of(options));
  });
}

moxie_status moxie_grouped_gemm_workspace_bytes(const moxie_grouped_gemm* gemm, int64_t total, size_t* bytes) {
  return guarded([&] {
    const moxie::GroupedGemm& product = not_null(gemm, "gemm").gemm;
    not_null(bytes, "bytes");
    *bytes = product.workspace_bytes(moxie::c::total_of(total));
  });
}

moxie_status moxie_grouped_gemm_row_alignment(const moxie_grouped_gemm* gemm, int64_t* rows) {
  return guarded([&] {
    const moxie::GroupedGemm& product = not_null(gemm, "gemm").gemm;
    not_null(rows, "rows") = product.row_alignment();
  });
}

moxie_status moxie_grouped_gemm_plan(const moxie_grouped_gemm* gemm, int64_t total, moxie_plan** plan) {
  return guarded([&] {
    const moxie::GroupedGemm& product = not_null(gemm, "gemm").gemm;
    not_null(plan, "plan");
    *plan = new moxie_plan{product.plan(moxie::c::total_of(total))};
  });
}

moxie_status moxie_a_scale_bytes(const moxie_gemm_description* description, int64_t total, size_t* bytes) {
  return moxie::c::scale_bytes<moxie::a_scale_bytes>(description, total, bytes);
}

moxie_status moxie_b_scale_bytes(const moxie_gemm_description* description, int64_t total, size_t* bytes) {
  return moxie::c::scale_bytes<moxie::b_scale_bytes>(description, total, bytes);
}

moxie_status moxie_pre_scale_bytes(const moxie_gemm_description* description, int64_t total, size_t* bytes) {
  return moxie::c::scale_bytes<moxie::pre_scale_bytes>(description, total, bytes);
}

moxie_status moxie_out_scale_bytes(const moxie_gemm_description* description, int64_t total, size_t* bytes) {
  return moxie::c::scale_bytes<moxie::out_scale_bytes>(description, total, bytes);
}

}  // extern "C"
