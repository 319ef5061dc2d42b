// The arithmetic of wgmma: matrix fragments to float panels, and the product of panels into the register file.
// Every product is accumulated by a fused multiply-add in the order of k, one accumulator an element, so the result
// is the same on every host. (PTX ISA 9.7.15.5.2 leaves order and rounding open; products of 16-bit floats, tf32
// and 8-bit floats are exact in float32.)
#pragma once
#include <bit>
#include <cstdint>

#include "sim/isa/half.h"

namespace sim {

inline float bf16_to_f32(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }
inline uint16_t f32_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float f16_to_f32(uint16_t x) { return isa::widen(isa::Half{x}); }
uint16_t f32_to_f16(float x);  // nearest even
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

// Eight rows (or columns) of 8 consecutive 16-bit values along k, as they lie in shared memory, into the panels.
// rows[i] points at the 16 bytes of row i. `flip` is XORed to each float's bits (0x80000000 negates).
void pack_a_bf16(const uint8_t* const rows[8], float* base, int depth, int warp, int k, int half, uint32_t flip);
void pack_b_bf16(const uint8_t* const rows[8], float* base, int depth, int j, int k);

// Adds to (or, when `fresh`, sets) the accumulators of one warp: rows[i] is the register row of accumulator i
// (32 floats, 64-byte aligned), n columns, `depth` steps of k.
void multiply(float* const rows[], int n, const float* a, const float* b, int depth, bool fresh);
// The same by one instruction set; false when this host does not have it.
enum class Vectors { None, Avx2, Avx512 };
bool multiply_by(Vectors vectors, float* const rows[], int n, const float* a, const float* b, int depth, bool fresh);

}  // namespace sim
