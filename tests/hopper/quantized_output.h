// SPDX-License-Identifier: Apache-2.0
// Products whose outputs leave quantised: they must hold, byte for byte, what the CPU makes of the same product's
// float32 output, with the scales in the blocked layout, and leave alone what is not theirs. And a second product that
// reads them as they are.
#pragma once
#include "reference/comparison.h"
#include "reference/formats.h"
#include "reference/product.h"
#include "tests/hopper/layer.h"

namespace moxie::test {

// How rows lie in groups.
struct GroupedRows {
  Grouping grouping = Grouping::Dense;
  std::vector<int64_t> rows;   // of each group
  int64_t m = 0, total = 0;    // ProductSpec::m; rows in memory
  std::vector<int64_t> first;  // row in memory where each group begins
  std::vector<int32_t> sizes;  // ProductTensors::sizes
  std::vector<bool> exists;    // of the rows in memory

  GroupedRows(Grouping how, std::vector<int64_t> of_groups) : grouping(how), rows(std::move(of_groups)) {
    constexpr int64_t kSpare = 3, kAlignment = 512;  // of any plan
    const int64_t most = *std::max_element(rows.begin(), rows.end());
    const bool stacked = how == Grouping::Batched || how == Grouping::Masked;
    if (stacked) m = most + (how == Grouping::Masked ? kSpare : 0);
    for (size_t g = 0; g < rows.size(); ++g) {
      if (stacked) total = int64_t(g) * m;
      first.push_back(total);
      total += stacked ? m : rows[g];
      if (how == Grouping::RowGroups) {
        total = (total + kAlignment - 1) / kAlignment * kAlignment;
        if (g + 1 == rows.size()) total = first[g] + rows[g] + kSpare;
        sizes.insert(sizes.end(), size_t(rows[g]), int32_t(g));
        sizes.insert(sizes.end(), size_t(total) - sizes.size(), -1);
      } else if (how == Grouping::Offsets) {
        sizes.push_back(int32_t(total));
      } else if (how == Grouping::Masked) {
        sizes.push_back(int32_t(rows[g]));
      }
    }
    if (how == Grouping::Offsets) total += kSpare;
    if (!stacked) m = total;
    exists.assign(size_t(total), false);
    for (size_t g = 0; g < rows.size(); ++g) std::fill_n(exists.begin() + first[g], rows[g], true);
  }
  // Of row r of group g in blocked scales of `k` columns, which have a matrix a group or one for all.
  int64_t scale_index(size_t g, int64_t r, int64_t column, int64_t k, int64_t block = kScaleBlock) const {
    if (grouping == Grouping::Dense || grouping == Grouping::RowGroups)
      return blocked_scale_index(first[g] + r, column, k, block);
    int64_t before = 0;
    for (size_t i = 0; i < g; ++i) before += blocked_scale_bytes(grouping == Grouping::Offsets ? rows[i] : m, k, block);
    return before + blocked_scale_index(r, column, k, block);
  }
  int64_t groups_of_scales() const {
    return grouping == Grouping::Dense || grouping == Grouping::RowGroups ? 1 : int64_t(rows.size());
  }
};

// Rows of an operand on the device, and the values that the tensor cores see.
struct Operand {
  std::vector<float> values;  // [rows][k]
  int64_t k = 0;
  Buffer elements, scales;  // no scales: bf16

  // spread: exponents over which blocks differ.
  Operand(OperandFormat format, int64_t groups, int64_t rows, int64_t width, const int32_t* offsets, uint64_t seed,
          int spread, float scale)
      : k(width) {
    const int64_t all = offsets ? rows : groups * rows;
    values.resize(size_t(all * k));
    for (size_t i = 0; i < values.size(); ++i) {
      const float factor = std::ldexp(scale, int(mix(seed * 31 + i / 32) % uint64_t(spread + 1)) - spread);
      values[i] = reference::bf16_to_float(random_bf16(seed, i, factor));
    }
    if (format == OperandFormat::Bf16) {
      std::vector<uint16_t> stored;
      for (const float x : values) stored.push_back(reference::float_to_bf16(x));
      elements = Buffer(stored);
      return;
    }
    const Buffer from(values);
    Quantization x;
    x.type = DataType::F32;
    x.groups = groups, x.rows = rows, x.k = k, x.offsets = offsets;
    elements = Buffer(std::vector<uint8_t>(values.size() / 2, 0xff));
    scales = Buffer(std::vector<uint8_t>(scale_bytes(x), 0xff));
    x.values = from.get(), x.elements = elements.get(), x.scales = scales.get();
    quantize(device(), x);
    device().synchronize();
    std::vector<uint8_t> row_elements(size_t(k / 2)), row_scales(size_t(k / 32));
    for (int64_t r = 0; r < all; ++r) {
      float* const row = values.data() + r * k;
      reference::quantize_row(DataType::Mxfp4, row, k, 1, row_elements.data(), row_scales.data());
      reference::dequantize_row(DataType::Mxfp4, row_elements.data(), row_scales.data(), k, 1, row);
    }
  }
};

struct OutputJob {
  ProductSpec problem;  // format, activation, gate, bias and choices
  Grouping grouping = Grouping::Dense;
  std::vector<int64_t> rows = {100};
  int64_t n = 128, k = 64;
  DataType type = DataType::Mxfp4;
  bool pre = false;         // the value that is quantised
  int64_t padding = 32;     // of the output's rows
  float tensor_scale = 0;   // NVFP4; 0: none is given
  bool stores_pre = false;  // as float32, beside `out`
  bool weights_ready = false;
  uint64_t seed = 1;
};

constexpr uint8_t kOutputPoison = 0xee;

// A product and its outputs.
class QuantizedProduct {
 public:
  explicit QuantizedProduct(OutputJob job)
      : job_(std::move(job)),
        rows_(job_.grouping, job_.rows),
        sizes_(rows_.sizes),
        a_(job_.problem.format, rows_.groups_of_scales(), stacked() ? rows_.m : rows_.total, job_.k,
           job_.grouping == Grouping::Offsets ? sizes_.get<int32_t>() : nullptr, job_.seed, 3, 4),
        b_(job_.problem.format, int64_t(job_.rows.size()), job_.n, job_.k, nullptr, job_.seed + 1, 2, 0.5f) {
    for (size_t i = 0; i < job_.rows.size() * size_t(job_.n); ++i) bias_.push_back(random_bf16(job_.seed + 2, i, 2));
    bias_buffer_ = Buffer(bias_);
    width_ = !job_.pre && is_gated(job_.problem.activation) ? job_.n / 2 : job_.n;
    ld_ = width_ + job_.padding;
    // What the quantised output is made of, from the same kernel but for its sink.
    const DataType type = job_.type;
    const std::vector<uint8_t> bytes = run(DataType::F32);
    plain_.resize(bytes.size() / 4);
    std::memcpy(plain_.data(), bytes.data(), bytes.size());
    plain_pre_ = pre_.download();
    job_.type = type;
    expect();
  }

  const GroupedRows& rows() const { return rows_; }
  const int32_t* sizes() const { return sizes_.get<int32_t>(); }
  int64_t width() const { return width_; }
  int64_t ld() const { return ld_; }
  const Buffer& elements() const { return output_; }
  const Buffer& scales() const { return scales_; }
  const std::vector<uint8_t>& wanted_elements() const { return wanted_; }
  // The values that the quantised output stands for: [rows in memory][width].
  const std::vector<float>& values() const { return values_; }

  // The launch with the quantised output, or with another type in its place.
  void prepare() { prepare(job_.type); }
  const ProductSpec& problem() const { return problem_; }
  ProductTensors& arguments() { return arguments_; }

  std::vector<uint8_t> run(DataType type) {
    prepare(type);
    for (const Buffer* buffer : {&output_, &scales_, &pre_}) buffer->fill(kOutputPoison);
    gemm(device(), problem_, arguments_);
    device().synchronize();
    return output_.download();
  }

  // Runs, and compares all bytes.
  void check() {
    const std::vector<uint8_t> got = run(job_.type), got_scales = scales_.download();
    int64_t different = 0;
    for (size_t i = 0; i < got.size(); ++i) different += rule_[i] && got[i] != wanted_[i];
    EXPECT_EQ(different, 0) << "bytes of elements, of " << got.size();
    const std::vector<uint8_t> got_pre = pre_.download();
    for (int64_t r = 0; job_.stores_pre && r < rows_.total; ++r) {
      const auto first = r * job_.n * 4, last = first + job_.n * 4;
      if (!rows_.exists[size_t(r)]) continue;
      ASSERT_TRUE(std::equal(got_pre.begin() + first, got_pre.begin() + last, plain_pre_.begin() + first))
          << "row " << r << " of pre";
    }
    ASSERT_EQ(got_scales.size(), wanted_scales_.size());
    int64_t wrong_scales = 0;
    for (size_t i = 0; i < got_scales.size(); ++i) wrong_scales += scale_rule_[i] && got_scales[i] != wanted_scales_[i];
    EXPECT_EQ(wrong_scales, 0) << "scales, of " << got_scales.size();
  }

  // The float32 output itself, in double precision.
  void check_plain() const {
    reference::Bound bound = reference::kF32Bound;
    bound.ulps = 1, bound.row = 1e-4;  // activations are approximate
    reference::Comparison comparison(bound);
    for (size_t g = 0; g < job_.rows.size(); ++g) {
      std::vector<double> pre;
      for (int64_t i = 0; i < job_.rows[g]; ++i) {
        for (int64_t j = 0; j < job_.n; ++j) {
          double sum = job_.problem.bias ? reference::bf16_to_float(bias_[g * size_t(job_.n) + size_t(j)]) : 0.0;
          const float* const a = a_.values.data() + (rows_.first[g] + i) * job_.k;
          const float* const b = b_.values.data() + (int64_t(g) * job_.n + j) * job_.k;
          for (int64_t k = 0; k < job_.k; ++k) sum += double(a[k]) * b[k];
          pre.push_back(sum);
        }
      }
      if (job_.stores_pre) {
        comparison.add(pre, reinterpret_cast<const float*>(plain_pre_.data()) + rows_.first[g] * job_.n, DataType::F32,
                       job_.rows[g], job_.n, job_.n, rows_.first[g]);
      }
      if (!job_.pre)
        pre = reference::activate_all(job_.problem.activation, job_.problem.gate, pre, job_.rows[g], job_.n);
      comparison.add(pre, plain_.data() + rows_.first[g] * ld_, DataType::F32, job_.rows[g], width_, ld_,
                     rows_.first[g]);
    }
    EXPECT_EQ(comparison.failure(), "");
  }

 private:
  bool stacked() const { return job_.grouping == Grouping::Batched || job_.grouping == Grouping::Masked; }

  ProductSpec problem_of(DataType type) const {
    ProductSpec p = job_.problem;
    p.grouping = job_.grouping;
    p.groups = int64_t(job_.rows.size());
    p.m = rows_.m, p.n = job_.n, p.k = job_.k;
    p.pre.reset(), p.out.reset();
    if (job_.stores_pre) p.pre = DataType::F32;
    (job_.pre ? p.pre : p.out) = type;
    return p;
  }

  void prepare(DataType type) {
    if (prepared_ == type) return;
    prepared_ = type;
    const ProductSpec p = problem_ = problem_of(type);
    ProductTensors& x = arguments_ = {};
    x.a = a_.elements.get(), x.b = b_.elements.get();
    x.sfa = a_.scales.get(), x.sfb = b_.scales.get();
    x.bias = p.bias ? bias_buffer_.get() : nullptr;
    if (!rows_.sizes.empty()) x.sizes = sizes();
    output_ = Buffer(size_t(rows_.total * ld_ * bits_of(type) / 8));
    (job_.pre ? x.pre : x.out) = output_.get();
    (job_.pre ? x.ld_pre : x.ld_out) = ld_;
    scales_ = Buffer(job_.pre ? pre_scale_bytes(p) : out_scale_bytes(p));
    (job_.pre ? x.pre_scales : x.out_scales) = scales_.get();
    if (type == DataType::Nvfp4 && job_.tensor_scale != 0) {
      tensor_scale_ = Buffer(std::vector<float>{job_.tensor_scale});
      (job_.pre ? x.pre_tensor_scale : x.out_tensor_scale) = tensor_scale_.get<float>();
    }
    if (job_.stores_pre) {
      pre_ = Buffer(size_t(rows_.total * job_.n) * 4);
      x.pre = pre_.get(), x.ld_pre = job_.n;
    }
    x.weights_ready = job_.weights_ready;
    x.workspace_bytes = workspace_bytes(device(), p);
    workspace_ = Buffer(std::vector<uint8_t>(x.workspace_bytes, 0xa5));  // as in layer.h
    x.workspace = workspace_.get();
  }

  void expect() {
    const ProductSpec p = problem_of(job_.type);
    const int64_t bits = bits_of(job_.type), block = scale_block(job_.type), columns = width_ / block;
    const float t = job_.tensor_scale != 0 ? job_.tensor_scale : 1.0f;
    wanted_.assign(size_t(rows_.total * ld_ * bits / 8), kOutputPoison);
    wanted_scales_.assign(job_.pre ? pre_scale_bytes(p) : out_scale_bytes(p), kOutputPoison);
    rule_.assign(wanted_.size(), true), scale_rule_.assign(wanted_scales_.size(), true);
    values_.assign(size_t(rows_.total * width_), 0);
    const bool shared = job_.grouping == Grouping::RowGroups;
    if (shared) {  // padding rows may be written, and their scales
      for (int64_t r = 0; r < rows_.total; ++r) {
        if (!rows_.exists[size_t(r)]) std::fill_n(rule_.begin() + r * ld_ * bits / 8, width_ * bits / 8, false);
      }
      scale_rule_.assign(scale_rule_.size(), false);
    }
    std::vector<uint8_t> scales(static_cast<size_t>(columns));
    for (size_t g = 0; g < job_.rows.size(); ++g) {
      const int64_t k_columns = (columns + 3) / 4 * 4, up = (job_.rows[g] + 127) / 128 * 128;
      for (int64_t r = 0; r < up; ++r) {
        const bool exists = r < job_.rows[g];
        if (!exists && shared) break;
        const int64_t row = rows_.first[g] + r;
        if (exists) {
          uint8_t* const to = wanted_.data() + row * ld_ * bits / 8;
          reference::quantize_row(job_.type, plain_.data() + row * ld_, width_, t, to, scales.data());
          reference::dequantize_row(job_.type, to, scales.data(), width_, t, values_.data() + row * width_);
        }
        for (int64_t c = 0; c < k_columns; ++c) {
          const auto at = size_t(rows_.scale_index(g, r, c, width_, block));
          wanted_scales_[at] = exists && c < columns ? scales[size_t(c)] : 0;
          scale_rule_[at] = true;
        }
      }
    }
  }

  OutputJob job_;
  GroupedRows rows_;
  Buffer sizes_;
  Operand a_, b_;
  std::vector<uint16_t> bias_;
  Buffer bias_buffer_, output_, scales_, tensor_scale_, pre_, workspace_;
  std::optional<DataType> prepared_;
  ProductSpec problem_;
  ProductTensors arguments_;
  int64_t width_ = 0, ld_ = 0;
  std::vector<float> plain_, values_;
  std::vector<uint8_t> plain_pre_, wanted_, wanted_scales_;
  std::vector<bool> rule_, scale_rule_;
};

// In every order of the simulator.
inline void check_quantized_output(const OutputJob& job) {
  QuantizedProduct product(job);
  product.check_plain();
  for (const char* order : orders()) {
    SCOPED_TRACE(order);
    set_order(order);
    ASSERT_NO_THROW(product.check());
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace moxie::test
