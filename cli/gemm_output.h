// An output of `moxie gemm`: its device memory, and the tensors that the file gets of it.
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
  // Memory for one output of the file's product, all zero. scale_bytes: of a quantized output, else 0.
  GemmOutput(const Device& device, const GemmInput& input, std::string name, DataType type, int64_t width,
             size_t scale_bytes);

  Tensor tensor() const;
  // The same memory as one pointer for each group.
  TensorArray pointers();

  // Appends NAME, and of a quantized output NAME_scales as they leave the kernel or row-major. Rows of no group are 0.
  // ends: with Offsets the ends of the groups in device memory, else null.
  void append_to(std::vector<TensorToWrite>& tensors, const int32_t* ends, bool blocked_scales) const;

 private:
  int64_t rows() const;  // of all groups
  size_t row_bytes() const { return static_cast<size_t>(width_ * bits_of(type_)) / 8; }
  // The shape of the results with rows of `columns` elements.
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
