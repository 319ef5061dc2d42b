// SPDX-License-Identifier: Apache-2.0
// wmma.load and wmma.store (PTX ISA 9.7.14.4.3, .4): a warp moves a matrix between memory and its fragment, whose
// layout is that of sim/isa/fragments.h. Each element goes as a load or store of its lane.
#include <algorithm>
#include <cstring>
#include <string>

#include "sim/hazards/global_races.h"
#include "sim/hazards/shared_access.h"
#include "sim/hazards/undefined.h"
#include "sim/isa/address.h"
#include "sim/isa/fragments.h"
#include "sim/isa/warp_wide.h"
#include "sim/machine/operands.h"

namespace sim {
namespace {

using fragments::WmmaMatrix;
using fragments::WmmaShape;
using MatrixElement = fragments::Element;

struct WmmaMove {
  MemoryForm address;
  WmmaShape shape;
  WmmaMatrix matrix;
  MatrixElement element;
  bool by_rows;
  // Of the fragment, and of the stride in elements.
  ValueOperand first, stride;
};

struct MatrixSize {
  int rows, columns;
};
MatrixSize size_of(const WmmaMove& move) {
  const WmmaShape shape = move.shape;
  if (move.matrix == WmmaMatrix::A) return {shape.m, shape.k};
  if (move.matrix == WmmaMatrix::B) return {shape.k, shape.n};
  return {shape.m, shape.n};
}

struct MatrixPlace {
  int row, column;
};
// Of an element of a lane's register, which holds `each`.
MatrixPlace place_of(const WmmaMove& move, int reg, int index, int lane, int each) {
  const WmmaShape shape = move.shape;
  const int registers = fragments::wmma_product_registers(shape, move.matrix, move.element);
  const int product = reg / registers, in_product = reg % registers;
  if (move.matrix == WmmaMatrix::A) {
    const fragments::Place at = fragments::place_in_a(shape.rows(), in_product, lane, each);
    return {at.row + 16 * product, at.first + index};
  }
  if (move.matrix == WmmaMatrix::B) {
    const fragments::Place at = fragments::place_in_b(in_product, lane, each);
    return {at.first + index, at.row + fragments::kColumns * product};
  }
  const int i = in_product * each + index, across = shape.products_across();
  return {lane / 4 + 8 * (i / 2) + 16 * (product / across),
          2 * (lane % 4) + i % 2 + fragments::kColumns * (product % across)};
}

// ---- the rules of addresses and strides -----------------------------------------------------------

uint64_t base_of(const Warp& warp, const Instr& in, const WmmaMove& move, int lane) {
  const uint32_t row = in.reg[move.address.base.place];
  const auto addend = static_cast<uint64_t>(move.address.addend);
  return move.address.wide_base ? warp.row<uint64_t>(row)[lane] + addend
                                : static_cast<uint32_t>(warp.row<uint32_t>(row)[lane] + addend);
}

// The stride that all lanes give, in elements. Rows, or columns, begin at multiples of the fragment's size
// (9.7.14.4.2). The CUDA C++ programming guide asks for 16 bytes of the stride, which is what GPUs need.
uint64_t stride_of(Warp& warp, const Instr& in, const WmmaMove& move, bool stores) {
  const uint32_t stride_row = in.reg[move.stride.place];
  if (holds_undefined(warp)) [[unlikely]] {
    check_defined(warp, in, in.reg[move.address.base.place], kFullMask, "the address");
    check_defined(warp, in, stride_row, kFullMask, "the stride");
  }
  const uint32_t* const strides = warp.row<uint32_t>(stride_row);
  const uint64_t base = base_of(warp, in, move, 0);
  for (int lane = 1; lane < kLanes; ++lane) {
    if (base_of(warp, in, move, lane) != base)
      fault(Hazard::IllegalUse, warp, lane, "the lanes give different addresses of a matrix");
    if (strides[lane] != strides[0])
      fault(Hazard::IllegalUse, warp, lane, "the lanes give different strides of a matrix");
  }
  const uint64_t window = base & kWindowMask;
  if (move.address.space == AddressSpace::Generic && window != 0 && window != kSharedWindow)
    fault(Hazard::IllegalUse, warp, 0, "a matrix at " + hex(base) + " is neither in global nor in shared memory");

  const uint64_t stride = strides[0], bits = static_cast<uint64_t>(fragments::bits_of(move.element));
  const MatrixSize size = size_of(move);
  const auto least = static_cast<uint64_t>(move.by_rows ? size.columns : size.rows);
  // A row that is shorter than the fragment begins at a multiple of its own size, as the default strides do.
  const uint64_t fragment =
      std::min(static_cast<uint64_t>(fragments::wmma_registers(move.shape, move.matrix, move.element) *
                                     fragments::register_bits_of(move.element) / 8),
               least * bits / 8);
  const auto begins_at = [&](uint64_t bytes) { return base % bytes == 0 && stride * bits % (8 * bytes) == 0; };
  const auto misplaced = [&](uint64_t bytes) {
    return "misaligned matrix at " + hex(base) + " with a stride of " + std::to_string(stride) +
           " elements, which do not both come to multiples of " + std::to_string(bytes) + " bytes";
  };
  const uint64_t needed = std::min<uint64_t>(fragment, 16);
  if (!begins_at(needed)) fault(Hazard::Memory, warp, 0, misplaced(needed));
  if (!begins_at(fragment)) deviation(Hazard::Memory, warp, 0, [&] { return misplaced(fragment); });
  if (stride < least) {
    const auto text = [&] {
      return "a stride of " + std::to_string(stride) + " elements is less than the " + std::to_string(least) +
             " of a " + (move.by_rows ? "row" : "column");
    };
    if (stores) fault(Hazard::IllegalUse, warp, 0, text());
    deviation(Hazard::IllegalUse, warp, 0, text);
  }
  return stride;
}

// ---- moves ---------------------------------------------------------------------------------------

// The bytes of a fragment, lane by lane and register by register.
struct FragmentBytes {
  static constexpr size_t kMost = 8 * 4 * kLanes;
  alignas(64) uint8_t of[kMost] = {};
};

// Calls visit(p, at, size) for each piece of all lanes: a register, or an element where the elements of a register do
// not follow each other in memory. `at` is where lane 0's stands among a fragment's bytes; lane i's stands i *
// register_bytes behind.
template <class Visit>
void each_piece(Warp& warp, const Instr& in, const WmmaMove& move, uint64_t stride, Access access, Visit visit) {
  const int register_bits = fragments::register_bits_of(move.element), bits = fragments::bits_of(move.element);
  const int each = register_bits / bits;
  const bool along_columns = move.matrix == WmmaMatrix::B;
  const bool whole = each == 1 || move.by_rows != along_columns;
  const int pieces = whole ? 1 : each;
  const auto size = static_cast<uint32_t>(register_bits / 8 / pieces);
  const int registers = fragments::wmma_distinct_registers(move.shape, move.matrix, move.element);
  for (int r = 0; r < registers; ++r) {
    for (int i = 0; i < pieces; ++i) {
      uint64_t distance[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) {
        const MatrixPlace at = place_of(move, r, i, lane, each);
        const auto line = static_cast<uint64_t>(move.by_rows ? at.row : at.column);
        const auto within = static_cast<uint64_t>(move.by_rows ? at.column : at.row);
        distance[lane] = (line * stride + within) * static_cast<uint64_t>(bits) / 8;
      }
      Pointers p;
      resolve_behind(warp, in, move.address, distance, size, access, &p);
      visit(p, static_cast<size_t>(r * register_bits / 8 * kLanes) + size * static_cast<size_t>(i), size);
    }
  }
}

// Where a lane's piece stands.
uint8_t* piece_of(const WmmaMove& move, FragmentBytes& bytes, size_t at, int lane) {
  return bytes.of + at + static_cast<size_t>(lane * fragments::register_bits_of(move.element) / 8);
}

// The registers behind the distinct ones hold the same.
void write_fragment(Warp& warp, const Instr& in, const WmmaMove& move, const FragmentBytes& bytes) {
  const auto row = static_cast<size_t>(fragments::register_bits_of(move.element) / 8 * kLanes);
  const int distinct = fragments::wmma_distinct_registers(move.shape, move.matrix, move.element);
  for (int r = 0; r < fragments::wmma_registers(move.shape, move.matrix, move.element); ++r) {
    std::memcpy(warp.row<uint8_t>(in.reg[move.first.place + r]), bytes.of + static_cast<size_t>(r % distinct) * row,
                row);
  }
}
void read_fragment(const Warp& warp, const Instr& in, const WmmaMove& move, FragmentBytes* bytes) {
  const auto row = static_cast<size_t>(fragments::register_bits_of(move.element) / 8 * kLanes);
  for (int r = 0; r < fragments::wmma_registers(move.shape, move.matrix, move.element); ++r)
    std::memcpy(bytes->of + static_cast<size_t>(r) * row, warp.row<uint8_t>(in.reg[move.first.place + r]), row);
}

Step wmma_load(Warp& warp, const Instr& in, uint32_t mask) {
  if (!require_all_lanes(warp, mask)) return Step::Wait;
  const auto move = in.form<WmmaMove>();
  const uint64_t stride = stride_of(warp, in, move, false);
  FragmentBytes bytes, undefined;
  warp.reads.read_together(true);
  each_piece(warp, in, move, stride, Access::Read, [&](const Pointers& p, size_t at, uint32_t size) {
    for (int lane = 0; lane < kLanes; ++lane) {
      std::memcpy(piece_of(move, bytes, at, lane), p.at[lane], size);
      if (holds_undefined(warp)) [[unlikely]]
        load_undefined(warp, p.at[lane], piece_of(move, undefined, at, lane), size);
    }
  });
  warp.reads.read_together(false);
  write_fragment(warp, in, move, bytes);
  if (holds_undefined(warp)) [[unlikely]] {
    {
      const UndefinedRegisters registers(warp);
      write_fragment(warp, in, move, undefined);
    }
    for (int r = 0; r < fragments::wmma_registers(move.shape, move.matrix, move.element); ++r)
      note_undefined(warp, in.reg[move.first.place + r]);
  }
  return Step::Next;
}

Step wmma_store(Warp& warp, const Instr& in, uint32_t mask) {
  if (!require_all_lanes(warp, mask)) return Step::Wait;
  const auto move = in.form<WmmaMove>();
  const uint64_t stride = stride_of(warp, in, move, true);
  FragmentBytes bytes, undefined;
  read_fragment(warp, in, move, &bytes);
  if (holds_undefined(warp)) [[unlikely]] {
    const UndefinedRegisters registers(warp);
    read_fragment(warp, in, move, &undefined);
  }
  each_piece(warp, in, move, stride, Access::Write, [&](const Pointers& p, size_t at, uint32_t size) {
    uint8_t values[kLanes * sizeof(uint64_t)];
    for (int lane = 0; lane < kLanes; ++lane) {
      std::memcpy(values + static_cast<uint32_t>(lane) * size, piece_of(move, bytes, at, lane), size);
      std::memcpy(p.at[lane], values + static_cast<uint32_t>(lane) * size, size);
      if (holds_undefined(warp)) [[unlikely]]
        store_undefined(warp, p.at[lane], piece_of(move, undefined, at, lane), size);
    }
    shared_stores_done(warp);
    if (warp.cta->cluster->global_stores != 0) [[unlikely]]
      finish_global_stores(warp, p.at, p.row, values, size);
  });
  return Step::Next;
}

// ---- decoding ------------------------------------------------------------------------------------

// wmma.load.{a|b|c}.sync.aligned.layout.shape{.ss}.type r, [p]{, stride} and wmma.store.d likewise. ptxas takes their
// modifiers in any order.
bool decode_wmma_move(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  const std::vector<std::string>& parts = source.parts;
  if (parts.size() < 3 || (parts[1] != "load" && parts[1] != "store")) return false;
  const bool stores = parts[1] == "store";
  if (stores ? parts[2] != "d" : parts[2] != "a" && parts[2] != "b" && parts[2] != "c") return false;
  if (!has_part(source, "sync") || !has_part(source, "aligned")) return false;
  WmmaMove move{};
  move.shape = fragments::wmma_shape(source);
  move.matrix = parts[2] == "a" ? WmmaMatrix::A : parts[2] == "b" ? WmmaMatrix::B : WmmaMatrix::Accumulator;
  move.element = MatrixElement::None;
  move.by_rows = has_part(source, "row");
  if (move.shape.m == 0 || move.by_rows == has_part(source, "col")) return false;
  size_t known = 7;  // with the shape and the layout
  bool has_space = false;
  for (const std::string& part : parts) {
    if (!has_space && (part == "global" || part == "shared" || part == "shared::cta")) {
      has_space = read_modifier(part, &move.address);
      ++known;
    } else if (move.element == MatrixElement::None && fragments::element_from(part) != MatrixElement::None) {
      move.element = fragments::element_from(part);
      ++known;
    }
  }
  if (parts.size() != known || !fragments::wmma_has(move.shape, move.matrix, move.element)) return false;
  // Elements of less than a byte lie along k.
  if (fragments::bits_of(move.element) < 8 && move.by_rows != (move.matrix == WmmaMatrix::A)) return false;
  const size_t operands = source.operands.size();
  if (operands != 2 && operands != 3) throw Unsupported("it takes a fragment, an address and a stride or none");

  const auto push = [&] {
    move.first = fragments::push_registers(source.operands[stores ? 1 : 0], context,
                                           fragments::wmma_registers(move.shape, move.matrix, move.element),
                                           move.element == MatrixElement::F64, !stores);
  };
  if (!stores) push();
  push_base(source.operands[stores ? 0 : 1], context, &move.address);
  if (stores) push();
  const MatrixSize size = size_of(move);
  move.stride = push_value(
      context, operands == 3 ? source.operands[2] : immediate_operand(move.by_rows ? size.columns : size.rows),
      ptx::Type::U32);
  out.set(move);
  out.execute = stores ? wmma_store : wmma_load;
  return true;
}

}  // namespace

void register_wmma() { register_opcode("wmma", decode_wmma_move); }

}  // namespace sim
