// SPDX-License-Identifier: Apache-2.0
// mma.sync against the sum of products that PTX ISA 9.7.14.5 defines, element by element, with random data: every
// shape, every type, every lane's place in its fragment. Places are written here as the ISA's tables give them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "tests/sim/matrix_values.h"
#include "tests/sim/run_ptx.h"

namespace {

using sim_test::bits_of;
using sim_test::Buffer;
using sim_test::code_of;
using sim_test::Params;
using sim_test::random_value;
using sim_test::value_of;
using testing::HasSubstr;

struct Place {
  int row, column;
};

// Of element i of a lane, A and B in their own rows and columns.
struct Layout {
  std::function<Place(int lane, int i)> a, b, c, d;
};

struct Case {
  std::string mnemonic;
  int m, k;
  std::string a, b, c, d;
  std::string remark;
  Layout layout;
  int products = 1;  // m8n8k4 of f16 computes four
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.mnemonic; }

// 9.7.14.5.2 to 9.7.14.5.13, each table in its own words.
Layout layout_of(int m, int k, int bits) {
  Layout l;
  const auto group = [](int lane) { return lane >> 2; };
  const auto in_group = [](int lane) { return lane % 4; };
  l.c = l.d = [=](int lane, int i) {
    return Place{m == 8 || i < 2 ? group(lane) : group(lane) + 8, in_group(lane) * 2 + (i & 1)};
  };
  if (bits == 64) {
    l.a = [=](int lane, int i) { return Place{group(lane) + (i % 2 == 1 ? 8 : 0), in_group(lane) + (i / 2) * 4}; };
    l.b = [=](int lane, int i) { return Place{in_group(lane) + i * 4, group(lane)}; };
  } else if (bits == 32) {
    l.a = [=](int lane, int i) {
      return Place{group(lane) + (i == 1 || i == 3 ? 8 : 0), in_group(lane) + (i >= 2 ? 4 : 0)};
    };
    l.b = [=](int lane, int i) { return Place{in_group(lane) + (i == 1 ? 4 : 0), group(lane)}; };
  } else if (bits == 16) {
    l.a = [=](int lane, int i) {
      return Place{group(lane) + ((i >= 2 && i < 4) || i >= 6 ? 8 : 0),
                   in_group(lane) * 2 + (i & 1) + (i >= 4 ? 8 : 0)};
    };
    l.b = [=](int lane, int i) { return Place{in_group(lane) * 2 + (i & 1) + (i >= 2 ? 8 : 0), group(lane)}; };
  } else if (bits == 8) {
    l.a = [=](int lane, int i) {
      return Place{m == 8 ? group(lane) : group(lane) + ((i >= 4 && i < 8) || i >= 12 ? 8 : 0),
                   in_group(lane) * 4 + (i & 3) + (i >= 8 ? 16 : 0)};
    };
    l.b = [=](int lane, int i) { return Place{in_group(lane) * 4 + (i & 3) + (i >= 4 ? 16 : 0), group(lane)}; };
  } else if (bits == 4) {
    l.a = [=](int lane, int i) {
      return Place{m == 8 ? group(lane) : group(lane) + ((i >= 8 && i < 16) || i >= 24 ? 8 : 0),
                   in_group(lane) * 8 + (i & 7) + (i >= 16 ? 32 : 0)};
    };
    l.b = [=](int lane, int i) { return Place{in_group(lane) * 8 + (i & 7) + (i >= 8 ? 32 : 0), group(lane)}; };
  } else {
    l.a = [=](int lane, int i) {
      return Place{m == 8 ? group(lane) : group(lane) + ((i >= 32 && i < 64) || i >= 96 ? 8 : 0),
                   in_group(lane) * 32 + (i & 31) + (i >= 64 ? 128 : 0)};
    };
    l.b = [=](int lane, int i) { return Place{in_group(lane) * 32 + (i & 31) + (i >= 32 ? 128 : 0), group(lane)}; };
  }
  (void)k;
  return l;
}

// 9.7.14.5.1
Layout quad_layout(bool a_columns, bool b_rows, const std::string& c, const std::string& d) {
  const auto accumulator = [](const std::string& type) -> std::function<Place(int, int)> {
    if (type == "f16") return [](int lane, int i) { return Place{lane % 4 + (lane < 16 ? 0 : 4), i}; };
    return [](int lane, int i) {
      const int x = (lane & 1) + (i & 2);
      return Place{lane < 16 ? x : x + 4, (i & 4) + (lane & 2) + (i & 1)};
    };
  };
  Layout l;
  l.a = [=](int lane, int i) {
    if (a_columns) return Place{i % 4 + (lane < 16 ? 0 : 4), lane % 4};
    return Place{lane % 4 + (lane < 16 ? 0 : 4), i};
  };
  l.b = [=](int lane, int i) {
    if (b_rows) return Place{lane % 4, i + (lane < 16 ? 0 : 4)};
    return Place{i, lane % 4 + (lane < 16 ? 0 : 4)};
  };
  l.c = accumulator(c);
  l.d = accumulator(d);
  return l;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const auto add = [&](int m, int k, const std::string& d, const std::string& a, const std::string& b,
                       const std::string& c, const std::string& option = "", const std::string& tail = "") {
    Case x;
    x.m = m, x.k = k, x.a = a, x.b = b, x.c = c, x.d = d, x.remark = option + tail;
    x.mnemonic = "mma.sync.aligned.m" + std::to_string(m) + "n8k" + std::to_string(k) + ".row.col" + option + "." + d +
                 "." + a + "." + b + "." + c + tail;
    x.layout = layout_of(m, k, bits_of(a));
    cases.push_back(x);
  };
  for (int k : {8, 16}) {
    for (const char* d : {"f16", "f32"}) add(16, k, d, "f16", "f16", d);
    add(16, k, "f32", "bf16", "bf16", "f32");
  }
  for (int k : {4, 8}) add(16, k, "f32", "tf32", "tf32", "f32");
  for (const char* a : {"e4m3", "e5m2"})
    for (const char* b : {"e4m3", "e5m2"})
      for (int k : {16, 32})
        for (const char* d : {"f16", "f32"}) add(16, k, d, a, b, d);
  for (const char* option : {"", ".rn", ".rz", ".rm", ".rp"}) {
    add(8, 4, "f64", "f64", "f64", "f64", option);
    for (int k : {4, 8, 16}) add(16, k, "f64", "f64", "f64", "f64", option);
  }
  for (const char* option : {"", ".satfinite"}) {
    for (const char* a : {"8", "4"})
      for (const char* sign_a : {"s", "u"})
        for (const char* sign_b : {"s", "u"}) {
          const int unit = a[0] == '8' ? 16 : 32;
          add(8, unit, "s32", std::string(sign_a) + a, std::string(sign_b) + a, "s32", option);
          for (int k : {unit, 2 * unit})
            add(16, k, "s32", std::string(sign_a) + a, std::string(sign_b) + a, "s32", option);
        }
  }
  for (const char* tail : {".xor.popc", ".and.popc"}) {
    add(8, 128, "s32", "b1", "b1", "s32", "", tail);
    for (int k : {128, 256}) add(16, k, "s32", "b1", "b1", "s32", "", tail);
  }
  for (const char* orders : {"row.col", "row.row", "col.col", "col.row"})
    for (const char* d : {"f16", "f32"})
      for (const char* c : {"f16", "f32"}) {
        if (std::string(c) == "f32" && std::string(d) == "f16") continue;
        Case x;
        x.m = 8, x.k = 4, x.a = x.b = "f16", x.c = c, x.d = d, x.products = 4;
        x.mnemonic = "mma.sync.aligned.m8n8k4." + std::string(orders) + "." + d + ".f16.f16." + c;
        x.layout = quad_layout(orders[0] == 'c', std::string(orders).ends_with("row"), c, d);
        cases.push_back(x);
      }
  return cases;
}

class WarpProduct : public testing::TestWithParam<Case> {
 protected:
  sim::GlobalMemory memory_;
};
INSTANTIATE_TEST_SUITE_P(All, WarpProduct, testing::ValuesIn(all_cases()), [](const auto& info) {
  std::string name = info.param.mnemonic.substr(17);
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

TEST_P(WarpProduct, IsTheSumOfProducts) {
  const Case& c = GetParam();
  const bool doubles = c.a == "f64";
  const int word_bits = doubles ? 64 : 32, bytes = word_bits / 8;
  const auto elements = [&](int rows, int columns) { return c.products * rows * columns / 32; };
  const int in_a = elements(c.m, c.k), in_b = elements(c.k, 8), in_c = elements(c.m, 8);
  const auto words = [&](int count, const std::string& type) { return std::max(1, count * bits_of(type) / word_bits); };
  const int wa = words(in_a, c.a), wb = words(in_b, c.b), wc = words(in_c, c.c), wd = words(in_c, c.d);
  const int in_words = wa + wb + wc;

  std::mt19937 rng(static_cast<unsigned>(std::hash<std::string>()(c.mnemonic)));
  using Matrix = std::map<std::pair<int, int>, double>;
  std::vector<Matrix> a(4), b(4), sum(4);
  std::vector<uint64_t> image(static_cast<size_t>(32 * in_words), 0);
  for (int lane = 0; lane < 32; ++lane) {
    const auto product = static_cast<size_t>(c.products == 4 ? lane / 4 % 4 : 0);
    const auto fill = [&](Matrix& to, const std::string& type, int count, int at, const auto& place) {
      const int each = word_bits / bits_of(type);
      for (int i = 0; i < count; ++i) {
        const double v = random_value(type, rng);
        const Place p = place(lane, i);
        EXPECT_TRUE(to.emplace(std::pair(p.row, p.column), v).second) << "a place is given twice";
        image[static_cast<size_t>(lane * in_words + at + i / each)] |= code_of(type, v) << i % each * bits_of(type);
      }
    };
    fill(a[product], c.a, in_a, 0, c.layout.a);
    fill(b[product], c.b, in_b, wa, c.layout.b);
    fill(sum[product], c.c, in_c, wa + wb, c.layout.c);
  }
  std::vector<uint8_t> packed(image.size() * static_cast<size_t>(bytes));
  for (size_t i = 0; i < image.size(); ++i)
    std::memcpy(packed.data() + i * static_cast<size_t>(bytes), &image[i], static_cast<size_t>(bytes));
  const int out_words = wd + in_words;  // the operands stand behind D once more, as the instruction leaves them
  Buffer<uint8_t> in(memory_, packed), out(memory_, static_cast<size_t>(32 * out_words * bytes));

  const std::string reg = doubles ? ".f64" : ".b32";
  std::string text =
      ".visible .entry k(.param .u64 p_in, .param .u64 p_out)\n{\n.reg .b64 %rd<4>; .reg .b32 %t; .reg " + reg +
      " a<16>, b<16>, c<16>, d<16>;\nld.param.u64 %rd1, [p_in]; ld.param.u64 %rd2, [p_out]; mov.u32 %t, %tid.x;\n"
      "mad.wide.u32 %rd1, %t, " +
      std::to_string(in_words * bytes) + ", %rd1;\nmad.wide.u32 %rd2, %t, " + std::to_string(out_words * bytes) +
      ", %rd2;\n";
  int at = 0;
  const auto list = [](const char* name, int count) {
    std::string s = "{";
    for (int i = 0; i < count; ++i) s += (i ? ", " : "") + std::string(name) + std::to_string(i);
    return s + "}";
  };
  for (const auto& [name, count] : {std::pair("a", wa), std::pair("b", wb), std::pair("c", wc)}) {
    for (int i = 0; i < count; ++i, at += bytes)
      text += "ld.global" + reg + " " + name + std::to_string(i) + ", [%rd1+" + std::to_string(at) + "];\n";
  }
  text += c.mnemonic + " " + list("d", wd) + ", " + list("a", wa) + ", " + list("b", wb) + ", " + list("c", wc) + ";\n";
  at = 0;
  for (const auto& [name, count] : {std::pair("d", wd), std::pair("a", wa), std::pair("b", wb), std::pair("c", wc)}) {
    for (int i = 0; i < count; ++i, at += bytes)
      text += "st.global" + reg + " [%rd2+" + std::to_string(at) + "], " + name + std::to_string(i) + ";\n";
  }
  sim::Statistics statistics;
  sim_test::Shape shape;
  shape.statistics = &statistics;
  sim_test::run_ptx(text + "ret;\n}\n", "k", Params().add(in.address()).add(out.address()), memory_, shape);
  EXPECT_EQ(statistics.multiply_adds, static_cast<uint64_t>(c.products * c.m * 8 * c.k));

  for (int lane = 0; lane < 32; ++lane) {
    const auto product = static_cast<size_t>(c.products == 4 ? lane / 4 % 4 : 0);
    EXPECT_EQ(std::memcmp(&out[static_cast<size_t>((lane * out_words + wd) * bytes)],
                          &packed[static_cast<size_t>(lane * in_words * bytes)], static_cast<size_t>(in_words * bytes)),
              0)
        << "lane " << lane;
    for (int i = 0; i < in_c; ++i) {
      const Place p = c.layout.d(lane, i);
      double expected = sum[product].at({p.row, p.column});
      // Whole multiples of 1/16 far below 2^24 of them: exact in every order.
      double size = std::fabs(expected);
      for (int k = 0; k < c.k; ++k) {
        const double x = a[product].at({p.row, k}), y = b[product].at({k, p.column});
        expected += c.a == "b1" ? (c.remark == ".xor.popc" ? x != y : x * y) : x * y;
        size += std::fabs(x * y);
      }
      const int each = word_bits / bits_of(c.d);
      uint64_t word = 0;
      std::memcpy(&word, &out[static_cast<size_t>((lane * out_words + i / each) * bytes)], static_cast<size_t>(bytes));
      if (bits_of(c.d) < 64) word = word >> i % each * bits_of(c.d) & ((1ull << bits_of(c.d)) - 1);
      const double got = value_of(c.d, word);
      if (c.d == "s32") {
        if (c.remark == ".satfinite") expected = std::min(2147483647.0, std::max(-2147483648.0, expected));
        expected = static_cast<int32_t>(static_cast<uint32_t>(static_cast<int64_t>(expected)));
        ASSERT_EQ(got, expected) << "lane " << lane << ", element " << i;
      } else if (doubles) {
        const double ulp = size * 0x1p-52 * (c.k + 1);
        ASSERT_NEAR(got, expected, ulp) << "lane " << lane << ", element " << i;
      } else {
        ASSERT_EQ(got, expected) << "lane " << lane << ", element " << i;
      }
    }
  }
}

double f64_product(const std::string& rounding, double c) {
  sim::GlobalMemory memory;
  Buffer<double> out(memory, 32);
  sim_test::run_ptx(
      ".visible .entry k(.param .u64 p_out)\n{\n.reg .b64 %rd<4>; .reg .b32 %t; .reg .f64 a, b, c, d, e;\n"
      "ld.param.u64 %rd1, [p_out]; mov.u32 %t, %tid.x; mad.wide.u32 %rd1, %t, 8, %rd1;\n"
      "mov.f64 a, 1.0; mov.f64 b, 0d3C00000000000000; mov.f64 c, " +
          std::to_string(c) +
          ";\n"
          "mma.sync.aligned.m8n8k4.row.col" +
          rounding +
          ".f64.f64.f64.f64 {d, e}, {a}, {b}, {c, c};\n"
          "st.global.f64 [%rd1], d;\nret;\n}\n",
      "k", Params().add(out.address()), memory, {});
  return out[0];
}

// Four times 2^-63 beside one: the rounding shows at every step.
TEST(WarpProductRounding, OfDoublesIsAsWritten) {
  EXPECT_EQ(f64_product(".rn", 1), 1);
  EXPECT_EQ(f64_product(".rz", -1), -1 + 4 * 0x1p-53);
  EXPECT_EQ(f64_product(".rm", 1), 1);
  EXPECT_EQ(f64_product(".rp", 1), 1 + 4 * 0x1p-52);
}

std::string refusal(const std::string& instruction) {
  try {
    sim_test::prepare_ptx(".visible .entry k()\n{\n.reg .b32 r<9>; .reg .f64 d<9>;\n" + instruction + "\nret;\n}\n",
                          "k");
  } catch (const sim::ptx::ParseError& e) {
    return e.what();
  }
  return "";
}

TEST(WarpProductForms, WhatDoesNotExistIsRefused) {
  const std::string operands = " {r0, r1, r2, r3}, {r0, r1, r2, r3}, {r4, r5}, {r0, r1, r2, r3};";
  EXPECT_EQ(refusal("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" + operands), "");
  EXPECT_THAT(refusal("mma.sync.aligned.m16n8k16.col.col.f32.f16.f16.f32" + operands),
              HasSubstr("not supported in this form"));
  EXPECT_THAT(refusal("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f32" + operands),
              HasSubstr("not supported in this form"));
  EXPECT_THAT(refusal("mma.sync.aligned.m16n8k64.row.col.f32.f16.f16.f32" + operands),
              HasSubstr("not supported in this form"));
  EXPECT_THAT(refusal("mma.sync.aligned.m16n8k16.row.col.f32.bf16.f16.f32" + operands),
              HasSubstr("not supported in this form"));
  EXPECT_THAT(refusal("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32" + operands),
              HasSubstr("has 4 registers and needs 2"));
  EXPECT_THAT(refusal("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {d0, d1, d2, d3}, {r0, r1, r2, r3}, {r4, r5}, "
                      "{r0, r1, r2, r3};"),
              HasSubstr("does not have 32 bits"));
  EXPECT_THAT(refusal("mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32" + operands),
              HasSubstr("sparse products are not supported"));
}

}  // namespace
