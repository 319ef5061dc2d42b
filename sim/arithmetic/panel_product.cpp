// SPDX-License-Identifier: Apache-2.0
#include "sim/arithmetic/panel_product.h"

#include <cpuid.h>
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace sim {

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

float to_float(Element e, const uint8_t* bytes) {
  uint16_t half = 0;
  uint32_t word = 0;
  switch (e) {
    case Element::F16:
      std::memcpy(&half, bytes, 2);
      return f16_to_f32(half);
    case Element::BF16:
      std::memcpy(&half, bytes, 2);
      return bf16_to_f32(half);
    case Element::TF32:
      std::memcpy(&word, bytes, 4);
      return std::bit_cast<float>(word & ~0x1fffu);  // the lower 13 bits are dropped
    case Element::E4M3:
      return e4m3_to_f32(*bytes);
    case Element::E5M2:
      return e5m2_to_f32(*bytes);
    case Element::S8:
      return static_cast<float>(static_cast<int8_t>(*bytes));
    default:
      return static_cast<float>(*bytes);
  }
}

// values[k][i]: element k of row i.
int widen_portable(const Pieces& p, float (*values)[8]) {
  const int bytes = element_bytes(p.element), count = 16 / bytes;
  for (int k = 0; k < count; ++k) {
    for (int i = 0; i < 8; ++i) {
      const float value = to_float(p.element, p.across ? p.at[k] + i * bytes : p.at[i] + k * bytes);
      values[k][i] = std::bit_cast<float>(std::bit_cast<uint32_t>(value) ^ p.flip);
    }
  }
  return count;
}
void pack_a_portable(const Pieces& p, float* base, int depth, int warp, int k, int half) {
  float values[16][8];
  const int count = widen_portable(p, values);
  for (int i = 0; i < count; ++i) {
    float* const out = a_panel(base, depth, warp, k + i, half);
    for (int at = 0; at < kPanelRow; ++at) out[at] = values[i][at / 4];
  }
}
void pack_b_portable(const Pieces& p, float* base, int depth, int j, int k) {
  float values[16][8];
  const int count = widen_portable(p, values);
  for (int i = 0; i < count; ++i) {
    float* const out = b_panel(base, depth, j, k + i);
    for (int at = 0; at < 8; ++at) out[at] = values[i][at % 4 * 2 + at / 4];
  }
}

#define MOXIE_AVX2 __attribute__((target("avx2,f16c")))

// t[k] = the 8 rows' 16 bits at k.
MOXIE_AVX2 inline void transpose_16bit(const uint8_t* const rows[8], __m128i t[8]) {
  __m128i r[8], s[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[i]));
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

// Eight elements, each in the low bits of 16, as floats.
template <Element kElement>
MOXIE_AVX2 inline __m256 widen_16bit(__m128i x) {
  switch (kElement) {
    case Element::F16:
      return _mm256_cvtph_ps(x);
    case Element::BF16:
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
    case Element::E5M2:
      return _mm256_cvtph_ps(_mm_slli_epi16(x, 8));
    case Element::E4M3: {
      // As an f16, whose exponent has one bit more, it is 2^8 too small; the last code is NaN.
      const __m128i moved = _mm_and_si128(_mm_srai_epi16(_mm_slli_epi16(x, 8), 1), _mm_set1_epi16(~0x4000));
      const __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(x, _mm_set1_epi16(0x7f)), _mm_set1_epi16(0x7f));
      const __m256 value = _mm256_mul_ps(_mm256_cvtph_ps(moved), _mm256_set1_ps(256.0f));
      const __m256i all_ones = _mm256_srli_epi32(_mm256_cvtepi16_epi32(nan), 1);
      return _mm256_or_ps(value, _mm256_castsi256_ps(all_ones));
    }
    case Element::S8:
      return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_srai_epi16(_mm_slli_epi16(x, 8), 8)));
    default:
      return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_and_si128(x, _mm_set1_epi16(0xff))));
  }
}

template <Element kElement, class Emit>
MOXIE_AVX2 inline void widen_avx2(const Pieces& p, const Emit& emit) {
  if constexpr (kElement == Element::TF32) {
    const __m256i kept = _mm256_set1_epi32(~0x1fff);
    __m256i r[4];
    for (int i = 0; i < 4; ++i)
      r[i] = _mm256_and_si256(kept, _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(p.at[i + 4]),
                                                        reinterpret_cast<const __m128i*>(p.at[i])));
    const __m256i a = _mm256_unpacklo_epi32(r[0], r[1]), b = _mm256_unpackhi_epi32(r[0], r[1]);
    const __m256i c = _mm256_unpacklo_epi32(r[2], r[3]), d = _mm256_unpackhi_epi32(r[2], r[3]);
    emit(0, _mm256_castsi256_ps(_mm256_unpacklo_epi64(a, c)));
    emit(1, _mm256_castsi256_ps(_mm256_unpackhi_epi64(a, c)));
    emit(2, _mm256_castsi256_ps(_mm256_unpacklo_epi64(b, d)));
    emit(3, _mm256_castsi256_ps(_mm256_unpackhi_epi64(b, d)));
  } else {
    __m128i t[8];
    if (p.across) {
      for (int i = 0; i < 8; ++i) t[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p.at[i]));
    } else {
      transpose_16bit(p.at, t);
    }
    for (int i = 0; i < 8; ++i) {
      if constexpr (element_bytes(kElement) == 2) {
        emit(i, widen_16bit<kElement>(t[i]));
      } else {
        emit(2 * i, widen_16bit<kElement>(t[i]));
        emit(2 * i + 1, widen_16bit<kElement>(_mm_srli_epi16(t[i], 8)));
      }
    }
  }
}

struct EmitA {
  float* out;
  __m256 flip;
  MOXIE_AVX2 void operator()(int k, __m256 value) const {
    const __m256 v = _mm256_xor_ps(value, flip);
    float* const row = out + k * 2 * kPanelRow;
    const __m256 low = _mm256_permute2f128_ps(v, v, 0x00), high = _mm256_permute2f128_ps(v, v, 0x11);
    const __m256i first = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1), second = _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3);
    _mm256_store_ps(row, _mm256_permutevar_ps(low, first));
    _mm256_store_ps(row + 8, _mm256_permutevar_ps(low, second));
    _mm256_store_ps(row + 16, _mm256_permutevar_ps(high, first));
    _mm256_store_ps(row + 24, _mm256_permutevar_ps(high, second));
  }
};
struct EmitB {
  float* out;
  __m256 flip;
  MOXIE_AVX2 void operator()(int k, __m256 value) const {
    const __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    _mm256_store_ps(out + k * 8, _mm256_permutevar8x32_ps(_mm256_xor_ps(value, flip), order));
  }
};

template <class Emit>
MOXIE_AVX2 void pack_avx2(const Pieces& p, float* out) {
  const Emit emit{out, _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(p.flip)))};
  switch (p.element) {
    case Element::F16:
      return widen_avx2<Element::F16>(p, emit);
    case Element::BF16:
      return widen_avx2<Element::BF16>(p, emit);
    case Element::TF32:
      return widen_avx2<Element::TF32>(p, emit);
    case Element::E4M3:
      return widen_avx2<Element::E4M3>(p, emit);
    case Element::E5M2:
      return widen_avx2<Element::E5M2>(p, emit);
    case Element::S8:
      return widen_avx2<Element::S8>(p, emit);
    default:
      return widen_avx2<Element::U8>(p, emit);
  }
}

// By cpuid: clang 14's __builtin_cpu_supports does not know it.
bool has_f16c() {
  static const bool has = [] {  // once: on a virtual machine cpuid takes tens of microseconds
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  }();
  return has;
}

bool packs_by(Vectors vectors) {
  return vectors == Vectors::None || (vectors == Vectors::Avx2 && __builtin_cpu_supports("avx2") && has_f16c());
}
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

bool pack_a_by(Vectors vectors, const Pieces& pieces, float* base, int depth, int warp, int k, int half) {
  if (!packs_by(vectors)) return false;
  if (vectors == Vectors::Avx2)
    pack_avx2<EmitA>(pieces, a_panel(base, depth, warp, k, half));
  else
    pack_a_portable(pieces, base, depth, warp, k, half);
  return true;
}
bool pack_b_by(Vectors vectors, const Pieces& pieces, float* base, int depth, int j, int k) {
  if (!packs_by(vectors)) return false;
  if (vectors == Vectors::Avx2)
    pack_avx2<EmitB>(pieces, b_panel(base, depth, j, k));
  else
    pack_b_portable(pieces, base, depth, j, k);
  return true;
}
void pack_a(const Pieces& pieces, float* base, int depth, int warp, int k, int half) {
  static const Vectors best = packs_by(Vectors::Avx2) ? Vectors::Avx2 : Vectors::None;
  pack_a_by(best, pieces, base, depth, warp, k, half);
}
void pack_b(const Pieces& pieces, float* base, int depth, int j, int k) {
  static const Vectors best = packs_by(Vectors::Avx2) ? Vectors::Avx2 : Vectors::None;
  pack_b_by(best, pieces, base, depth, j, k);
}

bool multiply_by(Vectors vectors, float* const rows[], int n, const float* a, const float* b, int depth, bool fresh) {
  const Multiply chosen = multiply_for(vectors);
  if (chosen != nullptr) chosen(rows, n, a, b, depth, fresh);
  return chosen != nullptr;
}

void multiply_stored(float* const rows[], int n, const float* a, const float* stored, const float* b, int depth,
                     bool fresh) {
  for (int i = 0; i < n / 2; ++i) {
    const int half = i / 2 % 2, parity = i % 2;
    if (fresh) std::fill_n(rows[i], kPanelRow, 0.0f);
    for (int k = 0; k < depth; ++k) {
      const float* const columns = b + (static_cast<int64_t>(i / 4) * depth + k) * 8 + 4 * parity;
      for (int lane = 0; lane < kPanelRow; ++lane) {
        const int64_t at = (int64_t{2} * k + half) * kPanelRow + lane;
        if (stored[at] != 0) rows[i][lane] = std::fma(a[at], columns[lane % 4], rows[i][lane]);
      }
    }
  }
}

}  // namespace sim
