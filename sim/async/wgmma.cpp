// SPDX-License-Identifier: Apache-2.0
// wgmma (PTX ISA 9.7.15): fences, groups, matrix descriptors, and mma_async on operands in shared memory and
// registers, with a dense or a sparse matrix A. The operations of a warpgroup are one queue; those of a group that
// accumulate in the same registers are multiplied together.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "sim/arithmetic/panel_product.h"
#include "sim/async/state.h"
#include "sim/hazards/undefined.h"
#include "sim/machine/coverage.h"
#include "sim/machine/sparse.h"

namespace sim {

namespace {

constexpr int kWarps = 4, kRows = 64;

enum class Result : uint8_t { F32, F16, S32 };

// wgmma.mma_async (9.7.15.5) and wgmma.mma_async.sp (9.7.15.6).
struct MmaForm {
  int16_t n = 0;
  int16_t k = 0;  // how many elements of a row of A are stored: of a sparse matrix half of those that B has

  uint8_t d_registers = 0;  // the accumulators come first among the operands
  Element a = Element::F16, b = Element::F16;
  Result result = Result::F32;
  bool registers_a = false;
  bool negate_a = false, negate_b = false;
  bool transpose_a = false, transpose_b = false;
  bool saturate = false;
  bool sparse = false;
  uint8_t selector = 0;  // which threads of four contribute metadata: the first two, or the last two
  bool scale_d_constant = false;
  bool scale_d = false;    // the constant, or whether the predicate is negated
  ValueOperand a_operand;  // the descriptor, or the first of four registers
  ValueOperand b_descriptor;
  ValueOperand scale_d_predicate;
  ValueOperand metadata;
  int depth() const { return sparse ? 2 * k : k; }
};
// wgmma.wait_group (9.7.15.7.3).
struct WaitGroupForm {
  int64_t newest = 0;  // how many groups may still be pending afterwards
};

// A form with the rows of its registers.
struct Form : MmaForm {
  const uint32_t *d, *a_registers;
};

Form form_of(const Instr& instr) {
  const auto& form = instr.form<MmaForm>();
  return {form, instr.reg, instr.reg + form.a_operand.place};
}

// A matrix in shared memory, as its descriptor gives it (9.7.15.5.1.2).
struct Matrix {
  uint32_t start = 0, leading = 0, stride = 0, base_offset = 0;
  uint32_t wide = 1;  // how many pieces of 16 bytes a row of the swizzle atom has: 1, 2, 4 or 8
  bool mn_major = false;
  int bytes = 2;  // the size of an element

  Matrix(uint64_t descriptor, bool transpose, int element)
      : start(static_cast<uint32_t>(descriptor & 0x3fff) << 4),
        leading(static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4),
        stride(static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4),
        base_offset(static_cast<uint32_t>(descriptor >> 49 & 7)),
        mn_major(transpose),
        bytes(element) {
    constexpr uint32_t kWide[] = {1, 8, 4, 2};
    wide = kWide[descriptor >> 62];
  }
  // The swizzle XORs address bits 7 to 9, counted from where its pattern starts, to bits 4 to 6.
  uint32_t swizzled(uint32_t address) const {
    const uint32_t line = (address >> 7) - base_offset;
    return address ^ (line & (wide - 1)) << 4;
  }
  // The address of a piece of 16 bytes. A K-major matrix has its pieces along k in row mn, an MN-major one along mn in
  // row k.
  uint32_t piece_k_major(uint32_t mn, uint32_t piece) const {
    return swizzled(start + mn % 8 * (16 * wide) + mn / 8 * stride + piece * (wide == 1 ? leading : 16));
  }
  uint32_t piece_mn_major(uint32_t piece, uint32_t k) const {
    const uint32_t along_mn = wide == 1 ? piece * stride : piece % wide * 16 + piece / wide * leading;
    return swizzled(start + along_mn + k % 8 * (16 * wide) + k / 8 * (wide == 1 ? leading : stride));
  }
  // The address of byte k of a row. Matrices of single bits, which are asked for it, are K-major.
  uint32_t byte_k_major(uint32_t mn, uint32_t k) const { return piece_k_major(mn, k / 16) + k % 16; }
};

// Marks the pieces of `count` rows (of A) or columns (of B) as read.
void touch_matrix(SharedAccess& access, const Cta& cta, Warp& warp, const Matrix& m, uint32_t count, uint32_t k) {
  const uint32_t pieces = k * static_cast<uint32_t>(m.bytes) / 16;
  const uint32_t size = cta.shared.size;
  const auto inside = [&](uint32_t address, uint32_t bytes) {
    if (address + bytes <= size) return;
    fault(Hazard::Memory, warp, -1,
          "a matrix descriptor leads to shared offset " + hex(address) + ", past the end of the block's " +
              std::to_string(size) + " bytes");
  };
  const auto touch = [&](uint32_t address) {
    inside(address, 16);
    access.touch(address, 16);
  };
  if (m.mn_major) {
    for (uint32_t row = 0; row < k; ++row) {
      for (uint32_t piece = 0; piece < count * static_cast<uint32_t>(m.bytes) / 16; ++piece)
        touch(m.piece_mn_major(piece, row));
    }
  } else if (pieces == 2 && m.wide > 1 && m.start % 32 == 0 && m.stride % 32 == 0) {
    // The two pieces of a row stay neighbours under the swizzle.
    for (uint32_t eight = 0; eight < count / 8; ++eight) {
      const uint32_t first = m.start + eight * m.stride;
      for (uint32_t row = 0; row < 8; ++row) {
        const uint32_t pair = m.swizzled(first + row * 16 * m.wide) & ~31u;
        inside(pair, 32);
        access.touch_pair(pair);
      }
    }
  } else {
    for (uint32_t mn = 0; mn < count; ++mn) {
      for (uint32_t piece = 0; piece < pieces; ++piece) touch(m.piece_k_major(mn, piece));
    }
  }
}

}  // namespace

// One mma_async of a warpgroup.
struct MmaRecord {
  const Instr* instr = nullptr;
  uint64_t a_descriptor = 0, b_descriptor = 0;
  bool accumulate = false;
  uint32_t group = 0;
  // How many warps of the group have issued it.
  uint32_t warps = 0;
  // Of a sparse matrix A: what the lanes of each warp say about its rows.
  std::vector<Metadata> metadata;
  // The histories of the bytes that it reads, which the views of its warps are compared with.
  std::vector<SharedAccess::Met> met;
  // What the warps know together that have issued it (read_together()).
  Clock seen, fenced;
  bool reads_unwritten = false;  // some of these bytes nobody has written
};

WarpGroup::WarpGroup() = default;
WarpGroup::~WarpGroup() = default;
WarpGroup::WarpGroup(WarpGroup&&) noexcept = default;

// ---- values -------------------------------------------------------------------------------------

namespace {

// A fragment's element (9.7.15.5.1.1): row r + 8 * h of the warp's 16, column k.
const uint8_t* fragment_element(const Warp& warp, const Form& f, int r, int h, int k) {
  const int bytes = element_bytes(f.a);
  const int per_register = 4 / bytes;
  const int half_k = f.k / 2;
  const int lane = 4 * r + k % half_k / per_register;
  const uint32_t offset = f.a_registers[h + 2 * (k / half_k)];
  return reinterpret_cast<const uint8_t*>(warp.row<uint32_t>(offset) + lane) + k % per_register * bytes;
}

struct Panels {
  // 64-byte aligned.
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  // Of a sparse matrix A: `elements` are those that are stored, and `stored` has ones where they stand in `a`.
  std::unique_ptr<float[], Free> a, b, sums, elements, stored;
  size_t a_size = 0, b_size = 0, sums_size = 0, elements_size = 0, stored_size = 0;
  static float* grow(std::unique_ptr<float[], Free>& p, size_t& size, int64_t want) {
    if (static_cast<int64_t>(size) < want) {
      size = static_cast<size_t>(want);
      p.reset(static_cast<float*>(std::aligned_alloc(64, (size * sizeof(float) + 63) / 64 * 64)));
      if (!p) throw std::bad_alloc();
    }
    return p.get();
  }
};
thread_local Panels panels;

void build_stored_a(const Cta& cta, Warp* const warps[kWarps], const MmaRecord& record, float* base, int depth,
                    int k0) {
  const Form f = form_of(*record.instr);
  const Matrix m(record.a_descriptor, f.transpose_a, element_bytes(f.a));
  const uint8_t* const shared = cta.shared.bytes;
  Pieces pieces;
  pieces.element = f.a;
  pieces.across = m.mn_major && !f.registers_a;
  pieces.flip = f.negate_a != f.negate_b ? 0x80000000u : 0;
  for (uint32_t w = 0; w < kWarps; ++w) {
    for (uint32_t h = 0; h < 2; ++h) {
      for (uint32_t piece = 0; piece < 2; ++piece) {
        for (uint32_t i = 0; i < 8; ++i) {
          // Four lanes hold the 16 bytes of a row of a fragment (9.7.15.5.1.1).
          if (f.registers_a)
            pieces.at[i] =
                reinterpret_cast<const uint8_t*>(warps[w]->row<uint32_t>(f.a_registers[h + 2 * piece]) + 4 * i);
          else if (m.mn_major)
            pieces.at[i] = shared + m.piece_mn_major(2 * w + h, 8 * piece + i);
          else
            pieces.at[i] = shared + m.piece_k_major(16 * w + 8 * h + i, piece);
        }
        pack_a(pieces, base, depth, static_cast<int>(w), k0 + f.k / 2 * static_cast<int>(piece), static_cast<int>(h));
      }
    }
  }
}

// Room for A, and for where a sparse one has its elements.
float* panel_of_a(const Form& f, int depth) {
  if (f.sparse) Panels::grow(panels.stored, panels.stored_size, a_panel_floats(depth));
  return Panels::grow(panels.a, panels.a_size, a_panel_floats(depth));
}

SparseRows sparse_rows(const Form& f) {
  return {static_cast<uint8_t>(8 * element_bytes(f.a)), static_cast<uint8_t>(f.k), f.selector, false};
}

void build_a(const Cta& cta, Warp* const warps[kWarps], const MmaRecord& record, float* base, int depth, int k0) {
  const Form f = form_of(*record.instr);
  if (!f.sparse) return build_stored_a(cta, warps, record, base, depth, k0);
  float* const elements = Panels::grow(panels.elements, panels.elements_size, a_panel_floats(f.k));
  build_stored_a(cta, warps, record, elements, f.k, 0);
  float* const stored = panels.stored.get();
  const SparseRows rows = sparse_rows(f);
  for (int w = 0; w < kWarps; ++w) {
    for (float* const panel : {base, stored})
      std::memset(a_panel(panel, depth, w, k0, 0), 0, static_cast<size_t>(f.depth()) * 2 * kPanelRow * sizeof(float));
    for (int row = 0; row < 16; ++row) {
      for (int i = 0; i < f.k; ++i) {
        const int column = sparse_column(rows, record.metadata[static_cast<size_t>(w)], row, i);
        for (int lane = row % 8 * 4; lane < row % 8 * 4 + 4; ++lane) {
          // Two elements may claim one column, which is a deviation.
          a_panel(base, depth, w, k0 + column, row / 8)[lane] += a_panel(elements, f.k, w, i, row / 8)[lane];
          a_panel(stored, depth, w, k0 + column, row / 8)[lane] = 1;
        }
      }
    }
  }
}

void build_b(const Cta& cta, const MmaRecord& record, float* base, int depth, int k0) {
  const Form f = form_of(*record.instr);
  const Matrix m(record.b_descriptor, f.transpose_b, element_bytes(f.b));
  const uint8_t* const shared = cta.shared.bytes;
  Pieces pieces;
  pieces.element = f.b;
  pieces.across = m.mn_major;
  for (uint32_t j = 0; j < static_cast<uint32_t>(f.n) / 8; ++j) {
    for (uint32_t piece = 0; piece < (f.sparse ? 4u : 2u); ++piece) {
      for (uint32_t i = 0; i < 8; ++i)
        pieces.at[i] = shared + (m.mn_major ? m.piece_mn_major(j, 8 * piece + i) : m.piece_k_major(8 * j + i, piece));
      pack_b(pieces, base, depth, static_cast<int>(j), k0 + f.k / 2 * static_cast<int>(piece));
    }
  }
}

// Whether A must be multiplied without the zeros that it does not store.
bool keeps_to_stored(const Form& f, const float* b, int depth) {
  return f.sparse && !all_finite(b, b_panel_floats(depth, f.n));
}

// One warp's part of a product of floats.
void multiply_warp(bool stored_alone, float* const rows[], int n, int w, const float* b, int depth, bool fresh) {
  const float* const a = a_panel(panels.a.get(), depth, w, 0, 0);
  if (stored_alone)
    multiply_stored(rows, n, a, a_panel(panels.stored.get(), depth, w, 0, 0), b, depth, fresh);
  else
    multiply(rows, n, a, b, depth, fresh);
}

// Operations with float32 accumulators in the same registers, in their order. `b_built`: the descriptors of B whose
// panel stands built, kept from call to call as long as shared memory does not change.
void multiply_floats(const Cta& cta, Warp* const warps[kWarps], const MmaRecord* const* run, size_t count,
                     std::vector<uint64_t>& b_built) {
  const Form first = form_of(*run[0]->instr);
  const int depth = first.depth() * static_cast<int>(count);
  float* const a = panel_of_a(first, depth);
  float* const b = Panels::grow(panels.b, panels.b_size, b_panel_floats(depth, first.n));
  std::vector<uint64_t> wanted{static_cast<uint64_t>(first.n), static_cast<uint64_t>(first.b), first.transpose_b,
                               first.sparse};
  for (size_t i = 0; i < count; ++i) {
    build_a(cta, warps, *run[i], a, depth, first.depth() * static_cast<int>(i));
    wanted.push_back(run[i]->b_descriptor);
  }
  if (wanted != b_built) {
    for (size_t i = 0; i < count; ++i) build_b(cta, *run[i], b, depth, first.depth() * static_cast<int>(i));
    b_built = std::move(wanted);
  }
  const bool stored_alone = keeps_to_stored(first, b, depth);
  float* rows[128];
  for (int w = 0; w < kWarps; ++w) {
    for (int i = 0; i < first.n / 2; ++i) rows[i] = warps[w]->row<float>(first.d[i]);
    multiply_warp(stored_alone, rows, first.n, w, b, depth, !run[0]->accumulate);
  }
}

// Float16 accumulators: summed in float32, rounded at the end of each operation. Registers 2 * j + h hold columns
// 8 * j + 2 * c and the next.
void multiply_halves(const Cta& cta, Warp* const warps[kWarps], const MmaRecord& record) {
  const Form f = form_of(*record.instr);
  float* const a = panel_of_a(f, f.depth());
  float* const b = Panels::grow(panels.b, panels.b_size, b_panel_floats(f.depth(), f.n));
  float* const sums = Panels::grow(panels.sums, panels.sums_size, int64_t{f.n / 2} * kLanes);
  build_a(cta, warps, record, a, f.depth(), 0);
  build_b(cta, record, b, f.depth(), 0);
  const bool stored_alone = keeps_to_stored(f, b, f.depth());
  float* rows[128];
  for (int i = 0; i < f.n / 2; ++i) rows[i] = sums + i * kLanes;
  for (int w = 0; w < kWarps; ++w) {
    for (int i = 0; i < f.n / 2; ++i) {
      const uint32_t* const packed = warps[w]->row<uint32_t>(f.d[i / 2]);
      for (int lane = 0; lane < kLanes; ++lane)
        rows[i][lane] = f16_to_f32(static_cast<uint16_t>(packed[lane] >> 16 * (i % 2)));
    }
    multiply_warp(stored_alone, rows, f.n, w, b, f.depth(), !record.accumulate);
    for (int i = 0; i < f.n / 4; ++i) {
      uint32_t* const packed = warps[w]->row<uint32_t>(f.d[i]);
      for (int lane = 0; lane < kLanes; ++lane)
        packed[lane] = f32_to_f16(rows[2 * i][lane]) | uint32_t{f32_to_f16(rows[2 * i + 1][lane])} << 16;
    }
  }
}

// The product of single bits counts those that are set in both operands, a byte of them at a time (9.7.15.5.2).
void multiply_bits(const Cta& cta, Warp* const warps[kWarps], const MmaRecord& record) {
  const Form f = form_of(*record.instr);
  const Matrix ma(record.a_descriptor, false, 1), mb(record.b_descriptor, false, 1);
  std::vector<uint8_t> a(static_cast<size_t>(kRows * f.k)), b(static_cast<size_t>(f.n * f.k));
  for (int row = 0; row < kRows; ++row) {
    for (int k = 0; k < f.k; ++k) {
      const uint8_t* const at =
          f.registers_a ? fragment_element(*warps[row / 16], f, row % 8, row % 16 / 8, k)
                        : cta.shared.bytes + ma.byte_k_major(static_cast<uint32_t>(row), static_cast<uint32_t>(k));
      a[static_cast<size_t>(row * f.k + k)] = *at;
    }
  }
  for (int column = 0; column < f.n; ++column) {
    for (int k = 0; k < f.k; ++k)
      b[static_cast<size_t>(column * f.k + k)] =
          cta.shared.bytes[mb.byte_k_major(static_cast<uint32_t>(column), static_cast<uint32_t>(k))];
  }
  for (int w = 0; w < kWarps; ++w) {
    for (int i = 0; i < f.n / 2; ++i) {
      uint32_t* const d = warps[w]->row<uint32_t>(f.d[i]);
      for (int lane = 0; lane < kLanes; ++lane) {
        const int row = 16 * w + lane / 4 + 8 * (i / 2 % 2);
        const int column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
        uint32_t sum = record.accumulate ? d[lane] : 0;
        for (int k = 0; k < f.k; ++k) {
          const auto both = a[static_cast<size_t>(row * f.k + k)] & b[static_cast<size_t>(column * f.k + k)];
          sum += static_cast<uint32_t>(std::popcount(static_cast<uint32_t>(both)));
        }
        d[lane] = sum;
      }
    }
  }
}

// So many operations on 8-bit integers keep the sums of their products exact in float32, which is below 2^24.
constexpr size_t kExactIntegers = (1 << 24) / (32 * 255 * 255);

// Multiplies operations on the same integer accumulators together. An operation that saturates comes alone.
void multiply_integers(const Cta& cta, Warp* const warps[kWarps], const MmaRecord* const* run, size_t count) {
  const Form f = form_of(*run[0]->instr);
  if (f.a == Element::B1) {
    for (size_t i = 0; i < count; ++i) multiply_bits(cta, warps, *run[i]);
    return;
  }
  const int depth = f.depth() * static_cast<int>(count);
  float* const a = panel_of_a(f, depth);
  float* const b = Panels::grow(panels.b, panels.b_size, b_panel_floats(depth, f.n));
  float* const sums = Panels::grow(panels.sums, panels.sums_size, int64_t{f.n / 2} * kLanes);
  for (size_t i = 0; i < count; ++i) {
    build_a(cta, warps, *run[i], a, depth, f.depth() * static_cast<int>(i));
    build_b(cta, *run[i], b, depth, f.depth() * static_cast<int>(i));
  }
  float* rows[128];
  for (int i = 0; i < f.n / 2; ++i) rows[i] = sums + i * kLanes;
  for (int w = 0; w < kWarps; ++w) {
    multiply(rows, f.n, a_panel(a, depth, w, 0, 0), b, depth, true);
    for (int i = 0; i < f.n / 2; ++i) {
      uint32_t* const d = warps[w]->row<uint32_t>(f.d[i]);
      for (int lane = 0; lane < kLanes; ++lane) {
        const uint32_t before = run[0]->accumulate ? d[lane] : 0;
        const auto product = static_cast<int32_t>(rows[i][lane]);
        if (f.saturate)
          d[lane] = static_cast<uint32_t>(
              std::clamp<int64_t>(int64_t{static_cast<int32_t>(before)} + product, INT32_MIN, INT32_MAX));
        else
          d[lane] = before + static_cast<uint32_t>(product);
      }
    }
  }
}

bool same_accumulators(const Form& x, const Form& y) {
  return x.n == y.n && x.result == y.result && x.k == y.k &&
         std::memcmp(x.d, y.d, static_cast<size_t>(x.d_registers) * sizeof *x.d) == 0;
}

// Whether two operations on the same accumulators can be one product, of which B is built as the first one has it.
bool one_product(const Form& x, const Form& y) {
  return x.b == y.b && x.transpose_b == y.transpose_b && x.saturate == y.saturate && x.sparse == y.sparse;
}

// A group of operations that wgmma.commit_group has closed.
class WgmmaGroup : public AsyncOp {
 public:
  WgmmaGroup(Origin origin, uint32_t warpgroup, std::vector<std::unique_ptr<MmaRecord>> records)
      : origin_(origin), warpgroup_(warpgroup), records_(std::move(records)) {}
  void perform(Cluster& cluster) override {
    Cta& cta = *origin_.warp->cta;
    Warp* warps[kWarps];
    for (uint32_t w = 0; w < kWarps; ++w) warps[w] = cta.warps[4 * warpgroup_ + w].get();
    if (meets_undefined(warps)) [[unlikely]]
      multiply_undefined(cluster, cta, warps);
    else
      multiply_all(cluster, cta, warps);
    ++cta.async->warpgroups[warpgroup_].completed;
  }

 private:
  void multiply_all(Cluster& cluster, const Cta& cta, Warp* const warps[kWarps]) {
    // Operations on different accumulators do not touch each other's registers (claim() sees to that), so each
    // accumulator's may run together.
    std::vector<std::vector<const MmaRecord*>> accumulators;
    for (const auto& record : records_) {
      const Form f = form_of(*record->instr);
      if (cluster.statistics != nullptr)
        cluster.statistics->multiply_adds += static_cast<uint64_t>(kRows * f.n * f.k * (f.a == Element::B1 ? 8 : 1));
      auto at = accumulators.begin();
      while (at != accumulators.end() && !same_accumulators(form_of(*at->front()->instr), f)) ++at;
      if (at == accumulators.end()) at = accumulators.emplace(at);
      at->push_back(record.get());
    }
    std::vector<uint64_t> b_built;
    for (const auto& list : accumulators) {
      for (size_t i = 0; i < list.size();) {
        size_t end = i + 1;
        const Form f = form_of(*list[i]->instr);
        // 16 operations are enough to pay for the panels, which then still fit into the cache. Float16 accumulators are
        // rounded after each operation, so each of these is multiplied alone.
        const size_t longest = f.result == Result::F32                  ? 16
                               : f.result == Result::S32 && !f.saturate ? kExactIntegers
                                                                        : 1;
        while (end < list.size() && end - i < longest && list[end]->accumulate &&
               one_product(form_of(*list[end]->instr), f))
          ++end;
        if (f.result == Result::F32) {
          multiply_floats(cta, warps, &list[i], end - i, b_built);
        } else {
          b_built.clear();
          if (f.result == Result::F16) multiply_halves(cta, warps, *list[i]);
          if (f.result == Result::S32) multiply_integers(cta, warps, &list[i], end - i);
        }
        i = end;
      }
    }
  }
  // Calls visit with each row of the operands' registers.
  template <class Visit>
  void each_row(Visit visit) const {
    for (const auto& record : records_) {
      const Form f = form_of(*record->instr);
      for (int i = 0; i < f.d_registers; ++i) visit(f.d[i]);
      for (int i = 0; f.registers_a && i < 4; ++i) visit(f.a_registers[i]);
    }
  }
  bool meets_undefined(Warp* const warps[kWarps]) const {
    if (std::any_of(records_.begin(), records_.end(), [](const auto& record) { return record->reads_unwritten; }))
      return true;
    bool any = false;
    for (int w = 0; w < kWarps; ++w) {
      if (holds_undefined(*warps[w])) each_row([&](uint32_t row) { any = any || warps[w]->undefined->has(row); });
    }
    return any;
  }
  void multiply_undefined(Cluster& cluster, Cta& cta, Warp* const warps[kWarps]) {
    std::vector<Tried> parts;
    std::vector<std::pair<Warp*, uint32_t>> rows;
    for (int w = 0; w < kWarps; ++w) {
      hold_undefined(*warps[w]);
      each_row([&](uint32_t row) { rows.emplace_back(warps[w], row); });
    }
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    for (const auto& [warp, row] : rows)
      parts.push_back({warp->registers.get() + row, warp->undefined->registers.get() + row, 4 * kLanes});
    std::vector<uint8_t> shared = undefined_shared(*origin_.warp, cta);
    parts.push_back({cta.shared.bytes, shared.data(), shared.size(), true});
    Statistics* const statistics = cluster.statistics;
    try_values(parts, kProductTrials, [&](int) {
      multiply_all(cluster, cta, warps);
      cluster.statistics = nullptr;
      return true;
    });
    cluster.statistics = statistics;
    for (const auto& [warp, row] : rows) note_undefined(*warp, row);
  }

  Origin origin_;
  uint32_t warpgroup_;
  std::vector<std::unique_ptr<MmaRecord>> records_;
};

// ---- registers in flight ------------------------------------------------------------------------

using RegisterSet = AsyncWarpState::RegisterSet;
constexpr uint32_t kRowBytes = 64;

// The set of exactly these registers, made when there is none. Faults when one of them is in flight otherwise.
RegisterSet& claim(Warp& warp, const uint32_t* offsets, int count, uint16_t shape, bool fragment) {
  AsyncWarpState& s = *warp.async;
  const auto pending = [&](const RegisterSet& set) { return set.in_flight > s.mma_waited; };
  if (const uint32_t row = offsets[0] / kRowBytes; row < s.set_of.size() && s.set_of[row] != 0) {
    RegisterSet& set = s.sets[s.set_of[row] - 1u];
    if (set.rows.size() == static_cast<size_t>(count) &&
        std::memcmp(set.rows.data(), offsets, set.rows.size() * sizeof(uint32_t)) == 0) {
      if (pending(set) && set.shape != shape && !(fragment && set.shape == 0))
        fault(Hazard::RegistersInFlight, warp, -1,
              "registers of a wgmma in flight are used by one of another shape without wgmma.wait_group");
      set.shape = shape;
      return set;
    }
  }
  uint32_t touched = 0;
  size_t index = s.sets.size();
  for (int i = 0; i < count; ++i) {
    const uint32_t row = offsets[i] / kRowBytes;
    if (row >= s.set_of.size()) continue;  // the row of a constant
    touched = std::max(touched, s.touched[row]);
    if (s.set_of[row] == 0) continue;
    RegisterSet& other = s.sets[s.set_of[row] - 1u];
    if (pending(other) && !(fragment && other.shape == 0))
      fault(Hazard::RegistersInFlight, warp, -1,
            "registers of a wgmma in flight are used by another one as a different operand without wgmma.wait_group");
    touched = std::max(touched, other.touched);
    if (pending(other)) continue;  // two fragments overlap, and both are only read
    index = s.set_of[row] - 1u;
    for (const uint32_t offset : other.rows) {
      if (offset / kRowBytes < s.set_of.size()) s.set_of[offset / kRowBytes] = 0;
    }
    other.rows.clear();
  }
  if (index == s.sets.size()) s.sets.emplace_back();
  RegisterSet& set = s.sets[index];
  set.rows.assign(offsets, offsets + count);
  set.shape = shape;
  set.in_flight = 0;
  set.touched = touched;
  for (int i = 0; i < count; ++i) {
    if (offsets[i] / kRowBytes < s.set_of.size()) s.set_of[offsets[i] / kRowBytes] = static_cast<uint16_t>(index + 1);
  }
  return set;
}

void use_registers(Warp& warp, const uint32_t* offsets, int count, uint16_t shape, bool fragment) {
  AsyncWarpState& s = *warp.async;
  RegisterSet& set = claim(warp, offsets, count, shape, fragment);
  if (set.touched == s.mma_fences + 1)
    fault(Hazard::RegistersInFlight, warp, -1,
          std::string("the ") + (fragment ? "registers of matrix A" : "accumulator registers") +
              " were accessed after the last wgmma.fence");
  set.in_flight = s.mma_committed + 1;
}

// ---- instructions -------------------------------------------------------------------------------

WarpGroup& warpgroup_of(Warp& warp, uint32_t mask) {
  if (mask != kFullMask || (warp.index | 3) >= static_cast<int>(warp.cta->warps.size()))
    fault(Hazard::IllegalUse, warp, -1, "wgmma needs a warpgroup: four warps of 32 threads");
  return warp.cta->async->warpgroups[static_cast<size_t>(warp.index) / 4];
}

Step execute_wgmma_fence(Warp& warp, const Instr&, uint32_t mask) {
  if (!converged(warp, mask)) return Step::Wait;
  warpgroup_of(warp, mask);
  AsyncWarpState& s = *warp.async;
  const size_t rows = warp.cta->cluster->launch->kernel->register_bytes / kRowBytes + 1;
  if (s.set_of.size() != rows) {
    s.set_of.assign(rows, 0);
    s.touched.assign(rows, 0);
  }
  ++s.mma_fences;
  warp.attention |= Warp::kInFlight;
  return Step::Next;
}

// Notes for the coverage list what the descriptors choose.
void cover_mma(const Instr& instr, const Form& f, uint64_t a, uint64_t b, bool accumulate) {
  const auto matrix = [&](const char* name, uint64_t descriptor, bool transposed) {
    static const char* const kSwizzles[] = {"no swizzle", "128-byte swizzle", "64-byte swizzle", "32-byte swizzle"};
    cover(instr, std::string(name) + (transposed ? " MN-major, " : " K-major, ") + kSwizzles[descriptor >> 62]);
  };
  if (f.registers_a)
    cover(instr, "A in registers");
  else
    matrix("A", a, f.transpose_a);
  matrix("B", b, f.transpose_b);
  if (f.negate_a) cover(instr, "negated A");
  if (f.negate_b) cover(instr, "negated B");
  if (f.sparse) cover(instr, f.selector == 0 ? "selector 0" : "selector 1");
  cover(instr, accumulate ? "D read" : "D not read");
}

// The metadata of a warp's lanes, read when it issues the operation.
Metadata read_metadata(const Warp& warp, const Instr& instr, const Form& f) {
  Metadata metadata;
  for (int lane = 0; lane < kLanes; ++lane) metadata[static_cast<size_t>(lane)] = read32(warp, instr, f.metadata, lane);
  check_metadata(warp, sparse_rows(f), metadata, "wgmma");
  return metadata;
}

// Matrices in shared memory are read, as far as the warp knows what was written there.
void read_matrices(Warp& warp, const Form& f, MmaRecord& record) {
  const Stamp stamp{warp.cta->async->warpgroups[static_cast<size_t>(warp.index) / 4].agent, record.group + 1};
  SharedAccess access(warp, *warp.cta, SharedAccess::Kind::AsyncRead, stamp);
  if (!f.registers_a) {
    touch_matrix(access, *warp.cta, warp, Matrix(record.a_descriptor, f.transpose_a, element_bytes(f.a)), kRows,
                 static_cast<uint32_t>(f.k));
  }
  touch_matrix(access, *warp.cta, warp, Matrix(record.b_descriptor, f.transpose_b, element_bytes(f.b)),
               static_cast<uint32_t>(f.n), static_cast<uint32_t>(f.depth()));
  record.met = access.take_met();
  record.reads_unwritten = holds_undefined(warp) && !warp.undefined->met.empty();
}

// At isa each warp has to know of all that the operation reads, since the ISA does not say that one waits for others.
void read_alone(Warp& warp, const Form& f, MmaRecord& record) {
  if (record.warps == 0) return read_matrices(warp, f, record);
  SharedAccess::check(warp, *warp.cta, SharedAccess::Kind::AsyncRead, record.met);
}

// A GPU reads when all four warps have issued the operation (bench/warp_group_order.cu), and published kernels rely on
// it: it is enough that one of the warps knows.
void read_together(Warp& warp, const Form& f, MmaRecord& record) {
  record.seen.join(warp.view.seen);
  record.fenced.join(warp.view.fenced);
  if (record.warps + 1 < kWarps) return;
  std::swap(warp.view.seen, record.seen);
  std::swap(warp.view.fenced, record.fenced);
  read_matrices(warp, f, record);
  std::swap(warp.view.seen, record.seen);
  std::swap(warp.view.fenced, record.fenced);
  const size_t first = static_cast<size_t>(warp.index) / kWarps * kWarps;
  for (size_t i = first; i < first + kWarps; ++i) {
    const Warp& one = *warp.cta->warps[i];
    for (const SharedAccess::Met& met : record.met) {
      if (SharedAccess::is_ordered(one, met)) continue;
      deviation(Hazard::DataInFlight, warp, -1, [&] {
        return "a wgmma reads shared memory at offset " + hex(met.offset) + ", written by " +
               describe_agent(*warp.cta->cluster, met.history.write.by) + ", and of its warp group's warps number " +
               std::to_string(one.index) + " has not waited for that, only another";
      });
    }
  }
}

Step execute_mma(Warp& warp, const Instr& instr, uint32_t mask) {
  if (!converged(warp, mask)) return Step::Wait;
  WarpGroup& group = warpgroup_of(warp, mask);
  AsyncWarpState& s = *warp.async;
  const Form f = form_of(instr);
  if (s.mma_fences == 0)
    fault(Hazard::RegistersInFlight, warp, -1, "no wgmma.fence stands before the first wgmma.mma_async");
  use_registers(warp, f.d, f.d_registers, static_cast<uint16_t>(f.n * 4 + static_cast<int>(f.result) + 1), false);
  if (f.registers_a) use_registers(warp, f.a_registers, 4, 0, true);
  const uint64_t a = f.registers_a ? 0 : read64(warp, instr, f.a_operand, 0);
  const uint64_t b = read64(warp, instr, f.b_descriptor, 0);
  bool accumulate = f.scale_d;
  if (!f.scale_d_constant) {
    const uint32_t scale = warp.predicate(instr.reg[f.scale_d_predicate.place]);
    if (scale != 0 && scale != kFullMask)
      fault(Hazard::IllegalUse, warp, -1, "the scale-d predicate of a wgmma differs between lanes");
    accumulate = (scale != 0) != f.scale_d;
  }
  if (f.sparse && !f.transpose_b && Matrix(b, false, 1).wide == 2)
    fault(Hazard::IllegalUse, warp, -1,
          "a sparse wgmma takes 64 bytes of each column of B, of which a swizzle of 32 bytes holds half; the ISA does "
          "not say where the others are");
  if (coverage_wanted()) cover_mma(instr, f, a, b, accumulate);
  const uint32_t number = s.mma_issued++;
  if (number - group.open_first == group.open.size()) {
    group.open.push_back(std::make_unique<MmaRecord>());
    MmaRecord& record = *group.open.back();
    record.instr = &instr;
    record.a_descriptor = a;
    record.b_descriptor = b;
    record.accumulate = accumulate;
    record.group = s.mma_committed;
    record.metadata.resize(f.sparse ? kWarps : 0);
  }
  MmaRecord& record = *group.open[number - group.open_first];
  if (record.instr != &instr || record.group != s.mma_committed)
    fault(Hazard::IllegalUse, warp, -1, "the warps of a warpgroup execute different wgmma.mma_async");
  if (record.a_descriptor != a || record.b_descriptor != b || record.accumulate != accumulate)
    fault(Hazard::IllegalUse, warp, -1, "the warps of a warpgroup give a wgmma different descriptors or scale-d");
  if (warp.cta->cluster->launch->rules.strictness == Strictness::Isa)
    read_alone(warp, f, record);
  else
    read_together(warp, f, record);
  if (f.sparse) record.metadata[static_cast<size_t>(warp.index % kWarps)] = read_metadata(warp, instr, f);
  ++record.warps;
  return Step::Next;
}

Step execute_commit(Warp& warp, const Instr& instr, uint32_t mask) {
  if (!converged(warp, mask)) return Step::Wait;
  WarpGroup& group = warpgroup_of(warp, mask);
  AsyncWarpState& s = *warp.async;
  const uint32_t number = s.mma_committed++;
  if (number == group.groups.size()) group.groups.push_back({s.mma_issued, 0});
  WarpGroup::Group& committed = group.groups[number];
  if (committed.end != s.mma_issued)
    fault(Hazard::IllegalUse, warp, -1, "the warps of a warpgroup commit different numbers of wgmma.mma_async");
  if (++committed.warps < kWarps) return Step::Next;
  const auto count = static_cast<ptrdiff_t>(committed.end - group.open_first);
  std::vector<std::unique_ptr<MmaRecord>> records(std::make_move_iterator(group.open.begin()),
                                                  std::make_move_iterator(group.open.begin() + count));
  group.open.erase(group.open.begin(), group.open.begin() + count);
  group.open_first = committed.end;
  Cluster& cluster = *warp.cta->cluster;
  auto op = std::make_unique<WgmmaGroup>(Origin{&warp, instr.source, -1}, static_cast<uint32_t>(warp.index / 4),
                                         std::move(records));
  op->queue = group.queue;
  cluster.engine.submit(cluster, std::move(op));
  return Step::Next;
}

Step execute_wait_group(Warp& warp, const Instr& instr, uint32_t mask) {
  if (!converged(warp, mask)) return Step::Wait;
  WarpGroup& group = warpgroup_of(warp, mask);
  AsyncWarpState& s = *warp.async;
  const int64_t until = int64_t{s.mma_committed} - instr.form<WaitGroupForm>().newest;
  if (until > int64_t{group.completed}) {
    return wait_for(warp, [&] {
      return "wgmma group " + std::to_string(until - 1) + " of warpgroup " + std::to_string(warp.index / 4) +
             ", of which " + std::to_string(group.groups[static_cast<size_t>(until) - 1].warps) +
             " of 4 warps have committed";
    });
  }
  if (until > 0) {
    s.mma_waited = std::max(s.mma_waited, static_cast<uint32_t>(until));
    warp.view.seen.raise(group.agent, static_cast<uint32_t>(until));
  }
  return Step::Next;
}

bool decode_wgmma(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  const auto& parts = source.parts;
  const auto& operands = source.operands;
  if (context.arch() != 90) unsupported(source, "wgmma needs target sm_90a");
  if (!has_part(source, "sync") || !has_part(source, "aligned")) unsupported(source, "the form is not known");
  if (parts[1] == "fence") {
    out.execute = execute_wgmma_fence;
    return true;
  }
  if (parts[1] == "commit_group") {
    out.execute = execute_commit;
    return true;
  }
  if (parts[1] == "wait_group") {
    if (operands.size() != 1) unsupported(source, "wrong number of operands");
    out.set(WaitGroupForm{immediate_of(source, operands[0])});
    out.execute = execute_wait_group;
    return true;
  }
  if (parts[1] != "mma_async") unsupported(source, "the form is not known");
  MmaForm form;
  form.sparse = has_part(source, "sp");
  std::vector<std::string> types;
  int n = 0, k = 0;
  for (size_t i = form.sparse ? 5 : 4; i < parts.size(); ++i) {
    if (parts[i] == "satfinite") {
      form.saturate = true;
    } else if (std::sscanf(parts[i].c_str(), "m64n%dk%d", &n, &k) == 2) {
      continue;
    } else {
      types.push_back(parts[i]);
    }
  }
  const bool bits = types.size() == 5 && types[1] == "b1" && types[3] == "and" && types[4] == "popc";
  if (bits) types.resize(3);
  if (types.size() != 3 || n < 8 || n > 256 || n % 8 != 0) unsupported(source, "the form is not known");
  const auto element = [&](const std::string& name) {
    static const char* const kNames[] = {"f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8", "b1"};
    for (uint8_t i = 0; i < 8; ++i) {
      if (name == kNames[i]) return static_cast<Element>(i);
    }
    unsupported(source, "type ." + name + " is not known");
  };
  const Element a = element(types[1]), b = element(types[2]);
  const bool integer = a >= Element::S8, fp8 = a == Element::E4M3 || a == Element::E5M2;
  const bool b_fits = a == Element::B1 || b == Element::B1 ? a == b && bits && !form.saturate
                      : integer                            ? b >= Element::S8
                      : fp8                                ? b == Element::E4M3 || b == Element::E5M2
                                                           : a == b;
  Result result = Result::F32;
  if (types[0] == "f16" && (a == Element::F16 || fp8)) {
    result = Result::F16;
  } else if (types[0] == "s32" && integer) {
    result = Result::S32;
  } else if (types[0] != "f32" || integer) {
    unsupported(source, "the accumulator type does not fit");
  }
  if (!b_fits || (bits && form.sparse) || k != (bits ? 256 : (form.sparse ? 64 : 32) / element_bytes(a)))
    unsupported(source, "types and shape do not fit");
  if (integer && n > 32 && n % 16 != 0) unsupported(source, "the shape is not known");
  form.n = static_cast<int16_t>(n);
  form.k = static_cast<int16_t>(32 / element_bytes(a));
  form.a = a;
  form.b = b;
  form.result = result;
  // The metadata and its selector stand between the matrices and scale-d.
  const size_t behind = form.sparse ? 5 : 3;
  if (operands.size() <= behind) unsupported(source, "wrong number of operands");
  const size_t d_registers = static_cast<size_t>(result == Result::F16 ? n / 4 : n / 2);
  form.d_registers = static_cast<uint8_t>(d_registers);
  if (operands[0].kind != ptx::Operand::Kind::Vector || operands[0].elements.size() != d_registers)
    unsupported(source, "the accumulator must be a vector of " + std::to_string(d_registers) + " registers");
  form.registers_a = operands[1].kind == ptx::Operand::Kind::Vector;
  if (form.registers_a && operands[1].elements.size() != 4)
    unsupported(source, "matrix A must be a vector of 4 registers");
  // The immediates after scale-d are the scales of A and B, and for 16-bit types their transpositions, of which A has
  // one only with a descriptor.
  const bool half = a == Element::F16 || a == Element::BF16;
  const size_t scales = integer ? 0 : 2, transposes = half ? (form.registers_a ? 1 : 2) : 0;
  if (operands.size() != behind + 1 + scales + transposes) unsupported(source, "wrong number of operands");
  const auto one_of = [&](size_t index, int64_t low, int64_t high) {
    const int64_t value = immediate_of(source, operands[index]);
    if (value != low && value != high) unsupported(source, "an immediate operand is out of range");
    return value == high;
  };
  form.negate_a = scales > 0 && !one_of(behind + 1, -1, 1);
  form.negate_b = scales > 0 && !one_of(behind + 2, -1, 1);
  form.transpose_a = transposes == 2 && one_of(behind + 3, 0, 1);
  form.transpose_b = transposes > 0 && one_of(behind + 2 + transposes, 0, 1);
  const ptx::Type register_type = result == Result::F32 ? ptx::Type::F32 : ptx::Type::B32;
  context.push(operands[0], register_type);
  form.a_operand = push_value(context, operands[1], form.registers_a ? ptx::Type::B32 : ptx::Type::U64);
  form.b_descriptor = push_value(context, operands[2], ptx::Type::U64);
  if (form.sparse) {
    form.metadata = push_value(context, operands[3], ptx::Type::B32);
    const int64_t selector = immediate_of(source, operands[4]);
    if (selector < 0 || selector > (element_bytes(a) == 1 ? 0 : 1))
      unsupported(source, "the sparsity selector must be " + std::string(element_bytes(a) == 1 ? "0" : "0 or 1"));
    form.selector = static_cast<uint8_t>(selector);
  }
  const ptx::Operand& scale_d = operands[behind];
  if (scale_d.kind == ptx::Operand::Kind::Immediate) {
    form.scale_d_constant = true;
    form.scale_d = scale_d.bits != 0;
  } else {
    form.scale_d_predicate = push_value(context, scale_d, ptx::Type::Pred);
    form.scale_d = scale_d.negated;
  }
  out.set(form);
  out.execute = execute_mma;
  return true;
}

}  // namespace

void check_wgmma_registers(Warp& warp, const Instr& instr) {
  // wgmma looks after its own operands.
  if (instr.execute == execute_mma || warp.async->mma_fences == 0) return;
  AsyncWarpState& s = *warp.async;
  for (uint16_t i = 0; i < instr.reg_count; ++i) {
    const uint32_t row = instr.reg[i] / kRowBytes;
    if (row >= s.set_of.size()) continue;
    if (s.set_of[row] == 0) {
      s.touched[row] = s.mma_fences + 1;
      continue;
    }
    RegisterSet& set = s.sets[s.set_of[row] - 1u];
    if (set.in_flight > s.mma_waited) {
      fault(Hazard::RegistersInFlight, warp, -1,
            std::string(set.shape != 0 ? "accesses an accumulator" : "accesses a register of matrix A") +
                " of a wgmma that no wgmma.wait_group has waited for");
    }
    set.touched = s.mma_fences + 1;
  }
}

void register_wgmma() { register_opcode("wgmma", decode_wgmma); }

}  // namespace sim
