// SPDX-License-Identifier: Apache-2.0
// mma.sync (PTX ISA 9.7.14.5), mma.sp.sync (9.7.14.6) and wmma.mma (9.7.14.4.5): products of small matrices whose
// fragments lie in the registers of a warp, of every type that sm_90 has. Sums are in the order of k by fused
// multiply-add, as those of wgmma (sim/arithmetic/panel_product.h).
#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "sim/arithmetic/panel_product.h"
#include "sim/isa/fragments.h"
#include "sim/isa/warp_wide.h"
#include "sim/machine/decode.h"
#include "sim/machine/operands.h"
#include "sim/machine/sparse.h"

namespace sim {
namespace {

using fragments::bits_of;
using fragments::Element;
using fragments::element_from;
using fragments::kColumns;
using fragments::Place;
using fragments::place_in_a;
using fragments::place_in_b;
using fragments::push_registers;
using fragments::WmmaMatrix;
using fragments::WmmaShape;

struct Product {
  // The rows of A and the depth. B has kColumns columns.
  uint8_t m;
  uint16_t k;
  Element a, b, c, d;
  // An index into kRoundings, for f64.
  uint8_t rounding;
  bool satfinite : 1, by_and : 1, a_by_columns : 1, b_by_rows : 1;
  // Of a sparse matrix A, and of its metadata.
  bool sparse : 1, ordered : 1;
  uint8_t selector : 2;
  // The first register of each fragment.
  ValueOperand at_d, at_a, at_b, at_c;
  ValueOperand metadata;

  // How many elements of a row of A are stored.
  int stored() const { return sparse ? k / 2 : k; }
};

constexpr int kRoundings[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};

// ---- fragments -----------------------------------------------------------------------------------

float to_float(Element e, uint32_t code) {
  switch (e) {
    case Element::F16:
      return f16_to_f32(static_cast<uint16_t>(code));
    case Element::BF16:
      return bf16_to_f32(static_cast<uint16_t>(code));
    case Element::E4M3:
      return e4m3_to_f32(static_cast<uint8_t>(code));
    case Element::E5M2:
      return e5m2_to_f32(static_cast<uint8_t>(code));
    default:
      return std::bit_cast<float>(code & 0xffffe000u);  // Of tf32, 10 bits of the mantissa count.
  }
}

int32_t to_integer(Element e, uint32_t code) {
  switch (e) {
    case Element::S8:
      return static_cast<int8_t>(code);
    case Element::S4:
      return static_cast<int32_t>(code << 28) >> 28;
    default:
      return static_cast<int32_t>(code);
  }
}

// For MOXIE_SIM_STATISTICS.
void count_products(const Warp& warp, const Product& p, int products = 1) {
  Statistics* const statistics = warp.cta->cluster->statistics;
  if (statistics != nullptr) statistics->multiply_adds += static_cast<uint64_t>(products * p.m * kColumns * p.stored());
}

// The registers of D.
struct Destination {
  uint32_t* row[8];
};
Destination destination_of(Warp& warp, const Instr& in, const Product& p) {
  Destination d{};
  for (int i = 0; i < (p.d == Element::F16 ? p.m / 8 : p.m / 4); ++i)
    d.row[i] = warp.row<uint32_t>(in.reg[p.at_d.place + i]);
  return d;
}

constexpr int kDeepest = 128;
template <class T>
struct Operands {
  T a[16][kDeepest];        // [row][k]
  T b[kDeepest][kColumns];  // [k][column]
  T sum[16][kColumns];
  bool stored[16][kDeepest];  // which elements of a sparse matrix A are
};

SparseRows sparse_rows(const Product& p) {
  return {static_cast<uint8_t>(bits_of(p.a)), static_cast<uint8_t>(p.stored()), p.selector, p.ordered};
}

// Where the stored elements of A stand in its rows.
class Columns {
 public:
  Columns(const Warp& warp, const Instr& in, const Product& p) : product_(p) {
    if (!p.sparse) return;
    rows_ = sparse_rows(p);
    for (int lane = 0; lane < kLanes; ++lane) metadata_[static_cast<size_t>(lane)] = read32(warp, in, p.metadata, lane);
    check_metadata(warp, rows_, metadata_, "mma");
  }
  int operator()(int row, int element) const {
    return product_.sparse ? sparse_column(rows_, metadata_, row, element) : element;
  }

 private:
  const Product& product_;
  SparseRows rows_{};
  Metadata metadata_{};
};

template <class T, class Convert>
void gather(const Warp& warp, const Instr& in, const Product& p, Convert convert, Operands<T>* out) {
  const int bits = bits_of(p.a), each = 32 / bits;
  const int of_a = p.m * p.stored() / each / kLanes, of_b = kColumns * p.k / each / kLanes;
  const Columns column(warp, in, p);
  if (p.sparse) {
    std::memset(out->a, 0, sizeof out->a);
    std::memset(out->stored, 0, sizeof out->stored);
  }
  const uint32_t mask = bits == 32 ? kFullMask : (1u << bits) - 1;
  for (int r = 0; r < of_a; ++r) {
    const uint32_t* const row = warp.row<uint32_t>(in.reg[p.at_a.place + r]);
    for (int lane = 0; lane < kLanes; ++lane) {
      const Place at = place_in_a(p.m, r, lane, each);
      for (int e = 0; e < each; ++e) {
        const T value = convert(p.a, row[lane] >> e * bits & mask);
        const int k = column(at.row, at.first + e);
        T& a = out->a[at.row][k];
        // Two elements of a sparse matrix may claim one column, which is a deviation.
        a = p.sparse ? a + value : value;
        if (p.sparse) out->stored[at.row][k] = true;
      }
    }
  }
  for (int r = 0; r < of_b; ++r) {
    const uint32_t* const row = warp.row<uint32_t>(in.reg[p.at_b.place + r]);
    for (int lane = 0; lane < kLanes; ++lane) {
      const Place at = place_in_b(r, lane, each);
      for (int e = 0; e < each; ++e) out->b[at.first + e][at.row] = convert(p.b, row[lane] >> e * bits & mask);
    }
  }
}

// ---- products ------------------------------------------------------------------------------------

[[gnu::always_inline]] inline void sum_floats(Operands<float>& o, int m, int depth) {
  for (int i = 0; i < m; ++i) {
    float sum[kColumns];
    std::memcpy(sum, o.sum[i], sizeof sum);
    for (int k = 0; k < depth; ++k) {
      for (int j = 0; j < kColumns; ++j) sum[j] = std::fma(o.a[i][k], o.b[k][j], sum[j]);
    }
    std::memcpy(o.sum[i], sum, sizeof sum);
  }
}
void sum_plainly(Operands<float>& o, int m, int depth) { sum_floats(o, m, depth); }
#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] void sum_with_fma(Operands<float>& o, int m, int depth) { sum_floats(o, m, depth); }
#endif

void multiply_floats(Operands<float>& o, int m, int depth) {
#if defined(__x86_64__)
  static const bool fused = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (fused) return sum_with_fma(o, m, depth);
#endif
  sum_plainly(o, m, depth);
}

// Sums the products of stored elements alone. A zero that is not stored would make a NaN of an infinity in B.
void multiply_stored(Operands<float>& o, int m, int depth) {
  for (int i = 0; i < m; ++i) {
    for (int k = 0; k < depth; ++k) {
      for (int j = 0; o.stored[i][k] && j < kColumns; ++j) o.sum[i][j] = std::fma(o.a[i][k], o.b[k][j], o.sum[i][j]);
    }
  }
}

void small_product(const Warp& warp, const Instr& in, const Product& p, const Destination& d) {
  alignas(64) Operands<float> o;
  gather(warp, in, p, to_float, &o);
  const bool from_halves = p.c == Element::F16;
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < p.m / 4; ++i) {
      const uint32_t word = warp.row<uint32_t>(in.reg[p.at_c.place + (from_halves ? i / 2 : i)])[lane];
      o.sum[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2] =
          from_halves ? f16_to_f32(static_cast<uint16_t>(word >> i % 2 * 16)) : std::bit_cast<float>(word);
    }
  }
  if (p.sparse && !all_finite(o.b[0], p.k * kColumns))
    multiply_stored(o, p.m, p.k);
  else
    multiply_floats(o, p.m, p.k);
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int half = 0; half < p.m / 8; ++half) {
      const float* const pair = o.sum[lane / 4 + 8 * half] + 2 * (lane % 4);
      if (p.d == Element::F16) {
        d.row[half][lane] = f32_to_f16(pair[0]) | static_cast<uint32_t>(f32_to_f16(pair[1])) << 16;
      } else {
        d.row[2 * half][lane] = std::bit_cast<uint32_t>(pair[0]);
        d.row[2 * half + 1][lane] = std::bit_cast<uint32_t>(pair[1]);
      }
    }
  }
}

// m8n8k4 of f16 is four products, each by the lanes 4 q ... and 16 + 4 q ... (9.7.14.5.1).
Step multiply_quads(Warp& warp, const Instr& in, uint32_t mask) {
  if (!require_all_lanes(warp, mask)) return Step::Wait;
  const auto p = in.form<Product>();
  count_products(warp, p, 4);
  const int of_d = p.d == Element::F16 ? 4 : 8;
  const auto half_at = [&](ValueOperand fragment, int lane, int i) {
    return f16_to_f32(static_cast<uint16_t>(warp.row<uint32_t>(in.reg[fragment.place + i / 2])[lane] >> i % 2 * 16));
  };
  const auto place_of = [&](Element type, int lane, int i) {
    const int high = lane < 16 ? 0 : 4;
    if (type == Element::F16) return std::pair(lane % 4 + high, i);
    return std::pair((lane & 1) + (i & 2) + high, (i & 4) + (lane & 2) + (i & 1));
  };
  alignas(64) float result[8][kLanes];
  for (int q = 0; q < 4; ++q) {
    alignas(64) Operands<float> o;
    for (int n = 0; n < 8; ++n) {
      const int lane = 4 * q + n % 4 + (n < 4 ? 0 : 16);
      for (int i = 0; i < 4; ++i) {
        const float a = half_at(p.at_a, lane, i), b = half_at(p.at_b, lane, i);
        (p.a_by_columns ? o.a[i + n / 4 * 4][n % 4] : o.a[n][i]) = a;
        (p.b_by_rows ? o.b[n % 4][i + n / 4 * 4] : o.b[i][n]) = b;
      }
      for (int i = 0; i < 8; ++i) {
        const auto [row, column] = place_of(p.c, lane, i);
        o.sum[row][column] =
            p.c == Element::F16 ? half_at(p.at_c, lane, i) : warp.row<float>(in.reg[p.at_c.place + i])[lane];
      }
    }
    multiply_floats(o, 8, 4);
    for (int n = 0; n < 8; ++n) {
      const int lane = 4 * q + n % 4 + (n < 4 ? 0 : 16);
      for (int i = 0; i < 8; ++i) {
        const auto [row, column] = place_of(p.d, lane, i);
        result[i][lane] = o.sum[row][column];
      }
    }
  }
  for (int i = 0; i < of_d; ++i) {
    for (int lane = 0; lane < kLanes; ++lane) {
      if (p.d == Element::F32)
        warp.row<float>(in.reg[p.at_d.place + i])[lane] = result[i][lane];
      else
        warp.row<uint32_t>(in.reg[p.at_d.place + i])[lane] =
            f32_to_f16(result[2 * i][lane]) | static_cast<uint32_t>(f32_to_f16(result[2 * i + 1][lane])) << 16;
    }
  }
  return Step::Next;
}

int32_t narrowed(int64_t sum, bool saturate) {
  if (saturate) sum = std::max<int64_t>(INT32_MIN, std::min<int64_t>(INT32_MAX, sum));
  return static_cast<int32_t>(static_cast<uint32_t>(sum));
}

template <class Sum>
void accumulate_integers(const Warp& warp, const Instr& in, const Product& p, const Destination& d, Sum sum) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < p.m / 4; ++i) {
      const int64_t before = warp.row<int32_t>(in.reg[p.at_c.place + i])[lane];
      d.row[i][lane] =
          static_cast<uint32_t>(narrowed(before + sum(lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2), p.satfinite));
    }
  }
}

void integer_product(const Warp& warp, const Instr& in, const Product& p, const Destination& d) {
  Operands<int32_t> o;
  gather(warp, in, p, to_integer, &o);
  accumulate_integers(warp, in, p, d, [&](int row, int column) {
    int32_t sum = 0;
    for (int k = 0; k < p.k; ++k) sum += o.a[row][k] * o.b[k][column];
    return sum;
  });
}

void bit_product(const Warp& warp, const Instr& in, const Product& p, const Destination& d) {
  const int words = p.k / 32, of_a = p.m * words / kLanes, of_b = kColumns * words / kLanes;
  uint32_t a[16][8], b[kColumns][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int r = 0; r < of_a; ++r) {
      const Place at = place_in_a(p.m, r, lane, 1);
      a[at.row][at.first] = warp.row<uint32_t>(in.reg[p.at_a.place + r])[lane];
    }
    for (int r = 0; r < of_b; ++r) {
      const Place at = place_in_b(r, lane, 1);
      b[at.row][at.first] = warp.row<uint32_t>(in.reg[p.at_b.place + r])[lane];
    }
  }
  accumulate_integers(warp, in, p, d, [&](int row, int column) {
    int32_t sum = 0;
    for (int w = 0; w < words; ++w)
      sum += std::popcount(p.by_and ? a[row][w] & b[column][w] : a[row][w] ^ b[column][w]);
    return sum;
  });
}

using Multiply = void (*)(const Warp&, const Instr&, const Product&, const Destination&);
// Of all elements but f64.
Multiply multiply_of(const Product& p) {
  if (p.a == Element::B1) return bit_product;
  return p.d == Element::S32 ? integer_product : small_product;
}

Step multiply(Warp& warp, const Instr& in, uint32_t mask) {
  if (!require_all_lanes(warp, mask)) return Step::Wait;
  const auto p = in.form<Product>();
  count_products(warp, p);
  multiply_of(p)(warp, in, p, destination_of(warp, in, p));
  return Step::Next;
}

// A wmma.mma is several products. D may be in the registers of what later products read.
struct Wmma {
  Product first;
  WmmaShape shape;
};
Step multiply_wmma(Warp& warp, const Instr& in, uint32_t mask) {
  if (!require_all_lanes(warp, mask)) return Step::Wait;
  const auto form = in.form<Wmma>();
  const WmmaShape shape = form.shape;
  const int down = shape.products_down(), across = shape.products_across();
  count_products(warp, form.first, down * across);
  const auto registers = [&](WmmaMatrix matrix, Element e) { return wmma_product_registers(shape, matrix, e); };
  const int of_a = registers(WmmaMatrix::A, form.first.a), of_b = registers(WmmaMatrix::B, form.first.b);
  const int of_c = registers(WmmaMatrix::Accumulator, form.first.c);
  const int of_d = registers(WmmaMatrix::Accumulator, form.first.d);
  alignas(64) uint32_t result[8][kLanes];
  for (int i = 0; i < down * across; ++i) {
    Product p = form.first;
    p.at_a.place = static_cast<uint8_t>(p.at_a.place + i / across * of_a);
    p.at_b.place = static_cast<uint8_t>(p.at_b.place + i % across * of_b);
    p.at_c.place = static_cast<uint8_t>(p.at_c.place + i * of_c);
    Destination d{};
    for (int r = 0; r < of_d; ++r) d.row[r] = result[i * of_d + r];
    multiply_of(p)(warp, in, p, d);
  }
  for (int r = 0; r < down * across * of_d; ++r)
    std::memcpy(warp.row<uint32_t>(in.reg[form.first.at_d.place + r]), result[r], sizeof result[r]);
  return Step::Next;
}

// This function is not inlined, so that no multiplication moves across the change of rounding.
[[gnu::noinline]] void multiply_doubles(const double (*a)[16], const double (*b)[kColumns], double (*sum)[kColumns],
                                        int m, int depth) {
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < kColumns; ++j) {
      for (int k = 0; k < depth; ++k) sum[i][j] = std::fma(a[i][k], b[k][j], sum[i][j]);
    }
  }
}

Step multiply_f64(Warp& warp, const Instr& in, uint32_t mask) {
  if (!require_all_lanes(warp, mask)) return Step::Wait;
  const auto p = in.form<Product>();
  count_products(warp, p);
  const int of_d = p.m / 4, of_a = p.m * p.k / kLanes, of_b = kColumns * p.k / kLanes;
  double a[16][16], b[16][kColumns], sum[16][kColumns];
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int r = 0; r < of_a; ++r) {
      const Place at = place_in_a(p.m, r, lane, 1);
      a[at.row][at.first] = warp.row<double>(in.reg[p.at_a.place + r])[lane];
    }
    for (int r = 0; r < of_b; ++r) {
      const Place at = place_in_b(r, lane, 1);
      b[at.first][at.row] = warp.row<double>(in.reg[p.at_b.place + r])[lane];
    }
    for (int i = 0; i < of_d; ++i)
      sum[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2] = warp.row<double>(in.reg[p.at_c.place + i])[lane];
  }
  std::fesetround(kRoundings[p.rounding]);
  multiply_doubles(a, b, sum, p.m, p.k);
  std::fesetround(FE_TONEAREST);
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < of_d; ++i)
      warp.row<double>(in.reg[p.at_d.place + i])[lane] = sum[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
  }
  return Step::Next;
}

// ---- decoding ------------------------------------------------------------------------------------

bool shape_exists(const Product& p) {
  const int width = bits_of(p.a) * p.k;
  if (p.a == Element::F64) return width == 256 || (p.m == 16 && (width == 512 || width == 1024));
  if (p.a == Element::F16 && p.m == 8) return p.k == 4;
  return width == 128 || (p.m == 16 && width == 256);
}

bool types_exist(const Product& p) {
  switch (p.a) {
    case Element::F16:
      if (p.m == 8 && p.b == p.a && p.c == Element::F16 && p.d == Element::F32) return true;
      return p.b == p.a && p.c == p.d && (p.d == Element::F16 || p.d == Element::F32);
    case Element::BF16:
    case Element::TF32:
      return p.m == 16 && p.b == p.a && p.c == Element::F32 && p.d == Element::F32;
    case Element::E4M3:
    case Element::E5M2:
      return p.m == 16 && (p.b == Element::E4M3 || p.b == Element::E5M2) && p.c == p.d &&
             (p.d == Element::F16 || p.d == Element::F32);
    case Element::F64:
      return p.b == p.a && p.c == p.a && p.d == p.a;
    case Element::S8:
    case Element::U8:
      return (p.b == Element::S8 || p.b == Element::U8) && p.c == Element::S32 && p.d == Element::S32;
    case Element::S4:
    case Element::U4:
      return (p.b == Element::S4 || p.b == Element::U4) && p.c == Element::S32 && p.d == Element::S32;
    case Element::B1:
      return p.b == p.a && p.c == Element::S32 && p.d == Element::S32;
    default:
      return false;
  }
}

// What a product's opcode names beside its shape. Its modifiers may stand in any order, as ptxas takes them; only those
// of one kind have theirs.
struct Modifiers {
  std::vector<std::string> layouts;
  std::vector<Element> elements;
  uint8_t rounding = 0;
  bool rounds = false, satfinite = false, by_and = false, has_operation = false;
};

// False where parts are left over beside `known` others, or where some are missing.
bool read_modifiers(const ptx::Instruction& source, size_t known, Modifiers* out) {
  static constexpr std::string_view kRoundingNames[] = {"rn", "rz", "rm", "rp"};
  bool counts = false, combines = false;
  for (const std::string& part : source.parts) {
    const auto* const rounding = std::find(std::begin(kRoundingNames), std::end(kRoundingNames), part);
    if (part == "row" || part == "col") {
      out->layouts.push_back(part);
    } else if (element_from(part) != Element::None) {
      out->elements.push_back(element_from(part));
    } else if (rounding != std::end(kRoundingNames) && !out->rounds) {
      out->rounds = true;
      out->rounding = static_cast<uint8_t>(rounding - std::begin(kRoundingNames));
    } else if (part == "satfinite" && !out->satfinite) {
      out->satfinite = true;
    } else if ((part == "xor" || part == "and") && !combines) {
      combines = true;
      out->by_and = part == "and";
    } else if (part == "popc" && combines && !counts) {
      counts = true;
    } else {
      continue;
    }
    ++known;
  }
  out->has_operation = counts;
  return source.parts.size() == known && out->layouts.size() == 2 && counts == combines;
}

// The depths that sparse products of such elements have (9.7.14.6.3).
bool sparse_shape_exists(const Product& p) {
  const int width = bits_of(p.a) * p.k;
  if (p.m != 16 || p.a == Element::F64 || p.a == Element::B1) return false;
  const bool small = p.a == Element::E4M3 || p.a == Element::E5M2;
  return width == 512 || (width == 256 && !small);
}

// mma{.sp|.sp::ordered_metadata}.sync.aligned.shape.layout.layout{.satfinite|.rnd}.d.a.b.c{.op.popc}
bool decode_mma(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (!has_part(source, "sync") || !has_part(source, "aligned")) return false;
  Product p{};
  for (const std::string& part : source.parts) {
    if (part.starts_with("kind::")) throw Unsupported("products of '." + part + "' need sm_120a");
  }
  int m = 0, n = 0, k = 0;
  for (const std::string& part : source.parts) {
    int length = 0;
    if (std::sscanf(part.c_str(), "m%2dn%2dk%3d%n", &m, &n, &k, &length) == 3 &&
        static_cast<size_t>(length) == part.size())
      break;
    m = 0;
  }
  if ((m != 8 && m != 16) || n != kColumns || k <= 0 || k > 256 || k % 4 != 0) return false;
  p.m = static_cast<uint8_t>(m);
  p.k = static_cast<uint16_t>(k);
  p.ordered = has_part(source, "sp::ordered_metadata");
  p.sparse = p.ordered || has_part(source, "sp");
  Modifiers modifiers;
  // Known are the opcode, .sync, .aligned and the shape.
  if (!read_modifiers(source, p.sparse ? 5 : 4, &modifiers) || modifiers.elements.size() != 4) return false;
  p.a_by_columns = modifiers.layouts[0] == "col";
  p.b_by_rows = modifiers.layouts[1] == "row";
  p.d = modifiers.elements[0];
  p.a = modifiers.elements[1];
  p.b = modifiers.elements[2];
  p.c = modifiers.elements[3];
  p.by_and = modifiers.by_and;
  p.satfinite = modifiers.satfinite;
  p.rounding = modifiers.rounding;
  const bool integer = p.d == Element::S32 && p.a != Element::B1;
  if (modifiers.has_operation != (p.a == Element::B1) || (p.satfinite && !integer)) return false;
  if (modifiers.rounds && p.a != Element::F64) return false;
  if (!types_exist(p) || !(p.sparse ? sparse_shape_exists(p) : shape_exists(p))) return false;
  const bool quads = p.a == Element::F16 && p.m == 8;
  if (!quads && (p.a_by_columns || p.b_by_rows)) return false;
  if (p.sparse && p.d == Element::F16 && bits_of(p.a) == 8)
    throw Unsupported("sparse products of 8-bit floats with accumulators of f16 need sm_120a");
  const size_t operands = p.sparse ? 6 : 4;
  if (source.operands.size() != operands) throw Unsupported("it takes " + std::to_string(operands) + " operands");

  const bool doubles = p.a == Element::F64;
  const int register_bits = doubles ? 64 : 32;
  const auto accumulators = [&](Element e) {
    return quads ? (e == Element::F16 ? 4 : 8)
                 : p.m * kColumns * (e == Element::F16 ? 16 : register_bits) / (kLanes * register_bits);
  };
  const auto factors = [&](int elements) { return quads ? 2 : elements * bits_of(p.a) / (kLanes * register_bits); };
  p.at_d = push_registers(source.operands[0], context, accumulators(p.d), doubles, true);
  p.at_a = push_registers(source.operands[1], context, factors(m * p.stored()), doubles, false);
  p.at_b = push_registers(source.operands[2], context, factors(kColumns * k), doubles, false);
  p.at_c = push_registers(source.operands[3], context, accumulators(p.c), doubles, false);
  if (p.sparse) {
    if (source.operands[4].kind != ptx::Operand::Kind::Register) throw Unsupported("the metadata are a register");
    p.metadata = push_value(context, source.operands[4], ptx::Type::B32);
    const int selectors = 4 / sparse_rows(p).lanes();
    const int64_t selector = immediate_of(source, source.operands[5]);
    if (selector < 0 || selector >= selectors)
      throw Unsupported("the sparsity selector must be less than " + std::to_string(selectors));
    p.selector = static_cast<uint8_t>(selector);
  }
  out.set(p);
  out.execute = doubles ? multiply_f64 : quads ? multiply_quads : multiply;
  return true;
}

// Which elements go together, and with which modifiers (9.7.14.4.5).
bool wmma_exists(const Product& p, bool rounds, bool has_operation) {
  const bool integer = p.a >= Element::S8 && p.a <= Element::B1;
  if (has_operation != (p.a == Element::B1) || (rounds && p.a != Element::F64)) return false;
  if (p.satfinite && (!integer || p.a == Element::B1)) return false;
  // Elements of less than a byte have one layout.
  if (bits_of(p.a) < 8 && (p.a_by_columns || p.b_by_rows)) return false;
  if (p.a == Element::F16) return true;
  const Element sum = integer ? Element::S32 : p.a == Element::F64 ? Element::F64 : Element::F32;
  return p.b == p.a && p.c == sum && p.d == sum;
}

// wmma.mma{.op.popc}.sync.aligned.layout.layout.shape{.rnd}.d{.a.b}.c{.satfinite}
bool decode_wmma_mma(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  const std::vector<std::string>& parts = source.parts;
  if (parts.size() < 2 || parts[1] != "mma" || !has_part(source, "sync") || !has_part(source, "aligned")) return false;
  const WmmaShape shape = fragments::wmma_shape(source);
  if (shape.m == 0) return false;
  Product p{};
  p.m = static_cast<uint8_t>(shape.rows());
  p.k = shape.k;
  Modifiers modifiers;
  // Known are wmma, .mma, .sync, .aligned and the shape.
  if (!read_modifiers(source, 5, &modifiers)) return false;
  const std::vector<Element>& elements = modifiers.elements;
  p.rounding = modifiers.rounding;
  p.satfinite = modifiers.satfinite;
  p.by_and = modifiers.by_and;
  if (elements.size() != 2 && elements.size() != 4) return false;
  // Products of f16 name the accumulators alone.
  const bool halves = elements.size() == 2;
  p.a_by_columns = modifiers.layouts[0] == "col";
  p.b_by_rows = modifiers.layouts[1] == "row";
  p.d = elements[0];
  p.a = halves ? Element::F16 : elements[1];
  p.b = halves ? Element::F16 : elements[2];
  p.c = elements.back();
  if (!halves && p.a == Element::F16) return false;
  const auto has = [&](WmmaMatrix matrix, Element e) { return fragments::wmma_has(shape, matrix, e); };
  if (!has(WmmaMatrix::A, p.a) || !has(WmmaMatrix::Accumulator, p.c) || !has(WmmaMatrix::Accumulator, p.d))
    return false;
  if (halves && (p.c == Element::S32 || p.d == Element::S32)) return false;
  if (p.satfinite && (halves || p.c == Element::F32))
    throw Unsupported("'.satfinite' of floats ended with version 6.4 of the PTX ISA");
  if (!wmma_exists(p, modifiers.rounds, modifiers.has_operation)) return false;
  if (source.operands.size() != 4) throw Unsupported("it takes 4 operands");

  const auto push = [&](size_t i, WmmaMatrix matrix, Element e) {
    return push_registers(source.operands[i], context, fragments::wmma_registers(shape, matrix, e), e == Element::F64,
                          i == 0);
  };
  p.at_d = push(0, WmmaMatrix::Accumulator, p.d);
  p.at_a = push(1, WmmaMatrix::A, p.a);
  p.at_b = push(2, WmmaMatrix::B, p.b);
  p.at_c = push(3, WmmaMatrix::Accumulator, p.c);
  if (p.a == Element::F64) {
    out.set(p);
    out.execute = multiply_f64;
  } else {
    out.set(Wmma{p, shape});
    out.execute = multiply_wmma;
  }
  return true;
}

}  // namespace

void register_mma() {
  register_opcode("mma", decode_mma);
  register_opcode("wmma", decode_wmma_mma);
}

}  // namespace sim
