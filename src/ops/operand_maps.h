// SPDX-License-Identifier: Apache-2.0
// Shapes of the tensor maps of operands, scales and outputs. They follow docs/tensor_maps.md.
#pragma once
#include "driver/driver.h"
#include "plan/plan.h"

namespace moxie::ops {

using plan::ProblemShape;

// `rows`: of a box.
driver::TensorMapShape a_shape(const ProblemShape& shape, int64_t lda, int rows);
template <class Config>
driver::TensorMapShape b_shape(const Config& config, const ProblemShape& shape, int64_t ldb, int rows);

driver::TensorMapShape a_scale_shape(const kernel::BlackwellConfig& config, const ProblemShape& shape);
driver::TensorMapShape b_scale_shape(const kernel::BlackwellConfig& config, const ProblemShape& shape);
// B's scales again, for the 16 columns beside whole groups of 32.
driver::TensorMapShape half_group_shape(const ProblemShape& shape);

// Of an output of `width` columns that is not quantized.
template <class Config>
driver::TensorMapShape store_shape(const Config& config, const ProblemShape& shape, bool pre, DataType type, int64_t ld,
                                   int64_t width);

// Groups whose matrices lie behind each other.
bool is_stacked(const ProblemShape& shape);

}  // namespace moxie::ops
