// SPDX-License-Identifier: Apache-2.0
// Fragments: small matrices in the registers of a warp. Which types their elements have, which lane holds which element
// (PTX ISA 9.7.14.5), and which matrices wmma has (9.7.14.4).
#pragma once
#include <cstdint>
#include <string>

#include "sim/machine/decode.h"

namespace sim::fragments {

enum class Element : uint8_t { F16, BF16, TF32, E4M3, E5M2, F64, S8, U8, S4, U4, B1, F32, S32, None };
Element element_from(const std::string& name);
int bits_of(Element e);
// Of the registers that hold such elements.
inline int register_bits_of(Element e) { return e == Element::F64 ? 64 : 32; }

// A product has 8 or 16 rows and 8 columns.
constexpr int kColumns = 8;

// With E elements a register, register r of lane 4 g + t holds, of A, row g (+ 8 for odd r when there are 16 rows) and
// columns t E ... of the block of 4 E columns number r (r / 2 with 16 rows). Of B it holds column g and the rows
// likewise, and of C and D row g (+ 8 for the second pair) and columns 2 t, 2 t + 1. All shapes but m8n8k4 of f16
// follow this (9.7.14.5.2 to 9.7.14.5.13).
struct Place {
  int row;
  // Along k.
  int first;
};
inline Place place_in_a(int m, int reg, int lane, int per_register) {
  const int block = m == 16 ? reg / 2 : reg;
  return {lane / 4 + (m == 16 ? 8 * (reg % 2) : 0), (block * 4 + lane % 4) * per_register};
}
inline Place place_in_b(int reg, int lane, int per_register) { return {lane / 4, (reg * 4 + lane % 4) * per_register}; }

// Pushes the registers of a fragment and says where the first one stands. Throws Unsupported when they are others.
ValueOperand push_registers(const ptx::Operand& operand, DecodeContext& context, int registers, bool doubles,
                            bool destination);

// The ISA leaves the fragments of wmma open (9.7.14.4.1). Here they are those of products with 8 columns and 16 rows,
// or 8 where m is 8, one behind the other, row of products by row of products.
struct WmmaShape {
  uint8_t m = 0, n = 0, k = 0;
  int rows() const { return m < 16 ? m : 16; }
  int products_down() const { return m / rows(); }
  int products_across() const { return n / kColumns; }
};
// The shape that the opcode names, or one of 0 rows.
WmmaShape wmma_shape(const ptx::Instruction& source);
enum class WmmaMatrix : uint8_t { A, B, Accumulator };
bool wmma_has(WmmaShape shape, WmmaMatrix matrix, Element element);
// The registers of a product's part of a fragment, and those of a whole fragment. Fragments of A and B in f16 have 8
// for every shape (9.7.14.4.1): those behind the ones that the elements need hold the same once more.
int wmma_product_registers(WmmaShape shape, WmmaMatrix matrix, Element element);
int wmma_distinct_registers(WmmaShape shape, WmmaMatrix matrix, Element element);
int wmma_registers(WmmaShape shape, WmmaMatrix matrix, Element element);

}  // namespace sim::fragments
