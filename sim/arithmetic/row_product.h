// SPDX-License-Identifier: Apache-2.0
// Products of float panels into rows of accumulators in tensor memory: each accumulator takes its products by fused
// multiply-adds in the order of k, so the result is the same on every host. (PTX ISA 9.7.16.10 leaves order and
// rounding open; products of the narrow types are exact in float32.)
#pragma once
#include <cstdint>

namespace sim {

// d[i][j] (or 0 when `fresh`) += a[i * depth + k] * b[k * b_step + j] for i < rows, j < columns. Rows of d and b need
// no alignment; columns is a multiple of 4.
void multiply_rows(float* const d[], int rows, int columns, const float* a, const float* b, int64_t b_step, int depth,
                   bool fresh);

// The same on a given path, for tests; false when this host does not have it.
enum class ProductPath { Portable, Avx2, Avx512 };
bool multiply_rows_by(ProductPath path, float* const d[], int rows, int columns, const float* a, const float* b,
                      int64_t b_step, int depth, bool fresh);

}  // namespace sim
