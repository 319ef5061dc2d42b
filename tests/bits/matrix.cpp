// SPDX-License-Identifier: Apache-2.0
// Forms of matrix products: wgmma, dense and sparse (PTX ISA 9.7.15), mma.sync (9.7.14.5), mma.sp.sync (9.7.14.6) and
// wmma (9.7.14.4). Whole numbers have sums that every order of additions gives alike: those bits are defined. Fractions
// show how far the orders and roundings lie apart.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

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

// Accumulators of s32 of which half are so near to the ends of their range that many sums pass them.
uint32_t accumulator_near_ends(const std::string& type, Numbers numbers, Random& random) {
  const uint32_t value = accumulator_of(type, numbers, random);
  if (type != "s32" || random() % 2 == 0) return value;
  return 0x80000000 + (value & 511) - 256;
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

// Which metadata a sparse matrix A has (9.7.14.6.1, 9.7.15.6.1).
enum class Indices { Rising, AnyOrder };

// One word of the metadata of elements of `type`: a pair of different indices in every four bits, of tf32 the index of
// one.
uint32_t metadata_of(const std::string& type, Indices order, Random& random) {
  static constexpr uint32_t kOfTwo[] = {0b0100, 0b1110};
  uint32_t word = 0;
  for (int bit = 0; bit < 32; bit += 4) {
    if (type == "tf32") {
      word |= kOfTwo[random() % 2] << bit;
      continue;
    }
    uint32_t first = static_cast<uint32_t>(random() % 4),
             second = (first + 1 + static_cast<uint32_t>(random() % 3)) % 4;
    if (order == Indices::Rising && first > second) std::swap(first, second);
    word |= (first | second << 2) << bit;
  }
  return word;
}

// The word with about one element in 32 infinite, of a type that has infinities.
uint32_t with_infinities(const std::string& type, uint32_t word, Random& random) {
  const int bits = bits_of(type);
  const uint32_t infinity = type == "f16" ? 0x7c00 : type == "bf16" ? 0x7f80 : type == "e5m2" ? 0x7c : 0x7f800000;
  const uint32_t magnitude = (1u << (bits - 1)) - 1;
  for (int at = 0; at < 32; at += bits)
    if (random() % 32 == 0) word = (word & ~(magnitude << at)) | infinity << at;
  return word;
}

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
  // Of .sp.
  bool sparse = false, infinite_b = false;
  int selector = 0;
  Indices indices = Indices::Rising;
};

void add_wgmma(Forms& forms, const Wgmma& w) {
  const int k = (w.sparse ? 512 : 256) / bits_of(w.a), count = w.d == "f16" ? w.n / 4 : w.n / 2;
  const bool floats = !is_integer(w.a), can_transpose = bits_of(w.a) == 16;
  const std::string mnemonic = std::string("wgmma.mma_async") + (w.sparse ? ".sp" : "") + ".sync.aligned.m64n" +
                               number(static_cast<uint64_t>(w.n)) + "k" + number(static_cast<uint64_t>(k)) + "." + w.d +
                               "." + w.a + "." + w.b + w.tail;
  Form f;
  f.family = "matrix products";
  f.name = mnemonic + (w.registers_a ? ", A in registers" : "") +
           (w.numbers == Numbers::Fractions ? ", fractions" : "") +
           (w.sparse ? ", selector " + std::to_string(w.selector) : "") +
           (w.indices == Indices::AnyOrder ? ", indices in any order" : "") +
           (w.infinite_b ? ", infinities in B" : "") + w.remark;
  f.threads = 128;
  f.shared = kBytesA + kBytesB;
  const size_t fragments = kBytesA + kBytesB, accumulators = fragments + 128 * 16;
  f.out_bytes = 128 * static_cast<size_t>(count) * 4;
  const size_t metadata = accumulators + f.out_bytes;
  f.in_bytes = metadata + (w.sparse ? 128 * 4 : 0);
  f.result = w.d == "f16" ? Kind::F16x2 : w.d == "f32" ? Kind::F32 : Kind::B32;
  f.agreement = agreement_of(w.d, w.a, w.numbers);
  f.fill = [=, bytes = f.out_bytes](Random& random, uint8_t* to) {
    to = put_words(to, kBytesA, [&] { return word_of(w.a, w.numbers, random); });
    to = put_words(to, kBytesB, [&] {
      const uint32_t word = word_of(w.b, w.numbers, random);
      return w.infinite_b ? with_infinities(w.b, word, random) : word;
    });
    to = put_words(to, 128 * 16, [&] { return word_of(w.a, w.numbers, random); });
    to = put_words(to, bytes, [&] {
      return w.sparse ? accumulator_near_ends(w.d, w.numbers, random) : accumulator_of(w.d, w.numbers, random);
    });
    if (w.sparse) put_words(to, 128 * 4, [&] { return metadata_of(w.a, w.indices, random); });
  };
  std::string body =
      ".reg .b32 d<" + number(static_cast<uint64_t>(count)) +
      ">, a<4>, s, at32, i, q<4>, e;\n"
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
  if (w.sparse) body += " mad.wide.u32 from, t, 4, in;\n ld.global.b32 e, [from+" + number(metadata) + "];\n";
  body += std::string(" setp.ne.u32 keep, ") + (w.accumulates ? "1" : "0") + ", 0;\n wgmma.fence.sync.aligned;\n";
  for (int time = 0; time < w.times; ++time) {
    body += " " + mnemonic + " " + registers("d", count) + ", " + (w.registers_a ? "{a0, a1, a2, a3}" : "da") +
            (w.sparse ? ", db, e, " + std::to_string(w.selector) + ", keep" : ", db, keep");
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

// Where B lies so that a sparse product may take 64 bytes of each of its columns.
constexpr Layout kSparseAlongK[] = {kAlongK[0], kAlongK[1], kAlongK[3], kAlongK[6], kAlongK[7], kAlongK[8]};

void add_sparse_wgmma_forms(Forms& forms) {
  for (const Types& types : kWgmmaTypes) {
    Wgmma w;
    w.d = types.d, w.a = types.a, w.b = types.b, w.tail = types.tail;
    w.sparse = true;
    if (w.a == "b1") continue;
    // Both with A in shared memory and in registers.
    const auto add = [&](const std::string& remark) {
      w.remark = remark;
      for (const bool registers : {false, true}) {
        w.registers_a = registers;
        add_wgmma(forms, w);
      }
      w.registers_a = false;
    };
    for (const int n : {8, 24, 96, 160, 256}) {
      w.n = n;
      add("");
    }
    w.n = 96;
    if (bits_of(w.a) > 8) {
      w.selector = 1;
      add("");
      w.selector = 0;
    }
    if (w.a != "tf32") {
      w.indices = Indices::AnyOrder;
      add("");
      w.indices = Indices::Rising;
    }
    w.accumulates = false;
    add(", accumulator not read");
    w.accumulates = true;
    w.times = 3;
    add(", three in a group");
    w.times = 1;
    if (!is_integer(w.a)) {
      w.scale_a = -1;
      add(", A times -1, B times 1");
      w.scale_a = 1, w.scale_b = -1;
      add(", A times 1, B times -1");
      w.scale_b = 1;
      w.numbers = Numbers::Fractions;
      add("");
      w.numbers = Numbers::Whole;
      w.infinite_b = w.b != "e4m3";
      if (w.infinite_b) add("");
      w.infinite_b = false;
    }
    if (w.tail == ".satfinite") continue;
    for (const Layout& layout : kAlongK) {
      w.layout_a = layout;
      w.remark = std::string(", A with ") + layout.name;
      add_wgmma(forms, w);
    }
    w.layout_a = kAlongK[0];
    for (const Layout& layout : kSparseAlongK) {
      w.layout_b = layout;
      add(std::string(", B with ") + layout.name);
    }
    w.layout_b = kAlongK[0];
    if (bits_of(w.a) != 16) continue;
    for (const Layout& layout : kAlongMn) {
      w.mn_b = true, w.layout_b = layout;
      add(std::string(", B along N, ") + layout.name);
      w.mn_b = false, w.layout_b = kAlongK[0];
      w.mn_a = true, w.layout_a = layout;
      w.remark = std::string(", A along M, ") + layout.name;
      add_wgmma(forms, w);
      w.mn_a = false, w.layout_a = kAlongK[0];
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

// ---- mma.sp.sync ---------------------------------------------------------------------------------

struct SparseMma {
  int k = 16;
  std::string d = "f32", a = "f16", b = "f16";
  std::string tail;  // after the layouts (.satfinite)
  bool ordered = false;
  int selector = 0;
  Indices indices = Indices::Rising;
  Numbers numbers = Numbers::Whole;
  bool infinite_b = false;
};

// How many selectors there are: one for each lane of four, each pair of lanes, or all four (9.7.14.6.1).
int selectors_of(const std::string& type, int k) {
  const int bits = bits_of(type), indices = k / 2 * bits == 128 ? 4 : 2;
  return bits <= 8 ? indices / 2 : indices;
}

void add_sparse_mma(Forms& forms, const SparseMma& s) {
  const int of_a = 16 * s.k / 2 * bits_of(s.a) / 1024, of_b = 8 * s.k * bits_of(s.a) / 1024;
  const int of_d = s.d == "f16" ? 2 : 4, words = of_a + of_b + of_d + 1;
  const std::string mnemonic = std::string("mma.sp") + (s.ordered ? "::ordered_metadata" : "") +
                               ".sync.aligned.m16n8k" + std::to_string(s.k) + ".row.col" + s.tail + "." + s.d + "." +
                               s.a + "." + s.b + "." + s.d;
  const std::string selector = std::to_string(s.selector);
  Form f;
  f.family = "matrix products";
  f.name = mnemonic + ", selector " + selector + (s.indices == Indices::AnyOrder ? ", indices in any order" : "") +
           (s.numbers == Numbers::Fractions ? ", fractions" : "") + (s.infinite_b ? ", infinities in B" : "");
  f.in_bytes = 128 * static_cast<size_t>(words) * 4;
  f.out_bytes = 128 * static_cast<size_t>(of_d) * 4;
  f.result = s.d == "f16" ? Kind::F16x2 : s.d == "f32" ? Kind::F32 : Kind::B32;
  f.agreement = agreement_of(s.d, s.a, s.numbers);
  f.fill = [=](Random& random, uint8_t* to) {
    const auto word_of_b = [&] {
      const uint32_t word = word_of(s.b, s.numbers, random);
      return s.infinite_b ? with_infinities(s.b, word, random) : word;
    };
    for (int thread = 0; thread < 128; ++thread) {
      to = put_words(to, static_cast<size_t>(of_a) * 4, [&] { return word_of(s.a, s.numbers, random); });
      to = put_words(to, static_cast<size_t>(of_b) * 4, word_of_b);
      to = put_words(to, static_cast<size_t>(of_d) * 4, [&] { return accumulator_near_ends(s.d, s.numbers, random); });
      to = put_words(to, 4, [&] { return metadata_of(s.a, s.indices, random); });
    }
  };
  std::string body = ".reg .b32 a<4>, b<4>, c<4>, d<4>, e;\n .reg .b64 from, to;\n mad.wide.u32 from, t, " +
                     std::to_string(words * 4) + ", in;\n mad.wide.u32 to, t, " + std::to_string(of_d * 4) + ", out;\n";
  int at = 0;
  const auto load = [&](const std::string& reg) {
    body += " ld.global.b32 " + reg + ", [from+" + std::to_string(at) + "];\n";
    at += 4;
  };
  for (const auto& [name, count] : {std::pair("a", of_a), std::pair("b", of_b), std::pair("c", of_d)})
    for (int i = 0; i < count; ++i) load(name + std::to_string(i));
  load("e");
  body += " " + mnemonic + " " + registers("d", of_d) + ", " + registers("a", of_a) + ", " + registers("b", of_b) +
          ", " + registers("c", of_d) + ", e, " + selector + ";\n";
  for (int i = 0; i < of_d; ++i)
    body += " st.global.b32 [to+" + std::to_string(i * 4) + "], d" + std::to_string(i) + ";\n";
  f.body = body;
  forms.push_back(f);
}

// Every selector with either spelling.
void add_sparse_selectors(Forms& forms, SparseMma s) {
  for (s.selector = 0; s.selector < selectors_of(s.a, s.k); ++s.selector) {
    s.indices = Indices::Rising;
    for (const bool ordered : {false, true}) {
      s.ordered = ordered;
      add_sparse_mma(forms, s);
    }
    if (s.a == "tf32") continue;  // has one index in a chunk
    s.indices = Indices::AnyOrder;
    s.ordered = false;
    add_sparse_mma(forms, s);
  }
}

void add_sparse_floats(Forms& forms, SparseMma s) {
  add_sparse_selectors(forms, s);
  for (const bool ordered : {false, true}) {
    s.ordered = ordered;
    s.numbers = Numbers::Fractions;
    add_sparse_mma(forms, s);
    s.numbers = Numbers::Whole;
    // What A does not store is zero, so its product with an infinity is NaN by the ISA's words.
    s.infinite_b = s.b != "e4m3";
    if (s.infinite_b) add_sparse_mma(forms, s);
    s.infinite_b = false;
  }
}

void add_sparse_mma_forms(Forms& forms) {
  SparseMma s;
  for (const char* type : {"f16", "bf16", "tf32"})
    for (const char* d : {"f32", "f16"}) {
      if (std::string(d) == "f16" && std::string(type) != "f16") continue;
      s.d = d, s.a = s.b = type;
      for (const int k : {256, 512}) {
        s.k = k / bits_of(type);
        add_sparse_floats(forms, s);
      }
    }
  s.d = "f32", s.k = 64;
  for (const char* a : {"e4m3", "e5m2"})
    for (const char* b : {"e4m3", "e5m2"}) {
      s.a = a, s.b = b;
      add_sparse_floats(forms, s);
    }
  s.d = "s32";
  for (const char* tail : {"", ".satfinite"})
    for (const int bits : {8, 4})
      for (const char* a : {"u", "s"})
        for (const char* b : {"u", "s"})
          for (const int k : {256, 512}) {
            s.tail = tail, s.k = k / bits;
            s.a = a + std::to_string(bits), s.b = b + std::to_string(bits);
            add_sparse_selectors(forms, s);
          }
}

// ---- wmma ----------------------------------------------------------------------------------------

// Fragments are the machine's own (9.7.14.4.1), so a form loads its matrices, multiplies and stores the sum.
struct Wmma {
  int m = 16, n = 16, k = 16;
  std::string d = "f32", a = "f16", b = "f16", c = "f32";
  std::string operation;  // of b1 (.xor.popc)
  std::string rounding, satfinite;
  bool row_a = true, row_b = false, row_c = true, row_d = true;
  std::string space = ".global";
  // How many elements the strides are beyond the default ones. At 0 the instructions leave their strides out.
  int apart = 0;
  bool stride_in_register = false;
  Numbers numbers = Numbers::Whole;
};

// How a matrix lies in memory.
struct Storage {
  std::string type;
  int lines, line, stride;  // elements
  size_t offset = 0;        // bytes

  size_t bytes() const { return (static_cast<size_t>(lines * stride * bits_of(type)) / 8 + 255) / 256 * 256; }
};

int wmma_registers(const std::string& type, int elements, bool factor) {
  if (type == "f64") return elements / 32;
  return factor && type == "f16" ? 8 : elements * bits_of(type) / 1024;
}

// A factor in double precision whose products with others are exact.
double short_fraction(Random& random) { return std::ldexp(static_cast<double>(random() % (1 << 27)) - (1 << 26), -26); }

void add_wmma(Forms& forms, const Wmma& w) {
  const auto storage = [&](const std::string& type, bool row, int rows, int columns) {
    const int lines = row ? rows : columns, line = row ? columns : rows;
    return Storage{type, lines, line, line + w.apart};
  };
  Storage a = storage(w.a, w.row_a, w.m, w.k), b = storage(w.b, w.row_b, w.k, w.n);
  Storage c = storage(w.c, w.row_c, w.m, w.n), d = storage(w.d, w.row_d, w.m, w.n);
  b.offset = a.bytes();
  c.offset = b.offset + b.bytes();
  d.offset = c.offset + c.bytes();
  const size_t of_warp = d.offset + d.bytes();
  const auto layout = [](bool row) { return std::string(row ? ".row" : ".col"); };
  const std::string shape = ".m" + std::to_string(w.m) + "n" + std::to_string(w.n) + "k" + std::to_string(w.k);
  const std::string factors = w.a == "f16" ? "" : "." + w.a + "." + w.b;
  const std::string mnemonic = "wmma.mma" + w.operation + ".sync.aligned" + layout(w.row_a) + layout(w.row_b) + shape +
                               w.rounding + "." + w.d + factors + "." + w.c + w.satfinite;
  Form f;
  f.family = "matrix products";
  f.name = mnemonic + ", C" + layout(w.row_c) + ", D" + layout(w.row_d) + ", " +
           (w.space.empty() ? "generic" : w.space.substr(1)) +
           (w.apart == 0 ? ""
                         : ", " + std::to_string(w.apart) + " elements between lines, stride in a " +
                               (w.stride_in_register ? "register" : "constant")) +
           (w.numbers == Numbers::Fractions ? ", fractions" : "");
  const bool shared = w.space.starts_with(".shared"), doubles = w.d == "f64";
  f.shared = shared ? static_cast<uint32_t>(4 * of_warp) : 0;
  f.in_bytes = 4 * of_warp;
  f.out_bytes = 4 * d.bytes();
  f.result = doubles ? Kind::F64 : w.d == "f16" ? Kind::F16 : w.d == "f32" ? Kind::F32 : Kind::B32;
  f.agreement = doubles ? exactly() : agreement_of(w.d, w.a, w.numbers);
  f.fill = [=](Random& random, uint8_t* to) {
    for (int warp = 0; warp < 4; ++warp) {
      if (!doubles) {
        to = put_words(to, a.bytes(), [&] { return word_of(w.a, w.numbers, random); });
        to = put_words(to, b.bytes(), [&] { return word_of(w.b, w.numbers, random); });
        to = put_words(to, c.bytes(), [&] { return accumulator_near_ends(w.c, w.numbers, random); });
        to = put_words(to, d.bytes(), [&] { return static_cast<uint32_t>(random()); });
        continue;
      }
      for (size_t i = 0; i < of_warp / 8; ++i, to += 8) {
        // Of fractions each row of A has one number, so that the sum of C and one product is all that is rounded.
        const int at = static_cast<int>(i), along = at % a.stride, across = at / a.stride;
        const int row = w.row_a ? across : along, column = w.row_a ? along : across;
        const bool zero = i < a.bytes() / 8 && column != row % w.k, of_c = i >= c.offset / 8;
        double v = static_cast<double>(random() % 9) - 4;
        if (w.numbers == Numbers::Fractions) v = zero ? 0 : of_c ? 64 * fraction(random) : short_fraction(random);
        std::memcpy(to, &v, 8);
      }
    }
  };

  std::string body =
      ".reg .b32 a<8>, b<8>, c<8>, d<8>, warp, i, sa, sb, sc, sd, q<4>, at32;\n"
      " .reg .f64 fa, fb, fc<2>, fd<2>;\n"
      " .reg .b64 from, to, at;\n .reg .pred more;\n shr.u32 warp, t, 5;\n";
  for (const auto& [name, matrix] : {std::pair("sa", a), std::pair("sb", b), std::pair("sc", c), std::pair("sd", d)})
    body += std::string(" mov.u32 ") + name + ", " + std::to_string(matrix.stride) + ";\n";
  // All threads together go over so many bytes, 16 each a step: byte i is the thread's.
  const auto loop = [&](const char* label, size_t bytes, const std::string& step) {
    body += std::string(" mul.lo.u32 i, t, 16;\n") + label + ":\n setp.lt.u32 more, i, " + number(bytes) +
            ";\n @!more bra " + label + "_END;\n" + step + " add.u32 i, i, 2048;\n bra " + label + ";\n" + label +
            "_END:\n";
  };
  const std::string add_base = " mov.u32 at32, smem;\n add.u32 at32, at32, i;\n cvt.u64.u32 at, i;\n";
  std::string base = "from", to_d = "[to]";
  if (shared) {
    loop("FILL", 4 * of_warp,
         add_base +
             " add.u64 at, at, in;\n ld.global.v4.b32 {q0, q1, q2, q3}, [at];\n"
             " st.shared.v4.b32 [at32], {q0, q1, q2, q3};\n");
    body += " bar.sync 0;\n mov.u32 at32, smem;\n mad.lo.u32 at32, warp, " + number(of_warp) + ", at32;\n";
    base = "at32";
    to_d = "[at32+" + number(d.offset) + "]";
  } else {
    body += " mad.wide.u32 from, warp, " + number(of_warp) + ", in;\n mad.wide.u32 to, warp, " + number(d.bytes()) +
            ", out;\n";
  }
  const auto stride = [&](const Storage& matrix, const char* reg) {
    if (w.apart == 0) return std::string();
    return ", " + (w.stride_in_register ? reg : std::to_string(matrix.stride));
  };
  const auto fragment = [&](const char* name, const Storage& matrix, bool factor) {
    const int count = wmma_registers(matrix.type, matrix.lines * matrix.line, factor);
    return !doubles ? registers(name, count)
           : factor ? "{" + std::string("f") + name + "}"
                    : registers(std::string("f") + name, count);
  };
  const auto load = [&](const char* name, const char* reg, const Storage& matrix, bool row, bool factor) {
    body += std::string(" wmma.load.") + name + ".sync.aligned" + layout(row) + shape + w.space + "." + matrix.type +
            " " + fragment(name, matrix, factor) + ", [" + base + "+" + number(matrix.offset) + "]" +
            stride(matrix, reg) + ";\n";
  };
  load("a", "sa", a, w.row_a, true);
  load("b", "sb", b, w.row_b, true);
  load("c", "sc", c, w.row_c, false);
  body += " " + mnemonic + " " + fragment("d", d, false) + ", " + fragment("a", a, true) + ", " +
          fragment("b", b, true) + ", " + fragment("c", c, false) + ";\n";
  body += " wmma.store.d.sync.aligned" + layout(w.row_d) + shape + w.space + "." + w.d + " " + to_d + ", " +
          fragment("d", d, false) + stride(d, "sd") + ";\n";
  if (shared) {
    body += " bar.sync 0;\n";
    // The matrices D of the warps follow each other in the output, and in shared memory they are `of_warp` apart.
    loop("DRAIN", 4 * d.bytes(),
         add_base + " div.u32 at32, i, " + number(d.bytes()) + ";\n mul.lo.u32 q0, at32, " + number(of_warp) +
             ";\n mul.lo.u32 q1, at32, " + number(d.bytes()) +
             ";\n sub.u32 q1, i, q1;\n add.u32 q0, q0, q1;\n mov.u32 at32, smem;\n add.u32 at32, at32, q0;\n"
             " add.u64 at, at, out;\n ld.shared.v4.b32 {q0, q1, q2, q3}, [at32+" +
             number(d.offset) + "];\n st.global.v4.b32 [at], {q0, q1, q2, q3};\n");
  }
  f.body = body;
  forms.push_back(f);
}

// Every layout of A and B, with C and D in either, then the other spaces and fractions.
void add_wmma_layouts(Forms& forms, Wmma w) {
  const bool bytes = bits_of(w.a) >= 8;
  // A line begins at a multiple of the fragment's size (9.7.14.4.2), which is up to 32 bytes.
  const int apart = 256 / std::min({bits_of(w.a), bits_of(w.c), bits_of(w.d)});
  for (const bool row_a : {true, false})
    for (const bool row_b : {false, true}) {
      if (!bytes && (!row_a || row_b)) continue;
      w.row_a = row_a, w.row_b = row_b;
      for (const bool row : {true, false}) {
        w.row_c = row, w.row_d = !row;
        w.space = ".global", w.apart = 0;
        add_wmma(forms, w);
        w.space = ".shared", w.apart = apart, w.stride_in_register = true;
        add_wmma(forms, w);
      }
    }
  w.row_c = w.row_d = w.row_a = true, w.row_b = false;
  w.space = "", w.stride_in_register = false;
  add_wmma(forms, w);
  w.space = ".shared::cta", w.apart = 0;
  add_wmma(forms, w);
  if (is_integer(w.a)) return;
  w.numbers = Numbers::Fractions;
  w.space = ".global";
  add_wmma(forms, w);
}

void add_wmma_forms(Forms& forms) {
  Wmma w;
  const auto types = [&](const std::string& factor, const std::string& sum) {
    w.a = w.b = factor;
    w.c = w.d = sum;
  };
  for (const auto& [m, n] : {std::pair(16, 16), std::pair(8, 32), std::pair(32, 8)}) {
    w.m = m, w.n = n, w.k = 16;
    types("f16", "f32");
    for (const char* d : {"f16", "f32"})
      for (const char* c : {"f16", "f32"}) {
        w.d = d, w.c = c;
        add_wmma_layouts(forms, w);
      }
    types("bf16", "f32");
    add_wmma_layouts(forms, w);
    for (const char* satfinite : {"", ".satfinite"})
      for (const char* factor : {"s8", "u8"}) {
        types(factor, "s32");
        w.satfinite = satfinite;
        add_wmma_layouts(forms, w);
      }
    w.satfinite = "";
  }
  w.m = w.n = 16, w.k = 8;
  types("tf32", "f32");
  add_wmma_layouts(forms, w);
  w.m = w.n = 8, w.k = 4;
  types("f64", "f64");
  for (const char* rounding : {"", ".rn", ".rz", ".rm", ".rp"}) {
    w.rounding = rounding;
    add_wmma_layouts(forms, w);
  }
  w.rounding = "", w.k = 32;
  for (const char* satfinite : {"", ".satfinite"})
    for (const char* factor : {"s4", "u4"}) {
      types(factor, "s32");
      w.satfinite = satfinite;
      add_wmma_layouts(forms, w);
    }
  w.satfinite = "", w.k = 128;
  types("b1", "s32");
  for (const char* operation : {".xor.popc", ".and.popc"}) {
    w.operation = operation;
    add_wmma_layouts(forms, w);
  }
}

}  // namespace

void add_matrix_forms(Forms& forms) {
  add_wgmma_forms(forms);
  add_sparse_wgmma_forms(forms);
  add_mma_forms(forms);
  add_sparse_mma_forms(forms);
  add_wmma_forms(forms);
}

}  // namespace bits
