// SPDX-License-Identifier: Apache-2.0
// Forms of matrix products: wgmma (PTX ISA 9.7.15) and mma.sync (9.7.14.5). Whole numbers have sums that every order
// of additions gives alike: those bits are defined. Fractions show how far the orders and roundings lie apart.
#include <algorithm>
#include <bit>
#include <cstring>

#include "tests/bits/form.h"

namespace bits {
namespace {

enum class Numbers { Whole, Fractions };

int bits_of(const std::string& type) {
  if (type == "f16" || type == "bf16") return 16;
  if (type == "tf32" || type == "f32" || type == "s32") return 32;
  if (type == "f64") return 64;
  if (type == "s4" || type == "u4") return 4;
  return type == "b1" ? 1 : 8;
}
bool is_integer(const std::string& type) { return type[0] == 's' || type[0] == 'u' || type == "b1"; }

double fraction(Random& random) { return static_cast<double>(random() >> 11) * 0x1p-52 - 1; }

// One word of elements of `type`.
uint32_t word_of(const std::string& type, Numbers numbers, Random& random) {
  if (is_integer(type)) return static_cast<uint32_t>(random());
  if (type == "tf32") {
    const double v = numbers == Numbers::Whole ? static_cast<double>(random() % 9) - 4 : fraction(random);
    return std::bit_cast<uint32_t>(static_cast<float>(v)) & 0xffffe000;
  }
  if (type == "bf16" || type == "f16") {
    uint32_t word = 0;
    for (int half = 0; half < 2; ++half) {
      const double v = numbers == Numbers::Whole ? static_cast<double>(random() % 9) - 4 : fraction(random);
      const uint32_t f = std::bit_cast<uint32_t>(static_cast<float>(v));
      // f16 of a normal value, or zero: both are exact or cut.
      const uint32_t code = type == "bf16" ? f >> 16
                            : (f & 0x7fffffff) < 0x38800000
                                ? 0
                                : (f >> 16 & 0x8000) | (((f & 0x7fffffff) - 0x38000000) >> 13);
      word |= code << 16 * half;
    }
    return word;
  }
  // e4m3: 0..4 as 0, 1, 2, 3, 4; e5m2 likewise. Fractions: any code of magnitude at most 2.
  static constexpr uint8_t kE4[] = {0x00, 0x38, 0x40, 0x44, 0x48}, kE5[] = {0x00, 0x3c, 0x40, 0x42, 0x44};
  const uint8_t* const whole = type == "e4m3" ? kE4 : kE5;
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t sign = static_cast<uint32_t>(random() & 1) << 7;
    const uint32_t code = numbers == Numbers::Whole ? whole[random() % 5] : static_cast<uint32_t>(random() % 0x41);
    word |= (sign | code) << 8 * i;
  }
  return word;
}

// Accumulators: sums of whole products and these are exact in their type.
uint32_t accumulator_of(const std::string& type, Numbers numbers, Random& random) {
  if (type == "s32") return static_cast<uint32_t>(random());
  if (type == "f16") return word_of("f16", numbers, random);
  const double v = numbers == Numbers::Whole ? static_cast<double>(random() % 2001) - 1000 : 8 * fraction(random);
  return std::bit_cast<uint32_t>(static_cast<float>(v));
}

uint8_t* put_words(uint8_t* to, size_t bytes, const std::function<uint32_t()>& word) {
  for (size_t i = 0; i < bytes; i += 4, to += 4) {
    const uint32_t w = word();
    std::memcpy(to, &w, 4);
  }
  return to;
}

std::string registers(const std::string& name, int count) {
  std::string list = "{";
  for (int i = 0; i < count; ++i) list += (i ? ", " : "") + name + std::to_string(i);
  return list + "}";
}
std::string number(uint64_t n) { return std::to_string(n); }

// What two machines may differ by. The tensor cores add products that they have aligned to the largest one and cut: f32
// accumulators keep 24 bits or more of it, those of 8-bit floats about 14.
Agreement agreement_of(const std::string& d, const std::string& a, Numbers numbers) {
  if (numbers == Numbers::Whole || d == "s32" || d == "f64") return exactly();
  const bool eight = bits_of(a) == 8;
  if (d == "f16") return within(eight ? 0x1p-6 : 0x1p-7, 0, "order and precision of the additions (9.7.15.5)");
  return within(eight ? 0x1p-7 : 0x1p-17, 0, "order and precision of the additions (9.7.15.5)");
}

// ---- wgmma ---------------------------------------------------------------------------------------

// How a matrix lies in shared memory: the fields of its descriptor (9.7.15.5.1.2.2), offset of its first byte.
struct Layout {
  const char* name;
  int swizzle;  // 0 none, 1 128, 2 64, 3 32 bytes
  uint32_t leading, stride, offset;
};
constexpr Layout kAlongK[] = {{"128-byte swizzle", 1, 16, 1024, 0},
                              {"128-byte swizzle, second step along K", 1, 16, 1024, 32},
                              {"128-byte swizzle, fourth step along K", 1, 16, 1024, 96},
                              {"64-byte swizzle", 2, 16, 512, 0},
                              {"64-byte swizzle, second step along K", 2, 16, 512, 32},
                              {"32-byte swizzle", 3, 16, 256, 0},
                              {"no swizzle, K inner", 0, 128, 256, 0},
                              {"no swizzle, K outer", 0, 4096, 128, 0},
                              {"no swizzle, apart", 0, 144, 416, 16}};
constexpr Layout kAlongMn[] = {{"128-byte swizzle", 1, 2048, 1024, 0},  {"128-byte swizzle, K outer", 1, 1024, 8192, 0},
                               {"64-byte swizzle", 2, 1024, 512, 0},    {"32-byte swizzle", 3, 512, 256, 0},
                               {"no swizzle, K inner", 0, 128, 256, 0}, {"no swizzle, K outer", 0, 8192, 128, 0}};

constexpr uint32_t kBytesA = 16384, kBytesB = 36864;

struct Wgmma {
  int n = 64;
  std::string d = "f32", a = "bf16", b = "bf16";
  std::string tail;  // after the types (.satfinite, .and.popc)
  bool registers_a = false, mn_a = false, mn_b = false;
  Layout layout_a = kAlongK[0], layout_b = kAlongK[0];
  int scale_a = 1, scale_b = 1;
  bool accumulates = true;
  int times = 1;
  Numbers numbers = Numbers::Whole;
  std::string remark;
};

void add_wgmma(Forms& forms, const Wgmma& w) {
  const int k = 256 / bits_of(w.a), count = w.d == "f16" ? w.n / 4 : w.n / 2;
  const bool floats = !is_integer(w.a), can_transpose = bits_of(w.a) == 16;
  const std::string mnemonic = "wgmma.mma_async.sync.aligned.m64n" + number(static_cast<uint64_t>(w.n)) + "k" +
                               number(static_cast<uint64_t>(k)) + "." + w.d + "." + w.a + "." + w.b + w.tail;
  Form f;
  f.family = "matrix products";
  f.name = mnemonic + (w.registers_a ? ", A in registers" : "") +
           (w.numbers == Numbers::Fractions ? ", fractions" : "") + w.remark;
  f.threads = 128;
  f.shared = kBytesA + kBytesB;
  const size_t fragments = kBytesA + kBytesB, accumulators = fragments + 128 * 16;
  f.out_bytes = 128 * static_cast<size_t>(count) * 4;
  f.in_bytes = accumulators + f.out_bytes;
  f.result = w.d == "f16" ? Kind::F16x2 : w.d == "f32" ? Kind::F32 : Kind::B32;
  f.agreement = agreement_of(w.d, w.a, w.numbers);
  f.fill = [=, bytes = f.out_bytes](Random& random, uint8_t* to) {
    to = put_words(to, kBytesA, [&] { return word_of(w.a, w.numbers, random); });
    to = put_words(to, kBytesB, [&] { return word_of(w.b, w.numbers, random); });
    to = put_words(to, 128 * 16, [&] { return word_of(w.a, w.numbers, random); });
    put_words(to, bytes, [&] { return accumulator_of(w.d, w.numbers, random); });
  };
  std::string body =
      ".reg .b32 d<" + number(static_cast<uint64_t>(count)) +
      ">, a<4>, s, at32, i, q<4>;\n"
      " .reg .b64 da, db, from, to;\n .reg .pred more, keep;\n mov.u32 s, smem;\n mad.lo.u32 at32, t, 16, s;\n"
      " mad.wide.u32 from, t, 16, in;\n mov.u32 i, 0;\nCOPY:\n"
      " ld.global.v4.b32 {q0, q1, q2, q3}, [from];\n st.shared.v4.b32 [at32], {q0, q1, q2, q3};\n"
      " add.u32 at32, at32, 2048;\n add.u64 from, from, 2048;\n add.u32 i, i, 2048;\n setp.lt.u32 more, i, " +
      number(kBytesA + kBytesB) + ";\n @more bra COPY;\n fence.proxy.async.shared::cta;\n bar.sync 0;\n";
  const auto descriptor = [&](const std::string& reg, uint32_t base, const Layout& l) {
    body += " add.u32 i, s, " + number(base + l.offset) +
            ";\n and.b32 i, i, 0x3ffff;\n shr.u32 i, i, 4;\n cvt.u64.u32 " + reg + ", i;\n or.b64 " + reg + ", " + reg +
            ", " +
            number(uint64_t{l.leading / 16} << 16 | uint64_t{l.stride / 16} << 32 |
                   static_cast<uint64_t>(l.swizzle) << 62) +
            ";\n";
  };
  descriptor("da", 0, w.layout_a);
  descriptor("db", kBytesA, w.layout_b);
  body += " mad.wide.u32 from, t, 16, in;\n add.u64 from, from, " + number(fragments) +
          ";\n ld.global.v4.b32 {a0, a1, a2, a3}, [from];\n mad.wide.u32 from, t, " +
          number(static_cast<uint64_t>(count) * 4) + ", in;\n add.u64 from, from, " + number(accumulators) +
          ";\n mad.wide.u32 to, t, " + number(static_cast<uint64_t>(count) * 4) + ", out;\n";
  for (int i = 0; i < count; ++i)
    body += " ld.global.b32 d" + number(static_cast<uint64_t>(i)) + ", [from+" + number(static_cast<uint64_t>(4 * i)) +
            "];\n";
  body += std::string(" setp.ne.u32 keep, ") + (w.accumulates ? "1" : "0") + ", 0;\n wgmma.fence.sync.aligned;\n";
  for (int time = 0; time < w.times; ++time) {
    body += " " + mnemonic + " " + registers("d", count) + ", " + (w.registers_a ? "{a0, a1, a2, a3}" : "da") +
            ", db, keep";
    if (floats) body += ", " + std::to_string(w.scale_a) + ", " + std::to_string(w.scale_b);
    if (can_transpose && !w.registers_a) body += w.mn_a ? ", 1" : ", 0";
    if (can_transpose) body += w.mn_b ? ", 1" : ", 0";
    body += ";\n";
  }
  body += " wgmma.commit_group.sync.aligned;\n wgmma.wait_group.sync.aligned 0;\n";
  for (int i = 0; i < count; ++i)
    body += " st.global.b32 [to+" + number(static_cast<uint64_t>(4 * i)) + "], d" + number(static_cast<uint64_t>(i)) +
            ";\n";
  f.body = body;
  forms.push_back(f);
}

struct Types {
  const char *d, *a, *b, *tail;
  bool every_width;
};
constexpr Types kWgmmaTypes[] = {{"f32", "bf16", "bf16", "", true},
                                 {"f32", "f16", "f16", "", false},
                                 {"f16", "f16", "f16", "", true},
                                 {"f32", "tf32", "tf32", "", false},
                                 {"f32", "e4m3", "e4m3", "", true},
                                 {"f32", "e4m3", "e5m2", "", false},
                                 {"f32", "e5m2", "e4m3", "", false},
                                 {"f32", "e5m2", "e5m2", "", false},
                                 {"f16", "e4m3", "e4m3", "", false},
                                 {"f16", "e4m3", "e5m2", "", false},
                                 {"f16", "e5m2", "e4m3", "", false},
                                 {"f16", "e5m2", "e5m2", "", false},
                                 {"s32", "s8", "s8", "", true},
                                 {"s32", "s8", "u8", "", false},
                                 {"s32", "u8", "s8", "", false},
                                 {"s32", "u8", "u8", "", false},
                                 {"s32", "s8", "s8", ".satfinite", false},
                                 {"s32", "u8", "s8", ".satfinite", false},
                                 {"s32", "s8", "u8", ".satfinite", false},
                                 {"s32", "u8", "u8", ".satfinite", false},
                                 {"s32", "b1", "b1", ".and.popc", false}};

void add_wgmma_forms(Forms& forms) {
  for (const Types& types : kWgmmaTypes) {
    Wgmma w;
    w.d = types.d, w.a = types.a, w.b = types.b, w.tail = types.tail;
    const bool integer = is_integer(w.a);
    for (int n = 8; n <= 256; n += 8) {
      if (integer && n > 32 && n % 16 != 0) continue;  // 9.7.15.2
      if (!types.every_width && n != 8 && n != 24 && n != 96 && n != 160 && n != 256) continue;
      w.n = n;
      add_wgmma(forms, w);
    }
    w.n = 96;
    w.registers_a = true;
    add_wgmma(forms, w);
    w.remark = ", accumulator not read";
    w.accumulates = false;
    add_wgmma(forms, w);
    w.registers_a = false;
    add_wgmma(forms, w);
    w.accumulates = true;
    w.remark = ", three in a group";
    w.times = 3;
    w.n = 32;
    add_wgmma(forms, w);
    w.times = 1;
    w.n = 96;
    if (!integer) {
      for (const auto& [a, b] : {std::pair(-1, 1), std::pair(1, -1), std::pair(-1, -1)}) {
        w.scale_a = a, w.scale_b = b;
        w.remark = ", A times " + std::to_string(a) + ", B times " + std::to_string(b);
        add_wgmma(forms, w);
        w.registers_a = true;
        add_wgmma(forms, w);
        w.registers_a = false;
      }
      w.scale_a = w.scale_b = 1;
      w.remark = "";
      w.numbers = Numbers::Fractions;
      w.n = 128;
      add_wgmma(forms, w);
      w.registers_a = true;
      add_wgmma(forms, w);
      w.registers_a = false;
      w.numbers = Numbers::Whole;
    }
    if (w.tail == ".satfinite") continue;
    w.n = types.every_width ? 256 : 64;
    for (const Layout& layout : kAlongK) {
      w.layout_a = w.layout_b = layout;
      w.remark = std::string(", ") + layout.name;
      add_wgmma(forms, w);
    }
    if (bits_of(w.a) != 16) continue;
    for (const Layout& layout : kAlongMn) {
      w.n = types.every_width ? 256 : 128;
      w.layout_a = w.layout_b = kAlongK[0];
      w.mn_b = true, w.layout_b = layout;
      w.remark = std::string(", B along N, ") + layout.name;
      add_wgmma(forms, w);
      w.registers_a = true;
      w.n = 72;
      add_wgmma(forms, w);
      w.registers_a = false;
      w.mn_a = true, w.layout_a = layout;
      w.remark = std::string(", A along M, B along N, ") + layout.name;
      add_wgmma(forms, w);
      w.mn_b = false, w.layout_b = kAlongK[3];
      w.remark = std::string(", A along M, ") + layout.name;
      add_wgmma(forms, w);
      w.mn_a = false;
    }
  }
}

// ---- mma.sync ------------------------------------------------------------------------------------

void add_mma(Forms& forms, int m, int n, int k, const std::string& d, const std::string& a, const std::string& b,
             const std::string& c, const std::string& tail, Numbers numbers, const std::string& orders = "row.col") {
  const auto words = [](int elements, const std::string& type) { return std::max(1, elements * bits_of(type) / 1024); };
  const bool doubles = d == "f64", quads = m == 8 && k == 4 && !doubles;  // m8n8k4 of f16 is four products
  const int of_a = quads     ? 2
                   : doubles ? m * k / 32
                             : words(m * k, a),
            of_b = quads     ? 2
                   : doubles ? n * k / 32
                             : words(n * k, b);
  const int of_c = quads ? (c == "f32" ? 8 : 4) : doubles ? m * n / 32 : words(m * n, c);
  const int of_d = quads ? (d == "f32" ? 8 : 4) : doubles ? m * n / 32 : words(m * n, d);
  const bool logical = a == "b1";
  // .satfinite follows the layouts, the operation of b1 the types.
  const std::string mnemonic = "mma.sync.aligned.m" + std::to_string(m) + "n" + std::to_string(n) + "k" +
                               std::to_string(k) + "." + orders + (logical ? "" : tail) + "." + d + "." + a + "." + b +
                               "." + c + (logical ? tail : "");
  Form f;
  f.family = "matrix products";
  f.name = mnemonic + (numbers == Numbers::Fractions ? ", fractions" : "");
  f.threads = 128;
  const int word = doubles ? 8 : 4;
  const size_t row = static_cast<size_t>(of_a + of_b + of_c) * static_cast<size_t>(word);
  f.in_bytes = 128 * row;
  f.out_bytes = 128 * static_cast<size_t>(of_d * word);
  f.result = doubles ? Kind::F64 : d == "f16" ? Kind::F16x2 : d == "f32" ? Kind::F32 : Kind::B32;
  f.agreement = agreement_of(d, a, numbers);
  if (doubles && numbers == Numbers::Fractions) f.agreement = within(0x1p-48, 0, "order of the additions (9.7.14.5)");
  f.fill = [=](Random& random, uint8_t* to) {
    for (int thread = 0; thread < 128; ++thread)
      for (int i = 0; i < of_a + of_b + of_c; ++i) {
        if (doubles) {
          const double v = numbers == Numbers::Whole ? static_cast<double>(random() % 9) - 4 : fraction(random);
          std::memcpy(to, &v, 8);
        } else {
          const uint32_t v = i < of_a          ? word_of(a, numbers, random)
                             : i < of_a + of_b ? word_of(b, numbers, random)
                                               : accumulator_of(c, numbers, random);
          std::memcpy(to, &v, 4);
        }
        to += word;
      }
  };
  const std::string reg = doubles ? ".b64" : ".b32";
  std::string body = ".reg " + reg + " a<16>, b<16>, c<16>, d<16>;\n .reg .b64 from, to;\n mad.wide.u32 from, t, " +
                     number(row) + ", in;\n mad.wide.u32 to, t, " + std::to_string(of_d * word) + ", out;\n";
  int at = 0;
  const auto load = [&](const char* name, int count) {
    for (int i = 0; i < count; ++i, at += word)
      body += " ld.global" + reg + " " + name + std::to_string(i) + ", [from+" + std::to_string(at) + "];\n";
  };
  load("a", of_a), load("b", of_b), load("c", of_c);
  body += " " + mnemonic + " " + registers("d", of_d) + ", " + registers("a", of_a) + ", " + registers("b", of_b) +
          ", " + registers("c", of_c) + ";\n";
  for (int i = 0; i < of_d; ++i)
    body += " st.global" + reg + " [to+" + std::to_string(i * word) + "], d" + std::to_string(i) + ";\n";
  f.body = body;
  forms.push_back(f);
}

void add_mma_forms(Forms& forms) {
  for (const Numbers numbers : {Numbers::Whole, Numbers::Fractions}) {
    for (const char* orders : {"row.col", "row.row", "col.col", "col.row"})
      for (const char* d : {"f16", "f32"})
        for (const char* c : {"f16", "f32"})
          if (std::string(c) == "f16" || std::string(d) == "f32")
            add_mma(forms, 8, 8, 4, d, "f16", "f16", c, "", numbers, orders);
    for (int k : {8, 16}) {
      add_mma(forms, 16, 8, k, "f32", "f16", "f16", "f32", "", numbers);
      add_mma(forms, 16, 8, k, "f16", "f16", "f16", "f16", "", numbers);
      add_mma(forms, 16, 8, k, "f32", "bf16", "bf16", "f32", "", numbers);
    }
    for (int k : {4, 8}) add_mma(forms, 16, 8, k, "f32", "tf32", "tf32", "f32", "", numbers);
    for (const char* a : {"e4m3", "e5m2"})
      for (const char* b : {"e4m3", "e5m2"})
        for (const char* d : {"f32", "f16"})
          for (int k : {16, 32}) add_mma(forms, 16, 8, k, d, a, b, d, "", numbers);
    add_mma(forms, 8, 8, 4, "f64", "f64", "f64", "f64", "", numbers);
    for (int k : {4, 8, 16}) add_mma(forms, 16, 8, k, "f64", "f64", "f64", "f64", "", numbers);
  }
  for (const char* tail : {"", ".satfinite"}) {
    for (const char* a : {"u8", "s8"})
      for (const char* b : {"u8", "s8"}) {
        add_mma(forms, 8, 8, 16, "s32", a, b, "s32", tail, Numbers::Whole);
        for (int k : {16, 32}) add_mma(forms, 16, 8, k, "s32", a, b, "s32", tail, Numbers::Whole);
      }
    for (const char* a : {"u4", "s4"})
      for (const char* b : {"u4", "s4"}) {
        add_mma(forms, 8, 8, 32, "s32", a, b, "s32", tail, Numbers::Whole);
        for (int k : {32, 64}) add_mma(forms, 16, 8, k, "s32", a, b, "s32", tail, Numbers::Whole);
      }
  }
  for (const char* op : {".xor.popc", ".and.popc"}) {
    add_mma(forms, 8, 8, 128, "s32", "b1", "b1", "s32", op, Numbers::Whole);
    for (int k : {128, 256}) add_mma(forms, 16, 8, k, "s32", "b1", "b1", "s32", op, Numbers::Whole);
  }
}

}  // namespace

void add_matrix_forms(Forms& forms) {
  add_wgmma_forms(forms);
  add_mma_forms(forms);
}

}  // namespace bits
