// SPDX-License-Identifier: Apache-2.0
// tcgen05.mma (PTX ISA 9.7.16.10) of every kind on random data, against direct computations from the definition.
#include <cmath>
#include <limits>
#include <map>

#include "sim/arithmetic/row_product.h"
#include "tests/sim/formats.h"
#include "tests/sim/tcgen05.h"

namespace {

using namespace sim_test;

// ---- kind f16 -------------------------------------------------------------------------------------

uint32_t random_bf16() {  // -4 to 4 in steps that keep all bits busy
  const float x = static_cast<float>(static_cast<int>(below(511)) - 255) / 64.0f;
  return std::bit_cast<uint32_t>(x) >> 16;
}
float bf16(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

// Where row r (of the block's) and column n of D stand (9.7.16.10.5); `columns` of the whole D.
struct DPlace {
  int lane, column;
};
DPlace d_place(int m, int group, bool ws, int r, int n, int columns, bool sparse = false) {
  if (ws && m == 32) return {r + 32 * (n / (columns / 4)), n % (columns / 4)};           // G
  if (ws && m == 64) return {r + 64 * (n / (columns / 2)), n % (columns / 2)};           // E
  if (group == 2 && m == 128 && sparse) return {r % 16 + r / 16 * 32, n};                // C
  if (group == 2 && m == 128) return {r + 64 * (n / (columns / 2)), n % (columns / 2)};  // B
  if (group == 1 && m == 64) return {r % 16 + r / 16 * 32, n};                           // F
  return {r, n};                                                                         // A, D
}

struct F16Case {
  int m, n, group;
  Swizzle swizzle_a = k128, swizzle_b = k128;
  bool mn_a = false, mn_b = false, accumulate = true, ws = false, a_in_tensor = false;
  int lane = 0;
};

void run_f16(const F16Case& c, sim::Order order) {
  const int k = 16, rows = c.m / c.group, columns = c.n / c.group;
  std::vector<Block> blocks(static_cast<size_t>(c.group));
  for (Block& b : blocks) {
    for (uint32_t& w : b.tensor) w = std::bit_cast<uint32_t>(static_cast<float>(below(1000)) / 16.0f);
  }
  const Placement pa = place(0, c.swizzle_a, c.mn_a, static_cast<uint32_t>(rows), 2);
  const Placement pb = place(48 * 1024, c.swizzle_b, c.mn_b, static_cast<uint32_t>(columns), 2);
  std::vector<float> a(static_cast<size_t>(c.m * k)), b(static_cast<size_t>(c.n * k));
  const auto put = [](Block& block, uint32_t at, uint32_t bits) {
    block.shared[at] = static_cast<uint8_t>(bits);
    block.shared[at + 1] = static_cast<uint8_t>(bits >> 8);
  };
  constexpr int kAColumn = 480;
  for (int i = 0; i < c.m; ++i) {
    for (int j = 0; j < k; ++j) {
      const uint32_t bits = random_bf16();
      a[static_cast<size_t>(i * k + j)] = bf16(bits);
      Block& block = blocks[static_cast<size_t>(i / rows)];
      if (!c.a_in_tensor) {
        put(block, pa.offset(static_cast<uint32_t>(i % rows), static_cast<uint32_t>(j), 2), bits);
        continue;
      }
      for (int n = 0; n < c.n; n += c.n / 4) {  // every part of the lanes has a copy
        const DPlace d = d_place(c.m, c.group, c.ws, i % rows, n, c.n);
        uint32_t& word = block.at(d.lane + c.lane, kAColumn + j / 2);
        word = j % 2 ? (word & 0xffff) | bits << 16 : (word & 0xffff0000) | bits;
      }
    }
  }
  for (int i = 0; i < c.n; ++i) {
    for (int j = 0; j < k; ++j) {
      const uint32_t bits = random_bf16();
      b[static_cast<size_t>(i * k + j)] = bf16(bits);
      put(blocks[static_cast<size_t>(i / columns)],
          pb.offset(static_cast<uint32_t>(i % columns), static_cast<uint32_t>(j), 2), bits);
    }
  }
  const std::string group = ".cta_group::" + std::to_string(c.group);
  // enable-input-d is a predicate, negated or not, or a number.
  const std::string enable = order.mode == sim::Mode::Lazy                        ? (c.accumulate ? "1" : "0")
                             : order.mode == sim::Mode::Random && order.seed != 1 ? "!%p1"
                                                                                  : "%p0";
  const std::string body =
      "  setp.ne.u32 %p0, %x3, 0;\n  not.pred %p1, %p0;\n  add.u32 %w0, %t, %x4;\n  add.u32 %w1, %w0, 480;\n"
      "  tcgen05.mma" +
      std::string(c.ws ? ".ws" : "") + group + ".kind::f16 [%w0], " + (c.a_in_tensor ? "[%w1]" : "%a0") +
      ", %a1, %x2, " + enable + ";\n" + commit(c.group);
  const auto got = run_machine(body, blocks,
                               {pa.descriptor(), pb.descriptor(), idesc_f16(c.m, c.n, c.mn_a, c.mn_b),
                                uint64_t{c.accumulate}, static_cast<uint64_t>(c.lane) << 16},
                               order);
  for (int i = 0; i < c.m; ++i) {
    for (int j = 0; j < c.n; ++j) {
      const DPlace d = d_place(c.m, c.group, c.ws, i % rows, j, c.n);
      uint32_t& word = blocks[static_cast<size_t>(i / rows)].at(d.lane + c.lane, d.column);
      float sum = c.accumulate ? std::bit_cast<float>(word) : 0.0f;
      for (int x = 0; x < k; ++x)
        sum = std::fma(a[static_cast<size_t>(i * k + x)], b[static_cast<size_t>(j * k + x)], sum);
      word = std::bit_cast<uint32_t>(sum);
    }
  }
  expect_images(got, blocks,
                "m " + std::to_string(c.m) + " n " + std::to_string(c.n) + " group " + std::to_string(c.group));
}

TEST(Tcgen05Mma, F16OfEveryLayout) {
  std::vector<F16Case> cases = {
      {128, 256, 1},
      {128, 8, 1},
      {64, 136, 1},
      {64, 16, 1, k128, k128, false, false, true, false, false, 16},
      {256, 256, 2},
      {256, 16, 2},
      {128, 240, 2},
      {128, 32, 2},
      {128, 128, 1, k128, k128, false, false, false},
      {32, 64, 1, k128, k128, false, false, true, true},
      {64, 256, 1, k128, k128, false, false, true, true},
      {128, 128, 1, k128, k128, false, false, true, true},
      {128, 64, 1, k128, k128, false, false, true, false, true},
      {64, 64, 1, k128, k128, false, false, true, false, true, 16},
      {256, 64, 2, k128, k128, false, false, true, false, true},
      {128, 64, 2, k128, k128, false, false, true, false, true},
  };
  for (const F16Case& c : cases) {
    for (const sim::Order order : all_orders()) run_f16(c, order);
  }
}

TEST(Tcgen05Mma, F16OfEverySharedMemoryLayout) {
  for (const Swizzle a : {kNone, k32, k64, k128}) {
    for (const Swizzle b : {kNone, k32, k64, k128}) {
      for (int major = 0; major < 4; ++major) {
        F16Case c{128, 64, 1, a, b, (major & 1) != 0, (major & 2) != 0};
        run_f16(c, {});
        c.group = 2;
        c.m = 256;
        c.n = 128;
        run_f16(c, {});
      }
    }
  }
}

// ---- every element type ---------------------------------------------------------------------------

enum Type { F16, BF16, TF32, E4M3, E5M2, E2M3, E3M2, E2M1, Packed, S8, U8 };
struct Format {
  const char* name;
  int bits;                // of a code
  int exponent, mantissa;  // 0: an integer
  uint32_t code;           // in the instruction descriptor
};
constexpr Format kFormats[] = {{"f16", 16, 5, 10, 0}, {"bf16", 16, 8, 7, 1}, {"tf32", 32, 8, 10, 2},
                               {"e4m3", 8, 4, 3, 0},  {"e5m2", 8, 5, 2, 1},  {"e2m3", 6, 2, 3, 3},
                               {"e3m2", 6, 3, 2, 4},  {"e2m1", 4, 2, 1, 5},  {"packed", 4, 2, 1, 1},
                               {"s8", 8, 0, 0, 1},    {"u8", 8, 0, 0, 0}};

double value_of(Type t, uint32_t code) {
  const Format& f = kFormats[t];
  if (t == S8) return static_cast<int8_t>(code);
  if (t == U8) return code & 0xff;
  return value_of(t == TF32 ? code >> 13 : code, FloatFormat{f.exponent, f.mantissa, false, false});
}

uint32_t infinity_of(Type t) { return ((1u << kFormats[t].exponent) - 1) << (t == TF32 ? 23 : kFormats[t].mantissa); }

// A code of a finite value, of middling size in the wide types.
uint32_t random_code(Type t) {
  const Format& f = kFormats[t];
  if (f.exponent == 8 || t == F16) {
    const uint32_t bias = (1u << (f.exponent - 1)) - 1, e = bias - 3 + below(6);
    const uint32_t code = below(2) << (f.exponent + f.mantissa) | e << f.mantissa | below(1u << f.mantissa);
    return t == TF32 ? code << 13 | below(1u << 13) : code;  // the low bits do not count
  }
  for (;;) {
    const uint32_t code = below(1u << f.bits);
    if (t == E4M3 && (code & 0x7f) == 0x7f) continue;
    if (t == E5M2 && (code & 0x7c) == 0x7c) continue;
    return code;
  }
}

void put_bits(std::vector<uint8_t>& bytes, uint32_t byte, uint32_t bit, uint32_t count, uint32_t code) {
  for (uint32_t i = 0; i < count; ++i) {
    uint8_t& b = bytes[byte + (bit + i) / 8];
    const auto mask = static_cast<uint8_t>(1u << (bit + i) % 8);
    b = static_cast<uint8_t>(code >> i & 1 ? b | mask : b & ~mask);
  }
}

void put_element(Block& block, const Placement& p, Type t, uint32_t mn, uint32_t k, uint32_t code) {
  const auto bits = static_cast<uint32_t>(kFormats[t].bits);
  if (t == Packed)
    put_bits(block.shared, p.offset(mn, k / 2, 1), k % 2 * 4, 4, code);
  else if (bits < 8)  // 16 of them at the start of 16 bytes
    put_bits(block.shared, p.offset(mn, k / 16 * 16, 1), k % 16 * bits, bits, code);
  else
    put_bits(block.shared, p.offset(mn, k, bits / 8), 0, bits, code);
}

// In tensor memory 6-bit codes stand in the low, 4-bit ones in the middle bits of a byte, but for mxf4.
void put_in_tensor(Block& block, Type t, int lane, int column, uint32_t k, uint32_t code) {
  uint32_t bits = static_cast<uint32_t>(kFormats[t].bits);
  if (t != Packed && bits < 8) {
    if (bits == 4) code <<= 2;
    bits = 8;
  }
  const uint32_t at = k * bits;
  uint32_t& word = block.at(lane, column + static_cast<int>(at / 32));
  const uint32_t mask = bits == 32 ? ~0u : ((1u << bits) - 1) << at % 32;
  word = (word & ~mask) | (code << at % 32 & mask);
}

// ---- sparse matrices A (9.7.16.10.8) -----------------------------------------------------------------

constexpr int kMetadataColumn = 440;

// The lanes that have a row of A in tensor memory: each part of D's columns has a copy.
std::vector<int> lanes_of_a(int m, int group, bool ws, int row, bool sparse) {
  std::vector<int> lanes;
  for (int part = 0; part < 4; ++part) lanes.push_back(d_place(m, group, ws, row, part, 4, sparse).lane);
  return lanes;
}

// Draws which of k columns of a row are stored, writes the row's metadata, and returns the columns. What the selector
// does not select stays as it is. lanes(r) are those that have row r of A.
template <class Lanes>
std::vector<int> put_metadata(Block& block, Type a, int row, int k, int selector, const Lanes& lanes) {
  const bool tf32 = a == TF32, wide = a >= E4M3;
  const int of_chunk = tf32 ? 2 : a == Packed ? 8 : 4;
  std::vector<int> stored;
  for (int chunk = 0; chunk < k / of_chunk; ++chunk) {
    const int first = chunk * of_chunk;
    uint32_t index = 0;
    if (tf32) {
      const uint32_t at = below(2);
      index = at == 0 ? 0b0100 : 0b1110;
      stored.push_back(first + static_cast<int>(at));
    } else {
      const uint32_t low = below(3), high = low + 1 + below(3 - low);
      index = low | high << 2;
      for (const uint32_t part : {low, high}) {
        for (int i = 0; i < of_chunk / 4; ++i) stored.push_back(first + static_cast<int>(part) * (of_chunk / 4) + i);
      }
    }
    // Figures 263, 265 and 267, for 128 rows a block; of .ws with fewer rows CUTLASS's tmem_e_frg_ws.
    // Otherwise 64 rows have half of the lanes (9.7.16.10.8.5).
    const int holder = wide ? row : row / 16 * 16 + row % 8 + (chunk >= 4 ? 8 : 0);
    for (const int lane : lanes(holder)) {
      uint32_t& word = block.at(lane, kMetadataColumn + (wide ? chunk / 8 : selector));
      const int bit = wide ? 4 * (chunk % 8) : 4 * (chunk % 4) + (row % 16 >= 8 ? 16 : 0);
      word = (word & ~(15u << bit)) | index << bit;
    }
  }
  return stored;
}
// The columns that a row stores: all of a dense matrix.
template <class Lanes>
std::vector<int> put_row(Block& block, Type a, int row, int k, int selector, const Lanes& lanes) {
  if (selector >= 0) return put_metadata(block, a, row, k, selector, lanes);
  std::vector<int> all;
  for (int i = 0; i < k; ++i) all.push_back(i);
  return all;
}

struct KindCase {
  std::string kind;
  Type a, b;
  int m = 128, n = 64, group = 1;
  uint32_t d = 1;  // 0: f16, 1: f32, 2: s32
  bool mn_a = false, mn_b = false;
  uint32_t flags = 0;  // saturate, negate
  bool a_in_tensor = false;
  int scale_d = 0;
  bool masked = false, ashift = false;
  std::string qualifier = {};
  Swizzle swizzle_a = k128, swizzle_b = k128;  // but for transposed tf32, which has one of its own
  bool accumulate = true;
  int selector = -1;  // of a sparse matrix A
  bool ws = false;
  int lane = 0;
  bool infinite = false;  // each column of B has an infinity, which matters where A stores an element beside it
};

void run_kind(const KindCase& c, sim::Order order = {}) {
  const bool sparse = c.selector >= 0;
  const int k = (c.a == TF32   ? 8
                 : c.a <= BF16 ? 16
                               : 32) *
                (sparse ? 2 : 1),
            rows = c.m / c.group, columns = c.n / c.group;
  const auto bytes = [](Type t) { return static_cast<uint32_t>(std::max(8, kFormats[t].bits) / 8); };
  const auto swizzle = [&](Swizzle wanted, bool mn) { return c.kind == "tf32" && mn ? kAtom32 : wanted; };
  std::vector<Block> blocks(static_cast<size_t>(c.group));
  for (Block& b : blocks) {
    for (uint32_t& w : b.tensor) {
      const int x = static_cast<int>(below(2001)) - 1000;
      w = c.d == 2   ? (below(4) == 0 ? 0x7fffff00u + below(256) : static_cast<uint32_t>(x))
          : c.d == 1 ? std::bit_cast<uint32_t>(static_cast<float>(x) / 16)
                     : code_of(static_cast<float>(x) / 64, kF16);
    }
  }
  const Placement pa = place(0, swizzle(c.swizzle_a, c.mn_a), c.mn_a, static_cast<uint32_t>(rows), bytes(c.a));
  const Placement pb =
      place(48 * 1024, swizzle(c.swizzle_b, c.mn_b), c.mn_b, static_cast<uint32_t>(columns), bytes(c.b));
  std::vector<float> a(static_cast<size_t>(c.m * k)), b(static_cast<size_t>(c.n * k));
  std::vector<bool> present(a.size());
  const auto lanes = [&](int row) {
    std::vector<int> of_row = lanes_of_a(c.m, c.group, c.ws, row, sparse);
    for (int& lane : of_row) lane += c.lane;
    return of_row;
  };
  for (int i = 0; i < c.m; ++i) {
    Block& block = blocks[static_cast<size_t>(i / rows)];
    const std::vector<int> stored = put_row(block, c.a, i % rows, k, c.selector, lanes);
    for (int j = 0; j < static_cast<int>(stored.size()); ++j) {
      const uint32_t code = random_code(c.a);
      const auto at = static_cast<size_t>(i * k + stored[static_cast<size_t>(j)]);
      a[at] = static_cast<float>(value_of(c.a, code));
      present[at] = true;
      if (c.a_in_tensor) {
        for (const int lane : lanes(i % rows)) put_in_tensor(block, c.a, lane, 480, static_cast<uint32_t>(j), code);
      } else {
        put_element(block, pa, c.a, static_cast<uint32_t>(i % rows), static_cast<uint32_t>(j), code);
      }
    }
  }
  for (int i = 0; i < c.n; ++i) {
    const int infinity = c.infinite ? static_cast<int>(below(static_cast<uint32_t>(k))) : -1;
    for (int j = 0; j < k; ++j) {
      const uint32_t code = j == infinity ? infinity_of(c.b) : random_code(c.b);
      b[static_cast<size_t>(i * k + j)] =
          j == infinity ? std::numeric_limits<float>::infinity() : static_cast<float>(value_of(c.b, code));
      put_element(blocks[static_cast<size_t>(i / columns)], pb, c.b, static_cast<uint32_t>(i % columns),
                  static_cast<uint32_t>(j), code);
    }
  }
  const uint32_t idesc = (sparse ? 4u | static_cast<uint32_t>(c.selector) : 0u) | c.d << 4 | c.flags |
                         kFormats[c.a].code << 7 | kFormats[c.b].code << 10 | uint32_t{c.mn_a} << 15 |
                         uint32_t{c.mn_b} << 16 | static_cast<uint32_t>(c.n / 8) << 17 |
                         static_cast<uint32_t>(c.m / 16) << 24;
  std::vector<uint32_t> mask(8);
  std::string body =
                  "  setp.ne.u32 %p0, %x3, 0;\n  add.u32 %w0, %t, %x4;\n  add.u32 %w1, %w0, 480;\n"
                  "  add.u32 %w3, %w0, 440;\n",
              words;
  if (c.masked) {
    for (int i = 0; i < 4 * c.group; ++i) {
      mask[static_cast<size_t>(i)] = static_cast<uint32_t>(rng()());
      body += "  mov.u32 %w" + std::to_string(4 + i) + ", " + std::to_string(mask[static_cast<size_t>(i)]) + ";\n";
      words += (i ? ", %w" : "{%w") + std::to_string(4 + i);
    }
    words += "}, ";
  }
  body += std::string("  tcgen05.mma") + (c.ws ? ".ws" : "") + (sparse ? ".sp" : "") +
          ".cta_group::" + std::to_string(c.group) + ".kind::" + c.kind + (c.ashift ? ".ashift" : "") + c.qualifier +
          " [%w0], " + (c.a_in_tensor ? "[%w1]" : "%a0") + ", %a1, " + (sparse ? "[%w3], " : "") + "%x2, " + words +
          "%p0" + (c.scale_d ? ", " + std::to_string(c.scale_d) : "") + ";\n" + commit(c.group);
  sim::Statistics statistics;
  const auto got = run_machine(
      body, blocks,
      {pa.descriptor(), pb.descriptor(), idesc, uint64_t{c.accumulate}, static_cast<uint64_t>(c.lane) << 16}, order,
      &statistics);
  EXPECT_EQ(statistics.multiply_adds, static_cast<uint64_t>(c.m * c.n * (sparse ? k / 2 : k)));
  const float sign = (c.flags >> 13 & 1) != (c.flags >> 14 & 1) ? -1.0f : 1.0f;
  for (int i = 0; i < c.m; ++i) {
    const int from = c.ashift && (i + 1) % 128 != 0 ? i + 1 : i;
    for (int j = 0; j < c.n; ++j) {
      DPlace p = d_place(c.m, c.group, c.ws, i % rows, j, c.n, sparse);
      p.lane += c.lane;
      if (mask[static_cast<size_t>(4 * (i / rows) + p.lane / 32)] >> p.lane % 32 & 1) continue;
      uint32_t& word = blocks[static_cast<size_t>(i / rows)].at(p.lane, p.column);
      const float *x = &a[static_cast<size_t>(from * k)], *y = &b[static_cast<size_t>(j * k)];
      if (c.d == 2) {
        int64_t sum = 0;
        for (int z = 0; z < k; ++z) sum += static_cast<int64_t>(x[z]) * static_cast<int64_t>(y[z]);
        if (c.accumulate) sum += static_cast<int32_t>(word);
        if (c.flags & 8) sum = std::min<int64_t>(std::max<int64_t>(sum, INT32_MIN), INT32_MAX);
        word = static_cast<uint32_t>(sum);
        continue;
      }
      float sum = c.d == 1 ? std::bit_cast<float>(word) : static_cast<float>(value_of(F16, word));
      sum = c.accumulate ? std::ldexp(sum, -c.scale_d) : 0.0f;
      for (int z = 0; z < k; ++z) {
        if (present[static_cast<size_t>(from * k + z)]) sum = std::fma(sign * x[z], y[z], sum);
      }
      word = c.d == 1 ? std::bit_cast<uint32_t>(sum) : code_of(sum, kF16);
    }
  }
  expect_images(
      got, blocks,
      c.kind + " " + kFormats[c.a].name + " " + kFormats[c.b].name + " m " + std::to_string(c.m) + (c.ws ? " ws" : ""));
}

TEST(Tcgen05Mma, F8F6F4OfEveryPairOfTypes) {
  for (const Type a : {E4M3, E5M2, E2M3, E3M2, E2M1}) {
    for (const Type b : {E4M3, E5M2, E2M3, E3M2, E2M1}) {
      run_kind({"f8f6f4", a, b, 64, 24});
      run_kind({.kind = "f8f6f4", .a = a, .b = b, .m = 256, .n = 32, .group = 2, .a_in_tensor = true});
    }
  }
  for (const Type a : {E4M3, E5M2}) {
    run_kind({.kind = "f8f6f4", .a = a, .b = E4M3, .mn_a = true, .mn_b = true});
    run_kind({.kind = "f8f6f4", .a = a, .b = E5M2, .m = 128, .n = 64, .group = 2, .mn_b = true});
  }
}

TEST(Tcgen05Mma, OtherKindsAndModifiers) {
  for (const sim::Order order : all_orders()) {
    run_kind({.kind = "tf32", .a = TF32, .b = TF32}, order);
    run_kind({.kind = "tf32", .a = TF32, .b = TF32, .mn_a = true, .mn_b = true}, order);
    run_kind({.kind = "tf32", .a = TF32, .b = TF32, .m = 64, .n = 40, .mn_b = true, .a_in_tensor = true}, order);
    run_kind({.kind = "f16", .a = F16, .b = F16, .n = 16, .d = 0}, order);
    run_kind({.kind = "f16", .a = F16, .b = F16, .m = 256, .n = 32, .group = 2, .d = 0}, order);
    run_kind({.kind = "f16", .a = F16, .b = F16, .flags = 1u << 13}, order);
    run_kind({.kind = "f16", .a = BF16, .b = BF16, .flags = 1u << 14, .a_in_tensor = true, .scale_d = 3}, order);
    run_kind({.kind = "f16", .a = BF16, .b = BF16, .flags = 3u << 13, .scale_d = 15}, order);
    run_kind({.kind = "i8", .a = S8, .b = S8, .d = 2}, order);
    run_kind({.kind = "i8", .a = U8, .b = S8, .m = 64, .n = 24, .d = 2, .flags = 8}, order);
    run_kind(
        {.kind = "i8", .a = S8, .b = U8, .m = 256, .n = 64, .group = 2, .d = 2, .mn_a = true, .mn_b = true, .flags = 8},
        order);
    run_kind({.kind = "f16", .a = BF16, .b = BF16, .masked = true}, order);
    run_kind({.kind = "f16", .a = BF16, .b = BF16, .m = 128, .n = 64, .group = 2, .masked = true}, order);
    run_kind({.kind = "i8", .a = U8, .b = U8, .m = 256, .n = 64, .group = 2, .d = 2, .masked = true}, order);
    run_kind({.kind = "f16", .a = BF16, .b = BF16, .a_in_tensor = true, .ashift = true}, order);
    run_kind({.kind = "f16",
              .a = BF16,
              .b = BF16,
              .m = 256,
              .group = 2,
              .a_in_tensor = true,
              .ashift = true,
              .qualifier = ".collector::a::lastuse"},
             order);
  }
  for (const char* op : {"fill", "use", "lastuse", "discard"})
    run_kind({.kind = "f16", .a = BF16, .b = BF16, .qualifier = std::string(".collector::a::") + op});
}

// ---- block scaling (9.7.16.10.7) ------------------------------------------------------------------

struct ScaledCase {
  std::string kind;
  Type a, b;
  int vector;  // scales of a row
  std::string qualifier;
  int m = 128, n = 64, group = 1;
  uint32_t id_a = 0, id_b = 0;
  bool e8m0 = true, a_in_tensor = false;
  uint32_t low = 120, range = 16;  // of the scales' codes
  uint32_t flags = 0;
  Swizzle swizzle_a = k128, swizzle_b = k128;
  bool mn_a = false, mn_b = false, accumulate = true, sparse = false, infinite = false;
};

double scale_value(bool e8m0, uint32_t code) {
  if (e8m0) return code == 255 ? std::nan("") : std::ldexp(1.0, static_cast<int>(code) - 127);
  return value_of(code & 0x7f, kE4M3);
}

void run_scaled(const ScaledCase& c, sim::Order order = {}) {
  const int k = (c.a == Packed ? 64 : 32) * (c.sparse ? 2 : 1), rows = c.m / c.group, columns = c.n / c.group,
            chunk = k / c.vector;
  std::vector<Block> blocks(static_cast<size_t>(c.group));
  for (Block& b : blocks) {
    for (uint32_t& w : b.tensor) w = std::bit_cast<uint32_t>(static_cast<float>(below(1000)) / 16.0f);
  }
  const Placement pa = place(0, c.swizzle_a, c.mn_a, static_cast<uint32_t>(rows), 1);
  const Placement pb = place(48 * 1024, c.swizzle_b, c.mn_b, static_cast<uint32_t>(columns), 1);
  const auto code = [&] {
    return c.e8m0 && c.range != 0 ? c.low + below(c.range) : c.range == 0 ? below(256) : 40 + below(40);
  };
  std::vector<double> a(static_cast<size_t>(c.m * k)), b, sa, sb;
  std::vector<bool> present(a.size());
  constexpr int kScaleA = 448, kScaleB = 464, kAColumn = 480;
  for (int i = 0; i < c.m; ++i) {
    Block& block = blocks[static_cast<size_t>(i / rows)];
    const auto lanes = [&](int row) { return lanes_of_a(c.m, c.group, false, row, c.sparse); };
    const std::vector<int> stored = put_row(block, c.a, i % rows, k, c.sparse ? 0 : -1, lanes);
    for (int j = 0; j < static_cast<int>(stored.size()); ++j) {
      const uint32_t bits = random_code(c.a);
      const auto at = static_cast<size_t>(i * k + stored[static_cast<size_t>(j)]);
      a[at] = value_of(c.a, bits);
      present[at] = true;
      if (!c.a_in_tensor) {
        put_element(block, pa, c.a, static_cast<uint32_t>(i % rows), static_cast<uint32_t>(j), bits);
        continue;
      }
      put_in_tensor(block, c.a, i % rows, kAColumn, static_cast<uint32_t>(j), bits);
      if (rows == 64) put_in_tensor(block, c.a, i % rows + 64, kAColumn, static_cast<uint32_t>(j), bits);
    }
    for (int j = 0; j < c.vector; ++j) {
      const uint32_t bits = code();
      sa.push_back(scale_value(c.e8m0, bits));
      const int r = i % rows;
      for (int q = 0; q < 4; ++q) {  // every 32 lanes have them
        uint32_t& word = block.at(32 * q + r % 32, kScaleA + r / 32);
        const int shift = 8 * (static_cast<int>(c.id_a) + j);
        word = (word & ~(0xffu << shift)) | bits << shift;
      }
    }
  }
  for (int i = 0; i < c.n; ++i) {
    const int infinity = c.infinite ? static_cast<int>(below(static_cast<uint32_t>(k))) : -1;
    for (int j = 0; j < k; ++j) {
      const uint32_t bits = j == infinity ? infinity_of(c.b) : random_code(c.b);
      b.push_back(j == infinity ? std::numeric_limits<double>::infinity() : value_of(c.b, bits));
      put_element(blocks[static_cast<size_t>(i / columns)], pb, c.b, static_cast<uint32_t>(i % columns),
                  static_cast<uint32_t>(j), bits);
    }
    for (int j = 0; j < c.vector; ++j) {
      const uint32_t bits = code();
      sb.push_back(scale_value(c.e8m0, bits));
      for (Block& block : blocks) {  // both blocks need all of them
        for (int q = 0; q < 4; ++q) {
          int n = i;
          if (c.group == 2 && c.m == 128) {  // lanes 0 to 63: the first half of the columns
            if (n / (c.n / 2) != q / 2) continue;
            n %= c.n / 2;
          }
          uint32_t& word = block.at(32 * q + n % 32, kScaleB + n / 32);
          const int shift = 8 * (static_cast<int>(c.id_b) + j);
          word = (word & ~(0xffu << shift)) | bits << shift;
        }
      }
    }
  }
  const uint32_t idesc = (c.sparse ? 4u : 0u) | c.flags | uint32_t{c.mn_a} << 15 | uint32_t{c.mn_b} << 16 |
                         c.id_b << 4 | kFormats[c.a].code << 7 | kFormats[c.b].code << 10 |
                         static_cast<uint32_t>(c.n / 8) << 17 | uint32_t{c.e8m0} << 23 |
                         static_cast<uint32_t>(c.m / 128) << 27 | c.id_a << 29;
  const std::string body =
      "  setp.ne.u32 %p0, %x3, 0;\n  add.u32 %w1, %t, 480;\n  add.u32 %w2, %t, 448;\n  add.u32 %w3, %t, 440;\n"
      "  tcgen05.mma" +
      std::string(c.sparse ? ".sp" : "") + ".cta_group::" + std::to_string(c.group) + ".kind::" + c.kind +
      ".block_scale" + c.qualifier + " [%t], " + (c.a_in_tensor ? "[%w1]" : "%a0") + ", %a1, " +
      (c.sparse ? "[%w3], " : "") + "%x2, [%w2], [%w2+16], %p0;\n" + commit(c.group);
  const auto got = run_machine(body, blocks, {pa.descriptor(), pb.descriptor(), idesc, uint64_t{c.accumulate}}, order);
  const double sign = (c.flags >> 13 & 1) != (c.flags >> 14 & 1) ? -1 : 1;
  for (int i = 0; i < c.m; ++i) {
    for (int j = 0; j < c.n; ++j) {
      const DPlace p = d_place(c.m, c.group, false, i % rows, j, c.n);
      uint32_t& word = blocks[static_cast<size_t>(i / rows)].at(p.lane, p.column);
      float sum = c.accumulate ? std::bit_cast<float>(word) : 0.0f;
      for (int z = 0; z < k; ++z) {
        const auto x = static_cast<size_t>(i * k + z), y = static_cast<size_t>(j * k + z);
        if (!present[x]) continue;
        const double product = sign * a[x] * sa[static_cast<size_t>(i * c.vector + z / chunk)] * b[y] *
                               sb[static_cast<size_t>(j * c.vector + z / chunk)];
        // The product is exact in double; its sum with a float is rounded once: through long double.
        sum = static_cast<float>(static_cast<long double>(product) + static_cast<long double>(sum));
      }
      word = std::isnan(sum) ? 0x7fffffff : std::bit_cast<uint32_t>(sum);
    }
  }
  auto cleaned = got;
  for (size_t b2 = 0; b2 < cleaned.size(); ++b2) {
    for (size_t i = 0; i < cleaned[b2].size(); ++i) {
      uint32_t& w = cleaned[b2][i];
      if (std::isnan(std::bit_cast<float>(w)) && blocks[b2].tensor[i] == 0x7fffffff) w = 0x7fffffff;
    }
  }
  expect_images(cleaned, blocks,
                c.kind + c.qualifier + " m " + std::to_string(c.m) + " n " + std::to_string(c.n) + " group " +
                    std::to_string(c.group));
}

TEST(Tcgen05Mma, BlockScaled) {
  for (uint32_t id = 0; id < 4; ++id) {
    run_scaled({"mxf8f6f4", E4M3, E5M2, 1, "", 128, 136, 1, id, 3 - id});
    run_scaled({"mxf8f6f4", E2M1, E3M2, 1, ".block32", 256, 256, 2, id, 3 - id});
    run_scaled({"mxf8f6f4", E2M3, E2M1, 1, ".scale_vec::1X", 128, 48, 2, 3 - id, id});
    run_scaled({"mxf8f6f4", E2M3, E4M3, 1, ".scale_vec::1X", 128, 48, 2, 3 - id, id, true, true});
  }
  for (const sim::Order order : all_orders()) {
    run_scaled({"mxf4", Packed, Packed, 2, "", 128, 256, 1, 0, 2}, order);
    run_scaled({"mxf4", Packed, Packed, 2, ".block32", 128, 8, 1, 2, 0, true, true}, order);
    run_scaled({"mxf4", Packed, Packed, 2, ".scale_vec::2X", 256, 240, 2, 2, 2}, order);
    run_scaled({"mxf4", Packed, Packed, 2, ".scale_vec::2X", 128, 176, 2, 2, 0}, order);
    run_scaled({"mxf4nvf4", Packed, Packed, 4, ".block16", 128, 128, 1, 0, 0, false}, order);
    run_scaled({"mxf4nvf4", Packed, Packed, 4, ".scale_vec::4X.collector::a::fill", 256, 128, 2, 0, 0, true}, order);
    run_scaled({"mxf4nvf4", Packed, Packed, 2, ".block32", 256, 16, 2, 2, 0, true}, order);
  }
  run_scaled({.kind = "mxf4", .a = Packed, .b = Packed, .vector = 2, .qualifier = "", .flags = 1u << 13});
  run_scaled({.kind = "mxf8f6f4", .a = E4M3, .b = E4M3, .vector = 1, .qualifier = "", .flags = 1u << 14});
}

TEST(Tcgen05Mma, SparseMatrixA) {
  for (const sim::Order order : all_orders()) {
    for (const int selector : {0, 1}) {
      run_kind({.kind = "f16", .a = BF16, .b = BF16, .selector = selector}, order);
      run_kind({.kind = "f16", .a = F16, .b = F16, .m = 256, .n = 32, .group = 2, .d = 0, .selector = selector}, order);
      run_kind({.kind = "tf32", .a = TF32, .b = TF32, .n = 24, .selector = selector}, order);
      run_kind({.kind = "tf32", .a = TF32, .b = TF32, .mn_a = true, .mn_b = true, .selector = selector}, order);
    }
    run_kind({.kind = "f16", .a = BF16, .b = BF16, .mn_a = true, .mn_b = true, .flags = 1u << 13, .selector = 1},
             order);
    run_kind({.kind = "f16", .a = BF16, .b = BF16, .a_in_tensor = true, .scale_d = 3, .selector = 0}, order);
    run_kind({.kind = "f16", .a = BF16, .b = BF16, .masked = true, .accumulate = false, .selector = 1}, order);
    run_kind({.kind = "i8", .a = U8, .b = S8, .d = 2, .flags = 8, .selector = 0}, order);
    run_scaled({.kind = "mxf8f6f4", .a = E4M3, .b = E2M1, .vector = 1, .qualifier = "", .n = 136, .sparse = true},
               order);
    run_scaled({"mxf4", Packed, Packed, 2, "",   128,  256,   1,     0,    2,   true,
                false,  120,    16,     0, k128, k128, false, false, true, true},
               order);
    run_scaled({"mxf4nvf4", Packed, Packed, 4, ".block16", 256, 128,   2,     0,     0,   false,
                true,       120,    16,     0, k128,       k64, false, false, false, true},
               order);
  }
  for (const Swizzle swizzle : {kNone, k64, k128}) {
    run_kind({.kind = "f16", .a = BF16, .b = BF16, .swizzle_a = swizzle, .swizzle_b = swizzle, .selector = 0});
    run_kind(
        {.kind = "f16", .a = BF16, .b = BF16, .mn_b = true, .swizzle_a = k32, .swizzle_b = swizzle, .selector = 0});
  }
  for (const Type a : {E4M3, E5M2, E2M3, E3M2, E2M1}) {
    run_kind({.kind = "f8f6f4", .a = a, .b = E4M3, .n = 40, .selector = 0});
    run_kind({.kind = "f8f6f4", .a = E5M2, .b = a, .m = 256, .n = 32, .group = 2, .a_in_tensor = true, .selector = 0});
  }
}

// Infinities in B beside what A does not store go nowhere.
TEST(Tcgen05Mma, SparseMatrixAMeetsInfinities) {
  for (const int selector : {0, 1}) {
    KindCase c{.kind = "f16", .a = BF16, .b = BF16, .n = 40, .selector = selector, .infinite = true};
    run_kind(c);
    c.accumulate = false;
    c.masked = true;
    c.m = 256;
    c.n = 64;
    c.group = 2;
    run_kind(c);
    run_kind({.kind = "tf32", .a = TF32, .b = TF32, .n = 24, .selector = selector, .infinite = true});
  }
  run_kind({.kind = "f16", .a = F16, .b = F16, .m = 64, .d = 0, .selector = 0, .infinite = true});
  run_kind(
      {.kind = "f16", .a = F16, .b = F16, .m = 32, .a_in_tensor = true, .selector = 0, .ws = true, .infinite = true});
  ScaledCase scaled{.kind = "mxf8f6f4", .a = E4M3, .b = E5M2, .vector = 1, .qualifier = ""};
  scaled.sparse = scaled.infinite = true;
  run_scaled(scaled);
  scaled.low = 0;  // scales that leave float32
  scaled.range = 255;
  run_scaled(scaled);
}

// 64 rows a block, in half of the lanes.
TEST(Tcgen05Mma, SparseMatrixAOf64Rows) {
  for (const int group : {1, 2}) {
    for (const int lane : {0, 16}) {
      for (const bool a_in_tensor : {false, true}) {
        KindCase c{.kind = "f16",
                   .a = BF16,
                   .b = BF16,
                   .m = 64 * group,
                   .n = 80,
                   .group = group,
                   .a_in_tensor = a_in_tensor,
                   .lane = lane};
        for (c.selector = 0; c.selector < 2; ++c.selector) {
          for (const sim::Order order : all_orders()) run_kind(c, order);
          KindCase tf32 = c;
          tf32.kind = "tf32";
          tf32.a = tf32.b = TF32;
          tf32.masked = true;
          run_kind(tf32);
        }
        c.selector = 0;
        c.mn_a = !a_in_tensor;
        c.mn_b = true;
        c.accumulate = false;
        run_kind(c);
        KindCase narrow = c;
        narrow.kind = "f8f6f4";
        narrow.a = E5M2;
        narrow.b = E2M3;
        narrow.d = 0;
        narrow.mn_a = narrow.mn_b = false;
        run_kind(narrow);
        narrow.kind = "i8";
        narrow.a = U8;
        narrow.b = S8;
        narrow.d = 2;
        narrow.n = 96;
        narrow.flags = 8;
        narrow.accumulate = true;
        run_kind(narrow);
      }
    }
  }
}

// Weight stationary products, of which a sparse one has at most 128 columns (table 39).
TEST(Tcgen05Mma, SparseMatrixAOfWs) {
  for (const int m : {32, 64, 128}) {
    for (const int n : {64, 128}) {
      for (const bool a_in_tensor : {false, true}) {
        KindCase c{.kind = "f16", .a = BF16, .b = BF16, .m = m, .n = n, .a_in_tensor = a_in_tensor, .ws = true};
        for (c.selector = 0; c.selector < 2; ++c.selector) {
          for (const sim::Order order : all_orders()) run_kind(c, order);
          KindCase tf32 = c;
          tf32.kind = "tf32";
          tf32.a = tf32.b = TF32;
          run_kind(tf32);
        }
        c.selector = 0;
        c.accumulate = false;
        run_kind(c);
        c.mn_a = !a_in_tensor;
        c.mn_b = true;
        run_kind(c);
        KindCase narrow{.kind = "f8f6f4",
                        .a = E4M3,
                        .b = E2M1,
                        .m = m,
                        .n = n,
                        .a_in_tensor = a_in_tensor,
                        .selector = 0,
                        .ws = true};
        run_kind(narrow);
        narrow.a = E3M2;
        narrow.b = E5M2;
        narrow.d = 0;
        run_kind(narrow);
        run_kind({.kind = "i8",
                  .a = S8,
                  .b = U8,
                  .m = m,
                  .n = n,
                  .d = 2,
                  .flags = 8,
                  .a_in_tensor = a_in_tensor,
                  .selector = 0,
                  .ws = true});
      }
    }
  }
  for (const char* buffer : {"b0", "b1", "b2", "b3"}) {
    for (const char* op : {"fill", "use", "lastuse", "discard"})
      run_kind({.kind = "f16",
                .a = BF16,
                .b = BF16,
                .m = 32,
                .qualifier = std::string(".collector::") + buffer + "::" + op,
                .selector = 0,
                .ws = true});
  }
}

TEST(Tcgen05Mma, ScalesThatAreNanOrExtreme) {
  run_scaled(
      {.kind = "mxf4nvf4", .a = Packed, .b = Packed, .vector = 4, .qualifier = ".block16", .e8m0 = false, .range = 0});
  run_scaled({.kind = "mxf8f6f4", .a = E5M2, .b = E4M3, .vector = 1, .qualifier = "", .low = 254, .range = 2});
  run_scaled({.kind = "mxf8f6f4", .a = E5M2, .b = E4M3, .vector = 1, .qualifier = "", .low = 0, .range = 256});
  run_scaled({.kind = "mxf8f6f4", .a = E5M2, .b = E5M2, .vector = 1, .qualifier = "", .low = 0, .range = 4});
  run_scaled({.kind = "mxf4", .a = Packed, .b = Packed, .vector = 2, .qualifier = "", .low = 0, .range = 256});
}

// ---- every form of every kind: what tests/coverage/required.txt asks for ---------------------------

TEST(Tcgen05Mma, EveryWidth) {
  for (const int m : {64, 128}) {
    for (int n = 8; n <= 256; n += 8) run_f16({m, n, 1}, {});
    for (const int n : {8, 16, 24, 32, 48, 96, 256}) run_kind({.kind = "i8", .a = S8, .b = U8, .m = m, .n = n, .d = 2});
  }
  for (const int m : {128, 256}) {
    for (int n = 16; n <= 256; n += 16) run_f16({m, n, 2}, {});
  }
}

struct Kind {
  const char* name;
  Type type;
  uint32_t d;
};
constexpr Kind kKinds[] = {{"f16", BF16, 1}, {"tf32", TF32, 1}, {"f8f6f4", E5M2, 1}, {"i8", S8, 2}};
constexpr Swizzle kSwizzles[] = {kNone, k32, k64, k128};

TEST(Tcgen05Mma, EveryKindWithEachModifier) {
  for (const Kind& kind : kKinds) {
    KindCase base{.kind = kind.name, .a = kind.type, .b = kind.type, .n = 32, .d = kind.d};
    for (const int group : {1, 2}) {
      base.group = group;
      for (const int m : {64 * group, 128 * group}) {
        base.m = m;
        for (const bool a_in_tensor : {false, true}) {
          KindCase c = base;
          c.a_in_tensor = a_in_tensor;
          run_kind(c);
          c.accumulate = false;
          run_kind(c);
          c.accumulate = true;
          c.masked = true;
          run_kind(c);
        }
      }
    }
    base.group = 1;
    base.m = 128;
    for (const char* op : {"fill", "use", "lastuse", "discard"}) {
      KindCase c = base;
      c.qualifier = std::string(".collector::a::") + op;
      run_kind(c);
    }
    if (kind.d == 2) continue;
    for (uint32_t sign = 1; sign < 4; ++sign) {
      KindCase c = base;
      c.flags = sign << 13;
      run_kind(c);
      c.a_in_tensor = true;
      run_kind(c);
    }
    if (kind.type == E5M2) continue;
    for (int scale = 1; scale < 16; ++scale) {
      KindCase c = base;
      c.scale_d = scale;
      run_kind(c);
    }
  }
  for (const Type a : {S8, U8}) {
    for (const Type b : {S8, U8}) {
      run_kind({.kind = "i8", .a = a, .b = b, .n = 16, .d = 2});
      run_kind({.kind = "i8", .a = a, .b = b, .n = 16, .d = 2, .flags = 8});
    }
  }
  for (const Type a : {E4M3, E5M2, E2M3, E3M2, E2M1}) {
    for (const Type b : {E4M3, E5M2, E2M3, E3M2, E2M1}) run_kind({.kind = "f8f6f4", .a = a, .b = b, .n = 16, .d = 0});
  }
}

TEST(Tcgen05Mma, EverySharedMemoryLayoutOfEveryKind) {
  for (const Kind& kind : kKinds) {
    for (const Swizzle swizzle : kSwizzles) {
      for (int major = 0; major < 4; ++major) {
        const KindCase c{.kind = kind.name,
                         .a = kind.type,
                         .b = kind.type,
                         .n = 48,
                         .d = kind.d,
                         .mn_a = (major & 1) != 0,
                         .mn_b = (major & 2) != 0,
                         .swizzle_a = swizzle,
                         .swizzle_b = swizzle};
        run_kind(c);
      }
    }
  }
  for (const Type type : {E2M3, E3M2, E2M1}) {
    for (const Swizzle swizzle : kSwizzles)
      run_kind({.kind = "f8f6f4", .a = type, .b = type, .n = 24, .swizzle_a = swizzle, .swizzle_b = swizzle});
  }
}

TEST(Tcgen05Mma, BlockScaledInEveryForm) {
  for (const Type a : {E4M3, E5M2, E2M3, E3M2, E2M1}) {
    for (const Type b : {E4M3, E5M2, E2M3, E3M2, E2M1}) run_scaled({"mxf8f6f4", a, b, 1, "", 128, 16});
  }
  for (uint32_t id = 0; id < 16; ++id) run_scaled({"mxf8f6f4", E4M3, E2M3, 1, "", 128, 24, 1, id % 4, id / 4});
  for (uint32_t id = 0; id < 4; ++id) run_scaled({"mxf4", Packed, Packed, 2, "", 128, 24, 1, id % 2 * 2, id / 2 * 2});
  struct Scaled {
    const char* kind;
    Type type;
    int vector;
    std::vector<const char*> qualifiers;
  };
  const std::vector<Scaled> kinds = {{"mxf8f6f4", E4M3, 1, {"", ".block32", ".scale_vec::1X"}},
                                     {"mxf4", Packed, 2, {"", ".block32", ".scale_vec::2X"}},
                                     {"mxf4nvf4", Packed, 2, {".block32", ".scale_vec::2X"}},
                                     {"mxf4nvf4", Packed, 4, {".block16", ".scale_vec::4X"}}};
  for (const Scaled& kind : kinds) {
    for (const char* qualifier : kind.qualifiers) {
      for (const auto& [m, group] : {std::pair(128, 1), std::pair(128, 2), std::pair(256, 2)}) {
        ScaledCase c{kind.kind, kind.type, kind.type, kind.vector, qualifier, m, 32, group};
        run_scaled(c);
        c.a_in_tensor = true;
        run_scaled(c);
        c.accumulate = false;
        run_scaled(c);
      }
    }
    ScaledCase base{kind.kind, kind.type, kind.type, kind.vector, kind.qualifiers.back(), 128, 16};
    for (uint32_t sign = 1; sign < 4; ++sign) {
      ScaledCase c = base;
      c.flags = sign << 13;
      run_scaled(c);
    }
    for (const char* op : {"fill", "use", "lastuse", "discard"}) {
      ScaledCase c = base;
      c.qualifier += std::string(".collector::a::") + op;
      run_scaled(c);
    }
    if (kind.vector == 4) {
      for (const bool e8m0 : {false, true}) {
        ScaledCase c = base;
        c.e8m0 = e8m0;
        run_scaled(c);
      }
    }
    for (const Swizzle swizzle : kSwizzles) {
      for (int major = 0; major < (kind.type == Packed ? 1 : 4); ++major) {
        ScaledCase c = base;
        c.swizzle_a = c.swizzle_b = swizzle;
        c.mn_a = (major & 1) != 0;
        c.mn_b = (major & 2) != 0;
        run_scaled(c);
      }
    }
  }
}

// ---- the product itself ---------------------------------------------------------------------------

// The product's paths for different hosts give the same bits.
TEST(Tcgen05Product, SameBitsOnEveryPath) {
  for (const int columns : {4, 8, 60, 64, 68, 128, 136, 256}) {
    for (const int rows : {1, 3, 4, 5, 6, 13, 128}) {
      constexpr int kDepth = 24;
      const auto random = [](size_t n) {
        std::vector<float> v(n);
        for (float& x : v) x = static_cast<float>(static_cast<int>(below(20001)) - 10000) / 7.0f;
        return v;
      };
      const auto area = static_cast<size_t>(rows) * static_cast<size_t>(columns);
      const auto a = random(static_cast<size_t>(rows * kDepth)), b = random(static_cast<size_t>(columns * kDepth));
      const auto start = random(area);
      for (const bool fresh : {false, true}) {
        std::vector<float> want = start;
        for (int r = 0; r < rows; ++r) {
          for (int j = 0; j < columns; ++j) {
            float& sum = want[static_cast<size_t>(r * columns + j)];
            if (fresh) sum = 0;
            for (int k = 0; k < kDepth; ++k)
              sum = std::fma(a[static_cast<size_t>(r * kDepth + k)], b[static_cast<size_t>(k * columns + j)], sum);
          }
        }
        for (const auto path : {sim::ProductPath::Portable, sim::ProductPath::Avx2, sim::ProductPath::Avx512}) {
          std::vector<float> got = start;
          std::vector<float*> at;
          for (int r = 0; r < rows; ++r) at.push_back(got.data() + r * columns);
          if (sim::multiply_rows_by(path, at.data(), rows, columns, a.data(), b.data(), columns, kDepth, fresh)) {
            EXPECT_EQ(got, want) << static_cast<int>(path) << " " << rows << "x" << columns;
          }
        }
      }
    }
  }
}

}  // namespace
