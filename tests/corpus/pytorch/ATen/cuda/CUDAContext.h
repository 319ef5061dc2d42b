// SPDX-License-Identifier: Apache-2.0
// Stands in for PyTorch's header of this name.
#pragma once

#include "c10/cuda/CUDAGuard.h"

namespace at::cuda {
using c10::cuda::getCurrentCUDAStream;
}  // namespace at::cuda
