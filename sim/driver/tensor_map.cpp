// SPDX-License-Identifier: Apache-2.0
// Tensor maps: the checks of cuTensorMapEncodeTiled, cuTensorMapEncodeIm2col and cuTensorMapEncodeIm2colWide, and the
// simulator's form of the result.
#include <optional>

#include "sim/driver/call.h"
#include "sim/memory/tensor_map.h"

namespace sim::driver {
namespace {

// The sub-byte types and the swizzles of other atoms came with compute capability 10.0.
std::optional<TensorElement> element_of(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
      return TensorElement::U8;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
      return TensorElement::U16;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
      return TensorElement::U32;
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
      return TensorElement::S32;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
      return TensorElement::U64;
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
      return TensorElement::S64;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
      return TensorElement::F16;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
      return TensorElement::F32;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
      return TensorElement::F64;
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return TensorElement::BF16;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ:
      return TensorElement::F32Ftz;
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32:
      return TensorElement::TF32;
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ:
      return TensorElement::TF32Ftz;
    case CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B:
      return TensorElement::B4x16;
    case CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B:
      return TensorElement::B4x16Padded;
    case CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B:
      return TensorElement::B6x16Padded;
    default:
      return std::nullopt;
  }
}

void needs_sm_100(const std::string& what) {
  require(state().device.arch >= 100, CUDA_ERROR_INVALID_VALUE, what + " need compute capability 10.0");
}

TensorSwizzle swizzle_of(CUtensorMapSwizzle swizzle) {
  switch (swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_NONE:
      return TensorSwizzle::None;
    case CU_TENSOR_MAP_SWIZZLE_32B:
      return TensorSwizzle::Bytes32;
    case CU_TENSOR_MAP_SWIZZLE_64B:
      return TensorSwizzle::Bytes64;
    case CU_TENSOR_MAP_SWIZZLE_128B:
      return TensorSwizzle::Bytes128;
    case CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B:
    case CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B_FLIP_8B:
    case CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B:
      needs_sm_100("swizzles of 32- and 64-byte atoms");
      return TensorSwizzle::Bytes128;
  }
  fail(CUDA_ERROR_INVALID_VALUE, "unknown swizzle");
}

TensorAtom atom_of(CUtensorMapSwizzle swizzle) {
  switch (swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B:
      return TensorAtom::Bytes32;
    case CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B_FLIP_8B:
      return TensorAtom::Bytes32Flip;
    case CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B:
      return TensorAtom::Bytes64;
    default:
      return TensorAtom::Bytes16;
  }
}

void check(bool condition, const std::string& what) { require(condition, CUDA_ERROR_INVALID_VALUE, what); }

std::string at(const char* name, unsigned index, int64_t value, const std::string& rule) {
  return std::string(name) + "[" + std::to_string(index) + "] is " + std::to_string(value) + "; " + rule;
}

// What both kinds of maps are made of.
struct TensorArguments {
  const void* map;
  CUtensorMapDataType type;
  cuuint32_t rank;
  void* address;
  const cuuint64_t *dims, *strides;
  const cuuint32_t* element_strides;
  CUtensorMapInterleave interleave;
  CUtensorMapSwizzle swizzle;
  CUtensorMapL2promotion l2;
  CUtensorMapFloatOOBfill fill;
  bool has_boxes;  // no array that one kind alone has is null
};

TensorMapFields checked(const TensorArguments& a, unsigned least_rank) {
  check(a.map != nullptr && reinterpret_cast<uintptr_t>(a.map) % kTensorMapAlign == 0,
        "tensorMap must be aligned to 64 bytes");
  check(a.type >= CU_TENSOR_MAP_DATA_TYPE_UINT8 && a.type <= CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B,
        "unknown tensorDataType");
  const auto element = element_of(a.type);
  check(element.has_value(), "unknown tensorDataType");
  if (is_packed(*element)) needs_sm_100("data types of 4 and 6 bits");
  check(a.interleave >= CU_TENSOR_MAP_INTERLEAVE_NONE && a.interleave <= CU_TENSOR_MAP_INTERLEAVE_32B,
        "unknown interleave");
  check(a.l2 >= CU_TENSOR_MAP_L2_PROMOTION_NONE && a.l2 <= CU_TENSOR_MAP_L2_PROMOTION_L2_256B, "unknown l2Promotion");
  check(a.fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE || a.fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA,
        "unknown oobFill");
  const bool plain = a.interleave == CU_TENSOR_MAP_INTERLEAVE_NONE;
  check(a.rank >= least_rank && a.rank <= 5,
        "tensorRank is " + std::to_string(a.rank) + "; allowed are " + std::to_string(least_rank) + " to 5");
  check(plain || a.rank >= 3, "an interleaved tensor needs a rank of at least 3");
  check(a.dims != nullptr && a.has_boxes && a.element_strides != nullptr && a.strides != nullptr,
        "an array of the tensor map is null");
  const uint64_t unit = a.interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16;
  // An H100 takes a null address, too: programs fill it in on the device.
  check(reinterpret_cast<uintptr_t>(a.address) % unit == 0,
        "globalAddress must be aligned to " + std::to_string(unit) + " bytes");
  check(a.fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE || is_float(*element),
        "a NaN fill needs a floating-point data type");

  TensorMapFields fields;
  fields.address = reinterpret_cast<uintptr_t>(a.address);
  fields.element = *element;
  fields.rank = a.rank;
  fields.swizzle = swizzle_of(a.swizzle);
  fields.atom = atom_of(a.swizzle);
  check(a.interleave != CU_TENSOR_MAP_INTERLEAVE_32B || fields.swizzle == TensorSwizzle::Bytes32,
        "an interleave of 32 bytes needs the 32-byte swizzle");
  fields.interleave = static_cast<TensorInterleave>(a.interleave);
  fields.l2 = static_cast<TensorL2>(a.l2);
  fields.fill = a.fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE ? TensorFill::Zero : TensorFill::Nan;
  return fields;
}

void check_dimension(const TensorArguments& a, unsigned i, TensorMapFields* fields) {
  check(a.dims[i] >= 1 && a.dims[i] <= (uint64_t{1} << 32),
        at("globalDim", i, static_cast<int64_t>(a.dims[i]), "allowed are 1 to 2^32"));
  fields->dims[i] = a.dims[i];
}
void check_element_stride(const TensorArguments& a, unsigned i, TensorMapFields* fields) {
  check(a.element_strides[i] >= 1 && a.element_strides[i] <= 8,
        at("elementStrides", i, a.element_strides[i], "allowed are 1 to 8"));
  // A tensor without interleave ignores the innermost element stride.
  const bool ignored = a.interleave == CU_TENSOR_MAP_INTERLEAVE_NONE && i == 0;
  fields->element_strides[i] = ignored ? 1 : a.element_strides[i];
}
void check_strides(const TensorArguments& a, TensorMapFields* fields) {
  const uint64_t unit = a.interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16;
  for (unsigned i = 0; i + 1 < a.rank; ++i) {
    check(a.strides[i] % unit == 0 && a.strides[i] < (uint64_t{1} << 40),
          at("globalStrides", i, static_cast<int64_t>(a.strides[i]),
             "it must be a multiple of " + std::to_string(unit) + " and less than 2^40"));
    fields->strides[i] = a.strides[i];
  }
}
// `inner`: the bytes of a row of the box.
void check_row(const TensorArguments& a, const TensorMapFields& fields, uint64_t inner) {
  if (a.interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) return;
  check(inner % 16 == 0, "the box is " + std::to_string(inner) + " bytes wide; it must be a multiple of 16");
  const uint64_t span = uint64_t{16} << static_cast<int>(fields.swizzle);  // 32, 64 or 128 bytes
  check(fields.swizzle == TensorSwizzle::None || inner <= span,
        "the box is " + std::to_string(inner) + " bytes wide; the swizzle allows " + std::to_string(span));
}
void encode_checked(const TensorMapFields& fields, CUtensorMap* map) {
  if (is_packed(fields.element)) {
    const std::string why = packed_flaw(fields);
    check(why.empty(), why);
  }
  encode(fields, reinterpret_cast<uint8_t*>(map));
}

// Of W, H or D, which are the dimensions from 1 on. A box goes from the lower corner to the dimension's last place plus
// the upper corner. `which` ends the names of the arguments.
void check_corners(const TensorArguments& a, unsigned i, const std::string& which, int lower, int upper, int most,
                   TensorMapFields* fields) {
  const std::string range = "; allowed are " + std::to_string(-most) + " to " + std::to_string(most - 1);
  check(lower >= -most && lower < most, "pixelBoxLowerCorner" + which + " is " + std::to_string(lower) + range);
  check(upper >= -most && upper < most, "pixelBoxUpperCorner" + which + " is " + std::to_string(upper) + range);
  check(static_cast<int64_t>(a.dims[i + 1]) + upper > lower,
        "the pixel box has no place in dimension " + std::to_string(i + 1));
  fields->im2col.lower[i] = lower;
  fields->im2col.upper[i] = upper;
}
void check_channels(cuuint32_t channels, TensorMapFields* fields) {
  check(channels >= 1 && channels <= 256, "channelsPerPixel is " + std::to_string(channels) + "; allowed are 1 to 256");
  fields->im2col.channels = channels;
}
void check_pixels(cuuint32_t pixels, TensorMapFields* fields) {
  check(pixels >= 1 && pixels <= 1024, "pixelsPerColumn is " + std::to_string(pixels) + "; allowed are 1 to 1024");
  fields->im2col.pixels = pixels;
}

uint64_t row_bytes_of(TensorElement element, uint64_t elements) {
  const TensorUnit unit = unit_of(element);
  return elements / unit.elements * unit.shared_bytes;
}

}  // namespace
}  // namespace sim::driver

using namespace sim::driver;

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2, CUtensorMapFloatOOBfill fill) {
  // The driver on an H200 refuses without a current context too.
  API(Context, {
    using namespace sim;
    const TensorArguments given{map,        type,    rank, address, dims,          strides, element_strides,
                                interleave, swizzle, l2,   fill,    box != nullptr};
    TensorMapFields fields = checked(given, 1);
    for (unsigned i = 0; i < rank; ++i) {
      check_dimension(given, i, &fields);
      check(box[i] >= 1 && box[i] <= 256, at("boxDim", i, box[i], "allowed are 1 to 256"));
      fields.box[i] = box[i];
      check_element_stride(given, i, &fields);
    }
    check_strides(given, &fields);
    const uint64_t inner = row_bytes_of(fields.element, box[0]);
    uint64_t whole = inner;
    for (unsigned i = 1; i < rank; ++i) whole *= (box[i] + element_strides[i] - 1) / element_strides[i];
    // The driver on an H200 has the same limit.
    check(whole <= kSharedPerSm, "the box is of " + std::to_string(whole) + " bytes; shared memory holds 233472");
    check_row(given, fields, inner);
    encode_checked(fields, map);
  });
}

CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  API(Initialized, {
    using namespace sim;
    check(map != nullptr && reinterpret_cast<uintptr_t>(map) % kTensorMapAlign == 0,
          "tensorMap must be aligned to 64 bytes");
    auto fields = decode(reinterpret_cast<const uint8_t*>(map));
    check(fields.has_value(), "not a tensor map");
    const uint64_t unit = fields->interleave == TensorInterleave::Bytes32 ? 32 : 16;
    check(address != nullptr && reinterpret_cast<uintptr_t>(address) % unit == 0,
          "globalAddress must be aligned to " + std::to_string(unit) + " bytes");
    fields->address = reinterpret_cast<uintptr_t>(address);
    encode(*fields, reinterpret_cast<uint8_t*>(map));
  });
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                 const cuuint64_t* dims, const cuuint64_t* strides, const int* lower, const int* upper,
                                 cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* element_strides,
                                 CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion l2, CUtensorMapFloatOOBfill fill) {
  API(Context, {
    using namespace sim;
    const TensorArguments given{map,
                                type,
                                rank,
                                address,
                                dims,
                                strides,
                                element_strides,
                                interleave,
                                swizzle,
                                l2,
                                fill,
                                lower != nullptr && upper != nullptr};
    TensorMapFields fields = checked(given, 3);
    fields.mode = TensorMode::Im2col;
    for (unsigned i = 0; i < rank; ++i) {
      check_dimension(given, i, &fields);
      check_element_stride(given, i, &fields);
    }
    check_strides(given, &fields);
    const int most = rank == 3 ? 32768 : rank == 4 ? 128 : 16;
    for (unsigned i = 0; i + 2 < rank; ++i)
      check_corners(given, i, "[" + std::to_string(i) + "]", lower[i], upper[i], most, &fields);
    check_channels(channels, &fields);
    check_pixels(pixels, &fields);
    check_row(given, fields, row_bytes_of(fields.element, channels));
    encode_checked(fields, map);
  });
}

CUresult cuTensorMapEncodeIm2colWide(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                     const cuuint64_t* dims, const cuuint64_t* strides, int lower, int upper,
                                     cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* element_strides,
                                     CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode,
                                     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2,
                                     CUtensorMapFloatOOBfill fill) {
  API(Context, {
    using namespace sim;
    needs_sm_100("im2col::w tensor maps");
    const TensorArguments given{map,        type,    rank, address, dims, strides, element_strides,
                                interleave, swizzle, l2,   fill,    true};
    // PTX ISA 5.5.6
    check(interleave == CU_TENSOR_MAP_INTERLEAVE_NONE, "an im2col::w tensor map has no interleaved layout");
    check(swizzle == CU_TENSOR_MAP_SWIZZLE_64B || swizzle == CU_TENSOR_MAP_SWIZZLE_128B ||
              swizzle == CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B,
          "an im2col::w tensor map has the swizzle 64B, 128B or 128B_ATOM_32B");
    check(mode == CU_TENSOR_MAP_IM2COL_WIDE_MODE_W || mode == CU_TENSOR_MAP_IM2COL_WIDE_MODE_W128, "unknown mode");
    TensorMapFields fields = checked(given, 3);
    for (unsigned i = 0; i < rank; ++i) {
      check_dimension(given, i, &fields);
      check_element_stride(given, i, &fields);
    }
    check_strides(given, &fields);
    check_corners(given, 0, "Width", lower, upper, 32768, &fields);
    check_channels(channels, &fields);
    if (mode == CU_TENSOR_MAP_IM2COL_WIDE_MODE_W) check_pixels(pixels, &fields);
    fields.mode = mode == CU_TENSOR_MAP_IM2COL_WIDE_MODE_W ? TensorMode::Im2colW : TensorMode::Im2colW128;
    check_row(given, fields, row_bytes_of(fields.element, channels));
    encode_checked(fields, map);
  });
}
