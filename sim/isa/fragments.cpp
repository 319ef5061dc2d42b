// SPDX-License-Identifier: Apache-2.0
// Fragments as their instructions name them: types, shapes and numbers of registers.
#include "sim/isa/fragments.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

namespace sim::fragments {

Element element_from(const std::string& name) {
  static constexpr std::pair<std::string_view, Element> kNames[] = {
      {"f16", Element::F16},   {"bf16", Element::BF16}, {"tf32", Element::TF32}, {"e4m3", Element::E4M3},
      {"e5m2", Element::E5M2}, {"f64", Element::F64},   {"s8", Element::S8},     {"u8", Element::U8},
      {"s4", Element::S4},     {"u4", Element::U4},     {"b1", Element::B1},     {"f32", Element::F32},
      {"s32", Element::S32}};
  for (const auto& [text, element] : kNames) {
    if (text == name) return element;
  }
  return Element::None;
}

int bits_of(Element e) {
  switch (e) {
    case Element::F64:
      return 64;
    case Element::F32:
    case Element::S32:
    case Element::TF32:
      return 32;
    case Element::F16:
    case Element::BF16:
      return 16;
    case Element::S4:
    case Element::U4:
      return 4;
    case Element::B1:
      return 1;
    default:
      return 8;
  }
}

ValueOperand push_registers(const ptx::Operand& operand, DecodeContext& context, int registers, bool doubles,
                            bool destination) {
  using Kind = ptx::Operand::Kind;
  const std::vector<ptx::Operand> alone = {operand};
  const std::vector<ptx::Operand>& elements = operand.kind == Kind::Vector ? operand.elements : alone;
  if (elements.size() != static_cast<size_t>(registers)) {
    throw Unsupported("a fragment has " + std::to_string(elements.size()) + " registers and needs " +
                      std::to_string(registers));
  }
  const ValueOperand first{context.pushed()};
  for (const ptx::Operand& e : elements) {
    const bool constant = e.kind == Kind::Immediate && !destination;
    if (e.kind != Kind::Register && !constant) throw Unsupported("a fragment consists of registers");
    const ptx::Type have = context.register_type(e);
    if (!constant && (have == ptx::Type::Pred || ptx::bytes_of(have) != (doubles ? 8 : 4)))
      throw Unsupported("a register of a fragment does not have " + std::string(doubles ? "64" : "32") + " bits");
    context.push(e, doubles ? ptx::Type::F64 : ptx::Type::B32);
  }
  return first;
}

WmmaShape wmma_shape(const ptx::Instruction& source) {
  static constexpr std::pair<std::string_view, WmmaShape> kShapes[] = {
      {"m16n16k16", {16, 16, 16}}, {"m8n32k16", {8, 32, 16}}, {"m32n8k16", {32, 8, 16}}, {"m16n16k8", {16, 16, 8}},
      {"m8n8k4", {8, 8, 4}},       {"m8n8k32", {8, 8, 32}},   {"m8n8k128", {8, 8, 128}},
  };
  for (const auto& [name, shape] : kShapes) {
    if (std::find(source.parts.begin(), source.parts.end(), name) != source.parts.end()) return shape;
  }
  return {};
}

bool wmma_has(WmmaShape shape, WmmaMatrix matrix, Element element) {
  const bool accumulator = matrix == WmmaMatrix::Accumulator;
  const bool wide = shape.k == 16;
  switch (element) {
    case Element::F16:
      return wide;
    case Element::BF16:
    case Element::S8:
    case Element::U8:
      return wide && !accumulator;
    case Element::TF32:
      return shape.k == 8 && !accumulator;
    case Element::F64:
      return shape.k == 4;
    case Element::S4:
    case Element::U4:
      return shape.k == 32 && !accumulator;
    case Element::B1:
      return shape.k == 128 && !accumulator;
    case Element::F32:
      return (wide || shape.k == 8) && accumulator;
    case Element::S32:
      return (wide || shape.k >= 32) && accumulator;
    default:
      return false;
  }
}

int wmma_product_registers(WmmaShape shape, WmmaMatrix matrix, Element element) {
  const int elements = matrix == WmmaMatrix::A   ? shape.rows() * shape.k
                       : matrix == WmmaMatrix::B ? kColumns * shape.k
                                                 : shape.rows() * kColumns;
  return elements * bits_of(element) / (kLanes * register_bits_of(element));
}

int wmma_distinct_registers(WmmaShape shape, WmmaMatrix matrix, Element element) {
  return wmma_product_registers(shape, matrix, element) * (matrix == WmmaMatrix::B ? 1 : shape.products_down()) *
         (matrix == WmmaMatrix::A ? 1 : shape.products_across());
}

int wmma_registers(WmmaShape shape, WmmaMatrix matrix, Element element) {
  if (matrix != WmmaMatrix::Accumulator && element == Element::F16) return 8;
  return wmma_distinct_registers(shape, matrix, element);
}

}  // namespace sim::fragments
