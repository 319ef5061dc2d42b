// SPDX-License-Identifier: Apache-2.0
// The descriptors of tcgen05 bit by bit: what the tables of PTX ISA 9.7.16.4 allow, and what is said of the rest.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "sim/tcgen05/descriptor.h"

namespace {

using sim::MmaElement;
using sim::MmaKind;
using sim::MmaResult;
using sim::MmaShape;
using sim::SharedMatrix;

// Table 40.
TEST(Tcgen05Descriptor, OfAMatrixInSharedMemory) {
  constexpr uint64_t kPlain = uint64_t{1} << 46;
  EXPECT_EQ(SharedMatrix::flaw(kPlain), "");
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t changed = kPlain ^ uint64_t { 1 } << bit;
    std::string said;
    if (bit >= 46 && bit < 49) said = "bits 46 to 48 of a shared memory descriptor must be 0b001";
    if (bit == 52)
      said = "a shared memory descriptor with an absolute leading dimension address (bit 52) needs sm_103a";
    if (bit >= 53 && bit < 61) said = "bits 53 to 60 of a shared memory descriptor must be 0";
    EXPECT_EQ(SharedMatrix::flaw(changed), said) << bit;
  }
  for (const auto& [mode, wide] :
       std::map<uint64_t, uint32_t>{{0, 1}, {1, 8}, {2, 8}, {3, 0}, {4, 4}, {5, 0}, {6, 2}, {7, 0}}) {
    const std::string said =
        wide > 0 ? "" : "swizzling mode " + std::to_string(mode) + " of a shared memory descriptor does not exist";
    EXPECT_EQ(SharedMatrix::flaw(kPlain | mode << 61), said);
    if (wide == 0) continue;
    const SharedMatrix m(kPlain | mode << 61 | 0x2345 | uint64_t{0x1234} << 16 | uint64_t{0x3456} << 32 |
                         uint64_t{5} << 49);
    EXPECT_EQ(m.start, 0x23450u);
    EXPECT_EQ(m.leading, 0x12340u);
    EXPECT_EQ(m.stride, 0x34560u);
    EXPECT_EQ(m.base_offset, 5u);
    EXPECT_EQ(m.wide, wide);
    EXPECT_EQ(static_cast<uint64_t>(m.swizzle), mode);
  }
}

struct Kind {
  MmaKind kind;
  std::string name;
  int k;
  std::map<uint32_t, MmaElement> elements;
  std::set<int> scale_vectors;  // empty: without scale factors
};
const std::vector<Kind>& kinds() {
  using E = MmaElement;
  static const std::map<uint32_t, E> kBytes = {{0, E::E4M3}, {1, E::E5M2}, {3, E::E2M3}, {4, E::E3M2}, {5, E::E2M1}};
  static const std::vector<Kind> all = {
      {MmaKind::F16, "f16", 16, {{0, E::F16}, {1, E::BF16}}, {}},
      {MmaKind::TF32, "tf32", 8, {{2, E::TF32}}, {}},
      {MmaKind::F8F6F4, "f8f6f4", 32, kBytes, {}},
      {MmaKind::I8, "i8", 32, {{0, E::U8}, {1, E::S8}}, {}},
      {MmaKind::MXF8F6F4, "mxf8f6f4", 32, kBytes, {1}},
      {MmaKind::MXF4, "mxf4", 64, {{1, E::E2M1Packed}}, {2}},
      {MmaKind::MXF4NVF4, "mxf4nvf4", 64, {{1, E::E2M1Packed}}, {2, 4}},
  };
  return all;
}
bool is_four(const Kind& kind) { return kind.k == 64; }

// A valid descriptor: 128 by 128, of the first type that the kind has, float32 or integer sums.
uint32_t plain(const Kind& kind) {
  const uint32_t type = kind.elements.begin()->first;
  if (!kind.scale_vectors.empty()) return type << 7 | type << 10 | 16u << 17 | 1u << 23 | 1u << 27;
  return (kind.kind == MmaKind::I8 ? 2u : 1u) << 4 | type << 7 | type << 10 | 16u << 17 | 8u << 24;
}
int vector_of(const Kind& kind) { return kind.scale_vectors.empty() ? 0 : *kind.scale_vectors.begin(); }
std::string flaw(const Kind& kind, uint32_t bits, int group = 1, bool ws = false, int scale_vector = -1,
                 MmaShape* shape = nullptr, bool sparse = false) {
  MmaShape own;
  return sim::decode_mma_shape(bits, kind.kind, group, ws, sparse, scale_vector < 0 ? vector_of(kind) : scale_vector,
                               shape != nullptr ? shape : &own);
}

TEST(Tcgen05Descriptor, TypesOfEveryKind) {
  for (const Kind& kind : kinds()) {
    EXPECT_STREQ(sim::mma_kind_name(kind.kind), kind.name.c_str());
    // Matrix B of 4 bits has a field of two bits, above which a bit is reserved.
    const uint32_t b_codes = is_four(kind) ? 4 : 8;
    for (uint32_t a = 0; a < 8; ++a) {
      for (uint32_t b = 0; b < b_codes; ++b) {
        const uint32_t bits = (plain(kind) & ~(63u << 7)) | a << 7 | b << 10;
        const auto in_a = kind.elements.find(a), in_b = kind.elements.find(b);
        std::string said;
        if (in_a == kind.elements.end())
          said = "matrix A type " + std::to_string(a) + " is not valid for .kind::" + kind.name;
        else if (in_b == kind.elements.end())
          said = "matrix B type " + std::to_string(b) + " is not valid for .kind::" + kind.name;
        else if (kind.kind == MmaKind::F16 && a != b)
          said = "matrices A and B of .kind::f16 must have one type";
        MmaShape shape;
        EXPECT_EQ(flaw(kind, bits, 1, false, -1, &shape), said) << kind.name << a << b;
        if (!said.empty()) continue;
        EXPECT_EQ(shape.a, in_a->second);
        EXPECT_EQ(shape.b, in_b->second);
        EXPECT_EQ(shape.k, kind.k);
        EXPECT_EQ(shape.m, 128);
        EXPECT_EQ(shape.n, 128);
      }
    }
  }
}

TEST(Tcgen05Descriptor, ResultsOfEveryKind) {
  for (const Kind& kind : kinds()) {
    if (!kind.scale_vectors.empty()) continue;
    for (const uint32_t type : {0u, 1u}) {
      if (kind.elements.count(type) == 0) continue;
      for (uint32_t d = 0; d < 4; ++d) {
        std::map<uint32_t, MmaResult> results = {{1, MmaResult::F32}};
        if (kind.kind == MmaKind::I8) results = {{2, MmaResult::S32}};
        if (kind.kind == MmaKind::F8F6F4 || (kind.kind == MmaKind::F16 && type == 0)) results[0] = MmaResult::F16;
        const uint32_t bits = (plain(kind) & ~(3u << 4 | 63u << 7)) | d << 4 | type << 7 | type << 10;
        MmaShape shape;
        EXPECT_EQ(
            flaw(kind, bits, 1, false, -1, &shape),
            results.count(d) ? "" : "matrix D type " + std::to_string(d) + " is not valid for .kind::" + kind.name);
        if (results.count(d)) {
          EXPECT_EQ(shape.result, results[d]);
        }
      }
    }
  }
  const Kind& tf32 = kinds()[1];
  EXPECT_EQ(flaw(tf32, plain(tf32) ^ 1u << 4), "matrix D type 0 is not valid for .kind::tf32");
}

// Bits that say something on their own, each in every kind.
TEST(Tcgen05Descriptor, FlagsOfEveryKind) {
  const auto reserved = [](int low) {
    return "reserved bits from " + std::to_string(low) + " of the instruction descriptor must be 0";
  };
  for (const Kind& kind : kinds()) {
    const bool scaled = !kind.scale_vectors.empty(), four = is_four(kind), integers = kind.kind == MmaKind::I8;
    for (int bit = 0; bit < 32; ++bit) {
      if ((bit >= 7 && bit < 12) || (bit >= 17 && bit < 23)) continue;  // types and N have tests of their own
      MmaShape shape;
      std::string said;
      if (bit == 2) said = "the instruction descriptor says sparse, the instruction is dense";
      if (bit == 6 || (bit == 12 && four)) said = reserved(bit);
      if (bit == 12 && !four) continue;
      if (integers && (bit == 13 || bit == 14)) said = "negation is not valid for .kind::i8";
      if (four && (bit == 15 || bit == 16)) said = "transposition is not valid for .kind::" + kind.name;
      if (scaled) {
        if (bit == 0 || bit == 1) said = reserved(0);
        if (bit == 3) said = reserved(3);
        if (bit == 23 && kind.kind == MmaKind::MXF4NVF4) said = "UE4M3 scales need .scale_vec::4X or .block16";
        if (bit == 23 && kind.kind != MmaKind::MXF4NVF4) said = "the scale type must be UE8M0 for .kind::" + kind.name;
        if (bit >= 24 && bit < 27) said = reserved(24);
        if (bit == 27)
          said =
              "shape 0x128x" + std::to_string(kind.k) + " is not valid for .kind::" + kind.name + " with .cta_group::1";
        if (bit == 28)
          said = "shape 384x128x" + std::to_string(kind.k) + " is not valid for .kind::" + kind.name +
                 " with .cta_group::1";
        if (four && (bit == 4 || bit == 29))
          said = std::string("scale factor ids ") + (bit == 29 ? "1 and 0" : "0 and 1") +
                 " are not valid for .scale_vec::2X";
        if (bit == 31) said = four ? "K = 96 needs sm_103a" : "bit 31 of the instruction descriptor must be 0";
      } else {
        if (bit == 3 && !integers) said = "saturation is only valid for .kind::i8";
        if (bit == 4 || bit == 5) continue;  // the type of D
        if (bit == 23 || bit == 29) said = reserved(bit);
        if (bit >= 24 && bit < 29) continue;  // M
        if (bit >= 30) said = "the maximum shift of the instruction descriptor is for .ws only";
      }
      EXPECT_EQ(flaw(kind, plain(kind) ^ 1u << bit, 1, false, -1, &shape), said) << kind.name << " bit " << bit;
      if (!said.empty()) continue;
      EXPECT_EQ(shape.negate_a, bit == 13);
      EXPECT_EQ(shape.negate_b, bit == 14);
      EXPECT_EQ(shape.transpose_a, bit == 15);
      EXPECT_EQ(shape.transpose_b, bit == 16);
      EXPECT_EQ(shape.saturate, bit == 3);
      EXPECT_EQ(shape.scale_e8m0, scaled);
      EXPECT_EQ(shape.scale_b_id, scaled && bit == 4 ? 1 : scaled && bit == 5 ? 2 : 0);
      EXPECT_EQ(shape.scale_a_id, scaled && bit == 29 ? 1 : scaled && bit == 30 ? 2 : 0);
    }
    for (const bool ws : {false, true}) {
      if (scaled) continue;
      EXPECT_EQ(flaw(kind, plain(kind) | 3u << 30, 1, ws),
                ws ? "" : "the maximum shift of the instruction descriptor is for .ws only");
    }
  }
}

TEST(Tcgen05Descriptor, ScalesOfEveryVector) {
  for (const Kind& kind : kinds()) {
    for (const int vector : kind.scale_vectors) {
      for (uint32_t a = 0; a < 4; ++a) {
        for (uint32_t b = 0; b < 4; ++b) {
          for (const bool e8m0 : {false, true}) {
            const uint32_t bits = (plain(kind) & ~(1u << 23)) | b << 4 | a << 29 | uint32_t{e8m0} << 23;
            const bool aligned = vector == 1 || (vector == 2 && a % 2 + b % 2 == 0) || (vector == 4 && a + b == 0);
            std::string said;
            if (!e8m0 && kind.kind != MmaKind::MXF4NVF4)
              said = "the scale type must be UE8M0 for .kind::" + kind.name;
            else if (!e8m0 && vector != 4)
              said = "UE4M3 scales need .scale_vec::4X or .block16";
            else if (!aligned)
              said = "scale factor ids " + std::to_string(a) + " and " + std::to_string(b) +
                     " are not valid for .scale_vec::" + std::to_string(vector) + "X";
            MmaShape shape;
            EXPECT_EQ(flaw(kind, bits, 1, false, vector, &shape), said) << kind.name;
            if (!said.empty()) continue;
            EXPECT_EQ(shape.scale_a_id, a);
            EXPECT_EQ(shape.scale_b_id, b);
            EXPECT_EQ(shape.scale_e8m0, e8m0);
          }
        }
      }
    }
  }
}

// Table 39.
TEST(Tcgen05Descriptor, ShapesOfEveryKind) {
  for (const Kind& kind : kinds()) {
    const bool scaled = !kind.scale_vectors.empty(), integers = kind.kind == MmaKind::I8;
    for (int group = 1; group <= 2; ++group) {
      for (const auto& [ws, sparse] : {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
        if (ws && (scaled || group == 2)) continue;
        const int k = sparse ? 2 * kind.k : kind.k;
        const int m_step = scaled ? 128 : 16;
        for (int m = 0; m < (scaled ? 4 : 32) * m_step; m += m_step) {
          for (int n = 0; n < 512; n += 8) {
            const auto steps = [&](int low, int step) { return n >= low && n <= 256 && n % step == 0; };
            bool fits;
            if (ws)
              fits = (m == 32 || m == 64 || m == 128) && (n == 64 || n == 128 || (n == 256 && !sparse));
            else if (group == 1)
              fits =
                  (m == 128 || (m == 64 && !scaled)) && (integers ? n == 8 || n == 24 || steps(16, 16) : steps(8, 8));
            else
              fits = ((m == 128 && !(scaled && sparse)) || m == 256) && (integers ? steps(32, 32) : steps(16, 16));
            const uint32_t size = static_cast<uint32_t>(m / m_step) << (scaled ? 27 : 24) | static_cast<uint32_t>(n / 8)
                                                                                                << 17;
            const uint32_t bits =
                (plain(kind) & ~(63u << 17 | (scaled ? 3u << 27 : 31u << 24))) | size | uint32_t{sparse} << 2;
            const std::string said = "shape " + std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) +
                                     " is not valid for .kind::" + kind.name +
                                     " with .cta_group::" + std::to_string(group) + (ws ? ".ws" : "") +
                                     (sparse ? " and a sparse matrix A" : "");
            MmaShape shape;
            ASSERT_EQ(flaw(kind, bits, group, ws, -1, &shape, sparse), fits ? "" : said);
            if (!fits) continue;
            EXPECT_EQ(shape.k, k);
            EXPECT_EQ(shape.m, m);
            EXPECT_EQ(shape.n, n);
          }
        }
      }
    }
  }
}

// Matrices of bytes are transposed in pieces of 16, those of 4 and 6 bits not at all.
TEST(Tcgen05Descriptor, TransposedMatrices) {
  for (const Kind& kind : kinds()) {
    if (is_four(kind)) continue;
    for (const auto& [code, element] : kind.elements) {
      const bool padded = code >= 3 && kind.k == 32, bytes = kind.k == 32;
      for (const bool b : {false, true}) {
        for (int group = 1; group <= 2; ++group) {
          for (uint32_t n = 16u * static_cast<uint32_t>(group); n <= 256; n += 8u * static_cast<uint32_t>(group)) {
            const bool integers = kind.kind == MmaKind::I8;
            if (integers && n % (16 * static_cast<uint32_t>(group)) != 0) continue;
            const uint32_t bits =
                (plain(kind) & ~(63u << 7 | 63u << 17)) | code << 7 | code << 10 | n / 8 << 17 | 1u << (b ? 16 : 15);
            std::string said;
            if (padded)
              said = "transposition is not valid for types of 4 and 6 bits";
            else if (b && bytes && n % (16 * static_cast<uint32_t>(group)) != 0)
              said = "N = " + std::to_string(n) + " is not valid for a transposed matrix B of 8-bit elements";
            EXPECT_EQ(flaw(kind, bits, group), said) << kind.name << " " << code << " " << n;
          }
        }
      }
    }
  }
}

}  // namespace
