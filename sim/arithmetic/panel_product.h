// SPDX-License-Identifier: Apache-2.0
// The arithmetic of wgmma: matrix fragments to float panels, and the product of panels into the register file.
// Every product is accumulated by a fused multiply-add in the order of k, one accumulator an element, so the result
// is the same on every host. (PTX ISA 9.7.15.5.2 leaves order and rounding open; products of 16-bit floats, tf32
// and 8-bit floats are exact in float32.)
#pragma once
#include <bit>
#include <cstdint>

#include "sim/arithmetic/half.h"

namespace sim {

inline float bf16_to_f32(uint16_t x) { return isa::widen(isa::Bfloat{x}); }
inline uint16_t f32_to_bf16(float x) { return isa::narrow<isa::Bfloat>(x).bits; }
inline float f16_to_f32(uint16_t x) { return isa::widen(isa::Half{x}); }
inline uint16_t f32_to_f16(float x) { return isa::narrow<isa::Half>(x).bits; }
float e4m3_to_f32(uint8_t x);
float e5m2_to_f32(uint8_t x);

// Operand tiles as they are multiplied. Accumulator register i = 4 * j + 2 * h + e of warp w holds, for lane
// 4 * r + c, row 16 * w + r + 8 * h and column 8 * j + 2 * c + e of D (9.7.15.5.1.1). Panels follow that:
//   A: for each warp, k, half h: 8 rows, each repeated 4 times (32 floats): [w][k][h][32]
//   B: for each j, k, parity e: 4 columns 8 * j + 2 * c + e:                [j][k][e][4]
constexpr int kPanelRow = 32;
inline float* a_panel(float* base, int depth, int warp, int k, int half) {
  return base + ((static_cast<int64_t>(warp) * depth + k) * 2 + half) * kPanelRow;
}
inline float* b_panel(float* base, int depth, int j, int k) { return base + (static_cast<int64_t>(j) * depth + k) * 8; }
constexpr int64_t a_panel_floats(int depth) { return int64_t{4} * depth * 2 * kPanelRow; }
constexpr int64_t b_panel_floats(int depth, int n) { return int64_t{n} * depth; }

enum class Element : uint8_t { F16, BF16, TF32, E4M3, E5M2, S8, U8, B1 };  // B1: by bytes
constexpr int element_bytes(Element e) { return e == Element::TF32 ? 4 : e <= Element::BF16 ? 2 : 1; }

// Sixteen bytes of each of eight rows of A (or columns of B), as they lie in memory, into the panels: their elements
// are those from k on. `across`: source i is not row i but element k + i of all eight rows, which have 16 bits. `flip`
// is XORed to each float's bits (0x80000000 negates).
struct Pieces {
  const uint8_t* at[8];
  Element element;
  bool across = false;
  uint32_t flip = 0;
};
void pack_a(const Pieces& pieces, float* base, int depth, int warp, int k, int half);
void pack_b(const Pieces& pieces, float* base, int depth, int j, int k);

// Adds to (or, when `fresh`, sets) the accumulators of one warp: rows[i] is the register row of accumulator i
// (32 floats, 64-byte aligned), n columns, `depth` steps of k.
void multiply(float* const rows[], int n, const float* a, const float* b, int depth, bool fresh);
// The same of those elements of A alone for which `stored`, a panel like A's, has no zero.
void multiply_stored(float* const rows[], int n, const float* a, const float* stored, const float* b, int depth,
                     bool fresh);
// multiply() by one instruction set; false when this host does not have it.
enum class Vectors { None, Avx2, Avx512 };
bool pack_a_by(Vectors vectors, const Pieces& pieces, float* base, int depth, int warp, int k, int half);
bool pack_b_by(Vectors vectors, const Pieces& pieces, float* base, int depth, int j, int k);
bool multiply_by(Vectors vectors, float* const rows[], int n, const float* a, const float* b, int depth, bool fresh);

}  // namespace sim
