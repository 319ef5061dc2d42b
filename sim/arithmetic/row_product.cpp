// SPDX-License-Identifier: Apache-2.0
#include "sim/arithmetic/row_product.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>

namespace sim {

namespace {

// R rows by V vectors of 16 columns; `last` masks the last vector.
template <int R, int V>
__attribute__((target("avx512f"))) void block_avx512(float* const d[], const float* a, const float* b, int64_t b_step,
                                                     int depth, bool fresh, __mmask16 last) {
  __m512 sum[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v)
      sum[r][v] = fresh ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(v == V - 1 ? last : 0xffff, d[r] + 16 * v);
  }
  for (int k = 0; k < depth; ++k, b += b_step) {
    __m512 bk[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) bk[v] = _mm512_maskz_loadu_ps(v == V - 1 ? last : 0xffff, b + 16 * v);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512 ak = _mm512_set1_ps(a[r * depth + k]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[r][v] = _mm512_fmadd_ps(ak, bk[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) _mm512_mask_storeu_ps(d[r] + 16 * v, v == V - 1 ? last : 0xffff, sum[r][v]);
  }
}

template <int V>
void rows_avx512(float* const d[], int rows, int column, const float* a, const float* b, int64_t b_step, int depth,
                 bool fresh, __mmask16 last) {
  constexpr int kBlock = 6;
  float* at[kBlock];
  for (int r = 0; r < rows; r += kBlock) {
    const int count = std::min(kBlock, rows - r);
    for (int i = 0; i < count; ++i) at[i] = d[r + i] + column;
    const float* const from = a + static_cast<int64_t>(r) * depth;
    switch (count) {
      case 6:
        block_avx512<6, V>(at, from, b + column, b_step, depth, fresh, last);
        break;
      case 5:
        block_avx512<5, V>(at, from, b + column, b_step, depth, fresh, last);
        break;
      case 4:
        block_avx512<4, V>(at, from, b + column, b_step, depth, fresh, last);
        break;
      case 3:
        block_avx512<3, V>(at, from, b + column, b_step, depth, fresh, last);
        break;
      case 2:
        block_avx512<2, V>(at, from, b + column, b_step, depth, fresh, last);
        break;
      default:
        block_avx512<1, V>(at, from, b + column, b_step, depth, fresh, last);
        break;
    }
  }
}

void multiply_avx512(float* const d[], int rows, int columns, const float* a, const float* b, int64_t b_step, int depth,
                     bool fresh) {
  for (int column = 0; column < columns; column += 64) {
    const int left = std::min(64, columns - column);
    const auto last = static_cast<__mmask16>(0xffff >> (16 - ((left - 1) % 16 + 1)));
    switch ((left + 15) / 16) {
      case 4:
        rows_avx512<4>(d, rows, column, a, b, b_step, depth, fresh, last);
        break;
      case 3:
        rows_avx512<3>(d, rows, column, a, b, b_step, depth, fresh, last);
        break;
      case 2:
        rows_avx512<2>(d, rows, column, a, b, b_step, depth, fresh, last);
        break;
      default:
        rows_avx512<1>(d, rows, column, a, b, b_step, depth, fresh, last);
        break;
    }
  }
}

// Four rows by eight columns, then four.
__attribute__((target("avx2,fma"))) void multiply_avx2(float* const d[], int rows, int columns, const float* a,
                                                       const float* b, int64_t b_step, int depth, bool fresh) {
  for (int r = 0; r < rows; r += 4) {
    const int count = std::min(4, rows - r);
    int column = 0;
    for (; column + 8 <= columns; column += 8) {
      __m256 sum[4];
      for (int i = 0; i < count; ++i) sum[i] = fresh ? _mm256_setzero_ps() : _mm256_loadu_ps(d[r + i] + column);
      for (int k = 0; k < depth; ++k) {
        const __m256 bk = _mm256_loadu_ps(b + k * b_step + column);
        for (int i = 0; i < count; ++i)
          sum[i] = _mm256_fmadd_ps(_mm256_set1_ps(a[int64_t{r + i} * depth + k]), bk, sum[i]);
      }
      for (int i = 0; i < count; ++i) _mm256_storeu_ps(d[r + i] + column, sum[i]);
    }
    for (; column < columns; column += 4) {
      for (int i = 0; i < count; ++i) {
        __m128 sum = fresh ? _mm_setzero_ps() : _mm_loadu_ps(d[r + i] + column);
        for (int k = 0; k < depth; ++k)
          sum = _mm_fmadd_ps(_mm_set1_ps(a[int64_t{r + i} * depth + k]), _mm_loadu_ps(b + k * b_step + column), sum);
        _mm_storeu_ps(d[r + i] + column, sum);
      }
    }
  }
}

void multiply_portable(float* const d[], int rows, int columns, const float* a, const float* b, int64_t b_step,
                       int depth, bool fresh) {
  for (int r = 0; r < rows; ++r) {
    for (int column = 0; column < columns; ++column) {
      float sum = fresh ? 0.0f : d[r][column];
      for (int k = 0; k < depth; ++k) sum = std::fma(a[int64_t{r} * depth + k], b[k * b_step + column], sum);
      d[r][column] = sum;
    }
  }
}

bool has(ProductPath path) {
  switch (path) {
    case ProductPath::Avx512:
      return __builtin_cpu_supports("avx512f");
    case ProductPath::Avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case ProductPath::Portable:
      return true;
  }
  return false;
}

}  // namespace

bool multiply_rows_by(ProductPath path, float* const d[], int rows, int columns, const float* a, const float* b,
                      int64_t b_step, int depth, bool fresh) {
  if (!has(path)) return false;
  const auto chosen = path == ProductPath::Avx512 ? multiply_avx512
                      : path == ProductPath::Avx2 ? multiply_avx2
                                                  : multiply_portable;
  chosen(d, rows, columns, a, b, b_step, depth, fresh);
  return true;
}

void multiply_rows(float* const d[], int rows, int columns, const float* a, const float* b, int64_t b_step, int depth,
                   bool fresh) {
  static const ProductPath best = has(ProductPath::Avx512) ? ProductPath::Avx512
                                  : has(ProductPath::Avx2) ? ProductPath::Avx2
                                                           : ProductPath::Portable;
  multiply_rows_by(best, d, rows, columns, a, b, b_step, depth, fresh);
}

}  // namespace sim
