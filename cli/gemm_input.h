// SPDX-License-Identifier: Apache-2.0
// GemmInput is what `moxie gemm` reads from its file: the operands, what they say of the product, and where the groups'
// rows lie.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/packed_tensor.h"
#include "cli/safetensors.h"
#include "moxie/gemm.h"

namespace moxie::cli {

struct GemmInput {
  OperandFormat format = OperandFormat::Bf16;    // of a
  OperandFormat b_format = OperandFormat::Bf16;  // of b: a's, or Mxfp4 beside an a of bf16
  Grouping grouping = Grouping::Dense;
  int64_t groups = 1;
  int64_t m = 0;  // rows of a, of each group where a has three dimensions
  int64_t n = 0, k = 0;

  // The tensors' bytes; empty where the file has none.
  std::vector<uint8_t> a, b, bias;
  std::vector<uint8_t> a_scales, b_scales;
  std::vector<uint8_t> a_tensor_scale, b_tensor_scale;
  std::vector<int32_t> rows;  // offsets, m_indices, masked_m or k_offsets

  std::vector<int64_t> a_shape;
  std::vector<int64_t> group_start;  // first row of each group in the results; not for row groups
  std::vector<int64_t> group_rows;

  bool has_bias = false;
  bool has_scales() const { return moxie::has_scales(format); }
  std::optional<PackedTensor> packed;  // what b says where it is packed already
  bool has_packed_b() const { return b_format != format; }
  bool is_stacked() const { return a_shape.size() == 3; }  // a and the results are [G, M, ...]

  Groups file_groups() const;  // as the file has them
  // Rows::total of a call with file_groups(); nothing where it takes none.
  std::optional<int64_t> total() const;
};

// Reads and checks everything that the library will not see: the tensors' types and shapes against each other, and the
// groups' sizes, which the kernel would clamp. format: "auto" takes what the tensors' types say. Throws InputError that
// names the tensor.
GemmInput read_gemm_input(const SafetensorsReader& file, const std::string& format);

// Reads the operands' scales: one for 32 or 16 elements of a row, or the bytes that the blocked layout has. Those of a
// b that will be packed have the first form; one that is packed must fit the description's gate. `description` is that
// of file_groups().
void read_scales(const SafetensorsReader& file, const GemmDescription& description, bool blocked, GemmInput& input);

}  // namespace moxie::cli
