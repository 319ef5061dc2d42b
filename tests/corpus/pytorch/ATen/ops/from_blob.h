// SPDX-License-Identifier: Apache-2.0
// Stands in for PyTorch's header of this name.
#pragma once

#include "ATen/core/Tensor.h"
