// SPDX-License-Identifier: Apache-2.0
// GemmOutput is one output of `moxie gemm`: its device memory, and the tensors that the file gets.
#pragma once
#include <string>
#include <vector>

#include "bench/timing/buffer.h"
#include "cli/gemm_input.h"
#include "cli/safetensors.h"
#include "moxie/gemm.h"

namespace moxie::cli {

class GemmOutput {
 public:
  // Allocates an output of the file's product and fills it with zeros. scale_bytes is 0 where it is not quantized.
  GemmOutput(const Device& device, const GemmInput& input, std::string name, DataType type, int64_t width,
             size_t scale_bytes);

  Tensor tensor() const;
  // The same memory with a pointer for each group.
  TensorArray pointers();

  // Appends the tensor NAME, and for a quantized output NAME_scales, blocked or row-major. Rows of no group are 0.
  // `ends` are the ends of the groups in device memory with Offsets, else null.
  void append_to(std::vector<TensorToWrite>& tensors, const int32_t* ends, bool blocked_scales) const;

 private:
  int64_t rows() const;  // of all groups
  size_t row_bytes() const { return static_cast<size_t>(width_ * bits_of(type_)) / 8; }
  // The shape of a tensor that has the results' rows with `columns` elements each.
  std::vector<int64_t> shape(int64_t columns) const;
  TensorToWrite scales_tensor(const int32_t* ends, bool blocked) const;
  std::vector<uint8_t> download(const timing::Buffer& buffer, size_t bytes) const;

  const Device& device_;
  const GemmInput& input_;
  std::string name_;
  DataType type_;
  int64_t width_;
  size_t scale_bytes_;
  timing::Buffer values_, scales_;
  timing::Buffer pointers_, lds_, scale_pointers_;
};

}  // namespace moxie::cli
