// SPDX-License-Identifier: Apache-2.0
// What a call writes may share no byte with what it reads or else writes. Every array of products, conversions and
// steps of routing is put right before every other one, for all groupings and formats. The sizes are computed here from
// the shapes that the headers state.
#include "tests/support/overlaps.h"

#include <filesystem>

#include "moxie/quantize.h"
#include "moxie/routing.h"
#include "moxie/weights.h"
#include "scratch.h"
#include "tests/support/planned.h"

namespace moxie {
namespace {

using test::CallArray;

template <class T>
std::function<void(uintptr_t)> placing(T& pointer) {
  return [&pointer](uintptr_t at) { pointer = reinterpret_cast<T>(at); };
}

// Bytes from the first element of a matrix to its last.
int64_t matrix_bytes(int64_t rows, int64_t width, int64_t ld, int bits) { return ((rows - 1) * ld + width) * bits / 8; }

struct Case {
  OperandFormat format;
  Grouping grouping;
  Activation activation;
  DataType pre, out;
  bool gather = false;
};

void check_product(const Case& c) {
  ProductSpec p;
  p.format = c.format;
  p.grouping = c.grouping;
  p.groups = c.grouping == Grouping::Dense ? 1 : 4;
  p.m = 100, p.n = 64, p.k = 96;
  p.bias = true;
  p.activation = c.activation;
  p.pre = c.pre, p.out = c.out;
  p.gather = c.gather;
  if (c.format == OperandFormat::Bf16) p.tile_m = 128;
  const DeviceFigures device = c.format == OperandFormat::Bf16 ? DeviceFigures{} : DeviceFigures{100, 148, 232448};
  const bool stacked = c.grouping == Grouping::Batched || c.grouping == Grouping::Masked;
  const bool k_groups = c.grouping == Grouping::KGroups;
  const int64_t rows = stacked || k_groups ? p.groups * p.m : p.m;
  const int64_t out_width = is_gated(p.activation) ? p.n / 2 : p.n;
  ProductTensors x;
  if (c.gather) x.gather.count = 70;
  const int64_t a_rows = k_groups ? p.m : c.gather ? x.gather.count : rows;
  x.lda = p.k + 32, x.ldb = p.k + 64, x.ld_pre = p.n + 32, x.ld_out = out_width + 32;
  const test::Planned planned = test::plan_of(device, p);
  x.workspace_bytes = planned.workspace_bytes;

  const int bits = bits_of(p.format);
  std::vector<CallArray> arrays = {
      {"a", matrix_bytes(a_rows, p.k, x.lda, bits), 16, false, placing(x.a)},
      {"b", matrix_bytes(k_groups ? p.n : p.groups * p.n, p.k, x.ldb, bits), 16, false, placing(x.b)},
      {"bias", p.groups * p.n * 2, 16, false, placing(x.bias)},
      {"pre", matrix_bytes(rows, p.n, x.ld_pre, bits_of(c.pre)), 16, true, placing(x.pre)},
      {"out", matrix_bytes(rows, out_width, x.ld_out, bits_of(c.out)), 16, true, placing(x.out)},
  };
  const auto add = [&](bool is_there, const char* name, int64_t bytes, int64_t alignment, bool written, auto& pointer) {
    if (is_there) arrays.push_back({name, bytes, alignment, written, placing(pointer)});
  };
  add(has_scales(c.format), "a.scales", int64_t(test::a_scale_bytes(p)), 16, false, x.sfa);
  add(has_scales(c.format), "b.scales", int64_t(test::b_scale_bytes(p)), 16, false, x.sfb);
  add(is_quantized(c.pre), "pre.scales", int64_t(test::pre_scale_bytes(p)), 16, true, x.pre_scales);
  add(is_quantized(c.out), "out.scales", int64_t(test::out_scale_bytes(p)), 16, true, x.out_scales);
  const bool nvfp4 = c.format == OperandFormat::Nvfp4;
  add(nvfp4, "a.tensor_scale", 4, 4, false, x.a_tensor_scale);
  add(nvfp4, "b.tensor_scale", 4 * p.groups, 4, false, x.b_tensor_scale);
  add(c.pre == DataType::Nvfp4, "pre.tensor_scale", 4, 4, false, x.pre_tensor_scale);
  add(c.out == DataType::Nvfp4, "out.tensor_scale", 4, 4, false, x.out_tensor_scale);
  const char* const sizes = c.grouping == Grouping::Masked      ? "rows.counts"
                            : c.grouping == Grouping::RowGroups ? "rows.group_of_row"
                                                                : "rows.ends";
  add(c.grouping != Grouping::Dense && c.grouping != Grouping::Batched, sizes,
      4 * (c.grouping == Grouping::RowGroups ? p.m : p.groups), 4, false, x.sizes);
  add(c.gather, "gather.rows", 4 * p.m, 4, false, x.gather.rows);
  add(x.workspace_bytes > 0, "workspace", int64_t(x.workspace_bytes), 128, true, x.workspace);

  const GemmDescription description = test::describe(p);
  const plan::ProblemShape shape = test::shape_of(p);
  test::expect_no_overlaps(arrays, [&] {
    ops::check_tensors(shape, description, test::tensors_of(p, x), {x.workspace, x.workspace_bytes},
                       planned.workspace_bytes);
  });
}

TEST(Overlaps, OfProducts) {
  for (const Grouping grouping : {Grouping::Dense, Grouping::Batched, Grouping::Offsets, Grouping::RowGroups,
                                  Grouping::Masked, Grouping::KGroups}) {
    SCOPED_TRACE(to_string(grouping));
    const auto gated = Activation::Swiglu, plain = Activation::Relu;
    if (grouping != Grouping::KGroups)
      check_product({OperandFormat::Bf16, grouping, gated, DataType::Bf16, DataType::F32});
    check_product({OperandFormat::Mxfp4, grouping, gated, DataType::F32, DataType::Mxfp8});
    check_product({OperandFormat::Mxfp4, grouping, plain, DataType::Mxfp4, DataType::Bf16});
    check_product({OperandFormat::Nvfp4, grouping, plain, DataType::Nvfp4, DataType::Nvfp4});
    if (HasFailure()) return;
  }
  check_product({OperandFormat::Bf16, Grouping::Offsets, Activation::Swiglu, DataType::Bf16, DataType::F32, true});
}

// A device on which an accepted call does nothing.
class IdleDevice {
 public:
  IdleDevice() : device_(Device::open(DeviceKind::Sim)) {}
  const Device& get() const { return device_; }

 private:
  const test::ScopedVariable library_{"MOXIE_SIM_LIBRARY",
                                      std::filesystem::absolute(std::filesystem::path(MOXIE_SIM_LIBRARY).parent_path() /
                                                                "../../libmoxie_idle_driver.so")
                                          .string()};
  Device device_;
};

struct Quantized {
  DataType format, type;
  ScaleLayout layout;
  bool offsets;
};
const Quantized kQuantized[] = {
    {DataType::Mxfp4, DataType::Bf16, ScaleLayout::Blocked, true},
    {DataType::Mxfp8, DataType::F32, ScaleLayout::RowMajor, true},
    {DataType::Nvfp4, DataType::Bf16, ScaleLayout::RowMajor, false},
    {DataType::Nvfp4, DataType::F32, ScaleLayout::Blocked, true},
};

// The arrays of quantize() and dequantize(), whose arguments have the same names.
template <class Arguments>
std::vector<CallArray> arrays_of(Arguments& x, const Quantized& q, bool quantizes) {
  x.format = q.format, x.type = q.type, x.layout = q.layout;
  x.groups = 5, x.rows = 70, x.k = 96;
  x.ld_values = x.k + 32, x.ld_elements = x.k + 64;
  const int64_t rows = q.offsets ? x.rows : x.groups * x.rows, block = scale_block(q.format);
  const int64_t row_tiles = q.offsets ? x.rows / 128 + x.groups : x.groups;
  const int64_t scales =
      q.layout == ScaleLayout::RowMajor ? rows * (x.k / block) : blocked_scale_bytes(row_tiles * 128, x.k, block);
  std::vector<CallArray> arrays = {
      {"values", matrix_bytes(rows, x.k, x.ld_values, bits_of(q.type)), 16, !quantizes, placing(x.values)},
      {"elements", matrix_bytes(rows, x.k, x.ld_elements, bits_of(q.format)), 16, quantizes, placing(x.elements)},
      {"scales", scales, q.layout == ScaleLayout::Blocked ? 16 : 1, quantizes, placing(x.scales)},
  };
  if (q.offsets) arrays.push_back({"offsets", 4 * x.groups, 4, false, placing(x.offsets)});
  if (q.format == DataType::Nvfp4) arrays.push_back({"tensor_scale", 4, 4, false, placing(x.tensor_scale)});
  return arrays;
}

TEST(Overlaps, OfQuantizing) {
  const IdleDevice device;
  for (const Quantized& q : kQuantized) {
    SCOPED_TRACE(to_string(q.format));
    Quantization x;
    test::expect_no_overlaps(arrays_of(x, q, true), [&] { quantize(device.get(), x); });
  }
}

TEST(Overlaps, OfDequantizing) {
  const IdleDevice device;
  for (const Quantized& q : kQuantized) {
    SCOPED_TRACE(to_string(q.format));
    Dequantization x;
    test::expect_no_overlaps(arrays_of(x, q, false), [&] { dequantize(device.get(), x); });
  }
}

TEST(Overlaps, OfFindingATensorScale) {
  const IdleDevice device;
  Quantization x;
  std::vector<CallArray> arrays = arrays_of(x, {DataType::Nvfp4, DataType::F32, ScaleLayout::Blocked, true}, true);
  std::erase_if(arrays, [](const CallArray& array) { return array.name != "values" && array.name != "offsets"; });
  float* to = nullptr;
  arrays.push_back({"to", 4, 4, true, placing(to)});
  test::expect_no_overlaps(arrays, [&] { find_tensor_scale(device.get(), x, to); });
}

TEST(Overlaps, OfRouting) {
  const IdleDevice device;
  ExpertRouting x;
  x.tokens = 70, x.experts = 12, x.top_k = 3, x.ld_logits = 13, x.score = RouterScore::Sigmoid;
  const std::vector<CallArray> arrays = {
      {"logits", matrix_bytes(x.tokens, x.experts, x.ld_logits, 32), 4, false, placing(x.logits)},
      {"correction_bias", 4 * x.experts, 4, false, placing(x.correction_bias)},
      {"token_count", 4, 4, false, placing(x.token_count)},
      {"ids", 4 * x.tokens * x.top_k, 4, true, placing(x.ids)},
      {"weights", 4 * x.tokens * x.top_k, 4, true, placing(x.weights)},
  };
  test::expect_no_overlaps(arrays, [&] { route(device.get(), x); });
}

TEST(Overlaps, OfSorting) {
  const IdleDevice device;
  ExpertSort x;
  x.tokens = 3000, x.top_k = 4, x.experts = 9, x.id_type = IdType::Int64;
  const int64_t pairs = x.tokens * x.top_k;
  WorkspaceView workspace{nullptr, sort_workspace_bytes(x.tokens, x.top_k, x.experts)};
  ASSERT_GT(workspace.bytes, 0u);
  const std::vector<CallArray> arrays = {
      {"ids", 8 * pairs, 8, false, placing(x.ids)},
      {"token_count", 4, 4, false, placing(x.token_count)},
      {"ends", 4 * x.experts, 4, true, placing(x.ends)},
      {"order", 4 * pairs, 4, true, placing(x.order)},
      {"inverse", 4 * pairs, 4, true, placing(x.inverse)},
      {"workspace", int64_t(workspace.bytes), 128, true, placing(workspace.data)},
  };
  test::expect_no_overlaps(arrays, [&] { sort_by_expert(device.get(), x, workspace); });
}

TEST(Overlaps, OfPermuting) {
  const IdleDevice device;
  ExpertPermutation x;
  x.tokens = 70, x.top_k = 3, x.width = 40, x.row_count = 150, x.ld_x = 48, x.ld_out = 56;
  const std::vector<CallArray> arrays = {
      {"x", matrix_bytes(x.tokens, x.width, x.ld_x, 16), 16, false, placing(x.x)},
      {"inverse", 4 * x.tokens * x.top_k, 4, false, placing(x.inverse)},
      {"token_count", 4, 4, false, placing(x.token_count)},
      {"out", matrix_bytes(x.row_count, x.width, x.ld_out, 16), 16, true, placing(x.out)},
  };
  test::expect_no_overlaps(arrays, [&] { permute(device.get(), x); });
}

// At an address so low that less than nothing would end at the last ones.
TEST(Overlaps, AMatrixWithoutRowsOverlapsNothing) {
  const IdleDevice device;
  ExpertPermutation x;
  x.tokens = 70, x.top_k = 3, x.width = 40, x.row_count = 0, x.ld_out = 56;
  placing(x.x)(1 << 20), placing(x.inverse)(2 << 20), placing(x.out)(16);
  EXPECT_NO_THROW(permute(device.get(), x));
}

TEST(Overlaps, OfCombining) {
  const IdleDevice device;
  ExpertCombination x;
  x.tokens = 70, x.top_k = 3, x.width = 40, x.row_count = 150, x.ld_rows = 56, x.ld_residual = 44, x.ld_out = 48;
  x.out_type = DataType::F32;
  const std::vector<CallArray> arrays = {
      {"rows", matrix_bytes(x.row_count, x.width, x.ld_rows, 16), 16, false, placing(x.rows)},
      {"inverse", 4 * x.tokens * x.top_k, 4, false, placing(x.inverse)},
      {"weights", 4 * x.tokens * x.top_k, 4, false, placing(x.weights)},
      {"residual", matrix_bytes(x.tokens, x.width, x.ld_residual, 32), 16, false, placing(x.residual)},
      {"token_count", 4, 4, false, placing(x.token_count)},
      {"out", matrix_bytes(x.tokens, x.width, x.ld_out, 32), 16, true, placing(x.out)},
  };
  test::expect_no_overlaps(arrays, [&] { combine(device.get(), x); });
}

// Both ways refuse an overlap of any two.
TEST(Overlaps, OfPackingWeights) {
  const IdleDevice device;
  constexpr int64_t kGroups = 3, kN = 72, kK = 96;
  const auto arrays_of_weights = [](auto& x) {
    x.groups = kGroups, x.n = kN, x.k = kK;
    return std::vector<CallArray>{
        {"codes", kGroups * kN * kK / 2, 16, true, placing(x.codes)},
        {"scales", kGroups * kN * kK / 32, 16, true, placing(x.scales)},
        {"packed", int64_t(packed_weight_bytes(kGroups, kN, kK)), 16, true, placing(x.packed)},
    };
  };
  WeightPacking packing;
  std::vector<CallArray> arrays = arrays_of_weights(packing);
  arrays.push_back({"refused", 8, 8, true, placing(packing.refused)});
  test::expect_no_overlaps(arrays, [&] { pack_weights(device.get(), packing); });
  WeightUnpacking unpacking;
  test::expect_no_overlaps(arrays_of_weights(unpacking), [&] { unpack_weights(device.get(), unpacking); });
}

}  // namespace
}  // namespace moxie
