// SPDX-License-Identifier: Apache-2.0
// Stands in for PyTorch's header of this name: there is one device, and its default stream.
#pragma once

#include <cuda_runtime.h>

namespace c10::cuda {

struct CUDAGuard {
  explicit CUDAGuard(int) {}
};

struct CUDAStream {
  cudaStream_t stream() const { return nullptr; }
  operator cudaStream_t() const { return nullptr; }
};

inline CUDAStream getCurrentCUDAStream() { return {}; }

}  // namespace c10::cuda
