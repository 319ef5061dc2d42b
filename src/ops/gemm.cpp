// SPDX-License-Identifier: Apache-2.0
// The grouped product: checks, tensor maps, launch.
#include "moxie/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <future>
#include <limits>

#include "device_state.h"
#include "jit/source.h"
#include "moxie/scales.h"
#include "ops/check.h"
#include "ops/gemm.h"
#include "ops/operand_maps.h"
#include "plan/row_estimate.h"

namespace moxie {
namespace ops {

// The kernels of a description: one, or with Offsets whose rows nobody knows one for each range of rows.
struct Variant {
  PlannedKernel kernel;
  PlanInfo info;
  driver::LoadedKernel loaded;  // without one where no call has an element to compute
};

namespace {

using kernel::HopperConfig;

// An operand or output that has no elements may be null; its map is never used, but must be encodable.
const void* encodable(const void* address) { return address ? address : reinterpret_cast<const void*>(uintptr_t{16}); }

// Grouping::Pointers: the map is a template whose address is replaced; any encodable one does.
template <class Config>
kernel::StoreParams store_params(const driver::Context& context, const Config& c, const ProblemShape& p, bool pre,
                                 DataType type, void* base, int64_t ld, void* const* pointers, const int64_t* lds) {
  const int64_t width = value_width(p, pre);
  const bool own = p.grouping == Grouping::Pointers;
  if (ld == 0 || own) ld = width;
  // A float32 template of width 4 (mod 8) is still a multiple of 16 bytes; a bf16 one of width 8 (mod 16) is, too.
  kernel::StoreParams params;
  if (!kernel::stores_directly(c)) {
    params.map = driver::make_tensor_map(context, pre ? "pre" : "out", encodable(own ? nullptr : base),
                                         store_shape(c, p, pre, type, ld, width));
  }
  params.base = base;
  params.ld = ld;
  if (is_stacked(p)) params.group_stride = ld * p.m;
  params.pointers = pointers;
  params.lds = lds;
  return params;
}

// The parameters of an output, plain or quantized.
struct OutputParams {
  kernel::StoreParams plain;
  kernel::QuantizedStoreParams quantized;
};

// The parameters of the sink that stores `pre` or `out`.
template <class Config>
void* output_params(OutputParams& params, const driver::Context& context, const Config& c, const ProblemShape& p,
                    bool pre, const Tensor& tensor, const TensorArray& array) {
  const DataType type = pre ? *p.pre : *p.out;
  if (!is_quantized(type)) {
    params.plain = store_params(context, c, p, pre, type, tensor.data, tensor.ld, array.data, array.ld);
    return &params.plain;
  }
  const int64_t width = value_width(p, pre);
  params.quantized.base = static_cast<uint8_t*>(tensor.data);
  params.quantized.ld = tensor.ld == 0 ? width : tensor.ld;
  params.quantized.scales = static_cast<uint8_t*>(tensor.scales);
  params.quantized.pointers = array.data;
  params.quantized.lds = array.ld;
  params.quantized.scale_pointers = array.scales;
  params.quantized.tensor_scale = p.grouping == Grouping::Pointers ? array.tensor_scale : tensor.tensor_scale;
  if (is_stacked(p) || p.grouping == Grouping::KGroups) {
    params.quantized.group_stride = params.quantized.ld * p.m;
    params.quantized.group_scales = blocked_scale_bytes(p.m, width, scale_block(type));
  }
  return &params.quantized;
}

// What a call brings: the tensors of one of the two kinds. The other kind is empty.
struct Call {
  ProblemShape shape;
  const GemmTensors& tensors;
  const GroupPointers& pointers;
  std::span<const SinkParams> sinks;
  WorkspaceView workspace;
  const LaunchOptions& options;
};

const int32_t* rows_array(const Rows& rows) {
  return rows.ends ? rows.ends : rows.group_of_row ? rows.group_of_row : rows.counts;
}

// Of a subnormal number 1 / x may be infinite, and its product with 0 would be NaN.
float finite_inverse(float x) { return std::min(1 / x, std::numeric_limits<float>::max()); }

constexpr int threads_of(const HopperConfig& c) { return kernel::hopper_threads(c); }
constexpr int threads_of(const kernel::BlackwellConfig&) { return kernel::kBlackwellThreads; }

// scales: null where the operands have none.
template <class Config>
void launch_config(const Device& device, const GemmDescription& d, const Call& call, const Config& c, int panel_columns,
                   int64_t blocks, int shared_bytes, const driver::LoadedKernel& loaded, kernel::ScaleParams* scales) {
  const driver::Context& context = device.state().context();
  const ProblemShape& p = call.shape;
  const GemmTensors& t = call.tensors;
  const GroupPointers& g = call.pointers;
  const int64_t lda = t.a.ld ? t.a.ld : p.k, ldb = t.b.ld ? t.b.ld : p.k;

  kernel::GemmParams params;
  const auto make_a_map = [&](const ProblemShape& rows_of_a, int rows) {
    return driver::make_tensor_map(context, "a", encodable(t.a.data), a_shape(rows_of_a, lda, rows));
  };
  if (!c.gather) params.a = make_a_map(p, kernel::a_box_rows(c));
  if constexpr (std::is_same_v<Config, HopperConfig>) {
    if (kernel::loads_in_parts(c)) params.a_part = make_a_map(p, kernel::kPartRows);
  } else if (c.gather) {
    ProblemShape all = p;
    all.m = t.gather.count;
    params.a = make_a_map(all, 1);
  }
  if (!kernel::has_packed_b(c))
    params.b = driver::make_tensor_map(context, "b", encodable(t.b.data), b_shape(c, p, ldb, kernel::b_box_rows(c)));
  params.groups = int32_t(p.groups);
  params.m = int32_t(p.m);
  params.n = int32_t(p.n);
  params.k = int32_t(p.k);
  params.weights_ready = call.options.weights_ready ? 1 : 0;
  params.panel_columns = panel_columns;
  params.alpha = d.activation.swiglu_oai.alpha;
  params.limit = d.activation.swiglu_oai.limit;
  params.gate_limit = d.activation.swiglu_clamped.gate_limit;
  params.up_limit = d.activation.swiglu_clamped.up_limit;
  params.beta = d.activation.situ.beta;
  params.inverse_beta = finite_inverse(params.beta);
  params.linear_beta = d.activation.situ.linear_beta;
  params.inverse_linear_beta = finite_inverse(params.linear_beta);
  params.sizes = rows_array(t.rows);
  params.bias = p.bias ? t.bias : nullptr;
  params.bias_stride = p.n;
  params.arrays = {g.a.data, g.b.data, g.bias, g.a.ld, g.b.ld, g.sizes};
  params.workspace = static_cast<uint8_t*>(call.workspace.data);
  params.a_base = t.a.data;
  params.b_base = t.b.data;
  params.a_scale_pointers = g.a.scales;
  params.b_scale_pointers = g.b.scales;
  params.gather = {t.gather.rows, uint32_t(t.gather.divisor), uint32_t(t.gather.count), uint32_t(lda * 2)};

  std::array<void*, 4 + kMaxSinks> arguments;
  int count = 0;
  arguments[count++] = &params;
  if (scales) arguments[count++] = scales;
  OutputParams pre, out;
  if (p.pre) arguments[count++] = output_params(pre, context, c, p, true, t.pre, g.pre);
  if (p.out) arguments[count++] = output_params(out, context, c, p, false, t.out, g.out);
  for (const SinkParams& sink : call.sinks) arguments[count++] = const_cast<void*>(sink.data);

  driver::Context::LaunchShape shape;
  shape.grid = unsigned(blocks);
  shape.block = unsigned(threads_of(c));
  shape.shared = unsigned(shared_bytes);
  shape.cluster = unsigned(c.cluster);
  shape.programmatic = call.options.programmatic;
  context.launch(loaded, shape, arguments.data(), call.options.stream);
}

kernel::ScaleParams scale_params(const driver::Context& context, const Call& call, const kernel::BlackwellConfig& c) {
  const ProblemShape& p = call.shape;
  const GemmTensors& t = call.tensors;
  const bool pointers = p.grouping == Grouping::Pointers;
  kernel::ScaleParams scales{};
  scales.a = driver::make_tensor_map(context, "a.scales", encodable(t.a.scales), a_scale_shape(c, p));
  scales.b = driver::make_tensor_map(context, "b.scales", encodable(t.b.scales), b_scale_shape(c, p));
  scales.a_tensor_scale = pointers ? call.pointers.a.tensor_scale : t.a.tensor_scale;
  scales.b_tensor_scale = pointers ? call.pointers.b.tensor_scale : t.b.tensor_scale;
  if (kernel::has_half_group(c)) {
    const int64_t ldb = t.b.ld ? t.b.ld : p.k;
    if (!kernel::has_flat_scales(p.grouping))
      scales.half_group = driver::make_tensor_map(context, "b.scales", encodable(t.b.scales), half_group_shape(p));
    scales.half_group_values = driver::make_tensor_map(context, "b", encodable(t.b.data), b_shape(c, p, ldb, 16));
  }
  return scales;
}

void launch(const Device& device, const DeviceFigures& figures, const GemmDescription& d, const Call& call,
            const Variant& variant) {
  const int64_t blocks = launch_blocks(variant.kernel, figures, call.shape);
  variant.kernel.visit([&](const auto& plan) {
    const auto& c = plan.config;
    kernel::ScaleParams scales;
    kernel::ScaleParams* scales_given = nullptr;
    if constexpr (!std::is_same_v<std::decay_t<decltype(c)>, HopperConfig>) {
      if (kernel::has_scales(c)) {
        scales = scale_params(device.state().context(), call, c);
        scales_given = &scales;
      }
    }
    launch_config(device, d, call, c, plan.panel_columns, blocks, variant.kernel.shared_bytes, variant.loaded,
                  scales_given);
  });
}

}  // namespace
}  // namespace ops

using ops::ProblemShape;

struct GroupedGemm::Impl {
  Impl(const Device& of, GemmDescription described)
      : device(of),
        description(std::move(described)),
        figures(figures_of(device.info())),
        calls_bring_total(std::holds_alternative<Offsets>(description.groups) ||
                          std::holds_alternative<RowGroups>(description.groups)),
        groups(ops::shape_of(description, 0).groups) {
    ops::check_description(description);
    if (const auto* offsets = std::get_if<Offsets>(&description.groups)) default_total = offsets->total;
    for (const int64_t total : ops::planned_totals(description)) {
      ops::Variant variant{ops::plan_kernel(figures, description, total), {}, {}};
      const plan::Shape shape = ops::plan_shape(description, total);
      variant.info = variant.kernel.visit([&](const auto& plan) { return plan::info_of(shape, plan); });
      variants.push_back(std::move(variant));
    }
    load();
  }

  // Kernels that differ are compiled at the same time.
  void load() {
    if (ops::is_empty(ops::shape_of(description, 1))) return;
    const auto load_one = [this](ops::Variant& variant) {
      const jit::Request request = ops::kernel_request(variant.kernel, description);
      variant.loaded =
          device.state().get_kernel(ops::request_key(request), request, jit::kKernelName, variant.kernel.shared_bytes);
    };
    std::vector<std::future<void>> others;
    for (size_t i = 1; i < variants.size(); ++i)
      others.push_back(std::async(std::launch::async, load_one, std::ref(variants[i])));
    load_one(variants.front());
    for (std::future<void>& other : others) other.get();
  }

  const ops::Variant& variant_for(std::optional<int64_t> rows) const {
    if (variants.size() == 1) return variants.front();
    return variants[size_t(plan::planned_range(rows.value_or(groups * int64_t(plan::kTypicalRows)), groups))];
  }

  // The description's sizes with those that the call brings.
  ProblemShape shape_of(std::optional<int64_t> rows) const {
    const Grouping grouping = grouping_of(description.groups);
    if (calls_bring_total) {
      if (!rows) rows = default_total;
      if (!rows)
        throw Error(ErrorCode::InvalidArgument,
                    fmt::format("rows.total is absent, but calls with {} groups must say it", to_string(grouping)));
    } else if (rows && grouping != Grouping::KGroups) {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("rows.total is given, but {} groups do not take it", to_string(grouping)));
    }
    ProblemShape shape = ops::shape_of(description, rows.value_or(0));
    if (rows && grouping == Grouping::KGroups) shape.k = *rows;
    if (rows) ops::check_sizes(shape);
    return shape;
  }

  template <class Tensors>
  void run(const ProblemShape& shape, const Tensors& given, const GemmTensors& tensors, const GroupPointers& pointers,
           WorkspaceView workspace, const LaunchOptions& options) const {
    const ops::Variant& variant = variant_for(shape.m);
    ops::check_tensors(shape, description, given, workspace, ops::workspace_bytes(variant.kernel, figures, shape));
    if (ops::is_empty(shape)) return;
    ops::launch(device, figures, description, {shape, tensors, pointers, given.sinks, workspace, options}, variant);
  }

  const Device device;
  const GemmDescription description;
  const DeviceFigures figures;
  const bool calls_bring_total;
  const int64_t groups;
  std::optional<int64_t> default_total;  // of calls that do not say theirs
  std::vector<ops::Variant> variants;
};

GroupedGemm::GroupedGemm(const Device& device, GemmDescription description)
    : impl_(std::make_shared<const Impl>(device, std::move(description))) {}

void GroupedGemm::run(const GemmTensors& tensors, WorkspaceView workspace, const LaunchOptions& options) const {
  static constexpr GroupPointers kNone;
  if (std::holds_alternative<Pointers>(impl_->description.groups))
    throw Error(ErrorCode::InvalidArgument, "tensors are given, but pointers groups take a GroupPointers");
  impl_->run(impl_->shape_of(tensors.rows.total), tensors, tensors, kNone, workspace, options);
}

void GroupedGemm::run(const GroupPointers& pointers, WorkspaceView workspace, const LaunchOptions& options) const {
  static const GemmTensors kNone;
  if (!std::holds_alternative<Pointers>(impl_->description.groups))
    throw Error(ErrorCode::InvalidArgument, fmt::format("a GroupPointers is given, but {} groups take a GemmTensors",
                                                        to_string(grouping_of(impl_->description.groups))));
  impl_->run(impl_->shape_of({}), pointers, kNone, pointers, workspace, options);
}

size_t GroupedGemm::workspace_bytes(std::optional<int64_t> total) const {
  if (!impl_->calls_bring_total) total.reset();
  const ProblemShape shape = impl_->shape_of(total);
  // A call with fewer rows may take the kernel of a lower range.
  size_t most = 0;
  const ops::Variant* const last = &impl_->variant_for(shape.m);
  for (const ops::Variant* v = impl_->variants.data(); v <= last; ++v)
    most = std::max(most, ops::workspace_bytes(v->kernel, impl_->figures, shape));
  return most;
}

int64_t GroupedGemm::row_alignment() const { return impl_->variants.front().kernel.row_alignment; }

const PlanInfo& GroupedGemm::plan(std::optional<int64_t> total) const {
  if (!impl_->calls_bring_total) total.reset();
  if (total) impl_->shape_of(total);  // which refuses what no call may bring
  return impl_->variant_for(total).info;
}

const GemmDescription& GroupedGemm::description() const { return impl_->description; }
const Device& GroupedGemm::device() const { return impl_->device; }

}  // namespace moxie
