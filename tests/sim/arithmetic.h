// SPDX-License-Identifier: Apache-2.0
// Runs one instruction over many operands and compares each result with a reference, for the tests of plain arithmetic.
// Every case runs as PTX, in whole and in partial warps. The references are computed another way: by wide integers, by
// 128-bit floats, or by the bit loops of the PTX ISA.
#pragma once
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/formats.h"
#include "tests/sim/run_ptx.h"

namespace sim_test {

// One input: up to three operands, each in the low bits.
struct In {
  uint64_t a = 0, b = 0, c = 0;
};

// The register that holds an operand: 'h' 16 bits, 'w' 32, 'd' 64, 'p' predicate (low bit of the operand).
inline std::string load(char kind, const char* name, int offset) {
  const std::string at = "[%in+" + std::to_string(offset) + "];\n";
  const std::string n(name);
  switch (kind) {
    case 'h':
      return ".reg .b16 %" + n + "; ld.global.u16 %" + n + ", " + at;
    case 'w':
      return ".reg .b32 %" + n + "; ld.global.u32 %" + n + ", " + at;
    case 'd':
      return ".reg .b64 %" + n + "; ld.global.u64 %" + n + ", " + at;
    default:
      return ".reg .pred %" + n + "; .reg .b32 %w" + n + "; ld.global.u32 %w" + n + ", " + at + "setp.ne.u32 %" + n +
             ", %w" + n + ", 0;\n";
  }
}

// kinds: destination first, "ww" for a 32-bit result of one 32-bit operand. In the code the registers are %d, %a, %b,
// %c; the destination starts as all ones.
inline std::string program(const std::string& code, const std::string& kinds) {
  std::string text =
      ".visible .entry k(.param .u64 p_in, .param .u64 p_out, .param .u32 p_n) {\n"
      ".reg .b64 %in, %out, %t; .reg .b32 %i, %n, %x, %y; .reg .pred %stop;\n"
      "ld.param.u64 %in, [p_in]; ld.param.u64 %out, [p_out]; ld.param.u32 %n, [p_n];\n"
      "mov.u32 %x, %ctaid.x; mov.u32 %y, %ntid.x; mov.u32 %i, %tid.x; mad.lo.u32 %i, %x, %y, %i;\n"
      "setp.ge.u32 %stop, %i, %n; @%stop ret;\n"
      "mad.wide.u32 %in, %i, 24, %in; mad.wide.u32 %out, %i, 8, %out;\n";
  static const char* kNames[] = {"a", "b", "c"};
  for (size_t i = 1; i < kinds.size(); ++i) text += load(kinds[i], kNames[i - 1], static_cast<int>(i - 1) * 8);
  const char d = kinds[0];
  if (d == 'p')
    text += ".reg .pred %d; .reg .b32 %wd; mov.pred %d, 1;\n" + code +
            "\nselp.b32 %wd, 1, 0, %d; st.global.u32 [%out], %wd;";
  else if (d == 'h')
    text += ".reg .b16 %d; mov.b16 %d, -1;\n" + code + "\nst.global.u16 [%out], %d;";
  else if (d == 'w')
    text += ".reg .b32 %d; mov.b32 %d, -1;\n" + code + "\nst.global.u32 [%out], %d;";
  else
    text += ".reg .b64 %d; mov.b64 %d, -1;\n" + code + "\nst.global.u64 [%out], %d;";
  return text + "\nret; }\n";
}

// What Hopper lacks runs as sm_100a.
inline bool is_blackwell(const std::string& code) {
  for (const char* mark : {"f32x2", "e2m1", "e2m3", "e3m2", "ue8m0", ".f32.f16", ".f32.bf16 %d, %a, %b",
                           "min.f32 %d, %a, %b, %c", "max.f32 %d, %a, %b, %c", "cvt.rs"})
    if (code.find(mark) != std::string::npos) return true;
  return false;
}

inline std::vector<uint64_t> evaluate(const std::string& code, const std::string& kinds,
                                      const std::vector<In>& inputs) {
  sim::GlobalMemory memory;
  std::vector<uint64_t> flat;
  for (const In& in : inputs) flat.insert(flat.end(), {in.a, in.b, in.c});
  Buffer<uint64_t> in(memory, flat), out(memory, inputs.size(), uint64_t{0});
  sim_test::Shape shape;
  shape.arch = is_blackwell(code) ? 100 : 90;
  shape.block = {128, 1, 1};
  shape.grid = {static_cast<uint32_t>((inputs.size() + 127) / 128), 1, 1};
  sim_test::run_ptx(program(code, kinds), "k",
                    Params().add(in.address()).add(out.address()).add(static_cast<uint32_t>(inputs.size())), memory,
                    shape);
  return out.values();
}

inline const std::vector<uint64_t>& edges() {
  static const std::vector<uint64_t> values = {0,
                                               1,
                                               2,
                                               3,
                                               5,
                                               7,
                                               31,
                                               32,
                                               33,
                                               63,
                                               64,
                                               65,
                                               127,
                                               128,
                                               255,
                                               256,
                                               0x7fff,
                                               0x8000,
                                               0xffff,
                                               0x10000,
                                               0x7fffffff,
                                               0x80000000,
                                               0x80000001,
                                               0xffffffff,
                                               0x100000000,
                                               0x7fffffffffffffff,
                                               0x8000000000000000,
                                               0xffffffffffffffff,
                                               0xfffffffffffffffe,
                                               0xaaaaaaaaaaaaaaaa,
                                               0x123456789abcdef0};
  return values;
}

// Edges against edges, then random bits. Not a multiple of 32.
inline std::vector<In> integer_inputs(size_t random = 1500) {
  std::vector<In> inputs;
  std::mt19937_64 rng(11);
  for (uint64_t a : edges())
    for (uint64_t b : edges()) inputs.push_back({a, b, edges()[rng() % edges().size()]});
  for (size_t i = 0; i < random; ++i) {
    const int shift = static_cast<int>(rng() % 64);
    inputs.push_back({rng() >> shift, rng() >> (rng() % 64), rng() >> (rng() % 64)});
  }
  while (inputs.size() % 32 != 5) inputs.push_back({rng(), rng(), rng()});
  return inputs;
}

using Reference = std::function<uint64_t(uint64_t, uint64_t, uint64_t)>;

inline void check(const std::string& code, const std::string& kinds, const Reference& reference,
                  const std::vector<In>& inputs = integer_inputs()) {
  SCOPED_TRACE(code);
  const auto narrow = [](char kind, uint64_t v) {
    return kind == 'h' ? v & 0xffff : kind == 'w' ? v & 0xffffffff : kind == 'p' ? v != 0 : v;
  };
  const std::vector<uint64_t> results = evaluate(code, kinds, inputs);
  int shown = 0;
  for (size_t i = 0; i < inputs.size() && shown < 3; ++i) {
    const auto operand = [&](size_t n, uint64_t v) {
      return n < kinds.size() ? narrow(kinds[n] == 'p' ? 'w' : kinds[n], v) : 0;
    };
    const uint64_t a = operand(1, inputs[i].a), b = operand(2, inputs[i].b), c = operand(3, inputs[i].c);
    const uint64_t expected = narrow(kinds[0], reference(a, b, c));
    if (results[i] == expected) continue;
    ++shown;
    ADD_FAILURE() << std::hex << "a=" << a << " b=" << b << " c=" << c << " gives " << results[i] << ", expected "
                  << expected;
  }
}

inline std::vector<uint32_t> float_edges() {
  return {0,          0x80000000, 1,          0x80000001, 0x007fffff, 0x00800000, 0x80800000, 0x3f800000, 0xbf800000,
          0x3f800001, 0x3f7fffff, 0x3f000000, 0x40000000, 0x3eaaaaab, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000,
          0x7fc00000, 0x7f800001, 0xffffffff, 0x33800000, 0x4b000000, 0x4b800001, 0x4f000000, 0x4f800000, 0x5f000000,
          0xcf000000, 0x42f7e666, 0xc2f7e666, 0x477fe000, 0x477ff000, 0x33000000};
}
inline std::vector<In> float_inputs(size_t random = 2000) {
  std::vector<In> inputs;
  std::mt19937_64 rng(3);
  const auto edge = float_edges();
  for (uint32_t a : edge)
    for (uint32_t b : edge) inputs.push_back({a, b, edge[rng() % edge.size()]});
  for (size_t i = 0; i < random; ++i) {
    // Half with exponents near one another, so that sums cancel and round.
    const auto near = [&] { return static_cast<uint32_t>((rng() & 0x807fffff) | (120 + rng() % 16) << 23); };
    if (i % 2)
      inputs.push_back({near(), near(), near()});
    else
      inputs.push_back({rng() & 0xffffffff, rng() & 0xffffffff, rng() & 0xffffffff});
  }
  return inputs;
}
inline float f32(uint64_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits)); }
inline double f64(uint64_t bits) { return std::bit_cast<double>(bits); }
inline uint64_t bits(float f) { return std::isnan(f) ? 0x7fffffff : std::bit_cast<uint32_t>(f); }

enum class Mode { Rn, Rz, Rm, Rp };
inline const std::vector<std::pair<std::string, Mode>> kModes = {
    {"rn", Mode::Rn}, {"rz", Mode::Rz}, {"rm", Mode::Rm}, {"rp", Mode::Rp}};

// Rounds a quad value that is exact, or has bits enough that its own rounding does not matter, to F.
template <class F>
F round_quad(__float128 q, Mode mode) {
  const F nearest = static_cast<F>(q);
  const F infinity = std::numeric_limits<F>::infinity();
  if (q != q || static_cast<__float128>(nearest) == q) return nearest;
  const bool above = static_cast<__float128>(nearest) > q, negative = q < 0;
  if (mode == Mode::Rm || (mode == Mode::Rz && !negative)) return above ? std::nextafter(nearest, -infinity) : nearest;
  if (mode == Mode::Rp || (mode == Mode::Rz && negative)) return above ? nearest : std::nextafter(nearest, infinity);
  return nearest;
}
inline __float128 quad(uint64_t a) { return f32(a); }

}  // namespace sim_test
