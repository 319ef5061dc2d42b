// SPDX-License-Identifier: Apache-2.0
// Random operands, scalar kernels and the list of all families.
#include "tests/bits/form.h"

#include <bit>
#include <cstring>

namespace bits {
namespace {

template <size_t n>
uint64_t pick(const uint64_t (&values)[n], Random& random) {
  return values[random() % n];
}

constexpr uint64_t kInteger64[] = {0,
                                   1,
                                   2,
                                   3,
                                   0x7f,
                                   0x80,
                                   0xff,
                                   0x7fff,
                                   0x8000,
                                   0xffff,
                                   0x7fffffff,
                                   0x80000000,
                                   0xffffffff,
                                   0x100000000,
                                   0x7fffffffffffffff,
                                   0x8000000000000000,
                                   0xffffffffffffffff,
                                   0xfffffffffffffffe,
                                   0xaaaaaaaaaaaaaaaa,
                                   0x5555555555555555};
constexpr uint64_t kFloat16[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x83ff, 0x0400, 0x8400, 0x3c00,
                                 0xbc00, 0x3c01, 0x3bff, 0x3800, 0x4000, 0x7bff, 0xfbff, 0x7c00, 0xfc00,
                                 0x7fff, 0x7e00, 0x7c01, 0xfe00, 0x6400, 0x6401, 0x5bff, 0x77ff};
constexpr uint64_t kBfloat16[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x807f, 0x0080, 0x8080, 0x3f80,
                                  0xbf80, 0x3f81, 0x3f7f, 0x3f00, 0x4000, 0x7f7f, 0xff7f, 0x7f80, 0xff80,
                                  0x7fff, 0x7fc0, 0x7f81, 0xffc0, 0x4300, 0x4f00, 0x5f00, 0x7e80};
constexpr uint64_t kFloat32[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x807fffff, 0x00800000, 0x80800000, 0x3f800000,
    0xbf800000, 0x3f800001, 0x3f7fffff, 0x3f000000, 0xbf000000, 0x3fc00000, 0x40200000, 0x40000000, 0x7f7fffff,
    0xff7fffff, 0x7f800000, 0xff800000, 0x7fffffff, 0x7fc00000, 0x7f800001, 0xffc00000, 0x4b000000, 0x4b800000,
    0x4f000000, 0xcf000000, 0x5f000000, 0xdf000000, 0x4effffff, 0x477fe000, 0x477ff000, 0x33800000, 0x38800000,
    0x43e00000, 0x43e80000, 0x47600000, 0x3b000000, 0x7e800000, 0x7f000000, 0x00400000, 0x0d800000, 0x3f801000,
    0xbf803000, 0x3f801001, 0x3f808000};  // ties of tf32 and bf16
constexpr uint64_t kFloat64[] = {0x0000000000000000, 0x8000000000000000, 0x0000000000000001, 0x8000000000000001,
                                 0x000fffffffffffff, 0x0010000000000000, 0x8010000000000000, 0x3ff0000000000000,
                                 0xbff0000000000000, 0x3ff0000000000001, 0x3fefffffffffffff, 0x3fe0000000000000,
                                 0xbfe0000000000000, 0x3ff8000000000000, 0x4004000000000000, 0x4000000000000000,
                                 0x7fefffffffffffff, 0xffefffffffffffff, 0x7ff0000000000000, 0xfff0000000000000,
                                 0x7fffffffffffffff, 0x7ff8000000000000, 0x7ff0000000000001, 0xfff8000000000000,
                                 0x4330000000000000, 0x41dfffffffc00000, 0x41e0000000000000, 0xc1e0000000000000,
                                 0x43e0000000000000, 0xc3e0000000000000, 0x43f0000000000000, 0x36a0000000000000,
                                 0x380fffffffffffff, 0x47efffffefffffff, 0x47f0000000000000, 0x3690000000000000};

// A float of random sign and mantissa whose exponent is within `spread` of the middle.
uint64_t moderate(int exponent_bits, int mantissa_bits, int spread, Random& random) {
  const uint64_t bias = (uint64_t{1} << (exponent_bits - 1)) - 1;
  const uint64_t exponent = bias - static_cast<uint64_t>(spread) + random() % (2 * static_cast<uint64_t>(spread) + 1);
  const uint64_t mantissa = random() & ((uint64_t{1} << mantissa_bits) - 1);
  return (random() & 1) << (exponent_bits + mantissa_bits) | exponent << mantissa_bits | mantissa;
}

uint64_t integer(int bits, Random& random, size_t index) {
  uint64_t value = random();
  if (index % 4 == 0)
    value = pick(kInteger64, random);
  else if (index % 4 == 1)
    value = static_cast<uint64_t>(static_cast<int64_t>(random()) >> (random() % 64));
  return bits == 64 ? value : value & ((uint64_t{1} << bits) - 1);
}

template <size_t n>
uint64_t floating(const uint64_t (&specials)[n], int exponent_bits, int mantissa_bits, int spread, Random& random,
                  size_t index) {
  const int bits = 1 + exponent_bits + mantissa_bits;
  if (index < n * n)
    return random() % 8 != 0 ? pick(specials, random) : moderate(exponent_bits, mantissa_bits, spread, random);
  if (index % 4 == 0) return bits == 64 ? random() : random() & ((uint64_t{1} << bits) - 1);
  return moderate(exponent_bits, mantissa_bits, spread, random);
}

uint64_t bounded_float(float limit, Random& random, size_t index) {
  constexpr uint64_t kSpecials[] = {0,          0x80000000, 1,          0x80000001, 0x007fffff, 0x00800000,
                                    0x7f800000, 0xff800000, 0x7fffffff, 0x3f800000, 0x3fc90fdb, 0x40490fdb};
  if (index < 64) return pick(kSpecials, random);
  const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
  return std::bit_cast<uint32_t>(static_cast<float>((2 * unit - 1) * limit));
}

const char* register_of(Kind kind) {
  switch (kind) {
    case Kind::B16:
    case Kind::NonZero16:
    case Kind::F16:
    case Kind::BF16:
      return ".b16";
    case Kind::B64:
    case Kind::NonZero64:
    case Kind::F64:
      return ".b64";
    case Kind::Pred:
      return ".pred";
    default:
      return ".b32";
  }
}

}  // namespace

int bytes_of(Kind kind) {
  switch (kind) {
    case Kind::B16:
    case Kind::NonZero16:
    case Kind::F16:
    case Kind::BF16:
      return 2;
    case Kind::B64:
    case Kind::NonZero64:
    case Kind::F64:
      return 8;
    case Kind::B128:
      return 16;
    default:
      return 4;
  }
}

uint64_t value_of(Kind kind, Random& random, size_t index) {
  switch (kind) {
    case Kind::B16:
      return integer(16, random, index);
    case Kind::B8:
    case Kind::B32:
      return integer(32, random, index);
    case Kind::B64:
    case Kind::B128:
      return integer(64, random, index);
    case Kind::NonZero16: {
      const uint64_t v = integer(16, random, index);
      return v == 0 ? 3 : v;
    }
    case Kind::NonZero32: {
      const uint64_t v = integer(32, random, index);
      return v == 0 ? 3 : v;
    }
    case Kind::NonZero64: {
      const uint64_t v = integer(64, random, index);
      return v == 0 ? 3 : v;
    }
    case Kind::Count:
      return random() % 16 == 0 ? integer(32, random, index) : random() % 72;
    case Kind::Carry:
    case Kind::Pred:
      return random() & 1;
    case Kind::F16:
      return floating(kFloat16, 5, 10, 6, random, index % 1024);
    case Kind::BF16:
      return floating(kBfloat16, 8, 7, 6, random, index % 1024);
    case Kind::F16x2:
      return floating(kFloat16, 5, 10, 6, random, index) | floating(kFloat16, 5, 10, 6, random, index) << 16;
    case Kind::BF16x2:
      return floating(kBfloat16, 8, 7, 6, random, index) | floating(kBfloat16, 8, 7, 6, random, index) << 16;
    case Kind::F32:
      return index < 400 ? floating(kFloat32, 8, 23, 20, random, 0)
                         : floating(kFloat32, 8, 23, 20, random, 1 << 20 | index);
    case Kind::F64:
      return index < 400 ? floating(kFloat64, 11, 52, 40, random, 0)
                         : floating(kFloat64, 11, 52, 40, random, 1 << 20 | index);
    case Kind::Small32:
      return index < 300 ? pick(kFloat32, random)
                         : moderate(8, 23, 19, random) & (index % 2 ? 0xffffffff : 0xffe00000 >> random() % 4);
    case Kind::Angle32:
      return bounded_float(6.2831f, random, index);
    case Kind::Wide32:
      return bounded_float(314.159f, random, index);
  }
  return 0;
}

Agreement exactly() { return {}; }
Agreement exactly_with_nan() {
  Agreement a;
  a.nan_bits = true;
  return a;
}
Agreement within_ulps(double ulps, const std::string& note) {
  Agreement a;
  a.defined = false;
  a.ulps = ulps;
  a.note = note;
  return a;
}
Agreement within(double absolute, double relative, const std::string& note) {
  Agreement a;
  a.defined = false;
  a.absolute = absolute;
  a.relative = relative;
  a.note = note;
  return a;
}

uint64_t seed_of(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

std::string fill_template(std::string text, const std::vector<std::pair<std::string, std::string>>& values) {
  for (const auto& [name, value] : values)
    for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + value.size()))
      text.replace(at, name.size(), value);
  return text;
}

void add_scalar(Forms& forms, const std::string& family, const std::string& name, const std::string& text,
                const std::vector<Kind>& results, const std::vector<Kind>& operands, const Agreement& agreement) {
  static const char* kResults[] = {"d", "e", "f", "g"};
  static const char* kOperands[] = {"a", "b", "c", "h", "i", "j"};
  Form form;
  form.family = family;
  form.name = name;
  form.threads = 128;
  form.blocks = kScalarThreads / form.threads;
  form.result = results[0];
  form.operands = operands;
  form.agreement = agreement;
  std::string declare = ".reg .b64 at;\n .reg .b32 bit;\n", load, store, instruction = name + " d";
  size_t in = 0, out = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    const std::string reg = kOperands[i];
    const int bytes = bytes_of(operands[i]);
    declare += std::string(" .reg ") + register_of(operands[i]) + " " + reg + ";\n";
    load += " mad.wide.u32 at, t, " + std::to_string(bytes) + ", in;\n";
    const std::string from = "[at+" + std::to_string(in) + "]";
    if (operands[i] == Kind::Pred)
      load += " ld.global.b32 bit, " + from + ";\n setp.ne.u32 " + reg + ", bit, 0;\n";
    else
      load += " ld.global.b" + std::to_string(bytes * 8) + " " + reg + ", " + from + ";\n";
    in += static_cast<size_t>(bytes) * kScalarThreads;
    instruction += ", " + reg;
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const std::string reg = kResults[i];
    const int bytes = bytes_of(results[i]);
    declare += std::string(" .reg ") + register_of(results[i]) + " " + reg + ";\n";
    store += " mad.wide.u32 at, t, " + std::to_string(bytes) + ", out;\n";
    const std::string to = "[at+" + std::to_string(out) + "]";
    if (results[i] == Kind::Pred)
      store += " selp.b32 bit, 1, 0, " + reg + ";\n st.global.b32 " + to + ", bit;\n";
    else
      store += " st.global.b" + std::to_string(bytes * 8) + " " + to + ", " + reg + ";\n";
    out += static_cast<size_t>(bytes) * kScalarThreads;
  }
  form.in_bytes = in;
  form.out_bytes = out;
  form.body = declare + load + " " + (text.empty() ? instruction + ";" : text) + "\n" + store;
  form.fill = [operands](Random& random, uint8_t* to) {
    for (Kind kind : operands)
      for (size_t i = 0; i < kScalarThreads; ++i) {
        const uint64_t value = value_of(kind, random, i);
        std::memcpy(to, &value, static_cast<size_t>(bytes_of(kind)));
        to += bytes_of(kind);
      }
  };
  forms.push_back(form);
}

Forms all_forms() {
  Forms forms;
  add_scalar_forms(forms);
  add_conversion_forms(forms);
  add_warp_forms(forms);
  add_memory_forms(forms);
  add_matrix_forms(forms);
  add_copy_forms(forms);
  return forms;
}

}  // namespace bits
