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

// ---- sparse products (9.7.14.6) ------------------------------------------------------------------

struct SparseCase {
  std::string variant;  // .sp or .sp::ordered_metadata
  int k;
  std::string d, a, b, option;
  int selector;
  std::string mnemonic() const {
    return "mma" + variant + ".sync.aligned.m16n8k" + std::to_string(k) + ".row.col" + option + "." + d + "." + a +
           "." + b + "." + d;
  }
  int bits() const { return bits_of(a); }
  // Columns that an index of the metadata chooses from, how many of them it names, and how many indices a chunk has.
  int chunk() const { return bits() == 32 ? 2 : bits() == 4 ? 8 : 4; }
  int together() const { return bits() == 4 ? 2 : 1; }
  int chosen() const { return bits() == 32 ? 1 : 2; }
};
void PrintTo(const SparseCase& c, std::ostream* out) { *out << c.mnemonic() << ", selector " << c.selector; }

// The lane and the bit where the four bits for a chunk of a row stand: figures 119, 122, 125, 127, 129, 136, 137, 139,
// 146 and 147.
Place metadata_of(const SparseCase& c, int row, int chunk) {
  const int chunks = c.k / c.chunk(), group = row % 8 * 4, low = row < 8;
  if (c.bits() >= 16) {
    const int lane = chunks == 4 ? c.selector : 2 * c.selector + chunk / 4;
    return {group + lane, chunk % 4 * 4 + (low ? 0 : 16)};
  }
  const int lane = chunks == 8 ? 2 * c.selector : chunk / 8 * 2;
  return {group + lane + (low ? 0 : 1), chunk % 8 * 4};
}

std::vector<SparseCase> sparse_cases() {
  std::vector<SparseCase> cases;
  for (const char* variant : {".sp", ".sp::ordered_metadata"}) {
    const auto add = [&](int k, const std::string& d, const std::string& a, const std::string& b, int selectors,
                         const std::string& option = "") {
      for (int s = 0; s < selectors; ++s) cases.push_back({variant, k, d, a, b, option, s});
    };
    for (const int wide : {0, 1}) {
      for (const char* d : {"f16", "f32"}) add(wide ? 32 : 16, d, "f16", "f16", wide ? 2 : 4);
      add(wide ? 32 : 16, "f32", "bf16", "bf16", wide ? 2 : 4);
      add(wide ? 16 : 8, "f32", "tf32", "tf32", wide ? 2 : 4);
      for (const char* option : {"", ".satfinite"})
        for (const char* bits : {"8", "4"})
          for (const char* sign_a : {"s", "u"})
            for (const char* sign_b : {"s", "u"})
              add((bits[0] == '8' ? 32 : 64) << wide, "s32", std::string(sign_a) + bits, std::string(sign_b) + bits,
                  wide ? 1 : 2, option);
    }
    for (const char* a : {"e4m3", "e5m2"})
      for (const char* b : {"e4m3", "e5m2"}) add(64, "f32", a, b, 1);
  }
  return cases;
}

class SparseWarpProduct : public testing::TestWithParam<SparseCase> {
 protected:
  sim::GlobalMemory memory_;
};
INSTANTIATE_TEST_SUITE_P(All, SparseWarpProduct, testing::ValuesIn(sparse_cases()), [](const auto& info) {
  std::string name = info.param.mnemonic().substr(4) + "_selector_" + std::to_string(info.param.selector);
  for (char& c : name) {
    if (c == '.' || c == ':') c = '_';
  }
  return name;
});

// The kernel: a lane's 13 words are 4 of A, 4 of B, 4 of C and the metadata.
constexpr int kSparseWords = 13;
std::string sparse_kernel(const std::string& mnemonic, int of_a, int of_b, int of_c, int selector) {
  const auto list = [](const char* name, int count) {
    std::string s = "{";
    for (int i = 0; i < count; ++i) s += (i ? ", " : "") + std::string(name) + std::to_string(i);
    return s + "}";
  };
  std::string text =
      ".visible .entry k(.param .u64 p_in, .param .u64 p_out)\n{\n.reg .b64 %rd<4>; .reg .b32 %t, e;\n"
      ".reg .b32 a<4>, b<4>, c<4>, d<4>;\nld.param.u64 %rd1, [p_in]; ld.param.u64 %rd2, [p_out];\n"
      "mov.u32 %t, %tid.x; mad.wide.u32 %rd1, %t, 52, %rd1; mad.wide.u32 %rd2, %t, 16, %rd2;\n";
  int at = 0;
  for (const char* name : {"a", "b", "c"}) {
    for (int i = 0; i < 4; ++i, at += 4)
      text += "ld.global.b32 " + std::string(name) + std::to_string(i) + ", [%rd1+" + std::to_string(at) + "];\n";
  }
  text += "ld.global.b32 e, [%rd1+48];\n" + mnemonic + " " + list("d", of_c) + ", " + list("a", of_a) + ", " +
          list("b", of_b) + ", " + list("c", of_c) + ", e, " + std::to_string(selector) + ";\n";
  for (int i = 0; i < of_c; ++i)
    text += "st.global.b32 [%rd2+" + std::to_string(4 * i) + "], d" + std::to_string(i) + ";\n";
  return text + "ret;\n}\n";
}

TEST_P(SparseWarpProduct, IsTheSumOfProducts) {
  const SparseCase& c = GetParam();
  const int bits = c.bits(), each = 32 / bits, stored = c.k / 2;
  std::mt19937 rng(static_cast<unsigned>(std::hash<std::string>()(c.mnemonic())) + static_cast<unsigned>(c.selector));
  std::vector<uint32_t> image(32 * kSparseWords);
  for (uint32_t& word : image) word = static_cast<uint32_t>(rng());  // no other lane's metadata are read
  const auto put = [&](int lane, int word, int place, int width, uint64_t code) {
    uint32_t& to = image[static_cast<size_t>(lane * kSparseWords + word)];
    const uint32_t mask = width == 32 ? ~0u : (1u << width) - 1;
    to = (to & ~(mask << place)) | (static_cast<uint32_t>(code) & mask) << place;
  };

  // Which columns of each row are stored.
  std::vector<std::vector<int>> column(16);
  for (int row = 0; row < 16; ++row) {
    for (int chunk = 0; chunk < c.k / c.chunk(); ++chunk) {
      int first = static_cast<int>(rng() % 4), second = static_cast<int>((first + 1 + rng() % 3) % 4);
      if (c.variant != ".sp" && first > second) std::swap(first, second);
      uint32_t code = static_cast<uint32_t>(first | second << 2);
      if (bits == 32) code = first % 2 == 0 ? 0b0100 : 0b1110, first %= 2;
      const Place at = metadata_of(c, row, chunk);
      put(at.row, 12, at.column, 4, code);
      const int indices[] = {first, second};
      for (int chosen = 0; chosen < c.chosen(); ++chosen) {
        const int index = indices[chosen];
        for (int i = 0; i < c.together(); ++i)
          column[static_cast<size_t>(row)].push_back(chunk * c.chunk() + index * c.together() + i);
      }
    }
    ASSERT_EQ(column[static_cast<size_t>(row)].size(), static_cast<size_t>(stored));
  }
  std::vector<std::vector<double>> a(16, std::vector<double>(static_cast<size_t>(stored)));
  std::vector<std::vector<double>> b(static_cast<size_t>(c.k), std::vector<double>(8));
  double sum[16][8];
  const int of_a = 16 * stored / each / 32, of_b = 8 * c.k / each / 32;
  const int of_c = c.d == "f16" ? 2 : 4, in_word = c.d == "f16" ? 2 : 1;
  const auto row_of_c = [&](int i) { return i >= 2 ? 8 : 0; };
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane >> 2, thread = lane % 4;
    for (int r = 0; r < of_a; ++r) {
      for (int e = 0; e < each; ++e) {
        const double v = random_value(c.a, rng);
        // Of the columns that begin at firstcol, half are stored.
        const int first = thread * 2 * each + (r >= 2 ? c.k / 2 : 0);
        a[static_cast<size_t>(group + (r % 2 ? 8 : 0))][static_cast<size_t>(first / 2 + e)] = v;
        put(lane, r, e * bits, bits, code_of(c.a, v));
      }
    }
    for (int r = 0; r < of_b; ++r) {
      for (int e = 0; e < each; ++e) {
        const double v = random_value(c.b, rng);
        b[static_cast<size_t>(r * 4 * each + thread * each + e)][static_cast<size_t>(group)] = v;
        put(lane, 4 + r, e * bits, bits, code_of(c.b, v));
      }
    }
    for (int i = 0; i < 4; ++i) {
      const double v = random_value(c.d, rng);
      sum[group + row_of_c(i)][2 * thread + i % 2] = v;
      put(lane, 8 + i / in_word, i % in_word * 16, in_word == 2 ? 16 : 32, code_of(c.d, v));
    }
  }
  Buffer<uint32_t> in(memory_, image), out(memory_, 32 * 4);
  sim::Statistics statistics;
  sim_test::Shape shape;
  shape.statistics = &statistics;
  sim_test::run_ptx(sparse_kernel(c.mnemonic(), of_a, of_b, of_c, c.selector), "k",
                    Params().add(in.address()).add(out.address()), memory_, shape);
  EXPECT_EQ(statistics.multiply_adds, static_cast<uint64_t>(16 * 8 * stored));
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const int row = (lane >> 2) + row_of_c(i), n = 2 * (lane % 4) + i % 2;
      double expected = sum[row][n];
      for (int s = 0; s < stored; ++s) {
        const int k = column[static_cast<size_t>(row)][static_cast<size_t>(s)];
        expected +=
            a[static_cast<size_t>(row)][static_cast<size_t>(s)] * b[static_cast<size_t>(k)][static_cast<size_t>(n)];
      }
      if (c.option == ".satfinite") expected = std::min(2147483647.0, std::max(-2147483648.0, expected));
      if (c.d == "s32") expected = static_cast<int32_t>(static_cast<uint32_t>(static_cast<int64_t>(expected)));
      const uint32_t word = out[static_cast<size_t>(lane * 4 + i / in_word)];
      const uint32_t code = in_word == 2 ? word >> i % 2 * 16 & 0xffff : word;
      ASSERT_EQ(value_of(c.d, code), expected) << "row " << row << ", column " << n;
    }
  }
}

// What the simulator says of a product whose metadata are these in every lane.
std::string said_of(const std::string& shape_and_types, int of_a, uint32_t metadata, const std::string& variant) {
  sim::GlobalMemory memory;
  std::vector<uint32_t> image(32 * kSparseWords);
  for (size_t lane = 0; lane < 32; ++lane) image[lane * kSparseWords + 12] = metadata;
  Buffer<uint32_t> in(memory, image), out(memory, 32 * 4);
  try {
    sim_test::run_ptx(sparse_kernel("mma" + variant + ".sync.aligned." + shape_and_types, of_a, of_a, 4, 0), "k",
                      Params().add(in.address()).add(out.address()), memory, {});
  } catch (const sim::Fault& fault) {
    return fault.what();
  }
  return "";
}

TEST(SparseWarpProductMetadata, AreJudged) {
  const std::string halves = "m16n8k16.row.col.f32.f16.f16.f32", tf32 = "m16n8k8.row.col.f32.tf32.tf32.f32",
                    nibbles = "m16n8k128.row.col.s32.s4.s4.s32";
  EXPECT_EQ(said_of(halves, 2, 0x98ed4c84, ".sp::ordered_metadata"), "");
  EXPECT_EQ(said_of(tf32, 2, 0xe4e4e4e4, ".sp"), "");
  EXPECT_THAT(
      said_of(tf32, 2, 0xe4e4ece4, ".sp"),
      HasSubstr("illegal use: the metadata 0xe4e4ece4 of a sparse mma has 0xc at bit 8, which is the index of no "
                "element"));
  for (const char* variant : {".sp", ".sp::ordered_metadata"}) {
    EXPECT_THAT(
        said_of(halves, 2, 0x98ed4c54, variant),
        HasSubstr("illegal use: the metadata 0x98ed4c54 of a sparse mma has 0x5 at bit 4, which names one column "
                  "twice"));
    EXPECT_THAT(said_of(nibbles, 4, 0xf8ed4c44, variant), HasSubstr("has 0xf at bit 28, which names one column twice"));
  }
  EXPECT_EQ(said_of(halves, 2, 0x98ed4c14, ".sp"), "");
  EXPECT_THAT(said_of(halves, 2, 0x98ed4c14, ".sp::ordered_metadata"),
              HasSubstr("has 0x1 at bit 4, and .sp::ordered_metadata wants indices that increase"));
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

// As ptxas takes them. CUTLASS writes .satfinite behind the types.
TEST(WarpProductForms, ModifiersStandInAnyOrder) {
  const std::string four = " {r0, r1, r2, r3}, {r0, r1, r2, r3}, {r4, r5}, {r0, r1, r2, r3};",
                    sparse = " {r0, r1, r2, r3}, {r0, r1, r2, r3}, {r4, r5, r6, r7}, {r0, r1, r2, r3}, r8, 0;",
                    doubles = " {d0, d1}, {d2}, {d3}, {d4, d5};";
  for (const std::string& taken : {"mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32.satfinite" + four,
                                   "mma.satfinite.aligned.m16n8k64.row.s32.s4.col.s4.sync.s32" + four,
                                   "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.xor.popc" + four,
                                   "mma.and.row.popc.sync.aligned.col.s32.b1.b1.s32.m16n8k256" + four,
                                   "mma.rz.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64" + doubles,
                                   "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64.rz" + doubles,
                                   "mma.sync.sp.aligned.m16n8k128.row.col.s32.s4.s4.s32.satfinite" + sparse,
                                   "mma.sync.aligned.m16n8k128.row.col.s32.s4.s4.s32.sp::ordered_metadata" + sparse})
    EXPECT_EQ(refusal(taken), "") << taken;
  for (const std::string& refused : {"mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.popc.xor" + four,
                                     "mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32.satfinite.satfinite" + four,
                                     "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.xor.and.popc" + four,
                                     "mma.sync.aligned.m16n8k64.row.col.row.s32.s4.s4.s32" + four,
                                     "mma.sync.aligned.m8n8k4.row.col.rn.rz.f64.f64.f64.f64" + doubles,
                                     "mma.sp.sp.sync.aligned.m16n8k128.row.col.s32.s4.s4.s32" + sparse})
    EXPECT_THAT(refusal(refused), HasSubstr("not supported in this form")) << refused;
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
  const std::string sparse =
      "mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {r0, r1, r2, r3}, {r0, r1, r2, r3}, "
      "{r4, r5, r6, r7}, {r0, r1, r2, r3}, r8, ";
  EXPECT_EQ(refusal(sparse + "1;"), "");
  EXPECT_THAT(refusal(sparse + "2;"), HasSubstr("the sparsity selector must be less than 2"));
  EXPECT_THAT(refusal(sparse + "r8;"), HasSubstr("an operand must be an integer constant and is not"));
  EXPECT_THAT(refusal(sparse.substr(0, sparse.size() - 4) + "0, 1;"), HasSubstr("the metadata are a register"));
  EXPECT_THAT(refusal(sparse + "-1;"), HasSubstr("the sparsity selector must be less than 2"));
  EXPECT_THAT(refusal("mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32" + operands),
              HasSubstr("it takes 6 operands"));
  EXPECT_THAT(refusal("mma.sp.sync.aligned.m16n8k64.row.col.f16.e4m3.e4m3.f16 {r0, r1}, {r0, r1, r2, r3}, "
                      "{r4, r5, r6, r7}, {r0, r1}, r8, 0;"),
              HasSubstr("sparse products of 8-bit floats with accumulators of f16 need sm_120a"));
  EXPECT_THAT(refusal("mma.sp.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32" + operands),
              HasSubstr("not supported in this form"));
  EXPECT_THAT(refusal("mma.sp.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32" + operands),
              HasSubstr("not supported in this form"));
  EXPECT_THAT(refusal("mma.sp.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32" + operands),
              HasSubstr("not supported in this form"));
}

}  // namespace
