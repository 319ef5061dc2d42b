// SPDX-License-Identifier: Apache-2.0
// One MXFP4 or NVFP4 product on sm_100a with its answer: random elements and scales, NaN scales wherever no row exists,
// scales blocked by the library's own kernel; launches, and compares every byte.
#pragma once
#include <cstdlib>
#include <random>

// Before the first test opens the device.
[[maybe_unused]] inline const int simulated_arch = setenv("MOXIE_SIM_ARCH", "sm_100a", 0);

#include "tests/hopper/layer.h"

namespace moxie::test {

inline double e2m1(int code) {
  static constexpr double kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code & 8 ? -kValues[code & 7] : kValues[code & 7];
}
inline double e8m0(uint8_t code) { return code == 255 ? std::nan("") : std::ldexp(1.0, code - 127); }
inline double e4m3(uint8_t code) {  // without its sign, as a scale
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 127) == 127) return std::nan("");
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}

// Codes of random scales.
struct ScaleCodes {
  int lowest = 127, highest = 128, step = 1;
  int draw(uint64_t bits) const { return lowest + step * int(bits % uint64_t((highest - lowest) / step + 1)); }
};

// Rows of packed elements with their row-major scales.
struct Mxfp4Matrix {
  OperandFormat format = OperandFormat::Mxfp4;
  int64_t rows = 0, k = 0, ld = 0;  // elements
  int64_t scale_columns = 0;
  std::vector<uint8_t> elements, scales;

  Mxfp4Matrix() = default;
  Mxfp4Matrix(OperandFormat operand, int64_t row_count, int64_t width, int64_t padding, uint64_t seed, ScaleCodes codes)
      : format(operand),
        rows(row_count),
        k(width),
        ld(width + padding),
        scale_columns(width / scale_block(operand)),
        elements(size_t(rows * ld / 2)),
        scales(size_t(rows * scale_columns)) {
    for (size_t i = 0; i < elements.size(); ++i) elements[i] = uint8_t(mix(seed * 77 + i) >> 20);
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = uint8_t(codes.draw(mix(seed * 131 + i) >> 24));
  }
  // One scale of `each` becomes NaN.
  void spoil(int each, uint64_t seed) {
    for (size_t i = 0; each > 0 && i < scales.size(); ++i) {
      if (mix(seed * 31 + i) % uint64_t(each) == 0) scales[i] = 255;
    }
  }
  // A row that does not exist: its scales are NaN, so that it shows wherever it gets to.
  void forbid(int64_t row) { std::fill_n(scales.begin() + row * scale_columns, scale_columns, 255); }
  std::vector<double> row(int64_t r) const {
    std::vector<double> values(static_cast<size_t>(k));
    for (int64_t i = 0; i < k; ++i) {
      const uint8_t pair = elements[size_t(r * ld + i) / 2];
      values[size_t(i)] =
          e2m1(i % 2 ? pair >> 4 : pair & 15) * scale(size_t(r * scale_columns + i / scale_block(format)));
    }
    return values;
  }
  double scale(size_t at) const { return format == OperandFormat::Nvfp4 ? e4m3(scales[at]) : e8m0(scales[at]); }
};

// This run's seed where data are fresh each time: MOXIE_TEST_SEED repeats those of a run before.
inline uint64_t run_seed() {
  static const uint64_t seed = [] {
    const char* const given = std::getenv("MOXIE_TEST_SEED");
    const uint64_t drawn = given ? std::strtoull(given, nullptr, 10) : std::random_device()();
    std::printf("MOXIE_TEST_SEED=%llu repeats these data\n", static_cast<unsigned long long>(drawn));
    return drawn;
  }();
  return seed;
}

// How many of a row's float32 elements are not what they should be: equal, or, where the sums are not exact in float32,
// within 1e-6 of the row's norm.
inline int64_t count_wrong(const double* expected, const uint8_t* got, int64_t columns, bool exact) {
  double norm = 0;
  for (int64_t j = 0; j < columns; ++j) norm += std::isnan(expected[j]) ? 0 : expected[j] * expected[j];
  const double off = exact ? 0 : 1e-6 * std::sqrt(norm);
  int64_t wrong = 0;
  for (int64_t j = 0; j < columns; ++j) {
    float value;
    std::memcpy(&value, got + 4 * j, 4);
    wrong += std::isnan(expected[j]) ? !std::isnan(value) : !(std::fabs(double(value) - expected[j]) <= off);
  }
  return wrong;
}

struct Mxfp4Job {
  ProductSpec problem;        // grouping, types, activation, bias, choices; Bf16 stands for Mxfp4
  std::vector<int64_t> rows;  // of each group
  int64_t n = 64, k = 64;
  int64_t spare_rows = 3;
  uint64_t seed = 1;
  int lowest_scale = 127, highest_scale = 128, scale_step = 1;  // of A
  std::optional<ScaleCodes> b_scales;                           // of B, where they are others
  int nan_scale_each = 0;                                       // one of so many is NaN
  std::vector<float> a_tensor_scale, b_tensor_scale;            // Nvfp4: [1], [groups]; empty: null
  bool exact = true;                                            // the sums are exact in float32
};

class Mxfp4Layer {
 public:
  static constexpr uint8_t kPoison = 0xff;
  explicit Mxfp4Layer(Mxfp4Job job) : job_(std::move(job)) { build(); }

  ProductTensors& arguments() { return arguments_; }
  const ProductSpec& problem() const { return job_.problem; }
  std::vector<uint8_t> output() const { return output_.download(); }
  std::vector<uint8_t> run(uint8_t poison = kPoison) {
    output_.fill(poison);
    gemm(device(), job_.problem, arguments_);
    device().synchronize();
    return output_.download();
  }

  // Every element that should be there is right, every other byte is still poison. Without an activation float32 is
  // held to count_wrong().
  void check(const std::vector<uint8_t>& got) const {
    const ProductSpec& p = job_.problem;
    const int64_t bytes = size_of(type_), alignment = alignment_;
    std::vector<uint8_t> rule(got.size() / size_t(bytes), 0);  // 1: written, 2: may be
    reference::Comparison comparison(type_ == DataType::Bf16 ? reference::kBf16Bound : reference::kF32Bound);
    int64_t wrong = 0;
    const bool plain = p.activation == Activation::None && type_ == DataType::F32;
    for (size_t g = 0; g < job_.rows.size(); ++g) {
      int64_t touched = job_.rows[g];
      if (p.grouping == Grouping::RowGroups) {
        const int64_t until = (g + 1 < job_.rows.size() ? first_rows_[g + 1] : total_rows_) - first_rows_[g];
        touched = std::min(until, (touched + alignment - 1) / alignment * alignment);
      }
      for (int64_t i = 0; i < touched; ++i)
        std::fill_n(rule.begin() + first_element(first_rows_[g] + i), width_, i < job_.rows[g] ? 1 : 2);
      if (job_.rows[g] == 0) continue;
      const std::vector<double> expected = answer(g);
      const uint8_t* const first = got.data() + first_element(first_rows_[g]) * bytes;
      if (!plain) comparison.add(expected, first, type_, job_.rows[g], width_, ld_, first_rows_[g]);
      for (int64_t i = 0; plain && i < job_.rows[g]; ++i)
        wrong += count_wrong(expected.data() + i * width_, first + i * ld_ * bytes, width_, job_.exact);
    }
    EXPECT_EQ(comparison.failure(), "");
    EXPECT_EQ(wrong, 0) << "elements that differ from the sum";
    int64_t spoiled = 0;
    for (size_t i = 0; i < rule.size(); ++i) {
      for (int64_t j = 0; rule[i] == 0 && j < bytes; ++j) spoiled += got[i * size_t(bytes) + size_t(j)] != kPoison;
    }
    EXPECT_EQ(spoiled, 0) << "bytes that must not be written";
  }

 private:
  static constexpr int64_t kGuardRows = 2;
  int64_t first_element(int64_t row) const { return (kGuardRows + row) * ld_; }

  void build() {
    ProductSpec& p = job_.problem;
    const auto groups = int64_t(job_.rows.size());
    const int64_t most = *std::max_element(job_.rows.begin(), job_.rows.end());
    if (p.format == OperandFormat::Bf16) p.format = OperandFormat::Mxfp4;
    p.groups = groups, p.n = job_.n, p.k = job_.k;
    std::vector<int32_t> sizes;
    total_rows_ = 0;
    const bool stacked = p.grouping == Grouping::Batched || p.grouping == Grouping::Masked;
    if (stacked) {
      p.m = p.grouping == Grouping::Masked ? most + job_.spare_rows : most;
      total_rows_ = groups * p.m;
      for (int64_t g = 0; g < groups; ++g)
        first_rows_.push_back(g * p.m), sizes.push_back(int32_t(job_.rows[size_t(g)]));
    } else if (p.grouping == Grouping::RowGroups) {
      p.m = std::accumulate(job_.rows.begin(), job_.rows.end(), int64_t{0});
      alignment_ = row_alignment(device(), p);
      for (int64_t g = 0; g < groups; ++g) {
        first_rows_.push_back(total_rows_);
        sizes.insert(sizes.end(), size_t(job_.rows[size_t(g)]), int32_t(g));
        total_rows_ += job_.rows[size_t(g)];
        const int64_t next =
            g + 1 < groups ? (total_rows_ + alignment_ - 1) / alignment_ * alignment_ : total_rows_ + job_.spare_rows;
        sizes.insert(sizes.end(), size_t(next - total_rows_), -1);
        total_rows_ = next;
      }
      p.m = total_rows_;
    } else {
      for (int64_t rows : job_.rows) {
        first_rows_.push_back(total_rows_);
        total_rows_ += rows;
        sizes.push_back(int32_t(total_rows_));
      }
      if (p.grouping == Grouping::Offsets) total_rows_ += job_.spare_rows;
      p.m = total_rows_;
    }
    type_ = p.out ? *p.out : *p.pre;
    width_ = p.out && is_gated(p.activation) ? p.n / 2 : p.n;
    ld_ = width_ + 16 / size_of(type_);

    const ScaleCodes codes = {job_.lowest_scale, job_.highest_scale, job_.scale_step};
    a_ = Mxfp4Matrix(p.format, total_rows_, p.k, 64, job_.seed, codes);
    b_ = Mxfp4Matrix(p.format, groups * p.n, p.k, 32, job_.seed + 1, job_.b_scales.value_or(codes));
    a_.spoil(job_.nan_scale_each, job_.seed + 2), b_.spoil(job_.nan_scale_each, job_.seed + 3);
    std::vector<bool> exists(size_t(total_rows_), false);
    for (size_t g = 0; g < job_.rows.size(); ++g) std::fill_n(exists.begin() + first_rows_[g], job_.rows[g], true);
    for (int64_t row = 0; row < total_rows_; ++row) {
      if (!exists[size_t(row)]) a_.forbid(row);
    }
    for (int64_t i = 0; i < groups * p.n; ++i) bias_.push_back(reference::float_to_bf16(float(i % 17) - 8));

    ProductTensors& x = arguments_;
    const auto upload = [&](const auto& values) {
      buffers_.emplace_back(values);
      return buffers_.back().template get<void>();
    };
    x.a = upload(a_.elements), x.lda = a_.ld;
    x.b = upload(b_.elements), x.ldb = b_.ld;
    if (p.bias) x.bias = upload(bias_);
    if (p.grouping != Grouping::Dense && p.grouping != Grouping::Batched)
      x.sizes = static_cast<int32_t*>(upload(sizes));
    if (!job_.a_tensor_scale.empty()) x.a_tensor_scale = static_cast<float*>(upload(job_.a_tensor_scale));
    if (!job_.b_tensor_scale.empty()) x.b_tensor_scale = static_cast<float*>(upload(job_.b_tensor_scale));
    ScaleBlocking blocking;
    blocking.block = scale_block(p.format);
    blocking.from = upload(a_.scales);
    blocking.k = p.k;
    blocking.groups = p.grouping == Grouping::RowGroups ? 1 : groups;
    blocking.rows = stacked ? p.m : total_rows_;
    if (p.grouping == Grouping::Offsets) blocking.offsets = x.sizes;
    buffers_.emplace_back(std::vector<uint8_t>(a_scale_bytes(p), 255));
    x.sfa = blocking.to = buffers_.back().get();
    if (total_rows_ > 0 && p.k > 0) block_scales(device(), blocking);
    ScaleBlocking of_b;
    of_b.block = scale_block(p.format);
    of_b.from = upload(b_.scales);
    of_b.k = p.k, of_b.groups = groups, of_b.rows = p.n;
    buffers_.emplace_back(std::vector<uint8_t>(b_scale_bytes(p), 255));
    x.sfb = of_b.to = buffers_.back().get();
    if (p.k > 0) block_scales(device(), of_b);

    output_ = Buffer(size_t((total_rows_ + 2 * kGuardRows) * ld_ * size_of(type_)));
    void* const first = output_.get<uint8_t>() + first_element(0) * size_of(type_);
    if (p.out) {
      x.out = first, x.ld_out = ld_;
    } else {
      x.pre = first, x.ld_pre = ld_;
    }
    x.workspace_bytes = workspace_bytes(device(), p);
    workspace_ = Buffer(x.workspace_bytes);
    x.workspace = workspace_.get();
  }

  std::vector<double> answer(size_t g) const {
    const ProductSpec& p = job_.problem;
    std::vector<std::vector<double>> b;
    for (int64_t j = 0; j < p.n; ++j) b.push_back(b_.row(int64_t(g) * p.n + j));
    const double factor = (job_.a_tensor_scale.empty() ? 1.0 : double(job_.a_tensor_scale[0])) *
                          (job_.b_tensor_scale.empty() ? 1.0 : double(job_.b_tensor_scale[g]));
    std::vector<double> pre;
    for (int64_t i = 0; i < job_.rows[g]; ++i) {
      const std::vector<double> a = a_.row(first_rows_[g] + i);
      for (int64_t j = 0; j < p.n; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < p.k; ++k) sum += a[size_t(k)] * b[size_t(j)][size_t(k)];
        pre.push_back(sum * factor + (p.bias ? reference::bf16_to_float(bias_[g * size_t(p.n) + size_t(j)]) : 0.0));
      }
    }
    return p.out ? reference::activate_all(p.activation, p.gate, pre, job_.rows[g], p.n) : pre;
  }

  Mxfp4Job job_;
  int64_t total_rows_ = 0, alignment_ = 1, width_ = 0, ld_ = 0;
  DataType type_ = DataType::F32;
  std::vector<int64_t> first_rows_;
  Mxfp4Matrix a_, b_;
  std::vector<uint16_t> bias_;
  std::vector<Buffer> buffers_;
  Buffer output_, workspace_;
  ProductTensors arguments_;
};

// Right in every order, and the same bits.
template <class Layer, class Job>
void run_layer_in_all_orders(const Job& job) {
  Layer layer(job);
  std::vector<uint8_t> first;
  for (const char* order : orders()) {
    SCOPED_TRACE(order);
    set_order(order);
    std::vector<uint8_t> got;
    ASSERT_NO_THROW(got = layer.run());
    if (first.empty()) {
      layer.check(got);
    } else {
      EXPECT_TRUE(got == first) << "other bits than in the first order";
    }
    first = std::move(got);
    if (::testing::Test::HasFailure()) return;
  }
}
inline void run_in_all_orders(const Mxfp4Job& job) { run_layer_in_all_orders<Mxfp4Layer>(job); }

}  // namespace moxie::test
