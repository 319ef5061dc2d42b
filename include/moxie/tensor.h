// SPDX-License-Identifier: Apache-2.0
// Matrices in device memory.
#pragma once
#include <cstdint>

namespace moxie {

// A matrix that a call reads, or one for each group behind each other. `ld` is the distance between rows in elements:
// at least the width, a multiple of 16 bytes, and 0 stands for the width. `data` is aligned to 16 bytes.
struct ConstTensor {
  const void* data = nullptr;  // the first element
  int64_t ld = 0;              // leading dimension in elements
  // MXFP4, MXFP8 and NVFP4: the scales in the blocked layout (moxie/scales.h), aligned to 16 bytes. Null for others.
  const void* scales = nullptr;
  // NVFP4: the float that the elements are multiplied by besides (moxie/quantize.h), in device memory; null stands
  // for 1. Null for others.
  const float* tensor_scale = nullptr;
};

// A matrix that a call writes. The members mean what those of ConstTensor mean. The tensor scale is read, not written:
// it is positive.
struct Tensor {
  void* data = nullptr;                 // the first element
  int64_t ld = 0;                       // leading dimension in elements
  void* scales = nullptr;               // of a quantized output
  const float* tensor_scale = nullptr;  // NVFP4: read, positive

  // What one product writes, the next one reads.
  operator ConstTensor() const { return {data, ld, scales, tensor_scale}; }
};

}  // namespace moxie
