// The grouped product: checks, plan, kernel, tensor maps, launch.
#include "ops/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>

#include "device_state.h"
#include "jit/source.h"
#include "ops/check.h"

namespace moxie {
namespace ops {
namespace {

using driver::TensorMapShape;
using kernel::HopperConfig;

// Bytes that tell problems apart.
class Key {
 public:
  template <typename T>
  void add(const T& value) {
    static_assert(std::has_unique_object_representations_v<T>);
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  template <typename T>
  void add(const std::optional<T>& value) {
    add(value.has_value());
    if (value) add(*value);
  }
  template <typename T>
  void add(const std::vector<T>& values) {
    add(values.size());
    text_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  void add(const std::string& text) {
    add(text.size());
    text_ += text;
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string problem_key(const plan::DeviceFigures& d, const GemmProblem& p) {
  Key key;
  key.add(d.arch), key.add(d.sm_count), key.add(d.shared_bytes);
  key.add(p.grouping), key.add(p.groups), key.add(p.m), key.add(p.n), key.add(p.k);
  key.add(p.bias), key.add(p.activation), key.add(p.gate), key.add(p.pre), key.add(p.out);
  key.add(p.host_rows), key.add(p.expected_rows), key.add(p.schedule), key.add(p.tile_m), key.add(p.tile_n);
  key.add(p.cluster), key.add(p.multicast);
  key.add(p.sinks.size());
  for (const CustomSink& sink : p.sinks) {
    key.add(sink.type), key.add(sink.source), key.add(sink.params.size());
    key.add(sink.needs.staging_bytes), key.add(sink.needs.tensor_map);
  }
  return key.take();
}

std::string kernel_key(const HopperConfig& c, const GemmProblem& p) {
  Key key;
  key.add(c.schedule), key.add(c.grouping), key.add(c.block_m), key.add(c.block_n), key.add(c.block_k),
      key.add(c.stages);
  key.add(c.cluster), key.add(c.multicast), key.add(c.activation), key.add(c.gate), key.add(c.bias),
      key.add(c.store_buffers);
  key.add(p.pre), key.add(p.out);
  for (const CustomSink& sink : p.sinks) key.add(sink.type), key.add(sink.source);
  return key.take();
}

std::shared_ptr<const PreparedGemm> make_prepared(const plan::DeviceFigures& device, const GemmProblem& p) {
  check_problem(p);
  if (device.arch != 90)
    throw Error(ErrorCode::Unsupported,
                fmt::format("the device is of architecture sm_{}, but gemm needs sm_90a", device.arch));
  auto prepared = std::make_shared<PreparedGemm>();
  prepared->plan = plan::make_hopper_plan(shape_of(p), device);
  prepared->plan.candidates = {};
  const HopperConfig& c = prepared->plan.config;
  if (p.pre) prepared->needs.push_back(kernel::store_needs(c, true, *p.pre));
  if (p.out) prepared->needs.push_back(kernel::store_needs(c, false, *p.out));
  for (const CustomSink& sink : p.sinks) prepared->needs.push_back(sink.needs);
  prepared->shared_bytes = kernel::shared_bytes(c, prepared->needs.data(), int(prepared->needs.size()));
  prepared->blocks = device.sm_count / c.cluster * c.cluster;
  const auto mapped =
      std::count_if(prepared->needs.begin(), prepared->needs.end(), [](const auto& n) { return n.tensor_map; });
  prepared->workspace_bytes =
      size_t(prepared->blocks) * kernel::workspace_maps(c, int(mapped)) * sizeof(kernel::TensorMap);
  prepared->kernel_key = kernel_key(c, p);
  return prepared;
}

driver::LoadedKernel get_kernel(const Device& device, const GemmProblem& p, const PreparedGemm& prepared) {
  return device.state().get_kernel(
      prepared.kernel_key, [&] { return kernel_request(prepared.plan.config, p); }, jit::kKernelName,
      prepared.shared_bytes);
}

// An operand or output that has no elements may be null; its map is never used, but must be encodable.
const void* encodable(const void* address) { return address ? address : reinterpret_cast<const void*>(uintptr_t{16}); }

struct Dimension {
  int64_t size;
  int64_t stride;  // bytes; of the innermost dimension not used
  int box;
};

TensorMapShape map_shape(DataType type, int swizzle, std::initializer_list<Dimension> dimensions) {
  TensorMapShape shape;
  shape.type = type == DataType::Bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  shape.swizzle_bytes = swizzle;
  shape.rank = 0;
  for (const Dimension& d : dimensions) {
    shape.dims[shape.rank] = uint64_t(std::max<int64_t>(d.size, 1));
    shape.box[shape.rank] = uint32_t(d.box);
    if (shape.rank > 0) shape.strides[shape.rank - 1] = uint64_t(std::max<int64_t>(d.stride, 16));
    ++shape.rank;
  }
  return shape;
}

// The shapes follow "Tensor maps" in moxie/params.h.
TensorMapShape a_shape(const HopperConfig& c, const GemmProblem& p, int64_t lda) {
  const Dimension k = {p.k, 0, c.block_k}, m = {p.m, 2 * lda, kernel::a_box_rows(c)};
  if (p.grouping != Grouping::Batched && p.grouping != Grouping::Masked) return map_shape(DataType::Bf16, 128, {k, m});
  return map_shape(DataType::Bf16, 128, {k, m, {p.groups, 2 * lda * p.m, 1}});
}

TensorMapShape b_shape(const HopperConfig& c, const GemmProblem& p, int64_t ldb) {
  const Dimension k = {p.k, 0, c.block_k};
  const Dimension group = {p.groups, 2 * ldb * p.n, 1};
  const bool grouped = p.grouping != Grouping::Dense && p.grouping != Grouping::Pointers;
  const int rows = kernel::b_box_rows(c);
  if (!is_gated(c.activation)) {
    const Dimension n = {p.n, 2 * ldb, rows};
    return grouped ? map_shape(DataType::Bf16, 128, {k, n, group}) : map_shape(DataType::Bf16, 128, {k, n});
  }
  const bool split = kernel::gate_is_split(c);
  const Dimension eight = {8, split ? 2 * ldb : 4 * ldb, 8};
  const Dimension halves = {2, split ? ldb * p.n : 2 * ldb, 2};
  const Dimension blocks = {p.n / 16, split ? 16 * ldb : 32 * ldb, rows / 16};
  return grouped ? map_shape(DataType::Bf16, 128, {k, eight, halves, blocks, group})
                 : map_shape(DataType::Bf16, 128, {k, eight, halves, blocks});
}

TensorMapShape store_shape(const HopperConfig& c, const GemmProblem& p, bool pre, DataType type, int64_t ld,
                           int64_t width) {
  const kernel::StoreBox box = kernel::store_box(c, pre, type);
  const int64_t s = size_of(type);
  const Dimension columns = {width / box.halves, 0, box.columns}, rows = {p.m, s * ld, box.rows};
  const Dimension halves = {2, s * width / 2, 2}, group = {p.groups, s * ld * p.m, 1};
  const bool batched = p.grouping == Grouping::Batched;
  if (box.halves == 2) {
    return batched ? map_shape(type, box.swizzle, {columns, rows, halves, group})
                   : map_shape(type, box.swizzle, {columns, rows, halves});
  }
  return batched ? map_shape(type, box.swizzle, {columns, rows, group}) : map_shape(type, box.swizzle, {columns, rows});
}

// Grouping::Pointers: the map is a template whose address is replaced; any encodable one does.
kernel::StoreParams store_params(const driver::Context& context, const HopperConfig& c, const GemmProblem& p, bool pre,
                                 DataType type, void* base, int64_t ld, void* const* pointers, const int64_t* lds) {
  const int64_t width = !pre && is_gated(p.activation) ? p.n / 2 : p.n;
  const bool own = p.grouping == Grouping::Pointers;
  if (ld == 0 || own) ld = width;
  // A float32 template of width 4 (mod 8) is still a multiple of 16 bytes; a bf16 one of width 8 (mod 16) is, too.
  kernel::StoreParams params;
  params.map = driver::make_tensor_map(context, pre ? "pre" : "out", encodable(own ? nullptr : base),
                                       store_shape(c, p, pre, type, ld, width));
  params.base = base;
  params.ld = ld;
  params.group_stride = ld * p.m;
  params.pointers = pointers;
  params.lds = lds;
  return params;
}

void launch(const Device& device, const GemmProblem& p, const GemmArguments& a, const PreparedGemm& prepared) {
  const driver::Context& context = device.state().context();
  const HopperConfig& c = prepared.plan.config;
  const bool own = p.grouping == Grouping::Pointers;
  const int64_t lda = a.lda && !own ? a.lda : p.k, ldb = a.ldb && !own ? a.ldb : p.k;

  kernel::GemmParams params;
  params.a = driver::make_tensor_map(context, "a", encodable(own ? nullptr : a.a), a_shape(c, p, lda));
  params.b = driver::make_tensor_map(context, "b", encodable(own ? nullptr : a.b), b_shape(c, p, ldb));
  params.groups = int32_t(p.groups);
  params.m = int32_t(p.m);
  params.n = int32_t(p.n);
  params.k = int32_t(p.k);
  params.raster_panel = prepared.plan.raster_panel;
  params.alpha = a.alpha;
  params.limit = a.limit;
  params.sizes = a.sizes;
  params.bias = p.bias ? a.bias : nullptr;
  params.bias_stride = p.n;
  params.arrays = a.arrays;
  params.workspace = static_cast<uint8_t*>(a.workspace);

  std::array<void*, 3 + kMaxSinks> arguments;
  int count = 0;
  arguments[count++] = &params;
  kernel::StoreParams pre, out;
  if (p.pre) {
    pre = store_params(context, c, p, true, *p.pre, a.pre, a.ld_pre, a.pre_pointers, a.pre_lds);
    arguments[count++] = &pre;
  }
  if (p.out) {
    out = store_params(context, c, p, false, *p.out, a.out, a.ld_out, a.out_pointers, a.out_lds);
    arguments[count++] = &out;
  }
  for (const CustomSink& sink : p.sinks) arguments[count++] = const_cast<uint8_t*>(sink.params.data());

  driver::Context::LaunchShape shape;
  const int64_t tiles = std::clamp<int64_t>(prepared.plan.tiles, 1, prepared.blocks);
  shape.grid = unsigned((tiles + c.cluster - 1) / c.cluster * c.cluster);
  shape.block = kernel::kThreads;
  shape.shared = unsigned(prepared.shared_bytes);
  shape.cluster = unsigned(c.cluster);
  shape.programmatic = a.programmatic_launch;
  context.launch(get_kernel(device, p, prepared), shape, arguments.data(), a.stream);
}

}  // namespace

plan::DeviceFigures figures_of(const DeviceInfo& info) { return {info.arch, info.sm_count, info.shared_bytes}; }

plan::Shape shape_of(const GemmProblem& p) {
  plan::Shape s;
  s.grouping = p.grouping;
  s.groups = p.groups, s.m = p.m, s.n = p.n, s.k = p.k;
  s.host_rows = p.host_rows;
  s.expected_rows = p.expected_rows;
  s.bias = p.bias;
  s.activation = p.activation;
  s.gate = p.gate;
  s.pre = p.pre, s.out = p.out;
  for (const CustomSink& sink : p.sinks) s.custom_sinks.push_back(sink.needs);
  s.schedule = p.schedule;
  s.tile_m = p.tile_m, s.tile_n = p.tile_n, s.cluster = p.cluster;
  s.multicast = p.multicast;
  return s;
}

std::shared_ptr<const PreparedGemm> prepare_gemm(const plan::DeviceFigures& device, const GemmProblem& problem) {
  static std::mutex mutex;
  static std::unordered_map<std::string, std::shared_ptr<const PreparedGemm>> known;
  constexpr size_t kMost = 4096;  // host_rows may differ at every call
  std::string key = problem_key(device, problem);
  {
    std::lock_guard lock(mutex);
    if (const auto found = known.find(key); found != known.end()) return found->second;
  }
  auto prepared = make_prepared(device, problem);
  std::lock_guard lock(mutex);
  if (known.size() >= kMost) known.clear();
  return known.try_emplace(std::move(key), std::move(prepared)).first->second;
}

// A custom sink's header is known to the translation unit by its place in the list, the same text once.
jit::Request kernel_request(const HopperConfig& config, const GemmProblem& p) {
  jit::Request request;
  std::vector<jit::SinkSource> sinks;
  if (p.pre) sinks.push_back({jit::store_sink_type(true, *p.pre), ""});
  if (p.out) sinks.push_back({jit::store_sink_type(false, *p.out), ""});
  for (const CustomSink& sink : p.sinks) {
    const auto same = std::find_if(request.headers.begin(), request.headers.end(),
                                   [&](const auto& header) { return header.second == sink.source; });
    const std::string name =
        same != request.headers.end() ? same->first : fmt::format("custom_sink_{}.cuh", request.headers.size());
    request.headers.emplace(name, sink.source);
    sinks.push_back({sink.type, name});
  }
  request.source = jit::hopper_source(config, sinks);
  return request;
}

}  // namespace ops

size_t workspace_bytes(const Device& device, const GemmProblem& problem) {
  return ops::prepare_gemm(ops::figures_of(device.info()), problem)->workspace_bytes;
}

int64_t row_alignment(const Device& device, const GemmProblem& problem) {
  const auto prepared = ops::prepare_gemm(ops::figures_of(device.info()), problem);
  return problem.grouping == Grouping::RowGroups ? kernel::cluster_rows(prepared->plan.config) : 1;
}

void prepare(const Device& device, const GemmProblem& problem) {
  ops::get_kernel(device, problem, *ops::prepare_gemm(ops::figures_of(device.info()), problem));
}

void gemm(const Device& device, const GemmProblem& problem, const GemmArguments& arguments) {
  const auto prepared = ops::prepare_gemm(ops::figures_of(device.info()), problem);
  ops::check_arguments(problem, arguments, prepared->workspace_bytes);
  if (!ops::is_empty(problem)) ops::launch(device, problem, arguments, *prepared);
}

std::string explain_plan(const GemmProblem& problem, int arch, int sm_count) {
  ops::check_problem(problem);
  if (arch != 90) throw Error(ErrorCode::Unsupported, fmt::format("arch is {}, but plans exist for 90 (sm_90a)", arch));
  if (sm_count < 1)
    throw Error(ErrorCode::InvalidArgument, fmt::format("sm_count is {}, but must be at least 1", sm_count));
  plan::DeviceFigures device;
  device.sm_count = sm_count;
  const plan::Shape shape = ops::shape_of(problem);
  return plan::explain(shape, device, plan::make_hopper_plan(shape, device));
}

}  // namespace moxie
