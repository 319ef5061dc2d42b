// The grouped product: checks, plan, kernel, tensor maps, launch.
#include "ops/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "device_state.h"
#include "jit/source.h"
#include "moxie/scales.h"
#include "ops/check.h"

namespace moxie {
namespace ops {
namespace {

using driver::TensorMapShape;
using kernel::BlackwellConfig;
using kernel::HopperConfig;

// Bytes that tell problems apart. Those without sinks and host_rows have room in it, as they come with every call.
class Key {
 public:
  template <typename T>
  void add(const T& value) {
    static_assert(std::has_unique_object_representations_v<T>);
    append(&value, sizeof(value));
  }
  template <typename T>
  void add(const std::optional<T>& value) {
    add(value.has_value());
    if (value) add(*value);
  }
  template <typename T>
  void add(const std::vector<T>& values) {
    add(values.size());
    append(values.data(), values.size() * sizeof(T));
  }
  void add(const std::string& text) {
    add(text.size());
    append(text.data(), text.size());
  }
  std::string_view view() const { return long_.empty() ? std::string_view(short_, size_) : long_; }
  std::string text() const { return std::string(view()); }

 private:
  void append(const void* bytes, size_t count) {
    if (long_.empty() && size_ + count <= sizeof(short_)) {
      if (count > 0) std::memcpy(short_ + size_, bytes, count);
      size_ += count;
      return;
    }
    if (long_.empty()) long_.assign(short_, size_);
    long_.append(static_cast<const char*>(bytes), count);
  }

  char short_[256];
  size_t size_ = 0;
  std::string long_;  // all of it, when it is longer
};
struct TextHash : std::hash<std::string_view> {
  using is_transparent = void;
};

Key problem_key(const plan::DeviceFigures& d, const GemmProblem& p) {
  Key key;
  key.add(d.arch), key.add(d.sm_count), key.add(d.shared_bytes);
  key.add(p.grouping), key.add(p.groups), key.add(p.m), key.add(p.n), key.add(p.k), key.add(p.format);
  key.add(p.bias), key.add(p.activation), key.add(p.gate), key.add(p.pre), key.add(p.out);
  key.add(p.host_rows), key.add(p.expected_rows), key.add(p.schedule), key.add(p.tile_m), key.add(p.tile_n);
  key.add(p.cluster), key.add(p.multicast), key.add(p.scheduling), key.add(p.swap_ab);
  key.add(p.sinks.size());
  for (const CustomSink& sink : p.sinks) {
    key.add(sink.type), key.add(sink.source), key.add(sink.params.size());
    key.add(sink.needs.staging_bytes), key.add(sink.needs.tensor_map), key.add(sink.needs.narrow);
  }
  return key;
}

void add_outputs(Key& key, const GemmProblem& p) {
  key.add(p.pre), key.add(p.out);
  for (const CustomSink& sink : p.sinks) key.add(sink.type), key.add(sink.source);
}

std::string kernel_key(const HopperConfig& c, const GemmProblem& p) {
  Key key;
  key.add(c.schedule), key.add(c.grouping), key.add(c.block_m), key.add(c.block_n), key.add(c.block_k),
      key.add(c.stages);
  key.add(c.cluster), key.add(c.multicast), key.add(c.activation), key.add(c.gate), key.add(c.bias),
      key.add(c.quantized), key.add(c.store_buffers), key.add(c.epilogue_n), key.add(c.decode_tile);
  add_outputs(key, p);
  return key.text();
}

std::string kernel_key(const BlackwellConfig& c, const GemmProblem& p) {
  Key key;
  key.add(std::string("blackwell")), key.add(c.format), key.add(c.grouping), key.add(c.swap_ab), key.add(c.block_n);
  key.add(c.stages), key.add(c.cluster), key.add(c.accumulators), key.add(c.scheduling), key.add(c.activation);
  key.add(c.gate), key.add(c.bias), key.add(c.quantized), key.add(c.store_buffers);
  add_outputs(key, p);
  return key.text();
}

// Unsupported when a device of this architecture has no kernel for the problem.
void check_device(int arch, const GemmProblem& p) {
  const auto reject = [](const std::string& sentence) { throw Error(ErrorCode::Unsupported, sentence); };
  const bool scaled = has_scales(p.format);
  if (arch != 90 && arch != 100)
    reject(fmt::format("the device is of architecture sm_{}, but gemm needs sm_90a or sm_100a", arch));
  if (scaled && arch != 100)
    reject(fmt::format("the device is of architecture sm_{}a, but gemm of {} operands needs sm_100a", arch,
                       format_name(p.format)));
  if (arch == 90 && p.grouping == Grouping::KGroups)
    reject("grouping is KGroups, which gemm has on sm_100a only, but the device is of architecture sm_90a");
  if (scaled && is_gated(p.activation) && p.gate != GateLayout::Interleaved && p.n % 64 != 0)
    reject(fmt::format("n is {}, but gemm of {} operands with a split gate needs a multiple of 64", p.n,
                       format_name(p.format)));
}

// Of a launch, a multiple of the cluster: as many as the device holds, with launch control all there are.
template <class Plan>
int most_blocks(const Plan& plan, const plan::DeviceFigures& device) {
  const int cluster = plan.config.cluster;
  if constexpr (std::is_same_v<Plan, plan::BlackwellPlan>) {
    if (plan.config.scheduling == TileSource::LaunchControl)
      return int(std::max<int64_t>(plan.tiles, 1) + cluster - 1) / cluster * cluster;
  }
  return device.sm_count / cluster * cluster;
}

template <class Plan>
void fill_in(PreparedGemm& prepared, const Plan& plan, const plan::DeviceFigures& device, const GemmProblem& p) {
  const auto& c = plan.config;
  if (p.pre) prepared.needs.push_back(kernel::store_needs(c, true, *p.pre));
  if (p.out) prepared.needs.push_back(kernel::store_needs(c, false, *p.out));
  for (const CustomSink& sink : p.sinks) prepared.needs.push_back(sink.needs);
  prepared.shared_bytes = kernel::shared_bytes(c, prepared.needs.data(), int(prepared.needs.size()));
  prepared.blocks = most_blocks(plan, device);
  const auto mapped =
      std::count_if(prepared.needs.begin(), prepared.needs.end(), [](const auto& n) { return n.tensor_map; });
  prepared.workspace_bytes =
      size_t(prepared.blocks) * size_t(kernel::workspace_maps(c, int(mapped))) * sizeof(kernel::TensorMap);
  prepared.row_alignment = p.grouping == Grouping::RowGroups ? kernel::cluster_tile_rows(c) : 1;
  prepared.kernel_key = kernel_key(c, p);
}

std::shared_ptr<const PreparedGemm> make_prepared(const plan::DeviceFigures& device, const GemmProblem& p) {
  check_problem(p);
  check_device(device.arch, p);
  auto prepared = std::make_shared<PreparedGemm>();
  if (device.arch == 100) {
    prepared->blackwell = plan::make_blackwell_plan(shape_of(p), device);
    prepared->blackwell->candidates = {};
    fill_in(*prepared, *prepared->blackwell, device, p);
  } else {
    prepared->plan = plan::make_hopper_plan(shape_of(p), device);
    prepared->plan.candidates = {};
    fill_in(*prepared, prepared->plan, device, p);
  }
  return prepared;
}

driver::LoadedKernel get_kernel(const Device& device, const GemmProblem& p, const PreparedGemm& prepared) {
  const auto request = [&] {
    return prepared.blackwell ? kernel_request(prepared.blackwell->config, p) : kernel_request(prepared.plan.config, p);
  };
  return device.state().get_kernel(prepared.kernel_key, request, jit::kKernelName, prepared.shared_bytes);
}

// An operand or output that has no elements may be null; its map is never used, but must be encodable.
const void* encodable(const void* address) { return address ? address : reinterpret_cast<const void*>(uintptr_t{16}); }

struct Dimension {
  int64_t size;
  int64_t stride;  // bytes; of the innermost dimension not used
  int box;
};

void add(TensorMapShape& shape, const Dimension& d) {
  shape.dims[shape.rank] = uint64_t(std::max<int64_t>(d.size, 1));
  shape.box[shape.rank] = uint32_t(d.box);
  if (shape.rank > 0) shape.strides[shape.rank - 1] = uint64_t(std::max<int64_t>(d.stride, 16));
  ++shape.rank;
}

TensorMapShape map_shape(CUtensorMapDataType type, int swizzle, std::initializer_list<Dimension> dimensions) {
  TensorMapShape shape;
  shape.type = type;
  shape.swizzle_bytes = swizzle;
  shape.rank = 0;
  for (const Dimension& d : dimensions) add(shape, d);
  return shape;
}

CUtensorMapDataType map_type(DataType type) {
  return type == DataType::Bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
}

// How the rows of A and B lie: `k` elements of the map's type in 128-byte pieces, and the bytes from row to row.
struct OperandRows {
  CUtensorMapDataType type;
  int64_t k;
  int box;
  int64_t stride;
};
OperandRows rows_of(const GemmProblem& p, int64_t ld) {
  if (has_scales(p.format)) return {CU_TENSOR_MAP_DATA_TYPE_UINT8, p.k / 2, 128, ld / 2};
  return {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, p.k, 64, 2 * ld};
}

bool is_stacked(const GemmProblem& p) { return p.grouping == Grouping::Batched || p.grouping == Grouping::Masked; }

// The shapes follow docs/tensor_maps.md.
TensorMapShape a_shape(const GemmProblem& p, int64_t lda, int rows) {
  const OperandRows row = rows_of(p, lda);
  TensorMapShape shape = map_shape(row.type, 128, {{row.k, 0, row.box}, {p.m, row.stride, rows}});
  if (is_stacked(p)) add(shape, {p.groups, row.stride * p.m, 1});
  return shape;
}

template <class Config>
TensorMapShape b_shape(const Config& c, const GemmProblem& p, int64_t ldb, int rows) {
  const OperandRows row = rows_of(p, ldb);
  TensorMapShape shape = map_shape(row.type, 128, {{row.k, 0, row.box}});
  if (!is_gated(c.activation) || kernel::gate_halves(c) == 2) {
    add(shape, {p.n, row.stride, rows});
  } else {
    const bool split = kernel::gate_is_split(c);
    add(shape, {8, split ? row.stride : 2 * row.stride, 8});
    add(shape, {2, split ? row.stride * (p.n / 2) : row.stride, 2});
    add(shape, {p.n / 16, split ? 8 * row.stride : 16 * row.stride, rows / 16});
  }
  if (!kernel::has_one_b(p.grouping)) add(shape, {p.groups, row.stride * p.n, 1});
  return shape;
}

int64_t scale_tiles(int64_t rows) { return (rows + kScaleTileRows - 1) / kScaleTileRows; }
// Rows of tiles of A's scales, of each group where they are stacked.
int64_t a_scale_tiles(const GemmProblem& p) {
  return p.grouping == Grouping::Offsets ? p.m / kScaleTileRows + p.groups : scale_tiles(p.m);
}
int64_t scale_k_tiles(const GemmProblem& p) { return (p.k + scale_tile_k(p.format) - 1) / scale_tile_k(p.format); }
// Those of a stage.
int stage_scale_tiles(const GemmProblem& p) {
  BlackwellConfig c;
  c.format = p.format;
  return kernel::stage_scale_tiles(c);
}

// Tiles in a row: those of all groups, or of a group that the kernel describes.
TensorMapShape flat_scale_shape(const GemmProblem& p, size_t bytes) {
  const int64_t tiles = p.grouping == Grouping::Pointers ? 1 : int64_t(bytes) / kScaleTileBytes;
  return map_shape(CU_TENSOR_MAP_DATA_TYPE_UINT32, 0,
                   {{4, 0, 4}, {32, 16, 32}, {tiles, kScaleTileBytes, stage_scale_tiles(p)}});
}

TensorMapShape a_scale_shape(const BlackwellConfig& c, const GemmProblem& p) {
  if (kernel::has_flat_scales(p.grouping)) return flat_scale_shape(p, a_scale_bytes(p));
  const int64_t k_tiles = scale_k_tiles(p), row = k_tiles * kScaleTileBytes;
  TensorMapShape shape = c.swap_ab ? map_shape(CU_TENSOR_MAP_DATA_TYPE_UINT32, 0,
                                               {{4, 0, 4},
                                                {32, 16, 32},
                                                {k_tiles, kScaleTileBytes, stage_scale_tiles(p)},
                                                {a_scale_tiles(p), row, kernel::a_scale_tiles(c)}})
                                   : map_shape(CU_TENSOR_MAP_DATA_TYPE_UINT32, 0,
                                               {{kScaleTileBytes / 4, 0, kScaleTileBytes / 4},
                                                {k_tiles, kScaleTileBytes, stage_scale_tiles(p)},
                                                {a_scale_tiles(p), row, 1}});
  if (is_stacked(p)) add(shape, {p.groups, row * a_scale_tiles(p), 1});
  return shape;
}

TensorMapShape b_scale_shape(const BlackwellConfig& c, const GemmProblem& p) {
  const int64_t k_tiles = scale_k_tiles(p), n_tiles = scale_tiles(p.n), row = k_tiles * kScaleTileBytes;
  if (is_gated(p.activation) && kernel::gate_halves(c) == 1) {
    const int64_t tiles =
        p.grouping == Grouping::KGroups ? int64_t(b_scale_bytes(p)) / kScaleTileBytes : k_tiles * n_tiles * p.groups;
    return map_shape(CU_TENSOR_MAP_DATA_TYPE_UINT32, 0,
                     {{4, 0, 4}, {8, 32, 8}, {2, 16, 2}, {2, 256, 2}, {tiles, kScaleTileBytes, stage_scale_tiles(p)}});
  }
  if (kernel::has_flat_scales(p.grouping)) return flat_scale_shape(p, b_scale_bytes(p));
  return map_shape(CU_TENSOR_MAP_DATA_TYPE_UINT32, 0,
                   {{kScaleTileBytes / 4, 0, kScaleTileBytes / 4},
                    {k_tiles, kScaleTileBytes, stage_scale_tiles(p)},
                    {n_tiles, row, std::max(kernel::b_scale_tiles(c), 1)},
                    {p.groups, row * n_tiles, 1}});
}

TensorMapShape half_group_shape(const GemmProblem& p) {
  const int64_t k_tiles = scale_k_tiles(p), n_tiles = scale_tiles(p.n), row = k_tiles * kScaleTileBytes;
  return map_shape(CU_TENSOR_MAP_DATA_TYPE_UINT32, 0,
                   {{4, 0, 4},
                    {32, 16, 32},
                    {k_tiles, kScaleTileBytes, stage_scale_tiles(p)},
                    {n_tiles, row, 1},
                    {p.groups, row * n_tiles, 1}});
}

template <class Config>
TensorMapShape store_shape(const Config& c, const GemmProblem& p, bool pre, DataType type, int64_t ld, int64_t width) {
  const kernel::StoreBox box = kernel::store_box(c, pre, type);
  const int64_t s = size_of(type);
  const Dimension columns = {width / box.halves, 0, box.columns}, rows = {p.m, s * ld, box.rows};
  const Dimension halves = {2, s * width / 2, 2}, group = {p.groups, s * ld * p.m, 1};
  const bool batched = kernel::outputs_are_stacked(p.grouping);
  if (box.halves == 2) {
    return batched ? map_shape(map_type(type), box.swizzle, {columns, rows, halves, group})
                   : map_shape(map_type(type), box.swizzle, {columns, rows, halves});
  }
  return batched ? map_shape(map_type(type), box.swizzle, {columns, rows, group})
                 : map_shape(map_type(type), box.swizzle, {columns, rows});
}

// Grouping::Pointers: the map is a template whose address is replaced; any encodable one does.
template <class Config>
kernel::StoreParams store_params(const driver::Context& context, const Config& c, const GemmProblem& p, bool pre,
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

// Of a plain output or a quantised one.
struct OutputParams {
  kernel::StoreParams plain;
  kernel::QuantizedStoreParams quantized;
};

template <class Config>
void* output_params(OutputParams& params, const driver::Context& context, const Config& c, const GemmProblem& p,
                    const GemmArguments& a, bool pre) {
  const DataType type = pre ? *p.pre : *p.out;
  void* const base = pre ? a.pre : a.out;
  const int64_t ld = pre ? a.ld_pre : a.ld_out;
  if (!is_quantized(type)) {
    params.plain = store_params(context, c, p, pre, type, base, ld, pre ? a.pre_pointers : a.out_pointers,
                                pre ? a.pre_lds : a.out_lds);
    return &params.plain;
  }
  const int64_t width = value_width(p, pre);
  params.quantized.base = static_cast<uint8_t*>(base);
  params.quantized.ld = ld == 0 ? width : ld;
  params.quantized.scales = static_cast<uint8_t*>(pre ? a.pre_scales : a.out_scales);
  params.quantized.pointers = pre ? a.pre_pointers : a.out_pointers;
  params.quantized.lds = pre ? a.pre_lds : a.out_lds;
  params.quantized.scale_pointers = pre ? a.pre_scale_pointers : a.out_scale_pointers;
  params.quantized.tensor_scale = pre ? a.pre_tensor_scale : a.out_tensor_scale;
  if (is_stacked(p) || p.grouping == Grouping::KGroups) {
    params.quantized.group_stride = params.quantized.ld * p.m;
    params.quantized.group_scales = blocked_scale_bytes(p.m, width, scale_block(type));
  }
  return &params.quantized;
}

// Plan: of Hopper or Blackwell. scales: null where the operands have none.
template <class Plan>
void launch_plan(const Device& device, const GemmProblem& p, const GemmArguments& a, const PreparedGemm& prepared,
                 const Plan& plan, int threads, kernel::ScaleParams* scales) {
  const driver::Context& context = device.state().context();
  const auto& c = plan.config;
  const bool own = p.grouping == Grouping::Pointers;
  const int64_t lda = a.lda && !own ? a.lda : p.k, ldb = a.ldb && !own ? a.ldb : p.k;

  kernel::GemmParams params;
  const auto make_a_map = [&](int rows) {
    return driver::make_tensor_map(context, "a", encodable(own ? nullptr : a.a), a_shape(p, lda, rows));
  };
  params.a = make_a_map(kernel::a_box_rows(c));
  if constexpr (std::is_same_v<Plan, plan::Plan>) {
    if (kernel::loads_in_parts(c)) params.a_part = make_a_map(kernel::kPartRows);
  }
  params.b =
      driver::make_tensor_map(context, "b", encodable(own ? nullptr : a.b), b_shape(c, p, ldb, kernel::b_box_rows(c)));
  params.groups = int32_t(p.groups);
  params.m = int32_t(p.m);
  params.n = int32_t(p.n);
  params.k = int32_t(p.k);
  params.weights_ready = a.weights_ready ? 1 : 0;
  params.panel_columns = plan.panel_columns;
  params.alpha = a.alpha;
  params.limit = a.limit;
  params.sizes = a.sizes;
  params.bias = p.bias ? a.bias : nullptr;
  params.bias_stride = p.n;
  params.arrays = a.arrays;
  params.workspace = static_cast<uint8_t*>(a.workspace);
  params.a_base = a.a;
  params.b_base = a.b;
  params.a_scale_pointers = a.sfa_pointers;
  params.b_scale_pointers = a.sfb_pointers;

  std::array<void*, 4 + kMaxSinks> arguments;
  int count = 0;
  arguments[count++] = &params;
  if (scales) arguments[count++] = scales;
  OutputParams pre, out;
  if (p.pre) arguments[count++] = output_params(pre, context, c, p, a, true);
  if (p.out) arguments[count++] = output_params(out, context, c, p, a, false);
  for (const CustomSink& sink : p.sinks) arguments[count++] = const_cast<uint8_t*>(sink.params.data());

  driver::Context::LaunchShape shape;
  const int64_t tiles = std::clamp<int64_t>(plan.tiles, 1, prepared.blocks);
  shape.grid = unsigned((tiles + c.cluster - 1) / c.cluster * c.cluster);
  shape.block = unsigned(threads);
  shape.shared = unsigned(prepared.shared_bytes);
  shape.cluster = unsigned(c.cluster);
  shape.programmatic = a.programmatic_launch;
  context.launch(get_kernel(device, p, prepared), shape, arguments.data(), a.stream);
}

void launch(const Device& device, const GemmProblem& p, const GemmArguments& a, const PreparedGemm& prepared) {
  if (!prepared.blackwell) {
    launch_plan(device, p, a, prepared, prepared.plan, kernel::kHopperThreads, nullptr);
    return;
  }
  if (!kernel::has_scales(prepared.blackwell->config)) {
    launch_plan(device, p, a, prepared, *prepared.blackwell, kernel::kBlackwellThreads, nullptr);
    return;
  }
  const driver::Context& context = device.state().context();
  kernel::ScaleParams scales{};
  scales.a = driver::make_tensor_map(context, "sfa", encodable(a.sfa), a_scale_shape(prepared.blackwell->config, p));
  scales.b = driver::make_tensor_map(context, "sfb", encodable(a.sfb), b_scale_shape(prepared.blackwell->config, p));
  scales.a_tensor_scale = a.a_tensor_scale;
  scales.b_tensor_scale = a.b_tensor_scale;
  if (kernel::has_half_group(prepared.blackwell->config)) {
    const int64_t ldb = a.ldb ? a.ldb : p.k;
    if (!kernel::has_flat_scales(p.grouping))
      scales.half_group = driver::make_tensor_map(context, "sfb", encodable(a.sfb), half_group_shape(p));
    scales.half_group_values =
        driver::make_tensor_map(context, "b", encodable(a.b), b_shape(prepared.blackwell->config, p, ldb, 16));
  }
  launch_plan(device, p, a, prepared, *prepared.blackwell, kernel::kBlackwellThreads, &scales);
}

}  // namespace

plan::DeviceFigures figures_of(const DeviceInfo& info) { return {info.arch, info.sm_count, info.shared_bytes}; }

plan::Shape shape_of(const GemmProblem& p) {
  plan::Shape s;
  s.grouping = p.grouping;
  s.groups = p.groups, s.m = p.m, s.n = p.n, s.k = p.k;
  s.format = p.format;
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
  s.scheduling = p.scheduling;
  s.swap_ab = p.swap_ab;
  return s;
}

std::shared_ptr<const PreparedGemm> prepare_gemm(const plan::DeviceFigures& device, const GemmProblem& problem) {
  static std::mutex mutex;
  static std::unordered_map<std::string, std::shared_ptr<const PreparedGemm>, TextHash, std::equal_to<>> known;
  constexpr size_t kMost = 4096;  // host_rows may differ at every call
  const Key key = problem_key(device, problem);
  {
    std::lock_guard lock(mutex);
    if (const auto found = known.find(key.view()); found != known.end()) return found->second;
  }
  auto prepared = make_prepared(device, problem);
  std::lock_guard lock(mutex);
  if (known.size() >= kMost) known.clear();
  return known.try_emplace(key.text(), std::move(prepared)).first->second;
}

namespace {

// The problem's sinks; a custom one's header goes into the request, known to the translation unit by its place in the
// list, the same text once.
std::vector<jit::SinkSource> sink_sources(const GemmProblem& p, jit::Request& request) {
  std::vector<jit::SinkSource> sinks;
  if (p.pre) sinks.push_back(jit::store_sink(true, *p.pre));
  if (p.out) sinks.push_back(jit::store_sink(false, *p.out));
  for (const CustomSink& sink : p.sinks) {
    const auto same = std::find_if(request.headers.begin(), request.headers.end(),
                                   [&](const auto& header) { return header.second == sink.source; });
    const std::string name =
        same != request.headers.end() ? same->first : fmt::format("custom_sink_{}.cuh", request.headers.size());
    request.headers.emplace(name, sink.source);
    sinks.push_back({sink.type, name});
  }
  return sinks;
}

}  // namespace

jit::Request kernel_request(const HopperConfig& config, const GemmProblem& p) {
  jit::Request request;
  request.source = jit::hopper_source(config, sink_sources(p, request));
  return request;
}

jit::Request kernel_request(const BlackwellConfig& config, const GemmProblem& p) {
  jit::Request request;
  request.arch = 100;
  request.source = jit::blackwell_source(config, sink_sources(p, request));
  return request;
}

}  // namespace ops

size_t workspace_bytes(const Device& device, const GemmProblem& problem) {
  return ops::prepare_gemm(ops::figures_of(device.info()), problem)->workspace_bytes;
}

int64_t row_alignment(const Device& device, const GemmProblem& problem) {
  return ops::prepare_gemm(ops::figures_of(device.info()), problem)->row_alignment;
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
  if (arch != 90 && arch != 100)
    throw Error(ErrorCode::Unsupported,
                fmt::format("arch is {}, but plans exist for 90 (sm_90a) and 100 (sm_100a)", arch));
  ops::check_device(arch, problem);
  if (sm_count < 1)
    throw Error(ErrorCode::InvalidArgument, fmt::format("sm_count is {}, but must be at least 1", sm_count));
  plan::DeviceFigures device;
  device.arch = arch;
  device.sm_count = sm_count;
  const plan::Shape shape = ops::shape_of(problem);
  if (arch == 100) return plan::explain(shape, device, plan::make_blackwell_plan(shape, device));
  return plan::explain(shape, device, plan::make_hopper_plan(shape, device));
}

}  // namespace moxie
