#include "sim/async/product.h"

#include <immintrin.h>

#include <array>
#include <cmath>
#include <cstring>

namespace sim {

uint16_t f32_to_f16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7fff;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // rounds to infinity
  if (magnitude < 0x38800000) {                       // subnormal: let the float unit round to multiples of 2^-24
    const float scaled = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(scaled) - 0x3f000000);
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return sign | static_cast<uint16_t>((rounded - 0x38000000) >> 13);
}

float e5m2_to_f32(uint8_t x) { return f16_to_f32(static_cast<uint16_t>(x << 8)); }

float e4m3_to_f32(uint8_t x) {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> all{};
    for (int code = 0; code < 256; ++code) {
      const int exponent = code >> 3 & 15, fraction = code & 7;
      const float magnitude = exponent == 15 && fraction == 7 ? std::bit_cast<float>(0x7fffffffu)
                              : exponent == 0                 ? std::ldexp(static_cast<float>(fraction), -9)
                                              : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
      all[static_cast<size_t>(code)] = code & 0x80 ? -magnitude : magnitude;
    }
    return all;
  }();
  return values[x];
}

namespace {

// SSE2, which every x86-64 has: t[k] = the 8 rows' values at k.
void transpose_16bit(const uint8_t* const rows[8], const int order[8], __m128i t[8]) {
  __m128i r[8], s[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[order[i]]));
  for (int i = 0; i < 4; ++i) {
    s[i] = _mm_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
    s[i + 4] = _mm_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
  }
  for (int half = 0; half < 2; ++half) {
    const __m128i* p = s + 4 * half;
    const __m128i a = _mm_unpacklo_epi32(p[0], p[1]), b = _mm_unpackhi_epi32(p[0], p[1]);
    const __m128i c = _mm_unpacklo_epi32(p[2], p[3]), d = _mm_unpackhi_epi32(p[2], p[3]);
    t[4 * half + 0] = _mm_unpacklo_epi64(a, c);
    t[4 * half + 1] = _mm_unpackhi_epi64(a, c);
    t[4 * half + 2] = _mm_unpacklo_epi64(b, d);
    t[4 * half + 3] = _mm_unpackhi_epi64(b, d);
  }
}

}  // namespace

void pack_b_bf16(const uint8_t* const rows[8], float* base, int depth, int j, int k) {
  constexpr int kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  __m128i t[8];
  transpose_16bit(rows, kOrder, t);
  const __m128i zero = _mm_setzero_si128();
  for (int i = 0; i < 8; ++i) {
    __m128i* const out = reinterpret_cast<__m128i*>(b_panel(base, depth, j, k + i));
    _mm_storeu_si128(out, _mm_unpacklo_epi16(zero, t[i]));
    _mm_storeu_si128(out + 1, _mm_unpackhi_epi16(zero, t[i]));
  }
}

void pack_a_bf16(const uint8_t* const rows[8], float* base, int depth, int warp, int k, int half, uint32_t flip) {
  constexpr int kOrder[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  __m128i t[8];
  transpose_16bit(rows, kOrder, t);
  const __m128i zero = _mm_setzero_si128();
  const __m128i sign = _mm_set1_epi32(static_cast<int>(flip));
  for (int i = 0; i < 8; ++i) {
    __m128i* const out = reinterpret_cast<__m128i*>(a_panel(base, depth, warp, k + i, half));
    const __m128i low = _mm_xor_si128(_mm_unpacklo_epi16(zero, t[i]), sign);
    const __m128i high = _mm_xor_si128(_mm_unpackhi_epi16(zero, t[i]), sign);
    _mm_storeu_si128(out + 0, _mm_shuffle_epi32(low, 0x00));
    _mm_storeu_si128(out + 1, _mm_shuffle_epi32(low, 0x55));
    _mm_storeu_si128(out + 2, _mm_shuffle_epi32(low, 0xaa));
    _mm_storeu_si128(out + 3, _mm_shuffle_epi32(low, 0xff));
    _mm_storeu_si128(out + 4, _mm_shuffle_epi32(high, 0x00));
    _mm_storeu_si128(out + 5, _mm_shuffle_epi32(high, 0x55));
    _mm_storeu_si128(out + 6, _mm_shuffle_epi32(high, 0xaa));
    _mm_storeu_si128(out + 7, _mm_shuffle_epi32(high, 0xff));
  }
}

namespace {

// J columns of 8 at a time: J * 2 broadcasts of B against 4 vectors of A, 8 * J accumulators in registers.
template <int J>
__attribute__((target("avx512f"))) void block_avx512(float* const rows[], const float* a, const float* b, int depth,
                                                     bool fresh) {
  __m512 sum[J][2][4];  // [j][e][2 * h + z]
#pragma GCC unroll 8
  for (int j = 0; j < J; ++j) {
#pragma GCC unroll 8
    for (int e = 0; e < 2; ++e) {
#pragma GCC unroll 8
      for (int hz = 0; hz < 4; ++hz) {
        float* const row = rows[4 * j + 2 * (hz >> 1) + e] + 16 * (hz & 1);
        sum[j][e][hz] = fresh ? _mm512_setzero_ps() : _mm512_load_ps(row);
      }
    }
  }
  for (int k = 0; k < depth; ++k) {
    const float* const ak = a + static_cast<int64_t>(k) * 2 * kPanelRow;
    const __m512 a0 = _mm512_load_ps(ak), a1 = _mm512_load_ps(ak + 16);
    const __m512 a2 = _mm512_load_ps(ak + 32), a3 = _mm512_load_ps(ak + 48);
#pragma GCC unroll 8
    for (int j = 0; j < J; ++j) {
#pragma GCC unroll 8
      for (int e = 0; e < 2; ++e) {
        const __m512 bk =
            _mm512_maskz_broadcast_f32x4(0xffff, _mm_load_ps(b + (static_cast<int64_t>(j) * depth + k) * 8 + 4 * e));
        sum[j][e][0] = _mm512_fmadd_ps(a0, bk, sum[j][e][0]);
        sum[j][e][1] = _mm512_fmadd_ps(a1, bk, sum[j][e][1]);
        sum[j][e][2] = _mm512_fmadd_ps(a2, bk, sum[j][e][2]);
        sum[j][e][3] = _mm512_fmadd_ps(a3, bk, sum[j][e][3]);
      }
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < J; ++j) {
#pragma GCC unroll 8
    for (int e = 0; e < 2; ++e) {
#pragma GCC unroll 8
      for (int hz = 0; hz < 4; ++hz) _mm512_store_ps(rows[4 * j + 2 * (hz >> 1) + e] + 16 * (hz & 1), sum[j][e][hz]);
    }
  }
}

void multiply_avx512(float* const rows[], int n, const float* a, const float* b, int depth, bool fresh) {
  const int columns = n / 8;
  int j = 0;
  for (; j + 3 <= columns; j += 3) block_avx512<3>(rows + 4 * j, a, b + int64_t{8} * depth * j, depth, fresh);
  if (columns - j == 2) block_avx512<2>(rows + 4 * j, a, b + int64_t{8} * depth * j, depth, fresh);
  if (columns - j == 1) block_avx512<1>(rows + 4 * j, a, b + int64_t{8} * depth * j, depth, fresh);
}

// One column of 8 and one half of the rows: 2 broadcasts of B against 4 vectors of A.
__attribute__((target("avx2,fma"))) void multiply_avx2(float* const rows[], int n, const float* a, const float* b,
                                                       int depth, bool fresh) {
  for (int j = 0; j < n / 8; ++j) {
    for (int h = 0; h < 2; ++h) {
      float* const even = rows[4 * j + 2 * h];
      float* const odd = rows[4 * j + 2 * h + 1];
      __m256 sum[2][4];
      for (int z = 0; z < 4; ++z) {
        sum[0][z] = fresh ? _mm256_setzero_ps() : _mm256_load_ps(even + 8 * z);
        sum[1][z] = fresh ? _mm256_setzero_ps() : _mm256_load_ps(odd + 8 * z);
      }
      const float* ak = a + h * kPanelRow;
      const float* bk = b + int64_t{8} * depth * j;
      for (int k = 0; k < depth; ++k, ak += 2 * kPanelRow, bk += 8) {
        const __m256 b0 = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(bk));
        const __m256 b1 = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(bk + 4));
        for (int z = 0; z < 4; ++z) {
          const __m256 az = _mm256_load_ps(ak + 8 * z);
          sum[0][z] = _mm256_fmadd_ps(az, b0, sum[0][z]);
          sum[1][z] = _mm256_fmadd_ps(az, b1, sum[1][z]);
        }
      }
      for (int z = 0; z < 4; ++z) {
        _mm256_store_ps(even + 8 * z, sum[0][z]);
        _mm256_store_ps(odd + 8 * z, sum[1][z]);
      }
    }
  }
}

void multiply_portable(float* const rows[], int n, const float* a, const float* b, int depth, bool fresh) {
  for (int i = 0; i < n / 2; ++i) {
    const int j = i / 4, h = i / 2 % 2, e = i % 2;
    for (int lane = 0; lane < kPanelRow; ++lane) {
      float sum = fresh ? 0.0f : rows[i][lane];
      for (int k = 0; k < depth; ++k) {
        sum = std::fma(a[(int64_t{2} * k + h) * kPanelRow + lane],
                       b[(static_cast<int64_t>(j) * depth + k) * 8 + 4 * e + lane % 4], sum);
      }
      rows[i][lane] = sum;
    }
  }
}

using Multiply = void (*)(float* const[], int, const float*, const float*, int, bool);

// Null where the host lacks the instructions.
Multiply multiply_for(Vectors vectors) {
  switch (vectors) {
    case Vectors::None:
      return multiply_portable;
    case Vectors::Avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? multiply_avx2 : nullptr;
    case Vectors::Avx512:
      return __builtin_cpu_supports("avx512f") ? multiply_avx512 : nullptr;
  }
  return nullptr;
}

}  // namespace

void multiply(float* const rows[], int n, const float* a, const float* b, int depth, bool fresh) {
  static const Multiply widest = [] {
    for (const Vectors vectors : {Vectors::Avx512, Vectors::Avx2}) {
      if (const Multiply found = multiply_for(vectors)) return found;
    }
    return multiply_for(Vectors::None);
  }();
  widest(rows, n, a, b, depth, fresh);
}

bool multiply_by(Vectors vectors, float* const rows[], int n, const float* a, const float* b, int depth, bool fresh) {
  const Multiply chosen = multiply_for(vectors);
  if (chosen != nullptr) chosen(rows, n, a, b, depth, fresh);
  return chosen != nullptr;
}

}  // namespace sim
