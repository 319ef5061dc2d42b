// SPDX-License-Identifier: Apache-2.0
// wmma.load, wmma.mma and wmma.store (PTX ISA 9.7.14.4) against the plain sum of products: every shape and type, rows
// and columns, default and larger strides, global, shared and generic addresses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/sim/matrix_values.h"
#include "tests/sim/run_ptx.h"

namespace {

using sim_test::bits_of;
using sim_test::Buffer;
using sim_test::code_of;
using sim_test::Params;
using sim_test::random_value;
using sim_test::Shape;
using sim_test::value_of;
using testing::HasSubstr;

struct WmmaCase {
  int m, n, k;
  std::string a, c, d;
  std::string tail;  // .satfinite, a rounding, .xor.popc
  std::string name() const {
    return "m" + std::to_string(m) + "n" + std::to_string(n) + "k" + std::to_string(k) + "." + d + "." + a + "." + c +
           tail;
  }
  std::string shape() const { return ".m" + std::to_string(m) + "n" + std::to_string(n) + "k" + std::to_string(k); }
};
void PrintTo(const WmmaCase& c, std::ostream* out) { *out << c.name(); }

std::vector<WmmaCase> wmma_cases() {
  std::vector<WmmaCase> all;
  for (const auto& [m, n] : {std::pair(16, 16), std::pair(8, 32), std::pair(32, 8)}) {
    for (const char* d : {"f16", "f32"})
      for (const char* c : {"f16", "f32"}) all.push_back({m, n, 16, "f16", c, d, ""});
    all.push_back({m, n, 16, "bf16", "f32", "f32", ""});
    for (const char* a : {"s8", "u8"})
      for (const char* tail : {"", ".satfinite"}) all.push_back({m, n, 16, a, "s32", "s32", tail});
  }
  all.push_back({16, 16, 8, "tf32", "f32", "f32", ""});
  for (const char* tail : {"", ".rn", ".rz", ".rm", ".rp"}) all.push_back({8, 8, 4, "f64", "f64", "f64", tail});
  for (const char* a : {"s4", "u4"})
    for (const char* tail : {"", ".satfinite"}) all.push_back({8, 8, 32, a, "s32", "s32", tail});
  for (const char* tail : {".xor.popc", ".and.popc"}) all.push_back({8, 8, 128, "b1", "s32", "s32", tail});
  return all;
}

// The registers of the ISA's tables (9.7.14.4.1).
int wmma_registers(const std::string& type, int rows, int columns, bool accumulator) {
  if (type == "f16" && !accumulator) return 8;
  return rows * columns * bits_of(type) / 32 / (type == "f64" ? 64 : 32);
}
std::string wmma_list(char name, int count) {
  std::string list = "{";
  for (int i = 0; i < count; ++i) list += (i > 0 ? ", " : "") + std::string(1, name) + std::to_string(i);
  return list + "}";
}

// A matrix in memory, from byte `begin` of it.
struct Stored {
  std::string type;
  int rows, columns, stride;
  bool by_rows;
  size_t begin;
  size_t bytes() const {
    return static_cast<size_t>(stride * (by_rows ? rows : columns) * bits_of(type) / 8 + 31) / 32 * 32;
  }
  size_t bit(int row, int column) const {
    return begin * 8 + static_cast<size_t>((by_rows ? row * stride + column : column * stride + row) * bits_of(type));
  }
  void put(std::vector<uint8_t>& memory, int row, int column, double value) const {
    const size_t at = bit(row, column), bits = static_cast<size_t>(bits_of(type));
    uint64_t code = code_of(type, value);
    if (bits >= 8) {
      std::memcpy(&memory[at / 8], &code, bits / 8);
      return;
    }
    const auto mask = static_cast<uint8_t>(((1u << bits) - 1) << at % 8);
    memory[at / 8] = static_cast<uint8_t>((memory[at / 8] & ~mask) | (code << at % 8 & mask));
  }
  double get(const std::vector<uint8_t>& memory, int row, int column) const {
    uint64_t code = 0;
    std::memcpy(&code, &memory[bit(row, column) / 8], static_cast<size_t>(bits_of(type) / 8));
    return value_of(type, code);
  }
};

class WarpTiles : public testing::TestWithParam<WmmaCase> {};
INSTANTIATE_TEST_SUITE_P(All, WarpTiles, testing::ValuesIn(wmma_cases()), [](const auto& info) {
  std::string name = info.param.name();
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

enum class Where { Global, Generic, Shared, GenericShared };

void expect_tile(const WmmaCase& c, bool a_rows, bool b_rows, bool c_rows, bool d_rows, bool padded, Where where) {
  const bool doubles = c.a == "f64";
  size_t end = 0;
  const auto place = [&](const std::string& type, int rows, int columns, bool by_rows) {
    Stored s{type, rows, columns, by_rows ? columns : rows, by_rows, end};
    if (padded) s.stride += 256 / bits_of(type);
    end += s.bytes();
    return s;
  };
  const Stored a = place(c.a, c.m, c.k, a_rows), b = place(c.a, c.k, c.n, b_rows), add = place(c.c, c.m, c.n, c_rows),
               d = place(c.d, c.m, c.n, d_rows);
  std::mt19937 rng(static_cast<unsigned>(std::hash<std::string>()(c.name())));
  std::vector<uint8_t> image(end);
  for (uint8_t& byte : image) byte = static_cast<uint8_t>(rng());
  std::vector<std::vector<double>> va, vb, vc;
  const auto fill = [&](const Stored& s, std::vector<std::vector<double>>& values) {
    values.assign(static_cast<size_t>(s.rows), std::vector<double>(static_cast<size_t>(s.columns)));
    for (int i = 0; i < s.rows; ++i) {
      for (int j = 0; j < s.columns; ++j) {
        double& v = values[static_cast<size_t>(i)][static_cast<size_t>(j)] = random_value(s.type, rng);
        s.put(image, i, j, v);
      }
    }
  };
  fill(a, va), fill(b, vb), fill(add, vc);

  sim::GlobalMemory memory;
  Buffer<uint8_t> buffer(memory, image);
  const bool shared = where == Where::Shared || where == Where::GenericShared;
  const std::string space = where == Where::Global ? ".global" : where == Where::Shared ? ".shared" : "";
  const std::string base = where == Where::Shared ? "%s" : "%rd2", reg = doubles ? ".f64" : ".b32";
  const auto copy = [&](const std::string& from, const std::string& to, const std::string& read,
                        const std::string& write, const std::string& label) {
    if (!shared) return std::string();
    return "mov.u32 %i, %tid.x;\n" + label + ":\nmad.wide.u32 %rd3, %i, 4, %rd1;\nmad.lo.u32 %j, %i, 4, %s;\nld." +
           read + ".u32 %w, [" + from + "];\nst." + write + ".u32 [" + to + "], %w;\nadd.u32 %i, %i, 32;\n" +
           "setp.lt.u32 %p, %i, " + std::to_string(end / 4) + ";\n@%p bra " + label + ";\nbar.sync 0;\n";
  };
  const auto move = [&](const std::string& name, const Stored& s, char list, bool accumulator) {
    const std::string fragment = wmma_list(list, wmma_registers(s.type, s.rows, s.columns, accumulator)),
                      address = "[" + base + "+" + std::to_string(s.begin) + "]";
    return "wmma." + name + ".sync.aligned." + (s.by_rows ? "row" : "col") + c.shape() + space + "." + s.type + " " +
           (name[0] == 'l' ? fragment + ", " + address : address + ", " + fragment) +
           (padded ? ", " + std::to_string(s.stride) : "") + ";\n";
  };
  const bool bits = c.a == "b1";
  const std::string types = c.a == "f16" ? "." + c.d + "." + c.c : "." + c.d + "." + c.a + "." + c.a + "." + c.c;
  const auto list = [&](char name, const Stored& s, bool accumulator) {
    return wmma_list(name, wmma_registers(s.type, s.rows, s.columns, accumulator));
  };
  const std::string text =
      ".visible .entry k(.param .u64 p)\n{\n.shared .align 128 .b8 tile[16384];\n.reg .b64 %rd<4>; .reg .b32 %i, %j, "
      "%w, %s; .reg .pred %p; .reg " +
      reg + " a<16>, b<16>, c<16>, d<16>;\nld.param.u64 %rd1, [p]; mov.u32 %s, tile;\n" +
      (where == Where::GenericShared ? "cvta.shared.u64 %rd2, tile;\n" : "mov.u64 %rd2, %rd1;\n") +
      copy("%rd3", "%j", "global", "shared", "IN") + move("load.a", a, 'a', false) + move("load.b", b, 'b', false) +
      move("load.c", add, 'c', true) + "wmma.mma" + (bits ? c.tail : "") + ".sync.aligned." + (a_rows ? "row" : "col") +
      "." + (b_rows ? "row" : "col") + c.shape() + types + (bits ? "" : c.tail) + " " + list('d', d, true) + ", " +
      list('a', a, false) + ", " + list('b', b, false) + ", " + list('c', add, true) + ";\n" +
      move("store.d", d, 'd', true) + (shared ? "bar.sync 0;\n" : "") + copy("%j", "%rd3", "shared", "global", "OUT") +
      "ret;\n}\n";
  sim::Statistics statistics;
  Shape shape;
  shape.statistics = &statistics;
  sim_test::run_ptx(text, "k", Params().add(buffer.address()), memory, shape);
  EXPECT_EQ(statistics.multiply_adds, static_cast<uint64_t>(c.m * c.n * c.k));

  const std::vector<uint8_t> result = buffer.values();
  for (int i = 0; i < c.m; ++i) {
    for (int j = 0; j < c.n; ++j) {
      const auto row = static_cast<size_t>(i), column = static_cast<size_t>(j);
      double expected = vc[row][column], size = std::fabs(expected);
      for (size_t k = 0; k < static_cast<size_t>(c.k); ++k) {
        const double x = va[row][k], y = vb[k][column];
        expected += c.tail == ".xor.popc" ? x != y : x * y;
        size += std::fabs(x * y);
      }
      if (c.tail == ".satfinite") expected = std::min(2147483647.0, std::max(-2147483648.0, expected));
      if (c.d == "s32") expected = static_cast<int32_t>(static_cast<uint32_t>(static_cast<int64_t>(expected)));
      const double got = d.get(result, i, j), allowed = doubles ? size * 0x1p-52 * (c.k + 1) : 0;
      ASSERT_NEAR(got, expected, allowed) << "row " << i << ", column " << j << " of\n" << text;
      std::memcpy(&image[d.bit(i, j) / 8], &result[d.bit(i, j) / 8], static_cast<size_t>(bits_of(c.d) / 8));
    }
  }
  EXPECT_EQ(result, image) << "what is beside the tile has changed by\n" << text;
}

TEST_P(WarpTiles, AreSumsOfProducts) {
  const WmmaCase& c = GetParam();
  const bool small = bits_of(c.a) < 8;
  for (int layouts = 0; layouts < 16; ++layouts) {
    const bool a_rows = layouts & 1, b_rows = layouts & 2;
    if (small && (!a_rows || b_rows)) continue;
    for (const bool padded : {false, true}) {
      for (const Where where : {Where::Global, Where::Generic, Where::Shared, Where::GenericShared}) {
        expect_tile(c, a_rows, b_rows, layouts & 4, layouts & 8, padded, where);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// ---- one tile after the other, and elements in their registers ---------------------------------------

std::string tile_kernel(const std::string& body) {
  return ".visible .entry k(.param .u64 p)\n{\n.shared .align 128 .b8 tile[2048];\n.reg .b64 %rd<6>; .reg .b32 %r<9>, "
         "%s; .reg .pred %p<3>; .reg .b32 a<8>, b<8>; .reg .f32 c<8>, d<8>;\nld.param.u64 %rd1, [p]; mov.u32 %s, "
         "tile; mov.u32 %r1, %tid.x;\nmad.lo.u32 %r2, %r1, 4, %s;\n" +
         body + "ret;\n}\n";
}
const std::string kFirst = "{c0, c1, c2, c3, c4, c5, c6, c7}",
                  kLoadShared = "wmma.load.c.sync.aligned.row.m16n16k16.shared.f32 " + kFirst + ", [%s];\n",
                  kLoadGlobal = "wmma.load.c.sync.aligned.row.m16n16k16.global.f32 " + kFirst + ", [%rd1];\n",
                  kStoreGlobal = "wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd1], " + kFirst + ";\n",
                  kStoreShared = "wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%s], " + kFirst + ";\n";
// Each lane stores every 32nd word of a tile of 16x16 words.
std::string fill_tile(int words) {
  std::string text;
  for (int i = 0; i < words; i += 32) text += "st.shared.u32 [%r2+" + std::to_string(4 * i) + "], 0x3f800000;\n";
  return text;
}

std::string tile_fault(const std::string& body, unsigned threads = 32, const sim::Order& order = {},
                       sim::Strictness level = sim::Strictness::Isa) {
  sim::GlobalMemory memory;
  Buffer<float> data(memory, size_t{1024}, 1.f);
  Shape shape;
  shape.block = {threads, 1, 1};
  shape.order = order;
  shape.rules.strictness = level;
  return sim_test::fault_of(tile_kernel(body), "k", Params().add(data.address()), memory, shape);
}

// The fragment of D may stand in the registers of A, and what scales a fragment scales its matrix.
TEST(WarpTileRegisters, AreReadBeforeTheyAreWritten) {
  sim::GlobalMemory memory;
  Buffer<int32_t> data(memory, size_t{256}, 0);
  std::vector<int8_t> bytes(1024);
  for (int i = 0; i < 16; ++i) bytes[static_cast<size_t>(17 * i)] = 1;  // A is the unit matrix
  for (int i = 0; i < 256; ++i) bytes[static_cast<size_t>(256 + i)] = static_cast<int8_t>(i - 128);
  std::memcpy(data.data(), bytes.data(), bytes.size());
  sim_test::run_ptx(tile_kernel(R"(
  wmma.load.a.sync.aligned.row.m16n16k16.global.s8 {a6, a7}, [%rd1];
  wmma.load.b.sync.aligned.row.m16n16k16.global.s8 {a0, a1}, [%rd1+256];
  mov.b32 a2, 0; mov.b32 a3, 0; mov.b32 a4, 0; mov.b32 a5, 0;
  wmma.mma.sync.aligned.row.row.m16n16k16.s32.s8.s8.s32 {a0, a1, a2, a3, a4, a5, a6, a7}, {a6, a7}, {a0, a1},
    {a2, a3, a4, a5, a2, a3, a4, a5};
  mul.lo.s32 a0, a0, 3; mul.lo.s32 a1, a1, 3; mul.lo.s32 a2, a2, 3; mul.lo.s32 a3, a3, 3;
  mul.lo.s32 a4, a4, 3; mul.lo.s32 a5, a5, 3; mul.lo.s32 a6, a6, 3; mul.lo.s32 a7, a7, 3;
  wmma.store.d.sync.aligned.row.m16n16k16.global.s32 [%rd1], {a0, a1, a2, a3, a4, a5, a6, a7};
)"),
                    "k", Params().add(data.address()), memory, {});
  for (int i = 0; i < 256; ++i) EXPECT_EQ(data[static_cast<size_t>(i)], 3 * (i - 128)) << i;
}

// A load may write its own address.
TEST(WarpTileRegisters, OfALoadMayHoldItsAddress) {
  EXPECT_EQ(tile_fault(fill_tile(256) +
                       "bar.warp.sync -1;\nmov.b32 c0, %s;\nwmma.load.c.sync.aligned.row.m16n16k16"
                       ".shared.f32 " +
                       kFirst + ", [c0];\n" + kStoreGlobal),
            "");
}

double f64_tile(const std::string& rounding, double c) {
  sim::GlobalMemory memory;
  Buffer<double> data(memory, size_t{64}, 0.);
  sim_test::run_ptx(
      ".visible .entry k(.param .u64 p)\n{\n.reg .b64 %rd1; .reg .f64 a, b, c, d, e;\n"
      "ld.param.u64 %rd1, [p]; mov.f64 a, 1.0; mov.f64 b, 0d3C00000000000000; mov.f64 c, " +
          std::to_string(c) + ";\nwmma.mma.sync.aligned.row.col.m8n8k4.f64.f64.f64.f64" + rounding +
          " {d, e}, {a}, {b}, {c, c};\nwmma.store.d.sync.aligned.row.m8n8k4.f64 [%rd1], {d, e};\n"
          "ret;\n}\n",
      "k", Params().add(data.address()), memory, {});
  return data[0];
}

// Four times 2^-63 beside one: the rounding shows at every step.
TEST(WarpTileRounding, OfDoublesIsAsWritten) {
  EXPECT_EQ(f64_tile("", 1), 1);
  EXPECT_EQ(f64_tile(".rn", 1), 1);
  EXPECT_EQ(f64_tile(".rz", -1), -1 + 4 * 0x1p-53);
  EXPECT_EQ(f64_tile(".rm", 1), 1);
  EXPECT_EQ(f64_tile(".rp", 1), 1 + 4 * 0x1p-52);
}

// ---- what is judged -------------------------------------------------------------------------------

TEST(WarpTileHazards, MemoryIsJudgedAsThatOfLoadsAndStores) {
  for (const sim::Order& order : sim_test::all_orders()) {
    const auto said = [&](const std::string& body, unsigned threads = 32) { return tile_fault(body, threads, order); };
    const std::string sync = "bar.warp.sync -1;\n";
    EXPECT_EQ(said(fill_tile(256) + sync + kLoadShared + kStoreGlobal), "");
    EXPECT_THAT(said(fill_tile(256) + kLoadShared), testing::StartsWith("data in flight: "));
    EXPECT_THAT(said(fill_tile(224) + sync + kLoadShared), HasSubstr("reads uninitialised shared memory"));
    EXPECT_EQ(said(kLoadGlobal + kStoreShared + sync + "ld.shared.u32 %r3, [%r2];\n"), "");
    EXPECT_THAT(said(kLoadGlobal + kStoreShared + "xor.b32 %r3, %r2, 64;\nld.shared.u32 %r3, [%r3];\n"),
                testing::StartsWith("data in flight: "));
    // Two warps. Each stores its number, or the same.
    const std::string numbered = kLoadGlobal + "shr.u32 %r3, %r1, 5;\ncvt.rn.f32.u32 c0, %r3;\n";
    EXPECT_THAT(said(numbered + kStoreShared, 64), testing::StartsWith("race: "));
    EXPECT_THAT(said(numbered + kStoreGlobal, 64), testing::StartsWith("race: "));
    EXPECT_EQ(said("mov.f32 c0, 1.0;\n" + kLoadGlobal + kStoreShared, 64), "");
  }
}

TEST(WarpTileHazards, AddressesAndStridesHaveRules) {
  const auto load = [](const std::string& address, const std::string& stride) {
    return "wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {a0, a1, a2, a3, a4, a5, a6, a7}, [" + address + "], " +
           stride + ";\n";
  };
  const auto store = [](const std::string& address, const std::string& stride) {
    return "mov.b32 a0, 0;\nwmma.store.d.sync.aligned.row.m16n16k16.global.f16 [" + address + "], {a0, a0, a0, a0}, " +
           stride + ";\n";
  };
  const auto at_field = [](const std::string& body) { return tile_fault(body, 32, {}, sim::Strictness::Field); };
  EXPECT_EQ(tile_fault(load("%rd1+32", "32")), "");
  // The text asks for multiples of 32 bytes, GPUs for 16.
  for (const std::string& body : {load("%rd1+16", "16"), load("%rd1", "24")}) {
    EXPECT_THAT(tile_fault(body), HasSubstr("memory: misaligned matrix at "));
    EXPECT_THAT(tile_fault(body), HasSubstr("multiples of 32 bytes"));
    EXPECT_EQ(at_field(body), "");
  }
  for (const std::string& body : {load("%rd1+8", "16"), load("%rd1", "20"), store("%rd1+8", "16")})
    EXPECT_THAT(at_field(body), HasSubstr("multiples of 16 bytes"));
  EXPECT_THAT(tile_fault(load("%rd1", "0")), HasSubstr("a stride of 0 elements is less than the 16 of a row"));
  EXPECT_EQ(at_field(load("%rd1", "0")), "");
  EXPECT_THAT(at_field(store("%rd1", "8")), HasSubstr("a stride of 8 elements is less than the 16 of a row"));
  EXPECT_THAT(at_field(load("%rd1", "%r1")), HasSubstr("the lanes give different strides of a matrix"));
  EXPECT_THAT(at_field("mad.wide.u32 %rd1, %r1, 32, %rd1;\n" + load("%rd1", "16")),
              HasSubstr("the lanes give different addresses of a matrix"));
  EXPECT_THAT(at_field(load("%rd1+16384", "16")), testing::StartsWith("memory: "));
  EXPECT_THAT(at_field("setp.lt.u32 %p1, %r1, 5;\n@%p1 exit;\n" + load("%rd1", "16")),
              HasSubstr("some threads of the warp have exited"));
  EXPECT_THAT(at_field(".local .align 32 .b8 own[1024];\ncvta.local.u64 %rd2, own;\nwmma.load.c.sync.aligned.row."
                       "m16n16k16.f32 " +
                       kFirst + ", [%rd2];\n"),
              HasSubstr("is neither in global nor in shared memory"));
}

std::string wmma_refusal(const std::string& instruction) {
  try {
    sim_test::prepare_ptx(tile_kernel(".reg .f64 e<4>;\n" + instruction + ";\n"), "k");
  } catch (const sim::ptx::ParseError& e) {
    return e.what();
  }
  return "";
}

TEST(WarpTileForms, TakeTheirModifiersInAnyOrder) {
  for (const char* const instruction :
       {"wmma.load.a.sync.aligned.m16n16k16.global.row.f16 {a0, a1, a2, a3, a4, a5, a6, a7}, [%rd1]",
        "wmma.load.a.aligned.sync.row.shared::cta.m16n16k16.f16 {a0, a1, a2, a3, a4, a5, a6, a7}, [%s]",
        "wmma.mma.sync.aligned.m16n16k16.row.col.f32.f16 {d0, d1, d2, d3, d4, d5, d6, d7}, {a0, a1, a2, a3, a4, a5, "
        "a6, a7}, {b0, b1, b2, b3, b4, b5, b6, b7}, {a0, a1, a2, a3}",
        "wmma.mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.xor.popc {a0, a1}, {a2}, {a3}, {a4, a5}",
        "wmma.mma.sync.aligned.row.col.m8n8k4.rz.f64.f64.f64.f64 {e0, e1}, {e2}, {e3}, {e0, e1}"})
    EXPECT_EQ(wmma_refusal(instruction), "");
}

TEST(WarpTileForms, WhatDoesNotExistIsRefused) {
  const std::string eight = " {a0, a1, a2, a3, a4, a5, a6, a7}", two = " {a0, a1}", one = " {a0}";
  const std::string f32 = eight + "," + eight + "," + eight + "," + eight,
                    s8 = eight + "," + two + "," + two + "," + eight, small = two + "," + one + "," + one + "," + two;
  for (const std::string& instruction :
       std::vector<std::string>{"wmma.load.a.sync.row.m16n16k16.f16" + eight + ", [%rd1]",
                                "wmma.load.a.sync.aligned.m16n16k16.f16" + eight + ", [%rd1]",
                                "wmma.load.a.sync.aligned.row.m16n16k16.local.f16" + eight + ", [%rd1]",
                                "wmma.load.a.sync.aligned.row.m16n16k16.shared::cluster.f16" + eight + ", [%rd1]",
                                "wmma.load.a.sync.aligned.row.m16n16k16.f32" + eight + ", [%rd1]",
                                "wmma.load.c.sync.aligned.row.m16n16k8.s32" + eight + ", [%rd1]",
                                "wmma.load.c.sync.aligned.row.m16n16k8.f16 {a0, a1, a2, a3}, [%rd1]",
                                "wmma.load.d.sync.aligned.row.m16n16k16.f32" + eight + ", [%rd1]",
                                "wmma.load.a.sync.aligned.col.m8n8k32.s4" + one + ", [%rd1]",
                                "wmma.load.b.sync.aligned.row.m8n8k128.b1" + one + ", [%rd1]",
                                "wmma.store.c.sync.aligned.row.m16n16k16.f32 [%rd1]," + eight,
                                "wmma.store.d.sync.aligned.row.m16n16k16.s8 [%rd1]," + two,
                                "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f16.f16.f32" + f32,
                                "wmma.mma.sync.aligned.row.m16n16k16.f32.f32" + f32,
                                "wmma.mma.sync.aligned.row.col.m16n16k16.rn.f32.f32" + f32,
                                "wmma.mma.sync.aligned.row.col.m16n16k8.f32.f32" + f32,
                                "wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.u8.s32" + s8,
                                "wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.s8.f32" + s8,
                                "wmma.mma.sync.aligned.row.row.m8n8k32.s32.s4.s4.s32" + small,
                                "wmma.mma.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32" + small,
                                "wmma.mma.xor.and.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32" + small,
                                "wmma.mma.xor.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32.satfinite" + small})
    EXPECT_THAT(wmma_refusal(instruction), HasSubstr("not supported in this form")) << instruction;
  EXPECT_THAT(wmma_refusal("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32.satfinite" + f32),
              HasSubstr("'.satfinite' of floats ended with version 6.4 of the PTX ISA"));
  EXPECT_THAT(wmma_refusal("wmma.load.a.sync.aligned.row.m16n16k16.bf16" + eight + ", [%rd1]"),
              HasSubstr("a fragment has 8 registers and needs 4"));
  EXPECT_THAT(wmma_refusal("wmma.load.a.sync.aligned.row.m8n8k4.f64" + one + ", [%rd1]"),
              HasSubstr("does not have 64 bits"));
  EXPECT_THAT(wmma_refusal("wmma.load.a.sync.aligned.row.m16n16k16.f16" + eight + ", [%rd1], %rd1"),
              HasSubstr("a register does not have the size of its operand"));
  EXPECT_THAT(wmma_refusal("wmma.load.a.sync.aligned.row.m16n16k16.f16" + eight + ", [%rd1], 16, 16"),
              HasSubstr("it takes a fragment, an address and a stride or none"));
}

}  // namespace
