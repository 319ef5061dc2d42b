// SPDX-License-Identifier: Apache-2.0
// wgmma on its types and layouts against direct computation, and the product beneath it.
#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <random>

#include "sim/arithmetic/panel_product.h"
#include "tests/sim/async.h"
#include "tests/sim/formats.h"

namespace {

using namespace sim_test;

struct MmaCase {
  const char* name;
  int n, k;               // k: of all operations together; of single bits in bytes
  const char *d, *a, *b;  // types
  int swizzle = 128;      // bytes; 0: none
  bool transpose_a = false, transpose_b = false, registers_a = false;
  int scale_a = 1, scale_b = 1;
  bool accumulate = false;  // from what the registers held
  bool large = false;       // integers near the ends of their types
  int selector = -1;        // of a sparse matrix A
  bool sparse() const { return selector >= 0; }
};

void PrintTo(const MmaCase& c, std::ostream* out) { *out << c.name; }

int bits_of(const std::string& type) { return type == "tf32" ? 32 : type == "f16" || type == "bf16" ? 16 : 8; }

// A small value that every type has, and its bits.
uint32_t bits_for(const std::string& type, int value) {
  const float f = static_cast<float>(value);
  if (type == "tf32") return std::bit_cast<uint32_t>(f) | 0x155;  // the low bits must not count
  if (type == "bf16") return code_of(f, kBF16);
  if (type == "f16") return code_of(f, kF16);
  if (type == "s8" || type == "u8" || type == "b1") return static_cast<uint32_t>(value) & 0xff;
  const FloatFormat& format = type == "e4m3" ? kE4M3 : kE5M2;
  const uint32_t code = code_of(value, format);
  EXPECT_EQ(value_of(code, format), value) << type;
  return code;
}

// PTX ISA 9.7.15.5.1.2: element (mn, k) of an operation's operand in one of the canonical layouts, whose repeating
// pattern starts at a 1024-byte boundary. The strides are chosen here.
struct Layout {
  int bits, swizzle, mn;
  bool transpose;
  int pieces = 2;  // of 16 bytes, along k
  int t() const { return 128 / bits; }
  int w() const { return swizzle == 0 ? 1 : swizzle / 16; }
  int operation_k() const { return pieces * t(); }
  // byte offsets
  int lbo() const {
    if (!transpose) return swizzle == 0 ? mn * 16 : 16;
    return swizzle == 0 ? mn / t() * 128 : operation_k() / 8 * 128 * w();
  }
  int sbo() const {
    if (!transpose) return 8 * 16 * w();
    return swizzle == 0 ? 128 : 8 * 16 * w();
  }
  int offset(int m, int k) const {
    const int bytes = bits / 8;
    int o;
    if (!transpose) {  // ((8,m),(T,2k)):((wT,SBO),(1,T or LBO))
      o = m % 8 * w() * 16 + m / 8 * sbo() + k % t() * bytes + k / t() * (swizzle == 0 ? lbo() : 16);
    } else {  // ((T,w,m),(8,k)):((1,T,LBO),(wT,SBO)); without a swizzle ((T,1,m),(8,k)):((1,T,SBO),(1T,LBO))
      o = m % t() * bytes + k % 8 * w() * 16;
      o += swizzle == 0 ? m / t() * sbo() + k / 8 * lbo() : m / t() % w() * 16 + m / t() / w() * lbo() + k / 8 * sbo();
    }
    const int line = o / 128 % 8, piece = o / 16 % 8;
    return (o & ~127) + 16 * (piece ^ (line & (w() - 1))) + o % 16;
  }
  int bytes() const {
    int most = 0;
    for (int m = 0; m < mn; ++m)
      for (int k = 0; k < operation_k(); ++k) most = std::max(most, offset(m, k) + bits / 8);
    return (most + 1023) / 1024 * 1024;
  }
  uint64_t descriptor() const {
    const uint64_t mode = swizzle == 128 ? 1 : swizzle == 64 ? 2 : swizzle == 32 ? 3 : 0;
    return mode << 62 | static_cast<uint64_t>(sbo() >> 4) << 32 | static_cast<uint64_t>(lbo() >> 4) << 16;
  }
};

class Mma : public testing::TestWithParam<MmaCase> {
 protected:
  sim::GlobalMemory memory_;
};
INSTANTIATE_TEST_SUITE_P(
    All, Mma,
    testing::Values(
        MmaCase{"bf16_n64", 64, 64, "f32", "bf16", "bf16"}, MmaCase{"bf16_n256", 256, 32, "f32", "bf16", "bf16"},
        MmaCase{"bf16_n8", 8, 16, "f32", "bf16", "bf16"}, MmaCase{"bf16_n136", 136, 48, "f32", "bf16", "bf16"},
        MmaCase{"bf16_n16_swizzle64", 16, 32, "f32", "bf16", "bf16", 64},
        MmaCase{"bf16_n24_swizzle32", 24, 32, "f32", "bf16", "bf16", 32},
        MmaCase{"bf16_n32_no_swizzle", 32, 32, "f32", "bf16", "bf16", 0},
        MmaCase{"bf16_n128_transposed_b", 128, 32, "f32", "bf16", "bf16", 128, false, true},
        MmaCase{"bf16_n64_transposed_both", 64, 32, "f32", "bf16", "bf16", 128, true, true},
        MmaCase{"bf16_n64_transposed_64", 64, 32, "f32", "bf16", "bf16", 64, true, true},
        MmaCase{"bf16_n64_transposed_32", 64, 32, "f32", "bf16", "bf16", 32, true, true},
        MmaCase{"bf16_n64_transposed_no_swizzle", 64, 32, "f32", "bf16", "bf16", 0, true, true},
        MmaCase{"bf16_n40_registers", 40, 32, "f32", "bf16", "bf16", 128, false, false, true},
        MmaCase{"bf16_n48_negated", 48, 32, "f32", "bf16", "bf16", 128, false, false, false, -1, 1, true},
        MmaCase{"f16_n72_registers_negated", 72, 32, "f32", "f16", "f16", 128, false, false, true, -1, -1},
        MmaCase{"f16_n80", 80, 32, "f32", "f16", "f16", 128, false, false, false, 1, -1, true},
        MmaCase{"f16_n64_half", 64, 32, "f16", "f16", "f16", 128, false, true, false, 1, 1, true},
        MmaCase{"tf32_n32", 32, 16, "f32", "tf32", "tf32"},
        MmaCase{"tf32_n32_registers", 32, 16, "f32", "tf32", "tf32", 32, false, false, true},
        MmaCase{"e4m3_e5m2_n128", 128, 32, "f32", "e4m3", "e5m2"},
        MmaCase{"e4m3_e5m2_n96", 96, 64, "f32", "e4m3", "e5m2"},
        MmaCase{"e5m2_n16_half_registers", 16, 32, "f16", "e5m2", "e4m3", 64, false, false, true},
        MmaCase{"s8_u8_n48", 48, 64, "s32", "s8", "u8", 128, false, false, false, 1, 1, true},
        MmaCase{"u8_n24_registers", 24, 32, "s32", "u8", "s8", 0, false, false, true},
        MmaCase{"b1_n24", 24, 64, "s32", "b1", "b1", 128, false, false, false, 1, 1, true},
        MmaCase{"b1_n48_registers", 48, 32, "s32", "b1", "b1", 0, false, false, true},
        // The sums of these pass 2^24, to which float32 counts.
        MmaCase{"u8_n8_large", 8, 40 * 32, "s32", "u8", "u8", 0, false, false, false, 1, 1, true, true},
        MmaCase{"s8_n8_large", 8, 40 * 32, "s32", "s8", "s8", 0, false, false, false, 1, 1, false, true},
        MmaCase{"u8_s8_n8_large", 8, 40 * 32, "s32", "u8", "s8", 0, false, false, true, 1, 1, true, true},
        MmaCase{"sparse_bf16_n64", 64, 64, "f32", "bf16", "bf16", 128, false, false, false, 1, 1, true, false, 0},
        MmaCase{"sparse_bf16_n8_last_pair", 8, 96, "f32", "bf16", "bf16", 64, false, false, false, -1, 1, false, false,
                1},
        MmaCase{"sparse_bf16_n64_transposed_both", 64, 32, "f32", "bf16", "bf16", 128, true, true, false, 1, 1, false,
                false, 1},
        MmaCase{"sparse_bf16_n64_transposed_no_swizzle", 64, 32, "f32", "bf16", "bf16", 0, true, true, false, 1, 1,
                false, false, 0},
        MmaCase{"sparse_bf16_n64_transposed_32", 64, 32, "f32", "bf16", "bf16", 32, true, true, false, 1, 1, false,
                false, 0},
        MmaCase{"sparse_bf16_n24_no_swizzle", 24, 64, "f32", "bf16", "bf16", 0, false, false, false, 1, 1, false, false,
                0},
        MmaCase{"sparse_f16_n40_registers", 40, 64, "f32", "f16", "f16", 128, false, false, true, 1, -1, true, false,
                1},
        MmaCase{"sparse_f16_n64_half", 64, 64, "f16", "f16", "f16", 64, false, true, false, 1, 1, true, false, 0},
        MmaCase{"sparse_tf32_n32", 32, 32, "f32", "tf32", "tf32", 128, false, false, false, 1, 1, false, false, 0},
        MmaCase{"sparse_tf32_n16_registers", 16, 32, "f32", "tf32", "tf32", 64, false, false, true, 1, 1, true, false,
                1},
        MmaCase{"sparse_e4m3_e5m2_n128", 128, 128, "f32", "e4m3", "e5m2", 128, false, false, false, 1, 1, false, false,
                0},
        MmaCase{"sparse_e5m2_n16_half_registers", 16, 64, "f16", "e5m2", "e4m3", 64, false, false, true, 1, 1, false,
                false, 0},
        MmaCase{"sparse_s8_u8_n48", 48, 128, "s32", "s8", "u8", 128, false, false, false, 1, 1, true, false, 0},
        MmaCase{"sparse_u8_n8_large", 8, 40 * 64, "s32", "u8", "u8", 0, false, false, true, 1, 1, true, true, 0}),
    [](const auto& info) { return std::string(info.param.name); });

// A row of a sparse matrix: which columns are stored, and what the metadata says of each chunk (9.7.15.6.1).
struct SparseRow {
  std::vector<int> columns;
  std::vector<uint32_t> chunks;
};
SparseRow sparse_row(int bits, int k, std::mt19937& rng) {
  SparseRow row;
  for (int first = 0; first < k; first += bits == 32 ? 2 : 4) {
    if (bits == 32) {
      const int at = static_cast<int>(rng() % 2);
      row.columns.push_back(first + at);
      row.chunks.push_back(at == 0 ? 0b0100 : 0b1110);
      continue;
    }
    const int low = static_cast<int>(rng() % 3),
              high = low + 1 + static_cast<int>(rng() % static_cast<unsigned>(3 - low));
    row.columns.insert(row.columns.end(), {first + low, first + high});
    row.chunks.push_back(static_cast<uint32_t>(low | high << 2));
  }
  return row;
}

// The metadata of thread t of an operation whose first chunk is `first` (figures 176, 178, 180 and 181). What a thread
// that does not contribute has is no metadata.
uint32_t metadata_of(const std::vector<SparseRow>& rows, int bits, int selector, int first, int t) {
  const size_t row = static_cast<size_t>(t / 32 * 16 + t % 32 / 4);
  const int place = t % 4;
  uint32_t word = 0;
  if (bits == 8) {
    for (int i = 0; i < 8; ++i)
      word |= rows[row + 8 * (place & 1)].chunks[static_cast<size_t>(first + place / 2 * 8 + i)] << 4 * i;
  } else if (place / 2 == selector) {
    for (int i = 0; i < 8; ++i)
      word |= rows[row + 8 * (i / 4)].chunks[static_cast<size_t>(first + place % 2 * 4 + i % 4)] << 4 * i;
  }
  return word;
}

TEST_P(Mma, EqualsDirectComputation) {
  const MmaCase c = GetParam();
  const bool integer = std::string(c.d) == "s32", half = std::string(c.d) == "f16",
             single_bits = std::string(c.a) == "b1";
  const int bits = bits_of(c.a), step = (c.sparse() ? 512 : 256) / bits, steps = c.k / step;
  const int a_step = 256 / bits, a_k = steps * a_step;  // what is stored of A
  const Layout la{bits, c.swizzle, 64, c.transpose_a}, lb{bits, c.swizzle, c.n, c.transpose_b, c.sparse() ? 4 : 2};
  std::mt19937 rng(static_cast<unsigned>(c.n * 31 + c.k));
  const auto value_for = [&](const std::string& type) {
    if (type == "b1") return static_cast<int>(rng() & 0xff);
    const int v = static_cast<int>(rng() % 7) - 3;
    if (c.large) return type == "u8" ? 252 + v : -125 + v;
    return type == "u8" ? v + 3 : v;
  };
  std::vector<int> a(static_cast<size_t>(64 * a_k)), b(static_cast<size_t>(c.n * c.k)),
      d0(static_cast<size_t>(64 * c.n));
  for (int& v : a) v = value_for(c.a);
  for (int& v : b) v = value_for(c.b);
  for (int& v : d0) v = static_cast<int>(rng() % 9) - 4;
  std::vector<SparseRow> rows;
  for (int m = 0; c.sparse() && m < 64; ++m) rows.push_back(sparse_row(bits, c.k, rng));
  // Shared memory: the operand of each operation in its own 1024-byte aligned piece, all of A, then all of B.
  const int a_bytes = la.bytes(), b_bytes = lb.bytes(), total = steps * (a_bytes + b_bytes);
  std::vector<uint8_t> image(static_cast<size_t>(total));
  const auto put = [&](int base, const Layout& layout, int mn, int k, uint32_t value) {
    std::memcpy(image.data() + base + layout.offset(mn, k), &value, static_cast<size_t>(bits / 8));
  };
  for (int s = 0; s < steps; ++s) {
    for (int k = 0; k < step; ++k) {
      for (int m = 0; k < a_step && m < 64; ++m)
        put(s * a_bytes, la, m, k, bits_for(c.a, a[static_cast<size_t>(m * a_k + s * a_step + k)]));
      for (int n = 0; n < c.n; ++n)
        put(steps * a_bytes + s * b_bytes, lb, n, k, bits_for(c.b, b[static_cast<size_t>(n * c.k + s * step + k)]));
    }
  }
  // Register fragments of A, and accumulators before and after: [register][thread].
  const int registers = half ? c.n / 4 : c.n / 2, per = 32 / bits;
  std::vector<uint32_t> fragments(static_cast<size_t>(steps * 4 * 128));
  for (int s = 0; s < steps; ++s) {
    for (int i = 0; i < 4; ++i) {
      for (int t = 0; t < 128; ++t) {
        uint32_t word = 0;
        for (int x = 0; x < per; ++x) {
          const int row = t / 32 * 16 + t % 32 / 4 + 8 * (i % 2);
          const int k = s * a_step + i / 2 * (a_step / 2) + t % 4 * per + x;
          word |= bits_for(c.a, a[static_cast<size_t>(row * a_k + k)]) << (bits * x % 32);
        }
        fragments[static_cast<size_t>((s * 4 + i) * 128 + t)] = word;
      }
    }
  }
  std::vector<uint32_t> metadata(static_cast<size_t>(steps * 128));
  for (int i = 0; c.sparse() && i < steps * 128; ++i)
    metadata[static_cast<size_t>(i)] =
        metadata_of(rows, bits, c.selector, i / 128 * (bits == 32 ? 8 : step / 4), i % 128);
  const auto pack = [&](const std::vector<int>& d) {
    std::vector<uint32_t> words(static_cast<size_t>(registers * 128));
    for (int i = 0; i < c.n / 2; ++i) {
      for (int t = 0; t < 128; ++t) {
        const int row = t / 32 * 16 + t % 32 / 4 + 8 * (i / 2 % 2), column = i / 4 * 8 + t % 4 * 2 + i % 2;
        const int v = d[static_cast<size_t>(row * c.n + column)];
        if (half) {
          words[static_cast<size_t>(i / 2 * 128 + t)] |= code_of(v, kF16) << (16 * (i % 2));
        } else {
          words[static_cast<size_t>(i * 128 + t)] =
              integer ? static_cast<uint32_t>(v) : std::bit_cast<uint32_t>(static_cast<float>(v) + 0.0f);
        }
      }
    }
    return words;
  };
  std::vector<int> expected(d0.size());
  for (int m = 0; m < 64; ++m) {
    for (int n = 0; n < c.n; ++n) {
      int sum = c.accumulate ? d0[static_cast<size_t>(m * c.n + n)] : 0;
      for (int i = 0; i < a_k; ++i) {
        const int k = c.sparse() ? rows[static_cast<size_t>(m)].columns[static_cast<size_t>(i)] : i;
        const int x = a[static_cast<size_t>(m * a_k + i)], y = b[static_cast<size_t>(n * c.k + k)];
        sum += single_bits ? std::popcount(static_cast<unsigned>(x & y)) : c.scale_a * c.scale_b * x * y;
      }
      expected[static_cast<size_t>(m * c.n + n)] = sum;
    }
  }
  Buffer<uint8_t> shared(memory_, image);
  Buffer<uint32_t> a_registers(memory_, fragments), of_rows(memory_, metadata), before(memory_, pack(d0));

  std::string text = R"(
.extern .shared .align 1024 .b8 operands[];
.visible .entry k(.param .u64 p_image, .param .u64 p_a, .param .u64 p_before, .param .u64 p_out, .param .u64 p_metadata)
{
  .reg .b32 %d<132>; .reg .b32 %a<160>; .reg .b32 %m<40>;)" +
                     std::string(kRegisters) + R"(
  ld.param.u64 %rd1, [p_image];
  ld.param.u64 %rd2, [p_a];
  ld.param.u64 %rd3, [p_before];
  ld.param.u64 %rd4, [p_out];
  ld.param.u64 %rd9, [p_metadata];
  mov.u32 %r1, operands;
  mov.u32 %r3, %tid.x;
  shl.b32 %r10, %r3, 2;
  cvt.u64.u32 %rd10, %r10;
  add.s64 %rd9, %rd9, %rd10;
  add.s64 %rd1, %rd1, %rd10;
  add.s64 %rd2, %rd2, %rd10;
  add.s64 %rd3, %rd3, %rd10;
  add.s64 %rd4, %rd4, %rd10;
COPY:
  ld.global.u32 %r11, [%rd1];
  add.u32 %r12, %r1, %r10;
  st.shared.u32 [%r12], %r11;
  add.u32 %r10, %r10, 512;
  add.s64 %rd1, %rd1, 512;
  setp.lt.u32 %p1, %r10, )" +
                     std::to_string(total) + R"(;
  @%p1 bra COPY;
  fence.proxy.async;
  bar.sync 0;
  cvt.u64.u32 %rd5, %r1;
  shr.u64 %rd5, %rd5, 4;
)";
  for (int i = 0; i < registers; ++i)
    text += "  ld.global.u32 %d" + std::to_string(i) + ", [%rd3+" + std::to_string(512 * i) + "];\n";
  for (int i = 0; c.registers_a && i < 4 * steps; ++i)
    text += "  ld.global.u32 %a" + std::to_string(i) + ", [%rd2+" + std::to_string(512 * i) + "];\n";
  for (int i = 0; c.sparse() && i < steps; ++i)
    text += "  ld.global.u32 %m" + std::to_string(i) + ", [%rd9+" + std::to_string(512 * i) + "];\n";
  text += "  wgmma.fence.sync.aligned;\n";
  const auto vector = [](const char* name, int first, int count) {
    std::string v = "{";
    for (int i = 0; i < count; ++i) v += (i ? ", " : "") + (name + std::to_string(first + i));
    return v + "}";
  };
  text += c.accumulate ? "  setp.eq.u32 %p2, 0, 0;\n" : "  setp.ne.u32 %p2, 0, 0;\n";
  for (int s = 0; s < steps; ++s) {
    text += "  add.s64 %rd6, %rd5, " +
            std::to_string(static_cast<int64_t>(la.descriptor() + static_cast<uint64_t>(s * a_bytes >> 4))) + ";\n";
    text += "  add.s64 %rd7, %rd5, " +
            std::to_string(
                static_cast<int64_t>(lb.descriptor() + static_cast<uint64_t>((steps * a_bytes + s * b_bytes) >> 4))) +
            ";\n";
    text += std::string("  wgmma.mma_async") + (c.sparse() ? ".sp" : "") + ".sync.aligned.m64n" + std::to_string(c.n) +
            "k" + std::to_string(single_bits ? 8 * step : step) + "." + c.d + "." + c.a + "." + c.b +
            (single_bits ? ".and.popc " : " ") + vector("%d", 0, registers) + ", " +
            (c.registers_a ? vector("%a", 4 * s, 4) : std::string("%rd6")) + ", %rd7, ";
    if (c.sparse()) text += "%m" + std::to_string(s) + ", " + std::to_string(c.selector) + ", ";
    text += s == 0 ? "%p2" : "1";
    if (!integer) text += ", " + std::to_string(c.scale_a) + ", " + std::to_string(c.scale_b);
    if (bits == 16 && !c.registers_a) text += c.transpose_a ? ", 1" : ", 0";
    if (bits == 16) text += c.transpose_b ? ", 1" : ", 0";
    text += ";\n";
  }
  text += "  wgmma.commit_group.sync.aligned;\n  wgmma.wait_group.sync.aligned 0;\n";
  for (int i = 0; i < registers; ++i)
    text += "  st.global.u32 [%rd4+" + std::to_string(512 * i) + "], %d" + std::to_string(i) + ";\n";
  text += "  ret;\n}\n";

  const std::vector<uint32_t> wanted = pack(expected);
  for (const sim::Order& order : sim_test::all_orders()) {
    Buffer<uint32_t> out(memory_, wanted.size(), 0xeeeeeeeeu);
    Shape shape;
    shape.block = {128, 1, 1};
    shape.dynamic_shared = static_cast<uint32_t>(total);
    shape.order = order;
    sim::Statistics statistics;
    shape.statistics = &statistics;
    sim_test::run_ptx(text, "k",
                      Params()
                          .add(shared.address())
                          .add(a_registers.address())
                          .add(before.address())
                          .add(out.address())
                          .add(of_rows.address()),
                      memory_, shape);
    EXPECT_EQ(statistics.multiply_adds, static_cast<uint64_t>(64 * c.n * a_k * (single_bits ? 8 : 1)));
    // -0 and 0 are one value.
    std::vector<uint32_t> got = out.values();
    if (!integer) {
      for (uint32_t& word : got) {
        if (word == 0x80000000u && !half) word = 0;
        if (half && (word & 0xffff) == 0x8000) word &= 0xffff0000;
        if (half && word >> 16 == 0x8000) word &= 0xffff;
      }
    }
    EXPECT_EQ(got, wanted);
  }
}

// Operations of one group with the same accumulators and matrices but different types or modifiers: the sums are those
// of the same operations in groups of their own.
TEST(WgmmaGroup, OperationsOfOneGroupMayDiffer) {
  struct Operation {
    std::string form;      // from the type of the accumulators on
    std::string behind{};  // the scales and transpositions
    bool sparse = false;
  };
  const std::string scales = ", 1, 1", both = ", 1, 1, 0, 0";
  const std::pair<Operation, Operation> pairs[] = {
      {{"k16.f32.bf16.bf16", both}, {"k16.f32.f16.f16", both}},
      {{"k16.f32.bf16.bf16", both}, {"k16.f32.bf16.bf16", ", 1, 1, 0, 1"}},
      {{"k16.f32.bf16.bf16", both}, {"k32.f32.bf16.bf16", both, true}},
      {{"k16.f32.bf16.bf16", both}, {"k16.f32.bf16.bf16", ", -1, 1, 1, 0"}},
      {{"k32.f32.e4m3.e4m3", scales}, {"k32.f32.e5m2.e4m3", scales}},
      {{"k32.f32.e4m3.e4m3", scales}, {"k32.f32.e4m3.e5m2", scales}},
      {{"k32.s32.s8.s8"}, {"k32.s32.u8.s8"}},
      {{"k32.s32.s8.s8"}, {"k32.s32.s8.u8"}},
      {{"k32.s32.s8.s8"}, {"k64.s32.s8.s8", "", true}},
      {{"k32.s32.s8.s8"}, {"k32.s32.s8.s8.satfinite"}},
  };
  const auto text = [](const Operation& one, const Operation& other, bool apart) {
    std::string body = R"(
.visible .entry k(.param .u64 p_out)
{
  .shared .align 1024 .b8 operands[4096];)" +
                       std::string(kRegisters) + R"(
  .reg .b32 %d<8>;
  ld.param.u64 %rd1, [p_out];
  mov.u32 %r1, operands;
  mov.u32 %r3, %tid.x;
  mad.wide.u32 %rd1, %r3, 16, %rd1;
  mad.lo.u32 %r4, %r3, 4, %r1;
  // Bytes whose numbers are of any sign and finite in every type. Integer sums begin where one product more or less
  // decides whether they overflow.
  mad.lo.u32 %r5, %r3, 747796405, 12345;
FILL:
  mad.lo.u32 %r5, %r5, 1664525, 1013904223;
  and.b32 %r6, %r5, 0xbbbbbbbb;
  st.shared.u32 [%r4], %r6;
  add.u32 %r4, %r4, 512;
  add.u32 %r7, %r1, 4096;
  setp.lt.u32 %p1, %r4, %r7;
  @%p1 bra FILL;
  fence.proxy.async;
  bar.sync 0;
  cvt.u64.u32 %rd5, %r1;
  shr.u64 %rd5, %rd5, 4;
  add.s64 %rd5, %rd5, 0x1000080000;
  add.s64 %rd6, %rd5, 128;
  mov.b32 %r8, 0x44444444;
  mov.b32 %r9, )" + std::string(one.form.find("s32") != std::string::npos ? "0x7ffdb610" : "0") +
                       R"(;
  mov.b32 %d0, %r9; mov.b32 %d1, %r9; mov.b32 %d2, %r9; mov.b32 %d3, %r9;
  mov.b32 %d4, %r9; mov.b32 %d5, %r9; mov.b32 %d6, %r9; mov.b32 %d7, %r9;
  wgmma.fence.sync.aligned;
)";
    const auto add = [&](const char* sums, const Operation& o) {
      body += std::string("  wgmma.mma_async") + (o.sparse ? ".sp" : "") + ".sync.aligned.m64n8" + o.form + sums +
              "%rd5, %rd6, " + (o.sparse ? "%r8, 0, " : "") + "1" + o.behind + ";\n";
      if (apart) body += "  wgmma.commit_group.sync.aligned;\n";
    };
    const char* const first = " {%d0, %d1, %d2, %d3}, ";
    const char* const second = " {%d4, %d5, %d6, %d7}, ";
    add(first, one);
    add(first, one);
    add(second, one);
    add(second, other);
    if (!apart) body += "  wgmma.commit_group.sync.aligned;\n";
    return body +
           "  wgmma.wait_group.sync.aligned 0;\n  st.global.v4.b32 [%rd1], {%d0, %d1, %d2, %d3};\n"
           "  st.global.v4.b32 [%rd1+2048], {%d4, %d5, %d6, %d7};\n  ret;\n}\n";
  };
  sim::GlobalMemory memory;
  const auto sums = [&](const Operation& one, const Operation& other, bool apart) {
    Buffer<uint32_t> out(memory, size_t{1024}, 0xeeeeeeeeu);
    Shape shape;
    shape.block = {128, 1, 1};

    run_ptx(text(one, other, apart), "k", Params().add(out.address()), memory, shape);
    return out.values();
  };
  for (const auto& [one, other] : pairs) {
    SCOPED_TRACE(one.form + " and " + other.form + other.behind);
    const auto apart = sums(one, other, true);
    EXPECT_EQ(sums(one, other, false), apart);
    EXPECT_EQ(sums(other, one, false), sums(other, one, true));
    const bool differ = !std::equal(apart.begin(), apart.begin() + 512, apart.begin() + 512);
    EXPECT_TRUE(differ) << "or the operations tell nothing";
  }
}

// Matrix A has 64 rows and B 8, of 128 bytes each, of which the product reads the first 32. The swizzle moves those of
// row r behind r % 8 pieces of 16 bytes: it XORs the numbers of the row and the piece.
TEST(Operands, AreReadInEveryRowUntilTheWait) {
  const auto fault_of_store = [](int offset, const sim::Order& order) {
    const std::string text = R"(
.visible .entry k()
{
  .shared .align 1024 .b8 buffer[16384];
  .shared .align 8 .b64 bar;)" +
                             std::string(kRegisters) + R"(
  mov.u32 %r1, buffer;
  mov.u32 %r2, %tid.x;
  setp.eq.u32 %p1, %r2, 0;
  setp.lt.u32 %p2, %r2, 32;
  @!%p2 bra FILLED;
  mad.lo.u32 %r3, %r2, 16, %r1;
  mov.u32 %r4, 0;
FILL:
  st.shared.v4.b32 [%r3], {%r5, %r5, %r5, %r5};
  add.u32 %r3, %r3, 512;
  add.u32 %r4, %r4, 1;
  setp.lt.u32 %p3, %r4, 32;
  @%p3 bra FILL;
FILLED:
  fence.proxy.async;
  bar.sync 0;
  cvt.u64.u32 %rd10, %r1;
  shr.u64 %rd10, %rd10, 4;
  add.s64 %rd10, %rd10, 0x4000004000010040;
  add.s64 %rd11, %rd10, 512;
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %rd10, %rd11, 0, 1, 1, 0, 0;
  wgmma.commit_group.sync.aligned;
  @%p1 st.shared.b32 [%r1+)" +
                             std::to_string(offset) +
                             R"(], 0;
  wgmma.wait_group.sync.aligned 0;
  ret;
}
)";
    sim::GlobalMemory memory;
    Shape shape;
    shape.block = {128, 1, 1};
    shape.order = order;
    return fault_of(text, "k", Params(), memory, shape);
  };
  constexpr int kA = 1024, kB = kA + 8192;
  for (const sim::Order& order : all_orders()) {
    for (const int row : {kA, kA + 128, kA + 31 * 128, kA + 63 * 128, kB, kB + 7 * 128}) {
      for (const int piece : {0, 1, 2, 7}) {
        const int at = row + (row / 128 % 8 ^ piece) * 16;
        const testing::Matcher<std::string> said =
            piece < 2 ? testing::Matcher<std::string>(testing::StartsWith("data in flight: ")) : testing::Eq("");
        EXPECT_THAT(fault_of_store(at, order), said) << "offset " << at;
      }
    }
    EXPECT_EQ(fault_of_store(kA - 16, order), "");
    EXPECT_EQ(fault_of_store(kA / 2, order), "");
  }
}

TEST(Product, IsTheSameOnEveryHost) {
  // Values whose sums are inexact: any other order or rounding would show.
  std::mt19937 rng(5);
  const auto values = [&](int64_t n) {
    std::vector<float> v(static_cast<size_t>(n) + 16);
    for (float& x : v) x = sim::bf16_to_f32(static_cast<uint16_t>((rng() & 0x80ff) | 0x3f00));
    return v;
  };
  // The first element on a 64-byte boundary.
  const auto aligned = [](std::vector<float>& v) {
    return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(v.data()) + 63) & ~uintptr_t{63});
  };
  const int n = 88, depth = 37;
  std::vector<float> a = values(sim::a_panel_floats(depth)), b = values(sim::b_panel_floats(depth, n));
  const std::vector<float> start = values(n / 2 * 32);
  for (const bool fresh : {false, true}) {
    std::vector<std::vector<float>> results;
    for (const sim::Vectors vectors : {sim::Vectors::None, sim::Vectors::Avx2, sim::Vectors::Avx512}) {
      std::vector<float> storage = start;
      float* const sums = aligned(storage);
      std::copy(start.begin(), start.begin() + n / 2 * 32, sums);
      std::vector<float*> rows;
      for (int i = 0; i < n / 2; ++i) rows.push_back(sums + 32 * i);
      if (!sim::multiply_by(vectors, rows.data(), n, aligned(a), aligned(b), depth, fresh)) continue;
      results.emplace_back(sums, sums + n / 2 * 32);
    }
    // Element (row 0, column 3) of warp 0: register 1, lane 1.
    float expected = fresh ? 0.0f : start[32 + 1];
    for (int k = 0; k < depth; ++k)
      expected =
          std::fma(sim::a_panel(aligned(a), depth, 0, k, 0)[1], sim::b_panel(aligned(b), depth, 0, k)[4 + 1], expected);
    for (const std::vector<float>& result : results) {
      EXPECT_EQ(result, results[0]);
      EXPECT_EQ(result[32 + 1], expected);
    }
  }
}

TEST(Product, PacksTheSameOnEveryHost) {
  using sim::Element;
  std::mt19937 rng(6);
  alignas(64) float a[2][16 * 2 * sim::kPanelRow], b[2][16 * 8];
  for (const Element element :
       {Element::F16, Element::BF16, Element::TF32, Element::E4M3, Element::E5M2, Element::S8, Element::U8}) {
    // All codes of eight bits in 256 rounds, all of sixteen but for a few in 8192; infinities and NaNs are among them.
    const int bytes = sim::element_bytes(element), count = 16 / bytes;
    for (int round = 0; round < (bytes == 1 ? 256 : 8192); ++round) {
      uint8_t data[8][16];
      for (int i = 0; i < 128; ++i) data[i / 16][i % 16] = static_cast<uint8_t>(bytes == 1 ? i + round : rng());
      sim::Pieces pieces;
      for (int i = 0; i < 8; ++i) pieces.at[i] = data[i];
      pieces.element = element;
      pieces.across = bytes == 2 && round % 2 != 0;
      pieces.flip = round % 3 == 0 ? 0x80000000u : 0;
      std::memset(a, 0, sizeof a);
      std::memset(b, 0, sizeof b);
      sim::pack_a_by(sim::Vectors::None, pieces, a[0], 16, 0, 0, 0);
      sim::pack_b_by(sim::Vectors::None, pieces, b[0], 16, 0, 0);
      for (int k = 0; k < count; ++k) {  // one element where the panel has it: row 5, column 5
        const uint8_t* const at = pieces.across ? data[k] + 5 * bytes : data[5] + k * bytes;
        ASSERT_EQ(std::memcmp(&a[0][k * 2 * sim::kPanelRow + 21], &b[0][k * 8 + 6], 4), 0);
        if (element == Element::S8) {
          ASSERT_EQ(b[0][k * 8 + 6], (round % 3 ? 1 : -1) * static_cast<int8_t>(*at));
        }
      }
      if (!sim::pack_a_by(sim::Vectors::Avx2, pieces, a[1], 16, 0, 0, 0)) GTEST_SKIP() << "this host has no AVX2";
      sim::pack_b_by(sim::Vectors::Avx2, pieces, b[1], 16, 0, 0);
      // A signalling NaN may have become a quiet one, as in the first product it would.
      const auto same = [](const float* x, const float* y, size_t n) {
        for (size_t i = 0; i < n; ++i) {
          const uint32_t p = std::bit_cast<uint32_t>(x[i]), q = std::bit_cast<uint32_t>(y[i]);
          if (p != q && !(std::isnan(x[i]) && (p | 0x400000) == (q | 0x400000))) return false;
        }
        return true;
      };
      ASSERT_TRUE(same(a[0], a[1], std::size(a[0]))) << "element " << static_cast<int>(element) << " round " << round;
      ASSERT_TRUE(same(b[0], b[1], std::size(b[0]))) << "element " << static_cast<int>(element) << " round " << round;
    }
  }
}

}  // namespace
