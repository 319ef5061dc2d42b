// SPDX-License-Identifier: Apache-2.0
// Expert layers in C: create, run, and what a caller asks of one.
#include "moxie/layer.h"

#include <memory>
#include <utility>

#include "c/description.h"
#include "c/handles.h"
#include "c/structs.h"

namespace moxie::c {
namespace {

RouterDescription router_of(const moxie_router_description* given) {
  const moxie_router_description r = read(given, "router");
  check_reserved("router.reserved", r.reserved);
  RouterDescription router;
  router.logits_type = enum_of<DataType>("router.logits_type", r.logits_type);
  router.score = enum_of<RouterScore>("router.score", r.score);
  router.renormalize = !flag("router.no_renormalize", r.no_renormalize);
  if (r.scaling_factor != 0) router.scaling_factor = r.scaling_factor;
  router.correction_bias = flag("router.correction_bias", r.correction_bias);
  router.expert_groups = unless_zero(r.expert_groups).value_or(1);
  router.chosen_groups = unless_zero(r.chosen_groups).value_or(1);
  return router;
}

RankDescription ranks_of(const moxie_rank_description* given) {
  const moxie_rank_description r = read(given, "ranks");
  check_reserved("ranks.reserved", r.reserved);
  RankDescription ranks;
  ranks.ranks = r.ranks, ranks.rank = r.rank;
  if (r.max_rows != 0) ranks.max_rows = r.max_rows;
  ranks.format = enum_of<RowFormat>("ranks.format", r.format);
  ranks.results = optional_enum<ResultFormat>("ranks.has_results", r.has_results, "ranks.results", r.results);
  if (r.time_limit != 0) ranks.time_limit = r.time_limit;
  return ranks;
}

ExpertLayerDescription to_cpp(const moxie_expert_layer_description* description) {
  const moxie_expert_layer_description d = read(description, "description");
  ExpertLayerDescription x;
  x.experts = d.experts, x.first_expert = d.first_expert;
  if (d.all_experts != 0) x.all_experts = d.all_experts;
  x.top_k = d.top_k;
  x.hidden = d.hidden, x.width = d.width;
  x.weights = enum_of<OperandFormat>("weights", d.weights);
  x.activations = enum_of<OperandFormat>("activations", d.activations);
  x.activation = activation_of(d.activation);
  x.gate = enum_of<GateLayout>("gate", d.gate);
  x.up_bias = flag("up_bias", d.up_bias);
  x.down_bias = flag("down_bias", d.down_bias);
  x.residual = flag("residual", d.residual);
  x.out = enum_of<DataType>("out", d.out);
  x.id_type = enum_of<IdType>("id_type", d.id_type);
  if (d.router) x.router = router_of(d.router);
  if (d.ranks) x.ranks = ranks_of(d.ranks);
  x.max_tokens = d.max_tokens;
  x.expected_tokens = optional_of("has_expected_tokens", d.has_expected_tokens, "expected_tokens", d.expected_tokens);
  if (optional_of("has_permute", d.has_permute, "permute", d.permute)) x.permute = flag("permute", d.permute);
  return x;
}

ExpertLayerTensors to_cpp(const moxie_expert_layer_tensors* tensors) {
  const moxie_expert_layer_tensors t = read(tensors, "tensors");
  ExpertLayerTensors x;
  x.tokens = t.tokens, x.token_count = t.token_count;
  x.x = tensor_of(t.x);
  x.topk_ids = t.topk_ids, x.topk_weights = t.topk_weights;
  x.logits = t.logits, x.ld_logits = t.ld_logits;
  x.correction_bias = t.correction_bias;
  x.chosen_ids = t.chosen_ids, x.chosen_weights = t.chosen_weights;
  x.up = tensor_of(t.up), x.up_bias = t.up_bias;
  x.down = tensor_of(t.down), x.down_bias = t.down_bias;
  x.residual = tensor_of(t.residual);
  x.inner_tensor_scale = t.inner_tensor_scale;
  x.out = tensor_of(t.out);
  x.windows = t.windows, x.places = t.places;
  return x;
}

}  // namespace
}  // namespace moxie::c

extern "C" {

moxie_status moxie_expert_layer_create(const moxie_device* device, const moxie_expert_layer_description* description,
                                       moxie_expert_layer** layer) {
  return moxie::c::guarded([&] {
    const moxie::Device& on = moxie::c::not_null(device, "device").device;
    moxie::c::not_null(layer, "layer");
    *layer = new moxie_expert_layer{moxie::ExpertLayer(on, moxie::c::to_cpp(description))};
  });
}

void moxie_expert_layer_release(moxie_expert_layer* layer) { delete layer; }

moxie_status moxie_expert_layer_run(const moxie_expert_layer* layer, const moxie_expert_layer_tensors* tensors,
                                    void* workspace, size_t workspace_bytes, const moxie_launch_options* options) {
  return moxie::c::guarded([&] {
    const moxie::ExpertLayer& of = moxie::c::not_null(layer, "layer").layer;
    of.run(moxie::c::to_cpp(tensors), {workspace, workspace_bytes}, moxie::c::launch_options_of(options));
  });
}

moxie_status moxie_expert_layer_run_part(const moxie_expert_layer* layer, moxie_layer_part part,
                                         const moxie_expert_layer_tensors* tensors, void* workspace,
                                         size_t workspace_bytes, const moxie_launch_options* options) {
  return moxie::c::guarded([&] {
    const moxie::ExpertLayer& of = moxie::c::not_null(layer, "layer").layer;
    of.run(moxie::c::to_cpp(tensors), {workspace, workspace_bytes}, moxie::c::launch_options_of(options),
           moxie::c::enum_of<moxie::LayerPart>("part", part));
  });
}

moxie_status moxie_expert_layer_workspace_bytes(const moxie_expert_layer* layer, int64_t tokens, size_t* bytes) {
  return moxie::c::guarded([&] {
    const moxie::ExpertLayer& of = moxie::c::not_null(layer, "layer").layer;
    moxie::c::not_null(bytes, "bytes");
    *bytes = of.workspace_bytes(moxie::c::total_of(tokens));
  });
}

moxie_status moxie_expert_layer_window_bytes(const moxie_expert_layer* layer, size_t* bytes) {
  return moxie::c::guarded([&] {
    const moxie::ExpertLayer& of = moxie::c::not_null(layer, "layer").layer;
    moxie::c::not_null(bytes, "bytes") = of.window_bytes();
  });
}

moxie_status moxie_expert_layer_prepare_window(const moxie_expert_layer* layer, void* window, moxie_stream stream) {
  return moxie::c::guarded([&] { moxie::c::not_null(layer, "layer").layer.prepare_window(window, stream); });
}

moxie_status moxie_expert_layer_check_ranks(const moxie_expert_layer* layer, void* window, moxie_stream stream) {
  return moxie::c::guarded([&] { moxie::c::not_null(layer, "layer").layer.check_ranks(window, stream); });
}

moxie_status moxie_expert_layer_plan(const moxie_expert_layer* layer, int64_t tokens, moxie_plan** up,
                                     moxie_plan** down) {
  return moxie::c::guarded([&] {
    const moxie::ExpertLayer& of = moxie::c::not_null(layer, "layer").layer;
    moxie::c::not_null(up, "up");
    moxie::c::not_null(down, "down");
    moxie::ExpertLayerPlan plan = of.plan(moxie::c::total_of(tokens));
    std::unique_ptr<moxie_plan> first(new moxie_plan{std::move(plan.up)});
    *down = new moxie_plan{std::move(plan.down)};
    *up = first.release();
  });
}

}  // extern "C"
