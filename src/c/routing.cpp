// SPDX-License-Identifier: Apache-2.0
// The operations around the products in C.
#include "moxie/routing.h"

#include "c/description.h"
#include "c/handles.h"
#include "c/structs.h"

namespace moxie::c {
namespace {

ExpertRouting to_cpp(const moxie_expert_routing* arguments) {
  const moxie_expert_routing r = read(arguments, "arguments");
  check_reserved("reserved", r.reserved);
  ExpertRouting x;
  x.tokens = r.tokens, x.experts = r.experts, x.top_k = r.top_k;
  x.logits_type = enum_of<DataType>("logits_type", r.logits_type);
  x.logits = r.logits, x.ld_logits = r.ld_logits;
  x.score = enum_of<RouterScore>("score", r.score);
  x.renormalize = !flag("no_renormalize", r.no_renormalize);
  if (r.scaling_factor != 0) x.scaling_factor = r.scaling_factor;
  x.correction_bias = r.correction_bias;
  x.expert_groups = unless_zero(r.expert_groups).value_or(1);
  x.chosen_groups = unless_zero(r.chosen_groups).value_or(1);
  x.token_count = r.token_count;
  x.ids = r.ids, x.weights = r.weights;
  return x;
}

ExpertSort to_cpp(const moxie_expert_sort* arguments) {
  const moxie_expert_sort s = read(arguments, "arguments");
  ExpertSort x;
  x.tokens = s.tokens, x.top_k = s.top_k;
  x.first_expert = s.first_expert, x.experts = s.experts;
  x.id_type = enum_of<IdType>("id_type", s.id_type);
  x.ids = s.ids;
  x.token_count = s.token_count;
  x.ends = s.ends, x.order = s.order, x.inverse = s.inverse;
  return x;
}

ExpertPermutation to_cpp(const moxie_expert_permutation* arguments) {
  const moxie_expert_permutation p = read(arguments, "arguments");
  ExpertPermutation x;
  x.tokens = p.tokens, x.top_k = p.top_k;
  x.width = p.width, x.row_count = p.row_count;
  x.type = enum_of<DataType>("type", p.type);
  x.x = p.x, x.ld_x = p.ld_x;
  x.inverse = p.inverse;
  x.token_count = p.token_count;
  x.out = p.out, x.ld_out = p.ld_out;
  return x;
}

ExpertCombination to_cpp(const moxie_expert_combination* arguments) {
  const moxie_expert_combination c = read(arguments, "arguments");
  check_reserved("reserved", c.reserved);
  ExpertCombination x;
  x.tokens = c.tokens, x.top_k = c.top_k;
  x.width = c.width, x.row_count = c.row_count;
  x.rows_type = enum_of<DataType>("rows_type", c.rows_type);
  x.rows = c.rows, x.ld_rows = c.ld_rows;
  x.inverse = c.inverse, x.weights = c.weights;
  x.residual = c.residual, x.ld_residual = c.ld_residual;
  x.token_count = c.token_count;
  x.out_type = enum_of<DataType>("out_type", c.out_type);
  x.out = c.out, x.ld_out = c.ld_out;
  return x;
}

}  // namespace
}  // namespace moxie::c

extern "C" {

moxie_status moxie_route(const moxie_device* device, const moxie_expert_routing* arguments,
                         const moxie_launch_options* options) {
  return moxie::c::guarded([&] {
    const moxie::Device& on = moxie::c::not_null(device, "device").device;
    moxie::route(on, moxie::c::to_cpp(arguments), moxie::c::launch_options_of(options));
  });
}

moxie_status moxie_sort_by_expert(const moxie_device* device, const moxie_expert_sort* arguments, void* workspace,
                                  size_t workspace_bytes, const moxie_launch_options* options) {
  return moxie::c::guarded([&] {
    const moxie::Device& on = moxie::c::not_null(device, "device").device;
    moxie::sort_by_expert(on, moxie::c::to_cpp(arguments), {workspace, workspace_bytes},
                          moxie::c::launch_options_of(options));
  });
}

moxie_status moxie_permute(const moxie_device* device, const moxie_expert_permutation* arguments,
                           const moxie_launch_options* options) {
  return moxie::c::guarded([&] {
    const moxie::Device& on = moxie::c::not_null(device, "device").device;
    moxie::permute(on, moxie::c::to_cpp(arguments), moxie::c::launch_options_of(options));
  });
}

moxie_status moxie_combine(const moxie_device* device, const moxie_expert_combination* arguments,
                           const moxie_launch_options* options) {
  return moxie::c::guarded([&] {
    const moxie::Device& on = moxie::c::not_null(device, "device").device;
    moxie::combine(on, moxie::c::to_cpp(arguments), moxie::c::launch_options_of(options));
  });
}

moxie_status moxie_sort_workspace_bytes(int64_t tokens, int32_t top_k, int64_t experts, size_t* bytes) {
  return moxie::c::guarded([&] {
    moxie::c::not_null(bytes, "bytes");
    *bytes = moxie::sort_workspace_bytes(tokens, top_k, experts);
  });
}

}  // extern "C"
