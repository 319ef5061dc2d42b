// SPDX-License-Identifier: Apache-2.0
// One grouped product on a device with its answer: lays out operands and outputs for any grouping and format, with
// gaps, guards and NaN wherever nothing may be read or written, launches, and compares every byte. A quantized output
// must be, byte for byte, what the CPU makes of the same product's float32 output.
#pragma once
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tests/support/device.h"
#include "tests/support/group_rows.h"
#include "tests/support/operand.h"
#include "tests/support/product_spec.h"

namespace moxie::test {

// What to compute. `problem` gives format, grouping, outputs, activation and choices; sizes come from the rest.
struct Job {
  ProductSpec problem;
  std::vector<int64_t> rows;                // of each group. Dense: one entry; Batched and KGroups: all the same
  int64_t n = 64, k = 64;                   // k: not of KGroups
  std::vector<int64_t> group_n, group_k;    // Pointers: of each group, empty: n and k. KGroups: group_k
  int64_t spare_rows = 3;                   // rows allocated past the last one
  int64_t spare_k = 64;                     // KGroups: elements of K behind the last group
  int64_t row_alignment = 0;                // RowGroups; 0: what the plan needs
  std::optional<int64_t> pad_pre, pad_out;  // elements between rows of an output beyond its width
  bool host_sizes = false;
  bool weights_ready = false;
  uint64_t seed = 1;

  float scale = 1;    // of A's values where they are random bf16
  bool e2m1 = false;  // bf16 operands hold values of E2M1, as the formats with scales do
  std::optional<ScaleCodes> a_scales, b_scales;
  int nan_scale_each = 0;                             // one of so many is NaN
  bool exact = true;                                  // sums of products of E2M1 values are exact in float32
  std::vector<float> a_tensor_scale, b_tensor_scale;  // Nvfp4: [1], [groups]; empty: null
  float output_tensor_scale = 0;                      // of an output quantized to NVFP4; 0: null

  // Routing data to hand to the kernel instead of the right ones (Pointers: [groups][3]). Any row of the outputs may
  // then be written, but nothing beside them.
  std::vector<int32_t> corrupt_sizes;
  // Not 0: routing data are handed over that mean the same, drawn by disguise() (routing.h).
  uint64_t wild_sizes = 0;
  // Not 0: run_in_all_orders() computes the product once more with special values in some rows of A and B, in the bias
  // and in NVFP4's tensor scales. What they touch is checked by special.h, all else has the same bits as without.
  uint64_t specials = 0;
};
Job job_of(OperandFormat format);  // all else as above

// The outputs' bytes as they lie in device memory, guards included, and their scales: with Pointers of each group.
struct Results {
  std::vector<uint8_t> pre, out;
  std::vector<std::vector<uint8_t>> pre_scales, out_scales;
  bool operator==(const Results&) const = default;
};

class GroupedProduct {
 public:
  static constexpr uint8_t kPoison = 0xff;  // NaN as bf16 and as float32

  // pre or out; not stored where it has no type.
  struct Output {
    bool gated = false;  // out of a gated activation
    std::optional<DataType> type;
    std::vector<int64_t> first, ld, width;  // of each group, elements
    Buffer elements;
    std::vector<Buffer> scales;  // of a quantized output
    // The rows of each group, dense, that are stored when no output is quantized.
    std::vector<std::vector<uint8_t>> plain;

    int64_t bytes(int64_t count) const { return count * bits_of(*type) / 8; }
  };

  explicit GroupedProduct(Job job);

  const ProductSpec& problem() const { return job_.problem; }
  ProductTensors& arguments() { return x_; }
  const ProductTensors& arguments() const { return x_; }
  const GroupRows& rows() const { return rows_; }
  const Output& pre() const { return pre_; }
  const Output& out() const { return out_; }
  const Operand& b() const { return b_; }
  // What it writes.
  std::vector<const void*> written() const;

  void poison(uint8_t value = kPoison) const;
  void launch() const { gemm(device(), job_.problem, x_); }
  Results results() const;
  Results run(uint8_t value = kPoison) const;

  // The double-precision answer of group g: [rows, width].
  std::vector<double> expected_pre(size_t g) const;
  std::vector<double> expected_out(size_t g) const;
  // The answer is that of another A from now on: values of each group.
  void expect_a(std::vector<std::vector<double>> values) { other_a_ = std::move(values); }
  // What `out` of such results stands for: values of each group.
  std::vector<std::vector<double>> out_values(const Results& results) const;

  // Every element that should be there is right, every other byte is still poison. With special values, of the
  // elements only those that they touch are looked at, and check_untouched() compares the others with `without`.
  void check(const Results& results) const;
  void check_untouched(const Results& results, const Results& without) const;

 private:
  size_t groups() const { return job_.rows.size(); }
  bool by_pointers() const { return job_.problem.grouping == Grouping::Pointers; }
  bool along_k() const { return job_.problem.grouping == Grouping::KGroups; }
  bool quantized() const { return (pre_.type && is_quantized(*pre_.type)) || (out_.type && is_quantized(*out_.type)); }
  // The sums of group g, [rows, n], of what `of_value` makes of every factor and addend.
  std::vector<double> sums(size_t g, double (*of_value)(double)) const;
  bool has_e2m1() const { return has_scales(job_.problem.format) || job_.e2m1; }
  bool packed_b() const { return job_.problem.b_format.has_value(); }
  OperandFormat format(bool of_a) const {
    return of_a ? job_.problem.format : job_.problem.b_format.value_or(job_.problem.format);
  }
  bool is_pre(const Output& output) const { return &output == &pre_; }
  int64_t group_n(size_t g) const { return by_pointers() ? job_.group_n[g] : job_.problem.n; }
  int64_t group_k(size_t g) const { return by_pointers() || along_k() ? job_.group_k[g] : job_.problem.k; }

  void set_sizes();
  Operand lay_out(bool of_a) const;
  void draw_operands();
  void upload_sizes();
  void upload_operand(bool of_a);
  std::vector<uint8_t> scattered(const std::vector<uint8_t>& bytes, const OperandRows& all);
  void upload_scales(bool of_a);
  void upload_packed_b();
  void plant_specials();
  void make_output(Output& output, int64_t pad);
  void learn_plain_rows();

  std::vector<uint8_t> rows_of(const Output& output, const std::vector<uint8_t>& bytes, size_t g) const;
  int64_t scale_index(const Output& output, size_t g, int64_t r, int64_t column) const;
  int64_t count_different(const Output& output, const std::vector<uint8_t>& got, size_t g) const;
  // The columns of pre that an element of an output is made of: with a gate two.
  std::vector<int64_t> sources(const Output& output, size_t g, int64_t column) const;
  bool is_touched(const Output& output, size_t g, int64_t row, int64_t column) const;
  void check_touched(const Output& output, const std::vector<uint8_t>& got, size_t g) const;
  void check_elements(const Output& output, const std::vector<uint8_t>& got) const;
  void check_scales(const Output& output, const std::vector<std::vector<uint8_t>>& got) const;

  template <typename T>
  T* upload(const std::vector<T>& values) {
    buffers_.emplace_back(values);
    return buffers_.back().template get<T>();
  }

  Job job_;
  GroupRows rows_;
  int64_t tile_rows_ = 1;  // RowGroups: padding rows of a tile may be written
  Operand a_, b_;
  std::vector<std::vector<double>> other_a_;
  std::vector<uint16_t> bias_;
  std::vector<int64_t> first_bias_;  // of each group
  std::vector<bool> special_bias_;   // as bias_
  int64_t special_group_ = -1;       // whose tensor scale is special
  Output pre_, out_;
  std::vector<Buffer> buffers_;
  ProductTensors x_;
};

// Runs a job in every order: right, and the same bits in all. Then with special values, where the job has them.
void run_in_all_orders(const Job& job);

}  // namespace moxie::test
