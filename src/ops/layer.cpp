// SPDX-License-Identifier: Apache-2.0
// The expert layer: checks, the kernels of every range of tokens, and the launches of a call.
#include "moxie/layer.h"

#include <algorithm>
#include <array>
#include <future>
#include <vector>

#include "moxie/quantize.h"
#include "moxie/weights.h"
#include "ops/check.h"
#include "ops/gemm.h"
#include "ops/layer_steps.h"
#include "ops/quantize.h"
#include "ops/ranks.h"
#include "ops/routing.h"

namespace moxie {
namespace {

using ops::check_array;
using ops::check_matrix;
using ops::Range;
using ops::reject;

constexpr size_t kAlignment = 256;  // of the workspace and its parts
constexpr int64_t kMostTokens = kMaxRoutedTokens;

size_t rounded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Experts that have a number among those that a call's ids are sorted by.
int64_t places(const ExpertLayerDescription& d) { return d.ranks ? d.ranks->ranks * d.experts : d.experts; }
int64_t all_experts(const ExpertLayerDescription& d) { return d.all_experts.value_or(d.first_expert + places(d)); }
// Rows of `up`, of an expert.
int64_t up_rows(const ExpertLayerDescription& d) { return is_gated(d.activation.function) ? 2 * d.width : d.width; }
bool quantizes(const ExpertLayerDescription& d) { return has_scales(d.activations); }

void check_layer(const ExpertLayerDescription& d) {
  const auto size = [](const char* name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most) reject("{} is {}, but must be {} to {}", name, value, least, most);
  };
  size("experts", d.experts, 1, kMaxRoutedExperts);
  size("first_expert", d.first_expert, 0, (int64_t{1} << 31) - 1 - d.experts);
  if (!d.ranks && d.all_experts && *d.all_experts < d.first_expert + d.experts)
    reject("all_experts is {}, but the last one here is {}", *d.all_experts, d.first_expert + d.experts - 1);
  size("top_k", d.top_k, 1, kMaxTopK);
  size("max_tokens", d.max_tokens, 0, kMostTokens);
  if (d.expected_tokens) size("expected_tokens", *d.expected_tokens, 0, kMostTokens);
  ops::check_enum("weights", d.weights);
  ops::check_enum("activations", d.activations);
  ops::check_enum("activation", d.activation.function);
  ops::check_enum("id_type", d.id_type);
  if (quantizes(d) && d.weights != d.activations)
    reject("weights is {}, but must be {} as activations is", to_string(d.weights), to_string(d.activations));
  if (!quantizes(d) && d.weights == OperandFormat::Nvfp4)
    reject("weights is nvfp4, but beside activations of bf16 must be bf16 or mxfp4");
  if (quantizes(d) && d.permute == false)
    reject("permute is false, but quantized tokens are copied in the order of the sort");
  if (d.out != DataType::Bf16 && d.out != DataType::F32) reject("out is {}, but must be bf16 or f32", to_string(d.out));
  const int64_t unit = k_unit(d.weights);
  for (const auto& [name, value] : {std::pair("hidden", d.hidden), std::pair("width", d.width)}) {
    size(name, value, unit, int64_t{1} << 20);
    if (value % unit != 0)
      reject("{} is {}, but must be a multiple of {} with {} weights", name, value, unit, to_string(d.weights));
  }
  if (d.ranks) ops::check_ranks(d);
  if (!d.router) return;
  size("all_experts", all_experts(d), d.top_k, kMaxRoutedExperts);
  if (d.id_type != IdType::Int32) reject("id_type is int64, but a router's ids are int32");
  ops::check_router("router.", all_experts(d), d.top_k, *d.router);
}

// Of all pairs those that meet experts here, if every expert is as popular and every rank has as many tokens.
int64_t rows_here(const ExpertLayerDescription& d, int64_t tokens) {
  const int64_t pairs = tokens * d.top_k, all = d.ranks ? d.experts : all_experts(d);
  return std::max<int64_t>((pairs * d.experts + all - 1) / all, 1);
}

// Whether experts have many rows in calls of about `tokens`. Over ranks and on Blackwell tokens are then permuted, and
// rows that leave for other ranks go through staging. The bound was measured for neither of the two, but for layers on
// Hopper with a slower gather than today's (bench/notes/hopper.md, "Gathered rows").
bool has_many_rows(const ExpertLayerDescription& d, int64_t tokens) { return rows_here(d, tokens) >= 32 * d.experts; }

// Whether the tokens of calls of about `tokens` are permuted before the first product. On an H200 layers that
// gather take 0.93 to 1.02 of the time of those that copy, whatever the number of rows.
bool permutes(const Device& device, const ExpertLayerDescription& d, int64_t tokens) {
  return quantizes(d) || (d.ranks && d.ranks->format != RowFormat::Bf16) ||
         d.permute.value_or((d.ranks || device.info().arch == 100) && has_many_rows(d, tokens));
}

DataType quantized_type(OperandFormat f) { return f == OperandFormat::Nvfp4 ? DataType::Nvfp4 : DataType::Mxfp4; }

// The descriptions of the two products, for calls of about `tokens`.
GemmDescription up_of(const Device& device, const ExpertLayerDescription& d, int64_t tokens) {
  GemmDescription up;
  const int64_t rows = rows_here(d, tokens);
  up.groups = Offsets{d.experts, rows};
  up.expected_rows = (rows + d.experts - 1) / d.experts;  // a total alone is planned for 16 rows an expert at least
  up.n = up_rows(d), up.k = d.hidden;
  up.format = d.activations;
  if (d.weights != d.activations) up.b_format = d.weights;
  up.gather = !permutes(device, d, tokens);
  up.bias = d.up_bias;
  up.activation = d.activation, up.gate = d.gate;
  if (quantizes(d)) up.out = quantized_type(d.activations);
  return up;
}
// Where rows travel back to other ranks, a sink sends them and takes the output's place.
GemmDescription down_of(const Device& device, const ExpertLayerDescription& d, int64_t tokens) {
  GemmDescription down = up_of(device, d, tokens);
  down.n = d.hidden, down.k = d.width;
  down.gather = false;
  down.bias = d.down_bias;
  down.activation = Activation::None, down.gate = GateLayout::Interleaved;
  down.out = DataType::Bf16;
  if (d.ranks && ops::results_of(d) == ResultFormat::Rows) {
    down.out = std::nullopt;
    down.sinks = {ops::row_sink(has_many_rows(d, tokens))};
  }
  return down;
}

// Where the parts of a call's workspace lie.
struct Parts {
  size_t ends, place_ends, shifts, order, inverse, row_places, ids, weights, scratch, inner, inner_scales, rows,
      token_scales, bytes;
};

// Of the scales of rows in the order of the sort.
size_t row_scale_bytes(const ExpertLayerDescription& d, int64_t rows, int64_t k) {
  if (!quantizes(d)) return 0;
  const int64_t tiles = ops::scale_row_tiles(d.experts, rows, true);
  return size_t(blocked_scale_bytes(tiles * kScaleTileRows, k, scale_block(d.activations)));
}

// Tokens for which kernels are planned: 1, 4, 16, ...
int64_t planned_tokens(int range) { return int64_t{1} << (2 * range); }
int range_of(int64_t tokens) {
  int range = 0;
  while (tokens > 2 * planned_tokens(range)) ++range;
  return range;
}

}  // namespace

struct ExpertLayer::Impl {
  struct Products {
    GroupedGemm up, down;
    bool permutes;
  };

  Impl(const Device& of, const ExpertLayerDescription& described) : device(of), description(described) {
    check_layer(description);
    std::vector<std::future<Products>> made;
    const auto make = [this](int64_t tokens) {
      return std::async(std::launch::async, [this, tokens] {
        auto down =
            std::async(std::launch::async, [&] { return GroupedGemm(device, down_of(device, description, tokens)); });
        GroupedGemm up(device, up_of(device, description, tokens));
        return Products{std::move(up), down.get(), permutes(device, description, tokens)};
      });
    };
    if (description.expected_tokens) {
      made.push_back(make(*description.expected_tokens));
    } else {
      for (int range = 0; range <= range_of(description.max_tokens); ++range)
        made.push_back(make(planned_tokens(range)));
    }
    for (std::future<Products>& each : made) products.push_back(each.get());
    // No rank shall wait for another that compiles.
    if (description.ranks) ranks.emplace(device, description);
  }

  const Products& products_for(int64_t tokens) const {
    return products[std::min(size_t(range_of(tokens)), products.size() - 1)];
  }

  const ops::Ranks& need_ranks() const {
    if (!ranks) reject("the description has no ranks, and so the layer no window");
    return *ranks;
  }

  // The tokens of a call, or the most there may be.
  int64_t checked_tokens(std::optional<int64_t> tokens) const {
    const int64_t most = description.max_tokens, count = tokens.value_or(most);
    if (count < 0 || count > most) reject("tokens is {}, but must be 0 to {}", count, most);
    return count;
  }

  // The most rows of the products.
  int64_t rows_of(int64_t tokens) const { return ranks ? ranks->params().max_rows : tokens * description.top_k; }

  // For calls of up to `tokens`, whose kernels may be those of a lower range.
  Parts parts(int64_t tokens) const {
    const int64_t pairs = tokens * description.top_k, rows = rows_of(tokens);
    size_t scratch = sort_workspace_bytes(tokens, description.top_k, places(description));
    bool permutes = false;
    for (size_t i = 0; i < products.size(); ++i) {
      permutes = permutes || products[i].permutes;
      for (const GroupedGemm* product : {&products[i].up, &products[i].down})
        scratch = std::max(scratch, product->workspace_bytes(rows));
      if (&products[i] == &products_for(tokens)) break;
    }
    Parts at{};
    const auto take = [&](size_t& place, size_t bytes) {
      place = at.bytes;
      at.bytes += rounded(bytes);
    };
    const auto count = size_t(pairs);
    take(at.ends, size_t(description.experts) * sizeof(int32_t));
    if (ranks) {
      take(at.place_ends, size_t(places(description)) * sizeof(int32_t));
      take(at.shifts, size_t(places(description)) * sizeof(int32_t));
      take(at.row_places, count * sizeof(kernel::RowPlace));
    }
    take(at.order, count * sizeof(int32_t));
    take(at.inverse, count * sizeof(int32_t));
    take(at.ids, description.router ? count * sizeof(int32_t) : 0);
    take(at.weights, description.router ? count * sizeof(float) : 0);
    take(at.scratch, scratch);
    const int64_t element_bits = bits_of(description.activations);
    take(at.inner, size_t(rows * description.width * element_bits / 8));
    take(at.inner_scales, row_scale_bytes(description, pairs, description.width));
    if (ranks) {
      // The rows that sums are made of. Rows that travel leave the second product for the other ranks, and what lies
      // here is the first one's operand, where it is a copy.
      take(at.rows, ranks->sums() || permutes ? size_t(rows * description.hidden) * 2 : 0);
      return at;
    }
    // The first product's operand, where it is a copy, lies where the second product's rows come to lie.
    const size_t copy = rounded(size_t(pairs * description.hidden * element_bits / 8));
    at.token_scales = at.bytes + copy;
    take(at.rows, std::max(count * size_t(description.hidden) * 2,
                           copy + row_scale_bytes(description, pairs, description.hidden)));
    return at;
  }

  void check(const ExpertLayerTensors& t, WorkspaceView workspace, size_t bytes, bool sums) const {
    const ExpertLayerDescription& d = description;
    const bool work = t.tokens > 0, multiplies = work || ranks;  // other ranks may have tokens
    const int64_t pairs = t.tokens * d.top_k;
    if (multiplies && workspace.bytes < bytes)
      reject("workspace has {} bytes, but this call needs {}", workspace.bytes, bytes);

    ops::Ranges<15> read;
    ops::Ranges<5> written;
    const auto absent = [](const char* name, const void* pointer, const char* why) {
      if (pointer) reject("{} is given, but {}", name, why);
    };
    if (t.x.scales || t.residual.scales || t.residual.tensor_scale || t.out.scales || t.out.tensor_scale)
      reject("scales are given, but neither tokens nor residual nor output of a layer have scales");
    const auto scales = [&](const char* name, const void* data, int64_t n, int64_t k) {
      if (!quantizes(d)) absent(name, data, "weights beside activations of bf16 have no scales of their own");
      read.push_back(check_array(name, data, multiplies && quantizes(d), 16,
                                 d.experts * blocked_scale_bytes(n, k, scale_block(d.weights)), 1));
    };
    const auto tensor_scale = [&](const char* name, const float* data, int64_t count) {
      if (d.activations != OperandFormat::Nvfp4) absent(name, data, "activations are not nvfp4");
      read.push_back(check_array(name, data, false, 4, count, 4));
    };
    const auto matrix = [&](const char* name, const char* ld, const void* data, int64_t lead, int64_t rows,
                            int64_t width, DataType type) {
      return check_matrix(name, ld, data, lead, rows, width, bits_of(type), rows > 0 && multiplies);
    };
    const auto weights = [&](const char* name, const char* ld, const ConstTensor& w, int64_t n, int64_t k) {
      if (d.weights == d.activations)
        return check_matrix(name, ld, w.data, w.ld, d.experts * n, k, bits_of(d.weights), multiplies);
      if (w.ld != 0) reject("{} is {}, but packed weights have no leading dimension", ld, w.ld);
      return check_array(name, w.data, multiplies, 16, int64_t(packed_weight_bytes(d.experts, n, k)), 1);
    };
    const auto bias = [&](const char* name, const void* data, bool has, int64_t n) {
      if (!has) absent(name, data, "the description has none");
      if (has) read.push_back(matrix(name, name, data, n, d.experts, n, DataType::Bf16));
    };
    read.push_back(check_array("token_count", t.token_count, false, 4, 1, 4));
    read.push_back(matrix("x", "x.ld", t.x.data, t.x.ld, t.tokens, d.hidden, DataType::Bf16));
    read.push_back(weights("up", "up.ld", t.up, up_rows(d), d.hidden));
    read.push_back(weights("down", "down.ld", t.down, d.hidden, d.width));
    scales("up.scales", t.up.scales, up_rows(d), d.hidden);
    scales("down.scales", t.down.scales, d.hidden, d.width);
    tensor_scale("x.tensor_scale", t.x.tensor_scale, 1);
    tensor_scale("inner_tensor_scale", t.inner_tensor_scale, 1);
    tensor_scale("up.tensor_scale", t.up.tensor_scale, d.experts);
    tensor_scale("down.tensor_scale", t.down.tensor_scale, d.experts);
    bias("up_bias", t.up_bias, d.up_bias, up_rows(d));
    bias("down_bias", t.down_bias, d.down_bias, d.hidden);
    if (d.router) {
      absent("topk_ids", t.topk_ids, "the router chooses them");
      absent("topk_weights", t.topk_weights, "the router makes them");
      const int64_t all = all_experts(d), ld = t.ld_logits == 0 ? all : t.ld_logits;
      if (ld < all) reject("ld_logits is {}, but there are {} experts", ld, all);
      const int64_t bytes_each = bits_of(d.router->logits_type) / 8;
      read.push_back(
          check_array("logits", t.logits, work, size_t(bytes_each), work ? (t.tokens - 1) * ld + all : 0, bytes_each));
      if (!d.router->correction_bias) absent("correction_bias", t.correction_bias, "the router has none");
      read.push_back(check_array("correction_bias", t.correction_bias, work && d.router->correction_bias, 4, all, 4));
      written.push_back(check_array("chosen_ids", t.chosen_ids, false, 4, pairs, 4));
      written.push_back(check_array("chosen_weights", t.chosen_weights, false, 4, pairs, 4));
    } else {
      constexpr const char* kNone = "the description has no router";
      absent("logits", t.logits, kNone), absent("correction_bias", t.correction_bias, kNone);
      absent("chosen_ids", t.chosen_ids, kNone), absent("chosen_weights", t.chosen_weights, kNone);
      const int64_t id_bytes = d.id_type == IdType::Int32 ? 4 : 8;
      read.push_back(check_array("topk_ids", t.topk_ids, work, size_t(id_bytes), pairs, id_bytes));
      read.push_back(check_array("topk_weights", t.topk_weights, false, 4, pairs, 4));
    }
    const Range out = matrix("out", "out.ld", t.out.data, t.out.ld, t.tokens, d.hidden, d.out);
    written.push_back(out);
    ops::check_pointer("workspace", workspace.data, multiplies, kAlignment);
    const auto begin = reinterpret_cast<uintptr_t>(workspace.data);
    written.push_back({"workspace", begin, begin + (multiplies ? bytes : 0)});
    if (ranks) {
      written.push_back(ranks->check_windows(t.windows));
      read.push_back(check_array("places", t.places, false, 4, all_experts(d), 4));
    } else {
      absent("windows", t.windows, "the description has no ranks");
      absent("places", t.places, "the description has no ranks");
    }
    for (const Range* each = written.begin(); each != written.end(); ++each) {
      for (const Range& other : read) ops::check_disjoint(*each, other);
      for (const Range* other = each + 1; other != written.end(); ++other) ops::check_disjoint(*each, *other);
    }
    if (!d.residual) {
      absent("residual", t.residual.data, "the description has none");
      return;
    }
    if (!sums) return;
    const Range residual = matrix("residual", "residual.ld", t.residual.data, t.residual.ld, t.tokens, d.hidden, d.out);
    const int64_t ld_residual = t.residual.ld ? t.residual.ld : d.hidden, ld_out = t.out.ld ? t.out.ld : d.hidden;
    for (const Range& other : written) {
      const bool is_out = other.begin == out.begin && residual.begin == out.begin && ld_residual == ld_out;
      if (!is_out) ops::check_disjoint(other, residual);
    }
  }

  // The experts of each token and their weights, by the router where the layer has one.
  struct Choice {
    const void* ids;
    const float* weights;
  };
  Choice choose(const ExpertLayerTensors& t, const Parts& at, uint8_t* base, const LaunchOptions& launch,
                bool launches) const {
    const ExpertLayerDescription& d = description;
    Choice choice{t.topk_ids, t.topk_weights};
    if (d.router) {
      ExpertRouting routing;
      routing.tokens = t.tokens, routing.experts = all_experts(d), routing.top_k = d.top_k;
      routing.logits_type = d.router->logits_type, routing.logits = t.logits, routing.ld_logits = t.ld_logits;
      routing.score = d.router->score, routing.renormalize = d.router->renormalize;
      routing.scaling_factor = d.router->scaling_factor, routing.correction_bias = t.correction_bias;
      routing.expert_groups = d.router->expert_groups, routing.chosen_groups = d.router->chosen_groups;
      routing.token_count = t.token_count;
      routing.ids = t.chosen_ids ? t.chosen_ids : reinterpret_cast<int32_t*>(base + at.ids);
      routing.weights = t.chosen_weights ? t.chosen_weights : reinterpret_cast<float*>(base + at.weights);
      if (launches) route(device, routing, launch);
      choice = {routing.ids, routing.weights};
    }
    return choice;
  }

  void run(const ExpertLayerTensors& t, WorkspaceView workspace, const LaunchOptions& options,
           const ops::LayerSteps& steps = {}) const {
    const ExpertLayerDescription& d = description;
    const Parts at = parts(checked_tokens(t.tokens));
    check(t, workspace, at.bytes, steps.has(3));
    LaunchOptions launch = options;
    launch.weights_ready = false;
    if (ranks) return run_over_ranks(t, at, static_cast<uint8_t*>(workspace.data), launch, steps);
    if (t.tokens == 0) return;
    const int64_t pairs = t.tokens * d.top_k;
    auto* const base = static_cast<uint8_t*>(workspace.data);
    const auto ints = [&](size_t place) { return reinterpret_cast<int32_t*>(base + place); };
    const WorkspaceView scratch{base + at.scratch, at.inner - at.scratch};
    const auto [ids, weights] = choose(t, at, base, launch, true);

    ExpertSort sort;
    sort.tokens = t.tokens, sort.top_k = d.top_k;
    sort.first_expert = d.first_expert, sort.experts = d.experts;
    sort.id_type = d.id_type, sort.ids = ids, sort.token_count = t.token_count;
    sort.ends = ints(at.ends), sort.order = ints(at.order), sort.inverse = ints(at.inverse);
    sort_by_expert(device, sort, scratch, launch);

    // For a kernel behind one that is neither the first nor the sort: it starts when that one has itself waited for the
    // sort, and the sort for all before it. So nothing that still runs writes weights or ends.
    LaunchOptions early = launch;
    early.weights_ready = true;

    const Products& of = products_for(t.tokens);
    GemmTensors up;
    up.a = t.x, up.b = t.up, up.bias = t.up_bias;
    up.out.data = base + at.inner;
    if (quantizes(d)) up.out.scales = base + at.inner_scales, up.out.tensor_scale = t.inner_tensor_scale;
    up.rows.ends = sort.ends, up.rows.total = pairs;
    if (quantizes(d)) {
      Quantization copy;
      copy.format = quantized_type(d.activations);
      copy.groups = d.experts, copy.rows = pairs, copy.k = d.hidden, copy.offsets = sort.ends;
      copy.values = t.x.data, copy.ld_values = t.x.ld ? t.x.ld : d.hidden, copy.tensor_scale = t.x.tensor_scale;
      copy.elements = base + at.rows, copy.ld_elements = d.hidden, copy.scales = base + at.token_scales;
      copy.stream = launch.stream;
      ops::gather_and_quantize(device, copy, {sort.order, uint32_t(d.top_k), uint32_t(t.tokens), 0},
                               launch.programmatic);
      up.a = {copy.elements, 0, copy.scales, copy.tensor_scale};
      of.up.run(up, scratch, early);
    } else if (of.permutes) {
      ExpertPermutation copy;
      copy.tokens = t.tokens, copy.top_k = d.top_k, copy.width = d.hidden, copy.row_count = pairs;
      copy.x = t.x.data, copy.ld_x = t.x.ld;
      copy.inverse = sort.inverse, copy.token_count = t.token_count;
      copy.out = base + at.rows;  // which the second product writes when the first has read them
      permute(device, copy, launch);
      up.a = {copy.out};
      of.up.run(up, scratch, early);
    } else {
      up.gather = {sort.order, d.top_k, t.tokens};
      of.up.run(up, scratch, launch);
    }

    GemmTensors down;
    down.a = up.out, down.b = t.down, down.bias = t.down_bias;
    down.out.data = base + at.rows;
    down.rows = up.rows;
    of.down.run(down, scratch, early);

    ExpertCombination sum;
    sum.tokens = t.tokens, sum.top_k = d.top_k, sum.width = d.hidden, sum.row_count = pairs;
    sum.rows = base + at.rows, sum.inverse = sort.inverse, sum.weights = weights;
    sum.residual = t.residual.data, sum.ld_residual = t.residual.ld;
    sum.token_count = t.token_count;
    sum.out_type = d.out, sum.out = t.out.data, sum.ld_out = t.out.ld;
    combine(device, sum, launch);
  }

  // The same over ranks. All blocks of a kernel that waits for other ranks run at once. What it waits for is told by
  // kernels before it, or by itself before it waits. So none that others wait for can lack a place to run.
  void run_over_ranks(const ExpertLayerTensors& t, const Parts& at, uint8_t* base, const LaunchOptions& launch,
                      const ops::LayerSteps& steps) const {
    using kernel::Meeting;
    const ExpertLayerDescription& d = description;
    const auto ints = [&](size_t place) { return reinterpret_cast<int32_t*>(base + place); };
    const WorkspaceView scratch{base + at.scratch, at.inner - at.scratch};
    const kernel::RankParams params = ranks->params(t.windows);
    const auto [ids, weights] = choose(t, at, base, launch, steps.has(0));
    LaunchOptions early = launch;  // as in run()
    early.weights_ready = true;
    // Of the first launch of `step`.
    const auto launch_before = [&](int step) {
      LaunchOptions own = launch;
      if (steps.joins && steps.first == step) own.programmatic = false;
      return own;
    };
    const auto meet = [&](Meeting meeting, int step) {
      ranks->meet(params, meeting, steps.halves(step - 1), launch_before(step));
    };

    const Products& of = products_for(t.tokens);
    auto* const row_places = reinterpret_cast<kernel::RowPlace*>(base + at.row_places);
    kernel::DispatchParams dispatch;
    dispatch.ranks = params;
    dispatch.from = t.x.data, dispatch.ld_from = t.x.ld ? t.x.ld : d.hidden;
    dispatch.ids = ids, dispatch.places = t.places, dispatch.ids_here = int32_t(all_experts(d));
    dispatch.inverse = ints(at.inverse), dispatch.shifts = ints(at.shifts);
    dispatch.token_count = t.token_count, dispatch.rows = row_places;
    dispatch.sums = ranks->sums(), dispatch.weights = weights;
    dispatch.tokens = int32_t(t.tokens), dispatch.top_k = d.top_k, dispatch.columns = int32_t(d.hidden);
    const bool few = steps.send_at_once() && ops::Ranks::are_few(dispatch);
    if (few) {
      if (steps.has(0)) ranks->send_few({dispatch, ints(at.ends), of.permutes}, launch);
    } else {
      if (steps.has(0)) {
        ExpertSort sort;
        sort.tokens = t.tokens, sort.top_k = d.top_k;
        sort.experts = places(d);
        sort.id_type = d.id_type, sort.ids = ids, sort.token_count = t.token_count;
        sort.ends = ints(at.place_ends), sort.order = ints(at.order), sort.inverse = ints(at.inverse);
        ops::sort_by_place(device, sort, all_experts(d), t.places, scratch, launch);
      }
      ranks->exchange(
          params, {ints(at.place_ends), ints(at.shifts), ints(at.ends), t.token_count, t.tokens, d.top_k, of.permutes},
          steps.halves(0), launch);
      dispatch.halves = steps.halves(0);
      ranks->dispatch(dispatch, launch);
      meet(Meeting::Tokens, 2);
    }

    uint8_t* const window = params.windows[params.rank];
    uint8_t* const rows = base + at.rows;
    if (steps.has(2)) {
      GemmTensors up;
      up.b = t.up, up.bias = t.up_bias;
      up.out.data = base + at.inner;
      up.rows.ends = ints(at.ends), up.rows.total = params.max_rows;
      if (of.permutes) {
        kernel::GatherRowsParams copy;
        copy.ranks = params, copy.columns = int32_t(d.hidden), copy.top_k = d.top_k, copy.sums = ranks->sums();
        copy.out = rows;  // which the second product writes when the first has read them
        ranks->gather_rows(copy, few ? launch_before(2) : launch);
        up.a = {copy.out};
      } else {
        up.a = {window + params.at.tokens};
        up.gather = {reinterpret_cast<const int32_t*>(window + params.at.order), 1,
                     int64_t{params.ranks} * params.tokens};
      }
      // send_few() writes `ends`.
      of.up.run(up, scratch, few && !of.permutes ? launch_before(2) : early);
      GemmTensors down;
      down.a = up.out, down.b = t.down, down.bias = t.down_bias;
      const kernel::RowSinkParams to_ranks{params, d.top_k, int32_t(d.hidden)};
      const SinkParams sinks[] = {{&to_ranks, sizeof to_ranks}};
      if (ranks->sums())
        down.out.data = rows;
      else
        down.sinks = sinks;
      down.rows = up.rows;
      of.down.run(down, scratch, early);
    }

    kernel::CombineParams sum;
    sum.weights = weights, sum.token_count = t.token_count;
    sum.residual = t.residual.data, sum.ld_residual = t.residual.ld ? t.residual.ld : d.hidden;
    sum.out = t.out.data, sum.ld_out = t.out.ld ? t.out.ld : d.hidden;
    sum.tokens = int32_t(t.tokens), sum.top_k = d.top_k, sum.columns = int32_t(d.hidden);
    if (ranks->sums()) {
      // Without tokens of its own a rank sums those of the others.
      sum.from = rows;
      ranks->combine_sums({sum, params, row_places, steps.halves(2)}, launch_before(3));
      return;
    }
    const bool meets = steps.has(3) && ranks->may_combine_and_meet(t.tokens, d.hidden);
    if (!meets) meet(Meeting::Results, 3);
    if (steps.has(3) && t.tokens > 0)
      ranks->combine({sum, params, row_places, steps.halves(2)}, meets, meets ? launch_before(3) : launch);
  }

  const Device device;
  const ExpertLayerDescription description;
  std::vector<Products> products;  // of the expected tokens, or of every range of them
  std::optional<ops::Ranks> ranks;
};

ExpertLayer::ExpertLayer(const Device& device, const ExpertLayerDescription& description)
    : impl_(std::make_shared<const Impl>(device, description)) {}

void ExpertLayer::run(const ExpertLayerTensors& tensors, WorkspaceView workspace, const LaunchOptions& options,
                      LayerPart part) const {
  ops::check_enum("part", part);
  if (part != LayerPart::All && !impl_->ranks) reject("part is {}, but the description has no ranks", to_string(part));
  constexpr ops::LayerSteps kSteps[] = {{}, {0, 1}, {2, 2, true}, {3, 3, true}};
  impl_->run(tensors, workspace, options, kSteps[size_t(part)]);
}

void ops::run_steps(const ExpertLayer& layer, const ExpertLayerTensors& tensors, WorkspaceView workspace,
                    const LaunchOptions& options, const LayerSteps& steps) {
  layer.impl_->run(tensors, workspace, options, steps);
}

size_t ExpertLayer::window_bytes() const { return impl_->ranks ? size_t(impl_->ranks->params().at.bytes) : 0; }

void ExpertLayer::prepare_window(void* window, Stream stream) const {
  impl_->need_ranks().prepare_window(window, stream);
}

void ExpertLayer::check_ranks(void* window, Stream stream) const { impl_->need_ranks().check(window, stream); }

size_t ExpertLayer::workspace_bytes(std::optional<int64_t> tokens) const {
  return impl_->parts(impl_->checked_tokens(tokens)).bytes;
}

ExpertLayerPlan ExpertLayer::plan(std::optional<int64_t> tokens) const {
  const Impl::Products& of = impl_->products_for(impl_->checked_tokens(tokens));
  return {of.up.plan(), of.down.plan()};
}

const ExpertLayerDescription& ExpertLayer::description() const { return impl_->description; }
const Device& ExpertLayer::device() const { return impl_->device; }

}  // namespace moxie
