// SPDX-License-Identifier: Apache-2.0
// The descriptors of tcgen05 (PTX ISA 9.7.16.4): matrices in shared memory, and the instruction descriptor of an mma.
#pragma once
#include <cstdint>
#include <string>

namespace sim {

// A matrix in shared memory (9.7.16.3, 9.7.16.4.1, 9.7.16.10.6), in pieces of 16 bytes.
struct SharedMatrix {
  enum class Swizzle : uint8_t { None = 0, B128Atom32 = 1, B128 = 2, B64 = 4, B32 = 6 };
  uint32_t start = 0, leading = 0, stride = 0, base_offset = 0;
  Swizzle swizzle = Swizzle::None;
  uint32_t wide = 1;  // pieces in a row of the swizzle atom

  // Why the descriptor is not valid on sm_100a; empty when it is.
  static std::string flaw(uint64_t descriptor);
  explicit SharedMatrix(uint64_t descriptor);

  uint32_t swizzled(uint32_t address) const {
    const uint32_t line = (address >> 7) - base_offset;
    if (swizzle == Swizzle::B128Atom32) return address ^ (line & 3) << 5;
    return address ^ (line & (wide - 1)) << 4;
  }
  // K-major: row mn, piece 0 or 1 along k, of a matrix that a sparse one is multiplied with 0 to 3.
  uint32_t k_major(uint32_t mn, uint32_t piece) const {
    return swizzled(start + mn % 8 * (16 * wide) + mn / 8 * stride + piece * (wide == 1 ? leading : 16));
  }
  // MN-major: piece along mn of row k.
  uint32_t mn_major(uint32_t piece, uint32_t k) const {
    if (wide == 1) return start + piece * stride + k % 8 * 16 + k / 8 * leading;
    const uint32_t rows = swizzle == Swizzle::B128Atom32 ? 4 : 8;
    return swizzled(start + piece % wide * 16 + piece / wide * leading + k % rows * (16 * wide) + k / rows * stride);
  }
};

enum class MmaKind : uint8_t { F16, TF32, F8F6F4, I8, MXF8F6F4, MXF4, MXF4NVF4 };
inline bool is_scaled(MmaKind kind) { return kind >= MmaKind::MXF8F6F4; }
const char* mma_kind_name(MmaKind kind);

enum class MmaElement : uint8_t { F16, BF16, TF32, E4M3, E5M2, E2M3, E3M2, E2M1, E2M1Packed, S8, U8 };
inline int element_bits(MmaElement e) {  // as it stands in shared memory, padding included
  return e <= MmaElement::BF16 ? 16 : e == MmaElement::TF32 ? 32 : e == MmaElement::E2M1Packed ? 4 : 8;
}
enum class MmaResult : uint8_t { F32, F16, S32 };

// 9.7.16.4.2, tables 42 to 44, with the shapes of table 39.
struct MmaShape {
  int m = 0, n = 0, k = 0;
  MmaElement a = MmaElement::F16, b = MmaElement::F16;
  MmaResult result = MmaResult::F32;
  bool negate_a = false, negate_b = false, transpose_a = false, transpose_b = false, saturate = false;
  bool scale_e8m0 = false;
  uint8_t scale_a_id = 0, scale_b_id = 0;
  bool sparse = false;
  uint8_t selector = 0;  // of the columns with the metadata of a sparse matrix A
};
// How many elements of that type 32 bytes of a row hold, which is how much an instruction reads of a dense one.
inline int elements_of_32_bytes(MmaElement e) { return 256 / element_bits(e); }
// Returns why the descriptor is not valid; empty when `shape` is filled. scale_vector: 1, 2, 4, or 0 without scaling.
std::string decode_mma_shape(uint32_t bits, MmaKind kind, int group, bool ws, bool sparse, int scale_vector,
                             MmaShape* shape);

}  // namespace sim
