// SPDX-License-Identifier: Apache-2.0
// See benchmark_case.h.
#include "bench/timing/benchmark_case.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "bench/timing/data.h"
#include "moxie/error.h"
#include "moxie/scales.h"
#include "moxie/weights.h"
#include "reference/formats.h"

namespace moxie::timing {

namespace {

std::vector<int32_t> ends_from(const std::vector<int64_t>& counts) {
  std::vector<int32_t> ends;
  for (int64_t count : counts) ends.push_back(static_cast<int32_t>((ends.empty() ? 0 : ends.back()) + count));
  return ends;
}

std::vector<int64_t> equal_rows(int64_t groups, int64_t total, int turn) {
  const int64_t rows = total / groups, extra = total % groups;
  std::vector<int64_t> counts(static_cast<size_t>(groups), rows);
  for (int64_t i = 0; i < extra; ++i) ++counts[static_cast<size_t>((i * groups / extra + turn * extra) % groups)];
  return counts;
}

std::vector<int64_t> skewed_rows(int64_t groups, int64_t total, int turn) {
  const auto count = static_cast<size_t>(groups);
  std::vector<double> bounds = {0};
  for (size_t r = 1; r <= count; ++r) bounds.push_back(bounds.back() + 1 / std::sqrt(static_cast<double>(r)));
  const auto rows_up_to = [&](size_t r) {
    return std::llround(bounds[r] / bounds.back() * static_cast<double>(total));
  };
  std::vector<int64_t> counts(count);
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<uint32_t>(turn)));
  for (size_t r = 0; r < count; ++r) counts[order[r]] = rows_up_to(r + 1) - rows_up_to(r);
  return counts;
}

std::vector<int64_t> scattered_rows(int64_t groups, int64_t total, int turn) {
  std::mt19937_64 random(static_cast<uint64_t>(turn));
  std::vector<int64_t> counts(static_cast<size_t>(groups));
  for (int64_t row = 0; row < total; ++row) ++counts[random() % static_cast<uint64_t>(groups)];
  return counts;
}

constexpr int64_t kBlock = 1 << 22;

// Fills buffers of a device with random values. A block of values repeats, since making all weights of a large model
// would take the host seconds.
struct Filler {
  const Device& device;
  const GpuClock* clock;

  template <class T>
  Buffer repeated(const std::vector<T>& block, int64_t count) const {
    Buffer buffer(device, static_cast<size_t>(count) * sizeof(T));
    const int64_t uploaded = clock == nullptr ? count : std::min(count, kBlock);
    for (int64_t at = 0; at < uploaded; at += kBlock)
      device.upload(buffer.as<T>() + at, block.data(), static_cast<size_t>(std::min(count - at, kBlock)) * sizeof(T));
    for (int64_t at = uploaded; at < count; at += kBlock)
      clock->copy(buffer.as<T>() + at, buffer.as<T>(), static_cast<size_t>(std::min(count - at, kBlock)) * sizeof(T),
                  nullptr);
    device.synchronize(nullptr);
    return buffer;
  }

  Buffer random(uint64_t seed, int64_t count, float scale) const {
    return repeated(random_bf16(seed, std::min(count, kBlock), scale), count);
  }

  // Makes elements of A or B: bf16, or pairs of four bits.
  Buffer elements(OperandFormat format, uint64_t seed, int64_t count, float scale) const {
    if (!has_scales(format)) return random(seed, count, scale);
    return repeated(random_bytes(seed, std::min(count / 2, kBlock)), count / 2);
  }

  // Makes scales that are neither zero nor NaN: 2^-4 to 2^-1 in E8M0, 0.06 to 0.23 in E4M3.
  Buffer scales(OperandFormat format, uint64_t seed, size_t bytes) const {
    const auto count = static_cast<int64_t>(bytes);
    std::vector<uint8_t> block = random_bytes(seed, std::min(count, kBlock));
    for (uint8_t& scale : block)
      scale = format == OperandFormat::Nvfp4 ? static_cast<uint8_t>(0x18 + scale % 16)
                                             : static_cast<uint8_t>(123 + scale % 4);
    return repeated(block, count);
  }

  // Makes packed weights of all groups.
  Buffer packed(const GemmDescription& d, uint64_t seed) const {
    WeightPacking packing{{timed_groups(d).count, d.n, d.k, is_gated(d.activation.function), d.gate}};
    const int64_t count = packing.groups * d.n * d.k;
    const Buffer codes = elements(OperandFormat::Mxfp4, seed, count, 1);
    const Buffer scales_of_codes = scales(OperandFormat::Mxfp4, seed + 1, static_cast<size_t>(count / kScaleBlock));
    Buffer to(device, packed_weight_bytes(packing));
    packing.codes = codes.as(), packing.scales = scales_of_codes.as(), packing.packed = to.as();
    pack_weights(device, packing);
    device.synchronize(nullptr);
    return to;
  }
};

// Pairs of a row of A and a choice, in random groups, within a group in order.
std::vector<int32_t> gathered_pairs(const std::vector<int32_t>& ends, int turn) {
  std::vector<int32_t> pairs(static_cast<size_t>(ends.back()));
  std::iota(pairs.begin(), pairs.end(), 0);
  std::shuffle(pairs.begin(), pairs.end(), std::mt19937(static_cast<uint32_t>(turn)));
  int32_t begin = 0;
  for (const int32_t end : ends) {
    std::sort(pairs.begin() + begin, pairs.begin() + end);
    begin = end;
  }
  return pairs;
}

int64_t out_columns(const GemmDescription& d) { return is_gated(d.activation.function) ? d.n / 2 : d.n; }

}  // namespace

Offsets timed_groups(const GemmDescription& d) {
  const auto* offsets = std::get_if<Offsets>(&d.groups);
  if (offsets == nullptr || !offsets->total)
    throw Error(ErrorCode::InvalidArgument, "only groups given by offsets are timed");
  return *offsets;
}

int64_t rows_of(const GemmDescription& d) { return *timed_groups(d).total; }

int64_t rows_of_a(const GemmDescription& d) {
  return d.gather ? (rows_of(d) + kGatherTop - 1) / kGatherTop : rows_of(d);
}

double flops_of(const GemmDescription& d) {
  return 2.0 * static_cast<double>(rows_of(d)) * static_cast<double>(d.n) * static_cast<double>(d.k);
}

double compulsory_bytes(const GemmDescription& d) {
  const auto columns =
      static_cast<double>((d.pre ? d.n * size_of(*d.pre) : 0) + (d.out ? out_columns(d) * size_of(*d.out) : 0));
  const auto n = static_cast<double>(d.n), k = static_cast<double>(d.k), m = static_cast<double>(rows_of(d));
  const auto element = [](OperandFormat format) { return has_scales(format) ? 0.5 + 1.0 / scale_block(format) : 2; };
  const double of_b = element(d.b_format.value_or(d.format)) * k + (d.bias ? 2 : 0);
  return static_cast<double>(std::min(timed_groups(d).count, rows_of(d))) * n * of_b +
         static_cast<double>(rows_of_a(d)) * element(d.format) * k + m * columns;
}

std::vector<uint16_t> download_packed(const Device& device, const GemmDescription& d, const uint8_t* packed,
                                      int64_t first, int64_t rows) {
  const int64_t blocks = d.k / kScaleBlock;
  const Buffer codes(device, static_cast<size_t>(d.n * d.k / 2)), scales(device, static_cast<size_t>(d.n * blocks));
  unpack_weights(device, {{1, d.n, d.k, is_gated(d.activation.function), d.gate}, packed, codes.as(), scales.as()});
  device.synchronize();
  std::vector<uint8_t> pairs(static_cast<size_t>(rows * d.k / 2)), of_rows(static_cast<size_t>(rows * blocks));
  device.download(pairs.data(), codes.as<uint8_t>() + first * d.k / 2, pairs.size());
  device.download(of_rows.data(), scales.as<uint8_t>() + first * blocks, of_rows.size());
  std::vector<float> row(static_cast<size_t>(d.k));
  std::vector<uint16_t> values;
  for (int64_t r = 0; r < rows; ++r) {
    reference::dequantize_row(DataType::Mxfp4, pairs.data() + r * d.k / 2, of_rows.data() + r * blocks, d.k, 1,
                              row.data());
    for (const float value : row) values.push_back(reference::float_to_bf16(value));
  }
  return values;
}

std::vector<int64_t> rows_of_groups(Popularity popularity, int64_t groups, int64_t total, int turn) {
  if (popularity == Popularity::Scattered) return scattered_rows(groups, total, turn);
  return (popularity == Popularity::Skewed ? skewed_rows : equal_rows)(groups, total, turn);
}

BenchmarkCase::BenchmarkCase(const GroupedGemm& product, Popularity popularity, const GpuClock* clock) : gemm(product) {
  const GemmDescription& d = gemm.description();
  const Device& device = gemm.device();
  const int64_t groups = timed_groups(d).count, rows = rows_of(d), b_count = groups * d.n * d.k;
  if ((d.out && is_quantized(*d.out)) || (d.pre && is_quantized(*d.pre)))
    throw Error(ErrorCode::InvalidArgument, "--out-dtype: only products with bf16 and f32 outputs are timed");
  const uint64_t l2 = device.info().l2_bytes;
  const auto turns =
      device.info().simulated
          ? 1
          : std::clamp<uint64_t>(4 * l2 / static_cast<uint64_t>(compulsory_bytes(d) + 1) + 1, 2, 12) / 2 * 2;
  const auto copies = std::clamp<uint64_t>(
      4 * l2 / static_cast<uint64_t>(b_count * bits_of(d.b_format.value_or(d.format)) / 8 + 1) + 1, 1, turns);
  const Filler fill{device, clock};
  for (uint64_t i = 0; i < turns; ++i) {
    a.push_back(fill.elements(d.format, 10 * i + 1, rows_of_a(d) * d.k, 1.0f));
    if (i < copies)
      b.push_back(d.b_format ? fill.packed(d, 10 * i + 2) : fill.elements(d.format, 10 * i + 2, b_count, 0.1f));
    const auto results = [&](const std::optional<DataType>& type, int64_t columns) {
      return Buffer(device, type ? static_cast<size_t>(rows * columns * size_of(*type)) : 0);
    };
    pre.push_back(results(d.pre, d.n));
    out.push_back(results(d.out, out_columns(d)));
    const Popularity of_turn = popularity != Popularity::Mixed ? popularity
                               : i % 2 == 1                    ? Popularity::Skewed
                                                               : Popularity::Equal;
    const std::vector<int32_t> ends_of_turn = ends_from(rows_of_groups(of_turn, groups, rows, static_cast<int>(i)));
    ends.emplace_back(device, ends_of_turn);
    if (d.gather) {
      const std::vector<int32_t> pairs = gathered_pairs(ends_of_turn, static_cast<int>(i));
      if (i == 0) first_gather_ = pairs;
      gathers_.emplace_back(device, pairs);
    }
    workspaces_.emplace_back(device, gemm.workspace_bytes());
  }
  bias = fill.random(3, d.bias ? groups * d.n : 0, 1.0f);
  if (has_scales(d.format)) {
    a_scales = fill.scales(d.format, 4, a_scale_bytes(d));
    b_scales = fill.scales(d.format, 5, b_scale_bytes(d));
  }
}

void BenchmarkCase::launch(int turn, Stream stream) const {
  launch(gemm, workspaces_[static_cast<size_t>(turn) % a.size()], turn, stream);
}

void BenchmarkCase::launch(const GroupedGemm& variant, const Workspace& workspace, int turn, Stream stream,
                           bool programmatic) const {
  const GemmDescription& d = gemm.description();
  const size_t i = static_cast<size_t>(turn) % a.size();
  GemmTensors tensors;
  tensors.a.data = a[i].as();
  tensors.b.data = b[i % b.size()].as();
  tensors.a.scales = a_scales.as();
  tensors.b.scales = b_scales.as();
  if (d.bias) tensors.bias = bias.as();
  if (d.pre) tensors.pre.data = pre[i].as();
  if (d.out) tensors.out.data = out[i].as();
  tensors.rows.ends = ends[i].as<int32_t>();
  if (d.gather) tensors.gather = {gathers_[i].as<int32_t>(), kGatherTop, rows_of_a(d)};
  variant.run(tensors, workspace,
              {.stream = stream, .programmatic = programmatic, .weights_ready = true});  // no launch writes the weights
}

}  // namespace moxie::timing
