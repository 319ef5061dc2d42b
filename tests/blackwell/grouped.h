// SPDX-License-Identifier: Apache-2.0
// One product of groups by pointers, or of k groups, with its answer: exact sums, gaps between the groups that are NaN,
// outputs compared byte by byte. A quantised output must be what the CPU makes of the same product's float32 output.
#pragma once
#include <memory>

#include "moxie/scales.h"
#include "reference/comparison.h"
#include "reference/formats.h"
#include "reference/product.h"
#include "tests/blackwell/mxfp4.h"

namespace moxie::test {

struct GroupedJob {
  ProductSpec problem;           // format, grouping, types, activation, choices
  std::vector<int64_t> m, n, k;  // of each group; KGroups: m and n are all the same
  int64_t spare_k = 64;          // KGroups: behind the last group
  uint64_t seed = 1;
  ScaleCodes a_scales, b_scales;  // of MXFP4
  int nan_scale_each = 0;         // one of so many is NaN
  bool exact = true;              // the sums are exact in float32
};

// One operand: the groups' rows, and where they lie.
struct GroupedOperand {
  OperandFormat format = OperandFormat::Bf16;
  std::vector<int64_t> rows, k, ld;         // elements
  std::vector<int64_t> first, first_scale;  // bytes
  std::vector<uint8_t> elements, scales;    // scales: row-major, group after group or [rows, all of K]
  std::vector<std::vector<double>> values;  // [rows, k] of each group

  int64_t bytes(int64_t count) const { return count * bits_of(format) / 8; }
  // A random value that has few bits, stored at element `at` of the row that begins at byte `row`.
  double put(int64_t row, int64_t at, uint64_t bits) {
    const int code = int(bits >> 20 & 15);
    if (format == OperandFormat::Bf16) {
      const uint16_t value = reference::float_to_bf16(float(e2m1(code)));
      std::memcpy(elements.data() + row + at * 2, &value, 2);
    } else {
      uint8_t& pair = elements[size_t(row + at / 2)];
      pair = uint8_t(at % 2 ? (pair & 15) | code << 4 : (pair & 0xf0) | code);
    }
    return e2m1(code);
  }
  double put_scale(int64_t at, uint64_t bits, const ScaleCodes& codes, int nan_each) {
    auto code = uint8_t(format == OperandFormat::Nvfp4 ? 0x30 + 4 * (bits >> 30 & 3) : codes.draw(bits >> 30));
    if (nan_each > 0 && mix(bits) % uint64_t(nan_each) == 0) code = 255;
    scales[size_t(at)] = code;
    return format == OperandFormat::Nvfp4 ? e4m3(code) : e8m0(code);
  }
};

class GroupedLayer {
 public:
  explicit GroupedLayer(GroupedJob job) : job_(std::move(job)) { build(); }
  const ProductSpec& problem() const { return job_.problem; }
  ProductTensors& arguments() { return x_; }
  // What it writes, the scales included.
  std::vector<const void*> outputs() const {
    std::vector<const void*> all = {output_.get()};
    for (const Buffer& buffer : out_scales_) all.push_back(buffer.get());
    return all;
  }
  std::vector<uint8_t> output() const { return output_.download(); }
  std::vector<uint8_t> run() {
    output_.fill(kPoison);
    for (const Buffer& buffer : out_scales_) buffer.fill(kPoison);
    gemm(device(), job_.problem, x_);
    device().synchronize();
    return output();
  }

  void check(const std::vector<uint8_t>& got) const {
    const ProductSpec& p = job_.problem;
    if (is_quantized(*p.out)) return check_quantized(got);
    const int64_t size = size_of(*p.out);
    const bool plain = p.activation == Activation::None && p.out == DataType::F32;
    std::vector<bool> written(got.size(), false);
    reference::Comparison comparison(p.out == DataType::Bf16 ? reference::kBf16Bound : reference::kF32Bound);
    int64_t wrong = 0;
    for (size_t g = 0; g < groups(); ++g) {
      const int64_t width = out_width(g);
      std::vector<double> pre(size_t(job_.m[g] * job_.n[g]));
      for (int64_t i = 0; i < job_.m[g]; ++i) {
        for (int64_t j = 0; j < job_.n[g]; ++j) {
          const double* const a = a_.values[g].data() + i * job_.k[g];
          const double* const b = b_.values[g].data() + j * job_.k[g];
          double sum = p.bias ? reference::bf16_to_float(bias_[size_t(first_bias_[g] + j)]) : 0.0;
          for (int64_t k = 0; k < job_.k[g]; ++k) sum += a[k] * b[k];
          pre[size_t(i * job_.n[g] + j)] = sum;
        }
      }
      const auto expected = reference::activate_all(p.activation, p.gate, pre, job_.m[g], job_.n[g]);
      const int64_t first = first_out_[g] * size;
      if (!plain) comparison.add(expected, got.data() + first, *p.out, job_.m[g], width, ld_out_[g]);
      for (int64_t i = 0; i < job_.m[g]; ++i) {
        const int64_t row = first + i * ld_out_[g] * size;
        std::fill_n(written.begin() + row, width * size, true);
        if (plain) wrong += count_wrong(expected.data() + i * width, got.data() + row, width, job_.exact);
      }
    }
    EXPECT_EQ(comparison.failure(), "");
    EXPECT_EQ(wrong, 0) << "elements that differ from the sum";
    int64_t spoiled = 0;
    for (size_t i = 0; i < got.size(); ++i) spoiled += !written[i] && got[i] != kPoison;
    EXPECT_EQ(spoiled, 0) << "bytes that must not be written";
  }

 private:
  static constexpr uint8_t kPoison = 0xff;
  size_t groups() const { return job_.k.size(); }
  bool along_k() const { return job_.problem.grouping == Grouping::KGroups; }
  bool quantized() const { return is_quantized(*job_.problem.out); }
  int64_t out_width(size_t g) const { return is_gated(job_.problem.activation) ? job_.n[g] / 2 : job_.n[g]; }

  // Everything that is no group's is NaN: all bits set.
  void make_operand(GroupedOperand& o, const std::vector<int64_t>& rows, uint64_t seed, const ScaleCodes& codes) const {
    o.format = job_.problem.format;
    o.rows = rows, o.k = job_.k;
    const int64_t block = scale_block(o.format), all_k = job_.problem.k;
    int64_t at = o.bytes(32), k_begin = 0, scale = 0;
    for (size_t g = 0; g < groups(); ++g) {
      o.ld.push_back(along_k() ? all_k + 64 : o.k[g] + 32 * int64_t(1 + g % 3));
      o.first.push_back(along_k() ? o.bytes(k_begin) : at);
      o.first_scale.push_back(along_k() ? k_begin / block : scale);
      k_begin += o.k[g];
      at += o.bytes(rows[g] * o.ld[g] + 32), scale += rows[g] * o.k[g] / block;
    }
    if (along_k()) at = o.bytes(rows[0] * o.ld[0]), scale = rows[0] * all_k / block;
    o.elements.assign(size_t(at), 0xff);
    o.scales.assign(size_t(scale), 0xff);
    for (size_t g = 0; g < groups(); ++g) {
      o.values.emplace_back(size_t(rows[g] * o.k[g]));
      const int64_t columns = (along_k() ? all_k : o.k[g]) / block;
      for (int64_t i = 0; i < rows[g]; ++i) {
        double scale_value = 1;
        for (int64_t k = 0; k < o.k[g]; ++k) {
          const uint64_t bits = mix(seed * 7919 + g * 104729 + uint64_t(i * 65536 + k));
          if (has_scales(o.format) && k % block == 0)
            scale_value = o.put_scale(o.first_scale[g] + i * columns + k / block, bits, codes, job_.nan_scale_each);
          o.values[g][size_t(i * o.k[g] + k)] = scale_value * o.put(o.first[g] + o.bytes(i * o.ld[g]), k, bits);
        }
      }
    }
  }

  void check_quantized(const std::vector<uint8_t>& got) const {
    const DataType type = *job_.problem.out;
    std::vector<uint8_t> wanted(got.size(), kPoison);
    std::vector<std::vector<uint8_t>> wanted_scales;
    for (const Buffer& buffer : out_scales_) wanted_scales.emplace_back(buffer.size(), kPoison);
    for (size_t g = 0; g < groups(); ++g) {
      const int64_t width = out_width(g), block = scale_block(type), columns = width / block, bits = bits_of(type);
      std::vector<uint8_t>& scales = wanted_scales[along_k() ? 0 : g];
      const int64_t first_scale = along_k() ? int64_t(g) * blocked_scale_bytes(job_.m[g], width, block) : 0;
      std::vector<uint8_t> row_scales(static_cast<size_t>(columns));
      for (int64_t r = 0; width > 0 && r < (job_.m[g] + 127) / 128 * 128; ++r) {
        const bool exists = r < job_.m[g];
        if (exists) {
          std::vector<float> row(static_cast<size_t>(width));
          std::memcpy(row.data(), plain_output_.data() + (plain_->first_out_[g] + r * plain_->ld_out_[g]) * 4,
                      row.size() * 4);
          reference::quantize_row(type, row.data(), width, 1,
                                  wanted.data() + (first_out_[g] + r * ld_out_[g]) * bits / 8, row_scales.data());
        }
        for (int64_t c = 0; c < (columns + 3) / 4 * 4; ++c)
          scales[size_t(first_scale + blocked_scale_index(r, c, width, block))] =
              exists && c < columns ? row_scales[size_t(c)] : 0;
      }
    }
    int64_t wrong = 0, wrong_scales = 0;
    for (size_t i = 0; i < got.size(); ++i) wrong += got[i] != wanted[i];
    for (size_t i = 0; i < out_scales_.size(); ++i) {
      const std::vector<uint8_t> there = out_scales_[i].download();
      for (size_t j = 0; j < there.size(); ++j) wrong_scales += there[j] != wanted_scales[i][j];
    }
    EXPECT_EQ(wrong, 0) << "bytes of elements, of " << got.size();
    EXPECT_EQ(wrong_scales, 0) << "scales";
  }
  // What a quantised output is made of.
  void run_plain() {
    GroupedJob job = job_;
    job.problem.out = DataType::F32;
    plain_ = std::make_unique<GroupedLayer>(std::move(job));
    plain_output_ = plain_->run();
    plain_->check(plain_output_);
  }
  void reserve_scales() {
    std::vector<void*> pointers;
    for (size_t g = 0; g < (along_k() ? 1 : groups()); ++g) {
      const size_t bytes = along_k()
                               ? out_scale_bytes(job_.problem)
                               : size_t(blocked_scale_bytes(job_.m[g], out_width(g), scale_block(*job_.problem.out)));
      out_scales_.emplace_back(bytes + 16);  // behind it nothing is written
      pointers.push_back(out_scales_.back().get());
    }
    if (along_k()) {
      x_.out_scales = pointers[0];
    } else {
      x_.pointers.out.scales = static_cast<void* const*>(upload(pointers));
    }
  }

  template <typename T>
  void* upload(const std::vector<T>& values) {
    buffers_.emplace_back(values);
    return buffers_.back().get();
  }
  Buffer& reserve(size_t bytes) {
    buffers_.emplace_back(std::vector<uint8_t>(bytes, 0xff));
    return buffers_.back();
  }

  // The blocked scales of k groups.
  void* block_along_k(const GroupedOperand& o, size_t bytes) {
    ScaleBlocking blocking;
    blocking.from = upload(o.scales);
    blocking.to = reserve(bytes).get();
    blocking.groups = int64_t(groups()), blocking.rows = o.rows[0], blocking.k = job_.problem.k;
    blocking.block = scale_block(o.format);
    blocking.offsets = x_.sizes;
    blocking.along_k = true;
    block_scales(device(), blocking);
    return blocking.to;
  }
  // Those of each group.
  const void* const* block_each(const GroupedOperand& o) {
    const auto* const from = static_cast<const uint8_t*>(upload(o.scales));
    std::vector<const void*> pointers;
    for (size_t g = 0; g < groups(); ++g) {
      ScaleBlocking blocking;
      blocking.block = scale_block(o.format);
      blocking.from = from + o.first_scale[g];
      blocking.to = reserve(size_t(blocked_scale_bytes(o.rows[g], o.k[g], blocking.block)) + 16).get();
      blocking.rows = o.rows[g], blocking.k = o.k[g];
      block_scales(device(), blocking);
      pointers.push_back(blocking.to);
    }
    return static_cast<const void* const*>(upload(pointers));
  }
  // Groups by pointers: each one's operand in memory of its own, which ends with the last element of its last row.
  const void* const* upload_each(const GroupedOperand& o) {
    constexpr int64_t kLead = 16;  // no better aligned than it must be
    std::vector<const void*> pointers;
    for (size_t g = 0; g < groups(); ++g) {
      const int64_t used = o.rows[g] * o.k[g] == 0 ? 0 : o.bytes((o.rows[g] - 1) * o.ld[g] + o.k[g]);
      const auto first = o.elements.begin() + o.first[g];
      pointers.push_back(static_cast<uint8_t*>(upload(std::vector<uint8_t>(first - kLead, first + used))) + kLead);
    }
    return static_cast<const void* const*>(upload(pointers));
  }
  const void* const* pointers_to(const void* base, const std::vector<int64_t>& offsets) {
    std::vector<const void*> pointers;
    for (int64_t offset : offsets) pointers.push_back(static_cast<const uint8_t*>(base) + offset);
    return static_cast<const void* const*>(upload(pointers));
  }

  void build() {
    ProductSpec& p = job_.problem;
    p.groups = int64_t(groups());
    p.m = *std::max_element(job_.m.begin(), job_.m.end()), p.n = *std::max_element(job_.n.begin(), job_.n.end());
    p.k = along_k() ? std::accumulate(job_.k.begin(), job_.k.end(), job_.spare_k)
                    : *std::max_element(job_.k.begin(), job_.k.end());
    make_operand(a_, job_.m, job_.seed, job_.a_scales);
    make_operand(b_, job_.n, job_.seed + 1, job_.b_scales);
    if (quantized()) run_plain();
    const int64_t bits = bits_of(*p.out), unit = quantized() ? 32 : 8;
    int64_t out = 64, bias = 0;
    std::vector<int64_t> out_bytes, bias_bytes;
    for (size_t g = 0; g < groups(); ++g) {
      ld_out_.push_back(out_width(g) + 2 * unit + (along_k() ? 0 : unit * int64_t(g % 3)));
      first_out_.push_back(out);
      first_bias_.push_back(bias);
      out_bytes.push_back(out * bits / 8), bias_bytes.push_back(bias * 2);
      out += job_.m[g] * ld_out_[g] + (along_k() ? 0 : 32);
      bias += job_.n[g];
    }
    output_ = Buffer(size_t((out + 64) * bits / 8));
    if (quantized()) reserve_scales();
    for (int64_t i = 0; i < bias; ++i) bias_.push_back(reference::float_to_bf16(float(i % 17) - 8));

    const void* const biases = p.bias ? upload(bias_) : nullptr;
    if (along_k()) {
      std::vector<int32_t> ends;
      for (int64_t k : job_.k) ends.push_back((ends.empty() ? 0 : ends.back()) + int32_t(k));
      x_.sizes = static_cast<int32_t*>(upload(ends));
      x_.a = upload(a_.elements), x_.lda = a_.ld[0], x_.b = upload(b_.elements), x_.ldb = b_.ld[0], x_.bias = biases;
      x_.out = output_.get<uint8_t>() + out_bytes[0], x_.ld_out = ld_out_[0];
      if (has_scales(p.format))
        x_.sfa = block_along_k(a_, a_scale_bytes(p)), x_.sfb = block_along_k(b_, b_scale_bytes(p));
    } else {
      x_.pointers.a.data = upload_each(a_), x_.pointers.b.data = upload_each(b_);
      x_.pointers.a.ld = static_cast<int64_t*>(upload(a_.ld)), x_.pointers.b.ld = static_cast<int64_t*>(upload(b_.ld));
      if (p.bias) x_.pointers.bias = pointers_to(biases, bias_bytes);
      std::vector<int32_t> sizes;
      for (size_t g = 0; g < groups(); ++g)
        sizes.insert(sizes.end(), {int32_t(job_.m[g]), int32_t(job_.n[g]), int32_t(job_.k[g])});
      x_.pointers.sizes = static_cast<int32_t*>(upload(sizes));
      x_.pointers.out.data = const_cast<void* const*>(pointers_to(output_.get(), out_bytes));
      x_.pointers.out.ld = static_cast<int64_t*>(upload(ld_out_));
      if (has_scales(p.format)) x_.pointers.a.scales = block_each(a_), x_.pointers.b.scales = block_each(b_);
    }
    x_.workspace_bytes = workspace_bytes(device(), p);
    workspace_ = Buffer(x_.workspace_bytes);
    x_.workspace = workspace_.get();
  }

  GroupedJob job_;
  GroupedOperand a_, b_;
  std::vector<uint16_t> bias_;
  std::vector<int64_t> first_out_, ld_out_, first_bias_;
  std::vector<Buffer> buffers_;
  Buffer output_, workspace_;
  std::vector<Buffer> out_scales_;       // KGroups: one, Pointers: of each group
  std::unique_ptr<GroupedLayer> plain_;  // with float32 in the quantised output's place
  std::vector<uint8_t> plain_output_;
  ProductTensors x_;
};

}  // namespace moxie::test
