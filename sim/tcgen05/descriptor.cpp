// SPDX-License-Identifier: Apache-2.0
#include "sim/tcgen05/descriptor.h"

namespace sim {

std::string SharedMatrix::flaw(uint64_t descriptor) {
  const auto field = [&](int low, int bits) { return descriptor >> low & ((1ull << bits) - 1); };
  if (field(46, 3) != 1) return "bits 46 to 48 of a shared memory descriptor must be 0b001";
  if (field(52, 1) != 0)
    return "a shared memory descriptor with an absolute leading dimension address (bit 52) needs sm_103a";
  if (field(53, 8) != 0) return "bits 53 to 60 of a shared memory descriptor must be 0";
  const uint64_t mode = field(61, 3);
  if (mode == 3 || mode == 5 || mode == 7)
    return "swizzling mode " + std::to_string(mode) + " of a shared memory descriptor does not exist";
  return "";
}

SharedMatrix::SharedMatrix(uint64_t descriptor)
    : start(static_cast<uint32_t>(descriptor & 0x3fff) << 4),
      leading(static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4),
      stride(static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4),
      base_offset(static_cast<uint32_t>(descriptor >> 49 & 7)),
      swizzle(static_cast<Swizzle>(descriptor >> 61)) {
  constexpr uint32_t kWide[] = {1, 8, 8, 0, 4, 0, 2, 0};
  wide = kWide[descriptor >> 61];
}

const char* mma_kind_name(MmaKind kind) {
  static const char* const kNames[] = {"f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4"};
  return kNames[static_cast<int>(kind)];
}

namespace {

// Whether N is a multiple of `step` that is not 0 and at most 256.
bool in_steps(int n, int step) { return n >= step && n <= 256 && n % step == 0; }

bool shape_fits(const MmaShape& s, MmaKind kind, int group, bool ws) {
  if (ws) return (s.m == 32 || s.m == 64 || s.m == 128) && (s.n == 64 || s.n == 128 || (s.n == 256 && !s.sparse));
  if (group == 1) {
    if (s.m != 128 && (s.m != 64 || is_scaled(kind))) return false;
    if (kind == MmaKind::I8) return s.n == 8 || s.n == 24 || in_steps(s.n, 16);
    return in_steps(s.n, 8);
  }
  if (s.m != 256 && (s.m != 128 || (is_scaled(kind) && s.sparse))) return false;
  return in_steps(s.n, kind == MmaKind::I8 ? 32 : 16);
}

bool element_of(uint32_t code, MmaKind kind, MmaElement* out) {
  switch (kind) {
    case MmaKind::F16:
      *out = code == 1 ? MmaElement::BF16 : MmaElement::F16;
      return code <= 1;
    case MmaKind::TF32:
      *out = MmaElement::TF32;
      return code == 2;
    case MmaKind::I8:
      *out = code == 1 ? MmaElement::S8 : MmaElement::U8;
      return code <= 1;
    case MmaKind::MXF4:
    case MmaKind::MXF4NVF4:
      *out = MmaElement::E2M1Packed;
      return code == 1;
    default:
      break;
  }
  switch (code) {
    case 0:
      *out = MmaElement::E4M3;
      return true;
    case 1:
      *out = MmaElement::E5M2;
      return true;
    case 3:
      *out = MmaElement::E2M3;
      return true;
    case 4:
      *out = MmaElement::E3M2;
      return true;
    case 5:
      *out = MmaElement::E2M1;
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string decode_mma_shape(uint32_t bits, MmaKind kind, int group, bool ws, bool sparse, int scale_vector,
                             MmaShape* s) {
  const auto field = [&](int low, int count) { return bits >> low & ((1u << count) - 1); };
  const auto must_be_zero = [&](int low, int count) {
    return field(low, count) != 0
               ? "reserved bits from " + std::to_string(low) + " of the instruction descriptor must be 0"
               : std::string();
  };
  const std::string of_kind = std::string(" for .kind::") + mma_kind_name(kind);
  if (field(2, 1) != uint32_t{sparse})
    return sparse ? "the instruction descriptor says dense, the instruction is sparse"
                  : "the instruction descriptor says sparse, the instruction is dense";
  if (const std::string e = must_be_zero(6, 1); !e.empty()) return e;
  const bool four = kind == MmaKind::MXF4 || kind == MmaKind::MXF4NVF4;
  if (four) {
    if (const std::string e = must_be_zero(12, 1); !e.empty()) return e;
  }
  if (!element_of(field(7, 3), kind, &s->a))
    return "matrix A type " + std::to_string(field(7, 3)) + " is not valid" + of_kind;
  const uint32_t b_code = four ? field(10, 2) : field(10, 3);
  if (!element_of(b_code, kind, &s->b)) return "matrix B type " + std::to_string(b_code) + " is not valid" + of_kind;
  if (kind == MmaKind::F16 && s->a != s->b) return "matrices A and B of .kind::f16 must have one type";
  s->negate_a = field(13, 1);
  s->negate_b = field(14, 1);
  s->transpose_a = field(15, 1);
  s->transpose_b = field(16, 1);
  s->n = static_cast<int>(field(17, 6)) * 8;
  s->k = (kind == MmaKind::F16 ? 16 : kind == MmaKind::TF32 ? 8 : four ? 64 : 32) * (sparse ? 2 : 1);
  s->sparse = sparse;
  s->result = MmaResult::F32;
  s->saturate = false;
  if (is_scaled(kind)) {
    if (const std::string e = must_be_zero(0, 2); !e.empty()) return e;
    if (const std::string e = must_be_zero(3, 1); !e.empty()) return e;
    if (const std::string e = must_be_zero(24, 3); !e.empty()) return e;
    s->m = static_cast<int>(field(27, 2)) * 128;
    s->scale_b_id = static_cast<uint8_t>(field(4, 2));
    s->scale_a_id = static_cast<uint8_t>(field(29, 2));
    s->scale_e8m0 = field(23, 1);
    if (field(31, 1)) return four ? "K = 96 needs sm_103a" : "bit 31 of the instruction descriptor must be 0";
    if (!s->scale_e8m0 && kind != MmaKind::MXF4NVF4) return "the scale type must be UE8M0" + of_kind;
    if (!s->scale_e8m0 && scale_vector != 4) return "UE4M3 scales need .scale_vec::4X or .block16";
    if (s->scale_a_id % scale_vector != 0 || s->scale_b_id % scale_vector != 0)
      return "scale factor ids " + std::to_string(s->scale_a_id) + " and " + std::to_string(s->scale_b_id) +
             " are not valid for .scale_vec::" + std::to_string(scale_vector) + "X";
  } else {
    if (const std::string e = must_be_zero(23, 1); !e.empty()) return e;
    if (const std::string e = must_be_zero(29, 1); !e.empty()) return e;
    s->m = static_cast<int>(field(24, 5)) * 16;
    s->selector = static_cast<uint8_t>(sparse ? field(0, 2) : 0);
    if (s->selector > (kind == MmaKind::F16 || kind == MmaKind::TF32 ? 1 : 0))
      return "sparsity selector " + std::to_string(s->selector) + " is not valid" + of_kind;
    s->saturate = field(3, 1);
    if (s->saturate && kind != MmaKind::I8) return "saturation is only valid for .kind::i8";
    const uint32_t d = field(4, 2);
    const bool fits = kind == MmaKind::I8     ? d == 2
                      : kind == MmaKind::TF32 ? d == 1
                      : kind == MmaKind::F16  ? d == 1 || (d == 0 && s->a == MmaElement::F16)
                                              : d <= 1;
    if (!fits) return "matrix D type " + std::to_string(d) + " is not valid" + of_kind;
    s->result = d == 0 ? MmaResult::F16 : d == 1 ? MmaResult::F32 : MmaResult::S32;
    if (field(30, 2) != 0 && !ws) return "the maximum shift of the instruction descriptor is for .ws only";
  }
  if (kind == MmaKind::I8 && (s->negate_a || s->negate_b)) return "negation is not valid for .kind::i8";
  if (four && (s->transpose_a || s->transpose_b)) return "transposition is not valid" + of_kind;
  const auto padded = [](MmaElement e) { return e >= MmaElement::E2M3 && e <= MmaElement::E2M1; };
  if ((s->transpose_a && padded(s->a)) || (s->transpose_b && padded(s->b)))
    return "transposition is not valid for types of 4 and 6 bits";
  if (!shape_fits(*s, kind, group, ws))
    return "shape " + std::to_string(s->m) + "x" + std::to_string(s->n) + "x" + std::to_string(s->k) + " is not valid" +
           of_kind + " with .cta_group::" + std::to_string(group) + (ws ? ".ws" : "") +
           (sparse ? " and a sparse matrix A" : "");
  if (s->transpose_b && element_bits(s->b) == 8 && s->n % (16 * group) != 0)
    return "N = " + std::to_string(s->n) + " is not valid for a transposed matrix B of 8-bit elements";
  return "";
}

}  // namespace sim
