// SPDX-License-Identifier: Apache-2.0
// tcgen05.mma and its forms .sp, .ws and .ws.sp (PTX ISA 9.7.16.10). Everything is checked when it is issued; the
// product is computed when the pipe gets there. Accumulators of float32 take the products by fused multiply-adds in the
// order of k; those of float16 are summed in float32 and rounded once an instruction. Elements are multiplied by their
// scale factors beforehand, which is exact (see multiply_extreme for the scales where it would not be).
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "sim/arithmetic/panel_product.h"
#include "sim/arithmetic/row_product.h"
#include "sim/arithmetic/small_float.h"
#include "sim/hazards/undefined.h"
#include "sim/machine/coverage.h"
#include "sim/machine/sparse.h"
#include "sim/tcgen05/descriptor.h"
#include "sim/tcgen05/state.h"

namespace sim {

namespace {

// Of a row of A or B along k. A sparse matrix A is multiplied with twice as many of B.
constexpr int kOperandBytes = 32;

struct MmaForm {
  MmaKind kind = MmaKind::F16;
  uint8_t group = 1;         // .cta_group
  uint8_t scale_vector = 0;  // scale factors of a row in one step of k; 0: none
  uint8_t scale_d = 0;       // D is multiplied by 2 to the power of minus this
  bool a_in_tensor : 1 = false;
  bool has_mask : 1 = false;  // disable-output-lane
  bool ashift : 1 = false, ws : 1 = false, sparse : 1 = false;
  bool has_zero_mask : 1 = false;
  bool enable_constant : 1 = false;  // of enable-input-d
  bool enable_value : 1 = false;     // the constant; of a predicate: it is negated
  AddressOperand d;
  AddressOperand a;           // in tensor memory
  ValueOperand a_descriptor;  // in shared memory
  ValueOperand b_descriptor, idesc, enable, zero_mask;
  ValueOperand mask;  // the first of its words
  AddressOperand scale_a, scale_b;
  AddressOperand metadata;  // of a sparse matrix A
};

// Where the accumulators stand (9.7.16.10.5).
struct Layout {
  int rows = 0;         // of one block
  int splits = 1;       // the columns in so many parts, each in lanes of its own (layouts B, E: 2; G: 4)
  bool halves = false;  // 16 lanes of each quarter (layout F, of a sparse matrix layout C)
  int columns = 0;      // of a part

  Layout(const MmaShape& shape, int group) {
    rows = shape.m / group;
    halves = rows == 64 && (group == 1 || shape.sparse);
    splits = halves ? 1 : 128 / rows;
    columns = shape.n / splits;
  }
  static Layout ws(const MmaShape& shape) {
    Layout l(shape, 1);
    l.halves = false;
    l.splits = 128 / l.rows;
    l.columns = shape.n / l.splits;
    return l;
  }
  uint32_t lane(int row, int split, uint32_t base) const {
    const auto r = static_cast<uint32_t>(row);
    if (halves) return base + r / 16 * 32 + r % 16;
    return r + static_cast<uint32_t>(rows * split);
  }
};

// ---- elements -----------------------------------------------------------------------------------

struct Tables {
  std::array<std::array<float, 256>, 11> byte{};  // by MmaElement, of those that fill a byte or less
  std::array<float, 256> e8m0{}, ue4m3{};
  Tables() {
    const auto fill = [&](MmaElement e, auto value) {
      for (int i = 0; i < 256; ++i)
        byte[static_cast<size_t>(e)][static_cast<size_t>(i)] = value(static_cast<uint32_t>(i));
    };
    fill(MmaElement::E4M3, [](uint32_t c) { return e4m3_to_f32(static_cast<uint8_t>(c)); });
    fill(MmaElement::E5M2, [](uint32_t c) { return e5m2_to_f32(static_cast<uint8_t>(c)); });
    fill(MmaElement::E2M3, [](uint32_t c) { return static_cast<float>(isa::decode(c & 63, isa::kE2M3)); });
    fill(MmaElement::E3M2, [](uint32_t c) { return static_cast<float>(isa::decode(c & 63, isa::kE3M2)); });
    fill(MmaElement::E2M1, [](uint32_t c) { return static_cast<float>(isa::decode(c & 15, isa::kE2M1)); });
    fill(MmaElement::S8, [](uint32_t c) { return static_cast<float>(static_cast<int8_t>(c)); });
    fill(MmaElement::U8, [](uint32_t c) { return static_cast<float>(c); });
    byte[static_cast<size_t>(MmaElement::E2M1Packed)] = byte[static_cast<size_t>(MmaElement::E2M1)];
    for (uint32_t i = 0; i < 256; ++i) {
      e8m0[i] = i == 255 ? std::bit_cast<float>(0x7fffffffu) : std::ldexp(1.0f, static_cast<int>(i) - 127);
      ue4m3[i] = e4m3_to_f32(static_cast<uint8_t>(i & 0x7f));
    }
  }
};
const Tables& tables() {
  static const Tables t;
  return t;
}

// Packed elements of 6 and 4 bits: 16 of them at the start of each 16 bytes (9.7.16.10.4.4).
bool is_padded(MmaElement e) { return e >= MmaElement::E2M3 && e <= MmaElement::E2M1; }
uint32_t piece_bytes(MmaElement e) { return !is_padded(e) ? 16 : e == MmaElement::E2M1 ? 8 : 12; }

// The elements of 32 bytes. In tensor memory those of 6 and 4 bits stand in bytes (9.7.16.10.4.3).
void decode_row(MmaElement e, const uint8_t* raw, bool in_tensor, float* out) {
  const auto& table = tables().byte[static_cast<size_t>(e)];
  switch (e) {
    case MmaElement::BF16:
      for (int i = 0; i < 16; ++i) {
        uint16_t half;
        std::memcpy(&half, raw + 2 * i, 2);
        out[i] = bf16_to_f32(half);
      }
      return;
    case MmaElement::F16:
      for (int i = 0; i < 16; ++i) {
        uint16_t half;
        std::memcpy(&half, raw + 2 * i, 2);
        out[i] = f16_to_f32(half);
      }
      return;
    case MmaElement::TF32:
      for (int i = 0; i < 8; ++i) {
        uint32_t word;
        std::memcpy(&word, raw + 4 * i, 4);
        out[i] = std::bit_cast<float>(word & ~0x1fffu);  // the lower 13 bits are dropped
      }
      return;
    case MmaElement::E2M1Packed:
      for (int i = 0; i < kOperandBytes; ++i) {
        out[2 * i] = table[raw[i] & 15];
        out[2 * i + 1] = table[raw[i] >> 4];
      }
      return;
    default:
      break;
  }
  if (!is_padded(e)) {
    for (int i = 0; i < kOperandBytes; ++i) out[i] = table[raw[i]];
  } else if (in_tensor) {
    for (int i = 0; i < kOperandBytes; ++i) out[i] = table[e == MmaElement::E2M1 ? raw[i] >> 2 & 15 : raw[i]];
  } else {
    const int bits = e == MmaElement::E2M1 ? 4 : 6;
    for (int i = 0; i < 32; ++i) {
      const uint8_t* const piece = raw + i / 16 * 16;
      const int at = i % 16 * bits;
      uint32_t two = piece[at / 8];
      if (at % 8 + bits > 8) two |= uint32_t{piece[at / 8 + 1]} << 8;
      out[i] = table[two >> at % 8 & ((1u << bits) - 1)];
    }
  }
}

struct Operand {
  SharedMatrix matrix;
  MmaElement element;
  bool transposed;  // MN-major
  bool negated;
};

// Rows [first, first + count) of a matrix, k elements each.
void read_rows(const uint8_t* shared, const Operand& o, int first, int count, int k, float* out) {
  if (!o.transposed) {
    uint8_t raw[kOperandBytes];
    const int per_part = elements_of_32_bytes(o.element);
    for (int i = 0; i < count; ++i) {
      const auto row = static_cast<uint32_t>(first + i);
      for (int part = 0; part < k / per_part; ++part) {
        const auto piece = static_cast<uint32_t>(2 * part);
        std::memcpy(raw, shared + o.matrix.k_major(row, piece), 16);
        std::memcpy(raw + 16, shared + o.matrix.k_major(row, piece + 1), 16);
        decode_row(o.element, raw, false, out + static_cast<int64_t>(i) * k + part * per_part);
      }
    }
  } else {
    const int per_piece = 128 / element_bits(o.element);
    float values[32];
    uint8_t raw[kOperandBytes] = {};
    for (int depth = 0; depth < k; ++depth) {
      for (int i = 0; i < count; i += per_piece - (first + i) % per_piece) {
        const int piece = (first + i) / per_piece;
        std::memcpy(raw, shared + o.matrix.mn_major(static_cast<uint32_t>(piece), static_cast<uint32_t>(depth)), 16);
        decode_row(o.element, raw, false, values);
        for (int j = (first + i) % per_piece; j < per_piece && piece * per_piece + j - first < count; ++j)
          out[static_cast<int64_t>(piece * per_piece + j - first) * k + depth] = values[j];
      }
    }
  }
  if (o.negated) {
    for (int64_t i = 0; i < int64_t{count} * k; ++i) out[i] = -out[i];
  }
}

void touch_operand(SharedAccess& access, const Cta& cta, Warp& warp, int lane, const Operand& o, int count, int k) {
  const auto touch = [&](uint32_t address, uint32_t bytes) {
    if (address + bytes > cta.shared.size)
      fault(Hazard::Memory, warp, lane,
            "a matrix descriptor leads to shared offset " + hex(address) + ", past the end of the block's " +
                std::to_string(cta.shared.size) + " bytes");
    if (bytes == 32)
      access.touch_pair(address);
    else
      access.touch(address, bytes);
  };
  const uint32_t piece_size = piece_bytes(o.element);
  const auto parts = static_cast<uint32_t>(k / elements_of_32_bytes(o.element));
  if (o.transposed) {
    const int pieces = count * element_bits(o.element) / 128;
    for (int depth = 0; depth < k; ++depth) {
      for (int piece = 0; piece < pieces; ++piece)
        touch(o.matrix.mn_major(static_cast<uint32_t>(piece), static_cast<uint32_t>(depth)), 16);
    }
  } else if (piece_size == 16 && o.matrix.wide > 1 && o.matrix.start % 32 == 0 && o.matrix.stride % 32 == 0) {
    // The two pieces of a row stay neighbours under the swizzle.
    for (int row = 0; row < count; ++row) {
      for (uint32_t part = 0; part < parts; ++part)
        touch(o.matrix.k_major(static_cast<uint32_t>(row), 2 * part) & ~31u, 32);
    }
  } else {
    for (int row = 0; row < count; ++row) {
      for (uint32_t piece = 0; piece < 2 * parts; ++piece)
        touch(o.matrix.k_major(static_cast<uint32_t>(row), piece), piece_size);
    }
  }
}

struct Panels {
  // Of a sparse matrix A: the elements that are stored, and where they stand in `a`. b_met is what they meet in B.
  std::vector<float> a, a_elements, a_stored, a_scales, b, b_met, b_scaled, b_scales, sums;
};
float* grow(std::vector<float>& v, int64_t size) {
  if (static_cast<int64_t>(v.size()) < size) v.resize(static_cast<size_t>(size));
  return v.data();
}
thread_local Panels panels;

// ---- the operation ------------------------------------------------------------------------------

class Mma : public AsyncOp {
 public:
  Origin origin;
  MmaForm form;
  MmaShape shape;
  Layout layout;
  TensorGroup group;
  Operand a, b;
  TensorAddress a_at{}, d_at{}, scale_a{}, scale_b{}, metadata{};
  uint32_t disabled[8] = {};
  bool accumulate = false;
  bool reads_unwritten = false;  // bytes of shared memory that nobody has written

  Mma(Origin from, const MmaForm& f, const MmaShape& s, const TensorGroup& g, uint64_t a_bits, uint64_t b_bits)
      : origin(from),
        form(f),
        shape(s),
        layout(f.ws ? Layout::ws(s) : Layout(s, f.group)),
        group(g),
        a{SharedMatrix(a_bits), s.a, s.transpose_a, s.negate_a},
        b{SharedMatrix(b_bits), s.b, s.transpose_b, s.negate_b} {}

  void check(const TensorMark& mark);
  void perform(Cluster& cluster) override {
    std::vector<TensorColumns> columns{{d_at.column, static_cast<uint32_t>(layout.columns)}};
    if (form.a_in_tensor) columns.push_back({a_at.column, kOperandBytes / 4});
    perform_operation(cluster, origin, group, columns, reads_unwritten, [&] { multiply(cluster); });
  }

 private:
  void multiply(Cluster& cluster);
  int b_columns() const { return shape.n / group.count; }  // in one block's shared memory
  bool has_wide_metadata() const { return form.kind != MmaKind::F16 && form.kind != MmaKind::TF32; }
  int metadata_columns() const { return has_wide_metadata() ? 2 : 1; }
  int scale_b_columns() const { return (layout.columns + 31) / 32; }
  int stored_k() const { return shape.sparse ? shape.k / 2 : shape.k; }  // elements of a row of A
  bool parts_of_a_differ(Cta& cta) const;
  void compare_metadata(Cta& cta) const;
  void read_stored_a(Cta& cta, int split, float* out) const;
  void read_a(Cta& cta, int split, float* out, float* stored) const;
  void read_scales(Cta& cta, float* scales_a, float* scales_b) const;
  // next_part: from A as one part of the columns has it to A as the next has it.
  void multiply_integers(Cta& cta, const float* a_panel, int64_t next_part, const float* b_panel) const;
  void multiply_extreme(Cta& cta, const float* a_panel, const float* stored, int64_t next_part, const float* scales_a,
                        const float* b_panel, const float* scales_b) const;
  void multiply_stored(float* const rows[], int count, const float* a_panel, const float* stored,
                       const float* b_panel) const;
  bool is_disabled(int block, uint32_t lane) const { return disabled[4 * block + lane / 32] >> lane % 32 & 1; }
};

void Mma::check(const TensorMark& mark) {
  Warp& warp = *origin.warp;
  const TensorAccess access{warp, origin.lane, mark};
  const Stamp completion{mark.pipe->done, mark.at};
  for (int c = 0; c < group.count; ++c) {
    Cta& cta = *group.cta[c];
    if (cta.finished())
      fault(Hazard::IllegalUse, warp, origin.lane, "a tcgen05.mma of a block pair of which one block has finished");
    if (!form.a_in_tensor) {
      SharedAccess shared(warp, cta, SharedAccess::Kind::AsyncRead, completion, origin.lane);
      touch_operand(shared, cta, warp, origin.lane, a, layout.rows, stored_k());
    }
    SharedAccess shared(warp, cta, SharedAccess::Kind::AsyncRead, completion, origin.lane);
    touch_operand(shared, cta, warp, origin.lane, b, b_columns(), shape.k);
    TensorMemory& memory = tensor_memory(cta);
    const uint32_t first = layout.halves ? d_at.lane / kCellLanes : 0, step = layout.halves ? 2 : 1;
    const auto all = [&](uint32_t column, int columns, bool write) {
      for (uint32_t cell = first; cell < kCellRows; cell += step)
        memory.touch(access, cell, 1, column, static_cast<uint32_t>(columns), write);
    };
    if (form.a_in_tensor) all(a_at.column, kOperandBytes / 4, false);
    if (shape.sparse) all(metadata.column + shape.selector, metadata_columns(), false);
    if (form.scale_vector != 0) {
      memory.touch(access, 0, kCellRows, scale_a.column, static_cast<uint32_t>(layout.rows) / 32, false);
      memory.touch(access, 0, kCellRows, scale_b.column, static_cast<uint32_t>(scale_b_columns()), false);
    }
    if (accumulate) memory.expect_written(access, d_at.column, static_cast<uint32_t>(layout.columns));
    all(d_at.column, layout.columns, true);
  }
  reads_unwritten = holds_undefined(warp) && !warp.undefined->met.empty();
}

// Where the columns of D are split, each part of the lanes needs its own copy of A.
bool Mma::parts_of_a_differ(Cta& cta) const {
  if (!form.a_in_tensor || layout.splits == 1) return false;
  TensorMemory& memory = tensor_memory(cta);
  for (int r = 0; r < layout.rows; ++r) {
    const uint32_t lane = layout.lane(r, 0, d_at.lane);
    for (int split = 1; split < layout.splits; ++split) {
      const uint32_t other = layout.lane(r, split, 0);
      if (std::memcmp(memory.row(lane) + a_at.column, memory.row(other) + a_at.column, kOperandBytes) == 0) continue;
      origin.deviation(Hazard::TensorMemory, [&] {
        return "matrix A in tensor memory differs between lanes " + std::to_string(lane) + " and " +
               std::to_string(other) + ", which must hold the same row";
      });
      return true;
    }
  }
  return false;
}

// Each part of the lanes has a copy of the metadata, too (CUTLASS: UMMA::tmem_e_frg_ws).
void Mma::compare_metadata(Cta& cta) const {
  TensorMemory& memory = tensor_memory(cta);
  for (int r = 0; r < layout.rows; ++r) {
    for (int split = 1; split < layout.splits; ++split) {
      const uint32_t lane = layout.lane(r, 0, d_at.lane), other = layout.lane(r, split, d_at.lane);
      for (int i = 0; i < metadata_columns(); ++i) {
        const uint32_t column = metadata.column + shape.selector + static_cast<uint32_t>(i);
        if (memory.row(lane)[column] == memory.row(other)[column]) continue;
        origin.fail(Hazard::TensorMemory, "the sparsity metadata at " + tensor_text(lane, column) + " and at lane " +
                                              std::to_string(other) + " differ: they must stand in every " +
                                              std::to_string(layout.rows) + " lanes");
      }
    }
  }
}

void Mma::read_stored_a(Cta& cta, int split, float* out) const {
  const int k = stored_k();
  if (!form.a_in_tensor) {
    read_rows(cta.shared.bytes, a, 0, layout.rows, k, out);
    return;
  }
  TensorMemory& memory = tensor_memory(cta);
  for (int r = 0; r < layout.rows; ++r) {
    const int from = form.ashift && r + 1 < layout.rows ? r + 1 : r;
    const uint32_t* const words = memory.row(layout.lane(from, split, d_at.lane)) + a_at.column;
    decode_row(shape.a, reinterpret_cast<const uint8_t*>(words), true, out + static_cast<int64_t>(r) * k);
  }
  if (a.negated) {
    for (int64_t i = 0; i < int64_t{layout.rows} * k; ++i) out[i] = -out[i];
  }
}

// The rows of A, of a sparse one with its zeros. A chunk of four elements stores two, in .kind::tf32 one of two, in the
// kinds of 4 bits two pairs of four pairs (9.7.16.10.8). Its four bits of metadata say which. Metadata of 16 rows stand
// in the lanes of these rows, also where rows have half of the lanes (9.7.16.10.8.5). Of 8 and 4 bits a lane has the 16
// chunks of its row in two columns. Of 16 and 32 bits a row has eight chunks, in one column: of the rows r and r + 8 of
// 16 the lower lane has the first four chunks, the upper one the others, row r + 8 in the upper half.
// `stored` gets ones where a sparse A has elements.
void Mma::read_a(Cta& cta, int split, float* out, float* stored) const {
  if (!shape.sparse) return read_stored_a(cta, split, out);
  const int elements = stored_k(), chunks = has_wide_metadata() ? 16 : 8, of_chunk = shape.k / chunks;
  float* const values = grow(panels.a_elements, int64_t{layout.rows} * elements);
  read_stored_a(cta, split, values);
  for (float* const panel : {out, stored}) std::fill_n(panel, int64_t{layout.rows} * shape.k, 0.0f);
  TensorMemory& memory = tensor_memory(cta);
  for (int r = 0; r < layout.rows; ++r) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int holder = has_wide_metadata() ? r : r / 16 * 16 + r % 8 + chunk / 4 * 8;
      const uint32_t lane = layout.lane(holder, split, d_at.lane);
      const int column = has_wide_metadata() ? chunk / 8 : shape.selector;
      const int bit = has_wide_metadata() ? chunk % 8 * 4 : r / 8 % 2 * 16 + chunk % 4 * 4;
      const uint32_t word = memory.row(lane)[metadata.column + static_cast<uint32_t>(column)];
      const uint32_t index = word >> bit & 15;
      const auto text = [&](const char* why) {
        return "the sparsity metadata " + hex(index) + " of chunk " + std::to_string(chunk) + " of row " +
               std::to_string(r) + ", at bit " + std::to_string(bit) + " of " +
               tensor_text(lane, metadata.column + static_cast<uint32_t>(column)) + ", " + why;
      };
      const bool one = form.kind == MmaKind::TF32;  // stored in two columns
      if (one && index != 0b0100 && index != 0b1110)
        origin.fail(Hazard::TensorMemory, text("is the index of no element"));
      constexpr uint32_t kMeaningful =
          1u << 0b0100 | 1u << 0b1000 | 1u << 0b1100 | 1u << 0b1001 | 1u << 0b1101 | 1u << 0b0110 | 1u << 0b1110;
      if (!one && (kMeaningful >> index & 1) == 0)
        origin.deviation(Hazard::TensorMemory, [&] { return text("has no meaning by the ISA"); });
      const float* const from = values + r * elements + chunk * of_chunk / 2;
      const auto put = [&](uint32_t place, float value) {
        const int64_t at = int64_t{r} * shape.k + chunk * of_chunk + place;
        out[at] += value;
        stored[at] = 1;
      };
      if (one) {
        put(index == 0b1110 ? 1 : 0, from[0]);
      } else {
        const auto run = static_cast<uint32_t>(of_chunk) / 4;  // elements that go together
        for (uint32_t i = 0; i < run; ++i) {
          put((index & 3) * run + i, from[i]);
          put((index >> 2) * run + i, from[run + i]);
        }
      }
    }
  }
}

// Scale factors (9.7.16.10.7): byte id + j of the word at lane mn % 32 of every quarter, column mn / 32. Where the
// columns of D are split in two, lanes 0 to 63 have the first half's, the others the second's.
void Mma::read_scales(Cta& cta, float* scales_a, float* scales_b) const {
  TensorMemory& memory = tensor_memory(cta);
  const auto& values = shape.scale_e8m0 ? tables().e8m0 : tables().ue4m3;
  const int count = form.scale_vector;
  const auto read = [&](TensorAddress at, int id, int mn, uint32_t first, uint32_t quarters, float* out,
                        const char* what) {
    const uint32_t lane = first + static_cast<uint32_t>(mn) % 32;
    const uint32_t column = at.column + static_cast<uint32_t>(mn) / 32;
    const uint32_t wanted = count == 4 ? ~0u : ((1u << 8 * count) - 1) << 8 * id;
    const uint32_t word = memory.row(lane)[column];
    for (uint32_t q = 1; q < quarters; ++q) {
      if ((memory.row(lane + 32 * q)[column] ^ word) & wanted)
        origin.fail(Hazard::TensorMemory,
                    std::string("the scale factors of matrix ") + what + " at " + tensor_text(lane, column) +
                        " and at lane " + std::to_string(lane + 32 * q) + " differ: they must stand in every 32 lanes");
    }
    for (int j = 0; j < count; ++j) out[j] = values[word >> 8 * (id + j) & 0xff];
  };
  for (int r = 0; r < layout.rows; ++r) read(scale_a, shape.scale_a_id, r, 0, 4, scales_a + r * count, "A");
  for (int n = 0; n < shape.n; ++n) {
    const auto split = static_cast<uint32_t>(n / layout.columns);
    read(scale_b, shape.scale_b_id, n % layout.columns, 64 * split, layout.splits == 1 ? 4 : 2, scales_b + n * count,
         "B");
  }
}

// Sums of 32 products of 8-bit integers are exact in float32.
void Mma::multiply_integers(Cta& cta, const float* a_panel, int64_t next_part, const float* b_panel) const {
  TensorMemory& memory = tensor_memory(cta);
  const int block = &cta == group.cta[0] ? 0 : 1;
  float* const sums = grow(panels.sums, int64_t{layout.rows} * layout.columns);
  float* rows[128];
  for (int r = 0; r < layout.rows; ++r) rows[r] = sums + int64_t{r} * layout.columns;
  for (int split = 0; split < layout.splits; ++split) {
    multiply_rows(rows, layout.rows, layout.columns, a_panel + split * next_part, b_panel + split * layout.columns,
                  shape.n, shape.k, true);
    for (int r = 0; r < layout.rows; ++r) {
      const uint32_t lane = layout.lane(r, split, d_at.lane);
      if (is_disabled(block, lane)) continue;
      uint32_t* const d = memory.row(lane) + d_at.column;
      for (int j = 0; j < layout.columns; ++j) {
        const int64_t sum = static_cast<int64_t>(rows[r][j]) + (accumulate ? static_cast<int32_t>(d[j]) : 0);
        d[j] = static_cast<uint32_t>(shape.saturate ? std::clamp<int64_t>(sum, INT32_MIN, INT32_MAX) : sum);
      }
    }
  }
}

// Scales so large that an element times its scale leaves float32 where the product need not: the two scales of a
// product are added as exponents and split evenly, which overflows only when the product does. Forms with scales
// disable no lanes (PTX ISA 9.7.16.10.9).
void Mma::multiply_extreme(Cta& cta, const float* a_panel, const float* stored, int64_t next_part,
                           const float* scales_a, const float* b_panel, const float* scales_b) const {
  TensorMemory& memory = tensor_memory(cta);
  const int count = form.scale_vector, chunk = shape.k / count;
  for (int n = 0; n < shape.n; ++n) {
    for (int r = 0; r < layout.rows; ++r) {
      const uint32_t lane = layout.lane(r, n / layout.columns, d_at.lane);
      float& d = *memory.floats(lane, d_at.column + static_cast<uint32_t>(n % layout.columns));
      float sum = accumulate ? d : 0.0f;
      for (int k = 0; k < shape.k; ++k) {
        const int64_t at = n / layout.columns * next_part + r * shape.k + k;
        if (shape.sparse && stored[at] == 0) continue;
        const float x = a_panel[at], y = b_panel[static_cast<int64_t>(k) * shape.n + n];
        const float p = scales_a[r * count + k / chunk], q = scales_b[n * count + k / chunk];
        if (std::isnan(p) || std::isnan(q)) {
          sum = std::fma(x * p, y * q, sum);
        } else if (x == 0 || y == 0 || std::isinf(x) || std::isinf(y)) {
          sum = std::fma(x, y, sum);
        } else {
          const int exponent = std::ilogb(p) + std::ilogb(q);
          float u = std::ldexp(x, exponent / 2), v = std::ldexp(y, exponent - exponent / 2);
          if (std::isinf(u) || std::isinf(v)) {
            u = std::copysign(0x1p127f, x);  // a product that is as far out of range, and not infinite
            v = std::copysign(0x1p127f, y);
          }
          sum = std::fma(u, v, sum);
        }
      }
      d = sum;
    }
  }
}

// Rows of a sparse matrix A, where zeros that are not stored would make NaNs of infinities in B: row by row, without
// what stands in B beside these zeros. That GPUs compute so is known of mma.sp and wgmma.mma_async.sp (sparse.h).
void Mma::multiply_stored(float* const rows[], int count, const float* a_panel, const float* stored,
                          const float* b_panel) const {
  float* const b_met = grow(panels.b_met, int64_t{shape.k} * layout.columns);
  for (int r = 0; r < count; ++r) {
    for (int depth = 0; depth < shape.k; ++depth) {
      float* const met = b_met + int64_t{depth} * layout.columns;
      if (stored[r * shape.k + depth] != 0)
        std::copy_n(b_panel + int64_t{depth} * shape.n, layout.columns, met);
      else
        std::fill_n(met, layout.columns, 0.0f);
    }
    multiply_rows(rows + r, 1, layout.columns, a_panel + r * shape.k, b_met, layout.columns, shape.k, !accumulate);
  }
}

void Mma::multiply(Cluster& cluster) {
  const int n = shape.n, k = shape.k;
  if (cluster.statistics != nullptr)
    cluster.statistics->multiply_adds += static_cast<uint64_t>(shape.m * n * stored_k());
  // B: [k][n], each block's columns from its own shared memory.
  float* b_panel = grow(panels.b, int64_t{n} * k);
  for (int c = 0; c < group.count; ++c) {
    constexpr int kTile = 16;
    float tile[kTile * 128];
    for (int at = 0; at < b_columns(); at += kTile) {
      const int count = std::min(kTile, b_columns() - at);
      read_rows(group.cta[c]->shared.bytes, b, at, count, k, tile);
      float* const out = b_panel + c * b_columns() + at;
      for (int depth = 0; depth < k; ++depth) {
        for (int i = 0; i < count; ++i) out[static_cast<int64_t>(depth) * n + i] = tile[i * k + depth];
      }
    }
  }
  for (int c = 0; c < group.count; ++c) {
    Cta& cta = *group.cta[c];
    if (shape.sparse) compare_metadata(cta);
    // A is one matrix, or one for each part of the columns.
    const int parts = parts_of_a_differ(cta) ? layout.splits : 1;
    const int64_t of_part = int64_t{layout.rows} * k, next_part = parts == 1 ? 0 : of_part;
    float* const a_panel = grow(panels.a, parts * of_part);
    float* const stored = shape.sparse ? grow(panels.a_stored, parts * of_part) : nullptr;
    for (int part = 0; part < parts; ++part)
      read_a(cta, part, a_panel + part * of_part, shape.sparse ? stored + part * of_part : nullptr);
    const float* b_used = b_panel;
    if (form.scale_vector != 0) {
      const int count = form.scale_vector, chunk = k / count;
      float* const scales_a = grow(panels.a_scales, int64_t{layout.rows} * count);
      float* const scales_b = grow(panels.b_scales, int64_t{n} * count);
      read_scales(cta, scales_a, scales_b);
      const auto extreme = [](float s) { return s > 0x1p100f; };
      if (std::any_of(scales_a, scales_a + layout.rows * count, extreme) ||
          std::any_of(scales_b, scales_b + n * count, extreme)) {
        multiply_extreme(cta, a_panel, stored, next_part, scales_a, b_panel, scales_b);
        continue;
      }
      for (int r = 0; r < parts * layout.rows; ++r) {
        const float* const scales = scales_a + r % layout.rows * count;
        for (int depth = 0; depth < k; ++depth) a_panel[r * k + depth] *= scales[depth / chunk];
      }
      float* const scaled = grow(panels.b_scaled, int64_t{n} * k);
      for (int depth = 0; depth < k; ++depth) {
        for (int i = 0; i < n; ++i)
          scaled[depth * n + i] = b_panel[depth * n + i] * scales_b[i * count + depth / chunk];
      }
      b_used = scaled;
    }
    if (shape.result == MmaResult::S32) {
      multiply_integers(cta, a_panel, next_part, b_panel);
      continue;
    }
    TensorMemory& memory = tensor_memory(cta);
    const bool narrow = shape.result == MmaResult::F16;
    const float down = std::ldexp(1.0f, -form.scale_d);
    const bool stored_alone = shape.sparse && !all_finite(b_used, int64_t{n} * k);
    for (int split = 0; split < layout.splits; ++split) {
      float* rows[128];
      float* const sums = narrow ? grow(panels.sums, int64_t{layout.rows} * layout.columns) : nullptr;
      // Rows that are not to be written leave gaps in A, which multiply_rows takes in runs.
      int run = 0, run_start = 0;
      const auto flush = [&] {
        const int64_t at = split * next_part + int64_t{run_start} * k;
        const float* const b_part = b_used + split * layout.columns;
        if (run > 0 && stored_alone)
          multiply_stored(rows + run_start, run, a_panel + at, stored + at, b_part);
        else if (run > 0)
          multiply_rows(rows + run_start, run, layout.columns, a_panel + at, b_part, n, k, !accumulate);
        run = 0;
      };
      for (int r = 0; r < layout.rows; ++r) {
        const uint32_t lane = layout.lane(r, split, d_at.lane);
        if (is_disabled(c, lane)) {
          flush();
          rows[r] = nullptr;
          continue;
        }
        rows[r] = memory.floats(lane, d_at.column);
        if (narrow) {
          const uint32_t* const words = memory.row(lane) + d_at.column;
          rows[r] = sums + int64_t{r} * layout.columns;
          for (int j = 0; j < layout.columns; ++j) rows[r][j] = f16_to_f32(static_cast<uint16_t>(words[j]));
        }
        if (form.scale_d != 0 && accumulate) {
          for (int j = 0; j < layout.columns; ++j) rows[r][j] *= down;
        }
        if (run == 0) run_start = r;
        ++run;
      }
      flush();
      if (!narrow) continue;
      for (int r = 0; r < layout.rows; ++r) {
        if (rows[r] == nullptr) continue;
        uint32_t* const words = memory.row(layout.lane(r, split, d_at.lane)) + d_at.column;
        for (int j = 0; j < layout.columns; ++j) words[j] = f32_to_f16(rows[r][j]);
      }
    }
  }
}

// Notes for the coverage list what the descriptors choose.
void cover_mma(const Instr& instr, const MmaForm& f, const MmaShape& s, const Mma& op) {
  static const char* const kElements[] = {"f16",  "bf16", "tf32",        "e4m3", "e5m2", "e2m3",
                                          "e3m2", "e2m1", "e2m1 packed", "s8",   "u8"};
  static const char* const kResults[] = {"f32", "f16", "s32"};
  cover(instr, "M " + std::to_string(s.m) + " N " + std::to_string(s.n));
  cover(instr, std::string(kElements[static_cast<int>(s.a)]) + " x " + kElements[static_cast<int>(s.b)] + " -> " +
                   kResults[static_cast<int>(s.result)]);
  const auto matrix = [&](const char* name, const Operand& o) {
    static const char* const kSwizzles[] = {
        "no swizzle",     "128-byte swizzle of 32-byte atoms", "128-byte swizzle", "", "64-byte swizzle", "",
        "32-byte swizzle"};
    cover(instr, std::string(name) + (o.transposed ? " MN-major, " : " K-major, ") +
                     kSwizzles[static_cast<int>(o.matrix.swizzle)]);
    if (o.negated) cover(instr, std::string("negated ") + name);
  };
  if (f.a_in_tensor)
    cover(instr, "A in tensor memory");
  else
    matrix("A", op.a);
  matrix("B", op.b);
  if (s.sparse) cover(instr, "sparse A, selector " + std::to_string(s.selector));
  if (s.saturate) cover(instr, "saturated");
  if (f.has_mask) cover(instr, "output lanes disabled");
  if (f.scale_d != 0) cover(instr, "scale of D " + std::to_string(f.scale_d));
  if (f.scale_vector != 0)
    cover(instr, std::string(s.scale_e8m0 ? "ue8m0" : "ue4m3") + " scales, ids " + std::to_string(s.scale_a_id) +
                     " and " + std::to_string(s.scale_b_id));
  cover(instr, op.accumulate ? "D read" : "D not read");
}

Step execute_mma(Warp& warp, const Instr& instr, uint32_t mask) {
  const auto& f = instr.form<MmaForm>();
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = first_lane(rest);
    const auto tensor_operand = [&](AddressOperand operand) {
      return tensor_address(read_address(warp, instr, operand, lane));
    };
    const auto illegal = [&](const std::string& why) { fault(Hazard::IllegalUse, warp, lane, why); };
    const TensorAddress d_at = tensor_operand(f.d);
    TensorAddress a_at{};
    uint64_t a_bits = 1ull << 46;
    if (f.a_in_tensor)
      a_at = tensor_operand(f.a);
    else
      a_bits = read64(warp, instr, f.a_descriptor, lane);
    const uint64_t b_bits = read64(warp, instr, f.b_descriptor, lane);
    const uint32_t idesc = read32(warp, instr, f.idesc, lane);
    MmaShape shape;
    if (const std::string why = decode_mma_shape(idesc, f.kind, f.group, f.ws, f.sparse, f.scale_vector, &shape);
        !why.empty())
      illegal(why);
    for (const uint64_t bits : {a_bits, b_bits}) {
      if (const std::string why = SharedMatrix::flaw(bits); !why.empty()) illegal(why);
    }
    const TensorGroup group = tensor_group(warp, f.group, lane);
    auto op = std::make_unique<Mma>(Origin{&warp, instr.source, lane}, f, shape, group, a_bits, b_bits);
    if (f.sparse && !shape.transpose_b && op->b.matrix.wide == 2)
      illegal(
          "a sparse tcgen05.mma takes 64 bytes of each column of B, of which a swizzle of 32 bytes holds half; the "
          "ISA does not say where the others are");
    op->a_at = a_at;
    op->d_at = d_at;
    // Table 54.
    for (const Operand* o : {&op->a, &op->b}) {
      if (f.a_in_tensor && o == &op->a) continue;
      const bool atom32 = o->matrix.swizzle == SharedMatrix::Swizzle::B128Atom32;
      if (o->transposed && atom32 != (f.kind == MmaKind::TF32))
        illegal(std::string("a transposed matrix of .kind::") + mma_kind_name(f.kind) +
                (atom32 ? " cannot have 128-byte swizzling of 32-byte atoms"
                        : " needs 128-byte swizzling of 32-byte atoms"));
    }
    if (f.a_in_tensor && shape.transpose_a) illegal("matrix A in tensor memory cannot be transposed");
    if (f.ashift && shape.m != 128 && shape.m != 256) illegal(".ashift needs M = 128 or 256");
    const bool aligned = d_at.lane == 0 || (op->layout.halves && d_at.lane == 16);
    if (!aligned)
      fault(Hazard::TensorMemory, warp, lane,
            "matrix D at lane " + std::to_string(d_at.lane) + " of tensor memory: the layout must begin at lane 0" +
                (op->layout.halves ? " or 16" : ""));
    if (f.a_in_tensor && a_at.lane != d_at.lane)
      fault(Hazard::TensorMemory, warp, lane, "matrices A and D must have the same lane alignment in tensor memory");
    if (f.sparse) {
      op->metadata = tensor_operand(f.metadata);
      if (op->metadata.lane != d_at.lane)
        fault(Hazard::TensorMemory, warp, lane,
              "sparsity metadata at lane " + std::to_string(op->metadata.lane) +
                  " of tensor memory must begin at lane " + std::to_string(d_at.lane) + ", as matrix D does");
    }
    if (f.has_mask) {
      for (int i = 0; i < 4 * f.group; ++i)
        op->disabled[i] = read32(warp, instr, ValueOperand{static_cast<uint8_t>(f.mask.place + i)}, lane);
    }
    if (f.scale_vector != 0) {
      // The upper two bits of these addresses are a byte within the word; the descriptor has it too.
      op->scale_a = tensor_operand(f.scale_a);
      op->scale_b = tensor_operand(f.scale_b);
      for (TensorAddress* at : {&op->scale_a, &op->scale_b}) {
        at->lane &= 0x3fff;
        if (at->lane != 0) fault(Hazard::TensorMemory, warp, lane, "a scale factor matrix must begin at lane 0");
      }
    }
    op->accumulate = f.enable_value;
    if (!f.enable_constant)
      op->accumulate = (warp.predicate(instr.reg[f.enable.place]) >> lane & 1) != uint32_t{f.enable_value};
    if (f.has_zero_mask) {
      const uint64_t zeros = read64(warp, instr, f.zero_mask, lane);
      if ((zeros >> 39 & 1) != 0 || (zeros >> 56 & 63) != 0) illegal("zero-column masks are not supported");
    }
    if (coverage_wanted()) cover_mma(instr, f, shape, *op);
    op->check(pipe_mark(warp, lane, *instr.source));
    submit_to_pipe(warp, group, std::move(op));
  }
  return Step::Next;
}

}  // namespace

bool decode_mma(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (source.parts[1] != "mma") return false;
  MmaForm f;
  f.group = static_cast<uint8_t>(group_of(source));
  f.ws = has_part(source, "ws");
  f.sparse = has_part(source, "sp");
  static const char* const kKinds[] = {"f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4"};
  bool known = false, reuses = false;
  for (size_t i = 2; i < source.parts.size(); ++i) {
    const std::string& part = source.parts[i];
    if (part.starts_with("kind::")) {
      for (int kind = 0; kind < 7; ++kind) {
        if (part.substr(6) != kKinds[kind]) continue;
        f.kind = static_cast<MmaKind>(kind);
        known = true;
      }
    } else if (part.starts_with("collector::")) {
      static const char* const kOps[] = {"fill", "use", "lastuse", "discard"};
      const size_t colon = part.find("::", 11);
      const std::string buffer = part.substr(11, colon == std::string::npos ? colon : colon - 11);
      const std::string op = colon == std::string::npos ? "" : part.substr(colon + 2);
      const bool good =
          f.ws ? buffer.size() == 2 && buffer[0] == 'b' && buffer[1] >= '0' && buffer[1] <= '3' : buffer == "a";
      if (!good || std::find(std::begin(kOps), std::end(kOps), op) == std::end(kOps))
        unsupported(source, "qualifier ." + part + " is not known");
      reuses = op == "use" || op == "fill";
    } else if (part == "ashift") {
      f.ashift = true;
    } else if (part.starts_with("scale_vec::") || part == "block16" || part == "block32") {
      f.scale_vector = part == "block16" || part == "scale_vec::4X" ? 4
                       : part == "scale_vec::2X"                    ? 2
                       : part == "scale_vec::1X"                    ? 1
                                                                    : 8;  // block32: by kind
    } else if (part != "ws" && part != "sp" && part != "block_scale" && part != "cta_group::1" &&
               part != "cta_group::2") {
      unsupported(source, "qualifier ." + part + " is not known");
    }
  }
  if (!known) unsupported(source, ".kind is missing or not known");
  if (f.ws && (is_scaled(f.kind) || f.group != 1)) unsupported(source, ".ws is not valid here");
  if (is_scaled(f.kind)) {  // table 57
    const int block32 = f.kind == MmaKind::MXF8F6F4 ? 1 : 2;
    if (f.scale_vector == 0 && f.kind == MmaKind::MXF4NVF4) unsupported(source, "the scale vector size is missing");
    if (f.scale_vector == 0 || f.scale_vector == 8) f.scale_vector = static_cast<uint8_t>(block32);
    if (f.scale_vector != block32 && !(f.scale_vector == 4 && f.kind == MmaKind::MXF4NVF4))
      unsupported(source, "the scale vector size is not valid for this kind");
  } else if (f.scale_vector != 0 || has_part(source, "block_scale")) {
    unsupported(source, ".block_scale is not valid for this kind");
  }
  const auto& operands = source.operands;
  const auto is_address = [&](size_t i) {
    return i < operands.size() && operands[i].kind == ptx::Operand::Kind::Address;
  };
  if (operands.size() < 5 || !is_address(0)) unsupported(source, "wrong operands");
  f.a_in_tensor = is_address(1);
  if (f.ashift && (!f.a_in_tensor || is_scaled(f.kind) || f.ws)) unsupported(source, ".ashift is not valid here");
  if (f.ashift && reuses) unsupported(source, ".ashift is not valid with this collector usage");
  f.d = push_address(context, operands[0]);
  if (f.a_in_tensor)
    f.a = push_address(context, operands[1]);
  else
    f.a_descriptor = push_value(context, operands[1], ptx::Type::U64);
  f.b_descriptor = push_value(context, operands[2], ptx::Type::U64);
  size_t at = 3;
  if (f.sparse) {
    if (!is_address(at)) unsupported(source, "the address of the sparsity metadata is missing");
    f.metadata = push_address(context, operands[at++]);
  }
  f.idesc = push_value(context, operands[at++], ptx::Type::U32);
  if (at >= operands.size()) unsupported(source, "enable-input-d is missing");
  if (operands[at].kind == ptx::Operand::Kind::Vector) {
    if (is_scaled(f.kind) || f.ws) unsupported(source, "disable-output-lane is not valid here");
    if (operands[at].elements.size() != static_cast<size_t>(4 * f.group))
      unsupported(source, "disable-output-lane must have " + std::to_string(4 * f.group) + " elements");
    f.has_mask = true;
    f.mask = push_value(context, operands[at++], ptx::Type::U32);
  }
  if (is_scaled(f.kind)) {
    if (!is_address(at) || !is_address(at + 1)) unsupported(source, "the scale factor matrices are missing");
    f.scale_a = push_address(context, operands[at++]);
    f.scale_b = push_address(context, operands[at++]);
  }
  if (at >= operands.size()) unsupported(source, "enable-input-d is missing");
  const ptx::Operand& enable = operands[at++];
  if (enable.kind == ptx::Operand::Kind::Immediate) {
    f.enable_constant = true;
    f.enable_value = enable.bits != 0;
  } else {
    f.enable = push_value(context, enable, ptx::Type::Pred);
    f.enable_value = enable.negated;
  }
  if (at < operands.size() && f.ws) {
    f.has_zero_mask = true;
    f.zero_mask = push_value(context, operands[at++], ptx::Type::U64);
  } else if (at < operands.size()) {
    const int64_t scale = immediate_of(source, operands[at++]);
    if (scale < 0 || scale > 15 || (f.kind != MmaKind::F16 && f.kind != MmaKind::TF32))
      unsupported(source, "scale-input-d is not valid here");
    f.scale_d = static_cast<uint8_t>(scale);
  }
  if (at != operands.size()) unsupported(source, "wrong number of operands");
  out.set(f);
  out.execute = execute_mma;
  return true;
}

}  // namespace sim
