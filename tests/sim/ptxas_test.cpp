// SPDX-License-Identifier: Apache-2.0
// Where the PTX ISA leaves it to ptxas: the registers that a kernel with setmaxnreg begins with, vector registers
// (5.4.2, 6.4.3), and the order of modifiers. The numbers are those that ptxas 13.0 prints with -v.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/sim/run_ptx.h"

namespace {

using namespace sim_test;

std::string said(const std::string& text, uint32_t threads) {
  sim::GlobalMemory memory;
  Shape shape;
  shape.block = {threads, 1, 1};
  return fault_of(text, "k", {}, memory, shape);
}

TEST(Ptxas, RegistersAtTheLaunch) {
  struct Row {
    std::string bounds;
    int largest;  // setmaxnreg.inc; 0: none
    int registers;
  };
  const auto bounds = [](int threads, int blocks) {
    return ".maxntid " + std::to_string(threads) + " .minnctapersm " + std::to_string(blocks);
  };
  const Row rows[] = {
      // At most what the largest increase asks for.
      {bounds(128, 1), 232, 232},
      {bounds(256, 1), 232, 232},
      {bounds(256, 1), 240, 240},
      {bounds(384, 1), 24, 24},
      {bounds(384, 1), 160, 160},
      // At most what the register file holds, for whole warp groups. 255 are allocated as 256.
      {bounds(256, 1), 256, 256},
      {bounds(256, 1), 0, 256},
      {bounds(288, 1), 232, 168},
      {bounds(384, 1), 240, 168},
      {bounds(384, 1), 0, 168},
      {bounds(416, 1), 232, 128},
      {bounds(512, 1), 232, 128},
      {bounds(640, 1), 232, 96},
      {bounds(768, 1), 232, 80},
      {bounds(1024, 1), 232, 64},
      {bounds(256, 2), 232, 128},
      {bounds(128, 3), 200, 168},
      {bounds(100, 5), 232, 96},
      {".reqntid 384 .minnctapersm 1", 232, 168},
      {".maxntid 128, 3, 1 .minnctapersm 1", 232, 168},
      // At most what .maxnreg says.
      {bounds(384, 1) + " .maxnreg 128", 240, 128},
      {bounds(384, 1) + " .maxnreg 200", 240, 168},
      {".maxnreg 168", 232, 168},
      {".maxntid 128 .maxnreg 200", 232, 200},
  };
  for (const Row& row : rows) {
    const std::string increase =
        row.largest > 0 ? "@%p setmaxnreg.inc.sync.aligned.u32 " + std::to_string(row.largest) + ";\n" : "";
    const auto lowered = [&](int count) {
      return said(".entry k() " + row.bounds + " { .reg .pred %p; setp.ne.u32 %p, 0, 0;\n" + increase +
                      "setmaxnreg.dec.sync.aligned.u32 " + std::to_string(count) + "; ret; }",
                  128);
    };
    EXPECT_EQ(lowered(row.registers), "") << row.bounds << ", inc " << row.largest;
    if (row.registers == 256) continue;
    EXPECT_THAT(lowered(row.registers + 8), testing::HasSubstr(" to " + std::to_string(row.registers + 8) +
                                                               " where the warp has " + std::to_string(row.registers)))
        << row.bounds << ", inc " << row.largest;
  }
}

// "'setmaxnreg' ignored; unable to determine register count at entry."
TEST(Ptxas, SetmaxnregNeedsLaunchBounds) {
  for (const std::string bounds : {"", ".maxntid 384", ".reqntid 384", ".minnctapersm 1"}) {
    EXPECT_EQ(said(".entry k() " + bounds +
                       " { setmaxnreg.dec.sync.aligned.u32 24; setmaxnreg.dec.sync.aligned.u32 240;\n"
                       "setmaxnreg.inc.sync.aligned.u32 248; ret; }",
                   384),
              "")
        << bounds;
  }
}

TEST(Ptxas, RegistersAreTakenFromThoseThatAreGiven) {
  const auto run = [](const std::string& body) { return said(".entry k() .maxnreg 248 {\n" + body + "ret;\n}\n", 32); };
  const std::string up = "setmaxnreg.inc.sync.aligned.u32 ", down = "setmaxnreg.dec.sync.aligned.u32 ";
  EXPECT_EQ(run(down + "64;\n" + up + "64;\n" + down + "64;\n"), "");
  EXPECT_EQ(run(down + "64;\n" + up + "248;\n" + down + "64;\n"), "");
  EXPECT_THAT(run(down + "248;\n" + down + "256;\n"),
              testing::StartsWith("illegal use: setmaxnreg.dec.sync.aligned.u32 to 256 where the warp has 248: a "
                                  "decrease must not raise the count at ptx line "));
  EXPECT_THAT(run(down + "64;\n" + up + "56;\n" + up + "248;\n"),
              testing::StartsWith("illegal use: setmaxnreg.inc.sync.aligned.u32 to 56 where the warp has 64: an "
                                  "increase must not lower the count at ptx line "));
}

// Runs the body in one thread. It stores to %out.
std::vector<uint32_t> run_one(const std::string& body, int arch = 90) {
  sim::GlobalMemory memory;
  Buffer<uint32_t> in(memory, {11, 12, 13, 14, 15, 16, 17, 18}), out(memory, size_t{8}, 0u);
  Shape shape;
  shape.block = {4, 1, 1};
  shape.arch = arch;
  run_ptx(
      ".visible .entry k(.param .u64 p_in, .param .u64 p_out) {\n.reg .b64 %in, %out; .reg .pred %p;\n"
      ".shared .align 16 .b8 s[64];\nld.param.u64 %in, [p_in];\nld.param.u64 %out, [p_out];\n" +
          body + "ret;\n}\n",
      "k", Params().add(in.address()).add(out.address()), memory, shape);
  return out.values();
}

TEST(Ptxas, VectorRegisters) {
  using testing::ElementsAre;
  // Elements by either set of names, in a scope that hides another register of the name.
  EXPECT_THAT(run_one(R"(
  .reg .v4 .b32 v; .reg .b32 w;
  mov.b32 v.x, 1; mov.b32 v.g, 2; mov.b32 v.z, 3; mov.b32 v.a, 4;
  { .reg .b32 v; mov.b32 v, 9; }
  { .reg .v2 .b32 w; mov.b32 w.x, v.w; mov.b32 w.y, v.b; st.global.v2.b32 [%out+16], {w.x, w.y}; }
  add.u32 w, v.r, v.y;
  st.global.v4.b32 [%out], {v.x, v.y, v.z, w};
)"),
              ElementsAre(1, 2, 3, 3, 4, 3, 0, 0));
  // Whole vectors where an instruction takes a vector.
  EXPECT_THAT(run_one(R"(
  .reg .v4 .b32 v; .reg .v2 .b32 %u<3>; .reg .b64 %d;
  ld.global.v4.b32 v, [%in];
  st.global.v4.b32 [%out], v;
  mov.b64 %u2, %in;
  mov.b64 %d, %u2;
  ld.global.v2.b32 %u0, [%d+24];
  st.shared.v2.b32 [s], %u0;
  ld.shared.v2.b32 %u1, [s];
  st.global.v2.b32 [%out+16], %u1;
  mov.v2.b32 %u1, {v.w, v.x};
  st.global.v2.b32 [%out+24], %u1;
)"),
              ElementsAre(11, 12, 13, 14, 17, 18, 14, 11));
  // A move of a vector reads all before it writes.
  EXPECT_THAT(run_one(R"(
  .reg .v4 .f32 v, w; .reg .f32 a, b, c, d;
  ld.global.v4.f32 v, [%in];
  mov.v4.f32 v, {v.w, v.z, v.y, v.x};
  mov.v4.f32 w, v;
  st.global.v4.f32 [%out], w;
  mov.v4.f32 {a, b, c, d}, v;
  st.global.v4.f32 [%out+16], {d, c, b, a};
)"),
              ElementsAre(14, 13, 12, 11, 11, 12, 13, 14));
  // Elements of 16 and 64 bits.
  EXPECT_THAT(run_one(R"(
  .reg .v2 .b64 d; .reg .v4 .b16 h; .reg .b64 t;
  ld.global.v2.b64 d, [%in];
  st.global.b64 [%out], d.y;
  mov.b64 h, d.x;
  mov.b64 t, {h.z, h.y, h.x, h.w};
  st.global.b64 [%out+8], t;
  ld.global.v2.b64 {d.y, d.x}, [%in+16];
  st.global.v2.b64 [%out+16], d;
)"),
              ElementsAre(13, 14, 12, 11, 17, 18, 15, 16));
  const auto refused = [](const std::string& body) {
    try {
      run_one(body);
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(refused(".reg .v4 .f32 v; add.f32 v, v, v;\n"), "");
  EXPECT_NE(refused(".reg .v4 .b32 v; .reg .v2 .b32 w; mov.v4.b32 v, w;\n"), "");
}

// Rows of 16 bytes in shared memory that a warp stores by stmatrix, read back as words.
std::vector<uint32_t> stored(const std::string& instruction, int arch) {
  sim::GlobalMemory memory;
  Buffer<uint32_t> out(memory, size_t{128}, 0u);
  Shape shape;
  shape.arch = arch;
  run_ptx(R"(
.visible .entry k(.param .u64 p_out) {
  .shared .align 16 .b8 s[512];
  .reg .b32 %t, %a, %r<5>; .reg .b64 %out;
  ld.param.u64 %out, [p_out];
  mov.u32 %t, %tid.x;
  mad.wide.u32 %out, %t, 16, %out;
  mov.u32 %a, s;
  mad.lo.u32 %a, %t, 16, %a;
  mad.lo.u32 %r0, %t, 0x04040404, 0x03020100;
  add.u32 %r1, %r0, 0x80808080;
  xor.b32 %r2, %r0, 0x55555555;
  xor.b32 %r3, %r1, 0x33333333;
  st.shared.v4.u32 [%a], {0, 0, 0, 0};
  bar.warp.sync -1;
  )" + instruction +
              R"(;
  bar.warp.sync -1;
  ld.shared.v4.u32 {%r0, %r1, %r2, %r3}, [%a];
  st.global.v4.u32 [%out], {%r0, %r1, %r2, %r3};
  ret;
})",
          "k", Params().add(out.address()), memory, shape);
  return out.values();
}

TEST(Ptxas, MatricesTakeTheirModifiersInAnyOrder) {
  const std::string four = "{%r0, %r1, %r2, %r3}", operands = " [%a], " + four;
  const std::vector<uint32_t> plain = stored("stmatrix.sync.aligned.m8n8.x4.shared.b16" + operands, 90),
                              turned = stored("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16" + operands, 90);
  EXPECT_NE(plain, turned);
  std::vector<std::string> parts = {"aligned", "b16", "m8n8", "shared", "sync", "trans", "x4"};
  int number = 0;
  do {
    if (number++ % 97 != 0 && parts.back() != "trans") continue;
    if (number % 7 != 1) continue;
    std::string name;
    for (const std::string& part : parts) name += "." + part;
    EXPECT_EQ(stored("stmatrix" + name + operands, 90), turned) << name;
    std::string loaded = "stmatrix.sync.aligned.m8n8.x4.shared.b16" + operands + ";\nbar.warp.sync -1;\nldmatrix" +
                         name + " " + four + ", [%a];\nbar.warp.sync -1;\nst.shared.v4.u32 [%a], " + four;
    EXPECT_NE(stored(loaded, 90), plain) << name;
  } while (std::next_permutation(parts.begin(), parts.end()));
  EXPECT_GT(number, 5000);
}

TEST(Ptxas, VectorsOf256BitsAtGenericAddresses) {
  EXPECT_THAT(run_one(".reg .b32 %r<9>; ld.v8.b32 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%in];\n"
                      "st.v8.b32 [%out], {%r8, %r7, %r6, %r5, %r4, %r3, %r2, %r1};\n",
                      100),
              testing::ElementsAre(18, 17, 16, 15, 14, 13, 12, 11));
  try {
    run_one(".reg .b64 %d<5>; cvta.shared.u64 %d1, s; ld.v4.b64 {%d1, %d2, %d3, %d4}, [%d1];\n", 100);
    ADD_FAILURE();
  } catch (const sim::Fault& fault) {
    EXPECT_THAT(fault.what(), testing::HasSubstr("a vector of 256 bits that is not in global memory"));
  }
}

TEST(Ptxas, ModifiersMayStandApart) {
  EXPECT_THAT(run_one(".reg .f32 f; .reg .b32 %r<3>; mov .u32 %r1, 0x7ffffff0;\nadd\n.sat\t.s32 %r1, %r1, 0x100;\n"
                      "add.f32 f, .5, .25; st.global .v2\n.b32 [%out], {%r1, f};\n"),
              testing::ElementsAre(0x7fffffffu, 0x3f400000u, 0, 0, 0, 0, 0, 0));
}

TEST(Ptxas, OperationsOfAWarpTakeTheirModifiersInAnyOrder) {
  const struct {
    std::string opcode, operands;
    std::vector<std::string> parts;
  } rows[] = {{"shfl", " %r1, %r0, 3, 31, -1", {"b32", "bfly", "sync"}},
              {"vote", " %r1, %p, -1", {"ballot", "b32", "sync"}},
              {"match", " %r1, %r2, -1", {"any", "b32", "sync"}},
              {"redux", " %r1, %r0, -1", {"max", "sync", "u32"}},
              {"redux", " %r1, %r0, -1", {"b32", "sync", "xor"}},
              {"movmatrix", " %r1, %r0", {"aligned", "b16", "m8n8", "sync", "trans"}}};
  const auto run = [](const std::string& instruction) {
    return stored(
        ".reg .pred %p; and.b32 %r2, %t, 3; setp.eq.u32 %p, %r2, 1;\n" + instruction + ";\nst.shared.u32 [%a], %r1",
        90);
  };
  for (const auto& row : rows) {
    std::vector<std::string> parts = row.parts;
    std::vector<uint32_t> first;
    do {
      std::string name = row.opcode;
      for (const std::string& part : parts) name += "." + part;
      if (first.empty()) first = run(name + row.operands);
      EXPECT_EQ(run(name + row.operands), first) << name;
    } while (std::next_permutation(parts.begin(), parts.end()));
    EXPECT_NE(first, run("mov.u32 %r1, %r0")) << row.opcode;
    EXPECT_THROW(run(row.opcode + "." + row.parts[0] + "." + row.parts[1] + row.operands), std::exception);
  }
}

// Of a matrix of 16x8 bytes each row of shared memory gets a column.
TEST(Ptxas, MatricesOfBytes) {
  const auto byte = [](uint32_t fragment, uint32_t thread, uint32_t e) {
    uint32_t word = thread * 0x04040404u + 0x03020100u;
    if (fragment % 2 == 1) word += 0x80808080u;
    if (fragment >= 2) word ^= fragment == 2 ? 0x55555555u : 0x33333333u;
    return word >> 8 * e & 0xff;
  };
  const struct {
    const char* instruction;
    uint32_t matrices;
  } rows[] = {{"stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%a], {%r0}", 1},
              {"stmatrix.sync.aligned.m16n8.x2.trans.shared::cta.b8 [%a], {%r0, %r1}", 2},
              {"stmatrix.b8.sync.aligned.shared.m16n8.x4.trans [%a], {%r0, %r1, %r2, %r3}", 4}};
  for (const auto& row : rows) {
    const std::vector<uint32_t> got = stored(row.instruction, 100);
    for (uint32_t m = 0; m < 4; ++m) {
      for (uint32_t column = 0; column < 8; ++column) {
        for (uint32_t r = 0; r < 16; ++r) {
          const uint32_t at = (8 * m + column) * 16 + r;
          const uint32_t want = m < row.matrices ? byte(m, r % 8 * 4 + column / 2, r / 8 * 2 + column % 2) : 0;
          EXPECT_EQ(got[at / 4] >> 8 * (at % 4) & 0xff, want) << row.instruction << ": " << r << ", " << column;
        }
      }
    }
  }
  EXPECT_THROW(stored("stmatrix.sync.aligned.m16n8.x1.shared.b8 [%a], {%r0}", 100), std::exception);
  EXPECT_THROW(stored("stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%a], {%r0}", 90), std::exception);
  EXPECT_THROW(stored("stmatrix.sync.aligned.m8n8.shared.b16 [%a], {%r0}", 90), std::exception);
}

// Loads matrices of bytes, or of 6 or 4 bits that become bytes. Each thread fills a row of 16 bytes, of which it leaves
// out what lies behind the elements, and then byte `missing` of row 5. `undefined` says which byte of the
// output is undefined first, counted from 1.
struct LoadedBytes {
  std::vector<uint32_t> words;  // four a thread
  uint64_t undefined = 0;
};
LoadedBytes load_bytes(const std::string& instruction, int bits, const std::vector<uint32_t>& rows, int missing) {
  sim::GlobalMemory memory;
  Buffer<uint32_t> in(memory, rows), out(memory, size_t{128}, 0u);
  Shape shape;
  shape.arch = 100;
  if (missing >= 0) shape.rules.strictness = sim::Strictness::Field;
  std::string text = R"(
.visible .entry k(.param .u64 p_in, .param .u64 p_out) {
  .shared .align 16 .b8 s[512];
  .reg .b32 %t, %a, %w, %r<5>; .reg .b64 %in, %out; .reg .pred %p;
  ld.param.u64 %in, [p_in];
  ld.param.u64 %out, [p_out];
  mov.u32 %t, %tid.x;
  mad.wide.u32 %in, %t, 16, %in;
  mad.wide.u32 %out, %t, 16, %out;
  mov.u32 %a, s;
  mad.lo.u32 %a, %t, 16, %a;
  mov.b32 %r0, 0;
  mov.b32 %r1, 0;
  mov.b32 %r2, 0;
  mov.b32 %r3, 0;
)";
  for (int byte = 0; byte < 2 * bits; ++byte) {
    const std::string at = std::to_string(byte);
    text += "ld.global.u8 %w, [%in+" + at + "];\n";
    if (byte == missing) text += "setp.ne.u32 %p, %t, 5;\n@%p ";
    text += "st.shared.u8 [%a+" + at + "], %w;\n";
  }
  run_ptx(text + "bar.warp.sync -1;\n" + instruction + R"(;
  st.global.v4.u32 [%out], {%r0, %r1, %r2, %r3};
  ret;
})",
          "k", Params().add(in.address()).add(out.address()), memory, shape);
  const uint64_t undefined = memory.undefined.find(out.address(), 512).address;
  return {out.values(), undefined == 0 ? 0 : undefined - out.address() + 1};
}

// With .trans thread t holds in register r column t / 4 + 8 r of rows 4 (t % 4) to 4 (t % 4) + 3, and without it it
// holds columns 4 (t % 4) to 4 (t % 4) + 3 of row t / 4 (9.7.14.5.15).
TEST(Ptxas, LoadedMatricesOfBytes) {
  const std::string list[] = {"", "{%r0}", "{%r0, %r1}", "", "{%r0, %r1, %r2, %r3}"};
  std::vector<uint32_t> rows(128);
  for (uint32_t i = 0; i < rows.size(); ++i) rows[i] = (i + 1) * 2654435761u ^ (i * i) << 7;
  const auto element = [&](int bits, int row, int column) {
    uint32_t value = 0;
    for (int bit = 0; bit < bits; ++bit) {
      const int at = 128 * row + column * bits + bit;
      value |= (rows[static_cast<size_t>(at) / 32] >> at % 32 & 1) << bit;
    }
    return value;
  };
  for (const int bits : {8, 6, 4}) {
    for (const bool square : {true, false}) {
      if (bits == 8 && !square) continue;
      const int height = square ? 16 : 8, registers = square ? 2 : 1;
      for (const int matrices : {1, 2, 4}) {
        if (square && matrices == 4) continue;
        const std::string instruction = std::string("ldmatrix.sync.aligned.") + (square ? "m16n16.x" : "m8n16.x") +
                                        std::to_string(matrices) + (square ? ".trans" : "") +
                                        (bits == 6 ? ".shared::cta" : ".shared") +
                                        (bits == 8   ? ".b8 "
                                         : bits == 6 ? ".b8x16.b6x16_p32 "
                                                     : ".b8x16.b4x16_p64 ") +
                                        list[matrices * registers] + ", [%a]";
        const LoadedBytes got = load_bytes(instruction, bits, rows, -1);
        EXPECT_EQ(got.undefined, 0) << instruction;
        for (int t = 0; t < 32; ++t) {
          for (int r = 0; r < 4; ++r) {
            uint32_t want = 0;
            const int m = r / registers, first = m * height;
            for (int e = 0; m < matrices && e < 4; ++e) {
              const uint32_t value = square ? element(bits, first + 4 * (t % 4) + e, t / 4 + 8 * (r % 2))
                                            : element(bits, first + t / 4, 4 * (t % 4) + e);
              want |= value << 8 * e;
            }
            EXPECT_EQ(got.words[static_cast<size_t>(4 * t + r)], want) << instruction << " thread " << t << " " << r;
          }
        }
        // The last byte of row 5 has the top of the last element, and of two where they have 4 bits.
        const int column = bits == 8 ? 15 : 14;
        const int thread = square ? column % 8 * 4 + 5 / 4 : 5 * 4 + column / 4;
        const int byte = 16 * thread + (square ? 4 * (column / 8) + 5 % 4 : column % 4);
        const LoadedBytes part = load_bytes(instruction, bits, rows, 2 * bits - 1);
        EXPECT_EQ(part.undefined, static_cast<uint64_t>(byte + 1)) << instruction;
      }
    }
  }
  const auto refused = [&](const std::string& instruction) {
    EXPECT_THROW(load_bytes("ldmatrix.sync.aligned." + instruction, 8, rows, -1), std::exception) << instruction;
  };
  refused("m16n16.x1.shared.b8 {%r0, %r1}, [%a]");
  refused("m16n16.x4.trans.shared.b8 {%r0, %r1, %r2, %r3}, [%a]");
  refused("m16n16.x1.trans.shared.b8 {%r0}, [%a]");
  refused("m8n16.x1.shared.b8 {%r0}, [%a]");
  refused("m8n16.x1.trans.shared.b8x16.b4x16_p64 {%r0}, [%a]");
  EXPECT_THROW(stored("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r0, %r1}, [%a]", 90), std::exception);
  // A row begins at a multiple of 16 bytes.
  refused("m16n16.x1.trans.shared.b8 {%r0, %r1}, [%a+8]");
}

}  // namespace
